"""What a program's host parts read and wrote, as it dumps that: `host1_TENSOR##_1_8.bin`, raw, float32 or another type.

Floats may be `HOST_TOLERANCE` of their range off, or what `rounding` says; what is no float must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..run.in_parts import PartRun
from ..run.parts import parts_of
from .dumps import HOST_TOLERANCE, Dumped, gap, range_of, short
from .rounding import host_limits
from .simulated import Graph, SampleRun

__all__ = ["HostDump", "host_dumps", "limited"]


@dataclass(frozen=True)
class HostDump:
    """A tensor that a host part read or wrote.

    have : as the program had it, None where the sizes differ. want : ours. limit : how far a float may be off, as a
    fraction of their range.
    """

    tensor: str
    shown: Dumped
    have: np.ndarray | None
    want: np.ndarray
    limit: float = HOST_TOLERANCE

    @property
    def off(self) -> np.ndarray:
        """Which elements are farther off than they may be; all of them where the sizes differ."""
        if self.have is None:
            return np.ones(self.want.shape, bool)
        if self.want.dtype.kind != "f":
            return np.asarray(self.have != self.want)
        return np.asarray(gap(self.have, self.want) > self.limit * range_of([self.want]))


def host_dumps(graph: Graph, ours: SampleRun, dumped: Sequence[Dumped]) -> list[HostDump]:
    """Return those of `dumped` that are of host parts, each tensor once, in no order."""
    known = {**ours.feeds, **ours.floats, **ours.integers}
    found: dict[str, HostDump] = {}
    for shown in dumped:
        part = re.match(r"host\d+_", shown.name)
        if part is None or shown.data is None:
            continue
        names = [name for name in known if short(part[0] + graph.device.get(name, name)) == short(shown.name)]
        fitting = [name for name in names if shown.dims is None or shown.dims == np.shape(known[name])]
        if len(fitting) == 1:
            want = np.asarray(known[fitting[0]])
            right = len(shown.data) == want.nbytes
            have = np.frombuffer(shown.data, want.dtype.newbyteorder("<")).reshape(want.shape) if right else None
            found[fitting[0]] = HostDump(fitting[0], shown, have, want)
    return list(found.values())


def limited(graph: Graph, ours: SampleRun, one: HostDump) -> HostDump:
    """Return a dump that is off with the limit that `rounding` finds for its tensor."""
    if one.have is None or not one.off.any():
        return one
    known = {**ours.feeds, **ours.floats, **ours.integers}
    for part in parts_of(graph.session.model, graph.target).host:
        if one.tensor in part.outputs and all(name in known for name in (*part.inputs, *part.outputs)):
            read, made = ({name: np.asarray(known[name]) for name in side} for side in (part.inputs, part.outputs))
            limits = host_limits(part, [PartRun(part, read, made, ())])
            return replace(one, limit=limits.get(one.tensor, one.limit))
    return one
