"""Multiply-accumulates: counted by shapes wherever products are summed, and told where nobody knows
how many.
"""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import lingeronnx as lo
from lingeronnx.cli import main
from lingeronnx.ir import ir
from lingeronnx.operators.macs import count_macs, count_macs_if_known
from tests import nets
from tests.case_selection import limit_examples
from tests.each import check_each

RNG = np.random.default_rng(0)


def node(text, opset=17, **constants):
    """Return the last node of a graph in ONNX's text, its constants filled in and its shapes as
    they stand there.
    """
    head = (
        f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1, "ai.onnx.ml": 3, '
        '"mine": 1]>'
    )
    model = onnx.parser.parse_model(f"{head} g {text}")
    for name, shape in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    graph = ir.from_proto(model)
    return list(graph.graph)[-1]


#: Node -> the products of one sample.
COUNTS = {
    "Conv": (
        "(float[N,4,8,8] x) => (float[N,6,8,8] y) { y = Conv<pads=[1,1,1,1]>(x, w) }",
        {"w": (6, 4, 3, 3)},
        6 * 8 * 8 * 4 * 9,
    ),
    "a Conv of volumes": (
        "(float[N,4,5,5,5] x) => (float[N,2,3,3,3] y) { y = Conv(x, w) }",
        {"w": (2, 4, 3, 3, 3)},
        2 * 27 * 4 * 27,
    ),
    "a Conv with a computed weight": (
        "(float[N,4,8,8] x, float[6,4,3,3] w) => (float[N,6,6,6] y) { y = Conv(x, w) }",
        {},
        6 * 36 * 4 * 9,
    ),
    "ConvInteger": (
        "(int8[N,4,8,8] x, int8[6,4,3,3] w) => (int32[N,6,6,6] y) { y = ConvInteger(x, w) }",
        {},
        6 * 36 * 4 * 9,
    ),
    "ConvTranspose": (
        "(float[N,4,8,8] x) => (float[N,6,16,16] y) { y = ConvTranspose<strides=[2,2]>(x, w) }",
        {"w": (4, 6, 2, 2)},
        4 * 64 * 6 * 4,
    ),
    "MatMul": (
        "(float[N,5,4] x) => (float[N,5,3] y) { y = MatMul(x, w) }",
        {"w": (4, 3)},
        5 * 4 * 3,
    ),
    "a Gemm turned": (
        "(float[N,4] x) => (float[N,3] y) { y = Gemm<transB=1>(x, w) }",
        {"w": (3, 4)},
        12,
    ),
    "MatMulInteger": (
        "(int8[N,4] x, int8[4,3] w) => (int32[N,3] y) { y = MatMulInteger(x, w) }",
        {},
        12,
    ),
    "FusedMatMul": (
        (
            "(float[N,2,5,4] x, float[N,2,7,4] z) => (float[N,2,5,7] y) { y = "
            "com.microsoft.FusedMatMul<transB=1>(x, z) }"
        ),
        {},
        2 * 5 * 7 * 4,
    ),
    "FusedMatMul, the left turned": (
        (
            "(float[N,2,4,5] x, float[N,2,4,7] z) => (float[N,2,5,7] y) { y = "
            "com.microsoft.FusedMatMul<transA=1>(x, z) }"
        ),
        {},
        2 * 5 * 7 * 4,
    ),
    "FusedConv": (
        (
            "(float[N,4,8,8] x) => (float[N,6,6,6] y) { y = "
            'com.microsoft.FusedConv<activation="Relu">(x, w) }'
        ),
        {"w": (6, 4, 3, 3)},
        6 * 36 * 4 * 9,
    ),
    "Einsum, a product": (
        (
            '(float[N,2,5,4] x, float[N,2,7,4] z) => (float[N,2,5,7] y) { y = Einsum<equation="bhqd, '
            'bhkd -> bhqk">(x,z) }'
        ),
        {},
        2 * 5 * 7 * 4,
    ),
    "Einsum, a weight": (
        '(float[N,5,4] x) => (float[N,5,2,3] y) { y = Einsum<equation="btd,dhk->bthk">(x, w) }',
        {"w": (4, 2, 3)},
        5 * 4 * 6,
    ),
    "Einsum, a weight in front": (
        '(float[N,5,4] x) => (float[N,5,3] y) { y = Einsum<equation="kd,btd->btk">(w, x) }',
        {"w": (3, 4)},
        5 * 4 * 3,
    ),
    "Einsum of one": (
        '(float[N,5,4] x) => (float[N,4,5] y) { y = Einsum<equation="abc->acb">(x) }',
        {},
        0,
    ),
    "LSTM": (
        "(float[7,N,4] x) => (float[7,1,N,3] y) { y = LSTM<hidden_size=3>(x, w, r) }",
        {"w": (1, 12, 4), "r": (1, 12, 3)},
        7 * 12 * (4 + 3),
    ),
    "RNN": (
        "(float[7,N,4] x) => (float[7,1,N,3] y) { y = RNN<hidden_size=3>(x, w, r) }",
        {"w": (1, 3, 4), "r": (1, 3, 3)},
        7 * 3 * (4 + 3),
    ),
    "attention of the toolkit": (
        """(float[N,5,8] q, float[N,7,8] k, float[N,7,8] v) => (float[N,5,8] y)
        { y = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v) }""",
        {},
        2 * 5 * 7 * 8,
    ),
    "attention with its weights": (
        "(float[N,5,8] x) => (float[N,5,6] y) { y = com.microsoft.Attention<num_heads=2>(x, w) }",
        {"w": (8, 18)},
        5 * 8 * 18 + 2 * 5 * 5 * 6,
    ),
    "a linear model": (
        (
            "(float[N,3] x) => (float[N,1] y) { y = ai.onnx.ml.LinearRegressor<coefficients=[1.0, "
            "2.0, "
            "3.0]>(x) }"
        ),
        {},
        3,
    ),
    "elements": ("(float[N,4] x) => (float[N,4] y) { y = com.microsoft.Gelu(x) }", {}, 0),
    "a sum": ("(float[N,4] x) => (float[N,4] y) { y = Add(x, x) }", {}, 0),
    "a tree": ("(float[N,4] x) => (float[N,4] y) { y = ai.onnx.ml.Scaler<scale=[1.0]>(x) }", {}, 0),
}


