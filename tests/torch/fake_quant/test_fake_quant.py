"""Law: fake quantizers give the simulator's integers to the last bit: on every measured graph, for
every kernel.
"""

import importlib
import json
import pkgutil

import numpy as np
import pytest
from onnx import helper, numpy_helper

import lingeronnx.operators
from benchmarks.version_agreement import (
    ROWS,
    find_rows,
    follows_formula,
    get_feeds,
    get_row_target,
)
from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from lingeronnx.operators.linear.integer_op import FloatLinear
from lingeronnx.runtime.integer.runner import IntegerRunner
from lingeronnx.runtime.runners import FloatFallback
from lingeronnx.runtime.session import Session
from lingeronnx.targets import PLATFORMS, arithmetic
from lingeronnx.torch import fake_quant
from lingeronnx.torch.fake_quant import (
    FAKE_QUANTIZERS,
    UNTRAINABLE_KERNELS,
    get_fake_quantizer,
    map_parameter_inputs,
)
from lingeronnx.torch.qat.qat_module import FakeQuantNetwork
from simulator import kernels as k
from simulator.fixed_point import Rescale
from simulator.kernel import Kernel, NumpyKernel, TensorSpec
from simulator.kernels.layer_norm import InstanceNorm
from simulator.kernels.loops._common import ClampableKernel
from simulator.kernels.per_sample import PerSampleKernel
from simulator.kernels.recurrent._sequence_loop import CompiledRecurrentKernel
from simulator.kernels.recurrent.layer import RecurrentKernel
from tests.run.test_conformance import LUNA
from tests.torch.fake_quant.fake_quant_checks import equal, tensor


def kernels():
    """Return every kernel class that there is, by looking for subclasses in all modules."""
    for package in (k, lingeronnx.operators):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    waiting, seen = [Kernel], set()
    while waiting:
        for kind in waiting.pop().__subclasses__():
            if kind not in seen and kind.__module__.startswith(("simulator.", "lingeronnx.")):
                seen.add(kind)
                waiting.append(kind)
    bases = {
        NumpyKernel,
        ClampableKernel,
        RecurrentKernel,
        CompiledRecurrentKernel,
        FloatFallback,
    }  # an island has `floats.TorchFallback`
    bases.add(PerSampleKernel)  # made of another when a program is compiled; no step holds one
    return {kind for kind in seen - bases if not kind.__name__.startswith("_")}


def test_no_kernel_lacks_a_fake_quantizer():
    """Each kernel that a step of an integer graph can hold has one, and there is none for what no
    step can hold.
    """
    named = {getattr(k, name) for name in k.__all__ if isinstance(getattr(k, name), type)}
    assert named <= kernels()
    assert not set(FAKE_QUANTIZERS) & set(UNTRAINABLE_KERNELS)
    assert kernels() == set(FAKE_QUANTIZERS) | set(UNTRAINABLE_KERNELS)


def test_families_share_no_kernel():
    """Each family's module is joined, and no kernel stands in two of them."""
    modules = [
        importlib.import_module(f"{fake_quant.__name__}.{found.name}")
        for found in pkgutil.iter_modules(fake_quant.__path__)
    ]
    listed = [kind for module in modules for kind in getattr(module, "KERNELS", ())]
    assert len(listed) == len(set(listed))
    assert set(FAKE_QUANTIZERS) - set(listed) == {k.Constant, k.ZeroPointKernel}
    assert set(listed) < set(FAKE_QUANTIZERS)


def trained(kind):
    """Return a kernel of the training side's, of one unit and one input."""
    ones = np.ones((kind.gates, 1), np.int8)
    zero, rule = np.zeros(kind.gates, np.int64), Rescale.from_shift(0, 32)
    return kind(ones, ones, zero, zero, rule, rule, Rescale.from_shift(8, 8))


def test_out_of_reach():
    """The reason is told, and it is one: no platform's own words mean the training side's
    arithmetic.
    """
    for kind in UNTRAINABLE_KERNELS:
        with pytest.raises(
            ModelError,
            match=(
                f"^{kind.__name__} has no fake quantizer to train through: it has the arithmetic of the training side"
            ),
        ):
            get_fake_quantizer(trained(kind))
    known = [entry.arithmetic for target in PLATFORMS for entry in target.ops.values()]
    layers = [how for how in known if isinstance(how, arithmetic.RecurrentArithmetic)]
    assert layers
    assert not any(how.trained for how in layers)


def test_a_kernel_without_a_fake_quantizer():
    class Odd(NumpyKernel):
        pass

    with pytest.raises(
        ModelError, match="^Odd has no fake quantizer to train through; keep the node in float$"
    ):
        get_fake_quantizer(Odd())
    with pytest.raises(ModelError, match="constant"):
        get_fake_quantizer(k.Constant(np.zeros(1, np.int8)))(None, [], None)


# ---- measured vectors --------------------------------------------------------------------------------------------

CASES = json.loads((LUNA / "index.json").read_text())["cases"]


