"""Weights must be finite, other constants may be infinite."""

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo
from lingeronnx.cli import main
from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from tests.passes.helpers import graph

SIX = np.linspace(-1, 1, 6).reshape(2, 3).astype(np.float32)


def make_damaged(*shape, value=np.nan, dtype=np.float32):
    """Array of ones of which the last element is not finite."""
    array = np.ones(shape, dtype)
    array[tuple(size - 1 for size in shape)] = value
    return array


def one(text, **arrays):
    return graph(f"g (float[N,3,4,4] x) => (float y) {{ {text} }}", **arrays)


CONV = "y = Conv(x, w, b)"
B = np.zeros(2, np.float32)
REFUSED = {
    "weight of a convolution": (
        one(CONV, w=make_damaged(2, 3, 1, 1), b=B),
        "constant 'w' of Conv 'Conv_y' must be finite, but is nan at [1, 2, 0, 0] (1 of 6 elements); ",
    ),
    "infinite weight": (
        one(CONV, w=make_damaged(2, 3, 1, 1, value=-np.inf), b=B),
        "constant 'w' of Conv 'Conv_y' must be finite, but is -inf at [1, 2, 0, 0]",
    ),
    "bias": (
        one(CONV, w=np.ones((2, 3, 1, 1), np.float32), b=make_damaged(2)),
        "constant 'b' of Conv 'Conv_y' must not be NaN, but is nan at [1] (1 of 2 elements)",
    ),
    "matrix": (one("y = MatMul(x, w)", w=make_damaged(4, 5)), "constant 'w' of MatMul"),
    "left matrix": (one("y = MatMul(w, x)", w=make_damaged(4, 4, value=np.inf)), "'w' of MatMul"),
    "behind a Transpose": (
        one("t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)", w=make_damaged(5, 4)),
        "constant 'w' of MatMul 'MatMul_y' must be finite, but is nan at [4, 3]",
    ),
    "float16 behind a Cast": (
        one("t = Cast<to = 1>(w) y = MatMul(x, t)", w=make_damaged(4, 5, dtype=np.float16)),
        "constant 'w' of MatMul",
    ),
    "scale of a quantized weight": (
        one(
            "t = DequantizeLinear(q, s) y = MatMul(x, t)",
            q=np.ones((4, 5), np.int8),
            s=np.float32(np.inf),
        ),
        "constant 's' of DequantizeLinear",
    ),
    "variance": (
        one(
            "y = BatchNormalization(x, one, zero, zero, v)",
            one=np.ones(3, np.float32),
            zero=np.zeros(3, np.float32),
            v=make_damaged(3),
        ),
        "constant 'v' of BatchNormalization",
    ),
    "operand": (
        one("y = Add(x, k)", k=make_damaged(3, 1, 1)),
        "'k' of Add 'Add_y' must not be NaN, but is nan at [2, 0, 0]",
    ),
    "slope": (
        one("y = PRelu(x, k)", k=make_damaged(3, 1, 1)),
        "'k' of PRelu 'PRelu_y' must be finite, but is nan at [2, 0, 0]",
    ),
    "infinite slope": (one("y = PRelu(x, k)", k=make_damaged(1, value=np.inf)), "'k' of PRelu"),
    "exponent": (one("y = Pow(x, k)", k=make_damaged(1)), "'k' of Pow 'Pow_y' must not be NaN"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    model, message = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        ir.as_model(ir.to_proto(model))
    assert message in str(caught.value)
    assert str(caught.value).startswith("cannot use the model: ")
    with pytest.raises(ModelError):
        ir.as_owned_model(model)


NEVER = np.float32(-np.inf)
ALLOWED = {
    "added mask": one("y = Add(x, k)", k=make_damaged(4, 4, value=NEVER)),
    "bias that hides a class": one(
        CONV, w=np.ones((2, 3, 1, 1), np.float32), b=make_damaged(2, value=NEVER)
    ),
    "Where": one("c = Less(x, z) y = Where(c, k, x)", z=np.float32(-5), k=NEVER),
    "Clip": one("y = Clip(x, low, high)", low=NEVER, high=np.float32(np.inf)),
    "Max": one("y = Max(x, low)", low=NEVER),
    "Min": one("y = Min(x, high)", high=np.float32(np.inf)),
    "Pad": one("y = Pad(x, p, k)", p=np.array([0, 0, 1, 1, 0, 0, 1, 1]), k=NEVER),
    "Mul": one("y = Mul(x, k)", k=make_damaged(4, 4, value=np.inf)),
    "Equal": one("e = Equal(x, k) y = Where(e, z, x)", k=np.float32(np.nan), z=np.float32(0)),
    "unused": one("y = Relu(x)", k=make_damaged(3)),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name):
    proto = ir.to_proto(ALLOWED[name])
    assert ir.to_bytes(ir.as_model(proto)) == ir.to_bytes(ALLOWED[name])


def test_constant_nodes_defaults_and_bodies():
    """Weights may be Constant nodes, default values of graph inputs, or in the body of an If."""
    base = one("y = MatMul(x, w)", w=np.ones((4, 5), np.float32))
    bad = numpy_helper.from_array(make_damaged(4, 5), "w")
    as_node = ir.to_proto(base)
    del as_node.graph.initializer[:]
    as_node.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=bad))
    as_input = ir.to_proto(base)
    as_input.graph.initializer[0].CopyFrom(bad)
    as_input.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (4, 5)))
    in_body = ir.to_proto(base)
    body = [helper.make_node("MatMul", ["x", "v"], ["z"], name="inner")]
    branch = helper.make_graph(
        body,
        "branch",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(make_damaged(4, 5), "v")],
    )
    condition = numpy_helper.from_array(np.array(True), "c")
    in_body.graph.initializer.append(condition)
    in_body.graph.node.append(
        helper.make_node("If", ["c"], ["u"], then_branch=branch, else_branch=branch)
    )
    for proto, node in ((as_node, "MatMul_y"), (as_input, "MatMul_y"), (in_body, "inner")):
        with pytest.raises(
            ModelError, match=rf"of MatMul '{node}' must be finite, but is nan at \[3, [34]\]"
        ):
            ir.as_model(proto)


