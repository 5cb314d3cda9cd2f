"""Float nodes between integers: the same numbers, to the last bit, in any batch."""

import numpy as np
import onnx
import pytest
from onnx import helper

from lingeronnx.ir import float_ops, ir
from lingeronnx.runtime.runners.batching import (
    Batching,
    align_array,
    choose_batching,
    flatten_padded,
    pad_to_vector,
    repeat_samples,
    repeats_to_fill_vectors,
    split_aligned,
)
from lingeronnx.runtime.runners.float_fallbacks import FloatFallback
from simulator.kernel import TensorSpec

COUNT = 17
SHAPES = [
    (1,),
    (7,),
    (10,),
    (16,),
    (61,),
    (3, 5),
    (7, 33),
    (5, 16),
    (3, 3, 5),
    (4, 8, 8),
    (2, 9, 33),
]
POSITIVE = ("Log", "Sqrt", "Acosh")
WITHIN = ("Asin", "Acos", "Atanh")


def _nodes(kind, rank):
    """Return the nodes of a kind of island, x to y, and its constants; None where it is of no such
    rank.
    """
    many = np.linspace(0.5, 1.5, 8, dtype=np.float32)
    if kind in float_ops.REDUCTION_KINDS or kind == "GlobalAveragePool":
        if kind == "GlobalAveragePool":
            return ([helper.make_node(kind, ["x"], ["y"])], {}) if rank > 1 else None
        return [helper.make_node(kind, ["x", "axes"], ["y"])], {"axes": np.array([-1])}
    if kind == "InstanceNormalization":
        return (
            ([helper.make_node(kind, ["x", "g", "b"], ["y"])], {"g": many, "b": many})
            if rank > 1
            else None
        )
    if kind == "a norm and a function":
        nodes = [
            helper.make_node("InstanceNormalization", ["x", "g", "b"], ["a"]),
            helper.make_node("Elu", ["a"], ["y"]),
        ]
        return (nodes, {"g": many, "b": many}) if rank > 1 else None
    if kind == "MatMul":
        return [helper.make_node(kind, ["x", "w"], ["y"])], {"w": None}
    if kind == "two functions":
        return [
            helper.make_node("Softplus", ["x"], ["a"]),
            helper.make_node("Sin", ["a"], ["y"]),
        ], {}
    if kind == "a function of each channel":
        nodes = [
            helper.make_node("Mul", ["x", "many"], ["a"]),
            helper.make_node("Softplus", ["a"], ["y"]),
        ]
        return nodes, {"many": None}
    if kind == "a function of a part":
        nodes = [
            helper.make_node("Softplus", ["x"], ["a"]),
            helper.make_node("Slice", ["a", "s", "e", "t"], ["b"]),
            helper.make_node("Elu", ["b"], ["y"]),
        ]
        return nodes, {"s": np.array([0]), "e": np.array([5]), "t": np.array([rank])}
    axis = (
        {"axis": -1} if kind in float_ops.SOFTMAX_FAMILY_OPS or kind in ("LpNormalization",) else {}
    )
    axis = {"axes": [-1]} if kind == "MeanVarianceNormalization" else axis
    return [helper.make_node(kind, ["x"], ["y"], **axis)], {}


def _fallback(kind, shape):
    """Return an island on samples of a shape, as the simulator makes it; None where there is
    none.
    """
    made = _nodes(kind, len(shape))
    if made is None:
        return None
    rng = np.random.default_rng(1)
    nodes, constants = made
    for name, array in constants.items():
        if array is None:
            array = rng.uniform(0.5, 1.5, (shape[-1], 9) if name == "w" else shape[-1:]).astype(
                np.float32
            )
        constants[name] = array[: shape[0]] if name in ("g", "b") else array
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", *shape])],
        [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    )
    fallback = FloatFallback(model, list(model.graph), ())
    fallback.infer(TensorSpec((1, *shape), np.float32))
    return fallback


def _data(kind, shape):
    """Return samples on which onnxruntime's ways of computing differ by one unit in the last
    place.
    """
    x = np.random.default_rng(0).standard_normal((COUNT, *shape)).astype(np.float32) * 3
    if kind in POSITIVE:
        return np.abs(x) + (1 if kind == "Acosh" else 0.01)
    return x / 20 if kind in WITHIN else x


KINDS = [
    *(
        kind for kind in sorted(float_ops.UNARY_ELEMENTWISE_OPS) if kind != "Swish"
    ),  # which opset 20 has not
    *sorted(float_ops.SOFTMAX_FAMILY_OPS),
    *sorted(float_ops.REDUCTION_KINDS),
    "InstanceNormalization",
    "LpNormalization",
    "MeanVarianceNormalization",
    "a norm and a function",
    "GlobalAveragePool",
    "MatMul",
    "two functions",
    "a function of each channel",
    "a function of a part",
]


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_any_batch_gives_the_same_numbers(kind):
    """Law: any split of a batch gives the same floats, bit by bit, wherever they stand in
    memory.
    """
    for shape in SHAPES:
        fallback, x = _fallback(kind, shape), _data(kind, shape)
        if fallback is None:
            continue
        (want,) = fallback(x)
        for size in (1, 2, 3, 4, 7, 16):
            parts = [fallback(x[i : i + size])[0] for i in range(0, COUNT, size)]
            assert np.concatenate(parts).tobytes() == want.tobytes(), (shape, size)
        moved = np.empty(x.size + 3, np.float32)[3:].reshape(x.shape)
        moved[...] = x
        assert fallback(moved)[0].tobytes() == want.tobytes(), shape


