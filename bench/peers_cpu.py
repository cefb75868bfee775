#!/usr/bin/env python3
"""The CPU readings beside torch doing the same work, in one process: peers_cpu.py --library FILE [NAME ...]

Tamis is called through its C interface (libtamis.so). The peers are given what they need beforehand, untimed: physical
rows to gather, block masks. Every contender's result is compared with the float64 reference. Without torch there is
nothing to interleave with: the record then names it as absent, and that is all it says.
"""
import argparse
import fnmatch
import os
import sys

import peer_ceilings
import peer_record as rec
import tamis_ctypes as t


# ---------------------------------------------------------------------------- what torch does

def folded(torch, q, k, v):
    """The query heads of a group as query rows: no head is repeated."""
    hkv, group = k.shape[1], q.shape[1] // k.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(q.view(1, hkv, group, q.shape[-1]), k, v)
    return out.view(1, q.shape[1], -1)


def repeated(torch, q, k, v):
    out = torch.nn.functional.scaled_dot_product_attention(q.view(1, q.shape[1], 1, q.shape[-1]), k, v, enable_gqa=True)
    return out.view(1, q.shape[1], -1)


def decode_peers(torch, work):
    flat_k, flat_v = (x.view(-1, x.shape[-1]) for x in (work.k, work.v))

    def gathered(attend):
        def call(turn):
            x = work.turns[turn]
            k, v = (flat.index_select(0, x["rows"]).view(1, work.k.shape[2], -1, work.k.shape[-1])
                    for flat in (flat_k, flat_v))
            return attend(torch, x["q"], k, v)
        return call
    return {"torch gather + sdpa folded": lambda: gathered(folded),
            "torch gather + sdpa enable_gqa": lambda: gathered(repeated),
            "torch flex_attention": lambda: flex_decode(torch, work)}


def dense_peers(torch, work):
    def call(attend):
        def one(turn):
            x = work.turns[turn]
            return attend(torch, x["q"], x["k"][None], x["v"][None])
        return one
    return {"torch sdpa folded": lambda: call(folded), "torch sdpa enable_gqa": lambda: call(repeated)}


def prefill_peers(torch, work):
    return {"torch flex_attention": lambda: flex_prefill(torch, work)}


