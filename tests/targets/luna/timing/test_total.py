"""Cycles of a whole run, against timelines computed by hand from sizes and the measured points of
the DMA.

Two convolutions, 3x3: 8 to 16 channels, then 16 to 64. Constants as stored: 8 * 16 * 9 + 16 * 4 =
1,216 bytes, and 16 * 64 * 9 + 64 * 4 = 9,472. DMA from external memory: 1024 bytes 1,645 cycles,
2048 bytes 2,633, 8192 bytes 8,566, 16384 bytes 16,468; so 1,645 + 192 * 988 / 1024 = 1,830.25 and
8,566 + 1,280 * 7,902 / 8,192 = 9,800.6875.
"""

import pytest

import lingeronnx as lo
from lingeronnx.luna.timing.kernel_calls import Operand, TimingNode, list_kernel_calls
from tests import nets

FIRST, SECOND = 1830.25, 9800.6875


def graph(size):
    """Return the integer graph on maps of `size`, for arcs."""
    net = nets.Net(8, size, size)
    model = net.graph(net.conv(net.node("Relu", net.conv("x", (16, 8, 3, 3))), (64, 16, 3, 3)))
    return nets.quantized(model, platform="arcs", effort="fast").graph


@pytest.fixture(scope="module")
def small():
    """The first convolution is shorter than the second one's transfer."""
    return graph(5)


def test_the_first_transfer_is_waited_for_and_the_second_hides_behind_the_first_layer(small):
    """The first layer begins at 1,830.25 and starts the second transfer then; the second waits for
    the rest of it.
    """
    time = lo.latency(small, "arcs", "")
    first, second = (layer.cycles for layer in time.layers)
    assert first < SECOND
    assert [layer.dma for layer in time.layers] == [FIRST, SECOND]
    assert [layer.fetch for layer in time.layers] == [0, FIRST]
    assert [layer.wait for layer in time.layers] == [FIRST, SECOND - first]
    assert time.total == FIRST + SECOND + second


def test_a_transfer_that_ends_in_time_costs_nothing():
    """Larger maps: the first layer takes longer than the second transfer."""
    time = lo.latency(graph(24), "arcs", "")
    first, second = (layer.cycles for layer in time.layers)
    assert first > SECOND
    assert time.total == FIRST + first + second


def test_without_prefetch_constants_are_read_in_place_which_nobody_has_priced(small):
    """No DMA is waited for, and constants read in place are reported with their bytes."""
    time = lo.latency(small, "arcs", "--dma_prefetch False")
    assert time.waits == 0
    assert time.total == time.luna
    assert [(work.name, work.bytes) for work in time.unpriced] == [
        (layer.name, size) for layer, size in zip(time.layers, (1216, 9472), strict=True)
    ]
    assert not any(layer.priced for layer in time.layers)


def test_constants_in_shared_memory_are_there_already(small):
    """Nothing is waited for, nothing without a price."""
    time = lo.latency(small, "arcs", "-m params:share-mem")
    assert time.total == time.luna == lo.latency(small, "arcs", "").luna
    assert not time.unpriced


def test_the_parts_of_a_layer_add_up(small):
    """Starts of calls are part of the cycles; a layer's turn ends where the next one's begins."""
    time = lo.latency(small, "arcs", "")
    ends = [layer.start + layer.total_cycles for layer in time.layers]
    assert ends == [time.layers[1].start, time.total]
    assert all(0 < layer.overhead < layer.cycles for layer in time.layers)
    assert [layer.calls for layer in time.layers] == [1, 1]
    assert time.overhead == 1350 + sum(
        layer.overhead for layer in time.layers[1:]
    )  # the first convolution is one part in one piece


@pytest.mark.parametrize("operator", ["Conv1dInt", "Conv2dInt", "ConvTranspose2dInt"])
def test_weights_of_another_rank_have_no_price(operator):
    """Prices are asked before a graph is judged: a matrix as weights of a convolution is no end of
    the program.
    """
    size = (4,) * (1 if "1d" in operator else 2)
    work = list_kernel_calls(
        TimingNode(
            operator, {}, [Operand((1, 8, *size)), Operand((8, 8))], [Operand((1, 8, *size))]
        )
    )
    assert [item.description for item in work.unmodeled] == [
        "weights whose rank differs from the input's"
    ]
    assert not work.calls
