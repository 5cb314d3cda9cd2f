"""Torch's two ONNX exporters behind one face.

A model in, an `ir.Model` out whose nodes carry the path of their module.
``dynamo`` goes through `torch.export` and writes opset 18 and newer; ``torchscript`` traces one run
and writes opset 9 to 20. Both are told not to fold or fuse anything: that is `cleanup`'s work, the
same for both. What stops them is a ModelError of one line, an operator without an ONNX form with
the path of its module.
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

from ...errors import ConfigError, ModelError
from ...files import temporary_folder
from ...graph import ir
from ..dynamo import import_dynamo
from .cleanup import SCOPE_KEY
from .signature import Axes

__all__ = ["DEFAULT_OPSET", "OPSETS", "select_exporter", "suppress_output", "trace_model"]

#: Exporter -> the opsets it writes.
OPSETS = {"dynamo": range(18, 24), "torchscript": range(9, 21)}
DEFAULT_OPSET = 18

_TORCH = str(Path(torch.__file__).parent)  # what its own layers do while they are traced is sound
_ROOT = "model"  # the attribute of `FlattenedModel` that holds the user's model


def select_exporter(exporter: str | None, opset: int | None) -> tuple[str, int]:
    """Return exporter and opset; by default dynamo, and torchscript for opsets that only it writes.

    Raises ConfigError for what no exporter writes.
    """
    opset = DEFAULT_OPSET if opset is None else opset
    if exporter is None:
        exporter = next((name for name, opsets in OPSETS.items() if opset in opsets), "dynamo")
    if exporter not in OPSETS:
        raise ConfigError(f"there is no exporter '{exporter}'; choose {' or '.join(OPSETS)}")
    if opset not in OPSETS[exporter]:
        known = ", ".join(f"{name} {opsets[0]} to {opsets[-1]}" for name, opsets in OPSETS.items())
        raise ConfigError(f"exporter {exporter} does not write opset {opset}; they write: {known}")
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
) -> ir.Model:
    """Export `model`, a `FlattenedModel`, and return what the exporter wrote, nodes marked with `SCOPE_KEY`.

    on_warning : called with what the exporter says the user should know. dump_text : called with
    the traced program.
    """
    write = {"dynamo": _dynamo, "torchscript": _torchscript}[exporter]
    with suppress_output() as said:
        import_dynamo()
        graph = write(model, inputs, outputs, axes, opset, dump_text)
    for text in said():
        on_warning(text)
    written = graph.opset_imports.get("")
    if written != opset:
        raise ModelError(
            f"torch's {exporter} exporter wrote opset {written} where {opset} was asked for; "
            "choose "
            f"--opset {written} or the other exporter"
        )
    return graph


@contextlib.contextmanager
def suppress_output() -> Iterator[Callable[[], list[str]]]:
    """Keep the exporters from printing.

    Yield what returns those of their warnings that speak of the user's model.
    """
    before = logging.root.manager.disable
    with (
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("always")
        logging.disable(logging.CRITICAL)
        try:
            yield lambda: list(
                dict.fromkeys(
                    f"{Path(w.filename).name} line {w.lineno}: {str(w.message).partition('. ')[0]}"
                    for w in caught
                    if issubclass(w.category, torch.jit.TracerWarning)
                    and not w.filename.startswith(_TORCH)
                )
            )
        finally:
            logging.disable(before)


# ---- dynamo ------------------------------------------------------------------------------------------------------


def _dynamo(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    axes: Axes,
    opset: int,
    dump_text: Callable[[str], None],
) -> ir.Model:
    free = torch.export.Dim.DYNAMIC
    shapes = tuple(dict.fromkeys(axes[name], free) if axes.get(name) else None for name in inputs)
    try:
        program = torch.export.export(
            model, tuple(inputs.values()), dynamic_shapes=(shapes,), strict=False
        )
    except Exception as error:
        raise _make_trace_error(error, list(inputs)) from error
    dump_text(str(program))
    try:
        written = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            optimize=False,
            verbose=False,
            input_names=list(inputs),
            output_names=list(outputs),
        )
        proto = written.model_proto
    except Exception as error:
        raise _find_unsupported_operator(error, opset) or ModelError(
            "torch's dynamo exporter cannot write the model: "
            f"{_get_first_line(_get_root_cause(error))}; try "
            "--exporter torchscript"
        ) from error
    graph = ir.from_proto(proto, "what torch's dynamo exporter wrote")
    for node in ir.iter_nodes_recursive(graph.graph):
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        path = scopes[-2] if len(scopes) > 1 else ""  # the last one is the operator
        node.metadata_props[SCOPE_KEY] = _strip_root(path)
    return _strip_root_from_initializers(graph)


def _make_trace_error(error: Exception, inputs: Sequence[str]) -> ModelError:
    """Return the error for a model that torch.export does not take."""
    text = str(error)
    fixed = re.search(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]", text)
    if fixed and "Constraint" in text:
        return ModelError(
            f"torch.export: the model fixes axis {fixed.group(2)} of input "
            f"'{inputs[int(fixed.group(1))]}', which is "
            "to be dynamic; leave it out of --dynamic-axes (none: all sizes fixed), or try "
            "--exporter torchscript"
        )
    call = re.search(r'following call raised this error:\s+File "([^"]+)", line (\d+)', text)
    place = f" ({Path(call.group(1)).name} line {call.group(2)})" if call else ""
    return ModelError(
        f"torch.export cannot trace the model{place}: {_get_first_line(error)}; try --exporter "
        "torchscript"
    )


def _find_unsupported_operator(error: BaseException, opset: int) -> ModelError | None:
    """Return the error for an operator that has no ONNX form, with its module.

    None where that is not the cause.
    """
    chain = list(_iterate_causes(error))
    if not any(type(e).__name__ == "DispatchError" for e in chain):
        return None
    nodes = [node for e in chain for node in _iterate_frame_locals(e.__traceback__, torch.fx.Node)]
    if not nodes:
        return None
    node = nodes[-1]
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = _strip_root(stack[-1][0]) if stack else ""
    return _make_unsupported_error(str(node.target), path, "dynamo", opset)


def _make_unsupported_error(operator: str, path: str, exporter: str, opset: int) -> ModelError:
    where = f"module '{path}'" if path else "the model's own forward"
    other = next(name for name in OPSETS if name != exporter)
    return ModelError(
        f"operator {operator} in {where} has no ONNX form (exporter {exporter}, opset {opset}); "
        "write it "
        f"with other operators, or try --exporter {other}"
    )


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _get_root_cause(error: BaseException) -> BaseException:
    return list(_iterate_causes(error))[-1]


def _iterate_frame_locals(trace: TracebackType | None, kind: type) -> Iterator[Any]:
    while trace is not None:
        yield from (value for value in trace.tb_frame.f_locals.values() if isinstance(value, kind))
        trace = trace.tb_next


# ---- torchscript -------------------------------------------------------------------------------------------------


def _torchscript(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    axes: Axes,
    opset: int,
    dump_text: Callable[[str], None],
) -> ir.Model:
    said: list[str] = []
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        try:
            with _capture_output(said):
                torch.onnx.export(
                    model,
                    tuple(inputs.values()),
                    str(path),
                    dynamo=False,
                    opset_version=opset,
                    verbose=False,
                    input_names=list(inputs),
                    output_names=list(outputs),
                    dynamic_axes={name: dict(free) for name, free in axes.items()},
                    # anything else folds normalisation into convolutions
                    training=torch.onnx.TrainingMode.PRESERVE,
                    do_constant_folding=False,
                )
        except torch.onnx.errors.UnsupportedOperatorError as error:
            raise _make_torchscript_error(model, str(error), "".join(said), opset) from error
        except Exception as error:
            raise ModelError(
                f"torch's torchscript exporter cannot write the model: {_get_first_line(error)}; "
                "try --exporter dynamo"
            ) from error
        graph = ir.load(path)
    dump_text("\n".join(f"{n.op_type} {n.name}" for n in graph.graph) + "\n")
    paths = [name for name, _ in model.named_modules()]
    for node in ir.iter_nodes_recursive(graph.graph):
        name = str(node.name)
        if name.startswith("/"):
            node.metadata_props[SCOPE_KEY] = _strip_root(_module_path(name.split("/")[1:-1], paths))
    return _strip_root_from_initializers(graph)


def _make_torchscript_error(model: nn.Module, message: str, said: str, opset: int) -> ModelError:
    """Return the error for an operator that this exporter does not know.

    Its module stands in the traced graph, which the exporter prints when it fails: ``aten::x(...),
    scope: T::name/``.
    """
    found = re.search(r"'([\w:]+)'", message)
    kind = found.group(1) if found else message
    line = re.search(rf"= {re.escape(kind)}\(.*?\), scope: (\S+)", said)
    steps = [part.partition("::")[2] for part in line.group(1).split("/")] if line else []
    path = _module_path(
        [step for step in steps if step], [name for name, _ in model.named_modules()]
    )
    return _make_unsupported_error(kind, _strip_root(path), "torchscript", opset)


@contextlib.contextmanager
def _capture_output(said: list[str]) -> Iterator[None]:
    """Catch what is written to the process's own stdout and stderr, as C++ code does, and append it to `said`."""
    with tempfile.TemporaryFile() as file:
        before = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            for number, old in zip((1, 2), before, strict=True):
                os.dup2(old, number)
                os.close(old)
            file.seek(0)
            said.append(file.read().decode("utf-8", "replace"))


