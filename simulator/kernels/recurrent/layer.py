"""What recurrent operators share: weights, the gate sums of inputs and states, the order of time.

    a[t] = rescale_x(W_x x[t] + b_x)        for all times at once
    b[t] = rescale_h(W_h h[t-1] + b_h)      step by step

Arrays: x [N, T, I] -> y [N, T, H], last state [N, 1, H]; with `time_axis` 0: [T, N, I] -> [T, N,
H], [1, N, H]. States start at 0 unless they are given, in the form of the last ones. Of a sample of
length L (default T) the steps from L on are left out: y is 0 there and the state stays. Backwards,
y stays at the place of its input, the walk begins at the sample's own last step and the last state
is the one at time 0. Must not know: what the gates do with the sums, how that is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit, register_inline
from simulator.fixed_point import ChainedRescale, Rescale, RescaleForm, apply_rescale
from simulator.kernel import Array, Kernel, RunFunction, TensorSpec, require
from simulator.kernels.loops import _conv_simd
from simulator.kernels.loops._common import SlidingWindow, max_magnitude
from simulator.kernels.loops._conv_simd import run_matrix_record
from simulator.native import InputRef, NativeLoop, NestedLoop, OutputRef

__all__ = [
    "GateSums",
    "RecurrentKernel",
    "compute_gate_sums",
    "matmul_rescale",
    "prepare_gate_weights",
]


@jit
def matmul_rescale(x: Array, weight: Array, bias: Array, rescale: RescaleForm, out: Array) -> None:
    """Fill out [R, O] with rescale(x [R, I] weight [I, O] + bias [O]).

    The bias has the type of the accumulator.
    """
    acc = np.empty_like(bias)
    for r in range(x.shape[0]):
        for o in range(acc.size):
            acc[o] = bias[o]
        for i in range(x.shape[1]):
            value, row = np.int64(x[r, i]), weight[i]
            for o in range(acc.size):
                acc[o] += value * row[o]
        for o in range(acc.size):
            out[r, o] = apply_rescale(rescale, acc[o])


@register_inline
def compute_gate_sums(x: Any, words: Any, plain: Any, out: Any) -> Any:
    """Fill int32 out [R, O] with the gate sums of x [R, I].

    Parameters
    ----------
    x
        Integers [R, I]: the inputs, or the states of R samples.
    words
        The record of a loop with dot instructions, see `_conv_simd.run_matrix_record`; None where
        `plain` is used.
    plain
        (weight [I, O], bias [O], rescaling) for the plain loop; None where `words` are used.
    out
        int32 [R, O], in the format of the gates.
    """
    if plain is not None:
        matmul_rescale(x, plain[0], plain[1], plain[2], out)
    if words is not None:
        run_matrix_record(words, x, out)


class GateSums:
    """The gate sums of a matrix [O, I]: `compute_gate_sums` and its arguments.

    Parameters
    ----------
    weight
        Integers [O, I].
    bias
        int64 [O], at the scale of the products.
    dtype
        Type of the inputs.
    largest
        Largest |input|.
    rescale
        Sum -> the format of the gates.
    """

    def __init__(
        self,
        weight: np.ndarray,
        bias: np.ndarray,
        dtype: np.dtype,
        largest: int,
        rescale: Rescale | ChainedRescale,
    ):
        self.plain = prepare_gate_weights(weight, bias, largest, rescale)
        self._loop: NestedLoop | None = None
        row = (
            _conv_simd.active_instruction_set()
            if rescale.dtype.itemsize <= 4 and self.plain[1].dtype == np.int32
            else None
        )
        fits = row is not None and dtype.itemsize <= 2 and largest <= max_magnitude(dtype)
        if row is not None and fits and (dtype != np.int8 or _conv_simd.fits_int32(weight, bias)):
            matrix, window = weight[:, :, None, None], SlidingWindow((1, 1))
            build = _conv_simd.pack_convolution(
                row,
                matrix,
                bias,
                window,
                TensorSpec((1, weight.shape[1], 1, 1), dtype),
                self.plain[2],
                np.dtype(np.int32),
            )
            one = np.zeros((1, weight.shape[1]), dtype), np.zeros((1, len(weight)), np.int32)
            x, y = InputRef(0, (1, -1, 1, weight.shape[1])), OutputRef(0, (1, -1, 1, len(weight)))
            self._loop = NestedLoop(build(x, y), one[:1], one[1:])

    def arguments(self) -> tuple[Any, Any]:
        """Return `words` and `plain` of `compute_gate_sums` for a `NativeLoop`."""
        return (None, self.plain) if self._loop is None else (self._loop, None)


@jit
def _compute_gate_sums(x: Array, weights: Any, out: Array) -> None:
    compute_gate_sums(x, weights[0], weights[1], out)


@dataclass(frozen=True, eq=False)
class RecurrentKernel(Kernel):
    """A layer of G gates and H units.

    Parameters
    ----------
    weight_x, weight_h
        Integers [G*H, I] and [G*H, H], gate by gate.
    bias_x, bias_h
        int64 [G*H].
    rescale_x, rescale_h
        Gate sums -> the format the gates are computed in.
    rescale_o
        New state -> output, which is also the state that the next step reads.
    forward
        Whether time runs from 0 on.
    time_axis
        0 or 1, see above.
    kept
        Which of the outputs (sequence, last state, ...) are asked for.
    given
        The inputs behind x, of "lengths" (integers [N]), "h" (integers of the state's type) and "c"
        (int32).
    fixed
        Those of them that are constants, of one sample.
    """

    weight_x: np.ndarray
    weight_h: np.ndarray
    bias_x: np.ndarray
    bias_h: np.ndarray
    rescale_x: Rescale | ChainedRescale
    rescale_h: Rescale | ChainedRescale
    rescale_o: Rescale
    is_forward: bool = True
    time_axis: int = 1
    kept: tuple[int, ...] = (0, 1)
    given: tuple[str, ...] = ()
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)

    layout: ClassVar[str] = "plain"
    gates: ClassVar[int] = 1

    def __post_init__(self) -> None:
        rows = self.gates * self.units
        shapes = [a.shape for a in (self.weight_x, self.weight_h, self.bias_x, self.bias_h)]
        require(
            shapes == [(rows, self.weight_x.shape[-1]), (rows, self.units), (rows,), (rows,)],
            (
                f"weights of {self.gates} gates do not fit together: "
                f"{', '.join(str(list(s)) for s in shapes)}"
            ),
        )
        require(self.time_axis in (0, 1), f"time is axis 0 or 1, not {self.time_axis}")
        for name, array in self.fixed.items():
            self._check_state(name, TensorSpec(array.shape, array.dtype), 1)

    @property
    def units(self) -> int:
        """The number of units, H."""
        return int(self.weight_h.shape[-1])

    @property
    def is_per_sample(self) -> bool:
        """Whether axis 0 counts the samples; otherwise it is the time."""
        return self.time_axis == 1

    def final_state_specs(self, samples: int) -> list[TensorSpec]:
        """Return the specs of the outputs behind the sequence, as [samples, 1, H] whatever the time axis."""
        return [TensorSpec((samples, 1, self.units), self.rescale_o.dtype)]

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y and the last states."""
        x, *more = specs
        fits = len(x.shape) == 3 and x.dtype.kind == "i" and x.shape[-1] == self.weight_x.shape[1]
        require(fits, f"a recurrent layer of {self.weight_x.shape[1]} inputs does not take {x}")
        require(
            len(more) == len(self.given),
            f"it takes x, {', '.join(self.given)}, not {len(specs)} inputs",
        )
        for name, spec in zip(self.given, more, strict=True):
            self._check_state(name, spec, x.shape[1 - self.time_axis])
        y = TensorSpec((*x.shape[:2], self.units), self.rescale_o.dtype)
        found = [y]
        for spec in self.final_state_specs(x.shape[1 - self.time_axis]):
            samples, one, units = spec.shape
            found.append(spec if self.time_axis else TensorSpec((one, samples, units), spec.dtype))
        return tuple(found[i] for i in self.kept)

    def _check_state(self, name: str, spec: TensorSpec, samples: int) -> None:
        states = dict(zip(("h", "c"), self.final_state_specs(samples), strict=False))
        if name == "lengths":
            fits, want = (
                spec.dtype.kind == "i" and spec.shape == (samples,),
                f"integers [{samples}]",
            )
        else:
            require(name in states, f"a layer of this kind has no '{name}'")
            one, units = states[name].shape[1:]
            shape = (samples, one, units) if self.time_axis else (one, samples, units)
            fits, want = (
                spec == TensorSpec(shape, states[name].dtype),
                str(TensorSpec(shape, states[name].dtype)),
            )
        require(fits, f"'{name}' must be {want}, not {spec}")

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Turn the weights and bound the sums."""
        x = specs[0]
        into = NativeLoop(
            _compute_gate_sums,
            (InputRef(0), self.make_input_sums(x.dtype).arguments(), OutputRef(0)),
        )
        step = self.make_step_function()
        shapes = [
            TensorSpec((*x.shape[:2], self.units), self.rescale_o.dtype),
            *self.final_state_specs(1),
        ]

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            given = ins[0] if self.time_axis else np.ascontiguousarray(ins[0].swapaxes(0, 1))
            samples, times, inputs = given.shape
            sums = np.empty((samples * times, len(self.bias_x)), np.int32)
            into([given.reshape(-1, inputs)], [sums])
            y = np.empty((samples, times, self.units), shapes[0].dtype)
            h, c, lengths = self._initial_states(ins[1:], samples, times)
            for sample, length in zip(y, lengths, strict=True):
                sample[length:] = 0
            ends = step(sums.reshape(samples, times, -1), lengths, y, h, c)
            for out, index in zip(outs, self.kept, strict=True):
                value = y if index == 0 else ends[index - 1]
                out[...] = value if self.time_axis else value.swapaxes(0, 1)

        return run

    def _initial_states(
        self, more: Sequence[np.ndarray], samples: int, times: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return states [N, H] of y's type, cells [N, H] int64 and lengths [N] int64, from 0 to T, to begin with."""
        found = {**self.fixed, **dict(zip(self.given, more, strict=True))}
        h, c = (
            np.zeros((samples, self.units), self.rescale_o.dtype),
            np.zeros((samples, self.units), np.int64),
        )
        for name, array in (("h", h), ("c", c)):
            if name in found:
                array[:] = found[name].reshape(-1, self.units)
        lengths = np.full(samples, times, np.int64)
        if "lengths" in found:
            lengths[:] = np.clip(found["lengths"], 0, times)
        return h, c, lengths

    def make_step_function(self) -> Any:
        """Return a function of (sums [N, T, G*H], lengths [N], y to fill, h [N, H] and c [N, H] to go on from).

        It leaves the last states in h and c, and returns those that are outputs, each [N, 1, ...].
        """
        raise NotImplementedError

    def make_input_sums(self, kind: np.dtype) -> GateSums:
        """Return the gate sums of inputs of a type."""
        return GateSums(self.weight_x, self.bias_x, kind, max_magnitude(kind), self.rescale_x)

    def make_hidden_sums(self) -> GateSums:
        """Return the states' gate sums."""
        kind = self.rescale_o.dtype
        return GateSums(self.weight_h, self.bias_h, kind, max_magnitude(kind), self.rescale_h)

    def hidden_weights(self) -> tuple[np.ndarray, np.ndarray, RescaleForm]:
        """Return weight [H, G*H], bias and rescaling of the states' sums."""
        return prepare_gate_weights(
            self.weight_h, self.bias_h, max_magnitude(self.rescale_o.dtype), self.rescale_h
        )


def prepare_gate_weights(
    weight: np.ndarray, bias: np.ndarray, largest: int, rescale: Rescale | ChainedRescale
) -> tuple[np.ndarray, np.ndarray, RescaleForm]:
    """Return weight [I, O], the bias in the accumulator's type and the rescaling for inputs up to `largest`."""
    wide = np.abs(weight.astype(np.int64)).sum(axis=1) * largest + np.abs(bias.astype(np.int64))
    bound = int(wide.max(initial=0))
    kind = np.int32 if bound < 1 << 31 else np.int64
    return np.ascontiguousarray(weight.T), bias.astype(kind), rescale.compile_for_bound(bound)
