"""A closer look at one layer whose own error is not that of rounding: what would explain it.

Takes the layer's values on a few samples, computed from the float model's, and tries one
explanation after another: a bias at the end of its type, attributes that differ, a missing Relu,
channels in another order, a shift of channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from ...formats import is_quantized_domain
from ...graph import ir, operators
from ...ops import is_relu_like
from ...run.metrics import ratio_db
from ...run.provenance import is_made_from
from ..stats.channels import CONSTANT_TOLERANCE, channel_axis, move_channel_axis
from .join import ComparedTensor, TensorJoin
from .sources import FloatSource, Item, PlannedSource
from .weight_order import find_swapped_channels

__all__ = ["LayerExaminer"]

_MIN_IMPROVEMENT_DB = 6.0  # dB that an explanation must bring
_MAX_SAMPLES = 8
_MAX_WORK = 1 << 28  # products that comparing all channels with all may take

#: Kind, what was measured, the limit, and the node of the float model that it is about, where not the layer's own.
Explanation = tuple[str, str, str, ir.Node | None]


class LayerExaminer:
    """Looks at layers of what `join` analyses, on the samples `feeds`.

    is_unmodified : whether that is as quantizing the baseline left it, as every plan computed in
    float is: then each layer is what was asked for, and errors are those of few bits, of tables,
    and of biases that make up for what comes before.
    """

    def __init__(self, tensor_join: TensorJoin, feeds: Mapping[str, np.ndarray]) -> None:
        self._base, self._other = tensor_join.base, tensor_join.other
        self._held = {
            name: row.stored_form
            for name, row in tensor_join.rows.items()
            if row.stored_form is not None
        }
        planned = isinstance(self._other, PlannedSource)
        self.is_unmodified = planned or is_made_from(self._other.graph, self._base.graph)
        self._theirs: dict[str, np.ndarray] = {}
        self._feeds = {
            n: a[:_MAX_SAMPLES] if a.ndim and len(a) > 1 else a for n, a in feeds.items()
        }

    @cached_property
    def _float_tensors(self) -> dict[str, np.ndarray]:
        return {
            name: array if form is None else form.real(array)
            for name, array, form in self._base.run(self._feeds)
            if array.dtype.kind == "f" or form
        }

    @cached_property
    def _arrived_tensors(self) -> dict[str, np.ndarray]:
        """What is analysed makes of its own inputs."""
        known = {spec.name for spec in self._other.inputs}
        self._theirs = {name: array for name, array in self._feeds.items() if name in known}
        return _dequantize_items(self._other.run(self._theirs))

    @cached_property
    def _isolated_tensors(self) -> dict[str, np.ndarray]:
        """What each of its layers makes of the float model's values.

        After a run, so that it knows tensors' types.
        """
        assert self._arrived_tensors is not None
        return _dequantize_items(self._other.run_isolated(self._theirs, self._float_tensors))

    @cached_property
    def _expected_tensors(self) -> dict[str, np.ndarray]:
        """What each layer of the float model makes of what integers can hold of its inputs."""
        if not isinstance(self._base, FloatSource):
            return self._float_tensors
        return self._float_tensors | self._base.run_with_clipped_inputs(
            self._feeds, self._float_tensors, self._held
        )

    def explain(self, row: ComparedTensor) -> Explanation | None:
        """Return what explains the error of a row; None where it is that of few bits."""
        x, y = self._expected_tensors.get(row.name), self._isolated_tensors.get(row.name)
        if x is None or y is None or x.size != y.size:
            return None
        x, y = x.astype(np.float64), y.reshape(x.shape).astype(np.float64)
        sound = np.isfinite(x) & np.isfinite(y)
        if not sound.all():
            x, y = np.where(sound, x, 0.0), np.where(sound, y, 0.0)
        x, y = _mask_constant_channels(
            *(
                move_channel_axis(a, (1.0,) if row.stored_form is None else row.stored_form.factor)
                for a in (x, y)
            )
        )
        arrays = x, y
        if row.consumed_range is not None:
            arrays = np.clip(x, *row.consumed_range), np.clip(y, *row.consumed_range)
        for look in (self._find_attribute_mismatch, self._find_missing_relu):
            if (cause := look(row)) is not None:
                return cause
        found = (
            _detect_missing_relu(x, y)
            or _detect_swapped_channels(x, y)
            or _detect_swapped_channels(*arrays)
        )
        if found is None and (shift := _channel_offsets(*arrays)) is not None:
            return _make_bias_explanation(shift) if self._offset_persists(row, shift) else None
        return found or _explain_as_unrelated(row, *arrays)

    def _offset_persists(self, row: ComparedTensor, shift: np.ndarray) -> bool:
        """Whether the largest shift [C] is left in a run from the inputs.

        Then it makes up for nothing before.
        """
        x, y = (
            self._float_tensors[row.name],
            self._arrived_tensors[row.name].reshape(self._float_tensors[row.name].shape),
        )
        x, y = (
            move_channel_axis(a, (1.0,) if row.stored_form is None else row.stored_form.factor)
            for a in (x, y)
        )
        if row.consumed_range is not None:
            x, y = np.clip(x, *row.consumed_range), np.clip(y, *row.consumed_range)
        error, worst = _flatten_channels(y - x), int(np.abs(shift).argmax())
        return error is None or 2 * abs(float(error[worst].mean())) > abs(float(shift[worst]))

    def bias(self, row: ComparedTensor) -> Explanation | None:
        """Return whether some of a layer's biases are at the end of their type."""
        node = self._other.node(row.name)
        layer = node is not None and is_quantized_domain(node) and len(node.inputs) > 2
        bias = ir.const_value(node.inputs[2]) if node is not None and layer else None
        if bias is None or bias.dtype.kind != "i":
            return None
        ends = np.iinfo(bias.dtype)
        full = np.flatnonzero((bias <= ends.min + 1) | (bias >= ends.max))
        if not full.size:
            return None
        first = f"channel {int(full[0])}: {int(bias.reshape(-1)[full[0]])}"
        return (
            "bias saturates",
            f"{full.size} of {bias.size} biases are at the end of {bias.dtype} ({first})",
            "none",
            None,
        )

    def _layer_before(self, name: str) -> ir.Node | None:
        return next(
            (node for node in self._iter_folded_nodes(name) if node.op_type in operators.LAYER_OPS),
            None,
        )

    def find_swapped_weights(self, row: ComparedTensor) -> Explanation | None:
        """Return which channels of a layer have each other's weights, whether or not that is seen in these samples."""
        ours = self._other.node(row.name)  # of a dump there is none
        theirs = None if ours is None else self._layer_before(row.name)
        if ours is None or theirs is None:
            return None
        held = self._held.get(str(theirs.inputs[0].name)) if theirs.inputs[0] is not None else None
        pairs = find_swapped_channels(ours, theirs, (1.0,) if held is None else held.factor)
        return _make_swap_explanation(pairs, "weights") if pairs else None

    def _find_attribute_mismatch(self, row: ComparedTensor) -> Explanation | None:
        """Return where pads, strides, dilations or group are not those of the float model's layer."""
        ours = self._other.node(row.name)
        theirs = next(
            (n for n in self._iter_folded_nodes(row.name) if n.op_type in operators.WINDOWED_OPS),
            None,
        )
        if ours is None or theirs is None:
            return None
        for name, kind in (
            ("pads", "wrong pads"),
            ("strides", "wrong strides"),
            ("dilations", "wrong dilations"),
            ("group", "wrong group"),
        ):
            if name in ours.attributes and name in theirs.attributes:
                have, want = ir.get_attr(ours, name), ir.get_attr(theirs, name)
                if _to_ints(have) != _to_ints(want):
                    return (
                        kind,
                        f"{name} {_to_ints(have)}",
                        f"{_to_ints(want)} in the float model",
                        None,
                    )
        return None

    def _find_missing_relu(self, row: ComparedTensor) -> Explanation | None:
        """Return whether the layer reads what the float model gives to a Relu first."""
        theirs = self._other.node(row.name)
        if theirs is None:
            return None
        users: Mapping[str, str] = getattr(self._other, "user_names", {})
        reads = {
            users.get(str(v.name), str(v.name))
            for v in theirs.inputs
            if v is not None and v.const_value is None
        }
        for node in self._iter_folded_nodes(row.name):
            for value in node.inputs:
                relu = None if value is None else value.producer()
                if relu is None or not _is_clipping(relu) or str(relu.outputs[0].name) in reads:
                    continue
                if ir.input_name(relu) in reads:
                    wanted = (
                        f"'{relu.outputs[0].name}', which is cut off at 0 ({relu.op_type} "
                        f"{relu.name})"
                    )
                    return (
                        "missing Relu",
                        f"'{row.name}' reads '{ir.input_name(relu)}'",
                        wanted,
                        relu,
                    )
        return None

    def _iter_folded_nodes(self, name: str) -> Iterator[ir.Node]:
        """Yield the node of the baseline that writes `name`, then those that were folded into it."""
        node = self._base.node(name)
        while node is not None:
            yield node
            value = node.inputs[0] if node.inputs else None
            if value is None or str(value.name) in self._isolated_tensors:
                return
            node = value.producer()


