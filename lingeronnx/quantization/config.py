"""The checked configuration of `quantize`: bits, mode, calibration, overrides, skip list.

Imported only when a model is quantized, so that `lingeronnx --help` does not import pydantic and
YAML. An unknown key is an error that names the nearest known one.
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

from ..common.errors import ConfigError, format_exception
from ..common.files import read_user_file
from ..common.validation import format_validation_error
from ..targets import LatencyOptions, Target
from .settings import (
    AUTO_WEIGHT_BITS,
    OVERRIDE_SETTINGS,
    SETTINGS,
    Activations,
    Calibrator,
    Cells,
    Effort,
    Mode,
    NotesLength,
    Objective,
    OutBits,
    Setting,
)

__all__ = [
    "Override",
    "QuantConfig",
    "merge_overrides",
    "parse_override",
]

_MAX_FILE_BYTES = 1 << 24

#: The settings that scales depend on, besides the platform and the data.
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
_WEIGHT_SCALES_SCHEMA = {"type": "string", "pattern": _WEIGHT_SCALES_PATTERN}
_WEIGHT_BITS_SCHEMA = {"anyOf": [{"type": "integer"}, {"const": "auto", "type": "string"}]}


def _field(name: str, settings: Mapping[str, Setting] = SETTINGS) -> Any:  # noqa: ANN401 - as Field
    """Return the pydantic field of the setting `name`: its default, description and limits."""
    setting = settings[name]
    return Field(
        default=setting.default,
        description=setting.description,
        ge=setting.minimum,
        gt=setting.exclusive_minimum,
        le=setting.maximum,
    )


class Override(BaseModel):
    """Settings for the nodes or tensors that one selector names."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    calibrator: Calibrator | None = _field("calibrator", OVERRIDE_SETTINGS)
    percentile: float | None = _field("percentile", OVERRIDE_SETTINGS)
    scale: float | None = _field("scale", OVERRIDE_SETTINGS)
    bits: int | None = _field("bits", OVERRIDE_SETTINGS)
    weight_bits: int | None = _field("weight_bits", OVERRIDE_SETTINGS)
    out_bits: OutBits | None = _field("out_bits", OVERRIDE_SETTINGS)

    @property
    def to_settings(self) -> dict[str, Any]:
        """The values that are set, by key; `out_bits` is an integer or "float".

        A percentile also sets the calibrator "percentile" if none is named.
        """
        settings = self.model_dump(exclude_none=True)
        if "percentile" in settings:
            settings.setdefault("calibrator", "percentile")
        if settings.get("out_bits", "float") != "float":
            settings["out_bits"] = int(settings["out_bits"])
        return settings


