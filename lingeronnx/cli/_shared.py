"""Options, checks, JSON output and the progress bar that commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..common.errors import ConfigError
from ..common.escaping import join_shell
from ..common.json_values import to_json_value
from ..quantization.settings import SETTINGS, Setting
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
    "setting_option",
    "state_options",
    "timing_options",
    "unmeasured_option",
    "worker_options",
]


def format_examples(*lines: str) -> str:
    """Return example command `lines` as the epilog of a command's help, under "Examples:".

    The first character makes click keep the line ends.
    """
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


PATH_TYPE = click.Path(path_type=Path)
DATA_HELP = "an .npz or .npy file, a folder of such files or of images, or file.py:function"
METRICS_HELP = "top1 | top5 | mse | cosine | sqnr | kl_softmax | module:function"

_ARGS_KEY = f"{__name__}.args"


class RecordedCommand(click.Command):
    """A command that records its arguments, for `current_command_line`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the command's name and its arguments in `ctx.meta`, then parse the arguments.

        `current_command_line` reads them there.
        """
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
        """Create a command whose help lists its options in groups.

        `option_groups` are headings with the long names of their options, without dashes. The other
        arguments are those of click's command.
        """
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
        """Write the options into the command's help, in one section for each group."""
        for heading, records in self.iter_option_groups(ctx):
            with formatter.section(heading):
                formatter.write_dl(records)


def current_command_line() -> str:
    """Return the command line that is running, as "lingeronnx ..." quoted for a shell.

    It is "" if the running command does not record its arguments. There must be a click context.
    """
    ctx = click.get_current_context()
    args = ctx.meta.get(_ARGS_KEY)
    return "" if args is None else join_shell(["lingeronnx", *args])


#: A command function before click decorates it.
Command = Callable[..., None]


def json_option(command: Command) -> Command:
    """Return `command` with the flag --json, passed as `as_json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object; tables go to stderr."
    )(command)


class _CallCountType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A number of calls: a positive integer, or "all"."""

    name = "calls"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Return `value` as a positive integer, or "all"; other text is a usage error of click."""
        text = str(value)
        if text == "all":
            return text
        if not text.isdecimal() or int(text) < 1:
            self.fail(f"{text!r} is not a positive integer or 'all'", param, ctx)
        return int(text)


def worker_options(command: Command) -> Command:
    """Return `command` with --workers and --cluster, which select where work runs.

    The results do not depend on them.
    """
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
    """Return `command` with click `options` added, in the order in which the help lists them."""
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
    """Return `command` with the options for loading a folder of images, such as --image-size.

    `make_data_loader` removes them from the parsed options.
    """
    return _add_options(command, _PICTURE_OPTIONS)


def make_data_loader(options: dict[str, Any], *data: str | None) -> Callable[[str | None], object]:
    """Remove the options for images from `options`, and return a loader of the DATA argument.

    Parameters
    ----------
    options
        Parsed options of the command, modified in place.
    data
        The DATA arguments that the command passes to the loader; None where one is absent.

    Returns
    -------
    Callable
        Maps the DATA argument of a command to a data source: `Pictures` for a folder if
        --image-size is set, else DATA itself.

    Raises
    ------
    click.UsageError
        If the options are malformed, or given without --image-size, or if none of `data` is a
        folder, so that --image-size would have no effect.
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
    _require_folder(size, [path for path in data if path is not None])

    def load(data: str | None) -> object:
        """Return a source of resized images for a folder, and any other `data` unchanged."""
        if data is None or not Path(data).is_dir():
            return data
        from ..runtime.data.pictures import Pictures

        return Pictures(data, (int(sides[0]), int(sides[1])), **settings)

    return load


def _require_folder(size: str, paths: Sequence[str]) -> None:
    """Raise a UsageError if none of the DATA `paths` is a folder that --image-size applies to."""
    if not any(Path(path).is_dir() for path in paths):
        given = " or ".join(f"'{path}'" for path in paths) or "no data"
        raise click.UsageError(
            f"--image-size {size} loads a folder of pictures as DATA, not {given}; pass the "
            "folder, or drop the option"
        )


def _is_image_side(side: float) -> bool:
    """Whether `side` is an integer from 1 to _MAX_IMAGE_SIDE, in pixels."""
    return side.is_integer() and 0 < side <= _MAX_IMAGE_SIDE


def _parse_numbers(option: str, text: str) -> list[float]:
    """Parse comma-separated numbers; a malformed one is a UsageError that names `option`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"{option} {text}: write numbers separated by commas") from None


def _parse_shapes(
    context: object, option: object, texts: Sequence[str]
) -> dict[str, tuple[int, ...]] | None:
    """Parse the values of --input-shape, such as "x=1,3,48", to {input: shape}.

    A callback of click; the first two arguments are not used. None if the option is absent. Raises
    ConfigError if a dimension is no decimal integer of at most 9 digits.
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
    """Parse the values of --fix, such as "rate=16000", to {input: text of its value}.

    A callback of click; the first two arguments are not used. None if the option is absent;
    ConfigError if a text is not of that form.
    """
    return parse_pairs("--fix", texts, "INPUT=VALUE") or None


