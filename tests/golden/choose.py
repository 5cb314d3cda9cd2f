"""Copy the small cases of a set of measured vectors into this folder, with a reduced index.

python tests/golden/choose.py FOLDER        # FOLDER holds index.json, <case>.onnx and <case>.npz

Small is up to `LIMIT` bytes, graph and figures together: every operator of every platform has such
cases. A few whole networks come on top.
"""

import json
import shutil
import sys
from pathlib import Path

LIMIT = 3000
NETWORKS = (
    "net_res_0",
    "net_mbv2_0",
    "net_dscnn_0",
    "net_concat_0",
    "net_cnn3_0",
    "net_qm1_0",
    "net_lstm_0",
)
SUFFIXES = (".onnx", ".npz")


def choose(source: Path, target: Path) -> int:
    """Copy the chosen cases from `source` to `target`; return how many."""
    index = json.loads((source / "index.json").read_text())
    networks = {f"venus_{name}" for name in NETWORKS}

    def small(name: str) -> bool:
        return sum((source / (name + suffix)).stat().st_size for suffix in SUFFIXES) <= LIMIT

    index["cases"] = [
        case for case in index["cases"] if case["name"] in networks or small(case["name"])
    ]
    del index["tables"]
    target.mkdir(exist_ok=True)
    for case in index["cases"]:
        for suffix in SUFFIXES:
            shutil.copyfile(source / (case["name"] + suffix), target / (case["name"] + suffix))
    (target / "index.json").write_text(json.dumps(index) + "\n")
    return len(index["cases"])


if __name__ == "__main__":
    print(choose(Path(sys.argv[1]), Path(__file__).parent / "luna"), "cases")
