"""The targets: what may be asked of a chip, and the chips that there are.

===============  ===================================================================================================
`_target`        the contract: `Target`, a row of data, and `Vendor`, what a target answers by code
`verdict`        what a target with a packer says of a graph, as values
`latency`        how long a graph takes, as values; `call_time` as users are told; `timing_row` as a
board tells `arithmetic`     how an operator computes, as values
`limits`         what of an operator a platform takes
`generic`        the idealised target
`luna/` ...      a folder for each vendor
===============  ===================================================================================================

Nothing outside a vendor's folder may compare a platform's name or import from there; code asks the
row. A vendor is a line in `VENDORS`; a platform that is in none of them can be given as a value
wherever a platform's name is taken.
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
from .verdict import GraphCost, LayerCost, PackerArguments, Verdict, VerdictFinding

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

#: The vendors' packages, each with its rows as PLATFORMS; the first row of the first is what is meant without a name.
VENDORS = ("lingeronnx.targets.luna",)

_CHIPS: tuple[Target, ...] = tuple(
    target for name in VENDORS for target in import_module(name).PLATFORMS
)
DEFAULT = _CHIPS[0]
PLATFORMS = (GENERIC, *_CHIPS)


def get_target(name_or_target: str | Target) -> Target:
    """Return the row called `name_or_target`, or the row that is given.

    ConfigError naming the nearest when there is none.
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
