"""A Triton prototype of Tamis: the library's idea in five rungs, each a readable reference for the next.

    r1_fixed    K whole pages of a contiguous cache for each (request, KV head), decode, GQA, online softmax
    r2_paged    the same through a page table
    r3_ragged   any index set: rows of blocks in CSR form, a member word a block, empty rows, kv_len, causality
    r4_split    rows cut into equal shares, partial states (m, l, o) merged by a second kernel
    r5_select   a selector (bounds of pages, top-k) in front, the whole step capturable in a CUDA graph

What is computed is docs/semantics.md sections 1 to 5; how to run it is docs/prototype.md. Beside CUDA tensors the
kernels take CPU tensors where Triton interprets: TRITON_INTERPRET=1 in the environment before this import.
"""
try:
    import torch
    import triton
except ImportError as error:
    raise ImportError(f"tamis.prototype needs the packages torch and triton: {error}", name=error.name) from error

from .attend import attention
from .index import Index, prepare
from .interpreter import repair_loop_bounds
from .launch import interpreted
from .r1_fixed import fixed_attention
from .r2_paged import paged_attention
from .r3_ragged import ragged_attention
from .r4_split import choose_splits, merge_states, split_attention
from .r5_select import capture, page_bounds, page_scores, select_attention, top_pages

__all__ = ["Index", "attention", "capture", "choose_splits", "fixed_attention", "merge_states", "page_bounds",
           "page_scores", "paged_attention", "prepare", "ragged_attention", "select_attention", "split_attention",
           "top_pages"]

if interpreted():
    repair_loop_bounds()
