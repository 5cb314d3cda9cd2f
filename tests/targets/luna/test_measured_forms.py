"""Models whose graphs a packer rejected or an executor computed wrong now get correct forms.

Each net is the float net behind a wrong measured row, or a relative. The integers are those of the
graph without the rewrite, and both judges, which share no code, call the graph right with the
arguments that are printed.
"""

import importlib

import numpy as np
import pytest
from onnx import helper

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna.evaluation import evaluate_graph
from lingeronnx.runtime.session import Session
from lingeronnx.targets import get_target
from tests import measured_rows, nets
from tests.packability import CHIPS, evaluate_result, get_printed_arguments

#: Modules whose names in their packages are those of functions.
LAST_STAGE = importlib.import_module("lingeronnx.luna.backend_passes.pipeline")
LAYER_NORM = importlib.import_module("lingeronnx.operators.normalization.lowering.layer_norm")


def weight(net, *shape):
    return net.const((net.rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))


def get_op_types(result):
    return [
        node.op_type
        for node in result.graph.graph
        if node.op_type not in ("Quant", "Dequant", "Reshape")
    ]


def nodes(result, op_type):
    return [node for node in result.graph.graph if node.op_type == op_type]


def shape(value):
    return tuple(ir.get_shape(value))


def assert_right(result, platform):
    """Assert that both judges call the written graph right, with the printed arguments."""
    part = result.graph if result.chip is None else result.chip
    ours = evaluate_graph(
        ir.to_proto(part), get_target(platform), get_printed_arguments(result.report)
    )
    assert ours.is_chip_ready, [str(finding) for finding in ours.findings]
    assert evaluate_result(result, platform).problems == []


def assert_rewritten(monkeypatch, model, platform, **patches):
    """Quantize without and with rewrites; assert equal integers; return both results."""
    feed = nets.samples(model, 12)
    after = quantize(model, feed, platform=platform, effort="fast", objective="plain")
    with monkeypatch.context() as patch:
        patch.setattr(LAST_STAGE, "apply_fault_workarounds", lambda graph, row: [])
        for name, function in patches.items():
            patch.setattr(LAYER_NORM, name, function)
        before = quantize(model, feed, platform=platform, effort="fast", objective="plain")
    old, new = _collect_tensors(before.graph, feed), _collect_tensors(after.graph, feed)
    shared = set(old) & set(new)
    assert {str(v.name) for v in before.graph.graph.outputs} <= shared
    for name in shared:
        np.testing.assert_array_equal(old[name], new[name])
    assert_right(after, platform)
    return before, after


def _collect_tensors(graph, feed):
    return {name: array for name, array, _ in Session(graph).taps(feed)}


# ---- a graph input in several operands ---------------------------------------------------------


def squares():
    """The row twice_mul_4x6."""
    net = nets.Net(4, 6, 6, seed=1)
    net.node("Mul", "x", "x", out="m")
    return net.graph("m", net.conv("x", (4, 4, 3, 3), pads=[1] * 4, out="y"))


def build_concat_of_two():
    """The row twice_cat_8."""
    net = nets.Net(8, seed=1)
    return net.graph(net.linear(net.node("Concat", "x", "x", axis=1), (16, 5), out="y"))


def product():
    """The row twice_bmm_4."""
    net = nets.Net(4, 4, seed=1)
    return net.graph(net.node("MatMul", net.node("MatMul", "x", "x"), weight(net, 4, 5), out="y"))


def build_concat_of_three():
    net = nets.Net(4, 6, seed=1)
    return net.graph(
        net.node("MatMul", net.node("Concat", "x", "x", "x", axis=2), weight(net, 18, 5), out="y")
    )


def build_add():
    """Channels that are too many for an image of their own."""
    net = nets.Net(24, 5, 7, seed=1)
    return net.graph(net.conv(net.node("Add", "x", "x"), (3, 24, 1, 1), out="y"))


def find_duplicate_operands(graph):
    """Return the operators that read a graph input as several operands."""
    op_types = []
    for node in graph.graph:
        producers = [ir.producer(value) for value in node.inputs]
        quants = [id(p) for p in producers if p is not None and p.op_type == "Quant"]
        if len(set(quants)) < len(quants):
            op_types.append(node.op_type)
    return op_types


