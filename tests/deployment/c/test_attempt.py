"""The program, compiled and run: proved where it is right, caught where a fault is planted."""

import os
import re
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from lingeronnx.common.errors import ConfigError
from lingeronnx.deployment.c_program import build, host_source
from lingeronnx.deployment.c_program import host_proof as module
from lingeronnx.deployment.c_program.host_proof import _compare_host_parts as hosts
from lingeronnx.deployment.c_program.host_proof import (
    build_shared_library,
    prove_program,
    run_known_answer_test,
)
from lingeronnx.deployment.c_program.host_proof import list_sources as c_files
from lingeronnx.deployment.c_program.program import ChipPart
from lingeronnx.deployment.c_program.program_files import compute_crcs
from lingeronnx.deployment.c_program.proof import Proof
from lingeronnx.deployment.c_program.vectors import collect_vectors
from lingeronnx.runtime.parts_runner import PartRun
from lingeronnx.runtime.session import Session
from tests import nets
from tests.ops.test_recurrent_forms import streaming

from . import programs

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
    pytest.mark.skipif(
        host_source.explain_missing_generator() is not None, reason="emx-onnx-cgen is not installed"
    ),
]


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    data = nets.samples(programs.make_two_chip_parts(), 24)
    return programs.deploy_case(
        tmp_path_factory.mktemp("several") / "board",
        programs.make_two_chip_parts(),
        data,
        "gap",
        samples=4,
    )


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream") / "board"
    calls, state = programs.stream_calls(6), programs.STATE
    return programs.deploy_case(
        folder, streaming("LSTM"), calls, "spotter", state, 6, platform="arcs"
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    data = nets.samples(programs.make_single_part(), 24)
    return programs.deploy_case(
        tmp_path_factory.mktemp("alone") / "board", programs.make_single_part(), data, "alone"
    )


def proof(made, folder=None):
    return prove_program(made.program, made.parts, folder or made.folder, made.calls, made.feeds)


@pytest.mark.sweep
@pytest.mark.parametrize("which", ("several", "stream", "alone"))
def test_proved(which, request):
    """Chip parts, borders, host parts, states and the known-answer test, without a warning on our
    own C.
    """
    made = request.getfixturevalue(which)
    found = proof(made)
    assert not found.failed
    assert found.calls == len(made.feeds) + 3  # and hard ones
    assert found.warnings == 0
    assert found.integers > 0
    assert found.host <= 1e-5


def test_many_ports(tmp_path):
    """A part that writes more tensors than a usual model has, as where a state is taken apart."""
    made = programs.deploy_case(
        tmp_path / "board",
        programs.make_many_outputs(),
        nets.samples(programs.make_many_outputs(), 4),
        "wide",
    )
    assert len(made.program.unique_chip_parts[0].outputs) == 66
    assert not proof(made).failed


def test_rows_of_32_bits_between_parts(tmp_path):
    """The host reads sums of several rows as the chip has them, for a layer behind it."""
    net = nets.Net(6, 16, seed=2)
    weights = [
        net.const(net.rng.standard_normal(shape).astype(np.float32))
        for shape in ((16, 24), (24, 3))
    ]
    waves = net.node("Sin", net.node("MatMul", "x", weights[0], out="sums"))
    model = net.graph(net.node("MatMul", waves, weights[1], out="y"))
    wide = {"sums": {"out_bits": 32}}
    made = programs.deploy_case(
        tmp_path / "board",
        model,
        nets.samples(model, 16),
        "rows",
        platform="venusA",
        overrides=wide,
    )
    assert [port.dtype for port in made.program.chip[0].outputs] == ["int32"]
    assert not proof(made).failed


def test_parts(several, stream, alone):
    assert [p.name for p in several.program.parts] == ["chip1", "host1", "chip2", "host2"]
    assert len(stream.program.states) == 2
    assert [p.name for p in alone.program.parts] == ["chip1"]


def faulty(made, tmp_path, change):
    """Return what --try says of a copy of the folder with a fault in its C."""
    folder = tmp_path / "faulty"
    shutil.copytree(made.folder, folder)
    path = folder / f"{made.program.stem}.c"
    text = path.read_text()
    wrong = change(text)
    assert wrong != text
    path.write_text(wrong)
    return proof(made, folder).failed


def swap_inputs(text):
    first = re.search(r"spotter_host1\((.*?)\);", text)[0]
    words = first[len("spotter_host1(") : -2].split(", ")
    same = [i for i, word in enumerate(words) if word.startswith("ram.fields.state")]
    words[same[0]], words[same[1]] = words[same[1]], words[same[0]]
    return text.replace(first, f"spotter_host1({', '.join(words)});", 1)


def parts_in_wrong_order(text):
    # The last ones: a table of the packages has the names too.
    one, two = text.rindex("    /* chip1 */"), text.rindex("    /* host1 */")
    three = text.rindex("    /* chip2 */")
    return text[:one] + text[two:three] + text[one:two] + text[three:]


FAULTS = {
    "an exponent off by one": (
        "several",
        lambda t: re.sub(r"(quantize_int8\(.*?, 0x1p)\+(\d)f", _less, t, count=1),
    ),
    "a scale back off by one": (
        "several",
        lambda t: re.sub(r"(dequantize_int8\(.*?, 0x1p)-(\d)f", r"\1-1\2f", t, count=1),
    ),
    "a missing clamp": (
        "several",
        lambda t: t.replace("if (whole >= 127.0f) y[i] = 127;", "if (0) y[i] = 0;"),
    ),
    "parts in wrong order": ("several", parts_in_wrong_order),
    "rounded to nearest even": (
        "several",
        lambda t: t.replace("floorf(scaled + 0.5f)", "rintf(scaled)"),
    ),
    "a state not fed back": (
        "stream",
        lambda t: re.sub(r"    memcpy\(ram\.fields\.state1,.*\n", "", t),
    ),
    "states swapped": ("stream", swap_inputs),
    "an output not written": (
        "alone",
        lambda t: re.sub(r"    dequantize_int8\(\(const.*\n", "", t),
    ),
}


def _less(match):
    return f"{match[1]}+{int(match[2]) - 1}f"


@pytest.mark.sweep
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults(fault, request, tmp_path):
    """Each is found: besides the samples, a proof runs inputs that are large, and halves between
    integers.
    """
    which, change = FAULTS[fault]
    made = request.getfixturevalue(which)
    assert faulty(made, tmp_path, change)


def test_session_with_the_programs_own_host(several):
    """`Session(path, host=DIR)` computes what the program computes; another folder's program is
    refused.
    """
    own, plain = Session(several.graph, host=several.folder), Session(several.graph)
    x = np.concatenate([feed["x"] for feed in several.feeds])
    have, want = own.run(None, {"x": x}), plain.run(None, {"x": x})
    for one, two in zip(have, want, strict=True):
        np.testing.assert_allclose(one, two, atol=0.1)
    with pytest.raises(ConfigError, match="no manifest.json"):
        Session(several.graph, host=several.folder / "golden")
    with pytest.raises(ConfigError, match="integer graphs"):
        Session(programs.make_single_part(), host=several.folder)


@pytest.mark.parametrize("gap, fails", ((9e-6, False), (1.2e-5, True)))
def test_the_range_of_a_host_part_is_that_of_all_calls(gap, fails):
    """What an output is far from in one call, in which all is nearly 0, is small where other calls
    go up to 1.
    """
    wanted = [np.float32([1e-4, 2e-4]), np.float32([0.5, 1])]
    part = SimpleNamespace(name="host1", targets=[SimpleNamespace(tensor="y", dtype="float32")])
    found = Proof(
        seen=[
            [SimpleNamespace(inputs=i, outputs=[a + np.float32(gap)])] for i, a in enumerate(wanted)
        ]
    )
    program = SimpleNamespace(parts=[part], host_tolerances={"y": 1e-5})
    hosts(found, program, SimpleNamespace(run_host_part=lambda name, number: [wanted[number]]))
    assert found.host == pytest.approx(gap, rel=0.02)
    assert bool(found.failed) == fails
    assert all("output 'y' differs by 1.2e-05 of its range" in text for text in found.failed)


class Drifting:
    """A host part that adds half a count, or nearly that, to a state; a chip part that quantizes
    that.
    """

    chip, host = SimpleNamespace(name="chip1", chip=True), SimpleNamespace(name="host1", chip=False)

    def __init__(self, step):
        self.step = np.float32(step)

    def iter_parts(self, given):
        v = given["s"] * np.float32(0.5) + self.step
        q = np.floor(v + np.float32(0.5)).astype(np.int8)
        made = {"t": v * np.float32(0.5) + q * np.float32(2)}
        return [
            PartRun(self.host, given, {"v": v}, []),
            PartRun(self.chip, {"v": v}, made, [("q", q, None)]),
        ]


def test_a_tie_in_a_stream_moves_what_comes_later(monkeypatch):
    """From the same states one integer differs, next to a tie; a plain run that keeps its own
    states drifts away.
    """
    array = lambda name: SimpleNamespace(tensor=name, shape=(1,), dtype="float32")  # noqa: E731
    chip = ChipPart(
        "chip1",
        "chip1",
        0,
        "",
        None,
        None,
        (SimpleNamespace(tensor="q", shift=0),),
        (),
        (array("v"),),
        (),
        (True,),
        (),
    )
    program = SimpleNamespace(
        parts=[SimpleNamespace(), chip], states=((array("s"), array("t")),), outputs=(), prefix="m"
    )
    monkeypatch.setattr(module, "collect_vectors", lambda *given: [])
    monkeypatch.setattr(module, "_find_call_errors", lambda *given: [])
    loaded = SimpleNamespace(run=lambda given: (0, {}), reset=lambda: None, program=program)
    runners = module._Runners(reference=Drifting(0.5 + 5e-7), compiled=Drifting(0.5 - 1e-6))
    found = Proof()
    module._prove_calls(found, loaded, runners, [{}] * 5)
    assert (found.integers, found.fallen) == (5, 1)
    assert found.differing > 2
    assert 0 < found.tie < 1e-5
    assert "; 1 in calls that begin with the same states;" in found.lines()[1]


# ---- without Python --------------------------------------------------------------------------------------------------


def test_a_tie_that_falls_the_other_way_is_no_fault(tmp_path):
    """A C library with an exp of its own, within what host parts may differ: the run without Python
    is proved, too.
    """
    data = nets.samples(programs.make_two_chip_parts(), 64)
    made = programs.deploy_case(
        tmp_path / "board", programs.make_two_chip_parts(), data, "gap", samples=16
    )
    path = made.folder / "gap_host1.c"
    path.write_text(re.sub(r"expf\(", "expf(1.00001f * ", text := path.read_text()))
    assert path.read_text() != text
    found = proof(made)
    assert found.differing > 0  # a value crossed a tie in the calls that are replayed
    assert found.tie < 1e-2
    assert not found.failed


def test_the_replay_is_no_weaker(several, tmp_path):
    """A package has the program's own calls beside the golden ones; a call that is neither is
    refused.
    """
    seen = proof(several).seen
    assert len(seen) == len(several.feeds)
    golden = [collect_vectors(several.program, call) for call in several.calls]
    first = several.program.unique_chip_parts[0]
    sizes = {
        len(
            build.build_stub_containers(
                several.program, {p.name: 0 for p in several.program.unique_chip_parts}, calls
            )[first.name]
        )
        for calls in (golden, [*golden, *seen])
    }
    assert len(sizes) == 1  # what chip1 is given is the same in both: no host part stands before it
    said = run_known_answer_test(
        several.program, several.folder, tmp_path, [*golden[1:], *seen[1:]]
    )
    assert not said.startswith("PASS")


@pytest.mark.sweep
@pytest.mark.parametrize("which", ("several", "stream", "alone"))
def test_sanitizers(which, request, tmp_path):
    """AddressSanitizer and UBSan see nothing in the known-answer test."""
    made = request.getfixturevalue(which)
    vectors = [collect_vectors(made.program, call) for call in made.calls]
    said = run_known_answer_test(
        made.program, made.folder, tmp_path, vectors, build.SANITIZER_FLAGS
    )
    parts = len(made.program.parts)
    assert said.startswith(
        f"PASS: {len(vectors)} calls, each of {parts} parts by itself and the whole"
    ), said


PROGRAM = """
#include "gap.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static float x[GAP_IN_X_SIZE], y[GAP_OUT_Y_SIZE + 1];
int main(int argc, char **argv)
{
    unsigned char *at = aligned_alloc(64, 1 << 22);
    gap_package one;
    FILE *file = fopen(argv[1], "rb");
    long cut = atol(argv[2]), move = atol(argv[3]), flip = atol(argv[4]);
    int rc;
    one.size = fread(at + move, 1, (1 << 22) - 64, file);
    fclose(file);
    if (cut) one.size -= (size_t)cut;
    if (flip >= 0) at[move + flip] ^= 1;
    one.data = at + move;
    y[GAP_OUT_Y_SIZE] = 77.0f;
    rc = gap_run(x, y);
    printf("%d", rc);
    rc = gap_init(argc > 5 ? NULL : &one);
    printf(" %d", rc);
    rc = gap_run(x, y);
    printf(" %d %d %d\\n", rc, gap_executor_status(), y[GAP_OUT_Y_SIZE] == 77.0f);
    gap_deinit();
    gap_deinit();
    free(at);
    return 0;
}
"""


@pytest.fixture(scope="module")
def injected(several, tmp_path_factory):
    """Return a program that is given bad packages, with the sanitizers, and a good package."""
    place = tmp_path_factory.mktemp("injected")
    (place / "inject.c").write_text(PROGRAM)
    own = c_files(several.program, several.folder)
    stand = build.get_stub_folder()
    extra = [
        (place / "inject.c", ("-std=c11", f"-I{several.folder}")),
        (stand / "standin.c", ("-std=c99", f"-I{stand}")),
    ]
    build.compile_program([*own, *extra], place / "inject", build.SANITIZER_FLAGS)
    zero = [{"x": np.zeros_like(several.feeds[0]["x"])}]
    from lingeronnx.runtime.parts_runner import PartsRunner

    runner = PartsRunner(several.parts, "executor")
    calls = [collect_vectors(several.program, list(runner.iter_parts(feed))) for feed in zero]
    packages = list(
        build.build_stub_containers(
            several.program, compute_crcs(several.folder, several.program), calls
        ).values()
    )
    (place / "good.pkg").write_bytes(b"".join(packages))
    (place / "twice.pkg").write_bytes(packages[0] + packages[0])
    (place / "half.pkg").write_bytes(packages[0])
    return place


INJECTED = {
    "good": ("good", 0, 0, -1, "", "-1 0 0 0 1"),
    "truncated": ("good", 200, 0, -1, "", "-1 -2 -1 0 1"),
    "one part is missing": ("half", 0, 0, -1, "", "-1 -2 -1"),
    "one part twice": ("twice", 0, 0, -1, "", "-1 -5 -1"),
    "misaligned": ("good", 0, 4, -1, "", "-1 -6 -1"),
    "no package of ours": ("good", 0, 0, 0, "", "-1 -2 -1"),
    "another chip": ("good", 0, 0, 8, "", "-1 -4 -1"),
    "another executor": ("good", 0, 0, 20, "", "-1 -5 -1"),
    "another graph": ("good", 0, 0, 36, "", "-1 -5 -1"),
    "other arguments": ("good", 0, 0, 40, "", "-1 -5 -1"),
    "a bit flipped": ("good", 0, 0, 100, "", "-1 -3 -1"),
    "failing tForward": ("good", 0, 0, -1, "tForward", "-1 0 -8 -1"),
    "failing tModelInit": ("good", 0, 0, -1, "tModelInit", "-1 -8 -1 -1"),
    "failing tSetInput": ("good", 0, 0, -1, "tSetInput", "-1 0 -8 -1"),
    "failing tGetOutput": ("good", 0, 0, -1, "tGetOutput", "-1 0 -8 -1"),
    "failing tCreateExecutor": ("good", 0, 0, -1, "tCreateExecutor", "-1 -8 -1 -1"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("what", INJECTED)
def test_fault_injection(what, injected):
    """A return code each, and nothing behind the output's end is written."""
    package, cut, move, flip, call, want = INJECTED[what]
    words = [
        str(injected / "inject"),
        str(injected / f"{package}.pkg"),
        str(cut),
        str(move),
        str(flip),
    ]
    env = {**os.environ, "STANDIN_FAIL": call, "ASAN_OPTIONS": "detect_leaks=1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(want)
    assert done.stdout.strip().endswith("1")


def test_symbols(several, alone, tmp_path):
    """Every global begins with the prefix, so that two models link into one program; no heap, no
    I/O.
    """
    if shutil.which("nm") is None:
        pytest.skip("no nm here")
    for made in (several, alone):
        library_file = tmp_path / f"{made.program.stem}.so"
        sources = [(path, (*flags, "-fPIC")) for path, flags in c_files(made.program, made.folder)]
        build.compile_program(sources, library_file, ("-Wl,--unresolved-symbols=ignore-all",))
        said = subprocess.run(
            ["nm", "-D", str(library_file)], capture_output=True, text=True, check=True
        )
        lines = [line.split() for line in said.stdout.splitlines()]
        ours = [name for *_, kind, name in lines if kind in "TDBR"]
        assert ours
        assert all(name.startswith(f"{made.program.prefix}_") for name in ours)
        needed = {name.partition("@")[0] for *_, kind, name in lines if kind == "U"}
        assert not needed & {"malloc", "free", "calloc", "printf", "fopen", "alloca"}


def test_library_has_no_warning(several, tmp_path):
    """Our own C compiles without one under the strictest flags that are promised."""
    assert "warning" not in build_shared_library(
        several.program, several.folder, tmp_path / "p.so", ("-O2", "-Wshadow")
    )
