"""What has sizes that the data decide is the host's: cut off before calibration, put back behind
the integers.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from lingeronnx.ir.dynamic_tail import split_dynamic_tail
from lingeronnx.runtime.runners import FloatRunner
from tests.passes.helpers import graph, proto, rand

_BODY = "c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) d = Conv(r, v) f = Reshape(d, rows)"
_HELD = {"w": rand(4, 3, 3, 3), "v": rand(5, 4, 1, 1, seed=1), "rows": np.array([1, 5, 16])}
_IN = "float[1,3,4,4] x"
_NUMBERS = {
    name: np.array(value)
    for name, value in {
        "zero": [0],
        "one": [1],
        "two": [2],
        "four": [4],
        "five": [5],
        "many": [4],
        "last": [3],
        "none": 0,
        "true": True,
    }.items()
}

#: What decides the sizes -> (outputs, what comes behind f [1, 5, 16], more constants).
TAILS = {
    "boxes": (
        "float[1,K,4] y",
        """p = Slice(f, zero, four, one) b = Transpose<perm = [0, 2, 1]>(p) s = Slice(f, four, five, one)
        n = NonMaxSuppression(b, s, many, overlap, least) i = Slice(n, two, last, one) k = Squeeze(i, one)
        y = Gather<axis = 1>(b, k)""",
        {"overlap": np.array([0.5], np.float32), "least": np.array([0.2], np.float32)},
    ),
    "what is above a bound": (
        "float[K] y",
        "g = Greater(f, bound) n = NonZero(g) t = Transpose<perm = [1, 0]>(n) y = GatherND(f, t)",
        {"bound": np.float32(0.8)},
    ),
    "chosen values": (
        "float[K] y",
        "l = Flatten<axis = 0>(f) q = Squeeze(l, zero) g = Greater(q, bound) y = Compress(q, g)",
        {"bound": np.float32(0.8)},
    ),
    "as many as are above a bound": (
        "float[1,5,K] y, int64[1,5,K] i",
        """g = Greater(f, bound) h = Cast<to = 7>(g) n = ReduceSum<keepdims = 0>(h) m = Min(n, most)
        e = Reshape(m, one) y, i = TopK(f, e)""",
        {"bound": np.float32(9), "most": np.array(16)},
    ),
    "a slice": (
        "float[1,5,K] y",
        """g = ArgMax<axis = 2, keepdims = 0>(f) a = ReduceMax<keepdims = 0>(g) e = Reshape(a, one)
        y = Slice(f, zero, e, two)""",
        {},
    ),
    "a branch": (
        "float[1,5,16] y",
        """m = ReduceMax<keepdims = 0>(f) g = Greater(m, bound)
        y = If(g) <then_branch = up () => (float[1,5,16] u) { u = Neg(f) },
        else_branch = same () => (float[1,5,16] e) { e = Identity(f) }>""",
        {"bound": np.float32(2.5)},
    ),
}


def _model(name):
    outputs, tail, more = TAILS[name]
    text = f"g ({_IN}) => ({outputs}) {{ {_BODY} {tail} }}"
    held = {**_HELD, **_NUMBERS, **more}
    model = proto(text, opset=17)
    used = {n for node in model.graph.node for n in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(held[n]), n) for n in used & held.keys()
    )
    return model


def _run(model, feed, names):
    return {name: array for name, array, _ in FloatRunner(model, names).run(feed)}


def _feeds(count=12, seed=5):
    return [{"x": rand(1, 3, 4, 4, seed=seed + n)} for n in range(count)]


@pytest.mark.sweep
@pytest.mark.parametrize("platform", ("generic", pytest.param("venus", marks=pytest.mark.slow)))
@pytest.mark.parametrize("name", TAILS)
def test_the_host_has_it(name, platform, tmp_path):
    """The tail of the written file computes of the integer part's results what it computes in
    float.
    """
    source = graph_of(_model(name))
    found = lo.quantize(source, _feeds(), platform=platform, effort="fast")
    path = tmp_path / "q.onnx"
    found.write(path)
    session, tail = lo.Session(path), split_dynamic_tail(source)
    outputs = [str(v.name) for v in source.graph.outputs]
    reads = [n for n in tail.input_names if n in {str(v.name) for v in tail.body.graph.outputs}]
    ragged = set()
    for feed in _feeds(6, 40):
        names = [*outputs, *reads]
        have = dict(zip(names, session.run(names, feed), strict=True))
        want = _run(source, feed, reads)
        for read in reads:
            assert np.abs(have[read] - want[read]).max() < 0.1 * np.abs(want[read]).max()
        again = _run(tail.model, {n: have[n] for n in tail.input_names}, outputs)
        for output in outputs:
            np.testing.assert_array_equal(have[output], again[output])
        ragged.add(tuple(have[output].shape for output in outputs))
    assert len(ragged) > (name != "a branch")
    assert {entry.node for entry in found.report.host_part} >= tail.host_reasons.keys()
    assert found.report.integer_macs == 1
    assert any(note.startswith("shapes that depend on values") for note in found.report.notes)
    assert found.report.chip_ready == (platform == "venus")


def graph_of(model):
    from lingeronnx.ir import ir

    return ir.from_proto(model)


@pytest.mark.parametrize("name", TAILS)
def test_nodes_are_told_in_the_order_of_the_graph(name):
    source = graph_of(_model(name))
    order = [str(node.name) for node in source.graph]
    told = list(split_dynamic_tail(source).host_reasons)
    assert told == sorted(told, key=order.index)


def test_a_branch_is_not_said_to_have_another_shape():
    reasons = split_dynamic_tail(graph_of(_model("a branch"))).host_reasons
    (reason,) = [reason for reason in reasons.values() if "operators run" in reason]
    assert reason == "which of its operators run, or how often, depends on input values"
    shapes = split_dynamic_tail(graph_of(_model("a slice"))).host_reasons.values()
    assert "its output shape depends on input values and differs between samples" in shapes


def test_samples_are_not_stacked():
    found = lo.quantize(
        graph_of(_model("what is above a bound")), _feeds(), platform="generic", effort="fast"
    )
    batch = {"x": np.concatenate([feed["x"] for feed in _feeds(6, 40)])}
    with pytest.raises(
        ModelError, match="the shape of tensor 'y' depends on the data and differs between these 6"
    ):
        lo.Session(found.graph).run(None, batch)
    tensors = {name for name, *_ in lo.Session(found.graph).taps(batch)}
    assert "f" in tensors
    assert "y" not in tensors


def test_an_open_batch_goes_through_as_a_whole():
    """A model for any number of samples: its tail sees all of them, as in onnxruntime."""
    text = (
        "g (float[N,4] x) => (int64[2,K] y) { a = MatMul(x, w) r = Tanh(a) g = Greater(r, "
        "bound) y = NonZero(g) }"
    )
    model = graph(text, w=rand(4, 3), bound=np.float32(0.5))
    session = lo.Session(
        lo.quantize(model, {"x": rand(32, 4)}, platform="generic", effort="fast").graph
    )
    x = rand(6, 4, seed=9)
    y, r = session.run(["y", "r"], {"x": x})
    np.testing.assert_array_equal(y, np.stack(np.nonzero(r > 0.5)))


@pytest.mark.parametrize(
    "text",
    (
        "s = Shape(x) k = ConstantOfShape(s) o = Not(z) n = NonZero(k) y = MatMul(x, w)",
        "s = Shape(x) h = Gather(s, none) p = Range(none, h, step) m = MatMul(x, w) y = Relu(m)",
        "m = MatMul(x, w) y, i = TopK(m, one)",
    ),
)
def test_sizes_that_follow_from_sizes_stay(text):
    held = {
        "w": rand(4, 3),
        "none": np.array(0),
        "step": np.array(1),
        "z": np.array(True),
        "one": np.array([1]),
    }
    model = graph(f"g (float[N,4] x) => (float[N,M] y) {{ {text} }}", **held)
    assert split_dynamic_tail(model) is None


def test_layers_behind_are_not_cut_off():
    """Where most layers would be the host's, nothing is cut."""
    text = """g (float[N,4] x) => (float[K,3] y) { m = ReduceMax<axes = [1], keepdims = 0>(x) g = Greater(m, b)
        n = Compress<axis = 0>(x, g) a = MatMul(n, w) y = Relu(a) }"""
    model = graph(text, w=rand(4, 3), b=np.float32(0))
    assert split_dynamic_tail(model) is None


