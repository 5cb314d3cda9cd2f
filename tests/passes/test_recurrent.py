"""LSTM and GRU become one function per direction, batch first; the dressing of exporters
cancels.
"""

import numpy as np
import onnx
import pytest

from lingeronnx.ir import ir
from lingeronnx.operators.recurrent.lowering import explain_unsupported
from lingeronnx.operators.recurrent.lowering import optional_input_indices as given_to
from lingeronnx.quantization.normalize import normalize, resolve_control_flow, run_entry_passes
from lingeronnx.quantization.normalize.layers.recurrent import (
    convert_recurrent_layers,
    convert_to_time_first,
)
from lingeronnx.runtime.runners import get_input_specs
from tests.passes.helpers import (
    changes,
    check_pass_fires,
    check_pass_leaves_alone,
    feeds,
    outputs,
    proto,
    rand,
)

STEP_COUNT, WIDTH, H = 5, 4, 3


def weights(kind, count, seed=0):
    """Return W, R and B of `count` directions."""
    gates = 4 if kind == "LSTM" else 3
    return {
        "w": rand(count, gates * H, WIDTH, seed=seed),
        "r": rand(count, gates * H, H, seed=seed + 1),
        "b": rand(count, 2 * gates * H, seed=seed + 2),
    }


def count(direction):
    return 2 if direction == "bidirectional" else 1


def model(kind, body, result, *, direction="forward", opset=13, given="float[N,5,4] x", **arrays):
    """Return a graph of one layer on the batch-first input x; {L} in `body` stands for the
    operator's name.
    """
    attributes = f'direction="{direction}", hidden_size={H}'
    body = body.replace("{L}", f"{kind} <{attributes}").replace("{D}", str(count(direction)))
    text = f"g ({given}) => ({result}) {{ {body} }}"
    return ir.from_proto(proto(text, opset=opset, **weights(kind, count(direction)), **arrays))


AXES = {"one": np.array([1]), "zero": np.array([0])}
TURN = "t = Transpose <perm=[1,0,2]> (x)"

LAYER = f"{TURN} y4, h = {{L}}>(t, w, r, b)"
STEPS = f"{LAYER} y3 = Squeeze(y4, one)"
BODIES = {  # what is read of one direction
    "sequence": (f"{STEPS} y = Transpose <perm=[1,0,2]> (y3)", "float[N,5,3] y"),
    "smallest": (
        (
            f"{STEPS} z = Transpose <perm=[1,0,2]> (y3) a = Abs(z) y = ReduceMin <axes=[1], "
            "keepdims=0> (a)"
        ),
        "float[N,3] y",
    ),
    "last of the sequence": (f"{STEPS} y = Gather <axis=0> (y3, last)", "float[N,3] y"),
    "state": (f"{LAYER} y = Squeeze(h, zero)", "float[N,3] y"),
    "gathered state": (f"{LAYER} y = Gather <axis=0> (h, last)", "float[N,3] y"),
    "relu and linear": (
        f"{STEPS} a = Relu(y3) m = MatMul(a, square) z = Transpose <perm=[1,0,2]> (m) y = Abs(z)",
        "float[N,5,3] y",
    ),
    "all four axes": (f"{TURN} y, h = {{L}}>(t, w, r, b)", "float[5,D,N,3] y"),
}


def normalised(graph, feed):
    """Return `graph` as `quantize` normalises it."""
    copy, _ = run_entry_passes(graph)
    resolve_control_flow(
        copy,
        {spec.name: spec.slice_samples(feed[spec.name], 0, 1) for spec in get_input_specs(copy)},
    )
    normalize(copy)
    return copy


LAYERS = ("LSTM", "GRU")


@pytest.mark.parametrize("opset", (12, 13))
@pytest.mark.parametrize("direction", ("forward", "reverse"))
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("kind", LAYERS)
def test_one_direction(kind, name, direction, opset):
    """Same outputs, no ONNX layer left, and where the batch comes first outside, no Transpose
    either.
    """
    body, result = BODIES[name]
    if opset < 13:
        body = body.replace("Squeeze(y4, one)", "Squeeze <axes=[1]> (y4)")
        body = body.replace("Squeeze(h, zero)", "Squeeze <axes=[0]> (h)")
    arrays = {"last": np.array(-1), "square": rand(H, H), **(AXES if opset > 12 else {})}
    graph = model(kind, body, result, direction=direction, opset=opset, **arrays)
    feed = feeds(graph)
    before = outputs(graph, feed)
    after = normalised(graph, feed)
    for key, want in outputs(after, feed).items():
        np.testing.assert_allclose(want, before[key], rtol=0, atol=1e-6)
    kinds = [(node.domain, node.op_type) for node in after.graph]
    assert (ir.FUNCTION_DOMAIN, kind) in kinds
    assert ("", kind) not in kinds
    if name != "all four axes":
        assert ("", "Transpose") not in kinds
    onnx.checker.check_model(ir.to_proto(after), full_check=True)


