"""What is wished of a quantized model, and how far a result is from it.

A wish for accuracy asks for the cheapest result that has it; limits alone, of flash and time, for
the most accurate result within them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, DataError
from ..flow import QuantizedModel
from ..graph import ir
from ..run.data import Progress
from ..run.evaluation import evaluate
from ..run.metrics import resolve_metric as measure
from ..run.session import Session
from ..targets import Target
from .cost import AttemptCost

__all__ = ["Goal", "Measurement"]

_MIN_ALLOWED_SAMPLES = (
    10  # samples that a wish allows for, below which chance decides which attempt meets it
)


@dataclass(frozen=True)
class Measurement:
    """A result's `value`, in dB or in the metric's unit, and what is `shortfall` to the wish.

    Nothing at 0 or below.
    float_value : the metric's value of the float model; None for dB.
    """

    value: float
    shortfall: float
    float_value: float | None = None


@dataclass(frozen=True)
class Goal:
    """One of two wishes for accuracy, limits, or both.

    max_drop : the metric falls by so much at most against the float model, on `data`, which hold
    labels. Of a metric
        in percent these are points; of a function of the user's its own unit, larger being better.
    min_sqnr : every output has so many dB at least against the float model, on samples held back
    from calibration. model : the float model that is compared with. metric, batch, limit : as
    `evaluate` takes them. max_ms : a call on the chip takes so long at most, at `clock` MHz.
    max_flash : the constants in the package, or
        without a packer in the graph, take so many bytes at most.
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
    def nothing(self) -> bool:
        """Whether nothing is wished."""
        return all(
            wish is None for wish in (self.max_drop, self.min_sqnr, self.max_ms, self.max_flash)
        )

    @property
    def is_limits_only(self) -> bool:
        """Whether there are limits alone: the most accurate result within them is asked for."""
        return not self.nothing and self.max_drop is None and self.min_sqnr is None

    def limit_usage(self, cost: AttemptCost | None) -> list[tuple[float, str]]:
        """Return (share of its limit, what it is in words) of each limited cost.

        cost : None where nothing is known. A share is infinite where nobody knows it.
        """
        spent = []
        if self.max_flash is not None:
            size = None if cost is None else cost.flash
            words = (
                "nobody knows its flash: it does not pack"
                if size is None
                else f"{size:,} bytes of flash"
            )
            spent.append((math.inf if size is None else size / self.max_flash, words))
        if self.max_ms is not None and self.clock is not None:
            time = None if cost is None or cost.cycles is None else cost.cycles / self.clock / 1e3
            words = "nobody knows how long a call takes: it does not run on the chip alone"
            words = words if time is None else f"a call takes {time:.4g} ms"
            spent.append((math.inf if time is None else time / self.max_ms, words))
        return spent

    def validate_time_limit(self, target: Target) -> None:
        """Raise ConfigError where a wish for time cannot be measured on `target`."""
        if self.max_ms is None:
            return
        if not 0 < self.max_ms < math.inf:
            raise ConfigError(f"max_ms = {self.max_ms:g}: it is a number of milliseconds above 0")
        if self.clock is None:
            raise ConfigError("max_ms needs the chip's clock in MHz: add clock (--clock MHZ)")
        if unknown := target.vendor.explain_missing_timing(target):
            raise ConfigError(f"max_ms: {unknown}")

    def check(self) -> None:
        """Raise ConfigError for a wish that nothing can be measured by, DataError for data that are gone once read."""
        if self.nothing or not (self.max_drop is None or self.min_sqnr is None):
            raise ConfigError(
                "nothing, or too much, is wished for; give one of the two, max_drop with eval data "
                "or min_sqnr"
            )
        if self.max_flash is not None and not 0 < self.max_flash < math.inf:
            raise ConfigError(f"max_flash = {self.max_flash:g}: it is a number of bytes above 0")
        for name, wish in (("max_drop", self.max_drop), ("min_sqnr", self.min_sqnr)):
            if wish is not None and not math.isfinite(wish):
                raise ConfigError(
                    f"{name} = {wish:g}: it is a number; nothing is better than any other at "
                    f"{wish:g}"
                )
        if self.max_drop is None:
            return
        if self.data is None:
            raise ConfigError(
                "max_drop needs eval data with labels (--eval); without labels give min_sqnr"
            )
        if self.max_drop < 0:
            raise ConfigError(f"max_drop = {self.max_drop:g}: it is 0 or more")
        if isinstance(self.data, Iterator):
            raise DataError(
                "the eval data are read for each attempt: pass a list or a function, not a "
                "generator"
            )
        if self.metric is not None and not measure(self.metric)[0]().needs_labels:
            raise ConfigError(
                f"max_drop with metric {self.metric}: that compares two models; take top1, top5 or "
                "module:function, "
                "or give min_sqnr"
            )

    @property
    def text(self) -> str:
        """The wish in words."""
        words = []
        if self.min_sqnr is not None:
            words.append(f"every output at {self.min_sqnr:g} dB at least")
        if self.max_drop is not None:
            words.append(f"{self.metric or 'top1'} lower by {self.max_drop:g} at most")
        if self.max_flash is not None:
            words.append(f"{self.max_flash:,} bytes of flash at most")
        if self.max_ms is not None:
            words.append(f"{self.max_ms:g} ms a call at {self.clock:g} MHz at most")
        return ", ".join(words)

    @property
    def unit(self) -> str:
        """The unit of `Measurement.value`."""
        return "dB" if self.max_drop is None else measure(self.metric or "top1")[1]

    def measure(
        self, result: QuantizedModel, float_value: float | None, progress: Progress | None = None
    ) -> Measurement:
        """Measure `result`; float_value.

        That of the float model where it is known, which is not measured again.
        """
        if self.max_drop is None:
            worst = min(
                (values["sqnr"] for values in result.report.outputs.values()), default=float("inf")
            )
            return self.measured(worst, None)
        sizes: dict[str, Any] = {} if self.batch is None else {"batch": self.batch}
        evaluation = evaluate(
            result.session(),
            self.data,
            metric=self.metric or "top1",
            baseline=self.model if float_value is None else None,
            limit=self.limit,
            progress=progress,
            **sizes,
        )
        return self.measured(
            evaluation.value, evaluation.baseline if float_value is None else float_value
        )

    def format_sample_size_warning(self, samples: int) -> str:
        """Return a note where a wish in points allows for so few of `samples` that chance decides, "" where not."""
        if self.max_drop is None or self.unit != "%":
            return ""
        allowed = math.floor(self.max_drop * samples / 100 + 1e-9)
        if allowed >= _MIN_ALLOWED_SAMPLES:
            return ""
        return (
            f"the wish allows for {allowed} of {samples} samples with labels: so few that chance "
            "decides which attempt "
            "meets it; give more samples, or wish for min_sqnr or max_flash, which need no labels"
        )

    def measured(self, value: float, float_value: float | None) -> Measurement:
        """Return what a value means for the wish."""
        if self.max_drop is None:
            return Measurement(value, 0.0 if self.min_sqnr is None else self.min_sqnr - value)
        assert float_value is not None
        return Measurement(value, round(float_value - self.max_drop - value, 9), float_value)
