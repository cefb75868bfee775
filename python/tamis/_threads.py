"""How many threads a run on the host uses."""
import os

from . import _checks, _core
from ._errors import invalid

_threads = 0


def set_num_threads(threads):
    """Threads that a run on the host uses from now on; 0, as at first, for as many as the machine has.

    Results do not depend on it, bit for bit. Each Python thread that runs at the same time uses as many.

    Raises:
        Error: `invalid_argument` for a number below 0 or above 4096.
    """
    global _threads
    threads = _checks.integer("threads", threads)
    if not 0 <= threads <= 4096:
        raise invalid("threads", f"{threads} is outside [0, 4096]", value=threads, limit=4097)
    _threads = threads


def get_num_threads():
    """What `set_num_threads` was given last."""
    return _threads


if hasattr(os, "register_at_fork"):  # the threads of the parent do not exist in a child
    os.register_at_fork(after_in_child=_core.forget_contexts)
