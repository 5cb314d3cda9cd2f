"""What was decided about a model, as values: how tensors are held, the user's settings, where constants come from."""

from .affine import LARGEST_FACTOR, Affine, Granularity, PerAxis, PerGroup, PerTensor, Rounding, in_groups
from .plan import Plan, Transform
from .source import Source, View, accumulator, as_it_is

__all__ = ["LARGEST_FACTOR", "Affine", "Granularity", "PerAxis", "PerGroup", "PerTensor", "Plan", "Rounding", "Source",
           "Transform", "View", "accumulator", "as_it_is", "in_groups"]  # fmt: skip
