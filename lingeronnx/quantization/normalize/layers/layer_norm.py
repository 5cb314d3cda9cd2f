"""Fuse decomposed layer normalization into LayerNormalization, for any decomposition.

    y = (x - mean(x)) / sqrt(variance(x) + eps) [* gamma] [+ beta]

over the last axes, or over one other axis; or, over one axis, without the means: a normalization by
the root mean square or by the length, which is written as a layer normalization. Every square root,
Euclidean norm, or batch normalization with computed
statistics, may belong to one. The nodes around it that are computed from a single tensor x are run
on a few random x; they are a layer normalization if all results agree with the formula. Exporters
write it in many ways: d / sqrt(mean(d^2) + eps), x*m + (beta - mean*m) with m = gamma / sqrt(..),
mean(x^2) - mean(x)^2, or a batch normalization whose channels are rows (Keras).

Since opset 17 LayerNormalization is a standard operator; before, the node calls a model-local
function with the same semantics, ``lingeronnx.LayerNormalization``. An axis that is not the last
one is moved there by a Transpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ....common.errors import ModelError
from ....ir import float_ops, ir
from ....ir.builder import SubgraphBuilder
from ....runtime.runners import FloatFallback
from .._pass import PassResult, SkipReason
from .rms_norm import append_rms_norm

LAYER_NORM_OP = "LayerNormalization"

_MAX_NODES_AROUND_ROOT = 32  # limit of the search upstream and downstream of a square root
_PROBE_COUNT = 6  # random inputs
_RELATIVE_TOLERANCE = 1e-3  # relative to the largest output value
_MAX_EPSILON = 0.1
#: Operators that may compute a mean or a variance.
_REDUCTION_OPS = {
    op_type
    for op_type, reduction in float_ops.REDUCTION_KINDS.items()
    if reduction in ("mean", "sum", "squares", "length")
}
_LENGTH_OPS = {op for op, reduction in float_ops.REDUCTION_KINDS.items() if reduction == "length"}
#: Operators of which one is in every decomposed layer normalization (`_is_square_root`).
ROOT_OPS = {"BatchNormalization", "Pow", "Sqrt", *_LENGTH_OPS}


class _FittedNorm(NamedTuple):
    """A layer normalization over `axes`: (x - mean) / sqrt(variance + epsilon) * gamma + beta.

    Without `is_centered` the mean is taken as 0. gamma and beta have an element per element of
    these axes, and size 1 on others.
    """

    axes: tuple[int, ...]
    epsilon: float
    is_centered: bool
    gamma: np.ndarray
    beta: np.ndarray


class _Region(NamedTuple):
    """Nodes, in graph order, that compute the tensor `result` from one tensor."""

    result: ir.Value
    nodes: list[ir.Node]


class _LayerNormMatch(NamedTuple):
    """Nodes that compute the layer normalization `norm` of `source`; the last one returns it."""

    nodes: list[ir.Node]
    source: ir.Value
    norm: _FittedNorm


class _Probe(NamedTuple):
    """Random inputs of a group of nodes, and for each its outputs by tensor name.

    Both lists are empty if the nodes could not be run.
    """

    feeds: list[np.ndarray]
    results: list[dict[str, np.ndarray]]


class _Experiment(NamedTuple):
    """Groups of nodes that compute a tensor from `source`, ordered by size, and their results."""

    source: ir.Value
    regions: Sequence[_Region]
    fallback: FloatFallback
    probe: _Probe


def fuse_layer_norm(model: ir.Model) -> PassResult:
    """Fuse the decomposed layer normalizations of `model` into LayerNormalization, in place.

    Around each square root, groups of nodes are run on random inputs and compared with the formula,
    so that any decomposition is recognized. Square roots without a match are skipped with a reason.
    """
    changes, unmatched_roots = 0, list[ir.Node]()
    for root in list(model.graph):
        if root.graph is None or not _is_square_root(root):
            continue
        match = _find_layer_norm(model, root)
        if match is None:
            unmatched_roots.append(root)
            continue
        _replace_with_layer_norm(model, match)
        changes += 1
    reason = "the nodes around it do not compute a layer normalization"
    skipped = [SkipReason(root, reason) for root in unmatched_roots if root.graph is not None]
    return PassResult(changes, skipped)


def _is_square_root(node: ir.Node) -> bool:
    """Whether `node` may take the square root of a variance or a mean square.

    That is a Sqrt, a power of 0.5 or -0.5, a Euclidean norm, or a BatchNormalization with computed
    statistics.
    """
    if node.domain:
        return False
    if node.op_type == "BatchNormalization":
        return any(ir.const_value(value) is None for value in node.inputs[3:5])
    if node.op_type == "Pow":
        exponent = ir.const_value(node.inputs[1])
        if exponent is None or exponent.size != 1:
            return False
        return abs(float(exponent.reshape(()))) == 0.5
    return node.op_type == "Sqrt" or node.op_type in _LENGTH_OPS


def _find_layer_norm(model: ir.Model, root: ir.Node) -> _LayerNormMatch | None:
    """Find the nodes around the square root `root` that compute a layer normalization, or None.

    Scale and offset after it are included. Tensors before `root` are tried as the input, the
    nearest first, and each for a normalization without means only if none has one with means: the
    later half of that would be one without.
    """
    positions = {id(node): position for position, node in enumerate(model.graph)}
    experiments = list[_Experiment]()
    for source in _iter_source_candidates(root, positions):
        regions = _find_region_candidates(root, source, positions)
        experiment = _probe_regions(model, source, regions) if regions else None
        if experiment is None:
            continue
        match = _match_regions(experiment, is_centered=True)
        if match is not None:
            return match
        experiments.append(experiment)
    for experiment in experiments:
        match = _match_regions(experiment, is_centered=False)
        if match is not None:
            return match
    return None


def _probe_regions(
    model: ir.Model, source: ir.Value, regions: Sequence[_Region]
) -> _Experiment | None:
    """Run `regions`, ordered by size, on random values of `source`; None if that is impossible."""
    results = {str(region.result.name) for region in regions}
    fallback = FloatFallback(model, regions[-1].nodes, results)
    probe = _probe_region(fallback, source)
    return _Experiment(source, regions, fallback, probe) if probe.feeds else None


def _match_regions(experiment: _Experiment, *, is_centered: bool) -> _LayerNormMatch | None:
    """Return the largest region that computes a layer normalization of the source, or None.

    A region larger than one that matched may only add operations with a constant; the search ends
    at the first that adds others.
    """
    best: _LayerNormMatch | None = None
    for region in experiment.regions:
        if best is not None:
            added = [node for node in region.nodes if node not in best.nodes]
            if not all(_is_affine(node) for node in added):
                break
        norm = _fit_layer_norm(experiment.probe, region, experiment.fallback, is_centered)
        if norm is not None:
            best = _LayerNormMatch(region.nodes, experiment.source, norm)
    return best


def _is_affine(node: ir.Node) -> bool:
    """Whether `node` is an add, sub, mul or div with at least one constant operand."""
    if node.domain or node.op_type not in float_ops.AFFINE_OPS:
        return False
    return any(ir.const_value(value) is not None for value in node.inputs)


# ---- candidates ----------------------------------------------------------------------------------


def _iter_source_candidates(root: ir.Node, positions: dict[int, int]) -> Iterator[ir.Value]:
    """Yield the float tensors that alone determine the input of `root`, nearest first.

    Goes back at most `_MAX_NODES_AROUND_ROOT` nodes; `positions` maps ids of nodes to graph order.
    """
    sources = _computed_inputs(root)
    for _ in range(_MAX_NODES_AROUND_ROOT):
        if len(sources) == 1 and _is_float_matrix(sources[0]):
            yield sources[0]
        producers = [ir.producer(value) for value in sources]
        last = max(filter(None, producers), key=lambda node: positions[id(node)], default=None)
        if last is None or last.domain or ir.has_subgraphs(last):
            return
        sources = [value for value in sources if ir.producer(value) is not last]
        sources += [value for value in _computed_inputs(last) if value not in sources]


def _computed_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of `node` that are not constant, each once, in input order."""
    values: list[ir.Value] = []
    for value in node.inputs:
        if value is not None and ir.const_value(value) is None and value not in values:
            values.append(value)
    return values


