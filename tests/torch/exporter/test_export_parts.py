"""The parts of the export that have laws of their own: packed weights, Reshape targets, resized
inputs.
"""

import itertools

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lingeronnx.common.errors import DataError
from lingeronnx.ir import ir
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.torch.checkpoint.recurrent_weights import match_packed_weights
from lingeronnx.torch.exporter.constant_sizes import _make_reshape_target, fold_constant_sizes
from lingeronnx.torch.exporter.signature import resize_inputs

# ---- recurrent weights -------------------------------------------------------------------------------------------

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def cell(kind, direction="forward", domain=""):
    values = [ir.Value(name=name) for name in "xwrb"]
    return ir.make_node(
        kind,
        values,
        {"direction": direction, "hidden_size": 2},
        name="cell",
        output="y",
        domain=domain,
    )


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ("forward", "reverse", "bidirectional"))
@pytest.mark.parametrize("index", (1, 2, 3))
def test_packing_is_a_bijection(kind, direction, index):
    """unpack(pack(x)) == x, whichever of the names one starts from; every element is there once."""
    found = match_packed_weights(
        cell(kind, direction),
        index,
        f"enc.rnn.{'bias_ih' if index == 3 else 'weight_ih'}_l1".replace(
            "weight_ih", {1: "weight_ih", 2: "weight_hh", 3: ""}[index]
        ),
    )
    assert found is not None
    keys = [key for keys in found.keys for key in keys]
    numbers = itertools.count()
    size = (GATES[kind] * 2,) if index == 3 else (GATES[kind] * 2, 5)
    arrays = {
        k: np.fromiter(itertools.islice(numbers, int(np.prod(size))), float).reshape(size)
        for k in keys
    }
    whole = found.pack(arrays)
    assert whole.shape[:2] == (
        2 if direction == "bidirectional" else 1,
        size[0] * (2 if index == 3 else 1),
    )
    assert sorted(whole.ravel()) == list(range(whole.size))
    back = found.unpack(whole)
    assert back.keys() == arrays.keys()
    assert all(np.array_equal(back[k], arrays[k]) for k in keys)
    assert all(
        match_packed_weights(cell(kind, direction), index, name) == found
        for name in (*keys, found.name)
    )
    assert found.can_unpack(whole)
    assert not found.can_unpack(whole[0])
    if GATES[kind] > 1 or index == 3:
        assert not found.can_unpack(whole[:, :-1])


@pytest.mark.parametrize(
    "node, index, name",
    (
        (cell("Conv"), 1, "rnn.weight_ih_l0"),
        (cell("LSTM", domain="other"), 1, "rnn.weight_ih_l0"),
        (cell("LSTM"), 0, "rnn.weight_ih_l0"),
        (cell("LSTM"), 1, "rnn.weight_hh_l0"),
        (cell("LSTM"), 1, "rnn.weight"),
        (cell("LSTM"), 3, "rnn.weight_ih_l0"),
    ),
)
def test_not_packed(node, index, name):
    assert match_packed_weights(node, index, name) is None


def test_gates_of_lstm():
    """torch i f g o, ONNX i o f c: read off the documentation of both."""
    found = match_packed_weights(cell("LSTM"), 1, "weight_ih_l0")
    one_per_gate = {"weight_ih_l0": np.array([[1.0], [2.0], [3.0], [4.0]])}
    assert found.pack(one_per_gate).ravel().tolist() == [1, 4, 2, 3]


def test_gates_of_gru():
    """torch r z n, ONNX z r h."""
    found = match_packed_weights(cell("GRU"), 3, "bias_ih_l0")
    biases = {"bias_ih_l0": np.array([1.0, 2, 3]), "bias_hh_l0": np.array([4.0, 5, 6])}
    assert found.pack(biases).ravel().tolist() == [2, 1, 3, 5, 4, 6]


# ---- sizes -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_a_target_gives_the_sizes_it_was_made_from(fixed, data):
    """Where there is a target, Reshape by it gives each run's sizes."""
    free = data.draw(st.integers(0, len(fixed)))
    batches = (2, 3, 5)
    sources = [np.zeros([batch, *fixed]) for batch in batches]
    split = data.draw(st.integers(0, len(fixed)))
    wanted = []
    for batch in batches:
        head = batch * int(np.prod(fixed[:split]))
        wanted.append(np.array([*fixed[split:][:free], head, *fixed[split:][free:]], np.int64))
    target = _make_reshape_target(wanted, sources)
    assert target is not None
    for source, want in zip(sources, wanted, strict=True):
        dims = [source.shape[i] if d == 0 else int(d) for i, d in enumerate(target)]
        assert source.reshape(dims).shape == tuple(want)


