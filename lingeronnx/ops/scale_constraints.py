"""What an operator asks of the scales of its tensors: one value for each lowering rule,
`Op.scaling`.

Scale assignment, legalizing, equalization and checks ask it; no rule knows of them. Of a scale 2^n,
n is the exponent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..graph import ir
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

#: Tensor name -> the exponent of its scale.
ExponentLookup = Callable[[str], int]

#: A function of single real numbers, on float64 arrays.
UnaryFunction = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ScalePair:
    """Two tensors that must share a scale; `statistics_of` names the one whose statistics count,
    None for both.
    """

    first: str
    second: str
    statistics_of: str | None = None


def share_input_output_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """Input and output share one scale."""
    return [ScalePair(ir.input_name(node), ir.output_name(node))]


def share_no_scales(node: ir.Node, target: Target) -> list[ScalePair]:
    """The output has a scale of its own."""
    return []


def product_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """The product of inputs 0 and 1 is shifted right: q_o <= q_x + q_w."""
    return exponent(ir.input_name(node, 0)) + exponent(ir.input_name(node, 1))


def make_fixed_max_exponent(fraction_bits: int) -> Callable[[ir.Node, ExponentLookup], int]:
    """Return the limit of an output that is computed with `fraction_bits` fractional bits."""
    return lambda node, exponent: fraction_bits


def _no_max_exponent(node: ir.Node, exponent: ExponentLookup) -> None:
    return None


def _no_min_exponent(target: Target) -> None:
    return None


def _no_inputs_to_coarsen(
    node: ir.Node, target: Target, scale: Callable[[str], float]
) -> list[str]:
    return []


def _no_extra_headroom(node: ir.Node) -> None:
    return None


def _no_function(model: ir.Model, node: ir.Node, target: Target) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What a rule asks of the scales of a node's tensors. The defaults fit what moves data.

    What depends on the node or the target is a function of it. Nodes are float nodes;
    `max_output_exponent` and `factor_behavior` are asked of integer nodes, too.

    shared_scales : (node, target) -> the pairs of tensors that must share a scale; by default input
    and output. factor_behavior : how a positive factor on the inputs acts: it "passes" to the
    output, is "absorbed" by a weight, or is
        "fixed": there may be none.
    max_output_exponent : (node, exponents of the other tensors) -> the largest exponent of the
    output on a target that shifts
        right only, or None for any.
    min_input_exponent : target -> the least exponent of an input of 16 bits that it reads as it is,
    or None where it takes
        8 bits only.
    inputs_to_coarsen : (node, target, scale of each tensor) -> the inputs that are better held at
    the output's scale. output_bound : the least size that no output exceeds, where there is one:
    statistics ask for no room beyond it. strict_output_bound : a size that no output can ever
    exceed: above 8 bits no room is left for more. headroom_below : node -> how far below its
    inputs' least value the output's range has to reach, or None where it need
        not.
    real_function : (graph, node, target) -> the function of single real numbers that it computes,
    by which its input's scale
        is chosen, or None; None also where rounding the input costs more than that function tells.
    supports_zero_points : (node, target with zero points) -> whether its activations may have some;
    None: where the format takes
        them and the rule is no composition.
    """

    shared_scales: Callable[[ir.Node, Target], list[ScalePair]] = share_input_output_scale
    factor_behavior: Literal["passes", "absorbed", "fixed"] = "passes"
    max_output_exponent: Callable[[ir.Node, ExponentLookup], int | None] = _no_max_exponent
    min_input_exponent: Callable[[Target], int | None] = _no_min_exponent
    inputs_to_coarsen: Callable[[ir.Node, Target, Callable[[str], float]], list[str]] = (
        _no_inputs_to_coarsen
    )
    output_bound: float | None = None
    strict_output_bound: float | None = None
    headroom_below: Callable[[ir.Node], float | None] = _no_extra_headroom
    real_function: Callable[[ir.Model, ir.Node, Target], UnaryFunction | None] = _no_function
    supports_zero_points: Callable[[ir.Node, Target], bool] | None = None
