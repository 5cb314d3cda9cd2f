"""Limits of the platforms: every constraint passes on one side and fails on the other, and its rule
can be read.
"""

import functools
from itertools import product

import numpy as np
import pytest
from onnx import helper, shape_inference

from lingeronnx.analysis.check.operators_page import has_limit
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.luna.faults import LunaFault
from lingeronnx.operators.clamp.lowering import Clip
from lingeronnx.operators.lowerings import LOWERING_RULES, format_limit_rule
from lingeronnx.targets import GENERIC, PLATFORMS
from tests.each import check_each

CONSTRAINTS = [
    (op, constraint)
    for op in LOWERING_RULES
    for constraint in dict.fromkeys(c for target in PLATFORMS for c in op.get_limits(target))
]


def node(op_type, *inputs, weights=(), numbers=(), **attributes):
    """Return the first node of a graph of one: inputs and float constants by shape, then lists of
    int64 numbers.
    """
    names = [f"x{i}" for i in range(len(inputs))]
    given = [helper.make_tensor_value_info(n, 1, s) for n, s in zip(names, inputs, strict=True)]
    held = [
        helper.make_tensor(f"w{i}", 1, s, np.zeros(int(np.prod(s)))) for i, s in enumerate(weights)
    ]
    held += [helper.make_tensor(f"n{i}", 7, [len(v)], v) for i, v in enumerate(numbers)]
    op = helper.make_node(op_type, [*names, *(t.name for t in held)], ["y"], **attributes)
    graph = helper.make_graph([op], "g", given, [helper.make_tensor_value_info("y", 1, None)], held)
    opsets = [
        helper.make_opsetid(*opset)
        for opset in (("", 13), (attributes.get("domain", ir.FUNCTION_DOMAIN), 1))
    ]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return ir.from_proto(shape_inference.infer_shapes(model)).graph.node(0)


def conv(source, weight, **attributes):
    return node("Conv", source, weights=[weight], **attributes)


def transposed(source, weight, **attributes):
    return node("ConvTranspose", source, weights=[weight], **attributes)


def norm(*sizes, **attributes):
    return node(
        "LayerNormalization", ["N", *sizes], weights=[sizes, sizes], axis=-len(sizes), **attributes
    )


def layer(kind, letters=""):
    """Return a float layer that is given what the letters name: lengths, h, c."""
    shapes = [["N", 9, 4], [1, 12, 4], [1, 12, 3], [1, 24]]
    shapes += [["N"] if letter == "l" else ["N", 1, 3] for letter in letters]
    given = ["lengths" if letter == "l" else letter for letter in letters]
    return node(kind, *shapes, domain=ir.FUNCTION_DOMAIN, **({"given": given} if given else {}))


def with_cell(source):
    """Return an LSTM whose last cell is read."""
    found = node("LSTM", source, domain=ir.FUNCTION_DOMAIN)
    found.resize_outputs(3)
    ir.make_node("Relu", [found.outputs[2]], name="reader", output="z")
    return found


MAP = ["N", 8, 16, 16]
POOLS = (("AvgPool2dInt", "AveragePool"), ("MaxPool", "MaxPool"))


