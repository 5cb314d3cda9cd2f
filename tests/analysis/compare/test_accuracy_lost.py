"""The story of docs/how-to/accuracy-dropped.md, as it stands there: accuracy is lost, `compare`
says why, its options mend it.
"""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from lingeronnx.cli import main

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "accuracy-dropped.md"
SHARED = Path(__file__).resolve().parents[4] / "shared"


def run(line):
    """Run a command of the page with --json; return the object."""
    line = line.replace("cifar_", f"{SHARED}/models/cifar_").replace(
        "loaders.py", f"{SHARED}/data/loaders.py"
    )
    words = shlex.split(line)[1:]
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the story's model and pictures are in ../shared")
def test_the_story(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text().replace("\\\n", "")
    lines = [line.strip() for line in re.findall(r"^    (lingeronnx .*)$", text, re.MULTILINE)]
    plain, compared, mended, *measured = lines
    first = run(plain)
    assert (first["integer_macs"], first["chip_ready"]) == (1.0, True)
    result = run(compared)
    advice = Path("lost/abnormal_layer_advisor.txt").read_text()
    options = advice.split("All options together:\n")[1].strip().splitlines()[0]
    assert options == result["options"]
    before, after = shlex.split(plain), shlex.split(mended)
    name, value = options.split()  # takes the place of the one of this name
    before[before.index(name) + 1] = value
    assert before[:-1] == after[:-1], "the page pastes other options"
    again = run(mended)
    assert (again["integer_macs"], again["chip_ready"]) == (1.0, True)
    before, after = (run(f"{line} --limit 500")["value"] for line in measured)
    assert before < 60
    assert after >= 80
