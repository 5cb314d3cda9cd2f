"""Measure how far an integer graph is from the float model, and locate where it breaks.

Uses the samples held out from calibration, if there are any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...common.arithmetic import compute_sqnr_db
from ...common.errors import ModelError
from ...ir import float_ops, ir
from ...ir.plan import Affine
from ...runtime.accuracy_warnings import MIN_SQNR_DB
from ...runtime.data import Progress
from ...runtime.memory import trim_memory
from ...runtime.metrics import Agreement
from ...runtime.provenance import map_to_float_names
from ...runtime.runners import FloatRunner, get_input_specs
from ...runtime.session import LoweredSession, Session
from ...runtime.streaming import Stream
from ..prepare.float_outputs import MAX_MEASURED_SAMPLES, map_outputs_to_logits
from ..prepare.preparation import PreparedModel
from ..steps.planned_model import PlannedModel
from .output_parts import OutputPart, PartAgreement, find_part_boundaries

__all__ = [
    "Fidelity",
    "describe_break",
    "locate_break",
    "measure_agreement",
    "measure_fidelity",
    "measure_tensor_sqnr",
    "select_measured_tensors",
]

_MAX_SQNR_DB = 60.0  # SQNR above this counts as this when the break is located
_MIN_BREAK_SHARE = 0.5  # fraction of the noise of all layers that arises where an output breaks
_DOMINANT_SHARE = 0.9  # fraction of an output's power in one sample that decides its figures
_MIN_SHARING_SAMPLES = 8  # samples among which such a share is unexpected
_STUCK_SHARE = 0.25  # fraction of a state's changing elements that may be constant in integers
_CHUNK_SIZE = 1 << 20  # elements that are compared at once
_FLOAT32_MAX = float(np.finfo(np.float32).max)

_Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Fidelity:
    """Distance of the outputs of an integer graph from those of the float model.

    Attributes
    ----------
    outputs
        Cosine and SQNR in dB of each output.
    measured_on
        Description of the data.
    warnings
        Warnings for the report.
    doubts
        {output: reason why its figures are not reliable}.
    low_sqnr_warning
        The warning on outputs whose SQNR is so low that something must be done; empty without any.
    parts
        Agreement of each tensor that an output concatenates (`find_part_boundaries`).
    errors
        float64 [outputs, n]: summed squared errors of each sample, or of each batch if an output
        has no batch axis.
    power
        float64 [outputs]: summed squares of the float model's outputs.
    measured_errors, measured_power
        The same of `select_measured_tensors`.
    """

    outputs: Mapping[str, Mapping[str, float]]
    measured_on: str
    warnings: Sequence[str]
    doubts: Mapping[str, str] = field(default_factory=dict)
    low_sqnr_warning: str = ""
    parts: Sequence[OutputPart] = ()
    errors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)), compare=False)
    power: np.ndarray = field(default_factory=lambda: np.zeros(0), compare=False)
    measured_errors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)), compare=False)
    measured_power: np.ndarray = field(default_factory=lambda: np.zeros(0), compare=False)

    @property
    def worst_output(self) -> str:
        """The output with the lowest SQNR."""
        return min(self.outputs, key=lambda name: _sqnr_sort_key(self.outputs[name]["sqnr"]))

    @property
    def is_lossy(self) -> bool:
        """Whether the SQNR of an output is so low that something must be done."""
        return bool(self.low_sqnr_warning)

    def describe_outputs(self, measured_on: str = "") -> list[str]:
        """Describe the SQNR of each output and the data, one text per output.

        `measured_on` is another description of the data than that of the fidelity.
        """
        data = measured_on or self.measured_on
        return [f"{name}: {output['sqnr']:.1f} dB {data}" for name, output in self.outputs.items()]

    @property
    def min_measured_sqnr_db(self) -> float:
        """The lowest SQNR of `select_measured_tensors` in dB; infinite without tensors."""
        noise, tiny = self.measured_errors.sum(axis=1), np.finfo(float).tiny
        sqnr_db = compute_sqnr_db(self.measured_power, noise, tiny)
        return float(sqnr_db.min(initial=math.inf))


def select_measured_tensors(planned: PlannedModel) -> list[str]:
    """Return the tensors of the user's model that trials measure.

    These are its outputs, or the input of an output's final activation if the plan quantizes it
    without a transform.
    """
    comparable = planned.plan.tensors.keys() - planned.plan.transforms.keys()
    tensors = []
    for output, logits in map_outputs_to_logits(planned.prepared.original).items():
        tensors.append(logits if logits in comparable else output)
    return list(dict.fromkeys(tensors))


def measure_fidelity(
    planned: PlannedModel,
    session: LoweredSession,
    progress: Progress | None,
) -> Fidelity:
    """Compare the outputs of the user's model with those of the integer graph, on evaluation data.

    The data are those of `_select_evaluation_data`. Both sides feed back their own states, starting
    from zero. Raises ModelError if the shapes of an output differ.

    Parameters
    ----------
    planned
        The model and its plan.
    session
        Session of its integer graph.
    progress
        Callback for progress messages.
    """
    prepared = planned.prepared
    names = ir.get_output_names(prepared.original)
    evaluation = _select_evaluation_data(prepared)
    if progress is not None:
        progress("comparing", 0, None)
    states = dict(prepared.conf.state)
    if states:
        measured = names
        pairs = _iter_stream_pairs(prepared, session, evaluation.feeds)
    else:
        measured = select_measured_tensors(planned)
        tensors = list(dict.fromkeys([*names, *measured]))
        pairs = _iter_tensor_pairs(prepared, session, evaluation.feeds, tensors)
    boundaries = find_part_boundaries(prepared.graph)
    comparisons = {name: _OutputComparison(name) for name in names}
    part_agreements = {name: PartAgreement(name, ends) for name, ends in boundaries.items()}
    state_ranges = {name: _StateRanges() for name in states}
    errors = _SquaredErrors(names)
    measured_errors = errors if measured == names else _SquaredErrors(measured)
    per_tensor: list[tuple[str, _OutputComparison | PartAgreement | _StateRanges]] = [
        *comparisons.items(),
        *part_agreements.items(),
        *state_ranges.items(),
    ]
    for expected, actual, count in pairs:
        for name, measure in per_tensor:
            measure.add(expected[name], actual[name])
        errors.add(expected, actual, count)
        if measured_errors is not errors:
            measured_errors.add(expected, actual, count)
    metrics = {name: comparison.metrics for name, comparison in comparisons.items()}
    sqnr = {name: values["sqnr"] for name, values in metrics.items()}
    parts = list(itertools.chain.from_iterable(a.parts for a in part_agreements.values()))
    doubts = {
        name: comparison.doubt(evaluation.sample_count, evaluation.unit)
        for name, comparison in comparisons.items()
    }
    low_sqnr = {name: sqnr_db for name, sqnr_db in sqnr.items() if not sqnr_db >= MIN_SQNR_DB}
    warnings: list[str] = []
    for name, ranges in state_ranges.items():
        warnings += ranges.warnings(name)
    if low_sqnr:
        warnings.insert(0, _format_low_sqnr(low_sqnr))
    if parts:
        warnings += _format_lost_parts(parts, sqnr)
    return Fidelity(
        outputs=metrics,
        measured_on=evaluation.description,
        warnings=warnings,
        doubts={name: doubt for name, doubt in doubts.items() if doubt},
        low_sqnr_warning=warnings[0] if low_sqnr else "",
        parts=parts,
        errors=errors.per_sample,
        power=errors.power,
        measured_errors=measured_errors.per_sample,
        measured_power=measured_errors.power,
    )


def _make_shape_error(name: str, expected: tuple[int, ...], actual: tuple[int, ...]) -> ModelError:
    """Return the error that output `name` has another shape than in the float model."""
    if expected[:1] == actual[:1] and len(expected) == len(actual):
        return ModelError(
            f"output '{name}' has shape {list(actual)} in the integer graph, but {list(expected)} "
            "in the float model; check the shapes that the file declares, or keep its producer in "
            "float with --skip"
        )
    return ModelError(
        f"output '{name}' has no batch axis: it is independent of the input or mixes samples; "
        "remove it from the graph outputs"
    )


class _OutputComparison:
    """Agreement of one output over all batches, and what makes its figures unreliable.

    That is an output that does not differ between samples, or has most of its power in one.

    Parameters
    ----------
    name
        Name of the output.
    """

    def __init__(self, name: str) -> None:
        """Start the comparison without samples."""
        self._name = name
        self._agreement = Agreement()
        self._first: np.ndarray | None = None
        self._varies = False
        self._powers: list[np.ndarray] = []

    def add(self, expected: np.ndarray, actual: np.ndarray) -> None:
        """Add one batch of the output; raise ModelError if the shapes differ."""
        if expected.shape != actual.shape:
            raise _make_shape_error(self._name, expected.shape, actual.shape)
        self._agreement.add(expected, actual)
        samples = expected if expected.ndim else expected[None]
        self._powers.append(_squared_error_per_row(samples, np.zeros(()), len(samples)))
        if self._varies or not len(samples):
            return
        if self._first is None:
            self._first = samples[:1].copy()
        if samples.shape[1:] != self._first.shape[1:]:
            self._varies = True
            return
        repeated = np.broadcast_to(self._first, samples.shape)
        self._varies = not np.array_equal(samples, repeated, equal_nan=True)

    @property
    def metrics(self) -> dict[str, float]:
        """Cosine and SQNR in dB of the output."""
        return {"cosine": self._agreement.cosine, "sqnr": self._agreement.sqnr}

    def doubt(self, count: int, unit: str) -> str:
        """Explain why figures from `count` samples or calls are not reliable; "" if they are.

        That is a single sample, an output that does not depend on it, and one sample with nearly
        all of the power: its error alone decides the SQNR, as of a detector that responds to one
        sample only.
        """
        if count == 1:
            return f"from 1 {unit}"
        if not self._varies:
            return f"the output is identical for every {unit}; equivalent to 1 {unit}"
        powers = np.concatenate(self._powers)
        if len(powers) != count or count < _MIN_SHARING_SAMPLES:
            return ""
        share = float(powers.max() / max(powers.sum(), np.finfo(float).tiny))
        if share < _DOMINANT_SHARE:
            return ""
        return (
            f"{share:.0%} of the output's power is in one of {count} {unit}s, whose error decides"
        )


def _format_low_sqnr(low_sqnr: Mapping[str, float]) -> str:
    """Format the warning on outputs with a low SQNR in dB; only the worst is named.

    `low_sqnr` is {output: SQNR}.
    """
    worst = min(low_sqnr, key=lambda name: _sqnr_sort_key(low_sqnr[name]))
    others = len(low_sqnr) - 1
    others_text = f" (and {others} more below {MIN_SQNR_DB:g} dB)" if others else ""
    return f"output '{worst}' is {_format_distance(low_sqnr[worst])}{others_text}"


class _SquaredErrors:
    """Summed squared errors of tensors for each sample, and the power of the float tensors.

    Attributes
    ----------
    power
        float64 [names]: summed squares of the float tensors.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Start without samples; rows are the tensors in `names`, columns are samples."""
        self._names = names
        self._batches = [np.zeros((len(names), 0))]
        self.power = np.zeros(len(names))

    @property
    def per_sample(self) -> np.ndarray:
        """Summed squared errors, float64 [names, n]."""
        return np.hstack(self._batches)

    def add(self, expected: _Feed, actual: _Feed, count: int) -> None:
        """Add a batch of `count` samples, {tensor: array} of both models.

        The batch counts as one sample if one of the tensors does not have length `count` on axis 0.
        """
        has_batch_axis = all(expected[name].shape[:1] == (count,) for name in self._names)
        rows = count if has_batch_axis else 1
        errors = []
        for name in self._names:
            errors.append(_squared_error_per_row(expected[name], actual[name], rows))
        self._batches.append(np.stack(errors))
        zero = np.zeros(())
        self.power += [
            float(_squared_error_per_row(expected[name], zero, 1)[0]) for name in self._names
        ]


def _squared_error_per_row(expected: np.ndarray, actual: np.ndarray, rows: int) -> np.ndarray:
    """Return the summed squared errors of `rows` equal parts along axis 0, float64 [rows].

    Elements where `expected` is not finite count as exact.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        difference = expected.astype(np.float64) - actual
        errors = np.where(np.isfinite(expected), difference, 0.0).reshape(rows, -1)
        return np.asarray(np.einsum("ij,ij->i", errors, errors))


