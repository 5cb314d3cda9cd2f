"""From a torch module to a clean float ONNX file that is proven to compute the same.

    flatten the call -> trace (one of torch's exporters) -> clean -> compare with torch in
    onnxruntime -> write

The comparison runs on the given arguments, and on other sizes of every dynamic axis. The module is
as it was afterwards: training flags of all submodules, parameters and buffers. Knows graphs and
torch; the exporters' ways are in `exporters`, what clean means in `cleanup`, the comparison in
`equivalence`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from ...errors import ConfigError, ModelError
from ...files import created_folder, write_text
from ...graph import ir, onnx_file
from ..checkpoint.parameters import is_parameter, load_module_checkpoint
from .cleanup import clean_graph, sort_initializers
from .equivalence import TorchRun, compare_with_torch, run_by_name, run_on_dynamic_axes
from .exporters import select_exporter, suppress_output, trace_model
from .model_source import load_model
from .projection import traceable_lstms
from .signature import Axes, FlattenedModel, InputShape, ModuleCall, make_inputs, resize_inputs

__all__ = ["Exported", "InputShape", "TOLERANCE", "export"]

#: The largest difference from torch, in parts of an output's largest magnitude.
TOLERANCE = 1e-4

_FLOATS = (torch.float32,)


@dataclass(frozen=True)
class Exported:
    """What `export` wrote.

    inputs, outputs : name -> sizes, a dynamic one by its name. nodes : their number. difference :
    the largest difference from torch in parts of the output's largest magnitude, over all `sizes`
    that were compared: for each run the size of every dynamic axis. scopes : {node: the path of the
    module that it was traced in}.
    """

    path: Path
    exporter: str
    opset: int
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]
    nodes: int
    parameters: int
    difference: float
    sizes: list[dict[str, int]]
    notes: list[str] = field(default_factory=list)
    scopes: dict[str, str] = field(default_factory=dict)


def export(
    model: nn.Module | str,
    args: Any = None,
    path: str | os.PathLike[str] = "model.onnx",
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_shapes: Sequence[InputShape] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    opset: int | None = None,
    exporter: str | None = None,
    scopes: bool = True,
    checkpoint: Any = None,
    tolerance: float = TOLERANCE,
    debug_dump: str | os.PathLike[str] | None = None,
) -> Exported:
    """Export `model` to the ONNX file `path` and return what was written.

    model : a module in float32, or ``file.py:name`` of one. args : a tensor, a tuple of positional
    arguments or a dict
        of keyword arguments of its forward, nested as it likes; kwargs : further keyword arguments;
        or input_shapes instead of both, for made-up inputs.
    input_names, output_names : in the order of the tensors; default the parameters of forward, keys
    and positions. dynamic_axes : ``{"x": [0, 2]}``, ``{"x": {0: "N"}}`` or both mixed; default axis
    0 of all inputs; {} for none. exporter : dynamo or torchscript; default dynamo, torchscript for
    an opset below 18. opset : default 18. scopes : node names tell the module path. checkpoint : a
    file or a state_dict to load first, by
        `checkpoint.load_module_checkpoint`, into the module, which keeps it.
    tolerance : of the comparison with torch. debug_dump : a folder for every intermediate graph.
    Raises ModelError for a model that cannot be exported or computes something else in onnxruntime,
    ConfigError.
    """
    exporter, opset = select_exporter(exporter, opset)
    target = _check_output_path(path)
    module, example = _load_module(model, checkpoint)
    if input_shapes:
        args, kwargs, input_names = _make_example_inputs(
            module, args, kwargs, input_shapes, input_names
        )
    elif args is None and not kwargs:
        args = example
    if args is None and not kwargs:
        raise ConfigError("no inputs given; name their sizes: --input-shape NAME=1,3,224,224")
    call = ModuleCall(module, () if args is None else args, kwargs or {}, input_names)
    _check_inputs(dict(zip(call.names, call.tensors, strict=True)))
    dump = _GraphDump(debug_dump)
    with evaluation_mode(module), traceable_lstms(module), torch.no_grad():
        proven = _export_verified(
            module,
            call,
            output_names,
            dynamic_axes,
            opset=opset,
            exporter=exporter,
            scopes=scopes,
            tolerance=tolerance,
            dump=dump,
        )
    _check_file(proven.graph)
    dump.graph("final", proven.graph)
    ir.save(proven.graph, target)
    return proven.to_exported(target, exporter, opset)


class _VerifiedExport(NamedTuple):
    """A clean graph, what the user should know, the modules of its nodes, and the runs that it agrees with torch on."""

    graph: ir.Model
    notes: list[str]
    scopes: dict[str, str]
    runs: list[TorchRun]
    difference: float

    def to_exported(self, path: Path, exporter: str, opset: int) -> Exported:
        """Return what is told of the file `path` that holds the graph."""
        return Exported(
            path=path,
            exporter=exporter,
            opset=opset,
            inputs=_get_dims(self.graph.graph.inputs),
            outputs=_get_dims(self.graph.graph.outputs),
            nodes=len(self.graph.graph),
            parameters=sum(
                array.size
                for name, array in _get_constant_arrays(self.graph).items()
                if is_parameter(name)
            ),
            difference=self.difference,
            sizes=[run.sizes for run in self.runs],
            notes=self.notes,
            scopes=self.scopes,
        )


def _export_verified(
    module: nn.Module,
    call: ModuleCall,
    output_names: Sequence[str] | None,
    dynamic_axes: Mapping[str, Any] | None,
    *,
    opset: int,
    exporter: str,
    scopes: bool,
    tolerance: float,
    dump: _GraphDump,
) -> _VerifiedExport:
    """Trace `module` as it is called, clean the graph, and compare it with torch."""
    inputs = dict(zip(call.names, call.tensors, strict=True))
    notes: list[str] = []
    flat = FlattenedModel(module, call)
    results = run_by_name(flat, call.tensors)
    names = flat.choose_output_names(list(results), output_names)
    outputs = dict(zip(names, results.values(), strict=True))
    axes, labels, runs = run_on_dynamic_axes(flat, inputs, outputs, dynamic_axes, notes)
    at_least_two = {
        symbol: max(size, 2) for symbol, size in runs[0].sizes.items()
    }  # 1 is taken for fixed
    traced = dict(zip(inputs, resize_inputs(inputs, axes, at_least_two), strict=True))
    graph = trace_model(
        exporter,
        flat,
        traced,
        names,
        axes=axes,
        opset=opset,
        on_warning=notes.append,
        dump_text=dump.text,
    )
    dump.graph("exported", graph)
    with suppress_output():
        paths = clean_graph(
            graph, _map_shared_parameters(module), [run.feed for run in runs], scopes, dump.graph
        )
    _declare_io(graph, inputs, axes, _get_output_dims(names, runs, labels), notes)
    return _VerifiedExport(
        graph, notes, paths, runs, compare_with_torch(graph, names, runs, tolerance)
    )


# ---- before ------------------------------------------------------------------------------------------------------


def _load_module(model: nn.Module | str, checkpoint: Any) -> tuple[nn.Module, Any]:
    """Return the module with its checkpoint, and the arguments that came with its name.

    ConfigError, ModelError.
    """
    module, example = load_model(model) if isinstance(model, str) else (model, None)
    if not isinstance(module, nn.Module) or isinstance(module, torch.jit.ScriptModule):
        raise ConfigError(
            f"cannot export a {type(module).__name__}; give a torch.nn.Module in Python"
        )
    if checkpoint is not None:
        load_module_checkpoint(module, checkpoint)
    _check_floats(module)
    return module, example


def _check_output_path(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"cannot write {target}: it is a folder; give a file name")
    if not target.parent.is_dir():
        raise ConfigError(
            f"cannot write {target}: there is no folder {target.parent}; create it or choose "
            "another name"
        )
    return target


def _make_example_inputs(
    module: nn.Module,
    args: Any,
    kwargs: Any,
    shapes: Sequence[InputShape],
    names: Sequence[str] | None,
) -> tuple[Any, dict[str, Any], Sequence[str] | None]:
    if args is not None or kwargs:
        raise ConfigError("give arguments or input shapes, not both")
    made, named, found = make_inputs(module, shapes)
    return made, named, names if names is not None else found


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put `model` into evaluation mode; afterwards every submodule has the mode it had.

    Meanwhile attention layers take their documented path: their fast path has operators without an
    ONNX form.
    """
    before = [(module, module.training) for module in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, training in before:
            module.training = training


def _check_floats(model: nn.Module) -> None:
    """Raise ModelError for parameters and buffers in another float type than float32."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype not in _FLOATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(
                f"'{name}' of the model is {kind}; the export is in float32: export model.float()"
            )


def _check_inputs(inputs: Mapping[str, Tensor]) -> None:
    for name, tensor in inputs.items():
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype not in _FLOATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(
                f"input '{name}' is {kind}; the export is in float32: give {name}.float()"
            )


def _map_shared_parameters(model: nn.Module) -> dict[str, str]:
    """Return the names of the state_dict, each with the first name of the same tensor."""
    first: dict[int, str] = {}
    found = {}
    named = dict(
        [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
    )
    for name in model.state_dict(keep_vars=True):
        if name in named:
            found[name] = first.setdefault(id(named[name]), name)
    return found


# ---- the graph ---------------------------------------------------------------------------------------------------


def _get_output_dims(
    names: Sequence[str], runs: Sequence[TorchRun], given: Mapping[str, Mapping[int, str]]
) -> dict[str, list[int | str]]:
    """Return the sizes of the outputs.

    Numbers where all runs agree, else the name of the size that went along.
    """
    found: dict[str, list[int | str]] = {}
    for index, name in enumerate(names):
        dims: list[int | str] = []
        for axis, size in enumerate(runs[0].results[index].shape):
            sizes = [run.results[index].shape[axis] for run in runs]
            same = (
                symbol for symbol in runs[0].sizes if [run.sizes[symbol] for run in runs] == sizes
            )
            label = given.get(name, {}).get(axis)
            fixed = len(set(sizes)) == 1
            dims.append(
                label or (size if fixed else next(same, f"{name.replace('.', '_')}_{axis}"))
            )
        found[name] = dims
    return found


def _declare_io(
    graph: ir.Model,
    inputs: Mapping[str, Tensor],
    axes: Axes,
    outputs: Mapping[str, list[int | str]],
    notes: list[str],
) -> None:
    """Write the sizes of inputs and outputs, take out inputs that nobody reads, and infer the other shapes."""
    for value in list(graph.graph.inputs):
        name = str(value.name)
        if value.uses():
            free = axes.get(name, {})
            value.shape = ir.make_shape(
                [free.get(axis, size) for axis, size in enumerate(inputs[name].shape)]
            )
        else:
            graph.graph.inputs.remove(value)
    kept = {value.name for value in graph.graph.inputs}
    notes += [
        f"input '{name}' has no effect on the outputs; it is left out"
        for name in inputs
        if name not in kept
    ]
    for value in graph.graph.outputs:
        value.shape = ir.make_shape(outputs[str(value.name)])
    ir.infer_shapes(graph)
    sort_initializers(graph)  # the inference moves the large ones


def _check_file(graph: ir.Model) -> None:
    """Raise ModelError where onnx's checker, shapes included, finds something.

    Too large graphs are not checked.
    """
    proto = ir.to_proto(graph)
    if onnx_file.exceeds_size_limit(proto, ir.MAX_MODEL_BYTES):
        return
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(
            f"the exporter wrote a graph that is not valid ONNX: {line}; try the other --exporter"
        ) from error


def _get_constant_arrays(graph: ir.Model) -> dict[str, np.ndarray]:
    return {
        name: array
        for name, v in graph.graph.initializers.items()
        if (array := ir.const_value(v)) is not None
    }


def _get_dims(values: Sequence[ir.Value]) -> dict[str, list[int | str]]:
    return {
        str(v.name): [d if isinstance(d, int) else str(d.value) for d in v.shape or ()]
        for v in values
    }


class _GraphDump:
    """Numbered files of the intermediate graphs in a folder, which is made.

    Nothing where there is none.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._count = 0

    def text(self, program: str) -> None:
        """Write the traced program."""
        if self._folder is not None:
            with created_folder(self._folder):
                write_text(self._next("traced", "txt"), program)

    def graph(self, name: str, graph: ir.Model) -> None:
        """Write `graph` as it is now."""
        if self._folder is not None:
            with created_folder(self._folder):
                ir.save(graph, self._next(name, "onnx"))

    def _next(self, name: str, suffix: str) -> Path:
        assert self._folder is not None
        self._count += 1
        return self._folder / f"{self._count - 1}_{name}.{suffix}"
