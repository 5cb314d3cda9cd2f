"""Layer normalisation over the last axis or axes: LayerNormInt.

``y = sat(rescale(n * gamma + beta))``, n the normalised row with 10 fractional bits; gamma int8 (int16 on some chips),
beta int32 at 2^10 * scale_w. The result does not depend on the input's scale but for epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import formats
from ..emit import Lowering
from ..formats.rows import EPSILON, FRACTION
from ..graph import ir
from ..platforms import Platform
from ..platforms.arithmetic import Norm
from ._base import Op, Tie

__all__ = ["LayerNorm"]


def norm_row(node: ir.Node, row: Platform) -> Any:
    """a normalised row has at most {row.norm.max_length} elements, more overflow 32 bits | normalise shorter rows."""
    count = math.prod(int(d or 1) for d in ir.shape(node.inputs[1]) or ())
    return f"{count} elements" if row.norm is not None and count > row.norm.max_length else None


def epsilon_fixed(node: ir.Node, row: Platform) -> Any:
    """epsilon is {row.norm.epsilon} or less (less shows only in rows that deviate by less than 0.01) | export the model
    with that eps.
    """
    epsilon = ir.attr(node, "epsilon", EPSILON)
    return f"{epsilon:g}" if row.norm is not None and epsilon > 2 * row.norm.epsilon else None


def norm_axes(node: ir.Node, row: Platform) -> Any:
    """a normalised row is the last axis or the last two | flatten the axes before."""
    count = len(ir.shape(node.inputs[1]) or ())
    return f"{count} axes" if row.norm is not None and count > row.norm.max_axes else None


class LayerNorm(Op):
    """Layer normalisation with factor and summand."""

    format = formats.LAYER_NORM
    floats = (("", "LayerNormalization"), (ir.DOMAIN, "LayerNormalization"))
    factor = "fixed"
    constraints = (norm_row, epsilon_fixed, norm_axes)

    def parameters(self, node: ir.Node) -> list[int]:
        """Return the factor, input 1."""
        return [1]

    def reject(self, node: ir.Node) -> str | None:
        """Constant factor and summand, one per element of a row within a sample."""
        gamma = ir.const(node.inputs[1])
        beta = ir.const(node.inputs[2]) if len(node.inputs) > 2 else None
        shape = ir.shape(node.inputs[0])
        if gamma is None or (beta is None and len(node.inputs) > 2 and node.inputs[2] is not None):
            return "its factor or summand is computed at run time"
        if any(v.name and (v.uses() or v.is_graph_output()) for v in node.outputs[1:]):
            return "its mean or deviation is used as well"
        if not shape or any(d is None for d in shape[1:]):
            return "its shape is not known before the run"
        axis = ir.attr(node, "axis", -1) % len(shape)
        if axis == 0:
            return "it mixes samples"
        fits = all(v is None or v.shape == shape[axis:] for v in (gamma, beta))
        return None if fits else "its factor does not have one value per element"

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """None: the output has a scale of its own."""
        return []

    def ceiling(self, node: ir.Node, exponent: Callable[[str], int]) -> int | None:
        """The shift to the output is to the right: q_o <= 10 + q_w."""
        return FRACTION + exponent(ir.read_name(node, 1))

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with integer factor and summand; the chips demand a summand."""
        x, w, o = low.read(node, 0), low.read(node, 1), low.written(node)
        attrs = formats.LAYER_NORM.scales(x, w, o)
        if low.row.norm is None:
            attrs["epsilon"] = float(ir.attr(node, "epsilon", EPSILON))
        gamma = ir.const(node.inputs[1])
        assert gamma is not None
        weight = low.weight(node, 1)
        how = low.row.computes(self.name, Norm)
        if how is not None and how.factor_bits == 16:
            weight = low.widened(weight)
        bias = low.bias(node, 2, 2.0**FRACTION * w.scale) or [
            low.integers(f"{node.outputs[0].name}_bias", np.zeros(gamma.shape), 1.0)
        ]
        low.emit(formats.LAYER_NORM, node, [low.integer(node, 0), weight, *bias], attrs)
