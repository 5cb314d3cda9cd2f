"""A random net in the making: seeded choices, every tensor's shape, and the layers that several
families have.
"""

import numpy as np
from onnx import TensorProto, helper

from lingeronnx.ir.float_ops import UNARY_FUNCTIONS
from tests.nets import Net

#: Functions that do not take any number, grow fast, or are drawn elsewhere.
_APART = ("Exp", "Gelu", "Log", "Mish", "Reciprocal", "Sqrt", "Swish")
_ATTRIBUTES = {
    "Celu": {"alpha": 0.8},
    "Elu": {"alpha": 0.7},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.1},
    "ThresholdedRelu": {"alpha": 0.3},
}
#: Curves of one number that take any number.
CURVES = {kind: _ATTRIBUTES.get(kind, {}) for kind in UNARY_FUNCTIONS if kind not in _APART}
_TAME = ("Relu", "Relu", "Relu", "relu6", "none")
#: Operator -> the opset that brought it.
SINCE = {"HardSwish": 14, "Mish": 18, "Gelu": 20, "LayerNormalization": 17}


class RandomNet(Net):
    """A net whose every choice is drawn from one seed.

    size : {tensor: its shape without the batch axis, which is the first}. state : {output: input}
    fed back.
    """

    def __init__(self, rng, opset, batch="N"):
        super().__init__(opset=opset, batch=batch)
        self.rng, self.inputs, self.size, self.state, self.batch = rng, [], {}, {}, batch
        self.kind = ""  # what a family that draws several kinds of nets calls it
        self.whole = {}  # {integer input: how many values it takes}
        self.tame = bool(
            rng.random() < 0.5
        )  # whether activations are those of nets made for small chips

    # ---- choices ---------------------------------------------------------------------------------------------------

    def pick(self, *values):
        """Return one of the values."""
        return values[int(self.rng.integers(len(values)))]

    def between(self, low, high):
        """Return an integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, share):
        """Return whether something happens that does in so many of 1."""
        return bool(self.rng.random() < share)

    # ---- ends and constants ----------------------------------------------------------------------------------------

    def enter(self, *shape, name=None, count=0, kind=TensorProto.FLOAT):
        """Return a new graph input of this shape without batch; count : of a type of integers, all
        are below it.
        """
        name = name or f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, kind, [self.batch, *shape]))
        self.size[name] = tuple(shape)
        if count:
            self.whole[name] = count
        return name

    def real(self, *shape, spread=1.0, mean=0.0):
        """Return a constant of normal values."""
        return self.const((mean + spread * self.rng.standard_normal(shape)).astype(np.float32))

    def ints(self, *values):
        """Return a constant of integers, one axis."""
        return self.const(np.array(values, np.int64))

    def add(self, op_type, inputs, shape, out=None, **attributes):
        """Append a node whose output has `shape` without batch; return its output's name."""
        name = self.node(op_type, *inputs, out=out, **attributes)
        self.size[name] = tuple(shape)
        return name

    # ---- layers ----------------------------------------------------------------------------------------------------

    def convolve(
        self, x, outputs, kernel, stride=1, pads=None, group=1, dilation=1, gain=None, bias=None
    ):
        """Convolve along all axes but the first; kernel, stride, dilation : one number or one per
        axis.

        pads : None keeps the size at stride 1. None where a side would vanish.
        """
        inputs, *sides = self.size[x]
        kernel, stride, dilation = (
            _each(value, len(sides)) for value in (kernel, stride, dilation)
        )
        reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        pads = (
            [*(r // 2 for r in reach), *(r - r // 2 for r in reach)] if pads is None else list(pads)
        )
        axes = len(sides)
        room = [s + pads[i] + pads[i + axes] - reach[i] for i, s in enumerate(sides)]
        if min(room) < 1:
            return None
        shape = (outputs, inputs // group, *kernel)
        gain = self.pick(0.3, 1.0, 1.0, 3.0) if gain is None else gain
        weight = self.real(*shape, spread=gain * np.sqrt(2 / np.prod(shape[1:])))
        more = (
            [self.real(outputs, spread=0.1)] if (self.chance(0.8) if bias is None else bias) else []
        )
        result = (outputs, *((r - 1) // s + 1 for r, s in zip(room, stride, strict=True)))
        return self.add(
            "Conv",
            [x, weight, *more],
            result,
            kernel_shape=kernel,
            strides=stride,
            pads=pads,
            group=group,
            dilations=dilation,
        )

    def spread(self, x, outputs, kernel, stride, pads=None):
        """Convolve transposed along all axes but the first."""
        inputs, *sides = self.size[x]
        kernel, stride, axes = _each(kernel, len(sides)), _each(stride, len(sides)), len(sides)
        pads = [0] * (2 * axes) if pads is None else list(pads)
        weight = self.real(inputs, outputs, *kernel, spread=np.sqrt(1 / inputs))
        more = [self.real(outputs, spread=0.1)] if self.chance(0.7) else []
        result = [
            (s - 1) * stride[i] + kernel[i] - pads[i] - pads[i + axes] for i, s in enumerate(sides)
        ]
        return self.add(
            "ConvTranspose",
            [x, weight, *more],
            (outputs, *result),
            kernel_shape=kernel,
            strides=stride,
            pads=pads,
        )

    def pool(self, x, kind, kernel, stride, pads=None, **more):
        """Take maxima or averages; the tensor itself where a window does not fit."""
        channels, *sides = self.size[x]
        kernel, stride, axes = _each(kernel, len(sides)), _each(stride, len(sides)), len(sides)
        pads = [0] * (2 * axes) if pads is None else list(pads)
        room = [s + pads[i] + pads[i + axes] - kernel[i] for i, s in enumerate(sides)]
        if min(room) < 0:
            return x
        result = [r // s + 1 for r, s in zip(room, stride, strict=True)]
        return self.add(
            kind, [x], (channels, *result), kernel_shape=kernel, strides=stride, pads=pads, **more
        )

    def norm(self, x):
        """Normalise each channel with numbers that training left, or seldom with its own.

        The drawn numbers decide which, so that nets of earlier seeds keep what follows.
        """
        channels = self.size[x][0]
        values = [self.rng.uniform(0.5, 1.5, channels).astype(np.float32) for _ in range(4)]
        if len(self.size[x]) > 1 and min(self.size[x][1:]) > 1 and values[0][0] > 1.45:
            scale, bias = map(self.const, values[:2])
            return self.add("InstanceNormalization", [x, scale, bias], self.size[x])
        four = [self.const(array) for array in values]
        return self.add("BatchNormalization", [x, *four], self.size[x])

    def add_elementwise(self, op_type, *inputs, **attributes):
        """Append a node whose output has the shape of its first input."""
        return self.add(op_type, inputs, self.size[inputs[0]], **attributes)

    def act(self, x, *kinds):
        """Apply an activation: one of `kinds`, else most often Relu."""
        usual = (
            _TAME
            if self.tame
            else (*_TAME, "LeakyRelu", "HardSwish", "Sigmoid", "Tanh", "silu", "gelu", "PRelu")
        )
        kind = self.pick(*(kinds or usual))
        if SINCE.get(kind, 0) > self.opset:
            kind = "Relu"
        if kind == "relu6":
            low, high = self.const(np.float32(0)), self.const(np.float32(6))
            if self.chance(0.8):
                return self.add_elementwise("Clip", x, low, high)
            return self.add_elementwise("Max", self.add_elementwise("Min", x, high), low)
        if kind == "silu":
            return self.add_elementwise("Mul", x, self.add_elementwise("Sigmoid", x))
        if kind == "gelu":
            return self.gelu(x)
        if kind == "PRelu":
            slope = self.rng.uniform(0.05, 0.4, (self.size[x][0], *[1] * (len(self.size[x]) - 1)))
            return self.add_elementwise("PRelu", x, self.const(slope.astype(np.float32)))
        return x if kind == "none" else self.add_elementwise(kind, x, **CURVES[kind])

    def gelu(self, x):
        """Apply GELU, as one node or as exporters write it."""
        if self.opset >= 20 and self.chance(0.5):
            return self.add_elementwise("Gelu", x, approximate=self.pick("none", "none", "tanh"))
        inner = self.add_elementwise(
            "Erf", self.add_elementwise("Div", x, self.const(np.float32(np.sqrt(2))))
        )
        return self.add_elementwise(
            "Mul",
            self.add_elementwise(
                "Mul", x, self.add_elementwise("Add", inner, self.const(np.float32(1)))
            ),
            self.const(np.float32(0.5)),
        )

    def linear(
        self, x, outputs, bias=None, gain=1.0
    ):  # of the last axis; a Gemm where there is no other
        *rest, inputs = self.size[x]
        bias = self.chance(0.8) if bias is None else bias
        spread = gain / np.sqrt(inputs)
        if not rest and self.chance(0.7):
            weight = self.real(outputs, inputs, spread=spread)
            more = [self.real(outputs, spread=0.1)] if bias else []
            return self.add("Gemm", [x, weight, *more], (outputs,), transB=1)
        y = self.add("MatMul", [x, self.real(inputs, outputs, spread=spread)], (*rest, outputs))
        return self.add_elementwise("Add", y, self.real(outputs, spread=0.1)) if bias else y

    def layer_norm(self, x):
        """Normalise the last axis, as one node or as exporters wrote it before there was one."""
        width = self.size[x][-1]
        gamma, beta = self.real(width, spread=0.2, mean=1.0), self.real(width, spread=0.2)
        if self.opset >= 17 and self.chance(0.7):
            return self.add_elementwise("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5)
        centred = self.add_elementwise("Sub", x, self.mean(x, -1))
        square = self.add_elementwise("Pow", centred, self.const(np.float32(2)))
        root = self.add_elementwise(
            "Sqrt", self.add_elementwise("Add", self.mean(square, -1), self.const(np.float32(1e-5)))
        )
        return self.add_elementwise(
            "Add",
            self.add_elementwise("Mul", self.add_elementwise("Div", centred, root), gamma),
            beta,
        )

    def mean(self, x, axis, keep=True):
        """Return the mean over an axis (counted with the batch axis, or from behind)."""
        shape = list(self.size[x])
        place = axis if axis < 0 else axis - 1
        if keep:
            shape[place] = 1
        else:
            del shape[place]
        if self.opset >= 18:
            return self.add("ReduceMean", [x, self.ints(axis)], shape, keepdims=int(keep))
        return self.add("ReduceMean", [x], shape, axes=[axis], keepdims=int(keep))

    def transpose(self, x, *perm):
        """Transpose; perm counts the batch axis."""
        whole = (None, *self.size[x])
        return self.add("Transpose", [x], [whole[p] for p in perm][1:], perm=list(perm))

    def reshape(self, x, *shape):
        """Reshape all axes but the batch."""
        return self.add("Reshape", [x, self.ints(0, *shape)], shape)

    def flat(self, x):
        """Put all axes but the batch on one, as one exporter or another writes it."""
        shape = (int(np.prod(self.size[x])),)
        kind = self.pick("Flatten", "Flatten", "Reshape", "Shape")
        if kind == "Flatten":
            return self.add("Flatten", [x], shape, axis=1)
        if kind == "Reshape":
            return self.add("Reshape", [x, self.ints(0, -1)], shape)
        batch = self.node("Gather", self.node("Shape", x), self.const(np.array(0)))
        sizes = self.node(
            "Concat", self.node("Unsqueeze", batch, self.ints(0)), self.ints(-1), axis=0
        )
        return self.add("Reshape", [x, sizes], shape)

    def concat(self, *inputs, axis=1):
        """Concatenate along an axis, counted with the batch axis."""
        shape = list(self.size[inputs[0]])
        shape[axis - 1] = sum(self.size[x][axis - 1] for x in inputs)
        return self.add("Concat", inputs, shape, axis=axis)

    def slice(self, x, axis, start, stop):
        """Take a part of an axis, counted with the batch axis."""
        shape = list(self.size[x])
        shape[axis - 1] = stop - start
        return self.add("Slice", [x, self.ints(start), self.ints(stop), self.ints(axis)], shape)

    def pad(self, x, *pads):
        """Pad with zeros; pads : begin and end of each axis but the batch, all begins first."""
        axes = len(self.size[x])
        shape = [s + pads[i] + pads[i + axes] for i, s in enumerate(self.size[x])]
        return self.add("Pad", [x, self.ints(0, *pads[:axes], 0, *pads[axes:])], shape)

    def global_mean(self, x):
        """Return the mean over all axes but the first, as one axis."""
        if self.chance(0.7):
            return self.flat(
                self.add(
                    "GlobalAveragePool", [x], (self.size[x][0], *[1] * (len(self.size[x]) - 1))
                )
            )
        if self.chance(0.2):
            return self.flat(
                self.add("GlobalMaxPool", [x], (self.size[x][0], *[1] * (len(self.size[x]) - 1)))
            )
        while len(self.size[x]) > 1:
            x = self.mean(x, len(self.size[x]), keep=False)
        return x

    # ---- the model -------------------------------------------------------------------------------------------------

    def finish(self, outputs):
        """Return the model; outputs : names, of which graph inputs get a node in front."""
        given = {value.name for value in self.inputs}
        names = [
            self.add_elementwise("Relu", name) if name in given else name
            for name in dict.fromkeys(outputs)
        ]
        read = set(names)
        for node in reversed(self.nodes):  # what a block drew and did not take
            if read.intersection(node.output):
                read.update(node.input)
        self.nodes = [node for node in self.nodes if read.intersection(node.output)]
        self.constants = [constant for constant in self.constants if constant.name in read]
        model = self.proto(*names)
        model.ir_version = 9
        return model


def _each(value, axes):
    """Return one number per axis."""
    return [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)] * axes