class QuantConfig(BaseModel):
    """All settings of `quantize`, with their defaults.

    platform : the name of a target in `targets.PLATFORMS`, or a `Target`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    platform: Annotated[str | InstanceOf[Target], WithJsonSchema({"type": "string"})] = _field(
        "platform"
    )
    allow_unmeasured: bool = _field("allow_unmeasured")
    mode: Mode = _field("mode")
    bits: int = _field("bits")
    weight_bits: Annotated[int, WithJsonSchema(_WEIGHT_BITS_SCHEMA)] = _field("weight_bits")
    weight_scales: Annotated[str, WithJsonSchema(_WEIGHT_SCALES_SCHEMA)] = _field("weight_scales")
    activations: Activations = _field("activations")
    calibrator: Calibrator = _field("calibrator")
    percentile: float = _field("percentile")
    effort: Effort = _field("effort")
    fit: bool = _field("fit")
    require_chip: bool = _field("require_chip")
    parts: int | None = _field("parts")
    cells: Cells = _field("cells")
    max_parts: int | None = _field("max_parts")
    skip: tuple[str, ...] = _field("skip")
    state: Mapping[str, str] = _field("state")
    calls: Annotated[int, Field(ge=1, strict=True)] | Literal["all"] | None = _field("calls")
    fix: Mapping[str, float | str | tuple[float, ...]] = _field("fix")
    batch_axis: Mapping[str, int | None] = _field("batch_axis")
    input_shape: Mapping[str, tuple[int, ...]] = _field("input_shape")
    overrides: Mapping[str, Override] = _field("overrides")
    batch: int = _field("batch")
    limit: int | None = _field("limit")
    memory: float = _field("memory")
    seed: int = _field("seed")
    notes: NotesLength = _field("notes")
    requantize: bool | None = _field("requantize")
    debug_dump: str | None = _field("debug_dump")
    objective: Objective = _field("objective")
    clock: float | None = _field("clock")
    budget_ms: float | None = _field("budget_ms")
    timing: str | None = _field("timing")

    @property
    def time(self) -> LatencyOptions:
        """The options for latency estimates."""
        return LatencyOptions(self.clock, self.budget_ms, self.timing)

    @property
    def of_scales(self) -> dict[str, object]:
        """The JSON-ready settings that scales depend on and that differ from the defaults."""
        settings: dict[str, object] = self.model_dump(
            mode="json", include=_SCALE_SETTINGS, exclude_defaults=True
        )
        return settings

    @property
    def in_parts(self) -> bool:
        """Whether the chip's work may be split into several parts, with host parts between them."""
        return self.parts is None and not self.require_chip

    @property
    def budget(self) -> int:
        """The memory in bytes for passes over the data; `memory` is in units of 10^9 bytes."""
        return int(self.memory * 1e9)

    @field_validator("weight_bits", mode="before")
    @classmethod
    def _parse_auto_weight_bits(cls, value: object) -> object:
        """Convert "auto" to `AUTO_WEIGHT_BITS`; other values are returned unchanged."""
        return AUTO_WEIGHT_BITS if value == "auto" else value

    @field_validator("platform", mode="before")
    @classmethod
    def _check_platform_type(cls, value: object) -> object:
        """Raise ValueError unless the value is a string or a `Target`."""
        if not isinstance(value, str | Target):
            raise ValueError("it must be a name or a Target")
        return value

    @field_validator("weight_scales", mode="before")
    @classmethod
    def _check_weight_scales(cls, value: object) -> object:
        """Raise ValueError unless the value is tensor, channel or group:N."""
        if not isinstance(value, str) or re.fullmatch(_WEIGHT_SCALES_PATTERN, value) is None:
            raise ValueError(
                "it must be tensor, channel, or group:N for groups of N weights of a row, such as "
                "group:32"
            )
        return value

    @field_validator("max_parts")
    @classmethod
    def _check_max_parts(cls, value: int | None, info: ValidationInfo) -> int | None:
        """Return `value`; raises ValueError if it is set and `parts` is 1 as well."""
        if value is not None and info.data.get("parts") == 1:
            raise ValueError("it cannot be combined with parts 1; pass one of the two")
        return value

    @field_validator("debug_dump", "timing", mode="before")
    @classmethod
    def _convert_path_to_str(cls, value: object) -> object:
        """Convert a path object to a string; other values are returned unchanged."""
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    @classmethod
    def of(cls, settings: Mapping[str, object], where: str = "the options") -> QuantConfig:
        """Check `settings` and return the configuration.

        Parameters
        ----------
        where
            Source of the settings for error messages.

        Raises
        ------
        ConfigError
            If a key is unknown or a value is invalid.
        """
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            message = format_validation_error(error, cls, settings)
            raise ConfigError(f"{where}: {message}") from error

    @classmethod
    def read(cls, path: str | Path, **settings: object) -> QuantConfig:
        """Read a YAML or JSON file; keyword `settings` replace those of the file.

        An empty file has the defaults.

        Raises
        ------
        ConfigError
            If the file cannot be read, is not YAML, or contains an invalid setting.
        """
        import yaml

        try:
            text = read_user_file(path, "the configuration", _MAX_FILE_BYTES).decode("utf-8")
            body = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            # ValueError: invalid UTF-8 or an integer of too many digits.
            raise ConfigError(
                f"the configuration {path} is not YAML ({format_exception(error)}); "
                "`lingeronnx schema quant` describes it"
            ) from error
        if body is None:
            body = {}
        if not isinstance(body, dict):
            raise ConfigError(
                f"the configuration {path} contains a {type(body).__name__}; it must contain "
                "'key: value' lines"
            )
        return cls.of({**body, **settings}, f"the configuration {path}")

    def check_platform(self, target: Target) -> None:
        """Raise ConfigError if the target does not support a setting.

        Checked are mode, granularity of weight scales, zero points, widths and overrides. The width
        "auto" is refused as well, since only a requirement selects it.
        """
        if self.mode not in target.modes:
            raise ConfigError(
                f"mode {self.mode} on platform {target.name}: it supports "
                f"{' or '.join(target.modes)} scales only; drop --mode or choose "
                "--platform generic"
            )
        if self.weight_scales.partition(":")[0] not in target.weight_scales:
            raise ConfigError(
                f"weight_scales {self.weight_scales} on platform {target.name}: a weight has one "
                f"scale per {' or '.join(target.weight_scales)} there; drop --weight-scales or "
                "choose --platform generic"
            )
        if self.activations == "asymmetric" and not target.zero_points:
            raise ConfigError(
                f"activations asymmetric on platform {target.name}: zero points must be 0 there; "
                "drop --activations or choose --platform generic"
            )
        if self.weight_bits == AUTO_WEIGHT_BITS:
            raise ConfigError(
                "weight_bits auto: a requirement selects the widths; pass --max-drop, --min-sqnr, "
                "--max-flash or --max-ms"
            )
        supported_bits = {"bits": target.bits, "weight_bits": target.all_weight_bits}
        bits = {"bits": self.bits, "weight_bits": self.weight_bits}
        _check_bits("", bits, supported_bits, target)
        for selector, override in self.overrides.items():
            _check_bits(f"override {selector}: ", override.to_settings, supported_bits, target)
            _check_override(selector, override, target)


