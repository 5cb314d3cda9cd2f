"""Layer normalisation written out becomes LayerNormalization, whatever operators it was written with.

    y = (x - mean(x)) / sqrt(variance(x) + eps) [* gamma] [+ beta]         over the last axes, or
    over one other axis

Every square root, or batch normalisation with computed statistics, may belong to one. What lies
around it and is computed from one tensor x alone is run on a few random x; it is a layer
normalisation where all results agree with the formula. Exporters write it in many ways: d /
sqrt(mean(d^2) + eps), x*m + (beta - mean*m) with m = gamma / sqrt(..), mean(x^2) - mean(x)^2, or a
batch normalisation whose channels are rows (Keras).

From opset 17 on a LayerNormalization is standard; before, the node calls a model-local function
with the same operators, ``lingeronnx.LayerNormalization``. An axis that is not the last is made so
by Transpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ModelError
from ...graph import ir, operators
from ...run.runners import FloatFallback
from .._pass import PassResult, SkipReason

LAYER_NORM_OP = "LayerNormalization"

_MAX_NODES_AROUND_ROOT = 32  # nodes that are looked at before and behind a root
_PROBE_COUNT = 6
_RELATIVE_TOLERANCE = 1e-3  # of the largest value
_MAX_EPSILON = 0.1
#: Means and deviations, as sums and norms along an axis.
_REDUCTION_OPS = {
    kind
    for kind, what in operators.REDUCTION_KINDS.items()
    if what in ("mean", "sum", "squares", "length")
}


@dataclass(frozen=True)
class _FittedNorm:
    """What was found: x is normalised over `axes`.

    Gamma and beta have one value per element of a row.
    """

    axes: tuple[int, ...]
    epsilon: float
    gamma: np.ndarray
    beta: np.ndarray


def fuse_layer_norm(model: ir.Model) -> PassResult:
    """Rewrite the decomposed layer normalisations of `model`."""
    changed, why = 0, list[SkipReason]()
    for root in list(model.graph):
        if root.graph is None or not _is_square_root(root):
            continue
        match = _find_layer_norm(model, root)
        if match is None:
            why.append(
                SkipReason(root, "what lies around it does not compute a layer normalisation")
            )
            continue
        nodes, x, norm = match
        _replace_with_layer_norm(model, nodes, x, norm)
        changed += 1
    return PassResult(changed, [reason for reason in why if reason.node.graph is not None])  # type: ignore[union-attr]


def _is_square_root(node: ir.Node) -> bool:
    if node.domain:
        return False
    if node.op_type == "BatchNormalization":
        return any(ir.const_value(value) is None for value in node.inputs[3:5])
    power = ir.const_value(node.inputs[1]) if node.op_type == "Pow" else None
    return node.op_type == "Sqrt" or (
        power is not None and power.size == 1 and abs(float(power.reshape(()))) == 0.5
    )


def _find_layer_norm(
    model: ir.Model, root: ir.Node
) -> tuple[list[ir.Node], ir.Value, _FittedNorm] | None:
    """Return (nodes, x, what they compute) of the layer normalisation around `root`.

    Its result is the last node's.
    """
    place = {id(node): number for number, node in enumerate(model.graph)}
    for x in _iter_source_candidates(root, place):
        ends = _find_end_candidates(root, x, place)
        if not ends:
            continue
        region = FloatFallback(model, ends[-1][1], {str(y.name) for y, _ in ends})
        probed = _probe_region(region, x)
        best: tuple[list[ir.Node], ir.Value, _FittedNorm] | None = None
        for y, nodes in ends if probed[0] else []:
            if best is not None and not all(
                _is_affine(node) for node in nodes if node not in best[0]
            ):
                break
            name = str(y.name)
            norm = _fit_layer_norm(probed[0], [out[name] for out in probed[1]], nodes, region, name)
            best = best if norm is None else (nodes, x, norm)
        if best is not None:
            return best
    return None


def _is_affine(node: ir.Node) -> bool:
    constant = any(ir.const_value(value) is not None for value in node.inputs)
    return not node.domain and node.op_type in operators.AFFINE_OPS and constant


# ---- candidates --------------------------------------------------------------------------------------------------


def _iter_source_candidates(root: ir.Node, positions: dict[int, int]) -> Iterator[ir.Value]:
    """Yield the tensors that `root` is computed from alone, nearest first."""
    open_values = _computed_inputs(root)
    for _ in range(_MAX_NODES_AROUND_ROOT):
        if len(open_values) == 1 and _is_float_matrix(open_values[0]):
            yield open_values[0]
        makers = [node for value in open_values if (node := ir.producer(value)) is not None]
        last = max(makers, key=lambda node: positions[id(node)], default=None)
        if last is None or last.domain or ir.has_subgraphs(last):
            return
        open_values = [value for value in open_values if ir.producer(value) is not last]
        open_values += [value for value in _computed_inputs(last) if value not in open_values]


def _computed_inputs(node: ir.Node) -> list[ir.Value]:
    tensors: list[ir.Value] = []
    for value in node.inputs:
        if value is not None and ir.const_value(value) is None and value not in tensors:
            tensors.append(value)
    return tensors


def _is_float_matrix(value: ir.Value) -> bool:
    shape = ir.get_shape(value)
    return (
        value.dtype is not None
        and value.dtype.numpy().kind == "f"
        and shape is not None
        and len(shape) > 1
    )


def _find_end_candidates(
    root: ir.Node, x: ir.Value, place: dict[int, int]
) -> list[tuple[ir.Value, list[ir.Node]]]:
    """Return (y, nodes) of tensors like `x` that nodes, `root` among them, compute from `x` alone, nearest first.

    Nobody else reads what lies between, but sizes.
    """
    first = ir.producer(x)
    behind = sorted(
        (n for n in _collect_consumers(x) if id(n) in place), key=lambda n: place[id(n)]
    )  # not inside of subgraphs
    after = [node for node in behind if first is None or place[id(node)] > place[id(first)]]
    known, joined, candidates = {id(x)}, list[ir.Node](), list[tuple[ir.Value, list[ir.Node]]]()
    for node in after:
        if (
            node.domain
            or ir.has_subgraphs(node)
            or not all(id(v) in known for v in _computed_inputs(node))
        ):
            continue
        joined.append(node)
        known.update(id(v) for v in node.outputs)
        y = node.outputs[0]
        if (
            place[id(node)] >= place[id(root)]
            and ir.get_shape(y) == ir.get_shape(x)
            and y.dtype == x.dtype
        ):
            nodes = _select_contributing(y, joined)
            kinds = {n.op_type for n in nodes}
            roots = [n for n in nodes if _is_square_root(n)]
            if (
                roots == [root]
                and not kinds.isdisjoint(_REDUCTION_OPS)
                and _is_closed_region(nodes, y)
            ):
                candidates.append((y, nodes))
    return candidates


def _collect_consumers(x: ir.Value) -> list[ir.Node]:
    """Return the nearest nodes that read `x` or what these compute."""
    readers: list[ir.Node] = []
    values = [x]
    while values and len(readers) < 2 * _MAX_NODES_AROUND_ROOT:
        for use in values.pop(0).uses():
            if use.node not in readers and use.node.graph is not None:
                readers.append(use.node)
                values += use.node.outputs
    return readers


def _select_contributing(y: ir.Value, joined: Sequence[ir.Node]) -> list[ir.Node]:
    """Return those of `joined` that `y` is computed by, in their order."""
    wanted, nodes = {id(y)}, list[ir.Node]()
    for node in reversed(joined):
        if any(id(v) in wanted for v in node.outputs):
            nodes.insert(0, node)
            wanted.update(id(v) for v in node.inputs if v is not None)
    return nodes


def _is_closed_region(nodes: Sequence[ir.Node], y: ir.Value) -> bool:
    """Whether nobody but `nodes` reads the real numbers that they compute, `y` apart."""
    inner = [
        v
        for node in nodes
        for v in node.outputs
        if v is not y and (v.dtype is None or v.dtype.numpy().kind == "f")
    ]
    return not any(
        v.is_graph_output() or any(use.node not in nodes for use in v.uses()) for v in inner
    )


# ---- what they compute -------------------------------------------------------------------------------------------


def _probe_region(
    region: FloatFallback, x: ir.Value
) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """Return random inputs and the results for them; none where it does not run."""
    if region.inputs != (str(x.name),):
        return [], []
    rng = np.random.default_rng(0)
    size = [2 if d is None else int(d) for d in ir.get_shape(x) or ()]
    feeds = [
        (3 * rng.standard_normal(size) + rng.standard_normal()).astype(np.float32)
        for _ in range(_PROBE_COUNT)
    ]
    try:
        return feeds, [
            dict(zip(region.outputs, region.run_batch([feed]), strict=True)) for feed in feeds
        ]
    except ModelError:
        return [], []


def _normalize(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    with np.errstate(
        invalid="ignore", divide="ignore"
    ):  # a row of one value has no variance: no epsilon fits
        return np.asarray(centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon))


def _fit_layer_norm(
    feeds: Sequence[np.ndarray],
    results: Sequence[np.ndarray],
    nodes: Sequence[ir.Node],
    region: FloatFallback,
    name: str,
) -> _FittedNorm | None:
    """Return the layer normalisation that gives `results`, what `region` calls `name`, for `feeds`; None for others."""
    if any(
        y.shape != x.shape or not np.isfinite(y).all() for x, y in zip(feeds, results, strict=True)
    ):
        return None
    rank = feeds[0].ndim
    for axes in [tuple(range(rank - k, rank)) for k in range(1, rank)] + [
        (axis,) for axis in range(1, rank - 1)
    ]:
        for epsilon in _candidate_epsilons(nodes):
            gamma, beta = _fit_gamma_beta(
                [_normalize(x, axes, epsilon) for x in feeds], results, axes
            )
            norm = _FittedNorm(
                axes, epsilon, *(_snap_to_constants(a, nodes) for a in (gamma, beta))
            )
            if all(
                _matches(norm, x, y) for x, y in zip(feeds, results, strict=True)
            ) and _matches_small_inputs(norm, region, feeds[0], name):
                return norm
    return None


def _fit_gamma_beta(
    normal: Sequence[np.ndarray], results: Sequence[np.ndarray], axes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor and summand of each element of a row that fit best, 1 on the other axes."""
    n, y = np.stack(normal), np.stack(results).astype(np.float64)
    others = tuple(a for a in range(n.ndim) if a - 1 not in axes)
    mean_n, mean_y = n.mean(others, keepdims=True), y.mean(others, keepdims=True)
    spread = ((n - mean_n) ** 2).mean(others, keepdims=True)
    gamma = ((n - mean_n) * (y - mean_y)).mean(others, keepdims=True) / np.maximum(spread, 1e-12)
    return gamma[0], (mean_y - gamma * mean_n)[0]


