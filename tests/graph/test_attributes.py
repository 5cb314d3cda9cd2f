"""Attributes are read as what they are told to be, and have the types of their operators when a
file is read; what is
known of a tensor is asked for by name.
"""

import numpy as np
import onnx
import onnx_ir as oir
import pytest
from onnx import helper

from lingeronnx.common.errors import InternalError, ModelError
from lingeronnx.ir import ir
from lingeronnx.ir.attributes import (
    check_attributes,
    get_int,
    get_ints,
    get_number,
    get_numbers,
    get_scales,
    node_label,
)

ATTRS = {
    "bits": 8,
    "scale": 0.5,
    "pads": (1, 2),
    "none": None,
    "empty": [],
    "text": "abc",
    "names": ["a"],
    "zero": 0,
}


def test_one_number():
    assert (get_number(ATTRS, "scale"), get_int(ATTRS, "bits"), get_int(ATTRS, "zero", 7)) == (
        0.5,
        8,
        0,
    )
    assert [get_int(ATTRS, key, 3) for key in ("none", "absent")] == [3, 3]


def test_lists():
    assert get_numbers(ATTRS, "pads") == get_ints(ATTRS, "pads") == [1, 2]
    assert [get_ints(ATTRS, key, range(2)) for key in ("none", "absent", "empty")] == [[0, 1]] * 3
    assert (get_scales(ATTRS, "scale"), get_scales(ATTRS, "pads")) == (0.5, [1, 2])


@pytest.mark.parametrize("read", (get_number, get_int, get_numbers, get_ints, get_scales))
@pytest.mark.parametrize("key", ("text", "names", "none", "absent"))
def test_another_kind_is_refused(read, key):
    with pytest.raises(ModelError, match=f"attribute {key} is .* must be a"):
        read(ATTRS, key)


def test_what_is_not_finite_is_no_whole_number():
    with pytest.raises(ModelError, match="attribute bits is inf; it must be an integer"):
        get_int({"bits": float("inf")}, "bits")
    with pytest.raises(ModelError, match="attribute pads is nan"):
        get_ints({"pads": [1, float("nan")]}, "pads")


def test_a_list_is_no_number():
    with pytest.raises(ModelError, match="must be a number"):
        get_number(ATTRS, "pads")
    with pytest.raises(ModelError, match="must be a list"):
        get_numbers(ATTRS, "bits")


def test_what_must_be_known():
    node = oir.node("Relu", [oir.Value(name="x", shape=oir.Shape(["N", 2]))])
    x, y = node.inputs[0], node.outputs[0]
    y.name = "y"
    held = oir.Value(name="c", const_value=oir.tensor(np.arange(3)))
    assert (ir.require_shape(x), ir.require_producer(y), ir.require_const_value(held).tolist()) == (
        (None, 2),
        node,
        [0, 1, 2],
    )
    for ask, value, name in (
        (ir.require_shape, y, "y"),
        (ir.require_producer, x, "x"),
        (ir.require_const_value, x, "x"),
    ):
        with pytest.raises(InternalError, match=name):
            ask(value)
        with pytest.raises(InternalError, match="absent"):
            ask(None)


# ---- types in a file -----------------------------------------------------------------------------


def model(node, opset=13):
    """Return a model of one node that reads x and writes y."""
    ends = [helper.make_tensor_value_info(name, 1, [1, 2]) for name in "xy"]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("thinker", 1)]
    return helper.make_model(
        helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=opsets
    )


def node(kind, domain="", **attributes):
    return helper.make_node(kind, ["x"], ["y"], name="n", domain=domain, **attributes)


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (node("Softmax", axis=[1]), "'axis' must be of type INT"),
        (node("GRU", layout=["a", "b"]), "'layout' must be of type INT"),  # of opset 14
        (node("Squeeze", axes=1), "'axes' must be of type INTS"),  # up to opset 11
        (node("Relu", platform=[1, 2]), "'platform' must be of type STRING"),
        (node("Quant", "thinker", platform=3), "'platform' must be of type STRING"),
        (node("Quant", "thinker", quant_mode=0.5), "'quant_mode' must be of type STRING"),
        (
            node("Quant", "thinker", anything=["a", "b"]),
            "'anything' is of type STRINGS; it must be a number, a list",
        ),
        (
            node("iqAdd", "linger", scale_x=helper.make_tensor("t", 1, [1], [2.0])),
            "'scale_x' is of type TENSOR",
        ),
    ],
)
def test_another_type(made, what):
    """Each is one line that names the node and the attribute."""
    with pytest.raises(ModelError, match=f"n: its attribute {what}"):
        ir.from_proto(model(made))


@pytest.mark.parametrize(
    "made",
    [
        node("Softmax", axis=1),
        node("Relu", platform="venus", unknown=[1.5]),
        node("Nothing", axis="x"),
        node(
            "Quant",
            "thinker",
            scale_x=2.0,
            data_bits=8,
            pads=[1, 2],
            floats=[1.0],
            platform="venus",
        ),
    ],
)
def test_right_types(made):
    """Types of the operator's own, and attributes that nobody knows, pass."""
    check_attributes(model(made))


def test_inner_nodes():
    """Nodes of branches are looked at, too."""
    outer = node("If")
    branch = helper.make_graph(
        [node("Softmax", axis=[1])], "b", [], [helper.make_tensor_value_info("y", 1, None)]
    )
    outer.attribute.append(helper.make_attribute("then_branch", branch))
    with pytest.raises(ModelError, match="Softmax n: its attribute 'axis'"):
        check_attributes(model(outer))


def test_the_opset_of_the_model_counts():
    """Cast's `to` was a text once."""
    check_attributes(model(node("Cast", to="FLOAT"), opset=1))
    with pytest.raises(ModelError, match="'to' must be of type INT"):
        check_attributes(model(node("Cast", to="FLOAT")))


def test_place():
    """Without a name a node is called after its output."""
    assert node_label(onnx.NodeProto(op_type="Relu", output=["y"])) == "Relu y"
    assert node_label(onnx.NodeProto(op_type="Relu")) == "Relu without a name"
