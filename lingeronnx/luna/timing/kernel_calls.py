"""Derive the kernel calls that the executor of arcs makes for a node, with counts and arguments.

The rules were found by recording every call of the executor on 31 graphs. Work without a cost model
is reported with its bytes and, where possible, with calls that bound it; it never counts as free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ...common.arithmetic import round_up
from ...operators.integer_ops import (
    AVG_POOL2D,
    BATCH_NORM2D,
    BMM,
    CONCAT,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    LAYER_NORM,
    LINEAR,
    LSTM,
    PAD,
    REQUANT,
    SIGMOID,
    SOFTMAX,
    TANH,
)
from .kernels import KernelCall

__all__ = ["TimingNode", "Operand", "UnmodeledCalls", "NodeKernelCalls", "list_kernel_calls"]

#: Larger inputs of an average pool are computed 8 channels at a time.
_MAX_UNSPLIT_POOL_BYTES = 65536
#: Input scale of an iqTanh whose input is not rescaled.
_NATIVE_TANH_SCALE = 2.0**27


@dataclass(frozen=True)
class Operand:
    """A tensor: its shape, the bits of an element, and its scale if it is known."""

    shape: tuple[int, ...]
    bits: int = 8
    scale: float | None = None

    @property
    def element_count(self) -> int:
        """Number of elements, the product of `shape`."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size in bytes, rounded down for 4 bits."""
        return self.element_count * self.bits // 8


