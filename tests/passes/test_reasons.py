"""Every pass answers for what it leaves: a reason that holds the node, or the declared fact that
nothing is left.
"""

import inspect

import numpy as np
import pytest

from lingeronnx.common.errors import InternalError
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize import (
    CONTROL_FLOW_PASSES,
    ENTRY_PASSES,
    NORMALIZATION_PASSES,
    Pass,
    PassLog,
    PassResult,
    SkipReason,
)
from lingeronnx.quantization.normalize._pass import NO_SUBGRAPHS, match_op_types, run_passes
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from tests.passes.helpers import feeds, graph, positive, rand

EVERY = {step.name: step for step in (*ENTRY_PASSES, *CONTROL_FLOW_PASSES, *NORMALIZATION_PASSES)}
COMPLETE = {
    "sound",
    "inline-functions",
    "missing-kernels",
    "prepare",
    "refuse",
    "float32",
    "time-first",
    "check-control",
    "clean",
}

#: Pass -> a graph with a node that it leaves, its constants, and of what operator that node is.
LEFT = {
    "fold-constants": (
        "g (float[N,2] x) => (float[2] y, float[N,2] z) { y = Abs(two) z = Add(x, two) }",
        "Abs",
    ),
    "drop-identity": ("g (float[N,2] x) => (float[N,2] y) { y = Identity(x) }", "Identity"),
    "known-shapes": ("g (float[N,2] x) => (int64[2] y) { y = Shape(x) }", "Shape"),
    "batch-first": (
        "g (float[N,2] x) => (float[2,N] y) { a = Abs(x) y = Transpose<perm = [1, 0]>(a) }",
        "Transpose",
    ),
    "layer-norm": ("g (float[N,2] x) => (float[N,2] y) { a = Abs(x) y = Sqrt(a) }", "Sqrt"),
    "scaled-product": (
        "g (float[N,2,2] x) => (float[N,2,2] y) { a = MatMul(x, x) y = Mul(a, half) }",
        "Mul",
    ),
    "curves": (
        (
            "g (float[N,2] x) => (float[N,2] y, float[N,2] z) { s = Sigmoid(x) y = Mul(x, s) z = "
            "Neg(s) }"
        ),
        "Mul",
    ),
    "known-curves": (
        "g (float[N,2] x) => (float[N,2] y) { s = HardSigmoid<alpha = 0.3>(x) y = Mul(x, s) }",
        "Mul",
    ),
    "layer-behind": (
        """g (float[N,2,4,4] x) => (float[N,2,4,4] y, float[N,2,4,4] z) { a = Abs(x) b = Mul(a, half) y = Conv(b, w)
        z = Neg(b) }""",
        "Mul",
    ),
    "batch-norm-behind": (
        (
            "g (float[N,2,4,4] x) => (float[N,2,4,4] y) "
            "{ y = BatchNormalization(x, two, two, two, p) }"
        ),
        "BatchNormalization",
    ),
    "recurrent": (
        """g (float[N,3,2] x) => (float[3,1,N,2] y) { t = Transpose<perm = [1, 0, 2]>(x)
        y, h = GRU<hidden_size = 2, activations = ["Relu", "Tanh"]>(t, wi, wh) }""",
        "GRU",
    ),
    "mask": (
        "g (float[N,2] x) => (float[N,2] y) { a = Add(x, hidden) y = Softmax(a) }",
        "Add",
    ),
    "rows": (
        """g (float[N,3,2] x) => (float[N] y) { a = Reshape(x, rows) b = Abs(a) c = Reshape(b, wide)
        y = ReduceSum<keepdims = 0>(c, one) }""",
        "Reshape",
    ),
    "joined-affine": (
        """g (float[N,2] x) => (float[N,4] y) { a = Abs(x) c = Concat<axis = 1>(x, a)
        b = Mul(c, uneven) y = Add(b, c) }""",
        "Mul",
    ),
    "unbind": (
        (
            "g (float[N,12] x) => (float[3,N,2,2] y) { a = Reshape(x, parts) y = Transpose<perm = [1, "
            "0, 2, 3]>(a) }"
        ),
        "Transpose",
    ),
    "channels": (
        """g (float[N,4,2] x) => (float[N,8] y) { a = Reshape(x, pairs) b = Abs(a) c = Transpose<perm = [1, 0]>(a)
        y = Reshape(c, eight) }""",
        "Reshape",
    ),
    "backward": (
        """g (float[N,3,2] x) => (float[N,3,2] y) { a = Slice(x, last, first, one, minus)
        t = Transpose<perm = [1, 0, 2]>(a) s, h = GRU<hidden_size = 2>(t, wi, wh) q = Squeeze(s, one)
        y = Transpose<perm = [1, 0, 2]>(q) }""",
        "GRU",
    ),
}
ARRAYS = {
    "two": rand(2),
    "p": positive(2),
    "half": np.array(0.5, np.float32),
    "w": rand(2, 2, 1, 1),
    "wi": rand(1, 6, 2),
    "wh": rand(1, 6, 2, seed=1),
    "hidden": np.full((1, 2), -1e9, np.float32),
    "rows": np.array([-1, 2]),
    "wide": np.array([-1, 6]),
    "one": np.array([1]),
    "parts": np.array([0, 3, 2, 2]),
    "pairs": np.array([-1, 2]),
    "uneven": np.float32([1, 1, 9, 9]),
    "eight": np.array([-1, 8]),
    "last": np.array([-1]),
    "first": np.array([-(2**31)]),
    "minus": np.array([-1]),
}


