"""Common part of recurrent operators: weights, gate sums of inputs and states, order of time.

    a[t] = rescale_x(W_x x[t] + b_x)        for all times at once
    b[t] = rescale_h(W_h h[t-1] + b_h)      step by step

Arrays: x [N, T, I] -> y [N, T, H], final state [N, 1, H]; with `time_axis` 0: [T, N, I] -> [T, N,
H], [1, N, H]. Initial states are 0, or inputs in the format of the final ones. For a sample of
length L (default T) the steps from L on are skipped: y is 0 there and the state is unchanged. In
backward direction y stays at the time of its input, the iteration begins at the sample's last step
and the final state is the one at time 0. Must not know: the arithmetic of the gates, its rounding.
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


@jit(allocates=True)
def matmul_rescale(x: Array, weight: Array, bias: Array, rescale: RescaleForm, out: Array) -> None:
    """Fill out [R, O] with rescale(x [R, I] @ weight [I, O] + bias [O]).

    x, weight and out are integers. The accumulator has the type of the bias, int32 or int64.
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
    """Fill int32 out [R, O], the gate sums, with rescale(x [R, I] @ weight [I, O] + bias [O]).

    Exactly one of `words` and `plain`, which contain the weights, is not None.

    Parameters
    ----------
    x
        Integers [R, I]: the inputs, or the states of R samples.
    words
        Record of a compiled loop with dot instructions, run on x and out; its words are changed.
        None if `plain` is used.
    plain
        (weight [I, O], bias [O], rescale form) for the scalar loop; None if `words` are used.
    out
        int32 [R, O], in the format of the gates.
    """
    if plain is not None:
        matmul_rescale(x, plain[0], plain[1], plain[2], out)
    if words is not None:
        run_matrix_record(words, x, out)