@pytest.mark.parametrize(
    "words",
    (
        ("quantize", "{model}", "--calib", "{data}", "-o", "{folder}/q.onnx"),
        ("check", "{model}"),
        ("compare", "{model}", "{model}", "--data", "{data}", "-o", "{folder}/c"),
        ("sensitivity", "{model}", "--calib", "{data}", "-o", "{folder}/s"),
        ("evaluate", "{model}", "--data", "{data}"),
        ("convert", "{model}", "--to", "qdq", "-o", "{folder}/q.onnx"),
        ("simulate", "{model}", "--input", "{data}"),
    ),
    ids=lambda words: words[0],
)
def test_every_command_refuses(words, tmp_path):
    """One line with file, tensor and position, exit code 1, and no file is written."""
    model, data = tmp_path / "m.onnx", tmp_path / "x.npz"
    onnx.save(ir.to_proto(REFUSED["weight of a convolution"][0]), model)
    np.savez(data, x=np.zeros((4, 3, 4, 4), np.float32))
    before = sorted(tmp_path.iterdir())
    call = [word.format(model=model, data=data, folder=tmp_path) for word in words]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 1, result.output
    assert "is nan at [1, 2, 0, 0]" in result.output
    assert sorted(tmp_path.iterdir()) == before


def test_requantize(tmp_path):
    """A quantized file with a scale that is not a number."""
    proto = ir.to_proto(REFUSED["scale of a quantized weight"][0])
    with pytest.raises(ModelError, match="'s' of DequantizeLinear"):
        lo.quantize(proto, {"x": np.zeros((4, 3, 4, 4), np.float32)}, requantize=True)


def test_infinite_mask_still_quantizes():
    """The layer before an infinite mask is quantized."""
    model = one(
        "c = Conv(x, w, b) y = Add(c, k)", w=np.ones((2, 3, 1, 1), np.float32), b=B, k=NEVER
    )
    data = np.random.default_rng(0).standard_normal((4, 3, 4, 4)).astype(np.float32)
    report = lo.quantize(model, {"x": data}, effort="fast").report
    assert (report.integer_macs, [node.op_type for node in report.host_part]) == (1.0, ["Add"])
