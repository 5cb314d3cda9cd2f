"""Work areas: the bytes a node needs beside its tensors, as the packer plans them.

One table of rules per chip.
A rule takes a `Node` (step, tensors, places) and returns bytes; an operator without a rule needs
none.
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
from ..options import PSRAM, SHARE
from ..packer_graph import PackerGraph, PackerStep, PackerTensor
from ..window import round_up

__all__ = ["PlacedStep", "WORK_AREA_RULES", "get_work_area"]


class PlacedStep(NamedTuple):
    """A step with its tensors and their places."""

    step: PackerStep
    inputs: tuple[PackerTensor, ...]
    outputs: tuple[PackerTensor, ...]
    places: Mapping[str, str]

    @classmethod
    def of(cls, net: PackerGraph, step: PackerStep, places: Mapping[str, str]) -> PlacedStep:
        """Look the tensors up."""
        tensors = net.tensors
        return cls(
            step,
            tuple([tensors[n] for n in step.inputs]),
            tuple([tensors[n] for n in step.outputs]),
            places,
        )

    @property
    def x(self) -> PackerTensor:
        """Return the first input."""
        return self.inputs[0]

    @property
    def y(self) -> PackerTensor:
        """Return the first output."""
        return self.outputs[0]

    def is_input_in_psram(self, index: int = 0) -> bool:
        """Whether an input lies in PSRAM."""
        return self.places.get(self.inputs[index].name, SHARE) == PSRAM

    @property
    def is_output_in_psram(self) -> bool:
        """Whether the output lies in PSRAM."""
        return self.places.get(self.y.name, SHARE) == PSRAM


WorkAreaRule = Callable[[PlacedStep], int]
_MAX_CHUNK_BYTES = 65536


# ---- convolutions ------------------------------------------------------------------------------------------------


def _conv_row(node: PlacedStep, align: int) -> int:
    _, channels, _, width = node.x.shape
    return round_up(channels, align) * round_up(width, 8 * node.step.get("strides", [1, 1])[1])


def _depthwise(node: PlacedStep) -> bool:
    return int(node.step.get("group", 1)) > 1


def _conv_arcs(node: PlacedStep) -> int:
    return node.y.planned_bytes if node.is_output_in_psram else 0


def _conv_venusa(node: PlacedStep) -> int:
    if not node.is_output_in_psram:
        return 0
    if _conv_row(node, 8) * node.x.shape[2] <= _MAX_CHUNK_BYTES:
        return node.y.planned_bytes
    deep = _depthwise(node)
    limit, row = (32768, _conv_row(node, 4)) if deep else (_MAX_CHUNK_BYTES, _conv_row(node, 8))
    kernel, stride = node.inputs[1].shape[2], node.step.get("strides", [1, 1])[0]
    reach = kernel if deep else (kernel - 1) * node.step.get("dilations", [1, 1])[0] + 1
    _, channels, height, width = node.y.shape
    rows = max((limit // row - reach + stride) // stride, 1)
    count = math.ceil(height / rows)
    return channels * max(rows, height - (count - 1) * rows) * width


def _conv_venus(node: PlacedStep) -> int:
    _, channels, height, width = node.x.shape
    source, result = math.prod(node.x.shape[1:]), math.prod(node.y.shape[1:])
    row = _conv_row(node, 8)
    if row * height <= _MAX_CHUNK_BYTES:
        return (source if node.is_input_in_psram() else 0) + (
            result if node.is_output_in_psram else 0
        )
    deep = _depthwise(node)
    if not deep and height * width < _MAX_CHUNK_BYTES:
        return 0
    kernel, stride, out = (
        node.inputs[1].shape[2],
        node.step.get("strides", [1, 1])[0],
        node.y.shape[2],
    )
    rows = height
    for count in range(1, out + 1):
        rows = out * stride // count + kernel - stride
        if out % count == 0 and row * rows <= _MAX_CHUNK_BYTES:
            break
    part = channels * rows * width
    return part + result if deep else max(part, result)


def _deconv_venusa(node: PlacedStep) -> int:
    return min(_MAX_CHUNK_BYTES, node.y.elements) if node.is_input_in_psram(1) else 0


# ---- products ----------------------------------------------------------------------------------------------------


def _get_matmul_shape(node: PlacedStep) -> tuple[int, int, int]:
    """Return (M, N, L): M rows of N to L."""
    columns = node.x.shape[-1]
    return node.x.elements // columns, columns, node.y.shape[-1]


def _linear_arcs(node: PlacedStep) -> int:
    return node.x.planned_bytes + node.y.planned_bytes


def _linear_venusa(node: PlacedStep) -> int:
    m, n, _ = _get_matmul_shape(node)
    if round_up(m, 4) * round_up(n, 8) > _MAX_CHUNK_BYTES:
        return max(node.x.planned_bytes, node.y.planned_bytes)
    return node.x.planned_bytes


def _get_rows_per_pass(m: int, n: int) -> int:
    """Return the rows of equal parts of m rows that the left side of a product takes at once."""
    count = 1
    while round_up(math.ceil(m / count), 4) * round_up(n, 8) > _MAX_CHUNK_BYTES and count < m:
        count += 1
    return math.ceil(m / count)


def _get_staging_bytes(node: PlacedStep, m: int, n: int, columns: int) -> int:
    part = _get_rows_per_pass(m, n)
    if node.is_input_in_psram() and node.is_output_in_psram:
        return part * max(n, columns) + 4 * part * columns
    if node.is_input_in_psram():
        return part * n
    return part * columns if node.is_output_in_psram else 0


def _linear_venus(node: PlacedStep) -> int:
    m, n, columns = _get_matmul_shape(node)
    return (4 * node.y.planned_bytes if len(node.inputs) > 2 else 0) + _get_staging_bytes(
        node, m, n, columns
    )


def _bmm_venus(node: PlacedStep) -> int:
    m, n, columns = node.x.shape[-2], node.x.shape[-1], node.y.shape[-1]
    return _get_staging_bytes(node, m, n, columns) + (
        n * columns if node.is_input_in_psram(1) else 0
    )


# ---- pools -------------------------------------------------------------------------------------------------------


def _get_padded_map_bytes(node: PlacedStep) -> int:
    _, channels, height, width = node.x.shape
    return (
        round_up(channels, 8)
        * height
        * round_up(width, 8 * (node.step.get("strides") or [1, 1])[1])
    )


def _max_pool_venus(node: PlacedStep) -> int:
    if _get_padded_map_bytes(node) > _MAX_CHUNK_BYTES:
        return max(61440, node.y.planned_bytes)
    return node.y.planned_bytes if node.is_output_in_psram else 0


def _max_pool_arcs_venusa(node: PlacedStep) -> int:
    return min(node.y.planned_bytes, _MAX_CHUNK_BYTES) if node.is_output_in_psram else 0


def _make_average_pool_rule(power_of_two_bytes: int) -> WorkAreaRule:
    def rule(node: PlacedStep) -> int:
        kernel = node.step.get("kernel_shape")
        area = math.prod(kernel)
        power = area & (area - 1) == 0
        _, channels, height, width = node.x.shape
        if list(kernel) == [height, width]:
            return max(height * width, 4 * channels) + (0 if power else 4 * channels)
        deep = 8 if _get_padded_map_bytes(node) > _MAX_CHUNK_BYTES else channels
        return deep * math.prod(node.y.shape[2:]) * (power_of_two_bytes if power else 8)

    return rule


# ---- rows and elements -------------------------------------------------------------------------------------------


def _layer_norm(node: PlacedStep) -> int:
    row = node.inputs[1].elements
    return max(4 * row, 2 * row + 8)


def _batch_norm(node: PlacedStep) -> int:
    return 4 * math.prod(node.x.shape[2:])


def _lstm_venus(node: PlacedStep) -> int:
    return 32 * int(node.step.get("hidden_size"))


def _lstm_arcs_venusa(node: PlacedStep) -> int:
    return _lstm_venus(node) + sum(t.planned_bytes for t in node.inputs if t.is_constant)


def _glu(node: PlacedStep) -> int:
    axis, shape = int(node.step.get("dim", -1)), node.x.shape
    return 7 * shape[axis] * (math.prod(shape[:axis]) if axis >= 0 else 1)


def _softmax_axis(node: PlacedStep) -> int:
    axis = node.step.get("axis", node.step.get("dim", -1))
    return int(axis) % len(node.x.shape)


def _softmax_venus(node: PlacedStep) -> int:
    return min(2 * node.x.shape[_softmax_axis(node)], _MAX_CHUNK_BYTES)


def _softmax_arcs(node: PlacedStep) -> int:
    return min(
        4 * node.x.planned_bytes + 4 * math.prod(node.x.shape[_softmax_axis(node) :]),
        _MAX_CHUNK_BYTES,
    )


def _softmax_venusa(node: PlacedStep) -> int:
    return min(
        6 * node.x.elements + 4 * math.prod(node.x.shape[_softmax_axis(node) :]), _MAX_CHUNK_BYTES
    )


def _relu(node: PlacedStep) -> int:
    return min(
        (node.x.planned_bytes if node.is_input_in_psram() else 0)
        + (node.y.planned_bytes if node.is_output_in_psram else 0),
        _MAX_CHUNK_BYTES,
    )


def _transpose(node: PlacedStep) -> int:
    need = (node.x.planned_bytes if node.is_input_in_psram() else 0) + (
        node.y.planned_bytes
        if node.is_output_in_psram and node.x.planned_bytes >= _MAX_CHUNK_BYTES
        else 0
    )
    return min(need, _MAX_CHUNK_BYTES)


def _needs_operand_copies(node: PlacedStep) -> list[bool]:
    """Return for both operands whether a copy is made.

    At another scale than the output's, or in PSRAM.
    """
    scales = [node.step.get("scale_x"), node.step.get("scale_y")]
    return [
        scale != node.step.get("scale_o") or node.is_input_in_psram(i)
        for i, scale in enumerate(scales)
    ]


def _add(node: PlacedStep) -> int:
    needs = _needs_operand_copies(node)
    if node.is_output_in_psram:
        return max(node.x.planned_bytes, sum(needs) * node.x.planned_bytes)
    return node.x.planned_bytes if all(needs) else 0


def _add_venusa(node: PlacedStep) -> int:
    return min(_add(node), _MAX_CHUNK_BYTES)


def _sub(node: PlacedStep) -> int:
    return sum(_needs_operand_copies(node)) * node.x.planned_bytes


def _mul(node: PlacedStep) -> int:
    left, right = node.x.shape, node.inputs[1].shape
    if len(left) == 4 and len(right) == 4 and right[2:] == (1, 1) and left != right:
        return left[2] * left[3] * (left[1] + 1)
    return 0


def _copy(node: PlacedStep) -> int:
    return node.x.planned_bytes


def _make_scaled_input_rule(factor: int) -> WorkAreaRule:
    return lambda node: factor * node.x.planned_bytes


def _cat_venusa(node: PlacedStep) -> int:
    return min(_MAX_CHUNK_BYTES, node.y.elements) if node.is_output_in_psram else 0


def _cat(node: PlacedStep) -> int:
    scale = node.step.get("scale_o")
    rescaled = any(node.step.get(f"scale_x_{i}", scale) != scale for i in range(len(node.inputs)))
    if not rescaled or not (
        node.is_output_in_psram or any(node.is_input_in_psram(i) for i in range(len(node.inputs)))
    ):
        return 0
    axis = int(node.step.get("dim", node.step.get("axis", 1))) % len(node.y.shape)
    return math.prod(node.y.shape[axis:])


# ---- the tables --------------------------------------------------------------------------------------------------

_COMMON: Mapping[str, WorkAreaRule] = {
    LAYER_NORM.name: _layer_norm,
    BATCH_NORM2D.name: _batch_norm,
    GLU.name: _glu,
    "Relu": _relu,
    "Prelu": _relu,
    "Transpose": _transpose,
    ADD.name: _add,
    SUB.name: _sub,
    MUL.name: _mul,
    PAD.name: _copy,
    CONCAT.name: _cat,
}

#: Packing.areas -> operator -> rule.
WORK_AREA_RULES: Mapping[str, Mapping[str, WorkAreaRule]] = MappingProxyType(
    {
        "venus": {
            **_COMMON,
            CONV2D.name: _conv_venus,
            LINEAR.name: _linear_venus,
            BMM.name: _bmm_venus,
            "MaxPool": _max_pool_venus,
            AVG_POOL2D.name: _make_average_pool_rule(2),
            LSTM.name: _lstm_venus,
            SOFTMAX.name: _softmax_venus,
            SIGMOID.name: _make_scaled_input_rule(2),
        },
        "arcs": {
            **_COMMON,
            CONV2D.name: _conv_arcs,
            LINEAR.name: _linear_arcs,
            "MaxPool": _max_pool_arcs_venusa,
            AVG_POOL2D.name: _make_average_pool_rule(4),
            LSTM.name: _lstm_arcs_venusa,
            SOFTMAX.name: _softmax_arcs,
            SIGMOID.name: _make_scaled_input_rule(4),
        },
        "venusA": {
            **_COMMON,
            CONV2D.name: _conv_venusa,
            CONV_TRANSPOSE2D.name: _deconv_venusa,
            LINEAR.name: _linear_venusa,
            "MaxPool": _max_pool_arcs_venusa,
            AVG_POOL2D.name: _make_average_pool_rule(4),
            LSTM.name: _lstm_arcs_venusa,
            SOFTMAX.name: _softmax_venusa,
            ADD.name: _add_venusa,
            SIGMOID.name: _make_scaled_input_rule(4),
            CONCAT.name: _cat_venusa,
        },
    }
)

#: Operators whose work area lies where their input does; of others it lies in shared memory.
INPUT_PLACED_OPERATORS = (AVG_POOL2D.name, PAD.name, MUL.name)


def get_work_area(node: PlacedStep, table: str) -> tuple[str, int]:
    """Return (place, bytes) of the work area of a node; 0 bytes for none."""
    rule = WORK_AREA_RULES[table].get(node.step.op)
    place = PSRAM if node.step.op in INPUT_PLACED_OPERATORS and node.is_input_in_psram() else SHARE
    return place, 0 if rule is None else rule(node)