def _snap_to_constants(values: np.ndarray, nodes: Sequence[ir.Node]) -> np.ndarray:
    """Return the constant of `nodes`, or 0 or 1, that `values` are but for rounding.

    Else `values`.
    """
    near = _RELATIVE_TOLERANCE / 10 * max(float(np.abs(values).max()), 1.0)
    constants = [
        array
        for node in nodes
        for v in node.inputs
        if (array := ir.const_value(v)) is not None and array.dtype.kind == "f"
    ]
    for array in [np.zeros(1), np.ones(1), *constants]:
        if array.size in (1, values.size):
            tried = np.broadcast_to(
                array.reshape(values.shape if array.size > 1 else 1), values.shape
            )
            if np.abs(tried - values).max() < near:
                return tried.astype(np.float32)
    return values.astype(np.float32)


def _candidate_epsilons(nodes: Sequence[ir.Node]) -> list[float]:
    """Return what may be the summand of the variance: small constants of `nodes`, and none."""
    epsilons = {0.0}
    for node in nodes:
        arrays = [ir.const_value(value) for value in node.inputs]
        epsilons |= {
            float(a.reshape(()))
            for a in arrays
            if a is not None and a.size == 1 and a.dtype.kind == "f"
        }
        if node.op_type == "BatchNormalization":
            epsilons.add(float(ir.get_attr(node, "epsilon", 1e-5)))
    return sorted((e for e in epsilons if 0 <= e <= _MAX_EPSILON), reverse=True)


