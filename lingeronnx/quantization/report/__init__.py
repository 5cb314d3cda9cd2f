"""Measure an integer graph against the float model, report on it, and write the result.

- `build_candidate`: lower a planned model and compare it with the float model.
- `build_quantized_model`: the same, with the report of the result.
- `evaluation.measure_accuracy`: add the accuracy on the user's data to a result.

`QuantizedModel.write` is the only place where the result becomes files. Must not know: trials.
"""

from .candidate import Candidate, build_candidate, build_quantized_model
from .quantized_model import QuantizedModel, WrittenFiles
from .report import (
    LEVEL_TEXTS,
    FloatNode,
    Report,
    SuggestedOptions,
    format_findings,
    format_float_nodes,
    format_packer_command,
    format_rewrites,
    split_float_nodes,
)

__all__ = [
    "LEVEL_TEXTS",
    "Candidate",
    "FloatNode",
    "SuggestedOptions",
    "QuantizedModel",
    "Report",
    "WrittenFiles",
    "build_candidate",
    "build_quantized_model",
    "split_float_nodes",
    "format_packer_command",
    "format_findings",
    "format_rewrites",
    "format_float_nodes",
]
