"""tamis.torch: operators, gradients, compilation, checkpoints, autocast; graphs of a decode step on a device."""
import copy

import numpy as np
import pytest

import tamis
from judge import Case, csr, fixed

torch = pytest.importorskip("torch")
import tamis.torch  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

ON = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.cuda)]


def case_of(rng, dim=16, **more):
    rows = [[0, 2, 2, -1], [3], [], [1, 0], [4, 2], [0]]
    return Case(rng, q_len=[1, 2], kv_len=[70, 66], dim=dim, rows=rows, unit=16, index_heads=2, window=9, sink=3, page=16,
                **more)


def tensors(case, device, dtype=torch.float32, form="csr"):
    """(q, k, v, candidates, keywords) on a device."""
    def to(x, dtype=None):
        return None if x is None else torch.from_numpy(np.ascontiguousarray(x)).to(device=device, dtype=dtype)
    made = csr(case.rows) if form == "csr" else fixed(case.rows)
    lists = dict(zip(("indices", "indptr" if form == "csr" else "count"), map(to, made)))
    candidates = tamis.Candidates(**lists, unit=case.unit, index_heads=case.index_heads)
    keywords = {name: to(x) if isinstance(x, np.ndarray) else x for name, x in case.arguments().items()}
    return *(to(x, dtype) for x in (case.q, case.k, case.v)), candidates, keywords


def same_type(device):
    return torch.float32 if device == "cpu" else torch.bfloat16


@pytest.mark.parametrize("device", ON)
@pytest.mark.parametrize("form", ["csr", "fixed"])
def test_the_operator_computes_what_attention_does(rng, device, form):
    q, k, v, candidates, keywords = tensors(case_of(rng), device, same_type(device), form)
    out, lse = tamis.torch.attention(q, k, v, candidates, return_lse=True, **keywords)
    want, want_lse = tamis.attention(q, k, v, candidates, return_lse=True, **keywords)
    assert torch.equal(out, want) and torch.equal(lse, want_lse)
    assert not out.isnan().any() and out.abs().max() > 0


def arguments_of(q, k, v, c, keywords):
    """Of torch.ops.tamis.attention, spelled out."""
    return (q, k, v, c.indices, c.indptr, c.count, keywords["cu_q"], keywords["kv_len"], keywords["cu_kv"],
            keywords["page_table"], None, keywords["alibi_slopes"], None, None, c.form, c.unit, c.query_block,
            c.index_heads, c.duplicates, c.invalid, True, keywords["window"], keywords["sink"], None, 0.0, 0.0, 0, "NHD",
            "auto", "allow")


@pytest.mark.parametrize("device", ON)
def test_opcheck(rng, device):
    case = case_of(rng, poison=False)
    for form in ("csr", "fixed"):
        q, k, v, c, keywords = tensors(case, device, same_type(device), form)
        arguments = arguments_of(q, k, v, c, keywords)
        torch.library.opcheck(torch.ops.tamis.attention.default, arguments)
        if device == "cpu":
            for x in (q, k, v):
                x.requires_grad_()
            torch.library.opcheck(torch.ops.tamis.attention.default, arguments)
            with torch.no_grad():
                out, lse = torch.ops.tamis.attention(*arguments)
            torch.library.opcheck(torch.ops.tamis.attention_backward.default,
                                  (torch.rand_like(out), torch.rand_like(lse), out, lse, *arguments),
                                  test_utils=("test_schema", "test_faketensor"))


# --- gradients

