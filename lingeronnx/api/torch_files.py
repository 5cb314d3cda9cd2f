"""Export torch modules, and convert checkpoints. PyTorch is loaded when one of these is called."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..torch.checkpoint.lstmp_layouts import ConvertedCheckpoint
    from ..torch.exporter.float_export import Exported

__all__ = ["convert_checkpoint", "export"]


def export(
    model: object, args: object = None, path: str | os.PathLike[str] = "model.onnx", **settings: Any
) -> Exported:
    """Export a torch module to a clean float ONNX file.

    `lingeronnx.torch.exporter.float_export.export` has all settings.

    Parameters
    ----------
    model
        A torch.nn.Module or ``file.py:name``.
    args
        Arguments of its forward.
    path
        The file to write.

    Raises
    ------
    ModelError
        If the module cannot be exported, or the file does not compute the same as torch.
    ConfigError
        For wrong settings, or if PyTorch is not installed.
    """
    from ..torch.exporter.float_export import export as run

    return run(model, args, path, **settings)


def convert_checkpoint(
    source: str | os.PathLike[str], path: str | os.PathLike[str], to: str, layout: str = "auto"
) -> ConvertedCheckpoint:
    """Convert a checkpoint of LSTM layers with projection to another layout.

    Parameters
    ----------
    source, path
        The checkpoint to read and the one to write.
    to, layout
        The layout to write and the one to read: asr, plain, torch or ub; see
        `lingeronnx.torch.checkpoint.lstmp_layouts`. "auto" finds the layout to read.

    Raises
    ------
    ModelError
        If the checkpoint is not in `layout`.
    ConfigError
        For an unknown layout, or if PyTorch is not installed.
    """
    from ..torch.checkpoint.lstmp_layouts import convert_checkpoint as run

    return run(source, path, to, layout)
