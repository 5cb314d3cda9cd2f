"""What the venus packer and executor (3.0.4) take, written down once more, without the library's own tables.

`problems` reads an integer graph as a protobuf and returns everything that would be rejected or come out wrong. It
shares no code with lingeronnx: a mistake there must not be repeated here.
"""

import math

import numpy as np
from onnx import TensorProto, helper, numpy_helper

WEIGHT = {"data_bits", "parameter_bits", "o_bits", "scale_x", "scale_w", "scale_o", "platform_quant"}
CONV = WEIGHT | {"dilations", "group", "kernel_shape", "pads", "strides"}
REQUIRED = {
    "Quant": {"data_bits", "scale_x", "platform_quant"},
    "Dequant": {"scale_o"},
    "Requant": {"data_bits", "o_bits", "scale_x", "scale_o", "platform_quant"},
    "Conv2dInt": CONV,
    "Conv1dInt": CONV,
    "LinearInt": WEIGHT,
    "BatchNorm2dInt": {"scale_x", "scale_w", "scale_o", "platform_quant"},
    "AvgPool2dInt": {"kernel_shape", "strides", "pads", "data_bits", "scale_x", "scale_o", "platform_quant"},
    "MaxPool": {"kernel_shape", "strides", "pads"},
    "iqAdd": {"scale_x", "scale_y", "scale_o", "platform_quant", "mode"},
    "iqMul": {"scale_x", "scale_y", "scale_o", "platform_quant"},
    "iqCat": {"scale_o", "dim", "platform_quant"},
    "iqSigmoid": {"scale_x", "scale_o", "platform_quant"},
    "iqTanh": {"scale_x", "scale_o", "platform_quant"},
    "LayerNormInt": {"parameter_bits", "scale_x", "scale_w", "scale_o", "platform_quant"},
    "Relu": set(),
    "Reshape": set(),
    "Flatten": {"axis"},
    "Transpose": {"perm"},
    "Slice": set(),
    "Squeeze": {"axes"},
    "Unsqueeze": {"axes"},
}
OWN = {"Quant", "Dequant", "Requant", "Conv2dInt", "Conv1dInt", "LinearInt", "BatchNorm2dInt", "AvgPool2dInt", "iqAdd",
       "iqMul", "iqCat", "iqSigmoid", "iqTanh", "LayerNormInt"}  # fmt: skip
INTEGERS = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32)


def problems(model):
    """Return what is wrong with the integer graph `model` (a ModelProto) for venus, as a list of sentences."""
    return _Check(model).run()


def exponent(scale):
    """Return log2 of a power of two, else None."""
    mantissa, power = math.frexp(scale)
    return power - 1 if mantissa == 0.5 else None