def dense_loss(case, q, k, v, weights, lse_weights):
    """The loss in float64 over dense masks, from pages of `case`."""
    total = 0
    for b, mask in enumerate(case.masks):
        pages = torch.from_numpy(case.table[b]).long()[: -(-int(case.kv_len[b]) // case.page)]
        keys, values = (x[pages].flatten(0, 1)[: case.kv_len[b]] for x in (k, v))
        for i in range(case.q_len[b]):
            row = int(case.cu_q[b]) + i
            for h in range(q.shape[1]):
                chosen = torch.from_numpy(mask[i, h // (q.shape[1] // case.index_heads)])
                if not chosen.any():
                    continue
                g = h // (q.shape[1] // keys.shape[1])
                scores = keys[chosen, g] @ q[row, h] / q.shape[2] ** 0.5
                total = total + scores.softmax(0) @ values[chosen, g] @ weights[row, h]
                total = total + scores.logsumexp(0) * lse_weights[row, h]
    return total


def test_gradients(rng):
    case = case_of(rng, poison=False)
    q, k, v, candidates, keywords = tensors(case, "cpu")
    k, v = (x.nan_to_num() for x in (k, v))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    weights, lse_weights = torch.rand(q.shape), torch.rand(q.shape[:2])
    out, lse = tamis.torch.attention(*leaves, candidates, return_lse=True, **keywords)
    seen = lse.isfinite()
    ((out * weights).sum() + (lse * lse_weights)[seen].sum()).backward()
    want = [x.double().requires_grad_() for x in (q, k, v)]
    dense_loss(case, *want, weights.double(), lse_weights.double()).backward()
    for got, x in zip(leaves, want):
        torch.testing.assert_close(got.grad.double(), x.grad, rtol=1e-4, atol=1e-5)


def test_one_input_may_be_constant(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng, poison=False), "cpu")
    k = k.nan_to_num().requires_grad_()
    tamis.torch.attention(q, k, v.nan_to_num(), candidates, **keywords).sum().backward()
    assert q.grad is None and k.grad.abs().sum() > 0


def test_attention_takes_the_operator_where_gradients_are_wanted(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng, poison=False), "cpu")
    q.requires_grad_()
    tamis.attention(q, k.nan_to_num(), v.nan_to_num(), candidates, **keywords).sum().backward()
    assert q.grad.abs().sum() > 0


def test_gradients_of_results_that_are_used_transposed():
    leaves = [torch.randn(2, n, h, 8, requires_grad=True) for n, h in ((5, 4), (9, 2), (9, 2))]
    weights, lse_weights = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5)
    found = []
    for turned in (lambda x: x.transpose(1, 2).contiguous(), lambda x: x.transpose(1, 2)):
        out, lse = tamis.torch.attention(*leaves, tamis.ALL, return_lse=True)
        loss = (turned(out) * weights).sum() + (turned(lse) * lse_weights).sum()
        found.append(torch.autograd.grad(loss, leaves))
    want = [x.detach().clone().requires_grad_() for x in leaves]
    q, k, v = (x.transpose(1, 2) for x in want)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(5, 9).tril(4).bool(), enable_gqa=True)
    scores = (q @ k.repeat_interleave(2, 1).transpose(2, 3) / 8 ** 0.5).masked_fill(
        ~torch.ones(5, 9).tril(4).bool(), -torch.inf)
    ((expected * weights).sum() + (scores.logsumexp(-1) * lse_weights).sum()).backward()
    for gradients in found:
        for got, x in zip(gradients, want):
            torch.testing.assert_close(got, x.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["csr", "fixed"])
def test_lists_and_lengths_of_numpy(rng, form):
    q, k, v, c, keywords = tensors(case_of(rng, poison=False), "cpu", form=form)
    k, v = k.nan_to_num(), v.nan_to_num()
    host = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in keywords.items()}
    host["page_table"].flags.writeable = False
    host["kv_len"] = np.repeat(host["kv_len"], 2)[::2]
    lists = tamis.Candidates(*(None if x is None else x.numpy() for x in (c.indices, c.indptr, c.count)), unit=16,
                             index_heads=2)
    found = []
    for candidates, more in ((c, keywords), (lists, host)):
        for attention in (tamis.attention, tamis.torch.attention):
            leaf = q.clone().requires_grad_()
            attention(leaf, k, v, candidates, **more).square().sum().backward()
            found.append(leaf.grad)
    assert all(torch.equal(found[0], x) for x in found[1:])
    host["page_table"] = host["page_table"].copy()  # Dynamo itself has no arrays that are read-only
    layer = torch.compile(lambda q: tamis.torch.attention(q, k, v, lists, **host) * 2, fullgraph=True,
                          backend="aot_eager")
    assert torch.equal(layer(q), 2 * tamis.attention(q, k, v, c, **keywords))