def _matches(norm: _FittedNorm, x: np.ndarray, y: np.ndarray) -> bool:
    want = _normalize(x, norm.axes, norm.epsilon) * norm.gamma + norm.beta
    return float(np.abs(want - y).max()) <= _RELATIVE_TOLERANCE * float(np.abs(y).max())


def _matches_small_inputs(
    norm: _FittedNorm, region: FloatFallback, like: np.ndarray, name: str
) -> bool:
    """Whether small inputs agree as well, of a variance that epsilon matters for."""
    if not norm.epsilon:
        return True
    x = (np.sqrt(norm.epsilon) * _normalize(like, norm.axes, 0.0)).astype(np.float32)
    try:
        y = dict(zip(region.outputs, region.run_batch([x]), strict=True))[name]
    except ModelError:
        return False
    return _matches(norm, x, y)


# ---- writing -----------------------------------------------------------------------------------------------------


def _replace_with_layer_norm(
    model: ir.Model, nodes: list[ir.Node], x: ir.Value, norm: _FittedNorm
) -> None:
    """Put the node, between Transposes where its axes are not the last, in the place of `nodes`."""
    last = nodes[-1]
    base, rank = str(last.outputs[0].name), len(ir.get_shape(x) or ())
    count = len(norm.axes)
    trailing = norm.axes == tuple(range(rank - count, rank))
    order = [a for a in range(rank) if a not in norm.axes] + list(norm.axes)
    sizes = [norm.gamma.shape[axis] for axis in norm.axes]
    parameters = [
        ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{base}_{what}"), array.reshape(sizes)
        )
        for what, array in (("gamma", norm.gamma), ("beta", norm.beta))
    ]
    added, rows = [], x
    if not trailing:
        added.append(_make_transpose(model, x, order, last, "rows"))
        rows = added[0].outputs[0]
    standard = ir.get_opset(model) >= 17
    name = LAYER_NORM_OP if standard else _declare_function(model, count, norm.epsilon)
    new = ir.make_node(
        name,
        [rows, *parameters],
        {"axis": -count, "epsilon": norm.epsilon},
        origin=last,
        output="" if trailing else ir.unique_tensor_name(model, f"{base}_normal"),
        domain="" if standard else ir.FUNCTION_DOMAIN,
        like=rows,
    )
    added.append(new)
    if trailing:
        new.outputs[0].shape, new.outputs[0].type = last.outputs[0].shape, last.outputs[0].type
    else:
        added.append(
            _make_transpose(
                model, new.outputs[0], [order.index(a) for a in range(rank)], last, "back"
            )
        )
    ir.replace_nodes(model, _removable_nodes(nodes), added)


