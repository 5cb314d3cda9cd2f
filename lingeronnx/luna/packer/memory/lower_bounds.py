"""Lower bounds of the shared memory that each node needs, known before memory is planned."""

from __future__ import annotations

import itertools

from ....targets import Target
from ...packer_profile import PackerProfile, get_packer_profile
from ..options import PSRAM, SHARE
from ..packer_graph import PackerGraph, PackerStep
from .graph_facts import IN_PLACE_OPERATORS, GraphFacts
from .work_areas import PlacedStep, get_work_area

__all__ = ["compute_min_constant_bytes", "compute_min_shared_bytes"]

#: Maximum tensors of a node for which all placements are tried; the bound of a larger node is 0.
_MAX_PLACED_TENSORS = 4


def compute_min_shared_bytes(net: PackerGraph, target: Target) -> dict[str, int]:
    """Return node name -> bytes of shared memory below which no plan of `net` can go.

    For each step the placement of its tensors is taken for which work area and tensors in shared
    memory are smallest. A node of the user's graph that became several steps has the largest of
    them; 0 where no bound was determined.

    Returns
    -------
    dict of str to int
        Bytes by node name.
    """
    profile = get_packer_profile(target)
    min_bytes: dict[str, int] = {}
    for step in net.steps:
        step_bytes = _compute_step_minimum(net, step, profile)
        min_bytes[step.origin] = max(min_bytes.get(step.origin, 0), step_bytes)
    return min_bytes


def compute_min_constant_bytes(facts: GraphFacts) -> int:
    """Return the bytes of the elements of all constants of a graph.

    Neither this graph nor one in which layers are tiled or split stores less: padding depends on
    how a layer is split and is not counted.
    """
    total_bytes = 0
    for name, size in facts.stored_sizes.items():
        is_packed = size.packed_bytes < size.unpacked_bytes  # two elements of 4 bits per byte
        element_bytes = facts.net.tensors[name].size_bytes
        total_bytes += element_bytes // 2 if is_packed else element_bytes
    return total_bytes


def _compute_step_minimum(net: PackerGraph, step: PackerStep, profile: PackerProfile) -> int:
    """Return the smallest bytes of shared memory of `step` over all placements of its tensors.

    Counted are activations in shared memory and the work area there; all constants are in one
    memory. `profile` is that of the chip. 0 for more than `_MAX_PLACED_TENSORS`
    activations and for operators that may run in place.
    """
    names = list(dict.fromkeys((*step.inputs, *step.outputs)))
    activations = [name for name in names if not net.tensors[name].is_constant]
    constants = [name for name in step.inputs if net.tensors[name].is_constant]
    if len(activations) > _MAX_PLACED_TENSORS or step.op in IN_PLACE_OPERATORS:
        return 0
    candidates = []
    for *memories, constant_memory in itertools.product(
        (SHARE, PSRAM), repeat=len(activations) + 1
    ):
        placements = {
            **dict(zip(activations, memories, strict=True)),
            **dict.fromkeys(constants, constant_memory),
        }
        work_area_memory, work_area_bytes = get_work_area(
            PlacedStep.from_step(net, step, placements), profile
        )
        shared_bytes = sum(
            net.tensors[name].planned_bytes for name in activations if placements[name] == SHARE
        )
        if work_area_memory == SHARE:
            shared_bytes += work_area_bytes
        candidates.append(shared_bytes)
    return min(candidates)
