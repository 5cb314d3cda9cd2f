"""A batch size that the file fixes becomes a dynamic one.

Calibration and comparison run many samples, chips one.
The batch is axis 0 of the inputs (of what recurrent layers read time first, axis 1) where all of
them have the same size N there; the axes other than 0 go into the model's metadata (`batch_axes`).
Its inputs are declared dynamic, Reshape targets and Expand shapes that spell N out are rewritten
from a run on N samples, constants of N equal rows keep one, zero initial states of recurrent layers
go. Then the new model must give, on N samples and on single ones, what the old one gives. Where it
does not: a model for one sample stays as it is; a ModelError for another N.

Where the batch is on axis 0 by default alone and that does not hold, other axes of size 1 are tried
out.

A file may leave the batch open and yet hold a Reshape to sizes, or states of a recurrent layer,
that only one sample has: where the model runs on one sample and not on two, it is taken as one that
fixes 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ...errors import ModelError
from ...graph import ir, operators
from ...graph.batch_axes import BATCH_AXES_KEY, set_batch_axes, store_inferred_batch_axes
from ...run.data import InputSpec
from ...run.runners import FloatRunner, get_input_specs
from .._pass import PassResult, SkipReason
from ..axes.constant_concat import rewrite_concat_as_pad_add
from ..folding.constants import fold_constants
from ..folding.zero_states import drop_zero_states

_Feed = dict[str, np.ndarray]
_MAX_INPUT_ELEMENTS = 1 << 24  # elements of one input: a larger one is not tried out
_MAX_AXIS_TRIALS = 8  # places of the batch axes that are tried
_TOLERANCE = 1e-3  # of the output's range, as for the whole normalisation


def make_batch_dynamic(model: ir.Model) -> PassResult:
    """Make the batch axis of `model` dynamic: one change when it was fixed and is no more."""
    told = BATCH_AXES_KEY in model.metadata_props
    store_inferred_batch_axes(model)
    specs = get_input_specs(model)
    size = _common_batch_size(specs)
    if size is None and _requires_single_sample(model, specs):
        _declare_single_sample(model)
        specs, size = get_input_specs(model), 1
    if size is None:
        return PassResult(0, _explain_mixed_batch_sizes(model, specs))
    small = _is_small_enough(specs)
    for inside in (False, True):
        trial = ir.clone(model)
        if (
            small
            and _apply_dynamic_batch(trial, size, inside)
            and (grow := _compare_with_original(model, trial, size))
        ):
            _apply_dynamic_batch(model, size, inside, grow)
            return PassResult(1)
    if not told and _free_batch_by_trial(model, specs):
        return PassResult(1)
    if size == 1:
        open_ones = "its inputs have open sizes or are too large to try"
        what = "its outputs do not follow the samples" if small else open_ones
        return PassResult(0, [SkipReason(None, f"made for one sample; {what}")])
    raise ModelError(
        f"the model is made for batches of {size} and its samples cannot be told apart; export it "
        "with a dynamic "
        "batch axis, or for one sample"
    )


def _is_small_enough(specs: Sequence[InputSpec]) -> bool:
    """Whether all sizes are known, and small enough to try out."""
    known = all(
        s.shape is not None and None not in s.shape and s.dtype.kind in "fiub" for s in specs
    )
    return known and all(
        math.prod(int(d or 1) for d in s.shape or ()) <= _MAX_INPUT_ELEMENTS for s in specs
    )


def _free_batch_by_trial(model: ir.Model, specs: Sequence[InputSpec]) -> bool:
    """Free the batch of `model`, which is not on axis 0 of all inputs, where it is found: by trial.

    Unrolled cells take [T, 1, I], or [T, N, I], and nothing in the graph tells which axis is time.
    Axes of size 1 are tried, and the only open one.
    """
    names = [spec.name for spec in specs if spec.axis is not None]
    choices = [_candidate_batch_axes(spec) for spec in specs if spec.axis is not None]
    if not choices or math.prod(map(len, choices)) > _MAX_AXIS_TRIALS:
        return False
    known_axes = tuple(spec.axis for spec in specs if spec.axis is not None)
    for axes in itertools.product(*choices):
        if axes == known_axes:
            continue
        one = ir.clone(model)
        set_batch_axes(one, dict(zip(names, axes, strict=True)))
        _declare_single_sample(one)
        trial = ir.clone(one)
        if (
            _is_small_enough(get_input_specs(one))
            and _apply_dynamic_batch(trial, 1)
            and (grow := _compare_with_original(one, trial, 1))
        ):
            set_batch_axes(model, dict(zip(names, axes, strict=True)))
            _declare_single_sample(model)
            _apply_dynamic_batch(model, 1, output_batch_axes=grow)
            return True
    return False


def _candidate_batch_axes(spec: InputSpec) -> list[int]:
    """Return the axes of an input that may count its samples.

    Of size 1, or open alone behind a fixed axis 0.
    """
    shape = spec.shape or ()
    if None in shape:
        return [shape.index(None)] if shape.count(None) == 1 and shape[0] != 1 else []
    return [axis for axis, size in enumerate(shape) if size == 1]


def _common_batch_size(specs: Sequence[InputSpec]) -> int | None:
    """Return N where the batch axis of all inputs is the same number, else None."""
    sizes = {s.shape[s.axis] if s.shape else None for s in specs if s.axis is not None}
    return sizes.pop() if len(sizes) == 1 else None


def _explain_mixed_batch_sizes(model: ir.Model, specs: Sequence[InputSpec]) -> list[SkipReason]:
    """Return why no batch size can be told: some inputs fix one, and not all the same."""
    sizes = {s.name: s.shape[s.axis] if s.shape else None for s in specs if s.axis is not None}
    if len(set(sizes.values())) < 2:
        return []
    return [
        SkipReason(
            value,
            (
                f"made for {'any number of' if (size := sizes[value.name]) is None else size} "
                "samples, "
                "unlike others"
            ),
        )
        for value in model.graph.inputs
        if value.name in sizes
    ]


def _requires_single_sample(model: ir.Model, specs: Sequence[InputSpec]) -> bool:
    """Whether `model`, whose inputs leave the number of samples open, runs on one sample and not on two."""
    targets = [
        ir.const_value(n.inputs[1]) for n in model.graph if n.op_type == "Reshape" and not n.domain
    ]
    states = (
        v
        for n in model.graph
        if n.op_type in operators.RECURRENT_OPS and not n.domain
        for v in n.inputs[5:7]
    )
    written_out = any(v is not None and not v.is_graph_input() for v in states)
    if not written_out and not any(target is not None and (target > 0).all() for target in targets):
        # every Reshape follows what it is given, and no layer begins with states for one sample
        return False
    for spec in specs:
        shape = spec.shape or ()
        if any(d is None for i, d in enumerate(shape) if i != spec.axis) or (
            spec.axis is not None and not shape
        ):
            return False
        if math.prod(int(d or 1) for d in shape) > _MAX_INPUT_ELEMENTS:
            return False
    runner, feed = (
        FloatRunner(model, [str(v.name) for v in model.graph.outputs]),
        _make_random_feed(model, 0),
    )
    batched = _batched_inputs(model)
    try:
        _run_feed(runner, feed)
    except ModelError:
        return False
    try:
        _run_feed(
            runner,
            {
                n: np.repeat(a, 2, batched[n].axis or 0) if n in batched else a
                for n, a in feed.items()
            },
        )
    except ModelError:
        return True
    return False


def _declare_single_sample(model: ir.Model) -> None:
    """Declare the inputs of `model` to hold one sample."""
    axes = {name: spec.axis for name, spec in _batched_inputs(model).items()}
    for value in model.graph.inputs:
        if (axis := axes.get(str(value.name))) is not None:
            value.shape = ir.make_shape(
                [1 if i == axis else d for i, d in enumerate(ir.get_shape(value) or ())]
            )


def _batched_inputs(model: ir.Model) -> dict[str, InputSpec]:
    """Return the inputs that count samples."""
    return {spec.name: spec for spec in get_input_specs(model) if spec.axis is not None}


def _make_random_feed(model: ir.Model, seed: int) -> _Feed:
    rng = np.random.default_rng(seed)
    feed = {}
    for spec in get_input_specs(model):
        size = tuple(int(d or 1) for d in spec.shape or ())
        feed[spec.name] = (
            rng.standard_normal(size).astype(spec.dtype)
            if spec.dtype.kind == "f"
            else np.zeros(size, spec.dtype)
        )
    return feed


def _apply_dynamic_batch(
    model: ir.Model,
    size: int,
    allow_inner_batch: bool = False,
    output_batch_axes: Mapping[str, int] = MappingProxyType({}),
) -> bool:
    """Rewrite what spells N out; False where the model does not run on synthetic inputs.

    allow_inner_batch : see `_reshape_batch_axis`. grow : {output: the axis of its samples}; the
    shapes of others are told by nobody.
    """
    fold_constants(model)
    runner = FloatRunner(model)
    try:
        shapes = {name: array.shape for name, array, _ in runner.run(_make_random_feed(model, 0))}
    except ModelError:
        return False
    drop_zero_states(model)
    for node in list(model.graph):
        if node.domain:
            continue
        if node.op_type == "Reshape":
            _make_reshape_dynamic(model, node, size, shapes, allow_inner_batch)
        elif node.op_type in operators.RECURRENT_OPS and size == 1:
            _make_states_dynamic(model, node)
        elif node.op_type == "Expand":
            _make_expand_dynamic(model, node, size, shapes)
        elif node.op_type == "Concat" and size == 1:
            rewrite_concat_as_pad_add(model, node, shapes.get(ir.output_name(node), ()))
        elif size > 1:
            _deduplicate_constant_rows(model, node, size, shapes)
    axes = {name: spec.axis for name, spec in _batched_inputs(model).items()}
    for value in model.graph.inputs:
        if (axis := axes.get(str(value.name))) is not None:
            value.shape = ir.make_shape(
                ["N" if i == axis else d for i, d in enumerate(ir.get_shape(value) or (None,))]
            )
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    for value in model.graph.outputs:
        dims, axis = shapes.get(str(value.name), ()), output_batch_axes.get(str(value.name))
        if value.const_value is None and not value.is_graph_input():
            free = "N" if axis is not None and dims[axis] == size else None
            told = bool(dims) and axis is not None
            value.shape = (
                ir.make_shape([free if i == axis else d for i, d in enumerate(dims)])
                if told
                else None
            )
    return True


def _make_reshape_dynamic(
    model: ir.Model, node: ir.Node, size: int, shapes: Mapping[str, tuple[int, ...]], inside: bool
) -> None:
    """Write the target with 0 or -1 where the batch is.

    On axis 0, or, where that is something else, behind it.
    """
    before, after = (shapes.get(n, ()) for n in (ir.input_name(node), ir.output_name(node)))
    target = ir.const_value(node.inputs[1])
    if target is None or not before or not after or 0 in (*before, *after):
        return
    node.attributes.pop("allowzero", None)  # the 0 of the target means "as before"
    at = _reshape_batch_axis(before, after, size, inside)
    if at:
        array = np.array([*after[:at], -1, *after[at + 1 :]], np.int64)
    else:  # an axis 0 of more than the one sample has the batch folded into it
        same = before[0] == after[0] and (size > 1 or before[0] == 1)
        array = np.array([0 if same else -1, *after[1:]], np.int64)
    ir.set_constant_input(model, node, 1, array, "free")


def _reshape_batch_axis(
    before: tuple[int, ...], after: tuple[int, ...], size: int, inside: bool
) -> int:
    """Return the axis of a Reshape's result that the batch is on, or folded into.

    inside : a batch of one sample behind the first axis is folded into the axis in its place, as
    the heads of attention are, [T, 1, E] to [T, 1*H, D]; not into the last one.
    """
    if (
        before[0] % size
        and size in after[1:]
        or (size == 1 and before[0] == after[0] != 1 and 1 in after[1:])
    ):
        return after.index(size, 1)
    if not (inside and size == 1 and 1 in before[1:] and before[0] != 1):
        return 0
    at = before.index(1, 1)
    return at if before[:at] == after[:at] and at < len(after) - 1 else 0


def _make_expand_dynamic(
    model: ir.Model, node: ir.Node, size: int, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    target, source = ir.const_value(node.inputs[1]), shapes.get(ir.input_name(node), ())
    if target is not None and len(target) == len(source) and target[0] == size == source[0]:
        ir.set_constant_input(model, node, 1, np.array([1, *target[1:]], np.int64), "free")


def _make_states_dynamic(model: ir.Model, node: ir.Node) -> None:
    """Repeat constant initial states [D, 1, H] of a layer that reads [T, N, I] for each of N samples."""
    if ir.get_attr(node, "layout", 0):
        return
    for index in range(5, min(len(node.inputs), 7)):
        array = ir.const_value(node.inputs[index])
        if array is not None and array.ndim == 3 and array.shape[1] == 1:
            node.replace_input_with(index, _repeat_state_per_sample(model, node, index, array))


def _repeat_state_per_sample(
    model: ir.Model, node: ir.Node, index: int, array: np.ndarray
) -> ir.Value:
    """Return the state `array`, input `index` of `node`, repeated as often as its first input has samples."""
    name = ir.input_name(node, index)

    def constant(*values: int) -> ir.Value:
        return ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{name}_size"), np.array(values, np.int64)
        )

    def add(op_type: str, what: str, inputs: list[ir.Value | None], **attributes: int) -> ir.Value:
        output = ir.unique_tensor_name(model, f"{name}_{what}")
        new = ir.make_node(
            op_type, inputs, attributes, origin=node, suffix=f"{what}{index}", output=output
        )
        model.graph.insert_before(node, new)
        return new.outputs[0]

    samples = add("Gather", "rows", [add("Shape", "sizes", [node.inputs[0]]), constant(1)], axis=0)
    shape = add(
        "Concat", "all", [constant(array.shape[0]), samples, constant(array.shape[2])], axis=0
    )
    return add("Expand", "each", [node.inputs[index], shape])


def _deduplicate_constant_rows(
    model: ir.Model, node: ir.Node, size: int, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Keep one of N equal rows of a constant operand that broadcasts."""
    if node.op_type not in operators.AFFINE_OPS:
        return
    for index, value in enumerate(node.inputs):
        array = ir.const_value(value)
        full = len(shapes.get(ir.output_name(node), ()))
        if (
            array is not None
            and full
            and array.ndim == full
            and len(array) == size
            and (array == array[:1]).all()
        ):
            ir.set_constant_input(model, node, index, array[:1], "row")


