"""Former place of `lingeronnx.operators.integer_ops`; version 0.3 removes it."""

from __future__ import annotations

from ..common.deprecation import forward_names
from ..operators import integer_ops as _module

__getattr__ = forward_names(__name__, _module, "0.3")
