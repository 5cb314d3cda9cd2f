"""What the rows make of the same float operator: other operators, ties, packer arguments, left
shifts.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from lingeronnx.api import quantize
from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.luna.packer_profile import get_packer_profile
from lingeronnx.operators.integer_ops import INTEGER_OPS, TRAINING_ONLY_OPS
from lingeronnx.operators.pool.lowering import make_mean_weights
from lingeronnx.runtime.session import Session
from lingeronnx.targets import PLATFORMS, get_target
from tests.nets import Net, samples
from tests.ops.test_breadth import CASES

CHIPS = [target for target in PLATFORMS if target.has_packer]


def lowered(case, row, **settings):
    """Return the result of quantizing a net of test_breadth for `row`, in the forms that lowering
    gives.
    """
    model = CASES[case][0]()
    return quantize(model, samples(model), platform=row, objective="plain", **settings)


def without(row, operator):
    """Return `row` without an operator."""
    return replace(row, ops={name: entry for name, entry in row.ops.items() if name != operator})


def test_a_name_means_one_operator():
    """No two formats share a name in any generation: that is how a node finds its own."""
    names = [
        name for form in (*INTEGER_OPS, *TRAINING_ONLY_OPS) for name in dict.fromkeys(form.names)
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("target", PLATFORMS, ids=lambda target: target.name)
def test_operators_of_a_row_exist(target):
    """A row lists operators that are in the table, by their own names, each with an arithmetic of
    its kind.
    """
    kinds = {form.name: form.kind for form in (*INTEGER_OPS, *TRAINING_ONLY_OPS)}
    assert set(target.ops) <= {form.name for form in INTEGER_OPS}
    tables = [
        {name: entry.arithmetic for name, entry in target.ops.items()},
        target.also,
        *target.training.values(),
    ]
    for table in tables:
        wrong = {name: how for name, how in table.items() if not isinstance(how, kinds[name])}
        assert not wrong
    assert get_target(target.name) is target


@pytest.mark.sweep
@pytest.mark.parametrize(
    "case, row, kinds",
    (
        ("conv1d", VENUS, ["Conv1dInt"]),
        ("conv1d", VENUSA, ["Unsqueeze", "Conv2dInt", "Squeeze"]),
        ("conv1d-long", ARCS, ["Conv1dInt"]),
        ("conv1d-dilated", ARCS, ["Unsqueeze", "Conv2dInt", "Squeeze"]),
        ("average-8x8", VENUS, ["Reshape", "LinearInt", "Reshape"]),
        ("average-8x8", without(VENUS, "LinearInt"), ["AvgPool2dInt"]),
        ("average-8x8", without(ARCS, "LinearInt"), ["AvgPool2dInt", "Conv2dInt"]),
        ("average-7x7", without(VENUSA, "LinearInt"), ["AvgPool2dInt", "AvgPool2dInt"]),
        ("average-3x3", without(ARCS, "LinearInt"), ["AvgPool2dInt"]),
        ("sub", VENUS, ["Conv2dInt", "Conv2dInt", "BatchNorm2dInt", "iqAdd"]),
        ("sub-rows", ARCS, ["LinearInt", "iqSub"]),
        (
            "leaky-relu",
            ARCS,
            ["Conv2dInt", "Relu", "BatchNorm2dInt", "Relu", "BatchNorm2dInt", "iqAdd"],
        ),
        ("split", VENUS, ["Slice", "Slice", "Conv2dInt", "Conv2dInt", "iqAdd"]),
        ("slices", ARCS, ["Slice", "Slice", "Conv2dInt"]),
        ("transpose", ARCS, ["Transpose", "Conv2dInt"]),
        ("transpose", VENUSA, ["Transpose", "Transpose", "Conv2dInt"]),
        ("shuffle", ARCS, ["Reshape", "Transpose", "Reshape", "Conv2dInt"]),
        ("shuffle", VENUSA, ["Reshape", "Transpose", "Transpose", "Reshape", "Conv2dInt"]),
    ),
)
def test_emitted(case, row, kinds):
    """The integer graph ends in these operators; parallel ones may stand in any order."""
    found = [
        node.op_type
        for node in lowered(case, row).graph.graph
        if node.op_type not in ("Quant", "Dequant")
    ]
    assert sorted(found[-len(kinds) :]) == sorted(kinds)


@pytest.mark.parametrize(
    "height, width, channels",
    ((8, 8, 16), (4, 4, 8), (2, 2, 3), (7, 7, 6), (10, 16, 24), (1, 8, 1)),
)
@pytest.mark.parametrize("target", (ARCS, VENUSA), ids=lambda target: target.name)
def test_an_average_in_steps_is_the_average(height, width, channels, target):
    """Within one count of the exact mean; a single convolution by ones is exact, halves up."""
    net = Net(3, height, width, seed=1)
    a = net.node("Relu", net.conv("x", (channels, 3, 1, 1)), out="a")
    model = net.graph(net.node("GlobalAveragePool", a, out="y"))
    result = quantize(model, samples(model), platform=without(target, "LinearInt"), effort="fast")
    taps = {name: array for name, array, _ in result.session().taps(samples(model))}
    exact = taps["a"].astype(np.float64).mean(axis=(2, 3), keepdims=True)
    assert np.abs(taps["y_q"] - exact).max() <= 1
    kinds = [node.op_type for node in result.graph.graph]
    if kinds.count("Conv2dInt") == 2 and "AvgPool2dInt" not in kinds:
        assert np.array_equal(taps["y_q"], np.floor(exact + 0.5))


@given(st.integers(1, 1 << 16))
def test_weights_of_a_mean(area):
    """Bytes next to 2^q / area, spread evenly: the first n add up to n / area of 2^q, within
    one.
    """
    weights, scale = make_mean_weights(area)
    assert weights.dtype == np.int8
    assert weights.shape == (1, area)
    assert np.log2(scale) in range(17)
    assert np.abs(weights - scale / area).max() < 1
    sums, places = np.cumsum(weights[0], dtype=np.int64), np.arange(1, area + 1)
    assert np.abs(sums - places * scale / area).max() < 1
    assert sums[-1] == scale


@pytest.mark.parametrize(
    "height, width, channels", ((8, 8, 16), (7, 7, 6), (10, 16, 24), (25, 5, 8), (1, 8, 1))
)
@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
def test_the_average_of_a_map_has_a_scale_of_its_own(height, width, channels, target):
    """Finer than that of the map, whose values are mostly small beside the largest; the graph is
    ready for the chip.
    """
    net = Net(3, height, width, seed=1)
    a = net.node("Relu", net.conv("x", (channels, 3, 1, 1)), out="a")
    pooled = net.node("Flatten", net.node("GlobalAveragePool", a, out="m"))
    model = net.graph(net.linear(pooled, (channels, 3), out="y"))
    result = quantize(model, samples(model), platform=target, effort="fast")
    assert result.report.chip_ready
    assert result.plan.tensors["m"].scale > result.plan.tensors["a"].scale
    assert any(
        fitted.what == "AveragePool written as 2 Reshape, LinearInt"
        for fitted in result.report.fitted
    )
    taps = {name: array for name, array, _ in result.session().taps(samples(model))}
    ratio = result.plan.tensors["m"].scale / result.plan.tensors["a"].scale
    exact = np.clip(
        taps["a"].astype(np.float64).mean(axis=(2, 3), keepdims=True) * ratio, -128, 127
    )
    assert np.abs(taps["m"] - exact).max() <= 1 + ratio  # the weights are one off here and there


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
def test_required_attributes(target):
    """Every node of the vendor's carries what its packer asks for."""
    wanted = dict(target.node_attributes[""])
    for node in lowered("concat", target).graph.graph:
        if node.domain:
            assert (
                wanted.items() <= {key: ir.get_attr(node, key) for key in node.attributes}.items()
            )
    assert ("quant_mode" in wanted) == ("platform" in wanted) == (target is not VENUS)


