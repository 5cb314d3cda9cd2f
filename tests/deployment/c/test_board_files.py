"""The header of a board and the example of firmware: they compile, and the cache is maintained
around each call.
"""

import re
import shutil
import subprocess

import pytest

from lingeronnx.deployment.c_program import build
from lingeronnx.deployment.c_program.host_proof import list_sources
from lingeronnx.deployment.c_program.program_files import compute_crcs
from lingeronnx.deployment.c_program.vectors import collect_vectors
from tests import nets

from . import programs

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")

#: What the SDK of arcs declares, as far as the header uses it; every call is recorded.
SDK = """
#ifndef SDK_H
#define SDK_H
#include <stdint.h>
#include <stdio.h>
#define __psram_noinit__ __attribute__((section(".psram.noinit")))
#define ALG_DMA_CH 3
#define __HAL_CRM_LUNA_CLK_ENABLE() printf("clock ")
void HAL_FlushDCache(void);
void HAL_DisableDCache(void);
void HAL_FlushDCache_by_Addr(uint32_t *at, uint32_t bytes);
void HAL_InvalidateDCache_by_Addr(uint32_t *at, uint32_t bytes);
void enable_GINT(void);
int luna_init(void);
int dma_init(int channel);
#endif
"""
MAIN = """
#include "net.h"
#include "cache.h"
#include <stdlib.h>
int net_start(const net_package *packages);
int net_infer(const float *in_x, float *out_y);
void HAL_FlushDCache(void) { printf("flush "); }
void HAL_DisableDCache(void) { printf("off "); }
void HAL_FlushDCache_by_Addr(uint32_t *at, uint32_t bytes) { (void)at; printf("clean:%u ", (unsigned)bytes); }
void HAL_InvalidateDCache_by_Addr(uint32_t *at, uint32_t bytes) { (void)at; printf("drop:%u ", (unsigned)bytes); }
void enable_GINT(void) { printf("interrupts "); }
int luna_init(void) { return 0; }
int dma_init(int channel) { return channel; }
int main(int argc, char **argv)
{
    static float x[NET_IN_X_SIZE], y[NET_OUT_Y_SIZE];
    net_package package;
    FILE *file = fopen(argv[argc - 2], "rb");
    unsigned char *at = aligned_alloc(64, 1 << 20);
    package.size = fread(at, 1, 1 << 20, file);
    package.data = at;
    fclose(file);
    file = fopen(argv[argc - 1], "rb"); /* the stand-in knows the golden calls only */
    if (fread(x, sizeof *x, NET_IN_X_SIZE, file) != NET_IN_X_SIZE) return 1;
    fclose(file);
    printf("%d | ", net_start(&package));
    printf("%d\\n", net_infer(x, y));
    net_deinit();
    free(at);
    return 0;
}
"""
HEADERS = ("ClockManager.h", "arcs_ap.h", "cache.h", "dma_cpy.h", "luna/luna.h", "sysutils.h")


CHIPS = ("arcs", *(pytest.param(name, marks=pytest.mark.slow) for name in ("venusA", "venus")))


@pytest.fixture(scope="module", params=CHIPS)
def case(request, tmp_path_factory):
    """Return a deployed net of one part for a chip, its package, and the headers of an SDK."""
    place = tmp_path_factory.mktemp(request.param)
    net = programs.make_single_part()
    data = nets.samples(net, 16)
    deployed = programs.deploy_case(place / "board", net, data, "net", platform=request.param)
    vectors = [collect_vectors(deployed.program, call) for call in deployed.calls]
    crcs = compute_crcs(deployed.folder, deployed.program)
    packages = build.build_stub_containers(deployed.program, crcs, vectors)
    (place / "package").write_bytes(b"".join(packages.values()))
    for name in HEADERS:
        (place / "sdk" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "sdk" / name).write_text(SDK)
    return deployed, place


def run_firmware(case, *macros):
    """Compile program and example with the header of the board, and return what they print."""
    deployed, place = case
    (place / "main.c").write_text(MAIN)
    macros = ('-DNET_BOARD_HEADER="net_board.h"', f"-isystem{place / 'sdk'}", *macros)
    sources = [
        (path, (*words, *macros)) for path, words in list_sources(deployed.program, deployed.folder)
    ]
    folder, stub = deployed.folder, build.get_stub_folder()
    flags = (*build.PROGRAM_FLAGS, "-Werror", f"-I{folder}", f"-I{stub}", *macros)
    sources.append((folder / "net_firmware.c", flags))
    sources.append((place / "main.c", ("-std=c11", f"-I{folder}", *macros)))
    sources.append((stub / "standin.c", ("-std=c99", f"-I{stub}")))
    build.compile_program(sources, place / "firmware", build.SANITIZER_FLAGS)
    golden = folder / "golden/0/model_input0.bin"
    command = [str(place / "firmware"), str(place / "package"), str(golden)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_example_with_the_cache_off(case):
    """The built-in vectors agree, one call runs, and the cache is left alone after the start."""
    printed = run_firmware(case)
    assert printed.endswith("0 | 0")
    assert "clean" not in printed
    if case[0].program.platform == "arcs":
        assert printed == "flush off clock interrupts 0 | 0"


def test_example_with_the_cache_on(case):
    """Inputs are written back before the NPU reads them, and cached outputs are dropped."""
    start, call = run_firmware(case, "-DNET_DATA_CACHE").split("|")
    (part,) = case[0].program.chip
    assert "off" not in start
    if case[0].program.platform == "venus":  # no names of its SDK are known
        assert call.strip() == "0"
        return
    package_bytes = (case[1] / "package").stat().st_size
    assert f"clean:{package_bytes} " in start
    expected = f"clean:{part.inputs[0].bytes} drop:{part.outputs[0].bytes} 0"
    assert call.strip() == expected


@pytest.mark.slow
def test_sections(case):
    """The arrays of shared memory and psram lie in the sections of the header."""
    deployed, place = case
    header = (deployed.folder / "net_board.h").read_text()
    if deployed.program.platform != "arcs":
        assert re.search(r"^/\* #define NET_SHARED_SECTION \.\.\. of your board \*/$", header, re.M)
        return
    output = place / "net.o"
    flags = [f"-I{place / 'sdk'}", f"-I{build.get_stub_folder()}", f"-I{deployed.folder}"]
    macro = '-DNET_BOARD_HEADER="net_board.h"'
    source = str(deployed.folder / "net.c")
    subprocess.run(["cc", "-c", *flags, macro, source, "-o", str(output)], check=True)
    printed = subprocess.run(
        ["size", "-A", str(output)], capture_output=True, text=True, check=True
    )
    sizes = dict(re.findall(r"^(\S+) +(\d+) ", printed.stdout, re.MULTILINE))
    macros = dict(
        re.findall(r"#define NET_(\w+)_BYTES (\d+)u", (deployed.folder / "net.h").read_text())
    )
    assert int(sizes[".thinker.apram.noinit"]) == int(macros["SHARED"]) + 64
    assert int(sizes[".psram.noinit"]) == int(macros["PSRAM"]) + 64
