"""What else the model could be, tried and measured; the evidence decides.

    with_best_ends -> Compared       its ends left to the host, where that is measured to be better
    with_best_effort -> Compared     other widths of outputs, scales and weights, likewise
    with_finer_noisiest -> Compared  finer scales of the noisiest activations, where outputs are far
    off with_finer_scales -> Compared    scales by channel, of any number, where the usual are far
    off without_losing_stages -> Compared  without moved ranges or refinement, likewise
    better_of -> Compared            of a model that is quantized already: its scales, or its
    weights alone with_chip_parts -> Compared      what a part for the chip is refused for, or is
    not worth it, left to the host

Owns: what counts as evidence. Must not know: files, how a result is reported.
"""

from .best_effort import try_best_effort
from .chip_parts import offload_rejected_layers
from .host_offload import place_required_host_nodes, try_host_offload
from .imported_or_requantized import choose_import_or_requantize
from .noisy_scales import try_finer_noisy_scales
from .scale_granularity import try_finer_granularity
from .stage_ablation import drop_harmful_stages

__all__ = [
    "choose_import_or_requantize",
    "drop_harmful_stages",
    "offload_rejected_layers",
    "place_required_host_nodes",
    "try_best_effort",
    "try_finer_granularity",
    "try_finer_noisy_scales",
    "try_host_offload",
]
