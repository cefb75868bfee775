"""The Triton prototype, index build and rung 5: raw candidates against sets of docs/semantics.md written out in Python,
the selector against float64, and both in a CUDA graph where there is a device."""
import math

import pytest
from hypothesis import given, settings, strategies as st

from prototype_problem import BF16, DEVICE, F16, F32, NAN, Problem, ints, needs_device, per_head, prototype, torch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


# --- the index build

def judge(candidates, lengths, request, q_pos, index_heads, unit, window, sink, causal):
    """Sets of docs/semantics.md sections 3 and 4, one for each row."""
    sets = []
    for r, row in enumerate(candidates):
        n = r // index_heads
        length = lengths[request[n]]
        listed = {t for e in row if e >= 0 for t in range(e * unit, min((e + 1) * unit, length))}
        sets.append({t for t in range(length) if q_pos[n] >= 0 and (not causal or t <= q_pos[n])
                     and (t in listed or t < sink or q_pos[n] - window < t <= q_pos[n])})
    return sets


def read(index):
    """Sets of an Index, checking its form."""
    indptr, blocks, members = index.indptr.tolist(), index.blocks.tolist(), index.members.tolist()
    assert indptr[0] == 0 and len(blocks) == len(members) >= indptr[-1]
    sets = []
    for begin, end in zip(indptr, indptr[1:]):
        assert begin <= end and blocks[begin:end] == sorted(set(blocks[begin:end])), "not sorted and unique"
        assert all(members[begin:end]), "an entry that selects nothing"
        sets.append({blocks[e] * index.block + i for e in range(begin, end) for i in range(64) if members[e] >> i & 1})
    return sets


