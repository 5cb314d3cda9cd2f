"""Normalisation: an ordered tuple of passes that bring a float graph into the few forms `ops` knows.

Every pass is a function ``(model) -> number of changes`` in a file of its own; it changes the graph in place, keeps it
valid ONNX that onnxruntime runs, keeps the names of graph inputs, outputs and surviving tensors, and a second run
changes nothing. Where it may not act it leaves the graph as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .. import ir
from ..errors import InternalError, LingerOnnxError
from .affine import fold_affine
from .average_pool import average_pool
from .batch_norm import fold_batch_norm
from .clip import clip
from .constants import fold_constants
from .explicit_pads import explicit_pads
from .identity import drop_identity
from .linear import linear
from .prepare import clean, prepare
from .reshape import constant_reshape

__all__ = ["PASSES", "Pass", "normalize"]


class Pass(NamedTuple):
    """A named step of the normalisation."""

    name: str
    run: Callable[[ir.Graph], int]


PASSES = (
    Pass("prepare", prepare),
    Pass("fold-constants", fold_constants),
    Pass("drop-identity", drop_identity),
    Pass("constant-reshape", constant_reshape),
    Pass("fold-constants", fold_constants),
    Pass("explicit-pads", explicit_pads),
    Pass("linear", linear),
    Pass("fold-batch-norm", fold_batch_norm),
    Pass("fold-affine", fold_affine),
    Pass("clip", clip),
    Pass("average-pool", average_pool),
    Pass("clean", clean),
)


def normalize(model: ir.Graph) -> dict[str, int]:
    """Run all passes on `model` in place; return how many changes each made."""
    changes: dict[str, int] = {}
    for step in PASSES:
        try:
            count = step.run(model)
        except LingerOnnxError:
            raise
        except Exception as error:
            done = ", ".join(changes) or "none"
            raise InternalError(f"pass {step.name} failed after passes {done}: {error}") from error
        changes[step.name] = changes.get(step.name, 0) + count
    return changes
