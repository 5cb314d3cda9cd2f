"""Concatenation: iqCat, which requantizes each input to the output scale."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.kernel import Kernel

from ...ir import ir
from ...ir.attributes import Attributes, AttributeValue, get_int
from ...ir.plan import Affine
from ...targets.arithmetic import ConcatArithmetic as Arithmetic
from .. import shape_inference as rules
from .._integer_op import (
    Attr,
    Format,
    make_zero_point_attributes,
    make_zero_point_spec,
    qparams_from_attributes,
    rename_dim_to_axis,
)
from .._kernel_info import ZEROING_SHIFT, KernelInfo
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["FAMILY", "CONCAT"]

#: Number of inputs that the schema has attributes for: a schema cannot declare one per input.
_MAX_INPUTS = 64


class Concat(Format):
    """Concatenation along an axis other than the batch axis."""

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
        """Return the indices of the inputs that the simulator kernel reads: all of them."""
        return list(range(len(node.inputs)))

    def make_qparams_attributes(
        self, input_qparams: Sequence[Affine], output_qparams: Affine
    ) -> dict[str, AttributeValue]:
        """Return the node attributes that store scales, nonzero zero points and the output's bits.

        The scale of input i is `scale_x_<i>`; `o_bits` is omitted if it is 8, as vendor graphs do
        not have it.
        """
        # Vendor graphs have no o_bits, so it is omitted if it is 8.
        width = {} if output_qparams.bits == 8 else {"o_bits": output_qparams.bits}
        qparams_by_key = {f"x_{i}": qparams for i, qparams in enumerate(input_qparams)}
        return {
            **{f"scale_{key}": qparams.scale for key, qparams in qparams_by_key.items()},
            **width,
            "scale_o": output_qparams.scale,
            **make_zero_point_attributes(o=output_qparams, **qparams_by_key),
        }

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v3: `dim` becomes `axis`, each input gets bits.

        `inputs` is their number; the bits of input i are `x_<i>_bits`, 8 if absent. `data_bits` is
        dropped.
        """
        renamed = rename_dim_to_axis(super().to_v3_attributes(attrs, inputs))
        renamed.pop("data_bits")
        for index in range(inputs):
            renamed.setdefault(f"x_{index}_bits", 8)
        return renamed

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v1: `axis` becomes `dim`, bit widths of 8 are dropped.

        `zero_point` is dropped as well.
        """
        renamed = super().to_v1_attributes(attrs, node)
        axis = get_int(renamed, "axis")
        del renamed["axis"]
        return {**renamed, "dim": axis}

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return input index -> scale, bits and zero point, for inputs with a `scale_x_<index>`.

        Their bits are `data_bits`, 8 if absent.
        """
        qparams = {}
        for name in attrs:
            if name.startswith("scale_x_"):
                index = int(name.removeprefix("scale_x_"))
                qparams[index] = qparams_from_attributes(attrs, f"x_{index}")
        return qparams

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the concatenation kernel, which requantizes each input to the output scale.

        The axis is `dim`, else `axis`, else 0. An input without scale is taken to have that of the
        output. On targets that can only raise scales (`zeroes_larger_scales`), an input with a
        larger scale than the output becomes 0.
        """
        from simulator.fixed_point import Rescale
        from simulator.kernels import Concat as Kernel
        from simulator.kernels import subtract_zero_points

        axis = get_int(info.attributes, "dim" if info.attributes["dim"] is not None else "axis", 0)
        scales = self.input_qparams(info.attributes)
        zeroes_larger_scales = info.expect_arithmetic(Arithmetic).zeroes_larger_scales
        rescales, zeros, bits = [], [], get_int(info.attributes, "o_bits", 8)
        for index in range(len(info.node.inputs)):
            ratio = info.output_scale_ratio(scales[index].scale) if index in scales else 1.0
            zero = info.zero_point(f"x_{index}")
            # With equal scales and zero points the integers are copied.
            is_copied = ratio == 1 and zero == info.zero_point("o")
            if zeroes_larger_scales and ratio < 1:
                rescales.append(Rescale.from_shift(ZEROING_SHIFT, bits))
            else:
                rescales.append(info.rescale(ratio, bits, 0 if is_copied else None))
            zeros.append(0 if is_copied else zero)
        return subtract_zero_points(Kernel(axis, tuple(rescales)), *zeros)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a Concat of all dequantized inputs to `builder`; return [its output]."""
        axis = get_int(builder.attrs, "dim" if builder.attrs["dim"] is not None else "axis", 0)
        inputs = [builder.float_input(index) for index in range(len(builder.node.inputs))]
        return [builder("Concat", *inputs, axis=axis)]


CONCAT = Concat()


FAMILY: tuple[Format, ...] = (CONCAT,)
