"""The quantization plan: the scale of each tensor, as a frozen value with a versioned JSON form.

A scale is integer steps per unit, ``q = round(x * scale)`` (the inverse of ONNX's ``y_scale``).
Bias scales are derived (input scale times weight scale) and never stored. This module depends on no
operator and no graph.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...common.errors import ConfigError, format_exception
from ...common.notebook import (
    format_summary,
    render_bar_chart,
    render_fact_table,
    render_fragment,
)
from .affine import Affine, PerAxis, PerGroup

__all__ = ["Plan", "Transform"]

PLAN_VERSION = 2


@dataclass(frozen=True)
class Transform:
    """Relation between the stored tensor of a plan and the user's tensor: stored = factor * user.

    `factor` is one number, or one per channel (axis 1).
    """

    factor: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """Scales of a quantized model.

    platform, mode, executor : the target that it was made for.
    tensors : quantization parameters of each integer tensor and quantized weight, by tensor name of
    the float graph.
    transforms : tensors that equalization rescaled.
    floats : node name -> why the node stays float.
    scaled : tensor name -> the user's tensor that a multiplication on the host converts to or from.
    synthetic : whether scales, or weights refined for them, come from random inputs.
    settings : the non-default settings of `quantize` that the scales depend on; None if unknown.
    Plans are equal whatever their settings are.
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

    def __repr__(self) -> str:
        """Return target, widths and float nodes as text of one screen."""
        return format_summary("Plan", self._list_facts())

    def _repr_html_(self) -> str:
        """Render target, widths, ranges and float nodes for a notebook."""
        octaves = Counter(_range_octave(qparams) for qparams in self.tensors.values())
        order = range(min(octaves, default=0), max(octaves, default=-1) + 1)
        counts = {f"2^{octave}": octaves[octave] for octave in order}
        chart = render_bar_chart("Tensors by largest absolute value, rounded up to 2^n", counts)
        return render_fragment("Plan", render_fact_table("", self._list_facts()), chart)

    def _list_facts(self) -> list[tuple[str, str]]:
        """List (label, text) of target, number of tensors by width, and float nodes."""
        executor = f", executor {self.executor}" if self.executor else ""
        facts = [("platform", f"{self.platform}, {self.mode}{executor}")]
        widths = Counter(qparams.bits for qparams in self.tensors.values())
        facts += [(f"{bits} bits", f"{widths[bits]} tensors") for bits in sorted(widths)]
        several = sum(not qparams.single for qparams in self.tensors.values())
        if several:
            facts.append(("several scales", f"{several} tensors"))
        if self.transforms:
            facts.append(("rescaled", f"{len(self.transforms)} tensors, by equalization"))
        if self.synthetic:
            facts.append(("warning", "scales come from random inputs"))
        return facts + [("in float", f"{node}: {why}") for node, why in self.floats.items()]

    def with_tensors(self, tensors: Mapping[str, Affine]) -> Plan:
        """Return a copy of the plan with other parameters `tensors` (name -> parameters)."""
        return replace(self, tensors=dict(tensors))

    def to_json(self) -> str:
        """Return the plan as JSON text with sorted names; floats are read back exactly.

        A tensor has `scale`, a number or a list, and `bits`. It has `axis` if the scale is a list,
        `group_size` if there is one scale per group along that axis (the list is then nested to the
        rank of the tensor), and `zero_point` if it is not 0. `scaled` is omitted if it is empty,
        `synthetic` if it is false, and `settings` if they are None.
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
        """The plan without its settings as bytes of JSON: all that results depend on.

        It is used as a key of journals. Settings are missing in plans of version 0.1.
        """
        return replace(self, settings=None).to_json().encode()

    @classmethod
    def from_json(cls, text: str, where: str = "the plan") -> Plan:
        """Read a plan from JSON `text` that `Plan.to_json` writes, or of version 1 of the format.

        Parameters
        ----------
        text
            The JSON text.
        where
            Source of the text for error messages.

        Raises
        ------
        ConfigError
            If the text is not JSON of these versions, lacks a field, or has a value out of range.
        """
        try:
            body: dict[str, Any] = json.loads(text)
            version = body["lingeronnx_plan"]
            if version not in (1, PLAN_VERSION):
                raise ConfigError(
                    f"{where} has plan version {version}; this lingeronnx reads versions 1 and "
                    f"{PLAN_VERSION}: upgrade lingeronnx, or quantize again with --save-plan"
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
                    name: Transform(tuple(map(float, transform["factor"])))
                    for name, transform in body.get("transforms", {}).items()
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


def _range_octave(qparams: Affine) -> int:
    """Return the smallest n so that no value of a tensor is larger than 2^n in magnitude."""
    return math.ceil(math.log2(max(map(abs, qparams.ends))))


def _check_version1(body: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError if a plan of version 1 has entries that were never written.

    These are a transform's offset other than 0, and `reads`, and are not supported. `body` is the
    parsed JSON; `where`, its source, begins messages.
    """
    for name, transform in body.get("transforms", {}).items():
        if transform.get("offset"):
            raise ConfigError(
                f"{where}: the transform of '{name}' has offset {transform['offset']}; it must be 0"
            )
    if body.get("reads"):
        raise ConfigError(
            f"{where}: 'reads' has {len(body['reads'])} entries; it must be empty, because a "
            "tensor has one scale for all consumers"
        )


