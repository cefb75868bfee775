# What the package offers to type checkers; tests/python/test_stubs.py holds it against the package.
import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from ._core import View as View
from ._core import build_info as build_info

__version__: str

__all__ = ["ALL", "BlockLists", "Candidates", "Case", "Error", "IndexSet", "Plan", "Schedule", "View", "attention",
           "build_info", "clear_cache", "explain", "get_num_threads", "load_case", "merge_states", "normalize", "plan",
           "poll", "run", "save_case", "schedule", "set_num_threads"]

class _Exporter(Protocol):  # of DLPack: arrays of NumPy, torch, CuPy, JAX, ...
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

_Array: TypeAlias = _Exporter | np.generic | View
_Stream: TypeAlias = Any  # an integer, or a stream of torch, CuPy or cuda.core
_Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_Layout: TypeAlias = Literal["NHD", "HND"]
_Format: TypeAlias = Literal["int8", "fp8_e4m3", "fp8_e5m2", "int4"]
_ScaleKind: TypeAlias = Literal["tensor", "head", "page", "channel", "page_channel", "token"]
_Duplicates: TypeAlias = Literal["merge", "reject"]
_Invalid: TypeAlias = Literal["reject", "drop"]
_Fallback: TypeAlias = Literal["allow", "refuse"]
_Backend: TypeAlias = Literal["auto", "reference", "cpu", "cuda"]
_Code: TypeAlias = Literal["invalid_argument", "index_out_of_range", "duplicate_index", "unsupported_semantics",
                           "page_out_of_range", "page_unmapped", "foreign_page", "workspace_too_small",
                           "capacity_exceeded", "stale_plan", "not_capturable", "unsupported", "io_error",
                           "device_error"]

class Error(Exception):
    code: _Code
    message: str
    request: int | None
    row: int | None
    page: int | None
    value: int | None
    limit: int | None
    def __init__(self, code: _Code, message: str, request: int | None = None, row: int | None = None,
                 page: int | None = None, value: int | None = None, limit: int | None = None) -> None: ...

class BlockLists(NamedTuple):
    kv_num_blocks: np.ndarray
    kv_indices: np.ndarray
    full_kv_num_blocks: np.ndarray
    full_kv_indices: np.ndarray
    BLOCK_SIZE: tuple[int, int]
    seq_lengths: tuple[int, int]

class Candidates:
    indices: Any
    indptr: Any
    count: Any
    unit: int
    query_block: int
    index_heads: int
    duplicates: _Duplicates
    invalid: _Invalid
    form: int
    def __init__(self, indices: _Array, indptr: _Array | None = None, count: _Array | None = None, *, unit: int = 1,
                 query_block: int = 1, index_heads: int, duplicates: _Duplicates = "merge",
                 invalid: _Invalid = "reject") -> None: ...
    @classmethod
    def from_csr(cls, indptr: _Array, indices: _Array, *, unit: int = 1, query_block: int = 1, index_heads: int = 1,
                 columns: int | None = None, duplicates: _Duplicates = "merge",
                 invalid: _Invalid = "reject") -> Candidates: ...
    @classmethod
    def from_bsr(cls, indptr: _Array, indices: _Array, R: int, C: int, *, index_heads: int = 1,
                 columns: int | None = None, duplicates: _Duplicates = "merge",
                 invalid: _Invalid = "reject") -> Candidates: ...
    @classmethod
    def from_topk(cls, indices: _Array, *, unit: int = 1, query_block: int = 1, index_heads: int | None = None,
                  heads_first: bool = False, columns: int | None = None, duplicates: _Duplicates = "merge",
                  invalid: _Invalid = "reject") -> Candidates: ...
    @classmethod
    def from_dense_mask(cls, mask: _Array | Sequence[_Array], *, unit: int = 1, query_block: int = 1,
                        of_blocks: bool = False) -> Candidates: ...
    @classmethod
    def from_block_mask(cls, mask: Any, *, partial: Literal["reject", "whole"] = "reject",
                        batch: int | None = None) -> Candidates: ...
    def to_csr(self, padding: Literal["keep", "drop"] = "keep") -> tuple[np.ndarray, np.ndarray]: ...
    def to_fixed_width(self, width: int | None = None) -> tuple[np.ndarray, np.ndarray]: ...
    def to_bsr(self) -> tuple[np.ndarray, np.ndarray, int, int]: ...
    def to_dense_mask(self, cu_q: _Array, kv_len: _Array) -> list[np.ndarray]: ...

