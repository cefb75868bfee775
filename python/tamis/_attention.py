"""Attention in one call."""
import sys

from . import _autograd, _checks, _core, _device, _problem, _streams, _threads
from ._errors import invalid, unsupported


def attention(q, k, v, candidates=None, *, cu_q=None, kv_len=None, cu_kv=None, page_table=None, q_pos=None,
              causal=True, window=0, sink=0, scale=None, softcap=0.0, alibi_slopes=None, dropout_p=0.0,
              dropout_seed=0, page_stamps=None, table_stamps=None, kv_layout="NHD", k_format=None, v_format=None,
              k_scale=None, v_scale=None, k_scale_kind=None, v_scale_kind=None, return_lse=False, backend="auto",
              fallback="allow", out=None, workspace=None, stream=None):
    """Attention of each query over the keys that its candidate row, the window and the sink select.

    What is computed is defined in docs/semantics.md. `B` requests have `total_q` queries in all; `Hq` query heads
    share `Hkv` KV heads; `D` and `Dv` are head sizes, `P` is the page size. Arrays may be any that speak DLPack
    (NumPy, torch, CuPy, JAX), in any strides; they are read where they lie, never copied or converted. Where NumPy
    has no dtype, `ml_dtypes` does, or `tamis.View(bits, "bf16")`. All arrays lie on the host, or all on one device.

    Args:
        q: `[total_q, Hq, D]` float32, float16 or bfloat16; without `cu_q` a dense batch `[B, S, Hq, D]`, which must be
            joinable: `[B, S]` is one run of rows, as in a contiguous array. K and V may have any strides.
        k, v: paged `[pages, P, Hkv, D]` with `page_table`; contiguous `[total_kv, Hkv, D]` with `cu_kv`; or, beside a
            dense q, `[B, T, Hkv, D]`. With `kv_layout="HND"` the axes of tokens and heads change places. The last
            axis of v is `Dv`. On the host their dtypes may differ from q's and from each other.
        candidates: a `tamis.Candidates`, `tamis.ALL` for every token, or None: window and sink alone.
        cu_q: int32 `[B + 1]`, which rows of q belong to which request.
        kv_len: int32 `[B]`, tokens of each request. Default: what `cu_kv` or the dense batch holds.
        cu_kv: int32 `[B + 1]`, rows of a contiguous cache.
        page_table: int32 `[B, max_pages]`, physical pages.
        q_pos: int32 `[total_q]`, positions; by default the last query of a request is its last token, so where a
            request has fewer tokens than queries its first ones are at negative positions and see nothing.
        causal: whether a query sees only tokens up to its position.
        window: tokens up to and including the query's own that are selected besides; 0 for none.
        sink: first tokens of the request that are selected besides.
        scale: of the scores; default `1 / sqrt(D)`.
        softcap: caps scores at this size by tanh; 0 for none.
        alibi_slopes: float32 `[Hq]`.
        dropout_p, dropout_seed: probability in [0, 1) that a weight is dropped, and the seed, from which alone it
            follows which ones: draw one for each call.
        page_stamps, table_stamps: uint64 `[pages]` and `[B, max_pages]`, both or neither: stale pages are refused.
        kv_layout: `"NHD"` or `"HND"`, of k and v alone: q and the result have tokens before heads always.
        k_format, v_format: None, or `"int8"`, `"fp8_e4m3"`, `"fp8_e5m2"` (also in uint8 arrays), `"int4"` (two in a
            uint8).
        k_scale, v_scale: float32 scales of quantized k and v, shaped by `k_scale_kind`, `v_scale_kind`: `"tensor"`
            (default) `[]`, `"head"` `[Hkv]`, `"page"` `[pages, Hkv]`, `"channel"` `[Hkv, D]`, `"page_channel"`
            `[pages, Hkv, D]`, `"token"` the shape of k without its last axis.
        return_lse: also return the logarithm of the summed exponentials.
        backend: `"auto"`: `"cpu"` for arrays of the host, `"cuda"` for those of a device. `"reference"` computes in
            float64 on the host and answers in float64.
        fallback: `"refuse"` makes an error of taking another path than the one planned.
        out: where to write the result, shaped like it; else an array like q is made (torch, CuPy, JAX, NumPy). It may
            share no memory with the inputs: that is not checked. One that requires a gradient is refused in grad mode.
        workspace: device memory (a dense run of bytes) for the step; else it is taken from torch or CuPy and kept for
            the next call of this shape. `plan(...).workspace_bytes` says how much. On the host there is none.
        stream: CUDA stream, an integer or a stream object; default: the current one of q's framework.

    Returns:
        The result `[total_q, Hq, Dv]` (dense: `[B, S, Hq, Dv]`), or with `return_lse` the pair of it and the LSE,
        float32 `[total_q, Hq]`. Empty rows are 0 with LSE `-inf`.

    Where q, k or v is a torch tensor that requires a gradient, and where `torch.compile`, `torch.export`,
    `torch.jit.trace` or `make_fx` traces the call, this is `tamis.torch.attention`: one operator, which casts under
    autocast. What it does not take (`out`, `workspace`, `stream`, quantized K and V) runs outside of a compiled graph, and
    with `fullgraph=True` or in the other traces not at all.

    On a device nothing waits: a batch that the device refuses leaves NaN, and `tamis.poll()` raises why.

    Raises:
        Error: with the code and place that docs/semantics.md section 10 defines.
        TypeError: for what is no array or no number; names the argument.
    """
    arguments = dict(cu_q=cu_q, kv_len=kv_len, cu_kv=cu_kv, page_table=page_table, q_pos=q_pos, causal=causal,
                     window=window, sink=sink, scale=scale, softcap=softcap, alibi_slopes=alibi_slopes,
                     dropout_p=dropout_p, dropout_seed=dropout_seed, page_stamps=page_stamps,
                     table_stamps=table_stamps, kv_layout=kv_layout)
    _autograd.refuse_gradients(alibi_slopes=alibi_slopes, k_scale=k_scale, v_scale=v_scale)
    quantized = dict(k_format=k_format, v_format=v_format, k_scale=k_scale, v_scale=v_scale,
                     k_scale_kind=k_scale_kind, v_scale_kind=v_scale_kind)
    compute, compiled, recorded = attention_of, _autograd.is_compiled(q), _autograd.wants_gradients(q, k, v)
    if not compiled:
        _autograd.refuse_tangents(q=q, k=k, v=v, alibi_slopes=alibi_slopes, k_scale=k_scale, v_scale=v_scale, out=out)
    traced = not compiled and _autograd.is_traced(q, k, v)
    if compiled or traced or recorded:
        from . import torch as operators
        for name, array in (("q", q), ("k", k), ("v", v)):
            if isinstance(array, _core.View):  # which operators do not take
                _autograd.refuse_gradients(**{name: array})
        more = [name for name, given in dict(quantized, out=out, workspace=workspace, stream=stream).items()
                if given is not None]
        if not more:
            return operators.attention(q, k, v, candidates, return_lse=return_lse, backend=backend, fallback=fallback,
                                       **arguments)
        if recorded:
            raise unsupported(more[0], "cannot be given where q, k or v requires a gradient")
        if traced:
            raise unsupported(more[0], "cannot be given where torch.jit.trace or make_fx records the call")
        compute = operators.outside
    return compute(q, k, v, candidates, dict(arguments, **quantized), return_lse=return_lse, backend=backend,
                   fallback=fallback, out=out, workspace=workspace, stream=stream)


