"""Normalization: ordered tuples of passes that convert a float graph to the few forms rules know.

`ENTRY_PASSES` make a user's graph readable, `CONTROL_FLOW_PASSES` inline static control flow, and
`NORMALIZATION_PASSES` simplify and fuse.

Each pass is a function in its own file. It returns the number of its changes, or a `PassResult`
that also explains why it skipped nodes. A pass changes the graph in place, leaves it valid for
onnxruntime, and preserves the names of graph inputs, outputs and surviving tensors; a second run
changes nothing. Its preconditions and guarantees are listed here as data, which the runner
(`_pass`) checks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ...ir import float_ops, ir
from ...operators import integer_ops
from ...runtime.runners.missing_kernels import expand_missing_kernels
from ...targets import Target
from ._pass import (
    CONSTANTS_LIFTED,
    FUNCTIONS_INLINED,
    INPUTS_TYPED,
    NO_DEAD_NODES,
    NO_SUBGRAPHS,
    SHAPES_KNOWN,
    Pass,
    PassError,
    PassLog,
    PassObserver,
    PassResult,
    PassRun,
    SkipReason,
    format_skipped_pass,
    is_strict_mode,
    match_op_types,
    run_passes,
)
from .activations.attention_mask import canonicalize_attention_masks
from .activations.clip import convert_min_max_to_clip, simplify_clip
from .activations.softmax import canonicalize_softmax
from .activations.unary_functions import (
    KNOWN_ACTIVATION_OPS,
    TABLE_FUNCTION_OPS,
    fuse_known_activations,
    fuse_unary_functions,
)
from .axes.affine_before_concat import move_affine_before_concat
from .axes.batch_first import move_batch_to_front
from .axes.bypass_concat import bypass_concat
from .axes.cancel_transposes import cancel_transposes
from .axes.channel_selection import MOVE_OPS, fold_channel_selection
from .axes.constant_concat import replace_concat_with_constants
from .axes.merge_axes import merge_axes
from .axes.split_to_slices import convert_split_to_slices
from .axes.transpose_into_linear import fold_transpose_into_linear
from .axes.unbind import slice_before_transpose
from .axes.unfold_linear_batch import unfold_linear_batch
from .axes.unfold_windows import unfold_windows
from .entry.convert_model import FLOAT32, READABLE_OPSET, convert_opset, convert_to_float32
from .entry.dynamic_batch import make_batch_dynamic
from .entry.lift_constants import inline_functions, lift_constants, remove_dead_nodes
from .entry.reject_unsupported import check_schemas, reject_unsupported
from .entry.sequences import replace_sequences
from .folding.constant_targets import (
    TARGET_INPUTS,
    has_computed_target,
    make_targets_constant,
)
from .folding.constants import convert_cast_like, fold_constants
from .folding.control_flow import inline_static_control_flow, reject_control_flow
from .folding.identity import NO_OP_CANDIDATES, drop_identity
from .folding.shape_tracing import fold_known_shapes, trace_shapes
from .folding.zero_states import drop_zero_states, has_initial_state
from .layers.batch_norm import fold_batch_norm
from .layers.channel_affine import fold_affine
from .layers.constant_matmul import canonicalize_constant_matmul
from .layers.einsum import decompose_einsum
from .layers.factor_through_matmul import fold_factor_through_matmul
from .layers.fold_into_next_layer import (
    fold_batch_norm_into_next_layer,
    fold_factor_into_next_layer,
)
from .layers.layer_norm import ROOT_OPS, fuse_layer_norm
from .layers.linear import fuse_linear
from .layers.recurrent import convert_recurrent_layers, convert_to_time_first, is_batch_first
from .layers.reductions_to_pools import convert_reductions_to_pools
from .layers.resolve_padding import resolve_padding
from .layers.reversed_sequence import fold_sequence_reversal
from .layers.sequence_pool import convert_sequence_pools
from .layers.spatial_pool import convert_spatial_pools
from .layers.summed_product import SUM_OPS, convert_dot_products, convert_summed_products
from .layers.unit_stride_conv_transpose import convert_unit_stride_conv_transpose

__all__ = [
    "ENTRY_PASSES",
    "NORMALIZATION_PASSES",
    "CONTROL_FLOW_PASSES",
    "REQUIRED_PASSES",
    "PassResult",
    "Pass",
    "PassError",
    "SkipReason",
    "PassLog",
    "PassRun",
    "PassObserver",
    "run_entry_passes",
    "format_skipped_pass",
    "normalize",
    "resolve_control_flow",
    "is_strict_mode",
]


#: Preconditions of most passes: constants can be read by `ir.const_value`, and with SHAPED, shapes
#: are known, with FLAT, there is no control flow.
_BASIC_CONDITIONS = (FUNCTIONS_INLINED, CONSTANTS_LIFTED)
_SHAPED_CONDITIONS = (*_BASIC_CONDITIONS, SHAPES_KNOWN)
_FLAT_CONDITIONS = (*_BASIC_CONDITIONS, NO_SUBGRAPHS)
_FLAT_SHAPED_CONDITIONS = (*_SHAPED_CONDITIONS, NO_SUBGRAPHS)


def _has_matrix_product(target: Target) -> bool:
    """Whether `target` computes products of two activations in integers."""
    return target.can_run(integer_ops.BMM.name)


#: Run on the user's graph, before it is executed for the first time.
ENTRY_PASSES = (
    Pass("sound", check_schemas, ensures=[INPUTS_TYPED], handles_all=True),
    Pass("inline-functions", inline_functions, ensures=[FUNCTIONS_INLINED], handles_all=True),
    Pass("prepare", lift_constants, ensures=_BASIC_CONDITIONS, handles_all=True),
    Pass(
        "sequences",
        replace_sequences,
        keeps=_BASIC_CONDITIONS,
        is_candidate=match_op_types(*float_ops.SEQUENCE_OPS),
        operators=float_ops.SEQUENCE_OPS,
    ),
    Pass(
        "refuse",
        reject_unsupported,
        keeps=_BASIC_CONDITIONS,
        is_candidate=match_op_types(*float_ops.SEQUENCE_OPS),
        handles_all=True,
    ),
    Pass(
        "float32",
        convert_to_float32,
        _BASIC_CONDITIONS,
        "float16, bfloat16 and double are computed in float32, inputs and outputs included",
        ensures=[FLOAT32],
        handles_all=True,
    ),
    Pass(
        "missing-kernels",
        expand_missing_kernels,
        keeps=_BASIC_CONDITIONS,
        handles_all=True,
    ),
    Pass(
        "raise-opset",
        convert_opset,
        _BASIC_CONDITIONS,
        ensures=[*_BASIC_CONDITIONS, READABLE_OPSET],
    ),
    Pass(
        "time-first",
        convert_to_time_first,
        keeps=_BASIC_CONDITIONS,
        is_candidate=is_batch_first,
        handles_all=True,
        operators=float_ops.RECURRENT_OPS,
    ),
    Pass(
        "free-batch",
        make_batch_dynamic,
        keeps=_BASIC_CONDITIONS,
        note="the batch size, fixed in the file, is made dynamic",
    ),
)

#: Repeated until nothing changes; shapes are traced before each round, as inlined nodes have none.
CONTROL_FLOW_PASSES = (
    Pass("prepare", lift_constants, ensures=_BASIC_CONDITIONS, handles_all=True),
    Pass(
        "cast-like",
        convert_cast_like,
        keeps=_BASIC_CONDITIONS,
        is_candidate=match_op_types("CastLike"),
        operators=["CastLike"],
    ),
    Pass("fold-constants", fold_constants, keeps=_BASIC_CONDITIONS),
    Pass(
        "known-shapes",
        fold_known_shapes,
        _SHAPED_CONDITIONS,
        ensures=_BASIC_CONDITIONS,
        is_candidate=match_op_types("Shape", "Size"),
        operators=["Shape", "Size"],
    ),
    Pass("fold-constants", fold_constants, keeps=_BASIC_CONDITIONS),
    Pass(
        "inline-control",
        inline_static_control_flow,
        _BASIC_CONDITIONS,
        ensures=[FUNCTIONS_INLINED],
        is_candidate=ir.has_subgraphs,
    ),
)

NORMALIZATION_PASSES = (
    Pass("check-control", reject_control_flow, ensures=[NO_SUBGRAPHS], handles_all=True),
    Pass("prepare", lift_constants, ensures=_FLAT_CONDITIONS, handles_all=True),
    Pass(
        "cast-like",
        convert_cast_like,
        keeps=_FLAT_CONDITIONS,
        is_candidate=match_op_types("CastLike"),
        operators=["CastLike"],
    ),
    Pass("fold-constants", fold_constants, keeps=_FLAT_CONDITIONS),
    Pass(
        "known-shapes",
        fold_known_shapes,
        _FLAT_SHAPED_CONDITIONS,
        ensures=_FLAT_CONDITIONS,
        is_candidate=match_op_types("Shape", "Size"),
        operators=["Shape", "Size"],
    ),
    Pass("fold-constants", fold_constants, keeps=_FLAT_CONDITIONS),
    Pass(
        "zero-states",
        drop_zero_states,
        keeps=_FLAT_CONDITIONS,
        is_candidate=has_initial_state,
        operators=float_ops.RECURRENT_OPS,
    ),
    Pass(
        "drop-identity",
        drop_identity,
        keeps=_FLAT_SHAPED_CONDITIONS,
        is_candidate=match_op_types("Identity"),
        operators=NO_OP_CANDIDATES,
    ),
    Pass(
        "joined-parts",
        bypass_concat,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Concat", "Squeeze"],
    ),
    Pass(
        "constant-reshape",
        make_targets_constant,
        keeps=_FLAT_SHAPED_CONDITIONS,
        is_candidate=has_computed_target,
        operators=TARGET_INPUTS,
    ),
    Pass(
        "einsum",
        decompose_einsum,
        keeps=_FLAT_SHAPED_CONDITIONS,
        is_candidate=match_op_types("Einsum"),
        operators=["Einsum"],
    ),
    Pass(
        "constant-factor",
        canonicalize_constant_matmul,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["MatMul"],
    ),
    Pass(
        "constant-rows",
        replace_concat_with_constants,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Concat"],
    ),
    Pass("batch-first", move_batch_to_front, keeps=_FLAT_SHAPED_CONDITIONS),
    Pass("fold-constants", fold_constants, keeps=_FLAT_CONDITIONS),
    Pass(
        "recurrent",
        convert_recurrent_layers,
        keeps=_FLAT_SHAPED_CONDITIONS,
        is_candidate=match_op_types("LSTM", "GRU"),
        operators=["LSTM", "GRU"],
    ),
    Pass(
        "unbind",
        slice_before_transpose,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Transpose"],
    ),
    Pass(
        "channels",
        fold_channel_selection,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=MOVE_OPS,
    ),
    Pass(
        "layout",
        cancel_transposes,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Transpose"],
    ),
    Pass(
        "backward",
        fold_sequence_reversal,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=float_ops.RECURRENT_OPS,
    ),
    Pass(
        "plain-conv",
        convert_unit_stride_conv_transpose,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["ConvTranspose"],
    ),
    Pass(
        "explicit-pads",
        resolve_padding,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=float_ops.WINDOWED_OPS,
    ),
    Pass(
        "known-curves",
        fuse_known_activations,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=KNOWN_ACTIVATION_OPS,
    ),
    Pass(
        "layer-norm",
        fuse_layer_norm,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=ROOT_OPS,
    ),
    Pass(
        "summed-product",
        convert_summed_products,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=SUM_OPS,
        suits=_has_matrix_product,
    ),
    Pass(
        "dot-product",
        convert_dot_products,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=SUM_OPS,
        suits=lambda target: _has_matrix_product(target) and not target.has_packer,
    ),
    Pass(
        "linear",
        fuse_linear,
        keeps=_FLAT_SHAPED_CONDITIONS,
        is_candidate=match_op_types("Gemm", "MatMul"),
        operators=["Gemm", "MatMul"],
    ),
    Pass(
        "rows",
        unfold_linear_batch,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Reshape"],
    ),
    Pass(
        "windows",
        unfold_windows,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Reshape"],
    ),
    Pass(
        "dense-order",
        fold_transpose_into_linear,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Linear"],
    ),
    Pass(
        "joined-affine",
        move_affine_before_concat,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Concat"],
    ),
    Pass(
        "fold-batch-norm",
        fold_batch_norm,
        keeps=_FLAT_CONDITIONS,
        is_candidate=match_op_types("BatchNormalization"),
        operators=["BatchNormalization"],
    ),
    Pass(
        "scaled-product",
        fold_factor_through_matmul,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["MatMul"],
    ),
    Pass(
        "fold-affine",
        fold_affine,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Neg", *float_ops.AFFINE_OPS],
    ),
    Pass(
        "min-max",
        convert_min_max_to_clip,
        keeps=_FLAT_SHAPED_CONDITIONS,
        is_candidate=match_op_types("Min", "Max"),
        operators=["Min", "Max"],
    ),
    Pass(
        "clip",
        simplify_clip,
        keeps=_FLAT_CONDITIONS,
        operators=["Clip", "Relu"],
    ),
    Pass(
        "reduced",
        convert_reductions_to_pools,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=float_ops.REDUCTION_KINDS,
    ),
    Pass(
        "sequence-pool",
        convert_sequence_pools,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=[*float_ops.POOL_KINDS, *float_ops.REDUCTION_KINDS],
    ),
    Pass(
        "average-pool",
        convert_spatial_pools,
        keeps=_FLAT_SHAPED_CONDITIONS,
        is_candidate=match_op_types("GlobalAveragePool", "GlobalMaxPool"),
        operators=[*float_ops.POOL_KINDS, *float_ops.REDUCTION_KINDS],
    ),
    Pass(
        "split",
        convert_split_to_slices,
        keeps=_FLAT_SHAPED_CONDITIONS,
        is_candidate=match_op_types("Split"),
        operators=["Split"],
    ),
    Pass(
        "merge-axes",
        merge_axes,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Transpose"],
    ),
    Pass(
        "softmax",
        canonicalize_softmax,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=float_ops.SOFTMAX_FAMILY_OPS,
    ),
    Pass(
        "mask",
        canonicalize_attention_masks,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Softmax", "Where"],
    ),
    Pass(
        "curves",
        fuse_unary_functions,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=TABLE_FUNCTION_OPS,
    ),
    Pass(
        "layer-behind",
        fold_factor_into_next_layer,
        keeps=_FLAT_SHAPED_CONDITIONS,
        operators=["Neg", *float_ops.SCALING_OPS],
    ),
    Pass(
        "batch-norm-behind",
        fold_batch_norm_into_next_layer,
        keeps=_FLAT_SHAPED_CONDITIONS,
        is_candidate=match_op_types("BatchNormalization"),
        operators=["BatchNormalization"],
    ),
    Pass(
        "clean",
        remove_dead_nodes,
        _FLAT_CONDITIONS,
        ensures=[*_FLAT_CONDITIONS, NO_DEAD_NODES],
        handles_all=True,
    ),
)

#: Passes that the others depend on. Without any other pass the graph is still correct, but more
#: nodes stay float.
REQUIRED_PASSES = frozenset(
    (
        "sound",
        "inline-functions",
        "prepare",
        "refuse",
        "float32",
        "raise-opset",
        "check-control",
        "clean",
    )
)


def run_entry_passes(
    model: ir.Model, observer: PassObserver | None = None
) -> tuple[ir.Model, list[str]]:
    """Run `ENTRY_PASSES` on a copy of `model`.

    A pass outside `REQUIRED_PASSES` that fails is left out, with a note, except in strict mode; all
    passes then run again on a new copy.

    Parameters
    ----------
    model
        Not modified.
    observer
        Called after every pass.

    Returns
    -------
    model : ir.Model
        The copy, which the other passes can read.
    notes : list of str
        Changes that the user should know about, and passes that were left out.

    Raises
    ------
    ModelError
        The model cannot be quantized.
    PassError
        A required pass failed, or any pass in strict mode.
    """
    failed_passes: dict[str, str] = {}
    while True:
        copy = model.clone()
        try:
            changes = run_passes(ENTRY_PASSES, copy, observer, failed_passes)
        except PassError as error:
            is_optional = error.step not in REQUIRED_PASSES and error.step not in failed_passes
            if is_strict_mode() or not is_optional:
                raise
            failed_passes[error.step] = f"it failed: {error.__cause__ or error}"
            continue
        return copy, _format_notes(changes, failed_passes)


def _format_notes(changes: Mapping[str, int], failed_passes: Mapping[str, str]) -> list[str]:
    """Format the `note` of each of `ENTRY_PASSES` that changed the graph, then the failures.

    `changes` maps names of passes to numbers of changes; a pass without a note gives no line.
    `failed_passes` maps the names of passes that were left out to the reason; each gives one line.
    """
    notes = [step.note for step in ENTRY_PASSES if step.note and changes.get(step.name)]
    notes += [format_skipped_pass(step, reason) for step, reason in failed_passes.items()]
    return notes


def resolve_control_flow(
    model: ir.Model,
    feed: Mapping[str, np.ndarray],
    observer: PassObserver | None = None,
    skipped_passes: Collection[str] = (),
) -> None:
    """Inline static control flow of `model` and trace its shapes on `feed`, in place.

    Repeated until no node has a subgraph or none can be inlined; control flow that is not static
    remains. `feed` maps graph inputs to arrays; `skipped_passes` are the names of passes to leave
    out.
    """
    trace_shapes(model, feed)
    while any(ir.has_subgraphs(node) for node in model.graph):
        changes = run_passes(CONTROL_FLOW_PASSES, model, observer, skipped_passes)
        if not changes.get("inline-control"):
            break
        trace_shapes(model, feed)


def normalize(
    model: ir.Model, observer: PassObserver | None = None, skipped_passes: Collection[str] = ()
) -> dict[str, int]:
    """Run `NORMALIZATION_PASSES` except `skipped_passes` on `model`, in place.

    The shapes of `model` must have been traced. Returns the number of changes of each pass.
    """
    return run_passes(NORMALIZATION_PASSES, model, observer, skipped_passes)
