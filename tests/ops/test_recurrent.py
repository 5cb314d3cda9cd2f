"""LSTM and GRU from float graphs to integers on every platform, and integer nodes in every form
they are written in.
"""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from lingeronnx.api import quantize
from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from lingeronnx.luna import VENUS
from lingeronnx.luna.faults import LunaFault
from lingeronnx.operators.integer_ops import find_integer_op
from lingeronnx.operators.lowerings import get_rule_for_integer_op
from lingeronnx.quantization.lower import extract_plan
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.runtime.session import Session
from lingeronnx.targets import PLATFORMS, get_target
from tests.nets import Net
from tests.oracles import recurrent as naive

CHIPS = [target.name for target in PLATFORMS if target.has_packer]
DIRECTIONS = ("forward", "reverse", "bidirectional")


def layer(net, kind, x, width, units, direction="forward", **attributes):
    """Append a layer on the time-first x [T, N, width]; return (Y made [T, N, D*H], Y_h)."""
    count, gates = 1 + (direction == "bidirectional"), 4 if kind == "LSTM" else 3
    sizes = (
        (count, gates * units, width),
        (count, gates * units, units),
        (count, 2 * gates * units),
    )
    held = [
        net.const((net.rng.standard_normal(s) / np.sqrt(s[-1])).astype(np.float32)) for s in sizes
    ]
    y, h = f"y{len(net.nodes)}", f"h{len(net.nodes)}"
    net.nodes.append(
        helper.make_node(
            kind,
            [x, *held],
            [y, h],
            name=f"layer_{y}",
            hidden_size=units,
            direction=direction,
            **attributes,
        )
    )
    if count == 1:
        return net.node("Squeeze", y, net.const(np.array([1]))), h
    turned = net.node("Transpose", y, perm=[0, 2, 1, 3])
    return net.node("Reshape", turned, net.const(np.array([0, 0, -1]))), h


def sequence(kind, direction, steps=9, width=6, layers=1, units=8, **attributes):
    """Return a net that gives the whole sequence."""
    net = Net(steps, width, seed=1)
    y = net.node("Transpose", "x", perm=[1, 0, 2])
    for _ in range(layers):
        y, _ = layer(net, kind, y, width, units, direction, **attributes)
        width = units * (1 + (direction == "bidirectional"))
    return net.graph(net.node("Transpose", y, perm=[1, 0, 2]))


def classifier(kind, direction, units=8, steps=9, **attributes):
    """Return a net of two layers that reads the last states."""
    net = Net(steps, 6, seed=2)
    y, _ = layer(
        net, kind, net.node("Transpose", "x", perm=[1, 0, 2]), 6, units, direction, **attributes
    )
    count = 1 + (direction == "bidirectional")
    _, h = layer(net, kind, y, units * count, units, direction, **attributes)
    parts = [net.node("Gather", h, net.const(np.array(i)), axis=0) for i in range(count)]
    both = parts[0] if count == 1 else net.node("Concat", *parts, axis=1)
    return net.graph(net.linear(both, (units * count, 5)))


def inputs(model, count=32, seed=0):
    shape = ir.get_shape(model.graph.inputs[0])[1:]
    return np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)


def sqnr(want, have):
    """Return the signal-to-noise ratio in dB."""
    assert want.shape == have.shape
    return 10 * np.log10((want**2).mean() / ((want - have) ** 2).mean())


def reference(model, x):
    """Return the first output in onnxruntime."""
    name = str(model.graph.outputs[0].name)
    return next(array for n, array, _ in FloatRunner(model, [name]).run({"x": x}))