FLAT = f"{LAYER} z = Transpose <perm=[0,2,1,3]> (y4) y3 = Reshape(z, flat)"
SECOND = (
    'u4 = LSTM <direction="bidirectional", hidden_size=3> (y3, w2, r2) v = Transpose '
    "<perm=[0,2,1,3]> (u4)"
)
BACK = "z = Transpose <perm=[1,0,2]> (j) y = Abs(z)"
APART = f"f = Squeeze(f4, one) l = Squeeze(l4, one) j = Concat <axis=2> (f, l) {BACK}"
BOTH = {
    "sequence": (f"{FLAT} y = Transpose <perm=[1,0,2]> (y3)", "float[N,5,6] y"),
    "states": (
        (
            f"{LAYER} f = Gather <axis=0> (h, first) l = Gather <axis=0> (h, last) y = Concat "
            "<axis=1> "
            "(f, l)"
        ),
        "float[N,6] y",
    ),
    "stack": (
        f"{FLAT} {SECOND} v3 = Reshape(v, flat) y = Transpose <perm=[1,0,2]> (v3)",
        "float[N,5,6] y",
    ),
    "each by a slice": (
        f"{LAYER} f4 = Slice(y4, zero, one, one) l4 = Slice(y4, one, far, one) {APART}",
        "float[N,5,6] y",
    ),
    "each by a gather": (
        (
            f"{LAYER} f = Gather <axis=1> (y4, first) l = Gather <axis=-3> (y4, less) j = Concat "
            f"<axis=2> (f, l) {BACK}"
        ),
        "float[N,5,6] y",
    ),
    "each by a split": (f"{LAYER} f4, l4 = Split <axis=1> (y4) {APART}", "float[N,5,6] y"),
    "one by a slice": (
        f"{LAYER} f4 = Slice(y4, one, far, one) j = Squeeze(f4, one) {BACK}",
        "float[N,5,3] y",
    ),
    "four axes": (f"{TURN} y, h = {{L}}>(t, w, r, b)", "float[5,D,N,3] y"),
}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("kind", LAYERS)
def test_two_directions(kind, name):
    """Two functions, joined along the last axis where exporters flatten the directions."""
    body, result = BOTH[name]
    arrays = {
        "flat": np.array([0, 0, -1]),
        "first": np.array(0),
        "last": np.array(1),
        "w2": rand(2, 12, 6),
        "r2": rand(2, 12, 3),
        "less": np.array(-1),
        "far": np.array([9]),
        **AXES,
    }
    graph = model(kind, body, result, direction="bidirectional", **arrays)
    feed = feeds(graph)
    before = outputs(graph, feed)
    after = normalised(graph, feed)
    for key, want in outputs(after, feed).items():
        np.testing.assert_allclose(want, before[key], rtol=0, atol=1e-6)
    kinds = [node.op_type for node in after.graph if node.domain == ir.FUNCTION_DOMAIN]
    assert len(kinds) == {"stack": 4, "one by a slice": 1}.get(name, 2)  # what nobody reads is gone
    assert ("Transpose" in [node.op_type for node in after.graph]) == (name == "four axes")


def test_only_what_is_read():
    """The pass alone, one sequence that is turned back: the two Transposes go, the weights lose a
    dimension.
    """
    body, result = BODIES["sequence"]
    graph = check_pass_fires(
        model("GRU", body, result, **AXES),
        convert_recurrent_layers,
        1,
        ["Transpose", "GRU"],
        atol=1e-6,
    )
    layer = next(node for node in graph.graph if node.op_type == "GRU")
    assert [ir.get_shape(v) for v in layer.inputs[1:]] == [(9, 4), (9, 3), (18,)]
    assert ir.get_attr(layer, "linear_before_reset") == 0


