"""What packs and is not computed right: by operator, by place, by constants that are shared."""

from __future__ import annotations

from collections.abc import Iterator

from ....formats import (
    ADD,
    BMM,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    DEQUANT,
    LAYER_NORM,
    LINEAR,
    LSTM,
    MUL,
    QUANT,
    SUB,
)
from ...verdict import VerdictFinding
from ..packer_profile import get_packer_profile
from .assumptions import unmeasured
from .int4_checks import check_int4_plan
from .memory.findings import PlannedGraph, make_refusal_finding, make_wrong_result_finding
from .memory.placement_checks import PLACEMENT_RULES
from .memory.plan import RESERVED_BUFFER_NAMES
from .options import FLASH, SHARE
from .packer_graph import PackerStep

__all__ = ["check_correctness", "check_placement"]


def check_placement(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Yield what the packer refuses because of a place."""
    for step in plan.graph.steps:
        node, kind = plan.get_placed_step(step), get_packer_profile(plan.target)
        if step.op == CONV1D.name and node.is_input_in_psram():
            yield make_refusal_finding(
                step, "the input of a Conv1dInt lies in shared memory", "psram", "leave it there"
            )
        if step.op == CONV_TRANSPOSE2D.name and kind.conv_transpose_needs_shared_io:
            if node.is_input_in_psram() or node.is_output_in_psram:
                yield make_refusal_finding(
                    step,
                    "input and output of a ConvTranspose2dInt lie in shared memory",
                    "psram",
                    "leave them there",
                )
            elif kind.conv_transpose_needs_shared_weight and plan.places[step.inputs[1]] != SHARE:
                yield make_refusal_finding(
                    step,
                    "the weight of a ConvTranspose2dInt lies in shared memory",
                    "psram",
                    "-m params:share-mem",
                )


def check_correctness(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Yield what is not computed right under this plan, work areas apart."""
    kind = get_packer_profile(plan.target)
    yield from _check_names(plan)
    yield from _check_shared_constants(plan)
    yield from _check_input_scales(plan)
    yield from check_int4_plan(plan)
    for step in plan.graph.steps:
        yield from _check_operator(plan, step)
        for name in dict.fromkeys((*step.outputs, *step.inputs)):
            if plan.options.placements.get(name) == FLASH:
                yield make_wrong_result_finding(
                    step,
                    "tensors of a run lie in memory that can be written",
                    "flash",
                    "choose psram",
                )
        rules = (
            *PLACEMENT_RULES.get("", {}).get(step.op, ()),
            *PLACEMENT_RULES.get(kind.work_area_table, {}).get(step.op, ()),
        )
        for rule in rules:
            yield from rule(plan, step, plan.get_placed_step(step))


def _check_names(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    kind = get_packer_profile(plan.target)
    for tensor in plan.graph.iterate_tensors():
        what = ""
        if (
            "workspace" in tensor.name
            and plan.memory_plan.work_areas
            and kind.reserves_workspace_name
        ):
            what = "no tensor has 'workspace' in its name"
        elif tensor.name in RESERVED_BUFFER_NAMES and plan.options.constant_memory != SHARE:
            what = "no tensor is named dma_buffer"
        if what:
            at = plan.graph.find_producer(tensor.name) or plan.graph.find_consumers(tensor.name)[0]
            yield make_wrong_result_finding(at, what, f"'{tensor.name}'", "rename it")


def _check_shared_constants(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Constants that several nodes read while their other constants differ, and that are fetched ahead.

    A weight is stored in the form that its first reader wants: one of another operator reads it
    wrong, fetched or not.
    """
    users = _map_constant_users(plan)
    for name, steps in users.items():
        kinds = {s.op for s in steps if s.op in (LINEAR.name, BMM.name, CONV2D.name, CONV1D.name)}
        if len(kinds) > 1:
            value = f"'{name}' by {' and '.join(sorted(kinds))}"
            yield make_wrong_result_finding(
                steps[-1], "a constant is read by operators of one kind", value, "copy the constant"
            )
    if not plan.memory_plan.prefetched_bytes:
        return
    for name, steps in users.items():
        if len(steps) == 1:
            continue
        sets = {tuple(t.name for t in plan.graph.get_constants(s)) for s in steps}
        if len(sets) > 1 and all(len(one) > 1 for one in sets):
            yield make_wrong_result_finding(
                steps[-1],
                "nodes that share a constant share all, where they are fetched ahead",
                f"'{name}'",
                "copy the constant, or --dma_prefetch False",
            )


def _map_constant_users(plan: PlannedGraph) -> dict[str, list[PackerStep]]:
    users: dict[str, list[PackerStep]] = {}
    for step in plan.graph.steps:
        for tensor in plan.graph.get_constants(step):
            users.setdefault(tensor.name, []).append(step)
    return users


def _check_input_scales(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    kind = get_packer_profile(plan.target)
    for name in plan.graph.inputs:
        if plan.graph.tensors[name].scale is None and kind.needs_input_scale:
            for step in plan.graph.find_consumers(name):
                if step.get("scale_x") is None and step.get("scale_x_0") is None:
                    yield make_wrong_result_finding(
                        step,
                        "the first reader of an integer graph input tells its scale",
                        step.op,
                        "write a Quant",
                    )


def _check_operator(plan: PlannedGraph, step: PackerStep) -> Iterator[VerdictFinding]:
    kind, node = get_packer_profile(plan.target), plan.get_placed_step(step)
    if step.op in (QUANT.name, DEQUANT.name):
        yield make_wrong_result_finding(
            step,
            "no float operator stands between integers",
            step.op,
            "quantize it, or cut the graph",
        )
    elif step.created_as == "pad":
        others = plan.graph.find_consumers(step.outputs[0])
        if len(others) > 1 or any(other.created_as == "group" for other in others):
            yield make_wrong_result_finding(
                others[0],
                "a convolution over a map smaller than its kernel, whose pads the packer moves, "
                "reads a tensor of its own",
                f"{len(others)} readers, group or not",
                "copy the tensor, or split the groups by Slice",
            )
    elif step.op in kind.unverified_operators:
        yield make_wrong_result_finding(
            step,
            f"{step.op} could be measured on {plan.target.name}",
            "it could not",
            "leave it in float",
        )
    elif not plan.target.can_run(step.op):
        yield make_wrong_result_finding(
            step,
            f"the executor of {plan.target.name} computes this operator right",
            step.op,
            "replace it",
        )
    if step.op in kind.lut_input_bits and 8 * node.x.width != kind.lut_input_bits[step.op]:
        yield make_wrong_result_finding(
            step,
            f"{step.op} reads {kind.lut_input_bits[step.op]} bits",
            8 * node.x.width,
            "add a Requant",
        )
    if step.op == LINEAR.name and step.get("o_bits") not in kind.linear_output_bits:
        yield make_wrong_result_finding(
            step,
            f"o_bits of a LinearInt is one of {kind.linear_output_bits}",
            step.get("o_bits"),
            "write 8 or 32",
        )
    if step.op == LAYER_NORM.name:
        yield from _check_layer_norm(plan, step)
    if step.op == LSTM.name and kind.needs_even_lstm_units and int(step.get("hidden_size")) % 2:
        yield make_wrong_result_finding(
            step,
            "the hidden size of an LSTMInt is even",
            step.get("hidden_size"),
            "add a unit with zero weights",
        )
    if step.op == LAYER_NORM.name and node.inputs[1].width != kind.layer_norm_weight_bytes:
        yield make_wrong_result_finding(
            step,
            f"the weight of a LayerNormInt has {8 * kind.layer_norm_weight_bytes} bits",
            8 * node.inputs[1].width,
            "quantize for this chip",
        )
    if step.op in (CONV2D.name, CONV1D.name) and node.x.shape[0] > 1 and not kind.supports_batch:
        yield make_wrong_result_finding(
            step, "the batch is 1", node.x.shape[0], "write the graph for one sample"
        )
    yield from _check_output_scale(plan, step)


def _check_layer_norm(plan: PlannedGraph, step: PackerStep) -> Iterator[VerdictFinding]:
    kind, node = get_packer_profile(plan.target), plan.get_placed_step(step)
    row = node.inputs[1].elements
    if row < kind.min_layer_norm_length:
        yield make_wrong_result_finding(
            step,
            f"a LayerNormInt has lines of {kind.min_layer_norm_length} elements or more",
            row,
            "leave it in float",
        )
    if len(node.x.shape) == 2 and not kind.supports_2d_layer_norm:
        yield make_wrong_result_finding(
            step,
            "the input of a LayerNormInt has three axes or more",
            2,
            "reshape it before and after",
        )
    elif len(node.x.shape) == 2:
        yield from _check_2d_layer_norm(step, node.x.elements // row)


@unmeasured(
    "of a LayerNormInt with two axes, two lines are computed, however many there are; one was "
    "measured"
)
def _check_2d_layer_norm(step: PackerStep, rows: int) -> Iterator[VerdictFinding]:
    if rows > 2:
        yield make_wrong_result_finding(
            step,
            "a LayerNormInt of two axes has at most two lines",
            rows,
            "reshape it before and after",
        )


def _check_output_scale(plan: PlannedGraph, step: PackerStep) -> Iterator[VerdictFinding]:
    scale, x, y = (step.get(k) for k in ("scale_o", "scale_x", "scale_y"))
    if scale is None or x is None:
        return
    if step.op in (ADD.name, SUB.name) and y is not None and scale > min(x, y):
        yield make_wrong_result_finding(
            step,
            "the output's scale is not above those of the inputs",
            f"{scale:g}",
            "lower scale_o",
        )
    if step.op in (MUL.name, BMM.name) and scale > x * (y or 1):
        yield make_wrong_result_finding(
            step,
            "the output's scale is not above the product of the inputs' scales",
            f"{scale:g}",
            "lower scale_o",
        )
