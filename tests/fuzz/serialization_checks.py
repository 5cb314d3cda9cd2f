"""Checks of what a graph is written as: files, other generations, standard ONNX, parts for a board,
damaged copies.
"""

import tempfile
from pathlib import Path
from random import Random

import numpy as np
import onnx

import lingeronnx as lo
from lingeronnx.common.errors import LingerOnnxError, ModelError
from lingeronnx.interchange.qdq.difference import measure_differences
from lingeronnx.interchange.qdq.qdq_writer import write_qdq
from lingeronnx.interchange.repair import repair_model
from lingeronnx.ir import ir
from tests.fuzz.quantized_case import copied, cut, named, run_float, taps, unlike
from tests.repair import damage
from tests.repair.helpers import outputs as run_proto

__all__ = ["again", "deploy", "file", "linger", "mended", "qdq"]


def file(made):
    """The written files give what the graph in memory gives, for every tensor."""
    with tempfile.TemporaryDirectory() as folder:
        done = made.result.write(Path(folder) / "net.onnx")
        have = taps(lo.Session(done.graph), made.feeds)
        if wrong := unlike(made.tensors, have):
            yield f"the file: {named(made.proto, wrong)}"
        if done.chip is not None:
            chip = lo.Session(done.chip)
            fed = {
                value.name: made.tensors.get(value.name, made.feeds.get(value.name))
                for value in chip.inputs
            }
            have = taps(chip, fed)
            integers = [n for n, a in have.items() if a.dtype.kind in "iu" and n in made.tensors]
            if wrong := unlike(made.tensors, have, integers):
                yield f"the part for the packer: {named(made.proto, wrong)}"
        lo.check_model(done.graph)


def linger(made):
    """In the other generation's names the executor computes the same; back again the graph is the
    same.
    """
    if not made.session.is_integer or made.platform == "generic":
        return
    try:
        there = lo.convert(made.result.graph, "linger").graph
    except ModelError as error:
        if "no counterpart" not in str(error):
            raise
        return
    back = lo.convert(there, "thinker").graph
    kinds = [node.op_type for node in made.proto.graph.node]
    runs = {"there and back": lo.Session(back)}
    if "LayerNormInt" not in kinds:  # its normalised numbers have more bits there, as a note says
        runs["linger"] = lo.Session(there, "executor")
    for what, session in runs.items():
        have = taps(session, made.feeds)
        kept = [
            name for name in made.tensors if name in have or name in made.outputs
        ]  # a curve takes its Requant in
        if wrong := unlike(made.tensors, have, kept):
            yield f"{what} computes another {named(made.proto, wrong)}"
    if [node.op_type for node in back.graph] != kinds:
        yield "there and back: other operators"


def qdq(made):
    """In standard ONNX every operator is within one count, but for those that are told.

    Behind float operators onnxruntime is not asked: it rounds their weights to int8 where Q and DQ
    stand around them.
    """
    if not made.session.is_integer:
        return
    try:
        found = write_qdq(made.result.graph)
    except ModelError as error:
        if "no counterpart" not in str(error):
            raise
        return
    onnx.checker.check_model(ir.to_proto(found.graph), full_check=True)
    inputs = {value.name for value in made.case.model.graph.input}
    behind = {
        name
        for node in made.proto.graph.node
        if node.op_type == "Quant" and node.input[0] not in inputs
        for name in node.output
    }
    for line in measure_differences(made.result.graph, found, cut(made.feeds, 0, 1)):
        if not line.computes_in_float and line.max_steps > 1 and line.tensor not in behind:
            yield f"{line.operator} {line.tensor}: {line.max_steps} counts"


