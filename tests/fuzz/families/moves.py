"""Everything that moves data, between layers: reshapes, transposes, slices, splits, gathers, tiles,
pads.
"""

import numpy as np
from onnx import helper

__all__ = ["build"]


def transposed(net, x):
    """A Transpose of any order that leaves the batch alone."""
    axes = len(net.size[x])
    return net.transpose(x, 0, *(int(p) + 1 for p in net.rng.permutation(axes)))


def reshaped(net, x):
    """Two axes joined, or one in two."""
    shape = list(net.size[x])
    if len(shape) > 1 and net.chance(0.5):
        at = net.between(0, len(shape) - 2)
        return net.reshape(x, *shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    at = net.between(0, len(shape) - 1)
    parts = [d for d in range(1, shape[at] + 1) if shape[at] % d == 0]
    first = net.pick(*parts)
    if len(shape) > 2:
        return net.reshape(
            x, *shape[:at], first, shape[at] // first * int(np.prod(shape[at + 1 :]))
        )
    return net.reshape(x, *shape[:at], first, shape[at] // first, *shape[at + 1 :])


def sliced(net, x):
    """A part of an axis, the step being 1 or more."""
    axis = net.between(1, len(net.size[x]))
    length = net.size[x][axis - 1]
    start = net.between(0, length - 1)
    stop = net.between(start + 1, length)
    if net.chance(0.8):
        return net.slice(x, axis, start, stop)
    step = net.between(1, 3)
    shape = list(net.size[x])
    shape[axis - 1] = -(-(stop - start) // step)
    return net.add(
        "Slice", [x, net.ints(start), net.ints(stop), net.ints(axis), net.ints(step)], shape
    )


def split(net, x):
    """Two parts, put together the other way round, or one of them."""
    axis = net.between(1, len(net.size[x]))
    length = net.size[x][axis - 1]
    if length < 2:
        return x
    first = net.between(1, length - 1)
    names = [f"t{len(net.nodes)}_{i}" for i in range(2)]
    net.nodes.append(
        helper.make_node(
            "Split", [x, net.ints(first, length - first)], names, f"Split_{names[0]}", axis=axis
        )
    )
    for name, part in zip(names, (first, length - first), strict=True):
        shape = list(net.size[x])
        shape[axis - 1] = part
        net.size[name] = tuple(shape)
    if net.chance(0.3):
        return names[0]
    return net.concat(names[1], names[0], axis=axis)


def gathered(net, x):
    """Elements of an axis, in any order, some of them twice."""
    axis = net.between(1, len(net.size[x]))
    length = net.size[x][axis - 1]
    indices = [net.between(0, length - 1) for _ in range(net.between(1, 4))]
    shape = list(net.size[x])
    shape[axis - 1] = len(indices)
    return net.add("Gather", [x, net.ints(*indices)], shape, axis=axis)


def tiled(net, x):
    """A tensor several times along an axis."""
    if np.prod(net.size[x]) > 600:
        return x
    times = [1] * len(net.size[x])
    times[net.between(0, len(times) - 1)] = net.between(2, 3)
    return net.add(
        "Tile", [x, net.ints(1, *times)], [s * t for s, t in zip(net.size[x], times, strict=True)]
    )


def padded(net, x):
    """Zeros around."""
    axes = len(net.size[x])
    return net.pad(
        x,
        *([0] + [net.between(0, 2) for _ in range(axes - 1)]),
        *[net.between(0, 1) for _ in range(axes)],
    )


def squeezed(net, x):
    """An axis of length 1 more, or one less."""
    ones = [i + 1 for i, s in enumerate(net.size[x]) if s == 1]
    shape = list(net.size[x])
    if ones and len(shape) > 1:
        axis = net.pick(*ones)
        del shape[axis - 1]
        return net.add("Squeeze", [x, net.ints(axis)], shape)
    if len(shape) > 2:
        return x
    axis = net.between(1, len(shape) + 1)
    return net.add("Unsqueeze", [x, net.ints(axis)], [*shape[: axis - 1], 1, *shape[axis - 1 :]])


def expanded(net, x):
    """The mean of every channel, spread out again."""
    shape = net.size[x]
    if len(shape) != 3:
        return x
    mean = net.add("GlobalAveragePool", [x], (shape[0], 1, 1))
    wide = net.add("Expand", [mean, net.ints(1, *shape)], shape)
    return net.add_elementwise("Add", wide, x) if net.chance(0.5) else wide


def kept(net, x):
    """Nothing, as exporters leave it behind."""
    return net.add_elementwise(net.pick("Identity", "Dropout"), x)


MOVES = (
    transposed,
    transposed,
    reshaped,
    reshaped,
    sliced,
    split,
    gathered,
    tiled,
    padded,
    squeezed,
    expanded,
    kept,
)


def layer(net, x):
    """A layer of the rank."""
    rank = len(net.size[x])
    if rank > 1 and net.chance(0.7):
        return net.act(net.convolve(x, net.between(2, 8), net.pick(1, 3)), "Relu", "none")
    return net.act(net.linear(x, net.between(2, 10)), "Relu", "none")


def build(net):
    """Draw a net in which data move."""
    shape = net.pick(
        (net.between(1, 6), net.between(2, 9), net.between(2, 9)),
        (net.between(2, 8), net.between(2, 10)),
        (net.between(2, 16),),
    )
    x = net.enter(*shape)
    if net.chance(0.7):
        x = layer(net, x)
    for _ in range(net.between(1, 3)):
        for _ in range(net.between(1, 3)):
            x = net.pick(*MOVES)(net, x)
        x = layer(net, x)
    if net.chance(0.2):
        x = net.pick(*MOVES)(net, x)
    return [x]
