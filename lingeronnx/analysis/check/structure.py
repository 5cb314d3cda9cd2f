"""The structure of a model as it will be held in integers, in five parts, and what of it looks wrong.

    1  patterns that a pass would fuse or simplify, and why it did not
    2  how often each layer and each weight is used: 1 is usual, 0 unused, more shared
    3  each operator's output: types in and out, channel axis, how its scale was chosen, range on the data
    4  each weight: type, channel axis, how its scale was chosen
    5  what looks wrong (`suspicions`), each with its measure, its limit and a remedy

Of a float model under its plan (`of_model`), or of an integer graph as its attributes say (`of_integers`). Looks, runs
nothing. Knows graphs and plans; the packer's and the chip's limits are `check`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...flow import QuantizedModel
from ...flow.assign import ScaleChoice
from ...flow.lower import plan_of
from ...formats import BATCH_NORM2D, DEQUANT, QUANT, REQUANT, integer_format
from ...graph import ir
from ...ops import Violation
from ...plan import Affine, Plan
from ..text import framed
from .suspicions import LIMITED, Suspicion, in_integers, in_model

__all__ = ["RESULT", "Structure", "of_integers", "of_model", "uses"]

#: The file that the check writes.
RESULT = "model_check_result.txt"

_UNFUSED = ("name", "type", "why it stays")
_USES = ("name", "type", "used")
_OUTPUTS = ("name", "type", "input dtype", "output dtype", "channel axis", "observer", "scale", "min", "max")
_WEIGHTS = ("name", "type", "weight dtype", "channel axis", "observer", "scale")
_WRONG = ("name", "kind", "measured", "limit", "remedy")


@dataclass(frozen=True)
class Structure:
    """The five parts; rows are tuples of texts."""

    unfused: Sequence[tuple[str, ...]]
    used: Sequence[tuple[str, ...]]
    outputs: Sequence[tuple[str, ...]]
    weights: Sequence[tuple[str, ...]]
    suspicions: Sequence[Suspicion]

    def text(self) -> str:
        """Return all five parts, as `model_check_result.txt` has them."""
        wrong = [(s.layer, s.kind, s.measured, s.limit, s.remedy) for s in self.suspicions]
        parts = (
            ("Fusable patterns left unfused", _UNFUSED, self.unfused),
            ("Layers and weights: how often each is used (1 is usual, 0 unused, more shared)", _USES, self.used),
            ("Outputs: how each operator's output is held", _OUTPUTS, self.outputs),
            ("Weights: how each is held", _WEIGHTS, self.weights),
            ("What looks wrong", _WRONG, wrong),
        )
        return "\n".join(
            f"{number}. {title}\n{framed(head, rows) if rows else 'none' + chr(10)}"
            for number, (title, head, rows) in enumerate(parts, 1)
        )

    def lines(self) -> list[str]:
        """Return what looks wrong but for broken limits, a line each; and what is used more than once or not at all."""
        odd = [f"{kind} {name}: used {times} times" for name, kind, times in self.used if times != "1"]
        return [*(str(s) for s in self.suspicions if s.kind != LIMITED), *odd]

    def to_dict(self) -> dict[str, object]:
        """Return the structure as JSON-ready values."""

        def rows(head: Sequence[str], part: Sequence[tuple[str, ...]]) -> list[dict[str, str]]:
            return [dict(zip(head, row, strict=True)) for row in part]

        return {
            "unfused": rows(_UNFUSED, self.unfused),
            "used": rows(_USES, self.used),
            "outputs": rows(_OUTPUTS, self.outputs),
            "weights": rows(_WEIGHTS, self.weights),
            "looks_wrong": [vars(s) for s in self.suspicions],
        }


# ---- 2: who is used how often --------------------------------------------------------------------------------------


def uses(model: ir.Graph) -> list[tuple[str, str, str]]:
    """Return (name, type, times) of the inputs, weights and layers of the user's own `model`.

    A weight counts its readers, a layer is used where a graph output depends on it.
    """
    rows: list[tuple[str, str, str]] = []
    alive = _alive(model)
    for value in model.graph.inputs:
        if value.const_value is None:
            rows.append((str(value.name), "input", str(_readers(value, alive))))
    for name, value in model.graph.initializers.items():
        array = ir.const(value)
        if array is not None and array.ndim and array.dtype.kind in "fi" and array.dtype.itemsize < 8:
            rows.append((str(name), "weight", str(_readers(value, alive))))
    layers = (node for node in model.graph if node.op_type != "Constant" or node.domain)
    rows += [(str(node.name), node.op_type, str(int(id(node) in alive))) for node in layers]
    return rows


def _alive(model: ir.Graph) -> set[int]:
    """Return the ids of the nodes on which a graph output depends."""
    alive: set[int] = set()
    waiting = [ir.producer(value) for value in model.graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in alive:
            alive.add(id(node))
            waiting += [ir.producer(value) for value in node.inputs]
            waiting += [
                ir.producer(v)
                for a in node.attributes.values()
                for g in ir.subgraphs(a)
                for inner in ir.all_nodes(g)
                for v in inner.inputs
            ]
    return alive


def _readers(value: ir.Value, alive: set[int]) -> int:
    """Return how many nodes read a value, those in bodies of control flow too, that nothing else makes idle."""
    return sum(1 for use in value.uses() if id(use.node) in alive or use.node.graph is not value.graph)


# ---- 3, 4: how each tensor is held ---------------------------------------------------------------------------------


def _kind(q: Affine | None) -> str:
    return "float32" if q is None else f"int{q.bits}"


def _scales(q: Affine | None) -> str:
    """Return a scale, counts per real unit, as people read it."""
    if q is None:
        return "-"
    return q.text if q.single else f"{q.scales.min():g} to {q.scales.max():g}"


def _observer(choice: ScaleChoice | None) -> Callable[[str, Affine | None], str]:
    """Return what says how the scale of a tensor was chosen."""

    def said(name: str, q: Affine | None) -> str:
        if q is None:
            return "-"
        if choice is None:
            return "the plan's"
        setting = choice.of([name], q.bits)
        if setting.scale is not None:
            return "fixed"
        return (
            f"{setting.calibrator} {setting.percentile:g}" if setting.calibrator == "percentile" else setting.calibrator
        )

    return said


def _rows(
    graph: ir.Graph,
    plan: Plan,
    observer: Callable[[str, Affine | None], str],
    users: Mapping[str, str],
    ranges: Mapping[str, tuple[float, float]],
    in_float: Callable[[ir.Node, ir.Value], bool],
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return parts 3 and 4.

    users : {tensor of the graph: the plan's name for it}. in_float : whether a node has a tensor, read or written, as
    real values.
    """
    outputs: list[tuple[str, ...]] = []
    weights: list[tuple[str, ...]] = []

    def held(value: ir.Value | None) -> Affine | None:
        return None if value is None else plan.tensors.get(users.get(str(value.name), str(value.name)))

    for node in graph.graph:
        if node.op_type == "Constant" and not node.domain:
            continue
        name = str(node.name)
        read = next((v for v in node.inputs if v is not None and ir.const(v) is None), None)
        for value in node.outputs:
            if value.name:
                user, q = users.get(str(value.name), str(value.name)), None if in_float(node, value) else held(value)
                low, high = (f"{edge:g}" for edge in ranges[user]) if user in ranges else ("-", "-")
                outputs.append(
                    (
                        name,
                        node.op_type,
                        _kind(None if read is None or in_float(node, read) else held(read)),
                        _kind(q),
                        _axis(q),
                        observer(user, q),
                        _scales(q),
                        low,
                        high,
                    )
                )
        for source in node.inputs:
            if source is not None and ir.const(source) is not None and (q := held(source)) is not None:
                weights.append((name, node.op_type, _kind(q), _axis(q), observer(str(source.name), q), _scales(q)))
    return outputs, weights


