"""Convert a model to an opset and to the float type that the other passes know.

Old opsets become opset 12, the oldest of integer graphs, and too new ones `MAX_OPSET`.

Operators whose form changed between opset 6 and 12 are rewritten one by one, exactly; all others
have the same semantics in both. Models of opset 12 to `MAX_OPSET` keep theirs; a newer one is
relabelled if none of its operators changed since. An operator that opset 12 no longer has and that
is not in the table, and a model older than opset 6, raise ModelError. An IR version newer than
onnxruntime's is replaced by the newest that onnxruntime supports.

float16, bfloat16 and double become float32, including graph inputs and outputs. The simulator's
reference is float32, and integer inputs and outputs are scaled from it. Constants that exceed the
range of float32 (masks of -1e308) are clipped to it. Integer arithmetic is not changed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from ....common.errors import ModelError
from ....ir import float_ops, ir
from ....ir.builder import convert_attributes_to_inputs
from .._pass import Condition, PassResult, SkipReason

MIN_OPSET, TARGET_OPSET = 6, 12
MAX_OPSET = 26  # of onnxruntime 1.31, the newest version that was tested
MAX_IR_VERSION = 13  # its IR version

_OTHER_FLOAT_TYPES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
#: Attributes whose value is an element type.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype")


def _find_old_opset(model: ir.Model) -> str | None:
    """Return "it is N" if the opset version N is below `TARGET_OPSET`, else None."""
    version = model.opset_imports.get("")
    return f"it is {version}" if version is not None and version < TARGET_OPSET else None


READABLE_OPSET = Condition(f"opset {TARGET_OPSET} or a newer one", _find_old_opset)


def convert_opset(model: ir.Model) -> PassResult:
    """Convert an older `model` to opset `TARGET_OPSET`, in place; counts rewritten nodes plus one.

    Opsets from the target up to `MAX_OPSET` stay; a newer one becomes `MAX_OPSET` if no operator
    changed since, else it is skipped with a reason. The IR version is lowered to `MAX_IR_VERSION`.
    Raises ModelError below `MIN_OPSET`, and for operators and attributes that the target lacks.
    """
    version = model.opset_imports.get("")
    if (model.ir_version or 0) > MAX_IR_VERSION:  # onnxruntime reports features it cannot read
        model.ir_version = MAX_IR_VERSION
    if version is not None and version > MAX_OPSET:
        return _relabel_opset(model, version)
    if version is None or version >= TARGET_OPSET:
        return PassResult(0)
    if version < MIN_OPSET:
        raise ModelError(
            f"the model uses opset {version}; the oldest supported opset is {MIN_OPSET}: export "
            "the model again with a newer one"
        )
    changes = 1
    for node in list(ir.iter_all_nodes(model, include_composites=False)):
        if not node.domain:
            changes += _convert_node(model, node, version)
            _check_exists(node)
    model.graph.opset_imports[""] = TARGET_OPSET
    return PassResult(changes)


def _convert_node(model: ir.Model, node: ir.Node, version: int) -> int:
    """Convert a node of opset `version` to `TARGET_OPSET`; return the number of changes.

    0 if its operator has no rewrite, or already has the new form in that version.
    """
    new_form_opset, rewrite = _REWRITES.get(node.op_type, (0, None))
    if rewrite is None or version >= new_form_opset:
        return 0
    return rewrite(model, node)


def _relabel_opset(model: ir.Model, version: int) -> PassResult:
    """Give `model` the opset `MAX_OPSET` if no operator of it changed since.

    `version` is its present, newer opset. Else nothing changes, and the operator is the reason.
    """
    for node in ir.iter_all_nodes(model, include_composites=False):
        if node.domain or not onnx.defs.has(node.op_type):
            continue
        schema = onnx.defs.get_schema(node.op_type, version)
        if schema.since_version > MAX_OPSET:  # onnxruntime may support it, or reports it
            reason = (
                f"its form is of opset {schema.since_version}; the newest tested opset is "
                f"{MAX_OPSET}"
            )
            return PassResult(0, [SkipReason(node, reason)])
    model.graph.opset_imports[""] = MAX_OPSET
    return PassResult(1)


def _check_exists(node: ir.Node) -> None:
    """Raise ModelError if the operator or an attribute of `node` does not exist in `TARGET_OPSET`.

    A deprecated operator does not exist there. Operators unknown in all versions are accepted,
    since onnxruntime reports them.
    """
    try:
        schema = onnx.defs.get_schema(node.op_type, TARGET_OPSET)
    except onnx.defs.SchemaError:
        return  # unknown in every version; onnxruntime reports it
    unknown = [name for name in node.attributes if name not in schema.attributes]
    if schema.deprecated or unknown:
        subject = f"its attribute '{unknown[0]}'" if unknown else "it"
        raise ModelError(
            f"{node.op_type} {node.name}: {subject} does not exist in opset {TARGET_OPSET}; export "
            f"the model with opset {TARGET_OPSET}"
        )


def _make_attribute_rewrite(
    *names: str, dtype: type = np.int64
) -> Callable[[ir.Model, ir.Node], int]:
    """Return a function (model, node) -> 1 that converts the attributes `names` to inputs 1, 2, ...

    The inputs become constants of type `dtype`; an absent attribute becomes an absent input.
    """

    def rewrite(model: ir.Model, node: ir.Node) -> int:
        """Turn the attributes `names` of `node` into inputs of type `dtype`, and return 1.

        An absent attribute leaves its input empty.
        """
        arrays: list[np.ndarray | None] = []
        for name in names:
            value = ir.get_attr(node, name)
            arrays.append(None if value is None else np.asarray(value, dtype))
        convert_attributes_to_inputs(model, node, arrays, names)
        return 1

    return rewrite


def _convert_pad(model: ir.Model, node: ir.Node) -> int:
    """Turn the attributes `pads` and `value` of a Pad into inputs, and return 1.

    A `value` of 0 is omitted.
    """
    value = ir.get_attr(node, "value", 0.0)
    arrays = [
        np.asarray(ir.get_attr(node, "pads"), np.int64),
        np.asarray(value, np.float32) if value else None,
    ]
    convert_attributes_to_inputs(model, node, arrays, ("pads", "value"))
    return 1


def _convert_slice(model: ir.Model, node: ir.Node) -> int:
    """Turn the attributes `starts`, `ends` and `axes` of a Slice into inputs, and return 1.

    Absent `axes` become 0, 1, ...
    """
    starts, ends, axes = (ir.get_attr(node, name) for name in ("starts", "ends", "axes"))
    if axes is None:
        axes = range(len(starts))
    arrays = [np.asarray(values, np.int64) for values in (starts, ends, axes)]
    convert_attributes_to_inputs(model, node, arrays, ("starts", "ends", "axes"))
    return 1


def _convert_dropout(model: ir.Model, node: ir.Node) -> int:
    """Remove the attributes `ratio` and `is_test` of a Dropout, without effect at inference.

    Return 1.
    """
    for name in ("ratio", "is_test"):  # no effect at inference
        node.attributes.pop(name, None)
    return 1


def _infer_ranks(model: ir.Model) -> dict[str, int]:
    """Return tensor name -> rank, for each tensor whose shape the file declares or onnx infers."""
    graph = onnx.shape_inference.infer_shapes(ir.detach_large_constants(model)[0]).graph
    ranks = {t.name: len(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.HasField("shape"):
            ranks[value.name] = len(value.type.tensor_type.shape.dim)
    return ranks


def _align_broadcast(model: ir.Model, node: ir.Node, axis: int | None) -> int:
    """Align axis 0 of operand 1 with `axis` of operand 0 by appending axes of size 1; return 1.

    None means that the last axes are aligned, as in newer opsets, and changes nothing. Raises
    ModelError if a rank is not known.
    """
    if axis is None:
        return 1
    array, ranks = ir.const_value(node.inputs[1]), _infer_ranks(model)
    first_rank, second_rank = ranks.get(ir.input_name(node)), ranks.get(ir.input_name(node, 1))
    if first_rank is None or second_rank is None:
        raise ModelError(
            f"{node.op_type} {node.name}: how it broadcasts in opset 6 depends on shapes that are "
            f"not known; export the model with opset {TARGET_OPSET}"
        )
    missing = first_rank - axis % first_rank - second_rank
    if missing > 0 and array is not None:
        aligned = array.reshape((*array.shape, *[1] * missing))
        ir.set_constant_input(model, node, 1, aligned, "aligned")
    elif missing > 0:
        name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_aligned")
        axes = {"axes": list(range(second_rank, second_rank + missing))}
        unsqueeze = ir.make_node(
            "Unsqueeze", [node.inputs[1]], axes, origin=node, suffix="aligned", output=name
        )
        model.graph.insert_before(node, unsqueeze)
        node.replace_input_with(1, unsqueeze.outputs[0])
    return 1


def _convert_legacy_broadcast(model: ir.Model, node: ir.Node) -> int:
    """Remove the attributes `axis` and `broadcast`, and align operand 1 at that axis; return 1.

    Without `broadcast`, `axis` has no effect.
    """
    axis = ir.get_attr(node, "axis") if ir.get_attr(node, "broadcast", 0) else None
    for name in ("axis", "broadcast"):
        node.attributes.pop(name, None)
    return _align_broadcast(model, node, axis)


def _convert_prelu(model: ir.Model, node: ir.Node) -> int:
    """Align the slope (input 1) of a PRelu with axis 1, the channels, and return 1.

    A single constant slope is unchanged. Raises ModelError if a rank that this needs is not known.
    """
    array = ir.const_value(node.inputs[1])
    return _align_broadcast(model, node, None if array is not None and array.size == 1 else 1)


def _convert_gemm(model: ir.Model, node: ir.Node) -> int:
    """Remove the attribute `broadcast`, since Gemm always broadcasts, and return 1."""
    node.attributes.pop("broadcast", None)  # it always does
    return 1


def _convert_batch_norm(model: ir.Model, node: ir.Node) -> int:
    """Remove the attributes `is_test` and `spatial`; raise ModelError if they have an effect.

    Returns 1, the number of changes.
    """
    if not ir.get_attr(node, "is_test", 1):
        raise ModelError(
            f"{node.op_type} {node.name}: the model is in training mode; call eval() before the "
            "export"
        )
    node.attributes.pop("is_test", None)
    if ir.get_attr(node, "spatial", 1) != 1:
        raise ModelError(
            f"{node.op_type} {node.name}: spatial = 0 does not exist in newer opsets; export the "
            "model with opset 9"
        )
    node.attributes.pop("spatial", None)
    return 1


def _convert_resize(model: ir.Model, node: ir.Node) -> int:
    """Convert Upsample 7 and 9 and Resize 10 to Resize 11, in place; return 1.

    They sample at x / scale, rounded down for the mode "nearest".
    """
    scales = ir.get_attr(node, "scales")
    source = node.inputs[1] if len(node.inputs) > 1 else None
    roi = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{node.outputs[0].name}_roi"), np.zeros(0, np.float32)
    )
    if source is None:
        name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_scales")
        source = ir.add_initializer(model, name, np.asarray(scales, np.float32))
    node.resize_inputs(3)
    node.replace_input_with(1, roi)
    node.replace_input_with(2, source)
    node.attributes.pop("scales", None)
    ir.set_attr(node, "coordinate_transformation_mode", "asymmetric")
    if ir.get_attr(node, "mode", "nearest") == "nearest":
        ir.set_attr(node, "nearest_mode", "floor")
    node.op_type = "Resize"
    return 1


def _convert_top_k(model: ir.Model, node: ir.Node) -> int:
    """Turn the attribute `k` of a TopK into its second input, and return 1."""
    convert_attributes_to_inputs(
        model, node, [np.array([ir.get_attr(node, "k")], np.int64)], ("k",)
    )
    return 1


def _convert_scatter(model: ir.Model, node: ir.Node) -> int:
    """Rename a Scatter node to ScatterElements, and return 1, the number of changes."""
    node.op_type = "ScatterElements"
    return 1


_Rewrite = tuple[int, Callable[[ir.Model, ir.Node], int]]

#: Operator -> (the first opset with the new form, the rewrite).
_REWRITES: dict[str, _Rewrite] = {
    **dict.fromkeys(float_ops.LEGACY_BROADCAST_OPS, (7, _convert_legacy_broadcast)),
    "Gemm": (7, _convert_gemm),
    "PRelu": (7, _convert_prelu),
    "BatchNormalization": (9, _convert_batch_norm),
    "Clip": (11, _make_attribute_rewrite("min", "max", dtype=np.float32)),
    "Dropout": (12, _convert_dropout),
    "Pad": (11, _convert_pad),
    "Resize": (11, _convert_resize),
    "Scatter": (11, _convert_scatter),
    "Slice": (10, _convert_slice),
    "TopK": (10, _convert_top_k),
    "Upsample": (10, _convert_resize),
}


def _find_other_float(model: ir.Model) -> str | None:
    """Describe a value of another float type than float32; None if there is none."""
    for value in ir.iter_values(model):
        if value.dtype in _OTHER_FLOAT_TYPES:
            return f"'{value.name}' is {value.dtype}"
    return None


FLOAT32 = Condition("float32 as the only float type", _find_other_float)


def convert_to_float32(model: ir.Model) -> int:
    """Convert float16, bfloat16 and double of `model` to float32, in place, also in subgraphs.

    Returns the number of typed tensors and attributes that changed. Finite values of initializers
    and attributes are clipped to the range of float32.
    """
    values: list[ir.Value] = [*model.graph.inputs, *model.graph.initializers.values()]
    changes = 0
    for node in ir.iter_all_nodes(model, include_composites=False):
        changes += _convert_attributes(node)
        for attribute in node.attributes.values():
            for graph in ir.get_subgraphs(attribute):
                values += [*graph.inputs, *graph.initializers.values()]
        values += node.outputs
    unique_values = {id(value): value for value in values}
    for value in unique_values.values():
        if value.const_value is not None and value.const_value.dtype in _OTHER_FLOAT_TYPES:
            value.const_value = _convert_tensor(value.const_value)
        if value.dtype in _OTHER_FLOAT_TYPES:
            value.type = ir.TensorType(ir.DataType.FLOAT)
            changes += 1
    return changes


def _convert_attributes(node: ir.Node) -> int:
    """Convert float16, bfloat16 and double in attributes of `node` to float32, in place.

    Concerned are tensors and element types (such as `to` of Cast). Returns the number of changes.
    """
    changes = 0
    for name, attribute in list(node.attributes.items()):
        is_tensor = attribute.type == ir.AttributeType.TENSOR
        is_type = name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT
        if is_tensor and attribute.value.dtype in _OTHER_FLOAT_TYPES:
            tensor = _convert_tensor(attribute.value)
            node.attributes[name] = ir.Attr(name, ir.AttributeType.TENSOR, tensor)
            changes += 1
        elif is_type and attribute.value in _OTHER_FLOAT_TYPES:
            ir.set_attr(node, name, int(ir.DataType.FLOAT))
            changes += 1
    return changes


def _convert_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return `tensor` as float32, with finite values clipped to its range."""
    limit = np.finfo(np.float32).max
    values = tensor.numpy().astype(np.float64)
    clipped = np.where(np.isfinite(values), np.clip(values, -limit, limit), values)
    return ir.tensor(clipped.astype(np.float32), name=tensor.name)
