"""How Dequants are mended: which edits a damaged graph takes, planned for all of them at once.

Readers that take integers go past the Dequants that may not stay; readers of real numbers share the
tensor's Dequant: one that may stay, else one that stands there with a wrong scale, else a new one.
What is wrong, `dequants` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from onnx import NodeProto, ValueInfoProto, helper

from ..formats import DEQUANT
from .graph_view import (
    GraphView,
    NodeView,
    Scope,
    TensorRead,
    TensorView,
    fresh_name,
    index_of_node,
    node_label,
    remove_node,
    same_scale,
)
from .node_semantics import (
    always_passes_integers,
    data_inputs,
    is_dequant,
    is_quantized,
    passes_integers_on_demand,
)
from .report import Edit, format_scale
from .tensor_kinds import KindAnalysis, TensorKinds, dequant_input, find_scale

__all__ = ["REPAIR_NAME", "EditPlan", "find_upstream_dequant", "tensor_read_by"]

REPAIR_NAME = "dequants"


def tensor_read_by(read: TensorRead) -> TensorView | None:
    """Return the tensor that a reader names."""
    if read.node is not None:
        return read.node.inputs[read.index]
    assert read.output is not None
    assert read.scope is not None
    return read.scope.find(read.output.name)


def find_upstream_dequant(tensor: TensorView, kinds: TensorKinds) -> NodeView | None:
    """Return the Dequant that may not stay, before operators that move data, because of which integers come here."""
    node = tensor.writer
    while (
        node is not None
        and (always_passes_integers(node) or passes_integers_on_demand(node))
        and data_inputs(node)
    ):
        source = node.inputs[data_inputs(node)[0]]
        if source is None:
            return None
        if source in kinds.stands_for:
            return source.writer
        node = source.writer
    return None


#: What an edit mends: a Dequant that may not stay, or a reader of integers that wants real numbers.
_EditOwner = NodeView | TensorRead


class EditPlan:
    """All Dequants of a view at once: which edits mend what.

    Nothing is changed before they are applied.
    edits : (what it mends, the edit), in the order in which they must be applied
    """

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.kinds = KindAnalysis.for_view(view).kinds
        self.edits: list[tuple[_EditOwner, Edit]] = []
        self.reused_dequants: set[NodeView] = (
            set()
        )  # Dequants that stay although they might not: at another scale, for other readers
        self.rewired_inputs: dict[
            tuple[NodeView, int], str
        ] = {}  # what an input is called by now, where that has changed
        self.renamed_tensors: dict[
            TensorView, str
        ] = {}  # what a tensor is called by now, where that has changed
        self.converted: set[NodeView] = set()
        self.inserted: dict[
            tuple[int, NodeView | None], int
        ] = {}  # how many new nodes stand behind a node of a scope
        self.new_nodes: list[NodeProto] = []
        self.available_reals: dict[
            TensorView, list[tuple[Scope, str]]
        ] = {}  # real numbers of a tensor: where, under which name
        for node in view.order:
            result = node.outputs[0] if node.outputs else None
            if node in self.kinds.kept and result is not None:
                self.available_reals.setdefault(self.kinds.resolve(dequant_input(node)), []).append(
                    (node.scope, result.name)
                )
        self.names = view.names()
        self.labels = {node.proto.name for node in view.nodes}
        self.domain = _choose_dequant_domain(view)
        self._plan_edits()

    def _plan_edits(self) -> None:
        done = set()
        for tensor, reads in self.kinds.missing_dequants.items():
            scale = find_scale(tensor, self.kinds)
            if scale is None:
                continue
            for read in [r for r in reads if r.output is not None]:
                self._fix_graph_output(tensor, read, scale)
            for read in [r for r in reads if r.node is not None]:
                assert read.node is not None
                name = self._provide_real_tensor(tensor, read, scale)
                self._rewire_input(self._find_owner(tensor, read), read.node, read.index, name)
                done.add((read.node, read.index))
        self._bypass_removed_dequants(done)
        self._remove_unused_dequants()

    def edits_for(self, owner: _EditOwner) -> list[Edit]:
        """Return the edits that mend something."""
        return [edit for mends, edit in self.edits if mends is owner]

    def _find_owner(self, tensor: TensorView, read: TensorRead) -> _EditOwner:
        """Return what is mended where `read` gets real numbers.

        The Dequant on the way, where there is one.
        """
        raw = tensor_read_by(read)
        if (
            raw is not tensor
            and raw is not None
            and raw in self.kinds.stands_for
            and raw.writer is not None
        ):
            return raw.writer
        return find_upstream_dequant(tensor, self.kinds) or read

    def _add_edit(
        self,
        owner: _EditOwner,
        action: str,
        text: str,
        apply: Callable[[], None] = lambda: None,
        *,
        node: str = "",
        tensor: str = "",
        before: object = None,
        after: object = None,
    ) -> None:
        edit = Edit(
            REPAIR_NAME,
            action,
            text,
            node,
            tensor,
            before=before,
            after=after,
            apply=apply,
            rank=len(self.edits),
        )
        self.edits.append((owner, edit))

    def _current_name(self, tensor: TensorView) -> str:
        return self.renamed_tensors.get(tensor, tensor.name)

    def _current_input(self, node: NodeView, index: int) -> str:
        return self.rewired_inputs.get((node, index), node.proto.input[index])

    # ---- graph outputs ----

    def _fix_graph_output(self, tensor: TensorView, read: TensorRead, scale: float) -> None:
        """Make a graph output real."""
        assert read.output is not None
        assert read.scope is not None
        raw, name, owner = tensor_read_by(read), read.output.name, self._find_owner(tensor, read)
        if (
            raw is not None
            and raw is not tensor
            and is_dequant(raw.writer)
            and raw.scope is read.scope
        ):
            assert raw.writer is not None
            self._reuse_dequant(raw.writer, tensor, scale)
        elif read.scope is not self.view.main:
            result = self._reserve_name(f"{self._current_name(tensor)}_real")
            self._insert_dequant(
                owner,
                tensor,
                read.scope,
                scale,
                None,
                result,
                partial(_set_graph_output, read.output, result),
            )
        elif tensor.writer is not None and self._is_identity(tensor.writer):
            self._replace_identity(owner, tensor.writer, tensor, scale)
        elif tensor.writer is not None:
            integers = self._reserve_name(f"{name}_q")
            for other in tensor.reads:
                if other.node is not None:
                    self.rewired_inputs[other.node, other.index] = integers
            self.renamed_tensors[tensor] = integers
            self._add_edit(
                owner,
                "rename",
                f"the integers '{name}' are called '{integers}'",
                partial(self.view.rename, tensor, integers),
                tensor=integers,
            )
            self._insert_dequant(owner, tensor, read.scope, scale, name, name)

    def _is_identity(self, node: NodeView) -> bool:
        return node.proto.op_type == "Identity" and node.standard and node not in self.converted

    def _replace_identity(
        self, owner: _EditOwner, node: NodeView, tensor: TensorView, scale: float
    ) -> None:
        """Put a Dequant in the place of an Identity, whose other readers read what it reads."""
        source = self._current_name(self.kinds.resolve(dequant_input(node)))
        readers = [(read.node, read.index) for read in tensor.reads if read.node is not None]
        self.rewired_inputs.update(dict.fromkeys(readers, source))
        self.converted.add(node)
        self._add_edit(
            owner,
            "insert",
            f"Dequant of '{source}' in the place of {node.label}",
            partial(_turn_into_dequant, node, self.domain, scale, readers, source),
            node=node.label,
            tensor=self._current_name(tensor),
            after=scale,
        )
        self.available_reals.setdefault(tensor, []).append((node.scope, self._current_name(tensor)))

    # ---- nodes ----

    def _provide_real_tensor(self, tensor: TensorView, read: TensorRead, scale: float) -> str:
        """Return the name of the real numbers of `tensor` for a reader."""
        assert read.node is not None
        assert read.scope is not None
        raw = read.node.inputs[read.index]
        near = [
            name
            for scope, name in self.available_reals.get(tensor, [])
            if read.scope.can_see(scope)
        ]
        if near:
            return raw.name if raw is not None and raw.name in near else near[0]
        waiting = [
            n
            for n in self.kinds.invalid_dequants
            if n not in self.reused_dequants
            and self.kinds.resolve(dequant_input(n)) is tensor
            and n.scope is tensor.scope
            and n.outputs[0] is not None
        ]
        waiting.sort(key=lambda n: (n.outputs[0] is not raw, self.view.order_index[n]))
        if waiting:
            return self._reuse_dequant(waiting[0], tensor, scale)
        result = self._reserve_name(f"{self._current_name(tensor)}_real")
        self._insert_dequant(
            self._find_owner(tensor, read), tensor, tensor.scope, scale, None, result
        )
        return result

    def _reuse_dequant(self, node: NodeView, tensor: TensorView, scale: float) -> str:
        """Let a Dequant that stands there read `tensor` at `scale`, and return the name of its output."""
        result = node.outputs[0]
        assert result is not None
        before = node.attributes.get("scale_o")
        if node not in self.reused_dequants:
            self.reused_dequants.add(node)
            if not same_scale(before, scale):
                self._add_edit(
                    node,
                    "rescale",
                    f"{node.label}: scale_o {format_scale(before)} -> {format_scale(scale)}",
                    partial(_set_dequant_scale, node, scale),
                    node=node.label,
                    tensor=self._current_name(tensor),
                    before=before,
                    after=scale,
                )
            self.available_reals.setdefault(tensor, []).append((node.scope, result.name))
        return result.name

    def _insert_dequant(
        self,
        owner: _EditOwner,
        tensor: TensorView,
        scope: Scope,
        scale: float,
        name: str | None,
        result: str,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Add a Dequant of `tensor` in `scope`, called after `name`, that writes `result`.

        Do `then` with it.
        """
        source = self._current_name(tensor)
        title = fresh_name(f"Dequant_{name or source}", self.labels)
        self.labels.add(title)
        proto = helper.make_node(
            DEQUANT.name, [source], [result], name=title, domain=self.domain, scale_o=scale
        )
        behind = tensor.writer if tensor.scope is scope else None
        nth = self.inserted.get((id(scope), behind), 0)
        self.inserted[id(scope), behind] = nth + 1
        self.available_reals.setdefault(tensor, []).append((scope, result))

        def apply() -> None:
            place = nth if behind is None else index_of_node(scope.graph, behind.proto) + 1 + nth
            scope.graph.node.insert(place, proto)
            self.new_nodes.append(scope.graph.node[place])
            if self.domain and self.domain not in {
                entry.domain for entry in self.view.model.opset_import
            }:
                self.view.model.opset_import.append(helper.make_opsetid(self.domain, 1))
            then()

        self._add_edit(
            owner,
            "insert",
            f"{node_label(proto)}: '{source}' -> '{result}'",
            apply,
            node=node_label(proto),
            tensor=source,
            after=scale,
        )

    def _reserve_name(self, base: str) -> str:
        name = fresh_name(base, self.names)
        self.names.add(name)
        return name

    def _rewire_input(self, owner: _EditOwner, node: NodeView, index: int, name: str) -> None:
        before = self._current_input(node, index)
        if before != name:
            self.rewired_inputs[node, index] = name
            self._add_edit(
                owner,
                "rewire",
                f"{node.label}: reads '{name}' instead of '{before}'",
                partial(_set_input, node, index, name),
                node=node.label,
                tensor=name,
            )

    # ---- what is left ----

    def _bypass_removed_dequants(self, done: set[tuple[NodeView, int]]) -> None:
        """Let the readers of Dequants that do not stay for them read what these read."""
        for node in self.view.nodes:
            for index, tensor in enumerate(node.inputs):
                if (
                    tensor is not None
                    and tensor in self.kinds.stands_for
                    and (node, index) not in done
                ):
                    if node in self.kinds.invalid_dequants and node not in self.reused_dequants:
                        continue  # will be removed
                    assert tensor.writer is not None
                    self._rewire_input(
                        tensor.writer, node, index, self._current_name(self.kinds.resolve(tensor))
                    )

    def _remove_unused_dequants(self) -> None:
        """Take out the Dequants that nobody took.

        A graph output that one wrote gets its name from elsewhere.
        """
        named: set[TensorView] = set()
        for node in [
            n
            for n in self.view.order
            if n in self.kinds.invalid_dequants and n not in self.reused_dequants
        ]:
            result = node.outputs[0]
            assert result is not None
            source = self.kinds.resolve(dequant_input(node))
            leaving = [read for read in result.reads if read.output is not None]
            own = source.writer is not None and source.scope is node.scope
            out = partial(remove_node, node.scope.graph, node.proto)
            renames = False
            if (
                leaving
                and own
                and leaving[0].scope is not self.view.main
                and leaving[0].output is not None
            ):
                out = partial(_set_graph_output, leaving[0].output, self._current_name(source), out)
            elif leaving and own and not self.view.is_output(source) and source not in named:
                renames = True
            elif leaving:
                out = partial(_turn_into_identity, node, self._current_name(source))
            self._add_edit(
                node,
                "remove",
                node.label,
                out,
                node=node.label,
                tensor=result.name,
                before=node.attributes.get("scale_o"),
            )
            if renames:
                named.add(source)
                self._add_edit(
                    node,
                    "rename",
                    f"'{self._current_name(source)}' takes the name '{result.name}'",
                    partial(self._rename_source, source, self._current_name(source), result.name),
                    tensor=result.name,
                )
                self.renamed_tensors[source] = result.name

    def _rename_source(self, source: TensorView, before: str, name: str) -> None:
        """Give `source` another name, for those too who came to read it just now."""
        for proto in (*(node.proto for node in self.view.nodes), *self.new_nodes):
            for index, graph_input in enumerate(proto.input):
                if graph_input == before:
                    proto.input[index] = name
        assert source.writer is not None
        source.writer.proto.output[source.index] = name