def test_counts():
    def check(name):
        text, constants, count = COUNTS[name]
        layer = node(text, **constants)
        assert count_macs_if_known(layer) == count_macs(layer) == count

    check_each(check, COUNTS)


UNKNOWN = {
    "an operator of someone's": "(float[N,4] x) => (float[N,4] y) { y = mine.Thing(x) }",
    "an operator of the toolkit": (
        "(float[N,4] x) => (float[N,4] y) { y = com.microsoft.SparseAttention(x) }"
    ),
    "shapes that are not told": (
        "(float[N,4] x, float w) => (y) { y = com.microsoft.FusedMatMul(x, w) }"
    ),
    "an Einsum with dots": (
        '(float[N,4] x, float[4,3] z) => (float[N,3] y) {y = Einsum<equation="...d,dk->...k">(x,z)}'
    ),
    "keys of the past": """(float[N,5,8] q, float[N,5,8] k, float[N,5,8] v, float[N,2,9,4] p) => (float[N,5,8] y)
    { y = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v, "", "", "", p, p) }""",
    "a transform": "(float[N,16,1] x) => (float[N,16,2] y) { y = DFT(x) }",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown(name):
    found = node(UNKNOWN[name])
    assert count_macs_if_known(found) is None
    assert count_macs(found) == 0


@limit_examples(30)
@given(st.lists(st.integers(1, 6), min_size=4, max_size=4), st.booleans())
def test_an_einsum_is_counted_as_the_product_it_is(sizes, weight):
    heads, rows, inner, columns = sizes
    result = f"=> (float[N,{heads},{rows},{columns}] y)"
    left = f"float[N,{heads},{rows},{inner}] x"
    right = "" if weight else f", float[N,{heads},{inner},{columns}] w"
    held = {"w": (inner, columns)} if weight else {}
    equation = "bhri,ic->bhrc" if weight else "bhri,bhic->bhrc"
    one = node(f'({left}{right}) {result} {{ y = Einsum<equation="{equation}">(x, w) }}', **held)
    two = node(f"({left}{right}) {result} {{ y = MatMul(x, w) }}", **held)
    assert count_macs(one) == count_macs(two) == heads * rows * inner * columns


# ---- in the report ---------------------------------------------------------------------------------------------------


def attention():
    """Return a net with an operator that is counted and left in float, and one that nobody can
    count.
    """
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[N, 8, 4] x) => (float[N, 8, 4] y, float[N, 8] z) {
        a = MatMul(x, w) b = com.microsoft.FusedMatMul<transB=1>(a, a) c = MatMul(b, a) y = MatMul(c, w)
        e = com.microsoft.Inverse(b) z = ReduceSum<keepdims=0>(e, last) }"""
    model = onnx.parser.parse_model(text)
    weight = RNG.standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([2]), "last"))
    return model


def test_the_report_tells_what_is_not_known(tmp_path):
    onnx.save(attention(), tmp_path / "net.onnx")
    x = RNG.standard_normal((12, 8, 4)).astype(np.float32) + np.eye(8, 4, dtype=np.float32) * 5
    np.savez(tmp_path / "x.npz", x=x)
    words = [
        "quantize",
        str(tmp_path / "net.onnx"),
        "--calib",
        str(tmp_path / "x.npz"),
        "--platform",
        "generic",
    ]
    words += ["--effort", "fast"]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.output
    report = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert report["unknown_macs"] == {"Inverse": 1}
    known = {"a": 8 * 4 * 4, "b": 8 * 8 * 4, "c": 8 * 8 * 4, "y": 8 * 4 * 4}
    assert report["integer_macs"] == pytest.approx(1 - known["b"] / sum(known.values()), abs=1e-6)
    assert "% of those known; at least 1 unknown: Inverse" in " ".join(shown.output.split())


def test_a_report_without_unknowns_is_as_it_was():
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }'
    )
    net = ir.from_proto(onnx.parser.parse_model(text))
    report = lo.quantize(
        net,
        {"x": RNG.standard_normal((8, 4)).astype(np.float32)},
        platform="generic",
        effort="fast",
    ).report
    assert report.unknown_macs == {}
    assert report.macs_text == "100.0 %"


@pytest.mark.parametrize(
    "weight", (np.eye(5), np.diag([1.0, 0, 3, 4, 5]), np.tri(5), np.ones((5, 5)), np.eye(5)[:4])
)
def test_factors_that_are_written_as_a_product(weight):
    """A diagonal weight is a factor for each number: what it multiplies by zero is no work."""
    model = nets.Net(3, 5)
    graph = model.graph(
        model.node("MatMul", "x", model.const(weight.T.astype(np.float32)), out="y")
    )
    (layer,) = [each for each in nets.prepared(graph).graph if each.op_type == "Linear"]
    off = np.count_nonzero(weight) - np.count_nonzero(np.diagonal(weight))
    assert count_macs(layer) == 3 * len(weight) * (1 if off == 0 and weight.shape == (5, 5) else 5)
