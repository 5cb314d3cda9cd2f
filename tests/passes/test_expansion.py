"""Composite operators are expanded: compositions and function bodies compute the same, and a target
gets them only where more is computed in integers.
"""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lingeronnx.api import quantize
from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from lingeronnx.ir.function_bodies import find_function_body, has_function_body
from lingeronnx.quantization.normalize.expansion.attention import compose_attention
from lingeronnx.quantization.normalize.expansion.expand import can_expand, expand_nodes
from lingeronnx.quantization.normalize.folding.control_flow import inline_static_control_flow
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.runtime.runners.missing_kernels import (
    check_expanded_nodes,
    expand_missing_kernels,
    get_expanded_nodes,
)

TYPES = {"f": TensorProto.FLOAT, "b": TensorProto.BOOL, "i": TensorProto.INT64}


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def one_node(op_type, inputs, opset, outputs=1, constants=(), domain="", **attributes):
    """Return a model of one operator and a feed; inputs of None are absent."""
    names = ["" if array is None else f"x{index}" for index, array in enumerate(inputs)]
    node = helper.make_node(
        op_type,
        names,
        [f"y{index}" for index in range(outputs)],
        name="composite",
        domain=domain,
        **attributes,
    )
    arrays = {name: array for name, array in zip(names, inputs, strict=True) if name}
    feed = {name: array for name, array in arrays.items() if int(name[1:]) not in constants}
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, TYPES[array.dtype.kind], array.shape)
            for name, array in feed.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output],
        [numpy_helper.from_array(arrays[name], name) for name in arrays if name not in feed],
    )
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ir.from_proto(model), feed


def run(model, feed):
    names = [str(value.name) for value in model.graph.outputs]
    return {name: array for name, array, _ in FloatRunner(model, names).run(feed)}


def expand_and_compare(model, feed, tolerance=2e-5):
    """Expand the only node, compare all outputs, and return the operators of the result."""
    expected = run(model, feed)
    trace_shapes(model, feed)
    assert expand_nodes(model, {"composite"}) == {"composite"}
    actual = run(model, feed)
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].shape == array.shape
        np.testing.assert_allclose(actual[name], array, atol=tolerance, rtol=tolerance)
    assert {ir.origin_name(node) for node in model.graph} == {"composite"}
    return [node.op_type for node in model.graph]


HEADS = (draw(1, 2, 5, 8, seed=1), draw(1, 2, 5, 8, seed=2), draw(1, 2, 5, 8, seed=3))
PACKED = tuple(draw(1, 5, 16, seed=seed) for seed in (1, 2, 3))
GROUPED = (draw(1, 4, 5, 8, seed=1), *HEADS[1:])
PAST = (draw(1, 2, 3, 8, seed=4), draw(1, 2, 3, 8, seed=5))
MASK = np.tril(np.ones((5, 5), bool))

ATTENTIONS = {
    "heads": (HEADS, {}),
    "packed": (PACKED, {"q_num_heads": 2, "kv_num_heads": 2}),
    "grouped": (GROUPED, {}),
    "packed groups": (
        (draw(1, 5, 32, seed=1), *PACKED[1:]),
        {"q_num_heads": 4, "kv_num_heads": 2},
    ),
    "one key head": ((draw(1, 4, 5, 8), draw(1, 1, 5, 8, seed=2), draw(1, 1, 5, 8, seed=3)), {}),
    "causal": (HEADS, {"is_causal": 1}),
    "causal groups": (GROUPED, {"is_causal": 1}),
    "softcap": (HEADS, {"softcap": 1.5, "is_causal": 1}),
    "scale": (HEADS, {"scale": 0.25}),
    "past": ((*HEADS, None, *PAST), {}),
    "past, causal": ((*HEADS, None, *PAST), {"is_causal": 1}),
    "mask": ((*HEADS, draw(5, 5, seed=6)), {}),
    "mask of heads": ((*HEADS, draw(1, 2, 5, 5, seed=6)), {}),
    "bools": ((*HEADS, MASK), {}),
    "values of another size": ((*HEADS[:2], draw(1, 2, 5, 4, seed=3)), {}),
    "other positions": ((draw(1, 2, 3, 8), *HEADS[1:]), {}),
}


