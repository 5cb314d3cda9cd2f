"""Checks of 4-bit weights: which nodes pack with them, and where the chip misreads the package.

Two rules concern the memory plan rather than single operators. If the DMA prefetches constants, a
node with 4-bit weights reads the first bytes of its weights as its bias. And the executor expects
the constant after 4-bit weights at half of their padded 8-bit size, while the package rounds the
packed bytes up to 16: if the two differ, all constants after them are misread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...operators.integer_ops import CONV1D, CONV2D, LAYER_NORM, LINEAR
from ...targets import Target
from ...targets.verdict import VerdictFinding
from ..packer_profile import Int4Support, get_packer_profile
from .memory.findings import PlannedGraph, make_refusal_finding, make_wrong_result_finding
from .memory.graph_facts import GraphFacts
from .packer_graph import PackerGraph, PackerStep

__all__ = ["INT4_BITS", "check_int4_format", "check_int4_plan"]

INT4_BITS = 4
_KEEP_8_BITS_REMEDY = "leave the layer at 8 bits (--override)"


def check_int4_format(net: PackerGraph, target: Target) -> Iterator[VerdictFinding]:
    """Yield the findings on steps of `net` with 4-bit weights that no memory placement changes.

    Checked are whether the operator supports them, the value range -8 to 7, and weights that
    several steps share. The level is "packs" (refused) or "right" (wrong result).
    """
    support_by_operator = get_packer_profile(target).narrow
    packed_steps = [step for step in net.steps if _has_packed_weights(step, support_by_operator)]
    for step in net.steps:
        if step.weight_bits == INT4_BITS and step.op in support_by_operator:
            yield from _check_operator(net, step, support_by_operator[step.op], target)
    for step in packed_steps:
        constants = net.get_constants(step)
        if not constants:
            continue
        weights = net.arrays[constants[0].name]
        if weights.size and not -8 <= weights.min() <= weights.max() <= 7:
            yield make_refusal_finding(
                step,
                "4-bit weights must be integers from -8 to 7",
                f"{weights.min()} to {weights.max()}",
                "round them to 4 bits",
            )
    yield from _check_shared_weights(net, packed_steps)


def _has_packed_weights(step: PackerStep, support_by_operator: Mapping[str, Int4Support]) -> bool:
    """Whether `step` declares 4-bit weights that the chip stores two in a byte for its operator."""
    return step.weight_bits == INT4_BITS and support_by_operator.get(step.op) is Int4Support.PACKED


def _check_operator(
    net: PackerGraph, step: PackerStep, support: Int4Support, target: Target
) -> Iterator[VerdictFinding]:
    """Yield the findings on one step with 4-bit weights, whose operator has `support` for them.

    Without packed support the weights must have 8 bits ("packs" if refused, else "right"; a grouped
    Conv1dInt is refused only on chips without any 4-bit operator). Otherwise LinearInt and Gather
    have checks of their own, and the row length of a LayerNormInt must be even.
    """
    if support is not Int4Support.PACKED:
        is_refused = support is Int4Support.REFUSED and (
            step.op != CONV1D.name
            or int(step.get("group", 1)) == 1
            or not _has_int4_operators(target)
        )
        make_finding = make_refusal_finding if is_refused else make_wrong_result_finding
        rule = f"the weights of a {step.op} must have 8 bits"
        yield make_finding(step, rule, INT4_BITS, _KEEP_8_BITS_REMEDY)
    elif step.op == LINEAR.name:
        yield from _check_linear(net, step)
    elif step.op == LAYER_NORM.name:
        row_length = net.tensors[step.inputs[1]].shape[-1]
        if row_length % 2:
            rule = "the row length of a LayerNormInt with 4-bit weights must be even"
            yield make_wrong_result_finding(step, rule, row_length, _KEEP_8_BITS_REMEDY)
    elif step.op == "Gather" and net.get_constants(step):
        yield from _check_gather(net, step)


def _check_linear(net: PackerGraph, step: PackerStep) -> Iterator[VerdictFinding]:
    """Yield at most one finding of level "right" on LinearInt `step` with 4-bit weights.

    It must have more than one input per row and, checked only then, `o_bits` 8.
    """
    if net.tensors[step.inputs[1]].shape[-1] == 1:
        rule = "a LinearInt with 4-bit weights must have at least two inputs per row"
        yield make_wrong_result_finding(step, rule, 1, _KEEP_8_BITS_REMEDY)
    elif step.get("o_bits") != 8:
        rule = "the output of a LinearInt with 4-bit weights must have 8 bits"
        yield make_wrong_result_finding(step, rule, step.get("o_bits"), _KEEP_8_BITS_REMEDY)


def _check_gather(net: PackerGraph, step: PackerStep) -> Iterator[VerdictFinding]:
    """Yield findings of level "right" on a Gather from a constant 4-bit table.

    Wrong are an odd row length and indices whose elements have not 8 bytes (int64).
    """
    row_length = net.tensors[step.inputs[0]].shape[-1]
    if row_length % 2:
        rule = "the row length of a 4-bit table must be even"
        yield make_wrong_result_finding(step, rule, row_length, _KEEP_8_BITS_REMEDY)
    if net.tensors[step.inputs[1]].width != 8:
        yield make_wrong_result_finding(
            step,
            "the index into a 4-bit table must be int64",
            "another type",
            "declare the index int64",
        )


def _has_int4_operators(target: Target) -> bool:
    """Whether any operator of `target` stores 4-bit weights two in a byte."""
    return Int4Support.PACKED in get_packer_profile(target).narrow.values()


def _check_shared_weights(
    net: PackerGraph, packed_steps: list[PackerStep]
) -> Iterator[VerdictFinding]:
    """Yield a finding for each of `packed_steps`, with 4-bit weights, that shares them wrongly.

    Sharing is correct only between Conv2dInt that all have 4-bit weights. Other sharers with 8-bit
    weights or another operator give a wrong result ("right"), the same operator with 4 bits is
    refused ("packs").
    """
    for step in packed_steps:
        constants = net.get_constants(step)
        if not constants:
            continue
        name = constants[0].name
        other_consumers = [other for other in net.find_consumers(name) if other is not step]
        rule = "4-bit weights must have one consumer, unless all are Conv2dInt with 4-bit weights"
        remedy = "copy the weights"
        if any(other.weight_bits != INT4_BITS or other.op != step.op for other in other_consumers):
            yield make_wrong_result_finding(step, rule, f"'{name}'", remedy)
        elif other_consumers and step.op != CONV2D.name:
            yield make_refusal_finding(step, rule, f"'{name}'", remedy)


def check_int4_plan(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Yield the findings of level "right" on 4-bit weights that depend on the memory plan.

    Wrong are prefetched weights of a step with further constants, and, if any step has packed
    weights, a constant whose written bytes differ from the planned ones and which another constant
    follows.
    """
    packed_steps = plan.facts.remember(_find_packed_steps)
    for step in packed_steps:
        if (
            step.name in plan.memory_plan.prefetch_buffers
            and len(plan.graph.get_constants(step)) > 1
        ):
            yield make_wrong_result_finding(
                step,
                "4-bit weights of a node with a bias must not be prefetched",
                "they are prefetched",
                "--dma_prefetch False, or -m params:share-mem",
            )
    if not packed_steps:
        return
    first_consumers: dict[str, PackerStep] = {}
    for step in plan.graph.steps:
        for tensor in plan.graph.get_constants(step):
            first_consumers.setdefault(tensor.name, step)
    stored_sizes = list(plan.facts.stored_sizes.items())
    for name, size in stored_sizes[:-1]:  # nothing is stored after the last one
        if size.planned_bytes != size.written_bytes:
            yield make_wrong_result_finding(
                first_consumers[name],
                "4-bit weights must fill their planned size if other constants follow them",
                f"{size.written_bytes} bytes of '{name}', {size.planned_bytes} are planned",
                "widen the kernel by zeros, write it as a 1x1 convolution, or leave it at 8 bits",
            )


def _find_packed_steps(facts: GraphFacts) -> list[PackerStep]:
    """Return the steps of a graph whose 4-bit weights the packer packs."""
    support_by_operator = get_packer_profile(facts.target).narrow
    return [step for step in facts.net.steps if _has_packed_weights(step, support_by_operator)]
