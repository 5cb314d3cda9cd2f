"""The objective that decides between equivalent forms of a graph.

It is stored in the metadata of the graph, because later calls choose the packer's arguments again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    import onnx

    from ..ir import ir

__all__ = [
    "ACCURACY",
    "MEMORY",
    "OBJECTIVES",
    "OBJECTIVE_KEY",
    "PARTS_KEY",
    "PARTS_RESIDENT",
    "PLAIN",
    "TIME",
    "Objective",
    "can_keep_constants_resident",
    "get_objective",
]

#: accuracy : the fastest correct arguments and equivalent graph forms, if the kernel costs of the
#: chip are known; constants stay in shared memory if that saves at least a twentieth of the time.
#: time : the same, also with the costs of another chip, and constants stay for any gain.
#: memory : the fastest forms that need no more shared memory.
#: plain : nodes keep their forms; arguments as for accuracy.
Objective: TypeAlias = Literal["accuracy", "time", "memory", "plain"]
ACCURACY: Final[Objective] = "accuracy"
TIME: Final[Objective] = "time"
MEMORY: Final[Objective] = "memory"
PLAIN: Final[Objective] = "plain"
OBJECTIVES: tuple[str, ...] = get_args(Objective)

#: The metadata key of the objective; absent for accuracy.
OBJECTIVE_KEY = "lingeronnx.objective"

#: The metadata key that marks one of several parts for the chip.
PARTS_KEY = "lingeronnx.parts"

#: The value for a part that has a region of shared memory of its own.
PARTS_RESIDENT = "several, this one keeps its constants"


def get_objective(graph: ir.Model | onnx.ModelProto) -> str:
    """Return the objective in the metadata of `graph`; `ACCURACY` if it is absent or unknown."""
    objective = _get_metadata(graph).get(OBJECTIVE_KEY, ACCURACY)
    return objective if objective in OBJECTIVES else ACCURACY


def can_keep_constants_resident(graph: ir.Model | onnx.ModelProto) -> bool:
    """Whether the constants of `graph` may stay in shared memory.

    Never with the objective MEMORY; of several parts, which share this memory, only those with a
    region of their own.
    """
    return (
        get_objective(graph) != MEMORY
        and _get_metadata(graph).get(PARTS_KEY, PARTS_RESIDENT) == PARTS_RESIDENT
    )


def _get_metadata(graph: ir.Model | onnx.ModelProto) -> Mapping[str, str]:
    """Return the metadata of an IR or protobuf model as a mapping."""
    props = graph.metadata_props
    return props if isinstance(props, Mapping) else {prop.key: prop.value for prop in props}
