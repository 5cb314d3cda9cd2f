"""What a program takes on small cores."""

import shutil
import subprocess

import pytest

from lingeronnx.common.errors import ConfigError
from lingeronnx.deployment.c_program import footprint, host_source, object_sizes
from tests import nets

from . import programs

GRAPH = """graph: { title: "a.c"
node: { title: "run" label: "run\\na.c:5:5\\n16 bytes (static)" }
node: { title: "a.c:one" label: "one\\na.c:3:12\\n64 bytes (static)" }
node: { title: "a.c:two" label: "two\\na.c:3:12\\n40 bytes (static)" }
node: { title: "a.c:three" label: "three\\na.c:3:12\\n40 bytes (dynamic,bounded)" }
node: { title: "a.c:sized" label: "sized\\na.c:3:12\\n8 bytes (dynamic)" }
node: { title: "a.c:again" label: "again\\na.c:3:12\\n8 bytes (static)" }
node: { title: "expf" label: "expf\\nmath.h:3:12" shape : ellipse }
edge: { sourcename: "run" targetname: "a.c:one" label: "a.c:5:39" }
edge: { sourcename: "run" targetname: "a.c:two" label: "a.c:5:39" }
edge: { sourcename: "a.c:two" targetname: "a.c:three" label: "a.c:5:39" }
edge: { sourcename: "a.c:three" targetname: "expf" label: "a.c:5:39" }
edge: { sourcename: "a.c:again" targetname: "a.c:again" label: "a.c:5:39" }
}
"""


def test_the_deepest_chain():
    """Bytes are added up along the calls; the deepest need not be the one with the largest
    function.
    """
    found = footprint.CallGraph()
    found.add_callgraph_info(GRAPH)
    assert found.find_deepest_chain("run") == (96, ("run", "two", "three"))
    assert found.find_external_functions(["run"]) == ("expf",)
    with pytest.raises(ConfigError, match="variable-length frame"):
        found.find_deepest_chain("a.c:sized")
    with pytest.raises(ConfigError, match="recursive"):
        found.find_deepest_chain("a.c:again")


EQUAL = """
#define BODY { volatile float t[40]; \\
    for (int i = 0; i < n; i++) { t[i % 40] = a[i]; a[i] = t[(i + 7) % 40]; } }
static void __attribute__((noinline)) one(float *a, int n) BODY
static void __attribute__((noinline)) two(float *a, int n) BODY
void run(float *a, int n) { one(a, n); a[0] *= 2.0f; two(a, n); }
"""


@pytest.mark.parametrize("core", object_sizes.CORES)
def test_equal_functions(core, tmp_path):
    """Each has its bytes: none is taken for a function that is compiled elsewhere."""
    cc, _, flags = object_sizes.CORES[core]
    if shutil.which(cc) is None:
        pytest.skip(f"no {cc} here")
    (tmp_path / "a.c").write_text(EQUAL)
    words = [
        cc,
        *flags,
        "-Os",
        *footprint._CALL_GRAPH_FLAGS,
        "-c",
        "-o",
        str(tmp_path / "a.o"),
        str(tmp_path / "a.c"),
    ]
    subprocess.run(words, check=True, capture_output=True)
    found = footprint.CallGraph()
    found.add_callgraph_info((tmp_path / "a.ci").read_text())
    assert sorted(name.rpartition(":")[2] for name in found.stack_bytes) == ["one", "run", "two"]
    assert not any(":" in name for name in found.find_external_functions(["run"]))


@pytest.mark.skipif(
    host_source.explain_missing_generator() is not None or shutil.which("cc") is None,
    reason="no generator, or no compiler",
)
def test_a_program_on_cores(tmp_path, monkeypatch):
    """The static RAM is the computed one; arrays are in it, not on the stack."""
    made = programs.deploy_case(
        tmp_path / "board",
        programs.make_two_chip_parts(),
        nets.samples(programs.make_two_chip_parts(), 24),
        "gap",
    )
    for core, (cc, *_) in object_sizes.CORES.items():
        if shutil.which(cc) is None:
            continue
        found = footprint.measure_footprint(made.program, made.folder, core)
        total = found.sizes.get_program_total()
        computed = object_sizes.compute_program_sizes(made.program).get_program_total()
        assert (total.static_bytes, total.ram_bytes) == (computed.static_bytes, computed.ram_bytes)
        assert 1000 < (total.code_bytes or 0) < 8000
        assert 0 < found.run < 1024
        assert found.deepest_chain[0] == "gap_run"
        assert {"tForward", "expf"} <= set(found.external_functions)
    assert footprint.count_host_warnings(made.program, made.folder) is not None
    monkeypatch.setenv("PATH", "")
    assert footprint.format_footprints(made.program, made.folder) == [
        f"not compiled for a {core}: no {cc} on the PATH"
        for core, (cc, *_) in object_sizes.CORES.items()
    ]
