"""Attention as torch operators: gradients, torch.compile, CUDA graphs. Needs torch, which `import tamis` does not.

    import tamis, tamis.torch

    out = tamis.torch.attention(q, k, v, tamis.Candidates(pages, unit=16, index_heads=8), cu_q=cu_q, kv_len=kv_len,
                                page_table=page_table)

The operators are `torch.ops.tamis.attention` and `torch.ops.tamis.attention_backward`; tests check them with
`torch.library.opcheck`.
"""
import numpy as np

try:
    import torch
except ImportError as missing:
    raise ImportError(f"tamis.torch needs torch (pip install torch): {missing}") from missing

from . import _autograd, _candidates, _checks, _core, _problem, _threads
from ._attention import attention_of
from ._errors import invalid, unsupported
from .decode_graph import DecodeGraph

__all__ = ["DecodeGraph", "attention"]

# Schema of both operators but for what the backward has before: q, k, v, then arrays, then numbers, as torch knows them.
_ARRAYS = ("cand_indices", "cand_indptr", "cand_count", "cu_q", "kv_len", "cu_kv", "page_table", "q_pos", "alibi_slopes",
           "page_stamps", "table_stamps")
_NUMBERS = (("form", "int"), ("unit", "int"), ("query_block", "int"), ("index_heads", "int"), ("duplicates", "str"),
            ("invalid", "str"), ("causal", "bool"), ("window", "int"), ("sink", "int"), ("scale", "float?"),
            ("softcap", "float"), ("dropout_p", "float"), ("dropout_seed", "int"), ("kv_layout", "str"),
            ("backend", "str"), ("fallback", "str"))
_INPUTS = ", ".join(["Tensor q", "Tensor k", "Tensor v", *(f"Tensor? {name}" for name in _ARRAYS),
                     *(f"{kind} {name}" for name, kind in _NUMBERS)])
_BACKEND = len(_ARRAYS) + [name for name, _ in _NUMBERS].index("backend")  # of the arguments behind q, k and v
_ALIBI = 3 + _ARRAYS.index("alibi_slopes")
_CAST = (torch.float32, torch.float16, torch.bfloat16)  # by autocast, which leaves all others alone
_INTEGER_SEED = 1 << 63  # torch's integers are signed; seeds are not


