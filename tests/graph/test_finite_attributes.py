"""Float attributes of standard operators that are NaN or infinite are refused when a file is read."""

import math

import onnx
import pytest
from onnx import helper

import lingeronnx as lo
from lingeronnx.ir.attributes import check_attributes
from tests.each import check_each

_FLOAT_TYPES = (onnx.defs.OpSchema.AttrType.FLOAT, onnx.defs.OpSchema.AttrType.FLOATS)
#: Attributes in which an infinity has a meaning.
_MAY_BE_INFINITE = {
    ("Clip", "min"),
    ("Clip", "max"),
    ("Pad", "value"),
    ("Resize", "extrapolation_value"),
    ("LSTM", "clip"),
    ("GRU", "clip"),
    ("RNN", "clip"),
}


def model_with(op_type, name, value, in_function=False):
    """Return a model with one node that has the attribute."""
    node = helper.make_node(op_type, ["x"], ["y"], **{name: value})
    info = [helper.make_tensor_value_info(n, 1, None) for n in "xy"]
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("f", 1)]
    if not in_function:
        return helper.make_model(helper.make_graph([node], "g", [info[0]], [info[1]]))
    function = helper.make_function("f", "F", ["x"], ["y"], [node], opsets[:1])
    call = helper.make_node("F", ["x"], ["y"], domain="f")
    graph = helper.make_graph([call], "g", [info[0]], [info[1]])
    return helper.make_model(graph, functions=[function], opset_imports=opsets)


def float_attributes():
    """Yield (operator, attribute, whether a list) of all standard operators in all opsets."""
    found = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        for name, attribute in schema.attributes.items():
            if schema.domain == "" and attribute.type in _FLOAT_TYPES:
                found[schema.name, name] = attribute.type == _FLOAT_TYPES[1]
    no_longer_float = ("Constant", "GlobalLpPool", "LpPool")
    return [(*key, flag) for key, flag in sorted(found.items()) if key[0] not in no_longer_float]


def test_every_float_attribute_of_every_standard_operator():
    """NaN is refused, an infinity where it has no meaning; the message names node and attribute."""

    def check(op_type, name, is_list):
        for value in (math.nan, math.inf, -math.inf):
            model = model_with(op_type, name, [1.0, value] if is_list else value)
            if math.isinf(value) and (op_type, name) in _MAY_BE_INFINITE:
                check_attributes(model)
                continue
            with pytest.raises(lo.ModelError, match=f"{op_type} y: .*'{name}' is -?(nan|inf)"):
                check_attributes(model)
        check_attributes(model_with(op_type, name, [0.5] if is_list else 0.5))

    attributes = float_attributes()
    assert len(attributes) > 40
    check_each(check, attributes)


def test_attributes_in_functions():
    """A function of the model is read, too."""
    with pytest.raises(lo.ModelError, match="LeakyRelu y: .*'alpha' is nan"):
        check_attributes(model_with("LeakyRelu", "alpha", math.nan, in_function=True))


def test_a_constant_may_be_infinite():
    """Masks are."""
    check_attributes(model_with("Constant", "value_float", -math.inf))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_commands_refuse_a_leaky_relu_without_a_slope(value):
    """Where no data are needed, too."""
    model = model_with("LeakyRelu", "alpha", value)
    with pytest.raises(lo.ModelError, match="alpha"):
        lo.check(model, platform="venus")