def _axis(q: Affine | None) -> str:
    return "-" if q is None or q.axis is None else str(q.axis)


# ---- the two kinds of models ---------------------------------------------------------------------------------------


def of_model(
    result: QuantizedModel, original: ir.Graph | None = None, violations: Sequence[Violation] = ()
) -> Structure:
    """Return the structure of a float model that was quantized.

    original : the user's own graph, for part 2; None takes the normalised one. violations : limits that are broken.
    """
    unfused = [(reason.name, reason.kind, reason.why) for reason in result.reasons]
    floats, observer = result.plan.floats, _observer(result.basis.choice)
    outputs, weights = _rows(
        result.float_graph, result.plan, observer, {}, result.ranges, lambda node, _: str(node.name) in floats
    )
    structure = in_model(result, violations)
    return Structure(unfused, uses(result.float_graph if original is None else original), outputs, weights, structure)


def of_integers(graph: ir.Graph, users: Mapping[str, str], violations: Sequence[Violation] = ()) -> Structure:
    """Return the structure of an integer graph. users : {integer tensor: the float tensor that it holds}."""
    plan = plan_of(graph)
    floats = set(users.values()) - users.keys()
    outputs, weights = _rows(
        graph,
        plan,
        lambda _, q: "-" if q is None else "the file's",
        users,
        {},
        lambda _, value: str(value.name) in floats,
    )
    return Structure(_pairs(graph), uses(graph), outputs, weights, in_integers(graph, violations))


def _pairs(graph: ir.Graph) -> list[tuple[str, ...]]:
    """Return the operators of an integer graph that could be one with that before them."""
    pairs: list[tuple[str, ...]] = []
    for node in graph.graph:
        before = ir.producer(node.inputs[0]) if node.inputs else None
        if before is None:
            continue
        op, other = integer_format(node), integer_format(before)
        if op is None or other is None:
            continue
        if op is QUANT and other is DEQUANT:
            pairs.append((str(node.name), node.op_type, f"it quantizes what {before.name} dequantizes: one Requant"))
        elif op is other is REQUANT:
            pairs.append((str(node.name), node.op_type, f"it follows the Requant {before.name}: one will do"))
        elif op is BATCH_NORM2D and other.channel_axis is not None and ir.sole_consumer(ir.source(node)) is node:
            pairs.append((str(node.name), node.op_type, f"{before.name} alone is read: fold it into its weights"))
    return pairs
