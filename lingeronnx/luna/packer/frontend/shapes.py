"""Shape inference as the packer does it; shapes declared in the file are ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ....operators.integer_ops import (
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
    step: PackerStep,
    inputs: Sequence[PackerTensor],
    arrays: Arrays,
    recurrent_axes: tuple[str, ...] = (),
) -> list[PackerTensor]:
    """Infer the output tensors of a step: name, shape, element size in bytes and scale.

    The scale is `scale_o`, else that of input 0. The third output of an LSTMInt, the cell, has 4
    bytes per element.

    Parameters
    ----------
    inputs
        The input tensors, in the order of `step.inputs`.
    arrays
        Values of the constants of the graph by name.
    recurrent_axes
        Recurrent operators whose axes are those that `batch_first` says.

    Raises
    ------
    UnknownShapeError
        If a shape does not follow from the inputs, or the inputs do not match.
    """
    infer_shapes = _SHAPE_RULES.get(step.op, _infer_same)
    if step.op in recurrent_axes:
        infer_shapes = _infer_recurrent
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
    """Return the bytes of one output element of `step`.

    `o_bits` / 8 (default 1) for operators with that attribute, `data_bits` / 8 for a Quant, 4 for a
    Dequant, 1 for iqTanh, iqSigmoid and steps without inputs, otherwise the width of input 0.
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
    """Return a list with the shape of input 0, the rule for operators without one of their own."""
    return [shapes[0]]


def _get_int_list(step: PackerStep, arrays: Arrays, index: int, name: str) -> list[int] | None:
    """Return constant input `index` of `step`, or else attribute `name`, as a list of integers.

    The constant is flattened, a single number becomes a list of one; None if the step has neither.
    Raises UnknownShapeError if the constant is not of an integer type.
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
    """Infer the spatial output sizes of a convolution or pool over an input of shape [N, C, ...].

    `kernel` has the sizes of the spatial axes. Rounds down, also with ceil_mode. Raises
    UnknownShapeError if an output size is below 1.
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
    """Infer the shape [N, O, ...] of a 1-D or 2-D convolution with weight [O, I / group, ...].

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
    """Infer the shape [N, O, ...] of a transposed convolution with weight [I, O / group, ...].

    Dilations are ignored, because the packer ignores them.
    """
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
    """Infer the shape [N, C, ...] of a pool; sizes are rounded down, whatever ceil_mode says.

    Raises UnknownShapeError if the kernel is larger than the padded input.
    """
    return [(*shapes[0][:2], *_infer_window_sizes(step, shapes[0], step.get("kernel_shape")))]


def _infer_linear(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape [..., O] of a LinearInt with weights [O, I].

    With four axes or more the last size is I, an error of the packer that is reproduced. Raises
    UnknownShapeError for fewer than two axes, or for two or three if the last size is not I.
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
    """Infer the shape [..., M, L] of a product [..., M, N] x [..., N, L].

    The leading axes are those of the left operand. Raises UnknownShapeError if N differs.
    """
    left, right = shapes[:2]
    if left[-1] != right[-2]:
        raise UnknownShapeError(f"the left rows have {left[-1]} elements, the right {right[-2]}")
    return [(*left[:-1], right[-1])]


def _infer_concat(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of an iqCat: that of input 0, with all sizes along the axis summed.

    The axis is `dim`, else `axis`, else 1; other axes are not compared.
    """
    axis = step.get("dim", step.get("axis", 1)) % len(shapes[0])
    total = sum(s[axis] for s in shapes)
    return [(*shapes[0][:axis], total, *shapes[0][axis + 1 :])]


