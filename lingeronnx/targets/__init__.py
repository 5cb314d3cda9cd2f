"""The targets: the interface that a chip implements, and the known chips.

========================  ==========================================================================
`_target`                 the interface: `Target`, a frozen description, and `Vendor`, its code
`version_changes`         differences between the versions of an executor
`verdict`                 verdict of a packer on a graph, with its findings and cost
`latency`                 latency of a graph, per layer and in total
`call_latency`            latency of one call of a model, compared with a budget
`timing_calibration`      kernel costs fitted to the log of a board
`arithmetic`              how an operator computes
`limits`                  limits of an operator on a target
`board_support`           names of a chip's SDK that firmware needs
`generic`                 the idealised target
`registry`                the known targets, loaded on first use: vendors import this package
========================  ==========================================================================

Code outside a vendor's package must not compare a platform's name or import from that package; it
asks the target. A built-in vendor is a line in `registry.BUILT_IN`, one of a third party an entry
point in the group `lingeronnx.targets`. A platform that belongs to no vendor can be passed as a
`Target` wherever a platform name is accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import make_name_loader
from ._target import (
    AppliedRewrite,
    Fault,
    LimitCheck,
    OperatorSupport,
    Target,
    Vendor,
    describe_unmeasured,
    format_limit_rule,
    make_support_rows,
    require_measured,
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

if TYPE_CHECKING:
    from .registry import DEFAULT as DEFAULT
    from .registry import PLATFORMS as PLATFORMS
    from .registry import get_installed_targets as get_installed_targets
    from .registry import get_target as get_target
    from .registry import get_versions as get_versions

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
    "get_installed_targets",
    "get_target",
    "get_versions",
    "describe_unmeasured",
    "make_support_rows",
    "require_measured",
    "format_limit_rule",
]

_REGISTRY_NAMES = ("DEFAULT", "PLATFORMS", "get_installed_targets", "get_target", "get_versions")

if not TYPE_CHECKING:  # so that a type checker reports a misspelled name
    __getattr__ = make_name_loader(__name__, dict.fromkeys(_REGISTRY_NAMES, ".registry"))