def _make_transpose(
    model: ir.Model, value: ir.Value, order: list[int], of: ir.Node, what: str
) -> ir.Node:
    node = ir.make_node(
        "Transpose",
        [value],
        {"perm": order},
        origin=of,
        suffix=what,
        output=ir.unique_tensor_name(model, f"{of.outputs[0].name}_{what}"),
    )
    shape = list(value.shape or ())
    node.outputs[0].type, node.outputs[0].shape = (
        value.type,
        ir.make_shape([shape[axis] for axis in order]),
    )
    return node


def _removable_nodes(nodes: list[ir.Node]) -> list[ir.Node]:
    """Return the nodes that nobody needs but the last of `nodes`, which goes.

    Sizes may have other readers.
    """
    gone = [nodes[-1]]
    for node in reversed(nodes[:-1]):
        if not any(
            v.is_graph_output() or any(use.node not in gone for use in v.uses())
            for v in node.outputs
        ):
            gone.insert(0, node)
    return gone


def set_layer_norm_epsilon(model: ir.Model, node: ir.Node, epsilon: float) -> None:
    """Give the layer normalisation `node` another epsilon."""
    if node.domain:
        node.op_type = _declare_function(model, len(ir.get_shape(node.inputs[1]) or ()), epsilon)
    ir.set_attr(node, "epsilon", epsilon)


def _declare_function(model: ir.Model, axes: int, epsilon: float) -> str:
    """Add the function for rows of `axes` axes and this epsilon to the model; return its name."""
    base = LAYER_NORM_OP if axes == 1 else f"{LAYER_NORM_OP}_{axes}axes"
    name, number = base, 1
    while (key := (ir.FUNCTION_DOMAIN, name, "")) in model.functions:
        if model.functions[key].graph.doc_string == f"{axes} {epsilon!r}":
            return name
        number += 1
        name = f"{base}_{number}"
    x, gamma, beta = (ir.Value(name=n) for n in ("x", "gamma", "beta"))
    body: list[ir.Node] = []

    def step(kind: str, inputs: list[ir.Value], **attrs: object) -> ir.Value:
        norm = ir.node(kind, inputs, attrs)  # type: ignore[arg-type]
        norm.outputs[0].name = f"v{len(body)}"
        body.append(norm)
        return norm.outputs[0]

    where = list(range(-axes, 0))
    eps = step("Constant", [], value=ir.tensor(np.array(epsilon, np.float32), name="eps"))
    centred = step("Sub", [x, step("ReduceMean", [x], axes=where)])
    spread = step("ReduceMean", [step("Mul", [centred, centred])], axes=where)
    normal = step("Div", [centred, step("Sqrt", [step("Add", [spread, eps])])])
    result = step("Add", [step("Mul", [normal, gamma]), beta])
    version = ir.get_opset(model)
    graph = ir.Graph(
        [x, gamma, beta],
        [result],
        nodes=body,
        opset_imports={"": version},
        name=name,
        doc_string=f"{axes} {epsilon!r}",
    )
    function = ir.Function(
        ir.FUNCTION_DOMAIN,
        name,
        graph=graph,
        attributes=[
            ir.Attr("axis", ir.AttributeType.INT, -1),
            ir.Attr("epsilon", ir.AttributeType.FLOAT, 1e-5),
        ],
    )
    model.functions[ir.FUNCTION_DOMAIN, name, ""] = function
    model.graph.opset_imports[ir.FUNCTION_DOMAIN] = 1
    model.ir_version = max(model.ir_version or 8, 8)
    return name