def test_what_is_no_tensor_is_named(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng), "cpu")
    for i, name in enumerate("qkv"):
        given = [x.numpy() if i == j else x for j, x in enumerate((q, k, v))]
        with pytest.raises(TypeError, match=f"^{name}: expected a torch tensor, not ndarray"):
            tamis.torch.attention(*given, candidates, **keywords)
    keywords["causal"] = np.True_
    for name, value in (("kv_layout", 3), ("fallback", None), ("backend", 3)):
        with pytest.raises(tamis.Error, match=f"^invalid_argument: {name}: {value} is none of"):
            tamis.torch.attention(q, k, v, candidates, **{**keywords, name: value})
    for name in ("unit", "query_block", "index_heads", "duplicates", "invalid"):
        lists = copy.copy(candidates)
        setattr(lists, name, "x")
        with pytest.raises((TypeError, tamis.Error), match=f"{name}: "):
            tamis.torch.attention(q, k, v, lists, **keywords)
    for name, value in (("scale", "1"), ("window", 1.5), ("causal", 3), ("softcap", None), ("return_lse", "yes")):
        with pytest.raises(TypeError, match=f"^{name}: expected"):
            tamis.torch.attention(q, k, v, candidates, **{**keywords, name: value})
    nothing = dict.fromkeys(("k_format", "v_format", "k_scale", "v_scale", "k_scale_kind", "v_scale_kind"))
    tamis.torch.attention(q, k, v, candidates, **keywords, **nothing)
    for name in nothing:
        with pytest.raises(tamis.Error, match=f"^unsupported: {name}: "):
            tamis.torch.attention(q, k, v, candidates, **keywords, **{**nothing, name: "int8"})
    with pytest.raises(TypeError, match="^kv_len: expected a torch tensor or an array of NumPy, not list"):
        tamis.torch.attention(q, k, v, candidates, **{**keywords, "kv_len": [1, 2]})
    with pytest.raises(tamis.Error, match="^unsupported: page_table: is of View"):
        tamis.torch.attention(q, k, v, candidates, **{**keywords, "page_table": tamis.View(np.zeros(2, np.uint16), "bf16")})


def test_the_reference_computes_no_gradients():
    q = torch.randn(1, 3, 2, 8)
    leaf = q.clone().requires_grad_()
    for attention in (tamis.attention, tamis.torch.attention):
        with pytest.raises(tamis.Error, match="backend: the reference computes no gradients") as caught:
            attention(leaf, q, q, tamis.ALL, backend="reference")
        assert caught.value.code == "unsupported"
        assert attention(q, q, q, tamis.ALL, backend="reference").dtype == torch.float64
        with torch.no_grad():
            assert attention(leaf, q, q, tamis.ALL, backend="reference").dtype == torch.float64
    compiled = torch.compile(lambda q: tamis.torch.attention(q, q, q, tamis.ALL, backend="reference") * 2,
                             fullgraph=True, backend="aot_eager")
    assert compiled(q).dtype == torch.float64


def test_transforms_of_functions_are_refused():
    q = torch.randn(1, 3, 2, 8)
    for attention in (tamis.attention, tamis.torch.attention):
        for i, name in enumerate("qkv"):
            def loss(x):
                return attention(*(x if i == j else q for j in range(3)), tamis.ALL).sum()
            with pytest.raises(tamis.Error, match=f"{name}: has a tangent") as caught:
                torch.func.jvp(loss, (q,), (q,))
            assert caught.value.code == "unsupported"
            with pytest.raises(RuntimeError):
                torch.func.grad(loss)(q)
            with torch.autograd.forward_ad.dual_level():
                with pytest.raises(tamis.Error, match=f"{name}: has a tangent"):
                    loss(torch.autograd.forward_ad.make_dual(q, q))
                assert attention(q, q, q, tamis.ALL).shape == q.shape


def test_slopes_have_no_gradients():
    q, slopes = torch.randn(1, 3, 2, 8), torch.ones(2, requires_grad=True)
    for call in (lambda: tamis.attention(q, q, q, tamis.ALL, alibi_slopes=slopes),
                 lambda: tamis.torch.attention(q, q, q, tamis.ALL, alibi_slopes=slopes),
                 lambda: tamis.attention(q.clone().requires_grad_(), q, q, tamis.ALL, alibi_slopes=slopes),
                 lambda: tamis.plan(q, q, q, tamis.ALL, alibi_slopes=slopes)):
        with pytest.raises(tamis.Error, match="alibi_slopes: requires a gradient") as caught:
            call()
        assert caught.value.code == "unsupported"
    with torch.no_grad():
        tamis.attention(q, q, q, tamis.ALL, alibi_slopes=slopes)


def test_second_derivatives_are_refused(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng, poison=False), "cpu")
    q.requires_grad_()
    out = tamis.torch.attention(q, k.nan_to_num(), v.nan_to_num(), candidates, **keywords)
    d_q, = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises((tamis.Error, RuntimeError), match="second derivatives"):
        d_q.sum().backward()


def test_lists_changed_before_the_backward_are_noticed(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng, poison=False), "cpu")
    q.requires_grad_()
    out = tamis.torch.attention(q, k.nan_to_num(), v.nan_to_num(), candidates, **keywords)
    candidates.indices[0] = 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.cuda
