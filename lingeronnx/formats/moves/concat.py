"""Concatenation: iqCat, each input requantized to the output's scale."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.kernel import Kernel

from ...graph import ir
from ...graph.attributes import Attribute, Attributes, integer
from ...plan import Affine
from ...targets.arithmetic import Concat as Arithmetic
from .. import inference as rules
from .._base import ALL_OUT, Attr, Bound, Format, held_at, with_axis, zero_attribute, zero_points
from ..inference import Signature
from ..real import Reals

__all__ = ["FAMILY", "CONCAT"]

#: As many inputs as a schema has attributes for: it cannot say "one per input".
_INPUTS = 64


class Concat(Format):
    """Concatenation along an axis other than the batch."""

    name = "iqCat"
    signature = Signature("x:integer*", "integer", rules.cat)
    further = (
        *(Attr(f"scale_x_{i}", "f", None) for i in range(_INPUTS)),
        *(Attr(f"x_{i}_bits", "i", None) for i in range(_INPUTS)),
        *(zero_attribute(f"x_{i}") for i in range(_INPUTS)),
    )
    unsaid = ("data_bits", "o_bits")
    kind = Arithmetic
    v3_name = "QCat"
    zero_points = True
    attributes = (Attr("dim", "i", None), Attr("axis", "i", None), Attr("scale_o", "f"), Attr("o_bits", "i", 8),
                  zero_attribute("o"))  # fmt: skip

    def operands(self, node: ir.Node) -> list[int]:
        """Return all inputs."""
        return list(range(len(node.inputs)))

    def scales(self, inputs: Sequence[Affine], o: Affine) -> dict[str, Attribute]:
        """Return the attributes of a node that reads `inputs` and writes `o`."""
        width = {} if o.bits == 8 else {"o_bits": o.bits}  # which the vendor's form does not have
        zeros = zero_points(o=o, **{f"x_{i}": x for i, x in enumerate(inputs)})
        return {**{f"scale_x_{i}": x.scale for i, x in enumerate(inputs)}, **width, "scale_o": o.scale, **zeros}

    def to_v3(self, attrs: Attributes, inputs: int) -> dict[str, Attribute]:
        """The axis is called so, and every input has a width."""
        renamed = with_axis(super().to_v3(attrs, inputs))
        renamed.pop("data_bits")
        return {**renamed, **{f"x_{i}_bits": renamed.get(f"x_{i}_bits", 8) for i in range(inputs)}}

    def to_v1(self, attrs: Attributes, node: ir.Node) -> dict[str, Attribute]:
        """The axis is called dim."""
        renamed = super().to_v1(attrs, node)
        axis = integer(renamed, "axis")
        return {**{key: value for key, value in renamed.items() if key != "axis"}, "dim": axis}

    def read_scales(self, attrs: Attributes) -> dict[int, Affine]:
        """Return one scale for each input."""
        return {int(k[8:]): held_at(attrs, k[6:]) for k in attrs if k.startswith("scale_x_")}

    def bind(self, bound: Bound) -> Kernel:
        """Return the concatenation kernel; inputs below the output's scale are shifted left.

        Where it only raises scales, an input above the output's scale becomes 0.
        """
        from simulator.fixed import Rescale
        from simulator.kernels import Concat as Kernel
        from simulator.kernels import centered

        axis = integer(bound.attrs, "dim" if bound.attrs["dim"] is not None else "axis", 0)
        scales = self.read_scales(bound.attrs)
        rescales, zeros, bits = [], [], integer(bound.attrs, "o_bits", 8)
        for index in range(len(bound.node.inputs)):
            ratio = bound.ratio(scales[index].scale) if index in scales else 1.0
            lost = bound.how(Arithmetic).raises_only and ratio < 1
            same = ratio == 1 and bound.zero(f"x_{index}") == bound.zero("o")  # as it is, whatever stands for 0
            rescales.append(
                Rescale.from_shift(ALL_OUT, bits) if lost else bound.rescale(ratio, bits, 0 if same else None)
            )
            zeros.append(0 if same else bound.zero(f"x_{index}"))
        return centered(Kernel(axis, tuple(rescales)), *zeros)

    def meaning(self, real: Reals) -> list[ir.Value]:
        """Join the inputs."""
        axis = integer(real.attrs, "dim" if real.attrs["dim"] is not None else "axis", 0)
        return [real("Concat", *(real.input(i) for i in range(len(real.node.inputs))), axis=axis)]


CONCAT = Concat()


FAMILY: tuple[Format, ...] = (CONCAT,)