def attention_of(q, k, v, candidates, arguments, *, return_lse, backend, fallback, out=None, workspace=None,
                 stream=None):
    """`attention` with the arguments of a problem in a dictionary; computes no gradients and looks for none."""
    _autograd.refuse_history(out=out)
    return_lse = _checks.flag("return_lse", return_lse)
    stream = _streams.number(stream)
    options = _device.options_of(fallback=fallback)
    frame = _problem.frame_of(q)
    with frame.on_stream(stream):
        given = _problem.build(frame, q, k, v, candidates, **arguments)
        device, _ = given.problem.place
        number = _problem.backend_of(backend, device)
        if workspace is not None and not device:
            raise invalid("workspace", "is for a step on a device, q lies on the host")
        if number == _checks.BACKENDS["reference"]:
            return _reference(given, out, return_lse)
        given.problem.shape()  # before memory is asked for
        result = frame.result(given.out_shape) if out is None else _problem.written(out)
        lse = frame.result(given.lse_shape, "F32") if return_lse else None
        lse_argument = None if lse is None else lse.argument
        if device:
            _device.attention(given, q, k, v, options, result.argument, lse_argument, workspace, stream)
        else:
            _device.ran_on_host = True
            _core.forward(given.problem, result.argument, lse_argument, options, _threads.get_num_threads())
    _autograd.tell_written(out)
    return (result.value(), lse.value()) if return_lse else result.value()


def _reference(given, out, return_lse):
    given.problem.shape()
    result = given.frame.result(given.out_shape, "F64") if out is None else _problem.written(out)
    shape = _core.facts(result.argument, "out").shape
    if tuple(shape) != tuple(given.out_shape):
        raise invalid("out", f"shape {tuple(shape)}, expected {tuple(given.out_shape)}")
    lse = given.frame.result(given.lse_shape, "F64")
    _core.reference(given.problem, result.argument, lse.argument)
    _autograd.tell_written(out)
    return (result.value(), lse.value()) if return_lse else result.value()


