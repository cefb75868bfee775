#!/usr/bin/env python3
"""Dense and selected decode on the device beside torch's cuDNN attention, in one process and over one K and V:
peers_cuda.py --library libtamis.so [--out FILE] [--samples N] [NAME ...]

Every contender is a CUDA graph of all turns, timed by events in random order. Dense decode is the same work for both;
selected decode reads 264 of 4096 pages a KV head, which dense attention cannot leave out: its readings have names of
their own. Needs torch with CUDA, and Tamis with its C interface for the device.
"""
import argparse
import ctypes
import fnmatch
import random
import subprocess
import sys
import time

import peer_record as rec
import tamis_ctypes as t

HQ, HKV, D, TOKENS, PAGE, WINDOW, LISTED = 32, 8, 128, 65536, 16, 256, 256
PAGES = TOKENS // PAGE
FIXED_WIDTH = 1
TURNS = {1: 20, 8: 3, 64: 1}  # a cycle of selected decode reads some 330 MiB and more: over five times the L2


class Work:
    """K and V [turns, B, Hkv, T, D] for torch; for Tamis the same memory, contiguous or in pages through a table."""

    def __init__(self, torch, requests):
        self.torch, self.b, self.turns = torch, requests, TURNS[requests]
        self.kept, self.problems = [], []
        torch.manual_seed(64)
        self.k, self.v = (self.values(self.turns, requests, HKV, TOKENS, D) for _ in range(2))
        self.q = self.values(self.turns, requests, HQ, D)
        rng = random.Random(64)
        self.tables = [[rng.sample(range(PAGES), PAGES) for _ in range(requests)] for _ in range(self.turns)]
        self.lists = [[[self.pages(rng) for _ in range(HKV)] for _ in range(requests)] for _ in range(self.turns)]

    def values(self, *shape):
        return self.torch.empty(*shape, dtype=self.torch.bfloat16, device="cuda").uniform_(-3 ** 0.5, 3 ** 0.5)

    @staticmethod
    def pages(rng):
        """256 pages, 8 of them in the window's 16."""
        first = PAGES - WINDOW // PAGE
        return rng.sample(range(first), LISTED - 8) + rng.sample(range(first, PAGES), 8)

    def keep(self, values, dtype=None):
        x = values if hasattr(values, "data_ptr") else self.torch.tensor(values, dtype=dtype or self.torch.int32,
                                                                         device="cuda")
        self.kept.append(x)
        return x

    def view(self, tensor, dtype=t.I32, shape=None, stride=None):
        x = t.Tensor(tensor.data_ptr(), dtype, list(shape or tensor.shape))
        for axis, step in enumerate(stride or ()):
            x.stride[axis] = step
        self.kept.append(x)
        return ctypes.pointer(x)

    def problem(self, library, turn, selected):
        p = library.filled(t.Problem)
        b, ints = self.b, self.keep
        p.query.q = self.view(self.q[turn], t.BF16)
        p.query.cu_q = self.view(ints(list(range(b + 1))))
        p.cache.kv_len = self.view(ints([TOKENS] * b))
        p.cache.layout = t.HND
        for name, x in (("k", self.k[turn]), ("v", self.v[turn])):
            # A request is a whole [Hkv, T, D]: heads are T rows apart, requests Hkv * T.
            rows = ((b - 1) * HKV + 1) * TOKENS
            if selected:
                view = self.view(x, t.BF16, (rows // PAGE, HKV, PAGE, D), (PAGE * D, TOKENS * D, D, 1))
            else:
                view = self.view(x, t.BF16, (HKV, rows, D), (TOKENS * D, D, 1))
            setattr(p.cache, name, view)
        if selected:
            table = [[r * HKV * PAGES + page for page in self.tables[turn][r]] for r in range(b)]
            p.cache.page_table = self.view(ints(table))
            p.candidates.form = FIXED_WIDTH
            p.candidates.unit, p.candidates.query_block, p.candidates.index_heads = PAGE, 1, HKV
            p.candidates.indices = self.view(ints([row for request in self.lists[turn] for row in request]))
            p.mask.window = WINDOW
        else:
            bounds = [r * HKV * TOKENS for r in range(b)] + [((b - 1) * HKV + 1) * TOKENS]
            p.cache.cu_kv = self.view(ints(bounds))
            p.candidates.form = t.FORM_ALL
        return p

    def step(self, library, turn, selected):
        import tamis_cuda_ctypes as device
        out = self.keep(self.torch.full_like(self.q[turn], float("nan")))
        problem = self.problem(library, turn, selected)

        def allocate(size):
            return self.keep(self.torch.empty(size, dtype=self.torch.uint8, device="cuda")).data_ptr()
        step = device.DeviceStep(library, problem, self.view(out, t.BF16).contents, allocate, stream_of(self.torch))
        return step, out

    def reference(self, turn, selected):
        """Request 0 in float64, [Hq, D]."""
        torch = self.torch
        out = []
        for head in range(HKV):
            k, v = (x[turn, 0, head].double() for x in (self.k, self.v))
            if selected:
                pages = set(self.lists[turn][0][head]) | set(range(PAGES - WINDOW // PAGE, PAGES))
                rows = torch.tensor([self.tables[turn][0][page] * PAGE + i for page in sorted(pages)
                                     for i in range(PAGE)], device="cuda")
                k, v = k[rows], v[rows]
            group = HQ // HKV
            q = self.q[turn, 0, head * group:(head + 1) * group].double()
            out.append(torch.softmax(q @ k.T / D ** 0.5, -1) @ v)
        return torch.cat(out)


def stream_of(torch):
    return torch.cuda.current_stream().cuda_stream


def sdpa(torch, work, fold):
    """cuDNN's attention of every turn; returns (call, outputs)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    outs = [None] * work.turns

    def call(turn):
        shape = (work.b, HKV, HQ // HKV, D) if fold else (work.b, HQ, 1, D)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            outs[turn] = torch.nn.functional.scaled_dot_product_attention(
                work.q[turn].view(shape), work.k[turn], work.v[turn], enable_gqa=not fold)
    return call, outs


def tamis(work, library, selected, whole):
    made = [work.step(library, turn, selected) for turn in range(work.turns)]

    def call(turn):
        step = made[turn][0]
        (step.step if whole else step.run)(stream_of(work.torch))
    return call, [out for _, out in made]


def graph_of(torch, call, turns, nodes):
    for turn in range(turns):
        call(turn)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(nodes):
            call(i % turns)
    return graph


def measure(torch, graphs, warmup, samples):
    """{key: ([us], [host us])} of graph launches in random order."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    order, rng, found = list(graphs), random.Random(1), {key: ([], []) for key in graphs}
    for i in range(warmup + samples):
        rng.shuffle(order)
        for key in order:
            torch.cuda._sleep(100000)  # until the host has enqueued all of it
            start.record()
            begun = time.perf_counter_ns()
            graphs[key].replay()
            host = (time.perf_counter_ns() - begun) / 1000
            stop.record()
            stop.synchronize()
            if i >= warmup:
                found[key][0].append(start.elapsed_time(stop) * 1000)
                found[key][1].append(host)
    return found


def run_case(torch, library, name, requests, record, samples):
    work = Work(torch, requests)
    makers = {(f"{name}.dense", ""): lambda: tamis(work, library, False, False),
              (f"{name}.attend", ""): lambda: tamis(work, library, True, False),
              (f"{name}.index_attend", ""): lambda: tamis(work, library, True, True),
              (f"{name}.dense", "torch sdpa cudnn enable_gqa"): lambda: sdpa(torch, work, False),
              (f"{name}.dense", "torch sdpa cudnn folded"): lambda: sdpa(torch, work, True)}
    graphs, outputs, nodes = {}, {}, {}
    for key, make in makers.items():
        try:
            call, outputs[key] = make()
            nodes[key] = work.turns * (2 if requests == 8 else 1)  # an event is over 100 us
            graphs[key] = graph_of(torch, call, work.turns, nodes[key])
        except Exception as error:  # whatever a contender refuses with goes on record
            torch.cuda.synchronize()
            record["skipped"].append({"name": key[0], "peer": key[1], "why": f"{type(error).__name__}: {error}"[:500]})
    warmup = min(100, samples)
    times = measure(torch, graphs, warmup, samples)
    want = {selected: work.reference(0, selected) for selected in (False, True)}
    for (reading, peer), (us, host) in times.items():
        selected = not reading.endswith(".dense")
        tokens = requests * HKV * (264 * PAGE if selected else TOKENS)
        got = outputs[reading, peer][0][0].reshape(HQ, D).double()
        case = {"requests": requests, "q_heads": HQ, "kv_heads": HKV, "head_dim": D, "kv_len": TOKENS, "dtype": "bf16",
                "layout": "hnd", "distribution": "uniform" if selected else "all", "turns": work.turns}
        one = rec.reading(reading, peer, case, [x / nodes[reading, peer] for x in us], warmup,
                          work_bytes=tokens * 2 * D * 2, flops=tokens * (HQ // HKV) * 4 * D,
                          max_error=float((got - want[selected]).abs().max()), checked_rows=HQ)
        one["wall_us"] = sum(host) / len(host) / nodes[reading, peer]
        one["nodes"] = nodes[reading, peer]
        record["readings"].append(one)


def query(field):
    try:
        found = subprocess.run(("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"),
                               capture_output=True, text=True)
        return found.stdout.split("\n")[0].strip() or None
    except OSError:
        return None


def peers_here(torch):
    peers = {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}
    try:
        import flashinfer
        peers["flashinfer"] = f"{flashinfer.__version__}, not measured here"
    except Exception as error:
        peers["flashinfer"] = f"absent: {error}"
    return peers


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=["*"], help="decode64k.b1, .b8, .b64, as shell globs")
    parser.add_argument("--library", required=True, help="libtamis.so of a build with CUDA")
    parser.add_argument("--out")
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"torch is absent, there is nothing to measure beside: {error}")
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device")
    library = t.Library(options.library)
    record = rec.environment(None, peers_here(torch))
    record.update(gpu=torch.cuda.get_device_name(), driver=query("driver_version"), cuda=torch.version.cuda,
                  power_limit=query("power.limit"), ecc=query("ecc.mode.current"))
    record["clocks"]["gpu_before"] = {"sm_mhz": query("clocks.sm"), "memory_mhz": query("clocks.mem")}
    for requests in TURNS:
        name = f"decode64k.b{requests}"
        if any(fnmatch.fnmatch(name, pattern) for pattern in options.names):
            run_case(torch, library, name, requests, record, options.samples)
            torch.cuda.empty_cache()
    record["clocks"]["gpu_after"] = {"sm_mhz": query("clocks.sm"), "memory_mhz": query("clocks.mem")}
    rec.write(options.out, record)
    for one in record["readings"]:
        print(f"{one['name']:<28}{one['peer'] or 'tamis':<30}{one['median_us']:>10.2f} us {one['tb_s']:>6.2f} TB/s"
              f"  error {one['max_error']:.1e}", file=sys.stderr)
    for one in record["skipped"]:
        print(f"skipped: {one['name']} {one['peer']}: {one['why']}", file=sys.stderr)


if __name__ == "__main__":
    main()
