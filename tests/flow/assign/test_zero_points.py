"""Activations with zero points: plan, graph, simulator, plain classes, torch, and who takes
them.
"""

import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.api import simulate
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine, Plan
from lingeronnx.quantization.calibration import TensorStats
from lingeronnx.quantization.calibration.calibrators import (
    choose_affine_qparams,
    choose_symmetric_scale,
)
from lingeronnx.quantization.lower import extract_plan, lower
from lingeronnx.quantization.partition import Partition
from lingeronnx.quantization.scales import group_shared_scales, legalize
from lingeronnx.targets import GENERIC
from tests import artefacts, nets
from tests.case_selection import mark_rest_slow
from tests.nets import Net, line
from tests.simulator.helpers import few


def layers():
    """Every layer with a weight, padded, and pools: plain, depthwise, grouped, transposed, fully
    connected.
    """
    net = Net(4, 7, 6, seed=11, opset=14)
    a = net.node("Relu", net.conv("x", (12, 4, 3, 3), pads=[1, 0, 2, 1]))
    b = net.node("HardSwish", net.conv(a, (12, 1, 3, 3), group=12, pads=[1] * 4))
    c = net.conv(b, (8, 3, 3, 3), group=4, pads=[1] * 4)
    w = net.const((0.3 * net.rng.standard_normal((8, 3, 2, 2))).astype(np.float32))
    bias = net.const(net.rng.standard_normal(6).astype(np.float32))
    d = net.node(
        "ConvTranspose",
        c,
        w,
        bias,
        strides=[2, 2],
        pads=[1, 0, 0, 1],
        output_padding=[1, 0],
        group=2,
    )
    p = net.node(
        "AveragePool",
        d,
        kernel_shape=[3, 2],
        strides=[2, 1],
        pads=[1, 0, 1, 1],
        count_include_pad=1,
    )
    m = net.node("MaxPool", p, kernel_shape=[3, 3], pads=[1] * 4)
    return net.graph(
        net.linear(net.node("Flatten", net.node("GlobalAveragePool", m)), (6, 5), out="y")
    )


def pairs():
    """Sums, a difference, products, joins, bounds, curves and moves."""
    net = Net(6, 8, 8, seed=12, opset=14)
    a = net.node("Relu", net.conv("x", (6, 6, 3, 3), pads=[1] * 4))
    b = net.node("Sigmoid", net.conv(a, (6, 6, 1, 1)))
    s = net.node("Add", a, b)
    d = net.node("Sub", s, a)
    m = net.node("Mul", d, b)
    k = net.node("Mul", m, net.const(net.rng.uniform(0.5, 2, (1, 6, 1, 1)).astype(np.float32)))
    e = net.node("Add", k, net.const(net.rng.standard_normal((1, 6, 8, 8)).astype(np.float32)))
    c = net.node("Concat", a, e, net.relu6(s), axis=1)
    t = net.node("Transpose", c, perm=[0, 2, 3, 1])
    sl = net.node("Slice", t, *(net.const(np.array([v], np.int64)) for v in (1, 7, 1)))
    q = net.node(
        "Pad",
        sl,
        net.const(np.array([0, 1, 0, 0, 0, 0, 2, 0], np.int64)),
        net.const(np.float32(0.5)),
    )
    r = net.node("Reshape", q, net.const(np.array([0, -1, 18], np.int64)))
    z = net.node("MatMul", r, net.node("Transpose", r, perm=[0, 2, 1]))
    return net.graph(net.node("MatMul", net.node("Softmax", z, axis=-1), r, out="y"), c)


def asymmetric(build, **settings):
    return artefacts.quantized(
        build(), "generic", **{"mode": "max-value", "activations": "asymmetric", **settings}
    )


SETTINGS = [
    {"mode": "max-value"},
    {"mode": "q-value", "calibrator": "max"},
    {"mode": "max-value", "weight_scales": "channel", "effort": "fast"},
    {"mode": "max-value", "bits": 4, "effort": "fast", "calibrator": "kl"},
    {"mode": "max-value", "weight_bits": 16, "effort": "fast", "calibrator": "percentile"},
]


