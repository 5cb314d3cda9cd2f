"""Cache of the most recent results for graphs, limited by the size of the graphs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ..common.hashing import hash_framed_parts
from ..targets import Target

__all__ = ["ResultCache"]

#: Results that are always kept, and the total size of graphs up to which more are. A result holds a
#: reference to its graph, so the graph's size stands for that of the result.
_MIN_ENTRIES, _MAX_GRAPH_BYTES = 2, 16 * 2**20

_Result = TypeVar("_Result")


class ResultCache(Generic[_Result]):
    """The most recent results, by graph and chip."""

    def __init__(self) -> None:
        """Make an empty cache."""
        self._entries: deque[tuple[bytes, Target | None, _Result, int]] = deque()

    def get_or_compute(
        self, key_bytes: bytes, target: Target | None, compute: Callable[[], _Result]
    ) -> _Result:
        """Return the cached result for this graph and target, computing and storing it on a miss.

        The oldest results are dropped while there are more than two and their keys exceed 16 MiB in
        all. The result is shared by all callers.

        Parameters
        ----------
        key_bytes : bytes
            The serialized graph and everything else that the result depends on.
        target : Target or None
            The chip; compared by identity. None for a result that is the same for all chips.
        compute : callable
            Computes the result.
        """
        digest = hash_framed_parts([key_bytes])
        for entry_digest, entry_target, entry_result, _ in self._entries:
            if entry_digest == digest and entry_target is target:
                return entry_result
        result = compute()
        self._entries.append((digest, target, result, len(key_bytes)))
        while (
            len(self._entries) > _MIN_ENTRIES
            and sum(size_bytes for *_, size_bytes in self._entries) > _MAX_GRAPH_BYTES
        ):
            self._entries.popleft()
        return result
