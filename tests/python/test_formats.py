"""Candidates and index sets from and to other formats: each way there and back against a dense mask."""
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamis

I32 = np.int32


def offsets(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(I32)


@st.composite
def block_maps(draw):
    """A batch: for each request a map of blocks [Hi, rows, columns] and its lengths; sizes of a block."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    heads, query_block, unit = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    q_len = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    kv_len = [draw(st.integers(0, 23)) for _ in q_len]
    density = draw(st.sampled_from([0.0, 0.3, 1.0]))
    maps = [rng.random((heads, -(-s // query_block), -(-t // unit))) < density for s, t in zip(q_len, kv_len)]
    return maps, np.array(q_len), np.array(kv_len, I32), heads, query_block, unit


def tokens_of(one, queries, tokens, query_block, unit):
    return np.repeat(np.repeat(one, query_block, 1)[:, :queries], unit, 2)[:, :, :tokens]


def lists_of(maps):
    return [np.flatnonzero(one[h, r]).tolist() for one in maps for r in range(one.shape[1]) for h in range(len(one))]


def masks_of(maps, q_len, kv_len, query_block, unit):
    return [tokens_of(one, s, t, query_block, unit) for one, s, t in zip(maps, q_len, kv_len)]


def same(made, expected):
    assert len(made) == len(expected)
    for one, other in zip(made, expected):
        assert one.dtype == bool
        np.testing.assert_array_equal(one, other)


def index_of(candidates, q_len, kv_len, heads, **options):
    return tamis.normalize(candidates, cu_q=offsets(q_len), kv_len=kv_len, q_heads=4, kv_heads=heads,
                           **{"causal": False, **options})


@settings(max_examples=150, deadline=None)
@given(block_maps(), st.sampled_from([np.int32, np.int64]), st.data())
def test_csr_and_bsr_there_and_back(batch, dtype, data):
    maps, q_len, kv_len, heads, query_block, unit = batch
    expected = masks_of(maps, q_len, kv_len, query_block, unit)
    rows = lists_of(maps)
    noisy = [data.draw(st.permutations(row + row[:1] + [-1] * data.draw(st.integers(0, 2)))) for row in rows]
    indptr = np.cumsum([0, *map(len, noisy)]).astype(dtype)
    indices = np.array([e for row in noisy for e in row], dtype)
    made = tamis.Candidates.from_bsr(indptr, indices, query_block, unit, index_heads=heads)
    assert (made.query_block, made.unit, made.index_heads) == (query_block, unit, heads)
    same(made.to_dense_mask(offsets(q_len), kv_len), expected)

    kept_indptr, kept = made.to_csr()
    np.testing.assert_array_equal(kept_indptr, indptr)
    np.testing.assert_array_equal(kept, indices)
    dropped_indptr, dropped = made.to_csr(padding="drop")
    assert [dropped[a:b].tolist() for a, b in zip(dropped_indptr, dropped_indptr[1:])] == [
        [e for e in row if e >= 0] for row in noisy]
    bsr_indptr, bsr, R, C = made.to_bsr()
    assert (R, C) == (query_block, unit) and bsr.dtype == I32
    assert [bsr[a:b].tolist() for a, b in zip(bsr_indptr, bsr_indptr[1:])] == rows

    fixed, count = made.to_fixed_width()
    assert fixed.shape == (len(rows), max(map(len, noisy), default=0)) and count.tolist() == list(map(len, noisy))
    wide, _ = made.to_fixed_width(40)
    for form in (tamis.Candidates(fixed, count=count, unit=unit, query_block=query_block, index_heads=heads),
                 tamis.Candidates.from_topk(wide, unit=unit, query_block=query_block, index_heads=heads)):
        same(form.to_dense_mask(offsets(q_len), kv_len), expected)
        np.testing.assert_array_equal(form.to_bsr()[1], bsr)
    back = tamis.Candidates(fixed, count=count, index_heads=heads).to_csr()
    np.testing.assert_array_equal(back[0], indptr)
    np.testing.assert_array_equal(back[1], indices)


@settings(max_examples=150, deadline=None)
@given(block_maps(), st.booleans())
def test_dense_masks_there_and_back(batch, of_blocks):
    maps, q_len, kv_len, heads, query_block, unit = batch
    expected = masks_of(maps, q_len, kv_len, query_block, unit)
    made = tamis.Candidates.from_dense_mask(maps if of_blocks else expected, unit=unit, query_block=query_block,
                                            of_blocks=of_blocks)
    assert made.index_heads == heads
    same(made.to_dense_mask(offsets(q_len), kv_len), expected)
    fine = tamis.Candidates.from_dense_mask(expected)
    same(fine.to_dense_mask(offsets(q_len), kv_len), expected)


@settings(max_examples=150, deadline=None)
@given(block_maps(), st.sampled_from([16, 64]), st.integers(0, 3), st.booleans())
def test_sets_there_and_back(batch, block, window, causal):
    maps, q_len, kv_len, heads, query_block, unit = batch
    made = tamis.Candidates.from_dense_mask(maps, unit=unit, query_block=query_block, of_blocks=True)
    expected = []
    for mask, queries, tokens in zip(masks_of(maps, q_len, kv_len, query_block, unit), q_len, kv_len):
        position = tokens - queries + np.arange(queries)[:, None]
        t = np.arange(tokens)
        mask = mask | ((t > position - window) & (t <= position))
        expected.append(mask & (position >= 0) & ((t <= position) | (not causal)))
    index = index_of(made, q_len, kv_len, heads, block=block, causal=causal, window=window)
    same(index.to_dense_mask(), expected)
    indptr, blocks, R, C = index.to_bsr()
    assert (R, C) == (query_block, block)
    loaded = tamis.Candidates.from_bsr(indptr, blocks, R, C, index_heads=heads).to_dense_mask(offsets(q_len), kv_len)
    for more, less in zip(loaded, expected):
        assert (more | ~less).all()

    # What comes out selects the same by itself.
    topk = index.to_topk()
    assert topk.shape[:2] == (q_len.sum(), heads)
    for again in (tamis.Candidates.from_csr(*index.to_csr(), index_heads=heads), tamis.Candidates.from_topk(topk),
                  tamis.Candidates.from_dense_mask(index.to_dense_mask())):
        same(index_of(again, q_len, kv_len, heads).to_dense_mask(),
             [mask & (t - s + np.arange(s)[:, None] >= 0) for mask, s, t in zip(expected, q_len, kv_len)])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 7), st.integers(0, 40),
       st.integers(1, 3))
def test_block_masks_there_and_back(seed, batch, heads, queries, tokens, query_block):
    rng = np.random.default_rng(seed)
    rows, columns = -(-queries // query_block), -(-tokens // 16)
    kind = rng.choice(3, (batch, heads, rows, columns))  # nothing, some, all
    expected = []
    for one in kind:
        some = tokens_of(one == 1, queries, tokens, query_block, 16) & (rng.random((heads, queries, tokens)) < 0.5)
        expected.append(some | tokens_of(one == 2, queries, tokens, query_block, 16))
    made = tamis.Candidates.from_dense_mask(expected)
    q_len, kv_len = np.full(batch, queries), np.full(batch, tokens, I32)
    one_row = index_of(made, q_len, kv_len, heads, block=16)
    assert one_row.to_block_mask().BLOCK_SIZE == (1, 16)

    # Rows of several queries: lists of blocks, of which the mask takes what is late.
    blocks = tamis.Candidates.from_dense_mask(kind > 0, unit=16, query_block=query_block, of_blocks=True)
    for causal in (False, True):
        index = index_of(blocks, q_len, kv_len, heads, block=16, causal=causal)
        lists = index.to_block_mask()
        assert lists.BLOCK_SIZE == (query_block, 16) and lists.seq_lengths == (queries, tokens)
        masks = np.stack(index.to_dense_mask())
        for b in range(batch):
            for h in range(heads):
                for r in range(rows):
                    cut = masks[b, h, r * query_block:(r + 1) * query_block]
                    parts = [cut[:, c * 16:(c + 1) * 16] for c in range(columns)]
                    full = lists.full_kv_indices[b, h, r, :lists.full_kv_num_blocks[b, h, r]]
                    part = lists.kv_indices[b, h, r, :lists.kv_num_blocks[b, h, r]]
                    assert full.tolist() == [c for c in range(columns) if parts[c].all()]
                    assert part.tolist() == [c for c in range(columns) if parts[c].any() and not parts[c].all()]
        again = tamis.Candidates.from_block_mask(lists, partial="whole")
        assert (again.query_block, again.unit, again.index_heads) == (query_block, 16, heads)
        same(index_of(again, q_len, kv_len, heads, block=16, causal=causal).to_dense_mask(), list(masks))


def test_one_block_mask_for_many_requests():
    lists = SimpleNamespace(kv_num_blocks=np.array([[[1, 2]]], I32), kv_indices=np.array([[[[1, 0], [1, 0]]]], I32),
                            BLOCK_SIZE=(2, 4))
    made = tamis.Candidates.from_block_mask(lists, batch=3)
    assert made.to_csr()[0].tolist() == [0, 1, 3, 4, 6, 7, 9] and made.to_csr()[1].tolist() == [1, 1, 0] * 3
    assert tamis.Candidates.from_block_mask(lists, batch=0).to_csr()[0].tolist() == [0]
    with pytest.raises(tamis.Error, match="batch: 3, the mask is one of 2 requests"):
        tamis.Candidates.from_block_mask(SimpleNamespace(kv_num_blocks=np.zeros((2, 1, 1), I32), BLOCK_SIZE=(1, 1),
                                                         kv_indices=np.zeros((2, 1, 1, 1), I32)), batch=3)


def test_partial_blocks_are_not_taken_for_whole_ones():
    def causal(b, h, q, kv):
        return q >= kv

    def noop_mask(b, h, q, kv):
        return True

    lists = dict(kv_num_blocks=np.ones((1, 1, 1), I32), kv_indices=np.zeros((1, 1, 1, 1), I32), BLOCK_SIZE=(4, 4))
    with pytest.raises(tamis.Error, match="kv_indices: 1 blocks are partial") as caught:
        tamis.Candidates.from_block_mask(SimpleNamespace(**lists, mask_mod=causal))
    assert caught.value.code == "unsupported"
    for extra in (dict(mask_mod=noop_mask), dict(mask_mod=None), {}):
        assert tamis.Candidates.from_block_mask(SimpleNamespace(**lists, **extra)).to_csr()[1].tolist() == [0]
    full = dict(full_kv_num_blocks=np.zeros((1, 1, 1), I32), full_kv_indices=np.zeros((1, 1, 1, 1), I32))
    with pytest.raises(tamis.Error, match="partial"):
        tamis.Candidates.from_block_mask(SimpleNamespace(**lists, **full))
    assert tamis.Candidates.from_block_mask(SimpleNamespace(**lists, mask_mod=causal), partial="whole").unit == 4


def test_block_masks_of_torch():
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    made = flex.create_block_mask(lambda b, h, q, kv: q >= kv, None, 2, 70, 70, device="cpu", BLOCK_SIZE=16)
    candidates = tamis.Candidates.from_block_mask(made, partial="whole", batch=2)
    q, k, v = (torch.randn(2, 70, 2, 8) for _ in range(3))
    out = tamis.attention(q, k, v, candidates)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)

    # And out again: lists that BlockMask takes, the mask of tokens as its mask_mod.
    index = tamis.normalize(candidates, cu_q=offsets([70, 70]), kv_len=np.array([70, 70], I32), q_heads=2, kv_heads=2,
                            block=16)
    lists = index.to_block_mask()
    dense = torch.from_numpy(np.stack(index.to_dense_mask()))
    again = flex.BlockMask.from_kv_blocks(
        *map(torch.from_numpy, lists[:4]), BLOCK_SIZE=lists.BLOCK_SIZE, seq_lengths=lists.seq_lengths,
        mask_mod=lambda b, h, q, kv: dense[b, h, q.clamp(max=69), kv.clamp(max=69)])
    torch.testing.assert_close(again.to_dense(), made.to_dense().expand(2, 2, -1, -1).to(again.to_dense().dtype))
    out = flex.flex_attention(q, k, v, block_mask=again)
    torch.testing.assert_close(out.transpose(1, 2), expected, rtol=1e-4, atol=1e-5)


def test_arrays_of_torch_are_read_and_left_alone():
    torch = pytest.importorskip("torch")
    indices = torch.tensor([[3, -1, 0], [1, 1, 2]])
    made = tamis.Candidates.from_topk(indices)
    assert made.indices.dtype == torch.int32 and indices.dtype == torch.int64
    assert made.to_csr()[1].tolist() == [3, -1, 0, 1, 1, 2]
    mask = torch.rand(2, 3, 4, 5) < 0.5
    made = tamis.Candidates.from_dense_mask(mask)
    same(made.to_dense_mask(offsets([4, 4]), np.array([5, 5], I32)), list(mask.numpy()))


def test_lists_of_torch_are_tensors_all():
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    long = torch.tensor([[[2, 0], [1, -1]], [[0, 1], [2, 2]]])
    starts, read_only = torch.tensor([0, 1, 3]), np.array([0, 1, 3])
    read_only.flags.writeable = False
    mask = torch.rand(2, 3, 4, 5) < 0.5
    block_mask = flex.create_block_mask(lambda b, h, q, kv: q >= kv, None, 2, 70, 70, device="cpu", BLOCK_SIZE=16)
    C = tamis.Candidates
    made = [C.from_topk(x, heads_first=first) for x in (long, long.int()) for first in (False, True)]
    made += [C.from_csr(indptr, x) for x in (long.flatten()[:3], long.int().flatten()[:3])
             for indptr in (starts, starts.int(), starts.numpy(), starts.numpy()[::-1].copy()[::-1], read_only)]
    made += [C.from_bsr(starts, long.flatten()[:3], 1, 16), C.from_dense_mask(mask), C.from_dense_mask(list(mask)),
             C.from_dense_mask(mask[0, 0]),
             C.from_block_mask(block_mask, partial="whole")]
    for c in made:
        assert type(c.indices) is torch.Tensor and c.indices.dtype == torch.int32, c
        assert c.indptr is None or type(c.indptr) is torch.Tensor, c
    small = long.int()
    assert C.from_topk(small).indices.data_ptr() == small.data_ptr()  # nothing to copy
    assert C.from_csr(starts, small.flatten()[:3]).indptr is starts
    numpys = C.from_csr(starts, long.flatten()[:3].numpy())
    assert type(numpys.indices) is type(numpys.indptr) is np.ndarray


@pytest.mark.parametrize("size", [1 << 24, (1 << 31) - 1])
def test_blocks_larger_than_their_mask(size):
    mask = np.ones((8, 64, 1024), bool)
    assert MASK(mask, query_block=size).to_csr()[1].tolist() == [*range(1024)] * 8
    lists = MASK(mask, query_block=size, unit=size)
    assert lists.to_csr()[1].tolist() == [0] * 8
    assert lists.to_dense_mask(ints(0, 64), ints(1024))[0].all()
    lists.unit, lists.query_block = 1 << 40, 1 << 62
    assert lists.to_dense_mask(ints(0, 64), ints(1024))[0].all()


def test_topk_of_any_rank():
    rng = np.random.default_rng(1)
    indices = rng.integers(-1, 9, (2, 5, 3, 4)).astype(I32)
    rows = indices.reshape(-1, 4)
    made = tamis.Candidates.from_topk(indices)
    assert made.index_heads == 3 and np.shares_memory(made.indices, indices)  # nothing to copy
    np.testing.assert_array_equal(made.indices, rows)
    turned = tamis.Candidates.from_topk(indices.swapaxes(1, 2), heads_first=True, index_heads=3)
    np.testing.assert_array_equal(turned.indices, rows)
    np.testing.assert_array_equal(tamis.Candidates.from_topk(indices[0].astype(np.int64)).indices, rows[:15])
    np.testing.assert_array_equal(tamis.Candidates.from_topk(rows, index_heads=3, columns=9).indices, rows)
    assert tamis.Candidates.from_topk(rows).index_heads == 1


def test_what_must_not_be_cut():
    made = tamis.Candidates.from_csr(np.array([0, 1, 4]), np.array([7, 0, 1, 2]))
    with pytest.raises(tamis.Error, match="row 1 has 3 entries, the width is 2") as caught:
        made.to_fixed_width(2)
    why = caught.value
    assert (why.code, why.row, why.value, why.limit) == ("capacity_exceeded", 1, 3, 3)
    index = tamis.normalize(made, cu_q=np.array([0, 2], I32), kv_len=np.array([9], I32), q_heads=1, kv_heads=1)
    with pytest.raises(tamis.Error, match="row 1 has 3 entries") as caught:
        index.to_topk(2)
    assert caught.value.code == "capacity_exceeded"


def refused(call, code, words, **where):
    with pytest.raises(tamis.Error) as caught:
        call()
    assert caught.value.code == code and words in caught.value.message, caught.value
    for name, value in where.items():
        assert getattr(caught.value, name) == value, name


def ints(*values):
    return np.array(values, I32)


CSR, TOPK, MASK = tamis.Candidates.from_csr, tamis.Candidates.from_topk, tamis.Candidates.from_dense_mask
BSR, FLEX = tamis.Candidates.from_bsr, tamis.Candidates.from_block_mask


@pytest.mark.parametrize("call, words, where", [
    (lambda: CSR(ints(), ints()), "indptr: is empty", {}),
    (lambda: CSR(ints(1, 2), ints(0, 0)), "indptr: starts at 1", {"value": 1}),
    (lambda: CSR(ints(0, 3, 2, 3), ints(0, 0, 0)), "indptr: falls from 3 to 2 at row 1", {"row": 1, "value": 2}),
    (lambda: CSR(ints(0, 2), ints(0)), "indptr: ends at 2, there are 1 entries", {"value": 2}),
    (lambda: CSR(ints(0, 0, 0, 0), ints(), index_heads=2), "indptr: 3 rows are no multiple of 2 index heads", {}),
    (lambda: CSR(ints(0), ints(), index_heads=0), "index_heads: 0", {}),
    (lambda: CSR(np.zeros(2, np.uint32), ints()), "indptr: dtype U32, expected I32 or I64", {}),
    (lambda: CSR(ints(0), np.zeros(0)), "indices: dtype F64", {}),
    (lambda: CSR(ints(0).reshape(1, 1), ints()), "indptr: rank 2, expected 1", {}),
    (lambda: CSR(ints(0), ints().reshape(0, 1)), "indices: rank 2", {}),
    (lambda: CSR(ints(0), ints(), unit=0), "unit: 0 is outside", {"value": 0}),
    (lambda: CSR(ints(0), ints(), query_block=1 << 31), "query_block: 2147483648", {}),
    (lambda: CSR(ints(0), ints(), columns=-1), "columns: -1", {}),
    (lambda: CSR(ints(0), ints(), duplicates="keep"), "duplicates: 'keep'", {}),
    (lambda: CSR(ints(0, 1), np.array([1 << 40]), invalid="drop"), "does not fit 32 bits", {"value": 1 << 40}),
    (lambda: BSR(ints(0), ints(), 0, 4), "R: 0 is outside", {}),
    (lambda: BSR(ints(0), ints(), 4, -1), "C: -1 is outside", {}),
    (lambda: TOPK(ints(1, 2)), "indices: rank 1, expected 2 or 3 or 4", {}),
    (lambda: TOPK(np.zeros((2, 2))), "indices: dtype F64", {}),
    (lambda: TOPK(np.zeros((3, 2), I32), index_heads=2), "indices: 3 rows are no multiple", {}),
    (lambda: TOPK(np.zeros((3, 2, 1), I32), index_heads=3), "index_heads: 3, indices have 2", {}),
    (lambda: TOPK(np.zeros((3, 0, 1), I32)), "indices: have no heads", {}),
    (lambda: TOPK(np.zeros((3, 2), I32), heads_first=True), "heads_first: is for", {}),
    (lambda: MASK(np.zeros((2, 2), np.uint8)), "mask: dtype U8, expected BOOL", {}),
    (lambda: MASK(np.zeros(2, bool)), "mask: rank 1", {}),
    (lambda: MASK([]), "mask: is an empty list", {}),
    (lambda: MASK(np.zeros((0, 1, 2, 2), bool)), "mask: has no requests", {}),
    (lambda: MASK(np.zeros((0, 2, 2), bool)), "mask: has no heads", {}),
    (lambda: MASK([np.zeros((2, 2), bool), np.zeros((2, 2, 2), bool)]), "mask: request 1 has 2 heads", {"request": 1}),
    (lambda: MASK([np.zeros((1, 1, 2, 2), bool)]), "mask[0]: rank 4", {}),
    (lambda: MASK([np.ones((4, 4), bool), np.tri(4, dtype=bool)], unit=2, query_block=2),
     "mask: request 1, head 0: differs within the block of query 0 and token 1", {"request": 1}),
    (lambda: tamis.ALL.to_fixed_width(-1), "candidates", {}),
    (lambda: CSR(ints(0), ints()).to_fixed_width(-1), "width: -1", {}),
    (lambda: CSR(ints(0), ints()).to_csr("all"), "padding: 'all' is none of keep, drop", {}),
    (lambda: CSR(ints(0, 0), ints()).to_dense_mask(ints(0, 2), ints(1)), "cu_q: makes 2 rows", {}),
    (lambda: CSR(ints(0, 0), ints()).to_dense_mask(ints(0), ints(1)), "cu_q: 1 offsets", {}),
    (lambda: CSR(ints(0, 0), ints()).to_dense_mask(ints(0, 1), ints(-1)), "kv_len: -1", {}),
    *((lambda name=name: tamis.Candidates(ints(), ints(0), **{"index_heads": 1, name: 0}).to_dense_mask(ints(0), ints()),
       f"{name}: 0 is below 1", {"value": 0}) for name in ("unit", "query_block", "index_heads")),
    (lambda: tamis.Candidates(np.zeros((1, 2), I32), count=ints(3), index_heads=1).to_csr(),
     "cand_count: row 0: 3 is outside [0, 2]", {"row": 0, "limit": 3}),
    (lambda: tamis.Candidates(np.zeros((1, 2), I32), count=ints(1, 1), index_heads=1).to_csr(), "cand_count: 2", {}),
])
def test_refused_as_invalid_arguments(call, words, where):
    refused(call, "unsupported" if words == "candidates" else "invalid_argument", words, **where)


@pytest.mark.parametrize("call, words, where", [
    (lambda: CSR(ints(0, 1, 3), ints(0, 5, -2)), "indices: row 1: -2", {"row": 1, "value": -2}),
    (lambda: CSR(ints(0, 0, 2), np.array([0, 1 << 31])), "indices: row 1", {"row": 1, "limit": 1 << 31}),
    (lambda: CSR(ints(0, 1, 3), ints(0, 4, 5), columns=5), "indices: row 1: 5 is outside [0, 5)", {"limit": 5}),
    (lambda: BSR(ints(0, 1), ints(7), 2, 2, columns=7), "indices: row 0: 7", {"row": 0}),
    (lambda: TOPK(np.array([[0, -1], [-1, -3]])), "indices: row 1: -3", {"row": 1, "value": -3}),
    (lambda: TOPK(np.array([[[0], [9]]], I32), columns=9), "indices: row 1: 9", {"row": 1, "limit": 9}),
    (lambda: CSR(ints(0, 1), ints(3)).to_dense_mask(ints(0, 1), ints(3)), "cand_indices: row 0: 3",
     {"row": 0, "request": 0, "limit": 3}),
    (lambda: tamis.Candidates(ints(-5), ints(0, 1), index_heads=1).to_bsr(), "cand_indices: row 0: -5", {"row": 0}),
])
def test_refused_as_out_of_range(call, words, where):
    refused(call, "index_out_of_range", words, **where)


def test_what_may_be_dropped_is_left_to_normalize():
    made = CSR(ints(0, 3), ints(-7, 2, 900), columns=3, invalid="drop")
    assert made.to_csr()[1].tolist() == [-7, 2, 900]
    assert made.to_bsr()[1].tolist() == [2, 900]
    assert made.to_dense_mask(ints(0, 1), ints(4))[0].tolist() == [[[False, False, True, False]]]
    index = tamis.normalize(made, cu_q=ints(0, 1), kv_len=ints(4), q_heads=1, kv_heads=1)
    assert index.stats["invalid"] == 2


def flex(**changes):
    lists = dict(kv_num_blocks=np.ones((1, 1, 2), I32), kv_indices=np.zeros((1, 1, 2, 3), I32), BLOCK_SIZE=(2, 4))
    return SimpleNamespace(**{**lists, **changes})


@pytest.mark.parametrize("changes, words", [
    (dict(BLOCK_SIZE=4), "BLOCK_SIZE: 4 is no pair"),
    (dict(BLOCK_SIZE=(4, 0)), "KV_BLOCK_SIZE: 0"),
    (dict(kv_num_blocks=np.ones((1, 2), I32)), "kv_num_blocks: rank 2, expected 3"),
    (dict(kv_num_blocks=np.ones((1, 1, 2))), "kv_num_blocks: dtype F64"),
    (dict(kv_indices=np.zeros((1, 1, 3, 3), I32)), "kv_indices: shape (1, 1, 3, 3), kv_num_blocks (1, 1, 2)"),
    (dict(kv_num_blocks=np.full((1, 1, 2), 4, I32)), "kv_num_blocks: 4 is outside [0, 3]"),
    (dict(kv_num_blocks=np.full((1, 1, 2), -1, I32)), "kv_num_blocks: -1 is outside [0, 3]"),
    (dict(full_kv_indices=np.zeros((1, 1, 2, 3), I32)), "full_kv_indices: and full_kv_num_blocks are given both"),
    (dict(full_kv_indices=np.zeros((1, 2, 2, 3), I32), full_kv_num_blocks=np.zeros((1, 2, 2), I32)),
     "full_kv_num_blocks: shape (1, 2, 2)"),
    (dict(seq_lengths=3), "seq_lengths: 3 is no pair"),
    (dict(seq_lengths=(1,)), "seq_lengths: (1,) is no pair"),
    (dict(seq_lengths=(9, 9)), "seq_lengths: 9 queries are 5 blocks of 2, kv_num_blocks has 2"),
])
def test_block_masks_that_contradict_themselves(changes, words):
    refused(lambda: FLEX(flex(**changes)), "invalid_argument", words)


def test_block_masks_out_of_range():
    entries = np.zeros((1, 1, 2, 3), I32)
    entries[0, 0, 1, 0], entries[0, 0, 0, 1] = 3, 99  # the second does not count
    refused(lambda: FLEX(flex(kv_indices=entries, seq_lengths=(4, 12))), "index_out_of_range",
            "kv_indices: row 1: 3 is outside [0, 3)", row=1, value=3, limit=3)
    assert FLEX(flex(kv_indices=entries)).to_csr()[1].tolist() == [0, 3]
    with pytest.raises(TypeError, match="dict has no kv_num_blocks"):
        FLEX({})
    with pytest.raises(TypeError, match="indptr: expected an array"):
        CSR([0, 1], ints(0))


def test_sets_of_a_dense_batch_and_changed_lengths(rng):
    q, k, v = (rng.standard_normal((2, 3, 2, 8)).astype(np.float32) for _ in range(3))
    plan = tamis.plan(q, k, v, tamis.ALL)
    same(tamis.normalize(plan=plan).to_dense_mask(), [np.tri(3, dtype=bool)[None]] * 2)
    kv_len = ints(4)
    index = tamis.normalize(CSR(ints(0, 1), ints(3)), cu_q=ints(0, 1), kv_len=kv_len, q_heads=1, kv_heads=1)
    kv_len[0] = 3
    refused(index.to_dense_mask, "stale_plan", "")
    ragged = tamis.normalize(None, cu_q=ints(0, 1, 3), kv_len=ints(4, 4), q_heads=1, kv_heads=1)
    refused(ragged.to_block_mask, "invalid_argument", "cu_q: requests have different numbers of queries")
