"""free-batch: a fixed batch size becomes a dynamic one where the samples can be told apart."""

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ModelError
from lingeronnx.ir import ir
from lingeronnx.ir.batch_axes import set_batch_axes
from lingeronnx.quantization.normalize.entry.dynamic_batch import make_batch_dynamic
from lingeronnx.runtime.runners import FloatRunner, get_input_specs
from tests.passes.helpers import changes, graph, interface, ops, outputs, rand, reasons

SIZE_OF_BATCH = """s = Shape(x) z = Constant<value_int = 0>() n = Gather<axis = 0>(s, z)
    a = Constant<value_ints = [0]>() u = Unsqueeze(n, a) r = Constant<value_ints = [8]>() t = Concat<axis = 0>(u, r)"""

#: A body with {n} samples -> (inputs and outputs, body, initializers as functions of n, operators left).
FREED = {
    "nothing spells it": (
        "float[{n},4] x",
        "float[{n},3] y",
        "y = MatMul(x, w)",
        {"w": lambda n: rand(4, 3)},
        ["MatMul"],
    ),
    "a reshape": (
        "float[{n},4,2] x",
        "float[{n},8] y",
        "y = Reshape(x, s)",
        {"s": lambda n: np.array([n, 8])},
        ["Reshape"],
    ),
    "a reshape that folds steps": (
        "float[{n},5,4] x",
        "float[{n},5,3] y",
        "f = Reshape(x, s) m = MatMul(f, w) y = Reshape(m, b)",
        {
            "s": lambda n: np.array([5 * n, 4]),
            "w": lambda n: rand(4, 3),
            "b": lambda n: np.array([n, 5, 3]),
        },
        ["Reshape", "MatMul", "Reshape"],
    ),
    "a computed target": (
        "float[{n},4,2] x",
        "float[{n},8] y",
        f"{SIZE_OF_BATCH} y = Reshape(x, t)",
        {},
        None,
    ),
    "a slice with its sizes": (
        "float[{n},4,2] x",
        "float[{n},4,1] y",
        "y = Slice(x, b, e, a)",
        {
            "b": lambda n: np.array([0, 0, 1]),
            "e": lambda n: np.array([n, 4, 2]),
            "a": lambda n: np.array([0, 1, 2]),
        },
        ["Slice"],
    ),
    "equal rows": (
        "float[{n},4] x",
        "float[{n},4] y",
        "y = Add(x, k)",
        {"k": lambda n: np.tile(rand(1, 4), (n, 1))},
        ["Add"],
    ),
    "an expanded row": (
        "float[{n},4] x",
        "float[{n},4] y",
        "e = Expand(k, s) y = Add(x, e)",
        {"k": lambda n: rand(1, 4), "s": lambda n: np.array([n, 4])},
        None,
    ),
}


def build(name, n):
    given, out, body, arrays, _ = FREED[name]
    held = {key: make(n) for key, make in arrays.items()}
    return graph(f"g ({given.format(n=n)}) => ({out.format(n=n)}) {{ {body} }}", **held)


HEADS = """t = Transpose<perm = [1, 0, 2]>(x) h = Reshape(t, s) q = Transpose<perm = [1, 0, 2]>(h)
    k = Transpose<perm = [1, 2, 0]>(h) a = MatMul(q, k) b = MatMul(a, q) c = Transpose<perm = [1, 0, 2]>(b)
    m = Reshape(c, r) w = Reshape(m, u) y = Transpose<perm = [1, 0, 2]>(w)"""


def test_heads_are_folded_into_a_batch_behind_the_first_axis():
    """As torch writes attention for one sample: [T, 1, E] to [T, 1*H, D], and back by [T*1, E]."""
    sizes = {"s": np.array([5, 2, 4]), "r": np.array([5, 8]), "u": np.array([5, 1, 8])}
    text = f"g (float[1,5,8] x) => (float[1,5,8] y) {{ {HEADS} }}"
    model = graph(text, **sizes)
    assert changes(make_batch_dynamic, model) == 1
    x = rand(3, 5, 8)
    want = [outputs(graph(text, **sizes), {"x": x[i : i + 1]})["y"] for i in range(3)]
    np.testing.assert_allclose(
        outputs(model, {"x": x})["y"], np.concatenate(want), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("n", (1, 4))
@pytest.mark.parametrize("name", FREED)
def test_freed(name, n):
    """One model for any number of samples that gives what the fixed one gives; a second run changes
    nothing.
    """
    model = build(name, n)
    before, names = build(name, n), interface(model)
    assert changes(make_batch_dynamic, model) == 1
    assert interface(model) == names
    if FREED[name][4] is not None:
        assert ops(model) == FREED[name][4]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    size = next(iter(model.graph.inputs)).shape
    assert not isinstance(size[0], int)
    x = rand(n, *size[1:])
    want = outputs(before, {"x": x})["y"]
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], want, rtol=0, atol=1e-6)
    np.testing.assert_allclose(outputs(model, {"x": x[:1]})["y"], want[:1], rtol=0, atol=1e-6)
    many = np.concatenate([x, rand(3, *size[1:], seed=9)])
    np.testing.assert_allclose(outputs(model, {"x": many})["y"][:n], want, rtol=0, atol=1e-6)
    assert changes(make_batch_dynamic, model) == 0


