"""Placements of tensors with which a node packs but computes a wrong result.

Each rule yields findings on one step. Rules without a docstring are stated by their message.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ....common.arithmetic import round_up
from ....operators.integer_ops import (
    ADD,
    BATCH_NORM2D,
    CONCAT,
    CONV2D,
    CONV_TRANSPOSE2D,
    LAYER_NORM,
    LINEAR,
    LSTM,
    PAD,
    SOFTMAX,
    SUB,
)
from ....targets import Target
from ....targets.verdict import VerdictFinding
from ...faults import LunaFault
from ...packer_profile import get_packer_profile
from ..assumptions import unmeasured
from ..options import PSRAM, SHARE
from ..packer_graph import PackerStep, PackerTensor
from .findings import MAX_COPY_BYTES, PlannedGraph, make_wrong_result_finding
from .work_areas import MAX_DEPTHWISE_CHUNK_BYTES, PlacedStep

__all__ = ["PlacementRule", "get_placement_rules", "needs_shared_tensors"]

#: Yields the findings on a step: (plan, step, the step with its tensors and memories).
PlacementRule = Callable[[PlannedGraph, PackerStep, PlacedStep], Iterator[VerdictFinding]]


def _check_slice_output(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if the output of a Slice is in PSRAM."""
    if node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "the output of a Slice must be in shared memory",
            "psram",
            "move the large tensors by name",
        )


