"""Export of a torch module to a clean float ONNX file that is verified to compute the same.

    flatten the call -> trace (one of torch's exporters) -> clean up -> compare with torch in
    onnxruntime -> write

The comparison covers the given arguments and other sizes of each dynamic axis. Afterwards the
module is unchanged: training flags of all submodules, parameters and buffers. The exporters are in
`exporters`, the cleanup in `cleanup`, the comparison in `equivalence`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from ...common.errors import ConfigError, ModelError
from ...common.files import created_folder, write_text
from ...ir import ir, onnx_file
from ..checkpoint.parameters import is_parameter, load_module_checkpoint
from .cleanup import clean_graph, sort_initializers
from .data_dependence import DataDependenceTracker
from .equivalence import TorchRun, compare_with_torch, run_by_name, run_on_dynamic_axes
from .exporters import select_exporter, suppress_output, trace_model
from .model_source import load_model
from .projection import traceable_lstms
from .signature import Axes, FlattenedModel, InputShape, ModuleCall, make_inputs, resize_inputs

__all__ = ["Exported", "InputShape", "TOLERANCE", "export"]

#: Default limit of the difference from torch, relative to the largest magnitude of an output.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """Result of `export`.

    Attributes
    ----------
    path, exporter, opset
        File written, and exporter and opset used.
    inputs, outputs
        Name -> shape; a dynamic size is given by its name.
    nodes, parameters
        Number of nodes, and of parameter elements.
    difference
        Largest difference from torch in all runs, relative to the largest magnitude of the output.
    sizes
        Sizes of the dynamic axes, by name, for each run that was compared.
    notes
        Remarks for the user.
    scopes
        Node name -> path of the module that it was traced in.
    data_reads
        Those notes that name a line of the model's code which reads values of the inputs, such as
        ``np.asarray(x)``: what it computes of them is constant in the graph.
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
    data_reads: list[str] = field(default_factory=list)


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
    keep_stacks: bool = False,
) -> Exported:
    """Export a model to a float ONNX file.

    Parameters
    ----------
    model
        A module in float32, or ``file.py:name`` of one.
    args
        Arguments of its forward: a tensor, a tuple of positional arguments, or a dict of keyword
        arguments, nested in any way.
    path
        File to write.
    kwargs
        Further keyword arguments of forward.
    input_shapes
        Shapes of random inputs, instead of `args` and `kwargs`.
    input_names, output_names
        Names in the order of the tensors; by default derived from the parameters of forward, keys
        and positions.
    dynamic_axes
        ``{"x": [0, 2]}``, ``{"x": {0: "N"}}``, or a mixture. By default axis 0 of all inputs; {}
        for none.
    opset
        Opset of the file, by default 18.
    exporter
        "dynamo" or "torchscript"; by default dynamo, or torchscript for an opset below 18.
    scopes
        Whether node names contain the module path.
    checkpoint
        A file or state_dict to load into the module first; see
        `checkpoint.load_module_checkpoint`. The module keeps it.
    tolerance
        Limit of the difference from torch, relative to the largest magnitude of an output.
    debug_dump
        Folder for all intermediate graphs.
    keep_stacks
        Whether the file notes for each node the place in the source, as dynamo knows it. It is
        private then: it has paths of this machine.

    Raises
    ------
    ModelError
        If the model cannot be exported, or the graph computes something else in onnxruntime.
    ConfigError
        If an argument is invalid.
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
        raise ConfigError("no inputs given; pass their shapes: --input-shape NAME=1,3,224,224")
    call = ModuleCall(module, () if args is None else args, kwargs or {}, input_names)
    _check_inputs(dict(zip(call.names, call.tensors, strict=True)))
    dump = _GraphDump(debug_dump)
    with evaluation_mode(module), traceable_lstms(module), torch.no_grad():
        data_reads = _find_data_reads(module, call)
        with _mention_data_reads(data_reads):
            verified = _export_verified(
                module,
                call,
                output_names,
                dynamic_axes,
                opset=opset,
                exporter=exporter,
                scopes=scopes,
                tolerance=tolerance,
                dump=dump,
                keep_stacks=keep_stacks,
            )
    # a tracer warns of the same lines without saying what to do
    lines = {read.partition(": ")[0] for read in data_reads}
    notes = [note for note in verified.notes if note.partition(": ")[0] not in lines]
    verified.notes[:] = [*notes, *data_reads]
    _check_file(verified.graph)
    dump.graph("final", verified.graph)
    ir.save(verified.graph, target)
    exported = verified.to_exported(target, exporter, opset)
    return replace(exported, data_reads=data_reads)


def _find_data_reads(module: nn.Module, call: ModuleCall) -> list[str]:
    """Return a line for each place where the code of `module` reads values of the call's inputs."""
    flat = FlattenedModel(module, call)
    with DataDependenceTracker(call.tensors) as tracker:
        run_by_name(flat, call.tensors)
    return tracker.lines()


