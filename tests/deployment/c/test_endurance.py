"""Long streams: equal bit for bit to a session with the program's host parts, and near the plain
one.
"""

import itertools
import shutil

import pytest

from lingeronnx.deployment.c_program import host_source, stream_test
from tests.ops.test_recurrent_forms import streaming

from . import programs

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or host_source.explain_missing_generator() is not None,
    reason="no C compiler, or no emx-onnx-cgen",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream") / "board"
    return programs.deploy_case(
        folder,
        streaming("LSTM"),
        programs.stream_calls(6),
        "spotter",
        programs.STATE,
        6,
        platform="arcs",
    )


def calls(made, count):
    fed = {one.tensor for one, _ in made.program.states}
    items = [
        {name: array for name, array in feed.items() if name not in fed} for feed in made.feeds
    ]
    return itertools.islice(itertools.cycle(items), count)


def test_a_stream_keeps_its_states(made, monkeypatch):
    monkeypatch.setattr(stream_test, "WINDOW_CALLS", 5)
    found = stream_test.run_stream_test(made.program, made.parts, made.folder, calls(made, 15))
    assert (found.calls, found.failed, len(found.errors)) == (15, [], 3)
    assert found.outputs > 0
    assert not found.is_error_growing


def test_a_state_that_is_not_fed_back_is_found(made, tmp_path):
    folder = tmp_path / "faulty"
    shutil.copytree(made.folder, folder)
    text = (folder / "spotter.c").read_text()
    wrong = "\n".join(
        line for line in text.splitlines() if not line.startswith("    memcpy(ram.fields.state0")
    )
    assert wrong != text
    (folder / "spotter.c").write_text(wrong + "\n")
    assert stream_test.run_stream_test(made.program, made.parts, folder, calls(made, 10)).failed


def test_growth():
    """The last stretch against the first."""
    assert stream_test.StreamTestResult(errors=[0.0, 1e-3]).is_error_growing
    assert not stream_test.StreamTestResult(errors=[1e-3, 1.5e-3]).is_error_growing
    assert not stream_test.StreamTestResult(errors=[1e-3]).is_error_growing
