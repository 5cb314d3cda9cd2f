"""When each layer runs, as a timeline of three lanes: NPU, DMA and host.

`trace`, in the Chrome trace format.
The format is what Perfetto, speedscope and Chrome itself open: an object with `traceEvents`, each a
complete event ("ph": "X") with a start and a length in microseconds, in a lane ("tid") of a process
("pid"); "M" names lanes. Without a clock a cycle is shown as a microsecond.

Times are multiples of 1/1024 microsecond: starts, lengths and their sums are exact, and neighbours
do not overlap.

What the host does has no price: it is a mark in its place, one such step long, for an event without
a length is not shown. A layer of which nothing has a price is an instant ("i"), which speedscope
leaves out. Both say so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError, split_words
from ..files import write_text
from ..graph import ir
from ..run.integer.runner import detect_target
from ..run.program_parts import ProgramPart, split_into_parts
from ..targets import CallLatency, LatencyOptions, Target, get_target
from ..targets.latency import Latency, LayerLatency, concatenate_latencies
from ..targets.verdict import require_latency

__all__ = ["Slice", "Timeline", "trace"]

LANES = ("NPU", "DMA", "host")
_TIME_STEP = 1 / 1024  # microseconds


@dataclass(frozen=True)
class Slice:
    """Something that takes time in a lane, in cycles.

    Without a length where nobody knows how long. facts : on it.
    """

    lane: str
    name: str
    start: float
    length: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """One call of a model on a chip.

    Slices : by lane and start, what is inside another one behind it.
    """

    model: str
    time: CallLatency
    slices: Sequence[Slice]

    @property
    def latency(self) -> Latency:
        """The cycles behind it."""
        assert self.time.latency is not None
        return self.time.latency

    def to_dict(self) -> dict[str, Any]:
        """Return it in the Chrome trace format."""
        unit = (self.time.clock_mhz or 1.0) * _TIME_STEP
        process = f"{self.model} on {self.latency.platform}"
        events: list[dict[str, Any]] = [_metadata_event("process_name", 0, {"name": process})]
        for number, lane in enumerate(LANES, 1):
            events += [
                _metadata_event("thread_name", number, {"name": lane}),
                _metadata_event("thread_sort_index", number, {"sort_index": number}),
            ]
        marked = 0.0
        for piece in self.slices:
            event = {
                "pid": 1,
                "tid": LANES.index(piece.lane) + 1,
                "name": piece.name,
                "cat": piece.lane,
            }
            start, end = (
                round(piece.start / unit) * _TIME_STEP,
                round((piece.start + piece.length) / unit) * _TIME_STEP,
            )
            if piece.lane == "host":
                start = max(start, marked)
                end = marked = start + _TIME_STEP
            shape = (
                {"ph": "X", "ts": start, "dur": end - start}
                if end > start
                else {"ph": "i", "ts": start, "s": "t"}
            )
            events.append({**event, **shape, **({"args": piece.facts} if piece.facts else {})})
        told = {
            "unit": "microseconds" if self.time.clock_mhz else "cycles, each shown as a microsecond"
        }
        return {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {**told, "time": self.time.lines()},
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the trace."""
        write_text(path, json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False) + "\n")


def trace(
    model: ir.ModelLike,
    platform: str | Target | None = None,
    packer_args: str | Sequence[str] | None = None,
    *,
    clock: float | None = None,
    timing: str | os.PathLike[str] | None = None,
) -> Timeline:
    """Return when each layer of an integer graph runs, in all its parts.

    model, platform, packer_args : as `latency` takes them. clock : MHz. timing : a file of
    `profile_board`. Raises as `latency` does.
    """
    graph = ir.as_model(model)
    target = detect_target(graph) if platform is None else get_target(platform)
    wish = LatencyOptions(clock_mhz=clock, timing_file=timing)
    target = wish.apply_to(target)
    if unknown := target.vendor.explain_missing_timing(target):
        raise ConfigError(unknown)
    words = split_words(packer_args) if isinstance(packer_args, str) else packer_args
    parts = split_into_parts(target.with_safe_names(graph), target)
    if not parts.chip:
        raise ConfigError(
            f"nothing of the model is for {target.name}: it has no integer operator; quantize it "
            "first"
        )
    slices: list[Slice] = []
    runs: list[Latency] = []
    for part in parts.parts:
        clock_now = sum(run.total for run in runs)
        if not part.chip:
            operators = [node.op_type for node in part.graph.graph]
            slices.append(_host_marker(f"{part.name}: {_format_op_types(operators)}", clock_now))
            continue
        run = require_latency(part.choice_for_arguments(words).verdict)
        slices += _iter_part_slices(part, run, clock_now, len(parts.chip) > 1)
        runs.append(run)
    whole = concatenate_latencies(runs)
    name = Path(model).name if isinstance(model, str | os.PathLike) else "model"
    time = CallLatency(
        whole, clock_mhz=clock or target.vendor.clock_mhz, has_host_parts=bool(parts.host_parts)
    )
    slices.sort(key=lambda piece: (LANES.index(piece.lane), piece.start, -piece.length))
    return Timeline(name, time, slices)


def _metadata_event(what: str, thread: int, told: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": thread, "name": what, "args": told}


def _host_marker(text: str, start: float) -> Slice:
    return Slice("host", text, start, 0.0, {"price": "not known"})


def _format_op_types(operators: Sequence[str], most: int = 4) -> str:
    kinds = list(dict.fromkeys(operators))
    return ", ".join(kinds[:most]) + (f" and {len(kinds) - most} more" if len(kinds) > most else "")


def _iter_part_slices(
    part: ProgramPart, run: Latency, begin: float, named: bool
) -> Iterator[Slice]:
    """Yield what a part for the chip does, from the cycle `begin` on."""
    where = f"{part.name}: " if named else ""
    yield _host_marker(f"{where}{len(part.inputs)} inputs to integers", begin)
    for layer in run.layers:
        yield from _iter_layer_slices(layer, run, begin)
    yield _host_marker(f"{where}{len(part.outputs)} outputs from integers", begin + run.total)


def _iter_layer_slices(layer: LayerLatency, run: Latency, begin: float) -> Iterator[Slice]:
    clock = begin + layer.start
    name = f"{layer.operator} {layer.node or layer.name}"
    if layer.dma:
        yield Slice(
            "DMA", f"constants of {layer.node or layer.name}", begin + layer.fetch, layer.dma
        )
    if layer.wait:
        yield Slice("NPU", "wait for constants", clock, layer.wait, {"layer": name})
    clock += layer.wait
    if layer.moved:
        yield Slice("NPU", "copies from and to psram", clock, layer.moved, {"layer": name})
    clock += layer.moved
    without = [work for work in run.unpriced if work.name == layer.name]
    facts: dict[str, Any] = {
        "cycles": round(layer.cycles),
        "at most": round(layer.high),
        "calls": layer.calls,
    }
    if without:
        facts["no price"] = "; ".join(f"{work.what}, {work.bytes} bytes" for work in without)
    if layer.cycles or without:
        yield Slice("NPU", name, clock, layer.cycles, facts)
    if layer.overhead:
        yield Slice(
            "NPU", f"starts of {layer.calls} calls", clock, min(layer.overhead, layer.cycles)
        )
    for work in without:
        if "host" in work.what:
            yield _host_marker(f"{work.what}, for {name}", clock)
