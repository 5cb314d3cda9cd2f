"""The platforms as rows of data: operators with their arithmetic and limits, known faults, what the packer wants.

===============  ===================================================================================================
`row`            the form of a row: `Platform`, and `OpRow` for each of its operators
`arithmetic`     how an operator computes, as values
`limits`         what of an operator a platform takes
`packing`        what the vendor's packer takes
`faults`         what executors do wrong
`generic` ...    the rows, one file each; `luna` holds what the vendor's have in common, `trained` the training side's
===============  ===================================================================================================

Nothing outside this package may compare a platform's name; code asks the row. Adding a chip adds a row; one that is
not in `PLATFORMS` can be given as a value wherever a platform's name is taken.
"""

from __future__ import annotations

from ..errors import ConfigError, nearest
from ._target import OpRow, Platform, rows
from .generic import GENERIC
from .luna.arcs import ARCS
from .luna.faults import Fault
from .luna.packing import Packing
from .luna.venus import VENUS
from .luna.venusa import VENUSA

__all__ = [
    "ARCS", "GENERIC", "PLATFORMS", "VENUS", "VENUSA", "Fault", "OpRow", "Packing", "Platform",
    "platform", "rows",
]  # fmt: skip

PLATFORMS = (GENERIC, VENUS, ARCS, VENUSA)


def platform(name: str | Platform) -> Platform:
    """Return the row called `name`, or the row that is given; ConfigError naming the nearest when there is none."""
    if isinstance(name, Platform):
        return name
    for row in PLATFORMS:
        if row.name == name:
            return row
    names = [row.name for row in PLATFORMS]
    raise ConfigError(f"unknown platform '{name}'{nearest(name, names)}; known: {', '.join(names)}")
