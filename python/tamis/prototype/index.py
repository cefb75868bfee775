"""Raw candidates to an index set, with torch operations alone: sizes follow from shapes, so it can be captured too.

A row's candidates, its window and its sink are ranges of tokens. Each range is cut at block borders into pieces
(first token, word of bits); one sort brings the pieces of a block together, and the words of a block, made disjoint
before, are added up. The cost depends on the candidates, not on the length of the context.
"""
from dataclasses import dataclass

import torch

from .launch import check_integers, require

LAST = torch.iinfo(torch.int64).max  # sorts behind every token


@dataclass(frozen=True)
class Index:
    """Row r selects in block blocks[e] the tokens blocks[e] * block + i with bit i of members[e] set, for the entries
    indptr[r] <= e < indptr[r + 1]; blocks of a row ascend. What lies past indptr[-1] is spare capacity."""

    indptr: torch.Tensor   # [R + 1] i64 or i32
    blocks: torch.Tensor   # [capacity] i32, logical
    members: torch.Tensor  # [capacity] i64, bit 63 is the sign
    block: int             # tokens of a block: 16, 32 or 64

    @property
    def rows(self):
        return self.indptr.shape[0] - 1


def lowest(n):
    """Words whose n lowest bits are set, 0 <= n <= 64."""
    return torch.where(n >= 64, -1, (1 << n.clamp(max=63)) - 1)


def bits(low, high, numbers, block):
    """Words of the tokens [low, high) that lie in the blocks `numbers`."""
    begin, end = ((x - numbers * block).clamp(0, block) for x in (low, high))
    return lowest(end) & ~lowest(begin)


def pieces(low, high, block, count):
    """Ranges [R, X] cut into `count` pieces each: block numbers and words, [R, X * count]."""
    numbers = low[..., None] // block + torch.arange(count, device=low.device)
    words = bits(low[..., None], high[..., None], numbers, block)
    return numbers.flatten(1), words.flatten(1)


def touched(width, block):
    """Most blocks that a range of `width` tokens can touch."""
    return 0 if width == 0 else (width + block - 2) // block + 1


def prepare(candidates, kv_len, *, block, unit=1, index_heads=1, window=0, sink=0, causal=False, q_pos=None,
            request=None):
    """Index set of docs/semantics.md sections 3 and 4, with invalid = drop and duplicates = merge.

    candidates  [N * index_heads, K] i32 or i64: row n * index_heads + g lists tokens e * unit to e * unit + unit - 1;
                -1 is padding, and whatever else is out of range is dropped; any order, duplicates count once
    kv_len      [B] i32
    window      tokens up to and including the query's own; sink: first tokens of the request
    causal      tokens behind the query's position are not selected
    q_pos       [N] i32: positions of the queries; None: the last token of their request, as in decode
    request     [N] i32: request of each query; None: N = B, one query each

    Lengths below 2^31. Nothing here waits for the device. Capacity is that of full rows: R * (K * pieces + ...).
    """
    require(block in (16, 32, 64), f"block: {block}, expected 16, 32 or 64")
    require(unit >= 1 and window >= 0 and sink >= 0 and index_heads >= 1,
            f"unit {unit}, index_heads {index_heads}: expected 1 or more; window {window}, sink {sink}: 0 or more")
    check_integers("candidates", candidates, kv_len, (torch.int32, torch.int64), (None, None))
    rows = candidates.shape[0]
    require(rows % index_heads == 0, f"candidates: {rows} rows, expected a multiple of the {index_heads} index heads")
    queries = rows // index_heads
    check_integers("kv_len", kv_len, kv_len, torch.int32, (queries if request is None else None,))
    for name, x in (("q_pos", q_pos), ("request", request)):
        if x is not None:
            check_integers(name, x, kv_len, torch.int32, (queries,))

    def per_row(x):
        return x.long().repeat_interleave(index_heads)[:, None]

    length = kv_len if request is None else kv_len[request.long()]
    position = per_row(length - 1 if q_pos is None else q_pos)
    length = per_row(length)
    end = torch.minimum(length, position + 1) if causal else length
    end = torch.where(position < 0, 0, end)  # such a query sees nothing
    from_window = (position + 1 - window).clamp(min=0)
    to_window, to_sink = torch.minimum(end, position + 1), end.clamp(max=sink)

    good = (candidates >= 0) & (candidates < (length + unit - 1) // unit)
    low = torch.where(good, candidates.long(), 0) * unit
    high = torch.where(good, torch.minimum(low + unit, end), 0)
    parts = 1 if block % unit == 0 else unit // block if unit % block == 0 else touched(unit, block)
    listed, listed_words = pieces(low, high, block, parts)
    # The bits of window, sink and list are made disjoint, so that adding them joins them.
    listed_words = listed_words & ~(bits(from_window, to_window, listed, block) | bits(0 * end, to_sink, listed, block))
    window_blocks, window_words = pieces(from_window, to_window, block, touched(window, block))
    sink_blocks, sink_words = pieces(0 * end, to_sink, block, -(-sink // block))
    sink_words = sink_words & ~bits(from_window, to_window, sink_blocks, block)

    # Sorted by first token, and by kind: equal keys of listed pieces are one candidate listed twice.
    starts = torch.maximum(listed * block, low.repeat_interleave(parts, 1)) * 2
    keys = torch.cat([starts, window_blocks * block * 2 + 1, sink_blocks * block * 2 + 1], 1)
    words = torch.cat([listed_words, window_words, sink_words], 1)
    keys, order = torch.where(words == 0, LAST, keys).sort(1)
    words = words.gather(1, order)
    used = keys != LAST
    numbers = keys // 2 // block
    before = torch.nn.functional.pad(keys, (1, 0), value=-1)[:, :-1]
    twice = (keys == before) & (keys % 2 == 0)
    new = used & (numbers != torch.where(before < 0, -1, before // 2 // block))

    # Pieces of one block go to one entry; what selects nothing goes to an entry behind the last, which is cut off.
    capacity = keys.numel()
    entry = torch.where(used, new.flatten().cumsum(0).view_as(keys) - 1, capacity).flatten()
    blocks = torch.zeros(capacity + 1, dtype=torch.int32, device=keys.device)
    blocks.scatter_(0, entry, numbers.flatten().int())
    members = torch.zeros(capacity + 1, dtype=torch.int64, device=keys.device)
    members.scatter_add_(0, entry, torch.where(used & ~twice, words, 0).flatten())
    indptr = torch.nn.functional.pad(new.sum(1).cumsum(0), (1, 0))
    return Index(indptr, blocks[:-1], members[:-1], block)
