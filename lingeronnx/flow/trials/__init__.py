"""What else the model could be, tried and measured; the evidence decides.

    with_best_ends -> Compared       its ends left to the host, where that is measured to be better
    with_best_effort -> Compared     other widths of outputs, scales and weights, likewise
    with_finer_noisiest -> Compared  finer scales of the noisiest activations, where outputs are far off
    with_finer_scales -> Compared    scales by channel, of any number, where the usual are far off
    without_losing_stages -> Compared  without moved ranges or refinement, likewise
    better_of -> Compared            of a model that is quantized already: its scales, or its weights alone
    with_chip_parts -> Compared      what a part for the chip is refused for, or is not worth it, left to the host

Owns: what counts as evidence. Must not know: files, how a result is reported.
"""

from .best_effort import with_best_effort
from .brought_scales import better_of
from .chip_parts import with_chip_parts
from .host_offload import with_best_ends, with_cells
from .noisy_scales import with_finer_noisiest
from .scale_granularity import with_finer_scales
from .stage_ablation import without_losing_stages

__all__ = [
    "better_of",
    "with_best_effort",
    "with_best_ends",
    "with_cells",
    "with_chip_parts",
    "with_finer_noisiest",
    "with_finer_scales",
    "without_losing_stages",
]
