"""How far the integer graph is from the float model: on data held back from calibration, and where it breaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import ModelError
from ...graph import ir
from ...plan import Affine
from ...run.borders import float_names
from ...run.data import Progress
from ...run.memory import release
from ...run.metrics import Agreement
from ...run.runners import FloatRunner, input_specs
from ...run.session import Session
from ...run.streaming import Stream
from ..planning.plan_record import Planned
from ..prepare.float_outputs import before_curves
from ..prepare.preparation import Prepared
from .output_parts import OutputPart, PartMeter, part_ends

__all__ = ["Fidelity", "agreement", "fidelity", "measured_tensors", "per_tensor"]

_SAMPLES = 64  # calibration samples that are taken where none were held back
_LEAST = 15.0  # dB: an output below that is worth a warning
_GOOD = 60.0  # dB: nothing is lost so far
_STILL = 0.25  # share of a state's moving elements that may stand still in integers
_PART = 1 << 20  # elements that are compared at a time
_MOST = float(np.finfo(np.float32).max)

_Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Fidelity:
    """What `fidelity` found: per output cosine and SQNR, what it was measured on, and warnings.

    doubts : {output: why its figures say little}. lossy : whether an output is so far off that something must be done.
    parts : of outputs that join several tensors (`part_ends`), how far each part is. errors : float64 [outputs, n],
    summed squares of each sample, or of each piece where an output has no samples on its first axis. power : float64
    [outputs], of the float model. inner_errors, inner_power : the same of `measured_tensors`.
    """

    outputs: Mapping[str, Mapping[str, float]]
    on: str
    warnings: Sequence[str]
    doubts: Mapping[str, str] = field(default_factory=dict)
    lossy: bool = False
    parts: Sequence[OutputPart] = ()
    errors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)), compare=False)
    power: np.ndarray = field(default_factory=lambda: np.zeros(0), compare=False)
    inner_errors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)), compare=False)
    inner_power: np.ndarray = field(default_factory=lambda: np.zeros(0), compare=False)

    @property
    def inner_level(self) -> float:
        """The least SQNR of `measured_tensors`, dB."""
        noise, tiny = self.inner_errors.sum(axis=1), np.finfo(float).tiny
        levels = 10 * np.log10(np.maximum(self.inner_power, tiny) / np.maximum(noise, tiny))
        return float(levels.min(initial=math.inf))


def measured_tensors(planned: Planned) -> list[str]:
    """Return the tensors of the user's model that trials are measured at: its outputs, or what their curves read."""
    kept = planned.plan.tensors.keys() - planned.plan.transforms.keys()
    pairs = before_curves(planned.original).items()
    return list(dict.fromkeys(source if source in kept else name for name, source in pairs))


