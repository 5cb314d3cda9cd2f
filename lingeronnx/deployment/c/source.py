"""The files of a program: its C from `templates/`, with what differs from model to model filled in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template

from .packages import EXECUTOR, arguments_crc
from .program import Array, BoardProgram, ChipPart, HostPart, c_type, integers, words

__all__ = ["Memory", "filled", "host_header", "model_c", "model_h", "names_of", "substitutions"]

_CODES = {
    "int8": 0x6901, "int16": 0x6902, "int32": 0x6904, "int64": 0x6908, "uint8": 0x7501, "uint16": 0x7502,
    "uint32": 0x7504, "float32": 0x6604, "bool": 0x6201,
}  # fmt: skip
NO_SHIFT = 99


class Memory:
    """Bytes of static memory, as planned. common : of shared memory that the parts take in turn."""

    def __init__(self, program: BoardProgram) -> None:
        costs = [(part, part.choice.verdict.cost) for part in program.chip]
        sizes = {part.name: 0 if cost is None else math.ceil(cost.shared / 64) * 64 for part, cost in costs}
        self.common = max((sizes[p.name] for p in program.chip if not p.own_shared), default=0)
        self.shared = self.common + sum(sizes[p.name] for p in program.chip if p.own_shared)
        # Beside what is planned there, the executor's own objects: about 8.3 kB and 132 bytes a tensor on a PC.
        self.psram_of = {
            part.name: math.ceil(((0 if cost is None else cost.psram) + 10240 + 160 * _tensors(part)) / 64) * 64
            for part, cost in costs
        }
        self.shared_of = sizes
        self.psram = sum(self.psram_of.values())
        self.states = sum(array.bytes for array, _ in program.states)


def _tensors(part: ChipPart) -> int:
    return sum(len(node.outputs) for node in part.graph.graph) + len(part.graph.graph.initializers) + 4


def filled(template: str, values: Mapping[str, object]) -> str:
    """Return a file of `templates/` with its places filled in."""
    text = files(__package__).joinpath("templates", template).read_text(encoding="utf-8")
    return Template(text).substitute({key: str(value) for key, value in values.items()})


def names_of(arrays: Sequence[Array], start: str) -> dict[str, str]:
    """Return {tensor: its C name}, each once."""
    found: dict[str, str] = {}
    for array in arrays:
        name = f"{start}_{words(array.tensor)}"
        found[array.tensor] = name if name not in found.values() else f"{name}_{len(found)}"
    return found


class _CallText:
    """The C of one call."""

    def __init__(self, program: BoardProgram) -> None:
        self.program = program
        self.ins, self.outs = names_of(program.inputs, "in"), names_of(program.outputs, "out")
        self.states = {one.tensor: f"state{k}" for k, (one, _) in enumerate(program.states)}
        self.shifts = self._taken()

    def _taken(self) -> dict[str, tuple[str, int]]:
        """Return {input: (integer type, shift)} of what only one Quant, or several alike, read."""
        found: dict[str, set[tuple[str, int] | None]] = {array.tensor: set() for array in self.program.inputs}
        for part in self.program.parts:
            for index, array in enumerate(part.sources):
                if array.tensor in found:
                    port = part.inputs[index] if isinstance(part, ChipPart) and part.quantized[index] else None
                    found[array.tensor].add(None if port is None or port.shift is None else (port.dtype, port.shift))
        return {name: one for name, kinds in found.items() if len(kinds) == 1 and (one := next(iter(kinds)))}

    def place(self, array: Array, const: bool = True) -> str:
        """Return a pointer to a tensor between parts."""
        kind = c_type(array.dtype)
        if array.tensor in self.ins:
            return self.ins[array.tensor]
        if array.tensor in self.outs:
            return self.outs[array.tensor]
        if array.tensor in self.states:
            return self.states[array.tensor]
        return f"({'const ' if const else ''}{kind} *)AT({self.program.places[array.key]})"

    def parameters(self, quantized: bool) -> list[str]:
        """Return those of `run` and `run_q`."""
        found = []
        for array in self.program.inputs:
            kind = c_type(array.dtype)
            if quantized and array.tensor in self.shifts:
                kind = f"{self.shifts[array.tensor][0]}_t"
            found.append(f"const {kind} *{self.ins[array.tensor]}")
        return [*found, *(f"{c_type(a.dtype)} *{self.outs[a.tensor]}" for a in self.program.outputs)]

    def inner(self) -> list[str]:
        """Return the parameters of the function behind both: an input as floats or as integers, one of them NULL."""
        found = []
        for array in self.program.inputs:
            name = self.ins[array.tensor]
            found.append(f"const {c_type(array.dtype)} *{name}")
            if array.tensor in self.shifts:
                found.append(f"const {self.shifts[array.tensor][0]}_t *q_{name}")
        return [*found, *(f"{c_type(a.dtype)} *{self.outs[a.tensor]}" for a in self.program.outputs)]

    def call(self, quantized: bool) -> str:
        """Return the arguments to the function behind both."""
        found = []
        for array in self.program.inputs:
            name, both = self.ins[array.tensor], array.tensor in self.shifts
            found.append("NULL" if both and quantized else name)
            if both:
                found.append(name if quantized else "NULL")
        return ", ".join([*found, *self.outs.values()])

    def steps(self) -> Iterator[str]:
        """Yield the lines of one call."""
        for number, part in enumerate(self.program.parts):
            yield ""
            yield f"    /* {part.name} */"
            yield from self._chip(number, part) if isinstance(part, ChipPart) else self._host(number, part)
        if self.program.states:
            yield ""
            yield "    /* what the next call begins with */"
        for one, two in self.program.states:
            yield f"    memcpy({self.states[one.tensor]}, {self.place(two)}, sizeof {self.states[one.tensor]});"

    def _chip(self, number: int, part: ChipPart) -> Iterator[str]:
        for index, (array, port) in enumerate(zip(part.sources, part.inputs, strict=True)):
            source = self.place(array)
            if part.quantized[index]:
                offset = self.program.places[integers(part, index)]
                rule = quantizer(port.dtype, port.shift or 0)
                made = f"{rule}({source}, ({port.dtype}_t *)AT({offset}), {port.elements}, {scale(port.shift or 0)});"
                if array.tensor in self.shifts:
                    yield f"    if (q_{source} != NULL) memcpy(AT({offset}), q_{source}, {port.bytes});"
                    yield f"    else {made}"
                else:
                    yield f"    {made}"
                source = f"AT({offset})"
            yield f"    inputs[{index}] = {source};"
            yield f"    SHOW({number}, 0, {index}, inputs[{index}], {port.bytes});"
        yield f"    rc = forward({part.number}, inputs);"
        yield f"    if (rc != {self.program.prefix.upper()}_OK) return rc;"
        for index, (array, port) in enumerate(zip(part.targets, part.outputs, strict=True)):
            yield f"    rc = output_of({part.number}, {index}, &found);"
            yield f"    if (rc != {self.program.prefix.upper()}_OK) return rc;"
            yield f"    SHOW({number}, 1, {index}, found, {port.bytes});"
            place = self.place(array, const=False)
            if part.dequantized[index]:
                kind, factor = f"{port.dtype}_t", scale(-(port.shift or 0))
                yield f"    dequantize_{port.dtype}((const {kind} *)found, {place}, {port.elements}, {factor});"
            else:
                yield f"    memcpy({place}, found, {port.bytes});"

    def _host(self, number: int, part: HostPart) -> Iterator[str]:
        for index, array in enumerate(part.sources):
            yield f"    SHOW({number}, 0, {index}, {self.place(array)}, {array.bytes});"
        scratch = f"{part.name}.scratch"
        room = f"AT({self.program.places[scratch]})" if scratch in self.program.places else "NULL"
        given = [*(self.place(a) for a in part.sources), *(self.place(a, const=False) for a in part.targets), room]
        yield f"    {self.program.prefix}_{part.name}({', '.join(given)});"
        for index, array in enumerate(part.targets):
            yield f"    SHOW({number}, 1, {index}, {self.place(array)}, {array.bytes});"


def scale(shift: int) -> str:
    """Return 2^shift as a C literal."""
    return f"0x1p{shift:+d}f"


def quantizer(dtype: str, shift: int) -> str:
    """Return the border function of a Quant: the half is added in float32 as the NPU does, exactly below scale 1."""
    return f"quantize_{dtype}" if dtype == "int8" and shift >= 0 else f"quantize_{dtype}_exact"


_LIMITS = {"int8": ("127", "-128"), "int16": ("32767", "-32768"), "int32": ("2147483648", "-2147483648")}


def _borders(program: BoardProgram) -> str:
    """Return the border functions that are called."""
    found: dict[str, str] = {}
    for part in program.chip:
        for port, quantized in zip(part.inputs, part.quantized, strict=True):
            if quantized:
                name = quantizer(port.dtype, port.shift or 0)
                found[name] = _quantize(name, port.dtype)
        for port, quantized in zip(part.outputs, part.dequantized, strict=True):
            if quantized:
                found[f"dequantize_{port.dtype}"] = _dequantize(port.dtype)
    return "\n".join(found[name] for name in sorted(found))


def _quantize(name: str, dtype: str) -> str:
    high, low = _LIMITS[dtype]
    top = "INT32_MAX" if dtype == "int32" else high
    bottom = "INT32_MIN" if dtype == "int32" else low
    rounding = (
        ["        float whole = floorf(scaled);", "        if (scaled - whole >= 0.5f) whole += 1.0f;"]
        if name.endswith("_exact")
        else ["        float whole = floorf(scaled + 0.5f);"]
    )
    return "\n".join([
        "/* Round half up and clamp; what is no number becomes 0. */",
        f"static void {name}(const float *x, {dtype}_t *y, uint32_t count, float scale)",
        "{",
        "    uint32_t i;",
        "    for (i = 0; i < count; i++) {",
        "        float scaled = x[i] * scale;",
        *rounding,
        f"        if (whole >= {high}.0f) y[i] = {top};",
        f"        else if (whole <= {low}.0f) y[i] = {bottom};",
        f"        else y[i] = isnan(whole) ? 0 : ({dtype}_t)whole;",
        "    }",
        "}",
        "",
    ])  # fmt: skip


def _dequantize(dtype: str) -> str:
    return "\n".join([
        f"static void dequantize_{dtype}(const {dtype}_t *x, float *y, uint32_t count, float unit)",
        "{",
        "    uint32_t i;",
        "    for (i = 0; i < count; i++) y[i] = (float)x[i] * unit;",
        "}",
        "",
    ])  # fmt: skip


def model_c(program: BoardProgram, crcs: Mapping[str, int]) -> str:
    """Return model.c. crcs : CRC-32 of the chip parts' files."""
    writer, p, up = _CallText(program), program.prefix, program.prefix.upper()
    quantized = bool(writer.shifts)
    inner = ", ".join(writer.inner())
    lines = [f"static int run({inner})", "{"]
    if program.chip:
        most = max(len(part.inputs) for part in program.chip)
        lines += [f"    const void *inputs[{most}];", "    const void *found = NULL;", "    int rc;"]
    lines += [f"    if (!ready) return {up}_NOT_READY;", *writer.steps(), f"    return {up}_OK;", "}", ""]
    lines += [f"int {p}_run({', '.join(writer.parameters(False))})", "{", f"    return run({writer.call(False)});", "}"]
    if quantized:
        lines += ["", f"int {p}_run_q({', '.join(writer.parameters(True))})", "{"]
        lines += [f"    return run({writer.call(True)});", "}"]
    lines += ["", f"void {p}_reset(void)", "{"]
    lines += [f"    memset({name}, 0, sizeof {name});" for name in writer.states.values()]
    lines += ["}", "", *_single(program)]
    values = substitutions(program) | {
        "states": "".join(
            f"static {c_type(one.dtype)} {writer.states[one.tensor]}[{one.count}]; /* {_comment(one.tensor)} */\n"
            for one, _ in program.states
        ),
        "ports": _ports(program, crcs),
        "chips": len(program.chip),
        "borders": _borders(program),
        "run": "\n".join(lines),
    }
    return filled("model.c", values)


