"""Comparing what a device computed with the simulator.

The first tensor and element that differ, and why they might.
Tensors are compared in graph order. All that the first bad one is computed from agreed, or was not
shown: so the fault lies between, and the suspects (`iterate_hypotheses`) are computed from the
right integers. One that gives exactly the device's integers explains them; where there is none,
only the pattern of the differences is told.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError, split_words
from ..formats import DEQUANT, GRU, LSTM
from ..graph import ir
from ..run.program_parts import split_into_parts
from .difference_patterns import describe_patterns
from .dumps import DumpedTensor, read_folder, read_log, read_outputs, to_raw_bytes, truncate_name
from .fault_hypotheses import FaultHypothesis, iterate_hypotheses
from .host_dumps import HostDump, match_host_dumps, read_manifest_tolerances, widen_tolerance
from .layer_subgraph import LayerSubgraph, extract_layer
from .simulation import SampleRun, SimulatedGraph, read_integer_graph, run_samples

__all__ = ["Cause", "TensorDifference", "Verification", "verify"]

_MAX_CAUSES = 3
_MAX_SUSPECTS = 4000  # suspects of a layer of many nodes


@dataclass(frozen=True)
class Cause:
    """What would explain the first difference.

    kind : in one or two words. exact : whether it gives the device's integers, every one; else it
    is a guess.
    """

    kind: str
    text: str
    exact: bool


@dataclass(frozen=True)
class TensorDifference:
    """The first tensor that differs, in graph order.

    index : of its first element that differs, None where the device gave a checksum only. expected,
    found : that element, of a host part a float. differing, size : elements. largest : counts
    between the two at most. nodes : between it and tensors that agree, the fault is in one of them.
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
    """What a comparison found.

    agrees : every tensor that was shown and known is equal. compared : their names. different : all
    that differ. first : the first of them. unknown : shown, not in the graph (the packer's own).
    unseen : in the graph, not shown.
    """

    agrees: bool
    compared: Sequence[str]
    different: Sequence[str]
    first: TensorDifference | None
    unknown: Sequence[str] = ()
    unseen: Sequence[str] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-ready values."""
        return asdict(self)


def verify(
    model: ir.ModelLike,
    data: object,
    *,
    dump: str | os.PathLike[str] | None = None,
    log: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    sample: int = 0,
    state: Mapping[str, str] | None = None,
    packer_args: str | None = None,
) -> Verification:
    """Compare what a device computed with what the simulator computes for the same sample.

    Parameters
    ----------
    model
        The integer graph, whole or its chip part.
    data
        What the device was fed, as everywhere; integers of a Quant's type are taken as quantized.
    dump, log, output
        Give one of them: the executor's folder of dumps; a board's log with lines of checksums
        (their form was never tried on a real chip); a file of all outputs.
    sample
        Which sample of the data was run last, counted from 0.
    state
        {output: input} of states that were fed back, from zeros; then an item of the data is a
        call.
    packer_args
        What the packer was told, to judge its plan by; default what `quantize` says.

    Raises
    ------
    DataError
        For files that are no dump.
    ConfigError
        Where none or several of dump, log and output are given.
    """
    given = [item for item in (dump, log, output) if item is not None]
    if len(given) != 1:
        raise ConfigError("give one of --device-dump, --device-log and --device-output")
    graph = read_integer_graph(model)
    found = run_samples(graph, data, max(sample - 1, 0), sample + 2, state)
    if sample not in found:
        raise DataError(f"--sample {sample}: the data hold no such sample; they count from 0")
    ours = found[sample]
    dumped, notes = _read_device_data(graph, ours, dump, log, given[0])
    pairs, unknown, more = _match_tensors(graph, ours, dumped)
    hosts = {
        one.tensor: widen_tolerance(graph, ours, one)
        for one in match_host_dumps(graph, ours, unknown, read_manifest_tolerances(model))
    }
    strange = [
        shown.name for shown in unknown if all(shown is not one.dump for one in hosts.values())
    ]
    if not pairs and not hosts:
        raise DataError(
            f"no tensor shown is in the graph, such as '{dumped[0].name}'; give the graph that was "
            "packed"
        )
    wrong = [name for name, one in hosts.items() if one.mismatches.any()]
    wrong += [name for name, shown in pairs.items() if not shown.is_equal(ours.integers[name])]
    different, first = _sort_by_graph_order(graph, wrong), None
    if different and different[0] in hosts:
        first = _describe_host_difference(graph, hosts[different[0]])
    elif different:
        first = _explain_difference(
            graph, ours, _get_neighboring_samples(found, sample), different[0], pairs
        )
        first = replace(
            first, causes=(*first.causes, *_find_packer_causes(graph, first.nodes, packer_args))
        )
    unseen = _find_missing_tensors(graph, ours, pairs)
    return Verification(
        not different, (*pairs, *hosts), different, first, tuple(strange), unseen, (*notes, *more)
    )


_Path = str | os.PathLike[str]


def _read_device_data(
    graph: SimulatedGraph, ours: SampleRun, dump: _Path | None, log: _Path | None, output: _Path
) -> tuple[list[DumpedTensor], list[str]]:
    if dump is not None:
        return read_folder(Path(dump)), []
    if log is not None:
        note = "the log's form is taken from the executor's sources and was never tried on silicon"
        return read_log(Path(log)), [note]
    outputs = {graph.device[name]: ours.integers[name] for name in graph.outputs}
    if not outputs:
        raise ConfigError(
            "the graph has no integer output to compare --device-output with; give --device-dump"
        )
    return read_outputs(Path(output), outputs), []


def _match_tensors(
    graph: SimulatedGraph, ours: SampleRun, dumped: Sequence[DumpedTensor]
) -> tuple[dict[str, DumpedTensor], list[DumpedTensor], list[str]]:
    """Return what was shown of which tensor, in graph order; what is shown that the chip has not.

    Notes.
    """
    known: dict[str, list[str]] = {}
    for name in ours.integers:
        if name in graph.operators:
            known.setdefault(truncate_name(graph.device[name]), []).append(name)
        if name in graph.quantized_inputs:  # the graph input's own name survives its Quant
            known.setdefault(truncate_name(graph.device[graph.quantized_inputs[name]]), []).append(
                name
            )
    pairs: dict[str, DumpedTensor] = {}
    unknown: list[DumpedTensor] = []
    notes: list[str] = []
    for shown in dumped:
        names = known.get(truncate_name(shown.name), [])
        fitting = [
            n for n in names if shown.shape is None or shown.shape == ours.integers[n].shape
        ] or names
        if not fitting:
            unknown.append(shown)
            continue
        if len(fitting) > 1:
            notes.append(
                f"{shown.source}: {len(fitting)} tensors have that name after its cut; left out"
            )
            continue
        pairs[fitting[0]] = shown
    return {name: pairs[name] for name in ours.integers if name in pairs}, unknown, notes


def _get_neighboring_samples(found: Mapping[int, SampleRun], sample: int) -> dict[str, SampleRun]:
    labels = {sample - 1: "sample before", sample + 1: "sample after"}
    return {label: found[number] for number, label in labels.items() if number in found}


def _find_missing_tensors(
    graph: SimulatedGraph, ours: SampleRun, pairs: Mapping[str, DumpedTensor]
) -> tuple[str, ...]:
    hidden = {
        **graph.quantized_inputs,
        **{n: "" for n in graph.operators if graph.operators[n] == DEQUANT.name},
    }
    return tuple(
        n for n in ours.integers if n in graph.operators and n not in pairs and n not in hidden
    )


def _sort_by_graph_order(graph: SimulatedGraph, names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` in the order in which the graph computes them, what it computes not first.

    Each once.
    """
    made = [name for node in graph.proto.graph.node for name in node.output]
    place = {name: index for index, name in enumerate(made)}
    return tuple(sorted(dict.fromkeys(names), key=lambda name: place.get(name, -1)))


