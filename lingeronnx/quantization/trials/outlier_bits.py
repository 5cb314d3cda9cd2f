"""Try 16 bits for tensors whose range a few outliers determine, where the target has 16 bits.

Transformers have channels that are a hundred times as large as the others. One scale of 8 bits
covers them, and the others get a few steps. Clipping them is no solution, and neither is another
granularity of the weights: the network computes with them. So if an output is far from the float
model's, such tensors get 16 bits, and that is kept if it is clearly better. Chips have 8 bits only.
"""

from __future__ import annotations

from functools import partial

from ..report.candidate import Candidate, build_refined_candidate
from ..report.range_outliers import RangeOutlier, find_range_outliers
from ..run_log import RunLog
from ..steps.calibration import calibrate_model
from ..steps.scale_assignment import assign_scales
from .evidence import Gain, compare_outputs
from .requirements import DECISIVE_SAMPLES, FREE_SCALES, TrialRequirement, require_low_sqnr
from .trial import Criterion, Proposal, Proposals

__all__ = ["OutlierBits"]

_MAX_SQNR_DB = 25.0  # tried only if an output or a part of one is below that
_BITS = 16


class OutlierBits:
    """Trial: 16 bits for tensors with outliers, if the target has them."""

    name = "outliers"
    criterion = Criterion(mean_db=1.0)
    requirements = (
        FREE_SCALES,
        DECISIVE_SAMPLES,
        require_low_sqnr(_MAX_SQNR_DB),
        TrialRequirement[Candidate](
            "ranges that outliers determine",
            lambda best: bool(find_range_outliers(best.prepared, best.planned)),
        ),
    )

    def propose(self, best: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose the model with 16 bits for all tensors with outliers."""
        outliers = find_range_outliers(best.prepared, best.planned)
        log.report_progress("16 bits for outliers")
        yield Proposal(
            build=partial(_build_wider, best, outliers, log),
            compare=compare_outputs,
            criterion=self.criterion,
            describe=partial(_describe, outliers),
        )
        return None


def _build_wider(best: Candidate, outliers: list[RangeOutlier], log: RunLog) -> Candidate:
    """Quantize the model with 16 bits for `outliers`, on the statistics of `best`."""
    from ..config import Override  # loads pydantic, which only a call needs

    overrides = {outlier.name: Override(bits=_BITS) for outlier in outliers}
    reconfigured = best.prepared.with_settings({"overrides": overrides})
    calibration = calibrate_model(reconfigured, None, best.planned.calibration)
    planned = assign_scales(reconfigured, calibration).with_lasting_notes_of(best.planned)
    return build_refined_candidate(planned, log.progress, best.refinement)


def _describe(outliers: list[RangeOutlier], wider: Candidate, gain: Gain) -> Candidate:
    """Return `wider` with a note on its gain and its tensors."""
    others = f" and {len(outliers) - 1} more" if len(outliers) > 1 else ""
    note = (
        f"using {_BITS} bits for ranges determined by outliers: {outliers[0]}{others}; outputs "
        f"{gain.value:.1f} dB closer to the float model's {wider.fidelity.measured_on}"
    )
    return wider.with_notes([note], [note])
