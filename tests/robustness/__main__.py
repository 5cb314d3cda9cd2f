"""Any number of hostile cases: `python -m tests.robustness -n 20000 [--seconds S] [--kind K ...]
[--seed S]`.

Kinds take turns. Each finished case is a line of the journal. Of each new way to fail the smallest
case that fails so is kept (`--keep tests/robustness/corpus`). Exit code 1 where one failed.
"""

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

from tests.robustness import memoization, process_pool
from tests.robustness.calls import BAD
from tests.robustness.case import Case
from tests.robustness.case_generators import KINDS, SPLICED, make

CORPUS = Path(__file__).parent / "corpus"


def main(words=None):
    """Run the cases that are asked for, print the tables, return the exit code."""
    asked = _parser().parse_args(words)
    memoization.memoize_expensive_work()
    process_pool.load(
        usual=not asked.corpus
    )  # which compiles, where nothing is in the cache: no case's time
    until = None if asked.seconds is None else time.monotonic() + asked.seconds
    if asked.corpus:
        cases = [
            ((path.stem, 0), partial(Case.read, path)) for path in sorted(CORPUS.glob("*.zip"))
        ]
    else:
        kinds = asked.kind or [*KINDS, *(SPLICED if asked.second else ())]
        kinds = list(SPLICED) if asked.second and not asked.kind else kinds
        cases = [
            ((kinds[i % len(kinds)], asked.seed + i // len(kinds)), None) for i in range(asked.n)
        ]
        cases = [(name, partial(make, *name)) for name, _ in cases]
    done, failed, start = Counter(), {}, time.monotonic()
    reached = Counter()
    asked.journal.parent.mkdir(parents=True, exist_ok=True)
    with asked.journal.open("a", encoding="utf-8") as journal:

        def ended(name, found):
            kind = name[0] if not asked.corpus else "corpus"
            done[kind, found["kind"]] += 1
            reached.update((kind, stage) for stage in found.get("reached", ()))
            journal.write(json.dumps({"input": name[0], "seed": name[1], **found}) + "\n")
            journal.flush()
            if found["kind"] in BAD:
                way = found["kind"], found["where"]
                if way not in failed:
                    print(f"{name[0]} {name[1]}: {found['kind']} {found['where']}", flush=True)
                failed.setdefault(way, []).append(name)
            if not done.total() % 1000:
                print(
                    f"{done.total()} cases, {time.monotonic() - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )

        process_pool.run(cases, asked.processes, ended, until, asked.nice)
    if asked.keep and not asked.corpus:
        for way, names in failed.items():
            _keep(way, min(names, key=lambda name: len(make(*name).packed())), asked.keep)
    _print(done, reached, failed, time.monotonic() - start)
    return int(bool(failed))


def _keep(way, name, folder):
    """Write the case `name`, with fewer changes where it still fails in the same way."""
    tries = [partial(make, *name, most) for most in (1, 2, 3)]
    found = []
    process_pool.run(
        [(number, each) for number, each in enumerate(tries)],
        1,
        lambda number, o: found.append((number, o)),
    )
    same = [
        number
        for number, o in sorted(found, key=lambda item: item[0])
        if (o["kind"], o["where"]) == way
    ]
    content = (tries[same[0]] if same else partial(make, *name))().packed()
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.blake2b(content, digest_size=4).hexdigest()
    (folder / f"{name[0]}-{digest}.zip").write_bytes(content)


def _print(done, reached, failed, seconds):
    """Print a table of the outcomes of each kind, with the shares that reached later stages."""
    kinds = list(dict.fromkeys(kind for kind, _ in done))
    columns = ("ok", "line", *BAD)
    stages = ("lowering", "binding")
    heads = ["input", "cases", *columns, *(f"{stage} %" for stage in stages)]
    print("\n| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for kind in [*kinds, None]:
        counts = [
            sum(n for (k, o), n in done.items() if o == column and kind in (None, k))
            for column in columns
        ]
        shares = [
            100
            * sum(n for (k, s), n in reached.items() if s == stage and kind in (None, k))
            / max(sum(counts), 1)
            for stage in stages
        ]
        cells = [kind or "all", sum(counts), *counts, *(f"{share:.1f}" for share in shares)]
        print("| " + " | ".join(map(str, cells)) + " |")
    print(f"\n{done.total()} cases in {seconds:.0f} s; {len(failed)} ways to fail")
    for (kind, where), names in sorted(failed.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):5} {kind} {where}: {' '.join(map(str, names[0]))}")


def _parser():
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description=__doc__)
    parser.add_argument("-n", type=int, default=2000, help="number of cases")
    parser.add_argument("--seconds", type=float, help="begin no case after so many seconds")
    parser.add_argument(
        "--kind", nargs="+", choices=[*KINDS, *SPLICED], help="default: all of the first grammar"
    )
    parser.add_argument(
        "--second",
        action="store_true",
        help="the second grammar: bytes and fields without a meaning",
    )
    parser.add_argument(
        "--corpus", action="store_true", help="every input that ever failed, in place of new ones"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed of each kind")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--nice", type=int, default=10, help="of the processes")
    parser.add_argument("--journal", type=Path, default=Path("build/hostile/journal.jsonl"))
    parser.add_argument(
        "--keep", type=Path, help="write the smallest case of each way to fail into this folder"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
