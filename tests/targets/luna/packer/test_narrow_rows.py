"""Both judges on the rows of golden/executor_2, each by itself, and a rule for each wrong row."""

import functools
from pathlib import Path

import onnx
import pytest

from benchmarks.measured_agreement import JUDGES, MEASURED, compare_row, find_rows, is_right
from lingeronnx.luna.evaluation import evaluate_graph
from lingeronnx.targets import get_target

OWN = Path(__file__).resolve().parents[3] / "golden" / "executor_2"
FOLDERS = [MEASURED, MEASURED / "more"] if MEASURED.is_dir() else [OWN]


@functools.cache
def compare_all(judge_name):
    """Return [(row, answer, Agreement)] of all rows."""
    results = []
    for folder, row in find_rows(FOLDERS):
        answer = JUDGES[judge_name](
            onnx.load(folder / row["file"]), row["platform"], row["arguments"]
        )
        results.append((row, answer, compare_row(row, answer)))
    return results


#: Fields of an Agreement that count rows which a judge must not get wrong.
NONE_OF = (
    "wrong_called_right",
    "unpackable_accepted",
    "right_refused",
    "past_plan_unreported",
    "shared_differs",
    "order_differs",
)


@pytest.mark.parametrize("judge_name", JUDGES)
@pytest.mark.parametrize("field", NONE_OF)
def test_every_row(judge_name, field):
    """No row differs in its verdict, its planned shared memory or its order of outputs."""
    differing = [
        (row["id"], row["platform"], answer.reasons)
        for row, answer, agreement in compare_all(judge_name)
        if getattr(agreement, field)
    ]
    assert differing == []
    assert len(compare_all(judge_name)) >= 190


#: Topic -> words of the rule of the first judge, and of a problem of the second, that accounts for
#: a wrong or unpackable row.
RULES = {
    "mul_channels": (
        ("iqMul must stay within its work area", "the output of a 1x1 iqMul"),
        ("writes past its work area", "over the executor's own objects"),
    ),
    "depthwise_psram": (
        ("the output of a depthwise convolution over a small map",),
        ("a depthwise output outside shared memory",),
    ),
    "depthwise_1d": (("1-D convolutions must not be depthwise",), ("depthwise",)),
    "pad_64k": (("the output of an iqPad must have at most 65536 bytes",), ("above 65536",)),
    "lstm_prefetch": (("the constants of an LSTMInt must be multiples",), ("have gaps",)),
    "reshape_outputs": (
        ("must not be read by one other Reshape alone",),
        ("is merged into a second Reshape",),
    ),
    "group_names": (
        ("the name of a part must be free", "gives to a part of a constant"),
        ("exists already", "of another shape", "is taken for a part"),
    ),
    "wide_pools": (
        ("which is computed in parts of 8 channels", "as the executor counts it"),
        ("packer and executor part", "columns to its executor"),
    ),
    "conv_rows_left": (("no row may be left over",), ("rows are left over",)),
    "output_order": (("a graph input must not be a graph output",), ("is a graph output",)),
}


@pytest.mark.parametrize("number", (0, 1), ids=JUDGES)
@pytest.mark.parametrize("topic", RULES)
def test_one_rule_accounts_for_a_row(topic, number):
    """Each wrong row of a topic has a reason of that topic, and most have no other, so that without
    the rule they would be called right.
    """
    words = RULES[topic][number]
    rows = [
        (row, answer)
        for row, answer, _ in compare_all(list(JUDGES)[number])
        if row["topic"] == topic and not is_right(row)
    ]
    assert rows
    alone = 0
    for row, answer in rows:
        fitting = [reason for reason in answer.reasons if any(text in reason for text in words)]
        assert fitting, (row["id"], row["platform"], answer.reasons)
        alone += len(fitting) == len(answer.reasons)
    assert alone >= 0.5 * len(rows)


def find_graph(name, chip):
    """Return the graph and the arguments of a row."""
    folder, row = next(
        (folder, row)
        for folder, row in find_rows(FOLDERS)
        if (row["id"], row["platform"]) == (name, chip)
    )
    return onnx.load(folder / row["file"]), row["arguments"]


def test_live_bytes_count_for_each_memory():
    """The state lies where the result of the layer behind it will: the node with most bytes in
    psram is placed first there, whatever shared memory holds.
    """
    rows = [row for row, _, _ in compare_all("check") if row["id"] == "lstm_t5_i15_h22_v_h"]
    if not rows:
        pytest.skip("the measured rows are not part of the project")
    proto, arguments = find_graph("lstm_t5_i15_h22_v_h", "venusA")
    plan = evaluate_graph(proto, get_target("venusA"), arguments).memory_plan
    assert plan.psram_bytes == 48
