"""Versions of a chip's executor, by name, from the command line to the written file."""

import json
import pickle

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from lingeronnx.luna.versions.delta import VersionDelta, build_versions
from lingeronnx.targets import GENERIC, PLATFORMS, get_target, get_versions
from tests import nets

NAMES = [f"3.0.{number}" for number in range(4, 11)] + ["2026-08-20"]
CHIPS = [target for target in PLATFORMS if target.has_packer]


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
def test_every_version_has_a_name(target):
    versions = get_versions(target)
    assert [version.executor for version in versions] == NAMES
    assert versions[0] is target
    assert get_target(f"{target}@3.0.4") is target
    for version in versions[1:]:
        assert version.name == f"{target}@{version.executor}"
        assert version.chip == target.name
        assert get_target(version.name) is version


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("venus@3.0.11", "venus@3.0.10"),
        ("arcs@2026-08-19", "arcs@2026-08-20"),
        ("venusA@", "3.0.4"),
    ],
)
def test_an_unknown_version_names_the_nearest(name, nearest):
    with pytest.raises(ConfigError, match=f"unknown version .* the nearest is .*{nearest}"):
        get_target(name)


def test_a_platform_without_versions_says_so():
    with pytest.raises(ConfigError, match="generic has no versions"):
        get_target(f"{GENERIC}@3.0.4")


def test_a_version_is_a_delta_on_the_one_before():
    first = VersionDelta(version="4.0", ops={"Relu": {"miscompiled": True}}, unmeasured="read")
    second = VersionDelta(version="4.1", removed_ops=("Tile",), packing={"conv": {"max_kernel": 9}})
    base = CHIPS[0]
    old, new = build_versions(base, [first, second])
    assert not base.ops["Relu"].miscompiled
    assert old.ops["Relu"].miscompiled
    assert new.ops["Relu"].miscompiled
    assert old.can_run("Tile")
    assert not new.can_run("Tile")
    assert old.vendor.packing == base.vendor.packing
    assert new.vendor.packing.conv.max_kernel == 9
    assert (dict(old.unmeasured), dict(new.unmeasured)) == ({"": "read"}, {})


def test_quantize_writes_the_version_into_plan_report_and_file(tmp_path):
    model = nets.plain()
    name = "arcs@3.0.10"
    path, plan_path = tmp_path / "net_quant.onnx", tmp_path / "plan.json"
    quantized = lo.quantize(model, nets.samples(model, 8), platform=name, effort="fast")
    ir.save(quantized.graph, path)
    plan_path.write_text(quantized.plan.to_json())
    assert quantized.report.platform == name
    assert json.loads(plan_path.read_text())["executor"] == "3.0.10"
    written = ir.load(path)
    assert written.metadata_props["lingeronnx.platform"] == name
    assert {ir.get_attr(node, "platform", "arcs") for node in written.graph} == {"arcs"}
    assert lo.check(path).platform == name
    assert lo.check(path, platform="arcs").platform == "arcs"


def test_a_session_computes_a_version_and_can_be_sent_to_other_processes():
    model = nets.plain()
    feeds = nets.samples(model, 8)
    quantized = lo.quantize(model, feeds, platform="venus", effort="fast")
    session = lo.Session(quantized.graph, platform="venus@3.0.10")
    copy = pickle.loads(pickle.dumps(session))
    for first, second in zip(session.run(None, feeds), copy.run(None, feeds), strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_default_version_writes_the_same_bytes():
    model = nets.plain()
    graphs = [
        lo.quantize(model, nets.samples(model, 8), platform=name, effort="fast").graph
        for name in ("venusA", "venusA@3.0.4")
    ]
    assert ir.to_bytes(graphs[0]) == ir.to_bytes(graphs[1])