def again(made):
    """What is written as QuantizeLinear and quantized again for the same platform gives the same
    integers.

    docs/explanation/qdq.md says for which graphs: no float operators between, and none of these, of
    whose pieces new ones are made.
    """
    kinds = {node.op_type for node in made.proto.graph.node}
    pieces = {
        "LSTMInt",
        "GRUInt",
        "GluInt",
        "iqTable",
        "SoftmaxInt",
        "LogSoftmaxInt",
        "BatchNorm2dInt",
    }
    if kinds & pieces or not made.session.is_integer or made.result.report.float_nodes:
        return
    try:
        there = lo.convert(made.result.graph, "qdq").graph
    except ModelError as error:
        if "no counterpart" not in str(error):
            raise
        return
    back = lo.quantize(there, platform=made.platform, **made.case.settings)
    if any("after transposing" in rewrite.what for rewrite in made.result.report.fitted):
        # The transpose may move the batch axis: then these nodes stay in float, as the page says.
        nodes = (*back.report.float_nodes, *back.report.host_part)
        if any("batch axis" in node.why for node in nodes):
            return
    have = back.session().run(made.outputs, cut(made.feeds, 0, 2))
    for (name, a), b in zip(made.wanted(2).items(), have, strict=True):
        if not np.array_equal(a, b):
            yield (
                f"output '{name}' is off by "
                f"{np.abs(a - b).max() / max(np.abs(a).max(), 1e-9):.2g} of its range"
            )


def deploy(made):
    """Head, chip part and tail of a deployed folder, one after another, give what the whole
    gives.
    """
    if not made.result.report.chip_ready:
        return
    state = made.case.state
    data = made.case.calls if state else cut(made.feeds, 0, 2)
    with tempfile.TemporaryDirectory() as folder:
        done = lo.deploy(
            made.result, Path(folder) / "board", data, samples=1, state=state or None, stem="net"
        )
        have = chained(done.folder, cut(made.feeds, 0, 1), dict(made.result.report.names))
    if wrong := unlike(made.wanted(1), have):
        yield f"other outputs: {', '.join(wrong)}"


def chained(folder, feeds, renamed):
    """Return all tensors between the parts, by the user's names; renamed : {the user's: the
    file's}.
    """
    known, back = dict(feeds), {other: name for name, other in renamed.items()}
    for part in ("host_head", "chip", "host_tail"):
        path = folder / f"net_{part}.onnx"
        if not path.is_file():
            continue
        if part == "chip":
            session = lo.Session(path)
            names = [value.name for value in session.get_outputs()]
            arrays = session.run(None, {v.name: known[v.name] for v in session.get_inputs()})
        else:
            proto = onnx.load(path)
            given = {v.name: known[back.get(v.name, v.name)] for v in proto.graph.input}
            found = run_float(proto, given)
            names, arrays = [back.get(name, name) for name in found], found.values()
        known.update(zip(names, arrays, strict=True))
    return known


def mended(made):
    """A right graph needs no repair; damaged, it is given back or refused in one line."""
    if not made.session.is_integer:
        return
    copy = copied(made.proto)
    report = repair_model(copy)
    if report.edits or report.fatal:
        yield f"a right graph: {(report.fatal or report.findings)[0].text}"
    feed = cut(made.feeds, 0, 1)
    want = made.wanted(1)
    rng = Random(made.case.seed)
    often = rng.choice((damage.remove_dequant, damage.wrong_scale))
    for hurt in ([often], rng.sample(damage.DAMAGES, 2)):
        names = "+".join(kind.__name__ for kind in hurt)
        copy = copied(made.proto)
        if len(copy.graph.node) < 2 or not damage_model(hurt, copy, rng):
            continue
        report = repair_model(copy)
        if report.fatal:
            if damage.break_edge not in hurt and "zero points" not in report.fatal[0].text:
                yield f"{names}: {report.fatal[0].text}"
            continue
        try:
            have = run_proto(copy, feed)
        except LingerOnnxError as error:
            yield f"{names}: mended does not run: {error}"
            continue
        if wrong := unlike(want, have):
            yield f"{names}: other outputs: {', '.join(wrong)}"


def damage_model(kinds, proto, rng):
    """Do damage in place; return whether each kind found something to damage.

    A twin is made last: what came later would hit one of the two.
    """
    return all(
        kind(proto, rng)
        for kind in sorted(kinds, key=lambda kind: kind is damage.duplicate_dequant)
    )
