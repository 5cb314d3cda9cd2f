"""Integer kernels of single operators against whole runs in the simulator, and against the function
itself.
"""

from __future__ import annotations

import numpy as np
import pytest

from lingeronnx.analysis.sensitivity.kernels import FINE_BITS, KernelRunner, build_integer_operators
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine
from lingeronnx.quantization import plan_model, prepare_model
from tests.nets import Net

X = np.random.default_rng(4).standard_normal((64, 6, 16)).astype(np.float32)


def curve(op_type, platform):
    """Return (node, its output, its kernels) of an operator between two layers."""
    net = Net(6, 16, seed=1)

    def layer(x):
        return net.node(
            "MatMul", x, net.const((0.5 * net.rng.standard_normal((16, 16))).astype(np.float32))
        )

    middle = net.node(op_type, layer("x"), out="curved")
    graph = net.graph(net.node("MatMul", middle, net.const(np.eye(16, dtype=np.float32)), out="y"))
    plan = plan_model(
        prepare_model(graph, X, None, {"effort": "fast", "platform": platform}, hold_out=False)
    )
    node = next(node for node in plan.graph.graph if ir.output_name(node) == "curved")
    fine = {
        name: Affine(q.scale * 2.0 ** max(FINE_BITS - 2 - q.bits, 0), FINE_BITS)
        for name, q in plan.plan.tensors.items()
    }
    tensors = {name: plan.plan.tensors[name] for name in plan.partition.activations}
    return plan, node, build_integer_operators(plan, tensors, fine, {})


@pytest.mark.parametrize("platform", ["generic", "venusA"])
def test_inputs_left_in_float(platform):
    """A softmax is within two counts of the function of what its inputs hold, in 16 bits or as
    planned.
    """
    plan, node, operators = curve("Softmax", platform)
    (name,) = operators[str(node.name)].inputs
    q = plan.plan.tensors["curved"]
    real = np.random.default_rng(5).uniform(-3, 3, (2, 6, 16)).astype(np.float32)
    held = plan.plan.tensors[name].on_grid(real)
    runner, forms = KernelRunner(operators), operators[str(node.name)].variants
    assert set(forms) == {(True, "plan"), (False, "plan")}
    for rounded, x in ((True, held), (False, np.clip(real, *_ends(plan.plan.tensors[name])))):
        (result,) = runner.run(str(node.name), (rounded, "plan"), {name: x}, ["curved"]).values()
        powers = np.exp(x.astype(np.float64))
        assert np.abs(result - powers / powers.sum(-1, keepdims=True)).max() <= 2 / q.scale


@pytest.mark.parametrize("platform", ["generic", "venusA"])
def test_a_curve_of_single_numbers(platform):
    """It is run where its input is rounded, and within two counts of the function then."""
    plan, node, operators = curve("Sigmoid", platform)
    (name,) = operators[str(node.name)].inputs
    assert set(operators[str(node.name)].variants) == {(True, "plan")}
    x = plan.plan.tensors[name].on_grid(np.linspace(-3, 3, 96, dtype=np.float32).reshape(1, 6, 16))
    (result,) = (
        KernelRunner(operators).run(str(node.name), (True, "plan"), {name: x}, ["curved"]).values()
    )
    assert (
        np.abs(result - 1 / (1 + np.exp(-x.astype(np.float64)))).max()
        <= 2 / plan.plan.tensors["curved"].scale
    )


def _ends(q):
    return q.low / q.scale, q.high / q.scale


def test_a_layer_is_no_kernel_for_inputs_in_float():
    """Its products of real inputs are real: rounding its output is all that there is to see."""
    _, _, operators = curve("Sigmoid", "generic")
    layers = [operator for operator in operators.values() if operator.output != "curved"]
    assert layers
    assert all(set(operator.variants) == {(True, "plan")} for operator in layers)
