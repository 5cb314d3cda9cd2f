"""Record the items of one pass over a source, so that every later pass yields the same samples.

A shuffled or augmenting source yields other samples whenever it is read again, but the float model
and the integer graph must be compared on the same ones. Items are read from the source once, as far
as they are needed. Their arrays stay in memory up to a limit, and above that in a temporary file
without a name, which the operating system removes with the last reference to it, however the
process ends.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO, NamedTuple

import numpy as np

from ...common.errors import DataError

__all__ = ["RecordedItems"]

_MAX_MEMORY_BYTES = 64 << 20  # bytes of arrays in memory; others are in the file

#: Feeds and labels of one item, unchecked.
_Item = tuple[object, object]


class _SpilledArray(NamedTuple):
    """An array in the temporary file. offset : of its first byte."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype


class RecordedItems:
    """Items of a source that is read at most once.

    Iterating yields the recorded items, then reads on where no pass has been yet. Several passes
    may be interleaved. Arrays are copied, because a source may reuse their memory.

    Parameters
    ----------
    create_iterator
        Returns an iterator over all items; called once.
    label
        Description of the data, for messages.
    max_memory_bytes
        Limit of the arrays in memory.
    """

    def __init__(
        self,
        create_iterator: Callable[[], Iterator[_Item]],
        label: str,
        max_memory_bytes: int = _MAX_MEMORY_BYTES,
    ) -> None:
        """Store the arguments; nothing is read yet.

        `create_iterator` is called at the first read; `label` is for messages. Arrays beyond
        `max_memory_bytes` bytes in total go to a temporary file.
        """
        self._create_iterator = create_iterator
        self._label = label
        self._free_bytes = max_memory_bytes
        self._iterator: Iterator[_Item] | None = None
        self._error: Exception | None = None
        self._is_complete = False
        self._items: list[_Item] = []
        self._file: IO[bytes] | None = None
        self._file_bytes = 0

    def __iter__(self) -> Iterator[_Item]:
        """Yield all items, recorded ones first; items are read from the source only once.

        Raises
        ------
        DataError
            If the temporary file cannot be written. Errors of the source are raised by every pass
            that reaches them.
        """
        index = 0
        while index < len(self._items) or self._record_next():
            feeds, labels = self._items[index]
            yield self._load(feeds), self._load(labels)
            index += 1

    def _record_next(self) -> bool:
        """Read one more item from the source and record it; return whether there was one.

        An exception of the source is passed on, and raised again by every later call.
        """
        if self._error is not None:
            raise self._error
        if self._is_complete:
            return False
        if self._iterator is None:
            self._iterator = self._create_iterator()
        try:
            feeds, labels = next(self._iterator)
            self._items.append((self._store(feeds), self._store(labels)))
        except StopIteration:
            self._is_complete = True
            self._iterator = None  # ends the worker processes of a data loader
            return False
        except Exception as error:
            self._error = error
            raise
        return True

    def _store(self, value: object) -> object:
        """Return the recorded form of an array or of a mapping of arrays.

        It is a copy in memory; arrays that exceed the memory that is left are written to the
        temporary file and represented by `_SpilledArray`. Other objects are returned unchanged.
        """
        if isinstance(value, Mapping):
            return {name: self._store(entry) for name, entry in value.items()}
        array = value
        if not isinstance(value, np.ndarray) and hasattr(value, "__array__"):
            with suppress(Exception):  # such as a tensor on a GPU; the check of the item reports it
                array = np.asarray(value)
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            return value
        if array.nbytes > self._free_bytes:
            return self._spill(array)
        self._free_bytes -= array.nbytes
        return array.copy()

    def _spill(self, array: np.ndarray) -> _SpilledArray:
        """Append an array to the temporary file and return its position.

        Raises DataError if the file cannot be written.
        """
        spilled = _SpilledArray(self._file_bytes, array.shape, array.dtype)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="lingeronnx-")  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            self._file.seek(spilled.offset)
            self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            self._file.flush()
        except OSError as error:
            total_bytes = self._file_bytes + array.nbytes
            raise DataError(
                f"{self._label}: storing {total_bytes / 1e9:.3g} GB of samples in a temporary file "
                f"in {tempfile.gettempdir()} failed ({error.strerror or error}); set TMPDIR to a "
                "folder with more space, or use fewer samples with --limit"
            ) from error
        self._file_bytes += array.nbytes
        return spilled

    def _load(self, value: object) -> object:
        """Return the original of a recorded value, with the arrays of the file read back.

        Raises DataError if the file ended early.
        """
        if isinstance(value, dict):
            return {name: self._load(entry) for name, entry in value.items()}
        if not isinstance(value, _SpilledArray):
            return value
        assert self._file is not None
        array = np.empty(value.shape, value.dtype)
        self._file.seek(value.offset)
        if self._file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:  # type: ignore[attr-defined]
            raise DataError(f"{self._label}: the temporary file of samples ended early; run again")
        return array
