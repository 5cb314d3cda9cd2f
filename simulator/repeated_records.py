"""Steps that come again and again, as those of an unrolled recurrent layer.

Found among records and run as one loop.
Two turns are alike where the same machine code is called in the same order and few words of its
records differ: which slice of the sequence is read, where the state lies. The records of the first
turn serve all others; before each turn the words that differ are written into them. What is
computed is therefore what the single steps compute.

Must not know: what the steps do, whose the arrays are.
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

_MIN_REPEATS = 8  # turns that are worth a loop
_MIN_WORDS_PER_PATCH = 4  # at most one word in so many differs
_INDEX = ir.IntType(64)


@dataclass(frozen=True, eq=False)
class RepeatedRecords:
    """A stretch of records of which the first turn is called again and again.

    Parameters
    ----------
    first, length, times
        The place of the first turn among the records, its records, and how many turns there are.
    words
        The words of the first turn that differ: (record, word).
    places
        int64 [W], their addresses.
    values
        int64 [times, W], what they are in each turn.
    """

    first: int
    records_per_repeat: int
    repeat_count: int
    patched_words: Sequence[tuple[int, int]]
    patch_addresses: Array
    values: Array

    @property
    def all_records(self) -> range:
        """The places of the records of all turns."""
        return range(self.first, self.first + self.records_per_repeat * self.repeat_count)

    @property
    def redundant_records(self) -> range:
        """The places of the records that are not needed: those behind the first turn."""
        return self.all_records[self.records_per_repeat :]

    def run(self, table: int) -> int:
        """Walk through all turns, given the address of the table of records.

        Return what `native.walk` does.
        """
        return self._repeat_runner(self._record_runner_address, table, *self._runner_arguments)

    @cached_property
    def _repeat_runner(self) -> Callable[..., int]:
        return get_repeat_runner()

    @cached_property
    def _record_runner_address(self) -> int:
        return get_record_runner_address()

    @cached_property
    def _runner_arguments(self) -> tuple[int, ...]:
        ends = self.first, self.first + self.records_per_repeat
        return (
            *ends,
            self.repeat_count,
            self.patch_addresses.ctypes.data,
            self.values.ctypes.data,
            len(self.patched_words),
        )

    def locate_word(self, record: int, word: int) -> tuple[Array, int]:
        """Return where word `word` of record `record` stands now, as (flat array, index)."""
        turn, inner = divmod(record - self.first, self.records_per_repeat)
        return self.values.reshape(-1), turn * len(self.patched_words) + self.patched_words.index(
            (inner, word)
        )


def find_repeats(
    records: Sequence[Array], patched: set[tuple[int, int]], first: int, last: int
) -> Iterator[RepeatedRecords]:
    """Yield the turns among records[first:last], in order.

    `patched` are words (record, word) that change later.
    """
    kinds = [(len(words), int(words[0]), int(words[1])) for words in records[first:last]]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    start, length, times = _find_longest_repeat(
        np.array([numbers[kind] for kind in kinds], np.int64)
    )
    if times < _MIN_REPEATS:
        return
    start += first
    stop = start + length * times
    found = _make_repeated_records(records, patched, start, length, times)
    if found is None:
        return
    yield from find_repeats(records, patched, first, start)
    yield found
    yield from find_repeats(records, patched, stop, last)


def _find_longest_repeat(numbers: Array) -> tuple[int, int, int]:
    """Return (first, length, times) of the longest stretch of equal turns, of those the one of the shortest turns."""
    best, count = (0, 1, 1), len(numbers)
    for length in range(1, count // _MIN_REPEATS + 1):
        equal = np.concatenate([[False], numbers[length:] == numbers[:-length], [False]])
        edges = np.flatnonzero(equal[1:] != equal[:-1])
        runs = edges[1::2] - edges[::2]
        if runs.size:
            at = int(runs.argmax())
            times = int(runs[at]) // length + 1
            if times >= _MIN_REPEATS and times * length > best[1] * best[2]:
                best = int(edges[2 * at]), length, times
    return best


def _make_repeated_records(
    records: Sequence[Array], patched: set[tuple[int, int]], first: int, length: int, times: int
) -> RepeatedRecords | None:
    """Return the turns, None where too many words differ."""
    words: list[tuple[int, int]] = []
    values: list[Array] = []
    for inner in range(length):
        at = range(first + inner, first + length * times, length)
        column = np.stack([records[record] for record in at])
        differs = (column != column[0]).any(0)
        for record, word in patched:
            if record in at:
                differs[word] = True
        words += [(inner, int(word)) for word in np.flatnonzero(differs)]
        values.append(column[:, differs])
    if _MIN_WORDS_PER_PATCH * len(words) > sum(
        len(records[first + inner]) for inner in range(length)
    ):
        return None
    places = [records[first + inner].ctypes.data + 8 * word for inner, word in words]
    table = np.ascontiguousarray(np.concatenate(values, axis=1))
    return RepeatedRecords(first, length, times, words, np.array(places, np.int64), table)


@cache
def get_repeat_runner() -> Callable[..., int]:
    """Return again(walk, table, first, last, times, places, values, words).

    Walk the records that many times.
    `walk` is the address of `native.walk`'s code, `places` and `values` are those of
    `RepeatedRecords`. Returns what `walk` does.
    """
    address = _llvm.get_function_address(_write_repeat_runner_ir, (), "again", ())
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 8)(address)


def _write_repeat_runner_ir() -> str:
    module = ir.Module("again")
    function = ir.Function(module, ir.FunctionType(_INDEX, [_INDEX] * 8), "again")
    walk, table, first, last, times, places, values, words = function.args
    names = ("entry", "turn", "write", "word", "call", "next", "good", "bad")
    entry, turn, write, word, call, after, good, bad = (
        function.append_basic_block(name) for name in names
    )
    builder, zero, one, numbers = (
        ir.IRBuilder(entry),
        ir.Constant(_INDEX, 0),
        ir.Constant(_INDEX, 1),
        _INDEX.as_pointer(),
    )

    def element(base: Any, index: Any) -> Any:
        return builder.gep(builder.inttoptr(base, numbers), [index])

    builder.branch(turn)
    builder.position_at_end(turn)
    time = builder.phi(_INDEX)
    time.add_incoming(zero, entry)
    builder.cbranch(builder.icmp_signed("<", time, times), write, good)
    builder.position_at_end(write)
    index = builder.phi(_INDEX)
    index.add_incoming(zero, turn)
    builder.cbranch(builder.icmp_signed("<", index, words), word, call)
    builder.position_at_end(word)
    value = builder.load(element(values, builder.add(builder.mul(time, words), index)))
    builder.store(value, builder.inttoptr(builder.load(element(places, index)), numbers))
    index.add_incoming(builder.add(index, one), word)
    builder.branch(write)
    builder.position_at_end(call)
    kind = ir.FunctionType(_INDEX, [_INDEX] * 3).as_pointer()
    status = builder.call(builder.inttoptr(walk, kind), [table, first, last])
    builder.cbranch(builder.icmp_signed("<", status, zero), after, bad)
    builder.position_at_end(after)
    time.add_incoming(builder.add(time, one), after)
    builder.branch(turn)
    builder.position_at_end(good)
    builder.ret(ir.Constant(_INDEX, -1))
    builder.position_at_end(bad)
    builder.ret(status)
    return str(module)
