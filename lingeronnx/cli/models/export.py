"""The command `export`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...common.escaping import escape_invisible
from .._shared import PATH_TYPE, check_output_path, format_examples, json_option, print_json
from ..terminal import console_for

if TYPE_CHECKING:
    from ...torch.exporter.float_export import Exported

__all__ = ["export"]

#: Attributes of `Exported` that --json prints.
_JSON_FIELDS = (
    "exporter",
    "opset",
    "inputs",
    "outputs",
    "nodes",
    "parameters",
    "difference",
    "sizes",
    "notes",
)

Shape = tuple[str | None, tuple[int, ...], str]


@click.command(
    epilog=format_examples(
        "lingeronnx export net.py:model -o model.onnx --input-shape image=1,3,224,224",
        (
            "lingeronnx export net.py:Net -o n.onnx --checkpoint best.pt --input-shape x=1,16,40 "
            "--dynamic-axes x=0:N,1:T"
        ),
        "lingeronnx export net.py:tagger -o tagger.onnx --input-shape ids=1,32:int64 "
        "--opset 13 --output-name logits",
    )
)
@click.argument("model", metavar="FILE.py:NAME")
@click.option(
    "-o", "--output", type=PATH_TYPE, required=True, metavar="OUT", help="ONNX file to write."
)
@click.option(
    "--input-shape",
    "shapes",
    multiple=True,
    metavar="NAME=1,3,224,224[:DTYPE]",
    help="Shape of an input, by the name of a parameter of forward or in order. Repeatable.",
)
@click.option(
    "--dynamic-axes",
    "axes",
    multiple=True,
    metavar="NAME=0:N,2:T|NAME=0,2|none",
    help="Axes of dynamic size. Repeatable.  [default: axis 0 of all inputs]",
)
@click.option(
    "--output-name",
    "output_names",
    multiple=True,
    metavar="NAME",
    help="Name of an output, in order. Repeatable.",
)
@click.option(
    "--opset", type=int, metavar="N", help="Version of the ONNX operator set.  [default: 18]"
)
@click.option(
    "--exporter",
    type=click.Choice(["dynamo", "torchscript"]),
    help="Exporter of torch.  [default: dynamo; below opset 18 torchscript]",
)
@click.option(
    "--checkpoint",
    type=PATH_TYPE,
    metavar="FILE",
    help="Load weights first (tensors only, no pickled objects).",
)
@click.option(
    "--scopes/--no-scopes",
    default=True,
    help="Put module paths into node names.  [default: scopes]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    metavar="X",
    help="Maximum difference from torch, as a fraction of an output's range.  [default: 1e-4]",
)
@click.option(
    "--debug-dump",
    type=PATH_TYPE,
    metavar="DIR",
    help="Write every intermediate graph to DIR.",
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
    that returns one. If it also returns the arguments of forward, --input-shape is not needed.
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

    exported = api.export(model, None, output, **settings)
    console = console_for(as_json)
    for line in _format_export(output, exported):
        console.print(escape_invisible(line), soft_wrap=True)
    if as_json:
        fields = {key: getattr(exported, key) for key in _JSON_FIELDS}
        print_json({"model": model, "output": output, **fields})


def _format_export(output: Path, exported: Exported) -> Iterator[str]:
    """Yield the lines that describe an exported model.

    They are its size, inputs and outputs, the difference from torch, and notes.
    """
    settings = f"opset {exported.opset}, exporter {exported.exporter}"
    yield f"{output}: {exported.nodes} nodes, {exported.parameters} parameters, {settings}"
    for kind, tensors in (("input", exported.inputs), ("output", exported.outputs)):
        for name, shape in tensors.items():
            yield f"  {kind} {name} [{', '.join(map(str, shape))}]"
    runs = []
    for sizes in exported.sizes:
        if sizes:
            runs.append(", ".join(f"{symbol} {size}" for symbol, size in sizes.items()))
    suffix = f" ({'; '.join(runs)})" if runs else ""
    yield (
        f"same as torch in onnxruntime: differs by at most {exported.difference:.1e} of an "
        f"output's range{suffix}"
    )
    for note in exported.notes:
        yield f"note: {note}"


def _parse_shape(text: str) -> Shape:
    """Parse ``NAME=1,3,224,224:DTYPE`` to (name, shape, dtype).

    Without a name it is None, without a dtype "float32"; no dimensions are a scalar. Raises
    click.BadParameter if a dimension is not a positive integer, or the name before ``=`` is empty.
    """
    name, equals, spec = text.rpartition("=")
    dims, _, dtype = spec.partition(":")
    try:
        shape = tuple(int(dim) for dim in dims.split(",")) if dims else ()
    except ValueError:
        shape = (0,)
    if any(dim < 1 for dim in shape) or (equals and not name):
        raise click.BadParameter(
            f"'{text}' is not NAME=1,3,224,224 or NAME=1,16:int64", param_hint="--input-shape"
        )
    return name or None, shape, dtype or "float32"


def _parse_dynamic_axes(texts: Sequence[str]) -> dict[str, list[int] | dict[int, str]]:
    """Parse ``NAME=0,2`` to {name: [0, 2]} and ``NAME=0:N`` to {name: {0: "N"}}.

    A single ``none`` is {}. Raises click.BadParameter if a name is missing or repeated, an axis is
    no integer, or only some axes of an input have symbols.
    """
    if tuple(texts) == ("none",):
        return {}
    axes_by_input: dict[str, list[int] | dict[int, str]] = {}
    for text in texts:
        name, _, axes = text.rpartition("=")
        pairs = [part.partition(":") for part in axes.split(",")]
        try:
            named = {int(axis): symbol for axis, colon, symbol in pairs if colon}
            bare = [int(axis) for axis, colon, _ in pairs if not colon]
        except ValueError:
            name = ""
            named, bare = {}, []
        if not name or name in axes_by_input or (named and bare):
            hint = "NAME=0,2 or NAME=0:N,2:T, each name once, or none"
            raise click.BadParameter(f"'{text}' is not {hint}", param_hint="--dynamic-axes")
        axes_by_input[name] = named or bare
    return axes_by_input
