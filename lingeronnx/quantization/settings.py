"""The settings of `quantize`: type, default, description and command-line option of each.

Each fact stands here once. The fields of `quantization.config.QuantConfig`, the options of the
commands, the JSON Schema of a configuration file and its table in docs/reference/json.md are made
from `SETTINGS` and `OVERRIDE_SETTINGS`; type checkers read `QuantSettings`. Tests compare them.

Must not import pydantic, click or numpy: `lingeronnx --help` imports this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, TypedDict, get_args

from ..targets import DEFAULT, PLATFORMS
from ..targets._target import format_platform_name
from ..targets.objective import Objective

__all__ = [
    "AUTO_WEIGHT_BITS",
    "OVERRIDE_SETTINGS",
    "SETTINGS",
    "Activations",
    "Calibrator",
    "Cells",
    "Effort",
    "Mode",
    "NotesLength",
    "Objective",
    "OutBits",
    "QuantSettings",
    "Setting",
    "parse_group_size",
]

Activations: TypeAlias = Literal["symmetric", "asymmetric"]
Calibrator: TypeAlias = Literal["max", "percentile", "mse", "kl"]
Cells: TypeAlias = Literal["auto", "chip", "host"]
Effort: TypeAlias = Literal["fast", "normal", "best"]
Mode: TypeAlias = Literal["q-value", "max-value"]
NotesLength: TypeAlias = Literal["short", "full"]
OutBits: TypeAlias = Literal[8, 16, 32, "8", "16", "32", "float"]

#: `weight_bits` if a requirement, such as a maximum loss, selects them; users write "auto".
AUTO_WEIGHT_BITS = 0


class QuantSettings(TypedDict, total=False):
    """Keyword arguments of `quantize` besides those in its signature; None keeps the default."""

    allow_unmeasured: bool | None
    bits: int | None
    weight_bits: int | Literal["auto"] | None
    weight_scales: str | None
    activations: Activations | None
    calibrator: Calibrator | None
    percentile: float | None
    effort: Effort | None
    objective: Objective | None
    fit: bool | None
    require_chip: bool | None
    parts: int | None
    cells: Cells | None
    max_parts: int | None
    state: Mapping[str, str] | None
    calls: int | Literal["all"] | None
    fix: Mapping[str, float | str | Sequence[float]] | None
    batch_axis: Mapping[str, int | None] | None
    input_shape: Mapping[str, Sequence[int]] | None
    batch: int | None
    limit: int | None
    memory: float | None
    seed: int | None
    notes: NotesLength | None
    requantize: bool | None
    debug_dump: str | os.PathLike[str] | None
    clock: float | None
    budget_ms: float | None
    timing: str | os.PathLike[str] | None


class Setting(NamedTuple):
    """Default, description and command-line option of a setting.

    Parameters
    ----------
    default
        Value if the user sets none. A tuple or mapping makes the option repeatable.
    description
        Sentences without the default, for help texts, the JSON Schema and the documentation.
    type
        Type of the value of the option: str, int, float, bool or Path.
    choices
        Allowed words; empty if other values are allowed.
    minimum, exclusive_minimum, maximum
        Limits of a number.
    metavar
        Placeholder of the value in the help of the option.
    option
        Spelling of the option; empty if it is the name of the setting with hyphens.
    default_text
        Wording of the default in help texts. None: the default itself, if it is neither None,
        False nor empty. Empty: not shown.
    """

    default: object
    description: str
    type: type = str
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    exclusive_minimum: int | None = None
    maximum: int | None = None
    metavar: str | None = None
    option: str = ""
    default_text: str | None = None

    @property
    def is_repeatable(self) -> bool:
        """Whether the command-line option may be repeated: the default is a tuple or mapping."""
        return isinstance(self.default, tuple | Mapping)

    @property
    def default_label(self) -> str:
        """The text of the default in help texts; "" if it is not shown.

        That is `default_text` if it is set, else the default itself unless it is None, False, 0 or
        empty.
        """
        if self.default_text is not None:
            return self.default_text
        return str(self.default) if self.default else ""


_BITS_DESCRIPTION = "Bits of activations."
_CALIBRATOR_DESCRIPTION = "Method that chooses the range of a tensor."
_PERCENTILE_DESCRIPTION = "Percentile of absolute values for the calibrator percentile."
_MIN_PERCENTILE, _MAX_PERCENTILE = 50, 100  # the first one is excluded

#: Name of each setting of single nodes or tensors -> its description and limits.
OVERRIDE_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "calibrator": Setting(None, _CALIBRATOR_DESCRIPTION),
        "percentile": Setting(
            None,
            f"{_PERCENTILE_DESCRIPTION} Selects this calibrator if none is set.",
            exclusive_minimum=_MIN_PERCENTILE,
            maximum=_MAX_PERCENTILE,
        ),
        "scale": Setting(None, "Fixed scale in integer steps per unit.", exclusive_minimum=0),
        "bits": Setting(None, _BITS_DESCRIPTION),
        "weight_bits": Setting(None, "Bits of weights."),
        "out_bits": Setting(
            None, "Bits of an output that becomes float; float: the layer writes float32."
        ),
    }
)

#: Name of each setting -> its default, description and option, in the order of `QuantConfig`.
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "platform": Setting(
            DEFAULT.name,
            f"{' | '.join(target.name for target in PLATFORMS)}; "
            f"{format_platform_name('CHIP', 'VERSION')} for a version of the executor, see "
            "`lingeronnx platforms`.",
            metavar="NAME",
        ),
        "allow_unmeasured": Setting(
            False,
            "Allow versions of the executor and operators that are known from reading only, and "
            "were never measured.",
            bool,
        ),
        "mode": Setting("q-value", "Scales: powers of two, or any value.", choices=get_args(Mode)),
        "bits": Setting(8, _BITS_DESCRIPTION, int, metavar="N"),
        "weight_bits": Setting(
            8,
            "Bits of weights; 4 where the chip supports it. auto: per layer, as few as --max-drop "
            "or --min-sqnr allow, or as many as --max-flash or --max-ms allow.",
            int,
            metavar="N|auto",
        ),
        "weight_scales": Setting(
            "tensor",
            "Granularity of weight scales: per tensor, per output channel, or (generic, fully "
            "connected layers) per N weights of a row.",
            metavar="tensor|channel|group:N",
        ),
        "activations": Setting(
            "symmetric",
            "asymmetric: with zero points (generic).",
            choices=get_args(Activations),
        ),
        "calibrator": Setting("mse", _CALIBRATOR_DESCRIPTION, choices=get_args(Calibrator)),
        "percentile": Setting(
            99.99,
            _PERCENTILE_DESCRIPTION,
            float,
            exclusive_minimum=_MIN_PERCENTILE,
            maximum=_MAX_PERCENTILE,
        ),
        "effort": Setting("normal", "Time to spend on accuracy.", choices=get_args(Effort)),
        "fit": Setting(
            True,
            "Rewrite layers that exceed a limit of the chip.",
            bool,
            option="--fit/--no-fit",
            default_text="fit",
        ),
        "require_chip": Setting(False, "Fail if the graph is not chip-ready.", bool),
        "parts": Setting(
            None,
            "Do not split a model that is not chip-ready into several chip parts.",
            int,
            minimum=1,
            maximum=1,
            metavar="1",
        ),
        "cells": Setting(
            "auto",
            "Where recurrent cells with fed-back states run. auto: in float on the host if "
            "held-out calls show that it is more accurate.",
            choices=get_args(Cells),
        ),
        "max_parts": Setting(
            None,
            "Maximum number of chip parts; layers that prevent it move to the host.",
            int,
            minimum=1,
            metavar="N",
            default_text="no limit",
        ),
        "skip": Setting(
            (),
            "Keep nodes in float: a node or tensor name, a glob, or type:Conv; NAME..: it and all "
            "nodes downstream; ..NAME: it and all nodes upstream.",
            metavar="SELECTOR",
        ),
        "state": Setting(
            {},
            "Feed output OUT back to input IN; the items of the data are consecutive calls.",
            metavar="OUT=IN",
        ),
        "calls": Setting(
            None,
            "With --state: divide each item of the data, such as an .npz file, into N consecutive "
            "calls; all: one call per sample.",
            int,
            metavar="N",
            default_text="each item is one call",
        ),
        "fix": Setting(
            {},
            "Turn an input with a constant value, such as a sampling rate, into a constant.",
            metavar="INPUT=VALUE",
        ),
        "batch_axis": Setting(
            {}, "Batch axis of an input; none: the input has no batch.", metavar="INPUT=K|none"
        ),
        "input_shape": Setting(
            {},
            "Shape of an input whose dimensions the file leaves open.",
            metavar="INPUT=D,D,...",
        ),
        "overrides": Setting(
            {},
            f"Settings of single nodes or tensors: {', '.join(OVERRIDE_SETTINGS)}. On the command "
            "line, a scale may be a power of two, such as 2^7.",
            metavar="SELECTOR=KEY:VALUE,...",
            option="--override",
        ),
        "batch": Setting(
            32,
            "Samples per batch.",
            int,
            minimum=1,
            metavar="N",
            default_text="",  # commands that do not quantize have other defaults
        ),
        "limit": Setting(None, "Use only the first N samples.", int, minimum=1, metavar="N"),
        "memory": Setting(
            0.5,
            "Memory for passes over the data, beyond the model itself, in units of 10^9 bytes.",
            float,
            exclusive_minimum=0,
            maximum=1_000_000,
            metavar="GB",
        ),
        "seed": Setting(
            0,
            "Seed of all random numbers.",
            int,
            minimum=0,
            metavar="N",
            default_text="0",
        ),
        "notes": Setting(
            "short",
            "full: report every finding, node, layer and rejected graph rewrite.",
            choices=get_args(NotesLength),
        ),
        "requantize": Setting(
            None,
            "For a model that is already quantized (QuantizeLinear, QLinearConv): recompute its "
            "scales, or keep them.",
            bool,
            option="--requantize/--no-requantize",
            default_text="with calibration data, the more accurate of both",
        ),
        "debug_dump": Setting(
            None,
            "Write the graph after each pass to this folder, with the changes or the reasons for "
            "none.",
            Path,
            metavar="DIR",
        ),
        "objective": Setting(
            "accuracy",
            "How to choose between equivalent graphs. accuracy: fastest by measured costs; time: "
            "also by costs of other chips, and constants stay in shared memory for any gain; "
            "memory: only if shared memory does not grow; plain: no rewriting.",
            choices=get_args(Objective),
        ),
        "clock": Setting(
            None,
            "Clock of the chip in MHz; reports the time of a call in ms.",
            float,
            exclusive_minimum=0,
            metavar="MHZ",
        ),
        "budget_ms": Setting(
            None,
            "With --clock: report calls that take longer than this time in ms, with the layers "
            "responsible.",
            float,
            exclusive_minimum=0,
            metavar="MS",
        ),
        "timing": Setting(
            None,
            "Kernel costs of the chip, in a file that profile-board wrote.",
            Path,
            metavar="FILE",
        ),
    }
)


def parse_group_size(weight_scales: str) -> int | None:
    """Return N of the setting "group:N", or None for other settings."""
    kind, _, size = weight_scales.partition(":")
    return int(size) if kind == "group" else None
