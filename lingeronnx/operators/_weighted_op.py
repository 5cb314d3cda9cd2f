"""Base of the layers with a constant weight (input 1) and a bias (input 2).

``y = sat(rescale(sum (x - zero_point_x)*w + b) + zero_point_o)``: products of int8 in a wide
accumulator, int32 bias at scale_x*scale_w, one rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir import ir
from ..ir.attributes import Attributes, AttributeValue, get_int, get_number, get_scales
from ..ir.plan import Affine
from ..targets.arithmetic import Arithmetic, LayerArithmetic
from ._integer_op import (
    Attr,
    Format,
    make_zero_point_attributes,
    make_zero_point_spec,
    qparams_from_attributes,
)
from .float_model import FloatNodeBuilder

__all__ = ["WEIGHT_ATTRIBUTES", "WeightedIntegerOp", "accumulator_scale"]

WEIGHT_ATTRIBUTES = (
    Attr("data_bits", "i", 8),
    Attr("parameter_bits", "i", 8),
    Attr("o_bits", "i", None),
    Attr("scale_x", "f", unit="counts per unit"),
    Attr("scale_w", "f", unit="counts per unit"),
    Attr("scale_o", "f", None, unit="counts per unit"),
    make_zero_point_spec("x"),
    make_zero_point_spec("o"),
)


def accumulator_scale(attrs: Attributes, repeats: int = 1) -> float | tuple[float, ...]:
    """Return the scale of a layer's accumulator, scale_x * scale_w: one, or one per channel.

    The tuple for a list of weight scales is repeated `repeats` times, for the groups of a
    transposed convolution.
    """
    x, w = get_number(attrs, "scale_x"), get_scales(attrs, "scale_w")
    return tuple(x * scale for scale in w) * repeats if isinstance(w, list) else x * w


class WeightedIntegerOp(Format):
    """Base of layers with a weight at input 1 and a bias at input 2."""

    kind: type[Arithmetic] = LayerArithmetic
    channel_axis: int | None = 0
    allows_float_output = True
    supports_zero_points = True

    def make_qparams_attributes(
        self, input_qparams: Affine, weight_qparams: Affine, output_qparams: Affine | None
    ) -> dict[str, AttributeValue]:
        """Return the node attributes that store bits, scales and nonzero zero points of a layer.

        The output is float if `output_qparams` is None: o_bits and scale_o are absent then.
        """
        attrs: dict[str, AttributeValue] = {
            "data_bits": input_qparams.bits,
            "parameter_bits": weight_qparams.bits,
            "scale_x": input_qparams.scale,
            "scale_w": weight_qparams.attribute,
        }
        attrs |= make_zero_point_attributes(x=input_qparams, o=output_qparams)
        if output_qparams is None:
            return attrs
        return {**attrs, "o_bits": output_qparams.bits, "scale_o": output_qparams.scale}

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return {0: ..., 1: ...}: scale, bits and zero point of the input, and of the weight.

        The weight (1) is included only if it has a single scale.
        """
        qparams = {0: qparams_from_attributes(attrs, "x")}
        if not isinstance(attrs["scale_w"], Sequence):
            qparams[1] = qparams_from_attributes(attrs, "w")
        return qparams

    def weight_qparams(self, attrs: Attributes, node: ir.Node, key: str) -> Affine:
        """Return scales and bits of the constant weight of `node`.

        They are per group of a row if the operator has such scales, else from the attribute `key`:
        one, or one per channel for a list.
        """
        return self._grouped_weight_qparams(attrs, node) or super().weight_qparams(attrs, node, key)

    def _grouped_weight_qparams(self, attrs: Attributes, node: ir.Node) -> Affine | None:
        """Return scales and bits of a weight with a scale per group of a row.

        None for other weights. By default no weight has such scales; subclasses may override this.
        """
        return None

    def dequantize_inputs(
        self, real: FloatNodeBuilder, groups: int = 1, transposed: bool = False
    ) -> list[ir.Value]:
        """Return the real values of input, weight and, if present, bias, as outputs of new nodes.

        Parameters
        ----------
        real
            Builder of the float model, which gets the nodes.
        groups
            How often the scales of channels repeat in the accumulator.
        transposed
            Whether to transpose the weight matrix.
        """
        a = real.attrs
        axis = 1 - (self.channel_axis or 0) if transposed else self.channel_axis
        bits, view = get_int(a, "parameter_bits", 8), np.transpose if transposed else None
        blocks = self._grouped_weight_qparams(a, real.node)
        if blocks is not None:
            weight = real.dequantize_grouped_constant(1, blocks, transposed)
        else:
            weight = real.dequantize_constant(1, get_scales(a, "scale_w"), axis, view, bits)
        values = [real.float_input(), weight]
        if 2 in real.info.constants:
            values.append(real.dequantize_constant(2, accumulator_scale(a, groups), 0, np.ravel))
        return values
