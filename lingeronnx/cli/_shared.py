"""What commands share: options, checks before any work, JSON, the progress display."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..errors import ConfigError
from ..json_values import to_json_value
from ..targets import DEFAULT, PLATFORMS
from ..targets.objective import OBJECTIVES

__all__ = [
    "DATA_HELP",
    "METRICS_HELP",
    "PATH_TYPE",
    "RecordedCommand",
    "batch_options",
    "default_output_path",
    "state_option",
    "check_output_path",
    "format_examples",
    "make_data_loader",
    "current_command_line",
    "input_options",
    "json_option",
    "parse_pairs",
    "picture_options",
    "worker_options",
    "print_json",
    "json_text",
    "progress_bar",
    "quantize_options",
    "input_size_options",
    "timing_options",
]


def format_examples(*lines: str) -> str:
    """Return the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


PATH_TYPE = click.Path(path_type=Path)
DATA_HELP = "an .npz or .npy file, a folder of them or of pictures, or file.py:function"
METRICS_HELP = "top1 | top5 | mse | cosine | sqnr | module:function"


class RecordedCommand(click.Command):
    """A command that remembers how it was called, so that it can say what to call next.

    See `current_command_line`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments."""
        ctx.meta[_ARGS_KEY] = [str(ctx.info_name), *args]
        return super().parse_args(ctx, args)


_ARGS_KEY = f"{__name__}.given"


def current_command_line() -> str:
    """Return the command line of a `RecordedCommand` command, ready to paste; empty for another."""
    ctx = click.get_current_context()
    args = ctx.meta.get(_ARGS_KEY)
    return "" if args is None else shlex.join(["lingeronnx", *args])


#: What a command is before click makes one of it.
Command = Callable[..., None]


