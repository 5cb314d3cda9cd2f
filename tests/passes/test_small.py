"""The short passes: cast-like, known-shapes, zero-states, inline-functions, dense-order, min-max,
softmax.
"""

import numpy as np
import onnx
import pytest

from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.activations.clip import convert_min_max_to_clip
from lingeronnx.quantization.normalize.activations.softmax import canonicalize_softmax
from lingeronnx.quantization.normalize.axes.transpose_into_linear import fold_transpose_into_linear
from lingeronnx.quantization.normalize.entry.lift_constants import (
    inline_functions,
    remove_dead_nodes,
)
from lingeronnx.quantization.normalize.folding.constants import convert_cast_like
from lingeronnx.quantization.normalize.folding.shape_tracing import fold_known_shapes, trace_shapes
from lingeronnx.quantization.normalize.folding.zero_states import drop_zero_states
from lingeronnx.quantization.normalize.layers.linear import fuse_linear
from tests.passes.helpers import (
    changes,
    check_pass_fires,
    check_pass_leaves_alone,
    feeds,
    graph,
    ops,
    outputs,
    proto,
    rand,
    reasons,
)


def traced(model):
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    return model


# ---- cast-like -----------------------------------------------------------------------------------------------------


def test_cast_like():
    """The other tensor's type is the target."""
    model = graph(
        "g (float[N,3] x) => (float[N,3] y) { c = CastLike(k, x) y = Add(x, c) }",
        opset=15,
        k=np.array([1, 2, 3], np.int64),
    )
    model = check_pass_fires(model, convert_cast_like, 1, ["Cast", "Add"], atol=0)
    assert ir.get_attr(next(iter(model.graph)), "to") == onnx.TensorProto.FLOAT


def test_cast_like_of_an_unknown_type_stays():
    """Before shapes are traced the type of an inner tensor may not be known."""
    model = graph(
        "g (float[N,3] x) => (float[N,3] y) { a = Relu(x) c = CastLike(k, a) y = Add(x, c) }",
        opset=15,
        k=np.array([1, 2, 3], np.int64),
    )
    assert reasons(convert_cast_like, model) == [
        "CastLike CastLike_c: the element type of 'a' is not known"
    ]
    assert ops(model) == ["Relu", "CastLike", "Add"]


# ---- known-shapes --------------------------------------------------------------------------------------------------


def test_a_shape_without_batch_is_a_constant():
    """All dimensions are numbers: the whole Shape goes."""
    text = """g (float[N,3,4] x) => (float[N,3,4] y) { f = Transpose<perm = [1, 2, 0]>(k) s = Shape(f)
        e = Expand(x, s) y = Neg(e) }"""
    model = graph(text, k=rand(4, 1, 3))
    check_pass_fires(model, fold_known_shapes, 1, ["Transpose", "Expand", "Neg"], atol=0)


def test_what_is_taken_of_a_shape():
    """Gather and Slice of the known dimensions; the batch stays computed."""
    text = """g (float[N,3,4] x) => (float[N,12] y) {
        s = Shape(x) b = Slice(s, zero, one) c = Gather<axis = 0>(s, which) d = Mul(c, four) t = Concat<axis = 0>(b, d)
        y = Reshape(x, t) }"""
    held = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "which": np.array([1]),
        "four": np.array([4]),
    }
    check_pass_fires(
        graph(text, **held),
        fold_known_shapes,
        1,
        ["Shape", "Slice", "Mul", "Concat", "Reshape"],
        atol=0,
    )


def test_a_part_of_a_shape_and_a_size():
    """From opset 15 on Shape takes start and end; Size is the product."""
    text = """g (float[N,3,4] x) => (float[N,3,4] y) {
        s = Shape<start = 1>(x) n = Size(k) m = Cast<to = 1>(n) c = Cast<to = 1>(s) p = ReduceProd(c, zero)
        q = Mul(x, p) y = Mul(q, m) }"""
    model = graph(text, opset=18, k=rand(2, 3), zero=np.array([0]))
    left = ["Cast", "Cast", "ReduceProd", "Mul", "Mul"]
    check_pass_fires(model, fold_known_shapes, 2, left, atol=1e-4)


