"""An integer graph computed part by part, in the order of a program on a board; see `parts`.

Whoever computes the host's parts can be given: then a session is exact with a program that has its
own exp and tanh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import ModelError
from ..plan import Affine
from ..targets import Target
from .data import InputSpec
from .integer.runner import IntegerRunner
from .program_parts import PartitionedProgram, ProgramPart
from .runners import FloatRunner, Stream

__all__ = ["HostFunction", "PartRun", "PartsRunner"]

#: Computes the host part of a name: from its inputs to its outputs, in their order, one sample.
HostFunction = Callable[[ProgramPart, Sequence[np.ndarray]], Sequence[np.ndarray]]


@dataclass(frozen=True)
class PartRun:
    """What one part read and wrote, by tensor, and all tensors of a chip part with how they are held."""

    part: ProgramPart
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    tensors: Sequence[tuple[str, np.ndarray, Affine | None]]


class PartsRunner:
    """Runs an integer graph part by part, sample by sample, with the face of `IntegerRunner`.

    host : what computes the host's parts; None: onnxruntime.
    """

    nbytes = 0

    def __init__(
        self,
        parts: PartitionedProgram,
        arithmetic: str | None = None,
        target: Target | None = None,
        host: HostFunction | None = None,
    ) -> None:
        self.parts = parts
        self.inputs: list[InputSpec] = IntegerRunner(parts.graph, arithmetic, target).inputs
        self._chip = {
            part.name: IntegerRunner(part.graph, arithmetic, target) for part in parts.chip
        }
        self._float = (
            {}
            if host
            else {part.name: FloatRunner(part.graph, part.outputs) for part in parts.host_parts}
        )
        self._host = host

    def iter_parts(self, feeds: Mapping[str, np.ndarray]) -> Iterator[PartRun]:
        """Yield the parts of one sample, in the order in which they run.

        ModelError where one fails.
        """
        held: dict[str, np.ndarray] = dict(feeds)
        for part in self.parts.parts:
            given = {name: held[name] for name in part.inputs}
            if part.chip:
                tensors = [
                    (name, np.asarray(a), q)
                    for name, a, q in self._chip[part.name].run(given, None)
                ]
                found = {name: array for name, array, _ in tensors}
                made = {name: found[name] for name in part.outputs}
            else:
                made = self._run_on_host(part, given)
                tensors = [(name, array, None) for name, array in made.items()]
            held.update(made)
            yield PartRun(part, given, made, tensors)

    def run_chip_part(self, name: str, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all tensors of chip part `name` for one sample.

        What feeds a Quant may be its integers.
        """
        return {tensor: np.asarray(array) for tensor, array, _ in self._chip[name].run(given, None)}

    def run_host_part(self, name: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of host part `name` for one sample, in order, whoever computes the host's parts."""
        part = next(part for part in self.parts.host_parts if part.name == name)
        return list(self._run_on_host(part, dict(zip(part.inputs, arrays, strict=True))).values())

    def _run_on_host(
        self, part: ProgramPart, given: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        if self._host is not None:
            arrays = self._host(part, list(given.values()))
            if len(arrays) != len(part.outputs):
                raise ModelError(
                    f"{part.name} gave {len(arrays)} outputs; it has {len(part.outputs)}"
                )
            return dict(zip(part.outputs, map(np.asarray, arrays), strict=True))
        found = {name: np.asarray(array) for name, array, _ in self._float[part.name].run(given)}
        return {name: found[name] for name in part.outputs}

    def run(
        self,
        given: Mapping[str, np.ndarray],
        names: Sequence[str] | None = None,
        force: Mapping[str, np.ndarray] | None = None,
    ) -> Stream:
        """Yield `(name, array, how it is held or None)` of a batch, as `IntegerRunner` does.

        Tensors cannot be forced.
        """
        if force:
            raise ModelError(
                "tensors cannot be forced where the graph is computed part by part; leave host out"
            )
        count = max((spec.count_samples(given[spec.name]) for spec in self.inputs), default=1)
        rows: list[dict[str, tuple[np.ndarray, Affine | None]]] = []
        for number in range(count):
            feeds = {
                spec.name: spec.slice_samples(given[spec.name], number, number + 1)
                for spec in self.inputs
            }
            rows.append(
                {
                    name: (array, held)
                    for done in self.iter_parts(feeds)
                    for name, array, held in done.tensors
                    if names is None or name in names
                }
            )
        for name, (first, held) in rows[0].items():
            yield (
                name,
                (first if count == 1 else np.concatenate([row[name][0] for row in rows])),
                held,
            )