@dataclass(frozen=True)
class TimingNode:
    """A node as the chip runs it.

    Attributes
    ----------
    axis
        Axis of a Slice, whose attributes need not contain it.
    prefetch
        Whether the DMA fetches the node's constants before it starts.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]
    axis: int | None = None
    prefetch: bool = True

    def get(self, name: str, default: Any) -> Any:  # noqa: ANN401 - the caller knows the operator
        """Return attribute `name`, or `default` if it is absent or None."""
        value = self.attributes.get(name)
        return default if value is None else value

    def scale(self, name: str, operand: Operand | None = None) -> float | None:
        """Return the scale in attribute `name`, or else that of `operand`; None without both."""
        value = self.attributes.get(name)
        if value is not None or operand is None:
            return value
        return operand.scale


@dataclass(frozen=True)
class UnmodeledCalls:
    """Work of a node without a cost model.

    Attributes
    ----------
    description
        Description for the user.
    moved_bytes
        Bytes that it moves.
    bounding_calls
        Calls that cost at least as much, or none if no bound is known.
    """

    description: str
    moved_bytes: int
    bounding_calls: Sequence[KernelCall] = ()


@dataclass(frozen=True)
class NodeKernelCalls:
    """Kernel calls of a node, and its work without a cost model."""

    calls: Sequence[KernelCall] = ()
    unmodeled: Sequence[UnmodeledCalls] = ()


def list_kernel_calls(node: TimingNode) -> NodeKernelCalls:
    """List the kernel calls that the executor makes for `node`, without those of count 0.

    Nodes of unknown operators are unmodeled work, with the bytes of first input and outputs. So are
    convolutions whose weights differ in rank from their input, since costs are also requested for
    graphs that have not been checked.
    """
    list_calls, description = _CALL_LISTERS.get(node.op), node.op
    if list_calls in (_list_conv_calls, _list_conv_transpose_calls) and len(
        node.inputs[1].shape
    ) != len(node.inputs[0].shape):
        list_calls, description = None, "weights whose rank differs from the input's"
    if list_calls is None:
        moved_bytes = sum(operand.size_bytes for operand in (*node.inputs[:1], *node.outputs))
        return NodeKernelCalls(unmodeled=(UnmodeledCalls(description, moved_bytes),))
    calls = list_calls(node)
    if isinstance(calls, NodeKernelCalls):
        return calls
    return NodeKernelCalls(tuple(call for call in calls if call.count > 0))


def _vector_call(kernel: str, n: int, in_bits: int, out_bits: int, count: int = 1) -> KernelCall:
    """Make a call of vector kernel `kernel` on `n` elements, repeated `count` times."""
    return KernelCall(kernel, {"n": n, "in_bits": in_bits, "out_bits": out_bits}, count)


def _copy_call(size_bytes: int, count: int = 1) -> KernelCall:
    """Make a call that copies `size_bytes` bytes in shared memory, repeated `count` times."""
    return KernelCall("memcpy", {"n": size_bytes}, count)


def _memset_call(n: int, bits: int) -> KernelCall:
    """Make a call that fills `n` elements of `bits` bits."""
    return KernelCall("memset", {"n": n, "in_bits": bits, "out_bits": bits})


def _matmul_call(
    m: int, k: int, n: int, left_bits: int, right_bits: int, out_bits: int, count: int = 1
) -> KernelCall:
    """Make a call of the product (m, k) x (k, n) with these widths, repeated `count` times."""
    bits = {"left_bits": left_bits, "right_bits": right_bits, "out_bits": out_bits}
    return KernelCall("matmul", {"m": m, "k": k, "n": n, **bits}, count)


def _transpose_call(rows: int, columns: int, bits: int) -> KernelCall:
    """Make a call that transposes a matrix [rows, columns] of elements with `bits` bits."""
    return KernelCall(
        "transpose", {"rows": rows, "columns": columns, "bits": bits, "out_bits": bits}
    )


def _get_window_arguments(node: TimingNode, out_channels: int) -> dict[str, Any]:
    """Return the arguments of a sliding-window kernel by name; 1-D inputs become maps of height 1.

    `kernel`, `stride` and `dilation` are (height, width), `pads` top, left, bottom, right. The
    kernel size is the attribute `kernel_shape`, otherwise the spatial shape of the weights.
    """
    _, channels, *size = node.inputs[0].shape
    weight_kernel = node.inputs[1].shape[2:] if len(node.inputs) > 1 else ()
    kernel = list(node.get("kernel_shape", weight_kernel))
    rank = len(size)
    strides = list(node.get("strides", [1] * rank))
    dilations = list(node.get("dilations", [1] * rank))
    pads = list(node.get("pads", [0] * 2 * rank))
    if rank == 1:
        size, kernel, strides, dilations = [1, *size], [1, *kernel], [1, *strides], [1, *dilations]
        pads = [0, pads[0], 0, pads[1]]
    return {
        "c_in": channels,
        "h": size[0],
        "w": size[1],
        "c_out": out_channels,
        "kernel": kernel,
        "stride": strides,
        "dilation": dilations,
        "pads": pads,
    }


def _list_conv_calls(node: TimingNode) -> NodeKernelCalls | Sequence[KernelCall]:
    """List one `conv2d` call, or `depthwise` if each channel is a group and has one output.

    A dilated convolution is unmodeled work bounded by that same call.
    """
    outputs, groups = node.inputs[1].shape[0], node.get("group", 1)
    is_depthwise = groups == node.inputs[0].shape[1] == outputs > 1
    call = KernelCall(
        "depthwise" if is_depthwise else "conv2d", _get_window_arguments(node, outputs)
    )
    if set(call.arguments["dilation"]) == {1}:
        return [call]
    moved_bytes = node.inputs[0].size_bytes + node.outputs[0].size_bytes
    dilated = UnmodeledCalls("a dilated convolution", moved_bytes, (call,))
    return NodeKernelCalls(unmodeled=(dilated,))


def _list_conv_transpose_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List one `deconv` call for a transposed convolution; its pads are those of the ONNX node."""
    arguments = _get_window_arguments(node, node.inputs[1].shape[1] * node.get("group", 1))
    return [KernelCall("deconv", {**arguments, "pads_are": "torch"})]


