"""Check an integer graph as a file for the packer: the file itself, and limits of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx

from ...common.errors import ModelError, split_words
from ...ir import ir, onnx_file
from ...ir.attributes import check_attributes
from ...ir.name_mapping import restore_user_names
from ...ir.plan.synthetic_calibration import collect_calibration_warnings
from ...operators.chip_part import extract_chip_part, is_host_dequant
from ...operators.integer_ops import DEQUANT, INTEGER_OPS, is_quantized_domain
from ...operators.macs import count_macs
from ...operators.node_validation import check_nodes
from ...quantization.report import FloatNode, split_float_nodes
from ...quantization.report.merges import find_merge_options
from ...quantization.report.program import build_program_report
from ...runtime.integer.runner import detect_target
from ...runtime.version_compatibility import VersionedPart, compare_versions
from ...targets import (
    DEFAULT,
    DEFAULT_LATENCY_OPTIONS,
    LatencyOptions,
    Target,
    get_target,
    require_measured,
)
from .integer_graph import check_integer
from .report import Check

__all__ = ["check_packed", "is_packable"]


def is_packable(proto: onnx.ModelProto) -> bool:
    """Whether a node of the file's main graph has the type of an integer operator.

    It is then an integer graph, to be judged as the packer reads it. Integer operators that are in
    the standard domain, such as Relu, do not count.
    """
    integer_op_types = {form.name for form in INTEGER_OPS if form.domain}
    return any(node.op_type in integer_op_types for node in proto.graph.node)


def check_packed(
    proto: onnx.ModelProto,
    target: Target | None = None,
    packer_args: str | Iterable[str] | None = None,
    latency_options: LatencyOptions = DEFAULT_LATENCY_OPTIONS,
    allow_unmeasured: bool = False,
) -> Check:
    """Check an integer graph against limits, and evaluate how the packer and the chip process it.

    A file that cannot be loaded as a graph is still judged as the packer reads it: the reason is a
    note, and limits are not checked. A graph with float operators between integer ones is judged in
    parts, unless `packer_args` are given.

    Parameters
    ----------
    proto
        The file.
    target
        The chip; default the one named by the graph.
    packer_args
        Arguments of the packer, as a list or one line; default those chosen for the graph.
    latency_options
        Clock and latency budget. The latency of a graph in several parts is the sum of the chip's
        parts.
    allow_unmeasured
        Allow executors and operators that are known from reading only; a note says so.

    Raises
    ------
    ConfigError
        If the executor or an operator was never measured and this is not allowed.
    """
    onnx_file.check_string_fields(proto)
    check_attributes(proto)
    graph: ir.Model | None = None
    user_graph: ir.Model | None = None  # with the user's names
    notes: list[str] = []
    try:
        graph = ir.from_proto(proto)
        user_graph = restore_user_names(graph)
    except ModelError as error:
        notes = [str(error)]
    if graph is not None:
        check_nodes(graph)
    if target is None:
        target = _named_target(proto) if graph is None else detect_target(graph)
    operators = [node.op_type for node in proto.graph.node]
    unmeasured = require_measured(target, operators, allow_unmeasured)
    target = latency_options.apply_to(target)
    if user_graph is None:
        check = Check(target.name, "integer", (), notes=notes)
    else:
        check = check_integer(user_graph, target)
        warnings = [f"WARNING: {text}" for text in collect_calibration_warnings(user_graph)]
        check = replace(check, notes=[*warnings, *check.notes])
    unmeasured_notes = [f"WARNING: {line}" for line in unmeasured]
    check = replace(check, notes=[*unmeasured_notes, *check.notes])
    if not target.has_packer:
        return check
    fallbacks, host = ([], []) if graph is None else _split_float_nodes(graph)
    if graph is not None and fallbacks and packer_args is None:
        return _add_parts(check, graph, target, latency_options, [*fallbacks, *host])
    part = proto
    if graph is not None and host and not fallbacks:
        part = ir.to_proto(extract_chip_part(graph, target))
    choice = target.evaluate_packing(part, _parse_packer_args(packer_args))
    time = latency_options.estimate_call(
        target, [choice.verdict], has_host_parts=bool(fallbacks or host)
    )
    parts = []
    if graph is not None and choice.verdict.is_chip_ready:
        parts.append(VersionedPart(ir.from_proto(part), choice))
    versions = compare_versions(parts, target)
    return replace(check, choice=choice, time=time, versions=versions)


def _parse_packer_args(packer_args: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Split packer arguments, given as one line or as several words, into a tuple.

    None, for the default arguments, is returned as it is.
    """
    if packer_args is None:
        return None
    return tuple(split_words(packer_args) if isinstance(packer_args, str) else packer_args)


def _add_parts(
    check: Check,
    graph: ir.Model,
    target: Target,
    latency_options: LatencyOptions,
    floats: Sequence[FloatNode],
) -> Check:
    """Return a copy of `check` with the parts of a graph that has float operators between integers.

    Sets the program, the float nodes (`floats`), the chip's share of the MACs (0 if the chip has
    none), options to merge parts, and the time of a call.
    """
    program, parts = build_program_report(graph, target, target.vendor.names(graph))
    packed_parts = [VersionedPart(part.graph, part.choice) for part in parts if part.chip]
    float_names = {entry.node for entry in floats}
    chip_macs = sum(part.macs for part in program.chip)
    host_macs = sum(count_macs(node) for node in graph.graph if str(node.name) in float_names)
    return replace(
        check,
        program=program,
        host_nodes=floats,
        chip_mac_share=chip_macs / (chip_macs + host_macs) if chip_macs else 0.0,
        merges=find_merge_options([entry.node for entry in floats], graph, target),
        time=latency_options.estimate_call(target, program.verdicts, has_host_parts=True),
        versions=compare_versions(packed_parts if program.runs_correctly else (), target),
    )


def _named_target(proto: onnx.ModelProto) -> Target:
    """Return the chip named by the first node with an attribute `platform`, else the default chip.

    Raises ConfigError for an unknown name.
    """
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "platform":
                return get_target(attribute.s.decode(errors="replace"))
    return DEFAULT


def _split_float_nodes(graph: ir.Model) -> tuple[list[FloatNode], list[FloatNode]]:
    """Return the float nodes between integer nodes, and those before or after all of them.

    Integer nodes are those of the quantized domain, but for a Dequant on the host, and standard
    operators that read an integer tensor, directly or over others.
    """
    integer_ids: set[int] = set()
    integers: set[str] = set()
    for node in graph.graph:
        if not is_quantized_domain(node) or is_host_dequant(node):
            continue
        integer_ids.add(id(node))
        if node.op_type != DEQUANT.name:
            integers.update(str(value.name) for value in node.outputs)
    for node in graph.graph:  # standard operators on integers
        reads_integers = any(value is not None and value.name in integers for value in node.inputs)
        if id(node) not in integer_ids and reads_integers:
            integer_ids.add(id(node))
            integers.update(str(value.name) for value in node.outputs)
    return split_float_nodes(graph, {}, integer_ids)
