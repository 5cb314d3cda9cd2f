"""Run an integer graph part by part, in the order of a program on a board; see `program_parts`.

The host parts can be computed by a given function, so that a session is bit-exact with a program
that uses its own exp and tanh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..common.errors import ModelError
from ..ir.plan import Affine
from ..targets import Target
from .data import InputSpec
from .integer.runner import IntegerRunner
from .program_parts import PartitionedProgram, ProgramPart
from .runners import FloatRunner, Stream

__all__ = ["HostFunction", "PartRun", "PartsRunner"]

#: Computes the outputs of a host part from its inputs, in their order, for one sample.
HostFunction = Callable[[ProgramPart, Sequence[np.ndarray]], Sequence[np.ndarray]]


class PartRun(NamedTuple):
    """One run of a part.

    inputs, outputs : arrays by tensor. tensors : (name, array, qparams or None) of all tensors of a
    chip part, or of the outputs of a host part.
    """

    part: ProgramPart
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    tensors: Sequence[tuple[str, np.ndarray, Affine | None]]


class PartsRunner:
    """Runs an integer graph part by part, one sample at a time; interface of `IntegerRunner`.

    Parameters
    ----------
    parts
        The partitioned graph.
    arithmetic
        "executor", "training", or None for the default of the graph.
    target
        The platform; None for that of the graph.
    host
        Function that computes host parts; None for onnxruntime.
    """

    nbytes = 0

    def __init__(
        self,
        parts: PartitionedProgram,
        arithmetic: str | None = None,
        target: Target | None = None,
        host: HostFunction | None = None,
    ) -> None:
        """Create a runner for every chip part and, if `host` is None, one per host part.

        `host` computes all host parts instead. `arithmetic` is "executor", "training" or None for
        the graph's default; `target` None is the platform of the graph.
        """
        self.parts = parts
        self.inputs: list[InputSpec] = IntegerRunner(parts.graph, arithmetic, target).inputs
        self._chip = {
            part.name: IntegerRunner(part.graph, arithmetic, target) for part in parts.chip
        }
        self._host = host
        self._float_runners = {}
        if not host:
            for part in parts.host_parts:
                self._float_runners[part.name] = FloatRunner(part.graph, part.outputs)

    def iter_parts(self, feeds: Mapping[str, np.ndarray]) -> Iterator[PartRun]:
        """Run one sample and yield the parts in the order in which they run.

        Each part runs when its `PartRun` is requested.

        Raises
        ------
        ModelError
            If a part fails.
        """
        arrays: dict[str, np.ndarray] = dict(feeds)
        for part in self.parts.parts:
            inputs = {name: arrays[name] for name in part.inputs}
            if part.chip:
                tensors = [
                    (name, np.asarray(array), qparams)
                    for name, array, qparams in self._chip[part.name].run(inputs, None)
                ]
                array_by_name = {name: array for name, array, _ in tensors}
                outputs = {name: array_by_name[name] for name in part.outputs}
            else:
                outputs = self._run_on_host(part, inputs)
                tensors = [(name, array, None) for name, array in outputs.items()]
            arrays.update(outputs)
            yield PartRun(part, inputs, outputs, tensors)

    def run_chip_part(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run chip part `name` on one sample and return all its tensors by name.

        Inputs of Quants may be passed as integers.
        """
        results = self._chip[name].run(inputs, None)
        return {tensor: np.asarray(array) for tensor, array, _ in results}

    def run_host_part(self, name: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run host part `name` on one sample and return its outputs in order.

        `arrays` are its inputs, in order. Raises StopIteration if there is no such part.
        """
        part = next(part for part in self.parts.host_parts if part.name == name)
        return list(self._run_on_host(part, dict(zip(part.inputs, arrays, strict=True))).values())

    def _run_on_host(
        self, part: ProgramPart, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a host part by name, from the host function or onnxruntime.

        Raises ModelError if the host function returns another number of outputs.
        """
        if self._host is None:
            results = self._float_runners[part.name].run(inputs)
            arrays = {name: np.asarray(array) for name, array, _ in results}
            return {name: arrays[name] for name in part.outputs}
        outputs = self._host(part, list(inputs.values()))
        if len(outputs) != len(part.outputs):
            raise ModelError(
                f"{part.name} returned {len(outputs)} outputs; it has {len(part.outputs)}"
            )
        return dict(zip(part.outputs, map(np.asarray, outputs), strict=True))

    def run(
        self,
        feed: Mapping[str, np.ndarray],
        names: Collection[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Stream:
        """Run a batch, sample by sample, and yield `(name, array, qparams or None)`.

        Tensors come part by part; arrays of all samples are concatenated on axis 0.

        Parameters
        ----------
        feed
            Arrays by input name.
        names
            Tensors to yield; None for all.
        force
            Not supported; must be empty or None.

        Raises
        ------
        ModelError
            If `force` is not empty, or a part fails.
        """
        if force:
            raise ModelError(
                "tensors cannot be forced in a graph that runs part by part; omit host"
            )
        count = max((spec.count_samples(feed[spec.name]) for spec in self.inputs), default=1)
        samples = []
        for index in range(count):
            sample_feed = {
                spec.name: spec.slice_samples(feed[spec.name], index, index + 1)
                for spec in self.inputs
            }
            samples.append(self._run_sample(sample_feed, names))
        for name, (array, qparams) in samples[0].items():
            if count > 1:
                array = np.concatenate([tensors[name][0] for tensors in samples])
            yield name, array, qparams

    def _run_sample(
        self, feed: Mapping[str, np.ndarray], names: Collection[str] | None
    ) -> dict[str, tuple[np.ndarray, Affine | None]]:
        """Run one sample through all parts; return tensor -> (array, qparams or None).

        Only the tensors in `names`, or all for None.
        """
        tensors = {}
        for part_run in self.iter_parts(feed):
            for name, array, qparams in part_run.tensors:
                if names is None or name in names:
                    tensors[name] = array, qparams
        return tensors
