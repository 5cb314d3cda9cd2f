"""Integer graphs written by hand, so that one rule of the packer or of an executor is met and no
other.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper


class IntNet:
    """An integer graph for `platform` under construction; every method returns the name of the
    node's output.

    All scales are 16 where nothing else is said, weights are ones. The first input is x, float32 of
    `shape`.
    """

    def __init__(self, platform, shape, scale=16.0):
        self.platform, self.nodes, self.constants, self.inputs = platform, [], [], []
        self.shapes, self.scales = {}, {}
        self.input("x", shape, scale)

    def input(self, name, shape, scale=16.0):
        """Add a graph input and its Quant."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        return self.node("Quant", [name], f"{name}q", shape, scale, scale_x=scale, data_bits=8)

    def const(self, shape, dtype=np.int8):
        """Add a constant of ones, or the array `shape`."""
        array = shape if isinstance(shape, np.ndarray) else np.ones(shape, dtype)
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def node(self, op, inputs, output, shape, scale=None, **attributes):
        """Add any node."""
        modes = (
            {"platform": self.platform, "quant_mode": "floor_add"}
            if self.platform != "venus"
            else {}
        )
        modes["platform_quant"] = "luna_quant"
        self.nodes.append(helper.make_node(op, inputs, [output], output, **modes, **attributes))
        self.shapes[output], self.scales[output] = tuple(shape), scale
        return output

    def linear(self, x, outputs, name, scale=16.0, bias=True, weight_bits=8):
        """Add a LinearInt over the last axis."""
        shape = self.shapes[x]
        constants = [self.const((outputs, shape[-1]))] + [self.const(outputs, np.int32)] * bias
        bits = {"data_bits": 8, "parameter_bits": weight_bits, "o_bits": 8}
        scales = {"scale_x": self.scales[x], "scale_w": 16.0, "scale_o": scale}
        return self.node(
            "LinearInt", [x, *constants], name, (*shape[:-1], outputs), scale, **bits, **scales
        )

    def conv(self, x, outputs, kernel, name, bias=True, weight_bits=8, group=1):
        """Add a Conv2dInt that keeps the size of the map."""
        n, c, h, w = self.shapes[x]
        side = {
            "kernel_shape": [kernel] * 2,
            "pads": [kernel // 2] * 4,
            "strides": [1, 1],
            "dilations": [1, 1],
        }
        bits = {"data_bits": 8, "parameter_bits": weight_bits, "o_bits": 8, "group": group}
        scales = {"scale_x": self.scales[x], "scale_w": 16.0, "scale_o": 16.0}
        constants = [self.const((outputs, c // group, kernel, kernel))] + [
            self.const(outputs, np.int32)
        ] * bias
        return self.node(
            "Conv2dInt", [x, *constants], name, (n, outputs, h, w), 16.0, **side, **bits, **scales
        )

    def relu(self, x, name):
        """Add a Relu."""
        return self.node("Relu", [x], name, self.shapes[x], self.scales[x])

    def transpose(self, x, perm, name):
        """Add a Transpose."""
        shape = [self.shapes[x][axis] for axis in perm]
        return self.node("Transpose", [x], name, shape, self.scales[x], perm=perm)

    def add(self, x, y, name, scale=16.0):
        """Add an iqAdd."""
        scales = {"scale_x": self.scales[x], "scale_y": self.scales[y], "scale_o": scale}
        return self.node("iqAdd", [x, y], name, self.shapes[x], scale, **scales)

    def mul(self, x, y, name):
        """Add an iqMul."""
        scales = {"scale_x": self.scales[x], "scale_y": self.scales[y], "scale_o": 16.0}
        return self.node("iqMul", [x, y], name, self.shapes[x], 16.0, **scales)

    def cat(self, parts, axis, name, scale=16.0):
        """Add an iqCat."""
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)
        scales = {f"scale_x_{i}": self.scales[part] for i, part in enumerate(parts)}
        return self.node("iqCat", parts, name, shape, scale, dim=axis, scale_o=scale, **scales)

    def softmax(self, x, name):
        """Add a SoftmaxInt over the last axis."""
        scales = {"scale_x": self.scales[x], "scale_o": 128.0}
        return self.node("SoftmaxInt", [x], name, self.shapes[x], 128.0, axis=-1, dim=-1, **scales)

    def layer_norm(self, x, name, width=None):
        """Add a LayerNormInt over the last axis."""
        width = self.shapes[x][-1] if width is None else width
        constants = [
            self.const(width, np.int16 if self.platform == "venus" else np.int8),
            self.const(width, np.int32),
        ]
        scales = {"scale_x": self.scales[x], "scale_w": 16.0, "scale_o": 16.0}
        return self.node("LayerNormInt", [x, *constants], name, self.shapes[x], 16.0, **scales)

    def batch_norm(self, x, name):
        """Add a BatchNorm2dInt."""
        constants = [self.const(self.shapes[x][1]), self.const(self.shapes[x][1], np.int32)]
        scales = {"scale_x": self.scales[x], "scale_w": 16.0, "scale_o": 16.0}
        return self.node("BatchNorm2dInt", [x, *constants], name, self.shapes[x], 16.0, **scales)

    def lstm(self, x, hidden, name):
        """Add an LSTMInt with as many steps as features."""
        steps = self.shapes[x][1]
        constants = [self.const((4 * hidden, self.shapes[x][2])), self.const((4 * hidden, hidden))]
        constants += [self.const(4 * hidden, np.int32), self.const(4 * hidden, np.int32)]
        sizes = {
            "batch_first": int(self.platform == "venus"),
            "hidden_size": hidden,
            "input_size": self.shapes[x][2],
        }
        scales = {
            "scale_x": self.scales[x],
            "scale_iw": 16.0,
            "scale_hw": 16.0,
            "scale_o": 128.0,
            "scale_h": 128.0,
        }
        bits = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8, "go_forward": 1}
        return self.node(
            "LSTMInt", [x, *constants], name, (1, steps, hidden), 128.0, **sizes, **scales, **bits
        )

    def model(self, *outputs):
        """Return the ModelProto; each output is dequantized."""
        results = []
        for name in outputs:
            self.node(
                "Dequant", [name], f"{name}_float", self.shapes[name], scale_o=self.scales[name]
            )
            results.append(helper.make_tensor_value_info(f"{name}_float", TensorProto.FLOAT, None))
        graph = helper.make_graph(self.nodes, "net", self.inputs, results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
