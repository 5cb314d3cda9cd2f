"""What an exporter wrote, made clean.

Constants folded, leftovers gone, nodes and tensors named by module path.
The parameters keep names, layout and values of the module's state_dict, so that a checkpoint fits
the file by name. For that they are graph inputs while constants are folded: nothing that depends on
one is computed. The exception are recurrent layers, whose weights ONNX wants in another order
(`recurrent_weights`): they are stored as ONNX wants them.

Names, the same from both exporters: node ``/layer1/0/conv/Conv``, for the operator Conv in the
module ``layer1.0.conv`` (a second one ``Conv_1``), its output ``/layer1/0/conv/Conv_output_0``;
other constants ``/layer1/0/Constant``. Without scopes ``Conv_0``, ``Conv_1`` through the whole
graph. Knows graphs; no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...graph import ir
from ...passes.folding.constants import fold_constants
from ...passes.folding.identity import drop_identity
from ...passes.folding.zero_states import drop_zero_states
from ...run.runners import FloatFallback
from ..checkpoint.recurrent_weights import PackedWeights, match_packed_weights
from .constant_sizes import fold_constant_sizes

try:
    from onnxscript import optimizer
except ModuleNotFoundError as error:
    raise ConfigError(
        "the export needs onnxscript, which is not installed: pip install 'lingeronnx[torch]'"
    ) from error

__all__ = ["SCOPE_KEY", "clean_graph", "sort_initializers"]

#: Metadata of a node of the exporter: the path of its module, ``layer1.0.conv``.
SCOPE_KEY = "lingeronnx.scope"

DumpGraph = Callable[[str, ir.Model], None]


def clean_graph(
    model: ir.Model,
    parameters: Mapping[str, str],
    feeds: Sequence[Mapping[str, np.ndarray]],
    with_scopes: bool,
    dump: DumpGraph,
) -> dict[str, str]:
    """Clean `model`, whose nodes carry `SCOPE_KEY`, in place.

    Return {node: the path of its module}.
    parameters : state_dict names -> the first of the names under which the module has the same
    parameter. feeds : inputs that differ in every dynamic axis. dump : called with a name and the
    graph after each step.
    """
    _name_parameters(model, parameters)
    _fold_constants(model, set(parameters.values()))
    dump("folded", model)
    if fold_constant_sizes(model, feeds):
        _fold_constants(model, set(parameters.values()))
        dump("sized", model)
    _pack_recurrent(model)
    dump("packed", model)
    _drop_unused_initializers(model)
    paths = _assign_names(model, set(parameters.values()), with_scopes)
    _strip_metadata(model)
    dump("named", model)
    return paths


def _name_parameters(model: ir.Model, parameters: Mapping[str, str]) -> None:
    """Shared parameters have one initializer, under the first name."""
    for name, value in list(model.graph.initializers.items()):
        first = parameters.get(name, name)
        if first == name:
            continue
        if first in model.graph.initializers:
            ir.replace_all_uses(value, model.graph.initializers[first])
            del model.graph.initializers[name]
        else:
            ir.rename_initializer(model, value, first)


def _fold_constants(model: ir.Model, parameters: set[str]) -> None:
    hidden = [
        (value, value.const_value)
        for name, value in model.graph.initializers.items()
        if name in parameters
    ]
    for value, _ in hidden:
        del model.graph.initializers[str(value.name)]
        value.const_value = None
        model.graph.inputs.append(value)
    optimizer.optimize_ir(model)
    if fold_constants(model).changes:  # what the optimizer leaves: ConstantOfShape
        optimizer.optimize_ir(model)
    drop_zero_states(model)
    drop_identity(model)
    for value, held in hidden:
        model.graph.inputs.remove(value)
        value.const_value = held
        model.graph.register_initializer(value)
    ir.remove_unused(model)


#: Where an initializer keeps the name that it takes as soon as its parts, one of which has it, are gone.
_FINAL_NAME_KEY = "lingeronnx.name"


# ---- recurrent layers --------------------------------------------------------------------------------------------


def _pack_recurrent(model: ir.Model) -> None:
    """Store the weights of recurrent layers as the nodes read them, where they are what `PackedWeights` says."""
    for node in list(model.graph):
        for index in (1, 2, 3):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None or value.is_initializer():
                continue
            chain = _constant_chain(model, value)
            leaves = {
                str(v.name): v
                for n in chain
                for v in n.inputs
                if v is not None and v.is_initializer()
            }
            found = next(
                (
                    p
                    for name in leaves
                    if (p := match_packed_weights(node, index, name)) is not None
                ),
                None,
            )
            if found is not None and all(key in leaves for keys in found.keys for key in keys):
                _store_packed_weights(model, node, index, found, chain)
    ir.remove_unused(model)


def _constant_chain(model: ir.Model, value: ir.Value) -> list[ir.Node]:
    """Return the nodes that compute `value` in graph order.

    Nothing where it depends on an input of the graph.
    """
    nodes: list[ir.Node] = []
    waiting = [value]
    while waiting:
        source = waiting.pop()
        node = source.producer()
        if node is None:
            if source.const_value is None:
                return []
        elif node not in nodes:
            nodes.append(node)
            waiting += [v for v in node.inputs if v is not None]
    return [node for node in model.graph if node in nodes]


def _store_packed_weights(
    model: ir.Model, node: ir.Node, index: int, found: PackedWeights, chain: list[ir.Node]
) -> None:
    value = ir.require_input(node, index)
    arrays = {
        key: ir.const_value(model.graph.initializers[key]) for keys in found.keys for key in keys
    }
    array = found.pack({key: a for key, a in arrays.items() if a is not None})
    fallback = FloatFallback(model, chain, (str(value.name),))
    computed = dict(zip(fallback.outputs, fallback(), strict=True))[str(value.name)]
    if not np.array_equal(array, computed):
        return  # not what torch.nn's layers do: the operators stay
    for user, place in list(value.uses()):
        user.replace_input_with(place, None)
    name = ir.unique_tensor_name(
        model, f"{found.name}_packed"
    )  # until the parameters, which have the name, are gone
    held = ir.add_initializer(model, name, array)
    held.meta[_FINAL_NAME_KEY] = found.name
    node.replace_input_with(index, held)


def _drop_unused_initializers(model: ir.Model) -> None:
    """Initializers that nobody reads go, packed weights take their names, a constant output gets a node."""
    for index, output in enumerate(model.graph.outputs):
        if output.is_initializer():
            name = str(output.name)
            array = output.const_value.numpy()  # type: ignore[union-attr]
            held = ir.add_initializer(model, ir.unique_tensor_name(model, f"{name}_held"), array)
            node = ir.make_node("Identity", [held], name=name, output=f"{name}_out", like=output)
            model.graph.append(node)
            model.graph.outputs[index] = node.outputs[0]
            del model.graph.initializers[name]
            node.outputs[0].name = name
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del model.graph.initializers[name]
    for value in list(model.graph.initializers.values()):
        if _FINAL_NAME_KEY in value.meta:
            ir.rename_initializer(model, value, value.meta[_FINAL_NAME_KEY])


# ---- names -------------------------------------------------------------------------------------------------------


def _assign_names(model: ir.Model, parameters: set[str], scopes: bool) -> dict[str, str]:
    """Name nodes, tensors and constants by module path, or by operator alone.

    Return {node: module path}.
    """
    count: Counter[str] = Counter()
    paths: dict[str, str] = {}

    def fresh(scope: str, kind: str) -> str:
        base = "/".join(["", *scope.split("."), kind] if scope else ["", kind]) if scopes else kind
        number = count[base]
        count[base] += 1
        return base if scopes and not number else f"{base}_{number}"

    pinned = {*model.graph.inputs, *model.graph.outputs}
    nodes = list(ir.iter_nodes_recursive(model.graph))
    for node in nodes:
        scope = _find_scope(node)
        node.name = fresh(scope, node.op_type)
        paths[node.name] = scope
        for index, value in enumerate(node.outputs):
            if value not in pinned and value.name:
                value.name = f"{node.name}_output_{index}"
    known = parameters | {
        p.name
        for node in nodes
        for i in (1, 2, 3)
        if (p := _find_packed_weights(node, i)) is not None
    }
    for node in nodes:
        for source in node.inputs:
            if (
                source is not None
                and source.is_initializer()
                and source not in pinned
                and source.name not in known
            ):
                name = fresh(_find_scope(node), "Constant")
                ir.rename_initializer(model, source, name)
                known.add(name)
    return paths


def _find_packed_weights(node: ir.Node, index: int) -> PackedWeights | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return (
        None
        if value is None or not value.is_initializer()
        else match_packed_weights(node, index, str(value.name))
    )


def _find_scope(node: ir.Node) -> str:
    """Return the module path of `node`.

    Of one that the folding made, that of the node in front of it.
    """
    seen = 0
    current: ir.Node | None = node
    while current is not None and seen < 8:
        if SCOPE_KEY in current.metadata_props:
            return current.metadata_props[SCOPE_KEY]
        current = next(
            (v.producer() for v in current.inputs if v is not None and v.producer() is not None),
            None,
        )
        seen += 1
    return ""


def _strip_metadata(model: ir.Model) -> None:
    """Take out what speaks of the exporting machine.

    Stack traces, doc strings, metadata, stale shapes.
    """
    pinned = {*model.graph.inputs, *model.graph.outputs}
    things: list[Any] = [model, model.graph, *pinned, *model.graph.initializers.values()]
    for node in ir.iter_nodes_recursive(model.graph):
        things.append(node)
        things += node.outputs
        for value in node.outputs:
            if value not in pinned:
                value.shape = None
    for thing in things:
        thing.metadata_props.clear()
        thing.doc_string = None


def sort_initializers(model: ir.Model) -> None:
    """Initializers stand in the order in which the nodes read them."""
    read = [
        v for node in ir.iter_nodes_recursive(model.graph) for v in node.inputs if v is not None
    ]
    place = {value: index for index, value in reversed(list(enumerate(read)))}
    held = sorted(model.graph.initializers.values(), key=lambda value: place[value])
    model.graph.initializers.clear()
    for value in held:
        model.graph.register_initializer(value)
