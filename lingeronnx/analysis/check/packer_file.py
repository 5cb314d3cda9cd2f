"""An integer graph as a file for the packer.

What the file itself says, beside the limits of its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx

from ...errors import ModelError, split_words
from ...flow.report import FloatNode, split_float_nodes
from ...flow.report.merges import find_merge_options
from ...flow.report.program import build_program_report
from ...formats import DEQUANT, INTEGER_OPS, is_quantized_domain
from ...formats.node_validation import check_nodes
from ...graph import ir, onnx_file
from ...graph.attributes import check_attributes
from ...graph.name_mapping import restore_user_names
from ...ops.macs import count_macs
from ...plan.synthetic_calibration import collect_calibration_warnings
from ...run.chip_part import extract_chip_part, is_host_dequant
from ...run.integer.runner import detect_target
from ...targets import DEFAULT, DEFAULT_LATENCY_OPTIONS, LatencyOptions, Target, get_target
from .integer_graph import check_integer
from .report import Check

__all__ = ["check_packed", "is_packable"]


def is_packable(proto: onnx.ModelProto) -> bool:
    """Whether a file holds operators that only integer graphs have."""
    own = {form.name for form in INTEGER_OPS if form.domain}
    return any(node.op_type in own for node in proto.graph.node)


def check_packed(
    proto: onnx.ModelProto,
    target: Target | None = None,
    packer_args: str | Iterable[str] | None = None,
    latency_options: LatencyOptions = DEFAULT_LATENCY_OPTIONS,
) -> Check:
    """Return what breaks limits in an integer graph, and what the packer and the chip make of it.

    target : default the chip that the graph names. packer_args : words or one line; default those
    chosen for the graph. latency_options : what is asked of time; that of a graph in several parts
    is the sum of the chip's. A graph that no one else would read is judged all the same, as the
    packer reads it.
    """
    onnx_file.check_string_fields(proto)
    check_attributes(proto)
    notes: list[str] = []
    graph: ir.Model | None = None
    graph_read: ir.Model | None = None
    try:
        graph = ir.from_proto(proto)
        graph_read = restore_user_names(graph)
    except ModelError as error:
        notes = [str(error)]
    if graph is not None:
        check_nodes(graph)
    if target is None:
        target = _named_target(proto) if graph is None else detect_target(graph)
    target = latency_options.apply_to(target)
    check = (
        Check(target.name, "integer", (), notes=notes)
        if graph_read is None
        else check_integer(graph_read, target)
    )
    if graph_read is not None:
        check = replace(
            check,
            notes=[
                *(f"WARNING: {warning}" for warning in collect_calibration_warnings(graph_read)),
                *check.notes,
            ],
        )
    if not target.has_packer:
        return check
    between, host = ([], []) if graph is None else _split_float_nodes(graph)
    if graph is not None and between and packer_args is None:
        return _add_parts(check, graph, target, latency_options, [*between, *host])
    part = (
        proto
        if graph is None or between or not host
        else ir.to_proto(extract_chip_part(graph, target))
    )
    words = None
    if packer_args is not None:
        words = tuple(split_words(packer_args) if isinstance(packer_args, str) else packer_args)
    choice = target.evaluate_packing(part, words)
    return replace(
        check,
        choice=choice,
        time=latency_options.estimate_call(
            target, [choice.verdict], has_host_parts=bool(between or host)
        ),
    )


def _add_parts(
    check: Check,
    graph: ir.Model,
    target: Target,
    latency_options: LatencyOptions,
    floats: Sequence[FloatNode],
) -> Check:
    """Return `check` with the parts in which a graph runs that float operators stand in the middle of."""
    program, _ = build_program_report(graph, target, target.vendor.names(graph))
    on_chip = sum(part.macs for part in program.chip)
    told = {entry.node for entry in floats}
    on_host = sum(count_macs(node) for node in graph.graph if str(node.name) in told)
    return replace(
        check,
        program=program,
        host_nodes=floats,
        chip_mac_share=on_chip / (on_chip + on_host) if on_chip else 0.0,
        merges=find_merge_options([entry.node for entry in floats], graph, target),
        time=latency_options.estimate_call(target, program.verdicts, has_host_parts=True),
    )


def _named_target(proto: onnx.ModelProto) -> Target:
    """Return the chip that a node names, else the first chip."""
    names = [
        a.s.decode(errors="replace")
        for node in proto.graph.node
        for a in node.attribute
        if a.name == "platform"
    ]
    return get_target(names[0]) if names else DEFAULT


def _split_float_nodes(graph: ir.Model) -> tuple[list[FloatNode], list[FloatNode]]:
    """Return the float nodes between integer ones, and those before the first or behind the last."""
    whole = {
        id(node) for node in graph.graph if is_quantized_domain(node) and not is_host_dequant(node)
    }
    integers = {
        str(v.name)
        for node in graph.graph
        if id(node) in whole and node.op_type != DEQUANT.name
        for v in node.outputs
    }
    for node in graph.graph:  # standard operators on integers
        if id(node) not in whole and any(v is not None and v.name in integers for v in node.inputs):
            whole.add(id(node))
            integers.update(str(v.name) for v in node.outputs)
    return split_float_nodes(graph, {}, whole)