def _is_float_matrix(value: ir.Value) -> bool:
    """Whether `value` is a float tensor with at least two axes."""
    if value.dtype is None or value.dtype.numpy().kind != "f":
        return False
    shape = ir.get_shape(value)
    return shape is not None and len(shape) > 1


def _find_region_candidates(
    root: ir.Node, source: ir.Value, positions: dict[int, int]
) -> list[_Region]:
    """Return groups of nodes that compute a tensor from `source` through `root`, nearest first.

    The tensor has the type and shape of `source`; the group has a reduction and no other square
    root, and its inner float tensors are not used elsewhere. `positions` has the place of each node
    in graph order, by id.
    """
    computed_ids = {id(source)}
    members, regions = list[ir.Node](), list[_Region]()
    for node in _sort_consumers(source, positions):
        if node.domain or ir.has_subgraphs(node):
            continue
        if not all(id(value) in computed_ids for value in _computed_inputs(node)):
            continue
        members.append(node)
        computed_ids.update(id(value) for value in node.outputs)
        result = node.outputs[0]
        if positions[id(node)] < positions[id(root)] or not _has_same_type(result, source):
            continue
        nodes = _select_contributing(result, members)
        if _is_norm_like(nodes, root) and _is_closed_region(nodes, result):
            regions.append(_Region(result, nodes))
    return regions


