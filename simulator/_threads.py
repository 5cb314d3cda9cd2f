"""How many threads compute: what `LINGERONNX_THREADS` says."""

from __future__ import annotations

import os

from simulator.kernel import MachineError

__all__ = ["threads_asked"]

_MOST = 1024


def threads_asked() -> int:
    """Return the number that `LINGERONNX_THREADS` holds, 0 where it is not set; MachineError where it is no number."""
    text = os.environ.get("LINGERONNX_THREADS", "").strip()
    if not text:
        return 0
    if not (text.isdecimal() and len(text) < 10 and int(text) <= _MOST):
        raise MachineError(f"LINGERONNX_THREADS is '{text[:40]}'; it is a number of threads up to {_MOST}")
    return int(text)
