"""Relatives of measured rows: other scales, widths, placements and shapes of the same operators."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from lingeronnx.luna.evaluation import evaluate_graph
from lingeronnx.targets import get_target

FOLDER = Path(__file__).resolve().parents[3] / "golden" / "versions"
ROWS = {row["name"]: row for row in json.loads((FOLDER / "index.json").read_text())}


def load(name, changes=()):
    """Load a row's graph, with (operator, attribute, value) set in it; None removes an attribute."""
    model = onnx.load(FOLDER / ROWS[name]["file"])
    for operator, key, value in changes:
        for node in model.graph.node:
            if operator in ("", node.op_type):
                kept = [attribute for attribute in node.attribute if attribute.name != key]
                if value is not None:
                    kept.append(helper.make_attribute(key, value))
                del node.attribute[:]
                node.attribute.extend(kept)
    return model


def judge(name, version, changes=(), arguments=()):
    """Return ("refused", "wrong" or "right", and the rules) of a relative of a row."""
    row = ROWS[name]
    model = load(name, changes)
    target = get_target(f"{row['platform']}@{version}")
    verdict = evaluate_graph(model, target, [*row["arguments"], *arguments])
    answer = "right" if verdict.is_correct else "wrong"
    rules = " | ".join(finding.rule for finding in verdict.findings)
    return answer if verdict.is_packable else "refused", rules


def change_scale(operator, scale):
    return [(operator, "scale_x", scale), ("Quant", "scale_x", scale)]


@pytest.mark.parametrize(
    ("version", "answer"),
    [("3.0.4", "wrong"), ("3.0.5", "wrong"), ("3.0.6", "right"), ("3.0.10", "right")],
)
def test_a_sigmoid_of_a_small_scale_is_right_since_3_0_6(version, answer):
    given, rules = judge("iqsigmoid_venus_v310_q10", version)
    assert given == answer
    assert ("lut-scale" in rules) == (answer == "wrong")


@pytest.mark.parametrize(
    ("scale", "version", "answer"),
    [
        (2.0**10, "3.0.4", "wrong"),
        (2.0**10, "3.0.10", "wrong"),
        (2.0**12, "3.0.10", "right"),
        (2.0**12, "2026-08-20", "refused"),
        (2.0**11, "2026-08-20", "right"),
    ],
)
def test_scales_of_tanh(scale, version, answer):
    changes = change_scale("iqTanh", scale)
    assert judge("iqtanh_venus_v310", version, changes)[0] == answer


@pytest.mark.parametrize(("version", "answer"), [("3.0.10", "refused"), ("2026-08-20", "right")])
def test_an_average_needs_no_ceil_mode_in_the_newest_text(version, answer):
    changes = [("AvgPool2dInt", "ceil_mode", None)]
    given, rules = judge("avg_venusA_v310_k2_4_6", version, changes)
    assert given == answer
    assert ("attributes that the packer reads" in rules) == (answer == "refused")


@pytest.mark.parametrize(("version", "answer"), [("3.0.10", "refused"), ("2026-08-20", "right")])
def test_the_newest_text_takes_a_platform_in_any_case(version, answer):
    row = ROWS["avg_venusA_v310_k2_4_6"]
    model, target = load(row["name"]), get_target(f"venusA@{version}")
    verdict = evaluate_graph(model, target, ["-p", "venusA", "-d", "False"])
    assert verdict.is_packable == (answer == "right")


@pytest.mark.parametrize("version", ["3.0.9", "3.0.10", "2026-08-20"])
def test_gelu_of_16_bits_does_not_pack(version):
    changes = [("", "data_bits", 16), ("", "x_bits", 16)]
    assert judge("qgelu_venusA_v310_8_q4_4", version, changes)[0] == "refused"
    assert judge("qgelu_venusA_v310_8_q4_4", version)[0] == "right"


