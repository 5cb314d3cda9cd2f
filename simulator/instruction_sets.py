"""Instruction sets with dot products of small integers, and the selection of the one to use.

A *dword* is 32 bits of neighbouring numbers: four bytes or two 16-bit words. One dot instruction
adds, lane by lane, the products of two dwords to a 32-bit sum. Instruction sets differ in lanes,
registers and operands:

    quads   four unsigned by four signed bytes; activations enter as x + 128, and the bias
            compensates for the offset:
            sum (x + 128) * w + (bias - 128 * sum w) = sum x * w + bias
    signed  four signed by four signed bytes; no offset
    pairs   two signed words by two signed words; bytes are widened first
    bytes   four bytes that are not negative by four signed bytes, in sums of 16 bits that the
            weights prove to suffice; for inputs such as those behind a Relu

None of them rounds or saturates; the weights prove that 32 bits suffice. Every instruction set has
pairs for 16-bit numbers. The environment variable LINGERONNX_SIMD selects an instruction set by its
name; "1" is the best one, "0" the scalar loops.

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
    """An instruction set with dot products.

    Parameters
    ----------
    name
        Its value in LINGERONNX_SIMD.
    triple
        LLVM's target triple; "" is any processor.
    features
        LLVM's names of the extensions that the processor must have.
    lanes
        Number of 32-bit lanes in a vector register.
    registers
        Number of vector registers.
    int8_operands
        Operands of int8 by int8 products: "quads", "signed" or "pairs".
    dot_intrinsics
        LLVM's intrinsic by operands; pairs without one are written as products and sums.
    byte_intrinsic
        LLVM's intrinsic that multiplies unsigned by signed bytes and adds neighbouring products in
        16 bits; "" without one, or where `int8_operands` are as fast.
    permute_intrinsic
        LLVM's intrinsic that selects each 32-bit lane of a vector by an index; "" without one.
    has_word_lanes
        Whether functions of 16 bits are computed in lanes of 16 bits, with the instructions of
        AVX2.
    has_memory_operands
        Whether weights that are used once are operands in memory, which cost no instruction.
    multiplies_even_lanes
        Whether one instruction multiplies the 32-bit lanes of even index into 64 bits.
    splits_word_products
        Whether such pairs multiply the lower and the upper words separately, for processors with a
        multiply-add instruction.
    """

    name: str
    triple: str
    features: tuple[str, ...]
    lanes: int
    registers: int
    int8_operands: Literal["quads", "signed", "pairs"]
    dot_intrinsics: Mapping[str, str] = field(hash=False)
    permute_intrinsic: str = ""
    byte_intrinsic: str = ""
    has_word_lanes: bool = False
    has_memory_operands: bool = False
    multiplies_even_lanes: bool = False
    splits_word_products: bool = False


_X86, _ARM = "x86_64-unknown-unknown", "aarch64-unknown-unknown"
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_PAIRS_512, _PAIRS_256 = "llvm.x86.avx512.pmaddw.d.512", "llvm.x86.avx2.pmadd.wd"
_PERMUTE_512, _PERMUTE_256 = "llvm.x86.avx512.permvar.si.512", "llvm.x86.avx2.permd"

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
        _PERMUTE_512,
        multiplies_even_lanes=True,
    ),
    InstructionSet(
        "avx-vnni",
        _X86,
        ("avx2", "avxvnni"),
        8,
        16,
        "quads",
        {"quads": "llvm.x86.avx512.vpdpbusd.256", "pairs": _PAIRS_256},
        _PERMUTE_256,
        has_word_lanes=True,
        multiplies_even_lanes=True,
    ),
    InstructionSet(
        "avx512bw",
        _X86,
        _AVX512,
        16,
        32,
        "pairs",
        {"pairs": _PAIRS_512},
        _PERMUTE_512,
        "llvm.x86.avx512.pmaddubs.w.512",
        has_memory_operands=True,
        multiplies_even_lanes=True,
    ),
    InstructionSet(
        "avx2",
        _X86,
        ("avx2",),
        8,
        16,
        "pairs",
        {"pairs": _PAIRS_256},
        _PERMUTE_256,
        "llvm.x86.avx2.pmadd.ub.sw",
        has_word_lanes=True,
        has_memory_operands=True,
        multiplies_even_lanes=True,
    ),
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
    """Return LLVM's names of the extensions that this processor has; empty if LLVM cannot tell."""
    from llvmlite import binding

    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM does not support this query on some systems
        return frozenset()
    return frozenset(name for name, is_present in features.items() if is_present)


def is_supported_by_host(candidate: InstructionSet) -> bool:
    """Whether this processor has the architecture and all extensions of `candidate`."""
    from llvmlite import binding

    arch = binding.get_process_triple().partition("-")[0].replace("arm64", "aarch64")
    if candidate.triple.partition("-")[0] not in ("", arch):
        return False
    return get_host_features() >= {*candidate.features}


@cache
def _supported_instruction_sets() -> tuple[InstructionSet, ...]:
    """Return the instruction sets that this processor supports, the best first."""
    return tuple(candidate for candidate in INSTRUCTION_SETS if is_supported_by_host(candidate))


def get_instruction_set() -> InstructionSet | None:
    """Return the instruction set that LINGERONNX_SIMD selects, by default the processor's best.

    Returns
    -------
    InstructionSet or None
        None for the scalar loops.

    Raises
    ------
    SimulatorError
        If the name is unknown, or the processor does not support the instruction set.
    """
    requested = os.environ.get("LINGERONNX_SIMD") or "1"
    if requested == "0":
        return None
    supported = _supported_instruction_sets()
    if requested == "1":
        return supported[0]
    by_name = {candidate.name: candidate for candidate in INSTRUCTION_SETS}
    if requested not in by_name:
        names = ", ".join(by_name)
        raise SimulatorError(
            f"LINGERONNX_SIMD: unknown instruction set '{requested}'; choose from {names}, 0 "
            "(scalar loops) or 1 (the best)"
        )
    if by_name[requested] not in supported:
        names = ", ".join(candidate.name for candidate in supported)
        raise SimulatorError(
            f"LINGERONNX_SIMD: this processor does not support '{requested}'; it supports {names} "
            "and 0"
        )
    return by_name[requested]
