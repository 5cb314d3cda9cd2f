"""Programs as a firmware has them: several in one, with its own memory, built by other compilers
and by CMake.
"""

import re
import shutil
import struct
import subprocess

import pytest

from lingeronnx.deployment.c_program import build, host_source
from lingeronnx.deployment.c_program.host_proof import list_sources, run_known_answer_test
from lingeronnx.deployment.c_program.packages import make_package, make_package_header
from lingeronnx.deployment.c_program.program_files import compute_crcs
from lingeronnx.deployment.c_program.source_files import StaticMemory
from lingeronnx.deployment.c_program.vectors import collect_vectors
from tests import nets

from . import programs

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
    pytest.mark.skipif(
        host_source.explain_missing_generator() is not None, reason="emx-onnx-cgen is not installed"
    ),
]
STAND_IN = (build.get_stub_folder() / "standin.c", ("-std=c99", f"-I{build.get_stub_folder()}"))


def _made(tmp_path_factory, net, stem):
    place = tmp_path_factory.mktemp(stem)
    found = programs.deploy_case(place / "board", net, nets.samples(net, 24), stem)
    vectors = [collect_vectors(found.program, call) for call in found.calls]
    packages = build.build_stub_containers(
        found.program, compute_crcs(found.folder, found.program), vectors
    )
    (place / "packages").write_bytes(b"".join(packages.values()))
    return found


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    return _made(tmp_path_factory, programs.make_two_chip_parts(), "gap")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return _made(tmp_path_factory, programs.make_single_part(), "alone")


