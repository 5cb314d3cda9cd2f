"""Cuts are undone where an output is made of what is cut, and only there."""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.quantization.calibration import collect_stats
from lingeronnx.quantization.methods.clipping import find_costly_clipping
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.partition import partition_graph
from lingeronnx.quantization.scales import ScalePolicy, assign_qparams, group_shared_scales
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.targets import get_target
from tests.nets import Net

VENUS = get_target("venus")


def samples():
    """Return x [64, 4, 8, 8]: small values all over, and up to 1.2 at one place in four
    thousand.
    """
    rng = np.random.default_rng(0)
    x = np.clip(0.2 * rng.standard_normal((64, 4, 8, 8)), -0.9, 0.9).astype(np.float32)
    x[::16, 0, 3, 3] = (1.1, 1.15, 1.18, 1.2)
    return {"x": x}


def detector(*thresholds):
    """Return a net whose outputs y0, y1 ... are Relu(x[:, :1] - threshold)."""
    net = Net(4, 8, 8)
    for number, threshold in enumerate(thresholds):
        weight = np.zeros((1, 4, 1, 1), np.float32)
        weight[0, 0] = 1
        held = net.const(weight), net.const(np.array([-threshold], np.float32))
        net.node("Relu", net.node("Conv", "x", *held), out=f"y{number}")
    return net.graph(*(f"y{number}" for number in range(len(thresholds))))


def given(model, pieces):
    """Return the outputs of `model` for each of the pieces."""
    runner, names = FloatRunner(model), {str(v.name) for v in model.graph.outputs}
    return [{name: array for name, array, _ in runner.run(feed, names)} for feed in pieces]


def found(model, feed, calibrator="mse", own=None, zero_point=0):
    """Return (the plan, what `find_costly_clipping` changes) without the other methods; `x` is held
    with
    `zero_point`.
    """
    normalize(model)
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    parts = partition_graph(model, VENUS, {})
    stats = collect_stats(FloatRunner(model), [(feed, None)], set(parts.activations))
    shared, choice = (
        group_shared_scales(parts, VENUS),
        ScalePolicy("q-value", 8, 8, calibrator, 99.99, own or {}),
    )
    plan, _ = assign_qparams(parts, shared, stats, VENUS, choice)
    plan = plan.with_tensors(
        {**plan.tensors, "x": plan.tensors["x"].changed(zero_point=zero_point)}
    )
    pieces = [{"x": part} for part in np.split(feed["x"], 4)]
    return plan, find_costly_clipping(
        parts, plan, shared, stats, choice, pieces, lambda: given(model, pieces)
    )


def test_an_output_of_rare_values_keeps_them():
    """The mean square cuts at 1; what lies above is all of the output."""
    plan, changed = found(detector(1.0), samples())
    assert plan.tensors["x"].scale == 128
    assert changed["x"] == 64


def test_an_output_of_all_values_does_not_need_them():
    """The same tensor stays cut where the output is made of the many small values."""
    plan, changed = found(detector(-1.0), samples())
    assert plan.tensors["x"].scale == 128
    assert not changed


def test_the_outputs_together_decide():
    """One output of two needs the rare values: it gains more than the other loses."""
    _, changed = found(detector(1.0, -1.0), samples())
    assert changed == {"x": 64}


@pytest.mark.parametrize(
    ("calibrator", "own"), [("max", None), ("percentile", None), ("mse", {"x": {"scale": 128.0}})]
)
def test_what_the_user_chose_stays(calibrator, own):
    """Another calibrator, or a scale of the user's own, is not questioned."""
    _, changed = found(detector(1.0), samples(), calibrator, own)
    assert "x" not in changed


def test_zero_points():
    """A window with a zero point stays as calibration chose it."""
    _, changed = found(detector(1.0), samples(), zero_point=5)
    assert "x" not in changed


def test_a_weight():
    """A large weight that the output alone is made of is not cut: 0.52 among many small ones, at
    scale 256.
    """
    rng = np.random.default_rng(1)
    weight = np.clip(0.05 * rng.standard_normal((64, 64, 1, 1)), -0.4, 0.4).astype(np.float32)
    weight[0, 0] = 0.52
    net = Net(64, 4, 4)
    hidden = net.node("Conv", "x", net.const(weight), net.const(np.zeros(64, np.float32)))
    first = np.zeros((1, 64, 1, 1), np.float32)
    first[0, 0] = 1
    net.node(
        "Relu",
        net.node("Conv", hidden, net.const(first), net.const(np.array([-0.48], np.float32))),
        out="y",
    )
    x = np.zeros((32, 64, 4, 4), np.float32)
    x[:, 1:] = 0.02 * rng.standard_normal(x[:, 1:].shape)
    x[::8, 0, 1, 1] = 1
    plan, changed = found(net.graph("y"), {"x": x})
    name = next(name for name, q in plan.tensors.items() if q.scale == 256 and name.startswith("k"))
    assert changed[name] == 128


def test_quantize_says_so():
    """The result is better than with the cut, and the report names the tensor."""
    model, feed = detector(1.0), samples()
    made = quantize(model.clone(), [(feed, None)], platform="venus")
    cut = quantize(
        model.clone(), [(feed, None)], platform="venus", overrides={"x": {"scale": 128.0}}
    )
    assert any("'x' is clipped less" in note for note in made.report.notes)
    assert made.report.outputs["y0"]["sqnr"] > cut.report.outputs["y0"]["sqnr"] + 6
