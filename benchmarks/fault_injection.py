"""Planted faults: one thing is spoiled at a time, and `compare` shall name the layer and the cause first.

Kinds of three sorts: in the plan or the integer graph, in the data, and in the float model, where
the advisor shall find the cause. Nets: a dense net with concats that is made here, and seven of
../shared where that is. A net has the kinds that there is something to spoil for
(`get_applicable_faults`). Layers are drawn uniformly, seeds are fixed. `planted_remedies` plants
them, and prints what is found and what is given back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from lingeronnx.analysis.compare.compare import compare
from lingeronnx.ir import ir
from lingeronnx.quantization import apply_external_plan, plan_model, prepare_model
from lingeronnx.quantization.lower import lower
from lingeronnx.quantization.scales import group_shared_scales
from lingeronnx.runtime.input_moments import store_input_moments
from lingeronnx.runtime.session import Session

SHARED = Path(__file__).resolve().parents[2] / "shared"
SAMPLES = 64  # compared
CALIBRATED = 64
PLAIN = ("--calibrator", "max", "--effort", "fast")

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class InjectedFault:
    """A fault: the two models, the data, and what the first finding shall say.

    expected_sentence : the options of `quantize` that make the same fault, none where the graph was
    changed after it was made. calib : calibration data of the data's form, where that is the fault.
    """

    model: ir.Model
    graph: ir.Model
    data: Feeds
    layers: frozenset[str]
    causes: frozenset[str]
    expected_sentence: tuple[str, ...] = ()
    calib: np.ndarray | None = None


class Net:
    """A float model with its data, and what quantizing makes of it."""

    def __init__(
        self,
        name: str,
        proto: onnx.ModelProto,
        calib: np.ndarray,
        test: np.ndarray,
        mean: Any = (),
        std: Any = (),
    ) -> None:
        self.name, self.proto, self.calib, self.test = name, proto, calib, test
        #: By which pixels of 0 to 1 were normalised, by channel; empty where the data are no pictures, or are raw.
        self.mean, self.std = (np.asarray(v, np.float32).reshape(1, -1, 1, 1) for v in (mean, std))
        self.input = proto.graph.input[0].name
        self.model = ir.from_proto(proto)
        self.prepared = prepare_model(self.model, {self.input: calib}, None, {}, hold_out=False)
        self.planned = plan_model(self.prepared)
        self.lowered = self.lower(self.planned)

    def lower(self, planned: Any) -> ir.Model:
        """Return the integer graph of a plan."""
        graph = lower(
            planned.partition.with_graph(planned.graph), planned.plan, self.prepared.target
        ).graph
        store_input_moments(graph, {self.input: self.calib})
        return graph

    def quantized(self, proto: onnx.ModelProto) -> tuple[ir.Model, ir.Model]:
        """Return another float model, and its integer graph under plain max scales."""
        model = ir.from_proto(proto)
        plain = {
            key.removeprefix("--"): value
            for key, value in zip(PLAIN[::2], PLAIN[1::2], strict=True)
        }
        return model, self.lower(
            plan_model(prepare_model(model, {self.input: self.calib}, None, plain, hold_out=False))
        )

    @property
    def data(self) -> Feeds:
        """The samples to compare on."""
        return {self.input: self.test}

    def fault(
        self, graph: ir.Model, layers: Any, *causes: str, line: Sequence[str] = ()
    ) -> InjectedFault:
        """Return a fault of the integer graph."""
        return InjectedFault(
            self.model, graph, self.data, frozenset(layers), frozenset(causes), tuple(line)
        )

    def other_data(self, form: Callable[[np.ndarray], np.ndarray], cause: str) -> InjectedFault:
        """Return a fault of the data: `form` makes it of pixels of 0 to 1."""
        test, calib = (
            form(x * self.std + self.mean).astype(np.float32) for x in (self.test, self.calib)
        )
        data, at = {self.input: test}, frozenset([self.input])
        return InjectedFault(self.model, self.lowered, data, at, frozenset([cause]), calib=calib)


# ---- nets ----------------------------------------------------------------------------------------------------------


def dense_net(seed: int = 0) -> Net:
    """Return a net of two dense blocks.

    Bottlenecks of 1x1 and 3x3 with Relu, concats, a pool, a linear layer.
    """
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    held: list[onnx.TensorProto] = []

    def layer(op_type: str, *inputs: str, out: str, **attributes: Any) -> str:
        nodes.append(
            helper.make_node(op_type, inputs, [out], name=f"/{out}/{op_type}", **attributes)
        )
        return out

    def conv(x: str, shape: tuple[int, ...], out: str, **attributes: Any) -> str:
        weight = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        for suffix, array in (("w", weight), ("b", 0.1 * rng.standard_normal(shape[0]))):
            held.append(numpy_helper.from_array(array.astype(np.float32), f"{out}.{suffix}"))
        made = layer("Conv", x, f"{out}.w", f"{out}.b", out=out, **attributes)
        return layer("Relu", made, out=f"{out}_relu")

    x, width = conv("image", (16, 3, 3, 3), "stem", pads=[1] * 4), 16
    for block in range(2):
        for index in range(3):
            name = f"block{block}_{index}"
            small = conv(x, (16, width, 1, 1), f"{name}_a")
            grown = conv(small, (12, 16, 3, 3), f"{name}_b", pads=[1] * 4)
            x, width = layer("Concat", x, grown, out=f"{name}_cat", axis=1), width + 12
        if block == 0:
            x = layer("MaxPool", x, out="pool", kernel_shape=[2, 2], strides=[2, 2])
    x = layer("Flatten", layer("GlobalAveragePool", x, out="mean"), out="flat")
    for suffix, array in (
        ("w", rng.standard_normal((10, width)) / np.sqrt(width)),
        ("b", np.zeros(10)),
    ):
        held.append(numpy_helper.from_array(array.astype(np.float32), f"fc.{suffix}"))
    layer("Gemm", x, "fc.w", "fc.b", out="scores", transB=1)
    mean, std = np.array([0.55, 0.45, 0.3]), np.array([0.25, 0.22, 0.18])
    value = helper.make_tensor_value_info("image", 1, ["N", 3, 16, 16])
    graph = helper.make_graph(
        nodes, "dense", [value], [helper.make_tensor_value_info("scores", 1, ["N", 10])], held
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    proto = onnx.shape_inference.infer_shapes(proto)

    def pictures(count: int) -> np.ndarray:
        """Smooth random pictures whose channels go together, of 0 to 1, normalised."""
        small = 0.8 * rng.standard_normal((count, 1, 4, 4)) + 0.6 * rng.standard_normal(
            (count, 3, 4, 4)
        )
        pixels = small.repeat(4, 2).repeat(4, 3) + 0.3 * rng.standard_normal((count, 3, 16, 16))
        pixels = np.clip(mean.reshape(1, 3, 1, 1) + std.reshape(1, 3, 1, 1) * pixels, 0, 1)
        return ((pixels - 0.5) / 0.25).astype(np.float32)

    return Net("dense", proto, pictures(CALIBRATED), pictures(SAMPLES), [0.5] * 3, [0.25] * 3)


#: Net -> its file, the loaders' name of its data, and the mean and deviation of its pictures, where they have some.
_SHARED: dict[str, tuple[str, str, Any, Any]] = {
    "resnet": ("cifar_resnet_bn", "resnet_bn", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "mobilenetv2": ("cifar_mobilenetv2", "mobilenetv2", [128 / 255] * 3, [128 / 255] * 3),
    "resnet8": ("mlperf_tiny_resnet8", "resnet8", (), ()),
    "vww": ("mlperf_tiny_vww", "vww", (), ()),
    "dscnn": ("fsdd_dscnn", "dscnn", (), ()),
    "kws": ("mlperf_tiny_kws", "kws", (), ()),
    "ad": ("mlperf_tiny_ad", "ad", (), ()),
}


def shared_net(name: str) -> Net:
    """Return a net of ../shared with samples of its own loaders."""
    sys.path.insert(0, str(SHARED / "data"))
    import loaders

    sys.path.pop(0)
    file, data, mean, std = _SHARED[name]
    proto = onnx.load(SHARED / "models" / f"{file}.onnx")
    calib, test = (
        getattr(loaders, f"{data}_{part}")()[0][0][proto.graph.input[0].name]
        for part in ("calib", "test")
    )
    return Net(name, proto, calib[:CALIBRATED], test[:SAMPLES], mean, std)


#: What makes each net.
NETS: dict[str, Callable[[], Net]] = {"dense": dense_net}
if SHARED.is_dir():
    NETS |= {name: partial(shared_net, name) for name in _SHARED}


# ---- in the plan or the integer graph ------------------------------------------------------------------------------


def _layers(graph: ir.Model, *kinds: str) -> list[ir.Node]:
    """Return the layers of these kinds.

    What averages by weights of its own has no bias, and is none.
    """
    return [
        node
        for node in graph.graph
        if node.op_type in kinds and (node.op_type != "LinearInt" or len(node.inputs) > 2)
    ]


def _rescaled(net: Net, rng: np.random.Generator, factor: float, concat: bool) -> InjectedFault:
    """Multiply the scale of tensors that share one by `factor`.

    Drawn among those that a layer writes, or a concat.
    """
    classes = group_shared_scales(net.planned.partition, net.prepared.target)
    makers = {str(v.name): node.op_type for node in net.planned.graph.graph for v in node.outputs}
    kinds = [
        {makers.get(name, "Input") for name in shared_scale.tensors} for shared_scale in classes
    ]
    fit = []
    for shared_scale, kind in zip(classes, kinds, strict=True):
        if (
            "Input" not in kind
            and ("Concat" in kind) == concat
            and (concat or kind & {"Conv", "Linear"})
        ):
            fit.append(shared_scale)
    cause = "scale too small" if factor < 1 else "scale too large"
    for index in rng.permutation(len(fit)):
        names = [name for name in fit[index].tensors if name in net.planned.plan.tensors]
        changed = {n: net.planned.plan.tensors[n].mapped(lambda s: s * factor) for n in names}
        plan = net.planned.plan.with_tensors({**net.planned.plan.tensors, **changed})
        planned = apply_external_plan(net.prepared, plan)
        if all(
            planned.plan.tensors[n] == q for n, q in changed.items()
        ):  # nothing on the chip forbids it
            wanted = [n for n in names if makers[n] == "Concat"] if concat else names
            line = [
                word
                for n, q in changed.items()
                for word in ("--override", f"{n}=scale:{q.scale!r}")
            ]
            return net.fault(net.lower(planned), wanted, cause, line=line)
    raise ValueError(f"no scale of {net.name} can be multiplied by {factor}")


def inject_small_scale(net: Net, rng: np.random.Generator) -> InjectedFault:
    """An activation's scale 8 times too small."""
    return _rescaled(net, rng, 1 / 8, concat=False)


