"""Cleanup of an exported graph: fold constants, remove leftovers, name nodes by module path.

The parameters keep the names, layout and values of the module's state_dict, so that a checkpoint
can be loaded into the file by name. Therefore they are graph inputs while constants are folded, and
nothing that depends on them is computed. Recurrent layers are the exception: their weights are
stored in the layout of ONNX (`recurrent_weights`).

Both exporters give the same names: node ``/layer1/0/conv/Conv`` for the operator Conv in the module
``layer1.0.conv`` (a second one is ``Conv_1``), its output ``/layer1/0/conv/Conv_output_0``, other
constants ``/layer1/0/Constant``. Without scopes the names are ``Conv_0``, ``Conv_1`` over the whole
graph. This module knows graphs, but no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...common.errors import ConfigError
from ...ir import ir
from ...quantization.normalize.folding.constants import fold_constants
from ...quantization.normalize.folding.identity import drop_identity
from ...quantization.normalize.folding.zero_states import drop_zero_states
from ...runtime.runners import FloatFallback
from ..checkpoint.recurrent_weights import PackedWeights, match_packed_weights
from .constant_sizes import fold_constant_sizes

try:
    from onnxscript import optimizer
except ModuleNotFoundError as error:
    raise ConfigError(
        "the export needs onnxscript, which is not installed: pip install 'lingeronnx[torch]'"
    ) from error

__all__ = ["SCOPE_KEY", "STACK_KEY", "clean_graph", "sort_initializers"]

#: Metadata key of exported nodes: the path of the module, such as ``layer1.0.conv``.
SCOPE_KEY = "lingeronnx.scope"

#: Metadata key of nodes that torch's dynamo exporter writes: the calls that led to the node.
STACK_KEY = "pkg.torch.onnx.stack_trace"

DumpGraph = Callable[[str, ir.Model], None]


def clean_graph(
    model: ir.Model,
    parameters: Mapping[str, str],
    feeds: Sequence[Mapping[str, np.ndarray]],
    with_scopes: bool,
    dump: DumpGraph,
    keep_stacks: bool = False,
) -> dict[str, str]:
    """Clean up an exported graph in place.

    Parameters
    ----------
    model
        The graph; its nodes have `SCOPE_KEY` in their metadata.
    parameters
        Name in the state_dict -> first name of the same parameter.
    feeds
        Inputs of runs that differ in every dynamic axis.
    with_scopes
        Whether to name nodes by module path.
    dump
        Called with the name of each step and the graph after it.
    keep_stacks
        Whether nodes keep their place in the source, as `STACK_KEY` of their metadata.

    Returns
    -------
    dict
        Node name -> path of its module.
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
    _strip_metadata(model, keep_stacks)
    dump("named", model)
    return paths


def _name_parameters(model: ir.Model, parameters: Mapping[str, str]) -> None:
    """Merge initializers of shared parameters into one under the first name, in place.

    `parameters` maps each name to the first name of the same tensor.
    """
    for name, value in list(model.graph.initializers.items()):
        first = parameters.get(name, name)
        if first == name:
            continue
        if first in model.graph.initializers:
            value.replace_all_uses_with(model.graph.initializers[first], replace_graph_outputs=True)
            del model.graph.initializers[name]
        else:
            ir.rename_initializer(model, value, first)


def _fold_constants(model: ir.Model, parameters: set[str]) -> None:
    """Fold constants that do not depend on `parameters`, in place.

    The initializers named in `parameters` are graph inputs meanwhile and stay as they are. Also
    drops zero initial states and Identity nodes.
    """
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
    if fold_constants(model).changes:  # ConstantOfShape, which the optimizer does not fold
        optimizer.optimize_ir(model)
    drop_zero_states(model)
    drop_identity(model)
    for value, const_value in hidden:
        model.graph.inputs.remove(value)
        value.const_value = const_value
        model.graph.register_initializer(value)
    ir.remove_unused(model)


#: Metadata key of packed weights: the final name, which one of the original weights still has.
_FINAL_NAME_KEY = "lingeronnx.name"


# ---- recurrent layers ---------------------------------------------------------------------------


def _pack_recurrent(model: ir.Model) -> None:
    """Replace computed weights of recurrent layers by initializers in the layout of ONNX, in place.

    Weights that are not torch's parameters reordered and concatenated are left unchanged.
    """
    for node in list(model.graph):
        for index in (1, 2, 3):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None or value.is_initializer():
                continue
            chain = _constant_chain(model, value)
            packed = _match_chain(node, index, chain)
            if packed is not None:
                _store_packed_weights(model, node, index, packed, chain)
    ir.remove_unused(model)


