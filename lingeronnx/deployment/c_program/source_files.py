"""Write the C files of a program from `templates/` and the parts that depend on the model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.resources import files
from string import Template

from ...common.arithmetic import round_up
from ...common.escaping import escape_comment, format_c_string
from ..ports import Port
from .arena import ALIGNMENT
from .call_writer import CallWriter, format_scratch_pointer, get_quantize_function
from .packages import EXECUTOR_VERSION, compute_arguments_crc
from .program import BoardProgram, ChipPart, HostPart, ProgramTensor, get_c_type

__all__ = [
    "StaticMemory",
    "UNREPORTED_PSRAM_BYTES",
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
_HANDLE_BYTES = 8  # of the executor's handles, and of a pointer on a PC
_INT_BYTES = 4
#: Bytes that are reserved behind each block of PSRAM: tCreateExecutor writes 2,968 bytes beyond the
#: size that tGetMemoryPlan reports, measured on builds for a PC for each of the three chips.
UNREPORTED_PSRAM_BYTES = 3008
#: Bytes of a port's name that the program compares: names of a part's tensors differ within them,
#: and the executor cuts longer ones.
MAX_PORT_NAME_BYTES = 64
_PSRAM_BLOCKS = 2  # of a package: its tensors, and the executor's objects


class StaticMemory:
    """Planned sizes of a program's static memory, in bytes.

    common_shared_bytes : shared memory that all parts reuse. shared : all shared memory, with
    separate regions of parts whose constants are stored there. shared_bytes_by_part,
    psram_bytes_by_part : of unique chip parts, by name. psram_bytes : sum of those. states : RAM of
    the states. arena_room : bytes of the arena's array, which has at least one buffer. ram_bytes :
    all writable data in STEM.c except the arrays of shared memory and PSRAM.
    """

    #: Bytes that the arrays of shared memory and PSRAM have in addition, to align their beginning.
    ALIGNMENT_BYTES = 64

    def __init__(self, program: BoardProgram) -> None:
        """Compute the bytes of shared memory, PSRAM and states that the program's parts need.

        Parts without resident constants share the memory of the largest; each other part has its
        own. Sizes of shared memory and PSRAM are multiples of 64; PSRAM includes an estimate of the
        executor's objects.
        """
        self.shared_bytes_by_part = {}
        self.psram_bytes_by_part = {}
        self.common_shared_bytes = 0
        resident_shared_bytes = 0
        for part in program.unique_chip_parts:
            cost = part.choice.verdict.cost
            shared_bytes = 0 if cost is None else math.ceil(cost.shared / 64) * 64
            self.shared_bytes_by_part[part.name] = shared_bytes
            if part.has_resident_constants:
                resident_shared_bytes += shared_bytes
            else:
                self.common_shared_bytes = max(self.common_shared_bytes, shared_bytes)
            # The executor's objects need about 8.3 kB and 132 bytes per tensor on a PC.
            planned_bytes = 0 if cost is None else cost.psram
            psram_bytes = planned_bytes + 10240 + 160 * _count_tensors(part)
            psram_bytes += _PSRAM_BLOCKS * UNREPORTED_PSRAM_BYTES
            self.psram_bytes_by_part[part.name] = math.ceil(psram_bytes / 64) * 64
        self.shared = self.common_shared_bytes + resident_shared_bytes
        self.psram_bytes = sum(self.psram_bytes_by_part.values())
        self.states = sum(tensor.bytes for tensor, _ in program.states)
        self.arena_room = max(program.arena_bytes, ALIGNMENT)
        self.ram_bytes = self._compute_ram_bytes(program)

    def _compute_ram_bytes(self, program: BoardProgram) -> int:
        """Return the bytes of the union `ram` in STEM.c, a multiple of 64.

        They are at least those of the struct in it, for handles and pointers of up to 64 bits and
        alignments of up to 8 bytes, so that the union has the same size with every compiler.
        """
        package_count = len(program.unique_chip_parts)
        fields = [
            self.arena_room,
            2 * _HANDLE_BYTES * package_count,  # models and executors
            _HANDLE_BYTES,  # the watch function
            3 * _INT_BYTES,
            2 * _count_ports(program),  # their indices in the packages
            *(tensor.bytes for tensor, _ in program.states),
            package_count,  # which are open
        ]
        return round_up(sum(round_up(size, _HANDLE_BYTES) for size in fields), 64)

    @property
    def shared_array_bytes(self) -> int:
        """Bytes of the array of shared memory as declared in C, 64 bytes to align it included."""
        return self.shared + self.ALIGNMENT_BYTES

    @property
    def psram_array_bytes(self) -> int:
        """Bytes of the array of PSRAM as declared in C, 64 bytes to align it included."""
        return self.psram_bytes + self.ALIGNMENT_BYTES


def _count_ports(program: BoardProgram) -> int:
    """Return the number of inputs and outputs of all unique chip parts."""
    return sum(len(part.inputs) + len(part.outputs) for part in program.unique_chip_parts)


def _count_tensors(part: ChipPart) -> int:
    """Return an upper estimate of the tensors in a part's package: outputs + constants + 4."""
    output_count = sum(len(node.outputs) for node in part.graph.graph)
    return output_count + len(part.graph.graph.initializers) + 4