@functools.cache
def build_cases():
    """Return (operator, constraint) -> nodes within the limit, nodes beyond it with the value that
    the user reads.
    """
    return {
        ("LSTMInt", "check_square_input"): (
            [
                node("LSTM", ["N", 9, 4], domain=ir.FUNCTION_DOMAIN),
                node("LSTMInt", [1, 4, 4], domain="thinker"),
            ],
            [(node("LSTMInt", [1, 9, 4], domain="thinker"), "9 steps of 4 elements")],
        ),
        ("LSTMInt", "check_cell_unread"): (
            [node("LSTM", ["N", 9, 4], domain=ir.FUNCTION_DOMAIN)],
            [(with_cell(["N", 9, 4]), "it is read")],
        ),
        ("LSTMInt", "check_full_sequences"): (
            [layer("LSTM"), layer("LSTM", "hc"), node("LSTMInt", [1, 4, 4], domain="thinker")],
            [
                (layer("LSTM", letters), "sequence_lens is given, and some may be shorter")
                for letters in ("l", "lhc")
            ],
        ),
        ("GRUInt", "check_full_sequences"): (
            [layer("GRU"), layer("GRU", "h")],
            [
                (layer("GRU", letters), "sequence_lens is given, and some may be shorter")
                for letters in ("l", "lh")
            ],
        ),
        ("LSTMInt", "check_zero_initial_state"): (
            [layer("LSTM"), layer("LSTM", "l"), node("LSTMInt", [1, 4, 4], domain="thinker")],
            [
                (layer("LSTM", "h"), "initial_h is given"),
                (layer("LSTM", "lc"), "initial_c is given"),
                (layer("LSTM", "hc"), "initial_h and initial_c are given"),
            ],
        ),
        ("GRUInt", "check_zero_initial_state"): (
            [layer("GRU"), layer("GRU", "l")],
            [(layer("GRU", letters), "initial_h is given") for letters in ("h", "lh")],
        ),
        ("GRUInt", "check_gru_support"): (
            [],
            [(node("GRU", ["N", 9, 4], domain=ir.FUNCTION_DOMAIN), LunaFault.GRU_HALVED.text)],
        ),
        ("Conv2dInt", "kernel_side"): (
            [conv(MAP, [4, 8, 5, 5]), conv(MAP, [4, 8, 1, 5])],
            [(conv(MAP, [4, 8, 6, 1]), "6x1"), (conv(MAP, [4, 8, 3, 7]), "3x7")],
        ),
        ("Conv2dInt", "kernel_dilated"): (
            [conv(MAP, [4, 8, 5, 6], dilations=[2, 1])],
            [(conv(["N", 8, 30, 30], [4, 8, 6, 2], dilations=[2, 1]), "6x2")],
        ),
        ("Conv2dInt", "stride_values"): (
            [conv(MAP, [4, 8, 4, 4], strides=[s, t]) for s, t in ((1, 1), (2, 1), (4, 4), (2, 4))],
            [
                (conv(MAP, [4, 8, 5, 5], strides=[3, 1]), "3"),
                (conv(MAP, [4, 8, 5, 5], strides=[1, 5]), "5"),
            ],
        ),
        ("Conv2dInt", "stride_within_kernel"): (
            [conv(MAP, [4, 8, 2, 2], strides=[2, 2])],
            [(conv(MAP, [4, 8, 1, 1], strides=[2, 1]), "stride 2 > kernel 1")],
        ),
        ("Conv2dInt", "pad_side"): (
            [
                conv(MAP, [4, 8, 5, 5], pads=[4, 4, 4, 4]),
                conv(MAP, [4, 8, 3, 3], pads=[3, 0, 0, 3]),
            ],
            [
                (conv(MAP, [4, 8, 5, 5], pads=[0, 5, 0, 0]), "pads [0, 5, 0, 0]"),
                (conv(MAP, [4, 8, 3, 2], pads=[0, 0, 0, 3]), "pads [0, 0, 0, 3]"),
            ],
        ),
        ("Conv2dInt", "dilation_values"): (
            [conv(MAP, [4, 8, 3, 3], dilations=[1, 1])],
            [(conv(MAP, [4, 8, 3, 3], dilations=[1, 2]), "2")],
        ),
        ("Conv2dInt", "depthwise_multiplier"): (
            [
                conv(MAP, [8, 1, 3, 3], group=8),
                conv(MAP, [6, 4, 3, 3], group=2),
                conv(["N", 1, 9, 9], [4, 1, 3, 3]),
            ],
            [(conv(MAP, [16, 1, 3, 3], group=8), "8 inputs, 16 outputs")],
        ),
        ("Conv2dInt", "group_outputs"): (
            [conv(MAP, [8, 1, 3, 3], group=8), conv(MAP, [4, 4, 3, 3], group=2)],
            [(conv(MAP, [2, 4, 3, 3], group=2), "2 groups of 4 channels")],
        ),
        ("Conv2dInt", "grouped_hoisted_padding"): (
            [
                conv(MAP, [8, 1, 3, 3], group=8),
                conv(MAP, [6, 4, 3, 3], group=2),
                conv(MAP, [8, 2, 1, 1], group=4),
            ],
            [
                (conv(MAP, [8, 2, 3, 3], group=4), "4 groups of 2 channels under 3x3"),
                (conv(["N", 8, 2, 9], [6, 4, 1, 3], group=2), "2 groups of 4 channels under 1x3"),
            ],
        ),
        # 2*ceil(C/2) * roundup(W, 8*stride) * kernel <= 65536, 32768 for depthwise, in the better
        # of both directions
        ("Conv2dInt", "conv_line_buffer"): (
            [
                conv(["N", 128, 64, 512], [4, 128, 1, 1]),
                conv(["N", 128, 32, 4096], [4, 128, 3, 3]),
                conv(["N", 8, 1000, 1024], [8, 1, 4, 4], group=8),
            ],
            [
                (conv(["N", 128, 513, 513], [4, 128, 1, 1]), "66560 bytes"),
                (conv(["N", 63, 520, 520], [4, 63, 2, 2], strides=[2, 2]), "67584 bytes"),
                (conv(["N", 8, 1025, 1025], [8, 1, 4, 4], group=8), "33024 bytes"),
            ],
        ),
        # the same with 8*ceil(C/8) channels
        ("Conv2dInt", "conv_line_buffer_inner"): (
            [conv(["N", 64, 512, 512], [4, 64, 2, 2])],
            [(conv(["N", 60, 540, 540], [4, 60, 2, 2]), "69632 bytes")],
        ),
        ("Conv2dInt", "conv_line_buffer_swapped"): (
            [
                conv(["N", 8, 8, 1000], [4, 8, 3, 3]),
                conv(["N", 8, 8, 300], [4, 8, 3, 3], strides=[2, 2]),
            ],
            [(conv(["N", 8, 8, 1000], [4, 8, 3, 3], strides=[2, 2]), "24192 bytes")],
        ),
        ("Conv2dInt", "weight_slice_bytes"): (
            [conv(["N", 648, 5, 5], [4, 648, 5, 5])],
            [(conv(["N", 656, 5, 5], [4, 656, 5, 5]), "32800 bytes")],
        ),
        ("Conv2dInt", "weight_slice_count"): (
            [conv(["N", 256, 8, 8], [86, 256, 3, 3])],
            [(conv(["N", 256, 8, 8], [87, 256, 3, 3]), "44 slices")],
        ),
        ("Conv2dInt", "depthwise_weights"): (
            [conv(["N", 320, 5, 5], [320, 1, 5, 5], group=320)],
            [(conv(["N", 328, 5, 5], [328, 1, 5, 5], group=328), "8200 bytes")],
        ),
        ("Conv2dInt", "input_smaller_than_kernel"): (
            [
                conv(["N", 8, 2, 2], [4, 8, 3, 3], pads=[1] * 4),
                conv(["N", 8, 9, 5], [4, 8, 1, 5], pads=[0, 2, 0, 2]),
            ],
            [
                (
                    conv(["N", 8, 9, 2], [4, 8, 1, 5], pads=[0, 2, 0, 2]),
                    "9x2 under 1x5, pads [0, 2, 0, 2]",
                ),
                (
                    conv(["N", 8, 2, 9], [4, 8, 5, 1], pads=[2, 0, 2, 0]),
                    "2x9 under 5x1, pads [2, 0, 2, 0]",
                ),
            ],
        ),
        ("Conv1dInt", "kernel_length_1d"): (
            [conv(["N", 4, 20], [4, 4, 5])],
            [(conv(["N", 4, 20], [4, 4, 6]), "6")],
        ),
        ("Conv1dInt", "stride_values"): (
            [conv(["N", 4, 20], [4, 4, 5], strides=[4])],
            [(conv(["N", 4, 20], [4, 4, 5], strides=[3]), "3")],
        ),
        ("Conv1dInt", "stride_within_kernel"): (
            [conv(["N", 4, 20], [4, 4, 2], strides=[2])],
            [(conv(["N", 4, 20], [4, 4, 1], strides=[2]), "stride 2 > kernel 1")],
        ),
        ("Conv1dInt", "pad_side"): (
            [conv(["N", 4, 20], [4, 4, 3], pads=[3, 0])],
            [(conv(["N", 4, 20], [4, 4, 3], pads=[0, 4]), "pads [0, 0, 0, 4]")],
        ),
        ("Conv1dInt", "dilation_1d"): (
            [conv(["N", 4, 20], [4, 4, 3])],
            [(conv(["N", 4, 20], [4, 4, 3], dilations=[2]), "2")],
        ),
        ("Conv1dInt", "group_count_1d"): (
            [conv(["N", 4, 20], [4, 4, 3])],
            [(conv(["N", 4, 20], [4, 1, 3], strides=[3], group=4), "4 groups")],
        ),
        ("Conv1dInt", "depthwise_1d"): (
            [conv(["N", 4, 20], [4, 4, 3]), conv(["N", 4, 20], [4, 2, 3], group=2)],
            [(conv(["N", 4, 20], [4, 1, 3], strides=[3], group=4), "4 groups of one output")],
        ),
        ("Conv1dInt", "depthwise_multiplier"): (
            [conv(["N", 4, 20], [4, 1, 3], group=4)],
            [(conv(["N", 4, 20], [8, 1, 3], group=4), "4 inputs, 8 outputs")],
        ),
        ("ConvTranspose2dInt", "kernel_side"): (
            [transposed(MAP, [8, 4, 5, 5])],
            [(transposed(MAP, [8, 4, 6, 1]), "6x1")],
        ),
        ("ConvTranspose2dInt", "kernel_dilated"): (
            [transposed(MAP, [8, 4, 5, 1])],
            [(transposed(MAP, [8, 4, 6, 1], dilations=[2, 1]), "6x1")],
        ),
        ("ConvTranspose2dInt", "stride_values"): (
            [transposed(MAP, [8, 4, 4, 4], strides=[4, 2])],
            [(transposed(MAP, [8, 4, 4, 4], strides=[3, 1]), "3")],
        ),
        ("ConvTranspose2dInt", "stride_within_kernel"): (
            [transposed(MAP, [8, 4, 2, 2], strides=[2, 2])],
            [(transposed(MAP, [8, 4, 1, 2], strides=[2, 2]), "stride 2 > kernel 1")],
        ),
        ("ConvTranspose2dInt", "pad_side"): (
            [transposed(MAP, [8, 4, 3, 3], pads=[3, 0, 0, 1])],
            [(transposed(MAP, [8, 4, 3, 3], pads=[4, 0, 0, 1]), "pads [4, 0, 0, 1]")],
        ),
        ("ConvTranspose2dInt", "transposed_dilation"): (
            [transposed(MAP, [8, 4, 3, 3])],
            [(transposed(MAP, [8, 4, 3, 3], dilations=[1, 2]), "dilations [1, 2]")],
        ),
        ("ConvTranspose2dInt", "transposed_group_count"): (
            [transposed(MAP, [8, 4, 3, 3])],
            [(transposed(MAP, [8, 4, 3, 3], group=2), "2 groups")],
        ),
        ("ConvTranspose2dInt", "input_output_bytes"): (
            [transposed(["N", 64, 64, 64], [64, 64, 1, 1])],
            [(transposed(["N", 80, 64, 64], [80, 81, 1, 1]), "659456 bytes")],
        ),
        ("LinearInt", "linear_rank"): (
            [
                node("LinearInt", [1, 3, 4], weights=[[5, 4]], domain="thinker"),
                node("LinearInt", [1, 4], weights=[[5, 4]], domain="thinker"),
            ],
            [(node("LinearInt", [1, 2, 3, 4], weights=[[5, 4]], domain="thinker"), "4 axes")],
        ),
        ("BmmInt", "check_matrix_rank"): (
            [
                node("MatMul", ["N", 3, 4], ["N", 4, 5]),
                node("MatMul", ["N", 2, 3, 4], ["N", 2, 4, 5]),
            ],
            [
                (node("MatMul", ["N", 2, 3, 4], ["N", 1, 4, 5]), "4 and 4 axes"),
                (node("MatMul", ["N", 2, 2, 3, 4], ["N", 2, 2, 4, 5]), "5 and 5 axes"),
            ],
        ),
        ("iqSub", "check_equal_shapes"): (
            [node("Sub", MAP, MAP)],
            [(node("Sub", MAP, ["N", 8, 1, 1]), "[N,8,16,16] and [N,8,1,1]")],
        ),
        ("iqAdd", "check_equal_shapes"): (
            [node("Add", MAP, MAP), node("Add", ["N", 5], ["N", 5])],
            [
                (node("Add", MAP, ["N", 8, 1, 1]), "[N,8,16,16] and [N,8,1,1]"),
                (node("Add", ["N", 4, 5], [1, 5]), "[N,4,5] and [1,5]"),
            ],
        ),
        ("iqCat", "check_computed_inputs"): (
            [node("Concat", MAP, MAP, axis=1)],
            [(node("Concat", MAP, weights=[[1, 8, 16, 16]], axis=1), "a constant")],
        ),
        ("iqMul", "check_mul_shapes"): (
            [
                node("Mul", MAP, MAP),
                node("Mul", MAP, ["N", 8, 1, 1]),
                node("Mul", ["N", 8, 1, 1], MAP),
            ],
            [
                (node("Mul", MAP, ["N", 1, 16, 16]), "[N,8,16,16] and [N,1,16,16]"),
                (node("Mul", MAP, ["N", 1, 1, 1]), "[N,8,16,16] and [N,1,1,1]"),
            ],
        ),
        **{
            (op, "window_axes"): (
                [node(kind, MAP, kernel_shape=[2, 2]), node(kind, ["N", 8, 16], kernel_shape=[2])],
                [
                    (
                        node(kind, ["N", 8, 16], kernel_shape=[2, 2]),
                        "a 2-D window, an input of rank 3",
                    ),
                    (
                        node(kind, ["N", 8, 4, 4, 4], kernel_shape=[2, 2, 2]),
                        "a 3-D window, an input of rank 5",
                    ),
                ],
            )
            for op, kind in POOLS
        },
        **{
            (op, "pool_strides"): (
                [node(kind, MAP, kernel_shape=[2, 2], strides=[2, 1])],
                [(node(kind, MAP, kernel_shape=[2, 2], strides=[3, 1]), "stride 3 > kernel 2")],
            )
            for op, kind in POOLS
        },
        ("AvgPool2dInt", "pool_pads"): (
            [node("AveragePool", MAP, kernel_shape=[5, 5], pads=[5, 0, 0, 0])],
            [
                (
                    node("AveragePool", MAP, kernel_shape=[2, 2], pads=[3, 0, 0, 0]),
                    "pads [3, 0, 0, 0]",
                )
            ],
        ),
        ("MaxPool", "pool_pads"): (
            [node("MaxPool", MAP, kernel_shape=[5, 5], pads=[4, 0, 0, 4])],
            [(node("MaxPool", MAP, kernel_shape=[5, 5], pads=[0, 5, 0, 0]), "pads [0, 5, 0, 0]")],
        ),
        **{
            (op, "pool_line_buffer"): (
                [
                    node(kind, ["N", 64, 512, 512], kernel_shape=[2, 2]),
                    node(kind, ["N", 64, 600, 600], kernel_shape=[8, 8]),
                ],
                [(node(kind, ["N", 66, 512, 512], kernel_shape=[2, 2]), "67584 bytes")],
            )
            for op, kind in POOLS
        },
        **{
            (op, "pool_line_buffer_unchecked"): (
                [node(kind, ["N", 32, 64, 64], kernel_shape=[6, 6])],
                [(node(kind, ["N", 64, 64, 64], kernel_shape=[6, 6]), "24576 bytes")],
            )
            for op, kind in POOLS
        },
        **{
            (op, "pool_line_buffer_swapped"): (
                [
                    node(kind, ["N", 8, 8, 1000], kernel_shape=[3, 3]),
                    node(kind, ["N", 8, 8, 300], kernel_shape=[2, 2], strides=[2, 2]),
                ],
                [
                    (
                        node(kind, ["N", 8, 8, 1000], kernel_shape=[3, 3], strides=[2, 2]),
                        "24192 bytes",
                    )
                ],
            )
            for op, kind in POOLS
        },
        ("AvgPool2dInt", "pool_line_buffer_average"): (
            [node("AveragePool", ["N", 64, 512, 512], kernel_shape=[2, 2])],
            [(node("AveragePool", ["N", 60, 540, 540], kernel_shape=[2, 2]), "69632 bytes")],
        ),
        ("MaxPool", "pool_line_buffer_max"): (
            [node("MaxPool", ["N", 64, 512, 512], kernel_shape=[2, 2])],
            [(node("MaxPool", ["N", 60, 540, 540], kernel_shape=[2, 2]), "69632 bytes")],
        ),
        ("AvgPool2dInt", "average_pool_input_bytes"): (
            [node("AveragePool", ["N", 5, 90, 88], kernel_shape=[2, 2])],
            [(node("AveragePool", ["N", 5, 96, 96], kernel_shape=[2, 2]), "73728 bytes")],
        ),
        **{
            (op, "odd_kernel_input_bytes"): (
                [
                    node(kind, ["N", 5, 90, 88], kernel_shape=[3, 3]),
                    node(kind, ["N", 5, 96, 96], kernel_shape=[2, 2], strides=[2, 2]),
                ],
                [(node(kind, ["N", 5, 96, 96], kernel_shape=[3, 2]), "73728 bytes")],
            )
            for op, kind in POOLS
        },
        ("AvgPool2dInt", "uneven_average_input_bytes"): (
            [
                node("AveragePool", ["N", 5, 90, 88], kernel_shape=[2, 6]),
                node("AveragePool", ["N", 5, 96, 96], kernel_shape=[2, 4]),
            ],
            [(node("AveragePool", ["N", 5, 96, 96], kernel_shape=[2, 6]), "73728 bytes")],
        ),
        ("MaxPool", "overlapping_max_input_bytes"): (
            [
                node("MaxPool", ["N", 5, 90, 88], kernel_shape=[2, 2]),
                node("MaxPool", ["N", 5, 96, 96], kernel_shape=[2, 2], strides=[2, 2]),
            ],
            [(node("MaxPool", ["N", 5, 96, 96], kernel_shape=[2, 2]), "73728 bytes")],
        ),
        **{
            (op, "pool_ceil_mode"): (
                [node(kind, MAP, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)],
                [
                    (
                        node(kind, MAP, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
                        "ceil_mode 1",
                    )
                ],
            )
            for op, kind in POOLS
        },
        ("AvgPool2dInt", "average_area"): (
            [
                node("AveragePool", MAP, kernel_shape=[8, 8]),
                node("AveragePool", ["N", 2, 1, 127], kernel_shape=[1, 127]),
            ],
            [(node("AveragePool", MAP, kernel_shape=[16, 8]), "128 elements")],
        ),
        ("AvgPool2dInt", "check_global_average"): (
            [
                node("AveragePool", ["N", c, h, w], kernel_shape=[h, w])
                for c, h, w in (
                    (16, 3, 3),
                    (64, 10, 16),
                    (64, 8, 8),
                    (12, 7, 7),
                    (4, 1, 2),
                    (24, 10, 16),
                )
            ]
            + [node("AveragePool", MAP, kernel_shape=[8, 8])],
            [
                (
                    node("AveragePool", ["N", 2, 1, 32771], kernel_shape=[1, 32771]),
                    "1x32771 of 2 channels",
                ),
                (
                    node("AveragePool", ["N", 8, 6, 6], kernel_shape=[8, 8], pads=[1] * 4),
                    "8x8 of 8 channels, padded",
                ),
            ],
        ),
        ("MaxPool", "max_pool_side"): (
            [node("MaxPool", MAP, kernel_shape=[5, 5]), node("MaxPool", MAP, kernel_shape=[16, 1])],
            [
                (node("MaxPool", MAP, kernel_shape=[1, 6]), "1x6"),
                (node("MaxPool", MAP, kernel_shape=[7, 2]), "7x2"),
            ],
        ),
        ("Transpose", "check_transpose_rank"): (
            [node("Transpose", MAP, perm=[0, 2, 3, 1])],
            [(node("Transpose", ["N", 2, 3, 4, 5], perm=[0, 2, 1, 3, 4]), "5 axes")],
        ),
        ("Slice", "check_slice_step"): (
            [
                node("Slice", MAP, numbers=[[1], [3], [1]]),
                node("Slice", MAP, numbers=[[1], [3], [1], [1]]),
            ],
            [(node("Slice", MAP, numbers=[[0, 0], [3, 8], [1, 2], [1, 2]]), "step 2")],
        ),
        ("SoftmaxInt", "check_row_length"): (
            [node("Softmax", ["N", 2048], axis=-1), node("Softmax", ["N", 4, 3000], axis=1)],
            [(node("Softmax", ["N", 2, 2049], axis=2), "2049 elements")],
        ),
        ("LogSoftmaxInt", "check_row_length"): (
            [node("LogSoftmax", ["N", 2048], axis=-1)],
            [(node("LogSoftmax", ["N", 2049], axis=-1), "2049 elements")],
        ),
        ("LayerNormInt", "check_row_length"): (
            [norm(361)],
            [(norm(362), "362 elements"), (norm(2, 181), "362 elements")],
        ),
        ("LayerNormInt", "check_epsilon"): (
            [norm(8, epsilon=1e-5)],
            [(norm(8, epsilon=1e-3), "0.001")],
        ),
        ("LayerNormInt", "check_axis_count"): ([norm(8), norm(3, 4)], [(norm(2, 3, 4), "3 axes")]),
        ("iqSigmoid", "check_glu_axis"): (
            [node("Sigmoid", ["N", 128]), node("Sigmoid", ["N", 300, 5])],
            [(node("Sigmoid", ["N", 129]), "[N,129]"), (node("Sigmoid", MAP), "[N,8,16,16]")],
        ),
        ("SiLU, GELU (composed)", "check_glu_axis"): (
            [node("Gelu", ["N", 128])],
            [(node("Gelu", ["N", 2, 129]), "[N,2,129]")],
        ),
        ("iqPad", "check_pad_form"): (
            [
                node("Pad", MAP, numbers=[[0, 0, 1, 1, 0, 0, 1, 1]]),
                node("Pad", ["N", 3, 4], numbers=[[0, 0, 1, 0, 0, 1]]),
            ],
            [
                (node("Pad", MAP, numbers=[[0, 0, 1, 1, 0, 0, 1, 1]], mode="edge"), "edge, 4 axes"),
                (
                    node("Pad", ["N", 3, 4], numbers=[[0, 0, 1, 0, 0, 1]], mode="edge"),
                    "edge, 3 axes",
                ),
            ],
        ),
    }


#: Constraints that venus has no need of, by a row that has.
ELSEWHERE = {
    "check_global_average": ARCS,
    "check_glu_axis": VENUSA,
    "conv_line_buffer_swapped": ARCS,
    "depthwise_weights": ARCS,
    "weight_slice_count": ARCS,
    "group_count_1d": ARCS,
    "pool_line_buffer_unchecked": ARCS,
    "pool_line_buffer_swapped": ARCS,
    "average_pool_input_bytes": VENUSA,
    "odd_kernel_input_bytes": ARCS,
    "uneven_average_input_bytes": ARCS,
    "overlapping_max_input_bytes": ARCS,
}


def test_no_constraint_is_forgotten():
    """The table above names every constraint of every operator, and nothing else."""
    assert {
        (op.name, constraint.__name__) for op, constraint in CONSTRAINTS
    } == build_cases().keys()


def test_constraint():
    """Within the limit there is no violation of it; beyond it there is one, with rule, value and
    remedy.
    """

    def check(op, constraint):
        within, beyond = build_cases()[op.name, constraint.__name__]
        row = ELSEWHERE.get(constraint.__name__, VENUS)
        for good in within:
            assert constraint(good, row) is None
        for bad, value in beyond:
            assert str(constraint(bad, row)) == value
            rule, remedy = format_limit_rule(constraint, row)
            (found,) = [v for v in op.find_violations(bad, row) if v.rule == rule]
            assert (found.value, found.tensor, found.remedy) == (value, "y", remedy)
            assert str(found) == f"{bad.op_type} {bad.name} -> y: {rule}; here {value}; {remedy}"
            assert (
                constraint not in op.get_limits(GENERIC) or constraint(bad, GENERIC) is None
            )  # a platform without limits

    check_each(check, CONSTRAINTS)


def violated(op_type, where, row):
    """Return the rules that `where` breaks, up to the number in them."""
    return [
        v.rule
        for v in next(op for op in LOWERING_RULES if op.name == op_type).find_violations(where, row)
    ]


def test_dilated_kernels_may_be_longer():
    """arcs and venusA take kernels up to 12 along an axis that is dilated."""
    long = conv(["N", 8, 60, 60], [4, 8, 12, 5], dilations=[2, 1])
    assert violated("Conv2dInt", long, ARCS) == violated("Conv2dInt", long, VENUSA) == []
    assert (
        len(violated("Conv2dInt", conv(["N", 8, 60, 60], [4, 8, 13, 5], dilations=[2, 1]), ARCS))
        == 1
    )
    assert (
        len(violated("Conv2dInt", conv(["N", 8, 60, 60], [4, 8, 12, 5], dilations=[1, 2]), ARCS))
        == 1
    )


def test_a_share_of_the_weights_is_smaller_on_arcs():
    """512 channels under 3x3 are refused there, whatever the padding."""
    large, small = (
        conv(["N", channels, 7, 7], [4, channels, 3, 3], pads=[1] * 4) for channels in (512, 448)
    )
    assert len(violated("Conv2dInt", large, ARCS)) == 1
    assert violated("Conv2dInt", small, ARCS) == violated("Conv2dInt", large, VENUS) == []


@pytest.mark.parametrize(
    "kernel, dilation, fits",
    ((5, 1, (1, 1, 1)), (9, 1, (0, 1, 0)), (3, 4, (0, 1, 1)), (9, 2, (0, 1, 1))),
)
def test_a_line_may_be_convolved_as_an_image(kernel, dilation, fits):
    """What the chip's Conv1dInt cannot take, or the chip has none, may fit Conv2dInt."""
    line = conv(["N", 4, 60], [4, 4, kernel], dilations=[dilation])
    for row, good in zip((VENUS, ARCS, VENUSA), fits, strict=True):
        assert (not violated("Conv1dInt", line, row)) == bool(good)


def test_unknown_sizes_break_no_limit():
    """What depends on a size that is not known is not held against the node."""
    unknown = conv(["N", 4000, "H", "W"], [4, 4000, 1, 1])
    assert (
        next(op for op in LOWERING_RULES if op.name == "Conv2dInt").find_violations(unknown, VENUS)
        == []
    )


def test_rules_can_be_read():
    """The docstring is the rule the user reads, filled in from the row, with a remedy."""

    def check(op, constraint, target):
        if not target.can_run(op.name) or target.ops[op.name].limits is None:
            return  # the rule is none of this row's
        rule, remedy = format_limit_rule(constraint, target)
        assert rule
        assert remedy
        if not has_limit(constraint, target):
            return
        for text in (rule, remedy):
            assert not set("{}|\n") & set(text)
            assert "None" not in text
            assert not text.endswith(".")

    chips = [target for target in PLATFORMS if target.has_packer]
    check_each(check, [(*limit, chip) for limit, chip in product(CONSTRAINTS, chips)])


def test_rules_quote_the_row():
    """The numbers are the row's."""
    texts = {
        constraint.__name__: format_limit_rule(constraint, VENUS)[0]
        for _, constraint in CONSTRAINTS
        if has_limit(constraint, VENUS)
    }
    assert "must not exceed 5" in texts["kernel_side"]
    assert "(1, 2, 4)" in texts["stride_values"]
    assert "65536" in texts["conv_line_buffer"]
    assert "32768" in texts["conv_line_buffer"]
    assert "127" in texts["average_area"]


@pytest.mark.parametrize(
    "low, high, fits", ((0, 6, True), (0, 1, True), (-1, 1, False), (0, None, False), (1, 6, False))
)
def test_clip(low, high, fits):
    """A chip without Clip takes Clip(0, b) only; generic takes any."""
    attributes = {"min": float(low)} | ({} if high is None else {"max": float(high)})
    clip = node("Clip", MAP, **attributes)
    found = Clip().find_violations(clip, VENUS)
    assert bool(found) != fits
    assert all("has no Clip" in v.rule for v in found)
    assert Clip().find_violations(clip, GENERIC) == []
