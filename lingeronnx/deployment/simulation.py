"""Run the simulator on the inputs of a device, and name its tensors as the device does.

The packer removes Quants and Dequants, so the device's tensors are the integer ones; the output of
a graph input's Quant has the name of the graph input on the device. Must not know dumps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx

from ..common.errors import ModelError
from ..ir import ir
from ..ir.name_mapping import restore_user_names
from ..ir.plan import Affine
from ..operators.chip_part import extract_chip_part, is_dequantized, order_packed_outputs
from ..operators.integer_ops import QUANT, find_integer_op
from ..quantization.prepare.recurrent_states import suggest_state_feedback
from ..runtime.data import Data, InputSpec
from ..runtime.provenance import load_fixed_arrays
from ..runtime.session import Session, is_integer_graph
from ..runtime.streaming import Call, CallCount, check_call_count, iter_calls, make_zero_states
from ..targets import Target
from .value_tracing import trace_moved_value

__all__ = ["SampleRun", "SimulatedGraph", "read_integer_graph", "run_feeds", "run_samples"]


@dataclass(frozen=True)
class SimulatedGraph:
    """An integer graph to compare with.

    session : runs the graph by the user's names. packed : the graph by the names in the chip's
    file. device : {tensor: its name in `packed`}. quantized_inputs : {output of a Quant: the
    Quant's input}. proto : the nodes in order. operators : {tensor: the integer operator that
    computes it, or the type of the node}. outputs : integer inputs of Dequants and integer graph
    outputs, in the order of the chip's outputs.
    """

    session: Session
    target: Target
    packed: ir.Model
    device: Mapping[str, str]
    quantized_inputs: Mapping[str, str]
    proto: onnx.ModelProto
    operators: Mapping[str, str]
    outputs: tuple[str, ...]

    def find_source_input(self, name: str, run: SampleRun) -> str:
        """Return the tensor that the Quant with the output `name` quantizes, traced upstream.

        The trace passes only standard nodes that keep all elements in the same order: Identity,
        Reshape and the like, and a Transpose that, by the shapes of `run`, moves only axes of size
        1. The result is usually a graph input.
        """
        values = {str(v.name): v for v in ir.iter_values(self.session.model)}
        return str(trace_moved_value(values[self.quantized_inputs[name]], run.shapes).name)


@dataclass(frozen=True)
class SampleRun:
    """Tensors of one sample, by the user's tensor names.

    integers, floats : values. scales : of the integers. feeds : the graph's inputs as real values.
    """

    integers: Mapping[str, np.ndarray]
    floats: Mapping[str, np.ndarray]
    scales: Mapping[str, float]
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every integer and float tensor of the sample, by name."""
        return {name: array.shape for name, array in {**self.integers, **self.floats}.items()}

    def with_names(self, names: Mapping[str, str]) -> SampleRun:
        """Return a copy with tensors renamed by {old: new}; others keep their names."""

        def rename(items: Mapping[str, Any]) -> dict[str, Any]:
            """Return the same items by new names; names that are not renamed are kept."""
            return {names.get(name, name): item for name, item in items.items()}

        return SampleRun(
            rename(self.integers), rename(self.floats), rename(self.scales), rename(self.feeds)
        )


def read_integer_graph(model: ir.ModelLike) -> SimulatedGraph:
    """Read an integer graph from a file or from memory, and prepare the simulator for it.

    The simulator uses the executor's arithmetic. Names are the user's; those of the device are
    those in the model, or the ones that the packer would get if it misreads some of these.

    Raises
    ------
    ModelError
        If the model has no integer operator.
    """
    from ..runtime.integer.runner import detect_target

    file_model = ir.as_model(model)
    user_model = restore_user_names(file_model)
    if not is_integer_graph(user_model):
        raise ModelError(
            "the model has no integer operator; pass the graph that was packed, such as "
            "model_quant.onnx"
        )
    # A board computes the executor's arithmetic, whatever generation the graph was written for.
    session = Session(user_model, arithmetic="executor")
    graph, target = session.model, detect_target(session.model)
    packed = _choose_device_names(file_model, graph, target)
    value_pairs = zip(ir.iter_values(graph), ir.iter_values(packed), strict=True)
    device_names = {str(ours.name): str(theirs.name) for ours, theirs in value_pairs}
    quantized_inputs, operators = {}, {}
    for node in graph.graph:
        integer_op = find_integer_op(node)
        op_name = node.op_type if integer_op is None else integer_op.name
        operators.update({str(value.name): op_name for value in node.outputs})
        if integer_op is QUANT:
            quantized_inputs[ir.output_name(node)] = ir.input_name(node)
    return SimulatedGraph(
        session,
        target,
        packed,
        device=device_names,
        quantized_inputs=quantized_inputs,
        proto=ir.to_proto(graph),
        operators=operators,
        outputs=_list_integer_outputs(graph, target),
    )


def _choose_device_names(file_model: ir.Model, user_model: ir.Model, target: Target) -> ir.Model:
    """Return the graph by the names of the device.

    `file_model`, by the names in the file, if the packer accepts all of them. Otherwise the device
    cannot have them, and the safe names are those that `user_model` gets.
    """
    if target.with_safe_names(file_model) is file_model:
        return file_model
    return target.with_safe_names(user_model)


