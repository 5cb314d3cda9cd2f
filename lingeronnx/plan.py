"""The quantization plan: which tensor has which scale, as a frozen value with a versioned JSON form.

A scale is integer counts per real unit, ``q = round(x * scale)`` (the inverse of ONNX's ``y_scale``). Bias scales are
derived (scale of the input times scale of the weight) and never stored. Knows no operator and no graph.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import ConfigError

__all__ = ["Plan", "QParams", "Transform"]

VERSION = 1


@dataclass(frozen=True, order=True)
class QParams:
    """How a tensor is held in integers: ``q = clamp(round(x * scale))`` to signed `bits`, zero point 0."""

    scale: float
    bits: int = 8

    @property
    def exponent(self) -> int | None:
        """log2 of the scale where the scale is a power of two, else None."""
        mantissa, exponent = math.frexp(self.scale)
        return exponent - 1 if mantissa == 0.5 else None

    @property
    def low(self) -> int:
        """The most negative integer."""
        return -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        """The largest integer."""
        return (1 << (self.bits - 1)) - 1


@dataclass(frozen=True)
class Transform:
    """What a tensor of the plan means: stored = `factor` * (the user's tensor), per channel (axis 1) or for all."""

    factor: tuple[float, ...]
    offset: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Scales of a quantized model.

    tensors     scale and width of every integer tensor and quantized weight, by the float graph's tensor name
    reads       (node, input index) -> QParams where a consumer reads a tensor at another scale or width
    transforms  tensor name -> Transform, where equalization changed what the stored tensor means
    floats      node name -> why it stays in float
    """

    platform: str
    mode: str
    executor: str = ""
    tensors: Mapping[str, QParams] = field(default_factory=dict)
    reads: Mapping[tuple[str, int], QParams] = field(default_factory=dict)
    transforms: Mapping[str, Transform] = field(default_factory=dict)
    floats: Mapping[str, str] = field(default_factory=dict)

    def with_tensors(self, tensors: Mapping[str, QParams]) -> Plan:
        """Return a copy with other `tensors`."""
        return replace(self, tensors=dict(tensors))

    def to_json(self) -> str:
        """Return the plan as JSON text with sorted keys; floats are written so that they read back exactly."""
        body = {
            "lingeronnx_plan": VERSION,
            "platform": self.platform,
            "executor": self.executor,
            "mode": self.mode,
            "tensors": {name: {"scale": p.scale, "bits": p.bits} for name, p in sorted(self.tensors.items())},
            "reads": [
                {"node": node, "input": index, "scale": p.scale, "bits": p.bits}
                for (node, index), p in sorted(self.reads.items())
            ],
            "transforms": {
                name: {"factor": list(t.factor), "offset": t.offset} for name, t in sorted(self.transforms.items())
            },
            "floats": dict(sorted(self.floats.items())),
        }
        return json.dumps(body, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "the plan") -> Plan:
        """Read what `to_json` wrote; ConfigError (naming `where`) for anything else."""
        try:
            body: dict[str, Any] = json.loads(text)
            version = body["lingeronnx_plan"]
            if version != VERSION:
                raise ConfigError(f"{where} has plan version {version}; this lingeronnx reads version {VERSION}")
            return cls(
                platform=str(body["platform"]),
                executor=str(body.get("executor", "")),
                mode=str(body["mode"]),
                tensors={name: _qparams(p, where, name) for name, p in body["tensors"].items()},
                reads={(r["node"], int(r["input"])): _qparams(r, where, r["node"]) for r in body.get("reads", [])},
                transforms={
                    name: Transform(tuple(float(f) for f in t["factor"]), float(t.get("offset", 0.0)))
                    for name, t in body.get("transforms", {}).items()
                },
                floats={str(k): str(v) for k, v in body.get("floats", {}).items()},
            )
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{where} is not a lingeronnx plan ({type(error).__name__}: {error})") from error


def _qparams(entry: Mapping[str, Any], where: str, name: str) -> QParams:
    scale, bits = float(entry["scale"]), int(entry["bits"])
    if not (math.isfinite(scale) and scale > 0 and 2 <= bits <= 32):
        raise ConfigError(
            f"{where}: tensor '{name}' has scale {scale} and {bits} bits; "
            "a scale is a positive number, bits are 2 to 32"
        )
    return QParams(scale, bits)
