"""Copy small cases of a set of measured packer rows into this folder, with a reduced index.

python tests/golden/choose_packer.py FOLDER [NAME ..]

FOLDER/NAME holds index.json of NAME: packer, executor, four_bits, executor_2.

Of every topic and platform of `packer` each seventh small graph is taken, with all its rows: both
sides of most limits. Of `executor` all are taken but whole models, of `four_bits` each third small
graph, no trained nets, of `executor_2` each third small graph of a topic, chip and outcome, without
integers.
"""

import json
import shutil
import sys
from pathlib import Path

#: Folder -> (its indices, bytes of the largest graph, one graph of how many, topics that are left out).
SETS = {
    "packer": (("", "more"), 5000, 7, ()),
    "executor": (("",), 80000, 1, ("whole_models",)),
    "four_bits": (("",), 6000, 3, ("w4_nets",)),
    "executor_2": (("", "more"), 7000, 3, ("w4_nets", "whole_models")),
}
#: Sets of which only the graphs are copied, with both outcomes of each topic.
WITHOUT_INTEGERS = ("executor_2",)
KEPT = (
    "id",
    "topic",
    "about",
    "file",
    "platform",
    "arguments",
    "packs",
    "error",
    "runs",
    "run_error",
    "equal_to_simulator",
    "simulator_note",
    "written_past_plan",
    "memory",
    "npz",
    "npz_keys",
)
#: Columns of some sets only.
MORE = ("package_bytes", "package_bytes_8", "outputs_as_packed", "shared_as_planned")


def choose(source: Path, target: Path) -> int:
    """Copy the chosen rows from `source` to `target`; return how many."""
    folders, limit, step, left_out = SETS[source.name]
    groups: dict[tuple[str, str], dict[str, list[dict]]] = {}
    for folder in folders:
        for row in json.loads((source / folder / "index.json").read_text()):
            row["file"], row["npz"] = (
                str(Path(folder, row["file"])),
                row["npz"] and str(Path(folder, row["npz"])),
            )
            if (source / row["file"]).stat().st_size <= limit and row["topic"] not in left_out:
                group = (row["topic"], row["platform"])
                if source.name in WITHOUT_INTEGERS:
                    row["npz"] = None
                    group = (*group, row["packs"], row["equal_to_simulator"])
                groups.setdefault(group, {}).setdefault(row["file"], []).append(row)
    rows, files = [], set()
    for graphs in groups.values():
        for name in sorted(graphs)[::step]:
            files.add(name)
            for row in graphs[name]:
                if row["npz"] and (source / row["npz"]).stat().st_size <= 2 * limit:
                    files.add(row["npz"])
                else:
                    row["npz"] = None
                rows.append(
                    {key: row.get(key) for key in KEPT}
                    | {key: row[key] for key in MORE if key in row}
                )
    for name in files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    target.mkdir(exist_ok=True)
    for extra in source.glob("attributes.json"):
        shutil.copyfile(extra, target / extra.name)
    lines = ",\n".join(json.dumps(row) for row in rows)
    (target / "index.json").write_text(f"[\n{lines}\n]\n")
    return len(rows)


if __name__ == "__main__":
    for name in sys.argv[2:] or SETS:
        print(choose(Path(sys.argv[1]) / name, Path(__file__).parent / name), "rows of", name)
