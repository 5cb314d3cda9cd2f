"""Prices that measured nodes give.

Factors on another chip's formulas, least squares of relative errors.
    cycles of a node = node + sum over families f of  start_f * S_f + rest_f * R_f

S_f and R_f are the cycles of its calls by the formulas, before the first element and from there on.
Minimised is the sum of squares of (this / measured - 1), and a little of what the factors differ
from one factor for all, which decides where the nodes do not: a log of one size of a kernel cannot
tell its start from the rest. No factor is below 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...timing_calibration import FamilyFactor, TimingCalibration
from .kernels import CallCost

__all__ = ["MeasuredNode", "fit_calibration"]

_REGULARIZATION = 1e-4  # towards one factor for all, beside a sum of squares over nodes
_MAX_SWEEPS, _CONVERGENCE_TOLERANCE = 5_000, 1e-9
_FOLDS = 10  # in which nodes are left out, to see how near the fit is to what it has not seen
_MIN_SPREAD = 0.02
_MAX_FACTOR = 1e6  # of a factor, as the file takes it


@dataclass(frozen=True)
class MeasuredNode:
    """A node: its cycles as measured, and by the formulas, by family of kernels."""

    measured_cycles: float
    cycles_by_family: Mapping[str, CallCost]

    def predict_cycles(self, row: TimingCalibration) -> float:
        """Return its cycles by a row."""
        total = row.node
        for family, one in self.cycles_by_family.items():
            factor = row.factors.get(family, FamilyFactor(start=1.0, rest=1.0))
            total += factor.start * one.start_cycles + factor.rest * one.element_cycles
        return total


def fit_calibration(
    nodes: Sequence[MeasuredNode], platform: str, base: str, runs: int, clock: float | None
) -> TimingCalibration:
    """Return the row that is nearest to `nodes`, at least one; see above.

    Clock : MHz, noted in the row.
    """
    families = sorted({family for node in nodes for family in node.cycles_by_family})
    measured = np.array([node.measured_cycles for node in nodes])
    by_formulas = np.array(
        [sum(sum(one) for one in node.cycles_by_family.values()) for node in nodes]
    )
    whole = (
        float(np.median(measured[by_formulas > 0] / by_formulas[by_formulas > 0]))
        if by_formulas.any()
        else 1.0
    )
    unit = float(np.median(measured))  # of the cycles of a node: all unknowns are of one size then
    columns = [np.full(len(nodes), unit)]
    for family in families:
        for part in (0, 1):
            columns.append(
                whole
                * np.array(
                    [node.cycles_by_family.get(family, CallCost(0.0, 0.0))[part] for node in nodes]
                )
            )
    shares = np.stack(columns, axis=1) / measured[:, None]
    wanted = np.ones(len(columns))
    wanted[0] = 0.0
    found = _solve_nonnegative(shares, wanted)
    limited = np.minimum(found[1:] * whole, _MAX_FACTOR)
    factors = {
        family: FamilyFactor(start=float(limited[2 * i]), rest=float(limited[2 * i + 1]))
        for i, family in enumerate(families)
    }
    errors = np.abs(shares @ found - 1)
    unseen = np.abs(_cross_validate(shares, wanted) - 1)
    return TimingCalibration(
        lingeronnx_timing=1,
        platform=platform,
        base=base,
        node=min(float(found[0]) * unit, 1e9),
        factors=factors,
        spread=min(max(float(np.quantile(unseen, 0.9)), _MIN_SPREAD), 1e3),
        clock_mhz=clock,
        nodes=len(nodes),
        runs=runs,
        median_error=float(np.median(errors)),
    )


def _cross_validate(shares: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return what fits to the other nodes say of each node, as a share of what was measured.

    (nodes,).
    """
    turn = np.arange(len(shares)) % min(_FOLDS, len(shares))
    told = np.zeros(len(shares))
    for index in range(turn.max() + 1):
        told[turn == index] = shares[turn == index] @ _solve_nonnegative(
            shares[turn != index], wanted
        )
    return told


def _solve_nonnegative(shares: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return x >= 0 with the least |shares x - 1|^2 + pull |x - wanted|^2, one unknown after the other.

    shares : (nodes, unknowns). wanted : (unknowns,).
    """
    matrix = shares.T @ shares + _REGULARIZATION * np.eye(len(wanted))
    right = shares.sum(axis=0) + _REGULARIZATION * wanted
    found = wanted.copy()
    for _ in range(_MAX_SWEEPS):
        before = found.copy()
        for k in range(len(found)):
            found[k] = max(0.0, found[k] + (right[k] - matrix[k] @ found) / matrix[k, k])
        if np.abs(found - before).max() < _CONVERGENCE_TOLERANCE:
            break
    return found
