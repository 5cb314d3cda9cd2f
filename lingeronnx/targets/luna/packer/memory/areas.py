"""Work areas: the bytes a node needs beside its tensors, as the packer plans them. One table of rules per chip.

A rule takes a `Node` (step, tensors, places) and returns bytes; an operator without a rule needs none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from .....formats import (
    ADD,
    AVG_POOL2D,
    BATCH_NORM2D,
    BMM,
    CONCAT,
    CONV2D,
    CONV_TRANSPOSE2D,
    GLU,
    LAYER_NORM,
    LINEAR,
    LSTM,
    MUL,
    PAD,
    SIGMOID,
    SOFTMAX,
    SUB,
)
from ..net import Net, NetStep, NetTensor
from ..options import PSRAM, SHARE
from ..window import rounded

__all__ = ["AREAS", "AreaNode", "area"]


class AreaNode(NamedTuple):
    """A step with its tensors and their places."""

    step: NetStep
    inputs: tuple[NetTensor, ...]
    outputs: tuple[NetTensor, ...]
    places: Mapping[str, str]

    @classmethod
    def of(cls, net: Net, step: NetStep, places: Mapping[str, str]) -> AreaNode:
        """Look the tensors up."""
        tensors = net.tensors
        return cls(step, tuple([tensors[n] for n in step.inputs]), tuple([tensors[n] for n in step.outputs]), places)

    @property
    def x(self) -> NetTensor:
        """Return the first input."""
        return self.inputs[0]

    @property
    def y(self) -> NetTensor:
        """Return the first output."""
        return self.outputs[0]

    def outside(self, index: int = 0) -> bool:
        """Whether an input lies in PSRAM."""
        return self.places.get(self.inputs[index].name, SHARE) == PSRAM

    @property
    def away(self) -> bool:
        """Whether the output lies in PSRAM."""
        return self.places.get(self.y.name, SHARE) == PSRAM


Rule = Callable[[AreaNode], int]
_HALF = 65536


# ---- convolutions ------------------------------------------------------------------------------------------------


def _conv_row(node: AreaNode, align: int) -> int:
    _, channels, _, width = node.x.shape
    return rounded(channels, align) * rounded(width, 8 * node.step.get("strides", [1, 1])[1])


def _depthwise(node: AreaNode) -> bool:
    return int(node.step.get("group", 1)) > 1


def _conv_arcs(node: AreaNode) -> int:
    return node.y.planned if node.away else 0


def _conv_venusa(node: AreaNode) -> int:
    if not node.away:
        return 0
    if _conv_row(node, 8) * node.x.shape[2] <= _HALF:
        return node.y.planned
    deep = _depthwise(node)
    limit, row = (32768, _conv_row(node, 4)) if deep else (_HALF, _conv_row(node, 8))
    kernel, stride = node.inputs[1].shape[2], node.step.get("strides", [1, 1])[0]
    reach = kernel if deep else (kernel - 1) * node.step.get("dilations", [1, 1])[0] + 1
    _, channels, height, width = node.y.shape
    rows = max((limit // row - reach + stride) // stride, 1)
    count = math.ceil(height / rows)
    return channels * max(rows, height - (count - 1) * rows) * width


def _conv_venus(node: AreaNode) -> int:
    _, channels, height, width = node.x.shape
    source, result = math.prod(node.x.shape[1:]), math.prod(node.y.shape[1:])
    row = _conv_row(node, 8)
    if row * height <= _HALF:
        return (source if node.outside() else 0) + (result if node.away else 0)
    deep = _depthwise(node)
    if not deep and height * width < _HALF:
        return 0
    kernel, stride, out = node.inputs[1].shape[2], node.step.get("strides", [1, 1])[0], node.y.shape[2]
    rows = height
    for count in range(1, out + 1):
        rows = out * stride // count + kernel - stride
        if out % count == 0 and row * rows <= _HALF:
            break
    part = channels * rows * width
    return part + result if deep else max(part, result)


def _deconv_venusa(node: AreaNode) -> int:
    return min(_HALF, node.y.elements) if node.outside(1) else 0


# ---- products ----------------------------------------------------------------------------------------------------


def _rows(node: AreaNode) -> tuple[int, int, int]:
    """Return (M, N, L): M rows of N to L."""
    columns = node.x.shape[-1]
    return node.x.elements // columns, columns, node.y.shape[-1]


def _linear_arcs(node: AreaNode) -> int:
    return node.x.planned + node.y.planned


def _linear_venusa(node: AreaNode) -> int:
    m, n, _ = _rows(node)
    if rounded(m, 4) * rounded(n, 8) > _HALF:
        return max(node.x.planned, node.y.planned)
    return node.x.planned


def _parted(m: int, n: int) -> int:
    """Return the rows of equal parts of m rows that the left side of a product takes at once."""
    count = 1
    while rounded(math.ceil(m / count), 4) * rounded(n, 8) > _HALF and count < m:
        count += 1
    return math.ceil(m / count)


def _moved(node: AreaNode, m: int, n: int, columns: int) -> int:
    part = _parted(m, n)
    if node.outside() and node.away:
        return part * max(n, columns) + 4 * part * columns
    if node.outside():
        return part * n
    return part * columns if node.away else 0


def _linear_venus(node: AreaNode) -> int:
    m, n, columns = _rows(node)
    return (4 * node.y.planned if len(node.inputs) > 2 else 0) + _moved(node, m, n, columns)


def _bmm_venus(node: AreaNode) -> int:
    m, n, columns = node.x.shape[-2], node.x.shape[-1], node.y.shape[-1]
    return _moved(node, m, n, columns) + (n * columns if node.outside(1) else 0)


# ---- pools -------------------------------------------------------------------------------------------------------


def _map(node: AreaNode) -> int:
    _, channels, height, width = node.x.shape
    return rounded(channels, 8) * height * rounded(width, 8 * (node.step.get("strides") or [1, 1])[1])


def _max_venus(node: AreaNode) -> int:
    if _map(node) > _HALF:
        return max(61440, node.y.planned)
    return node.y.planned if node.away else 0


def _max_later(node: AreaNode) -> int:
    return min(node.y.planned, _HALF) if node.away else 0


def _average(scaled: int) -> Rule:
    def rule(node: AreaNode) -> int:
        kernel = node.step.get("kernel_shape")
        area = math.prod(kernel)
        power = area & (area - 1) == 0
        _, channels, height, width = node.x.shape
        if list(kernel) == [height, width]:
            return max(height * width, 4 * channels) + (0 if power else 4 * channels)
        deep = 8 if _map(node) > _HALF else channels
        return deep * math.prod(node.y.shape[2:]) * (scaled if power else 8)

    return rule


# ---- rows and elements -------------------------------------------------------------------------------------------


def _layer_norm(node: AreaNode) -> int:
    row = node.inputs[1].elements
    return max(4 * row, 2 * row + 8)


def _batch_norm(node: AreaNode) -> int:
    return 4 * math.prod(node.x.shape[2:])


def _lstm_venus(node: AreaNode) -> int:
    return 32 * int(node.step.get("hidden_size"))


def _lstm_later(node: AreaNode) -> int:
    return _lstm_venus(node) + sum(t.planned for t in node.inputs if t.constant)


def _glu(node: AreaNode) -> int:
    axis, shape = int(node.step.get("dim", -1)), node.x.shape
    return 7 * shape[axis] * (math.prod(shape[:axis]) if axis >= 0 else 1)


def _softmax_axis(node: AreaNode) -> int:
    axis = node.step.get("axis", node.step.get("dim", -1))
    return int(axis) % len(node.x.shape)


def _softmax_venus(node: AreaNode) -> int:
    return min(2 * node.x.shape[_softmax_axis(node)], _HALF)


def _softmax_arcs(node: AreaNode) -> int:
    return min(4 * node.x.planned + 4 * math.prod(node.x.shape[_softmax_axis(node) :]), _HALF)


def _softmax_venusa(node: AreaNode) -> int:
    return min(6 * node.x.elements + 4 * math.prod(node.x.shape[_softmax_axis(node) :]), _HALF)


def _relu(node: AreaNode) -> int:
    return min((node.x.planned if node.outside() else 0) + (node.y.planned if node.away else 0), _HALF)


def _transpose(node: AreaNode) -> int:
    need = (node.x.planned if node.outside() else 0) + (node.y.planned if node.away and node.x.planned >= _HALF else 0)
    return min(need, _HALF)


def _sides(node: AreaNode) -> list[bool]:
    """Return for both operands whether a copy is made: at another scale than the output's, or in PSRAM."""
    scales = [node.step.get("scale_x"), node.step.get("scale_y")]
    return [scale != node.step.get("scale_o") or node.outside(i) for i, scale in enumerate(scales)]


