"""The files of a program.

Its C from `templates/`, with what differs from model to model filled in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.resources import files
from string import Template

from .call_writer import CallWriter, get_quantize_function, make_c_names
from .packages import EXECUTOR_VERSION, compute_arguments_crc
from .program import BoardProgram, ChipPart, get_c_type

__all__ = [
    "StaticMemory",
    "get_template_values",
    "make_host_header",
    "make_model_c",
    "make_model_h",
    "render_template",
]

_DTYPE_CODES = {
    "int8": 0x6901,
    "int16": 0x6902,
    "int32": 0x6904,
    "int64": 0x6908,
    "uint8": 0x7501,
    "uint16": 0x7502,
    "uint32": 0x7504,
    "float32": 0x6604,
    "bool": 0x6201,
}
NO_SHIFT = 99


class StaticMemory:
    """Bytes of static memory, as planned. common : of shared memory that the parts take in turn."""

    def __init__(self, program: BoardProgram) -> None:
        costs = [(part, part.choice.verdict.cost) for part in program.unique_chip_parts]
        sizes = {
            part.name: 0 if cost is None else math.ceil(cost.shared / 64) * 64
            for part, cost in costs
        }
        self.common_shared_bytes = max(
            (sizes[p.name] for p in program.unique_chip_parts if not p.has_resident_constants),
            default=0,
        )
        self.shared = self.common_shared_bytes + sum(
            sizes[p.name] for p in program.unique_chip_parts if p.has_resident_constants
        )
        # Beside what is planned there, the executor's own objects: about 8.3 kB and 132 bytes a
        # tensor on a PC.
        self.psram_bytes_by_part = {
            part.name: math.ceil(
                ((0 if cost is None else cost.psram) + 10240 + 160 * _tensors(part)) / 64
            )
            * 64
            for part, cost in costs
        }
        self.shared_bytes_by_part = sizes
        self.psram_bytes = sum(self.psram_bytes_by_part.values())
        self.states = sum(array.bytes for array, _ in program.states)


def _tensors(part: ChipPart) -> int:
    return (
        sum(len(node.outputs) for node in part.graph.graph) + len(part.graph.graph.initializers) + 4
    )


def render_template(template: str, values: Mapping[str, object]) -> str:
    """Return a file of `templates/` with its places filled in."""
    text = files(__package__).joinpath("templates", template).read_text(encoding="utf-8")
    return Template(text).substitute({key: str(value) for key, value in values.items()})


_LIMITS = {
    "int8": ("127", "-128"),
    "int16": ("32767", "-32768"),
    "int32": ("2147483648", "-2147483648"),
}


def _make_conversion_functions(program: BoardProgram) -> str:
    """Return the border functions that are called."""
    found: dict[str, str] = {}
    for part in program.chip:
        for port, quantized in zip(part.inputs, part.quantized, strict=True):
            if quantized:
                name = get_quantize_function(port.dtype, port.shift or 0)
                found[name] = _make_quantize_function(name, port.dtype)
        for port, quantized in zip(part.outputs, part.dequantized, strict=True):
            if quantized:
                found[f"dequantize_{port.dtype}"] = _make_dequantize_function(port.dtype)
    return "\n".join(found[name] for name in sorted(found))


def _make_quantize_function(name: str, dtype: str) -> str:
    high, low = _LIMITS[dtype]
    top = "INT32_MAX" if dtype == "int32" else high
    bottom = "INT32_MIN" if dtype == "int32" else low
    rounding = (
        [
            "        float whole = floorf(scaled);",
            "        if (scaled - whole >= 0.5f) whole += 1.0f;",
        ]
        if name.endswith("_exact")
        else ["        float whole = floorf(scaled + 0.5f);"]
    )
    return "\n".join(
        [
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
        ]
    )


def _make_dequantize_function(dtype: str) -> str:
    return "\n".join(
        [
            (
                f"static void dequantize_{dtype}(const {dtype}_t *x, float *y, uint32_t count, float "
                "unit)"
            ),
            "{",
            "    uint32_t i;",
            "    for (i = 0; i < count; i++) y[i] = (float)x[i] * unit;",
            "}",
            "",
        ]
    )


def make_model_c(program: BoardProgram, crcs: Mapping[str, int]) -> str:
    """Return model.c. crcs : CRC-32 of the chip parts' files."""
    writer, p, up = CallWriter(program), program.prefix, program.prefix.upper()
    quantized = bool(writer.quantized_inputs)
    inner = ", ".join(writer.format_inner_parameters())
    lines = [f"static int run({inner})", "{"]
    if program.chip:
        most = max(len(part.inputs) for part in program.chip)
        lines += [
            f"    const void *inputs[{most}];",
            "    const void *found = NULL;",
            "    int rc;",
        ]
    steps = list(writer.iterate_lines())
    lines += ["    int step;"] * any("step++" in line for line in steps)
    lines += [f"    if (!ready) return {up}_NOT_READY;", *steps, f"    return {up}_OK;", "}", ""]
    lines += [
        f"int {p}_run({', '.join(writer.format_parameters(False))})",
        "{",
        f"    return run({writer.format_arguments(False)});",
        "}",
    ]
    if quantized:
        lines += ["", f"int {p}_run_q({', '.join(writer.format_parameters(True))})", "{"]
        lines += [f"    return run({writer.format_arguments(True)});", "}"]
    lines += ["", f"void {p}_reset(void)", "{"]
    lines += [f"    memset({name}, 0, sizeof {name});" for name in writer.states.values()]
    lines += ["}", "", *_iterate_part_function(program)]
    values = get_template_values(program) | {
        "states": "".join(
            (
                f"static {get_c_type(one.dtype)} {writer.states[one.tensor]}[{one.element_count}]; "
                "/* "
                f"{_escape_comment(one.tensor)} */\n"
            )
            for one, _ in program.states
        ),
        "ports": _make_port_tables(program, crcs),
        "chips": len(program.unique_chip_parts),
        "borders": _make_conversion_functions(program),
        "run": "\n".join(lines),
    }
    return render_template("model.c", values)


