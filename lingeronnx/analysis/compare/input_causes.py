"""Differences between the inputs of a comparison and those of calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from ...runtime.input_moments import load_channel_spreads, load_input_moments
from .finding import LayerFinding
from .input_layout import InputLayoutCheck
from .join import ComparedTensor, TensorJoin
from .scale_causes import format_range

__all__ = ["diagnose_inputs"]

_MAX_CLIPPED_FRACTION = 0.005  # fraction of values that a scale may clip
_MAX_MEAN_SHIFT = 0.5  # of an input, in standard deviations
_MAX_STD_RATIO = 1.7  # of an input
_MAX_CHANNEL_SHIFT = 0.08  # of a channel's mean against the others, in standard deviations
_MIN_STANDARD_ERRORS = 4.0  # of a channel's mean against the others, to be no chance
_MIN_DISTANCE = 1e-3  # squared distance of moments, in variances, below which order is undecided
_MIN_SAMPLES = 32  # samples required to judge the order of channels


def diagnose_inputs(
    tensor_join: TensorJoin, layout_checks: Mapping[str, InputLayoutCheck]
) -> Iterator[LayerFinding]:
    """Yield at most one finding for each model input whose data differ from those of calibration.

    Tried in this order: the mean and deviation that the analysed graph records, the layout check,
    and, if no moments are recorded, whether more than _MAX_CLIPPED_FRACTION of the values are
    clipped. Inputs that were not compared are skipped. `layout_checks` has results by input.
    """
    graph = tensor_join.other.graph
    moments = {} if graph is None else load_input_moments(graph)
    spreads = {} if graph is None else load_channel_spreads(graph)
    for spec in tensor_join.base.inputs:
        row = tensor_join.rows.get(spec.name)
        if row is None:
            continue
        finding = None
        if spec.name in moments:
            standard_errors = None
            if spec.name in spreads and tensor_join.samples >= _MIN_SAMPLES:
                count, spread = spreads[spec.name]
                standard_errors = spread * math.sqrt(1 / count + 1 / tensor_join.samples)
            finding = _compare_with_calibration(row, *moments[spec.name], standard_errors)
        if finding is not None:
            is_state = spec.name in tensor_join.state_inputs
            yield _replace_by_state_cause(finding) if is_state else finding
            continue
        check = layout_checks.get(spec.name)
        if check is not None and check.kind:
            yield _make_input_finding(row, check.kind, check.measured, check.limit, 50.0)
            continue
        clipped = row.effective.clipped_fraction
        if spec.name not in moments and clipped is not None and clipped > _MAX_CLIPPED_FRACTION:
            yield _make_input_finding(
                row,
                "input not normalised",
                f"{clipped:.1%} of the values are beyond the range of its scale "
                f"({format_range(row)})",
                f"at most {_MAX_CLIPPED_FRACTION:.1%}",
                60.0,
            )


def _compare_with_calibration(
    row: ComparedTensor, mean: np.ndarray, std: np.ndarray, standard_errors: np.ndarray | None
) -> LayerFinding | None:
    """Return a finding if an input differs from the calibration data, else None.

    Tried in this order: a channel that is constant, but was not; 2 to 4 channels in another order;
    a mean that moved by more than _MAX_MEAN_SHIFT deviations, or a deviation that changed by a
    factor of _MAX_STD_RATIO ("input not normalised"); channel means that moved against each other.

    Parameters
    ----------
    row
        The input.
    mean, std
        Those of calibration, [C], or [1] for the entire tensor.
    standard_errors
        Of the difference of a channel's mean, against that of all, between these data and those of
        calibration, [C]; None if it is not known or there are fewer than _MIN_SAMPLES samples.
        Then channels are not compared with each other.
    """
    moments = row.channels.mean, row.channels.std
    if len(moments[0]) != len(mean):
        x = row.arrived.x
        moments = np.array([x.mean]), np.array([math.sqrt(x.variance)])
        standard_errors = None
    channels_moved = standard_errors is not None and _has_moved(moments[0], mean, standard_errors)
    if standard_errors is not None:
        finding = _detect_constant_channels(row, moments[0], std)
        if finding is not None:
            return finding
    if len(mean) <= 4 and channels_moved:
        finding = _detect_channel_reorder(row, moments, mean, std)
        if finding is not None:
            return finding
    scale = max(float(std.max()), 1e-12)
    shift = float(np.abs(moments[0] - mean).max()) / scale
    std_ratio = float(moments[1].max()) / scale
    if shift > _MAX_MEAN_SHIFT or not 1 / _MAX_STD_RATIO < std_ratio < _MAX_STD_RATIO:
        measured = f"mean {_format_values(moments[0])}, standard deviation "
        limit = f"as at calibration: mean {_format_values(mean)}, standard deviation "
        return _make_input_finding(
            row,
            "input not normalised",
            measured + _format_values(moments[1]),
            limit + _format_values(std),
            60.0 + min(shift, 30.0),
        )
    return _detect_channel_shift(row, moments[0], mean, std) if channels_moved else None


def _has_moved(input_mean: np.ndarray, mean: np.ndarray, standard_errors: np.ndarray) -> bool:
    """Whether a channel's mean moved against the mean of all by more than chance explains.

    `input_mean` and `mean` [C] are those of the data and of calibration.
    """
    shifts = input_mean - mean
    return bool((np.abs(shifts - shifts.mean()) > _MIN_STANDARD_ERRORS * standard_errors).any())


def _detect_constant_channels(
    row: ComparedTensor, input_mean: np.ndarray, std: np.ndarray
) -> LayerFinding | None:
    """Return "input channel constant" if channels never change that did at calibration, else None.

    `std` [C] are the standard deviations at calibration.
    """
    indices = np.flatnonzero(row.channels.is_constant & (std > 0))
    if not len(indices):
        return None
    return _make_input_finding(
        row,
        "input channel constant",
        f"channel {', '.join(map(str, indices))} is always {_format_values(input_mean[indices])}",
        f"standard deviation {_format_values(std[indices])} at calibration",
        70.0,
    )


def _replace_by_state_cause(finding: LayerFinding) -> LayerFinding:
    """Return a finding about an input that is fed back: its data are what the model makes."""
    return replace(
        finding,
        kind="state not calibrated",
        remedy=(
            "calibrate with the states fed back: quantize with the same --state, and with "
            "consecutive calls as calibration data"
        ),
    )


def _detect_channel_shift(
    row: ComparedTensor, input_mean: np.ndarray, mean: np.ndarray, std: np.ndarray
) -> LayerFinding | None:
    """Return "input channels swapped" if channel means moved against each other, else None.

    This happens if channels are swapped and then normalized. A channel's shift against the mean
    shift of all must reach _MAX_CHANNEL_SHIFT, and the largest such shift must not be below the
    mean shift. `input_mean`, `mean` and `std` [C] are those of the data and of calibration.
    """
    shifts = (input_mean - mean) / np.maximum(std, 1e-12)
    relative_shifts = shifts - shifts.mean()
    largest_shift = np.abs(relative_shifts).max()
    if largest_shift < _MAX_CHANNEL_SHIFT or abs(shifts.mean()) > largest_shift:
        return None
    measured = (
        f"means of channels moved by {_format_values(shifts)} standard deviations, by "
        f"{shifts.mean():.3g} together"
    )
    limit = f"{_MAX_CHANNEL_SHIFT:.2g} against each other"
    return _make_input_finding(row, "input channels swapped", measured, limit, 50.0)


def _detect_channel_reorder(
    row: ComparedTensor,
    moments: tuple[np.ndarray, np.ndarray],
    mean: np.ndarray,
    std: np.ndarray,
) -> LayerFinding | None:
    """Return a finding if an input has the channels of calibration in another order, else None.

    The squared distance of the best order must be at most _MAX_MEAN_SHIFT**2, and at most half of
    that of the given order, which must be at least _MIN_DISTANCE.

    Parameters
    ----------
    row
        The input.
    moments
        Mean and standard deviation of each channel of these data.
    mean, std
        The same of the calibration data.
    """

    def distance(order: Sequence[int]) -> float:
        """Compute the squared distance to calibration with channels in `order`, relative to std."""
        index = list(order)
        mean_error = np.square(moments[0][index] - mean)
        std_error = np.square(moments[1][index] - std)
        return float((mean_error + std_error).sum() / np.square(std).sum())

    given_order = tuple(range(len(mean)))
    best = min(permutations(given_order), key=distance)
    if best == given_order or distance(best) > _MAX_MEAN_SHIFT**2:
        return None
    if distance(given_order) < max(2 * distance(best), _MIN_DISTANCE):
        return None
    measured = (
        f"the channels match those of calibration in the order {list(best)}: mean "
        f"{_format_values(moments[0])}"
    )
    limit = f"mean {_format_values(mean)}"
    return _make_input_finding(row, "input channels swapped", measured, limit, 50.0)


def _make_input_finding(
    row: ComparedTensor, kind: str, measured: str, limit: str, weight: float
) -> LayerFinding:
    """Create a finding of order 0 about a model input, which advises to prepare the data otherwise.

    Order 0 is the most serious; it has no options.
    """
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
    """Format the first four values with three significant digits, separated by commas."""
    return ", ".join(f"{v:.3g}" for v in values[:4])
