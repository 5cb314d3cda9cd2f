"""Small models with options of `quantize` that no other set has.

Parts, states, plans, searches, widths, QDQ models.
The models are built here from seeded weights, without lingeronnx; a plan that an entry starts from
is made by the version under test. Together the entries bring each trial at least one proposal that
is accepted and one that is not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "models" / "digits_cnn.onnx"
PEERS = ROOT / "tests" / "qdq" / "files"
CHIPS = ("venus", "arcs", "venusA")

Feed = Mapping[str, np.ndarray]
Row = tuple[
    str,
    Path | onnx.ModelProto,
    Callable[[int], tuple[Any, Sequence[Feed]]],
    dict[str, Any],
    tuple[str, ...],
]


class ModelBuilder:
    """A float model under construction.

    Each method appends a node and returns the name of its output.
    """

    def __init__(self, *shape: int, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: object) -> str:
        """Register a float32 constant."""
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def node(self, op_type: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        """Append any node."""
        out = out or f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, inputs, [out], name=f"{op_type}_{out}", **attributes)
        )
        return out

    def weight(self, *shape: int) -> np.ndarray:
        """Draw He-scaled weights; all axes but the first are summed over."""
        return self.random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))

    def conv(self, x: str, weight: np.ndarray, *, out: str | None = None, group: int = 1) -> str:
        """Append a Conv with a bias that keeps the size of the map."""
        bias = 0.1 * self.random.standard_normal(len(weight))
        inputs = (x, self.constant(weight), self.constant(bias))
        return self.node("Conv", *inputs, out=out, group=group, pads=[weight.shape[2] // 2] * 4)

    def build(self, *outputs: str) -> onnx.ModelProto:
        """Build the model with a dynamic batch axis."""
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *self.shape])]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", inputs, results, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def build_islands(channels: Sequence[int]) -> onnx.ModelProto:
    """Convolutions with an Erf between each two, which a chip does not compute."""
    net, x, inputs = ModelBuilder(8, 8, 8), "x", 8
    for number, count in enumerate(channels):
        last = number == len(channels) - 1
        x = net.conv(x, net.weight(count, inputs, 3, 3), out="y" if last else None)
        x = x if last else net.node("Erf", x)
        inputs = count
    return net.build("y")


def build_uneven(largest: float = 300.0, smallest: float = 1e-4) -> onnx.ModelProto:
    """Three convolutions; one channel of the middle one has weights so large that no scale serves the others."""
    net = ModelBuilder(8, 8, 8, seed=3)
    first, middle = net.weight(8, 8, 3, 3), net.weight(8, 1, 3, 3)
    first[0] *= smallest
    middle[0] *= largest
    a = net.node("Erf", net.conv("x", first))
    b = net.node("Erf", net.conv(a, middle, group=8))
    return net.build(net.conv(b, net.weight(8, 8, 3, 3), out="y"))


def build_depthwise(spread: float) -> onnx.ModelProto:
    """A depthwise and a pointwise convolution.

    The channels of the first differ by a factor of 10 ** spread.
    """
    net = ModelBuilder(8, 8, 8, seed=5)
    depth = net.weight(8, 1, 3, 3) * np.logspace(0, -spread, 8)[:, None, None, None]
    a = net.node("Relu", net.conv("x", depth, group=8))
    b = net.node("Relu", net.conv(a, net.weight(16, 8, 1, 1)))
    return net.build(net.conv(b, net.weight(4, 16, 3, 3), out="y"))


def build_spectrum() -> onnx.ModelProto:
    """A Fourier transform, its power, its logarithm, and two layers on them."""
    net = ModelBuilder(12, 32, seed=6)
    angle = 2 * np.pi * np.outer(np.arange(32), np.arange(17)) / 32
    real, imaginary = (
        net.node("MatMul", "x", net.constant(part)) for part in (np.cos(angle), -np.sin(angle))
    )
    power = net.node("Add", net.node("Mul", real, real), net.node("Mul", imaginary, imaginary))
    level = net.node("Log", net.node("Clip", power, net.constant(1e-6)))
    hidden = net.node("Relu", net.node("MatMul", level, net.constant(net.weight(48, 17).T)))
    return net.build(net.node("MatMul", hidden, net.constant(net.weight(4, 48).T), out="y"))


def build_expectation() -> onnx.ModelProto:
    """A distribution over 16 distances, its expectation as a convolution, and a decoded position far from zero."""
    net = ModelBuilder(8, 8, 8, seed=9)
    a = net.node("Erf", net.conv("x", net.weight(16, 8, 3, 3)))
    share = net.node("Softmax", net.conv(a, net.weight(16, 16, 1, 1)), axis=1)
    distance = net.conv(share, np.arange(16.0).reshape(1, 16, 1, 1))
    place = net.constant(100.0 * np.arange(64.0).reshape(1, 1, 8, 8))
    return net.build(
        net.node(
            "Exp", net.node("Mul", net.node("Add", distance, place), net.constant(1e-3)), out="y"
        )
    )


def build_recurrent() -> onnx.ModelProto:
    """A GRU of one step that is fed its own state, and a layer on it."""
    net = ModelBuilder(1, 8, seed=8)
    parameters = [
        net.constant(0.4 * net.random.standard_normal(shape)) for shape in ((1, 36, 8), (1, 36, 12))
    ]
    steps = net.node("Transpose", "x", perm=[1, 0, 2])
    net.nodes.append(
        helper.make_node(
            "GRU",
            [steps, *parameters, "", "", "h"],
            ["", "n"],
            name="gru",
            hidden_size=12,
            linear_before_reset=1,
        )
    )
    axis = numpy_helper.from_array(np.array([0]), "axis")
    net.constants.append(axis)
    net.node("MatMul", net.node("Squeeze", "n", "axis"), net.constant(net.weight(4, 12).T), out="y")
    model = net.build("y", "n")
    model.graph.input.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, "N", 12]))
    return model


def build_loud() -> tuple[onnx.ModelProto, Callable[[int], tuple[Any, Sequence[Feed]]]]:
    """Three layers: rare loud samples set the scale of a tensor, and the second layer makes nothing of them."""
    random = np.random.default_rng(4)
    net = ModelBuilder(8, seed=4)
    sizes = (
        random.uniform(0.2, 1.0, (12, 8)),
        -random.uniform(0.05, 0.3, (10, 12)),
        random.normal(size=(5, 10)),
    )
    value = "x"
    for number, (weight, bias) in enumerate(zip(sizes, (0.0, 9.0, 0.0), strict=True)):
        inputs = (value, net.constant(weight.T), net.constant(np.full(len(weight), bias)))
        value = net.node("Gemm", *inputs, out="y" if number == 2 else None)
        value = value if number == 2 else net.node("Relu", value)

    def data(count: int) -> tuple[Any, Sequence[Feed]]:
        parts = []
        for seed in (0, 1):
            x = np.random.default_rng(seed).uniform(0, 1, (128, 8))
            x[::16] *= 400
            parts.append({"x": x.astype(np.float32)})
        return parts[0], [parts[1]]

    return net.build("y"), data


def draw_data(*shape: int, count: int = 64, gain: Callable[[int], np.ndarray] | None = None) -> Any:
    """Return the data function of an entry.

    Normal samples of input x, for calibration and to run.
    """

    def data(_: int) -> tuple[Any, Sequence[Feed]]:
        parts = []
        for seed in (0, 1):
            x = np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)
            parts.append({"x": x if gain is None else (x * gain(count)).astype(np.float32)})
        return parts[0], [parts[1]]

    return data


def draw_calls(count: int) -> tuple[Any, Sequence[Feed]]:
    """Return the calls of the model with a state, one sample each."""
    parts = []
    for seed in (0, 1):
        random = np.random.default_rng(seed)
        parts.append(
            [{"x": random.standard_normal((1, 1, 8)).astype(np.float32)} for _ in range(48)]
        )
    return parts[0], parts[1]


def read_digits(count: int) -> tuple[Any, Sequence[Feed]]:
    """Return 64 calibration samples of the digits, and as many to run."""
    calib, test = (
        np.load(ROOT / "models" / f"digits_{part}.npz")["input"][:64] for part in ("calib", "test")
    )
    return {"input": calib}, [{"input": test}]


def quantize_statically(
    model: onnx.ModelProto | Path, feed: Feed, *, per_channel: bool
) -> onnx.ModelProto:
    """Quantize a model with onnxruntime's static quantizer into the QDQ form."""
    import onnxruntime.quantization as ort_quantization

    class Reader(ort_quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.feeds = iter([dict(feed)])

        def get_next(self) -> Feed | None:
            return next(self.feeds, None)

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "qdq.onnx"
        onnx.save(model if isinstance(model, onnx.ModelProto) else onnx.load(model), source)
        ort_quantization.quantize_static(
            source,
            target,
            Reader(),
            per_channel=per_channel,
            activation_type=ort_quantization.QuantType.QInt8,
            weight_type=ort_quantization.QuantType.QInt8,
            extra_options={"ActivationSymmetric": True},
        )
        return onnx.load(target)


def make_plan() -> Any:
    """Make a plan of the digits model with the version under test."""
    import lingeronnx as lo

    return lo.quantize(DIGITS, read_digits(64)[0], platform="venus", effort="fast").plan


def read_peer_plan(name: str) -> Callable[[], Any]:
    """Read another tool's plan with the version under test."""

    def read() -> Any:
        import lingeronnx as lo

        return lo.read_plan(PEERS / name)

    return read


def rows() -> Iterator[Row]:
    """Yield name, model, data, settings and platforms (all if empty) of each entry."""
    maps = draw_data(8, 8, 8)
    islands = build_islands((2, 8, 16))
    yield "parts_1", islands, maps, {"parts": 1}, CHIPS
    yield "max_parts_2", islands, maps, {"max_parts": 2}, CHIPS
    yield "max_parts_9", build_uneven(), maps, {"max_parts": 9}, CHIPS
    yield "uneven_channels", build_depthwise(3.0), maps, {}, ()
    yield "uneven_behind_erf", build_uneven(), maps, {}, ("generic", "venus")
    yield (
        "little_uneven",
        build_uneven(largest=20.0, smallest=3e-2),
        maps,
        {"max_parts": 9},
        ("arcs",),
    )
    yield (
        "hardly_uneven",
        build_uneven(largest=3.0, smallest=0.4),
        maps,
        {"max_parts": 9},
        ("arcs",),
    )
    yield (
        "small_last_part",
        build_islands((48, 48, 48, 48, 48, 1)),
        maps,
        {"max_parts": 9},
        ("venus",),
    )
    yield "expectation", build_expectation(), maps, {"max_parts": 9}, ("venus",)
    yield "small_part", build_islands((48, 96, 96, 1)), maps, {"max_parts": 9}, ("venus",)
    yield "even_channels", build_depthwise(0.5), maps, {}, ()

    loudness = lambda count: 10 ** np.random.default_rng(5).uniform(-3, 0, (count, 1, 1))  # noqa: E731
    waves = draw_data(12, 32, gain=loudness)
    yield "spectrum", build_spectrum(), waves, {}, ()
    even_waves = draw_data(12, 32)
    yield "spectrum_parts", build_spectrum(), even_waves, {"max_parts": 9}, ("venus",)
    loud, loud_data = build_loud()
    yield "loud_samples", loud, loud_data, {}, ()

    recurrent = build_recurrent()
    for cells in ("auto", "chip", "host"):
        yield (
            f"cells_{cells}",
            recurrent,
            draw_calls,
            {"state": {"n": "h"}, "cells": cells},
            ("generic", "venus"),
        )

    narrow = {"x": 0.3 * maps(64)[0]["x"]}
    for per_channel in (False, True):
        model = quantize_statically(build_depthwise(0.5), narrow, per_channel=per_channel)
        name = f"qdq_{'channel' if per_channel else 'tensor'}"
        yield name, model, maps, {}, ()
        yield f"{name}_requantize", model, maps, {"requantize": True}, ("generic", "arcs")
        yield f"{name}_kept", model, maps, {"requantize": False}, ("generic", "arcs")

    model = quantize_statically(build_depthwise(0.0), maps(64)[0], per_channel=True)
    yield "qdq_same_data", model, maps, {}, CHIPS

    yield "given_plan", DIGITS, read_digits, {"plan": make_plan}, ("venus",)
    peer = draw_data(2, 6, 6, count=16)
    for name in ("aimet_2.0.0.encodings", "esp_ppq_espdl.json"):
        settings = {"plan": read_peer_plan(name)}
        yield (
            f"read_plan_{name.partition('.')[0]}",
            PEERS / "planned_by_peers.onnx",
            peer,
            settings,
            ("generic", "venus"),
        )

    labels = str(ROOT / "models" / "digits_test.npz")
    search = {"eval_data": labels, "limit": 200}
    yield "max_drop", DIGITS, read_digits, {**search, "max_drop": 1.0}, ("arcs",)
    yield (
        "max_drop_auto",
        DIGITS,
        read_digits,
        {**search, "max_drop": 2.0, "weight_bits": "auto"},
        ("venusA",),
    )
    yield "min_sqnr", DIGITS, read_digits, {"min_sqnr": 25.0}, ("venus", "generic")
    yield (
        "max_flash",
        DIGITS,
        read_digits,
        {"max_flash": 20_000, "weight_bits": "auto"},
        ("venusA",),
    )
    yield "weight_bits_4", DIGITS, read_digits, {"weight_bits": 4}, ("venusA", "arcs")
    overrides = {"type:Conv": {"calibrator": "max"}, "type:Gemm": {"out_bits": 32}}
    yield "overrides", DIGITS, read_digits, {"overrides": overrides}, ()
    yield (
        "objective_time",
        DIGITS,
        read_digits,
        {"objective": "time", "clock": 200.0},
        ("venus", "arcs"),
    )
