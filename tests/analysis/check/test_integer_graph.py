"""What breaks a platform's limits: float graphs before and after --fit, integer graphs as they
are.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import lingeronnx as lo
from lingeronnx.analysis.check import rules
from lingeronnx.analysis.check.integer_graph import check_integer
from lingeronnx.ir import ir
from lingeronnx.luna import VENUS
from lingeronnx.operators.integer_ops import INTEGER_OPS
from lingeronnx.operators.lowerings import format_limit_rule
from lingeronnx.targets import PLATFORMS
from tests.each import check_each

GOLDEN = Path(__file__).parents[2] / "golden" / "luna"


# ---- integer graphs --------------------------------------------------------------------------


def test_what_quantize_writes_is_clean(integer):
    assert list(lo.check(ir.from_proto(onnx.ModelProto.FromString(integer)))) == []


def attr(op_type, name, value, which=0):
    """Return a change that sets (None: deletes) an attribute."""

    def change(proto):
        node = [n for n in proto.graph.node if n.op_type == op_type][which]
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(
            kept + ([] if value is None else [onnx.helper.make_attribute(name, value)])
        )

    return change


def rename(op_type, new, domain="thinker"):
    def change(proto):
        node = next(n for n in proto.graph.node if n.op_type == op_type)
        node.op_type, node.domain = new, domain

    return change


def int16_bias(proto):
    node = next(n for n in proto.graph.node if n.op_type == "LinearInt")
    old = next(t for t in proto.graph.initializer if t.name == node.input[2])
    old.CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(old).astype(np.int16), old.name)
    )


def two_samples(proto):
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    for value in proto.graph.value_info:
        value.type.tensor_type.shape.dim[0].dim_value = 2


def float_between(proto):
    """A Dequant, an Erf and a Quant in the middle."""
    index, node = next((i, n) for i, n in enumerate(proto.graph.node) if n.op_type == "Relu")
    made = [
        onnx.helper.make_node(
            "Dequant", [node.input[0]], ["d"], "dq", domain="thinker", scale_o=16.0
        ),
        onnx.helper.make_node("Erf", ["d"], ["e"], "erf"),
        onnx.helper.make_node("Quant", ["e"], ["q"], "qu", domain="thinker", scale_x=16.0),
    ]
    node.input[0] = "q"
    nodes = [*proto.graph.node[:index], *made, *proto.graph.node[index:]]
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)


CHANGES = {
    "check_power_of_two_scales": (attr("Quant", "scale_x", 12.0), "scale_x = 12"),
    "check_scale_agreement": (attr("LinearInt", "scale_x", 2.0**-3), "read at 0.125"),
    "check_right_shift": (attr("LinearInt", "scale_o", 2.0**20), "scale_o = 2^20, at most"),
    "check_quant_width": (attr("Quant", "data_bits", 16), "data_bits = 16"),
    "check_average_pool_scale": (attr("AvgPool2dInt", "scale_o", 2.0**-3), "scale_o = 0.125"),
    "check_byte_widths": (attr("Conv2dInt", "o_bits", 16), "o_bits = 16"),
    "check_bias_type": (int16_bias, "int16"),
    "check_single_sample": (two_samples, "batch 2"),
    "check_operator_support": (rename("Relu", "Clip", ""), "Clip does not load"),
    "check_chip_name": (attr("Conv2dInt", "platform", "arcs"), "arcs"),
}


def test_integer_rules(integer):
    """Each rule finds the graph that breaks it, with its text, value and remedy."""

    def check(name):
        change, value = CHANGES[name]
        proto = onnx.ModelProto.FromString(integer)
        change(proto)
        rule, remedy = format_limit_rule(getattr(rules, name), VENUS)
        found = [v for v in lo.check(ir.from_proto(proto), platform="venus") if v.rule == rule]
        assert found
        assert value in found[0].value
        assert found[0].remedy == remedy

    check_each(check, CHANGES)


OTHERS = [
    (attr("Conv2dInt", "scale_w", None), "attribute scale_w is present; here it is missing"),
    (attr("Conv2dInt", "platform_quant", None), "attribute platform_quant (luna_quant) is present"),
    (rename("iqAdd", "iqMystery"), "unknown operator iqMystery"),
    (rename("Relu", "Erf", ""), "a float operator reads real numbers; here it reads the integers"),
    (attr("Conv2dInt", "kernel_shape", [7, 3]), "kernel height and width must not exceed 5"),
    (attr("Quant", "scale_x", -1.0), "attributes have valid values"),
    (
        float_between,
        "no float operator is between the first Quant and the last Dequant; here Erf is",
    ),
]


def test_integer_graphs(integer):
    def check(change, text):
        proto = onnx.ModelProto.FromString(integer)
        change(proto)
        assert any(text in line for line in lo.check(ir.from_proto(proto)).lines())

    check_each(check, OTHERS)


def test_sizes_are_found_without_value_info(integer):
    """The packer's limits need the sizes of tensors, which vendor graphs do not state."""
    proto = onnx.ModelProto.FromString(integer)
    del proto.graph.value_info[:]
    for dim, size in zip(
        proto.graph.input[0].type.tensor_type.shape.dim, (1, 4, 8000, 8000), strict=True
    ):
        dim.dim_value = size
    attr("AvgPool2dInt", "kernel_shape", [2, 2])(proto)
    report = lo.check(ir.from_proto(proto))
    assert any("bytes" in v.value for v in [*report, *report.findings])


# ---- measured faults -------------------------------------------------------------------------


def test_every_measured_fault_is_reported():
    """Law: a graph whose vector was found wrong on the executor is never called clean."""
    cases = json.loads((GOLDEN / "index.json").read_text())["cases"]
    faulty = [case for case in cases if case.get("executor_fault")]
    assert faulty
    for case in faulty:
        assert len(lo.check(GOLDEN / f"{case['name']}.onnx", platform=case["platform"])), case[
            "name"
        ]


@pytest.mark.sweep
@pytest.mark.parametrize("form", INTEGER_OPS, ids=lambda form: form.name)
def test_half_a_node_is_judged(form):
    """A node that lacks inputs or sizes, or has a number where a list belongs, is no crash of the
    check.
    """
    scalars = {"f": 1.0, "i": 1, "s": ""}
    needed = {a.name: scalars.get(a.kind, [1, 1]) for a in form.attributes if a.is_required}
    numbers = {a.name: 3 for a in form.attributes if a.kind == "ints"}
    for attrs, shape, count in itertools.product(
        (needed, {**needed, **numbers}),
        (None, [], [1], [1, 4], [1, 2, 6, 6], ["N", "C", "H", "W"]),
        range(4),
    ):
        values = [
            helper.make_tensor_value_info(f"x{i}", TensorProto.INT8, shape) for i in range(count)
        ]
        node = helper.make_node(
            form.name, [v.name for v in values], ["y"], name="n", domain=form.domain, **attrs
        )
        graph = helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name="y")])
        opsets = [helper.make_opsetid("", 12), helper.make_opsetid("thinker", 1)]
        try:
            model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=7))
        except (
            lo.ModelError
        ) as error:  # a standard operator is held against its schema when it is read
            if "the file is malformed" not in str(error):
                raise
            continue
        for target in PLATFORMS:
            assert check_integer(model, target).kind == "integer"
