"""attention() on host arrays against a float64 dense mask."""
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamis
from judge import Case, csr, fixed


def candidates_of(case, form="csr", **options):
    if case.rows is None:
        return None
    if case.rows == "all":
        return tamis.ALL
    shape = dict(unit=case.unit, query_block=case.query_block, index_heads=case.index_heads, **options)
    if form == "csr":
        indices, indptr = csr(case.rows)
        return tamis.Candidates(indices, indptr, **shape)
    indices, count = fixed(case.rows)
    return tamis.Candidates(indices, count=count, **shape)


def check(case, form="csr", tolerance=2e-5, **more):
    out, lse = tamis.attention(case.q, case.k, case.v, candidates_of(case, form), return_lse=True, **case.arguments(),
                               **more)
    expected_out, expected_lse = case.expected()
    assert out.shape == expected_out.shape and lse.shape == expected_lse.shape
    np.testing.assert_allclose(out, expected_out, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(lse, expected_lse, rtol=tolerance, atol=tolerance)
    return out, lse


def decode(rng, **changes):
    settings = dict(q_len=[1, 1, 1], kv_len=[70, 33, 5], page=16, index_heads=2,
                    rows=[[0, 5, 64, 69], [1, 2, 3, 40, 41], [32, 0], [], [4, 1], [0, -1, 2, 2]])
    return Case(rng, **{**settings, **changes})


@pytest.mark.parametrize("form", ["csr", "fixed"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_paged_decode(rng, form, layout):
    out, lse = check(decode(rng, layout=layout), form)
    assert out.dtype == lse.dtype == np.float32
    assert (out[1, 2:] == 0).all() and np.isneginf(lse[1, 2:]).all()  # the empty row


def test_contiguous_prefill_with_blocks(rng):
    rows = [[0, 1], [2], [0, 3], [], [1, 1]]
    check(Case(rng, q_len=[5, 3, 0, 1], kv_len=[37, 20, 3, 1], unit=8, query_block=2, rows=[*rows, [0]], dim=24,
               v_dim=8))


def test_masks_scores_and_positions(rng):
    slopes = np.array([0.5, 0.25, 0.125, 1 / 16], np.float32)
    check(Case(rng, q_len=[3, 9], kv_len=[40, 7], page=8, rows=None, window=4, sink=2, scale=0.3, softcap=5.0,
               slopes=slopes))
    check(Case(rng, q_len=[3, 2], kv_len=[20, 7], rows="all", causal=False))


def test_explicit_positions_move_the_mask(rng):
    case = Case(rng, q_len=[2], kv_len=[10], rows="all", poison=False)
    late = tamis.attention(case.q, case.k, case.v, tamis.ALL, **{**case.arguments(), "q_pos": np.array([8, 9], np.int32)})
    early = tamis.attention(case.q, case.k, case.v, tamis.ALL, **{**case.arguments(), "q_pos": np.array([0, 9], np.int32)})
    np.testing.assert_array_equal(late, tamis.attention(case.q, case.k, case.v, tamis.ALL, **case.arguments()))
    np.testing.assert_allclose(early[0, 0], case.v[0, 0], rtol=1e-6)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("sliced", [False, True])
def test_dense_batch(rng, layout, sliced):
    batch, rows, tokens, q_heads, kv_heads, dim = 3, 2, 5, 4, 2, 8
    q = rng.standard_normal((batch, rows, q_heads, dim)).astype(np.float32)
    k, v = (rng.standard_normal((batch, tokens + 2, kv_heads, dim)).astype(np.float32) for _ in range(2))
    k, v = (x[:, :tokens] if sliced else x[:, :tokens].copy() for x in (k, v))  # sliced: batches lie apart
    case = Case(rng, q_len=[rows] * batch, kv_len=[tokens] * batch, rows="all", dim=dim)
    case.q, case.keys, case.values = q.reshape(-1, q_heads, dim), list(k), list(v)
    expected, expected_lse = case.expected()
    if layout == "HND":
        k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    out, lse = tamis.attention(q, k, v, tamis.ALL, kv_layout=layout, return_lse=True)
    np.testing.assert_allclose(out, expected.reshape(q.shape), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse, expected_lse.reshape(batch, rows, q_heads), rtol=2e-5, atol=2e-5)


def test_dense_batch_of_fewer_tokens(rng):
    q = rng.standard_normal((2, 1, 2, 8)).astype(np.float32)
    k, v = (rng.standard_normal((2, 6, 2, 8)).astype(np.float32) for _ in range(2))
    k[1, 3:] = np.nan
    out = tamis.attention(q, k, v, tamis.ALL, kv_len=np.array([6, 3], np.int32))
    short = tamis.attention(q[1:], k[1:, :3].copy(), v[1:, :3].copy(), tamis.ALL)
    np.testing.assert_array_equal(out[1:], short)


def test_explain_takes_all_arguments_of_attention(rng):
    import inspect
    taken = inspect.signature(tamis.explain).parameters
    for name, given in inspect.signature(tamis.attention).parameters.items():
        assert taken[name].default == given.default and taken[name].kind == given.kind, name
    case = decode(rng)
    said = tamis.explain(case.q, case.k, case.v, candidates_of(case), **case.arguments())
    assert tamis.explain(case.q, case.k, case.v, candidates_of(case), return_lse=True, dropout_p=0.1, backend="cpu",
                         **{**case.arguments(), "scale": 0.5}) == said


def test_a_dense_batch_that_cannot_be_joined_is_named(rng):
    q = rng.standard_normal((2, 4, 2, 8)).astype(np.float32)[:, :3]
    with pytest.raises(tamis.Error, match=r"^invalid_argument: q: a dense batch .* \.contiguous\(\)"):
        tamis.attention(q, q, q, tamis.ALL)


def test_strides_are_read_as_they_are(rng):
    case = decode(rng)
    expected, _ = case.expected()
    case.q = np.flip(np.flip(case.q, 2).copy(), 2)  # a negative stride
    case.k, case.v = (np.repeat(x, 2, 0)[::2] for x in (case.k, case.v))
    case.table = np.repeat(case.table, 2, 1)[:, ::2]
    check(case)


def test_given_outputs(rng):
    case = decode(rng)
    room = np.full((3, 5, 16), 7, np.float32)
    out = room[:, :4]
    assert tamis.attention(case.q, case.k, case.v, candidates_of(case), out=out, **case.arguments()) is out
    np.testing.assert_allclose(out, case.expected()[0], rtol=2e-5, atol=2e-5)
    assert (room[:, 4] == 7).all()
    out.flags.writeable = False
    with pytest.raises(tamis.Error, match="out: is read-only"):
        tamis.attention(case.q, case.k, case.v, candidates_of(case), out=out, **case.arguments())


def test_reference_is_float64(rng):
    case = decode(rng)
    out, lse = tamis.attention(case.q, case.k, case.v, candidates_of(case), backend="reference", return_lse=True,
                               **case.arguments())
    assert out.dtype == lse.dtype == np.float64
    expected, expected_lse = case.expected()
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-12, atol=1e-12)


def test_dropout_is_the_contracts(rng):
    case = decode(rng, rows="all", index_heads=1)
    arguments = {**case.arguments(), "dropout_p": 0.5, "dropout_seed": (1 << 63) + 5}
    out = tamis.attention(case.q, case.k, case.v, tamis.ALL, **arguments)
    judge = tamis.attention(case.q, case.k, case.v, tamis.ALL, backend="reference", **arguments)
    np.testing.assert_allclose(out, judge, rtol=2e-5, atol=2e-5)
    plain = tamis.attention(case.q, case.k, case.v, tamis.ALL, **case.arguments())
    assert not np.allclose(out, plain)


def test_quantized_keys_and_values(rng):
    case = decode(rng, poison=False)
    codes = rng.integers(-128, 128, case.k.shape).astype(np.int8)
    scale = rng.uniform(0.01, 0.02, (case.k.shape[0], 2)).astype(np.float32)
    bits = rng.integers(0, 0x7E, case.v.shape).astype(np.uint8)
    arguments = dict(k_format="int8", k_scale=scale, k_scale_kind="page", v_format="fp8_e4m3",
                     v_scale=np.array(0.5, np.float32))
    out = tamis.attention(case.q, codes, bits, candidates_of(case), **case.arguments(), **arguments)
    judge = tamis.attention(case.q, codes, bits, candidates_of(case), backend="reference", **case.arguments(),
                            **arguments)
    np.testing.assert_allclose(out, judge, rtol=2e-4, atol=2e-4)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_problem(data):
    """Random shapes, lists, masks and layouts."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch = draw(st.integers(1, 3))
    q_len = [draw(st.integers(0, 5)) for _ in range(batch)]
    kv_len = [draw(st.integers(0, 70)) for _ in range(batch)]
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 2), (1, 3), (2, 1)]))
    index_heads = draw(st.sampled_from(sorted({1, kv_heads, kv_heads * group})))
    unit, query_block = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([1, 2, 3]))
    rows = []
    for queries, tokens in zip(q_len, kv_len):
        for _ in range(-(-queries // query_block) * index_heads):
            most = -(-tokens // unit)
            row = rng.integers(0, most, rng.integers(0, 9)).tolist() if most else []
            rows.append(row + [-1, *row[:1]] if rng.integers(2) else row)
    case = Case(rng, q_len, kv_len, q_heads=kv_heads * group, kv_heads=kv_heads, dim=draw(st.sampled_from([8, 20])),
                v_dim=draw(st.sampled_from([8, 4])), page=draw(st.sampled_from([None, 1, 7, 16])), rows=rows,
                unit=unit, query_block=query_block, index_heads=index_heads, causal=draw(st.booleans()),
                window=draw(st.sampled_from([0, 1, 5])), sink=draw(st.sampled_from([0, 3])),
                layout=draw(st.sampled_from(["NHD", "HND"])))
    check(case, draw(st.sampled_from(["csr", "fixed"])))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_batches_without_queries_or_tokens(rng, backend, layout):
    k = np.zeros((2, 5, 4, 16), np.float32)
    out, lse = tamis.attention(np.zeros((2, 0, 4, 16), np.float32), k, k, tamis.ALL, return_lse=True, backend=backend)
    assert out.shape == (2, 0, 4, 16) and lse.shape == (2, 0, 4)
    q = rng.standard_normal((2, 3, 4, 16)).astype(np.float32)
    empty = np.zeros((2, 0, 4, 16) if layout == "NHD" else (2, 4, 0, 16), np.float32)
    given = dict(kv_layout=layout, sink=1)
    out, lse = tamis.attention(q, empty, empty, tamis.ALL, return_lse=True, backend=backend, **given)
    assert out.shape == q.shape and not out.any() and np.isneginf(lse).all()
    if backend == "cpu":
        plan = tamis.plan(q, empty, empty, tamis.ALL, **given)
        schedule = tamis.schedule(plan, tamis.normalize(plan=plan))
        assert not tamis.run(plan, schedule, q, empty, empty).any()


def test_dense_batches_of_other_requests_are_refused(rng):
    q, k = (rng.standard_normal((2, n, 2, 8)).astype(np.float32) for n in (3, 6))
    other, longer = q.reshape(3, 2, 2, 8), k.reshape(3, 4, 2, 8)
    plan = tamis.plan(q, k, k, tamis.ALL)
    schedule = tamis.schedule(plan, tamis.normalize(plan=plan))
    for name, call in (("v", lambda: tamis.attention(q, k, longer, tamis.ALL)),
                       ("out", lambda: tamis.attention(q, k, k, tamis.ALL, out=np.empty_like(other))),
                       ("q", lambda: tamis.run(plan, schedule, other, k, k)),
                       ("k", lambda: tamis.run(plan, schedule, q, longer, k)),
                       ("v", lambda: tamis.run(plan, schedule, q, k, longer)),
                       ("out", lambda: tamis.run(plan, schedule, q, k, k, out=np.empty_like(other))),
                       ("lse", lambda: tamis.run(plan, schedule, q, k, k, lse=np.empty((3, 2, 2), np.float32)))):
        with pytest.raises(tamis.Error, match=f"^invalid_argument: {name}: 3 requests, "):
            call()
    for name, call in (("out", lambda: tamis.attention(q, k, k, tamis.ALL, out=np.empty((6, 2, 8), np.float32))),
                       ("out", lambda: tamis.run(plan, schedule, q, k, k, out=np.empty((6, 2, 8), np.float32)))):
        with pytest.raises(tamis.Error, match=f"^invalid_argument: {name}: rank 3, expected 4"):
            call()
    with pytest.raises(tamis.Error, match="^invalid_argument: v: of a dense batch"):
        tamis.attention(q, k, k[0], tamis.ALL)


def test_more_queries_than_tokens_under_a_mask_need_positions(rng):
    q, k = rng.standard_normal((1, 4, 1, 8)).astype(np.float32), rng.standard_normal((1, 2, 1, 8)).astype(np.float32)
    lists = tamis.Candidates.from_dense_mask(np.ones((4, 2), bool))
    out = tamis.attention(q, k, k, lists, causal=False)
    assert not out[0, :2].any() and out[0, 2:].any()  # their positions are -2 and -1
    out = tamis.attention(q, k, k, lists, causal=False, q_pos=np.zeros(4, np.int32))
    weights = np.exp(q[0, :, 0] @ k[0, :, 0].T / 8 ** 0.5)
    np.testing.assert_allclose(out[0, :, 0], weights / weights.sum(1, keepdims=True) @ k[0, :, 0], rtol=1e-5, atol=1e-6)


def test_the_reference_shares_weight_among_equal_scores_of_any_size():
    q, k = np.full((1, 1, 1, 1), 1e10, np.float32), np.full((1, 2, 1, 1), 1e10, np.float32)
    v = np.array([1, 3], np.float32).reshape(1, 2, 1, 1)
    for backend in ("cpu", "reference"):
        assert tamis.attention(q, k, v, tamis.ALL, causal=False, backend=backend).item() == 2


def test_weights_are_rounded_where_all_three_are_bf16_alone(rng):
    q, v = (rng.standard_normal((1, n, 4, 64)).astype(ml_dtypes.bfloat16) for n in (64, 130))
    for dtype in (np.float16, np.float32):
        k = rng.standard_normal((1, 130, 4, 64)).astype(dtype)
        out = tamis.attention(q, k, v, tamis.ALL, out=np.empty(q.shape, np.float32))
        np.testing.assert_allclose(out, tamis.attention(q, k, v, tamis.ALL, backend="reference"), rtol=1e-5, atol=1e-5)


def test_a_workspace_is_for_a_device(rng):
    q = rng.standard_normal((1, 3, 2, 8)).astype(np.float32)
    for workspace in ("x", np.zeros(1 << 20, np.uint8)):
        with pytest.raises(tamis.Error, match="^invalid_argument: workspace: is for a step on a device"):
            tamis.attention(q, q, q, tamis.ALL, workspace=workspace)
