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

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ....ir import float_ops, ir
from ....operators.activation_tables.lowering.lookup_table import evaluate_float_node, evaluate_node
from ....operators.lowerings import is_table_only
from .._pass import PassResult, SkipReason

#: Operators that need a lookup table: a composition with one of them becomes one table.
_TABLE_ONLY_OPS = frozenset(
    op_type for op_type in float_ops.UNARY_FUNCTIONS if is_table_only(op_type)
) - {"Neg"} | {"Pow"}
_ELEMENTWISE_OPS = {*float_ops.UNARY_FUNCTIONS, *float_ops.BINARY_FUNCTIONS, "Clip"}
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
_MAX_KNOWN_FUNCTION_NODES = 32  # exporters write at most 12

#: Operators of which a graph needs one for `fuse_known_activations` to change or explain a node.
KNOWN_ACTIVATION_OPS = frozenset[str]().union(*_MARKER_OPS.values())
#: The same for `fuse_unary_functions`.
TABLE_FUNCTION_OPS = _TABLE_ONLY_OPS | {"Sigmoid", "Tanh"}


def fuse_unary_functions(model: ir.Model) -> PassResult:
    """Fuse nodes of `model` that compute one function of one tensor and need a lookup table.

    Each such group, which has an operator that no platform computes without a table, a product with
    a Tanh, or is SiLU, becomes one call of a model-local function, in place. Returns the number of
    calls created, and reasons for products of a tensor with its Sigmoid that stay.
    """
    return _fuse_regions(model, _TABLE_RULE)


def fuse_known_activations(model: ir.Model) -> PassResult:
    """Fuse elementwise nodes of `model` that have the values of HardSwish or GELU, in place.

    Each group becomes one call of a model-local function. Must run before layers absorb the
    constants that these functions divide by or add. Returns the number of calls created, and
    reasons for products of a tensor with its HardSigmoid that stay.
    """
    return _fuse_regions(model, _KNOWN_FUNCTION_RULE)


def _fuse_regions(model: ir.Model, rule: _FusionRule) -> PassResult:
    """Fuse the groups of elementwise nodes of `model` that `rule` accepts, last nodes first.

    A group computes a unary function of one tensor and becomes one call of a model-local function.
    Products of a tensor with a gate (a function of it in the rule's `gate_ops`) that are not fused
    are skipped with a reason.
    """
    changes, fused_ids, skipped = 0, set[int](), list[SkipReason]()
    finder, declarations = _RegionFinder(model.graph, rule), _FunctionDeclarations(model)
    for node in reversed(finder.nodes):
        if id(node) in fused_ids:
            continue
        region = finder.find_region(node)
        if region is None:
            reason = _explain_unfused_gate(node, rule)
            if reason is not None:
                skipped.append(reason)
            continue
        nodes, source = region
        fused_ids.update(id(member) for member in nodes)
        _replace_with_function(model, nodes, source, declarations)
        changes += 1
    return PassResult(changes, skipped)


def _explain_unfused_gate(node: ir.Node, rule: _FusionRule) -> SkipReason | None:
    """Explain why the product of a tensor with a gate, a function of the same tensor, is not fused.

    The gate's operator is one of the rule's `gate_ops`. The reason is that the gate has other
    readers too, or that the product is no function that the rule knows. None if `node` is no such
    product.
    """
    operands = _computed_operands(node) if node.op_type == "Mul" else None
    if operands is None or len(operands) != 2:
        return None
    for gate, source in (operands, operands[::-1]):
        producer = ir.producer(gate)
        if producer is None or producer.op_type not in rule.gate_ops:
            continue
        if ir.require_input(producer) is source:
            is_private = ir.sole_consumer(gate) is node
            problem = "another function" if is_private else "used elsewhere too"
            return SkipReason(node, f"{gate.name} is {problem}")
    return None


