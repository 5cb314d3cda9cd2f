"""Instance normalization: the kernel against plain Python, its form in standard ONNX, gradients,
and graphs.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.operators.lowerings import find_lowering_rule
from lingeronnx.targets import GENERIC, PLATFORMS
from simulator.fixed_point import Rescale
from simulator.kernel import SimulatorError
from simulator.kernels.layer_norm import InstanceNorm
from tests.nets import Net, samples
from tests.oracles.fixed import rescale, rsh, sat
from tests.qdq.exact.helpers import called
from tests.simulator.helpers import integers, run, triple


def normalize_channel(channel, gamma, beta, kernel):
    """Return one channel of one sample in Python integers."""
    count, total = len(channel), sum(channel)
    spread = count * sum(v * v for v in channel) - total**2 + kernel.epsilon
    k = (spread.bit_length() - 1) // 2 - 4 if spread else 0
    root = min(32767, math.isqrt(2**38 // math.floor(spread / Fraction(4) ** k))) if spread else 0
    normalized = [sat(rsh((count * v - total) * root, k + 4), 32) for v in channel]
    return [rescale(n * gamma + beta, triple(kernel.rescale)) for n in normalized]


def make_kernel(rng, channels, bits=8, epsilon=7):
    """Return a kernel with random factors and offsets, with outputs of `bits`."""
    gamma = rng.integers(-128, 128, channels)
    beta = rng.integers(-(2**22), 2**22, channels)
    return InstanceNorm(gamma, beta, epsilon, Rescale.from_shift(17 + 8 - bits, bits))


def make_inputs(rng, dtype):
    """Return maps with ordinary values, extremes, one far value, and one channel of a constant."""
    x = integers(rng, (4, 3, 5, 7), dtype)
    x[1] = integers(rng, (3, 5, 7), dtype, extremes=True)
    x[2], x[2, :, 2, 3] = 0, np.iinfo(dtype).max
    x[3, 1] = 9
    return x


def compute_oracle(kernel, x):
    """Return what plain Python computes, of the shape of x."""
    rows = [
        normalize_channel(
            x[n, c].reshape(-1).tolist(), int(kernel.gamma[c]), int(kernel.beta[c]), kernel
        )
        for n in range(len(x))
        for c in range(x.shape[1])
    ]
    return np.array(rows).reshape(x.shape)


@pytest.mark.parametrize("dtype, bits", ((np.int8, 8), (np.int16, 16), (np.int8, 16)))
def test_kernel_against_the_oracle(dtype, bits):
    """Integers are those of plain Python, also where a channel has no spread and no epsilon."""
    rng = np.random.default_rng(bits)
    x = make_inputs(rng, dtype)
    for epsilon in (0, 7):
        kernel = make_kernel(rng, 3, bits, epsilon)
        want = compute_oracle(kernel, x)
        assert np.array_equal(run(kernel, x), want)
        assert len(np.unique(want)) > 20


def test_exact_form_in_standard_onnx():
    """onnxruntime computes the same integers, for maps and for sequences."""
    rng = np.random.default_rng(3)
    kernel = make_kernel(rng, 3)
    x = make_inputs(rng, np.int8)
    assert np.array_equal(called(kernel, x)[0], compute_oracle(kernel, x))
    flat = x.reshape(4, 3, 35)
    assert np.array_equal(called(kernel, flat)[0], run(kernel, flat))


def test_refused_inputs():
    """Sums that do not fit, ranks below 3, types, and factors of another number of channels."""
    kernel = make_kernel(np.random.default_rng(0), 2)
    for x, message in (
        (np.zeros((1, 3, 4), np.int8), "do not match channels"),
        (np.zeros((1, 2), np.int8), "do not match channels"),
        (np.zeros((1, 2, 4), np.int32), "requires int8 or int16"),
        (np.zeros((1, 2, 2**16 + 1), np.int16), "a channel has 65537 elements; the limit is 65536"),
    ):
        with pytest.raises(SimulatorError, match=message):
            run(kernel, x)


# ---- graphs ----------------------------------------------------------------------------------------------------------


def instance_net(*, gamma=None, beta=None, size=6):
    """A convolution, its normalization, and what GroupNorm of two groups is in exports of torch."""
    net = Net(4, size, size, seed=2)
    a = net.conv("x", (6, 4, 3, 3), pads=[1] * 4)
    gamma = net.rng.uniform(0.5, 1.5, 6) if gamma is None else gamma
    beta = net.rng.standard_normal(6) if beta is None else beta
    constants = (net.const(np.asarray(v, np.float32)) for v in (gamma, beta))
    a = net.node("Relu", net.node("InstanceNormalization", a, *constants, epsilon=1e-3))
    groups = net.node("Reshape", a, net.const(np.array([0, 2, -1])))
    ones = (net.const(np.full(2, v, np.float32)) for v in (1, 0))
    normed = net.node("InstanceNormalization", groups, *ones)
    return net.graph(net.node("Reshape", normed, net.const(np.array([0, 6, size, size])), out="y"))


def test_it_is_quantized_simulated_and_checked():
    """All is integer on generic; the plain class computes the simulator's integers."""
    model = instance_net()
    result = lo.quantize(model, samples(model), platform="generic", effort="fast")
    assert not result.report.host_part
    kinds = [node.op_type for node in result.graph.graph]
    assert kinds.count("InstanceNormInt") == 2
    lo.check_model(result.graph)
    feeds = samples(model, 3, seed=1)
    (got,) = result.session().run(["y"], feeds)
    plain = ReferenceEvaluator(ir.to_proto(result.graph), new_ops=lo.reference_ops("generic"))
    for i in range(3):
        (want,) = plain.run(["y"], {"x": feeds["x"][i : i + 1]})
        assert np.array_equal(got[i : i + 1], want)
    (real,) = lo.Session(model).run(["y"], feeds)
    noise = np.mean((got - real) ** 2) / np.mean(real**2)
    assert 10 * np.log10(1 / noise) > 30


