"""Weights with a scale for each group of a row: plan, graph, simulator, plain classes, files, QDQ,
who takes them.
"""

import dataclasses
import math

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.ir.plan import (
    MAX_GROUP_FACTOR,
    Affine,
    PerAxis,
    PerGroup,
    Plan,
    make_grouped_qparams,
)
from lingeronnx.quantization.lower import extract_plan
from lingeronnx.quantization.scales.group_scales import compute_group_qparams
from tests import artefacts, nets
from tests.case_selection import limit_examples
from tests.nets import Net

MODES, WIDTHS = ("max-value", "q-value"), (4, 8)


def uneven(net, shape):
    """Weights whose size differs from one to the next: groups have much to gain."""
    return net.rng.standard_normal(shape) * np.exp(2 * net.rng.standard_normal(shape))


def flat():
    """Rows of 70 and of 33 in groups of 16: the last ones are shorter; the second layer has no
    bias.
    """
    net = Net(70, seed=3)
    hidden = net.node("Relu", net.linear("x", (70, 33)))
    return net.graph(
        net.node("MatMul", hidden, net.const(uneven(net, (33, 10)).astype(np.float32)), out="y")
    )


def rows():
    """The same over the last of three axes, with a bias behind one product."""
    net = Net(9, 70, seed=4)
    first = net.node("MatMul", "x", net.const(uneven(net, (70, 33)).astype(np.float32)))
    hidden = net.node(
        "Relu", net.node("Add", first, net.const(net.rng.standard_normal(33).astype(np.float32)))
    )
    return net.graph(
        net.node("MatMul", hidden, net.const(uneven(net, (33, 10)).astype(np.float32)), out="y")
    )


def grouped(build, **settings):
    return artefacts.quantized(build(), "generic", **{"weight_scales": "group:16", **settings})


SETTINGS = [
    {"mode": mode, "weight_bits": bits, "effort": "normal", "activations": "symmetric"}
    for mode in MODES
    for bits in WIDTHS
]


# ---- the scales ------------------------------------------------------------------------------------------------------


@limit_examples(60)
@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 5), st.integers(5, 40)),
    size=st.integers(1, 4),
    bits=st.sampled_from(WIDTHS),
    power=st.booleans(),
    calibrator=st.sampled_from(("max", "mse")),
)
def test_scales_stand_in_whole_ratios(seed, shape, size, bits, power, calibrator):
    """Law: factors are 1 to 255, powers of two where only these are held, also of zero rows and
    zero groups.
    """
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * np.exp(3 * rng.standard_normal(shape))
    values[rng.integers(shape[0])] *= rng.integers(2)
    values[:, :size] *= rng.integers(2)
    q = compute_group_qparams(values, size, bits, power_of_two=power, calibrator=calibrator)
    scale, factors = q.factors
    assert q.scales.shape == factors.shape == (shape[0], math.ceil(shape[1] / size))
    assert 1 <= factors.min() <= factors.max() <= MAX_GROUP_FACTOR
    assert make_grouped_qparams(scale, factors, size, bits) == q
    if power:
        assert q.power_of_two
        assert (np.frexp(factors.astype(float))[0] == 0.5).all()
    spread = np.repeat(q.scales, size, axis=1)[:, : shape[1]]
    integers = np.clip(np.floor(values * spread + 0.5), q.low, q.high)
    np.testing.assert_array_equal(q.integers(values), integers)
    if (
        calibrator == "max"
    ):  # what is cut off is less than what any factor and any power of two round
        assert (np.abs(values * spread) <= (q.high + 0.5) * (1 if power else 1.5)).all()


@pytest.mark.parametrize("power", (False, True))
def test_error_is_below_that_of_channels(power):
    """Of uneven weights a scale for each 8 of a row loses less than one for the row, in the sum
    over all rows.
    """
    values = uneven(Net(1, seed=5), (20, 64))
    q = compute_group_qparams(values, 8, 4, power_of_two=power, calibrator="mse")
    peaks = 7 / np.abs(values).max(axis=1)
    tried = [peaks * 4.0 ** (step / 48) for step in range(49)]
    rounded = [
        np.square(Affine(scale, 4, PerAxis(0)).on_grid(values) - values).sum(axis=1)
        for scale in tried
    ]
    assert np.square(q.on_grid(values) - values).sum() < 0.7 * np.min(rounded, axis=0).sum()


