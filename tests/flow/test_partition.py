"""What becomes integer and what stays in float, and why; what the user selects."""

import numpy as np
import pytest

from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS
from lingeronnx.quantization.partition import partition_graph
from lingeronnx.runtime.session import Session
from lingeronnx.targets import GENERIC
from tests import nets
from tests.nets import prepared, single


def reasons(model, row=VENUS):
    """Return {op type: why} of what stays in float."""
    kinds = {str(node.name): node.op_type for node in model.graph}
    return {kinds[name]: why for name, why in partition_graph(model, row, {}).floats.items()}


CASES = {
    "an unknown operator": (
        lambda n: n.node("Sin", n.conv("x", (4, 3, 3, 3)), out="y"),
        "Sin",
        "no integer form",
    ),
    "a 7x7 kernel": (
        lambda n: n.conv("x", (4, 3, 7, 7), out="y"),
        "Conv",
        "kernel height and width must not exceed 5; here 7x7",
    ),
    "a stride of 3": (
        lambda n: n.conv("x", (4, 3, 3, 3), strides=[3, 3], out="y"),
        "Conv",
        "here 3",
    ),
    "a dilation": (
        lambda n: n.conv("x", (4, 3, 3, 3), dilations=[2, 2], out="y"),
        "Conv",
        "dilations must be one of",
    ),
    "a wide pad": (
        lambda n: n.conv("x", (4, 3, 5, 5), pads=[5, 0, 0, 0], out="y"),
        "Conv",
        "padding must not exceed 4",
    ),
    "a multiplier": (
        lambda n: n.conv("x", (6, 1, 3, 3), group=3, out="y"),
        "Conv",
        "here 3 inputs, 6 outputs",
    ),
    "a broadcast": (
        lambda n: n.node("Add", n.conv("x", (4, 3, 1, 1)), n.conv("x", (4, 3, 12, 12)), out="y"),
        "Add",
        "both operands have the same shape; here [N,4,12,12] and [N,4,1,1]",
    ),
    "a batch concatenation": (
        lambda n: n.node(
            "Concat", n.conv("x", (4, 3, 1, 1)), n.conv("x", (4, 3, 1, 1)), axis=0, out="y"
        ),
        "Concat",
        "it concatenates along the batch axis",
    ),
    "an empty slice": (
        lambda n: n.node(
            "Slice", n.conv("x", (4, 3, 1, 1)), *[n.const(np.array([2]))] * 3, out="y"
        ),
        "Slice",
        "'y' has no elements",
    ),
    "a hard clip": (
        lambda n: n.node(
            "Clip",
            n.conv("x", (4, 3, 1, 1)),
            n.const(np.float32(-1)),
            n.const(np.float32(1)),
            out="y",
        ),
        "Clip",
        "venus has no Clip",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_partition_reasons(case):
    """Every node that stays in float says why."""
    build, kind, why = CASES[case]
    found = reasons(single(build, 3, 12, 12))
    assert why in found[kind], found


def test_nan_weight_stays_in_float():
    """A weight that is not finite cannot be held."""
    net = nets.Net(3, 6, 6)
    net.node("Conv", "x", net.const(np.full((4, 3, 1, 1), np.nan, np.float32)), out="y")
    assert "NaN or infinity" in reasons(prepared(net.graph("y")))["Conv"]


def test_frames_in_the_place_of_the_batch():
    """Rows of one sample on axis 0: a chip takes a sample there, and a Reshape of it would be
    written for one row.
    """
    net = nets.Net(24, batch=1)
    shapes = [net.const(np.array(shape)) for shape in ([6, 4], [6, 2, 2], [6, 4], [1, 6, 4])]
    held = net.rng.standard_normal((4, 4)).astype(np.float32)
    weight = net.const(held)
    rows = net.node("MatMul", net.node("Reshape", "x", shapes[0]), weight)
    back = net.node("Reshape", net.node("Relu", net.node("Reshape", rows, shapes[1])), shapes[2])
    kept = net.node("MatMul", net.node("Reshape", back, shapes[3]), weight, out="y")
    model = net.graph(kept)
    assert any(
        "holds 6 rows of one sample" in why
        for why in partition_graph(prepared(model), VENUS, {}).floats.values()
    )
    plain, wide = (nets.quantized(model, platform=row, effort="fast") for row in (VENUS, GENERIC))
    assert plain.report.chip_ready or plain.report.program.runs_correctly
    # With a batch that is free the frames have an axis of their own, and one Reshape less.
    assert [node.op_type for node in wide.graph.graph].count("Reshape") == 3
    feed = nets.samples(model, 1)["x"]
    want = np.maximum(feed.reshape(1, 6, 4) @ held, 0) @ held
    for result in (plain, wide):
        np.testing.assert_allclose(result.session()(feed), want, atol=0.2)


def test_a_constant_beside_frames_in_the_place_of_the_batch():
    """A window over frames: on chips every element of one sample would be a channel, and there are
    six rows.
    """
    net = nets.Net(24, batch=1, opset=17)
    square = net.const(net.rng.standard_normal((4, 4)).astype(np.float32))
    rows = net.node("MatMul", net.node("Reshape", "x", net.const(np.array([6, 4]))), square)
    windowed = net.node(
        "Mul", net.node("Sin", rows), net.const(np.linspace(0.1, 1.0, 4, dtype=np.float32))
    )
    shifted = net.node(
        "Add", net.node("Sin", windowed), net.const(np.linspace(-1.0, 1.0, 4, dtype=np.float32))
    )
    units = [net.const(np.full(4, held, np.float32)) for held in (1.0, 0.0)]
    normed = net.node("LayerNormalization", net.node("Sin", shifted), *units)
    model = net.graph(
        net.linear(net.node("Reshape", normed, net.const(np.array([1, 24]))), (24, 4), out="y")
    )
    for chip in (VENUS, ARCS):
        found = partition_graph(prepared(model), chip, {}).floats
        whys = [why for name, why in found.items() if name.startswith(("Mul", "Add", "Layer"))]
        assert len(whys) == 3
        assert all("its axis 0 holds 6 rows of one sample" in why for why in whys)
        made = nets.quantized(model, platform=chip, effort="fast")
        assert made.report.chip_ready or made.report.program.runs_correctly
        feed = nets.samples(model, 1)
        np.testing.assert_allclose(
            made.session().run(None, feed), Session(model).run(None, feed), atol=0.2
        )


def test_moves_between_floats_stay_in_float():
    """A reshape between two float operators is no reason to quantize."""
    net = nets.Net(4, 6)
    a = net.node("Sin", net.node("Transpose", net.node("Sin", "x"), perm=[0, 2, 1]), out="y")
    found = reasons(prepared(net.graph(a)))
    assert found["Transpose"] == "it only moves data between float operators"


@pytest.mark.parametrize(
    ("behind", "why"),
    (
        ("end", {"it follows float operators at the end of the network"}),
        ("host", {"no layer runs with it between float operators"}),
        ("layer", set()),
    ),
)
def test_a_sum_of_what_the_host_computes(behind, why):
    """Boxes that the host computes and joins: it stays where a layer reads it, for the packer takes
    no sum alone.
    """
    net = nets.Net(3, 8, 8)
    conv = net.conv("x", (4, 3, 3, 3))
    joined = net.node("Concat", net.node("Sin", conv), net.node("Cos", conv), axis=1)
    out = net.node("Add", joined, joined)
    if behind != "end":
        out = net.conv(net.node("Sin", out) if behind == "host" else out, (4, 8, 3, 3))
    found = partition_graph(prepared(net.graph(out)), VENUS, {})
    left = {name: each for name, each in found.floats.items() if name.startswith(("Concat", "Add"))}
    assert set(left.values()) == why
    assert len(left) == (2 if why else 0)
    assert any(name.startswith("Conv") for name in found.ops)


def test_a_sum_behind_the_hosts_first_operators_stays():
    """Nothing of the chip stands before them."""
    net = nets.Net(3, 8, 8)
    out = net.node("Add", net.node("Sin", "x"), net.node("Cos", "x"))
    assert any(
        name.startswith("Add") for name in partition_graph(prepared(net.graph(out)), VENUS, {}).ops
    )


def test_host_part_and_fallbacks():
    """Float before the first and after the last integer operator is the host's; between them it is
    in the way.
    """
    net = nets.Net(3, 8, 8)
    c = net.conv(net.node("Sin", "x", out="pre"), (4, 3, 3, 3))
    d = net.conv(net.node("Sin", c, out="mid"), (4, 4, 3, 3))
    report = nets.quantized(net.graph(net.node("Sin", d, out="post")), effort="fast").report
    assert [n.node for n in report.float_nodes] == ["Sin_mid"]
    assert [n.node for n in report.host_part] == ["Sin_pre", "Sin_post"]
    assert not report.chip_ready
    assert report.integer_macs == 1


def test_clip_without_a_scale():
    """ReLU6 whose tensor is multiplied or read in float: it is composed between layers, and the
    host's before its own.

    No scale puts 6 at the top of the range.
    """
    net = nets.Net(3, 8, 8)
    six = net.relu6(net.conv("x", (4, 3, 1, 1)))
    net.conv(net.node("Mul", six, net.conv("x", (4, 3, 1, 1))), (4, 4, 1, 1), out="y")
    assert nets.quantized(net.graph("y"), effort="fast", parts=1).report.chip_ready
    net = nets.Net(3, 8, 8)
    net.conv(net.node("Sin", net.relu6(net.conv("x", (4, 3, 1, 1)))), (4, 4, 1, 1), out="y")
    report = nets.quantized(net.graph("y"), effort="fast", parts=1).report
    assert [n.op_type for n in report.float_nodes] == ["Clip", "Sin"]
    assert "no scale maps the bound to the largest integer" in report.float_nodes[0].why


# ---- selectors and overrides -----------------------------------------------------------------------------------------


def selected(**settings):
    return nets.quantized(nets.residual(), effort="fast", **settings)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "selector, names",
    (
        ("Conv_t2", "Conv_t2"),
        ("t2", "Conv_t2"),
        ("Conv_t[247]", "Conv_t2 Conv_t4 Conv_t7"),
        ("t1?", "Relu_t10 GlobalAveragePool_t11 Flatten_t12"),
        ("type:Conv", "Conv_t0 Conv_t2 Conv_t4 Conv_t7 Conv_t8"),
        ("type:Gemm", "Gemm_y"),
    ),
)
def test_skip(selector, names):
    """A node name, a tensor name, a glob over both, or a type, all of the user's own graph."""
    plan = selected(skip=[selector]).plan
    found = {name for name, why in plan.floats.items() if why == f"skipped by '{selector}'"}
    assert found == set(names.split())


def test_skip_of_a_folded_node():
    """A batch normalisation that went into its convolution: its output's name is the layer's
    now.
    """
    net = nets.Net(3, 6, 6)
    four = [net.const(np.ones(4, np.float32)) for _ in range(4)]
    net.node("BatchNormalization", net.conv("x", (4, 3, 3, 3)), *four, out="n")
    net.conv("n", (4, 4, 3, 3), out="y")
    plan = nets.quantized(net.graph("y"), skip=["BatchNormalization_n"], effort="fast").plan
    assert set(plan.floats) == {"Conv_t0"}


@pytest.mark.parametrize(
    "selector, near", (("Conv_t22", "Conv_t2"), ("type:Cov", "Conv"), ("zz*", None))
)
def test_unknown_selector(selector, near):
    """Nothing found: the error names the nearest."""
    with pytest.raises(ConfigError, match=r"matches no node") as caught:
        selected(skip=[selector])
    assert near is None or f"did you mean '{near}" in str(caught.value)


def test_override_scale_and_calibrator():
    """A fixed scale holds for the whole class; a calibrator for what it names."""
    plan = selected(overrides={"Conv_t0": {"scale": 2.0**3}}).plan
    assert plan.tensors["t0"].scale == plan.tensors["t1"].scale == 8.0
    for kind in ("max", "mse"):
        assert (
            selected(overrides={"t*": {"calibrator": kind}, "x": {"calibrator": kind}})
            .plan.tensors["x"]
            .scale
            > 0
        )


@pytest.mark.parametrize(
    "overrides, message",
    (
        ({"x": {"scale": 3.0}}, "not a power of two"),
        ({"nowhere": {"scale": 4.0}}, "matches no node or tensor"),
        ({"x": {"scal": 4.0}}, "did you mean 'scale'"),
        ({"x": {"scale": -4.0}}, "scale"),
        ({"x": {"calibrator": "median"}}, "calibrator"),
    ),
)
def test_wrong_override(overrides, message):
    """Wrong overrides are told in one line."""
    with pytest.raises(ConfigError, match=message) as caught:
        selected(overrides=overrides)
    assert "\n" not in str(caught.value)


def test_all_zero_tensor_is_noted():
    """A dead layer does not stop the quantizer; the report says so."""
    net = nets.Net(3, 6, 6)
    zero = net.node("Conv", "x", net.const(np.zeros((4, 3, 1, 1), np.float32)))
    report = nets.quantized(net.graph(net.conv(zero, (2, 4, 1, 1), out="y")), effort="fast").report
    assert any("is all zero in the calibration data" in note for note in report.notes)
    assert any("is all zero" in note and "weight" in note for note in report.notes)


def test_names_are_the_users():
    """Law 1: the plan speaks of tensors of the float graph."""
    result = nets.quantized(nets.shortcut())
    known = {str(v.name) for v in ir.iter_values(result.float_graph)} | set(
        result.float_graph.graph.initializers
    )
    assert result.plan.tensors.keys() <= known


def test_what_leaves_between_two_parts():
    """Fully connected layers that the host reads for what is computed in integers again: not the
    last one.
    """
    net = nets.Net(6)
    a = net.node("Sin", net.linear("x", (6, 8)))
    b = net.node("Relu", net.linear(a, (8, 8)))
    found = prepared(net.graph(net.node("Sin", net.linear(b, (8, 4)), out="y")))
    parts = partition_graph(found, VENUS, {})
    first, second, last = [
        str(node.outputs[0].name) for node in found.graph if node.op_type == "Linear"
    ]
    assert parts.wide_outputs_between_parts(VENUS) == [first]
    assert {second, last} & parts.wide_outputs(VENUS) == {last}


def build_residual(net):
    """A float operator's result and a layer's: only a float operator reads the sum."""
    a = net.node("Sin", net.conv("x", WEIGHTS))
    s = net.node("Add", a, net.conv(a, WEIGHTS))
    return net.conv(net.node("Cos", s), WEIGHTS)


def build_chain(net):
    """Two sums, of which the second reads the first; one more tensor is copied."""
    a = net.conv("x", WEIGHTS)
    s = net.node("Add", a, net.conv(a, WEIGHTS))
    t = net.node("Add", s, net.conv(net.node("Sin", s), WEIGHTS))
    return net.conv(net.node("Cos", t), WEIGHTS)


def build_two_layers(net):
    """The host would read two tensors instead of one."""
    s = net.node("Add", net.conv("x", WEIGHTS), net.conv("x", WEIGHTS))
    return net.conv(net.node("Sin", s), WEIGHTS)


def build_layer_reader(net):
    """A layer reads the sum as well."""
    a = net.node("Sin", net.conv("x", WEIGHTS))
    s = net.node("Add", a, net.conv(a, WEIGHTS))
    t = net.node("Add", net.conv(net.node("Cos", s), WEIGHTS), net.conv(s, WEIGHTS))
    return net.conv(t, WEIGHTS)


WEIGHTS = (3, 3, 1, 1)


@pytest.mark.parametrize("row", [GENERIC, VENUS])
@pytest.mark.parametrize(
    ("build", "count"),
    [(build_residual, 1), (build_chain, 2), (build_two_layers, 0), (build_layer_reader, 0)],
)
def test_sums_that_only_float_operators_read_stay_in_float(build, count, row):
    net = nets.Net(3, 8, 8)
    parts = partition_graph(prepared(net.graph(build(net))), row, {})
    sums = [why for name, why in parts.floats.items() if name.startswith("Add")]
    assert len(sums) == count
    assert all("only float operators read this sum" in why for why in sums)
    assert any(name.startswith("Conv") for name in parts.ops)
