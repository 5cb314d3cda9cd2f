"""Weights with a scale for each output channel: plan, graph, simulator, plain classes, and who
takes them.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine, PerAxis, Plan
from lingeronnx.operators.lowerings import find_lowering_rule
from lingeronnx.quantization.lower import extract_plan
from lingeronnx.quantization.partition import Partition
from lingeronnx.quantization.scales import group_shared_scales, legalize
from lingeronnx.targets import GENERIC
from tests import artefacts, nets
from tests.nets import Net, line

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "channels").glob("*.onnx"))


def layers():
    """Every layer with a weight: plain, depthwise, grouped, transposed in groups, fully
    connected.
    """
    net = Net(4, 7, 6, seed=11)
    a = net.node("Relu", net.conv("x", (12, 4, 3, 3), pads=[1] * 4))
    b = net.node("Relu", net.conv(a, (12, 1, 3, 3), group=12, pads=[1] * 4))
    c = net.conv(b, (8, 3, 3, 3), group=4, pads=[1] * 4)
    w = net.const(
        (0.3 * net.rng.standard_normal((8, 3, 2, 2)) * [[[[9]], [[1]], [[0.1]]]]).astype(np.float32)
    )
    bias = net.const(net.rng.standard_normal(6).astype(np.float32))
    d = net.node("ConvTranspose", c, w, bias, strides=[2, 2], group=2)
    return net.graph(
        net.linear(net.node("Flatten", net.node("GlobalAveragePool", d)), (6, 5), out="y")
    )


def by_channel(build, **settings):
    return artefacts.quantized(build(), "generic", weight_scales="channel", **settings)


# ---- golden vectors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden(path):
    """The simulator and the plain classes give the integers that were computed from the
    definition.
    """
    held, proto = np.load(path.with_suffix(".npz")), onnx.load(path)
    scale = next(a.f for a in proto.graph.node[0].attribute if a.name == "scale_x")
    feed = {"x": held["x"] / np.float64(scale)}
    feed = {"x": feed["x"].astype(np.float32)}
    got = {name: array for name, array, _ in lo.Session(ir.from_proto(proto)).taps(feed)}
    np.testing.assert_array_equal(got["x_q"], held["x"])
    assert got["y_q"].dtype == held["y"].dtype
    np.testing.assert_array_equal(got["y_q"], held["y"])
    plain = ReferenceEvaluator(proto, new_ops=lo.reference_ops("generic")).run(
        None, feed, intermediate=True
    )
    assert plain["y_q"].dtype == held["y"].dtype
    np.testing.assert_array_equal(plain["y_q"], held["y"])
    lo.check_model(proto)


def test_golden_vectors_are_there():
    """Ten layers, with scales that differ by far within one layer."""
    assert len(GOLDEN) == 10
    lists = [
        a.floats
        for p in GOLDEN
        for n in onnx.load(p).graph.node
        for a in n.attribute
        if a.name == "scale_w"
    ]
    assert all(max(scales) > 100 * min(scales) for scales in lists)


# ---- the whole way ---------------------------------------------------------------------------------------------------

SETTINGS = [
    {"mode": mode, "weight_bits": bits, "effort": effort}
    for mode, bits, effort in (
        ("max-value", 8, "normal"),
        ("q-value", 8, "normal"),
        ("max-value", 4, "fast"),
        ("q-value", 4, "fast"),
        ("max-value", 16, "fast"),
    )
]


@pytest.mark.sweep
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("build", [layers, line], ids=lambda f: f.__name__)
def test_plan_graph_and_integers(build, settings):
    """The graph holds the plan, and the plain classes compute the simulator's integers from it."""
    result = by_channel(build, **settings)
    weights = {name: q for name, q in result.plan.tensors.items() if q.axis is not None}
    assert len(weights) == (5 if build is layers else 3)
    assert all(len(set(q.scales.tolist())) > 1 for q in weights.values())
    assert extract_plan(ir.from_proto(ir.to_proto(result.graph))).tensors == result.plan.tensors
    assert Plan.from_json(result.plan.to_json()) == result.plan
    if settings["mode"] == "q-value":
        assert all(q.power_of_two for q in result.plan.tensors.values())
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


