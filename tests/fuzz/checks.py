"""What has to hold for every net: each check by name, a function of a net on a platform that yields what is wrong.

A check shares no code with what it checks, or compares two ways that share none.
"""

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.chip.part import chip_part
from lingeronnx.errors import LingerOnnxError, ModelError
from lingeronnx.graph import ir
from lingeronnx.packer.names import written
from lingeronnx.qdq.difference import differences
from lingeronnx.qdq.write import write
from lingeronnx.repair import repair
from simulator.rows import ROWS, runs_here
from tests.packer import judge
from tests.repair import damage
from tests.repair.helpers import outputs as run_proto

__all__ = ["CHECKS", "CHIPS", "PLATFORMS", "Made", "failures"]

CHIPS = ("venus", "arcs", "venusA")
PLATFORMS = (*CHIPS, "generic")
ROW_NAMES = ("0", *(row.name for row in ROWS if runs_here(row)))
SAMPLES = 5
#: Settings of generic, which the seeds take in turn.
FREE = ({}, {"mode": "max-value"}, {"mode": "max-value", "weight_scales": "channel"},
        {"mode": "max-value", "weight_scales": "channel", "activations": "asymmetric"})  # fmt: skip


class Made:
    """A net on a platform: quantized once, run once, for all checks."""

    def __init__(self, case, platform, effort="fast"):
        self.case, self.platform, self.effort = case, platform, effort

    @cached_property
    def result(self):
        """What `quantize` returns."""
        free = FREE[self.case.seed % len(FREE)] if self.platform == "generic" else {}
        return lo.quantize(ir.from_proto(self.case.model), self.case.calib, platform=self.platform,
                           effort=self.effort, **self.case.settings, **free)  # fmt: skip

    @cached_property
    def proto(self):
        """The integer graph as a protobuf, with the user's names."""
        return ir.to_proto(self.result.graph)

    @cached_property
    def part(self):
        """The part for the packer, as it is written; None where float nodes stand between integer ones."""
        if not self.result.report.packer_args:
            return None
        return ir.to_proto(chip_part(written(self.result.graph)))

    @cached_property
    def feeds(self):
        """Samples that calibration did not see."""
        return self.case.feeds(SAMPLES)

    @cached_property
    def tensors(self):
        """{name: array} of a run with all samples at once."""
        return taps(self.result.session(), self.feeds)

    @property
    def outputs(self):
        """The names of the graph outputs."""
        return [value.name for value in self.case.model.graph.output]


def taps(session, feeds):
    """Return {name: array} of every tensor of a run."""
    return {name: array.copy() for name, array, _ in session.taps(feeds)}


def cut(feeds, start, stop):
    """Return some of the samples."""
    return {name: array[start:stop] for name, array in feeds.items()}


def unlike(want, have, among=None):
    """Return the names of arrays that differ in type, shape or a number."""
    names = want if among is None else among
    return [n for n in names if n not in have or want[n].dtype != have[n].dtype or not np.array_equal(want[n], have[n])]


def named(proto, names):
    """Return what writes the first of the tensors `names`, and how many there are."""
    first = next((n for n in proto.graph.node if set(n.output) & set(names)), None)
    what = names[0] if first is None else f"{first.op_type} {first.name}"
    return f"{what} ({len(names)} tensors)" if len(names) > 1 else what


# ---- the checks ------------------------------------------------------------------------------------------------------


def normalised(made):
    """The normalised float graph computes what the user's computes, both in onnxruntime."""
    feed = {name: array[:1] for name, array in made.feeds.items()}
    want, have = (run_float(proto, feed) for proto in (made.case.model, ir.to_proto(made.result.float_graph)))
    for name, array in want.items():
        if name not in have or have[name].shape != array.shape:
            yield f"output '{name}' is not there or has another shape"
            continue
        off = np.abs(have[name] - array).max(initial=0) / max(np.abs(array).max(initial=0), 1e-6)
        if not off <= 1e-3:
            yield f"output '{name}' is off by {off:.2g} of its range"