def render_template(template: str, values: Mapping[str, object]) -> str:
    """Return a file of `templates/` with its placeholders replaced by `values`."""
    text = files(__package__).joinpath("templates", template).read_text(encoding="utf-8")
    return Template(text).substitute({key: str(value) for key, value in values.items()})


_LIMITS = {
    "int8": ("127", "-128"),
    "int16": ("32767", "-32768"),
    "int32": ("2147483648", "-2147483648"),
}


def _make_conversion_functions(program: BoardProgram) -> str:
    """Return the C of the quantize and dequantize functions that the program calls, each once."""
    functions: dict[str, str] = {}
    for part in program.chip:
        for port, quantized in zip(part.inputs, part.quantized, strict=True):
            if quantized:
                name = get_quantize_function(port.dtype, port.shift or 0)
                functions[name] = _make_quantize_function(name, port.dtype)
        for port, quantized in zip(part.outputs, part.dequantized, strict=True):
            if quantized:
                functions[f"dequantize_{port.dtype}"] = _make_dequantize_function(port.dtype)
    return "\n".join(functions[name] for name in sorted(functions))


def _make_quantize_function(name: str, dtype: str) -> str:
    """Return the C of a function that quantizes an array of floats to `dtype`.

    It rounds half up and saturates, NaN becomes 0. A `name` that ends in "_exact" rounds without
    the addition of 0.5, which may be inexact in float.
    """
    high, low = _LIMITS[dtype]
    max_value = "INT32_MAX" if dtype == "int32" else high
    min_value = "INT32_MIN" if dtype == "int32" else low
    rounding = ["        float whole = floorf(scaled + 0.5f);"]
    if name.endswith("_exact"):
        rounding = [
            "        float whole = floorf(scaled);",
            "        if (scaled - whole >= 0.5f) whole += 1.0f;",
        ]
    lines = [
        "/* Round half up and saturate; NaN becomes 0. */",
        f"static void {name}(const float *x, {dtype}_t *y, uint32_t count, float scale)",
        "{",
        "    uint32_t i;",
        "    for (i = 0; i < count; i++) {",
        "        float scaled = x[i] * scale;",
        *rounding,
        f"        if (whole >= {high}.0f) y[i] = {max_value};",
        f"        else if (whole <= {low}.0f) y[i] = {min_value};",
        f"        else y[i] = isnan(whole) ? 0 : ({dtype}_t)whole;",
        "    }",
        "}",
        "",
    ]
    return "\n".join(lines)


def _make_dequantize_function(dtype: str) -> str:
    """Return the C of dequantize_DTYPE, which multiplies integers of type `dtype` by a float."""
    signature = f"dequantize_{dtype}(const {dtype}_t *x, float *y, uint32_t count, float unit)"
    lines = [
        f"static void {signature}",
        "{",
        "    uint32_t i;",
        "    for (i = 0; i < count; i++) y[i] = (float)x[i] * unit;",
        "}",
        "",
    ]
    return "\n".join(lines)


def make_model_c(program: BoardProgram, crcs: Mapping[str, int]) -> str:
    """Return the text of the program's main C file, STEM.c.

    `crcs` has the CRC-32 of the ONNX file of each unique chip part, by name.
    """
    writer = CallWriter(program)
    state_lines = []
    for fed, _ in program.states:
        name = writer.states[fed.tensor].removeprefix("ram.fields.")
        declaration = f"{get_c_type(fed.dtype)} {name}[{fed.element_count}]"
        state_lines.append(f"        {declaration}; /* {escape_comment(fed.tensor)} */\n")
    functions = [*_iterate_run_functions(program, writer), "", *_iterate_part_function(program)]
    values = get_template_values(program) | {
        "states": "".join(state_lines),
        "ports": _make_port_tables(program, crcs),
        "port_count": _count_ports(program),
        "name_length": MAX_PORT_NAME_BYTES,
        "name_bytes": 1 + max(map(len, _list_port_names(program)), default=0),
        "chips": len(program.unique_chip_parts),
        "arena_room": StaticMemory(program).arena_room,
        "unreported": UNREPORTED_PSRAM_BYTES,
        "borders": _make_conversion_functions(program),
        "run": "\n".join(functions),
    }
    return render_template("model.c", values)