def test_no_target_for_two_unknown_sizes():
    """Two sizes that vary, neither of them in its place: -1 can stand for one only."""
    sources = [np.zeros((2, 3, 4)), np.zeros((5, 7, 4))]
    assert _make_reshape_target([np.array([3, 2, 4]), np.array([7, 5, 4])], sources) is None
    assert _make_reshape_target([np.array([0, 24]), np.array([0, 140])], sources) is None


def graph(text, **arrays):
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]>\n{text}')
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return ir.from_proto(proto)


FLATTEN = """g (float[N, 2, 3] x) => (float[N, K] y) {
    s = Shape(x)
    n = Gather(s, zero)
    n1 = Unsqueeze(n, first)
    t = Concat<axis=0>(n1, minus)
    y = Reshape(x, t)
}"""


def test_a_computed_target(tmp_path):
    """The chain becomes a constant with 0 for the batch; the result is the same; a second run
    changes nothing.
    """
    model = graph(FLATTEN, zero=np.int64(0), first=np.array([0]), minus=np.array([-1]))
    feeds = [{"x": np.random.default_rng(n).random((n, 2, 3), np.float32)} for n in (1, 2, 4)]
    before = [list(FloatRunner(model, ["y"]).run(feed))[0][1] for feed in feeds]
    assert fold_constant_sizes(model, feeds) == 1
    assert [node.op_type for node in model.graph] == ["Reshape"]
    assert ir.const_value(model.graph.node(0).inputs[1]).tolist() == [0, -1]
    for feed, want in zip(feeds, before, strict=True):
        assert np.array_equal(list(FloatRunner(model, ["y"]).run(feed))[0][1], want)
    assert fold_constant_sizes(model, feeds) == 0


def test_values_are_not_sizes():
    """What depends on data stays, however constant it looks."""
    model = graph(
        """g (float[N, 4] x) => (float[N, 4] y) {
            m = ReduceMax<keepdims=0>(x)
            i = Cast<to=7>(m)
            t = Unsqueeze(i, first)
            e = Expand(one, t)
            y = Mul(x, e)
        }""",
        first=np.array([0]),
        one=np.array([1], np.float32),
    )
    assert fold_constant_sizes(model, [{"x": np.full((n, 4), 4, np.float32)} for n in (1, 2)]) == 0
    assert len(model.graph) == 5


def test_a_size_that_varies_stays():
    """Only a Reshape can leave a size open."""
    model = graph(
        """g (float[N, 4] x, float[1, 4] z) => (float[N, 4] y) {
            s = Shape(x)
            y = Expand(z, s)
        }"""
    )
    feeds = [{"x": np.zeros((n, 4), np.float32), "z": np.zeros((1, 4), np.float32)} for n in (2, 3)]
    assert fold_constant_sizes(model, feeds) == 0
    assert fold_constant_sizes(model, feeds[:1]) == 1  # one run: nothing is dynamic


# ---- inputs ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 9))
def test_resized(old, new):
    """Rows come in turn: the first ones are those that were there."""
    tensor = torch.arange(old * 3.0).reshape(old, 3)
    found = resize_inputs({"x": tensor}, {"x": {0: "N"}}, {"N": new})[0]
    assert found.shape == (new, 3)
    assert torch.equal(found[: min(old, new)], tensor[: min(old, new)])


def test_resized_needs_a_row():
    with pytest.raises(DataError, match="size 0 on axis 0"):
        resize_inputs({"x": torch.zeros(0, 3)}, {"x": {0: "N"}}, {"N": 2})


def test_inputs_made_up_are_valid_indices():
    """0 and 1 fit every table of two rows; the same on every call."""
    from lingeronnx.torch.exporter.signature import InputShape, make_inputs

    shapes = [InputShape("input", (64,), "int64")]
    (_, first, _), (_, second, _) = (make_inputs(nn.Embedding(2, 3), shapes) for _ in range(2))
    assert set(first["input"].tolist()) == {0, 1}
    assert torch.equal(first["input"], second["input"])
