"""Limits per operator: what the packer refuses."""

import numpy as np

from tests.packer.graph import Refused, up
from tests.packer.placement import get_placements


def slab_limit(platform, deep):
    if platform == "arcs":
        return 16384
    return 32768 if deep else 65536


def first_slab(graph, node, platform):
    """Return "plain", "swapped" or "none": on which axis the first slab check passes."""
    c, h, w = graph.tensors[node.inputs[0]].shape[1:]
    (kh, kw), (sh, sw) = node.attrs["kernel_shape"], node.attrs["strides"]
    pool = node.op in ("AvgPool2dInt", "MaxPool")
    deep = not pool and node.get("group", 1) > 1
    channels = up(c, 4 if platform == "venusA" else 2)
    most = slab_limit(platform, deep)
    if channels * up(w, 8 * sw) * kh <= most:
        return "plain"
    if channels * up(h, 8 * sh) * kw <= most:
        return "swapped"
    wide = 5 if platform == "arcs" else 7
    if pool and max(kh, kw) > wide:
        return "plain"
    return "none"


class Limits:
    """The checks of one prepared graph, each raising Refused."""

    def __init__(self, graph, settings):
        self.graph, self.platform, self.place = (
            graph,
            settings.platform,
            get_placements(graph, settings).get,
        )

    def run(self):
        for node in self.graph.nodes:
            rule = getattr(self, f"_{node.op}", None)
            if rule is not None:
                rule(node, *(self.graph.tensors[name] for name in node.inputs if name))

    def refuse(self, node, text):
        raise Refused(f"{node.op} {node.name}: {text}")

    def need(self, node, condition, text):
        if not condition:
            self.refuse(node, text)

    # ---- convolutions ------------------------------------------------------------------------------------------------

    def _sides(self, node, weight):
        kernel, strides, pads = (
            node.attrs["kernel_shape"],
            node.attrs["strides"],
            node.attrs["pads"],
        )
        dilations = node.attrs["dilations"]
        good = (1,) if self.platform == "venus" else (1, 2, 4, 8)
        self.need(
            node, all(d in good for d in dilations), f"dilation {dilations}, must be in {good}"
        )
        most = 12 if max(dilations) > 1 else 5
        self.need(node, max(kernel) <= most, f"kernel {kernel} above {most}")
        self.need(
            node, all(s in (1, 2, 4) for s in strides), f"stride {strides}, must be 1, 2 or 4"
        )
        self.need(
            node,
            all(s <= k for s, k in zip(strides, kernel, strict=True)),
            f"stride {strides} above the kernel",
        )
        most = 4 if self.platform == "venus" else 11
        self.need(node, all(0 <= p <= most for p in pads), f"pads {pads} above {most}")
        self.need(
            node,
            all(p <= k for p, k in zip(pads, [*kernel] * 2, strict=True)),
            f"pads {pads} above the kernel",
        )
        self.need(
            node,
            list(weight.shape[2:]) == list(kernel),
            f"kernel {kernel} and weight {weight.shape}",
        )

    def _layer(self, node, weight):
        self.need(
            node, weight.const is None or weight.const.dtype == np.int8, "the weight is not int8"
        )
        good = (8, 32) if self.platform == "arcs" and node.op == "Conv2dInt" else (8, 16, 32)
        self.need(node, node.attrs["o_bits"] in good, f"o_bits {node.attrs['o_bits']}")
        self.need(
            node,
            node.attrs["parameter_bits"] in (4, 8),
            f"parameter_bits {node.attrs['parameter_bits']}",
        )

    def _Conv2dInt(self, node, x, weight, *bias):
        self._layer(node, weight)
        self._sides(node, weight)
        c, h, w = x.shape[1:]
        group, outputs = node.attrs["group"], weight.shape[0]
        self.need(
            node,
            weight.shape[1] * group == c,
            f"{c} channels and weight {weight.shape} in {group} groups",
        )
        self.need(
            node,
            group in (1, outputs) and (group == 1 or weight.shape[1] == 1),
            "as many groups as outputs, each with more than one channel",
        )
        top, left, bottom, right = node.attrs["pads"]
        kh, kw = node.attrs["kernel_shape"]
        self.need(
            node,
            w + top + bottom >= kw and h + left + right >= kh,
            f"input {h}x{w} plus pads below the kernel {kh}x{kw} with the axes mixed up",
        )
        self._slabs(node, c, h, w, kh, kw)
        deep = group > 1
        if self.platform == "arcs" and deep:
            self.need(
                node,
                up(c, 8) * kh * kw <= 8192,
                f"depthwise weights of {up(c, 8) * kh * kw} above 8192 bytes",
            )
        if not deep:
            share, most = {"venus": (2, 32768), "arcs": (2, 8192), "venusA": (4, 32768)}[
                self.platform
            ]
            size = up(c, 8) * kh * kw * share
            self.need(node, size <= most, f"weights of {share} outputs, {size} bytes, above {most}")

    def _slabs(self, node, c, h, w, kh, kw):
        chosen = first_slab(self.graph, node, self.platform)
        self.need(node, chosen != "none", "the slab of rows is too large on both axes")
        sh, sw = node.attrs["strides"]
        if chosen == "swapped":
            w, kh, sw = h, kw, sh
        if self.platform == "arcs":
            size, most = up(c, 8) * up(w, 4 * sw) * kh, 16384
        else:
            size, most = up(c, 8) * up(w, 8 * sw) * kh, 65536
        self.need(node, size <= most, f"the slab of {size} bytes above {most} in the second check")

    def _Conv1dInt(self, node, x, weight, *bias):
        self._layer(node, weight)
        kernel = node.attrs["kernel_shape"][0]
        most = 5 if self.platform == "venus" else 12
        self.need(node, kernel <= most, f"kernel {kernel} above {most}")
        strides, pads = node.attrs["strides"], node.attrs["pads"]
        self.need(node, strides[0] in (1, 2, 4) and strides[0] <= kernel, f"stride {strides}")
        most = 4 if self.platform == "venus" else 11
        self.need(node, all(p <= min(kernel, most) for p in pads), f"pads {pads}")
        good = (1,) if self.platform == "venus" else (1, 2, 4, 8)
        self.need(node, node.attrs["dilations"][0] in good, "dilation")
        self.need(
            node, weight.shape[1] * node.attrs["group"] == x.shape[1], "channels and weight differ"
        )
        deep = 1 < node.attrs["group"] == weight.shape[0]
        self.need(node, not (deep and self.platform == "venus"), "depthwise")
        if self.platform == "venusA":
            self.need(
                node, self.place(x.name) == "share-mem", "its input must lie in shared memory"
            )

    def _ConvTranspose2dInt(self, node, x, weight, *bias):
        self._layer(node, weight)
        self.need(node, node.attrs["group"] == 1, "groups")
        places = [self.place(x.name), self.place(node.outputs[0])]
        if self.platform == "venus":
            places.append(self.place(weight.name))
        if self.platform != "venusA":
            self.need(node, set(places) == {"share-mem"}, "all of it must lie in shared memory")

    # ---- pools -------------------------------------------------------------------------------------------------------

    def _pool(self, node, x):
        kernel, strides, pads = (
            node.attrs["kernel_shape"],
            node.attrs["strides"],
            node.attrs["pads"],
        )
        self.need(
            node,
            all(s <= k for s, k in zip(strides, kernel, strict=True)),
            f"stride {strides} above the window",
        )
        self.need(
            node,
            all(p <= k for p, k in zip(pads, [*kernel] * 2, strict=True)),
            f"pads {pads} above the window",
        )
        self.need(
            node,
            first_slab(self.graph, node, self.platform) != "none",
            "the slab of rows is too large",
        )

    def _AvgPool2dInt(self, node, x):
        self._pool(node, x)

    def _MaxPool(self, node, x):
        c, h, w = x.shape[1:]
        kh, kw = node.attrs["kernel_shape"]
        self._pool(node, x)
        if self.platform == "venus":
            size = up(c, 8) * up(w, 8 * node.attrs["strides"][1]) * kh
            self.need(node, size <= 65536, f"the slab of {size} bytes above 65536")
        side, pad = (12, 11) if "platform" in node.attrs else (5, 4)
        if "platform" in node.attrs and self.platform == "venusA":
            return
        covers = kh >= h or kw >= w
        self.need(node, max(kh, kw) <= side or covers, f"side {max(kh, kw)} above {side}")
        self.need(node, max(node.attrs["pads"]) <= pad or covers, f"pads above {pad}")

    # ---- products, rows, elementwise ---------------------------------------------------------------------------------

    def _LinearInt(self, node, x, weight, *bias):
        self._layer(node, weight)
        self.need(node, len(x.shape) >= 2, "its input is of rank 1")
        self.need(
            node,
            weight.shape[-1] == x.shape[-1],
            f"input {x.shape} and weight {weight.shape} differ",
        )

    def _BmmInt(self, node, x, y):
        self.need(node, len(x.shape) in (2, 3), f"rank {len(x.shape)}")
        product = node.attrs["scale_x"] * node.get("scale_y", 1)
        self.need(node, node.attrs["scale_o"] <= product, "the output scale is above the product")

    def _SoftmaxInt(self, node, x):
        axis = node.attrs["dim" if self.platform == "venus" else "axis"]
        self.need(node, x.shape[axis] <= 2048, f"over {x.shape[axis]} above 2048")

    def _GluInt(self, node, x):
        self.need(node, node.attrs["o_bits"] in (8, 16, 32), "o_bits")

    def _iqCat(self, node, *xs):
        self.need(node, len(xs) >= 2, "fewer than 2 inputs")

    def _iqAdd(self, node, x, y):
        self.need(node, x.shape == y.shape, f"shapes {x.shape} and {y.shape} differ")

    _iqSub = _iqAdd

    def _iqTanh(self, node, x):
        self.need(node, x.bytes == 2, "its input is not of 16 bits")
