"""How many threads compute: what `LINGERONNX_THREADS` says."""

from __future__ import annotations

import os

from simulator.kernel import SimulatorError

__all__ = ["get_configured_threads"]

_MAX_THREADS = 1024


def get_configured_threads() -> int:
    """Return the number that `LINGERONNX_THREADS` holds, 0 where it is not set.

    SimulatorError where it is no number.
    """
    text = os.environ.get("LINGERONNX_THREADS", "").strip()
    if not text:
        return 0
    if not (text.isdecimal() and len(text) < 10 and int(text) <= _MAX_THREADS):
        raise SimulatorError(
            f"LINGERONNX_THREADS is '{text[:40]}'; it is a number of threads up to {_MAX_THREADS}"
        )
    return int(text)
