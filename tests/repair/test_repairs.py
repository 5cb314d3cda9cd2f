"""One kind of damage at a time: what is found, what is done, what is refused and in which words."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lingeronnx.common.errors import ConfigError, ModelError, RepairError
from lingeronnx.interchange.repair import REPAIRS, fix_dequant, repair_model
from lingeronnx.interchange.repair.trial_run import run_repaired_graph
from tests.repair.helpers import FC, edges, graph, outputs

LAYER = "[q] q = thinker.Quant<scale_x=64.0, data_bits=8>(x) "
ONE = f"{LAYER} [f] f = thinker.LinearInt{FC}(q, w, b) "
TWO = f"{ONE} [g] g = thinker.LinearInt{FC.replace('scale_x=64.0', 'scale_x=16.0')}(f, v, c) "
DEQUANT = "thinker.Dequant<scale_o=16.0>"


def texts(report, level="wrong"):
    """Return "place text" of the findings of a level."""
    return [f"{f.node} {f.text}".strip() for f in report.findings if f.level == level]


def fixed(body, **kinds):
    """Return (model, report) of a repair that must succeed and change nothing a second time."""
    model = graph(body, **kinds)
    report = repair_model(model)
    assert not report.fatal, report.fatal
    assert not repair_model(model).edits
    return model, report


def refused(body, **kinds):
    """Return what is said of a graph that cannot be repaired."""
    report = repair_model(graph(body, **kinds))
    assert report.fatal
    return texts(report, "fatal")


def test_names_are_unique():
    """Every repair has a name of its own."""
    assert len({step.name for step in REPAIRS}) == len(REPAIRS)


def test_missing():
    """One Dequant for all readers of real numbers, behind operators that move data."""
    body = f"{ONE} [r] r = Relu(f) [s] y = Softmax<axis=1>(r) [t] z = Tanh(r)"
    model, report = fixed(body, outputs="float[1, 4] y, float[1, 4] z")
    have = edges(model)
    assert have["s[0]"] == have["t[0]"] == ["r", 0, 16.0]
    assert have["r[0]"] == ["f", 0, None]
    assert [n.op_type for n in model.graph.node].count("Dequant") == 1
    assert texts(report)[0] == (
        "Softmax s reads 'r' as real numbers, but it contains int8 (scale 2^4): a Dequant is missing"
    )


def test_right_stays_where_it_is_legal():
    """A Dequant before a Relu of real numbers is as right as one behind it."""
    body = f"{ONE} [d] d = {DEQUANT}(f) [r] r = Relu(d) [s] y = Softmax<axis=1>(r)"
    _, report = fixed(body)
    assert not report.findings


def test_wrong_scale_moves():
    """One with a wrong scale goes, and a right one comes where integers end."""
    body = (
        f"{ONE} [d] d = thinker.Dequant<scale_o=2.0>(f) [r] r = Relu(d) [s] y = Softmax<axis=1>(r)"
    )
    model, report = fixed(body)
    assert edges(model)["s[0]"] == ["r", 0, 16.0]
    assert edges(model)["r[0]"] == ["f", 0, None]
    assert texts(report) == ["Dequant d has scale_o 2^1, but 'f' has scale 2^4"]
    assert (report.wrong[0].before, report.wrong[0].after) == (2.0, 16.0)
    assert [e.action for e in report.edits] == ["insert", "rewire", "rewire", "remove"]


@pytest.mark.parametrize("scale", ("scale_o=-1.0", "scale_o=0.0", "scale_x=16.0", "axis=1"))
def test_scale_that_is_none(scale):
    """A scale that is no positive number, or is called by a wrong name."""
    model, report = fixed(f"{ONE} [d] d = thinker.Dequant<{scale}>(f) [s] y = Softmax<axis=1>(d)")
    assert edges(model)["s[0]"] == ["f", 0, 16.0]
    assert [e.action for e in report.edits] == ["rescale"]
    assert not any(
        a.name == "scale_x" for n in model.graph.node for a in n.attribute if n.op_type == "Dequant"
    )


def test_between_integers():
    """A Dequant whose reader takes integers; its other reader keeps it."""
    body = f"""{ONE} [d] d = {DEQUANT}(f)
        [g] g = thinker.LinearInt{FC.replace("scale_x=64.0", "scale_x=16.0")}(d, v, c)
        [e] y = {DEQUANT}(g) [s] z = Softmax<axis=1>(d)"""
    model, report = fixed(body, outputs="float[1, 4] y, float[1, 4] z")
    have = edges(model)
    assert have["g[0]"] == ["f", 0, None]
    assert have["s[0]"] == ["f", 0, 16.0]
    assert texts(report) == ["Dequant d is upstream of LinearInt g, which needs integers"]


def test_chain_of_three():
    """The first right one of a chain stays."""
    body = (
        f"{ONE} [a] a = thinker.Dequant<scale_o=4.0>(f) [d] d = {DEQUANT}(a) [e] e = "
        f"{DEQUANT}(d) [s] y = Tanh(e)"
    )
    model, _ = fixed(body)
    assert edges(model)["s[0]"] == ["f", 0, 16.0]


def test_at_outputs():
    """A graph output keeps its name; the integers get another, under which others read them."""
    body = f"{LAYER} [f] y = thinker.LinearInt{FC}(q, w, b) [r] r = Relu(y) [d] z = {DEQUANT}(r)"
    model, report = fixed(body, outputs="float[1, 4] y, float[1, 4] z")
    assert edges(model)["graph_output:y[0]"] == ["f", 0, 16.0]
    assert edges(model)["r[0]"] == ["f", 0, None]
    assert "y_q" in [e.tensor for e in report.edits]


def test_integer_output_becomes_float():
    """A graph output that is declared int8 is float behind its new Dequant."""
    model, report = fixed(f"{LAYER} [f] y = thinker.LinearInt{FC}(q, w, b)", outputs="int8[1, 4] y")
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert ("int8", "float") in [(f.before, f.after) for f in report.wrong]


def test_index_output():
    """Positions are no quantized numbers: the Dequant goes, and its name to what it read."""
    body = f"{ONE} [a] a = ArgMax<axis=1, keepdims=1>(f) [d] y = {DEQUANT}(a)"
    model, report = fixed(body)
    assert edges(model)["graph_output:y[0]"] == ["a", 0, None]
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.INT64
    assert texts(report)[0] == "Dequant d reads 'a', which contains indices, not quantized values"


def test_lazy_operators():
    """Concat is float between float operators, integer where an integer operator needs it, if the
    scales allow it.
    """
    second = f"[h] h = thinker.LinearInt{FC}(q, v, b) [k] k = Concat<axis=0>(f, h) "
    model, _ = fixed(f"{ONE} {second} [s] y = Softmax<axis=1>(k)", outputs="float[2, 4] y")
    assert edges(model)["k[0]"] == ["f", 0, 16.0]
    assert edges(model)["s[0]"] == ["k", 0, None]
    last = (
        f"[g] g = thinker.LinearInt{FC.replace('scale_x=64.0', 'scale_x=16.0')}(k, v, c) [d] y "
        f"= {DEQUANT}(g)"
    )
    _, report = fixed(f"{ONE} {second} {last}", outputs="float[2, 4] y")
    assert not report.findings
    other = second.replace("scale_o=16.0", "scale_o=8.0")
    (said,) = refused(f"{ONE} {other} {last}", outputs="float[2, 4] y")
    assert (
        said
        == "LinearInt g needs integers at scale 2^4, but 'k' contains real numbers: a Quant is missing"
    )


def test_clip():
    """A Clip between integer bounds takes integers, one between real bounds does not."""
    body = f"{ONE} [c] r = Clip(f, low, high) [s] y = Softmax<axis=1>(r)"
    for dtype, where in ((np.int8, ["r", 0, 16.0]), (np.float32, ["r", 0, None])):
        model = graph(body)
        for name, bound in (("low", 0), ("high", 6)):
            model.graph.initializer.append(numpy_helper.from_array(np.array(bound, dtype), name))
        model.graph.node[2].name = "r"
        assert not repair_model(model).fatal
        assert edges(model)["s[0]"] == where


@pytest.mark.parametrize(
    "domain, op_type, kind", (("own", "Mystery", 16.0), ("thinker", "Mystery", None))
)
def test_unknown_operators(domain, op_type, kind):
    """Outside the quantized domains an unknown operator is float, inside it is told by its
    attributes.
    """
    model = graph(f"{ONE} [m] m = {domain}.{op_type}<scale_o=4.0>(f) [s] y = Softmax<axis=1>(m)")
    model.opset_import.append(helper.make_opsetid("own", 1))
    report = repair_model(model)
    assert not report.fatal
    assert edges(model)["m[0]"][2] == kind
    assert edges(model)["s[0]"][2] == (None if domain == "own" else 4.0)


def test_scale_said_nowhere():
    """Integers without a scale cannot become real numbers."""
    (said,) = refused(f"{ONE} [m] m = thinker.Mystery(f) [s] y = Softmax<axis=1>(m)")
    assert said == "Softmax s needs a Dequant of 'm' (int8), whose scale is unknown"


def test_quant_missing():
    """An integer operator that gets real numbers cannot be mended."""
    (said,) = refused(
        f"[t] t = Tanh(x) [f] f = thinker.LinearInt{FC}(t, w, b) [d] y = {DEQUANT}(f)"
    )
    assert (
        said
        == "LinearInt f needs integers at scale 2^6, but 't' contains real numbers: a Quant is missing"
    )


def test_inputs():
    """A graph input that an integer operator reads is int8; one that a float operator reads is
    not.
    """
    body = f"[f] f = thinker.LinearInt{FC}(x, w, b) [d] d = {DEQUANT}(f) [a] y = Add(d, e)"
    model, report = fixed(body, inputs="float[1, 4] x, int8[1, 4] e")
    kinds = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    assert kinds == {"x": TensorProto.INT8, "e": TensorProto.FLOAT}
    assert [(f.before, f.after) for f in report.wrong] == [("float", "int8"), ("int8", "float")]


def test_integer_input_read_by_both():
    """The scale of an integer graph input is that at which its integer reader reads it."""
    body = f"[f] f = thinker.LinearInt{FC}(x, w, b) [d] y = {DEQUANT}(f) [s] z = Softmax<axis=1>(x)"
    model, _ = fixed(body, inputs="int8[1, 4] x", outputs="float[1, 4] y, float[1, 4] z")
    assert edges(model)["s[0]"] == ["input:x", 0, 64.0]


def test_indices_stay_inputs():
    """An int8 input that a Gather reads, or an int32 one, is left alone."""
    body = f"{ONE} [d] d = {DEQUANT}(f) [g] y = Gather<axis=1>(d, i)"
    for kind in ("int64", "int32"):
        _, report = fixed(body, inputs=f"float[1, 4] x, {kind}[4] i")
        assert not report.findings


def test_order():
    """Nodes out of order are sorted; those of a cycle cannot be."""
    model, report = fixed(f"[s] y = Softmax<axis=1>(d) [d] d = {DEQUANT}(f) {ONE}")
    assert [n.name for n in model.graph.node] == ["q", "f", "d", "s"]
    assert texts(report) == ["Softmax s precedes the producer of its input 'd' (and 1 more)"]
    said = refused(f"[a] a = Relu(k) [k] k = Relu(a) {ONE} [d] y = {DEQUANT}(f)")
    assert said == ["Relu a depends on its own output; it is unclear where to break the cycle"]


def test_written_twice():
    """Two nodes that do the same are one; two that do not cannot be told apart."""
    model, _ = fixed(
        f"{ONE} [d] d = {DEQUANT}(f) [d] d = thinker.Dequant<scale_o=2.0>(f) [s] y = Tanh(d)"
    )
    assert edges(model)["s[0]"] == ["f", 0, 16.0]
    said = refused(f"{ONE} [d] d = {DEQUANT}(f) [e] d = {DEQUANT}(q) [s] y = Tanh(d)")
    assert said == ["Dequant e 'd' is also computed by Dequant d; it is unclear which is correct"]


def test_names_given_twice():
    """Of two nodes of one name the second gets a number."""
    model, _ = fixed(f"{ONE} [f] d = {DEQUANT}(f) [f] y = Tanh(d)")
    assert [n.name for n in model.graph.node] == ["q", "f", "f_2", "f_3"]


def test_identities():
    """Those in the way go; one that gives a graph output its name stays."""
    body = (
        f"{ONE} [i] i = Identity(f) [j] j = Identity(i) [d] d = {DEQUANT}(j) [k] k = "
        "Identity(d) [s] y = Tanh(k)"
    )
    model, report = fixed(body)
    assert [n.op_type for n in model.graph.node] == ["Quant", "LinearInt", "Dequant", "Tanh"]
    assert len(report.edits) == 3
    _, report = fixed(
        f"{ONE} [d] y = {DEQUANT}(f) [i] z = Identity(y)", outputs="float[1, 4] y, float[1, 4] z"
    )
    assert not report.findings


def test_lost_edge_by_scale():
    """A name that nobody writes is the one tensor that nobody reads and whose scale is the
    reader's.
    """
    body = f"""{LAYER} [f] f = thinker.LinearInt{FC}(q, w, b)
        [e] e = thinker.LinearInt{FC.replace("scale_o=16.0", "scale_o=8.0")}(q, v, b)
        [g] g = thinker.LinearInt{FC.replace("scale_x=64.0", "scale_x=16.0")}(lost, v, c) [d] y = {DEQUANT}(g)"""
    model, report = fixed(body)
    assert edges(model)["g[0]"] == ["f", 0, None]
    assert texts(report) == [
        "LinearInt g reads undefined tensor 'lost'; the only match is the unused tensor 'f'"
    ]


def test_lost_edge_by_shape():
    """Where kind and scale leave two, the shape decides."""
    body = f"""{LAYER} [f] f = thinker.LinearInt{FC}(q, w, b) [r] r = Concat<axis=1>(f, f)
        [g] g = thinker.LinearInt{FC}(q, v, c) [m] m = Flatten(lost) [d] y = {DEQUANT}(m)"""
    model, _ = fixed(body)
    assert edges(model)["m[0]"] == ["g", 0, None]
    wide, _ = fixed(body, outputs="float[1, 8] y")
    assert edges(wide)["m[0]"] == ["r", 0, None]
    assert edges(wide)["r[0]"] == edges(wide)["r[1]"] == ["f", 0, None]


def test_lost_twice():
    """Two names for which the same tensor fits alone: one of them would be a guess."""
    body = f"""{ONE} [g] g = thinker.LinearInt{FC.replace("scale_x=64.0", "scale_x=16.0")}(one, v, c)
        [h] h = thinker.LinearInt{FC.replace("scale_x=64.0", "scale_x=16.0")}(two, v, c)
        [a] a = thinker.iqAdd<scale_x=16.0, scale_y=16.0, scale_o=8.0>(g, h) [d] y = thinker.Dequant<scale_o=8.0>(a)"""
    said = refused(body)
    assert said[0] == (
        "LinearInt g reads undefined tensor 'one'; 'f' matches, but it also matches the undefined "
        "tensor 'two'"
    )


def test_lost_weight():
    """A weight is nothing that a tensor could stand in for."""
    model = graph(f"{ONE} [d] y = {DEQUANT}(f)")
    del model.graph.initializer[0]
    said = texts(repair_model(model), "fatal")
    assert said == [
        ("LinearInt f reads undefined tensor 'w'; no unused tensor matches; export the model again")
    ]


def test_lost_output():
    """A graph output that nobody writes is the tensor that nobody reads, with a Dequant where it
    holds integers.
    """
    model, _ = fixed(f"{ONE} [r] r = Relu(f)")
    assert edges(model)["graph_output:y[0]"] == ["r", 0, 16.0]
    model, _ = fixed(f"{ONE} [d] d = {DEQUANT}(f) [t] t = Tanh(d)")
    assert edges(model)["graph_output:y[0]"] == ["t", 0, None]
    assert not any(n.op_type == "Identity" for n in model.graph.node)


def test_notes():
    """Notes on tensors that are not there go; wrong types and shapes do not survive."""
    model = graph(f"{ONE} [d] d = {DEQUANT}(f) [s] y = Softmax<axis=1>(d)")
    kinds = (
        ("gone", 1, [1, 4]),
        ("f", 1, [1, 4]),
        ("d", 3, [1, 4]),
        ("q", 3, [1, 5]),
        ("s", 1, None),
    )
    model.graph.value_info.extend(helper.make_tensor_value_info(*kind) for kind in kinds)
    report = repair_model(model)
    assert {v.name: v.type.tensor_type.elem_type for v in model.graph.value_info} == {
        "f": 3,
        "d": 1,
    }
    assert {f.tensor for f in report.wrong} == {"gone", "f", "d", "q", "s"}
    assert not repair_model(model).edits


def test_scales_that_disagree():
    """The producer's scale counts; a reader that says another is told and left alone."""
    body = TWO.replace("scale_x=16.0", "scale_x=32.0") + f"[d] y = {DEQUANT}(g)"
    _, report = fixed(body)
    assert texts(report, "note") == [
        "LinearInt g reads 'f' at scale 2^5, but its producer has scale 2^4"
    ]
    assert not report.edits


