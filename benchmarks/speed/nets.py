"""The models that are measured, each with a feed for one sample.

Those of this repository, and those of ../shared/models where there are such, else two with random
weights. The real ones, with the first inputs of their data, are a part of their own:
`../shared/data/real_models.py` says which these are, and their states.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from models.random_nets import mobilenet_v2, resnet

__all__ = [
    "ROOT",
    "SHARED",
    "Net",
    "iterate_nets",
    "iterate_nets_of_file",
    "iterate_real_nets",
    "random_feed",
]

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
_FEW = 4  # inputs of a real model that it is calibrated on
#: Models with the layers of another one, which take the same time.
_TWINS = ("cifar_mobilenetv2_uneven", "fsdd_attention_op13", "mlperf_tiny_resnet8_fix")


@dataclass(frozen=True)
class Net:
    """A float model and how it is measured.

    Parameters
    ----------
    title, model, platform
        Its name in the table, the float model, and what it is quantized for.
    batches
        Samples in a call.
    calib, state
        What `quantize` takes; None are random numbers.
    feed
        A sample; without one it is random numbers.
    """

    title: str
    model: onnx.ModelProto
    platform: str
    batches: Sequence[int] = (1, 64)
    calib: Any = None
    state: Mapping[str, str] = field(default_factory=dict)
    feed: Mapping[str, np.ndarray] | None = None

    def sample(self, batch: int) -> dict[str, np.ndarray]:
        """Return a feed of `batch` samples; of a model that takes a single one, `batch` is 1."""
        feed = self.feed or random_feed(self.model)
        return (
            feed
            if batch == 1
            else {name: np.repeat(array, batch, axis=0) for name, array in feed.items()}
        )


def random_feed(model: onnx.ModelProto, seed: int = 1) -> dict[str, np.ndarray]:
    """Return normally distributed numbers for a sample of a model with float inputs."""
    rng, held = np.random.default_rng(seed), {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in held]
    return {value.name: rng.standard_normal(_sizes(value)).astype(np.float32) for value in inputs}


def _sizes(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]


def iterate_nets_of_file(path: Path, platforms: Sequence[str] = ()) -> Iterator[Net]:
    """Yield a model with random inputs, for venus and, where its layers are others there, for generic."""
    model = onnx.load(path)
    open_batch = all(
        not value.type.tensor_type.shape.dim[0].dim_value for value in model.graph.input
    )
    batches = (1, 64) if open_batch else (1,)
    for platform in platforms or (
        ("venus", "generic") if _has_sequence_layers(model) else ("venus",)
    ):
        yield Net(path.stem, model, platform, batches)


def _has_sequence_layers(model: onnx.ModelProto) -> bool:
    """Whether it has recurrent layers, or products of two computed tensors, as attention has."""
    held = {tensor.name for tensor in model.graph.initializer}
    held |= {node.output[0] for node in model.graph.node if node.op_type == "Constant"}
    return any(
        node.op_type in ("LSTM", "GRU") or (node.op_type == "MatMul" and node.input[1] not in held)
        for node in model.graph.node
    )


def iterate_nets(quick: bool = False) -> Iterator[Net]:
    """Yield the models of this repository, one with random weights, and those beside it.

    Without the latter, or for a quick look, one more with random weights.
    """
    for path in sorted((ROOT / "models").glob("*.onnx")):
        yield from iterate_nets_of_file(path, ("venus",) if quick else ())
    paths = () if quick else sorted((SHARED / "models").glob("*.onnx"))
    if not paths:
        yield Net("MobileNetV2, random weights", mobilenet_v2(), "venus")
        yield Net("ResNet-20, random weights", resnet((16, 32, 64), 3), "venus")
        return
    yield Net("ResNet-18, random weights", resnet((64, 128, 256, 512), 2), "venus", (1, 16))
    for path in paths:
        if path.stem not in _TWINS:
            yield from iterate_nets_of_file(path)


def iterate_real_nets() -> Iterator[Net]:
    """Yield the real models beside this repository, with the first inputs of their data."""
    if (SHARED / "data" / "real_models.py").is_file():
        yield from _real()


def _real() -> Iterator[Net]:
    spec = importlib.util.spec_from_file_location("real_models", SHARED / "data" / "real_models.py")
    assert spec is not None
    assert spec.loader is not None
    data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data)
    for file, calib, _, state in data.MODELS.values():
        path = SHARED / "models" / "real" / file
        if not path.is_file():
            continue
        model = onnx.load(path)
        feeds: list[Any] = []
        for given in calib():
            feeds += _samples(given[0] if isinstance(given, tuple) else given, bool(state))
            if len(feeds) >= _FEW:
                break
        zeros = {
            value.name: np.zeros(_sizes(value), np.float32)
            for value in model.graph.input
            if value.name in state.values()
        }
        yield Net(path.stem, model, "venus", (1,), feeds[:_FEW], state, {**feeds[0], **zeros})


def _samples(feed: Mapping[str, np.ndarray], one: bool) -> list[dict[str, np.ndarray]]:
    """Return the samples of a feed, a single one for a call of a model with states."""
    count = 1 if one else max(len(array) for array in feed.values())
    return (
        [dict(feed)]
        if count == 1
        else [{k: v[i : i + 1] for k, v in feed.items()} for i in range(count)]
    )
