"""The command `export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .._shared import PATH_TYPE, check_output_path, format_examples, json_option, print_json
from ..show import console_for

__all__ = ["export"]

Shape = tuple[str | None, tuple[int, ...], str]


@click.command(
    epilog=format_examples(
        "lingeronnx export net.py:model -o model.onnx --input-shape image=1,3,224,224",
        (
            "lingeronnx export net.py:Net -o n.onnx --checkpoint best.pt --input-shape x=1,16,40 "
            "--dynamic-axes x=0:N,1:T"
        ),
        (
            "lingeronnx export net.py:tagger -o tagger.onnx --input-shape ids=1,32:int64 --opset 13 "
            "--output-name logits"
        ),
    )
)
@click.argument("model", metavar="FILE.py:NAME")
@click.option(
    "-o", "--output", type=PATH_TYPE, required=True, metavar="OUT", help="The ONNX file to write."
)
@click.option(
    "--input-shape",
    "shapes",
    multiple=True,
    metavar="NAME=1,3,224,224[:DTYPE]",
    help="An input: a parameter of forward; other names are taken in order. Repeatable.",
)
@click.option(
    "--dynamic-axes",
    "axes",
    multiple=True,
    metavar="NAME=0:N,2:T|NAME=0,2|none",
    help="Axes whose size may change. Repeatable.  [default: axis 0 of all inputs]",
)
@click.option(
    "--output-name",
    "output_names",
    multiple=True,
    metavar="NAME",
    help="An output, in order. Repeatable.",
)
@click.option("--opset", type=int, metavar="N", help="ONNX operator set.  [default: 18]")
@click.option(
    "--exporter",
    type=click.Choice(["dynamo", "torchscript"]),
    help="Which of torch's exporters.  [default: dynamo; below opset 18 torchscript]",
)
@click.option(
    "--checkpoint",
    type=PATH_TYPE,
    metavar="FILE",
    help="Load these weights first (tensors only, no pickles).",
)
@click.option(
    "--scopes/--no-scopes", default=True, help="Node names tell the module path.  [default: scopes]"
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    metavar="X",
    help="Largest difference from torch, as a share of an output's range.  [default: 1e-4]",
)
@click.option(
    "--debug-dump",
    type=PATH_TYPE,
    metavar="DIR",
    help="Write every intermediate graph into this folder.",
)
@json_option
def export(
    model: str,
    output: Path,
    shapes: Sequence[str],
    axes: Sequence[str],
    output_names: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Export a PyTorch model to a clean float ONNX file, compared with torch in onnxruntime.

    FILE.py:NAME (or module:NAME) is a torch.nn.Module, or a class or function without arguments
    that returns one, or returns it together with the arguments of its forward; then no
    --input-shape is needed.
    """
    check_output_path(output, [model.rpartition(":")[0], options["checkpoint"]])
    settings = {key: value for key, value in options.items() if value is not None}
    if axes:
        settings["dynamic_axes"] = _parse_dynamic_axes(axes)
    if output_names:
        settings["output_names"] = output_names
    if shapes:
        settings["input_shapes"] = [_parse_shape(text) for text in shapes]
    from ... import api

    done = api.export(model, None, output, **settings)
    console = console_for(as_json)
    kind = f"opset {done.opset}, exporter {done.exporter}"
    console.print(
        f"{output}: {done.nodes} nodes, {done.parameters} parameters, {kind}",
        soft_wrap=True,
        markup=False,
    )
    for what, tensors in (("input", done.inputs), ("output", done.outputs)):
        for name, sizes in tensors.items():
            console.print(
                f"  {what} {name} [{', '.join(map(str, sizes))}]", soft_wrap=True, markup=False
            )
    runs = "; ".join(
        ", ".join(f"{symbol} {size}" for symbol, size in run.items()) for run in done.sizes if run
    )
    console.print(
        f"same as torch in onnxruntime: differs by at most {done.difference:.1e} of an output's "
        "range"
        f"{f' ({runs})' if runs else ''}",
        soft_wrap=True,
        markup=False,
    )
    for note in done.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    if as_json:
        fields = [
            "exporter",
            "opset",
            "inputs",
            "outputs",
            "nodes",
            "parameters",
            "difference",
            "sizes",
            "notes",
        ]
        print_json(
            {"model": model, "output": output, **{key: getattr(done, key) for key in fields}}
        )


def _parse_shape(text: str) -> Shape:
    """Parse ``NAME=1,3,224,224:DTYPE``, where name and dtype may be missing."""
    name, equals, rest = text.rpartition("=")
    sizes, _, dtype = rest.partition(":")
    try:
        numbers = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError:
        numbers = (0,)
    if any(size < 1 for size in numbers) or (equals and not name):
        raise click.BadParameter(
            f"'{text}' is not NAME=1,3,224,224 or NAME=1,16:int64", param_hint="--input-shape"
        )
    return name or None, numbers, dtype or "float32"


def _parse_dynamic_axes(texts: Sequence[str]) -> dict[str, list[int] | dict[int, str]]:
    """Parse ``NAME=0,2`` to a list, ``NAME=0:N,2:T`` to a dict; ``none`` alone to nothing."""
    if tuple(texts) == ("none",):
        return {}
    found: dict[str, list[int] | dict[int, str]] = {}
    for text in texts:
        name, _, axes = text.rpartition("=")
        pairs = [part.partition(":") for part in axes.split(",")]
        try:
            named = {int(axis): symbol for axis, colon, symbol in pairs if colon}
            bare = [int(axis) for axis, colon, _ in pairs if not colon]
        except ValueError:
            name = ""
            named, bare = {}, []
        if not name or name in found or (named and bare):
            hint = "NAME=0,2 or NAME=0:N,2:T, each name once, or none"
            raise click.BadParameter(f"'{text}' is not {hint}", param_hint="--dynamic-axes")
        found[name] = named or bare
    return found
