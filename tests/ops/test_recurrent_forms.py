"""Recurrent layers in the dressings that exporters give them, on every platform: states, lengths,
axes, projections.
"""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.operators.references import reference_ops
from lingeronnx.operators.schemas import check_model
from lingeronnx.quantization.normalize import run_entry_passes
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.runtime.session import Session
from lingeronnx.targets import PLATFORMS, get_target
from tests.case_selection import mark_rest_slow
from tests.nets import Net

ROWS = [target.name for target in PLATFORMS]
CHIPS = [target.name for target in PLATFORMS if target.has_packer]
#: Written out step by step, what one chip takes and gives tells of the others as well.
FEW = [pytest.param(name, marks=[pytest.mark.deep] if name in CHIPS[1:] else []) for name in ROWS]
T, WIDTH, H = 4, 5, 7


class Recurrent(Net):
    """A net with recurrent layers; `x` is batch first."""

    def enter(self, name, *shape, kind=1):
        """Add a graph input."""
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def layer(
        self,
        kind,
        x,
        width,
        units=H,
        *,
        direction="forward",
        more=(),
        bias=True,
        outputs=3,
        **attributes,
    ):
        """Append a layer; return the names of its outputs."""
        count, gates = 1 + (direction == "bidirectional"), 4 if kind == "LSTM" else 3
        sizes = (
            (count, gates * units, width),
            (count, gates * units, units),
            (count, 2 * gates * units),
        )
        held = [
            self.const((self.rng.standard_normal(s) / np.sqrt(s[-1])).astype(np.float32))
            for s in sizes
        ]
        number = len(self.nodes)
        names = [f"y{number}", f"h{number}", f"c{number}"][
            : min(outputs, 3 if kind == "LSTM" else 2)
        ]
        held = held if bias else [*held[:2], ""]
        self.nodes.append(
            helper.make_node(
                kind,
                [x, *held, *more],
                names,
                name=f"layer{number}",
                hidden_size=units,
                direction=direction,
                **attributes,
            )
        )
        return names

    def time_first(self, x="x"):
        """Append the Transpose that layers want."""
        return self.node("Transpose", x, perm=[1, 0, 2])

    def ints(self, *values):
        """Register integers."""
        return self.const(np.array(values, np.int64))


def data(model, count=24, seed=0, steps=T):
    """Return seeded inputs: lengths from 1 on, states within [-1, 1], a batch on the axis of open
    size.
    """
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.inputs:
        dims = [d if isinstance(d, int) else None for d in value.shape]
        if value.dtype.name == "INT32":
            feeds[value.name] = rng.integers(1, steps + 1, count).astype(np.int32)
            continue
        size = [count if d is None else d for d in dims]
        make = rng.standard_normal if value.name == "x" else lambda s: rng.uniform(-1, 1, s)
        feeds[value.name] = make(size).astype(np.float32)
    return feeds


def float_outputs(model, feeds):
    """Return the graph outputs in onnxruntime, by name."""
    names = [str(v.name) for v in model.graph.outputs]
    found = {name: array for name, array, _ in FloatRunner(model, names).run(feeds)}
    return {name: found[name] for name in names}


def agree(model, feeds, row, least=24, **settings):
    """Quantize, compare every output with the float model's, alone and in a batch, in memory and
    from bytes.
    """
    found = quantize(model, feeds, platform=row, effort="fast", **settings)
    check_model(ir.to_proto(found.graph))
    want = float_outputs(run_entry_passes(model)[0], feeds)  # onnxruntime has no batch-first layers
    session = Session(ir.from_proto(ir.to_proto(found.graph)))
    have = dict(zip(want, session.run(list(want), feeds), strict=True))
    for name, array in want.items():
        assert have[name].shape == array.shape, name
        assert sqnr(array, have[name]) > least, name
    return found


def complete(report, row):
    """No product is left in float, and a chip's graph is ready for it."""
    assert (report.integer_macs, list(report.float_nodes)) == (1.0, [])
    assert report.chip_ready == get_target(row).has_packer


def sqnr(want, have):
    """Return the signal-to-noise ratio in dB."""
    return 10 * np.log10((want**2).mean() / max(((want - have) ** 2).mean(), 1e-30))


# ---- what exporters write ----------------------------------------------------------------------------------------