def _list_linear_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List the calls of a LinearInt: transpose of the rows, product, transpose of the result.

    Weights of 4 bits are stored with an even row length.
    """
    *batch, length = node.inputs[0].shape
    rows, outputs = math.prod(batch), node.inputs[1].shape[0]
    weight_bits, out_bits = node.get("parameter_bits", 8), node.outputs[0].bits
    stored_length = length + length % 2 if weight_bits == 4 else length
    return [
        _transpose_call(rows, length, 8),
        _matmul_call(outputs, stored_length, rows, weight_bits, 8, out_bits),
        _transpose_call(outputs, rows, out_bits),
    ]


def _list_bmm_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List one matrix product [rows, length] x [length, columns], repeated for each batch item."""
    *batch, rows, length = node.inputs[0].shape
    columns = node.inputs[1].shape[-1]
    bits = node.inputs[0].bits, node.inputs[1].bits, node.outputs[0].bits
    return [_matmul_call(rows, length, columns, *bits, count=math.prod(batch))]


def _list_max_pool_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List one `maxpool` call on all channels, repeated for each batch item."""
    batch, channels = node.inputs[0].shape[:2]
    arguments = {**_get_window_arguments(node, channels), "dilation": [1, 1]}
    return [KernelCall("maxpool", arguments, batch)]


def _list_average_pool_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List the calls of an AvgPool2dInt: sum the windows, divide unless the area is 2^n, rescale.

    A window over the whole input is summed by a matrix product with ones, others by `avgpool`
    calls.
    """
    _, channels, h, w = node.inputs[0].shape
    kernel, output = list(node.get("kernel_shape", ())), node.outputs[0]
    if kernel == [h, w]:
        calls = [_memset_call(h * w, 8), _matmul_call(channels, h * w, 1, 8, 8, 32)]
    else:
        calls = _list_average_window_calls(node)
    area = math.prod(kernel)
    if area & (area - 1):  # the sum is not divided by a shift
        calls += [
            _memset_call(output.element_count, 32),
            _vector_call("div", output.element_count, 32, 32),
        ]
    return [*calls, _vector_call("scale", output.element_count, 32, output.bits)]


def _list_average_window_calls(node: TimingNode) -> list[KernelCall]:
    """List the `avgpool` calls that sum windows: one, or one per slice of up to 8 channels.

    Channels are sliced if the aligned input has more than `_MAX_UNSPLIT_POOL_BYTES`; slices of
    equal size are one entry with a count.
    """
    _, channels, h, w = node.inputs[0].shape
    window = {**_get_window_arguments(node, channels), "dilation": [1, 1]}
    width_align = 8 << int(math.log2(window["stride"][1]))
    stored_bytes = round_up(channels, 8) * h * round_up(w, width_align)
    slices = [channels]
    if stored_bytes > _MAX_UNSPLIT_POOL_BYTES:
        slices = [min(8, channels - start) for start in range(0, channels, 8)]
    counts = {slice_channels: slices.count(slice_channels) for slice_channels in slices}
    return [
        KernelCall("avgpool", {**window, "c_in": slice_channels, "c_out": slice_channels}, count)
        for slice_channels, count in counts.items()
    ]


def _make_activation_lister(kernel: str) -> Callable[[TimingNode], Sequence[KernelCall]]:
    """Return a function that lists one call of `kernel` on all elements of a node's input."""

    def list_calls(node: TimingNode) -> Sequence[KernelCall]:
        """List one call of the enclosing `kernel` on all elements of the input of `node`."""
        source = node.inputs[0]
        return [_vector_call(kernel, source.element_count, source.bits, node.outputs[0].bits)]

    return list_calls


def _list_sigmoid_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List the calls of an iqSigmoid: two rescalings to 32 bits and the sigmoid."""
    n, in_bits, out_bits = node.inputs[0].element_count, node.inputs[0].bits, node.outputs[0].bits
    return [
        _vector_call("scale", n, in_bits, 32),
        _vector_call("scale", n, 32, 32),
        _vector_call("sigmoid", n, 32, out_bits),
    ]


def _list_tanh_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List the calls of an iqTanh: a rescaling, unless the scale is 2^27, and the tanh."""
    n = node.inputs[0].element_count
    calls = [_vector_call("tanh", n, 32, node.outputs[0].bits)]
    if node.scale("scale_x", node.inputs[0]) != _NATIVE_TANH_SCALE:
        calls.insert(0, _vector_call("scale", n, 32, 32))
    return calls


