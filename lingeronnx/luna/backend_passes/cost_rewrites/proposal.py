"""Proposal of an equivalent form of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["RewriteProposal"]


@dataclass(frozen=True)
class RewriteProposal:
    """An equivalent form of a node.

    Attributes
    ----------
    description
        Description for the report.
    cycles
        Upper bound of its cycles.
    write
        Replaces the node by this form.
    """

    description: str
    cycles: float
    write: Callable[[], None]
