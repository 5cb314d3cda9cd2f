"""What decides between forms: read back from a graph's metadata, as protobuf and as our graph."""

import pytest

from lingeronnx.graph import ir
from lingeronnx.targets.objective import (
    ACCURACY,
    MEMORY,
    OBJECTIVE,
    OBJECTIVES,
    PARTS,
    PARTS_KEPT,
    keeps_constants,
    objective_of,
)  # fmt: skip
from tests import nets


def graph(**props):
    net = nets.Net(3, 6, 6, seed=3)
    model = net.graph(net.conv("x", (4, 3, 3, 3), out="y"))
    model.metadata_props.update(props)
    return model


@pytest.mark.parametrize("word", OBJECTIVES)
def test_what_a_graph_says(word):
    model = graph(**{OBJECTIVE: word})
    assert objective_of(model) == objective_of(ir.to_proto(model)) == word
    assert keeps_constants(model) is (word != MEMORY)


@pytest.mark.parametrize("props", [{}, {OBJECTIVE: "speed"}])
def test_what_is_absent_or_unknown_is_accuracy(props):
    assert objective_of(graph(**props)) == ACCURACY


def test_one_of_several_parts_keeps_none():
    assert not keeps_constants(graph(**{PARTS: "2"}))
    assert not keeps_constants(ir.to_proto(graph(**{PARTS: "2"})))


def test_one_with_a_region_of_its_own_keeps_them_unless_memory_is_the_objective():
    assert keeps_constants(graph(**{PARTS: PARTS_KEPT}))
    assert not keeps_constants(graph(**{PARTS: PARTS_KEPT, OBJECTIVE: MEMORY}))
