"""Layer normalisation written out becomes LayerNormalization.

    d = x - ReduceMean(x);  y = d / Sqrt(ReduceMean(d^2) + eps) [* gamma] [+ beta]

over the last axes; d^2 as Pow(d, 2) or Mul(d, d), the division also as a product with Reciprocal(Sqrt(..)) or a power
of -1/2. Exporters before opset 17 write it so. From opset 17 on a LayerNormalization is standard; before, the node
calls a model-local function with the same operators, ``lingeronnx.LayerNormalization``.
"""

from __future__ import annotations

import numpy as np

from ..graph import ir

NAME = "LayerNormalization"


def layer_norm(model: ir.Graph) -> int:
    """Rewrite the decomposed layer normalisations of `model`; return how many."""
    changed = 0
    for node in list(model.graph):
        found = _match(node)
        if found is None:
            continue
        _write(model, *found)
        changed += 1
    return changed


def _is(node: ir.Node | None, *kinds: str) -> bool:
    return node is not None and not node.domain and node.op_type in kinds


def _single(value: ir.Value | None) -> np.ndarray | None:
    array = ir.const(value)
    return array.reshape(()) if array is not None and array.size == 1 else None


def _mean(value: ir.Value | None) -> tuple[ir.Node, tuple[int, ...]] | None:
    """Return the ReduceMean over trailing axes, kept, that writes `value`, and its axes."""
    node = ir.producer(value)
    if node is None or not _is(node, "ReduceMean") or not ir.attr(node, "keepdims", 1):
        return None
    axes = ir.axes(node)
    rank = len(ir.shape(node.inputs[0]) or ())
    if not axes or not rank:
        return None
    places = tuple(sorted(a % rank for a in axes))
    return (node, places) if places == tuple(range(rank - len(places), rank)) and places[0] > 0 else None


def _square(value: ir.Value | None) -> tuple[ir.Node, ir.Value] | None:
    """Return the node that squares a tensor to give `value`, and that tensor."""
    node = ir.producer(value)
    if node is None or not _is(node, "Pow", "Mul") or node.inputs[0] is None:
        return None
    power = _single(node.inputs[1]) if node.op_type == "Pow" else None
    twice = power == 2 if node.op_type == "Pow" else node.inputs[0] is node.inputs[1]
    return (node, node.inputs[0]) if twice else None


def _deviation(value: ir.Value | None) -> tuple[list[ir.Node], ir.Value] | None:
    """Return the nodes that compute `value` = variance + eps from the root's operand on, and that sum."""
    node = ir.producer(value)
    return ([node], ir.source(node)) if node is not None and _is(node, "Sqrt") else None


def _quotient(node: ir.Node) -> tuple[ir.Value, list[ir.Node], ir.Value] | None:
    """Return (d, nodes, variance + eps) of d / sqrt(variance + eps)."""
    if _is(node, "Div"):
        root = _deviation(node.inputs[1])
        return (ir.source(node), [*root[0], node], root[1]) if root is not None else None
    if not _is(node, "Mul"):
        return None
    for index in (0, 1):
        inverse = ir.producer(node.inputs[index])
        if inverse is None:
            continue
        if _is(inverse, "Reciprocal") and (root := _deviation(inverse.inputs[0])) is not None:
            return ir.source(node, 1 - index), [*root[0], inverse, node], root[1]
        if _is(inverse, "Pow") and _single(inverse.inputs[1]) == -0.5:
            return ir.source(node, 1 - index), [inverse, node], ir.source(inverse)
    return None


def _match(
    node: ir.Node,
) -> tuple[list[ir.Node], ir.Value, int, float, np.ndarray | None, np.ndarray | None] | None:
    """Return (nodes, x, first axis, eps, gamma, beta) of the normalisation whose quotient is `node`."""
    quotient = _quotient(node)
    if quotient is None:
        return None
    d, nodes, total = quotient
    add = ir.producer(total)
    if add is None or not _is(add, "Add"):
        return None
    index = 0 if _single(add.inputs[1]) is not None else 1
    epsilon = _single(add.inputs[1 - index])
    variance = _mean(add.inputs[index])
    square = _square(variance[0].inputs[0]) if variance is not None else None
    centre = ir.producer(d)
    if epsilon is None or variance is None or square is None or centre is None or not _is(centre, "Sub"):
        return None
    mean = _mean(centre.inputs[1])
    again = ir.producer(square[1])
    if mean is None or mean[1] != variance[1] or mean[0].inputs[0] is not centre.inputs[0] or again is None:
        return None
    same = square[1] is d or (  # some exporters compute the difference twice
        _is(again, "Sub") and again.inputs[0] is centre.inputs[0] and ir.producer(again.inputs[1]) is not None
        and _mean(again.inputs[1]) is not None
        and ir.producer(again.inputs[1]).inputs[0] is centre.inputs[0]  # type: ignore[union-attr]
    )  # fmt: skip
    if not same:
        return None
    inside = [mean[0], centre, square[0], variance[0], add, *nodes]
    if again is not centre:
        inside += [again, *([ir.producer(again.inputs[1])] if again.inputs[1] is not centre.inputs[1] else [])]  # type: ignore[list-item]
    x, axis = ir.source(centre), mean[1][0]
    shape = ir.shape(x) or ()
    row = tuple(shape[axis:])
    if any(d is None for d in row):
        return None
    gamma, scaled = _affine(node, "Mul", row)
    beta, shifted = _affine(scaled or node, "Add", row)
    last = shifted or scaled or node
    keep = {id(n) for n in (*inside, scaled, shifted) if n is not None}
    ordered = [n for n in last.graph if id(n) in keep]  # type: ignore[union-attr]
    for member in ordered[:-1]:
        out = member.outputs[0]
        if out.is_graph_output() or any(id(use.node) not in keep for use in out.uses()):
            return None
    return ordered, x, axis, float(epsilon), gamma, beta


