"""Output shapes and element bytes of every operator, as the packer computes them."""

import math

import numpy as np

from tests.packer.graph import Refused, Tensor


def _window(node, shape):
    kernel, strides, pads = node.attrs["kernel_shape"], node.attrs["strides"], node.attrs["pads"]
    rank = len(kernel)
    dilations = node.get("dilations", [1] * rank)
    return tuple(
        (shape[2 + i] + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1) // strides[i]
        + 1
        for i in range(rank)
    )


def _conv(node, xs):
    return (xs[0].shape[0], xs[1].shape[0], *_window(node, xs[0].shape))


def _transposed(node, xs):
    shape, weight, pads = xs[0].shape, xs[1].shape, node.attrs["pads"]
    extra = node.get("output_padding", [0, 0])
    sides = tuple(
        (shape[2 + i] - 1) * node.attrs["strides"][i]
        + node.attrs["kernel_shape"][i]
        - pads[i]
        - pads[i + 2]
        + extra[i]
        for i in range(2)
    )
    return (shape[0], weight[1] * node.get("group", 1), *sides)


def _linear(node, xs):
    return (*xs[0].shape[:-1], xs[1].shape[-1] if len(xs[0].shape) > 3 else xs[1].shape[0])


def _cat(node, xs):
    axis = node.get("dim", node.get("axis"))
    shape = list(xs[0].shape)
    shape[axis] = sum(x.shape[axis] for x in xs)
    return tuple(shape)


def _reshape(node, xs):
    target, old = [int(d) for d in xs[1].const], xs[0].shape
    target = [old[i] if d == 0 else d for i, d in enumerate(target)]
    if -1 in target:
        rest = math.prod(d for d in target if d != -1)
        target[target.index(-1)] = xs[0].elements // max(rest, 1)
    if math.prod(target) != xs[0].elements:
        raise Refused(f"Reshape {node.name}: {old} into {tuple(target)}")
    return tuple(target)


def slice_bounds(node, xs):
    """Return (starts, ends, axes, steps) of a Slice as lists."""
    starts, ends = xs[1].const.reshape(-1), xs[2].const.reshape(-1)
    axes = xs[3].const.reshape(-1) if len(xs) > 3 else np.arange(len(starts))
    steps = xs[4].const.reshape(-1) if len(xs) > 4 else np.ones(len(starts), int)
    return starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist()


def _slice(node, xs):
    shape = list(xs[0].shape)
    for start, end, axis, step in zip(*slice_bounds(node, xs), strict=True):
        shape[axis] = len(range(*slice(start, end, step).indices(shape[axis])))
    return tuple(shape)


def _squeeze(node, xs):
    rank = len(xs[0].shape)
    axes = [axis % rank for axis in node.get("axes", [])]
    return tuple(d for i, d in enumerate(xs[0].shape) if (i not in axes if axes else d != 1))


def _unsqueeze(node, xs):
    shape = list(xs[0].shape)
    rank = len(shape) + len(node.get("axes", []))
    for axis in sorted(axis % rank for axis in node.get("axes", [])):
        shape.insert(axis, 1)
    return tuple(shape)


def _gather(node, xs):
    axis = node.get("axis", 0) % len(xs[0].shape)
    return (*xs[0].shape[:axis], *xs[1].shape, *xs[0].shape[axis + 1 :])


def _glu(node, xs):
    shape = list(xs[0].shape)
    shape[node.attrs["dim"]] //= 2
    return tuple(shape)


def _tile(node, xs):
    return tuple(d * int(times) for d, times in zip(xs[0].shape, xs[1].const, strict=True))


def _expand(node, xs):
    return np.broadcast_shapes(xs[0].shape, tuple(int(d) for d in xs[1].const))


def _pad(node, xs):
    pads, rank = [int(p) for p in xs[1].const], len(xs[0].shape)
    return tuple(d + pads[i] + pads[i + rank] for i, d in enumerate(xs[0].shape))


def _resize(node, xs):
    if len(xs) > 3 and xs[3].const is not None:
        return tuple(int(d) for d in xs[3].const)
    factors = next(
        x.const for x in xs[1:] if x.const is not None and x.const.size == len(xs[0].shape)
    )
    return tuple(int(d * f) for d, f in zip(xs[0].shape, factors, strict=True))


def _split(node, xs):
    axis = node.attrs["axis"]
    return [
        tuple(part if i == axis else d for i, d in enumerate(xs[0].shape))
        for part in node.attrs["dims"]
    ]


RULES = {
    "Conv1dInt": _conv,
    "Conv2dInt": _conv,
    "ConvTranspose2dInt": _transposed,
    "LinearInt": _linear,
    "BmmInt": lambda node, xs: (*xs[0].shape[:-1], xs[1].shape[-1]),
    "AvgPool2dInt": lambda node, xs: (*xs[0].shape[:2], *_window(node, xs[0].shape)),
    "MaxPool": lambda node, xs: (*xs[0].shape[:2], *_window(node, xs[0].shape)),
    "iqCat": _cat,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": lambda node, xs: (xs[0].shape[0], math.prod(xs[0].shape[1:])),
    "Transpose": lambda node, xs: tuple(xs[0].shape[axis] for axis in node.attrs["perm"]),
    "Gather": _gather,
    "Split": _split,
    "GluInt": _glu,
    "iqPad": _pad,
    "Resize": _resize,
    "Tile": _tile,
    "Expand": _expand,
}


def infer(graph):
    """Give every computed tensor its shape, element bytes and scale, in node order."""
    for node in graph.nodes:
        xs = [graph.tensors[name] for name in node.inputs if name]
        if node.op in ("LSTMInt", "GRUInt"):
            _recurrent(graph, node, xs)
            continue
        try:
            shape = RULES.get(node.op, lambda node, xs: xs[0].shape)(node, xs)
        except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise Refused(
                f"{node.op} {node.name}: inputs and attributes do not fit ({error})"
            ) from None
        size = xs[0].bytes
        if node.op in (
            "Conv1dInt",
            "Conv2dInt",
            "ConvTranspose2dInt",
            "LinearInt",
            "BmmInt",
            "GluInt",
            "Requant",
        ):
            size = node.get("o_bits", 8) // 8
        elif node.op in ("iqTanh", "iqSigmoid", "Quant"):
            size = 1
        elif node.op == "Dequant":
            size = 4
        scale = node.get("scale_x" if node.op == "Quant" else "scale_o", xs[0].scale)
        for index, name in enumerate(node.outputs):
            part = shape[index] if node.op == "Split" else shape
            old = graph.tensors.get(name, Tensor(name))
            old.shape, old.bytes, old.scale = tuple(part), size, scale
            graph.tensors[name] = old


def _recurrent(graph, node, xs):
    hidden = node.attrs["hidden_size"]
    steps = xs[0].shape[2] if node.attrs["batch_first"] else xs[0].shape[1]
    shapes = [((1, steps, hidden), 1), ((1, 1, hidden), 1), ((1, 1, hidden), 4)]
    for name, (shape, size) in zip(node.outputs, shapes, strict=False):
        if name:
            graph.tensors[name] = Tensor(name, shape, size, node.get("scale_o"))
