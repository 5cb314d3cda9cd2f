"""Count multiply-accumulate operations (MACs) of float nodes, whether or not they are quantized.

Convolutions, matrix products, recurrent layers and attention have MACs; other standard operators
have none. The count of an operator of another domain is unknown unless the domain's tables list it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..ir import ir
from ..ir.float_ops import RECURRENT_OPS
from .linear.lowering import LINEAR
from .recurrent.lowering import LSTM

__all__ = ["count_macs", "count_macs_if_known", "get_batch_axis", "is_integer_product"]

_CONTRIB = "com.microsoft"

#: Operators of other domains without MACs.
_ZERO_MAC_OPS: Mapping[str, frozenset[str]] = {
    _CONTRIB: frozenset(
        {
            "BiasAdd",
            "BiasDropout",
            "BiasGelu",
            "BiasSoftmax",
            "BiasSplitGelu",
            "BitmaskBiasDropout",
            "BitmaskDropout",
            "CropAndResize",
            "DequantizeLinear",
            "EmbedLayerNormalization",
            "ExpandDims",
            "FastGelu",
            "GatherND",
            "Gelu",
            "GroupNorm",
            "MaxpoolWithMask",
            "Pad",
            "QLinearAdd",
            "QLinearAveragePool",
            "QLinearConcat",
            "QLinearGlobalAveragePool",
            "QLinearLeakyRelu",
            "QLinearMul",
            "QLinearSigmoid",
            "QLinearSoftmax",
            "QLinearWhere",
            "QuantizeLinear",
            "QuickGelu",
            "Range",
            "RemovePadding",
            "RestorePadding",
            "RotaryEmbedding",
            "SkipGroupNorm",
            "SkipLayerNormalization",
            "SkipSimplifiedLayerNormalization",
            "Tokenizer",
            "Trilu",
            "Unique",
        }
    ),
    "ai.onnx.ml": frozenset(
        {
            "ArrayFeatureExtractor",
            "Binarizer",
            "CastMap",
            "CategoryMapper",
            "DictVectorizer",
            "FeatureVectorizer",
            "Imputer",
            "LabelEncoder",
            "Normalizer",
            "OneHotEncoder",
            "Scaler",
            "TreeEnsemble",
            "TreeEnsembleClassifier",
            "TreeEnsembleRegressor",
            "ZipMap",
        }
    ),
}

#: Standard operators whose MACs do not follow from shapes.
_UNCOUNTED_OPS = {"DFT", "STFT"}


#: Operators that multiply integers, as exporters and other tools write them.
_INTEGER_PRODUCTS = {
    ("", "ConvInteger"),
    ("", "MatMulInteger"),
    ("", "QLinearConv"),
    ("", "QLinearMatMul"),
    (_CONTRIB, "DynamicQuantizeLSTM"),
    (_CONTRIB, "DynamicQuantizeMatMul"),
    (_CONTRIB, "MatMulInteger16"),
    (_CONTRIB, "MatMulIntegerToFloat"),
}


#: Rules that count the products of functions.
_FUNCTION_RULES = {"Linear": LINEAR, "LSTM": LSTM, "GRU": LSTM}


def count_macs(node: ir.Node) -> int:
    """Return the multiply-accumulates (MACs) of `node` for one sample.

    0 if it has none or is unknown.
    """
    return _count_node(node) or 0


def count_macs_if_known(node: ir.Node, needs_static_shapes: bool = False) -> int | None:
    """Return the multiply-accumulates of the float `node` for one sample, or None if unknown.

    They are 0 for operators without products. They are None for standard operators that are not
    counted, for operators of unknown domains, and for control flow with products whose number
    depends on values. A dimension that is not known is a batch, and counts as 1. A known axis 0
    counts, unlike in `count_macs`: it can be any axis, between transposes.

    Parameters
    ----------
    node
        A float node.
    needs_static_shapes
        Return None if a dimension of a product is unknown, because it depends on values.
    """
    if ir.has_subgraphs(node):
        return _count_control_flow(node)
    if needs_static_shapes and _is_counted(node) and not _has_static_shapes(node):
        return None
    macs = _count_node(node)
    return None if macs is None else macs * _count_rows(node)


def get_batch_axis(node: ir.Node) -> int:
    """Return the batch axis of the inputs of `node`: 1 of a recurrent layer of ONNX with layout 0.

    It is 0 of other nodes, and of the functions of recurrent layers.
    """
    is_recurrent = ir.base_op_type(node) in RECURRENT_OPS
    return int(is_recurrent and not node.domain and not ir.get_attr(node, "layout", 0))


def _count_rows(node: ir.Node) -> int:
    """Return the size of the axis that a counter takes for the batch, 1 if it is not known."""
    op_type = ir.base_op_type(node)
    if op_type == "Einsum":
        return 1  # its batch is a letter, at any place
    value = node.inputs[0] if op_type in RECURRENT_OPS else node.outputs[0]
    shape = ir.get_shape(value)
    return int(shape[get_batch_axis(node)] or 1) if shape else 1


def is_integer_product(node: ir.Node) -> bool:
    """Whether the operator of `node` multiplies integers in a float model, as ConvInteger does."""
    return (node.domain, ir.base_op_type(node)) in _INTEGER_PRODUCTS


def _count_node(node: ir.Node) -> int | None:
    """Return the products of `node` itself for one sample, without subgraphs.

    None if they are unknown. Unknown dimensions count as 1. Standard operators, and listed ones of
    other domains, without a counter have 0.
    """
    op_type = ir.base_op_type(node)
    if node.domain == ir.FUNCTION_DOMAIN:
        rule = _FUNCTION_RULES.get(op_type)
        return 0 if rule is None else rule.macs(node)
    count = _MAC_COUNTERS.get((node.domain, op_type))
    if count is not None:
        return count(node)
    if not node.domain:
        return None if op_type in _UNCOUNTED_OPS else 0
    return 0 if op_type in _ZERO_MAC_OPS.get(node.domain, ()) else None


def _is_counted(node: ir.Node) -> bool:
    """Whether there is a counter of products for the operator of `node`, which needs its shapes."""
    if node.domain == ir.FUNCTION_DOMAIN:
        return ir.base_op_type(node) in _FUNCTION_RULES
    return (node.domain, ir.base_op_type(node)) in _MAC_COUNTERS


def _has_static_shapes(node: ir.Node) -> bool:
    """Whether all dimensions of the inputs and of the first output of `node` are known.

    Absent inputs count as known.
    """
    for value in (*node.inputs, node.outputs[0]):
        shape = () if value is None else ir.get_shape(value)
        if shape is None or None in shape:
            return False
    return True


def _count_control_flow(node: ir.Node) -> int | None:
    """Return the products in the subgraphs of `node` (If, Loop, Scan), or None if they are unknown.

    They are 0 if no subgraph has any, and that of a branch if all branches of an If have equally
    many; otherwise they depend on values. A subgraph with unknown dimensions in a product is
    unknown.
    """
    counts: list[int | None] = []
    for attribute in node.attributes.values():
        for graph in ir.get_subgraphs(attribute):
            inner = [count_macs_if_known(each, needs_static_shapes=True) for each in graph]
            known = [count for count in inner if count is not None]
            counts.append(sum(known) if len(known) == len(inner) else None)
    if not any(count != 0 for count in counts):
        return 0
    is_certain = node.op_type == "If" and len(set(counts)) == 1
    return counts[0] if is_certain else None


def _sample_shape(value: ir.Value | None) -> list[int] | None:
    """Return the shape of `value` for one sample, axis 0 (the batch) as 1.

    None if the rank is unknown. Other unknown dimensions are 1 as well. None is also returned for
    an absent value.
    """
    shape = None if value is None else ir.get_shape(value)
    if shape is None:
        return None
    return [1 if axis == 0 or dim is None else int(dim) for axis, dim in enumerate(shape)]


def _full_shape(value: ir.Value | None) -> list[int] | None:
    """Return the shape of `value` with axis 0, unknown dimensions as 1, or None if there is none.

    That is so for an absent value and for an unknown rank.
    """
    shape = None if value is None else ir.get_shape(value)
    return None if shape is None else [int(dim or 1) for dim in shape]


def _make_conv_counter(index: int) -> Callable[[ir.Node], int | None]:
    """Return a counter of the MACs of a convolution whose weights are input `index`.

    They are the output elements of a sample times the elements of a filter; None if a shape is
    unknown.
    """

    def count(node: ir.Node) -> int | None:
        """Return the output elements of a sample times those of a filter, for a convolution `node`.

        None is returned if the rank of output or weight is unknown.
        """
        output, weight = _sample_shape(node.outputs[0]), _full_shape(ir.get_input(node, index))
        if output is None or weight is None:
            return None
        return math.prod(output) * math.prod(weight[1:])

    return count


def _count_conv_transpose(node: ir.Node) -> int | None:
    """Return the input elements of a sample times those of a filter (weight axes from 1).

    None is returned if the rank of either is unknown.
    """
    source, weight = _sample_shape(node.inputs[0]), _full_shape(ir.get_input(node, 1))
    return None if source is None or weight is None else math.prod(source) * math.prod(weight[1:])


def _count_matmul(node: ir.Node) -> int | None:
    """Return the output's elements per sample times the length of the contracted axis of input 0.

    The contracted axis is the last one, or the one before it with `transA`. None if a rank is
    unknown.
    """
    output, left = _sample_shape(node.outputs[0]), _full_shape(node.inputs[0])
    if output is None or left is None:
        return None
    axis = -2 if ir.get_attr(node, "transA", 0) and len(left) > 1 else -1
    return math.prod(output) * (left[axis] if left else 1)


def _count_packed_matmul(node: ir.Node) -> int | None:
    """Return the output elements per sample times attribute K, for a weight packed in few bits.

    None is returned if K is missing or the output's rank unknown.
    """
    output, inner = _sample_shape(node.outputs[0]), ir.get_attr(node, "K")
    return None if output is None or inner is None else math.prod(output) * int(inner)


def _count_recurrent(node: ir.Node) -> int | None:
    """Return the steps times the elements of input and recurrent weights, of an LSTM, GRU or RNN.

    Steps are axis 0 of the input, axis 1 with `layout` 1; an unknown number counts as 1. None if
    the rank of a weight or of the input is unknown.
    """
    sequence = ir.get_shape(node.inputs[0])
    weight_x, weight_h = _full_shape(ir.get_input(node, 1)), _full_shape(ir.get_input(node, 2))
    if sequence is None or weight_x is None or weight_h is None:
        return None
    steps = int(sequence[1 if ir.get_attr(node, "layout", 0) else 0] or 1)
    return steps * (math.prod(weight_x) + math.prod(weight_h))


def _count_einsum(node: ir.Node) -> int | None:
    """Return the product of all dimensions but the batch, times the number of operands less one.

    The batch is the first letter of the first operand that is not constant. None for an unknown
    rank, an ellipsis or a term of another rank.
    """
    terms = str(ir.get_attr(node, "equation", "")).replace(" ", "").partition("->")[0].split(",")
    shapes = [None if value is None else ir.get_shape(value) for value in node.inputs]
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=False):
        if shape is None or len(term) != len(shape) or not term.isalpha():
            return None
        sizes.update({letter: int(size or 1) for letter, size in zip(term, shape, strict=True)})
    batch = ""
    for term, value in zip(terms, node.inputs, strict=False):
        if ir.const_value(value) is None:
            batch = term[0]
            break
    product = math.prod(size for letter, size in sizes.items() if letter != batch)
    return product * (len(terms) - 1)


def _count_attention(node: ir.Node) -> int | None:
    """Return the query-key and score-value products of an attention `node` for one sample.

    Queries, keys and values have shape [N, T, width] or [N, heads, T, width]. None with cached keys
    and values, or another or unknown rank.
    """
    shapes = [_sample_shape(ir.get_input(node, index)) for index in (0, 1, 2)]
    past = any(ir.get_input(node, index) is not None for index in _PAST_INPUTS[node.domain])
    if past or any(shape is None or len(shape) not in (3, 4) for shape in shapes):
        return None
    query, key, value = (shape or [] for shape in shapes)
    width = math.prod(query) // query[-2]  # all heads together
    return query[-2] * key[-2] * (width + width * value[-1] // key[-1])


#: Indices of the cached keys and values of earlier calls.
_PAST_INPUTS: Mapping[str, tuple[int, ...]] = {"": (4, 5), _CONTRIB: (6, 7)}


def _count_projected_attention(node: ir.Node) -> int | None:
    """Return the products of an attention that projects its input [N, steps, width], per sample.

    The one weight is [width, sizes of q, k and v]; `qkv_hidden_sizes` may give the sizes, else they
    are thirds. None with a cache of earlier steps, or for another or unknown rank.
    """
    source, weight = _sample_shape(node.inputs[0]), _full_shape(ir.get_input(node, 1))
    if source is None or weight is None or ir.get_input(node, 4) is not None:
        return None
    if len(source) != 3 or len(weight) != 2:
        return None
    sizes = ir.get_attr(node, "qkv_hidden_sizes") or [weight[1] // 3] * 3
    steps = source[1]
    return steps * source[2] * weight[1] + steps * steps * (int(sizes[0]) + int(sizes[2]))


def _count_linear_model(node: ir.Node) -> int | None:
    """Return the number of elements of attribute `coefficients`, or None without any."""
    return len(ir.get_attr(node, "coefficients") or ()) or None


_MAC_COUNTERS: Mapping[tuple[str, str], Callable[[ir.Node], int | None]] = {
    ("", "Conv"): _make_conv_counter(1),
    ("", "ConvInteger"): _make_conv_counter(1),
    ("", "DeformConv"): _make_conv_counter(1),
    ("", "QLinearConv"): _make_conv_counter(3),
    ("", "ConvTranspose"): _count_conv_transpose,
    ("", "MatMul"): _count_matmul,
    ("", "MatMulInteger"): _count_matmul,
    ("", "QLinearMatMul"): _count_matmul,
    ("", "Gemm"): _count_matmul,
    ("", "Einsum"): _count_einsum,
    ("", "LSTM"): _count_recurrent,
    ("", "GRU"): _count_recurrent,
    ("", "RNN"): _count_recurrent,
    ("", "Attention"): _count_attention,
    (_CONTRIB, "FusedConv"): _make_conv_counter(1),
    (_CONTRIB, "NhwcFusedConv"): _make_conv_counter(1),
    (_CONTRIB, "ConvTransposeWithDynamicPads"): _count_conv_transpose,
    (_CONTRIB, "FusedMatMul"): _count_matmul,
    (_CONTRIB, "FusedMatMulActivation"): _count_matmul,
    (_CONTRIB, "TransposeMatMul"): _count_matmul,
    (_CONTRIB, "FusedGemm"): _count_matmul,
    (_CONTRIB, "GemmFastGelu"): _count_matmul,
    (_CONTRIB, "MatMulIntegerToFloat"): _count_matmul,
    (_CONTRIB, "DynamicQuantizeMatMul"): _count_matmul,
    (_CONTRIB, "MatMulInteger16"): _count_matmul,
    (_CONTRIB, "MatMulNBits"): _count_packed_matmul,
    (_CONTRIB, "MatMulBnb4"): _count_packed_matmul,
    (_CONTRIB, "DynamicQuantizeLSTM"): _count_recurrent,
    (_CONTRIB, "Attention"): _count_projected_attention,
    (_CONTRIB, "MultiHeadAttention"): _count_attention,
    ("ai.onnx.ml", "LinearClassifier"): _count_linear_model,
    ("ai.onnx.ml", "LinearRegressor"): _count_linear_model,
}
