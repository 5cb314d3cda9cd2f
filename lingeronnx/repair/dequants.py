"""The repair of the Dequants: each where integers meet their first reader of real numbers, at the integers' scale.

    finds   Dequants that may not stay, and readers of real numbers that get integers (`kinds.Kinds` tells both)
    fixes   readers that take integers go past the Dequants that may not stay; readers of real numbers share the
            tensor's Dequant: one that may stay, else one that stands there with a wrong scale, else a new one

Tensors keep their names, but where integers have the name of a graph output: that goes to the Dequant's output, and
the integers are called ``<name>_q``.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto, NodeProto, helper

from .kinds import Kinds, Kinship
from .nodes import MISSING, data, is_dequant, is_eager, is_lazy, is_quantized, positions, scales_read
from .report import Edit, Finding, Repair, number
from .structure import sort_all
from .view import Node, Read, Scope, Tensor, View, fresh_name, is_scale, label, same_scale

__all__ = ["DEQUANTS"]

_NAME = "dequants"


# ---- findings ------------------------------------------------------------------------------------------------------


def _find(view: View) -> list[Finding]:
    kinship = Kinship.of(view)
    kinds = kinship.kinds
    found = [_judged(node, kinds, kinship) for node in view.order if node in kinds.why]
    found += [Finding(_NAME, "has no input", node.label, level="fatal") for node in view.order
              if is_dequant(node) and (not node.inputs or node.inputs[0] is None)]  # fmt: skip
    for tensor, reads in kinds.reals.items():
        found += _missing(tensor, reads, kinds)
    for read, tensor in kinds.faults:
        if (fault := _fault(read, tensor, kinds)) is not None:
            found.append(fault)
    return found + _mismatches(view, kinds)


def _judged(node: Node, kinds: Kinds, kinship: Kinship) -> Finding:
    """Return what is wrong with a Dequant that may not stay."""
    result, source = node.outputs[0], kinds.origin(_input(node))
    assert result is not None
    kind, scale, why = kinds.of.get(source, MISSING), node.attributes.get("scale_o"), kinds.why[node]
    if why == "misplaced":
        reader = next((n for _, _, n in kinship.wanted(result).integers if n is not None), None)
        takes = "takes" if reader is None or reader.proto.op_type != "If" else "declares"
        text = f"stands before {reader.label if reader else 'an operator'}, which {takes} integers"
    elif why == "double":
        text = f"reads '{source.name}', which holds real numbers already"
    elif why == "index":
        text = f"reads '{source.name}', which holds indices, no quantized numbers"
    else:
        text = f"has scale_o {number(scale)}, but '{source.name}' has scale {number(kind.scale)}"
    differs = why == "scale"
    return Finding(_NAME, text, node.label, source.name, scale if differs else None, kind.scale if differs else None)


def _missing(tensor: Tensor, reads: Sequence[Read], kinds: Kinds) -> list[Finding]:
    """Return what is missing for the readers of real numbers that get the integers of `tensor`."""
    kind, scale = kinds.of[tensor], _scale(tensor, kinds)
    found = []
    for read in reads:
        if scale is not None and (_raw(read) is not tensor or _was_real(tensor, kinds)):
            continue  # there is a Dequant on the way, whose fault is told
        at = f" (scale {number(scale)})" if scale is not None else ""
        text = f"gets '{tensor.name}', {kind.text}{at}, as if it were real numbers: a Dequant is missing"
        if read.output is not None:
            text = f"hands out {kind.text}{at}, graph outputs are real: a Dequant is missing"
        if scale is None:
            text = f"needs a Dequant of '{tensor.name}', {kind.text}, whose scale is said nowhere"
        elif read.output is not None and tensor.entry is not None:
            text, scale = f"'{tensor.name}' is a graph input of integers and a graph output at once", None
        found.append(Finding(_NAME, text, read.where, tensor.name, None, scale, "wrong" if scale else "fatal"))
    return found


def _was_real(tensor: Tensor, kinds: Kinds) -> bool:
    """Whether integers come here only because a Dequant before operators that move data may not stay."""
    node = tensor.writer
    while node is not None and (is_eager(node) or is_lazy(node)) and data(node):
        source = node.inputs[data(node)[0]]
        if source is None or source in kinds.source:
            return source is not None
        node = source.writer
    return False


def _fault(read: Read, tensor: Tensor, kinds: Kinds) -> Finding | None:
    """Return what is wrong with an integer operator that reads something else than integers."""
    kind, node = kinds.of.get(tensor, MISSING), read.node
    if kind.what == "missing" or node is None:
        return None
    scale = scales_read(node).get(read.index)
    at = f" at scale {number(scale)}" if scale else ""
    what = "holds real numbers: a Quant is missing" if kind.what == "real" else "holds indices"
    return Finding(_NAME, f"takes integers{at}, but '{tensor.name}' {what}", node.label, tensor.name, level="fatal")


def _mismatches(view: View, kinds: Kinds) -> list[Finding]:
    """Return the integer operators whose attribute says another scale than their input has: the producer's counts."""
    found = []
    for node in view.order:
        if not is_quantized(node) or is_dequant(node):
            continue
        scales = scales_read(node)
        for index in positions(node):
            tensor = node.inputs[index]
            source = kinds.origin(tensor) if tensor is not None else None
            own = kinds.of.get(source, MISSING).scale if source is not None else None
            if source is not None and index in scales and is_scale(own) and not same_scale(scales[index], own):
                text = f"reads '{source.name}' at scale {number(scales[index])}, its producer says {number(own)}"
                found.append(Finding(_NAME, text, node.label, source.name, scales[index], own, "note"))
    return found


