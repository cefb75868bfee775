"""Every refusal is a tamis.Error with the contract's fields, or a TypeError that names the argument."""
import copy
import pickle

import numpy as np
import pytest

import tamis
from judge import Case
from test_attention import candidates_of, decode


def refused(case, code, words, candidates=None, **changes):
    with pytest.raises(tamis.Error, match=words) as caught:
        tamis.attention(case.q, case.k, case.v, candidates or candidates_of(case), **{**case.arguments(), **changes})
    assert caught.value.code == code
    return caught.value


def test_a_bad_entry_says_where(rng):
    case = decode(rng)
    case.rows[3] = [5, 33]
    e = refused(case, "index_out_of_range", "cand_indices: row 3 of request 1 holds 33")
    assert (e.request, e.row, e.page, e.value, e.limit) == (1, 3, None, 33, 33)
    again = pickle.loads(pickle.dumps(e))
    assert (again.code, again.message, again.row, str(again)) == (e.code, e.message, e.row, str(e))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_limit_is_the_first_entry_that_is_too_large(backend):
    q = np.zeros((1, 1, 2, 8), np.float32)
    k = np.zeros((1, 19, 2, 8), np.float32)
    lists = tamis.Candidates(np.array([[4, 5]], np.int32), unit=4, index_heads=1)
    with pytest.raises(tamis.Error, match="holds 5; 5 \\* unit 4 is outside") as caught:
        tamis.attention(q, k, k, lists, backend=backend)
    assert (caught.value.request, caught.value.row, caught.value.value, caught.value.limit) == (0, 0, 5, 5)


def test_lengths_beyond_the_cache_say_where(rng):
    case = decode(rng)
    case.kv_len[1] = 16 * case.table.shape[1] + 3
    e = refused(case, "invalid_argument", "^invalid_argument: kv_len: 83 of request 1 exceeds 5 pages of 16")
    assert (e.request, e.value, e.limit) == (1, 83, 81)
    q, k = np.zeros((1, 2, 8), np.float32), np.zeros((7, 2, 8), np.float32)
    with pytest.raises(tamis.Error, match="kv_len: 9 of request 0 exceeds its 7 rows of cu_kv") as caught:
        tamis.attention(q, k, k, cu_q=np.array([0, 1], np.int32), cu_kv=np.array([0, 7], np.int32),
                        kv_len=np.array([9], np.int32))
    assert (caught.value.request, caught.value.value, caught.value.limit) == (0, 9, 8)


def test_lists_of_another_dtype_say_what_helps(rng):
    case = decode(rng)
    flat, starts = np.zeros(6, np.int64), np.arange(7)
    fixed = np.zeros((6, 1), np.int32)
    for name, lists in (("indices", tamis.Candidates(flat, starts, index_heads=2)),
                        ("indices", tamis.Candidates(fixed.astype(np.float32), index_heads=2)),
                        ("indptr", tamis.Candidates(fixed[:, 0], starts.astype(np.int16), index_heads=2)),
                        ("count", tamis.Candidates(fixed, count=flat, index_heads=2))):
        e = refused(case, "invalid_argument", f"^invalid_argument: {name}: dtype .*, expected I32", lists)
        assert ".int()" in e.message
        assert ("from_topk" in e.message) == (lists.indices is flat)  # which takes int64, and no counts


def test_wrong_numbers_of_rows_say_what_rows_are(rng):
    fixed = np.zeros((5, 1), np.int32)
    for lists in (tamis.Candidates(fixed, index_heads=2), tamis.Candidates(fixed[:, 0], np.arange(6), index_heads=2)):
        refused(decode(rng), "invalid_argument", "query blocks of all requests x index_heads", lists)


def test_policies(rng):
    case = decode(rng)
    e = refused(case, "duplicate_index", "cand_indices", candidates_of(case, duplicates="reject"))
    assert (e.row, e.value) == (5, 2)
    case.rows[0] = [0, 70, -5]
    dropped = tamis.attention(case.q, case.k, case.v, candidates_of(case, invalid="drop"), **case.arguments())
    assert np.isfinite(dropped).all()


def test_pages(rng):
    case = decode(rng)
    case.table[0, 4] = 77
    e = refused(case, "page_out_of_range", "page_table")
    assert (e.request, e.page, e.value, e.limit) == (0, 4, 77, case.k.shape[0])
    case.table[0, 4] = -1
    refused(case, "page_unmapped", "page_table")


