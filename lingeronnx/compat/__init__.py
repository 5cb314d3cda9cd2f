"""Calls known from other quantization tools, for ONNX models.

Each call is a thin adapter of this package's own functions. Where the original takes a torch
module, these take paths, `Session` objects and results of `quantize`; if PyTorch is installed, they
take torch modules too, which are exported first. `docs/tutorials/coming-from.md`
maps the names of each tool.

    profilers            Dumper, ModelProfiler (wb_analyse is the one of `api`)
    analysis_quant       AnalysisQuant
    model_check          check_qat_model
    quant_analysis       QuantAnalysis
    static_quantization  quantize_static, with the arguments of onnxruntime; quantize_dynamic
    inference_session    InferenceSession and its companions, as strict as onnxruntime's
    repair_file          fix_dequant, which writes the repaired file

The package contains no computations.
"""

from ..api import wb_analyse
from .analysis_quant import AnalysisQuant
from .model_check import check_qat_model
from .profilers import Dumper, ModelProfiler
from .quant_analysis import QuantAnalysis
from .repair_file import fix_dequant
from .static_quantization import quantize_dynamic, quantize_static

__all__ = [
    "AnalysisQuant",
    "Dumper",
    "ModelProfiler",
    "QuantAnalysis",
    "check_qat_model",
    "fix_dequant",
    "quantize_dynamic",
    "quantize_static",
    "wb_analyse",
]