def _input(node: Node) -> Tensor:
    tensor = node.inputs[0]
    assert tensor is not None
    return tensor


def _raw(read: Read) -> Tensor | None:
    """Return the tensor that a reader names."""
    if read.node is not None:
        return read.node.inputs[read.index]
    assert read.output is not None
    assert read.scope is not None
    return read.scope.find(read.output.name)


def _scale(tensor: Tensor, kinds: Kinds) -> float | None:
    """Return the scale of an integer tensor: its own, or where nothing says it, that of a Dequant which reads it."""
    own = kinds.of[tensor].scale
    if own is not None:
        return own
    stays = (n for n in kinds.kept if kinds.origin(_input(n)) is tensor)
    return next((float(n.attributes["scale_o"]) for n in stays), None)


# ---- edits ---------------------------------------------------------------------------------------------------------


def _fix(view: View, findings: Sequence[Finding]) -> list[Edit]:
    return _Surgery(view).operate()


class _Surgery:
    """One pass over the graph: all Dequants at once."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.kinds = Kinship.of(view).kinds
        self.edits: list[Edit] = []
        self.taken: set[Node] = set()  # Dequants that stay although they might not: at another scale, for other readers
        self.gone: set[Node] = set()
        self.new: list[tuple[Scope, Node | None, NodeProto]] = []  # behind which node
        self.given: dict[Tensor, list[tuple[Scope, str]]] = {}  # real numbers of a tensor: where, under which name
        for node in view.order:
            result = node.outputs[0] if node.outputs else None
            if node in self.kinds.kept and result is not None:
                self.given.setdefault(self.kinds.origin(_input(node)), []).append((node.scope, result.name))
        self.names = view.names()
        self.labels = {node.proto.name for node in view.nodes}
        self.domain = _domain(view)

    def operate(self) -> list[Edit]:
        """Edit the model and return what was done."""
        done = set()
        for tensor, reads in self.kinds.reals.items():
            scale = _scale(tensor, self.kinds)
            if scale is None:
                continue
            for read in [r for r in reads if r.output is not None]:
                self._leave(tensor, read, scale)
            for read in [r for r in reads if r.node is not None]:
                assert read.node is not None
                name = self._provide(tensor, read, scale)
                self._connect(read.node, read.index, name)
                done.add((read.node, read.index))
        self._pass_by(done)
        self._remove()
        self._write()
        return self.edits

    # ---- graph outputs ----

    def _leave(self, tensor: Tensor, read: Read, scale: float) -> None:
        """Make a graph output real."""
        assert read.output is not None
        assert read.scope is not None
        raw, name = _raw(read), read.output.name
        if raw is not None and raw is not tensor and is_dequant(raw.writer) and raw.scope is read.scope:
            assert raw.writer is not None
            self._reuse(raw.writer, tensor, scale)
        elif read.scope is not self.view.main:
            read.output.name = self._insert(tensor, read.scope, scale, None)
        elif tensor.writer is not None and tensor.writer.proto.op_type == "Identity" and tensor.writer.standard:
            self._convert(tensor.writer, tensor, scale)
        elif tensor.writer is not None:
            integers = self._fresh(f"{name}_q")
            self.view.rename(tensor, integers)
            tensor.name = integers
            self.edits.append(Edit(_NAME, "rename", f"the integers '{name}' are called '{integers}'", tensor=integers))
            self._insert(tensor, read.scope, scale, name)

    def _convert(self, node: Node, tensor: Tensor, scale: float) -> None:
        """Put a Dequant in the place of an Identity, whose other readers read what it reads."""
        source = self.kinds.origin(_input(node))
        for read in tensor.reads:
            if read.node is not None:
                read.node.proto.input[read.index] = source.name
        self.edits.append(Edit(_NAME, "insert", f"Dequant of '{source.name}' in the place of {node.label}", node.label,
                               tensor.name, None, scale))  # fmt: skip
        node.proto.op_type, node.proto.domain = "Dequant", self.domain
        del node.proto.attribute[:]
        node.proto.attribute.append(helper.make_attribute("scale_o", scale))
        self.given.setdefault(tensor, []).append((node.scope, tensor.name))

    # ---- nodes ----

    def _provide(self, tensor: Tensor, read: Read, scale: float) -> str:
        """Return the name of the real numbers of `tensor` for a reader."""
        assert read.node is not None
        assert read.scope is not None
        raw = read.node.inputs[read.index]
        near = [name for scope, name in self.given.get(tensor, []) if read.scope.sees(scope)]
        if near:
            return raw.name if raw is not None and raw.name in near else near[0]
        waiting = [n for n in self.kinds.why if n not in self.taken and self.kinds.origin(_input(n)) is tensor
                   and n.scope is tensor.scope and n.outputs[0] is not None]  # fmt: skip
        waiting.sort(key=lambda n: (n.outputs[0] is not raw, self.view.place[n]))
        if waiting:
            return self._reuse(waiting[0], tensor, scale)
        return self._insert(tensor, tensor.scope, scale, None)

    def _reuse(self, node: Node, tensor: Tensor, scale: float) -> str:
        """Let a Dequant that stands there read `tensor` at `scale`, and return the name of its output."""
        result = node.outputs[0]
        assert result is not None
        before = node.attributes.get("scale_o")
        if node not in self.taken:
            self.taken.add(node)
            if not same_scale(before, scale):
                others = [a for a in node.proto.attribute if a.name not in ("scale_o", "scale_x")]
                attribute = helper.make_attribute("scale_o", scale)
                del node.proto.attribute[:]
                node.proto.attribute.extend([*others, attribute])
                self.edits.append(Edit(_NAME, "rescale", f"{node.label}: scale_o {number(before)} -> {number(scale)}",
                                       node.label, tensor.name, before, scale))  # fmt: skip
            self.given.setdefault(tensor, []).append((node.scope, result.name))
        return result.name

    def _insert(self, tensor: Tensor, scope: Scope, scale: float, name: str | None) -> str:
        """Add a Dequant of `tensor` in `scope` and return the name of its output."""
        result = name or self._fresh(f"{tensor.name}_real")
        title = fresh_name(f"Dequant_{name or tensor.name}", self.labels)
        self.labels.add(title)
        proto = helper.make_node("Dequant", [tensor.name], [result], name=title, domain=self.domain, scale_o=scale)
        self.new.append((scope, tensor.writer if tensor.scope is scope else None, proto))
        self.given.setdefault(tensor, []).append((scope, result))
        self.edits.append(Edit(_NAME, "insert", f"{label(proto)}: '{tensor.name}' -> '{result}'",
                               label(proto), tensor.name, None, scale))  # fmt: skip
        return result

    def _fresh(self, base: str) -> str:
        name = fresh_name(base, self.names)
        self.names.add(name)
        return name

    def _connect(self, node: Node, index: int, name: str) -> None:
        if node.proto.input[index] != name:
            before = node.proto.input[index]
            node.proto.input[index] = name
            self.edits.append(Edit(_NAME, "rewire", f"{node.label}: reads '{name}' instead of '{before}'", node.label,
                                   name))  # fmt: skip

    # ---- what is left ----

    def _pass_by(self, done: set[tuple[Node, int]]) -> None:
        """Let the readers of Dequants that do not stay for them read what these read."""
        for node in self.view.nodes:
            for index, tensor in enumerate(node.inputs):
                if tensor is not None and tensor in self.kinds.source and (node, index) not in done:
                    if node in self.kinds.why and node not in self.taken:
                        continue  # will be removed
                    self._connect(node, index, self.kinds.origin(tensor).name)

    def _remove(self) -> None:
        """Take out the Dequants that nobody took; a graph output that one wrote gets its name from elsewhere."""
        for node in [n for n in self.view.order if n in self.kinds.why and n not in self.taken]:
            result = node.outputs[0]
            assert result is not None
            source = self.kinds.origin(_input(node))
            leaving = [read for read in result.reads if read.output is not None]
            self.edits.append(Edit(_NAME, "remove", node.label, node.label, result.name,
                                   node.attributes.get("scale_o"), None))  # fmt: skip
            own = source.writer is not None and source.scope is node.scope
            if leaving and own and leaving[0].scope is not self.view.main and leaving[0].output is not None:
                leaving[0].output.name = source.name
            elif leaving and own and not self.view.is_output(source):
                self.edits.append(Edit(_NAME, "rename", f"'{source.name}' takes the name '{result.name}'",
                                       tensor=result.name))  # fmt: skip
                self._rename_source(source, result.name)
            elif leaving:
                _become_identity(node, source.name)
                continue
            self.gone.add(node)

    def _rename_source(self, source: Tensor, name: str) -> None:
        """Give `source` another name, for those too who came to read it just now."""
        for node in self.view.nodes:
            for index, given in enumerate(node.proto.input):
                if given == source.name:
                    node.proto.input[index] = name
        for _, _, proto in self.new:
            for index, given in enumerate(proto.input):
                if given == source.name:
                    proto.input[index] = name
        assert source.writer is not None
        source.writer.proto.output[source.index] = name
        source.name = name

    def _write(self) -> None:
        """Put the nodes of every graph in their places."""
        for scope in reversed(self.view.scopes):
            behind: dict[Node | None, list[NodeProto]] = {}
            for where, after, proto in self.new:
                if where is scope:
                    behind.setdefault(after, []).append(proto)
            if not behind and not any(node in self.gone for node in scope.nodes):
                continue
            kept = list(behind.pop(None, []))
            for node in scope.nodes:
                if node not in self.gone:
                    kept.append(node.proto)
                kept += behind.get(node, [])
            _refill(scope.graph, kept)
        if self.new and self.domain:
            known = {entry.domain for entry in self.view.model.opset_import}
            if self.domain not in known:
                self.view.model.opset_import.append(helper.make_opsetid(self.domain, 1))
        sort_all(View(self.view.model))


def _refill(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    copies = []
    for proto in nodes:
        copy = NodeProto()
        copy.CopyFrom(proto)
        copies.append(copy)
    del graph.node[:]
    graph.node.extend(copies)


def _become_identity(node: Node, source: str) -> None:
    """Keep a Dequant's output where no other node can write it."""
    node.proto.op_type, node.proto.domain = "Identity", ""
    del node.proto.attribute[:]
    node.proto.input[0] = source


def _domain(view: View) -> str:
    """Return the domain for new Dequants: that of the others, else that of the integer operators, else thinker."""
    domains = [n.proto.domain for n in view.order if is_dequant(n)]
    domains += [n.proto.domain for n in view.order if is_quantized(n)]
    return domains[0] if domains else "thinker"


DEQUANTS = Repair(_NAME, _find, _fix)