@pytest.mark.parametrize("build", (sequence, classifier))
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("row", ["generic", *CHIPS])
def test_lstm(row, direction, build):
    """All in integers, close to the float model, the same alone and in a batch, and the plan can be
    read back.
    """
    model = build("LSTM", direction)
    x = inputs(model)
    found = quantize(model, {"x": x}, platform=row, effort="fast")
    session = found.session()
    have = session(x)
    assert sqnr(reference(model, x), have) > 28
    np.testing.assert_array_equal(session(x[4:5]), have[4:5])
    assert (found.report.integer_macs, found.report.chip_ready) == (1.0, get_target(row).has_packer)
    assert not found.report.float_nodes
    read = extract_plan(found.graph)
    shared = read.tensors.keys() & found.plan.tensors.keys()
    assert {name: read.tensors[name] for name in shared} == {
        name: found.plan.tensors[name] for name in shared
    }
    layers = [node for node in found.graph.graph if node.op_type == "LSTMInt"]
    assert all(read.tensors[ir.input_name(node, i)] for node in layers for i in (1, 2))
    assert all(len(node.outputs) == 3 for node in layers)


@pytest.mark.parametrize("reset_after", (0, 1))
@pytest.mark.parametrize("build", (sequence, classifier))
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_gru(direction, build, reset_after):
    """On the generic target, either place of the reset gate."""
    model = build("GRU", direction, linear_before_reset=reset_after)
    x = inputs(model)
    for mode in ("q-value", "max-value"):
        found = quantize(model, {"x": x}, platform="generic", mode=mode, effort="fast")
        assert sqnr(reference(model, x), found.session()(x)) > 26
        assert found.report.integer_macs == 1.0
        layers = [node for node in found.graph.graph if node.op_type == "GRUInt"]
        assert {ir.get_attr(node, "linear_before_reset") for node in layers} == {reset_after}


@pytest.mark.parametrize("row", CHIPS)
def test_gru_stays_in_float_on_chips(row):
    """Where it is not written out step by step; the reason names the fault."""
    model = classifier("GRU", "bidirectional")
    found = quantize(model, {"x": inputs(model)}, platform=row, fit=False, effort="fast")
    nodes = [*found.report.float_nodes, *found.report.host_part]
    (fault,) = {LunaFault.GRU_HALVED, LunaFault.GRU_FORMAT}.intersection(get_target(row).faults)
    assert {fault.text in node.why for node in nodes if node.op_type == "GRU"} == {True}
    assert "GRUInt" not in found.report.layers


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("steps, width", ((4, 9), (9, 9), (9, 4)))
def test_square_input(direction, steps, width):
    """The chip that takes as many steps as elements only gets zeros; they change no integer of the
    result.
    """
    model = sequence("LSTM", direction, steps, width)
    x = inputs(model)
    found = quantize(model, {"x": x}, platform="venus", effort="fast")
    layers = [node for node in found.graph.graph if node.op_type == "LSTMInt"]
    assert [ir.get_shape(node.inputs[0])[1:] for node in layers] == [(9, 9)] * len(layers)
    assert not [
        v
        for node in layers
        for v in get_rule_for_integer_op(find_integer_op(node)).find_violations(node, VENUS)
    ]
    linear = [node.outputs[0].name for node in found.graph.graph if node.op_type == "LinearInt"]
    same = [name for name in linear if name.endswith("_same")]  # behind one, for the packer's sake
    assert (len(same), len(linear) - len(same)) == (1, 0 if steps == width else len(layers))
    plain = found.graph.clone()
    taps = {name: array for name, array, _ in Session(plain).taps({"x": x[:2]})}
    result = ir.producer(found.graph.graph.outputs[0]).inputs[0].name
    want = [_unpadded(node, taps, steps, width) for node in layers]
    np.testing.assert_array_equal(taps[result], np.concatenate(want, axis=2))


def _unpadded(node, taps, steps, width):
    """Return the layer's sequence from the input without zeros."""
    a = {name: ir.get_attr(node, name) for name in node.attributes}
    start = 0 if a["go_forward"] else taps[ir.input_name(node)].shape[1] - steps
    x = taps[ir.input_name(node)][:, start : start + steps, :width]
    w, r, b, d = (ir.const_value(v) for v in node.inputs[1:])
    bits = {key: int(np.log2(a[key])) for key in ("scale_x", "scale_iw", "scale_hw", "scale_o")}
    out = (1 << 30, 30 + 14 - bits["scale_o"], 8)
    shifts = bits["scale_x"] + bits["scale_iw"] - 11, bits["scale_o"] + bits["scale_hw"] - 11
    return naive.lstm(
        x, w[:, :width], r, b, d, *shifts, out, "q11", "venus", bool(a["go_forward"])
    )[0]


