"""What only an array's framework can do: allocate, and make the small arrays that dense batches need."""
import sys
from contextlib import nullcontext

import numpy as np

from . import _core
from ._errors import invalid

NUMPY_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8,
                "F8_E5M2": np.uint8, "I8": np.int8, "U8": np.uint8, "U16": np.uint16}
_MOST = (1 << 31) - 1
NO_NUMPY = ("BF16", "F8_E4M3", "F8_E5M2")  # NumPy itself has none of these


def framework_of(array):
    """`"torch"`, `"cupy"`, `"jax"` or `"numpy"`, which stands for the rest too."""
    torch, cupy, jax = (sys.modules.get(name) for name in ("torch", "cupy", "jax"))
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    if cupy is not None and isinstance(array, cupy.ndarray):
        return "cupy"
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    return "numpy"


class Result:
    """An array to be written: `argument` is what the library is given, `value()` what the caller gets."""

    def __init__(self, argument, value=None):
        self.argument = argument
        self._value = value

    def value(self):
        return self.argument if self._value is None else self._value()


class Frame:
    """Where an array lives, and how to get more memory there. Keeps nothing of the array itself."""

    def __init__(self, array):
        facts = _core.facts(array, "q")
        self.device, self.device_id = facts.device, facts.device_id
        self.dtype = facts.dtype
        base = array.array if isinstance(array, _core.View) else array
        self.viewed = base is not array
        self.name = framework_of(base)
        self.native = getattr(base, "dtype", None)
        self.place = base.device if self.name == "torch" else None

    # --- results

    def result(self, shape, dtype=None):
        """Room for a result; `dtype` None is that of the array."""
        if self.device:
            return self._device_result(shape, dtype)
        if self.name == "torch":
            return self._torch_result(shape, dtype)
        if dtype is None and self.name == "numpy" and isinstance(self.native, np.dtype):
            made = np.empty(shape, self.native)
            return Result(_core.View(made, self.dtype), lambda: made) if self.viewed else Result(made)
        if self.name == "jax":
            native = np.dtype(self.native if dtype is None else NUMPY_DTYPES[dtype])
            made = np.empty(shape, native)
            return Result(made, lambda: sys.modules["jax"].numpy.asarray(made))
        dtype = dtype or self.dtype
        made = np.empty(shape, NUMPY_DTYPES[dtype])
        return Result(_core.View(made, dtype), lambda: made) if dtype in NO_NUMPY else Result(made)

    def _torch_result(self, shape, dtype):
        torch = sys.modules["torch"]
        native = self.native if dtype is None else {"F32": torch.float32, "F64": torch.float64}[dtype]
        made = torch.empty(shape, dtype=native, device=self.place)
        return Result(_core.View(made, self.dtype), lambda: made) if self.viewed and dtype is None else Result(made)

    def _device_result(self, shape, dtype):
        if self.name == "torch":
            return self._torch_result(shape, dtype)
        if self.name == "cupy":
            cupy = sys.modules["cupy"]
            made = cupy.empty(shape, self.native if dtype is None else NUMPY_DTYPES[dtype])
            return Result(_core.View(made, self.dtype), lambda: made) if self.viewed and dtype is None else Result(made)
        raise invalid("out", "is missing: device memory is allocated by torch and CuPy only; give out (and lse)")

    # --- memory of the device

    def on_stream(self, stream):
        """A context in which allocations belong to `stream`, a number; None for the current one."""
        if stream is None or not self.device:
            return nullcontext()
        if self.name == "torch":
            torch = sys.modules["torch"]
            if stream == torch.cuda.current_stream(self.place).cuda_stream:
                return nullcontext()
            return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=self.place))
        if self.name == "cupy":
            return sys.modules["cupy"].cuda.ExternalStream(stream)
        return nullcontext()

    def stream(self, stream):
        """The number of `stream`, or of the framework's current one."""
        if stream is not None:
            return stream
        if self.name == "torch":
            return sys.modules["torch"].cuda.current_stream(self.place).cuda_stream
        if self.name == "cupy":
            return sys.modules["cupy"].cuda.get_current_stream().ptr
        return 0

    def capturing(self):
        """Whether the current stream is being captured into a graph."""
        if self.name == "torch":
            return sys.modules["torch"].cuda.is_current_stream_capturing()
        if self.name == "cupy":
            return sys.modules["cupy"].cuda.get_current_stream().is_capturing()
        return False

    def bytes(self, count):
        """Device memory of `count` bytes, its address on a 256-byte line."""
        if self.name == "torch":
            torch = sys.modules["torch"]
            return torch.empty(count, dtype=torch.uint8, device=self.place)
        if self.name == "cupy":
            return sys.modules["cupy"].empty(count, np.uint8)
        raise invalid("workspace", "is missing: device memory is allocated by torch and CuPy only")

    # --- small arrays

    def steps(self, count, step, name):
        """int32 0, step, 2 step, ... where the array lives."""
        if (count - 1) * step > _MOST:
            raise invalid(name, f"{count - 1} runs of {step} rows do not fit 32 bits: give cu_q, lengths and rows of "
                                "fewer", value=(count - 1) * step, limit=_MOST + 1)
        if not self.device:
            return np.arange(count, dtype=np.int32) * np.int32(step)
        if self.name == "torch":
            torch = sys.modules["torch"]
            made = torch.arange(count, dtype=torch.int32, device=self.place)
            return made if step == 1 else made * step
        if self.name == "cupy":
            cupy = sys.modules["cupy"]
            return cupy.arange(count, dtype=np.int32) * np.int32(step)
        raise invalid(name, "is missing: it is made for arrays of torch and CuPy only where they lie on a device")

    def filled(self, count, value, name):
        if value > _MOST:
            raise invalid(name, f"{value} tokens do not fit 32 bits", value=value, limit=_MOST + 1)
        if not self.device:
            return np.full(count, value, np.int32)
        if self.name == "torch":
            torch = sys.modules["torch"]
            return torch.full((count,), value, dtype=torch.int32, device=self.place)
        if self.name == "cupy":
            return sys.modules["cupy"].full(count, value, np.int32)
        raise invalid(name, "is missing: it is made for arrays of torch and CuPy only where they lie on a device")


def differences(offsets, name):
    """`offsets[1:] - offsets[:-1]` where they lie: the lengths that a cu_kv states."""
    facts = _core.facts(offsets, name)
    if len(facts.shape) != 1 or facts.dtype != "I32":
        raise invalid(name, f"dtype {facts.dtype} and rank {len(facts.shape)}, expected I32 and 1")
    if framework_of(offsets) == "numpy" and not isinstance(offsets, np.ndarray):
        if _core.facts(offsets, name).device:
            raise invalid("kv_len", "is missing: it is made of cu_kv for arrays of torch and CuPy only")
        offsets = np.from_dlpack(offsets)
    return offsets[1:] - offsets[:-1]
