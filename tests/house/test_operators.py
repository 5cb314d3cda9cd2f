"""Whoever asks what an operator is asks one table: what is true of a function in one pass is true in all of them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from lingeronnx.analysis.compare import scale_causes
from lingeronnx.formats import functions
from lingeronnx.graph import ir, operators
from lingeronnx.graph.batch_axes import batch_axes
from lingeronnx.ops.functions.masks import masked_at_run_time
from lingeronnx.passes.axes.batch_first import batch_first
from lingeronnx.passes.axes.dense_order import dense_order
from lingeronnx.passes.axes.layout import layout
from lingeronnx.passes.axes.rows import rows
from lingeronnx.passes.folding.shapes import trace_shapes
from lingeronnx.passes.layers.linear import linear
from lingeronnx.passes.layers.recurrent import recurrent
from lingeronnx.plan import Affine
from lingeronnx.qdq.read import read
from tests.operator_names import collections
from tests.passes.helpers import feeds, graph, ops, outputs, rand

#: Where names of operators stand together -> why that is no fact about operators.
REASONS = {
    "lingeronnx/graph/operators.py:OPERATORS": "the table",
    "lingeronnx/graph/operators.py:STAND_INS": "which activations are trained in place of which, beside the table",
    "lingeronnx/analysis/profile/profile.py:COLUMNS": "headings of columns",
    "lingeronnx/flow/trials/host_offload.py:_FRONT": "a rule of thumb: what front ends are made of; measured then",
    "lingeronnx/flow/trials/host_offload.py:_TAIL": "a rule of thumb: what decoders are made of; measured then",
    "lingeronnx/flow/prepare/states.py:_GATES": "a rule of thumb: what gates are bent by; measured then",
    "lingeronnx/passes/folding/scalar_inputs.py:_COMPARED": "which side of each is the larger one",
    "lingeronnx/ops/macs.py:_COUNTS": "a way to count for each",
    "lingeronnx/ops/macs.py:_NONE": "operators of other domains",
    "lingeronnx/ops/functions/table.py:Table.floats": "whose own rules the table would only repeat",
    "lingeronnx/flow/methods/output_gradients.py:_BACKWARD": "a way back through each",
    "lingeronnx/passes/folding/reshape.py:_TARGETS": "which input holds the target of each",
    "lingeronnx/passes/folding/reshape.py:_WAYS": "a way to write each",
    "lingeronnx/passes/folding/control.py:_REASONS": "a sentence for each",
    "lingeronnx/passes/curves/curves.py:_KNOWN": "how a curve that was found is written",
    "lingeronnx/passes/axes/layout.py:_OTHERS": "a way to turn each",
    "lingeronnx/passes/entry/raise_opset.py:_REWRITES": "a way to rewrite each",
    "lingeronnx/passes/entry/refuse.py:_READS_TEXT": "what reads text where it is given text, of all domains",
    "lingeronnx/plan/fake.py:_steps": "operators that are written one behind the other",
    "lingeronnx/reference/": "an oracle shares nothing with what it judges",
    "lingeronnx/targets/": "integer operators of the rows, and what a vendor's tool does with them",
    "lingeronnx/torch/checkpoint/recurrent_weights.py:_GATES": "torch's order of the gates of each",
    "lingeronnx/torch/bridge/float_": "a way to compute each in torch, which only that folder knows",
}

ONE = sorted(operators.ONE_TENSOR)
#: Functions that onnxruntime has for numbers between 0.5 and 1.5 alone, or younger than the opset of the tests.
OPSETS = {"Gelu": 20, "HardSwish": 14, "Mish": 18, "Swish": 24}


def made(kind, text, **arrays):
    """Return the graph of the text, in which `F` stands for the operator."""
    return graph(text.replace("F(", f"{kind}("), opset=OPSETS.get(kind, 17), **arrays)


def acts(model, run, *, trace=True):
    """Run a pass that must act; the outputs are those from before where onnxruntime has the operator."""
    feed = {name: np.abs(array) + 0.5 for name, array in feeds(model, 3).items()}
    runs = "Swish" not in ops(model)  # onnxruntime has it from another release on
    if trace:
        trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    before = outputs(model, feed) if runs else {}
    found = run(model)
    assert (found if isinstance(found, int) else found.changes) > 0
    after = outputs(model, feed) if runs else {}
    for name, want in before.items():
        np.testing.assert_allclose(after[name], want, rtol=1e-5, atol=1e-5)
    return model


@pytest.mark.parametrize("kind", ONE)
def test_steps_folded_into_the_batch(kind):
    text = "g (float[N,5,4] x) => (float[N,5,3] y) { a = Reshape(x, s) b = Gemm(a, w) c = F(b) y = Reshape(c, t) }"
    model = made(kind, text, w=np.abs(rand(4, 3)), s=np.array([-1, 4]), t=np.array([-1, 5, 3]))
    linear(model)
    assert ops(acts(model, rows)) == ["Linear", kind]


@pytest.mark.parametrize("kind", ONE)
def test_the_batch_behind_the_steps(kind):
    text = """g (float[N,5,4] x) => (float[N,5,3] y) {
        t = Transpose<perm=[1,0,2]>(x) m = MatMul(t, w) f = F(m) y = Transpose<perm=[1,0,2]>(f) }"""
    model = acts(made(kind, text, w=np.abs(rand(4, 3))), batch_first)
    (node,) = (node for node in model.graph if node.op_type == kind)
    assert ir.shape(node.outputs[0])[:1] == (None,)
    assert "Transpose" not in ops(model)


@pytest.mark.parametrize("kind", ONE)
def test_channels_last(kind):
    text = """g (float[N,3,4,5] x) => (float[N,3,4,5] y) {
        t = Transpose<perm=[0,2,3,1]>(x) f = F(t) u = Transpose<perm=[0,3,1,2]>(f) y = Neg(u) }"""
    assert ops(acts(made(kind, text), layout)) == [kind, "Neg"]


@pytest.mark.parametrize("kind", ONE)
def test_channels_last_before_a_layer(kind):
    text = """g (float[N,3,2,4] x) => (float[N,5] y) {
        t = Transpose<perm=[0,2,3,1]>(x) a = Flatten(t) f = F(a) y = MatMul(f, w) }"""
    model = made(kind, text, w=rand(24, 5))
    linear(model)
    assert ops(acts(model, dense_order)) == ["Flatten", kind, "Linear"]


def time_first(kind):
    """Return a graph whose GRU reads an operator of an input [5, N, 4]."""
    text = "g (float[5,N,4] x) => (float[5,1,N,3] y) { f = F(x) y = GRU<hidden_size=3>(f, w, r) }"
    return made(kind, text, w=rand(1, 9, 4), r=rand(1, 9, 3))


@pytest.mark.parametrize("kind", ONE)
def test_the_axis_of_the_batch(kind):
    assert batch_axes(time_first(kind)) == {"x": 1}


@pytest.mark.parametrize("kind", ONE)
def test_the_steps_of_a_recurrent_layer(kind):
    """What works step by step is done behind the Transpose, which stands at the input then."""
    model = time_first(kind)
    trace_shapes(model, {"x": np.abs(rand(5, 1, 4))})
    assert recurrent(model).changes == 1
    assert ops(model)[:2] == ["Transpose", kind]


@pytest.mark.parametrize("kind", sorted(operators.REDUCES))
def test_channels_last_in_a_reduction(kind):
    text = """g (float[N,3,4,5] x) => (float[N,3,1,1] y) {
        t = Transpose<perm=[0,2,3,1]>(x) f = REDUCE<axes=[1,2]>(t) u = Transpose<perm=[0,3,1,2]>(f) y = Neg(u) }"""
    assert ops(acts(graph(text.replace("REDUCE", kind), opset=11), layout)) == [kind, "Neg"]


@pytest.mark.parametrize("kind", sorted(operators.ROWS))
def test_channels_last_in_a_row(kind):
    text = """g (float[N,3,4,5] x) => (float[N,3,4,5] y) {
        t = Transpose<perm=[0,2,3,1]>(x) f = F(t) u = Transpose<perm=[0,3,1,2]>(f) y = Neg(u) }"""
    (node, _) = acts(made(kind, text), layout).graph
    assert (node.op_type, ir.attr(node, "axis")) == (kind, 1)


# ---- signs, scales, masks and tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ("Flatten", "Reshape", "Squeeze", "Tile", "Transpose", "Cast"))
@pytest.mark.parametrize("made_by", ("Mul", "Div"))
def test_a_mask_of_the_run(way, made_by):
    """It is found behind what moves or converts it; a quotient by a large number is none."""
    more = {"Reshape": ", s", "Squeeze": ", a", "Tile": ", one"}
    step = f"{way}{'<to = 1>' if way == 'Cast' else ''}(b{more.get(way, '')})"
    text = f"""g (float[N,4,1] x, float[N,4,1] m) => (float z) {{
        b = {made_by}(m, far) c = {step} y = Add(x, c) z = ReduceSum(y) }}"""
    arrays = {"far": np.float32(-1e4), "s": np.array([0, 4, 1]), "a": np.array([2]), "one": np.ones(3, np.int64)}
    model = graph(text, **{name: array for name, array in arrays.items() if f", {name})" in text})
    (total,) = (node.outputs[0] for node in model.graph if node.op_type == "Add")
    assert masked_at_run_time(total) == (made_by == "Mul")


@pytest.mark.parametrize("kind", sorted(set(operators.FUNCTIONS) - OPSETS.keys() | {"Mish"}))
def test_a_table_is_told_as_its_function(kind):
    """Also of one that has attributes, with their defaults."""
    x, o = Affine(16.0), Affine(8.0)
    with np.errstate(all="ignore"):
        real = operators.FUNCTIONS[kind](x.real(np.arange(-128, 128)), lambda name, default: default) * o.scale
    table = np.clip(np.floor(np.nan_to_num(real) + 0.5), -128, 127).astype(np.int8)
    assert functions.function_of(table, x, o, kind) == kind
    table[::2] ^= 3
    assert functions.function_of(table, x, o, kind) is None


#: Body that makes of a Relu something that is not negative either.
KEPT = (
    "DepthToSpace<blocksize = 2>(r)",
    "Max(r, r)",
    "Sum(r, r)",
    "Div(r, five)",
    "Round(r)",
)


@pytest.mark.parametrize("body", KEPT)
def test_a_sign_is_kept(body):
    """No Relu is written out where a quantizer of what is never negative has no place for negative numbers."""
    text = f"""<ir_version: 8, opset_import: ["" : 13]> g (float[N,4,2,2] x) => (float[N,A,B,C] z) {{
        c = Neg(x) r = Relu(c) y = {body} q = QuantizeLinear(y, s, zero) z = DequantizeLinear(q, s, zero) }}"""
    model = onnx.parser.parse_model(text)
    for name, array in {"s": np.float32(0.1), "zero": np.uint8(0), "five": np.float32(5)}.items():
        if f", {name}" in text:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    assert ops(read(ir.from_proto(model)).graph).count("Relu") == 1


@pytest.mark.parametrize("kind", sorted(operators.NEVER_NEGATIVE & (operators.REDUCES.keys() | operators.ROWS)))
def test_nothing_is_negative_behind(kind):
    """Such a quantizer stands for a Relu behind anything else."""
    text = f"""<ir_version: 8, opset_import: ["" : 13]> g (float[N,4] x) => (float[N,A] z) {{
        y = {kind}(x) q = QuantizeLinear(y, s, zero) z = DequantizeLinear(q, s, zero) }}"""
    model = onnx.parser.parse_model(text)
    for name, array in {"s": np.float32(0.1), "zero": np.uint8(0)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    assert ops(read(ir.from_proto(model)).graph) == [kind]


@pytest.mark.parametrize("kind", sorted(operators.KEEP_SCALE))
def test_a_wrong_scale_is_that_of_the_tensor_before(kind, monkeypatch):
    """Where the operator keeps the scale, and the tensor before has no finding, it is not said again."""
    monkeypatch.setattr(scale_causes, "_of_scale", lambda *_: SimpleNamespace(kind="wide"))
    row = SimpleNamespace(kinds=(kind, kind), held=SimpleNamespace(q=Affine(4.0)))
    assert scale_causes.held_wrong(row, {"before": row}, {}) is None


# ---- one table -----------------------------------------------------------------------------------------------------


def test_names_of_operators_stand_in_one_table():
    """Law: no three names stand together elsewhere without a reason; a list of one's own drifts from the others."""
    found = [f"{each.file}:{each.owner}" for each in collections(Path(__file__).resolve().parents[2])]
    assert len(found) > len(REASONS), "nothing is found"
    without = [place for place in found if not place.startswith(tuple(REASONS))]
    assert not without, f"ask lingeronnx/graph/operators.py, or say in REASONS why not: {without}"
    gone = [reason for reason in REASONS if not any(place.startswith(reason) for place in found)]
    assert not gone, f"reasons for nothing: {gone}"