def test_two_inputs():
    """Both are declared dynamic."""
    model = graph("g (float[2,4] x, float[2,4] z) => (float[2,4] y) { y = Add(x, z) }")
    assert changes(make_batch_dynamic, model) == 1
    feed = {"x": rand(5, 4), "z": rand(5, 4, seed=1)}
    np.testing.assert_array_equal(outputs(model, feed)["y"], feed["x"] + feed["z"])


def test_a_recurrent_layer_has_its_batch_on_axis_one():
    """What an LSTM reads time first counts its samples on axis 1; the states that are zeros go."""
    text = """g (float[5,2,4] x) => (float[5,1,2,3] y) { y = LSTM<hidden_size = 3>(x, w, r, , , h, c) }"""
    zeros = np.zeros((1, 2, 3), np.float32)
    model = graph(text, w=rand(1, 12, 4), r=rand(1, 12, 3), h=zeros, c=zeros)
    before = graph(text, w=rand(1, 12, 4), r=rand(1, 12, 3), h=zeros, c=zeros)
    assert changes(make_batch_dynamic, model) == 1
    assert [isinstance(d, int) for d in model.graph.inputs[0].shape] == [True, False, True]
    x = rand(5, 2, 4)
    want = outputs(before, {"x": x})["y"]
    np.testing.assert_allclose(
        outputs(model, {"x": x[:, :1]})["y"], want[:, :, :1], rtol=0, atol=1e-6
    )


def test_a_state_counts_its_samples_where_the_layer_does():
    """The shape of an output says so too; the file had the same number on both axes."""
    text = """g (float[1,1,4] x, float[1,1,3] h) => (float[1,1,3] y, float[1,1,3] last) {
        t = Transpose<perm = [1, 0, 2]>(x) a, last = GRU<hidden_size = 3>(t, w, r, , , h)
        s = Squeeze(a, one) y = Transpose<perm = [1, 0, 2]>(s) }"""
    model = graph(text, w=rand(1, 9, 4), r=rand(1, 9, 3), one=np.array([1]))
    assert changes(make_batch_dynamic, model) == 1
    assert [ir.get_shape(v) for v in (*model.graph.inputs, *model.graph.outputs)] == [
        (None, 1, 4),
        (1, None, 3),
        (None, 1, 3),
        (1, None, 3),
    ]


def test_a_free_batch_is_left_alone():
    """Nothing is fixed, nothing to say."""
    assert (
        reasons(make_batch_dynamic, graph("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"))
        == []
    )


def test_inputs_that_disagree_stay():
    """Sizes 2 and 3 on the first axes: none of them is the batch for certain."""
    model = graph(
        "g (float[2,4] x, float[3,4] z) => (float[2,4] y, float[3,4] v) { y = Relu(x) v = Relu(z) }"
    )
    assert reasons(make_batch_dynamic, model) == [
        "input x: made for 2 samples, unlike other inputs",
        "input z: made for 3 samples, unlike other inputs",
    ]


