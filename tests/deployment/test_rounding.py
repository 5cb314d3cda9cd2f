"""What single precision costs a host part: nothing where it is well behaved, much where sums
cancel.
"""

import numpy as np
import pytest
from onnx import parser

from lingeronnx.deployment.host_tolerances import compute_host_tolerances, run_in_double_precision
from lingeronnx.ir import ir
from lingeronnx.runtime.parts_runner import PartRun
from lingeronnx.runtime.program_parts import ProgramPart
from lingeronnx.runtime.runners import FloatRunner
from tests.passes.helpers import proto, rand

N = 256
ANGLES = 2 * np.pi * np.outer(np.arange(N), np.arange(1, N // 2)) / N


def limits_of(model, *feeds):
    graph = ir.from_proto(model)
    inputs, outputs = (
        tuple(str(v.name) for v in side) for side in (graph.graph.inputs, graph.graph.outputs)
    )
    part, runner = (
        ProgramPart("host1", False, graph, inputs, outputs, ()),
        FloatRunner(graph, outputs),
    )
    runs = [
        PartRun(part, feed, {n: np.asarray(a) for n, a, _ in runner.run(feed)}, ())
        for feed in feeds
    ]
    return compute_host_tolerances(part, runs), runs


def spectrum():
    """The logarithm of the power of a spectrum."""
    text = f"""g (float[1,{N}] x) => (float[1,{N // 2 - 1}] y) {{
        a = MatMul(x, c) b = MatMul(x, s) aa = Mul(a, a) bb = Mul(b, b) p = Add(aa, bb) y = Log(p)
    }}"""
    return proto(
        text, opset=17, c=np.cos(ANGLES).astype(np.float32), s=np.sin(ANGLES).astype(np.float32)
    )


def tone(level=1.0):
    """A sine of eight whole periods: of all other frequencies there is what rounding makes of
    nothing.
    """
    return {"x": (level * np.sin(2 * np.pi * 8 * np.arange(N) / N)).astype(np.float32)[None]}


def noise(seed=0):
    return {"x": np.random.default_rng(seed).standard_normal((1, N)).astype(np.float32)}


def test_a_spectrum_whose_sums_cancel():
    """The limit is twice what onnxruntime is from sums that NumPy makes in double precision."""
    model = spectrum()
    limits, runs = limits_of(model, tone())
    x = runs[0].inputs["x"].astype(np.float64)
    tables = [np.float32(f(ANGLES)).astype(np.float64) for f in (np.cos, np.sin)]
    exact = np.log(sum((x @ table) ** 2 for table in tables))
    off = np.abs(runs[0].outputs["y"] - exact).max() / np.abs(runs[0].outputs["y"]).max()
    assert off > 1e-4
    assert limits["y"] == pytest.approx(2 * off, rel=0.02)


def test_the_call_that_is_off_is_found():
    """Among calls that are well behaved."""
    many = [noise(seed) for seed in range(6)]
    assert limits_of(spectrum(), *many[:3], tone(), *many[3:])[0]["y"] > 1e-4


def test_what_is_well_behaved_has_the_limit_of_all():
    text = (
        f"g (float[1,{N}] x) => (float[1,9] y, int64[1,9] k) {{ z = MatMul(x, w) y = "
        "Softmax(z) "
        "k = Cast<to = 7>(z) }"
    )
    assert limits_of(proto(text, opset=17, w=rand(N, 9)), noise(), noise(1))[0] == {"y": 1e-5}


def test_nothing_but_zeros():
    text = f"g (float[1,{N}] x) => (float[1,{N}] y) {{ y = Relu(x) }}"
    assert limits_of(proto(text), {"x": np.full((1, N), -1, np.float32)})[0] == {"y": 1e-5}


def test_an_operator_without_a_reference(monkeypatch):
    """The limit stays."""
    from lingeronnx.deployment import host_tolerances

    def refused(_):
        raise NotImplementedError

    monkeypatch.setattr(host_tolerances, "ReferenceEvaluator", refused)
    assert limits_of(spectrum(), tone())[0] == {"y": 1e-5}


def test_all_floats_are_double():
    """Constants in nodes, casts and functions, too; integers stay."""
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[3] x, int64[1] k) => (float[3] y, int64[1] j) <float[1] third = {0.3333333}> {
        small = Constant<value = float[1] {1e-9}>() n = Cast<to = 1>(k) a = Add(x, small) b = own.twice(a)
        c = Mul(b, third) y = Mul(c, n) j = Add(k, k)
    }
    <domain: "own", opset_import: ["" : 17]> twice (u) => (v) {
        two = Constant<value = float[1] {2.0}>() v = Mul(u, two)
    }"""
    model = parser.parse_model(text)
    x, k = np.float32([1, 2, 3]), np.int64([3])
    made = run_in_double_precision(model, {"x": x, "k": k})
    third = np.float64(np.float32(0.3333333))
    np.testing.assert_array_equal(
        made["y"], (x.astype(np.float64) + np.float64(np.float32(1e-9))) * 2 * third * 3
    )
    assert made["y"].dtype == np.float64
    assert made["j"].dtype == np.int64
