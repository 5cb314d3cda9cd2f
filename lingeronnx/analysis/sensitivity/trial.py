"""Trials: runs of a float model with some tensors and weights rounded to a plan's grid.

A trial differs in a few places from a *base* run, whose tensors are stored; only the segments
downstream of the differences are run again. A tensor is rounded by ``clip(floor(x * scale + 1/2),
low, high) / scale``; biases stay real. If all tensors of an operator are rounded, it is run by its
integer kernel (`kernels`). This module does not know which trials are useful.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ...common.errors import ConfigError
from ...common.hashing import hash_framed_parts
from ...ir import ir
from ...ir.plan import Affine
from ...runtime.data import Data, count_divisible_samples
from ...runtime.runners import get_input_specs
from ...runtime.runners.segments import Segments
from .kernels import IntegerOperator, KernelRunner, VariantKey

__all__ = ["BaseRun", "TrialEngine", "RoundableModel", "RoundedSet", "TrialModel"]

_MAX_CACHE_BYTES = 512 * 2**20  # bytes of base tensors cached for a user's function


@dataclass(frozen=True)
class RoundedSet:
    """Tensors, and nodes with weights, that are rounded; everything else is float.

    `wide_tensors` and `wide_weights` are those of them that are rounded to 16 bits instead of the
    plan's grid. A node may have the name of a tensor.
    """

    tensors: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()
    wide_tensors: frozenset[str] = frozenset()
    wide_weights: frozenset[str] = frozenset()

    def __or__(self, other: RoundedSet) -> RoundedSet:
        """Return the union: tensors and weights that either set rounds; wide in either is wide."""
        return RoundedSet(
            self.tensors | other.tensors,
            self.weights | other.weights,
            self.wide_tensors | other.wide_tensors,
            self.wide_weights | other.wide_weights,
        )

    def __sub__(self, other: RoundedSet) -> RoundedSet:
        """Return the set without the rounded tensors and weights of `other`.

        Its wide names stay.
        """
        return RoundedSet(
            self.tensors - other.tensors,
            self.weights - other.weights,
            self.wide_tensors,
            self.wide_weights,
        )

    def get_tensor_grid(self, name: str) -> str:
        """Return the grid that a tensor is rounded to: "wide" (16 bits), "plan", "" for float."""
        if name not in self.tensors:
            return ""
        return "wide" if name in self.wide_tensors else "plan"

    def get_weight_grid(self, node: str) -> str:
        """Return the grid of the weights of a node: "wide" (16 bits), "plan", or "" for float."""
        if node not in self.weights:
            return ""
        return "wide" if node in self.wide_weights else "plan"


@dataclass(frozen=True)
class RoundableModel:
    """A float model with everything that trials may round; it can be pickled.

    Parameters
    ----------
    model
        The model, as `ir.to_bytes` writes it.
    outputs
        The measured graph outputs.
    tensors
        Grid by tensor.
    weights
        Rounded constants by node and name.
    wide_tensors, wide_weights
        The same in 16 bits, if the target supports that.
    kernels
        Operators that are run as integers, by node.
    """

    model: bytes
    outputs: tuple[str, ...]
    tensors: Mapping[str, Affine]
    weights: Mapping[str, Mapping[str, np.ndarray]]
    wide_tensors: Mapping[str, Affine] = field(default_factory=dict)
    wide_weights: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    kernels: Mapping[str, IntegerOperator] = field(default_factory=dict)

    def create_engine(self) -> TrialEngine:
        """Create the engine that runs trials of this model; it splits the model into segments."""
        return TrialEngine(self)


@dataclass(frozen=True)
class BaseRun:
    """The tensors of a run that trials start from."""

    setting: RoundedSet
    tensors: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        return sum(array.nbytes for array in self.tensors.values())


class TrialEngine:
    """Runs trials of a roundable model.

    Attributes
    ----------
    inputs : dict of str to InputSpec
        Inputs of the model.
    output_names : list of str
        The measured outputs.
    segments : Segments
        The model, split at the tensors that may be rounded.
    macs : int
        Multiply-accumulates that were computed so far.
    runs_single_samples : bool
        Whether the model has a fixed batch of one, so that samples are run one by one.
    """

    def __init__(self, roundable: RoundableModel) -> None:
        """Split the model into segments at the tensors that trials round or kernels read."""
        self._roundable = roundable
        model = ir.from_bytes(roundable.model)
        self.inputs = {spec.name: spec for spec in get_input_specs(model)}
        self.output_names = list(roundable.outputs)
        split_at = set(roundable.tensors)
        for operator in roundable.kernels.values():
            split_at |= operator.read_tensors
        self.segments = Segments(model, split_at, roundable.outputs, roundable.weights)
        self._kernels = KernelRunner(roundable.kernels)
        self.macs = 0
        self.runs_single_samples = any(spec.is_single_sample for spec in self.inputs.values())

    @cached_property
    def _last_consumer(self) -> dict[str, int]:
        """{tensor: index of the last segment that reads it}."""
        last: dict[str, int] = {}
        for index, segment in enumerate(self.segments.segments):
            last.update(dict.fromkeys(segment.inputs, index))
        return last

    def split_samples(
        self, feeds: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
        """Split a batch into groups of samples that are run together; yield (start, stop, feeds).

        All samples are one group, unless an input accepts single samples only; then each is one.
        Inputs with a fixed batch are passed on whole.
        """
        count = count_divisible_samples(self.inputs, feeds)
        step = 1 if self.runs_single_samples else max(count, 1)
        for start in range(0, count, step):
            stop = min(start + step, count)
            samples = {}
            for name, array in feeds.items():
                spec = self.inputs[name]
                if self.runs_single_samples and spec.accepts_any_batch:
                    array = spec.slice_samples(array, start, stop)
                samples[name] = array
            yield start, stop, samples

    def run_base(self, setting: RoundedSet, feeds: Mapping[str, np.ndarray]) -> BaseRun:
        """Run the complete model on samples, and return the tensors between its segments.

        The tensors that `setting` rounds, inputs included, are rounded before they are read, and
        the result has these rounded values. Adds the multiply-accumulates to `macs`.
        """
        tensors = {
            name: self._round_tensor(setting, name, np.asarray(array))
            for name, array in feeds.items()
        }
        count = count_divisible_samples(self.inputs, feeds)
        for index in range(len(self.segments.segments)):
            for name, array in self._run_segment(index, setting, tensors, count).items():
                tensors[name] = self._round_tensor(setting, name, array)
        return BaseRun(setting, tensors)

    def outputs(
        self, setting: RoundedSet, base: BaseRun, feeds: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs with `setting`; tensors that equal those of `base` are not recomputed.

        Parameters
        ----------
        setting
            The rounded tensors and weights.
        base
            Base run on the same feeds.
        feeds
            Samples that are run together, by input.
        """
        changed: dict[str, np.ndarray] = {}  # tensors that differ from the base
        for name, array in feeds.items():
            if setting.get_tensor_grid(name) != base.setting.get_tensor_grid(name):
                changed[name] = self._round_tensor(setting, name, np.asarray(array))
        count = count_divisible_samples(self.inputs, feeds)
        for index, segment in enumerate(self.segments.segments):
            changed |= self._update_segment(index, setting, base, changed, count)
            for name in segment.inputs:
                if self._last_consumer[name] == index and name not in self._roundable.outputs:
                    changed.pop(name, None)  # free the memory
        return {
            name: changed[name] if name in changed else base.tensors[name]
            for name in self._roundable.outputs
        }

    def _update_segment(
        self,
        index: int,
        setting: RoundedSet,
        base: BaseRun,
        changed: Mapping[str, np.ndarray],
        count: int,
    ) -> dict[str, np.ndarray]:
        """Return the rounded outputs of segment `index` that may differ from those of `base`.

        It is run only if necessary (an input or its rounding changed). Otherwise these are its
        outputs that `setting` rounds and the base does not. `changed` has the tensors upstream that
        differ from the base, and `count` is the number of samples.
        """
        segment = self.segments.segments[index]
        if self._must_run(index, setting, base.setting, changed):
            tensors = {
                name: changed[name] if name in changed else base.tensors[name]
                for name in segment.inputs
            }
            outputs = self._run_segment(index, setting, tensors, count)
        else:
            outputs = {
                name: base.tensors[name]
                for name in segment.outputs
                if setting.get_tensor_grid(name) and not base.setting.get_tensor_grid(name)
            }
        return {name: self._round_tensor(setting, name, array) for name, array in outputs.items()}

    def _must_run(
        self,
        index: int,
        setting: RoundedSet,
        base_setting: RoundedSet,
        changed: Mapping[str, np.ndarray],
    ) -> bool:
        """Whether segment `index` must be run, given the tensors `changed` against the base run.

        It must if an input changed, or if `setting` and `base_setting` differ in the grid of its
        weights, in the integer kernel, or in the grid of an output that the base rounds. Otherwise
        the base's values hold.
        """
        segment = self.segments.segments[index]
        if any(name in changed for name in segment.inputs):
            return True
        weights = setting.weights | base_setting.weights
        nodes = [node for node in segment.nodes if node in weights]
        if any(
            setting.get_weight_grid(node) != base_setting.get_weight_grid(node) for node in nodes
        ):
            return True
        if self._kernel_variant(index, setting) != self._kernel_variant(index, base_setting):
            return True
        # a rounded tensor of the base cannot be converted to another grid
        return any(
            base_setting.get_tensor_grid(name)
            and setting.get_tensor_grid(name) != base_setting.get_tensor_grid(name)
            for name in segment.outputs
        )

    def _run_segment(
        self, index: int, setting: RoundedSet, tensors: Mapping[str, np.ndarray], count: int
    ) -> dict[str, np.ndarray]:
        """Run a segment, by its integer kernel or in float, and return its outputs before rounding.

        The kernel is used if there is one for the grids that `setting` gives to inputs, weights and
        output; in float the weights are rounded as `setting` says. `tensors` has its inputs;
        `count` is the number of samples, whose MACs are added to `macs`.
        """
        segment = self.segments.segments[index]
        self.macs += segment.macs * count
        variant = self._kernel_variant(index, setting)
        if variant is not None:
            return self._kernels.run(segment.nodes[-1], variant, tensors, segment.outputs)
        constants: dict[str, np.ndarray] = {}
        for node in segment.nodes:
            grid = setting.get_weight_grid(node)
            if grid == "wide":
                constants.update(self._roundable.wide_weights[node])
            elif grid:
                constants.update(self._roundable.weights[node])
        return self.segments.run(index, tensors, constants)

    def _kernel_variant(self, index: int, setting: RoundedSet) -> VariantKey | None:
        """Choose the variant of a segment's integer kernel; None if it is computed in float.

        A variant is (whether all inputs are on the plan's grid, grid of the output). None if there
        is no kernel, if the node's weights are not rounded in `setting`, or if the kernel lacks
        that variant.
        """
        name = self.segments.segments[index].nodes[-1]
        operator = self._roundable.kernels.get(name)
        if operator is None or (
            name in self._roundable.weights and not setting.get_weight_grid(name)
        ):
            return None
        sources = frozenset[str]().union(*operator.inputs.values())
        has_planned_inputs = all(setting.get_tensor_grid(source) == "plan" for source in sources)
        variant = (has_planned_inputs, setting.get_tensor_grid(operator.output))
        return variant if variant in operator.variants else None

    def _round_tensor(self, setting: RoundedSet, name: str, array: np.ndarray) -> np.ndarray:
        """Return `array` of tensor `name` rounded to its grid in `setting`, plan or wide.

        A tensor that `setting` does not round is returned as it is.
        """
        grid = setting.get_tensor_grid(name)
        if not grid:
            return array
        qparams = self._roundable.wide_tensors if grid == "wide" else self._roundable.tensors
        return qparams[name].on_grid(array)


