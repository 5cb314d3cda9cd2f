"""Write the report pages of six models, for `benchmarks/look_at_pages.js` to look at and to measure.

    python -m benchmarks.report_pages SHARED PAGES [--only NAME ...]

SHARED has models/ and data/ with loaders.py and real_models.py. Models are quantized with
`effort="fast"`, and compared on a few of their test samples, without trials of actions. The
transformer is made here: as exporters write them, a layer is 33 nodes, and its weights are
random. An existing page is left as it is.
"""

from __future__ import annotations

import argparse
import itertools
import runpy
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import lingeronnx as lo
from lingeronnx.ir import ir

_LAYERS, _TOKENS, _WIDTH, _HEADS = 68, 16, 32, 4
_SEED = 3


@dataclass(frozen=True)
class _Subject:
    """A model, its calibration and test data, and further settings of `quantize`.

    state : {output: input} of streaming models. samples : number of test samples, or calls.
    """

    model: Path | onnx.ModelProto
    calib: Callable[[], Iterable[object]]
    test: Callable[[], Iterable[object]]
    platform: str = "arcs"
    state: dict[str, str] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    samples: int = 32


class _TransformerBuilder:
    """Builds an encoder node by node; each method appends nodes and returns the output's name."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(_SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.scope = ""

    def add(self, op_type: str, *inputs: str | np.ndarray, **attributes: object) -> str:
        """Append a node in the current scope; arrays become constants."""
        names = [name if isinstance(name, str) else self._add_constant(name) for name in inputs]
        output = f"{self.scope}/{op_type}_{len(self.nodes)}_output_0"
        name = output.removesuffix("_output_0")
        self.nodes.append(helper.make_node(op_type, names, [output], name=name, **attributes))
        return output

    def _add_constant(self, array: np.ndarray) -> str:
        """Register a constant and return its name."""
        name = f"{self.scope}/constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """Append a fully connected layer with a bias."""
        weights = self.rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)
        product = self.add("MatMul", x, weights.astype(np.float32))
        bias = 0.1 * self.rng.standard_normal(outputs)
        return self.add("Add", bias.astype(np.float32), product)

    def normalize(self, x: str) -> str:
        """Append a layer normalization."""
        scale = self.rng.uniform(0.8, 1.2, _WIDTH).astype(np.float32)
        return self.add(
            "LayerNormalization", x, scale, np.zeros(_WIDTH, np.float32), axis=-1, epsilon=1e-5
        )

    def attend(self, x: str) -> str:
        """Append multi-head attention, without the projection of its output."""
        size = _WIDTH // _HEADS
        shape = np.array([0, _TOKENS, _HEADS, size])
        heads = [
            self.add(
                "Transpose", self.add("Reshape", self.linear(x, _WIDTH, _WIDTH), shape), perm=p
            )
            for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        ]
        query = self.add("Mul", heads[0], np.float32(size**-0.5))
        weights = self.add("Softmax", self.add("MatMul", query, heads[1]), axis=-1)
        rows = self.add("Transpose", self.add("MatMul", weights, heads[2]), perm=[0, 2, 1, 3])
        return self.add("Reshape", rows, np.array([0, _TOKENS, _WIDTH]))

    def activate(self, x: str) -> str:
        """Append GELU as exporters write it, from Erf."""
        error = self.add("Erf", self.add("Div", x, np.float32(np.sqrt(2))))
        product = self.add("Mul", x, self.add("Add", error, np.float32(1)))
        return self.add("Mul", product, np.float32(0.5))


def build_transformer(layers: int = _LAYERS) -> onnx.ModelProto:
    """Build an encoder of `layers` pre-normalized layers: x [N, 16, 32] -> y [N, 16, 32]."""
    builder = _TransformerBuilder()
    x = "x"
    for layer in range(layers):
        builder.scope = f"/encoder/layer.{layer}/attention"
        attended = builder.attend(builder.normalize(x))
        x = builder.add("Add", x, builder.linear(attended, _WIDTH, _WIDTH))
        builder.scope = f"/encoder/layer.{layer}/mlp"
        hidden = builder.activate(builder.linear(builder.normalize(x), _WIDTH, 2 * _WIDTH))
        x = builder.add("Add", x, builder.linear(hidden, 2 * _WIDTH, _WIDTH))
    builder.scope = "/encoder"
    output = builder.normalize(x)
    shape = ["N", _TOKENS, _WIDTH]
    graph = helper.make_graph(
        builder.nodes,
        "encoder",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info(output, 1, shape)],
        builder.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _draw_tokens(seed: int) -> Callable[[], list[object]]:
    """Return a function that draws 16 samples for the transformer."""
    shape = (16, _TOKENS, _WIDTH)
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return lambda: [({"x": array}, None)]


def list_subjects(shared: Path) -> dict[str, _Subject]:
    """Return the models by name of their page."""
    models = shared / "models"
    loaders = runpy.run_path(str(shared / "data" / "loaders.py"))
    real = runpy.run_path(str(shared / "data" / "real_models.py"))

    def find(file: str, data: str, source: dict[str, object], **fields: object) -> _Subject:
        return _Subject(models / file, source[f"{data}_calib"], source[f"{data}_test"], **fields)

    silero_state = real["MODELS"]["silero"][3]
    return {
        "resnet8": find("mlperf_tiny_resnet8.onnx", "resnet8", loaders),
        "mobilenetv2_uneven": find("cifar_mobilenetv2_uneven.onnx", "mobilenetv2", loaders),
        "attention": find("fsdd_attention.onnx", "sequence", loaders),
        "silero": find(
            "real/vad_silero_op15.onnx", "silero", real, state=silero_state, samples=200
        ),
        "nanodet": find(
            "real/detect_nanodet320.onnx", "nanodet", real, platform="generic", samples=8
        ),
        "transformer": _Subject(
            build_transformer(), _draw_tokens(1), _draw_tokens(2), platform="generic", samples=8
        ),
    }


def _take(items: Iterable[object], count: int) -> list[object]:
    """Return the first `count` samples of data, which are one batch or a call per item."""
    items = list(itertools.islice(items, count))
    if len(items) > 1 or isinstance(items[0], dict):
        return items
    feeds, labels = items[0]
    part = {name: array[:count] for name, array in feeds.items()}
    return [(part, None if labels is None else labels[:count])]


def write_page(subject: _Subject, page: Path) -> None:
    """Quantize a model and write the page of its report."""
    state = {"state": subject.state} if subject.state else {}
    model = (
        ir.from_proto(subject.model)
        if isinstance(subject.model, onnx.ModelProto)
        else subject.model
    )
    result = lo.quantize(
        model,
        _take(subject.calib(), 4 * subject.samples),
        platform=subject.platform,
        effort="fast",
        **state,
        **subject.settings,
    )
    with tempfile.TemporaryDirectory() as folder:
        test = _take(subject.test(), subject.samples)
        html, _ = lo.report(model, result, test, Path(folder), **state)
        shutil.move(html, page)


def main() -> None:
    """Write the pages that are missing, and print the size of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("pages", type=Path, help="folder of the pages")
    parser.add_argument("--only", nargs="*", metavar="NAME")
    args = parser.parse_args()
    args.pages.mkdir(parents=True, exist_ok=True)
    for name, subject in list_subjects(args.shared).items():
        page = args.pages / f"{name}.html"
        if args.only and name not in args.only:
            continue
        if not page.exists():
            write_page(subject, page)
        print(f"{page}: {page.stat().st_size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
