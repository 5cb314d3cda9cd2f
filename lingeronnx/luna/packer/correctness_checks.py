"""Checks of a planned graph for refused placements and for results that the chip computes wrong.

By operator, by memory placement, and by shared constants.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...operators.integer_ops import (
    ADD,
    BMM,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    DEQUANT,
    LAYER_NORM,
    LINEAR,
    MUL,
    QUANT,
    SUB,
)
from ...targets import Target
from ...targets.verdict import VerdictFinding
from ..packer_profile import get_packer_profile
from .assumptions import unmeasured
from .fault_checks import check_faults
from .int4_checks import check_int4_plan
from .memory.findings import PlannedGraph, make_refusal_finding, make_wrong_result_finding
from .memory.graph_facts import RESERVED_BUFFER_NAMES, GraphFacts
from .memory.placement_checks import PlacementRule, get_placement_rules
from .memory.work_areas import PlacedStep
from .options import FLASH, SHARE
from .packer_graph import PackerStep, PackerTensor

__all__ = ["check_correctness", "check_placement"]


def check_placement(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Yield a finding of level "packs" for each placement in `plan` that the packer refuses.

    Refused are a Conv1dInt with its input in PSRAM and, where the chip's profile requires shared
    memory, a ConvTranspose2dInt with its input or output in PSRAM, or else with its weight outside
    shared memory.
    """
    profile = get_packer_profile(plan.target)
    for step in plan.graph.steps:
        if step.op not in (CONV1D.name, CONV_TRANSPOSE2D.name):
            continue
        node = plan.get_placed_step(step)
        if step.op == CONV1D.name and node.is_input_in_psram():
            yield make_refusal_finding(
                step,
                "the input of a Conv1dInt must be in shared memory",
                "psram",
                "leave it in shared memory",
            )
        if step.op == CONV_TRANSPOSE2D.name and profile.conv_transpose_needs_shared_io:
            if node.is_input_in_psram() or node.is_output_in_psram:
                yield make_refusal_finding(
                    step,
                    "input and output of a ConvTranspose2dInt must be in shared memory",
                    "psram",
                    "leave them in shared memory",
                )
            elif (
                profile.conv_transpose_needs_shared_weight
                and plan.placements[step.inputs[1]] != SHARE
            ):
                yield make_refusal_finding(
                    step,
                    "the weight of a ConvTranspose2dInt must be in shared memory",
                    "psram",
                    "-m params:share-mem",
                )


