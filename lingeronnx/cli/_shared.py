"""Options, checks, JSON output and the progress bar that commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..errors import ConfigError
from ..escaping import join_shell
from ..json_values import to_json_value
from ..targets import DEFAULT, PLATFORMS
from ..targets.objective import OBJECTIVES
from .terminal import echo_text

__all__ = [
    "DATA_HELP",
    "METRICS_HELP",
    "PATH_TYPE",
    "GroupedCommand",
    "RecordedCommand",
    "batch_options",
    "calls_option",
    "check_output_path",
    "current_command_line",
    "default_output_path",
    "format_examples",
    "input_options",
    "input_size_options",
    "json_option",
    "json_text",
    "make_data_loader",
    "parse_pairs",
    "picture_options",
    "print_json",
    "quantize_options",
    "state_option",
    "timing_options",
    "worker_options",
]


def format_examples(*lines: str) -> str:
    """Format example command lines as the epilog of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


PATH_TYPE = click.Path(path_type=Path)
DATA_HELP = "an .npz or .npy file, a folder of such files or of images, or file.py:function"
METRICS_HELP = "top1 | top5 | mse | cosine | sqnr | module:function"

_ARGS_KEY = f"{__name__}.args"


class RecordedCommand(click.Command):
    """A command that records its arguments, for `current_command_line`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Record the command's name and arguments in `ctx.meta`, and parse the arguments."""
        ctx.meta[_ARGS_KEY] = [str(ctx.info_name), *args]
        return super().parse_args(ctx, args)


