"""What was decided about a model, as values: scales, the settings of the user, where constants come from."""

from .plan import Plan, QParams, Transform
from .scale import Scale, counted, real, zero_of
from .source import Source, View, accumulator, along, as_it_is

__all__ = ["Plan", "QParams", "Scale", "Source", "Transform", "View", "accumulator", "along", "as_it_is", "counted",
           "real", "zero_of"]  # fmt: skip
