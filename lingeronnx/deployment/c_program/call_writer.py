"""Write the C of one call of a program: all parts, and the conversions and copies between them.

Equal steps in a row become a loop. Steps are equal if their C differs only in arena offsets and
part numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...common.escaping import make_c_suffix
from .program import (
    BoardProgram,
    ChipPart,
    HostPart,
    ProgramTensor,
    get_c_type,
    get_integer_buffer_key,
)

__all__ = [
    "CallWriter",
    "format_scale",
    "format_scratch_pointer",
    "get_quantize_function",
    "make_c_names",
    "roll_loops",
]

#: An offset in the arena, or the index of a part that is passed to the watch function.
_VARIABLE = re.compile(r"AT\((\d+)\)|SHOW\((\d+),")
#: Minimum number of iterations of a loop.
MIN_REPEATS = 3


def make_c_names(arrays: Sequence[ProgramTensor], prefix: str) -> dict[str, str]:
    """Return {tensor name: C name} with a unique name "<prefix>_<tensor>" for each tensor.

    A name that is taken gets a number.
    """
    names: dict[str, str] = {}
    for array in arrays:
        name = f"{prefix}_{make_c_suffix(array.tensor)}"
        names[array.tensor] = name if name not in names.values() else f"{name}_{len(names)}"
    return names


class CallWriter:
    """Writes the C of one call.

    input_names, output_names : C name of each input and output, by tensor. states : C expression of
    each state.
    quantized_inputs : {input: (integer type, shift)} of inputs that `run_q` takes as integers.
    """

    def __init__(self, program: BoardProgram) -> None:
        """Choose the C names of inputs, outputs and states; find inputs that may be integers.

        These are inputs that only Quants of one integer type and shift read.
        """
        self.program = program
        self.input_names = make_c_names(program.inputs, "in")
        self.output_names = make_c_names(program.outputs, "out")
        self.states = {
            fed.tensor: f"ram.fields.state{k}" for k, (fed, _) in enumerate(program.states)
        }
        self.quantized_inputs = self._find_quantized_inputs()

    def _find_quantized_inputs(self) -> dict[str, tuple[str, int]]:
        """Find the program's inputs that are consumed only by Quants of one integer type and shift.

        Returns
        -------
        dict
            {input: (integer type, shift)}; these may be passed as integers.
        """
        consumers: dict[str, set[tuple[str, int] | None]] = {
            array.tensor: set() for array in self.program.inputs
        }
        for part in self.program.parts:
            for index, array in enumerate(part.sources):
                if array.tensor in consumers:
                    consumers[array.tensor].add(_get_quantized_type(part, index))
        quantized_inputs = {}
        for name, types in consumers.items():
            if len(types) == 1:
                (quantized_type,) = types
                if quantized_type is not None:
                    quantized_inputs[name] = quantized_type
        return quantized_inputs

    def format_pointer(self, array: ProgramTensor, const: bool = True) -> str:
        """Format the C pointer to an input, output, state, or tensor in the arena.

        `const` makes an arena pointer one to const; the others are names and do not depend on it.
        """
        c_type = get_c_type(array.dtype)
        if array.tensor in self.input_names:
            return self.input_names[array.tensor]
        if array.tensor in self.output_names:
            return self.output_names[array.tensor]
        if array.tensor in self.states:
            return self.states[array.tensor]
        return f"({'const ' if const else ''}{c_type} *)AT({self.program.arena_offsets[array.key]})"

    def format_parameters(self, quantized: bool) -> list[str]:
        """Return the C parameters of `run`, or of `run_q` if `quantized`: inputs, then outputs.

        In `run_q`, inputs that may be passed as integers have their integer type.
        """
        parameters = []
        for array in self.program.inputs:
            c_type = get_c_type(array.dtype)
            if quantized and array.tensor in self.quantized_inputs:
                c_type = f"{self.quantized_inputs[array.tensor][0]}_t"
            parameters.append(f"const {c_type} *{self.input_names[array.tensor]}")
        return parameters + self._format_output_parameters()

    def _format_output_parameters(self) -> list[str]:
        """Return the C parameters of the program's outputs, such as "float *out_y"."""
        return [
            f"{get_c_type(array.dtype)} *{self.output_names[array.tensor]}"
            for array in self.program.outputs
        ]

    def format_inner_parameters(self) -> list[str]:
        """Return the C parameters of the function that `run` and `run_q` call.

        A quantized input has two parameters, for floats and for integers, one of which is NULL.
        """
        parameters = []
        for array in self.program.inputs:
            name = self.input_names[array.tensor]
            parameters.append(f"const {get_c_type(array.dtype)} *{name}")
            if array.tensor in self.quantized_inputs:
                parameters.append(f"const {self.quantized_inputs[array.tensor][0]}_t *q_{name}")
        return parameters + self._format_output_parameters()

    def format_arguments(self, quantized: bool) -> str:
        """Format the arguments that `run`, or `run_q` if `quantized`, passes to the inner function.

        For an input that may be passed as integers it has two pointers, floats and integers; the
        one that is not used is NULL.
        """
        arguments = []
        for array in self.program.inputs:
            name, has_both = self.input_names[array.tensor], array.tensor in self.quantized_inputs
            arguments.append("NULL" if has_both and quantized else name)
            if has_both:
                arguments.append(name if quantized else "NULL")
        return ", ".join([*arguments, *self.output_names.values()])

    def iterate_lines(self) -> Iterator[str]:
        """Yield the lines of C of one call: all parts, then the copies of states for the next call.

        Equal consecutive parts become a loop.
        """
        steps = []
        for index, part in enumerate(self.program.parts):
            if isinstance(part, ChipPart):
                lines = self._iterate_chip_lines(index, part)
            else:
                lines = self._iterate_host_lines(index, part)
            steps.append((part.name, list(lines)))
        yield from roll_loops(steps)
        if self.program.states:
            yield ""
            yield "    /* save states for the next call */"
        for fed, output in self.program.states:
            name = self.states[fed.tensor]
            yield f"    memcpy({name}, {self.format_pointer(output)}, sizeof {name});"

    def _iterate_chip_lines(self, part_index: int, part: ChipPart) -> Iterator[str]:
        """Yield the C lines of a chip part: quantization, the executor's call, and its outputs.

        An input that the caller may pass as integers is copied instead if its integer pointer is
        not NULL. Outputs are dequantized, or copied if the program has them as integers. SHOW lines
        report each port to a watch function.
        """
        for index, (array, port) in enumerate(zip(part.sources, part.inputs, strict=True)):
            source = self.format_pointer(array)
            if part.quantized[index]:
                offset = self.program.arena_offsets[get_integer_buffer_key(part, index)]
                function = get_quantize_function(port.dtype, port.shift or 0)
                quantize = (
                    f"{function}({source}, ({port.dtype}_t *)AT({offset}), {port.elements}, "
                    f"{format_scale(port.shift or 0)});"
                )
                if array.tensor in self.quantized_inputs:
                    yield (
                        f"    if (q_{source} != NULL) memcpy(AT({offset}), q_{source}, "
                        f"{port.bytes});"
                    )
                    yield f"    else {quantize}"
                else:
                    yield f"    {quantize}"
                source = f"AT({offset})"
            yield f"    inputs[{index}] = {source};"
            yield f"    SHOW({part_index}, 0, {index}, inputs[{index}], {port.bytes});"
        check = f"    if (rc != {self.program.prefix.upper()}_OK) return rc;"
        yield f"    rc = forward({part.package_index}, inputs);"
        yield check
        for index, (array, port) in enumerate(zip(part.targets, part.outputs, strict=True)):
            yield f"    rc = output_of({part.package_index}, {index}, &found);"
            yield check
            yield f"    SHOW({part_index}, 1, {index}, found, {port.bytes});"
            destination = self.format_pointer(array, const=False)
            if part.dequantized[index]:
                yield (
                    f"    dequantize_{port.dtype}((const {port.dtype}_t *)found, {destination}, "
                    f"{port.elements}, {format_scale(-(port.shift or 0))});"
                )
            else:
                yield f"    memcpy({destination}, found, {port.bytes});"

    def _iterate_host_lines(self, part_index: int, part: HostPart) -> Iterator[str]:
        """Yield the C lines of a host part: the call of its function, between SHOWs of its tensors.

        SHOW reports a tensor to a watch function. The arguments are inputs, outputs and scratch
        memory.
        """
        for index, array in enumerate(part.sources):
            pointer = self.format_pointer(array)
            yield f"    SHOW({part_index}, 0, {index}, {pointer}, {array.bytes});"
        arguments = [
            *(self.format_pointer(array) for array in part.sources),
            *(self.format_pointer(array, const=False) for array in part.targets),
            format_scratch_pointer(self.program, part),
        ]
        yield f"    {self.program.prefix}_{part.first}({', '.join(arguments)});"
        for index, array in enumerate(part.targets):
            pointer = self.format_pointer(array)
            yield f"    SHOW({part_index}, 1, {index}, {pointer}, {array.bytes});"


