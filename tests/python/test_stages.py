"""normalize, plan, schedule and run: the same bits as attention(), and what does not belong together is refused."""
import threading

import numpy as np
import pytest

import tamis
from judge import Case
from test_attention import candidates_of, decode


def stages(case, candidates=None, **options):
    arguments = case.arguments()
    plan = tamis.plan(case.q, case.k, case.v, candidates or candidates_of(case), **arguments, **options)
    index = tamis.normalize(plan=plan)
    return plan, index, tamis.schedule(plan, index)


def test_same_bits_as_in_one_call(rng):
    case = decode(rng)
    plan, index, schedule = stages(case)
    out, lse = tamis.run(plan, schedule, case.q, case.k, case.v, return_lse=True)
    whole, whole_lse = tamis.attention(case.q, case.k, case.v, candidates_of(case), return_lse=True,
                                       **case.arguments())
    np.testing.assert_array_equal(out, whole)
    np.testing.assert_array_equal(lse, whole_lse)
    room, room_lse = np.full_like(out, np.nan), np.full_like(lse, np.nan)
    assert tamis.run(plan, schedule, case.q, case.k, case.v, out=room, lse=room_lse) is room
    np.testing.assert_array_equal(room, whole)
    np.testing.assert_array_equal(room_lse, whole_lse)
    assert plan.backend == "cpu" and not plan.on_device and plan.workspace_bytes == 0
    assert schedule.info["path"] in ("direct", "dense") and schedule.info["tasks"] > 0


def test_layers_share_a_schedule(rng):
    case = decode(rng, poison=False)
    plan, _, schedule = stages(case)
    for _ in range(3):
        k, v = (rng.standard_normal(case.k.shape).astype(np.float32) for _ in range(2))
        out = tamis.run(plan, schedule, case.q, k, v)
        np.testing.assert_array_equal(
            out, tamis.attention(case.q, k, v, candidates_of(case), **case.arguments()))


def test_a_plan_serves_other_lists(rng):
    case, other = decode(rng), decode(rng, kv_len=[80, 47, 9], rows=[[79], [], [0, 46], [1], [8], [8, 8]])
    plan, _, _ = stages(case)
    index = tamis.normalize(candidates_of(other), plan=plan, kv_len=other.kv_len, page_table=other.table)
    out = tamis.run(plan, tamis.schedule(plan, index), other.q, other.k, other.v)
    np.testing.assert_allclose(out, other.expected()[0], rtol=2e-5, atol=2e-5)


def test_the_plans_arrays_are_read_anew(rng):
    case = decode(rng, poison=False)
    plan, _, _ = stages(case)
    case.kv_len[0] = 72
    out = tamis.run(plan, tamis.schedule(plan, tamis.normalize(plan=plan)), case.q, case.k, case.v)
    np.testing.assert_array_equal(
        out, tamis.attention(case.q, case.k, case.v, candidates_of(case), **case.arguments()))


def test_dense_batch(rng):
    q, k, v = (rng.standard_normal((2, 3, 2, 8)).astype(np.float32) for _ in range(3))
    plan = tamis.plan(q, k, v, tamis.ALL)
    schedule = tamis.schedule(plan, tamis.normalize(plan=plan))
    out, lse = tamis.run(plan, schedule, q, k, v, return_lse=True)
    assert out.shape == q.shape and lse.shape == (2, 3, 2)
    np.testing.assert_array_equal(out, tamis.attention(q, k, v, tamis.ALL))


def test_paths_and_splits(rng):
    case = decode(rng)
    expected, _ = case.expected()
    for options in (dict(path="direct"), dict(path="dense"), dict(splits=3), dict(batch_invariant=True),
                    dict(bundle="rows"), dict(block=64)):
        plan, _, schedule = stages(case, **options)
        out = tamis.run(plan, schedule, case.q, case.k, case.v)
        np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)
        if "path" in options:
            assert schedule.info["path"] == options["path"]
    plan, _, schedule = stages(case, path="gather")
    assert "gather" in schedule.info["reason"]
    with pytest.raises(tamis.Error, match="gather") as caught:
        stages(case, path="gather", fallback="refuse")
    assert caught.value.code == "unsupported"