#: Models that mix their samples, or whose outputs do not follow them, {n} being their number.
MIXED = {
    "a sum over the batch": "g (float[{n},4] x) => (float[1,4] y) {{ y = ReduceSum(x, k) }}",
    "each sample has a row of its own": (
        "g (float[{n},4] x) => (float[{n},4] y) {{ y = Add(x, rows) }}"
    ),
    "a product across the batch": "g (float[{n},4] x) => (float[3,4] y) {{ y = MatMul(mix, x) }}",
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_samples_are_refused(name):
    """Several samples that cannot be told apart: a ModelError that says what to do; the model is
    not half changed.
    """
    text = MIXED[name].format(n=4)
    held = {"k": np.array([0]), "rows": rand(4, 4), "mix": rand(3, 4)}
    model = graph(text, **{key: array for key, array in held.items() if key in text})
    nodes = ops(model)
    with pytest.raises(
        ModelError, match="batches of 4 and its samples cannot be separated; export it"
    ):
        make_batch_dynamic(model)
    assert ops(model) == nodes


def test_one_sample_that_does_not_follow_stays():
    """A model for one sample whose output is the same for all samples together stays one for one
    sample.
    """
    model = graph("g (float[1,4] x) => (float[3,4] y) { y = MatMul(mix, x) }", mix=rand(3, 1))
    assert reasons(make_batch_dynamic, model) == [
        "the model: made for one sample; its outputs do not follow the samples"
    ]
    assert tuple(model.graph.inputs[0].shape) == (1, 4)


def test_a_sample_that_is_read_by_its_index_stays():
    """All samples would be computed from the state of the first one: the model is left for one."""
    model = graph(
        "g (float[1,4] x, float[1,4] s) => (float[1,4] y) { f = Gather<axis=0>(s, zero) y = Add(x, f) }",
        zero=np.array(0),
    )
    assert reasons(make_batch_dynamic, model) == [
        "the model: made for one sample; its outputs do not follow the samples"
    ]


def traced_with_one_sample():
    """Rows of the steps: the batch is open, and a Reshape to computed sizes takes it for 1."""
    text = """g (float[N,T,4] x) => (float[1,T,3] y) {
        z = Shape(x) s = Slice(z, one, three) f = Reshape(x, s) m = MatMul(f, w)
        y = Unsqueeze(m, zero)
    }"""
    arrays = {"one": np.array([1]), "three": np.array([3]), "zero": np.array([0])}
    return graph(text, w=rand(4, 3), **arrays)


def test_computed_sizes_may_take_the_batch_for_one():
    model = traced_with_one_sample()
    make_batch_dynamic(model)
    (spec,) = get_input_specs(model)
    assert (spec.shape[0], spec.is_single_sample) == (1, True)


def test_a_batch_that_is_open_in_name_only_runs_sample_by_sample():
    """`quantize`, its accuracy and `compare` take the samples of such a model one by one."""
    proto = ir.to_proto(traced_with_one_sample())
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    x = np.random.default_rng(0).standard_normal((12, 5, 4)).astype(np.float32)
    result = lo.quantize(proto, {"x": x}, platform="generic", eval_data={"x": x}, metric="sqnr")
    (want,) = lo.Session(proto).run(["y"], {"x": x})
    np.testing.assert_allclose(want, x @ rand(4, 3), atol=1e-5)
    (got,) = result.session().run(["y"], {"x": x})
    assert got.shape == want.shape
    assert 10 * np.log10(np.square(want).sum() / np.square(got - want).sum()) > 30
    assert lo.compare(proto, result, {"x": x}).rows


def test_a_failure_on_each_sample_stays_an_error():
    model = traced_with_one_sample()
    with pytest.raises(ModelError, match="does not run on inputs x"):
        FloatRunner(model, splits_batches=True).run({"x": rand(3, 5, 2)}).__next__()


def test_rows_that_broadcast_are_no_samples():
    """One row is taken and makes four: a wrong number of rows stays an error."""
    model = graph("g (float[T,4] x) => (float[R,4] y) { y = Add(x, p) }", p=rand(4, 4))
    with pytest.raises(ModelError, match="does not run on inputs x"):
        FloatRunner(model, splits_batches=True).run({"x": rand(3, 4)}).__next__()


def test_a_failure_does_not_change_later_runs():
    runner = FloatRunner(traced_with_one_sample(), splits_batches=True)
    for wrong in (rand(1, 5, 2), rand(3, 5, 2)):
        with pytest.raises(ModelError, match="does not run on inputs x"):
            list(runner.run({"x": wrong}))
    arrays = {name: array for name, array, _ in runner.run({"x": rand(3, 5, 4)})}
    assert arrays["y"].shape == (3, 5, 3)


def test_open_sizes_are_not_tried():
    """A size that nobody knows cannot be run."""
    model = graph("g (float[1,C] x) => (float[1,C] y) { y = Relu(x) }")
    assert reasons(make_batch_dynamic, model) == [
        "the model: made for one sample; its inputs have unknown sizes or are too large to run"
    ]


CELL = "a = Gather<axis=0>(x, zero) b = Gather<axis=0>(x, one) h = Add(a, b) y = Tanh(h)"


@pytest.mark.parametrize("size", ("1", "N"))
def test_steps_in_front_of_the_batch(size):
    """Time first: no sample is taken for a step, and the only axis of size 1, or the open one,
    counts the samples.
    """
    model = graph(
        f"g (float[2,{size},4] x) => (float[{size},4] y) {{ {CELL} }}",
        zero=np.array(0),
        one=np.array(1),
    )
    assert changes(make_batch_dynamic, model) == 1
    (spec,) = get_input_specs(model)
    assert (spec.axis, spec.shape) == (1, (2, None, 4))
    x = rand(2, 3, 4)
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], np.tanh(x[0] + x[1]), atol=1e-6)


def test_what_the_user_says_of_the_axes_is_not_tried_again():
    model = graph(
        f"g (float[2,1,4] x) => (float[1,4] y) {{ {CELL} }}", zero=np.array(0), one=np.array(1)
    )
    set_batch_axes(model, {"x": 0})
    with pytest.raises(ModelError, match="batches of 2"):
        make_batch_dynamic(model)
