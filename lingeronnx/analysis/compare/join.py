"""Join of two sources: every tensor that both have, measured in one pass with constant memory.

Tensors are matched by the user's names and compared in the user's units: factors of equalization
are divided out. For every pair there are two errors. The error *as it arrives* comes from running
both models on the same inputs. The *local* error is the one that the tensor's own layer adds: the
layer gets the baseline's values as inputs, in both models as far as integers can represent them,
because values that were clipped before a layer are not an error of that layer. A tensor that is
only consumed by a Relu or Clip is also measured as its consumer sees it: a chip's scale need not
cover values that are clipped afterwards. This module knows sources and measures, but no remedies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from ...common.deprecation import keep_old_members
from ...common.errors import ConfigError, DataError, suggest_nearest
from ...ir import float_ops, ir
from ...ir.name_mapping import format_node_label, get_module_name
from ...operators.clamp.lowering import get_clip_bounds
from ...operators.lowerings import is_relu_like
from ...quantization.legalize.unroll_recurrent import JOINED_STEPS
from ...quantization.normalize.layers.recurrent import BOTH_DIRECTIONS
from ...quantization.prepare.recurrent_states import suggest_state_feedback
from ...runtime.accuracy_warnings import OutputChecks, PredictionCounts
from ...runtime.data import Data, InputSpec, Progress
from ...runtime.metrics import TopK
from ...runtime.provenance import load_fixed_arrays
from ...runtime.streaming import CallCount, check_call_count, iter_calls, make_zero_states
from ..stats.channels import ChannelSums, move_channel_axis
from ..stats.pair_measures import PairMeasures
from ..stats.stored_form import StoredForm
from .sources import DumpSource, FloatSource, IntegerSource, TensorSource

__all__ = [
    "TensorJoin",
    "PartialJoin",
    "ComparedTensor",
    "iter_batches",
    "join_tensors",
    "choose_comparison_batch_size",
]

_MAX_BATCH_BYTES = 64 << 20  # bytes of the baseline's tensors in memory at a time
_MAX_BATCH = 16  # samples
_MAX_SAMPLE_RANGES = 32  # first samples whose ranges are kept one by one


@keep_old_members(
    "0.3",
    window="consumed_range",
    pair="arrived",
    seen="as_consumed",
    called="display_name",
    whole="total_shape",
    held="stored_form",
    own="local_or_arrived",
    judged="effective",
    reach="baseline_range",
)
@dataclass
class ComparedTensor:
    """A tensor of both models with its error measures.

    Parameters
    ----------
    name
        The user's name of the tensor.
    kinds
        Types of the operators that produce it in the baseline and in the analysed model; "" if
        there is no graph.
    nodes
        Names of these operators.
    module
        Module path of the baseline's operator.
    consumed_range
        Range that the consumers of the tensor let through, or None if not all of them clip it.
    shape
        Shape in the last batch; see `total_shape`.
    arrived
        The error as it arrives.
    local
        The error added by the layer itself, or None if it cannot be isolated.
    as_consumed
        The local error (or else the error as it arrives) within `consumed_range`, or None.
    channels
        The same error per channel.
    sample_ranges
        (lowest, highest) value of the baseline in each of the first 32 samples; empty for tensors
        without a batch axis.
    """

    name: str
    kinds: tuple[str, str]
    nodes: tuple[str, str]
    module: str = ""
    consumed_range: tuple[float, float] | None = None
    shape: tuple[int, ...] = ()
    arrived: PairMeasures = field(default_factory=PairMeasures)
    local: PairMeasures | None = None
    as_consumed: PairMeasures | None = None
    channels: ChannelSums = field(default_factory=ChannelSums)
    sample_ranges: list[tuple[float, float]] = field(default_factory=list)

    @property
    def display_name(self) -> str:
        """The name and module of the node that produces the tensor, or else the tensor's name."""
        return format_node_label(self.nodes[0], self.module) or self.name

    @property
    def total_shape(self) -> tuple[int, ...]:
        """The shape over all of the data, with the batches concatenated on axis 0.

        For scalars and tensors without elements it is the shape of the last batch.
        """
        row_size = math.prod(self.shape[1:])
        total_count = self.arrived.total_count
        if not self.shape or not row_size or not total_count:
            return self.shape
        return (total_count // row_size, *self.shape[1:])

    @property
    def stored_form(self) -> StoredForm | None:
        """How the analysed model stores the tensor as integers, or None for float."""
        return self.arrived.stored_form

    @property
    def local_or_arrived(self) -> PairMeasures:
        """The local error (added by the tensor's own layer), or the error as it arrives."""
        return self.arrived if self.local is None else self.local

    @property
    def effective(self) -> PairMeasures:
        """The error of the layer itself, as far as it matters to the consumers of the tensor.

        This is the error within the range that the consumers let through, if they clip; else the
        local error if it is known; else the error as it arrives from both models' inputs.
        """
        return self.local_or_arrived if self.as_consumed is None else self.as_consumed

    @property
    def baseline_range(self) -> tuple[float, float]:
        """Lowest and highest value of the baseline, clipped to what consumers let through."""
        low, high = (-math.inf, math.inf) if self.consumed_range is None else self.consumed_range
        x = self.arrived.x
        return float(np.clip(x.low, low, high)), float(np.clip(x.high, low, high))

    def add_effective(
        self,
        x: np.ndarray,
        y: np.ndarray,
        stored_form: StoredForm | None,
        unclipped: np.ndarray,
    ) -> None:
        """Add a batch to `channels`, and to `as_consumed` if the tensor's consumers clip it.

        If `consumed_range` is set, all arrays are clipped to it first.

        Parameters
        ----------
        x, y
            Batch of the baseline and of the analysed model, of the same shape.
        stored_form
            How y is stored, or None for float.
        unclipped
            x as it is if no input of the layer is clipped.
        """
        raw = unclipped
        if self.consumed_range is not None:
            low, high = self.consumed_range
            x, unclipped = np.clip(x, low, high), np.clip(unclipped, low, high)
            y = np.clip(y, low, high) if stored_form is None else stored_form.clip_stored(y, high)
            self.as_consumed = self.as_consumed or PairMeasures()
            self.as_consumed.add(x, y, stored_form, unclipped)
        factor: tuple[float, ...] = (1.0,)
        if stored_form is not None:
            y, factor = stored_form.real(y), stored_form.factor
        self.channels.add(*(move_channel_axis(array, factor) for array in (x, y, raw)))

    def add_sample_ranges(self, x: np.ndarray) -> None:
        """Add the lowest and highest value of each sample of a batch of the baseline.

        x : samples on axis 0. NaN is ignored; samples after the first 32 are left out.
        """
        samples = x[: _MAX_SAMPLE_RANGES - len(self.sample_ranges)]
        axes = tuple(range(1, samples.ndim))
        lows, highs = np.fmin.reduce(samples, axis=axes), np.fmax.reduce(samples, axis=axes)
        self.sample_ranges += zip(lows.tolist(), highs.tolist(), strict=True)

    def merge(self, other: ComparedTensor) -> None:
        """Merge the measures of further samples in place.

        The shape becomes that of `other`, unless that is ().
        """
        self.shape = other.shape or self.shape
        self.arrived.merge(other.arrived)
        self.channels.merge(other.channels)
        missing = _MAX_SAMPLE_RANGES - len(self.sample_ranges)
        self.sample_ranges += other.sample_ranges[:missing]
        if other.local is not None:
            self.local = self.local or PairMeasures()
            self.local.merge(other.local)
        if other.as_consumed is not None:
            self.as_consumed = self.as_consumed or PairMeasures()
            self.as_consumed.merge(other.as_consumed)


@dataclass(frozen=True)
class PartialJoin:
    """Result of a `TensorJoin` for some samples, without the models, so that it can be pickled.

    Parameters
    ----------
    rows
        Compared tensors by name.
    unpaired
        Tensors without a counterpart.
    samples
        Number of samples.
    predictions
        Top-1 results of both models, of the samples with class labels.
    output_checks
        Checks of the graph outputs by name.
    """

    rows: dict[str, ComparedTensor]
    unpaired: Sequence[str]
    samples: int
    predictions: PredictionCounts
    output_checks: Mapping[str, OutputChecks]


class TensorJoin:
    """The tensors that two sources have in common, measured batch by batch.

    Parameters
    ----------
    base
        Source of the baseline.
    other
        Source of the analysed model.
    local
        Whether to measure local errors.
    state
        Inputs by the outputs that are fed back to them from batch to batch, separately in both
        models.

    Attributes
    ----------
    rows : dict of str to ComparedTensor
        Compared tensors by the user's name, in the order of the analysed model.
    unpaired : list of str
        Tensors of the analysed model that the baseline does not have, such as parts of a split
        layer.
    samples : int
        Number of samples so far.
    """

    def __init__(
        self,
        base: TensorSource,
        other: TensorSource,
        *,
        local: bool = True,
        state: Mapping[str, str] | None = None,
    ) -> None:
        """Start without any samples.

        If the baseline is an integer graph and `other` a dump, the dump's tensors get the user's
        names. With `local`, local errors are measured if the analysed model's layers can be
        computed one by one. `state` has the inputs by the outputs that are fed back to them from
        batch to batch.
        """
        if isinstance(base, IntegerSource) and isinstance(other, DumpSource):
            other = other.renamed_for(base)
        self.base, self.other, self._local = base, other, local and other.has_isolated_layers
        self.rows: dict[str, ComparedTensor] = {}
        self.unpaired: list[str] = []
        self.samples = 0
        self._predictions = PredictionCounts(1)
        self._output_checks: dict[str, OutputChecks] = {}
        self._state_inputs = dict(state or {})
        self._recurrent_outputs = dict(_match_recurrent_outputs(base, other))
        self._base_states: dict[str, np.ndarray] = {}
        self._other_states: dict[str, np.ndarray] = {}

    @property
    def state_inputs(self) -> frozenset[str]:
        """Names of the inputs that outputs of the model are fed back to."""
        return frozenset(self._state_inputs.values())

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Top-1 accuracy of (baseline, analysed model) in percent, of the first graph output.

        None unless all samples have labels that are class indices, and None without samples.
        """
        predictions = self._predictions
        if not predictions.samples == self.samples > 0:
            return None
        counts = predictions.baseline_correct, predictions.correct
        baseline, analysed = (100.0 * count / self.samples for count in counts)
        return baseline, analysed

    @property
    def has_lost_accuracy(self) -> bool:
        """Whether `accuracy` is known and fell by more than chance explains."""
        return self.accuracy is not None and self._predictions.has_lost_accuracy

    @property
    def warnings(self) -> list[str]:
        """Warnings about the accuracy, if it is known, and about constant or saturated outputs."""
        warnings = []
        if self.accuracy is not None:
            warnings += self._predictions.format_warnings(is_integer=True)
        for checks in self._output_checks.values():
            warnings += checks.format_warnings()
        return warnings

    @property
    def outputs(self) -> dict[str, float]:
        """{graph output: SQNR in dB}, for the outputs that both models have.

        It is the error as it arrives, with all layers quantized.
        """
        names = [name for name in self._output_names if name in self.rows]
        return {name: self.rows[name].arrived.sqnr for name in names}

    def add(self, feeds: Mapping[str, np.ndarray], labels: np.ndarray | None = None) -> None:
        """Run a batch through both models and measure all tensors that they have in common.

        Inputs that the analysed model lacks are not fed to it. State outputs become the inputs of
        the next batch, separately in each model. Local errors are measured if requested.

        Raises
        ------
        DataError
            If the models have no tensor in common.
        ConfigError
            If a state output is not a tensor of both models.
        """
        known_inputs = {spec.name for spec in self.other.inputs}
        base_feeds = {**feeds, **self._base_states}
        other_feeds = {
            name: array
            for name, array in {**feeds, **self._other_states}.items()
            if name in known_inputs or not known_inputs
        }
        real = self._run_base(base_feeds)
        other_states = self._add_arrived(other_feeds, real, labels)
        if not self.rows:
            raise DataError(
                "the models have no tensors in common; compare a model with its own quantized "
                "version"
            )
        if self._local:
            clipped = self._tensors_from_clipped_inputs(base_feeds, real)
            shared_feeds = {n: array for n, array in base_feeds.items() if n in other_feeds}
            self._add_local({**other_feeds, **shared_feeds}, real, clipped)
        self._set_states(real, other_states)
        self.samples += self._count_samples(feeds)

    def _count_samples(self, feeds: Mapping[str, np.ndarray]) -> int:
        """Return the number of samples in `feeds`, on the batch axis of each input.

        Axis 0 of inputs that neither model declares; 1 without arrays.
        """
        specs = {spec.name: spec for spec in (*self.base.inputs, *self.other.inputs)}
        counts = [
            specs[name].count_samples(array) if name in specs else len(array)
            for name, array in feeds.items()
            if array.ndim
        ]
        return max(counts, default=1)

    def _run_base(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the baseline and return its float tensors as float, by the analysed model's names.

        Integers are converted to real values (float32), tensors of other types are left out.
        Outputs of recurrent layers whose layout and name normalization changes appear twice: as
        they are, and converted under the analysed model's name.
        """
        real = {}
        for name, array, form in self.base.run(feeds):
            if form is not None:
                array = np.asarray(form.real(array), np.float32)
            if array.dtype.kind == "f":
                real[name] = array
        return real | self._convert_recurrent_outputs(real)

    def _convert_recurrent_outputs(
        self, tensors: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return {analysed model's name: array [N, T, D * H]} of renamed recurrent outputs.

        `tensors` are the baseline's by its own names. Only outputs whose names differ between the
        models are converted; those that `tensors` lacks are left out.
        """
        return {
            name: _to_batch_first(tensors[output.name], output)
            for name, output in self._recurrent_outputs.items()
            if output.name in tensors
        }

    def _add_arrived(
        self,
        feeds: Mapping[str, np.ndarray],
        real: Mapping[str, np.ndarray],
        labels: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        """Run the analysed model and add the errors as they arrive, against tensors `real`.

        Creates the rows of new tensors, updates the checks of graph outputs, and counts correct
        classes. If local errors are not measured, `as_consumed` and `channels` are updated here
        too.

        Returns
        -------
        dict
            Real values of the state inputs of the next batch, by input name.
        """
        states: dict[str, np.ndarray] = {}
        sample_count = self._count_samples(feeds)
        for name, array, form in self.other.run(feeds):
            expected = self._find_baseline_tensor(name, array, form, real)
            if expected is None:
                continue
            row = self.rows[name] = self.rows.get(name) or self._create_row(name)
            row.shape, array = expected.shape, array.reshape(expected.shape)
            row.arrived.add(expected, array, form)
            if expected.size and expected.ndim > 1 and len(expected) == sample_count:
                row.add_sample_ranges(expected)
            if not self._local:
                row.add_effective(expected, array, form, expected)
            if name in self._output_names:
                self._check_output(name, labels, expected, array, form)
            if name in self._state_inputs:
                state = array if form is None else form.real(array).astype(np.float32)
                states[self._state_inputs[name]] = state
        return states

    def _set_states(
        self, real: Mapping[str, np.ndarray], other_states: dict[str, np.ndarray]
    ) -> None:
        """Store the state inputs of the next batch of both models.

        The baseline's are its state outputs in `real`; `other_states` has the analysed model's by
        input name.

        Raises
        ------
        ConfigError
            If a state output is missing in one of the models.
        """
        for output, state_input in self._state_inputs.items():
            if output not in real or state_input not in other_states:
                raise ConfigError(
                    f"state: no tensor is called '{output}' in both "
                    f"models{suggest_nearest(output, real)}"
                )
        self._base_states = {to: real[output] for output, to in self._state_inputs.items()}
        self._other_states = other_states

    def _tensors_from_clipped_inputs(
        self, feeds: Mapping[str, np.ndarray], real: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the baseline's tensors as computed by each layer from clipped inputs, float32.

        Inputs of each layer are clipped to the range that their integers represent. {} if no value
        is out of range, or if the baseline is no float model.
        """
        if not isinstance(self.base, FloatSource):
            return {}
        stored_forms = {
            name: row.stored_form
            for name, row in self.rows.items()
            if row.stored_form is not None and name not in self._recurrent_outputs
        }
        tensors = self.base.run_with_clipped_inputs(feeds, real, stored_forms)
        tensors = {**tensors, **self._convert_recurrent_outputs(tensors)}
        return {name: array.astype(np.float32, copy=False) for name, array in tensors.items()}

    def _add_local(
        self,
        feeds: Mapping[str, np.ndarray],
        real: Mapping[str, np.ndarray],
        clipped: Mapping[str, np.ndarray],
    ) -> None:
        """Run each layer of the analysed model on the baseline's values and add the local errors.

        `real` has the baseline's tensors, `clipped` those that differ because a layer's inputs were
        clipped, which are expected instead. Tensors without a row, or of another size in `real`,
        are skipped.
        """
        for name, array, form in self.other.run_isolated(feeds, real):
            row = self.rows.get(name)
            if row is None or name not in real or array.size != real[name].size:
                continue
            unclipped = real[name]
            array = array.reshape(unclipped.shape)
            expected = clipped.get(name, unclipped)
            row.add_effective(expected, array, form, unclipped)
            row.local = row.local or PairMeasures()
            row.local.add(expected, array, form, unclipped)

    @cached_property
    def _output_names(self) -> list[str]:
        """The names of the graph outputs, of the baseline if it has a graph; [] without graphs."""
        graph = self.base.graph if self.base.graph is not None else self.other.graph
        return [] if graph is None else ir.get_output_names(graph)

    def _check_output(
        self,
        name: str,
        labels: np.ndarray | None,
        expected: np.ndarray,
        array: np.ndarray,
        form: StoredForm | None,
    ) -> None:
        """Add a batch of the graph output `name` to what the warnings about outputs need.

        For the first output it also counts correct classes by `labels`. `expected` and `array` are
        the baseline's values and those of the analysed model, stored in `form` (None for float).
        """
        real = array if form is None else form.real(array)
        if name == self._output_names[0]:
            self._count_hits(labels, expected, real)
        qparams = None
        if form is not None and set(form.factor) == {1.0}:
            qparams = form.q
        checks = self._output_checks.setdefault(name, OutputChecks(name))
        checks.add(real, expected, array, qparams)

    def _count_hits(
        self, labels: np.ndarray | None, expected: np.ndarray, actual: np.ndarray
    ) -> None:
        """Count the correct top-1 classes of the scores [N, classes] of both models.

        `expected` are the scores of the baseline, `actual` those of the analysed model. Batches
        without class labels (integers [N] below the number of classes) or with scores of another
        rank are ignored.
        """
        if labels is None or labels.dtype.kind not in "iu" or labels.ndim != 1:
            return
        if expected.ndim != 2 or labels.max(initial=0) >= expected.shape[1]:
            return
        is_correct = TopK(1).add(labels, actual)
        is_baseline_correct = TopK(1).add(labels, expected)
        self._predictions.add(labels, actual, is_correct, expected, is_baseline_correct)

    @property
    def partial_result(self) -> PartialJoin:
        """The rows, unpaired tensors, counts and checks so far, without the models; not copied."""
        return PartialJoin(
            self.rows, self.unpaired, self.samples, self._predictions, self._output_checks
        )

    def merge(self, other: PartialJoin) -> None:
        """Merge the result for further samples of the same sources in place.

        Rows of `other` that are new here are taken over, not copied.
        """
        for name, row in other.rows.items():
            if name in self.rows:
                self.rows[name].merge(row)
            else:
                self.rows[name] = row
        self.unpaired += [name for name in other.unpaired if name not in self.unpaired]
        self.samples += other.samples
        self._predictions.merge(other.predictions)
        for name, checks in other.output_checks.items():
            self._output_checks.setdefault(name, OutputChecks(name)).merge(checks)

    def _find_baseline_tensor(
        self,
        name: str,
        array: np.ndarray,
        stored_form: StoredForm | None,
        real: Mapping[str, np.ndarray],
    ) -> np.ndarray | None:
        """Return the baseline's tensor in `real` to compare tensor `name` with, or None.

        Shapes must be equal except for axes of length 1. Tensors without a counterpart are added to
        `unpaired`, except for plain integers such as indices and shapes.
        """
        expected = real.get(name)
        if stored_form is None and array.dtype.kind != "f":
            return None  # indices, shapes
        if expected is not None and _long_axes(expected.shape) == _long_axes(array.shape):
            return expected
        if name not in self.unpaired and name not in self.rows:
            self.unpaired.append(name)
        return None

    def baseline_name(self, name: str) -> str:
        """Return the baseline's name of a tensor from the analysed model's.

        They differ only for outputs of recurrent layers that normalization renames.
        """
        return self._recurrent_outputs[name].name if name in self._recurrent_outputs else name

    def find_row(self, name: str) -> str | None:
        """Return the name of the row of the baseline's tensor `name`, or None if it has no row.

        The names differ only for outputs of recurrent layers that normalization renames.
        """
        for row_name, output in self._recurrent_outputs.items():
            if output.name == name:
                name = row_name
                break
        return name if name in self.rows else None

    def _create_row(self, name: str) -> ComparedTensor:
        """Create the empty row of a tensor, with the nodes that produce it in both models.

        Its module is that of the baseline's node, or of the other's if the baseline has no graph.
        The range that its consumers let through is determined from the baseline.
        """
        base_node, other_node = self.base.node(self.baseline_name(name)), self.other.node(name)
        named_node = base_node if self.base.graph is not None else other_node
        return ComparedTensor(
            name,
            (_producer_type(self.base, base_node), _producer_type(self.other, other_node)),
            (_node_name(base_node), _node_name(other_node)),
            "" if named_node is None else get_module_name(named_node),
            _consumed_range(self.base.graph, base_node, name),
        )


def _producer_type(source: TensorSource, node: ir.Node | None) -> str:
    """Return the operator type of `node`, "Input" for None, "" if the source has no graph."""
    if source.graph is None:
        return ""
    return "Input" if node is None else node.op_type


def _node_name(node: ir.Node | None) -> str:
    """Return the name of a node, "" for None."""
    return "" if node is None else str(node.name)


def _long_axes(shape: Sequence[int]) -> list[int]:
    """Return the lengths of the axes of a shape that are not of length 1, in order."""
    return [length for length in shape if length != 1]


@dataclass(frozen=True)
class _RecurrentOutput:
    """Output of a recurrent layer of the baseline: its name, and whether the batch is axis 0."""

    name: str
    batch_first: bool


def _match_recurrent_outputs(
    base: TensorSource, other: TensorSource
) -> Iterator[tuple[str, _RecurrentOutput]]:
    """Yield (name in the analysed model, baseline output) of renamed recurrent outputs.

    Normalization changes the layout of these outputs and therefore their names; nodes are matched
    by their names, which stay. Of a layer that was split into directions or steps it is the node
    that concatenates these. Nothing unless both sources have graphs.
    """
    if base.graph is None or other.graph is None:
        return
    other_nodes = {str(node.name): node for node in other.graph.graph}
    user_names: Mapping[str, str] = getattr(other, "user_names", {})
    for node in base.graph.graph:
        if node.op_type not in float_ops.RECURRENT_OPS or node.domain:
            continue
        node_names = (f"{node.name}_{BOTH_DIRECTIONS}", f"{node.name}_{JOINED_STEPS}", node.name)
        other_node = next((other_nodes[key] for key in node_names if key in other_nodes), None)
        if other_node is None:
            continue
        base_name, name = str(node.outputs[0].name or ""), str(other_node.outputs[0].name)
        if base_name and name != base_name:
            is_batch_first = bool(ir.get_attr(node, "layout", 0))
            yield user_names.get(name, name), _RecurrentOutput(base_name, is_batch_first)


def _to_batch_first(array: np.ndarray, output: _RecurrentOutput) -> np.ndarray:
    """Convert the output Y of an ONNX recurrent layer to [N, T, D * H].

    `array` is [T, D, N, H], or [N, T, D, H] if `output` is batch first.
    """
    batch_first = array if output.batch_first else array.transpose(2, 0, 1, 3)
    return batch_first.reshape(*batch_first.shape[:2], -1)


def _consumed_range(
    graph: ir.Model | None, node: ir.Node | None, name: str
) -> tuple[float, float] | None:
    """Return the range (low, high) that all consumers clip the output `name` of `node` to.

    The consumers must be Relus or Clips from 0 with the same range; else None. None, too, for a
    graph output, without a node or without a graph.
    """
    if graph is None or node is None:
        return None
    value = next((output for output in node.outputs if output.name == name), None)
    if value is None or value.is_graph_output():
        return None
    ranges = {_clipped_range(use.node) for use in value.uses()}
    return ranges.pop() if len(ranges) == 1 else None


def _clipped_range(node: ir.Node) -> tuple[float, float] | None:
    """Return the output range of a Relu or of a Clip from 0, or None for other nodes."""
    bounds = get_clip_bounds(node) if node.op_type == "Clip" and not node.domain else None
    if bounds is None:
        return (0.0, np.inf) if is_relu_like(node) else None
    return (0.0, bounds[1]) if bounds[0] == 0 else None


def choose_comparison_batch_size(base: TensorSource, feeds: Mapping[str, np.ndarray]) -> int:
    """Choose how many samples to run together, by the size of the baseline's tensors.

    Parameters
    ----------
    feeds
        Inputs of one sample, which are run.

    Returns
    -------
    int
        1 to 16, such that the tensors take about 64 MiB at most.
    """
    size = sum(array.nbytes for _, array, _ in base.run(feeds))
    return int(np.clip(_MAX_BATCH_BYTES // max(size, 1), 1, _MAX_BATCH))


def join_tensors(
    base: TensorSource,
    other: TensorSource,
    data: object,
    *,
    local: bool = True,
    state: Mapping[str, str] | None = None,
    calls: CallCount | None = None,
    batch: int | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> TensorJoin:
    """Measure every tensor that two sources have in common, over all samples of `data`.

    Parameters
    ----------
    base, other
        Sources of the baseline and of the analysed model.
    data
        Data for the inputs of the baseline: a file or folder, arrays, or an iterable of batches.
    local
        Whether to measure local errors.
    state
        Inputs by the outputs that are fed back to them; an item of the data is then a call.
    calls
        With `state`: number of consecutive calls in an item of the data, or "all" for one sample
        per call; None: one. An item of several calls is a sequence that begins with zero states.
    batch
        Samples run together; None: as many as fit in memory.
    limit
        Largest number of samples.
    progress
        Progress callback.

    Raises
    ------
    DataError
        If the data are wrong or the models have no tensor in common.
    """
    specs = list(base.inputs)
    tensor_join = TensorJoin(base, other, local=local, state=state)
    for feeds, labels in iter_batches(specs, data, tensor_join, state, calls, batch, limit):
        tensor_join.add(feeds, labels)
        if progress is not None:
            progress("comparing", tensor_join.samples, None)
    return tensor_join


def iter_batches(
    specs: Sequence[InputSpec],
    data: object,
    tensor_join: TensorJoin,
    state: Mapping[str, str] | None,
    calls: CallCount | None,
    batch: int | None,
    limit: int | None,
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray | None]]:
    """Yield (feeds by input, labels or None) of the batches for `tensor_join`.

    Parameters
    ----------
    specs
        Inputs of the baseline.
    data
        Data for these inputs: a file or folder, arrays, or an iterable of batches.
    tensor_join
        Join that gets the batches; the caller adds each before it takes the next.
    state
        Input name by the name of the output that feeds it. With it each item of the data is one
        call; states that the data lack are zeros until `tensor_join` has samples and where a
        sequence begins, and are left out otherwise: `TensorJoin.add` feeds the outputs back.
    calls
        With `state`: number of consecutive calls in an item of the data, or "all" for one sample
        per call; None: one. An item of several calls is a sequence that begins with zero states.
    batch
        Samples run together; None: by the size of the baseline's tensors. Ignored with `state`.
    limit
        Largest number of samples; None: all.

    Raises
    ------
    ConfigError
        If a value of `state` is not an input.
    """
    check_call_count(state, calls)
    if state:
        yield from _iter_call_feeds(specs, data, tensor_join, state, calls, limit)
        return
    graph = tensor_join.base.graph
    advice = None if graph is None else partial(suggest_state_feedback, graph)
    fixed = load_fixed_arrays(tensor_join.other.graph)
    source = Data(data, specs, limit=limit, label="data", advice=advice, fixed=fixed)
    size = batch or choose_comparison_batch_size(tensor_join.base, source.first())
    yield from source.batches(size)


def _iter_call_feeds(
    specs: Sequence[InputSpec],
    data: object,
    tensor_join: TensorJoin,
    state: Mapping[str, str],
    calls: CallCount | None,
    limit: int | None,
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray | None]]:
    """Yield (feeds, labels) of each call in the data of a model with states.

    `state` maps outputs to the inputs that they feed. State inputs that the data lack are zeros
    while `tensor_join` has no samples and where a sequence begins, and are left out otherwise.
    `calls` says how many calls an item of the data contains.

    Raises
    ------
    ConfigError
        If a value of `state` is not an input.
    """
    inputs = [spec.name for spec in specs]
    for name in state.values():
        if name not in inputs:
            raise ConfigError(
                f"state: the model has no input '{name}'{suggest_nearest(name, inputs)}"
            )
    state_specs = [spec for spec in specs if spec.name in state.values()]
    optional = {spec.name for spec in state_specs}
    graph = tensor_join.base.graph
    source = Data(
        data,
        specs,
        limit=limit,
        label="data",
        optional=optional,
        fixed=load_fixed_arrays(tensor_join.other.graph),
        whole_files=True,
        advice=None if graph is None else partial(suggest_state_feedback, graph),
    )
    for call in iter_calls(source, optional, calls):
        feeds = call.feeds
        counts = [spec.count_samples(feeds[spec.name]) for spec in specs if spec.name in feeds]
        missing = []
        if call.restarts or not tensor_join.samples:
            missing = [spec for spec in state_specs if spec.name not in feeds]
        yield {**make_zero_states(missing, max(counts, default=1)), **feeds}, call.labels
