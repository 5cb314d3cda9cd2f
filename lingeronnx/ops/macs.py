"""Multiply-accumulates of float nodes, quantizable or not, so that nothing is left in float unseen.

Counted is what sums products: convolutions, products of matrices, recurrent layers, attention. All
else of the standard counts as nothing. Operators of other domains are counted where they are known;
of the others the count is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..graph import ir
from .layers.linear import LINEAR
from .layers.recurrent import LSTM

__all__ = ["count_macs", "count_macs_if_known"]

_CONTRIB = "com.microsoft"

#: Operators of other domains that sum no products: over elements, over rows, moves, trees.
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

#: Operators of the standard whose sums are not counted by shapes.
_UNCOUNTED_OPS = {"DFT", "STFT"}


def count_macs(node: ir.Node) -> int:
    """Return the multiply-accumulates of one sample; 0 for operators that sum no products, or that
    are not known.
    """
    return count_macs_if_known(node) or 0


def count_macs_if_known(node: ir.Node) -> int | None:
    """Return the multiply-accumulates of one sample; None where nobody knows."""
    kind = ir.base_op_type(node)
    if node.domain == ir.FUNCTION_DOMAIN:
        own = {"Linear": LINEAR, "LSTM": LSTM, "GRU": LSTM}.get(kind)
        return 0 if own is None else own.macs(node)
    count = _MAC_COUNTERS.get((node.domain, kind))
    if count is not None:
        return count(node)
    if not node.domain:
        return None if kind in _UNCOUNTED_OPS else 0
    return 0 if kind in _ZERO_MAC_OPS.get(node.domain, ()) else None


# ---- by shapes ---------------------------------------------------------------------------------------------------


def _sample_shape(value: ir.Value | None) -> list[int] | None:
    """Return the shape of one sample with the batch as 1, and 1 for sizes that are not known; None
    without a shape.
    """
    dims = None if value is None else ir.get_shape(value)
    return (
        None if dims is None else [1 if i == 0 or d is None else int(d) for i, d in enumerate(dims)]
    )


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _full_shape(value: ir.Value | None) -> list[int] | None:
    """Return a shape with all of axis 0, and 1 for sizes that are not known; None without a
    shape.
    """
    dims = None if value is None else ir.get_shape(value)
    return None if dims is None else [int(d or 1) for d in dims]


def _make_conv_counter(index: int) -> Callable[[ir.Node], int | None]:
    """Outputs times the size of the kernel, which is input `index`."""

    def count(node: ir.Node) -> int | None:
        result, weight = _sample_shape(node.outputs[0]), _full_shape(_input(node, index))
        return (
            None if result is None or weight is None else math.prod(result) * math.prod(weight[1:])
        )

    return count


def _count_conv_transpose(node: ir.Node) -> int | None:
    source, weight = _sample_shape(node.inputs[0]), _full_shape(_input(node, 1))
    return None if source is None or weight is None else math.prod(source) * math.prod(weight[1:])


def _count_matmul(node: ir.Node) -> int | None:
    """Outputs times the length of what is summed over."""
    result, left = _sample_shape(node.outputs[0]), _full_shape(node.inputs[0])
    if result is None or left is None:
        return None
    axis = -2 if ir.get_attr(node, "transA", 0) and len(left) > 1 else -1
    return math.prod(result) * (left[axis] if left else 1)


def _count_packed_matmul(node: ir.Node) -> int | None:
    """Of a weight in few bits: its sizes stand in attributes."""
    result, inner = _sample_shape(node.outputs[0]), ir.get_attr(node, "K")
    return None if result is None or inner is None else math.prod(result) * int(inner)


def _count_recurrent(node: ir.Node) -> int | None:
    source, weights = (
        ir.get_shape(node.inputs[0]),
        [_full_shape(_input(node, index)) for index in (1, 2)],
    )
    if source is None or None in weights:
        return None
    length = int(source[1 if ir.get_attr(node, "layout", 0) else 0] or 1)
    return length * sum(math.prod(weight) for weight in weights if weight is not None)


def _count_einsum(node: ir.Node) -> int | None:
    """The product of all sizes, for each operand but the first; an axis that counts samples is
    1.
    """
    terms = str(ir.get_attr(node, "equation", "")).replace(" ", "").partition("->")[0].split(",")
    shapes = [None if value is None else ir.get_shape(value) for value in node.inputs]
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=False):
        if shape is None or len(term) != len(shape) or not term.isalpha():
            return None
        sizes.update({letter: int(size or 1) for letter, size in zip(term, shape, strict=True)})
    batch = next(
        (
            term[0]
            for term, value in zip(terms, node.inputs, strict=False)
            if ir.const_value(value) is None
        ),
        "",
    )
    return math.prod(size for letter, size in sizes.items() if letter != batch) * (len(terms) - 1)


def _count_attention(node: ir.Node) -> int | None:
    """Queries by keys, and what comes of that by values: [N, T, width] or [N, heads, T, width];
    nothing of the past.
    """
    shapes = [_sample_shape(_input(node, index)) for index in (0, 1, 2)]
    past = any(_input(node, index) is not None for index in _PAST_INPUTS[node.domain])
    if past or any(shape is None or len(shape) not in (3, 4) for shape in shapes):
        return None
    query, key, value = (shape or [] for shape in shapes)
    width = math.prod(query) // query[-2]  # of all heads
    return query[-2] * key[-2] * (width + width * value[-1] // key[-1])


#: The places of the keys and values of earlier calls.
_PAST_INPUTS: Mapping[str, tuple[int, ...]] = {"": (4, 5), _CONTRIB: (6, 7)}


def _count_projected_attention(node: ir.Node) -> int | None:
    """One weight for queries, keys and values [width, 3 * inner] before the attention."""
    source, weight = _sample_shape(node.inputs[0]), _full_shape(_input(node, 1))
    if (
        source is None
        or len(source) != 3
        or weight is None
        or len(weight) != 2
        or _input(node, 4) is not None
    ):
        return None
    sizes = ir.get_attr(node, "qkv_hidden_sizes") or [weight[1] // 3] * 3
    steps = source[1]
    return steps * source[2] * weight[1] + steps * steps * (int(sizes[0]) + int(sizes[2]))


def _count_linear_model(node: ir.Node) -> int | None:
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