@pytest.mark.parametrize("mode", ["max-value", "q-value"])
def test_refined_weights_lie_on_the_grid(mode):
    """Law: refinement leaves integers: a weight times its channels' scales is whole, and what the
    graph holds.
    """
    result = by_channel(layers, mode=mode)
    constants = {str(v.name): ir.const_value(v) for v in result.graph.graph.initializers.values()}
    seen = 0
    for node in result.graph.graph:
        if "scale_w" in node.attributes and node.domain == "thinker":
            held = constants[node.inputs[1].name]
            axis = 1 if node.op_type.startswith("ConvT") else 0
            peaks = np.abs(
                np.moveaxis(held, axis, 0).reshape(held.shape[axis], -1).astype(int)
            ).max(axis=1)
            assert peaks.min() >= (90 if mode == "max-value" else 45), (
                node.op_type
            )  # every channel fills its range
            seen += 1
    assert seen == 5


def test_better_where_channels_differ():
    """Channels a hundred times apart: a scale for each keeps the small ones, one for all loses
    them.
    """
    net = Net(4, 6, 6, seed=13)
    gains = np.float32(10.0 ** np.linspace(-2, 0, 8)).reshape(8, 1, 1, 1)
    weight = net.rng.standard_normal((8, 4, 3, 3)).astype(np.float32) * gains
    graph = net.graph(net.node("Conv", "x", net.const(weight), out="y"))
    x = nets.samples(graph, 16, seed=2)["x"]
    (want,) = ReferenceEvaluator(ir.to_proto(graph)).run(None, {"x": x})
    ratios = {}
    for kind in ("tensor", "channel"):
        result = nets.quantized(
            graph,
            platform="generic",
            mode="max-value",
            weight_scales=kind,
            weight_bits=4,
            bits=16,
            effort="fast",
        )
        got = lo.Session(result.graph).run(None, {"x": x})[0]
        error = np.square(got - want).mean(axis=(0, 2, 3)) / np.square(want).mean(axis=(0, 2, 3))
        ratios[kind] = 10 * np.log10(1 / error)
    assert ratios["channel"].min() > 15
    assert ratios["channel"].min() > ratios["tensor"].min() + 10


def test_a_layer_that_writes_floats():
    """out_bits float: what leaves the layer is divided by the scale of its channel."""
    result = by_channel(line, overrides={"y": {"out_bits": "float"}})
    (node,) = [n for n in result.graph.graph if n.op_type == "LinearInt"]
    assert "scale_o" not in node.attributes
    x = nets.samples(line(), 2, seed=1)
    taps = {name: array for name, array, _ in lo.Session(result.graph).taps(x)}
    weight = ir.const_value(node.inputs[1]).astype(np.int64)
    scale = ir.get_attr(node, "scale_x") * np.array(ir.get_attr(node, "scale_w"))
    sums = taps[node.inputs[0].name].astype(np.int64) @ weight.T + ir.const_value(node.inputs[2])
    np.testing.assert_array_equal(taps["y"], (sums / scale).astype(np.float32))


# ---- channels of next to nothing -------------------------------------------------------------------------------------


def test_dead_channels():
    """A channel of zeros, and one whose weights are nothing beside its bias: the bias survives in
    its integer type.
    """
    net = Net(3, 5, 5, seed=14)
    weight = net.rng.standard_normal((6, 3, 3, 3)).astype(np.float32)
    weight[1], weight[2] = 0, weight[2] * 1e-12
    bias = np.float32([0.5, -3, 2, 0, 1, -1])
    graph = net.graph(net.node("Conv", "x", net.const(weight), net.const(bias), out="y"))
    for mode in ("max-value", "q-value"):
        result = nets.quantized(
            graph, platform="generic", mode=mode, weight_scales="channel", effort="fast"
        )
        x = nets.samples(graph, 4, seed=3)
        (want,) = ReferenceEvaluator(ir.to_proto(graph)).run(None, x)
        got = lo.Session(result.graph).run(None, x)[0]
        step = 1 / result.plan.tensors["y"].scale
        assert np.abs(got - want)[:, 1:3].max() < 1.01 * step
        assert np.isfinite(result.plan.tensors["k0"].scales).all()


