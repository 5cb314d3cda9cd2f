"""Requirements of an operator on the scales of its tensors: `Op.scale_constraints`.

They are read by scale assignment, scale legalization, equalization and checks. The exponent of a
scale 2^n is n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ..ir import ir
from ..targets import Target

__all__ = [
    "ExponentLookup",
    "ScalePair",
    "Scaling",
    "UnaryFunction",
    "make_fixed_max_exponent",
    "product_max_exponent",
    "share_input_output_scale",
    "share_no_scales",
]

#: Maps a tensor name to the exponent of its scale.
ExponentLookup = Callable[[str], int]

#: An elementwise real function, on float64 arrays.
UnaryFunction = Callable[[np.ndarray], np.ndarray]


class ScalePair(NamedTuple):
    """Two tensors that must share a scale.

    `statistics_of` is the tensor whose statistics determine it, or None for both.
    """

    first: str
    second: str
    statistics_of: str | None = None


def share_input_output_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """Return the constraint that input 0 and output 0 of `node` share a scale, on any `target`."""
    return [ScalePair(ir.input_name(node), ir.output_name(node))]


def share_no_scales(node: ir.Node, target: Target) -> list[ScalePair]:
    """Return no constraint, for any `node`: the output has its own scale."""
    return []


def product_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of a product: the sum of those of its inputs.

    `exponent` gives that of a tensor by name. The product is only shifted right on such targets.
    """
    return exponent(ir.input_name(node, 0)) + exponent(ir.input_name(node, 1))


def make_fixed_max_exponent(fraction_bits: int) -> Callable[[ir.Node, ExponentLookup], int]:
    """Return a function (node, exponent lookup) that always returns `fraction_bits`.

    As `Scaling.max_output_exponent`, that limits the exponent (log2 of the scale) of the output.
    """
    return lambda node, exponent: fraction_bits


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Requirements of a lowering rule on scales; the defaults fit operators that move data.

    Functions take float nodes; `max_output_exponent` and `factor_behavior` also apply to integer
    nodes. A function that is None requires nothing.

    Attributes
    ----------
    shared_scales
        (node, target) -> pairs of tensors that must share a scale; by default input and output.
    factor_behavior
        Effect of a positive factor on the inputs: it "passes" to the output, is "absorbed" by a
        weight, or must not exist ("fixed").
    max_output_exponent
        (node, exponent lookup) -> largest exponent of the output on a target that only shifts
        right, or None for any.
    min_input_exponent
        target -> smallest exponent of a 16-bit input that is read unchanged, or None if inputs
        have 8 bits only.
    inputs_to_coarsen
        (node, target, scale lookup) -> inputs that are more accurate at the scale of the output.
    output_bound
        Smallest magnitude that no output exceeds; statistics beyond it are ignored.
    strict_output_bound
        Magnitude that outputs can never exceed; above 8 bits, no headroom is left beyond it.
    headroom_below
        node -> distance that the output range must extend below the smallest input, or None.
    real_function
        (graph, node, target) -> the elementwise function that determines the scale of the input,
        or None; also None if rounding the input costs more than that function shows.
    supports_zero_points
        (node, target with zero points) -> whether activations may have zero points. None: if the
        integer operator supports them and the rule is no composition.
    """

    shared_scales: Callable[[ir.Node, Target], list[ScalePair]] = share_input_output_scale
    factor_behavior: Literal["passes", "absorbed", "fixed"] = "passes"
    max_output_exponent: Callable[[ir.Node, ExponentLookup], int | None] | None = None
    min_input_exponent: Callable[[Target], int | None] | None = None
    inputs_to_coarsen: Callable[[ir.Node, Target, Callable[[str], float]], list[str]] | None = None
    output_bound: float | None = None
    strict_output_bound: float | None = None
    headroom_below: Callable[[ir.Node], float | None] | None = None
    real_function: Callable[[ir.Model, ir.Node, Target], UnaryFunction | None] | None = None
    supports_zero_points: Callable[[ir.Node, Target], bool] | None = None
