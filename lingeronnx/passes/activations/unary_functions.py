"""Fuse unary functions that exporters write as several operators.

    GELU    0.5 x (1 + erf(x / sqrt 2)), and its tanh form          -> lingeronnx.Gelu
    SiLU    x * sigmoid(x)                                          -> lingeronnx.Silu
    Mish    x * tanh(softplus(x))                                   -> lingeronnx.Mish
    HardSwish  x * clip(x + 3, 0, 6) / 6, x * HardSigmoid(x)        -> lingeronnx.HardSwish
    others  any elementwise operators and scalar constants          -> lingeronnx.Curve

The fused nodes read one tensor, and nothing else reads their intermediate tensors. The new node
calls a model-local function with the original operators, so onnxruntime computes the same.
Compositions that the platforms have operators for (arithmetic, Relu, Clip, a single sigmoid or
tanh) are not fused, except SiLU and HardSwish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ...graph import ir, operators
from ...ops import is_table_only
from ...ops.functions.lookup_table import evaluate_float_node, evaluate_node
from .._pass import PassResult, SkipReason

#: Operators that need a lookup table: a composition with one of them becomes one table.
_TABLE_ONLY_OPS = frozenset(
    op_type for op_type in operators.UNARY_FUNCTIONS if is_table_only(op_type)
) - {"Neg"} | {"Pow"}
_ELEMENTWISE_OPS = {*operators.UNARY_FUNCTIONS, *operators.BINARY_FUNCTIONS, "Clip"}
_FusionPredicate = Callable[[list[ir.Node], ir.Value], bool]
_SAMPLE_POINTS = np.linspace(-8.0, 8.0, 257)
_KNOWN_FUNCTIONS = {
    "Gelu": ("Gelu", {}),
    "GeluTanh": ("Gelu", {"approximate": "tanh"}),
    "HardSwish": ("HardSwish", {}),
    "Mish": ("Mish", {}),
    "Silu": ("Swish", {}),
}

#: Known function with constants -> operators of which each of its forms has at least one.
_MARKER_OPS = {"HardSwish": {"Clip", "HardSigmoid"}, "Gelu": {"Erf"}, "GeluTanh": {"Tanh"}}


def fuse_unary_functions(model: ir.Model) -> PassResult:
    """Fuse the unary compositions of `model`, counted by new nodes."""
    return _fuse_regions(model, _is_worth_fusing)


def fuse_known_activations(model: ir.Model) -> PassResult:
    """Fuse the compositions that are HardSwish or GELU, counted by new nodes.

    Must run before layers absorb the constants that these divide by or add.
    """
    return _fuse_regions(model, _matches_known_function)


def _fuse_regions(model: ir.Model, should_fuse: _FusionPredicate) -> PassResult:
    """Fuse the regions of `model` for which `should_fuse` holds, from the outputs upstream.

    A region computes a unary function of one tensor and becomes one function call.
    """
    changes, fused_ids, skipped = 0, set[int](), list[SkipReason]()
    for node in reversed(list(model.graph)):
        if id(node) in fused_ids:
            continue
        region = _find_region(node, should_fuse)
        if region is None:
            reason = _explain_unfused_gate(node, should_fuse)
            if reason is not None:
                skipped.append(reason)
            continue
        nodes, source = region
        fused_ids.update(id(member) for member in nodes)
        _replace_with_function(model, nodes, source)
        changes += 1
    return PassResult(changes, skipped)


def _explain_unfused_gate(node: ir.Node, should_fuse: _FusionPredicate) -> SkipReason | None:
    """Return why a product of a tensor with a function of it is not fused, else None.

    The function (gate) is one of `_GATE_OPS`; it is another function, or used elsewhere too.
    """
    operands = _computed_operands(node) if node.op_type == "Mul" else None
    if operands is None or len(operands) != 2:
        return None
    for gate, source in (operands, operands[::-1]):
        producer = ir.producer(gate)
        if producer is None or producer.op_type not in _GATE_OPS[should_fuse]:
            continue
        if ir.require_input(producer) is source:
            is_private = ir.sole_consumer(gate) is node
            problem = "another function" if is_private else "used elsewhere too"
            return SkipReason(node, f"{gate.name} is {problem}")
    return None


def _computed_operands(node: ir.Node) -> list[ir.Value] | None:
    """Return the distinct computed inputs of an elementwise node with scalar constants, or None.

    All computed inputs must have the shape of the output.
    """
    if not ir.is_standard_op(node, *_ELEMENTWISE_OPS) or len(node.outputs) != 1:
        return None
    shape = ir.get_shape(node.outputs[0])
    computed: list[ir.Value] = []
    for value in node.inputs:
        array = ir.const_value(value)
        if value is None or (array is not None and not _is_scalar_float(array, len(shape or ()))):
            return None
        if array is None and value not in computed:
            computed.append(value)
    if shape is None or any(ir.get_shape(value) != shape for value in computed):
        return None
    return computed if _has_supported_operands(node, len(computed)) else None


def _has_supported_operands(node: ir.Node, computed_count: int) -> bool:
    """Whether a Clip has two constant bounds, or another operator at most two operands.

    `computed_count` is the number of computed operands; at least one must be.
    """
    if node.op_type == "Clip":
        return len(node.inputs) == 3 and computed_count == 1
    return len(node.inputs) <= 2 and computed_count > 0


def _is_scalar_float(array: np.ndarray, max_rank: int) -> bool:
    return array.size == 1 and array.ndim <= max_rank and array.dtype.kind == "f"


def _find_region(
    end: ir.Node, should_fuse: _FusionPredicate
) -> tuple[list[ir.Node], ir.Value] | None:
    """Find the largest set of nodes that computes the output of `end` from one tensor.

    Returns (nodes in graph order, the tensor). None unless a set of at least two nodes exists for
    which ``should_fuse(nodes, tensor)`` is true.
    """
    sources = _computed_operands(end)
    if sources is None:
        return None
    members = [end]
    best: tuple[list[ir.Node], ir.Value] | None = None
    while True:
        if len(sources) == 1 and len(members) > 1 and should_fuse(members, sources[0]):
            best = list(members), sources[0]
        interior = next((value for value in sources if _is_interior(value, members)), None)
        if interior is None:
            break
        producer = ir.require_producer(interior)
        members.append(producer)
        sources = _expand_source(sources, interior, _computed_operands(producer) or [])
    if best is None or end.graph is None:
        return None
    region, source = best
    return [node for node in end.graph if node in region], source


def _expand_source(
    sources: list[ir.Value], expanded: ir.Value, operands: list[ir.Value]
) -> list[ir.Value]:
    """Return `sources` without `expanded`, followed by those `operands` not among `sources`.

    The operands are those of the producer of `expanded`.
    """
    remaining = [value for value in sources if value is not expanded]
    return remaining + [value for value in operands if value not in sources]


def _is_interior(value: ir.Value, members: list[ir.Node]) -> bool:
    """Whether an elementwise node computes `value` and only `members` consume it.

    False for a graph output.
    """
    producer = value.producer()
    if producer is None or value.is_graph_output() or _computed_operands(producer) is None:
        return False
    member_ids = {id(member) for member in members}
    return all(id(use.node) in member_ids for use in value.uses())


def _is_worth_fusing(nodes: list[ir.Node], source: ir.Value) -> bool:
    """Whether no platform has an operator for the composition, or it is SiLU.

    That holds for operators of `_TABLE_ONLY_OPS`, and for products of tensors with a Tanh.
    """
    op_types = [node.op_type for node in nodes]
    if not _TABLE_ONLY_OPS.isdisjoint(op_types):
        return True
    if not any(_is_product_of_tensors(node) for node in nodes):
        return False
    return "Tanh" in op_types or sorted(op_types) == ["Mul", "Sigmoid"]


def _is_product_of_tensors(node: ir.Node) -> bool:
    return node.op_type == "Mul" and all(ir.const_value(value) is None for value in node.inputs)


def _matches_known_function(nodes: list[ir.Node], source: ir.Value) -> bool:
    """Whether `nodes`, which compute the first one's output from `source`, equal a known function.

    Compared at `_SAMPLE_POINTS`, and only with functions of `_MARKER_OPS` one of whose marker
    operators occurs in `nodes`.
    """
    op_types = {node.op_type for node in nodes}
    names = [name for name, markers in _MARKER_OPS.items() if markers & op_types]
    if not names:
        return False
    with np.errstate(all="ignore"):  # the composition may have a root or logarithm
        values = _evaluate_on_grid(nodes[0].outputs[0], source)
        return _match_known_values(values, names) != ""


#: Operators of the gate in a product that may be such a function.
_GATE_OPS: dict[_FusionPredicate, tuple[str, ...]] = {
    _is_worth_fusing: ("Sigmoid",),
    _matches_known_function: ("HardSigmoid",),
}


def _evaluate_on_grid(value: ir.Value | None, source: ir.Value) -> np.ndarray:
    """Return the values of `value`, computed from `source`, for `source` = `_SAMPLE_POINTS`.

    Constants are scalars; evaluated recursively in float64.
    """
    if value is source:
        return _SAMPLE_POINTS
    array = ir.const_value(value)
    if array is not None:
        return array.astype(np.float64).reshape(())
    node = ir.require_producer(value)
    return evaluate_node(node, *(_evaluate_on_grid(operand, source) for operand in node.inputs))


def _replace_with_function(model: ir.Model, nodes: list[ir.Node], source: ir.Value) -> None:
    """Replace `nodes`, a unary function of `source`, by a call of a model-local function.

    `nodes` are in topological order; their constants become Constant nodes of the body. The call
    keeps the name of the last node's output.
    """
    function_input = ir.Value(name="x")
    inner_values: dict[int, ir.Value] = {id(source): function_input}
    body: list[ir.Node] = []
    for node_index, node in enumerate(nodes):
        inputs = []
        for input_index, value in enumerate(node.inputs):
            assert value is not None
            array = ir.const_value(value)
            if array is None:
                inputs.append(inner_values[id(value)])
                continue
            name = f"c{node_index}_{input_index}"
            constant = ir.node("Constant", [], {"value": ir.tensor(array.reshape(()), name=name)})
            constant.outputs[0].name = name
            body.append(constant)
            inputs.append(constant.outputs[0])
        copy = ir.node(node.op_type, inputs, dict(node.attributes))
        copy.outputs[0].name = f"v{node_index}"
        inner_values[id(node.outputs[0])] = copy.outputs[0]
        body.append(copy)
    graph = ir.Graph(
        [function_input],
        [body[-1].outputs[0]],
        nodes=body,
        opset_imports={"": ir.get_opset(model)},
        name="Curve",
    )
    call = ir.make_node(
        _declare_function(model, graph),
        [source],
        domain=ir.FUNCTION_DOMAIN,
        origin=nodes[-1],
        output="",
        like=nodes[-1].outputs[0],
    )
    ir.mark_fused(call, nodes)
    ir.replace_nodes(model, nodes, [call])


def _declare_function(model: ir.Model, graph: ir.Graph) -> str:
    """Add the function of body `graph` to the model and return its name.

    An equal function of the model is reused; a new one is named after the operator that it is
    recognized as, with a number if the name is taken.
    """
    signature = _function_signature(graph)
    for function in model.functions.values():
        if (
            function.domain == ir.FUNCTION_DOMAIN
            and _function_signature(function.graph) == signature
        ):
            return function.name
    function = ir.Function(ir.FUNCTION_DOMAIN, "Curve", graph=graph, attributes=[])
    base = name = _identify_function(model, function)
    count = 1
    while (ir.FUNCTION_DOMAIN, name, "") in model.functions:
        count += 1
        name = f"{base}_{count}"
    function.name = name
    model.functions[ir.FUNCTION_DOMAIN, name, ""] = function
    model.graph.opset_imports[ir.FUNCTION_DOMAIN] = 1
    model.ir_version = max(model.ir_version or 8, 8)
    return name


def _function_signature(graph: ir.Graph) -> str:
    """Return a text that is equal for two functions with the same nodes, names and attributes.

    One line per node, in graph order: output = operator(inputs) {attributes}.
    """
    lines = []
    for node in graph:
        attributes = {name: ir.get_attr(node, name) for name in sorted(node.attributes)}
        inputs = ",".join(str(value and value.name) for value in node.inputs)
        lines.append(f"{node.outputs[0].name}={node.op_type}({inputs}){attributes}")
    return "\n".join(lines)


def _identify_function(model: ir.Model, function: ir.Function) -> str:
    """Return the name of the known function with the same values as `function`, else "Curve".

    Compared at `_SAMPLE_POINTS`; a suffix "Tanh" (an approximation) is omitted from the name. Adds
    a temporary function to `model` and removes it.
    """
    probe = ir.node("Curve", [ir.Value(name="x")], domain=ir.FUNCTION_DOMAIN)
    model.functions[ir.FUNCTION_DOMAIN, "Curve?", ""] = function
    probe.op_type = "Curve?"
    values = evaluate_float_node(model, probe, _SAMPLE_POINTS)
    del model.functions[ir.FUNCTION_DOMAIN, "Curve?", ""]
    return _match_known_values(values, _KNOWN_FUNCTIONS).removesuffix("Tanh") or "Curve"


def _match_known_values(values: np.ndarray, names: Iterable[str]) -> str:
    """Return the first of `names` whose function has `values` at `_SAMPLE_POINTS`, or "".

    All values must agree within 1e-6.
    """
    for name in names:
        op_type, attributes = _KNOWN_FUNCTIONS[name]
        node = ir.node(op_type, [ir.Value(name="x")], attributes)
        if np.allclose(values, evaluate_node(node, _SAMPLE_POINTS), rtol=0, atol=1e-6):
            return name
    return ""
