"""Workspaces and plans of steps on a CUDA device."""
from collections import OrderedDict

from . import _checks, _core
from ._errors import Error, invalid

LINE = 256  # bytes that each of the three buffers starts on


class Memory:
    """The three buffers of a step, as sections of one array or as three arrays (control, index, scratch).

    The framework's memory is kept alive for as long as this is.
    """

    def __init__(self, sizes, workspace):
        arrays = workspace if isinstance(workspace, (tuple, list)) else (workspace,)
        facts = [_core.facts(array, "workspace") for array in arrays]
        for array in facts:
            if not array.device:
                raise invalid("workspace", "lies on the host")
            if array.dtype not in ("U8", "I8"):
                raise invalid("workspace", f"dtype {array.dtype}, expected bytes (U8)")
            if len(array.shape) != 1 or (array.shape[0] > 1 and array.stride[0] != 1):
                raise invalid("workspace", "is not one dense run of bytes")
            if array.read_only:
                raise invalid("workspace", "is read-only")
        self.owners = tuple(arrays)
        self.device_id = facts[0].device_id
        self.key = tuple(array.data for array in facts)
        if len(facts) == 3:
            self.addresses = tuple(array.data for array in facts)
            self.sizes = tuple(array.shape[0] for array in facts)
        elif len(facts) == 1:
            needed = total(sizes)
            if facts[0].shape[0] < needed:
                raise Error("workspace_too_small", f"workspace: {facts[0].shape[0]} bytes, {needed} are needed",
                            value=facts[0].shape[0], limit=needed)
            starts, at = [], facts[0].data
            for size in sizes:
                starts.append(at)
                at += _lines(size)
            self.addresses, self.sizes = tuple(starts), tuple(sizes)
        else:
            raise invalid("workspace", f"{len(facts)} arrays, expected one, or control, index and scratch")


def _lines(size):
    return (size + LINE - 1) // LINE * LINE


def total(sizes):
    """Bytes of one array that holds all three buffers."""
    return sum(map(_lines, sizes))


class Recent(OrderedDict):
    """A dictionary that forgets what was used longest ago."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def look_up(self, key):
        found = self.get(key)
        if found is not None:
            self.move_to_end(key)
        return found

    def keep(self, key, value):
        self[key] = value
        self.move_to_end(key)
        while len(self) > self.most:
            self.popitem(last=False)


_plans = Recent(64)
_ready = Recent(8)
_last = Recent(32)
ran_on_host = False  # whether `attention` did, ever


def clear_cache():
    """Lets go of the plans and of the device memory that `attention` keeps for calls of the same shape."""
    _plans.clear()
    _ready.clear()
    _last.clear()


def attention(given, q, k, v, options, out, lse, workspace, stream):
    """A whole step on `stream`, a number or None."""
    problem, frame = given.problem, given.frame
    key = (problem.key(), tuple(sorted(options.items())))
    plan = _plans.look_up(key)
    if plan is None:
        plan = _core.DevicePlan(problem, options)
        _plans.keep(key, plan)
    number = frame.stream(stream)
    place = (frame.device_id, number)
    polled = None  # under which name poll finds the step
    fresh = True
    if workspace is not None:
        memory = Memory(plan.sizes, workspace)
        polled = memory.key
    elif frame.capturing():  # the graph's own memory, which lives as long as the graph
        memory = Memory(plan.sizes, frame.bytes(total(plan.sizes)))
    else:
        polled = place
        memory = _ready.look_up((key, place))
        fresh = memory is None
        if fresh:
            memory = Memory(plan.sizes, frame.bytes(total(plan.sizes)))
    step = _core.DeviceStep(plan, problem, memory.addresses, memory.sizes, frame.device_id, memory.owners)
    if fresh:
        step.clear(number)
        if polled is place:
            _ready.keep((key, place), memory)
    step.step(q, k, v, out, lse, number)
    if polled is not None:
        owners = memory.owners if polled is place else ()  # a caller's workspace is the caller's to keep
        _last.keep(polled, (plan, memory.addresses, memory.sizes, frame.device_id, owners))


def poll(workspace, stream, device, anywhere=False):
    """The verdict of the last `attention` on a stream, or with a workspace; `anywhere`: nobody named either."""
    if workspace is not None:
        arrays = workspace if isinstance(workspace, (tuple, list)) else (workspace,)
        key = tuple(_core.facts(array, "workspace").data for array in arrays)
        found = _last.look_up(key)
    else:
        found = _last.look_up((device, stream))
    if found is None and anywhere and ran_on_host:
        return {}
    if found is None:
        raise invalid("workspace" if workspace is not None else "stream", "no step that is known ran there")
    plan, addresses, sizes, device_id, owners = found
    step = _core.DeviceStep(plan, _core.Problem(), addresses, sizes, device_id, owners)
    return step.poll(stream if stream is not None else 0)


def options_of(*, fallback, path="auto", splits=0, batch_invariant=False, block=0, load="auto", density=None,
               row_entries=0, max_kv_len=0, engine="auto", ring="auto", workspace_budget=None, bundle="auto"):
    """Options of all stages, as the module takes them."""
    made = {"fallback": _checks.choice("fallback", fallback, _checks.FALLBACKS),
            "path": _checks.choice("path", path, _checks.PATHS),
            "splits": _checks.counted("splits", splits, below=1 << 31),
            "batch_invariant": int(_checks.flag("batch_invariant", batch_invariant)),
            "block": _checks.block(block),
            "load": _checks.choice("load", load, _checks.LOADS),
            "row_entries": _checks.counted("row_entries", row_entries),
            "max_kv_len": _checks.counted("max_kv_len", max_kv_len),
            "engine": _checks.choice("engine", engine, _checks.ENGINES),
            "ring": _checks.choice("ring", ring, _checks.RINGS),
            "bundle": _checks.choice("bundle", bundle, _checks.BUNDLES)}
    if density is not None:
        made["density"] = _checks.real("density", density)
        if not 0 <= made["density"] <= 1:
            raise invalid("density", f"{density} is outside [0, 1]")
    if workspace_budget is not None:
        made["workspace_budget"] = _checks.counted("workspace_budget", workspace_budget)
    return made
