"""Long sums of floats in two steps, in C that adds one number after the other.

The sum of n floats, each added to those before, is off by up to n halves of the last bit of what it
comes to on the way; sums of about sqrt(n) of them, and then of these, by about 2 sqrt(n). It shows
where sums come to much and nearly cancel, as those of a spectrum do. The outermost loop that is
fine enough runs in blocks:

    float acc = 0.0f;                         for (idx_t k_first = 0; k_first < 320; k_first += 17)
    { for (idx_t k = 0; k < 320; ++k) {             float acc_part = 0.0f;
        acc += a[k] * b[k];                       for (idx_t k = k_first; k < 320 && k < k_first +
        17; ++k) {
    }                                                 acc_part += a[k] * b[k];
                                                  }
                                                  acc += acc_part;
                                              }
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

__all__ = ["block_long_sums"]

_MAX_UNBLOCKED_TERMS = 64  # so many numbers are added up as they are
_LOOP = re.compile(
    r"( *)for \((?P<type>\w+) (?P<index>\w+) = 0; (?P=index) < (?P<end>\w+); \+\+(?P=index)\) \{"
)
_ADDED = re.compile(r" *(\w+) \+= ")
_SIZE = re.compile(r" *const \w+ (\w+) = (\d+);")


def block_long_sums(text: str) -> str:
    """Return C in which loops that add more than 64 terms to a variable of type float do so in blocks."""
    lines, made, sizes = text.split("\n"), list[str](), dict[str, int]()
    at = 0
    while at < len(lines):
        if size := _SIZE.fullmatch(lines[at]):
            sizes[size[1]] = int(size[2])
        block = _find_block_end(lines, at) if _LOOP.fullmatch(lines[at]) else 0
        found = _block_nest(lines[at : block + 1], made, sizes) if block else None
        made += found or [lines[at]]
        at = block + 1 if found else at + 1
    return "\n".join(made)


def _find_block_end(lines: Sequence[str], start: int) -> int:
    """Return where the block closes that line `start` opens; its indentation tells. 0: nowhere."""
    close = f"{' ' * (len(lines[start]) - len(lines[start].lstrip()))}}}"
    return next((at for at in range(start, len(lines)) if lines[at] == close), 0)


def _block_nest(
    nest: Sequence[str], before: Sequence[str], sizes: dict[str, int]
) -> list[str] | None:
    """Return a nest of loops with its sums in blocks.

    None where it makes none, short ones, or is not understood.
    """
    added = [match[1] for line in nest if (match := _ADDED.match(line))]
    sums = list(dict.fromkeys(added))
    loops = [(at, match) for at, line in enumerate(nest) if (match := _LOOP.fullmatch(line))]
    plain = all(
        _is_float_variable(name, before) and _count_uses(name, nest) == added.count(name)
        for name in sums
    )
    if (
        not sums
        or not plain
        or len(loops) != sum(bool(re.search(r"\b(for|while|do)\b", line)) for line in nest)
    ):
        return None
    if any(
        len(inner[1]) <= len(outer[1])
        for (_, outer), (_, inner) in zip(loops, loops[1:], strict=False)
    ):
        return None  # loops behind each other
    counts = [int(m["end"]) if m["end"].isdigit() else sizes.get(m["end"], 0) for _, m in loops]
    total = math.prod(counts)
    if total <= _MAX_UNBLOCKED_TERMS:
        return None
    root = math.isqrt(total)
    level = next(level for level in range(len(counts)) if math.prod(counts[level + 1 :]) <= root)
    start, loop = loops[level]
    stop, block = _find_block_end(nest, start), root // math.prod(counts[level + 1 :])
    indent, kind, index, end = loop[1], loop["type"], loop["index"], loop["end"]
    inside = f"{index} < {end} && {index} < {index}_first + {block}"
    terms = [
        re.sub(r"(\w+) \+= ", r"\1_part += ", line) if _ADDED.match(line) else line
        for line in nest[start:stop]
    ]
    return [
        *nest[:start],
        (
            f"{indent}for ({kind} {index}_first = 0; "
            f"{index}_first < {end}; {index}_first += {block}) {{"
        ),
        *(f"{indent}    float {name}_part = 0.0f;" for name in sums),
        f"{indent}    for ({kind} {index} = {index}_first; {inside}; ++{index}) {{",
        *(f"    {line}" for line in terms[1:]),
        f"{indent}    }}",
        *(f"{indent}    {name} += {name}_part;" for name in sums),
        f"{indent}}}",
        *nest[stop + 1 :],
    ]


def _is_float_variable(name: str, before: Sequence[str]) -> bool:
    """Whether the last variable of a name that is declared in the same function is a float."""
    declared = re.compile(rf" +(?:const )?(\w+) {name}(?: = .*)?;")
    for line in reversed(before):
        if line.startswith("}"):
            return False
        if match := declared.fullmatch(line):
            return match[1] == "float"
    return False


def _count_uses(name: str, nest: Sequence[str]) -> int:
    return sum(len(re.findall(rf"\b{name}\b", line)) for line in nest)
