"""Attention over dense masks in float64, from docs/semantics.md sections 2 to 5: slow, short and on its own."""
import numpy as np


class Case:
    """A problem with paged or contiguous K and V, as NumPy arrays; what is not selected is NaN.

    `rows` are lists of entries, one per candidate row, or None for no lists, or "all".
    """

    def __init__(self, rng, q_len, kv_len, q_heads=4, kv_heads=2, dim=16, v_dim=None, page=None, rows=None, unit=1,
                 query_block=1, index_heads=1, causal=True, window=0, sink=0, scale=None, softcap=0.0, slopes=None,
                 layout="NHD", dtype=np.float32, poison=True):
        self.q_len, self.kv_len = np.asarray(q_len, np.int32), np.asarray(kv_len, np.int32)
        self.rows, self.unit, self.query_block, self.index_heads = rows, unit, query_block, index_heads
        self.causal, self.window, self.sink = causal, window, sink
        self.scale, self.softcap, self.slopes = scale, softcap, slopes
        self.page, self.layout = page, layout
        batch, v_dim = len(self.q_len), v_dim or dim
        self.cu_q = np.concatenate([[0], np.cumsum(self.q_len)]).astype(np.int32)
        self.q = rng.standard_normal((self.cu_q[-1], q_heads, dim)).astype(dtype)
        self.keys = [rng.standard_normal((n, kv_heads, dim)).astype(dtype) for n in self.kv_len]
        self.values = [rng.standard_normal((n, kv_heads, v_dim)).astype(dtype) for n in self.kv_len]
        self.masks = self._masks()
        keys, values = self.keys, self.values
        if poison:  # tokens that no query selects must not matter
            used = [mask.any(axis=(0, 1)) for mask in self.masks]
            keys = [np.where(u[:, None, None], k, np.array(np.nan, dtype)) for u, k in zip(used, keys)]
            values = [np.where(u[:, None, None], v, np.array(np.inf, dtype)) for u, v in zip(used, values)]
        if page is None:
            self.cu_kv = np.concatenate([[0], np.cumsum(self.kv_len)]).astype(np.int32)
            self.table = None
            self.k, self.v = np.concatenate(keys), np.concatenate(values)
        else:
            self.cu_kv = None
            widths = (self.kv_len + page - 1) // page
            pages = int(widths.sum()) + 3
            numbers = iter(rng.permutation(pages).tolist())
            self.table = np.full((batch, max(1, int(widths.max(initial=0)))), -7, np.int32)
            self.k = np.full((pages, page, kv_heads, dim), np.nan, dtype)
            self.v = np.full((pages, page, kv_heads, v_dim), np.nan, dtype)
            for b in range(batch):
                for p in range(widths[b]):
                    self.table[b, p] = number = next(numbers)
                    part = slice(p * page, min((p + 1) * page, self.kv_len[b]))
                    self.k[number, :part.stop - part.start] = keys[b][part]
                    self.v[number, :part.stop - part.start] = values[b][part]
        if layout == "HND":
            self.k, self.v = (np.ascontiguousarray(np.swapaxes(x, -3, -2)) for x in (self.k, self.v))

    def arguments(self):
        """Keyword arguments of tamis.attention, but q, k, v and candidates."""
        return dict(cu_q=self.cu_q, kv_len=self.kv_len, cu_kv=self.cu_kv, page_table=self.table, causal=self.causal,
                    window=self.window, sink=self.sink, scale=self.scale, softcap=self.softcap,
                    alibi_slopes=self.slopes, kv_layout=self.layout)

    def _masks(self):
        """For each request, which tokens each (query, index head) selects: [queries, Hi, tokens]."""
        masks, first = [], 0
        for b, (queries, tokens) in enumerate(zip(self.q_len, self.kv_len)):
            t = np.arange(tokens)
            mask = np.zeros((queries, self.index_heads, tokens), bool)
            for i in range(queries):
                position = tokens - queries + i
                if position < 0:
                    continue
                seen = t <= position if self.causal else np.ones(tokens, bool)
                always = t < self.sink
                if self.window > 0:
                    always = always | ((t > position - self.window) & (t <= position))
                for head in range(self.index_heads):
                    row = (first + i // self.query_block) * self.index_heads + head
                    listed = np.zeros(tokens, bool)
                    if self.rows == "all":
                        listed[:] = True
                    elif self.rows is not None:
                        for e in self.rows[row]:
                            if e >= 0:
                                listed[e * self.unit:(e + 1) * self.unit] = True
                    mask[i, head] = seen & (listed | always)
            masks.append(mask)
            first += -(-queries // self.query_block)
        return masks

    def expected(self):
        """(out, lse) in float64."""
        q_heads, kv_heads = self.q.shape[1], self.keys[0].shape[1]
        dim = self.q.shape[2]
        scale = 1 / np.sqrt(dim) if self.scale is None else self.scale
        out = np.zeros((*self.q.shape[:2], self.values[0].shape[2]))
        lse = np.full(self.q.shape[:2], -np.inf)
        for b, mask in enumerate(self.masks):
            for i in range(self.q_len[b]):
                row = self.cu_q[b] + i
                for h in range(q_heads):
                    chosen = np.flatnonzero(mask[i, h // (q_heads // self.index_heads)])
                    if len(chosen) == 0:
                        continue
                    g = h // (q_heads // kv_heads)
                    s = scale * (self.keys[b][chosen, g].astype(np.float64) @ self.q[row, h].astype(np.float64))
                    if self.softcap > 0:
                        s = self.softcap * np.tanh(s / self.softcap)
                    if self.slopes is not None:
                        position = self.kv_len[b] - self.q_len[b] + i
                        s = s - float(self.slopes[h]) * np.abs(position - chosen)
                    top = s.max()
                    weight = np.exp(s - top)
                    lse[row, h] = top + np.log(weight.sum())
                    out[row, h] = weight @ self.values[b][chosen, g].astype(np.float64) / weight.sum()
        return out, lse

    def tolerance(self, dtype="f32"):
        """Of a result: absolute and relative."""
        return {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}[dtype]


def csr(rows):
    """(indices, indptr) of lists."""
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return np.array([e for row in rows for e in row], np.int32), indptr


def fixed(rows, extra=1):
    """(indices, count) of lists, padded with entries that do not count."""
    width = max(map(len, rows), default=0) + extra
    indices = np.full((len(rows), width), 1 << 20, np.int32)
    for r, row in enumerate(rows):
        indices[r, :len(row)] = row
    return indices, np.array(list(map(len, rows)), np.int32)


def draw_rows(rng, case_rows, entries, tokens_of_row, unit):
    """Random rows with repeats and padding."""
    rows = []
    for r in range(case_rows):
        most = -(-int(tokens_of_row(r)) // unit)
        row = rng.integers(0, most, rng.integers(0, entries + 1)).tolist() if most else []
        if row and rng.integers(2):
            row += [-1, row[0]]
        rows.append(row)
    return rows
