"""Functions that need PyTorch: export to ONNX, checkpoints, fine-tuning, and training calls.

Only this package imports torch. It imports nothing else of its own, so that a missing installation
is reported once, in one line, whichever function is used; public calls are loaded on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.errors import ConfigError
from ..common.lazy_names import make_name_loader

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ConfigError(
        "this needs PyTorch, which is not installed: pip install 'lingeronnx[torch]'"
    ) from error

if TYPE_CHECKING:
    from .training_api.export_calls import export as export
    from .training_api.export_calls import export_debug as export_debug
    from .training_api.lstmp import LSTMP as LSTMP
    from .training_api.lstmp import UBLSTMP as UBLSTMP
    from .training_api.lstmp import FastUBLSTMP as FastUBLSTMP
    from .training_api.lstmp import NormalizeFastLSTMP as NormalizeFastLSTMP
    from .training_api.module_calls import QuantMode as QuantMode
    from .training_api.module_calls import disable_normalize as disable_normalize
    from .training_api.module_calls import disable_quant as disable_quant
    from .training_api.module_calls import init as init
    from .training_api.module_calls import normalize_layers as normalize_layers
    from .training_api.module_calls import normalize_module as normalize_module
    from .training_api.module_calls import quant_module as quant_module
    from .training_api.module_calls import trace_layers as trace_layers

_HOME = {
    "FastUBLSTMP": ".training_api.lstmp",
    "LSTMP": ".training_api.lstmp",
    "NormalizeFastLSTMP": ".training_api.lstmp",
    "QuantMode": ".training_api.module_calls",
    "UBLSTMP": ".training_api.lstmp",
    "disable_normalize": ".training_api.module_calls",
    "disable_quant": ".training_api.module_calls",
    "export": ".training_api.export_calls",
    "export_debug": ".training_api.export_calls",
    "init": ".training_api.module_calls",
    "normalize_layers": ".training_api.module_calls",
    "normalize_module": ".training_api.module_calls",
    "quant_module": ".training_api.module_calls",
    "trace_layers": ".training_api.module_calls",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


if not TYPE_CHECKING:  # a type checker should report misspelt names
    __getattr__ = make_name_loader(__name__, _HOME)

    def __dir__() -> list[str]:
        """List the module's globals and the public names that are imported on first use."""
        return sorted({*globals(), *__all__})
