"""Versions of packer and executor after 3.0.4, one file of changes per chip.

Each file lists the changes of every version against the version before it; `delta` applies them to
the chip's target. Nothing outside this package asks for a version: code reads the values of the
target.
"""

from __future__ import annotations

from ...targets._target import Target
from ..arcs import ARCS
from ..venus import VENUS
from ..venusa import VENUSA
from . import arcs, venus, venusa
from .delta import build_versions

__all__ = ["VERSIONS"]

#: The targets of all versions but 3.0.4, which are the chips' own: chip by chip, oldest first.
VERSIONS: tuple[Target, ...] = (
    *build_versions(VENUS, venus.DELTAS),
    *build_versions(ARCS, arcs.DELTAS),
    *build_versions(VENUSA, venusa.DELTAS),
)
