"""Rung 2: the same K pages, but of a paged cache: a page table says where a request's pages lie.

New against rung 1 is one more load on the way to a key, and that a physical page number times the page stride passes
2^31 in any cache of a few GiB, so addresses are formed in 64 bits. Strides come from the tensors: NHD and HND are one
kernel.
"""
import torch
import triton
import triton.language as tl

from .launch import check_integers, check_tensors, results, tile_sizes
from .online import empty_state, load_rows, step, store_result


@triton.jit
def paged_kernel(q, k, v, pages, table, out, lse, count, max_pages, scale, qs, ks, vs, P: tl.constexpr,
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
        logical = tl.load(row + i // P, mask=seen, other=0)
        physical = tl.load(table + b * max_pages + logical, mask=seen, other=0).to(tl.int64)
        keys = load_rows(k + physical * ks[0] + i % P * ks[1] + h * ks[2], seen, D, DP, PRODUCT)
        values = load_rows(v + physical * vs[0] + i % P * vs[1] + h * vs[2], seen, DV, DVP, PRODUCT)
        m, l, o = step(query, keys, values, seen, scale, m, l, o)
    store_result(out, lse, b * tl.num_programs(1) * GROUP + heads, g < GROUP, m, l, o, DV, DVP)


def paged_attention(q, k, v, pages, page_table, *, scale=None):
    """q [B, Hq, D]; k [physical pages, P, Hkv, D], v [physical pages, P, Hkv, Dv], any strides (HND: pass
    k.transpose(1, 2)); pages [B, Hkv, K] i32: distinct logical pages; page_table [B, max_pages] i32. Returns
    out [B, Hq, Dv] and LSE [B, Hq]."""
    check_tensors(q, k, v)
    check_integers("pages", pages, q, torch.int32, (q.shape[0], k.shape[2], None))
    check_integers("page_table", page_table, q, torch.int32, (q.shape[0], None))
    out, lse = results(q, v)
    if out.numel():
        paged_kernel[q.shape[0], k.shape[2]](
            q, k, v, pages, page_table, out, lse, pages.shape[2], page_table.shape[1],
            q.shape[2] ** -0.5 if scale is None else scale, q.stride(), k.stride(), v.stride(), P=k.shape[1],
            **tile_sizes(q, v, q.shape[1] // k.shape[2]))
    return out, lse
