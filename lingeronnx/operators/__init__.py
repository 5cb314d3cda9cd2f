"""The integer operators, and the public module for authors of operators.

    FAMILY/     conv, pool, recurrent ...: a folder for each family of operators
        integer_op  what an integer operator is: names, attributes, scales, types, kernel
        lowering    which float operators become one, within which limits, and how
        reference   the operators once more, as plain classes that judge the others
        exact_qdq   the kernels in standard ONNX, bit by bit, if there is such a form
    integer_ops, lowerings, references
                the registries: the operators, rules and plain classes of all families, in order
    schemas     the operators as ONNX schemas
    lowering_context
                builds the integer graph; the rules call it
    chip_part   the part of an integer graph that the chip runs
    extension   `lo.extended`: operators of users

An author derives from `Format` (or `UnaryIntegerOp`), `Op` and `Integer`, and passes the three to
`lo.extended`. The names below are loaded on first use, so that a session does not load the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import make_name_loader

if TYPE_CHECKING:
    from .extension import extended as extended
    from .integer_ops import Attr as Attr
    from .integer_ops import Format as Format
    from .integer_ops import KernelInfo as KernelInfo
    from .integer_ops import UnaryIntegerOp as UnaryIntegerOp
    from .lowerings import Op as Op
    from .lowerings import ScalePair as ScalePair
    from .lowerings import Scaling as Scaling
    from .lowerings import Violation as Violation
    from .lowerings import share_no_scales as share_no_scales
    from .references import Integer as Integer
    from .shape_inference import Signature as Signature

_HOME = {
    "Attr": ".integer_ops",
    "Format": ".integer_ops",
    "Integer": ".references",
    "KernelInfo": ".integer_ops",
    "Op": ".lowerings",
    "ScalePair": ".lowerings",
    "Scaling": ".lowerings",
    "Signature": ".shape_inference",
    "UnaryIntegerOp": ".integer_ops",
    "Violation": ".lowerings",
    "extended": ".extension",
    "share_no_scales": ".lowerings",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


if not TYPE_CHECKING:  # so that a type checker reports a misspelled name
    __getattr__ = make_name_loader(__name__, _HOME)
