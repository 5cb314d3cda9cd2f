"""What costs bits: a few large channels, values or weights.

And what costs little: dead channels, narrow outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...graph import ir, operators
from ...targets import get_target
from ..stats.stored_form import StoredForm
from .finding import LayerFinding, format_distinct_from, format_override, make_finding
from .join import ComparedTensor, TensorJoin

__all__ = ["diagnose_large_values", "diagnose_minor_issues", "diagnose_uneven_weights"]

_POOR_SQNR_DB = 25.0  # dB: above that large channels do no harm
_LOW_SQNR_DB = 15.0  # dB: what a tensor is left when something must be wrong
_UNEVEN_SQNR_DB = 18.0  # dB: the same of the channel in the middle
_MAX_CHANNEL_RATIO = 8.0  # times the middle channel's range
_MAX_OUTLIER_RATIO = 10.0  # times the 0.99 quantile of absolute values
_MIN_PEAK_TO_RMS = (
    15.0  # times its root mean square that a channel reaches where its large values are rare
)


@dataclass(frozen=True)
class StoredRanges:
    """What the channels of a tensor reach as they are stored, float64 [C] each.

    max_abs : the largest |x|. power : its root mean square. moving : the reach of those that speak.
    middle : of the channel in the middle of these. level : in dB, what the channel in the middle is
    left.
    """

    max_abs: np.ndarray
    rms: np.ndarray
    active_max_abs: np.ndarray
    median_max_abs: float
    median_sqnr_db: float

    @classmethod
    def of(cls, row: ComparedTensor, stored_form: StoredForm) -> StoredRanges:
        """Return those of a tensor that is held as `stored_form`."""
        channels = row.channels
        reach, power = (
            array * np.array(stored_form.factor)
            for array in (channels.max_abs, np.sqrt(channels.mean_square))
        )
        moving, levels = reach[channels.is_active], channels.sqnr_db()
        middle = float(np.median(moving)) if moving.size else 0.0
        return cls(
            reach, power, moving, middle, float(np.median(levels)) if levels.size else math.inf
        )


def diagnose_large_values(row: ComparedTensor, tensor_join: TensorJoin) -> LayerFinding | None:
    """Return whether a few channels, or a few values, set the range for all."""
    if row.stored_form is None or not row.channels.count or row.kinds[0] == "Input":
        return None
    ranges = StoredRanges.of(row, row.stored_form)
    return (
        _diagnose_rare_values(row, ranges, tensor_join)
        or _diagnose_large_channels(row, ranges, tensor_join)
        or _diagnose_uneven_channels(row, ranges, tensor_join)
    )


def _diagnose_rare_values(
    row: ComparedTensor, ranges: StoredRanges, tensor_join: TensorJoin
) -> LayerFinding | None:
    tail, top = (
        row.effective.x.max_abs / max(_abs_quantile_99(row), 1e-30),
        int(ranges.max_abs.argmax()),
    )
    level = min(row.effective.sqnr, ranges.median_sqnr_db)
    if (
        tail <= _MAX_OUTLIER_RATIO
        or ranges.max_abs[top] <= _MIN_PEAK_TO_RMS * ranges.rms[top]
        or level >= _POOR_SQNR_DB
    ):
        return None
    own = np.count_nonzero(ranges.max_abs > _MAX_CHANNEL_RATIO * ranges.median_max_abs) <= max(
        1, len(ranges.max_abs) // 8
    )
    even = (
        _equalization_options(row, tensor_join) if own and ranges.median_max_abs > 0 else ()
    )  # of few channels: they need not be cut off
    return make_finding(
        row,
        kind="outlier activation",
        measured=(
            f"the largest value is {format_distinct_from(tail, _MAX_OUTLIER_RATIO)} times the 0.99 "
            "quantile of "
            "absolute values"
        ),
        limit=f"{_MAX_OUTLIER_RATIO:g} times",
        remedy="move the channels' ranges into the weights" if even else "cut the rare values off",
        options=even or (format_override(row, "calibrator:percentile,percentile:99.9"),),
        order=2,
        sqnr_db=level,
    )


def _diagnose_large_channels(
    row: ComparedTensor, ranges: StoredRanges, tensor_join: TensorJoin
) -> LayerFinding | None:
    large_ones = np.flatnonzero(ranges.max_abs > _MAX_CHANNEL_RATIO * ranges.median_max_abs)
    if ranges.median_max_abs <= 0 or ranges.median_sqnr_db >= _POOR_SQNR_DB or not large_ones.size:
        return None
    if ranges.rms[large_ones].max() <= _MAX_CHANNEL_RATIO / 2 * np.median(
        ranges.rms[row.channels.is_active]
    ):
        return None
    few = len(large_ones) <= max(1, len(ranges.max_abs) // 8)
    times = format_distinct_from(ranges.max_abs.max() / ranges.median_max_abs, _MAX_CHANNEL_RATIO)
    measured = (
        f"channel {_format_channels(large_ones)} reaches {times} times as far as the channel in "
        "the middle, which is "
        "left "
        f"{ranges.median_sqnr_db:.1f} dB"
    )
    return _make_uneven_finding(
        row, "outlier channel" if few else "uneven channels", measured, ranges, tensor_join
    )


def _diagnose_uneven_channels(
    row: ComparedTensor, ranges: StoredRanges, tensor_join: TensorJoin
) -> LayerFinding | None:
    if ranges.median_sqnr_db >= _UNEVEN_SQNR_DB or ranges.active_max_abs.size <= 3:
        return None
    low, high = (np.quantile(ranges.active_max_abs, share) for share in (0.1, 0.9))
    if high <= _MAX_CHANNEL_RATIO * low:
        return None
    measured = (
        f"ranges of channels from {low:.3g} to {high:.3g} (0.1 and 0.9 quantiles); the channel in "
        "the middle is left "
        f"{ranges.median_sqnr_db:.1f} dB"
    )
    return _make_uneven_finding(row, "uneven channels", measured, ranges, tensor_join)


def _make_uneven_finding(
    row: ComparedTensor, kind: str, measured: str, ranges: StoredRanges, tensor_join: TensorJoin
) -> LayerFinding:
    return make_finding(
        row,
        kind=kind,
        measured=measured,
        limit=f"{_MAX_CHANNEL_RATIO:g} times",
        remedy="move the channels' ranges into the weights",
        options=_equalization_options(row, tensor_join),
        order=2,
        sqnr_db=ranges.median_sqnr_db,
    )


def _abs_quantile_99(row: ComparedTensor) -> float:
    """Return the 0.99 quantile of |x|, from the quantiles of x."""
    histogram = row.effective.x.histogram
    return max(
        abs(histogram.quantile(0.995)), abs(histogram.quantile(0.005)), histogram.quantile(0.99)
    )


def _equalization_options(row: ComparedTensor, tensor_join: TensorJoin) -> tuple[str, ...]:
    """Return the option that gives channels like ranges.

    Equalization, or where that was done more bits.
    """
    plan = getattr(tensor_join.other, "plan", None)
    equalized = plan is not None and any(len(set(t.factor)) > 1 for t in plan.transforms.values())
    if not equalized:
        return ("--effort normal",)
    wide = plan is not None and 16 in get_target(plan.platform).bits
    return (format_override(row, "bits:16"),) if wide else ()


def diagnose_uneven_weights(
    row: ComparedTensor,
    tensor_join: TensorJoin,
    parents: Sequence[str],
    by_layer: Mapping[str, LayerFinding],
) -> LayerFinding | None:
    """Return whether most of the layer's weights have few bits left beside the largest."""
    node = tensor_join.other.node(row.name)
    array = ir.const_value(node.inputs[1]) if node is not None and len(node.inputs) > 1 else None
    if (
        array is None
        or array.dtype.kind != "i"
        or array.ndim < 2
        or row.effective.sqnr > _UNEVEN_SQNR_DB
    ):
        return None
    if any(p in by_layer and by_layer[p].kind == "outlier channel" for p in parents):
        return None
    sizes = np.abs(array.astype(np.int64)).reshape(array.shape[0], array.shape[1], -1).max(axis=2)
    rows = sizes.max(axis=1)
    largest, middle = (
        int(sizes.max(initial=0)),
        min(float(np.median(sizes.max(axis=axis))) for axis in (0, 1)),
    )
    if middle * 4 > largest:
        return None
    if 0 < np.count_nonzero(rows > _MAX_CHANNEL_RATIO * np.median(rows)) <= max(1, len(rows) // 8):
        measured = (
            f"the weights of channel {int(rows.argmax())} reach {largest} counts, "
            f"{np.median(rows):g} in the middle"
        )
        return make_finding(
            row,
            kind="outlier channel",
            measured=measured,
            limit=f"{_MAX_CHANNEL_RATIO:g} times",
            remedy="move the channels' ranges into the weights",
            options=_equalization_options(row, tensor_join),
            order=2,
        )
    measured = (
        f"the largest weight of a channel is {middle:g} counts in the middle, {largest} at most"
    )
    return make_finding(
        row,
        kind="uneven weights",
        measured=f"{measured}; {format_distinct_from(row.effective.sqnr, _UNEVEN_SQNR_DB)} dB",
        limit=f"a quarter, {_UNEVEN_SQNR_DB:g} dB",
        remedy="move the channels' ranges into the layers around",
        options=_equalization_options(row, tensor_join),
        order=2,
    )


_CLIPPING_OPS = frozenset({"Clip", "Relu"})
#: What makes channels of its own: a dead one there is the layer's doing.
_CHANNEL_PRODUCING_OPS = (
    operators.LAYER_OPS - operators.RECURRENT_OPS | {"BatchNormalization"} | _CLIPPING_OPS
)


def diagnose_minor_issues(
    row: ComparedTensor, tensor_join: TensorJoin, explained: bool
) -> LayerFinding | None:
    """Return dead channels, an output in few bits, or an error that nothing explains."""
    channels = row.channels
    still = np.flatnonzero(channels.is_constant) if channels.count > 1 else np.zeros(0)
    if (
        len(still)
        and row.kinds[0] in _CHANNEL_PRODUCING_OPS
        and len(still) < len(channels.is_constant)
    ):
        measured = (
            f"channel {_format_channels(still)} never changes ({len(still)} of "
            f"{len(channels.is_constant)})"
        )
        remedy = "take it out of the model, or train it again: it costs time and no accuracy"
        finding = make_finding(
            row, kind="dead channel", measured=measured, limit="none", remedy=remedy, order=3
        )
        share = len(still) / len(
            channels.is_constant
        )  # a Relu that is never passed may be by chance of the data
        return replace(finding, weight=share / 100 if row.kinds[0] in _CLIPPING_OPS else share)
    graph = tensor_join.base.graph
    outputs = [] if graph is None else [str(v.name) for v in graph.graph.outputs]
    if (
        row.name in outputs
        and row.stored_form is not None
        and row.stored_form.q.bits == 8
        and row.effective.sqnr < _UNEVEN_SQNR_DB
    ):
        return make_finding(
            row,
            kind="output in 8 bits",
            measured=(
                f"{format_distinct_from(row.effective.sqnr, _UNEVEN_SQNR_DB)} dB from its own layer"
            ),
            limit=f"{_UNEVEN_SQNR_DB:g} dB",
            remedy="leave the integers in float",
            options=(format_override(row, "out_bits:float"),),
            order=3,
        )
    if row.local is not None and not explained and row.effective.sqnr < _LOW_SQNR_DB:
        return make_finding(
            row,
            kind="similarity low",
            measured=(
                f"{format_distinct_from(row.effective.sqnr, _LOW_SQNR_DB)} dB from its own layer"
            ),
            limit=f"{_LOW_SQNR_DB:g} dB",
            remedy="more effort, or the layer in float",
            options=("--effort normal",),
            order=3,
        )
    return None


def _format_channels(channels: np.ndarray) -> str:
    listed = ", ".join(str(int(c)) for c in channels[:4])
    return listed + (f" and {len(channels) - 4} more" if len(channels) > 4 else "")
