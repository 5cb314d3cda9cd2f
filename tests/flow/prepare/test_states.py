"""States that are fed back: taken apart by the host, held in 16 bits, cells with room; and the ends
of a graph.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo
from lingeronnx.common.errors import DataError
from lingeronnx.ir import ir
from lingeronnx.operators.macs import count_macs
from lingeronnx.quantization.prepare.recurrent_states import (
    find_cell_updates,
    find_gates,
    find_state_ancestors,
    find_unrolled_steps,
)
from lingeronnx.quantization.prepare.selectors import select_nodes
from lingeronnx.quantization.trials import host_offload
from lingeronnx.targets import get_target
from tests import nets
from tests.case_selection import mark_rest_slow
from tests.fit.test_unroll import normalize_and_legalize
from tests.ops import test_recurrent_forms as forms

RNG = np.random.default_rng(0)


def _graph(nodes, weights, inputs, outputs) -> ir.Model:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def _packed() -> ir.Model:
    """A state of a small part (tanh, within 1) and one that counts up to some hundreds, in one
    tensor [1, 8].
    """
    weights = {
        "w": (0.5 * RNG.standard_normal((4, 4))).astype(np.float32),
        "v": np.abs(4 * np.eye(4)).astype(np.float32),
        "keep": np.float32([0.99] * 4),
        "down": np.float32([0.01] * 4),
        "axis": [1],
        "zero": [0],
        "four": [4],
        "eight": [8],
    }
    nodes = [
        helper.make_node("Slice", ["s", "zero", "four", "axis"], ["h"], name="take_h"),
        helper.make_node("Slice", ["s", "four", "eight", "axis"], ["c"], name="take_c"),
        helper.make_node("MatMul", ["h", "w"], ["hw"], name="inner"),
        helper.make_node("Add", ["hw", "x"], ["sum"], name="sum"),
        helper.make_node("Tanh", ["sum"], ["h2"], name="curve"),
        helper.make_node("MatMul", ["x", "v"], ["more"], name="more"),
        helper.make_node("Mul", ["c", "keep"], ["kept"], name="kept"),
        helper.make_node("Add", ["kept", "more"], ["c2"], name="count"),
        helper.make_node("Mul", ["c2", "down"], ["small"], name="small"),
        helper.make_node("Add", ["small", "h2"], ["y"], name="y"),
        helper.make_node("Concat", ["h2", "c2"], ["out"], name="pack", axis=1),
    ]
    return _graph(nodes, weights, [("x", ["N", 4]), ("s", ["N", 8])], ["y", "out"])


def _calls(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": RNG.uniform(-0.5, 1, (1, 4)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("platform, least", (("generic", 25), ("venus", 5)))
def test_a_packed_state_is_taken_apart_by_the_host(platform: str, least: float) -> None:
    result = lo.quantize(_packed(), _calls(100), platform=platform, state={"out": "s"})
    host = {node.node: node.why for node in result.report.host_part}
    assert {"take_h", "take_c", "pack"} <= set(host)
    assert "each part keeps its own scale" in host["pack"]
    if platform == "generic":
        assert result.plan.tensors["h2"].scale > 50 * result.plan.tensors["c2"].scale * 2.0**-1
    else:  # the host computes it from what it took apart, and no layer follows
        assert {"kept", "count"} <= set(host)
    assert result.report.outputs["y"]["sqnr"] > least


def test_what_a_state_is_made_of_is_wide_where_the_platform_has_it() -> None:
    model = _packed()
    assert set(find_state_ancestors(model, {"out": "s"})) >= {
        "x",
        "more",
        "h",
        "hw",
        "sum",
        "h2",
        "c",
        "kept",
        "c2",
    }
    assert not {"small", "y"} & set(find_state_ancestors(model, {"out": "s"}))
    result = lo.quantize(model, _calls(60), platform="generic", state={"out": "s"})
    assert result.plan.tensors["c2"].bits == result.plan.tensors["h"].bits == 16
    assert result.plan.tensors["y"].bits == 8
    assert any("on state paths use 16 bits" in note for note in result.report.notes)
    own = lo.quantize(
        model,
        _calls(60),
        platform="generic",
        state={"out": "s"},
        effort="fast",
        overrides={"count": {"bits": 8}},
    )
    assert own.plan.tensors["c2"].bits == 8


RISING = np.arange(8, dtype=np.float32)[:, None]


def _two_cells(names: tuple[str, ...] = ("a", "b")) -> onnx.ModelProto:
    """States of one shape: the first is read into both outputs, the second into its own."""
    first, second = names
    nodes = [
        helper.make_node("Add", ["x", first], [f"k{first}"], name="one"),
        helper.make_node("Add", [f"k{first}", second], [f"k{second}"], name="two"),
        helper.make_node("ReduceSum", [f"k{second}", "axis"], ["y"], name="sum"),
    ]
    inputs = [("x", [1, 1]), (first, [1, 4]), (second, [1, 4])]
    return _graph(nodes, {"axis": [1]}, inputs, ["y", f"k{first}", f"k{second}"])


@pytest.mark.parametrize(
    "data",
    (
        {"x": RISING},
        {"x": RISING, "a": np.ones((1, 4), np.float32), "b": np.ones((1, 4), np.float32)},
    ),
)
def test_data_without_states_are_answered_with_the_states(data: dict[str, np.ndarray]) -> None:
    """No array for them, or one value for all samples."""
    with pytest.raises(DataError, match="feed it back with --state ka=a --state kb=b"):
        lo.quantize(_two_cells(), [data], platform="venus")


def test_a_state_with_fewer_samples_may_be_left_out() -> None:
    data = [{"x": RISING, "a": np.ones((1, 4), np.float32)}]
    with pytest.raises(DataError, match="omit 'a': it begins at zeros"):
        lo.quantize(_two_cells(), data, platform="venus", state={"ka": "a", "kb": "b"})


def test_one_call_is_told_first() -> None:
    data = [{"x": RISING}]
    settings = {"platform": "venus", "state": {"ka": "a", "kb": "b"}, "calls": 1}
    report = lo.quantize(_two_cells(), data, **settings).report
    assert report.notes[0].startswith("calibration data contain a single call")


def _lstm(units: int = 3) -> ir.Model:
    """An LSTM of one step whose forget gate is open: its cell counts."""
    b = np.zeros((1, 8 * units), np.float32)
    b[0, :units], b[0, 2 * units : 3 * units] = 8, 8
    weights = {
        "W": (0.2 * RNG.standard_normal((1, 4 * units, 4))).astype(np.float32),
        "R": (0.2 * RNG.standard_normal((1, 4 * units, units))).astype(np.float32),
        "B": b,
        "axis": [0],
        "one": [1],
    }
    weights["W"][0, 3 * units :] += 1
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["xs"], name="in"),
        helper.make_node(
            "LSTM",
            ["xs", "W", "R", "B", "", "h", "c"],
            ["Y", "h2", "c2"],
            name="lstm",
            hidden_size=units,
        ),
        helper.make_node("Squeeze", ["h2", "axis"], ["y"], name="out"),
    ]
    return _graph(
        nodes,
        weights,
        [("x", [1, 4]), ("h", [1, 1, units]), ("c", [1, 1, units])],
        ["y", "h2", "c2"],
    )


def test_a_cell_of_generic_has_room() -> None:
    calls = [{"x": RNG.uniform(0, 1, (1, 4)).astype(np.float32)} for _ in range(60)]
    report = lo.quantize(_lstm(), calls, platform="generic", state={"h2": "h", "c2": "c"}).report
    assert not any("cuts it" in note for note in report.notes)
    assert report.outputs["c2"]["sqnr"] > 30  # the cell reaches ten and more; cut at 2 it has 3 dB
    assert report.outputs["h2"]["sqnr"] > 30


def test_two_dots_name_what_is_behind_and_before() -> None:
    model = _packed()

    def names(selector: str) -> set[str]:
        return {str(node.name) for node in select_nodes(model, selector)}

    assert names("count..") == {"count", "small", "y", "pack"}
    assert names("..count") == {"take_c", "more", "kept"}
    assert names("..c2") == names("..count")
    result = lo.quantize(_packed(), platform="generic", skip=["count.."])
    assert {"count", "small", "y"} <= {node.node for node in result.report.host_part}


def _detector() -> ir.Model:
    """Two layers and the decoding of boxes: 200 * d + priors, exp(d) * sizes, far beyond what 8
    bits resolve.
    """
    weights = {
        "w": RNG.standard_normal((4, 8)).astype(np.float32),
        "v": (0.3 * RNG.standard_normal((8, 4))).astype(np.float32),
        "priors": RNG.uniform(0, 600, 2).astype(np.float32),
        "sizes": np.float32([3, 300]),
        "var": np.float32([9, 9]),
        "axis": [1],
        "zero": [0],
        "two": [2],
        "four": [4],
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "v"], ["raw"], name="head"),
        helper.make_node("Slice", ["raw", "zero", "two", "axis"], ["d"], name="centres"),
        helper.make_node("Slice", ["raw", "two", "four", "axis"], ["e"], name="extents"),
        helper.make_node("Mul", ["d", "var"], ["dv"], name="variance"),
        helper.make_node("Add", ["dv", "priors"], ["centre"], name="prior"),
        helper.make_node("Exp", ["e"], ["grow"], name="exp"),
        helper.make_node("Mul", ["grow", "sizes"], ["size"], name="size"),
        helper.make_node("Concat", ["centre", "size"], ["boxes"], name="boxes", axis=1),
    ]
    return _graph(nodes, weights, [("x", ["N", 4])], ["boxes"])


def test_decoding_goes_to_the_host_when_that_is_measured_to_be_better() -> None:
    x = {"x": np.random.default_rng(0).standard_normal((128, 4)).astype(np.float32)}
    best = lo.quantize(_detector(), x, platform="generic")
    fast = lo.quantize(_detector(), x, platform="generic", effort="fast")
    assert {"exp", "size", "boxes"} <= {node.node for node in best.report.host_part}
    assert any("measured to be better in float" in node.why for node in best.report.host_part)
    assert best.report.outputs["boxes"]["sqnr"] > fast.report.outputs["boxes"]["sqnr"] + 3


def test_a_try_that_no_chip_runs_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With require_chip the first result is ready; leaving out a node between integer ones would
    not be.
    """
    tried = []

    def middle(model: ir.Model, *lost: bool) -> list[dict[str, str]]:
        tried.append([node.op_type for node in model.graph])
        return [{str(node.name): "a try" for node in model.graph if node.op_type == "Relu"}]

    monkeypatch.setattr(host_offload, "find_offload_candidates", middle)
    net = nets.Net(3, 8, 8)
    model = net.graph(net.conv(net.node("Relu", net.conv("x", (4, 3, 3, 3))), (4, 4, 1, 1)))
    x = np.random.default_rng(1).standard_normal((64, 3, 8, 8)).astype(np.float32)
    result = lo.quantize(model, x, platform="venus", require_chip=True)
    assert tried
    assert result.report.chip_ready


