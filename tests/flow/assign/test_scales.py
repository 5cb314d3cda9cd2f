"""Who shares a scale, and which inequalities hold afterwards."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.common.errors import ConfigError, ConstraintError
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine, Plan
from lingeronnx.luna import VENUS
from lingeronnx.operators.pool.lowering import is_lowered_to_linear
from lingeronnx.quantization.partition import Partition
from lingeronnx.quantization.scales import group_shared_scales, legalize
from lingeronnx.targets import GENERIC
from tests import nets
from tests.case_selection import limit_examples
from tests.nets import prepared, single

POOLS = ("AveragePool", "GlobalAveragePool")

few = limit_examples(40, derandomize=True)


def shared_by(model, row):
    """Return the shared scales of a model that becomes integer as a whole."""
    return group_shared_scales(Partition.build(model, {}, row), row)


def legal(plan, model, row):
    """Return what `legalize` makes of a plan for such a model."""
    parts = Partition.build(model, plan.floats, row)
    return legalize(plan, parts, group_shared_scales(parts, row), row)


# ---- sums -----------------------------------------------------------------------------------------------------------


def _sum_bias(mode, factor):
    """Return the mean error of y = Add(Conv, Relu) on generic in steps of y; the Conv's range is
    `factor` of y's.
    """
    net = nets.Net(4, 8, 8, seed=7)
    shortcut = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    y = net.node("Add", net.conv(shortcut, (8, 8, 3, 3), pads=[1] * 4, gain=factor), shortcut)
    model = net.graph(net.node("MaxPool", y, out="z", kernel_shape=[1, 1]))
    feeds = nets.samples(model, 64)
    result = quantize(model, feeds, platform="generic", mode=mode, effort="fast", calibrator="max")
    names = [
        ir.input_name(node, i)
        for node in result.float_graph.graph
        if node.op_type == "Add"
        for i in (0, 1)
    ]
    held = [result.plan.tensors[name].scale for name in (*names, y)]
    want = (
        quantize(model, feeds, platform="generic", mode=mode, effort="fast", bits=16)
        .session()
        .run(None, feeds)[0]
    )
    have = result.session().run(None, feeds)[0]
    return held, float((have - want).mean()) * held[-1]


def test_a_sum_at_powers_of_two_is_not_written_half_way_between_integers():
    """An operand that the sum alone reads has no finer scale: rounding half up would add a quarter
    of a step.
    """
    (conv, shortcut, out), bias = _sum_bias("q-value", 0.3)
    assert conv == out >= shortcut
    assert abs(bias) < 0.05


def test_free_scales_of_sums_stay():
    (conv, _, out), _ = _sum_bias("max-value", 0.3)
    assert conv > out


# ---- shared scales ---------------------------------------------------------------------------------------------------


def test_relu_output_governs_when_alone():
    """Conv -> Relu: one scale, and only the Relu's range counts."""
    model = single(lambda n: n.node("Relu", n.conv("x", (4, 3, 3, 3), out="c"), out="y"), 3, 6, 6)
    (group,) = [g for g in shared_by(model, VENUS) if "c" in g.tensors]
    assert group.tensors == ("c", "y")
    assert group.observed_tensors == ("y",)


def test_relu_output_does_not_govern_when_shared():
    """Where somebody else reads the convolution too its whole range counts."""
    net = nets.Net(3, 6, 6)
    c = net.conv("x", (4, 3, 3, 3), out="c")
    net.conv(net.node("Relu", c, out="r"), (4, 4, 3, 3), out="y")
    net.conv(c, (4, 4, 3, 3), out="z")
    (group,) = [g for g in shared_by(prepared(net.graph("y", "z")), VENUS) if "c" in g.tensors]
    assert group.tensors == group.observed_tensors == ("c", "r")


def test_relu_of_a_graph_output_does_not_govern():
    """A graph output is read by the outside."""
    net = nets.Net(3, 6, 6)
    net.node("Relu", net.conv("x", (4, 3, 3, 3), out="c"), out="y")
    (group,) = [g for g in shared_by(prepared(net.graph("y", "c")), VENUS) if "c" in g.tensors]
    assert set(group.observed_tensors) == {"c", "y"}


def test_moves_and_pools_are_tied():
    """MaxPool, average pooling of parts of a map (on chips) and reshapes pass the scale on."""
    model = nets.branches()
    groups = {
        name: i for i, g in enumerate(shared_by(prepared(model), VENUS)) for name in g.tensors
    }
    by_output = {str(v.name): node for node in model.graph for v in node.outputs}
    for kind in ("MaxPool", "AveragePool", "Transpose", "Reshape"):
        for name, node in by_output.items():
            if node.op_type == kind and not (kind in POOLS and is_lowered_to_linear(node, VENUS)):
                assert groups[name] == groups[str(node.inputs[0].name)], name
    generic = {name: i for i, g in enumerate(shared_by(model, GENERIC)) for name in g.tensors}
    pools = [n for n in by_output.values() if n.op_type == "AveragePool"]
    assert pools
    assert all(generic[str(n.outputs[0].name)] != generic[str(n.inputs[0].name)] for n in pools)


def test_every_tensor_is_in_one_class():
    """Classes partition what is observed."""
    for net in nets.NETS:
        model = prepared(net())
        names = [name for group in shared_by(model, VENUS) for name in group.tensors]
        assert sorted(names) == sorted(Partition.build(model, {}, VENUS).activations)
        for group in shared_by(model, VENUS):
            assert group.observed_tensors
            assert set(group.observed_tensors) <= set(group.tensors)


