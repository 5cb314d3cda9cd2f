"""The command `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .._shared import format_examples, json_option, print_json
from ..terminal import console_for, progress_bar

if TYPE_CHECKING:
    from ..support.environment import Environment

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
    """Report versions, processor and cache of this installation, and test its compiled kernels.

    The kernels are compared with plain loops, integer by integer. The exit code is 1 if a problem
    is found.
    """
    with progress_bar() as progress:
        from ..support.environment import inspect_environment
        from ..support.self_test import run_self_test

        environment = inspect_environment()
        self_test = None if environment.instructions == "none" else run_self_test(progress)
    problems = (
        [*environment.problems, *(str(item) for item in self_test.differences)]
        if self_test
        else list(environment.problems)
    )
    console = console_for(as_json)
    for name, line in _environment_rows(environment):
        console.print(f"{name:<20} {line}", soft_wrap=True, markup=False, highlight=False)
    if self_test is not None:
        compared = f"{self_test.integers} integers of {self_test.nets} nets"
        verdict = (
            "NOT equal to the plain classes"
            if self_test.differences
            else "all equal to the plain classes"
        )
        console.print(
            f"{'self test':<20} {compared}, {verdict}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    for line in problems or ["nothing"]:
        console.print(f"{'wrong':<20} {line}", soft_wrap=True, markup=False, highlight=False)
    if as_json:
        test = (
            None
            if self_test is None
            else {**vars(self_test), "differences": [str(item) for item in self_test.differences]}
        )
        print_json({**environment.to_dict(), "self_test": test, "problems": problems})
    if problems:
        ctx.exit(1)


def _environment_rows(environment: Environment) -> list[tuple[str, str]]:
    """Return (label, text) of each line of the report before the self-test.

    These are versions, system, processor, cache, packages, C compiler and settings.
    """
    extras: dict[str, list[str]] = {}
    for item in environment.packages:
        extras.setdefault(item.extra, []).append(f"{item.name} {item.version or 'not there'}")
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
        ("processor", f"{environment.processor}, {_format_threads(environment)}{memory}"),
        ("instructions", f"{environment.instructions} (this processor can run {rows})"),
        ("cache", cache),
        *(
            (f"packages [{extra}]" if extra else "packages", ", ".join(names))
            for extra, names in extras.items()
        ),
        ("C compiler", environment.compiler or "none (needed for deploy --try only)"),
        *(("settings", f"{name}={value}") for name, value in environment.settings.items()),
    ]


def _format_threads(environment: Environment) -> str:
    """Format the number of threads, and that of the cores where threads share them."""
    threads, cores = environment.threads, environment.cores
    if cores is None or cores >= threads:
        return f"{threads} threads"
    return f"{threads} threads, hyperthreads of {cores} core{'s' if cores > 1 else ''}"
