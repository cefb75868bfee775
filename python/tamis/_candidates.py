"""Raw candidate rows: what a selector proposes."""
from . import _checks, _core, _exporters, _importers
from ._errors import Error

CSR, FIXED_WIDTH, NONE, ALL_TOKENS = range(4)


class Candidates:
    """Candidate rows, as arrays and what they mean. Nothing is read or copied here; `normalize` judges the content.

    Args:
        indices: int32. `[nnz]` with `indptr` (CSR), else `[R, K]` (fixed width). An entry `e` of a row stands for the
            tokens `e * unit <= t < (e + 1) * unit` of the row's request; -1 is padding.
        indptr: int32 or int64 `[R + 1]`: row `r` is `indices[indptr[r]:indptr[r + 1]]`.
        count: int32 `[R]`, fixed width only: entries from `count[r]` on are no candidates, whatever they hold.
        unit: tokens that an entry stands for; a page size for lists of pages.
        query_block: queries of a request that share a row; the last block of a request may be shorter.
        index_heads: `Hi`: 1, the number of KV heads, or the number of query heads. Row `r` belongs to query block
            `r // Hi`, counted over all requests in order, and index head `r % Hi`.
        duplicates: `"merge"` counts a repeated entry once; `"reject"` refuses it (`duplicate_index`).
        invalid: `"reject"` refuses an entry out of range (`index_out_of_range`); `"drop"` ignores and counts it.

    Raises:
        Error: `invalid_argument` for an unknown policy or a `count` beside an `indptr`.
        TypeError: for numbers that are none.

    `tamis.ALL` stands for every token, `None` for window and sink alone.

    `from_csr`, `from_bsr`, `from_topk`, `from_dense_mask` and `from_block_mask` take the formats of others. They read
    the arrays and check shapes, dtypes, order and ranges, so arrays of a device cost a wait and a way to the host and
    back; int64 entries become int32. What they make lies where the arrays lay: tensors for tensors of torch, all of
    the device of the indices or the mask; on the host NumPy arrays for all others, but for arrays that need no change.
    `to_csr`, `to_fixed_width`, `to_bsr` and `to_dense_mask` are the way back, in NumPy arrays.
    """

    __slots__ = ("indices", "indptr", "count", "unit", "query_block", "index_heads", "duplicates", "invalid", "form")

    def __init__(self, indices, indptr=None, count=None, *, unit=1, query_block=1, index_heads, duplicates="merge",
                 invalid="reject"):
        if indptr is not None and count is not None:
            raise _checks.invalid("cand_count", "belongs to the fixed-width form, cand_indptr is CSR")
        if indices is None:
            raise TypeError("cand_indices: expected an array, not NoneType")
        _checks.choice("duplicates", duplicates, _checks.DUPLICATES)
        _checks.choice("invalid", invalid, _checks.INVALID)
        self.indices, self.indptr, self.count = indices, indptr, count
        self.unit = _checks.integer("unit", unit)
        self.query_block = _checks.integer("query_block", query_block)
        self.index_heads = _checks.integer("index_heads", index_heads)
        self.duplicates, self.invalid = duplicates, invalid
        self.form = FIXED_WIDTH if indptr is None else CSR

    @classmethod
    def from_csr(cls, indptr, indices, *, unit=1, query_block=1, index_heads=1, columns=None, duplicates="merge",
                 invalid="reject"):
        """From compressed rows.

        Args:
            indptr: int32 or int64 `[R + 1]`; starts at 0, never falls, ends at `nnz`.
            indices: int32 or int64 `[nnz]`, entries of `[0, columns)` or -1.
            columns: how many entries there are to choose from; None: not stated.
            unit, query_block, index_heads, duplicates, invalid: as in `Candidates`.

        Raises:
            Error: `invalid_argument`; `index_out_of_range` with row, value and limit, unless `invalid="drop"` leaves
                such entries to `normalize`.
        """
        return _importers.from_csr(cls, indptr, indices, columns, unit, query_block, index_heads, invalid,
                                   duplicates=duplicates)

    @classmethod
    def from_bsr(cls, indptr, indices, R, C, *, index_heads=1, columns=None, duplicates="merge", invalid="reject"):
        """From block-sparse rows: row `r` lists blocks of `R` queries by `C` tokens.

        With several index heads the rows of a query block follow one another, head by head.

        Args:
            indptr, indices, columns: as in `from_csr`; rows and columns are blocks.
            R: queries of a block, which becomes `query_block`.
            C: tokens of a block, which becomes `unit`.
            index_heads, duplicates, invalid: as in `Candidates`.

        Raises:
            Error: as `from_csr`.
        """
        _importers.sizes(R=R, C=C)
        return cls.from_csr(indptr, indices, unit=C, query_block=R, index_heads=index_heads, columns=columns,
                            duplicates=duplicates, invalid=invalid)

    @classmethod
    def from_topk(cls, indices, *, unit=1, query_block=1, index_heads=None, heads_first=False, columns=None,
                  duplicates="merge", invalid="reject"):
        """From a selector's best `K`, padded with -1.

        Args:
            indices: int32 or int64 `[..., Hi, K]` over query blocks, of rank 3 or 4; with `heads_first`
                `[..., Hi, blocks, K]`; or `[R, K]` with `index_heads`.
            index_heads: default: what `indices` have; 1 for `[R, K]`.
            columns: as in `from_csr`.
            unit, query_block, duplicates, invalid: as in `Candidates`.

        Raises:
            Error: as `from_csr`.
        """
        return _importers.from_topk(cls, indices, columns, unit, query_block, index_heads, heads_first, invalid,
                                    duplicates=duplicates)

    @classmethod
    def from_dense_mask(cls, mask, *, unit=1, query_block=1, of_blocks=False):
        """From booleans that say which query may see which token.

        Args:
            mask: bool `[S, T]`, `[Hi, S, T]` or `[B, Hi, S, T]`; or a list with `[S, T]` or `[Hi, S, T]` for each
                request. True is selected. One without B is of one request; where all of a batch share it, say
                `mask.expand(B, -1, -1, -1)`, or give a list.
            unit, query_block: write lists of blocks. A mask of tokens has to be whole on them.
            of_blocks: the mask is one of blocks already, `S` and `T` count those.

        `attention` takes causality besides, so say `causal=False` where the mask is the whole truth. Queries stand at the
        last tokens, and at negative positions they see nothing: where S exceeds T, give `q_pos` too, for instance zeros.

        Raises:
            Error: `invalid_argument`, with the request where a mask is not whole on its blocks.
        """
        return _importers.from_dense_mask(cls, mask, unit, query_block, of_blocks)

    @classmethod
    def from_block_mask(cls, mask, *, partial="reject", batch=None):
        """From a `BlockMask` of FlexAttention, or whatever has its attributes.

        Read are `kv_num_blocks` `[B, H, rows]`, `kv_indices` `[B, H, rows, columns]`, `BLOCK_SIZE`, and where they are
        not None `full_kv_num_blocks`, `full_kv_indices`, `seq_lengths`, `mask_mod`. `BLOCK_SIZE` becomes `query_block`
        and `unit`, `H` the index heads.

        Args:
            partial: lists cannot say what a `mask_mod` hides inside a partial block. `"reject"` refuses partial blocks,
                but those of a mask without `mask_mod` and full blocks, which are whole; `"whole"` lists all their
                tokens, which is exact where causal, window and sink of `attention` say the rest.
            batch: requests that share a mask of `B = 1`.

        Raises:
            Error: `unsupported` for partial blocks; `invalid_argument`; `index_out_of_range`.
            TypeError: for what has no such attributes.
        """
        return _importers.from_block_mask(cls, mask, partial, batch)

    def to_csr(self, padding="keep"):
        """The rows as they are: `(indptr, indices)`, int64 and int32.

        Args:
            padding: `"keep"` or `"drop"`, entries of -1.
        """
        return _exporters.rows_of(self, padding)

    def to_fixed_width(self, width=None):
        """The rows as they are: `(indices, count)`, int32 `[R, width]` with -1 behind each row, and int32 `[R]`.

        Args:
            width: default: that of the longest row. A longer row is `capacity_exceeded`, nothing is cut.
        """
        return _exporters.to_fixed_width(*_exporters.rows_of(self), width)

    def to_bsr(self):
        """`(indptr, indices, R, C)`: each entry of a row once, ascending, in blocks of `R` queries by `C` tokens.

        Negative entries other than -1 are `index_out_of_range`, or left out with `invalid="drop"`.
        """
        return _exporters.to_bsr(self)

    def to_dense_mask(self, cu_q, kv_len):
        """For each request bool `[Hi, S, T]`, True where a query's row lists the token; no causality, window or sink.

        Args:
            cu_q, kv_len: int32 `[B + 1]` and `[B]`, as in `attention`.

        Raises:
            Error: `index_out_of_range` unless `invalid="drop"`; `invalid_argument`.
        """
        return _exporters.to_dense_mask(self, cu_q, kv_len)

    def __reduce_ex__(self, protocol):
        return _SINGLE.get(id(self)) or super().__reduce_ex__(protocol)

    def __repr__(self):
        form = ("CSR", "fixed width", "none", "all")[self.form]
        if self.indices is not None:
            form = f"{form}, {self._size()}"
        return (f"Candidates({form}, unit={self.unit}, query_block={self.query_block}, "
                f"index_heads={self.index_heads}, duplicates={self.duplicates!r}, invalid={self.invalid!r})")


    def _size(self):
        try:
            indices = _core.facts(self.indices, "indices")
            if self.indptr is None:
                rows, width = indices.shape
                return f"{rows} rows of {width}, {indices.dtype}"
            rows, = _core.facts(self.indptr, "indptr").shape
            entries, = indices.shape
            return f"{rows - 1} rows, {entries} entries, {indices.dtype}"
        except (Error, TypeError, ValueError):
            return "unread"


