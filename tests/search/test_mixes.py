"""Mixes of widths within limits: what is chosen, how the limit is found."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx import api
from lingeronnx.ir import ir
from lingeronnx.search.ladder import NarrowLayer
from lingeronnx.search.mixes import MAX_MIXES, choose_layers_to_widen, search_mixes
from tests import nets
from tests.case_selection import limit_examples

GAINS = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50)), min_size=1, max_size=7)


def layers_of(pairs):
    return [
        NarrowLayer(f"l{number}", gain, float(size)) for number, (gain, size) in enumerate(pairs)
    ]


@given(GAINS, st.floats(0, 200))
@limit_examples(60)
def test_the_choice_fits_and_has_half_of_what_is_possible(pairs, room):
    """Oracle: all subsets (at most 128)."""
    layers = layers_of(pairs)
    chosen = choose_layers_to_widen(layers, room)
    assert sum(layer.extra_bytes for layer in chosen) <= room
    assert len({layer.selector for layer in chosen}) == len(chosen)
    subsets = itertools.chain.from_iterable(
        itertools.combinations(layers, n) for n in range(len(layers) + 1)
    )
    best = max(
        sum(each.gain for each in some)
        for some in subsets
        if sum(each.extra_bytes for each in some) <= room
    )
    assert sum(layer.gain for layer in chosen) >= best / 2 * (1 - 1e-9)


@given(
    GAINS,
    st.integers(1, 500),
    st.integers(0, 300),
    st.lists(st.integers(0, 6), min_size=7, max_size=7),
)
@limit_examples(60)
def test_what_is_tried_closes_in_on_the_limit(pairs, limit, fixed, extra):
    """Law: whether a mix keeps the limit is told right, and no layer more would fit beside the best
    where costs add.
    """
    layers, tries = layers_of(pairs), {}

    def cost(names):
        return fixed + sum(
            layer.extra_bytes + more
            for layer, more in zip(layers, extra, strict=False)
            if layer.selector in names
        )

    def tried(mix):
        names = frozenset(layer.selector for layer in mix)
        tries[names] = cost(names)
        return [cost(names) / limit]

    assert search_mixes(layers, tried) == (fixed <= limit)
    assert len(tries) <= MAX_MIXES + 2
    kept = [names for names, spent in tries.items() if spent <= limit]
    assert bool(kept) == (fixed <= limit)
    if kept and not any(extra):
        left = limit - max(tries[names] for names in kept)
        rest = [
            layer.extra_bytes
            for layer in layers
            if not any(layer.selector in names for names in kept)
        ]
        assert all(size > left for size in rest)


def test_what_nobody_knows_is_gone_half_way():
    layers = layers_of([(1.0, 10), (0.5, 10)])
    sizes = []
    assert search_mixes(
        layers, lambda mix: sizes.append(len(mix)) or [0.5 if len(mix) < 2 else float("inf")]
    )
    assert sizes == [0, 2, 1]


def bits_of(graph):
    """Return the width of weights by node, of those that say it."""
    return {
        str(n.name): ir.get_attr(n, "parameter_bits")
        for n in graph.graph
        if "parameter_bits" in n.attributes
    }


@pytest.mark.parametrize("platform", ("arcs", pytest.param("generic", marks=pytest.mark.slow)))
def test_flash_is_filled(platform):
    """Within a limit between the two ends some layers have 8 bits; the flash is the packer's, and
    below the limit.
    """
    net, calib = nets.shortcut(), nets.samples(nets.shortcut(), 12)
    options = {"platform": platform, "effort": "fast", "weight_bits": "auto"}
    search_report = api.quantize(net, calib, **options, max_flash=1 << 20).report.search
    assert (search_report["met"], set(search_report["weight_bits"].values())) == (True, {8})
    narrow, wide = (trial["flash"] for trial in search_report["trials"])
    assert narrow < wide
    limit = (narrow + 2 * wide) // 3
    quantized = api.quantize(net, calib, **options, max_flash=limit)
    search_report = quantized.report.search
    chosen = next(trial for trial in search_report["trials"] if trial["chosen"])
    assert search_report["met"]
    assert narrow < chosen["flash"] <= limit
    assert set(search_report["weight_bits"].values()) == {4, 8}
    assert set(bits_of(quantized.graph).values()) == {4, 8}
    assert chosen["value"] == max(
        trial["value"] for trial in search_report["trials"] if trial["met"]
    )
    if platform != "generic":
        assert quantized.report.chip_ready
        assert (
            chosen["flash"]
            == quantized.report.cost.weights
            == api.check(quantized.graph).cost.weights
        )