def _parse_batch_axes(
    context: object, option: object, texts: Sequence[str]
) -> dict[str, int | None] | None:
    """Parse the values of --batch-axis to {input: batch axis, or None for "none"}.

    A callback of click; the first two arguments are not used. None if the option is absent. Raises
    ConfigError if an axis is neither "none" nor an integer of at most 3 digits.
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


def _parse_bits(text: str) -> int | str:
    """Parse a number of bits; "auto" is returned as it is. ValueError for other text."""
    return text if text == "auto" else int(text)


#: Setting -> type of the values of its option, if it is more than `Setting.type`.
_OPTION_TYPES: Mapping[str, Any] = {"weight_bits": _parse_bits, "calls": _CallCountType()}

#: Setting -> parser of all texts of its repeatable option.
_OPTION_CALLBACKS: Mapping[str, Callable[[object, object, Sequence[str]], object]] = {
    "fix": _parse_fixed_inputs,
    "input_shape": _parse_shapes,
    "batch_axis": _parse_batch_axes,
}


def setting_option(name: str, description: str = "") -> Callable[[Command], Command]:
    """Return the decorator that adds the option of a setting to a command.

    Parameters
    ----------
    name
        Key of `SETTINGS`. The option is None if the user does not pass it, or an empty tuple if it
        is repeatable.
    description
        Help of a command for which the setting means something else; replaces description and
        default.
    """
    setting = SETTINGS[name]
    help_text = description or setting.description
    if setting.is_repeatable:
        help_text += " Repeatable."
    if setting.default_label and not description:
        help_text += f"  [default: {setting.default_label}]"
    spelling = setting.option or f"--{name.replace('_', '-')}"
    if setting.type is bool:
        is_flag = None if "/" in spelling else True
        return click.option(spelling, name, is_flag=is_flag, default=None, help=help_text)
    return click.option(
        spelling,
        name,
        type=_OPTION_TYPES.get(name) or _option_type(setting),
        multiple=setting.is_repeatable,
        callback=_OPTION_CALLBACKS.get(name),
        shell_complete=_complete_selector if name in ("skip", "overrides") else None,
        metavar=setting.metavar,
        help=help_text,
    )


def _complete_selector(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the selectors of the command's model that begin with `incomplete`, for a shell.

    These are names of nodes, and ``type:`` with each operator. Empty without a readable model.
    """
    # click does not assign arguments before an option that still lacks its value
    words = [context.params.get("model"), *context.args]
    model = next((Path(word) for word in words if word and Path(word).suffix == ".onnx"), None)
    if model is None or not model.is_file():
        return []
    import onnx

    try:
        graph = onnx.load(model, load_external_data=False).graph
    except Exception:  # a shell shows no message while it completes
        return []
    names = [node.name or node.output[0] for node in graph.node]
    names += sorted({f"type:{node.op_type}" for node in graph.node})
    return [name for name in names if name.startswith(incomplete)]


def _option_type(setting: Setting) -> click.ParamType[Any] | type:
    """Return the type of the value of an option: a word, a path, a number or text."""
    if setting.choices:
        return click.Choice(setting.choices)
    if setting.type is Path:
        return PATH_TYPE
    if setting.minimum is not None:
        return click.IntRange(setting.minimum, setting.maximum)
    return setting.type


def _setting_options(*names: str) -> Callable[[Command], Command]:
    """Return the decorator that adds the options of several settings, in this order."""
    return lambda command: _add_options(command, [setting_option(name) for name in names])


#: Decorators that add options of settings to a command.
batch_options = _setting_options("batch", "limit")
calls_option = setting_option("calls")
unmeasured_option = setting_option("allow_unmeasured")
state_options = _setting_options("state", "calls")
input_size_options = _setting_options("fix", "input_shape")
input_options = _setting_options("fix", "input_shape", "batch_axis")
timing_options = _setting_options("clock", "budget_ms", "timing")


def quantize_options(command: Command) -> Command:
    """Add --config, and the settings that all commands have that quantize a model."""
    config_option = click.option(
        "--config",
        type=PATH_TYPE,
        metavar="FILE",
        help="Read options from a YAML or JSON file; the command line takes precedence.",
    )
    options = (
        setting_option("platform"),
        unmeasured_option,
        setting_option("mode"),
        setting_option("bits"),
        setting_option("weight_bits"),
        setting_option("weight_scales"),
        setting_option("activations"),
        setting_option("calibrator"),
        setting_option("effort"),
        setting_option("fit"),
        setting_option("require_chip"),
        setting_option("parts"),
        setting_option("cells"),
        setting_option("max_parts"),
        setting_option("skip"),
        setting_option("overrides"),
        config_option,
        setting_option("notes"),
        setting_option("objective"),
        setting_option("debug_dump"),
        setting_option("seed"),
    )
    return _add_options(command, options)


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
    """Return the path of `model` with its extension replaced by `suffix`, such as "_quant.onnx".

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
    from ..common.files import resolve_path, resolve_write_target

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
    """Print `value` as one JSON object on stdout, with infinities and NaN as null."""
    echo_text(json_text(value) + "\n")
