"""Versions and operators that were never measured are refused unless the user allows them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from lingeronnx.luna.versions.delta import VersionDelta, build_versions
from lingeronnx.quantization.config import QuantConfig
from lingeronnx.targets import describe_unmeasured, get_target, get_versions, require_measured
from tests import nets

UNMEASURED = "venus@2026-08-20"
MESSAGE = f"without --allow-unmeasured: {UNMEASURED} is not measured: "


@pytest.fixture(scope="module")
def model():
    return nets.plain()


@pytest.fixture(scope="module")
def samples(model):
    return nets.samples(model, 8)


@pytest.fixture(scope="module")
def quantized(model, samples):
    return lo.quantize(model, samples, platform=UNMEASURED, effort="fast", allow_unmeasured=True)


@pytest.fixture
def path(quantized, tmp_path):
    file = tmp_path / "net_quant.onnx"
    ir.save(quantized.graph, file)
    return file


def test_which_versions_were_measured():
    measured = [
        target.executor for target in get_versions(get_target("arcs")) if not target.unmeasured
    ]
    assert measured == ["3.0.4", "3.0.8", "3.0.9", "3.0.10"]


def test_quantize_refuses_an_unmeasured_version(model, samples):
    with pytest.raises(ConfigError, match=MESSAGE):
        lo.quantize(model, samples, platform=UNMEASURED, effort="fast")


def test_a_yaml_file_may_allow_it(tmp_path):
    file = tmp_path / "quant.yaml"
    file.write_text(f"platform: {UNMEASURED}\nallow_unmeasured: true\n")
    config = QuantConfig.read(file)
    assert (config.platform, config.allow_unmeasured) == (UNMEASURED, True)


def test_the_report_says_that_nothing_was_measured(quantized):
    assert any(f"{UNMEASURED} is not measured" in line for line in quantized.report.warnings)
    assert quantized.report.chip_ready_basis == "assumed"


def test_check_needs_the_permission_and_says_so(model, path):
    for checked in (path, model):
        with pytest.raises(ConfigError, match=MESSAGE):
            lo.check(checked, platform=UNMEASURED)
        check = lo.check(checked, platform=UNMEASURED, allow_unmeasured=True)
        assert any("is not measured" in note for note in check.notes)


def test_simulate_needs_the_permission_and_says_so(path, samples):
    with pytest.raises(ConfigError, match=MESSAGE):
        lo.simulate(path, samples)
    assert any(
        "is not measured" in note
        for note in lo.simulate(path, samples, allow_unmeasured=True).notes
    )


def test_deploy_needs_the_permission_and_says_so(path, samples, tmp_path):
    with pytest.raises(ConfigError, match=MESSAGE):
        lo.deploy(path, tmp_path / "board", data=samples)
    deployment = lo.deploy(path, tmp_path / "board", data=samples, allow_unmeasured=True)
    assert any("is not measured" in note for note in deployment.notes)
    assert "is not measured" in (tmp_path / "board" / "README.md").read_text()


def test_verify_needs_the_permission_and_says_so(path, samples, tmp_path):
    integers = lo.simulate(path, samples, integers=True, limit=1, allow_unmeasured=True).arrays
    output = tmp_path / "out.bin"
    output.write_bytes(
        b"".join(np.ascontiguousarray(array).tobytes() for array in integers.values())
    )
    with pytest.raises(ConfigError, match=MESSAGE):
        lo.verify(path, samples, output=output)
    verification = lo.verify(path, samples, output=output, allow_unmeasured=True)
    assert verification.agrees
    assert any("is not measured" in note for note in verification.notes)


def test_an_operator_that_was_only_read_is_named():
    delta = VersionDelta(version="4.0", read_operators={"Relu": "seen in the text"})
    (target,) = build_versions(get_target("venus"), [delta])
    assert describe_unmeasured(target, ["Conv2dInt"]) == []
    assert describe_unmeasured(target, ["Relu", "Relu"]) == [
        "Relu on venus@4.0 is not measured: seen in the text"
    ]
    with pytest.raises(ConfigError, match="Relu on venus@4.0"):
        require_measured(target, ["Relu"])
    assert describe_unmeasured(replace(target, unmeasured={}), ["Relu"]) == []


def test_platforms_lists_what_is_measured():
    result = CliRunner().invoke(cli.main, ["platforms", "--json"])
    platforms = {row["name"]: row for row in json.loads(result.stdout)["platforms"]}
    bases = {row["executor"]: row["basis"] for row in platforms["venusA"]["versions"]}
    assert bases["3.0.10"] == "measured"
    assert [name for name, basis in bases.items() if basis == "read only"] == [
        "3.0.5",
        "3.0.6",
        "3.0.7",
        "2026-08-20",
    ]
    assert platforms["generic"]["versions"] == []