def attention(q, k, v, candidates=None, *, cu_q=None, kv_len=None, cu_kv=None, page_table=None, q_pos=None,
              causal=True, window=0, sink=0, scale=None, softcap=0.0, alibi_slopes=None, dropout_p=0.0,
              dropout_seed=0, page_stamps=None, table_stamps=None, kv_layout="NHD", k_format=None, v_format=None,
              k_scale=None, v_scale=None, k_scale_kind=None, v_scale_kind=None, return_lse=False, backend="auto",
              fallback="allow"):
    """`tamis.attention` as one torch operator: differentiable in q, k and v (and through the LSE), traceable whole by
    `torch.compile(fullgraph=True)`, capturable into a CUDA graph.

    Arguments, shapes, units and errors are those of `tamis.attention`; q, k and v are torch tensors, and lists, lengths,
    tables and the other arrays either tensors or arrays of NumPy, which are read where they lie. Differences:

    * Gradients are computed on the CPU; on a device an input that requires a gradient is `unsupported`. They are
      those of the sets chosen by `candidates`; the lists themselves get none. Lists, lengths and page tables are kept
      for the backward as they are, not copied: changing one in place before it is an error of autograd.
    * Under `torch.utils.checkpoint` the forward runs again with the same lists and the same `dropout_seed`, so with the
      same sets and the same dropped weights, as long as lists are chosen outside the checkpointed function.
    * Under autocast q, k and v of float32, float16 and bfloat16 are cast to the autocast dtype; everything else stays.
    * K and V are float32, float16 or bfloat16, and the arguments of quantized ones None. `tamis.attention` takes those.
    * Transforms of `torch.func` do not see through it: `grad` and `vjp` are torch's RuntimeError, `jvp` and other
      derivatives forwards are `unsupported`, `vmap` runs it once for each element.

    Returns:
        The result in q's dtype, or with `return_lse` the pair of it and the LSE in float32.

    Raises:
        Error: as `tamis.attention`; `unsupported` for gradients on a device.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: expected a torch tensor, not {type(tensor).__name__}")
    for name, given in dict(k_format=k_format, v_format=v_format, k_scale=k_scale, v_scale=v_scale,
                            k_scale_kind=k_scale_kind, v_scale_kind=v_scale_kind).items():
        if given is not None:
            raise unsupported(name, "is taken by tamis.attention, where nothing requires a gradient")
    causal, return_lse = _checks.flag("causal", causal), _checks.flag("return_lse", return_lse)
    for name, value, table in (("kv_layout", kv_layout, _checks.LAYOUTS), ("backend", backend, _checks.BACKENDS),
                               ("fallback", fallback, _checks.FALLBACKS)):
        _checks.choice(name, value, table)
    if torch.compiler.is_compiling():
        _autograd.refuse_gradients(scale=scale, softcap=softcap, dropout_p=dropout_p)
    else:
        window, sink = _checks.integer("window", window), _checks.integer("sink", sink)
        scale = None if scale is None else _checks.real("scale", scale)
        softcap, dropout_p = _checks.real("softcap", softcap), _checks.real("dropout_p", dropout_p)
        _autograd.refuse_tangents(q=q, k=k, v=v, alibi_slopes=alibi_slopes)
    c = _candidates.given(candidates)
    _candidates.check_meaning(c)
    arrays = dict(zip(_ARRAYS, (c.indices, c.indptr, c.count, cu_q, kv_len, cu_kv, page_table, q_pos, alibi_slopes,
                                page_stamps, table_stamps), strict=True))
    recorded = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    for name, array in arrays.items():
        if array is not None and not isinstance(array, torch.Tensor):
            arrays[name] = _tensor(name, array, recorded)
    if backend == "reference" and recorded:
        raise unsupported("backend", "the reference computes no gradients; backend='auto' does, or give q, k and v "
                                     "detached")
    if q.device.type != "meta" and torch.is_autocast_enabled(q.device.type):
        to = torch.get_autocast_dtype(q.device.type)
        q, k, v = (x.to(to) if x.dtype in _CAST else x for x in (q, k, v))
    seed = _checks.unsigned("dropout_seed", dropout_seed)
    out, lse = torch.ops.tamis.attention(
        q, k, v, *arrays.values(), c.form, c.unit, c.query_block, c.index_heads, c.duplicates, c.invalid, causal, window,
        sink, scale, softcap, dropout_p, seed - 2 * _INTEGER_SEED if seed >= _INTEGER_SEED else seed, kv_layout, backend,
        fallback)
    return (out, lse) if return_lse else out


# What the operator does not take, between two compiled graphs.
outside = torch.compiler.disable(attention_of)


def _tensor(name, array, saved):
    """An array of NumPy as a tensor over the same memory. `saved`, for a backward that must find it as it is now and
    could not tell that it changed: over memory of its own."""
    if not isinstance(array, np.ndarray):
        if hasattr(array, "__dlpack__") or isinstance(array, _core.View):
            raise unsupported(name, f"is of {type(array).__name__}; operators of torch take its tensors, and arrays of "
                                    "NumPy")
        raise TypeError(f"{name}: expected a torch tensor or an array of NumPy, not {type(array).__name__}")
    if isinstance(array, np.ma.MaskedArray):
        raise invalid(name, "is a masked array, whose mask would be lost; give its data")
    if torch.compiler.is_compiling():
        made = torch.from_numpy(array)
        return torch.ops.tamis.copied(made) if saved else made
    if saved or not (array.flags.writeable and all(step >= 0 for step in array.strides)):
        array = array.copy()  # of others than these torch has no tensors
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as why:
        raise unsupported(name, f"cannot be read as a tensor: {why}") from None


@torch.library.custom_op("tamis::copied", mutates_args=())
def _copied(array: torch.Tensor) -> torch.Tensor:
    """A clone that no compiler makes anew in the backward, from memory that has changed by then."""
    return array.clone()


@_copied.register_fake
def _(array):
    return torch.empty_like(array)


def _split(arguments):
    """The arguments behind q, k and v as (candidates, keywords of a problem, backend, fallback)."""
    names = [*_ARRAYS, *(name for name, _ in _NUMBERS)]
    given = dict(zip(names, arguments, strict=True))
    lists = _candidates.restored(given.pop("form"), given.pop("cand_indices"), given.pop("cand_indptr"),
                                 given.pop("cand_count"), unit=given.pop("unit"),
                                 query_block=given.pop("query_block"), index_heads=given.pop("index_heads"),
                                 duplicates=given.pop("duplicates"), invalid=given.pop("invalid"))
    backend, fallback = given.pop("backend"), given.pop("fallback")
    given["dropout_seed"] %= 2 * _INTEGER_SEED
    return lists, given, backend, fallback


@torch.library.custom_op("tamis::attention", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor)")
def _attention(q, k, v, *arguments):
    lists, given, backend, fallback = _split(arguments)
    with torch.no_grad():
        return attention_of(q, k, v, lists, given, return_lse=True, backend=backend, fallback=fallback)


@_attention.register_fake
def _(q, k, v, *arguments):
    double = arguments[_BACKEND] == "reference"
    return (q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=torch.float64 if double else q.dtype),
            q.new_empty(q.shape[:-1], dtype=torch.float64 if double else torch.float32))


@torch.library.custom_op("tamis::attention_backward", mutates_args=(),
                         schema=f"(Tensor d_out, Tensor d_lse, Tensor out, Tensor lse, {_INPUTS}) "
                                "-> (Tensor, Tensor, Tensor)")
def _attention_backward(d_out, d_lse, out, lse, q, k, v, *arguments):
    lists, given, _, _ = _split(arguments)
    d_q, d_k, d_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    if q.dim() == 4 and given["cu_q"] is None:  # rows of one run, as q's are; autograd's may lie otherwise
        d_out, d_lse = d_out.contiguous(), d_lse.contiguous()
    problem = _problem.build(_problem.frame_of(q), q, k, v, lists, **given).problem
    problem.set("d_out", d_out, problem.join_q)
    problem.set("d_lse", d_lse, problem.join_q)
    _core.backward(problem, out, lse, d_q, d_k, d_v, {}, _threads.get_num_threads())
    return d_q, d_k, d_v


@_attention_backward.register_fake
def _(d_out, d_lse, out, lse, q, k, v, *arguments):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _keep(ctx, inputs, output):
    if ctx.needs_input_grad[_ALIBI]:
        raise unsupported("alibi_slopes", "requires a gradient; gradients are computed in q, k and v")
    if any(ctx.needs_input_grad[:3]) and inputs[0].device.type != "cpu":
        raise unsupported("q", f"requires a gradient on {inputs[0].device}; gradients are computed on the CPU only, so "
                               "give it detached, or call under torch.no_grad()")
    arrays = 3 + len(_ARRAYS)
    ctx.save_for_backward(*inputs[:arrays], *output)
    ctx.numbers = inputs[arrays:]


def _gradients(ctx, d_out, d_lse):
    *arrays, out, lse = ctx.saved_tensors
    d_q, d_k, d_v = torch.ops.tamis.attention_backward(d_out, d_lse, out, lse, *arrays, *ctx.numbers)
    wanted = [d if wanted else None for d, wanted in zip((d_q, d_k, d_v), ctx.needs_input_grad)]
    return (*wanted, *(None for _ in range(len(_ARRAYS) + len(_NUMBERS))))


_attention.register_autograd(_gradients, setup_context=_keep)


def _no_second_order(ctx, *gradients):
    raise unsupported("q", "second derivatives are not computed")


_attention_backward.register_autograd(_no_second_order, setup_context=lambda ctx, inputs, output: None)