def _list_softmax_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List the calls of a SoftmaxInt: two rescalings to 32 bits, and a softmax per row.

    For an 8-bit output also a rescaling per row. A row has all elements from the axis on; a
    nonnegative `axis` is read as 1.
    """
    shape, axis = node.inputs[0].shape, node.get("axis", -1)
    axis = len(shape) + axis if axis < 0 else 1
    rows, length, n = math.prod(shape[:axis]), math.prod(shape[axis:]), math.prod(shape)
    in_bits, out_bits = node.inputs[0].bits, node.outputs[0].bits
    calls = [
        _vector_call("scale", n, in_bits, 32),
        _vector_call("scale", n, 32, 32),
        _vector_call("softmax", length, 32, 32, rows),
    ]
    if out_bits == 8:
        calls.append(_vector_call("scale", length, 32, out_bits, rows))
    return calls


def _list_layer_norm_calls(node: TimingNode) -> NodeKernelCalls:
    """List the vector calls of a LayerNormInt, most of them once per row.

    The square roots run on the host and are unmodeled work without a bound.
    """
    # A row has as many elements as the weight: the last axis, or the last two.
    length = math.prod(node.inputs[1].shape)
    rows = math.prod(node.inputs[0].shape) // max(length, 1)
    in_bits, out_bits = node.inputs[0].bits, node.outputs[0].bits
    weight_bits = node.get("parameter_bits", 8)

    def row_call(kernel: str, in_bits: int, out_bits: int, count: int = 1) -> KernelCall:
        """Make `count` calls per row of vector kernel `kernel` on a row's elements."""
        return _vector_call(kernel, length, in_bits, out_bits, count * rows)

    calls = [
        _copy_call(length),
        KernelCall("memcpy_from_psram", {"n": 4 * length}),
        row_call("sum", in_bits, 32),
        row_call("mul", in_bits, 32),
        row_call("sum", 32, 32),
        row_call("scale", weight_bits, 32, 2),
        row_call("scale", 32, 32, 2),
        row_call("offset", 32, 32),
        row_call("mul", 32, 32),
        row_call("add", 32, out_bits),
        _copy_call(length, rows),
        KernelCall("share_to_share", {"n": length}, rows),
    ]
    return NodeKernelCalls(tuple(calls), (UnmodeledCalls("square roots on the host", 0),))


def _list_batch_norm_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List the calls of a BatchNorm2dInt: a rescaling to 32 bits and an addition of the offset.

    Both once per batch item and channel.
    """
    batch, channels, *size = node.inputs[0].shape
    count, n = batch * channels, math.prod(size)
    in_bits, out_bits = node.inputs[0].bits, node.outputs[0].bits
    return [
        _vector_call("scale", n, in_bits, 32, count),
        _vector_call("offset", n, 32, out_bits, count),
    ]


def _list_lstm_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List the calls of an LSTMInt on one sequence, those of a step repeated for each time step.

    The four constants are copied from external memory first unless the node's constants are
    prefetched. The cell state has 32 bits if the third output has, otherwise 16.
    """
    inputs, units = node.inputs[1].shape[1], node.inputs[2].shape[1]
    steps = node.inputs[0].shape[1]
    has_32bit_state = len(node.outputs) > 2 and node.outputs[2].bits == 32
    state_bytes = 4 if has_32bit_state else 2
    calls = []
    if not node.prefetch:
        constant_bytes = 4 * units * inputs, 16 * units, 4 * units * units, 16 * units
        calls += [KernelCall("memcpy_from_psram", {"n": size}) for size in constant_bytes]

    def step_call(
        kernel: str, n: int, count: int, out_bits: int = 32, in_bits: int = 32
    ) -> KernelCall:
        """Make `count` calls per time step of vector kernel `kernel` on `n` elements."""
        return _vector_call(kernel, n, in_bits, out_bits, count * steps)

    return [
        *calls,
        _memset_call(state_bytes * units, 8),
        _memset_call(units, 8),
        _matmul_call(4 * units, inputs, 1, 8, 8, 32, steps),
        _matmul_call(4 * units, units, 1, 8, 8, 32, steps),
        step_call("scale", 4 * units, 2),
        step_call("add", 4 * units, 1),
        step_call("sigmoid", units, 3),
        step_call("tanh", units, 2),
        step_call("scale", units, 6),
        step_call("mul", units, 2),
        step_call("add", units, 1),
        step_call("mul", units, 1, 8),
        step_call("scale", units, 1, 8, 8),
    ]