def inject_large_scale(net: Net, rng: np.random.Generator) -> InjectedFault:
    """An activation's scale 8 times too large."""
    return _rescaled(net, rng, 8, concat=False)


def inject_concat_scale(net: Net, rng: np.random.Generator) -> InjectedFault:
    """A wrong fixed scale at a concat."""
    return _rescaled(net, rng, float(rng.choice([1 / 8, 8])), concat=True)


def _user_name(net: Net, node: ir.Node) -> str:
    name = ir.output_name(node)
    return Session(net.lowered).floats.get(name, name)


def inject_saturated_bias(net: Net, rng: np.random.Generator) -> InjectedFault:
    """One bias at the end of 32 bits."""
    graph = net.lowered.clone()
    node = rng.choice(np.array(_layers(graph, "Conv2dInt", "LinearInt"), dtype=object))
    bias = np.array(ir.const_value(node.inputs[2]))
    ends = np.iinfo(bias.dtype)
    bias.reshape(-1)[rng.integers(bias.size)] = rng.choice([ends.min, ends.max])
    ir.set_initializer_value(node.inputs[2], bias)
    return net.fault(graph, [_user_name(net, node)], "bias saturates")


def inject_swapped_channels(net: Net, rng: np.random.Generator) -> InjectedFault:
    """Two output channels of an integer weight swapped."""
    graph = net.lowered.clone()
    node = rng.choice(np.array(_layers(graph, "Conv2dInt", "LinearInt"), dtype=object))
    weight = np.array(ir.const_value(node.inputs[1]))
    one, other = rng.choice(len(weight), 2, replace=False)
    weight[[one, other]] = weight[[other, one]]
    ir.set_initializer_value(node.inputs[1], weight)
    return net.fault(graph, [_user_name(net, node)], "channels swapped")