@pytest.mark.parametrize("case", ATTENTIONS)
def test_an_attention_is_composed(case):
    inputs, attributes = ATTENTIONS[case]
    outputs = 3 if "past" in case else 1
    model, feed = one_node("Attention", inputs, 23, outputs, **attributes)
    operators = expand_and_compare(model, feed)
    assert operators.count("MatMul") == 2
    assert operators.count("Softmax") == 1


@pytest.mark.parametrize("case", ["mask", "bools", "mask of heads"])
def test_a_constant_mask_is_one_addition(case):
    model, feed = one_node("Attention", ATTENTIONS[case][0], 23, constants={3}, is_causal=1)
    assert expand_and_compare(model, feed).count("Add") == 1


def test_a_row_of_bools_without_any_position_gives_zeros():
    mask = MASK.copy()
    mask[2] = False
    model, feed = one_node("Attention", (*HEADS, mask), 23)
    trace_shapes(model, feed)
    expand_nodes(model, {"composite"})
    result = run(model, feed)["y0"]
    assert not result[:, :, 2].any()
    assert np.isfinite(result).all()


@pytest.mark.parametrize(
    ("inputs", "opset", "outputs", "attributes"),
    [
        ((*HEADS, None, None, None, np.array([4])), 24, 1, {}),
    ],
)
def test_an_attention_without_composition_gets_its_body(inputs, opset, outputs, attributes):
    model, feed = one_node("Attention", inputs, opset, outputs, **attributes)
    assert "Where" in expand_and_compare(model, feed)


@pytest.mark.parametrize(("mask", "is_causal"), [(MASK, 0), (None, 1)])
def test_infinite_scores_as_an_output_are_not_composed(mask, is_causal):
    attributes = {"qk_matmul_output_mode": 2, "is_causal": is_causal}
    model, feed = one_node("Attention", (*HEADS, mask), 24, 4, **attributes)
    trace_shapes(model, feed)
    assert not compose_attention(model, next(iter(model.graph)))


@pytest.mark.parametrize("heads", [HEADS, GROUPED], ids=["one to one", "grouped"])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("mode", range(4))
def test_scores_are_an_output_of_the_composition(heads, softcap, mode):
    inputs = (*heads, draw(5, 5, seed=6))
    model, feed = one_node("Attention", inputs, 24, 4, softcap=softcap, qk_matmul_output_mode=mode)
    assert "Where" not in expand_and_compare(model, feed)


@pytest.mark.parametrize(("mode", "mask"), [(1, MASK), (3, MASK), (3, None)])
def test_hidden_positions_keep_other_scores_as_an_output(mode, mask):
    model, feed = one_node(
        "Attention", (*HEADS, mask), 24, 4, is_causal=int(mask is None), qk_matmul_output_mode=mode
    )
    assert "Where" not in expand_and_compare(model, feed)


def test_scores_that_stay_in_float_are_computed():
    model = block(
        helper.make_node(
            "Attention",
            ["h", "h", "h"],
            ["a", "", "", "scores"],
            q_num_heads=2,
            kv_num_heads=2,
            is_causal=1,
            qk_matmul_output_mode=2,
        ),
        opset=24,
    )
    model.graph.output.append(
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 2, 5, 5])
    )
    report = quantized(model, "generic").report
    assert {node.op_type for node in report.float_nodes} == {"Attention"}


@pytest.mark.parametrize("opset", [23, 25])
@pytest.mark.parametrize("shape", [(1, 1, 1, 5), (1, 5)])
@pytest.mark.parametrize("heads", [HEADS, PACKED], ids=["heads", "packed"])
def test_a_mask_row_for_all_queries_is_repeated_for_onnxruntime(heads, shape, opset):
    row = np.array([True, True, False, True, True]).reshape(shape)
    attributes = {} if heads is HEADS else {"q_num_heads": 2, "kv_num_heads": 2}
    model, feed = one_node("Attention", (*heads, row), opset, **attributes)
    full, full_feed = one_node(
        "Attention", (*heads, np.broadcast_to(row, (*shape[:-2], 5, 5))), opset, **attributes
    )
    np.testing.assert_array_equal(run(model, feed)["y0"], run(full, full_feed)["y0"])
    assert expand_missing_kernels(model) >= 1
    operators = [node.op_type for node in model.graph]
    assert operators[:3] == ["Shape", "Concat", "Expand"]
    if "Attention" in operators:
        node = next(node for node in model.graph if node.op_type == "Attention")
        node.name = "composite"
        trace_shapes(model, feed)
        assert expand_nodes(model, {"composite"}) == {"composite"}


