"""Replace operators that the installed onnxruntime cannot run, and check the result.

onnxruntime inlines a function body only if its opset is that of the model. The float model that
everything is compared with then contains the body, and onnx's reference evaluator, which knows the
operator, checks it on one sample. A mask of Attention that is equal for all queries is repeated for
each, since onnxruntime's kernel does not broadcast it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from ...common.errors import ModelError
from ...ir import ir
from ...ir.builder import SubgraphBuilder
from ...ir.function_bodies import expand_to_bodies, find_standard_schema, has_function_body
from .sessions import open_ort_session

__all__ = [
    "check_expanded_nodes",
    "expand_missing_kernels",
    "get_expanded_nodes",
    "replace_missing_kernels",
]

#: The first opset whose operators are tested; onnxruntime has kernels of all older ones.
_FIRST_TESTED_OPSET = 23
_TOLERANCE = 1e-4  # relative to the largest magnitude: differences in float32 rounding
_EXPANDED_KEY = "lingeronnx.expanded_nodes"  # metadata of a model, in memory only
_MAX_DEPTH = 4  # of bodies in bodies
_MASK = 3  # input of Attention


def expand_missing_kernels(model: ir.Model) -> int:
    """Expand the operators of `model` that onnxruntime lacks and onnx has a body for, in place.

    Returns the number of replaced nodes and repeated masks. `get_expanded_nodes` returns the nodes
    of the main graph that were replaced.
    """
    opset, replaced = ir.get_opset(model), list[onnx.NodeProto]()
    if opset < _FIRST_TESTED_OPSET:
        return 0
    masked_nodes = [node for node in model.graph if _has_single_mask_row(node)]
    for node in masked_nodes:
        _repeat_mask_row(model, node)
    main_nodes = set(model.graph)
    for _ in range(_MAX_DEPTH):
        nodes = [node for node in model.graph.all_nodes() if _lacks_kernel(node, opset)]
        protos = {node: ir.serialize_node(node) for node in nodes if node in main_nodes}
        expanded = expand_to_bodies(model, nodes)
        if not expanded:
            break
        replaced += [protos[node] for node in expanded if node in protos]
        ir.assign_node_names(model)
    if replaced:
        ir.lift_constants(model)
        model.meta[_EXPANDED_KEY] = replaced
    return len(replaced) + len(masked_nodes)


def replace_missing_kernels(model: ir.Model) -> ir.Model:
    """Return `model`, or a copy in which the operators that onnxruntime lacks are expanded."""
    opset = ir.get_opset(model)
    if opset < _FIRST_TESTED_OPSET:
        return model
    nodes = tuple(model.graph.all_nodes())
    if not any(_lacks_kernel(node, opset) or _has_single_mask_row(node) for node in nodes):
        return model
    copy = model.clone()
    expand_missing_kernels(copy)
    return copy


def get_expanded_nodes(model: ir.Model) -> list[onnx.NodeProto]:
    """Return the nodes that `expand_missing_kernels` replaced in `model`, as they were."""
    return list(model.meta.get(_EXPANDED_KEY, ()))


def _has_single_mask_row(node: ir.Node) -> bool:
    """Whether `node` is an Attention whose mask is known to have one row for all queries."""
    if node.domain or node.op_type != "Attention" or len(node.inputs) <= _MASK:
        return False
    mask = node.inputs[_MASK]
    shape = None if mask is None else ir.get_shape(mask)
    return shape is not None and len(shape) > 1 and shape[-2] == 1


def _repeat_mask_row(model: ir.Model, node: ir.Node) -> None:
    """Insert an Expand of the mask of the Attention `node` to as many rows as there are queries."""
    builder, mask = SubgraphBuilder(model, node), ir.require_input(node, _MASK)
    bounds = {"start": -2, "end": -1}
    queries = builder("Shape", [ir.require_input(node, 0)], [1], "queries", bounds)
    target = builder("Concat", [queries, builder.int_constant(1)], [2], "mask_shape", {"axis": 0})
    dims = list(mask.shape or ())
    shape = [*dims[:-2], "queries", dims[-1]]
    repeated = builder("Expand", [mask, target], shape, "mask_rows")
    queries.type = target.type = ir.TensorType(ir.DataType.INT64)
    repeated.type = mask.type
    node.replace_input_with(_MASK, repeated)
    model.graph.insert_before(node, builder.nodes)
    ir.assign_node_names(model)


def _lacks_kernel(node: ir.Node, opset: int) -> bool:
    """Whether `node` has a function body and onnxruntime cannot open a model of it alone."""
    schema = find_standard_schema(node, opset)
    if schema is None or schema.since_version < _FIRST_TESTED_OPSET:
        return False
    if not has_function_body(node.op_type, opset):
        return False
    proto = ir.serialize_node(node)
    inputs: list[onnx.ValueInfoProto] = []
    for value in node.inputs:
        if value is not None and value.name not in {info.name for info in inputs}:
            dtype = ir.DataType.FLOAT if value.dtype is None else value.dtype
            inputs.append(onnx.helper.make_tensor_value_info(str(value.name), int(dtype), None))
    model = _make_model(proto, inputs, opset)
    try:
        open_ort_session(model, f"{node.op_type} {node.name}", 1, disable_optimizations=True)
    except ModelError:
        return True
    return False


def _make_model(
    node: onnx.NodeProto, inputs: Sequence[onnx.ValueInfoProto], opset: int
) -> onnx.ModelProto:
    """Make a model of a single node."""
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "node", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    model.ir_version = 10
    return model


def check_expanded_nodes(
    nodes: Sequence[onnx.NodeProto],
    opset: int,
    run: Callable[[Sequence[str]], Mapping[str, np.ndarray]],
) -> list[str]:
    """Compare function bodies with onnx's reference evaluator on one sample.

    Parameters
    ----------
    nodes
        The nodes before they were expanded.
    opset
        The opset of the model.
    run
        Returns tensors of the expanded model on the sample, by name; names that it lacks are left
        out.

    Returns
    -------
    list of str
        One note per operator.

    Raises
    ------
    ModelError
        A body computes something else than the operator.
    """
    checked: dict[str, int] = {}
    for node in nodes:
        arrays = run([name for name in (*node.input, *node.output) if name])
        feed = {name: arrays[name] for name in node.input if name in arrays}
        is_complete = len(feed) == len({name for name in node.input if name})
        checked.setdefault(node.op_type, 0)
        if is_complete and _check_node(node, opset, feed, arrays):
            checked[node.op_type] += 1
    counts = dict.fromkeys(checked, 0)
    for node in nodes:
        counts[node.op_type] += 1
    return [
        f"{op_type}: onnxruntime has no such operator in opset {opset}; its function body is the "
        f"reference ({checked[op_type]} of {counts[op_type]} nodes checked with onnx.reference on "
        "one sample)"
        for op_type in checked
    ]


def _check_node(
    node: onnx.NodeProto,
    opset: int,
    feed: Mapping[str, np.ndarray],
    arrays: Mapping[str, np.ndarray],
) -> bool:
    """Compare the outputs of `node` for `feed` with `arrays`; return whether that was possible."""
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.output if name in arrays]
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feed.items()
    ]
    try:
        results = ReferenceEvaluator(_make_model(node, inputs, opset)).run(names, dict(feed))
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    for name, expected in zip(names, results, strict=True):
        limit = _TOLERANCE * float(np.abs(expected).max(initial=1e-30))
        if not np.allclose(arrays[name], expected, rtol=0, atol=limit, equal_nan=True):
            raise ModelError(
                f"{node.op_type} {node.name}: its function body computes another '{name}' than "
                "onnx's reference; export the model with other operators"
            )
    return bool(names)
