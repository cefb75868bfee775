"""Rung 5: a selector in front, and the whole step in a CUDA graph.

The selector bounds the score any key of a page can reach from the page's channel-wise minima and maxima, as Quest does
(arXiv 2406.10774, section 3): q . k <= sum_d max(q_d low_d, q_d high_d). The best pages of each (request, KV head), the
window and the sink become an index set, and rung 4 does the rest. Every size follows from shapes, nothing waits for
the device: a captured step replays with other lengths, tables and queries in the same tensors.
"""
import torch
import triton
import triton.language as tl

from .attend import attention
from .index import prepare
from .launch import check_integers, check_tensors, require, tile_sizes
from .online import load_rows


@triton.jit
def score_kernel(q, low, high, table, kv_len, scores, max_pages, qs, bs, P: tl.constexpr, GROUP: tl.constexpr,
                 ROWS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TILE: tl.constexpr, PRODUCT: tl.constexpr):
    """The bound of TILE pages of one (request, KV head): the highest of its query heads; -inf from kv_len on."""
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    j = tl.program_id(2) * TILE + tl.arange(0, TILE)
    known = (j < max_pages) & (j * P < tl.load(kv_len + b))
    page = tl.load(table + b * max_pages + j, mask=known, other=0).to(tl.int64)
    g = tl.arange(0, ROWS)
    query = load_rows(q + b * qs[0] + (h * GROUP + g) * qs[1], g < GROUP, D, DP, PRODUCT)
    lows = load_rows(low + page * bs[0] + h * bs[1], known, D, DP, PRODUCT)
    highs = load_rows(high + page * bs[0] + h * bs[1], known, D, DP, PRODUCT)
    # A positive q_d is largest against high_d, a negative one against low_d: two products in place of a maximum.
    bound = tl.dot(tl.where(query > 0, query, 0).to(PRODUCT), tl.trans(highs), input_precision="ieee")
    bound += tl.dot(tl.where(query < 0, query, 0).to(PRODUCT), tl.trans(lows), input_precision="ieee")
    best = tl.max(tl.where((g < GROUP)[:, None], bound, float("-inf")), 0)
    at = scores + (b * tl.num_programs(1) + h) * max_pages + j
    tl.store(at, tl.where(known, best, float("-inf")), mask=j < max_pages)


def page_bounds(k, page_table, kv_len):
    """Channel-wise (low, high) [pages, Hkv, D] over the tokens each physical page holds; a page nobody maps gets
    (inf, -inf). It reads all of K: a serving loop keeps bounds up to date as tokens arrive instead."""
    pages, page = k.shape[:2]
    # Tokens of a request from each of its pages on, [B, max_pages].
    left = kv_len[:, None] - torch.arange(page_table.shape[1], device=k.device) * page
    filled = torch.zeros(pages + 1, dtype=torch.int64, device=k.device)
    owner = torch.where(left > 0, page_table, pages).long().flatten()
    filled.scatter_reduce_(0, owner, left.clamp(0, page).long().flatten(), "amax")
    held = (torch.arange(page, device=k.device) < filled[:-1, None])[..., None, None]
    return (torch.where(held, k, float("inf")).amin(1), torch.where(held, k, float("-inf")).amax(1))


def page_scores(q, low, high, page_table, kv_len, *, page):
    """q [B, Hq, D], low and high [pages, Hkv, D]: upper bounds of q . k, [B, Hkv, max_pages] f32."""
    check_tensors(q, low[:, None], high[:, None])
    require(low.stride() == high.stride(), "high: strides differ from those of low")
    check_integers("kv_len", kv_len, q, torch.int32, (q.shape[0],))
    check_integers("page_table", page_table, q, torch.int32, (q.shape[0], None))
    max_pages, kv_heads = page_table.shape[1], low.shape[1]
    scores = torch.empty((q.shape[0], kv_heads, max_pages), dtype=torch.float32, device=q.device)
    sizes = tile_sizes(q, low[:, None], q.shape[1] // kv_heads)
    del sizes["DV"], sizes["DVP"]
    if scores.numel():
        score_kernel[q.shape[0], kv_heads, triton.cdiv(max_pages, sizes["TILE"])](
            q, low, high, page_table, kv_len, scores, max_pages, q.stride(), low.stride(), P=page, **sizes)
    return scores


def top_pages(scores, top):
    """The `top` best pages of each row, [B * Hkv, min(top, max_pages)], -1 where a request has fewer."""
    best = scores.flatten(0, 1).topk(min(top, scores.shape[2]), sorted=False)
    return torch.where(best.values == float("-inf"), -1, best.indices)


def select_attention(q, k, v, low, high, page_table, kv_len, *, top, window=0, sink=0, block=None, scale=None,
                     splits=None, return_lse=False):
    """One decode step, q [B, Hq, D] at the last tokens of its requests: scores, top pages, index set, attention.
    `low`, `high` are those of page_bounds; the rest is as for tamis.prototype.attention and prepare. `block`: the
    largest of 64, 32, 16 that divides a page, else 16."""
    check_tensors(q, k, v)
    if block is None:
        block = next((x for x in (64, 32) if k.shape[1] % x == 0), 16)
    scores = page_scores(q, low, high, page_table, kv_len, page=k.shape[1])
    index = prepare(top_pages(scores, top), kv_len, block=block, unit=k.shape[1], index_heads=k.shape[2],
                    window=window, sink=sink, causal=True)
    return attention(q, k, v, index, page_table, kv_len, scale=scale, splits=splits, return_lse=return_lse)


def capture(step):
    """Runs step() once, so that its kernels are compiled, then records it. Returns the graph and what step returned:
    tensors that every graph.replay() fills anew from those step reads."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result
