"""A layer's own error does not contain what was cut off before it: the doubled graph, and what
`compare` says then.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import lingeronnx as lo
from lingeronnx.analysis.compare.clipped_inputs import duplicate_with_clipped_inputs
from lingeronnx.analysis.compare.join import join_tensors
from lingeronnx.analysis.compare.sources import FloatSource, open_source
from lingeronnx.analysis.stats.stored_form import StoredForm
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine
from lingeronnx.runtime.runners import FloatRunner
from tests import nets
from tests.artefacts import quantized

NARROW = {"t2": {"scale": 64.0}}  # holds values below 2; they reach 4.9


def two_layers(opset=13):
    """y = Relu(x W + b) V, with names; the arrays too."""
    rng = np.random.default_rng(3)
    arrays = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("W", (4, 6)), ("V", (6, 3)))
    }
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "V"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, 1, ["N", size]) for name, size in (("x", 4), ("y", 3))
    ]
    held = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "two", ends[:1], ends[1:], held)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    ), arrays


def test_each_layer_reads_cut_values_of_the_model_as_it_is():
    """Against numpy: what no integers hold is part of a layer, and what is cut off before that is
    not felt behind.
    """
    proto, arrays = two_layers()
    x = np.random.default_rng(4).standard_normal((5, 4)).astype(np.float32)
    real = {"x": x, "a": x @ arrays["W"]}
    real["r"] = np.maximum(real["a"], 0)
    held = {
        "x": StoredForm(Affine(128.0, 8)),
        "r": StoredForm(Affine(128.0, 8), (1.0, 2.0, 4.0, 1.0, 1.0, 0.5)),
    }
    graph, names = duplicate_with_clipped_inputs(ir.from_proto(proto), held, real)
    found = {names[name]: array for name, array, _ in FloatRunner(graph, {*names}).run({"x": x})}
    factor = np.array(held["r"].factor)
    cut = np.clip(x, -1, 127 / 128), np.minimum(real["r"], 127 / 128 / factor)
    want = {
        "a": cut[0] @ arrays["W"],
        "r": np.maximum(cut[0] @ arrays["W"], 0),
        "y": cut[1] @ arrays["V"],
    }
    assert found.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
    assert not np.allclose(found["y"], real["r"] @ arrays["V"], atol=0.1)


def test_what_is_not_cut_off_is_not_computed_again():
    """Nor is a model whose operators cannot cut: of opset 7."""
    x = np.ones((2, 4), np.float32)
    for opset, scale, empty in ((13, 8.0, True), (13, 1000.0, False), (7, 1000.0, True)):
        base = FloatSource(lo.Session(ir.from_proto(two_layers(opset)[0])))
        real = {name: array for name, array, _ in base.run({"x": x})}
        tensors = base.run_with_clipped_inputs({"x": x}, real, {"x": StoredForm(Affine(scale, 8))})
        assert (tensors == {}) == empty


@pytest.mark.parametrize("platform", ("venus", "generic"))
def test_the_layers_behind_a_narrow_scale_are_not_blamed(platform):
    """The narrow tensor alone loses; all others have the level that they have without the fault, or
    nearly.
    """
    model, data = nets.residual(), nets.samples(nets.residual(), 16, seed=3)
    good, bad = (
        join_tensors(
            open_source(model),
            open_source(quantized(model, platform, effort="fast", overrides=fixed)),
            data,
        )
        for fixed in ({}, NARROW)
    )
    assert bad.rows["t2"].effective.sqnr < 18
    assert bad.rows["t4"].arrived.sqnr < 15  # as it arrives
    for name, row in bad.rows.items():
        if name != "t2":
            assert row.effective.sqnr > good.rows[name].effective.sqnr - 3, name
    assert bad.rows["t3"].effective.clipped_fraction == pytest.approx(
        bad.rows["t2"].effective.clipped_fraction
    )
    high = max(float(a.max()) for n, a, _ in lo.Session(model).tensors(data) if n == "t2")
    assert bad.rows["t2"].baseline_range == (0.0, pytest.approx(high))


def test_the_finding_names_the_scale_and_the_true_range():
    """Cut values behind it are its own tensor's too, so both stand in one finding; the option holds
    the true range.
    """
    model, data = nets.residual(), nets.samples(nets.residual(), 16, seed=3)
    findings = lo.compare(
        model, quantized(model, "venus", effort="fast", overrides=NARROW), data
    ).findings
    assert [(f.layer, f.kind, f.also) for f in findings[:1]] == [("t2", "scale too large", ("t3",))]
    assert findings[0].options == ("--override 't2=scale:2^4'",)
    assert {f.kind for f in findings[1:]}.isdisjoint(
        {"scale too large", "wrong bias", "computes something else"}
    )
