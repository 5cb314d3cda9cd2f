"""Products in a second of every register tile, and of every kernel of a model, run alone.

    python -m benchmarks.speed.tiles [--rounds 5]

A tile multiplies some rows (pixels, or lines of a matrix) by some vectors of outputs. Its weights
and inputs fit the nearest cache, so that what is measured is the tile, not memory.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from simulator import _llvm
from simulator.instruction_sets import InstructionSet, get_instruction_set
from simulator.kernel import Step, TensorSpec
from simulator.kernels.loops import _register_tile
from simulator.program import SimulatorError, compile_program

from .engines import limit_threads
from .machine import describe_machine, measure_peak_macs
from .page import KernelRow, TileRow, format_page

__all__ = ["WIDTHS", "measure_kernels", "measure_tiles"]

#: Numbers of outputs for which the table tells the chosen tiles.
WIDTHS = (8, 10, 16, 24, 32, 48, 64, 96, 128, 256)
_ROWS, _VECTORS = 8, 4  # the largest tiles
_PIXELS, _TAPS = 1024, 128  # of a call; weights of 4 vectors of 8 lanes take 16 KB
_WINDOWS = 64  # different ones, which overlap
_LINE = 16  # int32 of 64 bytes
_SECONDS = 0.004  # of a round


def measure_tiles(rounds: int) -> list[TileRow]:
    """Return the throughput of all tiles of the instruction set in use; none without a set."""
    instructions = get_instruction_set()
    if instructions is None:
        return []
    operands = instructions.int8_operands
    chosen = {
        _register_tile.choose_tile_size(instructions, operands, width, _PIXELS) for width in WIDTHS
    }
    runs: dict[tuple[int, int], Callable[[], object]] = {
        (rows, vectors): _make_tile_run(instructions, rows, vectors)
        for rows in range(1, _ROWS + 1)
        for vectors in range(1, _VECTORS + 1)
        if rows * vectors <= instructions.registers
    }
    seconds = _measure(runs, rounds)
    per_dword = 2 if operands == "pairs" else 4
    found = []
    for rows in range(1, _ROWS + 1):
        macs: list[float | None] = []
        for vectors in range(1, _VECTORS + 1):
            took = seconds.get((rows, vectors))
            pixels = _PIXELS // rows * rows
            count = pixels * vectors * instructions.lanes * per_dword * _TAPS
            macs.append(None if took is None else count / took)
        found.append(
            TileRow(rows, macs, [(rows, vectors + 1) in chosen for vectors in range(_VECTORS)])
        )
    return found


def _make_tile_run(instructions: InstructionSet, rows: int, vectors: int) -> Callable[[], object]:
    """Return a call that computes `_PIXELS` rows, rounded down to whole tiles."""
    shape = _register_tile.TileShape(instructions.int8_operands, False, rows, vectors, (), 32)
    address = _llvm.get_function_address(
        _register_tile.write_tile_ir,
        (instructions, shape),
        _register_tile.FUNCTION_NAME,
        instructions.features,
    )
    code = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(_register_tile.ARGUMENTS))(address)
    pixels, lanes = _PIXELS // rows * rows, vectors * instructions.lanes
    arrays = {
        "source": _make_aligned(_WINDOWS + _TAPS),
        "table": np.arange(pixels, dtype=np.int32) % _WINDOWS * 4,
        "weight": _make_aligned(_TAPS * lanes),
        "bias": _make_aligned(lanes),
        "out": _make_aligned(lanes),
        "taps": np.arange(_TAPS, dtype=np.int32) * 4,
    }
    # all rows are stored in one place: stores to memory are not the tile's
    numbers = {"pixels": pixels, "step": 0, "count": lanes, "blocks": 1, "length": _TAPS}
    arguments = [
        arrays[name].ctypes.data if name in arrays else numbers.get(name, 0)
        for name in _register_tile.ARGUMENTS
    ]
    return partial(_call, code, arguments, arrays)


def _make_aligned(size: int) -> np.ndarray:
    """Return an int32 array of ones that begins with a line of the caches, as packed weights do."""
    spare = np.ones(size + _LINE, np.int32)
    start = -spare.ctypes.data % (4 * _LINE) // 4
    return spare[start : start + size]


def _call(code: Callable[..., object], arguments: list[int], arrays: Mapping[str, Any]) -> None:
    """Call `code`; `arrays` keeps the memory that the addresses in `arguments` name."""
    code(*arguments)


def _measure(
    runs: Mapping[Any, Callable[[], object]], rounds: int, at_least: float = _SECONDS
) -> dict[Any, float]:
    """Return the median over the rounds of the shortest of the calls that fill `at_least` seconds.

    A call computes in this thread alone, whose processor time counts: what other processes take
    from it does not.
    """
    found: dict[Any, list[float]] = {key: [] for key in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for key, run in runs.items():
            best, stop = math.inf, time.perf_counter() + at_least
            while time.perf_counter() < stop:
                start = time.thread_time()
                run()
                best = min(best, time.thread_time() - start)
            found[key].append(best)
    return {key: statistics.median(seconds) for key, seconds in found.items()}


# ---- kernels of a model ----


def measure_kernels(
    title: str, platform: str, graph: Any, batch: int, peak: float | None, rounds: int
) -> list[KernelRow]:
    """Return a line for each kernel that multiplies and accumulates, of all its steps together.

    graph : the integer graph. peak : products in a second of the dot instruction, or None.
    """
    by_kernel: dict[str, list[tuple[int, float]]] = {}
    for label, macs, seconds in measure_steps(graph, batch, rounds, only_products=True):
        by_kernel.setdefault(label.partition(" -> ")[0], []).append((macs, seconds))
    rows = []
    for name, steps in by_kernel.items():
        macs, seconds = sum(step[0] for step in steps), sum(step[1] for step in steps)
        utilization = None if peak is None else macs / seconds / peak
        rows.append(
            KernelRow(title, platform, batch, name, len(steps), macs, 1e6 * seconds, utilization)
        )
    return rows


def measure_steps(
    graph: Any, batch: int, rounds: int, only_products: bool = False
) -> list[tuple[str, int, float]]:
    """Return (kernel -> output, multiply-accumulates, seconds) of each step, for a sample.

    Each step is compiled and run alone, with one thread. Steps that cannot run alone are left out,
    with `only_products` those that do not multiply and accumulate, too.
    """
    from lingeronnx.runtime.integer.runner import IntegerRunner

    runner = IntegerRunner(graph)
    bound = runner.bind(
        {
            spec.name: TensorSpec(tuple(size or 1 for size in spec.shape or ()), spec.dtype)
            for spec in runner.inputs
        }
    )
    runs: dict[int, Callable[[], object]] = {}
    with limit_threads(1):
        for index, step in enumerate(bound.steps):
            if only_products and not count_step_macs(step, bound.specs):
                continue
            run = _make_step_run(step, bound.specs, batch)
            if run is not None:
                runs[index] = run
        seconds = _measure(runs, rounds)
    return [
        (
            f"{_name_kernel(bound.steps[index])} -> {bound.steps[index].outputs[0]}",
            count_step_macs(bound.steps[index], bound.specs),
            seconds[index] / batch,
        )
        for index in runs
    ]


def _make_step_run(
    step: Step, specs: Mapping[str, TensorSpec], batch: int
) -> Callable[[], object] | None:
    """Return a call of a program of this step alone; None for a step that takes no batch."""
    inputs = {name: specs[name] for name in step.inputs}
    if not inputs:
        return None
    try:
        program = compile_program([step], inputs, keep=step.outputs)
    except SimulatorError:
        return None
    if not program.accepts_batches and batch > 1:
        return None
    rng = np.random.default_rng(0)
    feed = {}
    for name, spec in inputs.items():
        shape = (batch * spec.shape[0], *spec.shape[1:]) if program.accepts_batches else spec.shape
        feed[name] = rng.integers(-50, 50, shape).astype(spec.dtype)
    return lambda: list(program.run(feed))


def _name_kernel(step: Step) -> str:
    """Return the name of a step's kernel, convolutions by their kind."""
    kernel = step.kernel
    name, weight = type(kernel).__name__, getattr(kernel, "weight", None)
    if name != "Conv":
        return name
    size = "x".join(map(str, weight.shape[2:]))
    return f"Conv {size}{' depthwise' if weight.shape[1] == 1 < len(weight) else ''}"


