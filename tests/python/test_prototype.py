"""The Triton prototype, rungs 1 to 4, against plain float64 attention over dense masks; what it refuses."""
import math
import mmap
import subprocess
import sys

import pytest

from prototype_problem import (BF16, DEVICE, F16, F32, NAN, PYTHON, Problem, index_of, ints, per_head, prototype,
                               random_mask, torch)
from tamis.prototype import launch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


# --- rungs 1 and 2

def whole_pages(problem, count):
    """`count` pages of each (request, KV head) and their mask [B, Hq, T]."""
    b = len(problem.lengths)
    pages = torch.stack([torch.randperm(problem.max_pages)[:count] for _ in range(b * problem.hkv)])
    mask = torch.zeros(b, problem.hkv, problem.max_pages, dtype=torch.bool)
    mask = mask.scatter(2, pages.view(b, problem.hkv, count), True)
    return ints(pages.view(b, problem.hkv, count).tolist()), per_head(mask.repeat_interleave(problem.page, 2), problem)


@pytest.mark.parametrize("hq, hkv, d, dv, page, count, dtype", [
    (4, 4, 64, 64, 16, 3, F32), (6, 2, 80, 96, 24, 4, F32), (8, 2, 96, 80, 64, 2, F16), (16, 2, 128, 128, 1, 9, BF16),
    (16, 1, 64, 20, 16, 5, F16)])
