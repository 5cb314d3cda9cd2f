"""How far the integer graph is from the float model.

On data held back from calibration, and where it breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import ModelError
from ...graph import ir
from ...plan import Affine
from ...run.data import Progress
from ...run.float_names import map_to_float_names
from ...run.memory import trim_memory
from ...run.metrics import Agreement
from ...run.runners import FloatRunner, get_input_specs
from ...run.session import Session
from ...run.streaming import Stream
from ..planning.planned_model import PlannedModel
from ..prepare.float_outputs import map_outputs_to_logits
from ..prepare.preparation import PreparedModel
from .output_parts import OutputPart, PartAgreement, find_part_boundaries

__all__ = [
    "Fidelity",
    "measure_agreement",
    "measure_fidelity",
    "measure_tensor_sqnr",
    "select_measured_tensors",
]

_SAMPLES = 64  # calibration samples that are taken where none were held back
_MIN_SQNR_DB = 15.0  # dB: an output below that is worth a warning
_MAX_SQNR_DB = 60.0  # dB: nothing is lost so far
_STUCK_SHARE = 0.25  # share of a state's moving elements that may stand still in integers
_CHUNK_SIZE = 1 << 20  # elements that are compared at a time
_FLOAT32_MAX = float(np.finfo(np.float32).max)

_Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Fidelity:
    """What `measure_fidelity` found.

    Per output cosine and SQNR, what it was measured on, and warnings.
    doubts : {output: why its figures say little}. lossy : whether an output is so far off that
    something must be done. parts : of outputs that join several tensors (`find_part_boundaries`),
    how far each part is. errors : float64 [outputs, n], summed squares of each sample, or of each
    piece where an output has no samples on its first axis. power : float64 [outputs], of the float
    model. inner_errors, measured_power : the same of `select_measured_tensors`.
    """

    outputs: Mapping[str, Mapping[str, float]]
    measured_on: str
    warnings: Sequence[str]
    doubts: Mapping[str, str] = field(default_factory=dict)
    is_lossy: bool = False
    parts: Sequence[OutputPart] = ()
    errors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)), compare=False)
    power: np.ndarray = field(default_factory=lambda: np.zeros(0), compare=False)
    measured_errors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)), compare=False)
    measured_power: np.ndarray = field(default_factory=lambda: np.zeros(0), compare=False)

    @property
    def min_measured_sqnr_db(self) -> float:
        """The least SQNR of `select_measured_tensors`, dB."""
        noise, tiny = self.measured_errors.sum(axis=1), np.finfo(float).tiny
        levels = 10 * np.log10(np.maximum(self.measured_power, tiny) / np.maximum(noise, tiny))
        return float(levels.min(initial=math.inf))


def select_measured_tensors(planned: PlannedModel) -> list[str]:
    """Return the tensors of the user's model that trials are measured at.

    Its outputs, or what their curves read.
    """
    kept = planned.plan.tensors.keys() - planned.plan.transforms.keys()
    pairs = map_outputs_to_logits(planned.original).items()
    return list(dict.fromkeys(source if source in kept else name for name, source in pairs))


def measure_fidelity(
    prepared: PreparedModel,
    planned: PlannedModel,
    lowered: ir.Model,
    session: Session,
    progress: Progress | None,
    locate_break: bool = True,
) -> Fidelity:
    """Compare the outputs of the user's model and of `session`, which runs `lowered`, the graph of `planned`.

    locate_break : whether a warning says where an output breaks,
    for which all tensors are compared. States are fed back on both sides, each its own, from zero
    on.
    """
    names = [str(v.name) for v in prepared.original.graph.outputs]
    agreements = {name: Agreement() for name in names}
    varied = {name: _VariationCheck() for name in names}
    made_of = {
        name: PartAgreement(name, ends)
        for name, ends in find_part_boundaries(prepared.graph).items()
        if name in agreements
    }
    feeds, on = _select_evaluation_data(prepared)
    if progress is not None:
        progress("comparing", 0, None)
    state = dict(prepared.conf.state)
    inner = names if state else select_measured_tensors(planned)
    moves = {name: _StateRanges() for name in state}
    wanted = list(dict.fromkeys([*names, *inner]))
    both = (
        _iter_stream_pairs(prepared, session, feeds)
        if state
        else _iter_tensor_pairs(prepared, session, feeds, wanted)
    )
    errors, inner_errors = _SquaredErrors(names), _SquaredErrors(inner)
    for want, have, count in both:
        for name in names:
            if want[name].shape != have[name].shape:
                raise ModelError(
                    f"output '{name}' has no batch axis: it does not depend on the input, or mixes "
                    "samples; take it "
                    "out of the graph's outputs"
                )
            agreements[name].add(want[name], have[name])
            varied[name].add(want[name])
            if name in made_of:
                made_of[name].add(want[name], have[name])
        errors.add(want, have, count)
        inner_errors.add(want, have, count)
        for name, moved in moves.items():
            moved.add(want[name], have[name])
    warnings = [warning for name, moved in moves.items() for warning in moved.warnings(name)]
    low = {name: a.sqnr for name, a in agreements.items() if not a.sqnr >= _MIN_SQNR_DB}
    if low:
        where = (
            _explain_safely(lambda: _locate_break(prepared, lowered, planned.graph, session))
            if locate_break
            else ""
        )
        warnings.insert(0, _format_low_sqnr(low) + where)
    parts = [part for one in made_of.values() for part in one.parts]
    warnings += _format_lost_parts(parts, {name: a.sqnr for name, a in agreements.items()})
    what = "sample" if prepared.calls is None else "call"
    number = len(feeds) if prepared.calls is not None else _count_samples(prepared, feeds)
    doubts = {name: doubt for name, moved in varied.items() if (doubt := moved.doubt(number, what))}
    return Fidelity(
        outputs={name: {"cosine": a.cosine, "sqnr": a.sqnr} for name, a in agreements.items()},
        measured_on=on,
        warnings=warnings,
        doubts=doubts,
        is_lossy=bool(low),
        parts=parts,
        errors=errors.all,
        power=errors.power,
        measured_errors=inner_errors.all,
        measured_power=inner_errors.power,
    )


def _format_low_sqnr(low: Mapping[str, float]) -> str:
    """Return a line for the worst of the outputs whose levels are `low`."""
    worst = min(low, key=lambda name: _sqnr_sort_key(low[name]))
    more = f" (and {len(low) - 1} more below {_MIN_SQNR_DB:g} dB)" if len(low) > 1 else ""
    return f"output '{worst}' is {_format_distance(low[worst])}{more}"


class _SquaredErrors:
    """The summed squared errors of the tensors `names`, sample by sample, and the power of the float model's."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._parts = [np.zeros((len(names), 0))]
        self.power = np.zeros(len(names))

    @property
    def all(self) -> np.ndarray:
        """float64 [names, n]."""
        return np.hstack(self._parts)

    def add(self, want: _Feed, have: _Feed, count: int) -> None:
        """Take in `count` samples; they are one where a tensor has no samples on its first axis."""
        rows = count if all(want[name].shape[:1] == (count,) for name in self._names) else 1
        self._parts.append(
            np.stack([_squared_error_per_row(want[name], have[name], rows) for name in self._names])
        )
        self.power += [
            float(_squared_error_per_row(want[name], np.zeros(()), 1)[0]) for name in self._names
        ]


