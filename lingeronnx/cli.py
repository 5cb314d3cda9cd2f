"""The command line: each command parses its options, calls `api` once and prints what came back.

Exit codes: 0; 1 the user's side, told in one line; 2 a wrong option; 70 a bug of ours, with its traceback; 130 Ctrl-C.
With ``--json`` one JSON object is all there is on stdout, and tables go to stderr. Everything heavy (numpy, onnx, rich
...) is imported inside the commands, so that ``--help`` is there at once.

The first half of this file holds the commands, the second half how results look.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import __version__
from .errors import ConfigError, LingerOnnxError
from .platforms import PLATFORMS, Platform
from .platforms import platform as platform_row

if TYPE_CHECKING:
    from rich.console import Console

    from .api import Evaluation, Simulation
    from .demo import Demo
    from .dump import Summary
    from .plan import Plan
    from .report import FloatNode, Report

__all__ = ["main"]

_BUG = 70
_CTRL_C = 130
_INDENT = 20  # where values begin


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
@click.option("--calibrator", type=click.Choice(["max", "mse"]), help="How ranges are chosen.  [default: mse]")
@click.option("--effort", type=click.Choice(["fast", "normal"]), help="Time spent on accuracy.  [default: normal]")
@click.option("--fit/--no-fit", default=None, help="Rewrite layers that break a limit of the chip.  [default: fit]")
@click.option("--require-chip", is_flag=True, default=None, help="Fail where the graph is not chip-ready.")
@click.option("--skip", multiple=True, metavar="SELECTOR",
              help="Leave these nodes in float: a node, a tensor, a glob or type:Conv. Repeatable.")  # fmt: skip
@click.option("--override", "overrides", multiple=True, metavar="SELECTOR=KEY:VALUE,...",
              help="Other settings for some tensors: calibrator, scale (such as 2^-7). Repeatable.")  # fmt: skip
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
    """
    if metric is not None and eval_data is None:
        raise click.UsageError("--metric needs --eval DATA")
    output = output or model.with_name(f"{model.stem}_quant.onnx")
    read = [model, options["calib"], options["config"], plan_in, eval_data]
    _check_target(output, read)
    if save_plan is not None:
        _check_target(save_plan, [*read, output])
    plan = None if plan_in is None else _read_plan(plan_in, options)
    with _progress() as progress:
        from . import api
        from .config import merge_overrides
        from .files import write_text

        result = api.quantize(model, options.pop("calib"), plan=plan, overrides=merge_overrides(overrides),
                              progress=progress, **options)  # fmt: skip
        report = _repacked(result.report, output)
        if eval_data is not None:
            sizes: dict[str, Any] = {key: options[key] for key in ("batch", "limit") if options[key] is not None}
            found = api.evaluate(result.session(), eval_data, metric=metric, baseline=model, progress=progress, **sizes)
            report = replace(report, accuracy=_accuracy(found))
        result.save(output)
        if save_plan is not None:
            write_text(save_plan, result.plan.to_json())
    _show_report(_console(as_json), report, model, output, save_plan)
    if as_json:
        _print_json({"model": model, "output": output, "plan": save_plan, **report.to_dict()})


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
    _show_simulation(_console(as_json), result, output, options["dump"])
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
    _show_evaluation(_console(as_json), found, model, options["baseline"])
    if as_json:
        drop = None if found.baseline is None else found.baseline - found.value
        _print_json({"model": model, "baseline_model": options["baseline"], "metric": found.metric, "unit": found.unit,
                     "value": found.value, "baseline": found.baseline, "drop": drop,
                     "samples": found.samples})  # fmt: skip


@main.command(
    epilog=_examples(
        "lingeronnx platforms",
        "lingeronnx platforms venus",
    )
)
@click.argument("name", required=False)
@_shared
def platforms(name: str | None, as_json: bool) -> None:
    """List the platforms, or tell limits, operators and known faults of one."""
    rows = PLATFORMS if name is None else (platform_row(name),)
    console = _console(as_json)
    if name is None:
        _show_platforms(console, rows)
    else:
        _show_platform(console, rows[0])
    if as_json:
        plain = [_plain(row) for row in rows]
        _print_json({"platforms": plain} if name is None else plain[0])


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
    report = replace(done.result.report, accuracy=_accuracy(done.evaluation))
    _show_demo(_console(as_json), done, report)
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
    _console(as_json).print(f"kernels ready in {seconds:.1f} s, {where}", soft_wrap=True)
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


def _accuracy(found: Evaluation) -> dict[str, Any]:
    drop = None if found.baseline is None else found.baseline - found.value
    return {"metric": found.metric, "unit": found.unit, "float": found.baseline, "integer": found.value, "drop": drop,
            "samples": found.samples}  # fmt: skip


