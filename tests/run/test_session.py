"""Session: onnxruntime's face, every tensor by name, any batch, float islands, quantized feeds,
errors.
"""

import numpy as np
import onnx
import pytest

from lingeronnx.common.errors import ConfigError, DataError, ModelError
from lingeronnx.ir import ir
from lingeronnx.runtime.session import Session
from tests import nets


@pytest.fixture(scope="module")
def branches():
    """Return the integer graph of a net with two outputs."""
    return nets.quantized(nets.branches()).graph


@pytest.fixture(scope="module")
def x():
    """Return seven samples for it."""
    return nets.samples(nets.branches(), 7, seed=3)["x"]


def integers(graph, feeds):
    return {name: array for name, array, _ in Session(graph).taps(feeds)}


# ---- the face of InferenceSession ------------------------------------------------------------------------------------


def test_face(branches, x):
    """get_inputs, get_outputs, run(names, feeds), run(None, feeds), call."""
    session = Session(branches)
    (given,) = session.get_inputs()
    assert (given.name, given.shape, given.type) == ("x", [1, 4, 8, 8], "tensor(float)")
    assert [(o.name, o.type) for o in session.get_outputs()] == [
        ("y", "tensor(float)"),
        ("z", "tensor(float)"),
    ]
    y, z = session.run(None, {"x": x})
    assert (y.shape, y.dtype, z.shape) == ((7, 4, 4, 4), np.float32, (7, 16, 6))
    (again,) = session.run(["z"], {"x": x})
    np.testing.assert_array_equal(again, z)
    swapped = session.run(["z", "y"], {"x": x})
    np.testing.assert_array_equal(swapped[1], y)
    np.testing.assert_array_equal(session(x)[0], y)


def test_float_model(x):
    """A float model runs in onnxruntime with the same face, taps included."""
    session = Session(nets.branches())
    assert not session.is_integer
    assert session.get_inputs()[0].shape == [None, 4, 8, 8]
    taps = {name: (array, scale) for name, array, scale in session.taps({"x": x})}
    assert all(scale is None for _, scale in taps.values())
    np.testing.assert_array_equal(taps["y"][0], session.run(["y"], {"x": x})[0])
    np.testing.assert_array_equal(session.run(["x"], {"x": x})[0], x)


def test_from_a_file(branches, x, tmp_path):
    """The file and the graph in memory give the same."""
    ir.save(branches, tmp_path / "m.onnx")
    for one, two in zip(
        Session(tmp_path / "m.onnx").run(None, {"x": x}),
        Session(branches).run(None, {"x": x}),
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)


