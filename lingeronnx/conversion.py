"""Integer graphs of one dialect written as the other, or as standard ONNX.

    thinker <-> linger    the other dialect, where the target has one (`Vendor.translate`)
    either  -> qdq        QuantizeLinear and DequantizeLinear around standard operators
    (`qdq.write`)
                         exact: giving the same integers bit for bit (`qdq.exact`)
    either  -> qoperator  the same, with the standard's operators on integers where there are some
    (`qdq.qoperator`)

What has no counterpart is an error that names every such node; what means something else afterwards
is a note.
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
from .plan.synthetic_calibration import collect_calibration_warnings
from .qdq.difference import format_differences
from .qdq.qdq_writer import write_qdq
from .qdq.qoperator import to_qoperator
from .run.integer.dialects import detect_dialect
from .run.integer.runner import detect_target
from .run.provenance import (
    load_fixed_inputs,
    load_quantize_settings,
    load_source_digest,
    store_provenance,
)

__all__ = ["STANDARD_FORMS", "DIALECT_BY_DOMAIN", "ConversionResult", "convert"]

#: Domain that a graph can be converted to -> its dialect.
DIALECT_BY_DOMAIN: Mapping[str, int] = {"thinker": 1, "linger": 3}

#: Forms of standard ONNX, which no packer reads.
STANDARD_FORMS = ("qdq", "qoperator")


@dataclass(frozen=True)
class ConversionResult:
    """A converted graph; notes : what means something else now, one line each.

    Packed : whether a packer reads it.
    """

    graph: ir.Model
    notes: tuple[str, ...]
    is_packer_input: bool = True

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to `path`, as a whole or not at all, with names that the packer takes where it is for one."""
        ir.save(
            detect_target(self.graph).with_safe_names(self.graph)
            if self.is_packer_input
            else self.graph,
            path,
        )


def check_conversion_target(to: str, exact: bool = False, functions: bool = False) -> None:
    """Raise ConfigError where no graph can be converted to `to`, or not exactly so."""
    if exact and to != "qdq":
        raise ConfigError(f"exact is for qdq; '{to}' has the rounding of its own operators")
    if functions and not exact:
        raise ConfigError(
            "functions are what exact writes where real numbers are not; it is not asked for"
        )
    if to not in (*DIALECT_BY_DOMAIN, *STANDARD_FORMS):
        raise ConfigError(
            f"cannot convert to '{to}': it is {', '.join(DIALECT_BY_DOMAIN)}, "
            f"{' or '.join(STANDARD_FORMS)}"
        )


def convert(
    model: ir.Model,
    to: str,
    samples: Mapping[str, np.ndarray] | None = None,
    exact: bool = False,
    functions: bool = False,
) -> ConversionResult:
    """Return the integer graph `model`, which is left as it is, in the form called `to`.

    to : "thinker", "linger", "qdq" or "qoperator". samples : inputs on which a standard form is
    compared with the simulator; default made-up ones. exact, functions : see `api.convert`. Raises
    ConfigError for another word, ModelError for a float graph and where operators have no
    counterpart, all of them named.
    """
    check_conversion_target(to, exact, functions)
    if not any(is_quantized_domain(node) for node in model.graph):
        raise ModelError(
            "the graph has no integer operator: there is nothing to convert; quantize it first"
        )
    if exact:
        from .qdq.exact.exact_file import ExactFile

        file = ExactFile(model, functions)
        return _prepend_warnings(
            ConversionResult(file.graph, tuple(file.lines()), is_packer_input=False)
        )
    if to in STANDARD_FORMS:
        return _prepend_warnings(_convert_to_standard(model, to, samples))
    if detect_dialect(model) == DIALECT_BY_DOMAIN[to]:
        return _prepend_warnings(
            ConversionResult(
                ir.clone(model), (f"it is a graph of domain {to} already: nothing is converted",)
            )
        )
    graph, notes = detect_target(model).convert_dialect(model, to)
    store_provenance(
        graph, load_source_digest(model), load_quantize_settings(model), load_fixed_inputs(model)
    )
    return _prepend_warnings(ConversionResult(graph, tuple(notes)))


def _prepend_warnings(done: ConversionResult) -> ConversionResult:
    """Return `done` with what is wrong with the graph in front of its notes."""
    return replace(
        done,
        notes=(
            *(f"WARNING: {warning}" for warning in collect_calibration_warnings(done.graph)),
            *done.notes,
        ),
    )


def _convert_to_standard(
    model: ir.Model, to: str, samples: Mapping[str, np.ndarray] | None
) -> ConversionResult:
    found = write_qdq(model)
    notes = [*found.notes, *format_differences(model, found, samples)]
    if to == "qoperator":
        count = to_qoperator(found.graph)
        notes.insert(
            0, f"{count} nodes are operators on integers; the standard has none for the others"
        )
    return ConversionResult(found.graph, tuple(notes), is_packer_input=False)