@contextlib.contextmanager
def _mention_data_reads(data_reads: Sequence[str]) -> Iterator[None]:
    """Context manager that adds the first of `data_reads` to the message of a ModelError."""
    try:
        yield
    except ModelError as error:
        if not data_reads:
            raise
        raise ModelError(f"{error}; {data_reads[0]}") from error


class _VerifiedExport(NamedTuple):
    """A clean graph with notes, module paths of its nodes, and the runs that agree with torch."""

    graph: ir.Model
    notes: list[str]
    scopes: dict[str, str]
    runs: list[TorchRun]
    difference: float

    def to_exported(self, path: Path, exporter: str, opset: int) -> Exported:
        """Return the record of this export to file `path`: shapes, counts, difference and notes."""
        constants = _get_constant_arrays(self.graph)
        return Exported(
            path=path,
            exporter=exporter,
            opset=opset,
            inputs=_get_dims(self.graph.graph.inputs),
            outputs=_get_dims(self.graph.graph.outputs),
            nodes=len(self.graph.graph),
            parameters=sum(array.size for name, array in constants.items() if is_parameter(name)),
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
    keep_stacks: bool,
) -> _VerifiedExport:
    """Trace `module` with the arguments of a call, clean up the graph, and compare it with torch.

    `output_names` and `dynamic_axes` may be None for defaults. `tolerance` limits the difference
    relative to the largest magnitude of an output. Raises ModelError if the module cannot be
    exported or the graph computes something else.
    """
    inputs = dict(zip(call.names, call.tensors, strict=True))
    notes: list[str] = []
    flat = FlattenedModel(module, call)
    results = run_by_name(flat, call.tensors)
    names = flat.choose_output_names(list(results), output_names)
    outputs = dict(zip(names, results.values(), strict=True))
    axes, labels, runs = run_on_dynamic_axes(flat, inputs, outputs, dynamic_axes, notes)
    # The exporters assume that an axis of size 1 is fixed.
    traced_sizes = {symbol: max(size, 2) for symbol, size in runs[0].sizes.items()}
    traced_inputs = dict(zip(inputs, resize_inputs(inputs, axes, traced_sizes), strict=True))
    graph = trace_model(
        exporter,
        flat,
        traced_inputs,
        names,
        axes=axes,
        opset=opset,
        on_warning=notes.append,
        dump_text=dump.text,
        keep_stacks=keep_stacks,
    )
    dump.graph("exported", graph)
    feeds = [run.feed for run in runs]
    with suppress_output():
        paths = clean_graph(
            graph, _map_shared_parameters(module), feeds, scopes, dump.graph, keep_stacks
        )
    _declare_io(graph, inputs, axes, _get_output_dims(names, runs, labels), notes)
    difference = compare_with_torch(graph, names, runs, tolerance)
    return _VerifiedExport(graph, notes, paths, runs, difference)


# ---- preparation --------------------------------------------------------------------------------


