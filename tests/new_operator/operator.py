"""The integer operator, and the rule by which a float operator becomes it."""

import numpy as np

from lingeronnx.operators import (
    Attr,
    KernelInfo,
    Op,
    Scaling,
    Signature,
    UnaryIntegerOp,
    share_no_scales,
)
from lingeronnx.operators import shape_inference as rules

from .kernel import Squash


class SquashFormat(UnaryIntegerOp):
    """x / (1 + |x|), by an instruction."""

    name = "iqSquash"
    attributes = (
        Attr("scale_x", "f"),
        Attr("scale_o", "f"),
        Attr("data_bits", "i", 8),
        Attr("o_bits", "i", 8),
    )
    signature = Signature("x:integer", "integer", rules.keep_input_shape(rules.type_of_bits))

    def make_kernel(self, info: KernelInfo):
        x, o = (float(info.attributes[key]) for key in ("scale_x", "scale_o"))
        counts = np.arange(-128, 128)
        return Squash(
            np.clip(np.floor(counts * o / (x + np.abs(counts)) + 0.5), -128, 127).astype(np.int8)
        )


SQUASH = SquashFormat()


class SquashRule(Op):
    """Softsign where the chip has it."""

    integer_op = SQUASH
    floats = (("", "Softsign"),)
    scale_constraints = Scaling(factor_behavior="fixed", shared_scales=share_no_scales)

    def lower(self, node, context):
        attrs = SQUASH.make_qparams_attributes(
            context.input_qparams(node, 0), context.output_qparams(node)
        )
        context.emit(SQUASH, node, [context.get_integer_input(node, 0)], attrs)
