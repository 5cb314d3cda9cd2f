"""Small nets at sizes where a packer or an executor goes wrong: gates of many channels, depthwise
and grouped layers, wide pools and pads, strides that leave rows over, LSTMs of uneven sizes,
concatenations across a U-Net, attention and norms of few numbers, and several outputs.
"""

from tests.fuzz.families import attention, recurrent

__all__ = ["build"]


def build_squeeze_and_excite(net):
    """Squeeze and excite: more channels than positions, a residual, one or several readers."""
    side = net.pick(1, 2, 3, 4, 5)
    x = net.enter(net.between(2, 8), side, net.between(1, 8))
    a = net.convolve(x, 4 * net.between(1, 20), net.pick(1, 1, 3) if side > 2 else 1)
    channels = net.size[a][0]
    mean = net.add("GlobalAveragePool", [a], (channels, 1, 1))
    inner = net.act(net.convolve(mean, net.between(1, 12), 1), "Relu")
    gate = net.act(net.convolve(inner, channels, 1), "Relu", "HardSigmoid")
    product = net.add_elementwise("Mul", a, gate)
    if net.chance(0.5):
        product = net.add_elementwise("Add", product, a)
    outputs = [net.convolve(net.act(product, "Relu", "none"), net.between(2, 8), 1)]
    return [*outputs, a] if net.chance(0.3) else outputs


def build_grouped_layers(net):
    """Layers in groups, on a line or an image; two of them may read one tensor."""
    sides = [net.between(8, 40)] if net.chance(0.5) else [net.between(4, 12), net.between(4, 12)]
    x = net.enter(net.between(2, 6), *sides)
    a = net.act(net.convolve(x, 12, 3), "Relu")
    found = []
    for _ in range(net.between(1, 2)):
        group = net.pick(2, 3, 4, 6, 12)
        outputs = 12 if group == 12 else group * net.between(1, 4)
        found.append(net.act(net.convolve(a, outputs, net.pick(1, 3), group=group), "Relu", "none"))
    joined = net.concat(*found) if len(found) > 1 else found[0]
    return [net.convolve(joined, net.between(2, 6), 1)]


def build_inverted_residual(net):
    """Inverted residuals over large maps, whose strides leave rows over or not."""
    x = net.enter(net.pick(1, 2, 3), net.between(40, 140), net.pick(32, 40, 48, 60, 64))
    stride = net.pick(2, 2, 4)
    pads = [net.pick(0, 0, 1) for _ in range(4)]
    a = net.act(net.convolve(x, net.between(2, 8), net.pick(stride, 4, 5), stride, pads), "Relu")
    channels = net.size[a][0]
    b = net.convolve(a, channels, 3, net.pick(1, 2), net.pick(None, [0] * 4), group=channels)
    return [net.convolve(net.act(b, "relu6", "Relu"), net.between(2, 6), 1)]


def build_wide_pool(net):
    """Average pools with wide windows and strides, and large pads."""
    x = net.enter(net.between(1, 4), net.between(2, 34), net.between(16, 60))
    a = net.act(net.convolve(x, net.between(2, 50), 1), "Relu")
    _, height, width = net.size[a]
    if net.chance(0.4):
        kernel = net.pick(3, 5)
        channels = net.size[a][0]
        a = net.act(net.convolve(a, channels, kernel, group=channels), "Relu")
    window = [net.pick(1, 2, 3), net.pick(width, 8, 12, 20, 3)]
    window = [min(window[0], height), min(window[1], width)]
    return [net.convolve(net.pool(a, "AveragePool", window, window), net.between(2, 6), 1)]


def build_sequence(net):
    """An LSTM of any number of units, over more steps than features or fewer."""
    x = net.enter(net.between(2, 16), net.between(2, 16))
    direction = net.pick("forward", "forward", "reverse", "bidirectional")
    y = recurrent.layer(net, x, "LSTM", net.between(1, 24), direction, "steps")
    outputs = [net.linear(y, net.between(2, 12))]
    if net.chance(0.3):
        outputs.append(net.linear(net.layer_norm(y), net.between(2, 8)))
    return outputs


def build_shared_trunk(net):
    """A trunk that three nodes read: with a Softmax on the host, reshaped twice, and as it is."""
    x = net.enter(net.between(2, 6), net.between(3, 8), net.between(3, 8))
    a = net.act(net.convolve(x, net.between(2, 12), 3), "Relu")
    channels, height, width = net.size[a]
    flat = net.reshape(a, channels, height * width)
    again = net.reshape(flat, channels * height * width)
    found = [
        net.convolve(a, net.between(2, 6), 1),
        net.add_elementwise("Softmax", net.linear(again, net.between(2, 8)), axis=-1),
        flat,
        net.convolve(a, net.between(2, 6), 3),
    ]
    order = net.rng.permutation(len(found))[: net.between(2, 4)]
    return [found[index] for index in order]


def build_small_unet(net):
    """A U-Net of few channels: concatenations across, of two tensors or three, some read again."""
    x = net.enter(net.between(1, 4), 4 * net.between(1, 6), 4 * net.between(1, 10))
    across = []
    for _ in range(net.between(1, 2)):
        x = net.act(net.convolve(x, net.between(1, 12), 3), "Relu")
        across.append(x)
        x = net.pool(x, net.pick("MaxPool", "AveragePool"), 2, 2)
    x = net.act(net.convolve(x, net.between(2, 16), 3), "Relu")
    for skip in reversed(across):
        x = net.spread(x, net.between(1, 8), 2, 2)
        parts = net.pick([x, skip], [skip, x], [x, skip, skip])
        x = net.act(net.convolve(net.concat(*parts), net.between(2, 9), net.pick(1, 3)), "Relu")
    outputs = [net.convolve(x, net.between(1, 4), 1)]
    return [*outputs, across[0]] if net.chance(0.3) else outputs


def build_small_attention(net):
    """Attention with several heads of few numbers, and norms before or after it."""
    heads, each, steps = net.pick(2, 2, 3, 4), net.between(1, 4), net.between(2, 9)
    x = net.linear(net.enter(steps, net.between(1, 12)), heads * each)
    before = net.chance(0.5)
    x = attention.around(net, x, lambda rows: attention.attention(net, rows, heads, False), before)
    if net.chance(0.5):
        x = attention.around(net, x, lambda rows: attention.forward(net, rows), before)
    return [net.linear(x, net.between(1, 6))]


def build_narrow_norms(net):
    """Norms of few numbers over few rows, between linear layers, with residuals."""
    x = net.enter(net.between(1, 12), net.between(2, 10))
    for _ in range(net.between(1, 3)):
        y = net.linear(net.layer_norm(x), net.size[x][-1] if net.chance(0.5) else net.between(2, 9))
        same_shape = net.size[y] == net.size[x]
        x = net.add_elementwise("Add", y, x) if same_shape else net.act(y, "Relu", "none")
    outputs = [net.linear(x, net.between(1, 6))]
    return [*outputs, net.layer_norm(x)] if net.chance(0.3) else outputs


#: Name of the kind, as tables show it -> what draws it.
KINDS = {
    "gates": build_squeeze_and_excite,
    "groups": build_grouped_layers,
    "inverted residuals": build_inverted_residual,
    "wide pools": build_wide_pool,
    "sequences": build_sequence,
    "shared trunks": build_shared_trunk,
    "small U-Nets": build_small_unet,
    "heads": build_small_attention,
    "norms": build_narrow_norms,
}


def build(net):
    """Draw one of these nets, whose kind the net then names."""
    net.kind = net.pick(*KINDS)
    return KINDS[net.kind](net)
