"""4-bit weights: which nodes pack with them, and when the chip then reads what the package holds.

Two rules beside those of single operators. Where the DMA fetches constants ahead, a node with 4-bit weights takes their
first bytes for its bias. And the executor finds a constant behind 4-bit weights where half of their padded 8-bit size
says, while the package rounds the packed bytes up to 16: where the two differ, all that lies behind is misread.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....formats import CONV1D, CONV2D, LAYER_NORM, LINEAR
from ... import Target
from ...verdict import VerdictFinding
from ..packing import Narrow, packing
from .memory.constants import stored_constants
from .memory.findings import PlannedNet, refused, wrong
from .net import Net, NetStep

__all__ = ["BITS", "narrow_faults", "narrow_form"]

BITS = 4
_WIDE = "leave the layer at 8 bits (--override)"


def narrow_form(net: Net, target: Target) -> Iterator[VerdictFinding]:
    """Yield what is refused or wrong of nodes with 4-bit weights, wherever tensors and constants lie."""
    told = packing(target).narrow
    halved = [step for step in net.steps if step.weight_bits == BITS and told.get(step.op) is Narrow.HALVED]
    for step in net.steps:
        if step.weight_bits == BITS and step.op in told:
            yield from _operator(net, step, told[step.op], target)
    for step in halved:
        values = net.arrays[net.constants(step)[0].name] if net.constants(step) else None
        if values is not None and values.size and not -8 <= values.min() <= values.max() <= 7:
            value = f"{values.min()} to {values.max()}"
            yield refused(step, "4-bit weights are integers from -8 to 7", value, "round them to 4 bits")
    yield from _shared(net, halved)


def _operator(net: Net, step: NetStep, kind: Narrow, target: Target) -> Iterator[VerdictFinding]:
    """Yield what stands against 4-bit weights of one node."""
    shapes = [net.tensors[name].shape for name in step.inputs]
    if kind is Narrow.REFUSED and (step.op != CONV1D.name or int(step.get("group", 1)) == 1 or not _halves(target)):
        yield refused(step, f"the weights of a {step.op} have 8 bits", BITS, _WIDE)
    elif kind is not Narrow.HALVED:
        yield wrong(step, f"the weights of a {step.op} have 8 bits", BITS, _WIDE)
    elif step.op == LINEAR.name and shapes[1][-1] == 1:
        yield wrong(step, "a LinearInt with 4-bit weights reads two elements or more", 1, _WIDE)
    elif step.op == LINEAR.name and step.get("o_bits") != 8:
        yield wrong(step, "a LinearInt with 4-bit weights writes 8 bits", step.get("o_bits"), _WIDE)
    elif step.op == LAYER_NORM.name and shapes[1][-1] % 2:
        yield wrong(step, "a LayerNormInt with 4-bit weights has lines of even length", shapes[1][-1], _WIDE)
    elif step.op == "Gather" and net.constants(step):
        if shapes[0][-1] % 2:
            yield wrong(step, "the rows of a 4-bit table have an even length", shapes[0][-1], _WIDE)
        if net.tensors[step.inputs[1]].width != 8:
            yield wrong(step, "a 4-bit table is read by an int64 index", "another", "declare the index int64")


def _halves(target: Target) -> bool:
    """Whether anything on the chip has weights of 4 bits."""
    return Narrow.HALVED in packing(target).narrow.values()


def _shared(net: Net, halved: list[NetStep]) -> Iterator[VerdictFinding]:
    """Yield 4-bit constants that several nodes read: right only where all are Conv2dInt of 4 bits."""
    for step in halved:
        if not net.constants(step):
            continue
        name = net.constants(step)[0].name
        others = [other for other in net.readers(name) if other is not step]
        rule, remedy = "4-bit weights are read by one node, or by Conv2dInt that all say 4 bits", "copy the weights"
        if any(other.weight_bits != BITS or other.op != step.op for other in others):
            yield wrong(step, rule, f"'{name}'", remedy)
        elif others and step.op != CONV2D.name:
            yield refused(step, rule, f"'{name}'", remedy)


def narrow_faults(plan: PlannedNet) -> Iterator[VerdictFinding]:
    """Yield what is wrong of 4-bit weights under a plan: the two rules."""
    told = packing(plan.target).narrow
    steps = [s for s in plan.net.steps if s.weight_bits == BITS and told.get(s.op) is Narrow.HALVED]
    for step in steps:
        if step.name in plan.memory.buffers and len(plan.net.constants(step)) > 1:
            rule = "a node with 4-bit weights and a bias reads them where they lie"
            remedy = "--dma_prefetch False, or -m params:share-mem"
            yield wrong(step, rule, "they are fetched ahead", remedy)
    if not steps:
        return
    laid = list(stored_constants(plan.net, plan.target).items())
    readers = {t.name: step for step in reversed(plan.net.steps) for t in plan.net.constants(step)}
    for name, one in laid[:-1]:
        if one.planned != one.written:
            rule = "4-bit weights that constants lie behind fill what is planned for them"
            remedy = "widen the kernel by zeros, write it as a 1x1 convolution, or leave it at 8 bits"
            yield wrong(readers[name], rule, f"{one.written} bytes of '{name}' where {one.planned} are planned", remedy)
