"""Write README.md and DETAILS.md of a deployed folder: steps, ports, program, time and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..common.escaping import escape_markdown, format_markdown_code, make_c_identifier
from ..targets import CallLatency, GraphCost
from .c_program.guide import make_program_guide, make_program_summary
from .c_program.object_sizes import ProgramSizes
from .c_program.program import BoardProgram, ChipPart
from .ports import Port, Ports, format_shape

__all__ = ["FolderFacts", "make_details", "make_readme"]


@dataclass(frozen=True)
class FolderFacts:
    """What README.md and DETAILS.md of a deployed folder state.

    name, platform : stem of the files, and the chip. command : packer command. ports : inputs,
    outputs and states of the first chip part. sizes : bytes of each file, by path. weights : bytes
    of the chip parts' constants. costs : cost of each chip part, by part name. notes : remarks for
    the user. time : estimated time of a call. program, object_sizes : the C program, and the sizes
    of its object files, if one is written.
    """

    name: str
    platform: str
    command: str
    ports: Ports
    sizes: Mapping[str, int]
    weights: int
    costs: Mapping[str, GraphCost | None]
    notes: Sequence[str]
    time: CallLatency
    program: BoardProgram | None = None
    object_sizes: ProgramSizes | None = None


def make_readme(facts: FolderFacts) -> str:
    """Return the text of README.md: steps, inputs and outputs, memory, firmware; one screen."""
    lines = [
        f"# {facts.name} on {facts.platform}",
        "",
        (
            "Made by `lingeronnx deploy`. [DETAILS.md](DETAILS.md) has parts, memory, object "
            "files, builds, troubleshooting, time by layer and sizes of files."
        ),
        "",
    ]
    lines += [f"Note: {escape_markdown(note)}." for note in facts.notes]
    lines += [""] * bool(facts.notes)
    program, object_sizes = facts.program, facts.object_sizes
    lines += ["## Steps", ""]
    lines += _iterate_steps(facts.name, facts.command, facts.ports, facts.sizes, program)
    lines.append("")
    if program is None or len(program.chip) == 1:
        lines += ["## Inputs and outputs of the chip", ""]
        lines += _shorten_table(list(_iterate_port_table(facts.ports)))
        lines += ["", *_iterate_states(facts.ports)]
    if program is not None and object_sizes is not None:
        lines += make_program_summary(program, object_sizes)
    lines += [sentence + "." for sentence in _format_time(facts.time)]
    if len(facts.costs) <= _MAX_README_COSTS:
        lines += _iterate_costs(facts.costs)
    return "\n".join(lines).rstrip() + "\n"


def make_details(facts: FolderFacts) -> str:
    """Return the text of DETAILS.md, which has what README.md leaves out."""
    program, object_sizes = facts.program, facts.object_sizes
    lines = [f"# Details of {facts.name} on {facts.platform}", ""]
    if program is not None and object_sizes is not None:
        lines += make_program_guide(program, object_sizes)
    lines += _iterate_io_sections(facts.ports, facts.costs, program)
    lines += _iterate_latency_section(facts.time)
    lines += [
        "## Sizes",
        "",
        f"Constants of the chip graph: {facts.weights} bytes.",
        *_iterate_costs(facts.costs),
        "",
    ]
    lines += ["| file | bytes |", "|---|---:|"]
    lines += [
        f"| {file} | {size} |"
        for file, size in facts.sizes.items()
        if not file.startswith("golden/")
    ]
    golden = [size for file, size in facts.sizes.items() if file.startswith("golden/")]
    lines += [f"| golden/ ({len(golden)} files) | {sum(golden)} |"]
    return "\n".join(lines) + "\n"


#: Rows of a table in README.md; DETAILS.md has all.
_MAX_README_ROWS = 10
#: Chip parts whose cost README.md states.
_MAX_README_COSTS = 2


def _shorten_table(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines of a Markdown table with at most `_MAX_README_ROWS` rows, and a remark."""
    end = 2 + _MAX_README_ROWS
    if len(lines) <= end:
        return lines
    return [*lines[:end], "", f"{len(lines) - end} more are in DETAILS.md."]


def _iterate_steps(
    name: str, command: str, ports: Ports, sizes: Mapping[str, int], program: BoardProgram | None
) -> Iterator[str]:
    """Yield the README's numbered steps from packing to verifying the board.

    With several chip parts and a C program these are three steps with that program; else the steps
    by hand, with host head and tail if `sizes` (bytes by file) has their files.
    """
    if program is not None and len(program.chip) > 1:
        yield f"1. Pack: `sh pack.sh`, which runs {format_markdown_code(command)}."
        yield f"2. Build the program, and call `{program.prefix}_run()`: see below."
        yield f"3. Verify the board: `{program.prefix}_self_test()`, or `main.c` over `golden/`."
        return
    head, tail = (f"{name}_host_{position}.onnx" for position in ("head", "tail"))
    if program is not None:
        yield (f"`{program.prefix}_run()` of the program below does steps 2 and later. By hand:")
        yield ""
    steps = [f"Pack: `sh pack.sh`, which runs {format_markdown_code(command)}."]
    if head in sizes:
        steps.append(f"On the host, run `{head}` (onnxruntime); its outputs are the chip's inputs.")
    steps.append(
        f"Quantize each input as `{name}.h` specifies, run `{name}.pkg`, and dequantize the "
        f"outputs by their shifts. The macros begin with `{make_c_identifier(name).upper()}_`."
    )
    if tail in sizes:
        steps.append(f"On the host, run `{tail}` on the chip's outputs.")
    if ports.states:
        steps.append("Feed the states below back before the next call.")
    steps.append(
        "Verify the board: feed `golden/0/input0.bin` and the other inputs there, and compare the "
        f"dump with `lingeronnx verify {name}_chip.onnx --input golden/0/input.npz --device-dump "
        "DIR` (or `--device-log`, `--device-output`); `golden/0/data` contains the expected value "
        "of every tensor. A board dumps fewer, because it fuses nodes."
    )
    yield from (f"{index}. {step}" for index, step in enumerate(steps, 1))


