"""Reject models that no pass can convert: quantized ones, sequences, tensors of invalid size.

Runs before anything else, on the user's graph. The ModelError names the node or the tensor.

Before that, `check_schemas` compares every node with its operator's schema. onnxruntime makes the
same checks when it opens a model, but the passes before its first run already rely on them.
Operators of other domains, and of opsets that onnx does not know, are left to onnxruntime.
"""

from __future__ import annotations

import math

import onnx

from ....common.errors import ModelError
from ....ir import float_ops, ir

#: Maximum number of elements in a tensor of one sample: a small file must not exhaust the memory.
MAX_TENSOR_ELEMENTS = 1 << 27

_QUANTIZED_DOMAINS = ("thinker", "linger")
#: Operators that convert text to numbers.
_TEXT_ENCODING_OPS = (
    "LabelEncoder",
    "CategoryMapper",
    "DictVectorizer",
    "OneHotEncoder",
    "TfIdfVectorizer",
    "Equal",
    "Cast",
    "StringToHashBucket",
    "StringToHashBucketFast",
    "WordpieceTokenizer",
    "BertTokenizer",
)
_MAX_INFERENCE_BYTES = 1 << 28  # maximum size of the constants for which shapes are inferred


def reject_unsupported(model: ir.Model) -> int:
    """Raise ModelError if `model` cannot be quantized in any way; else return 0.

    Changes nothing. Rejected are integer and quantized operators, sequences, optional values and
    training mode; inputs and outputs that are no tensors, are text or have a size of 0; and tensors
    of more than `MAX_TENSOR_ELEMENTS` elements per sample.
    """
    for node in ir.iter_all_nodes(model, include_composites=False):
        _check_operator(node)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            raise ModelError(
                f"'{value.name}' is a {type(value.type).__name__.removesuffix('Type').lower()}; "
                "only plain tensors can be inputs and outputs"
            )
        if 0 in (ir.get_shape(value) or ()):
            raise ModelError(
                f"tensor '{value.name}' has shape {_format_shape(value)}; sizes must be positive"
            )
    _check_text(model)
    _check_sizes(model)
    return 0


def _check_text(model: ir.Model) -> None:
    """Raise ModelError if a graph input or a computed graph output is of type string.

    Inputs that are initializers are accepted.
    """
    for value in model.graph.inputs:
        if value.dtype == ir.DataType.STRING and value.const_value is None:
            raise ModelError(
                f"input '{value.name}' is text (strings, {_format_shape(value)}), which no "
                f"platform supports; {_suggest_text_cut(value)}"
            )
    for value in model.graph.outputs:
        producer = ir.producer(value)
        if value.dtype == ir.DataType.STRING and producer is not None:
            raise ModelError(
                f"output '{value.name}' is text, which no platform supports; "
                f"{_suggest_model_end(producer)}, and look up the text in your application"
            )


def _check_operator(node: ir.Node) -> None:
    """Raise ModelError if the operator of `node` cannot be quantized.

    Rejected are quantized operators, sequences and optional values, and batch norm or dropout in
    training mode.
    """
    op_type = node.op_type
    if node.domain in _QUANTIZED_DOMAINS:
        raise ModelError(
            f"{op_type} {node.name}: this graph is quantized already; give the model it was "
            "created from"
        )
    if op_type in float_ops.QUANTIZATION_OPS or op_type.startswith(
        ("QLinear", "QGemm", "QAttention")
    ):
        raise ModelError(
            f"{op_type} {node.name}: this operator on integers is not supported; write the "
            "quantized model with QuantizeLinear and DequantizeLinear, or give the float model"
        )
    if op_type.startswith(("Sequence", "Optional")) or op_type in (
        "SplitToSequence",
        "ConcatFromSequence",
    ):
        raise ModelError(
            f"{op_type} {node.name}: sequences and optional values cannot be quantized; "
            "export the model with plain tensors"
        )
    if op_type in ("BatchNormalization", "Dropout") and _is_in_training_mode(node):
        raise ModelError(
            f"{op_type} {node.name}: the model is in training mode; call eval() before the export"
        )


def _suggest_model_end(node: ir.Node) -> str:
    """Return advice for a model whose text output `node` computes: "end the model at 'NAME', ...".

    NAME is the first computed input of `node`; the advice is "remove it" if there is none.
    """
    for value in node.inputs:
        if value and value.const_value is None:
            return f"end the model at '{value.name}', the input of {node.op_type}"
    return "remove it"


