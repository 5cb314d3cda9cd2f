"""docs/reference/versions.md: which version of packer and executor a board has, and what changes."""

from __future__ import annotations

from collections.abc import Iterator

from lingeronnx.luna.packer.version_rules import REFUSALS
from lingeronnx.luna.packer_profile import get_packer_profile
from lingeronnx.targets import PLATFORMS, Target, get_versions
from lingeronnx.targets.version_changes import VersionChanges, list_version_changes

from .markdown import MADE, cell, table

__all__ = ["page"]

_INTRODUCTION = f"""{MADE}

# Which version do I have, and what changes

A package does not say which version of the vendor's packer wrote it, and every executor loads it: the executor on the
board decides the integers. lingeronnx describes each version as a target of its own, such as `venus@3.0.10`:

    lingeronnx quantize model.onnx --calib calib.npz --platform venus@3.0.10

Without a version the target is that of 3.0.4. The report of `quantize` and of `check` has two lists for the written
file, and names the nodes that narrow them:

- *same integers*: the versions whose packer takes the file and whose executor computes the same integers. The package
  is made by the packer of the same version.
- *safe plan*: the versions on which no byte is known to be written past the memory plan. A version whose planned bytes
  were not measured for an operator of the file is not among them.

*Measured* means that the unchanged packer and executor of this version were run on a PC. What is *read only* is known
from the source text; it needs `--allow-unmeasured`, and every report says so. The text of 2026-08-20 was published
without a library; what the tables say of it is no promise.

## Find the version

Dump the tensors of one call on the board, and let `verify` compare them:

    lingeronnx verify board/model_quant_chip.onnx --input board/golden/0/input.npz --device-dump workspace/data

Its line `version` names the versions that compute these integers, or says that the tensors cannot tell. A network of
convolutions, poolings and fully connected layers tells nothing: all versions compute the same. The operators below have
other formulas in some versions; some of them differ only for attributes or widths that `quantize` does not write, such
as `scale_o` of a Relu.
"""


def page() -> str:
    """Return the page."""
    chips = [target for target in PLATFORMS if len(get_versions(target)) > 1]
    rows = []
    for chip in chips:
        for operator, classes in _group_versions_by_operator(chip):
            rows.append([chip.name, f"`{operator}`", "; ".join(classes)])
    lines = [_INTRODUCTION]
    lines += table(["chip", "operator", "versions with equal formulas"], rows)
    for chip in chips:
        lines += _describe_chip(chip)
    return "\n".join(lines).rstrip() + "\n"


def _group_versions_by_operator(chip: Target) -> Iterator[tuple[str, list[str]]]:
    """Yield (operator, groups of versions with one formula) for operators that have several.

    A version that is read only is in italics.
    """
    versions = get_versions(chip)
    operators = dict.fromkeys(
        operator for version in versions for operator in (*version.ops, *version.also)
    )
    for operator in operators:
        groups: dict[str, list[str]] = {}
        for version in versions:
            arithmetic = version.find_arithmetic(operator)
            if arithmetic is not None:
                name = version.executor
                groups.setdefault(repr(arithmetic), []).append(
                    f"*{name}*" if "" in version.unmeasured else name
                )
        if len(groups) > 1:
            yield operator, [", ".join(group) for group in groups.values()]


def _describe_chip(chip: Target) -> list[str]:
    """Return the section of a chip: its versions, what they change, and what the newest refuses."""
    versions = get_versions(chip)
    changes = list_version_changes(versions)
    rows = [_describe_version(change) for change in changes]
    lines = [f"## {chip.name}", ""]
    lines += table(["version", "basis", "other integers", "faults that end", "new faults"], rows)
    lines += _describe_plans(versions)
    return lines + _describe_refusals(versions[-1])


def _describe_version(change: VersionChanges) -> list[str]:
    """Return the cells of a version."""
    formulas = [
        f"`{operator}` ({cell(str(change.target.find_arithmetic(operator)))})"
        for operator in change.changed_operators
    ]
    return [
        change.target.executor,
        change.basis,
        "; ".join(formulas),
        ", ".join(f"`{key}`" for key in change.fixed_faults),
        ", ".join(f"`{key}`" for key in change.new_faults),
    ]


def _describe_plans(versions: tuple[Target, ...]) -> list[str]:
    """Return a sentence on the measured versions whose planned bytes are not measured."""
    texts = []
    for version in versions:
        unmeasured = get_packer_profile(version).unmeasured_plans
        if unmeasured and not version.unmeasured:
            is_short = len(unmeasured) < 6
            operators = ", ".join(f"`{operator}`" for operator in unmeasured)
            texts.append(f"{version.executor} ({operators if is_short else 'most operators'})")
    if not texts:
        return []
    return [f"Planned bytes were not measured with the packer of {', '.join(texts)}.", ""]


def _describe_refusals(version: Target) -> list[str]:
    """Return the table of what the packer of `version` refuses, and the form that it takes."""
    rows = []
    for name in get_packer_profile(version).refusals:
        operators, rule = REFUSALS[name]
        text, _, remedy = " ".join((rule.__doc__ or "").split()).partition(" | ")
        names = ", ".join(f"`{operator}`" for operator in operators)
        rows.append([names, cell(text), cell(remedy.rstrip("."))])
    head = f"What the text of {version.executor} probably refuses, besides the limits of 3.0.4:"
    return [head, "", *table(["operator", "rule", "form that it takes"], rows)]
