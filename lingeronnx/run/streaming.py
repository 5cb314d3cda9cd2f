"""Models that are called again and again: state outputs of one call are state inputs of the next.

`Stream` runs such a model; `unroll_calls` makes calibration data of a sequence of calls by running
the float model. Both begin with zeros unless values are given. Knows sessions by their face only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import ConfigError, DataError, suggest_nearest
from ..graph import ir
from .data import MAX_UNBOUNDED_SAMPLES, Data, InputSpec
from .runners import FloatRunner, get_input_specs

__all__ = ["Stream", "UnrolledCalls", "unroll_calls"]

_MAX_EVALUATION_CALLS = 64  # calls that are run again to see how far the integers stray
_MIN_CALLS_TO_HOLD_OUT = 40  # calls of which some are held back
# of the mean square of all calls' outputs: held back are the last calls that are no quieter
_MIN_RELATIVE_POWER = 0.5


class StreamableSession(Protocol):
    """What a stream asks of a session."""

    model: ir.Model
    inputs: list[InputSpec]

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the named tensors, or the graph outputs."""
        ...


class Stream:
    """A session with a memory.

    `run` feeds the state outputs of the last call back into the state inputs.
    state : {output: input}. start : values of state inputs to begin with, by input name; zeros for
    the others. Rows of a batch are streams of their own; their number may change at a `reset` only.
    Raises ConfigError for names the model does not have.
    """

    def __init__(
        self,
        session: StreamableSession,
        state: Mapping[str, str],
        start: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._session = session
        self._outputs = [str(v.name) for v in session.model.graph.outputs]
        self._pairs = _check_state_pairs(session.model, state)
        self._specs = {spec.name: spec for spec in session.inputs}
        self.reset(start)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """What the next call is fed, by input name.

        Empty before the first call where it begins with zeros.
        """
        return dict(self._state)

    def reset(self, start: Mapping[str, np.ndarray] | None = None) -> None:
        """Begin anew, with the values `start` or zeros."""
        inputs = set(self._pairs.values())
        for name in start or {}:
            if name not in inputs:
                raise ConfigError(
                    f"'{name}' is no state input{suggest_nearest(name, inputs)}; they are "
                    f"{', '.join(inputs)}"
                )
        self._state = {name: np.asarray(array) for name, array in (start or {}).items()}

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the tensors `names` (None: the graph outputs) of one call.

        Feeds without the state inputs.
        Raises DataError for a wrong input, and where the size of a state is not known and no value
        was given.
        """
        inputs = self._pairs.values()
        if given := [name for name in feeds if name in inputs]:
            raise DataError(
                f"'{given[0]}' is fed back from the last call; use reset({{'{given[0]}': ...}}) to "
                "set it"
            )
        wanted = list(names) if names is not None else self._outputs
        missing = [name for name in inputs if name not in self._state]
        state = {
            **make_zero_states(
                [self._specs[n] for n in missing], _count_samples(feeds, self._specs)
            ),
            **self._state,
        }
        fetch = list(dict.fromkeys([*wanted, *self._pairs]))
        found = dict(zip(fetch, self._session.run(fetch, {**feeds, **state}), strict=True))
        self._state = {name: found[output] for output, name in self._pairs.items()}
        return [found[name] for name in wanted]


@dataclass(frozen=True)
class UnrolledCalls:
    """Calls of a model that is fed its own states.

    items : feeds, states included, calls of one size joined. number : of calls. again : the feeds
    of calls in a row to measure on, without states but for those that an item gave. held : whether
    `evaluation_calls` is kept out of `items`.
    """

    items: Sequence[dict[str, np.ndarray]]
    call_count: int
    evaluation_calls: Sequence[dict[str, np.ndarray]]
    held: bool


def unroll_calls(
    model: ir.Model,
    calls: object,
    state: Mapping[str, str],
    fixed: Mapping[str, np.ndarray] | None = None,
    hold_out: bool = False,
    limit: int | None = None,
) -> UnrolledCalls:
    """Return feeds for the float `model`, states included, of one call after another.

    calls : data as `Data` takes them, an item per call, without the state inputs; an item that has
    some begins anew
        with these values, and so does one with another number of samples. Calls of one size are put
        together in one item, samples of the first call first. fixed : as for `Data`. hold : keep
        calls to measure on out of the items, where there are enough. limit : samples that are taken
        of a source that does not tell how many it has.
    A stream may end in silence, of which every error is large: measured on are the last calls in a
    row whose outputs are about as strong as those of all calls.
    Raises ConfigError for names the model does not have, DataError as `Data` does.
    """
    pairs, specs = (
        _check_state_pairs(model, state),
        {spec.name: spec for spec in get_input_specs(model)},
    )
    optional = set(pairs.values())
    data = Data(
        calls,
        list(specs.values()),
        what="calibration data",
        optional=optional,
        fixed=fixed,
        most=MAX_UNBOUNDED_SAMPLES,
    )
    if data.is_open_ended:  # of others the caller takes the first samples of the joined calls
        data.limit = limit
    told = [str(v.name) for v in model.graph.outputs if str(v.name) not in pairs]
    runner = FloatRunner(model, {*pairs, *told})
    held: dict[str, np.ndarray] = {}
    samples = -1
    full: list[dict[str, np.ndarray]] = []
    given: list[dict[str, np.ndarray]] = []
    power: list[list[float]] = []
    for feed, _ in data.batches(1 << 30):
        count = _count_samples(feed, specs)
        if count != samples or any(name in feed for name in pairs.values()):
            held, samples = {}, count
        missing = [specs[name] for name in pairs.values() if name not in feed and name not in held]
        full.append({**make_zero_states(missing, count), **held, **feed})
        given.append(feed)
        ends = {name: array for name, array, _ in runner.run(full[-1])}
        held = {name: ends[output] for output, name in pairs.items()}
        power.append([_mean_square(ends[name]) for name in told])
    apart = hold_out and len(full) >= _MIN_CALLS_TO_HOLD_OUT
    again = _select_loud_calls(
        np.array(power), min(_MAX_EVALUATION_CALLS, len(full) // 5 if apart else len(full))
    )
    found: dict[tuple[object, ...], list[dict[str, np.ndarray]]] = {}
    for feeds in [*full[: again.start], *full[again.stop :]] if apart else full:
        found.setdefault(tuple(specs[name].kind(feeds[name]) for name in specs), []).append(feeds)
    items = [
        {name: specs[name].concatenate([f[name] for f in feeds]) for name in specs}
        for feeds in found.values()
    ]
    return UnrolledCalls(items, len(full), given[again], apart)


def _mean_square(array: np.ndarray) -> float:
    """Return the mean square of the finite numbers; 0 of none."""
    if array.dtype.kind not in "biuf":
        return 0.0
    real = array[np.isfinite(array)].astype(np.float64)
    return float(np.square(real).mean()) if real.size else 0.0


def _select_loud_calls(power: np.ndarray, count: int) -> slice:
    """Return the last `count` calls in a row that are not much quieter than all are, or else the loudest of all.

    power : [calls, outputs], mean squares. An output counts by its power in all calls.
    """
    whole = power.mean(axis=0)
    share = (
        (power[:, whole > 0] / whole[whole > 0]).mean(axis=1)
        if np.any(whole > 0)
        else np.ones(len(power))
    )
    sums = np.concatenate([[0.0], np.cumsum(share)])
    loud = (sums[count:] - sums[: len(sums) - count]) / max(count, 1)
    enough = np.flatnonzero(loud >= _MIN_RELATIVE_POWER)
    first = int(enough[-1] if enough.size else loud.argmax())
    return slice(first, first + count)


def make_zero_states(specs: Iterable[InputSpec], samples: int) -> dict[str, np.ndarray]:
    """Return zeros for `samples` samples of the inputs `specs`.

    DataError where another size is not known.
    """
    found = {}
    for spec in specs:
        dims = [
            samples if axis == spec.axis else size
            for axis, size in enumerate(spec.shape or (None, None))
        ]
        if None in dims:
            raise DataError(
                f"state input '{spec.name}' has dimensions of unknown size; give the values to "
                "begin with"
            )
        found[spec.name] = np.zeros([int(d or 0) for d in dims], spec.dtype)
    return found


def _check_state_pairs(model: ir.Model, state: Mapping[str, str]) -> dict[str, str]:
    """Return `state` after checking its names."""
    outputs, inputs = (
        [str(v.name) for v in ir.iter_values(model)],
        [spec.name for spec in get_input_specs(model)],
    )
    if not state:
        raise ConfigError("state: name what is fed back, as {output: input}")
    for output, name in state.items():
        if output not in outputs:
            raise ConfigError(
                f"state: the model has no output '{output}'{suggest_nearest(output, outputs)}; "
                "write it as OUTPUT=INPUT"
            )
        if name not in inputs:
            raise ConfigError(
                f"state: the model has no input '{name}'{suggest_nearest(name, inputs)}; inputs "
                f"are {', '.join(inputs)}"
            )
    if len(set(state.values())) < len(state):
        raise ConfigError(
            "state: two outputs are fed back into one input; give each an input of its own"
        )
    return dict(state)


def _count_samples(feeds: Mapping[str, np.ndarray], specs: Mapping[str, InputSpec]) -> int:
    """Return the number of samples of the first array fed."""
    for name, array in feeds.items():
        if name in specs and specs[name].axis is not None:
            return specs[name].count_samples(np.asarray(array))
    return 1