@pytest.mark.sweep
@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize(
    ("net", "op_type", "row"),
    (
        (squares, "iqMul", "ew_add_self"),
        (build_concat_of_two, "iqCat", "cat_twice"),
        (product, "BmmInt", "ew_add_self"),
        (build_concat_of_three, "iqCat", "cat_twice"),
        (build_add, "iqAdd", "ew_add_self"),
    ),
)
def test_operands_that_read_one_graph_input_read_a_copy(monkeypatch, platform, net, op_type, row):
    """An inner tensor may be read twice, and a 1x1 convolution reads any graph input, reshaped or
    not.
    """
    assert all(
        measured_rows.has_correct_row(name, platform)
        for name in (row, "reshape_first", "squeeze_attr", "consumers_input_c1")
    )
    before, after = assert_rewritten(monkeypatch, net(), platform)
    assert (find_duplicate_operands(before.graph), find_duplicate_operands(after.graph)) == (
        [op_type],
        [],
    )
    (node,) = (n for n in nodes(after, op_type) if n.inputs[0] is n.inputs[1])
    maker = ir.producer(node.inputs[0])
    while maker.op_type == "Reshape":
        maker = ir.producer(maker.inputs[0])
    assert maker.op_type == "Conv2dInt"
    assert maker.inputs[1].shape[:2] == maker.inputs[1].shape[:1] * 2
    assert get_op_types(after).count("Conv2dInt") == get_op_types(before).count("Conv2dInt") + 1


def test_one_copy_of_an_input_is_enough():
    net = nets.Net(4, 6, 6, seed=1)
    both = net.node("Concat", net.node("Mul", "x", "x"), net.node("Add", "x", "x"), axis=1)
    result = nets.quantized(
        net.graph(net.conv(both, (3, 8, 1, 1), out="y")), platform="arcs", effort="fast"
    )
    assert get_op_types(result).count("Conv2dInt") == 2


def test_no_copy_where_the_packer_has_no_say():
    assert (
        get_op_types(
            nets.quantized(build_concat_of_two(), platform="generic", effort="fast")
        ).count("Conv2dInt")
        == 0
    )


@pytest.mark.parametrize(("steps", "width"), ((3, 32), (8, 16)))
def test_a_softmax_of_a_graph_input_reads_it_once(monkeypatch, steps, width):
    """On venusA its rows are cut out of a tensor that an iqCat makes of the same operand five
    times.
    """
    net = nets.Net(steps, width, seed=3)
    model = net.graph(
        net.node("MatMul", net.node("Softmax", "x", axis=-1), weight(net, width, 5), out="y")
    )
    assert measured_rows.has_correct_row("cat_twice", "venusA")
    _, after = assert_rewritten(monkeypatch, model, "venusA")
    assert find_duplicate_operands(after.graph) == []


# ---- layer norm --------------------------------------------------------------------------------


def build_layer_norm(*sizes, outputs=5):
    """A layer norm of the last axis, and a linear layer."""
    net = nets.Net(*sizes, seed=1, opset=17)
    gamma, beta = (
        net.const(net.rng.uniform(0.5, 1.5, sizes[-1]).astype(np.float32)) for _ in range(2)
    )
    y = net.node("LayerNormalization", "x", gamma, beta, axis=-1)
    return net.graph(net.node("MatMul", y, weight(net, sizes[-1], outputs), out="y"))


AS_IT_IS = {"needs_rank3_rows": lambda node, row: False, "_row_repeats": lambda size, row: 1}


@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize(("sizes", "outputs"), (((10,), 10), ((16,), 5), ((2, 4, 8), 6)))
def test_layer_norm_has_an_axis_of_rows(monkeypatch, platform, sizes, outputs):
    """The rows ln_rank2_t10_l10 and ln_rank2_t16_l5; four axes were never measured. Right ones have
    three.
    """
    assert measured_rows.has_correct_row("layernorm_only_6x16", platform)
    before, after = assert_rewritten(
        monkeypatch, build_layer_norm(*sizes, outputs=outputs), platform, **AS_IT_IS
    )
    assert [shape(n.inputs[0])[1:] for n in nodes(before, "LayerNormInt")] == [sizes]
    assert [shape(n.inputs[0]) for n in nodes(after, "LayerNormInt")] == [
        (1, int(np.prod(sizes[:-1])), sizes[-1])
    ]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sizes", "wide"), (((4, 2), 4), ((4, 3), 6), ((3,), 6), ((2, 3, 2), 4), ((4, 1), 4))
)
def test_short_lines_stand_several_times_side_by_side(monkeypatch, sizes, wide):
    """The rows ln_venus_t2_m4 and ln_venus_t3_m4.

    A line of 4 elements was right, and one behind a LinearInt. The integers are the same as far as
    epsilon is: at these scales it is below one half.
    """
    assert measured_rows.has_correct_row("ln_venus_t4_m4", "venus")
    assert measured_rows.has_correct_row("layernorm_8", "venus")
    _, after = assert_rewritten(monkeypatch, build_layer_norm(*sizes), "venus", **AS_IT_IS)
    (norm,) = nodes(after, "LayerNormInt")
    assert shape(norm.inputs[0]) == (1, int(np.prod(sizes[:-1])), wide)
    assert get_op_types(after)[:2] == ["LinearInt", "LayerNormInt"]
    assert "Slice" in get_op_types(after)