def test_time_first_input():
    """An input that no exporter turned is turned by the pass, and the states are turned back."""
    given = "float[5,2,4] x"
    graph = model(
        "GRU", "y4, y = {L}>(x, w, r, b)", "float[D,2,3] y", given=given, direction="reverse"
    )
    check_pass_fires(
        graph,
        convert_recurrent_layers,
        1,
        ["Transpose", "GRU", "Slice", "Transpose"],
        atol=1e-6,
        trace=False,
    )


@pytest.mark.parametrize("direction", ("forward", "reverse", "bidirectional"))
def test_cell(direction):
    """The last cell is the function's third output."""
    body = (
        f"{TURN} y4, h, c = {{L}}>(t, w, r, b) y = Transpose <perm=[1,0,2]> (c) z = Transpose "
        "<perm=[1,0,2]> (h)"
    )
    graph = model("LSTM", body, "float[N,D,3] y, float[N,D,3] z", direction=direction)
    feed = feeds(graph)
    before, after = outputs(graph, feed), normalised(graph, feed)
    for key, want in outputs(after, feed).items():
        np.testing.assert_allclose(want, before[key], rtol=0, atol=1e-6)
    assert [len(node.outputs) for node in after.graph if node.domain == ir.FUNCTION_DOMAIN] == [
        3
    ] * count(direction)
    assert "Transpose" not in [node.op_type for node in after.graph]


def test_linear_before_reset_is_kept():
    """The attribute of the operator goes to the function."""
    body, result = BODIES["state"]
    graph = model("GRU", body.replace("{L}>", "{L}, linear_before_reset=1>"), result, **AXES)
    feed = feeds(graph)
    before, after = outputs(graph, feed), normalised(graph, feed)
    np.testing.assert_allclose(outputs(after, feed)["y"], before["y"], rtol=0, atol=1e-6)
    assert [ir.get_attr(n, "linear_before_reset") for n in after.graph if n.op_type == "GRU"] == [1]