ALL: Candidates

class Case:
    q: Any
    k: Any
    v: Any
    candidates: Candidates
    d_out: Any
    d_lse: Any
    index_only: dict[str, int] | None
    def arguments(self) -> dict[str, Any]: ...

class IndexSet:
    @property
    def on_device(self) -> bool: ...
    @property
    def block(self) -> int: ...
    @property
    def indptr(self) -> np.ndarray: ...
    @property
    def blocks(self) -> np.ndarray: ...
    @property
    def slots(self) -> np.ndarray: ...
    @property
    def members(self) -> np.ndarray: ...
    @property
    def full(self) -> np.ndarray: ...
    @property
    def span_begin(self) -> np.ndarray: ...
    @property
    def spans(self) -> np.ndarray: ...
    @property
    def rows(self) -> np.ndarray: ...
    @property
    def stats(self) -> dict[str, int]: ...
    def to_tokens(self) -> tuple[np.ndarray, np.ndarray]: ...
    def to_csr(self) -> tuple[np.ndarray, np.ndarray]: ...
    def to_bsr(self) -> tuple[np.ndarray, np.ndarray, int, int]: ...
    def to_topk(self, width: int | None = None) -> np.ndarray: ...
    def to_dense_mask(self) -> list[np.ndarray]: ...
    def to_block_mask(self) -> BlockLists: ...
    def poll(self, stream: _Stream = None) -> dict[str, int | float]: ...

class Plan:
    backend: Literal["cpu", "cuda"]
    shape: dict[str, int | float]
    @property
    def on_device(self) -> bool: ...
    @property
    def workspace_sizes(self) -> tuple[int, int, int]: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def info(self) -> dict[str, Any]: ...

class Schedule:
    plan: Plan
    index: IndexSet
    @property
    def info(self) -> dict[str, Any]: ...

def attention(q: _Array, k: _Array, v: _Array, candidates: Candidates | None = None, *, cu_q: _Array | None = None,
              kv_len: _Array | None = None, cu_kv: _Array | None = None, page_table: _Array | None = None,
              q_pos: _Array | None = None, causal: bool = True, window: int = 0, sink: int = 0,
              scale: float | None = None, softcap: float = 0.0, alibi_slopes: _Array | None = None,
              dropout_p: float = 0.0, dropout_seed: int = 0, page_stamps: _Array | None = None,
              table_stamps: _Array | None = None, kv_layout: _Layout = "NHD", k_format: _Format | None = None,
              v_format: _Format | None = None, k_scale: _Array | None = None, v_scale: _Array | None = None,
              k_scale_kind: _ScaleKind | None = None, v_scale_kind: _ScaleKind | None = None,
              return_lse: bool = False, backend: _Backend = "auto", fallback: _Fallback = "allow",
              out: _Array | None = None, workspace: _Array | None = None, stream: _Stream = None) -> Any: ...
def explain(q: _Array, k: _Array, v: _Array, candidates: Candidates | None = None, *, cu_q: _Array | None = None,
            kv_len: _Array | None = None, cu_kv: _Array | None = None, page_table: _Array | None = None,
            q_pos: _Array | None = None, causal: bool = True, window: int = 0, sink: int = 0,
            scale: float | None = None, softcap: float = 0.0, alibi_slopes: _Array | None = None,
            dropout_p: float = 0.0, dropout_seed: int = 0, page_stamps: _Array | None = None,
            table_stamps: _Array | None = None, kv_layout: _Layout = "NHD", k_format: _Format | None = None,
            v_format: _Format | None = None, k_scale: _Array | None = None, v_scale: _Array | None = None,
            k_scale_kind: _ScaleKind | None = None, v_scale_kind: _ScaleKind | None = None, return_lse: bool = False,
            backend: _Backend = "auto", fallback: _Fallback = "allow", out: _Array | None = None,
            workspace: _Array | None = None, stream: _Stream = None, tile: int = 64, splits: int = 1,
            bandwidth: float = 0.0) -> dict[str, int | float]: ...