def _iterate_part_function(program: BoardProgram) -> Iterator[str]:
    """Yield the function that runs one part by itself."""
    p, up = program.prefix, program.prefix.upper()
    yield f"int {p}_part(int part, const void *const *inputs, void *const *outputs)"
    yield "{"
    yield "    const void *found = NULL;"
    yield "    int rc;"
    yield f"    if (!ready) return {up}_NOT_READY;"
    yield "    switch (part) {"
    for part in program.unique_parts:
        for number, equal in enumerate(program.parts):
            if equal.first == part.name:
                yield f"    case {number}: /* {equal.name} */"
        if isinstance(part, ChipPart):
            yield f"        rc = forward({part.package_index}, inputs);"
            yield f"        if (rc != {up}_OK) return rc;"
            for index, port in enumerate(part.outputs):
                yield f"        rc = output_of({part.package_index}, {index}, &found);"
                yield f"        if (rc != {up}_OK) return rc;"
                yield f"        memcpy(outputs[{index}], found, {port.bytes});"
        else:
            scratch = f"{part.name}.scratch"
            room = (
                f"AT({program.arena_offsets[scratch]})"
                if scratch in program.arena_offsets
                else "NULL"
            )
            given = [
                *(
                    f"(const {get_c_type(a.dtype)} *)inputs[{i}]"
                    for i, a in enumerate(part.sources)
                ),
                *(f"({get_c_type(a.dtype)} *)outputs[{i}]" for i, a in enumerate(part.targets)),
                room,
            ]
            yield f"        {p}_{part.name}({', '.join(given)});"
        yield f"        return {up}_OK;"
    yield "    default:"
    yield f"        return {up}_WRONG_PORTS;"
    yield "    }"
    yield "}"


def _make_port_tables(program: BoardProgram, crcs: Mapping[str, int]) -> str:
    lines, table = [], []
    for part in program.unique_chip_parts:
        name = f"ports_of_{part.name}"
        lines.append(f"static const port {name}[] = {{")
        for port in (*part.inputs, *part.outputs):
            shift = NO_SHIFT if port.shift is None else port.shift
            lines.append(
                f"    {{0x{_DTYPE_CODES[port.dtype]:04x}, {port.elements}, {shift}}}, /* "
                f"{_escape_comment(port.name)} "
                "*/"
            )
        lines += ["};", ""]
        table.append(
            f"    {{0x{crcs[part.name]:08x}u, 0x{compute_arguments_crc(part.choice.argv):08x}u, "
            f"{len(part.inputs)}, "
            f"{len(part.outputs)}, {int(part.has_resident_constants)}, {name}}}, /* {part.name} */"
        )
    count = f"{program.prefix.upper()}_CHIP_PARTS"
    return "\n".join([*lines, f"static const chip_part chip_parts[{count}] = {{", *table, "};", ""])