@pytest.mark.parametrize("opset", [25, 28])
@pytest.mark.parametrize("case", ["heads", "causal groups", "softcap", "past, causal"])
def test_newer_attentions_are_composed(case, opset):
    inputs, attributes = ATTENTIONS[case]
    model, feed = one_node("Attention", inputs, opset, 3 if "past" in case else 1, **attributes)
    assert "MatMul" in expand_and_compare(model, feed)


@pytest.mark.parametrize("axis", [-1, 2])
def test_an_rms_norm_is_the_layer_norm_of_both_signs(axis):
    model, feed = one_node(
        "RMSNormalization", (draw(2, 3, 8), draw(8)), 23, constants={1}, axis=axis, epsilon=1e-3
    )
    operators = expand_and_compare(model, feed)
    assert operators == ["Mul", "Concat", "LayerNormalization", "Slice"]


def test_an_rms_norm_over_two_axes_is_one_over_rows():
    model, feed = one_node(
        "RMSNormalization", (draw(2, 3, 8), draw(3, 8)), 23, constants={1}, axis=1
    )
    operators = expand_and_compare(model, feed)
    assert operators == ["Reshape", "Mul", "Concat", "LayerNormalization", "Slice", "Reshape"]


def test_an_rms_norm_with_a_computed_scale_gets_its_body():
    model, feed = one_node("RMSNormalization", (draw(2, 3, 8), draw(8)), 23)
    assert "LayerNormalization" not in expand_and_compare(model, feed)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("InstanceNormalization", (draw(2, 4, 6), 1 + draw(4) / 8, draw(4, seed=1)), {}),
        ("InstanceNormalization", (draw(2, 4, 3, 2), draw(4), draw(4)), {"epsilon": 0.01}),
        ("GroupNormalization", (draw(2, 4, 6), 1 + draw(4), draw(4, seed=1)), {"num_groups": 2}),
        ("GroupNormalization", (draw(2, 6, 3, 2), draw(6), draw(6)), {"num_groups": 3}),
        ("LpNormalization", (draw(2, 4, 6),), {"axis": -1}),
        ("LpNormalization", (draw(2, 6),), {"axis": 1, "p": 2}),
    ],
)
def test_other_norms_are_layer_norms(op_type, inputs, attributes):
    opset = 21 if op_type == "GroupNormalization" else 17
    model, feed = one_node(op_type, inputs, opset, constants={1, 2}, **attributes)
    assert "LayerNormalization" in expand_and_compare(model, feed)


@pytest.mark.parametrize("op_type", ["Sum", "Mean"])
def test_sums_of_several_tensors_are_sums_of_two(op_type):
    model, feed = one_node(op_type, [draw(2, 4, seed=seed) for seed in range(3)], 13)
    assert expand_and_compare(model, feed)[:2] == ["Add", "Add"]


@pytest.mark.parametrize("inputs", [(draw(2, 4),), (draw(2, 4), draw(4))])
def test_a_sum_of_one_tensor_or_of_other_shapes_stays(inputs):
    model, feed = one_node("Sum", inputs, 13)
    trace_shapes(model, feed)
    assert not expand_nodes(model, {"composite"})


@pytest.mark.parametrize("attributes", [{"axis": 1}, {"axis": -1, "p": 1}])
def test_other_lengths_are_no_layer_norm(attributes):
    model, feed = one_node("LpNormalization", (draw(2, 4, 6),), 17, **attributes)
    trace_shapes(model, feed)
    assert not expand_nodes(model, {"composite"})


def test_a_body_with_a_loop_has_unique_names_and_is_unrolled():
    inputs = [draw(1, 5, 16, seed=seed) for seed in range(3)]
    model, feed = one_node(
        "LinearAttention", inputs, 27, 2, q_num_heads=2, kv_num_heads=2, update_rule="linear"
    )
    if not expand_missing_kernels(model):
        pytest.skip("onnxruntime has a kernel")
    names = [str(node.name) for node in model.graph.all_nodes()]
    assert len(set(names)) == len(names)
    expected = run(model, feed)
    trace_shapes(model, feed)
    assert inline_static_control_flow(model).changes == 1
    actual = run(model, feed)
    np.testing.assert_allclose(actual["y0"], expected["y0"], atol=1e-5)


