"""Float networks that met the faults of golden/executor_2, and the exact rewrites that mend them."""

import numpy as np
import onnx
import pytest
from onnx import helper

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.ir.name_mapping import apply_file_names
from lingeronnx.luna.evaluation import evaluate_graph
from lingeronnx.operators.chip_part import extract_chip_part
from lingeronnx.targets import get_target
from tests import nets
from tests.packer import judge
from tests.targets.luna.test_chip_form import assert_fixed, get_op_types
from tests.targets.luna.test_measured_forms import assert_rewritten

CHIPS = ("venus", "arcs", "venusA")
OTHERS = ("arcs", "venusA")


def read_written(result):
    """Return the file for the packer of a quantized model, with its safe names."""
    target, graph = result.platform, result.graph
    named = apply_file_names(graph, target.vendor.names(graph))
    return ir.to_proto(extract_chip_part(named, target))


def assert_both_right(result, chip):
    """Assert that both judges call a quantized model right under its printed arguments."""
    assert result.report.chip_ready
    proto, arguments = read_written(result), result.report.packer_args
    first = evaluate_graph(proto, get_target(chip), arguments)
    assert first.is_chip_ready, first.findings
    assert judge(proto, chip, arguments).problems == []
    return proto


def quantize(model, chip):
    return lo.quantize(model, nets.samples(model, 4), platform=chip, effort="fast")


# ---- products ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", CHIPS)
def test_a_gate_of_many_channels(chip):
    """32 channels of 4x4: 544 bytes of work area are used, 528 planned, and the residual lies
    behind it; other places mend it (rows se_add_*).
    """
    net = nets.Net(8, 4, 4, seed=1)
    a = net.conv("x", (32, 8, 3, 3), pads=[1] * 4)
    factors = net.conv(net.node("GlobalAveragePool", a), (32, 32, 1, 1), gain=0.5)
    product = net.node("Mul", a, net.node("Relu", factors))
    model = net.graph(net.node("Relu", net.node("Add", product, a), out="y"))
    proto = assert_both_right(quantize(model, chip), chip)
    if chip == "arcs":
        return  # its LinearInt plans enough
    default = judge(proto, chip, ["-p", chip.lower(), "-d", "False"])
    assert any("iqMul" in problem for problem in default.problems)


@pytest.mark.parametrize("chip", CHIPS)
def test_maps_of_one_position_are_multiplied_as_vectors(monkeypatch, chip):
    """Row flat_16: right on all chips; as maps, bytes behind the product are written."""
    net = nets.Net(8, 3, 3, seed=1)
    a, b = (net.node("Relu", net.conv("x", (24, 8, 3, 3))) for _ in range(2))
    model = net.graph(net.conv(net.node("Mul", a, b), (4, 24, 1, 1), out="y"))
    result = quantize(model, chip)
    assert_both_right(result, chip)
    (product,) = [node for node in result.graph.graph if node.op_type == "iqMul"]
    assert [len(ir.get_shape(value)) for value in (*product.inputs, *product.outputs)] == [2, 2, 2]


# ---- windows -----------------------------------------------------------------------------------


