"""What `sensitivity` predicts for its advice, and what `quantize` with these options then measures.

    python benchmarks/predicted_gains.py MODELS LOADERS [--only CASE ...] [--platform venus generic]

SQNR in dB of the output, on the samples that both saw: everything rounded, and with the advised
options. `quantize` is called with --effort fast, which rounds to nearest as the prediction does.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping

import numpy as np
from model_cases import CASES, add_folder_arguments

import lingeronnx as lo
from lingeronnx.analysis.stats.pair_measures import PairMeasures
from lingeronnx.quantization.config import parse_override
from lingeronnx.runtime.data import Data

LIMIT = 64  # samples


def measure_sqnr(
    model: str, feeds: Mapping[str, np.ndarray], platform: str, words: tuple[str, ...]
) -> float:
    """Return the SQNR in dB of the first output of what `quantize` makes with options."""
    skip: list[str] = []
    overrides: dict[str, dict[str, object]] = {}
    for word in words:
        option, value = shlex.split(word)
        if option == "--skip":
            skip.append(value)
        else:
            selector, settings = parse_override(value)
            overrides.setdefault(selector, {}).update(settings)
    made = lo.quantize(
        model, dict(feeds), platform=platform, skip=skip, overrides=overrides, effort="fast"
    )
    pair = PairMeasures()
    pair.add(lo.Session(model).run(None, feeds)[0], made.session().run(None, feeds)[0])
    return pair.sqnr


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_folder_arguments(parser)
    parser.add_argument("--platform", nargs="*", default=["venus", "generic"])
    args = parser.parse_args()
    print(
        "| net | platform | rounded | measured | predicted with advice | measured with it | "
        "options |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in args.only:
        case, model = CASES[name], CASES[name].model(args.models)
        feeds, _ = next(
            Data(
                case.get_calibration_data(args.loaders), lo.Session(model).inputs, limit=LIMIT
            ).batches(LIMIT)
        )
        for platform in args.platform:
            found = lo.sensitivity(model, dict(feeds), platform=platform, effort="fast")
            now = measure_sqnr(model, feeds, platform, ())
            best, row = found.best, f"| {name} | {platform} | {found.quantized:.1f} | {now:.1f} |"
            if best is None:
                print(f"{row} - | - | none: {found.finding} |", flush=True)
                continue
            then = measure_sqnr(model, feeds, platform, best.options)
            print(f"{row} {best.value:.1f} | {then:.1f} | {' '.join(best.options)} |", flush=True)


if __name__ == "__main__":
    main()
