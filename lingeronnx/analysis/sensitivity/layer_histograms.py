"""Histograms of the layers with least and most loss: float values, their grid, and clipped values.

The result is four PDF files with a page for each tensor, drawn by matplotlib (extra `report`). This
module knows layers and a plan, but not the reason for the ranking.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...common.errors import ConfigError
from ...common.escaping import escape_invisible
from ...common.files import replace_file
from ...ir import ir
from ...ir.plan import Affine
from ...operators.lowerings import get_weight_values
from ...quantization import PlannedModel
from .layers import RoundedOperator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_matplotlib", "clipped_fraction", "plot_histogram", "write_histograms"]

_BINS = 200
_MAX_GRID_LINES = 300  # grid lines that can be distinguished on a page

#: (title, values, quantization parameters)
Tensor = tuple[str, np.ndarray, Affine]


def check_matplotlib() -> None:
    """Raise ConfigError if matplotlib is not installed; else set MPLCONFIGDIR unless it is set.

    It is set to a folder in the cache of compiled code, so that a report creates no folder among
    the user's settings.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "histograms need matplotlib: pip install 'lingeronnx[report]', or omit the plots"
        )
    from simulator._disk_cache import cache_folder

    folder = cache_folder()
    if folder is not None:
        os.environ.setdefault("MPLCONFIGDIR", os.path.join(folder, "matplotlib"))


def write_histograms(
    folder: Path,
    planned: PlannedModel,
    worst_first: Sequence[RoundedOperator],
    outputs: Mapping[str, np.ndarray],
    count: int,
) -> None:
    """Write four PDF files into `folder`: weights and outputs of the `count` best and worst layers.

    They are called worst_weight_hist_result.pdf and so on (best, act). `worst_first` has the
    layers, most sensitive first; layers without rounded weights (or outputs) are not counted for
    the files of these. `outputs` has values of the float model's tensors on some samples, by name.
    """
    with_weights = [layer for layer in worst_first if layer.weight.weights]
    with_outputs = [layer for layer in worst_first if layer.activation.tensors]
    for name, ranked in (("weight", with_weights), ("act", with_outputs)):
        for side, layers in (("worst", ranked[:count]), ("best", ranked[::-1][:count])):
            pages: list[Tensor] = []
            for layer in layers:
                if name == "weight":
                    pages += _iter_weight_pages(planned, layer)
                else:
                    pages += _iter_output_pages(planned, layer, outputs)
            _write_pdf(folder / f"{side}_{name}_hist_result.pdf", pages)


def _iter_weight_pages(planned: PlannedModel, layer: RoundedOperator) -> Iterator[Tensor]:
    """Yield (title, float values, quantization parameters) of each quantized weight of a layer."""
    for node, op in planned.partition.integer_nodes:
        if node.name not in layer.weight.weights:
            continue
        for index in op.weight_inputs(node):
            name = ir.input_name(node, index)
            q, values = planned.plan.tensors.get(name), get_weight_values(node, index)
            if q is not None and values is not None:
                yield f"{layer.op_type} {layer.name}: {name}", np.asarray(values), q


def _iter_output_pages(
    planned: PlannedModel, layer: RoundedOperator, outputs: Mapping[str, np.ndarray]
) -> Iterator[Tensor]:
    """Yield (title, float values, quantization parameters) of the rounded outputs of a layer.

    They are sorted by name; tensors without values in `outputs` are left out.
    """
    for name in sorted(layer.activation.tensors):
        if name in outputs:
            yield f"{layer.op_type} {layer.name}: {name}", outputs[name], planned.plan.tensors[name]


def clipped_fraction(values: np.ndarray, qparams: Affine) -> float:
    """Return the fraction of float values more than half a step outside the range of the integers.

    0 without values.
    """
    if not values.size:
        return 0.0
    steps = qparams.counts(values) + qparams.centre(values.shape)
    return float(np.mean((steps < qparams.low - 0.5) | (steps >= qparams.high + 0.5)))


def plot_histogram(title: str, values: np.ndarray, qparams: Affine) -> Figure:
    """Draw float values as a matplotlib figure: histogram, quantization grid, and clipped ranges.

    The x axis is in the tensor's units, or in integer steps if there is a scale per channel; counts
    are logarithmic. Ranges that the integers do not cover are shaded. A grid of more than
    _MAX_GRID_LINES lines is not drawn. `values` must not be empty.
    """
    from matplotlib.figure import Figure

    if qparams.single:
        shown, step, zero_point = values.astype(np.float64), 1.0 / qparams.scale, qparams.zero_point
    else:
        shown, step, zero_point = qparams.counts(values), 1.0, 0
    low, high = ((bound - zero_point) * step for bound in (qparams.low, qparams.high))
    page = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = page.subplots()
    axes.hist(shown.reshape(-1), bins=_BINS, log=True, color="#4472a8", zorder=3)
    left, right = float(shown.min()), float(shown.max())
    margin = 0.03 * max(right - left, step)
    left, right = left - margin, right + margin
    first, last = max(low, np.ceil(left / step) * step), min(high, right)
    lines = np.arange(first, last + step / 2, step)
    if len(lines) <= _MAX_GRID_LINES:
        axes.vlines(
            lines,
            0,
            1,
            transform=axes.get_xaxis_transform(),
            color="#cccccc",
            linewidth=0.4,
            zorder=1,
        )
    for bound, edge in ((low, left), (high, right)):
        if left < bound < right:
            axes.axvline(bound, color="#c0392b", linestyle="--", linewidth=1.2, zorder=4)
            axes.axvspan(min(bound, edge), max(bound, edge), color="#c0392b", alpha=0.12, zorder=0)
    axes.set_xlim(left, right)
    axes.set_title(escape_invisible(title), fontsize=9, parse_math=False)
    axes.set_xlabel("value" if qparams.single else "steps")
    axes.set_ylabel("elements")
    axes.text(
        0.99,
        0.97,
        f"{qparams.bits} bits, step {step:.4g}, range {low:.4g} to {high:.4g}\n"
        f"{100 * clipped_fraction(values, qparams):.3g} % clipped",
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        zorder=5,
    )
    return page


def _write_pdf(path: Path, pages: Sequence[Tensor]) -> None:
    """Write a PDF file with one histogram per (title, float values, parameters) of `pages`.

    Characters of names that matplotlib's font lacks are drawn as boxes.
    """
    from matplotlib.backends.backend_pdf import PdfPages

    with (
        replace_file(path) as temporary,
        PdfPages(temporary, metadata={"CreationDate": None}) as pdf,
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        for title, values, q in pages:
            pdf.savefig(plot_histogram(title, values, q))