def _match_chain(node: ir.Node, index: int, chain: Sequence[ir.Node]) -> PackedWeights | None:
    """Return the packing of torch's parameters by `chain` into input `index` of `node`, or None.

    `chain` are the nodes that compute the input. All parameters must be initializers that these
    nodes read.
    """
    names: list[str] = []
    for chain_node in chain:
        for value in chain_node.inputs:
            if value is not None and value.is_initializer():
                names.append(str(value.name))
    matches = (match_packed_weights(node, index, name) for name in names)
    packed = next((match for match in matches if match is not None), None)
    if packed is None or not set(_source_names(packed)) <= set(names):
        return None
    return packed


def _source_names(packed: PackedWeights) -> list[str]:
    """Return the names of torch's parameters in packed weights, direction by direction."""
    return [name for names in packed.keys for name in names]


def _constant_chain(model: ir.Model, value: ir.Value) -> list[ir.Node]:
    """Return the nodes that compute `value` from constants, in graph order.

    Empty if it depends on an input of the graph, or if no node computes it.
    """
    nodes: list[ir.Node] = []
    stack = [value]
    while stack:
        source = stack.pop()
        node = source.producer()
        if node is None:
            if source.const_value is None:
                return []
        elif node not in nodes:
            nodes.append(node)
            stack += [operand for operand in node.inputs if operand is not None]
    return [node for node in model.graph if node in nodes]


def _store_packed_weights(
    model: ir.Model, node: ir.Node, index: int, packed: PackedWeights, chain: list[ir.Node]
) -> None:
    """Replace the result of `chain` by an initializer with equal packed weights.

    The result is input `index` of `node`. Nothing happens if `chain` computes other values than
    `packed`. The final name of the initializer is kept in its metadata.
    """
    value = ir.require_input(node, index)
    sources = {}
    for name in _source_names(packed):
        source = ir.const_value(model.graph.initializers[name])
        if source is not None:
            sources[name] = source
    array = packed.pack(sources)
    fallback = FloatFallback(model, chain, (str(value.name),))
    computed = dict(zip(fallback.outputs, fallback(), strict=True))[str(value.name)]
    if not np.array_equal(array, computed):
        return  # not the computation of torch.nn's layers
    for consumer, input_index in list(value.uses()):
        consumer.replace_input_with(input_index, None)
    temporary_name = ir.unique_tensor_name(model, f"{packed.name}_packed")
    initializer = ir.add_initializer(model, temporary_name, array)
    initializer.meta[_FINAL_NAME_KEY] = packed.name
    node.replace_input_with(index, initializer)


def _drop_unused_initializers(model: ir.Model) -> None:
    """Remove unused initializers, and give packed weights their final names, in place.

    A graph output that is an initializer becomes the output of an Identity.
    """
    for index, output in enumerate(model.graph.outputs):
        if output.is_initializer():
            _insert_output_identity(model, index, output)
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del model.graph.initializers[name]
    for value in list(model.graph.initializers.values()):
        if _FINAL_NAME_KEY in value.meta:
            ir.rename_initializer(model, value, value.meta[_FINAL_NAME_KEY])


def _insert_output_identity(model: ir.Model, index: int, output: ir.Value) -> None:
    """Make graph output `index`, the constant `output`, the output of an Identity, in place.

    The constant becomes a new initializer; the output keeps its name.
    """
    name = str(output.name)
    array = ir.const_value(output)
    assert array is not None
    initializer = ir.add_initializer(model, ir.unique_tensor_name(model, f"{name}_held"), array)
    node = ir.make_node("Identity", [initializer], name=name, output=f"{name}_out", like=output)
    model.graph.append(node)
    model.graph.outputs[index] = node.outputs[0]
    del model.graph.initializers[name]
    node.outputs[0].name = name


# ---- names --------------------------------------------------------------------------------------


