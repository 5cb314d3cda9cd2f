"""Convert integer graphs to the other dialect or to standard ONNX.

    thinker <-> linger     the other dialect, if the target has one
    either  -> qdq         QuantizeLinear and DequantizeLinear around standard operators; with
                           `exact`, bit for bit the same integers
    either  -> qoperator   the same, with the standard's operators on integers where they exist

Nodes without counterpart are an error that lists them; differences in meaning are notes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..common.errors import ConfigError, ModelError
from ..ir import ir
from ..ir.plan.synthetic_calibration import collect_calibration_warnings
from ..operators.integer_ops import is_quantized_domain
from ..runtime.integer.dialects import detect_dialect
from ..runtime.integer.runner import detect_target
from ..runtime.provenance import (
    has_fixed_batch,
    load_fixed_inputs,
    load_quantize_settings,
    load_source_digest,
    store_provenance,
)
from .qdq.batch_axis import make_batch_dynamic
from .qdq.difference import format_differences
from .qdq.qdq_writer import write_qdq
from .qdq.qoperator import to_qoperator

__all__ = ["STANDARD_FORMS", "DIALECT_BY_DOMAIN", "ConversionResult", "convert"]

#: Domain that a graph can be converted to -> its dialect.
DIALECT_BY_DOMAIN: Mapping[str, int] = {"thinker": 1, "linger": 3}

#: Forms of standard ONNX, which no packer reads.
STANDARD_FORMS = ("qdq", "qoperator")

_BATCH_TRIAL_SAMPLES = 3


@dataclass(frozen=True)
class ConversionResult:
    """A converted graph.

    Attributes
    ----------
    graph
        The graph.
    notes
        Differences in meaning, one line each.
    is_packer_input
        Whether the packer can read it.
    """

    graph: ir.Model
    notes: tuple[str, ...]
    is_packer_input: bool = True

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to `path` atomically, with names that the packer accepts."""
        graph = self.graph
        if self.is_packer_input:
            graph = detect_target(graph).with_safe_names(graph)
        ir.save(graph, path)


def check_conversion_target(to: str, exact: bool = False, functions: bool = False) -> None:
    """Raise ConfigError for an unknown target form `to` or an impossible combination.

    Known are thinker, linger, qdq and qoperator. `exact` needs `to` = "qdq", and `functions` needs
    `exact`.
    """
    if exact and to != "qdq":
        raise ConfigError(
            f"exact is for qdq only; the operators of '{to}' define their own rounding"
        )
    if functions and not exact:
        raise ConfigError(
            "functions need exact: they replace operators that float arithmetic cannot reproduce"
        )
    if to not in (*DIALECT_BY_DOMAIN, *STANDARD_FORMS):
        raise ConfigError(
            f"cannot convert to '{to}': it is {', '.join(DIALECT_BY_DOMAIN)}, "
            f"{' or '.join(STANDARD_FORMS)}"
        )


@np.errstate(all="ignore")  # values that are not finite are reported where they matter
def convert(
    model: ir.Model,
    to: str,
    samples: Mapping[str, np.ndarray] | None = None,
    exact: bool = False,
    functions: bool = False,
) -> ConversionResult:
    """Convert the integer graph `model` to another dialect or to standard ONNX, as a new graph.

    A graph that has the dialect already is copied, with a note. The result has notes on differences
    in meaning, and warnings about its calibration first.

    Parameters
    ----------
    model
        Integer graph.
    to
        "thinker", "linger", "qdq" or "qoperator".
    samples
        Inputs for comparing standard ONNX with the simulator; default: random ones.
    exact, functions
        With "qdq": whether onnxruntime is to give the simulator's integers bit for bit, and whether
        operators that float arithmetic cannot reproduce become model-local functions.

    Raises
    ------
    ConfigError
        For an unknown `to`, or `exact` or `functions` that do not fit it.
    ModelError
        For a float graph, and for operators without counterpart, all of which are listed.
    """
    check_conversion_target(to, exact, functions)
    if not any(is_quantized_domain(node) for node in model.graph):
        raise ModelError("the graph has no integer operators to convert; quantize it first")
    if exact:
        from .qdq.exact.exact_file import ExactFile

        file = ExactFile(model, functions)
        result = ConversionResult(file.graph, tuple(file.lines()), is_packer_input=False)
        return _prepend_warnings(result)
    if to in STANDARD_FORMS:
        return _prepend_warnings(_convert_to_standard(model, to, samples))
    if detect_dialect(model) == DIALECT_BY_DOMAIN[to]:
        note = f"the graph is already of domain {to}; nothing was converted"
        return _prepend_warnings(ConversionResult(model.clone(), (note,)))
    graph, notes = detect_target(model).convert_dialect(model, to)
    store_provenance(
        graph,
        load_source_digest(model),
        load_quantize_settings(model),
        load_fixed_inputs(model),
        has_fixed_batch(model),
    )
    return _prepend_warnings(ConversionResult(graph, tuple(notes)))


def _prepend_warnings(result: ConversionResult) -> ConversionResult:
    """Return a copy of `result` with warnings about its graph's calibration before the notes."""
    warnings = [f"WARNING: {warning}" for warning in collect_calibration_warnings(result.graph)]
    return replace(result, notes=(*warnings, *result.notes))


def _convert_to_standard(
    model: ir.Model, to: str, samples: Mapping[str, np.ndarray] | None
) -> ConversionResult:
    """Convert an integer graph to "qdq" or "qoperator", with notes on differences to the simulator.

    `samples` (input name -> array) are the inputs on which both are compared; random ones if None.
    Does not modify `model`.
    """
    written = write_qdq(model)
    notes = [*written.notes, *format_differences(model, written, samples)]
    if to == "qoperator":
        count = to_qoperator(written.graph)
        notes.insert(
            0, f"{count} nodes are operators on integers; the standard has none for the others"
        )
    graph, batch_notes = _free_batch(model, written.graph)
    return ConversionResult(graph, (*notes, *batch_notes), is_packer_input=False)


def _free_batch(model: ir.Model, standard: ir.Model) -> tuple[ir.Model, list[str]]:
    """Return the standard graph of an integer graph for any batch size if possible, with a note.

    There is no note if the batch of `standard` is dynamic already.
    """
    from .qdq.exact.verification import random_feeds

    try:
        feeds = random_feeds(model, True, _BATCH_TRIAL_SAMPLES)
    except ConfigError as error:
        return standard, [f"batch 1, as the integer graph: {error}"]
    if feeds is None:
        return standard, ["batch as in the integer graph: input dimensions are unknown"]
    dynamic = make_batch_dynamic(model, standard, feeds)
    if not isinstance(dynamic, str):
        return dynamic, ["any batch size"]
    return standard, [f"batch 1, as the integer graph: {dynamic}"] if dynamic else []