def test_states_as_outputs():
    """A graph output whose batch is axis 1 keeps it there, for any batch."""
    net = Net(9, 6, seed=4)
    _, h = layer(net, "LSTM", net.node("Transpose", "x", perm=[1, 0, 2]), 6, 5, "bidirectional")
    model = net.graph(net.node("Identity", h))
    x = inputs(model)
    have = quantize(model, {"x": x}, platform="arcs", effort="fast").session()(x)
    assert have.shape == (2, len(x), 5)
    assert sqnr(reference(model, x), have) > 28


@pytest.mark.parametrize(
    "row, arguments",
    (
        ("venus", "-p venus -d False --dma_prefetch False"),
        ("venusA", "-p venusa -d False --dma_prefetch False -m t4_q:psram"),
    ),
)
def test_packer_arguments(row, arguments):
    """What the graph needs with such a layer, and no more."""
    net = Net(9, 6, seed=5)
    y, _ = layer(net, "LSTM", net.node("Transpose", "x", perm=[1, 0, 2]), 6, 5)
    turned = net.node("Transpose", y, perm=[1, 0, 2])
    model = net.graph(
        net.node("MatMul", turned, net.const(net.rng.standard_normal((5, 3)).astype(np.float32)))
    )
    found = quantize(model, {"x": inputs(model)}, platform=row, effort="fast")
    assert found.report.packer_args == arguments


def with_cell(direction="forward"):
    """Return a net that reads the last cells and nothing else."""
    net = Net(9, 6, seed=6)
    x, count = net.node("Transpose", "x", perm=[1, 0, 2]), 1 + (direction == "bidirectional")
    sizes = ((count, 20, 6), (count, 20, 5), (count, 40))
    held = [
        net.const((net.rng.standard_normal(s) / np.sqrt(s[-1])).astype(np.float32)) for s in sizes
    ]
    net.nodes.append(
        helper.make_node(
            "LSTM", [x, *held], ["", "", "c"], name="cell", hidden_size=5, direction=direction
        )
    )
    parts = [net.node("Gather", "c", net.const(np.array(i)), axis=0) for i in range(count)]
    both = parts[0] if count == 1 else net.node("Concat", *parts, axis=1)
    return net.graph(net.linear(both, (5 * count, 3)))


@pytest.mark.parametrize("direction", ("reverse", "bidirectional"))
def test_last_cell(direction):
    """The generic target gives it as a real tensor; the layer of a chip does not, and would stay in
    float.
    """
    model = with_cell(direction)
    x = inputs(model)
    found = quantize(model, {"x": x}, platform="generic", effort="fast")
    have = found.session()(x)
    assert sqnr(reference(model, x), have) > 26
    np.testing.assert_array_equal(found.session()(x[3:4]), have[3:4])
    assert found.report.integer_macs == 1.0
    report = quantize(model, {"x": x}, platform="arcs", fit=False, effort="fast").report
    layers = [n for n in (*report.float_nodes, *report.host_part) if n.op_type == "LSTM"]
    assert layers
    assert all("nobody reads the last cell" in node.why for node in layers)


@pytest.mark.parametrize("direction", ("forward", "bidirectional"))
def test_skip(direction):
    """A layer is skipped by its name, in all its directions."""
    model = sequence("LSTM", direction)
    name = next(str(node.name) for node in model.graph if node.op_type == "LSTM")
    report = quantize(
        model, {"x": inputs(model)}, platform="generic", skip=[name], effort="fast"
    ).report
    assert report.integer_macs == 0


