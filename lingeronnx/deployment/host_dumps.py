"""Compare the dumps of a program's host parts: raw files named `host1_out0_TENSOR##_1_8.bin`.

Floats may differ by `HOST_TOLERANCE` of their range, or by the tolerance of `host_tolerances`;
other types must be equal. The range is that of the golden calls if the graph's file is in the
deployed folder, whose manifest contains it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..common.files import DEPLOYMENT_VERSION
from ..runtime.parts_runner import PartRun
from ..runtime.program_parts import split_into_parts
from .dumps import HOST_TOLERANCE, DumpedTensor, absolute_difference, max_magnitude
from .host_tolerances import compute_host_tolerances
from .simulation import SampleRun, SimulatedGraph

__all__ = [
    "HOST_LIMITS_KEY",
    "HostDump",
    "match_host_dumps",
    "make_host_port_prefix",
    "widen_tolerance",
    "read_manifest_tolerances",
]

#: Key of the manifest's absolute tolerances of host parts' floats: {tensor: tolerance}.
HOST_LIMITS_KEY = "host_limits"
_PORT = re.compile(r"(?P<part>host\d+)_(?P<end>in|out)(?P<index>\d+)_")


def make_host_port_prefix(part: str, direction: str, index: int) -> str:
    """Return the prefix of a dump's name for input ("in") or output ("out") `index` of a part."""
    return f"{part}_{direction}{index}_"


@dataclass(frozen=True)
class HostDump:
    """A dumped input or output tensor of a host part.

    actual : values of the program, or None if the sizes differ. expected : values of the simulator.
    tolerance : largest allowed absolute difference of a float.
    """

    tensor: str
    dump: DumpedTensor
    actual: np.ndarray | None
    expected: np.ndarray
    tolerance: float

    @property
    def mismatches(self) -> np.ndarray:
        """Mask of the elements that differ: floats by more than the tolerance, others at all.

        All True if the sizes differ.
        """
        if self.actual is None:
            return np.ones(self.expected.shape, bool)
        if self.expected.dtype.kind != "f":
            return np.asarray(self.actual != self.expected)
        return np.asarray(absolute_difference(self.actual, self.expected) > self.tolerance)


def read_manifest_tolerances(model: object) -> dict[str, float]:
    """Return {tensor: absolute tolerance} of the manifest in the folder of the file `model`.

    The result is empty for a model in memory, or if there is no manifest of `deploy`.
    """
    if not isinstance(model, str | os.PathLike):
        return {}
    try:
        body = json.loads(Path(model).with_name("manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # not a folder of `deploy`
    if not isinstance(body, dict) or DEPLOYMENT_VERSION.key not in body:
        return {}
    return dict(body.get("program", {}).get(HOST_LIMITS_KEY, {}))


def match_host_dumps(
    graph: SimulatedGraph,
    run: SampleRun,
    dumped: Sequence[DumpedTensor],
    tolerances: Mapping[str, float],
) -> list[HostDump]:
    """Match dumps with inputs and outputs of the graph's host parts; other dumps are skipped.

    Of several dumps of a tensor the last one counts.

    Parameters
    ----------
    graph, run
        The integer graph, and the simulator's tensors for the sample.
    dumped
        Dumps of the device that match no tensor of the chip.
    tolerances
        Absolute tolerance by the device's tensor name; used if it is larger than `HOST_TOLERANCE`
        of the tensor's range in this sample.
    """
    port_dumps = _find_port_dumps(dumped)
    if not port_dumps:
        return []
    host_parts = split_into_parts(graph.session.model, graph.target).host_parts
    part_by_name = {part.name: part for part in host_parts}
    known = {**run.feeds, **run.floats, **run.integers}
    host_dumps: dict[str, HostDump] = {}
    for device, match in port_dumps:
        part, index = part_by_name.get(match["part"]), int(match["index"])
        if part is None:
            continue
        names = part.inputs if match["end"] == "in" else part.outputs
        if index < len(names) and (name := names[index]) in known:
            tolerance = tolerances.get(graph.device[name], 0.0)
            expected = np.asarray(known[name])
            host_dumps[name] = _make_host_dump(name, device, expected, tolerance)
    return list(host_dumps.values())


def _find_port_dumps(
    dumped: Sequence[DumpedTensor],
) -> list[tuple[DumpedTensor, re.Match[str]]]:
    """Return (dump, match of its name) of the raw dumps named as ports of host parts."""
    port_dumps = []
    for device in dumped:
        match = _PORT.match(device.name)
        if match is not None and device.data is not None:
            port_dumps.append((device, match))
    return port_dumps


def _make_host_dump(
    name: str, device: DumpedTensor, expected: np.ndarray, min_tolerance: float
) -> HostDump:
    """Read a dump of the tensor `name`, to be compared with the simulator's values `expected`.

    Floats get a tolerance of HOST_TOLERANCE times their largest magnitude, but at least
    `min_tolerance`; other types get `min_tolerance`. The dumped values are None if the dump has
    another number of bytes.
    """
    data, actual = device.data or b"", None
    if len(data) == expected.nbytes:
        dtype = expected.dtype.newbyteorder("<")
        actual = np.frombuffer(data, dtype).reshape(expected.shape)
    tolerance = 0.0
    if expected.dtype.kind == "f":
        tolerance = HOST_TOLERANCE * max_magnitude([expected])
    return HostDump(name, device, actual, expected, max(tolerance, min_tolerance))


def widen_tolerance(graph: SimulatedGraph, run: SampleRun, host_dump: HostDump) -> HostDump:
    """Widen the tolerance of a mismatching float of a host part to its single-precision error.

    That is computed by running the part in double precision. Returns `host_dump` itself if it has
    no values or no mismatch, or if the tensors of its part are not known; a tolerance never
    shrinks.
    """
    if host_dump.actual is None or not host_dump.mismatches.any():
        return host_dump
    tensor = host_dump.tensor
    known = {**run.feeds, **run.floats, **run.integers}
    for part in split_into_parts(graph.session.model, graph.target).host_parts:
        is_known = all(name in known for name in (*part.inputs, *part.outputs))
        if tensor in part.outputs and is_known:
            inputs = {name: np.asarray(known[name]) for name in part.inputs}
            outputs = {name: np.asarray(known[name]) for name in part.outputs}
            tolerances = compute_host_tolerances(part, [PartRun(part, inputs, outputs, ())])
            relative = tolerances.get(tensor, HOST_TOLERANCE)
            absolute = relative * max_magnitude([host_dump.expected])
            return replace(host_dump, tolerance=max(host_dump.tolerance, absolute))
    return host_dump
