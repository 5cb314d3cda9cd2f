"""Import of torch._dynamo without creating its cache folder.

Torch's optimizers and exporters import torch._dynamo at their first use. The import creates the
folder `torchinductor_USER` for compiled code among the temporary files, and leaves it there.
lingeronnx does not compile anything with torch.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import torch

__all__ = ["import_dynamo"]

_CACHE_DIR_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def import_dynamo() -> None:
    """Import torch._dynamo with an existing folder as its cache folder.

    Later compilations use the default folder, or the one that the user has set.
    """
    is_default = _CACHE_DIR_VARIABLE not in os.environ
    if is_default:
        os.environ[_CACHE_DIR_VARIABLE] = str(Path(torch.__file__).parent)
    try:
        importlib.import_module("torch._dynamo")
    finally:
        if is_default:
            os.environ.pop(_CACHE_DIR_VARIABLE, None)
