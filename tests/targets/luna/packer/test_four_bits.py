"""4-bit weights: our verdict, the planned bytes and the package's on every measured row; and each
rule on both sides.

The rows are `tests/golden/four_bits`, and all of the set it was chosen from, where that lies beside
the repository. The second judge, and the integers of `Session`, meet them in `test_packer_rows.py`.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from lingeronnx.luna.evaluation import evaluate_graph
from lingeronnx.luna.packer.memory.constants import compute_stored_sizes
from lingeronnx.targets import get_target
from tests import packer as second
from tests.targets.luna.packer.integer_nets import IntNet

HERE = Path(__file__).resolve()
FOLDERS = {
    "chosen": HERE.parents[3] / "golden" / "four_bits",
    "all": HERE.parents[5] / "shared" / "golden" / "four_bits",
}
OFF = "--dma_prefetch False"


@pytest.fixture(scope="module", params=["chosen", pytest.param("all", marks=pytest.mark.slow)])
def judged(request):
    """[(row, verdict)] of one of the sets of rows."""
    folder = FOLDERS[request.param]
    if not (folder / "index.json").is_file():
        pytest.skip("the measured rows are not part of the project")
    rows = json.loads((folder / "index.json").read_text())
    return [
        (
            r,
            evaluate_graph(
                onnx.load(folder / r["file"]), get_target(r["platform"]), r["arguments"]
            ),
        )
        for r in rows
    ]


def measured(row):
    """Return what became of a row."""
    if not row["packs"]:
        return "refused"
    return "right" if row["runs"] and row["equal_to_simulator"] else "wrong"


def test_every_verdict(judged):
    """To the last row, wrong and right alike."""
    said = [
        (r, "refused" if not v.is_packable else "right" if v.is_correct else "wrong")
        for r, v in judged
    ]
    assert [
        (r["id"], r["platform"], r["arguments"], what) for r, what in said if what != measured(r)
    ] == []
    assert {what for _, what in said} == {"refused", "right", "wrong"}


def test_writes_past_the_plan_are_told(judged):
    """Where one was seen there is a warning."""
    past = [
        (r, v) for r, v in judged if measured(r) == "right" and any(r["written_past_plan"] or [0])
    ]
    assert past
    assert all(v.has_overrun_warning for _, v in past)


def test_shared_memory(judged):
    """Buffers are planned for 8 bits whatever the width; constants in shared memory count at 4."""
    packed = [(r, v.memory_plan) for r, v in judged if r["packs"] and r["runs"] and r["memory"]]
    off = [(r["id"], r["platform"]) for r, m in packed if -(-m.shared // 64) * 64 != r["memory"][1]]
    assert len(off) <= len(packed) // 100, off


def test_package(judged):
    """The package is smaller by what the 4-bit constants save."""
    compared = 0
    for row, verdict in judged:
        if verdict.is_chip_ready and row["package_bytes_8"]:
            laid = compute_stored_sizes(verdict.graph, get_target(row["platform"])).values()
            saved = sum(one.fetched_bytes - one.written_bytes for one in laid)
            assert saved == row["package_bytes_8"] - row["package_bytes"], row["id"]
            compared += 1
    assert compared > 50


# ---- small graphs ----------------------------------------------------------------------------------------------------


def rules(net, *outputs, words=OFF):
    """Return the rules that a net breaks; the second judge agrees that it breaks some, or none."""
    model = net.model(*outputs)
    arguments = ["-p", net.platform.lower(), "-d", "False", *words.split()]
    said, other = (
        evaluate_graph(model, get_target(net.platform), arguments),
        second.judge(model, net.platform, arguments),
    )
    assert (said.is_packable, said.is_correct) == (
        other.packs,
        other.packs and len(other.problems) == len(other.past),
    )
    return [f.rule for f in said.findings if f.level != "plan"]


def layer(platform, channels, outputs, kernel, bits=4, behind=True, bias=False, group=1):
    """Return the rules that one convolution breaks, with an 8-bit one behind it or none."""
    net = IntNet(platform, (1, channels, 8, 8))
    y = net.conv("xq", outputs, kernel, "first", bias, bits, group)
    return rules(net, net.conv(y, 4, 1, "second", bias=False) if behind else y)


FILLS = "4-bit weights must fill their planned size if other constants follow them"


def test_outputs_channels_and_kernel_decide_on_arcs():
    """Wrong where half the outputs, an eighth of the channels and the sides of the kernel are all
    odd.
    """
    assert layer("arcs", 8, 2, 3) == layer("arcs", 24, 6, 1) == [FILLS]
    assert layer("arcs", 8, 4, 3) == layer("arcs", 16, 2, 3) == layer("venusA", 8, 2, 3) == []


def test_the_last_constant_may_misfit():
    """Nothing lies behind it; a bias does."""
    assert layer("arcs", 8, 2, 3, behind=False) == []
    assert layer("arcs", 8, 2, 3, behind=False, bias=True) == [FILLS]


def test_depthwise():
    """By an eighth of the channels, and rows rounded up to 2 on venusA."""
    assert layer("arcs", 16, 16, 3, group=16) == layer("venusA", 8, 8, 5, group=8) == [FILLS]
    assert layer("arcs", 24, 24, 3, group=24) == layer("venusA", 8, 8, 3, group=8) == []


def test_a_bias_is_not_fetched_ahead():
    """With 4-bit weights; with 8-bit ones it is, and weights without a bias are."""
    for bits, bias, broken in ((4, True, 1), (4, False, 0), (8, True, 0)):
        net = IntNet("arcs", (1, 8, 8, 8))
        assert len(rules(net, net.conv("xq", 4, 3, "y", bias, bits), words="")) == broken


def test_rows_of_a_matrix_are_packed_one_by_one():
    """Odd lengths may fit or not; one element never does; venusA computes none right."""
    for outputs, length, platform, broken in (
        (9, 31, "arcs", 0),
        (16, 33, "arcs", 1),
        (16, 1, "arcs", 1),
        (16, 32, "arcs", 0),
        (16, 32, "venusA", 1),
    ):
        net = IntNet(platform, (1, length))
        y = net.linear("xq", outputs, "y", bias=False, weight_bits=4)
        assert len(rules(net, net.linear(y, 4, "z", bias=False))) == broken, (outputs, length)


def test_wider_numbers_are_refused():
    """A weight of 8 in 4 bits."""
    net = IntNet("arcs", (1, 8, 8, 8))
    net.conv("xq", 4, 1, "y", False, 4)
    net.constants[0].CopyFrom(
        onnx.numpy_helper.from_array(np.full((4, 8, 1, 1), 8, np.int8), net.constants[0].name)
    )
    assert rules(net, "y") == ["4-bit weights must be integers from -8 to 7"]


def test_weights_of_two_nodes():
    """Two convolutions of 4 bits may share them; of two widths, or two layers of rows, no."""
    for other, platform, broken in ((4, "arcs", 0), (8, "venusA", 1)):
        net = IntNet(platform, (1, 8, 8, 8))
        y = net.conv("xq", 8, 1, "y", False, 4)
        z = net.conv(y, 8, 1, "z", False, other)
        net.nodes[-1].input[1] = net.nodes[-2].input[1]
        assert len(rules(net, z)) == broken
    net = IntNet("arcs", (1, 16))
    z = net.linear(
        net.linear("xq", 16, "y", bias=False, weight_bits=4), 16, "z", bias=False, weight_bits=4
    )
    net.nodes[-1].input[1] = net.nodes[-2].input[1]
    assert set(rules(net, z)) == {
        "4-bit weights must have one consumer, unless all are Conv2dInt with 4-bit weights"
    }


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
def test_random_nets(platform):
    """The two judges agree on nets of layers with either width, any sizes, biases or none."""
    rng, told = np.random.default_rng(34), set()
    for _ in range(30):
        net = IntNet(platform, (1, int(rng.integers(1, 40)), 6, 6))
        value = "xq"
        for index in range(int(rng.integers(1, 5))):
            channels, bits = net.shapes[value][1], int(rng.choice([4, 8]))
            group = channels if rng.integers(3) == 0 and channels > 1 else 1
            outputs = channels if group > 1 else int(rng.integers(1, 40))
            bias = bool(rng.integers(2))
            value = net.conv(
                value, outputs, int(rng.choice([1, 3, 5])), f"y{index}", bias, bits, group
            )
        told.add(bool(rules(net, value, words=str(rng.choice([OFF, "-m params:share-mem"])))))
    assert told == {False, True}
