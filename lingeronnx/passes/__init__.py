"""Normalisation: ordered tuples of passes that bring a float graph into the few forms `ops` knows.

`ENTRY` makes a user's graph readable, `STRAIGHTEN` inlines decided control flow, `PASSES` simplify and fuse.

Every pass is a function in a file of its own that returns the number of its changes, or an `Answer` that also says why
it did not act where it might have. It changes the graph in place, keeps it valid ONNX that onnxruntime runs, keeps the
names of graph inputs, outputs and surviving tensors, and a second run changes nothing. What it needs of the graph
stands beside it as data, which the runner (`_pass`) checks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ..graph import ir, operators
from ._pass import (
    INLINED,
    PLAIN,
    SHAPED,
    STRAIGHT,
    TYPED,
    USED,
    Answer,
    Pass,
    PassError,
    PassRun,
    Reason,
    Watch,
    left_out,
    of,
    run_passes,
    strict,
)
from ._record import Record
from .axes.batch_first import batch_first
from .axes.channels import channels
from .axes.constant_rows import constant_rows
from .axes.dense_order import dense_order
from .axes.joined_parts import joined_parts
from .axes.layout import layout
from .axes.merge_axes import merge_axes
from .axes.rows import rows
from .axes.split import split
from .axes.unbind import unbind
from .curves.clip import clip
from .curves.curves import curves, known_curves
from .curves.mask import mask
from .curves.min_max import min_max
from .curves.softmax import softmax
from .entry.float32 import FLOAT32, float32
from .entry.free_batch import free_batch
from .entry.functions import inline_functions
from .entry.prepare import clean, prepare
from .entry.raise_opset import READABLE_OPSET, raise_opset
from .entry.refuse import refuse
from .entry.sequences import sequences
from .entry.sound import sound
from .folding.cast_like import cast_like
from .folding.constants import fold_constants
from .folding.control import check_control, inline_control
from .folding.identity import drop_identity
from .folding.known_shapes import known_shapes
from .folding.reshape import constant_reshape, is_computed
from .folding.shapes import trace_shapes
from .folding.zero_states import begins_with_a_state, zero_states
from .layers.affine import fold_affine
from .layers.average_pool import average_pool
from .layers.backward import backward
from .layers.batch_norm import fold_batch_norm
from .layers.constant_factor import constant_factor
from .layers.einsum import einsum
from .layers.explicit_pads import explicit_pads
from .layers.layer_behind import batch_norm_behind, layer_behind
from .layers.layer_norm import layer_norm
from .layers.linear import linear
from .layers.plain_conv import plain_conv
from .layers.recurrent import is_batch_first, recurrent, time_first
from .layers.reduced import reduced
from .layers.scaled_product import scaled_product
from .layers.sequence_pool import sequence_pool

__all__ = [
    "ENTRY",
    "PASSES",
    "STRAIGHTEN",
    "VITAL",
    "Answer",
    "Pass",
    "PassError",
    "Reason",
    "Record",
    "PassRun",
    "Watch",
    "accept",
    "left_out",
    "normalize",
    "straighten",
    "strict",
]


#: What most passes need: constants that `ir.const` sees; also tensors whose shapes are told; also one straight line.
_PLAIN = (INLINED, PLAIN)
_TRACED = (*_PLAIN, SHAPED)
_LINE = (*_PLAIN, STRAIGHT)
_ALL = (*_TRACED, STRAIGHT)

#: On the user's own graph, before its first run.
ENTRY = (
    Pass("sound", sound, ensures=[TYPED], complete=True),
    Pass("inline-functions", inline_functions, ensures=[INLINED], complete=True),
    Pass("prepare", prepare, ensures=_PLAIN, complete=True),
    Pass("sequences", sequences, _PLAIN, ensures=_PLAIN, left=of(*operators.SEQUENCES)),
    Pass("refuse", refuse, _PLAIN, ensures=_PLAIN, left=of(*operators.SEQUENCES), complete=True),
    Pass("float32", float32, _PLAIN,
         "float16, bfloat16 and double are computed in float32, inputs and outputs included",
         ensures=[FLOAT32], complete=True),
    Pass("raise-opset", raise_opset, _PLAIN, ensures=[*_PLAIN, READABLE_OPSET]),
    Pass("time-first", time_first, _PLAIN, ensures=_PLAIN, left=is_batch_first, complete=True),
    Pass("free-batch", free_batch, _PLAIN, "the batch size that the file fixes is made dynamic", ensures=_PLAIN),
)  # fmt: skip

#: Until nothing changes, each round on freshly traced shapes: what is inlined has none yet.
STRAIGHTEN = (
    Pass("prepare", prepare, ensures=_PLAIN, complete=True),
    Pass("cast-like", cast_like, _PLAIN, ensures=_PLAIN, left=of("CastLike")),
    Pass("fold-constants", fold_constants, _PLAIN, ensures=_PLAIN),
    Pass("known-shapes", known_shapes, _TRACED, ensures=_PLAIN, left=of("Shape", "Size")),
    Pass("fold-constants", fold_constants, _PLAIN, ensures=_PLAIN),
    Pass("inline-control", inline_control, _PLAIN, ensures=[INLINED], left=ir.holds_graphs),
)

PASSES = (
    Pass("check-control", check_control, ensures=[STRAIGHT], complete=True),
    Pass("prepare", prepare, ensures=_LINE, complete=True),
    Pass("cast-like", cast_like, _LINE, ensures=_LINE, left=of("CastLike")),
    Pass("fold-constants", fold_constants, _LINE, ensures=_LINE),
    Pass("known-shapes", known_shapes, _ALL, ensures=_LINE, left=of("Shape", "Size")),
    Pass("fold-constants", fold_constants, _LINE, ensures=_LINE),
    Pass("zero-states", zero_states, _LINE, ensures=_LINE, left=begins_with_a_state),
    Pass("drop-identity", drop_identity, _ALL, ensures=_ALL, left=of("Identity")),
    Pass("joined-parts", joined_parts, _ALL, ensures=_ALL),
    Pass("constant-reshape", constant_reshape, _ALL, ensures=_ALL, left=is_computed),
    Pass("einsum", einsum, _ALL, ensures=_ALL, left=of("Einsum")),
    Pass("constant-factor", constant_factor, _ALL, ensures=_ALL),
    Pass("constant-rows", constant_rows, _ALL, ensures=_ALL),
    Pass("batch-first", batch_first, _ALL, ensures=_ALL),
    Pass("fold-constants", fold_constants, _LINE, ensures=_LINE),
    Pass("recurrent", recurrent, _ALL, ensures=_ALL, left=of("LSTM", "GRU")),
    Pass("unbind", unbind, _ALL, ensures=_ALL),
    Pass("channels", channels, _ALL, ensures=_ALL),
    Pass("layout", layout, _ALL, ensures=_ALL),
    Pass("backward", backward, _ALL, ensures=_ALL),
    Pass("plain-conv", plain_conv, _ALL, ensures=_ALL),
    Pass("explicit-pads", explicit_pads, _ALL, ensures=_ALL),
    Pass("known-curves", known_curves, _ALL, ensures=_ALL),
    Pass("layer-norm", layer_norm, _ALL, ensures=_ALL),
    Pass("linear", linear, _ALL, ensures=_ALL, left=of("Gemm", "MatMul")),
    Pass("rows", rows, _ALL, ensures=_ALL),
    Pass("dense-order", dense_order, _ALL, ensures=_ALL),
    Pass("fold-batch-norm", fold_batch_norm, _LINE, ensures=_LINE, left=of("BatchNormalization")),
    Pass("scaled-product", scaled_product, _ALL, ensures=_ALL),
    Pass("fold-affine", fold_affine, _ALL, ensures=_ALL),
    Pass("min-max", min_max, _ALL, ensures=_ALL, left=of("Min", "Max")),
    Pass("clip", clip, _LINE, ensures=_LINE),
    Pass("reduced", reduced, _ALL, ensures=_ALL),
    Pass("sequence-pool", sequence_pool, _ALL, ensures=_ALL),
    Pass("average-pool", average_pool, _ALL, ensures=_ALL, left=of("GlobalAveragePool", "GlobalMaxPool")),
    Pass("split", split, _ALL, ensures=_ALL, left=of("Split")),
    Pass("merge-axes", merge_axes, _ALL, ensures=_ALL),
    Pass("softmax", softmax, _ALL, ensures=_ALL),
    Pass("mask", mask, _ALL, ensures=_ALL),
    Pass("curves", curves, _ALL, ensures=_ALL),
    Pass("layer-behind", layer_behind, _ALL, ensures=_ALL),
    Pass("batch-norm-behind", batch_norm_behind, _ALL, ensures=_ALL, left=of("BatchNormalization")),
    Pass("clean", clean, _LINE, ensures=[*_LINE, USED], complete=True),
)

#: What the others cannot do without. Any other pass may be left out: the graph is right then too, and more stays float.
VITAL = frozenset(
    ("sound", "inline-functions", "prepare", "refuse", "float32", "raise-opset", "check-control", "clean")
)


def accept(model: ir.Graph, watch: Watch | None = None) -> tuple[ir.Graph, list[str]]:
    """Return a copy of `model` that the other passes can read, and what the user should know about the difference.

    watch : called after every pass. Raises ModelError for models that cannot be quantized.
    """
    without: dict[str, str] = {}
    while True:
        copy = ir.clone(model)
        try:
            changes = run_passes(ENTRY, copy, watch, without)
        except PassError as error:
            if strict() or error.step in VITAL or error.step in without:
                raise
            without[error.step] = f"it failed: {error.__cause__ or error}"
            continue
        notes = [step.note for step in ENTRY if step.note and changes.get(step.name)]
        return copy, [*notes, *(left_out(step, why) for step, why in without.items())]


def straighten(
    model: ir.Graph,
    feed: Mapping[str, np.ndarray],
    watch: Watch | None = None,
    without: Collection[str] = (),
) -> None:
    """Inline control flow that is decided before the run, and trace the shapes of `model` on `feed`, in place.

    without : passes to leave out.
    """
    trace_shapes(model, feed)
    while any(ir.holds_graphs(node) for node in model.graph):
        if not run_passes(STRAIGHTEN, model, watch, without).get("inline-control"):
            break
        trace_shapes(model, feed)


def normalize(model: ir.Graph, watch: Watch | None = None, without: Collection[str] = ()) -> dict[str, int]:
    """Run all passes but `without` on `model`, whose shapes are traced, in place; return how many changes each made."""
    return run_passes(PASSES, model, watch, without)
