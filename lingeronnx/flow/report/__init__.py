"""What came of it: the integer graph beside the float model, a report for terminal and JSON, and what to try next.

    compared      -> Compared        lowered, and compared with the float model
    complete      -> QuantizedModel  the same, reported
    measured      -> QuantizedModel  with its accuracy on data of the user's

`QuantizedModel.write` is the one place where the result becomes files. Must not know: trials.
"""

from .comparison import Compared, compared, complete
from .evaluation import measured
from .quantized_model import QuantizedModel, Written
from .report import LEVELS, FloatNode, Next, Report, float_nodes, packer_line, rewritten, told_findings, told_floats

__all__ = [
    "LEVELS",
    "Compared",
    "FloatNode",
    "Next",
    "QuantizedModel",
    "Report",
    "Written",
    "compared",
    "complete",
    "float_nodes",
    "measured",
    "packer_line",
    "told_findings",
    "rewritten",
    "told_floats",
]