def run_float(proto, feeds):
    """Return {output: array} of onnxruntime, on one sample."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    read = {value.name for value in session.get_inputs()}
    return dict(zip(names, session.run(None, {n: a for n, a in feeds.items() if n in read}), strict=True))


def plain(made):
    """The simulator gives the integers of onnx's reference evaluator with our plain classes, tensor by tensor.

    Float operators are not its business (`normalised`): what they write is given to both.
    """
    session = made.result.session()
    if not session.is_integer:
        return
    have = taps(session, cut(made.feeds, 0, 1))
    proto, given = integer_part(made.proto, have)
    reference = ReferenceEvaluator(proto, new_ops=lo.reference_ops(made.platform))
    for i in range(2):
        feed = cut(made.feeds, i, i + 1)
        have = taps(session, feed) if i else have
        want = reference.run(None, {**feed, **{name: have[name] for name in given}}, intermediate=True)
        kept = [name for name, array in have.items() if name in want or array.dtype.kind in "iu"]
        if wrong := unlike(have, want, kept):
            yield f"sample {i}: {named(made.proto, wrong)}"
            return


def integer_part(proto, have):
    """Return a graph without its float nodes, and the names of their results, which it reads as inputs.

    have : what a run gives, by name.
    """
    floats = {name for name, array in have.items() if array.dtype.kind == "f"}
    copy, given, kept = copied(proto), [], []
    for node in proto.graph.node:
        made = [name for name in node.output if name in floats]
        if made and node.domain not in ("thinker", "linger"):
            given += made
        else:
            kept.append(node)
    read = {name for name in have if name not in floats}
    read |= {name for node in kept if node.domain for name in node.output}
    needed = []
    for node in reversed(kept):
        if read.intersection(node.output):
            needed.append(node)
            read.update(node.input)
    del copy.graph.node[:], copy.graph.output[:]
    copy.graph.node.extend(needed[::-1])
    copy.graph.input.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in given if name in read)
    return copy, [name for name in given if name in read]


@contextlib.contextmanager
def environment(**values):
    """Set variables of the environment for what is opened and compiled inside."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def blocks(made):
    """Samples one after another, other numbers of threads and other instructions change no integer."""
    integers = [name for name, array in made.tensors.items() if array.dtype.kind in "iu"]
    parts = [taps(made.result.session(), cut(made.feeds, a, b)) for a, b in ((0, 2), (2, SAMPLES))]
    for name in integers:
        want, pieces = made.tensors[name], [part[name] for part in parts]
        if len(want) == SAMPLES and [len(p) for p in pieces] == [2, 3] and not np.array_equal(
            want, np.concatenate(pieces)):  # fmt: skip
            yield f"2 and 3 samples: {named(made.proto, [name])}"
            break
    turn = made.case.seed
    row, threads = ROW_NAMES[turn % len(ROW_NAMES)], str(2 + turn % 3)
    with environment(LINGERONNX_SIMD=row, LINGERONNX_THREADS=threads):
        other = taps(made.result.session(), made.feeds)
    if wrong := unlike(made.tensors, other, integers):
        yield f"row {row}, {threads} threads: {named(made.proto, wrong)}"


def promise(made):
    """What is called chip-ready packs and is right by tests/packer, which shares no code with ours."""
    if made.part is None or not made.result.report.chip_ready:
        return
    theirs = other_judge(made)
    past = set(theirs.past)
    yield from (f"ours: ready; tests/packer: {text}" for text in theirs.problems if text not in past)
    yield from (f"ours: ready; tests/packer: means nothing: {text}" for text in theirs.warnings)
    ours = lo.check(made.result.graph, packer_args=made.result.report.packer_args)
    if not (ours.packs and ours.runs_right):
        yield f"quantize: ready; check: {ours.findings[0]}"
    if theirs.packs and bool(past) != any(finding.level == "plan" for finding in made.result.report.findings):
        said = next(iter(past), "nothing is written past the plan")
        yield f"past the plan: tests/packer: {said}; ours: {[str(f) for f in made.result.report.findings]}"


