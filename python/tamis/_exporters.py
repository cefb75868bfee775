"""Candidate rows and sets to the formats of others, as NumPy arrays."""
from typing import NamedTuple

import numpy as np

from . import _checks
from ._errors import Error, invalid, unsupported
from ._lists import LARGEST, MOST, in_range, integers, offsets, small_integers, steps


class BlockLists(NamedTuple):
    """The lists of a FlexAttention `BlockMask`, under its attributes' names, as NumPy arrays.

    `BlockMask.from_kv_blocks(*map(torch.from_numpy, lists[:4]), lists.BLOCK_SIZE, mask_mod, seq_lengths=...)` makes
    the mask. Its `mask_mod` has to say what a partial block shows.
    """

    kv_num_blocks: np.ndarray
    kv_indices: np.ndarray
    full_kv_num_blocks: np.ndarray
    full_kv_indices: np.ndarray
    BLOCK_SIZE: tuple
    seq_lengths: tuple


def rows_of(candidates, padding="keep"):
    """(indptr int64, indices int32) of lists, in their order."""
    drop = _checks.choice("padding", padding, {"keep": False, "drop": True})
    c = candidates
    if c.indices is None:
        raise unsupported("candidates", "list no entries")
    if c.indptr is not None:
        starts, entries = integers(c.indptr, "cand_indptr", 1), small_integers(c.indices, "cand_indices", 1)
        offsets(starts, len(entries), "cand_indptr")
        if not drop:
            return starts.astype(np.int64), entries.copy()
        kept = entries != -1
        return steps(kept)[starts], entries[kept]
    entries = small_integers(c.indices, "cand_indices", 2)
    inside = np.ones(entries.shape, bool)
    if c.count is not None:
        counts = small_integers(c.count, "cand_count", 1)
        if counts.shape != entries.shape[:1]:
            raise invalid("cand_count", f"{len(counts)} rows, cand_indices has {len(entries)}")
        wrong = np.flatnonzero((counts < 0) | (counts > entries.shape[1]))
        if len(wrong):
            row = int(wrong[0])
            raise invalid("cand_count", f"row {row}: {counts[row]} is outside [0, {entries.shape[1]}]", row=row,
                          value=int(counts[row]), limit=entries.shape[1] + 1)
        inside = np.arange(entries.shape[1]) < counts[:, None]
    if drop:
        inside = inside & (entries != -1)
    return steps(inside.sum(1, dtype=np.int64)), entries[inside]


def to_fixed_width(indptr, indices, width, name="cand_indices"):
    """(indices [rows, width] with -1 behind each row, count)."""
    lengths = np.diff(indptr)
    longest = int(lengths.max(initial=0))
    width = longest if width is None else _checks.integer("width", width)
    if not 0 <= width <= LARGEST:
        raise invalid("width", f"{width} is outside [0, {LARGEST}]", value=width)
    if longest > width:
        row = int(np.argmax(lengths > width))
        raise Error("capacity_exceeded", f"{name}: row {row} has {lengths[row]} entries, the width is {width}", row=row,
                    value=int(lengths[row]), limit=width + 1)
    if len(lengths) * width > MOST:
        raise Error("capacity_exceeded", f"width: {len(lengths)} rows of {width} are more than {MOST} entries",
                    value=width)
    made = np.full((len(lengths), width), -1, np.int32)
    made[np.arange(width) < lengths[:, None]] = indices
    return made, lengths.astype(np.int32)


def to_bsr(candidates):
    indptr, indices = rows_of(candidates, "drop")
    row_of = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    if candidates.invalid == "drop":
        kept = indices >= 0
        row_of, indices = row_of[kept], indices[kept]
    else:
        in_range(indices, lambda at: int(row_of[at]), "cand_indices", None, False)
    pairs = np.unique(np.stack([row_of, indices.astype(np.int64)]), axis=1)
    counts = np.bincount(pairs[0], minlength=len(indptr) - 1)
    return steps(counts), pairs[1].astype(np.int32), candidates.query_block, candidates.unit


