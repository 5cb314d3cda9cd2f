"""Concatenation: iqCat, each input requantized to the output's scale."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.kernel import Kernel

from ...graph import ir
from ...graph.attributes import Attributes, AttributeValue, get_int
from ...plan import Affine
from ...targets.arithmetic import ConcatArithmetic as Arithmetic
from .. import shape_inference as rules
from .._base import (
    ZEROING_SHIFT,
    Attr,
    Format,
    KernelInfo,
    make_zero_point_attributes,
    make_zero_point_spec,
    qparams_from_attributes,
    rename_dim_to_axis,
)
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["FAMILY", "CONCAT"]

#: As many inputs as a schema has attributes for: it cannot say "one per input".
_MAX_INPUTS = 64


class Concat(Format):
    """Concatenation along an axis other than the batch."""

    name = "iqCat"
    signature = Signature("x:integer*", "integer", rules.infer_concat)
    extra_attributes = (
        *(Attr(f"scale_x_{i}", "f", None) for i in range(_MAX_INPUTS)),
        *(Attr(f"x_{i}_bits", "i", None) for i in range(_MAX_INPUTS)),
        *(make_zero_point_spec(f"x_{i}") for i in range(_MAX_INPUTS)),
    )
    v1_implicit_attributes = ("data_bits", "o_bits")
    kind = Arithmetic
    v3_name = "QCat"
    supports_zero_points = True
    attributes = (
        Attr("dim", "i", None),
        Attr("axis", "i", None),
        Attr("scale_o", "f"),
        Attr("o_bits", "i", 8),
        make_zero_point_spec("o"),
    )

    def kernel_inputs(self, node: ir.Node) -> list[int]:
        """Return all inputs."""
        return list(range(len(node.inputs)))

    def scales(self, inputs: Sequence[Affine], o: Affine) -> dict[str, AttributeValue]:
        """Return the attributes of a node that reads `inputs` and writes `o`."""
        width = {} if o.bits == 8 else {"o_bits": o.bits}  # which the vendor's form does not have
        zeros = make_zero_point_attributes(o=o, **{f"x_{i}": x for i, x in enumerate(inputs)})
        return {
            **{f"scale_x_{i}": x.scale for i, x in enumerate(inputs)},
            **width,
            "scale_o": o.scale,
            **zeros,
        }

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """The axis is called so, and every input has a width."""
        renamed = rename_dim_to_axis(super().to_v3_attributes(attrs, inputs))
        renamed.pop("data_bits")
        return {**renamed, **{f"x_{i}_bits": renamed.get(f"x_{i}_bits", 8) for i in range(inputs)}}

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """The axis is called dim."""
        renamed = super().to_v1_attributes(attrs, node)
        axis = get_int(renamed, "axis")
        return {**{key: value for key, value in renamed.items() if key != "axis"}, "dim": axis}

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return one scale for each input."""
        return {
            int(k[8:]): qparams_from_attributes(attrs, k[6:])
            for k in attrs
            if k.startswith("scale_x_")
        }

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the concatenation kernel; inputs below the output's scale are shifted left.

        Where it only raises scales, an input above the output's scale becomes 0.
        """
        from simulator.fixed_point import Rescale
        from simulator.kernels import Concat as Kernel
        from simulator.kernels import subtract_zero_points

        axis = get_int(info.attributes, "dim" if info.attributes["dim"] is not None else "axis", 0)
        scales = self.input_qparams(info.attributes)
        rescales, zeros, bits = [], [], get_int(info.attributes, "o_bits", 8)
        for index in range(len(info.node.inputs)):
            ratio = info.output_scale_ratio(scales[index].scale) if index in scales else 1.0
            lost = info.expect_arithmetic(Arithmetic).zeroes_larger_scales and ratio < 1
            same = ratio == 1 and info.zero_point(f"x_{index}") == info.zero_point(
                "o"
            )  # as it is, whatever stands for 0
            rescales.append(
                Rescale.from_shift(ZEROING_SHIFT, bits)
                if lost
                else info.rescale(ratio, bits, 0 if same else None)
            )
            zeros.append(0 if same else info.zero_point(f"x_{index}"))
        return subtract_zero_points(Kernel(axis, tuple(rescales)), *zeros)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Join the inputs."""
        axis = get_int(builder.attrs, "dim" if builder.attrs["dim"] is not None else "axis", 0)
        return [
            builder(
                "Concat",
                *(builder.float_input(i) for i in range(len(builder.node.inputs))),
                axis=axis,
            )
        ]


CONCAT = Concat()


FAMILY: tuple[Format, ...] = (CONCAT,)