def bidirectional_gru():
    """Y of both directions flattened, a projection of every step, its last step."""
    net = Recurrent(T, WIDTH, seed=1)
    y, *_ = net.layer(
        "GRU", net.time_first(), WIDTH, direction="bidirectional", linear_before_reset=1, outputs=1
    )
    flat = net.node("Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), net.ints(0, 0, -1))
    rows = net.node("Reshape", net.time_first(flat), net.ints(-1, T * 2 * H))
    return net.graph(net.linear(rows, (T * 2 * H, 4)))


def projected_lstm():
    """Each step goes through a Gemm on rows of all steps."""
    net = Recurrent(T, WIDTH, seed=2)
    y, *_ = net.layer("LSTM", net.time_first(), WIDTH, outputs=1)
    seq = net.time_first(net.node("Squeeze", y, net.ints(1)))
    steps = net.linear(net.node("Reshape", seq, net.ints(-1, H)), (H, 3))
    return net.graph(net.node("Reshape", steps, net.ints(-1, T, 3)))


def stacked_lstm():
    """Two layers whose states are made with the batch size by Shape, Gather, Concat,
    ConstantOfShape.
    """
    net = Recurrent(T, WIDTH, seed=3)
    x = net.time_first()
    count = net.node("Gather", net.node("Shape", x), net.ints(1), axis=0)
    zero = net.node("ConstantOfShape", net.node("Concat", net.ints(2), count, net.ints(H), axis=0))
    for number in range(2):
        state = net.node("Slice", zero, net.ints(number), net.ints(number + 1), net.ints(0))
        y, h, c = net.layer("LSTM", x, WIDTH if number == 0 else H, more=["", state, state])
        x = net.node("Squeeze", y, net.ints(1))
    last = net.node("Gather", x, net.const(np.array(-1)), axis=0)
    return net.graph(net.linear(last, (H, 3)))


def stacked_gru():
    """Two bidirectional layers without biases, the last states of both directions side by side."""
    net = Recurrent(T, WIDTH, seed=4)
    x, width = net.time_first(), WIDTH
    for _ in range(2):
        y, h = net.layer("GRU", x, width, direction="bidirectional", bias=False)
        x = net.node("Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), net.ints(0, 0, -1))
        width = 2 * H
    both = net.node("Reshape", net.node("Transpose", h, perm=[1, 0, 2]), net.ints(-1, 2 * H))
    return net.graph(net.linear(both, (2 * H, 3)))


def batch_first(kind):
    """Layout 1 of opset 14, Y and Y_h both read."""
    net = Recurrent(T, WIDTH, seed=5, opset=14)
    y, h, *_ = net.layer(kind, "x", WIDTH, layout=1, direction="reverse")
    flat = net.node("Reshape", y, net.ints(-1, T * H))
    last = net.node("Squeeze", h, net.ints(1))
    return net.graph(net.linear(net.node("Concat", flat, last, axis=1), (T * H + H, 3)))


def squeezed_states(kind):
    """Y_h squeezed, without a sequence."""
    net = Recurrent(T, WIDTH, seed=6)
    _, h, *_ = net.layer(kind, net.time_first(), WIDTH)
    return net.graph(net.linear(net.node("Squeeze", h, net.ints(0)), (H, 3)))


FORMS = {
    "bidirectional GRU": (bidirectional_gru,),
    "projected LSTM": (projected_lstm,),
    "stacked LSTM": (stacked_lstm,),
    "stacked GRU": (stacked_gru,),
    "batch-first LSTM": (batch_first, "LSTM"),
    "batch-first GRU": (batch_first, "GRU"),
    "last state of an LSTM": (squeezed_states, "LSTM"),
    "last state of a GRU": (squeezed_states, "GRU"),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("form", FORMS)
def test_forms(form, row):
    """All in integers, by the layer or, for a GRU on a chip, step by step."""
    build, *arguments = FORMS[form]
    model = build(*arguments)
    found = agree(model, data(model), row)
    complete(found.report, row)
    kinds = {node.op_type for node in found.graph.graph}
    assert bool(kinds & {"LSTMInt", "GRUInt"}) == (not get_target(row).has_packer or "LSTM" in form)


# ---- time first --------------------------------------------------------------------------------------------------


def time_first_input(kind, batch, steps=T):
    """A graph input that no Transpose turns, and a sequence that goes out as it is."""
    net = Recurrent(seed=7)
    net.inputs = [helper.make_tensor_value_info("x", 1, [steps, batch, WIDTH])]
    y, h, *_ = net.layer(kind, "x", WIDTH)
    return net.graph(net.node("Squeeze", y, net.ints(1)), h)


@pytest.mark.slow
@pytest.mark.parametrize("row", FEW)
@pytest.mark.parametrize("batch", ("N", 1))
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_time_first_input(kind, batch, row):
    """Samples are counted on axis 1 of input and outputs, whether the file fixes their number or
    not.
    """
    model = time_first_input(kind, batch)
    open_model = time_first_input(kind, "N")
    feeds = data(open_model)
    found = quantize(model, feeds, platform=row, effort="fast")
    have = found.session().run(None, feeds)
    want = float_outputs(open_model, feeds)
    for array, (name, exact) in zip(have, want.items(), strict=True):
        assert array.shape == exact.shape, name
        assert sqnr(exact, array) > 24
    one = found.session().run(None, {"x": feeds["x"][:, 3:4]})
    np.testing.assert_array_equal(one[0], have[0][:, 3:4])


def test_open_length():
    """Where the file leaves steps and samples open, the data's steps are taken."""
    model = time_first_input("LSTM", "N", "T")
    found = quantize(
        model, {"x": data(time_first_input("LSTM", "N"))["x"]}, platform="generic", effort="fast"
    )
    assert any("has dynamic dimensions" in note for note in found.report.notes)
    assert found.report.integer_macs == 1.0


# ---- states and lengths ------------------------------------------------------------------------------------------


def outputs_of_states(kind, direction="forward"):
    """Y_h alone, whose samples are on axis 1."""
    net = Recurrent(T, WIDTH, seed=8)
    _, h, *_ = net.layer(kind, net.time_first(), WIDTH, direction=direction)
    return net.graph(net.node("Identity", h))


@pytest.mark.parametrize("row", FEW)
@pytest.mark.parametrize("direction", ("forward", "bidirectional"))
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_last_states_as_outputs(kind, direction, row):
    """Also where the whole graph stays in float."""
    model = outputs_of_states(kind, direction)
    agree(model, data(model), row)


def constant_states(kind, how, direction="forward"):
    """Initial states that were learned: one row for all samples, repeated by Expand, or as it is
    for one sample.
    """
    count = 1 + (direction == "bidirectional")
    net = Recurrent(T, WIDTH, seed=9, batch=1 if how == "one sample" else "N")
    states = [net.const(net.rng.uniform(-0.9, 0.9, (count, 1, H)).astype(np.float32)) for _ in "hc"]
    x = net.time_first()
    if how != "one sample":
        size = net.node("Gather", net.node("Shape", x), net.ints(1), axis=0)
        target = net.node("Concat", net.ints(count), size, net.ints(H), axis=0)
        states = [net.node("Expand", state, target) for state in states]
    more = ["", *states[: 2 if kind == "LSTM" else 1]]
    y, h, *_ = net.layer(kind, x, WIDTH, more=more, direction=direction)
    flat = net.node("Reshape", net.node("Transpose", h, perm=[1, 0, 2]), net.ints(-1, count * H))
    return net.graph(net.linear(flat, (count * H, 3)))


@pytest.mark.sweep
@pytest.mark.parametrize("row", FEW)
@pytest.mark.parametrize("how", mark_rest_slow(1, ("one sample", "repeated")))
@pytest.mark.parametrize("direction", mark_rest_slow(1, ("bidirectional", "forward")))
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_constant_states(kind, direction, how, row):
    """The layer of a chip begins at zero: there it is written out step by step."""
    model = constant_states(kind, how, direction)
    feeds = (
        data(model) if how == "repeated" else {"x": data(constant_states(kind, "repeated"))["x"]}
    )
    complete(agree(model, feeds, row).report, row)


@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_why_given_states_stay_in_float(kind):
    """Where the layer is not written out."""
    model = constant_states(kind, "repeated")
    report = quantize(model, data(model), platform="venus", fit=False, effort="fast").report
    floats = [n for n in (*report.float_nodes, *report.host_part) if n.op_type.startswith(kind)]
    assert floats
    assert all(
        ("states start at zero" if kind == "LSTM" else "halves its state") in node.why
        for node in floats
    )


def streaming(kind, layers=1, direction="forward", units=H):
    """States go in and come out; for two layers they are stacked along axis 0, as exporters do."""
    count = layers * (1 + (direction == "bidirectional"))
    net = Recurrent(T, WIDTH, seed=10)
    states = [
        net.enter(name, count, "N", units) for name in ("h", "c")[: 2 if kind == "LSTM" else 1]
    ]
    y, width, ends = net.time_first(), WIDTH, []
    for number in range(layers):
        each = count // layers
        parts = states
        if layers > 1:
            parts = [
                net.node(
                    "Slice", s, net.ints(number * each), net.ints(number * each + each), net.ints(0)
                )
                for s in states
            ]
        whole, *last = net.layer(kind, y, width, units, more=["", *parts], direction=direction)
        ends.append(last)
        turned = net.node("Transpose", whole, perm=[0, 2, 1, 3])
        y, width = net.node("Reshape", turned, net.ints(0, 0, -1)), each * units
    rows = net.node("Reshape", net.time_first(y), net.ints(-1, T * width))
    final = [
        net.node("Concat", *parts, axis=0, out=f"{name}_out")
        if layers > 1
        else net.node("Identity", *parts, out=f"{name}_out")
        for name, parts in zip("hc", zip(*ends, strict=True), strict=False)
    ]
    return net.graph(net.linear(rows, (T * width, 3)), *final)


@pytest.mark.slow
@pytest.mark.parametrize("row", FEW)
@pytest.mark.parametrize(
    "layers, direction", ((1, "forward"), (2, "forward"), (1, "bidirectional"), (1, "reverse"))
)
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_states_in_and_out(kind, layers, direction, row):
    """As inputs and outputs of the graph, their samples on axis 1."""
    model = streaming(kind, layers, direction)
    found = agree(model, data(model), row)
    complete(found.report, row)
    if not get_target(row).has_packer:
        name = {"LSTM": "LSTMInt", "GRU": "GRUInt"}[kind]
        nodes = [n for n in found.graph.graph if n.op_type == name]
        assert {n.inputs[2].dtype.name for n in nodes} == {"INT8"}
        assert {n.inputs[3].dtype.name for n in nodes if kind == "LSTM"} <= {"INT32"}


def with_lengths(kind, direction="forward", states=False):
    """Samples of unequal length, the sequence and the last states."""
    count = 1 + (direction == "bidirectional")
    net = Recurrent(T, WIDTH, seed=11)
    lengths = net.enter("lengths", "N", kind=6)
    more = [lengths]
    if states:
        more += [
            net.enter(name, count, "N", H) for name in ("h", "c")[: 2 if kind == "LSTM" else 1]
        ]
    y, h, *_ = net.layer(kind, net.time_first(), WIDTH, more=more, direction=direction)
    flat = net.node("Reshape", net.node("Transpose", y, perm=[0, 2, 1, 3]), net.ints(0, 0, -1))
    last = net.node("Reshape", net.node("Transpose", h, perm=[1, 0, 2]), net.ints(-1, count * H))
    return net.graph(net.time_first(flat), net.linear(last, (count * H, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("row", FEW)
@pytest.mark.parametrize("states", (False, True))
@pytest.mark.parametrize("direction", ("forward", "reverse", "bidirectional"))
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_lengths(kind, direction, states, row):
    """Steps beyond a sample's end give zeros; in integers on the generic target, on chips in float
    with the reason.
    """
    model = with_lengths(kind, direction, states)
    report = agree(model, data(model), row).report
    if get_target(row).has_packer:
        floats = [n for n in (*report.float_nodes, *report.host_part) if n.op_type.startswith(kind)]
        assert floats
        assert kind == "GRU" or all("sequence_lens" in node.why for node in floats)
    else:
        complete(report, row)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ("forward", "reverse"))
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_reference_operators(kind, direction):
    """The plain operators give the same integers, sample by sample."""
    model = with_lengths(kind, direction, True)
    feeds = data(model, 5)
    found = quantize(model, feeds, platform="generic", effort="fast")
    session, plain = (
        found.session(),
        ReferenceEvaluator(ir.to_proto(found.graph), new_ops=reference_ops("generic")),
    )
    for i in range(5):
        feed = {
            spec.name: spec.slice_samples(feeds[spec.name], i, i + 1) for spec in session.inputs
        }
        for have, want in zip(session.run(None, feed), plain.run(None, feed), strict=True):
            np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("row", FEW)
def test_layers_before_a_time_first_layer(row):
    """They are computed batch first, so that nothing stays in float behind them."""
    net = Recurrent(seed=18)
    net.inputs = [helper.make_tensor_value_info("x", 1, [T, "N", WIDTH])]
    weight = net.const((net.rng.standard_normal((WIDTH, 3)) / 2).astype(np.float32))
    inner = net.node("MatMul", "x", weight)
    before = net.node("Relu", net.node("Add", inner, net.const(np.full(3, 0.1, np.float32))))
    y, *_ = net.layer("LSTM", before, 3)
    model = net.graph(net.node("Squeeze", y, net.ints(1)))
    found = agree(model, data(model), row)
    complete(found.report, row)
    assert [node.op_type for node in found.graph.graph][:2] == ["Transpose", "Quant"]
