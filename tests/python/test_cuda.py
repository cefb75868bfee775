"""The step on a device, from torch: attention() and the stages, graphs, refusals, streams. Needs a device."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.cuda

import tamis
from judge import Case, csr, fixed
from test_attention import candidates_of, decode


def on_device(case, dtype=torch.bfloat16, device="cuda"):
    """(q, k, v), candidates, keyword arguments on the device; the case's own values rounded to dtype."""
    def half(array):
        return torch.from_numpy(array).to(dtype)

    case.q, case.keys, case.values = (
        half(case.q).float().numpy(), *([half(x).float().numpy() for x in xs] for xs in (case.keys, case.values)))
    arrays = tuple(torch.from_numpy(x).to(dtype).to(device) for x in (case.q, case.k, case.v))
    arguments = {name: torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value
                 for name, value in case.arguments().items()}
    return arrays, lists_on(case, device), arguments


def lists_on(case, device="cuda", form="fixed", **options):
    if case.rows is None:
        return None
    if case.rows == "all":
        return tamis.ALL
    shape = dict(unit=case.unit, query_block=case.query_block, index_heads=case.index_heads, **options)
    if form == "csr":
        indices, indptr = (torch.from_numpy(x).to(device) for x in csr(case.rows))
        return tamis.Candidates(indices, indptr, **shape)
    indices, count = (torch.from_numpy(x).to(device) for x in fixed(case.rows))
    return tamis.Candidates(indices, count=count, **shape)


