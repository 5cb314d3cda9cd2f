"""Execute an integer graph step by step over one batch, with steps that can be repeated."""

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
    """One step of a walk.

    output : tensor that it writes. kernel : the kernel that computed it. inputs, array : arrays of
    the complete batch; the inputs are released when the walk continues. Two steps have the output
    of a node that writes floats: the one with the integers, and their Dequant.
    """

    output: str
    kernel: Any  # each operator has its class
    inputs: list[np.ndarray]
    array: np.ndarray


class GraphWalk:
    """Executes a graph step by step over one batch.

    A step can be repeated with another kernel before the walk continues.
    """

    def __init__(self, binder: Binder, feed: Mapping[str, np.ndarray]) -> None:
        """Prepare to execute the steps of `binder` on `feed` (tensor name -> array) of one batch.

        `feed` is copied, its arrays are not.
        """
        self._binder, self._arrays = binder, dict(feed)
        self._last_use: dict[str, int] = {}
        for index, step in enumerate(binder.steps):
            self._last_use.update(dict.fromkeys(step.inputs, index))
        self._step: Step | None = None
        self._current: WalkStep | None = None

    def __iter__(self) -> Iterator[WalkStep]:
        """Compute and yield one step after the other, on the complete batch.

        When the next step is requested, the inputs of the last one are released that no later step
        reads.
        """
        for index, step in enumerate(self._binder.steps):
            self._step = step
            self._compute(step)
            name, inputs = step.outputs[0], [self._arrays[source] for source in step.inputs]
            output = self._binder.integer_names.get(name, name)
            self._current = WalkStep(output, step.kernel, inputs, self._arrays[name])
            yield self._current
            inputs.clear()
            for name in dict.fromkeys(step.inputs):  # a step may read one tensor twice
                if self._last_use[name] == index:
                    del self._arrays[name]

    def get_tensor(self, name: str) -> np.ndarray | None:
        """Return the batch of tensor `name` if it is computed and a later step needs it, else None.

        A tensor that no step reads stays.
        """
        return self._arrays.get(name)

    def redo(self, kernel: Kernel) -> None:
        """Compute the current step again with `kernel`; later steps read the new result.

        The current `WalkStep` gets it as `array`; the old result is released first.
        """
        assert self._step is not None
        assert self._current is not None
        self._current.array = np.empty(0)
        for name in self._step.outputs:
            del self._arrays[name]
        self._compute(Step(kernel, self._step.inputs, self._step.outputs))
        self._current.array = self._arrays[self._step.outputs[0]]

    def _compute(self, step: Step) -> None:
        """Execute a step on the batch, and store its outputs.

        An input with the rows of one sample only, such as a constant, is repeated for every sample.
        """
        from simulator import program as machine

        specs = {name: self._binder.specs[name] for name in step.inputs}
        program = machine.compile_program([step], specs, step.outputs)
        feed = {name: self._arrays[name] for name in step.inputs}
        sample_rows = {name: max(specs[name].shape[:1], default=1) for name in step.inputs}
        counts = [len(array) // sample_rows[name] for name, array in feed.items() if array.ndim]
        count = max(counts, default=1)
        for name, array in feed.items():
            if array.ndim and len(array) == sample_rows[name]:
                feed[name] = np.concatenate([array] * count)
        self._arrays.update(run_program(program, feed, {}, count))


def run_program(
    program: Program, feed: Mapping[str, np.ndarray], force: Mapping[str, np.ndarray], count: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Run a batch of `count` samples and yield (name, array); one by one if samples would mix.

    `force` maps tensors to arrays that their consumers get instead.
    """
    if program.accepts_batches or count == 1:
        yield from program.run(feed, force)
        return

    def get_sample(arrays: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
        """Return tensor name -> rows of sample `index`: 1 / `count` of axis 0 of each array.

        Arrays without axes are returned complete.
        """
        samples = {}
        for name, array in arrays.items():
            if array.ndim:
                array = array[index * len(array) // count : (index + 1) * len(array) // count]
            samples[name] = array
        return samples

    runs = [program.run(get_sample(feed, i), get_sample(force, i)) for i in range(count)]
    for items in zip(*runs, strict=True):
        yield items[0][0], np.concatenate([np.atleast_1d(array) for _, array in items])
