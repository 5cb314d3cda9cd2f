"""Which kernels the executor of arcs calls for a node, how often, and with which arguments.

Found by recording every call of the executor on 31 graphs. What calls kernels that have no price is
told with its bytes and a bound; it is never counted as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ....formats import (
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

_MAX_UNSPLIT_POOL_BYTES = (
    65536  # bytes of a pool's input above which it is computed 8 channels at a time
)
_NATIVE_TANH_SCALE = 2.0**27  # of an iqTanh that reads its input as it is


@dataclass(frozen=True)
class Operand:
    """A tensor: its shape, the bits of an element, its scale where it is known."""

    shape: tuple[int, ...]
    bits: int = 8
    scale: float | None = None

    @property
    def element_count(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""
        return self.element_count * self.bits // 8


@dataclass(frozen=True)
class TimingNode:
    """A node as the chip runs it: operator, attributes, inputs, outputs.

    axis : of a Slice, whose attributes may not say it. prefetch : whether the DMA
    brings its constants before it begins.
    """

    op: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Operand]
    outputs: Sequence[Operand]
    axis: int | None = None
    prefetch: bool = True

    def get(self, name: str, default: Any) -> Any:  # noqa: ANN401 - the caller knows the operator
        """Return attribute `name`, or `default`."""
        found = self.attributes.get(name)
        return default if found is None else found

    def scale(self, name: str, operand: Operand | None = None) -> float | None:
        """Return the scale in attribute `name`, else that of `operand`."""
        found = self.attributes.get(name)
        return found if found is not None or operand is None else operand.scale


@dataclass(frozen=True)
class UnmodeledCalls:
    """What a node does that has no price.

    What it is, how many bytes it moves, and calls that cost as much at most.
    """

    description: str
    moved_bytes: int
    bounding_calls: Sequence[KernelCall] = ()


@dataclass(frozen=True)
class NodeKernelCalls:
    """The calls of a node, and what has no price."""

    calls: Sequence[KernelCall] = ()
    unmodeled: Sequence[UnmodeledCalls] = ()


def list_kernel_calls(node: TimingNode) -> NodeKernelCalls:
    """Return what the executor calls for a node; all of an operator that is not known has no price.

    Nor has a convolution whose weights have another rank than its map: prices are asked before a
    graph is judged.
    """
    form, unknown = _CALL_BUILDERS.get(node.op), node.op
    if form in (_convolution, _conv_transpose) and len(node.inputs[1].shape) != len(
        node.inputs[0].shape
    ):
        form, unknown = None, "weights of another rank than the map"
    if form is None:
        moved = sum(o.size_bytes for o in (*node.inputs[:1], *node.outputs))
        return NodeKernelCalls((), (UnmodeledCalls(unknown, moved),))
    done = form(node)
    return (
        done
        if isinstance(done, NodeKernelCalls)
        else NodeKernelCalls(tuple(call for call in done if call.count > 0))
    )


def _vector_call(kernel: str, n: int, source: int, target: int, times: int = 1) -> KernelCall:
    return KernelCall(kernel, {"n": n, "in_bits": source, "out_bits": target}, times)


def _copy_call(size: int, times: int = 1) -> KernelCall:
    return KernelCall("memcpy", {"n": size}, times)


def _memset_call(n: int, bits: int) -> KernelCall:
    return KernelCall("memset", {"n": n, "in_bits": bits, "out_bits": bits})


def _matmul_call(
    m: int, k: int, n: int, left: int, right: int, out: int, times: int = 1
) -> KernelCall:
    widths = {"left_bits": left, "right_bits": right, "out_bits": out}
    return KernelCall("matmul", {"m": m, "k": k, "n": n, **widths}, times)


def _transpose_call(rows: int, columns: int, bits: int) -> KernelCall:
    return KernelCall(
        "transpose", {"rows": rows, "columns": columns, "bits": bits, "out_bits": bits}
    )


def _get_window_arguments(node: TimingNode, outputs: int) -> dict[str, Any]:
    """Return the arguments of a kernel that slides a window; a line is a map of height 1."""
    _, channels, *size = node.inputs[0].shape
    kernel = list(
        node.get("kernel_shape", node.inputs[1].shape[2:] if len(node.inputs) > 1 else ())
    )
    rank = len(size)
    strides, dilations = (
        list(node.get("strides", [1] * rank)),
        list(node.get("dilations", [1] * rank)),
    )
    pads = list(node.get("pads", [0] * 2 * rank))
    if rank == 1:
        size, kernel, strides, dilations = [1, *size], [1, *kernel], [1, *strides], [1, *dilations]
        pads = [0, pads[0], 0, pads[1]]
    return {
        "c_in": channels,
        "h": size[0],
        "w": size[1],
        "c_out": outputs,
        "kernel": kernel,
        "stride": strides,
        "dilation": dilations,
        "pads": pads,
    }


def _convolution(node: TimingNode) -> NodeKernelCalls | Sequence[KernelCall]:
    outputs, group = node.inputs[1].shape[0], node.get("group", 1)
    alone = group == node.inputs[0].shape[1] == outputs > 1
    call = KernelCall("depthwise" if alone else "conv2d", _get_window_arguments(node, outputs))
    if set(call.arguments["dilation"]) == {1}:
        return [call]
    return NodeKernelCalls(
        (),
        (
            UnmodeledCalls(
                "a dilated convolution",
                node.inputs[0].size_bytes + node.outputs[0].size_bytes,
                (call,),
            ),
        ),
    )


def _conv_transpose(node: TimingNode) -> Sequence[KernelCall]:
    given = _get_window_arguments(node, node.inputs[1].shape[1] * node.get("group", 1))
    return [KernelCall("deconv", {**given, "pads_are": "torch"})]


def _linear(node: TimingNode) -> Sequence[KernelCall]:
    *lines, length = node.inputs[0].shape
    rows, outputs, weight = math.prod(lines), node.inputs[1].shape[0], node.get("parameter_bits", 8)
    even = length + length % 2 if weight == 4 else length
    out = node.outputs[0].bits
    return [
        _transpose_call(rows, length, 8),
        _matmul_call(outputs, even, rows, weight, 8, out),
        _transpose_call(outputs, rows, out),
    ]


def _batched_matmul(node: TimingNode) -> Sequence[KernelCall]:
    *batch, rows, length = node.inputs[0].shape
    columns = node.inputs[1].shape[-1]
    widths = node.inputs[0].bits, node.inputs[1].bits, node.outputs[0].bits
    return [_matmul_call(rows, length, columns, *widths, times=math.prod(batch))]


def _max_pool(node: TimingNode) -> Sequence[KernelCall]:
    batch, channels = node.inputs[0].shape[:2]
    return [
        KernelCall("maxpool", {**_get_window_arguments(node, channels), "dilation": [1, 1]}, batch)
    ]


def _average_pool(node: TimingNode) -> Sequence[KernelCall]:
    batch, channels, h, w = node.inputs[0].shape
    kernel, out = list(node.get("kernel_shape", ())), node.outputs[0]
    if kernel == [h, w]:
        calls = [_memset_call(h * w, 8), _matmul_call(channels, h * w, 1, 8, 8, 32)]
    else:
        window = {**_get_window_arguments(node, channels), "dilation": [1, 1]}
        line = 8 << int(math.log2(window["stride"][1]))
        sizes = [channels]
        if -(-channels // 8) * 8 * h * -(-w // line) * line > _MAX_UNSPLIT_POOL_BYTES:
            sizes = [min(8, channels - start) for start in range(0, channels, 8)]
        counted = {size: sizes.count(size) for size in sizes}
        calls = [
            KernelCall("avgpool", {**window, "c_in": c, "c_out": c}, t) for c, t in counted.items()
        ]
    area = math.prod(kernel)
    if area & (area - 1):
        calls += [
            _memset_call(out.element_count, 32),
            _vector_call("div", out.element_count, 32, 32),
        ]
    return [*calls, _vector_call("scale", out.element_count, 32, out.bits)]


def _make_activation_builder(kernel: str) -> Callable[[TimingNode], Sequence[KernelCall]]:
    def form(node: TimingNode) -> Sequence[KernelCall]:
        return [
            _vector_call(
                kernel, node.inputs[0].element_count, node.inputs[0].bits, node.outputs[0].bits
            )
        ]

    return form


def _sigmoid(node: TimingNode) -> Sequence[KernelCall]:
    n, source, out = node.inputs[0].element_count, node.inputs[0].bits, node.outputs[0].bits
    return [
        _vector_call("scale", n, source, 32),
        _vector_call("scale", n, 32, 32),
        _vector_call("sigmoid", n, 32, out),
    ]


def _tanh(node: TimingNode) -> Sequence[KernelCall]:
    n, out = node.inputs[0].element_count, node.outputs[0].bits
    scaled = (
        []
        if node.scale("scale_x", node.inputs[0]) == _NATIVE_TANH_SCALE
        else [_vector_call("scale", n, 32, 32)]
    )
    return [*scaled, _vector_call("tanh", n, 32, out)]


def _softmax(node: TimingNode) -> Sequence[KernelCall]:
    shape, axis = node.inputs[0].shape, node.get("axis", -1)
    at = len(shape) + axis if axis < 0 else 1
    lines, length, n = math.prod(shape[:at]), math.prod(shape[at:]), math.prod(shape)
    source, out = node.inputs[0].bits, node.outputs[0].bits
    back = [_vector_call("scale", length, 32, out, lines)] if out == 8 else []
    return [
        _vector_call("scale", n, source, 32),
        _vector_call("scale", n, 32, 32),
        _vector_call("softmax", length, 32, 32, lines),
        *back,
    ]


def _layer_norm(node: TimingNode) -> NodeKernelCalls:
    length = math.prod(
        node.inputs[1].shape
    )  # a line is as long as there are factors: the last axis, or the last two
    lines = math.prod(node.inputs[0].shape) // max(length, 1)
    source, out = node.inputs[0].bits, node.outputs[0].bits
    weight = node.get("parameter_bits", 8)

    def line(kernel: str, read: int, written: int, times: int = 1) -> KernelCall:
        return _vector_call(kernel, length, read, written, times * lines)

    calls = [
        _copy_call(length),
        KernelCall("memcpy_from_psram", {"n": 4 * length}),
        line("sum", source, 32),
        line("mul", source, 32),
        line("sum", 32, 32),
        line("scale", weight, 32, 2),
        line("scale", 32, 32, 2),
        line("offset", 32, 32),
        line("mul", 32, 32),
        line("add", 32, out),
        _copy_call(length, lines),
        KernelCall("share_to_share", {"n": length}, lines),
    ]
    return NodeKernelCalls(tuple(calls), (UnmodeledCalls("square roots on the host", 0),))


def _batch_norm(node: TimingNode) -> Sequence[KernelCall]:
    batch, channels, *size = node.inputs[0].shape
    times, n = batch * channels, math.prod(size)
    source, out = node.inputs[0].bits, node.outputs[0].bits
    return [_vector_call("scale", n, source, 32, times), _vector_call("offset", n, 32, out, times)]


def _lstm(node: TimingNode) -> Sequence[KernelCall]:
    inputs, cells = node.inputs[1].shape[1], node.inputs[2].shape[1]
    steps = node.inputs[0].shape[1]
    state = 4 if len(node.outputs) > 2 and node.outputs[2].bits == 32 else 2
    calls = []
    if not node.prefetch:
        sizes = 4 * cells * inputs, 16 * cells, 4 * cells * cells, 16 * cells
        calls += [KernelCall("memcpy_from_psram", {"n": size}) for size in sizes]

    def vector(kernel: str, n: int, times: int, out: int = 32, source: int = 32) -> KernelCall:
        return _vector_call(kernel, n, source, out, times * steps)

    return [
        *calls,
        _memset_call(state * cells, 8),
        _memset_call(cells, 8),
        _matmul_call(4 * cells, inputs, 1, 8, 8, 32, steps),
        _matmul_call(4 * cells, cells, 1, 8, 8, 32, steps),
        vector("scale", 4 * cells, 2),
        vector("add", 4 * cells, 1),
        vector("sigmoid", cells, 3),
        vector("tanh", cells, 2),
        vector("scale", cells, 6),
        vector("mul", cells, 2),
        vector("add", cells, 1),
        vector("mul", cells, 1, 8),
        vector("scale", cells, 1, 8, 8),
    ]


def _make_add_builder(kernel: str) -> Callable[[TimingNode], Sequence[KernelCall]]:
    def form(node: TimingNode) -> Sequence[KernelCall]:
        n, bits, target = (
            node.outputs[0].element_count,
            node.outputs[0].bits,
            node.scale("scale_o", node.outputs[0]),
        )
        scales = [
            node.scale(name, operand)
            for name, operand in zip(("scale_x", "scale_y"), node.inputs, strict=False)
        ]
        widths = [operand.bits for operand in node.inputs]
        changed = [
            _vector_call("scale", n, w, bits)
            for w, scale in zip(widths, scales, strict=True)
            if scale != target
        ]
        return [*changed, _vector_call(kernel, n, bits, bits)]

    return form


def _mul(node: TimingNode) -> Sequence[KernelCall]:
    first, second = node.inputs[0], node.inputs[1]
    if first.element_count < second.element_count:
        first, second = second, first
    spread = len(second.shape) == 4 and second.shape[2:] == (1, 1)
    if second.element_count == 1 and not spread:
        return [_vector_call("scale", first.element_count, 8, 8)]
    if second.element_count < first.element_count or spread:
        area = first.element_count // second.element_count
        return [
            _memset_call(area, 8),
            _matmul_call(second.element_count, 1, area, 8, 8, 8),
            _vector_call("mul", first.element_count, 8, 8),
        ]
    return [_vector_call("mul", first.element_count, 8, 8)]


def _axis(node: TimingNode, default: int = 1) -> int:
    axis = node.axis if node.axis is not None else node.get("axis", node.get("dim", default))
    return int(axis) % len(node.inputs[0].shape)


def _concat(node: TimingNode) -> NodeKernelCalls:
    axis, target = _axis(node), node.scale("scale_o", node.outputs[0])
    calls, rest = [], []
    for index, operand in enumerate(node.inputs):
        lines, length = math.prod(operand.shape[:axis]), math.prod(operand.shape[axis:])
        if node.scale(f"scale_x_{index}", operand) != target:
            calls.append(_vector_call("scale", length, 8, 8, lines))
        elif lines == 1:
            calls.append(_copy_call(length))
        else:
            rest.append(
                UnmodeledCalls("a copy with gaps", operand.size_bytes, (_copy_call(length, lines),))
            )
    return NodeKernelCalls(tuple(calls), tuple(rest))


def _slice_or_split(node: TimingNode) -> Sequence[KernelCall]:
    axis = _axis(node)
    calls = []
    for out in node.outputs:
        lines = math.prod(out.shape[:axis])
        calls.append(_copy_call(out.size_bytes // max(lines, 1), lines))
    return calls


def _gather(node: TimingNode) -> Sequence[KernelCall]:
    axis, shape = _axis(node, default=0), node.inputs[0].shape
    behind = math.prod(shape[axis + 1 :]) * node.inputs[0].bits // 8
    return [_copy_call(behind, math.prod(shape[:axis]) * node.inputs[1].element_count)]


def _transpose(node: TimingNode) -> NodeKernelCalls | Sequence[KernelCall]:
    shape, operand = node.inputs[0].shape, node.inputs[0]
    if len(shape) == 2:
        return [_transpose_call(*shape, operand.bits)]
    line = shape[-1] * operand.bits // 8
    return NodeKernelCalls(
        (),
        (
            UnmodeledCalls(
                "a transpose of three axes or more",
                operand.size_bytes,
                (_copy_call(line, operand.element_count // shape[-1]),),
            ),
        ),
    )


def _pad(node: TimingNode) -> Sequence[KernelCall]:
    channels, *size = node.inputs[0].shape[1:]
    n, padded = math.prod(size), math.prod(node.outputs[0].shape[2:])
    return [
        _transpose_call(channels, n, 8),
        _memset_call(node.outputs[0].element_count, 8),
        _copy_call(channels, n),
        _transpose_call(padded, channels, 8),
    ]


def _argmax(node: TimingNode) -> Sequence[KernelCall]:
    shape = node.inputs[0].shape
    length = shape[-1]
    return [_vector_call("max", length, 8, 32, math.prod(shape) // length)]


def _requant(node: TimingNode) -> NodeKernelCalls | Sequence[KernelCall]:
    source, out = node.inputs[0], node.outputs[0]
    if source.bits == out.bits == 8:
        return [_vector_call("scale", source.element_count, 8, 8)]
    return NodeKernelCalls(
        (), (UnmodeledCalls("a change of width on the host", source.size_bytes + out.size_bytes),)
    )


def _in_place(node: TimingNode) -> Sequence[KernelCall]:
    return []


def _flatten(node: TimingNode) -> Sequence[KernelCall]:
    return [_copy_call(node.inputs[0].size_bytes)]


_CALL_BUILDERS: Mapping[str, Callable[[TimingNode], NodeKernelCalls | Sequence[KernelCall]]] = (
    MappingProxyType(
        {
            CONV2D.name: _convolution,
            CONV1D.name: _convolution,
            CONV_TRANSPOSE2D.name: _conv_transpose,
            LINEAR.name: _linear,
            BMM.name: _batched_matmul,
            "BMMInt": _batched_matmul,
            "MaxPool": _max_pool,
            AVG_POOL2D.name: _average_pool,
            "Relu": _make_activation_builder("relu"),
            "Prelu": _make_activation_builder("prelu"),
            "Clip": _make_activation_builder("relux"),
            SIGMOID.name: _sigmoid,
            TANH.name: _tanh,
            SOFTMAX.name: _softmax,
            LAYER_NORM.name: _layer_norm,
            BATCH_NORM2D.name: _batch_norm,
            "BatchNormInt": _batch_norm,
            LSTM.name: _lstm,
            "iqAdd": _make_add_builder("add"),
            "iqSub": _make_add_builder("sub"),
            "iqMul": _mul,
            CONCAT.name: _concat,
            "Slice": _slice_or_split,
            "Split": _slice_or_split,
            "Gather": _gather,
            "Transpose": _transpose,
            PAD.name: _pad,
            "ArgMax": _argmax,
            REQUANT.name: _requant,
            "Reshape": _in_place,
            "Squeeze": _in_place,
            "Unsqueeze": _in_place,
            "Flatten": _flatten,
        }
    )
)
