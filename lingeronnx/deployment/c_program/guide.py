"""Write the sections on a program in README.md and DETAILS.md of a deployed folder.

The README has a summary; the details have parts, memory, building, updating and troubleshooting.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...common.escaping import escape_markdown
from ..dumps import HOST_TOLERANCE
from ..ports import format_shape
from .call_writer import CallWriter, make_c_names
from .object_sizes import SELF_TEST, ProgramSizes
from .packages import EXECUTOR_VERSION
from .program import BoardProgram, ChipPart
from .source_files import UNREPORTED_PSRAM_BYTES, StaticMemory

__all__ = ["make_program_guide", "make_program_summary"]


def make_program_guide(program: BoardProgram, object_sizes: ProgramSizes) -> list[str]:
    """Return the section of DETAILS.md on a C program, as lines of Markdown.

    It has parts, memory, object files, building, updating and troubleshooting. `object_sizes` are
    those of the program.
    """
    return [
        "## The program",
        "",
        *_iterate_io_table(program),
        "",
        "| part | runs on | constants, bytes | float operations per call | file |",
        "|---|---|---:|---:|---|",
        *_iterate_part_table(program),
        "",
        *_iterate_memory_table(program, object_sizes),
        "",
        *_iterate_object_table(program, object_sizes),
        "",
        *_iterate_build_steps(program),
        "",
        *_iterate_update_table(program),
        "",
        *_iterate_troubleshooting(program),
        "",
    ]


def make_program_summary(program: BoardProgram, object_sizes: ProgramSizes) -> list[str]:
    """Return the README's section on a C program: memory, firmware, and what to do on failure."""
    items = _iterate_summary_items(program, object_sizes)
    return ["## The program", "", *_iterate_summary(program), "", *items, ""]


def _iterate_summary_items(program: BoardProgram, object_sizes: ProgramSizes) -> Iterator[str]:
    """Yield items of a Markdown list: build, board, memory, test, return codes."""
    prefix, macro_prefix, stem = program.prefix, program.prefix.upper(), program.stem
    total = object_sizes.get_program_total()
    yield (
        f"- **Build**: {_format_board_sources(program)} as C99 with the executor's "
        "`thinker/thinker.h`, with `-ffp-contract=off` and without `-ffast-math`; "
        "`CMakeLists.txt` and `Makefile` do it."
    )
    yield (
        f"- **Board**: `{stem}_board.h` has sections, cache maintenance and locking for "
        f"{program.platform}; pass it with "
        f"`-D{macro_prefix}_BOARD_HEADER='\"{stem}_board.h\"'`. "
        f"`{stem}_firmware.c` is an example. One call at a time; no heap."
    )
    yield (
        f"- **Memory**: {total.static_bytes} bytes of `.data` + `.bss`: shared memory "
        f"{total.shared_bytes}, psram {total.psram_bytes}, RAM {total.ram_bytes}; without stack, "
        "C library and executor."
    )
    yield (
        "- **Test on a PC**: `make THINKER=DIR check` with the vendor's library; `main.c` explains "
        f"its exit codes. On the board: `{prefix}_self_test()` returns the first wrong part."
    )
    yield (
        f"- **A code other than {macro_prefix}_OK**: `{stem}.h` explains each; DETAILS.md has the "
        "steps of troubleshooting."
    )


def _format_board_sources(program: BoardProgram) -> str:
    """Return the C files of the program for a board, with their number if they are many."""
    sources = [f"`{program.stem}.c`", f"`{program.stem}_selftest.c`"]
    sources += [f"`{program.stem}_{part.name}.c`" for part in program.unique_host_parts]
    if len(sources) > _MAX_LISTED_SOURCES:
        listed = ", ".join(sources[:_MAX_LISTED_SOURCES])
        return f"{listed} and {len(sources) - _MAX_LISTED_SOURCES} more of the same kind"
    return ", ".join(sources)


_MAX_LISTED_SOURCES = 4


