"""Replace nearest-neighbor upsampling by concatenation with a transposed convolution.

Where a map is enlarged k times, each element becomes a window of equal elements: a transposed
convolution with kernel and stride k that multiplies by 1. Each row results in its own rows, so
channels can be viewed as rows: eight channels, which the chip computes at a time, with all others
below them.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import ir
from ....operators.integer_ops import CONCAT, CONV_TRANSPOSE2D, RESHAPE
from ..node_builders import IDENTITY_WEIGHT, POINTWISE_CONV_ATTRIBUTES
from .data_movement import get_concat_axis
from .graph_editor import Matrix, RewriteEditor, element_count, static_shape
from .proposal import RewriteProposal

__all__ = ["propose_conv_transpose"]

_MAX_CHANNELS = 8


def propose_conv_transpose(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """Propose a transposed convolution for an iqCat that repeats one tensor by rows or elements.

    Its weights are identities and its stride is the kernel size. None for other nodes, if the scale
    is unknown, the chip does not support it, or the consumer repeats once more (both become one
    layer then).
    """
    pattern = _match_repeating_concat(node)
    if pattern is None or _is_repeated_by_consumer(node):
        return None
    kernel, source = _find_upsampling(*pattern)
    scale, elements = editor.find_scale(source.value), element_count(source.value)
    width = source.columns if kernel[0] > 1 else _choose_row_length(elements)
    channels = next(c for c in range(_MAX_CHANNELS, 0, -1) if elements // width % c == 0)
    image_shape = [1, channels, elements // width // channels, width]
    weight_shape = [channels, channels, *kernel]
    output_shape = [1, channels, image_shape[2] * kernel[0], width * kernel[1]]
    attributes = {**POINTWISE_CONV_ATTRIBUTES, "kernel_shape": kernel, "strides": kernel}
    if scale is None or not editor.is_layer_supported(
        CONV_TRANSPOSE2D.name, image_shape, weight_shape, output_shape, attributes
    ):
        return None
    attributes = {
        **attributes,
        "output_padding": [0, 0],
        "scale_x": scale,
        "scale_w": float(IDENTITY_WEIGHT),
        "scale_o": scale,
        **editor.target.node_attributes.get("", {}),
    }
    cycles = editor.costs.estimate_cycles(
        CONV_TRANSPOSE2D.name, [image_shape, weight_shape, [channels]], output_shape, **attributes
    )

    def write() -> None:
        """Replace `node` by a ConvTranspose2dInt with identity weights and zero biases, in place.

        The source is first reshaped to the image.
        """
        identity = (np.eye(channels) * IDENTITY_WEIGHT).astype(np.int8)
        weight = np.broadcast_to(identity[:, :, None, None], weight_shape)
        name = node.outputs[0].name
        constants = [
            editor.add_constant(f"{name}_weight", weight),
            editor.add_constant(f"{name}_bias", np.zeros(channels, np.int32)),
        ]
        image = editor.reshape(source.value, image_shape, node)
        result = editor.add_operator(
            CONV_TRANSPOSE2D.name, [image, *constants], attributes, output_shape, node
        )
        editor.replace_output(result, node)

    description = f"a {kernel[0]}x{kernel[1]} transposed convolution instead of elementwise copies"
    return RewriteProposal(description, cycles, write)


def _find_upsampling(count: int, rows: Matrix) -> tuple[list[int], Matrix]:
    """Return (kernel [height, width], source) of an upsampling whose last step repeats `rows`.

    Rows of several elements are repeated `count` times by a kernel [count, 1]; single elements by
    [1, count], or by [n, count] if they are themselves rows repeated n times.
    """
    if rows.columns > 1:
        return [count, 1], rows
    row_pattern = _match_repeating_concat(ir.producer(_strip_reshapes(rows.value)))
    if row_pattern is None:
        return [1, count], Matrix(rows.value, 1)
    row_count, source = row_pattern
    return [row_count, count], source


def _match_repeating_concat(node: ir.Node | None) -> tuple[int, Matrix] | None:
    """Match an iqCat that repeats one tensor at one scale.

    Returns the number of repetitions and the tensor as a matrix whose rows are repeated, or None
    for other nodes, differing scales and unknown shapes.
    """
    if node is None or node.op_type != CONCAT.name or len(set(node.inputs)) != 1:
        return None
    value, count = ir.require_input(node), len(node.inputs)
    shape = static_shape(value)
    if shape is None:
        return None
    scales = {ir.get_attr(node, f"scale_x_{index}") for index in range(count)}
    if scales != {ir.get_attr(node, "scale_o")}:
        return None
    return count, Matrix(value, math.prod(shape[: get_concat_axis(node, len(shape))]))


def _is_repeated_by_consumer(node: ir.Node) -> bool:
    """Whether the only consumer of `node`, Reshapes apart, is an iqCat that repeats elements."""
    value, consumer = node.outputs[0], ir.sole_consumer(node.outputs[0])
    while consumer is not None and consumer.op_type == RESHAPE.name:
        value = consumer.outputs[0]
        consumers = {use.node for use in value.uses()}
        consumer = next(iter(value.uses())).node if len(consumers) == 1 else None
    pattern = _match_repeating_concat(consumer)
    return pattern is not None and pattern[1].columns == 1


def _strip_reshapes(value: ir.Value) -> ir.Value:
    """Return the tensor before all Reshapes that lead to `value`; `value` itself without any."""
    while (producer := ir.producer(value)) is not None and producer.op_type == RESHAPE.name:
        value = ir.require_input(producer)
    return value


def _choose_row_length(elements: int) -> int:
    """Return the largest divisor of `elements` up to 64, as the width of an image."""
    return next(width for width in range(min(elements, 64), 0, -1) if elements % width == 0)
