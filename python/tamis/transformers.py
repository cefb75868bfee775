"""Attention of Hugging Face models. Needs torch and transformers 4.57 or newer, which `import tamis` does not.

    import tamis.transformers

    tamis.transformers.register("tamis", window=256, sink=4, pages=16)
    model.set_attn_implementation("tamis")

`register` puts an attention function and the mask function that belongs to it under one name; the guide is
docs/python_frameworks.md.
"""
from . import _candidates, _checks
from ._attention import attention as _attention
from ._errors import invalid, unsupported

try:
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
except ImportError as missing:
    raise ImportError("tamis.transformers needs torch and transformers 4.57 or newer "
                      f"(pip install torch transformers): {missing}") from missing

from . import _padding
from ._page_selection import PageRequest, best_pages, chosen_pages, page_bounds
from ._query_runs import candidate_rows

__all__ = ["PageRequest", "best_pages", "page_bounds", "register"]

# Arguments that models hand to an attention function and that change what is computed.
_REFUSED = {"s_aux": "learned sinks add to the denominator",
            "position_bias": "scores get no learned bias",
            "head_mask": "heads are not masked",
            "output_attentions": "weights are never written; use eager to look at them",
            "cu_seq_lens_q": "packed sequences; give a padded batch",
            "cu_seq_lens_k": "packed sequences; give a padded batch"}


def register(name="tamis", *, window, sink, pages=None, page_size=16, query_block=16, selector="bounds",
             backend="auto", observe=None):
    """Registers attention and masks under a name that `model.set_attn_implementation` then knows.

    Every causal layer without a sliding window attends to the `window` last tokens, the `sink` first ones and the
    pages that a selector names, for each KV head and block of queries anew. Layers with a sliding window keep just
    that window, and layers that are not causal attend to everything: there is nothing to select by position.

    A model's `scaling`, `softcap`, sliding window and causality are respected, static and dynamic caches, prefill and
    decode, padding in front of a request or behind it. Positions, pages, window, sink and blocks of queries count from
    a request's first token, not from its padding. In a causal layer a query that is padding has the result 0, and no
    say in what others see. A block holds the queries at positions `n * query_block` up to the next multiple that one
    call brings: chunks of a prefill choose what a whole one does where they end at such multiples, and a token that is
    generated chooses alone.

    A model that rotates (RoPE) does so by its `position_ids`: `generate` passes them, but a plain `model(...)` counts
    columns, padding included. Scores are the same then, bounds of pages are not, so pass them beside such a mask.

    Dropout, where a model trains with it: each call draws a seed from torch's default CPU generator, so
    `torch.manual_seed` repeats it and checkpointing recomputes the same weights.

    Gradients are those of `tamis.torch`: of the tokens that were selected, on the CPU. On a device, masks of a batch
    are read on the host once a forward; a step with them is not captured into a CUDA graph.

    Args:
        name: what to register under; one that exists is replaced.
        window: tokens up to and including the query's own.
        sink: first tokens of each request.
        pages: how many pages a block of queries takes besides; 0: window and sink alone; None: every token, and window
            and sink make no difference.
        page_size: tokens of a page.
        query_block: positions whose queries share pages.
        selector: `"bounds"` (`best_pages`), or a callable that is given a `PageRequest` and returns pages as an int32
            or int64 tensor `[blocks, Hkv, K]` beside the query, -1 for none.
        backend: as for `tamis.attention`.
        observe: called before each attention as `observe(module, arguments)`, with what `tamis.attention` is about to
            be given, by name.

    Returns:
        `name`.

    Raises:
        Error: `invalid_argument` for numbers out of range. A model's call raises `unsupported`, with the argument's
            name, for masks and arguments that are not computed (learned sinks, chunked sequences, packed ones where
            transformers tells of them, ...), and of `selector` `invalid_argument` and `index_out_of_range`. The latter
            is the verdict of `tamis.poll` where the model is on a device.
    """
    window, sink = _at_least(0, "window", window), _at_least(0, "sink", sink)
    pages = None if pages is None else _at_least(0, "pages", pages)
    page_size, query_block = _at_least(1, "page_size", page_size), _at_least(1, "query_block", query_block)
    _checks.choice("backend", backend, _checks.BACKENDS)
    if selector == "bounds":
        selector = best_pages
    elif not callable(selector):
        raise invalid("selector", f"{selector!r} is neither 'bounds' nor a callable")

    def choose(module, query, key, rows):
        """(candidates, window, sink) of one layer."""
        if rows.sliding:
            return None, rows.sliding, 0
        if pages is None or not rows.causal:
            return _candidates.ALL, 0, 0
        if pages == 0:
            return None, window, sink
        asked = {}
        for b, (t, tokens, q_start) in enumerate(zip(rows.first, rows.tokens, rows.q_start)):
            begin, end = rows.real(b, query.shape[2])
            if begin < end:
                asked[b] = PageRequest(query[b, :, begin:end], key[b, :, t:t + tokens], q_start + begin, pages,
                                       page_size, query_block, module)
        with torch.no_grad():
            lists = candidate_rows(rows.runs(query.shape[2], query_block)[0], chosen_pages(selector, asked),
                                   query_block, key)
        return _candidates.Candidates(lists, unit=page_size, query_block=query_block,
                                      index_heads=key.shape[1]), window, sink

    @torch.compiler.disable  # lengths are read on the host
    def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None,
                  softcap=None, is_causal=None, **others):
        for argument, reason in _REFUSED.items():
            if others.get(argument) is not None and others[argument] is not False:
                raise unsupported(argument, reason)
        rows = _rows(module, query, key, attention_mask, sliding_window, is_causal)
        candidates, near, first = choose(module, query, key, rows)
        differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        listed = candidates is not None and candidates is not _candidates.ALL
        q, k, v, given = _padding.arguments(query, key, value, rows, differentiable, query_block if listed else None)
        given.update(causal=rows.causal, window=near, sink=first, scale=scaling, softcap=softcap or 0.0,
                     backend=backend)
        if dropout:
            given.update(dropout_p=dropout, dropout_seed=int(torch.randint(1 << 62, ())))
        if observe is not None:
            observe(module, {"q": q, "k": k, "v": v, "candidates": candidates, **given})
        out = _attention(q, k, v, candidates, **given)
        return out.reshape(query.shape[0], query.shape[2], *out.shape[-2:]).to(query.dtype), None

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, _mask)
    return name