# ---- legalize --------------------------------------------------------------------------------------------------------


def inequalities(model, tensors):
    """Return what breaks q_o <= q_x + q_w (layers, products) or q_o <= q_x, q_y (sums), or a shared
    scale.
    """
    q = {name: int(np.log2(p.scale)) for name, p in tensors.items()}
    wrong = []
    for node in model.graph:
        names = [str(v.name) for v in node.inputs]
        out = q[str(node.outputs[0].name)]
        if node.op_type in POOLS and is_lowered_to_linear(
            node, VENUS
        ):  # by weights of 2^q_w / area in 8 bits
            area = np.prod(ir.get_shape(node.inputs[0])[2:])
            limit = q[names[0]] + min(16, int(np.floor(np.log2(127 * area))))
        elif node.op_type in ("Conv", "Linear", "BatchNormalization", "Mul"):
            limit = q[names[0]] + q[names[1]]
        elif node.op_type == "Add":
            limit = min(q[names[0]], q[names[1]])
        else:
            limit = out
            if node.op_type != "Concat" and q[names[0]] != out:
                wrong.append(node.name)
        if out > limit:
            wrong.append(node.name)
    return wrong


@functools.cache
def prepared_once(net):
    return prepared(net())


@few
@given(st.sampled_from(nets.NETS), st.integers(0, 2**32 - 1))
def test_legalize(net, seed):
    """Law: whatever the exponents, afterwards every inequality holds, scales were only lowered,
    twice is once.
    """
    model = prepared_once(net)
    rng = np.random.default_rng(seed)
    parameters = {
        str(n.inputs[i].name)
        for n, op in Partition.build(model, {}, VENUS).integer_nodes
        for i in op.weight_inputs(n)
    }
    tensors = {
        name: Affine(2.0 ** int(rng.integers(2, 20)))
        for name in sorted({*Partition.build(model, {}, VENUS).activations, *parameters})
    }
    for node in model.graph:
        if node.op_type == "Mul":  # keeps the result above the chip's smallest scale
            tensors.update({str(v.name): Affine(8.0) for v in node.inputs})
    before = Plan("venus", "q-value", tensors=tensors)
    after, notes = legal(before, model, VENUS)
    assert inequalities(model, after.tensors) == []
    assert all(after.tensors[name].scale <= p.scale for name, p in tensors.items())
    assert all(after.tensors[name] == p for name, p in tensors.items() if name in parameters)
    assert all(
        2.0**-3 <= after.tensors[name].scale <= 2.0**16
        for name in Partition.build(model, {}, VENUS).activations
    )
    again, more = legal(after, model, VENUS)
    assert again == after
    assert more == []
    assert all("lowered from" in note for note in notes)


def test_legal_plan_is_left_alone():
    """What holds already is not touched and not reported."""
    model = prepared(nets.plain())
    tensors = {name: Affine(16.0) for name in Partition.build(model, {}, VENUS).activations}
    tensors |= {
        str(n.inputs[1].name): Affine(64.0)
        for n, op in Partition.build(model, {}, VENUS).integer_nodes
        if op.weight_inputs(n)
    }
    plan = Plan("venus", "q-value", tensors=tensors)
    assert legal(plan, model, VENUS) == (plan, [])


def test_generic_keeps_free_scales():
    """A platform that multiplies has no inequality, only shared scales."""
    model = prepared(nets.plain())
    tensors = {name: Affine(17.5) for name in Partition.build(model, {}, GENERIC).activations}
    tensors |= {
        str(n.inputs[1].name): Affine(1.5)
        for n, op in Partition.build(model, {}, GENERIC).integer_nodes
        if op.weight_inputs(n)
    }
    plan = Plan("generic", "max-value", tensors=tensors)
    assert legal(plan, model, GENERIC) == (plan, [])


def test_legalize_refuses_free_scales_on_a_chip():
    """A plan from a file may hold anything: the tensor is named."""
    model = prepared(nets.plain())
    tensors = {name: Affine(17.5) for name in Partition.build(model, {}, VENUS).activations}
    tensors |= {
        str(n.inputs[1].name): Affine(64.0)
        for n, op in Partition.build(model, {}, VENUS).integer_nodes
        if op.weight_inputs(n)
    }
    with pytest.raises(ConstraintError, match="has scale 17.5; venus supports powers of two only"):
        legal(Plan("venus", "q-value", tensors=tensors), model, VENUS)


def test_scale_below_the_smallest():
    """A scale below 2^-3 that the user fixes cannot be held; the error says what to do."""
    model = nets.plain()
    with pytest.raises(
        ConstraintError, match=r"tensor 'x' needs scale 2\^-6, below the venus minimum of 2\^-3"
    ):
        quantize(model, nets.samples(model), overrides={"x": {"scale": 2.0**-6}}, effort="fast")


@pytest.mark.parametrize("kind", ("activation", "weight"))
def test_a_plan_with_a_gap_is_refused(kind):
    """A tensor or a weight without a scale is named, in one line; nothing is guessed."""
    net = nets.residual()
    made = quantize(net, nets.samples(net), effort="fast")
    held = made.plan.tensors
    weights = [name for name in held if name in made.float_graph.graph.initializers]
    name = weights[0] if kind == "weight" else next(name for name in held if name not in weights)
    cut = replace(made.plan, tensors={n: q for n, q in held.items() if n != name})
    with pytest.raises(ConfigError, match=f"the plan has no scale for integer tensor '{name}'"):
        quantize(net, nets.samples(net), effort="fast", plan=cut)