def count_step_macs(step: Step, specs: Mapping[str, TensorSpec]) -> int:
    """Return the multiply-accumulates of a step on one sample; 0 for kernels that do not sum."""
    kernel, output = step.kernel, specs[step.outputs[0]].shape
    name = type(kernel).__name__
    if name == "Conv":
        return math.prod(output) * kernel.weight[0].size  # type: ignore[attr-defined]
    if name == "Linear":
        return math.prod(output) * kernel.weight.shape[1]  # type: ignore[attr-defined]
    if name == "MatMul":
        return math.prod(output) * specs[step.inputs[0]].shape[-1]
    if hasattr(kernel, "weight_x"):
        sequence = specs[step.inputs[0]].shape
        return math.prod(sequence[:-1]) * (kernel.weight_x.size + kernel.weight_h.size)
    return 0


def main() -> None:
    """Measure the tiles, and the kernels of the models of this repository, and print them."""
    from .engines import integer_graph
    from .nets import iterate_nets
    from .page import Figures

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    peak = measure_peak_macs(1)
    kernels = [
        row
        for net in iterate_nets(quick=True)
        for batch in net.batches
        for row in measure_kernels(
            net.title, net.platform, integer_graph(net)[0], batch, peak, given.rounds
        )
    ]
    machine = {"command": "python -m benchmarks.speed.tiles", **describe_machine()}
    peaks = [] if peak is None else [f"{peak / 1e9:.1f} G products/s"]
    print(
        format_page(
            Figures(
                machine, peaks=peaks, tiles=measure_tiles(given.rounds), kernels=kernels
            ).to_sections()
        )
    )


if __name__ == "__main__":
    main()