def check_correctness(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" for each cause of wrong results in `plan`.

    Checked are tensor names, shared constants, scales of graph inputs, 4-bit weights, operators,
    activations placed in flash, and the placement rules of all chips and of this one. Writes past
    work areas and outputs are not checked here.
    """
    yield from _check_names(plan)
    yield from _check_shared_constants(plan)
    yield from plan.facts.remember(_check_input_scales)
    yield from check_int4_plan(plan)
    operator_findings = plan.facts.remember(_check_operators)
    rules_by_operator = plan.facts.remember(_map_placement_rules)
    uses_flash = FLASH in plan.options.placements.values()
    for step, findings in zip(plan.graph.steps, operator_findings, strict=True):
        yield from findings
        if uses_flash:
            yield from _check_flash(plan, step)
        if rules := rules_by_operator[step.op]:
            node = plan.get_placed_step(step)
            for rule in rules:
                yield from rule(plan, step, node)
        yield from check_faults(plan, step)


def _check_operators(facts: GraphFacts) -> list[list[VerdictFinding]]:
    """Return the findings of each step that do not depend on the plan."""
    return [list(_check_operator(facts, step)) for step in facts.net.steps]


def _map_placement_rules(facts: GraphFacts) -> dict[str, tuple[PlacementRule, ...]]:
    """Map each operator of a graph to its placement rules."""
    operators = {step.op for step in facts.net.steps}
    return {operator: get_placement_rules(facts.target, operator) for operator in operators}


def _check_flash(plan: PlannedGraph, step: PackerStep) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" for each tensor of `step` that is placed in flash."""
    for name in dict.fromkeys((*step.outputs, *step.inputs)):
        if plan.options.placements.get(name) == FLASH:
            yield make_wrong_result_finding(
                step, "activations must be in writable memory", "flash", "choose psram"
            )


def _check_names(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" for each tensor whose name the packer takes for a buffer.

    Names that contain "workspace" are wrong only if the plan has work areas and the chip uses that
    name; "dma_buffer1" and "dma_buffer2" unless constants are in shared memory. The finding names
    the producer, or for a graph input its first consumer.
    """
    profile = get_packer_profile(plan.target)
    for tensor in plan.facts.remember(_find_suspicious_names):
        rule = ""
        if (
            "workspace" in tensor.name
            and plan.memory_plan.work_areas
            and profile.reserves_workspace_name
        ):
            rule = "tensor names must not contain 'workspace'"
        elif tensor.name in RESERVED_BUFFER_NAMES and plan.options.constant_memory != SHARE:
            rule = "no tensor may be named dma_buffer1 or dma_buffer2"
        if rule:
            step = plan.graph.find_producer(tensor.name)
            if step is None:
                step = plan.graph.find_consumers(tensor.name)[0]
            yield make_wrong_result_finding(step, rule, f"'{tensor.name}'", "rename it")


def _find_suspicious_names(facts: GraphFacts) -> list[PackerTensor]:
    """Return the activations whose names the packer may take for those of its buffers."""
    return [
        tensor
        for tensor in facts.net.iterate_tensors()
        if "workspace" in tensor.name or tensor.name in RESERVED_BUFFER_NAMES
    ]


def _check_shared_constants(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Yield a finding for each constant that its consumers cannot share.

    A constant is stored in the layout of its operator, so LinearInt, BmmInt, Conv2dInt and
    Conv1dInt cannot share one with each other. With DMA prefetch, steps with several constants that
    share one of them must share all.
    """
    yield from plan.facts.remember(_check_constant_layouts)
    if plan.memory_plan.prefetched_bytes:
        yield from plan.facts.remember(_check_prefetched_constants)


def _check_constant_layouts(facts: GraphFacts) -> list[VerdictFinding]:
    """Return a finding for each constant that operators with different layouts share."""
    findings = []
    for name, consumers in _map_constant_consumers(facts).items():
        operators = {step.op for step in consumers} & _LAYOUT_OPERATORS
        if len(operators) > 1:
            finding = make_wrong_result_finding(
                consumers[-1],
                "all consumers of a constant must have the same operator type",
                f"'{name}' by {' and '.join(sorted(operators))}",
                "copy the constant",
            )
            findings.append(finding)
    return findings


def _check_prefetched_constants(facts: GraphFacts) -> list[VerdictFinding]:
    """Return a finding for each constant of which steps share not all their other constants."""
    findings = []
    for name, consumers in _map_constant_consumers(facts).items():
        constant_sets = {
            tuple(tensor.name for tensor in facts.net.get_constants(step)) for step in consumers
        }
        if len(constant_sets) > 1 and all(len(names) > 1 for names in constant_sets):
            finding = make_wrong_result_finding(
                consumers[-1],
                "with DMA prefetch, nodes that share one constant must share all their constants",
                f"'{name}'",
                "copy the constant, or --dma_prefetch False",
            )
            findings.append(finding)
    return findings


#: Operators that store their weights in a layout of their own.
_LAYOUT_OPERATORS = {LINEAR.name, BMM.name, CONV2D.name, CONV1D.name}


def _map_constant_consumers(facts: GraphFacts) -> dict[str, list[PackerStep]]:
    """Map each constant that takes memory to the steps that read it, in execution order."""
    consumers: dict[str, list[PackerStep]] = {}
    for step, constants in zip(facts.net.steps, facts.constants, strict=True):
        for tensor in constants:
            consumers.setdefault(tensor.name, []).append(step)
    return consumers


def _check_input_scales(facts: GraphFacts) -> list[VerdictFinding]:
    """Return a finding for each step that reads an integer graph input of unknown scale.

    A step that declares `scale_x` or `scale_x_0` is correct, and so is every consumer of an input
    whose scale a Quant has set. No findings on chips whose executor does not need the scale.
    """
    findings: list[VerdictFinding] = []
    if not get_packer_profile(facts.target).needs_input_scale:
        return findings
    for name in facts.net.inputs:
        if facts.net.tensors[name].scale is not None:
            continue
        for step in facts.net.find_consumers(name):
            if step.get("scale_x") is None and step.get("scale_x_0") is None:
                finding = make_wrong_result_finding(
                    step,
                    "the first consumer of an integer graph input must declare its scale",
                    step.op,
                    "write a Quant",
                )
                findings.append(finding)
    return findings


def _check_operator(facts: GraphFacts, step: PackerStep) -> Iterator[VerdictFinding]:
    """Yield the findings of level "right" on one step that do not depend on memory placement.

    Checked are operator support, input bits of table lookups, o_bits of LinearInt, shapes and
    weight of LayerNormInt, batches of convolutions, and the output scale.
    """
    node = PlacedStep.from_step(facts.net, step, {})
    profile = get_packer_profile(facts.target)
    yield from _check_operator_support(facts, step)
    lut_input_bits = profile.lut_input_bits.get(step.op, 0)
    if lut_input_bits and 8 * node.x.width != lut_input_bits:
        make_finding = make_wrong_result_finding
        if profile.refuses_lut_widths:
            make_finding = make_refusal_finding
        yield make_finding(
            step,
            f"the input of a {step.op} must have {lut_input_bits} bits",
            8 * node.x.width,
            "add a Requant",
        )
    if (
        step.op == LINEAR.name
        and step.get("o_bits") not in profile.linear_output_bits
        and _get_linear_widths(step) not in profile.wide_linear
    ):
        yield make_wrong_result_finding(
            step,
            f"o_bits of a LinearInt must be one of {profile.linear_output_bits}",
            step.get("o_bits"),
            "write 8 or 32",
        )
    if step.op == LAYER_NORM.name:
        yield from _check_layer_norm(facts, step)
    if step.op in (CONV2D.name, CONV1D.name) and node.x.shape[0] > 1 and not profile.supports_batch:
        yield make_wrong_result_finding(
            step, "the batch size must be 1", node.x.shape[0], "write the graph for one sample"
        )
    yield from _check_output_scale(step, facts.target)


def _get_linear_widths(step: PackerStep) -> tuple[object, object, object]:
    """Return (data_bits, parameter_bits, o_bits) of a LinearInt."""
    return step.get("data_bits"), step.get("parameter_bits"), step.get("o_bits")


def _check_operator_support(facts: GraphFacts, step: PackerStep) -> Iterator[VerdictFinding]:
    """Yield at most one finding if the chip does not compute the operator of `step` at all.

    Wrong are a Quant or Dequant between integer operators, a padding that the packer moved in front
    of a convolution if the padded tensor has several consumers or a grouped one, an operator that
    was never measured on the chip, and one that the target lacks.
    """
    profile = get_packer_profile(facts.target)
    if step.op in (QUANT.name, DEQUANT.name):
        yield make_wrong_result_finding(
            step,
            "no float operator may be between integer operators",
            step.op,
            "quantize it, or split the graph",
        )
    elif step.created_as == "pad":
        consumers = facts.net.find_consumers(step.outputs[0])
        if len(consumers) > 1 or any(consumer.created_as == "group" for consumer in consumers):
            yield make_wrong_result_finding(
                consumers[0],
                "a convolution over a map smaller than its kernel, whose padding the packer "
                "hoists, must be the only consumer of its input",
                f"{len(consumers)} consumers, or a grouped convolution",
                "copy the tensor, or split the groups by Slice",
            )
    elif step.op in profile.unverified_operators:
        yield make_wrong_result_finding(
            step,
            f"{step.op} must be measured on {facts.target.name}",
            "it could not be measured",
            "leave it in float",
        )
    elif not facts.target.can_run(step.op) and step.op not in profile.unwritten_operators:
        yield make_wrong_result_finding(
            step,
            f"the executor of {facts.target.name} must compute the operator correctly",
            step.op,
            "replace it",
        )


def _check_layer_norm(facts: GraphFacts, step: PackerStep) -> Iterator[VerdictFinding]:
    """Yield the findings of level "right" on shapes and weight of a LayerNormInt step.

    The limits are those of the chip's profile: minimum row length, whether two axes are supported
    (then at most two rows), and the width of the weight.
    """
    profile = get_packer_profile(facts.target)
    node = PlacedStep.from_step(facts.net, step, {})
    row_length = node.inputs[1].elements
    is_2d = len(node.x.shape) == 2
    if row_length < profile.min_layer_norm_length:
        yield make_wrong_result_finding(
            step,
            "the row length of a LayerNormInt must be at least "
            f"{profile.min_layer_norm_length} elements",
            row_length,
            "leave it in float",
        )
    if is_2d and not profile.supports_2d_layer_norm:
        yield make_wrong_result_finding(
            step,
            "the input of a LayerNormInt must have at least three axes",
            2,
            "reshape it before and after",
        )
    elif is_2d:
        yield from _check_2d_layer_norm(step, node.x.elements // row_length)
    if profile.layer_norm_weight_bytes not in (0, node.inputs[1].width):
        yield make_wrong_result_finding(
            step,
            f"the weight of a LayerNormInt must have {8 * profile.layer_norm_weight_bytes} bits",
            8 * node.inputs[1].width,
            "quantize for this chip",
        )


@unmeasured(
    "a LayerNormInt with two axes computes two rows, however many there are; only one row was "
    "measured"
)
def _check_2d_layer_norm(step: PackerStep, rows: int) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if a LayerNormInt over a 2-D input has `rows` above 2."""
    if rows > 2:
        yield make_wrong_result_finding(
            step,
            "a LayerNormInt with two axes must have at most two rows",
            rows,
            "reshape it before and after",
        )


def _check_output_scale(step: PackerStep, target: Target) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" if `scale_o` of a sum or product is too large.

    It must not exceed the smaller input scale of an iqAdd or iqSub, by more than the largest shift
    where the chip shifts them left correctly, nor the product of the input scales of an iqMul or
    BmmInt. Steps without `scale_o` or `scale_x`, and other operators, pass.
    """
    scale, x, y = (step.get(key) for key in ("scale_o", "scale_x", "scale_y"))
    if scale is None or x is None:
        return
    profile = get_packer_profile(target)
    max_left_shift = profile.max_left_shift if step.op in profile.left_shifted_sums else 0
    shifts_left = y is None or scale <= min(x, y) * 2.0**max_left_shift
    if step.op in (ADD.name, SUB.name) and y is not None and scale > min(x, y) and not shifts_left:
        yield make_wrong_result_finding(
            step,
            "the output scale must not exceed the input scales",
            f"{scale:g}",
            "lower scale_o",
        )
    if step.op in (MUL.name, BMM.name) and scale > x * (y or 1):
        yield make_wrong_result_finding(
            step,
            "the output scale must not exceed the product of the input scales",
            f"{scale:g}",
            "lower scale_o",
        )
