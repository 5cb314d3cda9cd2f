"""How often onnxruntime is opened: every session of a large model costs seconds."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize import normalize, resolve_control_flow
from lingeronnx.quantization.normalize.folding.shape_tracing import is_fully_shaped, trace_shapes
from lingeronnx.quantization.scales import group_shared_scales
from lingeronnx.quantization.steps import calibration, scale_assignment
from tests import nets


@pytest.fixture
def opened(monkeypatch):
    """A list that grows with every session."""
    made = []

    class Counted(onnxruntime.InferenceSession):
        def __init__(self, *args, **kwargs):
            made.append(args)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Counted)
    return made


def network():
    """Return an uneven residual net: its Softmax is the host's, and one kernel is too large for the
    chip.
    """
    net = nets.Net(3, 16, 16)
    rng = np.random.default_rng(0)
    spread = 2.0 ** rng.uniform(-3, 3, 8)
    first = rng.standard_normal((8, 3, 3, 3)) * 0.3 * spread[:, None, None, None]
    last = rng.standard_normal((8, 8, 1, 1)) * 0.3 / spread[None, :, None, None]
    a = net.node("Relu", net.node("Conv", "x", net.const(first.astype(np.float32)), pads=[1] * 4))
    b = net.node("Conv", a, net.const(last.astype(np.float32)))
    c = net.node("Add", net.conv(b, (8, 8, 7, 7), pads=[3] * 4), b)
    net.node("Softmax", c, out="y", axis=1)
    return net.graph("y")


@pytest.mark.slow
@pytest.mark.parametrize("effort", ("fast", "normal"))
def test_number_of_sessions(opened, effort):
    """The shapes, the user's graph, the normalised one before and after ranges are moved, and the
    host's part; of a trial run without held-out samples the last two once more.
    """
    graph = network()
    x = np.random.default_rng(1).standard_normal((40, 3, 16, 16)).astype(np.float32)
    found = lo.quantize(graph, {"x": x}, platform="venus", effort=effort)
    assert found.report.chip_ready
    assert found.report.host_part
    assert bool(found.report.fitted)
    assert any(len(t.factor) > 1 for t in found.plan.transforms.values()) == (effort == "normal")
    search = (
        2 if found.report.warnings else 0
    )  # an output below 15 dB: all tensors are compared to say where it breaks
    trial = 2 if effort == "normal" else 0
    assert 1 < len(opened) <= 5 + search + trial


RESNET8 = Path(__file__).resolve().parents[3] / "shared" / "models" / "mlperf_tiny_resnet8.onnx"


@pytest.mark.slow
@pytest.mark.skipif(
    not RESNET8.exists(), reason="the larger models do not lie beside the repository"
)
def test_resnet8_opens_six_sessions(opened):
    """A whole network with defaults; the host's part runs before and after the last rewrites."""
    lo.quantize(RESNET8, None)
    assert 1 < len(opened) <= 6


def test_ties_are_looked_for_once(monkeypatch):
    """Who shares a scale is found once, and handed on."""
    calls = []
    for stage in (calibration, scale_assignment):
        monkeypatch.setattr(
            stage,
            "group_shared_scales",
            lambda *args: calls.append(args) or group_shared_scales(*args),
        )
    lo.quantize(network(), nets.samples(network(), 2), platform="venus")
    assert len(calls) == 1


@pytest.mark.parametrize("net", nets.NETS, ids=lambda net: net.__name__)
def test_what_passes_say_of_shapes_is_true(net):
    """Law: where all shapes are known after normalisation, tracing them again changes nothing."""
    model = net()
    feed = {name: array[:1] for name, array in nets.samples(model).items()}
    resolve_control_flow(model, feed)
    normalize(model)
    known = is_fully_shaped(model)
    before = {str(v.name): (list(map(str, v.shape or ())), v.dtype) for v in ir.iter_values(model)}
    trace_shapes(model, feed)
    assert is_fully_shaped(model)
    if known:
        assert {
            str(v.name): (list(map(str, v.shape or ())), v.dtype) for v in ir.iter_values(model)
        } == before
