"""Write what firmware needs around a program: a header of the board, and an example that calls it.

Names of a chip's SDK come from its vendor (`BoardSupport`); where none is known, a comment says
what to fill in. The example compiles with the stand-in executor and was never run on a board.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...targets import Target
from ...targets.board_support import BoardSupport
from .call_writer import CallWriter
from .program import BoardProgram
from .source_files import StaticMemory, get_template_values, render_template

__all__ = ["make_board_header", "make_firmware_c"]


def make_board_header(program: BoardProgram, target: Target) -> str:
    """Return the text of STEM_board.h for the chip `target`: sections, cache, lock and start."""
    support, memory = target.vendor.get_board_support(), StaticMemory(program)
    macro_prefix = program.prefix.upper()
    values = get_template_values(program) | {
        "source": _describe_source(support),
        "includes": "".join(f"#include <{name}>\n" for name in support.includes),
        "shared_bytes": f"{memory.shared_array_bytes:,}",
        "shared_limit": _format_shared_limit(program),
        "psram_bytes": f"{memory.psram_array_bytes:,}",
        "shared_section": _define(f"{macro_prefix}_SHARED_SECTION", support.shared_section),
        "psram_section": _define(f"{macro_prefix}_PSRAM_SECTION", support.psram_section),
        "clean_cache": _define(f"{macro_prefix}_CLEAN_CACHE(data, bytes)", support.clean_cache),
        "invalidate_cache": _define(
            f"{macro_prefix}_INVALIDATE_CACHE(data, bytes)", support.invalidate_cache
        ),
        "cache_off": _format_statements(support.cache_off, "switch the data cache off"),
        "start": _format_statements(support.start, "switch the NPU on"),
    }
    return render_template("board.h", values)


def make_firmware_c(program: BoardProgram, package: str) -> str:
    """Return the text of STEM_firmware.c, the example; `package` is the file of a package."""
    writer = CallWriter(program)
    names = [writer.input_names[tensor.tensor] for tensor in program.inputs]
    names += [writer.output_names[tensor.tensor] for tensor in program.outputs]
    values = get_template_values(program) | {
        "package": package,
        "run_parameters": ", ".join(writer.format_parameters(False)),
        "run_arguments": ", ".join(names),
    }
    return render_template("firmware.c", values)


def _describe_source(support: BoardSupport) -> str:
    """Return a sentence on where the names are from."""
    if not support.source:
        return "No names of the SDK of this chip are known here: fill in those of yours."
    return f"Names of the SDK were read in {support.source}; none was tried on a board."


def _format_shared_limit(program: BoardProgram) -> str:
    """Format the size of the shared memory, ", of N", or "" if no part has a memory plan."""
    for part in program.unique_chip_parts:
        if part.choice.verdict.cost is not None:
            return f", of {part.choice.verdict.cost.shared_limit:,}"
    return ""


def _define(macro: str, value: str) -> str:
    """Return the C line that defines a macro, or a comment that asks for its value."""
    if value:
        return f"#define {macro} {value}"
    return f"/* #define {macro} ... of your board */"


def _format_statements(statements: Sequence[str], purpose: str) -> str:
    """Return C that runs `statements` in order; without any, a comment that asks for them."""
    if statements:
        return f"do {{ {' '.join(statements)} }} while (0)"
    return f"((void)0) /* {purpose} here, as the SDK of your board does */"