def test_room_for_refinement():
    """Few bits that are refined: no scale cuts off the largest weight by more than a factor's
    rounding.
    """
    values = np.random.default_rng(6).standard_normal((30, 64))
    of = np.abs(values.reshape(30, 2, 32)).max(axis=2)
    cut = compute_group_qparams(values, 32, 4, power_of_two=False, calibrator="mse").scales * of
    room = (
        compute_group_qparams(
            values, 32, 4, power_of_two=False, calibrator="mse", weights_refined=True
        ).scales
        * of
    )
    assert cut.max() > 7.5
    assert room.max() <= 7.05
    assert room.min() >= 0.74 * 7


def test_factors_that_are_none():
    """Scales in no ratio of whole numbers up to 255 have no factors."""
    for scales in ([[1.0, math.pi]], [[1.0, 256.0]]):
        with pytest.raises(
            ValueError, match="the scales of row 0 are not ratios of integers from 1 to 255"
        ):
            _ = Affine(scales, 4, PerGroup(1, 2)).factors
    assert Affine([[1.0, 255.0]], 4, PerGroup(1, 2)).factors[1].tolist() == [[255, 1]]


# ---- the whole way ---------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s['mode']}-{s['weight_bits']}")
@pytest.mark.parametrize("build", [flat, rows], ids=lambda f: f.__name__)
def test_plan_graph_and_integers(build, settings, tmp_path):
    """The graph holds the plan, also from a file; the plain classes, and sums written out, give the
    same integers.
    """
    result = grouped(build, **settings)
    held = [q for q in result.plan.tensors.values() if isinstance(q.granularity, PerGroup)]
    assert sorted(q.scales.shape for q in held) == [(10, 3), (33, 5)]
    result.save(tmp_path / "net.onnx")
    assert extract_plan(ir.load(tmp_path / "net.onnx")).tensors == result.plan.tensors
    assert Plan.from_json(result.plan.to_json()) == result.plan
    proto = ir.to_proto(result.graph)
    lo.check_model(proto)
    feed = nets.samples(build(), 3, seed=5)
    feed["x"][1] *= 100
    plain = ReferenceEvaluator(proto, new_ops=lo.reference_ops("generic")).run(
        None, feed, intermediate=True
    )
    seen = {name: array for name, array, _ in lo.Session(tmp_path / "net.onnx").taps(feed)}
    for name, array in seen.items():
        assert array.dtype == plain[name].dtype, name
        np.testing.assert_array_equal(array, plain[name], err_msg=name)
    for node in result.graph.graph:
        if node.op_type == "LinearInt":
            written_out(node, seen)


