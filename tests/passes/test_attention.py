"""Attention from float to integers: a whole block, then every way to mask, to fuse and to turn that
exporters have.

Everything between the first Quant and the last Dequant becomes integers, but for what the chips
cannot do, which is named.
"""

import numpy as np
import pytest
from onnx import helper

from lingeronnx import targets as platforms
from lingeronnx.api import quantize
from lingeronnx.common.errors import ConstraintError
from lingeronnx.luna.evaluation import evaluate_graph
from lingeronnx.runtime.runners import FloatRunner
from tests import packability
from tests.case_selection import mark_rest_slow
from tests.nets import Net

T, D, HEADS = 8, 16, 2


def dense(net, x, inputs, outputs):
    """Append MatMul and Add."""
    weight = net.rng.standard_normal((inputs, outputs)).astype(np.float32) / np.float32(
        np.sqrt(inputs)
    )
    bias = 0.1 * net.rng.standard_normal(outputs).astype(np.float32)
    return net.node("Add", net.const(bias), net.node("MatMul", x, net.const(weight)))


def norm(net, x):
    gamma = net.rng.uniform(0.7, 1.3, D).astype(np.float32)
    beta = 0.1 * net.rng.standard_normal(D).astype(np.float32)
    if net.opset >= 17:
        return net.node("LayerNormalization", x, net.const(gamma), net.const(beta), axis=-1)
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1]))
    spread = net.node("ReduceMean", net.node("Pow", centred, net.const(np.float32(2))), axes=[-1])
    root = net.node("Sqrt", net.node("Add", spread, net.const(np.float32(1e-5))))
    return net.node(
        "Add", net.node("Mul", net.node("Div", centred, root), net.const(gamma)), net.const(beta)
    )