def _sort_consumers(source: ir.Value, positions: dict[int, int]) -> list[ir.Node]:
    """Return the nearest direct and indirect consumers of `source`, in graph order.

    `positions` has the position of each node of the main graph, by id; consumers inside subgraphs
    and before the producer of `source` are omitted.
    """
    producer = ir.producer(source)
    first_position = 0 if producer is None else positions[id(producer)] + 1
    consumers = [
        node
        for node in _collect_consumers(source)
        if positions.get(id(node), -1) >= first_position  # not inside subgraphs
    ]
    return sorted(consumers, key=lambda node: positions[id(node)])


def _has_same_type(first: ir.Value, second: ir.Value) -> bool:
    """Whether both have the same shape (also unknown in both) and element type."""
    return ir.get_shape(first) == ir.get_shape(second) and first.dtype == second.dtype


def _is_norm_like(nodes: Sequence[ir.Node], root: ir.Node) -> bool:
    """Whether `nodes` contain a mean or sum, and `root` as their only square root."""
    roots = [node for node in nodes if _is_square_root(node)]
    return roots == [root] and any(node.op_type in _REDUCTION_OPS for node in nodes)


def _collect_consumers(source: ir.Value) -> list[ir.Node]:
    """Return direct and indirect consumers of `source`, the nearest first, each once.

    The search ends after the tensor with which there are at least 2 * `_MAX_NODES_AROUND_ROOT`.
    """
    consumers: list[ir.Node] = []
    queue = [source]
    while queue and len(consumers) < 2 * _MAX_NODES_AROUND_ROOT:
        for use in queue.pop(0).uses():
            if use.node not in consumers and use.node.graph is not None:
                consumers.append(use.node)
                queue += use.node.outputs
    return consumers


