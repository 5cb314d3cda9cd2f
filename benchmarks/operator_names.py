"""Find collections of ONNX operator names in a syntax tree, and list the ones that may stay.

Facts about operators belong into one table, `lingeronnx/ir/float_ops.py`. A second list of names
drifts away from it, so each list elsewhere needs a reason in `REASONS`.

A collection has at least `MIN_NAMES` different names. It is a tuple, list, set or dict (its keys),
a combination of these by `|`, `-` and `&`, a chain of comparisons, or a string of names separated
by blanks. A name may stand in a pair with its domain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import onnx

__all__ = ["MIN_NAMES", "NAMES", "REASONS", "OperatorCollection", "find_operator_collections"]

MIN_NAMES = 3

#: Begin of `path:owner` of a collection, * for any text -> why it states no fact about operators.
REASONS = {
    "lingeronnx/ir/float_ops.py:OPERATORS": "the table itself",
    "lingeronnx/ir/float_ops.py:ACTIVATION_SUBSTITUTES": (
        "which activation is trained instead of which"
    ),
    "lingeronnx/analysis/profile/profile.py:COLUMNS": "headings of columns",
    "lingeronnx/ir/attributes.py:_MAY_BE_INFINITE": "attributes, with the operators that have them",
    "lingeronnx/quantization/trials/host_offload.py:_FRONT_OPS": (
        "a heuristic for front ends; trials decide"
    ),
    "lingeronnx/quantization/trials/host_offload.py:_TAIL_OPS": "a heuristic for decoders; trials decide",
    "lingeronnx/quantization/prepare/recurrent_states.py:_GATES": "a heuristic for gates; trials decide",
    "lingeronnx/quantization/normalize/folding/scalar_inputs.py:_COMPARISON_SIDES": (
        "which operand of each is larger"
    ),
    "lingeronnx/ir/weight_values.py:_ROLES": "which inputs each operator multiplies and adds",
    "lingeronnx/ir/weight_values.py:_TRANSPARENT_OPS": (
        "which inputs of each operator reach its output element by element"
    ),
    "lingeronnx/operators/macs.py:_INTEGER_PRODUCTS": "counted as integer work of the host",
    "lingeronnx/operators/macs.py:_MAC_COUNTERS": "a way to count for each operator",
    "lingeronnx/operators/macs.py:_ZERO_MAC_OPS": "operators of other domains",
    "lingeronnx/operators/activation_tables/lowering/lookup_table.py:Table.floats": (
        "the table would only repeat their rules"
    ),
    "lingeronnx/quantization/methods/output_gradients.py:_BACKWARD": "a gradient for each operator",
    "lingeronnx/quantization/normalize/folding/constant_targets.py:TARGET_INPUTS": (
        "which input of each has the target shape"
    ),
    "lingeronnx/quantization/normalize/layers/layer_norm.py:ROOT_OPS": "whose nodes `_is_square_root` examines",
    "lingeronnx/quantization/report/output_parts.py:_JOINING_OPS": "in which `_trace_producer` finds boundaries",
    "lingeronnx/quantization/normalize/folding/constant_targets.py:_TARGET_REWRITES": "a way to write each operator",
    "lingeronnx/quantization/normalize/folding/control_flow.py:_UNSUPPORTED_REASONS": "a sentence for each operator",
    "lingeronnx/quantization/normalize/activations/unary_functions.py:_KNOWN_FUNCTIONS": (
        "how a recognized curve is written"
    ),
    "lingeronnx/quantization/normalize/axes/unfold_windows.py:_A*": (
        "where each operator has its axes"
    ),
    "lingeronnx/quantization/normalize/axes/batch_first.py:_BatchFirstRewriter._infer_view": (
        "a rule for each operator"
    ),
    "lingeronnx/quantization/normalize/expansion/compositions.py:COMPOSITIONS": (
        "a way to compose each operator"
    ),
    "lingeronnx/quantization/normalize/entry/sequences.py:replace_sequences": "a way to rewrite each operator",
    "lingeronnx/quantization/normalize/folding/identity.py:_NO_OP_TESTS": "a test for each operator",
    "lingeronnx/quantization/normalize/axes/cancel_transposes.py:_ATTRIBUTE_REWRITES": (
        "a way to transpose each operator"
    ),
    "lingeronnx/quantization/normalize/entry/convert_model.py:_REWRITES": (
        "a way to rewrite each operator"
    ),
    "lingeronnx/ir/lower_opset.py:_REWRITES": "a way to rewrite each operator",
    "lingeronnx/quantization/normalize/entry/reject_unsupported.py:_TEXT_ENCODING_OPS": (
        "operators that may read text, of all domains"
    ),
    "lingeronnx/quantization/scales/fake_quant.py:_make_fake_quant_nodes": (
        "operators that are written one after the other"
    ),
    "lingeronnx/operators/references.py:ONNX_NATIVE_OPS": "an oracle shares nothing with what it judges",
    "lingeronnx/luna/": "integer operators of the targets, and how a vendor's tool treats them",
    "lingeronnx/torch/checkpoint/recurrent_weights.py:_GATE_ORDERS": (
        "torch's order of the gates of each"
    ),
    "lingeronnx/torch/qat/float_": "a torch implementation of each operator",
    "simulator/kernels/__init__.py:_HOME": "names of classes and their modules",
}

_SCHEMAS = onnx.defs.get_all_schemas_with_history()
NAMES = frozenset(schema.name for schema in _SCHEMAS if not schema.domain)
_DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict)


class OperatorCollection(NamedTuple):
    """Names that stand together.

    Attributes
    ----------
    line
        Line of the collection.
    owner
        Dotted name of the constant, class or function around it; "" at the level of the module.
    names
        Different names, in the order in which they stand.
    """

    line: int
    owner: str
    names: tuple[str, ...]


def find_operator_collections(tree: ast.AST, owner: str = "") -> Iterator[OperatorCollection]:
    """Yield the outermost collections of operator names in a syntax tree.

    `__all__` is none: its names are those of classes.
    """
    owner = _extend_owner(tree, owner)
    if owner == "__all__":
        return
    if isinstance(tree, ast.expr):
        names = tuple(dict.fromkeys(_collect_names(tree)))
        if len(names) >= MIN_NAMES:
            yield OperatorCollection(tree.lineno, owner, names)
            return
    for child in ast.iter_child_nodes(tree):
        yield from find_operator_collections(child, owner)


def _extend_owner(node: ast.AST, owner: str) -> str:
    """Return the owner of what stands inside `node`: a definition, or a constant."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return f"{owner}.{node.name}".removeprefix(".")
    in_function = bool(owner) and not owner[0].isupper()
    if isinstance(node, ast.Assign | ast.AnnAssign) and "." not in owner and not in_function:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return f"{owner}.{ast.unparse(target)}".removeprefix(".")
    return owner