@pytest.mark.parametrize("seed", range(8))
def test_biases_fit(seed):
    """Law: after `legalize` no bias fills more than a quarter of its integer type, and no scale has
    grown.
    """
    rng = np.random.default_rng(seed)
    graph = nets.prepared(layers())
    parts = Partition.build(graph, {}, GENERIC)
    tensors = {name: Affine(float(2.0 ** rng.uniform(0, 8))) for name in parts.activations}
    weights = {}
    for node, op in parts.integer_nodes:
        for index in op.weight_inputs(node):
            axis, shape = op.integer_op.channel_axis, ir.get_shape(node.inputs[index])
            scales = tuple(float(s) for s in 2.0 ** rng.uniform(0, 40, shape[axis]))
            weights[ir.input_name(node, index)] = node, Affine(scales, 8, PerAxis(axis))
    tensors |= {name: q for name, (_, q) in weights.items()}
    plan, _ = legalize(
        Plan("generic", "max-value", tensors=tensors),
        parts,
        group_shared_scales(parts, GENERIC),
        GENERIC,
    )
    for name, (node, q) in weights.items():
        held, x = plan.tensors[name], plan.tensors[ir.input_name(node)]
        assert all(new <= np.float32(old) for new, old in zip(held.scales, q.scales, strict=True))
        bias = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(1)
        counts = (
            np.abs(bias.reshape(-1, *([held.scales.size] if bias.size > 1 else [])))
            * x.scale
            * held.scales
        )
        assert counts.max() <= 2.0**29 * 1.0001


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_of_version_1():
    """It reads as what it was: one scale for each tensor; what no version wrote is refused."""
    body = {
        "lingeronnx_plan": 1,
        "platform": "venus",
        "executor": "",
        "mode": "q-value",
        "reads": [],
        "tensors": {"x": {"scale": 64.0, "bits": 8}},
        "floats": {"n": "why"},
        "transforms": {"x": {"factor": [1.5], "offset": 0.0}},
    }
    plan = Plan.from_json(json.dumps(body))
    assert plan.tensors == {"x": Affine(64.0)}
    assert plan.transforms["x"].factor == (1.5,)
    assert Plan.from_json(plan.to_json()) == plan
    body["transforms"]["x"]["offset"] = 2.0
    with pytest.raises(lo.ConfigError, match="the transform of 'x' has offset 2.0; it must be 0"):
        Plan.from_json(json.dumps(body))
    body["transforms"], body["reads"] = {}, [{"node": "n", "input": 0, "scale": 1.0, "bits": 8}]
    with pytest.raises(lo.ConfigError, match="'reads' has 1 entr"):
        Plan.from_json(json.dumps(body))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"scale": [1.0, 2.0], "bits": 8}, "has 2 scales along axis None"),
        ({"scale": 1.0, "bits": 8, "axis": 0}, "has 1 scales along axis 0"),
        ({"scale": [1.0], "bits": 8, "axis": 0}, "has 1 scales along axis 0"),
        ({"scale": [1.0, -2.0], "bits": 8, "axis": 0}, "scales must be positive numbers"),
        ({"scale": [], "bits": 8, "axis": 0}, "scales must be positive numbers"),
        ({"scale": ["a", 1.0], "bits": 8, "axis": 0}, "is not a lingeronnx plan"),
    ],
)
def test_bad_scales_in_a_plan(entry, message):
    """One line says which tensor and why."""
    body = {"lingeronnx_plan": 2, "platform": "generic", "mode": "q-value", "tensors": {"w": entry}}
    with pytest.raises(lo.ConfigError, match=message):
        Plan.from_json(json.dumps(body))


