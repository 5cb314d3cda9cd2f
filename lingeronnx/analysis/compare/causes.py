"""What may be wrong with one tensor, read off its row of a `Join`: each function one sort of cause.

Knows rows and the platform's widths; who explains whom, and the order, are `advice`'s.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from ...graph import ir, operators
from ...graph.modules import called, module
from ...run.moments import noted_inputs
from ...targets import by_name
from .join import Join, Row
from .layer_causes import Closer

__all__ = ["Finding", "broken", "costs_little", "held_wrong", "inputs", "large", "same_scale", "weights"]

_CLIPPED = 0.005  # share of values that a scale may cut off
_USED = 0.2  # share of the integers that is too little
_POOR = 25.0  # dB: above that a coarse scale does no harm
_BITS = 35.0  # dB: what 8 bits give an ordinary tensor; what is missing to it is a finding's weight
_COUNTS = 3.0  # root mean square error of a channel, in counts, that rounding does not explain
_LOW = 15.0  # dB: the same of a whole tensor
_UNEVEN = 18.0  # dB: of the channel in the middle
_CHANNEL = 8.0  # times the middle channel's range
_OUTLIER = 10.0  # times the 0.99 quantile of absolute values
_RARE = 15.0  # times its root mean square that a channel reaches where its large values are rare
_SHIFT, _SPREAD = 0.5, 1.7  # of the input, in its standard deviations and as a ratio of them
_APART, _CHANCE = 0.08, 0.8  # standard deviations that a channel's mean may move against the others', and by chance
_NEAR = 1e-3  # squared distance of moments, in variances, that says nothing
_FEW = 32  # samples below which nothing is said of channels in another order


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    layer : the tensor, by the user's name. node, operator, module : what writes it in the float model. kind : in a few
    words. measured, limit : what was seen, and what it should be. remedy : words. options : of `quantize`, to paste.
    weight : in dB, how much is lost; order : 0 the data ... 3 what costs little. also : tensors that share its scale.
    """

    layer: str
    node: str
    operator: str
    kind: str
    measured: str
    limit: str
    remedy: str
    options: tuple[str, ...]
    weight: float
    order: int
    also: tuple[str, ...] = ()
    module: str = ""

    @property
    def place(self) -> str:
        """The operator, its node, the module where that is another name, and the tensor."""
        return " ".join(part for part in (self.operator, called(self.node, self.module), f"'{self.layer}'") if part)

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values."""
        return {**vars(self), "options": list(self.options), "also": list(self.also)}


def same_scale(one: Row, other: Row) -> bool:
    """Whether two tensors are integers of one scale."""
    return one.held is not None and other.held is not None and one.held.q.scale == other.held.q.scale


# ---- the data ------------------------------------------------------------------------------------------------------


def inputs(join: Join) -> Iterator[Finding]:
    """Yield what the inputs are that they were not at calibration."""
    noted = {} if join.other.graph is None else noted_inputs(join.other.graph)
    for spec in join.base.inputs:
        row = join.rows.get(spec.name)
        if row is None:
            continue
        if spec.name in noted and (finding := _against(row, *noted[spec.name], join)) is not None:
            yield finding
        elif spec.name not in noted and row.judged.clipped is not None and row.judged.clipped > _CLIPPED:
            yield _of_input(
                row,
                "input not normalised",
                f"{row.judged.clipped:.1%} of the values lie beyond what its scale holds ({_range(row)})",
                f"at most {_CLIPPED:.1%}",
                60.0,
            )


def _against(row: Row, mean: np.ndarray, std: np.ndarray, join: Join) -> Finding | None:
    """Return how an input differs from what was calibrated with."""
    ours = row.channels.mean, row.channels.deviation
    if len(ours[0]) != len(mean):
        ours = np.array([row.pair.x.mean]), np.array([math.sqrt(row.pair.x.variance)])
    if 2 <= len(mean) <= 4 and join.samples >= _FEW and (found := _reordered(row, ours, mean, std)) is not None:
        return found
    scale = max(float(std.max()), 1e-12)
    shift = float(np.abs(ours[0] - mean).max()) / scale
    spread = float(ours[1].max()) / scale
    if shift > _SHIFT or not 1 / _SPREAD < spread < _SPREAD:
        text = f"mean {_list(ours[0])}, standard deviation {_list(ours[1])}"
        limit = f"as at calibration: mean {_list(mean)}, standard deviation {_list(std)}"
        return _of_input(row, "input not normalised", text, limit, 60.0 + min(shift, 30.0))
    return _out_of_balance(row, ours, mean, std, join.samples) if join.samples >= _FEW and len(mean) > 1 else None


def _out_of_balance(
    row: Row, ours: tuple[np.ndarray, np.ndarray], mean: np.ndarray, std: np.ndarray, samples: int
) -> Finding | None:
    """Return whether channels moved against each other, as where they are swapped and normalised then."""
    moved = (ours[0] - mean) / np.maximum(std, 1e-12)
    apart = moved - moved.mean()
    most = max(_APART, _CHANCE / math.sqrt(samples))
    if np.abs(apart).max() < most or abs(moved.mean()) > np.abs(apart).max():
        return None
    measured = f"means of channels moved by {_list(moved)} standard deviations, by {moved.mean():.3g} together"
    return _of_input(row, "input channels swapped", measured, f"{most:.2g} against each other", 50.0)


def _reordered(row: Row, ours: tuple[np.ndarray, np.ndarray], mean: np.ndarray, std: np.ndarray) -> Finding | None:
    def distance(order: Sequence[int]) -> float:
        pick = list(order)
        return float((np.square(ours[0][pick] - mean) + np.square(ours[1][pick] - std)).sum() / np.square(std).sum())

    plain = tuple(range(len(mean)))
    best = min(permutations(plain), key=distance)
    if best == plain or distance(best) > _SHIFT**2 or distance(plain) < max(2 * distance(best), _NEAR):
        return None
    measured = f"the channels fit those of calibration in the order {list(best)}: mean {_list(ours[0])}"
    return _of_input(row, "input channels swapped", measured, f"mean {_list(mean)}", 50.0)


def _of_input(row: Row, kind: str, measured: str, limit: str, weight: float) -> Finding:
    remedy = "prepare the data as for calibration, or calibrate with data like these (--calib)"
    return Finding(row.name, row.name, "Input", kind, measured, limit, remedy, (), weight, 0)


# ---- scales --------------------------------------------------------------------------------------------------------


def held_wrong(row: Row, before: Mapping[str, Row], found: Mapping[str, Finding]) -> Finding | None:
    """Return whether the scale cuts values off, or leaves most integers unused.

    before : the rows that it is computed from. found : what is known of them.
    """
    finding = _of_scale(row)
    own = row.kinds[0] not in operators.KEEP_SCALE or not any(same_scale(row, other) for other in before.values())
    known = finding is not None and any(name in found and found[name].kind == finding.kind for name in before)
    return finding if own or known else None


def _of_scale(row: Row) -> Finding | None:
    pair, held = row.judged, row.held
    if held is None or pair.clipped is None or pair.used is None or not pair.count:
        return None
    if pair.clipped > _CLIPPED and pair.sqnr < _BITS:
        return _finding(
            row,
            "scale too large",
            f"{pair.clipped:.1%} of the values are cut off: {_range(row)}",
            f"at most {_CLIPPED:.1%}",
            "a scale that holds the range",
            (_scale(row),),
            1,
        )
    if pair.used < _USED and pair.sqnr < _POOR and pair.y.largest > 0:
        return _finding(
            row,
            "scale too small",
            f"{pair.used:.1%} of the integers are used: {_range(row)}",
            f"at least {_USED:.0%}",
            "a scale that fills them",
            (_scale(row),),
            1,
        )
    return None


def _scale(row: Row) -> str:
    """Return the override that gives the tensor the largest power of two that holds its range."""
    held, x = row.held, row.judged.x
    assert held is not None
    reach = max(x.high / held.q.high, x.low / held.q.low, 1e-30) * max(held.factor)
    return _override(row, f"scale:2^{math.floor(-math.log2(reach))}")


def _range(row: Row) -> str:
    held, x = row.held, row.judged.x
    assert held is not None
    factor = held.q.scale * max(held.factor)
    low, high = ((end - held.q.zero_point) / factor for end in (held.q.low, held.q.high))
    return f"[{x.low:.4g}, {x.high:.4g}] in integers of [{low:.4g}, {high:.4g}]"


def _override(row: Row, setting: str) -> str:
    return "--override " + shlex.quote(f"{row.name}={setting}")


# ---- layers that compute something else ----------------------------------------------------------------------------


def _strange(row: Row) -> bool:
    """Whether the layer's own error is more than rounding makes."""
    if row.local is None or row.kinds[0] == "Input":
        return False
    if row.held is None:
        return row.judged.sqnr < _LOW
    if row.judged.sqnr < _LOW or not row.channels.count:
        return row.judged.sqnr < _LOW
    counts = _counts(row)
    levels = 10 * np.log10(np.maximum(row.channels.power, 1e-30) / np.maximum(row.channels.error, 1e-30))
    apart = (counts > 1) & (counts > 2 * np.median(counts)) & (levels < _LOW)
    return bool(counts.max(initial=0.0) > _COUNTS or apart.any())