def json_option(command: Command) -> Command:
    """Give a command --json."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object; tables go to stderr."
    )(command)


def batch_options(command: Command) -> Command:
    """Give a command --batch and --limit."""
    command = click.option(
        "--limit", type=click.IntRange(1), metavar="N", help="Use the first N samples."
    )(command)
    return click.option("--batch", type=click.IntRange(1), metavar="N", help="Samples per batch.")(
        command
    )


def state_option(command: Command) -> Command:
    """Give a command --state."""
    return click.option(
        "--state",
        multiple=True,
        metavar="OUT=IN",
        help="A state output that is fed back: items of DATA are calls. Repeatable.",
    )(command)


def worker_options(command: Command) -> Command:
    """Give a command --workers and --cluster: where the work is done. The results are the same."""
    command = click.option(
        "--cluster", metavar="ADDRESS", help="Work on a Dask cluster, such as tcp://host:8786."
    )(command)
    return click.option(
        "--workers",
        type=click.IntRange(1),
        metavar="N",
        help="Work in N processes.  [default: in this one]",
    )(command)


_PICTURE_OPTIONS = (
    click.option(
        "--image-size",
        metavar="W,H",
        help="Data in a folder of pictures: the size the model takes.",
    ),
    click.option(
        "--mean",
        metavar="V[,V,V]",
        help="With --image-size: subtracted from 0..255 pixels.  [default: 0]",
    ),
    click.option(
        "--std",
        metavar="V[,V,V]",
        help="With --image-size: the difference is divided by it.  [default: 1]",
    ),
    click.option(
        "--layout", type=click.Choice(["nchw", "nhwc"]), help="With --image-size.  [default: nchw]"
    ),
    click.option(
        "--color",
        type=click.Choice(["rgb", "bgr", "gray"]),
        help="With --image-size.  [default: rgb]",
    ),
    click.option(
        "--resize",
        type=click.Choice(["fit", "crop", "pad"]),
        help=(
            "With --image-size: stretch, cut the middle out, or add a black border.  [default: fit]"
        ),
    ),
)


def picture_options(command: Command) -> Command:
    """Give a command the options that say how a folder of pictures becomes data.

    See `make_data_loader`.
    """
    for option in reversed(_PICTURE_OPTIONS):
        command = option(command)
    return command


def make_data_loader(options: dict[str, Any]) -> Callable[[str | None], object]:
    """Take the options of `picture_options` out of `options`.

    Return what turns the DATA of a command into a data source.
    """
    size = options.pop("image_size")
    found = {key: options.pop(key) for key in ("mean", "std", "layout", "color", "resize")}
    given = {key: value for key, value in found.items() if value is not None}
    if size is None:
        if given:
            raise click.UsageError(f"--{next(iter(given))} needs --image-size W,H")
        return lambda data: data
    sides = _parse_numbers("--image-size", size)
    if len(sides) != 2 or not all(
        side.is_integer() and 0 < side <= _LARGEST_SIDE for side in sides
    ):
        raise click.UsageError(f"--image-size {size}: write width and height, such as 224,224")
    given.update(
        {key: _parse_numbers(f"--{key}", given[key]) for key in ("mean", "std") if key in given}
    )

    def source(data: str | None) -> object:
        if data is None or not Path(data).is_dir():
            return data
        from ..run.data.pictures import Pictures

        return Pictures(data, (int(sides[0]), int(sides[1])), **given)

    return source


_LARGEST_SIDE = 1 << 16  # pixels


def _parse_numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"{option} {text}: write numbers with commas between") from None


#: How a model is quantized: what the commands that do so share.
def _parse_bits(text: str) -> int | str:
    """Read a number of bits, or auto."""
    return text if text == "auto" else int(text)


_QUANTIZE_OPTIONS = (
    click.option(
        "--platform",
        metavar="NAME",
        help=f"{' | '.join(target.name for target in PLATFORMS)}  [default: {DEFAULT}]",
    ),
    click.option(
        "--mode",
        type=click.Choice(["q-value", "max-value"]),
        help="Scales: powers of two, or any number.  [default: q-value]",
    ),
    click.option("--bits", type=int, metavar="N", help="Bits of activations.  [default: 8]"),
    click.option(
        "--weight-bits",
        type=_parse_bits,
        metavar="N|auto",
        help="Bits of weights; 4 on chips in the layers that take it. auto: with --max-drop or "
        "--min-sqnr as "
        "few in each layer as the wish allows; with --max-flash or --max-ms alone as many as fit.  "
        "[default: 8]",
    ),
    click.option(
        "--weight-scales",
        metavar="tensor|channel|group:N",
        help="One scale for a layer's weight, one for each output channel, or one for each N "
        "weights of a "
        "row of a fully connected layer (generic).  [default: tensor]",
    ),
    click.option(
        "--activations",
        type=click.Choice(["symmetric", "asymmetric"]),
        help=(
            "Integers around 0, or from a zero point for each tensor (generic).  [default: "
            "symmetric]"
        ),
    ),
    click.option(
        "--calibrator",
        type=click.Choice(["max", "percentile", "mse", "kl"]),
        help="How a tensor's range is chosen.  [default: mse]",
    ),
    click.option(
        "--effort",
        type=click.Choice(["fast", "normal", "best"]),
        help="Effort for accuracy.  [default: normal]",
    ),
    click.option(
        "--fit/--no-fit",
        default=None,
        help="Rewrite layers that break a limit of the chip.  [default: fit]",
    ),
    click.option(
        "--require-chip", is_flag=True, default=None, help="Fail where the graph is not chip-ready."
    ),
    click.option(
        "--parts",
        type=click.IntRange(1, 1),
        metavar="1",
        help="Do not cut a model that is not chip-ready into several parts for the chip.",
    ),
    click.option(
        "--cells",
        type=click.Choice(["auto", "chip", "host"]),
        default=None,
        help="Where the cells of recurrent layers whose states are fed back are computed; auto: in "
        "float on "
        "the host where held-back calls show that it is better.  [default: auto]",
    ),
    click.option(
        "--max-parts",
        type=click.IntRange(1),
        metavar="N",
        help="Parts for the chip at most; layers that stand against it move to the host.  "
        "[default: as many "
        "as float operators between integers make, and no layer moves]",
    ),
    click.option(
        "--skip",
        multiple=True,
        metavar="SELECTOR",
        help="Leave these nodes in float: a node, a tensor, a glob or type:Conv; NAME..: it and "
        "all "
        "behind it; ..NAME: all before it. Repeatable.",
    ),
    click.option(
        "--override",
        "overrides",
        multiple=True,
        metavar="SELECTOR=KEY:VALUE,...",
        help="Other settings for some tensors: calibrator, percentile, scale (such as 2^-7), bits, "
        "weight_bits, out_bits. Repeatable.",
    ),
    click.option(
        "--config",
        type=PATH_TYPE,
        metavar="FILE",
        help="Options from a YAML file; the command line wins.",
    ),
    click.option(
        "--notes",
        type=click.Choice(["short", "full"]),
        help="full: every finding, node and layer, and why a simplification of the graph was not "
        "made.  "
        "[default: short]",
    ),
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        help="What decides between forms of the same integers. accuracy: the fastest, by prices "
        "that "
        "are known; time: by another chip's prices too, and constants stay in shared memory for "
        "any gain; "
        "memory: only what takes no more shared memory; plain: nodes keep their forms.  "
        "[default: accuracy]",
    ),
    click.option(
        "--debug-dump",
        type=PATH_TYPE,
        metavar="DIR",
        help="Write into this folder the graph after each pass, and what each did or why not.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        metavar="N",
        help="Seed of all random numbers.  [default: 0]",
    ),
)


def _parse_shapes(
    context: object, option: object, texts: Sequence[str]
) -> dict[str, tuple[int, ...]] | None:
    """Return the sizes of each input; None where none are told."""
    found: dict[str, tuple[int, ...]] = {}
    for name, sizes in parse_pairs("--input-shape", texts, "INPUT=D,D,...").items():
        words = [word.strip() for word in sizes.split(",")]
        if not all(word.isdecimal() and len(word) < 10 for word in words):
            raise ConfigError(
                f"--input-shape {name}={sizes}: sizes are whole numbers, as in 1,3,48,192"
            )
        found[name] = tuple(map(int, words))
    return found or None


def _parse_fixed_inputs(
    context: object, option: object, texts: Sequence[str]
) -> dict[str, str] | None:
    """Return the value of each input that has one for all time; None where none is told."""
    return parse_pairs("--fix", texts, "INPUT=VALUE") or None


def _parse_batch_axes(
    context: object, option: object, texts: Sequence[str]
) -> dict[str, int | None] | None:
    """Return which axis of each input counts the samples, or that none does.

    None where nothing is told.
    """
    found: dict[str, int | None] = {}
    for name, axis in parse_pairs("--batch-axis", texts, "INPUT=K or INPUT=none").items():
        if axis != "none" and not (axis.isdecimal() and len(axis) < 4):
            raise ConfigError(f"--batch-axis {name}={axis}: an axis is a number from 0, or none")
        found[name] = None if axis == "none" else int(axis)
    return found or None


_BATCH_AXIS = click.option(
    "--batch-axis",
    multiple=True,
    metavar="INPUT=K|none",
    callback=_parse_batch_axes,
    help="Which axis of an input counts the samples; none: it has no samples. Repeatable.",
)
_INPUT_SIZE_OPTIONS = (
    click.option(
        "--fix",
        multiple=True,
        metavar="INPUT=VALUE",
        callback=_parse_fixed_inputs,
        help=(
            "An input that always has this value, such as a sampling rate, becomes a constant. "
            "Repeatable."
        ),
    ),
    click.option(
        "--input-shape",
        multiple=True,
        metavar="INPUT=D,D,...",
        callback=_parse_shapes,
        help="The sizes of an input, where the file leaves some open. Repeatable.",
    ),
)


def input_size_options(command: Command) -> Command:
    """Give a command --fix and --input-shape: what the file leaves open of its inputs."""
    for option in reversed(_INPUT_SIZE_OPTIONS):
        command = option(command)
    return command


def input_options(command: Command) -> Command:
    """Give a command --fix, --input-shape and --batch-axis.

    What is to be known of a model's inputs.
    """
    return input_size_options(_BATCH_AXIS(command))


_TIMING_OPTIONS = (
    click.option(
        "--clock",
        type=float,
        metavar="MHZ",
        help="Tell the time on the chip in milliseconds at this clock.",
    ),
    click.option(
        "--budget-ms",
        type=float,
        metavar="MS",
        help="With a clock: that a call takes longer is a finding, with the layers to blame.",
    ),
    click.option(
        "--timing",
        type=PATH_TYPE,
        metavar="FILE",
        help="Prices of the chip that profile-board wrote.",
    ),
)


def timing_options(command: Command) -> Command:
    """Give a command the options on the time on the chip."""
    for option in reversed(_TIMING_OPTIONS):
        command = option(command)
    return command


def quantize_options(command: Command) -> Command:
    """Give a command the options that say how a model is quantized."""
    for option in reversed(_QUANTIZE_OPTIONS):
        command = option(command)
    return command


def parse_pairs(option: str, texts: Sequence[str], form: str) -> dict[str, str]:
    """Split the texts of a repeated option, of the form NAME=VALUE."""
    found = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (name and equals and value):
            raise ConfigError(f"{option} {text}: write {form}")
        found[name] = value
    return found


def default_output_path(model: Path, ending: str) -> Path:
    """Return where a result goes that is given no name: beside `model`, its stem with `ending`.

    ConfigError for "".
    """
    if not model.name:
        raise ConfigError(
            f"cannot read the model {str(model)!r}: it has no name; give the path of an .onnx file"
        )
    return model.with_name(f"{model.stem}{ending}")


def check_output_path(path: Path, read: Sequence[str | Path | None]) -> None:
    """Raise ConfigError, before any work, where `path` cannot be written or is a file this command reads."""
    from ..files import resolve_write_target

    resolve_write_target(path)
    if not path.parent.is_dir():
        raise ConfigError(
            f"cannot write {path}: there is no folder {path.parent}; create it or choose another "
            "name"
        )
    for given in read:
        if given is not None and path.resolve() == Path(given).resolve():
            raise ConfigError(
                f"{path} would be overwritten, which this command uses otherwise; choose another "
                "name"
            )


def json_text(value: Mapping[str, object]) -> str:
    """Return `value` as JSON text."""
    return json.dumps(to_json_value(value), indent=2, allow_nan=False)


def print_json(value: Mapping[str, object]) -> None:
    """Print `value` as JSON."""
    click.echo(json_text(value))


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int | None], None] | None]:
    """Yield what api calls while it works: a display on stderr where that is a terminal, else None.

    It shows what is being done, how far that is, how many a second, and the time left where the
    whole is known.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<12}"),
        BarColumn(24),
        TextColumn("{task.fields[far]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None, far="")
        now, start = "", time.monotonic()

        def update(what: str, done: int, total: int | None) -> None:
            nonlocal now, start
            if what != now:
                now, start = what, time.monotonic()
            bar.update(
                task,
                description=what,
                total=total,
                completed=done,
                far=format_progress(done, total, time.monotonic() - start),
            )

        yield update


def format_progress(done: int, total: int | None, seconds: float) -> str:
    """Return words on a piece of work.

    What is done of it after some seconds, the rate, and the time left.
    Without a total, samples are counted, and what is left is not known.
    """
    if not done:
        return ""
    told = f"{done} samples" if total is None else f"{done} of {total}"
    if seconds < _MIN_RATE_SECONDS:
        return told
    rate = done / seconds
    told += f", {rate:.0f}/s" if rate >= 10 else f", {rate:.2g}/s"
    return told if total is None else f"{told}, {math.ceil((total - done) / rate)} s left"


_MIN_RATE_SECONDS = 1.0  # seconds
