"""Rung 3: any index set. A row has as many blocks as it likes, and a word says which tokens of a block are selected.

Rows are (query, index head). The grid is (query, p) with p over the larger of index heads and KV heads: programs of
one KV head may have lists of their own (Hi = Hq), several KV heads may share one (Hi = 1). Tiles are cut from the
sequence of the row's blocks laid back to back, so short blocks fill a tile together; where a key lies follows from its
token, so blocks and pages need not divide each other.
"""
import torch
import triton
import triton.language as tl

from .launch import check_integers, check_tensors, require, results, tile_sizes
from .online import empty_state, load_rows, step, store_result


@triton.jit
def walk(query, k, v, blocks, members, table, first, count, limit, h, scale, ks, vs, P: tl.constexpr, BK: tl.constexpr,
         ROWS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
         TILE: tl.constexpr, PRODUCT: tl.constexpr):
    """State (m, l, o) of the entries [first, first + count), over tokens below `limit`."""
    m, l, o = empty_state(ROWS, DVP)
    for start in range(0, count * BK, TILE):
        i = start + tl.arange(0, TILE)
        listed = i < count * BK
        word = tl.load(members + first + i // BK, mask=listed, other=0)
        t = tl.load(blocks + first + i // BK, mask=listed, other=0) * BK + i % BK
        seen = ((word >> (i % BK)) & 1 != 0) & (t < limit)
        page = tl.load(table + t // P, mask=seen, other=0).to(tl.int64)  # 64 bits from the first product on
        keys = load_rows(k + page * ks[0] + t % P * ks[1] + h * ks[2], seen, D, DP, PRODUCT)
        values = load_rows(v + page * vs[0] + t % P * vs[1] + h * vs[2], seen, DV, DVP, PRODUCT)
        m, l, o = step(query, keys, values, seen, scale, m, l, o)
    return m, l, o


@triton.jit
def locate(indptr, kv_len, q_pos, request, index_heads):
    """Of this program: query, request, entries [first, end) of its row, first token it may not see."""
    n = tl.program_id(0).to(tl.int64)
    b = n
    if request is not None:
        b = tl.load(request + n).to(tl.int64)
    limit = tl.load(kv_len + b)
    if q_pos is not None:
        limit = tl.minimum(limit, tl.load(q_pos + n) + 1)
    row = n * index_heads + tl.program_id(1) * index_heads // tl.num_programs(1)
    return n, b, tl.load(indptr + row), tl.load(indptr + row + 1), limit


@triton.jit
def ragged_kernel(q, k, v, indptr, blocks, members, table, kv_len, q_pos, request, out, lse, index_heads, kv_heads,
                  max_pages, scale, qs, ks, vs, P: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
                  ROWS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
                  TILE: tl.constexpr, PRODUCT: tl.constexpr):
    n, b, first, end, limit = locate(indptr, kv_len, q_pos, request, index_heads)
    h = tl.program_id(1) * kv_heads // tl.num_programs(1)
    g = tl.arange(0, ROWS)
    heads = tl.program_id(1) * GROUP + g
    query = load_rows(q + n * qs[0] + heads * qs[1], g < GROUP, D, DP, PRODUCT)
    m, l, o = walk(query, k, v, blocks, members, table + b * max_pages, first, (end - first).to(tl.int32), limit, h,
                   scale, ks, vs, P, BK, ROWS, D, DP, DV, DVP, TILE, PRODUCT)
    store_result(out, lse, n * tl.num_programs(1) * GROUP + heads, g < GROUP, m, l, o, DV, DVP)


def check_index(q, k, v, index, page_table, kv_len, q_pos, request):
    """Checks the arguments of tamis.prototype.attention; returns index heads and programs for one query."""
    check_tensors(q, k, v)
    n, heads, kv_heads = q.shape[0], q.shape[1], k.shape[2]
    index_heads = index.rows // n if n else 1
    require(index_heads * n == index.rows and index_heads in (1, kv_heads, heads),
            f"index: {index.rows} rows for {n} queries, expected 1, {kv_heads} or {heads} for each")
    require(index.block in (16, 32, 64), f"index: blocks of {index.block} tokens, expected 16, 32 or 64")
    check_integers("index.indptr", index.indptr, q, (torch.int32, torch.int64), (None,))
    check_integers("index.blocks", index.blocks, q, torch.int32, (None,))
    check_integers("index.members", index.members, q, torch.int64, (index.blocks.shape[0],))
    check_integers("kv_len", kv_len, q, torch.int32, (None if request is not None else n,))
    check_integers("page_table", page_table, q, torch.int32, (kv_len.shape[0], None))
    for name, x in (("q_pos", q_pos), ("request", request)):
        if x is not None:
            check_integers(name, x, q, torch.int32, (n,))
    return index_heads, max(index_heads, kv_heads)


def ragged_attention(q, k, v, index, page_table, kv_len, *, scale=None, q_pos=None, request=None):
    """Arguments as of tamis.prototype.attention; one program walks a whole row. Returns out and LSE."""
    index_heads, programs = check_index(q, k, v, index, page_table, kv_len, q_pos, request)
    out, lse = results(q, v)
    if out.numel():
        ragged_kernel[q.shape[0], programs](
            q, k, v, index.indptr, index.blocks, index.members, page_table, kv_len, q_pos, request, out, lse,
            index_heads, k.shape[2], page_table.shape[1], q.shape[2] ** -0.5 if scale is None else scale,
            q.stride(), k.stride(), v.stride(), P=k.shape[1], BK=index.block,
            **tile_sizes(q, v, q.shape[1] // programs))
    return out, lse
