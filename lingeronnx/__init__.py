"""lingeronnx: float ONNX models to integer graphs for small NPUs, with a bit-exact simulator.

    import lingeronnx as lo
    q = lo.quantize("model.onnx", "calib.npz", platform="venus")
    q.save("model_quant.onnx")
    logits = lo.Session("model_quant.onnx").run(None, {"input": x})

Importing the package does not load heavy dependencies; names are loaded on first use. Type checkers
read the imports under TYPE_CHECKING instead, which correspond to `_HOME` and `_OLD_SPELLINGS`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import compat as compat
    from . import torch as torch
    from .analysis.check.assessment import Assessment as Assessment
    from .analysis.check.report import Check as Check
    from .analysis.compare.badcase import BadCase as BadCase
    from .analysis.compare.comparison import Comparison as Comparison
    from .analysis.diff import ModelDiff as ModelDiff
    from .analysis.latency import latency as latency
    from .analysis.sensitivity.ranking import Sensitivity as Sensitivity
    from .api import assess as assess
    from .api import check as check
    from .api import compare as compare
    from .api import convert as convert
    from .api import deploy as deploy
    from .api import diff as diff
    from .api import export as export
    from .api import find_bad_case as find_bad_case
    from .api import fix_dequant as fix_dequant
    from .api import profile as profile
    from .api import profile_board as profile_board
    from .api import quantize as quantize
    from .api import report as report
    from .api import sensitivity as sensitivity
    from .api import trace as trace
    from .api import verify as verify
    from .api.finetuning import finetune as finetune
    from .common.errors import ConfigError as ConfigError
    from .common.errors import ConstraintError as ConstraintError
    from .common.errors import DataError as DataError
    from .common.errors import InternalError as InternalError
    from .common.errors import LingerOnnxError as LingerOnnxError
    from .common.errors import ModelError as ModelError
    from .common.errors import RepairError as RepairError
    from .common.progress import ProgressBar as ProgressBar
    from .compat import AnalysisQuant as AnalysisQuant
    from .compat import Dumper as Dumper
    from .compat import ModelProfiler as ModelProfiler
    from .compat import QuantAnalysis as QuantAnalysis
    from .compat import check_qat_model as check_qat_model
    from .compat import quantize_static as quantize_static
    from .compat import wb_analyse as wb_analyse
    from .compat.inference_session import ExecutionMode as ExecutionMode
    from .compat.inference_session import GraphOptimizationLevel as GraphOptimizationLevel
    from .compat.inference_session import InferenceSession as InferenceSession
    from .compat.inference_session import IOBinding as IOBinding
    from .compat.inference_session import ModelMetadata as ModelMetadata
    from .compat.inference_session import OrtValue as OrtValue
    from .compat.inference_session import RunOptions as RunOptions
    from .compat.inference_session import SessionOptions as SessionOptions
    from .compat.inference_session import get_available_providers as get_available_providers
    from .compat.inference_session import get_device as get_device
    from .deployment import Deployment as Deployment
    from .deployment import Verification as Verification
    from .interchange.qdq.encodings import Encodings as Encodings
    from .interchange.qdq.encodings import read_plan as read_plan
    from .ir.plan import Affine as Affine
    from .ir.plan import Plan as Plan
    from .operators.extension import extended as extended
    from .operators.lowerings import Violation as Violation
    from .operators.references import reference_ops as reference_ops
    from .operators.schemas import check_model as check_model
    from .operators.schemas import register_schemas as register_schemas
    from .quantization import QuantizedModel as QuantizedModel
    from .quantization.config import QuantConfig as QuantConfig
    from .runtime.data.pictures import Pictures as Pictures
    from .runtime.evaluation import Evaluation as Evaluation
    from .runtime.evaluation import evaluate as evaluate
    from .runtime.session import Session as Session
    from .runtime.simulation import Simulation as Simulation
    from .runtime.simulation import simulate as simulate
    from .targets import Target as Target

__version__ = "0.2.0"

_HOME = {
    "Assessment": "analysis.check.assessment",
    "BadCase": "analysis.compare.badcase",
    "Check": "analysis.check.report",
    "Comparison": "analysis.compare.comparison",
    "ConfigError": "common.errors",
    "ConstraintError": "common.errors",
    "DataError": "common.errors",
    "Deployment": "deployment",
    "Encodings": "interchange.qdq.encodings",
    "Evaluation": "runtime.evaluation",
    "InferenceSession": "compat.inference_session",
    "InternalError": "common.errors",
    "LingerOnnxError": "common.errors",
    "ModelDiff": "analysis.diff",
    "ModelError": "common.errors",
    "Pictures": "runtime.data.pictures",
    "Plan": "ir.plan",
    "Affine": "ir.plan",
    "ProgressBar": "common.progress",
    "QuantConfig": "quantization.config",
    "QuantizedModel": "quantization",
    "RepairError": "common.errors",
    "Sensitivity": "analysis.sensitivity.ranking",
    "Session": "runtime.session",
    "Simulation": "runtime.simulation",
    "Target": "targets",
    "Verification": "deployment",
    "Violation": "operators.lowerings",
    "assess": "api",
    "check": "api",
    "compare": "api",
    "check_model": "operators.schemas",
    "convert": "api",
    "deploy": "api",
    "diff": "api",
    "evaluate": "runtime.evaluation",
    "extended": "operators.extension",
    "finetune": "api.finetuning",
    "export": "api",
    "find_bad_case": "api",
    "fix_dequant": "api",
    "latency": "analysis.latency",
    "profile": "api",
    "quantize": "api",
    "read_plan": "interchange.qdq.encodings",
    "profile_board": "api",
    "report": "api",
    "sensitivity": "api",
    "trace": "api",
    "reference_ops": "operators.references",
    "register_schemas": "operators.schemas",
    "simulate": "runtime.simulation",
    "verify": "api",
}

#: Subpackages with public functions of their own.
_PARTS = ("compat", "torch")

#: Companions of `InferenceSession`, for scripts that write ``import lingeronnx as ort``.
_ONNXRUNTIME_NAMES = (
    "ExecutionMode",
    "GraphOptimizationLevel",
    "IOBinding",
    "ModelMetadata",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "get_available_providers",
    "get_device",
)

#: Functions that moved to `compat` after 0.1; they warn, are not documented, and 0.3 removes them.
_OLD_SPELLINGS = (
    "AnalysisQuant",
    "Dumper",
    "ModelProfiler",
    "QuantAnalysis",
    "check_qat_model",
    "quantize_static",
    "wb_analyse",
)

__all__ = sorted(_HOME)  # noqa: PLE0605


if not TYPE_CHECKING:  # so that a type checker reports a misspelled name

    def __getattr__(name: str) -> object:
        """Import and return submodule or public `name`, on first use.

        Former names warn and come from `lingeronnx.compat`. Raises AttributeError for unknown ones.
        """
        if name in _PARTS:
            return importlib.import_module(f".{name}", __name__)
        if name in _ONNXRUNTIME_NAMES:
            return getattr(importlib.import_module(".compat.inference_session", __name__), name)
        if name in _OLD_SPELLINGS:
            importlib.import_module(".common.deprecation", __name__).warn_deprecated(
                f"lo.{name}", f"lo.compat.{name}", "0.3"
            )
            return getattr(importlib.import_module(".compat", __name__), name)
        if name not in _HOME:
            raise AttributeError(f"module 'lingeronnx' has no attribute '{name}'")
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    """Return the public names, the submodules `compat` and `torch`, and ``__version__``."""
    return [*__all__, *_PARTS, "__version__"]
