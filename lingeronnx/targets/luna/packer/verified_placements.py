"""Where operators were measured to be right: the places of what they read and write.

A place is one letter: s for shared memory, p for PSRAM. ``sp>s`` reads its first operand in shared
memory and its second in PSRAM, and writes to shared memory. Behind a slash stand the operands of a
sum or a concatenation that have another scale than the result; a plus says that a tensor has more
than 65536 bytes. All in shared memory was measured of every operator.

`tests/targets/luna/packer/test_measured.py` holds the table against the measured rows; its command
prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ....formats import (
    ADD,
    AVG_POOL2D,
    BATCH_NORM2D,
    BMM,
    CONCAT,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    EXPAND,
    GLU,
    LAYER_NORM,
    LINEAR,
    LSTM,
    PAD,
    TILE,
)
from ...verdict import VerdictFinding
from ..packer_profile import get_packer_profile
from .memory.findings import MAX_COPY_BYTES, PlannedGraph
from .memory.plan import IN_PLACE_OPERATORS
from .memory.work_areas import PlacedStep
from .options import PSRAM, SHARE

__all__ = ["VERIFIED_PLACEMENTS", "encode_placement", "find_assumptions"]

#: Packing.areas -> operator -> places that were right.
VERIFIED_PLACEMENTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "venus": {
            AVG_POOL2D.name: "p>p p>s",
            BATCH_NORM2D.name: "p>p p>s s>p",
            BMM.name: "pp>p",
            CONV2D.name: "p>p p>s s>p",
            LSTM.name: "p>p p>s s>p",
            LAYER_NORM.name: "p>p p>s s>p",
            LINEAR.name: "p>p p>p+ p>s s>p",
            "MaxPool": "p>p p>p+ p>s p>s+",
            "Relu": "p>p p>p+ p>s+ s>p s>p+",
            "Reshape": "p>p p>s",
            "Slice": "p>p p>p+ p>s p>s+",
            "Transpose": "p>p p>s",
            ADD.name: "pp>p/xy ps>s/xy sp>s/xy",
            CONCAT.name: "p>p p>p+ ps>s/x s>p s>p+",
            PAD.name: "p>p",
        },
        "arcs": {
            AVG_POOL2D.name: "p>p p>s",
            BMM.name: "pp>p",
            CONV2D.name: "p>p p>p+ p>s p>s+ s>p s>p+",
            LSTM.name: "p>p p>s s>p",
            LAYER_NORM.name: "p>p p>s s>p",
            LINEAR.name: "p>p p>p+ p>s s>p",
            "Relu": "p>p p>p+ p>s s>p",
            "Reshape": "p>p s>p",
            "Slice": "p>s p>s+",
            "Transpose": "p>p p>s",
            ADD.name: "pp>p/xy pp>s pp>s/x ps>p/x ps>s/x ps>s/xy sp>p sp>p/x sp>s/x sp>s/xy ss>p",
            CONCAT.name: "p>p p>p+ p>p/x ps>p/x ps>s/x s>p s>p+ s>p/x",
        },
        "venusA": {
            AVG_POOL2D.name: "p>p p>s",
            BMM.name: "pp>p",
            CONV2D.name: "p>p p>p+ p>s p>s+ s>p s>p+",
            CONV_TRANSPOSE2D.name: "p>p",
            "Flatten": "p>p",
            GLU.name: "p>p p>s",
            LSTM.name: "p>p p>s s>p",
            LAYER_NORM.name: "p>p p>s s>p",
            LINEAR.name: "p>p p>p+ p>s s>p s>p+",
            "MaxPool": "p>p p>s",
            "Relu": "p>p p>p+ p>s s>p",
            "Reshape": "p>p p>s s>p",
            "Slice": "p>p p>p+ p>s p>s+",
            "Squeeze": "p>p",
            "Transpose": "p>p p>s",
            "Unsqueeze": "p>p",
            ADD.name: "pp>s pp>s/x ps>s/xy sp>p sp>p/x sp>s/x",
            CONCAT.name: "p>p p>p+ p>p/x p>s ps>p ps>s ps>s/x s>p s>p+",
        },
    }
)


def encode_placement(node: PlacedStep) -> str:
    """Return the places of a node's data in the letters of the table."""
    data = [t for t in node.inputs if not t.is_constant]
    letters = [_get_memory_letter(node, t.name) for t in data]
    scales = _get_rescaled_operands(node)
    if node.step.op == CONCAT.name:
        letters = sorted(set(letters))
    large = any(t.size_bytes > MAX_COPY_BYTES for t in (*data, *node.outputs))
    scale_suffix = f"/{scales}" if scales else ""
    size_suffix = "+" if large else ""
    return f"{''.join(letters)}>{_get_memory_letter(node, node.y.name)}{scale_suffix}{size_suffix}"


