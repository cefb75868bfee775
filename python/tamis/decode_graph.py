"""A decode step captured into a CUDA graph, for torch."""
import torch

from . import _candidates, _checks, _plan
from ._errors import invalid, unsupported
from ._index import normalize

_LISTS = ("indices", "indptr", "count")
_ARRAYS = ("cu_q", "kv_len", "cu_kv", "page_table", "q_pos", "alibi_slopes", "page_stamps", "table_stamps")


class DecodeGraph:
    """normalize, schedule and run over arrays of its own, as one CUDA graph.

    A graph keeps the addresses it was captured with. So the query, the candidate lists, lengths and tables are copied
    once into arrays that belong to this object; rebinding a variable that was given changes nothing, `update` copies new
    contents in place. K and V are not copied: write into the tensors that were given, as a cache does.

        step = tamis.torch.DecodeGraph(q, k, v, candidates, cu_q=cu_q, kv_len=kv_len, page_table=page_table)
        for q, pages, kv_len in requests:
            step.update(q=q, indices=pages, kv_len=kv_len)
            out = step.replay()

    Args:
        q, k, v, candidates: as in `tamis.attention`, on a CUDA device.
        return_lse: whether `replay` answers the pair of result and LSE.
        arguments: everything else that `tamis.plan` takes.

    Raises:
        Error: `invalid_argument` for arrays of the host, and whatever `tamis.plan` and the first step raise. What the
            device finds wrong in a later step is raised by `poll`.
    """

    def __init__(self, q, k, v, candidates=None, *, return_lse=False, **arguments):
        if not isinstance(q, torch.Tensor) or not q.is_cuda:
            raise invalid("q", "is captured on a CUDA device, and lies elsewhere")
        c = _candidates.given(candidates)
        self._own = {"q": q.detach().clone(memory_format=torch.contiguous_format)}
        for name, array in [*((name, getattr(c, name)) for name in _LISTS),
                            *((name, arguments.get(name)) for name in _ARRAYS)]:
            if array is not None:
                self._own[name] = array.detach().clone(memory_format=torch.contiguous_format)
        lists = _candidates.restored(c.form, *(self._own.get(name) for name in _LISTS), unit=c.unit,
                                     query_block=c.query_block, index_heads=c.index_heads, duplicates=c.duplicates,
                                     invalid=c.invalid)
        arguments.update({name: self._own[name] for name in _ARRAYS if name in self._own})
        self._cache = k.detach(), v.detach()
        self._return_lse = return_lse = _checks.flag("return_lse", return_lse)
        self.plan = _plan.plan(self._own["q"], *self._cache, lists, **arguments)
        if not self.plan.on_device:
            raise unsupported("backend", "a graph is captured on a CUDA device only")
        self.out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        self.lse = q.new_empty(q.shape[:-1], dtype=torch.float32) if return_lse else None
        with torch.cuda.device(q.device), torch.no_grad():
            self._capture(torch.empty(self.plan.workspace_bytes, dtype=torch.uint8, device=q.device))

    def _capture(self, workspace):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # once by hand: what is loaded on first use is then there
            self.index = normalize(plan=self.plan, workspace=workspace)
            self._step()
            self.index.poll()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            normalize(plan=self.plan, into=self.index)
            self._step()

    def _step(self):
        scheduled = _plan.schedule(self.plan, self.index)
        _plan.run(self.plan, scheduled, self._own["q"], *self._cache, out=self.out, lse=self.lse)

    def update(self, **arrays):
        """Copies new contents in place, on the current stream: q, indices, indptr, count, kv_len, page_table and so on,
        each shaped like the first. Takes part in the next `replay`; nothing waits.

        Raises:
            Error: `invalid_argument` for a shape or dtype other than the captured one. Nothing is copied then.
            TypeError: for an array that this step was not captured with.
        """
        for name, array in arrays.items():
            own = self._own.get(name)
            if own is None:
                raise TypeError(f"{name}: this step was captured without it; it has {', '.join(self._own)}")
            if tuple(array.shape) != tuple(own.shape):
                raise invalid(name, f"shape {tuple(array.shape)}, captured with {tuple(own.shape)}")
            if array.dtype != own.dtype:
                raise invalid(name, f"dtype {array.dtype}, captured with {own.dtype}")
        for name, array in arrays.items():
            self._own[name].copy_(array, non_blocking=True)

    def replay(self):
        """Runs the step on the current stream. The result lies in the same tensors each time: use it, or copy it, before
        the next replay."""
        self.graph.replay()
        return (self.out, self.lse) if self._return_lse else self.out

    def poll(self):
        """Waits for the current stream, raises what the device found wrong with the last step, answers its statistics."""
        return self.index.poll()
