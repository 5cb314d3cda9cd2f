"""What the inputs of a comparison are that they were not at calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from ...run.moments import noted_inputs
from .finding import LayerFinding
from .first_responses import Answered
from .join import ComparedTensor, Join
from .scale_causes import range_text

__all__ = ["inputs"]

_CLIPPED = 0.005  # share of values that a scale may cut off
_SHIFT, _SPREAD = 0.5, 1.7  # of the input, in its standard deviations and as a ratio of them
_APART, _CHANCE = 0.08, 0.8  # standard deviations that a channel's mean may move against the others', and by chance
_NEAR = 1e-3  # squared distance of moments, in variances, that says nothing
_FEW = 32  # samples below which nothing is said of channels in another order


def inputs(join: Join, answers: Mapping[str, Answered]) -> Iterator[LayerFinding]:
    """Yield what the inputs are that they were not at calibration.

    answers : by input, what the first layer says of its pictures.
    """
    noted = {} if join.other.graph is None else noted_inputs(join.other.graph)
    for spec in join.base.inputs:
        row = join.rows.get(spec.name)
        if row is None:
            continue
        if spec.name in noted and (finding := _against(row, *noted[spec.name], join)) is not None:
            yield finding
        elif (said := answers.get(spec.name)) is not None and said.kind:
            yield _of_input(row, said.kind, said.measured, said.limit, 50.0)
        elif spec.name not in noted and row.judged.clipped is not None and row.judged.clipped > _CLIPPED:
            yield _of_input(
                row,
                "input not normalised",
                f"{row.judged.clipped:.1%} of the values lie beyond what its scale holds ({range_text(row)})",
                f"at most {_CLIPPED:.1%}",
                60.0,
            )


def _against(row: ComparedTensor, mean: np.ndarray, std: np.ndarray, join: Join) -> LayerFinding | None:
    """Return how an input differs from what was calibrated with."""
    ours = row.channels.mean, row.channels.deviation
    if len(ours[0]) != len(mean):
        ours = np.array([row.pair.x.mean]), np.array([math.sqrt(row.pair.x.variance)])
    if 2 <= len(mean) <= 4 and join.samples >= _FEW and (reordered := _reordered(row, ours, mean, std)) is not None:
        return reordered
    scale = max(float(std.max()), 1e-12)
    shift = float(np.abs(ours[0] - mean).max()) / scale
    spread = float(ours[1].max()) / scale
    if shift > _SHIFT or not 1 / _SPREAD < spread < _SPREAD:
        text = f"mean {_list(ours[0])}, standard deviation {_list(ours[1])}"
        limit = f"as at calibration: mean {_list(mean)}, standard deviation {_list(std)}"
        return _of_input(row, "input not normalised", text, limit, 60.0 + min(shift, 30.0))
    return _out_of_balance(row, ours, mean, std, join.samples) if join.samples >= _FEW and len(mean) > 1 else None


def _out_of_balance(
    row: ComparedTensor, ours: tuple[np.ndarray, np.ndarray], mean: np.ndarray, std: np.ndarray, samples: int
) -> LayerFinding | None:
    """Return whether channels moved against each other, as where they are swapped and normalised then."""
    moved = (ours[0] - mean) / np.maximum(std, 1e-12)
    apart = moved - moved.mean()
    most = max(_APART, _CHANCE / math.sqrt(samples))
    if np.abs(apart).max() < most or abs(moved.mean()) > np.abs(apart).max():
        return None
    measured = f"means of channels moved by {_list(moved)} standard deviations, by {moved.mean():.3g} together"
    return _of_input(row, "input channels swapped", measured, f"{most:.2g} against each other", 50.0)


def _reordered(
    row: ComparedTensor, ours: tuple[np.ndarray, np.ndarray], mean: np.ndarray, std: np.ndarray
) -> LayerFinding | None:
    def distance(order: Sequence[int]) -> float:
        pick = list(order)
        return float((np.square(ours[0][pick] - mean) + np.square(ours[1][pick] - std)).sum() / np.square(std).sum())

    plain = tuple(range(len(mean)))
    best = min(permutations(plain), key=distance)
    if best == plain or distance(best) > _SHIFT**2 or distance(plain) < max(2 * distance(best), _NEAR):
        return None
    measured = f"the channels fit those of calibration in the order {list(best)}: mean {_list(ours[0])}"
    return _of_input(row, "input channels swapped", measured, f"mean {_list(mean)}", 50.0)


def _of_input(row: ComparedTensor, kind: str, measured: str, limit: str, weight: float) -> LayerFinding:
    remedy = "prepare the data as for calibration, or calibrate with data like these (--calib)"
    return LayerFinding(
        layer=row.name,
        node=row.name,
        operator="Input",
        kind=kind,
        measured=measured,
        limit=limit,
        remedy=remedy,
        options=(),
        weight=weight,
        order=0,
    )


def _list(values: np.ndarray) -> str:
    return ", ".join(f"{v:.3g}" for v in values[:4])
