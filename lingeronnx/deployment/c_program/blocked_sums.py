"""Rewrite long float sums in C to be added in two steps, which reduces the rounding error.

A sum of n floats, added one after the other, is off by up to n half last bits of its partial sums.
Adding sums of about sqrt(n) of them instead is off by about 2 sqrt(n). It matters where partial
sums are large and nearly cancel, as in a spectrum. The outermost loop that is fine enough is
executed in blocks:

    float acc = 0.0f;
    for (idx_t k = 0; k < 320; ++k) {
        acc += a[k] * b[k];
    }

becomes

    for (idx_t k_first = 0; k_first < 320; k_first += 17) {
        float acc_part = 0.0f;
        for (idx_t k = k_first; k < 320 && k < k_first + 17; ++k) {
            acc_part += a[k] * b[k];
        }
        acc += acc_part;
    }
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence

__all__ = ["block_long_sums"]

_MAX_UNBLOCKED_TERMS = 64  # shorter sums are not changed
_LOOP = re.compile(
    r"( *)for \((?P<type>\w+) (?P<index>\w+) = 0; (?P=index) < (?P<end>\w+); \+\+(?P=index)\) \{"
)
_ADDITION = re.compile(r" *(\w+) \+= ")
_SIZE = re.compile(r" *const \w+ (\w+) = (\d+);")


def block_long_sums(text: str) -> str:
    """Return C in which loops that add many terms to a float variable do so in blocks.

    This reduces the rounding error. Many are more than _MAX_UNBLOCKED_TERMS; nests of loops in an
    unknown form are not changed.
    """
    lines, output, sizes = text.split("\n"), list[str](), dict[str, int]()
    index = 0
    while index < len(lines):
        if size := _SIZE.fullmatch(lines[index]):
            sizes[size[1]] = int(size[2])
        end = _find_block_end(lines, index) if _LOOP.fullmatch(lines[index]) else 0
        blocked = _block_nest(lines[index : end + 1], output, sizes) if end else None
        output += blocked or [lines[index]]
        index = end + 1 if blocked else index + 1
    return "\n".join(output)


def _find_block_end(lines: Sequence[str], start: int) -> int:
    """Return the index of the line that closes the block of line `start`, or 0.

    It is the next line with "}" at the same indentation.
    """
    indent = len(lines[start]) - len(lines[start].lstrip())
    closing = f"{' ' * indent}}}"
    return next((index for index in range(start, len(lines)) if lines[index] == closing), 0)


def _block_nest(
    nest: Sequence[str], preceding: Sequence[str], sizes: dict[str, int]
) -> list[str] | None:
    """Return a nest of loops with its sums in blocks, or None if it is not changed.

    It is changed if it adds to float variables only and more than _MAX_UNBLOCKED_TERMS times. A
    block has about the square root of that number of terms.

    Parameters
    ----------
    nest
        Lines of the nest.
    preceding
        Lines of the file before it.
    sizes
        Values of named loop bounds; without one, the nest is not changed.
    """
    sums, loops = _find_float_sums(nest, preceding), _find_nested_loops(nest)
    if not sums or not loops:
        return None
    counts = []
    for _, loop in loops:
        end = loop["end"]
        counts.append(int(end) if end.isdigit() else sizes.get(end, 0))
    total = math.prod(counts)
    if total <= _MAX_UNBLOCKED_TERMS:
        return None
    root = math.isqrt(total)
    level = next(level for level in range(len(counts)) if math.prod(counts[level + 1 :]) <= root)
    start, loop = loops[level]
    stop, block_size = _find_block_end(nest, start), root // math.prod(counts[level + 1 :])
    body = [
        re.sub(r"(\w+) \+= ", r"\1_part += ", line) if _ADDITION.match(line) else line
        for line in nest[start + 1 : stop]
    ]
    return [*nest[:start], *_format_blocks(loop, block_size, sums, body), *nest[stop + 1 :]]


def _format_blocks(
    loop: re.Match[str], block_size: int, sums: Sequence[str], body: Sequence[str]
) -> Iterator[str]:
    """Yield the C lines of a loop over blocks: `body` adds to partial sums, these to `sums`.

    Parameters
    ----------
    loop
        Match of the original loop, with its indentation, type, index and end.
    block_size
        Iterations per block.
    sums
        Names of the C variables that are summed; the partial ones are called NAME_part.
    body
        Lines of the loop's body, which add to the partial sums.
    """
    indent, c_type, index, end = loop[1], loop["type"], loop["index"], loop["end"]
    yield (
        f"{indent}for ({c_type} {index}_first = 0; "
        f"{index}_first < {end}; {index}_first += {block_size}) {{"
    )
    for name in sums:
        yield f"{indent}    float {name}_part = 0.0f;"
    condition = f"{index} < {end} && {index} < {index}_first + {block_size}"
    yield f"{indent}    for ({c_type} {index} = {index}_first; {condition}; ++{index}) {{"
    for line in body:
        yield f"    {line}"
    yield f"{indent}    }}"
    for name in sums:
        yield f"{indent}    {name} += {name}_part;"
    yield f"{indent}}}"


def _find_float_sums(nest: Sequence[str], preceding: Sequence[str]) -> list[str]:
    """Return the variables that a nest of loops adds to with `+=`, each once.

    Empty if one of them is not a float variable or is also used otherwise. `preceding` are the
    lines of the file before the nest.
    """
    additions = [match[1] for line in nest if (match := _ADDITION.match(line))]
    sums = list(dict.fromkeys(additions))
    for name in sums:
        is_only_added_to = _count_uses(name, nest) == additions.count(name)
        if not is_only_added_to or not _is_float_variable(name, preceding):
            return []
    return sums


def _find_nested_loops(nest: Sequence[str]) -> list[tuple[int, re.Match[str]]]:
    """Find (line index, match) of all loops of the nest, outermost first.

    Empty if a loop is of an unknown form, or if they are not nested in each other.
    """
    loops = [(i, match) for i, line in enumerate(nest) if (match := _LOOP.fullmatch(line))]
    loop_lines = [line for line in nest if re.search(r"\b(for|while|do)\b", line)]
    if len(loops) != len(loop_lines):
        return []
    indents = [len(match[1]) for _, match in loops]
    is_nested = all(outer < inner for outer, inner in itertools.pairwise(indents))
    return loops if is_nested else []


def _is_float_variable(name: str, preceding: Sequence[str]) -> bool:
    """Whether the last declaration of `name` in the current function is a float.

    `preceding` are the lines before; a line that begins with "}" ends the previous function.
    """
    declaration = re.compile(rf" +(?:const )?(\w+) {name}(?: = .*)?;")
    for line in reversed(preceding):
        if line.startswith("}"):
            return False
        if match := declaration.fullmatch(line):
            return match[1] == "float"
    return False


def _count_uses(name: str, nest: Sequence[str]) -> int:
    """Count the occurrences of the word `name` in the lines of `nest`."""
    return sum(len(re.findall(rf"\b{name}\b", line)) for line in nest)