def test_a_cut_along_several_axes_from_a_file(tmp_path):
    """A Slice for each axis, whose bounds are called otherwise than the tensors between, or the
    file would not open.
    """
    net = nets.Net(3, 8, 9, seed=6)
    y = net.conv("x", (4, 3, 3, 3), pads=[1] * 4)
    bounds = ([1, 2, -1], [4, 7, -9], [1, 2, 3], [1, 2, -3])
    cut = net.node("Slice", y, *(net.const(np.array(b, np.int64)) for b in bounds))
    graph = nets.quantized(
        net.graph(net.conv(cut, (2, 3, 1, 1), out="y")), platform="generic", effort="fast"
    ).graph
    slices = [node for node in graph.graph if node.op_type == "Slice"]
    assert len(slices) == 3
    names = [v.name for node in graph.graph for v in node.outputs] + list(graph.graph.initializers)
    assert len(names) == len(set(names))
    ir.save(graph, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((3, 3, 8, 9)).astype(np.float32)
    had, have = (integers(g, {"x": x}) for g in (graph, tmp_path / "m.onnx"))
    assert had.keys() == have.keys()
    for name, array in had.items():
        np.testing.assert_array_equal(have[name], array)
    before, after = had[slices[0].inputs[0].name], had[slices[-1].outputs[0].name]
    np.testing.assert_array_equal(after, before[:, 1:4, 2:7:2, -1:-9:-3])


# ---- taps ------------------------------------------------------------------------------------------------------------


def test_taps(branches, x):
    """Every tensor, in graph order: integers with their scale, real values with None."""
    stream = list(Session(branches).taps({"x": x}))
    assert [name for name, _, _ in stream] == [str(v.name) for v in ir.iter_values(branches)]
    for name, array, scale in stream:
        assert len(array) == 7
        assert (scale is None) == (array.dtype == np.float32), name
        assert scale is None or (array.dtype == np.int8 and np.frexp(scale)[0] == 0.5)


def test_any_tensor_by_name(branches, x):
    """Each tensor alone is what it is among all."""
    session, every = Session(branches), integers(branches, {"x": x})
    for name, want in every.items():
        (got,) = session.run([name], {"x": x})
        np.testing.assert_array_equal(got, want)


def test_dequantized_is_the_integer_over_its_scale(branches, x):
    """Law: ``value = integer / scale`` at every output."""
    taps = {name: (array, scale) for name, array, scale in Session(branches).taps({"x": x})}
    for name in ("y", "z"):
        array, scale = taps[f"{name}_q"]
        np.testing.assert_array_equal(taps[name][0], (array / scale).astype(np.float32))


@pytest.mark.parametrize("array", [np.zeros((7, 1), np.int16), np.zeros((7, 1), np.int8)])
def test_what_does_not_fit_cannot_be_forced(branches, x, array):
    """One line for integers of another type or shape than the tensor has."""
    with pytest.raises(DataError, match="the forced value of y_q is int"):
        list(Session(branches).taps({"x": x}, force={"y_q": array}))


# ---- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("net", nets.NETS, ids=lambda net: net.__name__)
@pytest.mark.parametrize("platform", ("venus", "generic"))
def test_any_batch_split(net, platform):
    """Law: any split of the samples into batches gives the same integers in every tensor."""
    graph = nets.quantized(net(), platform=platform, effort="fast").graph
    feeds = nets.samples(net(), 19, seed=1)
    whole = integers(graph, feeds)
    session = Session(graph)
    for sizes in ([1] * 19, [7, 7, 5], [16, 3]):
        ends = np.cumsum(sizes)
        parts = [
            {n: a for n, a, _ in session.taps({k: v[e - s : e] for k, v in feeds.items()})}
            for s, e in zip(sizes, ends, strict=True)
        ]
        for name, want in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), want)


# ---- float islands ---------------------------------------------------------------------------------------------------


def fallback():
    net = nets.Net(3, 8, 8, seed=5)
    a = net.conv("x", (4, 3, 3, 3), out="a")
    s = net.node("Sin", net.node("Cos", a, out="c"), out="s")
    return net.graph(net.conv(s, (4, 4, 3, 3), out="y"))


def test_float_fallback():
    """Float operators between convolutions run in real numbers; the integer ones around them in
    integers.
    """
    result = nets.quantized(fallback(), effort="fast")
    assert [n.op_type for n in result.report.float_nodes] == ["Cos", "Sin"]
    feeds = nets.samples(fallback(), 9)
    taps = {name: (array, scale) for name, array, scale in Session(result.graph).taps(feeds)}
    np.testing.assert_allclose(taps["s"][0], np.sin(np.cos(taps["a"][0])), rtol=0, atol=1e-6)
    scale = taps["s_q"][1]
    want = np.clip(np.floor(taps["s"][0].astype(np.float64) * scale + 0.5), -128, 127)
    assert np.abs(taps["s_q"][0] - want).max() <= 1  # one ulp of float32 may tip a tie
    singles = [Session(result.graph).run(["y"], {"x": feeds["x"][i : i + 1]})[0] for i in range(9)]
    np.testing.assert_array_equal(np.concatenate(singles), taps["y"][0])


def test_fallback_inside_is_not_lost():
    """A tensor between two float nodes can be asked for by name."""
    result = nets.quantized(fallback(), effort="fast")
    feeds = nets.samples(fallback(), 3)
    (a, c) = Session(result.graph).run(["a", "c"], feeds)
    np.testing.assert_allclose(c, np.cos(a), rtol=0, atol=1e-6)
    names = [name for name, _, _ in Session(result.graph).taps(feeds)]
    assert names == [str(v.name) for v in ir.iter_values(result.graph)]


