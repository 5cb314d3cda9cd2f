"""Fully connected nets on one or several rows: residuals, gates, norms, splits and joins, any
width.
"""

__all__ = ["block", "build"]


def plain(net, x):
    """A layer with an activation."""
    return net.act(net.linear(x, net.between(1, 20)), *_KINDS)


def residual(net, x):
    """Two layers and the way around them."""
    width = net.size[x][-1]
    y = net.linear(net.act(net.linear(x, net.between(1, 16)), *_KINDS), width)
    return net.add_elementwise("Add", *net.pick((x, y), (y, x)))


def gated(net, x):
    """The product of a layer and the sigmoid of another one."""
    width = net.between(1, 16)
    gate = net.add_elementwise("Sigmoid", net.linear(x, width))
    return net.add_elementwise(
        "Mul", *net.pick((net.linear(x, width), gate), (gate, net.linear(x, width)))
    )


def halves(net, x):
    """A layer in two halves, one of which gates the other or is taken from it."""
    width = net.between(1, 10)
    y = net.linear(x, 2 * width)
    last = len(net.size[y])
    a = net.slice(y, last, 0, width)
    b = net.slice(y, last, width, 2 * width)
    if net.chance(0.5):
        return net.add_elementwise("Mul", a, net.add_elementwise("Sigmoid", b))
    return net.add_elementwise("Sub", a, b)


def joined(net, x):
    """What comes in beside what a layer makes of it."""
    y = net.act(net.linear(x, net.between(1, 8)), "Relu", "Tanh")
    return net.concat(x, y, axis=len(net.size[x]))


def normal(net, x):
    """A layer norm, with or without a layer before it."""
    return net.layer_norm(
        net.linear(x, net.between(2, 16)) if net.chance(0.4) or net.size[x][-1] < 2 else x
    )


def batch_norm(net, x):
    """A batch norm of a vector."""
    return net.norm(net.linear(x, net.between(2, 12))) if len(net.size[x]) == 1 else x


_KINDS = ("Relu", "Relu", "Tanh", "Sigmoid", "gelu", "silu", "LeakyRelu", "none")
BLOCKS = (plain, plain, residual, residual, gated, halves, joined, normal, batch_norm)


def block(net, x):
    """One block."""
    return net.pick(*BLOCKS)(net, x)


def build(net):
    """Draw a net on rows."""
    shape = (net.between(1, 24),) if net.chance(0.5) else (net.between(1, 9), net.between(1, 16))
    x = net.enter(*shape)
    for _ in range(net.between(1, 5)):
        x = block(net, x)
    if len(net.size[x]) == 2 and net.chance(0.5):
        x = net.mean(x, 1, keep=False) if net.chance(0.6) else net.flat(x)
    y = net.linear(x, net.between(1, 9))
    end = net.pick("none", "none", "none", "Softmax", "LogSoftmax", "Sigmoid")
    return [
        y
        if end == "none"
        else net.add_elementwise(end, y, **({"axis": -1} if "Softmax" in end else {}))
    ]
