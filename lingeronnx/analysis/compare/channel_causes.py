"""Losses of bits to a few large channels, values or weights, and minor issues.

Minor issues are dead channels and outputs with few bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...ir import float_ops, ir
from ...targets import get_target
from ..stats.stored_form import StoredForm
from .finding import LayerFinding, format_distinct_from, format_override, make_finding
from .join import ComparedTensor, TensorJoin

__all__ = ["diagnose_large_values", "diagnose_minor_issues", "diagnose_uneven_weights"]

_POOR_SQNR_DB = 25.0  # large channels above this SQNR do no harm
_LOW_SQNR_DB = 15.0  # a tensor below this SQNR must have a problem
_UNEVEN_SQNR_DB = 18.0  # a median channel below this SQNR must have a problem
_MAX_CHANNEL_RATIO = 8.0  # to the range of the median channel
_MAX_OUTLIER_RATIO = 10.0  # to the 0.99 quantile of absolute values
_MIN_PEAK_TO_RMS = 15.0  # of a channel whose large values are rare


@dataclass(frozen=True)
class StoredRanges:
    """Magnitudes of the channels of a tensor in stored units, float64 [C] each.

    Parameters
    ----------
    max_abs
        Largest |x| of each channel.
    rms
        Root mean square of each channel.
    active_max_abs
        `max_abs` of the active channels only.
    median_max_abs
        Median of `active_max_abs`; 0 without active channels.
    median_sqnr_db
        Median SQNR of the active channels in dB; infinite without active channels.
    """

    max_abs: np.ndarray
    rms: np.ndarray
    active_max_abs: np.ndarray
    median_max_abs: float
    median_sqnr_db: float

    @classmethod
    def of(cls, row: ComparedTensor, stored_form: StoredForm) -> StoredRanges:
        """Compute the magnitudes of the channels of `row` in the stored units of `stored_form`.

        These are largest absolute value and RMS of each channel, times the channel's factor. The
        median magnitude (0 if there are none) and the median SQNR in dB (infinite if there are
        none) are of the active channels.
        """
        channels, factor = row.channels, np.array(stored_form.factor)
        max_abs, rms = channels.max_abs * factor, np.sqrt(channels.mean_square) * factor
        active_max_abs, sqnrs_db = max_abs[channels.is_active], channels.sqnr_db()
        median_max_abs = float(np.median(active_max_abs)) if active_max_abs.size else 0.0
        median_sqnr_db = float(np.median(sqnrs_db)) if sqnrs_db.size else math.inf
        return cls(max_abs, rms, active_max_abs, median_max_abs, median_sqnr_db)

    @property
    def is_large(self) -> np.ndarray:
        """Which channels exceed _MAX_CHANNEL_RATIO times the median channel, bool [C]."""
        return np.asarray(self.max_abs > _MAX_CHANNEL_RATIO * self.median_max_abs)

    @property
    def has_few_large(self) -> bool:
        """Whether the large channels (`is_large`) are at most an eighth of all, or only one."""
        return bool(np.count_nonzero(self.is_large) <= max(1, len(self.max_abs) // 8))


def diagnose_large_values(row: ComparedTensor, tensor_join: TensorJoin) -> LayerFinding | None:
    """Return a finding if a few channels or a few values set the range of the tensor, else None.

    Tried in this order: rare values, large channels, uneven channels. Model inputs and tensors that
    are not stored as integers are not examined.
    """
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
    """Return the finding "outlier activation" if rare values set the range, else None.

    The largest absolute value must exceed _MAX_OUTLIER_RATIO times the 0.99 quantile and the peak
    channel _MIN_PEAK_TO_RMS times its own RMS, and the SQNR (the lower of the tensor's and the
    median channel's) must be below _POOR_SQNR_DB. The options equalize if few channels are large,
    else clip.
    """
    outlier_ratio = row.effective.x.max_abs / max(_abs_quantile_99(row), 1e-30)
    if outlier_ratio <= _MAX_OUTLIER_RATIO:
        return None
    top = int(ranges.max_abs.argmax())
    if ranges.max_abs[top] <= _MIN_PEAK_TO_RMS * ranges.rms[top]:
        return None
    sqnr_db = min(row.effective.sqnr, ranges.median_sqnr_db)
    if sqnr_db >= _POOR_SQNR_DB:
        return None
    options: tuple[str, ...] = ()
    if ranges.has_few_large and ranges.median_max_abs > 0:
        options = _equalization_options(row, tensor_join)  # instead of clipping the few channels
    remedy = "move the channels' ranges into the weights" if options else "clip the rare values"
    ratio = format_distinct_from(outlier_ratio, _MAX_OUTLIER_RATIO)
    return make_finding(
        row,
        kind="outlier activation",
        measured=f"the largest value is {ratio} times the 0.99 quantile of absolute values",
        limit=f"{_MAX_OUTLIER_RATIO:g} times",
        remedy=remedy,
        options=options or (format_override(row, "calibrator:percentile,percentile:99.9"),),
        order=2,
        sqnr_db=sqnr_db,
    )


def _diagnose_large_channels(
    row: ComparedTensor, ranges: StoredRanges, tensor_join: TensorJoin
) -> LayerFinding | None:
    """Return a finding if some channels are much larger than the median channel, else None.

    Large is more than _MAX_CHANNEL_RATIO times the median range. The SQNR of the median channel
    must be below _POOR_SQNR_DB, and the largest RMS of a large channel above _MAX_CHANNEL_RATIO / 2
    times the median RMS. The kind is "outlier channel" if at most an eighth of the channels (or
    one) is large, else "uneven channels".
    """
    large = np.flatnonzero(ranges.is_large)
    if ranges.median_max_abs <= 0 or ranges.median_sqnr_db >= _POOR_SQNR_DB or not large.size:
        return None
    median_rms = np.median(ranges.rms[row.channels.is_active])
    if ranges.rms[large].max() <= _MAX_CHANNEL_RATIO / 2 * median_rms:
        return None
    kind = "outlier channel" if ranges.has_few_large else "uneven channels"
    ratio = format_distinct_from(ranges.max_abs.max() / ranges.median_max_abs, _MAX_CHANNEL_RATIO)
    measured = (
        f"channel {_format_channels(large)} reaches {ratio} times the range of the median channel, "
        f"which is left with an SQNR of {ranges.median_sqnr_db:.1f} dB"
    )
    return _make_uneven_finding(row, kind, measured, ranges, tensor_join)


def _diagnose_uneven_channels(
    row: ComparedTensor, ranges: StoredRanges, tensor_join: TensorJoin
) -> LayerFinding | None:
    """Return "uneven channels" if the ranges of more than 3 active channels differ too much.

    The 0.9 quantile must exceed _MAX_CHANNEL_RATIO times the 0.1 quantile, while the SQNR of the
    median channel is below _UNEVEN_SQNR_DB; else None.
    """
    if ranges.median_sqnr_db >= _UNEVEN_SQNR_DB or ranges.active_max_abs.size <= 3:
        return None
    low, high = np.quantile(ranges.active_max_abs, (0.1, 0.9))
    if high <= _MAX_CHANNEL_RATIO * low:
        return None
    measured = (
        f"ranges of channels from {low:.3g} to {high:.3g} (0.1 and 0.9 quantiles); the SQNR of the "
        f"median channel is {ranges.median_sqnr_db:.1f} dB"
    )
    return _make_uneven_finding(row, "uneven channels", measured, ranges, tensor_join)


def _make_uneven_finding(
    row: ComparedTensor, kind: str, measured: str, ranges: StoredRanges, tensor_join: TensorJoin
) -> LayerFinding:
    """Return a finding of order 2 and this kind on tensor `row`: equalize its channels.

    Its weight follows from the SQNR of the median channel; `measured` is the text on it.
    """
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
    """Estimate the 0.99 quantile of |x| from quantiles of x, the baseline's values.

    It is the largest of |q(0.995)|, |q(0.005)| and q(0.99).
    """
    histogram = row.effective.x.histogram
    tails = abs(histogram.quantile(0.995)), abs(histogram.quantile(0.005))
    return max(*tails, histogram.quantile(0.99))


def _equalization_options(row: ComparedTensor, tensor_join: TensorJoin) -> tuple[str, ...]:
    """Return the option of `quantize` that equalizes channel ranges: ("--effort normal",).

    If the plan of the graph equalizes already (a transform has different factors), return an
    override with 16 bits for the tensor instead, or () if the platform has no 16 bits.
    """
    plan = getattr(tensor_join.other, "plan", None)
    if plan is None or all(len(set(t.factor)) <= 1 for t in plan.transforms.values()):
        return ("--effort normal",)
    if 16 in get_target(plan.platform).bits:
        return (format_override(row, "bits:16"),)
    return ()


def diagnose_uneven_weights(
    row: ComparedTensor,
    tensor_join: TensorJoin,
    parents: Sequence[str],
    by_layer: Mapping[str, LayerFinding],
) -> LayerFinding | None:
    """Return a finding if few large weights leave few bits for a layer's other weights, else None.

    The layer's SQNR must be at most _UNEVEN_SQNR_DB, the median of the channels' largest weights
    (input or output channels, the lower median) at most a quarter of the largest weight, and no
    parent an "outlier channel" in `by_layer`. The kind is "outlier channel" if at most an eighth of
    the output channels (or one) exceeds _MAX_CHANNEL_RATIO times the median, else "uneven weights".
    """
    if row.effective.sqnr > _UNEVEN_SQNR_DB:
        return None
    weight = _integer_weight(tensor_join.other.node(row.name))
    if weight is None:
        return None
    if any(name in by_layer and by_layer[name].kind == "outlier channel" for name in parents):
        return None
    kernel_max = np.abs(weight.astype(np.int64))
    kernel_max = kernel_max.reshape(weight.shape[0], weight.shape[1], -1).max(axis=2)
    max_weight = int(kernel_max.max(initial=0))
    median = min(float(np.median(kernel_max.max(axis=axis))) for axis in (0, 1))
    if median * 4 > max_weight:
        return None
    options = _equalization_options(row, tensor_join)
    channel_max = kernel_max.max(axis=1)
    channel_median = np.median(channel_max)
    outliers = np.count_nonzero(channel_max > _MAX_CHANNEL_RATIO * channel_median)
    if 0 < outliers <= max(1, len(channel_max) // 8):
        return make_finding(
            row,
            kind="outlier channel",
            measured=(
                f"the weights of channel {int(channel_max.argmax())} reach {max_weight} steps, "
                f"those of the median channel {channel_median:g}"
            ),
            limit=f"{_MAX_CHANNEL_RATIO:g} times",
            remedy="move the channels' ranges into the weights",
            options=options,
            order=2,
        )
    sqnr = format_distinct_from(row.effective.sqnr, _UNEVEN_SQNR_DB)
    return make_finding(
        row,
        kind="uneven weights",
        measured=(
            f"the median of the channels' largest weights is {median:g} steps, the largest weight "
            f"{max_weight}; {sqnr} dB"
        ),
        limit=f"a quarter, {_UNEVEN_SQNR_DB:g} dB",
        remedy="move the channels' ranges into the adjacent layers",
        options=options,
        order=2,
    )


def _integer_weight(node: ir.Node | None) -> np.ndarray | None:
    """Return the integer weight [O, I, ...] of a layer, its constant input 1.

    None without a node, a second input, or if that is not a signed integer constant of at least two
    axes.
    """
    if node is None or len(node.inputs) <= 1:
        return None
    array = ir.const_value(node.inputs[1])
    if array is None or array.dtype.kind != "i" or array.ndim < 2:
        return None
    return array


#: Kind of the finding on channels that the float model does not use either: they lose no accuracy.
DEAD_CHANNEL = "dead channel"
_CLIPPING_OPS = frozenset({"Clip", "Relu"})
#: Operators that compute their channels, so that a dead channel is due to the operator.
_CHANNEL_PRODUCING_OPS = (
    float_ops.LAYER_OPS - float_ops.RECURRENT_OPS | {"BatchNormalization"} | _CLIPPING_OPS
)


def diagnose_minor_issues(
    row: ComparedTensor, tensor_join: TensorJoin, explained: bool
) -> LayerFinding | None:
    """Return a finding of order 3 about dead channels, an 8-bit output, or an unexplained error.

    Tried in this order; None if none applies. An 8-bit graph output needs an SQNR below
    _UNEVEN_SQNR_DB, an unexplained error one below _LOW_SQNR_DB and a local error. `explained` says
    that a finding upstream explains the error, which excludes the last.
    """
    finding = _diagnose_dead_channels(row)
    if finding is not None:
        return finding
    graph = tensor_join.base.graph
    outputs = [] if graph is None else ir.get_output_names(graph)
    is_8_bit = row.stored_form is not None and row.stored_form.q.bits == 8
    sqnr_db = row.effective.sqnr
    if row.name in outputs and is_8_bit and sqnr_db < _UNEVEN_SQNR_DB:
        return make_finding(
            row,
            kind="output in 8 bits",
            measured=f"{format_distinct_from(sqnr_db, _UNEVEN_SQNR_DB)} dB from its own layer",
            limit=f"{_UNEVEN_SQNR_DB:g} dB",
            remedy="leave the output in float",
            options=(format_override(row, "out_bits:float"),),
            order=3,
        )
    if row.local is not None and not explained and sqnr_db < _LOW_SQNR_DB:
        return make_finding(
            row,
            kind="similarity low",
            measured=f"{format_distinct_from(sqnr_db, _LOW_SQNR_DB)} dB from its own layer",
            limit=f"{_LOW_SQNR_DB:g} dB",
            remedy="more effort, or the layer in float",
            options=("--effort normal",),
            order=3,
        )
    return None


def _diagnose_dead_channels(row: ComparedTensor) -> LayerFinding | None:
    """Return a finding "dead channel" if some, but not all channels of the layer are constant.

    Else None, and for operators that do not compute their channels. The weight of the finding is
    the fraction of constant channels, a hundredth of it behind a Relu or Clip.
    """
    if row.channels.count <= 1 or row.kinds[0] not in _CHANNEL_PRODUCING_OPS:
        return None
    channel_count = len(row.channels.is_constant)
    dead = np.flatnonzero(row.channels.is_constant)
    if not 0 < len(dead) < channel_count:
        return None
    finding = make_finding(
        row,
        kind=DEAD_CHANNEL,
        measured=(
            f"channel {_format_channels(dead)} never changes ({len(dead)} of {channel_count})"
        ),
        limit="",
        remedy="remove it or retrain the model; it costs time but no accuracy",
        order=3,
    )
    fraction = len(dead) / channel_count
    # a Relu may clip a channel just by chance of the data
    return replace(finding, weight=fraction / 100 if row.kinds[0] in _CLIPPING_OPS else fraction)


def _format_channels(channels: np.ndarray) -> str:
    """List the first four channel indices, separated by commas, and the number of the others."""
    listed = ", ".join(str(int(c)) for c in channels[:4])
    return listed + (f" and {len(channels) - 4} more" if len(channels) > 4 else "")
