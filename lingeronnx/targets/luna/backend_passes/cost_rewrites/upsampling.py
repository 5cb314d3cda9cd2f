"""Another form of an enlargement by copies.

A transposed convolution in place of an iqCat of single elements.
Where a map is enlarged k times, each element becomes a window of equal ones: a transposed
convolution of kernel and stride k that multiplies by 1. Every line becomes its own lines, so
channels can be seen as rows: eight channels, which the chip computes side by side, with all others
below them.
"""

from __future__ import annotations

import math

import numpy as np

from .....formats import CONCAT, CONV_TRANSPOSE2D, RESHAPE
from .....graph import ir
from ..node_builders import IDENTITY_WEIGHT, POINTWISE_CONV_ATTRIBUTES
from .data_movement import get_concat_axis
from .graph_editor import Matrix, RewriteEditor, element_count, static_shape
from .proposal import RewriteProposal

__all__ = ["propose_conv_transpose"]

_MAX_CHANNELS = 8


def propose_conv_transpose(sheet: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """An iqCat that repeats one tensor, line by line or element by element."""
    columns = _match_repeating_concat(node)
    if columns is None or _is_repeated_by_reader(node):
        return None
    times, lines = columns
    kernel, source = [times, 1], lines
    if lines.columns == 1:  # each element for itself
        kernel, source = [1, times], Matrix(lines.value, 1)
        before = _match_repeating_concat(ir.producer(_strip_reshapes(lines.value)))
        if before is not None:
            kernel, source = [before[0], times], before[1]
    scale, elements = sheet.find_scale(source.value), element_count(source.value)
    width = source.columns if kernel[0] > 1 else _choose_row_length(elements)
    channels = next(c for c in range(_MAX_CHANNELS, 0, -1) if elements // width % c == 0)
    over, square = (
        [1, channels, elements // width // channels, width],
        [channels, channels, *kernel],
    )
    result = [1, channels, over[2] * kernel[0], width * kernel[1]]
    window = {**POINTWISE_CONV_ATTRIBUTES, "kernel_shape": kernel, "strides": kernel}
    if scale is None or not sheet.is_layer_supported(
        CONV_TRANSPOSE2D.name, over, square, result, window
    ):
        return None
    attributes = {
        **window,
        "output_padding": [0, 0],
        "scale_x": scale,
        "scale_w": float(IDENTITY_WEIGHT),
        "scale_o": scale,
        **sheet.target.node_attributes.get("", {}),
    }
    cycles = sheet.costs.estimate_cycles(
        CONV_TRANSPOSE2D.name, [over, square, [channels]], result, **attributes
    )

    def write() -> None:
        weight = np.broadcast_to(
            (np.eye(channels) * IDENTITY_WEIGHT).astype(np.int8)[:, :, None, None], square
        )
        base = node.outputs[0].name
        held = [
            sheet.add_constant(f"{base}_weight", weight),
            sheet.add_constant(f"{base}_bias", np.zeros(channels, np.int32)),
        ]
        image = sheet.reshape(source.value, over, node)
        sheet.replace_output(
            sheet.add_operator(CONV_TRANSPOSE2D.name, [image, *held], attributes, result, node),
            node,
        )

    what = (
        f"a transposed convolution of {kernel[0]}x{kernel[1]}, in place of copies of single "
        "elements"
    )
    return RewriteProposal(what, cycles, write)


def _match_repeating_concat(node: ir.Node | None) -> tuple[int, Matrix] | None:
    """Return how often an iqCat repeats a tensor, all at one scale, and the lines that it repeats; None for others."""
    if node is None or node.op_type != CONCAT.name or len(set(node.inputs)) != 1:
        return None
    value, count = ir.require_input(node), len(node.inputs)
    shape = static_shape(value)
    if shape is None or any(
        ir.get_attr(node, f"scale_x_{i}") != ir.get_attr(node, "scale_o") for i in range(count)
    ):
        return None
    return count, Matrix(value, math.prod(shape[: get_concat_axis(node, len(shape))]))


def _is_repeated_by_reader(node: ir.Node) -> bool:
    """Whether nothing but an iqCat reads the result, which repeats its elements one by one and is written with it."""
    value, reader = node.outputs[0], ir.sole_consumer(node.outputs[0])
    while reader is not None and reader.op_type == RESHAPE.name:
        value = reader.outputs[0]
        reader = (
            next(iter(value.uses())).node if len({use.node for use in value.uses()}) == 1 else None
        )
    again = _match_repeating_concat(reader)
    return again is not None and again[1].columns == 1


def _strip_reshapes(value: ir.Value) -> ir.Value:
    """Return what a tensor was reshaped from."""
    while (maker := ir.producer(value)) is not None and maker.op_type == RESHAPE.name:
        value = ir.require_input(maker)
    return value


def _choose_row_length(elements: int) -> int:
    """Return the length of lines that elements are seen in, where any will do."""
    return next(width for width in range(min(elements, 64), 0, -1) if elements % width == 0)