@pytest.mark.parametrize(
    "body", ("s = Shape(x) y = Cast<to = 1>(s)", "s = Size(x) y = Cast<to = 1>(s)")
)
def test_the_batch_is_not_known(body):
    """A dimension that grows with the batch is no constant."""
    shape = "float y" if "Size" in body else "float[2] y"
    check_pass_leaves_alone(graph(f"g (float[N,3] x) => ({shape}) {{ {body} }}"), fold_known_shapes)


def test_a_shape_that_is_an_output_stays():
    """Its name is the user's."""
    check_pass_leaves_alone(
        graph("g (float[N,3] x) => (int64[1] y) { y = Shape<start = 1>(x) }", opset=15),
        fold_known_shapes,
    )


# ---- zero-states ---------------------------------------------------------------------------------------------------

LSTM = "y = LSTM<hidden_size = 3>(x, w, r, , , h, c)"
ZERO = {
    "constant": ("", {"h": np.zeros((1, 2, 3), np.float32)}),
    "filled": ("h = ConstantOfShape(s)", {"s": np.array([1, 2, 3])}),
    "filled with a value": (
        "h = ConstantOfShape<value = float[1] {0.0}>(s)",
        {"s": np.array([1, 2, 3])},
    ),
    "expanded": (
        "h = Expand(z, s)",
        {"z": np.zeros((1, 1, 3), np.float32), "s": np.array([1, 2, 3])},
    ),
    "split": ("a = ConstantOfShape(s) h, b = Split<axis = 0>(a)", {"s": np.array([2, 2, 3])}),
    "flattened": (
        "a = ConstantOfShape(s) b = Flatten(a) h = Reshape(b, s)",
        {"s": np.array([1, 2, 3])},
    ),
    "joined": (
        "a = ConstantOfShape(s) h = Concat<axis = 2>(a, b)",
        {"s": np.array([1, 2, 1]), "b": np.zeros((1, 2, 2), np.float32)},
    ),
}


@pytest.mark.parametrize("name", ZERO)
def test_zero_states_go(name):
    """Absent means zero; who computed them dies with the next clean."""
    body, held = ZERO[name]
    text = (
        f"g (float[5,2,4] x) => (float[5,1,2,3] y) {{ {body} "
        f"{LSTM.replace('c)', ')').replace(', )', ')')} }}"
    )
    arrays = {"w": rand(1, 12, 4), "r": rand(1, 12, 3), **held}
    model, feed = graph(text, **arrays), {"x": rand(5, 2, 4)}
    want = outputs(model, feed)["y"]
    assert changes(drop_zero_states, model) == 1
    remove_dead_nodes(model)
    assert ops(model) == ["LSTM"]
    np.testing.assert_array_equal(outputs(model, feed)["y"], want)
    assert changes(drop_zero_states, model) == 0


