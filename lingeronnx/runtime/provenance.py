"""Read where an integer graph comes from: its float model, its settings, its tensors' float names.

The origin is recorded to detect whether the graph was changed since it was quantized. It is stored
in the metadata under `METADATA_KEY`: {"from": digest of the float model, "graph": digest of the
integer graph, "settings": settings of `quantize` that its scales depend on, without defaults,
"fixed": inputs that were replaced by constants, "fixed_batch": true if the float model fixes the
number of samples}. The plan has the settings as well. Digests are of
the computation of the outputs (`ir.digests`), independent of the names of nodes and inner
tensors, with fixed inputs as constants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from ..ir import ir
from ..ir.digests import compute_output_digest
from ..ir.fixed_inputs import fix_inputs
from ..operators.integer_ops import DEQUANT, QUANT, REQUANT, find_integer_op

__all__ = [
    "METADATA_KEY",
    "apply_fixed_inputs",
    "has_fixed_batch",
    "is_made_from",
    "load_fixed_arrays",
    "load_fixed_inputs",
    "load_quantize_settings",
    "load_source_digest",
    "map_to_float_names",
    "store_provenance",
]

METADATA_KEY = "lingeronnx.made"


def store_provenance(
    model: ir.Model,
    source: str,
    settings: Mapping[str, object] | None = None,
    fixed: Mapping[str, np.ndarray | Sequence[float]] | None = None,
    fixed_batch: bool = False,
) -> None:
    """Record in integer graph `model` the float model it is from, and its own current state.

    Nothing is recorded without `source`, or if the graph has no digest.

    Parameters
    ----------
    model
        The integer graph; its metadata are changed.
    source
        Digest of the float model.
    settings
        Settings of `quantize`, in JSON types; None if they are not known.
    fixed
        {input: values} of inputs that are constants now.
    fixed_batch
        Whether the float model fixes the number of samples.
    """
    digest = compute_output_digest(model)
    if not digest or not source:
        return
    record: dict[str, object] = {"from": source, "graph": digest}
    if settings is not None:
        record["settings"] = dict(settings)
    if fixed:
        record["fixed"] = {name: np.ravel(values).tolist() for name, values in fixed.items()}
    if fixed_batch:
        record["fixed_batch"] = True
    model.metadata_props[METADATA_KEY] = json.dumps(record, sort_keys=True)


def apply_fixed_inputs(model: ir.Model, integer_model: ir.Model) -> ir.Model:
    """Return a copy of float model `model` with constants for the inputs that were fixed.

    These are recorded in `integer_model`. `model` itself is returned if it has none of these
    inputs.
    """
    inputs = {value.name for value in model.graph.inputs if value.const_value is None}
    fixed = {
        name: values for name, values in load_fixed_inputs(integer_model).items() if name in inputs
    }
    if not fixed:
        return model
    changed_model = model.clone()
    fix_inputs(changed_model, fixed)
    return changed_model


def load_fixed_inputs(model: ir.Model) -> dict[str, list[float]]:
    """Return input name -> values, for inputs of the float model that are constants of `model`.

    {} if none are recorded.
    """
    fixed = ir.read_json_metadata(model, METADATA_KEY).get("fixed")
    return fixed if isinstance(fixed, dict) else {}


def load_fixed_arrays(model: ir.Model | None) -> dict[str, np.ndarray]:
    """Return the values of `load_fixed_inputs` as arrays of one axis; {} without a model.

    Data that were made for the float model may contain these inputs (`Data`).
    """
    if model is None:
        return {}
    return {name: np.array(values) for name, values in load_fixed_inputs(model).items()}


def has_fixed_batch(model: ir.Model) -> bool:
    """Whether the float model of the integer graph `model` fixes the number of samples.

    False if that is not recorded.
    """
    return ir.read_json_metadata(model, METADATA_KEY).get("fixed_batch") is True


def load_quantize_settings(model: ir.Model) -> dict[str, object] | None:
    """Return the settings of `quantize` recorded in `model`; None if there are none."""
    settings = ir.read_json_metadata(model, METADATA_KEY).get("settings")
    return settings if isinstance(settings, dict) else None


def load_source_digest(model: ir.Model) -> str:
    """Return the recorded digest of the float model that integer graph `model` is from.

    "" if there is none, or the graph was changed since it was recorded.
    """
    record = ir.read_json_metadata(model, METADATA_KEY)
    if record and record.get("graph") == compute_output_digest(model):
        return str(record.get("from", ""))
    return ""


def is_made_from(model: ir.Model | None, source: ir.Model | None) -> bool:
    """Whether `model` was quantized from `source`, and neither was changed since.

    False if one is None or nothing is recorded.
    """
    origin = "" if model is None else load_source_digest(model)
    return bool(origin) and source is not None and origin == compute_output_digest(source)


def map_to_float_names(graph: ir.Model) -> dict[str, str]:
    """Map each integer tensor at a Quant or Dequant to the float tensor that it represents.

    A tensor with several Dequants is mapped to the output of the first. A Requant only changes the
    scale, so its output is mapped like its input, or else to its input. Other integer tensors are
    missing.
    """
    float_names: dict[str, str] = {}
    requants = []
    for node in graph.graph:
        integer_op = find_integer_op(node)
        if integer_op is None or not node.inputs or node.inputs[0] is None:
            continue
        if integer_op is QUANT:
            float_names[ir.output_name(node)] = ir.input_name(node)
        elif integer_op is DEQUANT:
            float_names.setdefault(ir.input_name(node), ir.output_name(node))
        elif integer_op is REQUANT:
            requants.append(node)
    for node in requants:
        source = ir.input_name(node)
        float_names.setdefault(ir.output_name(node), float_names.get(source, source))
    return float_names