def _single(program: BoardProgram) -> Iterator[str]:
    """Yield the function that runs one part by itself."""
    p, up = program.prefix, program.prefix.upper()
    yield f"int {p}_part(int part, const void *const *inputs, void *const *outputs)"
    yield "{"
    yield "    const void *found = NULL;"
    yield "    int rc;"
    yield f"    if (!ready) return {up}_NOT_READY;"
    yield "    switch (part) {"
    for number, part in enumerate(program.parts):
        yield f"    case {number}: /* {part.name} */"
        if isinstance(part, ChipPart):
            yield f"        rc = forward({part.number}, inputs);"
            yield f"        if (rc != {up}_OK) return rc;"
            for index, port in enumerate(part.outputs):
                yield f"        rc = output_of({part.number}, {index}, &found);"
                yield f"        if (rc != {up}_OK) return rc;"
                yield f"        memcpy(outputs[{index}], found, {port.bytes});"
        else:
            scratch = f"{part.name}.scratch"
            room = f"AT({program.places[scratch]})" if scratch in program.places else "NULL"
            given = [
                *(f"(const {c_type(a.dtype)} *)inputs[{i}]" for i, a in enumerate(part.sources)),
                *(f"({c_type(a.dtype)} *)outputs[{i}]" for i, a in enumerate(part.targets)),
                room,
            ]
            yield f"        {p}_{part.name}({', '.join(given)});"
        yield f"        return {up}_OK;"
    yield "    default:"
    yield f"        return {up}_WRONG_PORTS;"
    yield "    }"
    yield "}"


