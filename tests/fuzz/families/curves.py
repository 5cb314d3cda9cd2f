"""Every function of one number, and constants added, multiplied and divided by, between layers of
all ranks.
"""

import numpy as np

from tests.fuzz.random_net import CURVES, SINCE

__all__ = ["build"]

SAFE = (*CURVES, "Mish", "relu6", "silu", "gelu", "PRelu", "Clip")
POSITIVE = ("Log", "Sqrt", "Reciprocal", "Pow", "Div")


def safe(net, x):
    """A function that takes every number."""
    kind = net.pick(*SAFE)
    if SINCE.get(kind, 0) > net.opset:
        kind = "Sigmoid"
    if kind == "Mish":
        return net.add_elementwise("Mish", x)
    if kind == "Clip":
        low, high = net.pick((-1.0, 1.0), (0.0, 1.0), (-0.5, 2.0), (0.0, 20.0))
        return net.add_elementwise(
            "Clip", x, net.const(np.float32(low)), net.const(np.float32(high))
        )
    return net.act(x, kind)


def positive(net, x):
    """A function that takes numbers above 0."""
    above = net.add_elementwise(
        "Add",
        net.add_elementwise(net.pick("Abs", "Softplus", "Sigmoid"), x),
        net.const(np.float32(0.3)),
    )
    kind = net.pick(*POSITIVE)
    if kind == "Pow":
        return net.add_elementwise(
            "Pow", above, net.const(np.float32(net.pick(0.5, 2.0, 1.5, -1.0)))
        )
    if kind == "Div":
        return net.add_elementwise("Div", x, above)
    return net.add_elementwise(kind, above)


def growing(net, x):
    """The exponential of small numbers."""
    return net.add_elementwise(
        "Exp",
        net.add_elementwise(
            "Mul", net.add_elementwise("Tanh", x), net.const(np.float32(net.pick(-1.0, 0.5, 2.0)))
        ),
    )


def constant(net, x):
    """A constant on one side: a number, one per channel, one per element."""
    shape = net.size[x]
    many = net.pick((), (shape[0], *[1] * (len(shape) - 1)), shape, (shape[-1],))
    values = net.rng.uniform(0.4, 1.6, many) * net.pick(1, 1, -1)
    kind = net.pick("Add", "Sub", "Mul", "Div")
    k = net.const(values.astype(np.float32))
    if kind in ("Add", "Mul", "Sub") and net.chance(0.3):
        return net.add(kind, [k, x], shape)
    return net.add_elementwise(kind, x, k)


def layer(net, x):
    """A layer of the rank."""
    if len(net.size[x]) == 3 or (len(net.size[x]) == 2 and net.chance(0.5)):
        return net.convolve(x, net.between(2, 8), net.pick(1, 3))
    return net.linear(x, net.between(2, 10))


def build(net):
    """Draw a net of layers and curves."""
    shape = net.pick(
        (net.between(1, 5), net.between(3, 8), net.between(3, 8)),
        (net.between(2, 8), net.between(2, 8)),
        (net.between(2, 12),),
    )
    x = net.enter(*shape)
    if net.chance(0.8):
        x = layer(net, x)
    for _ in range(net.between(2, 4)):
        x = net.pick(safe, safe, safe, safe, positive, growing, constant, constant)(net, x)
        if net.chance(0.8):
            x = layer(net, x)
    return [x]
