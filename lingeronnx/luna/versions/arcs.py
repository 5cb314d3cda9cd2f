"""Changes of the versions of packer and executor on arcs, each against the version before it."""

from __future__ import annotations

from .delta import READ_ONLY, VersionDelta

__all__ = ["DELTAS"]

DELTAS = (
    VersionDelta(version="3.0.5", unmeasured=READ_ONLY),
    VersionDelta(version="3.0.6", unmeasured=READ_ONLY),
    VersionDelta(version="3.0.7", unmeasured=READ_ONLY),
    VersionDelta(version="3.0.8"),
    VersionDelta(version="3.0.9"),
    VersionDelta(version="3.0.10"),
    VersionDelta(version="2026-08-20", unmeasured=READ_ONLY),
)
