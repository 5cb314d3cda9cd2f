"""Work areas: scratch memory that a node needs besides its tensors, as the packer plans it.

There is one table of rules per chip. A rule returns the bytes for a `PlacedStep`; an operator
without a rule needs no work area. The formulas are the packer's and were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ....common.arithmetic import round_up
from ....operators.integer_ops import (
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
from ...packer_profile import PackerProfile
from ..options import PSRAM, SHARE
from ..packer_graph import PackerGraph, PackerStep, PackerTensor

__all__ = [
    "MAX_DEPTHWISE_CHUNK_BYTES",
    "PlacedStep",
    "WORK_AREA_FORMS",
    "WORK_AREA_RULES",
    "get_work_area",
    "get_work_area_rule",
]


class PlacedStep(NamedTuple):
    """A step together with its tensors and the memory of each tensor by name."""

    step: PackerStep
    inputs: tuple[PackerTensor, ...]
    outputs: tuple[PackerTensor, ...]
    placements: Mapping[str, str]

    @classmethod
    def from_step(
        cls, net: PackerGraph, step: PackerStep, placements: Mapping[str, str]
    ) -> PlacedStep:
        """Combine `step` with its tensors of `net`; `placements` maps tensor names to memories."""
        tensors = net.tensors
        return cls(
            step,
            tuple([tensors[n] for n in step.inputs]),
            tuple([tensors[n] for n in step.outputs]),
            placements,
        )

    @property
    def x(self) -> PackerTensor:
        """The tensor of the first input."""
        return self.inputs[0]

    @property
    def y(self) -> PackerTensor:
        """The tensor of the first output."""
        return self.outputs[0]

    def is_input_in_psram(self, index: int = 0) -> bool:
        """Whether input `index` is in PSRAM; a tensor without a placement is not."""
        return self.placements.get(self.inputs[index].name, SHARE) == PSRAM

    @property
    def is_output_in_psram(self) -> bool:
        """Whether the first output is in PSRAM; a tensor without a placement is not."""
        return self.placements.get(self.y.name, SHARE) == PSRAM


#: Returns the bytes of the work area of a node.
WorkAreaRule = Callable[[PlacedStep], int]

#: Maximum bytes that the executors process at once.
_MAX_CHUNK_BYTES = 65536
#: The same for a depthwise convolution on venusA.
MAX_DEPTHWISE_CHUNK_BYTES = 32768


# ---- convolutions --------------------------------------------------------------------------------


def _get_padded_row_bytes(node: PlacedStep, align: int) -> int:
    """Return the bytes of one row of a convolution's input [N, C, H, W].

    C is rounded up to `align`, W to 8 times the stride.
    """
    _, channels, _, width = node.x.shape
    return round_up(channels, align) * round_up(width, 8 * node.step.get("strides", [1, 1])[1])


def _is_depthwise(node: PlacedStep) -> bool:
    """Whether a convolution has several groups.

    Only depthwise ones have, since the packer splits all others before.
    """
    return int(node.step.get("group", 1)) > 1


def _get_conv_area_arcs(node: PlacedStep) -> int:
    """Return the work area of a Conv2dInt on arcs: the bytes of an output in PSRAM, else 0."""
    return node.y.planned_bytes if node.is_output_in_psram else 0


def _get_conv_area_venusa(node: PlacedStep) -> int:
    """Return the work area of a Conv2dInt on venusA: its largest output tile for PSRAM, else 0.

    The tile is the whole output unless the padded input exceeds `_MAX_CHUNK_BYTES`, of a depthwise
    convolution `MAX_DEPTHWISE_CHUNK_BYTES`.
    """
    if not node.is_output_in_psram:
        return 0
    is_depthwise = _is_depthwise(node)
    max_tile_bytes = MAX_DEPTHWISE_CHUNK_BYTES if is_depthwise else _MAX_CHUNK_BYTES
    if _get_padded_row_bytes(node, 8) * node.x.shape[2] <= max_tile_bytes:
        return node.y.planned_bytes
    reach = node.inputs[1].shape[2]
    if not is_depthwise:
        reach = (reach - 1) * node.step.get("dilations", [1, 1])[0] + 1
    row_bytes = _get_padded_row_bytes(node, 4 if is_depthwise else 8)
    stride = node.step.get("strides", [1, 1])[0]
    _, channels, height, width = node.y.shape
    tile_rows = max((max_tile_bytes // row_bytes - reach + stride) // stride, 1)
    tile_count = math.ceil(height / tile_rows)
    last_tile_rows = height - (tile_count - 1) * tile_rows
    return int(channels * max(tile_rows, last_tile_rows) * width)


def _get_conv_area_venus(node: PlacedStep) -> int:
    """Return the work area in bytes of a Conv2dInt on venus.

    Up to `_MAX_CHUNK_BYTES` of padded input it holds the input and output that are in PSRAM. A
    larger map is cut into the fewest equal tiles of rows within that size, and needs the larger of
    input tile and output, depthwise their sum; 0 if it has fewer than `_MAX_CHUNK_BYTES` pixels and
    is not depthwise.
    """
    _, channels, height, width = node.x.shape
    input_bytes, output_bytes = math.prod(node.x.shape[1:]), math.prod(node.y.shape[1:])
    row_bytes = _get_padded_row_bytes(node, 8)
    if row_bytes * height <= _MAX_CHUNK_BYTES:
        staged_input_bytes = input_bytes if node.is_input_in_psram() else 0
        staged_output_bytes = output_bytes if node.is_output_in_psram else 0
        return staged_input_bytes + staged_output_bytes
    is_depthwise = _is_depthwise(node)
    if not is_depthwise and height * width < _MAX_CHUNK_BYTES:
        return 0
    kernel_height = node.inputs[1].shape[2]
    stride = node.step.get("strides", [1, 1])[0]
    output_height = node.y.shape[2]
    tile_rows = height
    for tile_count in range(1, output_height + 1):
        tile_rows = output_height * stride // tile_count + kernel_height - stride
        if output_height % tile_count == 0 and row_bytes * tile_rows <= _MAX_CHUNK_BYTES:
            break
    tile_bytes = channels * tile_rows * width
    return tile_bytes + output_bytes if is_depthwise else max(tile_bytes, output_bytes)


def _get_conv_transpose_area_venusa(node: PlacedStep) -> int:
    """Return the work area of a ConvTranspose2dInt on venusA.

    It has the output's elements, at most 65536 bytes, if the weight is in PSRAM, else 0 bytes.
    """
    return min(_MAX_CHUNK_BYTES, node.y.elements) if node.is_input_in_psram(1) else 0


# ---- products ------------------------------------------------------------------------------------


def _get_matmul_shape(node: PlacedStep) -> tuple[int, int, int]:
    """Return (M, N, L) of the product [M, N] x [N, L] that a LinearInt computes.

    M is the product of all axes of the input but the last.
    """
    columns = node.x.shape[-1]
    return node.x.elements // columns, columns, node.y.shape[-1]


def _get_linear_area_arcs(node: PlacedStep) -> int:
    """Return the work area of a LinearInt on arcs: the planned bytes of input and output."""
    return node.x.planned_bytes + node.y.planned_bytes


def _get_linear_area_venusa(node: PlacedStep) -> int:
    """Return the work area of a LinearInt on venusA: the planned bytes of the input.

    It is the larger of input and output if the input, with rows rounded up to 4 and columns to 8,
    exceeds `_MAX_CHUNK_BYTES`.
    """
    m, n, _ = _get_matmul_shape(node)
    if round_up(m, 4) * round_up(n, 8) > _MAX_CHUNK_BYTES:
        return max(node.x.planned_bytes, node.y.planned_bytes)
    return node.x.planned_bytes


def _get_rows_per_pass(m: int, n: int) -> int:
    """Return the number of rows of a left operand [m, n] that the chip processes at once.

    Rows are divided into as few passes as possible such that one has at most `_MAX_CHUNK_BYTES`,
    with rows rounded up to 4 and n to 8; at least one row.
    """
    pass_count = 1
    while (
        round_up(math.ceil(m / pass_count), 4) * round_up(n, 8) > _MAX_CHUNK_BYTES
        and pass_count < m
    ):
        pass_count += 1
    return math.ceil(m / pass_count)


def _get_staging_bytes(node: PlacedStep, m: int, n: int, columns: int) -> int:
    """Return the bytes that stage rows of a product [m, n] x [n, columns] with data in PSRAM.

    For the rows of one pass: those of the input or the output that is in PSRAM; if both are, the
    larger of both and 32-bit sums; 0 if neither is.
    """
    rows = _get_rows_per_pass(m, n)
    if node.is_input_in_psram() and node.is_output_in_psram:
        return rows * max(n, columns) + 4 * rows * columns
    if node.is_input_in_psram():
        return rows * n
    return rows * columns if node.is_output_in_psram else 0


def _get_linear_area_venus(node: PlacedStep) -> int:
    """Return the work area of a LinearInt on venus, in bytes.

    It holds 4 bytes per output byte if there is a bias, and the staged rows of an input or output
    in PSRAM.
    """
    m, n, columns = _get_matmul_shape(node)
    has_bias = len(node.inputs) > 2
    accumulator_bytes = 4 * node.y.planned_bytes if has_bias else 0
    return accumulator_bytes + _get_staging_bytes(node, m, n, columns)


def _get_bmm_area_venus(node: PlacedStep) -> int:
    """Return the work area of a BmmInt on venus, in bytes.

    It holds the staged rows of input 0 or the output in PSRAM, and the right operand if that is in
    PSRAM.
    """
    m, n, columns = node.x.shape[-2], node.x.shape[-1], node.y.shape[-1]
    right_operand_bytes = n * columns if node.is_input_in_psram(1) else 0
    return _get_staging_bytes(node, m, n, columns) + right_operand_bytes


# ---- pools ---------------------------------------------------------------------------------------


def _get_padded_map_bytes(node: PlacedStep) -> int:
    """Return the bytes of a pool's input [N, C, H, W].

    C is rounded up to 8, W to 8 times the stride.
    """
    _, channels, height, width = node.x.shape
    return (
        round_up(channels, 8)
        * height
        * round_up(width, 8 * (node.step.get("strides") or [1, 1])[1])
    )


def _get_max_pool_area_venus(node: PlacedStep) -> int:
    """Return the work area of a MaxPool on venus: the bytes of an output in PSRAM, else 0.

    If the padded input exceeds `_MAX_CHUNK_BYTES`: the output wherever it is, at least 61440.
    """
    if _get_padded_map_bytes(node) > _MAX_CHUNK_BYTES:
        return max(61440, node.y.planned_bytes)
    return node.y.planned_bytes if node.is_output_in_psram else 0


def _get_max_pool_area(node: PlacedStep) -> int:
    """Return the work area of a MaxPool on arcs and venusA.

    It has the bytes of an output in PSRAM, at most 65536, else 0.
    """
    return min(node.y.planned_bytes, _MAX_CHUNK_BYTES) if node.is_output_in_psram else 0


def _make_average_pool_rule(bytes_per_sum: int) -> WorkAreaRule:
    """Make the function that computes the work area of AvgPool2dInt on a chip.

    `bytes_per_sum` is the size of an intermediate sum if the window area is a power of two; other
    areas take 8 bytes.
    """

    def get_average_pool_area(node: PlacedStep) -> int:
        """Return the work area of an AvgPool2dInt in bytes.

        A global average of C channels needs max(H * W, 4 * C), and 4 * C more unless H * W is a
        power of two. Another window needs its output elements (of 8 channels for a padded map above
        `_MAX_CHUNK_BYTES`) times `bytes_per_sum` if its area is a power of two, else times 8.
        """
        kernel = node.step.get("kernel_shape")
        area = math.prod(kernel)
        is_power_of_two = area & (area - 1) == 0
        _, channels, height, width = node.x.shape
        if list(kernel) == [height, width]:
            quotient_bytes = 0 if is_power_of_two else 4 * channels
            return max(height * width, 4 * channels) + quotient_bytes
        chunk_channels = 8 if _get_padded_map_bytes(node) > _MAX_CHUNK_BYTES else channels
        sum_bytes = bytes_per_sum if is_power_of_two else 8
        return chunk_channels * math.prod(node.y.shape[2:]) * sum_bytes

    return get_average_pool_area


# ---- rows and elements ---------------------------------------------------------------------------


def _get_layer_norm_area(node: PlacedStep) -> int:
    """Return the work area of a LayerNormInt with rows of n elements: max(4 n, 2 n + 8) bytes."""
    row_length = node.inputs[1].elements
    return max(4 * row_length, 2 * row_length + 8)


def _get_batch_norm_area(node: PlacedStep) -> int:
    """Return the work area of a BatchNorm2dInt: 4 bytes per position of the map."""
    return 4 * math.prod(node.x.shape[2:])


def _get_lstm_area_venus(node: PlacedStep) -> int:
    """Return the work area of an LSTMInt on venus: 32 bytes per hidden unit."""
    return 32 * int(node.step.get("hidden_size"))


def _get_lstm_area(node: PlacedStep) -> int:
    """Return the work area of an LSTMInt on arcs and venusA.

    It has 32 bytes per hidden unit, and the planned bytes of all constants.
    """
    return _get_lstm_area_venus(node) + sum(t.planned_bytes for t in node.inputs if t.is_constant)


def _get_glu_area(node: PlacedStep) -> int:
    """Return the work area of a GluInt: 7 bytes per element of the gated axis `dim`.

    For `dim` >= 0 this is multiplied by the sizes of all axes before it.
    """
    axis, shape = int(node.step.get("dim", -1)), node.x.shape
    return 7 * shape[axis] * (math.prod(shape[:axis]) if axis >= 0 else 1)


def _get_softmax_axis(node: PlacedStep) -> int:
    """Return the axis of a SoftmaxInt (`axis`, else `dim`, else -1) as a nonnegative index."""
    axis = node.step.get("axis", node.step.get("dim", -1))
    return int(axis) % len(node.x.shape)


def _get_softmax_area_venus(node: PlacedStep) -> int:
    """Return the work area of a SoftmaxInt on venus: 2 bytes per row element, at most 65536."""
    return min(2 * node.x.shape[_get_softmax_axis(node)], _MAX_CHUNK_BYTES)


def _get_softmax_area_arcs(node: PlacedStep) -> int:
    """Return the work area of a SoftmaxInt on arcs, at most 65536 bytes.

    It has 4 bytes per planned input byte and 4 per element from the softmax axis on.
    """
    return min(
        4 * node.x.planned_bytes + 4 * math.prod(node.x.shape[_get_softmax_axis(node) :]),
        _MAX_CHUNK_BYTES,
    )


def _get_softmax_area_venusa(node: PlacedStep) -> int:
    """Return the work area of a SoftmaxInt on venusA, at most 65536 bytes.

    It has 6 bytes per input element and 4 per element from the softmax axis on.
    """
    return min(
        6 * node.x.elements + 4 * math.prod(node.x.shape[_get_softmax_axis(node) :]),
        _MAX_CHUNK_BYTES,
    )


def _get_relu_area(node: PlacedStep) -> int:
    """Return the work area of a Relu or Prelu, at most 65536 bytes.

    It has the planned bytes of input and output, each only if in PSRAM.
    """
    input_bytes = node.x.planned_bytes if node.is_input_in_psram() else 0
    output_bytes = node.y.planned_bytes if node.is_output_in_psram else 0
    return min(input_bytes + output_bytes, _MAX_CHUNK_BYTES)


def _get_transpose_area(node: PlacedStep) -> int:
    """Return the work area of a Transpose, at most 65536 bytes.

    It has the planned bytes of an input in PSRAM, and of an output in PSRAM if the input has 65536
    bytes or more.
    """
    input_bytes = node.x.planned_bytes if node.is_input_in_psram() else 0
    stages_output = node.is_output_in_psram and node.x.planned_bytes >= _MAX_CHUNK_BYTES
    output_bytes = node.y.planned_bytes if stages_output else 0
    return min(input_bytes + output_bytes, _MAX_CHUNK_BYTES)


def _get_operand_copy_flags(node: PlacedStep) -> list[bool]:
    """Return for both operands of a sum or difference whether the executor copies them.

    It does if the operand is in PSRAM or its scale differs from `scale_o`.
    """
    scales = [node.step.get("scale_x"), node.step.get("scale_y")]
    return [
        scale != node.step.get("scale_o") or node.is_input_in_psram(i)
        for i, scale in enumerate(scales)
    ]


def _get_add_area(node: PlacedStep) -> int:
    """Return the work area of an iqAdd: copies of its operands, each as large as input 0.

    An operand is copied if it is in PSRAM or not at the output's scale. With the output in PSRAM
    there is room for all copies and at least one; else for one, and only if both are copied.
    """
    copy_flags = _get_operand_copy_flags(node)
    if node.is_output_in_psram:
        return max(node.x.planned_bytes, sum(copy_flags) * node.x.planned_bytes)
    return node.x.planned_bytes if all(copy_flags) else 0


def _get_add_area_venusa(node: PlacedStep) -> int:
    """Return the work area of an iqAdd on venusA: copies of operands, at most 65536 bytes."""
    return min(_get_add_area(node), _MAX_CHUNK_BYTES)


def _get_sub_area(node: PlacedStep) -> int:
    """Return the work area of an iqSub: the planned bytes of input 0 for each copied operand.

    An operand is copied if it is in PSRAM or not at the output's scale.
    """
    return sum(_get_operand_copy_flags(node)) * node.x.planned_bytes


def _get_mul_area(node: PlacedStep) -> int:
    """Return the work area of an iqMul whose second operand is per channel, [1, C, 1, 1].

    It has the bytes of the input [1, C, H, W] and one more channel; 0 for other shapes.
    """
    left, right = node.x.shape, node.inputs[1].shape
    if len(left) == 4 and len(right) == 4 and right[2:] == (1, 1) and left != right:
        return left[2] * left[3] * (left[1] + 1)
    return 0


def _get_copy_area(node: PlacedStep) -> int:
    """Return the work area of an iqPad: the planned bytes of its input."""
    return node.x.planned_bytes


def _make_scaled_input_rule(factor: int) -> WorkAreaRule:
    """Make the function that returns `factor` times the planned bytes of input 0 as work area."""
    return lambda node: factor * node.x.planned_bytes


def _get_concat_area_venusa(node: PlacedStep) -> int:
    """Return the work area of an iqCat on venusA: the elements of an output in PSRAM, else 0.

    At most 65536 bytes.
    """
    return min(_MAX_CHUNK_BYTES, node.y.elements) if node.is_output_in_psram else 0


def _get_concat_area(node: PlacedStep) -> int:
    """Return the work area of an iqCat: the product of its output's sizes from the joined axis on.

    It is 0 unless an input is rescaled and an input or the output is in PSRAM.
    """
    scale = node.step.get("scale_o")
    indices = range(len(node.inputs))
    is_rescaled = any(node.step.get(f"scale_x_{i}", scale) != scale for i in indices)
    uses_psram = node.is_output_in_psram or any(node.is_input_in_psram(i) for i in indices)
    if not is_rescaled or not uses_psram:
        return 0
    axis = int(node.step.get("dim", node.step.get("axis", 1))) % len(node.y.shape)
    return math.prod(node.y.shape[axis:])


# ---- the tables ----------------------------------------------------------------------------------

_COMMON_RULES: Mapping[str, WorkAreaRule] = {
    LAYER_NORM.name: _get_layer_norm_area,
    BATCH_NORM2D.name: _get_batch_norm_area,
    GLU.name: _get_glu_area,
    "Relu": _get_relu_area,
    "Prelu": _get_relu_area,
    "Transpose": _get_transpose_area,
    ADD.name: _get_add_area,
    SUB.name: _get_sub_area,
    MUL.name: _get_mul_area,
    PAD.name: _get_copy_area,
    CONCAT.name: _get_concat_area,
}

#: PackerProfile.work_area_table -> operator -> rule.
WORK_AREA_RULES: Mapping[str, Mapping[str, WorkAreaRule]] = MappingProxyType(
    {
        "venus": {
            **_COMMON_RULES,
            CONV2D.name: _get_conv_area_venus,
            LINEAR.name: _get_linear_area_venus,
            BMM.name: _get_bmm_area_venus,
            "MaxPool": _get_max_pool_area_venus,
            AVG_POOL2D.name: _make_average_pool_rule(2),
            LSTM.name: _get_lstm_area_venus,
            SOFTMAX.name: _get_softmax_area_venus,
            SIGMOID.name: _make_scaled_input_rule(2),
        },
        "arcs": {
            **_COMMON_RULES,
            CONV2D.name: _get_conv_area_arcs,
            LINEAR.name: _get_linear_area_arcs,
            "MaxPool": _get_max_pool_area,
            AVG_POOL2D.name: _make_average_pool_rule(4),
            LSTM.name: _get_lstm_area,
            SOFTMAX.name: _get_softmax_area_arcs,
            SIGMOID.name: _make_scaled_input_rule(4),
        },
        "venusA": {
            **_COMMON_RULES,
            CONV2D.name: _get_conv_area_venusa,
            CONV_TRANSPOSE2D.name: _get_conv_transpose_area_venusa,
            LINEAR.name: _get_linear_area_venusa,
            "MaxPool": _get_max_pool_area,
            AVG_POOL2D.name: _make_average_pool_rule(4),
            LSTM.name: _get_lstm_area,
            SOFTMAX.name: _get_softmax_area_venusa,
            ADD.name: _get_add_area_venusa,
            SIGMOID.name: _make_scaled_input_rule(4),
            CONCAT.name: _get_concat_area_venusa,
        },
    }
)


# ---- rules of later versions ---------------------------------------------------------------------


def _get_linear_area_by_output(node: PlacedStep) -> int:
    """Return the work area of a LinearInt: the larger of the planned bytes of input and output.

    Two operands of different widths are staged as well, in the larger one.
    """
    return max(node.x.planned_bytes, node.y.planned_bytes)


def _get_conv1d_area(node: PlacedStep) -> int:
    """Return the work area of a Conv1dInt: its output, unless the channels are a multiple of 4."""
    return 0 if node.y.shape[1] % 4 == 0 else node.y.planned_bytes


def _make_curve_rule(input_q: int, bytes_by_width: Mapping[int, int]) -> WorkAreaRule:
    """Make the function that computes the work area of a curve with inputs of several formats.

    Inputs with scale 2^`input_q` need none, others `bytes_by_width` per element, by their bytes.
    """

    def get_curve_area(node: PlacedStep) -> int:
        """Return the work area in bytes, in which the input is converted to the table's format."""
        if node.step.get("scale_x") == 2.0**input_q:
            return 0
        return bytes_by_width.get(node.x.width, 0) * node.x.elements

    return get_curve_area


