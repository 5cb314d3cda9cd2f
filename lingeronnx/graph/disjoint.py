"""Disjoint sets of names (union-find), for tensors that share a property."""

from __future__ import annotations

__all__ = ["DisjointSets"]


class DisjointSets:
    """Disjoint sets of names. A name that is not in a set yet becomes a set by itself."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the representative of the set of `name`."""
        self._parent.setdefault(name, name)
        while self._parent[name] != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name

    def union(self, first: str, second: str) -> None:
        """Merge the sets of both names."""
        self._parent[self.find(first)] = self.find(second)

    def groups(self) -> dict[str, list[str]]:
        """Return {representative: names}; sets and names are in insertion order."""
        members: dict[str, list[str]] = {}
        for name in self._parent:
            members.setdefault(self.find(name), []).append(name)
        return members
