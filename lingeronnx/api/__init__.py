"""The functions that commands and Python programs call, one per task.

A name is loaded on first use, with what its task needs and nothing else: `quantize` loads neither
analysis nor deployment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import make_name_loader

if TYPE_CHECKING:
    from ..analysis.board import profile_board as profile_board
    from ..analysis.check.assessment import Assessment as Assessment
    from ..analysis.check.assessment import assess as assess
    from ..analysis.check.check import check as check
    from ..analysis.check.check import structure as structure
    from ..analysis.check.report import Check as Check
    from ..analysis.compare.badcase import BadCase as BadCase
    from ..analysis.compare.badcase import find_bad_case as find_bad_case
    from ..analysis.compare.compare import Comparison as Comparison
    from ..analysis.compare.compare import compare as compare
    from ..analysis.diff import ModelDiff as ModelDiff
    from ..analysis.diff import diff as diff
    from ..analysis.profile.outliers import analyse_outputs as analyse_outputs
    from ..analysis.profile.recording import compare_kept as compare_kept
    from ..analysis.profile.recording import profile as profile
    from ..analysis.sensitivity.ranking import Sensitivity as Sensitivity
    from ..analysis.sensitivity.sensitivity import sensitivity as sensitivity
    from ..analysis.timeline import Timeline as Timeline
    from ..analysis.timeline import trace as trace
    from ..deployment import Deployment as Deployment
    from ..deployment import Verification as Verification
    from ..deployment import verify as verify
    from ..quantization import QuantizedModel as QuantizedModel
    from ..runtime.data import Progress as Progress
    from ..runtime.evaluation import Evaluation as Evaluation
    from ..runtime.evaluation import evaluate as evaluate
    from ..runtime.simulation import Simulation as Simulation
    from ..runtime.simulation import simulate as simulate
    from .board_files import deploy as deploy
    from .conversion import convert as convert
    from .conversion import fix_dequant as fix_dequant
    from .finetuning import finetune as finetune
    from .quantization import quantize as quantize
    from .report_page import report as report
    from .torch_files import convert_checkpoint as convert_checkpoint
    from .torch_files import export as export
    from .weight_outliers import wb_analyse as wb_analyse

#: Home of each name. Type checkers read the imports above instead.
_HOME = {
    "Assessment": "..analysis.check.assessment",
    "BadCase": "..analysis.compare.badcase",
    "Check": "..analysis.check.report",
    "Comparison": "..analysis.compare.compare",
    "Deployment": "..deployment",
    "Evaluation": "..runtime.evaluation",
    "ModelDiff": "..analysis.diff",
    "Progress": "..runtime.data",
    "QuantizedModel": "..quantization",
    "Sensitivity": "..analysis.sensitivity.ranking",
    "Simulation": "..runtime.simulation",
    "Timeline": "..analysis.timeline",
    "Verification": "..deployment",
    "analyse_outputs": "..analysis.profile.outliers",
    "assess": "..analysis.check.assessment",
    "check": "..analysis.check.check",
    "compare": "..analysis.compare.compare",
    "compare_kept": "..analysis.profile.recording",
    "convert": ".conversion",
    "convert_checkpoint": ".torch_files",
    "deploy": ".board_files",
    "diff": "..analysis.diff",
    "evaluate": "..runtime.evaluation",
    "export": ".torch_files",
    "find_bad_case": "..analysis.compare.badcase",
    "finetune": ".finetuning",
    "fix_dequant": ".conversion",
    "profile": "..analysis.profile.recording",
    "profile_board": "..analysis.board",
    "quantize": ".quantization",
    "report": ".report_page",
    "sensitivity": "..analysis.sensitivity.sensitivity",
    "simulate": "..runtime.simulation",
    "structure": "..analysis.check.check",
    "trace": "..analysis.timeline",
    "verify": "..deployment",
    "wb_analyse": ".weight_outliers",
}

__all__ = [
    "Assessment",
    "BadCase",
    "Check",
    "Comparison",
    "Deployment",
    "Evaluation",
    "ModelDiff",
    "Progress",
    "QuantizedModel",
    "Sensitivity",
    "Simulation",
    "Timeline",
    "Verification",
    "analyse_outputs",
    "assess",
    "check",
    "compare",
    "compare_kept",
    "convert",
    "convert_checkpoint",
    "deploy",
    "diff",
    "evaluate",
    "export",
    "find_bad_case",
    "finetune",
    "fix_dequant",
    "profile",
    "profile_board",
    "quantize",
    "report",
    "sensitivity",
    "simulate",
    "structure",
    "trace",
    "verify",
    "wb_analyse",
]


if not TYPE_CHECKING:  # so that a type checker reports a misspelled name
    __getattr__ = make_name_loader(__name__, _HOME)
