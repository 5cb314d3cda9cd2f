"""The order of the lowering rules and of the integer operators, frozen in a file.

`float_op` takes the first rule that fits, and of two rules for one integer operator the later one
lowers it, so the order is behaviour. A change of the order has to change `order.json`.
"""

import json
from pathlib import Path

from lingeronnx.operators import lowerings as ops
from lingeronnx.operators.integer_ops import INTEGER_OPS, TRAINING_ONLY_OPS

FROZEN = json.loads((Path(__file__).parent / "order.json").read_text())


def describe_rule(rule):
    """Name a rule by its title or its integer operator, and by the float operators that it
    takes.
    """
    floats = ", ".join(f"{domain}.{name}" if domain else name for domain, name in rule.floats)
    return f"{rule.composition_name or rule.integer_op.name}: {floats}"


def test_rules_of_each_float_operator_are_in_order():
    rules = {
        f"{domain}.{name}" if domain else name: [describe_rule(rule) for rule in candidates]
        for (domain, name), candidates in ops._RULES_BY_FLOAT_OP.items()
    }
    assert rules == FROZEN["rules"]


def test_the_rule_of_each_integer_operator():
    rules = {form.name: describe_rule(rule) for form, rule in ops._RULES_BY_INTEGER_OP.items()}
    assert rules == FROZEN["rule_of_format"]


def test_integer_operators_are_in_order():
    assert [form.name for form in INTEGER_OPS] == FROZEN["formats"]
    assert [form.name for form in TRAINING_ONLY_OPS] == FROZEN["trained_only"]
