"""What the machine does through torch, read in the run whose readings are held against it.

Rates drift by the minute, so nothing is read once: all ceilings before the first case and after the last, and the
product that binds a case right before and right after that case.
"""
import peer_record as rec

PRODUCT = 2048  # extent of the square matrices
SAMPLES = 7     # of each visit


class Ceilings:
    def __init__(self, calls, work):
        """calls: {name: f(turn)}; work: {name: bytes or FLOP of one call}."""
        self.calls, self.work, self.us = calls, work, {name: [] for name in calls}

    def visit(self, *names):
        """Reads the named ceilings (all without names), interleaved. Returns {name: [us]} of this visit."""
        times, _, _ = rec.measure({name: self.calls[name] for name in names or self.calls}, warmup=2, samples=SAMPLES)
        for name, us in times.items():
            self.us[name] += us
        return times

    def time_of(self, work, name, us):
        """us that `work` takes at the median rate of the samples `us`."""
        return work / self.work[name] * rec.percentile(sorted(us), 0.5)

    def record(self):
        """TB/s and TFLOP/s, medians over the run."""
        return {f"{name}_{'tflop_s' if name.startswith('gemm') else 'tb_s'}":
                self.work[name] / rec.percentile(sorted(us), 0.5) * 1e-6 for name, us in self.us.items() if us}


def of_torch(torch):
    """Copy, read and products on all threads of torch. The C interface has no reader of scattered pages, so that ceiling
    stays with `tamis bench`."""
    n = 6 * rec.last_level_cache() // 8
    source = torch.randint(1, 1 << 40, (n,), dtype=torch.int64)
    target = torch.empty_like(source)
    a, b = torch.randn(PRODUCT, PRODUCT), torch.randn(PRODUCT, PRODUCT)
    a16, b16 = a.bfloat16(), b.bfloat16()
    c, c16 = torch.empty_like(a), torch.empty_like(a16)
    flops = 2 * PRODUCT**3
    return Ceilings({"copy": lambda _: target.copy_(source), "read": lambda _: source.sum(),
                     "gemm_f32": lambda _: torch.mm(a, b, out=c),
                     "gemm_bf16": lambda _: torch.mm(a16, b16, out=c16)},
                    {"copy": 16 * n, "read": 8 * n, "gemm_f32": flops, "gemm_bf16": flops})