def test_gradients_on_a_device_are_refused(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng), "cuda", torch.bfloat16)
    with pytest.raises(tamis.Error, match="gradient") as refused:
        tamis.torch.attention(q.requires_grad_(), k, v, candidates, **keywords)
    assert refused.value.code == "unsupported"


# --- compile, checkpoint, autocast, dropout

@pytest.mark.parametrize("device", ON)
def test_compiled_whole(rng, device):
    q, k, v, candidates, keywords = tensors(case_of(rng), device, same_type(device))
    q.requires_grad_(device == "cpu")

    def layer(q, k, v, indices):
        lists = tamis.Candidates(indices, candidates.indptr, unit=16, index_heads=2)
        return tamis.torch.attention(q * 2, k, v, lists, **keywords) + 1

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager" if device == "cpu" else "inductor")
    got, want = compiled(q, k, v, candidates.indices), layer(q, k, v, candidates.indices)
    assert torch.equal(got, want)
    if device == "cpu":
        d_got, = torch.autograd.grad(got.sum(), q)
        d_want, = torch.autograd.grad(want.sum(), q)
        assert torch.equal(d_got, d_want)


def test_attention_is_the_operator_where_it_is_compiled(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng), "cpu")
    want = tamis.attention(q, k, v, candidates, **keywords) + 1

    def layer(q, k, v, indices):
        lists = tamis.Candidates(indices, candidates.indptr, unit=16, index_heads=2)
        return tamis.attention(q, k, v, lists, **keywords) + 1

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v, candidates.indices), want)
    with torch.autocast("cpu", torch.bfloat16):  # as the operator
        assert compiled(q, k, v, candidates.indices).dtype == torch.bfloat16
        assert layer(q, k, v, candidates.indices).dtype == torch.float32


def test_what_the_operator_does_not_take_is_computed_between_compiled_graphs(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng, poison=False), "cpu")
    codes, out = (k.nan_to_num() * 20).to(torch.int8), torch.empty_like(q)
    quantized = dict(k_format="int8", k_scale=torch.tensor(0.05))

    def layer(q, k, v):
        return tamis.attention(q * 2, k, v, candidates, **quantized, out=out, **keywords) + 1

    want = layer(q, codes, v)
    assert torch.equal(torch.compile(layer, backend="aot_eager")(q, codes, v), want)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(layer, backend="aot_eager", fullgraph=True)(q, codes, v)


def test_checkpoint_runs_the_same_sets_and_the_same_dropout_again(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng, poison=False), "cpu")
    k, v = k.nan_to_num(), v.nan_to_num()
    calls = []

    def layer(q):
        calls.append(1)
        return tamis.torch.attention(q, k, v, candidates, dropout_p=0.3, dropout_seed=2**64 - 5, **keywords)

    gradients = []
    for run in (layer, lambda q: checkpoint(layer, q, use_reentrant=False)):
        leaf = q.clone().requires_grad_()
        run(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients) and len(calls) == 3


def test_dropout_follows_the_seed(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng), "cpu")
    outs = [tamis.torch.attention(q, k, v, candidates, dropout_p=0.5, dropout_seed=seed, **keywords)
            for seed in (1, 1, 2**64 - 1)]
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    assert torch.equal(outs[2], tamis.attention(q, k, v, candidates, dropout_p=0.5, dropout_seed=2**64 - 1, **keywords))


@pytest.mark.parametrize("device", ON)
def test_autocast_casts_q_k_and_v(rng, device):
    case = case_of(rng)
    q, k, v, candidates, keywords = tensors(case, device)
    with torch.autocast(device, torch.bfloat16):
        out = tamis.torch.attention(q, k.bfloat16(), v, candidates, **keywords)
    assert out.dtype == torch.bfloat16
    want = tamis.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), candidates, **keywords)
    assert torch.equal(out, want)


def test_autocast_leaves_other_dtypes_alone():
    q, k = torch.randn(1, 3, 2, 8), torch.randn(1, 5, 1, 8)
    with torch.autocast("cpu", torch.bfloat16):
        for name, given in (("q", (q.double(), k, k)), ("k", (q, k.double(), k)), ("k", (q, (k * 20).to(torch.int8), k)),
                            ("v", (q, k, k.int())), ("q", (q > 0, k, k))):
            with pytest.raises(tamis.Error, match=f"^invalid_argument: {name}: dtype "):
                tamis.torch.attention(*given, tamis.ALL)


