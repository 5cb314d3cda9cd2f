"""The order of the lowering rules, frozen in a file where it decides something.

`find_lowering_rule` takes the first rule that fits, and of two rules for one integer operator the
later one lowers it. A change of such an order has to change `order.json`; an operator with one rule
has none.
"""

import json
from pathlib import Path

from lingeronnx.operators import lowerings as ops

FROZEN = json.loads((Path(__file__).parent / "order.json").read_text())


def describe_rule(rule):
    """Name a rule by its title or its integer operator, and by the float operators that it
    takes.
    """
    floats = ", ".join(f"{domain}.{name}" if domain else name for domain, name in rule.floats)
    return f"{rule.composition_name or rule.integer_op.name}: {floats}"


def test_rules_of_a_float_operator_are_in_order():
    rules = {
        f"{domain}.{name}" if domain else name: [describe_rule(rule) for rule in candidates]
        for (domain, name), candidates in ops._RULES_BY_FLOAT_OP.items()
        if len(candidates) > 1
    }
    assert rules == FROZEN["rules"]


def test_the_rule_of_each_integer_operator():
    rules = {}
    for form, rule in ops._RULES_BY_INTEGER_OP.items():
        candidates = [
            each
            for each in ops.LOWERING_RULES
            if each.integer_op is form and not each.composition_name
        ]
        if len(candidates) > 1:
            rules[form.name] = describe_rule(rule)
    assert rules == FROZEN["rule_of_integer_op"]
