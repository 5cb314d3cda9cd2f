"""Parts that keep their constants in shared memory: those that save most for their bytes, and all
regions fit.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.luna import ARCS, VENUS
from lingeronnx.luna.arguments.resident_constants import (
    PartMemoryDemand,
    select_resident_parts,
)
from lingeronnx.runtime.program_parts import split_into_parts
from lingeronnx.runtime.session import Session
from lingeronnx.targets.objective import OBJECTIVE_KEY, PARTS_KEY
from tests import nets

WORD = "params:share-mem"

regions = st.builds(
    PartMemoryDemand,
    st.integers(0, 500),
    st.integers(1, 900),
    st.sampled_from([0.0, 1.0, 50.0, 700.0]),
)


def bytes_needed(parts, own):
    """Return what the C program reserves: what the others take in turn, and a region for each of
    `own`.
    """
    turns = [64 * ((part.common_bytes + 63) // 64) for i, part in enumerate(parts) if i not in own]
    return max([0, *turns]) + sum(64 * ((parts[i].resident_bytes + 63) // 64) for i in own)


@given(st.lists(regions, max_size=6), st.integers(0, 2500))
def test_all_regions_fit_and_no_part_that_would_save_is_left_out(parts, room):
    """Law: what is kept fits and saves; nothing that saves can be added."""
    own = select_resident_parts(parts, room)
    assert own == sorted(set(own))
    assert all(parts[i].saved_cycles > 0 for i in own)
    assert not own or bytes_needed(parts, own) <= room
    for i in set(range(len(parts))) - set(own):
        assert parts[i].saved_cycles == 0 or bytes_needed(parts, [*own, i]) > room


def test_what_saves_more_for_its_bytes_goes_first():
    parts = [
        PartMemoryDemand(10, 640, 1000.0),
        PartMemoryDemand(10, 128, 900.0),
        PartMemoryDemand(10, 128, 100.0),
    ]
    assert select_resident_parts(parts, 64 + 256) == [1, 2]
    assert select_resident_parts(parts, 64 + 640) == [1, 2]
    assert select_resident_parts(parts, 64 + 128 + 640) == [0, 1]


def two():
    """Two wide layers of one row, and an Erf between them, which no chip has."""
    net = nets.Net(64, seed=5, batch=1)
    erf = net.node("Erf", net.linear("x", (64, 256)))
    return net.graph(net.linear(erf, (256, 128), out="y"))


def three():
    """Three of them."""
    net = nets.Net(64, seed=6, batch=1)
    x = net.node("Erf", net.linear("x", (64, 256)))
    x = net.node("Erf", net.linear(x, (256, 64)))
    return net.graph(net.linear(x, (64, 128), out="y"))


def cut(objective=None, target=ARCS, build=two):
    """Return the parts of a net for a chip, quantized, and the words and bytes of each."""
    model = build()
    result = quantize(model, nets.samples(model, 4), platform=target.name, effort="fast")
    if objective is not None:
        result.graph.metadata_props[OBJECTIVE_KEY] = objective
    parts = split_into_parts(target.with_safe_names(result.graph), target)
    choices = [target.evaluate_packing(part.graph) for part in parts.chip]
    assert len(choices) == 2 + (build is three)
    assert all(choice.verdict.is_chip_ready for choice in choices)
    return result, parts, choices


def test_both_keep_their_constants_where_they_fit():
    """Waiting for constants goes, and the whole still computes the same."""
    result, parts, choices = cut()
    assert all(WORD in choice.command_line for choice in choices)
    assert sum(choice.verdict.cost.shared for choice in choices) <= ARCS.shared_memory
    assert all(choice.verdict.latency.waits == 0 for choice in choices)
    feed = {"x": nets.samples(two(), 4)["x"][:1]}
    have = dict(feed)
    for part in parts.parts:
        session = Session(part.graph, platform="arcs") if part.chip else Session(part.graph)
        have.update(
            zip(
                part.outputs,
                session.run(None, {name: have[name] for name in part.inputs}),
                strict=True,
            )
        )
    np.testing.assert_array_equal(have["y"], result.session().run(None, feed)[0])


def test_one_alone_where_both_do_not_fit():
    """In a byte less than three need, the two that save most for their bytes; the third takes what
    is left in turn.
    """
    _, _, choices = cut(build=three)
    needs = [choice.verdict.cost.shared for choice in choices]
    room = bytes_needed([PartMemoryDemand(need, need) for need in needs], range(3)) - 1
    _, parts, choices = cut(target=dataclasses.replace(ARCS, shared_memory=room), build=three)
    own = [i for i, choice in enumerate(choices) if WORD in choice.command_line]
    assert 0 < len(own) < 3
    needs = [choice.verdict.cost.shared for choice in choices]
    assert bytes_needed([PartMemoryDemand(need, need) for need in needs], own) <= room
    assert [part.graph.metadata_props[PARTS_KEY] == "several" for part in parts.chip] == [
        i not in own for i in range(3)
    ]


@pytest.mark.parametrize(("objective", "target"), [("memory", ARCS), (None, VENUS)])
def test_none_for_memory_and_none_at_another_chips_prices(objective, target):
    _, parts, choices = cut(objective, target)
    assert not any(WORD in choice.command_line for choice in choices)
    assert {part.graph.metadata_props[PARTS_KEY] for part in parts.chip} == {"several"}
