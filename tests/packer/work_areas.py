"""Work areas: the bytes of scratch memory each node asks for, and the constants as they are
stored.
"""

import math

from tests.packer.graph import up

SMALL = 65536
#: what has its constants brought by the DMA
STREAMED = (
    "Conv1dInt",
    "Conv2dInt",
    "ConvTranspose2dInt",
    "LinearInt",
    "LSTMInt",
    "GRUInt",
    "LayerNormInt",
)


class WorkAreas:
    """Work area of one node; `place(name)` gives "share-mem", "psram" or "flash"."""

    def __init__(self, graph, platform, place):
        self.graph, self.platform, self.place = graph, platform, place

    def far(self, name):
        return self.place(name) != "share-mem"

    def size(self, node):
        """Return (bytes, place)."""
        rule = getattr(self, f"_{node.op}", None)
        if rule is None:
            return 0, "share-mem"
        x, y = self.graph.tensors[node.inputs[0]], self.graph.tensors[node.outputs[0]]
        follows = node.op in ("AvgPool2dInt", "iqPad", "iqMul")
        return rule(node, x, y), self.place(x.name) if follows else "share-mem"

    # ---- convolutions ------------------------------------------------------------------------------------------------

    def _Conv2dInt(self, node, x, y):
        if self.platform == "arcs":
            return y.size if self.far(y.name) else 0
        deep = node.get("group", 1) > 1
        if self.platform == "venusA":
            return self._conv_venus_a(node, x, y, deep) if self.far(y.name) else 0
        c, h, w = x.shape[1:]
        sh, sw = node.attrs["strides"]
        kh = node.attrs["kernel_shape"][0]
        row = up(c, 8) * up(w, 8 * sw)
        if row * h <= SMALL:
            return (c * h * w if self.far(x.name) else 0) + (
                y.elements * y.bytes if self.far(y.name) else 0
            )
        parts = split_rows(row, y.shape[2], sh, kh)
        rows = y.shape[2] * sh // parts + kh - sh
        if deep:
            return c * rows * w + y.elements * y.bytes
        return 0 if h * w < SMALL else max(c * rows * w, y.elements * y.bytes)

    def _conv_venus_a(self, node, x, y, deep):
        c, h, w = x.shape[1:]
        sh, sw = node.attrs["strides"]
        kh = node.attrs["kernel_shape"][0]
        dilated = (kh - 1) * node.get("dilations", [1])[0] + 1
        row = up(c, 8) * up(w, 8 * sw)
        most = 32768 if deep else SMALL
        if row * h <= most:
            return y.size
        if deep:
            row, dilated = up(c, 4) * up(w, 8 * sw), kh
        rows = max((most // row - dilated + sh) // sh, 1)
        count = math.ceil(y.shape[2] / rows)
        return y.shape[1] * max(rows, y.shape[2] - (count - 1) * rows) * y.shape[3]

    def _ConvTranspose2dInt(self, node, x, y):
        return (
            min(SMALL, y.elements) if self.platform == "venusA" and self.far(node.inputs[1]) else 0
        )

    # ---- products ----------------------------------------------------------------------------------------------------

    def _bracket(self, m, n, width, x_far, y_far):
        m = math.ceil(m / row_parts(m, n))
        if x_far and y_far:
            return m * max(n, width) + 4 * m * width
        return m * n if x_far else m * width if y_far else 0

    def _LinearInt(self, node, x, y):
        n, width = x.shape[-1], self.graph.tensors[node.inputs[1]].shape[0]
        m = x.elements // n
        if self.platform == "arcs":
            return x.size + y.size
        if self.platform == "venusA":
            return max(x.size, y.size) if up(m, 4) * up(n, 8) > SMALL else x.size
        bias = 4 * y.size if len(node.inputs) > 2 else 0
        return bias + self._bracket(m, n, width, self.far(x.name), self.far(y.name))

    def _BmmInt(self, node, x, y):
        if self.platform != "venus":
            return 0
        n, width = x.shape[-1], y.shape[-1]
        size = self._bracket(x.shape[-2], n, width, self.far(x.name), self.far(y.name))
        return size + (n * width if self.far(node.inputs[1]) else 0)

    def _LSTMInt(self, node, x, y):
        size = 32 * node.attrs["hidden_size"]
        if self.platform != "venus":
            size += sum(
                self.graph.tensors[name].size
                for name in node.inputs[1:]
                if self.graph.const(name) is not None
            )
        return size

    # ---- pools -------------------------------------------------------------------------------------------------------

    def _MaxPool(self, node, x, y):
        c, h, w = x.shape[1:]
        if self.platform != "venus":
            return min(y.size, SMALL) if self.far(y.name) else 0
        if up(c, 8) * h * up(w, 8 * node.attrs["strides"][1]) > SMALL:
            return max(61440, y.size)
        return y.size if self.far(y.name) else 0

    def _AvgPool2dInt(self, node, x, y):
        c, h, w = x.shape[1:]
        kernel = node.attrs["kernel_shape"]
        area = math.prod(kernel)
        odd = area & (area - 1) != 0
        if list(kernel) == [h, w]:
            return max(h * w, 4 * c) + (4 * c if odd else 0)
        if up(c, 8) * h * up(w, 8 * node.attrs["strides"][1]) > SMALL:
            c = 8
        factor = 8 if odd else 2 if self.platform == "venus" else 4
        return c * y.shape[2] * y.shape[3] * factor

    # ---- rows --------------------------------------------------------------------------------------------------------

    def _LayerNormInt(self, node, x, y):
        t = math.prod(self.graph.tensors[node.inputs[1]].shape)
        return max(4 * t, 2 * t + 8)

    def _BatchNorm2dInt(self, node, x, y):
        return 4 * math.prod(x.shape[2:])

    def _GluInt(self, node, x, y):
        dim = node.attrs["dim"]
        before = math.prod(x.shape[:dim]) if dim >= 0 else 1
        return 7 * before * x.shape[dim]

    def _SoftmaxInt(self, node, x, y):
        axis = node.attrs["dim" if self.platform == "venus" else "axis"]
        t = math.prod(x.shape[axis:]) if axis != -1 else x.shape[-1]
        if self.platform == "venus":
            return 2 * x.shape[axis]
        size = 4 * x.size + 4 * t if self.platform == "arcs" else 6 * x.elements + 4 * t
        return min(size, SMALL)

    # ---- elementwise and moves ---------------------------------------------------------------------------------------

    def _Relu(self, node, x, y):
        return min((x.size if self.far(x.name) else 0) + (y.size if self.far(y.name) else 0), SMALL)

    _Prelu = _Relu

    def _Transpose(self, node, x, y):
        need = (x.size if self.far(x.name) else 0) + (
            y.size if self.far(y.name) and x.size >= SMALL else 0
        )
        return min(need, SMALL)

    def _iqAdd(self, node, x, y):
        needs = [
            x.size * (node.get(key) != node.get("scale_o") or self.far(name))
            for key, name in zip(("scale_x", "scale_y"), node.inputs, strict=True)
        ]
        size = max(x.size, sum(needs)) if self.far(y.name) else x.size if all(needs) else 0
        return min(size, SMALL) if self.platform == "venusA" else size

    def _iqSub(self, node, x, y):
        return sum(
            x.size * (node.get(key) != node.get("scale_o") or self.far(name))
            for key, name in zip(("scale_x", "scale_y"), node.inputs, strict=True)
        )

    def _iqMul(self, node, x, y):
        other = self.graph.tensors[node.inputs[1]].shape
        if len(x.shape) != 4 or other == x.shape or other != (1, x.shape[1], 1, 1):
            return 0
        c, h, w = x.shape[1:]
        return h * w * (c + 1)

    def _iqPad(self, node, x, y):
        return x.size

    def _iqSigmoid(self, node, x, y):
        return (2 if self.platform == "venus" else 4) * x.size

    def _iqCat(self, node, x, y):
        if self.platform == "venusA":
            return min(SMALL, y.elements) if self.far(y.name) else 0
        axis = node.get("dim", node.get("axis")) % len(y.shape)
        scales = {node.get(f"scale_x_{i}") for i in range(len(node.inputs))} | {node.get("scale_o")}
        if len(scales) > 1 and any(map(self.far, [*node.inputs, y.name])):
            return math.prod(y.shape[axis:])
        return 0


def row_parts(rows, columns):
    """Return the count of equal parts in which the rows of a product are read."""
    return next(
        k
        for k in range(1, rows + 1)
        if up(math.ceil(rows / k), 4) * up(columns, 8) <= SMALL or k == rows
    )


def split_rows(row, height, stride, kernel):
    """Return the smallest count of equal row parts of a venus convolution whose input rows fit."""
    for count in range(1, height + 1):
        if height % count == 0 and row * (height * stride // count + kernel - stride) <= SMALL:
            return count
    return height


# ---- constants as stored ---------------------------------------------------------------------------------------------


def get_stored_bytes(graph, node, index, platform):
    """Return the bytes of constant input `index` of `node` as the package holds it, 8 bits each."""
    return up(padded(graph, node, index, platform), 16)


def padded(graph, node, index, platform):
    """Return the same before it is rounded up."""
    tensor = graph.tensors[node.inputs[index]]
    if index != 1 or node.op not in ("Conv1dInt", "Conv2dInt", "ConvTranspose2dInt"):
        return tensor.elements * tensor.bytes
    m, group = 4 if platform == "venusA" else 2, node.get("group", 1)
    n, c, *kernel = tensor.shape
    area = math.prod(kernel)
    if node.op == "ConvTranspose2dInt":
        return up(c, m) * up(n, 8) * area
    if node.op == "Conv1dInt":
        if platform == "venus" and kernel[0] > 5:
            return tensor.elements * tensor.bytes
        return (
            up(n, 16 if platform == "venus" else 8) * area
            if group > 1
            else up(n, 2) * up(c, 8) * area
        )
    if group > 1:
        return {
            "venus": up(n, 16) * area,
            "arcs": up(n, 8) * area,
            "venusA": up(n, 8) * up(kernel[0], 2) * kernel[-1],
        }[platform]
    one, limit = up(c, 8) * area, 8192 if platform == "arcs" else 32768
    outputs = up(n, m)
    if outputs * one > limit:
        most = limit // one // m * m
        count = math.ceil(n / most)
        outputs = up(math.ceil(n / count), m) * count
    return outputs * one
