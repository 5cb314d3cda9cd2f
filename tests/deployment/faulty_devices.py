"""Devices with something wrong: what they would compute, worked out in plain Python, and what they
would dump.

A fault replaces one tensor; all behind it is computed from that. The dumps are written here by
themselves, so that a mistake in the package's own writer cannot hide.
"""

import zlib

import numpy as np

from lingeronnx.ir import ir
from lingeronnx.runtime.integer.runner import IntegerRunner
from tests.oracles import conv as naive_conv
from tests.oracles.fixed import sat


class FaultyDevice:
    """A chip with an integer graph; `run` gives every integer tensor, some of them forced."""

    def __init__(self, graph):
        self.graph = graph
        self.makers = {str(value.name): node for node in graph.graph for value in node.outputs}
        self._runner = IntegerRunner(graph)

    def run(self, feeds, force=None):
        found = {
            n: a for n, a, _ in self._runner.run(feeds, None, force or {}) if a.dtype.kind == "i"
        }
        return {
            **found,
            **(force or {}),
        }  # a run yields what was computed, and goes on with what is forced

    def shown(self, arrays):
        """Return what a device dumps: no Quant, no Dequant, a fused Relu without what it is fused
        to.
        """
        found = {}
        for name, array in arrays.items():
            node = self.makers.get(name)
            if node is None or node.op_type == "Quant":
                continue
            readers = [use.node.op_type for use in node.outputs[0].uses()]
            if readers == ["Relu"] and node.op_type in ("Conv2dInt", "LinearInt"):
                continue
            found[name] = array
        return found

    def dump(self, folder, arrays, binary=False):
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in self.shown(arrays).items():
            dims = "".join(f"_{n}" for n in array.shape)
            title = f"{name.replace('/', '_')[:64]}##{dims}"
            if binary:
                (folder / f"{title}.bin").write_bytes(
                    array.astype(array.dtype.newbyteorder("<")).tobytes()
                )
            else:
                (folder / f"{title}.txt").write_text(
                    "".join(f"{int(v)}\n" for v in array.reshape(-1))
                )
        return folder

    def log(self, path, arrays):
        lines = ["boot", "thinker ready"]
        for name, array in self.shown(arrays).items():
            data = array.tobytes()
            words = [
                int.from_bytes(data[a : a + 4], "little")
                for a in (0, len(data) // 2, len(data) - 4)
            ]
            form = "crc32_calc = 0x%08x, data = [0x%08x-0x%08x-0x%08x], name = %s"
            lines.append(form % (zlib.crc32(data), *words, name.replace("/", "_")))
        path.write_text("\n".join(lines) + "\n")
        return path

    # ---- plain arithmetic, no kernel of the simulator ------------------------------------------------------------

    def layer(
        self, arrays, tensor, *, weight=None, bias=None, shift=0, x=None, pads=None, finish=None
    ):
        """Return what the convolution or fully connected layer `tensor` gives with something
        changed, as integers.

        weight, bias : functions of the constants. shift : bits too far to the right. x : the input.
        finish : what makes an output of a sum and a shift; None rounds half up and saturates.
        """
        node = self.makers[tensor]
        given = (
            ir.get_attr(node, "scale_x")
            * ir.get_attr(node, "scale_w")
            / ir.get_attr(node, "scale_o")
        )
        bits = int(np.log2(given)) + shift
        w = ir.const_value(node.inputs[1]).astype(np.int64)
        b = ir.const_value(node.inputs[2]).astype(np.int64) if len(node.inputs) > 2 else None
        w = w if weight is None else weight(w.copy())
        b = b if bias is None else bias(b.copy())
        x = arrays[ir.input_name(node)] if x is None else x
        exact = (1, 0, 64)
        if node.op_type == "LinearInt":
            acc = naive_conv.linear(x, w, b, exact)
        else:
            pads = ir.get_attr(node, "pads") if pads is None else pads
            acc = naive_conv.conv(
                x,
                w,
                b,
                exact,
                ir.get_attr(node, "strides"),
                pads,
                ir.get_attr(node, "dilations"),
                ir.get_attr(node, "group"),
            )
        finish = finish or (lambda a, s: sat((a + (1 << (s - 1))) >> s if s > 0 else a << -s, 8))
        flat = [finish(int(a), bits) for a in acc.reshape(-1)]
        return np.array(flat, np.int64).reshape(acc.shape).astype(np.int8)


def relu(array):
    return np.maximum(array, 0)
