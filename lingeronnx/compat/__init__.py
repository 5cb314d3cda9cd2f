"""The calls that people know from other tools, on ONNX models.

Thin faces, never second implementations.
Models are paths, `Session`s or what `quantize` returns where the originals take torch modules; a
torch module does as well where PyTorch is installed: it is exported first. `docs/coming-from.md`
says for each tool what is called what.

    tables                 Dumper, ModelProfiler    (wb_analyse is `api`'s own)
    one_layer              AnalysisQuant
    model_check            check_qat_model
    two_models             QuantAnalysis
    static_quantization    quantize_static, with onnxruntime's arguments
    repaired_file          fix_dequant, which writes beside the file

Must not know: how anything is computed.
"""

from ..api import wb_analyse
from .analysis_quant import AnalysisQuant
from .model_check import check_qat_model
from .profilers import Dumper, ModelProfiler
from .quant_analysis import QuantAnalysis
from .repair_file import fix_dequant
from .static_quantization import quantize_static

__all__ = [
    "AnalysisQuant",
    "Dumper",
    "ModelProfiler",
    "QuantAnalysis",
    "check_qat_model",
    "fix_dequant",
    "quantize_static",
    "wb_analyse",
]
