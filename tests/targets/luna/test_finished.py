"""The backend passes run once per graph, whose result may be changed by the caller."""

import dataclasses

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS
from lingeronnx.luna.backend_passes import pipeline as module
from lingeronnx.luna.result_cache import ResultCache
from lingeronnx.runtime.session import Session
from tests import nets


@pytest.fixture
def evaluated_graphs(monkeypatch):
    """Return the graphs that rewrites are made of from here on."""
    graphs = []
    run_passes = module._run_passes
    monkeypatch.setattr(
        module,
        "_run_passes",
        lambda graph, target: graphs.append(graph) or run_passes(graph, target),
    )
    monkeypatch.setattr(module, "_CACHE", ResultCache())
    return graphs


def test_a_graph_is_finished_once(evaluated_graphs):
    """Asked again for the same graph and chip the answer is the same, and nothing is made; another
    chip is asked.
    """
    model = nets.residual()
    feed = nets.samples(model)
    graph = quantize(model, feed, platform="venus", effort="fast", fit=False).graph
    evaluated_graphs.clear()
    first, lines = VENUS.run_backend_passes(graph)
    want = Session(first).run(None, {"x": feed["x"][:1]})[0]
    conv = next(node for node in first.graph if node.op_type == "Conv2dInt")
    ir.set_attr(conv, "pads", [0, 0, 0, 0])  # what was returned may be changed
    again, same = VENUS.run_backend_passes(graph)
    assert len(evaluated_graphs) == 1
    assert list(same) == list(lines)
    np.testing.assert_array_equal(Session(again).run(None, {"x": feed["x"][:1]})[0], want)
    ARCS.run_backend_passes(graph)
    assert len(evaluated_graphs) == 2


def test_settings_of_a_graph_are_part_of_it(evaluated_graphs):
    """With another objective in its metadata a graph is finished anew, as it is for another row."""
    model = nets.line()
    graph = quantize(model, nets.samples(model), platform="arcs", effort="fast").graph
    evaluated_graphs.clear()
    ARCS.run_backend_passes(graph)
    graph.metadata_props["lingeronnx.anything"] = "other"
    ARCS.run_backend_passes(graph)
    dataclasses.replace(ARCS, shared_memory=ARCS.shared_memory // 2).run_backend_passes(graph)
    assert len(evaluated_graphs) == 3