def _iterate_run_functions(program: BoardProgram, writer: CallWriter) -> Iterator[str]:
    """Yield the C functions run, PREFIX_run, PREFIX_run_q and PREFIX_reset.

    PREFIX_run_q takes integers; it exists only if some input may be passed quantized. Reset sets
    the states to 0.
    """
    prefix, macro_prefix = program.prefix, program.prefix.upper()
    steps = list(writer.iterate_lines())
    yield f"static int run({', '.join(writer.format_inner_parameters())})"
    yield "{"
    if program.chip:
        yield f"    const void *inputs[{max(len(part.inputs) for part in program.chip)}];"
        yield "    const void *found = NULL;"
        yield "    int rc;"
    if any("step++" in line for line in steps):
        yield "    int step;"
    yield f"    if (!ram.fields.ready) return {macro_prefix}_NOT_READY;"
    yield from steps
    yield f"    return {macro_prefix}_OK;"
    yield "}"
    yield ""
    yield f"int {prefix}_run({', '.join(writer.format_parameters(False))})"
    yield "{"
    yield f"    return run({writer.format_arguments(False)});"
    yield "}"
    if writer.quantized_inputs:
        yield ""
        yield f"int {prefix}_run_q({', '.join(writer.format_parameters(True))})"
        yield "{"
        yield f"    return run({writer.format_arguments(True)});"
        yield "}"
    yield ""
    yield f"void {prefix}_reset(void)"
    yield "{"
    for name in writer.states.values():
        yield f"    memset({name}, 0, sizeof {name});"
    yield "}"


def _iterate_part_function(program: BoardProgram) -> Iterator[str]:
    """Yield the C function PREFIX_part, which runs part `part` (by index) on given arrays.

    Equal parts share a case. Chip parts neither quantize nor dequantize here: arrays are those of
    their ports.
    """
    prefix, macro_prefix = program.prefix, program.prefix.upper()
    yield f"int {prefix}_part(int part, const void *const *inputs, void *const *outputs)"
    yield "{"
    yield "    const void *found = NULL;"
    yield "    int rc;"
    yield f"    if (!ram.fields.ready) return {macro_prefix}_NOT_READY;"
    yield "    switch (part) {"
    for part in program.unique_parts:
        for index, equal_part in enumerate(program.parts):
            if equal_part.first == part.name:
                yield f"    case {index}: /* {equal_part.name} */"
        if isinstance(part, ChipPart):
            yield f"        rc = forward({part.package_index}, inputs);"
            yield f"        if (rc != {macro_prefix}_OK) return rc;"
            for index, port in enumerate(part.outputs):
                yield f"        rc = output_of({part.package_index}, {index}, &found);"
                yield f"        if (rc != {macro_prefix}_OK) return rc;"
                yield f"        memcpy(outputs[{index}], found, {port.bytes});"
        else:
            arguments = _list_host_arguments(program, part)
            yield f"        {prefix}_{part.name}({', '.join(arguments)});"
        yield f"        return {macro_prefix}_OK;"
    yield "    default:"
    yield f"        return {macro_prefix}_WRONG_PORTS;"
    yield "    }"
    yield "}"


def _list_host_arguments(program: BoardProgram, part: HostPart) -> list[str]:
    """Return the C arguments of a host part's function, taken from C arrays `inputs` and `outputs`.

    The last one is its scratch memory.
    """
    arguments = []
    for index, tensor in enumerate(part.sources):
        arguments.append(f"(const {get_c_type(tensor.dtype)} *)inputs[{index}]")
    for index, tensor in enumerate(part.targets):
        arguments.append(f"({get_c_type(tensor.dtype)} *)outputs[{index}]")
    return [*arguments, format_scratch_pointer(program, part)]


def _make_port_tables(program: BoardProgram, crcs: Mapping[str, int]) -> str:
    """Return the C tables of the ports and CRCs of all unique chip parts.

    `crcs` has the CRC-32 of each part's file by part name; that of the packer's arguments is
    computed here.
    """
    lines, table = ["static const port ports[] = {"], []
    names = _list_port_names(program)
    first_port = 0
    for part in program.unique_chip_parts:
        lines.append(f"    /* {part.name} */")
        for index, port in enumerate((*part.inputs, *part.outputs)):
            shift = NO_SHIFT if port.shift is None else port.shift
            name = format_c_string(names[first_port + index])
            fields = f"0x{_DTYPE_CODES[port.dtype]:04x}, {port.elements}, {shift}, {name}"
            lines.append(f"    {{{fields}}}, /* {escape_comment(port.name)} */")
        arguments_crc = compute_arguments_crc(part.choice.argv)
        table.append(
            f"    {{0x{crcs[part.name]:08x}u, 0x{arguments_crc:08x}u, {len(part.inputs)}, "
            f"{len(part.outputs)}, {int(part.has_resident_constants)}, {first_port}}}, "
            f"/* {part.name} */"
        )
        first_port += len(part.inputs) + len(part.outputs)
    count = f"{program.prefix.upper()}_CHIP_PARTS"
    lines += ["};", "", f"static const chip_part chip_parts[{count}] = {{", *table, "};", ""]
    return "\n".join(lines)


