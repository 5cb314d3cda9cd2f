"""Try to equalize channels across joins and leaky functions if outputs are far from float.

Channels across a Concat, Slice, BatchNormalization, LeakyRelu or PRelu are equalized only if the
predicted gain is very clear, because the prediction is not reliable there: it brings 2 dB to one
detector and costs another one half a dB. So if an output is far from the float model's, the graph
is also built with any predicted gain, and with range factors by the noise behind a LeakyRelu or
PRelu (`range_fitting`), and kept if that is clearly better at the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..methods.channel_groups import find_channel_groups
from ..report.candidate import Candidate, build_candidate, build_refined_candidate
from ..run_log import RunLog
from ..steps.calibration import calibrate_model
from ..steps.scale_assignment import assign_scales
from .evidence import (
    MIN_GAIN_DB,
    SIGNIFICANCE_Z,
    keeps_chip,
    select_comparison,
)
from .requirements import CALIBRATED, CHOICE_BY_SAMPLES, TrialRequirement, require_low_sqnr
from .trial import Criterion, Proposal, Proposals

__all__ = ["JoinedEqualization"]

_MAX_SQNR_DB = 25.0  # tried only if an output is below that


class JoinedEqualization:
    """Trial: equalized channels across joins and leaky functions for any predicted gain."""

    name = "joined"
    criterion = Criterion(mean_db=0.5, errors=SIGNIFICANCE_Z)
    draft_criterion = Criterion(mean_db=MIN_GAIN_DB)  # of unrefined weights
    requirements = (
        CALIBRATED,
        TrialRequirement[Candidate](
            "an effort that equalizes channels",
            lambda best: best.prepared.recipe.equalizes_channels,
        ),
        CHOICE_BY_SAMPLES,
        require_low_sqnr(_MAX_SQNR_DB),
        TrialRequirement[Candidate](
            "channels that a join or a leaky function connects",
            lambda best: any(
                group.is_joined for group in find_channel_groups(best.planned.partition)
            ),
        ),
    )

    def propose(self, best: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose the model with these channels equalized.

        Weights are refined only if the model is better with unrefined ones.
        """
        log.report_progress("equalized joins")
        build_draft = partial(_build_unrefined, best, log)
        if best.refinement is None:
            yield self._propose(build_draft, best, "unrefined")
            return None
        verdict = yield Proposal(
            build=build_draft,
            compare=select_comparison(best),
            criterion=self.draft_criterion,
            label="unrefined",
            against=build_candidate(best.planned, best.planned.graph, log.progress),
        )
        if verdict.accepted:
            build = partial(build_refined_candidate, verdict.best.planned, log.progress)
            yield self._propose(build, best, "refined")
        return None

    def _propose(
        self, build: Callable[[], Candidate | None], best: Candidate, label: str
    ) -> Proposal[Candidate]:
        """Return a proposal judged by the outputs; it must keep a chip-ready model chip-ready."""
        return Proposal(
            build=build,
            compare=select_comparison(best),
            criterion=self.criterion,
            label=label,
            condition=lambda alternative, gain: (
                gain.worst_output_db >= 0 and keeps_chip(best, alternative)
            ),
        )


def _build_unrefined(best: Candidate, log: RunLog) -> Candidate | None:
    """Build the model with these channels equalized; None if its plan stays the same."""
    prepared, start = best.prepared, best.planned
    calibration = calibrate_model(prepared, None, start.calibration, trusts_joined=True)
    planned = assign_scales(prepared, calibration)
    if planned.plan == start.plan:
        return None
    planned = planned.with_lasting_notes_of(start)
    return build_candidate(planned, planned.graph, log.progress)
