"""Cells of LSTM layers: the float recurrence against onnxruntime, and the note where a chip cuts them."""

import numpy as np
import pytest
from onnx import helper

from lingeronnx import ir
from lingeronnx.api import quantize
from lingeronnx.improve.cells import kept_cells
from lingeronnx.runners import FloatRunner
from tests.nets import Net, prepared


def model(direction="forward", open_gates=False, seed=0):
    """Return a net of one layer with 4 units on 12 steps of 3 elements, whose gates may all stand open."""
    net = Net(12, 3, seed=seed)
    w, r = ((0.5 * net.rng.standard_normal((1, 16, n))).astype(np.float32) for n in (3, 4))
    b = (0.1 * net.rng.standard_normal((1, 32))).astype(np.float32)
    if open_gates:
        b += 5
    x = net.node("Transpose", "x", perm=[1, 0, 2])
    held = [net.const(a) for a in (w, r, b)]
    net.nodes.append(helper.make_node("LSTM", [x, *held], ["y4"], name="layer", hidden_size=4, direction=direction))
    y = net.node("Squeeze", "y4", net.const(np.array([1])))
    return net.graph(net.node("Transpose", y, perm=[1, 0, 2]))


@pytest.mark.parametrize("direction", ("forward", "reverse"))
def test_recurrence(direction):
    """The cells that onnxruntime has in the end follow from what is kept of those before."""
    graph = prepared(model(direction))
    (node,) = [n for n in graph.graph if n.op_type == "LSTM"]
    x = np.random.default_rng(1).standard_normal((5, 12, 3)).astype(np.float32)
    kept = kept_cells(node, x)
    assert kept.shape == (5, 12, 4)
    assert not kept[:, 0].any()
    y = next(a for n, a, _ in FloatRunner(graph, [ir.written_name(node)]).run({"x": x})).astype(np.float64)
    w, r, b = (ir.const(v).astype(np.float64) for v in node.inputs[1:])
    order = slice(None) if direction == "forward" else slice(None, None, -1)
    steps, before = x[:, order], np.concatenate([np.zeros((5, 1, 4)), y[:, order][:, :-1]], axis=1)
    i, o, _, g = np.split(steps @ w.T + before @ r.T + b[:16] + b[16:], 4, axis=2)
    cells = kept + np.tanh(g) / (1 + np.exp(-i))
    np.testing.assert_allclose(np.tanh(cells) / (1 + np.exp(-o)), y[:, order], rtol=0, atol=1e-6)


@pytest.mark.parametrize("row, cut", (("venus", False), ("arcs", True), ("venusA", True), ("generic", True)))
def test_note(row, cut):
    """A cell that grows beyond what the platform holds is told of, with the share; others are not."""
    x = np.random.default_rng(2).standard_normal((16, 12, 3)).astype(np.float32)
    notes = quantize(model(open_gates=True), {"x": x}, platform=row).report.notes
    found = [note for note in notes if note.startswith("LSTM layer: what is kept of its cells reaches")]
    assert bool(found) == cut
    if cut:
        assert f"{row} cuts it at 2 (" in found[0]
    assert not any("cells" in note for note in quantize(model(), {"x": x}, platform=row).report.notes)
