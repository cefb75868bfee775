"""The C interface of Tamis; use the package tamis."""

import numpy


class View:
    """
    An array whose bits are read as another dtype of the same width.

    For frameworks without the dtype: `View(bits, "bf16")` of a uint16 array, `"f8_e4m3"` or
    `"f8_e5m2"` of a uint8 array. Nothing is copied or converted. Goes wherever an array goes.

    Raises Error `invalid_argument` for a dtype without that meaning.
    """

    def __init__(self, array: object, dtype: str) -> None: ...

    @property
    def array(self) -> object:
        """What the view was made of."""

    @property
    def dtype(self) -> str:
        """"BF16" and so on."""

    @property
    def requires_grad(self) -> bool:
        """Whether torch records what becomes of the array."""

class Facts:
    """Where an array lies and how."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def stride(self) -> tuple[int, ...]:
        """Elements."""

    @property
    def dtype(self) -> str:
        """"BF16" and so on."""

    @property
    def device(self) -> bool:
        """On a CUDA device."""

    @property
    def device_id(self) -> int: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def data(self) -> int:
        """Address."""

def facts(array: object | None, name: str) -> Facts:
    """Facts of an array; `name` is the argument's, for errors."""

class Problem:
    """What is to be computed, as arrays and numbers."""

    def __init__(self) -> None: ...

    def copy(self) -> Problem:
        """Another problem that shares the arrays, read where they lie now."""

    def set(self, name: str, array: object | None, join: bool = False, shape_only: bool = False) -> None: ...

    def get(self, name: str) -> object: ...

    def set_numbers(self, numbers: dict[str, object]) -> None: ...

    def set_index_only(self, q_heads: int, kv_heads: int, head_dim: int, v_head_dim: int, page_size: int, num_pages: int, kv_bits: int) -> None: ...

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """(query_block, unit, index_heads) of the candidates."""

    @property
    def join_q(self) -> bool: ...

    @join_q.setter
    def join_q(self, arg: bool, /) -> None: ...

    @property
    def join_kv(self) -> bool: ...

    @join_kv.setter
    def join_kv(self, arg: bool, /) -> None: ...

    def shape(self) -> dict[str, int | float]:
        """Checks all that needs no element of any array."""

    @property
    def place(self) -> tuple[bool, int]:
        """(on a device, number of the device) of all arrays."""

    def key(self) -> bytes: ...

class HostIndex:
    """An index set of the host."""

    def __init__(self, problem: Problem, options: dict[str, int | float]) -> None: ...

    def view(self) -> dict[str, object]: ...

    def stats(self) -> dict[str, int]: ...

    def tokens(self) -> tuple[numpy.ndarray, numpy.ndarray]: ...

class HostStep:
    """A step of the host, ready to run."""

    def __init__(self, problem: Problem, index: HostIndex, options: dict[str, int | float]) -> None: ...

    def run(self, q: object, k: object, v: object, out: object, lse: object | None, threads: int) -> None: ...

    def info(self) -> dict[str, object]: ...

def forward(problem: Problem, out: object, lse: object | None, options: dict[str, int | float], threads: int) -> dict[str, object]: ...

def reference(problem: Problem, out: object, lse: object) -> None: ...

def merge_states(outs: list[object], lses: list[object], out: object, lse: object) -> None: ...

def explain(problem: Problem, tile: int, splits: int, bandwidth: float) -> dict[str, int | float]: ...

def forget_contexts() -> None: ...

class DevicePlan:
    """What a step on a device launches, and how large its buffers are."""

    def __init__(self, problem: Problem, options: dict[str, int | float]) -> None: ...

    def info(self) -> dict[str, object]: ...

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of control, index and scratch."""

class DeviceStep:
    """A plan with lists and buffers."""

    def __init__(self, plan: DevicePlan, problem: Problem, addresses: tuple[int, int, int], bytes: tuple[int, int, int], device: int, owners: object) -> None: ...

    def clear(self, stream: int) -> None: ...

    def normalize(self, stream: int) -> None: ...

    def schedule(self, stream: int) -> None: ...

    def run(self, q: object, k: object, v: object, out: object, lse: object | None, stream: int | None) -> None: ...

    def step(self, q: object, k: object, v: object, out: object, lse: object | None, stream: int | None) -> None: ...

    def poll(self, stream: int) -> dict[str, int | float]: ...

def backward(problem: Problem, out: object, lse: object, d_q: object, d_k: object, d_v: object, options: dict, threads: int) -> None: ...

class CaseFile:
    """A case file in memory."""

    def __init__(self, path: bytes) -> None: ...

    def arrays(self) -> dict[str, tuple[str, numpy.ndarray]]: ...

    def numbers(self) -> dict[str, int | float | None]: ...

    @property
    def index_only(self) -> dict[str, int] | None: ...

def write_case(path: bytes, problem: Problem) -> None: ...

def build_info() -> dict[str, object]:
    """
    What this build of Tamis is and has.

    Returns a dictionary: `version`; `abi`, of the C interface; `cuda`, whether it has code for devices;
    `devices`, how many are there; `case_files`, whether it reads and writes them; `cpu_isas`, the
    instruction sets it can use here, widest first.
    """