def _module_path(steps: Sequence[str], paths: Sequence[str]) -> str:
    """Return the module path of a scope of this exporter, whose steps are attribute names with the numbers behind them.

    ``layer1/layer1.0/conv`` is ``layer1.0.conv``, ``encoder/blocks.3`` is ``encoder.blocks.3``:
    each step is a module below the one before it, the nearest that is so called. The second call of
    a module ``fc`` has the step ``fc_1``.
    """
    path = ""
    for step in steps:
        inside = [p for p in paths if not path or p.startswith(f"{path}.")]
        again = re.sub(r"_\d+$", "", step)
        below = [p for p in inside if _get_scope_name(p) == step] or [
            p for p in inside if _get_scope_name(p) == again
        ]
        path = min(below, key=lambda p: p.count("."), default=f"{path}.{step}".lstrip("."))
    return path


def _get_scope_name(path: str) -> str:
    """Return what the exporter calls the module `path`.

    Its last word that is no number, and the numbers behind it.
    """
    words = path.split(".")
    first = next((i for i in reversed(range(len(words))) if not words[i].isnumeric()), 0)
    return ".".join(words[first:])


# ---- both --------------------------------------------------------------------------------------------------------


def _strip_root(path: str) -> str:
    """Return `path`, of a module in `FlattenedModel`, as the user's model calls it."""
    words = path.split(".")
    if _ROOT not in words:
        return ""
    return ".".join(words[words.index(_ROOT) + 1 :])


def _strip_root_from_initializers(graph: ir.Model) -> ir.Model:
    for name, value in list(graph.graph.initializers.items()):
        if name.startswith(f"{_ROOT}."):
            ir.rename_initializer(graph, value, name.removeprefix(f"{_ROOT}."))
    return graph


def _get_first_line(error: BaseException) -> str:
    """Return the first line of what `error` says, without terminal colours."""
    text = re.sub(r"\x1b\[\d+m", "", str(error)).strip() or type(error).__name__
    return text.splitlines()[0].strip().rstrip(".;:")[:300]