def test_a_spectrum_goes_to_the_host_when_that_is_measured_to_be_better() -> None:
    w = RNG.standard_normal((16, 8)).astype(np.float32)
    weights = {"t": w, "v": RNG.standard_normal((8, 4)).astype(np.float32), "eps": np.float32(1e-6)}
    nodes = [
        helper.make_node("MatMul", ["x", "t"], ["s"], name="transform"),
        helper.make_node("Mul", ["s", "s"], ["p"], name="power"),
        helper.make_node("Add", ["p", "eps"], ["q"], name="floor"),
        helper.make_node("Log", ["q"], ["l"], name="log"),
        helper.make_node("MatMul", ["l", "v"], ["m"], name="layer"),
        helper.make_node("Relu", ["m"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "u"], ["y"], name="last"),
    ]
    weights["u"] = RNG.standard_normal((4, 3)).astype(np.float32)
    model = _graph(nodes, weights, [("x", ["N", 16])], ["y"])
    x = {
        "x": (RNG.standard_normal((128, 16)) * 10 ** RNG.uniform(-2, 0, (128, 1))).astype(
            np.float32
        )
    }
    report = lo.quantize(model, x).report
    assert {"transform", "log"} <= {node.node for node in report.host_part}
    assert "layer" not in {node.node for node in report.host_part}
    assert report.outputs["y"]["sqnr"] > 15  # 11.5 dB with the logarithm in the integers


