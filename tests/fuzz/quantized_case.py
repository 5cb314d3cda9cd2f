"""A net on a platform, quantized once and run once for all checks, and what they share."""

from functools import cached_property

import numpy as np
import onnx
import onnxruntime as ort

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.operators.chip_part import extract_chip_part
from lingeronnx.runtime.program_parts import split_into_parts

__all__ = [
    "CHIPS",
    "PLATFORMS",
    "QuantizedCase",
    "copied",
    "cut",
    "named",
    "run_float",
    "taps",
    "unlike",
]

CHIPS = ("venus", "arcs", "venusA")
PLATFORMS = (*CHIPS, "generic")
SAMPLES = 5
#: Settings of generic, which the seeds take in turn.
FREE = (
    {},
    {"mode": "max-value"},
    {"mode": "max-value", "weight_scales": "channel"},
    {"mode": "max-value", "weight_scales": "channel", "activations": "asymmetric"},
)


class QuantizedCase:
    """A net on a platform: quantized once, run once, for all checks."""

    def __init__(self, case, platform, effort="fast"):
        self.case, self.platform, self.effort = case, platform, effort

    @cached_property
    def result(self):
        """What `quantize` returns."""
        free = FREE[self.case.seed % len(FREE)] if self.platform == "generic" else {}
        return lo.quantize(
            ir.from_proto(self.case.model),
            self.case.calib,
            platform=self.platform,
            effort=self.effort,
            **self.case.settings,
            **free,
        )

    @cached_property
    def proto(self):
        """The integer graph as a protobuf, with the user's names."""
        return ir.to_proto(self.result.graph)

    @cached_property
    def part(self):
        """The part for the packer, as it is written; None where float nodes stand between integer
        ones.
        """
        if not self.result.report.packer_args:
            return None
        return ir.to_proto(
            extract_chip_part(
                self.result.platform.with_safe_names(self.result.graph), self.result.platform
            )
        )

    @cached_property
    def chip_parts(self):
        """The parts for the chip where there are several, with the host between them; else none."""
        if self.platform not in CHIPS or self.part is not None:
            return ()
        target = self.result.platform
        parts = split_into_parts(target.with_safe_names(self.result.graph), target).chip
        return parts if len(parts) > 1 else ()

    @cached_property
    def feeds(self):
        """Samples that calibration did not see."""
        return self.case.feeds(SAMPLES)

    @cached_property
    def tensors(self):
        """{name: array} of a run with all samples at once."""
        return taps(self.session, self.feeds)

    @cached_property
    def session(self):
        """The session of all runs that may share one."""
        return self.result.session()

    def wanted(self, samples):
        """Return {graph output: its first samples}."""
        return {name: self.tensors[name][:samples] for name in self.outputs}

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
    return [
        n
        for n in names
        if n not in have or want[n].dtype != have[n].dtype or not np.array_equal(want[n], have[n])
    ]


def named(proto, names):
    """Return what writes the first of the tensors `names`, and how many there are."""
    first = next((n for n in proto.graph.node if set(n.output) & set(names)), None)
    what = names[0] if first is None else f"{first.op_type} {first.name}"
    return f"{what} ({len(names)} tensors)" if len(names) > 1 else what


def copied(proto):
    """Return a copy of a protobuf."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def run_float(proto, feeds):
    """Return {output: array} of onnxruntime, on one sample."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    read = {value.name for value in session.get_inputs()}
    return dict(
        zip(names, session.run(None, {n: a for n, a in feeds.items() if n in read}), strict=True)
    )
