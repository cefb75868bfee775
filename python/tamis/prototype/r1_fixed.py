"""Rung 1: every (request, KV head) attends to exactly K whole pages of a contiguous cache.

One program takes the query heads of one KV head: they share the list, so each key is loaded once for all of them. The
K * P selected tokens are one sequence, cut into tiles of T however long a page is.
"""
import torch
import triton
import triton.language as tl

from .launch import check_integers, check_tensors, require, results, tile_sizes
from .online import empty_state, load_rows, step, store_result


@triton.jit
def fixed_kernel(q, k, v, pages, out, lse, count, scale, qs, ks, vs, P: tl.constexpr,
                 GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
                 DVP: tl.constexpr, TILE: tl.constexpr, PRODUCT: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    g = tl.arange(0, ROWS)
    heads = h * GROUP + g
    query = load_rows(q + b * qs[0] + heads * qs[1], g < GROUP, D, DP, PRODUCT)
    row = pages + (b * tl.num_programs(1) + h) * count
    m, l, o = empty_state(ROWS, DVP)
    for start in range(0, count * P, TILE):
        i = start + tl.arange(0, TILE)
        seen = i < count * P
        t = tl.load(row + i // P, mask=seen, other=0).to(tl.int64) * P + i % P
        keys = load_rows(k + b * ks[0] + t * ks[1] + h * ks[2], seen, D, DP, PRODUCT)
        values = load_rows(v + b * vs[0] + t * vs[1] + h * vs[2], seen, DV, DVP, PRODUCT)
        m, l, o = step(query, keys, values, seen, scale, m, l, o)
    store_result(out, lse, b * tl.num_programs(1) * GROUP + heads, g < GROUP, m, l, o, DV, DVP)


def fixed_attention(q, k, v, pages, *, page, scale=None):
    """q [B, Hq, D]; k [B, T, Hkv, D], v [B, T, Hkv, Dv]: the cache; pages [B, Hkv, K] i32: distinct page numbers, all
    in [0, T // page). Returns out [B, Hq, Dv] and LSE [B, Hq]."""
    check_tensors(q, k, v)
    require(k.shape[0] == q.shape[0], f"k: {k.shape[0]} requests, q has {q.shape[0]}")
    require(page >= 1, f"page: {page}, expected 1 or more")
    check_integers("pages", pages, q, torch.int32, (q.shape[0], k.shape[2], None))
    out, lse = results(q, v)
    if out.numel():
        fixed_kernel[q.shape[0], k.shape[2]](
            q, k, v, pages, out, lse, pages.shape[2], q.shape[2] ** -0.5 if scale is None else scale,
            q.stride(), k.stride(), v.stride(), P=page, **tile_sizes(q, v, q.shape[1] // k.shape[2]))
    return out, lse
