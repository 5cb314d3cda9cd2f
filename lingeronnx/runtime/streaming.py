"""Run models call by call, with state outputs of one call as state inputs of the next.

`Stream` runs such a model; `unroll_calls` converts a sequence of calls to calibration data by
running the float model. Both begin with zeros unless values are passed. Knows only the interface of
sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple, Protocol

import numpy as np

from ..common.errors import ConfigError, DataError, suggest_nearest
from ..ir import ir
from .data import MAX_UNBOUNDED_SAMPLES, Data, InputSpec, count_divisible_samples
from .runners import FloatRunner, get_input_specs

__all__ = [
    "Call",
    "CallCount",
    "Stream",
    "UnrolledCalls",
    "check_call_count",
    "iter_calls",
    "unroll_calls",
]

#: Number of calls in one item of the data: "all" for one sample per call.
CallCount = int | Literal["all"]

_MAX_EVALUATION_CALLS = 64  # calls that are run again to measure the error of the integers
_MIN_CALLS_TO_HOLD_OUT = 40  # with fewer calls, none are held out
# Minimum power of held-out calls, relative to the mean of all calls.
_MIN_RELATIVE_POWER = 0.5


class StreamableSession(Protocol):
    """Interface of a session that a stream needs."""

    model: ir.Model
    inputs: list[InputSpec]

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run `feeds` and return the tensors `names`, or the graph outputs for None."""
        ...


