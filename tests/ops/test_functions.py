"""Functions of one number and masks are recognized for every operator that they go through."""

from itertools import product

import numpy as np
import pytest

from lingeronnx.common.errors import ModelError
from lingeronnx.ir import float_ops
from lingeronnx.ir.plan import Affine
from lingeronnx.operators.activation_tables import table_functions
from lingeronnx.operators.attention_masks import is_masked_at_run_time
from lingeronnx.operators.clamp.lowering import get_clip_bounds
from tests.each import check_each
from tests.passes.helpers import graph

#: Swish is recognized as Silu, HardSwish not at all.
OTHER_NAMES = {"HardSwish", "Swish"}


def test_a_mask_computed_at_run_time():
    """It is recognized behind what moves or converts it; a quotient by a large number is none."""
    operands = {"Reshape": ", s", "Squeeze": ", a", "Tile": ", one"}
    attributes = {"Cast": "<to = 1>"}
    initializers = {
        "far": np.float32(-1e4),
        "s": np.array([0, 4, 1]),
        "a": np.array([2]),
        "one": np.ones(3, np.int64),
    }

    def check(producer, mover):
        step = f"{mover}{attributes.get(mover, '')}(b{operands.get(mover, '')})"
        text = f"""g (float[N,4,1] x, float[N,4,1] m) => (float z) {{
            b = {producer}(m, far) c = {step} y = Add(x, c) z = ReduceSum(y) }}"""
        used = {name: array for name, array in initializers.items() if f", {name})" in text}
        model = graph(text, **used)
        (total,) = (node.outputs[0] for node in model.graph if node.op_type == "Add")
        assert is_masked_at_run_time(total) == (producer == "Mul")

    movers = ("Flatten", "Reshape", "Squeeze", "Tile", "Transpose", "Cast")
    check_each(check, product(("Mul", "Div"), movers))


def test_a_table_is_recognized_as_its_function():
    """Also of one that has attributes, with their defaults."""
    x, o = Affine(16.0), Affine(8.0)
    inputs = x.real(np.arange(-128, 128))

    def check(name):
        function = float_ops.UNARY_FUNCTIONS[name]
        with np.errstate(all="ignore"):
            real = function(inputs, lambda attribute, default: default) * o.scale
        table = np.clip(np.floor(np.nan_to_num(real) + 0.5), -128, 127).astype(np.int8)
        assert table_functions.identify_table_function(table, x, o, name) == name
        table[::2] ^= 3
        assert table_functions.identify_table_function(table, x, o, name) is None

    check_each(check, sorted(float_ops.UNARY_FUNCTIONS.keys() - OTHER_NAMES))


def test_a_bound_of_several_numbers_is_refused():
    model = graph(
        "g (float[N,4] x) => (float[N,4] y) { y = Clip(x, low) }", low=np.zeros(2, np.float32)
    )
    with pytest.raises(ModelError, match="Clip .*: min has 2 elements; it must be a scalar"):
        get_clip_bounds(model.graph[0])
