"""The C of one call of a program: part after part, with what is between them.

Equal steps in a row are a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .loop_rolling import roll_loops
from .program import (
    BoardProgram,
    ChipPart,
    HostPart,
    ProgramTensor,
    get_c_type,
    get_integer_buffer_key,
    sanitize_c_name,
)

__all__ = ["CallWriter", "format_scale", "get_quantize_function", "make_c_names"]


def make_c_names(arrays: Sequence[ProgramTensor], start: str) -> dict[str, str]:
    """Return {tensor: its C name}, each once."""
    found: dict[str, str] = {}
    for array in arrays:
        name = f"{start}_{sanitize_c_name(array.tensor)}"
        found[array.tensor] = name if name not in found.values() else f"{name}_{len(found)}"
    return found


class CallWriter:
    """The C of one call."""

    def __init__(self, program: BoardProgram) -> None:
        self.program = program
        self.input_names, self.output_names = (
            make_c_names(program.inputs, "in"),
            make_c_names(program.outputs, "out"),
        )
        self.states = {one.tensor: f"state{k}" for k, (one, _) in enumerate(program.states)}
        self.quantized_inputs = self._find_quantized_inputs()

    def _find_quantized_inputs(self) -> dict[str, tuple[str, int]]:
        """Return {input: (integer type, shift)} of what only one Quant, or several alike, read."""
        found: dict[str, set[tuple[str, int] | None]] = {
            array.tensor: set() for array in self.program.inputs
        }
        for part in self.program.parts:
            for index, array in enumerate(part.sources):
                if array.tensor in found:
                    port = (
                        part.inputs[index]
                        if isinstance(part, ChipPart) and part.quantized[index]
                        else None
                    )
                    found[array.tensor].add(
                        None if port is None or port.shift is None else (port.dtype, port.shift)
                    )
        return {
            name: one
            for name, kinds in found.items()
            if len(kinds) == 1 and (one := next(iter(kinds)))
        }

    def format_pointer(self, array: ProgramTensor, const: bool = True) -> str:
        """Return a pointer to a tensor between parts."""
        kind = get_c_type(array.dtype)
        if array.tensor in self.input_names:
            return self.input_names[array.tensor]
        if array.tensor in self.output_names:
            return self.output_names[array.tensor]
        if array.tensor in self.states:
            return self.states[array.tensor]
        return f"({'const ' if const else ''}{kind} *)AT({self.program.arena_offsets[array.key]})"

    def format_parameters(self, quantized: bool) -> list[str]:
        """Return those of `run` and `run_q`."""
        found = []
        for array in self.program.inputs:
            kind = get_c_type(array.dtype)
            if quantized and array.tensor in self.quantized_inputs:
                kind = f"{self.quantized_inputs[array.tensor][0]}_t"
            found.append(f"const {kind} *{self.input_names[array.tensor]}")
        return [
            *found,
            *(
                f"{get_c_type(a.dtype)} *{self.output_names[a.tensor]}"
                for a in self.program.outputs
            ),
        ]

    def format_inner_parameters(self) -> list[str]:
        """Return the parameters of the function behind both.

        An input as floats or as integers, one of them NULL.
        """
        found = []
        for array in self.program.inputs:
            name = self.input_names[array.tensor]
            found.append(f"const {get_c_type(array.dtype)} *{name}")
            if array.tensor in self.quantized_inputs:
                found.append(f"const {self.quantized_inputs[array.tensor][0]}_t *q_{name}")
        return [
            *found,
            *(
                f"{get_c_type(a.dtype)} *{self.output_names[a.tensor]}"
                for a in self.program.outputs
            ),
        ]

    def format_arguments(self, quantized: bool) -> str:
        """Return the arguments to the function behind both."""
        found = []
        for array in self.program.inputs:
            name, both = self.input_names[array.tensor], array.tensor in self.quantized_inputs
            found.append("NULL" if both and quantized else name)
            if both:
                found.append(name if quantized else "NULL")
        return ", ".join([*found, *self.output_names.values()])

    def iterate_lines(self) -> Iterator[str]:
        """Yield the lines of one call."""
        yield from roll_loops(
            [
                (
                    part.name,
                    list(
                        self._iterate_chip_lines(number, part)
                        if isinstance(part, ChipPart)
                        else self._iterate_host_lines(number, part)
                    ),
                )
                for number, part in enumerate(self.program.parts)
            ]
        )
        if self.program.states:
            yield ""
            yield "    /* what the next call begins with */"
        for one, two in self.program.states:
            yield (
                f"    memcpy({self.states[one.tensor]}, {self.format_pointer(two)}, sizeof "
                f"{self.states[one.tensor]});"
            )

    def _iterate_chip_lines(self, number: int, part: ChipPart) -> Iterator[str]:
        for index, (array, port) in enumerate(zip(part.sources, part.inputs, strict=True)):
            source = self.format_pointer(array)
            if part.quantized[index]:
                offset = self.program.arena_offsets[get_integer_buffer_key(part, index)]
                rule = get_quantize_function(port.dtype, port.shift or 0)
                made = (
                    f"{rule}({source}, ({port.dtype}_t *)AT({offset}), {port.elements}, "
                    f"{format_scale(port.shift or 0)});"
                )
                if array.tensor in self.quantized_inputs:
                    yield (
                        f"    if (q_{source} != NULL) memcpy(AT({offset}), q_{source}, "
                        f"{port.bytes});"
                    )
                    yield f"    else {made}"
                else:
                    yield f"    {made}"
                source = f"AT({offset})"
            yield f"    inputs[{index}] = {source};"
            yield f"    SHOW({number}, 0, {index}, inputs[{index}], {port.bytes});"
        yield f"    rc = forward({part.package_index}, inputs);"
        yield f"    if (rc != {self.program.prefix.upper()}_OK) return rc;"
        for index, (array, port) in enumerate(zip(part.targets, part.outputs, strict=True)):
            yield f"    rc = output_of({part.package_index}, {index}, &found);"
            yield f"    if (rc != {self.program.prefix.upper()}_OK) return rc;"
            yield f"    SHOW({number}, 1, {index}, found, {port.bytes});"
            place = self.format_pointer(array, const=False)
            if part.dequantized[index]:
                kind, factor = f"{port.dtype}_t", format_scale(-(port.shift or 0))
                yield (
                    f"    dequantize_{port.dtype}((const {kind} *)found, {place}, "
                    f"{port.elements}, {factor});"
                )
            else:
                yield f"    memcpy({place}, found, {port.bytes});"

    def _iterate_host_lines(self, number: int, part: HostPart) -> Iterator[str]:
        for index, array in enumerate(part.sources):
            yield f"    SHOW({number}, 0, {index}, {self.format_pointer(array)}, {array.bytes});"
        scratch = f"{part.name}.scratch"
        room = (
            f"AT({self.program.arena_offsets[scratch]})"
            if scratch in self.program.arena_offsets
            else "NULL"
        )
        given = [
            *(self.format_pointer(a) for a in part.sources),
            *(self.format_pointer(a, const=False) for a in part.targets),
            room,
        ]
        yield f"    {self.program.prefix}_{part.first}({', '.join(given)});"
        for index, array in enumerate(part.targets):
            yield f"    SHOW({number}, 1, {index}, {self.format_pointer(array)}, {array.bytes});"


def format_scale(shift: int) -> str:
    """Return 2^shift as a C literal."""
    return f"0x1p{shift:+d}f"


def get_quantize_function(dtype: str, shift: int) -> str:
    """Return the border function of a Quant.

    The half is added in float32 as the NPU does, exactly below scale 1.
    """
    return f"quantize_{dtype}" if dtype == "int8" and shift >= 0 else f"quantize_{dtype}_exact"