def _plain(value: Any) -> Any:
    """Return `value` in types JSON has; a number that is not finite becomes null, a row a dict."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {key: _plain(getattr(value, key)) for key in value.__dataclass_fields__}
    return str(value) if isinstance(value, Path) else value


def _print_json(value: Mapping[str, Any]) -> None:
    click.echo(json.dumps(_plain(value), indent=2, allow_nan=False))


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


# ---- how results look --------------------------------------------------------------------------------------------


def _console(as_json: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if as_json else sys.stdout
    known = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=as_json, width=None if known else 100, highlight=False, markup=False, emoji=False)


def _facts(console: Console, rows: Sequence[tuple[str, str, str]]) -> None:
    """Print (label, value, style of the value), long values folded under themselves."""
    from rich.text import Text

    for label, value, style in rows:
        for line in textwrap.wrap(value, max(console.width - _INDENT, 20)) or [""]:
            line = line.replace("\u00a0", " ")
            console.print(Text.assemble((f"  {label:<{_INDENT - 2}}", "cyan"), (line, style)), soft_wrap=True)
            label = ""


def _table(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """Print a table under a title; `right` names the column to align on the right."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="cyan")
    for name in head:
        table.add_column(name, overflow="fold", justify="right" if name == right else "left")
    for row in rows:
        table.add_row(*row)
    console.print(f"\n  {title}\n" if title else "", style="bold", soft_wrap=True)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _title(console: Console, text: str) -> None:
    console.print(f"\n{text}\n", style="bold", soft_wrap=True)


def _line(console: Console, label: str, text: str) -> None:
    """Print a value that must stay whole, such as a path or a command."""
    from rich.text import Text

    console.print(Text.assemble((f"  {label:<{_INDENT - 2}}", "cyan"), text), soft_wrap=True)


def _notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"  note: {note}", style="yellow")


def _show_report(console: Console, report: Report, model: Path, output: Path, plan: Path | None) -> None:
    _title(console, f"{model} -> {report.platform}, {report.mode}")
    _facts(console, _report_rows(report))
    _float_table(console, "Float nodes between integer ones", report.float_nodes)
    _float_table(console, "Host part: float nodes before the first or after the last integer one", report.host_part)
    if report.fitted:
        _table(console, "Rewritten to fit the chip", ["node", "what", "cost"],
               [(f.node, f.what, f.cost) for f in report.fitted])  # fmt: skip
    console.print()
    _notes(console, report.notes)
    if report.packer and report.chip_ready:
        _line(console, "pack it with", report.packer)
    if plan is not None:
        _line(console, "plan", str(plan))
    _line(console, "written", f"{output} ({_size(output)})")


def _report_rows(report: Report) -> list[tuple[str, str, str]]:
    counts = sorted(report.layers.items(), key=lambda item: -item[1])
    layers = f"{sum(report.layers.values())}: " + ", ".join(f"{op}\u00a0{n}" for op, n in counts)
    ready, style = ("yes", "bold green") if report.chip_ready else ("no", "bold red")
    if not report.is_chip:
        ready, style = f"no: {report.platform} is no chip", ""
    rows = [("integer layers", layers if counts else "none", ""), ("chip-ready", ready, style),
            ("integer MACs", f"{100 * report.integer_macs:.1f} %", "")]  # fmt: skip
    for name, seen in report.outputs.items():
        text = f"{name}: cosine {seen['cosine']:.6f}, SQNR {_decibel(seen['sqnr'])} on the calibration data"
        rows.append(("fidelity", text, ""))
    if report.accuracy:
        rows.append(("accuracy", _accuracy_text(report.accuracy), "bold"))
    return rows


def _accuracy_text(a: Mapping[str, Any]) -> str:
    ends = f"({a['metric']}, {a['samples']} samples)"
    if a["float"] is None:
        return f"{_number(a['integer'], a['unit'])} against the float model {ends}"
    return (f"float {_number(a['float'], a['unit'])}, integer {_number(a['integer'], a['unit'])}, "
            f"drop {_number(a['drop'], a['unit'].replace('%', 'points'))} {ends}")  # fmt: skip


def _float_table(console: Console, title: str, nodes: Sequence[FloatNode], most: int = 20) -> None:
    if nodes:
        rows = [(n.node, n.op_type, n.why) for n in nodes[:most]]
        _table(console, title, ["node", "operator", "why in float"], rows)
        if len(nodes) > most:
            console.print(f"  and {len(nodes) - most} more, listed with --json")


def _show_simulation(console: Console, result: Simulation, output: Path, dump: Path | None) -> None:
    made_of = {key: name for name, key in result.outputs.items()}
    rows = []
    for name, array in result.arrays.items():
        role = "" if name not in made_of else "output" if made_of[name] == name else f"output {made_of[name]}"
        rows.append((name, role, str(array.dtype), _shape(array.shape), _scale(result.scales[name])))
    _table(console, "", ["tensor", "role", "type", "shape", "scale"], rows, right="scale")
    if result.at is not None:
        _show_at(console, result.at)
    if result.at is None:
        console.print()
    _notes(console, result.notes)
    if dump is not None:
        _line(console, "dumped", str(dump))
    _line(console, "written", f"{output} ({result.samples} samples, {_size(output)})")


