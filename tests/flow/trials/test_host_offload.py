"""Front ends inside the graph: spectra, mel filters and logarithms go to the host where that is
measured to win.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.ir import float_ops, ir
from lingeronnx.quantization import RunLog, build_candidate, plan_model, prepare_model, run_trial
from lingeronnx.quantization.report.fidelity import Fidelity
from lingeronnx.quantization.trials import Criterion, host_offload
from lingeronnx.quantization.trials.evidence import compare_outputs
from lingeronnx.quantization.trials.host_offload import (
    HostOffload,
    find_offload_candidates,
    find_power_tail,
    make_criterion,
)
from tests.nets import Net, samples

_BINS, _MEL, _FRAMES, _WINDOW = 17, 8, 12, 32


def _waves(count: int) -> np.ndarray:
    """Return tones of random pitch under noise, of loudness over three decades, [count, frames,
    window].
    """
    rng = np.random.default_rng(5)
    time = np.arange(_FRAMES * _WINDOW)
    pitch, loud = rng.uniform(0.02, 0.4, (count, 1)), 10 ** rng.uniform(-3, 0, (count, 1))
    wave = loud * (
        np.sin(2 * np.pi * pitch * time) + 0.05 * rng.standard_normal((count, len(time)))
    )
    return wave.reshape(count, _FRAMES, _WINDOW).astype(np.float32)


def _front(net: Net, kind: str) -> str:
    """Append a spectrum of x: two transforms, a power and what `kind` says; return [N, frames,
    features].
    """
    angle = 2 * np.pi * np.outer(np.arange(_WINDOW), np.arange(_BINS)) / _WINDOW
    real, imaginary = (
        net.node("MatMul", "x", net.const(part.astype(np.float32)))
        for part in (np.cos(angle), -np.sin(angle))
    )
    power = net.node("Add", net.node("Mul", real, real), net.node("Mul", imaginary, imaginary))
    if kind == "magnitude":
        return net.node("Sqrt", power)
    mel = np.abs(np.random.default_rng(6).standard_normal((_BINS, _MEL))).astype(np.float32)
    bands = net.node("MatMul", power, net.const(mel))
    floor = net.node("Clip", bands, net.const(np.float32(1e-6)))
    level = net.node("Log", floor)
    return net.node(
        "Mul", net.node("Add", level, net.const(np.float32(3))), net.const(np.float32(0.3))
    )


def _network(net: Net, features: str, size: int, out: str = "y") -> str:
    """Append two layers and an output for each frame."""
    hidden = net.node("Relu", net.node("MatMul", features, net.const(_weight(size, 48))))
    deeper = net.node("Relu", net.node("MatMul", hidden, net.const(_weight(48, 48, 1))))
    return net.node("MatMul", deeper, net.const(_weight(48, 4, 2)), out=out)


def _weight(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, rows])
    return (rng.standard_normal((rows, columns)) * np.sqrt(2 / rows)).astype(np.float32)


def _model(kind: str) -> ir.Model:
    net = Net(_FRAMES, _WINDOW)
    return net.graph(_network(net, _front(net, kind), _BINS if kind == "magnitude" else _MEL))


@pytest.mark.parametrize("platform", ["generic", "venus"])
@pytest.mark.parametrize("kind", ["mel", "magnitude"])
def test_a_front_of_several_transforms_goes_to_the_host(kind: str, platform: str) -> None:
    x = {"x": _waves(32)}
    report = lo.quantize(_model(kind), x, platform=platform).report
    fast = lo.quantize(_model(kind), x, platform=platform, effort="fast").report
    assert report.outputs["y"]["sqnr"] > max(25.0, fast.outputs["y"]["sqnr"] + 3)
    assert any("effort is fast" in note for note in fast.notes)
    counts = [node.macs for node in report.host_part if node.macs]
    transform = _FRAMES * _WINDOW * _BINS
    assert counts == [transform] * 2 + ([_FRAMES * _BINS * _MEL] if kind == "mel" else [])
    assert all("measured to be better in float" in node.why for node in report.host_part)
    size = _BINS if kind == "magnitude" else _MEL
    behind = _FRAMES * (size * 48 + 48 * 48 + 48 * 4)
    assert report.integer_macs == pytest.approx(
        behind / (behind + sum(counts))
    )  # no layer of the network is lost
    if platform == "venus":
        assert report.chip_ready


@pytest.mark.parametrize("bend", ["Relu", "Sigmoid", "Tanh"])
def test_a_logarithm_within_the_network_is_no_front(bend: str) -> None:
    net = Net(_FRAMES, _WINDOW)
    inner = net.node(bend, net.node("MatMul", "x", net.const(_weight(_WINDOW, 8))))
    more = net.node(
        "Add", net.node("MatMul", inner, net.const(np.abs(_weight(8, 8)))), net.const(np.float32(3))
    )
    model = net.graph(_network(net, net.node("Log", net.node("Relu", more)), 8))
    assert find_offload_candidates(model, has_poor_output=True) == []


@pytest.mark.parametrize("bend", sorted(float_ops.ACTIVATION_OPS - {"PRelu"}))
def test_any_activation_tells_a_network(bend: str) -> None:
    """A logarithm behind it alone, of sums that are positive, is none of a front."""
    net = Net(_FRAMES, _WINDOW, opset=24)
    inner = net.node(bend, net.node("MatMul", "x", net.const(_weight(_WINDOW, 8))))
    more = net.node(
        "Add",
        net.node("MatMul", inner, net.const(np.abs(_weight(8, 8)))),
        net.const(np.float32(30)),
    )
    assert (
        find_offload_candidates(
            net.graph(_network(net, net.node("Log", more), 8)), has_poor_output=True
        )
        == []
    )


def test_what_is_float_stays_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum between floats, in float with the layers in front of it, does not come back where these
    go, too.
    """
    net = Net(4, 8, 8, seed=5)
    curves = [net.node("Erf", net.conv("x", (4, 4, 1, 1))) for _ in range(2)]
    both = net.node("Erf", net.node("Add", *curves))
    model = net.graph(net.conv(both, (8, 4, 3, 3), pads=[1] * 4, out="y"))
    settings = {"platform": "venus", "effort": "normal", "max_parts": 9}
    prepared = prepare_model(model, samples(model, 16), None, settings)
    layers = [str(node.name) for node in prepared.graph.graph if node.op_type == "Conv"][:2]
    assert {"Add", "Erf"} == {
        node.op_type for node in prepared.graph.graph if str(node.name) in prepared.parts.floats
    }
    planned = plan_model(prepared, None, None)
    best = build_candidate(planned, planned.graph)
    monkeypatch.setattr(host_offload, "output_sqnr_levels", lambda one: [0.0])
    monkeypatch.setattr(
        host_offload,
        "select_low_sqnr_nodes_to_offload",
        lambda *rest: dict.fromkeys(layers, "for a test"),
    )
    monkeypatch.setattr(Criterion, "is_met", lambda *_: True)
    floats = run_trial(HostOffload(), best, RunLog()).prepared.parts.floats
    assert floats.keys() == prepared.parts.floats.keys() | set(layers)


