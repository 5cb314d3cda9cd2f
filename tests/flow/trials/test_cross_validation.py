"""Trials on samples set aside: the gain and its error, what is clear, and what `effort: best` makes
of it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from lingeronnx import api
from lingeronnx.ir import ir
from lingeronnx.quantization import RefinementOptions, plan_model, prepare_model
from lingeronnx.quantization.lower import lower
from lingeronnx.quantization.report.fidelity import select_measured_tensors
from lingeronnx.quantization.trials.cross_validation import CrossValidation
from lingeronnx.quantization.trials.evidence import Gain, compute_gain
from lingeronnx.quantization.trials.trial import Criterion
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.runtime.session import Session
from tests import artefacts, nets
from tests.case_selection import limit_examples


def classifier():
    """Conv, Relu and a layer that gives `z`, which gains from all the bits of its sums."""
    net = nets.Net(2, 5, 5, seed=8)
    f = net.node("Flatten", net.node("Relu", net.conv("x", (3, 2, 3, 3))), out="f")
    return net.graph(net.linear(f, (27, 4), out="z"))


def level(errors, power):
    """Oracle: an SQNR in dB."""
    return 10 * math.log10(power / sum(errors))


@given(st.integers(2, 9), st.integers(1, 3), st.integers(0, 999))
@limit_examples(30)
def test_a_gain_and_its_error(n, outputs, seed):
    """Oracle: SQNR against SQNR, and the whole computed again without each sample in turn."""
    rng = np.random.default_rng(seed)
    old, new = rng.uniform(0.1, 2.0, (2, outputs, n))
    power = rng.uniform(10.0, 20.0, outputs)

    def between(keep):
        each = [
            level(new[o, keep], power[o]) - level(old[o, keep], power[o]) for o in range(outputs)
        ]
        return sum(each) / outputs

    found = compute_gain(old, new, power, n)
    every = list(range(n))
    without = [between([i for i in every if i != left]) for left in every]
    mean = sum(without) / n
    assert found.value == pytest.approx(between(every))
    assert found.standard_error_db == pytest.approx(
        math.sqrt((n - 1) / n * sum((g - mean) ** 2 for g in without)), abs=1e-9
    )
    worst = [min(level(e[o], power[o]) for o in range(outputs)) for e in (new, old)]
    assert found.worst_output_db == pytest.approx(worst[0] - worst[1], abs=1e-9)
    assert compute_gain(new, old, power, n).value == pytest.approx(-found.value)


def test_what_is_clear():
    """One lucky sample is no gain, however large; many small ones are; a worst output that loses is
    none.
    """
    old = np.ones((1, 40))
    lucky, steady = old.copy(), 0.9 * old
    lucky[0, 0] = 0.0
    steady[0, ::2] *= 0.9
    old[0, 0] = 30.0
    power = np.array([1000.0])
    clear = Criterion(mean_db=0.02, errors=1.645)
    assert compute_gain(old, lucky, power, 40).value > 2
    assert not clear.is_met(compute_gain(old, lucky, power, 40))
    assert clear.is_met(compute_gain(old, steady * old, power, 40))
    assert not clear.is_met(Gain(1.0, 0.1, 40, worst_output_db=-0.1))
    assert not clear.is_met(Gain(0.01, 0.0, 40))
    assert Gain(0.0, 0.0, 40).is_hopeless(1.645)
    assert not Gain(-0.1, 0.1, 40).is_hopeless(1.645)
    assert math.isinf(compute_gain(old[:, :1], lucky[:, :1], power, 1).standard_error_db)
    assert compute_gain(0 * old, 0 * old, power, 40).value == 0


def test_every_sample_is_set_aside_once_and_not_seen():
    """Law: in each part weights are those that the other parts give; a part's samples move nothing
    of its own trial.
    """
    net = classifier()
    x = nets.samples(net, 32)["x"]
    prepared = prepare_model(net, {"x": x}, None, {}, hold_out=False)
    planned = plan_model(prepared)
    trial = CrossValidation(planned, {"x": x}, 32, ["z"]).evaluate_baseline(
        planned, RefinementOptions()
    )
    assert [errors.shape for errors in trial.errors] == [(1, 8)] * 4
    other = x.copy()
    other[[0, 17]] *= -1.5  # of the first part: the first 4 of every 16
    moved = CrossValidation(planned, {"x": other}, 32, ["z"]).evaluate_baseline(
        planned, RefinementOptions()
    )
    changed = np.flatnonzero(trial.errors[0][0] != moved.errors[0][0])
    assert set(changed) <= {0, 5}
    assert len(changed)
    same = [
        _weights(a) == _weights(b)
        for a, b in zip(trial.float_graphs, moved.float_graphs, strict=True)
    ]
    assert same == [True, False, False, False]


def test_samples_on_another_axis_are_dealt_there():
    """Frames first, as many as there are samples: each part has its samples of every frame."""
    weight = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    value = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, "n", size])
        for name, size in (("x", 3), ("y", 4))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node], "frames", value[:1], value[1:], [numpy_helper.from_array(weight, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = np.random.default_rng(1).normal(size=(16, 16, 3)).astype(np.float32)
    prepared = prepare_model(model, {"x": x}, None, {"platform": "generic"}, hold_out=False)
    planned = plan_model(prepared)
    assert planned.prepared.data.count_samples({"x": x}) == 16
    trials = CrossValidation(planned, {"x": x}, 16, ["y"])
    found = trials.evaluate_baseline(planned, RefinementOptions())
    for k, (exact, errors) in enumerate(zip(found.float_graphs, found.errors, strict=True)):
        session = Session(
            lower(planned.partition.with_graph(exact), planned.plan, planned.prepared.target).graph
        )
        part = x[:, 4 * k : 4 * k + 4]
        assert errors.sum() == pytest.approx(
            np.square(part @ weight - session.run(["y"], {"x": part})[0]).sum(), rel=1e-3
        )


def _weights(graph):
    return {
        name: value.const_value.numpy().tobytes()
        for name, value in graph.graph.initializers.items()
    }


def test_effort_tells_of_its_progress():
    """What takes longest, refining, is shown layer by layer."""
    net = classifier()
    told = []
    api.quantize(
        net,
        nets.samples(net, 16),
        effort="best",
        progress=lambda what, done, total: told.append((what, done)),
    )
    after = told[[what for what, _ in told].index("setting samples aside") :]
    assert ("refining", 1) in after
    assert any("descent" in what for what, _ in after)


def test_the_search_and_quantize_give_the_same_best():
    """Law: "effort best" as an attempt of a search is what `quantize --effort best` gives, wide
    outputs and all.
    """
    net = classifier()
    feed = nets.samples(net, 48)
    alone = artefacts.quantized(net, "venus", feed, effort="best")
    normal = api.quantize(net, feed)
    assert alone.plan.tensors["z"].bits == 32
    assert alone.report.outputs["z"]["sqnr"] > normal.report.outputs["z"]["sqnr"]
    result = api.quantize(net, feed, min_sqnr=alone.report.outputs["z"]["sqnr"])
    assert result.report.search["met"]
    assert result.report.search["options"] == ["--effort best"]
    assert ir.to_bytes(result.graph) == ir.to_bytes(alone.graph)
    assert [n for n in result.report.notes if "effort" in n] == [
        n for n in alone.report.notes if "effort" in n
    ]


def test_a_net_that_ends_in_a_softmax_is_measured_in_front_of_it():
    """The host's Softmax is no evidence: trials compare its input, which is no output of the user's
    model.
    """
    net = nets.Net(2, 5, 5, seed=8)
    f = net.node("Flatten", net.node("Relu", net.conv("x", (3, 2, 3, 3))), out="f")
    graph = net.graph(net.node("Softmax", net.linear(f, (27, 4), out="z"), out="y"))
    feed = nets.samples(graph, 16)
    prepared = prepare_model(graph, feed, None, {"platform": "generic"}, hold_out=False)
    planned = plan_model(prepared)
    assert select_measured_tensors(planned) == ["z"]
    trial = CrossValidation(planned, feed, 16, ["z"]).evaluate_baseline(
        planned, RefinementOptions()
    )
    without = ir.from_proto(net.proto("z"))
    power = [
        np.square(array, dtype=np.float64).sum()
        for _, array, _ in FloatRunner(without, ["z"]).run(feed)
    ]
    assert 0 < sum(errors.sum() for errors in trial.errors) < 0.01 * sum(power)
    best = api.quantize(graph, feed, platform="generic", effort="best")
    assert any(note.startswith("effort best: ") for note in best.report.notes)
