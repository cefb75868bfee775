"""What torch does with arrays besides reading them: gradients, tangents, traces. Works without torch."""
import sys

from . import _core
from ._errors import unsupported


def _tensor(torch, array):
    """The tensor that `array` is or is a view of; else None."""
    while isinstance(array, _core.View):
        array = array.array
    return array if isinstance(array, torch.Tensor) else None


def _records(torch, array):
    tensor = _tensor(torch, array)  # asked first: torch.compile's numbers have no attributes
    return tensor is not None and tensor.requires_grad


def wants_gradients(*arrays):
    """Whether torch records what becomes of these arrays: a result without a history would pass for a constant."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.is_grad_enabled() and any(_records(torch, array) for array in arrays)


def _refuse_recorded(arrays, why):
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return
    for name, array in arrays.items():
        if _records(torch, array):
            raise unsupported(name, f"requires a gradient, {why}; give it detached, or call under torch.no_grad()")


def refuse_gradients(**arrays):
    """Refuses arguments of which torch would record what becomes, where no gradient of theirs is computed."""
    _refuse_recorded(arrays, "which is computed in q, k and v by tamis.attention alone")


def refuse_history(**arrays):
    """Refuses arrays to be written whose history would then be that of other numbers."""
    _refuse_recorded(arrays, "and what is written has no history")


def refuse_tangents(**arrays):
    """Refuses arguments that torch differentiates forwards: their tangents would be lost."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.autograd.forward_ad, "_current_level", -1) < 0:
        return
    for name, array in arrays.items():
        tensor = _tensor(torch, array)
        if tensor is not None and torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
            raise unsupported(name, "has a tangent; derivatives are computed backwards only")


def is_compiled(array):
    """Whether torch.compile or torch.export traces this call; what they trace is no memory yet."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling() and isinstance(array, torch.Tensor)


def is_traced(*arrays):
    """Whether torch.jit.trace or make_fx records operators: what is computed beside them would be a constant there."""
    torch = sys.modules.get("torch")
    if torch is None or torch.compiler.is_compiling():
        return False
    if not torch.jit.is_tracing():
        make_fx = sys.modules.get("torch.fx.experimental.proxy_tensor")
        if make_fx is None or make_fx.get_proxy_mode() is None:
            return False
    return any(_tensor(torch, array) is not None for array in arrays)


def refuse_traces(**arrays):
    for name, array in arrays.items():
        if is_traced(array):
            raise unsupported(name, "is traced by torch.jit.trace or make_fx, which see operators alone: tamis.attention "
                                    "is one, with the arguments that tamis.torch.attention takes")


def watches(torch):
    """A quick look whether torch may have more to be refused than gradients: tangents, traces."""
    return (getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0 or torch._C._is_tracing()
            or torch._C._len_torch_dispatch_stack() > 0)


def tell_written(*arrays):
    """Arrays that were written in place: what has saved one for a backward must not use it as it was."""
    torch = sys.modules.get("torch")
    for array in arrays if torch is not None else ():
        tensor = _tensor(torch, array)
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
