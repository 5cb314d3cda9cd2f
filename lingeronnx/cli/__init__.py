"""The command line: one file per command, which parses options, calls `api` and prints the result.

Exit codes: 0; 1 for an error of the user, in one line; 2 for a wrong option; 70 for a bug in
lingeronnx, with a traceback and an archive for a bug report; 130 for Ctrl-C. With ``--json``,
stdout has one JSON object and nothing else; tables go to stderr.

Imports of numpy, onnx, rich and other large packages are inside the commands, so that ``--help`` is
fast. `show` and `report` format results.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
import warnings
from typing import Any

import click

from .. import __version__
from ..common.command_lines import replace_options
from ..common.errors import LingerOnnxError
from ..common.escaping import escape_lines
from ._shared import current_command_line, format_examples
from .models.checkpoint import checkpoint
from .models.convert import convert
from .models.deploy import deploy
from .models.export import export
from .models.finetune import finetune
from .models.fix_dequant import fix_dequant
from .models.quantize import quantize
from .questions.analyze import analyze
from .questions.badcase import badcase
from .questions.check import check
from .questions.compare import compare
from .questions.diff import diff
from .questions.report import report
from .questions.sensitivity import sensitivity
from .questions.trace import trace
from .questions.try_model import try_model
from .runs.evaluate import evaluate
from .runs.profile import profile
from .runs.profile_board import profile_board
from .runs.simulate import simulate
from .runs.verify import verify
from .terminal import echo, echo_text
from .tools.completion import completion
from .tools.demo import demo
from .tools.doctor import doctor
from .tools.platforms import platforms
from .tools.schema import schema
from .tools.warmup import warmup

__all__ = ["main"]

_EXIT_BUG = 70
_EXIT_INTERRUPTED = 130
_ARGV_KEY = f"{__name__}.argv"
#: Options that do less and show the effect of each rewrite, to narrow down a bug.
_REDUCED_OPTIONS = "--effort fast --no-fit --debug-dump rewrites"

#: Errors of the system, not bugs: a full disk, a closed terminal, missing names and folders.
_SYSTEM_ERRNOS = (
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EBADF,
    errno.EIO,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
    errno.ELOOP,
    errno.EFBIG,
)


def _format_system_error(error: BaseException) -> str:
    """Format an error of the system in one line; "" if `error` is a bug in lingeronnx.

    Errors of the system are MemoryError, and OSError with a number in _SYSTEM_ERRNOS such as a full
    disk or a missing permission.
    """
    if isinstance(error, MemoryError):
        return "out of memory; use a smaller --batch or --limit, or a smaller model"
    if isinstance(error, OSError) and error.errno in _SYSTEM_ERRNOS:
        location = f": {error.filename}" if error.filename else " (files already written remain)"
        return f"{error.strerror}{location}"
    return ""


class _ClosedStream(io.TextIOBase):
    """Replacement of a closed standard output: writing raises OSError."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        """Raise OSError (EBADF): standard output was closed before the process started."""
        raise OSError(errno.EBADF, "standard output is closed")


def _replace_closed_streams() -> None:
    """Open file descriptors 0 to 2 on the null device if they are closed.

    Otherwise files that are opened later get these descriptors, and output of libraries ends up in
    them. A missing `sys.stdout` becomes a stream whose writing fails, a missing `sys.stderr` the
    null device.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
    sys.stdout = sys.stdout or _ClosedStream()
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - open until the process ends


def _write_bug_archive(argv: list[str], trace: str) -> str:
    """Write an archive for a bug report: the command line `argv` and the traceback `trace`.

    Returns a line with its path for the user, or "" if that failed for any reason.
    """
    with contextlib.suppress(Exception):  # must not hide the bug itself
        from .support.bug_report import write_bug_report

        path = write_bug_report(argv, trace)
        if path is not None:
            return (
                f"{path} has what a bug report needs, without weights or data; see its README.txt"
            )
    return ""


