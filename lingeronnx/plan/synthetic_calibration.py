"""Scales that come from random inputs.

Said in the plan, and in the metadata of every graph made from it.
Such a graph shows whether a model fits a chip. Its outputs for real data mean nothing, and a file
does not look different for that: so whoever reads it later is told.
"""

from __future__ import annotations

from ..graph import ir

__all__ = [
    "CALIBRATION_KEY",
    "SYNTHETIC_VALUE",
    "SYNTHETIC_WARNING",
    "collect_calibration_warnings",
    "is_synthetic",
]

#: Key and value of a graph's metadata.
CALIBRATION_KEY, SYNTHETIC_VALUE = "lingeronnx.calibration", "synthetic"

#: What is said wherever such a graph is made or read.
SYNTHETIC_WARNING = (
    "calibrated on synthetic inputs: its outputs for real data mean nothing; "
    "quantize it with --calib DATA"
)


def is_synthetic(model: ir.Model) -> bool:
    """Whether the metadata of `model` say that scales of it come from random inputs."""
    return model.metadata_props.get(CALIBRATION_KEY) == SYNTHETIC_VALUE


def collect_calibration_warnings(model: ir.Model) -> list[str]:
    """Return what a reader of `model` should be warned of."""
    return [SYNTHETIC_WARNING] if is_synthetic(model) else []
