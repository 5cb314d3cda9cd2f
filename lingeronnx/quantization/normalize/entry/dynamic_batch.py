"""Make a batch size that the file fixes dynamic.

Calibration and comparison run many samples, platforms one. The batch is on axis 0 of the inputs (on
axis 1 of those that recurrent layers read time first) if all inputs have the same size N there;
axes other than 0 are stored in the model's metadata (`batch_axes`). The inputs are declared
dynamic, Reshape targets and Expand shapes that contain N are rewritten according to a run on N
samples, constants of N equal rows keep one row, and zero initial states of recurrent layers are
removed. Then the new model must return, for N samples and for single ones, the same as the
original. If it does not, a model for one sample stays unchanged, and another N raises ModelError.

If the batch is on axis 0 only by default and this fails, other axes of size 1 are tried.

A file may leave the batch size open and yet contain a Reshape to fixed sizes, or states of a
recurrent layer, for a single sample: if the model runs on one sample and not on two, it is treated
as one with the batch size 1. If it leaves other sizes open as well, its Reshapes may compute them,
and take the batch for 1; such a model is tried with sizes of 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ....common.errors import ModelError
from ....ir import float_ops, ir
from ....ir.batch_axes import BATCH_AXES_KEY, set_batch_axes, store_inferred_batch_axes
from ....runtime.data import InputSpec
from ....runtime.runners import FloatRunner, get_input_specs
from .._pass import PassResult, SkipReason
from ..axes.constant_concat import rewrite_concat_as_pad_add
from ..folding.constants import fold_constants
from ..folding.zero_states import drop_zero_states

_Feed = dict[str, np.ndarray]
_MAX_INPUT_ELEMENTS = 1 << 24  # larger inputs are not run
_MAX_AXIS_TRIALS = 8  # combinations of batch axes that are tried
_OPEN_END = np.iinfo(np.int64).max  # end of a Slice that reaches to the end of any axis
_TOLERANCE = 1e-3  # relative to the largest output value, as for the complete normalization


def make_batch_dynamic(model: ir.Model) -> PassResult:
    """Make the batch axis of `model` dynamic, in place; one change if it was fixed before.

    Tries the constants that contain the batch size, then a batch found by trial runs. A model for
    one sample that cannot be changed is skipped with a reason, as is one whose inputs have
    different batch sizes; raises ModelError for one that is made for several samples and cannot be
    changed.
    """
    has_user_axes = BATCH_AXES_KEY in model.metadata_props
    store_inferred_batch_axes(model)
    specs = get_input_specs(model)
    sizes = list(set(_batch_sizes(specs).values()))
    size = sizes[0] if len(sizes) == 1 else None
    if size is None and _requires_single_sample(model, specs):
        _declare_single_sample(model)
        specs, size = get_input_specs(model), 1
    if size is None:
        return PassResult(0, _explain_mixed_batch_sizes(model, specs) if len(sizes) > 1 else ())
    can_run = _is_small_enough(specs)
    if can_run:
        for allow_inner_batch in (False, True):
            output_axes = _try_dynamic_batch(model, size, allow_inner_batch)
            if output_axes:
                _apply_dynamic_batch(model, size, allow_inner_batch, output_axes)
                return PassResult(1)
    if not has_user_axes and _free_batch_by_trial(model, specs):
        return PassResult(1)
    if size == 1:
        reason = "its inputs have unknown sizes or are too large to run"
        if can_run:
            reason = "its outputs do not follow the samples"
        return PassResult(0, [SkipReason(None, f"made for one sample; {reason}")])
    raise ModelError(
        f"the model is made for batches of {size} and its samples cannot be separated; export it "
        "with a dynamic batch axis, or for one sample"
    )


def _try_dynamic_batch(
    model: ir.Model, size: int, allow_inner_batch: bool = False
) -> dict[str, int] | None:
    """Make the batch of a copy of `model` dynamic.

    Return output -> batch axis if it computes the same. `size` is the fixed batch size. None if the
    batch cannot be made dynamic or results on random inputs differ. With `allow_inner_batch` a
    Reshape may fold a batch of one sample into a later axis.
    """
    trial = model.clone()
    if not _apply_dynamic_batch(trial, size, allow_inner_batch):
        return None
    return _compare_with_original(model, trial, size)


def _is_small_enough(specs: Sequence[InputSpec]) -> bool:
    """Whether the model can be tried on random inputs as described by `specs`.

    All sizes must be known, the type numeric or boolean, and each input have at most
    `_MAX_INPUT_ELEMENTS` elements.
    """
    for spec in specs:
        if spec.shape is None or None in spec.shape or spec.dtype.kind not in "fiub":
            return False
    return all(map(_has_few_elements, specs))


def _free_batch_by_trial(model: ir.Model, specs: Sequence[InputSpec]) -> bool:
    """Try other axes as the batch of the inputs of `model`.

    Make the first that works dynamic, in place. Returns whether one works: the model with a dynamic
    batch computes the same on random inputs. Tried are axes of size 1, or the only axis of unknown
    size; no more than `_MAX_AXIS_TRIALS` combinations. Needed for unrolled cells, which read [T, 1,
    I] without telling which axis is time.
    """
    batched = [spec for spec in specs if spec.axis is not None]
    choices = [_candidate_batch_axes(spec) for spec in batched]
    if not choices or math.prod(map(len, choices)) > _MAX_AXIS_TRIALS:
        return False
    tried_axes = tuple(spec.axis for spec in batched)
    for axes in itertools.product(*choices):
        if axes == tried_axes:
            continue
        axis_by_input = {spec.name: axis for spec, axis in zip(batched, axes, strict=True)}
        single = model.clone()
        set_batch_axes(single, axis_by_input)
        _declare_single_sample(single)
        if not _is_small_enough(get_input_specs(single)):
            continue
        output_axes = _try_dynamic_batch(single, 1)
        if output_axes:
            set_batch_axes(model, axis_by_input)
            _declare_single_sample(model)
            _apply_dynamic_batch(model, 1, output_batch_axes=output_axes)
            return True
    return False


def _candidate_batch_axes(spec: InputSpec) -> list[int]:
    """Return the axes of the input `spec` that may be its batch axis.

    These are all axes of size 1. If sizes are unknown, it is the only unknown one, provided that
    axis 0 does not have size 1; else none.
    """
    shape = spec.shape or ()
    if None in shape:
        return [shape.index(None)] if shape.count(None) == 1 and shape[0] != 1 else []
    return [axis for axis, size in enumerate(shape) if size == 1]


def _batch_sizes(specs: Sequence[InputSpec]) -> dict[str, int | None]:
    """Return input name -> size of the batch axis, for inputs that have a batch axis.

    The size is None if it, or the shape, is not fixed.
    """
    return {
        spec.name: spec.shape[spec.axis] if spec.shape else None
        for spec in specs
        if spec.axis is not None
    }


def _explain_mixed_batch_sizes(model: ir.Model, specs: Sequence[InputSpec]) -> list[SkipReason]:
    """Return a reason for each batched input, whose batch sizes differ.

    A dynamic size differs from a fixed one.
    """
    sizes = _batch_sizes(specs)
    reasons = []
    for value in model.graph.inputs:
        if value.name not in sizes:
            continue
        size = sizes[value.name]
        samples = "any number of" if size is None else size
        reasons.append(SkipReason(value, f"made for {samples} samples, unlike other inputs"))
    return reasons


def _requires_single_sample(model: ir.Model, specs: Sequence[InputSpec]) -> bool:
    """Whether `model`, whose inputs have a dynamic batch, runs on one random sample but not on two.

    Tried only if it has recurrent layers with constant states, Reshapes to fixed sizes, or Reshapes
    to computed sizes where sizes of its samples are unknown (1 then), and if its samples are small;
    otherwise False.
    """
    if any(spec.axis is not None and not spec.shape for spec in specs):
        return False
    has_unknown_sizes = not all(_has_known_sample(spec) for spec in specs)
    if not any(_fixes_sample_count(node, has_unknown_sizes) for node in model.graph):
        return False
    if not all(_has_few_elements(spec) for spec in specs):
        return False
    runner = FloatRunner(model, ir.get_output_names(model))
    feed = _make_random_feed(model, 0)
    batched = _batched_inputs(model)
    doubled = {
        name: np.repeat(array, 2, batched[name].axis or 0) if name in batched else array
        for name, array in feed.items()
    }
    return _can_run(runner, feed) and not _can_run(runner, doubled)


def _has_known_sample(spec: InputSpec) -> bool:
    """Whether all dimensions but the batch are known. An unknown shape counts as []."""
    return all(dim is not None for axis, dim in enumerate(spec.shape or ()) if axis != spec.axis)


def _has_few_elements(spec: InputSpec) -> bool:
    """Whether an input has at most `_MAX_INPUT_ELEMENTS` elements; unknown sizes count as 1."""
    return math.prod(int(dim or 1) for dim in spec.shape or ()) <= _MAX_INPUT_ELEMENTS


def _can_run(runner: FloatRunner, feed: _Feed) -> bool:
    """Whether running the model on `feed` raises no ModelError."""
    try:
        _run_feed(runner, feed)
    except ModelError:
        return False
    return True


def _fixes_sample_count(node: ir.Node, has_unknown_sizes: bool) -> bool:
    """Whether `node` may be made for a number of samples.

    That is an LSTM, GRU or RNN with an initial state (input 5 or 6) that is not a graph input, and
    a Reshape whose constant target has positive sizes only: it neither copies nor infers a size.
    With `has_unknown_sizes` of the inputs, a Reshape may compute such a target.
    """
    if ir.is_standard_op(node, *float_ops.RECURRENT_OPS):
        return any(value is not None and not value.is_graph_input() for value in node.inputs[5:7])
    if not ir.is_standard_op(node, "Reshape"):
        return False
    target = ir.const_value(node.inputs[1])
    return has_unknown_sizes if target is None else bool((target > 0).all())


def _declare_single_sample(model: ir.Model) -> None:
    """Set the size of the batch axis of all inputs of `model` that have one to 1, in place."""
    _set_batch_dims(model, 1)


def _set_batch_dims(model: ir.Model, size: ir.Dim) -> None:
    """Set the batch axis of each graph input that has one to `size`, in place.

    `size` is a number, a symbol, or None for unknown.
    """
    specs = _batched_inputs(model)
    for value in model.graph.inputs:
        spec = specs.get(str(value.name))
        if spec is None:
            continue
        dims = ir.get_shape(value) or (None,)
        value.shape = ir.Shape(
            [size if axis == spec.axis else dim for axis, dim in enumerate(dims)]
        )


def _batched_inputs(model: ir.Model) -> dict[str, InputSpec]:
    """Return input name -> spec of the inputs of `model` that have a batch axis."""
    return {spec.name: spec for spec in get_input_specs(model) if spec.axis is not None}


def _make_random_feed(model: ir.Model, seed: int) -> _Feed:
    """Return input name -> array: standard normal values for float inputs, zeros for other types.

    Unknown dimensions are 1. `seed` makes the values reproducible.
    """
    rng = np.random.default_rng(seed)
    feed = {}
    for spec in get_input_specs(model):
        shape = tuple(int(dim or 1) for dim in spec.shape or ())
        if spec.dtype.kind == "f":
            feed[spec.name] = rng.standard_normal(shape).astype(spec.dtype)
        else:
            feed[spec.name] = np.zeros(shape, spec.dtype)
    return feed


def _apply_dynamic_batch(
    model: ir.Model,
    size: int,
    allow_inner_batch: bool = False,
    output_batch_axes: Mapping[str, int] = MappingProxyType({}),
) -> bool:
    """Rewrite `model` for a dynamic batch, in place.

    Return False if it does not run on random inputs.

    Parameters
    ----------
    model
        A model for batches of `size`.
    size
        The fixed batch size.
    allow_inner_batch
        Whether a Reshape may fold a batch of one sample that lies after axis 0 into the axis in its
        place.
    output_batch_axes
        Graph output -> batch axis. Other outputs get an unknown shape, and so do inner tensors.
    """
    fold_constants(model)
    runner = FloatRunner(model)
    try:
        shapes = {name: array.shape for name, array, _ in runner.run(_make_random_feed(model, 0))}
    except ModelError:
        return False
    drop_zero_states(model)
    for node in list(model.graph):
        if not node.domain:
            _make_node_dynamic(model, node, size, shapes, allow_inner_batch)
    _set_batch_dims(model, "N")
    for value in ir.iter_values(model):
        if value.is_graph_input():
            continue
        if not value.is_graph_output():
            value.shape = None
        elif value.const_value is None:
            dims = shapes.get(str(value.name), ())
            axis = output_batch_axes.get(str(value.name))
            value.shape = _dynamic_output_shape(dims, axis, size)
    return True


def _dynamic_output_shape(dims: tuple[int, ...], axis: int | None, size: int) -> ir.Shape | None:
    """Return the shape of a graph output with the batch on `axis`, or None if that is unknown.

    The batch is "N" if it has `size` in `dims`, else unknown.
    """
    if axis is None or not dims:
        return None
    batch = "N" if dims[axis] == size else None
    return ir.Shape([batch if i == axis else dim for i, dim in enumerate(dims)])


def _make_node_dynamic(
    model: ir.Model,
    node: ir.Node,
    size: int,
    shapes: Mapping[str, tuple[int, ...]],
    allow_inner_batch: bool,
) -> None:
    """Rewrite constants of `node` that contain the batch size `size`, in place.

    Concerned are the targets of Reshape and Expand, and the ends of Slice; for `size` 1 also
    initial states of recurrent layers and constant operands of Concat; for larger sizes constants
    with equal rows for all samples. `shapes` has tensor shapes of a run; `allow_inner_batch` is for
    Reshape.
    """
    if node.op_type == "Reshape":
        _make_reshape_dynamic(model, node, size, shapes, allow_inner_batch)
    elif node.op_type in float_ops.RECURRENT_OPS and size == 1:
        _make_states_dynamic(model, node)
    elif node.op_type == "Expand":
        _make_expand_dynamic(model, node, size, shapes)
    elif node.op_type == "Slice":
        _make_slice_dynamic(model, node, shapes)
    elif node.op_type == "Concat" and size == 1:
        rewrite_concat_as_pad_add(model, node, shapes.get(ir.output_name(node), ()))
    elif size > 1:
        _deduplicate_constant_rows(model, node, size, shapes)


def _make_reshape_dynamic(
    model: ir.Model,
    node: ir.Node,
    size: int,
    shapes: Mapping[str, tuple[int, ...]],
    allow_inner_batch: bool,
) -> None:
    """Put 0 or -1 on the batch axis of the constant target of a Reshape, in place.

    Other dimensions of the target become those of the run (`shapes`: name -> shape). Nothing
    happens if the target is computed, or a shape is unknown or empty. With `allow_inner_batch` a
    batch of one sample may lie inside another axis.
    """
    source_shape = shapes.get(ir.input_name(node), ())
    result_shape = shapes.get(ir.output_name(node), ())
    if ir.const_value(node.inputs[1]) is None or not source_shape or not result_shape:
        return
    if 0 in (*source_shape, *result_shape):
        return
    node.attributes.pop("allowzero", None)  # a 0 in the target copies the size of the input
    axis = _reshape_batch_axis(source_shape, result_shape, size, allow_inner_batch)
    target = list(result_shape)
    if axis:
        target[axis] = -1
    else:  # if axis 0 is larger than the batch, the batch is folded into it
        keeps_batch = source_shape[0] == result_shape[0] and (size > 1 or source_shape[0] == 1)
        target[0] = 0 if keeps_batch else -1
    ir.set_constant_input(model, node, 1, np.array(target, np.int64), "free")


def _reshape_batch_axis(
    source_shape: tuple[int, ...],
    result_shape: tuple[int, ...],
    size: int,
    allow_inner_batch: bool,
) -> int:
    """Return the axis of the output of a Reshape that is the batch, or contains it; 0 by default.

    `size` is the batch size. With `allow_inner_batch`, a batch of one sample after axis 0 may be
    folded into the axis in its place, as the heads of attention are, [T, 1, E] to [T, 1*H, D]; but
    not into the last axis.
    """
    has_inner_size = size in result_shape[1:]
    keeps_other_axis = size == 1 and source_shape[0] == result_shape[0] != 1
    if has_inner_size and (source_shape[0] % size or keeps_other_axis):
        return result_shape.index(size, 1)
    if not allow_inner_batch or size != 1 or source_shape[0] == 1 or 1 not in source_shape[1:]:
        return 0
    axis = source_shape.index(1, 1)
    is_folded = source_shape[:axis] == result_shape[:axis] and axis < len(result_shape) - 1
    return axis if is_folded else 0


def _make_expand_dynamic(
    model: ir.Model, node: ir.Node, size: int, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Set the batch size in the constant target of an Expand to 1, which keeps that of the input.

    Only if the target and the input (its shape is in `shapes`) have `size` on axis 0 and equal
    ranks; otherwise nothing happens.
    """
    target, source_shape = ir.const_value(node.inputs[1]), shapes.get(ir.input_name(node), ())
    if target is None or len(target) != len(source_shape):
        return
    if target[0] == size == source_shape[0]:
        ir.set_constant_input(model, node, 1, np.array([1, *target[1:]], np.int64), "free")


