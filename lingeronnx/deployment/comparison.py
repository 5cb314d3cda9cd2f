"""Compare the tensors of a device with the simulator, and explain the first difference.

Tensors are compared in graph order. All tensors upstream of the first wrong one agreed or were not
dumped, so the fault lies between them. The fault hypotheses (`iterate_hypotheses`) are therefore
computed from correct integers. A hypothesis explains a difference if it reproduces all integers of
the device, and at least `_MIN_EXPLAINED_VALUES` of them differ: fewer may agree by chance. Any
other difference is unexplained; remarks then state where and by how much the values differ.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import ConfigError, DataError, split_words
from ..ir import ir
from ..operators.integer_ops import DEQUANT, find_integer_op_by_name
from ..runtime.program_parts import split_into_parts
from ..runtime.streaming import CallCount
from ..targets import require_measured
from .difference_patterns import describe_patterns
from .dumps import DumpedTensor, read_folder, read_log, read_outputs, to_raw_bytes, truncate_name
from .fault_hypotheses import iterate_hypotheses
from .host_dumps import HostDump, match_host_dumps, read_manifest_tolerances, widen_tolerance
from .layer_subgraph import LayerSubgraph, extract_layer
from .simulation import SampleRun, SimulatedGraph, read_integer_graph, run_feeds, run_samples
from .version_matching import VersionMatch, match_versions

__all__ = ["Cause", "TensorDifference", "Verification", "verify"]

_MAX_CAUSES = 3
_MAX_HYPOTHESES = 4000  # a layer of many nodes has more
_MIN_EXPLAINED_VALUES = 16
_UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Cause:
    """An explanation of the first difference, or that there is none.

    kind : category in one or two words; "unexplained" if no known fault explains the difference,
    "packer" for a rule of the packer that a node breaks. exact : whether it reproduces every
    integer of the device; true for all other kinds.
    """

    kind: str
    text: str
    exact: bool


@dataclass(frozen=True)
class TensorDifference:
    """The first tensor in graph order that differs from the simulator.

    index : of its first differing element, or None if only a checksum is known. expected, found :
    that element in the simulator and on the device; floats for a host part. differing, size :
    number of differing elements and of all. largest : largest absolute difference, in integer
    steps. nodes : nodes between this tensor and tensors that agree; one of them is faulty.
    """

    tensor: str
    node: str
    operator: str
    dump: str
    index: tuple[int, ...] | None
    expected: int | float | None
    found: int | float | None
    differing: int | None
    size: int
    largest: int | float | None
    nodes: Sequence[str]
    causes: Sequence[Cause]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Verification:
    """Result of comparing a device with the simulator.

    agrees : whether every dumped tensor of the graph is equal. compared : names of those tensors.
    different : those that differ. first : details of the first of them. unknown : dumped tensors
    that are not in the graph (created by the packer). unseen : tensors of the graph that were not
    dumped. versions : the versions of the executor that compute the dumped integers.
    """

    agrees: bool
    compared: Sequence[str]
    different: Sequence[str]
    first: TensorDifference | None
    unknown: Sequence[str] = ()
    unseen: Sequence[str] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    versions: VersionMatch = field(default_factory=VersionMatch)

    def to_dict(self) -> dict[str, object]:
        """Return all fields, those of the first difference included, as JSON-ready values."""
        return {**asdict(self), "versions": self.versions.to_dict()}


def verify(
    model: ir.ModelLike,
    data: object,
    *,
    dump: str | os.PathLike[str] | None = None,
    log: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    sample: int = 0,
    state: Mapping[str, str] | None = None,
    calls: CallCount | None = None,
    packer_args: str | None = None,
    allow_unmeasured: bool = False,
) -> Verification:
    """Compare the tensors of a device with those of the simulator for the same sample.

    Parameters
    ----------
    model
        The integer graph, complete or only its chip part.
    data
        Inputs that the device was fed, in any form that `Data` accepts. Integers of a Quant's type
        are taken as already quantized.
    dump, log, output
        Exactly one of them: the executor's folder of dumps; a board's log with checksum lines
        (their format was never tested on a real chip); a file of all outputs.
    sample
        Index of the sample that the device ran last, counted from 0.
    state
        {output: input} of states that were fed back, starting from zeros. An item of the data is
        then one call.
    calls
        With `state`: number of consecutive calls in an item of the data, or "all" for one sample
        per call; None: one. An item of several calls is a sequence that begins with zero states.
    packer_args
        Arguments of the packer, used to check its memory plan; default those that `quantize`
        prints.
    allow_unmeasured
        Allow versions of the executor and operators that are known from reading only.

    Returns
    -------
    Verification
        Tensors compared, those that differ, and the explanations of the first difference.

    Raises
    ------
    DataError
        If the files are not dumps, or the data have no such sample.
    ConfigError
        If none or several of dump, log and output are passed, or if the executor was never measured
        and this is not allowed.
    """
    sources = [item for item in (dump, log, output) if item is not None]
    if len(sources) != 1:
        raise ConfigError("pass exactly one of --device-dump, --device-log and --device-output")
    graph = read_integer_graph(model)
    unmeasured = require_measured(graph.target, graph.operators.values(), allow_unmeasured)
    runs = run_samples(graph, data, max(sample - 1, 0), sample + 2, state, calls)
    if sample not in runs:
        raise DataError(f"--sample {sample}: the data have no such sample; samples count from 0")
    run = runs[sample]
    dumped, notes = _read_device_data(graph, run, dump, log, sources[0])
    matched, unmatched, match_notes = _match_tensors(graph, run, dumped)
    host_dumps = {
        host_dump.tensor: widen_tolerance(graph, run, host_dump)
        for host_dump in match_host_dumps(graph, run, unmatched, read_manifest_tolerances(model))
    }
    if not matched and not host_dumps:
        raise DataError(
            f"the graph has none of the dumped tensors, such as '{dumped[0].name}'; pass the graph "
            "that was packed"
        )
    host_dump_ids = {id(host_dump.dump) for host_dump in host_dumps.values()}
    unknown = [device.name for device in unmatched if id(device) not in host_dump_ids]
    wrong = [name for name, host_dump in host_dumps.items() if host_dump.mismatches.any()]
    wrong += [name for name, device in matched.items() if not device.is_equal(run.integers[name])]
    different, first = _sort_by_graph_order(graph, wrong), None
    if different and different[0] in host_dumps:
        first = _describe_host_difference(graph, host_dumps[different[0]])
    elif different:
        neighbors = _get_neighboring_samples(runs, sample)
        first = _explain_difference(graph, run, neighbors, different[0], matched)
        packer_causes = _find_packer_causes(graph, first.nodes, packer_args)
        first = replace(first, causes=(*first.causes, *packer_causes))
    compared = (*matched, *host_dumps)
    if first is not None:
        notes += _explain_complete_difference(compared, different, first)

    def simulate_version(version_graph: SimulatedGraph) -> SampleRun | None:
        """Return the tensors of the sample on another version, None if they are not known.

        States that were fed back have that version's values, so that all earlier calls run again.
        """
        if not state:
            return run_feeds(version_graph, run.feeds)
        return run_samples(version_graph, data, sample, sample + 1, state, calls).get(sample)

    return Verification(
        agrees=not different,
        compared=compared,
        different=different,
        first=first,
        unknown=tuple(unknown),
        unseen=_find_missing_tensors(graph, run, matched),
        notes=(*unmeasured, *notes, *match_notes),
        versions=match_versions(graph, run, matched, simulate_version),
    )


_Path = str | os.PathLike[str]


def _explain_complete_difference(
    compared: Sequence[str], different: Sequence[str], first: TensorDifference
) -> list[str]:
    """Return a note if every compared tensor differs and no fault explains the first one, else [].

    One fault seldom changes several tensors completely; another input or another graph does.
    """
    is_explained = any(cause.exact for cause in first.causes)
    if is_explained or len(different) < max(len(compared), _MIN_TENSORS_TO_JUDGE):
        return []
    note = (
        "every tensor differs: the device probably ran another input or another graph; check "
        "--input and --sample, and pack and flash the files of one folder again"
    )
    return [note]


_MIN_TENSORS_TO_JUDGE = 3


def _read_device_data(
    graph: SimulatedGraph, run: SampleRun, dump: _Path | None, log: _Path | None, output: _Path
) -> tuple[list[DumpedTensor], list[str]]:
    """Read the tensors of a device from a dump folder, a log, or else a file of outputs.

    Returns (tensors, notes for the user). `dump` is read if it is not None, else `log`, else
    `output`, a file of the graph's integer outputs one after another.

    Raises
    ------
    ConfigError
        If the graph has no integer output for `output`.
    """
    if dump is not None:
        return read_folder(Path(dump)), []
    if log is not None:
        note = "the log format is taken from the executor's sources and was never tested on silicon"
        return read_log(Path(log)), [note]
    outputs = {graph.device[name]: run.integers[name] for name in graph.outputs}
    if not outputs:
        raise ConfigError(
            "the graph has no integer output to compare with --device-output; pass --device-dump"
        )
    return read_outputs(Path(output), outputs), []


def _match_tensors(
    graph: SimulatedGraph, run: SampleRun, dumped: Sequence[DumpedTensor]
) -> tuple[dict[str, DumpedTensor], list[DumpedTensor], list[str]]:
    """Match dumped tensors with those of the simulator by truncated name, and shape if it is known.

    If no candidate has the shape, the name alone counts. Returns {tensor: its dump} in graph order,
    the unmatched dumps, and notes on dumps with several candidates, which are in neither.
    """
    names_by_dump_name = _group_names_by_dump_name(graph, run)
    matched: dict[str, DumpedTensor] = {}
    unmatched: list[DumpedTensor] = []
    notes: list[str] = []
    for device in dumped:
        candidates = names_by_dump_name.get(truncate_name(device.name), [])
        same_shape = [
            name for name in candidates if device.shape in (None, run.integers[name].shape)
        ]
        candidates = same_shape or candidates
        if not candidates:
            unmatched.append(device)
        elif len(candidates) > 1:
            notes.append(
                f"{device.source}: {len(candidates)} tensors have this truncated name; not compared"
            )
        else:
            matched[candidates[0]] = device
    in_graph_order = {name: matched[name] for name in run.integers if name in matched}
    return in_graph_order, unmatched, notes


def _group_names_by_dump_name(graph: SimulatedGraph, run: SampleRun) -> dict[str, list[str]]:
    """Return {truncated name that a dump may have: integer tensors of a run}.

    A quantized graph input may be dumped by the name of its Quant's output or of the input itself.
    """
    names: dict[str, list[str]] = {}
    for name in run.integers:
        if name in graph.operators:
            names.setdefault(truncate_name(graph.device[name]), []).append(name)
        if name in graph.quantized_inputs:  # the packer keeps the name of the graph input
            input_name = graph.device[graph.quantized_inputs[name]]
            names.setdefault(truncate_name(input_name), []).append(name)
    return names


def _get_neighboring_samples(runs: Mapping[int, SampleRun], sample: int) -> dict[str, SampleRun]:
    """Return the runs of the samples before and after `sample`, as far as `runs` has them.

    The keys are "sample before" and "sample after".
    """
    labels = {sample - 1: "sample before", sample + 1: "sample after"}
    return {label: runs[index] for index, label in labels.items() if index in runs}


def _find_missing_tensors(
    graph: SimulatedGraph, run: SampleRun, matched: Mapping[str, DumpedTensor]
) -> tuple[str, ...]:
    """List the integer tensors that the device could have dumped but did not, in graph order.

    Outputs of Dequants and of Quants of graph inputs are not expected.
    """
    dequantized = [name for name in graph.operators if graph.operators[name] == DEQUANT.name]
    expected = graph.operators.keys() - graph.quantized_inputs.keys() - set(dequantized)
    return tuple(name for name in run.integers if name in expected and name not in matched)


def _sort_by_graph_order(graph: SimulatedGraph, names: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct `names` in graph order, those that no node computes first."""
    outputs = [name for node in graph.proto.graph.node for name in node.output]
    position = {name: index for index, name in enumerate(outputs)}
    return tuple(sorted(dict.fromkeys(names), key=lambda name: position.get(name, -1)))