def _counter() -> ir.Model:
    """A cell that forgets slowly, c' = 0.98 c + 0.02 w f(x): one step of it is far below one of
    128.

    f has no integer form on a chip, so that the graph is not chip-ready anyway.
    """
    weights = {
        "w": RNG.standard_normal((4, 4)).astype(np.float32),
        "u": RNG.standard_normal((4, 3)).astype(np.float32),
        "keep": np.float32(0.98),
        "take": np.float32(0.02),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Softsign", ["a"], ["b"], name="curve"),
        helper.make_node("MatMul", ["b", "w"], ["new"], name="layer"),
        helper.make_node("Mul", ["new", "take"], ["taken"], name="taken"),
        helper.make_node("Mul", ["c", "keep"], ["kept"], name="kept"),
        helper.make_node("Add", ["kept", "taken"], ["next"], name="cell"),
        helper.make_node("MatMul", ["next", "u"], ["y"], name="last"),
    ]
    return _graph(nodes, weights, [("x", ["N", 4]), ("c", ["N", 4])], ["y", "next"])


def test_cells_stay_in_float_when_that_is_measured_to_be_better() -> None:
    calls = _calls(100)
    best = lo.quantize(_counter(), calls, platform="venus", state={"next": "c"}, parts=1).report
    fast = lo.quantize(
        _counter(), calls, platform="venus", state={"next": "c"}, effort="fast"
    ).report
    why = {node.node: node.why for node in (*best.float_nodes, *best.host_part)}
    assert "accumulates a state over calls" in why["cell"]
    assert "layer" not in why
    assert "last" not in why
    assert "cell" not in {node.node for node in (*fast.float_nodes, *fast.host_part)}
    assert best.outputs["y"]["sqnr"] > fast.outputs["y"]["sqnr"] + 3
    assert best.integer_macs == 1.0


