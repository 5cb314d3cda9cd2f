"""Opsets 6 to 11 become opset 12, the oldest that integer graphs are written in; too new ones become `NEWEST`.

Operators whose form changed on the way are rewritten one by one, exactly; the others mean the same in both. Models of
opset 12 to `NEWEST` keep their own; a newer one is relabelled where none of its operators changed since. An operator
that opset 12 does not have any more and that is not in the table, and a model older than opset 6, are a ModelError.
A file format (IR version) that is newer than onnxruntime's is declared to be the newest of those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from ...errors import ModelError
from ...graph import ir, operators
from ...graph.builder import to_inputs
from .._pass import Answer, Condition, Reason
from .refuse import every_node

OLDEST, TARGET = 6, 12
NEWEST = 26  # of onnxruntime 1.31, the newest that was tried
NEWEST_FORMAT = 13  # its IR version


def _too_old(model: ir.Graph) -> str | None:
    version = model.opset_imports.get("")
    return f"it is {version}" if version is not None and version < TARGET else None


READABLE_OPSET = Condition(f"opset {TARGET} or a newer one", _too_old)


def raise_opset(model: ir.Graph) -> Answer:
    """Bring `model` to opset `TARGET` where it is older, counted by the nodes that were rewritten, plus one."""
    version = model.opset_imports.get("")
    if (model.ir_version or 0) > NEWEST_FORMAT:  # what a newer format can say, onnxruntime reads or names
        model.ir_version = NEWEST_FORMAT
    if version is not None and version > NEWEST:
        return _relabel(model, version)
    if version is None or version >= TARGET:
        return Answer(0)
    if version < OLDEST:
        raise ModelError(
            f"the model uses opset {version}; opset {OLDEST} is the oldest that can be read: export it "
            "again with a newer one"
        )
    changed = 1
    for node in list(every_node(model)):
        if node.domain:
            continue
        rewrite = _REWRITES.get(node.op_type)
        if rewrite is not None and version < rewrite[0]:
            changed += rewrite[1](model, node)
        _check_exists(node)
    model.graph.opset_imports[""] = TARGET
    return Answer(changed)


def _relabel(model: ir.Graph, version: int) -> Answer:
    """Give `model` the opset `NEWEST` where that means the same for every node of it."""
    for node in every_node(model):
        if not node.domain and onnx.defs.has(node.op_type):
            schema = onnx.defs.get_schema(node.op_type, version)
            if schema.since_version > NEWEST:
                known = f"it is of opset {schema.since_version}; {NEWEST} is the newest that was tried"
                return Answer(0, [Reason(node, known)])  # onnxruntime may know it; else it says so
    model.graph.opset_imports[""] = NEWEST
    return Answer(1)


def _check_exists(node: ir.Node) -> None:
    try:
        schema = onnx.defs.get_schema(node.op_type, TARGET)
    except onnx.defs.SchemaError:
        return  # unknown at any version: onnxruntime says so
    unknown = [name for name in node.attributes if name not in schema.attributes]
    if schema.deprecated or unknown:
        what = f"its attribute '{unknown[0]}'" if unknown else "it"
        raise ModelError(f"{node.op_type} {node.name}: {what} is gone in opset {TARGET}; export the model with it")


def _to_inputs(*names: str, dtype: type = np.int64) -> Callable[[ir.Graph, ir.Node], int]:
    """Return a rewrite that turns attributes into inputs 1, 2 ... in this order; an absent one stays absent."""

    def rewrite(model: ir.Graph, node: ir.Node) -> int:
        arrays: list[np.ndarray | None] = [
            None if (v := ir.attr(node, name)) is None else np.asarray(v, dtype) for name in names
        ]
        to_inputs(model, node, arrays, names)
        return 1

    return rewrite


def _pad(model: ir.Graph, node: ir.Node) -> int:
    value = ir.attr(node, "value", 0.0)
    arrays = [np.asarray(ir.attr(node, "pads"), np.int64), np.asarray(value, np.float32) if value else None]
    to_inputs(model, node, arrays, ("pads", "value"))
    return 1


def _slice(model: ir.Graph, node: ir.Node) -> int:
    starts, ends, axes = (ir.attr(node, name) for name in ("starts", "ends", "axes"))
    arrays = [np.asarray(v, np.int64) for v in (starts, ends, axes if axes is not None else range(len(starts)))]
    to_inputs(model, node, arrays, ("starts", "ends", "axes"))
    return 1


def _dropout(model: ir.Graph, node: ir.Node) -> int:
    for name in ("ratio", "is_test"):  # no effect at inference
        node.attributes.pop(name, None)
    return 1


def _ranks(model: ir.Graph) -> dict[str, int]:
    """Return how many axes the tensors of `model` have, as far as the file or its operators say."""
    graph = onnx.shape_inference.infer_shapes(ir.outline(model)[0]).graph
    known = {t.name: len(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.HasField("shape"):
            known[value.name] = len(value.type.tensor_type.shape.dim)
    return known


def _aligned(model: ir.Graph, node: ir.Node, axis: int | None) -> int:
    """Let the axes of the constant operand 1 begin at `axis` of operand 0; None: they end with its last, as ever since.

    Raises ModelError where the sizes are not known.
    """
    if axis is None:
        return 1
    array, ranks = ir.const(node.inputs[1]), _ranks(model)
    rank, own = ranks.get(ir.read_name(node)), ranks.get(ir.read_name(node, 1))
    if rank is None or own is None:
        raise ModelError(
            f"{node.op_type} {node.name}: how it broadcasts in opset 6 depends on sizes that the file does not tell; "
            f"export the model with opset {TARGET}"
        )
    missing = rank - axis % rank - own
    if missing > 0 and array is not None:
        ir.set_constant(model, node, 1, array.reshape((*array.shape, *[1] * missing)), "aligned")
    elif missing > 0:
        name = ir.fresh_name(model, f"{node.outputs[0].name}_aligned")
        axes = {"axes": list(range(own, own + missing))}
        unsqueeze = ir.make_node("Unsqueeze", [node.inputs[1]], axes, of=node, what="aligned", output=name)
        model.graph.insert_before(node, unsqueeze)
        node.replace_input_with(1, unsqueeze.outputs[0])
    return 1


def _broadcast(model: ir.Graph, node: ir.Node) -> int:
    axis = ir.attr(node, "axis") if ir.attr(node, "broadcast", 0) else None
    for name in ("axis", "broadcast"):
        node.attributes.pop(name, None)
    return _aligned(model, node, axis)


def _slope(model: ir.Graph, node: ir.Node) -> int:
    """One slope per channel, axis 1."""
    array = ir.const(node.inputs[1])
    return _aligned(model, node, None if array is not None and array.size == 1 else 1)


def _gemm(model: ir.Graph, node: ir.Node) -> int:
    node.attributes.pop("broadcast", None)  # it always does
    return 1


def _batch_norm(model: ir.Graph, node: ir.Node) -> int:
    if not ir.attr(node, "is_test", 1):
        raise ModelError(f"{node.op_type} {node.name}: the model is in training mode; call eval() before the export")
    node.attributes.pop("is_test", None)
    if ir.attr(node, "spatial", 1) != 1:
        raise ModelError(f"{node.op_type} {node.name}: spatial = 0 has no newer form; export the model with opset 9")
    node.attributes.pop("spatial", None)
    return 1


def _resize(model: ir.Graph, node: ir.Node) -> int:
    """Upsample 7 and 9 and Resize 10 take positions x / scale, rounded down where they take the nearest."""
    scales = ir.attr(node, "scales")
    source = node.inputs[1] if len(node.inputs) > 1 else None
    roi = ir.add_initializer(model, ir.fresh_name(model, f"{node.outputs[0].name}_roi"), np.zeros(0, np.float32))
    if source is None:
        name = ir.fresh_name(model, f"{node.outputs[0].name}_scales")
        source = ir.add_initializer(model, name, np.asarray(scales, np.float32))
    node.resize_inputs(3)
    node.replace_input_with(1, roi)
    node.replace_input_with(2, source)
    node.attributes.pop("scales", None)
    ir.set_attr(node, "coordinate_transformation_mode", "asymmetric")
    if ir.attr(node, "mode", "nearest") == "nearest":
        ir.set_attr(node, "nearest_mode", "floor")
    node.op_type = "Resize"
    return 1


def _top_k(model: ir.Graph, node: ir.Node) -> int:
    to_inputs(model, node, [np.array([ir.attr(node, "k")], np.int64)], ("k",))
    return 1


def _scatter(model: ir.Graph, node: ir.Node) -> int:
    node.op_type = "ScatterElements"
    return 1


_Rewrite = tuple[int, Callable[[ir.Graph, ir.Node], Any]]

#: Operator -> (the opset that has the new form, the rewrite).
_REWRITES: dict[str, _Rewrite] = {
    **dict.fromkeys(operators.NAMED_BROADCAST, (7, _broadcast)),
    "Gemm": (7, _gemm),
    "PRelu": (7, _slope),
    "BatchNormalization": (9, _batch_norm),
    "Clip": (11, _to_inputs("min", "max", dtype=np.float32)),
    "Dropout": (12, _dropout),
    "Pad": (11, _pad),
    "Resize": (11, _resize),
    "Scatter": (11, _scatter),
    "Slice": (10, _slice),
    "TopK": (10, _top_k),
    "Upsample": (10, _resize),
}
