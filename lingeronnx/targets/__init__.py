"""The targets: the interface that a chip implements, and the known chips.

========================  ==========================================================================
`_target`                 the interface: `Target`, a frozen description, and `Vendor`, its code
`verdict`                 verdict of a packer on a graph, with its findings and cost
`latency`                 latency of a graph, per layer and in total
`call_latency`            latency of one call of a model, compared with a budget
`timing_calibration`      kernel costs fitted to the log of a board
`arithmetic`              how an operator computes
`limits`                  limits of an operator on a target
`generic`                 the idealised target
`luna/` ...               one folder per vendor
========================  ==========================================================================

Code outside a vendor's folder must not compare a platform's name or import from that folder; it
asks the target. A vendor is a line in `VENDORS`. A platform that belongs to no vendor can be passed
as a `Target` wherever a platform name is accepted.
"""

from __future__ import annotations

from importlib import import_module

from ..errors import ConfigError, suggest_nearest
from ._target import (
    AppliedRewrite,
    Fault,
    LimitCheck,
    OperatorSupport,
    Target,
    Vendor,
    format_limit_rule,
    make_support_rows,
)
from .call_latency import DEFAULT_LATENCY_OPTIONS, CallLatency, LatencyOptions
from .generic import GENERIC
from .verdict import (
    GraphCost,
    LayerCost,
    PackerArguments,
    Verdict,
    VerdictFinding,
)

__all__ = [
    "DEFAULT",
    "GENERIC",
    "PLATFORMS",
    "DEFAULT_LATENCY_OPTIONS",
    "PackerArguments",
    "CallLatency",
    "Fault",
    "AppliedRewrite",
    "GraphCost",
    "LayerCost",
    "LimitCheck",
    "OperatorSupport",
    "Target",
    "LatencyOptions",
    "Vendor",
    "Verdict",
    "VerdictFinding",
    "get_target",
    "make_support_rows",
    "format_limit_rule",
]

#: The vendors' packages, each with its targets as PLATFORMS. The first target of the first package
#: is the default.
VENDORS = ("lingeronnx.targets.luna",)

_CHIPS: tuple[Target, ...] = tuple(
    target for name in VENDORS for target in import_module(name).PLATFORMS
)
DEFAULT = _CHIPS[0]
PLATFORMS = (GENERIC, *_CHIPS)


def get_target(name_or_target: str | Target) -> Target:
    """Return the target of this name, or `name_or_target` itself if it is a `Target`.

    Names are compared exactly.

    Raises
    ------
    ConfigError
        If there is no target of this name; the message suggests the nearest one.
    """
    if isinstance(name_or_target, Target):
        return name_or_target
    for target in PLATFORMS:
        if target.name == name_or_target:
            return target
    names = [target.name for target in PLATFORMS]
    raise ConfigError(
        f"unknown platform '{name_or_target}'{suggest_nearest(name_or_target, names)}; known: "
        f"{', '.join(names)}"
    )
