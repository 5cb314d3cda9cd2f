"""What decides between forms: read back from a graph's metadata, as protobuf and as our graph."""

import pytest

from lingeronnx.ir import ir
from lingeronnx.targets.objective import (
    ACCURACY,
    MEMORY,
    OBJECTIVE_KEY,
    OBJECTIVES,
    PARTS_KEY,
    PARTS_RESIDENT,
    can_keep_constants_resident,
    get_objective,
)
from tests import nets


def graph(**props):
    net = nets.Net(3, 6, 6, seed=3)
    model = net.graph(net.conv("x", (4, 3, 3, 3), out="y"))
    model.metadata_props.update(props)
    return model


@pytest.mark.parametrize("word", OBJECTIVES)
def test_what_a_graph_says(word):
    model = graph(**{OBJECTIVE_KEY: word})
    assert get_objective(model) == get_objective(ir.to_proto(model)) == word
    assert can_keep_constants_resident(model) is (word != MEMORY)


@pytest.mark.parametrize("props", [{}, {OBJECTIVE_KEY: "speed"}])
def test_what_is_absent_or_unknown_is_accuracy(props):
    assert get_objective(graph(**props)) == ACCURACY


def test_one_of_several_parts_keeps_none():
    assert not can_keep_constants_resident(graph(**{PARTS_KEY: "2"}))
    assert not can_keep_constants_resident(ir.to_proto(graph(**{PARTS_KEY: "2"})))


def test_one_with_a_region_of_its_own_keeps_them_unless_memory_is_the_objective():
    assert can_keep_constants_resident(graph(**{PARTS_KEY: PARTS_RESIDENT}))
    assert not can_keep_constants_resident(
        graph(**{PARTS_KEY: PARTS_RESIDENT, OBJECTIVE_KEY: MEMORY})
    )
