"""Transposes of converted graphs cancelled: channel-last islands turned into channel-first ones.

With ``x = Transpose_p(a)``: an element-wise operator of x, or one along an axis of x, is the same operator of `a`
(axes, pads and constants permuted) and a Transpose_p behind it. Two Transposes in a row are one, or none. Transposes
sink that way as long as it makes the graph have fewer of them; where it does not, nothing changes. A Transpose that
moves axes of size one only, in front of a Reshape or Flatten, goes too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...graph import ir, operators
from .._pass import Answer, Reason

_AXIS = operators.ROWS | {"Concat", "Split"}

_Perm = tuple[int, ...]


def layout(model: ir.Graph) -> Answer:
    """Cancel Transposes of `model`, counted by the nodes that were changed."""
    done = _before_reshape(model)
    why: list[Reason] = []
    before = len(_counted(model))
    if before:
        trial = ir.clone(model)
        if _sink_all(trial) and len(_counted(trial)) < before:
            done += _sink_all(model) + _before_reshape(model)
            what = "it meets no other one that would undo it"
        else:
            what = f"moving it down the graph would not leave fewer than {before}"
        why = [Reason(node, what) for node in _counted(model)]
    return Answer(done, why)


def _counted(model: ir.Graph) -> list[ir.Node]:
    """Return the Transposes, without those that a Reshape follows: the linear layer behind it can take them up.

    Not so where the batch is moved.
    """
    return [
        node
        for node in model.graph
        if (perm := _perm(node)) is not None
        and (
            (perm[:1] != (0,) and node.outputs[0].uses())
            or node.outputs[0].is_graph_output()
            or not all(use.node.op_type in ("Reshape", "Flatten") for use in node.outputs[0].uses())
        )
    ]


def _perm(node: ir.Node | None) -> _Perm | None:
    """Return the permutation of a Transpose, None for anything else."""
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    perm = ir.attr(node, "perm")
    if perm is None:
        shape = ir.shape(node.inputs[0])
        return None if shape is None else tuple(range(len(shape)))[::-1]
    return tuple(perm)


def _sink_all(model: ir.Graph) -> int:
    done = 0
    for _ in range(len(model.graph) + 1):
        changed = 0
        for node in list(model.graph):
            if not node.domain and node.graph is not None:
                changed += _join(model, node) if node.op_type == "Transpose" else _sink(model, node)
        ir.remove_unused(model)
        done += changed
        if not changed:
            break
    return done


def _join(model: ir.Graph, node: ir.Node) -> int:
    """Make one Transpose, or none, of two in a row."""
    second, maker = _perm(node), ir.producer(node.inputs[0])
    first = _perm(maker)
    if first is None or second is None or maker is None:
        return 0
    source = ir.source(maker)
    both = [first[i] for i in second]
    if both == sorted(both):
        if not ir.removable(node, source) or node.outputs[0].is_graph_output():
            return 0
        ir.remove(model, node, source)
        return 1
    node.replace_input_with(0, source)
    ir.set_attr(node, "perm", both)
    return 1


def _sink(model: ir.Graph, node: ir.Node) -> int:
    """Let `node` work on the tensors in front of the Transposes it reads."""
    kind = node.op_type
    data = range(len(node.inputs)) if kind in (*operators.BROADCAST, "Concat") else (0,)
    if kind not in _SINKS or not node.inputs:
        return 0
    moved = [i for i in data if node.inputs[i] is not None and ir.const(node.inputs[i]) is None]
    perms = {_perm(ir.producer(node.inputs[i])) for i in moved}
    perm = perms.pop() if len(perms) == 1 else None
    if perm is None:
        return 0
    constants = {i: ir.const(node.inputs[i]) for i in data if i not in moved and node.inputs[i] is not None}
    if any(a is not None and a.ndim > len(perm) for a in constants.values()):
        return 0
    if kind == "Dropout" and any(v.uses() for v in node.outputs[1:]):
        return 0
    change = _attributes_of(kind)(model, node, perm)
    if change is None:
        return 0
    for i in moved:
        maker = ir.maker(node.inputs[i])
        node.replace_input_with(i, ir.source(maker))
    for i, array in constants.items():
        if array is not None and (array.size > 1 or kind == "Concat"):
            full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
            ir.set_constant(model, node, i, np.transpose(full, _inverse(perm)), "moved")
    if len(change):
        for value in list(node.outputs):
            _behind(model, node, value, perm)
    return 1


def _inverse(perm: Sequence[int]) -> list[int]:
    return [perm.index(i) for i in range(len(perm))]


def _behind(model: ir.Graph, node: ir.Node, value: ir.Value, perm: _Perm) -> None:
    """Put a Transpose behind `value`, an output of `node`: it takes over its name and readers."""
    name, users, outside = str(value.name), list(value.uses()), value.is_graph_output()
    if not name:
        return
    turn = ir.make_node(
        "Transpose", [value], {"perm": list(perm)}, of=node, what=f"{name}_turn", output=name, like=value
    )
    result = turn.outputs[0]
    for user, index in users:
        user.replace_input_with(index, result)
    if outside:
        for index, output in enumerate(model.graph.outputs):
            if output is value:
                model.graph.outputs[index] = result
    dims = value.shape
    value.name = ir.fresh_name(model, f"{name}_moved")
    value.shape = None if dims is None else ir.oir_shape([dims[i] for i in _inverse(perm)])
    model.graph.insert_after(node, turn)


# ---- what a permutation does to attributes -------------------------------------------------------------------------

#: Rewrites a node in place for a permuted input; returns (1,) where a Transpose is needed behind it, () where none is,
#: None (nothing done) where it cannot.
_Change = Callable[[ir.Graph, ir.Node, _Perm], tuple[int, ...] | None]


def _attributes_of(kind: str) -> _Change:
    if kind in _AXIS:
        return _axis
    if kind in operators.REDUCES:
        return _reduce
    return _OTHERS.get(kind, lambda model, node, perm: (1,))


def _axis(model: ir.Graph, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    newer = ir.opset(model) >= 13
    if node.op_type in operators.ROWS and not newer:
        return None
    axis = ir.attr(node, "axis", 0 if node.op_type == "Split" else -1)
    ir.set_attr(node, "axis", perm[axis])
    return (1,)


def _set_axes(model: ir.Graph, node: ir.Node, index: int, axes: list[int]) -> None:
    if "axes" in node.attributes:
        ir.set_attr(node, "axes", axes)
    else:
        ir.set_constant(model, node, index, np.array(axes, np.int64), "moved")


def _reduce(model: ir.Graph, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    axes = ir.axes(node)
    if not axes:
        return None
    keep = bool(ir.attr(node, "keepdims", 1))
    inside = [perm[a] for a in axes]
    left = [p for p in perm if p not in inside]
    if not keep and left != sorted(left):
        return None
    _set_axes(model, node, 1, inside)
    return (1,) if keep else ()


def _pad(model: ir.Graph, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    pads = ir.const(node.inputs[1]) if len(node.inputs) > 1 else None
    rank = len(perm)
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = ir.axes(node, 3)
        if axes is None:
            return None
        _set_axes(model, node, 3, [perm[a] for a in axes])
        return (1,)
    if pads is None or pads.size != 2 * rank:
        return None
    halves = pads.reshape(2, rank)[:, _inverse(perm)]
    ir.set_constant(model, node, 1, halves.reshape(-1), "moved")
    return (1,)


def _slice(model: ir.Graph, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    axes = ir.axes(node, 3)
    if axes is None:
        return None
    _set_axes(model, node, 3, [perm[a] for a in axes])
    return (1,)


def _gather(model: ir.Graph, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    index, axis = ir.const(node.inputs[1]), perm[ir.attr(node, "axis", 0)]
    left = [p for p in perm if p != axis]
    if index is None or index.ndim > 1 or (index.ndim == 0 and left != sorted(left)):
        return None
    ir.set_attr(node, "axis", axis)
    return (1,) if index.ndim else ()


def _squeeze(model: ir.Graph, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    axes = ir.axes(node)
    inside = [perm[a] for a in axes or ()]
    left = [p for p in perm if p not in inside]
    if not inside or left != sorted(left):
        return None
    _set_axes(model, node, 1, inside)
    return ()


def _matmul(model: ir.Graph, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    weight = ir.const(node.inputs[1])
    return (1,) if weight is not None and weight.ndim == 2 and perm[-1] == len(perm) - 1 else None


_OTHERS: dict[str, _Change] = {"Pad": _pad, "Slice": _slice, "Gather": _gather, "Squeeze": _squeeze, "MatMul": _matmul}
#: What a Transpose sinks through.
_SINKS = {*operators.ONE_TENSOR, *operators.SAME, "Cast", *operators.BROADCAST, *operators.REDUCES, *_AXIS, *_OTHERS}


# ---- axes of size one ----------------------------------------------------------------------------------------------


def _before_reshape(model: ir.Graph) -> int:
    """Let Reshape and Flatten read past a Transpose that leaves the order of the elements as it is."""
    done = 0
    for node in list(model.graph):
        if node.op_type not in ("Reshape", "Flatten") or node.domain:
            continue
        maker = ir.producer(node.inputs[0])
        perm = _perm(maker)
        dims = ir.shape(maker.inputs[0]) if maker is not None else None
        if perm is None or dims is None or perm[0] != 0 or maker is None or ir.attr(node, "axis", 1) != 1:
            continue
        long = [i for i in perm if i and dims[i] != 1]
        target = ir.const(node.inputs[1]) if node.op_type == "Reshape" else np.zeros(1)
        if long != sorted(long) or target is None or any(d == 0 for d in target[1:]):
            continue
        node.replace_input_with(0, ir.source(maker))
        done += 1
    if done:
        ir.remove_unused(model)
    return done