def _get_gru_area_venus(node: PlacedStep) -> int:
    """Return the work area of a GRUInt on venus: 16 bytes per hidden unit, and all constants."""
    constant_bytes = sum(t.planned_bytes for t in node.inputs if t.is_constant)
    return 16 * int(node.step.get("hidden_size")) + constant_bytes


def _get_gru_area(node: PlacedStep) -> int:
    """Return the work area of a GRUInt on arcs and venusA: 32 bytes per hidden unit and sample."""
    samples = 1 if len(node.x.shape) < 3 else min(node.x.shape[:2])
    return 32 * int(node.step.get("hidden_size")) * samples


def _get_layer_norm_area_venus_q15(node: PlacedStep) -> int:
    """Return the work area of a LayerNormInt on venus: 8 T + 8, and copies of its constants.

    T is the length of a row. Constants in shared memory are not copied.
    """
    copied_bytes = sum(
        tensor.size_bytes for tensor in node.inputs[1:] if node.placements[tensor.name] != SHARE
    )
    return 8 * node.inputs[1].elements + 8 + copied_bytes


def _get_layer_norm_area_arcs_q15(node: PlacedStep) -> int:
    """Return the work area of a LayerNormInt on arcs: 14 T + 8, and T rounded up to 4.

    T is the length of a row.
    """
    row_length = node.inputs[1].elements
    return 14 * row_length + 8 + round_up(row_length, 4)


