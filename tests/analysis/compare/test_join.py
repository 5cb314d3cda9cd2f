"""Two models joined tensor by tensor: transforms are divided out, local errors stay local, no split
of data matters.
"""

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.analysis.compare.join import ComparedTensor, TensorJoin, join_tensors
from lingeronnx.analysis.compare.sources import DumpSource, FloatSource, PlannedSource, open_source
from lingeronnx.analysis.stats.stored_form import StoredForm
from lingeronnx.common.errors import DataError
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine
from tests.artefacts import quantized
from tests.nets import Net, asymmetric, branches, concat, depthwise, plain, residual, samples
from tests.ops.test_recurrent_forms import WIDTH, T, streaming


def spoiled(graph, tensor):
    """Return the graph with the weight of the layer that writes `tensor` turned round, channel by
    channel.
    """
    copy = graph.clone()
    node = next(n for n in copy.graph if any(v.name == tensor for v in n.outputs))
    weight = ir.const_value(node.inputs[1])
    ir.set_initializer_value(node.inputs[1], np.ascontiguousarray(weight[::-1]))
    return copy


@pytest.mark.sweep
@pytest.mark.parametrize("net", (depthwise, asymmetric, branches))
def test_every_tensor_of_both_is_measured(net):
    """The plan in float and the integers are both near the float model, tensor by tensor, and near
    each other.
    """
    model = net()
    data, q = samples(model, 20, seed=3), quantized(model, "venus")
    integers = join_tensors(open_source(model), open_source(q), data)
    planned = join_tensors(open_source(model), PlannedSource(q.float_graph, q.plan), data)
    both = join_tensors(PlannedSource(q.float_graph, q.plan), open_source(q), data)
    assert integers.samples == planned.samples == both.samples == 20
    for name, row in integers.rows.items():
        assert row.local is not None
        assert row.effective.sqnr > 20, name
        assert row.arrived.count == 20 * np.prod(row.shape[1:])
        if (
            row.stored_form is not None and net is not depthwise
        ):  # where a Clip's bound is the top of the range
            assert row.effective.clipped_fraction < 0.02, name
            if row.arrived.count > 1000:  # few numbers tell little
                assert abs(planned.rows[name].effective.sqnr - row.effective.sqnr) < 4, name
    assert {v.name for v in model.graph.inputs} <= integers.rows.keys()
    assert {v.name for v in model.graph.outputs} <= integers.rows.keys()


def test_equalized_channels_are_no_error():
    """What equalization multiplied a channel by is divided out: without that the tensor would look
    like another.
    """
    model = depthwise()
    q, data = quantized(model, "venus"), samples(model, 8, seed=5)
    moved = {n: t.factor for n, t in q.plan.transforms.items() if len(set(t.factor)) > 1}
    assert moved
    tensor_join = join_tensors(open_source(model), open_source(q), data)
    stored = {n: (a, held) for n, a, held in q.session().tensors(data) if held is not None}
    plain_copy = join_tensors(open_source(model), DumpSource(stored), data)
    for name, factor in moved.items():
        row = tensor_join.rows[name]
        assert row.stored_form.factor == tuple(factor)
        assert row.effective.sqnr > 20
        assert plain_copy.rows[name].arrived.sqnr < 15


def test_a_local_error_stays_where_it_is_made():
    """A layer with a wrong weight has a bad local error; those behind it only what arrives."""
    model = residual()
    q, data = quantized(model, "venus"), samples(model, 16, seed=7)
    bad = spoiled(q.graph, "t2")
    good, found = (
        join_tensors(open_source(model), open_source(graph), data) for graph in (q.graph, bad)
    )
    for name, row in found.rows.items():
        if name == "t2":
            assert row.effective.sqnr < 5
        else:
            assert row.local.to_dict() == good.rows[name].local.to_dict()
    assert found.rows["t5"].arrived.sqnr < good.rows["t5"].arrived.sqnr - 6
    planned = join_tensors(
        open_source(model), PlannedSource(spoiled(q.float_graph, "t2"), q.plan), data
    )
    assert [n for n, r in planned.rows.items() if r.effective.sqnr < 15] == ["t2"]
    between = join_tensors(open_source(q.graph), open_source(bad), data)
    assert [n for n, r in between.rows.items() if r.local.sqnr < 100] == ["t2"]


