"""Nodes that are made to take another's place: names, sizes, and that nothing is left of what is
given up.
"""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.ir.builder import SubgraphBuilder
from lingeronnx.runtime.runners import FloatRunner
from tests import nets

X = np.random.default_rng(0).standard_normal((3, 6, 4)).astype(np.float32)


def model():
    """A Transpose that the tests write otherwise, of a tensor whose Reshape would be called like
    one of theirs.
    """
    net = nets.Net(6, 4)
    net.node("Transpose", net.node("Relu", "x", out="y_turned"), out="y", perm=[0, 2, 1])
    return net.graph("y")


def state(graph):
    return ir.to_proto(graph).SerializeToString(deterministic=True)


def written(graph):
    """Write the Transpose as a crop, a Reshape, a Transpose and a Reshape back."""
    node = list(graph.graph)[-1]
    build = SubgraphBuilder(graph, node)
    whole = build.slice_axis(ir.require_input(node), 1, 0, 6, "all")
    assert whole is ir.require_input(node)
    halves = [build.slice_axis(whole, 1, start, start + 3, "half") for start in (0, 3)]
    joined = build("Concat", halves, ["N", 6, 4], "joined", {"axis": 1})
    value = build(
        "Transpose",
        [build.reshape(joined, [1, 6, 4], "map")],
        ["N", 1, 4, 6],
        "turned",
        {"perm": [0, 1, 3, 2]},
    )
    build.reshape(value, [4, 6], "back")
    return build


def put(graph, build):
    build.replace_node()
    ir.assign_node_names(graph)


def test_the_last_takes_over_the_names():
    """The function is the same, every name is there once, and every node knows whom it comes
    from.
    """
    graph = model()
    old, before = (
        list(graph.graph)[-1],
        {n: a for n, a, _ in FloatRunner(graph, ["y"]).run({"x": X})},
    )
    name = old.name
    build = written(graph)
    put(graph, build)
    nodes = list(graph.graph)
    assert nodes[-1].name == name
    assert nodes[-1].outputs[0].name == "y"
    assert {ir.origin_name(node) for node in build.nodes} == {name}
    names = [str(value.name) for value in ir.iter_values(graph)]
    assert len(names) == len(set(names))
    assert {"y_turned", "y_turned_2", "y_half", "y_half_2", "y_map"} <= set(names)
    for found, array, _ in FloatRunner(graph, ["y"]).run({"x": X}):
        np.testing.assert_array_equal(array, before[found])


def test_sizes_are_told():
    """Of every tensor, with the batch as it was, and onnxruntime agrees."""
    graph = model()
    build = written(graph)
    told = {
        str(node.outputs[0].name): tuple(ir.get_shape(node.outputs[0]))[1:]
        for node in build.nodes[:-1]
    }
    put(graph, build)
    for name, array, _ in FloatRunner(graph, list(told)).run({"x": X}):
        assert array.shape == (3, *told[name])


def test_what_is_given_up_leaves_nothing():
    """No node, no constant, no reader."""
    graph = model()
    before = state(graph)
    build = written(graph)
    assert state(graph) != before  # its constants
    build.discard()
    assert build.nodes == []
    assert state(graph) == before
    assert len(list(list(graph.graph)[0].outputs[0].uses())) == 1


@pytest.mark.parametrize("base, name", (("", "y_part"), ("other", "other_part")))
def test_the_names_begin_as_told(base, name):
    """After the node's output, or after what is given."""
    graph = model()
    build = SubgraphBuilder(graph, list(graph.graph)[-1], base)
    assert build.constant(np.zeros(2, np.float32), "part").name == name
    assert build.int_constant(3) is build.int_constant(3)