def test_tensor_that_is_not_computed(branches, x):
    """The real input behind a quantized feed does not exist: a ConfigError, not a KeyError."""
    (array,) = Session(branches).run(["x_q"], {"x": x})
    with pytest.raises(ConfigError, match="tensor 'x' is not available"):
        Session(branches).run(["x"], {"x": array})


# ---- quantized feeds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ("venus", "generic"))
def test_quantized_feed(platform, x):
    """An int8 array is taken as the Quant's output: the same integers everywhere behind it."""
    graph = nets.quantized(nets.branches(), platform=platform, effort="fast").graph
    real = {name: (array, scale) for name, array, scale in Session(graph).taps({"x": x})}
    array, _ = real["x_q"]
    for name, got, scale in Session(graph).taps({"x": array}):
        if name != "x":
            np.testing.assert_array_equal(got, real[name][0])
            assert scale == real[name][1]


def test_quantized_feed_of_another_width(branches, x):
    """int16 for a Quant of 8 bits is an error that says what it takes."""
    with pytest.raises(
        DataError,
        match="input 'x' is int16, its Quant writes 8 bits; pass that type or real values",
    ):
        Session(branches).run(None, {"x": x.astype(np.int16)})


def test_quantized_feed_without_a_quant():
    """An input that no Quant reads cannot be fed integers."""
    net = nets.Net(3, 8, 8)
    graph = nets.quantized(
        net.graph(net.conv(net.node("Sin", "x"), (4, 3, 3, 3), out="y")), effort="fast"
    ).graph
    with pytest.raises(
        DataError, match="it feeds no Quant, or several of different scales; pass real values"
    ):
        Session(graph).run(None, {"x": np.zeros((1, 3, 8, 8), np.int8)})


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "feeds, message",
    (
        ({}, "no array for input 'x'"),
        (
            {"y": np.zeros((1, 4, 8, 8)), "x": np.zeros((1, 4, 8, 8))},
            "'y' is not an input of the model",
        ),
        (
            {"x": np.zeros((4, 8, 8))},
            r"has shape \[4, 8, 8\], the model takes \[N, 4, 8, 8\]; add the batch axis",
        ),
        ({"x": np.full((1, 4, 8, 8), np.nan)}, "NaN or infinity in sample 0"),
        ({"x": np.zeros((0, 4, 8, 8))}, "is empty"),
        ({"x": "picture"}, "'x'"),
    ),
)
def test_wrong_inputs(branches, feeds, message):
    """What does not fit the inputs is a DataError of one line."""
    with pytest.raises(DataError, match=message) as caught:
        Session(branches).run(None, feeds)
    assert "\n" not in str(caught.value)


def test_unknown_tensor(branches, x):
    """The nearest name is offered."""
    with pytest.raises(ConfigError, match="the model has no tensor 'y_'; did you mean 'y_q'"):
        Session(branches).run(["y_"], {"x": x})


def test_call_needs_one_input():
    """A model of two inputs is run by name."""
    net = nets.Net(3, 8, 8)
    net.inputs.append(onnx.helper.make_tensor_value_info("x2", 1, ["N", 3, 8, 8]))
    net.node("Add", "x", "x2", out="y")
    with pytest.raises(
        DataError, match=r"the model has 2 inputs; use run\(None, \{name: array\}\)"
    ):
        Session(net.graph("y"))(np.zeros((1, 3, 8, 8)))


def spoilt(graph, op_type, attribute, value):
    """Return `graph` with one attribute of the first such node changed, or dropped when `value` is
    None.
    """
    model = ir.to_proto(graph)
    node = next(n for n in model.graph.node if n.op_type == op_type)
    node.attribute.remove(next(a for a in node.attribute if a.name == attribute))
    if value is not None:
        node.attribute.append(onnx.helper.make_attribute(attribute, value))
    return ir.from_proto(model)


