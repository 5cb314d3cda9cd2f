"""Compiled steps behind one C interface, so that a whole program runs in a single call from Python.

A `NativeLoop` is a jitted function with its arguments: constants, and places for the arrays of a
step. For given arrays it becomes a *record*, 64-bit words with the address of the machine code and
the arguments as Numba lays them out: an array is seven words and more, a tuple the words of its
members. A *trampoline*, one per list of word types, calls the machine code with the words of a
record; `get_record_runner` calls record after record. A loop may call another one by its record: a
`NestedLoop`.

Owns: this layout, which is Numba's calling convention. Must not know: what the loops do, whose the
arrays are.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from simulator import _code_cache, _llvm
from simulator._jit import config
from simulator.kernel import Array

__all__ = [
    "InputRef",
    "NativeLoop",
    "NestedLoop",
    "OutputRef",
    "Scratch",
    "data_address",
    "get_record_runner",
    "get_record_runner_address",
    "get_trampoline_address",
    "make_record",
]

_DWORD, _INDEX, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
#: LLVM's types by the letters of `struct`.
_LLVM_TYPES: dict[str, Any] = {
    "p": _POINTER,
    "q": _INDEX,
    "i": _DWORD,
    "h": ir.IntType(16),
    "b": ir.IntType(8),
    "f": ir.FloatType(),
    "d": ir.DoubleType(),
}
_TYPE_BITS = {"p": 64, "q": 64, "i": 32, "h": 16, "b": 8, "f": 32, "d": 64}
_ARRAY_DATA_WORD = 4  # the word of an array that is its address


@dataclass(frozen=True)
class InputRef:
    """Stands for input `index` of a step, in another shape where one is given.

    A -1 in it follows the batch.
    """

    index: int = 0
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class OutputRef:
    """Stands for output `index` of a step, as `InputRef`."""

    index: int = 0
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Scratch:
    """Stands for memory that a loop may use while it runs.

    Flat, of `size` numbers, or of so many for each row.
    Rows are counted along axis 0 of the step's arrays, in the longest of them.
    """

    size: int
    dtype: Any
    per_row: bool = False

    def size_bytes(self, rows: int) -> int:
        """Return the bytes for arrays of so many rows."""
        return self.size * np.dtype(self.dtype).itemsize * (rows if self.per_row else 1)


@dataclass(frozen=True, eq=False)
class NativeLoop:
    """A jitted function and its arguments, `InputRef`, `OutputRef`, `Scratch` and `NestedLoop` among them.

    Called, it runs from Python. `Scratch` and `NestedLoop` may also stand in tuples. One and the
    same `Scratch` is the same memory wherever it stands.
    """

    function: Any
    arguments: tuple[Any, ...]

    def __call__(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:
        """Run on these arrays."""
        rows = max((len(a) for a in (*ins, *outs) if a.ndim), default=1)
        if config.DISABLE_JIT:
            self.bind_interpreted(
                ins, outs, _ScratchAllocator(np.empty(self.scratch_bytes(rows), np.uint8), rows)
            )()
            return
        memory = np.empty(self.scratch_bytes(rows), np.uint8)
        numbers, _, kept = make_record(self, ins, outs, memory, rows)
        words = np.array(numbers, np.int64)
        table = np.array([data_address(words)], np.int64)
        failed = get_record_runner()(data_address(table), 0, 1) >= 0
        del kept  # not before: the machine code reads it
        if failed:
            raise MemoryError("a step of the simulator found no memory")

    def scratch_bytes(self, rows: int) -> int:
        """Return the bytes of scratch memory that it needs."""
        different = {id(a): a for a in _iter_scratches(self.arguments)}
        return sum(-(-a.size_bytes(rows) // 64) * 64 + 64 for a in different.values())

    def bind_interpreted(
        self, ins: Sequence[Array], outs: Sequence[Array], memory: _ScratchAllocator
    ) -> Callable[[], None]:
        """Return what runs it without machine code."""

        def made(wanted: Any) -> Any:
            if isinstance(wanted, NestedLoop):
                return wanted.loop.bind_interpreted(wanted.inputs, wanted.outputs, memory)
            return memory.allocate(wanted)

        given = [
            self.resolve_argument(_substitute_placeholders(a, made), ins, outs)
            for a in self.arguments
        ]
        return lambda: self.function(*given)

    @staticmethod
    def resolve_argument(argument: Any, ins: Sequence[Array], outs: Sequence[Array]) -> Any:
        """Return what stands for an argument.

        For `InputRef` and `OutputRef` the array in its shape.
        """
        if isinstance(argument, InputRef | OutputRef):
            array = (ins if isinstance(argument, InputRef) else outs)[argument.index]
            return array if argument.shape is None else array.reshape(argument.shape)
        return argument


@dataclass(frozen=True, eq=False)
class NestedLoop:
    """Stands for another loop that the loop calls by its record, int64 words.

    Each is compiled by itself.
    Compiled code starts it with `_conv_simd.run`. Its arguments are the constants and the `Scratch`
    that both have; or, of a loop with one `InputRef` and one `OutputRef` of shapes (1, rows, 1,
    numbers), the arrays that `_conv_simd.product` writes into the words.

    Parameters
    ----------
    loop
        The loop.
    inputs, outputs
        Arrays in the form of those that `product` puts in their place, with one row.
    """

    loop: NativeLoop
    inputs: Sequence[Array] = ()
    outputs: Sequence[Array] = ()


class _ScratchAllocator:
    """Scratch memory for arrays of so many rows, handed out once for each `Scratch`."""

    def __init__(self, memory: Array, rows: int) -> None:
        self._memory, self._rows, self._first = memory, rows, 0
        self._cut: dict[int, Array] = {}

    def allocate(self, scratch: Scratch) -> Array:
        """Return the memory of a `Scratch`."""
        if id(scratch) not in self._cut:
            size, start = scratch.size_bytes(self._rows), self._first
            self._first += -(-size // 64) * 64 + 64
            self._cut[id(scratch)] = self._memory[start : start + size].view(scratch.dtype)
        return self._cut[id(scratch)]


def _iter_scratches(argument: Any) -> Iterator[Scratch]:
    """Yield every `Scratch` in an argument.

    Itself, or a member of a tuple, or what a called loop has.
    """
    if isinstance(argument, Scratch):
        yield argument
    elif isinstance(argument, NestedLoop):
        yield from _iter_scratches(argument.loop.arguments)
    elif isinstance(argument, tuple):
        for member in argument:
            yield from _iter_scratches(member)


def _substitute_placeholders(argument: Any, substitute: Callable[[Any], Any]) -> Any:
    """Return an argument with what is `substitute` in place of every `Scratch` and `NestedLoop` in it."""
    if isinstance(argument, Scratch | NestedLoop):
        return substitute(argument)
    if not isinstance(argument, tuple) or not any(True for _ in _iter_scratches(argument)):
        return argument
    members = [_substitute_placeholders(member, substitute) for member in argument]
    return tuple(members) if type(argument) is tuple else type(argument)(*members)


def make_record(
    loop: NativeLoop, ins: Sequence[Array], outs: Sequence[Array], memory: Array, rows: int
) -> tuple[list[int], list[tuple[int, bool, int]], list[Array]]:
    """Return the words of a loop on these arrays, where the addresses of inputs and outputs stand, and what it needs.

    The second as (word, whether it is an input, which one). The third must live as long as the
    record. `memory` is what `Scratch` is cut from.
    """
    return _make_record(loop, ins, outs, _ScratchAllocator(memory, rows))


def _make_record(
    loop: NativeLoop, ins: Sequence[Array], outs: Sequence[Array], memory: _ScratchAllocator
) -> tuple[list[int], list[tuple[int, bool, int]], list[Array]]:
    words, places, kinds, given = [0, 0], list[tuple[int, bool, int]](), [], []
    kept: list[Array] = []

    def made(wanted: Any) -> Array:
        if isinstance(wanted, Scratch):
            return memory.allocate(wanted)
        inner, own, more = _make_record(wanted.loop, wanted.inputs, wanted.outputs, memory)
        ends = [
            word for word, _, _ in sorted(own, key=lambda place: not place[1])
        ]  # the input's, then the output's
        kept.extend([np.array([*inner, *ends], np.int64), *more])
        return kept[-1 - len(more)]

    for argument in loop.arguments:
        value = NativeLoop.resolve_argument(_substitute_placeholders(argument, made), ins, outs)
        if isinstance(argument, InputRef | OutputRef):
            places.append(
                (len(words) + _ARRAY_DATA_WORD, isinstance(argument, InputRef), argument.index)
            )
        given.append(_code_cache.argument_type(value))
        flat = _flatten_to_words(value)
        kinds += [kind for kind, _ in flat]
        words += [word for _, word in flat]
    words[:2] = (
        _code_cache.get_function_address(loop.function, tuple(given)),
        get_trampoline_address("".join(kinds)),
    )
    return words, places, kept


def _flatten_to_words(value: Any) -> list[tuple[str, int]]:
    """Return the words of an argument, each with the letter of its type."""
    if isinstance(value, np.ndarray):
        sizes = [("q", size) for size in (*value.shape, *value.strides)]
        return [
            ("p", 0),
            ("p", 0),
            ("q", value.size),
            ("q", value.itemsize),
            ("p", data_address(value)),
            *sizes,
        ]
    if isinstance(value, tuple):
        return [word for member in value for word in _flatten_to_words(member)]
    if value is None:
        return [("p", 0)]
    if isinstance(value, bool | np.bool_):
        return [("b", int(value))]
    if isinstance(value, int):
        return [("q", value)]
    if type(value) is float:
        return [("d", struct.unpack("q", struct.pack("d", value))[0])]
    letter = value.dtype.char if value.dtype.char in _LLVM_TYPES else {"l": "q"}[value.dtype.char]
    padded = value.tobytes().ljust(8, b"\0")
    return [(letter, struct.unpack("q", padded)[0])]


_OBJECT_HEADER_BYTES = (
    object.__basicsize__
)  # bytes of a Python object before its own fields; an array's first is its address


def data_address(array: Array) -> int:
    """Return where an array's numbers are, as `array.ctypes.data` does in ten times the time."""
    return ctypes.c_size_t.from_address(id(array) + _OBJECT_HEADER_BYTES).value


