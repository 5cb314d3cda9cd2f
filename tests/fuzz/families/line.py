"""Nets along time: causal and dilated convolutions, depthwise ones, pools, transposed ones,
residuals.
"""

__all__ = ["build"]


def causal(net, x):
    """A dilated convolution that sees no later step, with the way around it."""
    channels, steps = net.size[x]
    kernel, dilation = net.between(2, 4), net.pick(1, 1, 2, 4)
    reach = (kernel - 1) * dilation
    if net.chance(0.5):
        y = net.convolve(
            net.pad(x, 0, reach, 0, 0), channels, kernel, dilation=dilation, pads=[0, 0]
        )
    else:
        y = net.convolve(x, channels, kernel, dilation=dilation, pads=[reach, 0])
    y = net.act(y, "Relu", "LeakyRelu", "Tanh", "silu")
    return net.add_elementwise("Add", y, x) if net.chance(0.7) else y


def wavenet(net, x):
    """A gate of tanh and sigmoid."""
    channels = net.size[x][0]
    a, b = (net.convolve(x, channels, 3) for _ in range(2))
    y = net.add_elementwise(
        "Mul", net.add_elementwise("Tanh", a), net.add_elementwise("Sigmoid", b)
    )
    return net.add_elementwise("Add", net.convolve(y, channels, 1), x)


def plain(net, x):
    """A convolution of any length and stride."""
    kernel = net.pick(1, 2, 3, 5, 7, 9)
    pads = [net.between(0, kernel - 1) for _ in range(2)] if net.chance(0.5) else None
    made = net.convolve(x, net.between(1, 12), kernel, net.pick(1, 1, 2, 3), pads)
    return net.act(made) if made else x


def separable(net, x):
    """Depthwise and pointwise."""
    wide = net.size[x][0]
    y = net.act(net.convolve(x, wide, net.pick(3, 5, 9), group=wide), "Relu", "none", "relu6")
    y = net.convolve(y, net.pick(wide, net.between(2, 10)), 1)
    return net.add_elementwise("Add", y, x) if net.size[y] == net.size[x] else y


def pooled(net, x):
    """A pool along time."""
    more = net.pick(2, 3)
    return net.pool(x, net.pick("MaxPool", "AveragePool"), more, net.pick(1, more))


def longer(net, x):
    """A transposed convolution."""
    return net.act(net.spread(x, net.between(2, 8), net.pick(2, 4), 2), "Relu", "none")


def on_images(net, x):
    """The same as an image of one row, as exporters of two-dimensional layers write it."""
    channels, steps = net.size[x]
    y = net.add("Unsqueeze", [x, net.ints(net.pick(2, 2, 3))], (channels, 1, steps))
    axis = 2
    if net.nodes[-1].input[1] == net.constants[-1].name and int(_last(net)) == 3:
        net.size[y], axis = (channels, steps, 1), 3
    kernel = [1, 3] if axis == 2 else [3, 1]
    y = net.convolve(y, net.between(2, 8), kernel)
    wide, length = net.size[y][0], steps
    return net.add("Squeeze", [net.act(y, "Relu"), net.ints(axis)], (wide, length))


def _last(net):
    from onnx import numpy_helper

    return numpy_helper.to_array(net.constants[-1])[0]


BLOCKS = (
    causal,
    causal,
    wavenet,
    plain,
    plain,
    separable,
    pooled,
    longer,
    on_images,
    lambda net, x: net.norm(x),
)


def build(net):
    """Draw a net along time."""
    x = net.enter(net.between(1, 10), net.between(12, 40))
    x = net.convolve(x, net.between(2, 10), net.pick(1, 3, 5))
    for _ in range(net.between(1, 5)):
        if net.size[x][1] >= 4:
            x = net.pick(*BLOCKS)(net, x)
    kind = net.pick("steps", "classes", "mean")
    if kind == "steps":
        return [net.convolve(x, net.between(1, 6), 1)]
    if kind == "mean":
        return [net.linear(net.mean(x, 2, keep=False), net.between(2, 8))]
    return [net.linear(net.global_mean(x), net.between(2, 8))]