@pytest.mark.parametrize(
    "op_type, attribute, value, message",
    (
        ("Conv2dInt", "scale_w", None, "attribute scale_w is missing"),
        ("Conv2dInt", "scale_x", 3.0, "reads 'x_q' at scale 3, its producer writes"),
        ("Conv2dInt", "scale_w", 3.0, "not a power of two, as this target requires"),
        ("Conv2dInt", "scale_w", -4.0, "scale_w = -4; a scale is a positive number"),
        ("Conv2dInt", "scale_w", float("nan"), "scale_w is nan; it must be a finite number"),
        ("Conv2dInt", "scale_o", 0.0, "scale_o = 0; a scale is a positive number"),
        ("Conv2dInt", "strides", [0, 1], "the node that writes 't0'"),
        ("Conv2dInt", "group", 3, "Conv2dInt|writes"),
        ("iqCat", "dim", 7, "iqCat|writes"),
        ("MaxPool", "kernel_shape", [0, 3], "MaxPool|writes"),
        ("Quant", "scale_x", float("inf"), "scale_x is inf; it must be a finite number"),
        ("Quant", "data_bits", 99, "Quant"),
        (
            "Quant",
            "data_bits",
            16,
            "data_bits = 16; a Quant of this target always outputs 8 bits",
        ),
        (
            "Quant",
            "data_bits",
            4,
            "data_bits = 4; a Quant of this target always outputs 8 bits",
        ),
    ),
)
def test_corrupt_attributes(branches, x, op_type, attribute, value, message):
    """A corrupt attribute is a ModelError that names the node."""
    graph = spoilt(branches, op_type, attribute, value)
    with pytest.raises(ModelError, match=message) as caught:
        Session(graph).run(None, {"x": x})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "index, array, message",
    (
        (1, np.ones((8, 3, 3), np.int8), "weight 'k0' has 3 axes; it must have 4"),
        (1, np.ones((8, 4, 3, 3), np.int64), "weight 'k0' is int64; it must be int8 or int16"),
        (
            1,
            np.ones((0, 4, 3, 3), np.int8),
            r"weight 'k0' has shape \[0, 4, 3, 3\] and no elements",
        ),
        (2, np.ones(8, np.float64), "is float64; it must be int8 or int16 or int32 or int64"),
    ),
)
def test_damaged_weights_are_one_line(branches, index, array, message):
    """Types, axes and sizes of weights and biases are looked at before anything reads them, by
    every command.
    """
    model = ir.to_proto(branches)
    name = next(n for n in model.graph.node if n.op_type == "Conv2dInt").input[index]
    stored = next(i for i in model.graph.initializer if i.name == name)
    stored.CopyFrom(onnx.numpy_helper.from_array(array, name))
    with pytest.raises(ModelError, match=message):
        Session(ir.from_proto(model))


def test_an_output_too_many_is_one_line(branches):
    """An operator that gives one tensor has one output."""
    model = ir.to_proto(branches)
    next(n for n in model.graph.node if n.op_type == "Conv2dInt").output.append("more")
    with pytest.raises(ModelError, match="Conv2dInt .*: it has 2 outputs; the operator has one"):
        Session(ir.from_proto(model))


def test_unknown_integer_operator(branches, x):
    """An operator of the format that is not known is named."""
    model = ir.to_proto(branches)
    next(n for n in model.graph.node if n.op_type == "iqMul").op_type = "iqPow"
    with pytest.raises(ModelError, match="iqPow .*: not a supported integer operator"):
        Session(ir.from_proto(model)).run(None, {"x": x})


def test_a_sequence_between_integers_is_one_line():
    """A Conv2dInt reads a sequence in place of what a MaxPool gives."""
    model = ir.to_proto(nets.quantized(nets.plain(), effort="fast").graph)
    pool = next(node for node in model.graph.node if node.op_type == "MaxPool")
    pool.op_type = "SequenceConstruct"
    del pool.attribute[:]
    with pytest.raises(
        ModelError,
        match=(
            f"float node {pool.name}: '{pool.output[0]}' is a sequence; .* only pass numeric tensors"
        ),
    ):
        Session(ir.from_proto(model)).run(None, nets.samples(nets.plain(), 2))