def _computed_operands(node: ir.Node) -> list[ir.Value] | None:
    """Return the distinct computed inputs of an elementwise node, or None if it cannot be fused.

    It can if it is an elementwise operator of the standard domain with one output, all constants
    among its inputs are single floats, all other inputs have the shape of the output, and a Clip
    has both bounds.
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
    """Whether `node`, an elementwise operator, has a number of operands that can be fused.

    `computed_count` of them are not constant. A Clip needs three inputs with one computed, another
    operator at most two inputs and at least one computed.
    """
    if node.op_type == "Clip":
        return len(node.inputs) == 3 and computed_count == 1
    return len(node.inputs) <= 2 and computed_count > 0


def _is_scalar_float(array: np.ndarray, max_rank: int) -> bool:
    """Whether `array` is a single floating-point number with at most `max_rank` axes."""
    return array.size == 1 and array.ndim <= max_rank and array.dtype.kind == "f"


class _UnaryRegion:
    """Elementwise nodes that compute the output of one node, extended upstream node by node.

    A producer joins the region if only nodes of the region read its output. The work for each node
    does not depend on the size of the region.

    Attributes
    ----------
    members
        The nodes, in the order in which they joined.
    op_types
        Their operators.
    has_product
        Whether a member multiplies two computed tensors.
    has_join
        Whether a member reads two different computed tensors.
    """

    def __init__(self, end: ir.Node, operands: Sequence[ir.Value]) -> None:
        """Start with the node `end`, whose distinct non-constant inputs are `operands`."""
        self.members: list[ir.Node] = []
        self.op_types: set[str] = set()
        self.has_product = self.has_join = False
        self._sources: dict[int, ir.Value] = {}
        self._source_indices: dict[int, int] = {}
        self._outside_uses: dict[int, int] = {}
        self._interior: list[tuple[int, ir.Node, list[ir.Value]]] = []
        self._add_member(end, operands)

    @property
    def source(self) -> ir.Value | None:
        """The only tensor from which the nodes compute their result, or None if they read several.

        Constants do not count.
        """
        return next(iter(self._sources.values())) if len(self._sources) == 1 else None

    def extend(self) -> bool:
        """Add a producer of an input of the group whose output only the group's nodes read.

        Of several it takes the one whose output was met first. Returns False, without a change, if
        there is none that is elementwise.
        """
        if not self._interior:
            return False
        _, producer, operands = heapq.heappop(self._interior)
        del self._sources[id(producer.outputs[0])]
        self._add_member(producer, operands)
        return True

    def _add_member(self, node: ir.Node, operands: Sequence[ir.Value]) -> None:
        """Add `node` to the group of elementwise nodes.

        Its distinct non-constant inputs are `operands`. The operands that were not met before
        become inputs of the group. For each operand the uses outside the group are counted down,
        and its producer is queued for `extend` if none remain.
        """
        self.members.append(node)
        self.op_types.add(node.op_type)
        self.has_product |= _is_product_of_tensors(node)
        self.has_join |= len(operands) > 1
        for value in operands:
            key = id(value)
            if key not in self._source_indices:
                self._sources[key] = value
                self._source_indices[key] = len(self._source_indices)
                self._outside_uses[key] = _count_uses(value)
            self._outside_uses[key] -= sum(operand is value for operand in node.inputs)
            self._enter_if_interior(value)

    def _enter_if_interior(self, value: ir.Value) -> None:
        """Queue the producer of `value`, an input of the group, as the next node for `extend`.

        Only if nodes of the group alone read `value`, it is no graph output, and its producer is an
        elementwise node that can be fused; otherwise nothing happens.
        """
        if self._outside_uses[id(value)] or value.is_graph_output():
            return
        producer = ir.require_producer(value)
        operands = _computed_operands(producer)
        if operands is not None:
            heapq.heappush(self._interior, (self._source_indices[id(value)], producer, operands))


def _count_uses(value: ir.Value) -> int:
    """Count the uses of `value`, a tensor that is not constant; -1 for a graph input.

    The caller subtracts the uses inside a group of nodes: from -1 it never arrives at 0, which
    would make the producer part of the group.
    """
    return -1 if ir.producer(value) is None else len(value.uses())


class _FusionRule(NamedTuple):
    """Which regions are fused.

    Attributes
    ----------
    gate_ops
        Operators of the gate in a product that may be such a function.
    may_match
        Whether a part of the region may be fused; False also holds for all its parts.
    matches_any_size
        Whether the region is fused, and each larger one with a single source too.
    matches
        Whether the nodes, in graph order, are fused as a function of one tensor.
    max_nodes
        Largest region for which `matches` is evaluated.
    """

    gate_ops: tuple[str, ...]
    may_match: Callable[[_UnaryRegion], bool]
    matches_any_size: Callable[[_UnaryRegion], bool]
    matches: Callable[[Sequence[ir.Node], ir.Value], bool]
    max_nodes: int


class _RegionFinder:
    """Finds the largest region upstream of a node that a rule accepts.

    The region of a node contains the regions of all its members. What it excludes therefore holds
    for these too, so that a chain of nodes is not traversed again from each of them.

    Attributes
    ----------
    nodes
        The nodes of the graph when the search started.
    """

    def __init__(self, graph: ir.Graph, rule: _FusionRule) -> None:
        """Prepare to search `graph` for groups of elementwise nodes that `rule` lets fuse.

        Numbers the nodes in graph order; none is excluded yet.
        """
        self.nodes = list(graph)
        self._rule = rule
        self._positions = {id(node): index for index, node in enumerate(self.nodes)}
        self._unfusible_ids: set[int] = set()
        self._limited_ids: set[int] = set()

    def find_region(self, end: ir.Node) -> tuple[list[ir.Node], ir.Value] | None:
        """Find the largest group of elementwise nodes ending at `end` that the rule accepts.

        Returns (nodes in graph order, the tensor from which they compute it), or None. Also records
        which other nodes need not be tried as ends.
        """
        operands = None if id(end) in self._unfusible_ids else _computed_operands(end)
        if operands is None or end.graph is None:
            return None
        region = _UnaryRegion(end, operands)
        is_limited = id(end) in self._limited_ids
        size, source = 0, operands[0]
        while region.extend():
            if region.source is not None and self._is_fusible(region, region.source):
                size, source = len(region.members), region.source
            if is_limited and len(region.members) >= self._rule.max_nodes:
                break
        if not is_limited:
            self._exclude_members(region)
        return (self._sort_nodes(region.members[:size]), source) if size else None

    def _is_fusible(self, region: _UnaryRegion, source: ir.Value) -> bool:
        """Whether the rule accepts the nodes of `region` as one function of the tensor `source`.

        Groups above the rule's `max_nodes` are only accepted if the rule accepts any size.
        """
        if self._rule.matches_any_size(region):
            return True
        if len(region.members) > self._rule.max_nodes or not self._rule.may_match(region):
            return False
        return self._rule.matches(self._sort_nodes(region.members), source)

    def _exclude_members(self, region: _UnaryRegion) -> None:
        """Record how to search groups that end at a node of `region`, which cannot grow further.

        They are not tried at all if the rule's `may_match` is false for `region`; they are searched
        up to the rule's `max_nodes` unless the rule accepts `region` at any size.
        """
        member_ids = map(id, region.members)
        if not self._rule.may_match(region):
            self._unfusible_ids.update(member_ids)
        elif not self._rule.matches_any_size(region):
            self._limited_ids.update(member_ids)

    def _sort_nodes(self, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """Sort `nodes` by their position in the graph at the start of the search."""
        return sorted(nodes, key=lambda node: self._positions[id(node)])


def _needs_table(region: _UnaryRegion) -> bool:
    """Whether the nodes of `region` compute a function that no platform has an operator for.

    True if one is an operator that only a lookup table computes (`_TABLE_ONLY_OPS`), or if there is
    a Tanh and a product of two computed tensors.
    """
    if not _TABLE_ONLY_OPS.isdisjoint(region.op_types):
        return True
    return region.has_product and "Tanh" in region.op_types


def _may_contain_table_function(region: _UnaryRegion) -> bool:
    """Whether some of the nodes of `region` may need a lookup table or be SiLU (x * sigmoid(x))."""
    return _needs_table(region) or (region.has_product and "Sigmoid" in region.op_types)


def _is_silu(nodes: Sequence[ir.Node], source: ir.Value) -> bool:
    """Whether `nodes` are exactly a Sigmoid and a Mul of two computed tensors, in any order: SiLU.

    They are known to compute a function of one tensor, `source`, which is not looked at.
    """
    op_types = sorted(node.op_type for node in nodes)
    return op_types == ["Mul", "Sigmoid"] and any(map(_is_product_of_tensors, nodes))


def _is_product_of_tensors(node: ir.Node) -> bool:
    """Whether `node` is a Mul without a constant operand."""
    return node.op_type == "Mul" and all(ir.const_value(value) is None for value in node.inputs)


def _may_contain_known_function(region: _UnaryRegion) -> bool:
    """Whether some of the nodes of `region` may have the values of HardSwish or GELU.

    They need an operator that each of its forms has, and either a node with two computed operands,
    or an operator that is such a function already.
    """
    if not any(markers & region.op_types for markers in _MARKER_OPS.values()):
        return False
    known_ops = {op_type for op_type, _ in _KNOWN_FUNCTIONS.values()}
    return region.has_join or not known_ops.isdisjoint(region.op_types)


def _matches_known_function(nodes: Sequence[ir.Node], source: ir.Value) -> bool:
    """Whether `nodes`, as a function of `source`, have the values of HardSwish or GELU.

    Evaluated at `_SAMPLE_POINTS`, -8 to 8, for the functions whose typical operator occurs in
    `nodes`.
    """
    op_types = {node.op_type for node in nodes}
    names = [name for name, markers in _MARKER_OPS.items() if markers & op_types]
    if not names:
        return False
    with np.errstate(all="ignore"):  # the composition may have a root or logarithm
        return _match_known_values(_evaluate_on_grid(nodes, source), names) != ""


#: Compositions that become a table.
_TABLE_RULE = _FusionRule(
    ("Sigmoid",), _may_contain_table_function, _needs_table, _is_silu, max_nodes=2
)
#: Compositions that are a function of `_MARKER_OPS`.
_KNOWN_FUNCTION_RULE = _FusionRule(
    ("HardSigmoid",),
    _may_contain_known_function,
    lambda region: False,
    _matches_known_function,
    _MAX_KNOWN_FUNCTION_NODES,
)


def _evaluate_on_grid(nodes: Sequence[ir.Node], source: ir.Value) -> np.ndarray:
    """Return the output of the last of `nodes`, in graph order, for `source` from -8 to 8.

    These are 257 evenly spaced numbers. Constant inputs must be scalars.
    """
    values = {id(source): _SAMPLE_POINTS}
    for node in nodes:
        operands = []
        for value in node.inputs:
            array = ir.const_value(value)
            operand = values[id(value)] if array is None else array.astype(np.float64).reshape(())
            operands.append(operand)
        values[id(node.outputs[0])] = evaluate_node(node, *operands)
    return values[id(nodes[-1].outputs[0])]


def _replace_with_function(
    model: ir.Model,
    nodes: list[ir.Node],
    source: ir.Value,
    declarations: _FunctionDeclarations,
) -> None:
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
        declarations.declare_function(graph),
        [source],
        domain=ir.FUNCTION_DOMAIN,
        origin=nodes[-1],
        output="",
        like=nodes[-1].outputs[0],
    )
    ir.mark_fused(call, nodes)
    ir.replace_nodes(model, nodes, [call])


class _FunctionDeclarations:
    """The functions of this package's domain in a model, by their signature."""

    def __init__(self, model: ir.Model) -> None:
        """Read the functions of `model` in this package's domain.

        `declare_function` adds new ones to it.
        """
        self._model = model
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        for function in model.functions.values():
            if function.domain == ir.FUNCTION_DOMAIN:
                self._names.setdefault(_function_signature(function.graph), function.name)

    def declare_function(self, graph: ir.Graph) -> str:
        """Add a model-local function with body `graph` to the model, if it has none such.

        Return its name. An equal function of the model is reused. A new one is named after the
        operator with the same values (else "Curve"), with a number if the name is taken.
        """
        model, signature = self._model, _function_signature(graph)
        if signature in self._names:
            return self._names[signature]
        function = ir.Function(ir.FUNCTION_DOMAIN, "Curve", graph=graph, attributes=[])
        base = name = _identify_function(model, function)
        count = self._counts.get(base, 1)
        while (ir.FUNCTION_DOMAIN, name, "") in model.functions:
            count += 1
            name = f"{base}_{count}"
        self._counts[base] = count
        function.name = self._names[signature] = name
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
    """Return "Gelu", "Silu" or another known activation whose values the unary `function` has.

    It is "Curve" if there is none. Compared at -8 to 8 within 1e-6; GELU by tanh is named "Gelu"
    too. Adds a temporary function to `model` and removes it.
    """
    probe = ir.node("Curve", [ir.Value(name="x")], domain=ir.FUNCTION_DOMAIN)
    model.functions[ir.FUNCTION_DOMAIN, "Curve?", ""] = function
    probe.op_type = "Curve?"
    values = evaluate_float_node(model, probe, _SAMPLE_POINTS)
    del model.functions[ir.FUNCTION_DOMAIN, "Curve?", ""]
    return _match_known_values(values, _KNOWN_FUNCTIONS).removesuffix("Tanh") or "Curve"


def _match_known_values(values: np.ndarray, names: Iterable[str]) -> str:
    """Return the first of `names`, known activations, whose function has `values`, or "" if none.

    `values` are at 257 evenly spaced points from -8 to 8, and all must agree within 1e-6.
    """
    for name in names:
        op_type, attributes = _KNOWN_FUNCTIONS[name]
        node = ir.node(op_type, [ir.Value(name="x")], attributes)
        if np.allclose(values, evaluate_node(node, _SAMPLE_POINTS), rtol=0, atol=1e-6):
            return name
    return ""