def test_stamps(rng):
    case = decode(rng)
    stamps = np.arange(100, 100 + case.k.shape[0], dtype=np.uint64)
    table_stamps = np.where(case.table >= 0, stamps[np.clip(case.table, 0, None)], 9)
    tamis.attention(case.q, case.k, case.v, candidates_of(case), **case.arguments(), page_stamps=stamps,
                    table_stamps=table_stamps)
    table_stamps[1, 2] += 1
    e = refused(case, "foreign_page", "stamp", page_stamps=stamps, table_stamps=table_stamps)
    assert (e.request, e.page) == (1, 2)


def test_a_refusal_writes_nothing(rng):
    case = decode(rng)
    case.rows[0] = [99]
    out = np.full((3, 4, 16), 7, np.float32)
    refused(case, "index_out_of_range", "cand_indices", out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("name, value, words", [
    ("window", -1, "window: -1 is negative"),
    ("softcap", -2.0, "softcap"),
    ("dropout_p", 1.0, "dropout_p"),
    ("dropout_seed", -1, "dropout_seed: -1 is outside"),
    ("scale", float("nan"), "scale: is not finite"),
    ("kv_layout", "DHN", "kv_layout: 'DHN' is none of NHD, HND"),
    ("k_format", "int3", "k_format: 'int3' is none of None, int8"),
    ("k_scale", np.ones((), np.float32), "k_scale: is given without k_format"),
    ("v_scale_kind", "head", "v_scale_kind: is given without v_format"),
    ("backend", "gpu", "backend: 'gpu' is none of"),
    ("backend", "cuda", "backend: cuda reads device memory, q lies on the host"),
    ("fallback", "maybe", "fallback: 'maybe' is none of"),
    ("alibi_slopes", np.ones(3, np.float32), "alibi_slopes"),
    ("kv_len", np.array([1, 2], np.int32), "kv_len"),
    ("kv_len", np.array([70, 33, 5], np.int64), "kv_len: dtype I64, expected I32; convert it once"),
    ("scale", 10 ** 400, "scale: is too large"),
    ("kv_len", None, "kv_len: is missing"),
    ("cu_kv", np.array([0, 1, 2, 3], np.int32), "give exactly one of page_table and cu_kv"),
])
def test_arguments_out_of_range(rng, name, value, words):
    refused(decode(rng), "invalid_argument", words, **{name: value})


@pytest.mark.parametrize("name, value", [("window", 1.5), ("sink", "2"), ("scale", "x"), ("softcap", None),
                                         ("causal", 3), ("dropout_seed", 0.5), ("q_pos", [1, 2, 3]),
                                         ("kv_len", (1, 2, 3)), ("stream", "main"), ("return_lse", 2)])
def test_wrong_types_name_the_argument(rng, name, value):
    case = decode(rng)
    with pytest.raises(TypeError, match=f"^{name}: expected"):
        tamis.attention(case.q, case.k, case.v, candidates_of(case), **{**case.arguments(), name: value})


def test_candidates_are_checked_when_made():
    indices = np.zeros((2, 2), np.int32)
    with pytest.raises(tamis.Error, match="duplicates: 'keep' is none of merge, reject"):
        tamis.Candidates(indices, index_heads=1, duplicates="keep")
    with pytest.raises(tamis.Error, match="cand_count: belongs to the fixed-width form"):
        tamis.Candidates(indices[0], np.zeros(3, np.int32), np.zeros(2, np.int32), index_heads=1)
    with pytest.raises(TypeError, match="index_heads"):
        tamis.Candidates(indices)
    with pytest.raises(TypeError, match="unit: expected an integer"):
        tamis.Candidates(indices, index_heads=1, unit=2.5)
    with pytest.raises(TypeError, match="candidates: expected tamis.Candidates"):
        tamis.attention(indices, indices, indices, indices)


def test_candidates_say_what_they_are():
    fixed = np.zeros((4, 3), np.int32)
    assert repr(tamis.Candidates(fixed, index_heads=2)).startswith("Candidates(fixed width, 4 rows of 3, I32, unit=1,")
    csr = tamis.Candidates(fixed.ravel(), np.arange(0, 13, 3), index_heads=1)
    assert repr(csr).startswith("Candidates(CSR, 4 rows, 12 entries, I32, unit=1,")
    assert repr(tamis.ALL).startswith("Candidates(all, unit=1,")
    assert repr(tamis.Candidates([1], index_heads=1)).startswith("Candidates(fixed width, unread, unit=1,")


def test_all_is_one():
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps([tamis.ALL], protocol))[0] is tamis.ALL
    assert copy.copy(tamis.ALL) is copy.deepcopy({"all": tamis.ALL})["all"] is tamis.ALL
    lists = tamis.Candidates(np.arange(4, dtype=np.int32)[:, None], unit=16, index_heads=2, invalid="drop")
    for again in (pickle.loads(pickle.dumps(lists)), copy.deepcopy(lists)):
        assert again is not lists and repr(again) == repr(lists)
        np.testing.assert_array_equal(again.indices, lists.indices)


