"""Normalisation: ordered tuples of passes that bring a float graph into the few forms `ops` knows.

`ENTRY` makes a user's graph readable, `STRAIGHTEN` inlines decided control flow, `PASSES` simplify and fuse.

Every pass is a function ``(model) -> number of changes`` in a file of its own; it changes the graph in place, keeps it
valid ONNX that onnxruntime runs, keeps the names of graph inputs, outputs and surviving tensors, and a second run
changes nothing. Where it may not act it leaves the graph as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .. import ir
from ..errors import InternalError, LingerOnnxError
from ..runners import FloatRunner
from .affine import fold_affine
from .average_pool import average_pool
from .batch_norm import fold_batch_norm
from .cast_like import cast_like
from .clip import clip
from .constants import fold_constants
from .control import check_control, inline_control
from .curves import curves
from .dense_order import dense_order
from .explicit_pads import explicit_pads
from .float32 import float32
from .free_batch import free_batch
from .functions import inline_functions
from .identity import drop_identity
from .known_shapes import known_shapes
from .layer_norm import layer_norm
from .layout import layout
from .linear import linear
from .mask import mask
from .merge_axes import merge_axes
from .min_max import min_max
from .prepare import clean, prepare
from .raise_opset import raise_opset
from .recurrent import recurrent, time_first
from .refuse import refuse
from .reshape import constant_reshape
from .rows import rows
from .scaled_product import scaled_product
from .sequence_mean import sequence_mean
from .sequences import sequences
from .shapes import trace_shapes
from .softmax import softmax
from .sound import sound
from .split import split
from .unbind import unbind
from .zero_states import zero_states

__all__ = ["ENTRY", "PASSES", "STRAIGHTEN", "Pass", "accept", "normalize", "straighten"]


class Pass(NamedTuple):
    """A named step of the normalisation; `note` is what the report says when it changed something."""

    name: str
    run: Callable[[ir.Graph], int]
    note: str = ""


#: On the user's own graph, before its first run.
ENTRY = (
    Pass("sound", sound),
    Pass("inline-functions", inline_functions),
    Pass("prepare", prepare),
    Pass("sequences", sequences),
    Pass("refuse", refuse),
    Pass("float32", float32, "float16, bfloat16 and double are computed in float32, inputs and outputs included"),
    Pass("raise-opset", raise_opset),
    Pass("time-first", time_first),
    Pass("free-batch", free_batch, "the batch size that the file fixes is made dynamic"),
)

#: Until nothing changes, each round on freshly traced shapes: what is inlined has none yet.
STRAIGHTEN = (
    Pass("prepare", prepare),
    Pass("cast-like", cast_like),
    Pass("fold-constants", fold_constants),
    Pass("known-shapes", known_shapes),
    Pass("fold-constants", fold_constants),
    Pass("inline-control", inline_control),
)

PASSES = (
    Pass("check-control", check_control),
    Pass("prepare", prepare),
    Pass("cast-like", cast_like),
    Pass("fold-constants", fold_constants),
    Pass("known-shapes", known_shapes),
    Pass("fold-constants", fold_constants),
    Pass("zero-states", zero_states),
    Pass("drop-identity", drop_identity),
    Pass("constant-reshape", constant_reshape),
    Pass("fold-constants", fold_constants),
    Pass("recurrent", recurrent),
    Pass("unbind", unbind),
    Pass("layout", layout),
    Pass("explicit-pads", explicit_pads),
    Pass("layer-norm", layer_norm),
    Pass("linear", linear),
    Pass("rows", rows),
    Pass("dense-order", dense_order),
    Pass("fold-batch-norm", fold_batch_norm),
    Pass("scaled-product", scaled_product),
    Pass("fold-affine", fold_affine),
    Pass("min-max", min_max),
    Pass("clip", clip),
    Pass("sequence-mean", sequence_mean),
    Pass("average-pool", average_pool),
    Pass("split", split),
    Pass("merge-axes", merge_axes),
    Pass("softmax", softmax),
    Pass("mask", mask),
    Pass("curves", curves),
    Pass("clean", clean),
)


def accept(model: ir.Graph) -> tuple[ir.Graph, list[str]]:
    """Return a copy of `model` that the other passes can read, and what the user should know about the difference.

    Raises ModelError for models that cannot be quantized.
    """
    copy = ir.clone(model)
    changes = _run(ENTRY, copy)
    return copy, [step.note for step in ENTRY if step.note and changes[step.name]]


def straighten(model: ir.Graph, feed: Mapping[str, np.ndarray], runner: FloatRunner | None = None) -> None:
    """Inline control flow that is decided before the run, and trace the shapes of `model` on `feed`, in place.

    runner : of all tensors of `model` as it is now, where there is one already.
    """
    trace_shapes(model, feed, runner)
    while any(a.type.name in ("GRAPH", "GRAPHS") for node in model.graph for a in node.attributes.values()):
        if not _run(STRAIGHTEN, model)["inline-control"]:
            break
        trace_shapes(model, feed)


def normalize(model: ir.Graph) -> dict[str, int]:
    """Run all passes on `model`, whose shapes are traced, in place; return how many changes each made."""
    return _run(PASSES, model)


def _run(steps: Sequence[Pass], model: ir.Graph) -> dict[str, int]:
    changes: dict[str, int] = {}
    for step in steps:
        try:
            count = step.run(model)
        except LingerOnnxError:
            raise
        except Exception as error:
            done = ", ".join(changes) or "none"
            raise InternalError(f"pass {step.name} failed after passes {done}: {error}") from error
        changes[step.name] = changes.get(step.name, 0) + count
    ir.name_nodes(model)
    return changes
