"""Recurrent cells that a tracer has unrolled, time first or batch first, are computed as in float.

The nodes are those that torch's exporter makes of LSTMCell, GRUCell and RNNCell.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.runtime.runners import FloatRunner
from tests import nets

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_SIZE, _HIDDEN = 6, 8


class _Cells(nets.Net):
    """A net of `steps` cells of one sample; `time`: the axis of the steps, "turned" from 1 to 0 in
    the graph.
    """

    def __init__(self, kind, steps, time, state, bias=True, seed=0):
        first, batch = ((1, _SIZE), steps) if time == "first" else ((steps, _SIZE), 1)
        super().__init__(*first, batch=batch, seed=seed)
        self.kind, self.bias = kind, bias
        self.axis = 1 if time == "second" else 0
        x = self.node("Transpose", "x", perm=[1, 0, 2]) if time == "turned" else "x"
        self.steps = [
            self.node("Gather", x, self.const(np.array(t)), axis=self.axis) for t in range(steps)
        ]
        start = (
            np.zeros
            if state == "zeros"
            else lambda shape, _: self.rng.standard_normal(shape).astype(np.float32)
        )
        self.start = [self.const(start((1, _HIDDEN), np.float32)) for _ in range(2)]

    def weights(self, inputs):
        """Return the names of weights and biases of a cell."""
        rows = _GATES[self.kind] * _HIDDEN
        held = [0.5 * self.rng.standard_normal((rows, n)) for n in (inputs, _HIDDEN)]
        held += [0.2 * self.rng.standard_normal(rows) for _ in range(2 * self.bias)]
        return [self.const(array.astype(np.float32)) for array in held]

    def layer(self, steps, shared=True, inputs=_SIZE):
        """Return the states h of a layer over `steps`."""
        h, c = self.start
        weights, found = self.weights(inputs), []
        for x in steps:
            h, c = getattr(self, self.kind)(x, h, c, weights)
            found.append(h)
            weights = weights if shared else self.weights(inputs)
        return found

    def _gates(self, x, weights, index):
        rest = [weights[2 + index]] if self.bias else []
        return self.node("Gemm", x, weights[index], *rest, transB=1)

    def _split(self, x, count):
        names = [f"{x}_{i}" for i in range(count)]
        sizes = self.const(np.full(count, _HIDDEN))
        self.node("Split", x, sizes, out=names[0], axis=1)
        self.nodes[-1].output.extend(names[1:])
        return names

    def LSTM(self, x, h, c, weights):  # noqa: N802
        """Return h and c."""
        both = self.node("Add", self._gates(h, weights, 1), self._gates(x, weights, 0))
        i, f, g, o = self._split(both, 4)
        i, f, g, o = (self.node("Tanh" if n == g else "Sigmoid", n) for n in (i, f, g, o))
        c = self.node("Add", self.node("Mul", f, c), self.node("Mul", i, g))
        return self.node("Mul", o, self.node("Tanh", c)), c

    def GRU(self, x, h, c, weights):  # noqa: N802
        """Return h and what is not used."""
        (ri, zi, ni), (rh, zh, nh) = (
            self._split(self._gates(v, weights, k), 3) for k, v in enumerate((x, h))
        )
        r, z = (self.node("Sigmoid", self.node("Add", a, b)) for a, b in ((rh, ri), (zh, zi)))
        n = self.node("Tanh", self.node("Add", ni, self.node("Mul", nh, r)))
        return self.node("Add", self.node("Mul", self.node("Sub", h, n), z), n), c

    def RNN(self, x, h, c, weights):  # noqa: N802
        """Return h and what is not used."""
        return self.node(
            "Tanh", self.node("Add", self._gates(h, weights, 1), self._gates(x, weights, 0))
        ), c

    def stacked(self, steps):
        """Return the steps as one output, on the axis that they came from."""
        axis = self.const(np.array([self.axis]))
        rows = [self.node("Unsqueeze", h, axis) for h in steps]
        return self.graph(self.node("Concat", *rows, out="y", axis=self.axis))


def _agrees(model, platform, seed=3):
    """Quantize `model` on samples, and return the dB of its outputs on others, sample by sample."""
    (value,) = model.graph.inputs
    one = tuple(ir.get_shape(value))
    data = [
        {"x": np.random.default_rng([seed, n]).standard_normal(one).astype(np.float32)}
        for n in range(24)
    ]
    found = lo.quantize(model.clone(), data[:16], platform=platform, effort="fast")
    session, source = lo.Session(found.graph), FloatRunner(model, ["y"])
    pairs = [(next(iter(source.run(feed)))[1], session.run(["y"], feed)[0]) for feed in data[16:]]
    noise = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    return 10 * np.log10(sum(float((a**2).sum()) for a, _ in pairs) / max(noise, 1e-30))


@pytest.mark.sweep
@pytest.mark.parametrize("platform", ("generic", "venus"))
@pytest.mark.parametrize("time", ("first", "second", "turned"))
@pytest.mark.parametrize("steps", (1, 2, 3))
@pytest.mark.parametrize("state", ("zeros", "constant"))
@pytest.mark.parametrize("kind", _GATES)
def test_steps_are_as_in_float(kind, state, steps, time, platform):
    cells = _Cells(kind, steps, time, state)
    assert _agrees(cells.stacked(cells.layer(cells.steps)), platform) > 24


@pytest.mark.slow
@pytest.mark.parametrize("platform", ("arcs", "venusA"))
@pytest.mark.parametrize("shared", (True, False))
@pytest.mark.parametrize("kind", _GATES)
def test_layers_and_directions(kind, shared, platform):
    """Two layers, the first in both directions, weights of their own for each step, no bias."""
    cells = _Cells(kind, 3, "first", "constant", bias=False)
    ahead, back = cells.layer(cells.steps, shared), cells.layer(cells.steps[::-1], shared)[::-1]
    both = [cells.node("Concat", a, b, axis=1) for a, b in zip(ahead, back, strict=True)]
    assert _agrees(cells.stacked(cells.layer(both, shared, 2 * _HIDDEN)), platform) > 22


def test_what_is_made_anew_is_known_by_itself():
    """Nothing is known by the address of an object that may be gone, whose place another one
    takes.
    """
    cells = _Cells("LSTM", 3, "turned", "zeros")
    model = cells.stacked(cells.layer(cells.steps))
    feed = {"x": np.random.default_rng(0).standard_normal((1, 3, _SIZE)).astype(np.float32)}
    want = next(iter(FloatRunner(model, ["y"]).run(feed)))[1]
    for _ in range(4):
        gc.collect()
        graph = lo.quantize(model.clone(), [feed], platform="generic", effort="fast").float_graph
        np.testing.assert_allclose(
            next(iter(FloatRunner(graph, ["y"]).run(feed)))[1], want, atol=1e-5
        )