def _get_layer_norm_area_venusa_q15(node: PlacedStep) -> int:
    """Return the work area of a LayerNormInt on venusA: 8 T + 4, and twice T rounded up to 2.

    T is the length of a row.
    """
    row_length = node.inputs[1].elements
    return 8 * row_length + 4 + 2 * round_up(row_length, 2)


#: Name -> rule of a later version that replaces the table's, for `PackerProfile.work_areas`.
WORK_AREA_FORMS: Mapping[str, WorkAreaRule] = MappingProxyType(
    {
        "none": lambda node: 0,
        "input or output": _get_linear_area_by_output,
        "unaligned channels": _get_conv1d_area,
        "curve Q11": _make_curve_rule(11, {2: 2}),
        "curve Q27": _make_curve_rule(27, {1: 6, 2: 4, 4: 4}),
        "batch norm 1d": _get_batch_norm_area,
        "gru venus": _get_gru_area_venus,
        "gru": _get_gru_area,
        "layer norm venus Q15": _get_layer_norm_area_venus_q15,
        "layer norm arcs Q15": _get_layer_norm_area_arcs_q15,
        "layer norm venusA Q15": _get_layer_norm_area_venusa_q15,
    }
)

#: Operators whose work area is in the memory of their input; those of others are in shared memory.
INPUT_PLACED_OPERATORS = (AVG_POOL2D.name, PAD.name, MUL.name)


def get_work_area_rule(operator: str, profile: PackerProfile) -> WorkAreaRule | None:
    """Return the rule for work areas of `operator`; None if it needs none wherever its data are."""
    form = profile.work_areas.get(operator)
    if form is not None:
        return WORK_AREA_FORMS[form]
    return WORK_AREA_RULES[profile.work_area_table].get(operator)


def get_work_area(node: PlacedStep, profile: PackerProfile) -> tuple[str, int]:
    """Return (memory, bytes) of the work area of `node`; 0 bytes if it needs none.

    The memory is PSRAM only for AvgPool2dInt, iqPad and iqMul with their input there, else shared
    memory.
    """
    rule = get_work_area_rule(node.step.op, profile)
    follows_input = node.step.op in INPUT_PLACED_OPERATORS and node.is_input_in_psram()
    return PSRAM if follows_input else SHARE, 0 if rule is None else rule(node)