def _compare_with_original(model: ir.Model, trial: ir.Model, size: int) -> dict[str, int] | None:
    """Return {output: the axis along which samples follow each other}.

    None where `trial` gives something else.
    It must give what `model` gives on N samples, and on each of them alone.
    """
    names = [str(v.name) for v in model.graph.outputs]
    batched = _batched_inputs(model)
    some = sorted({*range(min(size, 4)), size - 1})
    feed = _make_random_feed(model, 1)
    others = {
        name: np.concatenate([array, _make_random_feed(model, 2)[name]], batched[name].axis)
        if name in batched
        else array
        for name, array in feed.items()
    }
    try:
        new = FloatRunner(trial, names)
        want = _run_feed(FloatRunner(model, names), feed)
        twice = _run_feed(new, others)
        alone = [
            _run_feed(
                new,
                {
                    n: batched[n].slice_samples(a, i, i + 1) if n in batched else a
                    for n, a in feed.items()
                },
            )
            for i in some
        ]
    except ModelError:
        return None
    axes = {
        name: _find_batch_axis(
            array, twice[name], [(i, run[name]) for i, run in zip(some, alone, strict=True)], size
        )
        for name, array in want.items()
    }
    found = {name: axis for name, axis in axes.items() if axis is not None}
    return found if len(found) == len(axes) else None