def _describe_unverified_copy(node: PlacedStep) -> str:
    """Return the shapes of a node that repeats its input, where they are not like those that were measured."""
    source, result = node.x.shape, node.y.shape
    if len(source) in (2, 3) and len(source) == len(result) and source[:-1] == result[:-1]:
        return ""
    return f"{'x'.join(map(str, source))} to {'x'.join(map(str, result))}"


def _is_multirow_single_output(node: PlacedStep) -> bool:
    """Whether a layer writes one output for each of several rows, to shared memory."""
    return node.y.elements > node.y.shape[-1] == 1 and not node.is_output_in_psram


def _get_memory_letter(node: PlacedStep, name: str) -> str:
    return "p" if node.places.get(name, SHARE) == PSRAM else "s"


def _get_rescaled_operands(node: PlacedStep) -> str:
    """Return which operands of a sum or a concatenation have another scale than the result."""
    scale = node.step.get("scale_o")
    keys: list[tuple[str, str]] = []
    if node.step.op == ADD.name:
        keys = [("x", "scale_x"), ("y", "scale_y")]
    elif node.step.op == CONCAT.name:
        keys = [("x", f"scale_x_{i}") for i in range(len(node.inputs))]
    return "".join(
        dict.fromkeys(letter for letter, key in keys if node.step.get(key, scale) != scale)
    )


def find_assumptions(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Yield what was not measured and a right plan hangs on, most of it tensors in places that were never tried."""
    kind = get_packer_profile(plan.target)
    for step in plan.graph.steps:
        if (
            step.op == LAYER_NORM.name
            and plan.options.constant_memory == SHARE
            and kind.layer_norm_writes_past_bias
        ):
            rule, value = (
                "what lies behind all constants in shared memory comes to no harm",
                "rows are written there",
            )
            yield VerdictFinding(
                "unmeasured", step.origin, rule, value, "leave the constants in psram"
            )
        if step.op == CONV1D.name and int(step.get("group", 1)) > 1:
            rule, value = "a 1-D convolution of several groups", f"{step.get('group')} groups"
            yield VerdictFinding(
                "unmeasured", step.origin, rule, value, "write it over a map of height 1"
            )
        if (
            step.op == LINEAR.name
            and kind.multirow_linear_needs_psram
            and _is_multirow_single_output(plan.get_placed_step(step))
        ):
            rule, value = (
                "a LinearInt of several rows and one output that lies in shared memory",
                "measured once",
            )
            yield VerdictFinding(
                "unmeasured", step.origin, rule, value, f"-m {step.outputs[0]}:psram"
            )
        if step.op in (TILE.name, EXPAND.name) and (
            value := _describe_unverified_copy(plan.get_placed_step(step))
        ):
            rule, remedy = (
                f"a {step.op} of anything but the last of two or three axes",
                "reshape it before and after",
            )
            yield VerdictFinding("unmeasured", step.origin, rule, value, remedy)
        places = encode_placement(plan.get_placed_step(step))
        if (
            step.op in IN_PLACE_OPERATORS
            and plan.places[step.inputs[0]] == plan.places[step.outputs[0]]
        ):
            continue  # nothing is computed
        if (
            "p" in places
            and places not in VERIFIED_PLACEMENTS[kind.work_area_table].get(step.op, "").split()
        ):
            rule = f"{step.op} with its tensors in these places (s shared memory, p psram)"
            yield VerdictFinding(
                "unmeasured", step.origin, rule, places, "place them elsewhere (-m)"
            )
