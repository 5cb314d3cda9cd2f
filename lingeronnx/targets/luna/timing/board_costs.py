"""Prices of a chip from a board's row.

The formulas of a chip that has some, corrected by factors.
"""

from __future__ import annotations

from dataclasses import replace

from ....errors import ConfigError, suggest_nearest
from ... import Target
from ...timing_calibration import TimingCalibration
from ..kernel_costs import ARCS, CostCorrection, KernelCosts
from .kernels import FAMILIES

__all__ = ["BASE_COSTS", "apply_calibration"]

#: The chips whose formulas a row may correct.
BASE_COSTS = {"arcs": ARCS}


def apply_calibration(calibration: TimingCalibration, target: Target) -> KernelCosts:
    """Return the prices that `calibration` gives `target`.

    ConfigError for a row of another chip, or of unknown kernels.
    """
    if calibration.platform != target.name:
        raise ConfigError(
            f"the timing file is of {calibration.platform}, the model is for {target.name}: "
            "measure that chip"
        )
    if calibration.base not in BASE_COSTS:
        raise ConfigError(
            f"the timing file corrects formulas of {calibration.base}; known: "
            f"{', '.join(BASE_COSTS)}"
        )
    for family in calibration.factors:
        if family not in FAMILIES:
            raise ConfigError(
                f"the timing file has no kernels '{family}'{suggest_nearest(family, FAMILIES)}; "
                "known: "
                f"{', '.join(FAMILIES)}"
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