def _make_slice_dynamic(
    model: ir.Model, node: ir.Node, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Let a Slice that selects all of an axis select all of it for any size, in place.

    Exporters write the size that they know as the end, also that of the batch axis. Nothing happens
    if the bounds are computed, or the shape of the input (in `shapes`) is unknown.
    """
    shape = shapes.get(ir.input_name(node), ())
    constants = [ir.const_value(value) for value in node.inputs[1:] if value is not None]
    bounds = [array.tolist() for array in constants if array is not None]
    if not shape or len(bounds) < len(node.inputs) - 1:
        return
    starts, ends = bounds[:2]
    axes = bounds[2] if len(bounds) > 2 else range(len(starts))
    steps = bounds[3] if len(bounds) > 3 else [1] * len(starts)
    open_ends = [
        _OPEN_END if (start, step) == (0, 1) and end >= shape[axis] else end
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True)
    ]
    if open_ends != ends:
        ir.set_constant_input(model, node, 2, np.array(open_ends, np.int64), "free")


def _make_states_dynamic(model: ir.Model, node: ir.Node) -> None:
    """Replace constant initial states [D, 1, H] (inputs 5, 6) by ones repeated per sample.

    Works in place. Does nothing with `layout` 1, and for states of another shape.
    """
    if ir.get_attr(node, "layout", 0):
        return
    for index in range(5, min(len(node.inputs), 7)):
        array = ir.const_value(node.inputs[index])
        if array is not None and array.ndim == 3 and array.shape[1] == 1:
            node.replace_input_with(index, _repeat_state_per_sample(model, node, index, array))


def _repeat_state_per_sample(
    model: ir.Model, node: ir.Node, index: int, array: np.ndarray
) -> ir.Value:
    """Return the state `array`, input `index` of `node`, repeated for each sample of input 0.

    Inserts an Expand of axis 1 to the size of axis 1 of input 0 before `node`.
    """
    name = ir.input_name(node, index)

    def constant(*values: int) -> ir.Value:
        """Add an int64 vector of `values` as initializer, and return it."""
        return ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{name}_size"), np.array(values, np.int64)
        )

    def add(
        op_type: str, suffix: str, inputs: Sequence[ir.Value | None], **attributes: int
    ) -> ir.Value:
        """Insert an operator before `node`, and return its only output, named ``NAME_SUFFIX``."""
        output = ir.unique_tensor_name(model, f"{name}_{suffix}")
        new_node = ir.make_node(
            op_type, inputs, attributes, origin=node, suffix=f"{suffix}{index}", output=output
        )
        model.graph.insert_before(node, new_node)
        return new_node.outputs[0]

    source_shape = add("Shape", "sizes", [node.inputs[0]])
    batch_size = add("Gather", "rows", [source_shape, constant(1)], axis=0)
    dims = [constant(array.shape[0]), batch_size, constant(array.shape[2])]
    return add("Expand", "each", [node.inputs[index], add("Concat", "all", dims, axis=0)])


def _deduplicate_constant_rows(
    model: ir.Model, node: ir.Node, size: int, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Reduce constant operands of `node` with `size` equal rows on axis 0 to one row.

    In place. Only for add, sub, mul and div (`AFFINE_OPS`), and for constants of the rank of the
    output, whose shape is in `shapes` by tensor name.
    """
    if node.op_type not in float_ops.AFFINE_OPS:
        return
    rank = len(shapes.get(ir.output_name(node), ()))
    for index, value in enumerate(node.inputs):
        array = ir.const_value(value)
        if array is None or not rank or array.ndim != rank or len(array) != size:
            continue
        if (array == array[:1]).all():
            ir.set_constant_input(model, node, index, array[:1], "row")


def _compare_with_original(model: ir.Model, trial: ir.Model, size: int) -> dict[str, int] | None:
    """Compare `trial` with `model` on `size` samples, on twice as many, and on single ones.

    Returns output -> batch axis. None if an output differs or has no batch axis, or a model does
    not run. Inputs are random.
    """
    names = ir.get_output_names(model)
    batched = _batched_inputs(model)
    feed, second_feed = _make_random_feed(model, 1), _make_random_feed(model, 2)
    doubled_feed = dict(feed)
    for name, spec in batched.items():
        doubled_feed[name] = np.concatenate([feed[name], second_feed[name]], spec.axis)
    samples = sorted({*range(min(size, 4)), size - 1})
    try:
        runner = FloatRunner(trial, names)
        original = FloatRunner(model, names)
        expected, second = _run_feed(original, feed), _run_feed(original, second_feed)
        doubled = _run_feed(runner, doubled_feed)
        single = {
            sample: _run_feed(runner, _slice_feed(feed, batched, sample)) for sample in samples
        }
    except ModelError:
        return None
    axes: dict[str, int] = {}
    for name, array in expected.items():
        single_outputs = [(sample, outputs[name]) for sample, outputs in single.items()]
        both = (array, second[name])
        axis = _find_batch_axis(both, doubled[name], single_outputs, size)
        if axis is None:
            return None
        axes[name] = axis
    return axes


def _slice_feed(feed: _Feed, batched: Mapping[str, InputSpec], sample: int) -> _Feed:
    """Return `feed` (input -> array) with sample `sample` only of the inputs in `batched`.

    Other inputs are unchanged; the batch axis stays, with size 1.
    """
    return {
        name: batched[name].slice_samples(array, sample, sample + 1) if name in batched else array
        for name, array in feed.items()
    }


def _find_batch_axis(
    both: tuple[np.ndarray, np.ndarray],
    doubled: np.ndarray,
    single: Sequence[tuple[int, np.ndarray]],
    size: int,
) -> int | None:
    """Return the batch axis of an output, or None if its results are not consistent.

    Parameters
    ----------
    both
        Outputs of the original model for `size` samples, and for as many others.
    doubled
        Output of the new model for all of them.
    single
        (index, output) of the new model for single samples.
    size
        Batch size of the original model.
    """
    axis = _find_grown_axis(both[0], doubled)
    if axis is None:
        return None
    array, second, doubled = (np.moveaxis(output, axis, 0) for output in (*both, doubled))
    rows = len(array) // size
    if axis and rows != 1:  # on an inner axis, several rows per sample are time or positions
        return None
    if len(array) % size or len(doubled) != 2 * len(array):
        return None
    if not _is_close(doubled[: len(array)], array):
        return None
    if not _is_close(doubled[len(array) :], second):
        return None
    for index, sample in single:
        expected = array[index * rows : (index + 1) * rows]
        if sample.ndim != array.ndim or not _is_close(np.moveaxis(sample, axis, 0), expected):
            return None
    return axis


def _find_grown_axis(array: np.ndarray, doubled: np.ndarray) -> int | None:
    """Return the only axis along which the sizes of both arrays differ.

    None if the ranks differ, or if no axis or several axes differ.
    """
    if array.ndim != doubled.ndim:
        return None
    sizes = zip(array.shape, doubled.shape, strict=True)
    axes = [axis for axis, (size, doubled_size) in enumerate(sizes) if size != doubled_size]
    return axes[0] if len(axes) == 1 else None


def _run_feed(runner: FloatRunner, feed: _Feed) -> _Feed:
    """Return output name -> array of a run on `feed`."""
    return {name: array for name, array, _ in runner.run(feed)}


def _is_close(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Whether both arrays have the same shape and differ by at most `_TOLERANCE` times a scale.

    The scale is the largest finite magnitude in `expected` (at least 1e-30). NaN equals NaN.
    """
    if actual.shape != expected.shape:
        return False
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    scale = max(float(np.abs(b[np.isfinite(b)]).max(initial=0.0)), 1e-30)
    return bool(np.allclose(a, b, rtol=0, atol=_TOLERANCE * scale, equal_nan=True))
