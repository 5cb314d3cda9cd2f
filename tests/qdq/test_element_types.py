"""Element types in quantized files: of constants, which may be text, and of tensors, which a file
may declare otherwise than they are.
"""

import contextlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo
from lingeronnx.interchange.convert import convert
from lingeronnx.ir import ir
from tests.each import check_each
from tests.robustness.case_generators import GOOD

_OTHER_TYPES = {
    "text": lambda a: np.full(a.shape, "x", object),
    "digits": lambda a: np.full(a.shape, "1", object),
    "complex": lambda a: a.astype(np.complex64),
    "bool": lambda a: a.astype(bool),
    "double": lambda a: a.astype(np.float64),
    "int64": lambda a: a.astype(np.int64),
}


def load(name):
    return onnx.load(GOOD / f"{name}.onnx")


def constants_by_operand(model):
    """Return the index of a node for each (operator, operand) that is a constant."""
    names = {tensor.name for tensor in model.graph.initializer}
    return {
        (node.op_type, index): number
        for number, node in enumerate(model.graph.node)
        for index, name in enumerate(node.input)
        if name in names
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("conv_generic_qdq", marks=pytest.mark.slow),
        "conv_zero_points_qoperator",
        pytest.param("conv_channel_qdq", marks=pytest.mark.slow),
    ],
)
def test_constants_of_any_type(name):
    """Each constant operand of each operator, in each other type: a result or one line."""
    base = load(name)
    tensors = {tensor.name: tensor for tensor in base.graph.initializer}

    def check(operand, kind):
        number, index = constants_by_operand(base)[operand], operand[1]
        model = onnx.ModelProto()
        model.CopyFrom(base)
        old = numpy_helper.to_array(tensors[model.graph.node[number].input[index]])
        model.graph.initializer.append(numpy_helper.from_array(_OTHER_TYPES[kind](old), "other"))
        model.graph.node[number].input[index] = "other"
        with contextlib.suppress(lo.LingerOnnxError):
            lo.check(model, platform="venus")

    check_each(check, [(key, kind) for key in constants_by_operand(base) for kind in _OTHER_TYPES])


def test_a_scale_that_is_text():
    """The message names the node, and says what it is."""
    for name, op_type, index in (
        ("conv_generic_qdq", "QuantizeLinear", 1),
        ("conv_generic_qdq", "DequantizeLinear", 1),
        ("conv_zero_points_qoperator", "QLinearConv", 4),
    ):
        model = load(name)
        node = next(node for node in model.graph.node if node.op_type == op_type)
        model.graph.initializer.append(numpy_helper.from_array(np.array("x", object), "text"))
        node.input[index] = "text"
        with pytest.raises(lo.ModelError, match=r"scale.* is text; it must be a positive number"):
            lo.check(model, platform="venus")


@pytest.mark.parametrize("name", ["conv_generic", "attention_venus", "lstm_venus"])
@pytest.mark.parametrize("settings", [{"to": "qdq"}, {"to": "qdq", "exact": True}], ids=str)
def test_declared_types_are_not_trusted(name, settings):
    """A conversion follows the types that operators compute, whatever a file declares."""
    base = load(name)
    expected = ir.to_proto(convert(ir.from_proto(base), **settings).graph)
    for declared in (TensorProto.INT16, TensorProto.INT32, TensorProto.FLOAT, TensorProto.STRING):
        model = onnx.ModelProto()
        model.CopyFrom(base)
        for info in model.graph.value_info:
            info.type.tensor_type.elem_type = declared
        found = ir.to_proto(convert(ir.from_proto(model), **settings).graph)
        assert list(found.graph.node) == list(expected.graph.node)
        assert list(found.graph.initializer) == list(expected.graph.initializer)
        by_name = {info.name: info.type for info in expected.graph.value_info}
        for info in found.graph.value_info:
            assert info.type == by_name.get(info.name, info.type), info.name


def test_exact_forms_need_shapes():
    """Without a shape behind a float operator, the message names the operand and the remedy."""
    model = load("attention_venus")
    del model.graph.value_info[:]
    with pytest.raises(lo.ModelError, match=r"the shape of its input '.*register_schemas"):
        convert(ir.from_proto(model), to="qdq", exact=True)


def change_attribute(model, op_type, name, value):
    """Set an attribute of the first node of an operator."""
    node = next(node for node in model.graph.node if node.op_type == op_type)
    attribute = next(a for a in node.attribute if a.name == name)
    attribute.CopyFrom(helper.make_attribute(name, value))


def test_attributes_that_onnxruntime_refuses():
    """A window of other sizes than the weight's."""
    model = load("conv_generic")
    change_attribute(model, "Conv2dInt", "kernel_shape", [7, 7])
    with pytest.raises(lo.ModelError, match=r"onnxruntime .* cannot run the converted graph.*Conv"):
        convert(ir.from_proto(model), to="qdq", exact=True)


def test_attributes_that_are_0():
    """A window without an element."""
    model = load("attention_generic")
    change_attribute(model, "AvgPool2dInt", "kernel_shape", [0, 0])
    with pytest.raises(lo.ModelError, match=r"AvgPool2dInt .*: an attribute is 0.*--override"):
        convert(ir.from_proto(model), to="qdq", exact=True)


def test_errors_of_rescales_have_a_remedy():
    """Scales that are 2^90 apart: the message says what to do."""
    model = load("conv_generic")
    change_attribute(model, "Conv2dInt", "scale_o", 2.0**100)
    with pytest.raises(lo.ModelError, match=r"Conv2dInt .*rescale ratio must .*--override"):
        convert(ir.from_proto(model), to="qdq", exact=True)