def _dequantize_items(items: Iterator[Item]) -> dict[str, np.ndarray]:
    return {name: array if form is None else form.real(array) for name, array, form in items}


def _is_clipping(node: ir.Node) -> bool:
    return is_relu_like(node) or (node.op_type == "Clip" and not node.domain)


def _to_ints(value: object) -> object:
    return [int(v) for v in value] if isinstance(value, list | tuple) else value


def _sqnr_db(x: np.ndarray, y: np.ndarray) -> float:
    """Return the SQNR in dB."""
    level = ratio_db(max(float(np.square(x).sum()), 1e-300), float(np.square(x - y).sum()))
    return min(level, 200.0)


def _mask_constant_channels(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both, the second as the first in channels that change in none.

    What reads these may hold the constant.
    """
    a, b = _flatten_channels(x), _flatten_channels(y)
    axis = channel_axis(x.ndim)
    if a is None or b is None or axis is None:
        return x, y
    size = np.maximum(np.abs(a).max(axis=1), np.abs(b).max(axis=1))
    still = np.maximum(np.ptp(a, axis=1), np.ptp(b, axis=1)) <= CONSTANT_TOLERANCE * size
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    return x, np.where(still.reshape(shape), x, y)


def _detect_missing_relu(x: np.ndarray, y: np.ndarray) -> Explanation | None:
    cut = np.maximum(y, 0)
    if (
        x.min(initial=0) < 0
        or y.min(initial=0) >= 0
        or _sqnr_db(x, cut) < _sqnr_db(x, y) + _MIN_IMPROVEMENT_DB
    ):
        return None
    return (
        "missing Relu",
        f"values down to {y.min():.4g}",
        "0 at least, as in the float model",
        None,
    )


def _flatten_channels(array: np.ndarray) -> np.ndarray | None:
    """Return [C, n]."""
    axis = channel_axis(array.ndim)
    return None if axis is None else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _detect_swapped_channels(x: np.ndarray, y: np.ndarray) -> Explanation | None:
    """Return which channels hold what belongs into others."""
    a, b = _flatten_channels(x), _flatten_channels(y)
    if a is None or b is None:
        return None
    if a.size * len(a) > _MAX_WORK:
        return None
    a, b = (
        array - array.mean(axis=1, keepdims=True) for array in (a, b)
    )  # the bias may have stayed
    near = np.array([np.square(p - b).mean(axis=1) for p in a])
    best = near.argmin(axis=1)
    moved = np.flatnonzero(best != np.arange(len(best)))
    better = near[moved, best[moved]] * 10 ** (_MIN_IMPROVEMENT_DB / 10) < near[moved, moved]
    moved = moved[better & (np.square(a[moved]).mean(axis=1) > 0)]
    pairs = [(int(i), int(best[i])) for i in moved if best[best[i]] == i and i < best[i]]
    if not pairs:
        return None
    fixed = b.copy()
    for i, j in pairs:
        fixed[[i, j]] = b[[j, i]]
    if _sqnr_db(a, fixed) < _sqnr_db(a, b) + 1:
        return None
    return _make_swap_explanation(pairs, "values")


def _make_swap_explanation(pairs: Sequence[tuple[int, int]], what: str) -> Explanation:
    listed = ", ".join(f"{i} and {j}" for i, j in pairs[:3])
    return (
        "channels swapped",
        f"channels {listed} hold each other's {what}",
        "the float model's order",
        None,
    )


def _channel_offsets(x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Return by which constants channels are shifted, [C].

    None where that does not explain the error.
    """
    a, b = _flatten_channels(x), _flatten_channels(y)
    if a is None or b is None:
        return None
    shift = (b - a).mean(axis=1, keepdims=True)
    return None if _sqnr_db(a, b - shift) < _sqnr_db(a, b) + _MIN_IMPROVEMENT_DB else shift[:, 0]


def _make_bias_explanation(shift: np.ndarray) -> Explanation:
    worst = int(np.abs(shift).argmax())
    return (
        "wrong bias",
        f"channel {worst} is off by {float(shift[worst]):.4g} on average",
        "0",
        None,
    )


def _explain_as_unrelated(row: ComparedTensor, x: np.ndarray, y: np.ndarray) -> Explanation | None:
    """Say that it computes something else, where the values have little in common with the float model's."""
    a, b = _flatten_channels(x), _flatten_channels(y)
    if a is None or b is None or row.stored_form is None:
        return None
    counts = (
        np.sqrt(np.square(a - b).mean(axis=1))
        * row.stored_form.q.scale
        * np.array(row.stored_form.factor)
    )
    if counts.max() < 8:
        return None
    worst = int(counts.argmax())
    return (
        "computes something else",
        f"channel {worst} is off by {counts[worst]:.1f} counts (root mean square)",
        "about 1 from rounding",
        None,
    )
