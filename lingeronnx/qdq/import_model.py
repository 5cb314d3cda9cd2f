"""A model that another tool has quantized, as the float graph it stands for and the scales that it had.

QuantizeLinear and DequantizeLinear go, in pairs; integers in between are followed through what only
moves them. Weights become the real numbers that their integers stand for, exactly. What a pair did
besides rounding is written out: one that begins at 0 cut negative numbers off, so a Relu comes in
where nothing else does that, and a Clip where it ended at 6. onnxruntime's quantizer takes these
out.

Scales are kept as `Affine`s by tensor, `scale = 1 / y_scale` in float32, or what `write` noted
beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from ..graph import ir, operators
from ..plan import Affine, PerAxis, PerGroup, PerTensor, Rounding
from .block_quantization import read_block_qparams
from .qdq_writer import SCALES_KEY, scale_from_step
from .qoperator import MOVES
from .qoperators import (
    expand_qoperators,
    is_dynamic,
    is_qoperator,
    reshape_constant,
    transpose_constant,
)

__all__ = ["ImportedQuantization", "import_quantized_model", "is_quantized"]

_Q, _DQ = "QuantizeLinear", "DequantizeLinear"

_RELU6_MAX = 6.0

#: Between these a step and its inverse are numbers in float32.
_MIN_SCALE, _MAX_SCALE = 3e-39, 1e38


@dataclass(frozen=True)
class ImportedQuantization:
    """What a quantized model holds.

    graph : in real numbers. activations, weights : {tensor, constant: its grid}. layers : {node:
    the grids of the constants that it reads, and these}, for what is renamed or multiplied later.
    notes : what else was done. source_tool : what wrote the scales into a file beside a float
    model, whose weights may be rounded anew; empty where they stand in a quantized model. refused :
    {what such a file speaks of: why its scale cannot be taken}.
    """

    graph: ir.Model
    activations: Mapping[str, Affine]
    weights: Mapping[str, Affine]
    layers: Mapping[str, tuple[tuple[Affine, np.ndarray], ...]]
    notes: tuple[str, ...]
    source_tool: str = ""
    rejected: Mapping[str, str] = field(default_factory=dict)


def is_quantized(model: ir.Model) -> bool:
    """Whether another tool quantized `model`, in a form that `import_quantized_model` reads or rejects."""
    return any(
        node.op_type in (_Q, _DQ) or is_qoperator(node) or is_dynamic(node)
        for node in _iter_all_nodes(model)
    )


def _iter_all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from ir.iter_nodes_recursive(model.graph)
    for function in model.functions.values():
        yield from ir.iter_nodes_recursive(function)


def import_quantized_model(model: ir.Model) -> ImportedQuantization:
    """Return what the quantized `model`, which is left as it is, holds.

    Raises ModelError for what has no scales of its own, and for integers that are computed with.
    """
    return _ModelImporter(ir.clone(model)).run()


@dataclass
class _ModelImporter:
    model: ir.Model
    notes: list[str] = field(default_factory=list)
    activations: dict[ir.Value, Affine] = field(default_factory=dict)
    weights: dict[ir.Value, Affine] = field(default_factory=dict)
    #: Integer tensor -> the real one that it stands for, and how; of a constant also its integers.
    held: dict[ir.Value, tuple[ir.Value, Affine]] = field(default_factory=dict)
    constant_integers: dict[ir.Value, np.ndarray] = field(default_factory=dict)
    restored: dict[str, int] = field(default_factory=dict)

    def run(self) -> ImportedQuantization:
        """Take out everything that quantizes."""
        model = self.model
        for node in _iter_all_nodes(model):
            if is_dynamic(node):
                raise ModelError(
                    f"{node.op_type} {node.name}: the activations get their scales at run time, "
                    "the file has none; "
                    "give the float model it was made from"
                )
        if any(
            node.op_type in (_Q, _DQ)
            for f in model.functions.values()
            for node in ir.iter_nodes_recursive(f)
        ):
            ir.inline_functions(model)
        ir.lift_constants(model)
        self.exact = ir.read_json_metadata(model, SCALES_KEY)
        model.metadata_props.pop(SCALES_KEY, None)
        expand_qoperators(model)
        for node in list(model.graph):
            if node.op_type in (_Q, _DQ) and (
                len(node.inputs) < 2 or None in node.inputs[:2] or not node.outputs
            ):
                raise ModelError(
                    f"{node.op_type} {node.name}: it has no input, no scale or no output; the file "
                    "is damaged"
                )
            if node.op_type == _Q:
                self._remove_quantize(node)
            elif node.op_type == _DQ:
                self._remove_dequantize(node)
            elif any(value in self.held for value in node.inputs if value is not None):
                self._move_real_values(node)
        for kind, count in self.restored.items():
            self.notes.append(
                f"{count} {kind} written out that the quantized model left to saturation"
            )
        self._replace_integer_outputs()
        ir.remove_unused(model)
        model.graph.sort()
        layers = {
            str(node.name): grids
            for node in model.graph
            if (
                grids := tuple(
                    (self.weights[v], array)
                    for v in node.inputs
                    if v in self.weights and (array := ir.const_value(v)) is not None
                )
            )
        }
        return ImportedQuantization(
            model,
            {str(value.name): grid for value, grid in self.activations.items()},
            {str(value.name): grid for value, grid in self.weights.items()},
            layers,
            tuple(self.notes),
        )

    # ---- the numbers of a node -----------------------------------------------------------------------------------

    def _read_qparams(self, node: ir.Node, kind: ir.DataType | None) -> tuple[Affine, np.ndarray]:
        """Return the grid of a node whose integers are of `kind`, and its y_scale."""
        step = _resolve_constant(node.inputs[1])
        zero = _resolve_constant(node.inputs[2]) if len(node.inputs) > 2 else None
        if step is None:
            raise ModelError(
                f"{node.op_type} {node.name}: its scale is computed at run time; the file must "
                "hold it"
            )
        if kind is None or not kind.is_integer() or kind.bitwidth > 32:
            what = "unknown" if kind is None else kind.name.lower()
            raise ModelError(
                f"{node.op_type} {node.name}: its integers are {what}; int4 to int32 are read"
            )
        if np.size(step) == 0:
            raise ModelError(
                f"{node.op_type} {node.name}: its scale is empty; it is a positive number"
            )
        if zero is not None and (np.size(zero) == 0 or zero.dtype.kind in "fc"):
            what = str(zero.dtype) if np.size(zero) else "empty"
            raise ModelError(
                f"{node.op_type} {node.name}: its zero point is {what}; it is an integer"
            )
        if not ((step > _MIN_SCALE) & (step < _MAX_SCALE)).all():
            what = (
                f"its scale is {np.ravel(step)[0]:g}; it is a number from {_MIN_SCALE:g} to "
                f"{_MAX_SCALE:g}"
            )
            raise ModelError(f"{node.op_type} {node.name}: {what}")
        if int(ir.get_attr(node, "block_size", 0) or 0) or np.ndim(step) > 1:
            told = _parse_exact_scales(self.exact.get(str(node.inputs[1].name)))  # type: ignore[union-attr]
            return read_block_qparams(node, kind, step, zero, told), step
        name, scale = str(node.inputs[1].name), scale_from_step(step)  # type: ignore[union-attr]
        told = _parse_exact_scales(self.exact.get(name, scale))
        if told.shape == scale.shape and np.allclose(told, scale, rtol=1e-6, atol=0):
            scale = told
        return make_file_qparams(
            scale, zero, kind.bitwidth, kind.name.startswith("I"), int(ir.get_attr(node, "axis", 1))
        ), step

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def _remove_quantize(self, node: ir.Node) -> None:
        out, source = node.outputs[0], ir.require_input(node)
        grid, _ = self._read_qparams(node, self._integer_type(node))
        array = _resolve_constant(source)
        if array is not None:
            _check_channels(node, array, grid)
            self.constant_integers[out] = grid.integers(array)
        else:
            if not grid.single:
                self.notes.append(
                    f"'{source.name}' has a scale for each of {grid.scales.size} channels: the "
                    "coarsest is read"
                )
            source = self._restore_activation(node, source, grid)
            known = self.activations.get(source)
            if known is None or known.ends[1] < grid.ends[1]:
                self.activations[source] = grid.coarsest
        self.held[out] = (source, grid)

    def _integer_type(self, node: ir.Node) -> ir.DataType | None:
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        if zero is not None:
            return zero.dtype if zero.dtype is not None else node.outputs[0].dtype
        told = ir.get_attr(node, "output_dtype")
        return ir.DataType(told) if told else node.outputs[0].dtype or ir.DataType.UINT8

    def _restore_activation(self, node: ir.Node, source: ir.Value, grid: Affine) -> ir.Value:
        """Return `source` with negative numbers cut off where the grid begins at 0 and nothing else did so."""
        low, high = grid.ends
        step = 1.0 / float(grid.scales.flat[0])
        if (
            abs(low) > 0.01 * step
            or source.is_graph_input()
            or source.is_graph_output()
            or self._is_positive(source)
        ):
            return source
        six = abs(high - _RELU6_MAX) <= 0.5 * step
        kind = "Clip" if six else "Relu"
        ends = []
        if six:
            for what, end in (("low", 0.0), ("high", _RELU6_MAX)):
                free = ir.unique_tensor_name(self.model, f"{source.name}_{what}")
                ends.append(ir.add_initializer(self.model, free, np.array(end, np.float32)))
        name = str(source.name)
        source.name = ir.unique_tensor_name(self.model, f"{name}_sum")
        clip = ir.make_node(
            kind, [source, *ends], output=name, name=f"{node.name}_{kind}", like=source
        )
        self.model.graph.insert_before(node, clip)
        self.restored[kind] = self.restored.get(kind, 0) + 1
        return clip.outputs[0]

    def _is_positive(self, value: ir.Value, depth: int = 8) -> bool:
        known = self.held.get(value)
        maker = ir.producer(value if known is None else known[0])
        if maker is None or not depth:
            array = ir.const_value(value)
            return array is not None and bool((array >= 0).all())
        if maker.op_type == "Clip":
            low = _resolve_constant(maker.inputs[1]) if len(maker.inputs) > 1 else None
            return low is not None and bool((low >= 0).all())
        if maker.op_type in operators.NONNEGATIVE_OPS:
            return True
        read = maker.inputs[:1] if maker.op_type in MOVES else maker.inputs
        return maker.op_type in operators.NONNEGATIVITY_PRESERVING_OPS and all(
            v is None or self._is_positive(v, depth - 1) for v in read
        )

    def _remove_dequantize(self, node: ir.Node) -> None:
        source, out = ir.require_input(node), node.outputs[0]
        if source in self.held:
            real, known = self.held[source]
            grid, step = self._read_qparams(node, _integer_type_of(known))
            same = grid.scales.size == known.scales.size and np.allclose(
                grid.scales, known.scales, rtol=1e-5
            )
            if (grid.low, grid.high) != (known.low, known.high) or not same:
                raise ModelError(
                    f"{_DQ} {node.name}: its scale is not the one that its integers were written "
                    "with; "
                    "export the model again"
                )
            if source in self.constant_integers:
                self._replace_constant(node, self.constant_integers[source], known, step)
            else:
                self._reconnect(out, real)
            return
        array = ir.const_value(source)
        if array is not None:
            self._replace_constant(node, array, *self._read_qparams(node, source.dtype))
        elif source.is_graph_input():
            self._expand_input_dequantize(node, source)
        else:
            raise ModelError(
                f"{_DQ} {node.name}: its integers '{source.name}' are computed; there is no real "
                "number"
            )

    def _replace_constant(
        self, node: ir.Node, integers: np.ndarray, grid: Affine, step: np.ndarray
    ) -> None:
        """Put the real numbers that constant `integers` stand for in the node's place.

        A transpose of them too.
        """
        out = node.outputs[0]
        _check_channels(node, integers, grid)
        real = _dequantize(grid, np.asarray(integers), step)
        if grid.axis is not None:
            grid = grid.along(grid.axis % real.ndim)
        turn = ir.sole_consumer(out)
        if turn is not None and turn.op_type == "Transpose" and real.ndim == 2:
            perm = ir.get_attr(turn, "perm") or [1, 0]
            grid = grid if grid.axis is None else grid.along(perm.index(grid.axis))
            real, out = transpose_constant(real, turn), turn.outputs[0]
        name = str(out.name)
        out.name = ir.unique_tensor_name(self.model, f"{name}_gone")
        value = ir.add_initializer(self.model, name, np.ascontiguousarray(real))
        ir.replace_all_uses(out, value)
        if grid.bits <= 16:
            self.weights[value] = grid

    def _reconnect(self, out: ir.Value, real: ir.Value) -> None:
        """Let the readers of `out` read the `real` tensor; a graph output keeps its name."""
        if not out.is_graph_output():
            ir.replace_all_uses(out, real)
            return
        name = str(out.name)
        if real.is_graph_input() or real.is_graph_output():
            identity = ir.make_node("Identity", [real], output="", like=real)
            node = ir.producer(out)
            assert node is not None
            self.model.graph.insert_before(node, identity)
            real = identity.outputs[0]
        out.name = ir.unique_tensor_name(self.model, f"{name}_gone")
        ir.replace_all_uses(out, real)
        real.name, real.type = name, ir.TensorType(ir.DataType.FLOAT)
        real.shape = real.shape if real.shape is not None else out.shape

    def _expand_input_dequantize(self, node: ir.Node, source: ir.Value) -> None:
        """Write out what a DequantizeLinear does to an input in integers.

        The caller goes on feeding these.
        """
        grid, step = self._read_qparams(node, source.dtype)
        if not grid.single:
            raise ModelError(
                f"{_DQ} {node.name}: an input with {grid.scales.size} scales; one is read"
            )
        name, added = str(node.outputs[0].name), []

        def add(kind: str, inputs: list[ir.Value], what: str, **attributes: int) -> ir.Value:
            added.append(
                ir.make_node(
                    kind,
                    inputs,
                    attributes,
                    output=ir.unique_tensor_name(self.model, f"{name}_{what}"),
                    origin=node,
                    suffix=what,
                )
            )
            return added[-1].outputs[0]

        def number(value: float, what: str) -> ir.Value:
            return ir.add_initializer(
                self.model,
                ir.unique_tensor_name(self.model, f"{name}_{what}"),
                np.array(value, np.float32),
            )

        value = add("Cast", [source], "cast", to=1)
        if grid.zero_point:
            value = add("Sub", [value, number(grid.zero_point, "zero")], "centred")
        value = add("Mul", [value, number(float(np.ravel(step)[0]), "step")], "real")
        value.shape, value.type = node.outputs[0].shape, ir.TensorType(ir.DataType.FLOAT)
        self.model.graph.insert_before(node, added)
        ir.replace_all_uses(node.outputs[0], value)
        self.activations[value] = grid

    def _move_real_values(self, node: ir.Node) -> None:
        """Let a node that moves integers move the real numbers."""
        inputs_held = [
            self.held[value] for value in node.inputs if value is not None and value in self.held
        ]
        grid = inputs_held[0][1]
        kind = node.op_type
        moves = kind in operators.DATA_MOVEMENT_OPS or kind in ("MaxPool", "Resize")
        if (
            node.domain
            or not (moves or (kind == "Relu" and not grid.shifted))
            or any(g != grid for _, g in inputs_held)
        ):
            raise ModelError(
                f"{kind} {node.name}: it computes with integers; only what moves them is read"
            )
        inputs = [self.held[v][0] if v is not None and v in self.held else v for v in node.inputs]
        moved = ir.node(kind, inputs, {}, num_outputs=len(node.outputs), name=node.name)
        moved.attributes.update(node.attributes)
        self.model.graph.insert_before(node, moved)
        for old, new in zip(node.outputs, moved.outputs, strict=True):
            new.name, new.shape, new.type = old.name, old.shape, ir.TensorType(ir.DataType.FLOAT)
            old.name = ir.unique_tensor_name(self.model, f"{old.name}_gone")
            self.held[old], self.activations[new] = (new, grid), grid

    def _replace_integer_outputs(self) -> None:
        """Give the graph real outputs in place of integer ones."""
        for value in list(self.model.graph.outputs):
            if value in self.held:
                self.notes.append(f"output '{value.name}' was in integers; it is real now")
                self._reconnect(value, self.held[value][0])


def _parse_exact_scales(told: object) -> np.ndarray:
    """Return scales that the metadata hold as an array, an empty one where they are none."""
    try:
        return np.asarray(told, np.float32)
    except (ValueError, TypeError, OverflowError):
        return np.zeros(0, np.float32)


def make_file_qparams(
    scale: npt.ArrayLike, zero: npt.ArrayLike | None, bits: int, signed: bool, axis: int
) -> Affine:
    """Return how integers of a file are held.

    A scale along `axis` where there are several, else one; ties to even.
    """
    scales, zeros = (
        np.ravel(scale),
        np.zeros(1) if zero is None else np.ravel(zero).astype(np.int64),
    )
    many = len(scales) > 1
    axes = PerAxis(axis) if many else PerTensor()
    zeros = zeros if len(zeros) == len(scales) > 1 else zeros[0]
    try:
        return Affine(scales if many else scales[0], bits, axes, zeros, signed, Rounding.HALF_EVEN)
    except ValueError as error:
        raise ModelError(
            f"scales and zero points in the file: {error}; the file is damaged"
        ) from error


def _dequantize(qparams: Affine, integers: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return what DequantizeLinear gives for integers, float32.

    Step : the y_scale that stands in the file.
    """
    off = integers.astype(np.int64) - qparams.centre(integers.shape)
    held = (
        step if step.ndim > 1 else np.ravel(step) if qparams.axis is not None else np.ravel(step)[0]
    )
    steps = qparams.changed(held).broadcast(integers.shape)
    return np.asarray(off.astype(np.float32) * np.asarray(steps, np.float32))