def test_a_plan_is_taken_over():
    """The same plan gives the same graph; one that does not fit the weight is refused."""
    result = by_channel(line, effort="fast")
    again = nets.quantized(line(), platform="generic", plan=result.plan, effort="fast")
    assert ir.to_proto(again.graph).graph.node == ir.to_proto(result.graph).graph.node
    for name, q, message in (
        (
            "k0",
            Affine((1.0, 2.0), 8, PerAxis(0)),
            "2 scales along axis 0 for 'k0'; it has 8 along axis 0",
        ),
        (
            "k0",
            Affine((1.0,) * 6, 8, PerAxis(1)),
            "6 scales along axis 1 for 'k0'; it has 8 along axis 0",
        ),
        (
            "x",
            Affine((1.0,) * 6, 8, PerAxis(1)),
            "6 scales along axis 1 for 'x'; it supports one scale",
        ),
        (
            "k0",
            Affine(1.0, zero_point=3),
            "the plan has zero point 3 for 'k0'; a weight supports 0 only",
        ),
    ):
        changed = result.plan.with_tensors({**result.plan.tensors, name: q})
        with pytest.raises(lo.ConfigError, match=message):
            nets.quantized(line(), platform="generic", plan=changed, effort="fast")


# ---- who takes them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", ["venus", "arcs", "venusA"])
def test_chips_refuse(chip):
    """One line from the platform's row: as a setting, as a plan, and in a graph."""
    message = f"weight_scales channel on platform {chip}: a weight has one scale per tensor there"
    with pytest.raises(lo.ConfigError, match=message):
        nets.quantized(line(), platform=chip, weight_scales="channel")
    result = by_channel(line, effort="fast")
    plan = dataclasses.replace(result.plan, platform=chip)
    with pytest.raises(
        lo.ConfigError,
        match=f"the plan has 8 scales for 'k0'; on {chip} a weight has one scale per tensor",
    ):
        nets.quantized(line(), platform=chip, plan=plan)
    graph = result.graph.clone()
    graph.metadata_props["lingeronnx.platform"] = chip
    with pytest.raises(
        lo.ModelError, match="scale_w is a list of 8; this target supports one scale per weight"
    ):
        lo.Session(graph).run(None, nets.samples(line(), 1))


def test_lists_where_none_belong():
    """A list of another length, and one in an operator that has no channels."""
    result = by_channel(line, effort="fast")
    graph = result.graph.clone()
    node = next(n for n in graph.graph if n.op_type == "LinearInt")
    ir.set_attr(node, "scale_w", [1.0, 2.0])
    with pytest.raises(lo.ModelError, match="scale_w is a list of 2; the weight has 5 channels"):
        lo.Session(graph).run(None, nets.samples(line(), 1))
    ir.set_attr(node, "scale_w", [1.0] * 4 + [-1.0])
    with pytest.raises(lo.ModelError, match="scale_w = -1; a scale is a positive number"):
        lo.Session(graph).run(None, nets.samples(line(), 1))
    ir.set_attr(node, "scale_w", 1.0)
    ir.set_attr(node, "scale_x", [1.0, 2.0])
    with pytest.raises(lo.ModelError, match=r"scale_x is \[1.0, 2.0\]; it must be a finite number"):
        lo.Session(graph).run(None, nets.samples(line(), 1))


def test_which_layers_have_channels():
    """Of the float operators of a net only the layers with weights."""
    found = {
        node.op_type
        for node in nets.prepared(layers()).graph
        if (op := find_lowering_rule(node, GENERIC)[0]) is not None
        and op.integer_op.channel_axis is not None
    }
    assert found == {"Conv", "ConvTranspose", "Linear"}
