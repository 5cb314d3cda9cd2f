"""Prices of a chip from a board's row: the formulas of a chip that has some, corrected by factors."""

from __future__ import annotations

from dataclasses import replace

from ....errors import ConfigError, nearest
from ... import Target
from ...timing_row import TimingRow
from ..prices import ARCS, Factor, Prices
from .kernels import FAMILIES

__all__ = ["BASES", "prices"]

#: The chips whose formulas a row may correct.
BASES = {"arcs": ARCS}


def prices(row: TimingRow, target: Target) -> Prices:
    """Return the prices that `row` gives `target`; ConfigError for a row of another chip, or of unknown kernels."""
    if row.platform != target.name:
        raise ConfigError(f"the timing file is of {row.platform}, the model is for {target.name}: measure that chip")
    if row.base not in BASES:
        raise ConfigError(f"the timing file corrects formulas of {row.base}; known: {', '.join(BASES)}")
    for family in row.factors:
        if family not in FAMILIES:
            raise ConfigError(
                f"the timing file has no kernels '{family}'{nearest(family, FAMILIES)}; known: {', '.join(FAMILIES)}"
            )
    factors = {family: Factor(factor.start, factor.rest) for family, factor in row.factors.items()}
    return replace(BASES[row.base], factors=factors, node=row.node, spread=row.spread, clock=row.clock_mhz)