def _escape_comment(text: str) -> str:
    return (
        "".join(c if 32 <= ord(c) < 127 else "?" for c in text)
        .replace("*/", "* /")
        .replace("/*", "/ *")
    )


def get_template_values(program: BoardProgram) -> dict[str, object]:
    """Return what all templates ask for."""
    return {
        "p": program.prefix,
        "UP": program.prefix.upper(),
        "stem": program.stem,
        "title": _escape_comment(program.stem),
        "platform": program.platform,
        "chip": program.platform,
        "executor": EXECUTOR_VERSION,
    }


def make_model_h(program: BoardProgram, packages: int, header: str) -> str:
    """Return model.h. packages : number of blobs. header : the constants of inputs and outputs."""
    writer, up, memory = CallWriter(program), program.prefix.upper(), StaticMemory(program)
    sizes = [
        (f"{up}_PACKAGES", packages, "blobs that init takes"),
        (f"{up}_PARTS", len(program.parts), "parts, in the order in which they run"),
        (
            f"{up}_CHIP_PARTS",
            len(program.unique_chip_parts),
            "packages of chip parts; equal parts share one",
        ),
        (
            f"{up}_ARENA_BYTES",
            program.arena_bytes,
            "static RAM between the parts, host scratch included",
        ),
        (f"{up}_STATE_BYTES", memory.states, "static RAM of states"),
        (
            f"{up}_COMMON_BYTES",
            memory.common_shared_bytes,
            "of shared memory, taken by the parts in turn",
        ),
        (f"{up}_SHARED_BYTES", memory.shared, "shared memory in all"),
        (f"{up}_PSRAM_BYTES", memory.psram_bytes, "psram, the executor's own objects included"),
    ]
    lines = []
    for name, value, what in sizes:
        lines += (
            [f"#ifndef {name}", f"#define {name} {value}u /* {what} */", "#endif"]
            if name.endswith(("COMMON_BYTES", "SHARED_BYTES", "PSRAM_BYTES"))
            else [f"#define {name} {value} /* {what} */"]
        )
    for word, arrays in (("IN", program.inputs), ("OUT", program.outputs)):
        names = make_c_names(arrays, word.lower())
        for array in arrays:
            sized = names[array.tensor].upper()
            lines.append(
                f"#define {up}_{sized}_SIZE {array.element_count} /* {array.dtype} "
                f"{list(array.shape)} */"
            )
            if word == "IN" and array.tensor in writer.quantized_inputs:
                lines.append(
                    f"#define {up}_{sized}_SHIFT ({writer.quantized_inputs[array.tensor][1]}) /* "
                    "for "
                    f"{program.prefix}_run_q */"
                )
    run_q = ""
    if writer.quantized_inputs:
        run_q = (
            f"\n/* The same for inputs that are integers already, by their SHIFTs. */\n"
            f"int {program.prefix}_run_q({', '.join(writer.format_parameters(True))});\n"
        )
    values = get_template_values(program) | {
        "sizes": "\n".join([*lines, ""]) + header,
        "run_parameters": ", ".join(writer.format_parameters(False)),
        "run_q": run_q,
        "states_say": " States are kept from call to call." if program.states else "",
    }
    return render_template("model.h", values)


def make_host_header(program: BoardProgram) -> str:
    """Return the header of the host parts' functions."""
    guard = f"{program.prefix.upper()}_HOST_H"
    lines = [
        (
            f"/* The host parts of {_escape_comment(program.stem)}, in files of their own. Generated "
            "by lingeronnx. */"
        ),
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdbool.h>",
        "#include <stdint.h>",
        "",
        *(f"{part.source.declaration};" for part in program.unique_host_parts),
        "",
        f"#endif /* {guard} */",
    ]
    return "\n".join(lines) + "\n"