def _squared_error_per_row(want: np.ndarray, have: np.ndarray, rows: int) -> np.ndarray:
    """Return the summed squared errors of `rows` parts along axis 0, float64.

    None where `want` is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.where(np.isfinite(want), want.astype(np.float64) - have, 0.0).reshape(rows, -1)
        return np.asarray(np.einsum("ij,ij->i", error, error))


def _format_lost_parts(parts: Sequence[OutputPart], whole: Mapping[str, float]) -> list[str]:
    """Return a line for the worst part of each output of which a part is far off, though the whole is not."""
    worst: dict[str, OutputPart] = {}
    for part in parts:
        if not part.sqnr >= _MIN_SQNR_DB and whole[part.output] >= _MIN_SQNR_DB:
            worst[part.output] = min(
                worst.get(part.output, part), part, key=lambda p: _sqnr_sort_key(p.sqnr)
            )
    return [
        (
            f"output '{name}': {part} is {_format_distance(part.sqnr)}, which {whole[name]:.1f} dB of "
            "the whole do not show"
        )
        for name, part in worst.items()
    ]


class _VariationCheck:
    """Whether an output is another one for some sample."""

    def __init__(self) -> None:
        self._first: np.ndarray | None = None
        self._varies = False

    def add(self, array: np.ndarray) -> None:
        """Take in a batch, samples on axis 0."""
        rows = array if array.ndim else array[None]
        if self._varies or not len(rows):
            return
        self._first = rows[:1].copy() if self._first is None else self._first
        alike = rows.shape[1:] == self._first.shape[1:]
        self._varies = not alike or not np.array_equal(
            rows, np.broadcast_to(self._first, rows.shape), equal_nan=True
        )

    def doubt(self, count: int, what: str) -> str:
        """Return why a figure from `count` samples says little, nothing where it does not."""
        if count == 1:
            return f"from 1 {what}"
        return (
            ""
            if self._varies
            else f"every {what} gives the same output: no more than from 1 {what}"
        )


def _sqnr_sort_key(level: float) -> float:
    """Return what sorts levels in dB: what is not finite is the worst."""
    return -math.inf if math.isnan(level) else level


def _format_distance(level: float) -> str:
    if math.isnan(level):
        return "not finite where the float model's is"
    return (
        "not 0 as in the float model"
        if level == -math.inf
        else f"{level:.1f} dB from the float model"
    )


def _explain_safely(explain: Callable[[], str]) -> str:
    """Return an explanation, and where finding it fails, words on that.

    What only explains never ends a command.
    """
    try:
        with np.errstate(all="ignore"):
            return explain()
    except Exception as error:
        return f"; where it breaks could not be found ({type(error).__name__})"


def _select_evaluation_data(prepared: PreparedModel) -> tuple[list[dict[str, np.ndarray]], str]:
    """Return what to measure on, and what the report calls it."""
    if prepared.calls is not None:
        feeds = list(prepared.calls.evaluation_calls)
        if prepared.synthetic:
            return feeds, f"on {len(feeds)} synthetic calls"
        source = "held back from calibration" if prepared.calls.held else "of the calibration data"
        return feeds, f"on {len(feeds)} calls {source}"
    data = prepared.data
    if held_back := data.held():
        return (
            held_back,
            f"on {_count_samples(prepared, held_back)} samples held back from calibration",
        )
    on = "on synthetic inputs" if prepared.synthetic else "on the calibration data"
    return [feeds for feeds, _ in data.peek_batch(_SAMPLES)], on


def _count_samples(prepared: PreparedModel, feeds: Sequence[_Feed]) -> int:
    return sum(_samples_in_feed(prepared, feed) for feed in feeds)


def _samples_in_feed(prepared: PreparedModel, feed: _Feed) -> int:
    """Return the number of samples of a feed."""
    return max(
        (prepared.data.inputs[name].count_samples(array) for name, array in feed.items()), default=1
    )


def _iter_tensor_pairs(
    prepared: PreparedModel, session: Session, feeds: Sequence[_Feed], names: Sequence[str]
) -> Iterator[tuple[_Feed, _Feed, int]]:
    """Yield the tensors `names` of the user's model and of `session`, piece after piece, and its number of samples."""
    takes = {spec.name for spec in session.inputs}  # an input that nobody reads may be left out
    what = "held" if prepared.data.held() else "first"
    for number, part in enumerate(
        part
        for feed in feeds
        for part in prepared.data.split_feeds(feed, prepared.comparison_batch_size)
    ):
        want = prepared.float_outputs.outputs(what, number, part)
        inputs = {name: array for name, array in part.items() if name in takes}
        tensors = session.tensors(inputs, names)
        yield (
            want,
            {n: a if q is None else q.real(a) for n, a, q in tensors},
            _samples_in_feed(prepared, part),
        )