def _check_max_pool_placement(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if input or output of a MaxPool is in PSRAM."""
    if node.is_input_in_psram() or node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "input and output of a MaxPool must be in shared memory",
            "psram",
            "leave them in shared memory",
        )


def _check_large_conv(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a Conv2dInt over a large map uses PSRAM.

    That is so if its input or output is there and the map, with channels rounded up to 8 and the
    width to 8 strides, has more than 65536 bytes.
    """
    map_bytes = _measure_conv_map(step, node.x)
    if map_bytes > MAX_COPY_BYTES and (node.is_input_in_psram() or node.is_output_in_psram):
        yield make_wrong_result_finding(
            step,
            "input and output of a convolution over more than 65536 bytes must be in shared memory",
            f"{map_bytes} bytes",
            "leave them in shared memory, or split the map into tiles",
        )


def _measure_conv_map(step: PackerStep, x: PackerTensor) -> int:
    """Return the bytes of the input `x` of a Conv2dInt as the executor pads it."""
    _, channels, height, width = x.shape
    return round_up(channels, 8) * round_up(width, 8 * step.get("strides")[1]) * height


def _check_depthwise_output(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding if a depthwise convolution with its output in PSRAM is not cut by rows.

    It is computed in row tiles only if the input has at least as many rows as fit in 32768 bytes
    (channels rounded up to 4, the width to 8 strides) and the output more rows than these give.
    """
    if int(step.get("group", 1)) == 1 or not node.is_output_in_psram:
        return
    _, channels, height, width = node.x.shape
    stride, column_stride = step.get("strides")
    max_input_rows = MAX_DEPTHWISE_CHUNK_BYTES // (
        round_up(channels, 4) * round_up(width, 8 * column_stride)
    )
    unread_rows = max_input_rows - step.get("kernel_shape")[0] - step.get("pads")[0]
    max_output_rows = max(1, (unread_rows + stride) // stride)
    if height < max_input_rows or node.y.shape[2] <= max_output_rows:
        yield make_wrong_result_finding(
            step,
            "the output of a depthwise convolution over a small map must be in shared memory",
            f"{height} rows, {max_input_rows} fit",
            "leave it in shared memory",
        )


def _check_concat_output(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if an iqCat with rescaled inputs writes to PSRAM.

    An input is rescaled if its scale differs from `scale_o`.
    """
    scale = step.get("scale_o")
    has_rescaled_input = any(
        step.get(f"scale_x_{i}", scale) != scale for i in range(len(step.inputs))
    )
    if node.is_output_in_psram and has_rescaled_input:
        yield make_wrong_result_finding(
            step,
            "the output of an iqCat with rescaled inputs must be in shared memory",
            "psram",
            "leave it in shared memory",
        )


def _check_crashing_transpose(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a Transpose has a perm with which the chip crashes.

    Such a perm is accepted if input and output are in PSRAM and the input has at most the profile's
    `max_crashing_perm_bytes`.
    """
    limits = get_packer_profile(plan.target).transpose
    if tuple(step.get("perm")) not in limits.crashing_perms:
        return
    if (
        node.is_input_in_psram()
        and node.is_output_in_psram
        and node.x.size_bytes <= limits.max_crashing_perm_bytes
    ):
        return
    rule = (
        f"perm must not be one of {limits.crashing_perms}, unless input and output are in psram "
        f"and have at most {limits.max_crashing_perm_bytes} bytes"
    )
    yield make_wrong_result_finding(
        step, rule, f"{step.get('perm')}", "use two other transposes in a row"
    )


def _check_transpose_between_convolutions(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a Transpose between two Conv2dInt has a wrong perm.

    Wrong are the perms in the profile's `wrong_between_convolutions`; one consumer that is a
    Conv2dInt suffices.
    """
    limits = get_packer_profile(plan.target).transpose
    producer = plan.graph.find_producer(step.inputs[0])
    consumers = plan.graph.find_consumers(step.outputs[0])
    is_between_convolutions = (
        producer is not None
        and producer.op == CONV2D.name
        and any(consumer.op == CONV2D.name for consumer in consumers)
    )
    if tuple(step.get("perm")) in limits.wrong_between_convolutions and is_between_convolutions:
        yield make_wrong_result_finding(
            step,
            "the perm of a Transpose between convolutions must not be one of "
            f"{limits.wrong_between_convolutions}",
            f"{step.get('perm')}",
            "swap the axes of the whole network",
        )


def _check_multirow_linear(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if rows and outputs of a LinearInt would be exchanged.

    That is so with several rows, several outputs and the result in shared memory.
    """
    rows = node.x.elements // node.x.shape[-1]
    if rows > 1 and node.y.shape[-1] > 1 and not node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "the output of a LinearInt with several rows must be in psram",
            f"{rows} rows",
            f"-m {step.outputs[0]}:psram",
        )


def _check_transpose_to_psram(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a Transpose uses a work area that is not planned.

    That is so from shared memory to PSRAM for an input of less than 65536 bytes.
    """
    if (
        node.is_output_in_psram
        and not node.is_input_in_psram()
        and node.x.planned_bytes < MAX_COPY_BYTES
    ):
        rule = "the input of a Transpose to psram of less than 65536 bytes must be in psram"
        yield make_wrong_result_finding(step, rule, "shared memory", f"-m {step.inputs[0]}:psram")


@unmeasured(
    "a Transpose of more than 65536 bytes is wrong with a tensor in psram: none was right, and "
    "smaller ones were"
)
def _check_large_transpose(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a large Transpose reads or writes PSRAM.

    Large means more than `MAX_COPY_BYTES` of input.
    """
    uses_psram = node.is_input_in_psram() or node.is_output_in_psram
    if node.x.size_bytes > MAX_COPY_BYTES and uses_psram:
        yield make_wrong_result_finding(
            step,
            "input and output of a Transpose of more than 65536 bytes must be in shared memory",
            f"{node.x.size_bytes} bytes",
            "leave them in shared memory",
        )


def _check_last_axes_transpose(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a Transpose with perm (0, 1, 3, 2) reads from PSRAM."""
    if tuple(step.get("perm")) == (0, 1, 3, 2) and node.is_input_in_psram():
        yield make_wrong_result_finding(
            step,
            "the input of a Transpose with perm (0, 1, 3, 2) must be in shared memory",
            "psram",
            "leave it in shared memory",
        )


def _check_add_single_psram_operand(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if an iqAdd would never end.

    That is so if exactly one operand is in PSRAM, the output is not, and both operands have the
    output's scale: the copy then goes in blocks of a work area of 0 bytes.
    """
    psram_operands = node.is_input_in_psram() + node.is_input_in_psram(1)
    if (
        psram_operands == 1
        and not node.is_output_in_psram
        and not any(_are_operands_rescaled(step))
    ):
        yield make_wrong_result_finding(
            step,
            "add operands at the output scale must be in the same memory unless the output is in "
            "psram",
            "one operand in psram",
            f"-m {step.inputs[0]}:psram,{step.inputs[1]}:psram",
        )


@unmeasured("the second operand is shifted by the shift of the first one")
def _check_add_shift(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if an iqAdd shifts its second operand by a wrong amount.

    That is so if the output is in PSRAM, the first operand is not, and only the second is rescaled.
    """
    if (
        node.is_output_in_psram
        and not node.is_input_in_psram()
        and _are_operands_rescaled(step) == (False, True)
    ):
        rule = (
            "if the second add operand is rescaled and the output is in psram, the first operand "
            "must be in psram"
        )
        yield make_wrong_result_finding(step, rule, "shared memory", f"-m {step.inputs[0]}:psram")


def _are_operands_rescaled(step: PackerStep) -> tuple[bool, bool]:
    """Return for both operands of a sum whether their scale differs from `scale_o`.

    A missing scale counts as different.
    """
    scale = step.get("scale_o")
    return step.get("scale_x") != scale, step.get("scale_y") != scale


def _check_batch_norm_placement(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if input or output of a BatchNorm2dInt is in PSRAM."""
    if node.is_input_in_psram() or node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "input and output of a BatchNorm2dInt must be in shared memory",
            "psram",
            "leave them in shared memory",
        )


def _check_layer_norm_constants(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a LayerNormInt overwrites constants in shared memory.

    The constants are not copied from there, but rows are still written where the copy would be: 16
    to 18 bytes per row element after the start of the bias. No finding with constants in PSRAM.
    """
    if plan.options.constant_memory != SHARE:
        return
    row_length = node.inputs[1].elements
    stored_bytes = plan.memory_plan.stored_bytes
    constant_offsets = itertools.accumulate(stored_bytes.values(), initial=0)
    offsets = dict(zip(stored_bytes, constant_offsets, strict=False))
    bias_offset = offsets[node.inputs[2].name]
    start, end = bias_offset + 16 * row_length, bias_offset + 18 * row_length
    overwritten = [
        name
        for name, offset in offsets.items()
        if offset < end and start < offset + _get_used_bytes(plan, name)
    ]
    if overwritten:
        yield make_wrong_result_finding(
            step,
            "with constants in shared memory, none may be 16 to 18 bytes per element after the "
            "bias of a LayerNormInt",
            ", ".join(overwritten),
            "leave the constants in psram",
        )


def _get_used_bytes(plan: PlannedGraph, name: str) -> int:
    """Return the bytes of a constant that hold data.

    The padding to a multiple of 16 does not count; a constant that is stored in another layout
    counts with all stored bytes.
    """
    tensor, stored = plan.graph.tensors[name], plan.memory_plan.stored_bytes[name]
    return tensor.size_bytes if tensor.planned_bytes == stored else stored


def _check_add_second_operand(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a large iqAdd reads its second operand from PSRAM.

    Large means that the first operand has 65536 bytes or more.
    """
    if node.x.size_bytes >= MAX_COPY_BYTES and node.is_input_in_psram(1):
        yield make_wrong_result_finding(
            step,
            "the second add operand of 65536 bytes or more must be in shared memory",
            "psram",
            "leave it in shared memory",
        )


@unmeasured(
    "an iqAdd of 65536 bytes or more may read its first operand from psram only if it writes to "
    "shared memory"
)
def _check_add_psram_result(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if only the second operand of a large iqAdd is not in PSRAM.

    Large means that the first operand has 65536 bytes or more. Measured: correct with the result in
    shared memory, wrong with all three tensors in PSRAM.
    """
    if (
        node.x.size_bytes >= MAX_COPY_BYTES
        and node.is_input_in_psram()
        and not node.is_input_in_psram(1)
        and node.is_output_in_psram
    ):
        yield make_wrong_result_finding(
            step,
            "the output of an iqAdd of 65536 bytes or more with its first operand in psram must be "
            "in shared memory",
            "psram",
            "leave the output in shared memory",
        )


def _check_sub_placement(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" unless operands and output of an iqSub are all in PSRAM."""
    if not (node.is_input_in_psram() and node.is_input_in_psram(1) and node.is_output_in_psram):
        yield make_wrong_result_finding(
            step,
            "operands and output of an iqSub must be in psram",
            "shared memory",
            "--threshold4 1",
        )


@unmeasured("a Squeeze behaves as the measured Unsqueeze")
def _check_squeeze_move(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a Squeeze or Unsqueeze moves data out of PSRAM."""
    if node.is_input_in_psram() and not node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "the output of an Unsqueeze or Squeeze must be in psram if its input is",
            "shared memory",
            "place input and output in the same memory",
        )


def _check_lstm_layout(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield findings of level "right" on `batch_first` and the input shape of an LSTMInt.

    `batch_first` must be that of the chip, or 1 with axes 1 and 2 of the input of one size; where
    it must be 1, these must have one size. Versions that follow `batch_first` take any.
    """
    profile = get_packer_profile(plan.target)
    has_batch_first = bool(step.get("batch_first"))
    follows_batch_first = step.op in profile.follow_batch_first
    batch_axis = 1 if follows_batch_first and not has_batch_first else 0
    if node.x.shape[batch_axis] != 1:
        yield make_wrong_result_finding(
            step,
            f"axis {batch_axis} of the input of an LSTMInt is the batch, which must be 1",
            list(node.x.shape),
            "transpose the input, or quantize for this version",
        )
    if follows_batch_first:
        return
    needs_batch_first = profile.lstm_batch_first
    is_square = node.x.shape[1] == node.x.shape[2]
    if has_batch_first != needs_batch_first and not (has_batch_first and is_square):
        yield make_wrong_result_finding(
            step,
            f"batch_first of an LSTMInt must be {int(needs_batch_first)}",
            step.get("batch_first"),
            "quantize for this chip",
        )
    if needs_batch_first and not is_square:
        yield make_wrong_result_finding(
            step,
            "the sequence length of an LSTMInt must equal its number of features",
            list(node.x.shape),
            "pad the shorter axis",
        )


def _check_lstm_prefetch(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" on an LSTMInt if the plan prefetches any constants."""
    if plan.memory_plan.prefetched_bytes:
        yield make_wrong_result_finding(
            step,
            "LSTMInt constants must not be prefetched",
            "they are",
            "--dma_prefetch False",
        )


@unmeasured(
    "an input in psram alone makes the result wrong; such measured graphs were wrong unless the "
    "plan happened to be large"
)
def _check_lstm_common_placement(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if an LSTMInt reads from PSRAM but writes a state elsewhere.

    States are its outputs after the first; nothing is reported if the first output has no consumer
    and is no graph output.
    """
    shared_states = [n for n in step.outputs[1:] if plan.placements[n] != PSRAM]
    has_consumers = (
        plan.graph.find_consumers(step.outputs[0]) or step.outputs[0] in plan.graph.outputs
    )
    if node.is_input_in_psram() and shared_states and has_consumers:
        yield make_wrong_result_finding(
            step,
            "the outputs of an LSTMInt must be in psram if its input is",
            ", ".join(shared_states),
            "--threshold4 1",
        )


def _check_lstm_constant_gaps(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if constants of an LSTMInt are prefetched with gaps.

    The package aligns each constant to 16 bytes, and the executor reads them without gaps.
    """
    sizes = [tensor.size_bytes for tensor in node.inputs if tensor.is_constant]
    if plan.memory_plan.prefetched_bytes and any(size % 16 for size in sizes):
        yield make_wrong_result_finding(
            step,
            "the constants of an LSTMInt must be multiples of 16 bytes to be prefetched",
            ", ".join(map(str, sizes)),
            "--dma_prefetch False",
        )


@unmeasured("a SoftmaxInt in psram is wrong on venusA as it is on arcs")
def _check_softmax_placement(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if input or output of a SoftmaxInt is in PSRAM."""
    if node.is_input_in_psram() or node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "input and output of a SoftmaxInt must be in shared memory",
            "psram",
            "leave them in shared memory",
        )


def _check_transposed_conv_weight(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a ConvTranspose2dInt mixes memories.

    That is so if constants are in shared memory, but its input or output is in PSRAM.
    """
    if plan.options.constant_memory == SHARE and (
        node.is_input_in_psram() or node.is_output_in_psram
    ):
        yield make_wrong_result_finding(
            step,
            "input and output of a ConvTranspose2dInt must be in shared memory if its weight is",
            "psram",
            "leave the constants in psram",
        )


def _check_first_pad(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if the first step with a work area is an iqPad from PSRAM.

    The work area, which all steps share, would then be in PSRAM. `step` is that iqPad.
    """
    first_step = next((s for s in plan.graph.steps if s.name in plan.memory_plan.work_areas), None)
    if node.is_input_in_psram() and first_step is not None and first_step.name == step.name:
        yield make_wrong_result_finding(
            step,
            "the input of an iqPad, if it is the first node with a work area, must be in shared "
            "memory",
            "psram",
            "leave its input in shared memory",
        )


def _check_pad_output(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding if the output of an iqPad exceeds `MAX_COPY_BYTES`, wherever it is."""
    if node.y.size_bytes > MAX_COPY_BYTES:
        yield make_wrong_result_finding(
            step,
            "the output of an iqPad must have at most 65536 bytes",
            f"{node.y.size_bytes} bytes",
            "split the map by channels",
        )


def _check_layer_norm_shared(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" unless a LayerNormInt has all its tensors in PSRAM."""
    if not (node.is_input_in_psram() and node.is_output_in_psram):
        yield make_wrong_result_finding(
            step,
            "input and output of a LayerNormInt must be in psram",
            "shared memory",
            "--threshold4 1",
        )


#: Rules of versions that have a fault; the rules of other faults in the tables below apply to all.
FAULT_RULES: Mapping[LunaFault, Mapping[str, PlacementRule]] = MappingProxyType(
    {LunaFault.NORM_SHARED: {LAYER_NORM.name: _check_layer_norm_shared}}
)

#: Rules that no longer apply in versions without this fault.
RULE_FAULTS: Mapping[PlacementRule, LunaFault] = MappingProxyType(
    {
        _check_add_single_psram_operand: LunaFault.ADD_EXTERNAL,
        _check_add_shift: LunaFault.ADD_EXTERNAL,
        _check_multirow_linear: LunaFault.LINEAR_ROWS,
        _check_sub_placement: LunaFault.SUB_PLACEMENT,
        _check_layer_norm_constants: LunaFault.NORM_PLACEMENT,
    }
)

#: Rules that arcs and venusA have in common.
_ARCS_VENUSA_RULES: Mapping[str, tuple[PlacementRule, ...]] = {
    LSTM.name: (_check_lstm_prefetch,),
    LAYER_NORM.name: (_check_layer_norm_constants,),
    SOFTMAX.name: (_check_softmax_placement,),
    BATCH_NORM2D.name: (_check_batch_norm_placement,),
}

#: PackerProfile.work_area_table ("" for all chips) -> operator -> rules.
PLACEMENT_RULES: Mapping[str, Mapping[str, tuple[PlacementRule, ...]]] = MappingProxyType(
    {
        "": {
            LSTM.name: (_check_lstm_layout,),
            PAD.name: (_check_first_pad,),
            SUB.name: (_check_sub_placement,),
            "Transpose": (_check_transpose_to_psram, _check_large_transpose),
        },
        "venus": {
            CONV2D.name: (_check_large_conv,),
            CONCAT.name: (_check_concat_output,),
            PAD.name: (_check_pad_output,),
            "Transpose": (_check_transpose_between_convolutions, _check_last_axes_transpose),
            LSTM.name: (_check_lstm_common_placement, _check_lstm_constant_gaps),
        },
        "arcs": {
            **_ARCS_VENUSA_RULES,
            "Slice": (_check_slice_output,),
            "MaxPool": (_check_max_pool_placement,),
            ADD.name: (_check_add_single_psram_operand, _check_add_shift),
        },
        "venusA": {
            **_ARCS_VENUSA_RULES,
            CONV2D.name: (_check_depthwise_output,),
            LINEAR.name: (_check_multirow_linear,),
            "Transpose": (_check_crashing_transpose,),
            ADD.name: (
                _check_add_single_psram_operand,
                _check_add_shift,
                _check_add_second_operand,
                _check_add_psram_result,
            ),
            CONV_TRANSPOSE2D.name: (_check_transposed_conv_weight,),
            **dict.fromkeys(("Squeeze", "Unsqueeze"), (_check_squeeze_move,)),
        },
    }
)


def get_placement_rules(target: Target, operator: str) -> tuple[PlacementRule, ...]:
    """Return the rules of `operator` for all chips, the chip of `target` and its version."""
    table = get_packer_profile(target).work_area_table
    rules = (*PLACEMENT_RULES[""].get(operator, ()), *PLACEMENT_RULES[table].get(operator, ()))
    rules_of_version = tuple(
        by_operator[operator]
        for fault, by_operator in FAULT_RULES.items()
        if fault in target.faults and operator in by_operator
    )
    return rules_of_version + tuple(
        rule for rule in rules if rule not in RULE_FAULTS or RULE_FAULTS[rule] in target.faults
    )


#: Rules by which a node is wrong unless its input and output are in shared memory.
_SHARED_TENSOR_RULES = (
    _check_max_pool_placement,
    _check_batch_norm_placement,
    _check_softmax_placement,
)


def needs_shared_tensors(target: Target, step: PackerStep, x: PackerTensor) -> bool:
    """Whether `step` is wrong in every plan that has its input `x` or its output in PSRAM.

    False also where that depends on more than the step.
    """
    rules = get_placement_rules(target, step.op)
    if _check_large_conv in rules and _measure_conv_map(step, x) > MAX_COPY_BYTES:
        return True
    return any(rule in _SHARED_TENSOR_RULES for rule in rules)