def test_memory_that_is_not_there_is_not_asked_for(rng):
    case = Case(rng, [1], [4], rows="all")
    heads = np.broadcast_to(case.q[:, :1], (1, 1 << 20, 16))
    with pytest.raises(tamis.Error, match="at most 65536"):
        tamis.attention(heads, case.k, case.v, tamis.ALL, **case.arguments())


def test_offsets_that_lengths_are_made_of():
    q = np.zeros((3, 2, 8), np.float32)
    for wrong in (np.int32(5).reshape(()), np.array([[0, 3]], np.int32), np.array([0, 3], np.int64)):
        with pytest.raises(tamis.Error, match="^invalid_argument: cu_kv: "):
            tamis.attention(q, q, q, tamis.ALL, cu_q=np.array([0, 3], np.int32), cu_kv=wrong)


def test_dense_batches_beyond_32_bits():
    k = np.lib.stride_tricks.as_strided(np.ones(8, np.float32), (3, 1 << 30, 2, 8), (0, 0, 0, 4))
    with pytest.raises(tamis.Error, match="do not fit 32 bits"):
        tamis.attention(np.zeros((3, 1, 2, 8), np.float32), k, k, sink=1)


def test_one_request_beyond_32_bits():
    k = np.broadcast_to(np.zeros((1, 1, 1, 8), np.float32), (1, 1 << 33, 2, 8))
    with pytest.raises(tamis.Error, match="kv_len: 8589934592 tokens do not fit 32 bits"):
        tamis.attention(np.zeros((1, 1, 2, 8), np.float32), k, k, window=1)


@pytest.mark.parametrize("block", [(1 << 32) + 16, 17, -16])
def test_blocks_of_a_set_without_a_plan(block):
    with pytest.raises(tamis.Error, match=f"^invalid_argument: block: {block} is none of 0, 16, 32, 64, 128"):
        tamis.normalize(tamis.ALL, cu_q=np.array([0, 2], np.int32), kv_len=np.array([5], np.int32), q_heads=2, kv_heads=1,
                        block=block)


@pytest.mark.parametrize("name", ["causal", "window", "sink", "page_size", "num_pages", "block"])
def test_numbers_of_a_set_without_a_plan(name):
    with pytest.raises(TypeError, match=f"^{name}: expected"):
        tamis.normalize(tamis.ALL, cu_q=np.array([0, 2], np.int32), kv_len=np.array([5], np.int32), q_heads=2, kv_heads=1,
                        **{name: np.zeros(2)})


@pytest.mark.parametrize("name", ["unit", "query_block", "index_heads", "duplicates", "invalid"])
def test_attributes_that_are_set_to_something_else(rng, name):
    case = decode(rng)
    lists = candidates_of(case)
    setattr(lists, name, "x")
    calls = [lambda: tamis.attention(case.q, case.k, case.v, lists, **case.arguments())]
    if name not in ("duplicates", "invalid"):
        calls.append(lambda: lists.to_dense_mask(case.cu_q, case.kv_len))
    for call in calls:
        with pytest.raises((TypeError, tamis.Error), match=f"{name}: "):
            call()


def test_splits_beyond_32_bits():
    q = np.zeros((1, 1, 2, 8), np.float32)
    with pytest.raises(tamis.Error, match="splits: .* is not below"):
        tamis.plan(q, q, q, tamis.ALL, splits=1 << 31)
