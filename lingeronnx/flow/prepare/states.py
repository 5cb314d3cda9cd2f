"""States that are fed back from call to call: their errors are, too, so they get more than other tensors.

A packed state (hidden states and cells in one tensor) is taken apart and joined by the host, so that each part keeps
its own scale; what lies between a state's input and its output is held in 16 bits where the platform has them. Where
it has not, cells may stay in float: every call adds a little to them, which eight bits lose. So may the gates, but not
their products; and the steps of a recurrent layer that is written out, where a model runs in parts anyway: its products
with x, for all steps, are the chip's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ...graph import ir, operators
from ...ops import float_op
from ...ops.macs import macs
from ...passes.folding.scalar_inputs import fix_line, settings
from ...run.runners import reads
from ...targets import Target
from ..partition import Partition

__all__ = ["advice", "apart", "cells", "gates", "into_states", "proposals", "recurrences", "wide_states"]

_WORTH = 4  # multiply-accumulates for each number that a step writes
_WANTED = "a step of a recurrent layer, and cells are wanted on the host"
_GATES = ("HardSigmoid", "Sigmoid", "Tanh")
_WRITTEN = "BatchNormalization"  # what a sum or product with a constant is written as, of a tanh too
_SIDES = ("in", "out", "input", "output", "new", "next", "n", "old", "prev", "previous", "cur", "current", "o", "i")


def apart(model: ir.Graph, state: Mapping[str, str], target: Target) -> dict[str, str]:
    """Return {node: why} of the nodes of the normalised `model` that take packed states apart, or join them.

    state : {output: input}. They only move data; the host does that.
    """
    reasons: dict[str, str] = {}
    for output, name in state.items():
        taking = _taking(model, name, target)
        if any(node.op_type in operators.PARTS for node in taking):
            why = f"it takes the packed state '{name}' apart: each part keeps its own scale"
            reasons.update({str(node.name): why for node in taking})
        joining = _joining(model, output, target)
        if any(node.op_type == "Concat" and len(node.inputs) > 1 for node in joining):
            why = f"it packs the state '{output}': each part keeps its own scale"
            reasons.update({str(node.name): why for node in joining})
    return reasons


def _moves(node: ir.Node, target: Target) -> bool:
    op, _ = float_op(node, target)
    return op.moves if op is not None else node.op_type in operators.WHOLE | operators.PARTS


def _taking(model: ir.Graph, name: str, target: Target) -> list[ir.Node]:
    """Return the nodes that only move what comes from the input `name`."""
    reached = {name}
    taking = []
    for node in model.graph:
        data = [str(v.name) for v in node.inputs if v is not None and ir.const(v) is None]
        if data and set(data) <= reached and _moves(node, target):
            reached.update(str(v.name) for v in node.outputs)
            taking.append(node)
    return taking


def _joining(model: ir.Graph, output: str, target: Target) -> list[ir.Node]:
    """Return the nodes that only move or join what nothing but the output `output` is made of."""
    inside: set[int] = set()
    joining = []
    for node in reversed(list(model.graph)):
        ends = any(str(v.name) == output for v in node.outputs)
        leaves = any(v.is_graph_output() for v in node.outputs)
        uses = [use.node for v in node.outputs for use in v.uses()]
        leads = ends or (bool(uses) and not leaves)
        if leads and all(id(use) in inside for use in uses) and (_moves(node, target) or node.op_type == "Concat"):
            inside.add(id(node))
            joining.append(node)
    return joining


def cells(model: ir.Graph, state: Mapping[str, str], target: Target) -> dict[str, str]:
    """Return {node: why} of what makes the next state of the last one without a layer between; none with 16 bits.

    That is ``c' = f*c + i*g, h = o*tanh(c')`` of an LSTM: few operations, but their errors add up from call to call.
    """
    if 16 in target.bits:
        return {}
    behind, before = set(state.values()), set(state)
    nodes = [node for node in model.graph if macs(node) == 0]
    for node in nodes:
        if any(v is not None and str(v.name) in behind for v in node.inputs):
            behind.update(str(v.name) for v in node.outputs)
    for node in reversed(nodes):
        if any(str(v.name) in before for v in node.outputs):
            before.update(str(v.name) for v in node.inputs if v is not None)
    between = [n for n in nodes if any(str(v.name) in behind and str(v.name) in before for v in n.outputs)]
    if all(_moves(node, target) or node.op_type == "Concat" for node in between):
        return {}
    why = "it adds to a state from call to call, which 8 bits lose: measured, that is better"
    return dict.fromkeys((str(node.name) for node in between), why)


def gates(model: ir.Graph, state: Mapping[str, str], target: Target, masks: bool = False) -> dict[str, str]:
    """Return {node: why} of `cells` and all that only they read, back to the layers; none where there are no cells.

    These are the gates' sums and curves: a gate near 1 keeps a cell for long, and how long is decided by 1 minus it, of
    which steps of 1/128 leave little. masks : products by a gate elsewhere and what only they read, too.
    """
    found = cells(model, state, target)
    if not found:
        return {}
    why = "it makes a gate of products, which 8 bits lose before a state: measured, that is better"
    for node in reversed(list(model.graph)):
        readers = [use.node for v in node.outputs for use in v.uses()]
        leaves = any(v.is_graph_output() for v in node.outputs)
        only = bool(readers) and not leaves and all(str(reader.name) in found for reader in readers)
        if (only and _is_light(node, target)) or (masks and _masks(node)):
            found.setdefault(str(node.name), why)
    return found


def _is_light(node: ir.Node, target: Target) -> bool:
    """Whether it works number by number, or only moves data; so a sum or product may be written for a chip."""
    known = operators.ACTIVATIONS | operators.ARITHMETIC.keys() | {_WRITTEN}
    return macs(node) == 0 and (node.op_type in known or _moves(node, target))


def _masks(node: ir.Node) -> bool:
    """Whether it multiplies by a gate, in whatever order or shape, as it is or as 2*sigmoid(2*x) - 1."""
    return node.op_type == "Mul" and any(map(_is_gate, node.inputs))


def _is_gate(value: ir.Value | None) -> bool:
    maker = ir.producer(value)
    while maker is not None and maker.op_type in operators.WHOLE | {_WRITTEN}:
        maker = ir.producer(maker.inputs[0])
    return maker is not None and maker.op_type in _GATES


def recurrences(model: ir.Graph, all_of_them: bool = False) -> dict[str, str]:
    """Return {node: why} of the steps of recurrent layers that are written out; their products with x are none of them.

    Of layers with so few products at a step that they are not worth the nodes; all_of_them : of every layer, but then
    without the products, which are the chip's.
    """
    of_steps = [node for node in model.graph if ir.is_shared(node)]
    steps = Counter(map(ir.shared_name, of_steps))
    layers: dict[str, list[ir.Node]] = {}
    for node in of_steps:
        if steps[ir.shared_name(node)] > 1:
            layers.setdefault(ir.origin(node), []).append(node)
    why = "a step of a recurrent layer, with hardly more multiply-accumulates than numbers that it writes"
    found: dict[str, str] = {}
    for nodes in layers.values():
        if all_of_them:
            found.update(dict.fromkeys((str(node.name) for node in nodes if not macs(node)), _WANTED))
            continue
        written = sum(math.prod(int(d or 1) for d in ir.shape(node.outputs[0]) or ()) for node in nodes)
        if sum(map(macs, nodes)) < _WORTH * written:
            found.update(dict.fromkeys((str(node.name) for node in nodes), why))
    return found


def into_states(model: ir.Graph, state: Mapping[str, str]) -> list[str]:
    """Return the tensors of `model` that a state is made of, in graph order."""
    into = set(state)
    for node in reversed(list(model.graph)):
        if any(str(v.name) in into for v in node.outputs):
            into.update(str(v.name) for v in node.inputs if v is not None)
    return [str(v.name) for v in ir.values(model) if str(v.name) in into]


def wide_states(parts: Partition, state: Mapping[str, str], target: Target) -> list[str]:
    """Return the integer activations and weights that are to have 16 bits; none where `target` has no such width."""
    if not state or 16 not in target.bits:
        return []
    inside = set(into_states(parts.graph, state))
    weights = [
        ir.read_name(node, index)
        for node, op in parts.nodes
        for index in op.parameters(node)
        if any(str(v.name) in inside for v in node.outputs)
    ]
    return [*(name for name in parts.activations if name in inside), *weights]


def proposals(model: ir.Graph) -> dict[str, str]:
    """Return {output: input} of what looks by its name like a state of `model` that a caller feeds back.

    An output computed from an input, both of one type and shape (open sizes may be any), whose names are one but for
    words such as in, out and new.
    """
    proposed = {}
    for name in _inputs(model):
        same = [o for o in _like(model, name) if _stem(o) == _stem(name) != ""]
        if len(same) == 1:
            proposed[same[0]] = name
    return proposed


def advice(model: ir.Graph, missing: Sequence[str]) -> str:
    """Return what to say of inputs of `model` that data do not have: a state, or settings; nothing for others.

    States are the `proposals`, and an input whose shape one output has and nothing else, or as many outputs as inputs,
    which then follow each other as these do.
    """
    named = {i: o for o, i in proposals(model).items()}
    found = {}
    for name in missing:
        output = named.get(name) or _in_order(model, name).get(name)
        if output is not None:
            found[name] = output
    if missing[0] in found:
        line = " ".join(f"--state {output}={state}" for state, output in {**named, **found}.items())
        return f"is '{found[missing[0]]}' its next value? feed it back with {line}"
    numbers = settings(model)
    return fix_line(model, [name for name in missing if name in numbers]) if missing[0] in numbers else ""


def _inputs(model: ir.Graph) -> dict[str, ir.Value]:
    return {str(v.name): v for v in model.graph.inputs if v.const_value is None}


def _in_order(model: ir.Graph, name: str) -> dict[str, str]:
    """Return {input: output} of `name` and the one output like it, or of as many inputs as outputs, as they follow."""
    outputs = _like(model, name, exact=True)
    if len(outputs) == 1:
        return {name: outputs[0]}
    like = {other: _like(model, other, exact=True) for other in _inputs(model)}
    like = {other: each for other, each in like.items() if not set(each).isdisjoint(outputs)}
    results = [str(v.name) for v in model.graph.outputs if any(str(v.name) in each for each in like.values())]
    fits = len(like) == len(results) and all(r in each for r, each in zip(results, like.values(), strict=True))
    return dict(zip(like, results, strict=True)) if fits else {}


def _like(model: ir.Graph, name: str, exact: bool = False) -> list[str]:
    """Return the outputs of the type and shape of the input `name` that are computed from it.

    exact : open sizes are open in both.
    """
    wanted = _inputs(model)[name]
    shape, reached = ir.shape(wanted), {name}
    if not shape:
        return []
    for node in model.graph:
        if any(v is not None and str(v.name) in reached for v in reads(node)):
            reached.update(str(v.name) for v in node.outputs)

    def alike(value: ir.Value) -> bool:
        other = ir.shape(value)
        if other is None or len(other) != len(shape) or value.dtype != wanted.dtype or str(value.name) not in reached:
            return False
        return all(a == b or (not exact and None in (a, b)) for a, b in zip(shape, other, strict=True))

    return [str(v.name) for v in model.graph.outputs if v is not wanted and alike(v)]


def _stem(name: str) -> str:
    """Return a name without the words that tell an input from an output."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+", name)
    return "".join(word.lower() for word in words if word.lower() not in _SIDES)