# ---- integer nodes in graphs -------------------------------------------------------------------------------------


def written(op_type, shape, extra=(), outputs=("y", "h"), biases=True, **attributes):
    """Return an integer graph of one layer of 3 units on x `shape`, with `extra` inputs behind x,
    and its constants.
    """
    rng = np.random.default_rng(8)
    gates = 3 if "GRU" in op_type else 4
    given = {
        "iw": rng.integers(-90, 90, (gates * 3, shape[2])).astype(np.int8),
        "hw": rng.integers(-90, 90, (gates * 3, 3)).astype(np.int8),
    }
    if biases:
        given |= {key: rng.integers(-900, 900, gates * 3).astype(np.int32) for key in ("ib", "hb")}
    held = [numpy_helper.from_array(np.asarray(a), f"e{i}") for i, a in enumerate(extra)]
    names = [t.name for t in held] + list(given)
    held += [numpy_helper.from_array(a, name) for name, a in given.items()]
    scales = {
        "scale_i": 32.0,
        "scale_h": 128.0,
        "scale_iw": 64.0,
        "scale_hw": 64.0,
        "scale_o": 128.0,
    }
    attrs = {"input_size": shape[2], "hidden_size": 3, "platform": "arcs", **scales, **attributes}
    attrs = {key: value for key, value in attrs.items() if value is not None}
    node = helper.make_node(
        op_type, ["x", *names], outputs, domain="thinker", name="layer", **attrs
    )
    kinds = {"y": 3, "h": 3, "c": 6}
    results = [helper.make_tensor_value_info(name, kinds[name], None) for name in outputs if name]
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 3, shape)], results, held
    )
    opsets = [helper.make_opsetid("", 12), helper.make_opsetid("thinker", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=6)), given


def codes(shape):
    return np.random.default_rng(3).integers(-128, 127, shape).astype(np.int8)


def wanted(given, x, forward=True):
    """Return y, h, c of an LSTM on arcs at the scales of `written`."""
    zero = np.zeros(len(given["iw"]), int)
    b, d = given.get("ib", zero), given.get("hb", zero)
    parts = (
        given["iw"],
        given["hw"],
        b,
        d,
        5 + 6 - 27,
        7 + 6 - 27,
        (1 << 30, 30 + 30 - 7, 8),
        "q27",
        "arcs",
    )
    return naive.lstm(x, *parts, forward)


@pytest.mark.parametrize(
    "op_type, extra, biases",
    (
        ("LSTMInt", (), True),
        ("LSTMInt", (), False),
        ("LSTMInt_Is8_Is64", (np.array([5]),), True),
        (
            "LSTMInt_Is8_Is64_If32_If32",
            (np.array([5]), *[np.zeros((1, 1, 3), np.float32)] * 2),
            False,
        ),
        ("LSTMInt", (np.array([5]), *[np.zeros((1, 1, 3), np.float32)] * 2), True),
    ),
)
def test_variants(op_type, extra, biases):
    """With lengths, initial states of zeros, and without biases."""
    model, given = written(op_type, (1, 5, 4), extra, ("y", "h", "c"), biases)
    x = codes((1, 5, 4))
    y, h, c = Session(model).run(None, {"x": x})
    assert (y.tolist(), h.tolist(), c.tolist()) == wanted(given, x)


@pytest.mark.parametrize("outputs", (("y",), ("", "h"), ("y", "", "c"), ("", "", "c")))
def test_any_outputs(outputs):
    """Outputs that are left out."""
    model, given = written("LSTMInt", (1, 5, 4), outputs=outputs, go_forward=0)
    x = codes((1, 5, 4))
    want = dict(zip("yhc", wanted(given, x, False), strict=True))
    for name, array in zip(
        [n for n in outputs if n], Session(model).run(None, {"x": x}), strict=True
    ):
        assert array.tolist() == want[name]


