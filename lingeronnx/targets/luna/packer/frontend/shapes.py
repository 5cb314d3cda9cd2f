"""Shape inference as the packer does it; shapes declared in the file are ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .....formats import (
    AVG_POOL2D,
    BMM,
    CONCAT,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    DEQUANT,
    GLU,
    GRU,
    LINEAR,
    LSTM,
    PAD,
    QUANT,
    REQUANT,
    SIGMOID,
    TANH,
)
from ..packer_graph import PackerStep, PackerTensor

__all__ = ["UnknownShapeError", "infer_outputs"]


class UnknownShapeError(ValueError):
    """A shape that cannot be inferred from the inputs; the message states the reason."""


Shape = tuple[int, ...]
Arrays = Mapping[str, np.ndarray]


def infer_outputs(
    step: PackerStep, inputs: Sequence[PackerTensor], arrays: Arrays
) -> list[PackerTensor]:
    """Infer the output tensors of a step: shape, element size and scale.

    Parameters
    ----------
    inputs
        The input tensors, in the order of `step.inputs`.
    arrays
        Values of the constants of the graph by name.

    Raises
    ------
    UnknownShapeError
        If a shape does not follow from the inputs, or the inputs do not match.
    """
    infer_shapes = _SHAPE_RULES.get(step.op, _infer_same)
    shapes = infer_shapes(step, [tensor.shape for tensor in inputs], arrays)
    width = _get_element_bytes(step, inputs)
    scale = step.get("scale_o")
    if scale is None and inputs:
        scale = inputs[0].scale
    outputs = []
    for index, name in enumerate(step.outputs):
        is_lstm_cell = step.op == LSTM.name and index == 2
        shape = shapes[min(index, len(shapes) - 1)]
        outputs.append(PackerTensor(name, shape, 4 if is_lstm_cell else width, scale=scale))
    return outputs


#: Operators whose output width is the attribute o_bits.
_VARIABLE_WIDTH_OPERATORS = (
    CONV2D.name,
    CONV1D.name,
    CONV_TRANSPOSE2D.name,
    LINEAR.name,
    BMM.name,
    GLU.name,
    LSTM.name,
    GRU.name,
    REQUANT.name,
)


def _get_element_bytes(step: PackerStep, inputs: Sequence[PackerTensor]) -> int:
    """Return the bytes of an output element.

    They come from `o_bits` for operators of variable width, `data_bits` of a Quant; a Dequant has
    4, tables and operators without inputs 1, others the width of the first input.
    """
    if step.op in _VARIABLE_WIDTH_OPERATORS:
        return int(step.get("o_bits", 8)) // 8 or 1
    if step.op == DEQUANT.name:
        return 4
    if step.op == QUANT.name:
        return int(step.get("data_bits", 8)) // 8 or 1
    if step.op in (TANH.name, SIGMOID.name) or not inputs:
        return 1
    return inputs[0].width


def _infer_same(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Return the shape of the first input."""
    return [shapes[0]]


def _get_int_list(step: PackerStep, arrays: Arrays, index: int, name: str) -> list[int] | None:
    """Return constant input `index`, or else attribute `name`, as integers.

    Returns None if the step has neither, and raises UnknownShapeError if the constant does not
    contain integers.
    """
    if len(step.inputs) > index and step.inputs[index] in arrays:
        array = np.asarray(arrays[step.inputs[index]])
        if array.dtype.kind not in "iu":
            raise UnknownShapeError(
                f"input {index} ({name}) must contain integers; got {array.dtype}"
            )
        return [int(value) for value in array.reshape(-1)]
    attribute = step.get(name)
    if attribute is None:
        return None
    return [int(value) for value in (attribute if isinstance(attribute, Sequence) else [attribute])]


