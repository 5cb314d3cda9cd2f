"""What a release says of itself: one source of its version, its changes, the container's steps, an
example for CI.
"""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import lingeronnx
from benchmarks import container_steps, lowest_versions, package_install
from lingeronnx.cli import demo_model as demo
from tests.packaging.test_wheel import SOURCES

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = configparser.ConfigParser()
SETTINGS.read(ROOT / "setup.cfg")
VERSION = re.escape(lingeronnx.__version__)


def test_the_version_has_one_source():
    """setup.cfg reads it from the package, and no other file of the package or its settings says
    it.
    """
    assert SETTINGS["metadata"]["version"] == "attr: lingeronnx.__version__"
    files = [ROOT / "setup.cfg", ROOT / "pyproject.toml", *(ROOT / "lingeronnx").rglob("*.py")]
    said = [
        path.relative_to(ROOT).as_posix()
        for path in files
        if re.search(rf"\b{VERSION}\b", path.read_text("utf-8"))
    ]
    assert said == ["lingeronnx/__init__.py"]


def test_the_changes_name_the_version():
    """The newest release of CHANGELOG.md is this one; releases go down, each with a date."""
    heads = re.findall(
        r"^## \[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d{2}-\d{2}$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.M,
    )
    numbers = [tuple(map(int, head)) for head in heads]
    assert ".".join(map(str, numbers[0])) == lingeronnx.__version__
    assert numbers == sorted(set(numbers), reverse=True)
    assert len(re.findall(r"^## \[\d", (ROOT / "CHANGELOG.md").read_text(), re.M)) == len(heads)


# ---- lowest versions -----------------------------------------------------------------------------------------------


def test_every_dependency_has_a_lowest_version():
    """All that users install is tested with the lowest version that setup.cfg says."""
    found = lowest_versions.get_lowest_versions()
    for line in SETTINGS["options"]["install_requires"].splitlines():
        if line and not line.startswith("#"):
            if "!=" in line:  # excludes a release of what a dependency imports
                assert line.partition("!=")[0] not in found
                continue
            name, _, bounds = line.partition(">=")
            assert found[name] == bounds.partition(",")[0]
    assert found.keys() >= {"matplotlib", "Pillow", "distributed", *lowest_versions.TOOLS}


def test_a_dependency_without_a_lowest_version_is_told():
    with pytest.raises(SystemExit, match="'numpy<3' names no lowest version"):
        dict(lowest_versions._bounds("onnx>=1.18\nnumpy<3"))


# ---- the container -------------------------------------------------------------------------------------------------


def test_the_container_gets_what_the_wheel_is_made_of():
    """.dockerignore lets through the sources of a wheel, and nothing else."""
    rules = (ROOT / ".dockerignore").read_text()
    taken = ["lingeronnx/cli/show.py", "simulator/luts/a.npz", "setup.cfg", "README.md"]
    left = [
        "tests/nets.py",
        ".git/config",
        "lingeronnx/__pycache__/a.pyc",
        "dist/a.whl",
        "secret.txt",
        "docs/a.md",
    ]
    assert [name for name in (*taken, *left) if container_steps.is_included(name, rules)] == taken
    assert {rule[1:] for rule in rules.splitlines() if rule.startswith("!")} == set(SOURCES)


def test_the_container_is_no_root_and_has_our_entry_point():
    found = list(container_steps.iterate_steps((ROOT / "Dockerfile").read_text()))
    words = [word for word, _ in found]
    assert set(words) <= {
        "ARG",
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "ENV",
        "USER",
        "ENTRYPOINT",
        "CMD",
    }
    assert ("ENTRYPOINT", '["lingeronnx"]') in found
    assert ("USER", "lingeronnx") in found[words.index("FROM", 1) :]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert all(rest.endswith(("-slim", "-slim AS build")) for word, rest in found if word == "FROM")
    (python,) = (rest for word, rest in found if word == "ARG")
    assert tuple(map(int, python.removeprefix("PYTHON=").split("."))) >= (3, 11)


def test_steps_are_placed_below_a_folder():
    """The container's folders move, others stay; `python` is the system's at the beginning
    alone.
    """
    placed = container_steps._rebase_command(
        "python -m venv /opt/lingeronnx", Path("/r"), "/usr/bin/python3"
    )
    assert placed == "/usr/bin/python3 -m venv /r/opt/lingeronnx"
    placed = container_steps._rebase_command(
        "PATH=/opt/a/bin:$PATH LINGERONNX_CACHE_DIR=/cache /usr/optional", Path("/r"), "p"
    )
    assert placed == "PATH=/r/opt/a/bin:$PATH LINGERONNX_CACHE_DIR=/r/cache /usr/optional"