def test_cells_are_held_in_sixteen_bits_where_there_are_such() -> None:
    report = lo.quantize(_counter(), _calls(100), platform="generic", state={"next": "c"}).report
    assert not report.float_nodes
    assert report.outputs["y"]["sqnr"] > 25


def _gated(curve: str = "Softsign") -> ir.Model:
    """A cell c' = f*c + curve(g) that forgets slowly, f = sigmoid(a + b + bias), and a mask for
    what comes out.

    1 - f is 1/60 and f has steps of 1/128, so a float cell alone is not enough. No chip has
    Softsign: the graph is not chip-ready anyway.
    """
    w, near = np.random.default_rng(5).standard_normal((2, 6, 4)).astype(np.float32)
    weights = {
        "big": 0.3 * w,
        "back": 0.3 * near,
        "bias": np.float32([4.5, 4, 4.2, 3.8]),
        "w": w,
        "v": near,
        "u": (np.eye(4) + 0.1).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "big"], ["there"], name="there"),
        helper.make_node("MatMul", ["x", "back"], ["again"], name="again"),
        helper.make_node("Add", ["there", "again"], ["sum"], name="sum"),
        helper.make_node("Add", ["sum", "bias"], ["decided"], name="biased"),
        helper.make_node("Sigmoid", ["decided"], ["f"], name="forget"),
        helper.make_node("MatMul", ["x", "w"], ["g"], name="new"),
        helper.make_node(curve, ["g"], ["bent"], name="bend"),
        helper.make_node("Mul", ["f", "c"], ["kept"], name="kept"),
        helper.make_node("Add", ["kept", "bent"], ["next"], name="cell"),
        helper.make_node("MatMul", ["next", "u"], ["m"], name="mask_layer"),
        helper.make_node("Tanh" if curve == "Tanh" else "Sigmoid", ["m"], ["mask"], name="mask"),
        helper.make_node("MatMul", ["x", "v"], ["spectrum"], name="spectrum"),
        helper.make_node("Mul", ["spectrum", "mask"], ["masked"], name="masked"),
        helper.make_node("MatMul", ["masked", "u"], ["y"], name="last"),
    ]
    return _graph(nodes, weights, [("x", ["N", 6]), ("c", ["N", 4])], ["y", "next"])