def test_parts_merged_in_order_are_the_whole_to_the_bit():
    model = concat()
    q, data = quantized(model, "venus"), samples(model, 12)["x"]
    sides = open_source(model), open_source(q)
    whole, merged = TensorJoin(*sides), TensorJoin(*sides)
    for part in np.split(data, 3):
        whole.add({"x": part})
        one = TensorJoin(*sides)
        one.add({"x": part})
        merged.merge(one.partial_result)
    assert merged.samples == whole.samples == 12
    for name, row in whole.rows.items():
        other = merged.rows[name]
        assert row.arrived.to_dict() == other.arrived.to_dict()
        assert row.local.to_dict() == other.local.to_dict()
        assert np.array_equal(row.channels.mean_squared_error, other.channels.mean_squared_error)
        assert row.sample_ranges == other.sample_ranges


def test_the_ranges_of_the_first_samples_are_kept():
    """Sample by sample lowest and highest value of the baseline; NaN is ignored."""
    data = np.random.default_rng(2).standard_normal((40, 3, 4)).astype(np.float32)
    data[1, 0, 0] = np.nan
    parts = [ComparedTensor("t", ("", ""), ("", "")) for _ in range(3)]
    for tensor, part in zip(parts, np.split(data, [5, 16]), strict=True):
        tensor.add_sample_ranges(part)
    parts[0].merge(parts[1])
    parts[0].merge(parts[2])
    expected = [(float(np.nanmin(sample)), float(np.nanmax(sample))) for sample in data[:32]]
    assert parts[0].sample_ranges == expected


def test_a_dump_is_what_was_dumped(tmp_path):
    """A folder that `simulate --dump` wrote stands for the graph, but for local errors."""
    model = plain()
    q, data = quantized(model, "venus"), samples(model, 10)
    q.save(tmp_path / "q.onnx")
    lo.api.simulate(tmp_path / "q.onnx", data, dump=tmp_path / "dump", batch=3)
    from_dump = join_tensors(
        open_source(tmp_path / "q.onnx"), open_source(tmp_path / "dump"), data, batch=4
    )
    assert {"t0", "t3", "y"} <= from_dump.rows.keys()
    for row in from_dump.rows.values():
        assert (row.arrived.cosine, row.arrived.mse, row.local) == (1.0, 0.0, None)
    with pytest.raises(DataError, match="has only 10 samples of"):
        join_tensors(open_source(model), open_source(tmp_path / "dump"), samples(model, 11))
    (tmp_path / "dump" / "index.json").write_text("{")
    with pytest.raises(DataError, match="not a dump with a readable index"):
        open_source(tmp_path / "dump")


def test_what_cannot_be_compared():
    model = plain()
    with pytest.raises(DataError, match="no tensors in common"):
        join_tensors(
            open_source(model), DumpSource({"other": (np.zeros((4, 2)), None)}), samples(model, 4)
        )
    with pytest.raises(lo.ConfigError, match="cannot be compared"):
        open_source(3)
    assert isinstance(open_source(open_source(model)), FloatSource)
    with pytest.raises(lo.ConfigError, match="forced in integer graphs only"):
        lo.Session(model).taps(samples(model, 1), force={"t0": np.zeros(1)})


def test_states_with_samples_on_another_axis_count_no_samples():
    """States of two layers are [2, N, H]: axis 0 counts layers."""
    model = streaming("GRU", layers=2)
    calls = [{"x": x} for x in np.zeros((3, 1, T, WIDTH), np.float32)]
    comparison = lo.compare(model, model, calls, state={"h_out": "h"})
    assert comparison.join.samples == 3


@pytest.mark.slow
def test_states_are_fed_back_each_side_its_own():
    """What arrives after five calls is what two streams give; the local error is that of one
    call.
    """
    model, state = streaming("GRU"), {"h_out": "h"}
    calls = [
        {"x": x}
        for x in np.random.default_rng(5).standard_normal((5, 3, T, WIDTH)).astype(np.float32)
    ]
    q = lo.quantize(model, calls, platform="generic", state=state)
    comparison = lo.compare(model, q, calls, state=state)
    name = str(model.graph.outputs[0].name)
    streams = [session.stream(state) for session in (lo.Session(model), q.session())]
    pairs = [[stream.run([name], feeds)[0] for stream in streams] for feeds in calls]
    x, y = (np.concatenate(side) for side in zip(*pairs, strict=True))
    row = comparison.join.rows[name]
    assert comparison.join.samples == 15
    assert row.arrived.mse == pytest.approx(
        float(np.mean((x - y).astype(np.float64) ** 2)), rel=1e-6
    )
    assert row.local is not None
    assert row.local.sqnr >= row.arrived.sqnr - 1


