"""Write docs/reference/standard-operators.md: where each operator of the ONNX standard runs.

    python -m benchmarks.standard_operators [--only OPERATOR ...] [--json]

Every operator of the installed onnx, in its newest version, is tried with the models of onnx's own
node tests, once with all inputs but the first as constants, and once as they are; functions of one
number also on a map of eight channels. A Relu stands before and behind, so that names of inputs and
outputs keep no node. Each model is normalized and fitted for a target, without calibration. The best
result of all models counts; `--only` renews single rows:

    integer    all nodes that are left have an integer form within the target's limits
    folded     no node is left: the operator is computed before the run
    expanded   integer, once its composition or function body has replaced it
    host       a float node is left
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import defs

from benchmarks.onnx_suite import node_models
from lingeronnx.common.errors import LingerOnnxError
from lingeronnx.ir import ir
from lingeronnx.operators.lowerings import can_lower
from lingeronnx.quantization.normalize import run_entry_passes
from lingeronnx.quantization.prepare.rewriter import Rewriter
from lingeronnx.quantization.prepare.settings import resolve_config
from lingeronnx.targets import PLATFORMS, Target

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "standard-operators.md"
RANKS = ("integer", "folded", "expanded", "host")  # the best first
_MAX_MODELS = 8  # per operator
_MAP = (1, 8, 4, 4)

#: Forms that networks have, and the node tests do not: shapes of float inputs or int64 constants, and
#: attributes.
_MORE_FORMS: Mapping[str, tuple[Sequence[tuple[int, ...] | list[int]], Mapping[str, object]]] = {
    "Einsum": ([(1, 4, 8), (8, 6)], {"equation": "bij,jk->bik"}),
    "LinearAttention": (
        [(1, 4, 16), (1, 4, 16), (1, 4, 16)],
        {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"},
    ),
    "Max": ([_MAP, _MAP], {}),
    "Mean": ([_MAP, _MAP], {}),
    "MeanVarianceNormalization": ([_MAP], {"axes": [2, 3]}),
    "Min": ([_MAP, _MAP], {}),
    "PRelu": ([_MAP, (8, 1, 1)], {}),
    "Pad": ([_MAP, [0, 0, 1, 1, 0, 0, 1, 1]], {}),
    "Sum": ([_MAP, _MAP], {}),
    "Tile": ([_MAP, [1, 1, 2, 2]], {}),
}
_Feed = Mapping[str, np.ndarray]


def list_operators() -> list[str]:
    """Return the operators of the standard domain that are not deprecated."""
    return sorted(
        schema.name
        for schema in defs.get_all_schemas()
        if not schema.domain and not schema.deprecated
    )


def collect_models() -> dict[str, list[tuple[onnx.ModelProto, _Feed]]]:
    """Return the node tests of one node with inputs that are arrays, by operator."""
    models = defaultdict(list)
    for case in node_models():
        nodes = case.proto.graph.node
        if len(nodes) != 1 or case.feed is None or nodes[0].domain:
            continue
        is_double = any(array.dtype == np.float64 for array in case.feed.values())
        if not is_double and len(models[nodes[0].op_type]) < _MAX_MODELS:
            models[nodes[0].op_type].append((case.proto, case.feed))
    for op_type, (inputs, attributes) in _MORE_FORMS.items():
        models[op_type].append(make_model(op_type, inputs, attributes))
    return models


def make_model(
    op_type: str,
    inputs: Sequence[tuple[int, ...] | list[int]],
    attributes: Mapping[str, object],
) -> tuple[onnx.ModelProto, _Feed]:
    """Make a model of one node with a feed; a list among `inputs` is an int64 input with its values."""
    rng, feed = np.random.default_rng(0), dict[str, np.ndarray]()
    for index, entry in enumerate(inputs):
        is_constant = isinstance(entry, list)
        array = np.array(entry) if is_constant else rng.uniform(0.5, 1.5, entry).astype(np.float32)
        feed[f"x{index}"] = array
    node = onnx.helper.make_node(op_type, list(feed), ["y"], **attributes)
    values = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feed.items()
    ]
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([node], "form", values, [result])
    opset = onnx.helper.make_opsetid("", defs.onnx_opset_version())
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), feed


def iterate_variants(
    proto: onnx.ModelProto, feed: _Feed
) -> Iterator[tuple[onnx.ModelProto, _Feed]]:
    """Yield a model with its inputs from the second on as constants, itself, and on a map.

    Only the first output is kept.
    """
    if len(proto.graph.output) > 1:
        first = onnx.ModelProto()
        first.CopyFrom(proto)
        del first.graph.output[1:], first.graph.node[0].output[1:]
        proto = first
    names = [value.name for value in proto.graph.input if value.name in feed]
    if len(names) > 1:
        shared = {name: _share_between_samples(feed, names, name) for name in names}
        yield add_neighbors(proto, shared, names[1:]), {names[0]: feed[names[0]]}
        yield add_neighbors(proto, feed, names[1:]), {names[0]: feed[names[0]]}
    yield add_neighbors(proto, feed, ()), feed
    array = feed[names[0]]
    is_elementwise = len(names) == 1 and len(proto.graph.output) == 1 and _has_equal_shapes(proto)
    if is_elementwise and array.dtype == np.float32 and array.ndim < 4:
        sample = {names[0]: np.resize(array, (1, 8, 4, 4))}
        yield add_neighbors(proto, sample, ()), sample


def _share_between_samples(feed: _Feed, names: Sequence[str], name: str) -> np.ndarray:
    """Return an input, or its first sample if it is a second one of the shape of the first."""
    array = np.asarray(feed[name])
    is_alike = name != names[0] and array.shape == np.shape(feed[names[0]]) and array.ndim > 1
    return array[:1] if is_alike else array


def _has_equal_shapes(proto: onnx.ModelProto) -> bool:
    """Whether the first input and output of a model have the same shape."""
    source, result = proto.graph.input[0].type, proto.graph.output[0].type
    return source.tensor_type.shape == result.tensor_type.shape


def add_neighbors(
    proto: onnx.ModelProto, feed: _Feed, constants: Collection[str]
) -> onnx.ModelProto:
    """Return a copy of a model with a Relu at each float input and output.

    The inputs `constants` become initializers with the arrays of `feed`, and all others have their
    shapes.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    graph, node = copy.graph, copy.graph.node[0]
    for value in list(graph.input):
        tensor_type = value.type.tensor_type
        if value.name in constants:
            graph.input.remove(value)
            array = np.asarray(feed[value.name])
            graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        elif tensor_type.elem_type == onnx.TensorProto.FLOAT:
            shape = np.shape(feed[value.name])
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, 1, shape))
            relu = onnx.helper.make_node("Relu", [value.name], [f"{value.name}_relu"])
            graph.node.insert(0, relu)
            for index, name in enumerate(node.input):
                if name == value.name:
                    node.input[index] = f"{value.name}_relu"
    for value in graph.output:
        tensor_type = value.type.tensor_type
        if tensor_type.elem_type == onnx.TensorProto.FLOAT:
            tensor_type.ClearField("shape")
            for index, name in enumerate(node.output):
                if name == value.name:
                    node.output[index] = f"{name}_computed"
            computed = f"{value.name}_computed"
            graph.node.append(onnx.helper.make_node("Relu", [computed], [value.name]))
    return copy