def test_fixed(hq, hkv, d, dv, page, count, dtype):
    problem = Problem([page * (count + 3)] * 2, hq, hkv, d, dv, page, dtype)
    pages, mask = whole_pages(problem, count)
    poison = ~mask.view(2, hkv, hq // hkv, -1).any(2).transpose(1, 2)[..., None]
    k, v = (x.masked_fill(poison, NAN).to(DEVICE) for x in (problem.k, problem.v))
    problem.check(*prototype.fixed_attention(problem.q.to(DEVICE), k, v, pages, page=page, scale=0.2), mask, 0.2)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("hq, hkv, d, dv, page, count, dtype", [
    (3, 1, 64, 64, 16, 5, F32), (8, 2, 80, 128, 24, 3, BF16), (16, 2, 128, 96, 64, 2, F16), (4, 4, 96, 96, 1, 17, F32)])
def test_paged(hq, hkv, d, dv, page, count, dtype, layout):
    problem = Problem([page * (count + 2)] * 3, hq, hkv, d, dv, page, dtype, layout)
    pages, mask = whole_pages(problem, count)
    q, k, v, table, _ = problem.store(mask)
    problem.check(*prototype.paged_attention(q, k, v, pages, table), mask)


# --- rungs 3 and 4

RAGGED = [  # hq, hkv, index heads, d, dv, page, block, dtype, layout
    (4, 4, 4, 64, 64, 16, 16, F32, "NHD"),
    (6, 2, 2, 80, 64, 24, 16, F32, "HND"),    # blocks cross pages
    (8, 2, 2, 96, 80, 16, 64, F16, "NHD"),    # pages of a block lie apart
    (8, 1, 1, 128, 128, 64, 32, BF16, "HND"),
    (16, 1, 1, 64, 96, 64, 64, F16, "NHD"),
    (6, 2, 1, 64, 64, 24, 64, F32, "HND"),    # one list for all heads
    (6, 2, 6, 64, 40, 16, 32, F32, "NHD"),    # a list for each query head
    (4, 2, 2, 32, 256, 1, 16, F32, "NHD"),
]


def ragged(hq, hkv, hi, d, dv, page, block, dtype, layout, causal=False):
    """A ragged problem of five queries in four requests, one of no tokens; its mask, index and arguments."""
    lengths, request = [150, 101, 0, 37], [0, 1, 2, 0, 3]
    problem = Problem(lengths, hq, hkv, d, dv, page, dtype, layout, request)
    q_pos = [149, 100, -1, 70, 500] if causal else None
    limits = [min(lengths[b], q_pos[n] + 1) if causal else lengths[b] for n, b in enumerate(request)]
    mask = random_mask(problem, hi, limits)
    index = index_of(mask, block, limits)
    q, k, v, table, kv_len = problem.store(per_head(mask, problem))
    arguments = dict(request=ints(request), q_pos=ints(q_pos) if causal else None)
    return problem, per_head(mask, problem), (q, k, v, index, table, kv_len), arguments


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", RAGGED)
def test_ragged(shape, causal):
    problem, mask, arrays, arguments = ragged(*shape, causal)
    problem.check(*prototype.ragged_attention(*arrays, **arguments), mask)


@pytest.mark.parametrize("shape, splits", list(zip(RAGGED, [2, 3, 7, 15, 2, 5, 4, 3])))
def test_split(shape, splits):
    problem, mask, arrays, arguments = ragged(*shape, causal=splits % 2 == 1)
    first = prototype.split_attention(*arrays, splits=splits, **arguments)
    problem.check(*first, mask)
    again = prototype.split_attention(*arrays, splits=splits, **arguments)
    assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_a_long_row_fills_every_share():
    """Shares of several tiles each, the last one shorter, and the last tile of the row not full."""
    problem = Problem([700], 2, 1, 64, page=16)
    mask = torch.rand(1, 1, problem.k.shape[1]) < 0.9
    mask &= torch.arange(problem.k.shape[1]) < 700
    index = index_of(mask, 16)
    q, k, v, table, kv_len = problem.store(per_head(mask, problem))
    for splits in (1, 3, 4, None):
        out, lse = prototype.attention(q, k, v, index, table, kv_len, splits=splits, return_lse=True)
        problem.check(out, lse, per_head(mask, problem))
    assert torch.is_tensor(prototype.attention(q, k, v, index, table, kv_len))
    assert 1 < prototype.choose_splits(q, k, v, index) <= 13


def test_choose_splits_goes_by_shapes():
    q, k, v = torch.zeros(1, 2, 16), torch.zeros(4, 16, 1, 16), torch.zeros(4, 16, 1, 16)
    def splits(rows, entries):
        return prototype.choose_splits(q.expand(rows, -1, -1), k, v, prototype.Index(
            torch.zeros(rows + 1), torch.zeros(entries), torch.zeros(entries), 16))
    assert splits(1, 0) == 1 and splits(1, 4) == 1   # nothing to share
    assert splits(1, 8) == 2 and splits(4, 400) == 2  # two tiles; 8 programs wanted where there is no device
    assert splits(1000, 400000) == 1


def test_entries_that_select_nothing():
    """A tile of them before the first token, a block far behind the page table, rows in which nothing is left."""
    problem = Problem([90, 90, 0], 2, 1, 64, request=[0, 1, 1, 2])
    mask = torch.zeros(4, 1, problem.k.shape[1], dtype=torch.bool)
    mask[0, 0, [80, 85]] = True
    far = 2 ** 26
    index = prototype.Index(torch.tensor([0, 6, 7, 9, 10], device=DEVICE),
                            ints([0, 1, 2, 3, 5, far, 5, 0, far, 0]),
                            torch.tensor([0, 0, 0, 0, 0b100001, -1, -1, 0, -1, -1], device=DEVICE), 16)
    q, k, v, table, kv_len = problem.store(per_head(mask, problem))
    for splits in (1, 2):
        result = prototype.attention(q, k, v, index, table, kv_len, q_pos=ints([89, -1, 89, 5]),
                                     request=ints(problem.request), splits=splits, return_lse=True)
        problem.check(*result, per_head(mask, problem))


def test_nan_selected_by_a_neighbour():
    """Token 5 is NaN: head 0 and query 0 select it, head 1 and query 1 do not."""
    problem = Problem([20], 2, 1, 64, request=[0, 0])
    mask = torch.zeros(2, 2, problem.k.shape[1], dtype=torch.bool)
    mask[:, :, [2, 7]] = True
    mask[0, 0, 5] = True
    problem.k[0, 5] = problem.v[0, 5] = NAN
    q, k, v, table, kv_len = problem.store(mask)
    for splits in (1, 2):
        out, lse = prototype.attention(q, k, v, index_of(mask, 16), table, kv_len, request=ints([0, 0]),
                                       splits=splits, return_lse=True)
        assert out[0, 0].isnan().all() and lse[0, 0].isnan()
        others = [(0, 1), (1, 0), (1, 1)]
        assert all(out[at].isfinite().all() and lse[at].isfinite() for at in others)


def test_no_rows():
    problem = Problem([20], 2, 1, 64)
    _, k, v, table, _ = problem.store(torch.zeros(1, 2, 32, dtype=torch.bool))
    index = index_of(torch.zeros(0, 1, 32), 16)
    out, lse = prototype.attention(problem.q[:0].to(DEVICE), k, v, index, table[:0], ints([]), return_lse=True)
    assert out.shape == (0, 2, 64) and lse.shape == (0, 2)


def reserved(elements):
    """Memory that costs nothing where it is not touched."""
    if DEVICE == "cuda":
        return torch.empty(elements, dtype=F16, device=DEVICE)
    no_reserve = 0x4000  # of Linux; Python names it from 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return torch.frombuffer(mmap.mmap(-1, 2 * elements, flags=flags), dtype=F16)


@pytest.mark.parametrize("rung", [2, 3, 4, 5])
def test_pages_beyond_32_bits(rung):
    """Page 4 begins at element 2^32, which 32 bits take for element 0, where page 0 holds NaN."""
    stride = 2 ** 30
    cache = reserved(4 * stride + 16 * 64).as_strided((5, 16, 1, 64), (stride, 64, 64, 1))
    problem = Problem([16], 1, 1, 64, dtype=F16)
    cache[0], cache[4] = NAN, problem.k[0].to(DEVICE)
    problem.v = problem.k
    q, table, mask = problem.q.to(DEVICE), ints([[4]]), torch.ones(1, 1, 16, dtype=torch.bool)
    if rung == 2:
        result = prototype.paged_attention(q, cache, cache, ints([[[0]]]), table)
    elif rung == 5:
        low = high = cache[:, 0]  # bounds as far apart: the score is that of token 0
        score = prototype.page_scores(q, low, high, table, ints([16]), page=16)
        want = problem.q[0, 0].double() @ problem.k[0, 0, 0].double()
        assert abs(score.item() - want) < 1e-4
        return
    else:
        result = prototype.attention(q, cache, cache, index_of(mask, 16), table, ints([16]), splits=rung - 2,
                                     return_lse=True)
    problem.check(*result, mask)


def merged(states):
    """O and LSE of states (m, l, o), o of one column."""
    m, l, o = (torch.tensor([[x]], dtype=F32, device=DEVICE) for x in zip(*states))
    out, lse = prototype.merge_states(m, l, o[..., None])
    return out.item(), lse.item()


def test_merge_worked_numbers():
    """docs/semantics.md section 14."""
    out, lse = merged([(2, 3, 6), (1, 4, 8)])
    assert out == pytest.approx(2) and lse == pytest.approx(2 + math.log(3 + 4 / math.e))
    _, lse = merged([(8, 12, 0), (7, 18, 0), (9, 10, 0), (6, 20, 0)])
    assert math.exp(lse - 9) == pytest.approx(17.846, abs=1e-3)


@pytest.mark.parametrize("empty", [(-math.inf, 0, NAN), (50, 0, NAN), (NAN, 0, math.inf)])
def test_empty_states_are_neutral(empty):
    assert merged([empty, (2, 3, 6), empty]) == merged([(2, 3, 6)])
    assert merged([empty, empty, empty]) == (0, -math.inf)
    assert all(map(math.isnan, merged([empty, (2, NAN, NAN), (1, 4, 8)])))  # a NaN that was selected is not empty


# --- refusals

def test_what_does_not_fit_is_a_value_error():
    problem = Problem([30, 20], 4, 2, 64)
    mask = random_mask(problem, 2, [30, 20])
    q, k, v, table, kv_len = problem.store(per_head(mask, problem))
    index = index_of(mask, 16)
    attention, prepare = prototype.attention, prototype.prepare
    assert attention(q, k, v, index, table, kv_len).shape == q.shape
    rows = ints([[0, 1]] * 4)
    wide = torch.zeros(2, 4, 300, device=DEVICE)
    low, wide_low = k[:, 0], torch.zeros(7, 2, 65, device=DEVICE)
    for message, call in {
        "q: shape [4, 64], expected": lambda: attention(q[0], k, v, index, table, kv_len),
        "q: dtype torch.float64, expected": lambda: attention(q.double(), k.double(), v.double(), index, table, kv_len),
        "q: 3 heads, expected a multiple of the 2": lambda: attention(q[:, :3], k, v, index, table, kv_len),
        "q: head size 32, k has 64": lambda: attention(q[..., :32], k, v, index, table, kv_len),
        "q: the last axis has stride 2": lambda: attention(q[..., ::2], k[..., :32], v, index, table, kv_len),
        "k: the last axis has stride 2": lambda: attention(q[..., :32], k[..., ::2], v, index, table, kv_len),
        "k: dtype torch.float16, q has": lambda: attention(q, k.half(), v, index, table, kv_len),
        "k: head size 300, expected 1 to 256": lambda: attention(wide, *[wide[:, None, :2]] * 2, index, table, kv_len),
        "does not fit k": lambda: attention(q, k, v[:, :8], index, table, kv_len),
        "expected four axes": lambda: attention(q, k, v[0], index, table, kv_len),
        "index: 3 rows for 2": lambda: attention(
            q, k, v, prototype.Index(index.indptr[:4], index.blocks, index.members, 16), table, kv_len),
        "index: blocks of 128": lambda: attention(
            q, k, v, prototype.Index(index.indptr, index.blocks, index.members, 128), table, kv_len),
        "index.members: shape": lambda: attention(
            q, k, v, prototype.Index(index.indptr, index.blocks, index.members[1:], 16), table, kv_len),
        "index.blocks: dtype": lambda: attention(
            q, k, v, prototype.Index(index.indptr, index.blocks.long(), index.members, 16), table, kv_len),
        "page_table: shape": lambda: attention(q, k, v, index, table[:1], kv_len),
        "page_table: must be contiguous": lambda: attention(
            q, k, v, index, table.repeat_interleave(2, 1)[:, ::2], kv_len),
        "kv_len: shape [1], expected [2]": lambda: attention(q, k, v, index, table, kv_len[:1]),
        "kv_len: dtype torch.int64": lambda: attention(q, k, v, index, table, kv_len.long()),
        "q_pos: shape [1]": lambda: attention(q, k, v, index, table, kv_len, q_pos=kv_len[:1]),
        "request: dtype": lambda: attention(q, k, v, index, table, kv_len, request=kv_len.long()),
        "splits: 0, expected 1 to 64": lambda: attention(q, k, v, index, table, kv_len, splits=0),
        "splits: 65": lambda: attention(q, k, v, index, table, kv_len, splits=65),
        "block: 24, expected": lambda: prepare(rows, kv_len, block=24),
        "unit 0, ": lambda: prepare(rows, kv_len, block=16, unit=0),
        "window -1, ": lambda: prepare(rows, kv_len, block=16, window=-1),
        "candidates: 4 rows, expected a multiple of the 3": lambda: prepare(rows, kv_len, block=16, index_heads=3),
        "candidates: dtype": lambda: prepare(rows.float(), kv_len, block=16),
        "kv_len: shape [2], expected [4]": lambda: prepare(rows, kv_len, block=16),
        "q_pos: shape [1], expected [2]": lambda: prepare(rows, kv_len, block=16, index_heads=2, q_pos=kv_len[:1]),
        "pages: shape [4, 2]": lambda: prototype.paged_attention(q, k, v, rows, table),
        "pages: shape [4, 2], expected [2, 2": lambda: prototype.fixed_attention(q, k[:2], v[:2], rows, page=8),
        "k: lies on meta": lambda: attention(q, k.to("meta"), v, index, table, kv_len),
        "kv_len: lies on meta": lambda: attention(q, k, v, index, table, kv_len.to("meta")),
        "index.indptr: dtype": lambda: attention(
            q, k, v, prototype.Index(index.indptr.float(), index.blocks, index.members, 16), table, kv_len),
        "v: dtype": lambda: prototype.paged_attention(q, k, v.half(), rows.view(2, 2, 2), table),
        "page_table: shape [1": lambda: prototype.paged_attention(q, k, v, rows.view(2, 2, 2), table[:1]),
        "k: dtype torch.float16": lambda: prototype.page_scores(q, low.half(), low, table, kv_len, page=16),
        "high: strides": lambda: prototype.page_scores(q, low, wide_low[..., :64], table, kv_len, page=16),
        "kv_len: shape [1], ": lambda: prototype.page_scores(q, low, low, table, kv_len[:1], page=16),
        "page_table: dtype torch.int64": lambda: prototype.page_scores(q, low, low, table.long(), kv_len, page=16),
        "k: shape [7, 2, 64]": lambda: prototype.select_attention(q, low, v, low, low, table, kv_len, top=1),
        "page: 0, expected": lambda: prototype.fixed_attention(q, k[:2], v[:2], rows.view(2, 2, 2), page=0),
        "k: 1 requests, q has 2": lambda: prototype.fixed_attention(q, k[:1], v[:1], rows.view(2, 2, 2), page=8),
    }.items():
        with pytest.raises(ValueError) as error:
            call()
        assert message in str(error.value)


def test_cpu_tensors_need_the_interpreter(monkeypatch):
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    problem = Problem([16], 1, 1, 64)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        prototype.fixed_attention(problem.q, problem.k, problem.v, torch.zeros(1, 1, 1, dtype=torch.int32), page=16)


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_missing_package_is_named(package):
    code = f"import sys; sys.path.append({PYTHON!r}); sys.modules[{package!r}] = None; import tamis.prototype"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith(("ImportError", "ModuleNotFoundError"))
    assert "tamis.prototype needs the packages torch and triton" in last and package in last.split(": ", 2)[2]
