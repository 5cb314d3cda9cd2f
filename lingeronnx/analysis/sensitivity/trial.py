"""Trials: a float model in which some tensors and weights are rounded to a plan's grid, and what they cost to compute.

A trial differs from a *base*, whose tensors are kept, in a few places; only the pieces behind these
are run again. A tensor is rounded by ``clip(floor(x * scale + 1/2), low, high) / scale``; biases
stay real. An operator all of whose tensors are rounded is run by its integer kernel (`kernels`).
Knows arrays and pieces; not which trials are worth while.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ...errors import ConfigError
from ...graph import ir
from ...plan import Affine
from ...run.data import Data
from ...run.runners import get_input_specs
from ...run.runners.segments import Segments
from .kernels import IntegerOperator, KernelRunner, VariantKey

__all__ = ["BaseRun", "TrialEngine", "RoundableModel", "RoundedSet", "TrialModel"]

_MAX_CACHE_BYTES = 512 * 2**20  # bytes of tensors that are kept for a function of the user's


@dataclass(frozen=True)
class RoundedSet:
    """What is rounded: tensors, and the weights of nodes, by name; all else is float.

    Wide : what of it, in 16 bits.
    """

    tensors: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()
    wide_names: frozenset[str] = frozenset()

    def __or__(self, other: RoundedSet) -> RoundedSet:
        return RoundedSet(
            self.tensors | other.tensors,
            self.weights | other.weights,
            self.wide_names | other.wide_names,
        )

    def __sub__(self, other: RoundedSet) -> RoundedSet:
        return RoundedSet(
            self.tensors - other.tensors, self.weights - other.weights, self.wide_names
        )

    def grid_of(self, name: str) -> str:
        """Return what a tensor, or the weights of a node, are rounded to.

        "wide", "plan", or "" for nothing.
        """
        if name not in self.tensors and name not in self.weights:
            return ""
        return "wide" if name in self.wide_names else "plan"


@dataclass(frozen=True)
class RoundableModel:
    """What may be rounded of a float model, and how; it can be sent to other processes.

    model : as `ir.to_bytes` writes it. outputs : the graph outputs that are looked at. tensors :
    {tensor: its grid}. weights : {node: {constant: its rounded values}}. wide_tensors, wide_weights
    : the same in 16 bits, where the target has them. kernels : the operators that are run in integers, by node.
    """

    model: bytes
    outputs: tuple[str, ...]
    tensors: Mapping[str, Affine]
    weights: Mapping[str, Mapping[str, np.ndarray]]
    wide_tensors: Mapping[str, Affine] = field(default_factory=dict)
    wide_weights: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    kernels: Mapping[str, IntegerOperator] = field(default_factory=dict)

    def create_engine(self) -> TrialEngine:
        """Return what runs it."""
        return TrialEngine(self)


@dataclass(frozen=True)
class BaseRun:
    """The tensors of one run, which trials differ from."""

    setting: RoundedSet
    tensors: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return sum(array.nbytes for array in self.tensors.values())


class TrialEngine:
    """Runs trials; `macs` counts the multiply-accumulates that were really run."""

    def __init__(self, roundable: RoundableModel) -> None:
        self._given = roundable
        model = ir.from_bytes(roundable.model)
        self.inputs = {spec.name: spec for spec in get_input_specs(model)}
        #: The outputs that are looked at.
        self.wanted = list(roundable.outputs)
        cuts = roundable.tensors.keys() | {
            name for node in roundable.kernels.values() for name in node.read_tensors
        }
        self.segments = Segments(model, cuts, roundable.outputs, roundable.weights)
        self._kernels = KernelRunner(roundable.kernels)
        self.macs = 0
        #: Whether a model is written for one sample: several are run one by one.
        self.runs_single_samples = any(spec.is_single_sample for spec in self.inputs.values())

    @cached_property
    def _last_reader(self) -> dict[str, int]:
        """The last piece that reads a tensor."""
        return {
            name: index
            for index, piece in enumerate(self.segments.segments)
            for name in piece.inputs
        }

    def split_samples(
        self, feeds: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
        """Yield (first sample, one behind the last, their feeds) of what is run at a time."""
        count = self._count(feeds)
        step = 1 if self.runs_single_samples else max(count, 1)
        for start in range(0, count, step):
            stop = min(start + step, count)
            yield (
                start,
                stop,
                {
                    name: self.inputs[name].slice_samples(array, start, stop)
                    if self.runs_single_samples and self.inputs[name].accepts_any_batch
                    else array
                    for name, array in feeds.items()
                },
            )

    def _count(self, feeds: Mapping[str, np.ndarray]) -> int:
        return max(
            (
                self.inputs[n].count_samples(a)
                for n, a in feeds.items()
                if self.inputs[n].accepts_any_batch
            ),
            default=1,
        )

    def run_base(self, setting: RoundedSet, feeds: Mapping[str, np.ndarray]) -> BaseRun:
        """Run the whole model on one part."""
        tensors = {
            name: self._round_tensor(setting, name, np.asarray(array))
            for name, array in feeds.items()
        }
        samples = self._count(feeds)
        for index in range(len(self.segments.segments)):
            for name, array in self._run_segment(index, setting, tensors, samples).items():
                tensors[name] = self._round_tensor(setting, name, array)
        return BaseRun(setting, tensors)

    def outputs(
        self, setting: RoundedSet, base: BaseRun, feeds: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs under `setting`.

        What `base` has, of the same part, is not computed again.
        """
        now, then = setting.grid_of, base.setting.grid_of
        other: dict[str, np.ndarray] = {}  # what differs from the base
        for name, array in feeds.items():
            if now(name) != then(name):
                other[name] = self._round_tensor(setting, name, np.asarray(array))
        samples, weights = (
            self._count(feeds),
            {n for n in setting.weights | base.setting.weights if now(n) != then(n)},
        )
        for index, piece in enumerate(self.segments.segments):
            moved = any(name in other for name in piece.inputs) or any(
                node in weights for node in piece.nodes
            )
            moved = moved or self._kernel_variant(index, setting) != self._kernel_variant(
                index, base.setting
            )
            if moved or any(then(name) and now(name) != then(name) for name in piece.outputs):
                known = {
                    name: other[name] if name in other else base.tensors[name]
                    for name in piece.inputs
                }
                for name, array in self._run_segment(index, setting, known, samples).items():
                    other[name] = self._round_tensor(setting, name, array)
            else:
                for name in piece.outputs:
                    if now(name) and not then(name):
                        other[name] = self._round_tensor(setting, name, base.tensors[name])
            for name in piece.inputs:
                if self._last_reader[name] == index and name not in self._given.outputs:
                    other.pop(name, None)
        return {
            name: other[name] if name in other else base.tensors[name]
            for name in self._given.outputs
        }

    def _run_segment(
        self, index: int, setting: RoundedSet, tensors: Mapping[str, np.ndarray], samples: int
    ) -> dict[str, np.ndarray]:
        piece = self.segments.segments[index]
        self.macs += piece.macs * samples
        if held := self._kernel_variant(index, setting):
            return self._kernels.run(piece.nodes[-1], held, tensors, piece.outputs)
        changed: dict[str, np.ndarray] = {}
        for node in piece.nodes:
            if grid := setting.grid_of(node):
                changed.update(
                    (self._given.wide_weights if grid == "wide" else self._given.weights)[node]
                )
        return self.segments.run(index, tensors, changed)

    def _kernel_variant(self, index: int, setting: RoundedSet) -> VariantKey | None:
        """Return how the tensors of a piece are held that is run by its kernel.

        None where it is computed in float.
        """
        name = self.segments.segments[index].nodes[-1]
        node = self._given.kernels.get(name)
        if node is None or (name in self._given.weights and not setting.grid_of(name)):
            return None
        origins = frozenset[str]().union(*node.inputs.values())
        held = (
            all(setting.grid_of(origin) == "plan" for origin in origins),
            setting.grid_of(node.output),
        )
        return held if held in node.variants else None

    def _round_tensor(self, setting: RoundedSet, name: str, array: np.ndarray) -> np.ndarray:
        if not (grid := setting.grid_of(name)):
            return array
        return (self._given.wide_tensors if grid == "wide" else self._given.tensors)[name].on_grid(
            array
        )