def test_a_loop_over_everything_gets_a_line(tmp_path):
    """Control flow in front of the layers cannot be cut off: one line names it."""
    text = """g (float[1,4] x) => (float[1,3] y) { m = ReduceMax<keepdims = 0>(x) g = Greater(m, b)
        h = If(g) <then_branch = up () => (float[1,4] u) { u = Neg(x) },
        else_branch = same () => (float[1,4] e) { e = Identity(x) }> y = MatMul(h, w) }"""
    onnx.save(proto(text, w=rand(4, 3), b=np.float32(0)), tmp_path / "m.onnx")
    run = CliRunner().invoke(
        cli.main, ["quantize", str(tmp_path / "m.onnx"), "--platform", "generic"]
    )
    assert run.exit_code == 1
    assert "its condition is computed at run time" in " ".join(run.output.split())


def test_an_operator_that_nobody_here_knows_is_the_hosts():
    """A plug-in behind the network: what it reads is measured; a function of the model is none."""
    text = """g (float[N,4] x) => (float[N,3] y) {
        a = MatMul(x, w) r = Relu(a) z = MatMul(r, v) y = my.domain.Thing(z)
    }"""
    model = proto(text, w=rand(4, 4), v=rand(4, 3))
    model.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    for platform in ("generic", "venus"):
        found = lo.quantize(
            ir.from_proto(model), {"x": rand(16, 4)}, platform=platform, effort="fast"
        )
        assert list(found.report.outputs) == ["z"]
        assert found.report.outputs["z"]["sqnr"] > 25
        assert [node.op_type for node in found.report.host_part] == ["Thing"]
        assert any(note.startswith("unknown operators") for note in found.report.notes)
        assert found.graph.graph.node(-1).op_type == "Thing"
        (z,) = lo.Session(found.graph).run(["z"], {"x": rand(2, 4)})
        assert z.shape == (2, 3)
    front = text.replace("MatMul(x, w)", "my.domain.Thing(x)").replace(
        "my.domain.Thing(z)", "Tanh(z)"
    )
    model = proto(front, v=rand(4, 3))
    model.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    with pytest.raises(lo.ModelError, match="does not know the operator my.domain:Thing"):
        lo.quantize(ir.from_proto(model), {"x": rand(16, 4)})


@pytest.mark.parametrize("place", [0, 1])
def test_turns_that_an_input_gives(place):
    """A loop as often as an input says: the line names the option; then it is unrolled."""
    given = ("n, t", "k, n")[place]
    kind = ("int64", "bool")[place]
    text = f"""g (float[N,4] x, {kind} n) => (float[N,3] y) {{
        z = Loop ({given}, x) <body = b (int64 i, bool c, float[N,4] s) => (bool d, float[N,4] u) {{
            d = Identity(c) u = Mul(s, h) }}>
        a = MatMul(z, w) y = Relu(a) }}"""
    held = {"t": np.array(True), "k": np.array(3), "h": np.float32(0.5), "w": rand(4, 3)}
    model = ir.from_proto(proto(text, **{k: v for k, v in held.items() if k in (*given, "h", "w")}))
    data = {"x": rand(16, 4), "n": np.array((2, True)[place])}
    with pytest.raises(lo.ModelError, match="depends on input 'n'; fix that input: --fix n=VALUE"):
        lo.quantize(model, data)
    assert (
        lo.quantize(model, data, fix={"n": int(data["n"])}, effort="fast").report.outputs["y"][
            "sqnr"
        ]
        > 25
    )
