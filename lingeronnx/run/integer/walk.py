"""A walk through an integer graph.

Step by step over one batch, any step done again before the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.kernel import Step

from .bind import Binder

if TYPE_CHECKING:
    from simulator.kernel import Kernel
    from simulator.program import Program

__all__ = ["GraphWalk", "WalkStep", "run_program"]


@dataclass
class WalkStep:
    """One step of a walk: the tensor it writes, the kernel that computed it, what it read and wrote (whole batch).

    The inputs are let go when the walk goes on.
    Where a node writes floats, two steps have its output: that with the integers, and their
    Dequant.
    """

    output: str
    kernel: Any  # of a class of its own for each operator
    inputs: list[np.ndarray]
    array: np.ndarray


class GraphWalk:
    """Runs a graph step by step over one batch.

    A step can be done again with another kernel before going on.
    """

    def __init__(self, binder: Binder, feed: Mapping[str, np.ndarray]) -> None:
        self._binder, self._arrays = binder, dict(feed)
        self._last = {name: i for i, call in enumerate(binder.steps) for name in call.inputs}
        self._step: Step | None = None
        self._shown: WalkStep | None = None

    def __iter__(self) -> Iterator[WalkStep]:
        for index, call in enumerate(self._binder.steps):
            self._step = call
            self._compute(call)
            name, read = call.outputs[0], [self._arrays[n] for n in call.inputs]
            self._shown = WalkStep(
                self._binder.integer_names.get(name, name), call.kernel, read, self._arrays[name]
            )
            yield self._shown
            read.clear()
            for name in dict.fromkeys(call.inputs):  # a step may read one tensor twice
                if self._last[name] == index:
                    del self._arrays[name]

    def held(self, name: str) -> np.ndarray | None:
        """Return the whole batch of a tensor that is computed, and still needed; else None."""
        return self._arrays.get(name)

    def redo(self, kernel: Kernel) -> None:
        """Compute the current step again with `kernel`, for later steps too.

        The step holds the new result.
        The old one is let go first.
        """
        assert self._step is not None
        assert self._shown is not None
        self._shown.array = np.empty(0)
        for name in self._step.outputs:
            del self._arrays[name]
        self._compute(Step(kernel, self._step.inputs, self._step.outputs))
        self._shown.array = self._arrays[self._step.outputs[0]]

    def _compute(self, call: Step) -> None:
        from simulator import program as machine

        specs = {name: self._binder.specs[name] for name in call.inputs}
        program = machine.compile_program([call], specs, call.outputs)
        feed = {name: self._arrays[name] for name in call.inputs}
        rows = {
            name: max(specs[name].shape[:1], default=1) for name in call.inputs
        }  # of one sample
        count = max((len(a) // rows[n] for n, a in feed.items() if a.ndim), default=1)
        feed = {
            n: np.concatenate([a] * count) if a.ndim and len(a) == rows[n] else a
            for n, a in feed.items()
        }
        self._arrays.update(run_program(program, feed, {}, count))


def run_program(
    program: Program, feed: Mapping[str, np.ndarray], force: Mapping[str, np.ndarray], count: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Run a batch of `count` samples, one by one where the program mixes samples."""
    if program.accepts_batches or count == 1:
        yield from program.run(feed, force)
        return

    def sample(arrays: Mapping[str, np.ndarray], i: int) -> dict[str, np.ndarray]:
        return {
            n: a[i * len(a) // count : (i + 1) * len(a) // count] if a.ndim else a
            for n, a in arrays.items()
        }

    runs = [program.run(sample(feed, i), sample(force, i)) for i in range(count)]
    for items in zip(*runs, strict=True):
        yield items[0][0], np.concatenate([np.atleast_1d(array) for _, array in items])
