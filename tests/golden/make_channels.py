"""Make the vectors of layers with a scale for each channel: `python -m tests.golden.make_channels`.

The platform `generic` is defined by this project (docs/reference/generic.md), so nothing is
measured: the integers are computed from that page by rational numbers (`tests/oracles`), which
share no code with the simulator.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from lingeronnx.operators._reference_arithmetic import fixed_point_multiplier
from tests.oracles import conv as naive
from tests.oracles.fixed import rescale

FOLDER = Path(__file__).parent / "channels"
WHOLE = (1 << 30, 30, 62)  # leaves every accumulator as it is

#: name -> (operator, shape of x, shape of the weight, bits of x, w and o, group, strides, pads)
CASES = {
    "conv2d": ("Conv2dInt", (2, 3, 6, 5), (7, 3, 3, 3), (8, 8, 8), 1, (2, 1), (1, 0, 1, 2)),
    "conv2d_w4": ("Conv2dInt", (2, 4, 5, 5), (18, 4, 3, 3), (8, 4, 8), 1, (1, 1), (1, 1, 1, 1)),
    "conv2d_16": ("Conv2dInt", (1, 3, 4, 4), (4, 3, 3, 3), (16, 16, 16), 1, (1, 1), (0, 0, 0, 0)),
    "depthwise": ("Conv2dInt", (1, 9, 5, 6), (9, 1, 3, 3), (8, 8, 8), 9, (1, 2), (1, 1, 1, 1)),
    "grouped": ("Conv2dInt", (1, 6, 5, 5), (8, 3, 3, 2), (8, 8, 8), 2, (1, 1), (1, 1, 1, 0)),
    "conv1d": ("Conv1dInt", (2, 4, 11), (6, 2, 3), (8, 8, 8), 2, (2,), (1, 0)),
    "transposed": (
        "ConvTranspose2dInt",
        (1, 4, 4, 3),
        (4, 5, 3, 3),
        (8, 8, 8),
        1,
        (2, 2),
        (1, 1, 1, 0),
    ),
    "transposed_grouped": (
        "ConvTranspose2dInt",
        (1, 4, 3, 3),
        (4, 3, 2, 3),
        (8, 8, 8),
        2,
        (2, 1),
        (0, 0, 0, 1),
    ),
    "linear": ("LinearInt", (3, 9), (6, 9), (8, 8, 8), 1, (), ()),
    "linear_w16": ("LinearInt", (2, 4, 9), (5, 9), (8, 16, 8), 1, (), ()),
}


def drawn(rng, shape, bits):
    """Return integers of `bits` bits, both ends among them, in the type that holds them."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    values = rng.integers(low, high, shape, endpoint=True)
    values.reshape(-1)[:2] = low, high
    return values.astype(np.int8 if bits <= 8 else np.int16)


def summed(kind, x, weight, bias, group, strides, pads):
    """Return the exact accumulators as Python's integers."""
    if kind == "LinearInt":
        return naive.linear(x, weight, bias, WHOLE)
    if kind == "Conv1dInt":
        return naive.conv1d(x, weight, bias, WHOLE, strides[0], pads, 1, group)
    if kind == "Conv2dInt":
        return naive.conv(x, weight, bias, WHOLE, strides, pads, (1, 1), group)
    return naive.conv_transpose(x, weight, bias, WHOLE, strides, pads, (1, 1), (0, 0), group)


def make(name, kind, shape, weights, bits, group, strides, pads):
    """Write the graph and the integers of one case."""
    rng = np.random.default_rng(sum(map(ord, name)))
    x, weight = drawn(rng, shape, bits[0]), drawn(rng, weights, bits[1])
    own = (
        weights[1] if kind.startswith("ConvT") else weights[0]
    )  # scales; groups of a transposed one share them
    outputs = own * group if kind.startswith("ConvT") else own
    wide = max(bits[:2]) > 8
    bias = rng.integers(-(2**15), 2**15, outputs).astype(np.int64 if wide else np.int32)
    scale_w = np.float32(2.0 ** rng.uniform(2, 9, own))
    if own > 2:
        scale_w[:2] = 64, 2.0**40  # a power of two; a channel whose sums are worth next to nothing
    acc = summed(kind, x, weight, bias, group, strides, pads)
    axis = acc.ndim - 1 if kind == "LinearInt" else 1
    scale_x, reach = np.float32(3.7), np.abs(acc.astype(np.float64)).max()
    scale_o = np.float32(
        1.4 * 2.0 ** (bits[2] - 1) / reach * float(scale_x) * float(np.median(scale_w))
    )
    y = np.empty(acc.shape, np.int16 if bits[2] > 8 else np.int8)
    for place in np.ndindex(*acc.shape):
        ratio = float(scale_o) / (float(scale_x) * float(scale_w[place[axis] % own]))
        y[place] = rescale(acc[place], (*fixed_point_multiplier(ratio), bits[2]))
    attrs = {
        "data_bits": bits[0],
        "parameter_bits": bits[1],
        "o_bits": bits[2],
        "scale_x": float(scale_x),
        "scale_w": [float(s) for s in scale_w],
        "scale_o": float(scale_o),
    }
    if kind != "LinearInt":
        rank = len(strides)
        attrs |= {
            "kernel_shape": list(weights[2:]),
            "strides": list(strides),
            "pads": list(pads),
            "group": group,
            "dilations": [1] * rank,
        }
    nodes = [
        helper.make_node(
            "Quant",
            ["x"],
            ["x_q"],
            "quant",
            domain="thinker",
            data_bits=bits[0],
            scale_x=float(scale_x),
        ),
        helper.make_node(kind, ["x_q", "w", "b"], ["y_q"], "layer", domain="thinker", **attrs),
        helper.make_node(
            "Dequant", ["y_q"], ["y"], "dequant", domain="thinker", scale_o=float(scale_o)
        ),
    ]
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", 1, ["N", *shape[1:]])],
        [helper.make_tensor_value_info("y", 1, ["N", *y.shape[1:]])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    opsets = [helper.make_opsetid("", 12), helper.make_opsetid("thinker", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=6, producer_name="")
    helper.set_model_props(model, {"lingeronnx.platform": "generic"})
    onnx.save(model, FOLDER / f"{name}.onnx")
    np.savez_compressed(FOLDER / f"{name}.npz", x=x, y=y)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, case in CASES.items():
        make(name, *case)
