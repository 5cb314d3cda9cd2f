"""What of a model breaks a platform's limits: every place, with the value, the limit and the remedy.

Float graphs are judged normalised, by the constraints of `ops`, before and after the rewrites of `fit`. Integer graphs
are judged as they are: by the same constraints, and `rules` on scales, attributes, widths and the executor's faults.
Loads no files, prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from ...alike import SCREEN, few, grouped, pattern, screen_lines, together, told
from ...errors import ModelError
from ...fit import Fitted, fit
from ...flow.methods.ranges import partition_with_clips
from ...flow.report import FloatNode, float_nodes, rewritten, told_findings, told_floats
from ...formats import DEQUANT, QUANT, RENAMED, REQUANT, Format, attributes, integer_format, is_quantized_domain
from ...graph import ir
from ...ops import Violation, float_op, rule_of, rule_text
from ...ops.macs import macs
from ...plan import Affine
from ...run.integer.sizes import sizes
from ...targets import Choice, Cost, Finding, Target, by_name
from .forecast import packed_ahead
from .rules import RULES, Seen

__all__ = ["Check", "Met", "check_float", "check_integer"]


@dataclass(frozen=True)
class Met:
    """A fault of the executor that the quantizer works around in this model."""

    fault: str
    text: str
    nodes: Sequence[str]


@dataclass(frozen=True)
class Check(Sequence[Violation]):
    """The violations of a model on a platform; a sequence of them.

    kind : "float" or "integer"
    fitted : the rewrites that --fit would do; remaining : the violations that would be left then
    host_part : float nodes before the first or after the last integer one: no violation, but not the chip's work
    faults : faults of the executor that are worked around
    choice : for a chip, the packer's arguments and what becomes of the graph under them; of a float model after --fit,
        with placeholder scales. formed : what is done to its integer graph then
    """

    platform: str
    kind: str
    violations: Sequence[Violation]
    fitted: Sequence[Fitted] = ()
    remaining: Sequence[Violation] = ()
    host_part: Sequence[FloatNode] = ()
    faults: Sequence[Met] = ()
    notes: Sequence[str] = field(default_factory=list)
    choice: Choice | None = None
    formed: Sequence[Fitted] = ()

    @property
    def packs(self) -> bool | None:
        """Whether the packer takes the graph; None for what is not packed."""
        return None if self.choice is None else self.choice.verdict.packs

    @property
    def runs_right(self) -> bool | None:
        """Whether the chip then gives the simulator's integers; None for what is not packed."""
        return None if self.choice is None else self.choice.verdict.runs_right

    @property
    def findings(self) -> Sequence[Finding]:
        """What speaks against packing, and as warnings the writes past the plan."""
        return () if self.choice is None else self.choice.verdict.findings

    @property
    def cost(self) -> Cost | None:
        """What the graph costs on the chip; None where it has no plan."""
        return None if self.choice is None else self.choice.verdict.cost

    @property
    def sound(self) -> bool:
        """Whether nothing is broken, and what is packed packs and is right."""
        return not self.violations and (self.choice is None or self.choice.verdict.chip_ready)

    def __len__(self) -> int:
        return len(self.violations)

    @overload
    def __getitem__(self, index: int) -> Violation: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Violation]: ...

    def __getitem__(self, index: int | slice) -> Violation | Sequence[Violation]:
        return self.violations[index]

    def __iter__(self) -> Iterator[Violation]:
        return iter(self.violations)

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON-ready values."""
        return {
            "platform": self.platform,
            "kind": self.kind,
            "violations": [vars(v) for v in self.violations],
            "fitted": [vars(f) for f in self.fitted],
            "remaining": [vars(v) for v in self.remaining],
            "formed": [vars(f) for f in self.formed],
            "host_part": [vars(n) for n in self.host_part],
            "faults": [{**vars(m), "nodes": list(m.nodes)} for m in self.faults],
            "notes": list(self.notes),
            "packs": self.packs,
            "runs_right": self.runs_right,
            "packer_args": None if self.choice is None else self.choice.line,
            "findings": [vars(f) for f in self.findings],
            "cost": None if self.cost is None else self.cost.to_dict(),
        }

    @property
    def verdict(self) -> str:
        """What decides, in one line."""
        if self.sound:
            return f"nothing breaks a limit of {self.platform}"
        said = []
        if against := [(f.rule, f.node) for f in self.findings if f.level != "plan"]:
            said.append(f"{'wrong on the chip' if self.packs else 'the packer refuses it'}, {_count('rule', against)}")
        if self.violations:
            mended = self.kind == "float" and not self.remaining
            broken = _count("limit", [(v.rule, v.node) for v in self.violations])
            said.append(f"{broken}{f'; {_MENDED}' if mended else ''}")
        return f"{self.platform}: {'; '.join(said)}"

    def lines(self, full: bool = False) -> list[str]:
        """Return the report as text: the verdict, what is broken, what --fit would do, what is worth knowing.

        What is alike is one line, and all of it takes a screen where that is possible; full : a line for every node.
        """
        if full:
            return self._lines(None)
        found: list[str] = []
        for most in range(_MOST, 0, -1):
            found = self._lines(most)
            if screen_lines(found) <= SCREEN:
                break
        return found

    def _lines(self, most: int | None) -> list[str]:
        """Return the report with at most so many lines of one sort; None: all of it."""
        full = most is None
        left = {(v.node, v.rule) for v in self.remaining}
        said = {(v.node, v.rule) for v in self.violations}
        there = [v for v in self.violations if self.kind == "integer" or (v.node, v.rule) in left]
        mended = [replace(v, remedy=_MENDED) for v in self.violations if v not in there]
        found = [self.verdict, *few(_broken(there, full), most), *few(_broken(mended, full), most)]
        if self.violations and self.kind == "float":
            found += few([f"--fit would: {line}" for line in rewritten(self.fitted, full)], most)
            more = _broken([v for v in self.remaining if (v.node, v.rule) not in said], full)
            none = "with --fit nothing would remain" if self.fitted else "--fit can change none of it"
            found += few([f"would remain: {line}" for line in more], most) or (
                [none] if not self.remaining or not self.fitted else []
            )
        found += few([f"host part: {line}" for line in told_floats(self.host_part, full)], most)
        found += few([f"worked around: {m.text} ({_few(m.nodes)})" for m in self.faults], most)
        found += self._packed(most)
        notes = few([f"note: {note}" for note in (self.notes if full else together(self.notes))], most)
        return [*found, *self._cost(None if full else SCREEN - screen_lines([*found, *notes])), *notes]

    def _packed(self, most: int | None) -> list[str]:
        """Return what the packer and the chip make of the graph."""
        if self.choice is None:
            ahead = self.kind == "float" and by_name(self.platform).packs
            return ["cost: unknown, as float nodes stand between the integer ones"] if ahead else []
        verdict, full = self.choice.verdict, most is None
        found = few([f"after lowering: {line}" for line in rewritten(self.formed, full)], most)
        found += few(told_findings(verdict.findings, full), most)
        right = "it packs and is right" if verdict.runs_right else "it packs and is not right on the chip"
        if verdict.warned:
            right += ", but writes past its plan (a warning)"
        when = ", before calibration" if self.kind == "float" else ""
        how = f"packed with {_short(self.choice.line)}{when}: {right if verdict.packs else 'it does not pack'}"
        return [*found, *([f"note: {verdict.believed}"] if verdict.believed else []), how]

    def _cost(self, room: int | None) -> list[str]:
        """Return what it costs on the chip: the heaviest layers where `room` lines hold some, else one line."""
        cost = self.cost
        if cost is None:
            return []
        for layers in range(len(cost.layers) if room is None else min(len(cost.layers), room), -1, -1):
            found = ["cost on the chip:", *cost.table(layers)]
            if room is None or screen_lines(found) <= room and layers >= min(len(cost.layers), _FEWEST):
                return found
        return [f"cost on the chip: {cost.text()}"]


_MOST = 6  # lines of one sort in a short report
_MENDED = "--fit, the default of quantize, mends it"
_FEWEST = 3  # layers that a table of costs has at least


def _count(what: str, broken: Sequence[tuple[str, str]]) -> str:
    """Return how many rules are broken at how many nodes."""
    rules, nodes = len({pattern(rule) for rule, _ in broken}), len({node for _, node in broken})
    return f"{rules} {what}{'s are' if rules > 1 else ' is'} broken at {nodes} node{'s' if nodes > 1 else ''}"


def _broken(violations: Sequence[Violation], full: bool) -> list[str]:
    """Return a line for each rule that is broken; full : for each violation."""
    groups = grouped(violations, lambda v: (v.op_type, pattern(v.rule)))
    return [
        line
        for group in groups
        for line in (
            map(str, group)
            if full or len(group) == 1
            else [f"{group[0].op_type}: {told(group[0].rule, group[0].remedy, [(v.node, v.value) for v in group])}"]
        )
    ]


def _short(line: str, most: int = 160) -> str:
    return line if len(line) <= most else f"{line[:most]}... ({len(line)} characters, whole with --json)"


def _few(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# ---- float graphs ------------------------------------------------------------------------------------------------


def check_float(model: ir.Graph, target: Target, notes: Sequence[str] = ()) -> Check:
    """Return what breaks limits of `target` in the normalised float `model`, which is left as it is."""
    violations, host = _float_violations(model, target)
    fitted: list[Fitted] = []
    remaining, mended = violations, model
    if violations:
        mended = ir.clone(model)
        fitted = fit(mended, target)
        remaining = _float_violations(mended, target)[0] if fitted else violations
    choice, formed = packed_ahead(mended, target)
    met = []
    seen = [(str(node.name), target.vendor.met(node, target)) for node in model.graph]
    for fault in target.faults:
        nodes = [name for name, faults in seen if fault in faults]
        if nodes and not any(fault.text in v.rule for v in violations):
            met.append(Met(fault.key, fault.text, nodes))
    return Check(target.name, "float", violations, fitted, remaining, host, met, list(notes), choice, formed)


def _float_violations(model: ir.Graph, target: Target) -> tuple[list[Violation], list[FloatNode]]:
    """Return the broken limits, and the other float nodes before or behind the integer part.

    A node there that multiplies nothing (a final Softmax) is the host's work as it should be, whatever the limits.
    """
    parts = partition_with_clips(model, target, {}, 8)
    islands, host = float_nodes(model, parts.floats, parts.inside)
    between, outside = ({entry.node for entry in entries} for entries in (islands, host))
    found: list[Violation] = []
    broken: set[str] = set()
    for node in model.graph:
        name = str(node.name)
        op, _ = float_op(node, target)
        if name in outside and not macs(node):
            continue
        own = op.violations(node, target) if op is not None else []
        if not own and op is not None and not op.available(target):
            own = [_violation(node, op.absence(node, target), "", _OTHER)]
        if not own and name in between:
            why = parts.floats[name] or "a float operator"
            own = [_violation(node, f"{why}: it stays in float between integer operators", "", _OTHER)]
        found += own
        broken |= {name} if own else set()
    return found, [entry for entry in host if entry.node not in broken]


_OTHER = "use operators the platform has, or move the node before the first or behind the last of them"


def _violation(node: ir.Node, rule: str, value: str, remedy: str) -> Violation:
    tensor = next((str(v.name) for v in node.outputs if v.name), "")
    return Violation(str(node.name), ir.operator(node), tensor, rule, value, remedy)


# ---- integer graphs ----------------------------------------------------------------------------------------------


def check_integer(model: ir.Graph, target: Target) -> Check:
    """Return what breaks limits of `target` in the integer graph `model`, which is left as it is."""
    model = ir.clone(model)
    for value, size in sizes(model).items():
        value.shape = ir.oir_shape(size)
    found: list[Violation] = []
    known: dict[str, Affine] = {}
    integers = {str(v.name) for v in model.graph.inputs if v.dtype is not None and v.dtype.name in _INTEGERS}
    islands = _islands(model, integers)
    for node in model.graph:
        name = ir.read_name(node) if node.inputs and node.inputs[0] is not None else ""
        form = integer_format(node)
        if form is None or not (is_quantized_domain(node) or name in integers):
            found += _foreign(node, target, integers, islands)
            continue
        missing = [
            _violation(node, f"attribute {key} is there", "it is missing", "quantize or export again")
            for key in _missing(node, form, target)
        ]
        found += missing
        rule = rule_of(form)
        leaves = rule is not None and rule.wide and "scale_o" not in node.attributes
        if form is not DEQUANT and not leaves:
            integers.update(str(v.name) for v in node.outputs)
        try:
            seen = Seen(node, form, attributes(form, node), known)
        except ModelError as error:
            if not missing:
                found.append(_violation(node, "attributes have values that make sense", str(error), "export again"))
            continue
        for judge in RULES:
            measured = judge(seen, target)
            if measured is not None:
                text, remedy = rule_text(judge, target)
                found.append(_violation(node, text, str(measured), remedy))
        found += _constraints(seen, target)
        if seen.writes is not None:
            known.update({str(v.name): seen.writes for v in node.outputs if v.name})
    if "platform" in target.node_attributes.get("", {}) and not any(
        "platform" in node.attributes for node in model.graph
    ):
        found.append(
            _violation(
                model.graph.node(0),
                f"some node names the chip, platform = {target.name}",
                "none does",
                "export for this platform",
            )
        )
    return Check(target.name, "integer", found)


_INTEGERS = ("INT8", "INT16", "INT32", "UINT8")


def _constraints(seen: Seen, target: Target) -> list[Violation]:
    """Return the limits of the operator that the integer node breaks; none where it is not all there."""
    rule = rule_of(seen.form)
    judged = rule is not None and target.runs(seen.form.name) and seen.form.whole(seen.node)
    return rule.violations(seen.node, target) if rule is not None and judged else []


def _missing(node: ir.Node, form: Format, target: Target) -> Iterator[str]:
    given = {**node.attributes}
    known = {RENAMED.get(name, name) for name in given}
    for spec in form.attributes:
        if spec.required and spec.name not in known:
            yield spec.name
    wanted = target.node_attributes.get("", {})
    modes = "quant_mode" in wanted  # which replaces platform_quant, on what has weights
    if is_quantized_domain(node) and (form not in (QUANT, DEQUANT, REQUANT) or modes and form is REQUANT):
        rule = rule_of(form)
        weights = rule is not None and rule.factor == "absorbed"
        key = "quant_mode" if modes else "platform_quant"
        if key in wanted and key not in given and (not modes or weights or form is REQUANT):
            yield f"{key} ({wanted[key]})"


def _foreign(node: ir.Node, target: Target, integers: set[str], islands: set[str]) -> list[Violation]:
    """Return what is wrong with a node that is no integer operator."""
    if is_quantized_domain(node):
        integers.update(str(v.name) for v in node.outputs)
        return [
            _violation(
                node,
                f"it is an integer operator that {target.name} has",
                f"unknown operator {node.op_type}",
                "use operators the platform has",
            )
        ]
    held = [v for v in node.inputs if v is not None and v.name in integers]
    if node.op_type == "Cast":  # of what the user feeds, as the index of an embedding
        held = [v for v in held if v.producer() is not None]
    read = [str(v.name) for v in held]
    if read and node.op_type != "Constant":
        return [
            _violation(
                node,
                "a float operator reads real numbers",
                f"it reads the integers '{read[0]}'",
                "repair the graph with fix-dequant",
            )
        ]
    if str(node.name) in islands:
        return [
            _violation(
                node,
                "no float operator stands between the first Quant and the last Dequant",
                f"{node.op_type} does",
                _OTHER,
            )
        ]
    return []


def _islands(model: ir.Graph, integers: set[str]) -> set[str]:
    """Return the float nodes with integer nodes both before and behind them."""
    whole = {id(node) for node in model.graph if is_quantized_domain(node)}
    return {entry.node for entry in float_nodes(model, {}, whole)[0]}
