"""Trials against whole runs of the model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.analysis.sensitivity.trial import RoundedSet
from lingeronnx.ir import ir
from lingeronnx.quantization.lower import lower
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.runtime.runners.segments import Segments
from lingeronnx.runtime.session import Session
from tests import nets
from tests.analysis.sensitivity.helpers import NETS, data, engine_of, planned, union
from tests.case_selection import limit_examples


@pytest.mark.sweep
@pytest.mark.parametrize("name", NETS)
def test_pieces_are_the_model(name):
    """Law: the pieces, one after another, give what the whole model gives."""
    net = getattr(nets, name)()
    plan, _, engine = engine_of(net)
    x = data(net, 5)
    whole = {n: a for n, a, _ in FloatRunner(plan.graph, engine.output_names).run({"x": x})}
    base = engine.run_base(RoundedSet(), {"x": x})
    for output in engine.output_names:
        np.testing.assert_allclose(base.tensors[output], whole[output], rtol=1e-5, atol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("platform", ["generic", "venus"])
@pytest.mark.parametrize("name", NETS)
def test_everything_rounded_is_the_simulator(name, platform):
    """Where all is rounded, a trial has the outputs of the integer graph in the simulator, to the
    last bit.
    """
    net = getattr(nets, name)()
    plan, operators, engine = engine_of(net, platform=platform)
    x = data(net, 5)
    session = Session(lower(plan.partition, plan.plan, plan.prepared.target).graph)
    outputs = engine.run_base(union(operators), {"x": x}).tensors
    for output, array in zip(
        engine.output_names, session.run(engine.output_names, {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(outputs[output], array)


@limit_examples(40)
@given(st.data())
def test_from_any_base(draw):
    """Law: a trial is what its whole run gives, to the last bit, whatever base it starts from."""
    net = draw.draw(st.sampled_from(NETS))
    if net not in _ENGINES:
        _ENGINES[net] = engine_of(getattr(nets, net)())
    plan, operators, engine = _ENGINES[net]
    one = st.builds(
        RoundedSet,
        st.frozensets(st.sampled_from(sorted(union(operators).tensors))),
        st.frozensets(st.sampled_from(sorted(union(operators).weights))),
    )
    now, then = draw.draw(one), draw.draw(one)
    feeds = {"x": data(plan.prepared.original, 3)}
    outputs = engine.outputs(now, engine.run_base(then, feeds), feeds)
    want = engine.run_base(now, feeds).tensors
    for name in engine.output_names:
        assert np.array_equal(outputs[name], want[name])


_ENGINES: dict = {}


def test_only_what_lies_behind_is_run():
    """A trial runs the pieces that a walk from its change reaches."""
    _, operators, engine = engine_of(nets.residual())
    feeds = {"x": data(nets.residual(), 2)}
    base = engine.run_base(RoundedSet(), feeds)
    pieces, less = engine.segments.segments, 0
    for layer in operators:
        for setting in layer.trial_sets("all").values():
            changed = set(setting.tensors)
            want = 0
            for piece in pieces:
                if changed & set(piece.inputs) or setting.weights & set(piece.nodes):
                    changed |= set(piece.outputs)
                    want += piece.macs * 2
            engine.macs = 0
            engine.outputs(setting, base, feeds)
            assert engine.macs == want
            less += want < engine.segments.macs * 2
    assert less > len(operators) / 2


def test_no_piece_hides_a_cut():
    net = nets.residual()
    graph = planned(net).graph
    names = [str(v.name) for v in ir.iter_values(graph)][1:]
    pieces = Segments(graph, names, [str(v.name) for v in graph.graph.outputs], ()).segments
    assert {name for piece in pieces for name in piece.outputs} == set(names)
    joined = Segments(graph, (), [str(v.name) for v in graph.graph.outputs], ()).segments
    assert sum(piece.macs for piece in joined) == sum(piece.macs for piece in pieces) > 0
    assert len(joined) < len(pieces)