def inject_missing_relu(net: Net, rng: np.random.Generator) -> InjectedFault:
    """A Relu left out: what read it reads its input."""
    graph = net.lowered.clone()
    node = rng.choice(np.array(_layers(graph, "Relu"), dtype=object))
    names = {ir.output_name(node), ir.input_name(node)}
    for use in list(node.outputs[0].uses()):
        use.node.replace_input_with(use.idx, node.inputs[0])
    graph.graph.remove(node)
    return net.fault(graph, names, "missing Relu")


def _movable(node: ir.Node) -> list[int]:
    """Return the axes along which a convolution has pads."""
    pads = ir.get_attr(node, "pads", [0] * 4)
    return [axis for axis in range(2) if pads[axis] or pads[axis + 2]]


def inject_wrong_pads(net: Net, rng: np.random.Generator) -> InjectedFault:
    """The pads of a convolution moved by one along an axis or both.

    The same size, another place.
    """
    graph = net.lowered.clone()
    padded = [node for node in _layers(graph, "Conv2dInt") if _movable(node)]
    node = rng.choice(np.array(padded, dtype=object))
    pads = list(ir.get_attr(node, "pads"))
    axes = _movable(node)
    for axis in rng.choice(axes, rng.integers(1, 1 + len(axes)), replace=False):
        step = 1 if pads[axis] > 0 else -1
        pads[axis], pads[axis + 2] = pads[axis] - step, pads[axis + 2] + step
    ir.set_attr(node, "pads", [int(v) for v in pads])
    return net.fault(graph, [_user_name(net, node)], "wrong pads")


