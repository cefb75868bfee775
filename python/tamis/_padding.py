"""Where the tokens of a padded batch lie, and how attention reads them there. Needs torch."""
from dataclasses import dataclass, field

import torch

from ._errors import invalid, unsupported
from ._query_runs import runs_of


@dataclass(frozen=True)
class Rows:
    """Which rows of K and V `[B, Hkv, T, D]` belong to each request, and where its queries stand.

    Attributes:
        first: row of the request's token 0.
        tokens: how many rows it has from there on.
        q_start: position of its first query among these tokens; negative for padding in front. A query at `tokens` or
            behind is padding too.
        causal, sliding: the model's mask: causal or not, and tokens of its sliding window (0: none).
    """

    first: tuple
    tokens: tuple
    q_start: tuple
    causal: bool
    sliding: int
    made: dict = field(default_factory=dict, compare=False)  # small arrays, shared by the layers of a forward

    def array(self, name, device, make):
        """An int32 tensor that all layers share."""
        if (name, device) not in self.made:
            self.made[name, device] = torch.tensor(make(), dtype=torch.int32, device=device)
        return self.made[name, device]

    def real(self, request, q_length):
        """(begin, end) of the queries of a request that are tokens; the same number twice where none is."""
        start = self.q_start[request]
        begin = min(max(0, -start), q_length)
        return begin, max(begin, min(q_length, self.tokens[request] - start))

    def runs(self, q_length, query_block):
        """(`runs_of`, whether some request has several): where none has, blocks are those of the dense batch."""
        if ("runs", query_block) not in self.made:
            runs = runs_of(self, q_length, query_block)
            self.made["runs", query_block] = runs, len(runs) > len(self.first)
        return self.made["runs", query_block]


def pack(rows, device):
    """Rows as an int32 tensor `[B, 5, 1, 1]`, the one form that models and `generate` hand on untouched: they take four
    axes for a mask that is ready, and may slice the last two to the length of K."""
    batch = len(rows.first)
    numbers = [rows.first, rows.tokens, rows.q_start, [int(rows.causal)] * batch, [rows.sliding] * batch]
    packed = torch.tensor(numbers, dtype=torch.int32, device=device).T.reshape(batch, 5, 1, 1).contiguous()
    packed.tamis_rows = rows
    return packed


def unpack(packed):
    """The rows of a mask made by `pack`; None for any other mask."""
    rows = getattr(packed, "tamis_rows", None)
    if rows is None and packed.dtype == torch.int32 and packed.dim() == 4 and packed.shape[1:] == (5, 1, 1):
        # The tensor was copied on its way, to another device for example: attributes stay behind, numbers do not.
        first, tokens, q_start, causal, sliding = packed.flatten(1).T.tolist()
        if min(*first, *tokens, *sliding, 0) < 0 or set(causal) - {0, 1} or len({*zip(causal, sliding)}) != 1:
            return None  # somebody else's
        rows = Rows(tuple(first), tuple(tokens), tuple(q_start), bool(causal[0]), sliding[0])
        packed.tamis_rows = rows
    return rows


def rows_of_mask(attention_mask, batch, q_length, kv_length, q_offset, kv_offset, causal, sliding):
    """Rows from a model's 2-D padding mask, True for tokens, or None where nothing is padded.

    Row j of K holds column `kv_offset + j` of the mask; columns that the mask lacks are not written yet (a static
    cache). Queries are columns `q_offset` on.
    """
    if attention_mask is None:
        tokens = min(kv_length, q_offset - kv_offset + q_length) if causal else kv_length
        first, tokens = [0] * batch, [tokens] * batch
    else:
        held = attention_mask[:, kv_offset:kv_offset + kv_length].bool()
        place = torch.arange(held.shape[1], device=held.device)
        begin = torch.where(held, place, held.shape[1]).amin(1) if held.shape[1] else place.new_zeros(batch)
        end = torch.where(held, place + 1, 0).amax(1) if held.shape[1] else place.new_zeros(batch)
        begin = torch.minimum(begin, end)
        first, ends, members = torch.stack([begin, end, held.sum(1)]).tolist()
        tokens = [e - f for f, e in zip(first, ends)]
        for request, (length, count) in enumerate(zip(tokens, members)):
            if length != count:
                raise unsupported("attention_mask", f"request {request} has padding between its tokens; padding in "
                                                    "front or behind is computed (generate from padding in front)",
                                  request=request)
    # Without causality a position decides nothing but whether a query is padding, and keys may be those of an encoder.
    q_start = [q_offset - kv_offset - f if causal else 0 for f in first]
    return Rows(tuple(first), tuple(tokens), tuple(q_start), causal, sliding)