def test_lines_of_four_elements_stay_as_they_are():
    for platform, sizes in (("venus", (4, 4)), ("arcs", (4, 3))):
        result = nets.quantized(build_layer_norm(*sizes), platform=platform, effort="fast")
        assert get_op_types(result)[0] == "LayerNormInt"
        assert shape(nodes(result, "LayerNormInt")[0].inputs[0]) == (1, *sizes)


@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize(("sizes", "outputs"), (((4, 32), 40), ((16,), 5), ((2, 4, 8), 6)))
def test_a_layer_norm_has_its_work_area(platform, sizes, outputs):
    """Nothing is written behind the plan: where no argument helps, a BatchNorm2dInt makes the area
    large enough.

    On venus all measured rows with an area that large are right; on the others none had one.
    """
    assert measured_rows.has_correct_row("layernorm_64", "venus")
    assert measured_rows.has_correct_row("ew_bn", platform)
    result = nets.quantized(
        build_layer_norm(*sizes, outputs=outputs), platform=platform, effort="fast"
    )
    assert_right(result, platform)
    for node in nodes(result, "BatchNorm2dInt"):
        assert set(np.ravel(ir.const_value(node.inputs[1]))) == {64}
        assert not ir.const_value(node.inputs[2]).any()
        need = {"venus": 8 * sizes[-1]}.get(platform, 27 * sizes[-1] + 8)
        assert 4 * np.prod(shape(node.inputs[0])[2:]) >= need


# ---- LSTM --------------------------------------------------------------------------------------


def lstm(units, steps, width, direction="forward", layers=1, last=False):
    """LSTM layers and a linear layer on all steps; where `last`, another one on the last state."""
    net = nets.Net(steps, width, seed=units)
    count = 2 if direction == "bidirectional" else 1
    x = net.node("Transpose", "x", perm=[1, 0, 2])
    for number in range(layers):
        sizes = ((count, 4 * units, width), (count, 4 * units, units), (count, 8 * units))
        held = [
            net.const((0.4 * net.rng.standard_normal(size)).astype(np.float32)) for size in sizes
        ]
        outputs = [f"Y{number}", f"H{number}"]
        net.nodes.append(
            helper.make_node(
                "LSTM", [x, *held], outputs, name=outputs[0], hidden_size=units, direction=direction
            )
        )
        width = count * units
        both = net.node("Transpose", outputs[0], perm=[0, 2, 1, 3])
        x = net.node("Reshape", both, net.const(np.array([steps, -1, width])))
    net.node("MatMul", net.node("Transpose", x, perm=[1, 0, 2]), weight(net, width, 6), out="y")
    if not last:
        return net.graph("y")
    state = net.node(
        "Reshape",
        net.node("Transpose", outputs[1], perm=[1, 0, 2]),
        net.const(np.array([-1, width])),
    )
    return net.graph("y", net.linear(state, (width, 3), out="z"))


def _get_hidden_sizes(result):
    return [int(ir.get_attr(node, "hidden_size")) for node in nodes(result, "LSTMInt")]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("model", "prefetches"),
    (
        (lstm(5, 4, 8), False),
        (lstm(7, 6, 6), False),
        (lstm(3, 6, 6, "bidirectional", last=True), False),
        (lstm(5, 8, 8, "reverse", layers=2, last=True), False),
        (lstm(6, 9, 5), False),
        (lstm(6, 8, 8), True),
        (lstm(8, 5, 5), True),
    ),
    ids=("h5_t4_f8", "h7_t6_f6", "both_ways", "two_layers", "h6_f9", "h6_f8", "h8_f5"),
)
def test_constants_of_an_lstm_with_gaps_are_not_prefetched_on_venus(model, prefetches):
    """The rows lstm_h7_t6_f6_np and lstm_t9_i4_h6: odd units are right without prefetch, and six
    over nine features are wrong with it.
    """
    result = nets.quantized(model, platform="venus", effort="fast")
    assert_right(result, "venus")
    assert ("--dma_prefetch False" not in result.report.packer_args) == prefetches


# ---- rows of a linear layer on venusA ----------------------------------------------------------


def build_linear_sum(steps, width, outputs, constant):
    """A linear layer of several rows, a sum with a constant, an activation and another linear
    layer.
    """
    net = nets.Net(steps, width, seed=1)
    y = net.node("Add", net.node("MatMul", "x", weight(net, width, outputs)), weight(net, outputs))
    y = net.node(
        "Relu", net.node("Add", y, net.const(net.rng.standard_normal(constant).astype(np.float32)))
    )
    return net.graph(net.node("MatMul", y, weight(net, outputs, 4), out="y"))


