"""Exact forms chosen by price: the same integers in fewer cycles, taken only where the whole is
promised as before.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna.arguments import selection as arguments
from lingeronnx.luna.backend_passes.cost_rewrites import apply_cost_rewrites, selection
from lingeronnx.luna.backend_passes.cost_rewrites.data_movement import (
    propose_matrix_transposes,
    propose_slice_bypass,
    propose_transposed_concat,
    propose_transposed_slice,
)
from lingeronnx.luna.backend_passes.cost_rewrites.graph_editor import RewriteEditor
from lingeronnx.luna.backend_passes.cost_rewrites.layers import (
    propose_depthwise_conv,
    propose_pointwise_conv,
)
from lingeronnx.luna.backend_passes.cost_rewrites.node_costs import NodeCostModel
from lingeronnx.luna.backend_passes.cost_rewrites.upsampling import propose_conv_transpose
from lingeronnx.luna.backend_passes.packer_view import PackerGraphView
from lingeronnx.luna.evaluation import prepare_graph
from lingeronnx.luna.kernel_costs import ARCS
from lingeronnx.runtime.integer.runner import IntegerRunner
from lingeronnx.runtime.session import Session
from lingeronnx.targets import get_target
from lingeronnx.targets.latency import CycleSavings
from lingeronnx.targets.objective import (
    OBJECTIVE_KEY,
    PARTS_KEY,
    can_keep_constants_resident,
    get_objective,
)
from tests.case_selection import limit_examples
from tests.nets import Net, samples
from tests.packability import evaluate_result
from tests.packer import judge
from tests.targets.luna.packer.integer_nets import IntNet

CHIPS = {"venus": "venus", "arcs": "arcs", "venusA": "venusa"}


def apply_rewrites(model, *rewrites, platform="arcs"):
    """Apply rewrites to every node, regardless of cost; return the graph and their number."""
    graph, count = ir.from_proto(model), 0
    editor = RewriteEditor(graph, get_target(platform), NodeCostModel(ARCS))
    for rewrite in rewrites:
        for node in list(graph.graph):
            proposal = rewrite(editor, node)
            if proposal is not None:
                assert proposal.cycles >= 0
                proposal.write()
                count += 1
    editor.remove_unused()
    names = [node.name for node in graph.graph]
    assert len(set(names)) == len(names)
    return graph, count


def assert_same(model, graph, seed=0):
    """Assert that both graphs compute equal outputs for random integers."""
    before, after = Session(ir.from_proto(model)), Session(graph)
    rng = np.random.default_rng(seed)
    feed = {}
    for value in before.get_inputs():
        integers = rng.integers(-140, 141, [int(dim) for dim in value.shape])
        feed[value.name] = (integers / 16).astype(np.float32)
    for name, have, want in zip(
        [v.name for v in before.get_outputs()],
        after.run(None, feed),
        before.run(None, feed),
        strict=True,
    ):
        np.testing.assert_array_equal(have, want, err_msg=name)


def model_of(net, *outputs):
    """Return the model of a net, with the sizes and types of its tensors, as lowering leaves
    them.
    """
    model = net.model(*outputs)
    for name, shape in net.shapes.items():
        kind = TensorProto.FLOAT if name.endswith("_float") else TensorProto.INT8
        model.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
    del model.graph.value_info[-len(outputs) :]  # those of the outputs
    for value, name in zip(model.graph.output, outputs, strict=True):
        value.CopyFrom(
            helper.make_tensor_value_info(value.name, TensorProto.FLOAT, net.shapes[name])
        )
    return model


def get_op_types(graph):
    return [node.op_type for node in graph.graph]


def randomize_constants(net, rng):
    """Replace constants of ones by random ones of the same types."""
    for index, constant in enumerate(net.constants):
        array = numpy_helper.to_array(constant)
        max_value = 120 if array.dtype == np.int8 else 3000
        net.constants[index].CopyFrom(
            numpy_helper.from_array(
                rng.integers(-max_value, max_value, array.shape).astype(array.dtype), constant.name
            )
        )


# ---- transposes --------------------------------------------------------------------------------


@limit_examples(60)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_a_transpose_is_one_of_matrices(sizes, order):
    """All sizes and orders of three and four axes, with a batch of 1 in front."""
    perm = list(range(1, len(sizes) + 1))
    order.shuffle(perm)
    net = IntNet("arcs", (1, *sizes))
    model = model_of(net, net.transpose(net.relu("xq", "a"), [0, *perm], "y"))
    graph, count = apply_rewrites(model, propose_matrix_transposes)
    assert_same(model, graph)
    if count:
        transposes = [node for node in graph.graph if node.op_type == "Transpose"]
        assert all(list(ir.get_attr(node, "perm")) == [1, 0] for node in transposes)


@pytest.mark.parametrize("perm", [p for p in itertools.permutations(range(3)) if p != (0, 1, 2)])
def test_all_orders_of_three_axes(perm):
    net = IntNet("arcs", (1, 4, 6, 8))
    model = model_of(
        net, net.transpose(net.relu("xq", "a"), [0, *(axis + 1 for axis in perm)], "y")
    )
    graph, count = apply_rewrites(model, propose_matrix_transposes)
    assert count == 1
    assert_same(model, graph)


def test_more_axes_than_three_stay():
    net = IntNet("arcs", (2, 3, 4, 5))
    model = model_of(net, net.transpose(net.relu("xq", "a"), [3, 2, 1, 0], "y"))
    assert apply_rewrites(model, propose_matrix_transposes)[1] == 0


def test_what_one_turns_the_next_turns_back():
    """Two transposes that undo each other leave none."""
    net = IntNet("arcs", (1, 6, 8))
    back = net.transpose(net.transpose(net.relu("xq", "a"), [0, 2, 1], "b"), [0, 2, 1], "y")
    model = model_of(net, back)
    graph, _ = apply_rewrites(model, propose_matrix_transposes)
    assert "Transpose" not in get_op_types(graph)
    assert_same(model, graph)


# ---- concatenations and slices -----------------------------------------------------------------


@limit_examples(40)
@given(
    lengths=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    before=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    behind=st.lists(st.integers(1, 3), min_size=0, max_size=1),
    scales=st.booleans(),
)
def test_a_concatenation_of_matrices_that_are_turned(lengths, before, behind, scales):
    """Any axis; at one scale and at several."""
    net = IntNet("arcs", (1, *before, lengths[0], *behind))
    parts = [net.relu("xq", "a")]
    for index, length in enumerate(lengths[1:]):
        scale = 32.0 if scales else 16.0
        parts.append(net.input(f"x{index}", (1, *before, length, *behind), scale))
    model = model_of(net, net.cat(parts, 1 + len(before), "y"))
    graph, count = apply_rewrites(model, propose_transposed_concat)
    assert count == 1
    assert_same(model, graph)


def add_slice(net, x, axis, start, end, name):
    """Add a Slice."""
    held = [net.const(np.array([number], np.int64)) for number in (start, end, axis, 1)]
    shape = list(net.shapes[x])
    shape[axis] = end - start
    return net.node("Slice", [x, *held], name, shape, net.scales[x])


@limit_examples(40)
@given(data=st.data())
def test_a_slice_of_a_matrix_that_is_turned(data):
    shape = [1, *data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))]
    axis = data.draw(st.integers(1, len(shape) - 1))
    start = data.draw(st.integers(0, shape[axis] - 1))
    end = data.draw(st.integers(start + 1, shape[axis]))
    net = IntNet("arcs", shape)
    model = model_of(net, add_slice(net, net.relu("xq", "a"), axis, start, end, "y"))
    graph, count = apply_rewrites(model, propose_transposed_slice)
    assert count == 1
    assert_same(model, graph)


def build_concat(scale=16.0):
    """Build a concatenation of 6 and 4 columns; the second input has scale `scale`."""
    net = IntNet("arcs", (1, 5, 6))
    net.cat([net.relu("xq", "a"), net.input("x1", (1, 5, 4), scale)], 2, "c")
    return net


@pytest.mark.parametrize(
    ("start", "end", "is_part"), [(0, 6, True), (6, 10, True), (0, 5, False), (2, 8, False)]
)
def test_a_slice_of_what_was_joined(start, end, is_part):
    """A Slice of a complete part is bypassed; a Slice of less or of two parts is not."""
    net = build_concat()
    model = model_of(net, add_slice(net, "c", 2, start, end, "y"))
    graph, count = apply_rewrites(model, propose_slice_bypass)
    assert count == is_part
    assert_same(model, graph)


def test_a_part_at_another_scale_is_no_whole_one():
    net = build_concat(32.0)
    assert (
        apply_rewrites(model_of(net, add_slice(net, "c", 2, 6, 10, "y")), propose_slice_bypass)[1]
        == 0
    )


def test_a_slice_and_a_concatenation_share_what_is_turned():
    """Of one joined tensor two slices are taken: it is turned once, and nothing is turned back in
    between.
    """
    net = build_concat()
    model = model_of(net, add_slice(net, "c", 2, 0, 3, "y"), add_slice(net, "c", 2, 4, 9, "z"))
    graph, count = apply_rewrites(model, propose_transposed_concat, propose_transposed_slice)
    assert (count, get_op_types(graph).count("Transpose")) == (3, 4)
    assert_same(model, graph)


def test_what_a_reader_further_behind_turns_is_there_for_one_before_it():
    """A map with its edges beside it: the join, which reads the map last, is written first."""
    net = IntNet("arcs", (1, 5, 6))
    x = net.relu("xq", "a")
    first = add_slice(net, x, 2, 0, 1, "f")
    net.cat([first, x, add_slice(net, x, 2, 5, 6, "l")], 2, "c")
    model = model_of(net, "c")
    graph, count = apply_rewrites(model, propose_transposed_concat, propose_transposed_slice)
    assert count == 3
    visited = set()
    for node in graph.graph:
        assert all(
            ir.producer(value) is None or ir.producer(value) in visited for value in node.inputs
        )
        visited.add(node)
    assert_same(model, graph)


# ---- copies ------------------------------------------------------------------------------------


def add_upsampling(net, x, down, across, name):
    """Add an enlargement by copies, as the quantizer writes it: of lines, then of single
    elements.
    """
    n, c, h, w = net.shapes[x]
    shape = [n, c, h, w]

    def add_reshape(value, sizes, output):
        held = net.const(np.array(sizes, np.int64))
        return net.node("Reshape", [value, held], output, sizes, net.scales[x])

    value = x
    if down > 1:
        lines = add_reshape(value, (n, c * h, w), f"{name}_rows")
        value = net.cat([lines] * down, 2, f"{name}_joined")
        shape[2] *= down
    if across > 1:
        single = add_reshape(value, (n, c * shape[2] * w, 1), f"{name}_columns")
        value = net.cat([single] * across, 2, f"{name}_joined_2")
        shape[3] *= across
    return add_reshape(value, shape, name)


@pytest.mark.parametrize(("down", "across"), [(2, 2), (4, 2), (2, 4), (2, 1), (1, 2), (1, 4)])
@pytest.mark.parametrize("channels", [1, 3, 8, 16])
def test_an_enlargement_by_copies_is_a_transposed_convolution(channels, down, across):
    net = IntNet("arcs", (1, channels, 5, 6))
    model = model_of(net, add_upsampling(net, net.relu("xq", "a"), down, across, "y"))
    graph, count = apply_rewrites(model, propose_conv_transpose)
    assert (
        count,
        get_op_types(graph).count("ConvTranspose2dInt"),
        get_op_types(graph).count("iqCat"),
    ) == (
        1,
        1,
        0,
    )
    assert_same(model, graph)


def test_three_copies_stay():
    """A stride of 3 is none that the chip takes."""
    net = IntNet("arcs", (1, 4, 5, 6))
    assert (
        apply_rewrites(
            model_of(net, add_upsampling(net, net.relu("xq", "a"), 1, 3, "y")),
            propose_conv_transpose,
        )[1]
        == 0
    )


def test_a_repeated_tensor_at_another_scale_stays():
    net = IntNet("arcs", (1, 8, 1))
    assert (
        apply_rewrites(
            model_of(net, net.cat(["xq", "xq"], 2, "y", scale=8.0)), propose_conv_transpose
        )[1]
        == 0
    )


# ---- layers ------------------------------------------------------------------------------------


@limit_examples(30)
@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 6), st.integers(1, 9)),
    seed=st.integers(0, 9),
)
def test_factors_of_channels_are_a_depthwise_convolution(shape, seed):
    net = IntNet("arcs", (1, *shape))
    y = net.batch_norm(net.relu("xq", "a"), "y")
    randomize_constants(net, np.random.default_rng(seed))
    model = model_of(net, y)
    graph, count = apply_rewrites(model, propose_depthwise_conv)
    assert (count, "BatchNorm2dInt" in get_op_types(graph)) == (1, False)
    assert_same(model, graph, seed)


@pytest.mark.parametrize("shape", [(48, 1, 1), (6, 4, 2), (1, 48, 1)])
def test_one_factor_for_all_is_seen_with_other_channels(shape):
    net = IntNet("arcs", (1, *shape))
    model = model_of(net, net.batch_norm(net.relu("xq", "a"), "y"))
    graph, count = apply_rewrites(model, propose_depthwise_conv)
    assert count == 1
    assert_same(model, graph)


@pytest.mark.parametrize(("channels", "max_parts"), [(8840, 5), (16384, 8), (32768, 16)])
def test_very_many_channels_are_convolved_in_parts(channels, max_parts):
    """More than a convolution takes at once, and more parts than an iqCat takes."""
    net = IntNet("arcs", (1, channels, 1, 1))
    y = net.batch_norm(net.relu("xq", "a"), "y")
    randomize_constants(net, np.random.default_rng(0))
    model = model_of(net, y)
    graph, _ = apply_rewrites(model, propose_depthwise_conv)
    assert 1 < get_op_types(graph).count("Conv2dInt") <= max_parts
    assert all(len(node.inputs) <= 5 for node in graph.graph if node.op_type == "iqCat")
    assert_same(model, graph)


def test_channels_for_more_parts_than_two_levels_join_stay():
    net = IntNet("arcs", (1, 60_000, 1, 1))
    y = net.batch_norm(net.relu("xq", "a"), "y")
    randomize_constants(net, np.random.default_rng(0))
    model = model_of(net, y)
    assert apply_rewrites(model, propose_depthwise_conv)[1] == 0


def windowed_attention(windows, heads, tokens, size):
    """Attention in windows as in Swin: position biases and a mask are added on five axes."""
    net, rng = Net(windows * heads, tokens, size, seed=5), np.random.default_rng(0)
    weights = rng.standard_normal((3, size, size)).astype(np.float32)
    q, k, v = (net.node("MatMul", "x", net.const(weight)) for weight in weights)
    scores = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 1, 3, 2]))
    shape = (-1, windows, heads, tokens, tokens)
    scores = net.node("Reshape", scores, net.const(np.array(shape, np.int64)))
    bias = rng.standard_normal((1, 1, heads, tokens, tokens)).astype(np.float32)
    scores = net.node("Add", scores, net.const(bias))
    is_masked = rng.random((1, windows, 1, tokens, tokens)) < 0.2
    scores = net.node("Add", scores, net.const(np.where(is_masked, -100, 0).astype(np.float32)))
    weights = net.node("Softmax", scores, axis=-1)
    shape = (-1, windows * heads, tokens, tokens)
    net.node(
        "MatMul", net.node("Reshape", weights, net.const(np.array(shape, np.int64))), v, out="y"
    )
    return net.graph("y")


def test_constants_of_windows_are_added_by_a_few_layers():
    """Two sums with 16,384 elements, for which a BatchNorm2dInt calls a kernel each."""
    model = windowed_attention(16, 4, 16, 4)
    feed = samples(model, 8)
    result = quantize(model, feed, platform="arcs", effort="fast")
    op_types = [node.op_type for node in result.graph.graph]
    assert "BatchNorm2dInt" not in op_types
    assert op_types.count("Conv2dInt") == 16
    assert result.report.chip_ready
    verdict = evaluate_result(result, "arcs")
    assert (verdict.problems, verdict.right) == ([], True)
    evaluator = ReferenceEvaluator(ir.to_proto(result.graph), new_ops=lo.reference_ops("arcs"))
    for index in range(2):
        sample = {"x": feed["x"][index : index + 1]}
        (want,) = evaluator.run(None, sample)
        np.testing.assert_array_equal(result.session().run(None, sample)[0], want)


@limit_examples(30)
@given(
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 40),
    bias=st.booleans(),
    seed=st.integers(0, 9),
)
def test_a_product_of_one_row_is_a_convolution_over_a_point(inputs, outputs, bias, seed):
    net = IntNet("arcs", (1, 1, inputs))
    y = net.linear(net.relu("xq", "a"), outputs, "y", bias=bias)
    randomize_constants(net, np.random.default_rng(seed))
    model = model_of(net, y)
    graph, count = apply_rewrites(model, propose_pointwise_conv)
    assert (count, "LinearInt" in get_op_types(graph)) == (1, False)
    assert_same(model, graph, seed)


def test_a_diagonal_product_keeps_channels_apart():
    net = IntNet("arcs", (1, 24))
    y = net.linear(net.relu("xq", "a"), 24, "y")
    net.constants[0].raw_data = np.diag(np.arange(-12, 12)).astype(np.int8).tobytes()
    model = model_of(net, y)
    graph, _ = apply_rewrites(model, propose_pointwise_conv)
    assert (
        next(ir.get_attr(node, "group") for node in graph.graph if node.op_type == "Conv2dInt")
        == 24
    )
    assert_same(model, graph)


def test_steps_share_their_constants_still():
    """Two products by one weight: one weight in the new form, too."""
    net = IntNet("arcs", (1, 16))
    a = net.linear("xq", 16, "a")
    net.node(
        "LinearInt",
        ["a", "c0", "c1"],
        "b",
        (1, 16),
        16.0,
        data_bits=8,
        parameter_bits=8,
        o_bits=8,
        scale_x=16.0,
        scale_w=16.0,
        scale_o=16.0,
    )
    assert a == "a"
    graph, _ = apply_rewrites(model_of(net, "b"), propose_pointwise_conv)
    convolutions = [node for node in graph.graph if node.op_type == "Conv2dInt"]
    assert len({node.inputs[1].name for node in convolutions}) == 1


@pytest.mark.parametrize("shape", [(1, 2, 16), (1, 7, 16)])
def test_a_product_of_several_rows_stays(shape):
    net = IntNet("arcs", shape)
    assert apply_rewrites(model_of(net, net.linear("xq", 8, "y")), propose_pointwise_conv)[1] == 0


# ---- the choice --------------------------------------------------------------------------------


def detector(platform):
    """Return a net like the head of a detector, made for time: short lines joined, sliced and
    scaled.
    """
    net = IntNet(platform, (1, 8, 12, 12))
    a = net.transpose(net.conv("xq", 6, 3, "a"), [0, 2, 3, 1], "b")
    held = net.const(np.array([1, 432, 2], np.int64))
    boxes = net.node("Reshape", [a, held], "boxes", (1, 432, 2), 16.0)
    net.cat([boxes, net.relu(boxes, "c")], 2, "d")
    model = model_of(net, add_slice(net, "d", 2, 0, 1, "y"))
    model.metadata_props.add(key=OBJECTIVE_KEY, value="time")
    return model


@pytest.mark.parametrize("platform", CHIPS)
def test_the_whole_is_promised_and_faster(platform):
    target, model = get_target(platform), detector(platform)
    graph, rewrites, savings = apply_cost_rewrites(PackerGraphView(ir.from_proto(model), target))
    assert rewrites
    assert savings.before > 2 * savings.after
    assert savings.assumed == (platform != "arcs")
    assert ("assumed" in savings.summary) == savings.assumed
    assert_same(model, graph)
    words = target.evaluate_packing(graph).argv
    assert judge(ir.to_proto(graph), platform, list(words)).right


def test_what_is_not_promised_is_not_taken(monkeypatch):
    """A form that the packer refuses: the graph stays as it was, and so do its cycles."""

    def propose_invalid(editor, node):
        form = propose_matrix_transposes(editor, node)
        if form is None:
            return None

        def write():
            value = editor.add_operator("Conv2dInt", [ir.require_input(node)], {}, [1], node)
            editor.replace_output(value, node)

        return selection.RewriteProposal("no form at all", 0.0, write)

    monkeypatch.setattr(selection, "_REWRITES", (propose_invalid,))
    model = detector("arcs")
    graph, rewrites, savings = apply_cost_rewrites(
        PackerGraphView(ir.from_proto(model), get_target("arcs"))
    )
    assert not rewrites
    assert savings.before >= savings.after  # by arguments alone
    assert get_op_types(graph) == get_op_types(ir.from_proto(model))


def test_plain_nodes_keep_their_forms():
    model = detector("arcs")
    model.metadata_props[0].value = "plain"
    graph, rewrites, savings = apply_cost_rewrites(
        PackerGraphView(ir.from_proto(model), get_target("arcs"))
    )
    assert (rewrites, savings, get_op_types(graph)) == (
        [],
        None,
        get_op_types(ir.from_proto(model)),
    )


@pytest.mark.parametrize("objective", ["accuracy", "time", "memory"])
def test_matrices_are_turned_whatever_else_decides(objective):
    """Equal integers: time decides, by default too."""
    model = detector("arcs")
    model.metadata_props[0].value = objective
    graph, rewrites, savings = apply_cost_rewrites(
        PackerGraphView(ir.from_proto(model), get_target("arcs"))
    )
    assert any("transposed as matrices" in fitted.what for fitted in rewrites)
    assert savings.before > 1.05 * savings.after
    assert_same(model, graph)


def build_batch_norm(platform="arcs"):
    """Build a BatchNorm2dInt whose cheaper form keeps the batch; no objective is set."""
    net = IntNet(platform, (1, 24, 6, 5))
    return model_of(net, net.batch_norm(net.conv("xq", 24, 1, "a"), "y"))


@pytest.mark.parametrize(
    ("objective", "is_rewritten"),
    [(None, True), ("accuracy", True), ("memory", True), ("plain", False)],
)
def test_forms_are_chosen_by_default(objective, is_rewritten):
    """Samples are still computed together, and the verdict is as good."""
    graph = ir.from_proto(build_batch_norm())
    if objective is not None:
        graph.metadata_props[OBJECTIVE_KEY] = objective
    rewritten, rewrites, savings = apply_cost_rewrites(PackerGraphView(graph, get_target("arcs")))
    assert [fitted.node for fitted in rewrites] == ["y"] * is_rewritten
    assert "BatchNorm2dInt" in get_op_types(graph)
    if not is_rewritten:
        assert (rewritten, savings) == (graph, None)
        return
    assert savings.before > 2 * savings.after
    assert_same(build_batch_norm(), rewritten)
    assert IntegerRunner(rewritten).per_sample
    assert judge(
        ir.to_proto(rewritten), "arcs", list(get_target("arcs").evaluate_packing(rewritten).argv)
    ).right


@pytest.mark.parametrize("platform", ["venus", "venusA"])
def test_another_chips_prices_do_not_decide_by_default(platform):
    graph = ir.from_proto(build_batch_norm(platform))
    assert apply_cost_rewrites(PackerGraphView(graph, get_target(platform))) == (graph, [], None)
    graph.metadata_props[OBJECTIVE_KEY] = "time"
    rewritten, _, savings = apply_cost_rewrites(PackerGraphView(graph, get_target(platform)))
    assert "BatchNorm2dInt" not in get_op_types(rewritten)
    assert savings.assumed


def test_nothing_is_judged_where_forms_cannot_save_enough(monkeypatch):
    """A small product beside a large convolution: its form saves next to nothing, and the packer is
    not asked.
    """
    net = IntNet("arcs", (1, 32, 40, 40))
    model = model_of(
        net,
        net.conv("xq", 64, 3, "y"),
        net.linear(net.relu(net.input("row", (1, 32)), "a"), 10, "z"),
    )
    monkeypatch.setattr(PackerGraphView, "fastest_arguments", None)
    graph, rewrites, savings = apply_cost_rewrites(
        PackerGraphView(ir.from_proto(model), get_target("arcs"))
    )
    assert (rewrites, savings, get_op_types(graph)) == (
        [],
        None,
        get_op_types(ir.from_proto(model)),
    )


def test_what_saves_little_of_the_whole_is_not_taken(monkeypatch):
    monkeypatch.setattr(selection, "_MIN_GRAPH_SAVING", 0.99)
    graph, rewrites, savings = apply_cost_rewrites(
        PackerGraphView(ir.from_proto(detector("arcs")), get_target("arcs"))
    )
    assert not rewrites
    assert savings.before >= savings.after  # by arguments alone
    assert get_op_types(graph) == get_op_types(ir.from_proto(detector("arcs")))


def test_a_kind_that_is_promised_is_taken_without_the_others(monkeypatch):
    def propose_invalid(editor, node):
        if node.op_type != "Slice":
            return None
        return selection.RewriteProposal(
            "no form at all", 0.0, lambda: ir.set_attr(node, "axes", [1, 2])
        )

    monkeypatch.setattr(selection, "_REWRITES", (propose_invalid, propose_matrix_transposes))
    monkeypatch.setattr(selection, "_MIN_GRAPH_SAVING", 0.0)
    model = detector("arcs")
    graph, rewrites, _ = apply_cost_rewrites(
        PackerGraphView(ir.from_proto(model), get_target("arcs"))
    )
    assert [fitted.node for fitted in rewrites] == ["b"]
    assert_same(model, graph)


def test_what_does_not_run_stays_as_it_is():
    net = IntNet("arcs", (1, 600, 700))
    model = model_of(net, net.softmax(net.relu("xq", "a"), "y"))
    graph, rewrites, savings = apply_cost_rewrites(
        PackerGraphView(ir.from_proto(model), get_target("arcs"))
    )
    assert (rewrites, savings, get_op_types(graph)) == (
        [],
        None,
        get_op_types(ir.from_proto(model)),
    )


def test_what_was_saved_stands_in_the_graph():
    metadata = {}
    CycleSavings(200, 100, "arcs").write_metadata(metadata)
    assert CycleSavings.read_metadata(metadata, "arcs") == CycleSavings(200, 100, "arcs")
    assert CycleSavings.read_metadata({}, "arcs") is None
    assert CycleSavings.read_metadata({"lingeronnx.cycles": "[]"}, "arcs") is None
    assert CycleSavings.sum_parts(
        [CycleSavings(2, 1, "arcs"), CycleSavings(3, 2, "arcs")]
    ) == CycleSavings(5, 3, "arcs")
    assert CycleSavings.sum_parts([]) is None


def test_added_nodes_leave_names_to_the_users():
    """A layer that is called as an added node would be keeps its name, and no two nodes have
    one.
    """
    model = detector("arcs")
    next(node for node in model.graph.node if node.op_type == "Conv2dInt").name = "b_turned"
    graph, rewrites, _ = apply_cost_rewrites(
        PackerGraphView(ir.from_proto(model), get_target("arcs"))
    )
    assert rewrites
    names = [node.name for node in graph.graph]
    assert len(set(names)) == len(names)
    assert next(node.name for node in graph.graph if node.op_type == "Conv2dInt") == "b_turned"
    assert any(name.startswith("b_turned_") for name in names)


@pytest.mark.parametrize(
    "form",
    [
        propose_depthwise_conv,
        propose_pointwise_conv,
        propose_conv_transpose,
        propose_slice_bypass,
        propose_matrix_transposes,
        propose_transposed_concat,
        propose_transposed_slice,
    ],
)
def test_forms_take_a_batch(form):
    """Matrices that are turned, too: the simulator computes samples side by side, and gives the
    same.
    """
    net = IntNet("arcs", (1, 8, 5, 6))
    source = net.relu("xq", "a")
    if form is propose_depthwise_conv:
        y = net.batch_norm(source, "y")
    elif form is propose_pointwise_conv:
        y = net.linear(net.relu(net.input("row", (1, 32)), "b"), 8, "y")
    elif form is propose_conv_transpose:
        y = add_upsampling(net, source, 2, 2, "y")
    elif form is propose_matrix_transposes:
        y = net.transpose(source, [0, 2, 3, 1], "y")
    else:
        y = net.cat([source, net.relu(source, "b")], 3, "c")
        if form is not propose_transposed_concat:
            y = add_slice(net, y, 3, 0, 6 if form is propose_slice_bypass else 4, "y")
    model = model_of(net, y)
    graph, count = apply_rewrites(model, form)
    runners = IntegerRunner(ir.from_proto(model)), IntegerRunner(graph)
    rng = np.random.default_rng(0)
    feed = {
        v.name: rng.integers(-90, 90, (3, *v.shape[1:])).astype(np.float32) / 16
        for v in runners[0].inputs
    }
    name = str(graph.graph.outputs[0].name)
    before, after = (list(runner.run(feed, names={name})) for runner in runners)
    assert count == 1
    assert all(runner.per_sample for runner in runners)
    np.testing.assert_array_equal(before[0][1], after[0][1])


# ---- what decides ------------------------------------------------------------------------------


def layers(platform="arcs"):
    """Return a net of three layers whose constants come by DMA."""
    net = IntNet(platform, (1, 64))
    return model_of(
        net, net.linear(net.relu(net.linear(net.linear("xq", 64, "a"), 64, "b"), "c"), 64, "y")
    )


def evaluate_with_objective(model, objective):
    """Return the verdict on a graph with this objective."""
    graph = ir.from_proto(model)
    if objective is not None:
        graph.metadata_props[OBJECTIVE_KEY] = objective
    return get_target("arcs").evaluate_packing(graph)


def test_constants_lie_in_shared_memory_where_that_saves_waiting():
    """By default and for time; memory leaves them outside."""
    assert (
        evaluate_with_objective(layers(), None).command_line
        == evaluate_with_objective(layers(), "time").command_line
        == "-p arcs -d False -m params:share-mem"
    )
    assert evaluate_with_objective(layers(), "memory").command_line == "-p arcs -d False"


def test_a_graph_is_not_judged_twice(monkeypatch):
    """The answer is kept for the same graph and the same that decides."""
    asked = []
    monkeypatch.setattr(
        arguments, "prepare_graph", lambda *args: asked.append(args) or prepare_graph(*args)
    )
    model = layers()
    model.graph.name = "judged_once"
    first = arguments.select_fastest_arguments(model, get_target("arcs"))
    assert arguments.select_fastest_arguments(model, get_target("arcs")) is first
    assert len(asked) == 1
    model.metadata_props.add(key=OBJECTIVE_KEY, value="memory")
    assert arguments.select_fastest_arguments(model, get_target("arcs")).argv != first.argv
    assert len(asked) == 2


def test_an_unknown_objective_is_that_of_accuracy():
    assert get_objective(ir.from_proto(layers())) == "accuracy"
    assert (
        evaluate_with_objective(layers(), "speed").command_line
        == evaluate_with_objective(layers(), "accuracy").command_line
    )


def test_one_of_several_parts_keeps_no_constants():
    """They would lie there while the others run."""
    model = layers()
    model.metadata_props.add(key=PARTS_KEY, value="several")
    assert not can_keep_constants_resident(model)
    assert get_target("arcs").evaluate_packing(model).command_line == "-p arcs -d False"


def test_a_chip_without_prices_keeps_its_first_arguments():
    """By another chip's prices nothing is moved, unless time is all."""
    graph = ir.from_proto(layers("venus"))
    assert get_target("venus").evaluate_packing(graph).command_line == "-p venus -d False"
    graph.metadata_props[OBJECTIVE_KEY] = "time"
    assert (
        get_target("venus").evaluate_packing(graph).command_line
        == "-p venus -d False -m params:share-mem"
    )


def test_memory_takes_no_form_that_needs_more():
    graph = ir.from_proto(detector("arcs"))
    graph.metadata_props[OBJECTIVE_KEY] = "memory"  # in place of time
    before = get_target("arcs").evaluate_packing(graph).verdict.memory_plan.required_bytes
    rewritten, _, _ = apply_cost_rewrites(PackerGraphView(graph, get_target("arcs")))
    assert (
        get_target("arcs").evaluate_packing(rewritten).verdict.memory_plan.required_bytes <= before
    )
