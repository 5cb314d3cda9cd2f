"""An exact standard graph, compared with the simulator, and its report."""

from __future__ import annotations

from collections import Counter

from ....ir import ir
from ..batch_axis import make_batch_dynamic
from .tie_offsets import FLOAT32_EXACT_LIMIT
from .verification import (
    MatchCount,
    compare_with_simulator,
    open_as_user,
    random_feeds,
)
from .write import DOMAIN, ExactGraph, write_exact

__all__ = ["ExactFile"]

_SAMPLES = 16
_INPUT_KINDS = {
    True: "like calibration data",
    False: "over the full range, half of them ties",
}


class ExactFile:
    """An integer graph written in standard ONNX, and its comparison with the simulator.

    The integer graph is not modified.

    Parameters
    ----------
    model
        The integer graph.
    functions
        Whether operators that have no exact float form are written as functions of integer
        operators.

    Attributes
    ----------
    graph
        The standard graph.
    written
        How its operators are written.
    compared
        Kind of inputs -> comparison with the simulator; empty if input dimensions are unknown.
    batch
        Reason why the graph has batch 1; "" if it accepts any batch size.
    """

    def __init__(self, model: ir.Model, functions: bool) -> None:
        """Write the integer graph `model` in standard ONNX, and compare both in onnxruntime.

        With `functions`, operators without an exact float form are written as functions of integer
        operators. `compared` gets the matches of each kind of random input, and stays empty if
        input dimensions are unknown. If samples may be batched, `graph` is the graph with a dynamic
        batch; otherwise `batch` is the reason. Raises ModelError if a graph cannot be converted or
        run.
        """
        self.written: ExactGraph = write_exact(model, functions)
        self.graph = self.written.standard.graph
        self.compared: dict[str, MatchCount] = {}
        self.batch = ""
        session = open_as_user(self.graph)
        for like_calibration, label in _INPUT_KINDS.items():
            feeds = random_feeds(model, like_calibration, _SAMPLES)
            if feeds is None:
                continue
            self.compared[label] = compare_with_simulator(model, session, feeds)
            if like_calibration:
                dynamic = make_batch_dynamic(model, self.graph, feeds[:3])
                if isinstance(dynamic, str):
                    self.batch = dynamic
                else:
                    self.graph, self.batch = dynamic, ""

    @property
    def all_equal(self) -> bool:
        """Whether all outputs that were compared are equal; True if none was compared."""
        return all(matches.equal == matches.count for matches in self.compared.values())

    def lines(self) -> list[str]:
        """Return the report on the written graph as lines: notes, operators, comparison, batch."""
        batch = f"batch 1, as the integer graph: {self.batch}" if self.batch else "any batch size"
        return [
            *self.written.standard.notes,
            *self._format_operators(),
            *self._format_comparison(),
            batch,
        ]

    def _format_operators(self) -> list[str]:
        """Return lines on tie offsets, functions (count by name), and operators that are not exact.

        A line per operator and reason of inexactness, with the first tensor, and then a hint to
        `--functions` if these are not used. Empty if all operators are exact without either.
        """
        written, lines = self.written, []
        if written.tie_offsets:
            lines.append(
                f"half a step of the sum is added before {len(written.tie_offsets)} "
                f"QuantizeLinear, so that ties round up{self._format_proof()}"
            )
        if written.function_of:
            function_names = dict.fromkeys(written.function_of.values())
            calls = Counter(name.rpartition("_")[0] for name in function_names)
            counts = ", ".join(f"{count} {name}" for name, count in calls.items())
            lines.append(f"functions of integer operators (domain {DOMAIN}): {counts}")
        tensors_by_reason: dict[tuple[str, str], list[str]] = {}
        for tensor, key in written.inexact.items():
            tensors_by_reason.setdefault(key, []).append(tensor)
        for (operator, reason), tensors in tensors_by_reason.items():
            lines.append(f"NOT exact: {len(tensors)} {operator} ('{tensors[0]}'): {reason}")
        if tensors_by_reason and not written.function_of:
            lines.append("`--functions` writes operators that are exact in integers as functions")
        return lines

    def _format_proof(self) -> str:
        """Return the proof that adding half a step changes nothing else, as the end of a sentence.

        "" without proof: it needs a bound of the sums at each place, below what float32 represents
        exactly, and no comparison that contradicts it.
        """
        written = self.written
        bounds = [written.sum_bounds.get(name) for name in written.tie_offsets]
        known = [bound for bound in bounds if bound is not None and bound < FLOAT32_EXACT_LIMIT]
        if len(known) < len(bounds) or not (self.all_equal or written.inexact):
            return ""
        return (
            f"; proved to change nothing else: sums are at most {max(known):,} of "
            f"{FLOAT32_EXACT_LIMIT:,} steps, and float32 can represent half a step"
        )

    def _format_comparison(self) -> list[str]:
        """Format the comparison with the simulator: equal samples per kind of input.

        Without a comparison, the reason. A warning follows if samples differ although every
        operator is written exactly.
        """
        if not self.compared:
            return ["not compared with the simulator: input dimensions are unknown"]
        counts = ", ".join(
            f"{matches.equal} of {matches.count} samples {label}"
            for label, matches in self.compared.items()
        )
        lines = [f"outputs equal to the simulator's, bit for bit, in onnxruntime: {counts}"]
        if not self.all_equal and not self.written.inexact:
            lines.append(
                "WARNING: this onnxruntime, or a float operator, deviates from the bounds that "
                "exactness follows from"
            )
        return lines
