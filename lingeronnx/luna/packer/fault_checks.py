"""Known faults of an executor that a node of an integer graph triggers.

The simulator computes most of them as the executor does; a graph that relies on one is nevertheless
wrong, because the operator means something else. A fault applies where the target lists it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ...operators.integer_ops import AVG_POOL2D, CONCAT, CONV1D, DIV, GRU, LSTM, MUL, SIGMOID, TANH
from ...targets.verdict import VerdictFinding
from ..faults import LunaFault
from ..packer_profile import AverageRescale, get_packer_profile
from .memory.findings import PlannedGraph, make_wrong_result_finding
from .packer_graph import PackerStep

__all__ = ["FAULT_CHECKS", "check_faults"]

#: Returns the value of a step that triggers a fault, as users read it; None if it does not.
FaultCheck = Callable[[PlannedGraph, PackerStep], str | None]


def _find_rescaled_average(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return both scales of an AvgPool2dInt that the chip does not rescale correctly, else None."""
    x, y = float(step.get("scale_x")), float(step.get("scale_o"))
    if x == y:
        return None
    area = math.prod(step.get("kernel_shape"))
    rescale = AverageRescale.SHIFTED
    if area & (area - 1):
        rescale = AverageRescale.ENLARGED if y > x else AverageRescale.REDUCED
    if rescale in get_packer_profile(plan.target).pool.correct_rescales:
        return None
    return f"scale_x {x:g}, scale_o {y:g}, {area} elements"


def _find_reduced_input(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return the first input scale of an iqCat above `scale_o`, else None."""
    scale = step.get("scale_o")
    scales = {f"scale_x_{i}": step.get(f"scale_x_{i}") for i in range(len(step.inputs))}
    for key, input_scale in scales.items():
        if input_scale is not None and input_scale > scale:
            return f"{key} {input_scale:g}, scale_o {scale:g}"
    return None


def _find_operator(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return the operator: every node of it triggers the fault."""
    return step.op


def _find_depthwise(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return the number of groups of a depthwise Conv1dInt, else None."""
    groups = int(step.get("group", 1))
    is_depthwise = groups > 1 and groups == plan.graph.tensors[step.inputs[0]].shape[1]
    return f"{groups} groups" if is_depthwise else None


def _find_used_output(plan: PlannedGraph, step: PackerStep, index: int) -> str | None:
    """Return the name of output `index` if it is read or a graph output, else None."""
    name = step.outputs[index] if len(step.outputs) > index else ""
    is_used = name in plan.graph.outputs or bool(name and plan.graph.find_consumers(name))
    return f"'{name}' is used" if is_used else None


def _find_used_state(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return the name of the second output of a GRUInt if it is used, else None."""
    return _find_used_output(plan, step, 1)


def _find_used_cell(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return the name of the third output of an LSTMInt if it is used, else None."""
    return _find_used_output(plan, step, 2)


def _find_first_state(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return the name of the first state of a GRUInt if it has one, else None."""
    has_state = len(plan.graph.tensors[step.inputs[1]].shape) == 3
    return f"'{step.inputs[1]}' is given" if has_state else None


def _find_missing_state(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return "none" for a GRUInt without a first state, else None."""
    return "none" if _find_first_state(plan, step) is None else None


def _find_batch_first(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return the value of `batch_first` unless it is 0."""
    return "batch_first 1" if step.get("batch_first") else None


def _find_large_average(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return the size of the map of an AvgPool2dInt with more than 65536 bytes, else None."""
    size = plan.graph.tensors[step.inputs[0]].size_bytes
    return f"{size} bytes" if size > _LARGE_MAP_BYTES else None


def _find_wide_input(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return the width of an input of more than 8 bits, else None."""
    width = plan.graph.tensors[step.inputs[0]].width
    return f"{8 * width} bits" if width > 1 else None


def _find_small_scale(plan: PlannedGraph, step: PackerStep) -> str | None:
    """Return `scale_x` of an activation that is computed by a table if it is below 2^11."""
    scale = step.get("scale_x")
    return f"scale_x {scale:g}" if scale is not None and scale < 2.0**11 else None


_LARGE_MAP_BYTES = 65536

#: Fault -> operator -> which of its nodes trigger it.
FAULT_CHECKS: Mapping[LunaFault, Mapping[str, tuple[FaultCheck, ...]]] = MappingProxyType(
    {
        LunaFault.AVGPOOL_SCALE: {AVG_POOL2D.name: (_find_rescaled_average,)},
        LunaFault.AVGPOOL_LARGE: {AVG_POOL2D.name: (_find_large_average,)},
        LunaFault.CAT_SCALE: {CONCAT.name: (_find_reduced_input,)},
        LunaFault.CONV1D_DEPTHWISE: {CONV1D.name: (_find_depthwise,)},
        LunaFault.DIV_SCALE: {DIV.name: (_find_operator,)},
        LunaFault.DIV_STOPS: {DIV.name: (_find_operator,)},
        LunaFault.MUL_STOPS: {MUL.name: (_find_operator,)},
        LunaFault.GRU_HALVED: {GRU.name: (_find_operator,)},
        LunaFault.GRU_FORMAT: {GRU.name: (_find_operator,)},
        LunaFault.GRU_STATE: {GRU.name: (_find_used_state,)},
        LunaFault.GRU_FIRST_STATE: {GRU.name: (_find_first_state,)},
        LunaFault.GRU_NEEDS_STATE: {GRU.name: (_find_missing_state, _find_batch_first)},
        LunaFault.LUT_SCALE: {SIGMOID.name: (_find_small_scale,), TANH.name: (_find_small_scale,)},
        LunaFault.TANH_SCALE: {TANH.name: (_find_small_scale,)},
        LunaFault.SIGMOID_WIDE: {SIGMOID.name: (_find_wide_input,)},
        LunaFault.LSTM_CELL: {LSTM.name: (_find_used_cell,)},
    }
)

#: The same by operator: most operators have none, and every plan that is tried asks for each step.
_CHECKS_BY_OPERATOR: dict[str, dict[LunaFault, tuple[FaultCheck, ...]]] = {}
for _fault, _checks in FAULT_CHECKS.items():
    for _operator, _functions in _checks.items():
        _CHECKS_BY_OPERATOR.setdefault(_operator, {})[_fault] = _functions


def check_faults(plan: PlannedGraph, step: PackerStep) -> Iterator[VerdictFinding]:
    """Yield a finding of level "right" for each fault of the target that `step` triggers.

    The rule names the fault's key.
    """
    checks = _CHECKS_BY_OPERATOR.get(step.op)
    if checks is None:
        return
    for fault in plan.target.faults:
        if not isinstance(fault, LunaFault):
            continue
        for find_trigger in checks.get(fault, ()):
            value = find_trigger(plan, step)
            if value is not None:
                defect, _, workaround = fault.text.partition(": ")
                yield make_wrong_result_finding(
                    step, f"known fault {fault.key}: {defect}", value, workaround or "replace it"
                )
