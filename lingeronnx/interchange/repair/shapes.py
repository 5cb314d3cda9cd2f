"""Shapes of a graph that may be wrong, and their conflicts with the declarations in the file.

Shapes are computed by ONNX shape inference on a copy without large constants and without
value_info, which may be stale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from onnx import ModelProto, TensorProto, ValueInfoProto, helper, shape_inference

from ...ir import float_ops
from ...operators.integer_ops import Format
from ...operators.schemas import register_schemas, to_checkable_model
from .graph_view import GraphView, NodeView, node_label
from .node_semantics import integer_operator

__all__ = ["Dims", "Sizes", "dims_of", "find_shape_conflicts", "infer_shapes", "shapes_conflict"]

#: Constants with more elements than this are dropped for inference: they are no shapes.
_MAX_KEPT_ELEMENTS = 1024
Dims = tuple[int | None, ...]
#: Tensor name -> (ONNX element type, dimensions or None if the rank is unknown).
Sizes = dict[str, tuple[int, Dims | None]]

#: Operators without shape inference: the executor's ArgMax differs from the ONNX one, and the
#: branches of a control flow operator may differ from each other.
_UNINFERRED_OPS = float_ops.CONTROL_FLOW_OPS | {"ArgMax"}
_UNKNOWN_DOMAIN = "lingeronnx.unknown"


def infer_shapes(model: ModelProto) -> Sizes:
    """Return tensor name -> (element type, dimensions) of the main graph.

    A size that is not known is None, and so are the dimensions of an unknown rank. Empty if
    inference fails.
    """
    try:
        register_schemas()
        inferred = shape_inference.infer_shapes(
            to_checkable_model(_strip_for_inference(model)),
            check_type=False,
            strict_mode=False,
            data_prop=True,
        )
    except Exception:  # the graph is too damaged for inference
        return {}
    graph = inferred.graph
    sizes: Sizes = {}
    for tensor in graph.initializer:
        sizes[tensor.name] = (tensor.data_type, tuple(int(dim) for dim in tensor.dims))
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.HasField("tensor_type"):
            sizes.setdefault(value.name, (value.type.tensor_type.elem_type, dims_of(value)))
    return sizes


def _strip_for_inference(model: ModelProto) -> ModelProto:
    """Return a copy of `model` that shape inference can read even if the model is damaged.

    It has no value_info, no declared types of outputs, no values of large constants and no negative
    sizes; operators of `_UNINFERRED_OPS` belong to an unknown domain, so that nothing is inferred
    for them.
    """
    copy = ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    for node in graph.node:
        if node.op_type in _UNINFERRED_OPS and node.domain in ("", "ai.onnx"):
            node.domain = _UNKNOWN_DOMAIN
            del node.attribute[:]
    copy.opset_import.append(helper.make_opsetid(_UNKNOWN_DOMAIN, 1))
    graph.input.extend(model.graph.input)
    for value in graph.input:
        # A negative dimension makes ONNX abort the process.
        if any(dim.dim_value < 0 for dim in value.type.tensor_type.shape.dim):
            value.type.tensor_type.ClearField("shape")
    graph.output.extend(ValueInfoProto(name=value.name) for value in model.graph.output)
    for tensor in model.graph.initializer:
        if all(dim >= 0 for dim in tensor.dims):
            graph.initializer.append(_strip_constant(tensor))
    return copy


def _strip_constant(tensor: TensorProto) -> TensorProto:
    """Return `tensor` itself if it is small and not external, else a copy without values.

    Small: its dimensions sum to `_MAX_KEPT_ELEMENTS` at most, and its raw data to 8 times as many
    bytes.
    """
    is_small = (
        sum(map(abs, tensor.dims)) <= _MAX_KEPT_ELEMENTS
        and len(tensor.raw_data) <= 8 * _MAX_KEPT_ELEMENTS
    )
    if is_small and tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def dims_of(value: ValueInfoProto) -> Dims | None:
    """Return the dimensions that `value` declares, or None if it has no declared shape.

    Symbolic and unknown dimensions are None.
    """
    tensor_type = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor_type.HasField("shape"):
        return None
    return tuple(
        int(dim.dim_value) if dim.HasField("dim_value") else None for dim in tensor_type.shape.dim
    )


def shapes_conflict(first: Dims | None, second: Dims | None) -> bool:
    """Whether the shapes `first` and `second` cannot be equal; unknown (None) fits everything.

    Axis 0 may be the batch; it conflicts only if both sizes are above 1.
    """
    if first is None or second is None:
        return False
    if len(first) != len(second):
        return True
    for axis, (first_dim, second_dim) in enumerate(zip(first, second, strict=True)):
        if first_dim is None or second_dim is None or first_dim == second_dim:
            continue
        if axis or min(first_dim, second_dim) > 1:
            return True
    return False


def find_shape_conflicts(
    model: ModelProto, view: GraphView, undefined_value_info: Sequence[ValueInfoProto] = ()
) -> set[str]:
    """Find conflicts of inferred shapes of `model` with its declarations, weights and operands.

    Parameters
    ----------
    model
        The model of `view`.
    undefined_value_info
        Declarations in the file for undefined tensors, renamed to the tensors that replace them.

    Returns
    -------
    set of str
        One description per conflict; empty if there is none.
    """
    sizes = infer_shapes(model)
    conflicts = set(_strict_inference_errors(model))
    for value in (*model.graph.output, *undefined_value_info):
        inferred = sizes.get(value.name, (0, None))[1]
        if shapes_conflict(dims_of(value), inferred):
            conflicts.add(f"'{value.name}' should be {_format_dims(dims_of(value))}")
    for node in view.main.nodes:
        shapes = [sizes.get(name, (0, None))[1] for name in node.proto.input]
        mismatch = _find_width_mismatch(node, shapes)
        if mismatch is not None:
            conflicts.add(f"{node.label}: {mismatch}")
        if _changes_element_count(node, shapes, sizes):
            conflicts.add(f"{node.label}: number of elements")
    return conflicts


def _operator_name(node: NodeView) -> str:
    """Return the current name of the integer operator `node`; of another node its `op_type`."""
    op = integer_operator(node)
    return op.name if op is not None else node.proto.op_type


def _find_width_mismatch(node: NodeView, shapes: Sequence[Dims | None]) -> str | None:
    """Return "rank" or "width" if the weight of the integer layer `node` does not match its input.

    "rank" if the input lacks the channel axis, or has not as many axes as a convolution's weight;
    "width" if its channels are not those of the weight times the groups. None if they match, sizes
    are unknown, or the operator is no layer. `shapes` has the shapes of the inputs.
    """
    form = integer_operator(node)
    if form is None or form.width_axes is None or len(shapes) < 2:
        return None
    axes, input_shape = form.width_axes, shapes[0]
    weight_shape = _find_weight_shape(form, shapes)
    if input_shape is None or not weight_shape:
        return None
    rank = len(input_shape)
    if not -rank <= axes.input_axis < rank:
        return "rank"
    if form.name.startswith("Conv") and rank != len(weight_shape):
        return "rank"
    groups = _group_count(node) if axes.is_grouped else 1
    input_width, weight_width = input_shape[axes.input_axis], weight_shape[axes.weight_axis]
    if input_width is None or weight_width is None or input_width == weight_width * groups:
        return None
    return "width"


def _group_count(node: NodeView) -> int:
    """Return the attribute `group` of `node`, a convolution; 1 if it is absent."""
    return next((int(item.i) for item in node.proto.attribute if item.name == "group"), 1)


def _find_weight_shape(form: Format, shapes: Sequence[Dims | None]) -> Dims | None:
    """Return the weight's shape, the first known one of `shapes` after input 0.

    None if none is known. Of an operator with states only shapes of two axes count, since lengths
    and states come before the weights.
    """
    for shape in shapes[1:]:
        if shape is not None and (not form.states or len(shape) == 2):
            return shape
    return None


def _changes_element_count(node: NodeView, shapes: Sequence[Dims | None], sizes: Sizes) -> bool:
    """Whether `node` is a Reshape or Flatten whose input and output sizes are known and differ.

    `shapes` has the shapes of the inputs, `sizes` the (type, shape) of tensors by name.
    """
    if _operator_name(node) not in ("Reshape", "Flatten"):
        return False
    if not node.proto.output or not shapes:
        return False
    input_count = _element_count(shapes[0])
    output_count = _element_count(sizes.get(node.proto.output[0], (0, None))[1])
    return input_count is not None and output_count is not None and input_count != output_count


def _element_count(dims: Dims | None) -> int | None:
    """Return the number of elements of a tensor of shape `dims`.

    None if rank or a size is unknown.
    """
    if dims is None or None in dims:
        return None
    return math.prod(dim or 0 for dim in dims)


def _strict_inference_errors(model: ModelProto) -> Iterator[str]:
    """Yield the error of onnx's strict shape inference, if there is one.

    If it names nodes of `model`, the text is "sizes of" the one with the longest label.
    """
    try:
        register_schemas()
        shape_inference.infer_shapes(
            to_checkable_model(_strip_for_inference(model)),
            check_type=False,
            strict_mode=True,
            data_prop=True,
        )
    except Exception as error:
        text = " ".join(str(error).split())
        labels = [node_label(node) for node in model.graph.node if node.name and node.name in text]
        yield f"sizes of {max(labels, key=len)}" if labels else text


def _format_dims(dims: Dims | None) -> str:
    """Format a shape such as "[1,?,3]"; "?" if it is unknown."""
    if dims is None:
        return "?"
    return "[" + ",".join("?" if dim is None else str(dim) for dim in dims) + "]"
