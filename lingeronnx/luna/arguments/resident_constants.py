"""Decide which parts of a partitioned graph keep their constants in shared memory.

Parts run one after the other and share one region, which is as large as the largest of them needs.
A part whose constants are resident in shared memory needs a region of its own, because they stay
there while other parts run. Parts are selected by saved cycles per byte as long as all regions fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...common.arithmetic import round_up
from ...ir import ir
from ...ir.name_mapping import apply_file_names
from ...targets import Target
from ...targets.objective import MEMORY, PARTS_KEY, PARTS_RESIDENT, get_objective
from ...targets.verdict import PackerArguments
from ..packer.names import build_safe_names
from ..packer_profile import get_kernel_costs
from .selection import (
    EvaluatedArguments,
    get_min_residency_gain,
    has_resident_constants,
    select_fastest_arguments,
)
from .speed import estimate_max_saving, get_comparison_cycles

__all__ = ["PartMemoryDemand", "assign_resident_constants", "select_resident_parts"]

_REGION_ALIGNMENT = 64  # bytes; the size of each region is rounded up to a multiple


@dataclass(frozen=True)
class PartMemoryDemand:
    """Shared memory that a part of the graph needs, in bytes.

    common_bytes : if the part uses the common region.
    resident_bytes : if it has a region of its own with its constants.
    saved_cycles : cycles saved by a region of its own; 0 if it cannot have one.
    """

    common_bytes: int
    resident_bytes: int = 0
    saved_cycles: float = 0.0


def select_resident_parts(demands: Sequence[PartMemoryDemand], capacity_bytes: int) -> list[int]:
    """Select the parts of a partitioned graph whose constants stay resident in shared memory.

    Greedy by saved cycles per resident byte; parts that save nothing are not selected. The search
    restarts after each selection, because a selected part no longer contributes to the common
    region and may make room for others.

    Returns
    -------
    list of int
        Indices of the selected parts in ascending order; all regions fit in `capacity_bytes`.
    """
    by_gain = sorted(
        range(len(demands)),
        key=lambda i: -demands[i].saved_cycles / max(demands[i].resident_bytes, 1),
    )
    selected: list[int] = []
    while (index := _find_next_part(demands, by_gain, selected, capacity_bytes)) is not None:
        selected.append(index)
    return sorted(selected)


def _find_next_part(
    demands: Sequence[PartMemoryDemand],
    by_gain: Sequence[int],
    selected: Sequence[int],
    capacity_bytes: int,
) -> int | None:
    """Return the first index in `by_gain` that can be added to `selected`, or None.

    The part must save cycles, and all regions together must fit in `capacity_bytes`.
    """
    for index in by_gain:
        if index in selected or demands[index].saved_cycles <= 0:
            continue
        if _compute_required_bytes(demands, [*selected, index]) <= capacity_bytes:
            return index
    return None


def _compute_required_bytes(demands: Sequence[PartMemoryDemand], selected: Iterable[int]) -> int:
    """Return the bytes of the common region and of the regions of the selected parts.

    The common region is as large as the largest need of a part that is not selected; every region
    is rounded up to 64. `selected` are indices into `demands`.
    """
    selected_indices = set(selected)
    common_bytes = max(
        (
            round_up(demand.common_bytes, _REGION_ALIGNMENT)
            for index, demand in enumerate(demands)
            if index not in selected_indices
        ),
        default=0,
    )
    return common_bytes + sum(
        round_up(demands[i].resident_bytes, _REGION_ALIGNMENT) for i in selected_indices
    )


def assign_resident_constants(
    graphs: Sequence[ir.Model], target: Target
) -> list[PackerArguments | None]:
    """Select the parts of one model whose constants are resident, and mark them in their metadata.

    No part is selected if the memory of any part is unknown. A part that is not correct on the chip
    is not packed and needs no memory; with the objective "memory" no part is tried as resident.

    Returns
    -------
    list of PackerArguments or None
        The chosen arguments of each part, or None for a part whose names have to be replaced first.
        Empty if the kernel costs or the shared memory of the chip are unknown.
    """
    if target.shared_memory is None or get_kernel_costs(target) is None:
        return []
    trials = [_PartTrial.evaluate(graph, target) for graph in graphs]
    demands = [trial.demand for trial in trials if trial.demand is not None]
    selected: list[int] = []
    if len(demands) == len(trials):
        selected = select_resident_parts(demands, target.shared_memory)
    chosen_arguments: list[PackerArguments | None] = []
    for index, trial in enumerate(trials):
        is_resident = index in selected
        if is_resident:
            graphs[index].metadata_props[PARTS_KEY] = PARTS_RESIDENT
        arguments = trial.resident_arguments if is_resident else trial.external_arguments
        chosen_arguments.append(arguments if trial.has_safe_names else None)
    return chosen_arguments


@dataclass(frozen=True)
class _PartTrial:
    """Arguments of a part with its constants in PSRAM, and if worthwhile in shared memory.

    demand : memory that the part needs, or None if it is unknown.
    has_safe_names : whether the packer accepts all names of the part.
    """

    demand: PartMemoryDemand | None
    external_arguments: EvaluatedArguments
    resident_arguments: EvaluatedArguments | None
    has_safe_names: bool

    @classmethod
    def evaluate(cls, graph: ir.Model, target: Target) -> _PartTrial:
        """Choose the arguments of `graph` with its constants in PSRAM, then with them resident.

        The second is tried only if it may save enough cycles for the model's objective. The demand
        is 0 bytes for a part that is not correct on the chip, and None if bytes or latency are
        unknown. Works on a copy of `graph` with safe names.
        """
        names = build_safe_names(graph)
        has_safe_names = not (names.tensors or names.nodes)
        part = apply_file_names(graph.clone(), names)
        objective = get_objective(graph)
        external = select_fastest_arguments(part, target)
        if not external.verdict.is_chip_ready:  # it is not packed
            return cls(PartMemoryDemand(0), external, None, has_safe_names)
        common_bytes = _get_shared_bytes(external)
        external_latency = external.verdict.comparison_latency
        if common_bytes is None or external_latency is None:
            return cls(None, external, None, has_safe_names)
        demand = PartMemoryDemand(common_bytes)
        external_cycles = get_comparison_cycles(external_latency, target)
        min_saving = get_min_residency_gain(objective) * external_cycles
        if objective == MEMORY or estimate_max_saving(external.verdict, target) <= min_saving:
            return cls(demand, external, None, has_safe_names)
        part.metadata_props[PARTS_KEY] = PARTS_RESIDENT
        resident = select_fastest_arguments(part, target)
        resident_bytes = _get_shared_bytes(resident)
        resident_latency = resident.verdict.comparison_latency
        if (
            not has_resident_constants(resident.argv)
            or resident_bytes is None
            or resident_latency is None
        ):
            return cls(demand, external, None, has_safe_names)
        saved_cycles = external_cycles - get_comparison_cycles(resident_latency, target)
        demand = PartMemoryDemand(common_bytes, resident_bytes, saved_cycles)
        return cls(demand, external, resident, has_safe_names)


def _get_shared_bytes(arguments: EvaluatedArguments) -> int | None:
    """Return the peak bytes of shared memory with `arguments`; None if the graph has no plan."""
    cost = arguments.verdict.cost
    return None if cost is None else cost.shared
