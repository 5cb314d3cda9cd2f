"""SiLU and GELU: a table where there is one, else put together from what the chips have.

    SiLU  x * sigmoid(x)
    GELU  x * sigmoid(1.702 x)      within 0.021 of the real one, less than a count where the range
    is 4 and more

With a right iqSigmoid: BatchNorm2dInt for the factor, iqSigmoid, iqMul. With GluInt alone: a
LinearInt writes x and the factor times x side by side, GluInt multiplies. The gate is held at a
scale that leaves sigmoid's range its room.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ... import formats
from ...formats.activation_tables import Q7
from ...graph import ir
from ...lowering import LoweringContext
from ...plan import Affine
from ...plan.power_of_two import floor_power_of_two
from ...targets import Target
from .._base import Op
from ..scale_constraints import ExponentLookup
from .lookup_table import TABLE, TABLE_SCALE_CONSTRAINTS
from .sigmoid_tanh import SIGMOID, check_glu_axis

__all__ = ["GatedActivation", "gated_product_max_exponent"]

#: Sigmoid is within half a count of Q7 of its end from here on.
_SIGMOID_INPUT_RANGE = 5.0
_WEIGHT_QPARAMS = Affine(2.0**6)


def _gate_factor(node: ir.Node) -> float:
    """Return what x is multiplied by in the gate."""
    kind = ir.base_op_type(node)
    return (
        1.702
        if kind == "Gelu"
        else float(ir.get_attr(node, "alpha", 1.0))
        if kind == "Swish"
        else 1.0
    )


def gated_product_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """The product with a gate of 7 fractional bits is shifted right."""
    return exponent(ir.input_name(node)) + 7


class GatedActivation(Op):
    """A number times the sigmoid of a multiple of itself."""

    integer_op = formats.MUL
    composition_name = "SiLU, GELU (composed)"
    floats = (
        ("", "Gelu"),
        ("", "Swish"),
        (ir.FUNCTION_DOMAIN, "Gelu"),
        (ir.FUNCTION_DOMAIN, "Silu"),
    )
    scale_constraints = replace(
        TABLE_SCALE_CONSTRAINTS, max_output_exponent=gated_product_max_exponent
    )
    constraints = (check_glu_axis,)
    may_emit_reshape = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """All sizes known; the factor fits a weight."""
        shape = ir.get_shape(node.inputs[0])
        if not shape or len(shape) < 2 or any(d is None for d in shape[1:]):
            return "its shape is not known before the run"
        return None if 0 < _gate_factor(node) < 1.98 else "its factor is not between 0 and 1.98"

    def is_available(self, target: Target) -> bool:
        """Whether the platform has a sigmoid."""
        return SIGMOID.is_available(target)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit what the platform has for it."""
        if context.target.can_run(TABLE.name):
            TABLE.lower(node, context)
        elif SIGMOID.has_exact_table(context.target):
            self._emit_sigmoid_product(node, context)
        else:
            self._emit_glu(node, context)

    def _emit_sigmoid_product(self, node: ir.Node, low: LoweringContext) -> None:
        """Emit BatchNorm2dInt, iqSigmoid and iqMul."""
        x, o, factor = low.input_qparams(node, 0), low.output_qparams(node), _gate_factor(node)
        shape, value = (
            [int(d or 1) for d in ir.require_shape(node.outputs[0])],
            low.get_integer_input(node, 0),
        )
        inner, q = value, x
        if factor != 1.0:
            q = _make_gate_qparams(x, factor)
            inner = _emit_scaled_input(node, low, value, shape, x, q, factor)
        gate = SIGMOID.emit_intermediate(node, low, inner, q, shape)
        low.emit(formats.MUL, node, [value, gate], formats.MUL.scales(x, Q7, o))

    def _emit_glu(self, node: ir.Node, low: LoweringContext) -> None:
        """Emit LinearInt and GluInt."""
        x, o, factor = low.input_qparams(node, 0), low.output_qparams(node), _gate_factor(node)
        shape = list(ir.require_shape(node.outputs[0]))
        count, q = int(shape[-1] or 1), _make_gate_qparams(x, factor)
        eye = np.eye(count)
        weight = _WEIGHT_QPARAMS.integers(np.concatenate([eye, eye * factor]))
        base = f"{ir.output_name(node)}_pair"
        parameters = [
            low.array(f"{base}_weight", weight),
            low.array(f"{base}_bias", np.zeros(2 * count, np.int32)),
        ]
        shape[-1] = 2 * count
        pair = low.emit_intermediate(
            formats.LINEAR,
            node,
            "pair",
            [low.get_integer_input(node, 0), *parameters],
            formats.LINEAR.scales(x, _WEIGHT_QPARAMS, q),
            shape,
            q,
        )
        axis = len(shape) - 1  # counted from -1, too little is planned
        low.emit(
            formats.GLU,
            node,
            [pair],
            {"dim": axis, "o_bits": o.bits, "scale_x": q.scale, "scale_o": o.scale},
        )


def _make_gate_qparams(x: Affine, factor: float) -> Affine:
    """Return how `factor` times a tensor held as `x` is held, so that sigmoid's range fits."""
    wanted = min(_SIGMOID_INPUT_RANGE, factor * (x.high + 1) / x.scale)
    return Affine(min(x.scale, floor_power_of_two((x.high + 1) / wanted)))


def _emit_scaled_input(
    node: ir.Node,
    low: LoweringContext,
    value: ir.Value,
    shape: list[int],
    x: Affine,
    o: Affine,
    factor: float,
) -> ir.Value:
    """Emit `value` times `factor` as a BatchNorm2dInt on four axes and return it."""
    base, image = ir.output_name(node), [*shape, 1, 1][:4]
    if len(shape) > 4:
        image = [*shape[:3], math.prod(shape[3:])]
    if image != shape:
        target = low.array(f"{base}_image_shape", _reshape_target(image, low))
        value = low.emit_intermediate(formats.RESHAPE, node, "image", [value, target], {}, image, x)
    factors = _WEIGHT_QPARAMS.integers(np.full(image[1], factor))
    parameters = [
        low.array(f"{base}_factor", factors),
        low.array(f"{base}_offset", np.zeros(image[1], np.int32)),
    ]
    attrs = formats.BATCH_NORM2D.scales(x, _WEIGHT_QPARAMS, o)
    value = low.emit_intermediate(
        formats.BATCH_NORM2D, node, "inner", [value, *parameters], attrs, image, o
    )
    if image != shape:
        value = low.emit_intermediate(
            formats.RESHAPE,
            node,
            "inner_back",
            [value, low.array(f"{base}_inner_shape", _reshape_target(shape, low))],
            {},
            shape,
            o,
        )
    return value


def _reshape_target(shape: list[int], low: LoweringContext) -> np.ndarray:
    return np.array([1 if low.target.single_sample else -1, *shape[1:]], np.int64)
