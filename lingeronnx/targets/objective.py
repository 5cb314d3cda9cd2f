"""What decides between forms of the same integers.

Written into the graph, since later calls choose arguments again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import onnx

    from ..graph import ir

__all__ = [
    "ACCURACY",
    "MEMORY",
    "OBJECTIVES",
    "OBJECTIVE_KEY",
    "PARTS_KEY",
    "PARTS_RESIDENT",
    "PLAIN",
    "TIME",
    "can_keep_constants_resident",
    "get_objective",
]

#: accuracy : of arguments that are right, and of forms of the same integers, the fastest where the chip's prices are
#: known; constants stay in shared memory where that saves a twentieth. time : also by another chip's prices, and what
#: keeps more in shared memory for any gain. memory : the fastest forms that need no more of it. plain : nodes keep
#: their forms; arguments as for accuracy.
ACCURACY: Final = "accuracy"
TIME: Final = "time"
MEMORY: Final = "memory"
PLAIN: Final = "plain"
OBJECTIVES = (ACCURACY, TIME, MEMORY, PLAIN)

#: The metadata key; absent for accuracy.
OBJECTIVE_KEY = "lingeronnx.objective"

#: The metadata key of one of several parts for the chip.
PARTS_KEY = "lingeronnx.parts"

#: What stands there of a part that has a region of shared memory of its own.
PARTS_RESIDENT = "several, this one keeps its constants"


def get_objective(graph: ir.Model | onnx.ModelProto) -> str:
    """Return what decides for a graph.

    `ACCURACY` where it does not say, or says what is not known.
    """
    stated = _metadata(graph).get(OBJECTIVE_KEY, ACCURACY)
    return stated if stated in OBJECTIVES else ACCURACY


def can_keep_constants_resident(graph: ir.Model | onnx.ModelProto) -> bool:
    """Whether a graph may keep its constants in shared memory.

    Of several parts, which share that, only one that has a region of its own.
    """
    return (
        get_objective(graph) != MEMORY
        and _metadata(graph).get(PARTS_KEY, PARTS_RESIDENT) == PARTS_RESIDENT
    )


def _metadata(graph: ir.Model | onnx.ModelProto) -> Mapping[str, str]:
    props = graph.metadata_props
    return props if isinstance(props, Mapping) else {prop.key: prop.value for prop in props}
