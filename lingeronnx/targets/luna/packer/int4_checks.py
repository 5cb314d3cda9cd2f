"""4-bit weights: which nodes pack with them, and when the chip then reads what the package holds.

Two rules beside those of single operators. Where the DMA fetches constants ahead, a node with 4-bit
weights takes their first bytes for its bias. And the executor finds a constant behind 4-bit weights
where half of their padded 8-bit size says, while the package rounds the packed bytes up to 16:
where the two differ, all that lies behind is misread.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....formats import CONV1D, CONV2D, LAYER_NORM, LINEAR
from ... import Target
from ...verdict import VerdictFinding
from ..packer_profile import Int4Support, get_packer_profile
from .memory.constants import compute_stored_sizes
from .memory.findings import PlannedGraph, make_refusal_finding, make_wrong_result_finding
from .packer_graph import PackerGraph, PackerStep

__all__ = ["INT4_BITS", "check_int4_format", "check_int4_plan"]

INT4_BITS = 4
_KEEP_8_BITS_REMEDY = "leave the layer at 8 bits (--override)"


def check_int4_format(net: PackerGraph, target: Target) -> Iterator[VerdictFinding]:
    """Yield what is refused or wrong of nodes with 4-bit weights, wherever tensors and constants lie."""
    told = get_packer_profile(target).narrow
    halved = [
        step
        for step in net.steps
        if step.weight_bits == INT4_BITS and told.get(step.op) is Int4Support.PACKED
    ]
    for step in net.steps:
        if step.weight_bits == INT4_BITS and step.op in told:
            yield from _check_operator(net, step, told[step.op], target)
    for step in halved:
        values = net.arrays[net.get_constants(step)[0].name] if net.get_constants(step) else None
        if values is not None and values.size and not -8 <= values.min() <= values.max() <= 7:
            value = f"{values.min()} to {values.max()}"
            yield make_refusal_finding(
                step, "4-bit weights are integers from -8 to 7", value, "round them to 4 bits"
            )
    yield from _check_shared_weights(net, halved)


def _check_operator(
    net: PackerGraph, step: PackerStep, kind: Int4Support, target: Target
) -> Iterator[VerdictFinding]:
    """Yield what stands against 4-bit weights of one node."""
    shapes = [net.tensors[name].shape for name in step.inputs]
    if kind is Int4Support.REFUSED and (
        step.op != CONV1D.name or int(step.get("group", 1)) == 1 or not _has_int4_operators(target)
    ):
        yield make_refusal_finding(
            step, f"the weights of a {step.op} have 8 bits", INT4_BITS, _KEEP_8_BITS_REMEDY
        )
    elif kind is not Int4Support.PACKED:
        yield make_wrong_result_finding(
            step, f"the weights of a {step.op} have 8 bits", INT4_BITS, _KEEP_8_BITS_REMEDY
        )
    elif step.op == LINEAR.name and shapes[1][-1] == 1:
        yield make_wrong_result_finding(
            step,
            "a LinearInt with 4-bit weights reads two elements or more",
            1,
            _KEEP_8_BITS_REMEDY,
        )
    elif step.op == LINEAR.name and step.get("o_bits") != 8:
        yield make_wrong_result_finding(
            step,
            "a LinearInt with 4-bit weights writes 8 bits",
            step.get("o_bits"),
            _KEEP_8_BITS_REMEDY,
        )
    elif step.op == LAYER_NORM.name and shapes[1][-1] % 2:
        yield make_wrong_result_finding(
            step,
            "a LayerNormInt with 4-bit weights has lines of even length",
            shapes[1][-1],
            _KEEP_8_BITS_REMEDY,
        )
    elif step.op == "Gather" and net.get_constants(step):
        if shapes[0][-1] % 2:
            yield make_wrong_result_finding(
                step,
                "the rows of a 4-bit table have an even length",
                shapes[0][-1],
                _KEEP_8_BITS_REMEDY,
            )
        if net.tensors[step.inputs[1]].width != 8:
            yield make_wrong_result_finding(
                step,
                "a 4-bit table is read by an int64 index",
                "another",
                "declare the index int64",
            )


def _has_int4_operators(target: Target) -> bool:
    """Whether anything on the chip has weights of 4 bits."""
    return Int4Support.PACKED in get_packer_profile(target).narrow.values()


def _check_shared_weights(net: PackerGraph, halved: list[PackerStep]) -> Iterator[VerdictFinding]:
    """Yield 4-bit constants that several nodes read.

    Right only where all are Conv2dInt of 4 bits.
    """
    for step in halved:
        if not net.get_constants(step):
            continue
        name = net.get_constants(step)[0].name
        others = [other for other in net.find_consumers(name) if other is not step]
        rule, remedy = (
            "4-bit weights are read by one node, or by Conv2dInt that all say 4 bits",
            "copy the weights",
        )
        if any(other.weight_bits != INT4_BITS or other.op != step.op for other in others):
            yield make_wrong_result_finding(step, rule, f"'{name}'", remedy)
        elif others and step.op != CONV2D.name:
            yield make_refusal_finding(step, rule, f"'{name}'", remedy)


def check_int4_plan(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Yield what is wrong of 4-bit weights under a plan: the two rules."""
    told = get_packer_profile(plan.target).narrow
    steps = [
        s
        for s in plan.graph.steps
        if s.weight_bits == INT4_BITS and told.get(s.op) is Int4Support.PACKED
    ]
    for step in steps:
        if (
            step.name in plan.memory_plan.prefetch_buffers
            and len(plan.graph.get_constants(step)) > 1
        ):
            rule = "a node with 4-bit weights and a bias reads them where they lie"
            remedy = "--dma_prefetch False, or -m params:share-mem"
            yield make_wrong_result_finding(step, rule, "they are fetched ahead", remedy)
    if not steps:
        return
    laid = list(compute_stored_sizes(plan.graph, plan.target).items())
    readers = {
        t.name: step for step in reversed(plan.graph.steps) for t in plan.graph.get_constants(step)
    }
    for name, one in laid[:-1]:
        if one.planned_bytes != one.written_bytes:
            rule = "4-bit weights that constants lie behind fill what is planned for them"
            remedy = (
                "widen the kernel by zeros, write it as a 1x1 convolution, or leave it at 8 bits"
            )
            yield make_wrong_result_finding(
                readers[name],
                rule,
                f"{one.written_bytes} bytes of '{name}' where {one.planned_bytes} are planned",
                remedy,
            )
