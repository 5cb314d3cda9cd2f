"""The command `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .._shared import format_examples, json_option, print_json, progress_bar
from ..show import console_for

if TYPE_CHECKING:
    from ...support.environment import Environment

__all__ = ["doctor"]


@click.command(
    epilog=format_examples(
        "lingeronnx doctor",
        "lingeronnx doctor --json",
    )
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Look at this installation: versions, processor, cache; test its compiled kernels.

    Say what is wrong.
    The kernels are compared with plain loops, integer by integer. The exit code is 1 where
    something is wrong.
    """
    with progress_bar() as progress:
        from ...support.environment import inspect_environment
        from ...support.self_test import run_self_test

        around = inspect_environment()
        tested = None if around.instructions == "none" else run_self_test(progress)
    wrong = (
        [*around.problems, *(str(each) for each in tested.differences)]
        if tested
        else list(around.problems)
    )
    console = console_for(as_json)
    for name, line in _environment_rows(around):
        console.print(f"{name:<20} {line}", soft_wrap=True, markup=False, highlight=False)
    if tested is not None:
        said = f"{tested.integers} integers of {tested.nets} nets"
        verdict = (
            "NOT equal to the plain classes"
            if tested.differences
            else "all equal to the plain classes"
        )
        console.print(
            f"{'self test':<20} {said}, {verdict}", soft_wrap=True, markup=False, highlight=False
        )
    for line in wrong or ["nothing"]:
        console.print(f"{'wrong':<20} {line}", soft_wrap=True, markup=False, highlight=False)
    if as_json:
        test = (
            None
            if tested is None
            else {**vars(tested), "differences": [str(each) for each in tested.differences]}
        )
        print_json({**around.to_dict(), "self_test": test, "problems": wrong})
    if wrong:
        ctx.exit(1)


def _environment_rows(environment: Environment) -> list[tuple[str, str]]:
    """Return (what, its text) of everything that stands before the test."""
    extras: dict[str, list[str]] = {}
    for each in environment.packages:
        extras.setdefault(each.extra, []).append(f"{each.name} {each.version or 'not there'}")
    size, count = environment.code
    cache = (
        f"{environment.cache}: {count} files, {size / 1e6:.1f} MB" if environment.cache else "none"
    )
    memory = f", {environment.memory / 1e9:.1f} GB free" if environment.memory else ""
    rows = ", ".join(environment.rows)
    return [
        ("lingeronnx", f"{environment.version} in {environment.folder}"),
        ("Python", environment.python),
        ("system", environment.system),
        ("processor", f"{environment.processor}, {environment.threads} threads{memory}"),
        ("instructions", f"{environment.instructions} (this processor can run {rows})"),
        ("cache", cache),
        *(
            (f"packages [{extra}]" if extra else "packages", ", ".join(names))
            for extra, names in extras.items()
        ),
        ("C compiler", environment.compiler or "none (needed for deploy --try only)"),
        *(("settings", f"{name}={value}") for name, value in environment.settings.items()),
    ]