def test_what_leaves_nothing_is_declared():
    """These raise an error of the user's, or change all that they are made for; all others give
    reasons.
    """
    assert {name for name, step in EVERY.items() if step.handles_all} == COMPLETE
    for name, step in EVERY.items():
        assert ("Reason(" in inspect.getsource(inspect.getmodule(step.run))) or step.handles_all, (
            name
        )
        assert inspect.get_annotations(step.run, eval_str=True)["return"] in (
            (int,) if step.handles_all else (PassResult,)
        )


def test_every_pass_ensures_something():
    """What holds behind it stands beside it."""
    assert [name for name, step in EVERY.items() if not step.ensures and not step.keeps] == []


@pytest.mark.parametrize("name", LEFT)
def test_the_reason_holds_the_node(name):
    """The node is in the graph still, it is the one that stays, and the text names it."""
    text, kind = LEFT[name]
    used = {
        key: array
        for key, array in ARRAYS.items()
        if f" {key}" in text.replace(",", " ").replace("(", " ")
    }
    model = graph(text, **used)
    trace_shapes(model, {key: array[:1] for key, array in feeds(model).items()})
    if name == "backward":
        run_passes([EVERY[each] for each in ("recurrent", "layout")], model)
    seen = PassLog()
    run_passes([EVERY[name]], model, seen)
    found = [reason for reason in seen.get_skip_reasons() if ir.base_op_type(reason.node) == kind]
    assert found, seen.format_skip_reasons()
    assert all(any(reason.node is node for node in model.graph) for reason in found)
    assert str(found[0]).startswith(f"{found[0].node.op_type} {found[0].node.name} stays: ")


SQUARE = "g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }"


@pytest.mark.parametrize(
    ("step", "said"),
    (
        (
            Pass("p", lambda model: 0, is_candidate=match_op_types("Relu")),
            "a reason for each skipped node: Relu Relu_y has none",
        ),
        (
            Pass("p", lambda m: PassResult(0, [SkipReason(m.graph[0], "so")]), handles_all=True),
            "that no node is skipped: Relu Relu_y",
        ),
    ),
)
def test_a_pass_that_does_not_answer(step, said):
    """The runner names the pass and the node."""
    with pytest.raises(InternalError, match=f"pass p does not ensure {said}"):
        run_passes([step], graph(SQUARE))


def test_a_pass_that_breaks_what_it_ensures():
    """It is named, not the one that would meet the graph next."""

    def spoil(model):
        branch = graph("g () => (float[2] z) { z = Constant<value_floats = [1.0, 2.0]>() }").graph
        node = ir.node(
            "If", [model.graph.inputs[0]], {"then_branch": branch, "else_branch": branch}
        )
        node.name = "If_z"
        model.graph.append(node)
        return 1

    with pytest.raises(
        InternalError,
        match="pass spoil does not ensure no subgraphs: If If_z has one; after passes a",
    ):
        run_passes(
            [Pass("a", lambda model: 0), Pass("spoil", spoil, ensures=[NO_SUBGRAPHS])],
            graph(SQUARE),
        )
