"""Sources of samples: files, folders, functions and Python values, each read item by item.

An item is (feeds, labels) as the user provides them; it is not checked against a model here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeGuard

import numpy as np

from ...common.errors import DataError, wrap_user_errors
from .archives import iter_file_items
from .functions import import_function
from .inputs import find_labels
from .pictures import Pictures, is_picture
from .recording import RecordedItems

__all__ = ["Item", "ItemSource", "open_items", "resolve_source_path"]

#: Unchecked feeds of one batch, and its labels.
Item = tuple[object, object]


class _CalibrationReader(Protocol):
    """A calibration data reader as onnxruntime's quantizer uses it."""

    def get_next(self) -> object:
        """Return the feeds of the next batch by input name, or None at the end."""
        ...


class _Dataset(Protocol):
    """A dataset whose entries have an index, as torch has them."""

    def __len__(self) -> int:
        """Return the number of entries."""
        ...

    def __getitem__(self, index: int) -> object:
        """Return entry `index`, one sample: an array, a dict, or a pair with its label."""
        ...


@dataclass
class ItemSource:
    """A source of items.

    create_iterator : returns an iterator over all items, a fresh one if `is_rereadable`. label :
    description for messages. is_open_ended : whether the number of items is not known. is_stable :
    whether every pass yields the same items, as files and arrays do. head, remaining : of a source
    that can be read only once, the items read ahead, and the iterator of the others.
    """

    create_iterator: Callable[[], Iterator[Item]]
    is_rereadable: bool
    label: str
    is_open_ended: bool = False
    is_stable: bool = False
    head: list[Item] = field(default_factory=list)
    remaining: Iterator[Item] | None = None

    def iter_items(self, consumes: bool = True) -> Iterator[Item]:
        """Yield all items.

        Of a source that can be read only once, these are the items that are not consumed yet. They
        are consumed, or, without `consumes`, kept in `head`.
        """
        if self.is_rereadable:
            yield from self._items()
            return
        yield from self.head
        self.remaining = self.remaining or self._items()
        for item in self.remaining:
            if not consumes:
                self.head.append(item)
            yield item

    def record(self) -> ItemSource:
        """Return a source that reads this one once and yields the same items in every pass.

        Returns this source itself if its items are the same in every pass anyway.
        """
        if self.is_stable:
            return self
        recorded = RecordedItems(self.iter_items, self.label)
        return ItemSource(recorded.__iter__, True, self.label, self.is_open_ended, is_stable=True)

    def _items(self) -> Iterator[Item]:
        """Yield all items of a fresh iterator.

        Exceptions of the user's code become DataError.
        """
        message = f"{self.label}: reading it failed"
        with wrap_user_errors(message, DataError):
            iterator = self.create_iterator()
        while True:
            with wrap_user_errors(message, DataError):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item


def open_items(
    source: object, label: str, names: Collection[str] = (), by_row: Collection[str] = ()
) -> ItemSource:
    """Open a source of any supported form; items are read when they are iterated over.

    Parameters
    ----------
    source
        A path, arrays, a function, or an iterable of feeds. An `ItemSource` is returned unchanged.
    label
        Description of the data, for messages.
    names
        Inputs of the model, which are never labels.
    by_row
        Inputs with one sample after another on axis 0, which files may be read by; else empty.

    Raises
    ------
    DataError
        If the form is not supported, or a path or function does not exist.
    """
    split = partial(_split_item, names=names)
    if isinstance(source, ItemSource):
        return source
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source), label, names, by_row)
    if isinstance(source, np.ndarray):
        return ItemSource(lambda: iter([(source, None)]), True, label, is_stable=True)
    if isinstance(source, Mapping):
        return ItemSource(
            lambda: iter([_separate_labels(source, names)]), True, label, is_stable=True
        )
    if hasattr(source, "get_next"):
        return ItemSource(
            lambda: _map_items(split, _iter_calibration_reader(source)),
            hasattr(source, "rewind"),
            label,
            True,
        )
    if _is_map_style_dataset(source):
        return ItemSource(lambda: _iter_dataset(source, names), True, label)
    if callable(source) and not isinstance(source, Iterable):
        return ItemSource(
            lambda: _map_items(split, _check_iterable(source(), label)), True, label, True
        )
    if isinstance(source, Iterable):
        is_rereadable = not isinstance(source, Iterator)
        is_open_ended = not hasattr(source, "__len__")
        is_stable = isinstance(source, list | tuple | Pictures)
        return ItemSource(
            lambda: _map_items(split, source), is_rereadable, label, is_open_ended, is_stable
        )
    raise DataError(
        f"{label}: cannot read a {type(source).__name__}; pass a path, arrays or an iterable of "
        "feeds"
    )


def _is_map_style_dataset(source: object) -> TypeGuard[_Dataset]:
    """Whether `source` has a length and indexed entries, as torch datasets, and is no sequence."""
    has_entries = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return has_entries and not isinstance(source, Sequence)


def _iter_dataset(dataset: _Dataset, names: Collection[str]) -> Iterator[Item]:
    """Yield the entries of a dataset as (feeds, labels) of one sample each, with a batch axis 0.

    Labels are the second of a pair, or the array "labels" or "label" of a dict unless it is in
    `names`, the inputs of the model; else None.
    """
    for index in range(len(dataset)):
        yield _add_batch_axis(dataset[index], names)


