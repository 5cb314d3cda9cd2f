"""The table of operators in docs/operators.md, from the same texts that judge a model.

It cannot drift from the code.
Rows are the operators, columns the platforms; below stand the limits (the constraints' docstrings,
filled in from each platform's row) and what each executor does wrong. `render_operators_markdown`
returns the whole page.
"""

from __future__ import annotations

from ...formats import INTEGER_OPS
from ...ops import LOWERING_RULES, Op, format_limit_rule, get_rule_for_integer_op
from ...targets import PLATFORMS, LimitCheck, Target

__all__ = ["BEGIN", "END", "has_limit", "render_operators_markdown"]

BEGIN = "<!-- begin: written by `lingeronnx platforms --markdown`; do not edit by hand -->"
END = "<!-- end -->"

_HEAD = """# Operators

This page says what each platform computes in integers, and within which limits. A layer outside a limit stays in float,
unless a rewrite of `--fit` (the default on chips) can help. `lingeronnx check MODEL` lists what a model breaks.
"""

_LEGEND = (
    "- **yes**: in integers, whatever its sizes.\n"
    "- **limits**: in integers within the limits below.\n"
    "- **composed**: written as other operators.\n"
    "- **no**: it stays in float, or on the chip's host.\n\n"
    "Some operators come from no ONNX operator. They stand at the borders of the integer part, "
    "take the place of "
    "another operator, or are run where a graph has them."
)

#: Composite operators of our own, by what they are made from.
_ONNX_SOURCES = {"Linear": "Gemm, MatMul"}


def render_operators_markdown() -> str:
    """Return the page docs/operators.md."""
    return (
        "\n".join(
            [
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
        )
        + "\n"
    )


def _render_operator_table() -> list[str]:
    lines = [
        f"| operator | from ONNX | {' | '.join(target.name for target in PLATFORMS)} |",
        f"|---|---|{'---|' * len(PLATFORMS)}",
    ]
    entries = [(form.name, get_rule_for_integer_op(form)) for form in INTEGER_OPS] + [
        (op.name, op) for op in LOWERING_RULES if op.composition_name
    ]
    for name, op in entries:
        source = (
            ", ".join(dict.fromkeys(_ONNX_SOURCES.get(kind, kind) for _, kind in op.floats))
            if op is not None
            else ""
        )
        lines.append(
            f"| {name} | {source} | "
            f"{' | '.join(_format_support(name, op, target) for target in PLATFORMS)} |"
        )
    return lines


def _format_support(name: str, op: Op | None, target: Target) -> str:
    if not target.can_run(name):
        return "composed" if op is not None and op.is_available(target) else "no"
    return "limits" if op is not None and _format_limits(op, target) else "yes"


def _format_limits(op: Op, target: Target) -> list[str]:
    """Return the limits of `op` on `target` as text."""
    if target.ops[op.name].limits is None and not target.has_packer:
        return []
    return [
        format_limit_rule(constraint, target)[0]
        for constraint in op.get_limits(target)
        if has_limit(constraint, target)
    ]


def has_limit(constraint: LimitCheck, target: Target) -> bool:
    """Whether `target` has such a limit: its column is not left open."""
    try:
        text = format_limit_rule(constraint, target)[0]
    except AttributeError:  # it quotes a column that this row leaves open as a whole
        return False
    return "None" not in text and target.vendor.has_limit(constraint, target)


def _render_limits() -> list[str]:
    """Return the limits by operator; a rule that is the same on several platforms is told once."""
    lines = ["## Limits", ""]
    for op in LOWERING_RULES:
        rules: dict[str, list[str]] = {}
        for target in PLATFORMS:
            if target.can_run(op.name):
                for text in _format_limits(op, target):
                    rules.setdefault(text, []).append(target.name)
        if rules:
            lines += [
                f"### {op.name}",
                "",
                *(f"- {', '.join(names)}: {text}" for text, names in rules.items()),
                "",
            ]
    return lines


def _render_narrow_weights() -> list[str]:
    """Return the operators whose weights may have fewer bits than all else on a platform."""
    lines = [
        "## Narrow weights",
        "",
        "Operators whose weights may have fewer bits (`--weight-bits`):",
        "",
    ]
    for target in PLATFORMS:
        by_width: dict[tuple[int, ...], list[str]] = {}
        for name, row in target.ops.items():
            if row.weight_bits:
                by_width.setdefault(row.weight_bits, []).append(name)
        lines += [
            f"- {target.name}: {' and '.join(map(str, bits))} bits in {', '.join(sorted(names))}"
            for bits, names in by_width.items()
        ]
    return [*lines, ""]


def _render_faults() -> list[str]:
    """Return the executors' faults by platform."""
    lines = [
        "## Faults of the executors",
        "",
        (
            "The quantizer works around these faults. `lingeronnx check` names those that a model "
            "meets."
        ),
        "",
    ]
    for target in PLATFORMS:
        if target.faults:
            lines += [
                f"### {target.name} (executor {target.executor})",
                "",
                *(f"- {t}" for t in (fault.text for fault in target.faults)),
                "",
            ]
    return lines
