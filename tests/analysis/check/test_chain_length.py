"""The work of `check` grows in proportion to the length of a chain of nodes."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

import lingeronnx as lo
from lingeronnx.ir import graph_names, ir
from lingeronnx.ir.graph_queries import iter_values
from lingeronnx.luna import VENUS
from lingeronnx.luna.packer.frontend.transforms import apply_packer_transforms
from lingeronnx.luna.packer.memory.plan import _BlockPool
from lingeronnx.luna.packer.options import PackerOptions
from lingeronnx.luna.packer.packer_graph import PackerGraph, PackerStep, PackerTensor
from lingeronnx.quantization.normalize.activations.attention_mask import (
    canonicalize_attention_masks,
)
from lingeronnx.quantization.normalize.axes.split_to_slices import convert_split_to_slices
from lingeronnx.quantization.normalize.layers.linear import fuse_linear
from tests.call_counts import count_calls

SHAPE = (1, 4, 8, 8)
MAX_RATIO = 2.3  # of the calls for the second half of a chain that is twice as long


def make_chain(op_types, length):
    """Make a chain of `length` nodes with `op_types` in turn; an Add also reads the input, a Mul a
    constant per channel, and a MatMul a weight. Each Conv has its own weight, those of "shared
    Conv" have one.
    """
    nodes, initializers, source = [], [], "x"
    rng = np.random.default_rng(0)
    for index in range(length):
        op_type = op_types[index % len(op_types)]
        inputs = [source]
        if op_type == "Add":
            inputs.append("x")
        if op_type == "Mul":
            factors = 1 + 0.1 * rng.random((1, 4, 1, 1))
            initializers.append(numpy_helper.from_array(factors.astype(np.float32), f"w{index}"))
            inputs.append(f"w{index}")
        if op_type == "MatMul":
            weight = 0.3 * rng.standard_normal((8, 8))
            initializers.append(numpy_helper.from_array(weight.astype(np.float32), f"w{index}"))
            inputs.append(f"w{index}")
        if op_type.endswith("Conv"):
            name = "w0" if op_type == "shared Conv" else f"w{index}"
            weight = 0.5 * rng.standard_normal((4, 4, 1, 1))
            if not initializers or name != "w0":
                initializers.append(numpy_helper.from_array(weight.astype(np.float32), name))
            inputs.append(name)
        source = "y" if index == length - 1 else f"t{index}"
        nodes.append(helper.make_node(op_type.split()[-1], inputs, [source], name=f"n{index}"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy")
    graph = helper.make_graph(nodes, "chain", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


@pytest.mark.parametrize(
    "op_types, length",
    (
        (["Neg"], 100),
        (["Relu"], 100),
        (["Sigmoid"], 100),
        (["Neg", "Relu", "Sigmoid", "Tanh", "Abs"], 100),
        (["Conv"], 25),
        (["shared Conv"], 25),
        (["Add"], 50),
        (["Mul"], 50),
    ),
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_calls_grow_linearly(op_types, length):
    """Twice the nodes need twice the calls. Fixed costs are subtracted."""
    counts = []
    for factor in (1, 1, 2, 4):  # the first run fills caches
        model = make_chain(op_types, factor * length)
        counts.append(count_calls(lambda model=model: lo.check(model, platform="venus")))
    first, second = counts[2] - counts[1], counts[3] - counts[2]
    assert second <= MAX_RATIO * first


def test_names_are_not_listed_once_for_each_node_with_a_shared_weight(monkeypatch):
    """The nodes get biases and copies of the weight, whose names are reserved in one list."""
    listed = []

    def count_lists(model):
        listed.append(model)
        return iter_values(model)

    monkeypatch.setattr(graph_names, "iter_values", count_lists)
    counts = []
    for length in (10, 20, 40):  # the first run fills caches
        listed.clear()
        lo.check(make_chain(["shared Conv"], length), platform="venus")
        counts.append(len(listed))
    assert counts[2] == counts[1]


def test_linear_layers_are_fused_in_linear_time():
    """A pass that takes few calls per node is measured alone: `check` would hide its growth."""
    counts = []
    for length in (1, 20, 40, 80):  # the first run fills caches
        model = ir.from_proto(make_chain(["MatMul"], length))
        counts.append(count_calls(lambda model=model: fuse_linear(model)))
        assert [node.op_type for node in model.graph] == ["Linear"] * length
    assert counts[3] - counts[2] <= MAX_RATIO * (counts[2] - counts[1])


def make_model(nodes, initializers):
    """Make a float model of `nodes` from x to the last output, both [1, 16]."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16])
        for name in ("x", nodes[-1].output[0])
    )
    tensors = [numpy_helper.from_array(array, name) for name, array in initializers.items()]
    graph = helper.make_graph(nodes, "chain", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return ir.from_proto(shape_inference.infer_shapes(model))


def make_where_chain(length):
    """Make a chain of Where nodes that replace the first half by zeros."""
    nodes = [
        helper.make_node("Where", ["shown", f"t{i}", "zeros"], [f"t{i + 1}"], name=f"n{i}")
        for i in range(length)
    ]
    nodes[0].input[1] = "x"
    return make_model(nodes, {"shown": np.arange(16) > 7, "zeros": np.zeros(16, np.float32)})


def make_split_chain(length):
    """Make a chain of Split nodes whose halves are joined in the other order."""
    nodes = []
    for i in range(length):
        halves = [f"a{i}", f"b{i}"]
        nodes.append(helper.make_node("Split", [f"t{i}", "sizes"], halves, name=f"n{i}", axis=1))
        nodes.append(helper.make_node("Concat", halves[::-1], [f"t{i + 1}"], name=f"m{i}", axis=1))
    nodes[0].input[0] = "x"
    return make_model(nodes, {"sizes": np.array([8, 8])})


@pytest.mark.parametrize(
    "rewrite, make, op_type",
    (
        (canonicalize_attention_masks, make_where_chain, "Mul"),
        (convert_split_to_slices, make_split_chain, "Slice"),
    ),
    ids=("Where", "Split"),
)
def test_new_constants_are_named_in_linear_time(rewrite, make, op_type):
    """A pass that adds a constant per node reads the names of all tensors once."""
    counts = []
    for length in (1, 20, 40, 80):  # the first run fills caches
        model = make(length)
        counts.append(count_calls(lambda model=model: rewrite(model)))
        rewritten = [node for node in model.graph if node.op_type == op_type]
        assert len(rewritten) == length * (2 if op_type == "Slice" else 1)
    assert counts[3] - counts[2] <= MAX_RATIO * (counts[2] - counts[1])


def test_repeated_reshapes_are_removed_in_linear_time():
    """The packer's transform removes all reshapes but the last of a chain at once."""
    counts = []
    for length in (1, 20, 40, 80):  # the first run fills caches
        names = [f"t{i}" for i in range(length + 1)]
        tensors = {name: PackerTensor(name, (1, 16)) for name in names}
        steps = [
            PackerStep("Reshape", f"n{i}", (names[i],), (names[i + 1],), {"shape": [1, 16]})
            for i in range(length)
        ]
        net = PackerGraph(steps, names[:1], names[-1:], tensors, {})
        results = []
        counts.append(
            count_calls(
                lambda net=net, results=results: results.append(
                    apply_packer_transforms(net, VENUS, PackerOptions())
                )
            )
        )
        (step,) = results[0].steps
        assert (step.name, step.inputs, step.outputs) == (f"n{length - 1}", ("t0",), (names[-1],))
    assert counts[3] - counts[2] <= MAX_RATIO * (counts[2] - counts[1])


def test_blocks_of_a_long_chain_take_turns():
    """The activations of a chain take turns in two blocks, and no more are made."""
    pool, length = _BlockPool(), 2000
    blocks = [pool.allocate(16, step, step + 1) for step in range(length)]
    assert blocks == [step % 2 for step in range(length)]
    assert pool.sizes == [16, 16]


@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_those_of_a_search_over_all_lifetimes(seed):
    """The smallest free block is reserved, as a search over all lifetimes finds it."""
    rng = np.random.default_rng(seed)
    pool, blocks = _BlockPool(), []  # (size, lifetimes)
    for _ in range(200):
        size, first, length = (int(n) for n in rng.integers((16, 0, 0), (40, 60, 8)))
        last = first + length
        free = [
            (block_size, index)
            for index, (block_size, lifetimes) in enumerate(blocks)
            if block_size >= size and all(last < a or b < first for a, b in lifetimes)
        ]
        if not free:
            blocks.append((size, []))
            free = [(size, len(blocks) - 1)]
        index = min(free)[1]
        blocks[index][1].append((first, last))
        assert pool.allocate(size, first, last) == index
