"""Try variants of a quantized model, measure them, and keep one only if the evidence supports it.

Each function takes a `Candidate` (a planned, refined and measured model) and returns a candidate:

- `try_host_offload`: front, tail or recurrent cells of the model on the host.
- `try_best_effort`: other output bit widths, scales and weight refinement (`effort: best`).
- `try_finer_noisy_scales`: finer scales of the noisiest activations.
- `try_finer_granularity`: per-channel weight scales, or scales that are not powers of two.
- `drop_harmful_stages`: no range transforms, or no refinement.
- `choose_import_or_requantize`: for a model that is quantized already, its own scales or new ones.
- `measure_on_held_out`: another calibrator, and figures on samples that a trial did not use.
- `offload_rejected_layers`: layers that a chip part is rejected for, and unprofitable parts, on the
  host.

Owns: the criteria of evidence. Must not know: files, how a result is reported.
"""

from .best_effort import try_best_effort
from .chip_parts import offload_rejected_layers
from .held_out import measure_on_held_out
from .host_offload import place_required_host_nodes, try_host_offload
from .imported_or_requantized import choose_import_or_requantize
from .noisy_scales import try_finer_noisy_scales
from .scale_granularity import try_finer_granularity
from .stage_ablation import drop_harmful_stages

__all__ = [
    "choose_import_or_requantize",
    "drop_harmful_stages",
    "measure_on_held_out",
    "offload_rejected_layers",
    "place_required_host_nodes",
    "try_best_effort",
    "try_finer_granularity",
    "try_finer_noisy_scales",
    "try_host_offload",
]