def _describe_host_difference(graph: SimulatedGraph, one: HostDump) -> TensorDifference:
    node = next((n for n in graph.proto.graph.node if one.tensor in n.output), None)
    place: dict[str, Any] = dict.fromkeys(("index", "expected", "found", "differing", "largest"))
    remarks = [f"the program has {len(one.dump.data or b'')} bytes, ours are {one.expected.nbytes}"]
    if one.actual is not None:
        off, remarks = one.mismatches, []
        at = np.unravel_index(int(np.flatnonzero(off)[0]), one.expected.shape)
        with np.errstate(invalid="ignore"):
            gap = np.abs(one.actual[off].astype(np.float64) - one.expected[off])
        place = {
            "index": tuple(map(int, at)),
            "expected": one.expected[at].item(),
            "found": one.actual[at].item(),
            "differing": int(np.count_nonzero(off)),
            "largest": float(np.nan_to_num(gap).max(initial=0.0)),
        }
    text = "a host part, or its C library; what it read is compared before it, where it was shown"
    return TensorDifference(
        one.tensor,
        node.name if node is not None else "",
        node.op_type if node is not None else "input",
        one.dump.source,
        **place,
        size=one.expected.size,
        nodes=[node.name] if node is not None else [],
        causes=[Cause("host", text, False)],
        remarks=remarks,
    )


