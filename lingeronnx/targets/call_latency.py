"""Latency of one call of a model, in cycles and milliseconds, and its comparison with a budget."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..common.errors import ConfigError
from ._target import Target
from .latency import Latency, UnmodeledWork, concatenate_latencies
from .verdict import Verdict, VerdictFinding

__all__ = ["DEFAULT_LATENCY_OPTIONS", "CallLatency", "LatencyOptions"]

_MAX_REPORTED_LAYERS = 3  # layers that a finding names
_MIN_REPORTED_FRACTION = 0.01  # of the total cycles; faster layers are not named


class LatencyOptions(NamedTuple):
    """Options for latency estimates.

    clock_mhz : clock of the chip in MHz.
    budget_ms : milliseconds that a call may take.
    timing_file : a file written by `profile-board`.
    """

    clock_mhz: float | None = None
    budget_ms: float | None = None
    timing_file: str | os.PathLike[str] | None = None

    def apply_to(self, target: Target) -> Target:
        """Check the options and return `target` with the kernel costs of the timing file.

        Raises
        ------
        ConfigError
            If clock or budget is not a positive number, the file is not of this chip, or a budget
            is given although there is no timing model or clock to compare it with.
        """
        for option, value in (("--clock", self.clock_mhz), ("--budget-ms", self.budget_ms)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{option} must be a number above 0; got {value:g}")
        if self.timing_file is not None:
            from .timing_calibration import read_timing_calibration

            target = target.with_timing_calibration(read_timing_calibration(self.timing_file))
        if self.budget_ms is not None:
            self._check_budget(target)
        return target

    def _check_budget(self, target: Target) -> None:
        """Raise ConfigError if a budget cannot be compared with the latency on `target`.

        That is so if the target has no timing, or neither it nor the user gives a clock.
        """
        reason = target.vendor.explain_missing_timing(target)
        if not reason and self.clock_mhz is None and target.vendor.clock_mhz is None:
            reason = "no clock is published; pass the clock of the chip with --clock MHZ"
        if reason:
            raise ConfigError(f"--budget-ms {self.budget_ms:g}: {reason}")

    def estimate_call(
        self, target: Target, verdicts: Iterable[Verdict], has_host_parts: bool = False
    ) -> CallLatency:
        """Estimate the latency of one call of a model, the sum of its parts on the chip.

        The result has no latency (None) without `verdicts` or if one of them has none; its
        `unknown_reason` says why the chip has no timing, and is empty if it has one.

        Parameters
        ----------
        target
            As returned by `apply_to`.
        verdicts
            Verdicts on the model's parts for the chip, in execution order.
        has_host_parts
            Whether the model also has parts on the host.
        """
        latencies = [verdict.latency for verdict in verdicts]
        known_latencies = [latency for latency in latencies if latency is not None]
        reason = target.vendor.explain_missing_timing(target) if target.has_packer else ""
        call_latency = CallLatency(
            unknown_reason=reason,
            clock_mhz=self.clock_mhz or target.vendor.clock_mhz,
            budget_ms=self.budget_ms,
            has_host_parts=has_host_parts,
        )
        if not known_latencies or len(known_latencies) < len(latencies):
            return call_latency
        return replace(call_latency, latency=concatenate_latencies(known_latencies))


#: No clock, budget or timing file: latencies are reported in cycles.
DEFAULT_LATENCY_OPTIONS = LatencyOptions()


@dataclass(frozen=True)
class CallLatency:
    """Latency of one call of a model, whose parts on the chip run one after the other.

    latency : None if it is not known, for the reason `unknown_reason`, or if the chip runs nothing.
    clock_mhz : clock in MHz.
    budget_ms : milliseconds that the call may take.
    has_host_parts : whether the model has parts on the host, whose time is not known.
    """

    latency: Latency | None = None
    unknown_reason: str = ""
    clock_mhz: float | None = None
    budget_ms: float | None = None
    has_host_parts: bool = False

    @property
    def budget_finding(self) -> VerdictFinding | None:
        """A finding that the call exceeds its budget in ms, with its slowest layers; else None.

        None also without a latency, a budget or a clock. At most three layers are named, after the
        first only those with 1 % of the cycles.
        """
        latency = self.latency
        if latency is None or self.budget_ms is None or self.clock_mhz is None:
            return None
        if not latency.layers or self._to_milliseconds(latency.total) <= self.budget_ms:
            return None
        by_cycles = sorted(latency.layers, key=lambda layer: -layer.total_cycles)
        slowest, *next_slowest = by_cycles[:_MAX_REPORTED_LAYERS]
        min_cycles = _MIN_REPORTED_FRACTION * latency.total
        reported = [slowest, *(layer for layer in next_slowest if layer.total_cycles >= min_cycles)]
        fractions = ", ".join(
            f"{layer.operator} {layer.node or layer.name} "
            f"{100 * layer.total_cycles / latency.total:.0f} %"
            for layer in reported
        )
        return VerdictFinding(
            "time",
            slowest.node or slowest.name,
            f"latency must not exceed {self.budget_ms:g} ms at {self.clock_mhz:g} MHz",
            f"{self._format_range(self._to_milliseconds)} ms, of which {fractions}",
            "optimize these layers or raise --budget-ms; `lingeronnx trace` shows the breakdown",
        )

    @property
    def findings(self) -> tuple[VerdictFinding, ...]:
        """A tuple with the finding that the call exceeds its budget; () if it does not."""
        finding = self.budget_finding
        return () if finding is None else (finding,)

    def lines(self) -> list[str]:
        """Return the latency as sentences for a report; [] if the chip runs no part of the model.

        If the latency is unknown, the reason is the only line. Work without a cost model has a
        line; a worst case beyond the budget is the last line if the estimate is within it.
        """
        latency = self.latency
        if latency is None:
            return [self.unknown_reason] if self.unknown_reason else []
        text = f"{self._format_range(round, ',')} cycles per call"
        if self.clock_mhz is not None:
            text += f", {self._format_range(self._to_milliseconds)} ms at {self.clock_mhz:g} MHz"
        text += f": {self.format_breakdown()}"
        if self.has_host_parts:
            text += "; host time not included"
        lines = [text]
        if latency.unpriced:
            lines.append(f"no cost model for {_format_unmodeled_work(latency.unpriced)}")
        if self.budget_ms is None or self.clock_mhz is None or self.budget_finding is not None:
            return lines
        worst_case_ms = self._to_milliseconds(latency.high)
        if worst_case_ms > self.budget_ms:
            lines.append(
                f"may exceed the {self.budget_ms:g} ms budget: worst case {worst_case_ms:.4g} ms"
            )
        return lines

    def format_breakdown(self) -> str:
        """Return the percentage of the cycles per kind of work, such as "80 % computing".

        Kinds without cycles are left out; "no work" if there are none. The latency must be known
        (asserted).
        """
        latency = self.latency
        assert latency is not None
        cycles_by_kind = {
            "computing": latency.luna - latency.overhead,
            f"start overhead of {latency.calls:,} kernel calls": latency.overhead,
            "waits for constants": latency.waits,
            "copies from and to psram": latency.moved,
        }
        total = latency.total or 1.0
        phrases = [
            f"{100 * cycles / total:.0f} % {kind}"
            for kind, cycles in cycles_by_kind.items()
            if cycles > 0
        ]
        return ", ".join(phrases) or "no work"

    def to_dict(self) -> dict[str, Any]:
        """Return the latency as JSON values.

        Cycles are None if unknown; milliseconds also without a clock; `too_slow` is None within the
        budget.
        """
        latency, finding = self.latency, self.budget_finding
        milliseconds = None
        if latency is not None and self.clock_mhz is not None:
            milliseconds = {
                name: self._to_milliseconds(getattr(latency, name))
                for name in ("total", "low", "high")
            }
        return {
            "unknown": self.unknown_reason if latency is None else "",
            "clock_mhz": self.clock_mhz,
            "budget_ms": self.budget_ms,
            "too_slow": None if finding is None else vars(finding),
            "milliseconds": milliseconds,
            "cycles": None if latency is None else latency.to_dict(),
        }

    def _to_milliseconds(self, cycles: float) -> float:
        """Convert cycles to milliseconds at the clock of the call, which must not be None."""
        assert self.clock_mhz is not None
        return cycles / self.clock_mhz / 1e3

    def _format_range(self, convert: Any, number_format: str = ".4g") -> str:  # noqa: ANN401 - a function of cycles
        """Format the total and its bounds, each converted from cycles by `convert`.

        For example "12 (10 to 15)", or "12 (at most 15)" if the lower bound is the total. The
        latency must be known.
        """
        assert self.latency is not None
        total, low, high = (
            format(convert(getattr(self.latency, name)), number_format)
            for name in ("total", "low", "high")
        )
        bounds = f"at most {high}" if low == total else f"{low} to {high}"
        return f"{total} ({bounds})"


def _format_unmodeled_work(unpriced: Sequence[UnmodeledWork]) -> str:
    """Format work without a known cost, grouped by its description, as one text.

    A group has its number of layers, bytes, and the sum of the bounds if all are known.
    """
    works_by_description: dict[str, list[UnmodeledWork]] = {}
    for work in unpriced:
        works_by_description.setdefault(work.what, []).append(work)
    phrases = []
    for description, works in works_by_description.items():
        size = sum(work.bytes for work in works)
        bounds = [work.bound for work in works if work.bound is not None]
        bound = f", at most {sum(bounds):,.0f} cycles" if len(bounds) == len(works) else ""
        plural = "s" * (len(works) > 1)
        phrases.append(f"{description} ({len(works)} layer{plural}, {size:,} bytes{bound})")
    return ", ".join(phrases)
