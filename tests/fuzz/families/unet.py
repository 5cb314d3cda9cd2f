"""U-Nets: down by pools or strides, up by ConvTranspose or Resize, with concatenations or sums
across.
"""

import numpy as np

__all__ = ["build"]


def twice_as_large(net, x):
    """Return a map of twice the sides."""
    channels, height, width = net.size[x]
    if net.chance(0.5):
        k = net.pick(2, 2, 4)
        pads = [(k - 2) // 2] * 4
        return net.spread(x, net.between(2, 8), k, 2, pads)
    if net.chance(0.5):
        up = [x, "", net.const(np.array([1, 1, 2, 2], np.float32))]
    else:
        up = [x, "", "", net.ints(1, channels, 2 * height, 2 * width)]
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if net.batch == "N" and len(up) == 4:
        up = [x, "", net.const(np.array([1, 1, 2, 2], np.float32))]
    return net.add(
        "Resize",
        up,
        (channels, 2 * height, 2 * width),
        mode="nearest",
        **(how if net.chance(0.7) else {}),
    )


def fitting(net, x, like):
    """Return `x` cropped or padded to the sides of `like`."""
    for axis in (2, 3):
        have, want = net.size[x][axis - 1], net.size[like][axis - 1]
        if have > want:
            x = net.slice(x, axis, 0, want)
        elif have < want:
            pads = [0] * 6
            pads[axis - 1 + 3] = want - have
            x = net.pad(x, *pads)
    return x


def build(net):
    """Draw a U-Net."""
    x = net.enter(net.between(1, 4), net.between(8, 18), net.between(8, 18))
    across = []
    for _ in range(net.between(1, 2)):
        x = net.act(net.convolve(x, net.between(3, 8), 3), "Relu", "LeakyRelu", "relu6")
        x = net.norm(x) if net.chance(0.2) else x
        across.append(x)
        x = (
            net.pool(x, net.pick("MaxPool", "AveragePool"), 2, 2)
            if net.chance(0.6)
            else net.convolve(x, 6, 3, 2)
        )
    x = net.act(net.convolve(x, net.between(4, 10), 3), "Relu", "silu")
    for skip in reversed(across):
        x = fitting(net, twice_as_large(net, x), skip)
        if net.chance(0.3):
            x = net.add_elementwise("Add", net.convolve(x, net.size[skip][0], 1), skip)
        else:
            x = net.concat(*net.pick((x, skip), (skip, x)))
        x = net.act(net.convolve(x, net.between(2, 8), 3), "Relu", "LeakyRelu", "none")
    y = net.convolve(x, net.between(1, 4), 1)
    return [net.act(y, "Sigmoid", "none", "none", "Tanh")]
