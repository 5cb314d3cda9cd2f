"""A timeline of the layers of a call in three lanes (NPU, DMA, host), in the Chrome trace format.

Perfetto, speedscope and Chrome open this format: an object with `traceEvents`, each a complete
event ("ph": "X") with a start and a duration in microseconds, in a lane ("tid") of a process
("pid"); "M" events name lanes. Without a clock, a cycle is shown as a microsecond.

Times are multiples of 1/1024 microsecond, so starts, durations and their sums are exact, and
neighbours do not overlap.

The time of host work is unknown. It is marked by an event of one such step, because an event
without a duration is not shown. A layer without any known cost is an instant event ("i"), which
speedscope ignores. Both carry a note.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..common.errors import ConfigError, split_words
from ..common.files import write_text
from ..ir import ir
from ..runtime.integer.runner import detect_target
from ..runtime.program_parts import ProgramPart, split_into_parts
from ..targets import CallLatency, LatencyOptions, Target, get_target
from ..targets.latency import Latency, LayerLatency, concatenate_latencies
from ..targets.verdict import require_latency

__all__ = ["LANES", "Slice", "Timeline", "list_layer_slices", "trace"]

LANES = ("NPU", "DMA", "host")
_TIME_STEP = 1 / 1024  # microseconds


@dataclass(frozen=True)
class Slice:
    """A piece of work in a lane.

    Parameters
    ----------
    lane
        "NPU", "DMA" or "host".
    name
        Text of the slice.
    start, length
        Start and duration in cycles; the duration is 0 if it is unknown.
    facts
        Details shown for the slice.
    """

    lane: str
    name: str
    start: float
    length: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """One call of a model on a chip.

    Parameters
    ----------
    model
        Name of the model.
    time
        Latency of the call.
    slices
        Slices sorted by lane and start, enclosing ones before those inside them.
    """

    model: str
    time: CallLatency
    slices: Sequence[Slice]

    @property
    def latency(self) -> Latency:
        """The cycles of the call."""
        assert self.time.latency is not None
        return self.time.latency

    def to_dict(self) -> dict[str, Any]:
        """Return the timeline in the Chrome trace format, one thread per lane.

        Times are microseconds, or cycles without a clock; slices that round to no time are
        instants, except on the host, where each takes one time step after the previous one.
        JSON-ready; facts of a slice are its `args`.
        """
        step_cycles = (self.time.clock_mhz or 1.0) * _TIME_STEP
        process = f"{self.model} on {self.latency.platform}"
        events: list[dict[str, Any]] = [_metadata_event("process_name", 0, {"name": process})]
        for thread, lane in enumerate(LANES, 1):
            events += [
                _metadata_event("thread_name", thread, {"name": lane}),
                _metadata_event("thread_sort_index", thread, {"sort_index": thread}),
            ]
        host_end = 0.0
        for work in self.slices:
            start = round(work.start / step_cycles) * _TIME_STEP
            end = round((work.start + work.length) / step_cycles) * _TIME_STEP
            if work.lane == "host":
                start = max(start, host_end)
                end = host_end = start + _TIME_STEP
            event = {
                "pid": 1,
                "tid": LANES.index(work.lane) + 1,
                "name": work.name,
                "cat": work.lane,
            }
            if end > start:
                event |= {"ph": "X", "ts": start, "dur": end - start}
            else:
                event |= {"ph": "i", "ts": start, "s": "t"}
            if work.facts:
                event["args"] = work.facts
            events.append(event)
        unit = "microseconds" if self.time.clock_mhz else "cycles, each shown as a microsecond"
        return {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"unit": unit, "time": self.time.lines()},
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON."""
        write_text(path, json.dumps(self.to_dict(), allow_nan=False) + "\n")