def deep(channels, size, kernel):
    net = nets.Net(8, *size, seed=1)
    a = net.node("Relu", net.conv("x", (channels, 8, 1, 1)))
    b = net.conv(a, (channels, 1, kernel, kernel), group=channels, pads=[kernel // 2] * 4)
    return net.graph(net.conv(net.node("Relu", b), (4, channels, 1, 1), out="y"))


def test_large_pads_are_split_by_channels(monkeypatch):
    """80,000 bytes of padding crash; parts of 65,536 bytes at most are right (rows pad_c*)."""
    before, after = assert_rewritten(monkeypatch, deep(200, (4, 96), 5), "venus")
    before_problems = judge(read_written(before), "venus", "-p venus -d False").problems
    assert any("above 65536" in problem for problem in before_problems)
    pads = [node for node in after.graph.graph if node.op_type == "iqPad"]
    assert len(pads) > 1
    assert all(np.prod(ir.get_shape(node.outputs[0])[1:]) <= 65536 for node in pads)
    assert_both_right(after, "venus")


def pool(channels, size, kernel):
    net = nets.Net(4, *size, seed=1)
    a = net.node("Relu", net.conv("x", (channels, 4, 1, 1)))
    b = net.node("AveragePool", a, kernel_shape=list(kernel), strides=list(kernel))
    return net.graph(net.conv(b, (4, channels, 1, 1), out="y"))


@pytest.mark.parametrize(
    ("channels", "size", "kernel", "pooled"),
    (
        (20, (6, 60), (1, 20), [16, 8]),  # the last part overlaps
        (48, (4, 46), (1, 46), [48]),  # a stride of 1 is enough
        (6, (30, 60), (2, 12), [8]),  # repeated channels
        (44, (33, 42), (3, 3), [40, 8]),
    ),
)
def test_channels_of_a_large_pool(monkeypatch, channels, size, kernel, pooled):
    """Rows pool_c20_6x60_k1x20, pool_c48_4x46_k1x46 and pool_c6_30x60_k2x12 are wrong; multiples of
    8 channels are right (pool_c16_6x60_k1x20).
    """
    before, after = assert_fixed(
        monkeypatch, pool(channels, size, kernel), "venus", "part", "--threshold1", "32768"
    )
    assert "AvgPool2dInt" in get_op_types(before)
    shapes = [
        ir.get_shape(node.inputs[0])[1]
        for node in after.graph.graph
        if node.op_type == "AvgPool2dInt"
    ]
    assert shapes == pooled
    assert_both_right(after, "venus")


@pytest.mark.parametrize(("size", "kernel"), (((6, 60), (1, 20)), ((4, 46), (1, 46))))
def test_wide_strides_of_a_pool_on_arcs(size, kernel):
    """Row pool_c24_4x46_k1x46 does not run; a stride of 1 does."""
    result = quantize(pool(24, size, kernel), "arcs")
    assert_both_right(result, "arcs")
    pools = [node for node in result.graph.graph if node.op_type == "AvgPool2dInt"]
    assert pools
    assert all(ir.get_attr(node, "strides")[1] == 1 for node in pools)


@pytest.mark.parametrize("chip", OTHERS)
@pytest.mark.parametrize(("height", "pads"), ((134, [0, 0, 0, 0]), (134, [2, 0, 0, 0])))
def test_rows_that_no_window_reads_are_sliced_off(monkeypatch, chip, height, pads):
    """Rows conv_c2_134x60_p0000_k3s2 and conv_c2_44x44_p0000_k3s2; 131 rows are right."""
    net = nets.Net(2, height, 60, seed=1)
    a = net.conv("x", (4, 2, 3, 3), strides=[2, 2], pads=pads)
    model = net.graph(net.node("Relu", a, out="y"))
    _, after = assert_fixed(monkeypatch, model, chip, "rows are left over")
    (kept,) = [node for node in after.graph.graph if node.op_type == "Slice"]
    assert ir.get_shape(kept.outputs[0])[2] == height - 1


@pytest.mark.parametrize("chip", CHIPS)
def test_a_bottom_pad_makes_up_for_rows(chip):
    """The packer lowers it before rows are left over."""
    net = nets.Net(2, 134, 60, seed=1)
    a = net.conv("x", (4, 2, 3, 3), strides=[2, 2], pads=[0, 0, 1, 0])
    result = quantize(net.graph(net.node("Relu", a, out="y")), chip)
    assert "Slice" not in get_op_types(result)
    assert_both_right(result, chip)


# ---- places ------------------------------------------------------------------------------------


def scaled_weight(net, *shape):
    return net.const((net.rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))


def last_state():
    """The last state of an LSTM of 22 units, and another output that lives across it."""
    units, steps, width = 22, 5, 15
    net = nets.Net(steps, width, seed=1)
    sizes = ((1, 4 * units, width), (1, 4 * units, units), (1, 8 * units))
    constants = [
        net.const((0.3 * net.rng.standard_normal(size)).astype(np.float32)) for size in sizes
    ]
    turned = net.node("Transpose", "x", perm=[1, 0, 2])
    node = helper.make_node("LSTM", [turned, *constants], ["", "h"], "lstm", hidden_size=units)
    net.nodes.append(node)
    state = net.node("Transpose", "h", perm=[1, 0, 2])
    state = net.node("Reshape", state, net.const(np.array([0, units])))
    state = net.node("MatMul", state, scaled_weight(net, units, 4), out="state")
    side = net.node("MatMul", "x", scaled_weight(net, width, 8))
    return net.graph(state, net.node("Relu", side, out="side"))


def depthwise_rows():
    """A depthwise convolution over a small map, whose channels are the rows of linear layers."""
    net = nets.Net(4, 6, 8, seed=1)
    a = net.node("Relu", net.conv("x", (8, 4, 1, 1)))
    deep = net.conv(a, (8, 1, 3, 3), pads=[1] * 4, group=8)
    rows = net.node("Reshape", deep, net.const(np.array([0, 8, 48])))
    linear = net.node("MatMul", rows, scaled_weight(net, 48, 48))
    total = net.node("Add", linear, net.node("Relu", rows))
    return net.graph(net.node("MatMul", total, scaled_weight(net, 48, 4), out="y"))


def kept_rows():
    """A linear layer of two rows, whose input is a graph output too: the float net of the row
    rows_m2_n8_l8_kept.
    """
    net = nets.Net(2, 2, 2, seed=1)
    rows = net.conv("x", (4, 2, 1, 1))
    rows = net.node("Reshape", rows, net.const(np.array([0, 2, 8])), out="a")
    return net.graph(rows, net.node("MatMul", rows, scaled_weight(net, 8, 8), out="o"))


#: Net -> (operator, places that were printed once, their fault).
PLACED = {
    last_state: ("LSTMInt", "{out1}:psram", "over the executor's own objects"),
    depthwise_rows: ("Conv2dInt", "{out0}:psram", "a depthwise output outside shared memory"),
    kept_rows: ("LinearInt", "{out0}:psram", "writes past its work area"),
}


@pytest.mark.parametrize("build", PLACED)
def test_places_on_venusA(build):
    """Rows lstm_t5_i15_h22_v_h, dw_c8_6x8_k3p1s1_g8_out and rows_m2_n8_l8_kept are wrong by their
    places in psram; others mend them, and no integer changes.
    """
    op_type, places, fault = PLACED[build]
    result = quantize(build(), "venusA")
    proto = assert_both_right(result, "venusA")
    (*_, node) = [node for node in proto.graph.node if node.op_type == op_type]
    outputs = {f"out{index}": name for index, name in enumerate(node.output)}
    arguments = f"-p venusa -d False --dma_prefetch False -m {places.format(**outputs)}"
    verdict = judge(proto, "venusA", arguments)
    assert any(fault in problem for problem in verdict.problems), verdict.problems
    first = evaluate_graph(proto, get_target("venusA"), arguments)
    assert not first.is_chip_ready


# ---- forms that do not pack --------------------------------------------------------------------


@pytest.mark.parametrize("chip", CHIPS)
def test_an_input_that_is_an_output(chip):
    """Rows float_input_is_output and int_input_is_output: names stay, so only the user can add the
    node that copies it, after which the graph packs.
    """
    net = nets.Net(4, 6, 6, seed=1)
    proto = net.proto(net.conv("x", (4, 4, 3, 3), pads=[1] * 4, out="y"))
    proto.graph.output.append(proto.graph.input[0])
    report = quantize(ir.from_proto(proto), chip).report
    assert not report.chip_ready
    assert any("copy it by a node" in str(finding) for finding in report.findings)
    assert_both_right(quantize(net.graph("y", net.node("Identity", "x", out="z")), chip), chip)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("last", ("Reshape", "MatMul"))
def test_a_reshaped_output_is_kept(monkeypatch, chip, last):
    """Rows two_last and second_is_output; one_read_by_matmul and two_readers_inner pack."""
    net = nets.Net(4, 6, 6, seed=1)
    a = net.node("Relu", net.conv("x", (4, 4, 3, 3), pads=[1] * 4))
    b = net.node("Reshape", a, net.const(np.array([0, 4, 36])), out="b")
    c = net.node("Reshape", b, net.const(np.array([0, 144])), out="c")
    model = net.graph(b, c if last == "Reshape" else net.linear(c, (144, 4), out="y"))
    places = ("-m", "LINEAR") if (chip, last) == ("venusA", "MatMul") else ()
    _, after = assert_fixed(monkeypatch, model, chip, "is merged into a second Reshape", *places)
    assert_both_right(after, chip)


@pytest.mark.parametrize("chip", OTHERS)
def test_two_grouped_convolutions_of_a_tensor(monkeypatch, chip):
    """Rows twice_2_2 and twice_2_4."""
    net = nets.Net(4, 6, 6, seed=1)
    a = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4), out="a")
    b = net.conv(a, (8, 4, 3, 3), pads=[1] * 4, group=2)
    c = net.conv(a, (8, 2, 3, 3), pads=[1] * 4, group=4)
    model = net.graph(net.node("Relu", net.node("Add", b, c), out="y"))
    assert_fixed(monkeypatch, model, chip, "exists already")