@pytest.mark.parametrize(
    ("kind", "shape", "how"),
    (
        ("Relu", (7,), Batching.ANY_BATCH),
        ("Softmax", (7,), Batching.ANY_BATCH),
        ("Softplus", (4, 8), Batching.ANY_BATCH),
        ("Softplus", (7,), Batching.FLATTENED),
        ("a function of each channel", (7,), Batching.PADDED),
        ("a function of each channel", (700, 7), Batching.PARALLEL),
        ("a function of a part", (16,), Batching.PADDED),
        ("InstanceNormalization", (4, 16), Batching.ANY_BATCH),
        ("InstanceNormalization", (4, 15), Batching.REPEATED),
        ("InstanceNormalization", (8, 7, 7), Batching.REPEATED),
        ("InstanceNormalization", (3, 5, 5), Batching.PARALLEL),
        ("a norm and a function", (4, 15), Batching.PARALLEL),
        ("ReduceMean", (4, 16), Batching.PARALLEL),
        ("ReduceMean", (4, 16384), Batching.SINGLE),
        ("MatMul", (4, 16), Batching.PARALLEL),
    ),
)
def test_how_samples_are_run(kind, shape, how):
    fallback = _fallback(kind, shape)
    assert (
        choose_batching(
            fallback._nodes,
            fallback.proto.graph.initializer,
            [TensorSpec((1, *shape), np.float32)] * 2,
        )
        is how
    )


@pytest.mark.parametrize(
    "kind", ["InstanceNormalization", "LpNormalization", "MeanVarianceNormalization"]
)
def test_repeated_samples_have_the_bits_of_a_sample_alone(kind):
    """Law: what follows a sample until whole vectors are full changes no bit of it."""
    tried = 0
    for shape in [*SHAPES, (4, 5, 5), (8, 7, 7), (2, 3, 3), (6, 6)]:
        fallback, x = _fallback(kind, shape), _data(kind, shape)
        if fallback is None or fallback._batching is not Batching.REPEATED:
            continue
        tried += 1
        alone = [fallback.run_batch(split_aligned(x[i : i + 1]))[0] for i in range(COUNT)]
        assert fallback(x)[0].tobytes() == np.concatenate(alone).tobytes(), shape
    assert tried > 3


def test_what_mixes_samples_is_not_repeated():
    """A norm over the batch gives each sample alone what it gives it anywhere."""
    nodes = [helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[0, 1])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 12])],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    fallback = FloatFallback(model, list(model.graph), ())
    fallback.infer(TensorSpec((1, 12), np.float32))
    x = _data("Relu", (12,))
    want = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    for rows in (slice(None), slice(3, 4), slice(5, 7)):
        np.testing.assert_allclose(fallback(x[rows])[0], want[rows], rtol=1e-4, atol=1e-5)


def test_samples_apart_begin_on_lines():
    x = np.arange(21, dtype=np.int16).reshape(3, 7)
    rows = split_aligned(x)
    assert np.concatenate(rows).tolist() == x.tolist()
    assert all(row.ctypes.data % 64 == 0 and row.flags.c_contiguous for row in rows)
    assert align_array(x[:, 1:]).ctypes.data % 64 == 0
    assert align_array(x[:, 1:]).tolist() == x[:, 1:].tolist()


def test_samples_that_are_repeated_begin_on_a_line():
    x = np.arange(40, dtype=np.float32).reshape(2, 4, 5)
    rows = repeat_samples(x, 4)
    assert rows.shape == (8, 4, 5)
    assert rows.ctypes.data % 64 == 0
    assert rows[::4].tolist() == rows[3::4].tolist() == x.tolist()
    assert (
        repeats_to_fill_vectors(
            [
                TensorSpec((1, 4, 5), np.float32),
                TensorSpec((1, 2), np.float32),
                TensorSpec((1,), np.float32),
            ]
        )
        == 16
    )
    assert (
        repeats_to_fill_vectors(
            [TensorSpec((1, 4, 5), np.float32), TensorSpec((1, 16), np.float32)]
        )
        == 4
    )


def test_what_is_filled_repeats_the_last():
    assert pad_to_vector(np.arange(3)).tolist() == [0, 1, *[2] * 14]
    assert pad_to_vector(np.arange(16)).tolist() == list(range(16))
    assert flatten_padded(np.zeros((3, 6))).shape == (32,)
