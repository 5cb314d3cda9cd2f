"""Several inputs and outputs: joined in all ways, read in the middle, with float operators of the
host around them.
"""

import numpy as np
from onnx import TensorProto

from tests.fuzz.families import image, recurrent, rows

__all__ = ["build"]


def images(net):
    """Two or three images of one size, joined, and outputs on the way."""
    height, width = net.between(5, 12), net.between(5, 12)
    parts = [net.enter(net.between(1, 4), height, width) for _ in range(net.between(2, 3))]
    channels = net.between(2, 6)
    if net.chance(0.4):
        x = net.convolve(net.concat(*parts), channels, 3)
    else:
        made = [net.convolve(part, channels, net.pick(1, 3)) for part in parts]
        x = made[0]
        for other in made[1:]:
            x = net.add_elementwise(net.pick("Add", "Add", "Mul", "Sub"), x, other)
    found = []
    for _ in range(net.between(1, 2)):
        x = image.block(net, x)
        if net.chance(0.4):
            found.append(x)
    return [*image.head(net, x), *found]


def mixed(net):
    """An image and a vector: features of both, side by side."""
    x = net.enter(net.between(1, 4), net.between(5, 11), net.between(5, 11))
    y = net.enter(net.between(1, 10))
    x = net.global_mean(net.act(net.convolve(x, net.between(2, 8), 3), "Relu", "relu6"))
    y = net.act(net.linear(y, net.pick(net.size[x][0], net.between(2, 9))), "Relu", "Tanh", "none")
    z = (
        net.add_elementwise("Mul", x, y)
        if net.size[x] == net.size[y] and net.chance(0.5)
        else net.concat(x, y)
    )
    found = [y] if net.chance(0.3) else []
    return [net.linear(rows.block(net, z), net.between(1, 6)), *found]


def vectors(net):
    """Vectors or rows, joined before the first layer."""
    shape = (net.between(1, 12),) if net.chance(0.5) else (net.between(2, 6), net.between(1, 8))
    a, b = net.enter(*shape), net.enter(*shape)
    x = net.pick(
        lambda: net.add_elementwise(net.pick("Add", "Sub", "Mul"), a, b),
        lambda: net.concat(a, b, axis=len(shape)),
        lambda: net.add_elementwise(
            "Sub", net.add_elementwise("Add", a, b), net.add_elementwise("Mul", a, b)
        ),
    )()
    found = []
    for _ in range(net.between(1, 2)):
        x = rows.block(net, x)
        if net.chance(0.4):
            found.append(x)
    return [net.linear(x, net.between(1, 6)), *found]


def products(net):
    """Two rows of vectors, multiplied as matrices."""
    a = net.enter(net.between(1, 6), net.between(1, 8))
    b = net.enter(net.between(1, 6), net.size[a][1])
    b = net.transpose(net.linear(b, net.size[a][1]) if net.chance(0.5) else b, 0, 2, 1)
    y = net.add(
        "MatMul",
        [net.linear(a, net.size[a][1]) if net.chance(0.5) else a, b],
        (net.size[a][0], net.size[b][1]),
    )
    return (
        [net.linear(y, net.between(1, 5)), y]
        if net.chance(0.5)
        else [net.linear(y, net.between(1, 5))]
    )


def looked_up(net):
    """Words or bytes: a table is read at integers, then layers, or a recurrent one."""
    count, width, steps = net.between(3, 20), net.between(2, 8), net.between(2, 8)
    kind = net.pick(TensorProto.INT64, TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8)
    words = net.enter(steps, count=count, kind=kind)
    if kind == TensorProto.UINT8 or net.chance(0.2):
        words = net.add_elementwise("Cast", words, to=TensorProto.INT64)
    x = net.add("Gather", [net.real(count, width), words], (steps, width), axis=0)
    if net.chance(0.4):
        x = recurrent.layer(net, x, net.pick("LSTM", "GRU"), net.between(1, 8), "forward", "steps")
    else:
        x = rows.block(net, x)
    x = net.mean(x, 1, keep=False) if len(net.size[x]) == 2 and net.chance(0.7) else x
    return [net.linear(x, net.between(1, 6))]


def hosted(net):
    """Float operators before and behind the layers, which stay with the host."""
    x = net.enter(net.between(1, 4), net.between(5, 10), net.between(5, 10))
    x = net.add_elementwise(
        net.pick("Erf", "Sqrt", "Log"),
        net.add_elementwise("Add", net.add_elementwise("Abs", x), net.const(np.float32(0.5))),
    )
    y = net.act(net.convolve(x, net.between(2, 8), 3), "Relu")
    z = net.linear(net.global_mean(net.convolve(y, net.between(2, 6), 3)), net.between(2, 6))
    p = net.add_elementwise("Softmax", z, axis=-1)
    return (
        [z, net.add_elementwise("Sqrt", p)]
        if net.chance(0.5)
        else [p, net.add_elementwise("Abs", x)]
    )


def build(net):
    """Draw a net of several ends."""
    return net.pick(images, images, mixed, mixed, vectors, vectors, products, looked_up, hosted)(
        net
    )