def test_a_wide_sigmoid_of_arcs_is_wrong_in_the_newest_text():
    changes = [("Quant", "data_bits", 16), ("iqSigmoid", "data_bits", 16)]
    given, rules = judge("iqsigmoid_arcs_v310_8_q4", "2026-08-20", changes)
    assert given == "wrong"
    assert "sigmoid-stops" in rules
    assert judge("iqsigmoid_arcs_v310_8_q4", "2026-08-20")[0] == "right"


@pytest.mark.parametrize(("shift", "answer"), [(6, "right"), (7, "wrong")])
def test_a_sum_is_shifted_left_by_six_at_most(shift, answer):
    scales = [("Quant", "scale_x", 8.0), ("iqAdd", "scale_x", 8.0), ("iqAdd", "scale_y", 8.0)]
    changes = [*scales, ("iqAdd", "scale_o", 8.0 * 2.0**shift)]
    assert judge("iqadd_arcs_v310_5_5_5", "3.0.10", changes)[0] == answer


@pytest.mark.parametrize(
    ("version", "answer"), [("3.0.9", "wrong"), ("3.0.10", "refused"), ("2026-08-20", "right")]
)
def test_long_sequences_of_a_gru_do_not_pack_on_venus_in_3_0_10(version, answer):
    model = load("gru_venus_bf1_a_v310")
    steps = 400
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = steps
    for constant in model.graph.initializer:
        if constant.data_type == onnx.TensorProto.INT64 and constant.dims == [3]:
            shape = numpy_helper.to_array(constant).copy()
            shape[1] = steps
            constant.CopyFrom(numpy_helper.from_array(shape, constant.name))
    for node in model.graph.node:  # a mode that 3.0.9 takes, and no output of the state
        kept = [attribute for attribute in node.attribute if attribute.name != "quant_mode"]
        del node.attribute[:]
        node.attribute.extend(kept)
    del model.graph.output[1:]
    del model.graph.value_info[:]
    model.graph.output[0].type.tensor_type.shape.Clear()
    target = get_target(f"venus@{version}")
    verdict = evaluate_graph(model, target, ["-p", "venus", "-d", "False"])
    if verdict.is_packable:
        given = "right" if verdict.is_correct else "wrong"
    else:
        given = "refused"
    assert given == answer, [str(finding) for finding in verdict.findings]


def test_convolutions_pad_the_axis_that_they_say_since_3_0_10():
    kernel, pads = (1, 5), [0, 1, 0, 1]  # 3 columns and 2 of padding are 5
    node = helper.make_node(
        "Conv2dInt",
        ["q", "w", "b"],
        ["y"],
        name="conv",
        kernel_shape=list(kernel),
        pads=pads,
        strides=[1, 1],
        dilations=[1, 1],
        group=1,
        data_bits=8,
        parameter_bits=8,
        o_bits=8,
        scale_x=16.0,
        scale_w=64.0,
        scale_o=16.0,
        platform="arcs",
        quant_mode="floor_add",
    )
    quant = helper.make_node("Quant", ["x"], ["q"], name="quant", scale_x=16.0, data_bits=8)
    quant.attribute.append(helper.make_attribute("platform", "arcs"))
    constants = [
        numpy_helper.from_array(np.ones((8, 8, *kernel), np.int8), "w"),
        numpy_helper.from_array(np.zeros(8, np.int32), "b"),
    ]
    source = helper.make_tensor_value_info("x", 1, [1, 8, 6, 3])
    result = helper.make_tensor_value_info("y", 3, [1, 8, 6, 1])
    graph = helper.make_graph([quant, node], "net", [source], [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)])
    answers = {
        version: evaluate_graph(model, get_target(f"arcs@{version}"), ["-p", "arcs"]).is_packable
        for version in ("3.0.4", "3.0.9", "3.0.10")
    }
    assert answers == {"3.0.4": False, "3.0.9": False, "3.0.10": True}
