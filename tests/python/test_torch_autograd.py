"""What torch does besides reading arrays is kept or refused, never lost: traces, histories, tangents, versions."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tamis  # noqa: E402
import tamis.torch  # noqa: E402

BOTH = pytest.mark.parametrize("attention", [tamis.attention, tamis.torch.attention])


@pytest.fixture
def qk():
    torch.manual_seed(0)
    return torch.randn(1, 3, 2, 8), torch.randn(1, 5, 1, 8)


def ready(q, k):
    plan = tamis.plan(q, k, k, tamis.ALL)
    return plan, tamis.schedule(plan, tamis.normalize(plan=plan))


def refused(name, call, words=""):
    with pytest.raises(tamis.Error, match=f"^unsupported: {name}: .*{words}"):
        call()


def jit(call, *given):
    return torch.jit.trace(call, given, check_trace=False)


def fx(call, *given):
    return make_fx(call)(*given)


def fx_before_autograd(call, *given):
    return make_fx(call, pre_dispatch=True)(*given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trace", [jit, fx, fx_before_autograd])
def test_traces(qk, trace):
    q, k = qk
    traced = trace(lambda q: tamis.attention(q, k, k, tamis.ALL) * 1, q)
    other = torch.randn_like(q)
    assert torch.equal(traced(other), tamis.attention(other, k, k, tamis.ALL))
    refused("out", lambda: trace(lambda q: tamis.attention(q, k, k, tamis.ALL, out=torch.empty_like(q)), q), "records")
    refused("outs", lambda: trace(lambda q: tamis.merge_states([q], [q[..., 0].contiguous()])[0], q), "is traced")
    if trace is not fx_before_autograd:
        plan, schedule = ready(q, k)
        refused("q", lambda: trace(lambda q: tamis.run(plan, schedule, q, k, k), q), "is traced")


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_lists_of_numpy_that_change_before_a_compiled_backward(qk, backend):
    q, k = qk
    lists, lengths = np.array([[0], [1], [2]], np.int32), np.array([5], np.int32)
    layer = torch.compile(lambda q: tamis.torch.attention(
        q, k, k, tamis.Candidates(lists, index_heads=1), kv_len=lengths, sink=1, window=1), fullgraph=True, backend=backend)
    leaf = q.clone().requires_grad_()
    loss = layer(leaf).square().sum()
    before, = torch.autograd.grad(loss, leaf, retain_graph=True)
    lists[:], lengths[:] = 0, 3
    assert torch.equal(torch.autograd.grad(loss, leaf)[0], before)
    with torch.no_grad():  # and are read anew by each call
        assert torch.equal(layer(q), tamis.attention(q, k, k, tamis.Candidates(lists, index_heads=1), kv_len=lengths,
                                                     sink=1, window=1))


@BOTH
def test_masked_lists(qk, attention):
    q, k = qk
    for leaf in (q, q.clone().requires_grad_()):
        with pytest.raises(tamis.Error, match="kv_len: is a masked array"):
            attention(leaf, k, k, tamis.ALL, kv_len=np.ma.masked_array(np.array([5], np.int32), [True]))
        lists = tamis.Candidates(np.ma.masked_array(np.zeros((3, 1), np.int32), True), index_heads=1)
        with pytest.raises(tamis.Error, match="ind[a-z]*: is a masked array"):
            attention(leaf, k, k, lists)


@pytest.mark.parametrize("name", ["out", "lse"])
def test_what_merge_states_writes_has_a_new_version(name):
    part = torch.randn(3, 4), torch.randn(3)
    saved = dict(out=torch.ones(3, 4), lse=torch.ones(3))
    leaf = torch.ones_like(saved[name], requires_grad=True)
    product = leaf * saved[name]
    tamis.merge_states([part[0]], [part[1]], **saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_an_output_with_a_history_is_refused(qk):
    q, k = qk
    plan, schedule = ready(q, k)
    sums = q[..., 0].contiguous()
    for made in (lambda x: x.clone().requires_grad_(), lambda x: x.clone().requires_grad_() * 1):
        for name, call in (("out", lambda: tamis.attention(q, k, k, tamis.ALL, out=made(q))),
                           ("out", lambda: tamis.attention(q, k, k, tamis.ALL, out=tamis.View(made(q.half()), "f16"))),
                           ("out", lambda: tamis.run(plan, schedule, q, k, k, out=made(q))),
                           ("lse", lambda: tamis.run(plan, schedule, q, k, k, lse=made(sums))),
                           ("out", lambda: tamis.merge_states([q], [sums], out=made(q))),
                           ("lse", lambda: tamis.merge_states([q], [sums], lse=made(sums)))):
            refused(name, call, "requires a gradient")
            with torch.no_grad():
                call()
    with forward_ad.dual_level():
        refused("out", lambda: tamis.attention(q, k, k, tamis.ALL, out=forward_ad.make_dual(q.clone(), q)), "tangent")


def test_views_of_tensors_that_require_gradients():
    leaf = torch.randn(1, 3, 2, 8, dtype=torch.bfloat16, requires_grad=True)
    view, q = tamis.View(tamis.View(leaf, "bf16"), "bf16"), leaf.detach()
    assert view.requires_grad and not tamis.View(q, "bf16").requires_grad
    plan, schedule = ready(q, q)
    for i, name in enumerate("qkv"):
        given = [view if i == j else q for j in range(3)]
        for call in (lambda: tamis.attention(*given, tamis.ALL), lambda: tamis.run(plan, schedule, *given)):
            refused(name, call, "requires a gradient")
            with torch.no_grad():
                call()
    with forward_ad.dual_level():
        dual = tamis.View(forward_ad.make_dual(q, q), "bf16")
        refused("q", lambda: tamis.attention(dual, q, q, tamis.ALL), "tangent")
        refused("q", lambda: tamis.run(plan, schedule, dual, q, q), "tangent")


@pytest.mark.parametrize("name", ["scale", "softcap", "dropout_p"])
def test_numbers_that_are_tensors(qk, name):
    q, k = qk
    number = torch.tensor(0.5)
    with torch.no_grad():
        want = tamis.attention(q, k, k, tamis.ALL, **{name: 0.5})
    for attention in (tamis.attention, tamis.torch.attention, tamis.plan):
        leaf = number.clone().requires_grad_()
        for given in (leaf, leaf * 1):
            refused(name, lambda: attention(q, k, k, tamis.ALL, **{name: given}), "requires a gradient")
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(number, number)
            refused(name, lambda: attention(q, k, k, tamis.ALL, **{name: dual}), "tangent")
        attention(q, k, k, tamis.ALL, **{name: number})
    assert torch.equal(tamis.attention(q, k, k, tamis.ALL, **{name: number}), want)
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, x: tamis.torch.attention(q, k, k, tamis.ALL, **{name: x}), backend="aot_eager")
    refused(name, lambda: compiled(q, number.clone().requires_grad_()), "requires a gradient")


def test_tangents_of_slopes_and_scales(qk):
    q, k = qk
    codes, stored = (k * 20).to(torch.int8), torch.tensor(0.05)
    slopes = torch.ones(2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(slopes, slopes)
        for attention in (tamis.attention, tamis.torch.attention, tamis.plan):
            refused("alibi_slopes", lambda: attention(q, k, k, tamis.ALL, alibi_slopes=dual), "tangent")
        dual = forward_ad.make_dual(stored, stored)
        for side in "kv":
            arrays = [codes if side == name else k for name in "kv"]
            for attention in (tamis.attention, tamis.plan):
                refused(f"{side}_scale", lambda: attention(q, *arrays, tamis.ALL, **{
                    f"{side}_format": "int8", f"{side}_scale": dual}), "tangent")
    refused("alibi_slopes", lambda: torch.func.jvp(
        lambda x: tamis.attention(q, k, k, tamis.ALL, alibi_slopes=x), (slopes,), (slopes,)), "tangent")
