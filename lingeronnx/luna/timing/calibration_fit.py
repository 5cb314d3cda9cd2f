"""Fit a timing calibration: factors on another chip's formulas, by relative least squares.

    cycles of a node = node + sum over families f of  start_f * S_f + rest_f * R_f

S_f and R_f are the cycles of its calls by the formulas, before the first element and from there on.
The sum of squares of (this / measured - 1) is minimized, plus a small penalty on the difference of
the factors from one common factor. The penalty decides where the data do not: a log with one size
of a kernel cannot separate its start from the rest. No factor is below 0.

`apply_calibration` gives the kernel costs of a calibrated board: those of a chip with known
formulas, times its factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...common.errors import ConfigError, suggest_nearest
from ...targets import Target
from ...targets.timing_calibration import FamilyFactor, TimingCalibration
from ..kernel_costs import ARCS, CostCorrection, KernelCosts
from .kernels import FAMILIES, CallCost

__all__ = ["BASE_COSTS", "MeasuredNode", "apply_calibration", "fit_calibration"]

#: Chips whose formulas a calibration may correct.
BASE_COSTS = {"arcs": ARCS}

_REGULARIZATION = 1e-4  # weight of the penalty, relative to a sum of squares over nodes
_MAX_SWEEPS, _CONVERGENCE_TOLERANCE = 5_000, 1e-9
_FOLDS = 10  # of the cross-validation that estimates the error on other nodes
_MIN_SPREAD = 0.02
_MAX_FACTOR = 1e6  # limit of the file format


@dataclass(frozen=True)
class MeasuredNode:
    """Cycles of a node: as measured, and by the formulas for each kernel family."""

    measured_cycles: float
    cycles_by_family: Mapping[str, CallCost]

    def predict_cycles(self, calibration: TimingCalibration) -> float:
        """Return the node's cycles according to `calibration`.

        They are its cycles per node, plus start and element cycles of each family times the
        family's factors (1 for families without any).
        """
        total = calibration.node
        for family, cost in self.cycles_by_family.items():
            factor = calibration.factors.get(family, FamilyFactor(start=1.0, rest=1.0))
            total += factor.start * cost.start_cycles + factor.rest * cost.element_cycles
        return total


def fit_calibration(
    nodes: Sequence[MeasuredNode], platform: str, base: str, runs: int, clock_mhz: float | None
) -> TimingCalibration:
    """Fit cycles per node and factors of each kernel family to measured nodes.

    Minimizes the relative squared error with a small penalty towards a common factor; factors are
    not negative. The spread is the 90 % quantile of the cross-validated errors.

    Parameters
    ----------
    nodes
        Measured nodes, at least one.
    platform, base
        The measured chip, and the chip whose formulas are corrected.
    runs, clock_mhz
        Number of logged runs and the board's clock, which are only recorded.
    """
    families = sorted({family for node in nodes for family in node.cycles_by_family})
    measured = np.array([node.measured_cycles for node in nodes])
    by_formulas = np.array([_sum_formula_cycles(node) for node in nodes])
    common_factor = _estimate_common_factor(measured, by_formulas)
    unit = float(np.median(measured))  # of a node's cycles, so that all unknowns are of one size
    columns = [np.full(len(nodes), unit)]
    for family in families:
        costs = [node.cycles_by_family.get(family, CallCost(0.0, 0.0)) for node in nodes]
        columns.append(common_factor * np.array([cost.start_cycles for cost in costs]))
        columns.append(common_factor * np.array([cost.element_cycles for cost in costs]))
    design = np.stack(columns, axis=1) / measured[:, None]
    prior = np.ones(len(columns))
    prior[0] = 0.0
    solution = _solve_nonnegative(design, prior)
    limited = np.minimum(solution[1:] * common_factor, _MAX_FACTOR)
    factors = {
        family: FamilyFactor(start=float(limited[2 * i]), rest=float(limited[2 * i + 1]))
        for i, family in enumerate(families)
    }
    errors = np.abs(design @ solution - 1)
    held_out_errors = np.abs(_cross_validate(design, prior) - 1)
    return TimingCalibration(
        lingeronnx_timing=1,
        platform=platform,
        base=base,
        node=min(float(solution[0]) * unit, 1e9),
        factors=factors,
        spread=min(max(float(np.quantile(held_out_errors, 0.9)), _MIN_SPREAD), 1e3),
        clock_mhz=clock_mhz,
        nodes=len(nodes),
        runs=runs,
        median_error=float(np.median(errors)),
    )


def _estimate_common_factor(measured: np.ndarray, by_formulas: np.ndarray) -> float:
    """Return the median ratio of measured cycles to those of the formulas, both (nodes,).

    Nodes for which the formulas give 0 are left out; 1.0 if that is all nodes.
    """
    if not by_formulas.any():
        return 1.0
    has_formula = by_formulas > 0
    return float(np.median(measured[has_formula] / by_formulas[has_formula]))


def _sum_formula_cycles(node: MeasuredNode) -> float:
    """Return the cycles of `node` over all kernel families according to the formulas."""
    return sum(sum(cost) for cost in node.cycles_by_family.values())


def _cross_validate(design: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Predict each node by a fit to the nodes of the other of up to `_FOLDS` folds.

    `design` is (nodes, unknowns), relative to the measured cycles.

    Returns
    -------
    np.ndarray
        Predicted cycles relative to the measured ones, (nodes,).
    """
    folds = np.arange(len(design)) % min(_FOLDS, len(design))
    predictions = np.zeros(len(design))
    for fold in range(folds.max() + 1):
        predictions[folds == fold] = design[folds == fold] @ _solve_nonnegative(
            design[folds != fold], prior
        )
    return predictions


def _solve_nonnegative(design: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return x >= 0, (unknowns,), with the least |design x - 1|^2 + regularization |x - prior|^2.

    Solved by coordinate descent, in at most `_MAX_SWEEPS` sweeps.

    Parameters
    ----------
    design : np.ndarray
        (nodes, unknowns).
    prior : np.ndarray
        (unknowns,).
    """
    matrix = design.T @ design + _REGULARIZATION * np.eye(len(prior))
    target = design.sum(axis=0) + _REGULARIZATION * prior
    solution = prior.copy()
    for _ in range(_MAX_SWEEPS):
        previous = solution.copy()
        for k in range(len(solution)):
            solution[k] = max(0.0, solution[k] + (target[k] - matrix[k] @ solution) / matrix[k, k])
        if np.abs(solution - previous).max() < _CONVERGENCE_TOLERANCE:
            break
    return solution


def apply_calibration(calibration: TimingCalibration, target: Target) -> KernelCosts:
    """Return the kernel costs of `target` corrected by a timing calibration.

    Raises
    ------
    ConfigError
        If the calibration is for another chip, or corrects unknown formulas or kernels.
    """
    if calibration.platform != target.chip:
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
