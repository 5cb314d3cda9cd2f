"""Common interface of torch's two ONNX exporters.

They return an `ir.Model` whose nodes have the path of their module in the metadata. ``dynamo`` uses
`torch.export` and writes opset 18 and newer; ``torchscript`` traces one run and writes opset 9 to
20. Neither may fold or fuse anything: that is done by `cleanup` for both. Failures are raised as a
ModelError of one line; for an operator without an ONNX equivalent it names the module.
"""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ...common.errors import ConfigError, ModelError, get_exception_text
from ...common.files import temporary_folder
from ...ir import ir
from ..dynamo import import_dynamo
from .cleanup import SCOPE_KEY, STACK_KEY
from .signature import Axes

__all__ = ["DEFAULT_OPSET", "OPSETS", "select_exporter", "suppress_output", "trace_model"]

#: Exporter -> opsets that it can write.
OPSETS = {"dynamo": range(18, 24), "torchscript": range(9, 21)}
DEFAULT_OPSET = 18

#: Folder of torch; warnings from its own layers are ignored.
_TORCH = str(Path(torch.__file__).parent)
#: Attribute of `FlattenedModel` with the user's model.
_ROOT = "model"


def select_exporter(exporter: str | None, opset: int | None) -> tuple[str, int]:
    """Return exporter and opset, with defaults for None.

    The default exporter is dynamo, or torchscript for opsets that only torchscript supports. Raises
    ConfigError if the exporter does not exist or does not support the opset.
    """
    opset = DEFAULT_OPSET if opset is None else opset
    if exporter is None:
        exporter = next((name for name, opsets in OPSETS.items() if opset in opsets), "dynamo")
    if exporter not in OPSETS:
        raise ConfigError(f"unknown exporter '{exporter}'; use {' or '.join(OPSETS)}")
    if opset not in OPSETS[exporter]:
        supported = ", ".join(
            f"{name} {opsets[0]} to {opsets[-1]}" for name, opsets in OPSETS.items()
        )
        raise ConfigError(
            f"exporter {exporter} does not support opset {opset}; supported: {supported}"
        )
    return exporter, opset


def trace_model(
    exporter: str,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    *,
    axes: Axes,
    opset: int,
    on_warning: Callable[[str], None],
    dump_text: Callable[[str], None],
    keep_stacks: bool = False,
) -> ir.Model:
    """Export a `FlattenedModel` with one of torch's exporters.

    Parameters
    ----------
    inputs, outputs
        Example inputs by name, and names of the outputs.
    axes
        Dynamic axes of the inputs.
    on_warning
        Called with each warning of the exporter that concerns the user's model.
    dump_text
        Called with the traced program as text.
    keep_stacks
        Whether nodes have `STACK_KEY` in their metadata also with the torchscript exporter.

    Returns
    -------
    ir.Model
        The exported graph; its nodes have `SCOPE_KEY` in their metadata.

    Raises
    ------
    ModelError
        If the exporter fails or writes another opset.
    """
    export = {"dynamo": _export_dynamo, "torchscript": _export_torchscript}[exporter]
    with suppress_output() as get_warnings:
        import_dynamo()
        graph = export(model, inputs, outputs, axes, opset, dump_text, keep_stacks)
    for warning in get_warnings():
        on_warning(warning)
    actual_opset = graph.opset_imports.get("")
    if actual_opset != opset:
        raise ModelError(
            f"torch's {exporter} exporter wrote opset {actual_opset} instead of {opset}; use "
            f"--opset {actual_opset} or the other exporter"
        )
    return graph


@contextlib.contextmanager
def suppress_output() -> Iterator[Callable[[], list[str]]]:
    """Suppress stdout, stderr, logging and warnings of the exporters within a context.

    Yields a function that returns the tracer warnings about the user's model so far, one line each.
    """
    disabled_level = logging.root.manager.disable
    with (
        warnings.catch_warnings(record=True) as records,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("always")
        logging.disable(logging.CRITICAL)
        try:
            yield lambda: _format_tracer_warnings(records)
        finally:
            logging.disable(disabled_level)


def _format_tracer_warnings(records: Sequence[warnings.WarningMessage]) -> list[str]:
    """Return distinct tracer warnings about code outside of torch, with file and line.

    Each is the first sentence of the message.
    """
    lines = []
    for record in records:
        is_tracer_warning = issubclass(record.category, torch.jit.TracerWarning)
        if is_tracer_warning and not record.filename.startswith(_TORCH):
            message = str(record.message).partition(". ")[0]
            lines.append(f"{Path(record.filename).name} line {record.lineno}: {message}")
    return list(dict.fromkeys(lines))


# ---- dynamo -------------------------------------------------------------------------------------


def _export_dynamo(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    axes: Axes,
    opset: int,
    dump_text: Callable[[str], None],
    _keep_stacks: bool,
) -> ir.Model:
    """Export a flattened model with `torch.export` and torch's dynamo exporter.

    `inputs` are example tensors by name, `axes` their dynamic axes, `outputs` names. `dump_text`
    gets the traced program as text. Each node's metadata names the module it comes from and has
    its stack. Raises ModelError if torch cannot trace or write the model.
    """
    dynamic = torch.export.Dim.DYNAMIC
    shapes = tuple(
        dict.fromkeys(axes[name], dynamic) if axes.get(name) else None for name in inputs
    )
    try:
        program = torch.export.export(
            model, tuple(inputs.values()), dynamic_shapes=(shapes,), strict=False
        )
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of the user's code, too
        raise _make_trace_error(error, list(inputs)) from error
    dump_text(str(program))
    try:
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            optimize=False,
            verbose=False,
            input_names=list(inputs),
            output_names=list(outputs),
        )
        proto = exported.model_proto
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _find_unsupported_operator(error, opset) or ModelError(
            "torch's dynamo exporter cannot write the model: "
            f"{_get_first_line(_get_root_cause(error))}; try --exporter torchscript"
        ) from error
    graph = ir.convert_user_model(proto, "the result of torch's dynamo exporter")
    for node in graph.graph.all_nodes():
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        path = scopes[-2] if len(scopes) > 1 else ""  # the last one is the operator
        node.metadata_props[SCOPE_KEY] = _strip_root(path)
    return _strip_root_from_initializers(graph)


