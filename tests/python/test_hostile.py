"""Arrays and processes that do what nobody should: moved memory, exporters that answer rubbish, forks, outputs that overlap."""
import os
import signal
import threading
import time

import numpy as np
import pytest

import tamis
from test_stages import decode, stages


def exporter(device=(1, 0), capsule=None):
    class Exporter:
        def __dlpack_device__(self):
            return device

        def __dlpack__(self, **_):
            if isinstance(capsule, BaseException):
                raise capsule
            return capsule
    return Exporter()


@pytest.mark.parametrize("device", [(), (1,), [1, 0], None, "cp", (1.5, 0)])
def test_devices_that_are_none(device):
    with pytest.raises(tamis.Error, match="q: the array cannot be read"):
        tamis._core.facts(exporter(device, 0), "q")


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_no_refusal_passes_through(raised):
    with pytest.raises(raised):
        tamis._core.facts(exporter(capsule=raised()), "q")


def test_an_error_that_is_no_text():
    with pytest.raises(tamis.Error, match="no text"):
        tamis._core.facts(exporter(capsule=ValueError("\udc80")), "q")


def test_outputs_whose_elements_lie_on_one_another(rng):
    q = rng.standard_normal((1, 3, 2, 4)).astype(np.float32)
    out = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), q.shape, (0, 0, 0, 4))
    with pytest.raises(tamis.Error, match="out: is written, and axis"):
        tamis.attention(q, q, q, tamis.ALL, out=out)


def test_the_reference_writes_into_the_right_shape_only(rng):
    q = rng.standard_normal((1, 3, 2, 4)).astype(np.float32)
    with pytest.raises(tamis.Error, match="out: shape"):
        tamis.attention(q, q, q, tamis.ALL, out=np.zeros((1, 2, 3, 4)), backend="reference")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_schedule_in_a_child_of_fork(rng):
    case = decode(rng)
    plan, _, schedule = stages(case)
    stop = threading.Event()

    def loop():
        while not stop.is_set():
            tamis.run(plan, schedule, case.q, case.k, case.v)
    threads = [threading.Thread(target=loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            time.sleep(0.01)
            child = os.fork()
            if child == 0:
                tamis.run(plan, schedule, case.q, case.k, case.v)
                os._exit(0)
            for _ in range(200):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    break
                time.sleep(0.05)
            else:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                pytest.fail("the child hangs")
            assert status == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class TestMovedMemory:
    """A plan keeps its lists and lengths, not the place where they lay."""

    def plan(self):
        torch = pytest.importorskip("torch")
        q, k = torch.randn(1, 1, 8), torch.randn(8, 1, 8)
        cu_q, cu_kv, kv_len = (torch.tensor(x, dtype=torch.int32) for x in ([0, 1], [0, 8], [3]))
        plan = tamis.plan(q, k, k, tamis.ALL, cu_q=cu_q, kv_len=kv_len, cu_kv=cu_kv)
        return torch, plan, (q, k, k), kv_len

    def expected(self, torch, arrays, tokens):
        return tamis.attention(*arrays, tamis.ALL, cu_q=torch.tensor([0, 1], dtype=torch.int32),
                               kv_len=torch.tensor([tokens], dtype=torch.int32),
                               cu_kv=torch.tensor([0, 8], dtype=torch.int32))

    @pytest.mark.parametrize("how", ["data", "set_"])
    def test_is_read_where_it_is_now(self, how):
        torch, plan, arrays, kv_len = self.plan()
        new = torch.tensor([8], dtype=torch.int32)
        if how == "data":
            kv_len.data = new
        else:
            kv_len.set_(new)
        del new
        junk = [torch.full((1,), 7, dtype=torch.int32) for _ in range(50)]
        schedule = tamis.schedule(plan, tamis.normalize(plan=plan))
        assert torch.equal(tamis.run(plan, schedule, *arrays), self.expected(torch, arrays, 8)) and junk

    def test_of_another_dtype_is_refused(self):
        torch, plan, _, kv_len = self.plan()
        kv_len.data = torch.ones(1)
        with pytest.raises(tamis.Error, match="kv_len: has changed its shape, dtype"):
            tamis.normalize(plan=plan)

    def test_that_is_gone_is_refused(self):
        torch, plan, _, kv_len = self.plan()
        kv_len.resize_(0)
        with pytest.raises(tamis.Error, match="kv_len: has changed its shape"):
            tamis.normalize(plan=plan)


def test_autograd_knows_what_was_written():
    torch = pytest.importorskip("torch")
    q = torch.randn(1, 3, 2, 4)
    saved, x = torch.ones(1, 3, 2, 4), torch.ones(1, 3, 2, 4, requires_grad=True)
    y = x * saved
    tamis.attention(q, q, q, tamis.ALL, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_types_that_are_met_while_one_is_asked(rng):
    q = rng.standard_normal((1, 3, 2, 4)).astype(np.float32)

    class Crowd:
        def is_neg(self):
            for _ in range(40):  # more types than are remembered
                with pytest.raises(TypeError):
                    tamis._core.facts(type("Stranger", (), {})(), "stranger")
            return False

        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **more):
            return q.__dlpack__(**more)
    assert tuple(tamis._core.facts(Crowd(), "q").shape) == q.shape


@pytest.mark.parametrize("shape", [(1, 1 << 40), (1 << 40,), (1 << 20, 1 << 20), (1 << 30, 1 << 30)])
def test_lists_that_would_be_read_for_ever(shape):
    indices = np.lib.stride_tricks.as_strided(np.zeros(1, np.int32), shape, (0,) * len(shape))
    lists = tamis.Candidates(indices, np.array([0, shape[0]]) if len(shape) == 1 else None, index_heads=1)
    with pytest.raises(tamis.Error, match="^invalid_argument: indices: more than 2147483647 entries"):
        tamis.normalize(lists, cu_q=np.array([0, 1], np.int32), kv_len=np.array([5], np.int32), q_heads=1, kv_heads=1)
