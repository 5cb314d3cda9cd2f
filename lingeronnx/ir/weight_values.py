"""Refuse models whose weights contain NaN or infinity.

A constant that a layer multiplies with its input must be finite: every sum with NaN or infinity is
NaN or infinite, for each input, and no integer represents it. A constant that is added (a bias, the
operand of an Add) must not be NaN, but may be infinite: minus infinity hides a class or an element
from a Softmax. Other constants may have any value: masks, bounds of Clip, values of Pad, operands
of Where, Max and Min.

A constant counts as a weight also if it reaches the layer through operators that move or convert
data, or through DequantizeLinear, whose scale must be finite too.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from ..common.errors import ModelError

__all__ = ["check_weight_values"]

_CONTRIB = "com.microsoft"


class _Roles(NamedTuple):
    """Indices of the inputs of an operator that it multiplies with others, and that it adds.

    Constants that are multiplied must be finite, those that are added only not NaN.
    """

    multiplied: tuple[int, ...]
    added: tuple[int, ...] = ()


_WEIGHT_AND_BIAS = _Roles((1,), (2,))
_PRODUCT = _Roles((0, 1))
_SCALED_PRODUCT = _Roles((0, 1), (2,))
_RECURRENT = _Roles((1, 2), (3, 5, 6))
_SUM = _Roles((), (0, 1))
_NO_ROLES = _Roles(())

#: (domain, operator) -> roles of its inputs.
_ROLES: Mapping[tuple[str, str], _Roles] = {
    ("", "Conv"): _WEIGHT_AND_BIAS,
    ("", "ConvTranspose"): _WEIGHT_AND_BIAS,
    ("", "DeformConv"): _Roles((1,), (3,)),
    ("", "MatMul"): _PRODUCT,
    ("", "Gemm"): _SCALED_PRODUCT,
    ("", "Einsum"): _Roles(tuple(range(8))),
    ("", "LSTM"): _Roles((1, 2, 7), (3, 5, 6)),
    ("", "GRU"): _RECURRENT,
    ("", "RNN"): _RECURRENT,
    ("", "BatchNormalization"): _Roles((1, 4), (2, 3)),
    ("", "InstanceNormalization"): _WEIGHT_AND_BIAS,
    ("", "GroupNormalization"): _WEIGHT_AND_BIAS,
    ("", "LayerNormalization"): _WEIGHT_AND_BIAS,
    ("", "RMSNormalization"): _Roles((1,)),
    ("", "SimplifiedLayerNormalization"): _Roles((1,)),
    ("", "Mul"): _SUM,  # a mask may be infinite
    ("", "Div"): _SUM,
    ("", "Add"): _SUM,
    ("", "Sub"): _SUM,
    ("", "Pow"): _SUM,
    ("", "PRelu"): _Roles((1,)),
    ("", "STFT"): _Roles((2,)),
    ("", "QLinearConv"): _Roles((1, 4, 6)),
    ("", "QLinearMatMul"): _Roles((1, 4, 6)),
    ("", "QuantizeLinear"): _Roles((1,)),
    ("", "DequantizeLinear"): _Roles((1,)),
    (_CONTRIB, "FusedConv"): _WEIGHT_AND_BIAS,
    (_CONTRIB, "FusedMatMul"): _PRODUCT,
    (_CONTRIB, "FusedGemm"): _SCALED_PRODUCT,
    (_CONTRIB, "Attention"): _WEIGHT_AND_BIAS,
    (_CONTRIB, "BiasGelu"): _SUM,
    (_CONTRIB, "FastGelu"): _SUM,
    (_CONTRIB, "DynamicQuantizeMatMul"): _Roles((2,), (4,)),
    (_CONTRIB, "MatMulIntegerToFloat"): _Roles((2, 3), (6,)),
    (_CONTRIB, "MatMulNBits"): _Roles((2,), (5,)),
    (_CONTRIB, "SkipLayerNormalization"): _Roles((2,), (3, 4)),
    (_CONTRIB, "QuantizeLinear"): _Roles((1,)),
    (_CONTRIB, "DequantizeLinear"): _Roles((1,)),
}

#: Operators through which all elements of a constant reach a layer: input indices to follow.
_TRANSPARENT_OPS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Cast", "CastLike", "Flatten", "Identity", "Reshape", "Squeeze"), (0,)),
    **dict.fromkeys(("Transpose", "Unsqueeze"), (0,)),
    "DequantizeLinear": (0, 1),
    "QuantizeLinear": (0, 1),
}


#: Element types of floating-point constants.
_FLOAT_TYPES = frozenset(
    number
    for name, number in onnx.TensorProto.DataType.items()
    if "FLOAT" in name or "DOUBLE" in name
)

#: An initializer, or the Constant node that computes it.
_Constant = onnx.TensorProto | onnx.NodeProto
#: Tensor -> its initializer, or the node that computes it; of a graph and those around it.
_Sources = ChainMap[str, _Constant]


class _ConstantUse(NamedTuple):
    """A constant from which an input of a node comes, and whether it may be infinite there."""

    node: onnx.NodeProto
    name: str
    constant: _Constant
    may_be_infinite: bool


def check_weight_values(proto: onnx.ModelProto, label: str = "the model") -> None:
    """Check that the weights of a model are finite, and that nothing that it adds is NaN.

    Parameters
    ----------
    proto
        The model; nodes in subgraphs and functions are checked too.
    label
        Its name in the message.

    Raises
    ------
    ModelError
        With the first tensor, node, position and value at fault.
    """
    # Each constant is checked once as a factor and once as a summand. They are kept, so that no
    # other one gets the id of one that was checked.
    checked: dict[tuple[int, bool], _Constant] = {}
    scopes = (proto.graph, *proto.functions)
    for use in itertools.chain.from_iterable(_iter_uses(scope, ChainMap()) for scope in scopes):
        key = id(use.constant), use.may_be_infinite
        if key not in checked:
            checked[key] = use.constant
            array = _read_floats(use.constant)
            if array is not None:
                _check_array(array, use, label)


def _iter_uses(
    scope: onnx.GraphProto | onnx.FunctionProto, outer: _Sources
) -> Iterator[_ConstantUse]:
    """Yield the constants that nodes of `scope`, and of graphs in it, multiply or add.

    Nodes may also read tensors of `outer`, the graphs around.
    """
    sources = outer.new_child()
    sources.update({tensor.name: tensor for tensor in getattr(scope, "initializer", ())})
    for node in scope.node:
        sources.update(dict.fromkeys(node.output, node))
    for node in scope.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        roles = _ROLES.get((domain, node.op_type), _NO_ROLES)
        for index in (*roles.multiplied, *roles.added):
            name = node.input[index] if index < len(node.input) else ""
            for constant_name, constant in _iter_constants(name, sources):
                yield _ConstantUse(node, constant_name, constant, index in roles.added)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _iter_uses(graph, sources)


def _check_array(array: np.ndarray, use: _ConstantUse, label: str) -> None:
    """Raise ModelError for the first value in `array` that is invalid in its use.

    That is NaN, or infinity unless the constant may be infinite. `label` is the name of the model.
    """
    is_wrong = np.isnan(array) if use.may_be_infinite else ~np.isfinite(array)
    if not is_wrong.any():
        return
    position = tuple(map(int, np.argwhere(is_wrong)[0]))
    location = f" at {list(position)}" if position else ""
    count = int(np.count_nonzero(is_wrong))
    limit = "must not be NaN" if use.may_be_infinite else "must be finite"
    raise ModelError(
        f"cannot use {label}: constant '{use.name}' of {use.node.op_type} "
        f"'{use.node.name or use.node.output[0]}' {limit}, but is {float(array[position])}"
        f"{location} ({count} of {array.size} elements); export a checkpoint without such values"
    )


def _iter_constants(name: str, sources: _Sources) -> Iterator[tuple[str, _Constant]]:
    """Yield (name, constant) for the initializers and Constant nodes that tensor `name` comes from.

    Followed are operators through which all elements of a constant pass, such as Transpose or Cast;
    `sources` maps a name to its initializer or node.
    """
    pending = [name]
    while pending:
        current = pending.pop()
        source = sources.get(current)
        if source is None:
            continue
        if isinstance(source, onnx.TensorProto) or source.op_type == "Constant":
            yield current, source
        elif source.domain in ("", "ai.onnx"):
            indices = _TRANSPARENT_OPS.get(source.op_type, ())
            pending += [source.input[index] for index in indices if index < len(source.input)]


def _read_floats(constant: _Constant) -> np.ndarray | None:
    """Return the values of `constant`, an initializer or Constant node.

    None if they are not floats.
    """
    if isinstance(constant, onnx.NodeProto):
        for attribute in constant.attribute:
            if attribute.name == "value":
                return _read_floats(attribute.t)
            if attribute.name in ("value_float", "value_floats"):
                values = attribute.floats if attribute.name == "value_floats" else attribute.f
                return np.array(values, np.float32)
        return None
    if constant.data_type not in _FLOAT_TYPES:
        return None
    return numpy_helper.to_array(constant)