@pytest.mark.sweep
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize(
    "build", mark_rest_slow(1, [layers, pairs, line]), ids=lambda f: f.__name__
)
def test_plan_graph_and_integers(build, settings):
    """The graph holds the plan, and the plain classes compute the simulator's integers from it."""
    result = asymmetric(build, **settings)
    zeros = {name: q.zero_point for name, q in result.plan.tensors.items() if q.shifted}
    assert len(zeros) >= 4
    assert extract_plan(ir.from_proto(ir.to_proto(result.graph))).tensors == result.plan.tensors
    assert Plan.from_json(result.plan.to_json()) == result.plan
    proto = ir.to_proto(result.graph)
    lo.check_model(proto)
    feed = nets.samples(build(), 3, seed=5)
    feed["x"][1] *= 100
    evaluator = ReferenceEvaluator(proto, new_ops=lo.reference_ops("generic"))
    for i in range(3):
        one = {"x": feed["x"][i : i + 1]}
        plain = evaluator.run(None, one, intermediate=True)
        for name, array, _ in lo.Session(result.graph).taps(one):
            assert array.dtype == plain[name].dtype, name
            np.testing.assert_array_equal(array, plain[name], err_msg=name)


# ---- ranges ----------------------------------------------------------------------------------------------------------

VALUES = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40).filter(lambda v: any(v))


@few
@given(
    VALUES,
    st.sampled_from(["max", "mse", "percentile", "kl"]),
    st.booleans(),
    st.sampled_from([4, 8]),
)
def test_windows(values, calibrator, power, bits):
    """Law: 0 is one of the integers and exact; `max` holds every value within half a step."""
    stats = TensorStats.from_array(np.float32(values))
    scale, zero = choose_affine_qparams(stats, bits, power_of_two=power, calibrator=calibrator)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    assert low <= zero <= high
    assert scale > 0
    if power:
        assert np.frexp(scale)[0] == 0.5
    if calibrator == "max":
        held = np.clip(np.floor(np.float64(np.float32(values)) * scale + 0.5) + zero, low, high)
        assert np.abs((held - zero) / scale - np.float32(values)).max() <= 0.5 / scale * (1 + 1e-9)


@few
@given(VALUES)
def test_a_window_errs_no_more_than_a_range_around_zero(values):
    """Law: what `mse` counts is not larger with a zero point, but for the step that symmetric
    integers have more.
    """
    stats = TensorStats.from_array(np.float32(values))
    scale, zero = choose_affine_qparams(stats, 8, power_of_two=False, calibrator="mse")
    around = choose_symmetric_scale(stats, 8, power_of_two=False, calibrator="mse")
    with_zero = stats.quantization_error(scale, -128 - zero, 127 - zero)
    assert (
        with_zero
        <= stats.quantization_error(around, -128, 127) * 1.05 + 1e-3 / scale**2 + (0.5 / scale) ** 2
    )


def test_what_is_never_negative_has_all_integers():
    """Behind a Relu the least integer stands for 0, and the range is twice as fine."""
    results = [
        nets.quantized(
            nets.plain(), platform="generic", mode="max-value", activations=kind, calibrator="max"
        )
        for kind in ("symmetric", "asymmetric")
    ]
    relu = next(n.outputs[0].name for n in nets.prepared(nets.plain()).graph if n.op_type == "Relu")
    before, after = (result.plan.tensors[relu] for result in results)
    assert (before.zero_point, after.zero_point) == (0, -128)
    assert after.scale == pytest.approx(
        before.scale * 255 / 127, rel=0.02
    )  # refinement and equalization differ
    low, high = (min(out["sqnr"] for out in result.report.outputs.values()) for result in results)
    assert high > low
    assert any(
        "activations have a zero point other than 0" in note for note in results[1].report.notes
    )


# ---- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [layers, pairs, line], ids=lambda f: f.__name__)
def test_zero_points_of_0_are_none(build):
    """Law: a plan without zero points gives the graph of symmetric integers, whatever was asked
    for.
    """
    plain = nets.quantized(build(), platform="generic", mode="max-value", effort="fast")
    told = nets.quantized(
        build(),
        platform="generic",
        mode="max-value",
        activations="asymmetric",
        plan=plain.plan,
        effort="fast",
    )
    assert ir.to_proto(told.graph) == ir.to_proto(plain.graph)
    assert not any(
        name.startswith("zero_point") for node in plain.graph.graph for name in node.attributes
    )


def test_a_plan_is_taken_over():
    """The same plan gives the same graph."""
    result = asymmetric(pairs, effort="fast")
    again = nets.quantized(
        pairs(),
        platform="generic",
        mode="max-value",
        plan=Plan.from_json(result.plan.to_json()),
        effort="fast",
    )
    assert ir.to_proto(again.graph).graph.node == ir.to_proto(result.graph).graph.node