def get_trampoline_address(kinds: str) -> int:
    """Return the address of the function that calls machine code with words of these types.

    It takes the address of a record and returns Numba's status: 0 where all went well.
    """
    return _llvm.get_function_address(_write_trampoline_ir, (kinds,), "trampoline", ())


def _write_trampoline_ir(kinds: str) -> str:
    module = ir.Module("trampoline")
    function = ir.Function(module, ir.FunctionType(_DWORD, [_INDEX]), "trampoline")
    builder = ir.IRBuilder(function.append_basic_block())
    words = builder.inttoptr(function.args[0], _INDEX.as_pointer())

    def word(index: int) -> Any:
        return builder.load(builder.gep(words, [ir.Constant(_INDEX, index)]))

    arguments: list[Any] = [builder.bitcast(builder.alloca(_POINTER), _POINTER) for _ in range(2)]
    for index, letter in enumerate(kinds):
        value, kind = word(index + 2), _LLVM_TYPES[letter]
        if letter == "p":
            value = builder.inttoptr(value, kind)
        elif letter in "fd":
            bits = value if letter == "d" else builder.trunc(value, _DWORD)
            value = builder.bitcast(bits, kind)
        elif _TYPE_BITS[letter] < 64:
            value = builder.trunc(value, kind)
        arguments.append(value)
    callee = ir.FunctionType(_DWORD, [argument.type for argument in arguments])
    builder.ret(builder.call(builder.inttoptr(word(0), callee.as_pointer()), arguments))
    return str(module)


