"""Candidate rows from the formats of others. Each function reads its arrays, and checks all before it makes any."""
import numpy as np

from . import _checks
from ._errors import Error, invalid, unsupported
from ._lists import (LARGEST, MOST, beside, columns_of, in_range, integers, narrow, offsets, on_host, placed, sizes,
                     steps, whole_rows)

def from_csr(make, indptr, indices, columns, unit, query_block, index_heads, invalid_policy, **policies):
    sizes(unit=unit, query_block=query_block)
    columns_of(columns)
    starts, entries = integers(indptr, "indptr", 1), integers(indices, "indices", 1)
    offsets(starts, len(entries))
    whole_rows(len(starts) - 1, index_heads, "indptr")
    in_range(entries, lambda at: int(np.searchsorted(starts, at, "right")) - 1, "indices", columns,
             invalid_policy == "drop")
    listed = indices if entries.dtype == np.int32 else placed(narrow(entries), indices)
    return make(listed, beside(indptr, starts, indices), unit=unit, query_block=query_block, index_heads=index_heads,
                invalid=invalid_policy, **policies)


def from_topk(make, indices, columns, unit, query_block, index_heads, heads_first, invalid_policy, **policies):
    sizes(unit=unit, query_block=query_block)
    columns_of(columns)
    _checks.flag("heads_first", heads_first)
    entries = integers(indices, "indices", 2, 3, 4)
    if entries.ndim == 2:
        if heads_first:
            raise invalid("heads_first", "is for indices of rank 3 and 4")
        heads = 1 if index_heads is None else index_heads
    else:
        heads = entries.shape[-3 if heads_first else -2]
        if index_heads is not None and index_heads != heads:
            raise invalid("index_heads", f"{index_heads}, indices have {heads}")
        if heads < 1:
            raise invalid("indices", "have no heads")
    moved = np.swapaxes(entries, -3, -2) if heads_first else entries
    rows = int(np.prod(moved.shape[:-1], dtype=np.int64))
    whole_rows(rows, heads, "indices")
    width = moved.shape[-1]
    in_range(moved, lambda at: at // width, "indices", columns, invalid_policy == "drop")
    if entries.dtype == np.int32 and not heads_first and hasattr(indices, "reshape"):
        listed = indices.reshape(rows, width)
    else:
        listed = placed(np.ascontiguousarray(narrow(moved).reshape(rows, width)), indices)
    return make(listed, unit=unit, query_block=query_block, index_heads=heads, invalid=invalid_policy, **policies)


def from_dense_mask(make, mask, unit, query_block, of_blocks, **policies):
    sizes(unit=unit, query_block=query_block)
    _checks.flag("of_blocks", of_blocks)
    like = mask
    if isinstance(mask, (list, tuple)):
        if not mask:
            raise invalid("mask", "is an empty list of requests")
        like = mask[0]
        requests = [_mask(one, 3, f"mask[{i}]") for i, one in enumerate(mask)]
    else:
        requests = list(_mask(mask, 4, "mask"))
        if not requests:
            raise invalid("mask", "has no requests")
    heads = requests[0].shape[0]
    rows = []
    for b, one in enumerate(requests):
        if one.shape[0] != heads:
            raise invalid("mask", f"request {b} has {one.shape[0]} heads, the first has {heads}", request=b)
        if one.shape[2] > LARGEST:
            raise invalid("mask", f"request {b} has {one.shape[2]} columns", request=b)
        if not of_blocks:
            one = _blocks(one, query_block, unit, b)
        rows.append(np.swapaxes(one, 0, 1).reshape(heads * one.shape[1], one.shape[2]))
    indptr = steps(np.concatenate([row.sum(axis=1, dtype=np.int64) for row in rows]))
    if indptr[-1] > MOST:
        raise Error("capacity_exceeded", f"mask: {indptr[-1]} entries are more than {MOST}", value=int(indptr[-1]))
    indices = np.concatenate([np.nonzero(row)[1].astype(np.int32) for row in rows])
    return make(placed(indices, like), placed(indptr, like), unit=unit, query_block=query_block, index_heads=heads,
                **policies)


def _mask(array, rank, name):
    """Booleans `[..., heads, queries, tokens]` of that rank; leading axes may be left out."""
    made = on_host(array, name, ("BOOL",), range(2, rank + 1))
    made = made.reshape((1,) * (rank - made.ndim) + made.shape)
    if made.shape[-3] < 1:
        raise invalid(name, "has no heads")
    return made


def _blocks(one, query_block, unit, request):
    """What blocks of a mask of tokens say, which have to be whole."""
    queries, tokens = one.shape[1:]
    if query_block == 1 and unit == 1:
        return one
    said = one[:, ::query_block, ::unit]
    query_block, unit = min(query_block, max(queries, 1)), min(unit, max(tokens, 1))
    spread = np.repeat(np.repeat(said, query_block, 1)[:, :queries], unit, 2)[:, :, :tokens]
    differs = np.argwhere(spread != one)
    if len(differs):
        head, query, token = map(int, differs[0])
        raise invalid("mask", f"request {request}, head {head}: differs within the block of query {query} and token "
                              f"{token}; lists of {query_block} x {unit} cannot say it", request=request)
    return said


def from_block_mask(make, mask, partial, batch, **policies):
    whole = _checks.choice("partial", partial, {"reject": False, "whole": True})
    for name in ("kv_num_blocks", "kv_indices", "BLOCK_SIZE"):
        if not hasattr(mask, name):
            raise TypeError(f"mask: expected a BlockMask, {type(mask).__name__} has no {name}")
    try:
        query_block, unit = mask.BLOCK_SIZE
    except (TypeError, ValueError):
        raise invalid("BLOCK_SIZE", f"{mask.BLOCK_SIZE!r} is no pair") from None
    sizes(Q_BLOCK_SIZE=query_block, KV_BLOCK_SIZE=unit)
    counts, entries = _block_list(mask, "kv_")
    lists = [(counts, entries, "kv_indices")]
    full = [getattr(mask, f"full_kv_{name}", None) for name in ("num_blocks", "indices")]
    if (full[0] is None) != (full[1] is None):
        raise invalid("full_kv_indices", "and full_kv_num_blocks are given both or not at all")
    if full[0] is not None:
        full_counts, full_entries = _block_list(mask, "full_kv_")
        if full_counts.shape != counts.shape:
            raise invalid("full_kv_num_blocks", f"shape {full_counts.shape}, kv_num_blocks {counts.shape}")
        lists.append((full_counts, full_entries, "full_kv_indices"))
    requests, heads, blocks = counts.shape
    columns = _columns(mask, blocks, query_block, unit)
    mask_mod = getattr(mask, "mask_mod", None)  # without one, blocks are partial only beside full ones
    masked = len(lists) == 2 if mask_mod is None else getattr(mask_mod, "__name__", "") != "noop_mask"
    if masked and not whole and counts.any():
        raise unsupported("kv_indices", f"{int(counts.sum())} blocks are partial: what mask_mod hides in them, lists "
                                        "cannot say; partial='whole' lists all their tokens, and causal, window and "
                                        "sink of attention mask them")
    limit = LARGEST + 1 if columns is None else columns
    used = []
    for counted, listed, name in lists:
        inside = np.arange(listed.shape[-1]) < counted[..., None]
        for b, h, block, at in np.argwhere(inside & ((listed < 0) | (listed >= limit)))[:1].tolist():
            row, entry = (b * blocks + block) * heads + h, int(listed[b, h, block, at])
            raise Error("index_out_of_range", f"{name}: row {row}: {entry} is outside [0, {limit})", row=row,
                        value=entry, limit=limit)
        used.append(inside)
    inside = np.swapaxes(np.concatenate(used, -1), 1, 2)  # [B, blocks, heads, columns], as rows are numbered
    listed = np.swapaxes(np.concatenate([listed for _, listed, _ in lists], -1), 1, 2)
    if batch is not None:
        if _checks.integer("batch", batch) < 0:
            raise invalid("batch", f"{batch} is below 0", value=batch)
        if requests not in (1, batch):
            raise invalid("batch", f"{batch}, the mask is one of {requests} requests", value=batch, limit=requests + 1)
        if requests != batch:
            inside, listed = (np.broadcast_to(x, (batch, *x.shape[1:])) for x in (inside, listed))
    indptr, indices = steps(inside.sum(-1, dtype=np.int64).ravel()), narrow(listed[inside])
    return make(placed(indices, mask.kv_indices), placed(indptr, mask.kv_indices), unit=int(unit),
                query_block=int(query_block), index_heads=heads, **policies)


def _block_list(mask, prefix):
    """Checked (counts [B, H, rows], indices [B, H, rows, columns])."""
    name, number = f"{prefix}indices", f"{prefix}num_blocks"
    counts, entries = integers(getattr(mask, number), number, 3), integers(getattr(mask, name), name, 4)
    if entries.shape[:3] != counts.shape:
        raise invalid(name, f"shape {entries.shape}, {number} {counts.shape}")
    if counts.shape[1] < 1:
        raise invalid(number, "has no heads")
    wrong = np.flatnonzero((counts < 0).ravel() | (counts > entries.shape[3]).ravel())
    if len(wrong):
        value = int(counts.ravel()[wrong[0]])
        raise invalid(number, f"{value} is outside [0, {entries.shape[3]}]", value=value, limit=entries.shape[3] + 1)
    return counts, entries


def _columns(mask, blocks, query_block, unit):
    lengths = getattr(mask, "seq_lengths", None)
    if lengths is None:
        return None
    try:
        queries, tokens = lengths
    except (TypeError, ValueError):
        raise invalid("seq_lengths", f"{lengths!r} is no pair") from None
    queries, tokens = (_checks.integer("seq_lengths", n) for n in (queries, tokens))
    if -(-queries // query_block) != blocks:
        raise invalid("seq_lengths", f"{queries} queries are {-(-queries // query_block)} blocks of {query_block}, "
                                     f"kv_num_blocks has {blocks}", value=queries)
    return -(-tokens // unit)
