"""`check_qat_model`: what looks wrong with a model before its accuracy is looked at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from .. import api
from ..analysis.check.structure import RESULT_FILE, Structure
from ..errors import ConfigError
from ..files import ensure_folder, temporary_folder, write_text
from ..flow import QuantizedModel
from ..graph import ir
from ..ops import Violation
from ..run.session import Session
from ..targets import Target, get_target
from .inputs import Model, convert_inputs, export_if_module, is_module

__all__ = ["check_qat_model"]


def check_qat_model(
    model: Model,
    example_inputs: object,
    save_results: bool = False,
    out_dir: str | os.PathLike[str] | None = None,
    platform: str | Target | None = None,
) -> Structure:
    """Print what looks wrong with a model before its accuracy is looked at, and return all of it.

    model : a path or graph, float (planned on the example inputs) or integer; what `quantize`
    returned; a torch module. save_results : write `model_check_result.txt`, in five parts, into
    `out_dir`, default the current folder; a folder that is given says so too. platform : as
    `lo.check` takes it. Of a torch module the second part also counts how often one call of it
    calls each of its modules.
    """
    with temporary_folder() as temporary:
        given = export_if_module(model, example_inputs, temporary / "model.onnx")
        if isinstance(given, Session):
            given = given.model
    violations: Sequence[Violation] = ()
    if isinstance(given, QuantizedModel):
        if platform is not None and get_target(platform) != given.platform:
            raise ConfigError(
                f"platform: the model is quantized for {given.platform.name}; leave it out"
            )
        found = api.structure(given)
    else:
        graph = ir.as_model(given)
        calib = convert_inputs(
            example_inputs, [str(v.name) for v in graph.graph.inputs if v.const_value is None]
        )
        violations = api.check(given, calib=calib, platform=platform)
        found = api.structure(given, calib=calib, violations=violations, platform=platform)
    if is_module(model):
        from ..torch.exporter.hooks import count_module_calls

        counted = [
            (path, kind, str(times))
            for path, kind, times in count_module_calls(model, example_inputs)
        ]
        found = replace(found, use_counts=[*found.use_counts, *counted])
    for line in [*map(str, violations), *found.lines()] or ["nothing looks wrong"]:
        print(line)
    if save_results or out_dir is not None:
        write_text(ensure_folder(out_dir or ".") / RESULT_FILE, found.text())
    return found
