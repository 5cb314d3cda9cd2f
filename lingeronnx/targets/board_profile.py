"""What a board's profile log says of a model's time, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .timing_calibration import TimingCalibration

__all__ = ["BoardLayer", "BoardProfile"]


@dataclass(frozen=True)
class BoardLayer:
    """A layer that the log has a line of.

    measured : cycles, the median of the runs. model : cycles by the prices that were known before;
    None where some of it has no price. fitted : by the row that was fitted.
    """

    name: str
    operator: str
    measured: float
    model: float | None
    fitted: float | None = None

    @property
    def relative_error(self) -> float | None:
        """What the model is off, as a share of what was measured."""
        return None if self.model is None else self.model / max(self.measured, 1.0) - 1


@dataclass(frozen=True)
class BoardProfile:
    """A log beside a model.

    base_platform : the chip whose formulas the model used. runs : in the log. missing : layers that
    no line speaks of. row : the prices that the log gives.
    """

    platform: str
    base_platform: str
    runs: int
    layers: Sequence[BoardLayer]
    unmatched_layers: Sequence[str]
    calibration: TimingCalibration

    @property
    def layers_by_error(self) -> list[BoardLayer]:
        """The layers with a price, those first whose cycles are furthest from what was measured."""
        known = [layer for layer in self.layers if layer.model is not None]
        return sorted(known, key=lambda layer: -abs((layer.model or 0.0) - layer.measured))

    @property
    def median_relative_error(self) -> float | None:
        """The median of what the model is off, as a share; None where no layer has a price."""
        off = [
            abs(layer.relative_error) for layer in self.layers if layer.relative_error is not None
        ]
        return median(off) if off else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "platform": self.platform,
            "base": self.base_platform,
            "runs": self.runs,
            "median_off": self.median_relative_error,
            "layers": [{**vars(layer), "off": layer.relative_error} for layer in self.layers],
            "missing": list(self.unmatched_layers),
            "timing": self.calibration.model_dump(),
        }
