"""An integer graph as a file for the packer: what the file itself says, beside the limits of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx

from ...errors import ModelError, words_of
from ...flow.report import FloatNode, float_nodes
from ...flow.report.merges import merges
from ...flow.report.program import program_of
from ...formats import DEQUANT, FORMATS, is_quantized_domain
from ...formats.sound import check_nodes
from ...graph import ir, onnxfile
from ...graph.attributes import check_attributes
from ...graph.names import restored
from ...ops.macs import macs
from ...plan.synthetic import warnings_of
from ...run.integer.runner import target_of
from ...run.part import chip_part, scaled_by_host
from ...targets import DEFAULT, UNASKED, Target, TimeWish, by_name
from .integer_graph import check_integer
from .report import Check

__all__ = ["check_packed", "is_packable"]


def is_packable(proto: onnx.ModelProto) -> bool:
    """Whether a file holds operators that only integer graphs have."""
    own = {form.name for form in FORMATS if form.domain}
    return any(node.op_type in own for node in proto.graph.node)


def check_packed(
    proto: onnx.ModelProto,
    row: Target | None = None,
    packer_args: str | Iterable[str] | None = None,
    wish: TimeWish = UNASKED,
) -> Check:
    """Return what breaks limits in an integer graph, and what the packer and the chip make of it.

    row : default the chip that the graph names. packer_args : words or one line; default those chosen for the graph.
    wish : what is asked of time; that of a graph in several parts is the sum of the chip's.
    A graph that no one else would read is judged all the same, as the packer reads it.
    """
    onnxfile.check_texts(proto)
    check_attributes(proto)
    notes: list[str] = []
    graph: ir.Graph | None = None
    graph_read: ir.Graph | None = None
    try:
        graph = ir.from_proto(proto)
        graph_read = restored(graph)
    except ModelError as error:
        notes = [str(error)]
    if graph is not None:
        check_nodes(graph)
    if row is None:
        row = _named(proto) if graph is None else target_of(graph)
    row = wish.target(row)
    check = Check(row.name, "integer", (), notes=notes) if graph_read is None else check_integer(graph_read, row)
    if graph_read is not None:
        check = replace(check, notes=[*(f"WARNING: {warning}" for warning in warnings_of(graph_read)), *check.notes])
    if not row.packs:
        return check
    between, host = ([], []) if graph is None else _floats(graph)
    if graph is not None and between and packer_args is None:
        return _in_parts(check, graph, row, wish, [*between, *host])
    part = proto if graph is None or between or not host else ir.to_proto(chip_part(graph, row))
    words = None
    if packer_args is not None:
        words = tuple(words_of(packer_args) if isinstance(packer_args, str) else packer_args)
    choice = row.verdict(part, words)
    return replace(check, choice=choice, time=wish.told(row, [choice.verdict], host=bool(between or host)))


def _in_parts(check: Check, graph: ir.Graph, row: Target, wish: TimeWish, floats: Sequence[FloatNode]) -> Check:
    """Return `check` with the parts in which a graph runs that float operators stand in the middle of."""
    program, _ = program_of(graph, row, row.vendor.names(graph))
    on_chip = sum(part.macs for part in program.chip)
    told = {entry.node for entry in floats}
    on_host = sum(macs(node) for node in graph.graph if str(node.name) in told)
    return replace(
        check,
        program=program,
        on_host=floats,
        share=on_chip / (on_chip + on_host) if on_chip else 0.0,
        merges=merges([entry.node for entry in floats], graph, row),
        time=wish.told(row, program.verdicts, host=True),
    )


def _named(proto: onnx.ModelProto) -> Target:
    """Return the chip that a node names, else the first chip."""
    names = [a.s.decode(errors="replace") for node in proto.graph.node for a in node.attribute if a.name == "platform"]
    return by_name(names[0]) if names else DEFAULT


def _floats(graph: ir.Graph) -> tuple[list[FloatNode], list[FloatNode]]:
    """Return the float nodes between integer ones, and those before the first or behind the last."""
    whole = {id(node) for node in graph.graph if is_quantized_domain(node) and not scaled_by_host(node)}
    integers = {
        str(v.name) for node in graph.graph if id(node) in whole and node.op_type != DEQUANT.name for v in node.outputs
    }
    for node in graph.graph:  # standard operators on integers
        if id(node) not in whole and any(v is not None and v.name in integers for v in node.inputs):
            whole.add(id(node))
            integers.update(str(v.name) for v in node.outputs)
    return float_nodes(graph, {}, whole)