def _get_quantized_type(part: ChipPart | HostPart, index: int) -> tuple[str, int] | None:
    """Return (integer type, shift) of input `index` of a part; None if it is not quantized there.

    None too for a host part, and for a port without a shift.
    """
    if not isinstance(part, ChipPart) or not part.quantized[index]:
        return None
    port = part.inputs[index]
    return None if port.shift is None else (port.dtype, port.shift)


def format_scratch_pointer(program: BoardProgram, part: HostPart) -> str:
    """Return the C pointer to a host part's scratch memory in the arena, or NULL if it has none."""
    offset = program.arena_offsets.get(f"{part.name}.scratch")
    return "NULL" if offset is None else f"AT({offset})"


def format_scale(shift: int) -> str:
    """Return 2^shift as a C literal of type float in hexadecimal, such as 0x1p+7f."""
    return f"0x1p{shift:+d}f"


def get_quantize_function(dtype: str, shift: int) -> str:
    """Return the name of the C function that quantizes floats to `dtype` with scale 2^shift.

    For int8 and scales of at least 1 it is quantize_int8, which adds the half in float32, as the
    NPU does; otherwise the `_exact` function, which rounds exactly.
    """
    return f"quantize_{dtype}" if dtype == "int8" and shift >= 0 else f"quantize_{dtype}_exact"