# ---- packages ------------------------------------------------------------------------------------------------------


def test_a_command_that_fails_is_told(tmp_path):
    """With its exit code and what it printed; the environment of the checkout is not handed on."""
    with pytest.raises(package_install.CommandError, match=r"exit code 3\nbad\n"):
        package_install.run(sys.executable, "-c", "print('bad'); raise SystemExit(3)", cwd=tmp_path)
    seen = package_install.run(
        sys.executable, "-c", "import os; print(os.environ.get('PYTHONPATH'))", cwd=tmp_path
    )
    assert seen == "None\n"


# ---- the example for CI --------------------------------------------------------------------------------------------


def ci_job():
    """Return (its settings, {step: its lines}) of the example."""
    job = yaml.safe_load((ROOT / "examples" / "ci" / "workflow.yml").read_text())["jobs"][
        "quantize"
    ]
    return job["env"], {step["name"]: step["run"] for step in job["steps"] if "run" in step}


@pytest.mark.parametrize("met, code", [("true", 0), ("false", 1)])
def test_the_example_for_ci_reads_the_report(met, code, tmp_path):
    (tmp_path / "report.json").write_text(f'{{"search": {{"met": {met}}}}}')
    assert (
        subprocess.run(["bash", "-e", "-c", ci_job()[1]["limits"]], cwd=tmp_path).returncode == code
    )


@pytest.mark.parametrize(
    "shrunk, code",
    [pytest.param(1, 0, marks=pytest.mark.slow), pytest.param(50, 1, marks=pytest.mark.deep)],
)
def test_the_example_for_ci_fails_where_a_limit_breaks(shrunk, code, tmp_path):
    """Its steps but for the installation, as a CI's shell runs them; calibrated by much smaller
    inputs it must fail.
    """
    settings, steps = ci_job()
    data = Path(demo.__file__).parent
    with np.load(data / "digits_calib.npz") as found:
        np.savez(tmp_path / "calib.npz", **{name: array / shrunk for name, array in found.items()})
    files = {
        "MODEL": data / "digits_cnn.onnx",
        "CALIB": "calib.npz",
        "TEST": data / "digits_test.npz",
    }
    assert {*files, "DROP"} == settings.keys()
    around = {**os.environ, **settings, **{key: str(path) for key, path in files.items()}}
    program = tmp_path / "lingeronnx"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m lingeronnx "$@"\n')
    program.chmod(0o755)
    around["PATH"] = f"{tmp_path}:{around['PATH']}"
    words = ("bash", "-e", "-c", f"{steps['quantize']}\n{steps['limits']}")
    done = subprocess.run(words, cwd=tmp_path, env=around, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("short of the goal" in " ".join(done.stderr.split())) == bool(code)


# ---- public hosting ------------------------------------------------------------------------------------------------


def workflow_steps():
    """Return the make targets that the workflow runs, by job."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    return {
        name: [step["run"].removeprefix("make ") for step in job["steps"] if "run" in step]
        for name, job in jobs.items()
    }


def test_the_workflow_runs_what_ci_runs():
    """Every step of .ci/run is a step of a job, and every step is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    steps = workflow_steps()
    targets = {step for job in steps.values() for step in job}
    assert [t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)] == []
    run = re.findall(r"^run_step make ([a-z-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert set(run) <= targets
    assert {"lint", "test"} <= set(steps["fast"])


def test_issue_forms_ask_for_what_a_report_needs():
    """Forms are valid: each field has an id and a label; versions and commands are required."""
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    required = set()
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem == "config":
            continue
        assert {"name", "description", "body"} <= form.keys()
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert all(field["attributes"]["label"] for field in fields)
        required |= {f["id"] for f in fields if f.get("validations", {}).get("required")}
    assert {"command", "versions", "report"} <= required


def test_citation_and_security():
    """Both exist, in the form that hosting services read."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == SETTINGS["metadata"]["license"]
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", security)
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_extra_all_has_every_optional_dependency_of_users():
    extras = SETTINGS["options.extras_require"]
    (line,) = extras["all"].split()
    named = set(re.fullmatch(r"lingeronnx\[([\w,]+)\]", line)[1].split(","))
    assert named == set(extras) - {"all", "bench", "test", "docs", "dev"}