TABLES = (np.cos(draw(1, 5, 4, seed=1)), np.sin(draw(1, 5, 4, seed=1)))
LONG_TABLES = (np.cos(draw(9, 4, seed=1)), np.sin(draw(9, 4, seed=1)))
ROTARIES = {
    "heads": ((draw(1, 2, 5, 8), *TABLES), {}),
    "interleaved": ((draw(1, 2, 5, 8), *TABLES), {"interleaved": 1}),
    "packed": ((draw(1, 5, 16), *TABLES), {"num_heads": 2}),
    "packed, interleaved": ((draw(1, 5, 16), *TABLES), {"num_heads": 2, "interleaved": 1}),
    "part": ((draw(1, 2, 5, 12), *TABLES), {"rotary_embedding_dim": 8}),
    "positions": (
        (draw(1, 2, 5, 8), *LONG_TABLES, np.array([[3, 1, 4, 1, 5]])),
        {"interleaved": 1},
    ),
}


@pytest.mark.parametrize("case", ROTARIES)
def test_a_rotary_embedding_with_constant_tables_is_three_operators(case):
    inputs, attributes = ROTARIES[case]
    model, feed = one_node("RotaryEmbedding", inputs, 23, constants={1, 2, 3}, **attributes)
    assert sorted(expand_and_compare(model, feed)) == ["Add", "Gather", "Mul", "Mul"]


def test_a_rotary_embedding_with_computed_tables_gets_its_body():
    inputs, attributes = ROTARIES["heads"]
    model, feed = one_node("RotaryEmbedding", inputs, 23, **attributes)
    assert "Gather" not in expand_and_compare(model, feed)


@pytest.mark.parametrize("bias", [None, draw(4)])
@pytest.mark.parametrize("past", [None, draw(1, 4, 2, seed=3)])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_a_causal_convolution_is_composed(bias, past, activation):
    inputs = (draw(1, 4, 6), draw(4, 1, 3), bias, past)
    model, feed = one_node(
        "CausalConvWithState", inputs, 27, 2, constants={1, 2}, activation=activation
    )
    assert "Conv" in expand_and_compare(model, feed)


@pytest.mark.parametrize(
    ("position", "attributes", "operators"),
    [
        (None, {}, ["Slice", "Concat"]),
        (3, {}, ["Slice", "Slice", "Concat"]),
        (6, {}, ["Slice", "Concat"]),
        (9, {"mode": "circular"}, ["Slice", "Slice", "Concat"]),
        (2, {"axis": -1}, ["Slice", "Concat"]),
    ],
)
def test_rows_are_scattered_to_a_known_position(position, attributes, operators):
    update = draw(2, 2, 8, 2) if attributes.get("axis") else draw(2, 2, 2, 4)
    indices = None if position is None else np.full(2, position)
    model, feed = one_node(
        "TensorScatter", (draw(2, 2, 8, 4), update, indices), 24, constants={2}, **attributes
    )
    assert expand_and_compare(model, feed, tolerance=0.0) == operators


def test_a_scatter_of_a_full_cache_is_the_update():
    model, feed = one_node("TensorScatter", (draw(2, 2, 8, 4), draw(2, 2, 8, 4, seed=1)), 24)
    assert expand_and_compare(model, feed, tolerance=0.0) == ["Identity"]


@pytest.mark.parametrize(
    ("indices", "constants", "mode"),
    [
        (np.array([1, 2]), {2}, "linear"),  # differs between samples
        (np.array([1, 1]), set(), "linear"),  # known at run time only
        (np.array([7, 7]), {2}, "circular"),  # wraps around
    ],
)
def test_rows_at_other_positions_stay_scattered(indices, constants, mode):
    inputs = (draw(2, 2, 8, 4), draw(2, 2, 2, 4), indices)
    model, feed = one_node("TensorScatter", inputs, 24, constants=constants, mode=mode)
    trace_shapes(model, feed)
    assert not expand_nodes(model, {"composite"})


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 3, 9, 10), {"kernel_shape": [3, 2], "dilations": [2, 1]}),
        ((1, 3, 9), {"kernel_shape": [3], "dilations": [2], "strides": [2]}),
        (
            (1, 3, 9, 9),
            {
                "kernel_shape": [3, 3],
                "dilations": [2, 2],
                "pads": [2, 1, 2, 1],
                "count_include_pad": 1,
            },
        ),
    ],
)
def test_a_dilated_average_is_a_convolution(shape, attributes):
    model, feed = one_node("AveragePool", (draw(*shape),), 22, **attributes)
    assert expand_and_compare(model, feed) == ["Conv"]


