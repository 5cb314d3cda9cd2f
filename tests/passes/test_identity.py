"""drop-identity: nodes that pass their input on go away, unless both names are the user's."""

import numpy as np
import pytest

from lingeronnx.quantization.normalize.folding.identity import drop_identity
from tests.passes.helpers import check_pass_fires, check_pass_leaves_alone, graph, rand

IN = "g (float[N,3,4,5] x)"


@pytest.mark.parametrize(
    "node",
    (
        "Identity(r)",
        "Dropout(r)",
        "Dropout(r, ratio)",
        "Dropout(r, ratio, off)",
        "Cast<to = 1>(r)",
        "Pad(r, none)",
        "Transpose<perm = [0, 1, 2, 3]>(r)",
        "Concat<axis = 1>(r)",
        "Tile(r, once)",
    ),
)
def test_passes_through(node):
    """Every node that returns its input is dropped."""
    arrays = {
        "ratio": np.float32(0.5),
        "off": np.array(False),
        "none": np.zeros(8, np.int64),
        "once": np.ones(4, np.int64),
    }
    used = {name: array for name, array in arrays.items() if name in node}
    text = f"{IN} => (float[N,3,4,5] y) {{ r = Relu(x) i = {node} y = Exp(i) }}"
    check_pass_fires(graph(text, **used), drop_identity, 1, ["Relu", "Exp"], atol=0)


def test_dropout_of_old_opsets():
    """Before opset 12 the ratio is an attribute."""
    text = (
        f"{IN} => (float[N,3,4,5] y) {{ r = Relu(x) i = Dropout<ratio: float = 0.5>(r) y = "
        "Exp(i) }"
    )
    check_pass_fires(graph(text, opset=11), drop_identity, 1, ["Relu", "Exp"], atol=0)


def test_pad_of_old_opsets():
    """Before opset 11 the pads are an attribute."""
    text = (
        f"{IN} => (float[N,3,4,5] y) {{ r = Relu(x) i = Pad<pads = [0,0,0,0,0,0,0,0]>(r) y = "
        "Exp(i) }"
    )
    check_pass_fires(graph(text, opset=9), drop_identity, 1, ["Relu", "Exp"], atol=0)


def test_chain_to_an_output():
    """The graph output keeps its name: the producer takes it."""
    text = (
        f"{IN} => (float[N,3,4,5] y) {{ r = Relu(x) i = Identity(r) j = Dropout(i) y = "
        "Identity(j) }"
    )
    check_pass_fires(graph(text), drop_identity, 3, ["Relu"], atol=0)


def test_from_an_input():
    """Behind a graph input the readers read the input."""
    check_pass_fires(
        graph(f"{IN} => (float[N,3,4,5] y) {{ i = Identity(x) y = Exp(i) }}"),
        drop_identity,
        1,
        ["Exp"],
        atol=0,
    )


def test_one_of_two_outputs():
    """Two names of one tensor are both outputs: one Identity stays to carry the second."""
    text = (
        f"{IN} => (float[N,3,4,5] y, float[N,3,4,5] z) {{ r = Relu(x) y = Identity(r) z = "
        "Identity(r) }"
    )
    check_pass_fires(graph(text), drop_identity, 1, ["Relu", "Identity"], atol=0)


def test_refuses_between_input_and_output():
    """Both names are the user's."""
    check_pass_leaves_alone(
        graph(f"{IN} => (float[N,3,4,5] y) {{ y = Identity(x) }}"), drop_identity
    )


def test_refuses_between_two_outputs():
    """Both names are the user's."""
    text = f"{IN} => (float[N,3,4,5] r, float[N,3,4,5] y) {{ r = Relu(x) y = Identity(r) }}"
    check_pass_leaves_alone(graph(text), drop_identity)


def test_refuses_a_constant_output():
    """A constant that is a graph output needs a node that writes it."""
    check_pass_leaves_alone(
        graph(
            f"{IN} => (float[3] y, float[N,3,4,5] z) {{ y = Identity(k) z = Exp(x) }}", k=rand(3)
        ),
        drop_identity,
    )


