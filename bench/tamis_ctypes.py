"""Tamis through its C interface (include/tamis/tamis_c.h), for the peer benches: plain ctypes, no third-party module.

Arrays are given as addresses: Tensor(address, dtype, shape). Whatever they point to must outlive the calls.
"""
import ctypes as c

ABI_VERSION = 1
F32, F16, BF16, I32 = 2, 3, 4, 8
NHD, HND = 0, 1
FORM_CSR, FORM_ALL = 0, 3
PATH_DIRECT, PATH_DENSE = 1, 3
MAX_RANK = 5

P = c.POINTER
i32, i64, u32, u64, f64 = c.c_int32, c.c_int64, c.c_uint32, c.c_uint64, c.c_double


def struct(name, *fields, sized=True):
    """A struct of tamis_c.h. One with struct_size sets it when it is made."""
    def init(self, **values):
        c.Structure.__init__(self, **values)
        if sized:
            self.struct_size = c.sizeof(self)
    head = [("struct_size", u64)] if sized else []
    return type(name, (c.Structure,), {"_fields_": head + list(fields), "__init__": init})


Error = struct("Error", ("code", i32), ("has", u32), ("message", c.c_char_p), ("message_capacity", u64),
               ("message_length", u64), ("request", i64), ("row", i64), ("page", i64), ("value", i64), ("limit", i64))
CTensor = struct("CTensor", ("data", c.c_void_p), ("dtype", i32), ("rank", i32), ("shape", i64 * MAX_RANK),
                 ("stride", i64 * MAX_RANK))
T = P(CTensor)
Query = struct("Query", ("q", T), ("cu_q", T), ("q_pos", T), sized=False)
Quantization = struct("Quantization", ("format", i32), ("kind", i32), ("scale", T), sized=False)
Cache = struct("Cache", ("k", T), ("v", T), ("kv_len", T), ("page_table", T), ("cu_kv", T), ("page_stamps", T),
               ("table_stamps", T), ("k_quant", Quantization), ("v_quant", Quantization), ("layout", i32),
               ("reserved", i32), sized=False)
Candidates = struct("Candidates", ("indptr", T), ("indices", T), ("count", T), ("form", i32), ("duplicates", i32),
                    ("invalid", i32), ("semantics", i32), ("unit", i64), ("query_block", i64), ("index_heads", i64),
                    sized=False)
Mask = struct("Mask", ("causal", i32), ("reserved", i32), ("window", i64), ("sink", i64), sized=False)
Score = struct("Score", ("scale", f64), ("has_scale", i32), ("reserved", i32), ("softcap", f64), ("alibi_slopes", T),
               sized=False)
Dropout = struct("Dropout", ("p", f64), ("seed", u64), sized=False)
Gradients = struct("Gradients", ("d_out", T), ("d_lse", T), sized=False)
Problem = struct("Problem", ("query", Query), ("cache", Cache), ("candidates", Candidates), ("mask", Mask),
                 ("score", Score), ("dropout", Dropout), ("gradients", Gradients), ("index_only", c.c_void_p))
NormalizeOptions = struct("NormalizeOptions", ("block", i32), ("ordering", i32), ("all_blocks", i32),
                          ("reserved", i32))
Capacities = struct("Capacities", ("requests", i64), ("queries", i64), ("rows", i64), ("entries", i64),
                    ("row_entries", i64), ("group_rows", i64))
PlanOptions = struct("PlanOptions", ("backend", i32), ("path", i32), ("fallback", i32), ("splits", i32),
                     ("batch_invariant", i32), ("shares", i32), ("min_tiles", i32), ("reserved", i32),
                     ("workspace_budget", i64))
IndexArrays = struct("IndexArrays", ("rows", i64), ("entries", i64), ("block", i32), ("words", i32),
                     *((name, c.c_void_p) for name in ("row", "begin", "count", "blocks", "members", "full",
                                                       "span_begin", "spans")))
Output = struct("Output", ("out", T), ("lse", T))
InputGradients = struct("InputGradients", ("d_q", T), ("d_k", T), ("d_v", T))
BackwardStep = struct("BackwardStep", ("problem", P(Problem)), ("plan", c.c_void_p), ("lse", T), ("out", T),
                      ("gradients", P(InputGradients)), ("workspace", c.c_void_p), ("workspace_bytes", u64))
Step = struct("Step", ("problem", P(Problem)), ("bundles", c.c_void_p), ("plan", c.c_void_p),
              ("schedule", c.c_void_p), ("output", P(Output)), ("workspace", c.c_void_p), ("workspace_bytes", u64))


def Tensor(address, dtype, shape):
    """A dense row-major view."""
    t = CTensor(data=address, dtype=dtype, rank=len(shape))
    step = 1
    for axis in reversed(range(len(shape))):
        t.shape[axis], t.stride[axis] = shape[axis], step
        step *= shape[axis]
    return t


class Failure(Exception):
    pass