@pytest.mark.parametrize(
    "attributes", [{}, {"dilations": [2, 2], "pads": [1, 1, 1, 1]}, {"dilations": [1, 1]}]
)
def test_other_averages_are_not_composed(attributes):
    model, feed = one_node(
        "AveragePool", (draw(1, 3, 9, 9),), 22, kernel_shape=[3, 3], **attributes
    )
    trace_shapes(model, feed)
    assert not expand_nodes(model, {"composite"})


@pytest.mark.parametrize("op_type", ["Gelu", "FastGelu", "QuickGelu", "BiasGelu"])
def test_the_gelus_of_other_tools_become_formulas(op_type):
    inputs = (draw(2, 8), draw(8)) if op_type == "BiasGelu" else (draw(2, 8),)
    model, feed = one_node(op_type, inputs, 17, constants={1}, domain="com.microsoft")
    expand_and_compare(model, feed)


@pytest.mark.parametrize(
    ("op_type", "inputs", "opset", "attributes"),
    [
        ("DepthToSpace", (draw(1, 8, 2, 3),), 28, {"blocksize": 2}),
        ("DepthToSpace", (draw(1, 8, 2, 3),), 28, {"blocksize": 2, "mode": "CRD"}),
        ("SpaceToDepth", (draw(1, 2, 4, 6),), 28, {"blocksize": 2}),
        ("GroupNormalization", (draw(1, 4, 6), draw(4), draw(4)), 21, {"num_groups": 2}),
        ("MeanVarianceNormalization", (draw(1, 2, 4, 4),), 13, {}),
        ("ReduceL2", (draw(1, 2, 4),), 18, {}),
    ],
)
def test_operators_with_function_bodies_are_expanded(op_type, inputs, opset, attributes):
    model, feed = one_node(op_type, inputs, opset, **attributes)
    if not can_expand(next(iter(model.graph)), opset):
        assert opset < 28, "onnx has bodies of all of these today"
        pytest.skip("no function body in this opset")
    expand_and_compare(model, feed)


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize(
    ("op_type", "shape", "attributes"),
    [
        ("DepthToSpace", (2, 8, 2, 3), {"blocksize": 2}),
        ("DepthToSpace", (1, 18, 4, 3), {"blocksize": 3, "mode": "DCR"}),
        ("DepthToSpace", (2, 12, 2, 3), {"blocksize": 2, "mode": "CRD"}),
        ("SpaceToDepth", (2, 3, 4, 6), {"blocksize": 2}),
        ("SpaceToDepth", (1, 2, 9, 3), {"blocksize": 3}),
    ],
)
def test_blocks_of_positions_are_moved_by_a_transpose(op_type, shape, attributes, opset):
    model, feed = one_node(op_type, (draw(*shape),), opset, **attributes)
    operators = expand_and_compare(model, feed, tolerance=0.0)
    assert operators == ["Reshape", "Transpose", "Reshape"]


def test_blocks_of_maps_of_unknown_size_stay():
    model, _ = one_node("SpaceToDepth", (draw(1, 2, 4, 4),), 17, blocksize=2)
    model.graph.inputs[0].shape = ir.Shape(["N", 2, "H", 4])
    assert not expand_nodes(model, {"composite"})
    assert [node.op_type for node in model.graph] == ["SpaceToDepth"]