class CommandGroup(click.Group):
    """The command `lingeronnx`: converts exceptions of its commands to exit codes."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:  # noqa: ANN401 - as of click
        """Make the context of the command line as click does.

        Ctrl-C in the meantime prints "interrupted" on stderr and exits with code 130.
        """
        try:
            return super().make_context(*args, **extra)
        except KeyboardInterrupt:
            echo("interrupted", err=True)
            sys.exit(_EXIT_INTERRUPTED)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments in `ctx.meta` for bug reports, then parse them as click does."""
        ctx.meta[_ARGV_KEY] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; print the errors that it raises and exit with their codes.

        These are 1 for errors of the user or the system, 130 after Ctrl-C and 70 for bugs.
        Exceptions of click, with escaped messages, and broken pipes are left to click. Warnings are
        ignored unless LINGERONNX_STRICT is set.
        """
        _replace_closed_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # tensor names may not be encodable
                stream.reconfigure(errors="backslashreplace")
        try:
            with warnings.catch_warnings():
                if "LINGERONNX_STRICT" not in os.environ:  # set in tests, where warnings are errors
                    # Warnings of libraries are meant for their callers, not for users of a command.
                    warnings.simplefilter("ignore")
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort) as error:
            _escape_message(error)
            raise
        except LingerOnnxError as error:
            echo(f"error: {error}", err=True)
            ctx.exit(1)
        except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - the last resort
            _exit_after(ctx, error)
            raise  # the reader of stdout is gone; click handles it


def _exit_after(ctx: click.Context, error: BaseException) -> None:
    """Print a message for `error` on stderr and exit with its code.

    That is one line and 130 for Ctrl-C, one line and 1 for an error of the system or a model that
    is not valid, and a report and 70 for a bug. Returns, without a message, after a broken pipe
    only.
    """
    if _is_interrupt(error):
        echo("interrupted", err=True)
        ctx.exit(_EXIT_INTERRUPTED)
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return
    if line := _format_system_error(error):
        with contextlib.suppress(OSError):
            echo(f"error: {line}", err=True)
        ctx.exit(1)
    if line := _describe_invalid_model(ctx.meta[_ARGV_KEY], error):
        echo(f"error: {line}", err=True)
        ctx.exit(1)
    _report_bug(ctx)
    ctx.exit(_EXIT_BUG)


def _describe_invalid_model(argv: list[str], error: BaseException) -> str:
    """Return a message on the first model of the command line that is not valid ONNX, or ""."""
    with contextlib.suppress(Exception):  # must not hide the error itself, such as a failed import
        from ..operators.invalid_models import raise_if_invalid  # loads onnx

        try:
            raise_if_invalid(argv, error)
        except LingerOnnxError as message:
            return str(message)
    return ""


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is `error` itself or among its causes and contexts.

    A module of C or C++ that is interrupted while it is imported raises ImportError or SystemError.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _escape_message(error: Exception) -> None:
    """Escape control characters in the message of `error`, in place, if it is a click exception.

    The message may quote file names. Other exceptions are left as they are.
    """
    if isinstance(error, click.ClickException):
        error.message = escape_lines(error.message)  # type: ignore[misc]  # final to click


def _report_bug(ctx: click.Context) -> None:
    """Print the current traceback and how to report it, on stderr.

    Also writes an archive for a bug report, and prints its path if that succeeds. The last line
    suggests the command with reduced options, if its arguments were recorded.
    """
    trace = traceback.format_exc()
    echo_text(trace, err=True)
    echo(
        "this is a bug in lingeronnx: please report it, with the lines above and the command",
        err=True,
    )
    if line := _write_bug_archive(ctx.meta[_ARGV_KEY], trace):
        echo(line, err=True)
    if line := current_command_line():
        echo(f"try next: {replace_options(line, _REDUCED_OPTIONS)}", err=True)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=format_examples(
        "lingeronnx demo",
        "lingeronnx quantize model.onnx --calib calib.npz --eval test.npz --metric top1",
    ),
)
@click.version_option(__version__, prog_name="lingeronnx", message="%(prog)s %(version)s")
def main() -> None:
    """Quantize float ONNX models for small NPUs, and simulate the result bit for bit."""
    if "OMP_NUM_THREADS" not in os.environ:
        # numpy's matrix products are small here; idle threads cost more than they gain.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


_COMMANDS = (
    quantize,
    simulate,
    evaluate,
    check,
    try_model,
    convert,
    fix_dequant,
    export,
    checkpoint,
    platforms,
    demo,
    warmup,
    finetune,
    deploy,
    verify,
    analyze,
    profile,
    compare,
    diff,
    sensitivity,
    badcase,
    trace,
    schema,
    completion,
    doctor,
    profile_board,
    report,
)

for _command in _COMMANDS:
    main.add_command(_command)
