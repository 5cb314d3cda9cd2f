"""The README of a deployed folder: the steps, and the sizes as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..targets import Cost
from .header import identifier
from .ports import Port, Ports

__all__ = ["readme"]


def readme(
    name: str,
    platform: str,
    command: str,
    ports: Ports,
    sizes: Mapping[str, int],
    weights: int,
    cost: Cost | None,
    notes: Sequence[str],
) -> str:
    """Return the text. sizes : bytes by file. weights : bytes of the chip graph's constants. cost : on the chip."""
    lines = [f"# {name} on {platform}", "", "Made by `lingeronnx deploy`.", ""]
    lines += [f"Note: {note}." for note in notes] + [""] * bool(notes)
    lines += ["## Steps", "", *_steps(name, command, ports, sizes)]
    lines += ["", "## Inputs and outputs of the chip", "", *_table(ports), "", *_states(ports)]
    lines += ["## Sizes", "", f"Constants of the chip graph: {weights} bytes.", *_cost(cost), ""]
    lines += ["| file | bytes |", "|---|---:|"]
    lines += [f"| {file} | {size} |" for file, size in sizes.items() if not file.startswith("golden/")]
    golden = [size for file, size in sizes.items() if file.startswith("golden/")]
    lines += [f"| golden/ ({len(golden)} files) | {sum(golden)} |"]
    return "\n".join(lines) + "\n"


def _steps(name: str, command: str, ports: Ports, sizes: Mapping[str, int]) -> Iterator[str]:
    head, tail = (f"{name}_host_{end}.onnx" for end in ("head", "tail"))
    steps = [f"Pack: `sh pack.sh`, which runs `{command}`."]
    if head in sizes:
        steps.append(f"On the host, run `{head}` (onnxruntime); its outputs are the chip's inputs.")
    steps.append(
        f"Quantize each input as `{name}.h` says, run `{name}.pkg`, take the outputs back by their shifts. The macros "
        f"begin with `{identifier(name).upper()}_`."
    )
    if tail in sizes:
        steps.append(f"On the host, run `{tail}` on what the chip wrote.")
    if ports.states:
        steps.append("Feed the states below back before the next call.")
    steps.append(
        "Prove the board: feed `golden/0/input0.bin` and the other inputs there, and compare the dump with "
        f"`lingeronnx verify {name}_chip.onnx --input golden/0/input.npz --device-dump DIR` (or `--device-log`, "
        "`--device-output`); `golden/0/data` holds what every tensor must be. A board shows fewer, for it fuses nodes."
    )
    yield from (f"{number}. {step}" for number, step in enumerate(steps, 1))


def _table(ports: Ports) -> Iterator[str]:
    yield "| | name | shape | type | bytes | integer = value * |"
    yield "|---|---|---|---|---:|---|"
    for word, side in (("input", ports.inputs), ("output", ports.outputs)):
        for number, port in enumerate(side):
            yield f"| {word} {number} | {port.name} | {_shape(port)} | {port.dtype} | {port.bytes} | {_scale(port)} |"


def _shape(port: Port) -> str:
    return "x".join(map(str, port.shape)) or "1"


def _scale(port: Port) -> str:
    return "as it is" if port.shift is None else f"2^{port.shift}"


def _states(ports: Ports) -> Iterator[str]:
    for state in ports.states:
        source, target = ports.outputs[state.output].name, ports.inputs[state.input].name
        yield (
            f"State: output {state.output} ({source}) -> input {state.input} ({target}), its integers times "
            f"2^{state.shift}; zeros at first."
        )
    for source, target in ports.on_host.items():
        yield f"State: {source} -> {target}, through the host's part; zeros at first."
    if ports.states or ports.on_host:
        yield ""


def _cost(cost: Cost | None) -> Iterator[str]:
    if cost is not None:
        yield f"On the chip, as planned: {cost.text()}."