def _load_module(model: nn.Module | str, checkpoint: Any) -> tuple[nn.Module, Any]:
    """Load the module and its checkpoint, and return it with the example arguments of its file.

    The example is None if there is none. Raises ConfigError unless it is an nn.Module in Python,
    and ModelError if the checkpoint does not match or a tensor has a float type other than float32.
    """
    module, example = load_model(model) if isinstance(model, str) else (model, None)
    if not isinstance(module, nn.Module) or isinstance(module, torch.jit.ScriptModule):
        raise ConfigError(
            f"cannot export a {type(module).__name__}; pass a torch.nn.Module in Python"
        )
    if checkpoint is not None:
        load_module_checkpoint(module, checkpoint)
    _check_floats(module)
    return module, example


def _check_output_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a Path; ConfigError if it is a folder or its folder does not exist."""
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"cannot write {target}: it is a folder; pass a file name")
    if not target.parent.is_dir():
        raise ConfigError(f"cannot write {target}: folder {target.parent} does not exist")
    return target


def _make_example_inputs(
    module: nn.Module,
    args: Any,
    kwargs: Any,
    shapes: Sequence[InputShape],
    names: Sequence[str] | None,
) -> tuple[Any, dict[str, Any], Sequence[str] | None]:
    """Return random (args, kwargs, input names) for the given shapes.

    Names are `names`, or else those in `shapes` that are not keyword arguments, or None. Raises
    ConfigError if arguments were passed too.
    """
    if args is not None or kwargs:
        raise ConfigError("pass arguments or input shapes, not both")
    args, kwargs, shape_names = make_inputs(module, shapes)
    return args, kwargs, names if names is not None else shape_names


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put all modules of `model` into evaluation mode within a context.

    The fast path of attention layers is disabled, since its operators have no ONNX equivalent.
    """
    training_flags = [(module, module.training) for module in model.modules()]
    fastpath_enabled = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath_enabled)
        for module, training in training_flags:
            module.training = training