@pytest.mark.parametrize("factor", [(1.0,), (1.0, 2.0)])
def test_what_a_clip_cuts_is_no_error(factor):
    """Held up to 7.9 or 3.97, where the model goes to 20 and a Clip at 3 follows: nothing is
    lost.
    """
    form = StoredForm(Affine(16.0, 8), factor)
    x = np.linspace(-20, 20, 640, dtype=np.float32).reshape(2, 2, 160)
    y = form.quantize(np.round(x * 16) / 16, np.dtype(np.int8))
    row = ComparedTensor("t", ("Conv", "Conv2dInt"), ("", ""), consumed_range=(0.0, 3.0))
    row.add_effective(np.round(x * 16) / 16, y, form, x)
    assert row.as_consumed.sqnr == np.inf
    free = ComparedTensor("t", ("Conv", "Conv2dInt"), ("", ""), consumed_range=(0.0, np.inf))
    free.add_effective(np.round(x * 16) / 16, y, form, x)
    assert free.as_consumed.sqnr < 10


@pytest.mark.parametrize("stored", [True, False], ids=["initializers", "Constant nodes"])
def test_the_window_of_a_clip(stored):
    """Its ends are read from initializers and from Constant nodes."""
    net = Net(4, 8, 8)
    ends = [np.array(end, np.float32) for end in (0.0, 6.0)]
    held = [
        net.const(e) if stored else net.node("Constant", value=onnx.numpy_helper.from_array(e))
        for e in ends
    ]
    net.node(
        "Clip",
        net.node("Conv", "x", net.const(np.ones((4, 4, 1, 1), np.float32)), out="c"),
        *held,
        out="y",
    )
    model = net.graph("y")
    rows = join_tensors(
        open_source(model), open_source(model), {"x": np.ones((1, 4, 8, 8), np.float32)}
    ).rows
    assert next(row.consumed_range for row in rows.values() if row.kinds[0] == "Conv") == (0.0, 6.0)


@pytest.mark.parametrize(
    "platform, directions",
    (("arcs", 1), pytest.param("arcs", 2, marks=pytest.mark.slow), ("generic", 2)),
)
def test_a_recurrent_layer_of_steps_has_a_row(platform, directions):
    """A GRU that becomes operators for each step, or a layer for each direction, is compared with
    the float layer, in its layout.
    """
    rng, width = np.random.default_rng(0), 4
    shapes = (3 * width, 3), (3 * width, width), (6 * width,)
    weights = [
        onnx.numpy_helper.from_array(
            (0.4 * rng.standard_normal((directions, *shape))).astype(np.float32), name
        )
        for shape, name in zip(shapes, "WRB", strict=True)
    ]
    direction = "bidirectional" if directions == 2 else "forward"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 14]>
        g (float[N,3,3] x) => (float[N,3,{directions * width}] out)
        <int64[3] shape = {{0, 0, -1}}> {{
            t = Transpose <perm = [1, 0, 2]> (x)
            [gru] Y, H = GRU <hidden_size = {width}, direction = "{direction}"> (t, W, R, B)
            moved = Transpose <perm = [0, 2, 1, 3]> (Y)
            flat = Reshape (moved, shape)
            back = Transpose <perm = [1, 0, 2]> (flat)
            out = Neg (back)
        }}"""
    )
    model.graph.initializer.extend(weights)
    model = ir.as_model(model)
    data = {"x": rng.standard_normal((6, 3, 3)).astype(np.float32)}
    q = lo.quantize(model, data, platform=platform, effort="fast")
    rows = {row.kinds[0]: row for row in lo.compare(model, q, data).rows}
    assert rows["GRU"].arrived.count == 6 * 3 * directions * width
    assert rows["GRU"].arrived.sqnr > 20
