"""tamis.block_sparse against dense masks in float64."""
import re
from pathlib import Path

import numpy as np
import pytest

import tamis
from tamis.block_sparse import BlockSparseAttention


def problem(rng, m=37, n=70, rows=8, columns=12, q_heads=4, kv_heads=2, dim=16, v_dim=16, heads=False, density=0.4):
    """(lists, indptr, indices, q, k, v): lists of column blocks by KV head, or one for all, then block row."""
    blocks, width = -(-m // rows), -(-n // columns)
    lists = [[rng.permutation(width)[:rng.binomial(width, density)].tolist() for _ in range(blocks)]
             for _ in range(kv_heads if heads else 1)]
    lists[0][1] = []
    lists[-1][2] = [width - 1, 0, width - 1, -1]  # the short last block, a repeat, padding
    flat = [row for head in lists for row in head]
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in flat])]).astype(np.int32)
    indptr = np.stack([bounds[h * blocks:(h + 1) * blocks + 1] for h in range(len(lists))])
    indices = np.array([e for row in flat for e in row], np.int32)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in
               ((m, q_heads, dim), (n, kv_heads, dim), (n, kv_heads, v_dim)))
    return lists, indptr if heads else indptr[0], indices, q, k, v


def judge(lists, q, k, v, rows, columns, causal=False, window=0, sink=0, scale=None, cap=0.0):
    m, n, groups = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    out, lse = np.zeros((*q.shape[:2], v.shape[2])), np.full(q.shape[:2], -np.inf)
    t = np.arange(n)
    for h in range(q.shape[1]):
        g = h // groups
        for i in range(m):
            position = n - m + i
            chosen = np.isin(t // columns, lists[g if len(lists) > 1 else 0][i // rows])
            chosen |= (t < sink) | ((t > position - window) & (t <= position))
            if causal:
                chosen &= t <= position
            if chosen.any():
                s = k[chosen, g].astype(np.float64) @ q[i, h] * (q.shape[2] ** -0.5 if scale is None else scale)
                s = cap * np.tanh(s / cap) if cap else s
                lse[i, h] = s.max() + np.log(np.exp(s - s.max()).sum())
                out[i, h] = np.exp(s - lse[i, h]) @ v[chosen, g]
    return out, lse


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("rows, columns", [(8, 12), (1, 1), (16, 64), (5, 7), (64, 128)])
def test_against_a_dense_mask(rng, heads, rows, columns):
    sizes = dict(m=131, n=300, rows=rows, columns=columns)
    lists, indptr, indices, q, k, v = problem(rng, **sizes, heads=heads, v_dim=24)
    sparse = BlockSparseAttention()
    sparse.plan(indptr, indices, 131, 300, rows, columns, 4, 2, 16)
    out, lse = sparse.run(q, k, v, return_lse=True)
    expected, expected_lse = judge(lists, q, k, v, rows, columns)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-5, atol=2e-5)
    assert (out[rows:2 * rows, 0] == 0).all() and np.isneginf(lse[rows:2 * rows, 0]).all()


@pytest.mark.parametrize("m, n", [(37, 70), (70, 37), (37, 37)])
@pytest.mark.parametrize("options, same", [({}, {}), (dict(causal=True), dict(causal=True)),
                                           (dict(window=5, sink=3, causal=True), dict(window=5, sink=3, causal=True)),
                                           (dict(sm_scale=0.7, logits_soft_cap=1.5), dict(scale=0.7, cap=1.5)),
                                           (dict(logits_soft_cap=None), {})])
def test_masks_and_scores(rng, m, n, options, same):
    lists, indptr, indices, q, k, v = problem(rng, m, n)
    sparse = BlockSparseAttention()
    sparse.plan(indptr, indices, m, n, 8, 12, 4, 2, 16, **options)
    out, lse = sparse.run(q, k, v, return_lse=True)
    expected, expected_lse = judge(lists, q, k, v, 8, 12, **same)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-5, atol=2e-5)