OBSTACLES = {
    "activations": (
        'y4 = {L}, activations=["Sigmoid", "Tanh", "Relu"]>(t, w, r, b) y = Squeeze(y4, one)',
        {},
        "relu",
    ),
    "clip": ("y4 = {L}, clip=1.0>(t, w, r, b) y = Squeeze(y4, one)", {}, "clips"),
    "coupled": ("y4 = {L}, input_forget=1>(t, w, r, b) y = Squeeze(y4, one)", {}, "coupled"),
    "peepholes": (
        "y4 = {L}>(t, w, r, b, , , , p) y = Squeeze(y4, one)",
        {"p": rand(1, 3 * H)},
        "peepholes",
    ),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_stays(name):
    """Each obstacle leaves the operator as it is, with a reason."""
    body, arrays, reason = OBSTACLES[name]
    graph = model(
        "LSTM", f"{TURN} {body}", "float[A,B,C] y", given="float[1,5,4] x", **AXES, **arrays
    )
    layer = next(node for node in graph.graph if node.op_type == "LSTM")
    check_pass_leaves_alone(graph, convert_recurrent_layers)
    assert reason in explain_unsupported(layer)


GIVEN = {
    "lengths": ("l", "lengths", ", int32[N] lengths", {}),
    "a constant state": ("h", ", start", "", {"start": rand(1, 1, H)}),
    "a state": ("h", ", start", ", float[1,N,3] start", {}),
    "a cell": ("c", ", , cell", ", float[1,N,3] cell", {}),
    "everything": (
        "lhc",
        "lengths, start, cell",
        ", int32[N] lengths, float[1,N,3] start, float[1,N,3] cell",
        {},
    ),
}


@pytest.mark.parametrize("direction", ("forward", "reverse"))
@pytest.mark.parametrize("name", GIVEN)
def test_what_is_given(name, direction):
    """Lengths, states and cells are further inputs, which an attribute names; Y_h is its output
    then.
    """
    letters, more, given, arrays = GIVEN[name]
    text = f"{TURN} y4, y, c = {{L}}>(t, w, r, b, {more}) z = Squeeze(y4, one)"
    if name == "a constant state":
        text = (
            f"{TURN} s = Shape(t) n = Gather <axis=0> (s, one) size = Concat <axis=0> (one, n, "
            "three) "
        ) + text[len(TURN) :].replace(", start", ", full")
        text = text.replace("y4, y, c =", "full = Expand(start, size) y4, y, c =")
        arrays = {**arrays, "three": np.array([3])}
    graph = model(
        "LSTM",
        text,
        "float[1,N,3] y, float[A,B,C] z, float[1,N,3] c",
        direction=direction,
        given=f"float[N,5,4] x{given}",
        **AXES,
        **arrays,
    )
    feed = {
        "x": rand(3, 5, 4),
        "lengths": np.array([5, 2, 4], np.int32),
        "start": rand(1, 3, 3),
        "cell": rand(1, 3, 3),
    }
    feed = {str(v.name): feed[v.name] for v in graph.graph.inputs}
    before = outputs(graph, feed)
    after = normalised(graph, feed)
    for key, want in outputs(after, feed).items():
        np.testing.assert_allclose(want, before[key], rtol=0, atol=1e-6)
    (layer,) = [node for node in after.graph if node.domain == ir.FUNCTION_DOMAIN]
    keys = [key for key in ("lengths", "h", "c") if key[0] in letters]
    layer.op_type = "LSTM_7"  # a name says nothing
    assert (ir.base_op_type(layer), given_to(layer)) == (
        "LSTM",
        {key: 4 + i for i, key in enumerate(keys)},
    )
    assert len(layer.inputs) == 4 + len(keys)
    assert ("Slice" in [node.op_type for node in after.graph]) == ("l" not in letters)
    if name == "a constant state":
        assert ir.const_value(layer.inputs[4]).shape == (1, 1, H)


def test_zero_states_are_none():
    """Initial states that are made with the batch size are left out, and lengths that are the
    input's own.
    """
    body = (
        f"{TURN} s = Shape(t) n = Gather <axis=0> (s, one) size = Concat <axis=0> (one, n, three) "
        "zero = ConstantOfShape(size) y4, h = {L}>(t, w, r, b, , zero, zero) y = Squeeze(h, none)"
    )
    arrays = {"one": np.array([1]), "three": np.array([3]), "none": np.array([0])}
    graph = model("LSTM", body, "float[N,3] y", **arrays)
    feed = feeds(graph)
    before, after = outputs(graph, feed), normalised(graph, feed)
    np.testing.assert_allclose(outputs(after, feed)["y"], before["y"], rtol=0, atol=1e-6)
    assert [node.op_type for node in after.graph] == ["LSTM", "Slice", "Squeeze"]


@pytest.mark.parametrize("kind", LAYERS)
def test_batch_first_layers(kind):
    """Layout 1, which onnxruntime does not run, becomes layout 0 between Transposes; the others
    stay.
    """
    one = {"kind": kind, "direction": "bidirectional"}
    body = "y, h = {L}, layout=1>(x, w, r, b, , start)"
    graph = model(
        body=body,
        result="float[N,5,2,3] y, float[N,2,3] h",
        start=np.zeros((2, 2, H), np.float32),
        **one,
        opset=14,
    )
    assert changes(convert_to_time_first, graph) == 1
    assert changes(convert_to_time_first, graph) == 0
    turned = "s = Transpose <perm=[1,0,2]> (start)"
    same = model(
        body=f"{TURN} {turned} y4, h3 = {{L}}>(t, w, r, b, , s) y = Transpose <perm=[2,0,1,3]> "
        "(y4) "
        "h = Transpose <perm=[1,0,2]> (h3)",
        result="float[N,5,2,3] y, float[N,2,3] h",
        start=np.zeros((2, 2, H), np.float32),
        opset=14,
        **one,
    )
    feed = {"x": rand(2, 5, 4)}
    want, have = outputs(same, feed), outputs(graph, feed)
    for name in want:
        np.testing.assert_array_equal(have[name], want[name])
    bare = model(
        body="y, h = {L}, layout=1>(x, w, r, b)",
        result="float[N,5,2,3] y, float[N,2,3] h",
        opset=14,
        **one,
    )
    after = normalised(bare, feed)
    assert [node.op_type for node in after.graph if node.domain == ir.FUNCTION_DOMAIN] == [kind] * 2
    for name, array in outputs(after, feed).items():
        np.testing.assert_allclose(array, want[name], rtol=0, atol=1e-6)


def test_function_is_standard_onnx(caplog):
    """The functions are model-local ONNX: other runtimes read the normalised graph too; writing it
    warns of nothing.
    """
    body, result = BODIES["state"]
    graph = model("LSTM", body, result, **AXES)
    after = normalised(graph, feeds(graph))
    text = ir.to_proto(after)
    assert [f.name for f in text.functions] == ["LSTM"]
    assert {n.op_type for n in text.functions[0].node} <= {
        "Transpose",
        "Constant",
        "Unsqueeze",
        "Squeeze",
        "LSTM",
    }
    assert not caplog.records
