"""Abs between layers, where the platform has no table of it: ``|x| = relu(x) + relu(-x)``, exact.

One of the summands is 0 everywhere, so the sum rounds nothing. The sign is a BatchNormalization.
"""

from __future__ import annotations

import numpy as np

from ..formats import BATCH_NORM2D
from ..graph import ir
from ..targets import Target
from ._base import Maker
from .affine import between_layers, can_be_normalized, normalized

__all__ = ["absolute"]


def absolute(model: ir.Graph, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write an Abs as a sum of two Relu."""
    if node.op_type != "Abs" or node.domain or not target.runs(BATCH_NORM2D.name):
        return None
    source = ir.source(node)
    if not (can_be_normalized(source) and between_layers(node)):
        return None
    make, shape = Maker(model, node), list(source.shape or ())
    negative = normalized(make, source, -np.ones(()), np.zeros(()))
    make("Add", [make("Relu", [part], shape, "side") for part in (source, negative)], shape, "sum")
    make.done()
    return "relu(x) + relu(-x)", "exact"