@pytest.mark.parametrize("attributes, scale", (("scale_i=64.0", None), ("scale_x=64.0", 128.0)))
def test_states(attributes, scale):
    """The last state is real in the first generation's exports, integers in today's."""
    body = f"""[q] q = thinker.Quant<scale_x=64.0, data_bits=8>(x)
        [l] s, h, c = thinker.LSTMInt<input_size=4, hidden_size=4, {attributes}, scale_h=128.0, scale_iw=64.0,
            scale_hw=64.0, scale_o=128.0, data_bits=8, parameter_bits=8, o_bits=8>(q, w, v, b, c0)
        [t] y = Tanh(s) [u] z = Tanh(h)"""
    shape = {"inputs": "float[1, 3, 4] x", "outputs": "float[1, 3, 4] y, float[1, 1, 4] z"}
    model = graph(body, **shape)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(16, np.int32), "c0"))
    assert not repair_model(model).fatal
    assert edges(model)["t[0]"] == ["l", 0, 128.0]
    assert edges(model)["u[0]"] == ["l", 1, scale]


def test_third_generation():
    """Names of the third generation, in its own domain, which new Dequants take too."""
    model = graph("""[q] q = linger.Quant<scale_x=64.0, data_bits=8>(x)
        [f] f = linger.QLinear<x_bits=8, w_bits=8, o_bits=8, scale_x=64.0, scale_w=64.0, scale_o=16.0>(q, w, b)
        [s] y = Softmax<axis=1>(f)""")
    model.opset_import.append(helper.make_opsetid("linger", 1))
    assert not repair_model(model).fatal
    assert edges(model)["s[0]"] == ["f", 0, 16.0]
    assert {n.domain for n in model.graph.node if n.op_type == "Dequant"} == {"linger"}


