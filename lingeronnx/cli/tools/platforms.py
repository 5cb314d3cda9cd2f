"""The command `platforms`."""

from __future__ import annotations

from typing import Any

import click

from ...common.json_values import to_json_value
from ...targets import DEFAULT, PLATFORMS, Target, get_target
from .._shared import format_examples, json_option, print_json
from ..show import show_platform, show_platforms
from ..terminal import console_for, echo_text

__all__ = ["platforms"]


@click.command(
    epilog=format_examples(
        "lingeronnx platforms",
        f"lingeronnx platforms {DEFAULT}",
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
    """List the platforms, or the limits, operators and known faults of one."""
    if markdown:
        if name is not None or as_json:
            raise click.UsageError("--markdown prints one page on all platforms; give it alone")
        from ...analysis.check.operators_page import render_operators_markdown

        echo_text(render_operators_markdown())
        return
    rows = PLATFORMS if name is None else (get_target(name),)
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

    "packer" is the packer's command.
    """
    body = to_json_value(target)
    return {**body, **body.pop("vendor"), "packer": target.vendor.packer_command}