def _collect_names(node: ast.expr) -> list[str]:
    """Collect the operator names of a collection or of an expression of collections."""
    if isinstance(node, ast.BinOp):
        return [*_collect_names(node.left), *_collect_names(node.right)]
    if isinstance(node, ast.BoolOp):
        return [name for value in node.values for name in _collect_names(value)]
    if isinstance(node, ast.Compare):
        sides = [_collect_names(side) or _names_of_element(side) for side in node.comparators]
        return [name for names in sides for name in names]
    if isinstance(node, ast.Constant):
        return _split_names(node.value)
    if isinstance(node, _DISPLAYS):
        elements = node.keys if isinstance(node, ast.Dict) else node.elts
        return [name for element in elements for name in _names_of_element(element)]
    return []


def _split_names(value: object) -> list[str]:
    """Split a string of operator names separated by blanks; anything else has none."""
    words = value.split() if isinstance(value, str) else []
    is_list = len(words) >= MIN_NAMES and all(word in NAMES for word in words)
    return words if is_list else []


def _names_of_element(node: ast.expr | None) -> list[str]:
    """Return the name that an element is, alone or after its domain, or the names inside it."""
    if node is None:  # of `**other` in a dict
        return []
    value = node.elts[1] if isinstance(node, ast.Tuple) and len(node.elts) == 2 else node
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value in NAMES:
        return [value.value]
    return _collect_names(node)