def _select_contributing(result: ir.Value, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return those of `nodes`, in graph order, on which `result` depends directly or indirectly."""
    required_ids, selected = {id(result)}, list[ir.Node]()
    for node in reversed(nodes):
        if any(id(value) in required_ids for value in node.outputs):
            selected.insert(0, node)
            required_ids.update(id(value) for value in node.inputs if value is not None)
    return selected


def _is_closed_region(nodes: Sequence[ir.Node], result: ir.Value) -> bool:
    """Whether the float tensors that `nodes` compute, except `result`, are read by `nodes` only.

    Tensors of other element types may be used elsewhere. A graph output counts as used elsewhere.
    """
    for node in nodes:
        for value in node.outputs:
            if value is result:
                continue
            if value.dtype is not None and value.dtype.numpy().kind != "f":
                continue
            if value.is_graph_output() or any(use.node not in nodes for use in value.uses()):
                return False
    return True


# ---- numerical fit -------------------------------------------------------------------------------


def _probe_region(fallback: FloatFallback, source: ir.Value) -> _Probe:
    """Run the nodes of `fallback` on `_PROBE_COUNT` random inputs of the shape of `source`.

    Unknown sizes are 2; the inputs are the same in every call. Both lists of the result are empty
    if the nodes read other tensors than `source` or a run fails.
    """
    if fallback.inputs != (str(source.name),):
        return _Probe([], [])
    rng = np.random.default_rng(0)
    shape = [2 if dim is None else int(dim) for dim in ir.get_shape(source) or ()]
    feeds = [
        (3 * rng.standard_normal(shape) + rng.standard_normal()).astype(np.float32)
        for _ in range(_PROBE_COUNT)
    ]
    results = []
    try:
        for feed in feeds:
            arrays = fallback.run_batch([feed])
            results.append(dict(zip(fallback.outputs, arrays, strict=True)))
    except ModelError:
        return _Probe([], [])
    return _Probe(feeds, results)


def _normalize(
    x: np.ndarray, axes: tuple[int, ...], epsilon: float, is_centered: bool
) -> np.ndarray:
    """Return (x - mean) / sqrt(variance + epsilon) over `axes`, in float64 and of the shape of `x`.

    The mean is 0 without `is_centered`. A variance of 0 with epsilon 0 gives NaN without a warning.
    """
    centered = x.astype(np.float64)
    if is_centered:
        centered -= centered.mean(axes, keepdims=True)
    variance = (centered**2).mean(axes, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):  # a single value has variance zero
        return np.asarray(centered / np.sqrt(variance + epsilon))


def _fit_layer_norm(
    probe: _Probe, region: _Region, fallback: FloatFallback, is_centered: bool
) -> _FittedNorm | None:
    """Return the normalization, with or without means, that gives the probed results, or None.

    All candidates of axes and epsilon are tried; gamma and beta are fitted to the results. They
    must also hold for an input so small that epsilon counts, which `fallback` runs.
    """
    name = str(region.result.name)
    feeds, results = probe.feeds, [outputs[name] for outputs in probe.results]
    pairs = list(zip(feeds, results, strict=True))
    if any(y.shape != x.shape or not np.isfinite(y).all() for x, y in pairs):
        return None
    for axes in _candidate_axes(feeds[0].ndim, is_centered):
        for epsilon in _candidate_epsilons(region.nodes):
            normalized = [_normalize(x, axes, epsilon, is_centered) for x in feeds]
            gamma, beta = _fit_gamma_beta(normalized, results, axes)
            norm = _FittedNorm(
                axes,
                epsilon,
                is_centered,
                _snap_to_constants(gamma, region.nodes),
                _snap_to_constants(beta, region.nodes),
            )
            if not all(_matches(norm, x, y) for x, y in pairs):
                continue
            if _matches_small_inputs(norm, fallback, feeds[0], name):
                return norm
    return None


def _candidate_axes(rank: int, is_centered: bool) -> list[tuple[int, ...]]:
    """Return the sets of axes that a normalization of a tensor with `rank` axes may have.

    With means: all trailing axes (1 to rank - 1 of them), then single axes between the batch and
    the last. Without: each single axis but the batch.
    """
    if not is_centered:
        return [(axis,) for axis in range(rank - 1, 0, -1)]
    trailing = [tuple(range(rank - count, rank)) for count in range(1, rank)]
    return trailing + [(axis,) for axis in range(1, rank - 1)]


def _fit_gamma_beta(
    normalized: Sequence[np.ndarray], results: Sequence[np.ndarray], axes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return gamma and beta of the least-squares fit, with size 1 on axes other than `axes`.

    `normalized` are the inputs with zero mean and unit variance, `results` the values to fit.
    """
    n, y = np.stack(normalized), np.stack(results).astype(np.float64)
    sample_axes = tuple(axis for axis in range(n.ndim) if axis - 1 not in axes)
    mean_n, mean_y = n.mean(sample_axes, keepdims=True), y.mean(sample_axes, keepdims=True)
    variance = ((n - mean_n) ** 2).mean(sample_axes, keepdims=True)
    covariance = ((n - mean_n) * (y - mean_y)).mean(sample_axes, keepdims=True)
    gamma = covariance / np.maximum(variance, 1e-12)
    return gamma[0], (mean_y - gamma * mean_n)[0]


def _snap_to_constants(values: np.ndarray, nodes: Sequence[ir.Node]) -> np.ndarray:
    """Return 0, 1 or a constant of `nodes` that nearly equals `values`, else `values`.

    So a fitted gamma or beta becomes exact. The result is float32 in the shape of `values`.
    """
    tolerance = _RELATIVE_TOLERANCE / 10 * max(float(np.abs(values).max()), 1.0)
    candidates = [np.zeros(1), np.ones(1)]
    for node in nodes:
        arrays = [ir.const_value(value) for value in node.inputs]
        candidates += [array for array in arrays if array is not None and array.dtype.kind == "f"]
    for array in candidates:
        if array.size not in (1, values.size):
            continue
        shape = values.shape if array.size > 1 else 1
        candidate = np.broadcast_to(array.reshape(shape), values.shape)
        if np.abs(candidate - values).max() < tolerance:
            return candidate.astype(np.float32)
    return values.astype(np.float32)


def _candidate_epsilons(nodes: Sequence[ir.Node]) -> list[float]:
    """Return the values that epsilon may have in a normalization by `nodes`, largest first.

    They are the nonnegative single float constants that `nodes` read, the epsilons of
    BatchNormalization, and 0; none above `_MAX_EPSILON`.
    """
    epsilons = {0.0}
    for node in nodes:
        for value in node.inputs:
            array = ir.const_value(value)
            if array is not None and array.size == 1 and array.dtype.kind == "f":
                epsilons.add(float(array.reshape(())))
        if node.op_type == "BatchNormalization":
            epsilons.add(float(ir.get_attr(node, "epsilon", 1e-5)))
    return sorted((e for e in epsilons if 0 <= e <= _MAX_EPSILON), reverse=True)


def _matches(norm: _FittedNorm, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the layer normalization `norm` of `x` gives `y`.

    The difference is at most `_RELATIVE_TOLERANCE` of the largest magnitude in `y`.
    """
    normalized = _normalize(x, norm.axes, norm.epsilon, norm.is_centered)
    expected = normalized * norm.gamma + norm.beta
    return float(np.abs(expected - y).max()) <= _RELATIVE_TOLERANCE * float(np.abs(y).max())


def _matches_small_inputs(
    norm: _FittedNorm, fallback: FloatFallback, sample: np.ndarray, name: str
) -> bool:
    """Whether `norm` matches the nodes of `fallback` also on an input where epsilon counts.

    That is `sample`, normalized and scaled to a variance of epsilon; tensor `name` is compared.
    True without a run if epsilon is 0; False if the run fails.
    """
    if not norm.epsilon:
        return True
    scale = np.sqrt(norm.epsilon)
    x = (scale * _normalize(sample, norm.axes, 0.0, norm.is_centered)).astype(np.float32)
    try:
        y = dict(zip(fallback.outputs, fallback.run_batch([x]), strict=True))[name]
    except ModelError:
        return False
    return _matches(norm, x, y)


# ---- rewrite -------------------------------------------------------------------------------------


def _replace_with_layer_norm(model: ir.Model, match: _LayerNormMatch) -> None:
    """Replace the nodes of `match` by one layer normalization, with Transposes if needed.

    Transposes are needed if its axes are not the last ones. The new node is the standard operator
    from opset 17 on, else a call of a model-local function.
    """
    norm, last = match.norm, match.nodes[-1]
    if not norm.is_centered:
        _replace_with_rms_norm(model, match)
        return
    base, rank = str(last.outputs[0].name), len(ir.get_shape(match.source) or ())
    axis_count = len(norm.axes)
    is_trailing = norm.axes == tuple(range(rank - axis_count, rank))
    sizes = [norm.gamma.shape[axis] for axis in norm.axes]
    parameters = [
        ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{base}_{suffix}"), array.reshape(sizes)
        )
        for suffix, array in (("gamma", norm.gamma), ("beta", norm.beta))
    ]
    order = sorted(range(rank), key=norm.axes.__contains__)
    source, new_nodes = match.source, list[ir.Node]()
    if not is_trailing:
        transpose = _make_transpose(model, source, order, last, "rows")
        new_nodes.append(transpose)
        source = transpose.outputs[0]
    is_standard = ir.get_opset(model) >= 17
    op_type, domain = LAYER_NORM_OP, ""
    if not is_standard:
        op_type = _declare_function(model, axis_count, norm.epsilon)
        domain = ir.FUNCTION_DOMAIN
    layer_norm = ir.make_node(
        op_type,
        [source, *parameters],
        {"axis": -axis_count, "epsilon": norm.epsilon},
        origin=last,
        output="" if is_trailing else ir.unique_tensor_name(model, f"{base}_normal"),
        domain=domain,
        like=source,
    )
    new_nodes.append(layer_norm)
    result = layer_norm.outputs[0]
    if is_trailing:
        result.shape, result.type = last.outputs[0].shape, last.outputs[0].type
    else:
        inverse = [order.index(axis) for axis in range(rank)]
        new_nodes.append(_make_transpose(model, result, inverse, last, "back"))
    ir.replace_nodes(model, _removable_nodes(match.nodes), new_nodes)


def _replace_with_rms_norm(model: ir.Model, match: _LayerNormMatch) -> None:
    """Replace the nodes of `match` by a normalization by the root mean square over one axis."""
    norm, last, source = match.norm, match.nodes[-1], match.source
    (axis,), dims = norm.axes, list(source.shape or ())
    builder = SubgraphBuilder(model, last)
    order = [other for other in range(len(dims)) if other != axis] + [axis]
    is_trailing = axis == len(dims) - 1
    if not is_trailing:
        shape = [dims[other] for other in order]
        source = builder("Transpose", [source], shape, "rows", {"perm": order})
    operator = (LAYER_NORM_OP, "")
    if ir.get_opset(model) < 17:
        operator = (_declare_function(model, 1, norm.epsilon), ir.FUNCTION_DOMAIN)
    gamma, beta = norm.gamma.reshape(-1), norm.beta.reshape(-1)
    result = append_rms_norm(builder, source, gamma, beta, norm.epsilon, operator)
    if not is_trailing:
        inverse = [order.index(other) for other in range(len(dims))]
        builder("Transpose", [result], dims, "back", {"perm": inverse})
    ir.replace_nodes(model, _removable_nodes(match.nodes), builder.nodes)


def _make_transpose(
    model: ir.Model, value: ir.Value, order: list[int], origin: ir.Node, suffix: str
) -> ir.Node:
    """Return a new Transpose of `value` with permutation `order`; it is not inserted.

    Type and shape of the output are set; its name is that of `origin`'s output with `suffix`.
    """
    node = ir.make_node(
        "Transpose",
        [value],
        {"perm": order},
        origin=origin,
        suffix=suffix,
        output=ir.unique_tensor_name(model, f"{origin.outputs[0].name}_{suffix}"),
    )
    dims = list(value.shape or ())
    node.outputs[0].type = value.type
    node.outputs[0].shape = ir.Shape([dims[axis] for axis in order])
    return node


def _removable_nodes(nodes: list[ir.Node]) -> list[ir.Node]:
    """Return the last of `nodes` (in graph order) and those whose outputs only removable ones read.

    The others stay: shapes computed in between may be used elsewhere.
    """
    removable = [nodes[-1]]
    for node in reversed(nodes[:-1]):
        if all(_is_only_used_by(value, removable) for value in node.outputs):
            removable.insert(0, node)
    return removable


def _is_only_used_by(value: ir.Value, nodes: Sequence[ir.Node]) -> bool:
    """Whether only `nodes` consume `value`, and it is no graph output."""
    return not value.is_graph_output() and all(use.node in nodes for use in value.uses())


def set_layer_norm_epsilon(model: ir.Model, node: ir.Node, epsilon: float) -> None:
    """Set the epsilon of `node`, a layer normalization of `model`, in place.

    If it calls a model-local function, it calls one with this epsilon afterwards, declared if
    needed.
    """
    if node.domain:
        node.op_type = _declare_function(model, len(ir.get_shape(node.inputs[1]) or ()), epsilon)
    ir.set_attr(node, "epsilon", epsilon)


def _declare_function(model: ir.Model, axis_count: int, epsilon: float) -> str:
    """Return the name of the model-local layer normalization over the last `axis_count` axes.

    It is added to `model` unless there is one with these axes and this `epsilon`. Its inputs are x,
    gamma and beta.
    """
    base = LAYER_NORM_OP if axis_count == 1 else f"{LAYER_NORM_OP}_{axis_count}axes"
    name, count = base, 1
    while (key := (ir.FUNCTION_DOMAIN, name, "")) in model.functions:
        if model.functions[key].graph.doc_string == f"{axis_count} {epsilon!r}":
            return name
        count += 1
        name = f"{base}_{count}"
    x, gamma, beta = (ir.Value(name=value_name) for value_name in ("x", "gamma", "beta"))
    body: list[ir.Node] = []

    def add(op_type: str, inputs: list[ir.Value], **attributes: object) -> ir.Value:
        """Append an operator to the function body; return its output, named v0, v1, ..."""
        node = ir.node(op_type, inputs, attributes)  # type: ignore[arg-type]
        node.outputs[0].name = f"v{len(body)}"
        body.append(node)
        return node.outputs[0]

    axes = list(range(-axis_count, 0))
    eps = add("Constant", [], value=ir.tensor(np.array(epsilon, np.float32), name="eps"))
    centered = add("Sub", [x, add("ReduceMean", [x], axes=axes)])
    variance = add("ReduceMean", [add("Mul", [centered, centered])], axes=axes)
    normalized = add("Div", [centered, add("Sqrt", [add("Add", [variance, eps])])])
    result = add("Add", [add("Mul", [normalized, gamma]), beta])
    graph = ir.Graph(
        [x, gamma, beta],
        [result],
        nodes=body,
        opset_imports={"": ir.get_opset(model)},
        name=name,
        doc_string=f"{axis_count} {epsilon!r}",
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
