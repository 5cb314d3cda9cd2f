"""Write the C of one call of a program: all parts, and the conversions and copies between them.

Equal steps in a row become a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...escaping import make_c_suffix
from .loop_rolling import roll_loops
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
]


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
