"""The README of a deployed folder: the steps, and the sizes as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..targets import CallLatency, GraphCost
from .c_program.guide import make_program_guide
from .c_program.program import BoardProgram, ChipPart
from .header import make_c_identifier
from .markdown import escape_markdown, format_shape
from .ports import Port, Ports

__all__ = ["make_readme"]


def make_readme(
    name: str,
    platform: str,
    command: str,
    ports: Ports,
    sizes: Mapping[str, int],
    weights: int,
    costs: Mapping[str, GraphCost | None],
    notes: Sequence[str],
    time: CallLatency,
    program: BoardProgram | None = None,
) -> str:
    """Return the text.

    sizes : bytes by file. weights : bytes of the chip parts' constants. costs : on the chip, by
    part. time : of a call.
    """
    lines = [f"# {name} on {platform}", "", "Made by `lingeronnx deploy`.", ""]
    lines += [f"Note: {escape_markdown(note)}." for note in notes] + [""] * bool(notes)
    lines += ["## Steps", "", *_steps(name, command, ports, sizes, program)]
    lines += ["", *(make_program_guide(program, sizes) if program is not None else ())]
    lines += _iterate_io_sections(ports, costs, program)
    lines += _iterate_latency_section(time)
    lines += [
        "## Sizes",
        "",
        f"Constants of the chip graph: {weights} bytes.",
        *_iterate_costs(costs),
        "",
    ]
    lines += ["| file | bytes |", "|---|---:|"]
    lines += [
        f"| {file} | {size} |" for file, size in sizes.items() if not file.startswith("golden/")
    ]
    golden = [size for file, size in sizes.items() if file.startswith("golden/")]
    lines += [f"| golden/ ({len(golden)} files) | {sum(golden)} |"]
    return "\n".join(lines) + "\n"


def _steps(
    name: str, command: str, ports: Ports, sizes: Mapping[str, int], program: BoardProgram | None
) -> Iterator[str]:
    if program is not None and len(program.chip) > 1:
        yield f"1. Pack: `sh pack.sh`, which runs `{command}`."
        yield f"2. Build the program, and call `{program.prefix}_run()`: below."
        yield f"3. Prove the board: `{program.prefix}_self_test()`, or `main.c` over `golden/`."
        return
    head, tail = (f"{name}_host_{end}.onnx" for end in ("head", "tail"))
    if program is not None:
        yield (
            f"`{program.prefix}_run()` of the program below does steps 2 and what follows it. "
            "By "
            "hand:"
        )
        yield ""
    steps = [f"Pack: `sh pack.sh`, which runs `{command}`."]
    if head in sizes:
        steps.append(f"On the host, run `{head}` (onnxruntime); its outputs are the chip's inputs.")
    steps.append(
        f"Quantize each input as `{name}.h` says, run `{name}.pkg`, take the outputs back by their "
        "shifts. The macros "
        f"begin with `{make_c_identifier(name).upper()}_`."
    )
    if tail in sizes:
        steps.append(f"On the host, run `{tail}` on what the chip wrote.")
    if ports.states:
        steps.append("Feed the states below back before the next call.")
    steps.append(
        "Prove the board: feed `golden/0/input0.bin` and the other inputs there, and compare the "
        "dump with "
        f"`lingeronnx verify {name}_chip.onnx --input golden/0/input.npz --device-dump DIR` (or "
        "`--device-log`, "
        "`--device-output`); `golden/0/data` holds what every tensor must be. A board shows fewer, "
        "for it fuses nodes."
    )
    yield from (f"{number}. {step}" for number, step in enumerate(steps, 1))


def _iterate_io_sections(
    ports: Ports, costs: Mapping[str, GraphCost | None], program: BoardProgram | None
) -> Iterator[str]:
    """Yield what the chip reads and writes, of each package where there are several."""
    if program is not None and len(program.chip) > 1:
        for part in program.unique_chip_parts:
            yield from (f"## Inputs and outputs of {part.name}", "", *_table(part), "")
        return
    chip = "the chip" if len(costs) == 1 else next(iter(costs))
    yield from (f"## Inputs and outputs of {chip}", "", *_table(ports), "", *_states(ports))


def _table(ports: Ports | ChipPart) -> Iterator[str]:
    yield "| | name | shape | type | bytes | integer = value * |"
    yield "|---|---|---|---|---:|---|"
    for word, side in (("input", ports.inputs), ("output", ports.outputs)):
        for number, port in enumerate(side):
            name, shape = escape_markdown(port.name), format_shape(port.shape)
            yield (
                f"| {word} {number} | {name} | {shape} | {port.dtype} | {port.bytes} | "
                f"{_format_scale(port)} |"
            )


def _format_scale(port: Port) -> str:
    return "as it is" if port.shift is None else f"2^{port.shift}"


def _states(ports: Ports) -> Iterator[str]:
    for state in ports.states:
        source, target = (
            escape_markdown(p.name)
            for p in (ports.outputs[state.output], ports.inputs[state.input])
        )
        yield (
            f"State: output {state.output} ({source}) -> input {state.input} ({target}), its "
            "integers times "
            f"2^{state.shift}; zeros at first."
        )
    for source, target in ports.host_states.items():
        yield (
            f"State: {escape_markdown(source)} -> {escape_markdown(target)}, through the host's "
            "part; zeros at first."
        )
    if ports.states or ports.host_states:
        yield ""


def _iterate_latency_section(time: CallLatency) -> Iterator[str]:
    told = [line[0].upper() + line[1:] for line in time.lines()]
    if told:
        yield from ("## Time on the chip", "", *(f"{escape_markdown(line)}." for line in told), "")
    if time.latency is None:
        return
    yield from (
        "| layer | operator | cycles | at most | waits for constants |",
        "|---|---|---:|---:|---:|",
    )
    heaviest = sorted(time.latency.layers, key=lambda layer: -layer.total_cycles)[
        :_MAX_LISTED_LAYERS
    ]
    for layer in heaviest:
        cells = (
            f"{layer.total_cycles:,.0f} | {layer.wait + layer.moved + layer.high:,.0f} | "
            f"{layer.wait:,.0f}"
        )
        yield f"| {escape_markdown(layer.node or layer.name)} | {layer.operator} | {cells} |"
    left = len(time.latency.layers) - len(heaviest)
    yield from (["", f"{left} lighter layers are left out."] if left else [])
    yield ""


_MAX_LISTED_LAYERS = 12  # that the README lists


def _iterate_costs(costs: Mapping[str, GraphCost | None]) -> Iterator[str]:
    for name, cost in costs.items():
        if cost is not None:
            yield (
                f"{'On the chip' if len(costs) == 1 else name}, as planned: {cost.format_totals()}."
            )
