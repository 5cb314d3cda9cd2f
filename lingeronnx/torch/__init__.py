"""Everything that needs PyTorch: export to ONNX, checkpoints, fine-tuning, and a training library's calls.

The only place that imports torch. Nothing else is imported here, so that its absence is told once, in one line,
whichever part was asked for; the public calls are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..errors import ConfigError

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ConfigError("this needs PyTorch, which is not installed: pip install 'lingeronnx[torch]'") from error

if TYPE_CHECKING:
    from .calls import QuantMode as QuantMode
    from .calls import disable_normalize as disable_normalize
    from .calls import disable_quant as disable_quant
    from .calls import init as init
    from .calls import normalize_layers as normalize_layers
    from .calls import normalize_module as normalize_module
    from .calls import quant_module as quant_module
    from .calls import trace_layers as trace_layers
    from .export_calls import export as export
    from .export_calls import export_debug as export_debug
    from .lstmp import LSTMP as LSTMP
    from .lstmp import UBLSTMP as UBLSTMP
    from .lstmp import FastUBLSTMP as FastUBLSTMP
    from .lstmp import NormalizeFastLSTMP as NormalizeFastLSTMP

_HOME = {
    "FastUBLSTMP": "lstmp",
    "LSTMP": "lstmp",
    "NormalizeFastLSTMP": "lstmp",
    "QuantMode": "calls",
    "UBLSTMP": "lstmp",
    "disable_normalize": "calls",
    "disable_quant": "calls",
    "export": "export_calls",
    "export_debug": "export_calls",
    "init": "calls",
    "normalize_layers": "calls",
    "normalize_module": "calls",
    "quant_module": "calls",
    "trace_layers": "calls",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


if not TYPE_CHECKING:  # to a type checker a misspelt name shall be a mistake, not an Any

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