OTHERS = {
    "a number": ("", {"h": np.full((1, 2, 3), 0.5, np.float32)}, ""),
    "filled with a number": (
        "h = ConstantOfShape<value = float[1] {0.5}>(s)",
        {"s": np.array([1, 2, 3])},
        "",
    ),
    "of the run": ("", {}, ", float[1,2,3] h"),
    "computed": ("h = Neg(k)", {}, ", float[1,2,3] k"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_states_stay(name):
    """What is not zero, or not known to be, is a state; the reason names it."""
    body, held, more = OTHERS[name]
    text = (
        f"g (float[5,2,4] x{more}) => (float[5,1,2,3] y) {{ {body} y = LSTM<hidden_size = "
        "3>(x, "
        "w, r, , , h) }"
    )
    model = graph(text, w=rand(1, 12, 4), r=rand(1, 12, 3), **held)
    assert reasons(drop_zero_states, model) == [
        "LSTM LSTM_y: its state 'h' is not known to be zero"
    ]


# ---- inline-functions ----------------------------------------------------------------------------------------------


def with_function(opset=13, body="b = Add(a, a)"):
    made = proto("g (float[N,2] x) => (float[N,2] y) { t = other.Twice(x) y = Neg(t) }")
    head = f'<domain: "other", opset_import: ["" : {opset}]>'
    made.functions.append(onnx.parser.parse_function(f"{head} Twice (a) => (b) {{ {body} }}"))
    made.opset_import.append(onnx.helper.make_opsetid("other", 1))
    return ir.from_proto(made)


def test_functions_are_inlined():
    """Functions of exporters become their nodes."""
    check_pass_fires(with_function(), inline_functions, 1, ["Add", "Neg"], atol=0)


def test_our_own_functions_stay():
    """A Linear is one operator."""
    model = graph("g (float[N,4] x) => (float[N,3] y) { y = MatMul(x, w) }", w=rand(4, 3))
    assert changes(fuse_linear, model) == 1
    check_pass_leaves_alone(model, inline_functions)


def test_a_function_of_another_opset_is_refused():
    """Its operators might mean something else here."""
    with pytest.raises(
        ModelError,
        match="function Twice uses opset 11, but the model uses opset 13; export the model",
    ):
        inline_functions(with_function(opset=11))


# ---- dense-order ---------------------------------------------------------------------------------------------------

TURN = "t = Transpose<perm = [0, 2, 3, 1]>(x)"


def dense(body, out="float[N,5] y", given="float[N,3,2,4] x", **arrays):
    model = graph(f"g ({given}) => ({out}) {{ {body} }}", **arrays)
    fuse_linear(model)
    return model


@pytest.mark.parametrize("between, kinds", (("", []), ("f2 = Relu(f)", ["Relu"])))
def test_the_layer_takes_up_the_transpose(between, kinds):
    """The columns of its weight are permuted, also with an activation between."""
    body = f"{TURN} f = Flatten(t) {between} y = MatMul({'f2' if between else 'f'}, w)"
    check_pass_fires(
        dense(body, w=rand(24, 5)),
        fold_transpose_into_linear,
        1,
        ["Flatten", *kinds, "Linear"],
        atol=1e-5,
    )


def test_a_shared_weight_is_copied():
    """Another layer with the same weight keeps its own order."""
    body = f"{TURN} f = Flatten(t) y = MatMul(f, w) g2 = Flatten(x) z = MatMul(g2, w)"
    model = dense(body, out="float[N,5] y, float[N,5] z", w=rand(24, 5))
    check_pass_fires(
        model, fold_transpose_into_linear, 1, ["Flatten", "Linear", "Flatten", "Linear"], atol=1e-5
    )


#: Why a Transpose stays -> body, outputs, weight, the reason (None: it is no candidate at all).
ORDERED = {
    "the flat tensor is read elsewhere": (
        f"{TURN} f = Flatten(t) y = MatMul(f, w) z = Relu(f)",
        "float[N,5] y, float[N,24] z",
        (24, 5),
        None,
    ),
    "another operator between": (
        f"{TURN} f = Flatten(t) s = Softmax(f) y = MatMul(s, w)",
        "float[N,5] y",
        (24, 5),
        None,
    ),
    "rows of a part of a sample": (
        f"{TURN} f = Reshape(t, s) y = MatMul(f, w)",
        "float[A,5] y",
        (12, 5),
        "the layer after it does not read one complete sample per row",
    ),
    "the batch is moved": (
        "t = Transpose<perm = [1, 0, 2, 3]>(x) f = Reshape(t, s) y = MatMul(f, w)",
        "float[A,5] y",
        (12, 5),
        "it moves the batch",
    ),
}


@pytest.mark.parametrize("name", ORDERED)
def test_the_transpose_stays(name):
    """The reason names the Transpose; the graph and its results are the same."""
    body, out, weight, why = ORDERED[name]
    held = {"w": rand(*weight), **({"s": np.array([-1, 12])} if "Reshape" in body else {})}
    assert reasons(fold_transpose_into_linear, traced(dense(body, out, **held))) == (
        [] if why is None else [f"Transpose Transpose_t: {why}"]
    )
    check_pass_leaves_alone(dense(body, out, **held), fold_transpose_into_linear)


# ---- min-max -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "node, low, high",
    (("Max(x, k)", 0.5, None), ("Max(k, x)", 0.5, None), ("Min(x, k)", None, 0.5)),
)
@pytest.mark.parametrize("shape", ((), (1,), (1, 1)))
def test_one_bound(node, low, high, shape):
    """One constant of a single value in any order and rank."""
    model = graph(
        f"g (float[N,3] x) => (float[N,3] y) {{ y = {node} }}", k=np.full(shape, 0.5, np.float32)
    )
    model = check_pass_fires(model, convert_min_max_to_clip, 1, ["Clip"], atol=0)
    ends = [
        None if v is None else float(ir.const_value(v)) for v in next(iter(model.graph)).inputs[1:]
    ]
    assert ends + [None] * (2 - len(ends)) == [low, high]


#: Min and Max that stay -> (inputs, node, constants, reason).
KEPT = {
    "two activations": (
        "float[N,3] x, float[N,3] z",
        "Max(x, z)",
        {},
        "its operands are not one activation and one constant",
    ),
    "three": (
        "float[N,3] x",
        "Max(x, k, l)",
        {"k": np.float32(1), "l": np.float32(2)},
        "its operands are not one activation and one constant",
    ),
    "one per channel": (
        "float[N,3] x",
        "Max(x, k)",
        {"k": rand(3)},
        "its constant is not a single float32 number",
    ),
    "not a number": (
        "float[N,3] x",
        "Max(x, k)",
        {"k": np.float32("nan")},
        "its constant is not a single float32 number",
    ),
    "wider": (
        "float[N,3] x",
        "Max(x, k)",
        {"k": np.ones((1, 1, 1), np.float32)},
        "its constant broadcasts the tensor",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_no_bound(name):
    """The reason says what it is."""
    given, node, arrays, why = KEPT[name]
    out = "float[1,N,3] y" if name == "wider" else "float[N,3] y"
    model = traced(graph(f"g ({given}) => ({out}) {{ y = {node} }}", **arrays))
    assert reasons(convert_min_max_to_clip, model) == [f"{node[:3]} {node[:3]}_y: {why}"]
    assert ops(model) == [node[:3]]


# ---- softmax -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset, axis, last", ((13, -1, 2), (13, 1, 1), (12, -1, 2), (12, 2, 2)))
@pytest.mark.parametrize("kind", ("Softmax", "LogSoftmax"))
def test_the_axis_counts_from_zero(kind, opset, axis, last):
    """A negative axis is written out; one that is already is no change."""
    model = graph(
        f"g (float[N,3,4] x) => (float[N,3,4] y) {{ y = {kind}<axis = {axis}>(x) }}", opset=opset
    )
    model = check_pass_fires(model, canonicalize_softmax, int(axis != last), [kind], atol=1e-6)
    assert ir.get_attr(next(iter(model.graph)), "axis") == last


@pytest.mark.parametrize("attribute", ("<axis = 1>", ""))
def test_old_axes_together(attribute):
    """Before opset 13 all axes from `axis` (default 1) on are one."""
    model = graph(
        f"g (float[N,3,4] x) => (float[N,3,4] y) {{ y = Softmax{attribute}(x) }}", opset=12
    )
    check_pass_fires(model, canonicalize_softmax, 1, ["Reshape", "Softmax", "Reshape"], atol=1e-6)


def test_the_batch_together_with_others_stays():
    """axis = 0 before opset 13 mixes the samples."""
    model = graph("g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 0>(x) }", opset=12)
    trace_shapes(model, feeds(model))
    why = "it combines the batch with other axes, or its shape is not known"
    assert reasons(canonicalize_softmax, model) == [f"Softmax Softmax_y: {why}"]