@pytest.mark.parametrize(("steps", "width", "outputs"), ((4, 8, 8), (5, 4, 14), (8, 32, 16)))
def test_rows_that_a_batch_norm_reads_are_joined_in_shared_memory(
    monkeypatch, steps, width, outputs
):
    """The row bn_m4_n8_printed: a LinearInt writes outside, a BatchNorm2dInt reads inside.

    Parts that were written outside and joined inside were right, and so was a BatchNorm2dInt that
    reads inside.
    """
    assert measured_rows.has_correct_row("ln_linear_t8_m5_l32", "venusA")
    assert measured_rows.has_correct_row("ew_bn", "venusA")
    _, after = assert_rewritten(
        monkeypatch, build_linear_sum(steps, width, outputs, (steps, outputs)), "venusA"
    )
    node = next(
        n
        for n in nodes(after, "BatchNorm2dInt")
        if len(set(np.ravel(ir.const_value(n.inputs[2])))) > 1
    )
    maker = ir.producer(ir.producer(node.inputs[0]).inputs[0])
    assert maker.op_type == "iqCat"
    assert {ir.producer(value).op_type for value in maker.inputs} == {"LinearInt"}
    placements = ",".join(get_printed_arguments(after.report)).split(",")
    assert {f"{value.name}:psram" for value in maker.inputs} <= set(placements)
    assert f"{maker.outputs[0].name}:psram" not in placements


@pytest.mark.parametrize("constant", ((8,), (1, 8), (1, 1, 8)))
@pytest.mark.parametrize("platform", CHIPS)
def test_a_constant_for_each_output_is_a_bias(platform, constant):
    """No BatchNorm2dInt where the linear layer itself can add."""
    result = nets.quantized(build_linear_sum(4, 8, 8, constant), platform=platform, effort="fast")
    assert get_op_types(result).count("LinearInt") + get_op_types(result).count("Relu") == len(
        get_op_types(result)
    )
    assert_right(result, platform)


def build_mean(steps, width, before=True):
    """A mean over steps, of the input or of a linear layer."""
    net = nets.Net(steps, width, seed=1)
    y = net.node("MatMul", "x", weight(net, width, width)) if before else "x"
    return net.graph(
        net.linear(net.node("ReduceMean", y, axes=[1], keepdims=0), (width, 5), out="y")
    )


@pytest.mark.parametrize(
    ("steps", "width", "before"), ((6, 8, True), (12, 5, True), (9, 16, False))
)
def test_a_mean_over_steps_is_a_convolution(monkeypatch, steps, width, before):
    """As a LinearInt of one output it writes behind its plan; 1x1 convolutions over a line were
    right.
    """
    assert measured_rows.has_correct_row("squeeze_attr", "venusA")
    old, after = assert_rewritten(monkeypatch, build_mean(steps, width, before), "venusA")
    assert any(shape(n.inputs[1])[0] == 1 for n in nodes(old, "LinearInt"))
    assert all(shape(n.inputs[1])[0] > 1 for n in nodes(after, "LinearInt"))
    assert [shape(n.inputs[0]) for n in nodes(after, "Conv2dInt")] == [(1, steps, 1, width)]
    assert "Transpose" not in get_op_types(after)


def test_a_mean_over_steps_stays_elsewhere():
    for platform in ("venus", "arcs"):
        result = nets.quantized(
            build_mean(6, 8), platform=platform, effort="fast", objective="plain"
        )
        assert "Conv2dInt" not in get_op_types(result)


# ---- nothing is forgotten ----------------------------------------------------------------------


@pytest.mark.skipif(
    not measured_rows.WHOLE, reason="the measured rows are not beside the repository"
)
def test_every_wrong_form_is_quantized_here():
    """The cases that no argument makes right."""
    assert {name for name, *_ in measured_rows.get_wrong_rows("input_twice")} == {
        "twice_mul_4x6",
        "twice_cat_8",
        "twice_bmm_4",
    }
    assert {name for name, *_ in measured_rows.get_wrong_rows("lstm_hidden")} == {
        "lstm_h5_t4_f8",
        "lstm_h7_t6_f6",
    }
    rank2 = {
        name
        for name, *_ in measured_rows.get_wrong_rows("layernorm")
        if not name.startswith("ln_linear")
    }
    assert rank2 == {"ln_rank2_t10_l10", "ln_rank2_t16_l5", "ln_venus_t2_m4", "ln_venus_t3_m4"}
