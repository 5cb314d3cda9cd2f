"""Law: tests/packer judges every measured row as the packer and its executor did, and where they
agree so do we.

The rows are `tests/golden/packer` and `tests/golden/four_bits`, and, where they lie beside the
repository, all of the sets that these were chosen from, the row tiles and what our own graphs met
on the executors.
"""

import functools
import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import onnx
import pytest

from lingeronnx.runtime.session import Session
from tests.packer import format_checks, judge

HERE = Path(__file__).resolve()
BESIDE = HERE.parents[5] / "shared" / "golden"
FOLDERS = {
    "chosen": [HERE.parents[3] / "golden" / name for name in ("packer", "four_bits")],
    "all": [BESIDE / name for name in ("packer", "packer/more", "tiles", "executor", "four_bits")],
}
CHIPS = ("venus", "arcs", "venusA")

#: (row ids) -> why the integers of a row that is equal are not ours: none
EXCEPTIONS: dict[str, str] = {}


@functools.cache
def rows_of(name):
    """Return (folder, row) of every row of the sets called `name`; none where these are not
    here.
    """
    folders = [folder for folder in FOLDERS[name] if (folder / "index.json").is_file()]
    return [
        (folder, row)
        for folder in folders
        for row in json.loads((folder / "index.json").read_text())
    ]


@functools.cache
def graph(path):
    """Return the ModelProto of a file."""
    return onnx.load(path)


@pytest.fixture(scope="module", params=["chosen", pytest.param("all", marks=pytest.mark.slow)])
def judged(request):
    """[(row, Verdict)] of each row of one of the sets."""
    if not rows_of(request.param):
        pytest.skip("the measured rows are not part of the project")
    return [
        (row, judge(graph(folder / row["file"]), row["platform"], row["arguments"]))
        for folder, row in rows_of(request.param)
    ]


def kind(row):
    """Return "wrong", "right", or None for a row in neither count (not measured, or right and past
    the plan).
    """
    if not row["packs"] or row["runs"] is None or "not measurable" in (row["run_error"] or ""):
        return None
    if not row["runs"] or row["equal_to_simulator"] is False:
        return "wrong"
    return "right" if row["equal_to_simulator"] and row["written_past_plan"] == [0, 0] else None


def table(judged):
    """Return per topic and in total: {topic: {kind: [judged so, measured so]}}."""
    counts = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for row, verdict in judged:
        seen, packed = kind(row), "packs" if row["packs"] else "packs not"
        for topic in (row["topic"], "all"):
            counts[topic][packed][0] += verdict.packs == row["packs"]
            counts[topic][packed][1] += 1
            if seen:
                counts[topic][seen][0] += verdict.right == (seen == "right")
                counts[topic][seen][1] += 1
            if row["packs"] and row["memory"]:
                counts[topic]["memory"][0] += verdict.shared == row["memory"][1]
                counts[topic]["memory"][1] += 1
    return counts


def test_packs(judged):
    """What packs and what does not, to the last row."""
    columns = ("packs", "packs not", "wrong", "right", "memory")
    print("\n" + f"{'topic':20}" + "".join(f"{name:>14}" for name in columns))
    for topic, kinds in sorted(table(judged).items()):
        print(f"{topic:20}" + "".join(f"{'/'.join(map(str, kinds[name])):>14}" for name in columns))
    missed = [
        (row["id"], row["platform"], row["arguments"], row["error"], verdict.problems)
        for row, verdict in judged
        if verdict.packs != row["packs"]
    ]
    assert missed == []


def share(pair):
    """Return judged so / measured so."""
    return pair[0] / pair[1] if pair[1] else 1.0


def test_right_and_wrong(judged):
    """All that was measured wrong is called so, and nearly all that was measured right."""
    counts = table(judged)
    assert share(counts["all"]["wrong"]) == 1
    assert share(counts["all"]["right"]) >= 0.99
    for topic, kinds in counts.items():
        assert share(kinds["right"]) >= 0.80, topic


def test_memory(judged):
    """The planned bytes of shared memory, rounded up to 64."""
    assert share(table(judged)["all"]["memory"]) >= 0.99


