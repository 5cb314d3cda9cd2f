# ruff: noqa: E501 (ONNX text reads better in long lines)
"""Files that are no sound graph, or hold what cannot be quantized: one line that names the place."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from tests.onnx_files.helpers import proto, quantized, rand

GRAPH = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x) b = MatMul(a, w) y = Sigmoid(b) }"


def model(change=None, text=GRAPH, **settings):
    """Return the model, after `change` to its protobuf."""
    made = proto(text, w=rand(4, 4), **settings)
    if change is not None:
        change(made)
    return made


def set_input(node, name):
    return lambda m: m.graph.node[node].input.__setitem__(0, name)


def set_output(node, name):
    return lambda m: m.graph.node[node].output.__setitem__(0, name)


def a_function(inner):
    """Return a change that has the model call a function with an If whose bodies read `inner`."""

    def change(m):
        bodies = [
            helper.make_graph(
                [helper.make_node("Relu", [inner], ["r"])],
                name,
                [],
                [onnx.ValueInfoProto(name="r")],
            )
            for name in ("then_branch", "else_branch")
        ]
        branch = helper.make_node("If", ["c"], ["o"], then_branch=bodies[0], else_branch=bodies[1])
        opset = [helper.make_opsetid("", 17)]
        m.functions.append(helper.make_function("mine", "F", ["c"], ["o"], [branch], opset))
        m.opset_import.append(helper.make_opsetid("mine", 1))

    return change


def a_map(m):
    keyed = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    m.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(keyed))


def attribute(node, name, value):
    return lambda m: m.graph.node[node].attribute.append(helper.make_attribute(name, value))


DAMAGED = {
    "a function that reads what is outside": (
        a_function("x"),
        "Relu r: its input 'x' is not computed by any node",
    ),
    "more outputs than its operator": (
        lambda m: m.graph.node[0].output.append("more"),
        "it has 2 outputs, but .* at most 1",
    ),
    "a graph where there is none": (
        attribute(0, "body", helper.make_graph([], "g", [], [])),
        "its attribute 'body' is a graph, but the operator has no such",
    ),
    "a map of keys": (
        a_map,
        "output 'y' is a map from keys .*; end the model at 'b', the input of Sigmoid",
    ),
    "a cycle": (set_input(0, "b"), "Relu a: it depends on its own output"),
    "an undefined tensor": (
        set_input(1, "nowhere"),
        "MatMul b: its input 'nowhere' is not computed by any node",
    ),
    "two producers": (set_output(1, "a"), "MatMul a: tensor 'a' is written by Relu a too"),
    "an output that shadows an input": (
        set_output(0, "x"),
        "written by a graph input or initializer too",
    ),
    "an output that shadows a weight": (
        set_output(0, "w"),
        "written by a graph input or initializer too",
    ),
    "no outputs": (lambda m: m.graph.ClearField("output"), "the graph has no output"),
    "an output computed nowhere": (
        set_output(2, "z"),
        "graph output 'y' is not computed by any node",
    ),
    "an output listed twice": (
        lambda m: m.graph.output.append(m.graph.output[0]),
        "listed twice as a graph output",
    ),
    "an input listed twice": (
        lambda m: m.graph.input.append(m.graph.input[0]),
        "tensor 'x' is defined twice",
    ),
    "a weight stored twice": (
        lambda m: m.graph.initializer.append(m.graph.initializer[0]),
        "'w' is defined twice",
    ),
    "an opset of the future": (
        lambda m: setattr(m.opset_import[0], "version", 999),
        "opset 999; .* upgrade onnx",
    ),
    "no opset": (
        lambda m: m.ClearField("opset_import"),
        "imports no opset for the standard domain",
    ),
    "two opsets": (lambda m: m.opset_import.add(version=7), "and opset 7 of the standard domain"),
    "a negative opset": (
        lambda m: setattr(m.opset_import[0], "version", -(2**31) - 1),
        "opset -2147483649; the inst",
    ),
    "an unknown domain": (
        lambda m: setattr(m.graph.node[0], "domain", "a.b"),
        "imports no opset for domain 'a.b'",
    ),
    "a weight of another size": (
        lambda m: m.graph.initializer[0].dims.append(2),
        "holds 64 bytes, not 128",
    ),
    "a negative size": (
        lambda m: m.graph.initializer[0].dims.__setitem__(0, -4),
        "cannot be negative",
    ),
    "an unknown type": (
        lambda m: setattr(m.graph.initializer[0], "data_type", 99),
        "unknown element type 99",
    ),
    "an input without type": (
        lambda m: m.graph.input[0].ClearField("type"),
        "graph input 'x' has no element type",
    ),
    "an unknown operator": (lambda m: setattr(m.graph.node[0], "op_type", "Rectify"), "Rectify"),
    "a missing attribute": (
        lambda m: setattr(m.graph.node[2], "op_type", "Concat"),
        "Concat .*: .*axis",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged(name, tmp_path):
    """What is wrong, and where."""
    change, message = DAMAGED[name]
    with pytest.raises(ModelError, match=message):
        quantized(model(change), tmp_path)


def test_not_text(tmp_path):
    """A name of bytes that are no UTF-8."""
    data = model().SerializeToString().replace(b"Relu", b"Re\x90u")
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError):
        ir.load(path)


def test_sparse_weights():
    """Sparse initializers are refused."""
    change = lambda m: m.graph.sparse_initializer.append(  # noqa: E731
        helper.make_sparse_tensor(
            helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0]),
            helper.make_tensor("i", TensorProto.INT64, [1], [0]),
            [4],
        )
    )
    with pytest.raises(ModelError, match="'s' is sparse"):
        ir.from_proto(model(change))


UNFIT = {
    "scales at run time": (
        "q, a, b = DynamicQuantizeLinear(x) y = DequantizeLinear(q, a, b)",
        "DynamicQuantizeLinear .*scales are computed at run time and not stored; use the original float",
    ),
    "operators on integers": ("y = MatMulInteger(x, w)", "MatMulInteger .*computed at run time"),
    "a loop at run time": (
        (
            "n = Size(x) c = Constant<value = bool {1}>()"
            " y = Loop(n, c, x) <body = b (int64 i, bool p, float[N,4] v) => (bool p2, float[N,4] u)"
            " { p2 = Identity(p) u = Relu(v) }>"
        ),
        "Loop .*: only loops of at most 64 iterations",
    ),
    "a branch at run time": (
        (
            "m = ReduceMax<keepdims = 0>(x) z = Constant<value_float: float = 0.0>() c = Greater(m, z)"
            " y = If(c) <then_branch = a () => (float[N,4] t)"
            " { t = Relu(x) }, else_branch = b () => (float[N,4] e) { e = Neg(x) }>"
        ),
        "If .*: its condition is computed at run time",
    ),
    "a scan": (
        "y = Scan<num_scan_inputs = 1, body = b (float[4] v) => (float[4] u) { u = Relu(v) }>(x)",
        "Scan .*: it loops over a sequence",
    ),
    "a sequence": (
        "s = SplitToSequence(x) y = ConcatFromSequence<axis = 0>(s)",
        "SplitToSequence .*: sequences",
    ),
    "training": (
        "r = Constant<value_float: float = 0.5>() t = Constant<value = bool {1}>() y = Dropout(x, r, t)",
        "Dropout .*training mode; call eval",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_cannot_be_quantized(name, tmp_path):
    """What a chip cannot run is named before anything else is tried."""
    body, message = UNFIT[name]
    arrays = {"sc": rand(1)[0] ** 2, "zp": rand(1).astype("int8")[0]}
    text = f"g (float[N,4] x) => (float[N,4] y) {{ {body} }}"
    if "Integer" in body:
        text = text.replace("float[N,4] x", "int8[N,4] x").replace("float[N,4] y", "int32[N,4] y")
    made = proto(
        text, w=rand(4, 4) if "Integer" not in body else rand(4, 4).astype("int8"), **arrays
    )
    with pytest.raises(ModelError, match=message):
        quantized(made, tmp_path)


@pytest.mark.parametrize("domain", ("thinker", "linger"))
def test_vendor_graphs(domain, tmp_path):
    """A graph of the vendor's operators is no float model."""

    def change(made):
        made.graph.node[0].domain = domain
        made.opset_import.append(helper.make_opsetid(domain, 1))

    with pytest.raises(ModelError, match="quantized already"):
        quantized(model(change), tmp_path)


