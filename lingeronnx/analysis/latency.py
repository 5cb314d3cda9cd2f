"""How long an integer graph takes on a chip: `latency`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import words_of
from ..graph import ir
from ..run.integer.runner import target_of
from ..run.part import chip_part
from ..targets import Target, by_name
from ..targets.latency import Latency

__all__ = ["latency"]


def latency(
    graph: str | os.PathLike[str] | ir.Graph,
    platform: str | Target | None = None,
    packer_args: str | Sequence[str] | None = None,
) -> Latency:
    """Return how many cycles one run of an integer graph takes, per layer and in all, its part for the chip alone.

    graph : of `quantize`, whole or the part for the packer. platform : the chip; default the one that the graph was
    made for. packer_args : one line or words; default those that `quantize` prints.
    Figures are of the estimator that the chip's vendor publishes, whose constants are fitted to measured calls, called
    as the chip's executor calls them. What has no price is in `unpriced`.
    Raises ConfigError for a platform of which nothing is known and for a graph that does not pack.
    """
    model = ir.opened(graph)
    target = target_of(model) if platform is None else platform if isinstance(platform, Target) else by_name(platform)
    words = words_of(packer_args) if isinstance(packer_args, str) else packer_args
    return target.latency(chip_part(target.named(model), target), words)
