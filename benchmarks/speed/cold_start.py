"""What a first run compiles and how long it takes, beside a second process that finds the files of the first.

    python -m benchmarks.speed.cold_start [MODEL.onnx ...]

Measured are `lingeronnx demo`, and `lingeronnx simulate` on one sample of each model, quantized on
random numbers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx

from .nets import ROOT, random_feed
from .page import FIRST_HEAD, ColdStartRow, first_cells, format_table_row
from .quantize_cost import measure_command

__all__ = ["DIGITS", "measure_demo", "measure_simulation"]

DIGITS = tuple(ROOT / "models" / f"digits_{name}.onnx" for name in ("cnn", "lstm", "attention"))
_LINGERONNX = (sys.executable, "-m", "lingeronnx")


def _both(title: str, command: Sequence[str], folder: str) -> Iterator[ColdStartRow]:
    cache = Path(folder) / "cache"
    for process in ("first", "second"):
        wall, cpu, _ = measure_command(list(command), str(cache))
        loops = sum(len(list(cache.rglob(f"*.{kind}"))) for kind in ("loop", "nbc"))
        yield ColdStartRow(title, process, wall, cpu, loops, len(list(cache.rglob("*.o"))))


def measure_demo() -> Iterator[ColdStartRow]:
    """Yield the first and the second process of `lingeronnx demo`."""
    with tempfile.TemporaryDirectory() as folder:
        start = f"import os, runpy, sys; os.chdir({folder!r}); sys.argv = ['lingeronnx', 'demo']; "
        yield from _both(
            "demo",
            [sys.executable, "-c", start + "runpy.run_module('lingeronnx', run_name='__main__')"],
            folder,
        )


def measure_simulation(path: Path) -> Iterator[ColdStartRow]:
    """Yield the first and the second process of `lingeronnx simulate` on a float model, quantized on random numbers."""
    import lingeronnx as lo

    with tempfile.TemporaryDirectory() as folder:
        quantized, data, output = (
            str(Path(folder) / name) for name in ("quantized.onnx", "data.npz", "out.npz")
        )
        lo.quantize(path, None, effort="fast").save(quantized)
        np.savez(data, **random_feed(onnx.load(path)))
        command = [*_LINGERONNX, "simulate", quantized, "--input", data, "-o", output]
        yield from _both(f"simulate {path.stem}", command, folder)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, default=DIGITS)
    given = parser.parse_args()
    for text in FIRST_HEAD:
        print(text)
    for found in (
        *measure_demo(),
        *(first for path in given.models for first in measure_simulation(path)),
    ):
        print(format_table_row(first_cells(found)), flush=True)


if __name__ == "__main__":
    main()
