"""What the tests of the simulator share: running one kernel, switching the fast path, random
requantizations.
"""

import contextlib
import os

import numpy as np
from hypothesis import strategies as st

from simulator.fixed_point import Rescale
from simulator.program import Step, TensorSpec, compile_program
from tests.case_selection import choose_fast_subset, limit_examples

few = limit_examples(25, derandomize=True)
more = limit_examples(60, derandomize=True)

SEEDS = st.integers(0, 2**32 - 1)


@contextlib.contextmanager
def simd(on):
    """Allow or forbid the vector instructions, or name their row, for what is compiled inside."""
    before = os.environ.get("LINGERONNX_SIMD")
    os.environ["LINGERONNX_SIMD"] = on if isinstance(on, str) else "1" if on else "0"
    try:
        yield
    finally:
        del os.environ["LINGERONNX_SIMD"]
        if before is not None:
            os.environ["LINGERONNX_SIMD"] = before


def run(kernel, *arrays, **options):
    """Compile one kernel for these arrays as feeds and return its only output."""
    names = tuple(f"x{i}" for i in range(len(arrays)))
    step, feed = Step(kernel, names, ("y",)), dict(zip(names, arrays, strict=True))
    exact = {name: TensorSpec(a.shape, a.dtype) for name, a in feed.items()}
    if kernel.is_per_sample and all(a.ndim > 1 and len(a) == len(arrays[0]) for a in arrays):
        samples = {name: TensorSpec((1, *a.shape[1:]), a.dtype) for name, a in feed.items()}
        program = compile_program([step], samples, keep=["y"], **options)
        if not program.accepts_batches:
            program = compile_program([step], exact, keep=["y"], **options)
    else:
        program = compile_program([step], exact, keep=["y"], **options)
    ((_, y),) = program.run(feed)
    return y


def triple(rescale):
    """Return what the oracles take for a Rescale."""
    zero = (rescale.zero_point,) if getattr(rescale, "zero_point", 0) else ()
    return rescale.multiplier, rescale.shift, rescale.bits, *zero


def integers(rng, shape, dtype=np.int8, extremes=False):
    """Random integers over the whole range; with `extremes` only the two ends, zero and their
    neighbours.
    """
    info = np.iinfo(dtype)
    if extremes:
        return rng.choice([info.min, info.min + 1, -1, 0, 1, info.max], size=shape).astype(dtype)
    return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


@st.composite
def rescales(draw, shifts=(-2, 14), bits=(8,)):
    """Power-of-two and general requantizations around the given right shifts."""
    width, shift = draw(st.sampled_from(choose_fast_subset(2, bits))), draw(st.integers(*shifts))
    if draw(st.booleans()):
        return Rescale.from_shift(shift, width)
    return Rescale.from_ratio(draw(st.floats(0.5, 2.0, exclude_max=True)) * 2.0**-shift, width)


def same(got, want, dtype):
    """Assert dtype, shape and every integer."""
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert got.tolist() == want.tolist()
