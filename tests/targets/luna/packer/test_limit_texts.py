"""Every limit of the packer and of the operators has a rule and a remedy that can be formatted."""

from string import Formatter

import pytest

from lingeronnx.luna.packer.limits.limit_tables import (
    CORRECTNESS_LIMITS,
    DISCOURAGED,
    PACKER_LIMITS,
)
from lingeronnx.operators.lowerings import LOWERING_RULES, format_limit_rule
from lingeronnx.targets import get_target

PACKER_TABLES = (PACKER_LIMITS, CORRECTNESS_LIMITS, DISCOURAGED)


def has_missing_group(limit, target):
    """Whether a placeholder refers to a group of limits that is None: never reported there."""
    fields = [field for _, field, _, _ in Formatter().parse(limit.__doc__) if field]
    groups = [field.split(".")[1] for field in fields if field.startswith("target.")]
    return any(getattr(target, group) is None for group in groups)


@pytest.mark.parametrize("chip", ["venus", "arcs", "venusA"])
def test_rules_and_remedies(chip):
    """The placeholders of a limit's docstring name attributes that exist, and a remedy follows."""
    target = get_target(chip)
    limits = {limit for table in PACKER_TABLES for row in table.values() for limit in row}
    for rule in LOWERING_RULES:
        if rule.is_available(target):
            limits.update(rule.get_limits(target))
    assert len(limits) > 50
    for limit in limits:
        if has_missing_group(limit, target):
            continue
        rule_text, remedy = format_limit_rule(limit, target)
        assert rule_text, limit
        assert remedy, limit
        assert "{" not in rule_text + remedy, limit