def _describe_host_difference(graph: SimulatedGraph, host_dump: HostDump) -> TensorDifference:
    """Describe the first element by which the dumped tensor of a host part exceeds its tolerance.

    At least one must. If the dump has no values of the right size, there is no location, only a
    remark on the number of bytes.
    """
    node = next((n for n in graph.proto.graph.node if host_dump.tensor in n.output), None)
    expected, actual = host_dump.expected, host_dump.actual
    location: dict[str, Any] = dict.fromkeys(("index", "expected", "found", "differing", "largest"))
    remarks = []
    if actual is None:
        dumped_bytes = len(host_dump.dump.data or b"")
        remarks.append(f"the program has {dumped_bytes} bytes, the simulator {expected.nbytes}")
    else:
        mismatches = host_dump.mismatches
        index = np.unravel_index(int(np.flatnonzero(mismatches)[0]), expected.shape)
        with np.errstate(invalid="ignore"):
            gap = np.abs(actual[mismatches].astype(np.float64) - expected[mismatches])
        location = {
            "index": tuple(map(int, index)),
            "expected": expected[index].item(),
            "found": actual[index].item(),
            "differing": int(np.count_nonzero(mismatches)),
            "largest": float(np.nan_to_num(gap).max(initial=0.0)),
        }
    text = "no fault of a host part is known; its inputs, where dumped, are equal"
    return TensorDifference(
        host_dump.tensor,
        node.name if node is not None else "",
        node.op_type if node is not None else "input",
        host_dump.dump.source,
        **location,
        size=expected.size,
        nodes=[node.name] if node is not None else [],
        causes=[Cause(_UNEXPLAINED, text, False)],
        remarks=remarks,
    )


