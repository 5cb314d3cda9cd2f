"""Where integers begin and end: fronts (spectra, logarithms) and tails (decoding of boxes) that the host may compute.

Eight bits are few for a power spectrum, or for positions within a picture. What a graph has of such nodes before its
first layers, or behind its last, is a candidate: the model is quantized both ways, and the evidence decides. So are the
cells of states that are fed back (`states.cells`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import ConstraintError
from ..graph import ir
from ..ops.macs import macs
from ..run.data import Progress
from .complete import Compared, compared
from .planned import plan_for
from .prepared import Prepared
from .refined import refined
from .states import cells

__all__ = ["ends", "with_best_ends"]

_FRONT = ("Div", "Log", "Pow", "Reciprocal", "Sqrt")
_TAIL = ("Exp", "NonMaxSuppression", "Pow", "Sqrt", "TopK")
_LAYERS = 1  # a front may have: a transform written as a convolution
_GAIN, _LOSS = 3.0, 0.5  # dB that some output gains at least, and others lose at most
_CELL_GAIN = 0.5  # dB: cells cost the host next to nothing


def with_best_ends(prepared: Prepared, best: Compared, progress: Progress | None = None) -> Compared:
    """Return `best`, made from `prepared`, or, where it is better, the same with its ends or cells in float.

    Only real data that can be read again are evidence; without them, or where no effort is to be spent, it is `best`;
    so is what another tool has quantized.
    """
    conf = prepared.conf
    if prepared.read is not None or prepared.synthetic or conf.effort == "fast" or not prepared.data.rereadable:
        return best
    kept: dict[str, str] = {}
    inner = cells(prepared.graph, prepared.conf.state, prepared.row)
    for more, gain in [*((end, _GAIN) for end in ends(prepared.graph)), (inner, _CELL_GAIN)]:
        if not more.keys() - prepared.parts.floats.keys():
            continue
        host = {**kept, **more}
        try:
            planned = plan_for(prepared.with_host(host), None, progress, best.planned.observed)
        except ConstraintError:  # with require_chip: a scale that the chip does not hold
            continue
        exact = refined(planned, progress=progress, before=(best.planned, best.exact))
        other = compared(planned, exact, progress)
        if _wins(best, other, gain):
            best, kept = other, host
    return best


def ends(model: ir.Graph) -> list[dict[str, str]]:
    """Return candidates of the normalised `model`: {node: why it stays in float}."""
    found = []
    for names, why in (
        (_front(model), "the host computes the front, up to a spectrum: measured, that is better"),
        (_tail(model), "the host decodes what the last layers give: measured, that is better"),
    ):
        if names:
            found.append(dict.fromkeys(names, why))
    return found


def _kinds(model: ir.Graph) -> Callable[[ir.Node], set[str]]:
    """Return what gives the operators of a node: of a composed curve those that it is made of."""
    bodies = {name[:2]: {inner.op_type for inner in body} for name, body in model.functions.items()}

    def of(node: ir.Node) -> set[str]:
        composed = ir.kind(node) == "Curve" and node.domain == ir.DOMAIN
        return bodies.get((node.domain, node.op_type), set()) if composed else {node.op_type}

    return of


def _front(model: ir.Graph) -> list[str]:
    """Return the nodes that the nodes of `_FRONT` with at most one layer before them are computed from, and these."""
    kinds = _kinds(model)
    before: dict[int, frozenset[int]] = {}
    layers: dict[int, int] = {}
    wanted: set[int] = set()
    nodes = list(model.graph)
    for node in nodes:
        makers = [maker for value in node.inputs if (maker := ir.producer(value)) is not None]
        above = frozenset(id(m) for m in makers).union(*(before[id(m)] for m in makers if id(m) in before))
        before[id(node)] = above
        layers[id(node)] = int(macs(node) > 0)
        if not kinds(node).isdisjoint(_FRONT) and sum(layers.get(key, 0) for key in above) <= _LAYERS:
            wanted |= above | {id(node)}
    heavy = sum(layers.values())
    inside = sum(layers[key] for key in wanted if key in layers)
    return [str(node.name) for node in nodes if id(node) in wanted] if inside < heavy else []


def _tail(model: ir.Graph) -> list[str]:
    """Return the nodes that no layer is computed from, where some of them decode."""
    kinds = _kinds(model)
    leads: set[int] = set()  # nodes that a layer is computed from, and layers
    found = []
    for node in reversed(list(model.graph)):
        users = [use.node for value in node.outputs for use in value.uses()]
        if macs(node) > 0 or any(id(user) in leads for user in users):
            leads.add(id(node))
        else:
            found.append(node)
    decode = any(not kinds(node).isdisjoint(_TAIL) for node in found)
    return [str(node.name) for node in reversed(found)] if decode and leads else []


def _wins(old: Compared, new: Compared, gain: float) -> bool:
    """Whether `new` is better: an output gained `gain` dB, none lost, and what was ready for a chip still is."""
    gains = [_gain(seen, new.seen.outputs[name]) for name, seen in old.seen.outputs.items()]
    if max(gains, default=0.0) < gain or min(gains, default=0.0) < -_LOSS:
        return False
    return new.result.report.chip_ready or not old.result.report.chip_ready


def _gain(old: Mapping[str, float], new: Mapping[str, float]) -> float:
    return min(new["sqnr"], 100.0) - min(old["sqnr"], 100.0)
