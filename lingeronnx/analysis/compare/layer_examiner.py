"""Examine a layer whose own error is larger than rounding explains, and look for the cause.

The layer's values on a few samples are computed from the float model's values. Causes are tried one
after another: a saturated bias, different attributes, a missing Relu, channels in another order, a
constant offset of channels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...common.arithmetic import ratio_db
from ...ir import float_ops, ir
from ...operators.integer_ops import is_quantized_domain
from ...operators.lowerings import is_relu_like
from ...runtime.provenance import is_made_from
from ..stats.channels import CONSTANT_TOLERANCE, channel_axis, move_channel_axis
from .join import ComparedTensor, TensorJoin
from .sources import FloatSource, Item, PlannedSource
from .weight_order import find_swapped_channels, find_transposed_axes

__all__ = ["LayerExaminer"]

_MIN_IMPROVEMENT_DB = 6.0  # SQNR that undoing a cause must recover
_MAX_SAMPLES = 8
_MAX_WORK = 1 << 28  # products allowed for comparing all channels with each other


class Explanation(NamedTuple):
    """The cause of a layer's error.

    Parameters
    ----------
    kind
        Kind of the cause.
    measured, limit
        The measured value and its limit, as text; see `LayerFinding`.
    node
        Node of the float model that the cause is about, if it is not the layer's own.
    """

    kind: str
    measured: str
    limit: str
    node: ir.Node | None = None


class LayerExaminer:
    """Examines layers of the analysed model on the samples `feeds`.

    Attributes
    ----------
    is_unmodified : bool
        Whether the analysed model is exactly as quantization of the baseline produced it, like
        every plan computed in float. Then each layer is as intended, and its errors are those of
        few bits, of tables, and of biases that compensate for errors upstream.
    """

    def __init__(self, tensor_join: TensorJoin, feeds: Mapping[str, np.ndarray]) -> None:
        """Store both sources, the stored forms, and the first _MAX_SAMPLES samples of `feeds`.

        Nothing is run yet.
        """
        self._base, self._other = tensor_join.base, tensor_join.other
        self._stored_forms = {
            name: row.stored_form
            for name, row in tensor_join.rows.items()
            if row.stored_form is not None
        }
        is_planned = isinstance(self._other, PlannedSource)
        self.is_unmodified = is_planned or is_made_from(self._other.graph, self._base.graph)
        self._other_feeds: dict[str, np.ndarray] = {}
        self._feeds = {
            name: array[:_MAX_SAMPLES] if array.ndim and len(array) > 1 else array
            for name, array in feeds.items()
        }

    @cached_property
    def _float_tensors(self) -> dict[str, np.ndarray]:
        """The real values of the float model's tensors on the samples, by name."""
        return {
            name: array if form is None else form.real(array)
            for name, array, form in self._base.run(self._feeds)
            if array.dtype.kind == "f" or form
        }

    @cached_property
    def _arrived_tensors(self) -> dict[str, np.ndarray]:
        """The real values of the analysed model's tensors, by name, run from the model's inputs.

        Also stores the samples of those inputs that the analysed model has.
        """
        known = {spec.name for spec in self._other.inputs}
        self._other_feeds = {name: array for name, array in self._feeds.items() if name in known}
        return _dequantize_items(self._other.run(self._other_feeds))

    @cached_property
    def _isolated_tensors(self) -> dict[str, np.ndarray]:
        """The real values of the analysed model's tensors, each layer run on float values.

        The model is run normally first, because that determines the types of its tensors.
        """
        assert self._arrived_tensors is not None
        return _dequantize_items(self._other.run_isolated(self._other_feeds, self._float_tensors))

    @cached_property
    def _expected_tensors(self) -> dict[str, np.ndarray]:
        """The float model's tensors, each layer run on inputs clipped to their integer range.

        Tensors that clipping does not change are as computed; nothing is clipped if the baseline is
        no float model.
        """
        if not isinstance(self._base, FloatSource):
            return self._float_tensors
        return self._float_tensors | self._base.run_with_clipped_inputs(
            self._feeds, self._float_tensors, self._stored_forms
        )

    def explain(self, row: ComparedTensor) -> Explanation | None:
        """Find the cause of the error that a tensor's own layer adds, on a few samples.

        Tried in this order: other attributes, a missing Relu, swapped channels, offsets of channels
        (a wrong bias if they persist in the full run, else None), and errors of 8 steps or more.
        None if none applies or the layer cannot be isolated.
        """
        x, y = self._expected_tensors.get(row.name), self._isolated_tensors.get(row.name)
        if x is None or y is None or x.size != y.size:
            return None
        x, y = x.astype(np.float64), y.reshape(x.shape).astype(np.float64)
        finite = np.isfinite(x) & np.isfinite(y)
        if not finite.all():
            x, y = np.where(finite, x, 0.0), np.where(finite, y, 0.0)
        x, y = _mask_constant_channels(*_move_channel_axes(row, x, y))
        consumed = _clip_to_consumed_range(row, x, y)
        cause = self._find_attribute_mismatch(row) or self._find_missing_relu(row)
        cause = cause or _detect_missing_relu(x, y) or _detect_swapped_channels(x, y)
        cause = cause or _detect_swapped_channels(*consumed)
        if cause is not None:
            return cause
        offsets = _channel_offsets(*consumed)
        if offsets is not None:
            is_wrong = self._offset_persists(row, offsets)
            return _make_bias_explanation(offsets) if is_wrong else None
        return _explain_as_unrelated(row, *consumed)

    def _offset_persists(self, row: ComparedTensor, offsets: np.ndarray) -> bool:
        """Whether more than half of the largest channel offset remains in a run from the inputs.

        `offsets` [C] are those of the isolated layer. If not, the bias compensates for errors
        upstream. True if the tensor has no channels.
        """
        x = self._float_tensors[row.name]
        y = self._arrived_tensors[row.name].reshape(x.shape)
        x, y = _clip_to_consumed_range(row, *_move_channel_axes(row, x, y))
        error, worst = _flatten_channels(y - x), int(np.abs(offsets).argmax())
        if error is None:
            return True
        return 2 * abs(float(error[worst].mean())) > abs(float(offsets[worst]))

    def find_saturated_bias(self, row: ComparedTensor) -> Explanation | None:
        """Return a cause if biases of the layer (third input) are at limits of their integer type.

        The lowest two integers and the highest count. None without such biases, and for nodes that
        are not of the integer operators' domain.
        """
        node = self._other.node(row.name)
        if node is None or not is_quantized_domain(node) or len(node.inputs) <= 2:
            return None
        bias = ir.const_value(node.inputs[2])
        if bias is None or bias.dtype.kind != "i":
            return None
        limits = np.iinfo(bias.dtype)
        saturated = np.flatnonzero((bias <= limits.min + 1) | (bias >= limits.max))
        if not saturated.size:
            return None
        channel = int(saturated[0])
        return Explanation(
            "bias saturates",
            f"{saturated.size} of {bias.size} biases are at the limits of {bias.dtype} "
            f"(channel {channel}: {int(bias.reshape(-1)[channel])})",
            "",
        )

    def _find_float_node(self, name: str, op_types: Collection[str]) -> ir.Node | None:
        """Return the first float node of one of the types that is folded into the tensor's layer.

        These are the producer of tensor `name` and the nodes upstream of it, up to a tensor that
        the analysed model has too. None if there is none.
        """
        for node in self._iter_folded_nodes(name):
            if node.op_type in op_types:
                return node
        return None

    def find_swapped_weights(self, row: ComparedTensor) -> Explanation | None:
        """Return a cause if output channels have each other's weights or axes are transposed.

        The integer weights are compared with the float model's, so the samples need not show it.
        """
        integer_node = self._other.node(row.name)
        if integer_node is None:  # such as in a dump
            return None
        float_node = self._find_float_node(row.name, float_ops.LAYER_OPS)
        if float_node is None:
            return None
        layer_input = float_node.inputs[0]
        form = None if layer_input is None else self._stored_forms.get(str(layer_input.name))
        factor = (1.0,) if form is None else form.factor
        layout = find_transposed_axes(integer_node, float_node, factor)
        if layout:
            return Explanation("weights transposed", f"the weights have {layout}", "")
        pairs = find_swapped_channels(integer_node, float_node, factor)
        return _make_swap_explanation(pairs, "weights") if pairs else None

    def _find_attribute_mismatch(self, row: ComparedTensor) -> Explanation | None:
        """Return a cause for the first of pads, strides, dilations, group that differs.

        None if all are equal; an attribute that one of the two layers lacks is not compared.
        """
        integer_node = self._other.node(row.name)
        float_node = self._find_float_node(row.name, float_ops.WINDOWED_OPS)
        if integer_node is None or float_node is None:
            return None
        for name in ("pads", "strides", "dilations", "group"):
            if name not in integer_node.attributes or name not in float_node.attributes:
                continue
            actual = _to_ints(ir.get_attr(integer_node, name))
            expected = _to_ints(ir.get_attr(float_node, name))
            if actual != expected:
                return Explanation(
                    f"wrong {name}", f"{name} {actual}", f"{expected} in the float model"
                )
        return None

    def _find_missing_relu(self, row: ComparedTensor) -> Explanation | None:
        """Return a cause if the layer reads the input of a Relu whose output the float layer reads.

        Relus and Clips at the inputs of all float nodes that are folded into the layer count. None
        if none is bypassed.
        """
        node = self._other.node(row.name)
        if node is None:
            return None
        user_names: Mapping[str, str] = getattr(self._other, "user_names", {})
        actual_inputs = set()
        for value in node.inputs:
            if value is not None and value.const_value is None:
                actual_inputs.add(user_names.get(str(value.name), str(value.name)))
        for folded_node in self._iter_folded_nodes(row.name):
            for relu in _iter_input_relus(folded_node):
                relu_output, relu_input = str(relu.outputs[0].name), ir.input_name(relu)
                if relu_output in actual_inputs or relu_input not in actual_inputs:
                    continue
                return Explanation(
                    "missing Relu",
                    f"'{row.name}' reads '{relu_input}'",
                    f"'{relu_output}', which is clipped at 0 ({relu.op_type} {relu.name})",
                    relu,
                )
        return None

    def _iter_folded_nodes(self, name: str) -> Iterator[ir.Node]:
        """Yield the float node that produces `name`, then upstream nodes that are folded into it.

        It follows first inputs up to a tensor that the analysed model has too. Yields nothing for
        an unknown name.
        """
        node = self._base.node(name)
        while node is not None:
            yield node
            value = node.inputs[0] if node.inputs else None
            if value is None or str(value.name) in self._isolated_tensors:
                return
            node = value.producer()


