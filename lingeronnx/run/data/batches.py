"""Calibration and evaluation data: one form for files, folders, functions and Python values.

`Data` yields ``(feeds, labels)`` batches: `feeds` a dict of arrays with the batch on axis 0,
`labels` an array or None. Only one batch is held at a time where the source allows it. Knows the
graph inputs it must fit, not the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from ...errors import DataError, suggest_nearest, wrap_user_errors
from .inputs import Batch, InputSpec
from .sources import Item, open_items

__all__ = ["MAX_UNBOUNDED_SAMPLES", "Data"]

#: Samples for calibration from a source that may have no end, without --limit: more tell nothing new.
MAX_UNBOUNDED_SAMPLES = 10_000

# Samples held back: the last 4 of every 32 behind the first 512, which are all for calibration:
# fewer samples cost accuracy (a tenth of a point on 480 of 512 pictures).
_PERIOD, _HELD_OUT_PER_PERIOD, _FIRST_HELD_OUT_INDEX = 32, 4, 512
_MAX_HELD_OUT, _MAX_HELD_OUT_BYTES = 64, 32 << 20
_MAX_CACHED_BYTES = 1 << 20  # of first samples
_MAX_EMPTY_ITEMS = (
    1000  # items without a sample, one after another: a source that yields nothing else has no end
)


class Data:
    """Batches from `source`, checked against `inputs`.

    source : a path (.npz, .npy, a folder of them), "module:function" or "file.py:function"
    returning an iterable, an
        array (single input), a dict of arrays, or an iterable of feeds: arrays or dicts, alone or
        with labels, as a torch DataLoader yields them; `Pictures`; a calibration data reader of
        onnxruntime (`get_next`); a data set whose entries, dicts or (array, label), are one sample
        each (`__getitem__` and `__len__`).
    optional : inputs that feeds may do without. fixed : {name: value} of inputs that the model had
    once and that are
        constants now: feeds may hold them still, with that value.
    advice : called with the inputs that a feed lacks; returns what to say of them.
    most : samples that a source which does not tell how many it has may yield without `limit`;
    default any number. hold_out : keep some samples out of `batches` and `peek_batch`, where there
    are enough, to measure on; see `held`. Raises DataError, naming the sample, when names, shapes,
    types or values do not fit.
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
        hold_out: bool = False,
        most: int | None = None,
        advice: Callable[[Sequence[str]], str] | None = None,
    ) -> None:
        self.advice = advice
        self.hold_out = hold_out
        self._most = most
        self._held: list[dict[str, np.ndarray]] = []
        self._complete = False
        self._head: tuple[int, dict[str, np.ndarray]] = 0, {}
        self.inputs = {spec.name: spec for spec in inputs}
        self.optional = optional
        self.fixed = fixed or {}
        self.limit = limit
        self.what = what
        self.notes: list[str] = []
        by_row = [spec.name for spec in inputs if spec.accepts_any_batch and spec.axis == 0]
        counted = sum(spec.axis is not None for spec in inputs)
        self._open = open_items(
            source, what, list(self.inputs), by_row if len(by_row) == counted else ()
        )
        self._used = False

    @property
    def is_rereadable(self) -> bool:
        """Whether the batches can be read again."""
        return self._open.is_rereadable

    @property
    def is_open_ended(self) -> bool:
        """Whether nobody knows how many items there are, as of a generator."""
        return self._open.is_open_ended

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` samples, all of them checked.

        DataError when there is no sample at all.
        """
        if self._used and not self.is_rereadable:
            raise DataError(
                f"{self.what}: a generator can be read once only; pass a list or a function"
            )
        self._used = True
        self._held = []
        count = 0
        for feeds, labels, total in self._iter_checked(self._open.iter_items()):
            for start in range(0, total, size):
                stop = min(start + size, total)
                if self.limit is not None:
                    stop = min(stop, start + self.limit - count)
                if stop <= start:
                    self._complete = True
                    return
                for first, last, held in self._split_held_out(feeds, count, start, stop):
                    part = {
                        n: self._slice_input(n, array, first, last) for n, array in feeds.items()
                    }
                    if held:  # as copies: a part keeps alive what it is a part of
                        self._held.append({n: array.copy() for n, array in part.items()})
                    else:
                        yield (
                            part,
                            None
                            if labels is None
                            else np.atleast_1d(np.asarray(labels))[first:last],
                        )
                count += stop - start
                if (
                    self._most is not None
                    and count > self._most
                    and self.limit is None
                    and self.is_open_ended
                ):
                    raise DataError(
                        f"{self.what}: {self._most} samples were read and no end is known; say how "
                        "many with --limit"
                    )
        self._complete = True
        if count == 0:
            raise DataError(f"{self.what} holds no sample; give at least one")

    def held(self) -> list[dict[str, np.ndarray]]:
        """Return the samples that were held back, in small batches.

        None where there were too few to hold any back.
        """
        if self.hold_out and not self._complete and (self.is_rereadable or not self._used):
            for _ in self.batches(_PERIOD):
                pass
        return list(self._held)

    def _split_held_out(
        self, feeds: Mapping[str, np.ndarray], number: int, start: int, stop: int
    ) -> list[tuple[int, int, bool]]:
        """Return (first, last, whether held back) of the runs of samples start..stop-1.

        `number` is start's in all.
        """
        if not self.hold_out or stop == start:
            return [(start, stop, False)]
        size = sum(
            array.nbytes // max(self.inputs[n].count_samples(array), 1)
            for n, array in feeds.items()
        )
        most = min(_MAX_HELD_OUT, max(_HELD_OUT_PER_PERIOD, _MAX_HELD_OUT_BYTES // max(size, 1)))
        rows = np.arange(number, number + stop - start)
        turn, place = rows // _PERIOD, rows % _PERIOD - (_PERIOD - _HELD_OUT_PER_PERIOD)
        before = _FIRST_HELD_OUT_INDEX // _PERIOD
        held = (
            (turn >= before)
            & (place >= 0)
            & ((turn - before) * _HELD_OUT_PER_PERIOD + place < most)
        )
        cuts = [0, *(np.flatnonzero(np.diff(held)) + 1).tolist(), len(rows)]
        return [(start + a, start + b, bool(held[a])) for a, b in zip(cuts, cuts[1:], strict=False)]

    def peek_batch(self, size: int) -> Iterator[Batch]:
        """Yield one batch of at most `size` samples, of the first items that can be joined.

        No generator is used up.
        What is looked at stays in memory where it cannot be read again.
        """
        size = size if self.limit is None else min(size, self.limit)
        parts: list[dict[str, np.ndarray]] = []
        found = number = 0
        for feeds, _, total in self._iter_checked(self._open.peek_items()):
            if parts and any(
                self.inputs[n].kind(a) != self.inputs[n].kind(parts[0][n]) for n, a in feeds.items()
            ):
                break
            for first, last, held in self._split_held_out(feeds, number, 0, total):
                count = 0 if held else min(size - found, last - first)
                if count:
                    parts.append(
                        {
                            n: self._slice_input(n, array, first, first + count)
                            for n, array in feeds.items()
                        }
                    )
                    found += count
            number += total
            if found >= size or not all(
                self.inputs[n].accepts_any_batch or self.inputs[n].axis is None for n in feeds
            ):
                break
        if not parts:
            raise DataError(f"{self.what} holds no sample; give at least one")
        yield {n: self.inputs[n].concatenate([part[n] for part in parts]) for n in parts[0]}, None

    def split_feeds(
        self, feeds: Mapping[str, np.ndarray], size: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield `feeds` in pieces of at most `size` samples.

        As a whole where an input fixes their number.
        """
        counts = [
            self.inputs[name].count_samples(array)
            for name, array in feeds.items()
            if self.inputs[name].accepts_any_batch
        ]
        if not counts or len(counts) < sum(self.inputs[name].axis is not None for name in feeds):
            yield dict(feeds)
            return
        for start in range(0, max(counts), size):
            yield {
                name: self._slice_input(name, array, start, start + size)
                for name, array in feeds.items()
            }

    def first(self, size: int = 1) -> dict[str, np.ndarray]:
        """Return the first samples as one batch, at most `size`; no generator is used up.

        They are kept where they are small, so that files are not read again and again.
        """
        if size > self._head[0]:
            found = next(iter(self.peek_batch(size)))[0]
            if sum(array.nbytes for array in found.values()) > _MAX_CACHED_BYTES:
                return found
            self._head = size, found
        return {
            name: self._slice_input(name, array, 0, size) for name, array in self._head[1].items()
        }

    def _iter_checked(
        self, items: Iterator[Item]
    ) -> Iterator[tuple[dict[str, np.ndarray], object, int]]:
        """Yield (feeds, labels, samples) of `items`.

        DataError where one does not fit, or all are empty.
        """
        empty = 0
        for index, (given, labels) in enumerate(items):
            feeds, total = self._check_item(given, labels, f"{self.what}, item {index}")
            empty = 0 if total else empty + 1
            if empty > _MAX_EMPTY_ITEMS:
                raise DataError(
                    f"{self.what}: {empty} items in a row hold no sample; give some with samples, "
                    "or an end"
                )
            yield feeds, labels, total

    def _check_item(
        self, feeds: object, labels: object, where: str
    ) -> tuple[dict[str, np.ndarray], int]:
        feeds = self._without_fixed(self._name_feeds(feeds, where), where)
        for name in feeds:
            if name not in self.inputs:
                raise DataError(
                    f"{where}: '{name}' is not an input of the "
                    f"model{suggest_nearest(name, self.inputs)}; "
                    f"inputs are {', '.join(self.inputs)}"
                )
        missing = [name for name in self.inputs if name not in feeds and name not in self.optional]
        if missing:
            advice = self._suggest_for_missing(missing)
            advice = f"; {advice}" if advice else ""
            raise DataError(
                f"{where}: no array for input '{missing[0]}'; found "
                f"{', '.join(feeds) or 'nothing'}{advice}"
            )
        checked = {
            name: self._fit_or_raise(_to_array(feeds[name], name, where), spec, where)
            for name, spec in self.inputs.items()
            if name in feeds
        }
        sizes = {
            n: self.inputs[n].count_samples(array)
            for n, array in checked.items()
            if self.inputs[n].accepts_any_batch
        }
        sizes = sizes or {"input": 1}
        if labels is not None:
            sizes["labels"] = len(np.atleast_1d(_to_array(labels, "labels", where)))
        if len(set(sizes.values())) > 1:
            given = [name for name in sizes if name != "labels"]
            fewest = min(given, key=sizes.__getitem__)
            alone = self._suggest_for_fewer_samples(
                fewest, [name for name in given if sizes[name] == sizes[fewest]]
            )
            raise DataError(
                f"{where}: batch sizes differ "
                f"({', '.join(f'{n} {s}' for n, s in sizes.items())}){alone}; give all "
                "inputs as many samples, or say of one that it has none: quantize with "
                f"--batch-axis {fewest}=none"
            )
        return checked, next(iter(sizes.values()))

    def _suggest_for_fewer_samples(self, name: str, likewise: Sequence[str]) -> str:
        """Return what else to do with the input `name`, of fewer samples than others, and with those like it."""
        advice = (
            f"leave '{name}' out: it begins at zeros"
            if name in self.optional
            else self._suggest_for_missing(likewise)
        )
        return f"; {advice}" if advice else ""

    def _suggest_for_missing(self, missing: Sequence[str]) -> str:
        """Return what to say of inputs without an array for each sample."""
        return "" if self.advice is None or not missing else self.advice(missing)

    def _without_fixed(self, feeds: Mapping[str, object], where: str) -> dict[str, object]:
        """Drop the inputs that are constants of the model now.

        DataError where the data hold another value.
        """
        for name in feeds.keys() & self.fixed.keys():
            given, held = np.asarray(feeds[name]), self.fixed[name]
            if (
                given.dtype.kind not in "fiub"
                or given.size % max(held.size, 1)
                or not np.all(given.reshape(-1, held.size) == held.reshape(-1))
            ):
                raise DataError(
                    f"{where}: input '{name}' is fixed at {_format_array(held)}; the data hold "
                    f"{_format_array(given)}"
                )
        return {name: value for name, value in feeds.items() if name not in self.fixed}

    def _slice_input(self, name: str, array: np.ndarray, start: int, stop: int) -> np.ndarray:
        return (
            self.inputs[name].slice_samples(array, start, stop)
            if self.inputs[name].accepts_any_batch
            else array
        )

    def _name_feeds(self, feeds: object, where: str) -> dict[str, object]:
        """Give a bare array, or the only array of a file, the name of the only input."""
        if isinstance(feeds, Mapping):
            known = {str(name): value for name, value in feeds.items()}
            wanted = [name for name in self.inputs if name not in self.optional]
            if len(wanted) == 1 and len(known) == 1 and not set(known) & set(self.inputs):
                only = wanted[0]
                if not isinstance(next(iter(feeds.values())), np.ndarray):
                    return known
                self._add_note(f"{self.what}: array '{next(iter(known))}' is fed to input '{only}'")
                return {only: next(iter(known.values()))}
            return known
        wanted = [name for name in self.inputs if name not in self.optional]
        if len(wanted) == 1:
            return {wanted[0]: feeds}
        raise DataError(
            f"{where}: a bare array for a model with inputs {', '.join(self.inputs)}; give a dict "
            "by name"
        )

    def _fit_or_raise(self, array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
        """Return what `_fit_to_spec` returns.

        DataError also for an array larger than the memory, as a view may be.
        """
        try:
            return self._fit_to_spec(array, spec, where)
        except MemoryError as error:
            raise DataError(
                f"{where}: input '{spec.name}' has shape {list(array.shape)}, "
                f"{array.nbytes / 1e9:.0f} GB; "
                "give smaller batches"
            ) from error

    def _fit_to_spec(self, array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
        if array.dtype.kind not in "fiub":
            raise DataError(
                f"{where}: input '{spec.name}' has dtype {array.dtype}; numbers are needed"
            )
        if spec.shape is not None:
            fits = array.ndim == len(spec.shape) and all(
                axis == spec.axis or want is None or have == want
                for axis, (have, want) in enumerate(zip(array.shape, spec.shape, strict=True))
            )
            if not fits:
                want = [
                    "N" if axis == spec.axis else "?" if d is None else d
                    for axis, d in enumerate(spec.shape)
                ]
                hint = "; add the batch axis" if array.ndim == len(spec.shape) - 1 else ""
                raise DataError(
                    f"{where}: input '{spec.name}' has shape {list(array.shape)}, the model takes "
                    f"[{', '.join(map(str, want))}]{hint}"
                )
        if spec.axis is not None and array.ndim <= spec.axis:
            what = f"has shape {list(array.shape)}" if array.ndim else "is a single number"
            raise DataError(f"{where}: input '{spec.name}' {what}; the batch axis is missing")
        if spec.dtype.kind == "f" and array.dtype.kind == "f":
            with np.errstate(over="ignore"):  # told below
                array = array.astype(spec.dtype, copy=False)
            if not np.isfinite(array).all():
                bad = (
                    int(np.argwhere(~np.isfinite(array))[0][spec.axis])
                    if spec.axis is not None
                    else 0
                )
                raise DataError(
                    f"{where}: input '{spec.name}' holds NaN or infinity in sample {bad}; clean "
                    "the data"
                )
        elif spec.dtype.kind == "f" and array.dtype not in (np.dtype(np.int8), np.dtype(np.int16)):
            self._add_note(
                f"{self.what}: input '{spec.name}' is {array.dtype}, converted to {spec.dtype} as "
                "it is"
            )
            array = array.astype(spec.dtype)
        elif spec.dtype.kind in "iu" and array.dtype != spec.dtype:
            cast = array.astype(spec.dtype)
            if array.dtype.kind == "f" or not np.array_equal(cast, array):
                raise DataError(
                    f"{where}: input '{spec.name}' is {array.dtype}, the model takes {spec.dtype}; "
                    "convert it with .astype"
                )
            array = cast
        return array

    def _add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _format_array(array: np.ndarray) -> str:
    flat = array.reshape(-1)[:4].tolist()
    return (
        str(flat[0])
        if array.size == 1
        else f"{flat} ...".replace("] ...", ", ...]" if array.size > 4 else "]")
    )


def _to_array(value: object, name: str, where: str) -> np.ndarray:
    with wrap_user_errors(f"{where}: '{name}' is no array of one shape", DataError):
        return np.asarray(value)