def test_tied_tensors_share_the_zero_point():
    """`legalize` gives all tensors of a class scale and zero point of the coarsest."""
    graph = nets.prepared(line())
    parts = Partition.build(graph, {}, GENERIC)
    shared = group_shared_scales(parts, GENERIC)
    tensors = {
        name: Affine(2.0 ** (i % 5), zero_point=i) for i, name in enumerate(parts.activations)
    }
    plan, _ = legalize(Plan("generic", "max-value", tensors=tensors), parts, shared, GENERIC)
    assert any(len(group.tensors) > 1 for group in shared)
    for group in shared:
        coarsest = min((tensors[name] for name in group.tensors), key=lambda q: q.scale)
        assert {plan.tensors[name] for name in group.tensors} == {coarsest}


@pytest.mark.slow
def test_who_keeps_symmetric_integers():
    """Softmax, recurrent layers and normalisation, by their rules; wide tensors and fixed
    scales.
    """
    found = asymmetric(pairs).plan.tensors
    graph = nets.prepared(pairs())
    (softmax,) = [node for node in graph.graph if node.op_type == "Softmax"]
    assert (
        found[softmax.inputs[0].name].zero_point == found[softmax.outputs[0].name].zero_point == 0
    )
    assert Partition.build(graph, {}, GENERIC).symmetric_tensors(GENERIC).keys() == {
        softmax.inputs[0].name,
        softmax.outputs[0].name,
    }
    assert not any(
        q.zero_point for q in asymmetric(line, bits=16, weight_bits=8).plan.tensors.values()
    )
    held = asymmetric(line, overrides={"x": {"scale": 50.0}, "t1": {"bits": 16}}).plan.tensors
    assert held["x"] == Affine(50.0)
    assert held["t1"].zero_point == 0


def test_integers_that_are_fed():
    """An array of the Quant's type is taken as quantized already, from its zero point on."""
    result = asymmetric(layers)
    session, x = lo.Session(result.graph), nets.samples(layers(), 2, seed=3)["x"]
    q = result.plan.tensors["x"]
    assert q.zero_point
    held = np.clip(np.floor(np.float64(x) * q.scale + 0.5) + q.zero_point, -128, 127).astype(
        np.int8
    )
    np.testing.assert_array_equal(session.run(None, {"x": held})[0], session.run(None, {"x": x})[0])


def test_what_looks_at_tensors():
    """Per-layer comparison and profiles see real values; a layer that runs as planned has a small
    error.
    """
    result, data = asymmetric(layers), nets.samples(layers(), 8, seed=4)
    compared = lo.compare(layers(), result, data)
    for row in compared.rows:
        if row.effective.count and row.stored_form is not None:
            assert row.effective.sqnr > 20, row.name
    result = asymmetric(layers, effort="fast")  # channels are not equalized: tensors are the user's
    found = simulate(result.graph, data, taps=["all"])
    wanted = simulate(layers(), data, taps=["all"])
    shared = [
        name for name in found.arrays if name in wanted.arrays and name != "t0"
    ]  # which a Relu alone reads
    assert len(shared) >= 4
    for name in shared:
        error = np.square(found.arrays[name] - wanted.arrays[name]).mean()
        assert error < np.square(wanted.arrays[name]).mean() / 50, name


# ---- who takes them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", ["venus", "arcs", "venusA"])
def test_chips_refuse(chip):
    """One line from the platform's row: as a setting, as a plan, and in a graph."""
    with pytest.raises(
        lo.ConfigError, match=f"activations asymmetric on platform {chip}: zero points must be 0"
    ):
        nets.quantized(line(), platform=chip, activations="asymmetric")
    result = asymmetric(line, mode="q-value", effort="fast")
    plan = dataclasses.replace(result.plan, platform=chip)
    with pytest.raises(
        lo.ConfigError, match=rf"the plan has zero point -?\d+ for .*; {chip} supports 0 only"
    ):
        nets.quantized(line(), platform=chip, plan=plan)
    graph = result.graph.clone()
    graph.metadata_props["lingeronnx.platform"] = chip
    with pytest.raises(
        lo.ModelError, match=rf"zero_point = -?\d+; {chip} supports only zero point 0"
    ):
        lo.Session(graph).run(None, nets.samples(line(), 1))