def test_gates_go_back_to_the_layers() -> None:
    model, state, chip = _gated(), {"next": "c"}, get_target("venus")
    assert set(find_cell_updates(model, state, chip)) == {"kept", "cell"}
    step = {"kept", "cell", "forget", "biased", "sum", "bend"}
    assert set(find_gates(model, state, chip)) == step
    assert set(find_gates(model, state, chip, masks=True)) == step | {"masked", "mask"}
    assert not find_gates(
        model, state, get_target("generic"), masks=True
    )  # it has 16 bits for states
    assert not find_gates(model, {}, chip, masks=True)


@pytest.mark.parametrize("platform", ("venus", "arcs", "venusA"))
def test_gates_go_back_over_a_tanh_as_a_chip_has_it(platform: str) -> None:
    """arcs and venusA have no table of tanh: it is a sigmoid between sums and products there, in
    front and behind.

    All but the layers are the gates' then as with a Tanh, which is the mask's, too.
    """
    _, model, _ = normalize_and_legalize(_gated("Tanh"), platform)
    step = {str(n.name) for n in model.graph if not count_macs(n)}
    assert {"kept", "cell", "masked", "biased", "sum"} <= step
    assert set(find_gates(model, {"next": "c"}, get_target(platform), masks=True)) == step


@pytest.mark.parametrize("platform", ("venus", "arcs", "venusA"))
def test_cells_of_an_lstm_that_is_called_step_by_step(platform: str) -> None:
    """arcs and venusA store half the cell: its factor per channel is a Linear, but no layer.

    All but the four products with matrices are the gates' on every chip.
    """
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((1, 20, 5)).astype(np.float32) for name in ("w", "r")}
    lstm = helper.make_node(
        "LSTM", ["x", "w", "r", "", "", "h", "c"], ["y", "h2", "c2"], hidden_size=5, name="lstm"
    )
    inputs = [("x", [1, "N", 5]), ("h", [1, "N", 5]), ("c", [1, "N", 5])]
    _, model, _ = normalize_and_legalize(_graph([lstm], arrays, inputs, ["h2", "c2"]), platform)
    state = {"h2": "h", "c2": "c"}
    updates = set(find_cell_updates(model, state, get_target(platform)))
    assert {"lstm_t0_kept", "lstm_t0_c", "lstm_t0_h"} <= updates
    gates = find_gates(model, state, get_target(platform))
    layers = {str(n.name) for n in model.graph if count_macs(n) > 5}
    assert len(layers) == 4
    assert not layers & gates.keys()
    assert {"lstm_t0_i", "lstm_t0_new", "lstm_t0_gates"} <= gates.keys()


def test_what_others_read_is_no_gate() -> None:
    """A sum that is an output, or that a layer reads, stays where it is; so does what only it
    reads.
    """
    model = _gated()
    model.graph.outputs.append(next(v for v in ir.iter_values(model) if v.name == "decided"))
    found = set(find_gates(model, {"next": "c"}, get_target("venus")))
    assert found == {"kept", "cell", "forget", "bend"}


