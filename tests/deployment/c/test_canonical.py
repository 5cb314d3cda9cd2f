"""Equal steps: one package, one function, one loop."""

import re
import shutil

import numpy as np
import pytest

from lingeronnx.deployment import verify
from lingeronnx.deployment.c_program import host_source
from lingeronnx.deployment.c_program.host_proof import prove_program
from lingeronnx.deployment.canonical import find_equal_parts
from lingeronnx.deployment.deployment_contents import partition_graph
from lingeronnx.deployment.simulation import read_integer_graph
from tests import nets

from . import programs

needs_programs = pytest.mark.skipif(
    shutil.which("cc") is None or host_source.explain_missing_generator() is not None,
    reason="no C compiler, or no emx-onnx-cgen",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Six steps of one matrix and a Softmax on the host, and a layer of their sum: all but the
    first read alike.
    """
    net = nets.Net(8, seed=5)
    weight = net.const((net.rng.standard_normal((8, 8)) * 2).astype(np.float32))
    held = [net.node("Softmax", "x", axis=1)]
    for _ in range(6):
        held.append(net.node("Softmax", net.node("MatMul", held[-1], weight), axis=1))
    model = net.graph(net.linear(net.node("Concat", *held[1:], axis=1), (48, 3), out="y"))
    return programs.deploy_case(
        tmp_path_factory.mktemp("steps") / "board", model, nets.samples(model, 32), "steps"
    )


@needs_programs
def test_one_package(made):
    """Equal parts share package, function and self-test."""
    program = made.program
    assert len(program.unique_chip_parts) < len(program.chip)
    assert len(program.unique_host_parts) < len(program.host)
    assert {p.package_index for p in program.chip} == set(range(len(program.unique_chip_parts)))
    for part in program.unique_parts:
        assert (made.folder / part.file).is_file()
    assert len(list(made.folder.glob("steps_host*.c"))) == len(program.unique_host_parts)
    script = (made.folder / "pack.sh").read_text()
    assert script.count("tpacker -g") == len(program.unique_chip_parts)
    assert "steps_self_test" in (made.folder / "steps_selftest.c").read_text()
    assert f"vectors[{len(program.unique_parts)}]" in (made.folder / "steps_selftest.c").read_text()


@needs_programs
def test_loop_is_proved(made):
    """The loop computes what the parts compute, step by step."""
    text = (made.folder / "steps.c").read_text()
    assert re.search(r"for \(step = 0; step < \d; step\+\+\)", text)
    proof = prove_program(made.program, made.parts, made.folder, made.calls, made.feeds)
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
    assert prove_program(made.program, made.parts, folder, made.calls, made.feeds).failed


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
    equal = find_equal_parts(made.parts.parts)
    kinds = {name for name, _ in equal.values()}
    assert len(kinds) == len(made.program.unique_parts)
    for part in made.parts.parts:
        first, names = equal[part.name]
        assert set(names) >= {*part.inputs, *part.outputs}
        assert (first == part.name) == all(one == two for one, two in names.items())
    one = next(part for part in made.parts.chip if equal[part.name][0] != part.name)
    weight = next(
        v for v in one.graph.graph.initializers.values() if v.const_value.numpy().dtype == np.int8
    )
    held = weight.const_value
    try:
        weight.const_value = type(held)(held.numpy() ^ 1)
        assert find_equal_parts(made.parts.parts)[one.name][0] == one.name
    finally:
        weight.const_value = held


@needs_programs
def test_files_of_equal_parts(made):
    """Each part has the file of the first that is equal to it."""
    cut = partition_graph(read_integer_graph(made.folder / "steps.onnx"))
    files = {part.name: cut.get_file_name("steps", part) for part in cut.parts.parts}
    assert len(set(files.values())) == len(cut.unique_parts) == len(made.program.unique_parts)
    assert all((made.folder / file).is_file() for file in files.values())
    assert cut.arguments.keys() == {part.name for part in cut.unique_parts if part.chip}
