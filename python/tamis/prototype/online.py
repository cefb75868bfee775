"""What the kernels of all rungs do with a tile of T tokens: masked loads and one step of the online softmax.

A state of G query heads is (m, l, o): maximum [G], sum of exp(s - m) [G], sum of exp(s - m) v [G, Dv], all float32
(docs/semantics.md section 5). G and the head sizes are padded to powers of two; padding is zero and never stored.
"""
import triton
import triton.language as tl


@triton.jit
def load_rows(at, seen, D: tl.constexpr, COLUMNS: tl.constexpr, PRODUCT: tl.constexpr):
    """Rows [T, COLUMNS] of D elements that begin at pointers `at` [T]. What is not `seen` [T] is not read but zero: a
    weight of zero alone would let a NaN in V through."""
    d = tl.arange(0, COLUMNS)
    return tl.load(at[:, None] + d[None, :], mask=seen[:, None] & (d < D)[None, :], other=0.0).to(PRODUCT)


@triton.jit
def empty_state(GROUP: tl.constexpr, COLUMNS: tl.constexpr):
    """The identity of the merge: (-inf, 0, 0)."""
    return (tl.full([GROUP], float("-inf"), tl.float32), tl.zeros([GROUP], tl.float32),
            tl.zeros([GROUP, COLUMNS], tl.float32))


@triton.jit
def step(query, keys, values, seen, scale, m, l, o):
    """Adds the `seen` tokens of a tile to a state: query [G, D], keys [T, D], values [T, Dv], seen [T]."""
    # ieee: float32 inputs keep all their bits, which the default (tf32) would drop.
    s = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    s = tl.where(seen[None, :], s, float("-inf"))
    top = tl.maximum(m, tl.max(s, 1))
    base = tl.where(top == float("-inf"), 0.0, top)  # nothing seen yet: -inf minus -inf would be NaN
    p = tl.exp(s - base[:, None])
    keep = tl.exp(m - base)
    l = l * keep + tl.sum(p, 1)
    o = o * keep[:, None] + tl.dot(p.to(values.dtype), values, input_precision="ieee")
    return top, l, o


@triton.jit
def store_result(out, lse, row, alive, m, l, o, DV: tl.constexpr, COLUMNS: tl.constexpr):
    """Stores O = o / l and LSE = m + ln l of the rows [G] that are `alive` [G]; an empty state gives 0 and -inf."""
    d = tl.arange(0, COLUMNS)
    some = l != 0  # true for NaN: a selected NaN stays visible
    l = tl.where(some, l, 1.0)
    o = tl.where(some[:, None], o / l[:, None], 0.0)
    tl.store(out + row[:, None] * DV + d[None, :], o, mask=alive[:, None] & (d < DV)[None, :])
    tl.store(lse + row, tl.where(some, m + tl.log(l), float("-inf")), mask=alive)
