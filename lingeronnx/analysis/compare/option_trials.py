"""Which of the findings' options help together: each is tried before it is advised.

The float model is planned anew with the options behind those that the graph was made with, on the samples at hand, and
the plan is computed in float: what rounding alone leaves of the outputs. What `quantize` refines beyond that is left
out, with and without the options. A graph that does not say what it was made with is taken as it is. Each option that
is advised is worth `GAIN`. Nothing is tried for a dump, which has no float model, and for models of very many
multiply-accumulates.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import LingerOnnxError
from ...flow import plan_for, prepare
from ...ops.macs import macs
from ...plan.config import parse_override
from ...run.origin import made_with
from ..stats.pair_measures import PairMeasures
from .finding import LayerFinding
from .join import Join
from .sources import FloatSource, IntegerSource, PlannedSource

__all__ = ["GAIN", "TriedOptions", "tried"]

#: What options must give to be advised, in dB.
GAIN = 0.5

_SINGLE = 4  # options that are tried one by one
_WORK = 2_000_000_000  # multiply-accumulates of a sample beyond which nothing is tried


@dataclass(frozen=True)
class TriedOptions:
    """What options gave.

    best : those to take, none where nothing helps. value : the worst output's SQNR in dB with them; every : with all of
    them; now : without any, planned in the same way, or of a graph that does not say what it was made with.
    """

    best: tuple[str, ...]
    value: float
    every: float
    now: float


def tried(join: Join, findings: Sequence[LayerFinding], feeds: Mapping[str, np.ndarray]) -> TriedOptions | None:
    """Return which options of the findings are best together; None where there are none, or nothing can be tried.

    feeds : the samples that scales come from, and that the outputs are compared on.
    """
    words = tuple(dict.fromkeys(option for finding in findings for option in finding.options))
    base, other = join.base, join.other
    if not words or not isinstance(base, FloatSource) or not isinstance(other, IntegerSource) or not join.outputs:
        return None
    if sum(macs(node) for node in base.graph.graph) > _WORK:
        return None
    trial = _Trial(base, other, feeds)
    now = min(join.outputs.values()) if trial.given is None else trial.value(())
    every = trial.value(words)
    if now is None or every is None:
        return None
    best, value = _grown(trial, words[:_SINGLE], now)
    if every - value >= GAIN:
        best, value = words, every
    return TriedOptions(best, value, every, now)


def _grown(trial: _Trial, words: Sequence[str], value: float) -> tuple[tuple[str, ...], float]:
    """Return the options of `words`, the one that gives most first, as long as one gives `GAIN`, and what they give."""
    best: tuple[str, ...] = ()
    while left := [word for word in words if word not in best]:
        found = {word: trial.value((*best, word)) for word in left}
        known = {word: more for word, more in found.items() if more is not None}
        word = max(known, key=known.__getitem__, default="")
        if not word or not known[word] - value >= GAIN:  # what is exact already (inf - inf) needs none
            break
        best, value = (*best, word), known[word]
    return best, value


class _Trial:
    """Plans the float model with options, and measures the outputs."""

    def __init__(self, base: FloatSource, other: IntegerSource, feeds: Mapping[str, np.ndarray]) -> None:
        self._base, self._feeds = base, dict(feeds)
        self._names = [str(value.name) for value in base.graph.graph.outputs]
        self._plan = other.plan
        self._want = {name: array for name, array, _ in base.session.tensors(feeds, self._names)}
        self.given = made_with(other.graph)
        self._equalized = any(len(set(moved.factor)) > 1 for moved in self._plan.transforms.values())

    def value(self, words: Sequence[str]) -> float | None:
        """Return the SQNR in dB of the worst output under options; None where they cannot be planned."""
        try:
            prepared = prepare(self._base.graph, self._feeds, None, self._settings(words), hold=False)
            planned = plan_for(prepared)
            made = PlannedSource(planned.graph, planned.plan)
            have = {name: (array, form) for name, array, form in made.run(self._feeds) if name in self._want}
        except LingerOnnxError:
            return None
        found = math.inf
        for name, (array, form) in have.items():
            pair = PairMeasures()
            pair.add(self._want[name].reshape(-1), (array if form is None else form.real(array)).reshape(-1))
            found = min(found, pair.sqnr)
        return found if have else None

    def _settings(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the settings of `prepare` that options stand for."""
        settings: dict[str, Any] = {"platform": self._plan.platform, "mode": self._plan.mode}
        settings |= {"effort": "normal" if self._equalized else "fast"} if self.given is None else self.given
        settings["overrides"] = {name: dict(own) for name, own in settings.get("overrides", {}).items()}
        for word in words:
            option, value = shlex.split(word)
            if option == "--override":
                selector, chosen = parse_override(value)
                settings["overrides"].setdefault(selector, {}).update(chosen)
            else:
                settings[option.removeprefix("--").replace("-", "_")] = value
        return settings