@pytest.mark.parametrize("platform", ["generic", "venus", "arcs", "venusA"])
@pytest.mark.parametrize("op_type", ["DepthToSpace", "SpaceToDepth"])
def test_blocks_between_layers_keep_a_model_in_integers(op_type, platform):
    channels = 2 if op_type == "DepthToSpace" else 32
    weights = {"v": draw(8, 3, 3, 3), "w": draw(4, channels, 3, 3)}
    text = f"""<ir_version: 8, opset_import: ["" : 13]>
        g (float[N,3,8,8] x) => (float[N,4,M,M] y) {{
            a = Conv<pads = [1, 1, 1, 1]>(x, v)
            b = {op_type}<blocksize = 2>(a)
            y = Conv<pads = [1, 1, 1, 1]>(b, w) }}"""
    model = onnx.parser.parse_model(text)
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    result = quantize(model, draw(8, 3, 8, 8), platform=platform, effort="fast")
    assert not result.report.float_nodes
    assert result.report.chip_ready == (platform != "generic")
    (output,) = result.report.outputs.values()
    assert output["sqnr"] > 25


def test_bodies_are_those_of_the_models_opset():
    model, _ = one_node("Swish", (draw(2, 3),), 24, alpha=0.5)
    node = next(iter(model.graph))
    assert has_function_body("Swish", 24)
    assert not has_function_body("Swish", 23)  # there is no Swish
    assert find_function_body(node, 28).opset_import[0].version == 28


@pytest.mark.parametrize("opset", [24, 26, 28])
def test_operators_without_kernel_are_expanded_and_checked(opset):
    model, feed = one_node("Swish", (draw(2, 3),), opset, alpha=0.5)
    count = expand_missing_kernels(model)
    if not count:  # onnxruntime has it in this opset
        assert [node.op_type for node in model.graph] == ["Swish"]
        return
    assert "Swish" not in [node.op_type for node in model.graph]
    x = feed["x0"].astype(np.float64)
    expected = x / (1 + np.exp(-0.5 * x))
    np.testing.assert_allclose(run(model, feed)["y0"], expected, atol=1e-6)
    nodes = get_expanded_nodes(model)
    arrays = {**feed, **run(model, feed)}
    (note,) = check_expanded_nodes(nodes, opset, lambda names: {n: arrays[n] for n in names})
    assert "1 of 1 nodes checked" in note
    arrays["y0"] = arrays["y0"] + 1
    with pytest.raises(ModelError, match="Swish composite: its function body computes another"):
        check_expanded_nodes(nodes, opset, lambda names: {n: arrays[n] for n in names})


def test_a_nested_body_is_expanded_too():
    model, feed = one_node("SwiGLU", (draw(2, 3), draw(2, 3, seed=1)), 28)
    assert expand_missing_kernels(model)
    gate, linear = feed["x0"], feed["x1"]
    np.testing.assert_allclose(
        run(model, feed)["y0"], gate / (1 + np.exp(-gate)) * linear, atol=1e-6
    )


def test_float_runners_replace_missing_kernels_in_a_copy():
    model, feed = one_node("SwiGLU", (draw(2, 3), draw(2, 3, seed=1)), 28)
    assert run(model, feed)["y0"].shape == (2, 3)
    assert [node.op_type for node in model.graph] == ["SwiGLU"]


# ---- what a target gets --------------------------------------------------------------------------