@pytest.mark.parametrize("target", PLATFORMS[1:], ids=str)
def test_chips_have_no_such_kernel(target):
    """They normalize the rows of a layer normalization instead, and scale the channels afterwards."""
    model = instance_net()
    graph = lo.quantize(model, samples(model), platform=target, effort="fast").graph
    kinds = [node.op_type for node in graph.graph]
    assert "InstanceNormInt" not in kinds
    assert kinds.count("LayerNormInt") == 2


def test_what_it_does_not_take():
    """A bias that 32 bits do not hold is added after the normalization; a map that is too large for
    16 bits is an error.
    """
    model = instance_net(gamma=np.full(6, 1e-3), beta=np.ones(6))
    node = next(node for node in model.graph if node.op_type == "InstanceNormalization")
    _, reason = find_lowering_rule(node, GENERIC)
    assert reason == "its bias exceeds 256 times its scale"
    graph = lo.quantize(model, samples(model), platform="generic", effort="fast").graph
    assert "LayerNormInt" in [node.op_type for node in graph.graph]
    model = instance_net(size=260)
    with pytest.raises(
        lo.ConstraintError, match="a channel has 67600 elements of 16 bits, but the"
    ):
        lo.quantize(model, samples(model, 1), platform="generic", effort="fast", bits=16)


def test_fake_quantizer():
    """Training computes the simulator's integers, with the gradient of the float function."""
    pytest.importorskip("torch")
    from tests.torch.fake_quant.fake_quant_checks import check_exact_and_differentiable

    rng = np.random.default_rng(4)
    for dtype, bits in ((np.int8, 8), (np.int16, 16)):
        check_exact_and_differentiable(make_kernel(rng, 3, bits), make_inputs(rng, dtype))