def _show_at(console: Console, at: Summary) -> None:
    def both(value: float) -> str:
        return f"{value:g}" if at.scale is None else f"{value:g}  = {value / at.scale:g}"

    def real(value: float) -> str:
        return f"{value if at.scale is None else value / at.scale:g}"

    console.print()
    rows = [("at", at.name), ("type", f"{at.dtype} {_shape(at.shape)}"), ("scale", _scale(at.scale)),
            ("min", both(at.low)), ("max", both(at.high)), ("mean", both(at.mean)),
            ("first", "  ".join(f"{value:g}" for value in at.first)),
            ("as real", "  ".join(map(real, at.first)))]  # fmt: skip
    _facts(console, [(*row, "") for row in rows if at.scale is not None or row[0] not in ("scale", "as real")])
    console.print()


def _show_evaluation(console: Console, found: Evaluation, model: Path, baseline: Path | None) -> None:
    against = f" against {baseline}" if baseline is not None and found.baseline is None else ""
    rows = [(found.metric, f"{_number(found.value, found.unit)}  {model}{against}", "bold")]
    if found.baseline is not None:
        rows += [("baseline", f"{_number(found.baseline, found.unit)}  {baseline}", ""),
                 ("drop", _number(found.baseline - found.value, found.unit.replace("%", "points")), "")]  # fmt: skip
    _facts(console, [*rows, ("samples", str(found.samples), "")])


def _show_platforms(console: Console, rows: Sequence[Platform]) -> None:
    _table(console, "", ["name", "executor", "what it is", "modes", "operators"],
           [(r.name, r.executor or "-", r.title, ", ".join(r.modes), str(len(r.ops))) for r in rows],
           right="operators")  # fmt: skip
    console.print("\n  lingeronnx platforms NAME tells more about one")


def _show_platform(console: Console, row: Platform) -> None:
    _title(console, f"{row.name}: {row.title}")
    low, high = row.exponents
    facts = [("executor", row.executor or "-"), ("chip", "yes" if row.chip else "no"), ("modes", ", ".join(row.modes)),
             ("bits", ", ".join(map(str, row.bits))), ("scales", f"activations 2^{low} to 2^{high}"),
             *([("packer", row.packer)] if row.packer else [])]  # fmt: skip
    _facts(console, [(*fact, "") for fact in facts])
    limits: dict[str, Any] = {"shared_memory": row.shared_memory, "external_memory": row.external_memory}
    limits |= {f"conv {key}": value for key, value in (_plain(row.conv) or {}).items()}
    limits |= {f"pool {key}": value for key, value in (_plain(row.pool) or {}).items()}
    shown = [(key.replace("_", " "), ", ".join(map(str, v)) if isinstance(v, list) else str(v))
             for key, v in limits.items() if v is not None]  # fmt: skip
    if shown:
        _table(console, "Limits (elements; memory and slabs in bytes)", ["limit", "value"], shown)
    _table(console, "Operators", ["operator", "algorithm"], list(row.ops.items()))
    if row.faults:
        _table(console, "Known faults of the executor, worked around", ["about", "what"], list(row.faults.items()))


def _show_demo(console: Console, done: Demo, report: Report) -> None:
    from rich.text import Text

    _title(console, "Handwritten digits, as the integers of a venus NPU compute them")
    unicode = console.encoding.lower().startswith("utf")
    ink = " \u2591\u2592\u2593\u2588" if unicode else " .:*#"
    for y in range(done.images.shape[1]):
        row = ("".join(2 * ink[round(float(pixel) * 4)] for pixel in image[y, 1:-1]) for image in done.images)
        console.print("  " + "  ".join(row), no_wrap=True, overflow="crop")
    said = "".join(f"{c!s:^12}  " for c in done.classes)
    console.print(Text("  " + said.rstrip(), "bold green"), no_wrap=True, overflow="crop")
    console.print()
    a = _accuracy(done.evaluation)
    for key in ("float", "integer"):
        _facts(console, [(f"{key} accuracy", f"{a[key]:.2f} % of {a['samples']} held-out digits", "bold")])
    _facts(console, _report_rows(replace(report, accuracy=None)))
    console.print()
    _notes(console, report.notes)
    _line(console, "written", f"{done.output} ({_size(done.output)}) in {done.seconds:.1f} s")
    _line(console, "look inside", f"lingeronnx simulate {done.output} --input {_near(done.data)} --limit 1 --taps all")
    _line(console, "your turn", "lingeronnx quantize your_model.onnx --calib your_data.npz")


def _near(path: Path) -> str:
    """Return `path` relative to the current folder where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _number(value: float, unit: str) -> str:
    return _decibel(value) if unit == "dB" else f"{value:.2f} {unit}" if unit else f"{value:.6g}"


def _decibel(value: float) -> str:
    return f"{value:.2f} dB" if math.isfinite(value) else "infinite (equal)" if value > 0 else "-infinite"


def _scale(scale: float | None) -> str:
    if scale is None:
        return ""
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:.6g}"


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _size(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