def _make_add_lister(kernel: str) -> Callable[[TimingNode], Sequence[KernelCall]]:
    """Return a function that lists the calls of an iqAdd or iqSub, whose kernel is `kernel`."""

    def list_calls(node: TimingNode) -> Sequence[KernelCall]:
        """List a rescaling for each operand whose scale is not the output's, then the kernel."""
        output = node.outputs[0]
        n, out_scale = output.element_count, node.scale("scale_o", output)
        calls = [
            _vector_call("scale", n, operand.bits, output.bits)
            for name, operand in zip(("scale_x", "scale_y"), node.inputs, strict=False)
            if node.scale(name, operand) != out_scale
        ]
        return [*calls, _vector_call(kernel, n, output.bits, output.bits)]

    return list_calls


def _list_mul_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List the calls of an iqMul of 8-bit operands, by the size of the smaller one.

    One element: a rescaling; equal sizes: one `mul`; otherwise (also [N, C, 1, 1]) the smaller one
    is first expanded by a matrix product with ones.
    """
    large, small = node.inputs[0], node.inputs[1]
    if large.element_count < small.element_count:
        large, small = small, large
    is_per_channel = len(small.shape) == 4 and small.shape[2:] == (1, 1)
    if small.element_count == 1 and not is_per_channel:
        return [_vector_call("scale", large.element_count, 8, 8)]
    multiply = _vector_call("mul", large.element_count, 8, 8)
    if small.element_count == large.element_count and not is_per_channel:
        return [multiply]
    area = large.element_count // small.element_count
    return [_memset_call(area, 8), _matmul_call(small.element_count, 1, area, 8, 8, 8), multiply]


def _get_axis(node: TimingNode, default: int = 1) -> int:
    """Return the axis of `node`, counted from the front.

    It is the field `axis`, otherwise the attribute `axis`, `dim` or `default`.
    """
    axis = node.axis if node.axis is not None else node.get("axis", node.get("dim", default))
    return int(axis) % len(node.inputs[0].shape)


def _list_concat_calls(node: TimingNode) -> NodeKernelCalls:
    """List the copies of the inputs of an iqCat.

    An input whose scale is not the output's is rescaled per row instead. Rows are the positions
    before the axis; several rows of equal scale are a strided copy: unmodeled work bounded by one
    copy per row.
    """
    axis, out_scale = _get_axis(node), node.scale("scale_o", node.outputs[0])
    calls, unmodeled = [], []
    for index, operand in enumerate(node.inputs):
        rows, length = math.prod(operand.shape[:axis]), math.prod(operand.shape[axis:])
        if node.scale(f"scale_x_{index}", operand) != out_scale:
            calls.append(_vector_call("scale", length, 8, 8, rows))
        elif rows == 1:
            calls.append(_copy_call(length))
        else:
            bounding_calls = (_copy_call(length, rows),)
            unmodeled.append(UnmodeledCalls("a strided copy", operand.size_bytes, bounding_calls))
    return NodeKernelCalls(tuple(calls), tuple(unmodeled))


def _list_slice_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List the copies of a Slice or Split: per output, one per position before the axis.

    Each copies the bytes from the axis on.
    """
    axis = _get_axis(node)
    calls = []
    for output in node.outputs:
        rows = math.prod(output.shape[:axis])
        calls.append(_copy_call(output.size_bytes // max(rows, 1), rows))
    return calls


def _list_gather_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List one copy of a row for each index and each position before the axis."""
    axis, shape = _get_axis(node, default=0), node.inputs[0].shape
    row_bytes = math.prod(shape[axis + 1 :]) * node.inputs[0].bits // 8
    return [_copy_call(row_bytes, math.prod(shape[:axis]) * node.inputs[1].element_count)]


def _list_transpose_calls(node: TimingNode) -> NodeKernelCalls | Sequence[KernelCall]:
    """List the transpose of a matrix.

    A Transpose of three axes or more is unmodeled work bounded by a copy per row; any rank but 2
    counts as such.
    """
    source = node.inputs[0]
    if len(source.shape) == 2:
        return [_transpose_call(*source.shape, source.bits)]
    row_bytes = source.shape[-1] * source.bits // 8
    row_copies = _copy_call(row_bytes, source.element_count // source.shape[-1])
    transpose = UnmodeledCalls(
        "a transpose of three axes or more", source.size_bytes, (row_copies,)
    )
    return NodeKernelCalls(unmodeled=(transpose,))


def _list_pad_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List the calls of an iqPad: transpose to channels last, fill output, copy, transpose back."""
    channels, *size = node.inputs[0].shape[1:]
    n, padded_n = math.prod(size), math.prod(node.outputs[0].shape[2:])
    return [
        _transpose_call(channels, n, 8),
        _memset_call(node.outputs[0].element_count, 8),
        _copy_call(channels, n),
        _transpose_call(padded_n, channels, 8),
    ]


def _list_argmax_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List one `max` call, repeated for each row of the last axis."""
    shape = node.inputs[0].shape
    length = shape[-1]
    return [_vector_call("max", length, 8, 32, math.prod(shape) // length)]


def _list_requant_calls(node: TimingNode) -> NodeKernelCalls | Sequence[KernelCall]:
    """List one rescaling for a Requant from 8 to 8 bits.

    Other widths are unmodeled work on the host, without a bound.
    """
    source, output = node.inputs[0], node.outputs[0]
    if source.bits == output.bits == 8:
        return [_vector_call("scale", source.element_count, 8, 8)]
    moved_bytes = source.size_bytes + output.size_bytes
    conversion = UnmodeledCalls("a conversion of the width on the host", moved_bytes)
    return NodeKernelCalls(unmodeled=(conversion,))


def _list_no_calls(node: TimingNode) -> Sequence[KernelCall]:
    """Return no calls, for operators that only rename their data."""
    return []


def _list_flatten_calls(node: TimingNode) -> Sequence[KernelCall]:
    """List one copy of the whole input, for a Flatten."""
    return [_copy_call(node.inputs[0].size_bytes)]


_CALL_LISTERS: Mapping[str, Callable[[TimingNode], NodeKernelCalls | Sequence[KernelCall]]] = (
    MappingProxyType(
        {
            CONV2D.name: _list_conv_calls,
            CONV1D.name: _list_conv_calls,
            CONV_TRANSPOSE2D.name: _list_conv_transpose_calls,
            LINEAR.name: _list_linear_calls,
            BMM.name: _list_bmm_calls,
            "BMMInt": _list_bmm_calls,
            "MaxPool": _list_max_pool_calls,
            AVG_POOL2D.name: _list_average_pool_calls,
            "Relu": _make_activation_lister("relu"),
            "Prelu": _make_activation_lister("prelu"),
            "Clip": _make_activation_lister("relux"),
            SIGMOID.name: _list_sigmoid_calls,
            TANH.name: _list_tanh_calls,
            SOFTMAX.name: _list_softmax_calls,
            LAYER_NORM.name: _list_layer_norm_calls,
            BATCH_NORM2D.name: _list_batch_norm_calls,
            "BatchNormInt": _list_batch_norm_calls,
            LSTM.name: _list_lstm_calls,
            "iqAdd": _make_add_lister("add"),
            "iqSub": _make_add_lister("sub"),
            "iqMul": _list_mul_calls,
            CONCAT.name: _list_concat_calls,
            "Slice": _list_slice_calls,
            "Split": _list_slice_calls,
            "Gather": _list_gather_calls,
            "Transpose": _list_transpose_calls,
            PAD.name: _list_pad_calls,
            "ArgMax": _list_argmax_calls,
            REQUANT.name: _list_requant_calls,
            "Reshape": _list_no_calls,
            "Squeeze": _list_no_calls,
            "Unsqueeze": _list_no_calls,
            "Flatten": _list_flatten_calls,
        }
    )
)
