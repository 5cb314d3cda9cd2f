"""The number of computing threads that `LINGERONNX_THREADS` sets."""

from __future__ import annotations

import os

from simulator.kernel import SimulatorError

__all__ = ["get_configured_threads"]

_MAX_THREADS = 1024


def get_configured_threads() -> int:
    """Return the value of `LINGERONNX_THREADS`, or 0 if it is not set.

    Raises
    ------
    SimulatorError
        If the value is not an integer from 0 to 1024.
    """
    text = os.environ.get("LINGERONNX_THREADS", "").strip()
    if not text:
        return 0
    if not (text.isdecimal() and len(text) < 10 and int(text) <= _MAX_THREADS):
        raise SimulatorError(
            f"LINGERONNX_THREADS is '{text[:40]}'; it must be a number of threads up to "
            f"{_MAX_THREADS}"
        )
    return int(text)
