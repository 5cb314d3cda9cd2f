"""Matrix products: LinearInt, by a constant weight, and BmmInt, of two activations.

LinearInt has a weight [O, I], over the last axis; without scale_o the output is float. With
group_size = k and factors m [O, ceil(I/k)] at input 3, a weight is w*m at the scale scale_w of its
row. BmmInt, ``o = sat(rescale(x @ y))`` over the last two axes, rounds the product once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.kernel import Kernel, NumpyKernel, TensorSpec, require

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes, AttributeValue, get_int, get_number, get_scales
from ...ir.plan import MAX_GROUP_FACTOR, Affine, PerGroup, make_grouped_qparams
from ...targets.arithmetic import LayerArithmetic
from .. import shape_inference as rules
from .._binary_op import BINARY_ZERO_POINTS, BinaryIntegerOp
from .._integer_op import Attr, Format, WidthAxes, qparams_from_attributes
from .._kernel_info import KernelInfo
from .._weighted_op import WEIGHT_ATTRIBUTES, WeightedIntegerOp, accumulator_scale
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["BMM", "FAMILY", "LINEAR", "FloatLinear"]


@dataclass(frozen=True, eq=False)
class FloatLinear(NumpyKernel):
    """Fully connected layer with float output, ``y = (sum (x - zero)*w + b) / scale``.

    Attributes
    ----------
    weight
        Integers [O, I].
    bias
        int64 [O], or None.
    scale
        Accumulator scale, scale_x * scale_w: one, or [O].
    zero
        Zero point of x.
    factors
        Factors of the weights [O, I], or None.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    scale: float | np.ndarray
    zero: int = 0
    factors: np.ndarray | None = None

    @property
    def scaled_weight(self) -> np.ndarray:
        """Weights times their factors, [O, I]."""
        from simulator.kernels import apply_weight_factors

        return apply_weight_factors(self.weight, self.factors)

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the float32 output [..., O] for an integer input [..., I].

        Another input is an error.
        """
        (x,) = specs
        require(
            x.dtype.kind == "i" and x.shape[-1:] == self.weight.shape[1:],
            f"weights {list(self.weight.shape)} do not fit {x}",
        )
        return (TensorSpec((*x.shape[:-1], len(self.weight)), np.dtype(np.float32)),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute (x - zero) @ weight^T + bias in int64, and divide by the scale in float64.

        Returns the float32 output.
        """
        total = (arrays[0].astype(np.int64) - self.zero) @ self.scaled_weight.T.astype(np.int64)
        if self.bias is not None:
            total = total + self.bias
        return ((total / self.scale).astype(np.float32),)


