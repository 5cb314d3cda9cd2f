"""The DMA beside the NPU, against timelines computed by hand."""

from lingeronnx.luna.timing import LayerSlot, schedule_layers


def test_the_first_transfer_is_waited_for_in_full():
    """It starts with the run."""
    assert schedule_layers([100], [40]) == [LayerSlot(0, 40)]


def test_a_transfer_hides_behind_all_layers_up_to_the_next_with_constants():
    """Layer 0 waits 10. It starts the transfer of layer 3 at 10; layers 0, 1, 2 end at 10 + 20 + 5
    + 5 = 40; the
    transfer ends at 10 + 50 = 60."""
    assert schedule_layers([20, 5, 5, 7], [10, 0, 0, 50]) == [
        LayerSlot(0, 10),
        LayerSlot(30, 0),
        LayerSlot(35, 0),
        LayerSlot(40, 20, prefetch_start_cycle=10),
    ]


def test_nothing_waits_without_constants():
    """The constants lie in shared memory, or are read in place."""
    assert schedule_layers([3, 4], [0, 0]) == [LayerSlot(0, 0), LayerSlot(3, 0)]


def test_a_short_transfer_is_hidden():
    """It ends before the layer's turn comes."""
    assert schedule_layers([100, 10], [5, 30]) == [
        LayerSlot(0, 5),
        LayerSlot(105, 0, prefetch_start_cycle=5),
    ]
