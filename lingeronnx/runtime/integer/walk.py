"""Execute an integer graph step by step over one batch, with kernels that may be replaced."""

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
    """One step of a walk, before it is computed.

    output : tensor that it writes. kernel : its kernel. inputs : arrays of the complete batch,
    released when the walk continues. Two steps have the output of a node that writes floats: the
    one with the integers, and their Dequant.
    """

    output: str
    kernel: Any  # each operator has its class
    inputs: list[np.ndarray]


class GraphWalk:
    """Executes a graph step by step over one batch, with the kernels that its user chooses."""

    def __init__(self, binder: Binder, feed: Mapping[str, np.ndarray]) -> None:
        """Prepare to execute the steps of `binder` on `feed` (tensor name -> array) of one batch.

        `feed` is copied, its arrays are not.
        """
        self._binder, self._arrays = binder, dict(feed)
        self._last_use: dict[str, int] = {}
        for index, step in enumerate(binder.steps):
            self._last_use.update(dict.fromkeys(step.inputs, index))
        self._step: Step | None = None

    def __iter__(self) -> Iterator[WalkStep]:
        """Yield one step after the other; each is computed on the complete batch.

        When the next step is requested, the last one is computed with its own kernel unless
        `compute` was called, and the inputs are released that no later step reads.
        """
        for index, step in enumerate(self._binder.steps):
            self._step = step
            name, inputs = step.outputs[0], [self._arrays[source] for source in step.inputs]
            output = self._binder.integer_names.get(name, name)
            yield WalkStep(output, step.kernel, inputs)
            if name not in self._arrays:
                self.compute(step.kernel)
            inputs.clear()
            for name in dict.fromkeys(step.inputs):  # a step may read one tensor twice
                if self._last_use[name] == index:
                    del self._arrays[name]

    def get_tensor(self, name: str) -> np.ndarray | None:
        """Return the batch of tensor `name` if it is computed and a later step needs it, else None.

        A tensor that no step reads stays.
        """
        return self._arrays.get(name)

    def compute(self, kernel: Kernel) -> np.ndarray:
        """Compute the current step with `kernel`, return its output; later steps read that.

        An earlier result of the step is released first. An input with the rows of one sample only,
        such as a constant, is repeated for every sample.
        """
        from simulator import program as machine

        assert self._step is not None
        step = Step(kernel, self._step.inputs, self._step.outputs)
        for name in step.outputs:
            self._arrays.pop(name, None)
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
        return self._arrays[step.outputs[0]]


def run_program(
    program: Program, feed: Mapping[str, np.ndarray], force: Mapping[str, np.ndarray], count: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Run a batch of `count` samples and yield (name, array); one by one if samples would mix.

    The program was compiled for `feed`, which is not checked again. `force` maps tensors to arrays
    that their consumers get instead.
    """
    if program.accepts_batches or count == 1:
        yield from program.run(feed, force) if force else program.run_checked(feed, count).items()
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