def heads(net, x, perm):
    split = net.node("Reshape", x, net.const(np.array([0, T, HEADS, D // HEADS], np.int64)))
    return net.node("Transpose", split, perm=perm)


def gelu(net, x):
    root, one, half = (net.const(np.float32(v)) for v in (np.sqrt(2), 1, 0.5))
    phi = net.node("Add", net.node("Erf", net.node("Div", x, root)), one)
    return net.node("Mul", net.node("Mul", x, phi), half)


def attention(opset):
    """Return the model: position embedding, one block, mean, classifier, softmax."""
    net = Net(T, D, seed=5, opset=opset)
    x = net.node(
        "Add",
        dense(net, "x", D, D),
        net.const(net.rng.standard_normal((1, T, D)).astype(np.float32)),
    )
    n = norm(net, x)
    q, k, v = (
        heads(net, dense(net, n, D, D), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = net.node("Mul", net.node("MatMul", q, k), net.const(np.float32(0.35)))
    mixed = net.node(
        "Transpose", net.node("MatMul", net.node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3]
    )
    joined = net.node("Reshape", mixed, net.const(np.array([0, T, D], np.int64)))
    x = net.node("Add", x, dense(net, joined, D, D))
    x = net.node("Add", x, dense(net, gelu(net, dense(net, norm(net, x), D, 2 * D)), 2 * D, D))
    pooled = net.node("ReduceMean", norm(net, x), axes=[1], keepdims=0)
    return net.graph(net.node("Softmax", net.linear(pooled, (D, 5)), out="y", axis=-1))


@pytest.mark.sweep
@pytest.mark.parametrize("opset", (13, 17))
@pytest.mark.parametrize(
    ("platform", "mode"),
    mark_rest_slow(
        2,
        (
            ("generic", "max-value"),
            ("arcs", "q-value"),
            ("generic", "q-value"),
            ("venusA", "q-value"),
        ),
    ),
)
def test_attention(platform, mode, opset):
    """Nothing between the borders is left in float, and the integers stay near the float model."""
    model, rng = attention(opset), np.random.default_rng(0)
    feed = {"x": rng.standard_normal((128, T, D)).astype(np.float32)}
    result = quantize(model, feed, platform=platform, mode=mode, effort="fast")
    assert result.report.float_nodes == []
    assert [n.op_type for n in result.report.host_part] == ["Softmax"]
    assert result.report.integer_macs == 1.0
    test = {"x": rng.standard_normal((64, T, D)).astype(np.float32)}
    want = {n: a for n, a, _ in FloatRunner(model, ["y"]).run(test)}["y"]
    (got,) = result.session().run(None, test)
    assert np.sum(want**2) / np.sum((got - want) ** 2) > 10**2.2
    halves = [result.session().run(None, {"x": test["x"][i : i + 32]})[0] for i in (0, 32)]
    assert np.array_equal(np.concatenate(halves), got)  # the heads' reshapes mix no samples


def test_venus_names_its_softmax():
    """What keeps an attention from the chip is said."""
    feed = {"x": np.random.default_rng(0).standard_normal((32, T, D)).astype(np.float32)}
    report = quantize(attention(17), feed, platform="venus", effort="fast").report
    assert {n.op_type for n in report.float_nodes} == {"Softmax"}
    assert report.integer_macs == 1.0


# ---- forms -----------------------------------------------------------------------------------------------------------

SIZE = D // HEADS
CAUSAL = np.tril(np.ones((1, 1, T, T), bool))
PLATFORMS = mark_rest_slow(
    2, (("generic", "max-value"), ("arcs", "q-value"), ("venus", "q-value"), ("venusA", "q-value"))
)
#: Why a node may stay in float, by operator and platform.
REASONS = {
    ("Softmax", "venus"): "SoftmaxInt could not be measured: it stays in float",
    ("LogSoftmax", "venus"): "venus has no operator for LogSoftmax",
    (
        "LogSoftmax",
        "arcs",
    ): "LogSoftmaxInt takes the logarithm in a wrong number format: it stays in float",
}
RUN_TIME = "its mask is computed at run time, and reaches too far down for integers"
#: The distance of the outputs from the float model: signal to noise, in dB. The same net without a mask has 31.
LEAST = 27.0


def shape(net, *sizes):
    return net.const(np.array(sizes, np.int64))


def several(net, op_type, *inputs, count, **attributes):
    """Append a node of several outputs; return their names."""
    names = [f"{op_type}{len(net.nodes)}_{i}" for i in range(count)]
    net.nodes.append(helper.make_node(op_type, inputs, names, name=names[0], **attributes))
    return names


def parts(net, n):
    """Three layers, three sets of heads; keys are transposed."""
    return [
        heads(net, dense(net, n, D, D), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    ]


def fused(net, n):
    """One layer, split along its outputs."""
    whole = several(net, "Split", dense(net, n, D, 3 * D), shape(net, D, D, D), count=3, axis=-1)
    return [
        heads(net, part, perm)
        for part, perm in zip(whole, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    ]


def fused_heads(net, n):
    """One layer, split within every head."""
    rows = net.node("Reshape", dense(net, n, D, 3 * D), shape(net, 0, T, HEADS, 3 * SIZE))
    turned = net.node("Transpose", rows, perm=[0, 2, 1, 3])
    q, k, v = several(net, "Split", turned, shape(net, SIZE, SIZE, SIZE), count=3, axis=-1)
    return q, net.node("Transpose", k, perm=[0, 1, 3, 2]), v


def fused_five(net, n, unbind):
    """One layer, turned as five axes with the kind in front, then taken apart."""
    rows = net.node("Reshape", dense(net, n, D, 3 * D), shape(net, 0, T, 3, HEADS, SIZE))
    turned = net.node("Transpose", rows, perm=[2, 0, 3, 1, 4])
    if unbind:
        whole = several(net, "Split", turned, shape(net, 1, 1, 1), count=3, axis=0)
        q, k, v = (net.node("Squeeze", part, shape(net, 0)) for part in whole)
    else:
        q, k, v = (
            net.node("Gather", turned, net.const(np.array(i, np.int64)), axis=0) for i in range(3)
        )
    return q, net.node("Transpose", k, perm=[0, 1, 3, 2]), v


def added(value, bias=0.0):
    """Masking by a sum with a constant."""

    def mask(net, scores):
        return net.node("Add", scores, net.const(np.where(CAUSAL, bias, value).astype(np.float32)))

    return mask


def alibi(net, scores):
    """A bias by distance, per head, and a mask in the same constant."""
    distance = np.arange(T)[:, None] - np.arange(T)[None]
    bias = -np.array([0.5, 0.25]).reshape(1, HEADS, 1, 1) * distance
    return net.node("Add", scores, net.const(np.where(CAUSAL, bias, -np.inf).astype(np.float32)))


def chosen(value, shown=True):
    """Masking by a choice."""

    def mask(net, scores):
        number = net.const(np.float32(value))
        return (
            net.node("Where", net.const(CAUSAL), scores, number)
            if shown
            else net.node("Where", net.const(~CAUSAL), number, scores)
        )

    return mask


def at_run_time(net, scores):
    """A mask that an input gives: 1 for what is there."""
    net.inputs.append(helper.make_tensor_value_info("there", 1, ["N", T]))
    row = net.node("Unsqueeze", "there", shape(net, 1, 2))
    far = net.node(
        "Mul", net.node("Sub", net.const(np.float32(1)), row), net.const(np.float32(-1e4))
    )
    return net.node("Add", scores, far)


def chosen_at_run_time(net, scores):
    net.inputs.append(helper.make_tensor_value_info("there", 1, ["N", T]))
    row = net.node(
        "Greater", net.node("Unsqueeze", "there", shape(net, 1, 2)), net.const(np.float32(0.5))
    )
    return net.node("Where", row, scores, net.const(np.float32(-1e9)))


def soft(net, scores):
    """Softmax along the last axis."""
    return net.node("Softmax", scores, axis=-1)


def turned_soft(net, scores):
    """Softmax along the axis before the last, of transposed scores."""
    turned = net.node("Transpose", scores, perm=[0, 1, 3, 2])
    return net.node("Transpose", net.node("Softmax", turned, axis=2), perm=[0, 1, 3, 2])


def guarded(net, scores):
    """As exporters write it for rows that may be masked as a whole."""
    p = net.node("Softmax", scores, axis=-1)
    return net.node("Where", net.node("IsNaN", p), net.const(np.float32(0)), p)


def shown_after(net, scores):
    p = net.node("Softmax", scores, axis=-1)
    return net.node("Where", net.const(CAUSAL), p, net.const(np.float32(0)))


def logarithm(net, scores):
    """exp of log-softmax would be pointless: the logarithms themselves weigh."""
    return net.node("LogSoftmax", scores, axis=-1)


def form(make=parts, mask=None, shares=soft, opset=17):
    """Return a model of one attention."""
    net = Net(T, D, seed=5, opset=opset)
    x = dense(net, "x", D, D)
    q, k, v = make(net, norm(net, x))
    scores = net.node("Mul", net.node("MatMul", q, k), net.const(np.float32(1 / np.sqrt(SIZE))))
    p = shares(net, mask(net, scores) if mask else scores)
    mixed = net.node("Transpose", net.node("MatMul", p, v), perm=[0, 2, 1, 3])
    x = net.node("Add", x, dense(net, net.node("Reshape", mixed, shape(net, 0, T, D)), D, D))
    net.node("Identity", dense(net, x, D, 5), out="y")
    return net.graph("y")


def data(model, seed):
    """Return inputs; what is there of a sequence is its beginning."""
    rng = np.random.default_rng(seed)
    feed = {"x": rng.standard_normal((64, T, D)).astype(np.float32)}
    if len(model.graph.inputs) > 1:
        feed["there"] = (np.arange(T) < rng.integers(1, T + 1, (64, 1))).astype(np.float32)
    return feed


FORMS = {
    "no mask": {},
    "decomposed norm": {"opset": 13},
    "minus infinity": {"mask": added(-np.inf)},
    "least float": {"mask": added(np.finfo(np.float32).min)},
    "-1e9": {"mask": added(-1e9)},
    "-10000": {"mask": added(-1e4), "opset": 13},
    "-100": {"mask": added(-100.0)},
    "bias and mask": {"mask": alibi},
    "where, minus infinity": {"mask": chosen(-np.inf)},
    "where, -1e9": {"mask": chosen(-1e9), "opset": 13},
    "where not": {"mask": chosen(-1e4, shown=False)},
    "guard": {"mask": added(-np.inf), "shares": guarded},
    "where behind": {"shares": shown_after},
    "split": {"make": fused},
    "split, masked": {"make": fused, "mask": added(-np.inf), "opset": 13},
    "split in heads": {"make": fused_heads},
    "five axes, gather": {"make": lambda net, n: fused_five(net, n, False)},
    "five axes, unbind": {"make": lambda net, n: fused_five(net, n, True), "mask": chosen(-np.inf)},
    "another axis": {"shares": turned_soft},
    "another axis, masked": {"shares": turned_soft, "mask": added(-1e9)},
    "log-softmax": {"shares": logarithm},
}
#: Numbers and orders that make no other graph than a form above: tests/passes/test_mask.py has them as well.
VARIANTS = (
    "least float",
    "-1e9",
    "-10000",
    "where, -1e9",
    "where not",
    "split, masked",
    "another axis, masked",
)


def outcome(model, platform, mode, **settings):
    """Quantize; return the report, the float nodes with their reasons, and the signal to noise on
    other data.
    """
    result = quantize(
        model, data(model, 0), platform=platform, mode=mode, effort="fast", **settings
    )
    test = data(model, 1)
    want = {n: a for n, a, _ in FloatRunner(model, ["y"]).run(test)}["y"]
    (got,) = result.session().run(None, test)
    left = [(node.op_type, node.why) for node in result.report.float_nodes]
    return result, left, 10 * np.log10(np.sum(want**2) / np.sum((got - want) ** 2))


@pytest.mark.sweep
@pytest.mark.parametrize(("platform", "mode"), PLATFORMS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in VARIANTS else []) for n in FORMS]
)
def test_form(name, platform, mode):
    """Quantized without an exception, near the float model, and nothing in float but what is told
    why.
    """
    result, left, quality = outcome(form(**FORMS[name]), platform, mode)
    assert left == [(kind, REASONS[kind, platform]) for kind, _ in left]
    assert len(left) <= 1
    assert result.report.host_part == []
    assert result.report.integer_macs == 1.0
    assert result.report.chip_ready == (not left and platform != "generic")
    assert quality > LEAST


def test_what_lies_behind_a_work_area_is_moved_away(monkeypatch):
    """venusA's packer plans half of what a LinearInt of several rows writes; what lies behind goes
    to PSRAM.

    That is without the BatchNorm2dInt for which it plans more.
    """
    monkeypatch.setattr(
        "lingeronnx.luna.backend_passes.work_area_padding._is_safe", lambda graph, row: True
    )
    result, _, _ = outcome(form(**FORMS["no mask"]), "venusA", "q-value")
    assert result.report.chip_ready
    assert not [
        said
        for said in packability.evaluate_result(result, "venusA").problems
        if said.startswith("LinearInt")
    ]
    rows = [
        f"{node.outputs[0].name}:psram"
        for node in result.graph.graph
        if node.op_type == "LinearInt"
    ]
    left = evaluate_graph(
        result.graph, platforms.get_target("venusA"), f"-p venusa -m {','.join(rows)}"
    )
    assert any("it overwrites" in finding.value for finding in left.findings)


@pytest.mark.sweep
@pytest.mark.parametrize(("platform", "mode"), PLATFORMS)
@pytest.mark.parametrize("mask", (at_run_time, chosen_at_run_time))
def test_mask_of_an_input(mask, platform, mode):
    """What depends on the mask alone and what it is applied to are float; the report says why."""
    result, left, quality = outcome(form(mask=mask), platform, mode)
    kinds = {kind for kind, _ in left}
    assert {"Softmax"} <= kinds <= {"Add", "Greater", "Mul", "Softmax", "Sub", "Unsqueeze", "Where"}
    assert all(why for _, why in left)
    assert ("Softmax", RUN_TIME) in left
    assert not result.report.chip_ready
    assert result.report.integer_macs == 1.0
    assert quality > LEAST


@pytest.mark.parametrize("gain", (0.1, 1.0, 6.0))
@pytest.mark.parametrize("platform", ("generic", "arcs", "venusA"))
def test_what_is_masked_gets_nothing(platform, gain):
    """Law: no share, in integers, whether scores are small, large or saturated; what is shown gets
    the rest.
    """
    model = form(mask=added(-np.inf))
    feed = {"x": gain * data(model, 0)["x"]}
    result = quantize(model, feed, platform=platform, effort="fast")
    softmax = next(n for n in result.graph.graph if n.op_type == "SoftmaxInt")
    (reader, _), *_ = softmax.outputs[
        0
    ].uses()  # on venusA, where rows are taken in parts, the iqCat of these
    whole = reader.outputs[0] if reader.op_type == "iqCat" else softmax.outputs[0]
    shares = {name: array for name, array, _ in result.session().taps(feed)}[str(whole.name)]
    assert not shares[:, ~np.broadcast_to(CAUSAL[0], shares.shape[1:])].any()
    sums = shares.sum(axis=-1) / float(softmax.attributes["scale_o"].value)
    assert np.abs(sums - 1).max() <= (T + 2) / 256


def test_a_row_masked_as_a_whole_is_left_in_float():
    """Its shares are equal in float, which no mask of integers gives: the report says why; a chip
    refuses.
    """
    net = Net(T, D, seed=5, opset=17)
    whole = np.where(np.eye(T, dtype=bool), 0, -1e9).astype(np.float32)
    whole[3] = -1e9
    scores = net.node("Add", dense(net, "x", D, T), net.const(whole))
    net.node("Identity", dense(net, net.node("Softmax", scores, axis=-1), T, 5), out="y")
    model = net.graph("y")
    with pytest.raises(
        ConstraintError, match="needs scale 2\\^-23, below the arcs minimum of 2\\^-3; .*--skip"
    ):
        quantize(model, data(model, 0), platform="arcs", effort="fast", require_chip=True)
    report = quantize(model, data(model, 0), platform="arcs", effort="fast").report
    left = {node.why for node in (*report.float_nodes, *report.host_part)}
    assert "it needs a scale of 2^-23; the minimum on arcs is 2^-3" in left
    assert report.outputs["y"]["sqnr"] > 20
