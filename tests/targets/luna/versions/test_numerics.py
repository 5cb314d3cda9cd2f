"""Law: on every row that follows the formula of its version, the simulator and the plain classes
give the integers that the executor gave.
"""

import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from benchmarks.version_agreement import (
    ROWS,
    explain_difference,
    find_rows,
    follows_formula,
    get_feeds,
    get_row_target,
    simulate,
)

FORMULA_ROWS = [row for row in find_rows(ROWS) if follows_formula(row)]
OPERATORS = sorted({row["operator"] for row in FORMULA_ROWS})


def evaluate(folder, row):
    """Return the outputs of a row's graph by the plain classes."""
    classes = lo.reference_ops(get_row_target(row))
    names = {each.__name__ for each in classes}
    proto = onnx.load(folder / row["file"])
    for node in proto.graph.node:  # the rows' graphs have no domain
        if node.op_type in names:
            node.domain = "thinker"
    proto.opset_import.append(onnx.helper.make_opsetid("thinker", 1))
    return ReferenceEvaluator(proto, new_ops=classes).run(None, get_feeds(folder, row))


def find_differences(operator, compute):
    """Return {row: difference} for the rows of an operator whose outputs are not the measured."""
    rows = [row for row in FORMULA_ROWS if row["operator"] == operator]
    assert rows
    texts = {row["name"]: explain_difference(ROWS, row, compute(ROWS, row)) for row in rows}
    return {name: text for name, text in texts.items() if text}


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_simulator_gives_the_measured_integers(operator):
    assert not find_differences(operator, simulate)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_plain_classes_give_the_measured_integers(operator):
    assert not find_differences(operator, evaluate)