@st.composite
def raw_candidates(draw):
    lengths = draw(st.lists(st.integers(0, 300), min_size=1, max_size=3))
    request = draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=4))
    q_pos = [draw(st.integers(-2, lengths[b] + 5)) for b in request]
    unit = draw(st.sampled_from([1, 1, 5, 8, 16, 24, 32, 64, 100, 128]))
    index_heads, width = draw(st.integers(1, 2)), draw(st.integers(0, 12))
    entries = st.one_of(st.just(-1), st.integers(0, 300 // unit + 1), st.sampled_from([-2, -2 ** 31, 2 ** 31 - 1]))
    rows = [draw(st.lists(entries, min_size=width, max_size=width)) for _ in range(len(request) * index_heads)]
    sizes = st.one_of(st.just(0), st.integers(0, 150))
    return rows, lengths, request, q_pos, index_heads, unit, draw(sizes), draw(sizes), draw(st.booleans())


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(raw_candidates(), st.sampled_from([16, 32, 64]))
def test_prepare_property(raw, block):
    rows, lengths, request, q_pos, index_heads, unit, window, sink, causal = raw
    index = prototype.prepare(
        ints(rows).view(len(rows), -1), ints(lengths), block=block, unit=unit, index_heads=index_heads, window=window,
        sink=sink, causal=causal, q_pos=ints(q_pos), request=ints(request))
    assert read(index) == judge(rows, lengths, request, q_pos, index_heads, unit, window, sink, causal)


def prepared(row, length, block=16, **options):
    return read(prototype.prepare(torch.tensor([row], device=DEVICE), ints([length]), block=block, **options))[0]


def test_prepare_by_hand():
    assert prepared([3, -1, 3, 0, 999, -7], 20) == {0, 3}
    assert prepared([63, 63], 64, block=64) == {63}                                   # the sign bit
    assert prepared([0, 1], 24, unit=16) == set(range(24))                            # kv_len cuts the last block
    assert prepared([2], 100, unit=24) == set(range(48, 72))
    assert prepared([7, 0], 8, window=2, sink=1) == {0, 6, 7}                         # counted once (B1 of faults.md)
    assert prepared([-1], 70, block=64, unit=64, window=70, sink=70) == set(range(70))
    assert prepared([2 ** 62, 2 ** 63 - 1], 70, unit=64, block=64) == set()           # no product wraps round
    assert prepared([2 ** 31 - 1 - 2 ** 20], 2 ** 31 - 1) == {2 ** 31 - 1 - 2 ** 20}  # lengths up to 2^31
    assert prepared([4, 9, 30], 40, causal=True, q_pos=ints([9])) == {4, 9}
    assert prepared([4], 40, causal=True, q_pos=ints([-1]), sink=3) == set()
    assert prepared([39, 5], 40, window=3, q_pos=ints([9])) == {5, 7, 8, 9, 39}       # not causal: window ends at q_pos


def test_prepare_and_attend():
    """Raw rows to O through the public calls, in decode: positions are the last tokens."""
    problem = Problem([90, 61, 33], 6, 2, 80, page=24)
    rows = [[3, 3, -1, 0], [1, 2, -1, -1], [-1, -1, -1, -1], [0, 40, 2, 2], [1, 1, 1, 1], [-1, 0, 0, -1]]
    options = dict(index_heads=2, unit=24, window=7, sink=2, causal=True)
    sets = judge(rows, problem.lengths, [0, 1, 2], [89, 60, 32], 2, 24, 7, 2, True)
    mask = torch.zeros(6, problem.k.shape[1], dtype=torch.bool)
    for r, tokens in enumerate(sets):
        mask[r, list(tokens)] = True
    mask = per_head(mask.view(3, 2, -1), problem)
    q, k, v, table, kv_len = problem.store(mask)
    index = prototype.prepare(ints(rows), kv_len, block=16, **options)
    problem.check(*prototype.attention(q, k, v, index, table, kv_len, splits=2, return_lse=True), mask)


def test_sizes_follow_from_shapes():
    """Tensors without memory refuse whatever would look at a value, which a capture must not either."""
    def empty(*extents):
        return torch.zeros(extents, dtype=torch.int32, device="meta")
    index = prototype.prepare(empty(6, 5), empty(2), block=16, unit=32, index_heads=2, window=33, sink=17, causal=True,
                              q_pos=empty(3), request=empty(3))
    assert index.rows == 6 and index.blocks.shape == index.members.shape == (6 * (5 * 2 + 3 + 2),)
    low, high = prototype.page_bounds(torch.zeros(9, 16, 2, 64, device="meta"), empty(2, 4), empty(2))
    assert low.shape == high.shape == (9, 2, 64)
    assert prototype.top_pages(torch.zeros(2, 2, 4, device="meta"), 3).shape == (4, 3)


# --- rung 5

def mapped(problem):
    """Tensors as a serving loop has them: all tokens below kv_len hold numbers, the rest is NaN."""
    b, tokens = len(problem.lengths), problem.k.shape[1]
    held = torch.arange(tokens) < torch.tensor(problem.lengths)[:, None]
    return problem.store(held[:, None].expand(b, problem.hq, tokens))


def float64_bounds(problem):
    """Upper bounds [B, Hkv, max_pages] in float64, -inf for pages past kv_len."""
    bounds = torch.full((len(problem.lengths), problem.hkv, problem.max_pages), -math.inf, dtype=torch.float64)
    group = problem.hq // problem.hkv
    for b, length in enumerate(problem.lengths):
        for h in range(problem.hkv):
            for j in range(-(-length // problem.page)):
                k = problem.k[b, j * problem.page:min((j + 1) * problem.page, length), h].double()
                q = problem.q[b, h * group:(h + 1) * group].double()
                bounds[b, h, j] = torch.maximum(q * k.amin(0), q * k.amax(0)).sum(1).max()
    return bounds


@pytest.mark.parametrize("hq, hkv, d, page, dtype, layout", [
    (4, 4, 64, 16, F32, "NHD"), (6, 2, 80, 24, BF16, "HND"), (16, 1, 128, 64, F16, "NHD"), (8, 2, 96, 1, F32, "NHD")])
def test_scores(hq, hkv, d, page, dtype, layout):
    problem = Problem([page * 9 - page // 2, page * 3, 0], hq, hkv, d, page=page, dtype=dtype, layout=layout)
    q, k, _, table, kv_len = mapped(problem)
    low, high = prototype.page_bounds(k, table, kv_len)
    scores = prototype.page_scores(q, low, high, table, kv_len, page=page).double().cpu()
    torch.testing.assert_close(scores, float64_bounds(problem), rtol=1e-5, atol=1e-4)


def test_scores_of_many_pages():
    """More pages than a tile of the kernel."""
    problem = Problem([16 * 70 - 3], 2, 2, 64)
    q, k, _, table, kv_len = mapped(problem)
    scores = prototype.page_scores(q, *prototype.page_bounds(k, table, kv_len), table, kv_len, page=16)
    torch.testing.assert_close(scores.double().cpu(), float64_bounds(problem), rtol=1e-5, atol=1e-4)


def test_top_pages():
    inf = math.inf
    scores = torch.tensor([[[1, 5, 3, -inf], [-inf, -inf, -inf, -inf]], [[0, 0, -7, 2], [4, -inf, -inf, -inf]]])
    best = prototype.top_pages(scores.to(DEVICE), 3).cpu().sort(1).values
    assert best.tolist() == [[0, 1, 2], [-1, -1, -1], [0, 1, 3], [-1, -1, 0]]
    assert prototype.top_pages(scores.to(DEVICE), 9).shape == (4, 4)


def selected(problem, top, window, sink):
    """The mask [B, Hq, T] that rung 5 must attend to."""
    best = float64_bounds(problem).topk(min(top, problem.max_pages), 2)
    token = torch.arange(problem.k.shape[1])
    length = torch.tensor(problem.lengths)[:, None, None]
    pages = torch.zeros(len(problem.lengths), problem.hkv, problem.max_pages, dtype=torch.bool)
    pages.scatter_(2, best.indices, best.values > -math.inf)
    mask = pages.repeat_interleave(problem.page, 2) | (token < sink) | (token >= length - window)
    return per_head(mask & (token < length), problem)


@pytest.mark.parametrize("hq, hkv, d, dv, page, layout, top, window, sink, splits", [
    (8, 2, 64, 64, 16, "NHD", 2, 20, 4, 2), (3, 1, 80, 128, 24, "HND", 2, 0, 0, None),
    (4, 4, 96, 64, 64, "NHD", 9, 5, 70, 1)])
def test_select(hq, hkv, d, dv, page, layout, top, window, sink, splits):
    problem = Problem([page * 8 - 5, page * 3 + 1, 0, 3], hq, hkv, d, dv, page, F32, layout)
    q, k, v, table, kv_len = mapped(problem)
    low, high = prototype.page_bounds(k, table, kv_len)
    result = prototype.select_attention(q, k, v, low, high, table, kv_len, top=top, window=window, sink=sink,
                                        splits=splits, return_lse=True)
    problem.check(*result, selected(problem, top, window, sink))


@needs_device
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_select_in_a_graph(dtype):
    """One capture, replayed with other queries, lengths, tables and caches, gives what a fresh call gives."""
    shapes = ([640, 333, 7], [64, 1, 640], [0, 0, 500])
    problems = [Problem([640, 640, 640], 8, 2, 128, page=16, dtype=dtype) for _ in shapes]
    for problem, lengths in zip(problems, shapes):
        problem.lengths = lengths
    steps = [mapped(problem) for problem in problems]
    arrays = [x.clone() for x in steps[0]]
    q, k, v, table, kv_len = arrays
    low, high = prototype.page_bounds(k, table, kv_len)

    def step():
        return prototype.select_attention(q, k, v, low, high, table, kv_len, top=5, window=20, sink=4, return_lse=True)

    graph, result = prototype.capture(step)
    for problem, tensors in zip(problems, steps):
        for mine, new in zip(arrays, tensors):
            mine.copy_(new)
        for mine, new in zip((low, high), prototype.page_bounds(k, table, kv_len)):
            mine.copy_(new)
        for x in result:
            x.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(result, step()))
        if dtype == F32:  # bounds that round to one bfloat16 would leave the choice open
            problem.check(*result, selected(problem, 5, 20, 4))


@needs_device
def test_prepare_in_a_graph():
    """Fixed capacity: rows and lengths change between replays."""
    rows, kv_len = torch.full((4, 300), -1, dtype=torch.int32, device=DEVICE), ints([0, 0])
    options = dict(block=32, unit=1, index_heads=2, window=30, sink=3, causal=True)
    graph, index = prototype.capture(lambda: prototype.prepare(rows, kv_len, **options))
    for lengths in ([5, 2000], [70, 0], [1999, 1999]):
        rows.copy_(torch.randint(-2, 2100, rows.shape))
        kv_len.copy_(ints(lengths))
        graph.replay()
        assert read(index) == judge(rows.tolist(), lengths, [0, 1], [x - 1 for x in lengths], 2, 1, 30, 3, True)