class GroupedCommand(RecordedCommand):
    """A command whose help lists options under headings.

    Parameters
    ----------
    option_groups
        Headings and the long names of their options, such as ``("Data", ("calib", "state"))``.
        Options of no group follow under "Other".
    """

    def __init__(
        self,
        *args: Any,
        option_groups: Sequence[tuple[str, Sequence[str]]] = (),
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.option_groups = option_groups

    def iter_option_groups(self, ctx: click.Context) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield each heading with the (spelling, help) records of its options, in order.

        Options of no group come last, under "Other", or "Options" without any group.
        """
        records = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                records[max(param.opts, key=len).removeprefix("--")] = record
        for heading, names in self.option_groups:
            yield heading, [records.pop(name) for name in names]
        if records:
            yield "Other" if self.option_groups else "Options", list(records.values())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each group of options."""
        for heading, records in self.iter_option_groups(ctx):
            with formatter.section(heading):
                formatter.write_dl(records)


def current_command_line() -> str:
    """Return the running command line, quoted for a shell; "" if it is no `RecordedCommand`."""
    ctx = click.get_current_context()
    args = ctx.meta.get(_ARGS_KEY)
    return "" if args is None else join_shell(["lingeronnx", *args])


#: A command function before click decorates it.
Command = Callable[..., None]


def json_option(command: Command) -> Command:
    """Add --json to a command."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object; tables go to stderr."
    )(command)


def batch_options(command: Command) -> Command:
    """Add --batch and --limit to a command."""
    options = (
        click.option("--batch", type=click.IntRange(1), metavar="N", help="Samples per batch."),
        click.option(
            "--limit", type=click.IntRange(1), metavar="N", help="Use only the first N samples."
        ),
    )
    return _add_options(command, options)


def state_option(command: Command) -> Command:
    """Add --state and --calls to a command."""
    option = click.option(
        "--state",
        multiple=True,
        metavar="OUT=IN",
        help="Feed output OUT back to input IN; the items of DATA are consecutive calls. "
        "Repeatable.",
    )
    return option(calls_option(command))


class _CallCountType(click.ParamType):
    """A number of calls: a positive integer, or "all"."""

    name = "calls"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Return a positive integer, or "all"; fail with a usage error for other text."""
        text = str(value)
        if text == "all":
            return text
        if not text.isdecimal() or int(text) < 1:
            self.fail(f"{text!r} is not a positive integer or 'all'", param, ctx)
        return int(text)


def calls_option(command: Command) -> Command:
    """Add --calls to a command with --state."""
    return click.option(
        "--calls",
        type=_CallCountType(),
        metavar="N",
        help="With --state: divide each item of the data, such as an .npz file, into N consecutive "
        "calls; all: one call per sample.  [default: each item is one call]",
    )(command)


def worker_options(command: Command) -> Command:
    """Add --workers and --cluster, which select where work runs. The results are the same."""
    options = (
        click.option(
            "--workers",
            type=click.IntRange(1),
            metavar="N",
            help="Number of processes.  [default: 1, this one]",
        ),
        click.option(
            "--cluster",
            metavar="ADDRESS",
            help="Run on a Dask cluster, such as tcp://host:8786.",
        ),
    )
    return _add_options(command, options)


def _add_options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    """Add click options to a command; its help lists them in this order."""
    for option in reversed(options):
        command = option(command)
    return command


_PICTURE_OPTIONS = (
    click.option("--image-size", metavar="W,H", help="Load DATA as images and resize them to WxH."),
    click.option(
        "--mean",
        metavar="V[,V,V]",
        help="With --image-size: value to subtract from pixels 0..255.  [default: 0]",
    ),
    click.option(
        "--std",
        metavar="V[,V,V]",
        help="With --image-size: value to divide by, after --mean.  [default: 1]",
    ),
    click.option(
        "--layout",
        type=click.Choice(["nchw", "nhwc"]),
        help="With --image-size: axis order.  [default: nchw]",
    ),
    click.option(
        "--color",
        type=click.Choice(["rgb", "bgr", "gray"]),
        help="With --image-size: channel order.  [default: rgb]",
    ),
    click.option(
        "--resize",
        type=click.Choice(["fit", "crop", "pad"]),
        help="With --image-size: stretch, crop the center, or add a black border.  [default: fit]",
    ),
)
_MAX_IMAGE_SIDE = 1 << 16  # pixels


def picture_options(command: Command) -> Command:
    """Add the options for loading a folder of images; see `make_data_loader`."""
    return _add_options(command, _PICTURE_OPTIONS)


def make_data_loader(options: dict[str, Any]) -> Callable[[str | None], object]:
    """Remove the options of `picture_options` from `options` and return a loader of DATA.

    Returns
    -------
    Callable
        Maps the DATA argument of a command to a data source: `Pictures` for a folder if
        --image-size is set, else DATA itself.

    Raises
    ------
    click.UsageError
        If the options are malformed, or given without --image-size.
    """
    size = options.pop("image_size")
    settings = {}
    for key in ("mean", "std", "layout", "color", "resize"):
        value = options.pop(key)
        if value is not None:
            settings[key] = value
    if size is None:
        if settings:
            raise click.UsageError(f"--{next(iter(settings))} needs --image-size W,H")
        return lambda data: data
    sides = _parse_numbers("--image-size", size)
    if len(sides) != 2 or not all(_is_image_side(side) for side in sides):
        raise click.UsageError(f"--image-size {size}: write width and height, such as 224,224")
    for key in ("mean", "std"):
        if key in settings:
            settings[key] = _parse_numbers(f"--{key}", settings[key])

    def load(data: str | None) -> object:
        """Return `Pictures` for a folder, and any other `data` unchanged."""
        if data is None or not Path(data).is_dir():
            return data
        from ..run.data.pictures import Pictures

        return Pictures(data, (int(sides[0]), int(sides[1])), **settings)

    return load


def _is_image_side(side: float) -> bool:
    """Whether `side` is an integer from 1 to _MAX_IMAGE_SIDE, in pixels."""
    return side.is_integer() and 0 < side <= _MAX_IMAGE_SIDE


def _parse_numbers(option: str, text: str) -> list[float]:
    """Parse comma-separated numbers; UsageError names `option` if one is malformed."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"{option} {text}: write numbers separated by commas") from None


def _parse_bits(text: str) -> int | str:
    """Parse a number of bits; "auto" is returned as it is. ValueError for other text."""
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
        help="Scales: powers of two, or any value.  [default: q-value]",
    ),
    click.option("--bits", type=int, metavar="N", help="Bits of activations.  [default: 8]"),
    click.option(
        "--weight-bits",
        type=_parse_bits,
        metavar="N|auto",
        help="Bits of weights; 4 where the chip supports it. auto: per layer, as few as --max-drop "
        "or --min-sqnr allow, or as many as --max-flash or --max-ms allow.  [default: 8]",
    ),
    click.option(
        "--weight-scales",
        metavar="tensor|channel|group:N",
        help="Granularity of weight scales: per tensor, per output channel, or (generic, fully "
        "connected layers) per N weights of a row.  [default: tensor]",
    ),
    click.option(
        "--activations",
        type=click.Choice(["symmetric", "asymmetric"]),
        help="asymmetric: with zero points (generic).  [default: symmetric]",
    ),
    click.option(
        "--calibrator",
        type=click.Choice(["max", "percentile", "mse", "kl"]),
        help="Method that chooses the range of a tensor.  [default: mse]",
    ),
    click.option(
        "--effort",
        type=click.Choice(["fast", "normal", "best"]),
        help="Time to spend on accuracy.  [default: normal]",
    ),
    click.option(
        "--fit/--no-fit",
        default=None,
        help="Rewrite layers that exceed a limit of the chip.  [default: fit]",
    ),
    click.option(
        "--require-chip", is_flag=True, default=None, help="Fail if the graph is not chip-ready."
    ),
    click.option(
        "--parts",
        type=click.IntRange(1, 1),
        metavar="1",
        help="Do not split a model that is not chip-ready into several chip parts.",
    ),
    click.option(
        "--cells",
        type=click.Choice(["auto", "chip", "host"]),
        default=None,
        help="Where recurrent cells with fed-back states run. auto: in float on the host if "
        "held-out calls show that it is more accurate.  [default: auto]",
    ),
    click.option(
        "--max-parts",
        type=click.IntRange(1),
        metavar="N",
        help="Maximum number of chip parts; layers that prevent it move to the host.  "
        "[default: no limit]",
    ),
    click.option(
        "--skip",
        multiple=True,
        metavar="SELECTOR",
        help="Keep nodes in float: a node or tensor name, a glob, or type:Conv; NAME..: it and all "
        "nodes downstream; ..NAME: it and all nodes upstream. Repeatable.",
    ),
    click.option(
        "--override",
        "overrides",
        multiple=True,
        metavar="SELECTOR=KEY:VALUE,...",
        help="Settings of single tensors: calibrator, percentile, scale (such as 2^-7), bits, "
        "weight_bits, out_bits. Repeatable.",
    ),
    click.option(
        "--config",
        type=PATH_TYPE,
        metavar="FILE",
        help="Read options from a YAML file; the command line takes precedence.",
    ),
    click.option(
        "--notes",
        type=click.Choice(["short", "full"]),
        help="full: report every finding, node, layer and rejected graph rewrite.  "
        "[default: short]",
    ),
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        help="How to choose between equivalent graphs. accuracy: fastest by measured costs; time: "
        "also by costs of other chips, and constants stay in shared memory for any gain; memory: "
        "only if shared memory does not grow; plain: no rewriting.  [default: accuracy]",
    ),
    click.option(
        "--debug-dump",
        type=PATH_TYPE,
        metavar="DIR",
        help="Write the graph after each pass to DIR, with the changes or the reasons for none.",
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
    """Parse --input-shape to {input: shape}; None if the option is absent.

    Raises ConfigError if a dimension is no decimal integer of at most 9 digits.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in parse_pairs("--input-shape", texts, "INPUT=D,D,...").items():
        dims = [dim.strip() for dim in shape.split(",")]
        if not all(dim.isdecimal() and len(dim) < 10 for dim in dims):
            raise ConfigError(
                f"--input-shape {name}={shape}: dimensions are integers, such as 1,3,48,192"
            )
        shapes[name] = tuple(map(int, dims))
    return shapes or None


def _parse_fixed_inputs(
    context: object, option: object, texts: Sequence[str]
) -> dict[str, str] | None:
    """Parse --fix to {input: text of its value}; None if the option is absent."""
    return parse_pairs("--fix", texts, "INPUT=VALUE") or None


def _parse_batch_axes(
    context: object, option: object, texts: Sequence[str]
) -> dict[str, int | None] | None:
    """Parse --batch-axis to {input: batch axis, or None for "none"}; None if it is absent.

    Raises ConfigError if an axis is neither "none" nor an integer of at most 3 digits.
    """
    batch_axes: dict[str, int | None] = {}
    for name, axis in parse_pairs("--batch-axis", texts, "INPUT=K or INPUT=none").items():
        if axis == "none":
            batch_axes[name] = None
        elif axis.isdecimal() and len(axis) < 4:
            batch_axes[name] = int(axis)
        else:
            raise ConfigError(f"--batch-axis {name}={axis}: an axis is an integer >= 0, or none")
    return batch_axes or None


_INPUT_SIZE_OPTIONS = (
    click.option(
        "--fix",
        multiple=True,
        metavar="INPUT=VALUE",
        callback=_parse_fixed_inputs,
        help="Turn an input with a constant value, such as a sampling rate, into a constant. "
        "Repeatable.",
    ),
    click.option(
        "--input-shape",
        multiple=True,
        metavar="INPUT=D,D,...",
        callback=_parse_shapes,
        help="Shape of an input whose dimensions the file leaves open. Repeatable.",
    ),
)
_BATCH_AXIS = click.option(
    "--batch-axis",
    multiple=True,
    metavar="INPUT=K|none",
    callback=_parse_batch_axes,
    help="Batch axis of an input; none: the input has no batch. Repeatable.",
)


def input_size_options(command: Command) -> Command:
    """Add --fix and --input-shape to a command."""
    return _add_options(command, _INPUT_SIZE_OPTIONS)


def input_options(command: Command) -> Command:
    """Add --fix, --input-shape and --batch-axis to a command."""
    return _add_options(command, (*_INPUT_SIZE_OPTIONS, _BATCH_AXIS))


_TIMING_OPTIONS = (
    click.option(
        "--clock", type=float, metavar="MHZ", help="Report time on the chip in ms at this clock."
    ),
    click.option(
        "--budget-ms",
        type=float,
        metavar="MS",
        help="With --clock: report calls that take longer, with the layers responsible.",
    ),
    click.option(
        "--timing",
        type=PATH_TYPE,
        metavar="FILE",
        help="Kernel costs of the chip, written by profile-board.",
    ),
)


def timing_options(command: Command) -> Command:
    """Add the options for latency on the chip to a command."""
    return _add_options(command, _TIMING_OPTIONS)


def quantize_options(command: Command) -> Command:
    """Add the quantization options to a command."""
    return _add_options(command, _QUANTIZE_OPTIONS)


def parse_pairs(option: str, texts: Sequence[str], form: str) -> dict[str, str]:
    """Parse the NAME=VALUE texts of a repeatable option to {name: value}.

    The last ``=`` separates; of a repeated name, the last value counts.

    Parameters
    ----------
    option
        The option, shown in the error.
    texts
        Its values.
    form
        The form to write, shown in the error.

    Raises
    ------
    ConfigError
        If a text has no ``=``, name or value.
    """
    values = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (name and equals and value):
            raise ConfigError(f"{option} {text}: write {form}")
        values[name] = value
    return values


def default_output_path(model: Path, suffix: str) -> Path:
    """Return the default output path: the path of `model` with its extension replaced.

    Raises
    ------
    ConfigError
        If `model` is an empty path.
    """
    if not model.name:
        raise ConfigError(
            f"cannot read the model {str(model)!r}: it has no name; pass the path of an .onnx file"
        )
    return model.with_name(f"{model.stem}{suffix}")


def check_output_path(path: Path, inputs: Sequence[str | Path | None]) -> None:
    """Check that `path` can be written and is none of the `inputs` of the command.

    Symbolic links are followed; inputs that are None are ignored.

    Raises
    ------
    ConfigError
        If `path` is no regular file, its folder does not exist, or an input would be overwritten.
    """
    from ..files import resolve_path, resolve_write_target

    resolve_write_target(path)
    if not path.parent.is_dir():
        raise ConfigError(
            f"cannot write {path}: there is no folder {path.parent}; create it or choose another "
            "name"
        )
    for input_path in inputs:
        if input_path is not None and resolve_path(path) == resolve_path(input_path):
            raise ConfigError(
                f"{path} would be overwritten: this command uses it otherwise; choose another name"
            )


def json_text(value: Mapping[str, object]) -> str:
    """Serialize `value` as JSON, indented by 2; infinities and NaN become null."""
    return json.dumps(to_json_value(value), indent=2, allow_nan=False)


def print_json(value: Mapping[str, object]) -> None:
    """Print `value` as JSON on stdout."""
    echo_text(json_text(value) + "\n")