def _at_least(least, name, value):
    value = _checks.integer(name, value)
    if value < least:
        raise invalid(name, f"{value} is below {least}", value=value)
    return value


def _rows(module, query, key, attention_mask, sliding_window, is_causal):
    if attention_mask is not None:
        rows = _padding.unpack(attention_mask)
        if rows is None:
            raise unsupported("attention_mask", f"{attention_mask.dtype} {tuple(attention_mask.shape)} was not made by "
                                                "this module; give the model a 2-D mask of tokens and padding")
        return rows
    causal = getattr(module, "is_causal", True) if is_causal is None else bool(is_causal)
    if sliding_window and not causal:
        raise unsupported("sliding_window", "is computed for causal layers only")
    tokens, queries = key.shape[2], query.shape[2]
    return _padding.rows_of_mask(None, query.shape[0], queries, tokens, tokens - queries, 0, causal,
                                 int(sliding_window or 0))


@torch.compiler.disable
def _mask(batch_size, kv_length, q_length=None, q_offset=0, kv_offset=0,
          mask_function=masking_utils.causal_mask_function, attention_mask=None, device=None, cache_position=None, **_):
    """The mask function: says which rows are tokens and where queries stand, in place of a mask of B * S * T."""
    if cache_position is not None:  # transformers 4
        q_length, q_offset = cache_position.shape[0], cache_position[0]
        device = cache_position.device
    if device is None:
        device = "cpu" if attention_mask is None else attention_mask.device
    causal, sliding = _kind(mask_function)
    rows = _padding.rows_of_mask(attention_mask, batch_size, int(q_length), int(kv_length), int(q_offset),
                                 int(kv_offset), causal, sliding)
    return _padding.pack(rows, device)


def _kind(mask_function):
    """(causal, sliding window) of a model's mask function, which is a closure over others."""
    if mask_function is masking_utils.causal_mask_function:
        return True, 0
    if mask_function is getattr(masking_utils, "bidirectional_mask_function", None):
        return False, 0
    name, inside = _closure(mask_function)
    parts = inside.get("mask_functions", ())
    if name.startswith("and_masks.") and len(parts) == 2 and parts[1] is masking_utils.causal_mask_function:
        name, inside = _closure(parts[0])
        if name.startswith("sliding_window_overlay.") and isinstance(inside.get("sliding_window"), int):
            return True, inside["sliding_window"]
    raise unsupported("mask_function", f"{name} is neither causal, causal with a sliding window, nor bidirectional "
                                       "(chunked, packed, block-wise and custom masks are not computed)")


def _closure(function):
    """Qualified name and captured variables."""
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    values = dict(zip(code.co_freevars, (cell.cell_contents for cell in cells))) if code else {}
    return getattr(function, "__qualname__", repr(function)), values