@pytest.mark.parametrize("platform", mark_rest_slow(1, ("venusA", "venus", "arcs")))
def test_gates_stay_in_float_when_that_is_measured_to_be_better(platform: str) -> None:
    rng = np.random.default_rng(4)
    calls = [{"x": rng.uniform(-1, 1, (1, 6)).astype(np.float32)} for _ in range(100)]
    told: dict[str, lo.Report] = {}
    for where in ("auto", "chip"):
        told[where] = lo.quantize(
            _gated(), calls, platform=platform, state={"next": "c"}, max_parts=9, cells=where
        ).report
    why = {node.node: node.why for node in (*told["auto"].float_nodes, *told["auto"].host_part)}
    assert "gate product" in why["sum"]
    assert not {"there", "again", "new", "spectrum"} & why.keys()
    assert "sum" not in {node.node for node in (*told["chip"].float_nodes, *told["chip"].host_part)}
    assert told["auto"].outputs["next"]["sqnr"] > told["chip"].outputs["next"]["sqnr"] + 3


@pytest.mark.slow
@pytest.mark.parametrize("build", [forms.bidirectional_gru, forms.stacked_gru])
@pytest.mark.parametrize("chip", ["venus", "arcs"])
def test_products_are_not_the_cells(build: Callable[[], object], chip: str) -> None:
    """Of a layer that is written out all of a step is the cell's but its products: they are the
    chip's. A factor per channel is none.
    """
    _, model, _ = normalize_and_legalize(build(), chip)
    found = find_unrolled_steps(model, every_layer=True)
    products = [
        node
        for node in model.graph
        if count_macs(node) > np.prod([size or 1 for size in ir.require_shape(node.outputs[0])])
    ]
    rows = {str(node.name): ir.require_shape(node.outputs[0])[1] for node in products}
    assert {1, forms.T} <= set(rows.values())  # of one step, and of all at once
    assert not rows.keys() & found.keys()
    of_steps = {
        str(node.name)
        for node in model.graph
        if ir.has_constant_base_name(node) and node not in products
    }
    assert found.keys() == of_steps != set()


@pytest.mark.sweep
@pytest.mark.parametrize("platform", ("venus", "arcs", "venusA"))
def test_cells_that_are_wanted_on_the_host_leave_the_products_to_the_chip(platform: str) -> None:
    """All multiply-accumulates of the gates are the chip's, and not one sum of a cell."""
    rng = np.random.default_rng(4)
    calls = [{"x": rng.uniform(-1, 1, (1, 6)).astype(np.float32)} for _ in range(50)]
    report = lo.quantize(
        _gated(), calls, platform=platform, state={"next": "c"}, cells="host"
    ).report
    host = {node.node for node in (*report.float_nodes, *report.host_part)}
    assert {"kept", "cell"} <= host
    assert not host & {"there", "again", "new", "mask_layer", "spectrum", "last"}
    assert report.runs_text.split("(")[1].startswith("100.0 % of MACs")


def test_states_are_proposed() -> None:
    """Where the user names none: by name in the report, by shape too where the data have no such
    input.
    """
    x = RNG.uniform(0, 1, (8, 4)).astype(np.float32)
    report = lo.quantize(
        _lstm(), {"x": x[:1], "h": np.zeros((1, 1, 3)), "c": np.zeros((1, 1, 3))}
    ).report
    assert not any("--state" in note for note in report.notes)  # h2 or c2: nobody can tell
    model = _counter()
    with pytest.raises(
        lo.DataError,
        match=r"no array for input 'c'; the data have x; if 'next' is its .* --state next=c$",
    ):
        lo.quantize(model, {"x": x})
    result = lo.quantize(model, {"x": x}, state={"next": "c"}, calls="all")
    with pytest.raises(lo.DataError, match=r"data, item 0: .* --state next=c$"):
        lo.compare(model, result.graph, {"x": x})
    ir.rename(model, {"next": "c_out"}, {})
    report = lo.quantize(model, {"x": x, "c": x}).report
    assert any(note.endswith("if so, pass --state c_out=c") for note in report.notes)