def test_text_behind_integers_is_one_line():
    """Labels as text are the program's: no batch of them can be compared or joined to the last
    bit.
    """
    model = ir.to_proto(nets.quantized(nets.plain(), effort="fast").graph)
    model.graph.node.append(
        onnx.helper.make_node("Cast", ["y"], ["label"], name="Label", to=onnx.TensorProto.STRING)
    )
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("label", onnx.TensorProto.STRING, None)
    )
    with pytest.raises(
        ModelError, match=r"float node \w+: 'label' is text; .* only pass numeric tensors"
    ):
        Session(ir.from_proto(model)).run(None, nets.samples(nets.plain(), 2))


def test_a_sequence_that_is_taken_apart_at_once_runs():
    """SequenceConstruct and SequenceAt side by side are one float part, which hands on a tensor."""
    model = ir.to_proto(nets.quantized(nets.plain(), effort="fast").graph)
    feed = nets.samples(nets.plain(), 2)
    want = Session(ir.from_proto(model)).run(None, feed)
    at = next(i for i, node in enumerate(model.graph.node) if node.op_type == "Dequant")
    last = model.graph.node[at].output[0]
    model.graph.node[at].output[0] = "whole"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.int64), "first"))
    model.graph.node.extend(
        onnx.helper.make_node(op, inputs, [out], name=op)
        for op, inputs, out in (
            ("SequenceConstruct", ["whole"], "s"),
            ("SequenceAt", ["s", "first"], last),
        )
    )
    for got, array in zip(Session(ir.from_proto(model)).run(None, feed), want, strict=True):
        np.testing.assert_array_equal(got, array)


def test_unreadable_files(tmp_path):
    """No file, a folder, no ONNX, a cut file, an empty graph."""
    (tmp_path / "text.onnx").write_text("no model")
    ir.save(nets.plain(), tmp_path / "whole.onnx")
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "whole.onnx").read_bytes()[:-200])
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("nowhere.onnx", "", "text.onnx", "cut.onnx", "empty.onnx"):
        with pytest.raises(ModelError, match="cannot (read|use) the model") as caught:
            Session(tmp_path / name)
        assert "\n" not in str(caught.value)


# ---- again and again -------------------------------------------------------------------------------------------------


def test_known_feeds_give_the_same_and_are_checked_as_before(branches, x):
    """Law: what a session remembers of earlier feeds changes neither an integer nor a complaint."""
    session = Session(branches)
    first = session.run(None, {"x": x})
    for _ in range(3):
        for rows in (slice(None), slice(2, 3)):
            for got, want in zip(session.run(None, {"x": x[rows]}), first, strict=True):
                np.testing.assert_array_equal(got, want[rows])
    quantized = next(
        array
        for array, scale in ((a, s) for _, a, s in session.taps({"x": x}))
        if scale is not None
    )
    for _ in range(2):
        for got, want in zip(session.run(None, {"x": quantized}), first, strict=True):
            np.testing.assert_array_equal(got, want)
    with pytest.raises(DataError, match="NaN or infinity in sample 4"):
        session.run(
            None, {"x": np.where(np.arange(7)[:, None, None, None] == 4, np.float32("nan"), x)}
        )
    np.testing.assert_array_equal(session.run(None, {"x": x[:, ::-1].copy()[:, ::-1]})[0], first[0])
    with pytest.raises(DataError, match="'z'"):
        session.run(None, {"x": x, "z": x})
    huge = np.full_like(x, 3e38)  # finite, but the sum of its squares is not
    np.testing.assert_array_equal(
        session.run(None, {"x": huge})[0], Session(branches).run(None, {"x": huge})[0]
    )
    seen = []
    with session.watched(lambda name, array, qparams: seen.append(name)):
        session.run(None, {"x": x})
    assert "x" in seen
    assert session.nbytes > 0


def test_an_unknown_row_of_instructions_is_one_line(branches, monkeypatch):
    monkeypatch.setenv("LINGERONNX_SIMD", "sse9")
    with pytest.raises(
        ConfigError,
        match="LINGERONNX_SIMD: unknown instruction set 'sse9'; choose from avx512-vnni",
    ):
        Session(branches)