@pytest.mark.parametrize(
    "source, names",
    (
        ('A = ("Relu", "Tanh", "Abs")', 3),
        ('A = {"Relu": 1, "Tanh": 2, "Abs": 3}', 3),
        ('A = frozenset({"Relu"} | B - {"Tanh", "Abs"})', 3),
        ('A = [("", "Relu"), ("", "Tanh"), ("", "Abs")]', 3),
        ('A = "Relu Tanh Abs".split()', 3),
        ('def f(a):\n    return a in ("Relu", "Tanh") or a == "Abs"', 3),
        ('def f(a):\n    return a in (*B, "Relu", "Tanh", "Abs", "abs")', 3),
        ('A = ("Relu", "Tanh", "Relu")', 0),
        ('__all__ = ["Relu", "Tanh", "Abs"]', 0),
        ('A = "Relu Tanh and Abs"', 0),
    ),
)
def test_what_is_a_collection(source, names, tmp_path):
    for package in ("lingeronnx", "simulator"):
        (tmp_path / package).mkdir()
    (tmp_path / "lingeronnx" / "it.py").write_text(source)
    assert [len(each.names) for each in collections(tmp_path)] == [names] * (names > 0)


@pytest.mark.parametrize("name", operators.OPERATORS)
def test_entries_are_of_the_standard(name):
    """What an entry says of the standard's forms is what the standard says."""
    op, schemas = operators.OPERATORS[name], {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.name == name:
            schemas[schema.since_version] = schema
    assert op.since == (min(schemas) if min(schemas) > 13 else 1)
    if op.inputs_since is not None:
        attributes, version = op.inputs_since
        before = schemas[max(v for v in schemas if v < version)]
        assert set(attributes) <= set(before.attributes)
        assert not set(attributes) & set(schemas[version].attributes)
        assert tuple(value.name for value in schemas[version].inputs[1 : 1 + len(attributes)]) == attributes
    if op.named_broadcast:
        assert "broadcast" in schemas[max(v for v in schemas if v < 7)].attributes
        assert "broadcast" not in schemas[7].attributes
