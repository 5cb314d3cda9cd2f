"""Damaged models: whatever is done to a file, quantize returns or says in one line what is
wrong.
"""

import copy
import re
import time

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import LingerOnnxError
from tests.onnx_files.helpers import proto, rand
from tests.passes.helpers import positive

pytestmark = pytest.mark.sweep

SECONDS = 20  # one mutation may take: more is a hang
ROUNDS = 40  # mutations of each model and kind

SEEDS = {
    "convolutions": lambda: proto(
        """g (float[N,3,8,8] x) => (float[N,5] y) { p = Pad(x, pads) c = Conv<strides = [2, 2]>(p, w)
        n = BatchNormalization(c, g, b, m, v) r = Clip(n, zero, six) d = Conv<pads = [1, 1, 1, 1]>(r, w2)
        a = Add(d, r)
        q = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a) f = Flatten(q) y = Gemm<transB = 1>(f, w3, b3) }""",
        pads=np.array([0, 0, 0, 0, 0, 0, 1, 1]),
        w=rand(4, 3, 3, 3),
        g=rand(4),
        b=rand(4),
        m=rand(4),
        v=positive(4),
        zero=np.float32(0),
        six=np.float32(6),
        w2=rand(4, 4, 3, 3),
        w3=rand(5, 16),
        b3=rand(5),
    ),
    "fixed batch": lambda: proto(
        """g (float[1,8,8,3] x) => (float[1,4] y) { t = Transpose<perm = [0, 3, 1, 2]>(x) c = Conv(t, w)
        u = Transpose<perm = [0, 2, 3, 1]>(c) k = Mul(u, s) r = Max(k, zero) m = ReduceMean<axes = [1, 2]>(r)
        h = Shape(m) z = Constant<value_int: int = 0>() n = Gather(h, z) ax = Constant<value_ints = [0]>()
        un = Unsqueeze(n, ax) rest = Constant<value_ints = [-1]>() tt = Concat<axis = 0>(un, rest)
        f = Reshape(m, tt) y = MatMul(f, w2) }""",
        w=rand(6, 3, 3, 3),
        s=rand(6),
        zero=np.float32(0),
        w2=rand(6, 4),
    ),
    "control flow": lambda: proto(
        """g (float[N,4] x) => (float[N,4] y, float[N,2] z) {
        c = Constant<value = bool {1}>() i = If(c) <then_branch = a () => (float[N,4] t) { t = Relu(x) },
            else_branch = b () => (float[N,4] e) { e = Neg(x) }>
        l = MatMul(i, w) y = Softmax(l) s1, s2 = Split<axis = 1>(l) z = Mul(s1, s2) }""",
        w=rand(4, 4),
    ),
}


def any_node(model, rng):
    return model.graph.node[int(rng.integers(len(model.graph.node)))]


def drop_node(model, rng):
    del model.graph.node[int(rng.integers(len(model.graph.node)))]


def rename(model, rng):
    node = any_node(model, rng)
    names = [n for node in model.graph.node for n in (*node.input, *node.output)] + [
        "",
        "nowhere",
        "x",
    ]
    side = node.input if len(node.input) and rng.integers(2) else node.output
    side[int(rng.integers(len(side)))] = names[int(rng.integers(len(names)))]


def input_count(model, rng):
    node = any_node(model, rng)
    if rng.integers(2) or not node.input:
        node.input.append("x")
    else:
        node.input.pop()


def operator(model, rng):
    kinds = (
        "Relu",
        "Conv",
        "Nothing",
        "Reshape",
        "Transpose",
        "Concat",
        "LSTM",
        "Gather",
        "Softmax",
        "If",
        "Loop",
        "QuantizeLinear",
        "MaxPool",
        "Clip",
        "Pad",
        "Split",
        "Cast",
        "Resize",
    )
    node = any_node(model, rng)
    node.op_type = kinds[int(rng.integers(len(kinds)))]
    if not rng.integers(4):
        node.domain = ("ai.onnx.ml", "com.microsoft", "thinker", "nobody")[int(rng.integers(4))]