def _add(node: AreaNode) -> int:
    needs = _sides(node)
    if node.away:
        return max(node.x.planned, sum(needs) * node.x.planned)
    return node.x.planned if all(needs) else 0


def _add_venusa(node: AreaNode) -> int:
    return min(_add(node), _HALF)


def _sub(node: AreaNode) -> int:
    return sum(_sides(node)) * node.x.planned


def _mul(node: AreaNode) -> int:
    left, right = node.x.shape, node.inputs[1].shape
    if len(left) == 4 and len(right) == 4 and right[2:] == (1, 1) and left != right:
        return left[2] * left[3] * (left[1] + 1)
    return 0


def _copy(node: AreaNode) -> int:
    return node.x.planned


def _times(factor: int) -> Rule:
    return lambda node: factor * node.x.planned


def _cat_venusa(node: AreaNode) -> int:
    return min(_HALF, node.y.elements) if node.away else 0


def _cat(node: AreaNode) -> int:
    scale = node.step.get("scale_o")
    rescaled = any(node.step.get(f"scale_x_{i}", scale) != scale for i in range(len(node.inputs)))
    if not rescaled or not (node.away or any(node.outside(i) for i in range(len(node.inputs)))):
        return 0
    axis = int(node.step.get("dim", node.step.get("axis", 1))) % len(node.y.shape)
    return math.prod(node.y.shape[axis:])


