"""Our side of a comparison with a device.

What the simulator computes of the same inputs, by the device's names.
The packer takes Quants and Dequants out, so the device's tensors are the integer ones; a graph
input's own name stands for what its Quant writes. Must not know dumps.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from ..errors import ModelError
from ..formats import DEQUANT, QUANT, find_integer_op
from ..graph import ir
from ..graph.name_mapping import restore_user_names
from ..plan import Affine
from ..run.data import Data
from ..run.session import Session, is_integer_graph
from ..run.streaming import make_zero_states
from ..targets import Target
from .value_tracing import trace_moved_value

__all__ = ["SampleRun", "SimulatedGraph", "read_integer_graph", "run_samples"]


@dataclass(frozen=True)
class SimulatedGraph:
    """An integer graph to compare with.

    session : by the user's names. device : {tensor: its name in the chip's file}. entries : {what a
    Quant of a graph input writes: that input}. proto : the nodes, in order. operators : {tensor:
    the integer operator that writes it, or the node's own type}. outputs : the integer tensors
    behind the Dequants, in the order of the chip's outputs.
    """

    session: Session
    target: Target
    device: Mapping[str, str]
    quantized_inputs: Mapping[str, str]
    proto: onnx.ModelProto
    operators: Mapping[str, str]
    outputs: tuple[str, ...]

    def find_source_input(self, name: str, run: SampleRun) -> str:
        """Return the graph input that the Quant's output `name` holds, as far as the host only moves its values."""
        values = {str(v.name): v for v in ir.iter_values(self.session.model)}
        return str(trace_moved_value(values[self.quantized_inputs[name]], run.shapes).name)


@dataclass(frozen=True)
class SampleRun:
    """One sample: integers, and the floats around them, by the user's tensor names.

    Scales of the integers.
    feeds : what the graph's inputs were given, as real values.
    """

    integers: Mapping[str, np.ndarray]
    floats: Mapping[str, np.ndarray]
    scales: Mapping[str, float]
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {
            name: array.shape
            for part in (self.integers, self.floats)
            for name, array in part.items()
        }

    def with_names(self, names: Mapping[str, str]) -> SampleRun:
        """Return the run with other names of its tensors."""

        def of(part: Mapping[str, Any]) -> dict[str, Any]:
            return {names.get(name, name): item for name, item in part.items()}

        return SampleRun(of(self.integers), of(self.floats), of(self.scales), of(self.feeds))


def read_integer_graph(model: ir.ModelLike) -> SimulatedGraph:
    """Read an integer graph, from a file or from memory; ModelError for a float one."""
    from ..run.integer.runner import detect_target

    file = ir.as_model(model)
    model = restore_user_names(file)
    if not is_integer_graph(model):
        raise ModelError(
            "the model has no integer operator; give the graph that was packed, such as "
            "model_quant.onnx"
        )
    session = Session(
        model, arithmetic="executor"
    )  # what a board runs, whatever the graph's generation means
    graph, row = session.model, detect_target(session.model)
    packed = file if isinstance(model, str | os.PathLike) else row.with_safe_names(file)
    both = zip(ir.iter_values(graph), ir.iter_values(packed), strict=True)
    device = {str(ours.name): str(theirs.name) for ours, theirs in both}
    entries, outputs, operators = {}, [], {}
    for node in graph.graph:
        form = find_integer_op(node)
        operators.update(
            dict.fromkeys(map(_name, node.outputs), node.op_type if form is None else form.name)
        )
        if form is QUANT:
            entries[ir.output_name(node)] = ir.input_name(node)
        if form is DEQUANT:
            outputs.append(ir.input_name(node))
    for value in graph.graph.outputs:  # integers that leave as they are
        if (
            value.dtype is not None
            and value.dtype.name.startswith("INT")
            and value.name not in outputs
        ):
            outputs.append(str(value.name))
    return SimulatedGraph(
        session, row, device, entries, ir.to_proto(graph), operators, tuple(dict.fromkeys(outputs))
    )


def run_samples(
    graph: SimulatedGraph, data: object, start: int, stop: int, state: Mapping[str, str] | None
) -> dict[int, SampleRun]:
    """Return what the simulator computes of samples `start` to `stop` - 1, as far as there are any.

    state : {output: input}, fed back from call to call, from zeros: then an item of the data is a
    call, as for calibration, and of its samples the first is taken. Raises DataError as `Data`
    does, ConfigError for states that are not there.
    """
    stream = graph.session.stream(state) if state else None
    fed = set(state.values()) if state else set()
    specs = [spec for spec in graph.session.inputs if spec.name not in fed]
    first = make_zero_states([spec for spec in graph.session.inputs if spec.name in fed], 1)
    source = Data(data, specs, limit=stop if stream is None else None, what="input data")
    found = {}
    for number, (feeds, _) in enumerate(source.batches(1 if stream is None else 1 << 30)):
        if number >= stop:
            break
        feeds = {spec.name: spec.slice_samples(feeds[spec.name], 0, 1) for spec in specs}
        if number < start and stream is None:
            continue
        held = {} if stream is None else stream.state
        taps = list(graph.session.tensors({**feeds, **first, **held}))
        if stream is not None:
            arrays = {name: array for name, array, _ in taps}
            stream.reset({name: arrays[output] for output, name in (state or {}).items()})
        if number >= start:
            found[number] = _make_sample_run(
                taps, _to_real_feeds(graph, {**feeds, **first, **held}, taps)
            )
    return found


def _name(value: ir.Value) -> str:
    return str(value.name)


def _to_real_feeds(
    graph: SimulatedGraph,
    feeds: Mapping[str, np.ndarray],
    taps: list[tuple[str, np.ndarray, Affine | None]],
) -> dict[str, np.ndarray]:
    """Return feeds with real values for those that were quantized already."""
    scales = {
        graph.quantized_inputs[name]: held.scale
        for name, _, held in taps
        if name in graph.quantized_inputs and held is not None
    }
    return {
        name: (np.asarray(a) / scales[name]).astype(np.float32)
        if name in scales and a.dtype.kind == "i"
        else a
        for name, a in feeds.items()
    }


def _make_sample_run(
    taps: list[tuple[str, np.ndarray, Affine | None]], feeds: Mapping[str, np.ndarray]
) -> SampleRun:
    whole = {name: np.asarray(a) for name, a, _ in taps if a.dtype.kind == "i"}
    floats = {name: np.asarray(a) for name, a, _ in taps if a.dtype.kind == "f"}
    return SampleRun(
        whole, floats, {name: held.scale for name, _, held in taps if held is not None}, feeds
    )