def _iterate_summary(program: BoardProgram) -> Iterator[str]:
    """Yield Markdown sentences on the program: parts, packages, executor, and large host parts."""
    prefix, macro_prefix = program.prefix, program.prefix.upper()
    count = f"{len(program.chip)} chip part{'s' * (len(program.chip) > 1)}"
    host = f", {len(program.host)} host part{'s' * (len(program.host) > 1)}" if program.host else ""
    operations = sum(part.float_operations for part in program.host)
    yield (
        f"`{prefix}_run()` in `{program.stem}.c` computes a call: {count}{host}, {operations:,} "
        "float operations on the host."
    )
    yield (
        f"Packages: `{prefix}_init()` takes {macro_prefix}_PACKAGES packages in memory, each "
        "aligned to 64 bytes."
    )
    yield f"It follows the interface of executor {EXECUTOR_VERSION}; it was never run on a board."
    for part in program.unique_host_parts:
        if part.source.is_large:
            yield (
                f"Note: {part.name} has {part.source.weight_bytes:,} bytes of weights and needs "
                f"{part.float_operations:,} float operations per call: it is the bottleneck on a "
                "small core."
            )


def _iterate_io_table(program: BoardProgram) -> Iterator[str]:
    """Yield a Markdown table of the parameters of `run`: inputs, then outputs."""
    yield f"| of `{program.prefix}_run` | tensor | shape | type | elements |"
    yield "|---|---|---|---|---|"
    for prefix, tensors in (("in", program.inputs), ("out", program.outputs)):
        names = make_c_names(tensors, prefix)
        for tensor in tensors:
            name, shape = names[tensor.tensor], format_shape(tensor.shape)
            size = f"`{program.prefix.upper()}_{name.upper()}_SIZE`, {tensor.element_count}"
            tensor_name = escape_markdown(tensor.tensor)
            yield f"| `{name}` | {tensor_name} | {shape} | {tensor.dtype} | {size} |"


def _iterate_part_table(program: BoardProgram) -> Iterator[str]:
    """Yield the rows of the Markdown table of parts, in the order in which they run.

    A part that is equal to an earlier one only refers to it.
    """
    for part in program.parts:
        operations = 0 if isinstance(part, ChipPart) else part.float_operations
        if part.first != part.name:
            yield f"| {part.name} | same as {part.first} | 0 | {operations} | |"
        elif isinstance(part, ChipPart):
            constants = [v.const_value for v in part.graph.graph.initializers.values()]
            constant_bytes = sum(constant.nbytes for constant in constants if constant is not None)
            yield f"| {part.name} | {program.platform} | {constant_bytes} | 0 | {part.file} |"
        else:
            yield (
                f"| {part.name} | host | {part.source.weight_bytes} | {operations} | "
                f"{program.stem}_{part.name}.c |"
            )


def _iterate_memory_table(program: BoardProgram, object_sizes: ProgramSizes) -> Iterator[str]:
    """Yield a Markdown table of the static memory that `run` needs, as it is declared in STEM.c."""
    memory, macro_prefix = StaticMemory(program), program.prefix.upper()
    total = object_sizes.get_program_total()
    uses = []
    if memory.common_shared_bytes > 0:
        uses.append(f"{memory.common_shared_bytes} bytes are reused by all parts")
    if memory.common_shared_bytes < memory.shared:
        uses.append("a separate region for each part whose constants are stored there")
    alignment = f"and {memory.ALIGNMENT_BYTES} to align it"
    yield "| static memory | bytes | |"
    yield "|---|---:|---|"
    yield (
        f"| shared memory | {total.shared_bytes} | `{macro_prefix}_SHARED_BYTES`, "
        f"{memory.shared}, {alignment}; {'; '.join(uses)} |"
    )
    yield (
        f"| psram | {total.psram_bytes} | `{macro_prefix}_PSRAM_BYTES`, {memory.psram_bytes}, "
        f"{alignment}; the size of the executor's objects is an estimate from a PC, and includes "
        f"{UNREPORTED_PSRAM_BYTES} bytes behind each block, which the executor does not report |"
    )
    yield (
        f"| RAM | {total.ram_bytes} | `{macro_prefix}_RAM_BYTES`: {program.arena_bytes} "
        f"(`{macro_prefix}_ARENA_BYTES`) between the parts, memory of host parts included; "
        f"{memory.states} (`{macro_prefix}_STATE_BYTES`) of states; handles of the executor |"
    )
    yield f"| all: `.data` + `.bss` of the program | {total.static_bytes} | |"
    yield ""
    yield (
        f"Sections: define `{macro_prefix}_SHARED_SECTION` and `{macro_prefix}_PSRAM_SECTION` for "
        "the linker; without them all of this memory is in `.bss`."
    )
    yield (
        "Not included: the stack, the C library, and the executor's library. No heap is used by "
        "the program."
    )


