"""What breaks a platform's limits in a float graph, before and after --fit."""

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from tests import nets
from tests.analysis.check.helpers import small


def test_float_graph_says_what_fit_would_do():
    report = lo.check(small())
    (violation,) = report
    assert (violation.node, violation.tensor, violation.value) == (
        "Conv_short",
        "short",
        "stride 2 > kernel 1",
    )
    assert [f.node for f in report.fitted] == ["Conv_short"]
    assert report.remaining == []
    assert "with --fit nothing would remain" in report.lines()
    assert [m.fault for m in report.faults] == ["avgpool-scale"]


def test_float_graph_with_nothing_wrong():
    report = lo.check(nets.plain())
    assert len(report) == 0
    assert report.lines()[0] == "no limit of venus is exceeded"
    assert len(lo.check(small(), platform="generic")) == 0


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_what_another_tool_quantized_is_judged_as_its_float_model(form):
    """The operators that hold integers are none of the model's: the verdict is that on the float
    model.
    """
    x = np.random.default_rng(0).standard_normal((16, 4, 8, 8)).astype(np.float32)
    held = lo.convert(lo.quantize(small(), x, platform="generic", effort="fast").graph, form).graph
    report, wanted = lo.check(held, platform="venus"), lo.check(small(), platform="venus")
    assert report.verdict == wanted.verdict
    assert [f.op_type for f in report.host_part] == [f.op_type for f in wanted.host_part]
    assert any(
        "already (QuantizeLinear): checking the float model" in note for note in report.notes
    )


def test_all_violations_of_a_node_and_fallbacks():
    net = nets.Net(4, 20, 20, seed=3)
    a = net.conv("x", (8, 4, 6, 3), strides=[3, 1], pads=[0, 5, 0, 0], out="a")
    b = net.node("Relu", a, out="b")
    report = lo.check(
        net.graph(net.node("Softmax", net.conv(b, (4, 8, 3, 3), out="c"), out="y")),
        platform="venus",
    )
    assert [v.node for v in report][:3] == ["Conv_a"] * 3
    assert {v.value for v in report if v.node == "Conv_a"} == {"6x3", "3", "pads [0, 5, 0, 0]"}


def test_a_float_fallback_is_a_violation():
    net = nets.Net(4, 8, 8, seed=3)
    a = net.conv("x", (4, 4, 3, 3), out="a")
    report = lo.check(
        net.graph(
            net.conv(
                net.node("Mod", a, net.const(np.float32(3)), out="b", fmod=1), (4, 4, 3, 3), out="y"
            )
        )
    )
    reason = "Mod has no integer form: it stays in float between integer operators"
    assert [(v.node, v.rule) for v in report] == [("Mod_b", reason)]
    assert "--fit cannot fix any of it" in report.lines()


def test_the_model_is_left_as_it_is():
    model = small()
    before = ir.to_proto(model).SerializeToString()
    lo.check(model)
    assert ir.to_proto(model).SerializeToString() == before
