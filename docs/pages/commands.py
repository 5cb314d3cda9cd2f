"""docs/reference/commands.md.

Each command with its arguments, options and examples, as click has them.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from lingeronnx.cli import main
from lingeronnx.cli._shared import GroupedCommand

from .markdown import MADE, cell, table

__all__ = ["page"]

_HEAD = f"""{MADE}

# Commands

What `lingeronnx COMMAND --help` says. Exit codes: 0; 1 for what is wrong with the input, told in one line; 2 for a
wrong option; 70 for a fault of ours; 130 for Ctrl-C. With `--json` one JSON object is all that stands on standard
output.
"""


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    for name, command in _flat(main, "lingeronnx"):
        lines += _command(name, command)
    return "\n".join(lines).rstrip() + "\n"


def _flat(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group and of the groups within, in the order of their names."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _flat(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _command(name: str, command: click.Command) -> list[str]:
    # Below `main`, as when it runs: click keeps the first help option that it makes, with the names
    # known then.
    context = click.Context(
        command, parent=click.Context(main, **main.context_settings), info_name=name
    )
    usage = f"{name} {' '.join(command.collect_usage_pieces(context))}"
    lines = [f"## {name}", "", *_block([usage]), *_prose(command.help or "")]
    for heading, records in _iter_option_groups(command, context):
        lines += [f"### {heading}", ""] if heading != "Options" else []
        lines += table(["option", ""], ([_literal(left), cell(right)] for left, right in records))
    examples = (command.epilog or "").replace("\b", "").strip().splitlines()
    return lines + (_block(line.strip() for line in examples[1:]) if examples else [])


def _iter_option_groups(
    command: click.Command, context: click.Context
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the headings of a command's options, each with (spelling, help) records."""
    if isinstance(command, GroupedCommand):
        yield from command.iter_option_groups(context)
        return
    records = [param.get_help_record(context) for param in command.get_params(context)]
    yield "Options", [record for record in records if record is not None]


def _literal(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _prose(text: str) -> list[str]:
    """Return the paragraphs of a help text, its line breaks taken out."""
    blocks = [" ".join(block.split()) for block in text.replace("\b", "").split("\n\n")]
    return [line for block in blocks if block for line in (cell(block), "")]


def _block(lines: Iterator[str] | list[str]) -> list[str]:
    return [*(f"    {line}" for line in lines), ""]