def alarm(made):
    """What is refused for how it is packed is wrong by tests/packer too, and for the packer's sake where it says so."""
    if made.part is None or made.result.report.chip_ready:
        return
    theirs, findings = other_judge(made), made.result.report.findings
    if set(theirs.problems) <= set(theirs.past) and not theirs.warnings:
        yield f"tests/packer: right; ours: {next((str(f) for f in findings if f.level != 'plan'), 'no finding')}"
    elif theirs.packs == any(finding.level == "packs" for finding in findings):
        what = "packs" if theirs.packs else "does not pack"
        yield f"tests/packer: {what}: {theirs.problems[:1]}; ours: {[str(f) for f in findings][:1]}"


def other_judge(made):
    """Return the verdict of tests/packer on the part under the printed arguments."""
    return judge(made.part, made.platform, shlex.split(made.result.report.packer_args))


def reason(made):
    """A net that is not chip-ready says for which rule, of every node that stays in float and of the packer."""
    report = made.result.report
    if made.platform == "generic" or report.chip_ready:
        return
    for node in (*report.float_nodes, *report.host_part):
        if not node.why:
            yield f"{node.op_type} {node.node} stays in float without a reason"
    if not report.float_nodes and report.layers and not [f for f in report.findings if f.level != "plan"]:
        yield "no node stays in float, and no finding says why"


def file(made):
    """The written files give what the graph in memory gives, for every tensor."""
    with tempfile.TemporaryDirectory() as folder:
        done = made.result.write(Path(folder) / "net.onnx")
        have = taps(lo.Session(done.graph), made.feeds)
        if wrong := unlike(made.tensors, have):
            yield f"the file: {named(made.proto, wrong)}"
        if done.chip is not None:
            chip = lo.Session(done.chip)
            fed = {value.name: made.tensors.get(value.name, made.feeds.get(value.name)) for value in chip.inputs}
            have = taps(chip, fed)
            integers = [n for n, a in have.items() if a.dtype.kind in "iu" and n in made.tensors]
            if wrong := unlike(made.tensors, have, integers):
                yield f"the part for the packer: {named(made.proto, wrong)}"
        lo.check_model(done.graph)


def linger(made):
    """In the other generation's names the executor computes the same; back again the graph is the same."""
    if not lo.Session(made.result.graph).is_integer or made.platform == "generic":
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
        kept = [name for name in made.tensors if name in have or name in made.outputs]  # a curve takes its Requant in
        if wrong := unlike(made.tensors, have, kept):
            yield f"{what} computes another {named(made.proto, wrong)}"
    if [node.op_type for node in back.graph] != kinds:
        yield "there and back: other operators"


def qdq(made):
    """In standard ONNX every operator is within one count, but for those that are told.

    Behind float operators onnxruntime is not asked: it rounds their weights to int8 where Q and DQ stand around them.
    """
    if not lo.Session(made.result.graph).is_integer:
        return
    try:
        found = write(made.result.graph)
    except ModelError as error:
        if "no counterpart" not in str(error):
            raise
        return
    onnx.checker.check_model(ir.to_proto(found.graph), full_check=True)
    inputs = {value.name for value in made.case.model.graph.input}
    behind = {name for node in made.proto.graph.node if node.op_type == "Quant" and node.input[0] not in inputs
              for name in node.output}  # fmt: skip
    for line in differences(made.result.graph, found, cut(made.feeds, 0, 1)):
        if not line.between and line.worst > 1 and line.tensor not in behind:
            yield f"{line.operator} {line.tensor}: {line.worst} counts"


def again(made):
    """What is written as QuantizeLinear and quantized again for the same platform gives the same integers.

    docs/qdq.md says for which graphs: no float operators between, and none of these, of whose pieces new ones are made.
    """
    kinds = {node.op_type for node in made.proto.graph.node}
    pieces = {"LSTMInt", "GRUInt", "GluInt", "iqTable", "SoftmaxInt", "LogSoftmaxInt"}
    if kinds & pieces or not lo.Session(made.result.graph).is_integer or made.result.report.float_nodes:
        return
    try:
        there = lo.convert(made.result.graph, "qdq").graph
    except ModelError as error:
        if "no counterpart" not in str(error):
            raise
        return
    back = lo.quantize(there, platform=made.platform, **made.case.settings)
    feed = cut(made.feeds, 0, 2)
    want, have = (session.run(made.outputs, feed) for session in (made.result.session(), back.session()))
    for name, a, b in zip(made.outputs, want, have, strict=True):
        if not np.array_equal(a, b):
            yield f"output '{name}' is off by {np.abs(a - b).max() / max(np.abs(a).max(), 1e-9):.2g} of its range"


