"""The folder as its user has it: `make`, the known-answer test, its dumps, and what `verify` says
of them.
"""

import re
import shutil
import subprocess

import numpy as np
import pytest

from lingeronnx.deployment import verify
from lingeronnx.deployment.c_program import build, host_source
from lingeronnx.deployment.c_program.host_proof import build_stub_packages
from lingeronnx.deployment.c_program.known_answers import measure_tolerance
from lingeronnx.deployment.c_program.vectors import collect_vectors
from tests import nets

from . import programs

pytestmark = pytest.mark.skipif(
    shutil.which("make") is None
    or shutil.which("cc") is None
    or host_source.explain_missing_generator() is not None,
    reason="no make, no C compiler, or no emx-onnx-cgen",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("user")
    return packed(
        programs.deploy_case(
            place / "board",
            programs.make_two_chip_parts(),
            nets.samples(programs.make_two_chip_parts(), 24),
            "gap",
            samples=3,
        ),
        place,
    )


@pytest.fixture(scope="module")
def faint(tmp_path_factory):
    place = tmp_path_factory.mktemp("faint")
    return packed(
        programs.deploy_case(
            place / "board",
            programs.make_small_output_net(),
            programs.faint_calls(),
            "faint",
            samples=2,
        ),
        place,
    )


def packed(found, place):
    """Put the stand-in's library and packages where `run` looks for them."""
    library = place / "thinker"
    shutil.copytree(build.get_stub_folder(), library / "include")
    (library / "lib").mkdir()
    build.compile_program(
        [(build.get_stub_folder() / "standin.c", ("-fPIC", f"-I{build.get_stub_folder()}"))],
        library / "lib/libthinker.so",
    )
    vectors = [collect_vectors(found.program, call) for call in found.calls]
    (found.folder / f"{found.program.stem}.pkg").write_bytes(
        b"".join(build_stub_packages(found.program, found.folder, vectors))
    )
    return found


def run(folder, *words):
    """Build with make in a folder beside the library, run the test with `words`; return its last
    line.
    """
    library = folder.parent / "thinker"
    subprocess.run(
        ["make", "-s", f"THINKER={library}"], cwd=folder, check=True, capture_output=True
    )
    done = run_test(folder, *words)
    return (done.stdout.splitlines() or [""])[-1]


def run_test(folder, *words, package=None):
    """Run the test that make built, on the package of the folder or another one."""
    stem = next(folder.glob("*.pkg")).stem
    words = [f"./{stem}_test", *map(str, words), package or f"{stem}.pkg"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def changed(made, tmp_path, file, change):
    """Return a copy of the folder, beside the library, with one file changed."""
    shutil.copytree(made.folder.parent / "thinker", tmp_path / "thinker")
    folder = tmp_path / "board"
    shutil.copytree(made.folder, folder)
    text = (folder / file).read_text()
    assert change(text) != text
    (folder / file).write_text(change(text))
    return folder


def test_make_and_run(made):
    assert run(made.folder).startswith("PASS: 3 calls, each of 4 parts by itself and the whole")
    calls = "".join(
        (made.folder / name).read_text() for name in ("main.c", "README.md", "DETAILS.md")
    )
    assert "0.05" not in calls


def test_dumps_are_what_verify_takes(made, tmp_path):
    """Every port of every part, chip and host, is compared; --stop leaves out what comes later."""
    assert run(made.folder, "--dump", tmp_path).startswith("PASS")
    model, given = made.folder / "gap.onnx", made.folder / "golden/2/model_input.npz"
    found = verify(model, given, dump=tmp_path)
    assert found.agrees
    assert not found.unknown
    ports = {a.tensor for part in made.program.host for a in (*part.sources, *part.targets)}
    ports |= {port.tensor for part in made.program.chip for port in (*part.inputs, *part.outputs)}
    assert ports <= {*found.compared}
    (half := tmp_path / "half").mkdir()
    assert run(made.folder, "--dump", half, "--stop", 2) == "stopped in call 0 after 2 parts"
    found = verify(model, made.folder / "golden/0/model_input.npz", dump=half)
    assert found.agrees
    assert 0 < len(found.compared) < len(ports)


def test_dumps_beside_one_part(made, tmp_path):
    """A chip part's graph is compared with its own tensors; those of host parts are not in it."""
    assert run(made.folder, "--dump", tmp_path).startswith("PASS")
    for part in made.program.unique_chip_parts:
        given = made.folder / f"golden/2/{part.name}/input.npz"
        found = verify(made.folder / part.file, given, dump=tmp_path)
        assert found.agrees
        assert {port.tensor for port in part.outputs} <= {*found.compared}
        assert [name for name in found.unknown if name.startswith("host1_")]


def test_dumps_are_measured_by_the_range_of_all_calls(faint, tmp_path):
    """Where all is nearly 0 in the call that was dumped, as in the known-answer test."""
    shutil.copytree(faint.folder / "golden/0", tmp_path / "first/0")
    assert run(faint.folder, "--golden", tmp_path / "first", "--dump", tmp_path).startswith(
        "PASS: 1 calls"
    )
    (path,) = tmp_path.glob("host1_out0_*")
    most = np.fromfile(faint.folder / "golden/1/host1/output0.bin", np.float32).max()
    right = np.fromfile(path, np.float32)
    for off, agrees in ((0.5e-5, True), (2e-5, False)):
        wrong = right.copy()
        wrong[0] += off * most
        wrong.tofile(path)
        found = verify(
            faint.folder / "faint.onnx", faint.folder / "golden/0/model_input.npz", dump=tmp_path
        )
        assert found.agrees is agrees


def test_a_wrong_integer_is_shown(made, tmp_path):
    """Where it is, what it is and what it should be."""
    folder = changed(made, tmp_path, "main.c", lambda text: text + "\n")
    path = next((folder / "golden/1").glob("chip1/output0.bin"))
    right = np.fromfile(path, np.int8)
    wrong = right.copy()
    wrong[3] ^= 1
    wrong.tofile(path)
    end = f"output 0, element 3 is {right[3]}, expected {wrong[3]}"
    assert run(folder) == f"FAIL: call 1, chip1 by itself, {end}"


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words, said",
    (
        (("--dumb", "x"), "usage: ./gap_test"),
        (("gap.pkg",), "usage: ./gap_test"),
        (("--dump", "nowhere"), "FAIL: call 0: gap_run returns -10"),
    ),
)
def test_words_that_mean_nothing(made, words, said):
    assert run(made.folder, *words).startswith(said)


def test_exit_codes(made, tmp_path):
    """main.c explains the codes that it returns, and names the meaning of a code of the program."""
    comment = (made.folder / "main.c").read_text().partition("*/")[0]
    assert re.findall(r"^ \*     (\d)  ", comment, re.MULTILINE) == ["0", "1", "2", "3", "4"]
    folder = changed(made, tmp_path, "main.c", lambda text: text + "\n")
    assert run(folder).startswith("PASS")
    corrupt = bytearray((folder / "gap.pkg").read_bytes())
    corrupt[100] ^= 1
    (folder / "corrupt").write_bytes(corrupt)
    wrong = folder / "golden/1/model_output0.bin"
    cases = (
        ({}, 0, "PASS"),
        ({"package": "--no-option"}, 2, "usage"),
        ({"package": "nowhere"}, 3, "cannot read nowhere"),
        ({"package": "corrupt"}, 4, "gap_init returns -3 (a package is corrupt)"),
    )
    for options, code, message in cases:
        done = run_test(folder, **options)
        assert (done.returncode, message in done.stdout) == (code, True), done.stdout
    done = run_test(folder, "--golden", "nowhere")
    assert (done.returncode, "no call in nowhere" in done.stdout) == (3, True)
    wrong.write_bytes(np.full(wrong.stat().st_size // 4, 1e3, np.float32).tobytes())
    assert run_test(folder).returncode == 1
    wrong.write_bytes(b"")
    assert run_test(folder).returncode == 3


def test_make_without_the_executor_names_it(made, tmp_path):
    folder = tmp_path / "board"
    shutil.copytree(made.folder, folder)
    done = subprocess.run(["make"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "thinker/include/thinker/thinker.h does not exist" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    subprocess.run(["make", "-s", "clean"], cwd=folder, check=True)


def test_a_wrong_host_part_is_named(made, tmp_path):
    """The test says which part, and verify which tensor, though everything behind it is wrong
    too.
    """
    folder = changed(
        made,
        tmp_path,
        "gap_host1.c",
        lambda text: re.sub(r"expf\(", "1.001f * expf(0.99f * ", text),
    )
    assert "gap_self_test returns 2" in run(folder)
    (folder / "gap_selftest.c").write_text(
        '#include "gap.h"\nint gap_self_test(void) { return 0; }\n'
    )
    assert "host1 by itself" in run(folder)
    (dump := tmp_path / "dump").mkdir()
    assert "stopped" in run(folder, "--dump", dump, "--stop", 2)
    found = verify(folder / "gap.onnx", folder / "golden/0/model_input.npz", dump=dump)
    assert found.first.operator == "Softmax"
    assert found.first.tensor == made.program.host[0].targets[0].tensor
    assert isinstance(found.first.found, float)
    assert found.first.differing


def test_a_wrong_border_is_named(made, tmp_path):
    """What the host quantizes wrongly is an integer of the chip's."""
    folder = changed(
        made,
        tmp_path,
        "gap.c",
        lambda text: text.replace("floorf(scaled + 0.5f)", "floorf(scaled)"),
    )
    assert run(folder).startswith(
        "FAIL: call 0: gap_run"
    )  # each part by itself is right; no such call is replayed
    (dump := tmp_path / "dump").mkdir()
    run(folder, "--dump", dump, "--stop", 1)
    found = verify(folder / "gap.onnx", folder / "golden/0/model_input.npz", dump=dump)
    assert isinstance(found.first.found, int)
    assert found.first.operator == "Quant"
    assert found.first.differing
    assert found.first.largest == 1


@pytest.mark.parametrize(
    "off, end", ((0.5e-5, "PASS: 2 calls"), (2e-5, "FAIL: call 0, host1 by itself, output 0"))
)
@pytest.mark.parametrize("file", ("host1/output0.bin", "model_output0.bin"))
def test_floats_are_measured_by_the_range_of_all_calls(faint, tmp_path, off, end, file):
    """What is far off in a call where all is nearly 0 is near in the range of the calls: of parts
    and of the whole.
    """
    folder = changed(faint, tmp_path, "main.c", lambda text: text + "\n")
    wanted = [np.fromfile(folder / f"golden/{call}/{file}", np.float32) for call in range(2)]
    assert wanted[0].max() < 1e-3 * wanted[1].max()
    wanted[0][0] += off * wanted[1].max()
    wanted[0].tofile(folder / "golden/0" / file)
    end = (
        end.replace("host1 by itself, output 0", "output out_y")
        if file.startswith("model")
        else end
    )
    assert run(folder).startswith(end)


def test_sizes_that_differ(made, tmp_path):
    assert run(made.folder, "--dump", tmp_path).startswith("PASS")
    path = next(tmp_path.glob("host1_*"))
    path.write_bytes(path.read_bytes()[:-4])
    found = verify(
        made.folder / "gap.onnx", made.folder / "golden/2/model_input.npz", dump=tmp_path
    )
    assert not found.agrees
    assert "bytes, the simulator" in found.first.remarks[0]
    assert found.first.index is None


def test_tolerance_is_measured(made):
    """It is what moved floats do to the outputs: more than host floats alone, and much less than
    the range.
    """
    assert made.program.tolerance == measure_tolerance(
        made.program, made.parts, made.calls, made.feeds
    )
    assert 1e-5 < made.program.tolerance < 0.05
