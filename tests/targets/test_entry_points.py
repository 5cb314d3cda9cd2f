"""Law: a target of a third party is found by its entry point, and the core has no line on it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.targets import (
    GENERIC,
    PLATFORMS,
    get_installed_targets,
    get_target,
    get_versions,
    registry,
)
from tests.nets import plain, samples

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).parent / "cirrus"

TARGETS = """
from dataclasses import replace
from lingeronnx.targets import GENERIC

PLATFORMS = (replace(GENERIC, name="stratus", executor="2.0"),)
VERSIONS = (replace(GENERIC, name="stratus@1.0", executor="1.0"),)
"""


@pytest.fixture(autouse=True)
def _forget_entry_points():
    """Read the entry points anew in each test."""
    registry._read_installed_rows.cache_clear()
    yield
    registry._read_installed_rows.cache_clear()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that writes a module and the metadata of its package to a folder of
    sys.path.
    """
    monkeypatch.syspath_prepend(tmp_path)

    def write(module, source, *, entry_point=None):
        (tmp_path / f"{module}.py").write_text(source)
        metadata = tmp_path / f"{module}-0.5.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0.5\n")
        (metadata / "entry_points.txt").write_text(
            f"[lingeronnx.targets]\n{module} = {entry_point or module}\n"
        )
        monkeypatch.delitem(sys.modules, module, raising=False)

    return write


def test_targets_of_an_entry_point(install):
    """They are found by name and by version, and stand behind the built-in ones."""
    install("stratus_npu", TARGETS)
    target = get_target("stratus")
    assert (target.name, target.executor) == ("stratus", "2.0")
    assert get_target("stratus@2.0") is target
    assert get_target("stratus@1.0").executor == "1.0"
    assert [row.executor for row in get_versions(target)] == ["2.0", "1.0"]
    assert get_installed_targets() == (target,)
    assert target not in PLATFORMS
    with pytest.raises(lo.ConfigError, match=r"unknown version '3.0' of stratus; the nearest is"):
        get_target("stratus@3.0")
    with pytest.raises(
        lo.ConfigError, match=r"did you mean 'stratus'\?; known: generic, .*stratus$"
    ):
        get_target("stratos")


@pytest.mark.parametrize(
    "source, entry_point, message",
    (
        (
            "import no_such_module",
            None,
            (
                "'broken_npu' cannot be imported: ModuleNotFoundError: No module named "
                "'no_such_module'; repair or uninstall the package"
            ),
        ),
        (
            "",
            "broken_npu:TARGETS",
            (
                "'broken_npu:TARGETS' cannot be imported: AttributeError: module 'broken_npu' has no "
                "attribute 'TARGETS'; repair or uninstall the package"
            ),
        ),
        (
            "",
            None,
            (
                "PLATFORMS of 'broken_npu' is no tuple of lingeronnx.targets.Target; repair or "
                "uninstall the package"
            ),
        ),
        (
            "PLATFORMS = ('stratus',)",
            None,
            (
                "PLATFORMS of 'broken_npu' is no tuple of lingeronnx.targets.Target; repair or "
                "uninstall the package"
            ),
        ),
        (
            "from lingeronnx.targets import GENERIC\nPLATFORMS = (GENERIC,)",
            None,
            (
                "platform 'generic' is already one of lingeronnx; rename it, or uninstall one of the "
                "packages"
            ),
        ),
        (
            f"{TARGETS}\nPLATFORMS *= 2",
            None,
            (
                "platform 'stratus' is already one of entry point 'broken_npu' of lingeronnx.targets "
                "in broken_npu 0.5; rename it, or uninstall one of the packages"
            ),
        ),
    ),
    ids=("import", "attribute", "empty", "names", "built-in", "twice"),
)
def test_a_package_that_is_wrong(install, source, entry_point, message):
    """One line names the package; built-in targets work on."""
    install("broken_npu", source, entry_point=entry_point)
    with pytest.raises(lo.ConfigError) as caught:
        get_target("stratus")
    prefix = "entry point 'broken_npu' of lingeronnx.targets in broken_npu 0.5: "
    assert str(caught.value) == prefix + message
    assert get_target("generic") is GENERIC


def run(folder, *command):
    """Run Python with the sources of this checkout and what is installed in `folder`."""
    paths = os.pathsep.join((str(folder), str(ROOT)))
    finished = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.slow
def test_an_installed_package(tmp_path):
    """pip installs a project; commands and calls take its platform by name, without a network and
    without a change in the core.
    """
    project, site = tmp_path / "project", tmp_path / "site"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    pip = ("-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-index", "--no-deps")
    run(tmp_path, *pip, "--no-build-isolation", "--target", site, project)
    model = plain()
    onnx.save(ir.to_proto(model), tmp_path / "net.onnx")
    np.savez(tmp_path / "calib.npz", **samples(model))
    net, calib = tmp_path / "net.onnx", tmp_path / "calib.npz"
    command = ("-m", "lingeronnx")
    assert "cirrus" in run(site, *command, "platforms")
    assert "an NPU that nobody built" in run(site, *command, "platforms", "cirrus")
    assert "cirrus" in run(site, *command, "check", net, "--platform", "cirrus")
    written = tmp_path / "net_cirrus.onnx"
    options = ("--platform", "cirrus", "--mode", "max-value", "--effort", "fast")
    run(site, *command, "quantize", net, "--calib", calib, *options, "-o", written)
    simulated = tmp_path / "simulated.npz"
    run(site, *command, "simulate", written, "--input", calib, "-o", simulated)
    from tests.targets.cirrus.cirrus_npu import CIRRUS

    result = lo.quantize(model, samples(model), platform=CIRRUS, mode="max-value", effort="fast")
    (want,) = result.session().run(None, samples(model))
    with np.load(simulated) as arrays:
        assert np.array_equal(arrays[result.graph.graph.outputs[0].name], want)