def test_refuses_dropout_in_training():
    """training_mode true, or not known."""
    text = f"{IN} => (float[N,3,4,5] y) {{ r = Relu(x) i = Dropout(r, ratio, on) y = Exp(i) }}"
    model = graph(text, ratio=np.float32(0.5), on=np.array(True))
    assert drop_identity(model).changes == 0
    text = (
        f"{IN[:-1]}, bool on) => (float[N,3,4,5] y) {{ r = Relu(x) i = Dropout(r, ratio, on) y "
        "= Exp(i) }"
    )
    model = graph(text, ratio=np.float32(0.5))
    assert drop_identity(model).changes == 0


def test_refuses_dropout_whose_mask_is_used():
    """The second output is read, or a graph output."""
    text = (
        f"{IN} => (float[N,3,4,5] y, bool[N,3,4,5] m) {{ r = Relu(x) i, m = Dropout(r) y = "
        "Exp(i) }"
    )
    check_pass_leaves_alone(graph(text), drop_identity)


@pytest.mark.parametrize(
    "node",
    (
        "Cast<to = 11>(r)",
        "Pad(r, some)",
        "Transpose<perm = [0, 1, 3, 2]>(r)",
        "Transpose(r)",
        "Concat<axis = 1>(r, r)",
        "Tile(r, twice)",
    ),
)
def test_refuses_what_does_something(node):
    """Another type, another shape, another order."""
    held = {"some": np.array([0, 0, 0, 0, 0, 0, 0, 1]), "twice": np.array([2, 1, 1, 1])}
    arrays = {name: array for name, array in held.items() if name in node}
    text = (
        f"{IN} => (float y) {{ r = Relu(x) i = {node} j = Cast<to = 1>(i) y = "
        "ReduceMax<keepdims = 0>(j) }"
    )
    model = graph(text, **arrays)
    drop_identity(model)
    assert node.partition("(")[0].partition("<")[0] in [n.op_type for n in model.graph]


def test_refuses_pads_of_the_run():
    """Pads that are a graph input may be anything."""
    text = (
        f"{IN[:-1]}, int64[8] p) => (float y) {{ r = Relu(x) i = Pad(r, p) y = "
        "ReduceMax<keepdims = 0>(i) }"
    )
    assert drop_identity(graph(text)).changes == 0


REPEATED = (
    "g (float[N,3,1] a, float[N,3,5] x, float[N,1,5] z) => (float[N,3,5] y) {{ e = "
    "Expand(a, s) {} }}"
)


def test_an_expand_that_a_product_does_itself():
    sizes = np.array([1, 3, 5])
    check_pass_fires(
        graph(REPEATED.format("y = Mul(x, e)"), s=sizes), drop_identity, 1, ["Mul"], atol=0
    )
    check_pass_fires(
        graph(REPEATED.format("f = Mul(e, x) y = Mul(f, e)"), s=sizes),
        drop_identity,
        1,
        ["Mul", "Mul"],
        atol=0,
    )


@pytest.mark.parametrize(
    "readers", ("y = Mul(z, e)", "y = Mul(e, e)", "f = Mul(x, e) y = Relu(e)", "y = Add(x, e)")
)
def test_an_expand_whose_sizes_are_needed_stays(readers):
    """A smaller operand beside it, itself, or another operator."""
    check_pass_leaves_alone(graph(REPEATED.format(readers), s=np.array([1, 3, 5])), drop_identity)


def test_operands_without_elements_are_left_out():
    text = f"""{IN} => (float[N,3,4,5] y) {{ r = Relu(x) e = Slice(r, zero, zero, one)
        i = Concat<axis = 1>(e, r) y = Exp(i) }}"""
    model = graph(text, zero=np.array([0]), one=np.array([1]))
    check_pass_fires(model, drop_identity, 2, ["Relu", "Slice", "Exp"], atol=0)


def test_a_join_of_nothing_stays():
    text = f"""{IN} => (float[N,0,4,5] y) {{ r = Relu(x) e = Slice(r, zero, zero, one)
        y = Concat<axis = 1>(e, e) }}"""
    model = graph(text, zero=np.array([0]), one=np.array([1]))
    check_pass_leaves_alone(model, drop_identity)
