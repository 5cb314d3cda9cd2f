"""lingeronnx: float ONNX models to integer graphs for small NPUs, with a simulator exact to the bit.

    import lingeronnx as lo
    q = lo.quantize("model.onnx", "calib.npz", platform="venus")
    q.save("model_quant.onnx")
    logits = lo.Session("model_quant.onnx").run(None, {"input": x})

Importing the package loads none of the heavy dependencies; names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Check": "analysis.check",
    "ConfigError": "errors",
    "ConstraintError": "errors",
    "DataError": "errors",
    "Evaluation": "evaluation",
    "InternalError": "errors",
    "LingerOnnxError": "errors",
    "ModelError": "errors",
    "Plan": "plan",
    "QParams": "plan",
    "QuantConfig": "config",
    "QuantizedModel": "api",
    "RepairError": "errors",
    "Session": "session",
    "Violation": "ops",
    "check": "api",
    "check_model": "schemas",
    "convert": "api",
    "evaluate": "evaluation",
    "finetune": "tuning",
    "export": "api",
    "fix_dequant": "api",
    "quantize": "api",
    "reference_ops": "reference",
    "register_schemas": "schemas",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lingeronnx' has no attribute '{name}'")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