def _check_bits(
    prefix: str,
    settings: Mapping[str, Any],
    supported_bits: Mapping[str, tuple[int, ...]],
    target: Target,
) -> None:
    """Raise ConfigError if `settings` has a width that `supported_bits` does not list for its key.

    `supported_bits` maps a key to the supported widths; keys missing in `settings` pass. `prefix`
    begins the message.
    """
    for key, supported in supported_bits.items():
        if settings.get(key, supported[0]) not in supported:
            raise ConfigError(
                f"{prefix}{key} {settings[key]} on platform {target.name}: it supports "
                f"{', '.join(map(str, supported))} bits only; `lingeronnx platforms` lists the "
                "other platforms"
            )


def _check_override(selector: str, override: Override, target: Target) -> None:
    """Raise ConfigError if `target` cannot do `out_bits` or `scale` of the override for `selector`.

    `out_bits` must be "float" or a width that the target lists; `scale` must be a power of two
    where the target requires such scales.
    """
    out_bits = override.to_settings.get("out_bits", "float")
    if out_bits not in (*target.out_bits, *target.curve_bits, "float"):
        raise ConfigError(
            f"override {selector}: out_bits {out_bits} on platform {target.name}: not a supported "
            "width of an output that becomes float; pass "
            f"{', '.join(map(str, target.out_bits))}, or float"
        )
    if (
        override.scale is not None
        and target.needs_power_of_two_scales
        and math.frexp(override.scale)[0] != 0.5
    ):
        raise ConfigError(
            f"override {selector}: scale {override.scale:g} is not a power of two, as platform "
            f"{target.name} requires"
        )


def parse_override(text: str) -> tuple[str, dict[str, Any]]:
    """Parse ``SELECTOR=KEY:VALUE,...`` of the command line to (selector, {key: value}).

    Values are texts, but a power of two such as ``2^-7`` becomes a float; neither keys nor values
    are checked. The selector ends at the last "=". Raises ConfigError for text of another form.
    """
    selector, equals, body = text.rpartition("=")
    if not equals or not selector:
        raise ConfigError(
            f"override '{text}': write SELECTOR=KEY:VALUE, such as 'type:Conv=calibrator:max'"
        )
    settings: dict[str, Any] = {}
    for part in body.split(","):
        key, colon, value = part.partition(":")
        if not colon:
            raise ConfigError(
                f"override '{text}': '{part}' is not KEY:VALUE, such as bits:16,weight_bits:8"
            )
        power = re.fullmatch(r"2\^(-?\d{1,3})", value.strip())
        settings[key.strip()] = 2.0 ** int(power[1]) if power else value.strip()
    return selector, settings


def merge_overrides(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Parse ``--override`` texts as by `parse_override`, and return {selector: settings}.

    If a selector occurs more than once, its settings are merged; a later text replaces earlier
    values of the same setting only.
    """
    merged: dict[str, dict[str, Any]] = {}
    for text in texts:
        selector, settings = parse_override(text)
        merged.setdefault(selector, {}).update(settings)
    return merged