def _affine(node: ir.Node, kind: str, row: tuple[int | None, ...]) -> tuple[np.ndarray | None, ir.Node | None]:
    """Return the constant of one value, or one per element of a row, that the next node applies, and that node."""
    after = ir.sole_consumer(node.outputs[0])
    if after is None or not _is(after, kind):
        return None, None
    other = after.inputs[1] if after.inputs[0] is node.outputs[0] else after.inputs[0]
    array = ir.const(other)
    sizes = tuple(int(d or 1) for d in row)
    if array is None or array.dtype.kind != "f":
        return None, None
    trimmed = array.reshape(array.shape[max(array.ndim - len(sizes), 0) :]) if array.size <= np.prod(sizes) else None
    if trimmed is None or array.size not in (1, int(np.prod(sizes))):
        return None, None
    return np.ascontiguousarray(np.broadcast_to(trimmed, sizes)), after


def _write(
    model: ir.Graph, nodes: list[ir.Node], x: ir.Value, axis: int, epsilon: float, gamma: np.ndarray | None,
    beta: np.ndarray | None,
) -> None:  # fmt: skip
    last = nodes[-1]
    sizes = tuple(int(d or 1) for d in (ir.shape(x) or ())[axis:])
    base = last.outputs[0].name
    given = [
        ir.add_initializer(model, ir.fresh_name(model, f"{base}_{what}"), np.asarray(array, np.float32))
        for what, array in (("gamma", np.ones(sizes) if gamma is None else gamma),
                            ("beta", np.zeros(sizes) if beta is None else beta))
    ]  # fmt: skip
    standard = ir.opset(model) >= 17
    name = NAME if standard else _declare(model, len(sizes), epsilon)
    attrs = {"axis": axis - len(ir.shape(x) or ()), "epsilon": epsilon}
    new = ir.make_node(name, [x, *given], attrs if standard else {"axis": attrs["axis"], "epsilon": epsilon},
                       of=last, output="", domain="" if standard else ir.DOMAIN,
                       like=last.outputs[0])  # fmt: skip
    ir.replace(model, nodes, [new])


def _declare(model: ir.Graph, axes: int, epsilon: float) -> str:
    """Add the function for rows of `axes` axes and this epsilon to the model; return its name."""
    base = NAME if axes == 1 else f"{NAME}_{axes}axes"
    name, number = base, 1
    while (key := (ir.DOMAIN, name, "")) in model.functions:
        if model.functions[key].graph.doc_string == f"{axes} {epsilon!r}":
            return name
        number += 1
        name = f"{base}_{number}"
    x, gamma, beta = (ir.Value(name=n) for n in ("x", "gamma", "beta"))
    body: list[ir.Node] = []

    def step(kind: str, inputs: list[ir.Value], **attrs: object) -> ir.Value:
        made = ir.node(kind, inputs, attrs)  # type: ignore[arg-type]
        made.outputs[0].name = f"v{len(body)}"
        body.append(made)
        return made.outputs[0]

    where = list(range(-axes, 0))
    eps = step("Constant", [], value=ir.tensor(np.array(epsilon, np.float32), name="eps"))
    centred = step("Sub", [x, step("ReduceMean", [x], axes=where)])
    spread = step("ReduceMean", [step("Mul", [centred, centred])], axes=where)
    normal = step("Div", [centred, step("Sqrt", [step("Add", [spread, eps])])])
    result = step("Add", [step("Mul", [normal, gamma]), beta])
    version = ir.opset(model)
    graph = ir.Body([x, gamma, beta], [result], nodes=body, opset_imports={"": version}, name=name,
                      doc_string=f"{axes} {epsilon!r}")  # fmt: skip
    function = ir.Function(ir.DOMAIN, name, graph=graph,
                            attributes=[ir.Attr("axis", ir.AttributeType.INT, -1),
                                        ir.Attr("epsilon", ir.AttributeType.FLOAT, 1e-5)])  # fmt: skip
    model.functions[ir.DOMAIN, name, ""] = function
    model.graph.opset_imports[ir.DOMAIN] = 1
    model.ir_version = max(model.ir_version or 8, 8)
    return name
