"""Opsets 7 to 11 become opset 12, the oldest that integer graphs are written in; too new ones become `NEWEST`.

Operators whose form changed on the way are rewritten one by one, exactly; the others mean the same in both. Models of
opset 12 to `NEWEST` keep their own; a newer one is relabelled where none of its operators changed since. An operator
that opset 12 does not have any more and that is not in the table, and a model older than opset 7, are a ModelError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from ..errors import ModelError
from ..graph import ir
from .refuse import every_node

OLDEST, TARGET = 7, 12
NEWEST = 26  # of onnxruntime 1.31, the newest that was tried


def raise_opset(model: ir.Graph) -> int:
    """Bring `model` to opset `TARGET` where it is older; return how many nodes were rewritten, plus one."""
    version = model.opset_imports.get("")
    if version is not None and version > NEWEST:
        return _relabel(model, version)
    if version is None or version >= TARGET:
        return 0
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
    return changed


def _relabel(model: ir.Graph, version: int) -> int:
    """Give `model` the opset `NEWEST` where that means the same for every node of it."""
    for node in every_node(model):
        if not node.domain and onnx.defs.has(node.op_type):
            schema = onnx.defs.get_schema(node.op_type, version)
            if schema.since_version > NEWEST:
                return 0  # onnxruntime may know it; else it says so
    model.graph.opset_imports[""] = NEWEST
    return 1


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
        _set_inputs(model, node, arrays, names)
        return 1

    return rewrite


def _set_inputs(model: ir.Graph, node: ir.Node, arrays: Sequence[np.ndarray | None], names: Sequence[str]) -> None:
    while arrays and arrays[-1] is None:
        arrays = arrays[:-1]
    node.resize_inputs(1 + len(arrays))
    for index, (array, name) in enumerate(zip(arrays, names, strict=False), start=1):
        if array is not None:
            fresh = ir.fresh_name(model, f"{node.outputs[0].name}_{name}")
            node.replace_input_with(index, ir.add_initializer(model, fresh, array))
    for name in names:
        node.attributes.pop(name, None)


def _pad(model: ir.Graph, node: ir.Node) -> int:
    value = ir.attr(node, "value", 0.0)
    arrays = [np.asarray(ir.attr(node, "pads"), np.int64), np.asarray(value, np.float32) if value else None]
    _set_inputs(model, node, arrays, ("pads", "value"))
    return 1


def _slice(model: ir.Graph, node: ir.Node) -> int:
    starts, ends, axes = (ir.attr(node, name) for name in ("starts", "ends", "axes"))
    arrays = [np.asarray(v, np.int64) for v in (starts, ends, axes if axes is not None else range(len(starts)))]
    _set_inputs(model, node, arrays, ("starts", "ends", "axes"))
    return 1


def _dropout(model: ir.Graph, node: ir.Node) -> int:
    node.attributes.pop("ratio", None)  # no effect at inference
    return 1


def _batch_norm(model: ir.Graph, node: ir.Node) -> int:
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
    _set_inputs(model, node, [np.array([ir.attr(node, "k")], np.int64)], ("k",))
    return 1


def _scatter(model: ir.Graph, node: ir.Node) -> int:
    node.op_type = "ScatterElements"
    return 1


_Rewrite = tuple[int, Callable[[ir.Graph, ir.Node], Any]]

#: Operator -> (the opset that has the new form, the rewrite).
_REWRITES: dict[str, _Rewrite] = {
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
