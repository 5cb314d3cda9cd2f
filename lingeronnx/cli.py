"""The command line: each command parses its options, calls `api` once and prints what came back.

Exit codes: 0; 1 the user's side, told in one line; 2 a wrong option; 70 a bug of ours, with its traceback; 130 Ctrl-C.
With ``--json`` one JSON object is all there is on stdout, and tables go to stderr. Everything heavy (numpy, onnx, rich
...) is imported inside the commands, so that ``--help`` is there at once.

How results look is `show`'s business.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import __version__
from .errors import ConfigError, LingerOnnxError
from .platforms import PLATFORMS
from .platforms import platform as platform_row
from .show import (
    accuracy_of,
    console_for,
    plain,
    show_demo,
    show_evaluation,
    show_platform,
    show_platforms,
    show_report,
    show_simulation,
)

if TYPE_CHECKING:
    from .plan import Plan
    from .report import Report

__all__ = ["main"]

_BUG = 70
_CTRL_C = 130


class _Group(click.Group):
    """Turns what a command raises into exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except LingerOnnxError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(_CTRL_C)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of our output went away; click knows what to do
            if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
                click.echo(f"error: {error.strerror}: {error.filename}", err=True)
                ctx.exit(1)
            click.echo(traceback.format_exc(), err=True, nl=False)
            click.echo("this is a bug in lingeronnx: please report it, with the lines above and the command", err=True)
            ctx.exit(_BUG)


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


_PATH = click.Path(path_type=Path)
_DATA = "an .npz or .npy file, a folder of them, or file.py:function"
_METRICS = "top1 | top5 | mse | cosine | sqnr | module:function"


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object; tables go to stderr.")(command)


def _amounts(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--limit", type=click.IntRange(1), metavar="N", help="Use the first N samples.")(command)
    return click.option("--batch", type=click.IntRange(1), metavar="N", help="Samples per batch.")(command)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_examples(
        "lingeronnx demo",
        "lingeronnx quantize model.onnx --calib calib.npz --eval test.npz --metric top1",
    ),
)
@click.version_option(__version__, prog_name="lingeronnx", message="%(prog)s %(version)s")
def main() -> None:
    """Quantize float ONNX models for small NPUs, and simulate the result bit for bit."""


@main.command(
    epilog=_examples(
        "lingeronnx quantize model.onnx --calib calib.npz",
        "lingeronnx quantize model.onnx --calib calib.npz --eval test.npz --metric top1 --require-chip",
        "lingeronnx quantize model.onnx --calib calib.npz --skip type:Softmax --override 'type:Conv=calibrator:max'",
    )
)
@click.argument("model", type=_PATH)
@click.option("-o", "--output", type=_PATH, metavar="OUT", help="Default: MODEL_quant.onnx beside the model.")
@click.option("--calib", metavar="DATA", help=f"Calibration data: {_DATA}.")
@click.option("--platform", metavar="NAME", help=f"{' | '.join(row.name for row in PLATFORMS)}  [default: venus]")
@click.option("--mode", type=click.Choice(["q-value", "max-value"]),
              help="Scales: powers of two, or any.  [default: q-value]")  # fmt: skip
@click.option("--bits", type=int, metavar="N", help="Width of activations.  [default: 8]")
@click.option("--weight-bits", type=int, metavar="N", help="Width of weights.  [default: 8]")
@click.option("--calibrator", type=click.Choice(["max", "percentile", "mse", "kl"]),
              help="How ranges are chosen.  [default: mse]")  # fmt: skip
@click.option("--effort", type=click.Choice(["fast", "normal"]), help="Time spent on accuracy.  [default: normal]")
@click.option("--fit/--no-fit", default=None, help="Rewrite layers that break a limit of the chip.  [default: fit]")
@click.option("--require-chip", is_flag=True, default=None, help="Fail where the graph is not chip-ready.")
@click.option("--skip", multiple=True, metavar="SELECTOR",
              help="Leave these nodes in float: a node, a tensor, a glob or type:Conv. Repeatable.")  # fmt: skip
@click.option("--override", "overrides", multiple=True, metavar="SELECTOR=KEY:VALUE,...",
              help="Other settings for some tensors: calibrator, percentile, scale (such as 2^-7), bits, weight_bits, "
              "out_bits. Repeatable.")  # fmt: skip
