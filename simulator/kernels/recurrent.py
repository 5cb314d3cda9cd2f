"""What recurrent operators share: weights, the gate sums of inputs and states, the order of time.

    a[t] = rescale_x(W_x x[t] + b_x)        for all times at once
    b[t] = rescale_h(W_h h[t-1] + b_h)      step by step

Arrays: x [N, T, I] -> y [N, T, H], last state [N, 1, H]; with `time_axis` 0: [T, N, I] -> [T, N, H], [1, N, H]. States
start at 0. Backwards, y stays at the place of its input and the last state is the one at time 0. Must not know: what
the gates do with the sums, rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed import Chain, Form, Rescale, apply
from simulator.kernel import Array, Kernel, Run, Spec, require
from simulator.kernels._common import magnitude

__all__ = ["Recurrent", "project"]


@jit
def project(x: Array, weight: Array, bias: Array, rescale: Form, out: Array) -> None:
    """Fill out [R, O] with rescale(x [R, I] weight [I, O] + bias [O]); the bias has the type of the accumulator."""
    acc = np.empty_like(bias)
    for r in range(x.shape[0]):
        acc[:] = bias
        for i in range(x.shape[1]):
            value, row = x[r, i], weight[i]
            for o in range(acc.size):
                acc[o] += value * row[o]
        for o in range(acc.size):
            out[r, o] = apply(rescale, acc[o])


@dataclass(frozen=True, eq=False)
class Recurrent(Kernel):
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
    """

    weight_x: np.ndarray
    weight_h: np.ndarray
    bias_x: np.ndarray
    bias_h: np.ndarray
    rescale_x: Rescale | Chain
    rescale_h: Rescale | Chain
    rescale_o: Rescale
    forward: bool = True
    time_axis: int = 1
    kept: tuple[int, ...] = (0, 1)

    layout: ClassVar[str] = "plain"
    gates: ClassVar[int] = 1

    def __post_init__(self) -> None:
        rows = self.gates * self.units
        shapes = [a.shape for a in (self.weight_x, self.weight_h, self.bias_x, self.bias_h)]
        require(
            shapes == [(rows, self.weight_x.shape[-1]), (rows, self.units), (rows,), (rows,)],
            f"weights of {self.gates} gates do not fit together: {', '.join(str(list(s)) for s in shapes)}",
        )
        require(self.time_axis in (0, 1), f"time is axis 0 or 1, not {self.time_axis}")

    @property
    def units(self) -> int:
        """H."""
        return int(self.weight_h.shape[-1])

    @property
    def per_sample(self) -> bool:
        """Samples do not touch each other; axis 0 counts them where it is not the time."""
        return self.time_axis == 1

    def last(self, samples: int) -> list[Spec]:
        """Return the specs of the outputs behind the sequence, as [samples, 1, H] whatever the time axis."""
        return [Spec((samples, 1, self.units), self.rescale_o.dtype)]

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        """Map x -> y and the last states."""
        (x,) = specs
        fits = len(x.shape) == 3 and x.dtype.kind == "i" and x.shape[-1] == self.weight_x.shape[1]
        require(fits, f"a recurrent layer of {self.weight_x.shape[1]} inputs does not take {x}")
        y = Spec((*x.shape[:2], self.units), self.rescale_o.dtype)
        found = [y]
        for spec in self.last(x.shape[1 - self.time_axis]):
            samples, one, units = spec.shape
            found.append(spec if self.time_axis else Spec((one, samples, units), spec.dtype))
        return tuple(found[i] for i in self.kept)

    def build(self, specs: Sequence[Spec], channel_last: bool) -> Run:
        """Turn the weights and bound the sums."""
        (x,) = specs
        weight, bias, form = prepare(self.weight_x, self.bias_x, magnitude(x.dtype), self.rescale_x)
        step = self.stepper()
        shapes = [Spec((*x.shape[:2], self.units), self.rescale_o.dtype), *self.last(1)]

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            given = ins[0] if self.time_axis else np.ascontiguousarray(ins[0].swapaxes(0, 1))
            samples, times, inputs = given.shape
            sums = np.empty((samples * times, bias.size), np.int32)
            project(given.reshape(-1, inputs), weight, bias, form, sums)
            y = np.empty((samples, times, self.units), shapes[0].dtype)
            ends = step(sums.reshape(samples, times, -1), y)
            for out, index in zip(outs, self.kept, strict=True):
                value = y if index == 0 else ends[index - 1]
                out[...] = value if self.time_axis else value.swapaxes(0, 1)

        return run

    def stepper(self) -> Any:
        """Return a function of (sums [N, T, G*H], y to fill) that gives the last states, each [N, 1, ...]."""
        raise NotImplementedError

    def hidden(self) -> tuple[np.ndarray, np.ndarray, Form]:
        """Return weight [H, G*H], bias and rescaling of the states' sums."""
        return prepare(self.weight_h, self.bias_h, magnitude(self.rescale_o.dtype), self.rescale_h)

    def ending(self, y: np.ndarray) -> np.ndarray:
        """Return the last state [N, 1, H] of the sequence y [N, T, H]."""
        return y[:, -1:] if self.forward else y[:, :1]


def prepare(
    weight: np.ndarray, bias: np.ndarray, largest: int, rescale: Rescale | Chain
) -> tuple[np.ndarray, np.ndarray, Form]:
    """Return weight [I, O], the bias in the accumulator's type and the rescaling for inputs up to `largest`."""
    wide = np.abs(weight.astype(np.int64)).sum(axis=1) * largest + np.abs(bias.astype(np.int64))
    bound = int(wide.max(initial=0))
    kind = np.int32 if bound < 1 << 31 else np.int64
    return np.ascontiguousarray(weight.T), bias.astype(kind), rescale.within(bound)
