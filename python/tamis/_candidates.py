"""Raw candidate rows: what a selector proposes."""
from . import _checks

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

    def __repr__(self):
        form = ("CSR", "fixed width", "none", "all")[self.form]
        return (f"Candidates({form}, unit={self.unit}, query_block={self.query_block}, "
                f"index_heads={self.index_heads}, duplicates={self.duplicates!r}, invalid={self.invalid!r})")


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


def given(candidates):
    """What an argument `candidates` stands for."""
    if candidates is None:
        return WINDOW_AND_SINK
    if not isinstance(candidates, Candidates):
        raise TypeError(f"candidates: expected tamis.Candidates, tamis.ALL or None, not {type(candidates).__name__}")
    return candidates


def set_lists(problem, candidates):
    """Puts the rows into a problem."""
    c = candidates
    problem.set_numbers({"form": c.form, "unit": c.unit, "query_block": c.query_block, "index_heads": c.index_heads,
                         "duplicates": _checks.DUPLICATES[c.duplicates], "invalid": _checks.INVALID[c.invalid]})
    problem.set("cand_indices", c.indices)
    problem.set("cand_indptr", c.indptr)
    problem.set("cand_count", c.count)
