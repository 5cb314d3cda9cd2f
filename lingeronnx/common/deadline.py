"""A deadline for searches whose callers would rather have a partial answer than wait."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["DeadlineError", "check_deadline", "set_deadline"]

#: Reading of `time.monotonic` at which searches end; infinite without a deadline.
_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)


class DeadlineError(Exception):
    """A search was ended by the deadline of its caller, who handles this error."""


@contextmanager
def set_deadline(deadline: float) -> Iterator[None]:
    """Let `check_deadline` raise in this block after `deadline`, a reading of `time.monotonic`."""
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def check_deadline() -> None:
    """Raise DeadlineError if the deadline of the caller, if it has set one, is over."""
    deadline = _DEADLINE.get()
    if deadline < math.inf and time.monotonic() > deadline:
        raise DeadlineError