def poll(workspace=None, *, stream=None, device=0):
    """Waits for a stream, then raises what the device found wrong with the last `attention` there.

    Args:
        workspace: the one that `attention` was given; default: the step that ran last on the stream without one.
        stream: CUDA stream; default: torch's current one.
        device: number of the device.

    Returns:
        Statistics of that step: entries by class, blocks, pages, tasks (docs/device_step.md). An empty dictionary where
        `attention` ran on the host alone, which raises at once what it finds wrong.

    Raises:
        Error: the verdict of the device, with request, row, page and value; `not_capturable` while the stream is
            being captured; `invalid_argument` where no such step is known.
    """
    anywhere = workspace is None and stream is None
    stream = _streams.number(stream)
    if stream is None:
        torch = sys.modules.get("torch")
        cuda = torch is not None and torch.cuda.is_available()
        stream = torch.cuda.current_stream(device).cuda_stream if cuda else 0
    return _device.poll(workspace, stream, device, anywhere)


def explain(q, k, v, candidates=None, *, cu_q=None, kv_len=None, cu_kv=None, page_table=None, q_pos=None,
            causal=True, window=0, sink=0, scale=None, softcap=0.0, alibi_slopes=None, dropout_p=0.0, dropout_seed=0,
            page_stamps=None, table_stamps=None, kv_layout="NHD", k_format=None, v_format=None, k_scale=None,
            v_scale=None, k_scale_kind=None, v_scale_kind=None, return_lse=False, backend="auto", fallback="allow",
            out=None, workspace=None, stream=None, tile=64, splits=1, bandwidth=0.0):
    """What a problem's sets cost to load and to compute, without running it (docs/explain.md).

    Takes the arguments of `attention`, so that `explain(**case.arguments())` works. K and V are not read and pages not
    checked, and what changes no set (scale, softcap, slopes, dropout, stamps, and all from `return_lse` to `stream`) is
    ignored. Host arrays only.

    Args:
        tile: tokens of a tile.
        splits: parts of each row, for the workspace.
        bandwidth: bytes per second, for `floor_us`; 0 for none.

    Returns:
        A dictionary by the names of docs/explain.md; sizes in bytes, work in FLOP, `floor_us` in microseconds.

    Raises:
        Error: as `attention`.
    """
    given = _problem.build(
        _problem.frame_of(q), q, k, v, candidates, cu_q=cu_q, kv_len=kv_len, cu_kv=cu_kv, page_table=page_table,
        q_pos=q_pos, causal=causal, window=window, sink=sink, scale=None, softcap=0.0, alibi_slopes=None,
        dropout_p=0.0, dropout_seed=0, page_stamps=None, table_stamps=None, kv_layout=kv_layout, k_format=k_format,
        v_format=v_format, k_scale=k_scale, v_scale=v_scale, k_scale_kind=k_scale_kind, v_scale_kind=v_scale_kind)
    return _core.explain(given.problem, _checks.integer("tile", tile), _checks.integer("splits", splits),
                         _checks.real("bandwidth", bandwidth))


def merge_states(outs, lses, *, out=None, lse=None):
    """Joins attention over disjoint sets of keys into attention over all of them (docs/semantics.md section 5).

    Args:
        outs: results, dense float32 `[..., Dv]` of the host; `attention` writes such ones into an `out` of float32.
        lses: the LSE of each, dense float32 `[...]`, natural logarithm; `-inf` weighs nothing.
        out, lse: where to write; they may be among the inputs. Default: arrays like the first ones.

    Returns:
        The pair of the joined result and its LSE.

    Raises:
        Error: `invalid_argument` where arrays do not fit together; `unsupported` for arrays of a device, for results
            that are not float32, for tensors that require a gradient or have a tangent, and in traces.
        TypeError: for what is no list of arrays.
    """
    outs, lses = _checks.listed("outs", outs), _checks.listed("lses", lses)
    if not outs:
        raise _checks.invalid("outs", "is empty")
    for name, arrays in (("outs", outs), ("lses", lses)):
        for array in arrays:
            for refuse in (_autograd.refuse_gradients, _autograd.refuse_tangents, _autograd.refuse_traces):
                refuse(**{name: array})
            facts = _core.facts(array, name)
            if facts.device:
                raise unsupported(name, "lies on a device; merge_states reads memory of the host")
            if facts.dtype != "F32":
                raise unsupported(name, f"dtype {facts.dtype}; merge_states joins F32, which attention writes into an "
                                        "out of that dtype")
    _autograd.refuse_history(out=out, lse=lse)
    _autograd.refuse_tangents(out=out, lse=lse)
    frame = _problem.frame_of(outs[0])
    shape = _core.facts(outs[0], "outs").shape
    result = frame.result(shape) if out is None else _problem.written(out)
    total = frame.result(shape[:-1], "F32") if lse is None else _problem.written(lse)
    _core.merge_states(outs, lses, result.argument, total.argument)
    _autograd.tell_written(out, lse)
    return result.value(), total.value()
