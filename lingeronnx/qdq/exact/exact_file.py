"""A file that is exact, or named where it is not, with what a user should know of it."""

from __future__ import annotations

from collections import Counter

from ...graph import ir
from .functions import DOMAIN
from .tie_offsets import FLOAT32_EXACT_LIMIT
from .verification import (
    MatchCount,
    compare_with_simulator,
    make_batch_dynamic,
    open_as_user,
    random_feeds,
)
from .write import ExactGraph, write_exact

__all__ = ["ExactFile"]

_SAMPLES = 16
_INPUT_KINDS = {True: "like calibration data", False: "all over the range, half of them ties"}


class ExactFile:
    """What was written for an integer graph, which is left as it is.

    See `write_exact` for what it raises.
    graph : the file. written : how its operators are written. compared : beside the simulator, by
    what the inputs are like; empty where sizes of inputs are open. batch : why the file has batch
    1; "" where it takes any.
    """

    def __init__(self, model: ir.Model, functions: bool) -> None:
        self.written: ExactGraph = write_exact(model, functions)
        self.graph = self.written.standard.graph
        self.compared: dict[str, MatchCount] = {}
        self.batch = ""
        session = open_as_user(self.graph)
        for like, what in _INPUT_KINDS.items():
            feeds = random_feeds(model, like, _SAMPLES)
            if feeds is None:
                continue
            self.compared[what] = compare_with_simulator(model, session, feeds)
            if like:
                free = make_batch_dynamic(model, self.graph, feeds[:3])
                self.graph, self.batch = (self.graph, free) if isinstance(free, str) else (free, "")

    @property
    def all_equal(self) -> bool:
        """Whether all that was compared is equal."""
        return all(one.equal == one.count for one in self.compared.values())

    def lines(self) -> list[str]:
        """Return what a user should know."""
        written, told = self.written, list(self.written.standard.notes)
        if written.tie_offsets:
            told.append(
                f"half a step of the sum is added before {len(written.tie_offsets)} "
                "QuantizeLinear, so that ties go "
                "up; "
                f"proved to change nothing else: sums below {FLOAT32_EXACT_LIMIT} steps, and "
                "shifts that leave float32 "
                "room for it"
            )
        if written.function_of:
            calls = Counter(
                name.rpartition("_")[0] for name in dict.fromkeys(written.function_of.values())
            )
            names = ", ".join(f"{count} {name}" for name, count in calls.items())
            told.append(f"functions of operators on integers (domain {DOMAIN}): {names}")
        reasons: dict[tuple[str, str], list[str]] = {}
        for tensor, reason in written.inexact.items():
            reasons.setdefault(reason, []).append(tensor)
        for (operator, why), tensors in reasons.items():
            told.append(f"NOT exact: {len(tensors)} {operator} ('{tensors[0]}'): {why}")
        if reasons and not written.function_of:
            told.append("`--functions` writes what has an exact form in integer operators so")
        if self.compared:
            counts = ", ".join(
                f"{one.equal} of {one.count} samples {what}" for what, one in self.compared.items()
            )
            told.append(f"outputs equal to the simulator's, bit for bit, in onnxruntime: {counts}")
            if not self.all_equal and not reasons:
                told.append(
                    "WARNING: this onnxruntime computes otherwise than the bounds say; or a float "
                    "operator does"
                )
        else:
            told.append("not compared with the simulator: sizes of inputs are open")
        told.append(f"batch 1, as the integer graph: {self.batch}" if self.batch else "any batch")
        return told
