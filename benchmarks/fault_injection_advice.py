"""Planted faults, and what the advice gives back.

The options that `compare` prints, pasted and measured.
    python -m benchmarks.fault_injection_advice [--each 4] [--jobs 1] [--kind scale_small ...]
    [--net dense ...] [--details]

Every graph is what ``lingeronnx quantize`` writes: with the options that make a fault of
`planted_faults`, or spoiled after it was made. Counted is how often the first finding names the
layer and the cause; what is found without the fault, too, is skipped: plain scales have faults of
their own. Then the model is quantized again with the advised options behind the others, and without
the change where the graph was changed. All levels are the SQNR in dB of the worst output against
the float model, on samples that nothing was calibrated with, none counted above 60 dB:

    took        what the net without the fault has, less what the spoiled one has
    given back  what the mended one has, less what the spoiled one has; in percent of what the fault
    took idle        options were advised, and change less than half a dB

What takes less than half a dB is not counted as a loss. Where the fault is the data's form, nothing
is given back that could be told in percent: data prepared as for calibration give what the sound
net has, and after calibration with data of the other form the levels are of other data. `--details`
tells them.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.fault_injection import (
    FAULT_INJECTORS,
    NETS,
    PLAIN,
    InjectedFault,
    Net,
    Outcome,
    evaluate_first_finding,
    get_applicable_faults,
    inject_concat_scale,
)
from lingeronnx.analysis.compare.compare import compare
from lingeronnx.common.arithmetic import ratio_db
from lingeronnx.ir import ir
from lingeronnx.runtime.session import Session

_SUFFICIENT_SQNR_DB = 60.0  # dB that count
_LEAST = 0.5  # dB that count as a loss, or as a gain
_MIN_RECOVERED_SHARE = 0.8  # share of a loss that the remedy shall give back


@cache
def make_net(name: str) -> Net:
    """Return a net with the graph that the command makes of it, once for each process."""
    net = NETS[name]()
    net.lowered = quantized(net.model, net.calib, ())
    return net


def measure_worst_sqnr(model: ir.Model, graph: ir.Model, data: Mapping[str, np.ndarray]) -> float:
    """Return the SQNR in dB of the worst output of `graph` against the float `model`."""
    pairs = zip(Session(model).run(None, data), Session(graph).run(None, data), strict=True)
    levels = [
        ratio_db(float(np.square(x).sum()), float(np.square(x - y).sum()))
        for x, y in _float64(pairs)
    ]
    return min(_SUFFICIENT_SQNR_DB, *levels)


def _float64(
    pairs: Iterator[tuple[np.ndarray, np.ndarray]],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return ((x.astype(np.float64), y.astype(np.float64)) for x, y in pairs)


def quantized(model: ir.Model, calib: np.ndarray, options: Sequence[str]) -> ir.Model:
    """Return what ``lingeronnx quantize MODEL --calib DATA`` and these options write."""
    with tempfile.TemporaryDirectory() as folder:
        source, data, target = (
            Path(folder) / name for name in ("model.onnx", "calib.npy", "quant.onnx")
        )
        source.write_bytes(ir.to_bytes(model))
        np.save(data, calib)
        words = [
            sys.executable,
            "-m",
            "lingeronnx",
            "quantize",
            source,
            "--calib",
            data,
            "-o",
            target,
            *options,
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(
                f"quantize {shlex.join(options)} ended with {done.returncode}: "
                f"{done.stderr.strip()}"
            )
        return ir.load(target)


@cache
def measure_sound_sqnr(name: str, plain: bool) -> float:
    """Return the level of a net without a fault."""
    net = make_net(name)
    return measure_worst_sqnr(
        net.model, quantized(net.model, net.calib, PLAIN) if plain else net.lowered, net.data
    )


@cache
def own_findings(name: str) -> frozenset[tuple[str, str]]:
    """Return (kind, layer) of what `compare` finds in a net without a fault, under plain scales."""
    net = make_net(name)
    found = compare(net.model, quantized(net.model, net.calib, PLAIN), net.data).findings
    return frozenset((finding.kind, finding.layer) for finding in found)


@dataclass(frozen=True)
class AdviceOutcome:
    """What a fault took, and what its remedy gave.

    Levels in dB of the sound, the spoiled and the mended model.
    without : of the model quantized again in the user's way, without the options. data : whether
    the fault is there.
    """

    outcome: Outcome
    sound_sqnr: float
    faulty_sqnr: float
    without: float
    advised_sqnr: float
    data: bool

    @property
    def get_loss_db(self) -> float:
        """What the fault took, in dB."""
        return self.sound_sqnr - self.faulty_sqnr

    @property
    def get_recovered_share(self) -> float:
        """Share of that which the remedy gave back."""
        return (self.advised_sqnr - self.faulty_sqnr) / self.get_loss_db

    @property
    def has_useless_advice(self) -> bool:
        """Whether options were advised that change next to nothing."""
        return bool(self.outcome.options) and self.advised_sqnr - self.without < _LEAST


def apply_advice(name: str, kind: int, seed: int) -> AdviceOutcome:
    """Plant a fault, and do what the advice says."""
    net = make_net(name)
    fault: InjectedFault = FAULT_INJECTORS[kind](net, np.random.default_rng(seed))
    calib = net.calib if fault.calib is None else fault.calib
    again = quantized(fault.model, calib, fault.expected_sentence)
    fault = replace(fault, graph=again) if fault.expected_sentence else fault
    outcome = evaluate_first_finding(
        fault, own_findings(name) if fault.expected_sentence == PLAIN else ()
    )
    options = shlex.split(outcome.options)
    best = quantized(fault.model, calib, [*fault.expected_sentence, *options]) if options else again
    levels = [
        measure_worst_sqnr(fault.model, graph, fault.data) for graph in (fault.graph, again, best)
    ]
    return AdviceOutcome(
        outcome,
        measure_sound_sqnr(name, fault.expected_sentence == PLAIN),
        *levels,
        data=fault.calib is not None,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=4, help="spoiled models of each kind and net")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--kind", nargs="*", default=[*map(_kind_name, FAULT_INJECTORS)], help="these kinds alone"
    )
    parser.add_argument(
        "--net", choices=list(NETS), nargs="*", default=list(NETS), help="these nets alone"
    )
    parser.add_argument("--details", action="store_true", help="print each spoiled model")
    given = parser.parse_args()
    work = {
        index: [
            (net, index, seed)
            for net in _of(given.net, index)
            for seed in range(given.each * _times(kind))
        ]
        for index, kind in enumerate(FAULT_INJECTORS)
        if _kind_name(kind) in given.kind
    }
    print(
        "| fault | layer | cause | took, median dB | took 0.5 dB | given back | 80 % given back | "
        "idle options |"
    )
    print("|---|---|---|---|---|---|---|---|")
    every: list[AdviceOutcome] = []
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        futures = {
            index: [pool.submit(apply_advice, *item) for item in items]
            for index, items in work.items()
        }
        for index, items in work.items():
            found = [future.result() for future in futures[index]]
            every += found
            for item, one in zip(items, found, strict=True) if given.details else ():
                print(
                    f"  {_kind_name(FAULT_INJECTORS[index])} {item}: {_told(one)}", file=sys.stderr
                )
            print(
                _row((FAULT_INJECTORS[index].__doc__ or "").splitlines()[0].rstrip("."), found),
                flush=True,
            )
    print(_row("all", every))


def _kind_name(inject: Callable[..., object]) -> str:
    """Return the name of a kind of fault: that of its function without `inject_`."""
    return inject.__name__.removeprefix("inject_")


def _times(kind: object) -> int:
    return 2 if kind is inject_concat_scale else 1


def _of(nets: Sequence[str], kind: int) -> list[str]:
    """Return the nets that have what a kind spoils."""
    return [net for net in nets if kind in _kinds(net)]


@cache
def _kinds(net: str) -> frozenset[int]:
    return frozenset(get_applicable_faults(NETS[net]()))


def _told(one: AdviceOutcome) -> str:
    levels = (
        f"sound {one.sound_sqnr:.1f}, spoiled {one.faulty_sqnr:.1f}, without {one.without:.1f}, "
        "mended "
        f"{one.advised_sqnr:.1f}"
    )
    right = (
        ""
        if one.outcome.layer and one.outcome.cause
        else f"; wanted {one.outcome.wanted}, said {one.outcome.first}"
    )
    return f"{levels}; options '{one.outcome.options}'{right}"


def _row(title: str, found: Sequence[AdviceOutcome]) -> str:
    many, lost = len(found), [one for one in found if one.get_loss_db >= _LEAST and not one.data]
    layer, cause = (sum(getattr(one.outcome, key) for one in found) for key in ("layer", "cause"))
    took, given = (
        sum(values)
        for values in (
            [o.get_loss_db for o in lost],
            [o.get_recovered_share * o.get_loss_db for o in lost],
        )
    )
    cells = [
        title,
        f"{layer} of {many}",
        f"{cause} of {many}",
        f"{np.median([one.get_loss_db for one in found]):.1f}",
    ]
    cells += [
        f"{sum(one.get_loss_db >= _LEAST for one in found)} of {many}",
        f"{100 * given / took:.0f} %" if lost else "-",
    ]
    cells += [
        f"{sum(one.get_recovered_share >= _MIN_RECOVERED_SHARE for one in lost)} of {len(lost)}"
        if lost
        else "-"
    ]
    return "| " + " | ".join([*cells, str(sum(one.has_useless_advice for one in found))]) + " |"


if __name__ == "__main__":
    main()