def _ports(program: BoardProgram, crcs: Mapping[str, int]) -> str:
    lines, table = [], []
    for part in program.chip:
        name = f"ports_of_{part.name}"
        lines.append(f"static const port {name}[] = {{")
        for port in (*part.inputs, *part.outputs):
            shift = NO_SHIFT if port.shift is None else port.shift
            lines.append(f"    {{0x{_CODES[port.dtype]:04x}, {port.elements}, {shift}}}, /* {_comment(port.name)} */")
        lines += ["};", ""]
        table.append(
            f"    {{0x{crcs[part.name]:08x}u, 0x{arguments_crc(part.choice.words):08x}u, {len(part.inputs)}, "
            f"{len(part.outputs)}, {int(part.own_shared)}, {name}}}, /* {part.name} */"
        )
    count = f"{program.prefix.upper()}_CHIP_PARTS"
    return "\n".join([*lines, f"static const chip_part chip_parts[{count}] = {{", *table, "};", ""])


def _comment(text: str) -> str:
    return "".join(c if 32 <= ord(c) < 127 else "?" for c in text).replace("*/", "* /").replace("/*", "/ *")


def substitutions(program: BoardProgram) -> dict[str, object]:
    """Return what all templates ask for."""
    return {
        "p": program.prefix,
        "UP": program.prefix.upper(),
        "stem": program.stem,
        "title": _comment(program.stem),
        "platform": program.platform,
        "chip": program.platform,
        "executor": EXECUTOR,
    }