def ran(place, main, found, flags=(), files=None):
    """Compile `main` with the programs `found` and the stand-in, run it on `files`; return what it
    prints.
    """
    (place / "firmware.c").write_text(main)
    own = [
        (path, (*words, *flags))
        for made in found
        for path, words in list_sources(made.program, made.folder)
    ]
    folders = [f"-I{made.folder}" for made in found]
    build.compile_program(
        [(place / "firmware.c", ("-std=c11", *folders)), *own, STAND_IN],
        place / "all",
        build.SANITIZER_FLAGS,
    )
    files = files or [made.folder.parent / "packages" for made in found]
    words = [str(place / "all"), *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


READ = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *file(const char *path, size_t *size)
{
    unsigned char *at = aligned_alloc(64, 1 << 22);
    FILE *from = fopen(path, "rb");
    *size = fread(at, 1, 1 << 22, from);
    fclose(from);
    return at;
}
"""

TWO = """
#include "gap.h"
#include "alone.h"
#include "thinker/thinker.h"
unsigned char everybodys[1 << 20];
int main(int argc, char **argv)
{
    gap_package one;
    alone_package two;
    void *a = file(argv[1], &one.size), *b = file(argv[2], &two.size);
    one.data = a;
    two.data = b;
    if (argc > 3) printf("%d ", tInitialize());
    printf("%d ", gap_init(&one));
    printf("%d ", alone_init(&two));
    printf("%d ", gap_self_test());
    printf("%d ", alone_self_test());
    printf("%d ", gap_self_test());
    gap_deinit();
    printf("%d ", alone_self_test());
    printf("%d\\n", gap_self_test());
    alone_deinit();
    free(a);
    free(b);
    return 0;
}
"""


def test_two_programs(several, alone, tmp_path):
    """They run in turn in one shared memory, and one that is closed leaves the other open."""
    files = [made.folder.parent / "packages" for made in (several, alone)]
    macros = [
        f"-D{stem}_{macro}"
        for stem in ("GAP", "ALONE")
        for macro in ("EXECUTOR_READY", "SHARED_MEMORY=everybodys")
    ]
    include = f'#include "{build.get_stub_folder()}/thinker/thinker.h"'
    main = READ + TWO.replace('#include "thinker/thinker.h"', include)
    said = ran(tmp_path, main, (several, alone), macros, [*files, "ready"])
    assert said == "0 0 0 0 0 0 0 -1\n"
    # tInitialize is once per process: who does not say so is told by the second init.
    assert ran(tmp_path, main, (several, alone)) == "0 -8 0 -1 0 -1 -1\n"


INIT = """
#include "gap.h"
int main(int argc, char **argv)
{
    gap_package one;
    void *at = file(argv[1], &one.size);
    int rc;
    one.data = at;
    rc = gap_init(&one);
    printf("%d\\n", argc == 2 ? rc : 0);
    gap_deinit();
    free(at);
    return 0;
}
"""


@pytest.mark.sweep
@pytest.mark.parametrize(
    "macro, want", (("COMMON", "-7"), ("PSRAM", "-7"), ("SHARED", "cannot be more"), ("", "0"))
)
def test_too_little_memory(several, tmp_path, macro, want):
    """A code, or the compiler's word, and nothing is written past an array."""
    flags = (f"-DGAP_{macro}_BYTES=64u",) * bool(macro)
    if macro == "SHARED":
        with pytest.raises(Exception, match=want):
            ran(tmp_path, READ + INIT, (several,), flags)
    else:
        assert ran(tmp_path, READ + INIT, (several,), flags).strip() == want


def test_psram_that_the_executor_does_not_report(several, tmp_path):
    """What tCreateExecutor writes beyond a block belongs to no other part; without the reserve the
    stand-in finds it overwritten.
    """
    text = (several.folder / "gap.c").read_text()
    reserve = re.search(r"#define UNREPORTED_BYTES (\d+)u", text)
    assert int(reserve[1]) >= 2968
    memory = StaticMemory(several.program)
    assert all(
        memory.psram_bytes_by_part[part.name] > part.choice.verdict.cost.psram + int(reserve[1])
        for part in several.program.unique_chip_parts
    )
    vectors = [collect_vectors(several.program, call) for call in several.calls]
    (tmp_path / "good").mkdir()
    output = run_known_answer_test(several.program, several.folder, tmp_path / "good", vectors)
    assert output.startswith("PASS")
    shutil.copytree(several.folder, tmp_path / "board")
    (tmp_path / "board" / "gap.c").write_text(
        text.replace(reserve[0], "#define UNREPORTED_BYTES 0u")
    )
    (tmp_path / "bad").mkdir()
    output = run_known_answer_test(several.program, tmp_path / "board", tmp_path / "bad", vectors)
    assert re.match(r"FAIL: gap_self_test returns .* the executor 30002", output)


def test_constants_in_shared_memory_are_nobody_elses(several, tmp_path):
    text = (several.folder / "gap.h").read_text()
    common = int(re.search(r"GAP_COMMON_BYTES (\d+)u", text)[1])
    flags = ("-DGAP_SHARED_MEMORY=everybodys", f"-DGAP_SHARED_BYTES={common + 64}u")
    with pytest.raises(Exception, match="another program cannot use it"):
        ran(tmp_path, READ + INIT, (several,), flags)


@pytest.mark.parametrize("at", (48, 56, 84), ids=("type", "size", "scale"))
def test_ports_of_another_program(several, tmp_path, at):
    """A package that is whole and says that it is this program's, with another first input."""
    first = several.program.unique_chip_parts[0]
    blob = (several.folder.parent / "packages").read_bytes()
    size = struct.unpack_from("<I", blob, 60)[0]
    body = bytearray(blob[64 : 64 + size])
    rank = struct.unpack_from("<I", body, 52)[0]
    value = {48: struct.pack("<I", 0x6902), 56: struct.pack("<I", 7), 84: struct.pack("<f", 99.5)}[
        at
    ]
    assert rank
    assert bytes(body[at : at + 4]) != value
    body[at : at + 4] = value
    words = first.choice.argv
    head = blob[:56]
    assert head == make_package_header(
        "venus",
        0,
        compute_crcs(several.folder, several.program)[first.name],
        build.compute_arguments_crc(words),
    )
    changed = make_package(head, bytes(body))
    (tmp_path / "odd").write_bytes(changed + blob[64 + -(-size // 64) * 64 :])
    assert ran(tmp_path, READ + INIT, (several,), files=[tmp_path / "odd"]).strip() == "-9"


RUN_Q = """
#include "alone.h"
int main(int argc, char **argv)
{
    static float y[ALONE_OUT_Y_SIZE], z[ALONE_OUT_Y_SIZE];
    alone_package one;
    size_t size;
    void *at = file(argv[1], &one.size), *x = file(argv[2], &size), *q = file(argv[3], &size);
    one.data = at;
    printf("%d ", alone_init(&one));
    printf("%d ", alone_run(x, y));
    printf("%d ", alone_run_q(q, z));
    printf("%d %d\\n", argc, memcmp(y, z, sizeof y));
    alone_deinit();
    free(at);
    free(x);
    free(q);
    return 0;
}
"""


def test_integers_as_they_are(alone, tmp_path):
    """The call that takes integers gives what the call that takes floats gives."""
    golden = alone.folder / "golden/1"
    files = [alone.folder.parent / "packages", golden / "model_input0.bin", golden / "input0.bin"]
    assert ran(tmp_path, READ + RUN_Q, (alone,), files=files) == "0 0 0 4 0\n"


OVERWRITTEN = """
#include "thinker/thinker.h"
int main(int argc, char **argv)
{
    size_t size;
    unsigned char *at = file(argv[1], &size), *shared = aligned_alloc(64, 1 << 20), *psram = aligned_alloc(64, 1 << 20);
    static signed char x[1 << 20];
    tModelHandle model;
    tExecHandle executor;
    tMemory list[2];
    int32_t count = 2;
    tData data;
    int i, rc;
    tInitialize();
    rc = tGetMemoryPlan(list, &count, (void *)at, size);
    list[0].dptr_ = (uintptr_t)shared;
    list[1].dptr_ = (uintptr_t)psram;
    rc |= tModelInit(&model, (void *)at, size, list, count) | tCreateExecutor(model, &executor, list, count);
    printf("%d", rc);
    for (i = 0; i < 3; i++) {
        tGetInputInfo(executor, 0, &data);
        data.dptr_ = x;
        tSetInput(executor, 0, &data);
        if (i == 2) shared[5] ^= 1;
        printf(" %d", tForward(executor));
    }
    printf("%.0d\\n", argc > 9);
    tReleaseExecutor(executor);
    free(at);
    free(shared);
    free(psram);
    return 0;
}
"""


def test_the_stand_in_sees_constants_that_are_overwritten(tmp_path):
    """Shared memory with constants must be at each call what it was after init."""
    port = struct.pack("<II7If72s", 0x6901, 1, 4, 0, 0, 0, 0, 0, 0, 3.0, b"x")
    package = (
        struct.pack("<8s12sIIIIIII", b"LNGRPLAY", b"arcs", 1, 256, 64, 1, 1, 1, 1)
        + port * 2
        + bytes(16)
    )
    (tmp_path / "package").write_bytes(package)
    main = READ + OVERWRITTEN.replace(
        "thinker/thinker.h", f"{build.get_stub_folder()}/thinker/thinker.h"
    )
    assert ran(tmp_path, main, (), files=[tmp_path / "package"]) == "0 0 0 30002\n"


COMPILERS = {
    "gcc": ("gcc",),
    "clang": ("clang",),
    "Cortex-M4": ("arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb"),
    "RV32": (
        "riscv64-unknown-elf-gcc",
        "-march=rv32imafc",
        "-mabi=ilp32f",
        "--specs=picolibc.specs",
    ),
}


@pytest.mark.parametrize("which", COMPILERS)
def test_no_warning(several, alone, tmp_path, which):
    """Our own C, the known-answer test too where it is for a PC, as C99 under strict flags."""
    command = COMPILERS[which]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    for made in (several, alone):
        stem = made.program.stem
        for name in (f"{stem}.c", f"{stem}_selftest.c", *["main.c"] * (which in ("gcc", "clang"))):
            words = [
                *command,
                *build.PROGRAM_FLAGS,
                "-Os",
                f"-I{build.get_stub_folder()}",
                "-c",
                name,
                "-o",
                str(tmp_path / "o"),
            ]
            for watched in ([], [f"-D{made.program.prefix.upper()}_WATCH"]):
                done = subprocess.run(
                    [*words, *watched], cwd=made.folder, capture_output=True, text=True, check=False
                )
                assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no CMake here")
def test_cmake(several, tmp_path):
    """The library and the known-answer test, which passes."""
    thinker = tmp_path / "thinker"
    shutil.copytree(build.get_stub_folder(), thinker / "include")
    (thinker / "lib").mkdir()
    build.compile_program([(STAND_IN[0], (*STAND_IN[1], "-fPIC"))], thinker / "lib/libthinker.so")
    words = [
        "cmake",
        "-S",
        str(several.folder),
        "-B",
        str(tmp_path / "build"),
        f"-DTHINKER={thinker}",
    ]
    subprocess.run(words, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True, capture_output=True)
    words = [str(tmp_path / "build/gap_test"), str(several.folder.parent / "packages")]
    done = subprocess.run(words, cwd=several.folder, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("PASS: 3 calls")