@click.option("--config", type=_PATH, metavar="FILE", help="Options from a YAML file; those given here win.")
@click.option("--plan", "plan_in", type=_PATH, metavar="FILE", help="Use these scales; nothing is calibrated.")
@click.option("--save-plan", type=_PATH, metavar="FILE", help="Write the scales as JSON.")
@click.option("--eval", "eval_data", metavar="DATA", help="Measure float against integer on this data.")
@click.option("--metric", metavar="NAME", help=f"With --eval: {_METRICS}.  [default: top1 with labels, else sqnr]")
@_amounts
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of everything random.  [default: 0]")
@_shared
def quantize(
    model: Path, output: Path | None, plan_in: Path | None, save_plan: Path | None, eval_data: str | None,
    metric: str | None, overrides: Sequence[str], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Quantize a float model and say what became of it.

    Without --calib the scales come from random inputs: good to see whether a model fits a chip, not for its accuracy.
    Where float operators before or after the integers stay with the host, the part for the packer is written as well.
    """
    if metric is not None and eval_data is None:
        raise click.UsageError("--metric needs --eval DATA")
    output = output or model.with_name(f"{model.stem}_quant.onnx")
    read = [model, options["calib"], options["config"], plan_in, eval_data]
    _check_target(output, read)
    chip_output = output.with_name(f"{output.stem}_chip{output.suffix}")
    _check_target(chip_output, read)
    if save_plan is not None:
        _check_target(save_plan, [*read, output])
    plan = None if plan_in is None else _read_plan(plan_in, options)
    with _progress() as progress:
        from . import api
        from .config import merge_overrides
        from .files import write_text

        result = api.quantize(model, options.pop("calib"), plan=plan, overrides=merge_overrides(overrides),
                              progress=progress, **options)  # fmt: skip
        part = chip_output if result.chip is not None else None
        report = _repacked(result.report, part or output)
        if eval_data is not None:
            sizes: dict[str, Any] = {key: options[key] for key in ("batch", "limit") if options[key] is not None}
            found = api.evaluate(result.session(), eval_data, metric=metric, baseline=model, progress=progress, **sizes)
            report = replace(report, accuracy=accuracy_of(found))
        result.save(output)
        if part is not None:
            result.save_chip(part)
        if save_plan is not None:
            write_text(save_plan, result.plan.to_json())
    show_report(console_for(as_json), report, model, output, save_plan, part)
    if as_json:
        _print_json({"model": model, "output": output, "chip_part": part, "plan": save_plan, **report.to_dict()})


@main.command(
    epilog=_examples(
        "lingeronnx simulate model_quant.onnx --input test.npz -o out.npz",
        "lingeronnx simulate model_quant.onnx --input test.npz --integers --taps all",
        "lingeronnx simulate model_quant.onnx --input test.npz --limit 1 --dump tensors --at logits",
    )
)
@click.argument("model", type=_PATH)
@click.option("--input", "data", required=True, metavar="DATA", help=f"What to feed: {_DATA}.")
@click.option("-o", "--output", type=_PATH, metavar="OUT", help="Default: MODEL_out.npz in the current folder.")
@click.option("--integers", is_flag=True, help="Write integers, not real values; for outputs those behind the Dequant.")
@click.option("--taps", multiple=True, metavar="NAME|all", help="Write this tensor too, or every one. Repeatable.")
@click.option("--dump", type=_PATH, metavar="DIR", help="Write the taps (without any: every tensor) as .npy files too.")
@click.option("--at", metavar="TENSOR", help="Show range, mean and first values of one tensor.")
@_amounts
@_shared
def simulate(model: Path, data: str, output: Path | None, as_json: bool, batch: int | None, **options: Any) -> None:
    """Run a model, integer or float, and write its outputs.

    Integer graphs run bit for bit as on the chip, float ones in onnxruntime. Integer tensors come as real values,
    unless --integers is given; --dump keeps them as they are, with their scales in index.json.
    """
    output = output or Path(f"{model.stem}_out.npz")
    _check_target(output, [model, data])
    _check_folder(options["dump"], data)
    with _progress() as progress:
        from . import api
        from .dump import write_npz

        if batch is not None:
            options["batch"] = batch
        result = api.simulate(model, data, progress=progress, **options)
        write_npz(output, result.arrays)
    show_simulation(console_for(as_json), result, output, options["dump"])
    if as_json:
        made_of = {key: name for name, key in result.outputs.items()}
        tensors = [{"name": name, "output": made_of.get(name), "dtype": str(array.dtype), "shape": list(array.shape),
                    "scale": result.scales[name]} for name, array in result.arrays.items()]  # fmt: skip
        _print_json({"model": model, "output": output, "dump": options["dump"], "samples": result.samples,
                     "tensors": tensors, "at": result.at.to_dict() if result.at else None,
                     "notes": list(result.notes)})  # fmt: skip


@main.command(
    epilog=_examples(
        "lingeronnx evaluate model_quant.onnx --data test.npz --baseline model.onnx",
        "lingeronnx evaluate model_quant.onnx --data test.npz --baseline model.onnx --metric sqnr",
    )
)
@click.argument("model", type=_PATH)
@click.option("--data", required=True, metavar="DATA", help=f"What to measure on: {_DATA}; may hold labels.")
@click.option("--baseline", type=_PATH, metavar="FLOAT.onnx", help="The model to compare with.")
@click.option("--metric", metavar="NAME", help=f"{_METRICS}  [default: top1 with labels, else sqnr]")
@click.option("--output", metavar="TENSOR", help="The tensor to measure.  [default: the first graph output]")
@_amounts
@_shared
def evaluate(model: Path, data: str, as_json: bool, batch: int | None, **options: Any) -> None:
    """Measure a model against labels, or against a baseline's outputs."""
    with _progress() as progress:
        from . import api

        if batch is not None:
            options["batch"] = batch
        found = api.evaluate(model, data, progress=progress, **options)
    show_evaluation(console_for(as_json), found, model, options["baseline"])
    if as_json:
        drop = None if found.baseline is None else found.baseline - found.value
        _print_json({"model": model, "baseline_model": options["baseline"], "metric": found.metric, "unit": found.unit,
                     "value": found.value, "baseline": found.baseline, "drop": drop,
                     "samples": found.samples})  # fmt: skip


@main.command(
    epilog=_examples(
        "lingeronnx check model.onnx",
        "lingeronnx check model_quant.onnx --platform venus -o findings",
    )
)
@click.argument("model", type=_PATH)
@click.option("--platform", metavar="NAME", help="Default: the one an integer graph was made for, else venus.")
@click.option("--calib", metavar="DATA", help=f"Sizes of inputs that the file leaves open: {_DATA}.")
@click.option("-o", "--output", type=_PATH, metavar="DIR", help="Write check.txt and check.json into this folder too.")
@_shared
def check(model: Path, platform: str | None, calib: str | None, output: Path | None, as_json: bool) -> None:
    """List every limit of a platform that a model breaks: node, value, limit and remedy.

    Takes float models and integer graphs. Says of float models which rewrites of --fit would mend it and what would
    remain. Exit code 0 where there is nothing, 1 where there is a violation.
    """
    from . import api

    found = api.check(model, platform=platform, calib=calib)
    lines = found.lines()
    body = {"model": model, **found.to_dict()}
    if output is not None:
        _write_folder(output, {"check.txt": "\n".join(lines) + "\n", "check.json": _json_text(body) + "\n"})
    for line in lines:
        click.echo(line, err=as_json)
    if as_json:
        _print_json(body)
    if found.violations:
        click.get_current_context().exit(1)


@main.command(
    epilog=_examples(
        "lingeronnx platforms",
        "lingeronnx platforms venus",
        "lingeronnx platforms --markdown > docs/operators.md",
    )
)
@click.argument("name", required=False)
@click.option("--markdown", is_flag=True, help="Print the page of operators, limits and faults on all platforms.")
@_shared
def platforms(name: str | None, markdown: bool, as_json: bool) -> None:
    """List the platforms, or tell limits, operators and known faults of one."""
    if markdown:
        if name is not None or as_json:
            raise click.UsageError("--markdown prints one page on all platforms; give it alone")
        from .analysis.operators import operators_markdown

        click.echo(operators_markdown(), nl=False)
        return
    rows = PLATFORMS if name is None else (platform_row(name),)
    console = console_for(as_json)
    if name is None:
        show_platforms(console, rows)
    else:
        show_platform(console, rows[0])
    if as_json:
        found = [plain(row) for row in rows]
        _print_json({"platforms": found} if name is None else found[0])


@main.command(
    epilog=_examples(
        "lingeronnx demo",
    )
)
@_shared
def demo(as_json: bool) -> None:
    """Quantize a small CNN for handwritten digits and measure it on digits it never saw.

    Needs a checkout of the repository (models/); writes build/digits_cnn_quant.onnx in the current folder.
    """
    with _progress() as progress:
        from .demo import demo as run

        done = run(progress=progress)
    report = replace(done.result.report, accuracy=accuracy_of(done.evaluation))
    show_demo(console_for(as_json), done, report)
    if as_json:
        _print_json({"model": done.model, "output": done.output, "seconds": done.seconds, **report.to_dict()})


@main.command(
    epilog=_examples(
        "lingeronnx warmup",
    )
)
@_shared
def warmup(as_json: bool) -> None:
    """Compile the simulator's kernels, so that the first run need not.

    The cache is below LINGERONNX_CACHE_DIR, else the user's cache folder.
    """
    with _progress() as progress:
        from .demo import warmup as run

        seconds, cache = run(progress)
    where = f"cached in {cache}" if cache else "no cache folder can be written, so nothing is kept"
    console_for(as_json).print(f"kernels ready in {seconds:.1f} s, {where}", soft_wrap=True)
    if as_json:
        _print_json({"seconds": seconds, "cache": cache})


# ---- what commands share -----------------------------------------------------------------------------------------


def _check_target(path: Path, read: Sequence[str | Path | None]) -> None:
    """Raise ConfigError, before any work, where `path` cannot be written or is a file this command reads."""
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder; give a file name")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}; create it or choose another name")
    for given in read:
        if given is not None and path.resolve() == Path(given).resolve():
            raise ConfigError(f"{path} would be overwritten, which this command uses otherwise; choose another name")