class Linear(WeightedIntegerOp):
    """Fully connected layer with a constant weight."""

    name = "LinearInt"
    width_axes = WidthAxes(-1, -1)
    weight_ranks = (2,)
    weight_dtypes = ("int8", "int16", "int32")
    signature = Signature("x:integer w:weight b:bias? m:factors?", "result", rules.infer_linear)
    v3_name = "QLinear"
    attributes = (*WEIGHT_ATTRIBUTES, Attr("group_size", "i", None))
    supports_group_scales = True

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale, bits and zero point of the output.

        None without scale_o, when it is float.
        """
        return None if attrs["scale_o"] is None else qparams_from_attributes(attrs, "o")

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the matrix kernel of the node, with float output if it has no scale_o.

        Raises ModelError if weight, bias, group factors or scales are invalid.
        """
        from simulator.kernels import Linear as Kernel
        from simulator.kernels import WideLinear

        if info.expect_arithmetic(LayerArithmetic).supports_int32:
            weight = info.require_constant(1, "int8 int16 int32", "weight")
            if np.dtype(np.int32) in (weight.dtype, info.input_dtypes[0]):
                rescale = info.make_weight_rescale(len(weight))
                return WideLinear(weight, info.bias(2, len(weight)), rescale)
        weight = info.require_constant(1, "int8 int16", "weight")
        bias, zero = info.bias(2, len(weight)), info.zero_point("x")
        factors = self._read_factors(info, weight)
        if info.attributes["scale_o"] is None:
            scale = accumulator_scale(info.attributes)
            weight_scale = np.array(scale) if isinstance(scale, tuple) else float(scale)
            return FloatLinear(weight, bias, weight_scale, zero, factors)
        return Kernel(weight, bias, info.make_weight_rescale(len(weight)), zero, factors=factors)

    def _read_factors(self, info: KernelInfo, weight: np.ndarray) -> np.ndarray | None:
        """Return a factor for each weight of the node, int16 [O, I]; None without groups.

        The factor of a group, in constant input 3, is repeated for each weight of the group.

        Raises
        ------
        ModelError
            If they do not match the weight.
        """
        factors = info.require_constant(3, "uint8", "factors") if 3 in info.constants else None
        size = _read_group_size(info.label, info.attributes, weight, factors)
        if size is None or factors is None:
            return None
        return np.repeat(factors, size, axis=1)[:, : weight.shape[1]].astype(np.int16)

    def make_qparams_attributes(
        self, input_qparams: Affine, weight_qparams: Affine, output_qparams: Affine | None
    ) -> dict[str, AttributeValue]:
        """Return the node attributes that store bits, scales and nonzero zero points of a layer.

        For weights with a scale per group also `group_size`. The output is float if
        `output_qparams` is None: o_bits and scale_o are absent then.
        """
        attrs = super().make_qparams_attributes(input_qparams, weight_qparams, output_qparams)
        if isinstance(weight_qparams.granularity, PerGroup):
            attrs["group_size"] = weight_qparams.granularity.size
        return attrs

    def _grouped_weight_qparams(self, attrs: Attributes, node: ir.Node) -> Affine | None:
        """Return scales and bits of a weight with a scale per group of a row.

        None for other weights. They follow from `scale_w`, `group_size` and the factors at constant
        input 3. Raises ModelError if they do not match the weight.
        """
        weight = ir.const_value(node.inputs[1])
        factors = ir.const_value(node.inputs[3]) if len(node.inputs) > 3 else None
        size = _read_group_size(f"{node.op_type} {node.name}", attrs, weight, factors)
        if size is None or factors is None:
            return None
        return make_grouped_qparams(
            get_scales(attrs, "scale_w"), factors, size, get_int(attrs, "parameter_bits", 8)
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a Gemm for an input of rank 2, else MatMul and Add, to `builder`.

        Return [the result]. Input, weight and bias are dequantized; for the MatMul the weight is
        transposed.
        """
        is_matrix = len(builder.info.input_shapes[0]) == 2
        x, weight, *bias = self.dequantize_inputs(builder, transposed=not is_matrix)
        if is_matrix:
            return [builder("Gemm", x, weight, *bias, transB=1)]
        product = builder("MatMul", x, weight)
        return [builder("Add", product, *bias) if bias else product]


def _read_group_size(
    node_label: str, attrs: Attributes, weight: np.ndarray | None, factors: np.ndarray | None
) -> int | None:
    """Return the group size of a weight [O, I], or None without attribute `group_size`.

    Parameters
    ----------
    node_label
        Operator and node, for messages.
    attrs
        Attributes of the node.
    weight
        int8 [O, I]; None: not constant.
    factors
        Factors of the groups, uint8 [O, ceil(I / size)]; None: absent.

    Raises
    ------
    ModelError
        If only one of size and factors is present, the weight is not constant int8, scale_w is not
        a list with one scale per row, or shapes do not match or a factor is 0.
    """
    if attrs.get("group_size") is None:
        if factors is not None:
            raise ModelError(
                f"{node_label}: it has group factors but no group_size; quantize again"
            )
        return None
    size, scales = get_int(attrs, "group_size"), attrs["scale_w"]
    scale_count = len(scales) if isinstance(scales, Sequence) else None
    if factors is None or weight is None or scale_count not in (None, len(factors)):
        raise ModelError(
            f"{node_label}: it has a group_size but no factors per row; quantize again"
        )
    if size < 1 or weight.dtype != np.int8 or scale_count is None:
        raise ModelError(
            f"{node_label}: group_size = {size} with weights of {weight.dtype}; groups need a size "
            "of at least 1, int8 weights and a list scale_w"
        )
    _check_group_factors(node_label, weight, factors, size)
    return size


def _check_group_factors(
    node_label: str, weight: np.ndarray, factors: np.ndarray, group_size: int
) -> None:
    """Raise ModelError unless the factors of the groups of a weight fit it and none is 0.

    `weight` is [O, I], so that `factors` must be [O, ceil(I / group_size)]. `node_label` is for the
    message.
    """
    expected_shape: tuple[int, ...] = ()
    if weight.ndim == 2:
        expected_shape = (len(weight), math.ceil(weight.shape[1] / group_size))
    if factors.shape != expected_shape or not factors.all():
        raise ModelError(
            f"{node_label}: factors have shape {list(factors.shape)} and minimum "
            f"{factors.min(initial=255)}; weights {list(weight.shape)} in groups of {group_size} "
            f"have {list(expected_shape)}, from 1 to {MAX_GROUP_FACTOR}"
        )


LINEAR = Linear()


class Bmm(BinaryIntegerOp):
    """Batched matrix product of two activations."""

    name = "BmmInt"
    standard_op = "MatMul"
    allows_float_output = True
    signature = Signature(
        "x:integer y:integer",
        "result",
        rules.infer_like_standard("MatMul", rules.layer_output_type),
    )
    kind = LayerArithmetic
    v3_name = "QBmm"
    v1_implicit_attributes = ("y_bits",)
    aliases = ("QMatmul",)
    attributes = (
        Attr("scale_x", "f"),
        Attr("scale_y", "f"),
        Attr("scale_o", "f"),
        Attr("data_bits", "i", 8),
        Attr("o_bits", "i", 8),
        *BINARY_ZERO_POINTS,
    )

    def make_qparams_attributes(
        self, x_qparams: Affine, y_qparams: Affine, output_qparams: Affine
    ) -> dict[str, AttributeValue]:
        """Return the node attributes that store bits, scales and nonzero zero points.

        `data_bits` are those of the first operand.
        """
        return {
            **super().make_qparams_attributes(x_qparams, y_qparams, output_qparams),
            "data_bits": x_qparams.bits,
            "o_bits": output_qparams.bits,
        }

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Explain why dialect v1 cannot express the matrix product `node`, or None if it can.

        It cannot if `node` is a QMatmul with an operand that is not of rank 3.
        """
        ranks = [len(ir.get_shape(value) or ()) for value in node.inputs[:2]]
        if node.op_type == "QMatmul" and ranks != [3, 3]:
            return "its factors do not both have three axes"
        return None

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the matrix product kernel.

        It rescales each sum once by scale_o / (scale_x * scale_y). Zero points are subtracted from
        the operands first.
        """
        from simulator.kernels import MatMul

        scale_x = get_number(info.attributes, "scale_x")
        scale_y = get_number(info.attributes, "scale_y")
        kernel = MatMul(info.rescale(info.output_scale_ratio(scale_x, scale_y)))
        return self.subtract_zero_points(info, kernel)


BMM = Bmm()


FAMILY: tuple[Format, ...] = (LINEAR, BMM)
