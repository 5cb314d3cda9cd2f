"""Lower bounds of the shared memory that each node needs, known before memory is planned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from ....targets import Target
from ...packer_profile import PackerProfile, get_packer_profile
from ..options import PSRAM, SHARE
from ..packer_graph import PackerGraph, PackerStep
from .graph_facts import IN_PLACE_OPERATORS, GraphFacts
from .placement_checks import needs_shared_tensors
from .plan import sum_live_bytes
from .work_areas import PlacedStep, get_work_area, get_work_area_rule

__all__ = [
    "SharedNeed",
    "compute_min_constant_bytes",
    "compute_min_correct_bytes",
    "compute_min_shared_bytes",
    "list_shared_needs",
]

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


class SharedNeed(NamedTuple):
    """Shared memory that a step needs in every plan under which it is correct.

    tensors : names of its input and output if both must be there, else ().
    tensor_bytes : planned bytes of these tensors.
    work_area_bytes : the smallest work area in shared memory; 0 if it may be elsewhere.
    """

    tensors: tuple[str, ...]
    tensor_bytes: int
    work_area_bytes: int


def list_shared_needs(facts: GraphFacts) -> list[SharedNeed]:
    """Return the need of each step of a graph, in execution order."""
    profile = get_packer_profile(facts.target)
    return [_find_shared_need(facts, step, profile) for step in facts.net.steps]


def compute_min_correct_bytes(facts: GraphFacts) -> int:
    """Return the bytes of shared memory below which no plan is correct for all steps.

    Counted are the tensors that must be in shared memory, during their lifetimes, and the common
    work area, from the first to the last step that needs it.
    """
    needs = facts.remember(list_shared_needs)
    names = set(itertools.chain.from_iterable(need.tensors for need in needs))
    lifetimes = [
        (activation.size, activation.first_step, activation.last_step)
        for activation in facts.activations
        if activation.name in names and not activation.source
    ]
    users = [index for index, need in enumerate(needs) if need.work_area_bytes]
    if users:
        work_area_bytes = max(need.work_area_bytes for need in needs)
        lifetimes.append((work_area_bytes, users[0], users[-1]))
    return max(sum_live_bytes(len(needs), lifetimes), default=0)


def _find_shared_need(facts: GraphFacts, step: PackerStep, profile: PackerProfile) -> SharedNeed:
    """Return the need of `step`; no work area with more than `_MAX_PLACED_TENSORS` activations."""
    net = facts.net
    x = net.tensors[step.inputs[0]]
    tensors: tuple[str, ...] = ()
    if needs_shared_tensors(facts.target, step, x):
        tensors = step.inputs[0], step.outputs[0]
    tensor_bytes = sum(net.tensors[name].planned_bytes for name in tensors)
    min_bytes = None
    for placements, work_area_bytes in _iterate_work_areas(net, step, profile):
        is_correct = all(placements[name] == SHARE for name in tensors)
        if is_correct and (min_bytes is None or work_area_bytes < min_bytes):
            min_bytes = work_area_bytes
    return SharedNeed(tensors, tensor_bytes, min_bytes or 0)


def _compute_step_minimum(net: PackerGraph, step: PackerStep, profile: PackerProfile) -> int:
    """Return the smallest bytes of shared memory of `step` over all placements of its tensors.

    Counted are activations in shared memory and the work area there; all constants are in one
    memory. `profile` is that of the chip. 0 for more than `_MAX_PLACED_TENSORS`
    activations and for operators that may run in place.
    """
    if step.op in IN_PLACE_OPERATORS:
        return 0
    activations, _ = _split_operands(net, step)
    candidates = []
    for placements, work_area_bytes in _iterate_work_areas(net, step, profile):
        in_shared = [name for name in activations if placements[name] == SHARE]
        candidates.append(
            work_area_bytes + sum(net.tensors[name].planned_bytes for name in in_shared)
        )
    return min(candidates, default=0)


def _split_operands(net: PackerGraph, step: PackerStep) -> tuple[list[str], list[str]]:
    """Return the activations of `step`, inputs before outputs, each once, and its constants."""
    names = list(dict.fromkeys((*step.inputs, *step.outputs)))
    activations = [name for name in names if not net.tensors[name].is_constant]
    constants = [name for name in step.inputs if net.tensors[name].is_constant]
    return activations, constants


def _iterate_work_areas(
    net: PackerGraph, step: PackerStep, profile: PackerProfile
) -> Iterator[tuple[dict[str, str], int]]:
    """Yield all placements of the tensors of `step`, each with its work area in shared memory.

    All constants are in one memory. Nothing for a step without a work area, and for one with more
    than `_MAX_PLACED_TENSORS` activations.
    """
    activations, constants = _split_operands(net, step)
    if get_work_area_rule(step.op, profile) is None or len(activations) > _MAX_PLACED_TENSORS:
        return
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
        yield placements, work_area_bytes if work_area_memory == SHARE else 0