def _iterate_io_sections(
    ports: Ports, costs: Mapping[str, GraphCost | None], program: BoardProgram | None
) -> Iterator[str]:
    """Yield Markdown tables of the chip's inputs and outputs, and lines on the states.

    With several chip parts in a C program there is one table per unique part, and no states.
    """
    if program is not None and len(program.chip) > 1:
        for part in program.unique_chip_parts:
            yield from (f"## Inputs and outputs of {part.name}", "", *_iterate_port_table(part), "")
        return
    chip = "the chip" if len(costs) == 1 else next(iter(costs))
    yield from (
        f"## Inputs and outputs of {chip}",
        "",
        *_iterate_port_table(ports),
        "",
        *_iterate_states(ports),
    )


def _iterate_port_table(ports: Ports | ChipPart) -> Iterator[str]:
    """Yield a Markdown table of inputs and outputs: name, shape, type, bytes and scale.

    The scale is a power of two, or "not scaled".
    """
    yield "| | name | shape | type | bytes | integer = value * |"
    yield "|---|---|---|---|---:|---|"
    for direction, side in (("input", ports.inputs), ("output", ports.outputs)):
        for index, port in enumerate(side):
            name, shape = escape_markdown(_format_port_name(port)), format_shape(port.shape)
            scale = "not scaled" if port.shift is None else f"2^{port.shift}"
            size = f"{shape} | {port.dtype} | {port.bytes}"
            yield f"| {direction} {index} | {name} | {size} | {scale} |"


def _format_port_name(port: Port) -> str:
    """Return the name of a port, with its name in the package if that is another one."""
    if port.name == port.package_name:
        return port.name
    return f"{port.name} (in the package: {port.package_name})"


def _iterate_states(ports: Ports) -> Iterator[str]:
    """Yield a line for each state that is fed back, by the chip's ports or through a host part."""
    for state in ports.states:
        source = escape_markdown(ports.outputs[state.output].name)
        fed_input = escape_markdown(ports.inputs[state.input].name)
        yield (
            f"State: output {state.output} ({source}) -> input {state.input} ({fed_input}), its "
            f"integers times 2^{state.shift}; initially zero."
        )
    for source, fed_input in ports.host_states.items():
        yield (
            f"State: {escape_markdown(source)} -> {escape_markdown(fed_input)}, through a host "
            "part; initially zero."
        )
    if ports.states or ports.host_states:
        yield ""


def _iterate_latency_section(time: CallLatency) -> Iterator[str]:
    """Yield Markdown on the estimated time of a call, and a table of the slowest layers.

    At most _MAX_LISTED_LAYERS layers, with the number of omitted ones; no table without a latency.
    """
    sentences = _format_time(time)
    if sentences:
        yield from ("## Time on the chip", "")
        yield from (f"{sentence}." for sentence in sentences)
        yield ""
    if time.latency is None:
        return
    yield "| layer | operator | cycles | at most | waits for constants |"
    yield "|---|---|---:|---:|---:|"
    layers = sorted(time.latency.layers, key=lambda layer: -layer.total_cycles)
    for layer in layers[:_MAX_LISTED_LAYERS]:
        max_cycles = layer.wait + layer.moved + layer.high
        name, operator = escape_markdown(layer.node or layer.name), escape_markdown(layer.operator)
        yield (
            f"| {name} | {operator} | {layer.total_cycles:,.0f} | {max_cycles:,.0f} | "
            f"{layer.wait:,.0f} |"
        )
    omitted = len(layers) - _MAX_LISTED_LAYERS
    if omitted > 0:
        yield from ("", f"{omitted} layers with fewer cycles are omitted.")
    yield ""


_MAX_LISTED_LAYERS = 12


def _format_time(time: CallLatency) -> list[str]:
    """Return sentences without a full stop on the estimated time of a call, for Markdown."""
    return [escape_markdown(line[0].upper() + line[1:]) for line in time.lines()]


def _iterate_costs(costs: Mapping[str, GraphCost | None]) -> Iterator[str]:
    """Yield a sentence on the memory and cost of each chip part, as the packer plans them.

    Nothing for parts without a plan.
    """
    for name, cost in costs.items():
        if cost is not None:
            part = "On the chip" if len(costs) == 1 else name
            yield (
                f"{part}, as the packer plans it, without the executor's objects: "
                f"{cost.format_totals()}."
            )