def test_a_plan_serves_many_runs(rng):
    """Other values, another dtype and strides, room of the caller's; what was planned last counts."""
    lists, indptr, indices, q, k, v = problem(rng)
    sparse = BlockSparseAttention()
    with pytest.raises(tamis.Error, match="^stale_plan"):
        sparse.run(q, k, v)
    sparse.plan(indptr, indices, 37, 70, 8, 12, 4, 2, 16)
    first = sparse.run(q, k, v)
    index = sparse.index
    room, lse = np.empty_like(q), np.empty((37, 4), np.float32)
    assert sparse.run(2 * q, k, v, out=room, lse=lse) is room and sparse.index is index
    np.testing.assert_allclose(room, judge(lists, 2 * q, k, v, 8, 12)[0], rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(sparse.run(q, np.repeat(k, 2, 0)[::2], v), first)
    half = sparse.run(*(x.astype(np.float16) for x in (q, k, v)))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, first, rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(sparse.run(q, k, v), first)
    sparse.plan(np.zeros(6, np.int32), indices[:0], 37, 70, 8, 12, 4, 2, 16)
    assert (sparse.run(q, k, v) == 0).all()


def test_a_refused_plan_leaves_none(rng):
    """Rather than the mask of the one before."""
    _, indptr, indices, q, k, v = problem(rng)
    sparse = BlockSparseAttention()
    bad = np.where(np.arange(len(indices)) == 1, 6, indices).astype(np.int32)
    for refused, sizes, code in ((bad, (37, 70, 8, 12), "index_out_of_range"),
                                 (indices, (41, 70, 8, 12), "invalid_argument"),
                                 (indices, (37, 70, 0, 12), "invalid_argument")):
        sparse.plan(indptr, indices, 37, 70, 8, 12, 4, 2, 16)
        sparse.run(q, k, v)
        with pytest.raises(tamis.Error, match=f"^{code}"):
            sparse.plan(indptr, refused, *sizes, 4, 2, 16)
        with pytest.raises(tamis.Error, match="^stale_plan: run: there is no plan"):
            sparse.run(q, k, v)
        assert sparse.index is None


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_lists_of_64_bits(rng, heads, framework):
    lists, indptr, indices, q, k, v = problem(rng, heads=heads)
    make = pytest.importorskip("torch").from_numpy if framework == "torch" else lambda array: array
    results = []
    for dtypes in ((np.int32, np.int32), (np.int64, np.int64), (np.int64, np.int32), (np.int32, np.int64)):
        sparse = BlockSparseAttention()
        sparse.plan(*(make(x.astype(dtype)) for x, dtype in zip((indptr, indices), dtypes)), 37, 70, 8, 12, 4, 2, 16)
        results.append(sparse.run(q, k, v))
        np.testing.assert_array_equal(results[-1], results[0])
    np.testing.assert_allclose(results[0], judge(lists, q, k, v, 8, 12)[0], rtol=2e-5, atol=2e-5)
    wide = indices.astype(np.int64)
    at = int(indptr.ravel()[2])  # the first of block row 2, of the first KV head
    for value in ((1 << 32) + 1, -1 << 32, (1 << 31) - 1, -2, 6):
        wide[at] = value
        with pytest.raises(tamis.Error, match="^index_out_of_range: (cand_)?indices: row ") as caught:
            BlockSparseAttention().plan(make(indptr), make(wide), 37, 70, 8, 12, 4, 2, 16)
        assert (caught.value.row, caught.value.value) == (4 if heads else 2, value)
    with pytest.raises(tamis.Error, match="^invalid_argument: (cand_)?indices: "):
        BlockSparseAttention().plan(make(indptr), make(indices.astype(np.float32)), 37, 70, 8, 12, 4, 2, 16)


@pytest.mark.parametrize("heads", [False, True])
def test_tensors_of_torch(rng, heads):
    torch = pytest.importorskip("torch")
    lists, indptr, indices, q, k, v = problem(rng, heads=heads)
    sparse = BlockSparseAttention()
    sparse.plan(torch.from_numpy(indptr), torch.from_numpy(indices), 37, 70, 8, 12, 4, 2, 16)
    out = sparse.run(*map(torch.from_numpy, (q, k, v)))
    assert isinstance(out, torch.Tensor)
    np.testing.assert_allclose(out.numpy(), judge(lists, q, k, v, 8, 12)[0], rtol=2e-5, atol=2e-5)


def test_lists_are_checked(rng):
    _, indptr, indices, *_ = problem(rng)
    plan = BlockSparseAttention().plan
    bad = indices.copy()
    bad[indptr[2]] = 6
    with pytest.raises(tamis.Error, match="^index_out_of_range") as caught:
        plan(indptr, bad, 37, 70, 8, 12, 4, 2, 16)
    assert (caught.value.row, caught.value.value) == (2, 6)
    wrong = indptr.copy()
    wrong[2] = 10 ** 6
    with pytest.raises(tamis.Error, match="^invalid_argument: cand_indptr"):
        plan(wrong, indices, 37, 70, 8, 12, 4, 2, 16)
    _, indptr, indices, *_ = problem(rng, heads=True)
    indptr[1, 3] = 10 ** 6
    with pytest.raises(tamis.Error, match="indptr: block row 2 of KV head 1 is ") as caught:
        plan(indptr, indices, 37, 70, 8, 12, 4, 2, 16)
    assert caught.value.row == 5


def test_sizes_are_checked(rng):
    _, indptr, indices, q, k, v = problem(rng)
    sparse = BlockSparseAttention()
    for sizes, message in (((37, 70, 0, 12, 4, 2, 16), "R: 0 is too small"), ((37, -1, 8, 12, 4, 2, 16), "N: -1"),
                           ((37, 70, 8, 12, 4, 3, 16), "num_qo_heads: 4 heads do not divide into 3"),
                           ((41, 70, 8, 12, 4, 2, 16), r"indptr: has shape \[6\]; 6 block rows need \[7\]")):
        with pytest.raises(tamis.Error, match=message):
            sparse.plan(indptr, indices, *sizes)
    for large in (dict(N=1 << 31, C=1 << 31), dict(M=1 << 62, R=1 << 62)):
        with pytest.raises(tamis.Error, match=f"{next(iter(large))}: {next(iter(large.values()))} does not fit 32 bits"):
            sparse.plan(**{**dict(indptr=np.array([0, 1]), indices=np.array([0]), M=4, N=4, R=4, C=4, num_qo_heads=2,
                                  num_kv_heads=1, head_dim=8), **large})
    for name, error in (("causal", TypeError), ("window", TypeError), ("sink", TypeError), ("sm_scale", TypeError),
                        ("logits_soft_cap", TypeError)):
        with pytest.raises(error, match=f"^{name}: expected"):
            sparse.plan(indptr, indices, 37, 70, 8, 12, 4, 2, 16, **{name: np.zeros(2)})
    for name, value in (("sm_scale", np.nan), ("logits_soft_cap", -1), ("logits_soft_cap", np.nan)):
        with pytest.raises(tamis.Error, match=f"^invalid_argument: {name}: "):
            sparse.plan(indptr, indices, 37, 70, 8, 12, 4, 2, 16, **{name: value})
    with pytest.raises(TypeError, match="M: expected an integer"):
        sparse.plan(indptr, indices, 3.5, 70, 8, 12, 4, 2, 16)
    sparse.plan(indptr, indices, 37, 70, 8, 12, 4, 2, 16)
    for arrays, message in (((q[1:], k, v), r"q: has shape \[36, 4, 16\], planned was \[37, 4, 16\]"),
                            ((q, k[:, :1], v), "k: has shape"), ((q, k, v[1:]), r"v: .*\[70, 2\] and Dv"),
                            ((q, k, v[0]), "v: has shape")):
        with pytest.raises(tamis.Error, match=message):
            sparse.run(*arrays)


def test_the_guide_runs():
    guide = Path(__file__).resolve().parents[2] / "docs/python_frameworks.md"
    names = {}
    exec(re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.M | re.S)[2], names)
    assert names["out"].shape == (96, 8, 64) and np.isfinite(names["lse"]).all()
