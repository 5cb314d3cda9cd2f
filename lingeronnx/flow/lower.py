"""Lowering: a normalised float graph and a plan become the integer graph of the `thinker` format, and the way back.

The integer graph's attributes carry every scale: `extract_plan` reads the plan back from them.
Which float tensor an integer one holds is returned by `lower`, and read off a file by `borders`; a
name says nothing.
"""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError, ModelError
from ..formats import REQUANT, find_integer_op, is_quantized_domain, read_attributes
from ..graph import ir
from ..graph.attributes import get_number
from ..lowering import LoweringContext, LoweringResult
from ..plan import Affine, Plan, Transform
from ..plan.synthetic_calibration import is_synthetic
from ..run.float_names import map_to_float_names
from ..run.provenance import load_quantize_settings
from ..targets import DEFAULT, Target
from .partition import Partition

__all__ = ["check_zero_points", "extract_plan", "lower"]


def lower(partition: Partition, plan: Plan, target: Target) -> LoweringResult:
    """Return the integer graph of the normalised float graph of `partition` under `plan`.

    It is left as it is.
    Raises ModelError when the plan lacks a tensor, ConfigError for a zero point that an operator
    does not take.
    """
    check_zero_points(plan, partition, target)
    return LoweringContext(partition.graph, plan, target, partition.ops).run()


def check_zero_points(plan: Plan, partition: Partition, target: Target) -> None:
    """Raise ConfigError for a zero point in `plan` that an operator of `partition` on `target` does not take."""
    shifted = {name: q for name, q in plan.tensors.items() if q.shifted}
    if not shifted:
        return
    symmetric, activations = partition.symmetric_tensors(target), set(partition.activations)
    for name, q in shifted.items():
        what = (
            "a weight"
            if name not in activations
            else f"{q.bits} bits"
            if q.bits > 8
            else symmetric.get(name)
        )
        if what is not None:
            raise ConfigError(
                f"the plan holds '{name}' with zero point {int(q.zero_points.max())}; {what} takes "
                "0 only"
            )


def extract_plan(graph: ir.Model) -> Plan:
    """Read the plan back from an integer graph: its attributes are the only truth."""
    tensors: dict[str, Affine] = {}
    known: dict[str, Affine] = {}
    names = map_to_float_names(graph)
    chip = graph.metadata_props.get("lingeronnx.platform", DEFAULT.name)
    for node in graph.graph:
        form = find_integer_op(node)
        if form is None or not (
            is_quantized_domain(node)
            or (node.inputs[0] is not None and node.inputs[0].name in known)
        ):
            continue
        attrs = read_attributes(form, node)
        source = node.inputs[0]
        before = known.get(str(source.name)) if source is not None else None
        written = form.output_qparams(attrs, [before])
        if written is not None:
            name = ir.output_name(node)
            q = known[name] = written.changed(
                bits=form.bits(attrs) or (8 if before is None else before.bits)
            )
            if form is not REQUANT:
                tensors[names.get(name, name)] = q
        for key, index in form.weight_scales.items():
            if key in attrs and index < len(node.inputs) and node.inputs[index] is not None:
                tensors[ir.input_name(node, index)] = form.weight_qparams(attrs, node, key)
        operand = (
            ir.const_value(node.inputs[1]) if "scale_y" in attrs and len(node.inputs) > 1 else None
        )
        if operand is not None:
            tensors[ir.input_name(node, 1)] = Affine(
                get_number(attrs, "scale_y"), 8 * operand.dtype.itemsize
            )
    stored_transforms = ir.read_json_metadata(graph, "lingeronnx.transforms")
    try:
        transforms = {
            name: Transform(tuple(_parse_factors(entry)))
            for name, entry in stored_transforms.items()
        }
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            "the metadata 'lingeronnx.transforms' are not as they were written; quantize again"
        ) from error
    floats = {str(n.name): "float in the file" for n in graph.graph if find_integer_op(n) is None}
    powers = all(q.power_of_two for q in tensors.values())
    return Plan(
        platform=chip,
        mode="q-value" if powers else "max-value",
        tensors=tensors,
        transforms=transforms,
        floats=floats,
        synthetic=is_synthetic(graph),
        settings=load_quantize_settings(graph),
    )


def _parse_factors(entry: list[Any]) -> list[float]:
    """Return the factors of a transform; older files have a list of them and an offset of 0."""
    return entry[0] if isinstance(entry[0], list) else entry
