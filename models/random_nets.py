"""Nets with random weights, for measuring speed: which numbers there are does not change it.

They need onnx alone.
`resnet` is the residual net of CIFAR-10 (He et al. 2015) with batch normalisation folded: widths
(16, 32, 64) with 3 blocks each make ResNet-20, (64, 128, 256, 512) with 2 ResNet-18. `mobilenet_v2`
has the blocks of `mobilenet_v2.py`. Both take `input` float32 [N, 3, 32, 32] and give `output`
float32 [N, 10]. Weights follow He's initialisation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["BLOCKS", "mobilenet_v2", "resnet"]

#: Of each block of a MobileNetV2: channels, stride of the depthwise convolution, channels inside for each one outside.
BLOCKS = (
    (16, 1, 1),
    (24, 2, 3),
    (24, 1, 3),
    (48, 2, 4),
    (48, 1, 4),
    (48, 1, 4),
    (80, 1, 4),
    (80, 1, 4),
)

_CLASSES, _COLOURS, _SIZE = 10, 3, 32


class _Net:
    """Nodes and weights in the making.

    Every method adds nodes and returns the name of what they compute.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def _node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        """Hold an array."""
        name = f"c{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def random(self, *shape: int, fan: int) -> str:
        """Hold random weights whose sums over `fan` products keep the size of what comes in."""
        return self.constant(self._rng.standard_normal(shape) * np.sqrt(2 / fan))

    def conv(
        self, x: str, inputs: int, outputs: int, size: int, stride: int = 1, group: int = 1
    ) -> str:
        """Convolve, with padding that keeps the size."""
        fan = inputs // group * size**2
        weight, bias = (
            self.random(outputs, inputs // group, size, size, fan=fan),
            self.random(outputs, fan=100),
        )
        pads = [size // 2] * 4
        return self._node("Conv", x, weight, bias, strides=[stride] * 2, pads=pads, group=group)

    def relu(self, x: str) -> str:
        """Clamp at 0."""
        return self._node("Relu", x)

    def relu6(self, x: str) -> str:
        """Clamp at 0 and 6."""
        return self._node("Clip", x, self.constant(np.array(0)), self.constant(np.array(6)))

    def add(self, x: str, y: str) -> str:
        """Add two tensors."""
        return self._node("Add", x, y)

    def finish(self, x: str, channels: int, name: str) -> onnx.ModelProto:
        """Add the mean over the picture and the linear layer, and return the model."""
        flat = self._node("Flatten", self._node("GlobalAveragePool", x))
        weight, bias = self.random(_CLASSES, channels, fan=channels), self.random(_CLASSES, fan=100)
        self._nodes.append(
            helper.make_node("Gemm", [flat, weight, bias], ["output"], "gemm", transB=1)
        )
        ends = (("input", (_COLOURS, _SIZE, _SIZE)), ("output", (_CLASSES,)))
        inputs, outputs = (
            [helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, ["N", *shape])]
            for end, shape in ends
        )
        graph = helper.make_graph(self._nodes, name, inputs, outputs, self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def resnet(widths: Sequence[int], blocks: int, seed: int = 0) -> onnx.ModelProto:
    """Return a residual net with `blocks` blocks of each width.

    Each width but the first halves the picture.
    """
    net, width = _Net(seed), widths[0]
    x = net.relu(net.conv("input", _COLOURS, width, 3))
    for stage, outputs in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.relu(net.conv(x, width, outputs, 3, stride))
            y = net.conv(y, outputs, outputs, 3)
            short = x if (width, stride) == (outputs, 1) else net.conv(x, width, outputs, 1, stride)
            x, width = net.relu(net.add(y, short)), outputs
    return net.finish(x, width, "resnet")


def mobilenet_v2(seed: int = 0) -> onnx.ModelProto:
    """Return a MobileNetV2: blocks widen, filter each channel by itself, and narrow."""
    net, width = _Net(seed), BLOCKS[0][0]
    x = net.relu6(net.conv("input", _COLOURS, width, 3))
    for outputs, stride, factor in BLOCKS:
        wide = width * factor
        y = net.relu6(net.conv(x, width, wide, 1)) if factor > 1 else x
        y = net.conv(net.relu6(net.conv(y, wide, wide, 3, stride, group=wide)), wide, outputs, 1)
        x, width = net.add(x, y) if (width, stride) == (outputs, 1) else y, outputs
    return net.finish(net.relu6(net.conv(x, width, 4 * width, 1)), 4 * width, "mobilenet_v2")