def _suggest_text_cut(value: ir.Value) -> str:
    """Return advice for a model whose input `value` is text.

    The advice names the first tensors downstream that are no text and come from an operator that
    encodes text as numbers: the model can start there. Without any, it says to convert the text
    before the model.
    """
    visited, encodings = {value}, list[str]()
    stack = [use.node for use in reversed(list(value.uses()))]
    while stack:
        node = stack.pop()
        for result in node.outputs:
            if result in visited or not result.name:
                continue
            visited.add(result)
            if result.dtype != ir.DataType.STRING and node.op_type in _TEXT_ENCODING_OPS:
                encodings.append(f"'{result.name}' ({node.op_type})")
            else:
                stack += [use.node for use in result.uses()]
    if not encodings:
        return "convert the text to numbers before the model, and export it without that part"
    return (
        f"it is converted to numbers in {', '.join(encodings)}: start the model there, and look up "
        "the words before it"
    )


def _is_in_training_mode(node: ir.Node) -> bool:
    """Whether `node`, a BatchNormalization or Dropout, computes as in training.

    A BatchNormalization does with `training_mode`; a Dropout if input 2 is a constant true and an
    output is used.
    """
    if node.op_type == "BatchNormalization":
        return bool(ir.get_attr(node, "training_mode", 0))
    mode = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
    if mode is None or not mode.any():
        return False
    return any(value.uses() or value.is_graph_output() for value in node.outputs)


def _check_sizes(model: ir.Model) -> None:
    """Raise ModelError if `model` would compute a tensor of over `MAX_TENSOR_ELEMENTS` elements.

    Negative sizes are an error too. Unknown sizes count as 1. Nothing is checked if shape inference
    fails, or if the initializers have more than `_MAX_INFERENCE_BYTES`.
    """
    tensors = [value.const_value for value in model.graph.initializers.values()]
    if sum(tensor.nbytes for tensor in tensors if tensor is not None) > _MAX_INFERENCE_BYTES:
        return
    try:
        proto = onnx.shape_inference.infer_shapes(
            ir.detach_large_constants(model)[0], data_prop=True
        )
    except Exception:  # onnxruntime reports the problem
        return
    for info in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        shape = info.type.tensor_type.shape
        dims = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in shape.dim]
        if math.prod(dims) > MAX_TENSOR_ELEMENTS or any(dim < 0 for dim in dims):
            raise ModelError(
                f"tensor '{info.name}' would have shape {dims}; sizes must be positive, and the "
                f"limit per tensor is {MAX_TENSOR_ELEMENTS} elements"
            )


def _format_shape(value: ir.Value) -> str:
    """Format the shape of `value` as "[N, 3, ?]", with ? for unknown sizes.

    "[]" if it is unknown.
    """
    dims = ["?" if dim is None else str(dim) for dim in ir.get_shape(value) or ()]
    return f"[{', '.join(dims)}]"


def check_schemas(model: ir.Model) -> int:
    """Raise ModelError, naming the node, if `model` violates an operator's schema.

    Also for impossible IR and opset versions, and for a graph input without an element type.
    Operators of other domains are not checked. Changes nothing and returns 0.
    """
    _check_versions(model)
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version or 8
    imports = dict(model.opset_imports)
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            imports.setdefault(domain, version)
    context.opset_imports = imports
    for node in ir.iter_all_nodes(model, include_composites=False):
        if not node.domain:
            _check_node(node, context)
    for value in model.graph.inputs:
        if value.type is None or value.dtype in (None, ir.DataType.UNDEFINED):
            raise ModelError(
                f"graph input '{value.name}' has no element type; the file is malformed, export it "
                "again"
            )
    return 0


def _check_versions(model: ir.Model) -> None:
    """Raise ModelError if the IR version or an opset version is negative or at least 2**31."""
    versions = [("ir_version", model.ir_version or 0)]
    versions += [("opset", version) for version in model.opset_imports.values()]
    for label, version in versions:
        if not 0 <= version < 1 << 31:
            raise ModelError(
                f"{label} = {version}: there is no such version; the file is malformed, export it "
                "again"
            )


def _check_node(node: ir.Node, context: onnx.checker.C.CheckerContext) -> None:
    """Raise ModelError if `node` violates the schema of its operator.

    Its subgraphs are not checked, nor nodes with a tensor attribute of more than 1 MiB.
    """
    proto = ir.serialize_node(node)
    if any(len(attribute.t.raw_data) > 1 << 20 for attribute in proto.attribute):
        return  # a large Constant
    for attribute in proto.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            attribute.g.Clear()  # its nodes are checked by themselves
            attribute.g.name = "body"
    try:
        onnx.checker.check_node(proto, context)
    except onnx.checker.ValidationError as error:
        problem = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{node.op_type} {node.name}: {problem}; the file is malformed, export it again"
        ) from error
