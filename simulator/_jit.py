"""The one door to Numba: `jit` for kernels, `inline` for the scalar functions they are made of.

Owns the compile options and the cache folder; knows nothing of what is compiled.

Options: `nogil`, because programs run on plain threads (Numba's own threading layer is not safe to call from several
threads, so `parallel=True` is never used), and never `fastmath`: floats appear only where the NPU's own arithmetic
passes through them.

Numba's disk cache looks at the file of the cached function only: it would keep stale code when a callee in another file
changed. The cache folder is therefore named by a hash over all sources of this package. It stands below
`LINGERONNX_CACHE_DIR`, else below the user's cache folder; where that cannot be written, nothing is cached.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.extending import register_jitable as inline

__all__ = ["cache_folder", "config", "inline", "jit"]

config: Any = numba.config  # a module that is given its attributes when it runs


def sources_hash() -> str:
    """Return a short hash over the names and contents of all sources of this package."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def cache_folder() -> str | None:
    """Return the folder of the compiled kernels, created if need be; None where nothing can be written."""
    base = os.environ.get("LINGERONNX_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(base) / f"lingeronnx-{sources_hash()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError:
        return None


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` when first called with new types; it releases the GIL and is cached on disk."""
    folder, before = cache_folder(), config.CACHE_DIR
    try:
        if folder is not None:
            config.CACHE_DIR = folder
        return njit(nogil=True, cache=folder is not None, error_model="numpy")(function)
    finally:
        config.CACHE_DIR = before
