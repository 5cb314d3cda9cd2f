"""LSTM and GRU: forward, reverse, bidirectional, stacked, behind convolutions, with residuals; 1 to
16 units.
"""

import numpy as np

__all__ = ["build", "layer", "weights"]

GATES = {"LSTM": 4, "GRU": 3}


def weights(net, kind, inputs, units, count):
    """Return the names of W, R and B of `count` directions, B absent at times."""
    gates = GATES[kind]
    found = [
        net.real(count, gates * units, inputs, spread=1 / np.sqrt(inputs)),
        net.real(count, gates * units, units, spread=1 / np.sqrt(units)),
    ]
    return [*found, net.real(count, 2 * gates * units, spread=0.1)] if net.chance(0.8) else found


def layer(net, x, kind, units, direction, last):
    """Return a layer's sequence [steps, units * directions] on rows [steps, width], or what it ends
    with.

    last : "steps" the sequence, "state" the last state (of one direction), "step" the last step of
    the sequence.
    """
    steps, width = net.size[x]
    count = 2 if direction == "bidirectional" else 1
    names = weights(net, kind, width, units, count)
    more = {"linear_before_reset": net.pick(1, 1, 0)} if kind == "GRU" else {}
    time_first = net.node("Transpose", x, perm=[1, 0, 2])
    y = f"t{len(net.nodes)}"
    outputs = [y, f"{y}_h"] if last == "state" else [y]
    net.nodes.append(
        _node(kind, [time_first, *names], outputs, hidden_size=units, direction=direction, **more)
    )
    wide = units * count
    if last == "state":
        if count == 1:
            return net.add("Squeeze", [outputs[1], net.ints(0)], (units,))
        turned = net.node("Transpose", outputs[1], perm=[1, 0, 2])
        return net.add("Reshape", [turned, net.ints(0, wide)], (wide,))
    if count == 1:
        rows = net.node("Squeeze", y, net.ints(1))
    else:
        turned = net.node("Transpose", y, perm=[0, 2, 1, 3])
        rows = net.node("Reshape", turned, net.ints(0, 0, wide))
    if last == "step":
        return net.add("Gather", [rows, net.const(np.array(-1))], (wide,), axis=0)
    return net.add("Transpose", [rows], (steps, wide), perm=[1, 0, 2])


def _node(kind, inputs, outputs, **attributes):
    from onnx import helper

    return helper.make_node(kind, inputs, outputs, name=f"{kind}_{outputs[0]}", **attributes)


def front(net):
    """Return rows [steps, width] behind nothing, a layer, or convolutions in time or of an
    image.
    """
    kind = net.pick("none", "none", "none", "layer", "line", "image")
    if kind == "image":
        x = net.enter(net.between(1, 3), net.between(4, 10), net.between(5, 14))
        x = net.pool(net.act(net.convolve(x, net.between(2, 6), 3), "Relu"), "MaxPool", 2, [2, 1])
        channels, height, steps = net.size[x]
        return net.reshape(net.transpose(x, 0, 3, 1, 2), steps, channels * height)
    x = net.enter(net.between(2, 12), net.between(1, 14))
    if kind == "line":
        y = net.act(net.convolve(net.transpose(x, 0, 2, 1), net.between(2, 8), 3), "Relu")
        return net.transpose(y, 0, 2, 1)
    return (
        net.act(net.linear(x, net.between(2, 10)), "Relu", "Tanh", "none") if kind == "layer" else x
    )


def build(net):
    """Draw a recurrent net."""
    x = front(net)
    count = net.pick(1, 1, 1, 2)
    for number in range(count):
        kind = net.pick("LSTM", "LSTM", "GRU")
        direction = net.pick("forward", "forward", "reverse", "bidirectional")
        final = number == count - 1
        last = net.pick("steps", "steps", "state", "step") if final else "steps"
        units = net.between(1, 16)
        if last == "steps" and direction != "bidirectional" and net.chance(0.3):
            units = net.size[x][-1]
        y = layer(net, x, kind, min(units, 16), direction, last)
        x = (
            net.add_elementwise("Add", y, x)
            if net.size[y] == net.size[x] and net.chance(0.7)
            else y
        )
        if not final and net.chance(0.2):
            x = net.layer_norm(x)
    if len(net.size[x]) == 2 and net.chance(0.5):
        x = net.mean(x, 1, keep=False)
    return [net.linear(x, net.between(1, 6))] if net.chance(0.85) else [x]
