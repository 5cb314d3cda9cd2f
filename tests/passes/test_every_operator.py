"""Every pass asks one table for an operator's properties, so that each law is true of every
operator in it.
"""

import numpy as np

from lingeronnx.ir import float_ops, ir
from lingeronnx.ir.batch_axes import infer_batch_axes
from lingeronnx.quantization.normalize.axes.batch_first import move_batch_to_front
from lingeronnx.quantization.normalize.axes.cancel_transposes import cancel_transposes
from lingeronnx.quantization.normalize.axes.transpose_into_linear import fold_transpose_into_linear
from lingeronnx.quantization.normalize.axes.unfold_linear_batch import unfold_linear_batch
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.normalize.layers.linear import fuse_linear
from lingeronnx.quantization.normalize.layers.recurrent import convert_recurrent_layers
from tests.each import check_each
from tests.passes.helpers import changes, feeds, graph, ops, outputs, rand

ONE_TENSOR = sorted(float_ops.UNARY_ELEMENTWISE_OPS)
#: Opsets of the operators that opset 17 does not have.
OPSETS = {"Gelu": 20, "HardSwish": 14, "Mish": 18, "Swish": 24}


def build(op_type, text, **arrays):
    """Return the graph of a text in which `F` stands for an operator."""
    return graph(text.replace("F(", f"{op_type}("), opset=OPSETS.get(op_type, 17), **arrays)


def apply_pass(model, run):
    """Run a pass, which must act and keep the outputs; return the model."""
    feed = {name: np.abs(array) + 0.5 for name, array in feeds(model, 3).items()}
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    is_runnable = "Swish" not in ops(model)  # only later releases of onnxruntime have it
    before = outputs(model, feed) if is_runnable else {}
    assert changes(run, model) > 0
    after = outputs(model, feed) if is_runnable else {}
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-5, atol=1e-5)
    return model


def test_steps_folded_into_the_batch():
    def check(op_type):
        text = """g (float[N,5,4] x) => (float[N,5,3] y) {
            a = Reshape(x, s) b = Gemm(a, w) c = F(b) y = Reshape(c, t) }"""
        shapes = {"s": np.array([-1, 4]), "t": np.array([-1, 5, 3])}
        model = build(op_type, text, w=np.abs(rand(4, 3)), **shapes)
        fuse_linear(model)
        assert ops(apply_pass(model, unfold_linear_batch)) == ["Linear", op_type]

    check_each(check, ONE_TENSOR)


def test_the_batch_behind_the_steps():
    def check(op_type):
        text = """g (float[N,5,4] x) => (float[N,5,3] y) {
            t = Transpose<perm=[1,0,2]>(x) m = MatMul(t, w) f = F(m)
            y = Transpose<perm=[1,0,2]>(f) }"""
        model = apply_pass(build(op_type, text, w=np.abs(rand(4, 3))), move_batch_to_front)
        (node,) = (node for node in model.graph if node.op_type == op_type)
        assert ir.get_shape(node.outputs[0])[:1] == (None,)
        assert "Transpose" not in ops(model)

    check_each(check, ONE_TENSOR)


def test_channels_last():
    def check(op_type):
        text = """g (float[N,3,4,5] x) => (float[N,3,4,5] y) {
            t = Transpose<perm=[0,2,3,1]>(x) f = F(t) u = Transpose<perm=[0,3,1,2]>(f)
            y = Neg(u) }"""
        assert ops(apply_pass(build(op_type, text), cancel_transposes)) == [op_type, "Neg"]

    check_each(check, ONE_TENSOR)


def test_channels_last_before_a_layer():
    def check(op_type):
        text = """g (float[N,3,2,4] x) => (float[N,5] y) {
            t = Transpose<perm=[0,2,3,1]>(x) a = Flatten(t) f = F(a) y = MatMul(f, w) }"""
        model = build(op_type, text, w=rand(24, 5))
        fuse_linear(model)
        assert ops(apply_pass(model, fold_transpose_into_linear)) == ["Flatten", op_type, "Linear"]

    check_each(check, ONE_TENSOR)


def build_time_first(op_type):
    """Return a graph whose GRU reads the result of an operator on an input [5, N, 4]."""
    text = """g (float[5,N,4] x) => (float[5,1,N,3] y) {
        f = F(x) y = GRU<hidden_size=3>(f, w, r) }"""
    return build(op_type, text, w=rand(1, 9, 4), r=rand(1, 9, 3))


def test_the_axis_of_the_batch():
    def check(op_type):
        assert infer_batch_axes(build_time_first(op_type)) == {"x": 1}

    check_each(check, ONE_TENSOR)


def test_the_steps_of_a_recurrent_layer():
    """The operator follows the Transpose, which then stands at the input."""

    def check(op_type):
        model = build_time_first(op_type)
        trace_shapes(model, {"x": np.abs(rand(5, 1, 4))})
        assert convert_recurrent_layers(model).changes == 1
        assert ops(model)[:2] == ["Transpose", op_type]

    check_each(check, ONE_TENSOR)


def test_channels_last_in_a_reduction():
    def check(op_type):
        text = f"""g (float[N,3,4,5] x) => (float[N,3,1,1] y) {{
            t = Transpose<perm=[0,2,3,1]>(x) f = {op_type}<axes=[1,2]>(t)
            u = Transpose<perm=[0,3,1,2]>(f) y = Neg(u) }}"""
        assert ops(apply_pass(graph(text, opset=11), cancel_transposes)) == [op_type, "Neg"]

    check_each(check, sorted(float_ops.REDUCTION_KINDS))


def test_channels_last_in_a_row():
    def check(op_type):
        text = """g (float[N,3,4,5] x) => (float[N,3,4,5] y) {
            t = Transpose<perm=[0,2,3,1]>(x) f = F(t) u = Transpose<perm=[0,3,1,2]>(f)
            y = Neg(u) }"""
        (node, _) = apply_pass(build(op_type, text), cancel_transposes).graph
        assert (node.op_type, ir.get_attr(node, "axis")) == (op_type, 1)

    check_each(check, sorted(float_ops.SOFTMAX_FAMILY_OPS))