def _check_folder(path: Path | None, data: str) -> None:
    """Raise ConfigError where a dump into `path` could replace a file of the data."""
    if path is not None and Path(data).resolve().is_relative_to(path.resolve()):
        raise ConfigError(f"--dump {path}: the folder holds the data that are read; choose another one")


def _read_plan(path: Path, options: dict[str, Any]) -> Plan:
    """Read a plan and put its platform and mode into `options`; ConfigError where others were given."""
    from .plan import Plan

    try:
        plan = Plan.from_json(path.read_text(encoding="utf-8"), f"the plan {path}")
    except OSError as error:
        raise ConfigError(f"cannot read the plan {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the plan {path} is not a lingeronnx plan (no UTF-8 text)") from error
    for key, have in (("platform", plan.platform), ("mode", plan.mode)):
        if options[key] not in (None, have):
            raise ConfigError(f"--{key} {options[key]}: the plan {path} is for {have}; drop one of the two")
        options[key] = have
    return plan


def _repacked(report: Report, output: Path) -> Report:
    """Put the file that is really written into the packer's line."""
    row = platform_row(report.platform)
    if not row.packer:
        return report
    line = row.packer.format(model=output, stem=output.with_suffix(""))
    return replace(report, packer=f"{line} {report.packer_args}".strip())


def _write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files into `folder`, which is made where it is not there; ConfigError where it cannot be."""
    from .files import write_text

    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}") from error
    for name, text in files.items():
        write_text(folder / name, text)


def _json_text(value: Mapping[str, Any]) -> str:
    return json.dumps(plain(value), indent=2, allow_nan=False)


def _print_json(value: Mapping[str, Any]) -> None:
    click.echo(_json_text(value))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None] | None]:
    """Yield what api calls while it works: a display on stderr where that is a terminal, else None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description:<12}"), BarColumn(24),
               TextColumn("{task.fields[samples]}"), TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None, samples="")

        def update(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=what, total=total, completed=done, samples=f"{done} samples" if done else "")

        yield update
