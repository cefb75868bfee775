"""Plans and runs, stage by stage."""
from sys import modules as _modules

from . import _autograd, _checks, _core, _device, _index, _problem, _streams, _threads
from ._errors import Error, invalid


class Plan:
    """How problems of one shape are computed, made by `tamis.plan`. Layers of one shape share it."""

    def __init__(self, given, options, backend):
        self._given, self._problem, self._frame = given, given.problem, given.frame
        self._options = options
        self.backend = backend
        self._core = _core.DevicePlan(given.problem, options) if backend == "cuda" else None
        self.shape = given.problem.shape()

    @property
    def on_device(self):
        """Whether it is one of a device."""
        return self._core is not None

    @property
    def workspace_sizes(self):
        """Bytes of the buffers control, index and scratch of a device; zeros on the host, which has its own."""
        return self._core.sizes if self._core is not None else (0, 0, 0)

    @property
    def workspace_bytes(self):
        """Bytes of one array that holds all three."""
        return _device.total(self.workspace_sizes)

    @property
    def info(self):
        """What was chosen and why: kernel, reason, path, load, block, tasks, ... On the host a plan takes shape with
        its first index set; see `Schedule.info`."""
        return _named(self._core.info()) if self._core is not None else {}

    def __repr__(self):
        return f"Plan({self.backend}, {self.shape})"


def check_plan(plan):
    if not isinstance(plan, Plan):
        raise TypeError(f"plan: expected a Plan of tamis.plan, not {type(plan).__name__}")


class Schedule:
    """A step that is ready to run, made by `tamis.schedule`."""

    __slots__ = ("plan", "index", "_step", "_on_device")

    def __init__(self, plan, index, step):
        self.plan, self.index, self._step, self._on_device = plan, index, step, plan.on_device

    @property
    def info(self):
        """What will run and why: path, reason, block, tasks, parts, workspace_bytes, ..."""
        return self.plan.info if self._on_device else _named(self._step.info())


def _named(info):
    return {**info, "path": _checks.name_of(info["path"], _checks.PATHS)}


def plan(q, k, v, candidates=None, *, cu_q=None, kv_len=None, cu_kv=None, page_table=None, q_pos=None, causal=True,
         window=0, sink=0, scale=None, softcap=0.0, alibi_slopes=None, dropout_p=0.0, dropout_seed=0,
         page_stamps=None, table_stamps=None, kv_layout="NHD", k_format=None, v_format=None, k_scale=None,
         v_scale=None, k_scale_kind=None, v_scale_kind=None, backend="auto", fallback="allow", path="auto", splits=0,
         batch_invariant=False, block=0, load="auto", density=None, row_entries=0, max_kv_len=0,
         engine="auto", ring="auto", workspace_budget=None, bundle="auto"):
    """Plans problems of one shape: `plan`, then per step `normalize`, `schedule` and as many `run` as layers.

    All arguments up to `v_scale_kind` are those of `attention`. q, k and v are looked at for shape, dtype and place,
    and not kept; the other arrays are kept, and `normalize` reads them anew unless it is given others. Contents are
    not read here, so one plan serves every step of its shapes, and no device is needed beyond where the arrays lie.

    Args:
        backend: `"auto"`, `"cpu"` or `"cuda"`.
        fallback: `"refuse"` makes an error of a path other than the one asked for.
        path: `"auto"`, `"direct"`, `"dense"`, or `"gather"`, for which no backend has a kernel yet: another path is
            taken, and with `fallback="refuse"` it is `unsupported`.
        splits: parts of every row; 0: balanced.
        batch_invariant: how a row is split depends on that row alone.
        block: 16, 32, 64 or (host) 128 tokens; 0: chosen.
        load: on a device: `"blocks"`, `"tokens"` or `"auto"`.
        density: on a device: selected tokens per token of the blocks in earlier steps, from `IndexSet.poll`.
        row_entries: on a device: blocks that a bundle may hold; 0: as many as candidates and mask can bring. A plan
            for CSR lists then holds as many entries as `candidates` has here.
        max_kv_len: on a device: tokens of a request; 0: what the page table or the cache holds.
        engine: on a device: `"prefill"` is the kernel for many queries, which devices of compute capability 9.0 have,
            in blocks that divide pages and head sizes that are multiples of 64; `"decode"`, or `"auto"`, which is
            decode.
        ring: on a device: `"short"` has less of K and V under way in shared memory, for devices that have little;
            `"full"`, or `"auto"`, by the device that runs it.
        workspace_budget: bytes of partial results (of scratch on a device); None: no limit.
        bundle: on the host, which rows go together: `"auto"`, `"rows"`, `"heads"`, `"neighbours"`.

    Returns:
        A Plan.

    Raises:
        Error: `invalid_argument`; `unsupported` where no kernel computes the problem, naming the property.
    """
    scales = dict(alibi_slopes=alibi_slopes, k_scale=k_scale, v_scale=v_scale)
    _autograd.refuse_gradients(**scales)
    _autograd.refuse_tangents(**scales)
    frame = _problem.frame_of(q)
    given = _problem.build(
        frame, q, k, v, candidates, cu_q=cu_q, kv_len=kv_len, cu_kv=cu_kv, page_table=page_table, q_pos=q_pos,
        causal=causal, window=window, sink=sink, scale=scale, softcap=softcap, alibi_slopes=alibi_slopes,
        dropout_p=dropout_p, dropout_seed=dropout_seed, page_stamps=page_stamps, table_stamps=table_stamps,
        kv_layout=kv_layout, k_format=k_format, v_format=v_format, k_scale=k_scale, v_scale=v_scale,
        k_scale_kind=k_scale_kind, v_scale_kind=v_scale_kind, shape_only=True)
    number = _problem.backend_of(backend, given.problem.place[0])
    if number == _checks.BACKENDS["reference"]:
        raise invalid("backend", "the reference has no plans; tamis.attention runs it")
    options = _device.options_of(
        fallback=fallback, path=path, splits=splits, batch_invariant=batch_invariant, block=block, load=load,
        density=density, row_entries=row_entries, max_kv_len=max_kv_len, engine=engine,
        ring=ring, workspace_budget=workspace_budget, bundle=bundle)
    return Plan(given, options, _checks.name_of(number, _checks.BACKENDS))


