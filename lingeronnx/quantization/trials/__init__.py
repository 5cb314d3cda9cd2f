"""Try variants of a quantized model, measure them, and keep one only if the evidence supports it.

A trial is a class that proposes alternatives to the best `Candidate` so far; `run_trial` builds,
compares and judges them by the criterion of the trial (`trial.py`). `TRIALS` has the trials that a
recipe names; the others need something that only one place has:

- `RequantizedWeights`: for a model that is quantized already, its own scales or new ones.
- `measure_on_held_out`: figures on samples that a trial run did not use, and the trials of other
  calibrators and of unrefined weights on them.
- `offload_rejected_layers`: layers that a chip part is rejected for, and unprofitable parts, on the
  host; with the trials of layers that return to the chip and of small parts.

Owns: the criteria of evidence. Must not know: files, how a result is reported.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..report.candidate import Candidate
from .best_effort import BestEffortMethods
from .chip_parts import offload_rejected_layers
from .held_out import measure_on_held_out
from .host_offload import HostOffload, place_required_host_nodes
from .imported_or_requantized import RequantizedWeights
from .joined_equalization import JoinedEqualization
from .noisy_scales import FinerNoisyScales
from .outlier_bits import OutlierBits
from .scale_granularity import FinerGranularity
from .stage_ablation import StageAblation
from .trial import Criterion, Proposal, Trial, TrialVerdict, run_trial

__all__ = [
    "TRIALS",
    "BestEffortMethods",
    "Criterion",
    "Proposal",
    "RequantizedWeights",
    "Trial",
    "TrialVerdict",
    "measure_on_held_out",
    "offload_rejected_layers",
    "place_required_host_nodes",
    "run_trial",
]

_TRIALS: tuple[Callable[[], Trial[Candidate]], ...] = (
    HostOffload,
    JoinedEqualization,
    BestEffortMethods,
    FinerNoisyScales,
    FinerGranularity,
    OutlierBits,
    StageAblation,
)

#: The trials that a recipe names, by name.
TRIALS: Mapping[str, Callable[[], Trial[Candidate]]] = MappingProxyType(
    {create().name: create for create in _TRIALS}
)
