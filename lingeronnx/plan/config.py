"""What the user may choose, checked: bits, mode, calibration, overrides, skip list.

Loaded only when a model is quantized (pydantic and YAML are not imported by `lingeronnx --help`).
An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from ..errors import ConfigError, format_exception, suggest_nearest
from ..files import read_user_file
from ..targets import DEFAULT, LatencyOptions, Target

__all__ = [
    "AUTO_WEIGHT_BITS",
    "Override",
    "QuantConfig",
    "merge_overrides",
    "parse_group_size",
    "parse_override",
]

_MAX_FILE_BYTES = 1 << 24  # bytes of a file


#: What scales depend on, beside the platform and the data.
_SCALE_SETTINGS = {
    "mode",
    "bits",
    "weight_bits",
    "weight_scales",
    "activations",
    "calibrator",
    "percentile",
    "effort",
    "fit",
    "skip",
    "overrides",
}
_WEIGHT_SCALES_PATTERN = "tensor|channel|group:[1-9][0-9]{0,6}"

#: The width of weights that a wish chooses; users say "auto".
AUTO_WEIGHT_BITS = 0


class Override(BaseModel):
    """Settings for the nodes or tensors one selector names."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    calibrator: Literal["max", "percentile", "mse", "kl"] | None = None
    percentile: float | None = Field(default=None, gt=50, le=100)
    scale: float | None = Field(default=None, gt=0)
    bits: int | None = None
    weight_bits: int | None = None
    out_bits: Literal[8, 16, 32, "8", "16", "32", "float"] | None = None

    @property
    def to_settings(self) -> dict[str, Any]:
        """What is set, by key; a percentile chooses that calibrator, too, where none is named."""
        settings = self.model_dump(exclude_none=True)
        if "percentile" in settings:
            settings.setdefault("calibrator", "percentile")
        if settings.get("out_bits", "float") != "float":
            settings["out_bits"] = int(settings["out_bits"])
        return settings


class QuantConfig(BaseModel):
    """Everything `quantize` may be told; the defaults are meant to be good.

    platform : the name of a row of `targets.PLATFORMS`, or a row of one's own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    platform: Annotated[str | InstanceOf[Target], WithJsonSchema({"type": "string"})] = DEFAULT.name
    mode: Literal["q-value", "max-value"] = "q-value"
    bits: int = 8
    weight_bits: int = 8
    weight_scales: Annotated[
        str, WithJsonSchema({"type": "string", "pattern": _WEIGHT_SCALES_PATTERN})
    ] = "tensor"
    activations: Literal["symmetric", "asymmetric"] = "symmetric"
    calibrator: Literal["max", "percentile", "mse", "kl"] = "mse"
    percentile: float = Field(default=99.99, gt=50, le=100)
    effort: Literal["fast", "normal", "best"] = "normal"
    fit: bool = True
    require_chip: bool = False
    parts: Literal[1] | None = None
    cells: Literal["auto", "chip", "host"] = "auto"
    max_parts: int | None = Field(default=None, ge=1)
    skip: tuple[str, ...] = ()
    state: Mapping[str, str] = Field(default_factory=dict)
    fix: Mapping[str, float | str | tuple[float, ...]] = Field(default_factory=dict)
    batch_axis: Mapping[str, int | None] = Field(default_factory=dict)
    input_shape: Mapping[str, tuple[int, ...]] = Field(default_factory=dict)
    overrides: Mapping[str, Override] = Field(default_factory=dict)
    batch: int = Field(default=32, ge=1)
    limit: int | None = Field(default=None, ge=1)
    memory: float = Field(default=0.5, gt=0, le=1e6)
    seed: int = 0
    notes: Literal["short", "full"] = "short"
    requantize: bool | None = None
    debug_dump: str | None = None
    objective: Literal["accuracy", "time", "memory", "plain"] = "accuracy"
    clock: float | None = Field(default=None, gt=0, description="MHz of the chip")
    budget_ms: float | None = Field(
        default=None, gt=0, description="milliseconds that a call may take"
    )
    timing: str | None = Field(
        default=None, description="a file of profile-board: the chip's prices"
    )

    @property
    def time(self) -> LatencyOptions:
        """What is asked of the time on the chip."""
        return LatencyOptions(self.clock, self.budget_ms, self.timing)

    @property
    def of_scales(self) -> dict[str, object]:
        """The settings that scales depend on, beside the platform and the data, where they are no defaults."""
        found: dict[str, object] = self.model_dump(
            mode="json", include=_SCALE_SETTINGS, exclude_defaults=True
        )
        return found

    @property
    def in_parts(self) -> bool:
        """Whether the chip's work may be cut into several parts, with float operators of the host between them."""
        return self.parts is None and not self.require_chip

    @property
    def budget(self) -> int:
        """The bytes that passes over the data may take: `memory` is in units of 10^9."""
        return int(self.memory * 1e9)

    @field_validator("weight_bits", mode="before")
    @classmethod
    def _parse_auto_weight_bits(cls, value: object) -> object:
        return AUTO_WEIGHT_BITS if value == "auto" else value

    @field_validator("weight_scales")
    @classmethod
    def _scales(cls, value: str) -> str:
        if re.fullmatch(_WEIGHT_SCALES_PATTERN, value) is None:
            raise ValueError(
                "it is tensor, channel, or group:N for N weights of a row, such as group:32"
            )
        return value

    @field_validator("max_parts")
    @classmethod
    def _cut(cls, value: int | None, others: ValidationInfo) -> int | None:
        if value is not None and others.data.get("parts") == 1:
            raise ValueError("parts 1 cuts nothing; give one of the two")
        return value

    @field_validator("debug_dump", "timing", mode="before")
    @classmethod
    def _path_to_str(cls, value: object) -> object:
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    @classmethod
    def of(cls, settings: Mapping[str, Any], where: str = "the options") -> QuantConfig:
        """Check `settings` and return the configuration.

        ConfigError for an unknown key or a bad value.
        """
        known = cls.model_fields
        for key in settings:
            if key not in known:
                raise ConfigError(
                    f"{where}: unknown key '{key}'{suggest_nearest(str(key), known)}; known: "
                    f"{', '.join(known)}"
                )
        try:
            return cls(**settings)
        except ValidationError as error:
            raise ConfigError(f"{where}: {_format_validation_error(error)}") from error

    @classmethod
    def read(cls, path: str | Path, **settings: Any) -> QuantConfig:
        """Read a YAML file; keyword `settings` (those the caller was really given) win over the file."""
        import yaml

        try:
            body = yaml.safe_load(
                read_user_file(path, "the configuration", _MAX_FILE_BYTES).decode("utf-8")
            )
        except (
            yaml.YAMLError,
            ValueError,
            RecursionError,
        ) as error:  # of bytes, of 5,000 digits, of brackets
            raise ConfigError(
                f"the configuration {path} is not YAML ({format_exception(error)}); `lingeronnx "
                "schema quant` "
                "describes it"
            ) from error
        if body is None:
            body = {}
        if not isinstance(body, dict):
            raise ConfigError(
                f"the configuration {path} holds a {type(body).__name__}; it must hold 'key: "
                "value' lines"
            )
        return cls.of({**body, **settings}, f"the configuration {path}")

    def check_platform(self, target: Target) -> None:
        """Raise ConfigError where a setting is not one the platform has."""
        if self.mode not in target.modes:
            raise ConfigError(
                f"mode {self.mode} on platform {target.name}: it takes {' or '.join(target.modes)} "
                "scales only; "
                "drop --mode or choose --platform generic"
            )
        if self.weight_scales.partition(":")[0] not in target.weight_scales:
            raise ConfigError(
                f"weight_scales {self.weight_scales} on platform {target.name}: a weight has one "
                "scale per "
                f"{' or '.join(target.weight_scales)} there; drop --weight-scales or choose "
                "--platform generic"
            )
        if self.activations == "asymmetric" and not target.zero_points:
            raise ConfigError(
                f"activations asymmetric on platform {target.name}: the integer 0 stands for the "
                "real 0 there; "
                "drop --activations or choose --platform generic"
            )
        if self.weight_bits == AUTO_WEIGHT_BITS:
            raise ConfigError(
                "weight_bits auto: what is wished chooses the widths; give --max-drop, --min-sqnr, "
                "--max-flash or "
                "--max-ms"
            )
        widths = {"bits": target.bits, "weight_bits": target.all_weight_bits}
        _check_widths("", {"bits": self.bits, "weight_bits": self.weight_bits}, widths, target)
        for selector, override in self.overrides.items():
            settings = override.to_settings
            _check_widths(f"override {selector}: ", settings, widths, target)
            if settings.get("out_bits", "float") not in (
                *target.out_bits,
                *target.curve_bits,
                "float",
            ):
                raise ConfigError(
                    f"override {selector}: out_bits {settings['out_bits']} on platform "
                    f"{target.name}: an output that "
                    "leaves the integers has other widths there; give "
                    f"{', '.join(map(str, target.out_bits))}, or float"
                )
            if (
                override.scale is not None
                and target.needs_power_of_two_scales
                and math.frexp(override.scale)[0] != 0.5
            ):
                raise ConfigError(
                    f"override {selector}: scale {override.scale:g} is not a power of two, "
                    f"which is all that platform {target.name} takes"
                )


