"""Convolutional nets on images: residual, depthwise, dense and gated blocks, pools, strides, uneven
pads, odd sizes.
"""

__all__ = ["block", "build", "head"]


def plain(net, x):
    """A convolution of any shape, with an activation."""
    kernel = [net.pick(1, 2, 3, 3, 5, 7), net.pick(1, 2, 3, 3, 5)]
    pads = [net.between(0, k - 1) for k in kernel * 2] if net.chance(0.5) else None
    return net.act(
        net.convolve(x, net.between(1, 12), kernel, [net.pick(1, 1, 2), net.pick(1, 1, 2)], pads)
    )


def grouped(net, x):
    """A convolution in groups, or with a dilation."""
    channels = net.size[x][0]
    if net.chance(0.5) and channels % 2 == 0:
        return net.act(net.convolve(x, 2 * net.between(1, 5), 3, group=2))
    return net.act(net.convolve(x, net.between(2, 9), 3, dilation=net.pick(2, 3)))


def residual(net, x):
    """Two convolutions and the way around them."""
    channels, stride = net.size[x][0], net.pick(1, 1, 2)
    wide = channels if stride == 1 else net.between(2, 12)
    inner = net.act(net.convolve(x, net.between(2, 9), 3, stride), "Relu", "relu6", "LeakyRelu")
    after = net.convolve(inner, wide, net.pick(1, 3), gain=0.7)
    around = x if stride == 1 else net.convolve(x, wide, 1, stride, pads=[0] * 4)
    if net.size[around] != net.size[after]:
        return after
    return net.act(
        net.add_elementwise("Add", *net.pick((after, around), (around, after))),
        "Relu",
        "none",
        "relu6",
    )


def separable(net, x):
    """Depthwise and pointwise, widened inside or not."""
    around, channels = x, net.size[x][0]
    if net.chance(0.5):
        x = net.act(net.convolve(x, 2 * channels, 1), "relu6", "Relu", "HardSwish")
    wide = net.size[x][0]
    x = net.act(
        net.convolve(x, wide, net.pick(3, 3, 5), net.pick(1, 1, 2), group=wide),
        "relu6",
        "Relu",
        "none",
    )
    x = net.convolve(x, channels if net.chance(0.6) else net.between(2, 10), 1)
    return net.add_elementwise("Add", x, around) if net.size[x] == net.size[around] else x


def dense(net, x):
    """What comes in beside what a convolution makes of it."""
    more = net.act(net.convolve(x, net.between(1, 5), 3), "Relu", "Sigmoid")
    return net.concat(*net.pick((x, more), (more, x)))


def gated(net, x):
    """Every channel times a number that the whole image gives."""
    channels = net.size[x][0]
    mean = net.add("GlobalAveragePool", [x], (channels, 1, 1))
    gate = net.convolve(net.act(net.convolve(mean, net.between(1, 6), 1), "Relu"), channels, 1)
    return net.add_elementwise("Mul", x, net.act(gate, "Sigmoid", "HardSigmoid"))


def pooled(net, x):
    """A pool of some shape."""
    kind = net.pick("MaxPool", "AveragePool")
    kernel = [net.pick(2, 3), net.pick(2, 2, 3, 1)]
    stride = [net.pick(1, k) for k in kernel]
    pads = [net.between(0, k // 2) for k in kernel * 2] if net.chance(0.3) else None
    more = {"count_include_pad": net.between(0, 1)} if kind == "AveragePool" else {}
    return net.pool(x, kind, kernel, stride, pads, **more)


BLOCKS = (
    plain,
    plain,
    residual,
    residual,
    separable,
    dense,
    gated,
    pooled,
    grouped,
    lambda net, x: net.norm(x),
)


def block(net, x):
    """One block; the tensor itself where the block drawn does not fit, or where it became too
    wide.
    """
    made = net.pick(*BLOCKS)
    if net.size[x][0] > 24 and made is dense:
        return x
    before = len(net.nodes), len(net.constants)
    try:
        return made(net, x) or x
    except KeyError:  # a convolution that did not fit: what was drawn before it is not read
        del net.nodes[before[0] :], net.constants[before[1] :]
        return x


def head(net, x):
    """Return what a net gives of an image: classes, a map, or both."""
    kind = net.pick("classes", "classes", "flat", "map", "both")
    found = []
    if kind in ("map", "both"):
        found.append(net.convolve(x, net.between(1, 6), net.pick(1, 3)))
    if kind != "map":
        y = net.pool(x, "MaxPool", 2, 2) if kind == "flat" else x
        y = net.linear(net.flat(y) if kind == "flat" else net.global_mean(y), net.between(2, 10))
        found.append(net.add_elementwise("Softmax", y, axis=-1) if net.chance(0.3) else y)
    return found


def build(net):
    """Draw a net on images."""
    channels, height, width = net.between(1, 6), net.between(7, 18), net.between(5, 18)
    if net.chance(0.1):  # channels last, as other frameworks have it
        x = net.transpose(net.enter(height, width, channels), 0, 3, 1, 2)
    else:
        x = net.enter(channels, height, width)
    x = net.act(net.convolve(x, net.between(2, 9), 3, net.pick(1, 1, 2)))
    for _ in range(net.between(1, 5)):
        x = block(net, x)
    return head(net, x)
