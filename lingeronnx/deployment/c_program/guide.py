"""What the README of a deployed folder says of its program.

Parts, memory, building, and what to do when it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..dumps import HOST_TOLERANCE
from ..markdown import escape_markdown, format_shape
from .call_writer import CallWriter, make_c_names
from .packages import EXECUTOR_VERSION
from .program import BoardProgram, ChipPart
from .source_files import StaticMemory

__all__ = ["make_program_guide"]


def make_program_guide(program: BoardProgram, sizes: Mapping[str, int]) -> list[str]:
    """Return the lines. sizes : bytes by file."""
    return [
        "## The program",
        "",
        *_iterate_summary(program),
        "",
        *_iterate_io_table(program),
        "",
        "| part | runs on | constants, bytes | float operations per call | file |",
        "|---|---|---:|---:|---|",
        *_iterate_part_table(program),
        "",
        *_iterate_memory_table(program, sizes),
        "",
        *_iterate_build_steps(program, sizes),
        "",
        *_iterate_update_table(program),
        "",
        *_iterate_troubleshooting(program),
        "",
    ]


def _iterate_summary(program: BoardProgram) -> Iterator[str]:
    p, up = program.prefix, program.prefix.upper()
    count = f"{len(program.chip)} chip part{'s' * (len(program.chip) > 1)}"
    host = f", {len(program.host)} host part{'s' * (len(program.host) > 1)}" if program.host else ""
    operations = sum(part.float_operations for part in program.host)
    yield (
        f"`{p}_run()` in `{program.stem}.c` computes a call: {count}{host}, {operations:,} float "
        "operations on the host."
    )
    yield (
        f"Packages: `{p}_init()` takes {up}_PACKAGES of them from memory, each beginning at a "
        "multiple of 64 bytes."
    )
    yield f"It follows the interface of executor {EXECUTOR_VERSION}; it was never run on a board."
    for part in program.unique_host_parts:
        if part.source.is_large:
            yield (
                f"Note: {part.name} has {part.source.weight_bytes:,} bytes of weights and takes "
                f"{part.float_operations:,} float "
                "operations a call: on a small core it is the bottleneck."
            )


def _iterate_io_table(program: BoardProgram) -> Iterator[str]:
    yield f"| of `{program.prefix}_run` | tensor | shape | type | elements |"
    yield "|---|---|---|---|---|"
    for end, arrays in (("in", program.inputs), ("out", program.outputs)):
        names = make_c_names(arrays, end)
        for array in arrays:
            name, shape = names[array.tensor], format_shape(array.shape)
            size = f"`{program.prefix.upper()}_{name.upper()}_SIZE`, {array.element_count}"
            yield (
                f"| `{name}` | {escape_markdown(array.tensor)} | {shape} | {array.dtype} | {size} |"
            )


def _iterate_part_table(program: BoardProgram) -> Iterator[str]:
    for part in program.parts:
        if part.first != part.name:
            yield (
                f"| {part.name} | as {part.first} | 0 | "
                f"{0 if isinstance(part, ChipPart) else part.float_operations} "
                "| |"
            )
        elif isinstance(part, ChipPart):
            held = sum(
                v.const_value.nbytes
                for v in part.graph.graph.initializers.values()
                if v.const_value is not None
            )
            yield f"| {part.name} | {program.platform} | {held} | 0 | {part.file} |"
        else:
            yield (
                f"| {part.name} | host | {part.source.weight_bytes} | {part.float_operations} | "
                f"{program.stem}_{part.name}.c |"
            )


def _iterate_memory_table(program: BoardProgram, sizes: Mapping[str, int]) -> Iterator[str]:
    memory, up = StaticMemory(program), program.prefix.upper()
    weights = sum(part.source.weight_bytes for part in program.unique_host_parts)
    vector = sizes.get(f"{program.stem}_selftest.c", 0)
    yield "| memory | bytes | |"
    yield "|---|---:|---|"
    own = "a region for each part whose constants lie there"
    turn = f"parts take {memory.common_shared_bytes} bytes of it in turn"
    uses = [turn] * (memory.common_shared_bytes > 0) + [own] * (
        memory.common_shared_bytes < memory.shared
    )
    yield f"| shared memory | {memory.shared} | `{up}_SHARED_BYTES`; {'; '.join(uses)} |"
    yield (
        f"| psram | {memory.psram_bytes} | `{up}_PSRAM_BYTES`; the executor's own objects are a "
        "guess, from a PC |"
    )
    yield (
        f"| RAM | {program.arena_bytes} | `{up}_ARENA_BYTES`: between the parts, host parts "
        "included |"
    )
    yield f"| RAM for states | {memory.states} | `{up}_STATE_BYTES` |"
    yield f"| flash for host weights | {weights} | beside the packages and the code |"
    yield ""
    yield (
        f"`{program.stem}_selftest.c` ({vector} bytes of text) takes flash where "
        f"`{program.prefix}_self_test()` is called. "
        f"Sections: define `{up}_SHARED_SECTION` and `{up}_PSRAM_SECTION` for the linker. No heap "
        "is used."
    )


def _iterate_build_steps(program: BoardProgram, sizes: Mapping[str, int]) -> Iterator[str]:
    own = [f"`{program.stem}.c`", f"`{program.stem}_selftest.c`"]
    own += [f"`{program.stem}_{part.name}.c`" for part in program.unique_host_parts]
    yield (
        f"For a board, compile {', '.join(own)} as C99 with the executor's `thinker/thinker.h` on "
        "the "
        "include path, with"
    )
    yield "`-ffp-contract=off` and without `-ffast-math`. Then call"
    yield f"`{program.prefix}_init`, `{program.prefix}_self_test`, `{program.prefix}_run`."
    yield (
        "`CMakeLists.txt` makes these files a library, for a board too: `cmake -B build "
        "-DTHINKER=DIR`, with the"
    )
    yield "toolchain file of your board."
    yield (
        "On a PC, `make THINKER=DIR check` runs the known-answer test, `main.c`, with the "
        "vendor's library for a PC:"
    )
    yield "`DIR/lib/libthinker.so`, or the one that `THINKER_LIB=FILE` names."
    if not CallWriter(program).quantized_inputs:
        yield (
            f"There is no `{program.prefix}_run_q`, which would take integers: a host part "
            "reads "
            "the inputs."
        )
    yield ""
    yield from _iterate_multi_program_notes(program)


def _iterate_multi_program_notes(program: BoardProgram) -> Iterator[str]:
    """Yield what there is to do where one firmware has several such programs."""
    memory, up = StaticMemory(program), program.prefix.upper()
    yield (
        "Several such programs in one firmware: call `tInitialize` once before the first "
        "`init`, "
        "and compile each"
    )
    yield (
        f"program with its macro, here `-D{up}_EXECUTOR_READY`: then none calls `tInitialize` "
        "or "
        "`tUninitialize`."
    )
    if memory.common_shared_bytes < memory.shared:
        yield (
            "Constants of this program lie in shared memory, so that no other program may use "
            "its bytes."
        )
    else:
        yield (
            "Shared memory may be the same for programs that run in turn: "
            f"`-D{up}_SHARED_MEMORY=NAME` takes your"
        )
        yield f"array NAME of {memory.shared} + 64 bytes or more, in the section of shared memory."


def _iterate_update_table(program: BoardProgram) -> Iterator[str]:
    yield "| when only weights change | |"
    yield "|---|---|"
    yield (
        f"| new | the packages and graphs, `{program.stem}_selftest.c`, `golden/`, `pack.sh`, "
        "`manifest.json` |"
    )
    yield (
        f"| new | `{program.stem}.c`: the CRC-32 of the graphs that it accepts; scales, where "
        "they moved |"
    )
    if program.host:
        yield "| new | `main.c`: how far floats may be off, as measured |"
        yield "| new where its own weights changed | the host parts' C |"
    main = "" if program.host else " `main.c`,"
    yield (
        f"| as they were | `{program.stem}.h` where no scale moved,{main} `Makefile`, "
        "`CMakeLists.txt` |"
    )


def _iterate_troubleshooting(program: BoardProgram) -> Iterator[str]:
    p, up = program.prefix, program.prefix.upper()
    yield "### The known-answer test fails: what now"
    yield ""
    yield (
        f"1. `{p}_init` returns a code: `{program.stem}.h` says what each means. "
        f"`{up}_WRONG_MODEL`: run "
        "`pack.sh` again, and"
    )
    yield (
        f"   flash package and program of one folder. `{up}_NO_MEMORY`: give more in "
        f"`{up}_PSRAM_BYTES`. "
        f"`{up}_EXECUTOR`: see"
    )
    yield f"   `{p}_executor_status()`; 10002 is another chip, 4003 too little memory."
    yield (
        f"2. `{p}_self_test` returns N: part N is the first that computes something else on its "
        "own inputs. Parts:"
    )
    yield f"   {', '.join(f'{k} {part.name}' for k, part in enumerate(program.parts, 1))}."
    yield (
        "   `main.c` says it of each call in `golden/`. To find the tensor, of chip and host "
        "parts alike:"
    )
    yield (
        f"   `{p}_test --dump DIR ...` (made by `make`, with `-D{up}_WATCH`) writes what each "
        "part of the last"
    )
    yield "   call read and wrote, and"
    yield (
        f"   `lingeronnx verify {program.stem}.onnx --input golden/N/model_input.npz "
        "--device-dump DIR`"
    )
    yield "   compares; N as in `FAIL: call N`, or the last call."
    yield (
        f"3. The board stops answering: `{p}_test --stop N`, or a function given to `{p}_watch` "
        "that returns 1,"
    )
    yield "   ends a call after N parts: the largest N that still answers tells the part."
    yield (
        "4. Of a host part: is it compiled with `-ffast-math`, or with a C library whose exp or "
        "tanh is coarse?"
    )
    yield (
        "5. Every part is right, the whole is not: memory that two things use, a stack too small, "
        "or "
        "packages that moved"
    )
    yield (
        f"   after `{p}_init`. Versions are in `manifest.json`; the executor's must be "
        f"{EXECUTOR_VERSION}."
    )
    if program.tolerance:
        yield (
            "6. Chip parts by themselves are compared exactly. Of their range, floats of host "
            "parts may be off by"
        )
        yield (
            f"   {_format_host_tolerances(program)}, and outputs of the whole program by "
            f"{program.tolerance:g}:"
        )
        yield (
            "   host floats differ in their last bits from one C library to the next, and a "
            "value near a tie is then"
        )
        yield (
            "   rounded the other way. That much was measured, or is more than was measured, "
            "where all of the host's"
        )
        yield "   floats move by ten times what they may be off."


def _format_host_tolerances(program: BoardProgram) -> str:
    """Return how far floats of host parts may be off, those that single precision makes worse by name."""
    wide = [
        f"{limit:g} ({name})"
        for name, limit in program.host_tolerances.items()
        if limit > HOST_TOLERANCE
    ]
    return " or ".join([f"{HOST_TOLERANCE:g}", *wide])