def _iterate_object_table(program: BoardProgram, object_sizes: ProgramSizes) -> Iterator[str]:
    """Yield a Markdown table of the sections of each object file, and how they were obtained.

    Columns of code and `.rodata` only if a compiler measured them.
    """
    is_measured = bool(object_sizes.compiler)
    code_head = " `.rodata` | `.text` |" if is_measured else ""
    yield (
        f"Object files, {object_sizes.format_origin()}. `.data` + `.bss`, as `size` prints them, "
        "do not depend on compiler"
    )
    yield (
        "and optimization level, because all writable data are unions and arrays of a fixed size. "
        "Constant arrays are the weights"
    )
    yield (
        "of host parts and the values of the self-test; `.rodata` has in addition tables, literals "
        "and padding. Flash is needed for"
    )
    yield "`.text`, `.rodata` and the packages."
    if not is_measured:
        reason = escape_markdown(object_sizes.not_measured_because or "not measured")
        yield f"The sizes of code are unknown: {reason}."
    yield ""
    yield f"| object | needed for | `.data` + `.bss` | constant arrays |{code_head}"
    yield f"|---|---|---:|---:|{'---:|---:|' if is_measured else ''}"
    for size in (*object_sizes.objects, object_sizes.get_program_total()):
        code = f" {size.rodata_bytes} | {size.code_bytes} |" if is_measured else ""
        role = f"`{program.prefix}_self_test()`" if size.role == SELF_TEST else size.role
        yield f"| {size.object} | {role} | {size.static_bytes} | {size.array_bytes} |{code}"


def _iterate_build_steps(program: BoardProgram) -> Iterator[str]:
    """Yield Markdown on compiling the program for a board and for a PC."""
    sources = [f"`{program.stem}.c`", f"`{program.stem}_selftest.c`"]
    sources += [f"`{program.stem}_{part.name}.c`" for part in program.unique_host_parts]
    yield (
        f"For a board, compile {', '.join(sources)} as C99 with the executor's "
        "`thinker/thinker.h` on the include path, with"
    )
    yield "`-ffp-contract=off` and without `-ffast-math`. Then call"
    yield f"`{program.prefix}_init`, `{program.prefix}_self_test`, `{program.prefix}_run`."
    yield (
        "`CMakeLists.txt` builds these files as a library, also for a board: `cmake -B build "
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
            f"There is no `{program.prefix}_run_q`, which would take integers, because a host part "
            "reads the inputs."
        )
    yield ""
    yield from _iterate_multi_program_notes(program)


def _iterate_multi_program_notes(program: BoardProgram) -> Iterator[str]:
    """Yield notes on several programs in one firmware: initialization, and shared memory.

    Programs may share that memory only if no constants of this one are stored there; the notes say
    whether this is so.
    """
    memory, macro_prefix = StaticMemory(program), program.prefix.upper()
    yield (
        "For several such programs in one firmware, call `tInitialize` once before the first "
        "`init`, and compile each"
    )
    yield (
        f"program with its macro, here `-D{macro_prefix}_EXECUTOR_READY`: then none calls "
        "`tInitialize` or `tUninitialize`."
    )
    if memory.common_shared_bytes < memory.shared:
        yield (
            "Constants of this program are stored in shared memory, so no other program may use "
            "its bytes."
        )
    else:
        yield (
            "Programs that do not run at the same time may use the same shared memory: "
            f"`-D{macro_prefix}_SHARED_MEMORY=NAME` uses your"
        )
        yield f"array NAME of {memory.shared} + 64 bytes or more, in the section of shared memory."


