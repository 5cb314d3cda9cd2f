"""Measured cycles of a model from a board's profile log, compared with the latency model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..common.deprecation import keep_old_members
from .timing_calibration import TimingCalibration

__all__ = ["BoardLayer", "BoardProfile"]


@dataclass(frozen=True)
class BoardLayer:
    """A layer that the log contains.

    measured : cycles, the median of the runs.
    model : cycles by the kernel costs known before; None if a part of the layer has no cost.
    fitted : cycles by the calibration fitted to the log.
    """

    name: str
    operator: str
    measured: float
    model: float | None
    fitted: float | None = None

    @property
    def relative_error(self) -> float | None:
        """The modeled cycles over the measured ones, minus 1; None if the model has no cycles.

        Positive if the model has more; a measurement below 1 counts as 1.
        """
        return None if self.model is None else self.model / max(self.measured, 1.0) - 1


@keep_old_members(
    "0.3",
    base="base_platform",
    missing="unmatched_layers",
    row="calibration",
    worst="layers_by_error",
    median_off="median_relative_error",
)
@dataclass(frozen=True)
class BoardProfile:
    """A board's log compared with the latency model.

    base_platform : the chip whose kernel costs the model used.
    runs : number of runs in the log.
    unmatched_layers : layers that the log does not contain.
    calibration : kernel costs fitted to the log.
    """

    platform: str
    base_platform: str
    runs: int
    layers: Sequence[BoardLayer]
    unmatched_layers: Sequence[str]
    calibration: TimingCalibration

    @property
    def layers_by_error(self) -> list[BoardLayer]:
        """The layers with modeled cycles, by decreasing absolute error in cycles."""
        known = [layer for layer in self.layers if layer.model is not None]
        return sorted(known, key=lambda layer: -abs((layer.model or 0.0) - layer.measured))

    @property
    def median_relative_error(self) -> float | None:
        """The median over the layers of |modeled / measured - 1|.

        None if no layer has modeled cycles.
        """
        errors = [
            abs(layer.relative_error) for layer in self.layers if layer.relative_error is not None
        ]
        return median(errors) if errors else None

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as JSON values.

        `off` are errors of the modeled cycles relative to the measured ones, `missing` the layers
        that the log does not have, `timing` the fitted calibration.
        """
        return {
            "platform": self.platform,
            "base": self.base_platform,
            "runs": self.runs,
            "median_off": self.median_relative_error,
            "layers": [{**vars(layer), "off": layer.relative_error} for layer in self.layers],
            "missing": list(self.unmatched_layers),
            "timing": self.calibration.model_dump(),
        }
