"""What no pass can help with, each with one clear line.

Quantized models, sequences, tensors of no or absurd size.
Runs before anything else, on the user's own graph. A ModelError names the node or the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx

from ...errors import ModelError
from ...graph import ir, operators

#: Elements of one tensor of one sample: above it a run would need more memory than a file can ask for.
MAX_TENSOR_ELEMENTS = 1 << 27

_QUANTIZED_DOMAINS = ("thinker", "linger")
#: What makes numbers of text.
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
_MAX_INFERENCE_BYTES = 1 << 28  # bytes of a model whose shapes are inferred here


def reject_unsupported(model: ir.Model) -> int:
    """Raise ModelError where `model` cannot be quantized whatever is done to it.

    Changes nothing.
    """
    for node in iter_all_nodes(model):
        kind = node.op_type
        if node.domain in _QUANTIZED_DOMAINS:
            raise ModelError(
                f"{kind} {node.name}: this graph is quantized already; give the model it was made "
                "from"
            )
        if kind in operators.QUANTIZATION_OPS or kind.startswith(
            ("QLinear", "QGemm", "QAttention")
        ):
            raise ModelError(
                f"{kind} {node.name}: an operator on integers that is not read; write the "
                "quantized model with "
                "QuantizeLinear and DequantizeLinear, or give the float model"
            )
        if kind.startswith(("Sequence", "Optional")) or kind in (
            "SplitToSequence",
            "ConcatFromSequence",
        ):
            raise ModelError(
                f"{kind} {node.name}: sequences and optional values cannot be quantized; "
                "export the model with plain tensors"
            )
        if kind in ("BatchNormalization", "Dropout") and _is_in_training_mode(node):
            raise ModelError(
                f"{kind} {node.name}: the model is in training mode; call eval() before the export"
            )
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
    for value in model.graph.inputs:
        if value.dtype == ir.DataType.STRING and value.const_value is None:
            raise ModelError(
                f"input '{value.name}' takes text (strings, {_format_shape(value)}), which no "
                "platform computes; "
                f"{_suggest_text_cut(value)}"
            )
    for value in model.graph.outputs:
        if value.dtype == ir.DataType.STRING and (maker := value.producer()) is not None:
            reads = [
                f"'{v.name}', which {maker.op_type} reads"
                for v in maker.inputs
                if v and v.const_value is None
            ]
            raise ModelError(
                f"output '{value.name}' is text, which no platform computes; "
                f"{f'end the model at {reads[0]}' if reads else 'leave it out'}, and look the text "
                "up in your program"
            )
    _check_sizes(model)
    return 0


def _suggest_text_cut(value: ir.Value) -> str:
    """Return what to do about an input that takes text.

    Where the graph has numbers of it, begin there.
    """
    reached, numbers = {value}, list[str]()
    for use in value.uses():
        pending = [use.node]
        while pending:
            node = pending.pop()
            for result in node.outputs:
                if result in reached or not result.name:
                    continue
                reached.add(result)
                if result.dtype != ir.DataType.STRING and node.op_type in _TEXT_ENCODING_OPS:
                    numbers.append(f"'{result.name}' ({node.op_type})")
                else:
                    pending += [u.node for u in result.uses()]
    if not numbers:
        return "turn the text into numbers before the model, and export it without that part"
    return (
        f"its numbers are in {', '.join(numbers)}: cut the model there, and look the words up "
        "before it"
    )


def iter_all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of `model`, of its subgraphs and of the functions of others."""
    yield from ir.iter_nodes_recursive(model.graph)
    for function in model.functions.values():
        if function.domain != ir.FUNCTION_DOMAIN:
            yield from ir.iter_nodes_recursive(function)


def _is_in_training_mode(node: ir.Node) -> bool:
    if node.op_type == "BatchNormalization":
        return bool(ir.get_attr(node, "training_mode", 0))
    mode = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
    return (
        mode is not None
        and bool(mode.any())
        and any(v.uses() or v.is_graph_output() for v in node.outputs)
    )


def _check_sizes(model: ir.Model) -> None:
    """Refuse tensors of more than `MAX_TENSOR_ELEMENTS` elements before anything tries to compute them."""
    stored = sum(
        v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None
    )
    if stored > _MAX_INFERENCE_BYTES:
        return
    try:
        proto = onnx.shape_inference.infer_shapes(
            ir.detach_large_constants(model)[0], data_prop=True
        )
    except Exception:  # onnxruntime will say what is wrong
        return
    for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        dims = [
            d.dim_value if d.HasField("dim_value") else 1 for d in value.type.tensor_type.shape.dim
        ]
        if math.prod(dims) > MAX_TENSOR_ELEMENTS or any(d < 0 for d in dims):
            raise ModelError(
                f"tensor '{value.name}' would have shape {dims}; sizes must be positive, and one "
                "tensor "
                f"may hold {MAX_TENSOR_ELEMENTS} elements"
            )


def _format_shape(value: ir.Value) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in ir.get_shape(value) or ()) + "]"
