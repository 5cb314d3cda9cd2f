"""What a program's host parts read and wrote, as it dumps that: `host1_out0_TENSOR##_1_8.bin`, raw.

Floats may be `HOST_TOLERANCE` of their range off, or what `rounding` says; what is no float must be
equal. The range is that of the golden calls, where the graph's file stands in the deployed folder,
whose manifest tells it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..files import DEPLOYMENT_VERSION
from ..run.parts_runner import PartRun
from ..run.program_parts import split_into_parts
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

#: The manifest's entry of how far off floats of host parts may be: {tensor: in its own unit}.
HOST_LIMITS_KEY = "host_limits"
_PORT = re.compile(r"(?P<part>host\d+)_(?P<end>in|out)(?P<index>\d+)_")


def make_host_port_prefix(part: str, end: str, index: int) -> str:
    """Return what the name of a dump of a host part's port begins with. end : "in" or "out"."""
    return f"{part}_{end}{index}_"


@dataclass(frozen=True)
class HostDump:
    """A tensor that a host part read or wrote.

    actual : as the program had it, None where the sizes differ. want : ours. within : how far off a
    float may be.
    """

    tensor: str
    dump: DumpedTensor
    actual: np.ndarray | None
    expected: np.ndarray
    tolerance: float

    @property
    def mismatches(self) -> np.ndarray:
        """Which elements are farther off than they may be; all of them where the sizes differ."""
        if self.actual is None:
            return np.ones(self.expected.shape, bool)
        if self.expected.dtype.kind != "f":
            return np.asarray(self.actual != self.expected)
        return np.asarray(absolute_difference(self.actual, self.expected) > self.tolerance)


def read_manifest_tolerances(model: object) -> dict[str, float]:
    """Return what the manifest beside the file `model` tells under `HOST_LIMITS_KEY`.

    {} for a model in memory, or elsewhere.
    """
    if not isinstance(model, str | os.PathLike):
        return {}
    try:
        body = json.loads(Path(model).with_name("manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # no folder of `deploy`
    found = (
        body.get("program", {}).get(HOST_LIMITS_KEY, {})
        if isinstance(body, dict) and DEPLOYMENT_VERSION.key in body
        else {}
    )
    return dict(found)


def match_host_dumps(
    graph: SimulatedGraph,
    ours: SampleRun,
    dumped: Sequence[DumpedTensor],
    limits: Mapping[str, float],
) -> list[HostDump]:
    """Return those of `dumped` that are of host parts of `graph`, each tensor once, in no order.

    limits : by the device's names, how far off a float may be, if that is more than
    `HOST_TOLERANCE` of its range in this sample.
    """
    ports = [
        (shown, match)
        for shown in dumped
        if (match := _PORT.match(shown.name)) and shown.data is not None
    ]
    parts = (
        {part.name: part for part in split_into_parts(graph.session.model, graph.target).host_parts}
        if ports
        else {}
    )
    known = {**ours.feeds, **ours.floats, **ours.integers}
    found: dict[str, HostDump] = {}
    for shown, match in ports:
        part, index = parts.get(match["part"]), int(match["index"])
        names = () if part is None else part.inputs if match["end"] == "in" else part.outputs
        if index < len(names) and (name := names[index]) in known:
            want, data = np.asarray(known[name]), shown.data or b""
            right = len(data) == want.nbytes
            have = (
                np.frombuffer(data, want.dtype.newbyteorder("<")).reshape(want.shape)
                if right
                else None
            )
            far = HOST_TOLERANCE * max_magnitude([want]) if want.dtype.kind == "f" else 0.0
            found[name] = HostDump(
                name, shown, have, want, max(far, limits.get(graph.device[name], 0.0))
            )
    return list(found.values())


def widen_tolerance(graph: SimulatedGraph, ours: SampleRun, one: HostDump) -> HostDump:
    """Return a dump that is off with the limit that `rounding` finds for its tensor."""
    if one.actual is None or not one.mismatches.any():
        return one
    known = {**ours.feeds, **ours.floats, **ours.integers}
    for part in split_into_parts(graph.session.model, graph.target).host_parts:
        if one.tensor in part.outputs and all(
            name in known for name in (*part.inputs, *part.outputs)
        ):
            read, made = (
                {name: np.asarray(known[name]) for name in side}
                for side in (part.inputs, part.outputs)
            )
            limit = compute_host_tolerances(part, [PartRun(part, read, made, ())]).get(
                one.tensor, HOST_TOLERANCE
            )
            return replace(one, tolerance=max(one.tolerance, limit * max_magnitude([one.expected])))
    return one
