"""The page docs/reference/operators.md, generated from the same texts that a model is judged by.

Rows of the table are operators, columns are platforms. Below are the limits (docstrings of the
constraints, filled in from each platform) and the faults of each executor.
"""

from __future__ import annotations

from ...operators.integer_ops import INTEGER_OPS
from ...operators.lowerings import LOWERING_RULES, Op, format_limit_rule, get_rule_for_integer_op
from ...targets import PLATFORMS, LimitCheck, Target

__all__ = ["BEGIN", "END", "has_limit", "render_operators_markdown"]

BEGIN = "<!-- begin: written by `lingeronnx platforms --markdown`; do not edit by hand -->"
END = "<!-- end -->"

_HEAD = """# Operators

This page lists the operators that each platform computes in integers, and their limits. A layer
outside a limit stays in float, unless a rewrite of `--fit` (the default on chips) can help.
`lingeronnx check MODEL` lists the limits that a model violates.
"""

_LEGEND = (
    "- **yes**: in integers, whatever its sizes.\n"
    "- **limits**: in integers within the limits below.\n"
    "- **composed**: written as other operators.\n"
    "- **no**: it stays in float, or on the chip's host.\n\n"
    "Some operators have no ONNX counterpart. They are at the borders of the integer part, replace "
    "another operator, or are run if a graph contains them."
)

#: ONNX operators that a composite operator of this project is made from.
_ONNX_SOURCES = {"Linear": "Gemm, MatMul"}


def render_operators_markdown() -> str:
    """Render docs/reference/operators.md: operators, limits, narrow weights and faults."""
    lines = [
        _HEAD,
        BEGIN,
        "",
        *_render_operator_table(),
        "",
        _LEGEND,
        "",
        *_render_limits(),
        *_render_narrow_weights(),
        *_render_faults(),
        END,
    ]
    return "\n".join(lines) + "\n"


def _render_operator_table() -> list[str]:
    """Render a Markdown table of operators as lines: name, ONNX sources, support per platform.

    Operators are the integer ones and those composed of several.
    """
    lines = [
        f"| operator | from ONNX | {' | '.join(target.name for target in PLATFORMS)} |",
        f"|---|---|{'---|' * len(PLATFORMS)}",
    ]
    entries: list[tuple[str, Op | None]] = [
        (form.name, get_rule_for_integer_op(form)) for form in INTEGER_OPS
    ]
    entries += [(op.name, op) for op in LOWERING_RULES if op.composition_name]
    for name, op in entries:
        sources: list[str] = []
        if op is not None:
            sources = [_ONNX_SOURCES.get(op_type, op_type) for _, op_type in op.floats]
        support = [_format_support(name, op, target) for target in PLATFORMS]
        lines.append(f"| {name} | {', '.join(dict.fromkeys(sources))} | {' | '.join(support)} |")
    return lines


def _format_support(name: str, op: Op | None, target: Target) -> str:
    """Return the support of an operator on a target: "yes", "limits", "composed" or "no".

    "composed" is for an operator that the target runs as several others, "limits" for one that it
    runs itself within some limits. `op` is the rule that lowers float operators to it, or None.
    """
    if not target.can_run(name):
        return "composed" if op is not None and op.is_available(target) else "no"
    return "limits" if op is not None and _format_limits(op, target) else "yes"


def _format_limits(op: Op, target: Target) -> list[str]:
    """Format the limits of operator `op` on `target`, one text per limit.

    Empty if the target neither lists limits of the operator nor has a packer.
    """
    if target.ops[op.name].limits is None and not target.has_packer:
        return []
    return [
        format_limit_rule(constraint, target)[0]
        for constraint in op.get_limits(target)
        if has_limit(constraint, target)
    ]


def has_limit(constraint: LimitCheck, target: Target) -> bool:
    """Whether `target` has the limit that a constraint checks.

    It has none if the constraint's text quotes a field of the target that is None or missing, or if
    the vendor says so.
    """
    try:
        text = format_limit_rule(constraint, target)[0]
    except AttributeError:  # it quotes a field of limits that the target does not have
        return False
    return "None" not in text and target.vendor.has_limit(constraint, target)


def _render_limits() -> list[str]:
    """Render the limits by operator as lines of Markdown.

    A rule that several platforms share is listed once; operators without limits are left out.
    """
    lines = ["## Limits", ""]
    for op in LOWERING_RULES:
        platforms_by_rule: dict[str, list[str]] = {}
        for target in PLATFORMS:
            if target.can_run(op.name):
                for text in _format_limits(op, target):
                    platforms_by_rule.setdefault(text, []).append(target.name)
        if platforms_by_rule:
            lines += [
                f"### {op.name}",
                "",
                *(f"- {', '.join(names)}: {text}" for text, names in platforms_by_rule.items()),
                "",
            ]
    return lines


def _render_narrow_weights() -> list[str]:
    """Render the operators whose weights may have fewer bits than other tensors, as Markdown lines.

    One line per platform and set of bit widths.
    """
    lines = [
        "## Narrow weights",
        "",
        "Operators whose weights may have fewer bits (`--weight-bits`):",
        "",
    ]
    for target in PLATFORMS:
        by_width: dict[tuple[int, ...], list[str]] = {}
        for name, support in target.ops.items():
            if support.weight_bits:
                by_width.setdefault(support.weight_bits, []).append(name)
        lines += [
            f"- {target.name}: {' and '.join(map(str, bits))} bits in {', '.join(sorted(names))}"
            for bits, names in by_width.items()
        ]
    return [*lines, ""]


def _render_faults() -> list[str]:
    """Render the known faults of the executors as lines of Markdown, by platform.

    Platforms without faults are left out.
    """
    lines = [
        "## Faults of the executors",
        "",
        (
            "The quantizer works around these faults. `lingeronnx check` lists those that a model "
            "triggers."
        ),
        "",
    ]
    for target in PLATFORMS:
        if target.faults:
            lines += [
                f"### {target.name} (executor {target.executor})",
                "",
                *(f"- {fault.text}" for fault in target.faults),
                "",
            ]
    return lines
