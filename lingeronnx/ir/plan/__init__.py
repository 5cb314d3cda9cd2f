"""Quantization decisions as values: quantization parameters, plans, and sources of constants."""

from .affine import (
    MAX_GROUP_FACTOR,
    Affine,
    ArrayTransform,
    ConstantSource,
    Granularity,
    PerAxis,
    PerGroup,
    PerTensor,
    Rounding,
    identity_transform,
    make_bias_qparams,
    make_grouped_qparams,
)
from .plan import Plan, Transform

__all__ = [
    "MAX_GROUP_FACTOR",
    "Affine",
    "Granularity",
    "PerAxis",
    "PerGroup",
    "PerTensor",
    "Plan",
    "Rounding",
    "ConstantSource",
    "Transform",
    "ArrayTransform",
    "make_bias_qparams",
    "identity_transform",
    "make_grouped_qparams",
]
