"""What a first run compiles and how long it takes, beside a second process that finds the files of the first.

python -m benchmarks.speed.first [MODEL.onnx ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .nets import ROOT
from .page import FIRST_HEAD, First, first_cells, line

__all__ = ["first_runs"]

_RUN = """
import sys, time
start = time.perf_counter()
import numpy as np
import lingeronnx as lo
session = lo.Session(sys.argv[1])
imported = time.perf_counter()
spec = session.inputs[0]
session.run(None, {spec.name: np.zeros([int(d or 1) for d in spec.shape], spec.dtype)})
print(imported - start, time.perf_counter() - start, time.process_time())
"""


def first_runs(path: Path) -> Iterator[First]:
    """Yield the first and the second process on a float model of one input, quantized on random numbers."""
    import lingeronnx as lo

    with tempfile.TemporaryDirectory() as folder:
        quantized, cache = Path(folder) / "quantized.onnx", Path(folder) / "cache"
        lo.quantize(path, None, effort="fast").save(quantized)
        environment = {**os.environ, "LINGERONNX_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
        for process in ("first", "second"):
            command = [sys.executable, "-c", _RUN, str(quantized)]
            start = time.perf_counter()
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            took = time.perf_counter() - start
            imports, answer, cpu = (float(word) for word in done.stdout.split())
            begun = took - answer  # until Python runs the first line, and its end
            loops = sum(len(list(cache.rglob(f"*.{kind}"))) for kind in ("loop", "nbc"))
            tiles = len(list(cache.rglob("*.o")))
            yield First(path.stem, process, imports + begun, took, cpu, loops, tiles)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, default=[ROOT / "models" / "digits_cnn.onnx"])
    for text in FIRST_HEAD:
        print(text)
    for path in parser.parse_args().models:
        for found in first_runs(path):
            print(line(first_cells(found)), flush=True)


if __name__ == "__main__":
    main()
