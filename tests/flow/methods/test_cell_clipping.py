"""Cells of LSTM layers: the float recurrence against onnxruntime, and the note where a chip cuts
them.
"""

import numpy as np
import pytest
from onnx import helper

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.quantization.methods.cell_clipping import simulate_retained_cells
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.runners import FloatRunner
from tests.nets import Net, prepared


def model(direction="forward", open_gates=False, seed=0):
    """Return a net of one layer with 4 units on 12 steps of 3 elements, whose gates may all stand
    open.
    """
    net = Net(12, 3, seed=seed)
    w, r = ((0.5 * net.rng.standard_normal((1, 16, n))).astype(np.float32) for n in (3, 4))
    b = (0.1 * net.rng.standard_normal((1, 32))).astype(np.float32)
    if open_gates:
        b += 5
    x = net.node("Transpose", "x", perm=[1, 0, 2])
    held = [net.const(a) for a in (w, r, b)]
    net.nodes.append(
        helper.make_node(
            "LSTM", [x, *held], ["y4"], name="layer", hidden_size=4, direction=direction
        )
    )
    y = net.node("Squeeze", "y4", net.const(np.array([1])))
    return net.graph(net.node("Transpose", y, perm=[1, 0, 2]))


@pytest.mark.parametrize("direction", ("forward", "reverse"))
def test_recurrence(direction):
    """The cells that onnxruntime has in the end follow from what is kept of those before."""
    graph = prepared(model(direction))
    (node,) = [n for n in graph.graph if n.op_type == "LSTM"]
    x = np.random.default_rng(1).standard_normal((5, 12, 3)).astype(np.float32)
    kept = simulate_retained_cells(node, x)
    assert kept.shape == (5, 12, 4)
    assert not kept[:, 0].any()
    y = next(a for n, a, _ in FloatRunner(graph, [ir.output_name(node)]).run({"x": x})).astype(
        np.float64
    )
    w, r, b = (ir.const_value(v).astype(np.float64) for v in node.inputs[1:])
    order = slice(None) if direction == "forward" else slice(None, None, -1)
    steps, before = x[:, order], np.concatenate([np.zeros((5, 1, 4)), y[:, order][:, :-1]], axis=1)
    i, o, _, g = np.split(steps @ w.T + before @ r.T + b[:16] + b[16:], 4, axis=2)
    cells = kept + np.tanh(g) / (1 + np.exp(-i))
    np.testing.assert_allclose(np.tanh(cells) / (1 + np.exp(-o)), y[:, order], rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row, cut", (("venus", False), ("arcs", True), ("venusA", True), ("generic", True))
)
def test_note(row, cut):
    """A cell that grows beyond what the platform holds is told of, with the share; others are
    not.
    """
    x = np.random.default_rng(2).standard_normal((16, 12, 3)).astype(np.float32)
    notes = quantize(model(open_gates=True), {"x": x}, platform=row).report.notes
    found = [note for note in notes if note.startswith("LSTM layer: retained cell values reach")]
    assert bool(found) == cut
    if cut:
        assert f"{row} clips them at 2 (" in found[0]
    assert not any(
        "cells" in note for note in quantize(model(), {"x": x}, platform=row).report.notes
    )


def test_a_platform_of_16_bits_keeps_large_cells():
    """The state gets 16 bits unless the user chose 8, and the note says which."""
    x = np.random.default_rng(2).standard_normal((16, 12, 3)).astype(np.float32)
    results = [
        quantize(model(open_gates=True), {"x": x}, platform="generic", overrides=overrides)
        for overrides in ({}, {"type:LSTM": {"bits": 8}})
    ]
    kept, clipped = (result.report for result in results)
    assert any("its state has 16 bits, because generic clips them" in n for n in kept.notes)
    assert not any("its state has 16 bits" in note for note in clipped.notes)
    (output,) = kept.outputs
    assert kept.outputs[output]["sqnr"] > clipped.outputs[output]["sqnr"] + 6


@pytest.mark.parametrize("direction", ("forward", "reverse"))
def test_recurrence_from_given_states(direction):
    """Lengths, states and cells that the layer is given: its last cells follow."""
    rng = np.random.default_rng(3)
    net = Net(12, 3, seed=3)
    net.inputs += [helper.make_tensor_value_info("lengths", 6, ["N"])]
    net.inputs += [helper.make_tensor_value_info(name, 1, [1, "N", 4]) for name in ("h0", "c0")]
    w, r = ((0.5 * net.rng.standard_normal((1, 16, n))).astype(np.float32) for n in (3, 4))
    b = (0.1 * net.rng.standard_normal((1, 32))).astype(np.float32)
    held = [net.const(a) for a in (w, r, b)]
    x = net.node("Transpose", "x", perm=[1, 0, 2])
    net.nodes.append(
        helper.make_node(
            "LSTM",
            [x, *held, "lengths", "h0", "c0"],
            ["y", "h", "c"],
            name="layer",
            hidden_size=4,
            direction=direction,
        )
    )
    model = net.graph("y", "h", "c")
    feed = {
        "x": rng.standard_normal((5, 12, 3)).astype(np.float32),
        "lengths": np.array([12, 1, 5, 12, 7], np.int32),
        **{name: rng.uniform(-1, 1, (1, 5, 4)).astype(np.float32) for name in ("h0", "c0")},
    }
    found = {name: array for name, array, _ in FloatRunner(model).run(feed)}
    trace_shapes(model, feed)
    normalize(model)
    (node,) = [n for n in model.graph if n.domain == ir.FUNCTION_DOMAIN]
    states = {key: found[name].transpose(1, 0, 2) for key, name in (("h", "h0"), ("c", "c0"))}
    kept = simulate_retained_cells(node, feed["x"], lengths=feed["lengths"], **states)
    order = slice(None) if direction == "forward" else slice(None, None, -1)
    for k, length in enumerate(feed["lengths"]):
        y, steps = found["y"][:length, 0, k][order].astype(np.float64), feed["x"][k, :length][order]
        before = np.concatenate([states["h"][k], y[:-1]])
        i, _, f, g = np.split(steps @ w[0].T + before @ r[0].T + b[0, :16] + b[0, 16:], 4, axis=1)
        cell = states["c"][k, 0].astype(np.float64)
        for t in range(length):
            np.testing.assert_allclose(kept[k, t], cell / (1 + np.exp(-f[t])), rtol=0, atol=1e-5)
            cell = kept[k, t] + np.tanh(g[t]) / (1 + np.exp(-i[t]))
        np.testing.assert_allclose(cell, found["c"][0, k], rtol=0, atol=1e-5)
        assert not kept[k, length:].any()
