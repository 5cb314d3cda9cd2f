"""Blocks of a DequantizeLinear: which are read, as what, and which are refused."""

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.interchange.qdq.block_quantization import read_block_qparams
from lingeronnx.ir import ir
from lingeronnx.ir.plan import make_grouped_qparams
from tests import nets

NONE = np.zeros(0, np.float32)


def node(array, op_type="DequantizeLinear", **attributes):
    value = ir.Value(name="w", const_value=ir.tensor(array, name="w"), shape=ir.Shape(array.shape))
    step = ir.Value(name="s")
    return ir.make_node(op_type, [value, step], attributes, output="y", name="n")


@pytest.mark.parametrize("axis", (0, 1, -1))
@pytest.mark.parametrize("kind", (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4))
def test_groups_come_back(axis, kind):
    """Whole ratios become factors, along either axis; the rows' scales that are told count to the
    last bit.
    """
    q = make_grouped_qparams(
        np.float32([100.1, 33.3]), np.array([[255, 7, 1], [9, 2, 4]]), 4, kind.bitwidth
    )
    array, held = np.zeros((2, 10), np.int8), q if axis else q.along(0)
    step = (1 / held.scales).astype(np.float32)
    zero = np.full(step.shape, 128 if kind == ir.DataType.UINT8 else 0)
    found = read_block_qparams(
        node(array if axis else array.T, axis=axis, block_size=4), kind, step, zero, q.factors[0]
    )
    assert np.array_equal(found.along(1).scales, q.scales)
    assert (found.axis, found.bits) == (axis % 2, kind.bitwidth)


def test_other_ratios_stay():
    step = np.float32([[1.0, 1.41421356]])
    found = read_block_qparams(
        node(np.zeros((1, 4), np.int8), block_size=2), ir.DataType.INT8, step, None, NONE
    )
    np.testing.assert_array_equal(found.scales, 1 / step.astype(np.float64))


@pytest.mark.parametrize(
    ("made", "step", "zero"),
    [
        (node(np.zeros((2, 2, 2), np.int8), block_size=2), np.ones((2, 1, 2)), None),
        (node(np.zeros((2, 4), np.int8), block_size=2), np.ones((2, 3)), None),
        (
            node(np.zeros((2, 4), np.int8), block_size=2),
            np.ones((2, 2)),
            np.array([[0, 1], [0, 0]]),
        ),
        (node(np.zeros((2, 4), np.int8), "QuantizeLinear", block_size=2), np.ones((2, 2)), None),
        (node(np.zeros((2, 4), np.int8)), np.ones((2, 2)), None),
    ],
)
def test_what_is_refused(made, step, zero):
    with pytest.raises(
        lo.ModelError,
        match="n: it has one scale per block; this is supported only for a constant matrix",
    ):
        read_block_qparams(made, ir.DataType.INT8, np.float32(step), zero, NONE)


@pytest.mark.parametrize("mode", ("max-value", "q-value"))
@pytest.mark.parametrize("bits", (4, 8))
def test_convolutions_beside_groups_keep_their_channels_and_bits(mode, bits):
    """A graph with groups holds convolutions with a scale per channel: both come back as they
    were.
    """
    net = nets.Net(3, 6, 6)
    hidden = net.node("Flatten", net.node("Relu", net.conv("x", (4, 3, 3, 3))))
    graph = net.graph(net.linear(hidden, (64, 5), out="y"))
    x = {"x": np.random.default_rng(2).standard_normal((16, 3, 6, 6)).astype(np.float32)}
    settings = {
        "platform": "generic",
        "mode": mode,
        "weight_bits": bits,
        "weight_scales": "group:8",
        "effort": "fast",
    }
    made = lo.quantize(graph, x, **settings).graph
    back = lo.convert(lo.convert(made, "qdq").graph, "thinker", platform="generic").graph
    widths = [
        [ir.get_attr(node, "parameter_bits") for node in g.graph if ir.get_attr(node, "scale_w")]
        for g in (made, back)
    ]
    assert widths == [[bits, bits]] * 2
    np.testing.assert_array_equal(
        lo.Session(back).run(None, x)[0], lo.Session(made).run(None, x)[0]
    )