def to_dense_mask(candidates, cu_q, kv_len):
    """A list of bool `[Hi, S, T]`, one for each request."""
    c = candidates
    for name in ("unit", "query_block", "index_heads"):
        if _checks.integer(name, getattr(c, name)) < 1:
            raise invalid(name, f"{getattr(c, name)} is below 1", value=getattr(c, name))
    firsts, tokens = small_integers(cu_q, "cu_q", 1), small_integers(kv_len, "kv_len", 1)
    if len(firsts) != len(tokens) + 1:
        raise invalid("cu_q", f"{len(firsts)} offsets, kv_len has {len(tokens)} requests")
    offsets(firsts, firsts[-1] if len(firsts) else 0, "cu_q")
    if (tokens < 0).any():
        raise invalid("kv_len", f"{tokens.min()} is below 0", value=int(tokens.min()))
    indptr, indices = rows_of(c, "drop")
    blocks = -(-np.diff(firsts).astype(np.int64) // c.query_block)
    rows = int(blocks.sum(dtype=np.int64)) * c.index_heads
    if rows != len(indptr) - 1:
        raise invalid("cu_q", f"makes {rows} rows, the candidates have {len(indptr) - 1}", value=rows)
    made, row = [], 0
    for b, length in enumerate(tokens.tolist()):
        queries = int(firsts[b + 1] - firsts[b])
        mask = np.zeros((c.index_heads, queries, length), bool)
        limit = -(-length // c.unit)
        for block in range(int(blocks[b])):
            for head in range(c.index_heads):
                listed = indices[indptr[row]:indptr[row + 1]]
                good = (listed >= 0) & (listed < limit)
                if not good.all() and c.invalid == "reject":
                    entry = int(listed[~good][0])
                    raise Error("index_out_of_range", f"cand_indices: row {row}: {entry} is outside [0, {limit})",
                                request=b, row=row, value=entry, limit=limit)
                named = np.zeros(limit, bool)
                named[listed[good]] = True
                spread = np.repeat(named, min(c.unit, max(length, 1)))[:length]
                mask[head, block * c.query_block:(block + 1) * c.query_block] = spread
                row += 1
        made.append(mask)
    return made


def set_masks(indptr, tokens, cu_q, kv_len, heads):
    """The sets as a list of bool `[Hi, S, T]`."""
    made = []
    for b, length in enumerate(kv_len.tolist()):
        first, last = int(cu_q[b]) * heads, int(cu_q[b + 1]) * heads
        mask = np.zeros((last - first, length), bool)
        part = tokens[indptr[first]:indptr[last]]
        mask[np.repeat(np.arange(last - first), np.diff(indptr[first:last + 1])), part] = True
        made.append(np.ascontiguousarray(np.swapaxes(mask.reshape(len(mask) // heads, heads, length), 0, 1)))
    return made


def set_blocks(indptr, tokens, cu_q, kv_len, heads, query_block, block):
    """BlockLists of the sets. A block is full where all its queries select all its tokens."""
    lengths = np.diff(cu_q)
    if len(lengths) and (lengths != lengths[0]).any():
        raise invalid("cu_q", "requests have different numbers of queries, a BlockMask has one for all")
    requests, queries = len(lengths), int(lengths[0]) if len(lengths) else 0
    longest = int(kv_len.max(initial=0))
    rows, columns = -(-queries // query_block), -(-longest // block)
    if requests * heads * rows * columns > MOST:
        raise Error("capacity_exceeded", f"kv_indices: more than {MOST} entries")
    row_of = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))  # (request, query, head)
    query, head = row_of // heads, row_of % heads
    request = query // max(queries, 1)
    place = ((request * heads + head) * rows + query % max(queries, 1) // query_block) * columns + tokens // block
    held = np.bincount(place, minlength=requests * heads * rows * columns).reshape(requests, heads, rows, columns)
    tall = np.minimum(query_block, queries - query_block * np.arange(rows))
    wide = np.minimum(block, longest - block * np.arange(columns))
    full = held == tall[:, None] * wide
    lists = []
    for chosen in ((held > 0) & ~full, full):
        counts = chosen.sum(-1, dtype=np.int32)
        lists += [counts, np.argsort(~chosen, axis=-1, kind="stable").astype(np.int32)]  # chosen ones first, ascending
    return BlockLists(*lists, (query_block, block), (queries, longest))