def walked(case):
    """Return (kinds of kernels, number of tensors) of a measured graph whose every tensor is the
    simulator's.
    """
    vectors = np.load(LUNA / f"{case['name']}.npz")
    return walk_graph(Session(LUNA / f"{case['name']}.onnx").model, vectors)


def walk_graph(model, vectors, target=None):
    """Return (kinds of kernels, number of tensors) of a graph, whose every tensor is compared."""
    runner = IntegerRunner(model, target=target)
    feeds = {spec.name: np.asarray(vectors[spec.name]) for spec in runner.inputs}
    fed = runner._make_program_feed(
        feeds, frozenset(n for n, a in feeds.items() if runner._is_quantized(n, a))
    )
    specs = {
        n: TensorSpec(a.shape if runner.runs_whole_batch else (1, *a.shape[1:]), a.dtype)
        for n, a in fed.items()
    }
    network = FakeQuantNetwork(model, {}, {}, specs, target=target)
    want = {name: array for name, array, _ in runner.run(feeds)}
    walk = dict(network.walk({n: tensor(a).detach() for n, a in fed.items()}, {}, {}))
    assert walk.keys() == {name for step in network.steps for name in step.outputs}
    for name, got in walk.items():
        equal(got, want[name])
    return {type(step.kernel) for step in network.steps}, len(walk)


def measured(cases):
    """Walk the cases; return the kinds of kernels met."""
    kinds, wrong = set(), []
    for case in cases:
        try:
            met, count = walked(case)
            assert count
            kinds |= met
        except AssertionError as error:
            wrong.append(f"{case['name']}: {error}")
    assert not wrong, "\n".join(wrong)
    return kinds


#: Kernels of operators that only later executors have.
LATER_KERNELS = {k.CandidateGru, k.PiecewiseCurve, k.WideLinear}
VERSION_ROWS = [
    row
    for row in find_rows(ROWS)
    if follows_formula(row)
    and all(array.shape[0] == 1 for array in get_feeds(ROWS, row).values())  # no axis of time
]


@pytest.mark.sweep
@pytest.mark.parametrize("operator", sorted({row["operator"] for row in VERSION_ROWS}))
def test_rows_of_later_executors(operator):
    """Every tensor of the graphs that later executors ran."""
    for row in VERSION_ROWS:
        if row["operator"] == operator:
            model = Session(ROWS / row["file"]).model
            _, count = walk_graph(model, get_feeds(ROWS, row), get_row_target(row))
            assert count


def test_rows_have_the_kernels_of_later_executors():
    kinds = set()
    for name in ("gru_venus_bf1_a_v310", "iqtanh_arcs_v2608", "lin_venusA_v310_32_32_8_r2"):
        row = next(row for row in VERSION_ROWS if row["name"] == name)
        model = Session(ROWS / row["file"]).model
        kinds |= walk_graph(model, get_feeds(ROWS, row), get_row_target(row))[0]
    assert kinds >= LATER_KERNELS


@pytest.mark.slow
def test_all_vectors():
    """Every tensor of every measured graph."""
    kinds = measured(CASES)
    elsewhere = {k.AddScaled, k.Clip, k.Constant, k.Gru, FloatLinear}  # of other platforms: below
    elsewhere |= {InstanceNorm}  # no chip has it: tests/ops/test_instance_norm.py
    elsewhere |= LATER_KERNELS
    elsewhere |= {k.DivSingle, k.Mean}  # of the training side
    elsewhere |= {k.ZeroPointKernel}  # of zero points: test_zero_points
    assert kinds >= set(FAKE_QUANTIZERS) - elsewhere


def test_names_of_what_a_node_holds():
    """By input index; of a recurrent layer by the kernel's field, wherever the weights stand."""
    names = ["x", "n", "h", "", "w", "r", "b"]
    w, zero = np.ones((4, 1), np.int8), np.zeros(4, np.int32)
    arrays = {"w": w, "r": w, "b": zero}
    layer = helper.make_node("LSTMInt", names, ["y"], domain="thinker", name="layer")
    conv = helper.make_node("Conv2dInt", ["x", "w", "b"], ["z"], domain="thinker", name="conv")
    graph = helper.make_graph(
        [layer, conv],
        "g",
        [helper.make_tensor_value_info(n, 1, None) for n in ("x", "n", "h")],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    model = ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("thinker", 1)], ir_version=8)
    )
    rule = Rescale.from_shift(0, 8)
    kernel = k.Lstm(w, w, zero.astype(np.int64), zero.astype(np.int64), rule, rule, rule)
    found = {key: v.name for key, v in map_parameter_inputs(kernel, model.graph.node(0)).items()}
    assert found == {"lengths": "n", "h": "h", "weight_x": "w", "weight_h": "r", "bias_x": "b"}
    found = map_parameter_inputs(
        k.Conv(np.ones((1, 1, 1, 1), np.int8), None, rule), model.graph.node(1)
    )
    assert {key: v.name for key, v in found.items()} == {0: "x", 1: "w", 2: "b"}
