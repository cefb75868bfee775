"""Arrays of lists, read and checked on the host."""
import sys

import numpy as np

from . import _checks, _core, _frames
from ._errors import Error, invalid

LARGEST = (1 << 31) - 1  # of entries, and of the tokens they name
MOST = 1 << 32  # entries of an array that is made here


def on_host(array, name, dtypes, ranks):
    """The content as a NumPy array. One of a device is copied, which waits for its stream."""
    facts = _core.facts(array, name)
    if facts.dtype not in dtypes:
        raise invalid(name, f"dtype {facts.dtype}, expected {' or '.join(dtypes)}")
    if len(facts.shape) not in ranks:
        raise invalid(name, f"rank {len(facts.shape)}, expected {' or '.join(map(str, ranks))}")
    framework = _frames.framework_of(array)
    if framework == "torch":
        return array.detach().cpu().numpy()
    if framework == "cupy":
        return sys.modules["cupy"].asnumpy(array)
    if framework == "jax" or isinstance(array, (np.ndarray, np.generic)):
        return np.asarray(array)
    if facts.device:
        raise invalid(name, "lies on a device; it is brought to the host for arrays of torch, CuPy and JAX only")
    return np.from_dlpack(array)


def integers(array, name, *ranks):
    """int32 or int64."""
    return on_host(array, name, ("I32", "I64"), ranks)


def small_integers(array, name, *ranks):
    """int32."""
    return on_host(array, name, ("I32",), ranks)


def placed(made, like):
    """An array of ours where the caller's was: a tensor for torch's, on the host NumPy's for all others."""
    framework = _frames.framework_of(like)
    if framework == "torch":
        return sys.modules["torch"].from_numpy(made).to(like.device)
    if not _core.facts(like, "array").device:
        return made
    return sys.modules["cupy"].asarray(made) if framework == "cupy" else sys.modules["jax"].numpy.asarray(made)


def beside(array, content, like):
    """`array`, whose content is on the host too, as an array of the framework and the place of `like`."""
    one, other = _core.facts(array, "array"), _core.facts(like, "array")
    if _frames.framework_of(array) == _frames.framework_of(like) and (
            (one.device, one.device_id) == (other.device, other.device_id)):
        return array
    writable = content.flags.writeable and all(step >= 0 for step in content.strides)  # what torch takes as it is
    return placed(content if writable else content.copy(), like)


def offsets(indptr, entries, name="indptr"):
    """Checked offsets that end at `entries`."""
    if len(indptr) == 0:
        raise invalid(name, "is empty, expected one offset more than there are rows")
    if indptr[0] != 0:
        raise invalid(name, f"starts at {indptr[0]}, not 0", value=int(indptr[0]))
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(falls):
        row = int(falls[0])
        raise invalid(name, f"falls from {indptr[row]} to {indptr[row + 1]} at row {row}", row=row,
                      value=int(indptr[row + 1]))
    if indptr[-1] != entries:
        raise invalid(name, f"ends at {indptr[-1]}, there are {entries} entries", value=int(indptr[-1]))


def in_range(entries, row_of, name, columns, keep):
    """Refuses the first entry that is neither -1 nor in `[0, columns)`; with `keep` the library will judge."""
    if keep:
        columns = None
        wrong = (entries > LARGEST) | (entries < -LARGEST - 1)
    else:
        limit = LARGEST + 1 if columns is None else columns
        wrong = (entries >= limit) | (entries < -1)
    if not wrong.any():
        return
    first = int(np.flatnonzero(wrong.ravel())[0])
    entry, row = int(entries.ravel()[first]), row_of(first)
    if keep:
        raise invalid(name, f"row {row}: {entry} does not fit 32 bits", row=row, value=entry)
    raise Error("index_out_of_range", f"{name}: row {row}: {entry} is outside [0, {limit})", row=row, value=entry,
                limit=limit)


def sizes(**named):
    """Block sizes: integers of at least 1."""
    for name, value in named.items():
        if not 1 <= _checks.integer(name, value) <= LARGEST:
            raise invalid(name, f"{value} is outside [1, {LARGEST}]", value=int(value))


def columns_of(columns):
    if columns is not None and not 0 <= _checks.integer("columns", columns) <= LARGEST:
        raise invalid("columns", f"{columns} is outside [0, {LARGEST}]")
    return columns


def whole_rows(rows, index_heads, name):
    if _checks.integer("index_heads", index_heads) < 1:
        raise invalid("index_heads", f"{index_heads} is below 1", value=index_heads)
    if rows % index_heads:
        raise invalid(name, f"{rows} rows are no multiple of {index_heads} index heads", value=rows)


def narrow(entries):
    return entries if entries.dtype == np.int32 else entries.astype(np.int32)


def steps(lengths):
    """int64 offsets of rows of these lengths."""
    made = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=made[1:])
    return made
