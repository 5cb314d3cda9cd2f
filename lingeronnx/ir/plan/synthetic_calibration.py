"""Mark of graphs whose scales come from random inputs, in the plan and in the graph's metadata.

Such a graph shows whether a model fits a chip, but its outputs for real data are meaningless, and
the file does not look different: so every later reader is warned.
"""

from __future__ import annotations

from .. import ir

__all__ = [
    "CALIBRATION_KEY",
    "SYNTHETIC_VALUE",
    "SYNTHETIC_WARNING",
    "collect_calibration_warnings",
    "is_synthetic",
]

#: Key and value of a graph's metadata.
CALIBRATION_KEY, SYNTHETIC_VALUE = "lingeronnx.calibration", "synthetic"

#: The warning that is printed whenever such a graph is written or read.
SYNTHETIC_WARNING = (
    "calibrated on synthetic inputs: its outputs for real data are meaningless; "
    "quantize it with --calib DATA"
)


def is_synthetic(model: ir.Model) -> bool:
    """Whether the metadata of `model` say that its scales were calibrated on random inputs."""
    return model.metadata_props.get(CALIBRATION_KEY) == SYNTHETIC_VALUE


def collect_calibration_warnings(model: ir.Model) -> list[str]:
    """Return a list with the warning that `model` is calibrated on random inputs, or an empty one.

    The mark is in the metadata of the model.
    """
    return [SYNTHETIC_WARNING] if is_synthetic(model) else []
