"""Measure an integer graph against the float model, report on it, and write the result.

- `build_candidate`: lower a planned model and compare it with the float model.
- `build_quantized_model`: the same, with the report of the result.
- `evaluation.measure_accuracy`: add the accuracy on the user's data to a result.

`QuantizedModel.write` is the only place where the result becomes files. Must not know: trials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.lazy_names import make_name_loader

if TYPE_CHECKING:
    from .candidate import Candidate as Candidate
    from .candidate import build_candidate as build_candidate
    from .candidate import build_quantized_model as build_quantized_model
    from .candidate import build_refined_candidate as build_refined_candidate
    from .quantized_model import QuantizedModel as QuantizedModel
    from .quantized_model import WrittenFiles as WrittenFiles
    from .report import LEVEL_TEXTS as LEVEL_TEXTS
    from .report import FloatNode as FloatNode
    from .report import Report as Report
    from .report import SuggestedOptions as SuggestedOptions
    from .report import format_findings as format_findings
    from .report import format_float_nodes as format_float_nodes
    from .report import format_packer_command as format_packer_command
    from .report import format_rewrites as format_rewrites
    from .report import split_float_nodes as split_float_nodes

#: Home of each name; they are loaded on first use, because a report is built when it is read.
_HOME = {
    "LEVEL_TEXTS": ".report",
    "Candidate": ".candidate",
    "FloatNode": ".report",
    "QuantizedModel": ".quantized_model",
    "Report": ".report",
    "SuggestedOptions": ".report",
    "WrittenFiles": ".quantized_model",
    "build_candidate": ".candidate",
    "build_quantized_model": ".candidate",
    "build_refined_candidate": ".candidate",
    "format_findings": ".report",
    "format_float_nodes": ".report",
    "format_packer_command": ".report",
    "format_rewrites": ".report",
    "split_float_nodes": ".report",
}

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
    "build_refined_candidate",
    "split_float_nodes",
    "format_packer_command",
    "format_findings",
    "format_rewrites",
    "format_float_nodes",
]


if not TYPE_CHECKING:  # so that a type checker reports a misspelled name
    __getattr__ = make_name_loader(__name__, _HOME)