class _Check:
    def __init__(self, model):
        graph = model.graph
        self.model, self.graph, self.found = model, graph, []
        self.consts = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        infos = [*graph.input, *graph.output, *graph.value_info]
        self.types = {v.name: v.type.tensor_type.elem_type for v in infos}
        self.shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in infos}
        self.scales = {}

    def bad(self, node, text):
        self.found.append(f"{node.op_type} {node.name}: {text}")

    def run(self):
        nodes = list(self.graph.node)
        if not self.consts:
            self.found.append("the graph holds no constant: it cannot be packed")
        for value in [*self.graph.input, *self.graph.output]:
            if self.shapes[value.name][:1] != [1]:
                self.found.append(f"{value.name}: batch {self.shapes[value.name][:1]} is not 1")
        writers = {name: node for node in nodes for name in node.output}
        for node in nodes:
            if self.integer(node):
                self.check(node)
            elif self.between(node, writers, nodes):
                self.bad(node, "a float operator between integer ones")
        return self.found

    def integer(self, node):
        return node.op_type in OWN or any(self.types.get(name) in INTEGERS for name in node.input)

    def between(self, node, writers, nodes):
        def before(name):
            up = writers.get(name)
            return up is not None and (self.integer(up) or any(map(before, up.input)))

        def after(name):
            return any(self.integer(n) or any(map(after, n.output)) for n in nodes if name in n.input)

        return any(map(before, node.input)) and any(map(after, node.output))

    # ---- one node ----------------------------------------------------------------------------------------------------

    def check(self, node):
        if node.op_type not in REQUIRED:
            self.bad(node, "venus does not run it")
            return
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        for name in sorted(REQUIRED[node.op_type] - attrs.keys()):
            self.bad(node, f"attribute {name} is missing")
            return
        if node.op_type in OWN and node.op_type != "Dequant" and attrs["platform_quant"] != b"luna_quant":
            self.bad(node, f"platform_quant is {attrs['platform_quant']}")
        for name in node.output:
            if self.shapes.get(name, [0])[:1] != [1]:
                self.bad(node, f"batch of {name} is {self.shapes.get(name)}")
        for key, value in attrs.items():
            if key.startswith("scale_") and exponent(value) is None:
                self.bad(node, f"{key} = {value} is no power of two")
                return
        self.reads(node, attrs)
        getattr(self, f"_{node.op_type}", lambda *_: None)(node, attrs)
        scale = attrs.get("scale_x" if node.op_type == "Quant" else "scale_o", self.scales.get(node.input[0]))
        if node.op_type != "Dequant" and scale is not None:
            self.scales.update(dict.fromkeys(node.output, scale))

    def reads(self, node, attrs):
        """Every scale at which a tensor is read is the one it was written at."""
        at = {"scale_x": 0, "scale_y": 1} | {f"scale_x_{i}": i for i in range(len(node.input))}
        if node.op_type == "Dequant":
            at = {"scale_o": 0}
        if node.op_type == "iqCat":
            for i in range(len(node.input)):
                if f"scale_x_{i}" not in attrs:
                    self.bad(node, f"attribute scale_x_{i} is missing")
        for key, index in at.items():
            if key in attrs and node.op_type != "Quant":
                own = self.scales.get(node.input[index])
                if own != attrs[key]:
                    self.bad(node, f"{key} = {attrs[key]} reads '{node.input[index]}' that was written at {own}")

    def layer(self, node, attrs):
        weight = self.consts.get(node.input[1])
        if weight is None or weight.dtype != np.int8:
            self.bad(node, "the weight is no int8 constant")
            return None
        if len(node.input) > 2:
            bias = self.consts.get(node.input[2])
            if bias is None or bias.dtype != np.int32 or bias.shape != (len(weight),):
                self.bad(node, "the bias is no int32 constant of one value per output")
        shift = exponent(attrs["scale_x"]) + exponent(attrs["scale_w"]) - exponent(attrs["scale_o"])
        if shift < 0:
            self.bad(node, f"the shift {shift} to the output is to the left")
        for key in ("data_bits", "parameter_bits", "o_bits"):
            if attrs.get(key, 8) != 8:
                self.bad(node, f"{key} is {attrs[key]}")
        return weight

    def _Conv2dInt(self, node, attrs):
        weight = self.layer(node, attrs)
        if weight is None:
            return
        rank = weight.ndim - 2
        kernel, strides, pads, group = attrs["kernel_shape"], attrs["strides"], attrs["pads"], attrs["group"]
        if list(weight.shape[2:]) != list(kernel) or len(strides) != rank or len(pads) != 2 * rank:
            self.bad(node, "the attributes do not fit the weight")
            return
        channels = weight.shape[1] * group
        for axis in range(rank):
            k, s = kernel[axis], strides[axis]
            if not 1 <= k <= 5:
                self.bad(node, f"kernel {k}")
            if s not in (1, 2, 4) or s > k:
                self.bad(node, f"stride {s} with kernel {k}")
            if not all(0 <= p <= min(k, 4) for p in (pads[axis], pads[axis + rank])):
                self.bad(node, f"pads {list(pads)} with kernel {k}")
        if any(d != 1 for d in attrs["dilations"]):
            self.bad(node, "dilation")
        if group == channels and group > 1 and weight.shape[0] != channels:
            self.bad(node, "depthwise with a multiplier")
        if rank == 2:
            self.slab(node, channels, kernel, strides, group > 1 and group == channels)

    _Conv1dInt = _Conv2dInt

    def slab(self, node, channels, kernel, strides, deep):
        shape, result = self.shapes[node.input[0]], self.shapes[node.output[0]]
        if shape[1] != channels or not all(shape) or not all(result):
            self.bad(node, f"shapes {shape} -> {result}")
            return

        def rows(along, stride, side):
            return 2 * math.ceil(channels / 2) * math.ceil(along / (8 * stride)) * 8 * stride * side

        need = min(rows(shape[3], strides[1], kernel[0]), rows(shape[2], strides[0], kernel[1]))
        if need > (32768 if deep else 65536):
            self.bad(node, f"the slab of {need} bytes is too large")
        if deep and math.prod(shape) + math.prod(result) >= 512 * 1024:
            self.bad(node, "the maps of a depthwise convolution are too large")

    def _LinearInt(self, node, attrs):
        weight = self.layer(node, attrs)
        if weight is not None and weight.shape != (self.shapes[node.output[0]][-1], self.shapes[node.input[0]][-1]):
            self.bad(node, f"weight {weight.shape} does not fit")

    def _BatchNorm2dInt(self, node, attrs):
        weight = self.layer(node, attrs)
        if weight is not None and (weight.shape != (self.shapes[node.input[0]][1],) or len(node.input) != 3):
            self.bad(node, f"weight {weight.shape} or inputs {len(node.input)}")

    def _AvgPool2dInt(self, node, attrs):
        if attrs["scale_o"] != attrs["scale_x"]:
            self.bad(node, "it ignores a change of scale")
        if math.prod(attrs["kernel_shape"]) > 127:
            self.bad(node, "a window of more than 127 elements")
        if attrs.get("ceil_mode", 0):
            self.bad(node, "ceil_mode")

    def _MaxPool(self, node, attrs):
        if max(attrs["kernel_shape"]) > 5 or attrs.get("ceil_mode", 0):
            self.bad(node, f"window {attrs['kernel_shape']} or ceil_mode")

    def _iqAdd(self, node, attrs):
        if self.shapes[node.input[0]] != self.shapes[node.input[1]]:
            self.bad(node, "the operands' shapes differ")
        if attrs["scale_o"] > min(attrs["scale_x"], attrs["scale_y"]):
            self.bad(node, "an operand would be shifted to the left")
        if attrs["mode"] != b"Non_t710_mode":
            self.bad(node, f"mode {attrs['mode']}")

    def _iqMul(self, node, attrs):
        left, right = (self.shapes[name] for name in node.input)
        if left != right and not (len(left) == len(right) == 4 and right == [*left[:2], 1, 1]):
            self.bad(node, f"the operands' shapes {left} and {right}")
        if attrs["scale_x"] * attrs["scale_y"] < attrs["scale_o"]:
            self.bad(node, "the product would be shifted to the left")

    def _iqSigmoid(self, node, attrs):
        if self.types.get(node.input[0]) != TensorProto.INT16:
            self.bad(node, "its input is not int16")
        if attrs["scale_x"] < 2048:
            self.bad(node, f"scale_x = {attrs['scale_x']} is read as 2048")
        if attrs["scale_o"] != 128:
            self.bad(node, f"it writes 128, not scale_o = {attrs['scale_o']}")

    _iqTanh = _iqSigmoid

    def _LayerNormInt(self, node, attrs):
        weight, bias = (self.consts.get(name) for name in node.input[1:])
        if weight is None or bias is None or (weight.dtype, bias.dtype) != (np.int16, np.int32):
            self.bad(node, "its factor is no int16 or its summand no int32 constant")
        elif weight.shape != bias.shape or list(weight.shape) != self.shapes[node.input[0]][-weight.ndim :]:
            self.bad(node, f"factor {weight.shape} and summand {bias.shape} do not fit")
        if 10 + exponent(attrs["scale_w"]) < exponent(attrs["scale_o"]):
            self.bad(node, "the shift to the output is to the left")

    def _Requant(self, node, attrs):
        if self.types.get(node.input[0]) != TensorProto.INT8 or attrs["data_bits"] != 8:
            self.bad(node, "its input is not int8")
        if attrs["o_bits"] == 16 and attrs["scale_o"] > 256 * attrs["scale_x"]:
            self.bad(node, "a shift by more than 8 wraps in 16 bits")

    def _iqCat(self, node, attrs):
        if attrs["dim"] == 0:
            self.bad(node, "it concatenates the batch")

    def _Reshape(self, node, attrs):
        if self.consts.get(node.input[1]) is None:
            self.bad(node, "a target computed at run time")

    def _Slice(self, node, attrs):
        bounds = [self.consts.get(name) for name in node.input[1:]]
        if len(bounds) != 4 or any(array is None or array.size != 1 for array in bounds):
            self.bad(node, "the bounds are not start, end, axis and step of one axis")
        elif bounds[2] == 0 or bounds[3] != 1:
            self.bad(node, f"axis {bounds[2]}, step {bounds[3]}")

    def _Transpose(self, node, attrs):
        if attrs["perm"][0] != 0 or not 2 <= len(attrs["perm"]) <= 4:
            self.bad(node, f"perm {attrs['perm']}")