def test_tensors_without_memory_have_shapes():
    q, k = torch.empty(1, 3, 2, 8, device="meta"), torch.empty(1, 5, 1, 8, device="meta")
    out, lse = tamis.torch.attention(q, k, k, tamis.ALL, return_lse=True)
    assert out.shape == q.shape and lse.shape == q.shape[:3] and out.device.type == "meta"


@pytest.mark.parametrize("name, value", [("causal", 2), ("causal", None), ("return_lse", "yes")])
def test_flags_of_compiled_calls(name, value):
    q = torch.randn(1, 3, 2, 8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda q: tamis.torch.attention(q, q, q, tamis.ALL, **{name: value}), backend="aot_eager")
    with pytest.raises(TypeError, match=f"^{name}: expected True or False"):
        compiled(q)


@pytest.mark.parametrize("device", ON)
def test_errors_are_named(rng, device):
    q, k, v, candidates, keywords = tensors(case_of(rng), device, same_type(device))
    with pytest.raises(tamis.Error) as refused:
        tamis.torch.attention(q, k, v, candidates, **{**keywords, "kv_len": keywords["kv_len"][:1]})
    assert refused.value.code == "invalid_argument"
    with pytest.raises(tamis.Error, match="cu_q"):
        tamis.torch.attention(q, k, v, candidates, **{**keywords, "cu_q": None})


# --- CUDA graphs

@pytest.mark.cuda
class TestDecodeGraph:
    def graph(self, rng, **more):
        case = case_of(rng, dim=64, poison=False)
        q, k, v, candidates, keywords = tensors(case, "cuda", torch.bfloat16, "fixed")
        k, v = k.nan_to_num(), v.nan_to_num()
        return tamis.torch.DecodeGraph(q, k, v, candidates, **keywords, **more), q, k, v, candidates, keywords

    def test_a_replay_is_the_step(self, rng):
        graph, q, k, v, candidates, keywords = self.graph(rng, return_lse=True)
        out, lse = graph.replay()
        want, want_lse = tamis.attention(q, k, v, candidates, return_lse=True, **keywords)
        torch.cuda.synchronize()
        assert torch.equal(out, want) and torch.equal(lse, want_lse)
        assert graph.poll()["raw"] > 0

    def test_rebinding_changes_nothing_and_update_does(self, rng):
        graph, q, k, v, candidates, keywords = self.graph(rng)
        first = graph.replay().clone()
        q.mul_(-1)
        candidates.indices.fill_(0)
        assert torch.equal(graph.replay(), first)
        indices = candidates.indices.clone()
        indices[:, 0] = 3
        graph.update(q=q, indices=indices)
        out = graph.replay().clone()
        lists = tamis.Candidates(indices, count=candidates.count, unit=16, index_heads=2)
        assert torch.equal(out, tamis.attention(q, k, v, lists, **keywords)) and not torch.equal(out, first)

    def test_k_and_v_are_the_given_ones(self, rng):
        graph, q, k, v, candidates, keywords = self.graph(rng)
        first = graph.replay().clone()
        v.mul_(2)
        torch.testing.assert_close(graph.replay(), first * 2, rtol=1e-2, atol=1e-2)

    def test_what_does_not_fit_is_refused_and_nothing_copied(self, rng):
        graph, q, k, v, candidates, keywords = self.graph(rng)
        first = graph.replay().clone()
        with pytest.raises(tamis.Error, match="kv_len: shape"):
            graph.update(q=-q, kv_len=keywords["kv_len"][:1])
        with pytest.raises(tamis.Error, match="q: dtype"):
            graph.update(q=q.float())
        with pytest.raises(TypeError, match="k: "):
            graph.update(k=k)
        assert torch.equal(graph.replay(), first)

    def test_a_bad_step_is_polled_and_the_next_good_one_is_right(self, rng):
        graph, q, k, v, candidates, keywords = self.graph(rng)
        first = graph.replay().clone()
        table = keywords["page_table"]
        graph.update(page_table=torch.full_like(table, 10**6))
        assert graph.replay().isnan().all()
        with pytest.raises(tamis.Error) as refused:
            graph.poll()
        assert refused.value.code == "page_out_of_range" and refused.value.value == 10**6
        graph.update(page_table=table)
        assert torch.equal(graph.replay(), first)


def test_a_graph_needs_a_device(rng):
    q, k, v, candidates, keywords = tensors(case_of(rng), "cpu")
    with pytest.raises(tamis.Error, match="CUDA device"):
        tamis.torch.DecodeGraph(q, k, v, candidates, **keywords)
