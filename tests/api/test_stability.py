"""What docs/reference/stability.md promises: public names stay, and files of another version are
read or refused in one line.
"""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from lingeronnx import cli
from lingeronnx.analysis.profile.profile_file import load_profile
from lingeronnx.common import files
from lingeronnx.common.errors import ConfigError, DataError, ModelError
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Plan
from lingeronnx.quantization.json_schemas import make_json_schema
from lingeronnx.runtime import compiled_host
from tests.api.public import FILE, public
from tests.each import check_each
from tests.nets import Net

PROMISED = json.loads(FILE.read_text())
KINDS = (files.REPORT_VERSION, files.DEPLOYMENT_VERSION, files.JOURNAL_VERSION)


def test_promised_names_exist():
    """A name, command or option that goes breaks programs of others; `public.py` says when it
    may.
    """
    current = public()

    def check(place):
        assert sorted(set(PROMISED[place]) - set(current[place])) == []

    check_each(check, PROMISED)


def test_every_command_is_promised():
    assert {f"lingeronnx {name}" for name in cli.main.commands} <= PROMISED.keys()


def test_a_command_that_is_gone_is_seen(monkeypatch):
    monkeypatch.delitem(cli.main.commands, "demo")
    assert "lingeronnx demo" not in public()


# ---- versions of files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.key)
def test_versions(kind):
    """Today's and those without one, which 0.1 wrote, are read; others are refused with what
    helps.
    """
    for body in (kind.make_entry(), {}, {kind.key: 1}, {"other": 5}):
        kind.check(body, "f.json")
    for number in (kind.latest + 1, 0, -1, "1", None, True, 1.0):
        with pytest.raises(
            ConfigError, match=rf"f.json has {kind.key} .*: upgrade it, or {kind.remedy}"
        ):
            kind.check({kind.key: number}, "f.json")


def test_a_plan_of_a_later_version_is_refused():
    with pytest.raises(
        ConfigError,
        match="plan version 3; .* upgrade lingeronnx, or quantize again with --save-plan",
    ):
        Plan.from_json('{"lingeronnx_plan": 3}', "p.json")


def test_a_graph_of_a_later_version_is_refused(tmp_path):
    """Version 1 of our domains is the format of integer graphs."""
    net = Net(3, 4, 4)
    model = net.proto(net.node("Relu", "x"))
    model.opset_import.add(domain="thinker", version=1)
    (tmp_path / "one.onnx").write_bytes(model.SerializeToString())
    assert ir.load(tmp_path / "one.onnx").graph.opset_imports["thinker"] == 1
    model.opset_import[-1].version = 2
    (tmp_path / "two.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        ModelError,
        match="version 2 of domain 'thinker'; this lingeronnx supports version 1: upgrade it",
    ):
        ir.load(tmp_path / "two.onnx")


def test_a_deployed_folder_of_a_later_version_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text('{"lingeronnx_deploy": 2, "program": {"parts": []}}')
    with pytest.raises(ConfigError, match="manifest.json has lingeronnx_deploy 2"):
        compiled_host._load_manifest_parts(tmp_path)
    (tmp_path / "manifest.json").write_text('{"program": {"parts": []}}')
    assert compiled_host._load_manifest_parts(tmp_path) == []


def test_what_is_written_has_its_version(tmp_path):
    """A report, a journal and a manifest of today."""
    net = Net(3, 4, 4)
    (tmp_path / "net.onnx").write_bytes(net.proto(net.conv("x", (4, 3, 1, 1))).SerializeToString())
    words = (
        f"quantize {tmp_path}/net.onnx --min-sqnr 5 --calib {tmp_path}/x.npz --effort fast --json"
    )
    samples = np.random.default_rng(0).standard_normal((8, 3, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=samples)
    done = CliRunner().invoke(cli.main, words.split())
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["lingeronnx_report"] == files.REPORT_VERSION.latest
    first = (tmp_path / "net_quant_search.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["lingeronnx_journal"] == files.JOURNAL_VERSION.latest
    words = f"deploy {tmp_path}/net_quant.onnx --input {tmp_path}/x.npz -o {tmp_path}/board"
    assert CliRunner().invoke(cli.main, words.split()).exit_code == 0
    manifest = json.loads((tmp_path / "board" / "manifest.json").read_text())
    assert manifest["lingeronnx_deploy"] == files.DEPLOYMENT_VERSION.latest


def test_a_profile_of_a_later_version_is_refused(tmp_path):
    body = np.frombuffer(b'{"version": 99}', np.uint8)
    np.savez(tmp_path / "p.npz", lingeronnx_profile=body)
    with pytest.raises(DataError, match="profile of version 99; .* or profile again with --keep"):
        load_profile(tmp_path / "p.npz")


def test_schemas_name_the_versions():
    assert make_json_schema("report")["properties"][files.REPORT_VERSION.key]["enum"] == [
        files.REPORT_VERSION.latest
    ]
