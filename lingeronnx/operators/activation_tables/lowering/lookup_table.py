"""Elementwise functions as lookup tables: iqTable, one entry per input integer.

    entry[x] = sat(floor(f((x - zero_point_x) / scale_x) * scale_o + 1/2) + zero_point_o)

f is evaluated in float64; NaN becomes 0 and infinities saturate. It is a standard operator,
arithmetic with a scalar constant, or a model-local function into which a pass fused a composition,
such as GELU.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....common.errors import InternalError
from ....ir import float_ops, ir
from ....targets import Target
from ... import integer_ops
from ..._lowering import Op, Scaling, UnaryFunction, share_no_scales
from ...lowering_context import LoweringContext

__all__ = [
    "LEAKY_RELU_TABLE",
    "TABLE",
    "TABLE_SCALE_CONSTRAINTS",
    "Table",
    "evaluate_float_node",
    "evaluate_node",
    "is_unary_function",
]


def evaluate_node(node: ir.Node, *values: np.ndarray) -> np.ndarray:
    """Evaluate the standard elementwise operator of `node` on float64 `values`, one per input.

    Attributes are read from the node. Raises an InternalError if it is not elementwise.
    """
    if node.op_type in float_ops.BINARY_FUNCTIONS:
        return float_ops.BINARY_FUNCTIONS[node.op_type](*values)
    if node.op_type == "PRelu":
        x, slope = values
        return np.where(x < 0, slope * x, x)
    if node.op_type == "Clip" and len(values) == 3:
        clipped: np.ndarray = np.clip(*values)
        return clipped
    if node.op_type not in float_ops.UNARY_FUNCTIONS:
        raise InternalError(f"{node.op_type} is not an elementwise function")
    return float_ops.UNARY_FUNCTIONS[node.op_type](
        values[0], lambda name, default: ir.get_attr(node, name, default)
    )


def _evaluate_function(body: ir.Function, x: np.ndarray) -> np.ndarray:
    """Return the output of the model-local function `body` for `x`, its only input.

    The body's nodes are Constant and elementwise operators, evaluated in order in float64.
    """
    arrays = {id(body.inputs[0]): x}
    for node in body:
        if node.op_type == "Constant":
            result = np.asarray(ir.get_attr(node, "value"), np.float64)
        else:
            result = evaluate_node(node, *(arrays[id(value)] for value in node.inputs))
        arrays[id(node.outputs[0])] = result
    return arrays[id(body.outputs[0])]


def evaluate_float_node(model: ir.Model, node: ir.Node, x: np.ndarray) -> np.ndarray:
    """Evaluate the elementwise float `node` of `model` on real values `x`, in float64.

    `x` stands for each input that is not constant; constants are scalars. Domain errors give NaN or
    infinity without a warning.
    """
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        if node.domain == ir.FUNCTION_DOMAIN:
            return _evaluate_function(model.functions[node.domain, node.op_type, ""], x)
        operands = []
        for value in node.inputs:
            constant = ir.const_value(value)
            operands.append(x if constant is None else constant.astype(np.float64).reshape(()))
        return evaluate_node(node, *operands)


def is_unary_function(node: ir.Node) -> bool:
    """Whether the float `node` is an elementwise function of its only input."""
    if len(node.inputs) != 1:
        return False
    if not node.domain:
        return node.op_type in float_ops.UNARY_FUNCTIONS
    return (node.domain, ir.base_op_type(node)) in Table.floats


def _make_table_function(model: ir.Model, node: ir.Node, target: Target) -> UnaryFunction | None:
    """Return the function that a table of `node` evaluates, or None on targets without iqTable.

    NaN and infinity are replaced by finite numbers.
    """
    if not target.can_run(integer_ops.TABLE.name):
        return None
    return lambda x: np.nan_to_num(evaluate_float_node(model, node, x))


def _becomes_table(node: ir.Node, target: Target) -> bool:
    """Whether `node` becomes a lookup table on `target`, so that it may have zero points."""
    return target.can_run(integer_ops.TABLE.name) and integer_ops.TABLE.supports_zero_points


#: Requirements of elementwise functions that become tables if the target has tables.
TABLE_SCALE_CONSTRAINTS = Scaling(
    factor_behavior="fixed",
    shared_scales=share_no_scales,
    real_function=_make_table_function,
    supports_zero_points=_becomes_table,
)


class Table(Op):
    """Any elementwise function: iqTable."""

    integer_op = integer_ops.TABLE
    floats: tuple[tuple[str, str], ...] = (
        *(
            ("", kind)
            for kind in float_ops.UNARY_FUNCTIONS
            if kind not in ("Relu", "Sigmoid", "Tanh")
        ),
        *(("", kind) for kind in float_ops.BINARY_FUNCTIONS if kind not in ("Max", "Min")),
        ("", "PRelu"),
        *((ir.FUNCTION_DOMAIN, kind) for kind in ("Gelu", "HardSwish", "Mish", "Silu", "Curve")),
    )
    scale_constraints = TABLE_SCALE_CONSTRAINTS

    def data(self, node: ir.Node) -> list[int]:
        """Return [index of the first operand of `node` that is not constant]; [0] without one."""
        for index, value in enumerate(node.inputs):
            if ir.const_value(value) is None:
                return [index]
        return [0]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why `node` cannot become a lookup table, or None if it can.

        It needs one computed operand; constants beside it must have a single value and no higher
        rank. A node of one input is accepted.
        """
        if len(node.inputs) < 2:
            return None
        constants = [array for value in node.inputs if (array := ir.const_value(value)) is not None]
        if len(constants) != len(node.inputs) - 1:
            return f"{node.op_type} of two computed tensors has no integer form"
        rank = len(ir.get_shape(node.inputs[self.data(node)[0]]) or ())
        if any(array.size != 1 or array.ndim > rank for array in constants):
            return f"{node.op_type} with a constant of several values has no integer form"
        return None

    def explain_unavailable(self, node: ir.Node, target: Target) -> str:
        """Return the text that `target` lacks the operator of `node`.

        For sums, products and the like with a constant (AFFINE_OPS), the remedy is added: a
        BatchNormalization between layers.
        """
        reason = f"{target.name} has no operator for {ir.display_op_type(node)}"
        is_reciprocal = node.op_type == "Div" and ir.const_value(node.inputs[0]) is not None
        if node.op_type not in float_ops.AFFINE_OPS or is_reciprocal:
            return reason
        return f"{reason} with a constant; between layers, use a BatchNormalization"

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit iqTable with the output integer of each input integer (8 or 16 bits) as constant.

        The entries are evaluated in float64, rounded half up and clipped to the output format; NaN
        is 0. Entry dtype is int8 or int16 by the bits of the output.
        """
        from simulator.kernels import all_integers

        index = self.data(node)[0]
        x, o = context.input_qparams(node, index), context.output_qparams(node)
        scale = float(np.float32(o.scale))
        integers = all_integers(8 if x.bits <= 8 else 16) - x.zero_point
        outputs = evaluate_float_node(context.model, node, integers / float(np.float32(x.scale)))
        finite = np.nan_to_num(outputs * scale, nan=0.0, posinf=2.0**40, neginf=-(2.0**40))
        entries = np.clip(np.floor(finite + 0.5) + o.zero_point, o.low, o.high)
        table = context.array(
            f"{node.outputs[0].name}_table", entries.astype(np.int8 if o.bits <= 8 else np.int16)
        )
        attrs = {
            "function": ir.base_op_type(node),
            **integer_ops.TABLE.make_qparams_attributes(x, o),
        }
        context.emit(
            integer_ops.TABLE, node, [context.get_integer_input(node, index), table], attrs
        )


class LeakyReluTable(Table):
    """LeakyRelu, and PRelu with one slope, as a table; positive factors pass through."""

    floats = (("", "LeakyRelu"), ("", "PRelu"))
    passes_channel_factors = True
    scale_constraints = replace(TABLE_SCALE_CONSTRAINTS, factor_behavior="passes")


TABLE, LEAKY_RELU_TABLE = Table(), LeakyReluTable()