def arguments(query, key, value, rows, differentiable, query_block=None):
    """q, k, v and the keywords of `tamis.attention` for `[B, H, tokens, D]` tensors, without a copy where it can be.

    The result is a dense batch, `[B, S, H, D]`. With a `query_block` it may be one list of queries, `[B * S, H, D]`, in
    which each run of `rows.runs` is a request of its own that reads the K and V of the one it belongs to.
    """
    batch, _, q_length, _ = query.shape
    device = query.device
    if len(rows.first) != batch or max(f + n for f, n in zip(rows.first, rows.tokens)) > key.shape[2]:
        raise invalid("attention_mask", f"is one of {len(rows.first)} requests with rows up to "
                                        f"{max(f + n for f, n in zip(rows.first, rows.tokens))}; K has "
                                        f"{tuple(key.shape)}")
    q = query.transpose(1, 2)
    if batch > 1 and q_length > 1 and q.stride(0) != q_length * q.stride(1):
        q = q.contiguous()  # rows of a batch must follow one another; projections in front of the heads leave them so
    runs, cut = rows.runs(q_length, query_block) if query_block else (None, False)
    owners = [run.request for run in runs] if cut else range(batch)
    form = query_block if cut else 0
    given = {"kv_len": rows.array(("kv_len", form), device, lambda: [rows.tokens[b] for b in owners]),
             "q_pos": rows.array("q_pos", device, lambda: _positions(rows, q_length))}
    if cut:
        q = q.flatten(0, 1)
        given["cu_q"] = rows.array(("cu_q", form), device,
                                   lambda: [0, *(run.request * q_length + run.end for run in runs)])
    aligned, ratio = len(set(rows.first)) == 1, None
    if aligned:
        k, v = (x[:, :, rows.first[0]:] for x in (key, value))
    else:
        # Requests begin at rows of their own. A table cannot name these in the pages of a dense batch, which all begin
        # at row 0, but it can in pages that overlap. A gradient is as large as what it belongs to, so not for these.
        ratio = None if differentiable else _rows_apart(key, value)
    if not aligned and ratio is None:
        k, v = (torch.stack([x[b].roll(-f, 1) for b, f in enumerate(rows.first)]) for x in (key, value))
    if ratio is None:
        if cut:  # each request is one page
            given["page_table"] = rows.array(("page_table", form), device, lambda: [[b] for b in owners])
        return q, k, v, {**given, "kv_layout": "HND"}
    page, table = _table(rows, ratio)
    pages = (batch - 1) * ratio + rows.first[-1] + 1
    k, v = (x.as_strided((pages, page, x.shape[1], x.shape[3]), (x.stride(2), x.stride(2), x.stride(1), x.stride(3)))
            for x in (key, value))
    return q, k, v, {**given, "page_table": rows.array(("page_table", form, ratio), device,
                                                       lambda: [table[b] for b in owners])}


def _positions(rows, q_length):
    """Of all queries, one request after the other; below 0 for padding, which then sees nothing."""
    positions = []
    for b, start in enumerate(rows.q_start):
        begin, end = rows.real(b, q_length) if rows.causal else (0, q_length)
        positions += [start + i if begin <= i < end else -1 for i in range(q_length)]
    return positions


def _rows_apart(key, value):
    """How many rows lie between the requests of a batch, where that is one whole number for K and V; else None."""
    apart = set()
    for x in (key, value):
        if x.stride(2) <= 0 or x.stride(0) % x.stride(2):
            return None
        apart.add(x.stride(0) // x.stride(2))
    return apart.pop() if len(apart) == 1 and min(apart) >= key.shape[2] else None


def _table(rows, ratio):
    """Page size and table where physical page p begins at row p of the memory. The last request is one page, so that
    no page ends behind the memory; pages of the others may reach into foreign rows, but no token of theirs does."""
    page = max(1, rows.tokens[-1])
    width = max(1, *(-(-n // page) for n in rows.tokens))
    return page, [[b * ratio + first + j * page if j * page < n else -1 for j in range(width)]
                  for b, (first, n) in enumerate(zip(rows.first, rows.tokens))]