def _make_trace_error(error: BaseException, inputs: Sequence[str]) -> ModelError:
    """Return the ModelError for a model that torch.export cannot trace.

    It names the input axis that the model fixes, or else the line of the call that fails.
    """
    text = get_exception_text(error)
    fixed = re.search(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]", text)
    if fixed and "Constraint" in text:
        return ModelError(
            f"torch.export: the model fixes axis {fixed.group(2)} of input "
            f"'{inputs[int(fixed.group(1))]}', which should be dynamic; remove it from "
            "--dynamic-axes (none: all sizes fixed), or try --exporter torchscript"
        )
    call = re.search(r'following call raised this error:\s+File "([^"]+)", line (\d+)', text)
    location = f" ({Path(call.group(1)).name} line {call.group(2)})" if call else ""
    return ModelError(
        f"torch.export cannot trace the model{location}: {_get_first_line(error)}; try --exporter "
        "torchscript"
    )


def _find_unsupported_operator(error: BaseException, opset: int) -> ModelError | None:
    """Return the ModelError for an operator without an ONNX equivalent, naming its module.

    None if this is not the cause of `error`.
    """
    causes = list(_iterate_causes(error))
    if not any(type(cause).__name__ == "DispatchError" for cause in causes):
        return None
    nodes: list[torch.fx.Node] = []
    for cause in causes:
        nodes += _iterate_frame_locals(cause.__traceback__, torch.fx.Node)
    if not nodes:
        return None
    stack = list(nodes[-1].meta.get("nn_module_stack", {}).values())
    path = _strip_root(stack[-1][0]) if stack else ""
    return _make_unsupported_error(str(nodes[-1].target), path, "dynamo", opset)


