"""What a node needs of the shared memory wherever its tensors lie.

Known before any plan is made.
"""

from __future__ import annotations

import itertools

from .... import Target
from ...packer_profile import get_packer_profile
from ..options import PSRAM, SHARE
from ..packer_graph import PackerGraph, PackerStep
from .plan import IN_PLACE_OPERATORS
from .work_areas import PlacedStep, get_work_area

__all__ = ["compute_min_shared_bytes"]

_MAX_PLACED_TENSORS = (
    4  # tensors of a node whose places are tried; for nodes with more nothing is said
)


def compute_min_shared_bytes(net: PackerGraph, target: Target) -> dict[str, int]:
    """Return {node of the user's graph.

    Bytes of shared memory without which no plan of `net` has room for it}.
    Of all places that its tensors can have those with which work area and tensors in shared memory
    take least.
    """
    needs: dict[str, int] = {}
    for step in net.steps:
        needs[step.origin] = max(
            needs.get(step.origin, 0),
            _compute_step_minimum(net, step, get_packer_profile(target).work_area_table),
        )
    return needs


def _compute_step_minimum(net: PackerGraph, step: PackerStep, table: str) -> int:
    names = dict.fromkeys(
        n for n in (*step.inputs, *step.outputs) if not net.tensors[n].is_constant
    )
    constants = dict.fromkeys(n for n in step.inputs if net.tensors[n].is_constant)
    if len(names) > _MAX_PLACED_TENSORS or step.op in IN_PLACE_OPERATORS:
        return 0
    needs = []
    for *places, stored in itertools.product((SHARE, PSRAM), repeat=len(names) + 1):
        place_of = {**dict(zip(names, places, strict=True)), **dict.fromkeys(constants, stored)}
        where, size = get_work_area(PlacedStep.of(net, step, place_of), table)
        shared_bytes = sum(
            net.tensors[name].planned_bytes for name in names if place_of[name] == SHARE
        )
        needs.append(shared_bytes + (size if where == SHARE else 0))
    return min(needs)
