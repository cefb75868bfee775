"""Arrays of JAX and CuPy, where they are installed: the same results as with NumPy, in arrays of their own."""
import numpy as np
import pytest

import tamis
from test_attention import candidates_of, decode


def moved(case, to):
    """((q, k, v), candidates, keywords) with every array through `to`."""
    lists = candidates_of(case)
    candidates = tamis.Candidates(*(None if x is None else to(x) for x in (lists.indices, lists.indptr, lists.count)),
                                  unit=lists.unit, query_block=lists.query_block, index_heads=lists.index_heads)
    keywords = {name: to(x) if isinstance(x, np.ndarray) else x for name, x in case.arguments().items()}
    return [to(x) for x in (case.q, case.k, case.v)], candidates, keywords


def narrow(x):
    """Without 64-bit integers, which JAX turns into 32 bits unless told otherwise."""
    return x.astype(np.int32) if x.dtype == np.int64 else x


def test_jax_on_the_host(rng):
    jax = pytest.importorskip("jax")
    cpu = jax.devices("cpu")[0]
    case = decode(rng)
    arrays, candidates, keywords = moved(case, lambda x: jax.device_put(narrow(x), cpu))
    out, lse = tamis.attention(*arrays, candidates, return_lse=True, **keywords)
    want, want_lse = tamis.attention(case.q, case.k, case.v, candidates_of(case), return_lse=True, **case.arguments())
    assert isinstance(out, jax.Array) and isinstance(lse, jax.Array)
    np.testing.assert_array_equal(np.asarray(out), want)
    np.testing.assert_array_equal(np.asarray(lse), want_lse)


@pytest.mark.cuda
def test_cupy(rng):
    cupy = pytest.importorskip("cupy")
    case = decode(rng, dim=64, dtype=np.float16)
    arrays, candidates, keywords = moved(case, cupy.asarray)
    out, lse = tamis.attention(*arrays, candidates, return_lse=True, **keywords)
    assert isinstance(out, cupy.ndarray) and out.dtype == np.float16
    want, want_lse = case.expected()
    np.testing.assert_allclose(out.get().astype(np.float64), want, rtol=4e-3, atol=4e-3)
    np.testing.assert_allclose(lse.get(), want_lse, rtol=1e-3, atol=1e-3)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        again = tamis.attention(*arrays, candidates, **keywords)
    stream.synchronize()
    np.testing.assert_array_equal(again.get(), out.get())


@pytest.mark.cuda
def test_jax_on_a_device_needs_room_for_the_result(rng):
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    if jax.default_backend() != "gpu":
        pytest.skip("a JAX without CUDA")
    case = decode(rng, dim=64, dtype=np.float16)
    arrays, candidates, keywords = moved(case, lambda x: jax.device_put(narrow(x)))
    jax.block_until_ready(arrays)
    with pytest.raises(tamis.Error, match="out: is missing"):
        tamis.attention(*arrays, candidates, **keywords)
    plan = tamis.plan(*arrays, candidates, **keywords)
    out = torch.empty(case.q.shape, dtype=torch.float16, device="cuda")
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    tamis.attention(*arrays, candidates, out=out, workspace=workspace, stream=torch.cuda.current_stream(), **keywords)
    tamis.poll(workspace)
    np.testing.assert_allclose(out.cpu().numpy().astype(np.float64), case.expected()[0], rtol=4e-3, atol=4e-3)
