"""Attention over a block-sparse mask in BSR form, planned once and run many times.

    sparse = tamis.block_sparse.BlockSparseAttention()
    sparse.plan(indptr, indices, M, N, 16, 64, num_qo_heads=8, num_kv_heads=2, head_dim=64)
    out = sparse.run(q, k, v)                       # [M, Hq, D], [N, Hkv, D]
"""
import math
import sys

import numpy as np

from . import _checks
from ._candidates import Candidates
from ._core import facts
from ._errors import Error, invalid
from ._frames import framework_of
from ._index import normalize
from ._lists import LARGEST, in_range, integers, narrow
from ._plan import plan as _plan
from ._plan import run as _run
from ._plan import schedule as _schedule


class BlockSparseAttention:
    """M queries of one sequence over N keys, where block row i of R queries attends to the listed blocks of C keys.

    Named and ordered as in FlashInfer's `BlockSparseAttentionWrapper` are:

    * of `plan`: `indptr`, `indices`, `M`, `N`, `R`, `C`, `num_qo_heads`, `num_kv_heads`, `head_dim`, and by keyword
      `causal`, `sm_scale`, `logits_soft_cap`;
    * of `run`: `q`, `k`, `v`, and by keyword `out`, `lse`, `return_lse`.

    Its other arguments do not exist here: `mask` and `packed_mask`, `block_mask` and other forms of a mask, positional
    encodings, data types (those of the arrays count), scales of quantized arrays, and what chooses among its kernels.
    `workspace` may be left out, `backend` is one of Tamis and belongs to `plan`, and `window`, `sink`, `fallback` and
    `stream` are additions. Differences:

    * Lists are checked: a column block that does not exist is `index_out_of_range`, with the row. -1 is padding.
    * A column block that is listed twice counts once.
    * R and C are any positive numbers, and need not divide M and N: the last blocks are shorter. A size that no kernel
      loads as one block changes how the work is cut, not the result.
    * `indptr` may have a row for each KV head, for masks that differ between heads.
    * A block row without blocks gives 0 and LSE `-inf`. The LSE is a natural logarithm.
    * `window` and `sink` add to the lists.

    Arrays are those of any framework that speaks DLPack (a mask for each KV head: NumPy and torch), all on the host or
    all on one device.

    Args:
        workspace: device memory (a dense run of bytes), else it is taken from torch or CuPy. Unused on the host.

    Attributes:
        index: the `tamis.IndexSet` of the last `run`; None before there is one.
    """

    def __init__(self, workspace=None):
        self._workspace = workspace
        self._forget()

    def _forget(self):
        self._given = self.index = None
        self._ready = {}  # (what a plan depends on): plan and schedule

    def plan(self, indptr, indices, M, N, R, C, num_qo_heads, num_kv_heads, head_dim, *, causal=False, sm_scale=None,
             logits_soft_cap=0.0, window=0, sink=0, backend="auto", fallback="allow"):
        """Takes the mask, and judges it where it lies on the host. What was planned before is gone, also on refusal.

        Args:
            indptr: int32 or int64 `[MB + 1]`, `MB = ceil(M / R)`: block row i lists `indices[indptr[i]:indptr[i + 1]]`.
                Or `[Hkv, MB + 1]`: for each KV head.
            indices: int32 or int64 `[nnz]`, column blocks in any order. Arrays are kept as they are, but for `indices`
                of 64 bits and masks by KV head, which are copied; after a change plan again.
            M, N: queries and keys.
            R, C: queries and keys of a block.
            num_qo_heads, num_kv_heads, head_dim: `Hq`, `Hkv`, `D`.
            causal: besides, hide later keys; the last query stands at the last key, so where M exceeds N the first
                M - N queries see nothing.
            sm_scale: of the scores; default `1 / sqrt(D)`.
            logits_soft_cap: caps scores by tanh; 0 or None for none.
            window, sink, backend, fallback: as in `tamis.plan`; positions are those of a causal mask.

        Raises:
            Error: `invalid_argument`, `index_out_of_range`. Of lists on a device, `tamis.IndexSet.poll` of the
                attribute `index` raises the latter after a run.
        """
        self._forget()
        numbers = dict(M=M, N=N, R=R, C=C, num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        for name, value in numbers.items():
            numbers[name] = value = _checks.integer(name, value)
            if value < (0 if name in "MN" else 1):
                raise invalid(name, f"{value} is too small", value=value)
            if value > LARGEST:
                raise invalid(name, f"{value} does not fit 32 bits", value=value, limit=LARGEST + 1)
        M, N, R, C, num_qo_heads, num_kv_heads, head_dim = numbers.values()
        causal, window = _checks.flag("causal", causal), _checks.integer("window", window)
        sink = _checks.integer("sink", sink)
        scale = None if sm_scale is None else _checks.real("sm_scale", sm_scale)
        softcap = 0.0 if logits_soft_cap is None else _checks.real("logits_soft_cap", logits_soft_cap)
        if scale is not None and not math.isfinite(scale):
            raise invalid("sm_scale", "is not finite")
        if not 0 <= softcap < math.inf:
            raise invalid("logits_soft_cap", f"{softcap} is not finite and at least 0")
        if num_qo_heads % num_kv_heads:
            raise invalid("num_qo_heads", f"{num_qo_heads} heads do not divide into {num_kv_heads} KV heads")
        blocks, shape = -(-M // R), tuple(facts(indptr, "indptr").shape)
        if shape not in ((blocks + 1,), (num_kv_heads, blocks + 1)):
            raise invalid("indptr", f"has shape {list(shape)}; {blocks} block rows need [{blocks + 1}], or "
                                    f"[{num_kv_heads}, {blocks + 1}] for each KV head")
        heads = 1 if len(shape) == 1 else num_kv_heads
        if heads > 1:
            indptr, indices = _by_block_row(indptr, indices)
        elif len(shape) == 2:
            indptr = indptr[0]
        indices = _of_32_bits(indptr, indices, -(-N // C))
        here = facts(indices, "indices").device == 0
        like = None if here else indices
        # Negative positions see nothing, and without a mask by position none else matters.
        first = N - M if causal or window else 0
        arrays = {"cu_q": [0, M], "kv_len": [N], "cu_kv": [0, N], "q_pos": np.arange(first, first + M)}
        arrays = {name: _beside(np.asarray(x, np.int32), like) for name, x in arrays.items()}
        lists = Candidates(indices, indptr, unit=C, query_block=R, index_heads=heads)
        if here:
            normalize(lists, **{name: x for name, x in arrays.items() if name != "cu_kv"}, causal=causal,
                      window=window, sink=sink, q_heads=num_qo_heads, kv_heads=num_kv_heads)
        self._given = dict(candidates=lists, causal=causal, window=window, sink=sink, scale=scale, softcap=softcap,
                           backend=backend, fallback=fallback, **arrays)
        self._numbers, self._ready = numbers, {}

    def run(self, q, k, v, *, out=None, lse=None, return_lse=False, stream=None):
        """Attention under the planned mask.

        Args:
            q: `[M, Hq, D]` float32, float16 or bfloat16.
            k, v: `[N, Hkv, D]`; the last axis of v may differ.
            out, lse: where to write, default: new arrays; `lse` is float32 `[M, Hq]`.
            return_lse: return the pair of result and LSE.
            stream: CUDA stream; default: the current one.

        Returns:
            `[M, Hq, Dv]` in q's dtype, or the pair.

        Raises:
            Error: `stale_plan` before `plan`; `invalid_argument` for arrays that are not those of the plan;
                `unsupported` where no kernel computes it.
        """
        if self._given is None:
            raise Error("stale_plan", "run: there is no plan; call plan() first")
        kinds = tuple(facts(x, name) for name, x in zip("qkv", (q, k, v)))
        n = self._numbers
        for name, kind, expected in (("q", kinds[0], (n["M"], n["num_qo_heads"], n["head_dim"])),
                                     ("k", kinds[1], (n["N"], n["num_kv_heads"], n["head_dim"])),
                                     ("v", kinds[2], (n["N"], n["num_kv_heads"]))):
            if len(kind.shape) != 3 or tuple(kind.shape[:len(expected)]) != expected:
                raise invalid(name, f"has shape {list(kind.shape)}, planned was {list(expected)}"
                                    f"{' and Dv' if name == 'v' else ''}")
        key = tuple((kind.dtype, tuple(kind.shape), tuple(kind.stride), kind.device, kind.device_id) for kind in kinds)
        ready = self._ready.get(key)  # another thread may put another one in its place
        if ready is None:
            planned = _plan(q, k, v, **self._given)
            workspace = self._workspace if planned.on_device else None
            self.index = normalize(plan=planned, workspace=workspace, stream=stream)
            ready = planned, _schedule(planned, self.index, stream=stream)
            self._ready = {key: ready}  # one at a time: a workspace that was given holds one step
        planned, step = ready
        return _run(planned, step, q, k, v, out=out, lse=lse, return_lse=return_lse, stream=stream)


def _of_32_bits(indptr, indices, columns):
    """Indices of 64 bits as int32. What does not fit is refused here on the host, and on a device, which is not waited
    for, becomes another number that it will refuse."""
    kind = facts(indices, "indices")
    if kind.dtype != "I64":
        return indices
    if kind.device == 0:
        entries, starts = integers(indices, "indices", 1), integers(indptr, "indptr", 1)
        in_range(entries, lambda at: int(np.searchsorted(starts, at, "right")) - 1, "indices", columns, False)
        return narrow(entries)
    name = framework_of(indices)
    if name == "torch":
        return indices.clamp(-2, LARGEST).int()
    if name == "cupy":
        return indices.clip(-2, LARGEST).astype("int32")
    raise invalid("indices", "lists on a device are taken from torch and CuPy only")


def _beside(array, like):
    """A small host array where the lists lie: the device of `like`, or the host for None."""
    if like is None:
        return array
    name = framework_of(like)
    if name == "torch":
        return sys.modules["torch"].from_numpy(array).to(like.device)
    if name == "cupy":
        return sys.modules["cupy"].asarray(array)
    raise invalid("indices", "lists on a device are taken from torch and CuPy only")


def _by_block_row(indptr, indices):
    """Lists of KV heads, `[Hkv, MB + 1]`, as rows of (block row, KV head): the order that candidates have."""
    starts, like = [], None
    for name, array in (("indptr", indptr), ("indices", indices)):
        if framework_of(array) == "torch":
            like = array if array.device.type != "cpu" else like
            array = array.cpu().numpy()
        elif not isinstance(array, np.ndarray):
            raise invalid(name, "lists for each KV head are taken from NumPy and torch only")
        starts.append(array)
    bounds, entries = starts
    begin, end = (bounds[:, part].T.reshape(-1).astype(np.int64) for part in (slice(0, -1), slice(1, None)))
    wrong = np.flatnonzero((begin < 0) | (end < begin) | (end > len(entries)))
    if len(wrong):
        row = int(wrong[0])
        raise invalid("indptr", f"block row {row // len(bounds)} of KV head {row % len(bounds)} is "
                                f"[{begin[row]}, {end[row]}) of {len(entries)} indices", row=row)
    ordered = np.concatenate([entries[a:b] for a, b in zip(begin, end)]) if len(begin) else entries[:0]
    joined = np.concatenate([[0], np.cumsum(end - begin)]).astype(np.int64)
    return _beside(joined, like), _beside(ordered, like)