def branches(then, other, result="float[1, 4] o"):
    """Return a graph that hands 'f' to two branches."""
    body = f"{ONE} [n] o = If(flag) <then_branch = a () => ({then[0]}) {{ {then[1]} }}, "
    return body + f"else_branch = b () => ({other[0]}) {{ {other[1]} }}> [s] y = Softmax<axis=1>(o)"


def test_branches():
    """Integers go through an If where both branches hand them out, else each branch gets its own
    Dequant.
    """
    inputs = "float[1, 4] x, bool flag"
    both = branches(("int8[1, 4] p", "[r] p = Relu(f)"), ("int8[1, 4] r", "[i] r = Identity(f)"))
    model, _ = fixed(both, inputs=inputs)
    assert edges(model)["s[0]"] == ["n", 0, 16.0]
    mixed = branches(("float[1, 4] p", "[r] p = Relu(f)"), ("float[1, 4] r", "[t] r = Tanh(f)"))
    model, report = fixed(mixed, inputs=inputs)
    assert edges(model)["s[0]"] == ["n", 0, None]
    assert edges(model)["n/else_branch/t[0]"][2] == 16.0
    inner = next(a.g for n in model.graph.node for a in n.attribute if a.name == "then_branch")
    assert [n.op_type for n in inner.node] == ["Relu", "Dequant"]
    assert inner.output[0].name == inner.node[1].output[0]
    assert {e.action for e in report.edits} == {"insert", "rewire"}


