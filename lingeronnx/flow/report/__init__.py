"""What came of it: the integer graph beside the float model, a report for terminal and JSON, and what to try next.

    compared      -> Compared        lowered, and compared with the float model
    complete      -> QuantizedModel  the same, reported
    measured      -> QuantizedModel  with its accuracy on data of the user's

`QuantizedModel.write` is the one place where the result becomes files. Must not know: trials.
"""

from .candidate import Candidate, build_candidate, build_quantized_model
from .evaluation import measure_accuracy
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
    "measure_accuracy",
    "format_packer_command",
    "format_findings",
    "format_rewrites",
    "format_float_nodes",
]
