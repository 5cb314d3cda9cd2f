"""Attributes are read as what they are told to be; what is known of a tensor is asked for by name."""

import numpy as np
import onnx_ir as oir
import pytest

from lingeronnx.errors import InternalError, ModelError
from lingeronnx.graph import ir
from lingeronnx.graph.attributes import integer, integers, number, numbers, scales

ATTRS = {"bits": 8, "scale": 0.5, "pads": (1, 2), "none": None, "empty": [], "text": "abc", "names": ["a"], "zero": 0}


def test_one_number():
    assert (number(ATTRS, "scale"), integer(ATTRS, "bits"), integer(ATTRS, "zero", 7)) == (0.5, 8, 0)
    assert [integer(ATTRS, key, 3) for key in ("none", "absent")] == [3, 3]


def test_lists():
    assert numbers(ATTRS, "pads") == integers(ATTRS, "pads") == [1, 2]
    assert [integers(ATTRS, key, range(2)) for key in ("none", "absent", "empty")] == [[0, 1]] * 3
    assert (scales(ATTRS, "scale"), scales(ATTRS, "pads")) == (0.5, [1, 2])


@pytest.mark.parametrize("read", (number, integer, numbers, integers, scales))
@pytest.mark.parametrize("key", ("text", "names", "none", "absent"))
def test_another_kind_is_refused(read, key):
    with pytest.raises(ModelError, match=f"attribute {key} is .* must be a"):
        read(ATTRS, key)


def test_a_list_is_no_number():
    with pytest.raises(ModelError, match="must be a number"):
        number(ATTRS, "pads")
    with pytest.raises(ModelError, match="must be a list"):
        numbers(ATTRS, "bits")


def test_what_must_be_known():
    node = oir.node("Relu", [oir.Value(name="x", shape=oir.Shape(["N", 2]))])
    x, y = node.inputs[0], node.outputs[0]
    y.name = "y"
    held = oir.Value(name="c", const_value=oir.tensor(np.arange(3)))
    assert (ir.known_shape(x), ir.maker(y), ir.constant(held).tolist()) == ((None, 2), node, [0, 1, 2])
    for ask, value, name in ((ir.known_shape, y, "y"), (ir.maker, x, "x"), (ir.constant, x, "x")):
        with pytest.raises(InternalError, match=name):
            ask(value)
        with pytest.raises(InternalError, match="absent"):
            ask(None)
