"""Integer graphs of one dialect written as the other, or as standard ONNX.

    thinker <-> linger    the other dialect, where the target has one (`Vendor.translate`)
    either  -> qdq        QuantizeLinear and DequantizeLinear around standard operators (`qdq.write`)
                         exact: giving the same integers bit for bit (`qdq.exact`)
    either  -> qoperator  the same, with the standard's operators on integers where there are some (`qdq.qoperator`)

What has no counterpart is an error that names every such node; what means something else afterwards is a note.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .errors import ConfigError, ModelError
from .formats import (
    is_quantized_domain,
)
from .graph import ir
from .plan.synthetic import warnings_of
from .qdq.difference import lines
from .qdq.qoperator import to_qoperator
from .qdq.write import write
from .run.integer.dialects import dialect
from .run.integer.runner import target_of
from .run.origin import fixed_in, made_of, made_with, note_made

__all__ = ["STANDARD", "TARGETS", "Converted", "convert"]

#: Domain that a graph can be converted to -> its dialect.
TARGETS: Mapping[str, int] = {"thinker": 1, "linger": 3}

#: Forms of standard ONNX, which no packer reads.
STANDARD = ("qdq", "qoperator")


@dataclass(frozen=True)
class Converted:
    """A converted graph; notes : what means something else now, one line each. packed : whether a packer reads it."""

    graph: ir.Graph
    notes: tuple[str, ...]
    packed: bool = True

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to `path`, as a whole or not at all, with names that the packer takes where it is for one."""
        ir.save(target_of(self.graph).named(self.graph) if self.packed else self.graph, path)


def check_target(to: str, exact: bool = False, functions: bool = False) -> None:
    """Raise ConfigError where no graph can be converted to `to`, or not exactly so."""
    if exact and to != "qdq":
        raise ConfigError(f"exact is for qdq; '{to}' has the rounding of its own operators")
    if functions and not exact:
        raise ConfigError("functions are what exact writes where real numbers are not; it is not asked for")
    if to not in (*TARGETS, *STANDARD):
        raise ConfigError(f"cannot convert to '{to}': it is {', '.join(TARGETS)}, {' or '.join(STANDARD)}")


def convert(
    model: ir.Graph,
    to: str,
    samples: Mapping[str, np.ndarray] | None = None,
    exact: bool = False,
    functions: bool = False,
) -> Converted:
    """Return the integer graph `model`, which is left as it is, in the form called `to`.

    to : "thinker", "linger", "qdq" or "qoperator". samples : inputs on which a standard form is compared with the
    simulator; default made-up ones. exact, functions : see `api.convert`. Raises ConfigError for another word,
    ModelError for a float graph and where operators have no counterpart, all of them named.
    """
    check_target(to, exact, functions)
    if not any(is_quantized_domain(node) for node in model.graph):
        raise ModelError("the graph has no integer operator: there is nothing to convert; quantize it first")
    if exact:
        from .qdq.exact.account import ExactFile

        file = ExactFile(model, functions)
        return _warned(Converted(file.graph, tuple(file.lines()), packed=False))
    if to in STANDARD:
        return _warned(_to_standard(model, to, samples))
    if dialect(model) == TARGETS[to]:
        return _warned(Converted(ir.clone(model), (f"it is a graph of domain {to} already: nothing is converted",)))
    graph, notes = target_of(model).translated(model, to)
    note_made(graph, made_of(model), made_with(model), fixed_in(model))
    return _warned(Converted(graph, tuple(notes)))


def _warned(done: Converted) -> Converted:
    """Return `done` with what is wrong with the graph in front of its notes."""
    return replace(done, notes=(*(f"WARNING: {warning}" for warning in warnings_of(done.graph)), *done.notes))


def _to_standard(model: ir.Graph, to: str, samples: Mapping[str, np.ndarray] | None) -> Converted:
    found = write(model)
    notes = [*found.notes, *lines(model, found, samples)]
    if to == "qoperator":
        count = to_qoperator(found.graph)
        notes.insert(0, f"{count} nodes are operators on integers; the standard has none for the others")
    return Converted(found.graph, tuple(notes), packed=False)
