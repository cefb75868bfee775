"""merge_states() over results of disjoint keys."""
import numpy as np
import pytest

import tamis
from judge import Case
from pretend import Pretend


def parts_of(rng, dtype=np.float32):
    """(whole case, results of it over the even and the odd tokens)."""
    rows = [[[0, 2, 8], []], [[1, 5, 7, 9], [3]]]
    whole = Case(rng, q_len=[1, 1], kv_len=[10, 4], rows=[[0, 2, 8, 1, 5, 7, 9], [3]], dtype=dtype, poison=False)
    results = []
    for lists in rows:
        indptr = np.cumsum([0, *map(len, lists)])
        candidates = tamis.Candidates.from_csr(indptr, np.array([e for row in lists for e in row]))
        out = np.empty(whole.q.shape, np.float32)
        _, lse = tamis.attention(whole.q, whole.k, whole.v, candidates, out=out, return_lse=True, **whole.arguments())
        results.append((out, lse))
    return whole, *zip(*results)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_disjoint_keys_make_the_whole(rng, dtype):
    case, outs, lses = parts_of(rng, dtype)
    out, lse = tamis.merge_states(outs, lses)
    expected_out, expected_lse = case.expected()
    np.testing.assert_allclose(out, expected_out, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-5, atol=2e-5)
    room, sums = outs[0], np.empty_like(lses[0])  # among the inputs
    written = tamis.merge_states(outs, lses, out=room, lse=sums)
    assert written[0] is room and written[1] is sums
    np.testing.assert_array_equal(room, out)
    np.testing.assert_array_equal(sums, lse)


def test_tensors_of_torch_stay_tensors(rng):
    torch = pytest.importorskip("torch")
    _, outs, lses = parts_of(rng)
    expected = tamis.merge_states(outs, lses)
    made = tamis.merge_states(map(torch.from_numpy, outs), map(torch.from_numpy, lses))
    assert all(isinstance(x, torch.Tensor) for x in made)
    for one, other in zip(made, expected):
        np.testing.assert_array_equal(one.numpy(), other)


@pytest.mark.parametrize("change, code, words", [
    (lambda o, l: ([], []), "invalid_argument", "outs: is empty"),
    (lambda o, l: (o, l[:1]), "invalid_argument", "lses: 1 arrays, there are 2 in outs"),
    (lambda o, l: ([o[0].astype(np.float16), o[1]], l), "unsupported", "outs: dtype F16; merge_states joins F32"),
    (lambda o, l: ([o[0], tamis.View(np.zeros(o[1].shape, np.uint16), "bf16")], l), "unsupported", "outs: dtype BF16"),
    (lambda o, l: (o, [l[0], l[1].astype(np.float64)]), "unsupported", "lses: dtype F64"),
    (lambda o, l: ([Pretend(x) for x in o], l), "unsupported", "outs: lies on a device; merge_states reads memory of"),
    (lambda o, l: (o, [l[0], Pretend(l[1])]), "unsupported", "lses: lies on a device"),
    (lambda o, l: ([o[0], o[1][:, :, :8]], l), "invalid_argument", "outs: extent 8 of axis 2, expected 16"),
    (lambda o, l: (o, [l[0], l[1][:, :2]]), "invalid_argument", "lses: extent 2 of axis 1"),
    (lambda o, l: ([o[0], o[1][None]], l), "invalid_argument", "outs: rank 4, expected 3"),
    (lambda o, l: ([o[0], np.asfortranarray(o[1])], l), "invalid_argument", "outs: is not dense"),
])
def test_refusals(rng, change, code, words):
    _, outs, lses = parts_of(rng)
    with pytest.raises(tamis.Error) as caught:
        tamis.merge_states(*change(list(outs), list(lses)))
    assert caught.value.code == code and words in caught.value.message, caught.value


def test_parts_without_rows():
    out, lse = tamis.merge_states([np.zeros((2, 0, 3), np.float32)], [np.zeros((2, 0), np.float32)])
    assert out.shape == (2, 0, 3) and lse.shape == (2, 0)
    out, lse = tamis.merge_states([np.zeros((3, 0), np.float32)], [np.zeros(3, np.float32)])
    assert out.shape == (3, 0) and lse.shape == (3,)


def test_what_is_no_list_of_arrays_is_named():
    for arrays, name in (((None, []), "outs"), (([np.zeros((1, 1), np.float32)], 3), "lses")):
        with pytest.raises(TypeError, match=f"^{name}: expected a list of arrays"):
            tamis.merge_states(*arrays)


def test_arrays_between_elements():
    out = np.zeros(41, np.uint8)[1:].view(np.float32).reshape(2, 5)
    for outs, lses, more in (([out], [np.zeros(2, np.float32)], {}),
                             ([np.zeros((2, 5), np.float32)], [np.zeros(2, np.float32)], dict(out=out))):
        with pytest.raises(tamis.Error, match="^invalid_argument: outs?: .*align"):
            tamis.merge_states(outs, lses, **more)
