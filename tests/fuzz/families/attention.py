"""Attention and transformers: heads, masks, layer norms before and after, several kinds of
feed-forward layers.
"""

import numpy as np

from tests.fuzz.families.rows import block as row_block

__all__ = ["build"]


def attention(net, x, heads, mask):
    """Scaled dot-product attention of rows [steps, width] with themselves."""
    steps, width = net.size[x]
    each = width // heads
    q, k, v = (net.linear(x, width, bias=net.chance(0.5)) for _ in range(3))
    if heads > 1 or net.chance(0.3):
        q, v = (net.transpose(net.reshape(part, steps, heads, each), 0, 2, 1, 3) for part in (q, v))
        k = net.transpose(net.reshape(k, steps, heads, each), 0, 2, 3, 1)
        shape, rows = (heads, steps, steps), (heads, steps, each)
    else:
        k = net.transpose(k, 0, 2, 1)
        shape, rows = (steps, steps), (steps, width)
    factor = np.float32(1 / np.sqrt(each))
    if net.chance(0.3):
        q = net.add_elementwise("Mul", q, net.const(factor))
        scores = net.add("MatMul", [q, k], shape)
    else:
        scores = net.add("MatMul", [q, k], shape)
        scores = (
            net.add_elementwise("Div", scores, net.const(1 / factor))
            if net.chance(0.5)
            else net.add_elementwise("Mul", scores, net.const(factor))
        )
    if mask:
        above = np.triu(np.full((steps, steps), net.pick(-1e4, -1e9, -30.0)), 1)
        scores = net.add_elementwise("Add", scores, net.const(above.astype(np.float32)))
    y = net.add("MatMul", [net.add_elementwise("Softmax", scores, axis=-1), v], rows)
    if len(rows) == 3:
        y = net.reshape(net.transpose(y, 0, 2, 1, 3), steps, width)
    return net.linear(y, width)


def forward(net, x):
    """A feed-forward layer of two."""
    width = net.size[x][-1]
    inner = net.act(net.linear(x, net.between(2, 20)), "Relu", "gelu", "silu", "LeakyRelu")
    return net.linear(inner, width)


def around(net, x, layer, before):
    """A layer with the way around it, and a norm before or after."""
    y = layer(net.layer_norm(x) if before else x)
    y = net.add_elementwise("Add", *net.pick((x, y), (y, x)))
    return y if before or net.chance(0.2) else net.layer_norm(y)


def build(net):
    """Draw a transformer."""
    heads, each, steps = net.pick(1, 1, 2, 3, 4), net.between(1, 6), net.between(2, 11)
    width = heads * each if heads * each > 1 else 2
    x = net.enter(steps, net.between(1, 12))
    x = net.linear(x, width) if net.chance(0.8) or net.size[x][-1] != width else x
    if net.chance(0.6):
        x = net.add_elementwise("Add", x, net.real(1, steps, width, spread=0.5))
    before, mask = net.chance(0.5), net.chance(0.4)
    for _ in range(net.between(1, 2)):
        x = around(net, x, lambda rows: attention(net, rows, heads, mask), before)
        if net.chance(0.8):
            x = around(net, x, lambda rows: forward(net, rows), before)
    if net.chance(0.3):
        x = net.layer_norm(x)
    if net.chance(0.2):
        x = row_block(net, x)
    kind = net.pick("mean", "mean", "rows", "first")
    if kind == "rows":
        return [net.linear(x, net.between(1, 6))]
    if kind == "first":
        x = net.add("Gather", [x, net.const(np.array(0))], net.size[x][1:], axis=1)
    else:
        x = net.mean(x, 1, keep=False)
    return [net.linear(x, net.between(2, 8))]