def _read_settings(body: Mapping[str, Any], where: str) -> dict[str, object] | None:
    """Return ``body["settings"]``, or None if it is absent, as in plans of version 0.1.

    `body` is a parsed plan. Raises ConfigError if the entry is not an object; `where` is the file
    named in the message.
    """
    settings = body.get("settings")
    if settings is not None and not isinstance(settings, dict):
        raise ConfigError(
            f"{where}: 'settings' is {json.dumps(settings)[:40]}; it must map setting names to "
            'values, such as {"calibrator": "max"}: remove it, or write the plan again with '
            "--save-plan"
        )
    return settings


def _qparams_to_json(q: Affine) -> dict[str, object]:
    """Return the quantization parameters `q` as a dict for JSON, with at least `scale` and `bits`.

    `scale` is a number or a list. `axis`, `group_size` and `zero_point` are written only for
    several scales, groups and zero points other than 0.
    """
    entry: dict[str, object] = {"scale": q.scales.tolist(), "bits": q.bits}
    if q.axis is not None:
        entry["axis"] = q.axis
    if isinstance(q.granularity, PerGroup):
        entry["group_size"] = q.granularity.size
    if q.shifted:
        entry["zero_point"] = q.zero_points.tolist()
    return entry


def _qparams_from_json(entry: Mapping[str, Any], where: str, name: str) -> Affine:
    """Parse the JSON `entry` with the quantization parameters of tensor `name`.

    Raises ConfigError if it is invalid, with a message that begins with the file `where`. Required
    are positive scales and 2 to 32 bits; several scales need an axis, or groups an axis and a group
    size. A zero point other than 0 requires a single scale.
    """
    scale, bits = entry["scale"], int(entry["bits"])
    scales = np.asarray(scale, np.float64)
    if not (np.isfinite(scales).all() and (scales > 0).all() and scales.size and 2 <= bits <= 32):
        raise ConfigError(
            f"{where}: tensor '{name}' has scale {scale} and {bits} bits; scales must be positive "
            "numbers, and bits must be 2 to 32"
        )
    axis = int(entry["axis"]) if "axis" in entry else None
    if "group_size" in entry:
        _check_groups(scales, axis, int(entry["group_size"]), where, name)
    elif (scales.ndim == 1) != (axis is not None) or (scales.size == 1 and axis is not None):
        raise ConfigError(
            f"{where}: tensor '{name}' has {scales.size} scales along axis {axis}; a list of at "
            "least two scales must have an axis, and a single scale must not"
        )
    zero_point = entry.get("zero_point", 0)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if np.any(zero_point) and (axis is not None or not low <= int(zero_point) <= high):
        raise ConfigError(
            f"{where}: tensor '{name}' has zero point {zero_point} with {scales.size} scales and "
            f"{bits} bits; a zero point must be one of the integers {low} to {high}, with a single "
            "scale"
        )
    if axis is None:
        return Affine(scales, bits, zero_point=int(zero_point))
    if "group_size" in entry:
        return Affine(scales, bits, PerGroup(axis, int(entry["group_size"])))
    return Affine(scales, bits, PerAxis(axis))


def _check_groups(
    scales: np.ndarray, axis: int | None, group_size: int, where: str, name: str
) -> None:
    """Raise ConfigError unless `axis` (>= 0) is an axis of `scales` and `group_size` at least 1.

    `where` (file) and `name` (tensor) are for the message.
    """
    if axis is None or not 0 <= axis < scales.ndim or group_size < 1:
        raise ConfigError(
            f"{where}: tensor '{name}' has groups of {group_size} along axis {axis}, and scales of "
            f"{scales.ndim} axes; a group must have at least one element, along one of these axes"
        )