def _counts(row: Row) -> np.ndarray:
    """Return the root mean square error of every channel in counts."""
    assert row.held is not None
    return np.sqrt(row.channels.error) * row.held.q.scale * np.array(row.held.factor)


def broken(row: Row, closer: Closer, explained: bool) -> Finding | None:
    """Return what is wrong with a layer that computes something else; a bias at its end is wrong whatever it does.

    Nothing where the integer graph is as it was made of this float model.
    """
    if closer.made:
        return None
    found = closer.bias(row)
    if found is None and not explained and _strange(row):
        found = closer.look(row)
    if found is None:
        return None
    kind, measured, limit, at = found
    remedy = "the integer graph is not what the float model asks for: quantize the float model again"
    finding = _finding(row, kind, measured, limit, remedy, (), 1)
    if at is None:
        return finding
    return replace(finding, layer=ir.written_name(at), node=str(at.name), operator=at.op_type, module=module(at))


# ---- what costs bits -----------------------------------------------------------------------------------------------


def large(row: Row, join: Join) -> Finding | None:
    """Return whether a few channels, or a few values, set the range for all."""
    channels, pair, held = row.channels, row.judged, row.held
    if held is None or not channels.count or row.kinds[0] == "Input":
        return None
    stored = channels.reach * np.array(held.factor)
    power = np.sqrt(channels.power) * np.array(held.factor)
    moving = stored[~channels.still]
    middle = float(np.median(moving)) if moving.size else 0.0
    levels = channels.sqnr()
    level = float(np.median(levels)) if levels.size else math.inf
    tail, top = pair.x.largest / max(_tail(row), 1e-30), int(stored.argmax())
    rare = stored[top] > _RARE * power[top]
    if tail > _OUTLIER and rare and min(pair.sqnr, level) < _POOR:
        measured = f"the largest value is {tail:.1f} times the 0.99 quantile of absolute values"
        return _finding(
            row,
            "outlier activation",
            measured,
            f"{_OUTLIER:g} times",
            "cut the rare values off",
            (_override(row, "calibrator:percentile,percentile:99.9"),),
            2,
            min(pair.sqnr, level),
        )
    big = np.flatnonzero(stored > _CHANNEL * middle)
    if (
        middle > 0
        and level < _POOR
        and big.size
        and power[big].max() > _CHANNEL / 2 * np.median(power[~channels.still])
    ):
        kind = "outlier channel" if len(big) <= max(1, len(stored) // 8) else "uneven channels"
        measured = (
            f"channel {_names(big)} reaches {stored.max() / middle:.1f} times as far as the channel in the middle, "
            f"which is left {level:.1f} dB"
        )
        return _finding(
            row,
            kind,
            measured,
            f"{_CHANNEL:g} times",
            "move the channels' ranges into the weights",
            _even(row, join),
            2,
            level,
        )
    if level < _UNEVEN and moving.size > 3 and np.quantile(moving, 0.9) > _CHANNEL * np.quantile(moving, 0.1):
        measured = (
            f"ranges of channels from {np.quantile(moving, 0.1):.3g} to {np.quantile(moving, 0.9):.3g} (0.1 and 0.9 "
            f"quantiles); the channel in the middle is left {level:.1f} dB"
        )
        return _finding(
            row,
            "uneven channels",
            measured,
            f"{_CHANNEL:g} times",
            "move the channels' ranges into the weights",
            _even(row, join),
            2,
            level,
        )
    return None


def _tail(row: Row) -> float:
    """Return the 0.99 quantile of |x|, from the quantiles of x."""
    histogram = row.judged.x.histogram
    return max(abs(histogram.quantile(0.995)), abs(histogram.quantile(0.005)), histogram.quantile(0.99))


def _even(row: Row, join: Join) -> tuple[str, ...]:
    """Return the option that gives channels like ranges: equalization, or where that was done more bits."""
    plan = getattr(join.other, "plan", None)
    equalized = plan is not None and any(len(set(t.factor)) > 1 for t in plan.transforms.values())
    if not equalized:
        return ("--effort normal",)
    wide = plan is not None and 16 in by_name(plan.platform).bits
    return (_override(row, "bits:16"),) if wide else ()


def weights(row: Row, join: Join, parents: Sequence[str], found: Mapping[str, Finding]) -> Finding | None:
    """Return whether most of the layer's weights have few bits left beside the largest."""
    node = join.other.node(row.name)
    array = ir.const(node.inputs[1]) if node is not None and len(node.inputs) > 1 else None
    if array is None or array.dtype.kind != "i" or array.ndim < 2 or row.judged.sqnr > _UNEVEN:
        return None
    if any(p in found and found[p].kind == "outlier channel" for p in parents):
        return None
    sizes = np.abs(array.astype(np.int64)).reshape(array.shape[0], array.shape[1], -1).max(axis=2)
    rows = sizes.max(axis=1)
    largest, middle = int(sizes.max(initial=0)), min(float(np.median(sizes.max(axis=axis))) for axis in (0, 1))
    if middle * 4 > largest:
        return None
    if 0 < np.count_nonzero(rows > _CHANNEL * np.median(rows)) <= max(1, len(rows) // 8):
        measured = (
            f"the weights of channel {int(rows.argmax())} reach {largest} counts, {np.median(rows):g} in the middle"
        )
        return _finding(
            row,
            "outlier channel",
            measured,
            f"{_CHANNEL:g} times",
            "move the channels' ranges into the weights",
            _even(row, join),
            2,
        )
    measured = f"the largest weight of a channel is {middle:g} counts in the middle, {largest} at most"
    return _finding(
        row,
        "uneven weights",
        f"{measured}; {row.judged.sqnr:.1f} dB",
        f"a quarter, {_UNEVEN:g} dB",
        "move the channels' ranges into the layers around",
        _even(row, join),
        2,
    )


# ---- what costs little ---------------------------------------------------------------------------------------------


_CUTS = frozenset({"Clip", "Relu"})
#: What makes channels of its own: a dead one there is the layer's doing.
_MAKES = operators.LAYERS - operators.RECURRENT | {"BatchNormalization"} | _CUTS


def costs_little(row: Row, join: Join, explained: bool) -> Finding | None:
    """Return dead channels, an output in few bits, or an error that nothing explains."""
    channels = row.channels
    still = np.flatnonzero(channels.still) if channels.count > 1 else np.zeros(0)
    if len(still) and row.kinds[0] in _MAKES and len(still) < len(channels.still):
        measured = f"channel {_names(still)} never changes ({len(still)} of {len(channels.still)})"
        remedy = "take it out of the model, or train it again: it costs time and no accuracy"
        finding = _finding(row, "dead channel", measured, "none", remedy, (), 3)
        share = len(still) / len(channels.still)  # a Relu that is never passed may be by chance of the data
        return replace(finding, weight=share / 100 if row.kinds[0] in _CUTS else share)
    graph = join.base.graph
    outputs = [] if graph is None else [str(v.name) for v in graph.graph.outputs]
    if row.name in outputs and row.held is not None and row.held.q.bits == 8 and row.judged.sqnr < _UNEVEN:
        return _finding(
            row,
            "output in 8 bits",
            f"{row.judged.sqnr:.1f} dB from its own layer",
            f"{_UNEVEN:g} dB",
            "leave the integers in float",
            (_override(row, "out_bits:float"),),
            3,
        )
    if row.local is not None and not explained and row.judged.sqnr < _LOW:
        return _finding(
            row,
            "similarity low",
            f"{row.judged.sqnr:.1f} dB from its own layer",
            f"{_LOW:g} dB",
            "more effort, or the layer in float",
            ("--effort normal",),
            3,
        )
    return None


def _finding(
    row: Row,
    kind: str,
    measured: str,
    limit: str,
    remedy: str,
    given: tuple[str, ...],
    order: int,
    level: float | None = None,
) -> Finding:
    weight = _BITS - min(row.judged.sqnr if level is None else level, _BITS)
    return Finding(
        row.name, row.nodes[0], row.kinds[0], kind, measured, limit, remedy, given, weight, order, module=row.module
    )


def _names(channels: np.ndarray) -> str:
    listed = ", ".join(str(int(c)) for c in channels[:4])
    return listed + (f" and {len(channels) - 4} more" if len(channels) > 4 else "")


def _list(values: np.ndarray) -> str:
    return ", ".join(f"{v:.3g}" for v in values[:4])