# ---- the tables --------------------------------------------------------------------------------------------------

_COMMON: Mapping[str, Rule] = {
    LAYER_NORM.name: _layer_norm, BATCH_NORM2D.name: _batch_norm, GLU.name: _glu, "Relu": _relu, "Prelu": _relu,
    "Transpose": _transpose, ADD.name: _add, SUB.name: _sub, MUL.name: _mul, PAD.name: _copy, CONCAT.name: _cat,
}  # fmt: skip

#: Packing.areas -> operator -> rule.
AREAS: Mapping[str, Mapping[str, Rule]] = MappingProxyType(
    {
        "venus": {
            **_COMMON,
            CONV2D.name: _conv_venus,
            LINEAR.name: _linear_venus,
            BMM.name: _bmm_venus,
            "MaxPool": _max_venus,
            AVG_POOL2D.name: _average(2),
            LSTM.name: _lstm_venus,
            SOFTMAX.name: _softmax_venus,
            SIGMOID.name: _times(2),
        },
        "arcs": {
            **_COMMON,
            CONV2D.name: _conv_arcs,
            LINEAR.name: _linear_arcs,
            "MaxPool": _max_later,
            AVG_POOL2D.name: _average(4),
            LSTM.name: _lstm_later,
            SOFTMAX.name: _softmax_arcs,
            SIGMOID.name: _times(4),
        },
        "venusA": {
            **_COMMON,
            CONV2D.name: _conv_venusa,
            CONV_TRANSPOSE2D.name: _deconv_venusa,
            LINEAR.name: _linear_venusa,
            "MaxPool": _max_later,
            AVG_POOL2D.name: _average(4),
            LSTM.name: _lstm_later,
            SOFTMAX.name: _softmax_venusa,
            ADD.name: _add_venusa,
            SIGMOID.name: _times(4),
            CONCAT.name: _cat_venusa,
        },
    }
)

#: Operators whose work area lies where their input does; of others it lies in shared memory.
FOLLOWS = (AVG_POOL2D.name, PAD.name, MUL.name)


def area(node: AreaNode, table: str) -> tuple[str, int]:
    """Return (place, bytes) of the work area of a node; 0 bytes for none."""
    rule = AREAS[table].get(node.step.op)
    place = PSRAM if node.step.op in FOLLOWS and node.outside() else SHARE
    return place, 0 if rule is None else rule(node)
