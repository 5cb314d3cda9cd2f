"""Attributes have the types of their operators when a file is read: those of any opset, of ours, and of subgraphs."""

import onnx
import pytest
from onnx import helper

from lingeronnx.errors import ModelError
from lingeronnx.graph import ir
from lingeronnx.graph.attribute_types import check_attributes, place


def model(node, opset=13):
    """Return a model of one node that reads x and writes y."""
    ends = [helper.make_tensor_value_info(name, 1, [1, 2]) for name in "xy"]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("thinker", 1)]
    return helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=opsets)


def node(kind, domain="", **attributes):
    return helper.make_node(kind, ["x"], ["y"], name="n", domain=domain, **attributes)


@pytest.mark.parametrize(("made", "what"), [
    (node("Softmax", axis=[1]), "'axis' is of another type than INT"),
    (node("GRU", layout=["a", "b"]), "'layout' is of another type than INT"),  # of opset 14
    (node("Squeeze", axes=1), "'axes' is of another type than INTS"),  # up to opset 11
    (node("Relu", platform=[1, 2]), "'platform' is of another type than STRING"),
    (node("Quant", "thinker", platform=3), "'platform' is of another type than STRING"),
    (node("Quant", "thinker", quant_mode=0.5), "'quant_mode' is of another type than STRING"),
    (node("Quant", "thinker", anything=["a", "b"]), "'anything' is of type STRINGS; it must be a number, a list"),
    (node("iqAdd", "linger", scale_x=helper.make_tensor("t", 1, [1], [2.0])), "'scale_x' is of type TENSOR"),
])  # fmt: skip
def test_another_type(made, what):
    """Each is one line that names the node and the attribute."""
    with pytest.raises(ModelError, match=f"n: its attribute {what}"):
        ir.from_proto(model(made))


@pytest.mark.parametrize("made", [
    node("Softmax", axis=1), node("Relu", platform="venus", unknown=[1.5]), node("Nothing", axis="x"),
    node("Quant", "thinker", scale_x=2.0, data_bits=8, pads=[1, 2], floats=[1.0], platform="venus"),
])  # fmt: skip
def test_right_types(made):
    """Types of the operator's own, and attributes that nobody knows, pass."""
    check_attributes(model(made))


def test_inner_nodes():
    """Nodes of branches are looked at, too."""
    outer = node("If")
    branch = helper.make_graph([node("Softmax", axis=[1])], "b", [], [helper.make_tensor_value_info("y", 1, None)])
    outer.attribute.append(helper.make_attribute("then_branch", branch))
    with pytest.raises(ModelError, match="Softmax n: its attribute 'axis'"):
        check_attributes(model(outer))


def test_the_opset_of_the_model_counts():
    """Cast's `to` was a text once."""
    check_attributes(model(node("Cast", to="FLOAT"), opset=1))
    with pytest.raises(ModelError, match="'to' is of another type than INT"):
        check_attributes(model(node("Cast", to="FLOAT")))


def test_place():
    """Without a name a node is called after its output."""
    assert place(onnx.NodeProto(op_type="Relu", output=["y"])) == "Relu y"
    assert place(onnx.NodeProto(op_type="Relu")) == "Relu without a name"
