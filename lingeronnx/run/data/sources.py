"""Where samples come from: files, folders, functions and Python values, each read item by item.

An item is (feeds, labels) as they were given; whether they fit a model is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from ...errors import DataError, wrap_user_errors
from .archives import find_labels, iter_file_items
from .functions import import_function
from .pictures import is_picture

__all__ = ["Item", "ItemSource", "open_items", "resolve_source_path"]

#: What is given for one batch, before it is looked at, and its labels.
Item = tuple[object, object]


class _CalibrationReader(Protocol):
    def get_next(self) -> object: ...


@dataclass
class ItemSource:
    """How to read a source: `create_iterator` returns a fresh iterator where `is_rereadable` is true."""

    create_iterator: Callable[[], Iterator[Item]]
    is_rereadable: bool
    what: str
    is_open_ended: bool = False  # whether nobody knows how many items there are
    head: list[Item] = field(default_factory=list)
    rest: Iterator[Item] | None = None

    def iter_items(self) -> Iterator[Item]:
        """Yield all items; what the user's own code raises becomes a DataError."""
        if self.is_rereadable:
            yield from self._items()
            return
        yield from self.head
        self.rest = self.rest or self._items()
        yield from self.rest

    def peek_items(self) -> Iterator[Item]:
        """Yield the first items without using them up."""
        if self.is_rereadable:
            yield from self._items()
            return
        yield from self.head
        self.rest = self.rest or self._items()
        for item in self.rest:
            self.head.append(item)
            yield item

    def _items(self) -> Iterator[Item]:
        with wrap_user_errors(f"{self.what}: reading it failed", DataError):
            yield from self.create_iterator()


def open_items(
    source: object, what: str, names: Collection[str] = (), by_row: Collection[str] = ()
) -> ItemSource:
    """Return how to read `source`, whatever form it has; DataError where it has none that is known.

    names, by_row : the model's inputs, as `iter_file_items` takes them.
    """
    pair = partial(_split_item, names=names)
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source), what, names, by_row)
    if isinstance(source, np.ndarray):
        return ItemSource(lambda: iter([(source, None)]), True, what)
    if isinstance(source, Mapping):
        return ItemSource(lambda: iter([_separate_labels(source, names)]), True, what)
    if hasattr(source, "get_next"):
        return ItemSource(
            lambda: map(pair, _iter_calibration_reader(source)),
            hasattr(source, "rewind"),
            what,
            True,
        )
    if (
        hasattr(source, "__getitem__")
        and hasattr(source, "__len__")
        and not isinstance(source, Sequence)
    ):
        return ItemSource(
            lambda: (_add_batch_axis(source[index], names) for index in range(len(source))),
            True,
            what,
        )
    if callable(source) and not isinstance(source, Iterable):
        return ItemSource(lambda: map(pair, _check_iterable(source(), what)), True, what, True)
    if isinstance(source, Iterable):
        again = not isinstance(source, Iterator)
        return ItemSource(lambda: map(pair, source), again, what, not hasattr(source, "__len__"))
    raise DataError(
        f"{what}: cannot read a {type(source).__name__}; give a path, arrays or an iterable of "
        "feeds"
    )


def _open_path(text: str, what: str, names: Collection[str], by_row: Collection[str]) -> ItemSource:
    path = Path(text)
    if "\0" in text:
        raise DataError(f"{what}: {text!r} is no path; no file's name holds the character NUL")
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix in (".npz", ".npy"))
        if not files and any(is_picture(f) for f in [*path.iterdir(), *path.glob("*/*")]):
            raise DataError(
                f"{what}: the folder {path} holds pictures: say how the model wants them with "
                "--image-size W,H (--mean"
                ", --std, --layout, --color, --resize) or lingeronnx.Pictures"
            )
        if not files:
            raise DataError(
                f"{what}: the folder {path} holds no .npz or .npy file; numpy.savez writes one"
            )
        return ItemSource(
            lambda: (item for file in files for item in iter_file_items(file, what, names, by_row)),
            True,
            what,
        )
    if path.suffix in (".npz", ".npy"):
        return ItemSource(lambda: iter_file_items(path, what, names, by_row), True, what)
    module, colon, name = text.rpartition(":")
    if colon and module and name.isidentifier():
        function = import_function(module, name, what)
        return ItemSource(
            lambda: map(partial(_split_item, names=names), _check_iterable(function(), what)),
            True,
            what,
            True,
        )
    raise DataError(
        f"{what}: '{text}' is none of these; give an .npz or .npy file, a folder, or "
        "module:function"
    )


def resolve_source_path(source: object) -> object:
    """Return what names a file so that a process in another folder finds it, all else as it is."""
    if not isinstance(source, str | os.PathLike):
        return source
    text = os.fspath(source)
    module, colon, name = text.rpartition(":")
    if colon and module.endswith(".py") and name.isidentifier():
        return f"{os.path.abspath(module)}:{name}"
    return os.path.abspath(text) if Path(text).exists() else source


def _separate_labels(
    arrays: Mapping[str, object], names: Collection[str]
) -> tuple[dict[str, np.ndarray], object]:
    """Take out the labels, no input in `names`.

    Drop arrays that are not numbers (class names and the like).
    """
    key = find_labels(arrays, names)
    feeds = {name: np.asarray(value) for name, value in arrays.items() if name != key}
    numeric = {name: value for name, value in feeds.items() if value.dtype.kind in "fiub"}
    return numeric, None if key is None else arrays[key]


def _check_iterable(items: object, what: str) -> Iterable[object]:
    if isinstance(items, Mapping | np.ndarray):
        return [items]
    if not isinstance(items, Iterable):
        raise DataError(
            f"{what}: the function returned a {type(items).__name__}, not an iterable of feeds; "
            "return a list of {input: array}"
        )
    return items


def _split_item(item: object, names: Collection[str]) -> Item:
    """Return (feeds, labels) of what an iterable yields.

    A dict, an array, or two things as data loaders give them.
    """
    if (
        isinstance(item, tuple | list)
        and len(item) == 2
        and (isinstance(item, tuple) or hasattr(item[0], "shape"))
    ):
        return _separate_labels(item[0], names)[0] if isinstance(item[0], Mapping) else item[
            0
        ], item[1]
    if isinstance(item, tuple | list) and len(item) == 1:
        return item[0], None
    return _separate_labels(item, names) if isinstance(item, Mapping) else (item, None)


def _add_batch_axis(item: object, names: Collection[str]) -> Item:
    """Return (feeds, labels) of one entry of a data set.

    One sample, to which the batch axis is added.
    """
    feeds, label = _split_item(item, names)
    if isinstance(feeds, Mapping):
        feeds = {name: np.asarray(value)[None] for name, value in feeds.items()}
    else:
        feeds = np.asarray(feeds)[None]
    return feeds, None if label is None else np.asarray(label)[None]


def _iter_calibration_reader(reader: _CalibrationReader) -> Iterator[object]:
    """Yield what a calibration data reader, as onnxruntime has them, gives until it gives None."""
    if hasattr(reader, "rewind"):
        reader.rewind()
    while (feeds := reader.get_next()) is not None:
        yield feeds
