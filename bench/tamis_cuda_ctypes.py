"""The device step of Tamis through its C interface (include/tamis/tamis_c_step.h); see tamis_ctypes.py.

Addresses are of device memory here, and `stream` is a cudaStream_t as an integer.
"""
import ctypes as c

from tamis_ctypes import Failure, Output, f64, i32, i64, struct

DECODE, PREFILL = 1, 2  # engines
PlanOptions = struct("PlanOptions", ("plan", c.c_void_p), ("block", i32), ("load", i32), ("density", f64),
                     ("row_entries", i64), ("max_kv_len", i64), ("ring", i32), ("engine", i32))
Summary = struct("Summary", ("kernel", c.c_char_p), ("reason", c.c_char_p))  # the library fills as much as there is
Sizes = struct("Sizes", ("control", i64), ("index", i64), ("scratch", i64))
Buffers = struct("Buffers", ("control", c.c_void_p), ("index", c.c_void_p), ("scratch", c.c_void_p),
                 ("control_bytes", i64), ("index_bytes", i64), ("scratch_bytes", i64))


def options_of(library, engine):
    options = PlanOptions()
    library.dll.tamis_cuda_plan_options_init_sized(c.byref(options), c.c_uint64(c.sizeof(options)))
    options.engine = engine
    return options


def kernel_of(library, plan):
    summary = Summary()
    library.call("tamis_cuda_plan_info", plan, c.byref(summary))
    return summary.kernel.decode()


class DeviceStep:
    """A problem with its plan and buffers. `allocate(bytes)` gives the address of device memory that outlives this.
    A library that takes another kernel than that of `engine` (one of before that option) is a Failure."""

    def __init__(self, library, problem, out, allocate, stream, engine=None):
        self.library, self.problem, self.out = library, problem, out
        self.output = Output(out=c.pointer(out))
        self.plan, sizes = c.c_void_p(), Sizes()
        library.call("tamis_cuda_plan_create", c.byref(self.plan))
        options = None if engine is None else c.byref(options_of(library, engine))
        library.call("tamis_cuda_plan_make", c.byref(problem), options, self.plan)
        self.kernel = kernel_of(library, self.plan)
        if engine == PREFILL and not self.kernel.startswith("prefill"):
            raise Failure(f"engine prefill was asked for, the library plans for {self.kernel}")
        library.call("tamis_cuda_plan_sizes", self.plan, c.byref(sizes))
        self.buffers = Buffers(**{name: allocate(max(256, getattr(sizes, name)))
                                  for name in ("control", "index", "scratch")},
                               **{f"{name}_bytes": getattr(sizes, name) for name in ("control", "index", "scratch")})
        library.call("tamis_cuda_clear", self.plan, c.byref(self.buffers), c.c_void_p(stream))
        self.step(stream)
        self.poll(stream)

    def run(self, stream):
        """Attention and merge over the index that is there."""
        self.library.call("tamis_cuda_run", self.plan, c.byref(self.problem), c.byref(self.output),
                          c.byref(self.buffers), c.c_void_p(stream), None)

    def step(self, stream):
        self.library.call("tamis_cuda_step", self.plan, c.byref(self.problem), c.byref(self.output),
                          c.byref(self.buffers), c.c_void_p(stream), None)

    def poll(self, stream):
        """Waits; a batch that the device refused is a Failure."""
        self.library.call("tamis_cuda_poll", self.plan, c.byref(self.buffers), c.c_void_p(stream), None)
