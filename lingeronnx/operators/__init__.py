"""The integer operators, and the public module for authors of operators.

    formats/    what an integer operator is: names, attributes, scales, types, kernel
    rules/      which float operators become one, within which limits, and how they are lowered
    reference/  the operators once more, as plain classes that judge the others
    schemas     the operators as ONNX schemas
    lowering    builds the integer graph; the rules call it
    chip_part   the part of an integer graph that the chip runs
    extension   `lo.extended`: operators of users

An author derives from `Format` (or `UnaryIntegerOp`), `Op` and `Integer`, and passes the three to
`lo.extended`. The names below are loaded on first use, so that a session does not load the rules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .extension import extended as extended
    from .formats import Attr as Attr
    from .formats import Format as Format
    from .formats import KernelInfo as KernelInfo
    from .formats import UnaryIntegerOp as UnaryIntegerOp
    from .formats.shape_inference import Signature as Signature
    from .reference import Integer as Integer
    from .rules import Op as Op
    from .rules import ScalePair as ScalePair
    from .rules import Scaling as Scaling
    from .rules import Violation as Violation
    from .rules import share_no_scales as share_no_scales

_HOME = {
    "Attr": "formats",
    "Format": "formats",
    "Integer": "reference",
    "KernelInfo": "formats",
    "Op": "rules",
    "ScalePair": "rules",
    "Scaling": "rules",
    "Signature": "formats.shape_inference",
    "UnaryIntegerOp": "formats",
    "Violation": "rules",
    "extended": "extension",
    "share_no_scales": "rules",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


if not TYPE_CHECKING:  # so that a type checker reports a misspelled name

    def __getattr__(name: str) -> object:
        """Import and return a public name, on first use; AttributeError for unknown ones."""
        if name not in _HOME:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