class _FloatSession:
    """The user's model with the face of a session."""

    def __init__(self, prepared: PreparedModel) -> None:
        self.model = prepared.original
        self.inputs = get_input_specs(prepared.original)
        self._runner: FloatRunner = prepared.source

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the named tensors."""
        tensors = {name: array for name, array, _ in self._runner.run(feeds, names)}
        return [tensors[name] for name in names or tensors]


def _iter_stream_pairs(
    prepared: PreparedModel, session: Session, feeds: Sequence[_Feed]
) -> Iterator[tuple[_Feed, _Feed, int]]:
    """Yield the outputs and states of call after call, and its number of streams."""
    state = dict(prepared.conf.state)
    outputs = [str(v.name) for v in prepared.original.graph.outputs]
    wanted = list(dict.fromkeys([*outputs, *state]))
    takes = {spec.name for spec in session.inputs}
    sides = [Stream(_FloatSession(prepared), state), Stream(session, state)]
    before: tuple[int, ...] | None = None
    for feed in feeds:
        states = {name: array for name, array in feed.items() if name in state.values()}
        rest = {name: array for name, array in feed.items() if name not in states}
        shape = tuple(
            prepared.data.inputs[name].count_samples(array) for name, array in rest.items()
        )
        pair = []
        for side, names in zip(sides, (set(rest), takes), strict=True):
            if states or shape != before:
                side.reset(states)
            inputs = {name: array for name, array in rest.items() if name in names}
            pair.append(dict(zip(wanted, side.run(wanted, inputs), strict=True)))
        before = shape
        yield pair[0], pair[1], max(shape, default=1)


# ---- states that stand still ---------------------------------------------------------------------


class _StateRanges:
    """The range of every element of a state over the calls, float and integer."""

    def __init__(self) -> None:
        self._ranges: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, want: np.ndarray, have: np.ndarray) -> None:
        """Take in one call."""
        pair = (want, have)
        if not self._ranges or any(
            low.shape != a.shape for (low, _), a in zip(self._ranges, pair, strict=True)
        ):
            self._ranges = [(a, a) for a in pair]
            return
        self._ranges = [
            (np.minimum(low, a), np.maximum(high, a))
            for (low, high), a in zip(self._ranges, pair, strict=True)
        ]

    def warnings(self, name: str) -> list[str]:
        """Return a line where elements that move in the float model do not in integers."""
        if not self._ranges:
            return []
        (low, high), (least, most) = self._ranges
        moves = high - low > 0.01 * max(float(np.abs(high).max()), float(np.abs(low).max()), 1e-30)
        moves |= high - low > 0.5 * np.maximum(np.abs(high), np.abs(low))
        moves &= high - low > 1e-6
        still = moves & (least == most)
        if not moves.any() or still.sum() < _STUCK_SHARE * moves.sum():
            return []
        share = f"{int(still.sum())} of its {int(moves.sum())} moving elements never change"
        return [
            f"state '{name}' stands still in integers: {share}; its scale is too coarse for them"
        ]


# ---- where it breaks -----------------------------------------------------------------------------


def _locate_break(
    prepared: PreparedModel, lowered: ir.Model, float_graph: ir.Model, session: Session
) -> str:
    """Return words on the tensor that loses most against what it is made of, in one call with the float's states."""
    feed = prepared.data.first(prepared.comparison_batch_size)
    levels = measure_tensor_sqnr(lowered, float_graph, session, feed)
    worst, most, ends = "", 0.0, 0.0
    reach: dict[str, float] = {}  # a tensor that was not seen is as good as the worst it is made of
    for node in float_graph.graph:
        before = min(
            (reach.get(str(v.name), _MAX_SQNR_DB) for v in node.inputs if v is not None),
            default=_MAX_SQNR_DB,
        )
        for value in node.outputs:
            name = str(value.name)
            now = reach[name] = min(
                max(_sqnr_sort_key(levels.get(name, before)), -_MAX_SQNR_DB), _MAX_SQNR_DB
            )
            if name in levels and before - now > most and now < 2 * _MIN_SQNR_DB:
                worst, most, ends = name, before - now, now
    if not worst:
        return "; the error builds up from call to call" if prepared.calls is not None else ""
    writer = next(
        node for node in float_graph.graph if any(str(v.name) == worst for v in node.outputs)
    )
    level = "not finite" if math.isnan(levels[worst]) else f"{ends:.1f} dB"
    return (
        f"; it breaks at {writer.op_type} {writer.name} ('{worst}': {level}, {ends + most:.1f} "
        "dB before it)"
    )