def trace(
    model: ir.ModelLike,
    platform: str | Target | None = None,
    packer_args: str | Sequence[str] | None = None,
    *,
    clock: float | None = None,
    timing: str | os.PathLike[str] | None = None,
) -> Timeline:
    """Compute when each layer of an integer graph runs, in all its parts.

    Parameters
    ----------
    model, platform, packer_args
        As `latency` takes them.
    clock
        Clock in MHz; default that of the chip's vendor.
    timing
        File of kernel costs, written by `profile_board`; default the costs of the vendor.

    Raises
    ------
    ConfigError
        If the model is a float model, no latency model is known for the platform, no part runs on
        the chip, a part does not pack, or `timing` is not such a file.
    """
    graph = ir.as_model(model)
    target = detect_target(graph) if platform is None else get_target(platform)
    target = LatencyOptions(clock_mhz=clock, timing_file=timing).apply_to(target)
    argv = split_words(packer_args) if isinstance(packer_args, str) else packer_args
    parts = split_into_parts(target.with_safe_names(graph), target)
    if not parts.chip:
        raise ConfigError(
            f"no part of the model runs on {target.name}: it has no integer operator; quantize it "
            "first"
        )
    if unknown := target.vendor.explain_missing_timing(target):
        raise ConfigError(unknown)
    slices: list[Slice] = []
    latencies: list[Latency] = []
    for part in parts.parts:
        start = sum(part_latency.total for part_latency in latencies)
        if not part.chip:
            op_types = [node.op_type for node in part.graph.graph]
            slices.append(_host_marker(f"{part.name}: {_format_op_types(op_types)}", start))
            continue
        part_latency = require_latency(part.choice_for_arguments(argv).verdict)
        slices += _iter_part_slices(part, part_latency, start, len(parts.chip) > 1)
        latencies.append(part_latency)
    name = Path(model).name if isinstance(model, str | os.PathLike) else "model"
    time = CallLatency(
        concatenate_latencies(latencies),
        clock_mhz=clock or target.vendor.clock_mhz,
        has_host_parts=bool(parts.host_parts),
    )
    slices.sort(key=lambda work: (LANES.index(work.lane), work.start, -work.length))
    return Timeline(name, time, slices)


def _metadata_event(name: str, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    """Return a metadata event ("M") of process 1 that names a lane (`thread`) or the process."""
    return {"ph": "M", "pid": 1, "tid": thread, "name": name, "args": args}


def _host_marker(text: str, start: float) -> Slice:
    """Return a slice of unknown duration on the host at cycle `start`."""
    return Slice("host", text, start, 0.0, {"price": "not known"})


def _format_op_types(op_types: Sequence[str], max_count: int = 4) -> str:
    """Name the first `max_count` distinct operator types, in order, and count the others."""
    distinct = list(dict.fromkeys(op_types))
    text = ", ".join(distinct[:max_count])
    if len(distinct) > max_count:
        text += f" and {len(distinct) - max_count} more"
    return text


def _iter_part_slices(
    part: ProgramPart, latency: Latency, start: float, named: bool
) -> Iterator[Slice]:
    """Yield the slices of a part for the chip that starts at the cycle `start`.

    With `named`, host markers begin with the part's name.
    """
    prefix = f"{part.name}: " if named else ""
    yield _host_marker(f"{prefix}{len(part.inputs)} inputs to integers", start)
    for layer in latency.layers:
        yield from _iter_layer_slices(layer, latency, start)
    yield _host_marker(f"{prefix}{len(part.outputs)} outputs from integers", start + latency.total)


def list_layer_slices(latency: Latency) -> list[Slice]:
    """Return the slices of all layers of a part that starts at cycle 0, in execution order."""
    return [work for layer in latency.layers for work in _iter_layer_slices(layer, latency, 0.0)]


def _iter_layer_slices(layer: LayerLatency, latency: Latency, part_start: float) -> Iterator[Slice]:
    """Yield the slices of a layer: constant fetch (DMA), wait, copies, computation, call overhead.

    `part_start` is the cycle at which the layer's part begins; phases without cycles are left out.
    """
    cycle = part_start + layer.start
    label = layer.node or layer.name
    name = f"{layer.operator} {label}"
    if layer.dma:
        yield Slice("DMA", f"constants of {label}", part_start + layer.fetch, layer.dma)
    if layer.wait:
        yield Slice("NPU", "wait for constants", cycle, layer.wait, {"layer": name})
    cycle += layer.wait
    if layer.moved:
        yield Slice("NPU", "copies from and to psram", cycle, layer.moved, {"layer": name})
    cycle += layer.moved
    yield from _iter_compute_slices(layer, latency, name, cycle)


def _iter_compute_slices(
    layer: LayerLatency, latency: Latency, name: str, cycle: float
) -> Iterator[Slice]:
    """Yield the computation of a layer that starts at `cycle`, with notes on unknown costs.

    The overhead of its kernel calls is a slice within it; unpriced work on the host is a host
    marker. `name` is the title of the slice. No slice if it has neither cycles nor unpriced work.
    """
    unpriced = [work for work in latency.unpriced if work.name == layer.name]
    facts: dict[str, Any] = {
        "cycles": round(layer.cycles),
        "at most": round(layer.high),
        "calls": layer.calls,
    }
    if unpriced:
        facts["no price"] = "; ".join(f"{work.what}, {work.bytes} bytes" for work in unpriced)
    if layer.cycles or unpriced:
        yield Slice("NPU", name, cycle, layer.cycles, facts)
    if layer.overhead:
        overhead = min(layer.overhead, layer.cycles)
        yield Slice("NPU", f"starts of {layer.calls} calls", cycle, overhead)
    for work in unpriced:
        if "host" in work.what:
            yield _host_marker(f"{work.what}, for {name}", cycle)
