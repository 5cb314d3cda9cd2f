"""docs/reference/targets/: a page for each target, from its row and the limits of its nodes."""

from __future__ import annotations

from lingeronnx.analysis.check.operators_page import has_limit
from lingeronnx.operators.integer_ops import INTEGER_OPS
from lingeronnx.operators.lowerings import (
    LOWERING_RULES,
    format_limit_rule,
    get_rule_for_integer_op,
)
from lingeronnx.targets import PLATFORMS, Target

from .markdown import MADE, cell, table

__all__ = ["pages"]

_INDEX = f"""{MADE}

# Targets

Each has a page of its own: what it is, what you need, how numbers are held, which operators it runs within which
limits, and what to do when something is in the way. [Operators](../operators.md) has all of them side by side.
"""


def pages() -> dict[str, str]:
    """Return the pages, under their paths below docs/."""
    found = {f"reference/targets/{target.name}.md": _page(target) for target in PLATFORMS}
    rows = [
        [
            f"[{t.name}]({t.name}.md)",
            t.title,
            ", ".join(t.modes),
            str(len(t.ops)),
            _bytes(t.shared_memory),
        ]
        for t in PLATFORMS
    ]
    lines = [_INDEX, *table(["target", "what it is", "modes", "operators", "shared memory"], rows)]
    lines += ["```{toctree}", ":hidden:", "", *(target.name for target in PLATFORMS), "```"]
    return {"reference/targets/index.md": "\n".join(lines) + "\n", **found}


def _page(target: Target) -> str:
    sections = (_overview, _requirements, _quantization, _operators, _troubles)
    lines = [MADE, "", f"# {target.name}", ""]
    for section in sections:
        lines += section(target)
    return "\n".join(lines).rstrip() + "\n"


def _bytes(count: int | None) -> str:
    return "no limit" if count is None else f"{count:,} bytes"


def _overview(target: Target) -> list[str]:
    facts = [
        ["executor", target.executor or "none: it is no chip"],
        ["shared memory", _bytes(target.shared_memory)],
        ["external memory", _bytes(target.external_memory)],
        ["integer operators", str(len(target.ops))],
    ]
    return [
        "## Overview",
        "",
        f"{target.title[0].upper()}{target.title[1:]}.",
        "",
        *table(["", ""], facts),
    ]


def _requirements(target: Target) -> list[str]:
    lines = ["## Requirements", ""]
    if not target.has_packer:
        return [*lines, "Nothing but lingeronnx: its simulator runs the graph.", ""]
    return [
        *lines,
        (
            f"- The vendor's packer (`{target.vendor.packer_command}`) makes the package for the "
            "chip; the report "
            "prints the whole"
        ),
        "  line with the arguments that were judged. lingeronnx runs without it.",
        (
            "- Activations, work areas and what is prefetched fit the shared memory; the rest lies in "
            "external memory."
        )
        if target.shared_memory
        else "- The model fits the memory.",
        (
            f"- `lingeronnx check MODEL --platform {target.name}` tells before any calibration "
            "whether "
            "a model does."
        ),
        "",
    ]


def _quantization(target: Target) -> list[str]:
    low, high = target.exponents
    modes = (
        "powers of two (`--mode q-value`)"
        if target.needs_power_of_two_scales
        else f"`--mode {'`, `'.join(target.modes)}`"
    )
    units = {"tensor": "tensor", "channel": "output channel", "group": "group of a row"}
    facts = [
        ["scales", modes],
        ["range of scales", f"2^{low} to 2^{high} counts per unit"],
        ["bits of activations", ", ".join(map(str, target.bits))],
        ["bits of weights", ", ".join(map(str, target.all_weight_bits))],
        ["one scale for each", " or ".join(units[each] for each in target.weight_scales)],
        [
            "zero points",
            "yes, with `--activations asymmetric`" if target.zero_points else "always 0",
        ],
        ["samples in a call", "one" if target.single_sample else "any number"],
    ]
    lines = ["## Quantization", "", *table(["", ""], facts)]
    return [
        *lines,
        (
            "A scale is counts per unit, the inverse of ONNX's `y_scale`: a larger one is a finer "
            "grid."
        ),
        "",
    ]


def _limits(target: Target) -> dict[str, list[tuple[str, str]]]:
    """Return (rule, remedy) by operator, of those that the target has."""
    found = {}
    for op in LOWERING_RULES:
        if target.can_run(op.name) and (
            target.ops[op.name].limits is not None or target.has_packer
        ):
            found[op.name] = [
                format_limit_rule(limit, target)
                for limit in op.get_limits(target)
                if has_limit(limit, target)
            ]
    return found


def _operators(target: Target) -> list[str]:
    limits = _limits(target)
    rows = []
    for form in INTEGER_OPS:
        if target.can_run(form.name):
            rule = get_rule_for_integer_op(form)
            sources = (
                ", ".join(dict.fromkeys(kind for _, kind in rule.floats))
                if rule is not None
                else ""
            )
            rows.append(
                [
                    f"`{form.name}`",
                    sources,
                    "; ".join(cell(text) for text, _ in limits.get(form.name, [])),
                ]
            )
    absent = [f"- {name}: {cell(why)}" for name, why in target.why.items()]
    told = ["Not there, or not written:", "", *absent, ""] if absent else []
    return ["## Operators and limits", "", *table(["operator", "from ONNX", "limits"], rows), *told]


def _troubles(target: Target) -> list[str]:
    by_remedy: dict[str, list[str]] = {}
    for name, rules in _limits(target).items():
        for rule, remedy in rules:
            by_remedy.setdefault(remedy, []).append(f"{name}: {cell(rule)}")
    rows = [[cell(remedy), "; ".join(rules)] for remedy, rules in by_remedy.items()]
    lines = ["## Troubleshooting", ""]
    if rows:
        lines += ["What the report names as the way out, and the limits that it is for:", ""]
        lines += table(["what to do", "where this limit is broken"], rows)
    if target.faults:
        lines += [f"What executor {target.executor} does wrong, and is worked around:", ""]
        lines += table(
            ["fault", ""], ([f"`{fault.key}`", cell(fault.text)] for fault in target.faults)
        )
    return (
        lines if len(lines) > 2 else [*lines, "[The generic platform](../generic.md) has more.", ""]
    )
