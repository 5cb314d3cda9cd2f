"""A worker: the memory of a program for blocks of one size, and the walk over its steps there.

Owns: one allocation for all buffers and scratch memory, the records of the compiled steps
(`native`), their patching with the addresses of the caller's arrays. Compiled steps in a row run in
one call. Must not know: how a batch is cut, threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simulator._jit import config
from simulator.kernel import Array
from simulator.layout import Buffer, BuiltStep
from simulator.native import NativeLoop, data_address, get_record_runner, make_record
from simulator.repeated_records import RepeatedRecords, find_repeats

__all__ = ["Worker", "slice_samples"]

_CACHE_LINE_BYTES = 64  # bytes of a cache line


class Worker:
    """Runs the steps of a program on blocks of `samples`; used by one thread at a time.

    Attributes
    ----------
    nbytes
        Memory that it holds.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        ops: Sequence[BuiltStep],
        constants: Mapping[int, Array],
        samples: int,
    ) -> None:
        self._buffers, self._ops, self._samples = buffers, ops, samples
        self._scratch = np.empty(0, np.uint8)
        self._values: list[Any] = [constants.get(at) for at in range(len(buffers))]
        self.nbytes = self._allocate()
        self._segments: list[tuple[int, int] | RepeatedRecords | BuiltStep] = []
        self._live_arrays: list[Array] = []  # what the table points at
        #: Of a caller's array: its name, the rows of a sample (0: it has no samples), the words that are its address.
        self._caller_patches: list[tuple[str, int, list[tuple[Array, int]]]] = []
        self._compiled = not config.DISABLE_JIT
        if self._compiled:
            self._build_records()

    def run(self, arrays: Mapping[str, Array], part: slice) -> None:
        """Run all steps on `part` of the caller's arrays, which are those of the buffers with a name."""
        if not self._compiled:
            self.run_forced(arrays, part, {})
            return
        for name, each, places in self._caller_patches:
            array = arrays[name]
            address = (
                data_address(array) + part.start * each * array.strides[0]
                if each
                else data_address(array)
            )
            for words, word in places:
                words[word] = address
        go = get_record_runner()
        for some in self._segments:
            if isinstance(some, BuiltStep):
                some.run(
                    self._resolve_arrays(some.input_buffers, arrays, part),
                    self._resolve_arrays(some.output_buffers, arrays, part),
                )
            elif (
                some.run(self._start)
                if isinstance(some, RepeatedRecords)
                else go(self._start, *some)
            ) >= 0:
                raise MemoryError("a step of the simulator found no memory")

    def run_forced(
        self, arrays: Mapping[str, Array], part: slice, force: Mapping[int, Mapping[int, Array]]
    ) -> None:
        """Run step by step; once a buffer of `force` is written, the buffers named there hold other values."""
        values = list(self._values)
        for at in range(len(values)):
            if values[at] is None:
                values[at] = self._caller_array(at, arrays, part)
        made = {at: op for op in self._ops for at in op.output_buffers}
        for at, given in force.items():
            if at not in made:
                values[at] = given[at]
        for op in self._ops:
            op.run(
                [values[at] for at in op.input_buffers], [values[at] for at in op.output_buffers]
            )
            for at in op.output_buffers:
                for other, value in force.get(at, {}).items() if made[at] is op else ():
                    values[other] = value

    def _resolve_arrays(
        self, numbers: Sequence[int], arrays: Mapping[str, Array], part: slice
    ) -> list[Array]:
        values = self._values
        return [
            self._caller_array(at, arrays, part) if values[at] is None else values[at]
            for at in numbers
        ]

    def _caller_array(self, at: int, arrays: Mapping[str, Array], part: slice) -> Array:
        """Return the part of the caller's array that a buffer stands for."""
        buffer = self._buffers[at]
        if buffer.alias_of >= 0:
            return self._caller_array(buffer.alias_of, arrays, part).reshape(
                buffer.spec_for(self._samples).shape
            )
        array = arrays[buffer.name]
        return slice_samples(array, part, buffer.spec.shape[0]) if buffer.is_batched else array

    def _allocate(self) -> int:
        """Give every buffer of a slot its memory, those of one slot the same; return all bytes."""
        sizes: dict[int, int] = defaultdict(int)
        for buffer in self._buffers:
            if buffer.slot >= 0:
                sizes[buffer.slot] = max(sizes[buffer.slot], buffer.spec_for(self._samples).nbytes)
        scratch = max(
            (
                op.run.scratch_bytes(self._count_rows(op))
                for op in self._ops
                if isinstance(op.run, NativeLoop)
            ),
            default=0,
        )
        starts, total = {}, 0
        for slot, size in {**sizes, -1: scratch}.items():
            starts[slot], total = (
                total,
                total + -(-size // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES + _CACHE_LINE_BYTES,
            )
        memory = np.empty(total + _CACHE_LINE_BYTES, np.uint8)
        memory = memory[-memory.ctypes.data % _CACHE_LINE_BYTES :]
        self._scratch = memory[starts[-1] : starts[-1] + scratch]
        for at, buffer in enumerate(self._buffers):
            if buffer.slot >= 0:
                spec, start = buffer.spec_for(self._samples), starts[buffer.slot]
                self._values[at] = (
                    memory[start : start + spec.nbytes].view(spec.dtype).reshape(spec.shape)
                )
        for at, buffer in enumerate(self._buffers):
            if buffer.alias_of >= 0 and self._values[buffer.alias_of] is not None:
                self._values[at] = self._values[buffer.alias_of].reshape(
                    buffer.spec_for(self._samples).shape
                )
        return total

    def _build_records(self) -> None:
        """Write the records, the table of those that follow each other, and the loops over those that come again."""
        records: list[Array] = []
        patches: dict[int, list[tuple[int, int]]] = defaultdict(list)
        stretches: list[tuple[int, int] | BuiltStep] = []
        for op in self._ops:
            if not isinstance(op.run, NativeLoop):
                stretches.append(op)
                continue
            ins, outs = (
                [self._placeholder_array(at) for at in numbers]
                for numbers in (op.input_buffers, op.output_buffers)
            )
            numbers, places, kept = make_record(
                op.run, ins, outs, self._scratch, self._count_rows(op)
            )
            for word, is_input, index in places:
                at = (op.input_buffers if is_input else op.output_buffers)[index]
                at = at if self._buffers[at].alias_of < 0 else self._buffers[at].alias_of
                if self._buffers[at].name and self._values[at] is None:
                    patches[at].append((len(records), word))
            records.append(np.array(numbers, np.int64))
            self._live_arrays += kept
            if stretches and isinstance(stretches[-1], tuple):
                stretches[-1] = (stretches[-1][0], len(records))
            else:
                stretches.append((len(records) - 1, len(records)))
        self._table = np.array([words.ctypes.data for words in records], np.int64)
        self._start = self._table.ctypes.data
        patched = {place for places in patches.values() for place in places}
        for stretch in stretches:
            self._segments += (
                [stretch]
                if isinstance(stretch, BuiltStep)
                else _split_segments(records, patched, *stretch)
            )
        loops = [part for part in self._segments if isinstance(part, RepeatedRecords)]
        self._live_arrays += [
            words
            for i, words in enumerate(records)
            if all(i not in loop.redundant_records for loop in loops)
        ]
        for at, where in patches.items():
            buffer, found = self._buffers[at], []
            for number, word in where:
                loop = next((loop for loop in loops if number in loop.all_records), None)
                found.append(
                    (records[number], word) if loop is None else loop.locate_word(number, word)
                )
            self._caller_patches.append(
                (buffer.name, buffer.spec.shape[0] if buffer.is_batched else 0, found)
            )

    def _count_rows(self, op: BuiltStep) -> int:
        """Return the length of axis 0 in a step."""
        shapes = (
            self._buffers[at].spec_for(self._samples).shape
            for at in (*op.input_buffers, *op.output_buffers)
        )
        return max((shape[0] for shape in shapes if shape), default=1)

    def _placeholder_array(self, at: int) -> Array:
        """Return the array of a buffer, for one of the caller's one that is never touched."""
        if self._values[at] is not None:
            return self._values[at]
        spec = self._buffers[at].spec_for(self._samples)
        return np.empty(spec.shape, spec.dtype)


def _split_segments(
    records: Sequence[Array], patched: set[tuple[int, int]], first: int, last: int
) -> list[tuple[int, int] | RepeatedRecords]:
    """Return the stretch of records first..last as those that come again and what lies between them."""
    found: list[tuple[int, int] | RepeatedRecords] = []
    for loop in find_repeats(records, patched, first, last):
        found += [(first, loop.all_records.start)] if first < loop.all_records.start else []
        found.append(loop)
        first = loop.all_records.stop
    return [*found, (first, last)] if first < last else found


def slice_samples(array: Array, part: slice, each: int) -> Array:
    """Return the samples `part` of an array, each of so many rows of axis 0."""
    return array[part.start * each : part.stop * each]
