"""Whether KL orders as SQNR does: Spearman's rank correlation of KL with -SQNR, on each net.

    python benchmarks/kl_sqnr_correlation.py MODELS LOADERS [--only CASE ...] [--platform venus]

*noise*: every tensor of the net, in turn, with noise of 2 to 50 dB added; *bits*: rounded to 2 to 8 bits; the median
over the tensors. *operators*: the net's output with each operator rounded alone, as `sensitivity`
ranks them.
*tensors*: the rows of `compare`. KL compares which values occur and not where, so nothing makes the last one follow.
"""

from __future__ import annotations

import argparse

import numpy as np
from model_cases import CASES, Case, add_folder_arguments

import lingeronnx as lo
from lingeronnx.analysis.stats.pair_measures import PairMeasures
from lingeronnx.runtime.data import Data

LIMIT = 64  # samples
MOST = 20000  # elements of a tensor that are taken
LEVELS = range(2, 51, 4)  # dB
BITS = range(2, 9)


def correlation(kl: list[float], sqnr: list[float]) -> float:
    """Return Spearman's rank correlation of KL and -SQNR; nan for fewer than three pairs."""
    pairs = np.array([(a, -b) for a, b in zip(kl, sqnr, strict=True) if np.isfinite(b)])
    if len(pairs) < 3:
        return float("nan")
    ranks = [_ranks(column) for column in pairs.T]
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the mean rank of each value."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[place]


def correlate_tensor(x: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Return the correlations over noises and over widths of one tensor, float64 [n]."""
    noise = rng.standard_normal(x.size) * np.sqrt(np.mean(x**2))
    scales = [(2 ** (bits - 1) - 1) / np.abs(x).max() for bits in BITS]
    return (
        correlate_pairs(x, [x + noise * 10 ** (-level / 20) for level in LEVELS]),
        correlate_pairs(x, [np.rint(x * scale) / scale for scale in scales]),
    )


def correlate_pairs(x: np.ndarray, found: list[np.ndarray]) -> float:
    """Return the correlation over what became of a tensor."""
    measures = []
    for y in found:
        pair = PairMeasures()
        pair.add(x, y)
        measures.append(pair)
    return correlation([m.kl for m in measures], [m.sqnr for m in measures])


def correlate_model(model: str, data: str) -> list[float]:
    """Return the medians of `correlate_tensor` over the tensors of a net."""
    rng, session, found = np.random.default_rng(0), lo.Session(model), []
    feeds, _ = next(Data(data, session.inputs, limit=LIMIT).batches(LIMIT))
    for _, array, _ in session.taps(feeds):
        if array.dtype.kind == "f" and array.size > 100 and np.ptp(array) > 0:
            flat = array.reshape(-1).astype(np.float64)
            found.append(correlate_tensor(rng.permutation(flat)[:MOST], rng))
    return [float(value) for value in np.median(found, axis=0)]


def row(case: Case, args: argparse.Namespace) -> list[float]:
    """Return the correlations of a net, by column."""
    model, data = case.model(args.models), case.get_calibration_data(args.loaders)
    found = lo.sensitivity(model, data, metric=["KL", "SQNR"], platform=args.platform, limit=LIMIT)
    values = [ranked.values for ranked in found.ranking]
    compared = lo.compare(
        model, lo.quantize(model, data, platform=args.platform), data, limit=LIMIT
    ).rows
    return [
        *correlate_model(model, data),
        correlation([v[0] for v in values], [v[1] for v in values]),
        correlation([r.arrived.kl for r in compared], [r.arrived.sqnr for r in compared]),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_folder_arguments(parser)
    parser.add_argument("--platform", default="venus")
    args = parser.parse_args()
    print("| net | noise | bits | operators | tensors |\n|---|---|---|---|---|")
    for name in args.only:
        print(
            f"| {name} |" + "".join(f" {value:.2f} |" for value in row(CASES[name], args)),
            flush=True,
        )


if __name__ == "__main__":
    main()
