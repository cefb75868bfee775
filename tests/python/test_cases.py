"""Case files, there and back, and the whole folder of cases through attention()."""
import json
import pathlib
import struct
import sys

import numpy as np
import pytest

import tamis
from judge import Case

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "cases"
NAMES = sorted(path.name.removesuffix(".safetensors") for path in FOLDER.glob("*.safetensors")
               if not path.name.endswith(".expected.safetensors"))
ANSWERS = [name for name in NAMES if (FOLDER / f"{name}.expected.safetensors").exists()]
REFUSALS = [name for name in NAMES if (FOLDER / f"{name}.error.json").exists()]

files = pytest.mark.skipif(not tamis.build_info()["case_files"], reason="a build without case files")


def path_of(name):
    return FOLDER / f"{name}.safetensors"


def contents(path):
    """(metadata, {name: (dtype, shape, bytes)}) of a safetensors file."""
    blob = pathlib.Path(path).read_bytes()
    size = struct.unpack_from("<Q", blob)[0]
    header = json.loads(blob[8:8 + size])
    metadata = header.pop("__metadata__", {})
    return metadata, {name: (entry["dtype"], entry["shape"], blob[8 + size:][slice(*entry["data_offsets"])])
                      for name, entry in header.items()}


def array(entry):
    dtype, shape, data = entry
    return np.frombuffer(data, {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4"}[dtype]).reshape(shape)


def as_float(result):
    return result.astype(np.float64) if result.dtype != np.uint16 else (
        result.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def test_the_folder_is_there():
    assert len(ANSWERS) > 80 and len(REFUSALS) > 20


@files
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name, backend):
    case = tamis.load_case(path_of(name))
    metadata, expected = contents(FOLDER / f"{name}.expected.safetensors")
    out, lse = tamis.attention(**case.arguments(), backend=backend, return_lse=True)
    for key, result in (("out", as_float(out)), ("lse", lse)):
        want = array(expected[key])
        assert result.shape == want.shape
        np.testing.assert_array_equal(np.isinf(result), np.isinf(want))
        finite = np.isfinite(want)
        np.testing.assert_allclose(result[finite], want[finite], rtol=0, atol=float(metadata[f"tol_{key}"]))


@files
@pytest.mark.parametrize("name", ANSWERS)
def test_sets(name):
    case = tamis.load_case(path_of(name))
    _, expected = contents(FOLDER / f"{name}.expected.safetensors")
    arguments = case.arguments()
    index = tamis.normalize(plan=tamis.plan(**{**arguments, "backend": "cpu"}))
    indptr, tokens = index.to_tokens()
    np.testing.assert_array_equal(indptr, array(expected["set_indptr"]))
    np.testing.assert_array_equal(tokens, array(expected["set_tokens"]))


@files
@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    want = json.loads((FOLDER / f"{name}.error.json").read_text())
    with pytest.raises(tamis.Error) as caught:
        tamis.attention(**tamis.load_case(path_of(name)).arguments())
    assert caught.value.code == want["error"]
    for field, value in want["fields"].items():
        assert getattr(caught.value, field) == value, field
    for word in want["message_contains"]:
        assert word in caught.value.message


def loaded(name):
    try:
        return tamis.load_case(path_of(name))
    except tamis.Error:
        assert name in REFUSALS
        return None


@files
@pytest.mark.parametrize("name", NAMES)
def test_there_and_back(name, tmp_path):
    case = loaded(name)
    if case is None or case.index_only:
        return
    written = tmp_path / "again.safetensors"
    try:
        tamis.save_case(written, **case.arguments(), d_out=case.d_out, d_lse=case.d_lse)
    except tamis.Error as why:
        assert name in REFUSALS and why.code != "io_error"
        return
    (metadata, tensors), (before, originals) = contents(written), contents(path_of(name))
    assert meaning(metadata) == meaning(before)
    assert tensors == {key: originals[key] for key in tensors} and set(tensors) == set(originals)


DEFAULTS = dict(unit="1", query_block="1", window="0", sink="0", softcap=0, causal="1", duplicates="merge",
                invalid="reject", semantics="set", kv_layout="NHD", dropout_p=0, dropout_seed="0", k_scale_kind="tensor",
                v_scale_kind="tensor")


def meaning(metadata):
    """Options that are not what they are without being named; notes have no meaning."""
    read = {key: float(value) if key in ("scale", "softcap", "dropout_p") else value for key, value in metadata.items()}
    known = {*DEFAULTS, "tamis.case", "index_heads", "scale", "k_format", "v_format"}
    return {key: value for key, value in read.items() if key in known and value != DEFAULTS.get(key)}


@files
def test_an_index_alone():
    case = tamis.load_case(path_of("accounting_64k"))
    assert case.q is None and case.index_only["page_size"] == 16 and "index only" in repr(case)
    with pytest.raises(tamis.Error, match="q: this case states an index alone") as caught:
        case.arguments()
    assert caught.value.code == "unsupported"


@files
def test_dense_batches_and_full_attention(rng, tmp_path):
    q, k, v = (rng.standard_normal((2, 3, 2, 8)).astype(np.float32) for _ in range(3))
    for layout, candidates in (("NHD", tamis.ALL), ("HND", None)):
        kv = [x if layout == "NHD" else x.swapaxes(1, 2) for x in (k, v)]
        arguments = dict(kv_layout=layout, window=2)
        tamis.save_case(tmp_path / "case", q, *kv, candidates, d_out=q, **arguments)
        case = tamis.load_case(str(tmp_path / "case"))
        expected = tamis.attention(q, *kv, candidates, **arguments)
        np.testing.assert_array_equal(tamis.attention(**case.arguments()), expected.reshape(6, 2, 8))
        np.testing.assert_array_equal(case.d_out, q.reshape(6, 2, 8))


@files
def test_dtypes_numpy_has_not(rng, tmp_path, monkeypatch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = Case(rng, q_len=[1], kv_len=[9], rows=[[0, 3]], dtype=ml_dtypes.bfloat16, poison=False)
    codes = np.ones(case.k.shape, np.uint8)
    tamis.save_case(tmp_path / "case", case.q, codes, case.v, k_format="fp8_e4m3", k_scale=np.array(2, np.float32),
                    **{**case.arguments(), "window": 4})
    read = tamis.load_case(tmp_path / "case")
    assert read.q.dtype == ml_dtypes.bfloat16 and read.k.dtype == ml_dtypes.float8_e4m3fn
    read.q[...] = 0  # arrays of its own
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # as if it were not installed
    plain = tamis.load_case(tmp_path / "case")
    assert isinstance(plain.q, tamis.View) and plain.q.dtype == "BF16" and plain.k.dtype == "F8_E4M3"
    np.testing.assert_array_equal(plain.q.array, case.q.view(np.uint16))
    assert "q=(1, 4, 16)" in repr(plain)
    tamis.save_case(tmp_path / "again", **plain.arguments())
    assert (tmp_path / "again").read_bytes() == (tmp_path / "case").read_bytes()
    monkeypatch.undo()
    out = tamis.attention(**plain.arguments())
    expected = tamis.attention(case.q, codes, case.v, k_format="fp8_e4m3", k_scale=np.array(2, np.float32),
                               **{**case.arguments(), "window": 4})
    np.testing.assert_array_equal(out, expected.view(np.uint16))


@files
def test_files_that_cannot_be(rng, tmp_path):
    case = Case(rng, q_len=[1], kv_len=[9], rows=None, window=3)
    for path, code in ((tmp_path / "none" / "case", "io_error"), ("a\0b", "invalid_argument")):
        for call in (lambda: tamis.load_case(path), lambda: tamis.save_case(path, case.q, case.k, case.v,
                                                                            **case.arguments())):
            with pytest.raises(tamis.Error) as caught:
                call()
            assert caught.value.code == code
    with pytest.raises(TypeError):
        tamis.load_case(3)
    with pytest.raises(tamis.Error, match="kv_len") as caught:
        tamis.save_case(tmp_path / "case", case.q, case.k, case.v, **{**case.arguments(), "kv_len": case.kv_len + 99})
    assert caught.value.code == "invalid_argument" and not (tmp_path / "case").exists()


@pytest.mark.skipif(tamis.build_info()["case_files"], reason="a build with case files")
def test_a_build_without_files_says_so(rng, tmp_path):
    case = Case(rng, q_len=[1], kv_len=[9], rows=None, window=3)
    for call in (lambda: tamis.load_case(path_of("basic_f16")),
                 lambda: tamis.save_case(tmp_path / "case", case.q, case.k, case.v, **case.arguments())):
        with pytest.raises(tamis.Error, match="TAMIS_IO") as caught:
            call()
        assert caught.value.code == "unsupported"