def test_saving(tmp_path):
    """By default beside the original, which is never overwritten; not where there is no folder."""
    path = tmp_path / "legacy.onnx"
    onnx.save(graph(f"{ONE} [s] y = Softmax<axis=1>(f)"), path)
    before = path.read_bytes()
    result = fix_dequant(path)
    assert result.save() == tmp_path / "legacy_fix.onnx"
    with pytest.raises(RepairError, match="refusing to overwrite"):
        result.save(path)
    with pytest.raises(ConfigError, match="cannot write"):
        result.save(tmp_path / "no" / "where.onnx")
    assert path.read_bytes() == before
    with pytest.raises(ModelError, match="does not exist"):
        fix_dequant(tmp_path / "other.onnx")


def test_external_data(tmp_path):
    """A right graph with data beside it is written as it is, into another folder with its data
    inside.
    """
    model = graph(f"{ONE} [d] y = {DEQUANT}(f)")
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="model.data", size_threshold=0)
    result = fix_dequant(path)
    assert not result.changed
    assert result.save().read_bytes() == path.read_bytes()
    (tmp_path / "other").mkdir()
    moved = onnx.load(result.save(tmp_path / "other" / "model.onnx"))
    assert all(t.data_location == TensorProto.DEFAULT for t in moved.graph.initializer)
    assert not fix_dequant(tmp_path / "other" / "model.onnx").changed