def _infer_reshape(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a Reshape from its constant target (input 1 or attribute `shape`).

    In the target, 0 keeps the size of that axis and -1 takes all other elements. Raises
    UnknownShapeError if the target is not constant or has another number of elements.
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
    """Infer the shape [N, elements per sample] of a Flatten; its attribute `axis` is ignored."""
    return [(shapes[0][0], math.prod(shapes[0][1:]))]


def _infer_transpose(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a Transpose: the sizes of input 0 in the order of its attribute `perm`."""
    return [tuple(shapes[0][axis] for axis in step.get("perm"))]


def _infer_squeeze(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Return the shape of input 0 without the given axes, or else without all axes of size 1.

    The axes are constant input 1 or attribute `axes`, and are removed whatever their size.
    """
    axes = _get_int_list(step, arrays, 1, "axes")
    shape = shapes[0]
    if axes is None:
        removed = {axis for axis, size in enumerate(shape) if size == 1}
    else:
        removed = {axis % len(shape) for axis in axes}
    return [tuple(size for axis, size in enumerate(shape) if axis not in removed)]


def _infer_unsqueeze(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of input 0 with axes of size 1 inserted.

    The axes (constant input 1 or attribute `axes`) are positions in the result; without any the
    shape is unchanged.
    """
    axes = _get_int_list(step, arrays, 1, "axes") or []
    rank, sizes = len(shapes[0]) + len(axes), iter(shapes[0])
    new_axes = {axis % rank for axis in axes}
    return [tuple(1 if axis in new_axes else next(sizes) for axis in range(rank))]


def _infer_slice(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a Slice with constant starts and ends.

    Axes default to 0, 1, ..., steps to 1. Raises UnknownShapeError if starts or ends are not
    constants.
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
    """Infer one shape per output of a Split: the sizes in `dims` along `axis` (default 0).

    Without `dims`, each has the size of the axis divided by the number of outputs, rounded down.
    """
    shape = shapes[0]
    axis = step.get("axis", 0) % len(shape)
    output_count = len(step.outputs)
    sizes = step.get("dims") or [shape[axis] // output_count] * output_count
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


def _infer_gather(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a Gather: the shape of the indices replaces axis `axis` (default 0)."""
    axis = step.get("axis", 0) % len(shapes[0])
    return [(*shapes[0][:axis], *shapes[1], *shapes[0][axis + 1 :])]


def _infer_pad(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a Pad: each axis plus its two pads.

    Pads, from constant input 1 or the attribute, are the begins of all axes, then the ends; the
    shape is unchanged if they are not constant.
    """
    pads = _get_int_list(step, arrays, 1, "pads") or [0] * 2 * len(shapes[0])
    rank = len(shapes[0])
    return [tuple(d + pads[i] + pads[i + rank] for i, d in enumerate(shapes[0]))]


def _infer_resize(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a Resize from its constant scales or sizes.

    The last nonempty constant input counts: floats are factors (results are rounded down), integers
    are sizes. Raises UnknownShapeError if there is none.
    """
    constants = (arrays[name] for name in reversed(step.inputs[1:]) if name in arrays)
    factors: Any = next((array for array in constants if array.size), None)
    if factors is None:
        raise UnknownShapeError("scales or sizes of a Resize must be constants")
    if factors.dtype.kind == "f":
        return [tuple(int(d * factor) for d, factor in zip(shapes[0], factors, strict=True))]
    return [tuple(int(size) for size in factors)]


def _infer_lstm(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shapes of an LSTMInt or GRUInt: [1, T, H], and twice [1, 1, H] for state and cell.

    With batch_first=1 the packer takes T from the last axis of the input instead of axis 1. Raises
    UnknownShapeError unless inputs 1 and 2, the weights, have two axes.
    """
    if len(shapes) < 3 or any(len(shape) != 2 for shape in shapes[1:3]):
        raise UnknownShapeError("the weights must have two axes")
    hidden = int(step.get("hidden_size"))
    # With batch_first 1 an input [1, T, I] is read as if its features were the steps.
    steps = shapes[0][2] if step.get("batch_first") else shapes[0][1]
    return [(1, steps, hidden), (1, 1, hidden), (1, 1, hidden)]


def _infer_recurrent(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shapes of a recurrent operator whose axes are those that `batch_first` says.

    They are the output, [N, T, H] with batch_first and [T, N, H] without, and twice [1, N, H]. A
    first state may be input 1. Raises UnknownShapeError unless the weights have two axes.
    """
    weights = shapes[2:4] if len(shapes) > 1 and len(shapes[1]) == 3 else shapes[1:3]
    if len(weights) < 2 or any(len(shape) != 2 for shape in weights) or len(shapes[0]) != 3:
        raise UnknownShapeError("the input must have three axes, the weights two")
    hidden = int(step.get("hidden_size"))
    samples = shapes[0][0 if step.get("batch_first") else 1]
    return [(*shapes[0][:2], hidden), (1, samples, hidden), (1, samples, hidden)]


def _infer_glu(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a GluInt: that of input 0 with axis `dim` (default -1) halved.

    An odd size is rounded down.
    """
    axis = step.get("dim", -1) % len(shapes[0])
    return [(*shapes[0][:axis], shapes[0][axis] // 2, *shapes[0][axis + 1 :])]


def _infer_expand(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of an Expand: input shape and constant target (input 1) broadcast together.

    Raises UnknownShapeError if the target is not constant.
    """
    target = _get_int_list(step, arrays, 1, "shape")
    if target is None:
        raise UnknownShapeError("the target shape must be a constant")
    return [tuple(np.broadcast_shapes(shapes[0], tuple(target)))]


def _infer_tile(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    """Infer the shape of a Tile: each axis multiplied by its constant repeats (input 1).

    Raises UnknownShapeError if they are not constant.
    """
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
