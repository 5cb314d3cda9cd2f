"""Checks of what is computed: the float graph before and after, the integers of one machine and
another.
"""

import contextlib
import os

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.ir import ir
from simulator.instruction_sets import INSTRUCTION_SETS, is_supported_by_host
from tests.fuzz.quantized_case import SAMPLES, copied, cut, named, run_float, taps, unlike

__all__ = ["check_batch_splits", "check_normalised_graph", "check_plain_classes"]

ROW_NAMES = ("0", *(row.name for row in INSTRUCTION_SETS if is_supported_by_host(row)))


def check_normalised_graph(made):
    """The normalised float graph computes what the user's computes, both in onnxruntime."""
    feed = {name: array[:1] for name, array in made.feeds.items()}
    want, have = (
        run_float(proto, feed) for proto in (made.case.model, ir.to_proto(made.result.float_graph))
    )
    for name, array in want.items():
        if name not in have or have[name].shape != array.shape:
            yield f"output '{name}' is not there or has another shape"
            continue
        off = np.abs(have[name] - array).max(initial=0) / max(np.abs(array).max(initial=0), 1e-6)
        if not off <= 1e-3:
            yield f"output '{name}' is off by {off:.2g} of its range"


def check_plain_classes(made):
    """The simulator gives the integers of onnx's reference evaluator with our plain classes, tensor
    by tensor.

    Float operators are not its business (`check_normalised_graph`): what they write is given to
    both.
    """
    session = made.session
    if not session.is_integer:
        return
    have = taps(session, cut(made.feeds, 0, 1))
    proto, given = integer_part(made.proto, have)
    reference = ReferenceEvaluator(proto, new_ops=lo.reference_ops(made.platform))
    for i in range(2):
        feed = cut(made.feeds, i, i + 1)
        have = taps(session, feed) if i else have
        want = reference.run(
            None, {**feed, **{name: have[name] for name in given}}, intermediate=True
        )
        kept = [name for name, array in have.items() if name in want or array.dtype.kind in "iu"]
        if wrong := unlike(have, want, kept):
            yield f"sample {i}: {named(made.proto, wrong)}"
            return


def integer_part(proto, have):
    """Return a graph without its float nodes, and the names of their results, which it reads as
    inputs.

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
    copy.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, 1, None) for name in given if name in read
    )
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


def check_batch_splits(made):
    """Samples one after another, other numbers of threads and other instructions change no
    integer.
    """
    integers = [name for name, array in made.tensors.items() if array.dtype.kind in "iu"]
    parts = [taps(made.session, cut(made.feeds, a, b)) for a, b in ((0, 2), (2, SAMPLES))]
    for name in integers:
        want, pieces = made.tensors[name], [part[name] for part in parts]
        if (
            len(want) == SAMPLES
            and [len(p) for p in pieces] == [2, 3]
            and not np.array_equal(want, np.concatenate(pieces))
        ):
            yield f"2 and 3 samples: {named(made.proto, [name])}"
            break
    turn = made.case.seed
    row, threads = ROW_NAMES[turn % len(ROW_NAMES)], str(2 + turn % 3)
    with environment(LINGERONNX_SIMD=row, LINGERONNX_THREADS=threads):
        other = taps(made.result.session(), made.feeds)
    if wrong := unlike(made.tensors, other, integers):
        yield f"row {row}, {threads} threads: {named(made.proto, wrong)}"
