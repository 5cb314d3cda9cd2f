"""Planning of the edits that repair the Dequants of a graph, for all Dequants at once.

Consumers that need integers bypass the invalid Dequants. Consumers of real numbers share one
Dequant per tensor: a valid one, else an invalid one whose scale is corrected, else a new one.
`dequants` reports the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from onnx import NodeProto, ValueInfoProto, helper

from ...operators.integer_ops import DEQUANT
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
    """Return the tensor that `read`, a node input or graph output, refers to.

    None if it is undefined.
    """
    if read.node is not None:
        return read.node.inputs[read.index]
    assert read.output is not None
    assert read.scope is not None
    return read.scope.find(read.output.name)


def find_upstream_dequant(tensor: TensorView, kinds: TensorKinds) -> NodeView | None:
    """Return the invalid Dequant from which the integers in `tensor` come, or None.

    Looks upstream through operators that pass integers on. An invalid Dequant is one at a wrong
    place, with a wrong scale or on the wrong values, according to `kinds`.
    """
    node = tensor.producer
    while node is not None and (always_passes_integers(node) or passes_integers_on_demand(node)):
        indices = data_inputs(node)
        source = node.inputs[indices[0]] if indices else None
        if source is None:
            return None
        if source in kinds.dequant_sources:
            return source.producer
        node = source.producer
    return None


#: The subject of an edit: an invalid Dequant, or a use of integers as real numbers.
_EditOwner = NodeView | TensorRead


class EditPlan:
    """The edits that repair all Dequants of a view. Planning does not modify the model.

    Attributes
    ----------
    edits
        Pairs of the fault that an edit repairs and the edit, in the order of application.
    reused_dequants
        Invalid Dequants that are kept, with a corrected scale or for other consumers.
    rewired_inputs
        Planned tensor names of node inputs, where they change.
    renamed_tensors
        Planned names of tensors, where they change.
    converted
        Identity nodes that become Dequants.
    insert_counts
        How many new nodes are inserted directly after a node, or at the start of a graph (None),
        by scope id and node.
    new_nodes
        The inserted nodes, once their edits are applied.
    available_reals
        The tensors that contain the dequantized values of a tensor, as scope and name.
    """

    def __init__(self, view: GraphView) -> None:
        """Plan the edits for all Dequant faults of `view`; the model is not modified yet."""
        self.view = view
        self.kinds = KindAnalysis.for_view(view).kinds
        self.edits: list[tuple[_EditOwner, Edit]] = []
        self.reused_dequants: set[NodeView] = set()
        self.rewired_inputs: dict[tuple[NodeView, int], str] = {}
        self.renamed_tensors: dict[TensorView, str] = {}
        self.converted: set[NodeView] = set()
        self.insert_counts: dict[tuple[int, NodeView | None], int] = {}
        self.new_nodes: list[NodeProto] = []
        self.available_reals: dict[TensorView, list[tuple[Scope, str]]] = {}
        for node in view.order:
            result = node.outputs[0] if node.outputs else None
            if node in self.kinds.valid_dequants and result is not None:
                source = self.kinds.resolve(dequant_input(node))
                self.available_reals.setdefault(source, []).append((node.scope, result.name))
        self.names = view.names()
        self.labels = {node.proto.name for node in view.nodes}
        self.domain = _choose_dequant_domain(view)
        self._plan_edits()

    def edits_for(self, owner: _EditOwner) -> list[Edit]:
        """Return the planned edits that repair the fault `owner`, in the order of application.

        `owner` is an invalid Dequant, or a node input or graph output that reads integers as real
        numbers.
        """
        return [edit for edit_owner, edit in self.edits if edit_owner is owner]

    def _plan_edits(self) -> None:
        """Plan the edits for all integer tensors that are read as reals without a valid Dequant.

        Per tensor, graph outputs come before nodes; then consumers bypass invalid Dequants that are
        not reused, and these are removed. Tensors whose scale is unknown are left without edits.
        """
        rewired: set[tuple[NodeView, int]] = set()
        for tensor, reads in self.kinds.missing_dequants.items():
            scale = find_scale(tensor, self.kinds)
            if scale is None:
                continue
            for read in reads:
                if read.output is not None:
                    self._fix_graph_output(tensor, read, scale)
            for read in reads:
                if read.node is not None:
                    name = self._provide_real_tensor(tensor, read, scale)
                    self._rewire_input(self._find_owner(tensor, read), read.node, read.index, name)
                    rewired.add((read.node, read.index))
        self._bypass_removed_dequants(rewired)
        self._remove_unused_dequants()

    def _find_owner(self, tensor: TensorView, read: TensorRead) -> _EditOwner:
        """Return the fault that is repaired when `read` gets the real numbers of `tensor`.

        It is the invalid Dequant between `tensor` and `read` if there is one, else `read` itself.
        """
        direct = tensor_read_by(read)
        if direct is not None and direct is not tensor and direct in self.kinds.dequant_sources:
            assert direct.producer is not None
            return direct.producer
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
        """Append an edit that repairs the fault `owner` to the plan.

        Its rank is its position there. `action` and `text` are for the report; `node` and `tensor`
        name the place, `before` and `after` the changed value. `apply` changes the model, and does
        nothing by default.
        """
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
        """Return the name of a tensor after the edits planned so far."""
        return self.renamed_tensors.get(tensor, tensor.name)

    def _current_input(self, node: NodeView, index: int) -> str:
        """Return the name of the tensor at a node input after the edits planned so far."""
        return str(self.rewired_inputs.get((node, index), node.proto.input[index]))

    def _reserve_name(self, base: str) -> str:
        """Return an unused tensor name derived from `base`, and mark it as used."""
        name = fresh_name(base, self.names)
        self.names.add(name)
        return name

    # ---- graph outputs ----

    def _fix_graph_output(self, tensor: TensorView, read: TensorRead, scale: float) -> None:
        """Plan a Dequant for the graph output `read`, which returns the integers of `tensor`.

        An invalid Dequant before the output is reused, and an Identity turned into the Dequant;
        else a new Dequant takes over the output's name, and the integers get another one. A branch
        output refers to the new Dequant's output instead. Nothing is planned for a graph input.
        """
        assert read.output is not None
        assert read.scope is not None
        direct, owner = tensor_read_by(read), self._find_owner(tensor, read)
        if direct is not None and direct is not tensor and direct.scope is read.scope:
            dequant = direct.producer
            if dequant is not None and is_dequant(dequant):
                self._reuse_dequant(dequant, tensor, scale)
                return
        if read.scope is not self.view.main:
            result = self._reserve_name(f"{self._current_name(tensor)}_real")
            set_output = partial(_set_graph_output, read.output, result)
            self._insert_dequant(owner, tensor, read.scope, scale, None, result, set_output)
        elif tensor.producer is not None and self._is_identity(tensor.producer):
            self._replace_identity(owner, tensor.producer, tensor, scale)
        elif tensor.producer is not None:
            self._rename_integers(owner, tensor, read.output.name)
            output_name = read.output.name
            self._insert_dequant(owner, tensor, read.scope, scale, output_name, output_name)

    def _rename_integers(self, owner: _EditOwner, tensor: TensorView, output_name: str) -> None:
        """Plan to rename `tensor`, whose integers have the name of a graph output, to ``<name>_q``.

        The edit belongs to the fault `owner`; later edits of the plan see the new name.
        """
        integer_name = self._reserve_name(f"{output_name}_q")
        for read in tensor.reads:
            if read.node is not None:
                self.rewired_inputs[read.node, read.index] = integer_name
        self.renamed_tensors[tensor] = integer_name
        self._add_edit(
            owner,
            "rename",
            f"integer tensor '{output_name}' to '{integer_name}'",
            partial(self.view.rename, tensor, integer_name),
            tensor=integer_name,
        )

    def _is_identity(self, node: NodeView) -> bool:
        """Whether `node` is an Identity that is not planned to become a Dequant."""
        return node.proto.op_type == "Identity" and node.is_standard and node not in self.converted

    def _replace_identity(
        self, owner: _EditOwner, node: NodeView, tensor: TensorView, scale: float
    ) -> None:
        """Plan to turn the Identity `node` into a Dequant.

        Its other consumers read the Identity's input. `tensor` is the output of the Identity,
        `scale` becomes the attribute `scale_o`.
        """
        source = self._current_name(self.kinds.resolve(dequant_input(node)))
        readers = [(read.node, read.index) for read in tensor.reads if read.node is not None]
        self.rewired_inputs.update(dict.fromkeys(readers, source))
        self.converted.add(node)
        self._add_edit(
            owner,
            "insert",
            f"Dequant of '{source}' instead of {node.label}",
            partial(_turn_into_dequant, node, self.domain, scale, readers, source),
            node=node.label,
            tensor=self._current_name(tensor),
            after=scale,
        )
        self.available_reals.setdefault(tensor, []).append((node.scope, self._current_name(tensor)))

    # ---- nodes ----

    def _provide_real_tensor(self, tensor: TensorView, read: TensorRead, scale: float) -> str:
        """Return the name of a tensor with `tensor` as real numbers, for the node input `read`.

        In this order: the output of a Dequant that is visible there (what `read` reads already, if
        it is one), an invalid Dequant that is reused with `scale`, or a new Dequant, whose
        insertion is planned.
        """
        assert read.node is not None
        assert read.scope is not None
        direct = read.node.inputs[read.index]
        visible_names = [
            name
            for scope, name in self.available_reals.get(tensor, [])
            if read.scope.can_see(scope)
        ]
        if visible_names:
            if direct is not None and direct.name in visible_names:
                return direct.name
            return visible_names[0]
        reusable = [node for node in self.kinds.invalid_dequants if self._is_reusable(node, tensor)]
        if reusable:
            reusable.sort(
                key=lambda node: (node.outputs[0] is not direct, self.view.order_index[node])
            )
            return self._reuse_dequant(reusable[0], tensor, scale)
        result = self._reserve_name(f"{self._current_name(tensor)}_real")
        owner = self._find_owner(tensor, read)
        self._insert_dequant(owner, tensor, tensor.scope, scale, None, result)
        return result

    def _is_reusable(self, node: NodeView, tensor: TensorView) -> bool:
        """Whether `node`, an invalid Dequant, can become the Dequant of the integer `tensor`.

        It must read the tensor already, in the same scope, have an output, and not be reused yet.
        """
        return (
            node not in self.reused_dequants
            and self.kinds.resolve(dequant_input(node)) is tensor
            and node.scope is tensor.scope
            and node.outputs[0] is not None
        )

    def _reuse_dequant(self, node: NodeView, tensor: TensorView, scale: float) -> str:
        """Keep `node`, an invalid Dequant, as the Dequant of `tensor`.

        Return the name of its output. An edit of `scale_o` is planned if it is not `scale`. One
        that is reused already stays as it is.
        """
        result = node.outputs[0]
        assert result is not None
        if node in self.reused_dequants:
            return result.name
        self.reused_dequants.add(node)
        self.available_reals.setdefault(tensor, []).append((node.scope, result.name))
        before = node.attributes.get("scale_o")
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
        """Plan a new Dequant of the integer `tensor`, for the finding `owner`.

        Nothing is changed yet. Other reads of the tensor may use its output `result` from now on.

        Parameters
        ----------
        scope
            The graph to insert it into: after the producer, or at the start of another graph.
        scale
            Scale of the Dequant.
        name
            Base of the node name; None for the name of the tensor.
        result
            Name of the output.
        then
            Called when the node is inserted.
        """
        source = self._current_name(tensor)
        node_name = fresh_name(f"Dequant_{name or source}", self.labels)
        self.labels.add(node_name)
        proto = helper.make_node(
            DEQUANT.name, [source], [result], name=node_name, domain=self.domain, scale_o=scale
        )
        producer = tensor.producer if tensor.scope is scope else None
        offset = self.insert_counts.get((id(scope), producer), 0)
        self.insert_counts[id(scope), producer] = offset + 1
        self.available_reals.setdefault(tensor, []).append((scope, result))

        def apply() -> None:
            """Insert the new Dequant after the producer of its input, or at the graph's start.

            Also imports the Dequant's domain if the model does not, and calls `then` at the end.
            """
            index = offset
            if producer is not None:
                index += index_of_node(scope.graph, producer.proto) + 1
            scope.graph.node.insert(index, proto)
            self.new_nodes.append(scope.graph.node[index])
            opset_imports = self.view.model.opset_import
            if self.domain and self.domain not in {entry.domain for entry in opset_imports}:
                opset_imports.append(helper.make_opsetid(self.domain, 1))
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

    def _rewire_input(self, owner: _EditOwner, node: NodeView, index: int, name: str) -> None:
        """Plan the edit that lets input `index` of `node` read the tensor `name`.

        It repairs the fault `owner`. No edit if the input reads that tensor already.
        """
        before = self._current_input(node, index)
        if before == name:
            return
        self.rewired_inputs[node, index] = name
        self._add_edit(
            owner,
            "rewire",
            f"{node.label}: reads '{name}' instead of '{before}'",
            partial(_set_input, node, index, name),
            node=node.label,
            tensor=name,
        )

    # ---- invalid Dequants that are not reused ----

    def _bypass_removed_dequants(self, rewired: set[tuple[NodeView, int]]) -> None:
        """Plan that consumers of invalid Dequants read the Dequants' integer inputs instead.

        Left out are the node inputs (node, index) in `rewired`, whose edits are planned already,
        and inputs of Dequants that will be removed.
        """
        for node in self.view.nodes:
            if self._is_removed(node):
                continue
            for index, tensor in enumerate(node.inputs):
                if tensor is None or (node, index) in rewired:
                    continue
                if tensor in self.kinds.dequant_sources:
                    assert tensor.producer is not None
                    name = self._current_name(self.kinds.resolve(tensor))
                    self._rewire_input(tensor.producer, node, index, name)

    def _is_removed(self, node: NodeView) -> bool:
        """Whether `node` is an invalid Dequant that no consumer reuses, so that it is removed."""
        return node in self.kinds.invalid_dequants and node not in self.reused_dequants

    def _remove_unused_dequants(self) -> None:
        """Plan the removal of the invalid Dequants that are not reused, in topological order."""
        sources_with_output_name: set[TensorView] = set()
        for node in self.view.order:
            if self._is_removed(node):
                self._remove_dequant(node, sources_with_output_name)

    def _remove_dequant(self, node: NodeView, sources_with_output_name: set[TensorView]) -> None:
        """Plan the edit that removes `node`, an invalid Dequant.

        If it computes a graph output, that output refers to the tensor that `node` dequantizes (its
        source), or the source gets the output's name, or, where neither is possible, the Dequant
        becomes an Identity. A source that gets a name is added to `sources_with_output_name`.
        """
        result = node.outputs[0]
        assert result is not None
        source = self.kinds.resolve(dequant_input(node))
        output_reads = [read for read in result.reads if read.output is not None]
        is_local = source.producer is not None and source.scope is node.scope
        can_rename = not self.view.is_output(source) and source not in sources_with_output_name
        takes_name = False
        remove: Callable[[], None] = partial(remove_node, node.scope.graph, node.proto)
        if output_reads:
            read = output_reads[0]
            assert read.output is not None
            if is_local and read.scope is not self.view.main:
                remove = partial(_set_graph_output, read.output, self._current_name(source), remove)
            elif is_local and can_rename:
                takes_name = True
            else:
                remove = partial(_turn_into_identity, node, self._current_name(source))
        self._add_edit(
            node,
            "remove",
            node.label,
            remove,
            node=node.label,
            tensor=result.name,
            before=node.attributes.get("scale_o"),
        )
        if takes_name:
            sources_with_output_name.add(source)
            self._rename_to_output(node, source, result.name)

    def _rename_to_output(self, dequant: NodeView, source: TensorView, output_name: str) -> None:
        """Plan to rename `source` to `output_name`, the graph output that `dequant` computed.

        `dequant`, which dequantized `source`, is to be removed.
        """
        current_name = self._current_name(source)
        self._add_edit(
            dequant,
            "rename",
            f"'{current_name}' to '{output_name}'",
            partial(self._rename_source, source, current_name, output_name),
            tensor=output_name,
        )
        self.renamed_tensors[source] = output_name

    def _rename_source(self, source: TensorView, before: str, name: str) -> None:
        """Rename the node output `source` to `name`, and each node input that reads `before`.

        This is an edit that is applied; nodes that earlier edits added are included.
        """
        for proto in (*(node.proto for node in self.view.nodes), *self.new_nodes):
            for index, graph_input in enumerate(proto.input):
                if graph_input == before:
                    proto.input[index] = name
        assert source.producer is not None
        source.producer.proto.output[source.index] = name


def _set_input(node: NodeView, index: int, name: str) -> None:
    """Let input `index` of `node` read the tensor `name`, in place."""
    node.proto.input[index] = name


def _set_graph_output(
    output: ValueInfoProto, name: str, then: Callable[[], None] = lambda: None
) -> None:
    """Let the graph output `output` refer to the tensor `name`, in place; then call `then`."""
    output.name = name
    then()


def _set_dequant_scale(node: NodeView, scale: float) -> None:
    """Set `scale_o` of the Dequant `node` to `scale`; remove its former name `scale_x`."""
    attributes = [
        attribute
        for attribute in node.proto.attribute
        if attribute.name not in ("scale_o", "scale_x")
    ]
    attributes.append(helper.make_attribute("scale_o", scale))
    del node.proto.attribute[:]
    node.proto.attribute.extend(attributes)


def _turn_into_dequant(
    node: NodeView, domain: str, scale: float, readers: Sequence[tuple[NodeView, int]], source: str
) -> None:
    """Turn the Identity `node` into a Dequant of `scale`, whose `readers` read `source` instead.

    `readers` are (node, input index); all in place.
    """
    for reader, index in readers:
        reader.proto.input[index] = source
    node.proto.op_type, node.proto.domain = DEQUANT.name, domain
    del node.proto.attribute[:]
    node.proto.attribute.append(helper.make_attribute("scale_o", scale))


def _turn_into_identity(node: NodeView, source: str) -> None:
    """Turn the Dequant `node` into an Identity of `source`, in place."""
    node.proto.op_type, node.proto.domain = "Identity", ""
    del node.proto.attribute[:]
    node.proto.input[0] = source


def _choose_dequant_domain(view: GraphView) -> str:
    """Return the domain of new Dequants: of the first Dequant, else of the first integer operator.

    The default is "thinker".
    """
    quantized = [node for node in view.order if is_quantized(node)]
    dequants = [node for node in view.order if is_dequant(node)]
    return next((node.proto.domain for node in (*dequants, *quantized)), "thinker")
