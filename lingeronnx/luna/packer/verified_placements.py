"""Memory placements of operands and results with which each operator was measured to be correct.

A memory is one letter: s for shared memory, p for PSRAM. ``sp>s`` reads its first operand from
shared memory and its second from PSRAM, and writes to shared memory. After a slash follow the
operands of a sum or a concatenation whose scale differs from that of the result; a plus marks a
node with a tensor of more than 65536 bytes. Every operator was measured with all tensors in shared
memory.

`tests/targets/luna/packer/test_measured.py` checks the table against the measured records; its
command prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ...operators.integer_ops import (
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
from ...targets.verdict import VerdictFinding
from ..packer_profile import get_packer_profile
from .memory.findings import MAX_COPY_BYTES, PlannedGraph
from .memory.graph_facts import IN_PLACE_OPERATORS
from .memory.work_areas import PlacedStep
from .options import PSRAM, SHARE
from .packer_graph import PackerStep

__all__ = ["VERIFIED_PLACEMENTS", "encode_placement", "find_assumptions"]

#: PackerProfile.work_area_table -> operator -> placements that were measured to be correct.
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
    """Encode the memories of a node's tensors, such as "sp>s/x+".

    One letter (s shared memory, p PSRAM) per computed input, for an iqCat each letter once and
    sorted; ">" and the letter of the first output; after "/" the rescaled operands; "+" if a
    computed input or output exceeds 65536 bytes.
    """
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
    """Return "AxB to AxC", the shapes of a Tile or Expand, if such shapes were never measured.

    Returns "" for the measured case: two or three axes of which only the last changes.
    """
    source, result = node.x.shape, node.y.shape
    if len(source) in (2, 3) and len(source) == len(result) and source[:-1] == result[:-1]:
        return ""
    return f"{'x'.join(map(str, source))} to {'x'.join(map(str, result))}"


def _is_multirow_single_output(node: PlacedStep) -> bool:
    """Whether the output of a LinearInt has several rows of one element and is in shared memory."""
    return node.y.elements > node.y.shape[-1] == 1 and not node.is_output_in_psram


def _get_memory_letter(node: PlacedStep, name: str) -> str:
    """Return "p" if tensor `name` of `node` is in PSRAM, else "s"."""
    return "p" if node.placements.get(name, SHARE) == PSRAM else "s"


def _get_rescaled_operands(node: PlacedStep) -> str:
    """Return "x", "y", "xy" or "": the operands of an iqAdd whose scale differs from `scale_o`.

    For an iqCat "x" if any input is rescaled; "" for other operators.
    """
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
    """Yield a finding of level "unmeasured" for each unmeasured fact that a correct plan relies on.

    These are special cases of single operators, and placements with a tensor in PSRAM with which
    the operator was never measured on this chip. Placements of steps made in place do not count.
    The first one is the executor itself if nothing of it was measured.
    """
    if "" in plan.target.unmeasured:
        yield VerdictFinding(
            "unmeasured",
            "graph",
            f"the executor of {plan.target.name}",
            plan.target.unmeasured[""],
            "choose a version that was measured",
        )
    for step in plan.graph.steps:
        yield from _find_operator_assumptions(plan, step)
        if step.op in plan.target.unmeasured:
            yield VerdictFinding(
                "unmeasured",
                step.origin,
                f"{step.op} on {plan.target.name}",
                plan.target.unmeasured[step.op],
                "choose a version on which it was measured",
            )
        if (
            step.op in IN_PLACE_OPERATORS
            and plan.placements[step.inputs[0]] == plan.placements[step.outputs[0]]
        ):
            continue  # nothing is computed
        placement = encode_placement(plan.get_placed_step(step))
        table = get_packer_profile(plan.target).work_area_table
        verified = VERIFIED_PLACEMENTS[table].get(step.op, "").split()
        if "p" in placement and placement not in verified:
            yield VerdictFinding(
                "unmeasured",
                step.origin,
                f"{step.op} with its tensors in these memories (s shared memory, p psram)",
                placement,
                "place them elsewhere (-m)",
            )


def _find_operator_assumptions(plan: PlannedGraph, step: PackerStep) -> Iterator[VerdictFinding]:
    """Yield a finding of level "unmeasured" for each special case of `step` never measured enough.

    The cases are a LayerNormInt with constants in shared memory that writes past its bias, a
    grouped Conv1dInt, a LinearInt with several rows and one output, and a Tile or Expand of an axis
    other than the last of two or three.
    """
    profile = get_packer_profile(plan.target)
    if (
        step.op == LAYER_NORM.name
        and plan.options.constant_memory == SHARE
        and profile.layer_norm_writes_past_bias
    ):
        yield VerdictFinding(
            "unmeasured",
            step.origin,
            "writes past the constants in shared memory do no harm",
            "rows are written there",
            "leave the constants in psram",
        )
    if step.op == CONV1D.name and int(step.get("group", 1)) > 1:
        yield VerdictFinding(
            "unmeasured",
            step.origin,
            "a grouped 1-D convolution",
            f"{step.get('group')} groups",
            "write it as a 2-D convolution over a map of height 1",
        )
    if (
        step.op == LINEAR.name
        and profile.multirow_linear_needs_psram
        and _is_multirow_single_output(plan.get_placed_step(step))
    ):
        yield VerdictFinding(
            "unmeasured",
            step.origin,
            "a LinearInt with several rows and one output in shared memory",
            "measured once",
            f"-m {step.outputs[0]}:psram",
        )
    if step.op in (TILE.name, EXPAND.name):
        shapes = _describe_unverified_copy(plan.get_placed_step(step))
        if shapes:
            yield VerdictFinding(
                "unmeasured",
                step.origin,
                f"a {step.op} of an axis other than the last of two or three",
                shapes,
                "reshape it before and after",
            )
