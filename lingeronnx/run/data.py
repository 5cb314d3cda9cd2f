"""Calibration and evaluation data: one form for files, folders, functions and Python values.

`Data` yields ``(feeds, labels)`` batches: `feeds` a dict of arrays with the batch on axis 0, `labels` an array or None.
Only one batch is held at a time where the source allows it. Knows the graph inputs it must fit, not the model.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import DataError, LingerOnnxError, nearest
from .pictures import is_picture

__all__ = ["Batch", "Data", "InputSpec", "Progress", "load_function"]

#: What is given for one batch, before it is looked at, and its labels.
Given = tuple[object, object]


class _Reader(Protocol):
    def get_next(self) -> object: ...


Batch = tuple[dict[str, np.ndarray], np.ndarray | None]

#: Called while data are worked through, with (what is being done, samples done, samples in all or None).
Progress = Callable[[str, int, int | None], None]

# Samples held back: the last 4 of every 32 behind the first 512, which are all for calibration: fewer samples cost
# accuracy (a tenth of a point on 480 of 512 pictures).
_PERIOD, _HELD_OF_PERIOD, _FIRST = 32, 4, 512
_MOST_HELD, _HELD_BYTES = 64, 32 << 20
_KEPT_BYTES = 1 << 20  # of first samples


@dataclass(frozen=True)
class InputSpec:
    """A graph input: name, shape with None where any size is accepted, dtype, and the axis that counts the samples.

    Of that axis any size is accepted. An axis of None is an input without samples, such as a setting (a single number):
    it is fed as it is.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: np.dtype
    axis: int | None = 0

    @property
    def batched(self) -> bool:
        """Whether any number of samples may be fed: not where the model fixes the axis to a size other than 1."""
        return self.axis is not None and (not self.shape or self.shape[self.axis] in (None, 1))

    @property
    def single(self) -> bool:
        """Whether the file fixes the number of samples to 1."""
        return self.axis is not None and bool(self.shape) and self.shape[self.axis] == 1  # type: ignore[index]

    def count(self, array: np.ndarray) -> int:
        """Return the number of samples in `array`, 1 where the input has none."""
        return 1 if self.axis is None or array.ndim <= self.axis else int(array.shape[self.axis])

    def samples(self, array: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return the samples start..stop-1 of `array`; the array itself where the input has no samples."""
        return array if self.axis is None else array[(slice(None),) * self.axis + (slice(start, stop),)]

    def joined(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the samples of all `arrays`, one after another; the first array where the input has no samples."""
        return arrays[0] if self.axis is None else np.concatenate(arrays, self.axis)

    def kind(self, array: np.ndarray) -> tuple[object, ...]:
        """Return what two arrays must have in common to be `joined`: the sizes beside the samples, or all values."""
        if self.axis is None:
            return array.shape, array.tobytes()
        return tuple(size for axis, size in enumerate(array.shape) if axis != self.axis)


class Data:
    """Batches from `source`, checked against `inputs`.

    source : a path (.npz, .npy, a folder of them), "module:function" or "file.py:function" returning an iterable, an
        array (single input), a dict of arrays, or an iterable of feeds: arrays or dicts, alone or with labels, as a
        torch DataLoader yields them; `Pictures`; a calibration data reader of onnxruntime (`get_next`); a data set
        whose entries, dicts or (array, label), are one sample each (`__getitem__` and `__len__`).
    optional : inputs that feeds may do without. fixed : {name: value} of inputs that the model had once and that are
        constants now: feeds may hold them still, with that value.
    advice : called with the inputs that a feed lacks; returns what to say of them.
    hold : keep some samples out of `batches` and `peek`, where there are enough, to measure on; see `held`.
    Raises DataError, naming the sample, when names, shapes, types or values do not fit.
    """

    def __init__(
        self,
        source: object,
        inputs: Sequence[InputSpec],
        *,
        limit: int | None = None,
        what: str = "data",
        optional: Collection[str] = (),
        fixed: Mapping[str, np.ndarray] | None = None,
        hold: bool = False,
        advice: Callable[[Sequence[str]], str] | None = None,
    ) -> None:
        self.advice = advice
        self.hold = hold
        self._held: list[dict[str, np.ndarray]] = []
        self._complete = False
        self._head: tuple[int, dict[str, np.ndarray]] = 0, {}
        self.inputs = {spec.name: spec for spec in inputs}
        self.optional = optional
        self.fixed = fixed or {}
        self.limit = limit
        self.what = what
        self.notes: list[str] = []
        self._open = _opener(source, what)
        self._used = False

    @property
    def rereadable(self) -> bool:
        """Whether the batches can be read again."""
        return self._open.again

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` samples, all of them checked. DataError when there is no sample at all."""
        if self._used and not self.rereadable:
            raise DataError(f"{self.what}: a generator can be read once only; pass a list or a function")
        self._used = True
        self._held = []
        count = 0
        for index, (feeds, labels) in enumerate(self._open.read()):
            feeds, total = self._check(feeds, labels, f"{self.what}, item {index}")
            for start in range(0, total, size):
                stop = min(start + size, total)
                if self.limit is not None:
                    stop = min(stop, start + self.limit - count)
                if stop <= start:
                    self._complete = True
                    return
                for first, last, held in self._runs(feeds, count, start, stop):
                    part = {n: self._part(n, array, first, last) for n, array in feeds.items()}
                    if held:  # as copies: a part keeps alive what it is a part of
                        self._held.append({n: array.copy() for n, array in part.items()})
                    else:
                        yield part, None if labels is None else np.asarray(labels)[first:last]
                count += stop - start
        self._complete = True
        if count == 0:
            raise DataError(f"{self.what} holds no sample; give at least one")

    def held(self) -> list[dict[str, np.ndarray]]:
        """Return the samples that were held back, in small batches; none where there were too few to hold any back."""
        if self.hold and not self._complete and (self.rereadable or not self._used):
            for _ in self.batches(_PERIOD):
                pass
        return list(self._held)

    def _runs(self, feeds: Mapping[str, np.ndarray], number: int, start: int, stop: int) -> list[tuple[int, int, bool]]:
        """Return (first, last, whether held back) of the runs of samples start..stop-1; `number` is start's in all."""
        if not self.hold or stop == start:
            return [(start, stop, False)]
        size = sum(array.nbytes // max(self.inputs[n].count(array), 1) for n, array in feeds.items())
        most = min(_MOST_HELD, max(_HELD_OF_PERIOD, _HELD_BYTES // max(size, 1)))
        rows = np.arange(number, number + stop - start)
        turn, place = rows // _PERIOD, rows % _PERIOD - (_PERIOD - _HELD_OF_PERIOD)
        before = _FIRST // _PERIOD
        held = (turn >= before) & (place >= 0) & ((turn - before) * _HELD_OF_PERIOD + place < most)
        cuts = [0, *(np.flatnonzero(np.diff(held)) + 1).tolist(), len(rows)]
        return [(start + a, start + b, bool(held[a])) for a, b in zip(cuts, cuts[1:], strict=False)]

    def peek(self, size: int) -> Iterator[Batch]:
        """Yield one batch of at most `size` samples, of the first items that can be joined; no generator is used up.

        What is looked at stays in memory where it cannot be read again.
        """
        size = size if self.limit is None else min(size, self.limit)
        parts: list[dict[str, np.ndarray]] = []
        found = number = 0
        for index, (feeds, labels) in enumerate(self._open.peek()):
            feeds, total = self._check(feeds, labels, f"{self.what}, item {index}")
            if parts and any(self.inputs[n].kind(a) != self.inputs[n].kind(parts[0][n]) for n, a in feeds.items()):
                break
            for first, last, held in self._runs(feeds, number, 0, total):
                count = 0 if held else min(size - found, last - first)
                if count:
                    parts.append({n: self._part(n, array, first, first + count) for n, array in feeds.items()})
                    found += count
            number += total
            if found >= size or not all(self.inputs[n].batched or self.inputs[n].axis is None for n in feeds):
                break
        if not parts:
            raise DataError(f"{self.what} holds no sample; give at least one")
        yield {n: self.inputs[n].joined([part[n] for part in parts]) for n in parts[0]}, None

    def pieces(self, feeds: Mapping[str, np.ndarray], size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield `feeds` in pieces of at most `size` samples; as a whole where an input fixes their number."""
        counts = [self.inputs[name].count(array) for name, array in feeds.items() if self.inputs[name].batched]
        if not counts or len(counts) < sum(self.inputs[name].axis is not None for name in feeds):
            yield dict(feeds)
            return
        for start in range(0, max(counts), size):
            yield {name: self._part(name, array, start, start + size) for name, array in feeds.items()}

    def first(self, size: int = 1) -> dict[str, np.ndarray]:
        """Return the first samples as one batch, at most `size`; no generator is used up.

        They are kept where they are small, so that files are not read again and again.
        """
        if size > self._head[0]:
            found = next(iter(self.peek(size)))[0]
            if sum(array.nbytes for array in found.values()) > _KEPT_BYTES:
                return found
            self._head = size, found
        return {name: self._part(name, array, 0, size) for name, array in self._head[1].items()}

    def _check(self, feeds: object, labels: object, where: str) -> tuple[dict[str, np.ndarray], int]:
        feeds = self._without_fixed(self._named(feeds, where), where)
        for name in feeds:
            if name not in self.inputs:
                raise DataError(
                    f"{where}: '{name}' is not an input of the model{nearest(name, self.inputs)}; "
                    f"inputs are {', '.join(self.inputs)}"
                )
        missing = [name for name in self.inputs if name not in feeds and name not in self.optional]
        if missing:
            advice = "" if self.advice is None else self.advice(missing)
            advice = f"; {advice}" if advice else ""
            raise DataError(
                f"{where}: no array for input '{missing[0]}'; found {', '.join(feeds) or 'nothing'}{advice}"
            )
        checked = {
            name: self._fit(_array(feeds[name], name, where), spec, where)
            for name, spec in self.inputs.items()
            if name in feeds
        }
        sizes = {n: self.inputs[n].count(array) for n, array in checked.items() if self.inputs[n].batched}
        sizes = sizes or {"input": 1}
        if labels is not None:
            sizes["labels"] = len(np.atleast_1d(_array(labels, "labels", where)))
        if len(set(sizes.values())) > 1:
            raise DataError(f"{where}: batch sizes differ ({', '.join(f'{n} {s}' for n, s in sizes.items())})")
        return checked, next(iter(sizes.values()))

    def _without_fixed(self, feeds: Mapping[str, object], where: str) -> dict[str, object]:
        """Drop the inputs that are constants of the model now; DataError where the data hold another value."""
        for name in feeds.keys() & self.fixed.keys():
            given, held = np.asarray(feeds[name]), self.fixed[name]
            if (
                given.dtype.kind not in "fiub"
                or given.size % max(held.size, 1)
                or not np.all(given.reshape(-1, held.size) == held.reshape(-1))
            ):
                raise DataError(f"{where}: input '{name}' is fixed at {_short(held)}; the data hold {_short(given)}")
        return {name: value for name, value in feeds.items() if name not in self.fixed}

    def _part(self, name: str, array: np.ndarray, start: int, stop: int) -> np.ndarray:
        return self.inputs[name].samples(array, start, stop) if self.inputs[name].batched else array

    def _named(self, feeds: object, where: str) -> dict[str, object]:
        """Give a bare array, or the only array of a file, the name of the only input."""
        if isinstance(feeds, Mapping):
            known = {str(name): value for name, value in feeds.items()}
            wanted = [name for name in self.inputs if name not in self.optional]
            if len(wanted) == 1 and len(known) == 1 and not set(known) & set(self.inputs):
                only = wanted[0]
                if not isinstance(next(iter(feeds.values())), np.ndarray):
                    return known
                self._note(f"{self.what}: array '{next(iter(known))}' is fed to input '{only}'")
                return {only: next(iter(known.values()))}
            return known
        wanted = [name for name in self.inputs if name not in self.optional]
        if len(wanted) == 1:
            return {wanted[0]: feeds}
        raise DataError(f"{where}: a bare array for a model with inputs {', '.join(self.inputs)}; give a dict by name")

    def _fit(self, array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
        if array.dtype.kind not in "fiub":
            raise DataError(f"{where}: input '{spec.name}' has dtype {array.dtype}; numbers are needed")
        if spec.shape is not None:
            fits = array.ndim == len(spec.shape) and all(
                axis == spec.axis or want is None or have == want
                for axis, (have, want) in enumerate(zip(array.shape, spec.shape, strict=True))
            )
            if not fits:
                want = ["N" if axis == spec.axis else "?" if d is None else d for axis, d in enumerate(spec.shape)]
                hint = "; add the batch axis" if array.ndim == len(spec.shape) - 1 else ""
                raise DataError(
                    f"{where}: input '{spec.name}' has shape {list(array.shape)}, the model takes "
                    f"[{', '.join(map(str, want))}]{hint}"
                )
        if array.ndim == 0 and spec.axis is not None:
            raise DataError(f"{where}: input '{spec.name}' is a single number; the batch axis is missing")
        if spec.dtype.kind == "f" and array.dtype.kind == "f":
            array = array.astype(spec.dtype, copy=False)
            if not np.isfinite(array).all():
                bad = int(np.argwhere(~np.isfinite(array))[0][spec.axis]) if spec.axis is not None else 0
                raise DataError(f"{where}: input '{spec.name}' holds NaN or infinity in sample {bad}; clean the data")
        elif spec.dtype.kind == "f" and array.dtype not in (np.dtype(np.int8), np.dtype(np.int16)):
            self._note(f"{self.what}: input '{spec.name}' is {array.dtype}, converted to {spec.dtype} as it is")
            array = array.astype(spec.dtype)
        elif spec.dtype.kind in "iu" and array.dtype != spec.dtype:
            cast = array.astype(spec.dtype)
            if array.dtype.kind == "f" or not np.array_equal(cast, array):
                raise DataError(f"{where}: input '{spec.name}' is {array.dtype}, the model takes {spec.dtype}")
            array = cast
        return array

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass
class _Opener:
    """How to read a source: `make` returns a fresh iterator where `again` is true."""

    make: Callable[[], Iterator[Given]]
    again: bool
    what: str
    head: list[Given] = field(default_factory=list)
    rest: Iterator[Given] | None = None

    def read(self) -> Iterator[Given]:
        """Yield all items; what the user's own code raises becomes a DataError."""
        if self.again:
            yield from self._items()
            return
        yield from self.head
        self.rest = self.rest or self._items()
        yield from self.rest

    def peek(self) -> Iterator[Given]:
        """Yield the first items without using them up."""
        if self.again:
            yield from self._items()
            return
        yield from self.head
        self.rest = self.rest or self._items()
        for item in self.rest:
            self.head.append(item)
            yield item

    def _items(self) -> Iterator[Given]:
        try:
            yield from self.make()
        except LingerOnnxError:
            raise
        except Exception as error:
            raise DataError(f"{self.what}: reading it failed ({type(error).__name__}: {error})") from error


def _opener(source: object, what: str) -> _Opener:
    if isinstance(source, str | os.PathLike):
        return _from_text(os.fspath(source), what)
    if isinstance(source, np.ndarray):
        return _Opener(lambda: iter([(source, None)]), True, what)
    if isinstance(source, Mapping):
        return _Opener(lambda: iter([_split(source)]), True, what)
    if hasattr(source, "get_next"):
        return _Opener(lambda: _read_out(source), hasattr(source, "rewind"), what)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Sequence):
        return _Opener(lambda: (_one_sample(source[index]) for index in range(len(source))), True, what)
    if callable(source) and not isinstance(source, Iterable):
        return _Opener(lambda: map(_pair, _iterate(source(), what)), True, what)
    if isinstance(source, Iterable):
        again = not isinstance(source, Iterator)
        return _Opener(lambda: map(_pair, source), again, what)
    raise DataError(f"{what}: cannot read a {type(source).__name__}; give a path, arrays or an iterable of feeds")


def _from_text(text: str, what: str) -> _Opener:
    path = Path(text)
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix in (".npz", ".npy"))
        if not files and any(is_picture(f) for f in [*path.iterdir(), *path.glob("*/*")]):
            raise DataError(
                f"{what}: the folder {path} holds pictures: say how the model wants them with --image-size W,H (--mean"
                ", --std, --layout, --color, --resize) or lingeronnx.Pictures"
            )
        if not files:
            raise DataError(f"{what}: the folder {path} holds no .npz or .npy file")
        return _Opener(lambda: (_load(file, what) for file in files), True, what)
    if path.suffix in (".npz", ".npy"):
        return _Opener(lambda: iter([_load(path, what)]), True, what)
    module, colon, name = text.rpartition(":")
    if colon and module and name.isidentifier():
        function = _function(module, name, what)
        return _Opener(lambda: map(_pair, _iterate(function(), what)), True, what)
    raise DataError(f"{what}: '{text}' is no .npz or .npy file, no folder and no module:function")


def _load(path: Path, what: str) -> Given:
    try:
        with path.open("rb") as file:  # opened here: numpy leaves the files of damaged archives open
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded, None
            with loaded:
                return _split({key: loaded[key] for key in loaded.files})
    except OSError as error:
        raise DataError(f"{what}: cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # numpy raises ValueError, zipfile.BadZipFile, EOFError, KeyError ... for damaged files
        raise DataError(
            f"{what}: {path} is not a readable {path.suffix} file ({str(error).splitlines()[0]})"
        ) from error


def _short(array: np.ndarray) -> str:
    flat = array.reshape(-1)[:4].tolist()
    return str(flat[0]) if array.size == 1 else f"{flat} ...".replace("] ...", ", ...]" if array.size > 4 else "]")


def _split(arrays: Mapping[str, object]) -> tuple[dict[str, np.ndarray], object]:
    """Take the labels out; drop arrays that are not numbers (class names and the like)."""
    key = next((key for key in ("labels", "label") if key in arrays), None)
    feeds = {name: np.asarray(value) for name, value in arrays.items() if name != key}
    numeric = {name: value for name, value in feeds.items() if value.dtype.kind in "fiub"}
    return numeric, None if key is None else arrays[key]


def _array(value: object, name: str, where: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise DataError(f"{where}: '{name}' is no array of one shape ({error})") from error


def load_function(text: str, what: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` or ``file.py:function`` names; DataError when there is none."""
    module, colon, name = text.rpartition(":")
    if not (colon and module and name.isidentifier()):
        raise DataError(f"{what}: '{text}' is not module:function or file.py:function")
    return _function(module, name, what)


def _function(module: str, name: str, what: str) -> Callable[[], object]:
    try:
        if module.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(module).stem, module)
            if spec is None or spec.loader is None or not Path(module).is_file():
                raise DataError(f"{what}: no file {module}")
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
        else:
            loaded = importlib.import_module(module)
    except DataError:
        raise
    except Exception as error:  # whatever the user's module raises while it is imported
        raise DataError(f"{what}: importing {module} failed ({type(error).__name__}: {error})") from error
    function = getattr(loaded, name, None)
    if not callable(function):
        names = [n for n, v in vars(loaded).items() if inspect.isfunction(v)]
        raise DataError(f"{what}: {module} has no function '{name}'{nearest(name, names)}")
    return function


def _iterate(items: object, what: str) -> Iterable[object]:
    if isinstance(items, Mapping | np.ndarray):
        return [items]
    if not isinstance(items, Iterable):
        raise DataError(f"{what}: the function returned a {type(items).__name__}, not an iterable of feeds")
    return items


def _pair(item: object) -> Given:
    """Return (feeds, labels) of what an iterable yields: a dict, an array, or two things as data loaders give them."""
    if isinstance(item, tuple | list) and len(item) == 2 and (isinstance(item, tuple) or hasattr(item[0], "shape")):
        return _split(item[0])[0] if isinstance(item[0], Mapping) else item[0], item[1]
    if isinstance(item, tuple | list) and len(item) == 1:
        return item[0], None
    return _split(item) if isinstance(item, Mapping) else (item, None)


def _one_sample(item: object) -> Given:
    """Return (feeds, labels) of one entry of a data set: one sample, to which the batch axis is added."""
    feeds, label = _pair(item)
    if isinstance(feeds, Mapping):
        feeds = {name: np.asarray(value)[None] for name, value in feeds.items()}
    else:
        feeds = np.asarray(feeds)[None]
    return feeds, None if label is None else np.asarray(label)[None]


def _read_out(reader: _Reader) -> Iterator[Given]:
    """Yield what a calibration data reader, as onnxruntime has them, gives until it gives None."""
    if hasattr(reader, "rewind"):
        reader.rewind()
    while (feeds := reader.get_next()) is not None:
        yield _pair(feeds)
