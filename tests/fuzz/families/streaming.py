"""Nets that are called step after step, with states that go in and out: caches of convolutions,
LSTM and GRU.
"""

import numpy as np

from tests.fuzz.families.recurrent import GATES

__all__ = ["build"]


def cached(net, x, number):
    """A causal convolution on [channels, steps] that brings the steps before along."""
    channels, steps = net.size[x]
    kernel = net.between(2, 4)
    state = net.enter(channels, kernel - 1, name=f"cache{number}")
    whole = net.concat(state, x, axis=2)
    y = net.act(
        net.convolve(whole, net.between(2, 8), kernel, pads=[0, 0]), "Relu", "LeakyRelu", "none"
    )
    new = net.slice(whole, 2, steps, steps + kernel - 1)
    net.state[new] = state
    return y


def recurrent(net, x, number, kind):
    """A layer on [steps, width] that goes on from states."""
    steps, width = net.size[x]
    units = net.between(1, 9)
    gates = GATES[kind]
    held = ["h", "c"] if kind == "LSTM" else ["h"]
    states = [net.enter(units, name=f"{what}{number}") for what in held]
    ready = [net.node("Unsqueeze", s, net.ints(0)) for s in states]
    names = [
        net.real(1, gates * units, width, spread=1 / np.sqrt(width)),
        net.real(1, gates * units, units, spread=1 / np.sqrt(units)),
        net.real(1, 2 * gates * units, spread=0.1),
    ]
    time_first = net.node("Transpose", x, perm=[1, 0, 2])
    y = f"t{len(net.nodes)}"
    results = [y, *(f"{y}_{what}" for what in held)]
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    net.nodes.append(
        _node(kind, [time_first, *names, "", *ready], results, hidden_size=units, **more)
    )
    for state, result in zip(states, results[1:], strict=True):
        new = net.add("Squeeze", [result, net.ints(0)], (units,))
        net.state[new] = state
    return net.add(
        "Transpose", [net.node("Squeeze", y, net.ints(1))], (steps, units), perm=[1, 0, 2]
    )


def _node(kind, inputs, outputs, **attributes):
    from onnx import helper

    return helper.make_node(kind, inputs, outputs, name=f"{kind}_{outputs[0]}", **attributes)


def averaged(net, x, number):
    """A slow mean: the state moves towards what comes in."""
    steps, width = net.size[x]
    state = net.enter(steps, width, name=f"mean{number}")
    new = net.add_elementwise(
        "Add",
        net.add_elementwise("Mul", state, net.const(np.float32(0.75))),
        net.add_elementwise("Mul", x, net.const(np.float32(0.25))),
    )
    net.state[new] = state
    return net.add_elementwise("Sub", x, new)


def build(net):
    """Draw a streaming net; its outputs are what it computes and its states."""
    steps = net.between(1, 4)
    x = net.enter(net.between(1, 8), steps, name="x")
    x = net.convolve(x, net.between(2, 8), 1)
    for number in range(net.between(1, 2)):
        kind = net.pick("cached", "cached", "LSTM", "GRU", "mean")
        if kind == "cached":
            x = cached(net, x, number)
        elif kind == "mean":
            x = net.convolve(averaged(net, x, number), net.between(2, 6), 1)
        else:
            x = net.transpose(recurrent(net, net.transpose(x, 0, 2, 1), number, kind), 0, 2, 1)
    return [net.convolve(x, net.between(1, 5), 1), *net.state]
