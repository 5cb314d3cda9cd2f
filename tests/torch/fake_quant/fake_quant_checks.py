"""The simulator's kernels against their fake quantizers: equal to the last bit, with finite
gradients.
"""

import numpy as np
import torch
from hypothesis import strategies as st

from lingeronnx.torch.fake_quant import get_fake_quantizer
from lingeronnx.torch.fake_quant.common import FakeQuantContext, to_counts
from simulator import program as machine
from simulator.fixed_point import Rescale, RoundedShift, RoundingMode
from simulator.kernel import Step, TensorSpec
from tests.case_selection import limit_examples

few = limit_examples(12, derandomize=True)
more = limit_examples(20, derandomize=True)

INTS = st.sampled_from((np.int8, np.int16))
ROUNDING = st.sampled_from(RoundingMode)
#: Types of two operands, bits of the result and whether a ratio makes it. Each further combination compiles kernels.
_OPERANDS = (
    (np.int8, np.int8, (8, 4), None),
    (np.int16, np.int8, (32, 16), True),
    (np.int8, np.int16, (16,), False),
    (np.int16, np.int16, (16,), True),
)


@st.composite
def operands(draw, bits=(4, 8, 16, 32), shifts=None, *, rounded=False):
    """Draw the types of two operands with the bits of their result, or with its requantization if
    `shifts` are given.

    Every type, width and rule comes in some combination. For 8 bits the rule is a shift, a ratio
    or, if `rounded`, a shift with another rounding; wider operands have one rule each.
    """
    first, second, widths, by_ratio = draw(st.sampled_from(_OPERANDS))
    widths = [width for width in widths if width in bits]
    width = draw(st.sampled_from(widths if by_ratio is None else widths[:1]))
    if shifts is None:
        return first, second, width
    shift, rounding = draw(st.integers(*shifts)), RoundingMode.HALF_UP
    if by_ratio is None:
        by_ratio, rounding = draw(st.booleans()), draw(ROUNDING) if rounded else rounding
    if rounding is not RoundingMode.HALF_UP:
        return first, second, RoundedShift(shift, width, rounding)
    if by_ratio:
        return (
            first,
            second,
            Rescale.from_ratio(draw(st.floats(0.5, 2.0, exclude_max=True)) * 2.0**-shift, width),
        )
    return first, second, Rescale.from_shift(shift, width)


def one_operand(bits, shifts, *, rounded=False):
    """Draw the type of one operand and the requantization of its result."""
    return operands(bits, shifts, rounded=rounded).map(lambda drawn: (drawn[0], drawn[2]))


def simulated(kernel, arrays):
    """Return the outputs of the simulator's kernel for exactly these arrays."""
    names = tuple(f"x{i}" for i in range(len(arrays)))
    specs = {n: TensorSpec(a.shape, a.dtype) for n, a in zip(names, arrays, strict=True)}
    outputs = tuple(f"y{i}" for i in range(len(kernel.infer(*specs.values()))))
    program = machine.compile_program([Step(kernel, names, outputs)], specs, outputs)
    made = dict(program.run(dict(zip(names, arrays, strict=True))))
    return [made[name] for name in outputs]


def tensor(array):
    """Return counts, or real values, as the bridge holds them; gradients wanted."""
    held = (
        torch.from_numpy(array.copy())
        if array.dtype.kind == "f"
        else to_counts(array, torch.zeros(()))
    )
    return held.requires_grad_()


def equal(got, want):
    got = got.detach().numpy()
    assert got.shape == want.shape
    assert got.dtype in (np.float32, np.float64)
    assert np.array_equal(got.astype(np.float64), want.astype(np.float64), equal_nan=True)


def check_exact_and_differentiable(kernel, *arrays, flat=False):
    """Assert that the fake quantizer gives the simulator's integers, and finite gradients (none
    where `flat`).
    """
    tensors = [tensor(a) for a in arrays]
    results = get_fake_quantizer(kernel)(
        kernel, tensors, FakeQuantContext([a.dtype for a in arrays])
    )
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
