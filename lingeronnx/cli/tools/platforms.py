"""The command `platforms`."""

from __future__ import annotations

from typing import Any

import click

from ...common.json_values import to_json_value
from ...targets import (
    DEFAULT,
    PLATFORMS,
    Target,
    get_installed_targets,
    get_target,
    get_versions,
)
from ...targets.version_changes import list_version_changes
from .._shared import format_examples, json_option, print_json
from ..show import show_platform, show_platforms
from ..terminal import console_for, echo_text

__all__ = ["platforms"]


@click.command(
    epilog=format_examples(
        "lingeronnx platforms",
        f"lingeronnx platforms {get_versions(DEFAULT)[-1]}",
        "lingeronnx platforms --markdown > docs/reference/operators.md",
    )
)
@click.argument("name", required=False)
@click.option(
    "--markdown",
    is_flag=True,
    help="Print the page of operators, limits and faults on all platforms.",
)
@json_option
def platforms(name: str | None, markdown: bool, as_json: bool) -> None:
    """List the platforms and their versions, or limits, operators and known faults of one.

    Platforms of other installed packages (entry points lingeronnx.targets) are listed too.
    """
    if markdown:
        if name is not None or as_json:
            raise click.UsageError("--markdown prints one page on all platforms; give it alone")
        from ...analysis.check.operators_page import render_operators_markdown

        echo_text(render_operators_markdown())
        return
    rows = (*PLATFORMS, *get_installed_targets()) if name is None else (get_target(name),)
    console = console_for(as_json)
    if name is None:
        show_platforms(console, rows)
    else:
        show_platform(console, rows[0])
    if as_json:
        bodies = [_target_to_json(row) for row in rows]
        print_json({"platforms": bodies} if name is None else bodies[0])


def _target_to_json(target: Target) -> dict[str, Any]:
    """Return a platform as a JSON object, with its vendor's fields at the top level.

    "packer" is the packer's command, "versions" what is measured of each version of the executor.
    """
    body = to_json_value(target)
    versions = [
        {
            "platform": change.target.name,
            "executor": change.target.executor,
            "basis": change.basis,
            "changed_operators": list(change.changed_operators),
            "unmeasured_operators": list(change.unmeasured_operators),
            "fixed_faults": list(change.fixed_faults),
            "new_faults": list(change.new_faults),
        }
        for change in list_version_changes(get_versions(target) if target.executor else ())
    ]
    vendor = body.pop("vendor")
    return {**body, **vendor, "packer": target.vendor.packer_command, "versions": versions}
