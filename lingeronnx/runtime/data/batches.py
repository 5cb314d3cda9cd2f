"""Calibration and evaluation data: one interface for files, folders, functions and Python values.

`Data` yields ``(feeds, labels)`` batches: `feeds` a dict of arrays with the batch on axis 0,
`labels` an array or None. Only one batch is in memory at a time if the source allows it. Knows the
graph inputs, not the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from ...common.errors import DataError, suggest_nearest, wrap_user_errors
from .inputs import Batch, InputSpec, count_divisible_samples
from .sources import Item, open_items

__all__ = ["MAX_UNBOUNDED_SAMPLES", "Data", "HoldOut"]

#: Maximum number of calibration samples from a source of unknown length, without --limit.
MAX_UNBOUNDED_SAMPLES = 10_000


@dataclass(frozen=True)
class HoldOut:
    """Which samples are held out, as far as they fit: the last `count` of every `period`.

    first_index : samples before are not held out; a multiple of `period`. end_index : from this
    sample on all are held out until there are enough, and no others are read; a multiple of
    `period`, None for no end.
    """

    period: int
    count: int
    first_index: int
    end_index: int | None = None


# The first 512 samples are all for calibration: fewer cost accuracy (a tenth of a point with 480 of
# 512 pictures).
_DEFAULT_HOLD_OUT = HoldOut(period=32, count=4, first_index=512)
_BATCH_SIZE = 32  # samples that are read at once to reach the held-out ones
_MAX_HELD_OUT, _MAX_HELD_OUT_BYTES = 64, 32 << 20
_MAX_CACHED_BYTES = 1 << 20  # of the first samples
_MAX_EMPTY_ITEMS = 1000  # in a row; a source that yields nothing else may have no end


class Data:
    """Batches from a source, checked against graph inputs.

    Parameters
    ----------
    source
        A path (.npz, .npy, a folder of them); "module:function" or "file.py:function" that returns
        an iterable; an array (single input); a dict of arrays; an iterable of feeds (arrays or
        dicts, alone or with labels, as a torch DataLoader yields them); `Pictures`; a calibration
        data reader of onnxruntime (`get_next`); or a dataset whose entries, dicts or
        (array, label), are one sample each (`__getitem__` and `__len__`).
    inputs
        The graph inputs.
    limit
        Number of samples to use; None uses all.
    label
        Description of the data, for messages.
    optional
        Inputs that feeds may lack.
    fixed
        {name: value} of former inputs that are constants now; feeds may contain them, with this
        value.
    hold_out
        Exclude some samples from `batches` and `first`, if there are enough, to measure on;
        see `held_out_batches`.
    max_samples
        Maximum number of samples from a source of unknown length without `limit`; default no
        maximum.
    record
        Read a source that may yield other samples when it is read again (a shuffled or augmenting
        data loader, a function, a generator) only once; every pass then gets the same samples. See
        `RecordedItems`.
    whole_files
        Read every file as one item, also a large one.
    advice
        Called with the inputs that a feed lacks; returns a remedy for the message.

    Raises
    ------
    DataError
        If names, shapes, types or values do not match; the message names the sample.
    """

    def __init__(
        self,
        source: object,
        inputs: Sequence[InputSpec],
        *,
        limit: int | None = None,
        label: str = "data",
        optional: Collection[str] = (),
        fixed: Mapping[str, np.ndarray] | None = None,
        hold_out: bool = False,
        max_samples: int | None = None,
        record: bool = False,
        whole_files: bool = False,
        advice: Callable[[Sequence[str]], str] | None = None,
    ) -> None:
        """Open the source and store the options; items are read and checked later.

        Arrays in files are read row by row only if each input with a batch axis takes any batch
        size on axis 0, and not with `whole_files`.
        """
        self.advice = advice
        self.hold_out = _DEFAULT_HOLD_OUT if hold_out else None
        self._max_samples = max_samples
        self._held_out: list[dict[str, np.ndarray]] = []
        self._complete = False
        self._head: tuple[int, dict[str, np.ndarray]] = 0, {}
        self.inputs = {spec.name: spec for spec in inputs}
        self.optional = optional
        self.fixed = fixed or {}
        self.limit = limit
        self.label = label
        self.notes: list[str] = []
        by_row = [spec.name for spec in inputs if spec.accepts_any_batch and spec.axis == 0]
        if whole_files or len(by_row) < sum(spec.axis is not None for spec in inputs):
            by_row = []
        self._open = open_items(source, label, list(self.inputs), by_row)
        if record:
            self._open = self._open.record()
        self._used = False

    @property
    def source(self) -> object:
        """The opened source, to pass to another `Data` that must get the same samples."""
        return self._open

    @property
    def is_rereadable(self) -> bool:
        """Whether the batches can be read more than once."""
        return self._open.is_rereadable

    @property
    def is_open_ended(self) -> bool:
        """Whether the number of items is unknown before they are read, as for a generator."""
        return self._open.is_open_ended

    def with_hold_out(self, rule: HoldOut) -> Data:
        """Return a copy of these data in which the samples of `rule` are held out.

        If the rule has an end, no samples are read beyond those needed to hold out enough. The
        source must be rereadable.
        """
        other = copy(self)
        other.hold_out = rule
        if rule.end_index is not None:
            missing = (
                _MAX_HELD_OUT - (rule.end_index - rule.first_index) // rule.period * rule.count
            )
            end = rule.end_index + max(missing, 0)
            other.limit = min(end, self.limit or end)
        other._held_out, other._complete, other._head = [], False, (0, {})
        return other

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield checked batches of at most `size` samples.

        Held-out samples are not among them; a batch does not span items. The iteration ends at
        `limit`.

        Raises
        ------
        DataError
            If there are no samples, an item does not match the inputs, a generator is read a second
            time, or a source of unknown length exceeds `max_samples`.
        """
        if self._used and not self._open.is_rereadable:
            raise DataError(
                f"{self.label}: a generator can be read only once; pass a list or a function"
            )
        self._used = True
        self._held_out = []
        count = 0
        for feeds, labels, total in self._iter_checked(self._open.iter_items()):
            for start in range(0, total, size):
                stop = min(start + size, total)
                if self.limit is not None:
                    stop = min(stop, start + self.limit - count)
                if stop <= start:
                    self._complete = True
                    return
                yield from self._iter_batch(feeds, labels, count, start, stop)
                count += stop - start
                if self._max_samples is not None and count > self._max_samples:
                    self._check_is_bounded()
        self._complete = True
        if count == 0:
            raise DataError(f"{self.label} is empty; at least one sample is required")

    def _iter_batch(
        self, feeds: Mapping[str, np.ndarray], labels: object, index: int, start: int, stop: int
    ) -> Iterator[Batch]:
        """Yield samples `start` to `stop` - 1 of an item, without held-out ones, which are stored.

        `index` is that of sample `start` among all samples. Yields (feeds, labels) for each run of
        samples between held-out ones.
        """
        for first, last, is_held_out in self._split_held_out(feeds, index, start, stop):
            part = self._slice_feeds(feeds, first, last)
            if is_held_out:  # copied, because a view keeps the item's arrays alive
                self._held_out.append({name: array.copy() for name, array in part.items()})
                continue
            part_labels = None
            if labels is not None:
                part_labels = np.atleast_1d(np.asarray(labels))[first:last]
            yield part, part_labels

    def _check_is_bounded(self) -> None:
        """Raise DataError without a limit for a source of unknown length: it may have no end."""
        if self.limit is None and self.is_open_ended:
            raise DataError(
                f"{self.label}: read {self._max_samples} samples from a source of unknown length; "
                "set --limit"
            )

    def held_out_batches(self) -> list[dict[str, np.ndarray]]:
        """Return the held-out samples in small batches.

        Empty if there are too few samples or no rule. Reads the source to its end if that has not
        been done; a generator that was read in part is not read again.
        """
        is_readable = self._open.is_rereadable or not self._used
        if self.hold_out is not None and not self._complete and is_readable:
            for _ in self.batches(_BATCH_SIZE):
                pass
        return list(self._held_out)

    def _split_held_out(
        self, feeds: Mapping[str, np.ndarray], index: int, start: int, stop: int
    ) -> list[tuple[int, int, bool]]:
        """Split samples `start` to `stop` - 1 into runs (first, end excluded, whether held out).

        `index` is that of sample `start` among all samples. Held out are the last ones of each
        period of the rule, from its first index on, and all from its end index on, up to a limit in
        number and bytes; none without a rule.
        """
        rule = self.hold_out
        if rule is None or stop == start:
            return [(start, stop, False)]
        sample_bytes = sum(
            array.nbytes // max(self.inputs[name].count_samples(array), 1)
            for name, array in feeds.items()
        )
        max_by_memory = max(rule.count, _MAX_HELD_OUT_BYTES // max(sample_bytes, 1))
        max_held_out = min(_MAX_HELD_OUT, max_by_memory)
        indices = np.arange(index, index + stop - start)
        periods = indices // rule.period - rule.first_index // rule.period
        offsets = indices % rule.period - (rule.period - rule.count)
        ranks = periods * rule.count + offsets  # of the held-out samples
        is_selected = (periods >= 0) & (offsets >= 0)
        if rule.end_index is not None:
            is_beyond = indices >= rule.end_index
            first_rank = (rule.end_index - rule.first_index) // rule.period * rule.count
            ranks = np.where(is_beyond, first_rank + indices - rule.end_index, ranks)
            is_selected |= is_beyond
        is_held_out = is_selected & (ranks < max_held_out)
        changes = (np.flatnonzero(np.diff(is_held_out)) + 1).tolist()
        bounds = itertools.pairwise([0, *changes, len(indices)])
        return [(start + a, start + b, bool(is_held_out[a])) for a, b in bounds]

    def _read_first(self, size: int) -> dict[str, np.ndarray]:
        """Return one batch of up to `size` samples, from the first items that can be concatenated.

        Held-out samples are left out. Generators are not consumed: their first items stay in
        memory. If an input fixes the number of samples, the batch has the samples of one item.
        Raises DataError if there are no samples.
        """
        size = size if self.limit is None else min(size, self.limit)
        parts: list[dict[str, np.ndarray]] = []
        part_count = index = 0
        for feeds, _, total in self._iter_checked(self._open.iter_items(consumes=False)):
            if parts and not self._can_concatenate(feeds, parts[0]):
                break
            for first, last, is_held_out in self._split_held_out(feeds, index, 0, total):
                count = 0 if is_held_out else min(size - part_count, last - first)
                if count:
                    parts.append(self._slice_feeds(feeds, first, first + count))
                    part_count += count
            index += total
            if part_count >= size or not self._can_split(feeds):
                break
        if not parts:
            raise DataError(f"{self.label} is empty; at least one sample is required")
        batch = {}
        for name in parts[0]:
            batch[name] = self.inputs[name].concatenate([part[name] for part in parts])
        return batch

    def count_samples(self, feeds: Mapping[str, np.ndarray]) -> int:
        """Return the number of samples in `feeds`, the largest of all inputs; 1 for empty feeds."""
        counts = [self.inputs[name].count_samples(array) for name, array in feeds.items()]
        return max(counts, default=1)

    def _can_concatenate(
        self, feeds: Mapping[str, np.ndarray], first_feeds: Mapping[str, np.ndarray]
    ) -> bool:
        """Whether each array of `feeds` has the shape of that in `first_feeds`, samples apart.

        An input without samples must have equal values.
        """
        return all(
            self.inputs[name].kind(array) == self.inputs[name].kind(first_feeds[name])
            for name, array in feeds.items()
        )

    def _can_split(self, feeds: Iterable[str]) -> bool:
        """Whether each input in `feeds` takes any number of samples, or has no batch axis."""
        specs = [self.inputs[name] for name in feeds]
        return all(spec.accepts_any_batch or spec.axis is None for spec in specs)

    def split_feeds(
        self, feeds: Mapping[str, np.ndarray], size: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield `feeds` in batches of at most `size` samples.

        Inputs without a batch axis are complete in every batch. A copy of `feeds` is the only batch
        if an input fixes the number of samples.
        """
        if not self._can_split(feeds):
            yield dict(feeds)
            return
        for start in range(0, count_divisible_samples(self.inputs, feeds), size):
            yield self._slice_feeds(feeds, start, start + size)

    def first(self, size: int = 1) -> dict[str, np.ndarray]:
        """Return the first samples as one batch of at most `size`, by input name.

        Held-out samples are left out, and a generator is not consumed. If an input fixes the number
        of samples, these are the samples of the first item. Batches of at most
        `_MAX_CACHED_BYTES` are cached, so that files are not read repeatedly.
        """
        cached_size, cached = self._head
        if size > cached_size:
            cached = self._read_first(size)
            if sum(array.nbytes for array in cached.values()) > _MAX_CACHED_BYTES:
                return cached
            self._head = size, cached
        return self._slice_feeds(cached, 0, size)

    def _iter_checked(
        self, items: Iterator[Item]
    ) -> Iterator[tuple[dict[str, np.ndarray], object, int]]:
        """Yield (feeds, labels, number of samples) of `items`, checked and converted.

        Raises
        ------
        DataError
            If an item does not match the inputs, or more than `_MAX_EMPTY_ITEMS` items in a row are
            empty.
        """
        empty_count = 0
        for index, (raw_feeds, labels) in enumerate(items):
            feeds, total = self._check_item(raw_feeds, labels, f"{self.label}, item {index}")
            empty_count = 0 if total else empty_count + 1
            if empty_count > _MAX_EMPTY_ITEMS:
                raise DataError(
                    f"{self.label}: {empty_count} items in a row have no samples; pass items with "
                    "samples, or end the iteration"
                )
            yield feeds, labels, total

    def _check_item(
        self, raw_feeds: object, labels: object, where: str
    ) -> tuple[dict[str, np.ndarray], int]:
        """Return (feeds by input name in the inputs' types, their number of samples).

        Unnamed arrays are named, and former inputs that are constants now are dropped. `where`
        begins messages. Raises DataError if an input is missing, unknown or invalid, or if its
        conversion exceeds memory.
        """
        feeds = self._name_feeds(raw_feeds, where)
        if self.fixed:
            feeds = self._without_fixed(feeds, where)
        if feeds.keys() != self.inputs.keys():
            self._check_names(feeds, where)
        checked = {}
        for name, spec in self.inputs.items():
            if name not in feeds:
                continue
            array = _to_array(feeds[name], name, where)
            try:
                self._check_shape(array, spec, where)
                checked[name] = self._convert_type(array, spec, where)
            except MemoryError as error:
                raise DataError(
                    f"{where}: input '{name}' has shape {list(array.shape)}, "
                    f"{array.nbytes / 1e9:.0f} GB; pass smaller batches"
                ) from error
        return checked, self._count_item_samples(checked, labels, where)

    def _check_names(self, feeds: Collection[str], where: str) -> None:
        """Raise DataError if `feeds` lack a required input, or have an array for none.

        The message, which begins with `where`, has a remedy for missing inputs, or the nearest
        name.
        """
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
                f"{where}: no array for input '{missing[0]}'; the data have "
                f"{', '.join(feeds) or 'none'}{advice}"
            )

    def _count_item_samples(
        self, feeds: Mapping[str, np.ndarray], labels: object, where: str
    ) -> int:
        """Return the number of samples, which all inputs and the labels must share, else DataError.

        Only inputs that accept any batch count; without any, it is 1. `where` begins the message.
        """
        counts = {
            name: self.inputs[name].count_samples(array)
            for name, array in feeds.items()
            if self.inputs[name].accepts_any_batch
        }
        counts = counts or {"input": 1}
        if labels is not None:
            counts["labels"] = len(np.atleast_1d(_to_array(labels, "labels", where)))
        if len(set(counts.values())) > 1:
            self._raise_different_counts(counts, where)
        return next(iter(counts.values()))

    def _raise_different_counts(self, counts: Mapping[str, int], where: str) -> None:
        """Raise DataError for inputs and labels with different numbers of samples.

        `counts` maps each input, and "labels", to its samples. The message has a remedy for the
        input with the fewest.
        """
        names = [name for name in counts if name != "labels"]
        fewest = min(names, key=counts.__getitem__)
        same_count = [name for name in names if counts[name] == counts[fewest]]
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(
            f"{where}: batch sizes differ "
            f"({listed}){self._suggest_for_fewer_samples(fewest, same_count)}; pass all inputs "
            "with the same number of samples, or declare that one has no batch axis: quantize "
            f"with --batch-axis {fewest}=none"
        )

    def _suggest_for_fewer_samples(self, name: str, same_count: Sequence[str]) -> str:
        """Return a remedy for input `name`, which has fewer samples than others, or "".

        The text begins with "; ". An optional input, which is a state, is to be omitted; for others
        the advice for missing inputs is used. `same_count` are the inputs with that number of
        samples.
        """
        if name in self.optional:
            return f"; omit '{name}': it begins at zeros"
        advice = self._suggest_for_missing(same_count)
        return f"; {advice}" if advice else ""

    def _suggest_for_missing(self, missing: Sequence[str]) -> str:
        """Return a remedy for inputs `missing`, which lack an array for each sample.

        "" if none is known.
        """
        return "" if self.advice is None or not missing else self.advice(missing)

    def _without_fixed(self, feeds: Mapping[str, object], where: str) -> dict[str, object]:
        """Return a copy of `feeds` without former inputs that are constants of the model now.

        Raises
        ------
        DataError
            If the data have another value for such an input.
        """
        for name in feeds.keys() & self.fixed.keys():
            array, constant = np.asarray(feeds[name]), self.fixed[name]
            is_multiple = array.dtype.kind in "fiub" and not array.size % max(constant.size, 1)
            if not is_multiple or not np.all(
                array.reshape(-1, constant.size) == constant.reshape(-1)
            ):
                raise DataError(
                    f"{where}: input '{name}' is fixed at {_format_array(constant)}; the data have "
                    f"{_format_array(array)}"
                )
        return {name: value for name, value in feeds.items() if name not in self.fixed}

    def _slice_feeds(
        self, feeds: Mapping[str, np.ndarray], start: int, stop: int
    ) -> dict[str, np.ndarray]:
        """Return samples `start` to `stop` - 1 of `feeds`.

        Arrays without a batch axis, or of inputs that fix the number of samples, are complete.
        """
        part = dict(feeds)
        for name, array in feeds.items():
            if self.inputs[name].accepts_any_batch:
                part[name] = self.inputs[name].slice_samples(array, start, stop)
        return part

    def _name_feeds(self, feeds: object, where: str) -> dict[str, object]:
        """Return feeds by name.

        A bare array, or the only array of a file, feeds the only required input. An only array
        under another name adds a note. Raises DataError for a bare array if several inputs are
        required.
        """
        required = [name for name in self.inputs if name not in self.optional]
        if not isinstance(feeds, Mapping):
            if len(required) == 1:
                return {required[0]: feeds}
            raise DataError(
                f"{where}: a bare array for a model with inputs {', '.join(self.inputs)}; pass a "
                "dict by name"
            )
        named = {str(name): value for name, value in feeds.items()}
        if len(required) != 1 or len(named) != 1 or not self.inputs.keys().isdisjoint(named):
            return named
        ((name, value),) = named.items()
        if not isinstance(value, np.ndarray):
            return named
        self._add_note(f"{self.label}: array '{name}' is fed to input '{required[0]}'")
        return {required[0]: value}

    def _check_shape(self, array: np.ndarray, spec: InputSpec, where: str) -> None:
        """Raise DataError unless `array` is numeric (or bool) and has the shape of input `spec`.

        Sizes on the batch axis are free. `where` begins the message.
        """
        if array.dtype.kind not in "fiub":
            raise DataError(
                f"{where}: input '{spec.name}' has dtype {array.dtype}; numbers are needed"
            )
        if spec.shape is not None and not spec.matches_shape(array.shape):
            hint = spec.suggest_layout(array.shape)
            raise DataError(
                f"{where}: input '{spec.name}' has shape {list(array.shape)}, the model takes "
                f"[{_format_shape(spec.shape, spec.axis)}]{hint}"
            )
        if spec.axis is not None and array.ndim <= spec.axis:
            shape = f"has shape {list(array.shape)}" if array.ndim else "is a single number"
            raise DataError(f"{where}: input '{spec.name}' {shape}; the batch axis is missing")

    def _convert_type(self, array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
        """Convert an array to the type of input `spec`, except int8 and int16 for a float input.

        These may be quantized. Other integers for a float input are converted with a note; floats
        must be finite. Raises DataError for an integer input that gets floats or values that do not
        fit.
        """
        if spec.dtype.kind == "f" and array.dtype.kind == "f":
            return _convert_float(array, spec, where)
        if spec.dtype.kind == "f":
            if array.dtype in (np.dtype(np.int8), np.dtype(np.int16)):
                return array
            self._add_note(
                f"{self.label}: input '{spec.name}' is {array.dtype}, converted to {spec.dtype} "
                "without scaling"
            )
            return array.astype(spec.dtype)
        if spec.dtype.kind not in "iu" or array.dtype == spec.dtype:
            return array
        converted = array.astype(spec.dtype)
        if array.dtype.kind == "f" or not np.array_equal(converted, array):
            raise DataError(
                f"{where}: input '{spec.name}' is {array.dtype}, the model takes {spec.dtype}; "
                "convert it with .astype"
            )
        return converted

    def _add_note(self, text: str) -> None:
        """Append `text` to the notes for the user, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)


def _convert_float(array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
    """Return `array` in the float type of input `spec`.

    Raises DataError, with the first such sample, if a value is NaN or infinite, also if it only
    becomes infinite in that type.
    """
    with np.errstate(over="ignore"):  # reported below
        array = array.astype(spec.dtype, copy=False)
    is_finite = np.isfinite(array)
    if is_finite.all():
        return array
    index = 0 if spec.axis is None else int(np.argwhere(~is_finite)[0][spec.axis])
    raise DataError(
        f"{where}: input '{spec.name}' has NaN or infinity in sample {index}; clean the data"
    )


def require_equal_inputs(specs: Iterable[InputSpec], other_specs: Iterable[InputSpec]) -> None:
    """Raise DataError if two models take an input of one name in different shapes.

    Only the rank and the sizes of axes other than the batch axis count, where both are known.
    """
    by_name = {spec.name: spec for spec in specs}
    for other in other_specs:
        spec = by_name.get(other.name)
        if spec is None or spec.shape is None or other.shape is None:
            continue
        sizes = enumerate(zip(spec.shape, other.shape, strict=False))
        if len(spec.shape) != len(other.shape) or any(
            None not in pair and pair[0] != pair[1] and axis not in (spec.axis, other.axis)
            for axis, pair in sizes
        ):
            raise DataError(
                f"input '{spec.name}' has shape [{_format_shape(spec.shape, spec.axis)}] in one "
                f"model and [{_format_shape(other.shape, other.axis)}] in the other; compare a "
                "model with its own quantized version"
            )


def _format_shape(shape: Sequence[int | None], batch_axis: int | None) -> str:
    """Format a shape as "N, 3, ?", without brackets: N is the batch axis, ? an axis of any size."""
    sizes = []
    for axis, size in enumerate(shape):
        if axis == batch_axis:
            sizes.append("N")
        else:
            sizes.append("?" if size is None else str(size))
    return ", ".join(sizes)


def _format_array(array: np.ndarray) -> str:
    """Format a single value as text, or a list of at most four elements with "..." for more."""
    values = array.reshape(-1)[:4].tolist()
    if array.size == 1:
        return str(values[0])
    return f"{values} ...".replace("] ...", ", ...]" if array.size > 4 else "]")


def _to_array(value: object, name: str, where: str) -> np.ndarray:
    """Convert `value` to an array.

    Raises DataError, with `where` and `name`, if that fails.
    """
    with wrap_user_errors(f"{where}: '{name}' cannot be converted to an array", DataError):
        return np.asarray(value)