def scales(model, op_type):
    """Return the scale attributes of the first node of a kind."""
    node = next(node for node in model.graph if node.op_type == op_type)
    return {key: ir.get_attr(node, key) for key in node.attributes if key.startswith("scale")}


def test_concat_scales_are_tied_where_they_must():
    """venusA gives zeros for an input of a larger scale; elsewhere every input keeps its own."""
    assert len(set(scales(lowered("concat", VENUSA, effort="fast").graph, "iqCat").values())) == 1
    for row in (VENUS, ARCS):
        assert len(set(scales(lowered("concat", row, effort="fast").graph, "iqCat").values())) > 1


def test_what_others_read_is_requantized_for_a_concatenation():
    """On venusA an input that somebody else reads keeps its scale; a Requant stands before the
    concatenation.
    """
    net = Net(4, 6, 6, seed=1)
    a, b = net.conv("x", (4, 4, 1, 1), gain=0.1, out="a"), net.conv("x", (4, 4, 1, 1), out="b")
    model = net.graph(net.node("Concat", a, b, axis=1, out="y"), net.conv(a, (4, 4, 1, 1), out="z"))
    for row, requants in ((VENUSA, 1), (ARCS, 0)):
        result = quantize(model, samples(model), platform=row.name, effort="fast")
        assert [node.op_type for node in result.graph.graph].count("Requant") == requants
        taps = {
            name: (array, scale) for name, array, scale in result.session().taps(samples(model))
        }
        (a8, fine), (y8, coarse) = taps["a"], taps["y_q"]
        assert fine > coarse
        assert np.array_equal(y8[:, :4], np.floor(a8 * (coarse / fine) + 0.5))


