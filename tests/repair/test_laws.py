"""Laws of a repair: it changes nothing that is right, it changes nothing twice, and what it mends
computes the same.
"""

import functools
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, example, given, note
from hypothesis import strategies as st

from lingeronnx.interchange.repair import REPAIRS, fix_dequant, repair_model
from lingeronnx.interchange.repair.engine import apply_edits
from lingeronnx.interchange.repair.graph_view import GraphView
from lingeronnx.ir import ir
from lingeronnx.targets import PLATFORMS
from tests.case_selection import limit_examples
from tests.nets import NETS, Net, quantized, samples
from tests.repair.damage import DAMAGES, LOSING, duplicate_dequant, extra_dequant, same_names
from tests.repair.helpers import edges, outputs

HERE = Path(__file__).resolve()
ROWS = [target.name for target in PLATFORMS]
VENDOR = HERE.parents[2].parent / "shared" / "golden" / "vendor"
RIGHT = sorted((HERE.parents[1] / "golden" / "dequant").glob("*.right.onnx"))


def heads():
    """Two float heads, one behind operators that move data, and a float island between layers."""
    net = Net(3, 8, 8, seed=7)
    a = net.node("Relu", net.conv("x", (6, 3, 3, 3), pads=[1] * 4))
    b = net.conv(
        net.node("Erf", net.conv(a, (6, 6, 3, 3), pads=[1] * 4)), (4, 6, 3, 3), pads=[1] * 4
    )
    net.node(
        "Softmax",
        net.node("Flatten", net.node("MaxPool", b, kernel_shape=[2, 2], strides=[2, 2])),
        axis=1,
        out="p",
    )
    net.node("Softmax", net.node("Transpose", a, perm=[0, 2, 3, 1]), axis=3, out="y")
    return net.graph("y", "p")


MODELS = (*NETS, heads)
#: Damages after which readers have the names they had.
KEEPING = [damage for damage in DAMAGES if damage not in (*LOSING, same_names)]


@functools.cache
def made(build, platform):
    """Return (the quantized model, an input of two samples, its outputs)."""
    result = quantized(build(), platform=platform, effort="fast")
    model = ir.to_proto(result.graph)
    feeds = samples(build(), 1, seed=5)
    return model, feeds, outputs(model, feeds)


@pytest.mark.sweep
@pytest.mark.parametrize("platform", ROWS)
@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_own_graphs_stay(build, platform, tmp_path):
    """What `quantize` writes is right: it comes out byte for byte, with nothing to say about it."""
    path = tmp_path / "model.onnx"
    quantized(build(), platform=platform, effort="fast").save(path)
    fixed = fix_dequant(path)
    assert not fixed.report.findings
    assert fixed.save().read_bytes() == path.read_bytes()


def damaged(model, damages, seed):
    """Return a damaged copy of `model`, and whether an edge was lost."""
    copy, rng, lost = onnx.ModelProto(), Random(seed), False
    copy.CopyFrom(model)
    for damage in sorted(
        damages, key=lambda damage: damage is duplicate_dequant
    ):  # what comes later would hit one twin
        if damage(copy, rng):
            note(damage.__name__)
            lost |= damage in LOSING
    return copy, lost


def mended(model, lost):
    """Return the repaired model, which a second repair does not change; None where it was refused
    and may be.
    """
    report = repair_model(model)
    if report.fatal:
        note(report.fatal[0].text)
        assert lost, report.fatal[0]
        return None
    before = model.SerializeToString(deterministic=True)
    assert not repair_model(model).edits
    assert model.SerializeToString(deterministic=True) == before
    return model


@pytest.mark.slow
@limit_examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(MODELS),
    st.sampled_from(ROWS),
    st.lists(st.sampled_from(DAMAGES), min_size=1, max_size=5),
    st.integers(0, 1 << 30),
)
def test_mended_computes_the_same(build, platform, damages, seed):
    """A right graph, damaged and repaired, computes what it computed, bit for bit."""
    model, feeds, want = made(build, platform)
    copy, lost = damaged(model, damages, seed)
    fixed = mended(copy, lost)
    if fixed is not None:
        have = outputs(fixed, feeds)
        assert have.keys() == want.keys()
        for name in want:
            np.testing.assert_array_equal(have[name], want[name])


@limit_examples(150, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(RIGHT),
    st.lists(st.sampled_from(KEEPING), min_size=1, max_size=6),
    st.integers(0, 1 << 30),
)
def test_mended_has_the_same_edges(path, damages, seed):
    """Graphs with all kinds of float heads get their Dequants back where they were."""
    model = onnx.load(path)
    want = edges(model)
    copy, lost = damaged(model, damages, seed)
    fixed = mended(copy, lost)
    assert {reader: where[2] for reader, where in edges(fixed).items()} == {
        r: where[2] for r, where in want.items()
    }


@pytest.mark.sweep
@pytest.mark.skipif(not VENDOR.is_dir(), reason="the whole networks are not there")
@pytest.mark.parametrize("path", sorted(VENDOR.glob("*.onnx")), ids=lambda path: path.stem)
@pytest.mark.parametrize("seed", range(3))
def test_whole_networks(path, seed, tmp_path):
    """Networks of the vendor come out byte for byte, and, damaged and repaired, with the same
    results.
    """
    fixed = fix_dequant(path)
    assert not fixed.changed
    assert fixed.save(tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    model = onnx.load(path)
    value = model.graph.input[0]
    shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
    feeds = {value.name: np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
    want = outputs(model, feeds)
    damages = Random(seed).sample(DAMAGES[:-1], 6)
    repaired = mended(damaged_quietly(model, damages, seed), False)
    for name, array in outputs(repaired, feeds).items():
        np.testing.assert_array_equal(array, want[name])


def damaged_quietly(model, damages, seed):
    """Return a damaged copy, outside hypothesis."""
    copy, rng = onnx.ModelProto(), Random(seed)
    copy.CopyFrom(model)
    for damage in sorted(damages, key=lambda damage: damage is duplicate_dequant):
        damage(copy, rng)
    return copy


@limit_examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(RIGHT[0].parent.glob("*.onnx"))),
    st.lists(st.sampled_from(DAMAGES), max_size=6),
    st.integers(0, 1 << 30),
)
@example(RIGHT[0].parent / "float_output_layer.onnx", [extra_dequant, extra_dequant], 0)
def test_a_finding_carries_its_edits(path, damages, seed):
    """To look changes nothing; what is done is what the findings say, each edit once; what is wrong
    has an edit.
    """
    model, _ = damaged(onnx.load(path), damages, seed)
    for step in REPAIRS:
        before = model.SerializeToString(deterministic=True)
        view = GraphView(model)
        found = step.find(view)
        assert model.SerializeToString(deterministic=True) == before
        carried = [edit for finding in found for edit in finding.edits]
        assert all(finding.edits for finding in found if finding.level == "wrong")
        assert not any(finding.edits for finding in found if finding.level != "wrong")
        assert len({id(edit) for edit in carried}) == len(carried)
        done = apply_edits(view, found)
        assert {id(edit) for edit in done} == {id(edit) for edit in carried}
        assert (model.SerializeToString(deterministic=True) != before) == bool(done)
        if any(finding.level == "fatal" for finding in found):
            break
