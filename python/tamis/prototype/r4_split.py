"""Rung 4: split-KV. A row is cut into equal shares, so that a few long rows fill the device too.

Each share leaves a partial state (m, l, o); a second kernel merges the states of a row. The cut depends on the row
and `splits` alone and no atomics take part, so the same call gives the same bits every time.
"""
import torch
import triton
import triton.language as tl

from .launch import require, results, tile_sizes
from .online import load_rows, store_result
from .r3_ragged import check_index, locate, walk


@triton.jit
def share_kernel(q, k, v, indptr, blocks, members, table, kv_len, q_pos, request, m_out, l_out, o_out, index_heads,
                 kv_heads, max_pages, scale, qs, ks, vs, P: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
                 ROWS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
                 TILE: tl.constexpr, PRODUCT: tl.constexpr):
    n, b, first, end, limit = locate(indptr, kv_len, q_pos, request, index_heads)
    s = tl.program_id(2)
    splits = tl.num_programs(2)
    # Shares end where tiles end: only the last one may have a tile that is not full.
    whole: tl.constexpr = max(TILE // BK, 1)
    count = (end - first).to(tl.int32)
    share = tl.cdiv(tl.cdiv(count, whole), splits) * whole
    begin = tl.minimum(s * share, count)
    count = tl.minimum(share, count - begin)
    h = tl.program_id(1) * kv_heads // tl.num_programs(1)
    g = tl.arange(0, ROWS)
    heads = tl.program_id(1) * GROUP + g
    query = load_rows(q + n * qs[0] + heads * qs[1], g < GROUP, D, DP, PRODUCT)
    m, l, o = walk(query, k, v, blocks, members, table + b * max_pages, first + begin, count, limit, h, scale, ks, vs,
                   P, BK, ROWS, D, DP, DV, DVP, TILE, PRODUCT)
    state = (n * tl.num_programs(1) * GROUP + heads) * splits + s
    d = tl.arange(0, DVP)
    tl.store(m_out + state, m, mask=g < GROUP)
    tl.store(l_out + state, l, mask=g < GROUP)
    # The o of an empty state is never read, so it is not written either.
    tl.store(o_out + state[:, None] * DV + d[None, :], o, mask=((g < GROUP) & (l != 0))[:, None] & (d < DV)[None, :])


@triton.jit
def merge_kernel(m, l, o, out, lse, splits, SPLITS: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr):
    """One program merges the states of one (query, head); a sum over SPLITS states has an order fixed by its shape."""
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, SPLITS)
    state = row * splits + s
    lengths = tl.load(l + state, mask=s < splits, other=0.0)
    some = lengths != 0  # an empty state takes no part in the maximum and its o is not read
    tops = tl.load(m + state, mask=some, other=float("-inf"))
    top = tl.max(tops, 0)
    weights = tl.exp(tops - tl.where(top == float("-inf"), 0.0, top))
    parts = load_rows(o + state * DV, some, DV, DVP, tl.float32)
    total = tl.sum(weights[:, None] * parts, 0)
    store_result(out, lse, row + tl.arange(0, 1), tl.arange(0, 1) == 0, top, tl.sum(weights * lengths, 0)[None],
                 total[None, :], DV, DVP)


def merge_states(m, l, o, dtype=torch.float32):
    """m, l [N, Hq, S] and o [N, Hq, S, Dv], float32: O [N, Hq, Dv] in `dtype` and LSE [N, Hq] of the merged states."""
    out = torch.empty((*o.shape[:2], o.shape[3]), dtype=dtype, device=o.device)
    lse = torch.empty(o.shape[:2], dtype=torch.float32, device=o.device)
    if out.numel():
        merge_kernel[out.shape[0] * out.shape[1],](m, l, o, out, lse, o.shape[2],
                                                   SPLITS=triton.next_power_of_2(o.shape[2]), DV=o.shape[3],
                                                   DVP=triton.next_power_of_2(o.shape[3]))
    return out, lse


def choose_splits(q, k, v, index):
    """Shares that give each multiprocessor two programs, as far as rows of the index's capacity have tiles for them."""
    programs = max(index.rows, q.shape[0] * k.shape[2], 1)
    tile = tile_sizes(q, v, 1)["TILE"]
    tiles = triton.cdiv(index.blocks.shape[0] * index.block, max(index.rows, 1) * tile)
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 4
    return max(1, min(tiles, triton.cdiv(2 * processors, programs), 64))


def split_attention(q, k, v, index, page_table, kv_len, *, splits, scale=None, q_pos=None, request=None):
    """Arguments as of tamis.prototype.attention. Returns out and LSE."""
    index_heads, programs = check_index(q, k, v, index, page_table, kv_len, q_pos, request)
    require(1 <= splits <= 64, f"splits: {splits}, expected 1 to 64")
    states = (*q.shape[:2], splits)
    m, l = (torch.empty(states, dtype=torch.float32, device=q.device) for _ in range(2))
    o = torch.empty((*states, v.shape[3]), dtype=torch.float32, device=q.device)
    if o.numel():
        share_kernel[q.shape[0], programs, splits](
            q, k, v, index.indptr, index.blocks, index.members, page_table, kv_len, q_pos, request, m, l, o,
            index_heads, k.shape[2], page_table.shape[1], q.shape[2] ** -0.5 if scale is None else scale,
            q.stride(), k.stride(), v.stride(), P=k.shape[1], BK=index.block,
            **tile_sizes(q, v, q.shape[1] // programs))
    return merge_states(m, l, o, q.dtype)
