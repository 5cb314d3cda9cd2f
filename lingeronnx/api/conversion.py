"""Convert integer graphs to other dialects, and repair legacy ones."""

from __future__ import annotations

import os
from dataclasses import replace

from ..common.errors import ConfigError
from ..interchange.convert import ConversionResult, check_conversion_target
from ..interchange.convert import convert as convert_graph
from ..interchange.qdq.qdq_writer import PLATFORM_KEY
from ..interchange.qdq.qoperators import is_quantized
from ..interchange.repair import Repaired
from ..interchange.repair import fix_dequant as repair
from ..ir import ir
from ..ir.name_mapping import restore_user_names
from ..operators.invalid_models import explain_invalid_models
from ..operators.node_validation import check_nodes
from ..quantization import require_calibrated_scales
from ..targets import Target
from .quantization import quantize

__all__ = ["convert", "fix_dequant"]


@explain_invalid_models
def convert(
    model: ir.ModelLike,
    to: str,
    platform: str | Target | None = None,
    exact: bool = False,
    functions: bool = False,
) -> ConversionResult:
    """Convert an integer graph to the dialect of another generation, or to standard ONNX.

    A model that another tool quantized (QuantizeLinear, QLinearConv) first becomes an integer graph
    with its own scales.

    Parameters
    ----------
    model
        A path, or a graph in memory, which is not modified.
    to
        "thinker" (generation 1), "linger" (generation 3), "qdq" (QuantizeLinear and
        DequantizeLinear) or "qoperator" (also QLinearConv and QLinearMatMul).
    platform
        Platform of a model that another tool quantized. Default: the platform that it was
        converted from, else venus.
    exact
        With "qdq": reproduce the simulator's integers bit for bit in onnxruntime. Half a step is
        added to every sum before a QuantizeLinear, so that ties round up. Operators that are not
        exact are listed.
    functions
        With `exact`: whether to write such operators as model-local functions on integers.

    Raises
    ------
    ConfigError
        For an unknown `to`, for a platform if the graph has one, and for a model of another tool
        without scales.
    ModelError
        For a float graph, and for nodes without counterpart, all of which are listed.
    """
    check_conversion_target(to, exact, functions)
    loaded = restore_user_names(ir.as_model(model))
    if not is_quantized(loaded):
        check_nodes(loaded)
        if platform is not None:
            raise ConfigError(
                "convert: a platform is only for models with QuantizeLinear; this graph has one"
            )
        return convert_graph(loaded, to, exact=exact, functions=functions)
    quantized = quantize(loaded, platform=platform or loaded.metadata_props.get(PLATFORM_KEY))
    require_calibrated_scales(
        "convert has no data; quantize --calib DATA determines missing scales",
        loaded,
        quantized.plan,
    )
    if to == "thinker":
        return ConversionResult(quantized.graph, tuple(quantized.report.notes))
    converted = convert_graph(quantized.graph, to, exact=exact, functions=functions)
    return replace(converted, notes=(*quantized.report.notes, *converted.notes))


def fix_dequant(path: str | os.PathLike[str], check: bool = False) -> Repaired:
    """Repair a legacy quantized graph.

    Missing, misplaced or wrong Dequants, lost edges, wrong types.
    Nothing is written before `save`.

    Parameters
    ----------
    path
        The file to repair, which is left as it is.
    check
        Whether to run the repaired graph on random inputs; `checked` tells how it went.

    Raises
    ------
    ModelError
        For a file that is no graph.
    RepairError
        For a graph that cannot be repaired, or where there is more than one way; its `report` holds
        all findings.
    """
    return repair(path, check)
