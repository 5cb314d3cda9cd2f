"""Parser of the packer's command line, limited to the options that affect packing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...common.errors import ConfigError, split_words
from ...targets.verdict import VerdictFinding

__all__ = ["FLASH", "PSRAM", "SHARE", "PackerOptions", "parse_packer_arguments"]

SHARE, PSRAM, FLASH = "share-mem", "psram", "flash"

#: Option -> key of the parsed values, or None for an option that does not change the plan.
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
    """The packer options that affect the memory plan; sizes are in bytes.

    thresholds : --threshold1 to 4: of convolution weights, of outputs, of LinearInt weights, and of
    tensors that are placed in PSRAM.
    placements : memory of single tensors by name (`-m`).
    constant_memory : memory of all constants (`-m params:...`).
    symbol_sizes : size of each symbolic dimension (`-c`).
    shared_memory_limit : limit of the shared memory, or None for the size of the chip.
    findings : refusals of options that are parsed but not valid.
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
    """Parse a command line of the packer into the options that affect its plan.

    Options that do not affect it (dump, output path, ...) are accepted and ignored. Invalid entries
    of -m become `findings` of the result, not errors.

    Parameters
    ----------
    args : str or iterable of str
        One line in shell syntax, or separate arguments; the program name may come first.

    Raises
    ------
    ConfigError
        If an option is unknown, lacks its value, or a size is not a number.
    """
    argv = split_words(args) if isinstance(args, str) else [str(argument) for argument in args]
    values: dict[str, str] = {}
    index = 0
    while index < len(argv):
        option, value = argv[index], ""
        if option.startswith("--"):
            option, _, value = option.partition("=")
        if option not in _OPTION_FIELDS:
            if index == 0 and not option.startswith("-"):  # the program name
                index += 1
                continue
            raise ConfigError(
                f"unknown packer argument '{option}'; known: {', '.join(sorted(_OPTION_FIELDS))}"
            )
        if not value:
            index += 1
            if index >= len(argv):
                raise ConfigError(f"packer argument {option} needs a value; add one after it")
            value = argv[index]
        field_name = _OPTION_FIELDS[option]
        if field_name:
            values[field_name] = value
        index += 1
    return _make_options(values)


def _make_options(values: dict[str, str]) -> PackerOptions:
    """Convert `values`, texts by field name, to options.

    Defaults are thresholds of 655360 bytes, prefetch, constants in PSRAM. "params" in -m is the
    memory of constants; an invalid entry becomes a finding. Raises ConfigError for a size that is
    not a number.
    """
    placements, findings = _parse_placements(values.get("memory", ""))
    thresholds = [
        _parse_bytes(f"--threshold{i}", values.get(f"threshold{i}", "655360")) for i in (1, 2, 3, 4)
    ]
    limit = values.get("limit")
    return PackerOptions(
        platform=values.get("platform"),
        thresholds=(thresholds[0], thresholds[1], thresholds[2], thresholds[3]),
        prefetch=values.get("prefetch", "True").lower() not in ("false", "0", "no"),
        placements={name: memory for name, memory in placements.items() if name != "params"},
        constant_memory=placements.get("params", PSRAM),
        symbol_sizes=_parse_symbol_sizes(values.get("constants", "")),
        shared_memory_limit=None if limit is None else _parse_bytes("-r", limit),
        findings=tuple(findings),
    )


def _parse_bytes(option: str, text: str) -> int:
    """Convert `text`, the value of `option`, to an integer.

    Raises ConfigError with the option's name if it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"packer argument {option} must be a number of bytes; got '{text}'"
        ) from None


def _parse_placements(text: str) -> tuple[dict[str, str], list[VerdictFinding]]:
    """Parse ``tensor:memory,tensor:memory`` to (tensor -> lower-case memory, findings).

    Malformed entries and unknown memories become findings of level "packs"; the last entry of a
    tensor counts.
    """
    placements: dict[str, str] = {}
    findings: list[VerdictFinding] = []
    for entry in text.split(",") if text else []:
        fields: Sequence[str] = entry.split(":")
        if len(fields) != 2 or fields[1].lower() not in (SHARE, PSRAM, FLASH):
            rule = (
                "-m takes tensor:memory pairs separated by commas; the memory must be "
                f"{SHARE}, {PSRAM} or {FLASH}"
            )
            remedy = "rename the tensor or correct the memory"
            findings.append(VerdictFinding("packs", "-m", rule, f"'{entry}'", remedy))
            continue
        placements[fields[0]] = fields[1].lower()
    return placements, findings


def _parse_symbol_sizes(text: str) -> dict[str, int]:
    """Parse ``N=1`` or ``N=1:2:3`` entries separated by commas to symbol -> first size.

    Raises ConfigError for a size that is no integer, or an entry without one.
    """
    sizes: dict[str, int] = {}
    for entry in text.split(",") if text else []:
        name, _, value = entry.partition("=")
        sizes[name] = _parse_bytes("-c", value.split(":")[0])
    return sizes
