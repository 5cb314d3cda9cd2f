"""Outputs that leave the integers wider than the rest, or in float.

And 16 bits in front of a curve.
"""

from __future__ import annotations

from ...errors import ConfigError
from ...graph import ir
from ...plan import Affine
from ...targets import Target
from ..observe.statistics import Stats
from ..partition import Partition
from .scale_policy import ScalePolicy

__all__ = ["apply_output_bits"]


def apply_output_bits(
    tensors: dict[str, Affine],
    partition: Partition,
    stats: Stats,
    policy: ScalePolicy,
    target: Target,
) -> None:
    """Give outputs that leave the integers the width the user wants; "float": no integers at all.

    A wide output needs no scale beyond its accumulator's, which loses nothing. One that a curve
    alone reads, in 16 bits, has that of the curve's table. Raises ConfigError where the output is
    none of these.
    """
    nodes, able = (
        {ir.output_name(node): node for node, _ in partition.integer_nodes},
        partition.wide_outputs(target),
    )
    fine = partition.curve_input_exponents(target)
    for name, bits in policy.out_bits.items():
        if name in fine and bits in target.curve_bits:
            tensors[name] = Affine(2.0 ** fine[name], int(bits))
            continue
        if name not in able:
            more = (
                f", or in {target.curve_bits[0]} bits that a sigmoid or tanh alone reads,"
                if target.curve_bits
                else ""
            )
            raise ConfigError(
                f"out_bits {bits} for tensor '{name}': only a fully connected layer whose output "
                "nothing in integers "
                f"reads{more} can have another width; leave it out"
            )
        if bits not in (*target.out_bits, "float"):
            raise ConfigError(
                f"override {name}: out_bits {bits} on platform {target.name}: an output that "
                "leaves the integers has "
                f"{', '.join(map(str, target.out_bits))} bits there, or float; {bits} are for what "
                "a sigmoid or tanh "
                "alone reads"
            )
        if bits == "float":
            del tensors[name]
            continue
        node = nodes[name]
        exact = tensors[ir.input_name(node)].scale * float(
            tensors[ir.input_name(node, 1)].scales.min()
        )
        observed, setting = stats.get(name), policy.policy_for_tensors([name], int(bits))
        best = setting.scale or (
            exact
            if observed is None or observed.sum_of_squares == 0
            else setting.choose_scale(observed)
        )
        tensors[name] = Affine(setting.scale or min(best, exact), int(bits))
