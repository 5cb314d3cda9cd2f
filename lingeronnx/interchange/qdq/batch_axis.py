"""Make the batch of a standard graph dynamic, if every sample stays the same in a batch.

An integer graph of a chip is made for one sample, and may treat it as a matrix that it transposes,
slices and concatenates. In a batch the matrices of all samples are stacked along axis 0, so that
data movement along axis 0 is rewritten with one more leading axis. Whether a batch gives the same
results as its samples one by one is tried in onnxruntime with default settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...ir import float_ops, ir
from ...runtime.integer.runner import IntegerRunner
from ...runtime.provenance import has_fixed_batch
from ...runtime.runners.sessions import open_default_ort_session

__all__ = ["make_batch_dynamic", "separate_batch_axis"]

#: Float operators that compute every sample independently of the others in the batch.
_BATCH_SAFE_OPS = (
    float_ops.SOFTMAX_FAMILY_OPS
    | float_ops.DATA_MOVEMENT_OPS
    | float_ops.BROADCASTING_OPS
    | float_ops.UNARY_ELEMENTWISE_OPS
    | float_ops.WINDOWED_OPS
    | float_ops.NORMALIZATION_OPS
    | (float_ops.LAYER_OPS - float_ops.RECURRENT_OPS)
)


def make_batch_dynamic(
    model: ir.Model, standard: ir.Model, feeds: list[dict[str, np.ndarray]]
) -> ir.Model | str:
    """Make the batch dimension of a standard graph dynamic, if results do not depend on it.

    Parameters
    ----------
    model
        The integer graph, with batch 1.
    standard
        The standard graph that was written for it; not modified.
    feeds
        Samples, whose results must be the same one by one and as a batch.

    Returns
    -------
    ir.Model or str
        A copy for any batch size, or the reason why the batch must be 1; "" if no input has a
        batch of 1.
    """
    if has_fixed_batch(model):
        return "the float model fixes it"
    is_batch_one = [(ir.get_shape(value) or (0,))[0] == 1 for value in standard.graph.inputs]
    if not any(is_batch_one):
        return ""
    if not all(is_batch_one):
        return "not all inputs have a batch of 1"
    reason = _find_mixed_samples(model, feeds[0])
    if reason is not None:
        return reason
    dynamic = standard.clone()
    separate_batch_axis(dynamic)
    if not _make_reshapes_dynamic(dynamic):
        return "a shape is computed at run time"
    _clear_static_shapes(dynamic)
    names = ir.get_output_names(standard)
    batch = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    try:
        session = open_default_ort_session(ir.to_bytes(dynamic), "the converted graph")
        single_outputs = [session.run(names, feed) for feed in feeds]
        batch_outputs = session.run(names, batch)
    except Exception as error:  # noqa: BLE001 - onnxruntime raises various classes; any is a reason
        return f"onnxruntime does not run larger batches ({str(error).splitlines()[0][:80]})"
    for index, batch_output in enumerate(batch_outputs):
        stacked = np.concatenate([outputs[index] for outputs in single_outputs])
        if not np.array_equal(stacked, batch_output):
            return "samples give other results in a batch"
    return dynamic


def _find_mixed_samples(model: ir.Model, feed: dict[str, np.ndarray]) -> str | None:
    """Explain why the integer graph `model` may mix the samples of a batch, or None if it does not.

    Runs `feed`, and checks the integer kernels and the types of the float operators.
    """
    runner = IntegerRunner(model)
    list(runner.run(feed))
    if not runner.per_sample:
        return "an operator mixes elements along the first axis"
    float_ops = {node.op_type for node in model.graph if _is_float_node(node)}
    unsafe_ops = sorted(float_ops - _BATCH_SAFE_OPS - {"Constant"})
    return f"{', '.join(unsafe_ops)} may mix samples" if unsafe_ops else None


def _is_float_node(node: ir.Node) -> bool:
    """Whether `node` is no integer operator; a standard one is, if it reads the integers of one."""
    if node.domain or ir.get_attr(node, "scale_o"):
        return False
    source = node.inputs[0] if node.inputs else None
    return source is None or source.dtype not in (ir.DataType.INT8, ir.DataType.INT16)


def _make_reshapes_dynamic(model: ir.Model) -> bool:
    """Let the first size of all Reshape targets of `model` follow the batch, in place.

    Return success. A positive first size becomes -1, or 0 if another size is -1. False, perhaps
    with some Reshapes changed, if a target is not constant, is empty, or has a first size above 1
    and a -1.
    """
    for node in model.graph:
        if node.op_type != "Reshape" or node.domain:
            continue
        target = ir.const_value(node.inputs[1])
        if target is None or target.size == 0 or (target[0] > 1 and -1 in target):
            return False
        if target[0] > 0:  # more than 1 if attention heads are merged with the batch
            first = 0 if (target[1:] == -1).any() else -1
            shape = np.array([first, *target[1:]], np.int64)
            ir.set_constant_input(model, node, 1, shape, "any_batch")
    return True


def _clear_static_shapes(model: ir.Model) -> None:
    """Make axis 0 of graph inputs and outputs the symbol "batch".

    Make other tensors' shapes unknown. In place; initializers keep their shapes.
    """
    io_tensors = {*model.graph.inputs, *model.graph.outputs}
    for value in ir.iter_values(model):
        if value.is_initializer() or value.shape is None:
            continue
        shape = list(ir.get_shape(value) or ())
        is_batched = value in io_tensors and shape
        value.shape = ir.Shape(["batch", *shape[1:]]) if is_batched else None


def separate_batch_axis(model: ir.Model) -> None:
    """Rewrite data movement of `model` along axis 0 so that it stays within samples, in place.

    Concerned are Transpose, Concat, Gather and Slice in a standard graph for one sample: they get a
    batch axis of their own between Reshapes. Other nodes, nodes of constants and nodes with unknown
    dimensions are not changed.
    """
    reserved_names = ir.get_tensor_names(model)
    for node in list(model.graph):
        attributes = None if node.domain else _shift_axes(model, node)
        if attributes is None:
            continue
        data_inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        data = [value for value in data_inputs if value is not None]
        shapes = [ir.get_shape(value) for value in data]
        output_shape = ir.get_shape(node.outputs[0])
        is_static = all(_is_static(ir.get_shape(value)) for value in (*data, *node.outputs))
        if not is_static or any(value.is_initializer() for value in data):
            continue
        separated = [
            _make_reshape(model, value, (-1, *(shape or ())), reserved_names)
            for value, shape in zip(data, shapes, strict=True)
        ]
        inputs = [*(reshape.outputs[0] for reshape in separated), *node.inputs[len(data) :]]
        name = ir.reserve_name(f"{node.outputs[0].name}_apart", reserved_names)
        moved = ir.make_node(node.op_type, inputs, attributes, output=name, origin=node)
        stacked_shape = (-1, *(output_shape or ())[1:])
        stacked = _make_reshape(model, moved.outputs[0], stacked_shape, reserved_names)
        ir.replace_nodes(model, [node], [*separated, moved, stacked])


def _is_static(shape: Sequence[int | None] | None) -> bool:
    """Whether `shape` is known, has axes, and all its dimensions are known."""
    return bool(shape) and None not in (shape or ())


def _shift_axes(model: ir.Model, node: ir.Node) -> Mapping[str, Any] | None:
    """Return the attributes of `node` for inputs with one more leading axis; None if not needed.

    None for a node that does not rearrange axis 0. The axes of a Slice are a constant input, which
    is replaced, in place.
    """
    attributes = {key: ir.get_attr(node, key) for key in node.attributes}
    shape = ir.get_shape(node.inputs[0]) if node.inputs else None
    if not shape:
        return None
    rank = len(shape)
    if node.op_type == "Transpose":
        perm = attributes.get("perm") or list(range(rank))[::-1]
        if perm[0] == 0:
            return None
        return {**attributes, "perm": [0, *(axis + 1 for axis in perm)]}
    if node.op_type in ("Concat", "Gather"):
        axis = int(attributes.get("axis", 0)) % rank
        return None if axis else {**attributes, "axis": 1}
    if node.op_type != "Slice" or len(node.inputs) <= 3:
        return None
    axes = ir.const_value(node.inputs[3])
    if axes is None or 0 not in axes % rank:
        return None
    ir.set_constant_input(model, node, 3, axes % rank + 1, "apart")
    return attributes


def _make_reshape(
    model: ir.Model, value: ir.Value, shape: Sequence[int | None], reserved_names: set[str]
) -> ir.Node:
    """Return a new Reshape of `value` to the constant `shape`; the node is not inserted.

    The shape becomes an initializer of `model`, and the new names are added to `reserved_names`.
    """
    name = ir.reserve_name(f"{value.name}_seen", reserved_names)
    constant = ir.add_initializer(
        model, ir.reserve_name(f"{name}_sizes", reserved_names), np.array(shape, np.int64)
    )
    return ir.make_node("Reshape", [value, constant], output=name, name=name)
