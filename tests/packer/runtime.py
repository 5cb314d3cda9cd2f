"""What packs and does not run, or runs wrong: faults of single operators, by platform and place."""

import math

from onnx import TensorProto

from tests.packer import int4
from tests.packer.graph import up
from tests.packer.overruns import destroyed_constants, find_overwritten, first_area
from tests.packer.work_areas import STREAMED, WorkAreas, get_stored_bytes

BIG = 65536
#: bytes of the largest map that a venus convolution read right (conv_slab_64k_in), and of a map with its result: 16 to
#: 16 channels on 14 sizes were right up to there, and crashed or hung from 8192 bytes more on
DEEPEST, BOTH = 262144, 507904
#: bytes of weights (as stored) that an arcs convolution reads where they lie: as many ran, twice as many crashed
WEIGHTS = 297216


def faults(model, graph, memory, settings):
    """Return sentences on everything that would not run or come out wrong."""
    return [
        *graph.notes,
        *form_faults(model, graph, memory, settings),
        *shared_constants(graph, settings),
        *int4.faults(graph, settings),
        *Faults(graph, memory, settings).run(),
        *find_overwritten(graph, memory, settings),
        *destroyed_constants(graph, settings),
    ]


def form_faults(model, graph, memory, settings):
    """Return faults of names, of float operators left inside, of the first work area's place."""
    found, platform = [], settings.platform
    needs_work = any(size for size, _ in memory.work.values())
    for name, item in memory.items.items():
        if (
            "workspace" in name
            and not name.startswith("workspace ")
            and platform != "venus"
            and needs_work
        ):
            found.append(f"tensor '{name}' takes the place of the work area")
        if name in ("dma_buffer1", "dma_buffer2") and settings.params != "share-mem":
            found.append(f"tensor '{name}' takes the place of a prefetch buffer")
        if item.place == "flash":
            found.append(f"tensor '{name}' lies in flash")
    for node in graph.nodes:
        if node.op in ("Quant", "Dequant"):
            found.append(
                f"{node.op} {node.name} stays inside the graph: a float operator between integer "
                "ones"
            )
    first = next((memory.work[n.name] for n in graph.nodes if memory.work[n.name][0]), None)
    if first and first[1] == "psram":
        found.append("the first work area lies in PSRAM, and all nodes then use it")
    integers = {
        v.name for v in model.graph.input if v.type.tensor_type.elem_type == TensorProto.INT8
    }
    if platform != "venus":
        for name in integers:
            for reader in graph.readers(name):
                if not any(key.startswith("scale_x") for key in reader.attrs):
                    found.append(
                        f"{reader.op} {reader.name} reads int8 input '{name}' whose scale is "
                        "unknown to it"
                    )
    return found


def shared_constants(graph, settings):
    """Return constants that several nodes read while their other constants differ."""
    found, users = [], {}
    for node in graph.nodes:
        for name in node.inputs:
            if graph.const(name) is not None and node.op not in (
                "Reshape",
                "Slice",
                "Gather",
                "iqPad",
            ):
                users.setdefault(name, []).append(node)
    for name, nodes in users.items():
        streamed = [node for node in nodes if node.op in STREAMED]
        if streamed and len(streamed) < len(nodes):
            found.append(f"constant '{name}' is read by {nodes[0].op} and {nodes[-1].op}")
        if not settings.prefetch or settings.params == "share-mem":
            continue
        sets = {tuple(n for n in node.inputs if graph.const(n) is not None) for node in streamed}
        longest = max(sets, key=len, default=())
        if any(longest[: len(one)] != one for one in sets):
            found.append(
                f"constant '{name}' is shared by nodes whose other constants differ, with prefetch "
                "on"
            )
    return found


def meaningless(graph, platform):
    """Return what comes out as the simulator says and is of no use: venusA joins give 0 for inputs
    scaled down.
    """
    found = []
    for node in graph.nodes:
        scales = [node.get(f"scale_x_{i}") for i in range(len(node.inputs))]
        if node.op == "iqCat" and platform == "venusA" and max(scales) > node.get("scale_o"):
            found.append(
                f"iqCat {node.name}: an input scale is above the output's, that part comes out as 0"
            )
    return found


