"""What the machine is and can do at best: its name, products each second, bytes each second.

The peak of products is that of the dot instruction of the simulator's row alone: sums in registers,
operands from the nearest cache. A row without such an instruction has none.
"""

from __future__ import annotations

import ctypes
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
from simulator.instruction_sets import InstructionSet
from simulator.instruction_sets import get_instruction_set as row

__all__ = ["describe_machine", "measure_memory_bandwidth", "measure_peak_macs", "used_row"]

_SUMS = (
    10  # in flight at a time: more than an instruction takes cycles, fewer than there are registers
)
_CALLS = 100_000
_PACKAGES = ("lingeronnx", "onnxruntime", "numpy", "numba", "llvmlite", "onnx")


def describe_machine() -> dict[str, str]:
    """Return processor, row of instructions, date and versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    python = f"Python {platform.python_version()}"
    return {
        "cpu": _cpu(),
        "row": used_row(),
        "date": date.today().isoformat(),
        "versions": f"{python}, {versions}",
    }


def used_row() -> str:
    """Return the name of the simulator's row of instructions."""
    used = row()
    return used.name if used else "none"


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
    each = _SUMS * used.lanes * (2 if used.int8_operands == "pairs" else 4) * _CALLS
    return (
        each / _seconds(lambda thread: code(memory[thread].ctypes.data, _CALLS), threads) * threads
    )


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
    """Return the LLVM module of peak(address, count).

    `count` rounds of dot instructions into `_SUMS` sums.
    """
    sums = f"<{used.lanes} x i32>"
    pairs, dot = used.int8_operands == "pairs", used.dot_intrinsics[used.int8_operands]
    operand = {
        "quads": sums,
        "signed": f"<{4 * used.lanes} x i8>",
        "pairs": f"<{2 * used.lanes} x i16>",
    }[used.int8_operands]
    phis, body = [], []
    for i in range(_SUMS):
        phis.append(f"  %s{i} = phi {sums} [zeroinitializer, %entry], [%t{i}, %loop]")
        body += [f"  %x{i} = load volatile {operand}, ptr %from, align 1"]
        if pairs:
            body += [
                f"  %p{i} = call {sums} @{dot}({operand} %x{i}, {operand} %w)",
                f"  %t{i} = add {sums} %s{i}, %p{i}",
            ]
        else:
            body += [f"  %t{i} = call {sums} @{dot}({sums} %s{i}, {operand} %x{i}, {operand} %w)"]
    declared = f"{operand}, {operand}" if pairs else f"{sums}, {operand}, {operand}"
    stores = [f"  store volatile {sums} %t{i}, ptr %from, align 1" for i in range(_SUMS)]
    return "\n".join(
        [
            f"declare {sums} @{dot}({declared})",
            "define void @peak(i64 %memory, i64 %count) {",
            "entry:",
            "  %from = inttoptr i64 %memory to ptr",
            f"  %w = load {operand}, ptr %from, align 1",
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
