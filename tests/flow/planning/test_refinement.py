"""What two plans for one model have in common is done once: layers refined, outputs of the user's
model computed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from lingeronnx.ir import ir
from lingeronnx.ir.digests import compute_value_digests, have_same_structure
from lingeronnx.quantization import plan_model, prepare_model, refine_weights
from lingeronnx.quantization.methods.refine import find_refinable_layers
from lingeronnx.quantization.prepare.float_outputs import FloatOutputCache
from lingeronnx.runtime.runners import FloatRunner
from tests.nets import Net

MODEL = """< ir_version: 10, opset_import: ["" : 17] > g (float[N,2] x) => (float[N,2] y)
    <float[2] c = {1, 2}, float[2] d = {3, 4}> { a = Relu(x) b = Add(a, c) y = Mul(b, d) }"""


def graph(text):
    """Return a model in ONNX text."""
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    (
        ("{3, 4}", "{3, 5}", {"x", "a", "b"}),
        ("{1, 2}", "{0, 2}", {"x", "a"}),
        ("Relu(x)", "Elu<alpha = 2.0>(x)", {"x"}),
        ("Add(a, c)", "Add(c, a)", {"x", "a"}),
        ("Relu(x)", "Relu(x)", {"x", "a", "b", "y"}),
    ),
)
def test_a_change_is_seen_in_all_that_is_computed_from_it(old, new, alike):
    """Law: two tensors have one digest where operators, attributes, constants and inputs behind
    them are the same.
    """
    first, second = (
        compute_value_digests(graph(MODEL)),
        compute_value_digests(graph(MODEL.replace(old, new))),
    )
    assert {name for name in first if first[name] == second[name]} == alike


def test_names_do_not_count():
    """But for those of graph inputs."""
    other = (
        MODEL.replace("a =", "other =")
        .replace("Add(a,", "Add(other,")
        .replace(" d ", " e ")
        .replace(", d)", ", e)")
    )
    assert compute_value_digests(graph(MODEL))["y"] == compute_value_digests(graph(other))["y"]
    assert (
        compute_value_digests(graph(MODEL))["y"]
        != compute_value_digests(graph(MODEL.replace(" x)", " z)").replace("(x)", "(z)")))["y"]
    )


def test_what_has_a_subgraph_is_left_out():
    """So is all that is computed from it."""
    text = """< ir_version: 10, opset_import: ["" : 17] > g (float[2] x, bool c) => (float[2] y)
        { a = Relu(x) b = If (c) <then_branch = t () => (float[2] p) { p = Abs(x) },
          else_branch = e () => (float[2] q) { q = Neg(x) }> y = Add(a, b) }"""
    assert compute_value_digests(graph(text)).keys() == {"x", "c", "a"}


@pytest.mark.parametrize(
    ("old", "new", "same"),
    (
        ("{3, 4}", "{3, 5}", True),
        ("float[2] d = {3, 4}", "float[1] d = {3}", False),
        ("float[2] d = {3, 4}", "int32[2] d = {3, 4}", False),
        ("Relu(x)", "Elu<alpha = 2.0>(x)", False),
        ("Add(a, c)", "Add(c, a)", False),
        ("N,2] x", "N,3] x", False),
        ("Mul(b, d) }", "Mul(b, d) z = Relu(y) }", False),
    ),
)
def test_structure_is_all_but_the_elements_of_constants(old, new, same):
    """Law: two graphs have one structure where only elements of constants differ."""
    assert have_same_structure(graph(MODEL), graph(MODEL.replace(old, new))) is same


def test_shapes_and_indices_belong_to_the_structure():
    text = """< ir_version: 10, opset_import: ["" : 17] > g (float[N,4] x) => (float[N,2,2] y)
        <int64[3] s = {0, 2, 2}> { y = Reshape(x, s) }"""
    assert not have_same_structure(graph(text), graph(text.replace("2, 2}", "2, -1}")))


def net():
    """Return two layers, another of what they give, and the square root of its magnitude."""
    n = Net(3, 8, 8, seed=3)
    a = n.node("Relu", n.conv("x", (6, 3, 3, 3), pads=[1, 1, 1, 1]))
    b = n.node("Relu", n.conv(a, (6, 6, 3, 3), pads=[1, 1, 1, 1]))
    n.node("Sqrt", n.node("Abs", n.conv(b, (4, 6, 1, 1))), out="y")
    return n.graph("y")


def constants(model, name):
    """Return what the layer that writes `name` reads beside its data."""
    node = next(node for node in model.graph if ir.output_name(node) == name)
    return [ir.const_value(value) for value in node.inputs[1:]]


def test_a_tail_left_to_the_host_changes_no_layer():
    """All is taken over, as it would have been refined."""
    model = net()
    prepared = prepare_model(
        model, {"x": np.random.default_rng(0).standard_normal((40, 3, 8, 8), np.float32)}, None, {}
    )
    first = plan_model(prepared)
    before = first, refine_weights(first)
    tail = [
        str(node.name) for node in prepared.graph.graph if node.op_type in ("Sqrt", "Abs", "Curve")
    ]
    second = plan_model(
        prepared.with_host_nodes(dict.fromkeys(tail, "for a test")), previous=first.calibration
    )
    heard = []
    again = refine_weights(second, previous=before, progress=lambda what, *_: heard.append(what))
    names = find_refinable_layers(second.partition).keys()
    assert len(names) == 3
    for name in names:
        for want, have in zip(
            constants(refine_weights(second), name), constants(again, name), strict=True
        ):
            np.testing.assert_array_equal(want, have)
    assert heard.count("refining") < len(names)
    pairs = [
        zip(constants(first.graph, name), constants(again, name), strict=True) for name in names
    ]
    assert any(not np.array_equal(old, new) for pair in pairs for old, new in pair)


def test_behind_a_change_layers_are_refined_again():
    """Other weights in front: other integers arrive, so nothing behind is taken over."""
    x = {"x": np.random.default_rng(0).standard_normal((40, 3, 8, 8), np.float32)}
    prepared = prepare_model(net(), x, None, {})
    planned = plan_model(prepared)
    before = planned, refine_weights(planned)
    names = list(find_refinable_layers(planned.partition))
    node = find_refinable_layers(planned.partition)[names[1]]
    wide = planned.plan.tensors[ir.input_name(node, 1)]
    tensors = {**planned.plan.tensors, ir.input_name(node, 1): wide.changed(wide.scale / 2)}
    other = replace(planned, plan=planned.plan.with_tensors(tensors))
    heard = []
    refine_weights(other, previous=before, progress=lambda what, *_: heard.append(what))
    assert heard.count("refining") == len(names) - 1


class Counting(FloatRunner):
    """Counts its runs."""

    runs = 0

    def run(self, feed, names=None):
        """Run."""
        self.runs += 1
        return super().run(feed, names)


def test_outputs_are_computed_once_as_far_as_there_is_room():
    """Batches are told apart by their contents and shapes."""
    rng = np.random.default_rng(0)
    pieces = [{"x": rng.standard_normal((4, 2), np.float32)} for _ in range(3)]
    runner = Counting(graph(MODEL))
    reference = FloatOutputCache(runner, ["y"], 2 * 4 * 2 * 4)
    want = [{n: a for n, a, _ in FloatRunner(graph(MODEL)).run(feed)} for feed in pieces]
    for _ in range(2):
        for number, feed in enumerate(pieces):
            np.testing.assert_array_equal(reference.outputs(feed)["y"], want[number]["y"])
    assert runner.runs == 4  # the third piece had no room
    equal = {"x": pieces[1]["x"].copy()}
    np.testing.assert_array_equal(reference.outputs(equal)["y"], want[1]["y"])
    assert runner.runs == 4
    for other in (pieces[0]["x"][:3], pieces[0]["x"] + 1):
        result = reference.outputs({"x": other})["y"]
        (expected,) = (array for _, array, _ in FloatRunner(graph(MODEL)).run({"x": other}, ["y"]))
        np.testing.assert_array_equal(result, expected)
    assert runner.runs == 6
