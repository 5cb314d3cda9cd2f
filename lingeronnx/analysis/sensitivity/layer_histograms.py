"""Histograms of the layers that lose least and most.

Float values, the grid they are rounded to, what is cut off.
Four PDF files, a page for each tensor, with matplotlib (extra `report`). Knows layers and a plan,
not why they are ranked as they are.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ConfigError
from ...files import replace_file
from ...flow import PlannedModel
from ...graph import ir
from ...ops import get_weight_values
from ...plan import Affine
from .layers import RoundedOperator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_matplotlib", "clipped_share", "plot_histogram", "write_histograms"]

_BINS = 200
_MAX_GRID_LINES = 300  # lines of a grid that a page can show apart

#: (title, values, how they are held)
Tensor = tuple[str, np.ndarray, Affine]


def check_matplotlib() -> None:
    """Raise ConfigError where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "histograms need matplotlib: pip install 'lingeronnx[report]', or leave the plots out"
        )


def write_histograms(
    folder: Path,
    planned: PlannedModel,
    worst_first: Sequence[RoundedOperator],
    outputs: Mapping[str, np.ndarray],
    number: int,
) -> None:
    """Write the four files, of the `number` best and worst layers each.

    outputs : values of the float model's tensors, on some samples.
    """
    with_weights = [layer for layer in worst_first if layer.weight.weights]
    with_outputs = [layer for layer in worst_first if layer.activation.tensors]
    for name, ranked in (("weight", with_weights), ("act", with_outputs)):
        for side, chosen in (("worst", ranked[:number]), ("best", ranked[::-1][:number])):
            pages = [
                tensor
                for layer in chosen
                for tensor in (
                    _iter_weight_pages(planned, layer)
                    if name == "weight"
                    else _iter_output_pages(planned, layer, outputs)
                )
            ]
            _write_pdf(folder / f"{side}_{name}_hist_result.pdf", pages)


def _iter_weight_pages(planned: PlannedModel, layer: RoundedOperator) -> Iterator[Tensor]:
    for node, op in planned.partition.integer_nodes:
        if node.name in layer.weight.weights:
            for index in op.weight_inputs(node):
                q, values = (
                    planned.plan.tensors.get(ir.input_name(node, index)),
                    get_weight_values(node, index),
                )
                if q is not None and values is not None:
                    yield (
                        f"{layer.op_type} {layer.name}: {ir.input_name(node, index)}",
                        np.asarray(values),
                        q,
                    )


def _iter_output_pages(
    planned: PlannedModel, layer: RoundedOperator, outputs: Mapping[str, np.ndarray]
) -> Iterator[Tensor]:
    for name in sorted(layer.activation.tensors):
        if name in outputs:
            yield f"{layer.op_type} {layer.name}: {name}", outputs[name], planned.plan.tensors[name]


def clipped_share(values: np.ndarray, qparams: Affine) -> float:
    """Return the share of `values` that the grid does not reach, by more than half a step."""
    counts = qparams.counts(values) + qparams.centre(values.shape)
    return (
        float(np.mean((counts < qparams.low - 0.5) | (counts >= qparams.high + 0.5)))
        if values.size
        else 0.0
    )


def plot_histogram(title: str, values: np.ndarray, qparams: Affine) -> Figure:
    """Return a matplotlib figure of one tensor.

    In real units, or with a scale for each channel in counts.
    """
    from matplotlib.figure import Figure

    counts = not qparams.single
    shown = values.astype(np.float64) if not counts else qparams.counts(values)
    step = 1.0 if counts else 1.0 / qparams.scale
    low, high = (
        (bound - (0 if counts else qparams.zero_point)) * step
        for bound in (qparams.low, qparams.high)
    )
    page = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = page.subplots()
    axes.hist(shown.reshape(-1), bins=_BINS, log=True, color="#4472a8", zorder=3)
    left, right = float(shown.min()), float(shown.max())
    room = 0.03 * max(right - left, step)
    left, right = left - room, right + room
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
    for end, far in ((low, left), (high, right)):
        if left < end < right:
            axes.axvline(end, color="#c0392b", linestyle="--", linewidth=1.2, zorder=4)
            axes.axvspan(min(end, far), max(end, far), color="#c0392b", alpha=0.12, zorder=0)
    axes.set_xlim(left, right)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("counts" if counts else "real value")
    axes.set_ylabel("elements")
    axes.text(
        0.99,
        0.97,
        (
            f"{qparams.bits} bits, step {step:.4g}, holds {low:.4g} to "
            f"{high:.4g}\n{100 * clipped_share(values, qparams):.3g} % "
            "cut off"
        ),
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        zorder=5,
    )
    return page


def _write_pdf(path: Path, pages: Sequence[Tensor]) -> None:
    from matplotlib.backends.backend_pdf import PdfPages

    with (
        replace_file(path) as temporary,
        PdfPages(temporary, metadata={"CreationDate": None}) as pdf,
    ):
        for title, values, q in pages:
            pdf.savefig(plot_histogram(title, values, q))
