"""A worker runs the steps of a program on blocks of one size, in memory of its own.

Owns: one allocation for all buffers and scratch memory, the records of the compiled steps
(`native`), patching them with the addresses of the caller's arrays. Consecutive compiled steps run
in one call. Must not know: how a batch is split, threads.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simulator._jit import config
from simulator.kernel import Array, data_address
from simulator.layout import Buffer, BuiltStep
from simulator.native import NativeLoop, ScratchAllocator, get_record_runner, make_record
from simulator.repeated_records import RepeatedRecords, find_repeats

__all__ = ["Worker", "slice_samples"]

_CACHE_LINE_BYTES = 64


class _CallerPatch(NamedTuple):
    """The record words that hold the address of one of the caller's arrays.

    rows_per_sample : along axis 0; 0 if the array is not batched. words : (array, index) of each.
    """

    name: str
    rows_per_sample: int
    words: list[tuple[Array, int]]


class Worker:
    """Runs the steps of a program on blocks of `samples`; used by one thread at a time.

    Parameters
    ----------
    buffers
        All buffers of the program, by buffer id.
    steps
        Built steps in execution order.
    constants
        Buffer id -> value.
    samples
        Number of samples in a block.

    Attributes
    ----------
    nbytes
        Bytes of memory that the worker allocated.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        steps: Sequence[BuiltStep],
        constants: Mapping[int, Array],
        samples: int,
    ) -> None:
        """Allocate the memory for `samples` samples, and write the records of compiled steps.

        `constants` maps a buffer's index to its array. Without JIT there are no records.
        """
        self._buffers, self._steps = buffers, steps
        self._specs = [b.spec.stack(samples) if b.is_batched else b.spec for b in buffers]
        self._scratch = np.empty(0, np.uint8)
        #: Array of each buffer; None for those of the caller.
        self._values: list[Any] = [constants.get(index) for index in range(len(buffers))]
        self.nbytes = self._allocate()
        #: Ranges of records, repeated records and steps in Python, in execution order.
        self._segments: list[tuple[int, int] | RepeatedRecords | BuiltStep] = []
        self._live_arrays: list[Array] = []  # arrays that the record table points at
        self._caller_patches: list[_CallerPatch] = []
        self._compiled = not config.DISABLE_JIT
        if self._compiled:
            self._build_records()

    def run(self, arrays: Mapping[str, Array], block: slice) -> None:
        """Run all steps on one block of samples of the caller's arrays.

        Parameters
        ----------
        arrays
            Name -> array for the full batch, for every buffer with a name.
        block
            Range of samples to compute; as many as the worker was made for.

        Raises
        ------
        MemoryError
            The scratch memory of a step cannot be allocated.
        """
        if not self._compiled:
            self.run_forced(arrays, block, {})
            return
        for patch in self._caller_patches:
            array = arrays[patch.name]
            address = data_address(array)
            if patch.rows_per_sample:
                address += block.start * patch.rows_per_sample * array.strides[0]
            for words, index in patch.words:
                words[index] = address
        run_records = get_record_runner()
        for segment in self._segments:
            if isinstance(segment, BuiltStep):
                segment.run(
                    self._resolve_arrays(segment.input_buffers, arrays, block),
                    self._resolve_arrays(segment.output_buffers, arrays, block),
                )
                continue
            if isinstance(segment, RepeatedRecords):
                failed_record = segment.run(self._table_address)
            else:
                failed_record = run_records(self._table_address, *segment)
            if failed_record >= 0:
                raise MemoryError("out of memory in a step of the simulator")

    def run_forced(
        self, arrays: Mapping[str, Array], block: slice, force: Mapping[int, Mapping[int, Array]]
    ) -> None:
        """Run step by step, replacing the values of some buffers for the steps that follow.

        Parameters
        ----------
        arrays
            Name -> array for the full batch, for every buffer with a name.
        block
            Range of samples to compute; as many as the worker was made for.
        force
            Trigger buffer id -> {buffer id: value}. As soon as the trigger is computed, the listed
            buffers take these values; for a fed tensor, from the start.
        """
        values = self._resolve_arrays(range(len(self._values)), arrays, block)
        last_writers: dict[int, BuiltStep] = {}
        for step in self._steps:
            last_writers.update(dict.fromkeys(step.output_buffers, step))
        for buffer_id, overrides in force.items():
            if buffer_id not in last_writers:
                values[buffer_id] = overrides[buffer_id]
        for step in self._steps:
            inputs = [values[buffer_id] for buffer_id in step.input_buffers]
            step.run(inputs, [values[buffer_id] for buffer_id in step.output_buffers])
            for trigger in step.output_buffers:
                if last_writers[trigger] is step:
                    for buffer_id, value in force.get(trigger, {}).items():
                        values[buffer_id] = value

    def _resolve_arrays(
        self, buffer_ids: Sequence[int], arrays: Mapping[str, Array], block: slice
    ) -> list[Array]:
        """Return the array of each buffer, in order of `buffer_ids`.

        For a buffer of the caller, that is the slice `block` of samples of its array in `arrays`.
        """
        values = self._values
        return [
            self._caller_array(index, arrays, block) if values[index] is None else values[index]
            for index in buffer_ids
        ]

    def _caller_array(self, buffer_id: int, arrays: Mapping[str, Array], block: slice) -> Array:
        """Return the array that a buffer of the caller stands for, by its name in `arrays`.

        Batched ones are sliced to the samples of `block`; an alias is the source reshaped.
        """
        buffer = self._buffers[buffer_id]
        if buffer.memory_id != buffer_id:
            source = self._caller_array(buffer.memory_id, arrays, block)
            return source.reshape(self._specs[buffer_id].shape)
        array = arrays[buffer.name]
        return slice_samples(array, block, buffer.spec.shape[0]) if buffer.is_batched else array

    def _allocate(self) -> int:
        """Allocate the memory of all slots and the scratch memory in one block; return its bytes.

        Buffers of the same slot share its memory. Slots start at cache lines.
        """
        slot_sizes: dict[int, int] = defaultdict(int)
        for buffer, spec in zip(self._buffers, self._specs, strict=True):
            if buffer.slot >= 0:
                slot_sizes[buffer.slot] = max(slot_sizes[buffer.slot], spec.nbytes)
        scratch_bytes = 0
        for step in self._steps:
            if isinstance(step.run, NativeLoop):
                step_bytes = step.run.scratch_bytes(self._count_rows(step))
                scratch_bytes = max(scratch_bytes, step_bytes)
        starts, total = {}, 0
        for slot, size in {**slot_sizes, -1: scratch_bytes}.items():
            starts[slot] = total
            total += -(-size // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES + _CACHE_LINE_BYTES
        memory = np.empty(total + _CACHE_LINE_BYTES, np.uint8)
        memory = memory[-memory.ctypes.data % _CACHE_LINE_BYTES :]
        self._scratch = memory[starts[-1] : starts[-1] + scratch_bytes]
        self._assign_views(memory, starts)
        return total

    def _assign_views(self, memory: Array, starts: Mapping[int, int]) -> None:
        """Set the arrays of buffers with a slot, and of their aliases, to views of `memory`.

        `starts` is the byte offset of each slot.
        """
        for buffer_id, buffer in enumerate(self._buffers):
            if buffer.slot >= 0:
                spec, start = self._specs[buffer_id], starts[buffer.slot]
                view = memory[start : start + spec.nbytes].view(spec.dtype)
                self._values[buffer_id] = view.reshape(spec.shape)
        for buffer_id, buffer in enumerate(self._buffers):
            source = self._values[buffer.memory_id]
            if buffer.memory_id != buffer_id and source is not None:
                self._values[buffer_id] = source.reshape(self._specs[buffer_id].shape)

    def _build_records(self) -> None:
        """Write the records of all compiled steps; split them into segments and repeated sequences.

        A record is an int64 array of the code's addresses and its arguments. A step in Python is a
        segment of its own. The words with addresses of the caller's arrays are noted as patches for
        every run.
        """
        records: list[Array] = []
        #: Buffer id of a caller's array -> (record, word) of its addresses.
        patches: dict[int, list[tuple[int, int]]] = defaultdict(list)
        spans: list[tuple[int, int] | BuiltStep] = []
        for step in self._steps:
            if not isinstance(step.run, NativeLoop):
                spans.append(step)
                continue
            inputs = [self._placeholder_array(index) for index in step.input_buffers]
            outputs = [self._placeholder_array(index) for index in step.output_buffers]
            scratch = ScratchAllocator(self._scratch, self._count_rows(step))
            words, addresses, live_arrays = make_record(step.run, inputs, outputs, scratch)
            for word, is_input, index in addresses:
                buffer_id = (step.input_buffers if is_input else step.output_buffers)[index]
                memory_id = self._buffers[buffer_id].memory_id
                if self._buffers[memory_id].name and self._values[memory_id] is None:
                    patches[memory_id].append((len(records), word))
            records.append(np.array(words, np.int64))
            self._live_arrays += live_arrays
            if spans and isinstance(spans[-1], tuple):
                spans[-1] = (spans[-1][0], len(records))
            else:
                spans.append((len(records) - 1, len(records)))
        self._table = np.array([record.ctypes.data for record in records], np.int64)
        self._table_address = self._table.ctypes.data
        patched = set(itertools.chain.from_iterable(patches.values()))
        for span in spans:
            if isinstance(span, BuiltStep):
                self._segments.append(span)
            else:
                self._segments += _split_segments(records, patched, *span)
        self._connect_patches(records, patches)

    def _connect_patches(
        self, records: Sequence[Array], patches: Mapping[int, Sequence[tuple[int, int]]]
    ) -> None:
        """Keep the records that run alive, and note in `_caller_patches` what each run patches.

        `patches` is buffer id of a caller's array -> (record, word) of its addresses. Words of
        repeated records are patched in the values of their loop.
        """
        loop_of_record: dict[int, RepeatedRecords] = {}
        redundant: set[int] = set()
        for segment in self._segments:
            if isinstance(segment, RepeatedRecords):
                loop_of_record.update(dict.fromkeys(segment.all_records, segment))
                redundant.update(segment.redundant_records)
        self._live_arrays += [
            words for index, words in enumerate(records) if index not in redundant
        ]
        for buffer_id, locations in patches.items():
            buffer = self._buffers[buffer_id]
            words = []
            for record, word in locations:
                loop = loop_of_record.get(record)
                in_record = records[record], word
                words.append(in_record if loop is None else loop.locate_word(record, word))
            rows_per_sample = buffer.spec.shape[0] if buffer.is_batched else 0
            self._caller_patches.append(_CallerPatch(buffer.name, rows_per_sample, words))

    def _count_rows(self, step: BuiltStep) -> int:
        """Return the length of axis 0 in `step`, the largest of its arrays; 1 without any."""
        shapes = [self._specs[i].shape for i in (*step.input_buffers, *step.output_buffers)]
        return max((shape[0] for shape in shapes if shape), default=1)

    def _placeholder_array(self, buffer_id: int) -> Array:
        """Return the array of a buffer.

        For one of the caller's, an uninitialized array that stands for it.
        """
        if self._values[buffer_id] is not None:
            return self._values[buffer_id]
        spec = self._specs[buffer_id]
        return np.empty(spec.shape, spec.dtype)


def _split_segments(
    records: Sequence[Array], patched: set[tuple[int, int]], first: int, last: int
) -> list[tuple[int, int] | RepeatedRecords]:
    """Split records[first:last] into repeated sequences and the ranges between them, in order.

    `patched` are the words (record, word) that change with every run. A range is (first, end).
    """
    segments: list[tuple[int, int] | RepeatedRecords] = []
    for loop in find_repeats(records, patched, first, last):
        if first < loop.all_records.start:
            segments.append((first, loop.all_records.start))
        segments.append(loop)
        first = loop.all_records.stop
    if first < last:
        segments.append((first, last))
    return segments


def slice_samples(array: Array, block: slice, rows_per_sample: int) -> Array:
    """Return a view of the samples in `block`, each of `rows_per_sample` rows of axis 0."""
    return array[block.start * rows_per_sample : block.stop * rows_per_sample]
