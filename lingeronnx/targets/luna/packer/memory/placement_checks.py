"""What packs and is not computed right because of where a tensor lies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from .....formats import (
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
from ....verdict import VerdictFinding
from ...packer_profile import get_packer_profile
from ..assumptions import unmeasured
from ..options import PSRAM, SHARE
from ..packer_graph import PackerStep
from .findings import MAX_COPY_BYTES, PlannedGraph, make_wrong_result_finding
from .work_areas import PlacedStep

__all__ = ["PLACEMENT_RULES"]

PlacementRule = Callable[[PlannedGraph, PackerStep, PlacedStep], Iterator[VerdictFinding]]


def _slice(plan: PlannedGraph, step: PackerStep, node: PlacedStep) -> Iterator[VerdictFinding]:
    if node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "the output of a Slice lies in shared memory",
            "psram",
            "move the large tensors by name",
        )


def _check_max_pool(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    if node.is_input_in_psram() or node.is_output_in_psram:
        yield make_wrong_result_finding(
            step, "input and output of a MaxPool lie in shared memory", "psram", "leave them there"
        )


def _check_large_conv(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    _, channels, height, width = node.x.shape
    need = (
        -(-channels // 8)
        * 8
        * -(-width // (8 * step.get("strides")[1]))
        * 8
        * step.get("strides")[1]
        * height
    )
    if need > MAX_COPY_BYTES and (node.is_input_in_psram() or node.is_output_in_psram):
        yield make_wrong_result_finding(
            step,
            "input and output of a convolution over more than 65536 bytes lie in shared memory",
            f"{need} bytes",
            "leave them there, or cut the map into tiles",
        )


def _cat_venus(plan: PlannedGraph, step: PackerStep, node: PlacedStep) -> Iterator[VerdictFinding]:
    scale = step.get("scale_o")
    other = [i for i in range(len(step.inputs)) if step.get(f"scale_x_{i}", scale) != scale]
    if node.is_output_in_psram and other:
        yield make_wrong_result_finding(
            step,
            "the output of an iqCat of other scales lies in shared memory",
            "psram",
            "leave it there",
        )


def _transpose_broken(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    kind = get_packer_profile(plan.target)
    if tuple(step.get("perm")) not in kind.transpose.crashing_perms:
        return
    if not (
        node.is_input_in_psram()
        and node.is_output_in_psram
        and node.x.size_bytes <= kind.transpose.max_crashing_perm_bytes
    ):
        rule = (
            f"transposes are none of {kind.transpose.crashing_perms}, unless input and output lie "
            "in psram and have at "
            "most "
            f"{kind.transpose.max_crashing_perm_bytes} bytes"
        )
        yield make_wrong_result_finding(
            step, rule, f"{step.get('perm')}", "use two others in a row"
        )


def _transpose_between(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    kind = get_packer_profile(plan.target)
    maker, readers = (
        plan.graph.find_producer(step.inputs[0]),
        plan.graph.find_consumers(step.outputs[0]),
    )
    between = (
        maker is not None and maker.op == CONV2D.name and any(r.op == CONV2D.name for r in readers)
    )
    if tuple(step.get("perm")) in kind.transpose.wrong_between_convolutions and between:
        yield make_wrong_result_finding(
            step,
            (
                "transposes between convolutions are none of "
                f"{kind.transpose.wrong_between_convolutions}"
            ),
            f"{step.get('perm')}",
            "swap the axes of the whole network",
        )


def _check_multirow_linear(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """Rows change places with outputs.

    Of one output there is nothing to mix up (`places.assumptions` tells of it).
    """
    rows = node.x.elements // node.x.shape[-1]
    if rows > 1 and node.y.shape[-1] > 1 and not node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "the output of a LinearInt of several rows lies in psram",
            f"{rows} rows",
            f"-m {step.outputs[0]}:psram",
        )


def _check_transpose_to_psram(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """No work area is planned for it, and it takes one."""
    if (
        node.is_output_in_psram
        and not node.is_input_in_psram()
        and node.x.planned_bytes < MAX_COPY_BYTES
    ):
        rule = "a transpose of less than 65536 bytes that writes to psram reads from there"
        yield make_wrong_result_finding(step, rule, "shared memory", f"-m {step.inputs[0]}:psram")


def _check_last_axes_transpose(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    if tuple(step.get("perm")) == (0, 1, 3, 2) and node.is_input_in_psram():
        yield make_wrong_result_finding(
            step,
            "a transpose (0, 1, 3, 2) reads from shared memory",
            "psram",
            "leave its input there",
        )


def _check_add_single_psram_operand(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """It copies the operand in blocks as large as the work area planned for it, which has no bytes: it never ends."""
    outside = node.is_input_in_psram() + node.is_input_in_psram(1)
    if outside == 1 and not node.is_output_in_psram and not any(_rescaled(step)):
        rule = (
            "operands of a sum at the scale of the result lie in one place, or the result in psram"
        )
        yield make_wrong_result_finding(
            step, rule, "one operand in psram", f"-m {step.inputs[0]}:psram,{step.inputs[1]}:psram"
        )


@unmeasured("the second operand is shifted by the first one's amount")
def _check_add_shift(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    if (
        node.is_output_in_psram
        and not node.is_input_in_psram()
        and _rescaled(step) == (False, True)
    ):
        rule = (
            "where the second operand of a sum is rescaled and the result lies in psram, so "
            "does the first"
        )
        yield make_wrong_result_finding(step, rule, "shared memory", f"-m {step.inputs[0]}:psram")


def _rescaled(step: PackerStep) -> tuple[bool, bool]:
    """Return of both operands whether they have another scale than the result."""
    scale = step.get("scale_o")
    return step.get("scale_x") != scale, step.get("scale_y") != scale


def _check_batch_norm(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    if node.is_input_in_psram() or node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "input and output of a BatchNorm2dInt lie in shared memory",
            "psram",
            "leave them there",
        )


def _check_layer_norm_constants(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """A factor in shared memory is not copied, nor is the bias.

    Rows go behind the bias all the same.
    """
    if plan.options.constant_memory != SHARE:
        return
    row = node.inputs[1].elements
    stored = plan.memory_plan.stored_bytes
    offsets = dict(zip(stored, itertools.accumulate(stored.values(), initial=0), strict=False))
    start, end = (offsets[node.inputs[2].name] + times * row for times in (16, 18))
    hit = [
        name
        for name, at in offsets.items()
        if at < end and start < at + _get_used_bytes(plan, name)
    ]
    if hit:
        rule = (
            "a LayerNormInt whose constants lie in shared memory has none 16 to 18 bytes an "
            "element behind its bias"
        )
        yield make_wrong_result_finding(step, rule, ", ".join(hit), "leave the constants in psram")


def _get_used_bytes(plan: PlannedGraph, name: str) -> int:
    """Return the bytes of a stored constant that are read: all but what rounds it up to 16."""
    tensor, stored = plan.graph.tensors[name], plan.memory_plan.stored_bytes[name]
    return tensor.size_bytes if tensor.planned_bytes == stored else stored


def _check_add_second_operand(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    if node.x.size_bytes >= MAX_COPY_BYTES and node.is_input_in_psram(1):
        yield make_wrong_result_finding(
            step,
            "the second operand of a sum of 65536 bytes or more lies in shared memory",
            "psram",
            "leave it there",
        )


@unmeasured(
    "a sum of 65536 bytes or more may read its first operand in psram only where it writes to "
    "shared memory"
)
def _check_add_psram_result(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    """With the result in shared memory it was right; with all three in psram it was wrong."""
    if (
        node.x.size_bytes >= MAX_COPY_BYTES
        and node.is_input_in_psram()
        and not node.is_input_in_psram(1)
        and node.is_output_in_psram
    ):
        rule = (
            "a sum of 65536 bytes or more that reads its first operand in psram writes to "
            "shared memory"
        )
        yield make_wrong_result_finding(step, rule, "psram", "leave the result there")


def _sub(plan: PlannedGraph, step: PackerStep, node: PlacedStep) -> Iterator[VerdictFinding]:
    if not (node.is_input_in_psram() and node.is_input_in_psram(1) and node.is_output_in_psram):
        yield make_wrong_result_finding(
            step, "operands and result of an iqSub lie in psram", "shared memory", "--threshold4 1"
        )


@unmeasured("a Squeeze does what an Unsqueeze did")
def _check_squeeze_move(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    if node.is_input_in_psram() and not node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "what an Unsqueeze or Squeeze reads in psram stays there",
            "moved to shared memory",
            "place both sides alike",
        )


def _check_lstm_layout(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    first = get_packer_profile(plan.target).lstm_batch_first
    if bool(step.get("batch_first")) != first:
        yield make_wrong_result_finding(
            step,
            f"batch_first of an LSTMInt is {int(first)}",
            step.get("batch_first"),
            "quantize for this chip",
        )
    if first and node.x.shape[1] != node.x.shape[2]:
        yield make_wrong_result_finding(
            step,
            "a sequence has as many steps as a step has elements",
            list(node.x.shape),
            "pad the shorter",
        )


def _check_lstm_prefetch(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    if plan.memory_plan.prefetched_bytes:
        yield make_wrong_result_finding(
            step,
            "the constants of an LSTMInt are not fetched ahead",
            "they are",
            "--dma_prefetch False",
        )


@unmeasured(
    "an input in psram by itself harms; such rows were wrong but where the plan happened to be "
    "large"
)
def _check_lstm_common_placement(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    states = [n for n in step.outputs[1:] if plan.places[n] != PSRAM]
    used = plan.graph.find_consumers(step.outputs[0]) or step.outputs[0] in plan.graph.outputs
    if node.is_input_in_psram() and states and used:
        yield make_wrong_result_finding(
            step,
            "where the input of an LSTMInt lies in psram, so do its outputs",
            ", ".join(states),
            "--threshold4 1",
        )


@unmeasured("the place harms; all rows with it were wrong, if for another reason as well")
def _check_lstm_output(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    if not node.is_output_in_psram and plan.graph.find_consumers(step.outputs[0]):
        yield make_wrong_result_finding(
            step,
            "the output of an LSTMInt lies in psram",
            "shared memory",
            f"-m {step.outputs[0]}:psram",
        )


@unmeasured("a SoftmaxInt in psram is wrong on venusA as it is on arcs")
def _softmax_shared(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    if node.is_input_in_psram() or node.is_output_in_psram:
        yield make_wrong_result_finding(
            step,
            "input and output of a SoftmaxInt lie in shared memory",
            "psram",
            "leave them there",
        )


def _transposed_outside(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    if plan.options.constant_memory == SHARE and (
        node.is_input_in_psram() or node.is_output_in_psram
    ):
        yield make_wrong_result_finding(
            step,
            "with its weight in shared memory, a ConvTranspose2dInt reads and writes there",
            "psram",
            "leave the constants in psram",
        )


def _check_first_pad(
    plan: PlannedGraph, step: PackerStep, node: PlacedStep
) -> Iterator[VerdictFinding]:
    first = next((s for s in plan.graph.steps if s.name in plan.memory_plan.work_areas), None)
    if node.is_input_in_psram() and first is not None and first.name == step.name:
        yield make_wrong_result_finding(
            step,
            "the work area of all nodes, which a first iqPad places, lies in shared memory",
            "psram",
            "leave its input in shared memory",
        )


#: What arcs and venusA have in common.
_ARCS_VENUSA_RULES: Mapping[str, tuple[PlacementRule, ...]] = {
    LSTM.name: (_check_lstm_prefetch,),
    LAYER_NORM.name: (_check_layer_norm_constants,),
    SOFTMAX.name: (_softmax_shared,),
    BATCH_NORM2D.name: (_check_batch_norm,),
}

#: Packing.areas ("" for all) -> operator -> rules.
PLACEMENT_RULES: Mapping[str, Mapping[str, tuple[PlacementRule, ...]]] = MappingProxyType(
    {
        "": {
            LSTM.name: (_check_lstm_layout,),
            PAD.name: (_check_first_pad,),
            SUB.name: (_sub,),
            "Transpose": (_check_transpose_to_psram,),
        },
        "venus": {
            CONV2D.name: (_check_large_conv,),
            CONCAT.name: (_cat_venus,),
            "Transpose": (_transpose_between, _check_last_axes_transpose),
            LSTM.name: (_check_lstm_common_placement, _check_lstm_output),
        },
        "arcs": {
            **_ARCS_VENUSA_RULES,
            "Slice": (_slice,),
            "MaxPool": (_check_max_pool,),
            ADD.name: (_check_add_single_psram_operand, _check_add_shift),
        },
        "venusA": {
            **_ARCS_VENUSA_RULES,
            LINEAR.name: (_check_multirow_linear,),
            "Transpose": (_transpose_broken,),
            ADD.name: (
                _check_add_single_psram_operand,
                _check_add_shift,
                _check_add_second_operand,
                _check_add_psram_result,
            ),
            CONV_TRANSPOSE2D.name: (_transposed_outside,),
            **dict.fromkeys(("Squeeze", "Unsqueeze"), (_check_squeeze_move,)),
        },
    }
)
