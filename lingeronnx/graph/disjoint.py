"""Disjoint sets of names (union-find): tensors that share something. Knows nothing of graphs."""

from __future__ import annotations

__all__ = ["DisjointSets"]


class DisjointSets:
    """Disjoint sets of names; a name met for the first time is a set of its own."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the representative of `name`'s set."""
        self._parent.setdefault(name, name)
        while self._parent[name] != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name

    def union(self, first: str, second: str) -> None:
        """Put both into one set."""
        self._parent[self.find(first)] = self.find(second)

    def groups(self) -> dict[str, list[str]]:
        """Return {representative: names}, sets and names in the order they were met."""
        members: dict[str, list[str]] = {}
        for name in self._parent:
            members.setdefault(self.find(name), []).append(name)
        return members