@cache
def get_record_runner() -> Callable[[int, int, int], int]:
    """Return walk(table, first, last).

    Run the records whose addresses stand in table[first:last], one by one.
    Returns -1, or the place of a record that failed.
    """
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(get_record_runner_address())


def get_record_runner_address() -> int:
    """Return the address of the code of `get_record_runner`."""
    return _llvm.get_function_address(_write_record_runner_ir, (), "walk", ())


def _write_record_runner_ir() -> str:
    module = ir.Module("walk")
    function = ir.Function(module, ir.FunctionType(_INDEX, [_INDEX] * 3), "walk")
    table, first, last = function.args
    blocks = [
        function.append_basic_block(name)
        for name in ("entry", "head", "body", "next", "good", "bad")
    ]
    entry, head, body, after, good, bad = blocks
    builder = ir.IRBuilder(entry)
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(_INDEX)
    index.add_incoming(first, entry)
    builder.cbranch(builder.icmp_signed("<", index, last), body, good)
    builder.position_at_end(body)
    at = builder.load(builder.gep(builder.inttoptr(table, _INDEX.as_pointer()), [index]))
    words = builder.inttoptr(at, _INDEX.as_pointer())
    code = builder.load(builder.gep(words, [ir.Constant(_INDEX, 1)]))
    callee = ir.FunctionType(_DWORD, [_INDEX]).as_pointer()
    status = builder.call(builder.inttoptr(code, callee), [at])
    builder.cbranch(builder.icmp_signed("==", status, ir.Constant(_DWORD, 0)), after, bad)
    builder.position_at_end(after)
    index.add_incoming(builder.add(index, ir.Constant(_INDEX, 1)), after)
    builder.branch(head)
    builder.position_at_end(good)
    builder.ret(ir.Constant(_INDEX, -1))
    builder.position_at_end(bad)
    builder.ret(index)
    return str(module)