def schedule(plan, index, *, stream=None):
    """Cuts the work of an index set into tasks.

    Args:
        plan: of `tamis.plan`.
        index: of `tamis.normalize(plan=plan)`; after it was made anew, schedule anew.
        stream: CUDA stream; default: the current one.

    Returns:
        A Schedule for any number of runs. On a device the kernel is launched, and nothing waits.

    Raises:
        Error: `stale_plan` when `index` was not made with this plan.
    """
    check_plan(plan)
    if not isinstance(index, _index.IndexSet):
        raise TypeError(f"index: expected an IndexSet of tamis.normalize(plan=plan), not {type(index).__name__}")
    if index._plan is not plan:
        raise Error("stale_plan", "index: was not made with this plan")
    if not plan.on_device:
        return Schedule(plan, index, _core.HostStep(index._problem, index._host, plan._options))
    index._step.schedule(plan._frame.stream(_streams.number(stream)))
    return Schedule(plan, index, index._step)


def run(plan, schedule, q, k, v, *, out=None, lse=None, return_lse=False, stream=None):
    """Attention and merge over a schedule, any number of times: layers that share lists share it.

    Only q, k, v, out and lse are looked at; everything else was when plan and index were made.

    Args:
        plan, schedule: of this step.
        q, k, v: shaped like those of the plan; k and v may be those of another layer.
        out: where to write the result; default: a new array like q. It may share no memory with the inputs, which is
            not checked, and a tensor that autograd has saved must not be written here: its version does not change.
        lse: float32 `[total_q, Hq]` (dense: `[B, S, Hq]`), written; default: None, or a new one with `return_lse`.
        return_lse: return the pair of result and LSE.
        stream: CUDA stream, an integer or a stream object; default: the current one of q's framework.

    Returns:
        The result, or the pair. On a device the kernel is launched, and nothing waits.

    Raises:
        Error: `stale_plan` when the parts do not belong together; `invalid_argument`, `unsupported` as `attention`,
            and `unsupported` where torch would record what becomes of q, k or v (gradients, tangents, traces): stages
            compute none; also for an out or lse that requires a gradient.
    """
    if type(schedule) is not Schedule or schedule.plan is not plan:
        check_plan(plan)
        if not isinstance(schedule, Schedule):
            raise TypeError(f"schedule: expected a Schedule of tamis.schedule, not {type(schedule).__name__}")
        raise Error("stale_plan", "schedule: was made by another plan")
    torch = _modules.get("torch")
    if torch is not None:  # spelled out: this is the way of every layer
        if torch.is_grad_enabled() and (
                getattr(q, "requires_grad", False) or getattr(k, "requires_grad", False)
                or getattr(v, "requires_grad", False) or getattr(out, "requires_grad", False)
                or getattr(lse, "requires_grad", False)):
            _autograd.refuse_gradients(q=q, k=k, v=v)
            _autograd.refuse_history(out=out, lse=lse)
        if _autograd.watches(torch):
            _autograd.refuse_traces(q=q, k=k, v=v)
            _autograd.refuse_tangents(q=q, k=k, v=v, out=out, lse=lse)
    if return_lse is not True and return_lse is not False:
        return_lse = _checks.flag("return_lse", return_lse)
    if stream is not None and type(stream) is not int:
        stream = _streams.number(stream)
    if out is None or (lse is None and return_lse):
        return _run_into_new(plan, schedule, q, k, v, out, lse, return_lse, stream)
    schedule._step.run(q, k, v, out, lse, stream if schedule._on_device else _threads.get_num_threads())
    return (out, lse) if return_lse else out


def _run_into_new(plan, schedule, q, k, v, out, lse, return_lse, stream):
    frame = _problem.frame_of(q)
    with frame.on_stream(stream):
        made_out = frame.result(plan._given.out_shape) if out is None else _problem.written(out)
        made_lse = frame.result(plan._given.lse_shape, "F32") if lse is None and return_lse else _problem.written(lse)
        last = stream if schedule._on_device else _threads.get_num_threads()
        schedule._step.run(q, k, v, made_out.argument, made_lse.argument, last)
    return (made_out.value(), made_lse.value()) if return_lse else made_out.value()
