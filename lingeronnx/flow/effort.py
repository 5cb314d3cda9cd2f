"""What `effort: best` adds: methods that take longer, each kept where it is better on data that it did not see.

A part of the calibration samples is set aside. Method after method works on the others, on top of what was kept so far,
and is kept where the outputs come nearer to the float model's on the samples set aside. What was kept is then done once
more with all calibration samples. Where samples are held back from calibration, these have the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..graph import ir
from ..plan import Plan, real
from ..run.data import Progress
from ..run.memory import bytes_per_sample, piece, release
from ..run.metrics import Agreement
from ..run.session import lowered_session
from .assign import tie_classes, tops
from .complete import Compared, compared
from .improve.exponents import scales_by_outputs
from .improve.refine import Methods
from .lower import lower
from .planned import Planned
from .refined import refined, samples

__all__ = ["noted", "score", "with_best_effort"]

_CAP = 100.0  # dB: beyond that nothing is gained
_PERIOD, _ASIDE = 16, 4  # of every 16 samples the last 4 are set aside
_CLEAR = 0.02  # dB that a method gains at least
_FEW = 64  # samples that scales are chosen on
_CURVES = ("LogSoftmax", "Sigmoid", "Softmax")  # behind these, rare values tell nearly all of the error

_Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _State:
    """A plan with its weights refined on some of the samples, and how near it comes on those set aside.

    score : the least SQNR of the outputs, and the mean.
    """

    planned: Planned
    methods: Methods
    exact: ir.Graph
    score: tuple[float, float]


def with_best_effort(made: Compared, progress: Progress | None = None) -> Compared:
    """Return `made`, or the same model with other scales and weights, where the methods bring its outputs nearer.

    A note says of each method what it gained.
    """
    planned = made.planned
    if planned.prepared.weights_fixed:  # weights that another tool has quantized stay as they are
        return made
    feeds = samples(planned)
    count = max((len(array) for array in feeds.values()), default=0)
    if count < _PERIOD:
        return noted(made, [f"effort best: {count} calibration samples are too few to choose methods by"])
    trials = _Trials(planned, feeds, count)
    best, notes = trials.state(planned, Methods()), []
    for name, method in _METHODS:
        if progress is not None:
            progress(name, 0, None)
        other = method(trials, best)
        gain = 0.0 if other is None else other.score[1] - best.score[1]
        kept = other is not None and gain >= _CLEAR and other.score[0] >= best.score[0]
        end = "" if kept else ", and was not kept"
        notes.append(f"effort best: {name} gave {gain:+.2f} dB on {trials.aside} samples set aside{end}")
        best = other if kept and other is not None else best
    if best.planned is planned and best.methods == Methods():
        return noted(made, notes)
    final = compared(best.planned, refined(best.planned, best.methods), progress)
    if planned.prepared.data.held() and (why := _worse(made, final)):
        return noted(made, [*notes, why])
    return noted(final, notes)


def noted(made: Compared, notes: Sequence[str]) -> Compared:
    """Return `made` with more notes in its report."""
    return replace(made, planned=replace(made.planned, notes=[*made.planned.notes, *notes]))


def _worse(made: Compared, other: Compared) -> str:
    """Return a note where `other` is not better on the samples held back from calibration, nothing where it is."""
    (worst, mean), (least, new) = score(made), score(other)
    if least >= worst and new > mean:
        return ""
    return f"effort best: nothing of this was kept, it gave {new - mean:+.2f} dB {made.seen.on}"


def score(made: Compared) -> tuple[float, float]:
    """Return the least SQNR of the outputs, and the mean."""
    return _summed([output["sqnr"] for output in made.seen.outputs.values()])


def _summed(levels: Sequence[float]) -> tuple[float, float]:
    capped = [min(level, _CAP) for level in levels]
    return min(capped, default=_CAP), sum(capped) / max(len(capped), 1)


# ---- methods -----------------------------------------------------------------------------------------------------


class _Trials:
    """Runs trials: refinement on some of the samples, and SQNR on the others."""

    def __init__(self, planned: Planned, feeds: _Feed, count: int) -> None:
        self._prepared = planned.prepared
        aside = np.arange(count) % _PERIOD >= _PERIOD - _ASIDE
        self.aside = int(aside.sum())
        self._fit, self._check = (
            {n: array[part] if len(array) == count else array for n, array in feeds.items()} for part in (~aside, aside)
        )
        self._few = {n: array[:_FEW] if len(array) == count - self.aside else array for n, array in self._fit.items()}
        self._wanted = _measured(planned)

    def state(self, planned: Planned, methods: Methods) -> _State:
        """Return `planned` refined by `methods`, with its score."""
        exact = refined(planned, methods, self._fit)
        return _State(planned, methods, exact, self._score(planned, exact, self._check))

    def rescaled(self, start: _State) -> Planned | None:
        """Return the plan of `start` with scales chosen by the outputs; None where none is better."""
        planned, row = start.planned, self._prepared.row
        ties = tie_classes(planned.parts, row)
        own = {} if planned.basis.choice is None else planned.basis.choice.own
        fixed = {*tops(planned.parts, row), *(name for name, said in own.items() if "scale" in said)}

        def score(plan: Plan) -> float:
            return self._score(replace(planned, plan=plan), start.exact, self._few)[1]

        plan = scales_by_outputs(planned.parts, planned.plan, ties, row, frozenset(fixed), score)
        return None if plan is planned.plan else replace(planned, plan=plan)

    def _score(self, planned: Planned, exact: ir.Graph, feeds: _Feed) -> tuple[float, float]:
        """Return the least SQNR of what is measured, and the mean."""
        prepared = self._prepared
        session = lowered_session(lower(planned.parts.on(exact), planned.plan, prepared.row).graph, prepared.row)
        takes = {spec.name for spec in session.inputs}
        found = {name: Agreement() for name in self._wanted}
        for part in prepared.data.pieces(feeds, piece(bytes_per_sample(exact), _FEW, prepared.conf.budget)):
            have = session.taps({n: a for n, a in part.items() if n in takes}, self._wanted)
            values = {name: a if scale is None else real(a, scale) for name, a, scale in have}
            for name, want, _ in prepared.source.run(part, self._wanted):
                found[name].add(want, values[name])
        release()
        return _summed([agreement.sqnr for agreement in found.values()])


def _measured(planned: Planned) -> list[str]:
    """Return the tensors of the user's model that trials are measured at: its outputs, or what their curves read."""
    kept = planned.plan.tensors.keys() - planned.plan.transforms.keys()
    found = []
    for value in planned.prepared.original.graph.outputs:
        maker = value.producer()
        source = "" if maker is None or maker.op_type not in _CURVES else ir.read_name(maker)
        found.append(source if source in kept else str(value.name))
    return list(dict.fromkeys(found))


def _with_scales(trials: _Trials, start: _State) -> _State | None:
    planned = trials.rescaled(start)
    return None if planned is None else trials.state(planned, start.methods)


def _refining(**switch: bool) -> Callable[[_Trials, _State], _State]:
    return lambda trials, start: trials.state(start.planned, replace(start.methods, **switch))


#: What is tried, in this order, each on top of those kept.
_METHODS: Sequence[tuple[str, Callable[[_Trials, _State], _State | None]]] = (
    ("choosing scales by the error at the outputs", _with_scales),
    ("aiming weights at the float outputs", _refining(aim=True)),
    ("making up for the other side of a sum", _refining(behind=True)),
    ("coordinate descent behind the rounding", _refining(descend=True)),
)
