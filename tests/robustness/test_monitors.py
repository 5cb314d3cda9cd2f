"""The monitor of hostile cases sees files outside the target, changed inputs and stages."""

import json
import subprocess
import sys

_ACTIONS = {
    "Path('o.onnx').write_bytes(b'z')": "",
    "Path('/dev/null').write_bytes(b'z')": "",
    "Path('/proc/self/comm').write_bytes(b'z')": "",
    "Path('../proc').write_bytes(b'z')": "proc",
    "Path('../../named_search.jsonl').write_bytes(b'z')": "",
    "os.mkdir('../../.named.onnx.lingeronnx-1-a')": "",
    "Path('../../.named.onnx.lingeronnx-1-a/page').write_bytes(b'z')": "",
    "os.makedirs('..', exist_ok=True)": "",
    "Path('o_search.jsonl').write_bytes(b'z')": "",
    "Path('m.onnx').read_bytes()": "",
    "lo.check(GOOD / 'conv.onnx', platform='venus')": "['lowering']",
    "lo.simulate(GOOD / 'conv_venus.onnx', GOOD / 'conv.npz')": "['binding']",
    "Path('m.onnx').write_bytes(b'z')": "input m.onnx changed",
    "os.remove('m.onnx')": "input m.onnx changed",
    "Path('../beside').write_bytes(b'z')": "beside",
    "os.mkdir('../folder')": "folder",
    "os.rename('o_search.jsonl', '../renamed')": "renamed",
    "tempfile.mkdtemp()": "left behind",
}
_PROGRAM = """
import json
import os
import sys
import tempfile
from pathlib import Path

import lingeronnx as lo
from tests.robustness.case import Case
from tests.robustness.case_generators import GOOD
from tests.robustness.monitors import Monitor

folder = Path(sys.argv[1])
monitor = Monitor(folder / "scratch")
found = {}
for number, action in enumerate(json.loads(sys.argv[2])):
    place = folder / str(number) / "case"
    call = ["quantize", "-o", "o.onnx", "-o", "../../named.onnx"]
    case = Case(call, {"m.onnx": b"x", "o_search.jsonl": b"y"})
    case.write(place)
    os.chdir(place)
    with monitor.watch(place):
        exec(action)
    stages = str(sorted(monitor.stages)) if monitor.stages else ""
    found[action] = monitor.find_violation(case, place) + stages
print(json.dumps(found))
"""


def test_the_monitor(tmp_path):
    """Writes to the output, to devices, below /proc, and reads are fine; others are named, and so are stages."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path), json.dumps(list(_ACTIONS))],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    assert found.keys() == _ACTIONS.keys()
    for action, words in _ACTIONS.items():
        assert words in found[action], action
        assert bool(found[action]) == bool(words), action
