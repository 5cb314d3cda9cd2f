"""The DMA beside the NPU, against timelines computed by hand."""

from lingeronnx.targets.luna.timing.timeline import Slot, slots


def test_the_first_transfer_is_waited_for_in_full():
    """It starts with the run."""
    assert slots([100], [40]) == [Slot(0, 40)]


def test_a_transfer_hides_behind_all_layers_up_to_the_next_with_constants():
    """Layer 0 waits 10. It starts the transfer of layer 3 at 10; layers 0, 1, 2 end at 10 + 20 + 5 + 5 = 40; the
    transfer ends at 10 + 50 = 60."""
    assert slots([20, 5, 5, 7], [10, 0, 0, 50]) == [Slot(0, 10), Slot(30, 0), Slot(35, 0), Slot(40, 20, fetch=10)]


def test_nothing_waits_without_constants():
    """The constants lie in shared memory, or are read in place."""
    assert slots([3, 4], [0, 0]) == [Slot(0, 0), Slot(3, 0)]


def test_a_short_transfer_is_hidden():
    """It ends before the layer's turn comes."""
    assert slots([100, 10], [5, 30]) == [Slot(0, 5), Slot(105, 0, fetch=5)]
