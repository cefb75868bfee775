"""Case files: whole problems in safetensors files (docs/case-format.md)."""
import os

import numpy as np

from . import _candidates, _checks, _core, _frames, _problem
from ._errors import unsupported

_ARRAYS = ("cu_q", "kv_len", "cu_kv", "page_table", "q_pos", "alibi_slopes", "page_stamps", "table_stamps", "k_scale",
           "v_scale")
_NUMBERS = ("window", "sink", "scale", "softcap", "dropout_p", "dropout_seed", "causal")


class Case:
    """One problem, read from a file by `load_case`. All arrays are NumPy's, and the case's own.

    Where NumPy has no dtype they have that of `ml_dtypes` if it is installed, else they are a `tamis.View`.

    Attributes:
        q, k, v: as `attention` takes them; None in a file that states an index alone.
        candidates: a `tamis.Candidates`.
        d_out, d_lse: gradients of the results, or None.
        index_only: in a file without q, k and v: `q_heads`, `kv_heads`, `page_size`, `num_pages`; else None.
    """

    def __init__(self, q, k, v, candidates, d_out, d_lse, index_only, options):
        self.q, self.k, self.v, self.candidates = q, k, v, candidates
        self.d_out, self.d_lse, self.index_only = d_out, d_lse, index_only
        self._options = options

    def arguments(self):
        """A new dictionary of all arguments: `tamis.attention(**case.arguments())`.

        Raises:
            Error: `unsupported` for a file that states an index alone.
        """
        if self.index_only is not None:
            raise unsupported("q", "this case states an index alone, without q, k and v")
        return dict(q=self.q, k=self.k, v=self.v, candidates=self.candidates, **self._options)

    def __repr__(self):
        if self.index_only is not None:
            return f"Case(index only, {self.candidates})"
        shapes = ", ".join(f"{name}={_core.facts(array, name).shape}"
                           for name, array in (("q", self.q), ("k", self.k), ("v", self.v)))
        return f"Case({shapes}, {self.candidates})"


def load_case(path):
    """Reads a case file and checks all its arguments. Nothing in the file is trusted.

    Args:
        path: of the file, `str` or `os.PathLike`.

    Returns:
        A Case; `tamis.attention(**case.arguments())` computes it.

    Raises:
        Error: `io_error` where the file is not what it claims to be, `invalid_argument` where it states a wrong
            problem, `unsupported` in a build without case files (`tamis.build_info()["case_files"]`).
    """
    file = _core.CaseFile(os.fsencode(path))
    arrays = {name: _owned(dtype, bits) for name, (dtype, bits) in file.arrays().items()}
    numbers = file.numbers()
    candidates = _candidates.Candidates(
        arrays["cand_indices"], arrays.get("cand_indptr"), arrays.get("cand_count"),
        unit=numbers["unit"], query_block=numbers["query_block"], index_heads=numbers["index_heads"],
        duplicates=_checks.name_of(numbers["duplicates"], _checks.DUPLICATES),
        invalid=_checks.name_of(numbers["invalid"], _checks.INVALID))
    options = {name: arrays.get(name) for name in _ARRAYS} | {name: numbers[name] for name in _NUMBERS}
    options["kv_layout"] = _checks.name_of(numbers["kv_layout"], _checks.LAYOUTS)
    for side in "kv":
        form = options[f"{side}_format"] = _checks.name_of(numbers[f"{side}_format"], _checks.FORMATS)
        kind = _checks.name_of(numbers[f"{side}_scale_kind"], _checks.SCALE_KINDS)
        options[f"{side}_scale_kind"] = None if form is None else kind
    return Case(arrays.get("q"), arrays.get("k"), arrays.get("v"), candidates, arrays.get("d_out"),
                arrays.get("d_lse"), file.index_only, options)


def _owned(dtype, bits):
    """A copy of what the file lends, in the file's dtype."""
    made = np.array(bits)
    if dtype not in _frames.NO_NUMPY:
        return made
    try:
        import ml_dtypes
    except ImportError:
        return _core.View(made, dtype)
    return made.view({"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
                      "F8_E5M2": ml_dtypes.float8_e5m2}[dtype])


def save_case(path, q, k, v, candidates=None, *, cu_q=None, kv_len=None, cu_kv=None, page_table=None, q_pos=None,
              causal=True, window=0, sink=0, scale=None, softcap=0.0, alibi_slopes=None, dropout_p=0.0, dropout_seed=0,
              page_stamps=None, table_stamps=None, kv_layout="NHD", k_format=None, v_format=None, k_scale=None,
              v_scale=None, k_scale_kind=None, v_scale_kind=None, d_out=None, d_lse=None):
    """Writes a problem to a case file: to send it to somebody, or to run it with the command `tamis`.

    The file appears whole or not at all, and the same problem gives the same bytes. A file knows neither dense batches
    nor `tamis.ALL` and no lists at all: they are written as rows with a `cu_q`, and as lists.

    Args:
        path: of the file, `str` or `os.PathLike`.
        d_out, d_lse: `[total_q, Hq, Dv]` (dense: `[B, S, Hq, Dv]`) and `[total_q, Hq]`, gradients of the results.

    All others are those of `attention`, in memory of the host.

    Raises:
        Error: `invalid_argument` and others as `attention`, before anything is written; `io_error` where the file
            cannot be; `unsupported` in a build without case files.
    """
    given = _problem.build(
        _problem.frame_of(q), q, k, v, candidates, cu_q=cu_q, kv_len=kv_len, cu_kv=cu_kv, page_table=page_table,
        q_pos=q_pos, causal=causal, window=window, sink=sink, scale=scale, softcap=softcap, alibi_slopes=alibi_slopes,
        dropout_p=dropout_p, dropout_seed=dropout_seed, page_stamps=page_stamps, table_stamps=table_stamps,
        kv_layout=kv_layout, k_format=k_format, v_format=v_format, k_scale=k_scale, v_scale=v_scale,
        k_scale_kind=k_scale_kind, v_scale_kind=v_scale_kind)
    for name, array in (("d_out", d_out), ("d_lse", d_lse)):
        given.problem.set(name, array, given.problem.join_q)
    _core.write_case(os.fsencode(path), given.problem)