def merge_states(outs: Iterable[_Array], lses: Iterable[_Array], *, out: _Array | None = None,
                 lse: _Array | None = None) -> tuple[Any, Any]: ...
def poll(workspace: _Array | None = None, *, stream: _Stream = None, device: int = 0) -> dict[str, int | float]: ...
def clear_cache() -> None: ...
def set_num_threads(threads: int) -> None: ...
def get_num_threads() -> int: ...
def plan(q: _Array, k: _Array, v: _Array, candidates: Candidates | None = None, *, cu_q: _Array | None = None,
         kv_len: _Array | None = None, cu_kv: _Array | None = None, page_table: _Array | None = None,
         q_pos: _Array | None = None, causal: bool = True, window: int = 0, sink: int = 0, scale: float | None = None,
         softcap: float = 0.0, alibi_slopes: _Array | None = None, dropout_p: float = 0.0, dropout_seed: int = 0,
         page_stamps: _Array | None = None, table_stamps: _Array | None = None, kv_layout: _Layout = "NHD",
         k_format: _Format | None = None, v_format: _Format | None = None, k_scale: _Array | None = None,
         v_scale: _Array | None = None, k_scale_kind: _ScaleKind | None = None, v_scale_kind: _ScaleKind | None = None,
         backend: Literal["auto", "cpu", "cuda"] = "auto", fallback: _Fallback = "allow",
         path: Literal["auto", "direct", "gather", "dense"] = "auto", splits: int = 0, batch_invariant: bool = False,
         block: int = 0, load: Literal["auto", "blocks", "tokens"] = "auto", density: float | None = None,
         row_entries: int = 0, max_kv_len: int = 0, engine: Literal["auto", "decode", "prefill"] = "auto",
         ring: Literal["auto", "full", "short"] = "auto", workspace_budget: int | None = None,
         bundle: Literal["auto", "rows", "heads", "neighbours"] = "auto") -> Plan: ...
def normalize(candidates: Candidates | None = ..., *, plan: Plan | None = None, cu_q: _Array | None = None,
              kv_len: _Array | None = None, cu_kv: _Array | None = None, page_table: _Array | None = None,
              q_pos: _Array | None = None, page_stamps: _Array | None = None, table_stamps: _Array | None = None,
              causal: bool | None = None, window: int | None = None, sink: int | None = None,
              q_heads: int | None = None, kv_heads: int | None = None, page_size: int | None = None,
              num_pages: int | None = None, block: int | None = None, into: IndexSet | None = None,
              workspace: _Array | tuple[_Array, _Array, _Array] | None = None, stream: _Stream = None) -> IndexSet: ...
def schedule(plan: Plan, index: IndexSet, *, stream: _Stream = None) -> Schedule: ...
def run(plan: Plan, schedule: Schedule, q: _Array, k: _Array, v: _Array, *, out: _Array | None = None,
        lse: _Array | None = None, return_lse: bool = False, stream: _Stream = None) -> Any: ...
def load_case(path: _Path) -> Case: ...
def save_case(path: _Path, q: _Array, k: _Array, v: _Array, candidates: Candidates | None = None, *,
              cu_q: _Array | None = None, kv_len: _Array | None = None, cu_kv: _Array | None = None,
              page_table: _Array | None = None, q_pos: _Array | None = None, causal: bool = True, window: int = 0,
              sink: int = 0, scale: float | None = None, softcap: float = 0.0, alibi_slopes: _Array | None = None,
              dropout_p: float = 0.0, dropout_seed: int = 0, page_stamps: _Array | None = None,
              table_stamps: _Array | None = None, kv_layout: _Layout = "NHD", k_format: _Format | None = None,
              v_format: _Format | None = None, k_scale: _Array | None = None, v_scale: _Array | None = None,
              k_scale_kind: _ScaleKind | None = None, v_scale_kind: _ScaleKind | None = None,
              d_out: _Array | None = None, d_lse: _Array | None = None) -> None: ...