def _explain_difference(
    graph: SimulatedGraph,
    run: SampleRun,
    neighbors: Mapping[str, SampleRun],
    tensor: str,
    matched: Mapping[str, DumpedTensor],
) -> TensorDifference:
    """Describe the first difference of `tensor`, and its explanations by the layer's known faults.

    Parameters
    ----------
    run
        The simulator's tensors of the sample.
    neighbors
        Runs of other samples by a label, to recognize stale values.
    matched
        The device's tensors by the graph's name. If one has only a checksum, the position is that
        of a checksum word.
    """
    device, expected = matched[tensor], run.integers[tensor]
    layer = extract_layer(graph, tensor, _collect_correct_tensors(graph, run, tensor, matched))
    node = next(n for n in graph.proto.graph.node if tensor in n.output)
    actual, remarks = _read_values(device, expected)
    causes = _find_causes(graph, layer, tensor, run, neighbors, device, actual)
    if actual is not None:
        location = _locate_first_difference(expected, actual)
    else:
        location = _locate_by_checksum_words(device, expected)
    if not causes:
        causes = [Cause(_UNEXPLAINED, _explain_missing_cause(location["differing"]), False)]
        if actual is not None:
            form = find_integer_op_by_name(graph.operators[tensor])
            is_recurrent = expected.ndim == 3 and form is not None and bool(form.states)
            remarks += describe_patterns(expected, actual, is_recurrent)
    return TensorDifference(
        tensor,
        node.name,
        node.op_type,
        device.source,
        **location,
        size=expected.size,
        nodes=[n.name for n in layer.nodes] if layer is not None else [node.name],
        causes=causes,
        remarks=remarks,
    )


