"""Shapes as the packer infers them; declared ones are not asked."""

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
    """A shape that does not follow from the inputs; the text says why."""


Shape = tuple[int, ...]
Arrays = Mapping[str, np.ndarray]


def infer_outputs(
    step: PackerStep, inputs: Sequence[PackerTensor], arrays: Arrays
) -> list[PackerTensor]:
    """Return the outputs of a step, with the scales that its attributes give.

    Unknown where they do not follow.
    """
    shapes = _RULES.get(step.op, _infer_same)(step, [t.shape for t in inputs], arrays)
    width = _get_element_bytes(step, inputs)
    scale = step.get("scale_o")
    input_scale = inputs[0].scale if scale is None and inputs else scale
    tensors = []
    for index, name in enumerate(step.outputs):
        cell = step.op == LSTM.name and index == 2
        tensors.append(
            PackerTensor(
                name, shapes[min(index, len(shapes) - 1)], 4 if cell else width, scale=input_scale
            )
        )
    return tensors


_WIDE = (
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
    if step.op in _WIDE:
        return int(step.get("o_bits", 8)) // 8 or 1
    if step.op == DEQUANT.name:
        return 4
    if step.op == QUANT.name:
        return int(step.get("data_bits", 8)) // 8 or 1
    return 1 if step.op in (TANH.name, SIGMOID.name) or not inputs else inputs[0].width


def _infer_same(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    return [shapes[0]]


def _get_int_list(step: PackerStep, arrays: Arrays, index: int, name: str) -> list[int] | None:
    """Return constant input `index`, or attribute `name`, as integers.

    Unknown where the input holds others.
    """
    if len(step.inputs) > index and step.inputs[index] in arrays:
        array = np.asarray(arrays[step.inputs[index]])
        if array.dtype.kind not in "iu":
            raise UnknownShapeError(f"its input {index} ({name}) holds {array.dtype}, not integers")
        return [int(v) for v in array.reshape(-1)]
    stated = step.get(name)
    return (
        None
        if stated is None
        else [int(v) for v in (stated if isinstance(stated, Sequence) else [stated])]
    )


def _windows(step: PackerStep, source: Shape, kernel: Sequence[int]) -> Shape:
    rank = len(source) - 2
    strides = step.get("strides") or [1] * rank
    pads = step.get("pads") or [0] * 2 * rank
    dilations = step.get("dilations") or [1] * rank
    sizes = []
    for i in range(rank):
        reach = (kernel[i] - 1) * dilations[i] + 1
        sizes.append((source[2 + i] + pads[i] + pads[rank + i] - reach) // strides[i] + 1)
    if any(s < 1 for s in sizes):
        raise UnknownShapeError("the kernel is larger than the padded input")
    return tuple(sizes)


def _conv(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    source, weight = shapes[0], shapes[1]
    if len(source) != len(weight):
        raise UnknownShapeError(f"the input has {len(source)} axes, the weight {len(weight)}")
    if weight[1] * step.get("group", 1) != source[1]:
        raise UnknownShapeError(
            f"weights for {weight[1] * step.get('group', 1)} channels, an input of {source[1]}"
        )
    return [(source[0], weight[0], *_windows(step, source, step.get("kernel_shape") or weight[2:]))]


def _deconv(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    source, weight = shapes[0], shapes[1]
    kernel = step.get("kernel_shape") or weight[2:]
    rank = len(kernel)
    strides, pads = step.get("strides") or [1] * rank, step.get("pads") or [0] * 2 * rank
    more = step.get("output_padding") or [0] * rank
    size = [
        (source[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i] + more[i]
        for i in range(rank)
    ]
    return [(source[0], weight[1] * step.get("group", 1), *size)]


def _pool(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    return [(*shapes[0][:2], *_windows(step, shapes[0], step.get("kernel_shape")))]


def _linear(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    source, weight = shapes[0], shapes[1]
    if len(source) < 2:
        raise UnknownShapeError("the input of a LinearInt has fewer than two axes")
    if source[-1] != weight[-1] and len(source) < 4:
        raise UnknownShapeError(f"rows of {source[-1]} elements, weights for {weight[-1]}")
    return [
        (*source[:-1], weight[0] if len(source) < 4 else weight[-1])
    ]  # with four axes the packer errs


def _bmm(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    left, right = shapes[:2]
    if left[-1] != right[-2]:
        raise UnknownShapeError(f"rows of {left[-1]} elements, columns of {right[-2]}")
    return [(*left[:-1], right[-1])]


def _cat(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    axis = step.get("dim", step.get("axis", 1)) % len(shapes[0])
    total = sum(s[axis] for s in shapes)
    return [(*shapes[0][:axis], total, *shapes[0][axis + 1 :])]


def _reshape(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    target = _get_int_list(step, arrays, 1, "shape")
    if target is None:
        raise UnknownShapeError("the target shape is no constant")
    target = [shapes[0][i] if d == 0 else d for i, d in enumerate(target)]
    count, rest = math.prod(shapes[0]), math.prod(d for d in target if d != -1)
    made = tuple(count // rest if d == -1 else d for d in target)
    if math.prod(made) != count:
        raise UnknownShapeError(f"an input of {count} elements, a shape of {math.prod(made)}")
    return [made]


def _flatten(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    return [(shapes[0][0], math.prod(shapes[0][1:]))]


def _transpose(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    return [tuple(shapes[0][axis] for axis in step.get("perm"))]


def _squeeze(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    axes = _get_int_list(step, arrays, 1, "axes")
    rank = len(shapes[0])
    gone = (
        {a % rank for a in axes}
        if axes is not None
        else {i for i, d in enumerate(shapes[0]) if d == 1}
    )
    return [tuple(d for i, d in enumerate(shapes[0]) if i not in gone)]


def _unsqueeze(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    axes = _get_int_list(step, arrays, 1, "axes") or []
    rank, sizes = len(shapes[0]) + len(axes), iter(shapes[0])
    new = {a % rank for a in axes}
    return [tuple(1 if i in new else next(sizes) for i in range(rank))]


def _slice(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    starts, ends = _get_int_list(step, arrays, 1, "starts"), _get_int_list(step, arrays, 2, "ends")
    if starts is None or ends is None:
        raise UnknownShapeError("the bounds of a Slice are no constants")
    axes = _get_int_list(step, arrays, 3, "axes") or list(range(len(starts)))
    steps = _get_int_list(step, arrays, 4, "steps") or [1] * len(starts)
    sizes = list(shapes[0])
    for axis, start, end, by in zip(axes, starts, ends, steps, strict=True):
        sizes[axis] = len(range(*slice(start, end, by).indices(sizes[axis])))
    return [tuple(sizes)]


def _split(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    axis = step.get("axis", 0) % len(shapes[0])
    parts = step.get("dims") or [shapes[0][axis] // len(step.outputs)] * len(step.outputs)
    return [(*shapes[0][:axis], part, *shapes[0][axis + 1 :]) for part in parts]


def _gather(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    axis = step.get("axis", 0) % len(shapes[0])
    return [(*shapes[0][:axis], *shapes[1], *shapes[0][axis + 1 :])]


def _pad(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    pads = _get_int_list(step, arrays, 1, "pads") or [0] * 2 * len(shapes[0])
    rank = len(shapes[0])
    return [tuple(d + pads[i] + pads[i + rank] for i, d in enumerate(shapes[0]))]


def _resize(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    scales: Any = next(
        (arrays[n] for n in reversed(step.inputs[1:]) if n in arrays and arrays[n].size), None
    )
    if scales is None:
        raise UnknownShapeError("the size of a Resize is no constant")
    if scales.dtype.kind == "f":
        return [tuple(int(d * s) for d, s in zip(shapes[0], scales, strict=True))]
    return [tuple(int(s) for s in scales)]


def _lstm(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    if len(shapes) < 3 or any(len(shape) != 2 for shape in shapes[1:3]):
        raise UnknownShapeError("weights without rows and columns")
    hidden = int(step.get("hidden_size"))
    # batch_first 1 reads [1, T, I] as if the features were the steps.
    steps = shapes[0][2] if step.get("batch_first") else shapes[0][1]
    return [(1, steps, hidden), (1, 1, hidden), (1, 1, hidden)]


def _glu(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    axis = step.get("dim", -1) % len(shapes[0])
    return [(*shapes[0][:axis], shapes[0][axis] // 2, *shapes[0][axis + 1 :])]


def _expand(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    target = _get_int_list(step, arrays, 1, "shape")
    if target is None:
        raise UnknownShapeError("the target shape is no constant")
    return [tuple(np.broadcast_shapes(shapes[0], tuple(target)))]


def _tile(step: PackerStep, shapes: Sequence[Shape], arrays: Arrays) -> list[Shape]:
    times = _get_int_list(step, arrays, 1, "repeats")
    if times is None:
        raise UnknownShapeError("the repeats of a Tile are no constants")
    return [tuple(d * t for d, t in zip(shapes[0], times, strict=True))]


_RULES: Mapping[str, Callable[[PackerStep, Sequence[Shape], Arrays], list[Shape]]] = (
    MappingProxyType(
        {
            CONV2D.name: _conv,
            CONV1D.name: _conv,
            CONV_TRANSPOSE2D.name: _deconv,
            AVG_POOL2D.name: _pool,
            "MaxPool": _pool,
            LINEAR.name: _linear,
            BMM.name: _bmm,
            CONCAT.name: _cat,
            "Reshape": _reshape,
            "Flatten": _flatten,
            "Transpose": _transpose,
            "Squeeze": _squeeze,
            "Unsqueeze": _unsqueeze,
            "Slice": _slice,
            "Split": _split,
            "Gather": _gather,
            PAD.name: _pad,
            "Resize": _resize,
            LSTM.name: _lstm,
            GRU.name: _lstm,
            GLU.name: _glu,
            "Expand": _expand,
            "Tile": _tile,
        }
    )
)