def _make_unsupported_error(operator: str, path: str, exporter: str, opset: int) -> ModelError:
    """Return the ModelError for an operator without an ONNX equivalent in the module at `path`.

    It suggests the other exporter. An empty `path` is the model's own forward.
    """
    location = f"module '{path}'" if path else "the model's own forward"
    other_exporter = next(name for name in OPSETS if name != exporter)
    return ModelError(
        f"operator {operator} in {location} has no ONNX equivalent (exporter {exporter}, opset "
        f"{opset}); write it with other operators, or try --exporter {other_exporter}"
    )


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield `error`, then its cause or context, then that of the latter, and so on.

    Yields nothing for None.
    """
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _get_root_cause(error: BaseException) -> BaseException:
    """Return the error at the end of the chain of causes and contexts; `error` if it has none."""
    return list(_iterate_causes(error))[-1]


def _iterate_frame_locals(traceback: TracebackType | None, kind: type) -> Iterator[Any]:
    """Yield the local variables of type `kind` in all frames of a traceback, outermost first."""
    while traceback is not None:
        for value in traceback.tb_frame.f_locals.values():
            if isinstance(value, kind):
                yield value
        traceback = traceback.tb_next


# ---- torchscript --------------------------------------------------------------------------------


def _export_torchscript(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    axes: Axes,
    opset: int,
    dump_text: Callable[[str], None],
    keep_stacks: bool,
) -> ir.Model:
    """Export a flattened model with the TorchScript tracer; nothing is folded.

    `inputs` are example tensors by name, `axes` their dynamic axes, `outputs` names. `dump_text`
    gets a line per node. Each node's metadata names the module it comes from and, with
    `keep_stacks`, has its stack, outermost call first. Raises ModelError if torch cannot write the
    model.
    """
    captured: list[str] = []
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        try:
            with _capture_output(captured):
                torch.onnx.export(
                    model,
                    tuple(inputs.values()),
                    str(path),
                    dynamo=False,
                    opset_version=opset,
                    verbose=keep_stacks,  # writes doc strings
                    input_names=list(inputs),
                    output_names=list(outputs),
                    dynamic_axes={name: dict(symbols) for name, symbols in axes.items()},
                    # other modes fold batch norms into convolutions
                    training=torch.onnx.TrainingMode.PRESERVE,
                    do_constant_folding=False,
                )
        except torch.onnx.errors.UnsupportedOperatorError as error:
            raise _make_torchscript_error(model, str(error), "".join(captured), opset) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of the user's code, too
            raise ModelError(
                f"torch's torchscript exporter cannot write the model: {_get_first_line(error)}; "
                "try --exporter dynamo"
            ) from error
        graph = ir.load(path, "the result of torch's torchscript exporter")
    dump_text("\n".join(f"{node.op_type} {node.name}" for node in graph.graph) + "\n")
    paths = [name for name, _ in model.named_modules()]
    for node in graph.graph.all_nodes():
        name = str(node.name)
        if keep_stacks and node.doc_string:
            node.metadata_props[STACK_KEY] = "\n".join(reversed(node.doc_string.splitlines()))
        if name.startswith("/"):
            node.metadata_props[SCOPE_KEY] = _strip_root(_module_path(name.split("/")[1:-1], paths))
    return _strip_root_from_initializers(graph)


def _make_torchscript_error(model: nn.Module, message: str, output: str, opset: int) -> ModelError:
    """Return the ModelError for an operator that the TorchScript exporter does not support.

    Its module is in the traced graph, which the exporter prints on failure: ``aten::x(...), scope:
    T::name/``.

    Parameters
    ----------
    message, output
        The error message, and the output of the exporter.
    """
    operator_match = re.search(r"'([\w:]+)'", message)
    operator = operator_match.group(1) if operator_match else message
    scope_match = re.search(rf"= {re.escape(operator)}\(.*?\), scope: (\S+)", output)
    steps = []
    if scope_match:
        steps = [scope.partition("::")[2] for scope in scope_match.group(1).split("/")]
    path = _module_path(
        [step for step in steps if step], [name for name, _ in model.named_modules()]
    )
    return _make_unsupported_error(operator, _strip_root(path), "torchscript", opset)


@contextlib.contextmanager
def _capture_output(captured: list[str]) -> Iterator[None]:
    """Context manager that appends the process's stdout and stderr in the block to `captured`.

    Both are one text, which includes the output of C++ code.
    """
    with tempfile.TemporaryFile() as file:
        original_descriptors = [os.dup(descriptor) for descriptor in (1, 2)]
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            yield
        finally:
            for descriptor, original in zip((1, 2), original_descriptors, strict=True):
                os.dup2(original, descriptor)
                os.close(original)
            file.seek(0)
            captured.append(file.read().decode("utf-8", "replace"))


def _module_path(steps: Sequence[str], paths: Sequence[str]) -> str:
    """Return the module path of a scope of the TorchScript exporter.

    ``layer1/layer1.0/conv`` is ``layer1.0.conv``, and ``encoder/blocks.3`` is ``encoder.blocks.3``:
    each step is the nearest module of this name below the previous one. The second call of a module
    ``fc`` has the step ``fc_1``.

    Parameters
    ----------
    steps
        The names in the scope.
    paths
        Paths of all modules.
    """
    path = ""
    for step in steps:
        descendants = [item for item in paths if not path or item.startswith(f"{path}.")]
        first_call_step = re.sub(r"_\d+$", "", step)
        matches = [item for item in descendants if _get_scope_name(item) == step]
        if not matches:
            matches = [item for item in descendants if _get_scope_name(item) == first_call_step]
        default = f"{path}.{step}".lstrip(".")
        path = min(matches, key=lambda item: item.count("."), default=default)
    return path


def _get_scope_name(path: str) -> str:
    """Return the name by which the TorchScript exporter's scopes call the module at `path`.

    It is the last attribute name that is not a number, with the numbers after it: "blocks.3" for
    "encoder.blocks.3".
    """
    names = path.split(".")
    start = len(names) - 1
    while start > 0 and names[start].isnumeric():
        start -= 1
    return ".".join(names[start:])


# ---- both exporters -----------------------------------------------------------------------------


def _strip_root(path: str) -> str:
    """Return the part of a module path after "model", the user's model in the traced wrapper.

    "" if the path does not contain it.
    """
    names = path.split(".")
    if _ROOT not in names:
        return ""
    return ".".join(names[names.index(_ROOT) + 1 :])


def _strip_root_from_initializers(graph: ir.Model) -> ir.Model:
    """Remove the prefix "model." from the names of initializers, in place, and return `graph`.

    It is that of the wrapper in which the user's model is traced.
    """
    for name, value in list(graph.graph.initializers.items()):
        if name.startswith(f"{_ROOT}."):
            ir.rename_initializer(graph, value, name.removeprefix(f"{_ROOT}."))
    return graph


def _get_first_line(error: BaseException) -> str:
    """Return the first line of an error message, without terminal colours.

    At most 300 characters without final punctuation; the type's name for an empty message.
    """
    text = re.sub(r"\x1b\[\d+m", "", get_exception_text(error)).strip() or type(error).__name__
    return text.splitlines()[0].strip().rstrip(".;:")[:300]
