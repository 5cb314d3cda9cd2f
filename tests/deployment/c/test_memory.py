"""Buffers in one arena."""

from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.common.arithmetic import round_up
from lingeronnx.deployment.c_program.arena import ALIGNMENT, BufferLifetime, plan_arena

USES = st.dictionaries(
    st.integers(0, 30).map(str),
    st.tuples(st.integers(1, 200), st.integers(0, 9), st.integers(0, 9)).map(
        lambda t: BufferLifetime(t[0], min(t[1:]), max(t[1:]))
    ),
)


@given(USES)
def test_no_two_in_use_overlap(uses):
    """Each is aligned and inside; two that live at the same time have no byte in common."""
    offsets, size = plan_arena(uses)
    assert offsets.keys() == uses.keys()
    for a, one in uses.items():
        assert offsets[a] % ALIGNMENT == 0
        assert offsets[a] + one.size <= size
        for b, two in uses.items():
            if a != b and one.first <= two.last and two.first <= one.last:
                assert offsets[a] + one.size <= offsets[b] or offsets[b] + two.size <= offsets[a]


def test_bytes_are_used_again():
    uses = {
        "a": BufferLifetime(100, 0, 1),
        "b": BufferLifetime(60, 1, 2),
        "c": BufferLifetime(100, 2, 3),
    }
    offsets, size = plan_arena(uses)
    assert offsets["a"] == offsets["c"] == 0
    assert size == round_up(100, ALIGNMENT) + round_up(60, ALIGNMENT)
