"""Sizes of a program's object files, as the README, the manifest and `--json` state them, against
`size`.
"""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from click.testing import CliRunner

from lingeronnx import api
from lingeronnx.cli import main
from lingeronnx.deployment.c_program import build, host_source, object_sizes
from lingeronnx.ir import ir
from tests import nets
from tests.ops.test_recurrent_forms import streaming

from . import programs

needs_gcc = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("gcc", "size", "nm")),
    reason="no gcc, size or nm here",
)
MISSING_GENERATOR = host_source.explain_missing_generator()
GCC = object_sizes.Toolchain("gcc", "size", ("-fno-pie",))
#: Optimization level and code model change alignments, order and relocated tables.
FLAGS = (("-O0", "-fPIE"), ("-Os", "-fno-pie"), ("-O3", "-fPIE", "-DNAME_WATCH"))


def make_host_kinds():
    """Host parts before, between and after chip parts: weights, indices, scalars, two outputs."""
    rng = np.random.default_rng(2)
    net = nets.Net(3, 8, 8, seed=7)
    start = net.node("Exp", net.node("Mul", "x", net.const(np.float32(0.3))))
    a = net.node("Relu", net.conv(start, (6, 3, 3, 3), pads=[1] * 4))
    between = net.node("Softmax", net.node("Gather", a, net.const(np.array([5, 0, 3])), axis=1))
    b = net.conv(between, (4, 3, 3, 3))
    flat = net.node("Reshape", net.node("Exp", b), net.const(np.array([1, 144])))
    weights = net.const(rng.standard_normal((144, 5)).astype(np.float32))
    return net.graph(
        net.node("Softmax", net.node("MatMul", flat, weights), axis=1, out="y"),
        net.node("Sigmoid", a, out="z"),
    )


CASES = ("several", "host_kinds", "one_part", "many_outputs", "states")
#: Names under which other tests deploy the same nets, so that the work is shared.
STEMS = {"several": "gap", "one_part": "alone", "states": "spotter"}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A deployed folder; `states` has a state and no host part."""
    name, stem = request.param, STEMS.get(request.param, request.param)
    folder = tmp_path_factory.mktemp(name) / "board"
    if name == "states":
        net, state, data = streaming("LSTM"), programs.STATE, programs.stream_calls(6)
        return programs.deploy_case(folder, net, data, stem, state, 6, platform="arcs")
    makers = {
        "several": programs.make_two_chip_parts,
        "host_kinds": make_host_kinds,
        "one_part": programs.make_single_part,
        "many_outputs": programs.make_many_outputs,
    }
    net = makers[name]()
    if name in ("several", "host_kinds") and MISSING_GENERATOR is not None:
        pytest.skip(MISSING_GENERATOR)
    return programs.deploy_case(folder, net, nets.samples(net, 24), stem)


def compile_sources(case, folder, *flags):
    """Compile every C file of a deployed folder with gcc, without the program's own code."""
    paths = []
    include = build.get_stub_folder()
    for source in sorted(case.folder.glob("*.c")):
        if source.stem.endswith("_firmware"):
            continue  # an example, which no build takes
        path = folder / f"{source.stem}.o"
        words = ["gcc", "-std=c99", "-ffp-contract=off", *flags, "-w", f"-I{include}"]
        subprocess.run([*words, "-c", "-o", path, source], check=True)
        paths.append(path)
    return paths


def read_static_bytes(paths):
    """Return {object: data + bss} from the table that `size` prints."""
    text = subprocess.run(["size", *paths], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in text.splitlines()[1:]]
    return {row[-1].rpartition("/")[2]: int(row[1]) + int(row[2]) for row in rows}


def read_details(folder):
    """Return {object: (data + bss, constant arrays)} of the table in DETAILS.md, and its total."""
    text = (folder / "DETAILS.md").read_text()
    rows = re.findall(r"^\| (\S+\.o|total) \| .+? \| (\d+) \| (\d+) \|", text, re.MULTILINE)
    return {name: (int(static), int(arrays)) for name, static, arrays in rows}, text


@needs_gcc
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: flags[0])
def test_size_of_every_object(case, flags, tmp_path):
    """DETAILS.md and manifest state for each object what `size` prints, padding and tables included;
    all levels and position-independent code give the same.
    """
    flags = [flag.replace("NAME", case.program.prefix.upper()) for flag in flags]
    measured = read_static_bytes(compile_sources(case, tmp_path, *flags))
    rows, text = read_details(case.folder)
    total = rows.pop("total")[0]
    assert {name: static for name, (static, _) in rows.items()} == measured
    tests = ("main.o", f"{case.program.stem}_selftest.o")
    assert total == sum(size for name, size in measured.items() if name not in tests)
    assert f"| all: `.data` + `.bss` of the program | {total} |" in text
    sizes = json.loads((case.folder / "manifest.json").read_text())["program"]["sizes"]
    assert {row["object"]: row["static_bytes"] for row in sizes["objects"]} == measured
    assert sizes["static_bytes"] == total
    assert sizes["ram_bytes"] + sizes["shared_bytes"] + sizes["psram_bytes"] == total


