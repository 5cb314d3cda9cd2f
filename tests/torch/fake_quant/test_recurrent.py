"""Fake quantizers of recurrent layers: the simulator's integers to the last bit, and what trains
through them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.torch.fake_quant import get_fake_quantizer
from lingeronnx.torch.fake_quant.common import FakeQuantContext
from simulator import kernels as k
from simulator.fixed_point import ChainedRescale, Rescale
from tests.case_selection import limit_examples
from tests.simulator.helpers import SEEDS, integers
from tests.torch.fake_quant.fake_quant_checks import (
    check_exact_and_differentiable,
    equal,
    few,
    simulated,
    tensor,
)


@pytest.mark.slow
@limit_examples(12, derandomize=True)  # most of them are compiled anew
@given(
    st.data(),
    SEEDS,
    st.sampled_from((k.Lstm, k.ExecutorGru, k.CandidateGru, k.Gru)),
    st.sampled_from((8, 16)),
    st.integers(0, 1),
)
def test_recurrent(data, seed, kind, bits, time_axis):
    """Each arithmetic, both directions, time on either axis, any of the outputs; states and lengths
    given or fixed.
    """
    draw, rng = data.draw, np.random.default_rng(seed)
    units, inputs, gates = 5, 4, kind.gates
    whole = {
        "weight_x": integers(rng, (gates * units, inputs)),
        "weight_h": integers(rng, (gates * units, units)),
        "bias_x": integers(rng, (gates * units,), np.int16).astype(np.int64),
        "bias_h": integers(rng, (gates * units,), np.int16).astype(np.int64),
        "time_axis": time_axis,
        "output_indices": draw(st.sampled_from(((0,), (0, 1), (1,)))),
    }
    coarse = kind in (k.ExecutorGru, k.CandidateGru) or (kind is k.Lstm and draw(st.booleans()))
    if kind is k.ExecutorGru:
        bits, whole["uses_state_sums"] = 8, draw(st.booleans())
        whole["rescale_o"] = Rescale.from_shift(14 - draw(st.integers(4, 7)), bits)
    else:
        whole["is_forward"] = draw(st.booleans())
    if kind is k.CandidateGru:
        bits, whole["rescale_o"] = 8, Rescale.from_shift(15 - draw(st.integers(5, 8)), 8)
    if kind is k.Lstm:
        arithmetic = draw(st.sampled_from(("q11", "q15", "q15_wide"))) if coarse else "q27"
        whole |= {
            "arithmetic": arithmetic,
            "table": "venus" if coarse else draw(st.sampled_from(("arcs", "venusA"))),
        }
        whole["rescale_o"] = k.Lstm.make_output_rescale(arithmetic, 2.0 ** (bits - 1), bits)
        whole["output_indices"] = draw(st.sampled_from((whole["output_indices"], (0, 1, 2), (2,))))
    if kind is k.Gru:
        whole |= {"reset_after": draw(st.booleans()), "gate_bits": draw(st.sampled_from((16, 32)))}
        whole["saturates_candidate"] = draw(st.booleans())
        whole["rescale_o"] = k.Gru.make_output_rescale(
            2.0 ** (bits - 1) * draw(st.sampled_from((1.0, 0.8))), bits
        )
    sums = ChainedRescale(
        Rescale.from_shift(0, 32),
        Rescale.from_shift(draw(st.integers(0, 3)) if coarse else -13, 32),
    )
    kernel = kind(rescale_x=sums, rescale_h=sums, **whole)
    x = integers(rng, (3, 6, inputs) if time_axis else (6, 3, inputs))
    ways = {key: draw(st.sampled_from(("", "given", "fixed"))) for key in keys(kernel)}
    run_time, held = (
        {key: beginning(kernel, rng, key, count) for key, w in ways.items() if w == way}
        for way, count in (("given", 3), ("fixed", 1))
    )
    check_exact_and_differentiable(
        replace(kernel, state_inputs=tuple(run_time), constant_states=held), x, *run_time.values()
    )


def keys(kernel):
    """Return what a layer of this kind can be given."""
    return ("lengths", "h", "c")[: 3 if isinstance(kernel, k.Lstm) else 2]


def beginning(kernel, rng, key, samples):
    """Return lengths, a state or a cell for some samples; lengths beyond both ends too."""
    if key == "lengths":
        return rng.integers(-1, 9, samples).astype(np.int32)
    shape = (samples, 1, kernel.units) if kernel.time_axis else (1, samples, kernel.units)
    if key == "h":
        return integers(rng, shape, kernel.rescale_o.dtype)
    return rng.integers(-100, 100, shape).astype(np.int32)


@few
@given(SEEDS, st.sampled_from((k.Lstm, k.Gru)), st.integers(0, 1), st.booleans())
def test_states_as_parameters(seed, kind, time_axis, zero):
    """All that is learned stands in for what the kernel holds, which may be nothing where it was
    zero.
    """
    rng = np.random.default_rng(seed)
    layers = []
    for _ in range(2):
        held = {
            "weight_x": integers(rng, (kind.gates * 5, 4)),
            "weight_h": integers(rng, (kind.gates * 5, 5)),
            **{
                key: integers(rng, (kind.gates * 5,)).astype(np.int64)
                for key in ("bias_x", "bias_h")
            },
        }
        out = (
            k.Lstm.make_output_rescale("q27", 2.0**15, 16)
            if kind is k.Lstm
            else k.Gru.make_output_rescale(2.0**15, 16)
        )
        sums = {"rescale_x": Rescale.from_shift(-12, 32), "rescale_h": Rescale.from_shift(-4, 32)}
        made = kind(**held, **sums, rescale_o=out, time_axis=time_axis)
        states = {key: beginning(made, rng, key, 1) for key in keys(made)[1:]}
        layers.append((made, held, states))
    (kernel, _, first), (other, held, states) = layers
    kernel = kernel if zero else replace(kernel, constant_states=first)
    x = integers(rng, (3, 6, 4) if time_axis else (6, 3, 4))
    given = {key: tensor(array) for key, array in {**held, **states}.items()}
    results = get_fake_quantizer(kernel)(kernel, [tensor(x)], FakeQuantContext([x.dtype], given))
    for got, want in zip(
        results, simulated(replace(other, constant_states=states), [x]), strict=True
    ):
        equal(got, want)
    sum(r.double().sum() for r in results).backward()
    for key, t in given.items():
        assert torch.isfinite(t.grad).all(), key
        assert t.grad.any(), key


@pytest.mark.slow
def test_a_sample_waits_beyond_its_end():
    """What lies there, and a state that no step reads, is without influence; an empty sample keeps
    its state.
    """
    rng = np.random.default_rng(3)
    out, sums = k.Lstm.make_output_rescale("q27", 2.0**15, 16), Rescale.from_shift(-13, 32)
    for forward in (True, False):
        kernel = k.Lstm(
            integers(rng, (20, 4)),
            integers(rng, (20, 5)),
            np.zeros(20, np.int64),
            np.zeros(20, np.int64),
            sums,
            Rescale.from_shift(-4, 32),
            out,
            forward,
            output_indices=(0, 1, 2),
            state_inputs=("lengths", "h", "c"),
        )
        arrays = [integers(rng, (3, 6, 4)), np.array([6, 2, 0], np.int32)]
        arrays += [beginning(kernel, rng, key, 3) for key in "hc"]
        held = [tensor(a) for a in arrays]
        y, h, c = get_fake_quantizer(kernel)(
            kernel, held, FakeQuantContext([a.dtype for a in arrays])
        )
        (y.sum() + h.sum() + c.sum()).backward()
        felt = held[0].grad.abs().sum(2) > 0
        assert felt.tolist() == [[True] * 6, [True] * 2 + [False] * 4, [False] * 6]
        assert held[2].grad[2].tolist() == held[3].grad[2].tolist() == [[1.0] * 5]