def parse_group_size(weight_scales: str) -> int | None:
    """Return N of the setting "group:N", None for the others."""
    kind, _, size = weight_scales.partition(":")
    return int(size) if kind == "group" else None


def _check_widths(
    where: str, settings: Mapping[str, Any], widths: Mapping[str, tuple[int, ...]], target: Target
) -> None:
    for key, known in widths.items():
        if settings.get(key, known[0]) not in known:
            raise ConfigError(
                f"{where}{key} {settings[key]} on platform {target.name}: it computes in "
                f"{', '.join(map(str, known))} bits only; `lingeronnx platforms` tells the others"
            )


def _format_validation_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["loc"][0] == "platform":
        return f"platform = {first.get('input')!r}: it is a name or a Target"
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        return (
            f"unknown key '{key}' in {where}{suggest_nearest(key, Override.model_fields)}; "
            f"known: {', '.join(Override.model_fields)}"
        )
    return f"{where} = {first.get('input')!r}: {first['msg'].removeprefix('Value error, ')}"


def parse_override(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``SELECTOR=KEY:VALUE,...`` as the command line takes it.

    A scale may be written ``2^-7``.
    """
    selector, equals, body = text.rpartition("=")
    if not equals or not selector:
        raise ConfigError(
            f"override '{text}': write SELECTOR=KEY:VALUE, for instance 'type:Conv=calibrator:max'"
        )
    settings: dict[str, Any] = {}
    for part in body.split(","):
        key, colon, value = part.partition(":")
        if not colon:
            raise ConfigError(
                f"override '{text}': '{part}' is not KEY:VALUE; such as bits:16,weight_bits:8"
            )
        power = re.fullmatch(r"2\^(-?\d{1,3})", value.strip())
        settings[key.strip()] = 2.0 ** int(power[1]) if power else value.strip()
    return selector, settings


def merge_overrides(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Combine several ``--override`` texts, later ones winning key by key."""
    merged: dict[str, dict[str, Any]] = {}
    for text in texts:
        selector, settings = parse_override(text)
        merged.setdefault(selector, {}).update(settings)
    return merged
