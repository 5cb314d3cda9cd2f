"""The quantization plan.

Which tensor has which scale, as a frozen value with a versioned JSON form.
A scale is integer counts per real unit, ``q = round(x * scale)`` (the inverse of ONNX's
``y_scale``). Bias scales are derived (scale of the input times scale of the weight) and never
stored. Knows no operator and no graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import ConfigError, format_exception
from .affine import Affine, PerAxis, PerGroup

__all__ = ["Plan", "Transform"]

PLAN_VERSION = 2


@dataclass(frozen=True)
class Transform:
    """What a tensor of the plan means.

    Stored = `factor` * (the user's tensor), per channel (axis 1) or for all.
    """

    factor: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """Scales of a quantized model.

    tensors     scales and width of every integer tensor and quantized weight, by the float graph's
    tensor name transforms  tensor name -> Transform, where equalization changed what the stored
    tensor means floats      node name -> why it stays in float
    scaled      tensor name -> the tensor of the user's that a product of the host makes it from, or
    from it synthetic   whether scales, or weights refined for them, come from random inputs
    settings    those of `quantize` that the scales come from, where they are no defaults; None
    where nobody knows.
                A note for the files made from the plan: plans of the same scales are equal whatever
                it says
    """

    platform: str
    mode: str
    executor: str = ""
    tensors: Mapping[str, Affine] = field(default_factory=dict)
    transforms: Mapping[str, Transform] = field(default_factory=dict)
    floats: Mapping[str, str] = field(default_factory=dict)
    scaled: Mapping[str, str] = field(default_factory=dict)
    synthetic: bool = False
    settings: Mapping[str, object] | None = field(default=None, compare=False)

    def with_tensors(self, tensors: Mapping[str, Affine]) -> Plan:
        """Return a copy with other `tensors`."""
        return replace(self, tensors=dict(tensors))

    def to_json(self) -> str:
        """Return the plan as JSON text with sorted keys.

        Floats are written so that they read back exactly.
        A tensor has `scale`, a number or a list, and `bits`; `axis` where the scale is a list,
        `group_size` where it is one for each group along that axis (then a list of lists, of the
        tensor's rank), `zero_point` where it is not 0. `scaled` is left out where it is empty,
        `synthetic` where it is false, `settings` where they are not known.
        """
        body = {
            "lingeronnx_plan": PLAN_VERSION,
            "platform": self.platform,
            "executor": self.executor,
            "mode": self.mode,
            "tensors": {name: _qparams_to_json(p) for name, p in sorted(self.tensors.items())},
            "transforms": {
                name: {"factor": list(t.factor)} for name, t in sorted(self.transforms.items())
            },
            "floats": dict(sorted(self.floats.items())),
            **({"scaled": dict(sorted(self.scaled.items()))} if self.scaled else {}),
            **({"synthetic": True} if self.synthetic else {}),
            **({} if self.settings is None else {"settings": dict(sorted(self.settings.items()))}),
        }
        return json.dumps(body, indent=1) + "\n"

    @property
    def content(self) -> bytes:
        """What results depend on, for journals.

        All but the note of settings, which plans of 0.1 had not.
        """
        return replace(self, settings=None).to_json().encode()

    @classmethod
    def from_json(cls, text: str, where: str = "the plan") -> Plan:
        """Read what `to_json` wrote, also in version 1.

        ConfigError (naming `where`) for anything else.
        """
        try:
            body: dict[str, Any] = json.loads(text)
            version = body["lingeronnx_plan"]
            if version not in (1, PLAN_VERSION):
                raise ConfigError(
                    f"{where} has plan version {version}; this lingeronnx reads versions 1 and "
                    f"{PLAN_VERSION}: upgrade "
                    "it, "
                    "or quantize again with --save-plan"
                )
            if version == 1:
                _check_version1(body, where)
            return cls(
                platform=str(body["platform"]),
                executor=str(body.get("executor", "")),
                mode=str(body["mode"]),
                tensors={
                    name: _qparams_from_json(p, where, name) for name, p in body["tensors"].items()
                },
                transforms={
                    name: Transform(tuple(float(f) for f in t["factor"]))
                    for name, t in body.get("transforms", {}).items()
                },
                floats={str(k): str(v) for k, v in body.get("floats", {}).items()},
                scaled={str(k): str(v) for k, v in body.get("scaled", {}).items()},
                synthetic=bool(body.get("synthetic", False)),
                settings=_read_settings(body, where),
            )
        except ConfigError:
            raise
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise ConfigError(
                f"{where} is not a lingeronnx plan ({format_exception(error)}); --save-plan writes "
                "one"
            ) from error


def _check_version1(body: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for what version 1 could say, no lingeronnx ever wrote, and nothing computes."""
    for name, transform in body.get("transforms", {}).items():
        if transform.get("offset"):
            raise ConfigError(
                f"{where}: the transform of '{name}' has "
                f"offset {transform['offset']}; offsets are 0"
            )
    if body.get("reads"):
        raise ConfigError(
            f"{where}: 'reads' holds {len(body['reads'])} entries; a tensor has one scale for all "
            "readers"
        )


def _read_settings(body: Mapping[str, Any], where: str) -> dict[str, object] | None:
    """Return the settings that `body` notes; None where it notes none, as plans of 0.1 do."""
    noted = body.get("settings")
    if noted is not None and not isinstance(noted, dict):
        raise ConfigError(
            f"{where}: 'settings' is {json.dumps(noted)[:40]}; it holds settings by name, such as "
            '{"calibrator": "max"}: drop it, or write the plan anew with --save-plan'
        )
    return noted


def _qparams_to_json(q: Affine) -> dict[str, object]:
    """Return the JSON of how a tensor is held; what is as it mostly is stands nowhere."""
    entry: dict[str, object] = {"scale": q.scales.tolist(), "bits": q.bits}
    if q.axis is not None:
        entry["axis"] = q.axis
    if isinstance(q.granularity, PerGroup):
        entry["group_size"] = q.granularity.size
    if q.shifted:
        entry["zero_point"] = q.zero_points.tolist()
    return entry


def _qparams_from_json(entry: Mapping[str, Any], where: str, name: str) -> Affine:
    """Read what `_qparams_to_json` wrote; ConfigError for what holds no tensor."""
    scale, bits = entry["scale"], int(entry["bits"])
    scales = np.asarray(scale, np.float64)
    if not (np.isfinite(scales).all() and (scales > 0).all() and scales.size and 2 <= bits <= 32):
        raise ConfigError(
            f"{where}: tensor '{name}' has scale {scale} and {bits} bits; a scale is a positive "
            "number, "
            "bits are 2 to 32"
        )
    axis = int(entry["axis"]) if "axis" in entry else None
    grouped = "group_size" in entry
    if not grouped and (
        (scales.ndim == 1) != (axis is not None) or (scales.size == 1 and axis is not None)
    ):
        raise ConfigError(
            f"{where}: tensor '{name}' has {scales.size} scales along axis {axis}; "
            "a list of at least two scales has an axis, one scale has none"
        )
    if grouped and (axis is None or not 0 <= axis < scales.ndim or int(entry["group_size"]) < 1):
        raise ConfigError(
            f"{where}: tensor '{name}' has groups of {entry['group_size']} along axis {axis} of "
            "scales of "
            f"{scales.ndim} axes; a group has one element or more, along one of these axes"
        )
    zero = entry.get("zero_point", 0)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if np.any(zero) and (axis is not None or not low <= int(zero) <= high):
        raise ConfigError(
            f"{where}: tensor '{name}' has zero point {zero} with {scales.size} scales and {bits} "
            "bits; a zero point "
            f"is one of the integers {low} to {high}, beside one scale"
        )
    if axis is None:
        return Affine(scales, bits, zero_point=int(zero))
    return Affine(
        scales, bits, PerGroup(axis, int(entry["group_size"])) if grouped else PerAxis(axis)
    )
