"""The noisiest scales an octave finer, where the outputs are nearer so and were far off."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo
from lingeronnx.quantization.trials import noisy_scales
from tests import nets

LOUD = 16  # one sample of so many
RNG = np.random.default_rng(4)
WEIGHTS = [
    RNG.uniform(0.2, 1.0, (12, 8)),
    -RNG.uniform(0.05, 0.3, (10, 12)),
    RNG.normal(size=(5, 10)),
]
BIASES = [np.zeros(12), np.full(10, 9.0), np.zeros(5)]


@pytest.fixture
def far(monkeypatch):
    """Call every output far off."""
    monkeypatch.setattr(noisy_scales, "_MAX_SQNR_DB", 1000.0)


def model():
    """Three layers with Relus between: where the first gives much, the second gives nothing, be it
    twice as much.
    """
    nodes, value = [], "x"
    parameters = {}
    for k, (weight, bias) in enumerate(zip(WEIGHTS, BIASES, strict=True)):
        parameters |= {f"w{k}": weight.astype(np.float32), f"b{k}": bias.astype(np.float32)}
        nodes.append(
            helper.make_node(
                "Gemm", [value, f"w{k}", f"b{k}"], [f"h{k}" if k < 2 else "y"], transB=1
            )
        )
        if k < 2:
            nodes.append(helper.make_node("Relu", [f"h{k}"], [value := f"r{k}"]))
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])]
        for name, size in (("x", 8), ("y", 5))
    ]
    graph = helper.make_graph(
        nodes, "loud", *ends, [numpy_helper.from_array(a, n) for n, a in parameters.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def loud(count, seed):
    x = np.random.default_rng(seed).uniform(0, 1, (count, 8))
    x[::LOUD] *= 12
    return {"x": x.astype(np.float32)}


def floats(x):
    """Oracle: the model in numpy."""
    for weight, bias in zip(WEIGHTS[:2], BIASES[:2], strict=True):
        x = np.maximum(x @ weight.T + bias, 0)
    return x @ WEIGHTS[2].T


def noise(made, feeds):
    """Return the error's share of the outputs' power."""
    want = floats(feeds["x"].astype(np.float64))
    (have,) = made.session().run(None, feeds)
    return np.square(have - want).sum() / np.square(want).sum()


def told(made):
    return [line for line in made.report.notes if "an octave finer" in line]


def made(net, calib, **settings):
    return lo.quantize(net, calib, **{"platform": "venus", **settings})


@pytest.mark.parametrize("platform", ("venus", "arcs"))
def test_what_hardly_reaches_the_outputs_is_cut(far, monkeypatch, platform):
    """The scale that the line names is twice as fine; outputs of other samples come nearer, by half
    of the noise.
    """
    found = made(model(), loud(160, 1), platform=platform)
    monkeypatch.setattr(noisy_scales, "_MAX_SCALES", 0)
    usual = made(model(), loud(160, 1), platform=platform)
    ((line,), none) = told(found), told(usual)
    assert not none
    names = line.split(": scales")[0].split(", ")
    assert all(found.plan.tensors[n].scale == 2 * usual.plan.tensors[n].scale for n in names)
    other = loud(320, 2)
    assert noise(found, other) < 0.5 * noise(usual, other)


def test_where_nothing_gains_all_stays(far, monkeypatch):
    net = nets.shortcut()
    found = made(net, nets.samples(net, 48))
    monkeypatch.setattr(noisy_scales, "_MAX_SCALES", 0)
    assert found.plan == made(net, nets.samples(net, 48)).plan
    assert not told(found)


def test_what_is_near_stays(monkeypatch):
    """The outputs are measured once, and nothing is tried."""
    monkeypatch.setattr(noisy_scales, "rescale_tensors", None)
    monkeypatch.setattr(
        noisy_scales, "output_sqnr_levels", lambda made: [0.0]
    )  # near, but behind a function that hides it
    monkeypatch.setattr(noisy_scales, "_MAX_SQNR_DB", 5.0)
    assert not told(made(model(), loud(160, 1)))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "settings",
    (
        {"effort": "fast"},
        {"calibrator": "max"},
        {"platform": "generic", "mode": "max-value"},
        {"overrides": {name: {"scale": 4.0} for name in ("x", "h0", "r0", "h1", "r1", "y")}},
    ),
    ids=("fast", "max", "any number", "given"),
)
def test_what_the_user_chose_stays(far, settings):
    assert not told(made(model(), loud(160, 1), **settings))


def test_a_plan_that_is_given_stays(far):
    plan = made(model(), loud(160, 1)).plan
    again = made(model(), loud(160, 1), plan=plan)
    assert again.plan.tensors == plan.tensors
    assert not told(again)


def test_too_few_samples_choose_nothing(far):
    assert not told(made(model(), loud(15, 1)))
