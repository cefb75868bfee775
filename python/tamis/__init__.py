"""Attention over keys that are chosen at run time.

    out = tamis.attention(q, k, v, tamis.Candidates(pages, indptr, unit=16, index_heads=8),
                          cu_q=cu_q, kv_len=kv_len, page_table=page_table)

The guide is docs/python.md; what is computed, docs/semantics.md.
"""
from ._attention import attention, explain, merge_states, poll
from ._candidates import ALL, Candidates
from ._cases import Case, load_case, save_case
from ._core import View, build_info
from ._device import clear_cache
from ._errors import Error
from ._exporters import BlockLists
from ._index import IndexSet, normalize
from ._plan import Plan, Schedule, plan, run, schedule
from ._threads import get_num_threads, set_num_threads

__version__ = build_info()["version"]

__all__ = ["ALL", "BlockLists", "Candidates", "Case", "Error", "IndexSet", "Plan", "Schedule", "View", "attention",
           "build_info", "clear_cache", "explain", "get_num_threads", "load_case", "merge_states", "normalize", "plan",
           "poll", "run", "save_case", "schedule", "set_num_threads"]