def _find_batch_axis(
    array: np.ndarray, twice: np.ndarray, alone: Sequence[tuple[int, np.ndarray]], size: int
) -> int | None:
    """Return the axis of the samples where a batch twice as large and single samples give what `array` holds."""
    longer = [
        axis
        for axis in range(min(array.ndim, twice.ndim))
        if array.shape[axis] != twice.shape[axis]
    ]
    if array.ndim != twice.ndim or len(longer) != 1:
        return None
    array, twice = (np.moveaxis(a, longer[0], 0) for a in (array, twice))
    rows = len(array) // size
    if (
        longer[0] and rows != 1
    ):  # what lies behind one another there is time, or places, of all samples
        return None
    same = (
        len(array) % size == 0
        and len(twice) == 2 * len(array)
        and _is_close(twice[: len(array)], array)
        and all(
            one.ndim == array.ndim
            and _is_close(np.moveaxis(one, longer[0], 0), array[i * rows : (i + 1) * rows])
            for i, one in alone
        )
    )
    return longer[0] if same else None


def _run_feed(runner: FloatRunner, feed: _Feed) -> _Feed:
    return {name: array for name, array, _ in runner.run(feed)}


def _is_close(found: np.ndarray, want: np.ndarray) -> bool:
    if found.shape != want.shape:
        return False
    a, b = found.astype(np.float64), want.astype(np.float64)
    scale = max(float(np.abs(b[np.isfinite(b)]).max(initial=0.0)), 1e-30)
    return bool(np.allclose(a, b, rtol=0, atol=_TOLERANCE * scale, equal_nan=True))