def _explain_difference(
    graph: SimulatedGraph,
    ours: SampleRun,
    others: Mapping[str, SampleRun],
    tensor: str,
    pairs: Mapping[str, DumpedTensor],
) -> TensorDifference:
    shown, want = pairs[tensor], ours.integers[tensor]
    agreed = {n: ours.integers[n] for n, s in pairs.items() if s.is_equal(ours.integers[n])}
    entries = {
        n: ours.integers[n]
        for n in (*graph.quantized_inputs, *(v.name for v in graph.proto.graph.input))
        if n in ours.integers and n != tensor
    }
    layer = extract_layer(graph, tensor, {**entries, **agreed})
    node = next(n for n in graph.proto.graph.node if tensor in n.output)
    values = shown.to_elements(want.dtype)
    remarks = []
    if shown.shape is not None and shown.shape != want.shape:
        remarks.append(f"the device's shape is {list(shown.shape)}, ours {list(want.shape)}")
    have = values.reshape(want.shape) if values is not None and values.size == want.size else None
    if values is not None and have is None:
        remarks.append(f"the device has {values.size} elements, ours {want.size}")
    causes = _find_causes(graph, layer, tensor, ours, others, shown, have)
    place = (
        _locate_first_difference(want, have)
        if have is not None
        else _locate_by_checksum_words(shown, want)
    )
    nodes = [n.name for n in layer.nodes] if layer is not None else [node.name]
    return TensorDifference(
        tensor,
        node.name,
        node.op_type,
        shown.source,
        **place,
        size=want.size,
        nodes=nodes,
        causes=causes,
        remarks=remarks,
    )


def _find_causes(
    graph: SimulatedGraph,
    layer: LayerSubgraph | None,
    tensor: str,
    ours: SampleRun,
    others: Mapping[str, SampleRun],
    shown: DumpedTensor,
    have: np.ndarray | None,
) -> list[Cause]:
    found: list[FaultHypothesis] = []
    tried = iterate_hypotheses(graph, layer, tensor, ours, others, have)
    want = ours.integers[tensor]
    for suspect in islice(tried, _MAX_SUSPECTS):
        if shown.is_equal(suspect.array.astype(want.dtype)) and suspect.kind not in {
            s.kind for s in found
        }:
            found.append(suspect)
            if len(found) == _MAX_CAUSES:
                break
    causes = [Cause(s.kind, s.text, True) for s in found]
    if not causes and have is not None:
        recurrent = want.ndim == 3 and graph.operators[tensor] in (LSTM.name, GRU.name)
        causes = [
            Cause(kind, text, False) for kind, text in describe_patterns(want, have, recurrent)
        ]
    return causes


def _find_packer_causes(
    graph: SimulatedGraph, nodes: Sequence[str], packer_args: str | None
) -> list[Cause]:
    """Return what the packer's rules have against one of the `nodes`, and what writes past its plan anywhere."""
    if not graph.target.has_packer:
        return []
    words = None if packer_args is None else split_words(packer_args)
    parts = split_into_parts(graph.session.model, graph.target).chip
    found = [f for part in parts for f in part.choice_for_arguments(words).verdict.findings]
    return [Cause("packer", str(f), False) for f in found if f.node in nodes or f.level == "plan"]


def _locate_first_difference(want: np.ndarray, have: np.ndarray) -> dict[str, Any]:
    off = np.flatnonzero(want.reshape(-1) != have.reshape(-1))
    index = np.unravel_index(int(off[0]), want.shape)
    gap = np.abs(have.astype(np.int64) - want.astype(np.int64))
    return {
        "index": tuple(map(int, index)),
        "expected": int(want[index]),
        "found": int(have[index]),
        "differing": len(off),
        "largest": int(gap.max()),
    }


def _locate_by_checksum_words(shown: DumpedTensor, want: np.ndarray) -> dict[str, Any]:
    """Return the first element that differs as far as the three words of a checksum's line tell."""
    nothing: dict[str, Any] = dict.fromkeys(("index", "expected", "found", "differing", "largest"))
    data = to_raw_bytes(want)
    if shown.words is None or len(data) < 4:
        return nothing
    for start, word in zip((0, len(data) // 2, len(data) - 4), shown.words, strict=True):
        there, here = word.to_bytes(4, "little"), data[start : start + 4]
        if start % want.itemsize or len(here) < 4 or there == here:
            continue
        kind = want.dtype.newbyteorder("<")
        found, expected = np.frombuffer(there, kind), np.frombuffer(here, kind)
        at = int(np.flatnonzero(found != expected)[0])
        index = tuple(map(int, np.unravel_index(start // want.itemsize + at, want.shape)))
        return {**nothing, "index": index, "expected": int(expected[at]), "found": int(found[at])}
    return nothing