def test_operators_without_refuse_a_plan():
    """The rule says so: the plan, and what is lowered by hand."""
    graph = nets.prepared(pairs())
    (softmax,) = [node for node in graph.graph if node.op_type == "Softmax"]
    result = nets.quantized(pairs(), platform="generic", mode="max-value", effort="fast")
    for name, q, why in (
        (softmax.inputs[0].name, Affine(9.0, zero_point=3), f"Softmax {softmax.name}"),
        ("x", Affine(9.0, 16, zero_point=3), "a 16-bit tensor"),
        ("k0", Affine(9.0, zero_point=3), "a weight"),
    ):
        plan = result.plan.with_tensors({**result.plan.tensors, name: q})
        message = f"the plan has zero point 3 for '{name}'; {why} supports 0 only"
        with pytest.raises(lo.ConfigError, match=message):
            nets.quantized(pairs(), platform="generic", mode="max-value", plan=plan, effort="fast")
        with pytest.raises(lo.ConfigError, match=message):
            lower(Partition.build(graph, {}, GENERIC), plan, GENERIC)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"scale": 1.0, "bits": 8, "zero_point": 128},
            "has zero point 128 with 1 scales and 8 bits",
        ),
        ({"scale": 1.0, "bits": 4, "zero_point": -9}, "one of the integers -8 to 7"),
        (
            {"scale": [1.0, 2.0], "bits": 8, "axis": 0, "zero_point": 1},
            "has zero point 1 with 2 scales",
        ),
        ({"scale": 1.0, "bits": 8, "zero_point": "a"}, "is not a lingeronnx plan"),
    ],
)
def test_bad_zero_points_in_a_plan(entry, message):
    """One line says which tensor and why."""
    body = {"lingeronnx_plan": 2, "platform": "generic", "mode": "q-value", "tensors": {"w": entry}}
    with pytest.raises(lo.ConfigError, match=message):
        Plan.from_json(json.dumps(body))


def test_graphs_that_disagree():
    """Producer and reader with other zero points; an operator that takes 0 only."""
    result, feed = asymmetric(line, effort="fast"), nets.samples(line(), 1)
    graph = result.graph.clone()
    node = next(n for n in graph.graph if n.op_type == "LinearInt")
    own = ir.get_attr(node, "zero_point_x")
    ir.set_attr(node, "zero_point_x", own + 1)
    with pytest.raises(
        lo.ModelError, match=rf"LinearInt .* with zero point {own + 1}, its producer writes {own}"
    ):
        lo.Session(graph).run(None, feed)
    graph = result.graph.clone()
    clip = next(n for n in graph.graph if n.op_type == "Clip")
    clip.op_type = "Relu"
    clip.resize_inputs(1)
    with pytest.raises(lo.ModelError, match="Relu .* with zero point 0, its producer writes -128"):
        lo.Session(graph).run(None, feed)


# ---- the command -----------------------------------------------------------------------------------------------------


def invoke(*arguments):
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def test_command(tmp_path):
    """quantize, a plan written and read, simulate with integers and a dump; a chip refuses in one
    line.
    """
    ir.save(layers(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", **nets.samples(layers(), 6, seed=2))
    net, data, out = tmp_path / "net.onnx", tmp_path / "data.npz", tmp_path / "q.onnx"
    common = "--calib", data, "--activations", "asymmetric"
    told = (
        "--platform",
        "generic",
        "--mode",
        "max-value",
        "-o",
        out,
        "--save-plan",
        tmp_path / "plan.json",
    )
    done = invoke("quantize", net, *common, *told, "--json")
    assert done.exit_code == 0, done.output
    plan = Plan.from_json((tmp_path / "plan.json").read_text())
    assert any(q.zero_point for q in plan.tensors.values())
    again = invoke(
        "quantize",
        net,
        "--calib",
        data,
        "--plan",
        tmp_path / "plan.json",
        "-o",
        tmp_path / "again.onnx",
    )
    assert again.exit_code == 0, again.output

    ran = invoke(
        "simulate",
        out,
        "--input",
        data,
        "--integers",
        "--taps",
        "all",
        "--dump",
        tmp_path / "dump",
        "-o",
        tmp_path / "out.npz",
        "--at",
        "x_q",
        "--json",
    )
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    entry = next(entry for entry in found["tensors"] if entry["name"] == "x_q")
    assert entry["zero_point"] == plan.tensors["x"].zero_point == found["at"]["zero_point"]
    index = json.loads((tmp_path / "dump" / "index.json").read_text())
    assert (
        next(entry for entry in index if entry["name"] == "x_q")["zero_point"]
        == entry["zero_point"]
    )
    shown = invoke("simulate", out, "--input", data, "--at", "x_q", "-o", tmp_path / "out.npz")
    assert f"from {entry['zero_point']}" in shown.output
    seen = invoke("compare", net, tmp_path / "dump", "--data", data, "-o", tmp_path / "report")
    assert seen.exit_code == 0, seen.output

    refused = invoke("quantize", net, *common, "-o", tmp_path / "venus.onnx")
    assert refused.exit_code == 1
    assert "activations asymmetric on platform venus" in refused.output
    assert "\n" not in refused.output.strip()
    assert not (tmp_path / "venus.onnx").exists()