def named_like_parts():
    """A grouped convolution, and names that the packer gives to its parts."""
    net = nets.Net(4, 6, 6, seed=1)
    a = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4), out="a")
    b = net.node("Relu", net.conv(a, (8, 4, 3, 3), pads=[1] * 4, group=2), out="a_1")
    c = net.conv(b, (4, 8, 1, 1), bias=False)
    proto = net.proto(net.conv(c, (4, 4, 3, 3), bias=False, out="y"))
    names = {"k2": "weight", "k3": "bias", "k5": "weight_0"}
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return ir.from_proto(proto)


@pytest.mark.parametrize("chip", CHIPS)
def test_names_of_parts_are_replaced(chip):
    """Rows in_1 (refused) and same_shape_w_0 (wrong without a message): only such names change,
    and the metadata know them.
    """
    result = quantize(named_like_parts(), chip)
    proto = assert_both_right(result, chip)
    names = {tensor.name for tensor in proto.graph.initializer}
    names |= {name for node in proto.graph.node for name in node.output}
    assert "weight_0" not in names
    assert {"weight", "a"} <= names
    graph = ir.to_proto(extract_chip_part(result.graph, result.platform))
    raw = judge(graph, chip, result.report.packer_args)
    assert not raw.packs


@pytest.mark.parametrize("chip", CHIPS)
def test_a_constant_of_the_shape_of_a_part_is_wrong(chip):
    """The packer takes it for the part without a message."""
    model = named_like_parts()
    result = quantize(model, chip)
    proto = read_written(result)
    for node in proto.graph.node:
        node.input[:] = [name if name != "weight_0_2" else "weight_0" for name in node.input]
    for tensor in proto.graph.initializer:
        tensor.name = "weight_0" if tensor.name == "weight_0_2" else tensor.name
    verdict = evaluate_graph(proto, get_target(chip), result.report.packer_args)
    assert (verdict.is_packable, verdict.is_correct) == (True, False)
    assert any(
        "is taken for a part" in text
        for text in judge(proto, chip, result.report.packer_args).problems
    )


@pytest.mark.parametrize("chip", CHIPS)
def test_shapes_are_constants(chip):
    """A graph whose only constant is a shape packs (rows of golden/versions), one without does
    not.
    """
    nodes = [
        onnx.helper.make_node("Quant", ["x"], ["xq"], "q", scale_x=16.0, data_bits=8),
        onnx.helper.make_node("Reshape", ["xq", "shape"], ["yq"], "r"),
        onnx.helper.make_node("Dequant", ["yq"], ["y"], "d", scale_o=16.0),
    ]
    if chip != "venus":
        for node in nodes:
            node.attribute.append(onnx.helper.make_attribute("platform", chip))
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [info("x", 1, [1, 4, 6])],
        [info("y", 1, [1, 24])],
        [onnx.numpy_helper.from_array(np.array([1, 24]), "shape")],
    )
    model = onnx.helper.make_model(graph)
    assert evaluate_graph(model, get_target(chip)).is_packable
    assert judge(model, chip, ["-p", chip.lower()]).packs
    nodes[1] = onnx.helper.make_node("Relu", ["xq"], ["yq"], "r")
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    assert not evaluate_graph(model, get_target(chip)).is_packable
    assert not judge(model, chip, ["-p", chip.lower()]).packs
