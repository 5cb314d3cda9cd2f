"""Kernel costs of a calibrated board: those of a chip with known formulas, times its factors."""

from __future__ import annotations

from dataclasses import replace

from ....errors import ConfigError, suggest_nearest
from ... import Target
from ...timing_calibration import TimingCalibration
from ..kernel_costs import ARCS, CostCorrection, KernelCosts
from .kernels import FAMILIES

__all__ = ["BASE_COSTS", "apply_calibration"]

#: Chips whose formulas a calibration may correct.
BASE_COSTS = {"arcs": ARCS}


def apply_calibration(calibration: TimingCalibration, target: Target) -> KernelCosts:
    """Return the kernel costs of `target` according to a calibration file.

    Raises
    ------
    ConfigError
        If the calibration is for another chip, or corrects unknown formulas or kernels.
    """
    if calibration.platform != target.name:
        raise ConfigError(
            f"the timing file is for {calibration.platform}, but the model targets {target.name}; "
            f"profile a board with {target.name}"
        )
    if calibration.base not in BASE_COSTS:
        raise ConfigError(
            f"the timing file corrects formulas of {calibration.base}, which is unknown; "
            f"known: {', '.join(BASE_COSTS)}"
        )
    for family in calibration.factors:
        if family not in FAMILIES:
            raise ConfigError(
                f"the timing file corrects unknown kernels '{family}'"
                f"{suggest_nearest(family, FAMILIES)}; known: {', '.join(FAMILIES)}"
            )
    factors = {
        family: CostCorrection(factor.start, factor.rest)
        for family, factor in calibration.factors.items()
    }
    return replace(
        BASE_COSTS[calibration.base],
        corrections=factors,
        node_overhead_cycles=calibration.node,
        relative_spread=calibration.spread,
        clock_mhz=calibration.clock_mhz,
    )