def deploy(made):
    """Head, chip part and tail of a deployed folder, one after another, give what the whole gives."""
    if not made.result.report.chip_ready:
        return
    state = made.case.state
    data = made.case.calls if state else cut(made.feeds, 0, 2)
    with tempfile.TemporaryDirectory() as folder:
        done = lo.deploy(made.result, Path(folder) / "board", data, samples=1, state=state or None, stem="net")
        feed = cut(made.feeds, 0, 1)
        want = dict(zip(made.outputs, made.result.session().run(made.outputs, feed), strict=True))
        have = chained(done.folder, feed, dict(made.result.report.names))
    if wrong := unlike(want, have):
        yield f"other outputs: {', '.join(wrong)}"


def chained(folder, feeds, renamed):
    """Return all tensors between the parts, by the user's names; renamed : {the user's: the file's}."""
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
    if not lo.Session(made.result.graph).is_integer:
        return
    copy = copied(made.proto)
    report = repair(copy)
    if report.edits or report.fatal:
        yield f"a right graph: {(report.fatal or report.findings)[0].text}"
    feed = cut(made.feeds, 0, 1)
    want = run_proto(made.proto, feed)
    rng = Random(made.case.seed)
    kinds = [damage.remove_dequant, damage.wrong_scale, *rng.sample(damage.DAMAGES, 2)]
    for hurt in ([kinds[0]], [kinds[1]], kinds[2:]):
        names = "+".join(kind.__name__ for kind in hurt)
        copy = copied(made.proto)
        if len(copy.graph.node) < 2 or not hurt_by(hurt, copy, rng):
            continue
        report = repair(copy)
        if report.fatal:
            if damage.lose_edge not in hurt and "zero points" not in report.fatal[0].text:
                yield f"{names}: {report.fatal[0].text}"
            continue
        try:
            have = run_proto(copy, feed)
        except LingerOnnxError as error:
            yield f"{names}: mended does not run: {error}"
            continue
        if wrong := unlike(want, have):
            yield f"{names}: other outputs: {', '.join(wrong)}"


def hurt_by(kinds, proto, rng):
    """Do damage in place; return whether each kind found something to damage."""
    return all(kind(proto, rng) for kind in kinds)


def copied(proto):
    """Return a copy of a protobuf."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


#: Name -> check, in the order in which they run.
CHECKS: Mapping = {
    "normalised": normalised, "plain": plain, "blocks": blocks, "promise": promise, "alarm": alarm, "reason": reason,
    "file": file, "linger": linger, "qdq": qdq, "again": again, "deploy": deploy, "repair": mended,
}  # fmt: skip


def failures(made, names=None):
    """Return {check: sentences on what is wrong}; "error" is what any of them raised beside one line of ours.

    A net that `quantize` refuses in one line has "refused" alone.
    """
    found = {}
    try:
        made.result  # noqa: B018 (quantizes)
    except LingerOnnxError as error:
        return {"refused": [str(error)]}
    except Exception as error:  # noqa: BLE001 (any other is what is looked for)
        return {"error": [told("quantize", error)]}
    for name in names or CHECKS:
        try:
            texts = [" ".join(text.split()) for text in CHECKS[name](made)]
        except Exception as error:  # noqa: BLE001
            found.setdefault("error", []).append(told(name, error))
            continue
        if texts:
            found[name] = texts
    return found


def told(where, error):
    """Return an exception as a sentence, with the place of ours that raised it."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if re.search(r"/(lingeronnx|simulator)/", path):
            place = f" at {'/'.join(path.split('/')[-2:])}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{where}: {type(error).__name__}: {' '.join(str(error).split())[:300]}{place}"