def written_out(node, seen):
    """Compare a LinearInt with Python's integers: sum_g m * (sum_i q * x), the bias, and floor(r *
    acc + 1/2).
    """
    weight, factors = (ir.const_value(node.inputs[i]).astype(object) for i in (1, 3))
    x, y = seen[node.inputs[0].name], seen[node.outputs[0].name]
    bias = (
        ir.const_value(node.inputs[2])
        if node.inputs[2] is not None
        else np.zeros(len(weight), np.int64)
    )
    size, out = ir.get_attr(node, "group_size"), float(np.float32(ir.get_attr(node, "scale_o")))
    for index in np.ndindex(x.shape[:-1]):
        for o in range(len(weight)):
            acc = int(bias[o])
            for i, value in enumerate(x[index].tolist()):
                acc += int(weight[o, i]) * int(factors[o, i // size]) * value
            scales = (
                float(np.float32(ir.get_attr(node, "scale_x"))),
                float(np.float32(ir.get_attr(node, "scale_w")[o])),
            )
            mantissa, exponent = math.frexp(out / (scales[0] * scales[1]))
            shift, factor = 31 - exponent, math.floor(math.ldexp(mantissa, 31) + 0.5)
            want = (acc * factor + (1 << (shift - 1))) >> shift
            assert y[(*index, o)] == min(max(want, -128), 127)


def test_better_where_weights_are_uneven():
    """Held-back inputs, 4 bits: groups come nearer to the float model than channels, rounded and
    refined.
    """
    x = nets.samples(flat(), 64, seed=8)
    (want,) = ReferenceEvaluator(ir.to_proto(flat())).run(None, x)
    for effort in ("fast", "normal"):
        noise = {}
        for scales in ("channel", "group:16"):
            made = grouped(
                flat, weight_scales=scales, weight_bits=4, mode="max-value", effort=effort
            )
            noise[scales] = np.square(made.session().run(None, x)[0] - want).mean()
        assert noise["group:16"] < 0.9 * noise["channel"], effort


def test_layers_that_have_none():
    """Convolutions have a scale per channel, weights of 16 bits and rows of one group as well;
    others stay.
    """
    net = Net(4, 6, 6, seed=9)
    mean = net.node("Flatten", net.node("GlobalAveragePool", net.conv("x", (20, 4, 3, 3))))
    graph = net.graph(net.linear(mean, (20, 5), out="y"))
    for settings, kinds in (
        ({"weight_scales": "group:8"}, {PerAxis, PerGroup}),
        ({"weight_scales": "group:20"}, {PerAxis}),
        ({"weight_scales": "group:8", "weight_bits": 16}, {PerAxis}),
    ):
        plan = nets.quantized(graph, platform="generic", effort="fast", **settings).plan
        assert {type(q.granularity) for q in plan.tensors.values() if not q.single} == kinds


def test_a_layer_that_writes_floats():
    """out_bits float: the sum is divided by the scale of its row's products."""
    result = grouped(flat, overrides={"y": {"out_bits": "float"}}, weight_bits=4)
    node = next(
        n for n in result.graph.graph if n.op_type == "LinearInt" and "scale_o" not in n.attributes
    )
    seen = {
        name: array
        for name, array, _ in lo.Session(result.graph).taps(nets.samples(flat(), 2, seed=1))
    }
    weight, factors = (
        ir.const_value(node.inputs[1]).astype(np.int64),
        ir.const_value(node.inputs[3]).astype(np.int64),
    )
    sums = (
        seen[node.inputs[0].name].astype(np.int64)
        @ (weight * np.repeat(factors, 16, axis=1)[:, :33]).T
    )
    sums = sums if node.inputs[2] is None else sums + ir.const_value(node.inputs[2])
    scale = ir.get_attr(node, "scale_x") * np.array(ir.get_attr(node, "scale_w"))
    np.testing.assert_array_equal(seen["y"], (sums / scale).astype(np.float32))


# ---- standard ONNX ---------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{s['mode']}-{s['weight_bits']}")
@pytest.mark.parametrize("build", [flat, rows], ids=lambda f: f.__name__)
def test_blocked_dequantize_linear(build, settings, tmp_path):
    """onnxruntime gives the simulator's integers but for ties, with functions every one; all scales
    come back.
    """
    result, path = grouped(build, **settings), tmp_path / "net_qdq.onnx"
    lo.convert(result.graph, "qdq").save(path)
    blocks = [
        n
        for n in ir.load(path).graph
        if n.op_type == "DequantizeLinear" and "block_size" in n.attributes
    ]
    assert [ir.get_attr(n, "block_size") for n in blocks] == [16, 16]
    feed = nets.samples(build(), 16, seed=6)
    (want,) = lo.Session(result.graph).run(None, feed)
    scale = result.plan.tensors["y"].scale
    counts = np.rint(np.abs(ort.InferenceSession(path).run(None, feed)[0] - want) * scale)
    assert counts.max() <= (
        4 if settings["mode"] == "q-value" else 1
    )  # ties of the first layer go through the second
    assert (counts > 0).mean() < (0.1 if settings["mode"] == "q-value" else 0.002)
    lo.convert(result.graph, "qdq", exact=True, functions=True).save(tmp_path / "exact.onnx")
    exact = ort.InferenceSession(tmp_path / "exact.onnx").run(None, feed)[0]
    assert np.abs(exact - want).max() * scale < 1e-3
    again = lo.quantize(path, nets.samples(build(), 8, seed=7), platform="generic")
    assert {n: q for n, q in again.plan.tensors.items() if not q.single} == {
        n: q for n, q in result.plan.tensors.items() if not q.single
    }
    np.testing.assert_array_equal(lo.Session(again.graph).run(None, feed)[0], want)


def test_blocks_of_another_tool(tmp_path):
    """Scales in no whole ratios are made anew, in groups of the same size."""
    result, path = grouped(flat, mode="max-value", effort="fast"), tmp_path / "net_qdq.onnx"
    lo.convert(result.graph, "qdq").save(path)
    graph = ir.load(path)
    for node in list(graph.graph):
        if "block_size" in node.attributes:
            step = ir.const_value(node.inputs[1])
            noise = np.random.default_rng(1).uniform(0.9, 1.1, step.shape)
            ir.set_constant_input(graph, node, 1, (step * noise).astype(np.float32), "other")
    again = lo.quantize(graph, nets.samples(flat(), 8, seed=7), platform="generic")
    sizes = {
        q.granularity.size
        for q in again.plan.tensors.values()
        if isinstance(q.granularity, PerGroup)
    }
    assert sizes == {16}
    assert any("2 weights requantized" in note for note in again.report.notes)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", ["venus", "arcs", "venusA"])
def test_chips_refuse(chip):
    """One line from the platform's row: as a setting, as a plan, and in a graph."""
    with pytest.raises(
        lo.ConfigError,
        match=f"weight_scales group:16 on platform {chip}: a weight has one scale per t",
    ):
        nets.quantized(flat(), platform=chip, weight_scales="group:16")
    result = grouped(flat, effort="fast")
    plan = dataclasses.replace(result.plan, platform=chip)
    with pytest.raises(
        lo.ConfigError,
        match=f"the plan has 165 scales for .*; on {chip} a weight has one scale per te",
    ):
        nets.quantized(flat(), platform=chip, plan=plan)
    graph = result.graph.clone()
    graph.metadata_props["lingeronnx.platform"] = chip
    with pytest.raises(
        lo.ModelError, match="scale_w is a list of 33; this target supports one scale per weight"
    ):
        lo.Session(graph).run(None, nets.samples(flat(), 1))


@pytest.mark.parametrize("text", ["group", "group:0", "group:-3", "group:2.5", "rows", "channel:3"])
def test_settings_that_are_none(text):
    with pytest.raises(
        lo.ConfigError,
        match="weight_scales = .*: it must be tensor, channel, or group:N for groups",
    ):
        nets.quantized(flat(), platform="generic", weight_scales=text)


def test_plans_that_do_not_fit():
    """Another number of groups, no whole ratios, 16 bits, a tensor that is no such weight."""
    plan = grouped(flat, effort="fast").plan
    name = next(n for n, q in plan.tensors.items() if q.scales.shape == (33, 5))
    q = plan.tensors[name]
    odd = q.scales * np.array([1.0, 1.1371, 1.0, 1.0, 1.0])
    for held, message in (
        (
            Affine(q.scales[:, :4], 8, PerGroup(1, 16)),
            r"\[33, 4\] scales of groups of 16 along axis 1 in 8 bits for",
        ),
        (
            Affine(q.scales, 8, PerGroup(1, 15)),
            rf"{name}'; it has \[33, 5\] along axis 1|are not ratios",
        ),
        (Affine(q.scales, 16, PerGroup(1, 16)), "in 16 bits for"),
        (Affine(odd, 8, PerGroup(1, 16)), "are not ratios of integers from 1 to 255"),
    ):
        changed = plan.with_tensors({**plan.tensors, name: held})
        if held.granularity.size == 15:  # five groups of 15 hold 70 as well
            assert (
                nets.quantized(
                    flat(), platform="generic", plan=changed, effort="fast"
                ).plan.tensors[name]
                == held
            )
            continue
        with pytest.raises(lo.ConfigError, match=message):
            nets.quantized(flat(), platform="generic", plan=changed, effort="fast")
    changed = plan.with_tensors({**plan.tensors, "x": Affine([[1.0, 2.0]], 8, PerGroup(1, 35))})
    with pytest.raises(
        lo.ConfigError, match="only weights of fully connected layers support groups"
    ):
        nets.quantized(flat(), platform="generic", plan=changed, effort="fast")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("size", "group_size = 0 with weights of int8"),
        ("one scale", "it has a group_size but no factors|group_size = 16 with weights of int8"),
        ("no factors", "it has a group_size but no factors per row"),
        (
            "fewer",
            (
                r"factors have shape \[33, 4\] and minimum \d+; weights \[33, 70\] in groups of 16 "
                r"have \[33, 5\], from 1 to 255"
            ),
        ),
        ("zero", r"factors have shape \[33, 5\] and minimum 0; weights"),
        ("no size", "it has group factors but no group_size"),
    ],
)
def test_damaged_graphs(what, message):
    """One line that names the node, the value and the limit."""
    graph = grouped(flat, effort="fast").graph.clone()
    node = next(n for n in graph.graph if n.op_type == "LinearInt")
    factors = ir.const_value(node.inputs[3]).copy()
    if what == "size":
        ir.set_attr(node, "group_size", 0)
    elif what == "one scale":
        ir.set_attr(node, "scale_w", 3.0)
    elif what == "no factors":
        node.replace_input_with(3, None)
    elif what == "no size":
        del node.attributes["group_size"]
    else:
        factors[0, 0] = 0
        ir.set_constant_input(
            graph, node, 3, factors if what == "zero" else factors[:, 1:], "damaged"
        )
    with pytest.raises(lo.ModelError, match=message):
        lo.Session(graph).run(None, nets.samples(flat(), 1))