def attribute(model, rng):
    number = int(rng.choice([-(2**63), -100, -1, 0, 1, 2, 3, 7, 100, 2**31, 2**40, 2**63 - 1]))
    values = (
        number,
        [number],
        [number] * 2,
        [1, number],
        [number] * 4,
        0.5,
        float("nan"),
        "SAME_UPPER",
        "x",
        [0.5],
        onnx.numpy_helper.from_array(rand(2)),
    )
    names = (
        "pads",
        "strides",
        "kernel_shape",
        "dilations",
        "group",
        "axis",
        "axes",
        "perm",
        "auto_pad",
        "epsilon",
        "transB",
        "keepdims",
        "value",
        "value_int",
        "to",
        "mode",
        "alpha",
        "ceil_mode",
    )
    node = any_node(model, rng)
    own = [a.name for a in node.attribute]
    name = (
        own[int(rng.integers(len(own)))]
        if own and rng.integers(2)
        else names[int(rng.integers(len(names)))]
    )
    for old in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(old)
    node.attribute.append(onnx.helper.make_attribute(name, values[int(rng.integers(len(values)))]))


def dims(model, rng):
    huge = int(rng.choice([0, 1, 2, 5, 2**14, 2**40, 2**62, -1, -5]))
    if rng.integers(2) and model.graph.initializer:
        tensor = model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]
        if tensor.dims and rng.integers(2):
            tensor.dims[int(rng.integers(len(tensor.dims)))] = huge
        elif tensor.data_type == onnx.TensorProto.INT64:
            array = onnx.numpy_helper.to_array(tensor).copy().reshape(-1)
            array[int(rng.integers(array.size))] = huge
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        else:
            tensor.data_type = int(rng.integers(0, 30))
    else:
        value = (*model.graph.input, *model.graph.output)[int(rng.integers(len(model.graph.input)))]
        shape = value.type.tensor_type.shape
        if rng.integers(2) and shape.dim:
            shape.dim[int(rng.integers(len(shape.dim)))].dim_value = huge
        else:
            value.type.tensor_type.elem_type = int(rng.integers(0, 30))


def weights(model, rng):
    tensor = model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]
    array = onnx.numpy_helper.to_array(tensor).copy()
    if array.dtype.kind == "f":
        array.reshape(-1)[: max(1, array.size // 2)] = rng.choice(
            [np.nan, np.inf, -np.inf, 0, 1e38, -1e-40, 1e9]
        )
    kind = rng.choice([np.float64, np.float16, array.dtype, np.int8])
    with np.errstate(all="ignore"):
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(kind), tensor.name))


def opset(model, rng):
    model.opset_import[0].version = int(
        rng.choice([-1, 0, 1, 6, 7, 8, 9, 10, 11, 12, 15, 18, 21, 99])
    )


MUTATIONS = (drop_node, rename, input_count, operator, attribute, dims, weights, opset)


def attempt(path, platform):
    """Quantize; any error but the user's kind fails the test, and so does taking long."""
    start = time.monotonic()
    try:
        lo.quantize(path, platform=platform, effort="fast")
        reason = None
    except LingerOnnxError as error:
        reason = str(error)
    assert reason is None or re.fullmatch(r".*\w \w.*", reason)  # one line, of words
    assert time.monotonic() - start < SECONDS
    return "quantized" if reason is None else "refused"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and infinity in weights
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_mutations(seed, mutate, tmp_path):
    """One change to the protobuf, or two of them."""
    original = SEEDS[seed]()
    outcomes = set()
    for number in range(ROUNDS):
        rng = np.random.default_rng([number, len(seed), MUTATIONS.index(mutate)])
        model = copy.deepcopy(original)
        try:
            mutate(model, rng)
            if number % 3 == 0:
                MUTATIONS[int(rng.integers(len(MUTATIONS)))](model, rng)
            data = model.SerializeToString()
        except (ValueError, TypeError, IndexError):
            continue  # not a thing a file can say
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(data)
        try:
            outcomes.add(attempt(path, ("generic", "venus")[number % 2]))
        except BaseException:
            print(f"mutation {number} of {seed} by {mutate.__name__}")
            raise
        path.unlink()
    assert "refused" in outcomes


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_bytes(seed, tmp_path):
    """Truncated and overwritten files."""
    data = SEEDS[seed]().SerializeToString()
    assert attempt(_write(tmp_path, data), "generic") == "quantized"
    for number in range(ROUNDS):
        rng = np.random.default_rng([number, len(seed)])
        damaged = bytearray(data)
        if number % 2:
            damaged = damaged[: int(rng.integers(len(damaged)))]
        else:
            for _ in range(int(rng.integers(1, 4))):
                damaged[int(rng.integers(len(damaged)))] = int(rng.integers(256))
        try:
            attempt(_write(tmp_path, bytes(damaged)), "generic")
        except BaseException:
            print(f"damage {number} of {seed}")
            raise


def _write(folder, data):
    path = folder / "damaged.onnx"
    path.write_bytes(data)
    return path
