"""Rows of dot instructions.

What a processor offers for sums of small products, and which row is used.
A *dword* is 32 bits of neighbouring numbers: four bytes or two 16-bit words. One dot instruction
adds, lane by lane, the products of two dwords to a 32-bit sum. Rows differ in lanes, registers and
operands:

    quads   four unsigned by four signed bytes; activations enter as x + 128 and the excess leaves
    through the bias:
            sum (x + 128) * w + (bias - 128 * sum w) = sum x * w + bias
    signed  four signed by four signed bytes; no excess
    pairs   two signed words by two signed words; bytes are widened first

No row rounds or saturates; that 32 bits suffice is proven from the weights. Every row has pairs for
16-bit numbers. The environment variable LINGERONNX_SIMD names the row to use: "1" is the best one,
"0" the plain loops.

Must not know: convolutions, weights, Numba.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from simulator.kernel import SimulatorError

__all__ = ["INSTRUCTION_SETS", "InstructionSet", "get_host_features", "get_instruction_set"]


@dataclass(frozen=True)
class InstructionSet:
    """One set of instructions.

    Parameters
    ----------
    name
        What LINGERONNX_SIMD calls it.
    triple, features
        The target of LLVM, and what the processor must have and the code may use.
    lanes, registers
        32-bit lanes of a vector and how many vectors the processor holds.
    bytes
        Operands of int8 by int8: "quads", "signed" or "pairs".
    dots
        LLVM's intrinsic by operands; pairs without one are written as products and sums.
    halves
        Whether those multiply the lower and the upper words apart, for processors that add a
        product to a sum.
    """

    name: str
    triple: str
    features: tuple[str, ...]
    lanes: int
    registers: int
    int8_operands: Literal["quads", "signed", "pairs"]
    dot_intrinsics: Mapping[str, str] = field(hash=False)
    splits_word_products: bool = False


_X86, _ARM = "x86_64-unknown-unknown", "aarch64-unknown-unknown"
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_PAIRS_512, _PAIRS_256 = "llvm.x86.avx512.pmaddw.d.512", "llvm.x86.avx2.pmadd.wd"

#: The best first.
INSTRUCTION_SETS = (
    InstructionSet(
        "avx512-vnni",
        _X86,
        (*_AVX512, "avx512vnni"),
        16,
        32,
        "quads",
        {"quads": "llvm.x86.avx512.vpdpbusd.512", "pairs": _PAIRS_512},
    ),
    InstructionSet(
        "avx-vnni",
        _X86,
        ("avx2", "avxvnni"),
        8,
        16,
        "quads",
        {"quads": "llvm.x86.avx512.vpdpbusd.256", "pairs": _PAIRS_256},
    ),
    InstructionSet("avx512bw", _X86, _AVX512, 16, 32, "pairs", {"pairs": _PAIRS_512}),
    InstructionSet("avx2", _X86, ("avx2",), 8, 16, "pairs", {"pairs": _PAIRS_256}),
    InstructionSet(
        "neon-dot",
        _ARM,
        ("neon", "dotprod"),
        4,
        32,
        "signed",
        {"signed": "llvm.aarch64.neon.sdot.v4i32.v16i8"},
        splits_word_products=True,
    ),
    InstructionSet("neon", _ARM, ("neon",), 4, 32, "pairs", {}, splits_word_products=True),
    InstructionSet("portable", "", (), 4, 16, "pairs", {}),
)


@cache
def get_host_features() -> frozenset[str]:
    """Return what LLVM calls the features of this processor, those alone that it has."""
    from llvmlite import binding

    try:
        found = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell on some systems
        return frozenset()
    return frozenset(name for name, has in found.items() if has)


def is_supported_by_host(candidate: InstructionSet) -> bool:
    """Whether this processor can run the row."""
    from llvmlite import binding

    arch = binding.get_process_triple().partition("-")[0].replace("arm64", "aarch64")
    return candidate.triple.partition("-")[0] in ("", arch) and get_host_features() >= {
        *candidate.features
    }


@cache
def _supported_instruction_sets() -> tuple[InstructionSet, ...]:
    return tuple(one for one in INSTRUCTION_SETS if is_supported_by_host(one))


def get_instruction_set() -> InstructionSet | None:
    """Return the row that LINGERONNX_SIMD names, by default the best that this processor has.

    None: plain loops.

    Raises
    ------
    SimulatorError
        For an unknown row and for one that this processor cannot run.
    """
    wanted = os.environ.get("LINGERONNX_SIMD") or "1"
    if wanted == "0":
        return None
    usable = _supported_instruction_sets()
    if wanted == "1":
        return usable[0]
    for one in INSTRUCTION_SETS:
        if one.name == wanted:
            if one not in usable:
                names = ", ".join(r.name for r in usable)
                raise SimulatorError(
                    f"LINGERONNX_SIMD: this processor cannot run '{wanted}'; it can run {names} "
                    "and 0"
                )
            return one
    names = ", ".join(r.name for r in INSTRUCTION_SETS)
    raise SimulatorError(
        f"LINGERONNX_SIMD: there is no '{wanted}'; there are {names}, 0 (plain loops), 1 (the best)"
    )
