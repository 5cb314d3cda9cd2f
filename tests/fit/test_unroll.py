"""Recurrent layers written out step by step: the same float function, within the limits of the
chips.
"""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.legalize.unroll_recurrent import MAX_UNROLLED_STEPS
from lingeronnx.quantization.normalize import normalize, resolve_control_flow, run_entry_passes
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.runners import get_input_specs
from lingeronnx.targets import PLATFORMS, get_target
from tests.case_selection import mark_rest_slow
from tests.ops import test_recurrent_forms as forms
from tests.ops.test_recurrent_forms import WIDTH, H, Recurrent, T, data, float_outputs
from tests.packability import evaluate_result

CHIPS = [target.name for target in PLATFORMS if target.has_packer]


def normalize_and_legalize(model, row):
    """Return the normalized model, the same legalized for `row`, and the rewrites."""
    graph, _ = run_entry_passes(model)
    feeds = data(graph, 3)
    resolve_control_flow(
        graph,
        {spec.name: spec.slice_samples(feeds[spec.name], 0, 1) for spec in get_input_specs(graph)},
    )
    normalize(graph)
    trace_shapes(
        graph,
        {spec.name: spec.slice_samples(feeds[spec.name], 0, 1) for spec in get_input_specs(graph)},
    )
    after = graph.clone()
    return graph, after, legalize_graph(after, get_target(row))


def last_state(kind, direction, **attributes):
    """The last state alone."""
    net = Recurrent(T, WIDTH, seed=12)
    _, h, *_ = net.layer(kind, net.time_first(), WIDTH, direction=direction, **attributes)
    return net.graph(net.node("Identity", h))


def with_cell():
    """Sequence, state and cell of an LSTM."""
    net = Recurrent(T, WIDTH, seed=13)
    y, h, c = net.layer("LSTM", net.time_first(), WIDTH)
    return net.graph(*(net.node("Identity", name) for name in (y, h, c)))


MODELS = {
    "bidirectional": (forms.bidirectional_gru, (), {}),
    "stacked": (forms.stacked_gru, (), {}),
    "states": (forms.streaming, ("GRU", 2), {}),
    "states of an LSTM": (forms.streaming, ("LSTM", 1, "bidirectional"), {}),
    "constant states": (forms.constant_states, ("GRU", "repeated", "bidirectional"), {}),
    "constant states of an LSTM": (forms.constant_states, ("LSTM", "repeated"), {}),
    "last state": (last_state, ("GRU", "reverse"), {}),
    "last state, reset after": (last_state, ("GRU", "forward"), {"linear_before_reset": 1}),
    "cell": (with_cell, (), {}),
}


@pytest.mark.sweep
@pytest.mark.parametrize("row", CHIPS)
@pytest.mark.parametrize("name", MODELS)
def test_same_function(name, row):
    """No recurrent layer is left, float outputs are the same, steps share their weights, a second
    fit rests.
    """
    build, arguments, attributes = MODELS[name]
    before, after, rewrites = normalize_and_legalize(build(*arguments, **attributes), row)
    assert {entry.cost for entry in rewrites} == {
        "every sum and product of a step is rounded to 8 bits"
    }
    assert not [n for n in after.graph if n.op_type.partition("_")[0] in ("LSTM", "GRU")]
    feeds = data(after, 5, seed=1)
    want = float_outputs(before, feeds)
    for key, array in float_outputs(after, feeds).items():
        np.testing.assert_allclose(array, want[key], rtol=0, atol=2e-6)
    read = [n for n in after.graph if n.op_type == "Linear" and "_gates_h" in n.name]
    assert len({ir.input_name(n, 1) for n in read}) == len({ir.constant_base_name(n) for n in read})
    assert legalize_graph(after, get_target(row)) == []
    for node in after.graph:
        assert all(value.uses() or value.is_graph_output() for value in node.outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", mark_rest_slow(2, MODELS))
def test_the_packer_takes_it(name):
    """Also after quantization, with weights still equal: steps whose biases differ have copies."""
    build, arguments, attributes = MODELS[name]
    model = build(*arguments, **attributes)
    result = quantize(model, data(model), platform="venus", effort="fast")
    assert result.report.chip_ready
    assert evaluate_result(result, "venus").problems == []
    linear = [n for n in result.graph.graph if n.op_type == "LinearInt" and "_gates_h" in n.name]
    floats = {
        ir.constant_base_name(n)
        for n in result.float_graph.graph
        if n.op_type == "Linear" and "_gates_h" in n.name
    }
    assert len({ir.const_value(n.inputs[1]).tobytes() for n in linear}) == len(floats)


@pytest.mark.parametrize("row", CHIPS)
def test_one_step(row):
    """A call per frame: the state that goes out is the sequence's only element."""
    net = Recurrent(1, WIDTH, seed=14)
    start = net.enter("h", 1, "N", H)
    y, h = net.layer("GRU", net.time_first(), WIDTH, more=["", start])
    model = net.graph(net.node("Squeeze", y, net.ints(1)), net.node("Identity", h, out="h_out"))
    result = quantize(model, data(model), platform=row, effort="fast")
    assert result.report.chip_ready
    feeds = data(model, 3, seed=2)
    sequence, state = result.session().run(None, feeds)
    np.testing.assert_array_equal(sequence, state)
    np.testing.assert_allclose(state, float_outputs(model, feeds)["h_out"], rtol=0, atol=0.06)


@pytest.mark.parametrize("row", CHIPS)
def test_gates_together(row):
    """One table for all gates, but where its stand-in is limited."""
    net = Recurrent(2, WIDTH, seed=15)
    y, _ = net.layer("GRU", net.time_first(), WIDTH, units=64)
    model = net.graph(net.node("Squeeze", y, net.ints(1)))
    _, after, _ = normalize_and_legalize(model, row)
    sizes = {
        ir.get_shape(n.outputs[0])[-1]
        for n in after.graph
        if n.op_type == "Sigmoid" and "new" not in n.name
    }
    assert sizes == ({64} if row == "venusA" else {192})


def long_gru(steps):
    """A sequence of `steps`."""
    net = Recurrent(steps, 2, seed=16)
    _, h = net.layer("GRU", net.time_first(), 2, units=2)
    return net.graph(net.linear(net.node("Squeeze", h, net.ints(0)), (2, 2)))


def test_limits():
    """Longer sequences, lengths, and layers that a target supports are not unrolled."""
    assert normalize_and_legalize(long_gru(MAX_UNROLLED_STEPS), "venus")[2]
    assert not normalize_and_legalize(long_gru(MAX_UNROLLED_STEPS + 1), "venus")[2]
    report = quantize(
        long_gru(MAX_UNROLLED_STEPS + 1),
        data(long_gru(MAX_UNROLLED_STEPS + 1)),
        platform="venus",
        effort="fast",
    ).report
    assert any(
        f"up to {MAX_UNROLLED_STEPS} steps" in n.why
        for n in (*report.float_nodes, *report.host_part)
    )
    assert not normalize_and_legalize(forms.with_lengths("GRU"), "venus")[2]
    assert not normalize_and_legalize(last_state("LSTM", "forward"), "venus")[2]
    net = Recurrent(3, 2, seed=17)
    _, h = net.layer("GRU", net.time_first(), 2, units=130)
    wide = net.graph(net.node("Identity", h))
    before, after, rewrites = normalize_and_legalize(wide, "venusA")
    assert not rewrites
    assert ir.to_proto(before).SerializeToString(deterministic=True) == ir.to_proto(
        after
    ).SerializeToString(deterministic=True)