ROWS_IN_PSRAM = "-m t0:psram,t1:psram,t2_q:psram"


@pytest.mark.sweep
@pytest.mark.parametrize(
    "case, args",
    (
        ("deconv", ("-m params:share-mem", "-m params:share-mem", "")),
        ("sub-rows", (ROWS_IN_PSRAM, f"{ROWS_IN_PSRAM},params:share-mem", ROWS_IN_PSRAM)),
        ("sub", ("", "-m params:share-mem", "")),
        ("average-9x9", ("", "-m params:share-mem", "-m t2_mean:psram,t2_q:psram")),
    ),
)
def test_packer_arguments(case, args):
    """What the packer needs, and on arcs, whose time is known, what is fastest: small constants in
    shared memory.
    """
    have = [lowered(case, target).report.packer_args for target in CHIPS]
    assert have == [
        f"-p {get_packer_profile(row).name} -d False {more}".strip()
        for row, more in zip(CHIPS, args, strict=True)
    ]


@pytest.mark.parametrize(
    "bias, args",
    (
        (True, "--threshold4 1"),
        (False, "--dma_prefetch False -m t0:psram,t1:psram,t2:psram,t3_q:psram"),
    ),
)
def test_a_linear_layer_of_several_rows_needs_a_place_on_venusa(bias, args):
    """Another one with biases than without; refining the weights would give all layers some."""
    net = Net(6, 8, seed=6)
    q, k = (
        net.node("MatMul", "x", net.const(net.rng.standard_normal((8, 5)).astype(np.float32)))
        for _ in "qk"
    )
    if bias:
        q, k = (
            net.node("Add", v, net.const(net.rng.standard_normal(5).astype(np.float32)))
            for v in (q, k)
        )
    graph = net.graph(net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1])))
    for row, more in ((VENUSA, f" {args}"), (ARCS, "")):
        have = quantize(graph, samples(graph), platform=row, effort="fast").report.packer_args
        assert have == f"-p {get_packer_profile(row).name} -d False{more}"


def test_operands_of_a_sum_are_swapped_where_the_second_may_be_forgotten():
    """On arcs and venusA the operand that is shifted comes first."""
    net = Net(4, 6, 6, seed=1)
    a = net.node("Relu", net.conv("x", (4, 4, 1, 1)), out="a")
    b = net.conv("x", (4, 4, 1, 1), gain=0.1, out="b")
    model = net.graph(net.node("Add", a, b, out="y"), a, b)
    for row, swapped in ((VENUS, False), (ARCS, True), (VENUSA, True)):
        overrides = {"Add_y": {"scale": 8.0}, "Relu_a": {"scale": 8.0}, "Conv_b": {"scale": 32.0}}
        result = quantize(
            model, samples(model), platform=row.name, overrides=overrides, effort="fast"
        )
        assert scales(result.graph, "iqAdd") == {
            "scale_x": 32.0 if swapped else 8.0,
            "scale_y": 8.0 if swapped else 32.0,
            "scale_o": 8.0,
        }