def _read_values(device: DumpedTensor, expected: np.ndarray) -> tuple[np.ndarray | None, list[str]]:
    """Return the device's integers in the simulator's shape, and remarks.

    The integers are None if they are not known (a checksum), or of another number; another shape is
    remarked in either case.
    """
    remarks = []
    if device.shape is not None and device.shape != expected.shape:
        remarks.append(
            f"the device's shape is {list(device.shape)}, the simulator's {list(expected.shape)}"
        )
    values = device.to_elements(expected.dtype)
    if values is None:
        return None, remarks
    if values.size != expected.size:
        remarks.append(f"the device has {values.size} elements, the simulator {expected.size}")
        return None, remarks
    return values.reshape(expected.shape), remarks


def _collect_correct_tensors(
    graph: SimulatedGraph, run: SampleRun, tensor: str, matched: Mapping[str, DumpedTensor]
) -> dict[str, np.ndarray]:
    """Collect the integers of graph inputs, and of dumped tensors that agree with the run, by name.

    Graph inputs, before and after their Quant, are taken as correct, but for `tensor` itself.
    """
    correct = {}
    for name in (*graph.quantized_inputs, *(v.name for v in graph.proto.graph.input)):
        if name in run.integers and name != tensor:
            correct[name] = run.integers[name]
    for name, device in matched.items():
        if device.is_equal(run.integers[name]):
            correct[name] = run.integers[name]
    return correct