class _NameGenerator:
    """Generates unique names of nodes and constants.

    Parameters
    ----------
    with_scopes
        Whether the names start with the module path.
    """

    def __init__(self, with_scopes: bool) -> None:
        """Start counting at zero; with `with_scopes` names begin with the module's path."""
        self._with_scopes = with_scopes
        self._counts: Counter[str] = Counter()

    def make_name(self, scope: str, kind: str) -> str:
        """Return a new unique name of a node or constant of a `kind` in the module at path `scope`.

        For scope "a.b" these are "/a/b/KIND", then "/a/b/KIND_1" ...; without scopes "KIND_0",
        "KIND_1" ...
        """
        steps = scope.split(".") if scope else []
        base = "/".join(["", *steps, kind]) if self._with_scopes else kind
        number = self._counts[base]
        self._counts[base] += 1
        return base if self._with_scopes and not number else f"{base}_{number}"


def _assign_names(model: ir.Model, parameters: set[str], with_scopes: bool) -> dict[str, str]:
    """Name nodes, tensors and constants by module path, or by operator alone, in place.

    Parameters, graph inputs and graph outputs keep their names.

    Returns
    -------
    dict
        Node name -> path of its module.
    """
    names = _NameGenerator(with_scopes)
    scopes: dict[str, str] = {}
    io_values = {*model.graph.inputs, *model.graph.outputs}
    nodes = list(model.graph.all_nodes())
    for node in nodes:
        scope = _find_scope(node)
        node.name = names.make_name(scope, node.op_type)
        scopes[node.name] = scope
        for index, value in enumerate(node.outputs):
            if value not in io_values and value.name:
                value.name = f"{node.name}_output_{index}"
    fixed_names = parameters | _packed_weight_names(nodes)
    for node in nodes:
        for source in node.inputs:
            if source is None or not source.is_initializer() or source in io_values:
                continue
            if source.name not in fixed_names:
                name = names.make_name(_find_scope(node), "Constant")
                ir.rename_initializer(model, source, name)
                fixed_names.add(name)
    return scopes


def _packed_weight_names(nodes: Sequence[ir.Node]) -> set[str]:
    """Return the names of the packed weights at inputs 1 to 3 of recurrent layers among `nodes`."""
    names = set()
    for node in nodes:
        for index in (1, 2, 3):
            packed = _find_packed_weights(node, index)
            if packed is not None:
                names.add(packed.name)
    return names


def _find_packed_weights(node: ir.Node, index: int) -> PackedWeights | None:
    """Return the packing of torch's parameters in input `index` of a recurrent node.

    None if it does not, or is no initializer.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or not value.is_initializer():
        return None
    return match_packed_weights(node, index, str(value.name))


_MAX_SCOPE_DISTANCE = 8


def _find_scope(node: ir.Node) -> str:
    """Return the module path of `node`, or of the nearest producer that has one, else ""."""
    return _find_metadata(node, SCOPE_KEY)


def _find_metadata(node: ir.Node, key: str) -> str:
    """Return the metadata `key` of `node`, or of the nearest producer that has it, else "".

    Nodes that the folding created have none of their own; at most 8 nodes are looked at.
    """
    current: ir.Node | None = node
    for _ in range(_MAX_SCOPE_DISTANCE):
        if current is None:
            break
        if key in current.metadata_props:
            return current.metadata_props[key]
        producers = [value.producer() for value in current.inputs if value is not None]
        current = next((producer for producer in producers if producer is not None), None)
    return ""


def _strip_metadata(model: ir.Model, keep_stacks: bool) -> None:
    """Remove metadata and doc strings of model, nodes and values, and inner shapes, in place.

    Shapes of graph inputs and outputs stay, and with `keep_stacks` the stacks of nodes.
    """
    stacks = {}
    if keep_stacks:
        stacks = {node: _find_metadata(node, STACK_KEY) for node in model.graph.all_nodes()}
    io_values = {*model.graph.inputs, *model.graph.outputs}
    objects: list[Any] = [model, model.graph, *io_values, *model.graph.initializers.values()]
    for node in model.graph.all_nodes():
        objects.append(node)
        objects += node.outputs
        for value in node.outputs:
            if value not in io_values:
                value.shape = None
    for item in objects:
        item.metadata_props.clear()
        item.doc_string = None
    for node, stack in stacks.items():
        if stack:
            node.metadata_props[STACK_KEY] = stack


def sort_initializers(model: ir.Model) -> None:
    """Sort the initializers by the order in which the nodes first read them, in place.

    Each must be read by a node.
    """
    first_read: dict[ir.Value, int] = {}
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is not None:
                first_read.setdefault(value, len(first_read))
    initializers = sorted(model.graph.initializers.values(), key=first_read.__getitem__)
    model.graph.initializers.clear()
    for value in initializers:
        model.graph.register_initializer(value)