def model_h(program: BoardProgram, packages: int, header: str) -> str:
    """Return model.h. packages : number of blobs. header : the constants of inputs and outputs."""
    writer, up, memory = _CallText(program), program.prefix.upper(), Memory(program)
    sizes = [
        (f"{up}_PACKAGES", packages, "blobs that init takes"),
        (f"{up}_PARTS", len(program.parts), "parts, in the order in which they run"),
        (f"{up}_CHIP_PARTS", len(program.chip), "of them on the chip"),
        (f"{up}_ARENA_BYTES", program.arena, "static RAM between the parts, host scratch included"),
        (f"{up}_STATE_BYTES", memory.states, "static RAM of states"),
        (f"{up}_COMMON_BYTES", memory.common, "of shared memory, taken by the parts in turn"),
        (f"{up}_SHARED_BYTES", memory.shared, "shared memory in all"),
        (f"{up}_PSRAM_BYTES", memory.psram, "psram, the executor's own objects included"),
    ]
    lines = []
    for name, value, what in sizes:
        lines += (
            [f"#ifndef {name}", f"#define {name} {value}u /* {what} */", "#endif"]
            if name.endswith(("COMMON_BYTES", "SHARED_BYTES", "PSRAM_BYTES"))
            else [f"#define {name} {value} /* {what} */"]
        )
    for word, arrays in (("IN", program.inputs), ("OUT", program.outputs)):
        names = names_of(arrays, word.lower())
        for array in arrays:
            sized = names[array.tensor].upper()
            lines.append(f"#define {up}_{sized}_SIZE {array.count} /* {array.dtype} {list(array.shape)} */")
            if word == "IN" and array.tensor in writer.shifts:
                lines.append(
                    f"#define {up}_{sized}_SHIFT ({writer.shifts[array.tensor][1]}) /* for {program.prefix}_run_q */"
                )
    run_q = ""
    if writer.shifts:
        run_q = (
            f"\n/* The same for inputs that are integers already, by their SHIFTs. */\n"
            f"int {program.prefix}_run_q({', '.join(writer.parameters(True))});\n"
        )
    values = substitutions(program) | {
        "sizes": "\n".join([*lines, ""]) + header,
        "run_parameters": ", ".join(writer.parameters(False)),
        "run_q": run_q,
        "states_say": " States are kept from call to call." if program.states else "",
    }
    return filled("model.h", values)


def host_header(program: BoardProgram) -> str:
    """Return the header of the host parts' functions."""
    guard = f"{program.prefix.upper()}_HOST_H"
    lines = [
        f"/* The host parts of {_comment(program.stem)}, in files of their own. Generated by lingeronnx. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdbool.h>",
        "#include <stdint.h>",
        "",
        *(f"{part.source.declaration};" for part in program.host),
        "",
        f"#endif /* {guard} */",
    ]
    return "\n".join(lines) + "\n"