def _list_port_names(program: BoardProgram) -> list[bytes]:
    """Return the name in the package of each entry of the C array `ports`, at most 64 bytes."""
    ports: list[Port] = []
    for part in program.unique_chip_parts:
        ports += [*part.inputs, *part.outputs]
    return [port.package_name.encode()[:MAX_PORT_NAME_BYTES] for port in ports]


def get_template_values(program: BoardProgram) -> dict[str, object]:
    """Return {placeholder: value} of the values that all templates use."""
    return {
        "p": program.prefix,
        "UP": program.prefix.upper(),
        "stem": program.stem,
        "title": escape_comment(program.stem),
        "platform": program.platform,
        "chip": program.platform,
        "executor": EXECUTOR_VERSION,
    }


def make_model_h(program: BoardProgram, packages: int, constants: str) -> str:
    """Return the text of the program's header.

    `packages` is the number of blobs that `init` takes, `constants` are the macros of a chip part's
    ports.
    """
    writer = CallWriter(program)
    run_q = ""
    if writer.quantized_inputs:
        run_q = (
            f"\n/* The same for inputs that are already integers, by their SHIFTs. */\n"
            f"int {program.prefix}_run_q({', '.join(writer.format_parameters(True))});\n"
        )
    lines = [*_iterate_size_macros(program, packages), *_iterate_tensor_macros(program, writer), ""]
    values = get_template_values(program) | {
        "sizes": "\n".join(lines) + constants,
        "run_parameters": ", ".join(writer.format_parameters(False)),
        "run_q": run_q,
        "states_say": " States are kept from call to call." if program.states else "",
    }
    return render_template("model.h", values)


def _iterate_size_macros(program: BoardProgram, packages: int) -> Iterator[str]:
    """Yield C macros of counts of packages and parts, and of memory sizes.

    The user may define the last three otherwise: shared memory (common and total) and PSRAM.
    """
    memory, macro_prefix = StaticMemory(program), program.prefix.upper()
    chip_part_count = len(program.unique_chip_parts)
    arena_bytes = program.arena_bytes
    for name, value, comment in (
        ("PACKAGES", packages, "blobs that init takes"),
        ("PARTS", len(program.parts), "parts, in the order in which they run"),
        ("CHIP_PARTS", chip_part_count, "packages of chip parts; equal parts share one"),
        ("ARENA_BYTES", arena_bytes, "static RAM between the parts, host scratch included"),
        ("STATE_BYTES", memory.states, "static RAM of states"),
        ("RAM_BYTES", memory.ram_bytes, "static RAM: arena, states, and the executor's handles"),
    ):
        yield f"#define {macro_prefix}_{name} {value} /* {comment} */"
    for name, value, comment in (
        ("COMMON_BYTES", memory.common_shared_bytes, "bytes of shared memory reused by all parts"),
        ("SHARED_BYTES", memory.shared, "bytes of all shared memory"),
        ("PSRAM_BYTES", memory.psram_bytes, "psram, the executor's objects included"),
    ):
        yield f"#ifndef {macro_prefix}_{name}"
        yield f"#define {macro_prefix}_{name} {value}u /* {comment} */"
        yield "#endif"


def _iterate_tensor_macros(program: BoardProgram, writer: CallWriter) -> Iterator[str]:
    """Yield C macros of element counts of inputs and outputs, and shifts of quantized inputs."""
    macro_prefix = program.prefix.upper()

    def format_size(tensor: ProgramTensor, name: str) -> str:
        """Return the C macro of a tensor's number of elements, with type and shape as a comment."""
        comment = f"{tensor.dtype} {list(tensor.shape)}"
        return f"#define {macro_prefix}_{name.upper()}_SIZE {tensor.element_count} /* {comment} */"

    for tensor in program.inputs:
        name = writer.input_names[tensor.tensor]
        yield format_size(tensor, name)
        if tensor.tensor in writer.quantized_inputs:
            _, shift = writer.quantized_inputs[tensor.tensor]
            comment = f"for {program.prefix}_run_q"
            yield f"#define {macro_prefix}_{name.upper()}_SHIFT ({shift}) /* {comment} */"
    for tensor in program.outputs:
        yield format_size(tensor, writer.output_names[tensor.tensor])


def make_host_header(program: BoardProgram) -> str:
    """Return the header with the declarations of the host parts' functions."""
    guard = f"{program.prefix.upper()}_HOST_H"
    lines = [
        (
            f"/* The host parts of {escape_comment(program.stem)}, in separate files. "
            "Generated by lingeronnx. */"
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
