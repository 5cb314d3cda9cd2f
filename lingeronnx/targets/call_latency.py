"""How long a call of a model takes, as users ask for it and are told.

Cycles, and with a clock milliseconds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigError
from ._target import Target
from .latency import Latency, UnmodeledWork, concatenate_latencies
from .verdict import Verdict, VerdictFinding

__all__ = ["DEFAULT_LATENCY_OPTIONS", "CallLatency", "LatencyOptions"]

_MAX_REPORTED_LAYERS = 3  # layers that a finding names
_MIN_REPORTED_SHARE = 0.01  # of the cycles, from which on a second one is worth naming


@dataclass(frozen=True)
class LatencyOptions:
    """What is asked of time.

    clock_mhz : of the chip, MHz. budget : milliseconds that a call may take. timing : a file of
    `profile-board`.
    """

    clock_mhz: float | None = None
    budget_ms: float | None = None
    timing_file: str | os.PathLike[str] | None = None

    def apply_to(self, target: Target) -> Target:
        """Return `target` with the prices of the timing file.

        ConfigError for a number that is none, for a file that is not of this chip, and for a budget
        that nothing can be compared with.
        """
        for option, value in (("--clock", self.clock_mhz), ("--budget-ms", self.budget_ms)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{option} {value:g}: it is a number above 0")
        if self.timing_file is not None:
            from .timing_calibration import read_timing_calibration

            target = target.with_timing_calibration(read_timing_calibration(self.timing_file))
        if self.budget_ms is not None and target.vendor.explain_missing_timing(target):
            raise ConfigError(
                f"--budget-ms {self.budget_ms:g}: {target.vendor.explain_missing_timing(target)}"
            )
        if (
            self.budget_ms is not None
            and self.clock_mhz is None
            and target.vendor.clock_mhz is None
        ):
            raise ConfigError(
                f"--budget-ms {self.budget_ms:g}: no clock is published; give the chip's: --clock "
                "MHZ"
            )
        return target

    def estimate_call(
        self, target: Target, verdicts: Iterable[Verdict], has_host_parts: bool = False
    ) -> CallLatency:
        """Return how long a call takes, whose parts for the chip have these verdicts.

        Host : it has parts there too.
        target : with its prices, as `target` gives it.
        """
        times = [verdict.latency for verdict in verdicts]
        known = [time for time in times if time is not None]
        unknown = target.vendor.explain_missing_timing(target) if target.has_packer else ""
        told = CallLatency(
            unknown_reason=unknown,
            clock_mhz=self.clock_mhz or target.vendor.clock_mhz,
            budget_ms=self.budget_ms,
            has_host_parts=has_host_parts,
        )
        return (
            replace(told, latency=concatenate_latencies(known))
            if known and len(known) == len(times)
            else told
        )


#: Nothing is asked: cycles are told.
DEFAULT_LATENCY_OPTIONS = LatencyOptions()


@dataclass(frozen=True)
class CallLatency:
    """One call of a model: the chip's parts one after the other.

    latency : None where it is not known, and `unknown_reason` says why, or the chip does not run
    it. clock : MHz. budget : milliseconds that it may take. host : whether it has parts on the
    host, whose time nobody knows.
    """

    latency: Latency | None = None
    unknown_reason: str = ""
    clock_mhz: float | None = None
    budget_ms: float | None = None
    has_host_parts: bool = False

    @property
    def budget_finding(self) -> VerdictFinding | None:
        """The finding that it takes longer than it may, with the layers to blame.

        None where it does not.
        """
        if (
            self.latency is None
            or self.budget_ms is None
            or self.clock_mhz is None
            or not self.latency.layers
        ):
            return None
        if self._milliseconds(self.latency.total) <= self.budget_ms:
            return None
        worst = sorted(self.latency.layers, key=lambda layer: -layer.total_cycles)[
            :_MAX_REPORTED_LAYERS
        ]
        total = self.latency.total
        share = ", ".join(
            f"{w.operator} {w.node or w.name} {100 * w.total_cycles / total:.0f} %"
            for w in worst
            if w is worst[0] or w.total_cycles >= _MIN_REPORTED_SHARE * total
        )
        return VerdictFinding(
            "time",
            worst[0].node or worst[0].name,
            f"a call takes at most {self.budget_ms:g} ms at {self.clock_mhz:g} MHz",
            f"{self._format_range(self._milliseconds)} ms, of which {share}",
            "change these layers, or give more time; lingeronnx trace shows where it goes",
        )

    @property
    def findings(self) -> tuple[VerdictFinding, ...]:
        """That it is too slow, where it is."""
        return () if self.budget_finding is None else (self.budget_finding,)

    def lines(self) -> list[str]:
        """Return what is known, as sentences; nothing of what the chip does not run."""
        if self.latency is None:
            return [self.unknown_reason] if self.unknown_reason else []
        time = self.latency
        text = f"{self._format_range(round, ',')} cycles a call"
        if self.clock_mhz is not None:
            text += f", {self._format_range(self._milliseconds)} ms at {self.clock_mhz:g} MHz"
        lines = [
            (
                f"{text}: "
                f"{self.format_breakdown()}{'; what the host computes is not in it' if self.has_host_parts else ''}"
            )
        ]
        if time.unpriced:
            lines.append(f"no price is known of {_format_unmodeled_work(time.unpriced)}")
        over = (
            self.budget_ms is not None
            and self.clock_mhz is not None
            and self.budget_finding is None
        )
        if over and self._milliseconds(time.high) > (self.budget_ms or 0):
            lines.append(
                f"it may take longer than {self.budget_ms:g} ms: "
                f"{self._milliseconds(time.high):.4g} ms at most"
            )
        return lines

    def format_breakdown(self) -> str:
        """Return what the cycles are spent on, in words."""
        time = self.latency
        assert time is not None
        parts = [
            (time.luna - time.overhead, "computing"),
            (time.overhead, f"starts of {time.calls:,} calls"),
            (time.waits, "waits for constants"),
            (time.moved, "copies from and to psram"),
        ]
        total = time.total or 1.0
        return (
            ", ".join(
                f"{100 * cycles / total:.0f} % {what}" for cycles, what in parts if cycles > 0
            )
            or "no work"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        time = self.latency
        ends = ("total", "low", "high")
        known = time is not None and self.clock_mhz is not None
        return {
            "unknown": self.unknown_reason if time is None else "",
            "clock_mhz": self.clock_mhz,
            "budget_ms": self.budget_ms,
            "too_slow": None if self.budget_finding is None else vars(self.budget_finding),
            "milliseconds": {end: self._milliseconds(getattr(time, end)) for end in ends}
            if known
            else None,
            "cycles": None if time is None else time.to_dict(),
        }

    def _milliseconds(self, cycles: float) -> float:
        assert self.clock_mhz is not None
        return cycles / self.clock_mhz / 1e3

    def _format_range(self, convert: Any, number_format: str = ".4g") -> str:  # noqa: ANN401 - a function of cycles
        """Return the total and the ends of its range."""
        assert self.latency is not None
        total, low, high = (
            format(convert(getattr(self.latency, end)), number_format)
            for end in ("total", "low", "high")
        )
        return f"{total} ({f'{low} to ' if low != total else 'at most '}{high})"


def _format_unmodeled_work(unpriced: Sequence[UnmodeledWork]) -> str:
    """Return the work without a price, what is alike once."""
    kinds: dict[str, list[UnmodeledWork]] = {}
    for work in unpriced:
        kinds.setdefault(work.what, []).append(work)
    told = []
    for what, alike in kinds.items():
        size, bounds = sum(work.bytes for work in alike), [work.bound for work in alike]
        most = (
            f", at most {sum(b for b in bounds if b is not None):,.0f} cycles"
            if None not in bounds
            else ""
        )
        told.append(f"{what} ({len(alike)} layer{'s' * (len(alike) > 1)}, {size:,} bytes{most})")
    return ", ".join(told)