def _without_lists(form, query_block=1):
    made = Candidates.__new__(Candidates)
    made.indices = made.indptr = made.count = None
    made.unit, made.query_block, made.index_heads = 1, query_block, 1
    made.duplicates, made.invalid, made.form = "merge", "reject", form
    return made


def restored(form, indices, indptr, count, **meaning):
    """Candidates of their parts, as an operator of torch knows them."""
    if form in (NONE, ALL_TOKENS):
        return _without_lists(form, meaning["query_block"])
    return Candidates(indices, indptr, count, **meaning)


ALL = _without_lists(ALL_TOKENS)
WINDOW_AND_SINK = _without_lists(NONE)
_SINGLE = {id(ALL): "ALL", id(WINDOW_AND_SINK): "WINDOW_AND_SINK"}  # copied and pickled as what they are


def given(candidates):
    """What an argument `candidates` stands for."""
    if candidates is None:
        return WINDOW_AND_SINK
    if not isinstance(candidates, Candidates):
        raise TypeError(f"candidates: expected tamis.Candidates, tamis.ALL or None, not {type(candidates).__name__}")
    return candidates


def check_meaning(candidates):
    """Attributes may have been set to anything since."""
    for name in ("unit", "query_block", "index_heads"):
        _checks.integer(name, getattr(candidates, name))
    _checks.choice("duplicates", candidates.duplicates, _checks.DUPLICATES)
    _checks.choice("invalid", candidates.invalid, _checks.INVALID)


def set_lists(problem, candidates):
    """Puts the rows into a problem."""
    c = candidates
    problem.set_numbers({"form": c.form, "unit": c.unit, "query_block": c.query_block, "index_heads": c.index_heads,
                         "duplicates": _checks.choice("duplicates", c.duplicates, _checks.DUPLICATES),
                         "invalid": _checks.choice("invalid", c.invalid, _checks.INVALID)})
    problem.set("cand_indices", c.indices)
    problem.set("cand_indptr", c.indptr)
    problem.set("cand_count", c.count)
