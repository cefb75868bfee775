"""From the arguments that `attention`, `plan` and `explain` share to a problem."""
from . import _candidates, _checks, _core, _frames
from ._errors import invalid


def _joins(facts):
    """Whether `[B, T, ...]` can be read as `[B * T, ...]`."""
    batch, rows = facts.shape[:2]
    return batch <= 1 or rows <= 1 or facts.stride[0] == rows * facts.stride[1]


class Given:
    """A problem, the frame of q, and the shapes its results have."""

    def __init__(self, problem, frame, out_shape, lse_shape):
        self.problem, self.frame = problem, frame
        self.out_shape, self.lse_shape = out_shape, lse_shape


def frame_of(q):
    return _frames.Frame(q)


def written(array):
    """A result that the caller has room for."""
    return _frames.Result(array)


def build(frame, q, k, v, candidates, *, cu_q, kv_len, cu_kv, page_table, q_pos, causal, window, sink, scale, softcap,
          alibi_slopes, dropout_p, dropout_seed, page_stamps, table_stamps, kv_layout, k_format=None, v_format=None,
          k_scale=None, v_scale=None, k_scale_kind=None, v_scale_kind=None, shape_only=False):
    """Reads all arguments. `shape_only` leaves q, k and v their shapes and lets go of the arrays."""
    candidates = _candidates.given(candidates)
    q_facts, k_facts, v_facts = _core.facts(q, "q"), _core.facts(k, "k"), _core.facts(v, "v")
    problem = _core.Problem()
    numbers = {"kv_layout": _checks.choice("kv_layout", kv_layout, _checks.LAYOUTS),
               "causal": int(_checks.flag("causal", causal)),
               "window": _checks.integer("window", window),
               "sink": _checks.integer("sink", sink),
               "scale": None if scale is None else _checks.real("scale", scale),
               "softcap": _checks.real("softcap", softcap),
               "dropout_p": _checks.real("dropout_p", dropout_p),
               "dropout_seed": _checks.unsigned("dropout_seed", dropout_seed)}
    for side, form, kind, stored in (("k", k_format, k_scale_kind, k_scale), ("v", v_format, v_scale_kind, v_scale)):
        numbers[f"{side}_format"] = _checks.choice(f"{side}_format", form, _checks.FORMATS)
        numbers[f"{side}_scale_kind"] = _checks.choice(
            f"{side}_scale_kind", "tensor" if kind is None else kind, _checks.SCALE_KINDS)
        if form is None and stored is not None:
            raise invalid(f"{side}_scale", f"is given without {side}_format")
        if form is None and kind is not None:
            raise invalid(f"{side}_scale_kind", f"is given without {side}_format")
    problem.set_numbers(numbers)

    if cu_q is None:
        if len(q_facts.shape) != 4:
            raise invalid("cu_q", "is missing; without it q is a dense batch [B, S, Hq, D]")
        batch, rows = q_facts.shape[:2]
        cu_q = frame.steps(batch + 1, rows, "cu_q")
        problem.join_q = True
        if page_table is None and cu_kv is None:
            for name, facts in (("k", k_facts), ("v", v_facts)):
                if len(facts.shape) != 4:
                    raise invalid(name, "of a dense batch is [B, T, Hkv, D], with kv_layout HND [B, Hkv, T, D]; "
                                        "otherwise give page_table or cu_kv")
                if facts.shape[0] != batch:
                    raise invalid(name, f"{facts.shape[0]} requests, q has {batch}")
            tokens = k_facts.shape[1 if kv_layout == "NHD" else 2]
            if kv_len is None:
                kv_len = frame.filled(batch, tokens, "kv_len")
            if tokens == 0 or (kv_layout == "NHD" and _joins(k_facts) and _joins(v_facts)):
                cu_kv = frame.steps(batch + 1, tokens, "cu_kv")
                problem.join_kv = True
            else:  # each request is one page, wherever it lies
                page_table = frame.steps(batch, 1, "page_table").reshape(batch, 1)
    if kv_len is None and cu_kv is not None:
        kv_len = _frames.differences(cu_kv, "cu_kv")
    if kv_len is None:
        raise invalid("kv_len", "is missing; a paged cache does not tell how long its requests are")

    problem.set("q", q, problem.join_q, shape_only)
    problem.set("k", k, problem.join_kv, shape_only)
    problem.set("v", v, problem.join_kv, shape_only)
    for name, array in (("cu_q", cu_q), ("kv_len", kv_len), ("cu_kv", cu_kv), ("page_table", page_table),
                        ("q_pos", q_pos), ("page_stamps", page_stamps), ("table_stamps", table_stamps),
                        ("alibi_slopes", alibi_slopes)):
        problem.set(name, array)
    for name, stored, kind in (("k_scale", k_scale, k_scale_kind), ("v_scale", v_scale, v_scale_kind)):
        problem.set(name, stored, problem.join_kv and kind == "token")
    _candidates.set_lists(problem, candidates)

    v_dim = v_facts.shape[-1] * (2 if v_format == "int4" else 1) if v_facts.shape else 0
    return Given(problem, frame, (*q_facts.shape[:-1], v_dim), tuple(q_facts.shape[:-1]))


def backend_of(backend, device):
    """The number of the backend for arrays of the host or of a device."""
    number = _checks.choice("backend", backend, _checks.BACKENDS)
    if number < 0:
        return _checks.BACKENDS["cuda" if device else "cpu"]
    if backend == "cuda" and not device:
        raise invalid("backend", "cuda reads device memory, q lies on the host; nothing is copied silently")
    if backend != "cuda" and device:
        raise invalid("backend", f"{backend} reads memory of the host, q lies on a device; nothing is copied silently")
    return number