class TrialModel:
    """A trial with the interface of a session: ``run(names, feeds)``, and a call with one input.

    Tensors of base runs are cached for as many feeds as fit in memory, so that a function which
    runs the same data for every trial does not recompute everything.

    Parameters
    ----------
    engine
        The engine.
    base
        Rounding of the base runs.
    setting
        Rounding of the trial; default that of the base.
    """

    def __init__(
        self, engine: TrialEngine, base: RoundedSet, setting: RoundedSet | None = None
    ) -> None:
        """Create a model that rounds as `setting` says; None rounds like the base runs."""
        self._engine, self._base, self._setting = engine, base, base if setting is None else setting
        self._base_runs: OrderedDict[bytes, BaseRun] = OrderedDict()
        self.inputs = list(engine.inputs.values())

    def with_setting(self, setting: RoundedSet) -> TrialModel:
        """Return a model that rounds as `setting` says; it shares the cache of base runs."""
        trial = TrialModel(self._engine, self._base, setting)
        trial._base_runs = self._base_runs
        return trial

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, ArrayLike]) -> list[np.ndarray]:
        """Run a batch and return the outputs `names` in this order, or all outputs if it is None.

        Models of single samples are run sample by sample, and the results concatenated on axis 0.

        Raises
        ------
        ConfigError
            If there is no such output.
        DataError
            If the feeds do not fit the inputs.
        """
        output_names = self._engine.output_names if names is None else list(names)
        for name in output_names:
            if name not in self._engine.output_names:
                raise ConfigError(
                    f"a trial has no output '{name}'; outputs are "
                    f"{', '.join(self._engine.output_names)}"
                )
        batches = Data([dict(feeds)], self.inputs, label="feeds").batches(1 << 30)
        batch = next(iter(batches))[0]
        results = [
            self._run_samples(samples) for _, _, samples in self._engine.split_samples(batch)
        ]
        outputs = []
        for name in output_names:
            arrays = [result[name] for result in results]
            outputs.append(np.concatenate(arrays) if len(arrays) > 1 else arrays[0])
        return outputs

    def __call__(self, feeds: Mapping[str, ArrayLike] | ArrayLike) -> np.ndarray | list[np.ndarray]:
        """Run a batch, given as feeds or as the array of the first input.

        Returns the output if there is one, else a list of outputs. Raises DataError for feeds that
        do not fit the inputs.
        """
        if not isinstance(feeds, Mapping):
            feeds = {self.inputs[0].name: feeds}
        outputs = self.run(None, feeds)
        return outputs[0] if len(outputs) == 1 else outputs

    def _run_samples(self, samples: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the trial on samples and return its outputs, using a cached base run if there is one.

        Base runs are cached by the content of the inputs; the least recently used are dropped while
        they take more than _MAX_CACHE_BYTES.
        """
        key = hash_framed_parts(
            np.ascontiguousarray(samples[name]).tobytes() for name in sorted(samples)
        )
        if key not in self._base_runs:
            self._base_runs[key] = self._engine.run_base(self._base, samples)
            while len(self._base_runs) > 1 and self._cache_bytes > _MAX_CACHE_BYTES:
                self._base_runs.popitem(last=False)
        self._base_runs.move_to_end(key)
        return self._engine.outputs(self._setting, self._base_runs[key], samples)

    @property
    def _cache_bytes(self) -> int:
        """Bytes of the tensors of all cached base runs."""
        return sum(base.nbytes for base in self._base_runs.values())