@pytest.mark.parametrize(
    ("before", "after", "wins"),
    [
        ([2, 8, 15], [13, 8, 13], True),  # one of no use is nearer by far
        ([12, 18, 25], [23, 18, 23], False),  # none was of no use
        ([2, 8, 15], [4, 20, 13], False),  # the farthest stays so
        ([2, 8, 15], [6, 8, 10], False),  # they are not nearer on average
        ([2, 8, 15], [3, 8, 15], True),
        ([2, 8, 15], [2, 8, 15], False),
    ],
)
def test_what_an_output_may_lose(before: list[float], after: list[float], wins: bool) -> None:
    gain = compare_outputs(_candidate(before), _candidate(after))
    assert make_criterion(0.5).is_met(gain) is wins


@pytest.mark.parametrize(
    ("before", "after", "wins"),
    [
        ([4, 0], [11, 12], True),  # an output of no use is rescued
        ([9, 14], [15, 16], True),
        ([11, 14], [25, 26], False),  # none was of no use
        ([9, 20], [11, 30], False),  # the worst one gains less than 3 dB
    ],
)
def test_a_single_chip_part_is_given_up_only_for_an_output_of_no_use(
    before: list[float], after: list[float], wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate that is not chip-ready any more, but for its outputs like the one before."""
    old, new = _candidate(before), _candidate(after)
    alternative = host_offload._Alternative({"cell": "why"}, 0.5)
    monkeypatch.setattr(host_offload, "keeps_chip", lambda *_: False)
    monkeypatch.setattr(host_offload, "_runs_in_parts", lambda _: False)
    monkeypatch.setattr(host_offload, "_list_alternatives", lambda *_: [alternative])
    monkeypatch.setattr(host_offload, "select_required_host_nodes", lambda _: {})
    monkeypatch.setattr(host_offload, "_build_offloaded", lambda *_: new)
    monkeypatch.setattr(HostOffload, "requirements", ())
    best = run_trial(HostOffload(), old, RunLog())
    assert (best.fidelity is new.fidelity) is wins
    if wins:
        expected = (
            f"the worst output has {min(before):.1f} dB in a single part, {min(after):.1f} dB with "
            "the host on 4 samples; --cells chip keeps a single part"
        )
        assert expected in best.notes[0]


@dataclass(frozen=True)
class _FakeCandidate:
    """What the trial reads of a candidate."""

    fidelity: Fidelity
    prepared: SimpleNamespace
    notes: tuple[str, ...] = ()

    def with_notes(self, notes: Iterable[str], lasting: Iterable[str] = ()) -> _FakeCandidate:
        return replace(self, notes=(*self.notes, *notes))


def _candidate(levels: list[float]) -> _FakeCandidate:
    outputs = {f"y{number}": {"sqnr": level} for number, level in enumerate(levels)}
    errors, power = np.ones((len(levels), 4)), np.ones(len(levels))
    fidelity = Fidelity(outputs, "on 4 samples", (), errors=errors, power=power)
    return _FakeCandidate(fidelity, SimpleNamespace(parts=SimpleNamespace(floats={})))


@pytest.mark.parametrize("platform", ("generic", "venus"))
def test_a_front_end_alone_has_its_power_spectrum_in_float(platform: str) -> None:
    """Transform, power, mel filters and logarithm, whose result is the output: 8 bits lose quiet
    bands.
    """
    net = Net(_FRAMES, _WINDOW)
    model = net.graph(_front(net, "mel"))
    result = lo.quantize(model, _waves(64), platform=platform)
    host = [node for node in result.report.host_part if "follows a power spectrum" in node.why]
    assert [node.macs for node in host if node.macs] == [_FRAMES * _BINS * _MEL]
    fast = lo.quantize(model, _waves(64), platform=platform, effort="fast").report
    assert any("effort is fast" in note for note in fast.notes)
    (output,) = result.report.outputs.values()
    (fast_output,) = fast.outputs.values()
    assert output["sqnr"] > fast_output["sqnr"] + (25 if platform == "generic" else 3)
    assert 0.5 < result.report.integer_macs < 1
    has_note = any(
        "layers in front of a power spectrum have 16 bits" in n for n in result.report.notes
    )
    assert has_note is (platform == "generic")


def test_a_power_tail_is_only_that_of_a_front_end() -> None:
    net = Net(_FRAMES, _WINDOW)
    assert find_power_tail(net.graph(_front(net, "magnitude")))
    net = Net(_FRAMES, _WINDOW)
    assert find_power_tail(net.graph(_network(net, _front(net, "mel"), _MEL))) == {}
    net = Net(_FRAMES, _WINDOW)
    plain = net.node("MatMul", "x", net.const(np.ones((_WINDOW, 3), np.float32)))
    assert find_power_tail(net.graph(plain)) == {}
