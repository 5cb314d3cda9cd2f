"""Transposes of converted graphs cancelled: channel-last islands turned into channel-first ones.

With ``x = Transpose_p(a)``: an element-wise operator of x, or one along an axis of x, is the same
operator of `a` (axes, pads and constants permuted) and a Transpose_p behind it. Two Transposes in a
row are one, or none. Transposes sink that way as long as it makes the graph have fewer of them;
where it does not, nothing changes. A Transpose that moves axes of size one only, in front of a
Reshape or Flatten, goes too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...graph import ir, operators
from .._pass import PassResult, SkipReason

_AXIS_OPS = operators.SOFTMAX_FAMILY_OPS | {"Concat", "Split"}

_Perm = tuple[int, ...]


def cancel_transposes(model: ir.Model) -> PassResult:
    """Cancel Transposes of `model`, counted by the nodes that were changed."""
    done = _drop_transposes_before_reshape(model)
    why: list[SkipReason] = []
    before = len(_find_remaining_transposes(model))
    if before:
        trial = ir.clone(model)
        if _sink_transposes(trial) and len(_find_remaining_transposes(trial)) < before:
            done += _sink_transposes(model) + _drop_transposes_before_reshape(model)
            what = "it meets no other one that would undo it"
        else:
            what = f"moving it down the graph would not leave fewer than {before}"
        why = [SkipReason(node, what) for node in _find_remaining_transposes(model)]
    return PassResult(done, why)


def _find_remaining_transposes(model: ir.Model) -> list[ir.Node]:
    """Return the Transposes, without those that a Reshape follows.

    The linear layer behind it can take them up.
    Not so where the batch is moved.
    """
    return [
        node
        for node in model.graph
        if (perm := _get_permutation(node)) is not None
        and (
            (perm[:1] != (0,) and node.outputs[0].uses())
            or node.outputs[0].is_graph_output()
            or not all(use.node.op_type in ("Reshape", "Flatten") for use in node.outputs[0].uses())
        )
    ]


def _get_permutation(node: ir.Node | None) -> _Perm | None:
    """Return the permutation of a Transpose, None for anything else."""
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    perm = ir.get_attr(node, "perm")
    if perm is None:
        shape = ir.get_shape(node.inputs[0])
        return None if shape is None else tuple(range(len(shape)))[::-1]
    return tuple(perm)


def _sink_transposes(model: ir.Model) -> int:
    done = 0
    for _ in range(len(model.graph) + 1):
        changed = 0
        for node in list(model.graph):
            if not node.domain and node.graph is not None:
                changed += (
                    _merge_transposes(model, node)
                    if node.op_type == "Transpose"
                    else _sink_through_node(model, node)
                )
        ir.remove_unused(model)
        done += changed
        if not changed:
            break
    return done


def _merge_transposes(model: ir.Model, node: ir.Node) -> int:
    """Make one Transpose, or none, of two in a row."""
    second, maker = _get_permutation(node), ir.producer(node.inputs[0])
    first = _get_permutation(maker)
    if first is None or second is None or maker is None:
        return 0
    source = ir.require_input(maker)
    both = [first[i] for i in second]
    if both == sorted(both):
        if not ir.can_bypass_node(node, source) or node.outputs[0].is_graph_output():
            return 0
        ir.bypass_node(model, node, source)
        return 1
    node.replace_input_with(0, source)
    ir.set_attr(node, "perm", both)
    return 1


def _sink_through_node(model: ir.Model, node: ir.Node) -> int:
    """Let `node` work on the tensors in front of the Transposes it reads."""
    kind = node.op_type
    data = range(len(node.inputs)) if kind in (*operators.BROADCASTING_OPS, "Concat") else (0,)
    if kind not in _SINKABLE_OPS or not node.inputs:
        return 0
    moved = [
        i for i in data if node.inputs[i] is not None and ir.const_value(node.inputs[i]) is None
    ]
    perms = {_get_permutation(ir.producer(node.inputs[i])) for i in moved}
    perm = perms.pop() if len(perms) == 1 else None
    if perm is None:
        return 0
    constants = {
        i: ir.const_value(node.inputs[i])
        for i in data
        if i not in moved and node.inputs[i] is not None
    }
    if any(a is not None and a.ndim > len(perm) for a in constants.values()):
        return 0
    if kind == "Dropout" and any(v.uses() for v in node.outputs[1:]):
        return 0
    change = _find_attribute_rewrite(kind)(model, node, perm)
    if change is None:
        return 0
    for i in moved:
        maker = ir.require_producer(node.inputs[i])
        node.replace_input_with(i, ir.require_input(maker))
    for i, array in constants.items():
        if array is not None and (array.size > 1 or kind == "Concat"):
            full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
            ir.set_constant_input(
                model, node, i, np.transpose(full, _invert_permutation(perm)), "moved"
            )
    if len(change):
        for value in list(node.outputs):
            _insert_transpose_after(model, node, value, perm)
    return 1


def _invert_permutation(perm: Sequence[int]) -> list[int]:
    return [perm.index(i) for i in range(len(perm))]


def _insert_transpose_after(model: ir.Model, node: ir.Node, value: ir.Value, perm: _Perm) -> None:
    """Put a Transpose behind `value`, an output of `node`: it takes over its name and readers."""
    name, users, outside = str(value.name), list(value.uses()), value.is_graph_output()
    if not name:
        return
    turn = ir.make_node(
        "Transpose",
        [value],
        {"perm": list(perm)},
        origin=node,
        suffix=f"{name}_turn",
        output=name,
        like=value,
    )
    result = turn.outputs[0]
    for user, index in users:
        user.replace_input_with(index, result)
    if outside:
        for index, output in enumerate(model.graph.outputs):
            if output is value:
                model.graph.outputs[index] = result
    dims = value.shape
    value.name = ir.unique_tensor_name(model, f"{name}_moved")
    value.shape = (
        None if dims is None else ir.make_shape([dims[i] for i in _invert_permutation(perm)])
    )
    model.graph.insert_after(node, turn)


# ---- what a permutation does to attributes -------------------------------------------------------------------------

#: Rewrites a node in place for a permuted input; returns (1,) where a Transpose is needed behind it, () where none is,
#: None (nothing done) where it cannot.
_AttributeRewrite = Callable[[ir.Model, ir.Node, _Perm], tuple[int, ...] | None]


def _find_attribute_rewrite(kind: str) -> _AttributeRewrite:
    if kind in _AXIS_OPS:
        return _permute_axis
    if kind in operators.REDUCTION_KINDS:
        return _permute_reduction
    return _ATTRIBUTE_REWRITES.get(kind, lambda model, node, perm: (1,))


def _permute_axis(model: ir.Model, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    newer = ir.get_opset(model) >= 13
    if node.op_type in operators.SOFTMAX_FAMILY_OPS and not newer:
        return None
    axis = ir.get_attr(node, "axis", 0 if node.op_type == "Split" else -1)
    ir.set_attr(node, "axis", perm[axis])
    return (1,)


def _set_axes(model: ir.Model, node: ir.Node, index: int, axes: list[int]) -> None:
    if "axes" in node.attributes:
        ir.set_attr(node, "axes", axes)
    else:
        ir.set_constant_input(model, node, index, np.array(axes, np.int64), "moved")


def _permute_reduction(model: ir.Model, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    axes = ir.get_axes(node)
    if not axes:
        return None
    keep = bool(ir.get_attr(node, "keepdims", 1))
    inside = [perm[a] for a in axes]
    left = [p for p in perm if p not in inside]
    if not keep and left != sorted(left):
        return None
    _set_axes(model, node, 1, inside)
    return (1,) if keep else ()


def _permute_pad(model: ir.Model, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    pads = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    rank = len(perm)
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = ir.get_axes(node, 3)
        if axes is None:
            return None
        _set_axes(model, node, 3, [perm[a] for a in axes])
        return (1,)
    if pads is None or pads.size != 2 * rank:
        return None
    halves = pads.reshape(2, rank)[:, _invert_permutation(perm)]
    ir.set_constant_input(model, node, 1, halves.reshape(-1), "moved")
    return (1,)


def _permute_slice(model: ir.Model, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    axes = ir.get_axes(node, 3)
    if axes is None:
        return None
    _set_axes(model, node, 3, [perm[a] for a in axes])
    return (1,)


def _permute_gather(model: ir.Model, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    index, axis = ir.const_value(node.inputs[1]), perm[ir.get_attr(node, "axis", 0)]
    left = [p for p in perm if p != axis]
    if index is None or index.ndim > 1 or (index.ndim == 0 and left != sorted(left)):
        return None
    ir.set_attr(node, "axis", axis)
    return (1,) if index.ndim else ()


def _permute_squeeze(model: ir.Model, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    axes = ir.get_axes(node)
    inside = [perm[a] for a in axes or ()]
    left = [p for p in perm if p not in inside]
    if not inside or left != sorted(left):
        return None
    _set_axes(model, node, 1, inside)
    return ()


def _permute_matmul(model: ir.Model, node: ir.Node, perm: _Perm) -> tuple[int, ...] | None:
    weight = ir.const_value(node.inputs[1])
    return (1,) if weight is not None and weight.ndim == 2 and perm[-1] == len(perm) - 1 else None


_ATTRIBUTE_REWRITES: dict[str, _AttributeRewrite] = {
    "Pad": _permute_pad,
    "Slice": _permute_slice,
    "Gather": _permute_gather,
    "Squeeze": _permute_squeeze,
    "MatMul": _permute_matmul,
}
#: What a Transpose sinks through.
_SINKABLE_OPS = {
    *operators.UNARY_ELEMENTWISE_OPS,
    *operators.IDENTITY_OPS,
    "Cast",
    *operators.BROADCASTING_OPS,
    *operators.REDUCTION_KINDS,
    *_AXIS_OPS,
    *_ATTRIBUTE_REWRITES,
}


# ---- axes of size one ----------------------------------------------------------------------------------------------


def _drop_transposes_before_reshape(model: ir.Model) -> int:
    """Let Reshape and Flatten read past a Transpose that leaves the order of the elements as it is."""
    done = 0
    for node in list(model.graph):
        if node.op_type not in ("Reshape", "Flatten") or node.domain:
            continue
        maker = ir.producer(node.inputs[0])
        perm = _get_permutation(maker)
        dims = ir.get_shape(maker.inputs[0]) if maker is not None else None
        if (
            perm is None
            or dims is None
            or perm[0] != 0
            or maker is None
            or ir.get_attr(node, "axis", 1) != 1
        ):
            continue
        long = [i for i in perm if i and dims[i] != 1]
        target = ir.const_value(node.inputs[1]) if node.op_type == "Reshape" else np.zeros(1)
        if long != sorted(long) or target is None or any(d == 0 for d in target[1:]):
            continue
        node.replace_input_with(0, ir.require_input(maker))
        done += 1
    if done:
        ir.remove_unused(model)
    return done