def _format_lost_parts(parts: Sequence[OutputPart], output_sqnr: Mapping[str, float]) -> list[str]:
    """Format a warning for the worst bad part of each output that has a good overall SQNR.

    A part is bad below `MIN_SQNR_DB` or NaN, the output good from that on (`output_sqnr`, in dB).
    """
    worst: dict[str, OutputPart] = {}
    for part in parts:
        if part.sqnr >= MIN_SQNR_DB or not output_sqnr[part.output] >= MIN_SQNR_DB:
            continue
        previous = worst.get(part.output, part)
        worst[part.output] = min(previous, part, key=lambda part: _sqnr_sort_key(part.sqnr))
    return [
        f"output '{name}', {part}: {_format_distance(part.sqnr)}, which the overall "
        f"{output_sqnr[name]:.1f} dB do not show"
        for name, part in worst.items()
    ]


def _sqnr_sort_key(sqnr_db: float) -> float:
    """Return a sort key for an SQNR in dB that places NaN first, as the worst."""
    return -math.inf if math.isnan(sqnr_db) else sqnr_db


def _format_distance(sqnr_db: float) -> str:
    """Format the SQNR of an output as a distance from the float model."""
    if math.isnan(sqnr_db):
        return "not finite where the float model's is"
    if sqnr_db == -math.inf:
        return "not 0 as in the float model"
    return f"{sqnr_db:.1f} dB from the float model"


