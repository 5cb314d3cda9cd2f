"""Functions of one number as tables: iqTable, one entry per input integer.

    entry[x] = sat(floor(f((x - zero_point_x) / scale_x) * scale_o + 1/2) + zero_point_o)

f in float64; what is not a number counts as 0, infinities saturate.

f is a standard operator, one of arithmetic with a constant of one value, or a composition that
`passes.curves` put into a model-local function (GELU as exporters write it, for instance).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ... import formats
from ...errors import InternalError
from ...graph import ir, operators
from ...lowering import LoweringContext
from ...targets import Target
from .._base import Op
from ..scale_constraints import Scaling, UnaryFunction, share_no_scales

__all__ = [
    "LEAKY_RELU_TABLE",
    "TABLE",
    "TABLE_SCALE_CONSTRAINTS",
    "Table",
    "evaluate_float_node",
    "evaluate_node",
]


def evaluate_node(node: ir.Node, *values: np.ndarray) -> np.ndarray:
    """Return what the standard operator `node` computes from float64 `values`."""
    if node.op_type in operators.BINARY_FUNCTIONS:
        return operators.BINARY_FUNCTIONS[node.op_type](*values)
    if node.op_type == "PRelu":
        x, slope = values
        return np.where(x < 0, slope * x, x)
    if node.op_type == "Clip" and len(values) == 3:
        return np.clip(*values)
    if node.op_type not in operators.UNARY_FUNCTIONS:
        raise InternalError(f"{node.op_type} is not a function of one number")
    return operators.UNARY_FUNCTIONS[node.op_type](
        values[0], lambda name, default: ir.get_attr(node, name, default)
    )


def _evaluate_function(body: ir.Function, x: np.ndarray) -> np.ndarray:
    """Return the value of a model-local function whose nodes are constants and operators of this
    file.
    """
    known = {id(body.inputs[0]): x}
    for node in body:
        if node.op_type == "Constant":
            known[id(node.outputs[0])] = np.asarray(ir.get_attr(node, "value"), np.float64)
        else:
            known[id(node.outputs[0])] = evaluate_node(
                node, *(known[id(value)] for value in node.inputs)
            )
    return known[id(body.outputs[0])]


def evaluate_float_node(model: ir.Model, node: ir.Node, x: np.ndarray) -> np.ndarray:
    """Return what the float `node` of `model` computes from the real numbers `x`, in float64."""
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        if node.domain == ir.FUNCTION_DOMAIN:
            return _evaluate_function(model.functions[node.domain, node.op_type, ""], x)
        values = [ir.const_value(value) for value in node.inputs]
        return evaluate_node(
            node,
            *(x if array is None else array.astype(np.float64).reshape(()) for array in values),
        )


def _make_table_function(model: ir.Model, node: ir.Node, target: Target) -> UnaryFunction | None:
    """What a table of the function holds, where the target has tables."""
    return (
        (lambda x: np.nan_to_num(evaluate_float_node(model, node, x)))
        if target.can_run(formats.TABLE.name)
        else None
    )


def _becomes_table(node: ir.Node, target: Target) -> bool:
    """Whether it becomes a table, which takes zero points."""
    return target.can_run(formats.TABLE.name) and formats.TABLE.supports_zero_points


#: Of a function of one number that becomes a table where the target has tables.
TABLE_SCALE_CONSTRAINTS = Scaling(
    factor_behavior="fixed",
    shared_scales=share_no_scales,
    real_function=_make_table_function,
    supports_zero_points=_becomes_table,
)


class Table(Op):
    """Any function of one number."""

    integer_op = formats.TABLE
    floats: tuple[tuple[str, str], ...] = (
        *(
            ("", kind)
            for kind in operators.UNARY_FUNCTIONS
            if kind not in ("Relu", "Sigmoid", "Tanh")
        ),
        *(("", kind) for kind in operators.BINARY_FUNCTIONS if kind not in ("Max", "Min")),
        ("", "PRelu"),
        *((ir.FUNCTION_DOMAIN, kind) for kind in ("Gelu", "HardSwish", "Mish", "Silu", "Curve")),
    )
    scale_constraints = TABLE_SCALE_CONSTRAINTS

    def data(self, node: ir.Node) -> list[int]:
        """The one that is not a constant."""
        return [
            next((i for i, value in enumerate(node.inputs) if ir.const_value(value) is None), 0)
        ]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """A constant operand has one value."""
        if len(node.inputs) < 2:
            return None
        arrays = [ir.const_value(value) for value in node.inputs]
        if sum(array is None for array in arrays) != 1:
            return f"{node.op_type} of two computed tensors has no integer form"
        rank = len(ir.get_shape(node.inputs[self.data(node)[0]]) or ())
        fits = all(array is None or (array.size == 1 and array.ndim <= rank) for array in arrays)
        return (
            None
            if fits
            else f"{node.op_type} with a constant of several values has no integer form"
        )

    def explain_unavailable(self, node: ir.Node, target: Target) -> str:
        """Return the reason: the platform has no table for this function, whose straight lines
        layers take up.
        """
        reason = f"{target.name} has no operator for {ir.display_op_type(node)}"
        straight = node.op_type in operators.AFFINE_OPS and (
            node.op_type != "Div" or ir.const_value(node.inputs[0]) is None
        )
        return (
            f"{reason} with a constant; between layers a BatchNormalization does it"
            if straight
            else reason
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with the table worked out."""
        from simulator.kernels import all_integers

        index = self.data(node)[0]
        x, o = context.input_qparams(node, index), context.output_qparams(node)
        scale = float(np.float32(o.scale))
        places = all_integers(8 if x.bits <= 8 else 16) - x.zero_point
        real = evaluate_float_node(context.model, node, places / float(np.float32(x.scale)))
        counts = np.floor(
            np.nan_to_num(real * scale, nan=0.0, posinf=2.0**40, neginf=-(2.0**40)) + 0.5
        )
        entries = np.clip(counts + o.zero_point, o.low, o.high)
        table = context.array(
            f"{node.outputs[0].name}_table", entries.astype(np.int8 if o.bits <= 8 else np.int16)
        )
        attrs = {"function": ir.base_op_type(node), **formats.TABLE.scales(x, o)}
        context.emit(formats.TABLE, node, [context.get_integer_input(node, index), table], attrs)


class LeakyReluTable(Table):
    """LeakyRelu, and PRelu with one slope: a positive factor passes through."""

    floats = (("", "LeakyRelu"), ("", "PRelu"))
    scale_constraints = replace(TABLE_SCALE_CONSTRAINTS, factor_behavior="passes")


TABLE, LEAKY_RELU_TABLE = Table(), LeakyReluTable()