def _iterate_update_table(program: BoardProgram) -> Iterator[str]:
    """Yield a Markdown table of the files that change, or not, when only weights change."""
    yield "| if only weights change | |"
    yield "|---|---|"
    yield (
        f"| changed | the packages and graphs, `{program.stem}_selftest.c`, `golden/`, `pack.sh`, "
        "`manifest.json` |"
    )
    yield (
        f"| changed | `{program.stem}.c`: the CRC-32 of the graphs that it accepts; scales, if "
        "they changed |"
    )
    if program.host:
        yield "| changed | `main.c`: measured tolerances of floats |"
        yield "| changed if its weights changed | the C files of host parts |"
    main = "" if program.host else " `main.c`,"
    yield (
        f"| unchanged | `{program.stem}.h` if no scale changed,{main} `Makefile`, "
        "`CMakeLists.txt` |"
    )


def _iterate_troubleshooting(program: BoardProgram) -> Iterator[str]:
    """Yield Markdown steps to find the reason why the known-answer test fails.

    With a tolerance, a last step explains it.
    """
    prefix, macro_prefix = program.prefix, program.prefix.upper()
    part_list = ", ".join(f"{k} {part.name}" for k, part in enumerate(program.parts, 1))
    yield "### Troubleshooting a failing known-answer test"
    yield ""
    yield (
        f"1. `{prefix}_init` returns a code: see `{program.stem}.h` for its meaning. "
        f"`{macro_prefix}_WRONG_MODEL`: run `pack.sh` again, and"
    )
    yield (
        f"   flash package and program of one folder. `{macro_prefix}_NO_MEMORY`: increase "
        f"`{macro_prefix}_PSRAM_BYTES`. `{macro_prefix}_EXECUTOR`: see"
    )
    yield f"   `{prefix}_executor_status()`; 10002 is another chip, 4003 too little memory."
    yield (
        f"2. `{prefix}_self_test` returns N: part N is the first with other outputs for the same "
        "inputs. Parts:"
    )
    yield f"   {part_list}."
    yield "   `main.c` reports it for each call in `golden/`. To find the tensor, in any part:"
    yield (
        f"   `{prefix}_test --dump DIR ...` (built by `make`, with `-D{macro_prefix}_WATCH`) "
        "writes the inputs and outputs of all"
    )
    yield "   parts in the last call, and"
    yield (
        f"   `lingeronnx verify {program.stem}.onnx --input golden/N/model_input.npz "
        "--device-dump DIR`"
    )
    yield "   compares them; N is the number in `FAIL: call N`, or the last call."
    yield (
        f"3. The board stops responding: `{prefix}_test --stop N`, or a function passed to "
        f"`{prefix}_watch` that returns 1,"
    )
    yield "   ends a call after N parts: the largest N that still responds identifies the part."
    yield (
        "4. For a host part: check whether it is compiled with `-ffast-math`, or with a C library "
        "whose exp or tanh is inaccurate."
    )
    yield (
        "5. Every part is correct, but the complete program is not: memory with two uses, a stack "
        "that is too small, or packages that were moved"
    )
    yield (
        f"   after `{prefix}_init`. Versions are in `manifest.json`; the executor's must be "
        f"{EXECUTOR_VERSION}."
    )
    if program.tolerance:
        yield (
            "6. Chip parts by themselves are compared exactly. The tolerance of floats of host "
            "parts, relative to their range, is"
        )
        yield (
            f"   {_format_host_tolerances(program)}, that of outputs of the complete program "
            f"{program.tolerance:g}:"
        )
        yield (
            "   host floats differ in their last bits between C libraries, so a value near a tie "
            "may be rounded"
        )
        yield (
            "   the other way. The tolerance is at least the difference measured when all host "
            "floats change by ten times"
        )
        yield "   their tolerance."


def _format_host_tolerances(program: BoardProgram) -> str:
    """Format the relative tolerances of host floats: "DEFAULT or TOLERANCE (TENSOR) or ...".

    Only tensors with more than the default are listed.
    """
    larger = [
        f"{tolerance:g} ({escape_markdown(name)})"
        for name, tolerance in program.host_tolerances.items()
        if tolerance > HOST_TOLERANCE
    ]
    return " or ".join([f"{HOST_TOLERANCE:g}", *larger])
