"""Arguments of steps on a device, as far as the host judges them: no device is needed."""
import gc

import numpy as np
import pytest

import tamis
from judge import fixed
from pretend import Pretend, bits
from test_attention import decode

needs_cuda = pytest.mark.skipif(not tamis.build_info()["cuda"], reason="a build without CUDA")


def step(rng, **changes):
    """(q, k, v), keyword arguments: all on the device that is not there."""
    case = decode(rng, dim=64)
    indices, count = fixed(case.rows)
    arrays = tuple(bits(x) for x in (case.q, case.k, case.v))
    arguments = {name: Pretend(value) if isinstance(value, np.ndarray) else value
                 for name, value in case.arguments().items()}
    lists = tamis.Candidates(Pretend(indices), count=Pretend(count), index_heads=2)
    return arrays, lists, {**arguments, **changes}


def out_of(arrays):
    return bits(np.zeros((3, 4, 64), np.float32))


def refused(words, call, code="invalid_argument"):
    with pytest.raises(tamis.Error, match=words) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def test_arrays_of_two_places_are_named(rng):
    arrays, lists, arguments = step(rng)
    for changed, words in ((dict(kv_len=np.array([70, 33, 5], np.int32)), "kv_len: lies on the host, q on cuda:0"),
                           (dict(kv_len=Pretend(np.array([70, 33, 5], np.int32), (2, 1))),
                            "kv_len: lies on cuda:1, q on cuda:0")):
        refused(words, lambda: tamis.attention(*arrays, lists, **{**arguments, **changed}))
    if not tamis.build_info()["cuda"]:
        return
    host = np.zeros((3, 4, 64), np.float16)
    refused("out: lies on the host, q on cuda:0", lambda: run_with(rng, out=host))
    refused("k: lies on cuda:1, q on cuda:0", lambda: run_with(rng, k=Pretend(host, (2, 1))))
    refused("q: lies on the host, the plan is one of cuda:0", lambda: run_with(rng, q=host, k=host, v=host, out=host))


def run_with(rng, q=None, k=None, v=None, out=None, lse=None):
    """A run of the module's own step, whose buffers are never reached."""
    from tamis import _core
    arrays, lists, arguments = step(rng)
    plan = tamis.plan(*arrays, lists, **arguments)
    ready = _core.DeviceStep(plan._core, plan._problem, (256, 512, 768), plan.workspace_sizes, 0, ())
    given = [old if new is None else new for new, old in zip((q, k, v, out), (*arrays, out_of(arrays)))]
    ready.run(*given, lse, None)


def test_backends_and_places(rng):
    arrays, lists, arguments = step(rng)
    for backend in ("cpu", "reference"):
        refused(f"backend: {backend} reads memory of the host, q lies on a device",
                lambda: tamis.attention(*arrays, lists, backend=backend, **arguments))
        refused(f"backend: {backend}", lambda: tamis.plan(*arrays, lists, backend=backend, **arguments))


@pytest.mark.parametrize("device, words", [((1, 0), None), ((3, 0), None), ((10, 0), "q: lies on a device of DLPack type 10")])
def test_device_types(rng, device, words):
    q, k, v = (Pretend(rng.standard_normal((1, 2, 2, 8)).astype(np.float32), device) for _ in range(3))
    if words is not None:
        refused(words, lambda: tamis.attention(q, k, v, tamis.ALL))
        return
    expected = tamis.attention(q.array, k.array, v.array, tamis.ALL)  # pinned memory is the host's
    np.testing.assert_array_equal(tamis.attention(q, k, v, tamis.ALL), expected)


def test_lanes_offsets_and_missing_strides(rng):
    q, k, v = (rng.standard_normal((1, 2, 2, 8)).astype(np.float32) for _ in range(3))
    expected = tamis.attention(q, k, v, tamis.ALL)
    for options in (dict(dense=True), dict(offset=64)):
        pretended = [Pretend(x, (1, 0), **options) for x in (q, k, v)]
        np.testing.assert_array_equal(tamis.attention(*pretended, tamis.ALL), expected)
        gc.collect()
        for exporter in pretended:  # what was lent went back
            assert exporter.deleted == len(exporter.streams) > 0
    refused("q: dtype of DLPack code 2, 32 bits, 4 lanes",
            lambda: tamis.attention(Pretend(q, (1, 0), lanes=4), k, v, tamis.ALL))


def test_no_producer_is_asked_to_synchronize(rng):
    arrays, lists, arguments = step(rng)
    with pytest.raises(tamis.Error):
        tamis.attention(*arrays, lists, **arguments)
    assert all(stream == -1 for array in (*arrays, arguments["kv_len"]) for stream in array.streams)
    assert all(array.streams for array in arrays)


def test_memory_is_allocated_by_frameworks_alone(rng):
    arrays, lists, arguments = step(rng)
    refused("out: is missing: device memory is allocated by torch and CuPy only",
            lambda: tamis.attention(*arrays, lists, **arguments))
    out = out_of(arrays)
    if tamis.build_info()["cuda"]:
        refused("workspace: is missing", lambda: tamis.attention(*arrays, lists, out=out, **arguments))
        plan = tamis.plan(*arrays, lists, **arguments)
        assert plan.backend == "cuda" and plan.info["path"] == "direct" and min(plan.workspace_sizes) > 0
        refused("workspace: is missing", lambda: tamis.normalize(plan=plan))
    q = arrays[0].array.reshape(3, 1, 4, 64)
    refused("cu_q: is missing: it is made for arrays of torch and CuPy",
            lambda: tamis.attention(Pretend(q, code=4), *arrays[1:], lists, out=out, **{**arguments, "cu_q": None}))


