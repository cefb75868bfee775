"""Which arrays are taken, and what is said of the others."""
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import tamis


def attend(q, k, v, **more):
    return tamis.attention(q, k, v, tamis.ALL, **more)


@pytest.fixture
def batch(rng):
    q, k, v = (rng.standard_normal((2, 3, 2, 8)).astype(np.float32) for _ in range(3))
    return q, k, v


class Exporter:
    """An array that only speaks DLPack; `versioned` False is one from before version 1.0."""

    def __init__(self, array, versioned=True, device=(1, 0)):
        self.array, self.versioned, self.device, self.calls = array, versioned, device, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **more):
        if not self.versioned and more:
            raise TypeError("unexpected keyword")
        self.calls.append((stream, more))
        return self.array.__dlpack__(**more)


@pytest.mark.parametrize("versioned", [True, False])
def test_anything_with_dlpack(batch, versioned):
    expected = attend(*batch)
    exporters = [Exporter(x, versioned) for x in batch]
    out = attend(*exporters)
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, expected)
    for exporter in exporters:  # on the host there is no stream to speak of
        assert all(stream is None for stream, _ in exporter.calls)


def test_nothing_is_kept(batch):
    q, k, v = (Exporter(x) for x in batch)
    seen = [weakref.ref(x) for x in (q, k, v)]
    attend(q, k, v)
    plan = tamis.plan(q, k, v, tamis.ALL)
    del q, k, v
    gc.collect()
    assert all(ref() is None for ref in seen)
    del plan


def test_a_plan_keeps_its_lists(batch):
    lengths = np.array([3, 2], np.int32)
    held = Exporter(lengths)
    seen = weakref.ref(held)
    plan = tamis.plan(*batch, tamis.ALL, kv_len=held)
    del held
    gc.collect()
    assert seen() is not None
    assert tamis.normalize(plan=plan).rows["request"].tolist() == [0, 0, 0, 1, 1, 1]
    del plan
    gc.collect()
    assert seen() is None


def test_read_only_inputs_are_fine(batch):
    expected = attend(*batch)
    for x in batch:
        x.flags.writeable = False
    np.testing.assert_array_equal(attend(*batch), expected)
    np.testing.assert_array_equal(attend(*map(Exporter, batch)), expected)


def test_read_only_outputs_are_not_written(batch):
    out = np.full_like(batch[0], 7)
    out.flags.writeable = False
    for read_only in (out, Exporter(out)):
        with pytest.raises(tamis.Error, match="out: is read-only"):
            attend(*batch, out=read_only)
    assert (out == 7).all()


def test_what_an_exporter_lent_goes_back(batch):
    kept = [np.array(x) for x in batch]
    seen = [weakref.ref(x) for x in kept]
    attend(*(Exporter(x) for x in kept))
    plan = tamis.plan(*map(Exporter, kept), tamis.ALL)
    del kept
    gc.collect()
    assert all(ref() is None for ref in seen)
    del plan


@pytest.mark.parametrize("name, bits", [("float16", None), ("bfloat16", np.uint16)])
def test_half_precision(batch, name, bits):
    dtype = np.dtype(name) if bits is None else np.dtype(getattr(ml_dtypes, name))
    small = [x.astype(dtype) for x in batch]
    out = attend(*small)
    assert out.dtype == dtype
    exact = attend(*(x.astype(np.float32) for x in small), backend="reference")
    np.testing.assert_allclose(out.astype(np.float64), exact, rtol=1e-2, atol=1e-2)
    wide = np.empty(out.shape, np.float32)  # out has a dtype of its own
    attend(*small, out=wide)
    np.testing.assert_allclose(wide, exact, rtol=3e-3, atol=3e-3)
    if bits is not None:
        viewed = attend(*(tamis.View(x.view(bits), "bf16") for x in small))
        assert viewed.dtype == bits
        np.testing.assert_array_equal(viewed.view(dtype).astype(np.float32), out.astype(np.float32))