def _set_input(node: NodeView, index: int, name: str) -> None:
    node.proto.input[index] = name


def _set_graph_output(
    output: ValueInfoProto, name: str, then: Callable[[], None] = lambda: None
) -> None:
    """Let a graph's output be the tensor `name`."""
    output.name = name
    then()


def _set_dequant_scale(node: NodeView, scale: float) -> None:
    """Give a Dequant this scale, under the right name."""
    others = [a for a in node.proto.attribute if a.name not in ("scale_o", "scale_x")]
    attribute = helper.make_attribute("scale_o", scale)
    del node.proto.attribute[:]
    node.proto.attribute.extend([*others, attribute])


def _turn_into_dequant(
    node: NodeView, domain: str, scale: float, readers: Sequence[tuple[NodeView, int]], source: str
) -> None:
    """Make a Dequant of an Identity; its readers read `source`."""
    for reader, index in readers:
        reader.proto.input[index] = source
    node.proto.op_type, node.proto.domain = DEQUANT.name, domain
    del node.proto.attribute[:]
    node.proto.attribute.append(helper.make_attribute("scale_o", scale))


def _turn_into_identity(node: NodeView, source: str) -> None:
    """Keep a Dequant's output where no other node can write it."""
    node.proto.op_type, node.proto.domain = "Identity", ""
    del node.proto.attribute[:]
    node.proto.input[0] = source


def _choose_dequant_domain(view: GraphView) -> str:
    """Return the domain for new Dequants.

    That of the others, else that of the integer operators, else thinker.
    """
    domains = [n.proto.domain for n in view.order if is_dequant(n)]
    domains += [n.proto.domain for n in view.order if is_quantized(n)]
    return domains[0] if domains else "thinker"
