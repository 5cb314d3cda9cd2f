"""The quantization plan: which tensor has which scale, as a frozen value with a versioned JSON form.

A scale is integer counts per real unit, ``q = round(x * scale)`` (the inverse of ONNX's ``y_scale``). Bias scales are
derived (scale of the input times scale of the weight) and never stored. Knows no operator and no graph.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ConfigError
from .source import along

__all__ = ["Plan", "QParams", "Transform"]

VERSION = 2


@dataclass(frozen=True)
class QParams:
    """How a tensor is held in integers: ``q = clamp(round(x * scale) + zero_point)`` to signed `bits`.

    scale : counts per unit, a float; or a tuple of at least two floats, one for each element along `axis`.
    axis : of the tensor, where the scale is a tuple, else None. zero_point : the integer that stands for 0.
    """

    scale: Any
    bits: int = 8
    axis: int | None = None
    zero_point: int = 0

    def __post_init__(self) -> None:
        if self.zero_point and (self.axis is not None or not self.low <= self.zero_point <= self.high):
            raise ValueError(
                f"zero point {self.zero_point} of {self.bits} bits: it is one of their integers, beside one scale"
            )
        if isinstance(self.scale, tuple) != (self.axis is not None) or (self.axis is not None and len(self.scale) < 2):
            raise ValueError(
                f"scale {self.scale} along axis {self.axis}: a tuple of scales has an axis, one scale none"
            )

    @property
    def scales(self) -> tuple[float, ...]:
        """The scales, also where there is one."""
        return self.scale if isinstance(self.scale, tuple) else (self.scale,)

    def mapped(self, change: Callable[[float], float]) -> QParams:
        """Return the same with `change` of every scale."""
        changed = tuple(change(scale) for scale in self.scales)
        return replace(self, scale=changed if self.axis is not None else changed[0])

    def factor(self, rank: int) -> Any:
        """Return the scale so that it multiplies an array of `rank` axes."""
        return along(self.scale, self.axis, rank)

    @property
    def exponent(self) -> int | None:
        """log2 of the scale where there is one scale and it is a power of two, else None."""
        return None if self.axis is not None else _exponent(self.scale)

    @property
    def text(self) -> str:
        """The scale where there is one, as people read it: ``2^7`` or ``93.5``."""
        scale = f"2^{self.exponent}" if self.exponent is not None else f"{self.scale:.6g}"
        return f"{scale} from {self.zero_point}" if self.zero_point else scale

    @property
    def power_of_two(self) -> bool:
        """Whether every scale is a power of two."""
        return all(_exponent(scale) is not None for scale in self.scales)

    @property
    def low(self) -> int:
        """Return the most negative integer of this width."""
        return -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        """Return the largest integer of this width."""
        return (1 << (self.bits - 1)) - 1


def _exponent(scale: float) -> int | None:
    mantissa, exponent = math.frexp(scale)
    return exponent - 1 if mantissa == 0.5 else None


@dataclass(frozen=True)
class Transform:
    """What a tensor of the plan means: stored = `factor` * (the user's tensor), per channel (axis 1) or for all."""

    factor: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """Scales of a quantized model.

    tensors     scales and width of every integer tensor and quantized weight, by the float graph's tensor name
    transforms  tensor name -> Transform, where equalization changed what the stored tensor means
    floats      node name -> why it stays in float
    scaled      tensor name -> the tensor of the user's that a product of the host makes it from, or from it
    synthetic   whether scales, or weights refined for them, come from random inputs
    """

    platform: str
    mode: str
    executor: str = ""
    tensors: Mapping[str, QParams] = field(default_factory=dict)
    transforms: Mapping[str, Transform] = field(default_factory=dict)
    floats: Mapping[str, str] = field(default_factory=dict)
    scaled: Mapping[str, str] = field(default_factory=dict)
    synthetic: bool = False

    def with_tensors(self, tensors: Mapping[str, QParams]) -> Plan:
        """Return a copy with other `tensors`."""
        return replace(self, tensors=dict(tensors))

    def to_json(self) -> str:
        """Return the plan as JSON text with sorted keys; floats are written so that they read back exactly.

        A tensor has `scale`, a number or a list, and `bits`; `axis` where the scale is a list, `zero_point` where it
        is not 0. `scaled` is left out where it is empty, `synthetic` where it is false.
        """
        body = {
            "lingeronnx_plan": VERSION,
            "platform": self.platform,
            "executor": self.executor,
            "mode": self.mode,
            "tensors": {name: _entry(p) for name, p in sorted(self.tensors.items())},
            "transforms": {name: {"factor": list(t.factor)} for name, t in sorted(self.transforms.items())},
            "floats": dict(sorted(self.floats.items())),
            **({"scaled": dict(sorted(self.scaled.items()))} if self.scaled else {}),
            **({"synthetic": True} if self.synthetic else {}),
        }
        return json.dumps(body, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "the plan") -> Plan:
        """Read what `to_json` wrote, also in version 1; ConfigError (naming `where`) for anything else."""
        try:
            body: dict[str, Any] = json.loads(text)
            version = body["lingeronnx_plan"]
            if version not in (1, VERSION):
                raise ConfigError(f"{where} has plan version {version}; this lingeronnx reads versions 1 and {VERSION}")
            if version == 1:
                _check_first(body, where)
            return cls(
                platform=str(body["platform"]),
                executor=str(body.get("executor", "")),
                mode=str(body["mode"]),
                tensors={name: _qparams(p, where, name) for name, p in body["tensors"].items()},
                transforms={
                    name: Transform(tuple(float(f) for f in t["factor"]))
                    for name, t in body.get("transforms", {}).items()
                },
                floats={str(k): str(v) for k, v in body.get("floats", {}).items()},
                scaled={str(k): str(v) for k, v in body.get("scaled", {}).items()},
                synthetic=bool(body.get("synthetic", False)),
            )
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{where} is not a lingeronnx plan ({type(error).__name__}: {error})") from error


def _check_first(body: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for what version 1 could say, no lingeronnx ever wrote, and nothing computes."""
    for name, transform in body.get("transforms", {}).items():
        if transform.get("offset"):
            raise ConfigError(f"{where}: the transform of '{name}' has offset {transform['offset']}; offsets are 0")
    if body.get("reads"):
        raise ConfigError(
            f"{where}: 'reads' holds {len(body['reads'])} entries; a tensor has one scale for all readers"
        )


def _entry(q: QParams) -> dict[str, Any]:
    found: dict[str, Any] = {"scale": list(q.scale) if q.axis is not None else q.scale, "bits": q.bits}
    if q.axis is not None:
        found["axis"] = q.axis
    if q.zero_point:
        found["zero_point"] = q.zero_point
    return found


def _qparams(entry: Mapping[str, Any], where: str, name: str) -> QParams:
    held, bits = entry["scale"], int(entry["bits"])
    scales = tuple(map(float, held)) if isinstance(held, list) else (float(held),)
    if not (all(math.isfinite(scale) and scale > 0 for scale in scales) and scales and 2 <= bits <= 32):
        raise ConfigError(
            f"{where}: tensor '{name}' has scale {held} and {bits} bits; a scale is a positive number, bits are 2 to 32"
        )
    axis = int(entry["axis"]) if "axis" in entry else None
    if isinstance(held, list) != (axis is not None) or len(scales) == 1 and axis is not None:
        raise ConfigError(
            f"{where}: tensor '{name}' has {len(scales)} scales along axis {axis}; "
            "a list of at least two scales has an axis, one scale has none"
        )
    zero = int(entry.get("zero_point", 0))
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if zero and (axis is not None or not low <= zero <= high):
        raise ConfigError(
            f"{where}: tensor '{name}' has zero point {zero} with {len(scales)} scales and {bits} bits; a zero point "
            f"is one of the integers {low} to {high}, beside one scale"
        )
    return QParams(scales if axis is not None else scales[0], bits, axis, zero)
