"""What the machine is and can do at best: its name, products each second, bytes each second.

The peak of products is that of the dot instruction of the simulator's row alone: operands and
results in registers, no loads, no additions besides. A row without such an instruction has none.
"""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from simulator import _llvm
from simulator._threads import count_usable_cores, count_usable_processors
from simulator.instruction_sets import InstructionSet
from simulator.instruction_sets import get_instruction_set as row

__all__ = ["describe_machine", "measure_memory_bandwidth", "measure_peak_macs", "used_row"]

_CHAINS = 12  # instructions in flight: twice the cycles that one takes, as two may start in each
_CALLS = 100_000
_PACKAGES = ("lingeronnx", "onnxruntime", "numpy", "numba", "llvmlite", "onnx")


def describe_machine() -> dict[str, str]:
    """Return processor with its threads and cores, row of instructions, date and versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    python = f"Python {platform.python_version()}"
    return {
        "cpu": _cpu(),
        "threads": _describe_threads(),
        "row": used_row(),
        "date": date.today().isoformat(),
        "versions": f"{python}, {versions}",
    }


def used_row() -> str:
    """Return the name of the simulator's row of instructions."""
    used = row()
    return used.name if used else "none"


def _describe_threads() -> str:
    """Describe the number of usable threads and of their cores, and the load of the machine."""
    threads, cores = count_usable_processors(), count_usable_cores()
    if cores is None:
        return f"{threads} threads, cores unknown"
    kind = "hyperthreads of" if cores < threads else "on"
    load = os.getloadavg()[0]
    return f"{threads} threads {kind} {cores} cores, load {load:.1f} at the start"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def measure_peak_macs(threads: int) -> float | None:
    """Return the int8 products that the dot instruction adds in a second.

    None for a row without one.
    """
    used = row()
    if used is None or used.int8_operands not in used.dot_intrinsics:
        return None
    address = _llvm.get_function_address(_loop, (used,), "peak", used.features)
    code = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address)
    memory = [np.ones(256, np.uint8) for _ in range(threads)]
    per_dword = 2 if used.int8_operands == "pairs" else 4
    each = _CHAINS * used.lanes * per_dword * _CALLS
    seconds = _seconds(lambda thread: code(memory[thread].ctypes.data, _CALLS), threads, 30)
    return each / seconds * threads


def measure_memory_bandwidth(threads: int) -> float:
    """Return the bytes that are read and written in a second where a copy does not fit the caches."""
    size = 1 << 26
    pairs = [(np.ones(size, np.uint8), np.ones(size, np.uint8)) for _ in range(threads)]
    return 2 * size / _seconds(lambda thread: np.copyto(*pairs[thread]), threads) * threads


def _seconds(run: Callable[[int], Any], threads: int, rounds: int = 7) -> float:
    """Return the least time in which all threads have run once."""
    found = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds + 1):
            start = time.perf_counter()
            list(pool.map(run, range(threads)))
            found.append(time.perf_counter() - start)
    return min(found[1:])


def _loop(used: InstructionSet) -> str:
    """Return the LLVM module of peak(address, count): `count` rounds of `_CHAINS` instructions.

    An instruction that accumulates adds to its own last result; one that does not multiplies it.
    So each depends on itself alone, `_CHAINS` instructions before.
    """
    sums = f"<{used.lanes} x i32>"
    dot = used.dot_intrinsics[used.int8_operands]
    operand = {
        "quads": sums,
        "signed": f"<{4 * used.lanes} x i8>",
        "pairs": f"<{2 * used.lanes} x i16>",
    }[used.int8_operands]
    accumulates = used.int8_operands != "pairs"
    phis, body = [], []
    for i in range(_CHAINS):
        phis.append(f"  %s{i} = phi {sums} [%seed{i}, %entry], [%t{i}, %loop]")
        if accumulates:
            arguments = f"{sums} %s{i}, {operand} %x, {operand} %w"
        else:
            body.append(f"  %x{i} = bitcast {sums} %s{i} to {operand}")
            arguments = f"{operand} %x{i}, {operand} %w"
        body.append(f"  %t{i} = call {sums} @{dot}({arguments})")
    declared = f"{sums}, {operand}, {operand}" if accumulates else f"{operand}, {operand}"
    seeds = [f"  %seed{i} = load volatile {sums}, ptr %from, align 1" for i in range(_CHAINS)]
    stores = [f"  store volatile {sums} %t{i}, ptr %from, align 1" for i in range(_CHAINS)]
    return "\n".join(
        [
            f"declare {sums} @{dot}({declared})",
            "define void @peak(i64 %memory, i64 %count) {",
            "entry:",
            "  %from = inttoptr i64 %memory to ptr",
            f"  %w = load volatile {operand}, ptr %from, align 1",
            f"  %x = load volatile {operand}, ptr %from, align 1",
            *seeds,
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [0, %entry], [%next, %loop]",
            *phis,
            *body,
            "  %next = add i64 %i, 1",
            "  %more = icmp slt i64 %next, %count",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *stores,
            "  ret void",
            "}",
        ]
    )