def block(node, extra=(), size=16, opset=23):
    """Return a model: linear, `node` from h to a, linear."""
    weight = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 5, size])
    arrays = {"w": draw(size, size) / 4, "v": draw(size, size, seed=1) / 4, **dict(extra)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        node,
        helper.make_node("MatMul", ["a", "v"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [weight],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, size])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


NODES = {
    "attention": helper.make_node(
        "Attention", ["h", "h", "h"], ["a"], q_num_heads=2, kv_num_heads=2, is_causal=1
    ),
    "rms norm": helper.make_node("RMSNormalization", ["h", "g"], ["a"]),
    "rotary": helper.make_node("RotaryEmbedding", ["h", "c", "s"], ["a"], num_heads=4),
    "rotary, interleaved": helper.make_node(
        "RotaryEmbedding", ["h", "c", "s"], ["a"], num_heads=4, interleaved=1
    ),
}
EXTRA = {
    "g": 1 + draw(16) / 8,
    "c": np.cos(draw(1, 5, 2, seed=8)),
    "s": np.sin(draw(1, 5, 2, seed=8)),
}


def quantized(model, platform, **settings):
    calib = {"x": draw(32, 5, 16, seed=9)}
    return quantize(model, calib, platform=platform, effort="fast", **settings)


@pytest.mark.parametrize("case", NODES)
def test_a_composite_between_layers_becomes_integer(case):
    node = NODES[case]
    extra = {name: EXTRA[name] for name in node.input if name in EXTRA}
    result = quantized(block(node, extra.items()), "generic")
    assert result.report.integer_macs == 1
    assert not result.report.float_nodes
    assert any(f"{node.op_type}: expanded" in note for note in result.report.notes)
    assert result.report.outputs["y"]["sqnr"] > 20


def test_a_chip_that_would_need_the_host_between_keeps_the_operator():
    model = onnx.ModelProto()
    model.CopyFrom(block(NODES["attention"]))
    del model.graph.node[-1]
    model.graph.output[0].name = "a"
    result = quantized(model, "venus")  # venus has no correct Softmax
    assert result.report.chip_ready
    assert any("stays on the host" in note for note in result.report.notes)


def test_a_skipped_composite_is_not_expanded():
    result = quantized(block(NODES["attention"]), "generic", skip=["type:Attention"])
    assert ["skipped" in node.why for node in result.report.float_nodes] == [True]


def test_a_mask_that_is_an_input_and_far_below_stays_in_float():
    node = helper.make_node("Attention", ["q", "q", "q", "mask"], ["a"])
    heads = helper.make_node("Reshape", ["h", "heads"], ["q4"])
    turned = helper.make_node("Transpose", ["q4"], ["q"], perm=[0, 2, 1, 3])
    model = block(node, [("heads", np.array([0, 5, 2, 8])), ("rows", np.array([0, 5, 16]))])
    nodes = list(model.graph.node)
    back = helper.make_node("Transpose", ["a"], ["back"], perm=[0, 2, 1, 3])
    packed = helper.make_node("Reshape", ["back", "rows"], ["packed"])
    nodes[-1].input[0] = "packed"
    del model.graph.node[:]
    model.graph.node.extend([nodes[0], heads, turned, node, back, packed, nodes[-1]])
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1, 1, 5, 5]))
    lengths = np.random.default_rng(0).integers(2, 6, (32, 1, 1, 1))
    mask = np.where(np.arange(5) < lengths, 0, -1e9) * np.ones((1, 1, 5, 1))
    calib = {"x": draw(32, 5, 16, seed=9), "mask": mask.astype(np.float32)}
    result = quantize(model, calib, platform="generic", effort="fast")
    assert {node.op_type for node in result.report.float_nodes} == {"Add", "Softmax"}
    assert result.report.integer_macs == 1
    assert result.report.outputs["y"]["sqnr"] > 20


def test_an_expansion_that_onnxruntime_does_not_run_is_left_out():
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[N,2,4,4] x) => (float[N,2,4,4] y) {
            p = GlobalAveragePool(x)
            f = Flatten(p)
            m = MatMul(f, w)
            t = Reshape(m, theta)
            n = Shape<start = 0, end = 1>(x)
            size = Concat<axis = 0>(n, map)
            r = AffineGrid(t, size)
            y = GridSample(x, r) }"""
    model = onnx.parser.parse_model(text)
    arrays = {
        "w": draw(2, 6),
        "theta": np.array([0, 2, 3]),
        "map": np.array([2, 4, 4]),
    }
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    report = quantize(model, draw(8, 2, 4, 4), platform="generic", effort="fast").report
    (note,) = [note for note in report.notes if note.startswith("AffineGrid")]
    assert note.endswith("program (onnxruntime does not run it)")
    assert "AffineGrid" in {node.op_type for node in (*report.float_nodes, *report.host_part)}


def test_a_note_says_what_limits_an_expansion():
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,8,16,16] x) => (float[N,4,16,16] y) {
            a = Conv<kernel_shape = [1, 1]>(x, v)
            b = GroupNormalization<num_groups = 2>(a, s, o)
            y = Conv<kernel_shape = [1, 1]>(b, w) }"""
    model = onnx.parser.parse_model(text)
    arrays = {"v": draw(8, 8, 1, 1), "w": draw(4, 8, 1, 1), "s": 1 + draw(8) / 8, "o": draw(8)}
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    report = quantize(model, draw(8, 8, 16, 16), platform="venus", effort="fast").report
    (note,) = [note for note in report.notes if note.startswith("GroupNormalization")]
    assert "stays on the host" in note
    assert "(LayerNormalization: a normalised row has at most 361 elements" in note
