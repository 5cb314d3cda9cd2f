"""Any number of random nets through all checks: `python -m tests.fuzz -n 400 [--family F] [--chip
C] [--seed S]`.

Families and platforms take turns. Finished nets stand in a journal and are not run again. Of each
new kind of failure the smallest net that still fails is printed and written beside the journal.
Exit code 1 where a check failed.
"""

import argparse
import sys
import time
from pathlib import Path

import onnx

from tests.fuzz.checks import CHECKS, failures
from tests.fuzz.families import FAMILIES
from tests.fuzz.journal import Journal, failed, fell, kind, tables
from tests.fuzz.nets import case
from tests.fuzz.quantized_case import PLATFORMS, QuantizedCase
from tests.fuzz.shrink import shrink

DEFAULTS = 10  # one net in so many is quantized with the defaults, the others with --effort fast


def main(words=None):
    """Run the nets that are asked for, print the tables, return the exit code."""
    asked = _parser().parse_args(words)
    journal, known = Journal(asked.journal), set()
    for row in journal.rows.values():
        known.update(_kinds(row["platform"], failed(row)))
    done = []
    for number in range(asked.n):
        turn, place = divmod(number, len(asked.family) * len(asked.chip))
        platform, family = (
            asked.chip[place // len(asked.family)],
            asked.family[place % len(asked.family)],
        )
        seed = asked.seed + turn
        effort = "normal" if seed % DEFAULTS == DEFAULTS - 1 else "fast"
        net = case(family, seed)
        row = journal.rows.get((family, seed, platform, effort))
        if (
            row is None or row["net"] != net.digest
        ):  # not run yet, or the generator draws another one now
            row = _run(net, platform, effort, asked.check)
            journal.add(row)
            new = sorted(set(_kinds(platform, failed(row))) - known)
            known.update(new)
            if told := failed(row):
                _print(
                    f"{family} {seed} {platform}: "
                    + "; ".join(f"{c}: {t[0]}" for c, t in told.items())
                )
            for check in dict.fromkeys(check for _, check, _ in new) if asked.shrink else ():
                _smallest(row, check, asked.journal.parent, asked.shrink)
        done.append(row)
        if sys.stderr.isatty() or not (number + 1) % 100:
            print(
                f"{number + 1} of {asked.n}",
                end="\r" if sys.stderr.isatty() else "\n",
                file=sys.stderr,
                flush=True,
            )
    _print("\n".join(tables(done)))
    if asked.than:
        _print("\n".join(fell(done, Journal(asked.than))))
    return int(any(failed(row) for row in done))


def _run(net, platform, effort, names):
    """Return the row of a net."""
    start = time.perf_counter()
    made = QuantizedCase(net, platform, effort)
    found = failures(made, names)
    row = {
        "family": net.family,
        "kind": net.kind,
        "seed": net.seed,
        "net": net.digest,
        "platform": platform,
        "effort": effort,
        "ready": False,
        "why": "",
        "failed": found,
    }
    if "result" in vars(made):
        report = made.result.report
        row["ready"] = bool(report.chip_ready)
        row["sqnr"] = min(
            (values["sqnr"] for values in report.outputs.values() if "sqnr" in values), default=None
        )
        if made.chip_parts:
            row["parts"] = [part.choice.verdict.is_chip_ready for part in made.chip_parts]
        if not report.chip_ready and report.is_chip:
            floats = [node.why for node in (*report.float_nodes, *report.host_part)]
            row["why"] = next(
                iter([*(f.rule for f in report.findings if f.level != "plan"), *floats]), ""
            )
    row["seconds"] = round(time.perf_counter() - start, 2)
    return row


def _kinds(platform, failed):
    """Return (platform, check, sentence without its names and numbers) of every failure."""
    return [(platform, check, kind(text)) for check, texts in failed.items() for text in texts]


def _smallest(row, check, folder, seconds):
    """Print the smallest net that fails a check as `row` does, and write it."""
    platform, effort = row["platform"], row["effort"]
    names = None if check in ("error", "refused") else [check]

    def same(other):
        found = failures(QuantizedCase(other, platform, effort), names)
        return bool({kind(t) for t in failed(row)[check]} & {kind(t) for t in found.get(check, ())})

    small = shrink(case(row["family"], row["seed"]), same, seconds)
    path = folder / f"{check}-{row['family']}-{row['seed']}-{platform}.onnx"
    onnx.save(small.model, path)
    found = failures(QuantizedCase(small, platform, effort), names).get(
        check, ["it does not fail again"]
    )
    _print(
        f"  smallest: {path}: {found[0]}\n"
        + _indented(onnx.printer.to_text(_without_weights(small.model)))
    )


def _without_weights(model):
    """Return a copy whose constants are told by type and shape alone."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    large = [t for t in copy.graph.initializer if t.data_type == 1 and sum(t.dims) > 1]
    for tensor in large:
        copy.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, tensor.dims))
        copy.graph.initializer.remove(tensor)
    return copy


def _indented(text):
    return "\n".join(f"    {line}" for line in text.strip().splitlines())


def _print(text):
    print(text, flush=True)


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "-n", type=int, default=100, help="how many nets, counted on each platform (100)"
    )
    parser.add_argument(
        "--family", choices=FAMILIES, nargs="+", default=list(FAMILIES), help="default: all in turn"
    )
    parser.add_argument(
        "--chip", choices=PLATFORMS, nargs="+", default=list(PLATFORMS), help="default: all in turn"
    )
    parser.add_argument("--check", choices=CHECKS, nargs="+", help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument(
        "--journal", type=Path, default=Path("build/fuzz/journal.jsonl"), help="finished nets"
    )
    parser.add_argument(
        "--than", type=Path, help="an older journal: what was chip-ready there and is not now"
    )
    parser.add_argument(
        "--shrink", type=float, default=60.0, help="seconds for the smallest net; 0: none (60)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
