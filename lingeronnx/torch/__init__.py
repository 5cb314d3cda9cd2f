"""Everything that needs PyTorch: export to ONNX, checkpoints, fine-tuning. The only place that imports torch.

Nothing is imported here but torch itself, so that its absence is told once, in one line, whichever part was asked for.
"""

from __future__ import annotations

from ..errors import ConfigError

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ConfigError("this needs PyTorch, which is not installed: pip install 'lingeronnx[torch]'") from error
