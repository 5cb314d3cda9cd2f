"""Another form of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["RewriteProposal"]


@dataclass(frozen=True)
class RewriteProposal:
    """What computes the same integers as a node.

    description : the form in words. cycles : at the upper end of the range. write : puts it in the
    node's place.
    """

    description: str
    cycles: float
    write: Callable[[], None]