def _list_integer_outputs(graph: ir.Model, target: Target) -> tuple[str, ...]:
    """Return the integer tensors that leave the chip, in the executor's order, each once."""
    outputs = []
    for value in order_packed_outputs(extract_chip_part(graph, target).graph.outputs):
        node = ir.producer(value)
        if node is not None and is_dequantized(value):
            value = ir.require_input(node)
        outputs.append(str(value.name))
    return tuple(dict.fromkeys(outputs))


def run_samples(
    graph: SimulatedGraph,
    data: object,
    start: int,
    stop: int,
    state: Mapping[str, str] | None,
    calls: CallCount | None = None,
) -> dict[int, SampleRun]:
    """Run the simulator on samples `start` to `stop` - 1, as far as the data have them.

    Parameters
    ----------
    graph, data
        The graph, and inputs in any form that `Data` accepts.
    start, stop
        Range of sample indices.
    state
        {output: input} fed back from call to call, starting from zeros. An item of the data is then
        one call, as for calibration, of which the first sample is used. Earlier calls are run too.
    calls
        With `state`: number of consecutive calls in an item of the data, or "all" for one sample
        per call; None: one. An item of several calls is a sequence that begins with zero states.

    Returns
    -------
    dict of int to SampleRun
        Tensors by sample index.

    Raises
    ------
    DataError
        If the data are invalid or do not fit the inputs of the graph.
    ConfigError
        If a state does not exist.
    """
    stream = graph.session.stream(state) if state else None
    fed_back = set(state.values()) if state else set()
    specs = [spec for spec in graph.session.inputs if spec.name not in fed_back]
    state_specs = [spec for spec in graph.session.inputs if spec.name in fed_back]
    initial_states = make_zero_states(state_specs, 1)
    runs = {}
    for index, call in enumerate(_iter_samples(graph, data, specs, stop, state, calls)):
        if index >= stop:
            break
        if index < start and stream is None:
            continue
        feeds = {spec.name: spec.slice_samples(call.feeds[spec.name], 0, 1) for spec in specs}
        states = {} if stream is None or call.restarts else stream.state
        all_feeds = {**feeds, **initial_states, **states}
        tensors = list(graph.session.tensors(all_feeds))
        if stream is not None:
            arrays = {name: array for name, array, _ in tensors}
            stream.reset({name: arrays[output] for output, name in (state or {}).items()})
        if index >= start:
            runs[index] = _make_sample_run(tensors, _to_real_feeds(graph, all_feeds, tensors))
    return runs


def run_feeds(graph: SimulatedGraph, feeds: Mapping[str, np.ndarray]) -> SampleRun:
    """Run the simulator on the inputs of one sample, given as real values."""
    return _make_sample_run(list(graph.session.tensors(dict(feeds))), feeds)


def _iter_samples(
    graph: SimulatedGraph,
    data: object,
    specs: Sequence[InputSpec],
    stop: int,
    state: Mapping[str, str] | None,
    calls: CallCount | None,
) -> Iterator[Call]:
    """Yield the first `stop` samples one by one, or all calls if states are fed back.

    Parameters
    ----------
    graph
        Graph whose states an error about missing inputs suggests to feed back.
    data
        Inputs in any form that `Data` accepts.
    specs
        Inputs without the states that are fed back.
    stop
        Number of samples; ignored if states are fed back.
    state
        {output: input} of states, or None.
    calls
        With `state`: number of consecutive calls in an item of the data, or "all" for one sample
        per call; None: one.
    """
    check_call_count(state, calls)
    fixed = load_fixed_arrays(graph.session.model)
    if not state:
        advice = partial(suggest_state_feedback, graph.session.model)
        source = Data(data, specs, limit=stop, label="input data", advice=advice, fixed=fixed)
        yield from (Call(feeds, labels) for feeds, labels in source.batches(1))
        return
    source = Data(data, specs, label="input data", fixed=fixed, whole_files=True)
    yield from iter_calls(source, state.values(), calls)


def _to_real_feeds(
    graph: SimulatedGraph,
    feeds: Mapping[str, np.ndarray],
    tensors: list[tuple[str, np.ndarray, Affine | None]],
) -> dict[str, np.ndarray]:
    """Convert the feeds that are integers already to real values (float32); others are unchanged.

    `tensors` has (name, array, parameters) of the run; an input's scale is that of the Quant that
    reads it.
    """
    scales = {
        graph.quantized_inputs[name]: qparams.scale
        for name, _, qparams in tensors
        if name in graph.quantized_inputs and qparams is not None
    }
    real_feeds = {}
    for name, array in feeds.items():
        if name in scales and array.dtype.kind == "i":
            array = (np.asarray(array) / scales[name]).astype(np.float32)
        real_feeds[name] = array
    return real_feeds


def _make_sample_run(
    tensors: list[tuple[str, np.ndarray, Affine | None]], feeds: Mapping[str, np.ndarray]
) -> SampleRun:
    """Sort the tensors of a run, (name, array, parameters or None), into integers and floats.

    Other types are left out. `feeds` are the real-valued inputs.
    """
    integers = {name: np.asarray(array) for name, array, _ in tensors if array.dtype.kind == "i"}
    floats = {name: np.asarray(array) for name, array, _ in tensors if array.dtype.kind == "f"}
    scales = {name: qparams.scale for name, _, qparams in tensors if qparams is not None}
    return SampleRun(integers, floats, scales, feeds)
