"""Call compiled steps through one C interface, so that a program runs in a single Python call.

A `NativeLoop` is a jitted function with its arguments: constants, and references to the arrays of a
step. For concrete arrays it becomes a *record*: 64-bit words with the address of the machine code
and the arguments as Numba lays them out. An array has seven or more words, a tuple the words of its
members. A *trampoline*, one per sequence of word types, calls the machine code with the words of a
record; `get_record_runner` calls one record after another. A loop may call another one by its
record: a `NestedLoop`.

Owns: this layout, which is Numba's calling convention. Must not know: the operators of the loops,
the owners of the arrays.
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
from simulator._code_cache import ArgumentType
from simulator._jit import JittedFunction, config
from simulator.kernel import Array, data_address

__all__ = [
    "InputRef",
    "NativeLoop",
    "NestedLoop",
    "OutputRef",
    "Scratch",
    "ScratchAllocator",
    "get_record_runner",
    "get_record_runner_address",
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
_ARRAY_DATA_WORD = 4  # index of the data address among the words of an array


@dataclass(frozen=True)
class InputRef:
    """Placeholder for input `index` of a step, optionally reshaped; -1 in `shape` is inferred."""

    index: int = 0
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class OutputRef:
    """Placeholder for output `index` of a step, optionally reshaped; -1 in `shape` is inferred."""

    index: int = 0
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Scratch:
    """Placeholder for flat temporary memory that a loop uses while it runs.

    Attributes
    ----------
    size
        Number of elements, in total or per row.
    dtype
        Type of the elements.
    per_row
        Whether `size` is per row. The rows of a step are the longest axis 0 of its arrays.
    """

    size: int
    dtype: Any
    per_row: bool = False

    def size_bytes(self, rows: int) -> int:
        """Return the size in bytes for a step whose arrays have `rows` rows."""
        return self.size * np.dtype(self.dtype).itemsize * (rows if self.per_row else 1)


@dataclass(frozen=True, eq=False)
class NativeLoop:
    """A jitted function and its arguments, a callable ``loop(inputs, outputs)``.

    Arguments are constants and the placeholders `InputRef`, `OutputRef`, `Scratch` and
    `NestedLoop`. The last two may also be members of tuples. The same `Scratch` object is the same
    memory wherever it occurs.
    """

    function: Any
    arguments: tuple[Any, ...]

    def __call__(self, ins: Sequence[Array], outs: Sequence[Array]) -> None:
        """Run the loop on concrete arrays: one call of compiled code, or Python if JIT is disabled.

        `outs` are filled. Scratch memory is allocated for the largest number of rows. Raises
        MemoryError if the code fails.
        """
        rows = max((len(array) for array in (*ins, *outs) if array.ndim), default=1)
        memory = np.empty(self.scratch_bytes(rows), np.uint8)
        if config.DISABLE_JIT:
            self.bind_interpreted(ins, outs, ScratchAllocator(memory, rows))()
            return
        record, _, live_arrays = make_record(self, ins, outs, ScratchAllocator(memory, rows))
        words = np.array(record, np.int64)
        table = np.array([data_address(words)], np.int64)
        failed = get_record_runner()(data_address(table), 0, 1) >= 0
        del live_arrays  # not before: the machine code reads them
        if failed:
            raise MemoryError("out of memory in a step of the simulator")

    def scratch_bytes(self, rows: int) -> int:
        """Return the bytes of scratch memory that the loop needs for arrays with `rows` rows.

        Includes alignment; a `Scratch` that occurs several times counts once.
        """
        unique_scratches = {id(scratch): scratch for scratch in _iter_scratches(self.arguments)}
        return sum(
            -(-scratch.size_bytes(rows) // 64) * 64 + 64 for scratch in unique_scratches.values()
        )

    def bind_interpreted(
        self, ins: Sequence[Array], outs: Sequence[Array], memory: ScratchAllocator
    ) -> Callable[[], None]:
        """Return a function without arguments that runs the loop in Python on these arrays.

        `memory` provides the scratch arrays, also of nested loops.
        """

        def substitute(placeholder: Any) -> Any:
            """Return scratch memory as an array, or a nested loop as a Python function."""
            if isinstance(placeholder, NestedLoop):
                nested = placeholder
                return nested.loop.bind_interpreted(nested.inputs, nested.outputs, memory)
            return memory.allocate(placeholder)

        arguments = [
            self.resolve_argument(_substitute_placeholders(argument, substitute), ins, outs)
            for argument in self.arguments
        ]
        return lambda: self.function(*arguments)

    @staticmethod
    def resolve_argument(argument: Any, ins: Sequence[Array], outs: Sequence[Array]) -> Any:
        """Return the array, in its shape, for an `InputRef` or `OutputRef`.

        Other arguments unchanged.
        """
        if isinstance(argument, InputRef | OutputRef):
            array = (ins if isinstance(argument, InputRef) else outs)[argument.index]
            return array if argument.shape is None else array.reshape(argument.shape)
        return argument


@dataclass(frozen=True, eq=False)
class NestedLoop:
    """Placeholder for another loop that a loop calls by its record, int64 words.

    Both loops are compiled separately. Compiled code starts the nested loop with
    `_conv_simd.run_record`; its arguments are then constants, and `Scratch` objects that both loops
    share. A loop with one `InputRef` and one `OutputRef` of shapes (1, rows, 1, columns) is started
    with `_conv_simd.run_matrix_record`, which writes the addresses of the arrays into the record.

    Parameters
    ----------
    loop
        Loop to call.
    inputs, outputs
        Arrays with one row, of the types that `run_matrix_record` will pass.
    """

    loop: NativeLoop
    inputs: Sequence[Array] = ()
    outputs: Sequence[Array] = ()


#: Arguments in which `Scratch` may occur.
_SCRATCH_HOLDERS = (Scratch, NestedLoop, tuple)


class ScratchAllocator:
    """Divides scratch memory among `Scratch` placeholders, one slice for each of them.

    memory : uint8 array of sufficient size. rows : number of rows of the step's arrays.
    """

    def __init__(self, memory: Array, rows: int) -> None:
        """Start with all of `memory` (uint8) free; scratch is sized for `rows` rows."""
        self._memory, self._rows, self._first = memory, rows, 0
        self._slices: dict[int, Array] = {}

    def allocate(self, scratch: Scratch) -> Array:
        """Return the slice of memory for `scratch`, as an array of its dtype; one slice per object.

        Slices begin at multiples of 64 bytes from the first, with at least 64 bytes between them.
        """
        if id(scratch) not in self._slices:
            size, start = scratch.size_bytes(self._rows), self._first
            self._first += -(-size // 64) * 64 + 64
            self._slices[id(scratch)] = self._memory[start : start + size].view(scratch.dtype)
        return self._slices[id(scratch)]


def _iter_scratches(argument: Any) -> Iterator[Scratch]:
    """Yield every `Scratch` in an argument: itself, in a tuple, or in a nested loop.

    Recursively, in order of the arguments.
    """
    if isinstance(argument, Scratch):
        yield argument
    elif isinstance(argument, NestedLoop):
        yield from _iter_scratches(argument.loop.arguments)
    elif isinstance(argument, tuple):
        for member in argument:
            if isinstance(member, _SCRATCH_HOLDERS):
                yield from _iter_scratches(member)


def _substitute_placeholders(argument: Any, substitute: Callable[[Any], Any]) -> Any:
    """Return `argument` with every `Scratch` and `NestedLoop` replaced by ``substitute`` of it.

    Also in tuples, named ones included; a tuple without `Scratch` is returned unchanged.
    """
    if isinstance(argument, Scratch | NestedLoop):
        return substitute(argument)
    if not isinstance(argument, tuple) or not any(True for _ in _iter_scratches(argument)):
        return argument
    members = [_substitute_placeholders(member, substitute) for member in argument]
    return tuple(members) if type(argument) is tuple else type(argument)(*members)


def make_record(
    loop: NativeLoop, ins: Sequence[Array], outs: Sequence[Array], memory: ScratchAllocator
) -> tuple[list[int], list[tuple[int, bool, int]], list[Array]]:
    """Compile a loop, and return the record that calls it with concrete arrays.

    A record is a list of int64 words: addresses of the code, then its arguments.

    Parameters
    ----------
    loop
        Loop to call.
    ins, outs
        Arrays of the step.
    memory
        Scratch memory, which a nested loop shares with the loop that calls it.

    Returns
    -------
    words : list of int
        The record.
    addresses : list of (int, bool, int)
        The words that are addresses of inputs and outputs: (word, whether it is an input, index).
    live_arrays : list of arrays
        Arrays that the record points at; they must live as long as the record.
    """
    words = [0, 0]
    addresses: list[tuple[int, bool, int]] = []
    argument_types = []
    live_arrays: list[Array] = []

    def substitute(placeholder: Any) -> Array:
        """Return scratch memory as an array, or the record of a nested loop as int64 words.

        The indices of the words with its array addresses, inputs first, are appended to that
        record, which is kept alive in `live_arrays`.
        """
        if isinstance(placeholder, Scratch):
            return memory.allocate(placeholder)
        nested_words, nested_addresses, nested_arrays = make_record(
            placeholder.loop, placeholder.inputs, placeholder.outputs, memory
        )
        # `run_matrix_record` expects the input's word index, then the output's, at the end
        inputs_first = sorted(nested_addresses, key=lambda address: not address[1])
        indices = [word for word, _, _ in inputs_first]
        record = np.array([*nested_words, *indices], np.int64)
        live_arrays.extend([record, *nested_arrays])
        return record

    for argument in loop.arguments:
        value = argument
        if isinstance(argument, InputRef | OutputRef):
            data_word = len(words) + _ARRAY_DATA_WORD
            addresses.append((data_word, isinstance(argument, InputRef), argument.index))
            value = NativeLoop.resolve_argument(argument, ins, outs)
        elif not isinstance(argument, np.ndarray):
            value = _substitute_placeholders(argument, substitute)
        argument_types.append(_code_cache.argument_type(value))
        words += _list_words(value)
    words[:2] = _get_code_addresses(loop.function, tuple(argument_types))
    return words, addresses, live_arrays


@cache
def _get_code_addresses(
    function: JittedFunction, argument_types: tuple[ArgumentType, ...]
) -> tuple[int, int]:
    """Return the address of the code of `function` for `argument_types`, and of its trampoline."""
    word_types = "".join(map(_list_word_types, argument_types))
    return (
        _code_cache.get_function_address(function, argument_types),
        _llvm.get_function_address(_write_trampoline_ir, (word_types,), "trampoline", ()),
    )


def _list_word_types(argument_type: ArgumentType) -> str:
    """Return the type letters of the words of an argument of this type.

    They are "p" (address), "q", "i", "h", "b" (integers of 64, 32, 16, 8 bits; a bool is "b"), "f"
    and "d" (floats of 32, 64 bits). An array has 5 words before its sizes and strides, a tuple
    those of its members, None one.
    """
    if isinstance(argument_type, tuple) and argument_type[0] == "array":
        return "ppqqp" + "qq" * int(argument_type[2])
    if isinstance(argument_type, tuple):
        return "".join(map(_list_word_types, argument_type[1]))
    if argument_type == "none":
        return "p"
    letter = np.dtype(argument_type).char
    return {"?": "b", "l": "q"}.get(letter, letter)


def _list_words(value: Any) -> list[int]:
    """Return the words of an argument as int64, of the types that `_list_word_types` says."""
    if isinstance(value, np.ndarray):
        head = (0, 0, value.size, value.itemsize, data_address(value))
        return [*head, *value.shape, *value.strides]
    if isinstance(value, tuple):
        return [word for member in value for word in _list_words(member)]
    if value is None:
        return [0]
    if isinstance(value, int | np.bool_):
        return [int(value)]
    if type(value) is float:
        return [struct.unpack("q", struct.pack("d", value))[0]]
    padded = value.tobytes().ljust(8, b"\0")
    return [struct.unpack("q", padded)[0]]


def _write_trampoline_ir(kinds: str) -> str:
    """Return the LLVM module of a function that calls machine code with the words of a record.

    The function takes the record's address, calls the code at word 0 with the words from 2 on, of
    the type letters `kinds`, and returns its status.
    """
    module = ir.Module("trampoline")
    function = ir.Function(module, ir.FunctionType(_DWORD, [_INDEX]), "trampoline")
    builder = ir.IRBuilder(function.append_basic_block())
    words = builder.inttoptr(function.args[0], _INDEX.as_pointer())

    def word(index: int) -> Any:
        """Emit the load of word `index` of the record and return it."""
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
    """Return the compiled function ``run_records(table, first, last)``.

    It runs the records whose addresses are in table[first:last], one after another, and returns -1
    or the index of a record that failed. `table` is the address of int64 values.
    """
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(get_record_runner_address())


def get_record_runner_address() -> int:
    """Return the address of the compiled function that runs a range of records."""
    return _llvm.get_function_address(_write_record_runner_ir, (), "run_records", ())


def _write_record_runner_ir() -> str:
    """Return the LLVM module of a function that runs records first..last - 1 of a table.

    The table has their addresses. The function returns -1, or the index of the first record whose
    code failed.
    """
    module = ir.Module("run_records")
    function = ir.Function(module, ir.FunctionType(_INDEX, [_INDEX] * 3), "run_records")
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
    record = builder.load(builder.gep(builder.inttoptr(table, _INDEX.as_pointer()), [index]))
    words = builder.inttoptr(record, _INDEX.as_pointer())
    code = builder.load(builder.gep(words, [ir.Constant(_INDEX, 1)]))
    callee = ir.FunctionType(_DWORD, [_INDEX]).as_pointer()
    status = builder.call(builder.inttoptr(code, callee), [record])
    builder.cbranch(builder.icmp_signed("==", status, ir.Constant(_DWORD, 0)), after, bad)
    builder.position_at_end(after)
    index.add_incoming(builder.add(index, ir.Constant(_INDEX, 1)), after)
    builder.branch(head)
    builder.position_at_end(good)
    builder.ret(ir.Constant(_INDEX, -1))
    builder.position_at_end(bad)
    builder.ret(index)
    return str(module)