@needs_cuda
def test_workspaces(rng):
    arrays, lists, arguments = step(rng)
    plan = tamis.plan(*arrays, lists, **arguments)
    room = np.zeros(plan.workspace_bytes + 512, np.uint8)
    aligned = room[-room.ctypes.data % 256:]
    for workspace, words, code in (
            (aligned, "workspace: lies on the host", "invalid_argument"),
            (Pretend(aligned[:100]), "workspace: 100 bytes", "workspace_too_small"),
            (Pretend(aligned[1:]), "control: does not start on a multiple of 256", "invalid_argument"),
            (Pretend(aligned[::2]), "workspace: is not one dense run", "invalid_argument"),
            (Pretend(aligned.view(np.int32) if len(aligned) % 4 == 0 else aligned[:-(len(aligned) % 4)].view(np.int32)),
             "workspace: dtype I32", "invalid_argument"),
            ((Pretend(aligned), Pretend(aligned)), "workspace: 2 arrays", "invalid_argument")):
        if "256" in words and not tamis.build_info()["devices"]:
            continue  # the buffers come after the device
        refused(words, lambda: tamis.attention(*arrays, lists, out=out_of(arrays), workspace=workspace, **arguments),
                code)


@needs_cuda
def test_without_a_device_the_launch_says_so(rng):
    if tamis.build_info()["devices"]:
        pytest.skip("there is a device")
    arrays, lists, arguments = step(rng)
    plan = tamis.plan(*arrays, lists, **arguments)
    room = np.zeros(plan.workspace_bytes + 256, np.uint8)
    workspace = Pretend(room[-room.ctypes.data % 256:])
    refused("CUDA", lambda: tamis.attention(*arrays, lists, out=out_of(arrays), workspace=workspace, **arguments),
            "device_error")
    refused("CUDA", lambda: tamis.normalize(plan=plan, workspace=workspace), "device_error")
    assert not room.any()


@pytest.mark.skipif(tamis.build_info()["cuda"], reason="a build with CUDA")
def test_a_build_without_cuda_says_so(rng):
    arrays, lists, arguments = step(rng)
    refused("no CUDA backend", lambda: tamis.plan(*arrays, lists, **arguments), "device_error")


@needs_cuda
def test_what_no_kernel_computes_is_named(rng):
    arrays, lists, arguments = step(rng)
    single = tuple(Pretend(np.zeros(x.array.shape, np.float32)) for x in arrays)
    for changed, more, words in ((single, {}, "q: dtype F32 on the device"),
                                 (arrays, dict(dropout_p=0.5), "dropout_p: 0.5 on the device"),
                                 (arrays, dict(softcap=1e-45), "softcap")):
        more = {**arguments, **more}
        refused(words, lambda: tamis.plan(*changed, lists, **more), "unsupported")
        refused(words, lambda: tamis.attention(*changed, lists, out=out_of(arrays), workspace=out_of(arrays),
                                               **more), "unsupported")
    refused("nearest", lambda: tamis.plan(*arrays, lists, block=128, fallback="refuse", **arguments), "unsupported")
    refused("gather", lambda: tamis.plan(*arrays, lists, path="gather", fallback="refuse", **arguments), "unsupported")


@needs_cuda
def test_poll_of_what_never_ran():
    refused("stream: no step that is known ran there", lambda: tamis.poll(stream=12345))
    refused("workspace: no step that is known", lambda: tamis.poll(Pretend(np.zeros(8, np.uint8))))


def test_exporters_that_take_minus_one_for_a_stream(rng):
    class Strict(Pretend):
        """As JAX: -1 is followed, and is no stream."""

        def __dlpack__(self, *, stream=None):
            if stream == -1:
                self.streams.append(stream)
                raise RuntimeError("invalid resource handle")
            return super().__dlpack__(stream=stream)

    strict = Strict(rng.standard_normal((2, 3)).astype(np.float32))
    assert tamis._core.facts(strict, "q").shape == (2, 3)
    assert strict.streams == [-1, None]


@pytest.mark.parametrize("stream", ["main", 1.5, object()])
def test_streams_that_are_none(rng, stream):
    with pytest.raises(TypeError, match="stream: expected an integer or a CUDA stream"):
        arrays, lists, arguments = step(rng)
        tamis.attention(*arrays, lists, stream=stream, **arguments)


def test_streams_of_other_libraries():
    from tamis import _streams
    for attribute, value in (("cuda_stream", 7), ("ptr", 8)):
        assert _streams.number(type("Stream", (), {attribute: value})()) == value
    assert _streams.number(type("Stream", (), {"__cuda_stream__": lambda self: (0, 9)})()) == 9
    assert _streams.number(5) == 5 and _streams.number(None) is None


def test_importers_say_whose_arrays_they_bring_to_the_host():
    indptr, indices = np.array([0, 1], np.int32), np.array([3], np.int32)
    with pytest.raises(tamis.Error, match="indptr: lies on a device; it is brought to the host for arrays of torch"):
        tamis.Candidates.from_csr(Pretend(indptr), Pretend(indices))
    made = tamis.Candidates.from_csr(Pretend(indptr, (1, 0)), Pretend(indices, (1, 0)))
    assert made.to_csr()[1].tolist() == [3]


def test_case_files_are_written_from_the_host():
    offsets, length = np.array([0, 1], np.int32), np.array([3], np.int32)
    with pytest.raises(tamis.Error, match="q: lies on cuda:0; a case file is written from memory of the host"):
        q = Pretend(np.zeros((1, 1, 8), np.float32))
        tamis.save_case("case", q, q, q, cu_q=Pretend(offsets), kv_len=Pretend(length), cu_kv=Pretend(offsets))