def fidelity(
    prepared: Prepared,
    planned: Planned,
    lowered: ir.Graph,
    session: Session,
    progress: Progress | None,
    explain: bool = True,
) -> Fidelity:
    """Compare the outputs of the user's model and of `session`, which runs `lowered`, the graph of `planned`.

    explain : whether a warning says where an output breaks,
    for which all tensors are compared. States are fed back on both sides, each its own, from zero on.
    """
    names = [str(v.name) for v in prepared.original.graph.outputs]
    agreements = {name: Agreement() for name in names}
    varied = {name: _Varied() for name in names}
    made_of = {name: PartMeter(name, ends) for name, ends in part_ends(prepared.graph).items() if name in agreements}
    feeds, on = _data(prepared)
    if progress is not None:
        progress("comparing", 0, None)
    state = dict(prepared.conf.state)
    inner = names if state else measured_tensors(planned)
    moves = {name: _StateMoves() for name in state}
    wanted = list(dict.fromkeys([*names, *inner]))
    both = _streams(prepared, session, feeds) if state else _single(prepared, session, feeds, wanted)
    errors, inner_errors = _Squares(names), _Squares(inner)
    for want, have, count in both:
        for name in names:
            if want[name].shape != have[name].shape:
                raise ModelError(
                    f"output '{name}' has no batch axis: it does not depend on the input, or mixes samples; take it "
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
    low = {name: a.sqnr for name, a in agreements.items() if not a.sqnr >= _LEAST}
    if low:
        where = _explained(lambda: _breaks(prepared, lowered, planned.graph, session)) if explain else ""
        warnings.insert(0, _far(low) + where)
    parts = [part for one in made_of.values() for part in one.parts]
    warnings += _lost(parts, {name: a.sqnr for name, a in agreements.items()})
    what = "sample" if prepared.calls is None else "call"
    number = len(feeds) if prepared.calls is not None else _count(prepared, feeds)
    doubts = {name: doubt for name, moved in varied.items() if (doubt := moved.doubt(number, what))}
    return Fidelity(
        outputs={name: {"cosine": a.cosine, "sqnr": a.sqnr} for name, a in agreements.items()},
        on=on,
        warnings=warnings,
        doubts=doubts,
        lossy=bool(low),
        parts=parts,
        errors=errors.all,
        power=errors.power,
        inner_errors=inner_errors.all,
        inner_power=inner_errors.power,
    )


def _far(low: Mapping[str, float]) -> str:
    """Return a line for the worst of the outputs whose levels are `low`."""
    worst = min(low, key=lambda name: _order(low[name]))
    more = f" (and {len(low) - 1} more below {_LEAST:g} dB)" if len(low) > 1 else ""
    return f"output '{worst}' is {_off(low[worst])}{more}"


class _Squares:
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
        self._parts.append(np.stack([_each(want[name], have[name], rows) for name in self._names]))
        self.power += [float(_each(want[name], np.zeros(()), 1)[0]) for name in self._names]


def _each(want: np.ndarray, have: np.ndarray, rows: int) -> np.ndarray:
    """Return the summed squared errors of `rows` parts along axis 0, float64; none where `want` is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.where(np.isfinite(want), want.astype(np.float64) - have, 0.0).reshape(rows, -1)
        return np.asarray(np.einsum("ij,ij->i", error, error))


def _lost(parts: Sequence[OutputPart], whole: Mapping[str, float]) -> list[str]:
    """Return a line for the worst part of each output of which a part is far off, though the whole is not."""
    worst: dict[str, OutputPart] = {}
    for part in parts:
        if not part.sqnr >= _LEAST and whole[part.output] >= _LEAST:
            worst[part.output] = min(worst.get(part.output, part), part, key=lambda p: _order(p.sqnr))
    return [
        f"output '{name}': {part} is {_off(part.sqnr)}, which {whole[name]:.1f} dB of the whole do not show"
        for name, part in worst.items()
    ]


class _Varied:
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
        self._varies = not alike or not np.array_equal(rows, np.broadcast_to(self._first, rows.shape), equal_nan=True)

    def doubt(self, count: int, what: str) -> str:
        """Return why a figure from `count` samples says little, nothing where it does not."""
        if count == 1:
            return f"from 1 {what}"
        return "" if self._varies else f"every {what} gives the same output: no more than from 1 {what}"


def _order(level: float) -> float:
    """Return what sorts levels in dB: what is not finite is the worst."""
    return -math.inf if math.isnan(level) else level


def _off(level: float) -> str:
    if math.isnan(level):
        return "not finite where the float model's is"
    return "not 0 as in the float model" if level == -math.inf else f"{level:.1f} dB from the float model"


def _explained(explain: Callable[[], str]) -> str:
    """Return an explanation, and where finding it fails, words on that: what only explains never ends a command."""
    try:
        with np.errstate(all="ignore"):
            return explain()
    except Exception as error:
        return f"; where it breaks could not be found ({type(error).__name__})"


def _data(prepared: Prepared) -> tuple[list[dict[str, np.ndarray]], str]:
    """Return what to measure on, and what the report calls it."""
    if prepared.calls is not None:
        feeds = list(prepared.calls.again)
        if prepared.synthetic:
            return feeds, f"on {len(feeds)} synthetic calls"
        source = "held back from calibration" if prepared.calls.held else "of the calibration data"
        return feeds, f"on {len(feeds)} calls {source}"
    data = prepared.data
    if held_back := data.held():
        return held_back, f"on {_count(prepared, held_back)} samples held back from calibration"
    on = "on synthetic inputs" if prepared.synthetic else "on the calibration data"
    return [feeds for feeds, _ in data.peek(_SAMPLES)], on


def _count(prepared: Prepared, feeds: Sequence[_Feed]) -> int:
    return sum(_size(prepared, feed) for feed in feeds)


def _size(prepared: Prepared, feed: _Feed) -> int:
    """Return the number of samples of a feed."""
    return max((prepared.data.inputs[name].count(array) for name, array in feed.items()), default=1)


def _single(
    prepared: Prepared, session: Session, feeds: Sequence[_Feed], names: Sequence[str]
) -> Iterator[tuple[_Feed, _Feed, int]]:
    """Yield the tensors `names` of the user's model and of `session`, piece after piece, and its number of samples."""
    takes = {spec.name for spec in session.inputs}  # an input that nobody reads may be left out
    what = "held" if prepared.data.held() else "first"
    for number, part in enumerate(part for feed in feeds for part in prepared.data.pieces(feed, prepared.few)):
        want = prepared.float_outputs.outputs(what, number, part)
        inputs = {name: array for name, array in part.items() if name in takes}
        tensors = session.tensors(inputs, names)
        yield want, {n: a if q is None else q.real(a) for n, a, q in tensors}, _size(prepared, part)


class _FloatFace:
    """The user's model with the face of a session."""

    def __init__(self, prepared: Prepared) -> None:
        self.model = prepared.original
        self.inputs = input_specs(prepared.original)
        self._runner: FloatRunner = prepared.source

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the named tensors."""
        tensors = {name: array for name, array, _ in self._runner.run(feeds, names)}
        return [tensors[name] for name in names or tensors]


def _streams(prepared: Prepared, session: Session, feeds: Sequence[_Feed]) -> Iterator[tuple[_Feed, _Feed, int]]:
    """Yield the outputs and states of call after call, and its number of streams."""
    state = dict(prepared.conf.state)
    outputs = [str(v.name) for v in prepared.original.graph.outputs]
    wanted = list(dict.fromkeys([*outputs, *state]))
    takes = {spec.name for spec in session.inputs}
    sides = [Stream(_FloatFace(prepared), state), Stream(session, state)]
    before: tuple[int, ...] | None = None
    for feed in feeds:
        states = {name: array for name, array in feed.items() if name in state.values()}
        rest = {name: array for name, array in feed.items() if name not in states}
        shape = tuple(prepared.data.inputs[name].count(array) for name, array in rest.items())
        pair = []
        for side, names in zip(sides, (set(rest), takes), strict=True):
            if states or shape != before:
                side.reset(states)
            inputs = {name: array for name, array in rest.items() if name in names}
            pair.append(dict(zip(wanted, side.run(wanted, inputs), strict=True)))
        before = shape
        yield pair[0], pair[1], max(shape, default=1)


# ---- states that stand still -------------------------------------------------------------------------------------


class _StateMoves:
    """The range of every element of a state over the calls, float and integer."""

    def __init__(self) -> None:
        self._ranges: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, want: np.ndarray, have: np.ndarray) -> None:
        """Take in one call."""
        pair = (want, have)
        if not self._ranges or any(low.shape != a.shape for (low, _), a in zip(self._ranges, pair, strict=True)):
            self._ranges = [(a, a) for a in pair]
            return
        self._ranges = [
            (np.minimum(low, a), np.maximum(high, a)) for (low, high), a in zip(self._ranges, pair, strict=True)
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
        if not moves.any() or still.sum() < _STILL * moves.sum():
            return []
        share = f"{int(still.sum())} of its {int(moves.sum())} moving elements never change"
        return [f"state '{name}' stands still in integers: {share}; its scale is too coarse for them"]


# ---- where it breaks ---------------------------------------------------------------------------------------------


def _breaks(prepared: Prepared, lowered: ir.Graph, exact: ir.Graph, session: Session) -> str:
    """Return words on the tensor that loses most against what it is made of, in one call with the float's states."""
    feed = prepared.data.first(prepared.few)
    levels = per_tensor(lowered, exact, session, feed)
    worst, most, ends = "", 0.0, 0.0
    reach: dict[str, float] = {}  # a tensor that was not seen is as good as the worst it is made of
    for node in exact.graph:
        before = min((reach.get(str(v.name), _GOOD) for v in node.inputs if v is not None), default=_GOOD)
        for value in node.outputs:
            name = str(value.name)
            now = reach[name] = min(max(_order(levels.get(name, before)), -_GOOD), _GOOD)
            if name in levels and before - now > most and now < 2 * _LEAST:
                worst, most, ends = name, before - now, now
    if not worst:
        return "; the error builds up from call to call" if prepared.calls is not None else ""
    writer = next(node for node in exact.graph if any(str(v.name) == worst for v in node.outputs))
    level = "not finite" if math.isnan(levels[worst]) else f"{ends:.1f} dB"
    return f"; it breaks at {writer.op_type} {writer.name} ('{worst}': {level}, {ends + most:.1f} dB before it)"


def per_tensor(lowered: ir.Graph, exact: ir.Graph, session: Session, feed: _Feed) -> dict[str, float]:
    """Return {tensor of `exact`: SQNR in dB} of those that the integer graph holds."""
    takes = {spec.name for spec in session.inputs}
    floats = float_names(lowered)
    known = {str(v.name) for v in ir.values(exact)}
    have: dict[str, tuple[np.ndarray, Affine | None]] = {}
    for name, array, q in session.tensors({n: a for n, a in feed.items() if n in takes}):
        user = floats.get(name, name)
        if user in known and array.dtype.kind in "fi" and (q is not None or array.dtype.kind == "f"):
            have[user] = array, q
    release()
    levels = {}
    for name, want, _ in FloatRunner(exact, set(have)).run(feed):
        array, q = have.pop(name)
        if want.dtype.kind == "f" and want.shape == array.shape and np.any(want):
            levels[name] = agreement(want, array, q).sqnr
    return levels


def agreement(want: np.ndarray, array: np.ndarray, q: Affine | None) -> Agreement:
    """Return how far integers, or reals that nothing holds, are from `want`; some at a time, if there are many."""
    found = Agreement()
    if q is not None and q.scales.ndim:
        array, q = _reals(array, q), None
    flat, other = want.reshape(-1), array.reshape(-1)
    for start in range(0, flat.size, _PART):
        part = other[start : start + _PART]
        found.add(flat[start : start + _PART], part if q is None else _reals(part, q))
    return found


def _reals(array: np.ndarray, q: Affine) -> np.ndarray:
    return np.clip(q.real(array), -_MOST, _MOST).astype(np.float32)
