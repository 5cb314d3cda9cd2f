"""The steps that each effort runs; no other module compares the word.

Files keep the word (`fast`, `normal`, `best`): settings of plans and reports, the command line and
the configuration. Code asks the fields of an `EffortRecipe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .settings import SETTINGS

__all__ = [
    "DRAFT_EFFORT",
    "EFFORTS",
    "RECIPES",
    "EffortRecipe",
    "get_equalizing_effort",
    "refines_weights",
]


class EffortRecipe(NamedTuple):
    """The steps of a quantization that cost time and depend on the effort.

    Parameters
    ----------
    effort
        The word that files, the command line and messages have for it.
    equalizes_channels
        Whether scales of channels move between layers before scales are assigned.
    optimizes_ranges
        Whether factors are chosen that let ranges fill power-of-two scales (mode `q-value`).
    checks_clipping_at_outputs
        Whether tensors are clipped less if their clipping dominates the error of an output.
    refines_weights
        Whether weights are rounded so that the outputs of their layers come closer to float.
    measures_alternatives
        Whether alternatives may be chosen by measurement.
    trials
        Names of the trials (`trials.TRIALS`) in their order.
    trials_after_offload
        Names of the trials that are repeated after layers moved to the host.
    """

    effort: str
    equalizes_channels: bool
    optimizes_ranges: bool
    checks_clipping_at_outputs: bool
    refines_weights: bool
    measures_alternatives: bool
    trials: tuple[str, ...]
    trials_after_offload: tuple[str, ...] = ()

    @property
    def tries_methods(self) -> bool:
        """Whether slow methods of rounding, widths and scales are tried one by one."""
        return "methods" in self.trials

    @property
    def tries_outlier_bits(self) -> bool:
        """Whether more bits for tensors with outliers are tried."""
        return "outliers" in self.trials


#: The efforts by their words, cheapest first.
RECIPES: Mapping[str, EffortRecipe] = MappingProxyType(
    {
        "fast": EffortRecipe(
            effort="fast",
            equalizes_channels=False,
            optimizes_ranges=False,
            checks_clipping_at_outputs=False,
            refines_weights=False,
            measures_alternatives=False,
            trials=("ends",),
        ),
        "normal": EffortRecipe(
            effort="normal",
            equalizes_channels=True,
            optimizes_ranges=True,
            checks_clipping_at_outputs=True,
            refines_weights=True,
            measures_alternatives=True,
            trials=("ends", "joined", "noisiest", "granularity", "outliers", "stages"),
            trials_after_offload=("stages",),
        ),
        "best": EffortRecipe(
            effort="best",
            equalizes_channels=True,
            optimizes_ranges=True,
            checks_clipping_at_outputs=True,
            refines_weights=True,
            measures_alternatives=True,
            trials=("ends", "joined", "methods", "granularity", "outliers", "stages"),
            trials_after_offload=("methods", "stages"),
        ),
    }
)

EFFORTS = tuple(RECIPES)

#: The effort of drafts, whose scales or host nodes are reused by a slower effort.
DRAFT_EFFORT = EFFORTS[0]


def refines_weights(recorded_settings: Mapping[str, object]) -> bool:
    """Whether settings recorded in a file, without those at their defaults, refine weights.

    The settings come from a file, so that the effort may be a word that no release has written.
    """
    effort = recorded_settings.get("effort", SETTINGS["effort"].default)
    return effort not in EFFORTS or RECIPES[str(effort)].refines_weights


def get_equalizing_effort(equalizes_channels: bool) -> str:
    """Return the cheapest effort that equalizes channels, or the cheapest that does not."""
    return next(
        effort
        for effort, recipe in RECIPES.items()
        if recipe.equalizes_channels == equalizes_channels
    )