def test_run():
    """The run tells shapes, types and ranges; what fails is told with its node."""
    model, _ = fixed(f"{ONE} [s] y = Softmax<axis=1>(f)")
    (output,) = run_repaired_graph(model).outputs
    assert (output.name, list(output.shape), output.dtype) == ("y", [1, 4], "float32")
    assert 0 <= output.low <= output.high <= 1
    assert run_repaired_graph(model) == run_repaired_graph(model)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4)).astype(np.float32)}
    assert output.high == outputs(model, feeds)["y"].max()
    model.graph.node.append(helper.make_node("Mystery", ["y"], ["z"], name="strange", domain="own"))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.output[0].name = "z"
    assert "own:Mystery" in run_repaired_graph(model).error


BATCH_NORM = "[n] n = thinker.BatchNorm2dInt<data_bits=8, parameter_bits=8, o_bits=8, {}>(f, a, z)"
SUM = "scale_mul_x=16.0, scale_mul_w=64.0, scale_mul_o=32.0, scale_add_b=32.0, scale_add_o=8.0"


def test_batch_norm_of_the_oldest_files():
    """Its sum's scale is the output's, not that of its product and not its input's."""
    body = f"{ONE} {BATCH_NORM.format(SUM)} [s] y = Softmax<axis=1>(n)"
    model, _ = fixed(body, inputs="float[1, 4] x, int8[4] a, int32[4] z")
    assert edges(model)["s[0]"] == ["n", 0, 8.0]
    stays = (
        f"{ONE} {BATCH_NORM.format(SUM)} [d] d = thinker.Dequant<scale_o=8.0>(n) [s] y = "
        "Softmax<axis=1>(d)"
    )
    model = graph(stays, inputs="float[1, 4] x, int8[4] a, int32[4] z")
    assert not [f for f in repair_model(model).findings if f.repair == "dequants"]