class Library:
    def __init__(self, path):
        self.dll = c.CDLL(path)
        if self.dll.tamis_abi_version() != ABI_VERSION:
            raise Failure(f"{path} has ABI {self.dll.tamis_abi_version()}, this file knows {ABI_VERSION}")
        self.dll.tamis_version.restype = c.c_char_p
        self.dll.tamis_code_name.restype = c.c_char_p
        self.version = self.dll.tamis_version().decode()
        self._message = c.create_string_buffer(512)
        self._error = Error(message=c.cast(self._message, c.c_char_p), message_capacity=512)

    def call(self, name, *arguments):
        code = getattr(self.dll, name)(*arguments, c.byref(self._error))
        if code:
            kind = self.dll.tamis_code_name(code).decode()
            raise Failure(f"{name}: {kind}: {self._message.value.decode(errors='replace')}")

    def made(self, kind):
        """An empty handle of one of the kinds index_set, bundles, plan, schedule."""
        handle = c.c_void_p()
        self.call(f"tamis_{kind}_create", c.byref(handle))
        return handle

    def filled(self, kind):
        """A struct with the library's defaults."""
        value = kind()
        name = {Problem: "problem", NormalizeOptions: "normalize_options", PlanOptions: "plan_options"}[kind]
        getattr(self.dll, f"tamis_{name}_init_sized")(c.byref(value), u64(c.sizeof(value)))
        return value

    def context(self, threads):
        handle = c.c_void_p()
        self.call("tamis_context_create", i32(threads), None, c.byref(handle))
        return handle


class Planned:
    """A problem that is normalized, bundled, planned and scheduled once, and run as often as wanted."""

    def __init__(self, library, problem, out, path, keep):
        self.library, self.problem, self.keep = library, problem, keep
        self.index, self.bundles, self.plan, self.schedule = map(
            library.made, ("index_set", "bundles", "plan", "schedule"))
        problem_at = c.byref(problem)
        options = library.filled(NormalizeOptions)
        options.all_blocks = int(path == PATH_DENSE)
        library.call("tamis_normalize", problem_at, c.byref(options), self.index)
        library.call("tamis_bundle", problem_at, self.index, None, self.bundles)
        capacities, arrays = Capacities(), IndexArrays()
        library.call("tamis_capacities_of", problem_at, self.bundles, c.byref(capacities))
        library.call("tamis_index_view", self.index, c.byref(arrays))
        plan_options = library.filled(PlanOptions)
        plan_options.path = path
        library.call("tamis_plan_make", problem_at, c.byref(capacities), i32(arrays.block), c.byref(plan_options),
                     self.plan)
        library.call("tamis_schedule_make", self.plan, self.bundles, self.schedule)
        bytes_needed = i64()
        library.call("tamis_workspace_bytes", self.plan, self.schedule, c.byref(bytes_needed))
        self.workspace = c.create_string_buffer(bytes_needed.value + 64)
        start = (c.addressof(self.workspace) + 63) // 64 * 64
        self.output = Output(out=c.pointer(out))
        self.step = Step(problem=c.pointer(problem), bundles=self.bundles, plan=self.plan, schedule=self.schedule,
                         output=c.pointer(self.output), workspace=start, workspace_bytes=bytes_needed.value)

    def run(self, context):
        self.library.call("tamis_run", c.byref(self.step), context, None)

    def backward(self, lse, out, gradients):
        """Gradients of the same problem, over its index set; all arguments are CTensors, gradients (d_q, d_k, d_v)."""
        return PlannedBackward(self, lse, out, gradients)

    def reference(self):
        """The float64 result, [total_q, Hq, Dv], flat."""
        out = self.output.out.contents
        count = out.shape[0] * out.shape[1] * out.shape[2]
        values = (f64 * count)()
        self.library.call("tamis_reference_forward", c.byref(self.problem), values, i64(count), None, i64(0))
        return values


class PlannedBackward:
    """The backward of a Planned, with d_out among its problem's gradients."""

    def __init__(self, forward, lse, out, gradients):
        self.library, self.forward = forward.library, forward
        self.plan = self.library.made("backward_plan")
        self.library.call("tamis_plan_backward", c.byref(forward.problem), forward.index, None, self.plan)
        self.gradients = InputGradients(**dict(zip(("d_q", "d_k", "d_v"), map(c.pointer, gradients))))
        bytes_needed = i64()
        self.library.call("tamis_backward_workspace_bytes", self.plan, c.byref(self.gradients), c.byref(bytes_needed))
        self.workspace = c.create_string_buffer(bytes_needed.value + 64)
        self.step = BackwardStep(problem=c.pointer(forward.problem), plan=self.plan, lse=c.pointer(lse),
                                 out=c.pointer(out), gradients=c.pointer(self.gradients),
                                 workspace=(c.addressof(self.workspace) + 63) // 64 * 64,
                                 workspace_bytes=bytes_needed.value)

    def run(self, context):
        self.library.call("tamis_run_backward", c.byref(self.step), context, None)