def _find_causes(
    graph: SimulatedGraph,
    layer: LayerSubgraph | None,
    tensor: str,
    run: SampleRun,
    neighbors: Mapping[str, SampleRun],
    device: DumpedTensor,
    actual: np.ndarray | None,
) -> list[Cause]:
    """Find faults that reproduce the device's tensor, at most one of a kind.

    They are among the first `_MAX_HYPOTHESES` of `iterate_hypotheses`, at most `_MAX_CAUSES`.
    Returns an empty list if fewer than `_MIN_EXPLAINED_VALUES` values differ. `actual` are the
    device's integers in the simulator's shape, or None if they are not known.
    """
    expected = run.integers[tensor]
    if expected.size < _MIN_EXPLAINED_VALUES:
        return []
    if actual is not None and np.count_nonzero(actual != expected) < _MIN_EXPLAINED_VALUES:
        return []
    hypotheses = iterate_hypotheses(graph, layer, tensor, run, neighbors, actual)
    causes: dict[str, Cause] = {}
    for hypothesis in islice(hypotheses, _MAX_HYPOTHESES):
        kind, array = hypothesis.kind, hypothesis.array.astype(expected.dtype)
        if kind in causes or not device.is_equal(array):
            continue
        if np.count_nonzero(array.reshape(-1) != expected.reshape(-1)) < _MIN_EXPLAINED_VALUES:
            continue  # the device's values, of which only a checksum is known, are those of `array`
        causes[kind] = Cause(kind, hypothesis.text, True)
        if len(causes) == _MAX_CAUSES:
            break
    return list(causes.values())


def _explain_missing_cause(differing: int | None) -> str:
    """Return a sentence on why no cause is named: too few values differ, or no known fault fits.

    `differing` is their number, or None if it is unknown.
    """
    if differing is not None and differing < _MIN_EXPLAINED_VALUES:
        return (
            f"only {differing} values differ; a fault that agrees with fewer than "
            f"{_MIN_EXPLAINED_VALUES} may do so by chance"
        )
    values = "values that differ" if differing is None else f"{differing} values that differ"
    return f"no known fault reproduces all {values}"


def _find_packer_causes(
    graph: SimulatedGraph, nodes: Sequence[str], packer_args: str | None
) -> list[Cause]:
    """List the packer's findings on `nodes`, and all findings about its memory plan.

    `packer_args` are the arguments that the user packed with; None: those chosen here. Empty
    without a packer.
    """
    if not graph.target.has_packer:
        return []
    argv = None if packer_args is None else split_words(packer_args)
    causes = []
    for part in split_into_parts(graph.session.model, graph.target).chip:
        for finding in part.choice_for_arguments(argv).verdict.findings:
            if finding.node in nodes or finding.level == "plan":
                causes.append(Cause("packer", str(finding), False))
    return causes


def _locate_first_difference(expected: np.ndarray, actual: np.ndarray) -> dict[str, Any]:
    """Describe where two integer arrays of one shape differ; they must differ somewhere.

    Returns a dict of index, expected and found (of the first difference in C order), differing
    (number of elements) and largest (absolute difference).
    """
    differing = np.flatnonzero(expected.reshape(-1) != actual.reshape(-1))
    index = np.unravel_index(int(differing[0]), expected.shape)
    gap = np.abs(actual.astype(np.int64) - expected.astype(np.int64))
    return {
        "index": tuple(map(int, index)),
        "expected": int(expected[index]),
        "found": int(actual[index]),
        "differing": len(differing),
        "largest": int(gap.max()),
    }


def _locate_by_checksum_words(device: DumpedTensor, expected: np.ndarray) -> dict[str, Any]:
    """Locate a difference by the three words of a log line; return a dict for `TensorDifference`.

    The words are the first, middle and last four bytes of the tensor. Sets index, expected and
    found of the first word that differs, or None if the words agree; differing and largest are
    always None.
    """
    unknown: dict[str, Any] = dict.fromkeys(("index", "expected", "found", "differing", "largest"))
    data = to_raw_bytes(expected)
    if device.words is None or len(data) < 4:
        return unknown
    for start, word in zip((0, len(data) // 2, len(data) - 4), device.words, strict=True):
        device_bytes, our_bytes = word.to_bytes(4, "little"), data[start : start + 4]
        if start % expected.itemsize or len(our_bytes) < 4 or device_bytes == our_bytes:
            continue
        dtype = expected.dtype.newbyteorder("<")
        device_values, our_values = (
            np.frombuffer(device_bytes, dtype),
            np.frombuffer(our_bytes, dtype),
        )
        offset = int(np.flatnonzero(device_values != our_values)[0])
        index = np.unravel_index(start // expected.itemsize + offset, expected.shape)
        return {
            **unknown,
            "index": tuple(map(int, index)),
            "expected": int(our_values[offset]),
            "found": int(device_values[offset]),
        }
    return unknown
