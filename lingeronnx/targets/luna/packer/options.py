"""The packer's command line, as far as it decides what is packed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ....errors import ConfigError, split_words
from ...verdict import VerdictFinding

__all__ = ["FLASH", "PSRAM", "SHARE", "PackerOptions", "parse_packer_arguments"]

SHARE, PSRAM, FLASH = "share-mem", "psram", "flash"

#: Option -> field of `PackerOptions`, or None for what does not change the plan.
_OPTION_FIELDS = {
    "-p": "platform",
    "--platform": "platform",
    "-m": "memory",
    "--memory": "memory",
    "-r": "limit",
    "--ramsize": "limit",
    "-c": "constants",
    "-d": None,
    "--dump": None,
    "-g": None,
    "--graph_path": None,
    "-o": None,
    "--output": None,
    "--threshold1": "threshold1",
    "--threshold2": "threshold2",
    "--threshold3": "threshold3",
    "--threshold4": "threshold4",
    "--dma_prefetch": "prefetch",
    "--psramsize": None,
    "--strategy": None,
}


@dataclass(frozen=True)
class PackerOptions:
    """What was asked for; sizes in bytes.

    thresholds : 1 of convolution weights, 2 of outputs, 3 of LinearInt weights, 4 of tensors that
    go to PSRAM placements : {tensor: place}, by the names that tensors keep. parameters : the place
    of all constants, None for psram symbol_sizes : {symbol of a dimension: size}. limit : of the
    shared memory, None for the chip's own findings : what the packer would refuse
    """

    platform: str | None = None
    thresholds: tuple[int, int, int, int] = (655360, 655360, 655360, 655360)
    prefetch: bool = True
    placements: dict[str, str] = field(default_factory=dict)
    constant_memory: str = PSRAM
    symbol_sizes: dict[str, int] = field(default_factory=dict)
    shared_memory_limit: int | None = None
    findings: tuple[VerdictFinding, ...] = ()


def parse_packer_arguments(args: str | Iterable[str]) -> PackerOptions:
    """Read the packer's arguments: words, or one line for a shell.

    ConfigError for an option it does not have.
    """
    words = split_words(args) if isinstance(args, str) else [str(a) for a in args]
    values: dict[str, str] = {}
    position = 0
    while position < len(words):
        word, _, value = (
            words[position].partition("=")
            if words[position].startswith("--")
            else (words[position], "", "")
        )
        if word not in _OPTION_FIELDS:
            if position == 0 and not word.startswith("-"):  # the program's own name
                position += 1
                continue
            raise ConfigError(
                f"unknown packer argument '{word}'; known: {', '.join(sorted(_OPTION_FIELDS))}"
            )
        if not value:
            position += 1
            if position >= len(words):
                raise ConfigError(f"the packer's argument {word} has no value; write one behind it")
            value = words[position]
        if _OPTION_FIELDS[word]:
            values[str(_OPTION_FIELDS[word])] = value
        position += 1
    return _make_options(values)


def _make_options(values: dict[str, str]) -> PackerOptions:
    places, problems = _parse_placements(values.get("memory", ""))
    thresholds = [
        _parse_bytes(f"--threshold{i}", values.get(f"threshold{i}", "655360")) for i in (1, 2, 3, 4)
    ]
    limit = values.get("limit")
    return PackerOptions(
        platform=values.get("platform"),
        thresholds=(thresholds[0], thresholds[1], thresholds[2], thresholds[3]),
        prefetch=values.get("prefetch", "True").lower() not in ("false", "0", "no"),
        placements={name: place for name, place in places.items() if name != "params"},
        constant_memory=places.get("params", PSRAM),
        symbol_sizes=_parse_symbol_sizes(values.get("constants", "")),
        shared_memory_limit=None if limit is None else _parse_bytes("-r", limit),
        findings=tuple(problems),
    )


def _parse_bytes(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"the packer's argument {option} is '{text}'; it is a number of bytes"
        ) from None


def _parse_placements(text: str) -> tuple[dict[str, str], list[VerdictFinding]]:
    """Split ``a:place,b:place``; what does not split so, the packer refuses."""
    places: dict[str, str] = {}
    problems: list[VerdictFinding] = []
    for entry in text.split(",") if text else []:
        parts: Sequence[str] = entry.split(":")
        if len(parts) != 2 or parts[1].lower() not in (SHARE, PSRAM, FLASH):
            rule = (
                f"-m takes name:place, separated by commas; a place is {SHARE}, {PSRAM} or {FLASH}"
            )
            problems.append(
                VerdictFinding(
                    "packs", "-m", rule, f"'{entry}'", "rename the tensor or correct the place"
                )
            )
            continue
        places[parts[0]] = parts[1].lower()
    return places, problems


def _parse_symbol_sizes(text: str) -> dict[str, int]:
    """Read ``N=1`` or ``N=1:1:1``, several separated by commas."""
    sizes: dict[str, int] = {}
    for entry in text.split(",") if text else []:
        name, _, value = entry.partition("=")
        sizes[name] = _parse_bytes("-c", value.split(":")[0])
    return sizes
