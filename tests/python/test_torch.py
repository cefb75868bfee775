"""torch tensors on the CPU; the same on a device is test_cuda.py's."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tamis
import tamis.block_sparse
from test_attention import candidates_of, decode


def tensors(case):
    """The case's arguments as tensors, sharing memory."""
    arguments = {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
                 for name, value in case.arguments().items()}
    return (torch.from_numpy(case.q), torch.from_numpy(case.k), torch.from_numpy(case.v)), arguments


def test_same_bits_as_numpy(rng):
    case = decode(rng)
    expected, expected_lse = tamis.attention(case.q, case.k, case.v, candidates_of(case), return_lse=True,
                                             **case.arguments())
    arrays, arguments = tensors(case)
    out, lse = tamis.attention(*arrays, candidates_of(case), return_lse=True, **arguments)
    assert isinstance(out, torch.Tensor) and out.dtype == lse.dtype == torch.float32
    np.testing.assert_array_equal(out.numpy(), expected)
    np.testing.assert_array_equal(lse.numpy(), expected_lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(rng, dtype):
    q, k, v = (torch.from_numpy(rng.standard_normal((2, 5, 2, 16)).astype(np.float32)).to(dtype) for _ in range(3))
    out = tamis.attention(q, k, v, tamis.ALL)
    assert out.dtype == dtype and out.shape == q.shape
    judge = torch.nn.functional.scaled_dot_product_attention(
        *(x.double().transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
    torch.testing.assert_close(out.double(), judge, rtol=2e-2, atol=2e-2)


def test_stages(rng):
    case = decode(rng)
    arrays, arguments = tensors(case)
    plan = tamis.plan(*arrays, candidates_of(case), **arguments)
    schedule = tamis.schedule(plan, tamis.normalize(plan=plan))
    out, lse = torch.full((3, 4, 16), torch.nan), torch.full((3, 4), torch.nan)
    assert tamis.run(plan, schedule, *arrays, out=out, lse=lse) is out
    np.testing.assert_array_equal(
        out, tamis.attention(case.q, case.k, case.v, candidates_of(case), **case.arguments()))
    assert isinstance(tamis.run(plan, schedule, *arrays), torch.Tensor)


def test_views_and_strides(rng):
    q = torch.from_numpy(rng.standard_normal((1, 2, 4, 16)).astype(np.float32))
    k, v = (torch.from_numpy(rng.standard_normal((1, 2, 7, 16)).astype(np.float32)) for _ in range(2))
    out = tamis.attention(q, k, v, tamis.ALL, kv_layout="HND")
    moved = tamis.attention(q, k.transpose(1, 2), v.transpose(1, 2), tamis.ALL)
    torch.testing.assert_close(out, moved, rtol=0, atol=0)
    parameter = torch.nn.Parameter(q, requires_grad=False)
    torch.testing.assert_close(tamis.attention(parameter, k, v, tamis.ALL, kv_layout="HND"), out, rtol=0, atol=0)


def test_gradients_are_not_lost_silently(rng):
    q, k, v = (torch.zeros(1, 2, 2, 8) for _ in range(3))
    v.requires_grad_()
    assert tamis.attention(q, k, v, tamis.ALL).requires_grad
    for name, given in (("out", torch.empty_like(q)), ("stream", 0), ("k_format", "int8")):
        with pytest.raises(tamis.Error, match=f"{name}: cannot be given") as caught:
            tamis.attention(q, k, v, tamis.ALL, **{name: given})
        assert caught.value.code == "unsupported"
    with torch.no_grad():
        assert not tamis.attention(q, k, v, tamis.ALL, out=torch.empty_like(q)).requires_grad
    assert not tamis.attention(q, k, v.detach(), tamis.ALL).requires_grad


def test_stages_do_not_lose_gradients_silently():
    q = torch.randn(1, 2, 2, 8)
    leaf = q.clone().requires_grad_()
    plan = tamis.plan(leaf, q, q, tamis.ALL)
    schedule = tamis.schedule(plan, tamis.normalize(plan=plan))
    rows = [x[0] for x in (q, q, q)]
    sparse = tamis.block_sparse.BlockSparseAttention()
    sparse.plan(np.array([0, 1], np.int32), np.array([0], np.int32), 2, 2, 2, 2, 2, 2, 8)
    lses = [torch.zeros(2, requires_grad=True), torch.zeros(2)]
    outs = [torch.zeros(2, 4), torch.zeros(2, 4, requires_grad=True)]
    calls = {"outs": lambda: tamis.merge_states(outs, [lses[1]] * 2),
             "lses": lambda: tamis.merge_states(outs[:1] * 2, lses)}
    for i, name in enumerate("qkv"):
        calls[name] = lambda i=i: tamis.run(plan, schedule, *(leaf if i == j else q for j in range(3)))
        calls[f"{name} "] = lambda i=i: sparse.run(*(leaf[0] if i == j else rows[j] for j in range(3)))
        calls[f"{name}  "] = lambda i=i: tamis.run(plan, schedule, *(leaf if i == j else q for j in range(3)),
                                                   out=torch.empty_like(q))
    for name, call in calls.items():
        with pytest.raises(tamis.Error, match=f"^unsupported: {name.strip()}: requires a gradient") as caught:
            call()
        assert caught.value.code == "unsupported"
        with torch.no_grad():
            call()


def test_views_that_memory_does_not_show():
    q = torch.ones(1, 2, 2, 8)
    with pytest.raises(tamis.Error, match="k: is a negated view"):
        tamis.attention(q, torch._neg_view(q), q, tamis.ALL)


def test_negated_views_anywhere(rng):
    case = decode(rng)
    arrays, arguments = tensors(case)
    lists = candidates_of(case)
    slopes = torch._neg_view(torch.ones(4))
    with pytest.raises(tamis.Error, match="alibi_slopes: is a negated view"):
        tamis.attention(*arrays, lists, **dict(arguments, alibi_slopes=slopes))
    with pytest.raises(tamis.Error, match="kv_len: is a negated view"):
        tamis.attention(*arrays, lists, **dict(arguments, kv_len=torch._neg_view(-arguments["kv_len"])))
    with pytest.raises(tamis.Error, match="out: is a negated view"):
        tamis.attention(*arrays, lists, out=torch._neg_view(torch.empty_like(arrays[0])), **arguments)
    with pytest.raises(tamis.Error, match="outs: is a negated view"):
        tamis.merge_states([torch._neg_view(torch.ones(2, 4))], [torch.zeros(2)])


def test_negated_views_of_a_run(tmp_path):
    q, k = torch.randn(1, 3, 4, 8), torch.randn(1, 5, 2, 8)
    plan = tamis.plan(q, k, k, tamis.ALL)
    schedule = tamis.schedule(plan, tamis.normalize(plan=plan))
    arrays = dict(q=q, k=k, v=k.clone(), out=torch.empty_like(q))
    tamis.run(plan, schedule, **arrays)
    for name in arrays:
        with pytest.raises(tamis.Error, match=f"{name}: is a negated view") as caught:
            tamis.run(plan, schedule, **dict(arrays, **{name: torch._neg_view(arrays[name])}))
        assert caught.value.code == "unsupported"
    with pytest.raises(tamis.Error, match="d_out: is a negated view"):
        tamis.save_case(tmp_path / "case", q, k, k, tamis.ALL, d_out=torch._neg_view(q))


def test_tangents_are_not_lost():
    q, k = torch.randn(1, 3, 4, 8), torch.randn(1, 5, 2, 8)
    plan = tamis.plan(q, k, k, tamis.ALL)
    schedule = tamis.schedule(plan, tamis.normalize(plan=plan))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(tamis.Error, match="q: has a tangent"):
            tamis.run(plan, schedule, dual, k, k)
        with pytest.raises(tamis.Error, match="outs: has a tangent"):
            tamis.merge_states([dual[0]], [torch.zeros(3, 4)])


def test_numpy_lists_that_change_before_the_backward():
    lists = np.array([[0], [1]], np.int32)
    q, k = torch.randn(1, 2, 4, 8, requires_grad=True), torch.randn(1, 9, 2, 8)

    def gradient(change):
        given = lists.copy()
        out = tamis.attention(q, k, k, tamis.Candidates(given, index_heads=1), causal=False)
        given[:] = change
        return torch.autograd.grad(out.square().sum(), q)[0]
    assert torch.equal(gradient(lists), gradient(5))


def test_tensors_that_have_no_memory():
    q = torch.zeros(1, 2, 2, 8)
    with pytest.raises(tamis.Error, match="k: the array cannot be read: Cannot pack tensors on meta$"):
        tamis.attention(q, torch.empty(1, 2, 2, 8, device="meta"), q, tamis.ALL)
    with pytest.raises(tamis.Error, match="k: the array cannot be read"):
        tamis.attention(q, torch.zeros(2, 2).to_sparse(), q, tamis.ALL)
    with pytest.raises(tamis.Error, match="q: dtype of DLPack code 5"):
        tamis.attention(q.to(torch.complex64), q, q, tamis.ALL)


def test_the_slow_way_in(rng, monkeypatch):
    """torch from before the C exchange interface: a tensor that has __dlpack__ alone."""
    class Old:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, *, stream=None):
            return self.tensor.__dlpack__(stream=stream)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    q, k, v = (torch.from_numpy(rng.standard_normal((1, 3, 2, 8)).astype(np.float32)) for _ in range(3))
    expected = tamis.attention(q, k, v, tamis.ALL)
    np.testing.assert_array_equal(tamis.attention(*map(Old, (q, k, v)), tamis.ALL), expected)


def test_numbers_and_flags_that_torch_compile_knows_by_name_alone():
    q, k = torch.randn(2, 6, 4, 16), torch.randn(2, 9, 2, 16)
    by_scale = torch.compile(lambda q, k, scale: tamis.attention(q, k, k, tamis.ALL, scale=scale), fullgraph=True,
                             dynamic=True, backend="aot_eager")
    for scale in (.2, .3):
        assert torch.allclose(by_scale(q, k, scale), tamis.attention(q, k, k, tamis.ALL, scale=scale))
    by_shape = torch.compile(lambda q, k: tamis.attention(q, k, k, tamis.ALL, causal=q.shape[1] > 1), fullgraph=True,
                             backend="aot_eager")
    for queries in (6, 7, 1):
        q = torch.randn(2, queries, 4, 16)
        assert torch.allclose(by_shape(q, k), tamis.attention(q, k, k, tamis.ALL, causal=queries > 1))


def test_views_of_arrays_that_call_something_else_requires_grad():
    class Foreign:
        requires_grad = None

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    k = np.zeros((1, 3, 1, 8), np.float32)
    q = tamis.View(Foreign(np.zeros((1, 2, 1, 8), np.uint16)), "bf16")
    assert tamis.attention(q, k, k, tamis.ALL).shape == (1, 2, 1, 8)