MISSING_SCALE = (
    BATCH_NORM.format("scale_x=16.0, scale_w=64.0"),
    "[n] n = thinker.iqAdd<scale_x=16.0, scale_y=16.0>(f, f)",
    "[n] n = thinker.iqMul<scale_x=16.0, scale_y=16.0>(f, f)",
    "[n] n = thinker.iqCat<dim=1, scale_x_0=16.0, scale_x_1=16.0>(f, f)",
    "[n] n = thinker.Requant<data_bits=8, o_bits=16, scale_x=16.0>(f)",
    "[n] n = thinker.GluInt<dim=1, scale_x=16.0>(f)",
    (
        "[n] n = thinker.LayerNormInt<data_bits=8, parameter_bits=16, scale_x=16.0, scale_w=64.0>(f, "
        "a, z)"
    ),
)


@pytest.mark.parametrize("node", MISSING_SCALE, ids=lambda node: node.split(".")[1].split("<")[0])
def test_a_missing_output_scale_is_not_the_inputs(node):
    """Who computes at a scale of its own and does not say it has none that anybody could know, but
    for a Dequant.
    """
    kinds = {"inputs": "float[1, 4] x, int8[4] a, int32[4] z"} if "a, z" in node else {}
    text = refused(f"{ONE} {node} [s] y = Softmax<axis=1>(n)", **kinds)[0]
    assert text.startswith("Softmax s needs a Dequant of 'n' (int")
    assert text.endswith("whose scale is unknown")
    model = graph(
        f"{ONE} {node} [d] d = thinker.Dequant<scale_o=2.0>(n) [s] y = Softmax<axis=1>(d)", **kinds
    )
    repair_model(model)
    assert edges(model)["s[0]"] == ["n", 0, 2.0]


def test_table_scale_of_the_first_generation():
    """An embedding's Gather that says its table's scale only hands on that scale."""
    body = (
        "[g] g = thinker.Gather<scale_w=32.0, parameter_bits=8>(w, x) [s] y = Softmax<axis=-1>(g)"
    )
    model, _ = fixed(body, inputs="int64[1, 4] x", outputs="float[1, 4, 4] y")
    assert edges(model)["s[0]"] == ["g", 0, 32.0]