def test_index_sets_can_be_read(rng):
    case = decode(rng, window=3, sink=1)
    _, index, _ = stages(case)
    indptr, tokens = index.to_tokens()
    assert indptr.dtype == np.int64 and tokens.dtype == np.int32
    at = 0
    for mask in case.masks:
        for query in mask:
            for head in query:
                np.testing.assert_array_equal(tokens[indptr[at]:indptr[at + 1]], np.flatnonzero(head))
                at += 1
    assert at + 1 == len(indptr)
    assert index.indptr[-1] == len(index.blocks) == len(index.slots) == len(index.members) == len(index.full)
    assert index.stats["raw"] == 17 and index.stats["padding"] == 1 and index.stats["duplicates"] == 1
    assert index.rows["request"].tolist() == [0, 0, 1, 1, 2, 2]
    assert index.rows["index_head"].tolist() == [0, 1] * 3
    spans = index.spans
    for span in spans:  # where tokens lie, by the page table
        request = int(index.rows["request"][np.searchsorted(index.indptr, np.searchsorted(
            index.span_begin, np.flatnonzero(spans == span)[0], "right") - 1, "right") - 1])
        page, offset = divmod(int(span["token"]), 16)
        assert span["slot"] == case.table[request, page] * 16 + offset
    with pytest.raises(ValueError):
        index.blocks[0] = 3
    assert index.poll() == index.stats


def test_without_a_plan(rng):
    case = decode(rng)
    index = tamis.normalize(candidates_of(case), cu_q=case.cu_q, kv_len=case.kv_len, q_heads=4, kv_heads=2,
                            page_size=16)
    _, planned, _ = stages(case)
    for one, other in zip(index.to_tokens(), planned.to_tokens()):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(tamis.Error, match="page_table: is judged together with the cache"):
        tamis.normalize(candidates_of(case), cu_q=case.cu_q, kv_len=case.kv_len, q_heads=4, kv_heads=2,
                        page_table=case.table)
    with pytest.raises(tamis.Error, match="q_heads: is missing"):
        tamis.normalize(candidates_of(case), cu_q=case.cu_q, kv_len=case.kv_len, kv_heads=2)
    with pytest.raises(TypeError, match="candidates: missing"):
        tamis.normalize(cu_q=case.cu_q)


def test_what_does_not_belong_together(rng):
    case = decode(rng)
    plan, index, schedule = stages(case)
    other, other_index, other_schedule = stages(case)
    for call in (lambda: tamis.schedule(plan, other_index),
                 lambda: tamis.run(plan, other_schedule, case.q, case.k, case.v)):
        with pytest.raises(tamis.Error) as caught:
            call()
        assert caught.value.code == "stale_plan"
    case.kv_len[0] -= 1  # under the feet of a schedule
    with pytest.raises(tamis.Error) as caught:
        tamis.run(plan, schedule, case.q, case.k, case.v)
    assert caught.value.code == "stale_plan"
    with pytest.raises(tamis.Error, match="causal: is the plan's"):
        tamis.normalize(plan=plan, causal=False)
    with pytest.raises(tamis.Error, match="into: the plan is one of the host"):
        tamis.normalize(plan=plan, into=index)


def test_parts_in_the_wrong_place_are_named(rng):
    case = decode(rng)
    plan, index, schedule = stages(case)
    arrays = case.q, case.k, case.v
    for call, words in ((lambda: tamis.normalize(plan), "candidates: expected .*, not Plan; give a plan as plan="),
                        (lambda: tamis.normalize(plan=index), "plan: expected a Plan .*, not IndexSet"),
                        (lambda: tamis.normalize(plan=plan, into=plan), "into: expected an IndexSet, not Plan"),
                        (lambda: tamis.schedule(index, plan), "plan: expected a Plan .*, not IndexSet"),
                        (lambda: tamis.schedule(plan, schedule), "index: expected an IndexSet .*, not Schedule"),
                        (lambda: tamis.run(schedule, plan, *arrays), "plan: expected a Plan .*, not Schedule"),
                        (lambda: tamis.run(plan, plan, *arrays), "schedule: expected a Schedule .*, not Plan"),
                        (lambda: tamis.run(plan, index, *arrays), "schedule: expected a Schedule .*, not IndexSet"),
                        (lambda: tamis.run(index, schedule, *arrays), "plan: expected a Plan .*, not IndexSet")):
        with pytest.raises(TypeError, match=f"^{words}"):
            call()


