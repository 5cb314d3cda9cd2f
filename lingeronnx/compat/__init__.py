"""The calls that people know from other tools, on ONNX models: thin faces, never second implementations.

Models are paths, `Session`s or what `quantize` returns where the originals take torch modules; a torch module does as
well where PyTorch is installed: it is exported first. `docs/coming-from.md` says for each tool what is called what.

    tables        Dumper, ModelProfiler    (wb_analyse is `api`'s own)
    one_layer     AnalysisQuant
    checked       check_qat_model
    two_models    QuantAnalysis

Must not know: how anything is computed.
"""

from ..api import wb_analyse
from .checked import check_qat_model
from .one_layer import AnalysisQuant
from .tables import Dumper, ModelProfiler
from .two_models import QuantAnalysis

__all__ = ["AnalysisQuant", "Dumper", "ModelProfiler", "QuantAnalysis", "check_qat_model", "wb_analyse"]
