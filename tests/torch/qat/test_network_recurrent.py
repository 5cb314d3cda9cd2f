"""Law: the bridge has the simulator's integers for recurrent layers in every form, with everything
they are given.
"""

import itertools

import onnx_ir as oir
import pytest

from lingeronnx.quantization.lower import lower
from lingeronnx.quantization.partition import Partition
from lingeronnx.runtime.integer.runner import IntegerRunner
from lingeronnx.targets import get_target
from simulator import kernels as k
from tests.case_selection import pair_in_rotation
from tests.ops import test_recurrent as recurrent
from tests.ops import test_recurrent_forms as forms

torch = pytest.importorskip("torch")

from tests.torch.qat.test_network import ROWS, compare, follows, tensors  # noqa: E402

#: Platforms on which every layer is run. (A GRU is written out step by step on chips: what one of them takes and gives
#: tells of the others as well.)
ALWAYS = ("generic", "arcs")


def layers():
    """Return (kind, direction, platform); on two of the chips only the simplest is no deep test."""
    simple, every = (
        ("LSTM", "forward"),
        itertools.product(("LSTM", "GRU"), recurrent.DIRECTIONS, ROWS),
    )
    for kind, way, row in every:
        mark = pytest.mark.slow if row in ALWAYS or (kind, way) == simple else pytest.mark.deep
        is_fast = way == "forward" and row == "generic"
        yield pytest.param(kind, way, row, marks=() if is_fast else mark)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "build", (recurrent.sequence, recurrent.classifier), ids=lambda build: build.__name__
)
@pytest.mark.parametrize("reset", (0, 1))
@pytest.mark.parametrize(("kind", "direction", "row"), [*layers()])
def test_recurrent(kind, direction, row, reset, build):
    """In integers, and as islands where the platform has none."""
    model = build(
        kind, direction, steps=4, **({"linear_before_reset": reset} if kind == "GRU" else {})
    )
    follows(model, row, {"x": recurrent.inputs(model)})


def moved(bridge, model, row, feed, amount):
    """Move every parameter; assert that the integers are those of the graph lowered with the moved
    weights.
    """
    plan, generator = bridge.plan, torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter += amount * torch.randn(parameter.shape, generator=generator)
    other = bridge.model.clone()
    for name, array in bridge.get_weights().items():
        other.graph.initializers[name].const_value = oir.tensor(array, name=name)
    runner = IntegerRunner(
        lower(Partition.build(other, plan.floats, get_target(row)), plan, get_target(row)).graph
    )
    want = list(runner.run(feed))
    assert compare(dict(bridge.integers(tensors(feed))), want) >= 3
    assert {source.name for source in bridge._sources.values()} == bridge.parameter_of.keys()


def every_parameter_is_felt(bridge, feed):
    """Assert that each has a finite gradient that is not nothing."""
    outputs = bridge(tensors(feed)).values()
    sum(
        (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(1))).sum()
        for y in outputs
    ).backward()
    for name, parameter in bridge.parameter_of.items():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


GIVEN = {
    "constant states": lambda kind: forms.constant_states(kind, "repeated", "bidirectional"),
    "states in and out": lambda kind: forms.streaming(kind, 2),
    "states of both directions": lambda kind: forms.streaming(kind, 1, "bidirectional"),
    "lengths": lambda kind: forms.with_lengths(kind, "bidirectional"),
    "lengths and states": lambda kind: forms.with_lengths(kind, "reverse", True),
}


@pytest.mark.slow
@pytest.mark.parametrize("bits", (8, 16))
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
@pytest.mark.parametrize("form", GIVEN)
def test_what_a_layer_is_given(form, kind, bits):
    """Its weights stand behind it and are found there: moved ones too; initial states that were
    learned train.
    """
    model = GIVEN[form](kind)
    feed = forms.data(model)
    bridge = follows(model, "generic", feed, bits=bits)
    every_parameter_is_felt(bridge, feed)
    moved(bridge, model, "generic", feed, 0.05)
    states = [name for name, p in bridge.parameter_of.items() if p.ndim == 3]
    assert bool(states) == (form == "constant states")


@pytest.mark.slow
@pytest.mark.parametrize("form", ("constant states", "states in and out"))
def test_a_gru_written_out(form):
    """Step by step, as chips compute it."""
    model = GIVEN[form]("GRU")
    feed = forms.data(model)
    bridge = follows(model, "venusA", feed)
    kinds = [type(step.kernel) for step in bridge.network.steps]
    assert not {k.ExecutorGru, k.Gru}.intersection(kinds)
    assert kinds.count(k.Linear) > forms.T
    every_parameter_is_felt(bridge, feed)


@pytest.mark.parametrize(
    ("given", "row"),
    pair_in_rotation(
        itertools.product(GIVEN, ("LSTM", "GRU")),
        [row for row in ROWS if get_target(row).has_packer],
    ),
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value,
)
def test_what_a_layer_is_given_on_chips(given, row):
    """Written out, or as an island where samples have lengths."""
    form, kind = given
    model = GIVEN[form](kind)
    follows(model, row, forms.data(model))