# ---- in the data ---------------------------------------------------------------------------------------------------


def inject_wrong_normalization(net: Net, rng: np.random.Generator) -> InjectedFault:
    """Pixels of 0 to 255, of 0 to 1, or without the division by the standard deviation."""
    which = rng.integers(3)
    return net.other_data(lambda x: (255 * x, x, x - net.mean)[which], "input not normalised")


def inject_swapped_input_channels(net: Net, rng: np.random.Generator) -> InjectedFault:
    """Channels of the pictures in another order, normalised as if they were right."""
    orders = [
        (2, 1, 0),
        (0, 2, 1),
        (1, 2, 0),
        (2, 0, 1),
    ]  # red and green alone are too much alike in photographs
    order = list(orders[rng.integers(len(orders))])
    return net.other_data(lambda x: (x[:, order] - net.mean) / net.std, "input channels swapped")


# ---- in the float model --------------------------------------------------------------------------------------------


def _inner(proto: onnx.ModelProto) -> list[tuple[onnx.NodeProto, onnx.NodeProto, onnx.NodeProto]]:
    """Return (layer with a scale per channel, its Relu, the one Conv that reads it)."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = []
    for node in proto.graph.node:
        relus = readers.get(node.output[0], [])
        if node.op_type not in ("BatchNormalization", "Conv") or [r.op_type for r in relus] != [
            "Relu"
        ]:
            continue
        convs = readers.get(relus[0].output[0], [])
        if [c.op_type for c in convs] == ["Conv"]:
            found.append((node, relus[0], convs[0]))
    return found


class _Weights:
    """The initializers of a model, to be changed."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._held = {entry.name: entry for entry in proto.graph.initializer}

    def change(self, name: str, change: Callable[[np.ndarray], None]) -> None:
        """Change an array in place."""
        array = np.array(numpy_helper.to_array(self._held[name]))
        change(array)
        self._held[name].CopyFrom(numpy_helper.from_array(array, name))

    def affine(self, node: onnx.NodeProto, channel: int, gain: float, shift: float) -> None:
        """Let a channel that the node writes be gain * (what it was) + shift."""
        scale, bias = node.input[1], node.input[2]

        def multiply(array: np.ndarray) -> None:
            array[channel] *= gain

        def move(array: np.ndarray) -> None:
            array[channel] = gain * array[channel] + shift

        self.change(scale, multiply)
        self.change(bias, move)


def _drawn(net: Net, rng: np.random.Generator) -> tuple[onnx.ModelProto, Any, int]:
    proto = onnx.ModelProto()
    proto.CopyFrom(net.proto)
    inner = _inner(proto)
    chosen = inner[
        rng.integers(len(inner))
    ]  # a channel that speaks: to spoil one that is silent spoils nothing
    seen = np.ptp(
        Session(net.model).run([chosen[1].output[0]], {net.input: net.calib})[0], axis=(0, 2, 3)
    )
    return proto, chosen, int(rng.choice(np.flatnonzero(seen >= np.median(seen[seen > 0]) / 2)))


