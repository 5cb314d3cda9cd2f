"""Find repeated sequences of records, such as an unrolled recurrent layer, and run them as a loop.

Two sequences are repetitions if they call the same machine code in the same order and few words of
their records differ, such as the slice of the input sequence or the address of the state. The
records of the first repetition serve all others: before each iteration the differing words are
patched. The loop therefore computes exactly the same as the separate steps.

Must not know: the operators of the steps, the owners of the arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from llvmlite import ir

from simulator import _llvm
from simulator.kernel import Array
from simulator.native import get_record_runner_address

__all__ = ["RepeatedRecords", "find_repeats", "get_repeat_runner"]

_MIN_REPEATS = 8
_MIN_WORDS_PER_PATCH = 4  # at most one word in this many may differ between repetitions
_INDEX = ir.IntType(64)


@dataclass(frozen=True, eq=False)
class RepeatedRecords:
    """A sequence of records that repeats; only the records of its first repetition are run.

    Parameters
    ----------
    first
        Index of the first record.
    records_per_repeat
        Number of records in one repetition.
    repeat_count
        Number of repetitions.
    patched_words
        The W words that differ between repetitions, as (record within a repetition, word).
    patch_addresses
        int64 [W], their addresses in the records of the first repetition.
    values
        int64 [repeat_count, W], their values in each repetition.
    """

    first: int
    records_per_repeat: int
    repeat_count: int
    patched_words: Sequence[tuple[int, int]]
    patch_addresses: Array
    values: Array

    @property
    def all_records(self) -> range:
        """Indices of the records of all repetitions."""
        return range(self.first, self.first + self.records_per_repeat * self.repeat_count)

    @property
    def redundant_records(self) -> range:
        """Indices of the records after the first repetition, which are never run."""
        return self.all_records[self.records_per_repeat :]

    def run(self, table: int) -> int:
        """Run all repetitions; before each, its words are stored in the records of the first one.

        They are not restored. `table` is the address of the table of record addresses. Returns -1,
        or the index of the first record whose code failed, at which the run stops.
        """
        return self._repeat_runner(self._record_runner_address, table, *self._runner_arguments)

    @cached_property
    def _repeat_runner(self) -> Callable[..., int]:
        """Compiled function that patches and runs repetitions of records."""
        return get_repeat_runner()

    @cached_property
    def _record_runner_address(self) -> int:
        """Address of the compiled function that runs a range of records."""
        return get_record_runner_address()

    @cached_property
    def _runner_arguments(self) -> tuple[int, ...]:
        """Arguments of the repeat runner after the record table.

        These are the first record, the end of the first repetition, the number of repetitions, the
        addresses of the patched words and their values (as addresses), and the number of the words.
        """
        return (
            self.first,
            self.first + self.records_per_repeat,
            self.repeat_count,
            self.patch_addresses.ctypes.data,
            self.values.ctypes.data,
            len(self.patched_words),
        )

    def locate_word(self, record: int, word: int) -> tuple[Array, int]:
        """Return the storage of a patched word of any repetition, as (flat array, index).

        `record` is the index of its record, `word` that of the word within it.
        """
        repeat, inner_record = divmod(record - self.first, self.records_per_repeat)
        column = self.patched_words.index((inner_record, word))
        return self.values.reshape(-1), repeat * len(self.patched_words) + column


def find_repeats(
    records: Sequence[Array], patched: set[tuple[int, int]], first: int, last: int
) -> Iterator[RepeatedRecords]:
    """Yield the repeated sequences among records[first:last], in order.

    Empty if no sequence repeats at least `_MIN_REPEATS` times; the longest is left out, and the
    search ends, if too many of its words differ.

    Parameters
    ----------
    records
        int64 words of each record.
    patched
        Words (record, word) whose values change between runs; they are patched even if equal.
    first, last
        Range of records to search.
    """
    # record length, machine code and trampoline: records that differ in these cannot be patched
    signatures = [(len(words), int(words[0]), int(words[1])) for words in records[first:last]]
    id_by_signature = {key: index for index, key in enumerate(dict.fromkeys(signatures))}
    signature_ids = np.array([id_by_signature[key] for key in signatures], np.int64)
    start, length, repeat_count = _find_longest_repeat(signature_ids)
    if repeat_count < _MIN_REPEATS:
        return
    start += first
    stop = start + length * repeat_count
    repeated = _make_repeated_records(records, patched, start, length, repeat_count)
    if repeated is None:
        return
    yield from find_repeats(records, patched, first, start)
    yield repeated
    yield from find_repeats(records, patched, stop, last)


def _find_longest_repeat(signature_ids: Array) -> tuple[int, int, int]:
    """Find the longest repetition as (first, length, repeat_count); ties go to the shortest length.

    `signature_ids` is int64 [records]; records with equal numbers may repeat each other. Without a
    repetition the result is (0, 1, 1).
    """
    best, count = (0, 1, 1), len(signature_ids)
    for length in range(1, count // _MIN_REPEATS + 1):
        is_equal = signature_ids[length:] == signature_ids[:-length]
        padded = np.concatenate([[False], is_equal, [False]])
        edges = np.flatnonzero(padded[1:] != padded[:-1])
        run_lengths = edges[1::2] - edges[::2]
        if run_lengths.size:
            longest = int(run_lengths.argmax())
            repeat_count = int(run_lengths[longest]) // length + 1
            if repeat_count >= _MIN_REPEATS and repeat_count * length > best[1] * best[2]:
                best = int(edges[2 * longest]), length, repeat_count
    return best


def _make_repeated_records(
    records: Sequence[Array],
    patched: set[tuple[int, int]],
    first: int,
    length: int,
    repeat_count: int,
) -> RepeatedRecords | None:
    """Collect the words that differ between repetitions; return None if too many differ.

    The repetitions are `repeat_count` sequences of `length` records from `first` on. Words in
    `patched` (record, word) count as different.
    """
    patched_words: list[tuple[int, int]] = []
    values: list[Array] = []
    for inner in range(length):
        occurrences = range(first + inner, first + length * repeat_count, length)
        words_by_repeat = np.stack([records[record] for record in occurrences])
        differs = (words_by_repeat != words_by_repeat[0]).any(0)
        for record, word in patched:
            if record in occurrences:
                differs[word] = True
        patched_words += [(inner, int(word)) for word in np.flatnonzero(differs)]
        values.append(words_by_repeat[:, differs])
    word_count = sum(len(records[first + inner]) for inner in range(length))
    if _MIN_WORDS_PER_PATCH * len(patched_words) > word_count:
        return None
    addresses = [records[first + inner].ctypes.data + 8 * word for inner, word in patched_words]
    return RepeatedRecords(
        first,
        length,
        repeat_count,
        patched_words,
        np.array(addresses, np.int64),
        np.ascontiguousarray(np.concatenate(values, axis=1)),
    )


@cache
def get_repeat_runner() -> Callable[..., int]:
    """Return the compiled loop over the repetitions of a sequence of records.

    Its int64 arguments: address of the record runner's code, address of the record table, first
    record, last record (exclusive), number of repetitions, addresses of `patch_addresses` and
    `values` of `RepeatedRecords`, number of patched words. It returns -1, or the index of a record
    that failed.
    """
    address = _llvm.get_function_address(_write_repeat_runner_ir, (), "run_repeats", ())
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 8)(address)


def _write_repeat_runner_ir() -> str:
    """Return the LLVM module of a loop that patches words and runs records, repeatedly.

    Its function returns -1, or the index of the first record whose code failed.
    """
    module = ir.Module("run_repeats")
    function = ir.Function(module, ir.FunctionType(_INDEX, [_INDEX] * 8), "run_repeats")
    runner, table, first, last, repeat_count, addresses, values, patch_count = function.args
    names = ("entry", "repeat", "patch", "store", "call", "next", "good", "bad")
    entry, repeat, patch, store, call, advance, good, bad = (
        function.append_basic_block(name) for name in names
    )
    builder, int64_pointer = ir.IRBuilder(entry), _INDEX.as_pointer()
    zero, step = ir.Constant(_INDEX, 0), ir.Constant(_INDEX, 1)

    def element(base: Any, index: Any) -> Any:
        """Emit a pointer to int64 `index` of the array at address `base`; return it."""
        return builder.gep(builder.inttoptr(base, int64_pointer), [index])

    builder.branch(repeat)
    builder.position_at_end(repeat)
    repeat_index = builder.phi(_INDEX)
    repeat_index.add_incoming(zero, entry)
    builder.cbranch(builder.icmp_signed("<", repeat_index, repeat_count), patch, good)
    builder.position_at_end(patch)
    index = builder.phi(_INDEX)
    index.add_incoming(zero, repeat)
    builder.cbranch(builder.icmp_signed("<", index, patch_count), store, call)
    builder.position_at_end(store)
    value_index = builder.add(builder.mul(repeat_index, patch_count), index)
    value = builder.load(element(values, value_index))
    address = builder.load(element(addresses, index))
    builder.store(value, builder.inttoptr(address, int64_pointer))
    index.add_incoming(builder.add(index, step), store)
    builder.branch(patch)
    builder.position_at_end(call)
    runner_type = ir.FunctionType(_INDEX, [_INDEX] * 3).as_pointer()
    status = builder.call(builder.inttoptr(runner, runner_type), [table, first, last])
    builder.cbranch(builder.icmp_signed("<", status, zero), advance, bad)
    builder.position_at_end(advance)
    repeat_index.add_incoming(builder.add(repeat_index, step), advance)
    builder.branch(repeat)
    builder.position_at_end(good)
    builder.ret(ir.Constant(_INDEX, -1))
    builder.position_at_end(bad)
    builder.ret(status)
    return str(module)
