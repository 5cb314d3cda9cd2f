"""Find the versions of an executor whose integers a device's tensors have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..common.errors import LingerOnnxError
from ..runtime.session import Session
from ..runtime.version_compatibility import group_equal_versions
from ..targets import Target, get_versions
from .dumps import DumpedTensor
from .simulation import SampleRun, SimulatedGraph

__all__ = ["VersionMatch", "match_versions"]


@dataclass(frozen=True)
class VersionMatch:
    """The versions of the chip's executor that compute the tensors of a device.

    Attributes
    ----------
    equal
        Versions that compute all integers of the compared tensors, oldest first.
    different
        Versions that compute others.
    unknown
        Versions that the simulator cannot compute for this graph.
    read
        Those of all versions that are known from their source text only.
    """

    equal: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    read: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the lists as JSON-ready values."""
        return {key: list(value) for key, value in vars(self).items()}

    def format_line(self) -> str:
        """Say in one sentence which versions the tensors fit; "" if the chip has no versions."""
        if not (self.equal or self.different or self.unknown):
            return ""
        names = ", ".join(
            f"{version} (read, not measured)" if version in self.read else version
            for version in self.equal
        )
        unknown = f"; not simulated: {', '.join(self.unknown)}" if self.unknown else ""
        if not self.equal:
            return f"no known version of the executor computes these integers{unknown}"
        if not self.different:
            return (
                f"the tensors cannot tell versions of the executor apart: all compute these "
                f"integers{unknown}"
            )
        others = ", ".join(self.different)
        return f"these are the integers of {names}, not of {others}{unknown}"


def match_versions(
    graph: SimulatedGraph,
    run: SampleRun,
    matched: Mapping[str, DumpedTensor],
    simulate: Callable[[SimulatedGraph], SampleRun | None],
) -> VersionMatch:
    """Compare a device's tensors with the integers of each version of the chip's executor.

    Parameters
    ----------
    graph, run
        The graph in its own version, and the tensors of the sample.
    matched
        The device's tensors by the graph's name; empty if none can be compared.
    simulate
        Runs the sample on the graph in another version; None if that is not possible.
    """
    versions = get_versions(graph.target)
    if not matched or len(versions) < 2:
        return VersionMatch()
    results: dict[str, list[str]] = {"equal": [], "different": [], "unknown": []}
    for members in group_equal_versions(versions):
        own = graph.target in members
        outcome = _compare_with_version(run if own else None, graph, members[0], matched, simulate)
        results[outcome] += [version.executor for version in members]
    order = [version.executor for version in versions]
    sorted_results = {key: tuple(sorted(names, key=order.index)) for key, names in results.items()}
    read = tuple(version.executor for version in versions if "" in version.unmeasured)
    return VersionMatch(**sorted_results, read=read)


def _compare_with_version(
    run: SampleRun | None,
    graph: SimulatedGraph,
    version: Target,
    matched: Mapping[str, DumpedTensor],
    simulate: Callable[[SimulatedGraph], SampleRun | None],
) -> str:
    """Return "equal", "different" or "unknown" for a version.

    `run` has its tensors, None to simulate them here; "unknown" if the simulator does not support
    the graph in this version.
    """
    if run is None:
        try:
            model = graph.session.model
            session = Session(model, platform=version, arithmetic="executor")
            run = simulate(replace(graph, session=session, target=version))
        except LingerOnnxError:
            run = None
    if run is None:
        return "unknown"
    tensors = run.integers
    is_equal = all(
        name in tensors and device.is_equal(tensors[name]) for name, device in matched.items()
    )
    return "equal" if is_equal else "different"