def classify_model(proto: onnx.ModelProto, feed: _Feed, target: Target, op_type: str) -> str:
    """Return where the node of `op_type`, the only one with neighbors, runs on `target`."""
    model, _ = run_entry_passes(ir.from_proto(proto))
    config = resolve_config(None, {"platform": target})
    rewriter = Rewriter(model, None, feed, target, config)
    verdict = _classify_graph(rewriter.run().graph, target, op_type)
    if verdict != "host":
        return verdict
    rewriter.expanded = frozenset(str(node.name) for node in model.graph if node.op_type == op_type)
    return (
        "host" if _classify_graph(rewriter.run().graph, target, op_type) == "host" else "expanded"
    )


def _classify_graph(model: ir.Model, target: Target, op_type: str) -> str:
    """Return where the nodes of a graph run; "folded" if only the added ones are left."""
    nodes = [node for node in model.graph if node.op_type not in ("Identity", "Constant", "Relu")]
    if not nodes:
        return "folded" if op_type != "Relu" else "integer"
    return "integer" if all(can_lower(node, target) for node in nodes) else "host"


def classify_operators(operators: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return {operator: {target: where it runs}}."""
    models, verdicts = collect_models(), {}
    for operator in operators:
        verdicts[operator] = {target.name: "host" for target in PLATFORMS}
        for target in PLATFORMS:
            verdicts[operator][target.name] = classify_operator(operator, models, target)
    return verdicts


def classify_operator(
    operator: str,
    models: Mapping[str, Sequence[tuple[onnx.ModelProto, _Feed]]],
    target: Target,
) -> str:
    """Return the best verdict of all models of an operator on `target`."""
    best = RANKS[-1]
    for proto, feed in models.get(operator, ()):
        for variant, arrays in iterate_variants(proto, feed):
            try:
                verdict = classify_model(variant, arrays, target, operator)
            except LingerOnnxError:  # the model is refused: control flow, for instance
                continue
            best = min(verdict, best, key=RANKS.index)
            if best == RANKS[0]:
                return best
    return best


def format_page(verdicts: Mapping[str, Mapping[str, str]]) -> str:
    """Format the page."""
    names = [target.name for target in PLATFORMS]
    lines = [
        "# Operators of the standard",
        "",
        "<!-- written by `python -m benchmarks.standard_operators`; do not edit by hand -->",
        "",
        f"All operators of ONNX up to opset {defs.onnx_opset_version()}, and where each runs. [Operators](operators.md)",
        "has the limits: a node outside of them, or of another form, runs on the host in float.",
        "`lingeronnx check MODEL` says it for each node of a model.",
        "",
        "- **integer**: in integers on the platform, within its limits",
        "- **expanded**: in integers, once a composition or the operator's function body has replaced",
        "  it, where that raises the share of integers",
        "- **folded**: computed before the run if its inputs are known, and gone then",
        "- **host**: in float on the host, in all forms that were tried",
        "",
        f"| operator | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    lines += [
        f"| {operator} | {' | '.join(verdicts[operator][name] for name in names)} |"
        for operator in verdicts
    ]
    return "\n".join(lines) + "\n"


def read_page() -> dict[str, dict[str, str]]:
    """Return the verdicts that the page has."""
    names, verdicts = [target.name for target in PLATFORMS], {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(names) + 1 and cells[1] in RANKS:
            verdicts[cells[0]] = dict(zip(names, cells[1:], strict=True))
    return verdicts


def main() -> None:
    """Classify the operators, and write the page or print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    verdicts = classify_operators(arguments.only or list_operators())
    if arguments.json:
        print(json.dumps(verdicts, indent=1))
        return
    if arguments.only:
        verdicts = dict(sorted((read_page() | verdicts).items()))
    PAGE.write_text(format_page(verdicts), encoding="utf-8")


if __name__ == "__main__":
    main()
