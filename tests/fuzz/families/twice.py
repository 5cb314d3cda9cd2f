"""One tensor read twice in a node, or by several nodes: graph inputs, inner tensors, of all
ranks.
"""

__all__ = ["build"]


def product(net, x):
    """x * x."""
    return net.add_elementwise("Mul", x, x)


def total(net, x):
    """x + x."""
    return net.add_elementwise("Add", x, x)


def beside(net, x):
    """The tensor beside itself, at times with another one between."""
    axis = net.between(1, len(net.size[x]))
    if net.chance(0.3):
        return net.concat(x, net.add_elementwise("Relu", x), x, axis=axis)
    return net.concat(x, x, axis=axis)


def turned(net, x):
    """x times its transpose, on rows."""
    steps, _ = net.size[x]
    return net.add("MatMul", [x, net.transpose(x, 0, 2, 1)], (steps, steps))


def halves(net, x):
    """Two parts of one tensor, multiplied or added."""
    axis = net.between(1, len(net.size[x]))
    half = net.size[x][axis - 1] // 2
    if not half:
        return total(net, x)
    parts = net.slice(x, axis, 0, half), net.slice(x, axis, half, 2 * half)
    return net.add_elementwise(net.pick("Mul", "Add", "Sub"), *parts)


def layer(net, x):
    """A layer of the rank."""
    if len(net.size[x]) == 3:
        return net.act(net.convolve(x, net.between(2, 8), net.pick(1, 3)), "Relu", "none")
    return net.act(net.linear(x, net.between(2, 10)), "Relu", "none")


def around(net, x):
    """A layer and the tensor itself, added; the sum is read twice again."""
    y = layer(net, x)
    return net.add_elementwise("Add", y, x) if net.size[x] == net.size[y] else y


def build(net):
    """Draw a net of few nodes that read tensors twice, most often straight behind an input."""
    shape = net.pick(
        (net.between(1, 5), net.between(3, 9), net.between(3, 9)),
        (net.between(1, 6), net.between(1, 8)),
        (net.between(1, 12),),
    )
    x = net.enter(*shape)
    kinds = [product, total, beside, halves, *([turned] if len(shape) == 2 else [])]
    if net.chance(0.3):
        x = layer(net, x)
    x = net.pick(*kinds)(net, x)
    for _ in range(net.between(0, 3)):
        later = [*(kind for kind in kinds if kind is not turned), layer, layer, around]
        x = net.pick(*later)(net, x)
    return [layer(net, x)] if net.chance(0.8) else [x]