class GateSums:
    """Packed weights of the gate sums of a matrix [O, I], for `compute_gate_sums`.

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
        """Prepare the scalar weights; also pack them for dot instructions where these are exact.

        `weight` is [O, I], `bias` [O]; inputs are of `dtype`, with |x| <= `largest`; `rescale`
        gives the output. Dot instructions need a processor with them, inputs of at most 16 bits,
        and sums and outputs in int32.
        """
        self.plain = prepare_gate_weights(weight, bias, largest, rescale)
        self._loop: NestedLoop | None = None
        fits_accumulator = rescale.dtype.itemsize <= 4 and self.plain[1].dtype == np.int32
        fits_operands = dtype.itemsize <= 2 and largest <= max_magnitude(dtype)
        if not fits_accumulator or not fits_operands:
            return
        instructions = _conv_simd.active_instruction_set()
        if instructions is None or (dtype == np.int8 and not _conv_simd.fits_int32(weight, bias)):
            return
        outputs, inputs = weight.shape
        build = _conv_simd.pack_convolution(
            instructions,
            weight[:, :, None, None],
            bias,
            SlidingWindow((1, 1)),
            TensorSpec((1, inputs, 1, 1), dtype),
            self.plain[2],
            np.dtype(np.int32),
        )
        loop = build(InputRef(0, (1, -1, 1, inputs)), OutputRef(0, (1, -1, 1, outputs)))
        self._loop = NestedLoop(
            loop, [np.zeros((1, inputs), dtype)], [np.zeros((1, outputs), np.int32)]
        )

    def arguments(self) -> tuple[Any, Any]:
        """Return (words, plain), the arguments of `compute_gate_sums` for a loop.

        One of them is None. `words` is a nested loop with dot instructions, `plain` the scalar
        weights, bias and form.
        """
        return (None, self.plain) if self._loop is None else (self._loop, None)


@jit
def _compute_gate_sums(x: Array, weights: Any, out: Array) -> None:
    """Fill int32 out [R, O], in the format of the gates, with rescale(x [R, I] @ weight + bias).

    x are integers. `weights` are (words, plain), one of them None: the record of a vector loop,
    whose words are changed, or (weight [I, O], bias [O], rescale form).
    """
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
        Gate sums -> the format that the gates are computed in.
    rescale_o
        New state -> output, which is also the state that the next step reads.
    is_forward
        Whether time runs forward from 0.
    time_axis
        0 or 1, see the module.
    output_indices
        Indices of the requested outputs: 0 is the sequence, 1 the final state, 2 the final cell.
    state_inputs
        Names of the inputs after x, out of "lengths" (integers [N]), "h" (initial state, integers
        of the state's type) and "c" (initial cell, int32).
    constant_states
        Values of one sample for those that are constants.
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
    output_indices: tuple[int, ...] = (0, 1)
    state_inputs: tuple[str, ...] = ()
    constant_states: Mapping[str, np.ndarray] = field(default_factory=dict)

    layout: ClassVar[str] = "plain"
    gates: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the shapes of weights, biases and constant states, and the time axis.

        Raises SimulatorError if they do not match each other.
        """
        rows = self.gates * self.units
        shapes = [a.shape for a in (self.weight_x, self.weight_h, self.bias_x, self.bias_h)]
        require(
            shapes == [(rows, self.weight_x.shape[-1]), (rows, self.units), (rows,), (rows,)],
            f"inconsistent weights and biases of {self.gates} gates: "
            f"{', '.join(str(list(shape)) for shape in shapes)}",
        )
        require(self.time_axis in (0, 1), f"the time axis must be 0 or 1, not {self.time_axis}")
        for name, array in self.constant_states.items():
            self._check_state(name, TensorSpec(array.shape, array.dtype), 1)

    @property
    def units(self) -> int:
        """Number of units, H."""
        return int(self.weight_h.shape[-1])

    @property
    def is_per_sample(self) -> bool:
        """Whether axis 0 is the batch; False if it is the time."""
        return self.time_axis == 1

    def final_state_specs(self, samples: int) -> list[TensorSpec]:
        """Return the specs of the outputs after the sequence: one final state [samples, 1, H]."""
        return [TensorSpec((samples, 1, self.units), self.rescale_o.dtype)]

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the requested outputs from x [N, T, I] or [T, N, I] and the inputs after it.

        Output 0 is y, the others are final states. Raises SimulatorError if x is not integer or has
        another I, the number of inputs is not 1 + that of `state_inputs`, or a state has another
        type or shape.
        """
        x, *state_specs = specs
        inputs = self.weight_x.shape[1]
        is_compatible = len(x.shape) == 3 and x.dtype.kind == "i" and x.shape[-1] == inputs
        require(
            is_compatible,
            f"a recurrent layer requires integers [.., .., {inputs}], not {x}",
        )
        require(
            len(state_specs) == len(self.state_inputs),
            f"expected inputs {', '.join(('x', *self.state_inputs))}, got {len(specs)} inputs",
        )
        samples = x.shape[1 - self.time_axis]
        for name, spec in zip(self.state_inputs, state_specs, strict=True):
            self._check_state(name, spec, samples)
        outputs = [TensorSpec((*x.shape[:2], self.units), self.rescale_o.dtype)]
        outputs += [self._order_state_axes(spec) for spec in self.final_state_specs(samples)]
        return tuple(outputs[index] for index in self.output_indices)

    def _order_state_axes(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of a state [samples, 1, units] in the order of this layer.

        [1, samples, units] if the sequence has the time first.
        """
        if self.time_axis:
            return spec
        samples, directions, units = spec.shape
        return TensorSpec((directions, samples, units), spec.dtype)

    def _check_state(self, name: str, spec: TensorSpec, samples: int) -> None:
        """Raise `SimulatorError` unless `spec` is valid for input `name`: "lengths", "h" or "c".

        Lengths are integers [samples]; a state has type and shape of the final state, or its first
        two axes, of which one has size 1, swapped.
        """
        if name == "lengths":
            is_valid = spec.dtype.kind == "i" and spec.shape == (samples,)
            require(is_valid, f"'{name}' must be integers [{samples}], not {spec}")
            return
        states = dict(zip(("h", "c"), self.final_state_specs(samples), strict=False))
        require(name in states, f"{type(self).__name__} has no state '{name}'")
        expected = self._order_state_axes(states[name])
        rows, columns, units = expected.shape
        swapped = TensorSpec((columns, rows, units), expected.dtype)
        require(spec in (expected, swapped), f"'{name}' must be {expected}, not {spec}")

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Pack the weights of the layer.

        Return a function that computes input sums, then all steps. It clears the elements of y
        beyond the length of a sample.
        """
        x = specs[0]
        compute_input_sums = NativeLoop(
            _compute_gate_sums,
            (InputRef(0), self.make_input_sums(x.dtype).arguments(), OutputRef(0)),
        )
        run_steps = self.make_step_function()

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            """Run the layer and fill `outs` in place with the outputs of `output_indices`.

            `ins` are x and the `state_inputs` (lengths, initial h, initial c). Index 0 is the
            sequence of states, in which steps past a sample's length are 0; then come the final
            states.
            """
            x = ins[0] if self.time_axis else np.ascontiguousarray(ins[0].swapaxes(0, 1))
            samples, times, inputs = x.shape
            sums = np.empty((samples * times, len(self.bias_x)), np.int32)
            compute_input_sums([x.reshape(-1, inputs)], [sums])
            y = np.empty((samples, times, self.units), self.rescale_o.dtype)
            h, c, lengths = self._initial_states(ins[1:], samples, times)
            for sample, length in zip(y, lengths, strict=True):
                sample[length:] = 0
            final_states = run_steps(sums.reshape(samples, times, -1), lengths, y, h, c)
            for out, index in zip(outs, self.output_indices, strict=True):
                value = y if index == 0 else final_states[index - 1]
                out[...] = value if self.time_axis else value.swapaxes(0, 1)

        return run

    def _initial_states(
        self, state_arrays: Sequence[np.ndarray], samples: int, times: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the initial h [N, H] in y's type, c [N, H] int64, and lengths [N] in 0..T.

        Inputs (`state_arrays`) take precedence over constants; without either, states are 0 and
        lengths T.
        """
        inputs = dict(zip(self.state_inputs, state_arrays, strict=True))
        values = {**self.constant_states, **inputs}
        h = np.zeros((samples, self.units), self.rescale_o.dtype)
        c = np.zeros((samples, self.units), np.int64)
        for name, array in (("h", h), ("c", c)):
            if name in values:
                array[:] = values[name].reshape(-1, self.units)
        lengths = np.full(samples, times, np.int64)
        if "lengths" in values:
            lengths[:] = np.clip(values["lengths"], 0, times)
        return h, c, lengths

    def make_step_function(self) -> Any:
        """Return a function of (sums, lengths, y, h, c) that computes all steps of a layer.

        This base raises NotImplementedError; subclasses define it. `sums` are int32 [N, T, G*H],
        `lengths` int64 [N], y [N, T, H] is to be filled; h and c are states [N, H], which are
        updated to the final ones. The function returns the final states that are outputs, each [N,
        1, H].
        """
        raise NotImplementedError

    def bound_gate_sums(self, largest_input: int) -> int:
        """Return a bound of the magnitude of a gate sum of inputs plus one of states.

        Inputs are |x| <= `largest_input`.
        """
        inputs = bound_accumulators(self.weight_x, self.bias_x, largest_input)
        states = bound_accumulators(self.weight_h, self.bias_h, max_magnitude(self.rescale_o.dtype))
        return self.rescale_x.output_bound(inputs) + self.rescale_h.output_bound(states)

    def make_input_sums(self, kind: np.dtype) -> GateSums:
        """Return the packed weights and biases of the inputs' gate sums, for inputs of `kind`."""
        return GateSums(self.weight_x, self.bias_x, kind, max_magnitude(kind), self.rescale_x)

    def make_hidden_sums(self) -> GateSums:
        """Return the packed weights and biases of the states' gate sums."""
        kind = self.rescale_o.dtype
        return GateSums(self.weight_h, self.bias_h, kind, max_magnitude(kind), self.rescale_h)

    def hidden_weights(self) -> tuple[np.ndarray, np.ndarray, RescaleForm]:
        """Return (weight [H, G*H], bias [G*H], rescale form) of the states' gate sums."""
        return prepare_gate_weights(
            self.weight_h, self.bias_h, max_magnitude(self.rescale_o.dtype), self.rescale_h
        )


def bound_accumulators(weight: np.ndarray, bias: np.ndarray, largest: int) -> int:
    """Return a bound of |W x + b| for weight [O, I], bias [O] and inputs of |x| <= `largest`."""
    wide = np.abs(weight.astype(np.int64)).sum(axis=1) * largest + np.abs(bias.astype(np.int64))
    return int(wide.max(initial=0))


def prepare_gate_weights(
    weight: np.ndarray, bias: np.ndarray, largest: int, rescale: Rescale | ChainedRescale
) -> tuple[np.ndarray, np.ndarray, RescaleForm]:
    """Transpose weight [O, I] to [I, O] for scalar loops on inputs of |x| <= `largest`.

    Returns it with the bias [O] in the accumulator's type, int32 or int64, and the rescale form
    that is exact for such sums.
    """
    bound = bound_accumulators(weight, bias, largest)
    kind = np.int32 if bound < 1 << 31 else np.int64
    return np.ascontiguousarray(weight.T), bias.astype(kind), rescale.compile_for_bound(bound)