def test_needed_bytes(judged):
    """Where the plan is above the limit, the bytes are those that the packer names."""
    for row, verdict in judged:
        if (row["error"] or "").startswith("shared memory: "):
            assert verdict.problems == [row["error"]]


def test_every_verdict_says_why(judged):
    """A verdict that is not right has a reason."""
    assert all(verdict.right == (not verdict.problems) for _, verdict in judged)


def test_attributes():
    """The attributes that may not be missing are those measured, for each operator and platform."""
    measured = json.loads((FOLDERS["chosen"][0] / "attributes.json").read_text())
    for op, dropped in measured.items():
        whole = dropped.pop("(none missing)")
        for name, answers in dropped.items():
            for platform, answer in answers.items():
                if "does not pack" not in whole[platform]:
                    assert (name in format_checks.needed(op, platform, 2)) == (
                        "does not pack" in answer
                    ), (
                        op,
                        name,
                        platform,
                    )


# ---- the integers ----------------------------------------------------------------------------------------------------


def outputs_file(folder, row):
    """Return where the outputs of a row are kept."""
    return folder, row["npz"], row.get("npz_keys")


@functools.cache
def stored_rows(name):
    """Return (folder, row) of the rows of the sets called `name` whose outputs are kept.

    An npz that several rows name holds the outputs of one of them: where one of these is wrong,
    they may be its own.
    """
    rows = rows_of(name)
    spoiled = {
        outputs_file(folder, row) for folder, row in rows if row["equal_to_simulator"] is False
    }
    equal = [(folder, row) for folder, row in rows if row["npz"] and row["equal_to_simulator"]]
    return [(folder, row) for folder, row in equal if outputs_file(folder, row) not in spoiled]


def feeds(model, arrays):
    """Return what Session is fed: integers, or real values where a move stands between the input
    and its Quant.
    """
    constants = {t.name for t in model.graph.initializer}
    names = [v.name for v in model.graph.input if v.name not in constants]
    readers = {name: node for node in model.graph.node for name in node.input}
    result = {}
    for i, name in enumerate(names):
        node, array = readers[name], arrays(f"in{i}")
        if node.op_type in ("Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze"):
            while node.op_type != "Quant":
                node = readers[node.output[0]]
            array = array / np.float32(next(a.f for a in node.attribute if a.name == "scale_x"))
        result[name] = array
    return result


def differing(folder, row):
    """Return the outputs whose integers differ from the stored ones."""
    model = graph(folder / row["file"])
    stored, keys = np.load(folder / row["npz"]), row["npz_keys"] or ""

    def arrays(name):
        return stored[f"{keys}s0_{name}" if f"{keys}s0_{name}" in stored else f"s0_{name}"]

    writers = {name: node for node in model.graph.node for name in node.output}
    outputs = [v.name for v in model.graph.output]
    outputs = [writers[n].input[0] if writers[n].op_type == "Dequant" else n for n in outputs]
    got = {
        name: array
        for name, array, _ in Session(folder / row["file"]).taps(feeds(model, arrays), outputs)
    }
    return [
        name for i, name in enumerate(outputs) if not np.array_equal(got[name], arrays(f"out{i}"))
    ]


def compare_integers(rows, platform):
    """Compare the integers of the rows of a platform; return how many were compared, and those that
    differ.
    """
    done, bad = Counter(), []
    for folder, row in rows:
        file = str(folder / row["file"]), row["npz_keys"]
        if row["platform"] == platform and row["id"] not in EXCEPTIONS and not done[file]:
            done[file] += 1
            bad += [(row["id"], row["platform"], name) for name in differing(folder, row)]
    return len(done), bad


def test_integers_of_chosen_rows():
    """Where a row of the repository says equal, `Session` gives the integers that the executor
    gave.
    """
    for platform in CHIPS:
        compared, bad = compare_integers(stored_rows("chosen"), platform)
        assert compared > 20
        assert bad == []


@pytest.mark.slow
@pytest.mark.parametrize("platform", CHIPS)
def test_integers(platform):
    """The same of all rows."""
    if not rows_of("all"):
        pytest.skip("the measured rows are not part of the project")
    compared, bad = compare_integers(stored_rows("all"), platform)
    assert compared > 200
    assert bad == []