@needs_gcc
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: flags[0])
def test_constant_arrays(case, flags, tmp_path):
    """The constant arrays have the stated bytes, those of one element and unused ones included;
    `.rodata` has less than 64 bytes of tables, literals and padding more for each array.
    """
    paths = compile_sources(case, tmp_path, *flags)
    rows, _ = read_details(case.folder)
    for path in paths:
        if path.stem in (case.program.stem, "main"):
            assert rows[path.name][1] == 0
            continue
        symbols = subprocess.run(["nm", "-S", path], check=True, capture_output=True, text=True)
        sizes = re.findall(r"^\w+ (\w+) [rR] (weight\w+|twiddle\w+|arrays)", symbols.stdout, re.M)
        assert rows[path.name][1] == sum(int(size, 16) for size, _ in sizes)
        sections = object_sizes.read_sections(path, GCC)
        constants = object_sizes.parse_sections(sections)["constants"]
        if path.stem != f"{case.program.stem}_selftest":  # that has tables for each tensor
            assert 0 <= constants - rows[path.name][1] < 64 * (1 + len(sizes))


@needs_gcc
def test_measured_equals_computed(case):
    """What a compiler measures replaces the computed figures, which are the same."""
    computed = object_sizes.compute_program_sizes(case.program)
    measured = object_sizes.measure_program_sizes(case.program, case.folder, "PC", GCC)
    assert measured.compiler.startswith("gcc ")
    assert measured.compiler.endswith(" -Os for a PC")
    by_name = {size.object: size for size in measured.objects}
    for size in computed.objects:
        same = by_name[size.object]
        fields = ("role", "ram_bytes", "shared_bytes", "psram_bytes", "array_bytes")
        assert [getattr(size, key) for key in fields] == [getattr(same, key) for key in fields]
        assert (size.code_bytes, size.rodata_bytes) == (None, None)
        assert same.code_bytes
    assert measured.get_program_total().static_bytes == computed.get_program_total().static_bytes


def test_sections():
    """Of `size -A`: constants and small data of RISC-V too, relocated tables as data; debugging
    and notes not.
    """
    printed = (
        ".text 100 0\n.text.f 20 0\n.rodata 7 0\n.srodata.cst4 4 0\n.bss 5 0\n.sbss 3 0\n"
        ".data.rel.ro.local 2 0\n.shared 64 0\n.psram 128 0\n.comment 9 0\n"
    )
    assert dict(object_sizes.parse_sections(printed)) == {
        "code": 120,
        "constants": 11,
        "ram": 10,
        "shared": 64,
        "psram": 128,
    }


def test_json_and_terminal(tmp_path):
    """--json, the terminal and the README have the same figures; without a cross compiler they say
    that they are computed.
    """
    net = programs.make_single_part()
    ir.save(net, tmp_path / "net.onnx")
    np.savez(tmp_path / "calib.npz", **nets.samples(net, 16))
    words = ["deploy", tmp_path / "net.onnx", "--calib", tmp_path / "calib.npz", "--effort", "fast"]
    words += ["-o", tmp_path / "board"]
    shown = CliRunner().invoke(main, [*map(str, words), "--json"], env={"PATH": ""})
    assert shown.exit_code == 0, shown.output
    sizes = json.loads(shown.stdout)["sizes"]
    manifest = json.loads((tmp_path / "board" / "manifest.json").read_text())
    assert sizes == manifest["program"]["sizes"]
    assert sizes["compiler"] is None
    rows, text = read_details(tmp_path / "board")
    assert rows["total"][0] == sizes["static_bytes"]
    assert "Object files, computed from the declarations in the C files." in text
    assert "The sizes of code are unknown: no arm-none-eabi-gcc on the PATH" in text
    printed = CliRunner().invoke(main, list(map(str, words)), env={"PATH": ""})
    line = " ".join(printed.output.split())
    assert f"static memory of the program: {sizes['static_bytes']} bytes of .data + .bss" in line
    assert "computed from the declarations" in line


@needs_gcc
def test_a_cross_compiler_measures(tmp_path, monkeypatch):
    """The first one on the PATH that works is named with its version, and gives sizes of code; if
    one fails the figures are computed, and the reason is stated.
    """
    net = programs.make_single_part()
    quantized = api.quantize(net, nets.samples(net, 16), effort="fast")
    monkeypatch.setattr(object_sizes, "CORES", {"PC": GCC})
    deployed = api.deploy(quantized, tmp_path / "board", nets.samples(net, 16))
    total = deployed.sizes.get_program_total()
    assert total.code_bytes
    text = (tmp_path / "board" / "DETAILS.md").read_text()
    assert re.search(r"Object files, measured with gcc [\d.]+ -Os for a PC\.", text)
    assert f"| total | program | {total.static_bytes} | 0 | {total.rodata_bytes} | " in text
    broken = object_sizes.Toolchain("gcc", "size", ("--no-such-option",))
    monkeypatch.setattr(object_sizes, "CORES", {"PC": broken})
    deployed = api.deploy(quantized, tmp_path / "board", nets.samples(net, 16))
    assert deployed.sizes.compiler == ""
    assert deployed.sizes.get_program_total().static_bytes == total.static_bytes
    text = (tmp_path / "board" / "DETAILS.md").read_text()
    assert "The sizes of code are unknown: C compilation failed" in text
