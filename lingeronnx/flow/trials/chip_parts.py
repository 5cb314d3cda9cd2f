"""Parts of a model that is not chip-ready: what a part is refused for goes to the host, and so do parts too small.

A part that the packer refuses, or the chip would compute wrongly, loses the layers that are to blame, and the rest
stays. A part with hardly more multiply-accumulates than numbers to hand over is not worth the crossing. Where there are
more parts than the user wants, those with the least work are the host's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...graph import ir
from ...ops.macs import macs
from ...run.data import Progress
from ..planning.refinement import refined
from ..planning.scale_sources import plan_for
from ..prepare.preparation import Prepared
from ..report.comparison import Compared, compared
from .evidence import levels

if TYPE_CHECKING:
    from ..report.program import PartReport

__all__ = ["with_chip_parts"]

_LOSS = 0.5  # dB: what an output may lose where a layer of the host goes back to the chip
_ROUNDS = 6  # a layer that leaves may uncover another one
_WORTH = 4  # multiply-accumulates for each number that is handed over


def with_chip_parts(best: Compared, progress: Progress | None = None) -> Compared:
    """Return `best`, or the same with more in float, where that lets the chip run the rest in parts.

    Layers move only where the user allows it by a number of parts. What is chip-ready, what another tool has quantized
    and what the user does not want in parts stays as it is.
    """
    prepared = best.prepared
    allowed = prepared.conf.in_parts and prepared.conf.max_parts is not None
    if not allowed or not prepared.target.packs or prepared.read is not None:
        return best
    if not best.result.report.chip_ready:
        best = _with_layers(best, progress)
        prepared = best.prepared
    host = dict(prepared.parts.floats)
    for left in reversed(range(_ROUNDS)):
        if best.result.report.chip_ready:
            break
        more = {name: why for name, why in _leaving(best, last=not left).items() if name in best.planned.parts.ops}
        if not more:
            break
        host.update(more)
        best = _with_host(best, host, progress)
    return best


def _with_host(best: Compared, host: Mapping[str, str], progress: Progress | None) -> Compared:
    """Return the model with `host` in float, {node: why}, and nothing else: planned and compared anew."""
    offloaded = best.prepared.with_host(host)
    planned = plan_for(offloaded, None, progress, best.planned.observed)
    return compared(offloaded, planned, refined(planned, progress=progress), progress)


def _with_layers(best: Compared, progress: Progress | None) -> Compared:
    """Return `best`, or, if as good, the same with the layers among an end that the host computes on the chip.

    A front or tail went to the host as a whole: what no chip part could do was one with its layers.
    """
    prepared = best.prepared
    layers = {str(node.name) for node in prepared.graph.graph if macs(node) and _moved(prepared, str(node.name))}
    if not layers:
        return best
    floats = {name: why for name, why in prepared.parts.floats.items() if name not in layers}
    other = _with_host(best, floats, progress)
    lost = [before - after for before, after in zip(levels(best), levels(other), strict=True)]
    if max(lost, default=0.0) > _LOSS or not other.result.report.program.runs:
        return best
    return other


def _moved(prepared: Prepared, name: str) -> bool:
    """Whether a node is the host's by evidence alone: nobody asked for it, and the chip could compute it."""
    if name not in prepared.parts.floats or name in prepared.skip:
        return False
    return name not in prepared.with_host({}).parts.floats


def _leaving(best: Compared, last: bool) -> dict[str, str]:
    """Return {float node: why it goes to the host}, of one round; the refused first, the `last` time as whole parts."""
    program = best.result.report.program
    made = _made(best)
    found: dict[str, str] = {}
    for part in program.chip:
        if not part.runs:
            found.update(_refused(part, made, last))
    if found:
        return found
    sizes = _sizes(best.lowered.graph)
    work = {part.name: part.macs for part in program.chip}
    small = {
        part.name: f"only {part.macs:,} multiply-accumulates for {count:,} numbers to hand over"
        for part in program.chip
        if part.macs < _WORTH * (count := _handed(part, sizes))
    }
    if small and len(small) == len(program.chip):
        small.pop(max(work, key=lambda name: work[name]), None)
    most = best.prepared.conf.max_parts
    if most is not None and len(program.chip) - len(small) > most:
        rest = sorted((name for name in work if name not in small), key=lambda name: work[name])
        small.update(dict.fromkeys(rest[: len(rest) - most], f"the chip shall have {most} parts at most"))
    for part in program.chip:
        if part.name in small:
            found.update(dict.fromkeys(_floats(part.members, made), small[part.name]))
    return found


def _refused(part: PartReport, made: Mapping[str, str], whole: bool) -> dict[str, str]:
    """Return the layers that findings name; all of the part where they name none, or if `whole`."""
    found: dict[str, str] = {}
    for name, finding in zip(part.refused, part.findings, strict=True):
        found.update(dict.fromkeys(_floats([name], made), f"{finding.rule}; here {finding.value}"))
    if found and not whole:
        return found
    first = part.findings[0]
    return dict.fromkeys(_floats(part.members, made), f"{first.node}: {first.rule}; here {first.value}")


def _floats(names: Iterable[str], made: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(made[name] for name in names if name in made))


def _made(best: Compared) -> dict[str, str]:
    """Return {integer node: the float node that it stands for}; Quants and Dequants stand for none."""
    makers = {str(v.name): str(node.name) for node in best.planned.graph.graph for v in node.outputs}
    lowered, found = best.lowered, {}
    for node in lowered.graph.graph:
        for value in node.outputs:
            name = str(value.name)
            layer = lowered.layers.get(name) or lowered.floats.get(name) or name
            if layer in makers and makers[layer] in best.planned.parts.ops:
                found[str(node.name)] = makers[layer]
    return found


def _sizes(graph: ir.Graph) -> dict[str, int]:
    """Return {tensor: numbers of one sample}."""
    found = {}
    for value in ir.values(graph):
        count = 1
        for size in ir.shape(value) or ():
            count *= int(size or 1)
        found[str(value.name)] = count
    return found


def _handed(part: PartReport, sizes: Mapping[str, int]) -> int:
    return sum(sizes.get(name, 0) for name in (*part.inputs, *part.outputs))
