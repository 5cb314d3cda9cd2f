"""What the inputs of a comparison are that they were not at calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from ...run.input_moments import load_input_moments
from .finding import LayerFinding
from .input_layout import InputLayoutCheck
from .join import ComparedTensor, TensorJoin
from .scale_causes import format_range

__all__ = ["diagnose_inputs"]

_MAX_CLIPPED_SHARE = 0.005  # share of values that a scale may cut off
_SHIFT, _SPREAD = 0.5, 1.7  # of the input, in its standard deviations and as a ratio of them
_APART, _CHANCE = (
    0.08,
    0.8,
)  # standard deviations that a channel's mean may move against the others', and by chance
_NEAR = 1e-3  # squared distance of moments, in variances, that says nothing
_MIN_SAMPLES = 32  # samples below which nothing is said of channels in another order


def diagnose_inputs(
    tensor_join: TensorJoin, layout_checks: Mapping[str, InputLayoutCheck]
) -> Iterator[LayerFinding]:
    """Yield what the inputs are that they were not at calibration.

    layout_checks : by input, what the first layer says of its pictures.
    """
    noted = {} if tensor_join.other.graph is None else load_input_moments(tensor_join.other.graph)
    for spec in tensor_join.base.inputs:
        row = tensor_join.rows.get(spec.name)
        if row is None:
            continue
        if (
            spec.name in noted
            and (finding := _compare_with_calibration(row, *noted[spec.name], tensor_join))
            is not None
        ):
            yield finding
        elif (said := layout_checks.get(spec.name)) is not None and said.kind:
            yield _make_input_finding(row, said.kind, said.measured, said.limit, 50.0)
        elif (
            spec.name not in noted
            and row.effective.clipped_fraction is not None
            and row.effective.clipped_fraction > _MAX_CLIPPED_SHARE
        ):
            yield _make_input_finding(
                row,
                "input not normalised",
                (
                    f"{row.effective.clipped_fraction:.1%} of the values lie beyond what its scale holds "
                    f"({format_range(row)})"
                ),
                f"at most {_MAX_CLIPPED_SHARE:.1%}",
                60.0,
            )


def _compare_with_calibration(
    row: ComparedTensor, mean: np.ndarray, std: np.ndarray, tensor_join: TensorJoin
) -> LayerFinding | None:
    """Return how an input differs from what was calibrated with."""
    ours = row.channels.mean, row.channels.std
    if len(ours[0]) != len(mean):
        ours = np.array([row.arrived.x.mean]), np.array([math.sqrt(row.arrived.x.variance)])
    if (
        2 <= len(mean) <= 4
        and tensor_join.samples >= _MIN_SAMPLES
        and (reordered := _detect_channel_reorder(row, ours, mean, std)) is not None
    ):
        return reordered
    scale = max(float(std.max()), 1e-12)
    shift = float(np.abs(ours[0] - mean).max()) / scale
    spread = float(ours[1].max()) / scale
    if shift > _SHIFT or not 1 / _SPREAD < spread < _SPREAD:
        text = f"mean {_format_values(ours[0])}, standard deviation {_format_values(ours[1])}"
        limit = (
            f"as at calibration: mean {_format_values(mean)}, standard deviation "
            f"{_format_values(std)}"
        )
        return _make_input_finding(
            row, "input not normalised", text, limit, 60.0 + min(shift, 30.0)
        )
    return (
        _detect_channel_shift(row, ours, mean, std, tensor_join.samples)
        if tensor_join.samples >= _MIN_SAMPLES and len(mean) > 1
        else None
    )


def _detect_channel_shift(
    row: ComparedTensor,
    ours: tuple[np.ndarray, np.ndarray],
    mean: np.ndarray,
    std: np.ndarray,
    samples: int,
) -> LayerFinding | None:
    """Return whether channels moved against each other, as where they are swapped and normalised then."""
    moved = (ours[0] - mean) / np.maximum(std, 1e-12)
    apart = moved - moved.mean()
    most = max(_APART, _CHANCE / math.sqrt(samples))
    if np.abs(apart).max() < most or abs(moved.mean()) > np.abs(apart).max():
        return None
    measured = (
        f"means of channels moved by {_format_values(moved)} standard deviations, by "
        f"{moved.mean():.3g} together"
    )
    return _make_input_finding(
        row, "input channels swapped", measured, f"{most:.2g} against each other", 50.0
    )


def _detect_channel_reorder(
    row: ComparedTensor, ours: tuple[np.ndarray, np.ndarray], mean: np.ndarray, std: np.ndarray
) -> LayerFinding | None:
    def distance(order: Sequence[int]) -> float:
        pick = list(order)
        return float(
            (np.square(ours[0][pick] - mean) + np.square(ours[1][pick] - std)).sum()
            / np.square(std).sum()
        )

    plain = tuple(range(len(mean)))
    best = min(permutations(plain), key=distance)
    if (
        best == plain
        or distance(best) > _SHIFT**2
        or distance(plain) < max(2 * distance(best), _NEAR)
    ):
        return None
    measured = (
        f"the channels fit those of calibration in the order {list(best)}: mean "
        f"{_format_values(ours[0])}"
    )
    return _make_input_finding(
        row, "input channels swapped", measured, f"mean {_format_values(mean)}", 50.0
    )


def _make_input_finding(
    row: ComparedTensor, kind: str, measured: str, limit: str, weight: float
) -> LayerFinding:
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


def _format_values(values: np.ndarray) -> str:
    return ", ".join(f"{v:.3g}" for v in values[:4])