def measure_tensor_sqnr(
    lowered: ir.Model, float_graph: ir.Model, session: Session, feed: _Feed
) -> dict[str, float]:
    """Return {tensor of `float_graph`: SQNR in dB} of those that the integer graph holds."""
    takes = {spec.name for spec in session.inputs}
    floats = map_to_float_names(lowered)
    known = {str(v.name) for v in ir.iter_values(float_graph)}
    have: dict[str, tuple[np.ndarray, Affine | None]] = {}
    for name, array, q in session.tensors({n: a for n, a in feed.items() if n in takes}):
        user = floats.get(name, name)
        if (
            user in known
            and array.dtype.kind in "fi"
            and (q is not None or array.dtype.kind == "f")
        ):
            have[user] = array, q
    trim_memory()
    levels = {}
    for name, want, _ in FloatRunner(float_graph, set(have)).run(feed):
        array, q = have.pop(name)
        if want.dtype.kind == "f" and want.shape == array.shape and np.any(want):
            levels[name] = measure_agreement(want, array, q).sqnr
    return levels


def measure_agreement(want: np.ndarray, array: np.ndarray, qparams: Affine | None) -> Agreement:
    """Return how far integers, or reals that nothing holds, are from `want`.

    Some at a time, if there are many.
    """
    found = Agreement()
    if qparams is not None and qparams.scales.ndim:
        array, qparams = _dequantize_clipped(array, qparams), None
    flat, other = want.reshape(-1), array.reshape(-1)
    for start in range(0, flat.size, _CHUNK_SIZE):
        part = other[start : start + _CHUNK_SIZE]
        found.add(
            flat[start : start + _CHUNK_SIZE],
            part if qparams is None else _dequantize_clipped(part, qparams),
        )
    return found


def _dequantize_clipped(array: np.ndarray, qparams: Affine) -> np.ndarray:
    return np.clip(qparams.real(array), -_FLOAT32_MAX, _FLOAT32_MAX).astype(np.float32)