@pytest.mark.parametrize(
    "batch_first, shape", ((1, (2, 5, 4)), (0, (5, 2, 4)), (0, (1, 5, 4)), (1, (1, 5, 4)))
)
def test_axes(batch_first, shape):
    """The time is axis 1 with batch_first, else axis 0, but chips take one sample [1, T, I] either
    way.
    """
    model, given = written("LSTMInt", shape, outputs=("y", "h", "c"), batch_first=batch_first)
    x = codes(shape)
    turned = not batch_first and shape[0] > 1
    y, h, c = Session(model).run(None, {"x": x})
    first = [a.swapaxes(0, 1) if turned else a for a in (y, h, c)]
    assert tuple(a.tolist() for a in first) == wanted(given, x.swapaxes(0, 1) if turned else x)


def test_scales_of_the_outputs():
    """The cell has its own."""
    model, _ = written("LSTMInt", (1, 5, 4), outputs=("y", "h", "c"), scale_o=64.0)
    scales = {name: scale for name, _, scale in Session(model).taps({"x": codes((1, 5, 4))})}
    assert (scales["y"], scales["h"], scales["c"]) == (64.0, 64.0, 32768.0)
    model, _ = written(
        "LSTMInt", (1, 5, 4), scale_o=None, platform="venus", outputs=("y", "h", "c")
    )
    scales = {name: scale for name, _, scale in Session(model).taps({"x": codes((1, 5, 4))})}
    assert (scales["y"], scales["c"]) == (128.0, None)


@pytest.mark.parametrize(
    "change, words",
    (
        ({"extra": (np.array([4]),)}, "lengths of parts"),
        (
            {"extra": (np.array([5]), np.ones((1, 1, 3), np.float32))},
            "initial states",
        ),
        ({"num_layers": 2}, "a node must have one layer"),
        ({"scale_iw": 60.0}, "not a power of two"),
        ({"scale_hw": None}, "scale_hw is missing"),
    ),
)
def test_refused(change, words):
    """What cannot be simulated is named."""
    model, _ = written("LSTMInt", (1, 5, 4), **change)
    with pytest.raises(ModelError, match=words):
        Session(model).run(None, {"x": codes((1, 5, 4))})


def test_weights_must_be_constants():
    """And so is a weight that is computed."""
    model, _ = written("LSTMInt", (1, 5, 4))
    proto = ir.to_proto(model)
    (weight,) = [t for t in proto.graph.initializer if t.name == "iw"]
    proto.graph.initializer.remove(weight)
    proto.graph.input.append(helper.make_tensor_value_info("iw", onnx.TensorProto.INT8, [12, 4]))
    with pytest.raises(ModelError, match="two weights must be constants"):
        Session(ir.from_proto(proto)).run(
            None, {"x": codes((1, 5, 4)), "iw": np.zeros((12, 4), np.int8)}
        )


@pytest.mark.slow
@pytest.mark.parametrize("mode, scale", (("q-value", 2.0**15), ("max-value", 32767.0)))
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_wide_state(kind, mode, scale):
    """A state of 16 bits keeps 15 fractional bits, for the net as a whole or for the layer alone,
    moved or not.
    """
    model = classifier(kind, "forward")
    x = inputs(model)
    for settings in ({"bits": 16}, {"overrides": {f"type:{kind}": {"bits": 16}}}):
        found = quantize(model, {"x": x}, platform="generic", mode=mode, effort="fast", **settings)
        layers = [n for n in found.graph.graph if n.op_type == f"{kind}Int"]
        assert {(ir.get_attr(n, "scale_o"), ir.get_attr(n, "o_bits")) for n in layers} == {
            (scale, 16)
        }
    narrow = quantize(model, {"x": x}, platform="generic", mode=mode, effort="fast")
    want = reference(model, x)
    wide = quantize(
        model, {"x": x}, platform="generic", mode=mode, bits=16, weight_bits=16, effort="fast"
    )
    assert (
        sqnr(want, wide.session()(x)) > sqnr(want, narrow.session()(x)) + 5
    )  # the curves are 10 bits right
