"""Equal steps: one package, one function, one loop."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from lingeronnx.deployment import verify
from lingeronnx.deployment.c import host, loops
from lingeronnx.deployment.c.attempt import attempt
from lingeronnx.deployment.canonical import firsts
from lingeronnx.deployment.contents import cut_of
from lingeronnx.deployment.simulated import read_graph
from tests import nets

from . import programs

needs_programs = pytest.mark.skipif(
    shutil.which("cc") is None or host.available() is not None, reason="no C compiler, or no emx-onnx-cgen"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Six steps of one matrix and a Softmax on the host, and a layer of their sum: all but the first read alike."""
    net = nets.Net(8, seed=5)
    weight = net.const((net.rng.standard_normal((8, 8)) * 2).astype(np.float32))
    held = [net.node("Softmax", "x", axis=1)]
    for _ in range(6):
        held.append(net.node("Softmax", net.node("MatMul", held[-1], weight), axis=1))
    model = net.graph(net.linear(net.node("Concat", *held[1:], axis=1), (48, 3), out="y"))
    return programs.made(tmp_path_factory.mktemp("steps") / "board", model, nets.samples(model, 32), "steps")


@needs_programs
def test_one_package(made):
    """Equal parts share package, function and self-test."""
    program = made.program
    assert len(program.packages) < len(program.chip)
    assert len(program.functions) < len(program.host)
    assert {p.number for p in program.chip} == set(range(len(program.packages)))
    for part in program.kinds:
        assert (made.folder / part.file).is_file()
    assert len(list(made.folder.glob("steps_host*.c"))) == len(program.functions)
    script = (made.folder / "pack.sh").read_text()
    assert script.count("tpacker -g") == len(program.packages)
    assert "steps_self_test" in (made.folder / "steps_selftest.c").read_text()
    assert f"vectors[{len(program.kinds)}]" in (made.folder / "steps_selftest.c").read_text()


@needs_programs
def test_loop_is_proved(made):
    """The loop computes what the parts compute, step by step."""
    text = (made.folder / "steps.c").read_text()
    assert re.search(r"for \(step = 0; step < \d; step\+\+\)", text)
    proof = attempt(made.program, made.parts, made.folder, made.calls, made.feeds)
    assert not proof.failed
    assert proof.warnings == 0


@needs_programs
def test_a_wrong_place_in_the_loop_is_found(made, tmp_path):
    folder = tmp_path / "faulty"
    shutil.copytree(made.folder, folder)
    path = folder / "steps.c"
    text = path.read_text()
    rows = re.search(r"at\[\d\]\[\d+\] = \{\n(.*?)\n(.*?)\n", text)
    path.write_text(text.replace(f"{rows[1]}\n{rows[2]}\n", f"{rows[2]}\n{rows[1]}\n", 1))
    assert attempt(made.program, made.parts, folder, made.calls, made.feeds).failed


@needs_programs
def test_verify_takes_each_step(made):
    """Golden vectors of a step have the names of the file that it is packed from."""
    for part in made.program.chip:
        place = made.folder / "golden/1" / part.name
        found = verify(made.folder / part.file, place / "input.npz", dump=place)
        assert found.agrees
        assert found.compared


@needs_programs
def test_equal_but_for_names(made):
    """Parts with other weights or scales are not equal."""
    equal = firsts(made.parts.parts)
    kinds = {name for name, _ in equal.values()}
    assert len(kinds) == len(made.program.kinds)
    for part in made.parts.parts:
        first, names = equal[part.name]
        assert set(names) >= {*part.inputs, *part.outputs}
        assert (first == part.name) == all(one == two for one, two in names.items())
    one = next(part for part in made.parts.chip if equal[part.name][0] != part.name)
    weight = next(v for v in one.graph.graph.initializers.values() if v.const_value.numpy().dtype == np.int8)
    held = weight.const_value
    try:
        weight.const_value = type(held)(held.numpy() ^ 1)
        assert firsts(made.parts.parts)[one.name][0] == one.name
    finally:
        weight.const_value = held


@needs_programs
def test_files_of_equal_parts(made):
    """Each part has the file of the first that is equal to it."""
    cut = cut_of(read_graph(made.folder / "steps.onnx"))
    files = {part.name: cut.file("steps", part) for part in cut.parts.parts}
    assert len(set(files.values())) == len(cut.kinds) == len(made.program.kinds)
    assert all((made.folder / file).is_file() for file in files.values())
    assert cut.choices.keys() == {part.name for part in cut.kinds if part.chip}


# ---- the loops -------------------------------------------------------------------------------------------------------


def run(tmp_path, steps, name):
    """Return what a program prints that runs the steps."""
    lines = loops.rolled(steps)
    text = "\n".join(
        ["#include <stdint.h>", "#include <stdio.h>", '#define AT(n) printf("%d ", (int)(n))',
         '#define SHOW(a, b) printf("(%d %d) ", a, b)', "int main(void)", "{", "    int step;", "    (void)step;",
         *lines, "    return 0;", "}", ""]
    )  # fmt: skip
    (tmp_path / f"{name}.c").write_text(text)
    words = ["cc", "-std=c99", "-Wall", "-Werror", "-o", str(tmp_path / name), str(tmp_path / f"{name}.c")]
    subprocess.run(words, check=True)
    return subprocess.run([str(tmp_path / name)], capture_output=True, text=True, check=True).stdout, lines


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
@pytest.mark.parametrize("seed", range(4))
def test_loops_do_what_the_steps_do(seed, tmp_path):
    """Rolled or not, the same places are visited in the same order."""
    rng = np.random.default_rng(seed)
    steps, want = [], []
    kinds = [rng.integers(0, 3, rng.integers(1, 3)) for _ in range(2)]
    order = [k for block in rng.integers(0, 2, 9) for k in kinds[block]]
    for number, kind in enumerate(order):
        places = rng.integers(0, 4, kind + 1)
        steps.append((f"s{number}", [f"    SHOW({number}, {kind});", *(f"    AT({p});" for p in places)]))
        want.append(f"({number} {kind}) " + "".join(f"{p} " for p in places))
    assert run(tmp_path, steps, "steps")[0] == "".join(want)


def test_what_is_worth_a_loop():
    """Three in a row are, with the shortest period; what is the same in all turns stays a number."""
    step = [[f"    SHOW({k}, 0);", f"    AT({16 * k});", "    AT(7);"] for k in range(6)]
    text = "\n".join(loops.rolled([(f"s{k}", lines) for k, lines in enumerate(step)]))
    assert text.count("AT(") == 2
    assert "step < 6" in text
    assert "{80}," in text
    assert "AT(7)" in text
    assert "for" not in "\n".join(loops.rolled([(f"s{k}", lines) for k, lines in enumerate(step[:2])]))
