"""`check_qat_model`: find structural problems of a model before evaluating its accuracy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from .. import api
from ..analysis.check.structure import RESULT_FILE, Structure
from ..common.errors import ConfigError
from ..common.escaping import escape_invisible
from ..common.files import ensure_folder, temporary_folder, write_text
from ..ir import ir
from ..operators.lowerings import Violation
from ..quantization import QuantizedModel
from ..runtime.session import Session
from ..targets import Target, get_target
from .inputs import Model, TorchModule, convert_inputs, export_if_module, is_module

__all__ = ["check_qat_model"]


def check_qat_model(
    model: Model,
    example_inputs: object,
    save_results: bool = False,
    out_dir: str | os.PathLike[str] | None = None,
    platform: str | Target | None = None,
) -> Structure:
    """Find structural problems of a model, print them and return them.

    Parameters
    ----------
    model
        A path or graph, float (planned on the example inputs) or integer; a result of `quantize`;
        or a torch module, whose submodules are counted by calls in the second part of the result.
        Of a net after `lo.torch.init` the integer graph is checked.
    example_inputs
        Inputs of the model.
    save_results
        Whether to write `model_check_result.txt`, in five parts, into `out_dir`.
    out_dir
        Folder for the result, by default the current one. A given folder implies `save_results`.
    platform
        Platform; by default that of an integer graph, else the default chip.

    Raises
    ------
    ConfigError
        If `platform` is not the one that `model` is quantized for.
    """
    with temporary_folder() as temporary:
        onnx_model = export_if_module(model, example_inputs, temporary / "model.onnx")
        if isinstance(onnx_model, Session):
            onnx_model = onnx_model.model
    violations: Sequence[Violation] = ()
    if isinstance(onnx_model, QuantizedModel):
        if platform is not None and get_target(platform) != onnx_model.platform:
            raise ConfigError(
                f"platform: the model is quantized for {onnx_model.platform.name}; omit the "
                "argument"
            )
        structure = api.structure(onnx_model)
    else:
        calib = convert_inputs(example_inputs, _input_names(ir.as_model(onnx_model)))
        violations = api.check(onnx_model, calib=calib, platform=platform)
        structure = api.structure(onnx_model, calib=calib, violations=violations, platform=platform)
    if is_module(model):
        structure = _add_call_counts(structure, model, example_inputs)
    for line in [*map(str, violations), *structure.lines()] or ["no problems found"]:
        print(escape_invisible(line))
    if save_results or out_dir is not None:
        write_text(ensure_folder(out_dir or ".") / RESULT_FILE, structure.text())
    return structure


def _input_names(graph: ir.Model) -> list[str]:
    """Return the names of the graph inputs that have no constant value, in order."""
    return [str(value.name) for value in graph.graph.inputs if value.const_value is None]


def _add_call_counts(
    structure: Structure, module: TorchModule, example_inputs: object
) -> Structure:
    """Return `structure` with the calls of a torch module's submodules added to the use counts.

    Each entry is (path, type, how often one call of the module calls it).
    """
    from ..torch.training_api.observed_net import count_float_calls

    call_counts = [
        (path, module_type, str(count))
        for path, module_type, count in count_float_calls(module, example_inputs)
    ]
    return replace(structure, use_counts=[*structure.use_counts, *call_counts])
