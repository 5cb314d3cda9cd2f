"""Functions of one number that exporters write as several operators become one node.

    GELU    0.5 x (1 + erf(x / sqrt 2))  and its tanh form          -> lingeronnx.Gelu
    SiLU    x * sigmoid(x)                                          -> lingeronnx.Silu
    Mish    x * tanh(softplus(x))                                   -> lingeronnx.Mish
    HardSwish  x * clip(x + 3, 0, 6) / 6, x * HardSigmoid(x)        -> lingeronnx.HardSwish
    others  any element-wise operators and constants of one value   -> lingeronnx.Curve

What is joined reads one tensor and nobody else reads what lies between. The node calls a
model-local function with the operators as they were, so onnxruntime computes the same. Compositions
that the chips have operators for (arithmetic, Relu, Clip, a lone sigmoid or tanh) stay as they are,
but for SiLU and HardSwish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ...graph import ir, operators
from ...ops import is_table_only
from ...ops.functions.lookup_table import evaluate_float_node, evaluate_node
from .._pass import PassResult, SkipReason

#: Nothing but a table computes these: a composition with one of them is worth a table.
_TABLE_ONLY_OPS = frozenset(kind for kind in operators.UNARY_FUNCTIONS if is_table_only(kind)) - {
    "Neg"
} | {"Pow"}
_FusionPredicate = Callable[[list[ir.Node], ir.Value], bool]
_SAMPLE_POINTS = np.linspace(-8.0, 8.0, 257)
_KNOWN_FUNCTIONS = {
    "Gelu": ("Gelu", {}),
    "GeluTanh": ("Gelu", {"approximate": "tanh"}),
    "HardSwish": ("HardSwish", {}),
    "Mish": ("Mish", {}),
    "Silu": ("Swish", {}),
}

#: Known functions with constants -> operators one of which is in each of their forms.
_MARKER_OPS = {"HardSwish": {"Clip", "HardSigmoid"}, "Gelu": {"Erf"}, "GeluTanh": {"Tanh"}}


def fuse_unary_functions(model: ir.Model) -> PassResult:
    """Join the compositions of `model`, counted by the nodes that are made."""
    return _fuse_regions(model, _is_worth_fusing)


def fuse_known_activations(model: ir.Model) -> PassResult:
    """Join those that are HardSwish or GELU, before a layer takes up what they divide by or add.

    Counted by the nodes that are made.
    """
    return _fuse_regions(model, _matches_known_function)


def _fuse_regions(model: ir.Model, should_fuse: _FusionPredicate) -> PassResult:
    changed, gone, why = 0, set[int](), list[SkipReason]()
    for node in reversed(list(model.graph)):
        if id(node) in gone:
            continue
        region = _find_region(node, should_fuse)
        if region is None:
            if (reason := _explain_unfused_gate(node, should_fuse)) is not None:
                why.append(reason)
            continue
        nodes, source = region
        gone |= {id(n) for n in nodes}
        _replace_with_function(model, nodes, source)
        changed += 1
    return PassResult(changed, why)


def _explain_unfused_gate(node: ir.Node, worth: _FusionPredicate) -> SkipReason | None:
    """Return why the product `node` of a tensor with a function of it stays.

    None for any other node.
    """
    operands = _computed_operands(node) if node.op_type == "Mul" else None
    if operands is None or len(operands) != 2:
        return None
    for value, other in (operands, operands[::-1]):
        maker = ir.producer(value)
        if (
            maker is not None
            and maker.op_type in _GATE_OPS[worth]
            and ir.require_input(maker) is other
        ):
            single = ir.sole_consumer(value) is node
            return SkipReason(
                node, f"{value.name} is {'another function' if single else 'read elsewhere too'}"
            )
    return None


def _computed_operands(node: ir.Node) -> list[ir.Value] | None:
    """Return the computed inputs of an element-wise node, each once; None for another node."""
    known = {*operators.UNARY_FUNCTIONS, *operators.BINARY_FUNCTIONS, "Clip"}
    if node.domain or node.op_type not in known or len(node.outputs) != 1:
        return None
    computed: list[ir.Value] = []
    rank = len(ir.get_shape(node.outputs[0]) or ())
    for value in node.inputs:
        array = ir.const_value(value)
        if value is None or (
            array is not None and (array.size != 1 or array.ndim > rank or array.dtype.kind != "f")
        ):
            return None
        if array is None and value not in computed:
            computed.append(value)
    same = all(
        ir.get_shape(v) is not None and ir.get_shape(v) == ir.get_shape(node.outputs[0])
        for v in computed
    )
    whole = (
        len(node.inputs) == 3 and len(computed) == 1
        if node.op_type == "Clip"
        else len(node.inputs) <= 2
    )
    return computed if same and computed and whole else None


def _find_region(end: ir.Node, worth: _FusionPredicate) -> tuple[list[ir.Node], ir.Value] | None:
    """Return the largest set of nodes worth joining that computes `end` from one tensor, in graph order, and that."""
    sources = _computed_operands(end)
    if sources is None:
        return None
    inside, best = [end], None
    while True:
        if len(sources) == 1 and len(inside) > 1 and worth(inside, sources[0]):
            best = list(inside), sources[0]
        step = next((v for v in sources if _is_interior(v, inside)), None)
        if step is None:
            break
        node = ir.require_producer(step)
        more = _computed_operands(node)
        assert more is not None
        inside.append(node)
        sources = [v for v in sources if v is not step] + [v for v in more if v not in sources]
    if best is None:
        return None
    members = {id(n) for n in best[0]}
    return [n for n in end.graph if id(n) in members], best[1]  # type: ignore[union-attr]


def _is_interior(value: ir.Value, inside: list[ir.Node]) -> bool:
    """Whether only `inside` reads `value`, and an element-wise node writes it."""
    node = value.producer()
    if node is None or value.is_graph_output() or _computed_operands(node) is None:
        return False
    return all(any(use.node is n for n in inside) for use in value.uses())


def _is_worth_fusing(nodes: list[ir.Node], source: ir.Value) -> bool:
    kinds = [n.op_type for n in nodes]
    if _TABLE_ONLY_OPS & set(kinds):
        return True
    products = sum(
        n.op_type == "Mul" and all(ir.const_value(v) is None for v in n.inputs) for n in nodes
    )
    return products > 0 and ("Tanh" in kinds or sorted(kinds) == ["Mul", "Sigmoid"])


def _matches_known_function(nodes: list[ir.Node], source: ir.Value) -> bool:
    kinds = {n.op_type for n in nodes}
    names = [name for name, marks in _MARKER_OPS.items() if marks & kinds]
    with np.errstate(all="ignore"):  # what is tried may have a root or a logarithm in it
        return (
            bool(names)
            and _match_known_values(_evaluate_on_grid(nodes[0].outputs[0], source), names) != ""
        )


#: What stands in the gate of a product that may be such a function.
_GATE_OPS: dict[_FusionPredicate, tuple[str, ...]] = {
    _is_worth_fusing: ("Sigmoid",),
    _matches_known_function: ("HardSigmoid",),
}


def _evaluate_on_grid(value: ir.Value | None, source: ir.Value) -> np.ndarray:
    """Return what a tensor inside a region is where `source` is the grid."""
    array, node = ir.const_value(value), value.producer() if value is not None else None
    if value is source:
        return _SAMPLE_POINTS
    if array is not None:
        return array.astype(np.float64).reshape(())
    assert node is not None
    return evaluate_node(node, *(_evaluate_on_grid(v, source) for v in node.inputs))


def _replace_with_function(model: ir.Model, nodes: list[ir.Node], source: ir.Value) -> None:
    x = ir.Value(name="x")
    inner: dict[int, ir.Value] = {id(source): x}
    body: list[ir.Node] = []
    for number, node in enumerate(nodes):
        inputs = []
        for place, value in enumerate(node.inputs):
            assert value is not None
            array = ir.const_value(value)
            if array is not None:
                tensor = ir.tensor(array.reshape(()), name=f"c{number}_{place}")
                constant = ir.node("Constant", [], {"value": tensor})
                constant.outputs[0].name = f"c{number}_{place}"
                body.append(constant)
                inputs.append(constant.outputs[0])
            else:
                inputs.append(inner[id(value)])
        copy = ir.node(node.op_type, inputs, dict(node.attributes))
        copy.outputs[0].name = f"v{number}"
        inner[id(node.outputs[0])] = copy.outputs[0]
        body.append(copy)
    version = ir.get_opset(model)
    graph = ir.Graph(
        [x], [body[-1].outputs[0]], nodes=body, opset_imports={"": version}, name="Curve"
    )
    name = _declare_function(model, graph)
    new = ir.make_node(
        name,
        [source],
        domain=ir.FUNCTION_DOMAIN,
        origin=nodes[-1],
        output="",
        like=nodes[-1].outputs[0],
    )
    ir.mark_fused(new, nodes)
    ir.replace_nodes(model, nodes, [new])


def _declare_function(model: ir.Model, graph: ir.Graph) -> str:
    """Add the function to the model and return its name; equal functions are one."""
    text = _function_signature(graph)
    for function in model.functions.values():
        if function.domain == ir.FUNCTION_DOMAIN and _function_signature(function.graph) == text:
            return function.name
    function = ir.Function(ir.FUNCTION_DOMAIN, "Curve", graph=graph, attributes=[])
    base = name = _identify_function(model, function)
    number = 1
    while (ir.FUNCTION_DOMAIN, name, "") in model.functions:
        number += 1
        name = f"{base}_{number}"
    function.name = name
    model.functions[ir.FUNCTION_DOMAIN, name, ""] = function
    model.graph.opset_imports[ir.FUNCTION_DOMAIN] = 1
    model.ir_version = max(model.ir_version or 8, 8)
    return name


def _function_signature(graph: ir.Graph) -> str:
    """Return the operators, constants and connections of a function as text."""
    lines = []
    for node in graph:
        attrs = {name: ir.get_attr(node, name) for name in sorted(node.attributes)}
        lines.append(
            f"{node.outputs[0].name}={node.op_type}({','.join(str(v and v.name) for v in node.inputs)}){attrs}"
        )
    return "\n".join(lines)


def _identify_function(model: ir.Model, function: ir.Function) -> str:
    """Return the name of the known function that has the same values, else "Curve"."""
    probe = ir.node("Curve", [ir.Value(name="x")], domain=ir.FUNCTION_DOMAIN)
    model.functions[ir.FUNCTION_DOMAIN, "Curve?", ""] = function
    probe.op_type = "Curve?"
    values = evaluate_float_node(model, probe, _SAMPLE_POINTS)
    del model.functions[ir.FUNCTION_DOMAIN, "Curve?", ""]
    return _match_known_values(values, _KNOWN_FUNCTIONS).removesuffix("Tanh") or "Curve"


def _match_known_values(values: np.ndarray, names: Iterable[str]) -> str:
    """Return which of the known functions has the `values` on the grid; empty where none has."""
    for name in names:
        kind, attrs = _KNOWN_FUNCTIONS[name]
        if np.allclose(
            values,
            evaluate_node(ir.node(kind, [ir.Value(name="x")], attrs), _SAMPLE_POINTS),
            rtol=0,
            atol=1e-6,
        ):
            return name
    return ""