def _integer_type_of(grid: Affine) -> ir.DataType:
    return next(
        kind
        for kind in ir.DataType
        if kind.name == f"{'INT' if grid.low < 0 else 'UINT'}{grid.bits}"
    )


def _check_channels(node: ir.Node, array: np.ndarray, grid: Affine) -> None:
    """Raise ModelError where a constant has another number of channels than its grid has scales."""
    if grid.axis is None or isinstance(grid.granularity, PerGroup):  # looked at where it was read
        return
    size = array.shape[grid.axis] if -array.ndim <= grid.axis < array.ndim else "no"
    if size != grid.scales.size:
        raise ModelError(
            f"{node.op_type} {node.name}: it has {grid.scales.size} scales for {size} channels "
            f"along axis {grid.axis}; "
            "the file is damaged, export it again"
        )


def _resolve_constant(value: ir.Value | None) -> np.ndarray | None:
    """Return a constant, also one behind nodes that only move or convert it."""
    array, node = ir.const_value(value), ir.producer(value)
    if array is not None or node is None or node.domain or not node.inputs:
        return array
    found = (
        _resolve_constant(node.inputs[0])
        if node.op_type in operators.PERMUTATION_OPS | {"Cast"}
        else None
    )
    if found is None or node.op_type in operators.IDENTITY_OPS:
        return found
    if node.op_type == "Cast":
        return found.astype(ir.DataType(ir.get_attr(node, "to")).numpy())
    if node.op_type == "Transpose":
        return transpose_constant(found, node)
    shape = _resolve_constant(node.inputs[1]) if node.op_type == "Reshape" else None
    return None if shape is None else reshape_constant(found, shape, node)