def test_poll_of_the_host_has_nothing_to_say(rng):
    case = decode(rng)
    tamis.attention(*(case.q, case.k, case.v), candidates_of(case), **case.arguments())
    assert tamis.poll() == {}


@pytest.mark.parametrize("name, value", [
    ("block", 7), ("block", -16), ("block", 256), ("splits", -1), ("density", 1.5), ("density", -0.1),
    ("density", float("nan")), ("row_entries", -1), ("max_kv_len", -1), ("workspace_budget", -1), ("path", "gathered"),
    ("ring", "long"), ("engine", "gather")])
def test_a_plan_refuses_numbers_out_of_range(rng, name, value):
    case = decode(rng)
    with pytest.raises(tamis.Error, match=f"^invalid_argument: {name}: ") as caught:
        tamis.plan(case.q, case.k, case.v, candidates_of(case), **case.arguments(), **{name: value})
    assert caught.value.code == "invalid_argument"


def test_a_plan_takes_numbers_in_range(rng):
    for options in (*(dict(block=block) for block in (0, 16, 32, 64, 128)), dict(density=0), dict(density=1.0),
                    dict(ring="short"), dict(engine="prefill"), dict(workspace_budget=0), dict(causal=np.False_, batch_invariant=np.True_)):
        case = decode(rng)
        tamis.plan(case.q, case.k, case.v, candidates_of(case), **{**case.arguments(), **options})
    for name in ("scale", "softcap", "density"):
        with pytest.raises(TypeError, match=f"^{name}: expected a number, not str"):
            tamis.plan(case.q, case.k, case.v, candidates_of(case), **{**case.arguments(), name: "1"})


def test_layers_of_another_shape_are_refused(rng):
    case = decode(rng)
    plan, _, schedule = stages(case)
    out = np.full((3, 4, 16), 7, np.float32)
    for q, k, v in ((case.q[:2], case.k, case.v), (case.q, case.k[:4], case.v[:4]),
                    (case.q.astype(np.float16), case.k, case.v), (case.q, case.k, case.v[..., :8])):
        with pytest.raises(tamis.Error):
            tamis.run(plan, schedule, q, k, v, out=out)
    assert (out == 7).all()


def test_threads_of_python(rng):
    """Runs at once, of one schedule and of several: contexts and workspaces have one user at a time."""
    case = decode(rng, poison=False, rows="all", index_heads=1, q_len=[4, 4, 1], kv_len=[600, 300, 5])
    plan, _, schedule = stages(case, tamis.ALL, splits=4)
    qs = [rng.standard_normal(case.q.shape).astype(np.float32) for _ in range(6)]
    expected = [tamis.run(plan, schedule, q, case.k, case.v) for q in qs]
    wrong = []

    def work(i):
        for round in range(20):
            q = qs[(i + round) % len(qs)]
            if round % 2:
                got = tamis.run(plan, schedule, q, case.k, case.v)
            else:
                one = stages(case, tamis.ALL, splits=4)
                got = tamis.run(one[0], one[2], q, case.k, case.v)
            if not np.array_equal(got, expected[(i + round) % len(qs)]):
                wrong.append((i, round))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_number_of_threads(rng):
    case = Case(rng, [3, 2], [400, 70], rows="all", dim=16)
    results = []
    for threads in (1, 2, 5, 0):
        tamis.set_num_threads(threads)
        assert tamis.get_num_threads() == threads
        results.append(tamis.attention(case.q, case.k, case.v, tamis.ALL, **case.arguments()))
    assert all(np.array_equal(results[0], other) for other in results)
    for bad in (-1, 5000):
        with pytest.raises(tamis.Error, match="threads"):
            tamis.set_num_threads(bad)
    assert tamis.get_num_threads() == 0