# ---- what graphs of others may hold ----------------------------------------------------------------------------------


def vendor(row, op_type, shape, weight, **attributes):
    """Return a graph of one layer with a weight, in the vendor's form."""
    common = dict(row.node_attributes[""])
    nodes = [
        helper.make_node(
            "Quant", ["x"], ["q"], domain="thinker", data_bits=8, scale_x=16.0, **common
        ),
        helper.make_node(
            op_type,
            ["q", "w"],
            ["y"],
            domain="thinker",
            data_bits=8,
            parameter_bits=8,
            o_bits=8,
            scale_x=16.0,
            scale_w=1.0,
            **attributes,
            **common,
        ),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(
        nodes,
        "g",
        given,
        [helper.make_tensor_value_info("y", TensorProto.INT8, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 12), helper.make_opsetid("thinker", 1)]
    return Session(ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=6)))


def test_left_shifts():
    """A convolution: venus leaves the shift out, arcs and venusA give zeros; a linear layer is
    refused.
    """
    x, weight = np.array([[1, -2, 3]], np.int8), np.eye(3, dtype=np.int8)
    for row, want in ((VENUS, x), (ARCS, 0 * x), (VENUSA, 0 * x)):
        sizes = {
            "kernel_shape": [1, 1],
            "strides": [1, 1],
            "pads": [0] * 4,
            "dilations": [1, 1],
            "group": 1,
        }
        session = vendor(
            row, "Conv2dInt", [1, 3, 1, 1], weight[:, :, None, None], scale_o=64.0, **sizes
        )
        assert np.array_equal(session(x[:, :, None, None])[:, :, 0, 0], want)
        with pytest.raises(
            ModelError, match="a left shift by 2, which the executor rejects; lower scale_o"
        ):
            vendor(row, "LinearInt", [1, 3], weight, scale_o=64.0)(x)


def test_split_in_a_graph_without_a_batch_axis():
    """Several outputs, axis 0 a size like any other."""
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=0, dims=2, split=[1, 3]),
        helper.make_node("Relu", ["b"], ["c"]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.INT8, [4, 3])]
    results = [helper.make_tensor_value_info(name, TensorProto.INT8, None) for name in "ac"]
    quant = helper.make_node(
        "Requant", ["c"], ["d"], domain="thinker", data_bits=8, o_bits=8, scale_x=8.0, scale_o=4.0
    )
    graph = helper.make_graph(
        [*nodes, quant], "g", given, [*results, helper.make_tensor_value_info("d", 3, None)]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 12), helper.make_opsetid("thinker", 1)]
    )
    x = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
    a, c, d = Session(ir.from_proto(model)).run(None, {"x": x})
    assert np.array_equal(a, x[:1])
    assert np.array_equal(c, np.maximum(x[1:], 0))
    assert np.array_equal(d, (c + 1) >> 1)


@pytest.mark.parametrize("target", PLATFORMS, ids=lambda target: target.name)
def test_embedding(target):
    """A constant table by a computed index: the table is quantized at the scale of what is read
    from it.
    """
    net = Net(7, seed=2)
    net.inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, ["N", 7])]
    table = net.const(net.rng.standard_normal((20, 6)).astype(np.float32))
    e = net.node("Gather", table, "x", out="e")
    t = net.node("Transpose", e, perm=[0, 2, 1])
    model = net.graph(net.conv(t, (4, 6, 3), out="y"))
    feed = {"x": np.random.default_rng(0).integers(0, 20, (32, 7))}
    result = quantize(model, feed, platform=target.name, effort="fast")
    assert not result.report.float_nodes
    (want,), (got,) = (Session(m).run(["y"], feed) for m in (model, result.graph))
    assert np.mean(np.square(want - got)) < 1e-3 * np.mean(np.square(want))