def _infer_window_sizes(step: PackerStep, source: Shape, kernel: Sequence[int]) -> Shape:
    """Infer the spatial output sizes of a convolution or pool over an input of shape `source`.

    `kernel` has the sizes of the spatial axes. Raises an UnknownShapeError for an empty output.
    """
    rank = len(source) - 2
    strides = step.get("strides") or [1] * rank
    pads = step.get("pads") or [0] * 2 * rank
    dilations = step.get("dilations") or [1] * rank
    sizes = []
    for i in range(rank):
        kernel_extent = (kernel[i] - 1) * dilations[i] + 1
        padded_size = source[2 + i] + pads[i] + pads[rank + i]
        sizes.append((padded_size - kernel_extent) // strides[i] + 1)
    if any(size < 1 for size in sizes):
        raise UnknownShapeError("the kernel is larger than the padded input")
    return tuple(sizes)


def _infer_conv(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer [N, O, ...] of a 1-D or 2-D convolution.

    Raises UnknownShapeError if ranks or channels of input and weight do not match.
    """
    source, weight = shapes[0], shapes[1]
    if len(source) != len(weight):
        raise UnknownShapeError(
            f"the input has rank {len(source)}, the weight has rank {len(weight)}"
        )
    weight_channels = weight[1] * step.get("group", 1)
    if weight_channels != source[1]:
        raise UnknownShapeError(
            f"the weight has {weight_channels} input channels, the input has {source[1]}"
        )
    kernel = step.get("kernel_shape") or weight[2:]
    return [(source[0], weight[0], *_infer_window_sizes(step, source, kernel))]


def _infer_conv_transpose(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer [N, O, ...] of a transposed convolution; dilations are ignored, as by the packer."""
    source, weight = shapes[0], shapes[1]
    kernel = step.get("kernel_shape") or weight[2:]
    rank = len(kernel)
    strides, pads = step.get("strides") or [1] * rank, step.get("pads") or [0] * 2 * rank
    output_padding = step.get("output_padding") or [0] * rank
    sizes = [
        (source[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i] + output_padding[i]
        for i in range(rank)
    ]
    return [(source[0], weight[1] * step.get("group", 1), *sizes)]


def _infer_pool(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer [N, C, ...] of a pool."""
    return [(*shapes[0][:2], *_infer_window_sizes(step, shapes[0], step.get("kernel_shape")))]


def _infer_linear(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer [..., O] of a LinearInt with weights [O, I].

    As in the packer, the last size for four axes or more is I. UnknownShapeError with fewer than
    two axes, or (below four) if the last size is not I.
    """
    source, weight = shapes[0], shapes[1]
    if len(source) < 2:
        raise UnknownShapeError("the input of a LinearInt has fewer than two axes")
    if len(source) >= 4:  # the packer takes the wrong axis of the weight
        return [(*source[:-1], weight[-1])]
    if source[-1] != weight[-1]:
        raise UnknownShapeError(f"the input has {source[-1]} features, the weight {weight[-1]}")
    return [(*source[:-1], weight[0])]


def _infer_bmm(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer [..., M, L] of [..., M, N] x [..., N, L]; UnknownShapeError if N differs."""
    left, right = shapes[:2]
    if left[-1] != right[-2]:
        raise UnknownShapeError(f"the left rows have {left[-1]} elements, the right {right[-2]}")
    return [(*left[:-1], right[-1])]


def _infer_concat(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of an iqCat: that of input 0, with the sum of the sizes along its axis."""
    axis = step.get("dim", step.get("axis", 1)) % len(shapes[0])
    total = sum(s[axis] for s in shapes)
    return [(*shapes[0][:axis], total, *shapes[0][axis + 1 :])]


def _infer_reshape(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a Reshape, whose target may contain 0 and -1.

    0 keeps the size of the axis, -1 is the rest. Raises an UnknownShapeError if the target is not
    constant or has another number of elements.
    """
    target = _get_int_list(step, arrays, 1, "shape")
    if target is None:
        raise UnknownShapeError("the target shape must be a constant")
    target = [shapes[0][i] if size == 0 else size for i, size in enumerate(target)]
    element_count = math.prod(shapes[0])
    known_count = math.prod(size for size in target if size != -1)
    shape = tuple(element_count // known_count if size == -1 else size for size in target)
    if math.prod(shape) != element_count:
        raise UnknownShapeError(
            f"the input has {element_count} elements, the target shape {math.prod(shape)}"
        )
    return [shape]


def _infer_flatten(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer [N, elements] of a Flatten."""
    return [(shapes[0][0], math.prod(shapes[0][1:]))]


def _infer_transpose(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Permute the input shape by the attribute perm."""
    return [tuple(shapes[0][axis] for axis in step.get("perm"))]


def _infer_squeeze(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Return the shape without the given axes (attribute or input 1), or all axes of size 1.

    Given axes are removed whatever their size.
    """
    axes = _get_int_list(step, arrays, 1, "axes")
    shape = shapes[0]
    if axes is None:
        removed = {axis for axis, size in enumerate(shape) if size == 1}
    else:
        removed = {axis % len(shape) for axis in axes}
    return [tuple(size for axis, size in enumerate(shape) if axis not in removed)]


def _infer_unsqueeze(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape with axes of size 1 inserted; `axes` count in the result."""
    axes = _get_int_list(step, arrays, 1, "axes") or []
    rank, sizes = len(shapes[0]) + len(axes), iter(shapes[0])
    new_axes = {axis % rank for axis in axes}
    return [tuple(1 if axis in new_axes else next(sizes) for axis in range(rank))]


def _infer_slice(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a Slice with constant bounds, otherwise raise an UnknownShapeError.

    Axes are 0, 1, ... by default, steps 1.
    """
    starts, ends = _get_int_list(step, arrays, 1, "starts"), _get_int_list(step, arrays, 2, "ends")
    if starts is None or ends is None:
        raise UnknownShapeError("starts and ends of a Slice must be constants")
    axes = _get_int_list(step, arrays, 3, "axes") or list(range(len(starts)))
    steps = _get_int_list(step, arrays, 4, "steps") or [1] * len(starts)
    sizes = list(shapes[0])
    for axis, start, end, stride in zip(axes, starts, ends, steps, strict=True):
        sizes[axis] = len(range(*slice(start, end, stride).indices(sizes[axis])))
    return [tuple(sizes)]


def _infer_split(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer one shape per output of a Split along `axis` (default 0): the sizes in `dims`.

    Without `dims`, size // number of outputs each.
    """
    shape = shapes[0]
    axis = step.get("axis", 0) % len(shape)
    output_count = len(step.outputs)
    sizes = step.get("dims") or [shape[axis] // output_count] * output_count
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


def _infer_gather(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Replace the gathered axis by the shape of the indices."""
    axis = step.get("axis", 0) % len(shapes[0])
    return [(*shapes[0][:axis], *shapes[1], *shapes[0][axis + 1 :])]


def _infer_pad(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Add the pads (begins of all axes, then ends) to each axis; no pads without constant ones."""
    pads = _get_int_list(step, arrays, 1, "pads") or [0] * 2 * len(shapes[0])
    rank = len(shapes[0])
    return [tuple(d + pads[i] + pads[i + rank] for i, d in enumerate(shapes[0]))]


def _infer_resize(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a Resize from its constant scales or sizes.

    The last nonempty constant input counts: scales if it is float, otherwise sizes. Raises an
    UnknownShapeError without one.
    """
    constants = (arrays[name] for name in reversed(step.inputs[1:]) if name in arrays)
    factors: Any = next((array for array in constants if array.size), None)
    if factors is None:
        raise UnknownShapeError("scales or sizes of a Resize must be constants")
    if factors.dtype.kind == "f":
        return [tuple(int(d * factor) for d, factor in zip(shapes[0], factors, strict=True))]
    return [tuple(int(size) for size in factors)]


def _infer_lstm(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shapes of the sequence [1, T, H], the last state and the last cell [1, 1, H].

    With batch_first 1 an input [1, T, I] is read as if its features were the steps.
    UnknownShapeError unless inputs 1 and 2, the weights, have two axes.
    """
    if len(shapes) < 3 or any(len(shape) != 2 for shape in shapes[1:3]):
        raise UnknownShapeError("the weights must have two axes")
    hidden = int(step.get("hidden_size"))
    # With batch_first 1 an input [1, T, I] is read as if its features were the steps.
    steps = shapes[0][2] if step.get("batch_first") else shapes[0][1]
    return [(1, steps, hidden), (1, 1, hidden), (1, 1, hidden)]


def _infer_glu(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape with the gated axis (`dim`, default -1) halved."""
    axis = step.get("dim", -1) % len(shapes[0])
    return [(*shapes[0][:axis], shapes[0][axis] // 2, *shapes[0][axis + 1 :])]


def _infer_expand(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Broadcast the input shape with the target shape (input 1).

    Raises UnknownShapeError if the target is not constant.
    """
    target = _get_int_list(step, arrays, 1, "shape")
    if target is None:
        raise UnknownShapeError("the target shape must be a constant")
    return [tuple(np.broadcast_shapes(shapes[0], tuple(target)))]


def _infer_tile(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Multiply each axis by its repeats (input 1); UnknownShapeError if they are not constant."""
    times = _get_int_list(step, arrays, 1, "repeats")
    if times is None:
        raise UnknownShapeError("the repeats of a Tile must be constants")
    return [tuple(d * t for d, t in zip(shapes[0], times, strict=True))]


_SHAPE_RULES: Mapping[str, Callable[[PackerStep, Sequence[Shape], Arrays], list[Shape]]] = (
    MappingProxyType(
        {
            CONV2D.name: _infer_conv,
            CONV1D.name: _infer_conv,
            CONV_TRANSPOSE2D.name: _infer_conv_transpose,
            AVG_POOL2D.name: _infer_pool,
            "MaxPool": _infer_pool,
            LINEAR.name: _infer_linear,
            BMM.name: _infer_bmm,
            CONCAT.name: _infer_concat,
            "Reshape": _infer_reshape,
            "Flatten": _infer_flatten,
            "Transpose": _infer_transpose,
            "Squeeze": _infer_squeeze,
            "Unsqueeze": _infer_unsqueeze,
            "Slice": _infer_slice,
            "Split": _infer_split,
            "Gather": _infer_gather,
            PAD.name: _infer_pad,
            "Resize": _infer_resize,
            LSTM.name: _infer_lstm,
            GRU.name: _infer_lstm,
            GLU.name: _infer_glu,
            "Expand": _infer_expand,
            "Tile": _infer_tile,
        }
    )
)