class _EvaluationData(NamedTuple):
    """Feeds to measure on.

    description : of the data, for the report. sample_count : number of samples, or of calls, as
    `unit` says.
    """

    feeds: list[dict[str, np.ndarray]]
    description: str
    sample_count: int
    unit: str = "sample"


def _select_evaluation_data(prepared: PreparedModel) -> _EvaluationData:
    """Return the feeds to measure on.

    These are the evaluation calls of a model with states, else held-out samples, else the first
    `MAX_MEASURED_SAMPLES` of the calibration data, to which scales and weights are fitted.
    """
    if prepared.calls is not None:
        feeds = list(prepared.calls.evaluation_calls)
        description = f"on {len(feeds)} calls held back from calibration"
        if prepared.synthetic:
            description = f"on {len(feeds)} synthetic calls"
        elif not prepared.calls.held:
            description = f"on {len(feeds)} calls of the calibration data (optimistic)"
        return _EvaluationData(feeds, description, len(feeds), "call")
    data = prepared.data
    if held_back := data.held_out_batches():
        sample_count = sum(map(data.count_samples, held_back))
        description = f"on {sample_count} samples held back from calibration"
        return _EvaluationData(held_back, description, sample_count)
    description = "on the calibration data (optimistic)"
    if prepared.synthetic:
        description = "on synthetic inputs"
    samples = data.first(MAX_MEASURED_SAMPLES)
    return _EvaluationData([samples], description, data.count_samples(samples))


