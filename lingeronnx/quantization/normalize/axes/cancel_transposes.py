"""Cancel Transposes of converted graphs: channel-last subgraphs become channel-first.

With ``x = Transpose_p(a)``, an elementwise operator of x, or one along an axis of x, is the same
operator of `a`, with permuted axes, pads and constants, followed by Transpose_p. Two consecutive
Transposes are merged or cancel. Transposes sink in this way as long as this reduces their number;
otherwise nothing changes. A Transpose that only moves axes of size one is removed before a Reshape
or Flatten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....ir import float_ops, ir
from .._pass import PassResult, SkipReason

_AXIS_OPS = float_ops.SOFTMAX_FAMILY_OPS | {"Concat", "Split"}

_Perm = tuple[int, ...]


def cancel_transposes(model: ir.Model) -> PassResult:
    """Cancel Transposes of `model`, in place; counted by changed nodes.

    They are moved down the graph on a copy first, and in `model` only if that leaves fewer. The
    remaining ones are skipped with a reason.
    """
    changes = _drop_transposes_before_reshape(model)
    count = len(_find_remaining_transposes(model))
    if not count:
        return PassResult(changes)
    reason = f"moving it down the graph would not leave fewer than {count}"
    trial = model.clone()
    if _sink_transposes(trial) and len(_find_remaining_transposes(trial)) < count:
        changes += _sink_transposes(model) + _drop_transposes_before_reshape(model)
        reason = "no other Transpose downstream cancels it"
    skipped = [SkipReason(node, reason) for node in _find_remaining_transposes(model)]
    return PassResult(changes, skipped)


def _find_remaining_transposes(model: ir.Model) -> list[ir.Node]:
    """Return the Transposes that no linear layer can absorb.

    A Transpose that keeps the batch on axis 0 and is only read by Reshapes can be absorbed by the
    linear layer downstream.
    """
    remaining = []
    for node in model.graph:
        perm = _get_permutation(node)
        if perm is None:
            continue
        result = node.outputs[0]
        moves_batch = perm[:1] != (0,) and bool(result.uses())
        only_reshaped = all(use.node.op_type in ("Reshape", "Flatten") for use in result.uses())
        if moves_batch or result.is_graph_output() or not only_reshaped:
            remaining.append(node)
    return remaining


def _get_permutation(node: ir.Node | None) -> _Perm | None:
    """Return the permutation of a Transpose; without `perm`, the reversed axes.

    None for any other node, and for an absent `perm` with an unknown rank.
    """
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    perm = ir.get_attr(node, "perm")
    if perm is None:
        shape = ir.get_shape(node.inputs[0])
        return None if shape is None else tuple(range(len(shape)))[::-1]
    return tuple(perm)


def _sink_transposes(model: ir.Model) -> int:
    """Move each Transpose downstream, merging it with others, until a traversal changes nothing.

    Removes unused nodes after each traversal. Returns the number of changes of all traversals.
    """
    total = 0
    for _ in range(len(model.graph) + 1):
        changes = 0
        for node in list(model.graph):
            if node.domain or node.graph is None:
                continue
            if node.op_type == "Transpose":
                changes += _merge_transposes(model, node)
            else:
                changes += _sink_through_node(model, node)
        ir.remove_unused(model)
        total += changes
        if not changes:
            break
    return total


def _merge_transposes(model: ir.Model, node: ir.Node) -> int:
    """Merge the Transpose `node` with one before it; return 1, or 0 without a change.

    If both cancel, `node` is bypassed; nothing happens if it then computes a graph output.
    """
    producer = ir.producer(node.inputs[0])
    first, second = _get_permutation(producer), _get_permutation(node)
    if first is None or second is None or producer is None:
        return 0
    source = ir.require_input(producer)
    combined = [first[i] for i in second]
    if combined == sorted(combined):
        if not ir.can_bypass_node(node, source) or node.outputs[0].is_graph_output():
            return 0
        ir.bypass_node(model, node, source)
        return 1
    node.replace_input_with(0, source)
    ir.set_attr(node, "perm", combined)
    return 1


def _sink_through_node(model: ir.Model, node: ir.Node) -> int:
    """Move equal Transposes of all computed inputs of `node` behind it.

    Return 1, or 0 without a change. Axis attributes and constants of `node` are permuted to match.
    Nothing changes if the permutations differ, if a constant has more axes, or if the operator does
    not allow it.
    """
    if not _can_sink_through(node):
        return 0
    computed, constants = _classify_operands(node)
    perm = _common_permutation([node.inputs[index] for index in computed])
    if perm is None or any(array.ndim > len(perm) for array in constants.values()):
        return 0
    needs_transpose = _find_attribute_rewrite(node.op_type)(model, node, perm)
    if needs_transpose is None:
        return 0
    for index in computed:
        transpose = ir.require_producer(node.inputs[index])
        node.replace_input_with(index, ir.require_input(transpose))
    _permute_constants(model, node, constants, perm)
    if needs_transpose:
        for value in list(node.outputs):
            _insert_transpose_after(model, node, value, perm)
    return 1


def _can_sink_through(node: ir.Node) -> bool:
    """Whether a Transpose may be moved from the inputs to the outputs of the operator of `node`.

    A Dropout allows it only if its mask is not used. Permutation, axes and constants are not looked
    at.
    """
    if node.op_type == "Dropout" and any(value.uses() for value in node.outputs[1:]):
        return False
    return node.op_type in _SINKABLE_OPS and bool(node.inputs)


def _common_permutation(values: Sequence[ir.Value | None]) -> _Perm | None:
    """Return the permutation of the Transposes that compute `values`, if all have the same.

    None if one is computed by another node, or if they differ.
    """
    perms = {_get_permutation(ir.producer(value)) for value in values}
    return perms.pop() if len(perms) == 1 else None


def _permute_constants(
    model: ir.Model, node: ir.Node, constants: dict[int, np.ndarray], perm: _Perm
) -> None:
    """Permute constant inputs of `node` (input index -> array) for operands that lose a Transpose.

    `perm` is the permutation of that Transpose; the constants get the inverse, in place. Those of
    lower rank are padded with leading axes of size 1; single elements are left unchanged, except
    for Concat.
    """
    for index, array in constants.items():
        if array.size > 1 or node.op_type == "Concat":
            aligned = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
            permuted = np.transpose(aligned, _invert_permutation(perm))
            ir.set_constant_input(model, node, index, permuted, "moved")


def _classify_operands(node: ir.Node) -> tuple[list[int], dict[int, np.ndarray]]:
    """Return the indices of the computed data operands, and the constant ones by index.

    All inputs of broadcasting operators and Concat are data, only input 0 of others.
    """
    has_many_operands = node.op_type in (*float_ops.BROADCASTING_OPS, "Concat")
    computed: list[int] = []
    constants: dict[int, np.ndarray] = {}
    for index in range(len(node.inputs)) if has_many_operands else (0,):
        array = ir.const_value(node.inputs[index])
        if array is not None:
            constants[index] = array
        elif node.inputs[index] is not None:
            computed.append(index)
    return computed, constants


def _invert_permutation(perm: Sequence[int]) -> list[int]:
    """Return the permutation that reverts `perm`."""
    return [perm.index(i) for i in range(len(perm))]


def _insert_transpose_after(model: ir.Model, node: ir.Node, value: ir.Value, perm: _Perm) -> None:
    """Insert a Transpose after `value`, an output of `node`; it takes over name and consumers.

    `value` gets a new name, and the shape before the permutation. Nothing happens without a name.
    """
    name, users, is_graph_output = str(value.name), list(value.uses()), value.is_graph_output()
    if not name:
        return
    transpose = ir.make_node(
        "Transpose",
        [value],
        {"perm": list(perm)},
        origin=node,
        suffix=f"{name}_turn",
        output=name,
        like=value,
    )
    result = transpose.outputs[0]
    for user, index in users:
        user.replace_input_with(index, result)
    if is_graph_output:
        for index, output in enumerate(model.graph.outputs):
            if output is value:
                model.graph.outputs[index] = result
    dims = value.shape
    value.name = ir.unique_tensor_name(model, f"{name}_moved")
    if dims is None:
        value.shape = None
    else:
        value.shape = ir.Shape([dims[i] for i in _invert_permutation(perm)])
    model.graph.insert_after(node, transpose)


# ---- attributes of a permuted operator -----------------------------------------------------------

#: Changes a node in place for an input without the Transpose. Returns whether its output then needs
#: the Transpose, or None, without a change, if that is not possible.
_AttributeRewrite = Callable[[ir.Model, ir.Node, _Perm], bool | None]


def _find_attribute_rewrite(op_type: str) -> _AttributeRewrite:
    """Return the function that adapts a node of `op_type` to an input that lost its Transpose.

    Called with (model, node, perm), it changes axis attributes in place and returns whether the
    output must be transposed by `perm`, or None, without a change, if the node cannot be adapted.
    Operators without axes change nothing and need the Transpose.
    """
    if op_type in _AXIS_OPS:
        return _permute_axis
    if op_type in float_ops.REDUCTION_KINDS:
        return _permute_reduction
    return _ATTRIBUTE_REWRITES.get(op_type, lambda model, node, perm: True)


def _permute_axis(model: ir.Model, node: ir.Node, perm: _Perm) -> bool | None:
    """Set attribute `axis` of `node` for an input that lost its Transpose with `perm`.

    Returns True, since the output must be transposed by `perm`. None, without a change, for a
    Softmax of opsets below 13, which is computed over several axes.
    """
    flattens_axes = node.op_type in float_ops.SOFTMAX_FAMILY_OPS and ir.get_opset(model) < 13
    if flattens_axes:
        return None
    axis = ir.get_attr(node, "axis", 0 if node.op_type == "Split" else -1)
    ir.set_attr(node, "axis", perm[axis])
    return True


def _set_axes(model: ir.Model, node: ir.Node, index: int, axes: list[int]) -> None:
    """Set the axes of `node` as its attribute if it has one, else as constant input `index`."""
    if "axes" in node.attributes:
        ir.set_attr(node, "axes", axes)
    else:
        ir.set_constant_input(model, node, index, np.array(axes, np.int64), "moved")


def _permute_reduction(model: ir.Model, node: ir.Node, perm: _Perm) -> bool | None:
    """Set the axes of a reduction for an input that lost its Transpose with `perm`.

    Returns whether the output must be transposed by `perm`: True with `keepdims`, else False. None,
    without a change, if the axes are not constant, or if without `keepdims` the remaining axes
    would be in another order.
    """
    axes = ir.get_axes(node)
    if not axes:
        return None
    keeps_axes = bool(ir.get_attr(node, "keepdims", 1))
    source_axes = [perm[axis] for axis in axes]
    remaining = [axis for axis in perm if axis not in source_axes]
    if not keeps_axes and remaining != sorted(remaining):
        return None
    _set_axes(model, node, 1, source_axes)
    return keeps_axes


def _permute_pad(model: ir.Model, node: ir.Node, perm: _Perm) -> bool | None:
    """Permute the pads of `node`, a Pad, for an input that lost its Transpose with `perm`.

    If it has the input `axes`, those are permuted instead. Returns True, since the output must be
    transposed by `perm`; None, without a change, if that input is not constant or the pads are not
    those of all axes.
    """
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = ir.get_axes(node, 3)
        if axes is None:
            return None
        _set_axes(model, node, 3, [perm[axis] for axis in axes])
        return True
    pads = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    rank = len(perm)
    if pads is None or pads.size != 2 * rank:
        return None
    permuted = pads.reshape(2, rank)[:, _invert_permutation(perm)]
    ir.set_constant_input(model, node, 1, permuted.reshape(-1), "moved")
    return True


def _permute_slice(model: ir.Model, node: ir.Node, perm: _Perm) -> bool | None:
    """Replace axes a of a Slice by ``perm[a]``, for an input that lost its Transpose `perm`.

    Returns True, since the output must be transposed by `perm`. None, without a change, if the axes
    are computed at run time.
    """
    axes = ir.get_axes(node, 3)
    if axes is None:
        return None
    _set_axes(model, node, 3, [perm[axis] for axis in axes])
    return True


def _permute_gather(model: ir.Model, node: ir.Node, perm: _Perm) -> bool | None:
    """Set the axis of a Gather for an input that lost its Transpose with `perm`.

    Returns whether the output must be transposed: True for a vector of indices, False for a scalar,
    which removes the axis. None, without a change, if the indices are computed or have more than
    one axis, or if after a scalar the remaining axes would be in another order.
    """
    indices, axis = ir.const_value(node.inputs[1]), perm[ir.get_attr(node, "axis", 0)]
    if indices is None or indices.ndim > 1:
        return None
    remaining = [source_axis for source_axis in perm if source_axis != axis]
    if indices.ndim == 0 and remaining != sorted(remaining):
        return None
    ir.set_attr(node, "axis", axis)
    return indices.ndim == 1


def _permute_squeeze(model: ir.Model, node: ir.Node, perm: _Perm) -> bool | None:
    """Set the axes of a Squeeze for an input that lost its Transpose with `perm`.

    Returns False, since the output needs no Transpose. None, without a change, if the axes are not
    constant or the remaining axes would be in another order.
    """
    source_axes = [perm[axis] for axis in ir.get_axes(node) or ()]
    remaining = [axis for axis in perm if axis not in source_axes]
    if not source_axes or remaining != sorted(remaining):
        return None
    _set_axes(model, node, 1, source_axes)
    return False


def _permute_matmul(model: ir.Model, node: ir.Node, perm: _Perm) -> bool | None:
    """Whether a MatMul by a constant matrix may take an input that lost its Transpose with `perm`.

    Returns True (the output must be transposed) if `perm` leaves the last axis the last, else None.
    Changes nothing.
    """
    weight = ir.const_value(node.inputs[1])
    if weight is None or weight.ndim != 2 or perm[-1] != len(perm) - 1:
        return None
    return True


_ATTRIBUTE_REWRITES: dict[str, _AttributeRewrite] = {
    "Pad": _permute_pad,
    "Slice": _permute_slice,
    "Gather": _permute_gather,
    "Squeeze": _permute_squeeze,
    "MatMul": _permute_matmul,
}
#: Operators through which a Transpose can be moved.
_SINKABLE_OPS = {
    *float_ops.UNARY_ELEMENTWISE_OPS,
    *float_ops.IDENTITY_OPS,
    "Cast",
    *float_ops.BROADCASTING_OPS,
    *float_ops.REDUCTION_KINDS,
    *_AXIS_OPS,
    *_ATTRIBUTE_REWRITES,
}


# ---- axes of size one ----------------------------------------------------------------------------


def _drop_transposes_before_reshape(model: ir.Model) -> int:
    """Let Reshape and Flatten nodes bypass a Transpose that does not change the order of elements.

    In place; returns the number of bypassed Transposes, and removes those that are unused. Left
    alone are a Flatten at another axis than 1, a computed target, and one that copies a size (0)
    after the batch.
    """
    changes = 0
    for node in list(model.graph):
        if not ir.is_standard_op(node, "Reshape", "Flatten"):
            continue
        if ir.get_attr(node, "axis", 1) != 1 or not _has_safe_target(node):
            continue
        transpose = ir.producer(node.inputs[0])
        if transpose is not None and _preserves_element_order(transpose):
            node.replace_input_with(0, ir.require_input(transpose))
            changes += 1
    if changes:
        ir.remove_unused(model)
    return changes


def _has_safe_target(node: ir.Node) -> bool:
    """Whether the shape of a Flatten or Reshape depends on no size of the input but the batch.

    True for a Flatten; for a Reshape if its target is constant and has no 0 (a copied size) after
    the first entry.
    """
    if node.op_type == "Flatten":
        return True
    target = ir.const_value(node.inputs[1])
    return target is not None and not any(size == 0 for size in target[1:])


def _preserves_element_order(node: ir.Node) -> bool:
    """Whether `node` is a Transpose that leaves the batch first and all axes of size > 1 in order.

    Then it is equivalent to a Reshape. False if the shape is unknown.
    """
    perm = _get_permutation(node)
    dims = ir.get_shape(node.inputs[0]) if perm is not None else None
    if perm is None or dims is None or perm[0] != 0:
        return False
    return float_ops.keeps_element_order(perm, dims)
