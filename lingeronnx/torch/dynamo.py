"""torch._dynamo, imported without a folder for compiled code.

Torch's optimizers and exporters import it when they are first used. It makes the folder in which
the compiler keeps its code, `torchinductor_USER` among the temporary files, and leaves it there.
Nothing of ours is compiled by torch.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import torch

__all__ = ["import_dynamo"]

_CACHE_DIR_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def import_dynamo() -> None:
    """Import torch._dynamo; what makes the folder finds one.

    Who compiles later gets the usual one, or his own.
    """
    own = os.environ.get(_CACHE_DIR_VARIABLE)
    if own is None:
        os.environ[_CACHE_DIR_VARIABLE] = str(Path(torch.__file__).parent)
    try:
        importlib.import_module("torch._dynamo")
    finally:
        if own is None:
            os.environ.pop(_CACHE_DIR_VARIABLE, None)