def _iter_tensor_pairs(
    prepared: PreparedModel, session: LoweredSession, feeds: Sequence[_Feed], names: Sequence[str]
) -> Iterator[tuple[_Feed, _Feed, int]]:
    """Run both models batch by batch.

    Yields
    ------
    expected : dict of str to numpy.ndarray
        The tensors `names` of the user's model.
    actual : dict of str to numpy.ndarray
        The same of `session`, dequantized.
    count : int
        Number of samples in the batch.
    """
    batch_size = prepared.comparison_batch_size
    batches = (batch for feed in feeds for batch in prepared.data.split_feeds(feed, batch_size))
    for batch in batches:
        expected = prepared.float_outputs.outputs(batch)
        yield expected, session.run_real(batch, names), prepared.data.count_samples(batch)


def _select(feed: _Feed, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a feed whose names are in `names`."""
    return {name: array for name, array in feed.items() if name in names}


class _FloatSession:
    """The user's float model with the interface of a session."""

    def __init__(self, prepared: PreparedModel) -> None:
        """Keep the original model and its runner."""
        self.model = prepared.original
        self.inputs = get_input_specs(prepared.original)
        self._runner: FloatRunner = prepared.source

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run the model on `feeds` and return the tensors `names`, or all outputs if None."""
        tensors = {name: array for name, array, _ in self._runner.run(feeds, names)}
        return [tensors[name] for name in names or tensors]


def _iter_stream_pairs(
    prepared: PreparedModel, session: Session, feeds: Sequence[_Feed]
) -> Iterator[tuple[_Feed, _Feed, int]]:
    """Run both models call by call, feeding back the states of each.

    States restart from zero, or from the feed, if a feed contains states or another batch size than
    the previous one.

    Yields
    ------
    expected, actual : dict of str to numpy.ndarray
        Outputs and states of the user's model and of `session`.
    count : int
        Number of streams in the call.
    """
    state = dict(prepared.conf.state)
    outputs = ir.get_output_names(prepared.original)
    names = list(dict.fromkeys([*outputs, *state]))
    session_inputs = {spec.name for spec in session.inputs}
    float_stream = Stream(_FloatSession(prepared), state)
    integer_stream = Stream(session, state)
    state_inputs = set(state.values())
    previous_counts: tuple[int, ...] | None = None
    for feed in feeds:
        states = _select(feed, state_inputs)
        inputs = _select(feed, feed.keys() - state_inputs)
        counts = tuple(
            prepared.data.inputs[name].count_samples(array) for name, array in inputs.items()
        )
        if states or counts != previous_counts:
            float_stream.reset(states)
            integer_stream.reset(states)
        previous_counts = counts
        integer_inputs = _select(inputs, session_inputs)
        expected = dict(zip(names, float_stream.run(names, inputs), strict=True))
        actual = dict(zip(names, integer_stream.run(names, integer_inputs), strict=True))
        yield expected, actual, max(counts, default=1)


# ---- states that do not change -------------------------------------------------------------------


class _StateRanges:
    """Ranges of every element of a state over the calls, in the float model and in integers."""

    def __init__(self) -> None:
        """Start without calls."""
        self._ranges: list[tuple[np.ndarray, np.ndarray]] = []  # (low, high), float and integer

    def add(self, expected: np.ndarray, actual: np.ndarray) -> None:
        """Add the states of one call; if their shapes change, earlier calls are dropped."""
        arrays = (expected, actual)
        shapes = [low.shape for low, _ in self._ranges]
        if shapes != [array.shape for array in arrays]:
            self._ranges = [(array, array) for array in arrays]
            return
        ranges = zip(self._ranges, arrays, strict=True)
        self._ranges = [
            (np.minimum(low, array), np.maximum(high, array)) for (low, high), array in ranges
        ]

    def warnings(self, name: str) -> list[str]:
        """Return a warning if elements that change in the float model are constant in integers.

        An element changes if its range over the calls exceeds 1 % of the largest magnitude of all,
        or half of its own, and 1e-6. The warning needs a fraction of `_STUCK_SHARE` of such
        elements; else the list is empty.
        """
        if not self._ranges:
            return []
        (low, high), (integer_low, integer_high) = self._ranges
        extent = high - low
        max_abs = max(float(np.abs(high).max()), float(np.abs(low).max()), 1e-30)
        changes = extent > 0.01 * max_abs
        changes |= extent > 0.5 * np.maximum(np.abs(high), np.abs(low))
        changes &= extent > 1e-6
        is_stuck = changes & (integer_low == integer_high)
        if not changes.any() or is_stuck.sum() < _STUCK_SHARE * changes.sum():
            return []
        share = f"{int(is_stuck.sum())} of its {int(changes.sum())} changing elements are constant"
        return [f"state '{name}' does not change in integers: {share}; its scale is too coarse"]


# ---- where it breaks -----------------------------------------------------------------------------


def describe_break(
    prepared: PreparedModel,
    lowered: ir.Model,
    float_graph: ir.Model,
    session: Session,
    output: str,
) -> str:
    """Describe the node where an output breaks, or why it cannot be located; never raises.

    As `locate_break`: an explanation must not end a command.
    """
    try:
        with np.errstate(all="ignore"):
            return locate_break(prepared, lowered, float_graph, session, output)
    except Exception as error:
        return f"; the break could not be located ({type(error).__name__})"


def locate_break(
    prepared: PreparedModel,
    lowered: ir.Model,
    float_graph: ir.Model,
    session: Session,
    output: str,
) -> str:
    """Describe the node where the noise that reaches `output` rises most, in one batch.

    `session` runs the integer graph `lowered` of `float_graph`. The noise that reaches the output
    is that of `_find_noise_at_output`. Only nodes whose output is below twice `MIN_SQNR_DB` count;
    "" without one, or for a model with states a note that the error accumulates. States are those
    of the float model.
    """
    feed = prepared.data.first(prepared.comparison_batch_size)
    sqnr_db = measure_tensor_sqnr(lowered, float_graph, session, feed)
    noise = _find_relative_noise(float_graph, sqnr_db)
    noise_at_output = _find_noise_at_output(float_graph, noise, output)
    min_noise = _to_relative_noise(2 * MIN_SQNR_DB)
    break_node: ir.Node | None = None
    break_tensor, max_rise = "", 0.0
    for node in float_graph.graph:
        input_noise = _max_input_noise(node, noise_at_output)
        for name in (str(value.name) for value in node.outputs):
            rise = noise_at_output.get(name, 0.0) - input_noise
            if name in sqnr_db and rise > max_rise and noise[name] > min_noise:
                break_node, break_tensor, max_rise = node, name, rise
    if break_node is None:
        return "; the error accumulates from call to call" if prepared.calls is not None else ""
    is_dominant = max_rise >= _MIN_BREAK_SHARE * _sum_rises(float_graph, noise, noise_at_output)
    verb = "it breaks at" if is_dominant else "the error comes from many layers and rises most at"
    input_db = -10 * math.log10(_max_input_noise(break_node, noise))
    level = f"{-10 * math.log10(noise[break_tensor]):.1f} dB"
    if math.isnan(sqnr_db[break_tensor]):
        level = "not finite"
    return (
        f"; {verb} {break_node.op_type} {break_node.name} ('{break_tensor}': {level}, "
        f"{input_db:.1f} dB before it)"
    )


def _to_relative_noise(sqnr_db: float) -> float:
    """Return the noise power relative to the signal's; an SQNR of NaN counts as the lowest."""
    clamped_db = min(max(_sqnr_sort_key(sqnr_db), -_MAX_SQNR_DB), _MAX_SQNR_DB)
    return float(10 ** (-clamped_db / 10))


def _find_relative_noise(graph: ir.Model, sqnr_db: Mapping[str, float]) -> dict[str, float]:
    """Return {tensor: noise power relative to the signal's} for all outputs of nodes.

    A tensor that `sqnr_db` lacks has that of its worst input.
    """
    noise: dict[str, float] = {}
    for node in graph.graph:
        input_noise = _max_input_noise(node, noise)
        for name in (str(value.name) for value in node.outputs):
            noise[name] = _to_relative_noise(sqnr_db[name]) if name in sqnr_db else input_noise
    return noise


def _find_noise_at_output(
    graph: ir.Model, noise: Mapping[str, float], output: str
) -> dict[str, float]:
    """Return {tensor: how much of its relative noise reaches `output`}, for all it depends on.

    This is the lowest relative noise from the tensor on, along the path where that is highest: what
    a sum, a clip or a normalization removes did not reach the output.
    """
    noise_at_output = {output: noise[output]}
    for node in reversed(list(graph.graph)):
        reached = [noise_at_output.get(str(value.name), 0.0) for value in node.outputs]
        passed = max(reached, default=0.0)
        for name in _find_input_names(node):
            if passed and name in noise:
                previous = noise_at_output.get(name, 0.0)
                noise_at_output[name] = max(previous, min(noise[name], passed))
    return noise_at_output


def _sum_rises(
    graph: ir.Model, noise: Mapping[str, float], noise_at_output: Mapping[str, float]
) -> float:
    """Return the sum of what nodes on the path to an output add to the relative noise.

    Noise beyond that of the output does not count. The sum exceeds the noise of the output where
    layers add again what a clip or a normalization removed.
    """
    max_noise = max(noise_at_output.values())
    total = 0.0
    for node in graph.graph:
        input_noise = min(_max_input_noise(node, noise), max_noise)
        for name in (str(value.name) for value in node.outputs):
            if name in noise_at_output:
                total += max(min(noise[name], max_noise) - input_noise, 0.0)
    return total


def _max_input_noise(node: ir.Node, noise: Mapping[str, float]) -> float:
    """Return the highest relative noise of the inputs of a node; unknown ones count as exact."""
    exact = _to_relative_noise(math.inf)
    return max((noise.get(name, exact) for name in _find_input_names(node)), default=exact)


def _find_input_names(node: ir.Node) -> list[str]:
    """Return the names of the inputs of a node.

    Those of a Softmax include the inputs of an Add or Where before it, in whose result the large
    values of a mask hide the error of the scores.
    """
    values = list(node.inputs)
    if node.op_type in float_ops.SOFTMAX_OPS:
        mask_node = ir.producer(values[0])
        if mask_node is not None and mask_node.op_type in ("Add", "Where"):
            values += mask_node.inputs
    return [str(value.name) for value in values if value is not None]


def measure_tensor_sqnr(
    lowered: ir.Model, float_graph: ir.Model, session: Session, feed: _Feed
) -> dict[str, float]:
    """Measure the SQNR in dB of the tensors of `float_graph` that the integer graph contains.

    Returns {name in the float graph: SQNR}; `feed` are the inputs, and `session` runs `lowered`.
    Indices, tensors of another shape and those that are all zero in float are left out.
    """
    float_names = map_to_float_names(lowered)
    known = {str(value.name) for value in ir.iter_values(float_graph)}
    actual: dict[str, tuple[np.ndarray, Affine | None]] = {}
    inputs = _select(feed, {spec.name for spec in session.inputs})
    for name, array, qparams in session.tensors(inputs):
        float_name = float_names.get(name, name)
        is_number = array.dtype.kind == "f" or (array.dtype.kind == "i" and qparams is not None)
        if float_name in known and is_number:
            actual[float_name] = array, qparams
    trim_memory()
    return _compare_with_float(actual, float_graph, feed)


def _compare_with_float(
    actual: dict[str, tuple[np.ndarray, Affine | None]], float_graph: ir.Model, feed: _Feed
) -> dict[str, float]:
    """Return {tensor: SQNR in dB} against the float graph; entries are removed from `actual`.

    `actual` maps the float name to the array and its parameters (None for float). Tensors of
    another shape, those that are not float in the float graph and those that are all zero there are
    left out.
    """
    sqnr_db = {}
    for name, expected, _ in FloatRunner(float_graph, set(actual)).run(feed):
        array, qparams = actual.pop(name)
        is_comparable = expected.dtype.kind == "f" and expected.shape == array.shape
        if is_comparable and np.any(expected):
            sqnr_db[name] = measure_agreement(expected, array, qparams).sqnr
    return sqnr_db


def measure_agreement(
    expected: np.ndarray, actual: np.ndarray, qparams: Affine | None
) -> Agreement:
    """Measure the agreement of integers, or of floats if `qparams` is None, with `expected`.

    Both have the same shape. Compares in chunks of `_CHUNK_SIZE` elements to limit the memory.
    """
    agreement = Agreement()
    if qparams is not None and qparams.scales.ndim:
        actual, qparams = _dequantize_clipped(actual, qparams), None
    flat_expected, flat_actual = expected.reshape(-1), actual.reshape(-1)
    for start in range(0, flat_expected.size, _CHUNK_SIZE):
        chunk = flat_actual[start : start + _CHUNK_SIZE]
        if qparams is not None:
            chunk = _dequantize_clipped(chunk, qparams)
        agreement.add(flat_expected[start : start + _CHUNK_SIZE], chunk)
    return agreement


def _dequantize_clipped(array: np.ndarray, qparams: Affine) -> np.ndarray:
    """Dequantize to float32, clipped to its finite range."""
    clipped: np.ndarray = np.clip(qparams.real(array), -_FLOAT32_MAX, _FLOAT32_MAX)
    return clipped.astype(np.float32)