def block_mask(torch, lists, block, seq_lengths):
    """lists [heads, query blocks, listed] of key blocks, all full. Inductor wants room for every key block in a row."""
    from torch.nn.attention.flex_attention import BlockMask
    heads, rows, listed = lists.shape
    room = torch.zeros(1, heads, rows, seq_lengths[1] // block[1], dtype=torch.int32)
    room[..., :listed] = lists.sort(-1).values
    counts = torch.full((1, heads, rows), listed, dtype=torch.int32)
    return BlockMask.from_kv_blocks(torch.zeros_like(counts), torch.zeros_like(room), counts, room, BLOCK_SIZE=block,
                                    seq_lengths=seq_lengths)


def compiled_flex(torch):
    """FlexAttention with the compiler's memory of other cases wiped. Past its limit of recompilations it would quietly
    go on uncompiled, where block lists are not read and everything is attended to: that has to be an error."""
    from torch.nn.attention.flex_attention import flex_attention
    torch.compiler.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def flex_decode(torch, work):
    """Over a turn's part of the pool itself: key blocks are physical pages."""
    compiled = compiled_flex(torch)
    heads, kv_heads, page = work.turns[0]["q"].shape[1], work.k.shape[2], work.k.shape[1]
    of_turn = work.k.shape[0] // len(work.turns)
    inputs = []
    for n, x in enumerate(work.turns):
        k, v = (pool[n * of_turn:(n + 1) * of_turn].view(1, of_turn * page, *pool.shape[2:]).transpose(1, 2)
                for pool in (work.k, work.v))
        pages = (x["pages"] - n * of_turn).to(torch.int32).repeat_interleave(heads // kv_heads, 0)[:, None]
        inputs.append((k, v, block_mask(torch, pages, (page, page), (1, of_turn * page))))

    def call(turn):
        k, v, mask = inputs[turn]
        q = work.turns[turn]["q"].view(1, heads, 1, -1)
        return compiled(q, k, v, block_mask=mask, enable_gqa=True).view(1, heads, -1)
    return call


def flex_prefill(torch, work):
    compiled, masks = compiled_flex(torch), []
    for x in work.turns:
        blocks = torch.tensor(x["lists"], dtype=torch.int32).transpose(0, 1)  # [KV head, query block, listed]
        blocks = blocks.repeat_interleave(work.heads // work.kv_heads, 0)
        masks.append(block_mask(torch, blocks, (work.block, work.block), (work.length, work.length)))

    def call(turn):
        q, k, v = (work.turns[turn][name].transpose(0, 1)[None] for name in "qkv")
        return compiled(q, k, v, block_mask=masks[turn], enable_gqa=True)[0].transpose(0, 1)
    return call


# ---------------------------------------------------------------------------- measuring

def cases():
    """name -> (class of the work, dtype, peers)."""
    import peer_backward as b
    import peer_work as w
    table = {}
    for dtype in ("bf16", "f32"):
        table[f"cpu.decode64k.b1.{dtype}"] = (w.Decode, dtype, decode_peers)
        table[f"cpu.dense64k.b1.{dtype}"] = (w.Dense, dtype, dense_peers)
        table[f"cpu.prefill.block128.L4k.d12.{dtype}"] = (w.Prefill, dtype, prefill_peers)
        table[f"cpu.backward.block128.L4k.d12.{dtype}"] = (b.Backward, dtype, b.peers)
    return table


def largest_error(torch, got, want):
    """`got`: one tensor, or several whose elements `want` has one after the other."""
    parts = got if isinstance(got, tuple) else (got,)
    difference = (torch.cat([x.double().flatten() for x in parts]) - want).abs()
    return float(difference.max()) if bool(torch.isfinite(difference).all()) else None


def contenders_of(torch, library, context, name, work, peers, record):
    """{peer: f(turn)}, Tamis as "", and {peer: error of turn 0}; whoever refuses is in `skipped`, the others still run."""
    makers = {"": lambda: work.contender(library, context), **peers(torch, work)}
    calls, errors, want = {}, {}, work.reference(library)
    for peer, make in makers.items():
        try:
            call = make()
            errors[peer] = largest_error(torch, call(0), want)
            calls[peer] = call
        except Exception as error:  # a peer may refuse with anything
            text = str(error).strip().split("\n")
            record["skipped"].append({"name": name, "peer": peer, "why": f"{type(error).__name__}: {text[0][:300]}"})
    return calls, errors, len(want)


def measure_case(torch, library, context, ceilings, name, case, options, record):
    kind, dtype, peers = case
    work = kind(torch, dtype)
    calls, errors, elements = contenders_of(torch, library, context, name, work, peers, record)
    if not calls:
        return
    turns = len(work.turns)
    wrapped = {peer: (lambda turn, call=call: call(turn % turns)) for peer, call in calls.items()}
    # Arithmetic binds: the product of this dtype is the ceiling, read on both sides of the case.
    product = f"gemm_{dtype}" if work.bound_by_arithmetic else None
    before = ceilings.visit(product)[product] if product else []
    times, warmup, note = rec.measure(wrapped, samples=options.samples, warmup=min(100, options.samples))
    after = ceilings.visit(product)[product] if product else []
    ceiling_us = ceilings.time_of(work.flops, product, before + after) if product else None
    description = dict(work.case, threads=options.threads)
    for peer, us in times.items():
        record["readings"].append(rec.reading(name, peer, description, us, warmup, work.bytes, work.flops, product,
                                              ceiling_us, max_error=errors[peer],
                                              checked_rows=elements // work.case["head_dim"], note=note))


def print_table(record):
    for name in dict.fromkeys(r["name"] for r in record["readings"]):
        rows = [r for r in record["readings"] if r["name"] == name]
        mine = next((r for r in rows if not r["peer"]), None)
        for r in rows:
            error = "not finite" if r["max_error"] is None else f"{r['max_error']:.1e}"
            ratio = f"{r['median_us'] / mine['median_us']:>6.2f} x" if mine else " " * 8
            share = f"  {100 * r['fraction_of_ceiling']:.1f} % of {r['ceiling']}" if r["ceiling"] else ""
            print(f"{name:<40} {r['peer'] or 'tamis':<32} {r['median_us']:>12.1f} us  {ratio}  error {error}{share}")
    for s in record["skipped"]:
        print(f"skipped: {s['name']} {s.get('peer') or 'tamis'}: {s['why']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=["*"], metavar="NAME", help="readings, as shell globs")
    parser.add_argument("--library", required=True, help="libtamis.so")
    parser.add_argument("--out", help="write the record here instead of to stdout")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=0, help="of both sides; 0: all")
    options = parser.parse_args()
    library = t.Library(options.library)
    options.threads = options.threads or os.cpu_count()
    # Huge pages for torch's memory, as the pools of `tamis bench` have: without them the page walker is measured.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        import torch
    except ImportError as error:
        record = rec.environment(options.threads, {"torch": f"absent: {error}", "tamis": library.version})
        record["skipped"].append({"name": "*", "why": "torch is not installed"})
        rec.write(options.out, record)
        print("torch is not installed: no peers to read", file=sys.stderr)
        return 0
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    record = rec.environment(options.threads, {"torch": torch.__version__, "tamis": library.version})
    ceilings = peer_ceilings.of_torch(torch)
    ceilings.visit()
    context = library.context(options.threads)
    for name, case in cases().items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in options.names):
            print(f"{name} ...", file=sys.stderr)
            measure_case(torch, library, context, ceilings, name, case, options, record)
    ceilings.visit()
    record["ceilings"] = dict(ceilings.record(), scattered_read_tb_s={})  # no reader in the C interface
    if options.out:
        print_table(record)
    rec.write(options.out, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