class TrialModel:
    """A trial with the face of a session: ``run(names, feeds)``, and a call with the only input.

    Tensors of the base are kept for as many feeds as fit the memory set aside, so that a function
    which runs the same data for every trial does not compute all of it anew.
    """

    def __init__(
        self, engine: TrialEngine, base: RoundedSet, setting: RoundedSet | None = None
    ) -> None:
        self._engine, self._base, self._setting = engine, base, base if setting is None else setting
        self._kept: OrderedDict[bytes, BaseRun] = OrderedDict()
        self.inputs = list(engine.inputs.values())

    def with_setting(self, setting: RoundedSet) -> TrialModel:
        """Return the same model under another setting; what is kept is shared."""
        trial = TrialModel(self._engine, self._base, setting)
        trial._kept = self._kept
        return trial

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, ArrayLike]) -> list[np.ndarray]:
        """Return the outputs `names`, None for all, of a batch."""
        wanted = self._engine.wanted if names is None else list(names)
        if unknown := [name for name in wanted if name not in self._engine.wanted]:
            raise ConfigError(
                f"a trial has no output '{unknown[0]}'; outputs are "
                f"{', '.join(self._engine.wanted)}"
            )
        checked = next(iter(Data([dict(feeds)], self.inputs, what="feeds").batches(1 << 30)))[0]
        runs = [self._run_part(part) for _, _, part in self._engine.split_samples(checked)]
        return [
            np.concatenate([run[name] for run in runs]) if len(runs) > 1 else runs[0][name]
            for name in wanted
        ]

    def __call__(self, given: Mapping[str, ArrayLike] | ArrayLike) -> np.ndarray | list[np.ndarray]:
        """Run a batch, feeds or the array of a single input.

        The output itself where there is one, else a list.
        """
        outputs = self.run(
            None, given if isinstance(given, Mapping) else {self.inputs[0].name: given}
        )
        return outputs[0] if len(outputs) == 1 else outputs

    def _run_part(self, part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(part):
            digest.update(np.ascontiguousarray(part[name]).tobytes())
        key = digest.digest()
        if key not in self._kept:
            self._kept[key] = self._engine.run_base(self._base, part)
            while (
                len(self._kept) > 1
                and sum(base.nbytes for base in self._kept.values()) > _MAX_CACHE_BYTES
            ):
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._engine.outputs(self._setting, self._kept[key], part)
