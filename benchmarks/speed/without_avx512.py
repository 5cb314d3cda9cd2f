"""Run a command as on a processor that has AVX2 and no AVX-512, all of its libraries included.

    python -m benchmarks.speed.without_avx512 COMMAND ...

for example `python -m benchmarks.speed.without_avx512 python -m benchmarks.speed.simulator_speed`.
Unlike `--simd avx2`, onnxruntime, OpenVINO and OpenBLAS do not use AVX-512 either, so that ratios
are those of an AVX2 machine. Needs Linux on x86-64, a C compiler, and a processor that can
intercept CPUID ("cpuid_fault" in /proc/cpuinfo).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("hide_avx512.c")


def main() -> None:
    """Compile the library, and run the command with it."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "hide_avx512.so"
        compiler = os.environ.get("CC", "cc")
        subprocess.run(
            [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)], check=True
        )
        environment = {**os.environ, "LD_PRELOAD": str(library)}
        sys.exit(subprocess.run(sys.argv[1:], env=environment).returncode)


if __name__ == "__main__":
    main()
