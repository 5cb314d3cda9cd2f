"""Trials against whole runs of the model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.analysis.sensitivity.trial import RoundedSet
from lingeronnx.graph import ir
from lingeronnx.plan.fake import fake_quantized
from lingeronnx.run.runners import FloatRunner
from lingeronnx.run.runners.segments import Segments
from tests import nets
from tests.analysis.sensitivity.helpers import NETS, data, engine_of, planned, union
from tests.examples import examples


@pytest.mark.parametrize("name", NETS)
def test_pieces_are_the_model(name):
    """Law: the pieces, one after another, give what the whole model gives."""
    net = getattr(nets, name)()
    plan, _, engine = engine_of(net)
    x = data(net, 5)
    whole = {n: a for n, a, _ in FloatRunner(plan.graph, engine.wanted).run({"x": x})}
    base = engine.base(RoundedSet(), {"x": x})
    for output in engine.wanted:
        np.testing.assert_allclose(base.tensors[output], whole[output], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NETS)
def test_everything_rounded_is_the_plan_in_float(name):
    """The graph with rounding nodes, run whole, gives the same as rounding between the pieces, but for ties."""
    net = getattr(nets, name)()
    plan, every, engine = engine_of(net)
    if any(node.op_type == "BatchNormalization" for node in plan.graph.graph):
        pytest.skip("a batch normalisation's weight is no constant of the graph")
    x = data(net, 5)
    graph, users = fake_quantized(plan.graph, plan.plan)
    found = engine.base(union(every), {"x": x}).tensors
    names = {user: tensor for tensor, user in users.items() if user in engine.wanted}
    for tensor, array, _ in FloatRunner(graph, set(names.values())).run({"x": x}):
        output = users[tensor]
        off = np.abs(found[output] - array)
        assert np.mean(off > 1e-4) < 0.02, output  # float32 sums in another order tip over ties


@examples(40)
@given(st.data())
def test_from_any_base(draw):
    """Law: a trial is what its whole run gives, to the last bit, whatever base it starts from."""
    net = draw.draw(st.sampled_from(NETS))
    if net not in _ENGINES:
        _ENGINES[net] = engine_of(getattr(nets, net)())
    plan, every, engine = _ENGINES[net]
    one = st.builds(
        RoundedSet,
        st.frozensets(st.sampled_from(sorted(union(every).tensors))),
        st.frozensets(st.sampled_from(sorted(union(every).weights))),
    )
    now, then = draw.draw(one), draw.draw(one)
    feeds = {"x": data(plan.original, 3)}
    found = engine.outputs(now, engine.base(then, feeds), feeds)
    want = engine.base(now, feeds).tensors
    for name in engine.wanted:
        assert np.array_equal(found[name], want[name])


_ENGINES: dict = {}


def test_only_what_lies_behind_is_run():
    """A trial runs the pieces that a walk from its change reaches."""
    _, every, engine = engine_of(nets.residual())
    feeds = {"x": data(nets.residual(), 2)}
    base = engine.base(RoundedSet(), feeds)
    pieces, less = engine.segments.pieces, 0
    for layer in every:
        for setting in layer.kinds("all").values():
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
    assert less > len(every) / 2


def test_no_piece_hides_a_cut():
    net = nets.residual()
    graph = planned(net).graph
    names = [str(v.name) for v in ir.values(graph)][1:]
    pieces = Segments(graph, names, [str(v.name) for v in graph.graph.outputs], ()).pieces
    assert {name for piece in pieces for name in piece.outputs} == set(names)
    joined = Segments(graph, (), [str(v.name) for v in graph.graph.outputs], ()).pieces
    assert sum(piece.macs for piece in joined) == sum(piece.macs for piece in pieces) > 0
    assert len(joined) < len(pieces)
