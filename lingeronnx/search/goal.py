"""Requirements for a quantized model, and how far a result is from meeting them.

An accuracy target selects the cheapest result that reaches it. Limits of flash size and latency
alone select the most accurate result within them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..common.deprecation import keep_old_members
from ..common.errors import ConfigError, DataError
from ..ir import ir
from ..quantization import QuantizedModel
from ..runtime.data import Progress
from ..runtime.evaluation import evaluate
from ..runtime.metrics import resolve_metric
from ..runtime.session import Session
from ..targets import Target
from .cost import AttemptCost

__all__ = ["Goal", "Measurement"]

#: If max_drop allows fewer changed samples than this, chance decides which attempt meets the goal.
_MIN_ALLOWED_SAMPLES = 10


@dataclass(frozen=True)
class Measurement:
    """The measured accuracy of a result and its distance from the goal.

    Parameters
    ----------
    value
        Worst output SQNR in dB, or the metric in its own unit.
    shortfall
        How much is missing to the goal, in the same unit; 0 or negative if the goal is met.
    float_value
        The metric of the float model; None for dB.
    """

    value: float
    shortfall: float
    float_value: float | None = None


@keep_old_members(
    "0.3",
    nothing="is_empty",
    fills="is_limits_only",
    spent="limit_usage",
    check_time="validate_time_limit",
    doubt="format_sample_size_warning",
    measured="create_measurement",
)
@dataclass(frozen=True)
class Goal:
    """An accuracy target (`max_drop` or `min_sqnr`), cost limits, or both.

    Parameters
    ----------
    max_drop
        Largest allowed drop of the metric against the float model on labelled `data`: points for
        a metric in percent; for a user's function its own unit, where larger is better.
    min_sqnr
        Required SQNR of every output against the float model, in dB, on samples that are held out
        of calibration.
    data, model, metric, batch, limit
        Evaluation data, the float model to compare with, and options, as `evaluate` takes them.
    max_ms
        Longest allowed call on the chip in ms, at a clock of `clock` MHz.
    max_flash
        Largest allowed size of the constants in bytes: in the packages, or in the graph if the
        platform has no packer.
    """

    max_drop: float | None = None
    min_sqnr: float | None = None
    data: object = None
    model: ir.ModelLike | Session | None = None
    metric: str | None = None
    batch: int | None = None
    limit: int | None = None
    max_ms: float | None = None
    clock: float | None = None
    max_flash: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether neither an accuracy target nor a limit is set."""
        requirements = (self.max_drop, self.min_sqnr, self.max_ms, self.max_flash)
        return all(requirement is None for requirement in requirements)

    @property
    def is_limits_only(self) -> bool:
        """Whether only cost limits are set, so that the most accurate result within them wins."""
        return not self.is_empty and self.max_drop is None and self.min_sqnr is None

    def limit_usage(self, cost: AttemptCost | None) -> list[tuple[float, str]]:
        """Return (used fraction, description) for each cost limit that is set: flash, then time.

        Parameters
        ----------
        cost
            Cost of the attempt, or None if it is unknown.

        Returns
        -------
        list of (float, str)
            Cost divided by its limit, infinite if the cost is unknown, and the cost as text. The
            limit of time is left out if no clock is set.
        """
        usage = []
        if self.max_flash is not None:
            if cost is None or cost.flash is None:
                usage.append((math.inf, "flash size unknown: it does not pack"))
            else:
                text = f"{cost.flash:,} bytes of flash for package constants"
                usage.append((cost.flash / self.max_flash, text))
        if self.max_ms is not None and self.clock is not None:
            if cost is None or cost.cycles is None:
                reason = "latency unknown: it does not run entirely on the chip"
                usage.append((math.inf, reason))
            else:
                call_ms = cost.cycles / self.clock / 1e3
                usage.append((call_ms / self.max_ms, f"a call takes {call_ms:.4g} ms"))
        return usage

    def validate_time_limit(self, target: Target) -> None:
        """Raise ConfigError if `max_ms` is set and not a positive number, or latency is unknown.

        It is unknown without a clock, and if the vendor of `target` has no timing. Does nothing if
        `max_ms` is None.
        """
        if self.max_ms is None:
            return
        if not 0 < self.max_ms < math.inf:
            raise ConfigError(
                f"max_ms = {self.max_ms:g}: it must be a number of milliseconds above 0"
            )
        if self.clock is None:
            raise ConfigError("max_ms needs the chip's clock in MHz: add clock (--clock MHZ)")
        if unknown := target.vendor.explain_missing_timing(target):
            raise ConfigError(f"max_ms: {unknown}")

    def check(self) -> None:
        """Validate the requirements and their evaluation data.

        Raises
        ------
        ConfigError
            If no requirement or two accuracy targets are set, or if a value is out of range.
        DataError
            If `data` is an iterator, which can be read only once.
        """
        if self.is_empty or (self.max_drop is not None and self.min_sqnr is not None):
            raise ConfigError("pass exactly one of max_drop (with eval data) and min_sqnr")
        if self.max_flash is not None and not 0 < self.max_flash < math.inf:
            raise ConfigError(
                f"max_flash = {self.max_flash:g}: it must be a number of bytes above 0"
            )
        for name, bound in (("max_drop", self.max_drop), ("min_sqnr", self.min_sqnr)):
            if bound is not None and not math.isfinite(bound):
                raise ConfigError(f"{name} = {bound:g}: it must be a finite number")
        if self.max_drop is not None:
            self._check_evaluation(self.max_drop)

    def _check_evaluation(self, max_drop: float) -> None:
        """Raise an error if a drop of the metric cannot be measured with the goal's data.

        ConfigError without data, for a negative `max_drop`, and for a metric without labels;
        DataError for a generator, which can be read only once.
        """
        if self.data is None:
            raise ConfigError(
                "max_drop needs eval data with labels (--eval); without labels, pass min_sqnr"
            )
        if max_drop < 0:
            raise ConfigError(f"max_drop = {max_drop:g}: it must be 0 or more")
        if isinstance(self.data, Iterator):
            raise DataError(
                "evaluation data are read once per attempt; pass a list or a function, not a "
                "generator"
            )
        if self.metric is not None and not resolve_metric(self.metric)[0]().needs_labels:
            raise ConfigError(
                f"max_drop with metric {self.metric}: this metric compares two models; use top1, "
                "top5 or module:function, or pass min_sqnr"
            )

    @property
    def text(self) -> str:
        """The requirements that are set, as one line separated by commas; "" if there are none.

        Their order is SQNR (dB), drop of the metric, flash (bytes), time (ms).
        """
        requirements = []
        if self.min_sqnr is not None:
            requirements.append(f"every output at {self.min_sqnr:g} dB at least")
        if self.max_drop is not None:
            requirements.append(f"{self.metric or 'top1'} lower by {self.max_drop:g} at most")
        if self.max_flash is not None:
            requirements.append(f"{self.max_flash:,} bytes of flash for package constants at most")
        if self.max_ms is not None:
            requirements.append(f"{self.max_ms:g} ms a call at {self.clock:g} MHz at most")
        return ", ".join(requirements)

    @property
    def unit(self) -> str:
        """The unit of measured accuracies: that of the metric with `max_drop`, else "dB"."""
        return "dB" if self.max_drop is None else resolve_metric(self.metric or "top1")[1]

    def measure(
        self, result: QuantizedModel, float_value: float | None, progress: Progress | None = None
    ) -> Measurement:
        """Measure the accuracy of `result`: its value, and its shortfall from the accuracy target.

        With `max_drop` the value is the metric on the evaluation data, otherwise the worst output
        SQNR of the report in dB (infinite without outputs). `float_value` is the metric of the
        float model if it is known; otherwise it is measured too.
        """
        if self.max_drop is None:
            output_sqnrs = [values["sqnr"] for values in result.report.outputs.values()]
            return self.create_measurement(min(output_sqnrs, default=math.inf), None)
        options: dict[str, Any] = {} if self.batch is None else {"batch": self.batch}
        evaluation = evaluate(
            result.session(),
            self.data,
            metric=self.metric or "top1",
            baseline=self.model if float_value is None else None,
            limit=self.limit,
            progress=progress,
            **options,
        )
        if float_value is None:
            float_value = evaluation.baseline
        return self.create_measurement(evaluation.value, float_value)

    def format_sample_size_warning(self, samples: int) -> str:
        """Return a warning if `max_drop` allows too few of `samples` labelled samples, else "".

        With fewer than `_MIN_ALLOWED_SAMPLES` allowed samples chance decides which attempt meets
        the goal. "" also without `max_drop` and for metrics that are not percentages.
        """
        if self.max_drop is None or self.unit != "%":
            return ""
        allowed = math.floor(self.max_drop * samples / 100 + 1e-9)
        if allowed >= _MIN_ALLOWED_SAMPLES:
            return ""
        return (
            f"max_drop allows for {allowed} of {samples} samples with labels, so few that chance "
            "decides which attempt meets it; provide more samples, or use min_sqnr or max_flash, "
            "which need no labels"
        )

    def create_measurement(self, value: float, float_value: float | None) -> Measurement:
        """Return the measurement of accuracy `value`, with its shortfall from the target.

        The target is `max_drop` below `float_value`, which it then requires, else `min_sqnr`;
        without any the shortfall is 0. It is negative beyond the target.
        """
        if self.max_drop is None:
            return Measurement(value, 0.0 if self.min_sqnr is None else self.min_sqnr - value)
        assert float_value is not None
        return Measurement(value, round(float_value - self.max_drop - value, 9), float_value)