def test_fp8_arrays(rng):
    q = rng.standard_normal((1, 2, 2, 8)).astype(np.float32)
    k = rng.standard_normal((1, 5, 2, 8)).astype(ml_dtypes.float8_e4m3fn)
    v = rng.standard_normal((1, 5, 2, 8)).astype(ml_dtypes.float8_e5m2)
    scale = np.array(1, np.float32)
    formats = dict(k_format="fp8_e4m3", v_format="fp8_e5m2", k_scale=scale, v_scale=scale)
    out = attend(q, k, v, **formats)
    np.testing.assert_array_equal(out, attend(q, k.view(np.uint8), v.view(np.uint8), **formats))
    plain = attend(q, k.astype(np.float32), v.astype(np.float32))
    np.testing.assert_allclose(out, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad, words", [
    (lambda q: q.astype(np.float64), "q: dtype F64"),
    (lambda q: q.astype(np.complex64), "q: dtype complex64 is none"),
    (lambda q: q.astype(">f4"), "q: dtype >f4 is none"),
    (lambda q: q.astype(ml_dtypes.float8_e4m3fnuz), "q: dtype float8_e4m3fnuz is none"),
    (lambda q: np.ma.masked_array(q, q > 0), "q: is a masked array"),
    (lambda q: q[None, None], "q: rank 6"),
    (lambda q: Exporter(q, device=(10, 0)), None),
    (lambda q: q[:, :, 0], "cu_q: is missing"),
])
def test_arrays_that_cannot_be_read(batch, bad, words):
    q, k, v = batch
    if words is None:
        attend(bad(q), k, v)  # what counts is what the capsule says
        return
    with pytest.raises(tamis.Error, match=words) as caught:
        attend(bad(q), k, v)
    assert caught.value.code == "invalid_argument"


def test_strides_that_are_no_elements(batch):
    q, k, v = batch
    odd = np.zeros(q.size * 4 + 64, np.uint8)[:q.size * 4].view(np.float32).reshape(q.shape)
    odd = np.lib.stride_tricks.as_strided(odd, strides=(64, 18, 8, 4))
    with pytest.raises(tamis.Error, match="q: a stride of 18 bytes is no multiple of the 4"):
        attend(odd, k, v)


def test_no_arrays_at_all(batch):
    q, k, v = batch
    for wrong, name in ((q.tolist(), "list"), (None, "NoneType"), ("q", "str"), (3, "int")):
        with pytest.raises(TypeError, match=f"k: expected an array .*, not {name}"):
            attend(q, wrong, v)


def test_exporters_that_fail(batch):
    q, k, v = batch

    class Broken(Exporter):
        def __dlpack__(self, **more):
            raise BufferError("not today")

    with pytest.raises(tamis.Error, match="v: the array cannot be read: not today"):
        attend(q, k, Broken(v))

    class Empty(Exporter):
        def __dlpack__(self, **more):
            return 3

    with pytest.raises(tamis.Error, match="v: __dlpack__ answered no DLPack capsule"):
        attend(q, k, Empty(v))


def test_views_name_what_they_cannot_be():
    bits = np.zeros(4, np.uint16)
    with pytest.raises(tamis.Error, match="dtype: 'f4' is none of"):
        tamis.View(bits, "f4")
    with pytest.raises(tamis.Error, match="array: dtype U16 cannot be read as F8_E4M3"):
        tamis.View(bits, "f8_e4m3")
    with pytest.raises(tamis.Error, match="array: dtype F32 cannot be read as BF16"):
        tamis.View(np.zeros(4, np.float32), "bf16")
    assert tamis.View(bits, "bf16").dtype == "BF16" and tamis.View(bits, "bf16").array is bits


def test_what_makes_a_view_is_named():
    bits = np.zeros(4, np.uint16)
    for wrong in (3, None, b"bf16"):
        with pytest.raises(TypeError, match=f"^dtype: expected a name, not {type(wrong).__name__}"):
            tamis.View(bits, wrong)
    with pytest.raises(TypeError, match="^array: expected an array"):
        tamis.View(None, "bf16")