def roll_loops(steps: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the lines of all steps, with equal consecutive ones as a loop.

    `steps` are (name, lines of C). Steps are equal if they differ only in arena offsets and part
    numbers; a loop may have several steps per iteration, and needs MIN_REPEATS iterations. Other
    steps are headed by a comment with their name.
    """
    shapes = [
        _VARIABLE.sub(lambda match: "AT" if match[1] else "SHOW", "\n".join(lines))
        for _, lines in steps
    ]
    output: list[str] = []
    index = 0
    while index < len(steps):
        period, count = _find_repeat(shapes, index)
        if count < MIN_REPEATS:
            name, lines = steps[index]
            output += ["", f"    /* {name} */", *lines]
            index += 1
        else:
            output += ["", *_format_loop(steps[index : index + period * count], period)]
            index += period * count
    return output


def _find_repeat(shapes: Sequence[str], start: int) -> tuple[int, int]:
    """Return (period, count) of the repetition from `start` on that covers the most steps.

    Of several, the shortest period is returned; (1, 1) if there are fewer than `MIN_REPEATS`.
    """
    best_period, best_count = 1, 1
    for period in range(1, (len(shapes) - start) // MIN_REPEATS + 1):
        body, count = shapes[start : start + period], 1
        while shapes[start + count * period : start + (count + 1) * period] == body:
            count += 1
        if count >= MIN_REPEATS and count * period > best_period * best_count:
            best_period, best_count = period, count
    return best_period, best_count


def _format_loop(steps: Sequence[tuple[str, Sequence[str]]], period: int) -> list[str]:
    """Format consecutive equal steps as a C loop; varying arena offsets are read from a table.

    Parameters
    ----------
    steps
        (part name, lines) of each step; their number is a multiple of `period`.
    period
        Steps per iteration.
    """
    count = len(steps) // period
    iterations: list[list[str]] = [[] for _ in range(count)]
    for index, (_, lines) in enumerate(steps):
        iterations[index // period] += lines
    offsets = [_list_offsets(iteration) for iteration in iterations]
    offset_columns = list(zip(*offsets, strict=True))
    varying_columns = list(
        dict.fromkeys(column for column in offset_columns if len(set(column)) > 1)
    )
    remaining_columns = iter(offset_columns)

    def replace_variable(match: re.Match[str]) -> str:
        """Return the text for a matched variable: a part number plus the loop's step, or an offset.

        An arena offset is unchanged if all iterations have the same, else it is read from the
        table.
        """
        if match[1] is None:
            return f"SHOW({match[2]} + {period} * step,"
        column = next(remaining_columns)
        if column not in varying_columns:
            return match[0]
        return f"AT(at[step][{varying_columns.index(column)}])"

    body = [_VARIABLE.sub(replace_variable, line) for line in iterations[0]]
    output = [f"    /* {steps[0][0]} to {steps[-1][0]}: {count} equal steps */"]
    output += [f"    for (step = 0; step < {count}; step++) {{"]
    if varying_columns:
        output.append(f"        static const uint32_t at[{count}][{len(varying_columns)}] = {{")
        table = zip(*varying_columns, strict=True)
        output += [f"            {{{', '.join(row)}}}," for row in table]
        output.append("        };")
    return [*output, *(f"    {line}" for line in body), "    }"]


def _list_offsets(lines: Sequence[str]) -> list[str]:
    """Return the arena offsets in lines of C, in order."""
    offsets: list[str] = []
    for line in lines:
        offsets += [match[1] for match in _VARIABLE.finditer(line) if match[1]]
    return offsets
