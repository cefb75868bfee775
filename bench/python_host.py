#!/usr/bin/env python3
"""Host time of a call from Python on a CUDA device, no graph: python_host.py [--out FILE] [--samples N]

`tamis.run` over a schedule that is made once (decode, 8 requests, 32/8 heads, bf16), as a layer of a server calls it, and
the calls around it. Between samples the device catches up, so a full queue is never waited for. Needs torch with CUDA.
"""
import argparse
import statistics
import sys
import time

import peer_record as rec

REQUESTS, HQ, HKV, D, PAGE, TOKENS, LISTED = 8, 32, 8, 128, 16, 4096, 64


def problem(torch):
    def values(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def ints(x):
        return x.to(device="cuda", dtype=torch.int32)
    pages = TOKENS // PAGE
    lists = torch.stack([torch.randperm(pages)[:LISTED] for _ in range(REQUESTS * HKV)])
    arrays = values(REQUESTS, HQ, D), *(values(REQUESTS * pages, PAGE, HKV, D) for _ in range(2))
    arguments = {"cu_q": ints(torch.arange(REQUESTS + 1)), "kv_len": ints(torch.full((REQUESTS,), TOKENS)),
                 "page_table": ints(torch.randperm(REQUESTS * pages).reshape(REQUESTS, pages)), "window": 256}
    return arrays, ints(lists), arguments


def measure(torch, call, samples, at_once=50):
    """[us] of calls, the device idle before each batch of them."""
    found = []
    while len(found) < samples + at_once:
        torch.cuda.synchronize()
        for _ in range(at_once):
            begin = time.perf_counter_ns()
            call()
            found.append((time.perf_counter_ns() - begin) / 1000)
    torch.cuda.synchronize()
    return found[at_once:samples + at_once]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out")
    parser.add_argument("--samples", type=int, default=2000)
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"torch is absent: {error}")
    if not torch.cuda.is_available():
        sys.exit("no device")
    import tamis
    (q, k, v), lists, arguments = problem(torch)
    candidates = tamis.Candidates(lists, unit=PAGE, index_heads=HKV)
    plan = tamis.plan(q, k, v, candidates, **arguments)
    index = tamis.normalize(plan=plan)
    schedule = tamis.schedule(plan, index)
    out = torch.empty_like(q)
    calls = {"python.run": lambda: tamis.run(plan, schedule, q, k, v, out=out),
             "python.run.new_out": lambda: tamis.run(plan, schedule, q, k, v),
             "python.step": lambda: tamis.run(plan, tamis.schedule(plan, tamis.normalize(plan=plan, into=index)), q, k, v,
                                              out=out),
             "python.attention": lambda: tamis.attention(q, k, v, candidates, **arguments),
             "python.torch_add": lambda: torch.add(out, 1, out=out)}
    record = rec.environment(None, {"torch": torch.__version__, "tamis": tamis.__version__})
    record.update(gpu=torch.cuda.get_device_name(), cuda=torch.version.cuda)
    case = {"requests": REQUESTS, "q_heads": HQ, "kv_heads": HKV, "head_dim": D, "kv_len": TOKENS, "dtype": "bf16"}
    for name, call in calls.items():
        us = measure(torch, call, options.samples)
        peer = "torch.add" if name == "python.torch_add" else ""
        record["readings"].append(rec.reading(name, peer, case, us, 50, work_bytes=0, flops=0, max_error=None, checked_rows=0))
        print(f"{name:<24}{statistics.median(us):>8.2f} us of host time, 95 %: {sorted(us)[len(us) * 95 // 100]:.2f}",
              file=sys.stderr)
    index.poll()
    rec.write(options.out, record)


if __name__ == "__main__":
    main()
