"""CUDA streams of the frameworks, as numbers."""
import sys


def current(array, device):
    """The stream that the framework of `array` works on now; 0, the default stream, where it has no notion of one."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch.cuda.current_stream(device).cuda_stream
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy.cuda.get_current_stream().ptr
    return 0


def number(stream):
    """A stream that somebody named: an integer, or a stream of torch, CuPy or `cuda.core`. `None` stays None."""
    if stream is None:
        return None
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):  # torch, CuPy
        value = getattr(stream, attribute, None)
        if isinstance(value, int):
            return value
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, value = protocol()
        if version == 0:
            return int(value)
    raise TypeError(f"stream: expected an integer or a CUDA stream, not {type(stream).__name__}")
