"""The command line, one file per command.

Each parses its options, calls `api` once and prints what came back.
Exit codes: 0; 1 the user's side, told in one line; 2 a wrong option; 70 a bug of ours, with its
traceback and an archive for a report; 130 Ctrl-C.
With ``--json`` one JSON object is all there is on stdout, and tables go to stderr. Everything heavy
(numpy, onnx, rich
...) is imported inside the commands, so that ``--help`` is there at once.

How results look is `show`'s business.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import sys
import traceback
import warnings

import click

from .. import __version__
from ..errors import LingerOnnxError
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
from .questions.report import report
from .questions.sensitivity import sensitivity
from .questions.trace import trace
from .runs.evaluate import evaluate
from .runs.profile import profile
from .runs.profile_board import profile_board
from .runs.simulate import simulate
from .runs.verify import verify
from .tools.demo import demo
from .tools.doctor import doctor
from .tools.platforms import platforms
from .tools.schema import schema
from .tools.warmup import warmup

__all__ = ["main"]

# before the collector looks for cycles: at Python's 700 it takes a tenth of a command's time
_GC_THRESHOLD = 100_000
_EXIT_BUG = 70
_EXIT_INTERRUPTED = 130
_ARGV_KEY = f"{__name__}.words"
_REDUCED_OPTIONS = (
    "--effort fast --no-fit --debug-dump rewrites"  # does less, and shows what each rewrite did
)


#: What the system refuses whatever we do: a disk or a terminal that takes no more, names and folders it does not have.
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


def _format_system_error(error: Exception) -> str:
    """Return one line on what the machine has too little of, or does not allow.

    Empty for a bug of ours.
    """
    if isinstance(error, MemoryError):
        return "there is not enough memory; give smaller --batch or --limit, or a smaller model"
    if isinstance(error, OSError) and error.errno in _SYSTEM_ERRNOS:
        place = f": {error.filename}" if error.filename else " (what was written to files stays)"
        return f"{error.strerror}{place}"
    return ""


class _ClosedStream(io.TextIOBase):
    """In place of a standard output that was closed.

    What is printed is lost, and the exit code says so.
    """

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed")


def _replace_closed_streams() -> None:
    """Give closed streams something in their place.

    Else files that are written would get their numbers.
    What libraries print on them would then end in these files.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or _ClosedStream()
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - open until the process ends


def _write_bug_archive(words: list[str], trace: str) -> str:
    """Return a line on the file that was written for a report of a bug.

    Empty where there is none.
    """
    with contextlib.suppress(Exception):  # whatever it is, it must not hide the bug
        from ..support.bug_report import write_bug_report

        path = write_bug_report(words, trace)
        return (
            ""
            if path is None
            else f"{path} has what a report needs: no weights, no data; its README.txt says what"
        )
    return ""


class CommandGroup(click.Group):
    """Turns what a command raises into exit codes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the whole line."""
        ctx.meta[_ARGV_KEY] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        _replace_closed_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # names may hold what the terminal cannot show
                stream.reconfigure(errors="backslashreplace")
        try:
            with warnings.catch_warnings():
                if "LINGERONNX_STRICT" not in os.environ:  # in tests, where they are errors
                    warnings.simplefilter(
                        "ignore"
                    )  # libraries warn those who call them, not the user of a command
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except LingerOnnxError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(_EXIT_INTERRUPTED)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of our output went away; click knows what to do
            if line := _format_system_error(error):
                with contextlib.suppress(OSError):
                    click.echo(f"error: {line}", err=True)
                ctx.exit(1)
            trace = traceback.format_exc()
            click.echo(trace, err=True, nl=False)
            click.echo(
                (
                    "this is a bug in lingeronnx: please report it, with the lines above and the "
                    "command"
                ),
                err=True,
            )
            if line := _write_bug_archive(ctx.meta[_ARGV_KEY], trace):
                click.echo(line, err=True)
            if line := current_command_line():
                click.echo(f"try next: {line} {_REDUCED_OPTIONS}", err=True)
            ctx.exit(_EXIT_BUG)


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
    gc.set_threshold(_GC_THRESHOLD)
    if (
        "OMP_NUM_THREADS" not in os.environ
    ):  # numpy's products are small here: threads that wait cost more than they do
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


_COMMANDS = (
    quantize,
    simulate,
    evaluate,
    check,
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
    sensitivity,
    badcase,
    trace,
    schema,
    doctor,
    profile_board,
    report,
)

for _command in _COMMANDS:
    main.add_command(_command)