def _move_channel_axes(
    row: ComparedTensor, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Move the channels of both arrays [N, C, T] with factors per channel to axis 2.

    Arrays of another rank, and tensors of `row` with one factor, are returned as they are.
    """
    factor = (1.0,) if row.stored_form is None else row.stored_form.factor
    return move_channel_axis(x, factor), move_channel_axis(y, factor)


def _clip_to_consumed_range(
    row: ComparedTensor, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return `x` and `y` clipped to the range that the consumers of tensor `row` let through.

    Returned as they are if the consumers do not clip.
    """
    if row.consumed_range is None:
        return x, y
    return np.clip(x, *row.consumed_range), np.clip(y, *row.consumed_range)


def _iter_input_relus(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the Relus and Clips that produce inputs of a node, without those further upstream."""
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if producer is not None and _is_clipping(producer):
            yield producer


def _dequantize_items(items: Iterator[Item]) -> dict[str, np.ndarray]:
    """Return {name: float values} of (name, array, stored form or None) items.

    Arrays without a stored form are returned as they are.
    """
    return {name: array if form is None else form.real(array) for name, array, form in items}


def _is_clipping(node: ir.Node) -> bool:
    """Whether a node is a Relu or a Clip."""
    return is_relu_like(node) or (node.op_type == "Clip" and not node.domain)


def _to_ints(value: object) -> object:
    """Return a list or tuple as a list of integers; any other value as it is."""
    return [int(v) for v in value] if isinstance(value, list | tuple) else value


def _sqnr_db(x: np.ndarray, y: np.ndarray) -> float:
    """Return the SQNR of y against x in dB, at most 200, which is also that of equal arrays."""
    sqnr_db = ratio_db(max(float(np.square(x).sum()), 1e-300), float(np.square(x - y).sum()))
    return min(sqnr_db, 200.0)


def _mask_constant_channels(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y, with y replaced by x in the channels that are constant in both.

    The consumers of such channels may contain the constant. Constant is a range of at most
    CONSTANT_TOLERANCE of the largest magnitude. Arrays without a channel axis are returned as they
    are.
    """
    a, b = _flatten_channels(x), _flatten_channels(y)
    axis = channel_axis(x.ndim)
    if a is None or b is None or axis is None:
        return x, y
    max_abs = np.maximum(np.abs(a).max(axis=1), np.abs(b).max(axis=1))
    is_constant = np.maximum(np.ptp(a, axis=1), np.ptp(b, axis=1)) <= CONSTANT_TOLERANCE * max_abs
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    return x, np.where(is_constant.reshape(shape), x, y)


def _detect_missing_relu(x: np.ndarray, y: np.ndarray) -> Explanation | None:
    """Return "missing Relu" if clipping y at 0 brings it much closer to x, which is never negative.

    Much is an SQNR higher by _MIN_IMPROVEMENT_DB. None otherwise, and if y has no negative value.
    """
    if x.min(initial=0) < 0 or y.min(initial=0) >= 0:
        return None
    if _sqnr_db(x, np.maximum(y, 0)) < _sqnr_db(x, y) + _MIN_IMPROVEMENT_DB:
        return None
    return Explanation(
        "missing Relu", f"values down to {y.min():.4g}", "0 at least, as in the float model"
    )


def _flatten_channels(array: np.ndarray) -> np.ndarray | None:
    """Return an array as [C, n], its channel axis first, or None below two axes."""
    axis = channel_axis(array.ndim)
    return None if axis is None else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _detect_swapped_channels(x: np.ndarray, y: np.ndarray) -> Explanation | None:
    """Return "channels swapped" if pairs of channels of y match x much better swapped, else None.

    Channels are compared without their means. Each pair must be closer by _MIN_IMPROVEMENT_DB, and
    swapping all pairs must gain 1 dB. None, too, for tensors without channels or of more than
    _MAX_WORK elements times channels.
    """
    a, b = _flatten_channels(x), _flatten_channels(y)
    if a is None or b is None or a.size * len(a) > _MAX_WORK:
        return None
    # the biases may not be swapped with the weights
    a, b = (array - array.mean(axis=1, keepdims=True) for array in (a, b))
    distances = np.array([np.square(channel - b).mean(axis=1) for channel in a])
    best = distances.argmin(axis=1)
    moved = np.flatnonzero(best != np.arange(len(best)))
    threshold = distances[moved, moved]
    is_closer = distances[moved, best[moved]] * 10 ** (_MIN_IMPROVEMENT_DB / 10) < threshold
    moved = moved[is_closer & (np.square(a[moved]).mean(axis=1) > 0)]
    pairs = [(int(i), int(best[i])) for i in moved if best[best[i]] == i and i < best[i]]
    if not pairs:
        return None
    swapped = b.copy()
    for i, j in pairs:
        swapped[[i, j]] = b[[j, i]]
    if _sqnr_db(a, swapped) < _sqnr_db(a, b) + 1:
        return None
    return _make_swap_explanation(pairs, "values")


def _make_swap_explanation(pairs: Sequence[tuple[int, int]], contents: str) -> Explanation:
    """Create the cause of swapped channels; `contents` is "weights" or "values".

    At most three pairs are listed.
    """
    listed = ", ".join(f"{i} and {j}" for i, j in pairs[:3])
    return Explanation(
        "channels swapped",
        f"channels {listed} have each other's {contents}",
        "",
    )


def _channel_offsets(x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Compute the mean of y - x per channel, [C], if it explains most of the error, else None.

    It does if subtracting it from `y` improves the SQNR against `x` by _MIN_IMPROVEMENT_DB. None
    also for tensors without channels.
    """
    a, b = _flatten_channels(x), _flatten_channels(y)
    if a is None or b is None:
        return None
    offsets: np.ndarray = (b - a).mean(axis=1, keepdims=True)
    if _sqnr_db(a, b - offsets) < _sqnr_db(a, b) + _MIN_IMPROVEMENT_DB:
        return None
    return offsets[:, 0]


def _make_bias_explanation(offsets: np.ndarray) -> Explanation:
    """Create the cause "wrong bias" that names the channel with the largest offset.

    `offsets` is [C].
    """
    worst = int(np.abs(offsets).argmax())
    measured = f"channel {worst} is off by {float(offsets[worst]):.4g} on average"
    return Explanation("wrong bias", measured, "")


def _explain_as_unrelated(row: ComparedTensor, x: np.ndarray, y: np.ndarray) -> Explanation | None:
    """Return "computes something else" if `x` and `y`, values of tensor `row`, differ too much.

    That is a channel whose RMS difference is 8 integer steps or more; else None. None too for
    tensors that are not stored as integers, and for those without channels.
    """
    a, b = _flatten_channels(x), _flatten_channels(y)
    if a is None or b is None or row.stored_form is None:
        return None
    rms_error = np.sqrt(np.square(a - b).mean(axis=1))
    steps = rms_error * row.stored_form.q.scale * np.array(row.stored_form.factor)
    if steps.max() < 8:
        return None
    worst = int(steps.argmax())
    return Explanation(
        "computes something else",
        f"channel {worst} is off by {steps[worst]:.1f} steps (root mean square)",
        "about 1 from rounding",
    )