def _open_path(
    text: str, label: str, names: Collection[str], by_row: Collection[str]
) -> ItemSource:
    """Open the files of a folder, an .npz or .npy file, or "module:function", tried in this order.

    `names` are the model's inputs, `by_row` those with samples on axis 0. Raises DataError if
    `text` is none of these.
    """
    path = Path(text)
    if "\0" in text:
        raise DataError(f"{label}: {text!r} is not a path; a file name cannot contain NUL")
    if path.is_dir():
        files = _list_folder(path, label)
        return ItemSource(
            lambda: _iter_files(files, label, names, by_row), True, label, is_stable=True
        )
    if path.suffix in (".npz", ".npy"):
        return ItemSource(
            lambda: iter_file_items(path, label, names, by_row), True, label, is_stable=True
        )
    module, separator, name = text.rpartition(":")
    if separator and module and name.isidentifier():
        function = import_function(module, name, label)
        split = partial(_split_item, names=names)
        return ItemSource(
            lambda: _map_items(split, _check_iterable(function(), label)), True, label, True
        )
    raise DataError(
        f"{label}: cannot interpret '{text}'; expected an .npz or .npy file, a folder, or "
        "module:function"
    )


def _list_folder(path: Path, label: str) -> list[Path]:
    """Return the .npz and .npy files of a folder, sorted; subfolders are not read.

    Raises DataError if there are none; the message differs if there are pictures.
    """
    files = sorted(file for file in path.iterdir() if file.suffix in (".npz", ".npy"))
    if files:
        return files
    if any(is_picture(file) for file in [*path.iterdir(), *path.glob("*/*")]):
        raise DataError(
            f"{label}: the folder {path} contains pictures; specify their format with "
            "--image-size W,H (--mean, --std, --layout, --color, --resize) or lingeronnx.Pictures"
        )
    raise DataError(f"{label}: the folder {path} has no .npz or .npy file; numpy.savez writes one")


def _iter_files(
    files: Sequence[Path], label: str, names: Collection[str], by_row: Collection[str]
) -> Iterator[Item]:
    """Yield (feeds, labels) of all files in order, of a large one in several items.

    Labels are the array "labels" or else "label" of an .npz archive, None without one. `names`, the
    model's inputs, are never labels; `by_row` are those with samples on axis 0.
    """
    for file in files:
        yield from iter_file_items(file, label, names, by_row)


def resolve_source_path(source: object) -> object:
    """Return `source` with an absolute path, so that other processes find the file.

    Applies to existing files and folders, and to file.py in "file.py:function". Other sources are
    returned unchanged.
    """
    if not isinstance(source, str | os.PathLike):
        return source
    text = os.fspath(source)
    module, separator, name = text.rpartition(":")
    if separator and module.endswith(".py") and name.isidentifier():
        return f"{os.path.abspath(module)}:{name}"
    return os.path.abspath(text) if Path(text).exists() else source


def _map_items(convert: Callable[[object], Item], items: Iterable[object]) -> Iterator[Item]:
    """Yield `convert(item)` for each item.

    Unlike with `map`, a StopIteration that `convert` raises is an error (RuntimeError),
    and does not end the data.
    """
    for item in items:
        yield convert(item)


def _separate_labels(
    arrays: Mapping[str, object], names: Collection[str]
) -> tuple[dict[str, np.ndarray], object]:
    """Split arrays by name into feeds and labels.

    Labels are the array "labels" or else "label", returned unchecked; None if there is neither.
    `names`, the inputs of the model, are never labels. Feeds are all other arrays that are numeric,
    whether in `names` or not.
    """
    labels_name = find_labels(arrays, names)
    feeds = {name: np.asarray(value) for name, value in arrays.items() if name != labels_name}
    numeric = {name: value for name, value in feeds.items() if value.dtype.kind in "fiub"}
    return numeric, None if labels_name is None else arrays[labels_name]


def _check_iterable(items: object, label: str) -> Iterable[object]:
    """Return the result of a user's function as an iterable of feeds.

    A single mapping or array becomes a list of one. Raises DataError if it is not iterable.
    """
    if isinstance(items, Mapping | np.ndarray):
        return [items]
    if not isinstance(items, Iterable):
        raise DataError(
            f"{label}: the function returned a {type(items).__name__}, not an iterable of feeds; "
            "return a list of {input: array}"
        )
    return items


def _split_item(item: object, names: Collection[str]) -> Item:
    """Return (feeds, labels) of an item: a dict, an array, or a pair as data loaders yield it.

    Labels are the second of a pair, or the array "labels" or "label" of a dict unless `names`, the
    model's inputs, contain it; else None.
    """
    if isinstance(item, tuple | list) and len(item) == 2:
        feeds, labels = item
        if isinstance(item, tuple) or hasattr(feeds, "shape"):
            if isinstance(feeds, Mapping):
                feeds, _ = _separate_labels(feeds, names)
            return feeds, labels
    if isinstance(item, tuple | list) and len(item) == 1:
        return item[0], None
    return _separate_labels(item, names) if isinstance(item, Mapping) else (item, None)


def _add_batch_axis(item: object, names: Collection[str]) -> Item:
    """Return (feeds, labels) of one dataset entry, each array with a new axis 0 of size 1.

    Feeds are an array, or name -> array; labels are None if the entry has none.
    """
    feeds, label = _split_item(item, names)
    if isinstance(feeds, Mapping):
        feeds = {name: np.asarray(value)[None] for name, value in feeds.items()}
    else:
        feeds = np.asarray(feeds)[None]
    return feeds, None if label is None else np.asarray(label)[None]


def _iter_calibration_reader(reader: _CalibrationReader) -> Iterator[object]:
    """Yield the feeds of an onnxruntime calibration data reader until it returns None.

    It is rewound first, if it can be.
    """
    if hasattr(reader, "rewind"):
        reader.rewind()
    while (feeds := reader.get_next()) is not None:
        yield feeds
