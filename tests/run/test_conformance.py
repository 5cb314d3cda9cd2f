"""Law: for every measured vector the Session gives the integers that the chip's software gives, bit
for bit.

The vectors are `tests/golden`, or a larger set of the same form where there is one: the environment
variable LINGERONNX_GOLDEN names its folder, or it lies beside the repository. Whole networks of the
vendor are only there.
"""

import functools
import json
import os
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import onnx
import pytest

from lingeronnx.common.errors import LingerOnnxError
from lingeronnx.operators.integer_ops import INTEGER_OPS
from lingeronnx.runtime.session import Session
from lingeronnx.targets import PLATFORMS

HERE = Path(__file__).resolve()


def golden():
    """Return the folder with the vectors: the variable's, the one beside the repository, else our
    own.
    """
    if named := os.environ.get("LINGERONNX_GOLDEN"):
        return Path(named)
    beside = HERE.parents[2].parent / "shared" / "golden"
    return beside if (beside / "luna" / "index.json").is_file() else HERE.parents[1] / "golden"


LUNA, VENDOR = golden() / "luna", golden() / "vendor"
KNOWN = {name for form in INTEGER_OPS for name in form.names} | {"Constant"}
CASES = [
    case
    for case in json.loads((LUNA / "index.json").read_text())["cases"]
    if case["platform"] in {target.name for target in PLATFORMS if target.has_packer}
]


@functools.cache
def _missing(name):
    """Return an operator of the case's graph that lingeronnx has no integer form of, or None."""
    graph = onnx.load(LUNA / f"{name}.onnx").graph
    return next((node.op_type for node in graph.node if node.op_type not in KNOWN), None)


GROUPS = defaultdict(list)
for _case in CASES:
    GROUPS[_case["platform"], _case["op"], _missing(_case["name"])].append(_case)


@functools.cache
def _difference(name):
    """Run one case; return what differs, or an empty string when every output is exact."""
    case = next(case for case in CASES if case["name"] == name)
    want = np.load(LUNA / f"{name}.npz")
    try:
        session = Session(LUNA / f"{name}.onnx")
        writers = {v.name: node for node in session.model.graph for v in node.outputs}
        names = {}  # the vector holds the integers before a Dequant at a graph output
        for output in case["outputs"]:
            node = writers[output]
            names[output] = str(node.inputs[0].name) if node.op_type == "Dequant" else output
        feeds = {key: want[key] for key in case["inputs"]}
        got = {key: array for key, array, _ in session.taps(feeds, list(names.values()))}
    except LingerOnnxError as error:
        return f"{name}: {error}"
    for output, tensor in names.items():
        have, exact = got[tensor], want[output]
        if have.shape != exact.shape or have.dtype.kind != "i":
            return (
                f"{name}: {output} is {have.dtype} {have.shape}, measured {exact.dtype} "
                f"{exact.shape}"
            )
        if not np.array_equal(have, exact):
            off = np.flatnonzero(have.reshape(-1) != exact.reshape(-1))
            first = have.reshape(-1)[off[0]], exact.reshape(-1)[off[0]]
            return (
                f"{name} ({case['probe']}): {len(off)} of {have.size} differ, the first is "
                f"{first[0]} for {first[1]}"
            )
    return ""


@pytest.mark.sweep
@pytest.mark.parametrize(
    "key",
    GROUPS,
    ids=lambda key: (
        f"{key[0]}-{key[1]}" + (f"-with-{key[2]}" if key[2] not in (None, key[1]) else "")
    ),
)
def test_bit_exact(key, record_property):
    """Every vector of an operator that lingeronnx has is reproduced exactly."""
    _, operator, missing = key
    if missing is not None:
        pytest.skip(
            f"not applicable: {missing} is not supported yet ({len(GROUPS[key])} cases of "
            f"{operator})"
        )
    record_property("cases", len(GROUPS[key]))
    wrong = [text for case in GROUPS[key] if (text := _difference(case["name"]))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_summary(capsys):
    """Print what was run and what was not; every case is in one of the columns, and the core is not
    skipped.
    """
    rows = defaultdict(lambda: [0, 0, Counter()])
    for (platform, operator, missing), cases in GROUPS.items():
        row = rows[platform, operator]
        row[0] += len(cases)
        if missing is not None:
            row[2][missing] += len(cases)
        else:
            row[1] += sum(not _difference(case["name"]) for case in cases)
    with capsys.disabled():
        print(
            f"\n{'platform':<10}{'operator':<22}{'cases':>6}{'exact':>7}{'wrong':>7}  not "
            "applicable"
        )
        for (platform, operator), (total, exact, absent) in sorted(rows.items()):
            why = ", ".join(
                f"{count}: {name} is not supported yet" for name, count in absent.items()
            )
            wrong = total - exact - absent.total()
            print(f"{platform:<10}{operator:<22}{total:>6}{exact:>7}{wrong:>7}  {why}")
    assert sum(row[0] for row in rows.values()) == len(CASES) > 0
    core = (
        "Conv2dInt",
        "Conv1dInt",
        "LinearInt",
        "iqAdd",
        "iqMul",
        "iqCat",
        "AvgPool2dInt",
        "MaxPool",
        "Requant",
    )
    assert all(rows["venus", operator][1] > 0 for operator in core)


@pytest.mark.skipif(
    not (VENDOR / "index.json").is_file(), reason="the vendor's networks are not at hand"
)
@pytest.mark.parametrize("number", (0, 1))
def test_vendor_network(number):
    """Whole networks, all inputs, and all layers where they were measured."""
    entry = json.loads((VENDOR / "index.json").read_text())[number]
    session, vectors = Session(VENDOR / entry["model"]), np.load(VENDOR / entry["file"])
    last = [node for node in session.model.graph if node.op_type == "Dequant"][-1]
    x = vectors["input_int8"].reshape(-1, *session.get_inputs()[0].shape[1:])
    assert len(x) == entry["n"]
    (got,) = session.run([str(last.inputs[0].name)], {entry["input"]: x})
    assert np.array_equal(got.reshape(vectors["output_int8"].shape), vectors["output_int8"])
    if "layers" in entry:
        layers = np.load(VENDOR / entry["layers"]["file"])
        taps = {name: array for name, array, _ in session.taps({entry["input"]: x[:1]})}
        wrong = [
            key
            for key in layers.files
            if not np.array_equal(
                taps[key.removeprefix("layer_")].reshape(layers[key].shape), layers[key]
            )
        ]
        assert layers.files
        assert not wrong
    if "float_example" in entry:
        shape = (1, *session.get_inputs()[0].shape[1:])
        real = np.fromfile(VENDOR / entry["float_example"]["input"], np.float32).reshape(shape)
        want = np.fromfile(VENDOR / entry["float_example"]["output"], np.float32)
        assert np.array_equal(session(real).reshape(-1), want)
