"""Measure CPU time and memory of `lingeronnx quantize` against onnxruntime's `quantize_static`.

    python -m benchmarks.quantizing_time MODELS LOADERS [--only CASE ...] [--lite0]
        [--large NAME ...] [--platform venus] [--rounds 5] [--samples 256] [--before DIR]
        [--write benchmarks/results/quantizing-time.md]

MODELS is a folder with the models of `model_cases`, LOADERS the file with their data; ``--lite0``
adds a network of the size of EfficientNet-Lite0 (4.6 M parameters, 224x224) with random weights, on
random images; ``--large`` adds networks of `speed.large_nets` on 8 random samples. Both engines
read the same samples from files, in processes of their own, imports included, in turns: `quantize`
for the platform at each effort, and `quantize_static` with QDQ and MinMax. The table has medians of the rounds: CPU seconds (user and system) and peak resident memory of
`quantize_static`, and the ratios of `quantize` to both, paired by round. Compiled kernels are
cached before the first round. ``--before DIR`` also measures the version of lingeronnx in that
folder, in the same turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .model_cases import CASES, add_folder_arguments
from .speed import quantize_cost
from .speed.machine import describe_machine

ROOT = Path(__file__).parents[1]
EFFORTS = ("fast", "normal")
_LARGE_SAMPLES = 8

#: Blocks of EfficientNet-Lite0: expansion, channels, blocks, stride of the first, kernel size.
_LITE0_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


@dataclass(frozen=True)
class Usage:
    """CPU seconds and peak resident memory in MB of a process."""

    cpu: float
    peak_mb: float


@dataclass(frozen=True)
class Row:
    """Usage of `quantize_static` for a model, and of `quantize` by column title, in each round."""

    title: str
    samples: int
    static: Sequence[Usage]
    quantize: dict[str, Sequence[Usage]]

    def cells(self) -> list[str]:
        """Return the row of the table: medians, and medians of paired ratios."""
        cells = [
            self.title,
            str(self.samples),
            f"{statistics.median(usage.cpu for usage in self.static):.2f}",
            f"{statistics.median(usage.peak_mb for usage in self.static):.0f}",
        ]
        for usages in self.quantize.values():
            pairs = list(zip(usages, self.static, strict=True))
            cells += [
                f"{statistics.median(own.cpu for own in usages):.2f}",
                f"{statistics.median(own.cpu / static.cpu for own, static in pairs):.2f}",
                f"{statistics.median(own.peak_mb / static.peak_mb for own, static in pairs):.2f}",
            ]
        return cells


class _Lite0Builder:
    """Builds a network of the size of EfficientNet-Lite0, with random weights."""

    def __init__(self) -> None:
        """Start with no nodes."""
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def conv(
        self, x: str, inputs: int, outputs: int, kernel: int, stride: int, act: bool, group: int = 1
    ) -> str:
        """Add a convolution, with a Clip to 0..6 behind it if `act`, and return its output."""
        index = len(self.nodes)
        fan_in = inputs // group * kernel**2
        shape = (outputs, inputs // group, kernel, kernel)
        weight = self._rng.normal(0, (2 / fan_in) ** 0.5, shape).astype(np.float32)
        bias = self._rng.normal(0, 0.1, outputs).astype(np.float32)
        self.constants += [
            numpy_helper.from_array(weight, f"w{index}"),
            numpy_helper.from_array(bias, f"b{index}"),
        ]
        node = helper.make_node(
            "Conv",
            [x, f"w{index}", f"b{index}"],
            [f"t{index}"],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=group,
        )
        self.nodes.append(node)
        if not act:
            return f"t{index}"
        self.nodes.append(helper.make_node("Clip", [f"t{index}", "zero", "six"], [f"a{index}"]))
        return f"a{index}"

    def block(
        self, x: str, inputs: int, outputs: int, expand: int, kernel: int, stride: int
    ) -> str:
        """Add an inverted residual block and return its output."""
        hidden, y = inputs * expand, x
        if expand > 1:
            y = self.conv(y, inputs, hidden, 1, 1, True)
        y = self.conv(y, hidden, hidden, kernel, stride, True, group=hidden)
        y = self.conv(y, hidden, outputs, 1, 1, False)
        if stride == 1 and inputs == outputs:
            self.nodes.append(helper.make_node("Add", [x, y], [f"s{len(self.nodes)}"]))
            y = self.nodes[-1].output[0]
        return y


def build_lite0() -> onnx.ModelProto:
    """Build the network: input [N, 3, 224, 224], output [N, 1000]."""
    builder = _Lite0Builder()
    y, channels = builder.conv("input", 3, 32, 3, 2, True), 32
    for expand, outputs, count, stride, kernel in _LITE0_STAGES:
        for index in range(count):
            y = builder.block(y, channels, outputs, expand, kernel, 1 if index else stride)
            channels = outputs
    y = builder.conv(y, channels, 1280, 1, 1, True)
    rng = np.random.default_rng(1)
    weight = rng.normal(0, 0.03, (1280, 1000)).astype(np.float32)
    builder.constants += [
        numpy_helper.from_array(weight, "wf"),
        numpy_helper.from_array(np.array(0, np.float32), "zero"),
        numpy_helper.from_array(np.array(6, np.float32), "six"),
    ]
    builder.nodes += [
        helper.make_node("GlobalAveragePool", [y], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "wf"], ["output"]),
    ]
    x = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, 224, 224])
    out = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 1000])
    graph = helper.make_graph(builder.nodes, "lite0", [x], [out], builder.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def list_columns(before: Path | None) -> dict[str, tuple[str, Path]]:
    """Return {title: (effort, folder of the version)} of the commands that are compared."""
    versions = {"": ROOT} if before is None else {" before": before, " after": ROOT}
    return {
        f"{effort}{suffix}": (effort, folder)
        for effort in EFFORTS
        for suffix, folder in versions.items()
    }


def measure_model(
    title: str,
    model: str,
    calib: str,
    samples: int,
    platform: str,
    rounds: int,
    columns: dict[str, tuple[str, Path]],
) -> Row:
    """Measure a model: `rounds` times `quantize_static` and `quantize` of each column, in turns."""
    static: list[Usage] = []
    own: dict[str, list[Usage]] = {column: [] for column in columns}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as results:
        quantize_cost.write(model, calib, samples, folder)
        script = [sys.executable, "-m", quantize_cost.__name__, model, calib]
        output = str(Path(results) / "out.onnx")
        commands = {
            column: [
                *(sys.executable, "-m", "lingeronnx", "quantize", model, "--calib", folder),
                *("--platform", platform, "--effort", effort, "-o", output),
            ]
            for column, (effort, _) in columns.items()
        }
        for column, (_, version) in columns.items():
            _measure(commands[column], version)  # fills the cache of compiled kernels
        for _ in range(rounds):
            static.append(_measure([*script, "--static", folder, output], ROOT))
            for column, (_, version) in columns.items():
                own[column].append(_measure(commands[column], version))
    return Row(title, samples, static, dict(own))


def _measure(command: Sequence[str], folder: Path) -> Usage:
    """Run a command in `folder`, from which `python -m` takes packages first."""
    change = "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
    _, cpu, peak_mb = quantize_cost.measure_command(
        [sys.executable, "-c", change, str(folder), *command]
    )
    return Usage(cpu, peak_mb)


def iterate_cases(
    arguments: argparse.Namespace, folder: Path
) -> Iterator[tuple[str, str, str, int]]:
    """Yield (title, model, calibration data, samples); files of the random network go to `folder`."""
    for name in arguments.only:
        case = CASES[name]
        data = case.get_calibration_data(arguments.loaders.resolve())
        yield name, case.model(arguments.models.resolve()), data, arguments.samples
    if arguments.lite0:
        model, calib = folder / "lite0.onnx", folder / "images.npz"
        onnx.save(build_lite0(), model)
        images = np.random.default_rng(2).normal(size=(16, 3, 224, 224)).astype(np.float32)
        np.savez(calib, input=images)
        yield "lite0, random weights", str(model), str(calib), len(images)
    for name in arguments.large:
        from .speed.large_nets import LARGE_NETS

        model, calib, net = folder / "large.onnx", folder / "large.npz", LARGE_NETS[name]
        onnx.save(net.export(), model)
        drawn = [net.draw_sample(seed) for seed in range(1, 1 + _LARGE_SAMPLES)]
        np.savez(calib, x=np.concatenate(drawn))
        yield f"{name}, random weights", str(model), str(calib), len(drawn)


def format_table(rows: Sequence[Row]) -> list[str]:
    """Return the table in Markdown."""
    head = ["model", "samples", "`quantize_static`, CPU s", "MB"]
    for column in rows[0].quantize:
        head += [f"{column}, CPU s", "CPU ratio", "memory ratio"]
    cells = [head, ["---"] * len(head), *(row.cells() for row in rows)]
    return [f"| {' | '.join(line)} |" for line in cells]


def main() -> None:
    """Measure the models and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_folder_arguments(parser)
    parser.add_argument("--lite0", action="store_true")
    parser.add_argument("--large", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--platform", default="venus")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    columns = list_columns(arguments.before and arguments.before.resolve())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for title, model, calib, samples in iterate_cases(arguments, Path(folder)):
            given = (samples, arguments.platform, arguments.rounds, columns)
            row = measure_model(title, model, calib, *given)
            rows.append(row)
            print(" ".join(row.cells()), file=sys.stderr, flush=True)
    machine = describe_machine()
    lines = [
        "# Time and memory of quantize",
        "",
        f"`lingeronnx quantize` for {arguments.platform} as a whole process, imports included,",
        "against a script with",
        "onnxruntime's `quantize_static` (QDQ, MinMax) on the same samples. Ratios are medians of",
        f"{arguments.rounds} paired runs; CPU is user and system time. Compiled kernels are cached.",
        "",
        "    python -m benchmarks.quantizing_time MODELS LOADERS --lite0",
        "",
        f"{machine['cpu']}, {date.today().isoformat()}; {machine['versions']}.",
        "",
        *format_table(rows),
    ]
    text = "\n".join(lines) + "\n"
    if arguments.write is None:
        print(text)
    else:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