class Stream:
    """A session with states: `run` feeds state outputs of the last call back into state inputs.

    Each sample of a batch is a separate stream; their number may change only at a `reset`.

    Parameters
    ----------
    session
        The session.
    state
        {output: input}.
    start
        Initial values of state inputs, by input name; zeros for others.

    Raises
    ------
    ConfigError
        If the model does not have these tensors.
    """

    def __init__(
        self,
        session: StreamableSession,
        state: Mapping[str, str],
        start: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Check the state pairs (`state`: output name -> input name), and begin with `start`.

        Raises ConfigError if the model does not have these tensors.
        """
        self._session = session
        self._outputs = ir.get_output_names(session.model)
        self._input_by_output = _check_state_pairs(session.model, state)
        self._specs = {spec.name: spec for spec in session.inputs}
        self.reset(start)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """State inputs of the next call, by name.

        It is empty before the first call if that begins with zeros.
        """
        return dict(self._state)

    def reset(self, start: Mapping[str, np.ndarray] | None = None) -> None:
        """Restart with `start` (state input -> array), or with zeros for those without an entry.

        The zeros are made at the next call, for its number of samples. Raises ConfigError for a
        name that is no state input.
        """
        inputs = set(self._input_by_output.values())
        for name in start or {}:
            if name not in inputs:
                raise ConfigError(
                    f"'{name}' is not a state input{suggest_nearest(name, inputs)}; state inputs "
                    f"are {', '.join(inputs)}"
                )
        self._state = {name: np.asarray(array) for name, array in (start or {}).items()}

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run one call and return some of its tensors; its states are fed to the next call.

        Parameters
        ----------
        names
            Tensors to return; None for the graph outputs.
        feeds
            Arrays by input name, without state inputs.

        Raises
        ------
        DataError
            If an input is invalid, or the shape of a state is not known and no value was passed.
        """
        state_inputs = self._input_by_output.values()
        for name in feeds:
            if name in state_inputs:
                raise DataError(
                    f"'{name}' is fed back from the last call; use reset({{'{name}': ...}}) to set "
                    "it"
                )
        outputs = list(names) if names is not None else self._outputs
        missing = [self._specs[name] for name in state_inputs if name not in self._state]
        zeros = make_zero_states(missing, _count_samples(feeds, self._specs))
        fetched = list(dict.fromkeys([*outputs, *self._input_by_output]))
        arrays = self._session.run(fetched, {**feeds, **zeros, **self._state})
        results = dict(zip(fetched, arrays, strict=True))
        self._state = {name: results[output] for output, name in self._input_by_output.items()}
        return [results[name] for name in outputs]


class Call(NamedTuple):
    """One call of a model whose states are fed back.

    feeds : arrays by input name. labels : of the samples, or None. restarts : whether the states
    that `feeds` lack are zeros again.
    """

    feeds: dict[str, np.ndarray]
    labels: np.ndarray | None
    restarts: bool = False


def check_call_count(state: Mapping[str, str] | None, calls: object) -> None:
    """Raise ConfigError unless `calls` is None, "all" or a positive integer.

    The latter need `state`.

    Parameters
    ----------
    state
        {output: input}, or None.
    calls
        Number of calls in an item of the data.
    """
    if calls is None:
        return
    if calls != "all" and (isinstance(calls, bool) or not isinstance(calls, int) or calls < 1):
        raise ConfigError(
            f"calls {calls!r}: pass the number of calls in an item of the data, or 'all' for one "
            "sample per call"
        )
    if not state:
        raise ConfigError(
            f"calls {calls} divides the data of a model whose states are fed back; name the states "
            "with --state OUT=IN, or drop --calls"
        )


def iter_calls(
    data: Data, state_inputs: Collection[str], calls: CallCount | None = None
) -> Iterator[Call]:
    """Yield each call in the data as a `Call`: feeds, labels, and whether states restart at zeros.

    Parameters
    ----------
    data
        Data of the model, whose items are read whole and divided by `calls`.
    state_inputs
        Inputs that states are fed back to.
    calls
        None: each item is one call, whose samples are independent streams. A number: each item is
        divided into so many consecutive calls with the same number of samples. "all": each sample
        is a call. An item of several calls is a sequence of its own: its states begin at zeros.

    Raises
    ------
    DataError
        If an item cannot be divided. Also without `calls` if the only item has several samples: it
        may be a sequence of calls or a single call; unless it has all states of each sample, so
        that both are the same.
    """
    items = data.batches(1 << 30)
    first = next(items)
    if calls is None:
        second = next(items, None)
        if second is None:
            _check_single_call(data, first[0], state_inputs)
        for feeds, labels in chain([first], () if second is None else [second], items):
            yield Call(feeds, labels)
        return
    for index, (feeds, labels) in enumerate(chain([first], items)):
        count = count_divisible_samples(data.inputs, feeds)
        call_count = count if calls == "all" else calls
        if count % call_count:
            raise DataError(
                f"{data.label}, item {index}: {count} samples cannot be divided into {call_count} "
                "calls of equal size; pass --calls with a divisor, or --calls all for one sample "
                "per call"
            )
        size = count // call_count
        for position, part in enumerate(data.split_feeds(feeds, size)):
            part_labels = (
                None if labels is None else labels[position * size : (position + 1) * size]
            )
            yield Call(part, part_labels, index > 0 and position == 0 and call_count > 1)


def _check_single_call(
    data: Data, feeds: Mapping[str, np.ndarray], state_inputs: Collection[str]
) -> None:
    """Raise DataError if `feeds`, the only item of the data, may be one call or several.

    It is unclear if it has several samples and lacks a state input.
    """
    count = count_divisible_samples(data.inputs, feeds)
    if count > 1 and not feeds.keys() >= set(state_inputs):
        raise DataError(
            f"{data.label}: one item of {count} samples may be {count} consecutive calls, or one "
            f"call of {count} independent streams; pass --calls all for consecutive calls, or "
            "--calls 1 for one call"
        )


class UnrolledCalls(NamedTuple):
    """Calls of a model with the states that it computes.

    items : feeds with states; calls of equal shape are concatenated. call_count : number of calls.
    fed_back_count : those that were fed a state of the call before. evaluation_calls : feeds of
    consecutive calls to measure on, without states except those that an item contained. held :
    whether `evaluation_calls` are excluded from `items`.
    """

    items: Sequence[dict[str, np.ndarray]]
    call_count: int
    fed_back_count: int
    evaluation_calls: Sequence[dict[str, np.ndarray]]
    held: bool


def unroll_calls(
    model: ir.Model,
    calls: object,
    state: Mapping[str, str],
    fixed: Mapping[str, np.ndarray] | None = None,
    hold_out: bool = False,
    limit: int | None = None,
    calls_per_item: CallCount | None = None,
    advice: Callable[[Sequence[str]], str] | None = None,
) -> UnrolledCalls:
    """Run a float model call by call, and return the feeds of all calls with their states.

    A stream may end in silence, where every error is relatively large. The calls to measure on are
    therefore the last consecutive ones whose outputs are about as strong as those of all calls.

    Parameters
    ----------
    model
        The float model.
    calls
        Data, one item per call: a path, a function, arrays, dicts or an iterable of them, usually
        without state inputs. A call with state inputs restarts with these values, and so does one
        with another number of samples.
    state
        {output: input}.
    fixed
        {name: value} of former inputs that are constants now; calls may contain them.
    hold_out
        Exclude calls to measure on from the items, if there are at least
        `_MIN_CALLS_TO_HOLD_OUT` calls.
    limit
        Samples to use from a source of unknown length.
    calls_per_item
        Calls that an item is divided into, "all" for one per sample; each such item begins with
        states of zeros. None: an item is one call.
    advice
        Called with the inputs that a call lacks; returns a remedy for the message.

    Raises
    ------
    ConfigError
        If the model does not have these tensors.
    DataError
        If the data are invalid.
    """
    input_by_output = _check_state_pairs(model, state)
    state_inputs = set(input_by_output.values())
    specs = {spec.name: spec for spec in get_input_specs(model)}
    data = Data(
        calls,
        list(specs.values()),
        label="calibration data",
        optional=state_inputs,
        fixed=fixed,
        max_samples=MAX_UNBOUNDED_SAMPLES,
        whole_files=True,
        advice=advice,
    )
    if data.is_open_ended:  # of other sources the caller selects samples of the unrolled calls
        data.limit = limit
    graph_outputs = ir.get_output_names(model)
    outputs = [name for name in graph_outputs if name not in input_by_output]
    runner = FloatRunner(model, {*input_by_output, *outputs})
    states: dict[str, np.ndarray] = {}
    sample_count = -1
    full_feeds: list[dict[str, np.ndarray]] = []
    call_feeds: list[dict[str, np.ndarray]] = []
    power: list[list[float]] = []
    fed_back_count = 0
    for call in iter_calls(data, state_inputs, calls_per_item):
        feed, count = call.feeds, _count_samples(call.feeds, specs)
        if call.restarts:
            restarted = [specs[name] for name in input_by_output.values() if name not in feed]
            feed = {**make_zero_states(restarted, count), **feed}
        if count != sample_count or not state_inputs.isdisjoint(feed):
            states, sample_count = {}, count
        known = feed.keys() | states.keys()
        missing = [name for name in input_by_output.values() if name not in known]
        zeros = make_zero_states([specs[name] for name in missing], count)
        full_feeds.append({**zeros, **states, **feed})
        fed_back_count += bool(states)
        call_feeds.append(feed)
        results = {name: array for name, array, _ in runner.run(full_feeds[-1])}
        states = {name: results[output] for output, name in input_by_output.items()}
        power.append([_mean_square(results[name]) for name in outputs])
    call_count = len(full_feeds)
    is_held_out = hold_out and call_count >= _MIN_CALLS_TO_HOLD_OUT
    evaluation_count = min(_MAX_EVALUATION_CALLS, call_count // 5 if is_held_out else call_count)
    evaluation = _select_loud_calls(np.array(power), evaluation_count)
    item_feeds = full_feeds
    if is_held_out:
        item_feeds = [*full_feeds[: evaluation.start], *full_feeds[evaluation.stop :]]
    items = _concatenate_calls(item_feeds, specs)
    return UnrolledCalls(items, call_count, fed_back_count, call_feeds[evaluation], is_held_out)


def _concatenate_calls(
    calls: Sequence[Mapping[str, np.ndarray]], specs: Mapping[str, InputSpec]
) -> list[dict[str, np.ndarray]]:
    """Concatenate the feeds of calls with equal shapes, in order of the first such call.

    Returns one feed per group of shapes, with the inputs in `specs`.
    """
    groups: dict[tuple[object, ...], list[Mapping[str, np.ndarray]]] = {}
    for feeds in calls:
        key = tuple(specs[name].kind(feeds[name]) for name in specs)
        groups.setdefault(key, []).append(feeds)
    items = []
    for group in groups.values():
        item = {}
        for name, spec in specs.items():
            item[name] = spec.concatenate([feeds[name] for feeds in group])
        items.append(item)
    return items


def _mean_square(array: np.ndarray) -> float:
    """Return the mean square of the finite elements of `array`.

    0 if there are none or no numbers.
    """
    if array.dtype.kind not in "biuf":
        return 0.0
    finite = array[np.isfinite(array)].astype(np.float64)
    return float(np.square(finite).mean()) if finite.size else 0.0


def _select_loud_calls(power: np.ndarray, count: int) -> slice:
    """Select the last `count` consecutive calls that are not silent, or else the loudest ones.

    Calls are not silent if their mean power relative to all calls is at least
    `_MIN_RELATIVE_POWER`.

    Parameters
    ----------
    power : [calls, outputs]
        Mean square of each output per call; each output is normalized by its mean over all calls.
    count
        Number of calls to select.
    """
    mean_power = power.mean(axis=0)
    active = mean_power > 0
    loudness = np.ones(len(power))
    if active.any():
        loudness = (power[:, active] / mean_power[active]).mean(axis=1)
    cumulative = np.concatenate([[0.0], np.cumsum(loudness)])
    window_means = (cumulative[count:] - cumulative[: len(cumulative) - count]) / max(count, 1)
    candidates = np.flatnonzero(window_means >= _MIN_RELATIVE_POWER)
    start = int(candidates[-1] if candidates.size else window_means.argmax())
    return slice(start, start + count)


def make_zero_states(specs: Iterable[InputSpec], samples: int) -> dict[str, np.ndarray]:
    """Return input name -> zeros for the inputs `specs`, with `samples` on the batch axis.

    Raises
    ------
    DataError
        If another dimension is not known.
    """
    states = {}
    for spec in specs:
        dims = list(spec.shape or (None, None))
        if spec.axis is not None and spec.axis < len(dims):
            dims[spec.axis] = samples
        if None in dims:
            raise DataError(
                f"state input '{spec.name}' has dimensions of unknown size; pass the initial values"
            )
        states[spec.name] = np.zeros([int(size or 0) for size in dims], spec.dtype)
    return states


def _check_state_pairs(model: ir.Model, state: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `state`, {output: input}, if it is valid for `model`.

    Raises ConfigError if it is empty, a tensor does not exist, or an input is used twice. An output
    may be any tensor.
    """
    if not state:
        raise ConfigError("state: pass the tensors to feed back as {output: input}")
    outputs = [str(value.name) for value in ir.iter_values(model)]
    inputs = [spec.name for spec in get_input_specs(model)]
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
            "state: two outputs are fed back into one input; use a separate input for each"
        )
    return dict(state)


def _count_samples(feeds: Mapping[str, np.ndarray], specs: Mapping[str, InputSpec]) -> int:
    """Return the number of samples of the first array in `feeds` that has a batch axis.

    1 without any.
    """
    for name, array in feeds.items():
        if name in specs and specs[name].axis is not None:
            return specs[name].count_samples(np.asarray(array))
    return 1
