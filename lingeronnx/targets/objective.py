"""What decides between forms of the same integers: written into the graph, since later calls choose arguments again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import onnx

    from ..graph import ir

__all__ = [
    "ACCURACY", "MEMORY", "OBJECTIVE", "OBJECTIVES", "PARTS", "PARTS_KEPT", "PLAIN", "TIME", "keeps_constants",
    "objective_of",
]  # fmt: skip

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
OBJECTIVE = "lingeronnx.objective"

#: The metadata key of one of several parts for the chip.
PARTS = "lingeronnx.parts"

#: What stands there of a part that has a region of shared memory of its own.
PARTS_KEPT = "several, this one keeps its constants"


def objective_of(graph: ir.Graph | onnx.ModelProto) -> str:
    """Return what decides for a graph; `ACCURACY` where it does not say, or says what is not known."""
    stated = _metadata(graph).get(OBJECTIVE, ACCURACY)
    return stated if stated in OBJECTIVES else ACCURACY


def keeps_constants(graph: ir.Graph | onnx.ModelProto) -> bool:
    """Whether a graph may keep its constants in shared memory.

    Of several parts, which share that, only one that has a region of its own.
    """
    return objective_of(graph) != MEMORY and _metadata(graph).get(PARTS, PARTS_KEPT) == PARTS_KEPT


def _metadata(graph: ir.Graph | onnx.ModelProto) -> Mapping[str, str]:
    props = graph.metadata_props
    return props if isinstance(props, Mapping) else {prop.key: prop.value for prop in props}
