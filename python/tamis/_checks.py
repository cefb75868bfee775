"""Arguments that are no arrays: numbers and names, each refused under its own name."""
import operator
import sys

import numpy as np

from . import _autograd
from ._errors import invalid

LAYOUTS = {"NHD": 0, "HND": 1}
FORMATS = {None: 0, "int8": 1, "fp8_e4m3": 2, "fp8_e5m2": 3, "int4": 4}
SCALE_KINDS = {"tensor": 0, "head": 1, "page": 2, "channel": 3, "page_channel": 4, "token": 5}
DUPLICATES = {"merge": 0, "reject": 1}
INVALID = {"reject": 0, "drop": 1}
FALLBACKS = {"allow": 0, "refuse": 1}
BACKENDS = {"auto": -1, "reference": 0, "cpu": 1, "cuda": 2}
PATHS = {"auto": 0, "direct": 1, "gather": 2, "dense": 3}
BLOCKS = (0, 16, 32, 64, 128)
LOADS = {"auto": 0, "blocks": 1, "tokens": 2}
ENGINES = {"auto": 0, "decode": 1, "prefill": 2}
RINGS = {"auto": 0, "full": 1, "short": 2}
BUNDLES = {"auto": 0, "rows": 1, "heads": 2, "neighbours": 3}


def choice(name, value, table):
    """The number of a name."""
    try:
        return table[value]
    except (KeyError, TypeError):
        names = ", ".join("None" if key is None else key for key in table)
        raise invalid(name, f"{value!r} is none of {names}") from None


def name_of(number, table):
    return next(name for name, known in table.items() if known == number)


def integer(name, value):
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, not {type(value).__name__}") from None
    if not -(1 << 63) <= value < 1 << 63:
        raise invalid(name, f"{value} does not fit 64 bits")
    return value


def unsigned(name, value):
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, not {type(value).__name__}") from None
    if not 0 <= value < 1 << 64:
        raise invalid(name, f"{value} is outside [0, 2^64)")
    return value


def counted(name, value, below=1 << 63):
    """An integer in [0, below)."""
    value = integer(name, value)
    if value >= below:
        raise invalid(name, f"{value} is not below {below}", value=value, limit=below)
    if value < 0:
        raise invalid(name, f"{value} is below 0", value=value)
    return value


def block(value):
    number = integer("block", value)
    if number not in BLOCKS:
        raise invalid("block", f"{value} is none of {', '.join(map(str, BLOCKS))}", value=number)
    return number


def real(name, value):
    if hasattr(value, "requires_grad"):  # a tensor, of which only a constant would be left
        _autograd.refuse_gradients(**{name: value})
        _autograd.refuse_tangents(**{name: value})
    try:
        if isinstance(value, (str, bytes, bytearray)):  # which float() would read
            raise TypeError
        return float(value)
    except OverflowError:
        raise invalid(name, "is too large for a float") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected a number, not {type(value).__name__}") from None


def listed(name, values):
    try:
        return list(values)
    except TypeError:
        raise TypeError(f"{name}: expected a list of arrays, not {type(values).__name__}") from None


def flag(name, value):
    torch = sys.modules.get("torch")
    symbol = torch is not None and isinstance(value, torch.SymBool)  # of torch.export and torch.compile
    if symbol or isinstance(value, (bool, np.bool_)) or isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise TypeError(f"{name}: expected True or False, not {value!r}")
