"""The simulator's kernels against their fake quantizers: equal to the last bit, with finite gradients."""

import numpy as np
import torch
from hypothesis import strategies as st

from lingeronnx.torch.bridge.fake_common import At, counts
from lingeronnx.torch.bridge.fake_quant import fake_quantizer
from simulator import machine
from simulator.fixed import Rounded, RoundingMode
from simulator.kernel import Call, Spec
from tests.examples import examples
from tests.simulator.helpers import rescales

few = examples(12, derandomize=True)
more = examples(20, derandomize=True)

INTS = st.sampled_from((np.int8, np.int16))
BITS = st.sampled_from((4, 8, 16, 32))
ROUNDING = st.sampled_from(RoundingMode)


@st.composite
def requantizations(draw, shifts, bits):
    """Draw those of `rescales`, and by a shift with another rounding."""
    name = draw(ROUNDING)
    if name is RoundingMode.HALF_UP:
        return draw(rescales(shifts, bits))
    return Rounded(draw(st.integers(*shifts)), draw(st.sampled_from(bits)), name)


def simulated(kernel, arrays):
    """Return the outputs of the simulator's kernel for exactly these arrays."""
    names = tuple(f"x{i}" for i in range(len(arrays)))
    specs = {n: Spec(a.shape, a.dtype) for n, a in zip(names, arrays, strict=True)}
    outputs = tuple(f"y{i}" for i in range(len(kernel.infer(*specs.values()))))
    program = machine.compile([Call(kernel, names, outputs)], specs, outputs)
    made = dict(program.run(dict(zip(names, arrays, strict=True))))
    return [made[name] for name in outputs]


def tensor(array):
    """Return counts, or real values, as the bridge holds them; gradients wanted."""
    held = torch.from_numpy(array.copy()) if array.dtype.kind == "f" else counts(array, torch.zeros(()))
    return held.requires_grad_()


def equal(got, want):
    got = got.detach().numpy()
    assert got.shape == want.shape
    assert got.dtype in (np.float32, np.float64)
    assert np.array_equal(got.astype(np.float64), want.astype(np.float64), equal_nan=True)


def exact(kernel, *arrays, flat=False):
    """Assert that the fake quantizer gives the simulator's integers, and finite gradients (none where `flat`)."""
    tensors = [tensor(a) for a in arrays]
    results = fake_quantizer(kernel)(kernel, tensors, At([a.dtype for a in arrays]))
    want = simulated(kernel, arrays)
    assert len(results) == len(want)
    for got, array in zip(results, want, strict=True):
        equal(got, array)
    following = [r for r in results if r.requires_grad]
    assert bool(following) is not flat
    if following:
        sum(r.double().sum() for r in following).backward()
        for t in tensors:
            assert t.grad is None or bool(torch.isfinite(t.grad).all())


def windowed(draw, axes):
    kernel = [draw(st.integers(1, 3)) for _ in range(axes)]
    return kernel, {
        "strides": [draw(st.integers(1, 3)) for _ in range(axes)],
        "pads": [draw(st.integers(0, 2)) for _ in range(2 * axes)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(axes)],
    }