class Faults:
    """The faults of each operator."""

    def __init__(self, graph, memory, settings):
        self.graph, self.memory, self.settings = graph, memory, settings
        self.platform, self.found = settings.platform, []
        self.work = WorkAreas(graph, settings.platform, self.place)

    def place(self, name):
        item = self.memory.items.get(name)
        return item.place if item else self.settings.params

    def far(self, name):
        return self.place(name) != "share-mem"

    def run(self):
        for node in self.graph.nodes:
            rule = getattr(self, f"_{node.op}", None)
            if rule is not None:
                x, y = self.graph.tensors[node.inputs[0]], self.graph.tensors[node.outputs[0]]
                for text in rule(node, x, y):
                    self.found.append(f"{node.op} {node.name}: {text}")
        return self.found

    # ---- convolutions ------------------------------------------------------------------------------------------------

    def _Conv2dInt(self, node, x, y):
        c, h, w = x.shape[1:]
        row = up(c, 8) * up(w, 8 * node.attrs["strides"][1])
        if x.shape[0] > 1 and self.platform != "venus":
            yield f"batch {x.shape[0]}: only the first sample is computed"
        if node.swapped and max(node.attrs["strides"]) > 1:
            yield "rows and columns are exchanged with a stride above 1"
        if self.platform == "venus" and row * h > BIG:
            if self.far(x.name) or self.far(y.name):
                yield f"map of {row * h} bytes with input or output outside shared memory"
            if row * h > DEEPEST:
                yield f"map of {row * h} bytes above {DEEPEST}"
            if row * h + y.elements > BOTH:
                yield f"map and result of {row * h + y.elements} bytes above {BOTH}"
        weights = get_stored_bytes(self.graph, node, 1, self.platform)
        if self.platform == "arcs" and self.far(node.inputs[1]) and weights > WEIGHTS:
            yield f"{weights} bytes of weights outside shared memory, above {WEIGHTS}"
        yield from self.bias(node)

        if self.platform == "venusA" and node.get("group", 1) > 1 and self.far(y.name):
            yield from self.deep_far(node, x, y)
        if self.platform != "venus":
            yield from self.rows_left(node, x, y)

    def rows_left(self, node, x, y):
        """Rows below the last window, where the map is computed in strips of rows. Depthwise ones
        were not measured.
        """
        c, h, w = x.shape[1:]
        (sh, sw), kh = node.attrs["strides"], node.attrs["kernel_shape"][0]
        top, _, low, _ = node.attrs["pads"]
        high = (kh - 1) * node.get("dilations", [1])[0] + 1
        while low and (h + top + low - high) % sh:
            low -= 1
        left = (h + top + low - high) % sh
        deep = node.get("group", 1) > 1
        if self.platform == "arcs":
            cut = up(c, 8) * up(w, 4 * sw) * h > 16384
        else:
            fits = (32768 if deep else BIG) // (up(c, 8) * up(w, 8 * sw))
            cut = y.shape[2] > (fits - high + sh) // sh
        if cut and left:
            yield f"{left} rows are left over at the bottom of a map that is cut by rows"

    def deep_far(self, node, x, y):
        """A depthwise output outside shared memory is right where the map is really cut by rows."""
        c, h, w = x.shape[1:]
        (sh, sw), kh, top = (
            node.attrs["strides"],
            node.attrs["kernel_shape"][0],
            node.attrs["pads"][0],
        )
        fits = 32768 // (up(c, 4) * up(w, 8 * sw))
        rows = max(1, (fits - kh - top + sh) // sh)
        if not (h >= fits and y.shape[2] > rows):
            yield "a depthwise output outside shared memory, and the map is not cut by rows"

    def bias(self, node):
        if len(node.inputs) > 2 and self.graph.tensors[node.inputs[2]].bytes != 4:
            yield "its bias is not int32"

    def _Conv1dInt(self, node, x, y):
        if self.platform == "venusA":
            yield "wrong on this platform"
        yield from self.bias(node)

    def _ConvTranspose2dInt(self, node, x, y):
        if len(node.inputs) < 3:
            yield "no bias"
        if (
            self.platform == "venusA"
            and not self.far(node.inputs[1])
            and (self.far(x.name) or self.far(y.name))
        ):
            yield "weight in shared memory, input or output not"

    # ---- products ----------------------------------------------------------------------------------------------------

    def _LinearInt(self, node, x, y):
        rows = x.elements // x.shape[-1]
        if len(x.shape) > 3:
            yield f"rank {len(x.shape)}"
        mixed = (
            rows > 1 and y.shape[-1] > 1
        )  # rows and outputs change places: of one output nothing does
        if self.platform == "venusA" and mixed and not self.far(y.name):
            yield f"{rows} rows with the output in shared memory (-m {y.name}:psram)"
        if node.attrs["o_bits"] == 16 and self.platform != "venus":
            yield "o_bits 16"
        yield from self.bias(node)

    def _LSTMInt(self, node, x, y):
        square = x.shape[1] == x.shape[2]
        if node.attrs["batch_first"] and not square:
            yield (
                f"batch_first with {x.shape[1]} steps of {x.shape[2]} features: it reads the "
                "wrong axis"
            )
        prefetch = self.settings.prefetch and self.settings.params != "share-mem"
        if self.platform != "venus" and prefetch:
            yield "prefetch is on (--dma_prefetch False)"
        hidden, wide = node.attrs["hidden_size"], self.graph.tensors[node.inputs[1]].shape[1]
        if self.platform == "venus" and prefetch and (hidden * wide % 4 or hidden * hidden % 4):
            yield "its prefetched constants have gaps, which it does not leave out"

    # ---- pools -------------------------------------------------------------------------------------------------------

    def pool(self, node, x):
        kernel, strides, pads = (
            node.attrs["kernel_shape"],
            node.attrs["strides"],
            node.attrs["pads"],
        )
        sides = [x.shape[2 + i] + pads[i] + pads[i + 2] - kernel[i] for i in range(2)]
        if node.get("ceil_mode", 0) and any(
            side % s for side, s in zip(sides, strides, strict=True)
        ):
            yield "ceil_mode rounds down"
        if node.swapped and max(strides) > 1:
            yield "rows and columns are exchanged with a stride above 1"

    def wide(self, node, x):
        c, h, w = x.shape[1:]
        line = up(c, 8) * up(w, 8 * node.attrs["strides"][1])
        return line * h > BIG, line * node.attrs["kernel_shape"][0]

    def _MaxPool(self, node, x, y):
        yield from self.pool(node, x)
        big, _ = self.wide(node, x)
        if self.platform == "arcs":
            if self.far(x.name) or self.far(y.name):
                yield "input or output outside shared memory"
            if big and (
                any(side % 2 for side in node.attrs["kernel_shape"])
                or list(node.attrs["kernel_shape"]) != list(node.attrs["strides"])
            ):
                yield "overlapping or odd windows on a map above 65536 bytes"

    def _AvgPool2dInt(self, node, x, y):
        yield from self.pool(node, x)
        c, h, w = x.shape[1:]
        kernel = node.attrs["kernel_shape"]
        area, (big, slab) = math.prod(kernel), self.wide(node, x)
        if slab > (16384 if self.platform == "arcs" else BIG) and not node.swapped:
            yield f"a slab of {slab} bytes"
        if big and self.platform == "venusA":
            yield "a map above 65536 bytes"
        if big and self.platform == "arcs" and (area & (area - 1) or any(k % 2 for k in kernel)):
            yield "a map above 65536 bytes with an odd window"
        if (
            list(kernel) == [h, w]
            and self.platform != "venus"
            and area & (area - 1)
            and h * w > 4 * c
        ):
            yield f"whole map of {h}x{w}, no power of 2 and above 4 times {c} channels"
        if node.attrs["scale_o"] != node.attrs["scale_x"]:
            yield "a change of scale"
        if self.platform == "venus" and self.parts_wrong(c, h, w, node.attrs["strides"][1]):
            yield f"packer and executor part {c} channels differently"
        stride = node.attrs["strides"][1]
        wide = up(w, 2 ** (3 + stride // 2))
        if self.platform == "arcs" and stride > 4 and up(c, 8) * wide * kernel[0] > 16384:
            yield f"{wide} columns to its executor, by the stride"  # two rows of 46 columns

    def parts_wrong(self, c, h, w, sw):
        """venus parts the channels of a large map by eights: packer and executor count its bytes
        in two ways, the executor in an int of 32 bits.
        """
        planned = up(c, 8) * h * up(w, 8 * sw) > BIG
        counted = up(c, 8) * h * up(w, 2 ** (3 + sw // 2)) & 0xFFFFFFFF
        executed = BIG < counted < 2**31
        return c % 8 > 0 if executed else planned and c > 8

    # ---- elementwise -------------------------------------------------------------------------------------------------

    def _Relu(self, node, x, y):
        area = first_area(self.graph, self.memory)
        far = self.far(x.name) or self.far(y.name)
        if (
            self.platform != "venus"
            and far
            and x.elements * x.bytes > max(BIG, area.size if area else 0)
        ):
            yield "more than 65536 bytes outside shared memory, and no work area as large"

    def _iqAdd(self, node, x, y):
        if node.attrs["scale_o"] > min(node.attrs["scale_x"], node.attrs["scale_y"]):
            yield "the output scale is above an input's"
        far = [self.far(name) for name in node.inputs]
        first_only = far == [True, False] and not self.far(
            y.name
        )  # right in mem_branch, where all others were wrong
        if self.platform == "venusA" and x.size >= BIG and any(far) and not first_only:
            yield "65536 bytes or more with an operand outside shared memory"
        if self.platform == "venus":
            return
        shifted = [node.attrs[key] != node.attrs["scale_o"] for key in ("scale_x", "scale_y")]
        if self.far(y.name) and not far[0] and shifted == [False, True]:
            yield (
                "the output outside shared memory, the first operand there, and only the second "
                "shifted"
            )
        if not self.far(y.name) and far[0] != far[1] and not any(shifted):
            yield (
                "one operand outside shared memory, none shifted: it is copied in blocks of 0 "
                "bytes, for ever"
            )

    def _iqSub(self, node, x, y):
        if not all(map(self.far, [*node.inputs, y.name])):
            yield "an operand in shared memory"

    def _iqMul(self, node, x, y):
        other = self.graph.tensors[node.inputs[1]].shape
        if other != x.shape and (len(x.shape) != 4 or other != (x.shape[0], x.shape[1], 1, 1)):
            yield f"shapes {x.shape} and {other}"
        if node.get("scale_o", 1) > node.attrs["scale_x"] * node.get("scale_y", 1):
            yield "the output scale is above the product"

    def _iqPad(self, node, x, y):
        if self.platform != "venus":
            yield "equal on venus only"
        if len(self.graph.readers(y.name)) > 1:
            yield "several readers of a padded tensor"
        if self.platform == "venus" and y.elements > BIG:
            yield f"an output of {y.elements} bytes, above {BIG}"

    def _iqSigmoid(self, node, x, y):
        if (self.platform, x.bytes) not in (("venus", 2), ("arcs", 1)):
            yield f"{8 * x.bytes} bits"

    def _iqTanh(self, node, x, y):
        if self.platform != "venus":
            yield "equal on venus only"

    def _GRUInt(self, node, x, y):
        yield "not measured"

    def _Resize(self, node, x, y):
        yield "another arithmetic"

    def _GluInt(self, node, x, y):
        if self.platform != "venusA":
            yield "equal on venusA only"

    def _SoftmaxInt(self, node, x, y):
        axis = node.get("axis", node.get("dim"))
        if self.platform == "venus":
            yield "not measured on this platform"
        if self.platform == "arcs" and axis not in (-1, 1):
            yield f"axis {axis}, must be -1"
        if self.platform != "venus" and (self.far(x.name) or self.far(y.name)):
            yield "input or output outside shared memory"

    def _LayerNormInt(self, node, x, y):
        width = 2 if self.platform == "venus" else 1
        factor = self.graph.tensors[node.inputs[1]]
        if factor.bytes != width:
            yield f"its factor must have {8 * width} bits"
        if self.platform == "venus" and factor.elements < 4:
            yield f"rows of {factor.elements}: two rows of scratch overlap below 4"
        if self.platform != "venus" and len(x.shape) == 2:
            yield "rank 2: it takes the rank for the count of rows"

    def _BatchNorm2dInt(self, node, x, y):
        if self.platform != "venus" and (self.far(x.name) or self.far(y.name)):
            yield "input or output outside shared memory"

    # ---- joins and moves ---------------------------------------------------------------------------------------------

    def _iqCat(self, node, x, y):
        scales = {node.get(f"scale_x_{i}") for i in range(len(node.inputs))} | {node.get("scale_o")}
        if self.platform == "venus" and len(scales) > 1 and self.far(y.name):
            yield "differing scales and the output outside shared memory"

    def _Slice(self, node, x, y):
        axes = [self.graph.const(name) for name in node.inputs[1:]]
        if any(a is not None and a.size > 1 for a in axes):
            yield "several axes"
        if len(axes) > 3 and any(axes[3].reshape(-1) != 1):
            yield "a step above 1"
        if self.platform == "arcs" and self.far(y.name):
            yield "its output outside shared memory"

    def across(self, node, x, y):
        if self.place(x.name) != self.place(y.name):
            yield "from one place to another"

    _Squeeze = _Unsqueeze = across

    def _Transpose(self, node, x, y):
        perm, large = tuple(node.attrs["perm"]), x.elements * x.bytes > BIG
        far = self.far(x.name) or self.far(y.name)
        if self.platform == "venus" and perm == (0, 1, 3, 2):
            yield "rows and columns exchanged"
        if (
            self.platform == "venus"
            and large
            and perm in ((0, 2, 1), (0, 2, 3, 1), (0, 3, 1, 2), (0, 3, 2, 1))
        ):
            yield "more than 65536 bytes"
        if large and far:
            yield "more than 65536 bytes outside shared memory"
        if self.far(y.name) and not self.far(x.name) and x.size < BIG:
            yield "the output outside shared memory and the input in it: no work area is planned"
        both = self.far(x.name) and self.far(y.name)
        if self.platform == "venusA" and perm in ((0, 2, 1, 3), (0, 3, 2, 1)) and not both:
            yield f"{perm} in shared memory"