def _check_floats(model: nn.Module) -> None:
    """Raise ModelError if a parameter or buffer has a float type other than float32."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if _is_unsupported_float(tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(
                f"'{name}' of the model is {dtype}, but only float32 can be exported: export "
                "model.float()"
            )


def _check_inputs(inputs: Mapping[str, Tensor]) -> None:
    """Raise ModelError if an input (name -> tensor) has a float type other than float32."""
    for name, tensor in inputs.items():
        if _is_unsupported_float(tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(
                f"input '{name}' is {dtype}, but only float32 can be exported: pass {name}.float()"
            )


def _is_unsupported_float(tensor: Tensor) -> bool:
    """Whether a tensor has a float or complex type other than float32."""
    if not tensor.is_floating_point() and not tensor.is_complex():
        return False
    return tensor.dtype != torch.float32


def _map_shared_parameters(model: nn.Module) -> dict[str, str]:
    """Return {name in the state_dict: first name of the same tensor object}.

    For a tensor that is not shared both names are equal.
    """
    first_names: dict[int, str] = {}
    shared: dict[str, str] = {}
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    for name in model.state_dict(keep_vars=True):
        if name in tensors:
            shared[name] = first_names.setdefault(id(tensors[name]), name)
    return shared


# ---- the graph ----------------------------------------------------------------------------------


def _get_output_dims(
    names: Sequence[str], runs: Sequence[TorchRun], labels: Mapping[str, Mapping[int, str]]
) -> dict[str, list[int | str]]:
    """Return output name -> dimensions of the outputs `names`.

    A dimension is its name in `labels` if there is one; else a number if it is equal in all runs,
    else the name of the dynamic size that it equals in all runs, else a new name.

    Parameters
    ----------
    labels
        Output name -> axis -> requested name of the dimension.
    """
    dims_by_name: dict[str, list[int | str]] = {}
    for index, name in enumerate(names):
        dims: list[int | str] = []
        for axis, size in enumerate(runs[0].results[index].shape):
            sizes = [run.results[index].shape[axis] for run in runs]
            label = labels.get(name, {}).get(axis)
            if label:
                dims.append(label)
            elif len(set(sizes)) == 1:
                dims.append(size)
            else:
                default = f"{name.replace('.', '_')}_{axis}"
                dims.append(_find_equal_size(sizes, runs) or default)
        dims_by_name[name] = dims
    return dims_by_name


def _find_equal_size(sizes: Sequence[int], runs: Sequence[TorchRun]) -> str | None:
    """Return the name of the first dynamic size that equals `sizes` in all runs, or None.

    `sizes` has one number for each run.
    """
    for symbol in runs[0].sizes:
        if [run.sizes[symbol] for run in runs] == sizes:
            return symbol
    return None


def _declare_io(
    graph: ir.Model,
    inputs: Mapping[str, Tensor],
    axes: Axes,
    outputs: Mapping[str, list[int | str]],
    notes: list[str],
) -> None:
    """Set the shapes of inputs and outputs, remove unused inputs, and infer all other shapes.

    Changes `graph` in place, and adds a note to `notes` for each removed input. `axes` maps an
    input to the symbols of its dynamic axes; `outputs` maps an output to its dimensions.
    """
    for value in list(graph.graph.inputs):
        name = str(value.name)
        if value.uses():
            symbols = axes.get(name, {})
            value.shape = ir.Shape(
                [symbols.get(axis, size) for axis, size in enumerate(inputs[name].shape)]
            )
        else:
            graph.graph.inputs.remove(value)
    used_inputs = {value.name for value in graph.graph.inputs}
    for name in inputs:
        if name not in used_inputs:
            notes.append(f"input '{name}' has no effect on the outputs and is removed")
    for value in graph.graph.outputs:
        value.shape = ir.Shape(outputs[str(value.name)])
    ir.ShapeInferencePass()(graph)
    sort_initializers(graph)  # shape inference reorders large ones


def _check_file(graph: ir.Model) -> None:
    """Raise ModelError if onnx's checker, with shape inference, finds an error in the graph.

    Graphs above the protobuf size limit are not checked.
    """
    proto = ir.to_proto(graph)
    if onnx_file.exceeds_size_limit(proto, onnx_file.MAX_MODEL_BYTES):
        return
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(
            f"the exporter wrote an invalid ONNX graph: {line}; try the other --exporter"
        ) from error


def _get_constant_arrays(graph: ir.Model) -> dict[str, np.ndarray]:
    """Return {initializer: array} of a graph; initializers without a value are left out."""
    arrays = {}
    for name, value in graph.graph.initializers.items():
        array = ir.const_value(value)
        if array is not None:
            arrays[name] = array
    return arrays


def _get_dims(values: Sequence[ir.Value]) -> dict[str, list[int | str]]:
    """Return {tensor: shape}, with the name of the symbol for a dynamic size; [] for no shape."""
    dims_by_name: dict[str, list[int | str]] = {}
    for value in values:
        dims_by_name[str(value.name)] = [
            dim if isinstance(dim, int) else str(dim.value) for dim in value.shape or ()
        ]
    return dims_by_name


class _GraphDump:
    """Writes intermediate graphs to numbered files in a folder, which is created if needed.

    Without a folder nothing is written.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        """Store the folder for the dumps; None writes none."""
        self._folder = None if folder is None else Path(folder)
        self._count = 0

    def text(self, program: str) -> None:
        """Write the traced program as the next numbered text file, if there is a folder."""
        if self._folder is not None:
            with created_folder(self._folder):
                write_text(self._next_path("traced", "txt"), program)

    def graph(self, name: str, graph: ir.Model) -> None:
        """Write the current state of `graph` as the next numbered ONNX file, if there is a folder.

        The file name contains `name`, that of a step.
        """
        if self._folder is not None:
            with created_folder(self._folder):
                ir.save(graph, self._next_path(name, "onnx"))

    def _next_path(self, name: str, suffix: str) -> Path:
        """Return "FOLDER/NUMBER_NAME.SUFFIX" for the next file, and increase the number."""
        assert self._folder is not None
        self._count += 1
        return self._folder / f"{self._count - 1}_{name}.{suffix}"
