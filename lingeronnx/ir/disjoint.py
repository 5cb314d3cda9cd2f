"""Disjoint sets of names (union-find), for tensors that share a property."""

from __future__ import annotations

__all__ = ["DisjointSets"]


class DisjointSets:
    """Disjoint sets of names. A name that is not in a set yet becomes a set by itself."""

    def __init__(self) -> None:
        """Start without names."""
        self._parent: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the representative of the set of `name`: the same member for all of its names.

        A new name becomes a set by itself. Shortens the paths on its way; the sets do not change.
        """
        self._parent.setdefault(name, name)
        while self._parent[name] != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name

    def union(self, first: str, second: str) -> None:
        """Merge the sets of both names.

        The representative of the set of `second` becomes that of both.
        """
        self._parent[self.find(first)] = self.find(second)

    def groups(self) -> dict[str, list[str]]:
        """Return {representative: names of its set}, with all names that were ever passed.

        Names are in the order of their first use, sets in the order of their first name.
        """
        members: dict[str, list[str]] = {}
        for name in self._parent:
            members.setdefault(self.find(name), []).append(name)
        return members