def _cause(net: Net, proto: onnx.ModelProto, nodes: Any, *causes: str) -> InjectedFault:
    model, graph = net.quantized(proto)
    names = [nodes[0].output[0], nodes[1].output[0]]
    return InjectedFault(model, graph, net.data, frozenset(names), frozenset(causes), PLAIN)


def inject_outlier_channel(net: Net, rng: np.random.Generator) -> InjectedFault:
    """A channel 40 times larger, divided out in the layer behind.

    The same function, no bits for the others.
    """
    proto, nodes, channel = _drawn(net, rng)
    weights = _Weights(proto)
    weights.affine(nodes[0], channel, 40.0, 0.0)

    def divide(array: np.ndarray) -> None:
        (array if array.shape[1] == 1 else array.swapaxes(0, 1))[channel] /= (
            40.0  # a depthwise layer has one input
        )

    weights.change(nodes[2].input[1], divide)
    return _cause(net, proto, nodes, "outlier channel")


def inject_dead_channel(net: Net, rng: np.random.Generator) -> InjectedFault:
    """A channel whose weights are all zero."""
    proto, nodes, channel = _drawn(net, rng)
    _Weights(proto).affine(nodes[0], channel, 0.0, 0.0)
    return _cause(net, proto, nodes, "dead channel")


def inject_outlier_activation(net: Net, rng: np.random.Generator) -> InjectedFault:
    """A channel that is silent but for three values in a thousand, up to 30 times what the others reach."""
    proto, nodes, channel = _drawn(net, rng)
    name = nodes[0].output[0]
    whole, cut = Session(net.model).run([name, nodes[1].output[0]], {net.input: net.calib})
    values, reach = whole[:, channel], float(cut.max())
    rare = float(np.quantile(values, 0.997))
    gain = 30 * reach / max(float(values.max()) - rare, 1e-6)
    _Weights(proto).affine(nodes[0], channel, gain, -gain * rare)
    return _cause(net, proto, nodes, "outlier activation")


FAULT_INJECTORS: tuple[Callable[[Net, np.random.Generator], InjectedFault], ...] = (
    inject_small_scale,
    inject_large_scale,
    inject_concat_scale,
    inject_saturated_bias,
    inject_swapped_channels,
    inject_missing_relu,
    inject_wrong_pads,
    inject_wrong_normalization,
    inject_swapped_input_channels,
    inject_outlier_channel,
    inject_dead_channel,
    inject_outlier_activation,
)


def get_applicable_faults(net: Net) -> list[int]:
    """Return which of `FAULT_INJECTORS` a net has something to spoil for."""
    has = {node.op_type for node in net.lowered.graph}
    pads = any(map(_movable, _layers(net.lowered, "Conv2dInt")))
    there = {
        inject_concat_scale: any(node.op_type == "Concat" for node in net.planned.graph.graph),
        inject_missing_relu: "Relu" in has,
        inject_wrong_pads: pads,
        inject_wrong_normalization: net.mean.size > 0,
        inject_swapped_input_channels: net.mean.size > 0,
        **dict.fromkeys(
            (inject_outlier_channel, inject_dead_channel, inject_outlier_activation),
            bool(_inner(net.proto)),
        ),
    }
    return [index for index, kind in enumerate(FAULT_INJECTORS) if there.get(kind, True)]


# ---- what the first finding says -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How the first finding did, and the options that the comparison advises."""

    layer: bool
    cause: bool
    first: str
    wanted: str
    options: str


def evaluate_first_finding(fault: InjectedFault, own: Collection[tuple[str, str]] = ()) -> Outcome:
    """Compare, and look at the first finding.

    own : (kind, layer) of what is found without the fault, too: that is skipped, but for the
    spoiled layer.
    """
    comparison = compare(fault.model, fault.graph, fault.data)
    new = (
        f for f in comparison.findings if f.layer in fault.layers or (f.kind, f.layer) not in own
    )
    first = next(new, None)
    wanted = f"{'/'.join(sorted(fault.causes))} at {sorted(fault.layers)}"
    said = "nothing" if first is None else f"{first.kind} at {first.layer}: {first.measured}"
    right = (
        first is not None and first.layer in fault.layers,
        first is not None and first.kind in fault.causes,
    )
    return Outcome(*right, said, wanted, comparison.options)