def close(out, lse, case):
    expected, expected_lse = case.expected()
    np.testing.assert_allclose(out.float().cpu().numpy(), expected, rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(lse.cpu().numpy(), expected_lse, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["fixed", "csr"])
def test_attention(rng, dtype, form):
    case = decode(rng, dim=64)
    arrays, _, arguments = on_device(case, dtype)
    out, lse = tamis.attention(*arrays, lists_on(case, form=form), return_lse=True, **arguments)
    assert out.device == arrays[0].device and out.dtype == dtype and lse.dtype == torch.float32
    assert tamis.poll()["epoch"] >= 1
    close(out, lse, case)


def test_window_and_sink_alone_and_everything(rng):
    for rows, mask in ((None, dict(window=20, sink=3)), ("all", {})):
        case = decode(rng, dim=128, rows=rows, index_heads=1, **mask)
        arrays, lists, arguments = on_device(case)
        out, lse = tamis.attention(*arrays, lists, return_lse=True, **arguments)
        tamis.poll()
        close(out, lse, case)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_dense_batch(rng, layout):
    q = torch.randn(3, 2, 4, 64, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(3, 50, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    judge = torch.nn.functional.scaled_dot_product_attention(
        q.double().transpose(1, 2), *(x.double().transpose(1, 2).repeat_interleave(2, 1) for x in (k, v)),
        attn_mask=torch.ones(2, 50, device="cuda").tril(48).bool()).transpose(1, 2)
    if layout == "HND":
        k, v = (x.transpose(1, 2).contiguous() for x in (k, v))
    out = tamis.attention(q, k, v, tamis.ALL, kv_layout=layout)
    tamis.poll()
    torch.testing.assert_close(out.double(), judge, rtol=2e-2, atol=2e-2)


def test_stages_and_layers(rng):
    case = decode(rng, dim=64, poison=False)
    arrays, lists, arguments = on_device(case)
    plan = tamis.plan(*arrays, lists, **arguments)
    assert plan.on_device and plan.backend == "cuda" and plan.workspace_bytes > 0 and plan.info["kernel"]
    index = tamis.normalize(plan=plan)
    schedule = tamis.schedule(plan, index)
    out, lse = tamis.run(plan, schedule, *arrays, return_lse=True)
    assert index.poll()["unique"] == 15
    close(out, lse, case)
    torch.testing.assert_close(out, tamis.attention(*arrays, lists, **arguments), rtol=0, atol=0)
    k, v = torch.randn_like(arrays[1]), torch.randn_like(arrays[2])
    room = torch.full_like(out, torch.nan)
    assert tamis.run(plan, schedule, arrays[0], k, v, out=room) is room
    torch.testing.assert_close(room, tamis.attention(arrays[0], k, v, lists, **arguments), rtol=0, atol=0)
    with pytest.raises(tamis.Error) as caught:
        index.blocks
    assert caught.value.code == "unsupported"


def test_graph_of_a_step_with_contents_that_change(rng):
    case = decode(rng, dim=64, poison=False)
    arrays, lists, arguments = on_device(case)
    plan = tamis.plan(*arrays, lists, **arguments)
    index = tamis.normalize(plan=plan)
    schedule = tamis.schedule(plan, index)
    out, lse = tamis.run(plan, schedule, *arrays, return_lse=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tamis.normalize(plan=plan, into=index)
        tamis.run(plan, tamis.schedule(plan, index), *arrays, out=out, lse=lse)
        with pytest.raises(tamis.Error) as caught:
            index.poll()
        assert caught.value.code == "not_capturable"
    for kv_len in ([70, 33, 5], [66, 33, 5], [70, 20, 3]):
        case.kv_len[:] = kv_len
        case.rows = [[min(e, n - 1) for e in row] for row, n in zip(case.rows, np.repeat(kv_len, 2))]
        case.keys = [x[:n] for x, n in zip(case.keys, kv_len)]
        case.values = [x[:n] for x, n in zip(case.values, kv_len)]
        case.masks = case._masks()
        arguments["kv_len"].copy_(torch.tensor(kv_len))
        lists.indices[:, :5].copy_(torch.from_numpy(fixed(case.rows)[0][:, :5]))
        out.fill_(torch.nan)
        graph.replay()
        index.poll()
        close(out, lse, case)


def test_a_graph_of_attention(rng):
    case = decode(rng, dim=64)
    arrays, lists, arguments = on_device(case)
    expected = tamis.attention(*arrays, lists, **arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tamis.attention(*arrays, lists, **arguments)
    tamis.clear_cache()
    for _ in range(3):
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(out, expected, rtol=0, atol=0)


def test_a_refused_batch_is_nan_and_poll_says_why(rng):
    case = decode(rng, dim=64)
    arrays, lists, arguments = on_device(case)
    good = tamis.attention(*arrays, lists, **arguments)
    lists.indices[3, 0], lists.count[3] = 33, 1
    out, lse = tamis.attention(*arrays, lists, return_lse=True, **arguments)
    with pytest.raises(tamis.Error) as caught:
        tamis.poll()
    e = caught.value
    assert (e.code, e.request, e.row, e.value) == ("index_out_of_range", 1, 3, 33)
    assert out.isnan().all() and lse.isnan().all() and not good.isnan().any()
    plan = tamis.plan(*arrays, lists, **arguments)
    index = tamis.normalize(plan=plan)
    tamis.run(plan, tamis.schedule(plan, index), *arrays)
    with pytest.raises(tamis.Error) as caught:
        index.poll()
    assert caught.value.row == 3
    lists.count[3] = 0
    tamis.run(plan, tamis.schedule(plan, tamis.normalize(plan=plan, into=index)), *arrays, out=out)
    index.poll()
    torch.testing.assert_close(out, good, rtol=0, atol=0)


def test_a_workspace_of_the_callers(rng):
    case = decode(rng, dim=64)
    arrays, lists, arguments = on_device(case)
    plan = tamis.plan(*arrays, lists, **arguments)
    room = torch.full((plan.workspace_bytes + 512,), 0xA5, dtype=torch.uint8, device="cuda")
    out = tamis.attention(*arrays, lists, workspace=room[:plan.workspace_bytes], **arguments)
    tamis.poll(room)
    torch.testing.assert_close(out, tamis.attention(*arrays, lists, **arguments), rtol=0, atol=0)
    assert (room[plan.workspace_bytes:] == 0xA5).all()
    with pytest.raises(tamis.Error) as caught:
        tamis.attention(*arrays, lists, workspace=room[:plan.workspace_bytes - 1], **arguments)
    assert caught.value.code == "workspace_too_small" and caught.value.limit == plan.workspace_bytes
    with pytest.raises(tamis.Error, match="workspace: lies on the host"):
        tamis.attention(*arrays, lists, workspace=np.zeros(1 << 20, np.uint8), **arguments)


def test_outside_of_what_the_device_computes(rng):
    case = decode(rng, dim=64)
    arrays, lists, arguments = on_device(case)
    for changed, more, words in ((tuple(x.float() for x in arrays), {}, "q: dtype F32 on the device"),
                                 (arrays, dict(dropout_p=0.5), "dropout_p"),
                                 (arrays, dict(k_format="int8", k_scale=torch.ones((), device="cuda")), "k")):
        with pytest.raises(tamis.Error, match=words):
            tamis.attention(*changed, lists, **arguments, **more)
    for backend in ("cpu", "reference"):
        with pytest.raises(tamis.Error, match="reads memory of the host"):
            tamis.attention(*arrays, lists, backend=backend, **arguments)
    with pytest.raises(tamis.Error, match="kv_len: lies on the host, q on cuda:0"):
        tamis.attention(*arrays, lists, **{**arguments, "kv_len": torch.from_numpy(case.kv_len)})
    with pytest.raises(tamis.Error, match="out: lies on the host"):
        tamis.attention(*arrays, lists, **arguments, out=torch.empty(3, 4, 64, dtype=torch.bfloat16))


def test_streams_keep_their_order(rng):
    """The values of V are written late on a stream; a step on that stream sees them, whichever way it is named."""
    case = decode(rng, dim=64, poison=False)
    arrays, lists, arguments = on_device(case)
    q, k, v = arrays
    expected = tamis.attention(q, k, v, lists, **arguments)
    torch.cuda.synchronize()
    for named in (False, True):
        late = torch.zeros_like(v)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            late.copy_(v)
            if not named:
                out = tamis.attention(q, k, late, lists, **arguments)
        if named:
            out = tamis.attention(q, k, late, lists, stream=stream, **arguments)
        stream.synchronize()
        torch.testing.assert_close(out, expected, rtol=0, atol=0)


def test_nothing_synchronizes(rng):
    case = decode(rng, dim=64)
    arrays, lists, arguments = on_device(case)
    plan = tamis.plan(*arrays, lists, **arguments)
    index = tamis.normalize(plan=plan)
    tamis.attention(*arrays, lists, **arguments)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    busy = torch.cuda.Event()
    busy.record()
    tamis.attention(*arrays, lists, **arguments)
    tamis.run(plan, tamis.schedule(plan, tamis.normalize(plan=plan, into=index)), *arrays)
    assert not busy.query()
    torch.cuda.synchronize()
    index.poll()


def test_lists_of_other_formats_come_back_to_the_device(rng):
    case = decode(rng, dim=64)
    arrays, _, arguments = on_device(case)
    indices, indptr = (torch.from_numpy(x).cuda() for x in csr(case.rows))
    mask = torch.from_numpy(case.masks[0].swapaxes(0, 1).copy()).cuda()
    for made in (tamis.Candidates.from_csr(indptr, indices.long(), index_heads=2),
                 tamis.Candidates.from_topk(indices[:4].reshape(2, 2), index_heads=2),
                 tamis.Candidates.from_dense_mask(mask)):
        assert made.indices.is_cuda and made.indices.dtype == torch.int32
    made = tamis.Candidates.from_csr(indptr, indices.long(), index_heads=2)
    out, lse = tamis.attention(*arrays, made, return_lse=True, **arguments)
    close(out, lse, case)
    back = made.to_csr()[1]
    assert isinstance(back, np.ndarray) and back.tolist() == indices.tolist()