def test_nothing_in_a_tensor(tmp_path):
    """A size of zero."""
    with pytest.raises(ModelError, match=r"'x' has shape \[\?, 0\]; sizes must be positive"):
        quantized(proto("g (float[N,0] x) => (float[N,0] y) { y = Relu(x) }"), tmp_path)


def test_absurd_sizes(tmp_path):
    """A tensor nothing could hold is named before it is computed."""
    text = "g (float[N,4] x) => (float y) { e = Expand(x, big) y = ReduceMax<keepdims = 0>(e) }"
    made = proto(text, big=np.array([1 << 20, 1 << 20, 1, 4]))
    with pytest.raises(ModelError, match="'e' would have shape"):
        quantized(made, tmp_path)


def test_spelling_of_the_standard_domain():
    """``ai.onnx`` is the empty domain."""
    made = model(lambda m: setattr(m.graph.node[0], "domain", "ai.onnx"))
    made.opset_import[0].domain = "ai.onnx"
    graph = ir.from_proto(made)
    assert {node.domain for node in graph.graph} == {""}
    assert graph.opset_imports == {"": 13}


def test_names_of_nodes():
    """Empty and doubled node names become unique ones."""
    made = model()
    for node in made.graph.node[:2]:
        node.name = "same"
    names = [node.name for node in ir.from_proto(made).graph]
    assert len(set(names)) == 3
    assert all(names)


def test_load_says_what_a_file_is(tmp_path):
    """Not there, a folder, not ONNX, empty."""
    for path, message in ((tmp_path / "no.onnx", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(ModelError, match=message):
            ir.load(path)
    for data in (b"", b"not a model", onnx.ModelProto(ir_version=8).SerializeToString()):
        path = tmp_path / "m.onnx"
        path.write_bytes(data)
        with pytest.raises(ModelError, match="cannot (read|use) the model"):
            ir.load(path)
