"""Second and third stage: what calibration sees, and a scale for every tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...errors import ConfigError, nearest
from ...graph import ir
from ...ops import float_op
from ...passes import left_out, strict
from ...plan import Plan, Transform
from ...plan.synthetic import is_synthetic
from ...qdq.read import Read
from ...run.data import Progress
from ...run.memory import bytes_per_sample, piece, release
from ...run.runners import FloatRunner
from ...targets import Target
from ..assign.choice import chosen
from ..assign.imported_scales import Taken, activation_scales, costs, summary, weight_scales
from ..assign.imported_weights import Borrowed, borrowed_weights, follow, refusals, told
from ..assign.scales import Choice, TieClass, UnheldScale, assign, legalize, soft_rows, tie_classes, tops
from ..lower import check_zero_points
from ..methods import factors
from ..methods.cell_clipping import cell_notes
from ..methods.clipping import costly_cuts
from ..methods.equalize import Channels, equalize
from ..methods.host_scale import free_borders, multiplied, settle
from ..methods.ranges import range_factors
from ..methods.refine import compared_at, refinable
from ..observe.constant_inputs import Watched
from ..observe.statistics import TensorStats, observe
from ..partition import Partition
from ..prepare.preparation import Prepared
from ..prepare.rewriter import Changed, check_same
from ..prepare.states import wide_states

__all__ = ["Basis", "Observed", "Planned", "assign_scales", "observe_model", "plan_for", "take_over", "take_up"]

_OUTPUT_SAMPLES = 64  # enough to see at the outputs what a scale costs
_EQUALIZE_SAMPLES = 64  # enough for the ranges of channels


@dataclass(frozen=True)
class Observed:
    """The prepared model after calibration.

    parts : what becomes integer of it, channels equalized. even : {tensor: factors [C]} of that. stats : of every
    tensor that becomes integer. channels : of these before that, per channel, where equalizing asked.
    soft : the tensors that Softmaxes alone read, of which only what has a share was counted. ties : who shares a scale.
    """

    prepared: Prepared
    parts: Partition
    even: Mapping[str, np.ndarray]
    stats: Mapping[str, TensorStats]
    notes: Sequence[str]
    channels: Mapping[str, Channels] = field(default_factory=dict)
    soft: Mapping[str, int] = field(default_factory=dict)
    ties: Sequence[TieClass] = ()


@dataclass(frozen=True)
class Basis:
    """What a plan was made from.

    stats : of the activations on the calibration data. choice : how scales were chosen from these; None, and no stats,
    where the plan was made elsewhere.
    """

    stats: Mapping[str, TensorStats] = field(default_factory=dict)
    choice: Choice | None = None


@dataclass(frozen=True)
class Planned:
    """What becomes integer, ranges moved into the weights, and the plan it will be lowered under.

    ranges : {tensor: smallest and largest value on the calibration data}; empty where the plan was made elsewhere.
    observed : what the scales were chosen from; None where the plan was made elsewhere.
    taken : the scales that came with the model, or with a plan of another tool. refused : {what such a plan speaks of:
    why its scale is not taken}.
    """

    prepared: Prepared
    parts: Partition
    plan: Plan
    notes: Sequence[str]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    basis: Basis = field(default_factory=Basis)
    observed: Observed | None = None
    taken: Sequence[Taken] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def graph(self) -> ir.Graph:
        """The float graph that the plan speaks of."""
        return self.parts.graph

    @cached_property
    def runner(self) -> FloatRunner:
        """What runs the float graph: its outputs, and those of the layers that `refined` works on."""
        outputs = {str(v.name) for v in self.graph.graph.outputs}
        return FloatRunner(self.graph, outputs | refinable(self.parts).keys())

    @cached_property
    def summing(self) -> FloatRunner:
        """What runs the float graph for methods that look at sums as well: what `runner` has, and what is added."""
        return FloatRunner(self.graph, compared_at(self.parts))


def plan_for(
    prepared: Prepared, plan: Plan | None = None, progress: Progress | None = None, before: Observed | None = None
) -> Planned:
    """Return `prepared` under scales that calibration finds, or under the given `plan` made elsewhere.

    before : as for `observe_model`.
    """
    if plan is not None:
        found = take_over(prepared, plan)
    elif prepared.read is not None:
        found = take_up(prepared, prepared.read, progress)
    else:
        found = assign_scales(observe_model(prepared, progress, before))
    try:
        _check(found)
    except Changed as wrong:
        if plan is not None or prepared.read is not None or strict():
            raise
        found = _without_factors(prepared, progress, wrong)
    return found


def _check(found: Planned) -> None:
    """Raise `Changed` where the graph that the plan speaks of is another function than the user's."""
    outputs = [str(v.name) for v in found.prepared.original.graph.outputs]
    check_same(found.prepared.source, found.runner, outputs, found.prepared.data.first())


def _without_factors(prepared: Prepared, progress: Progress | None, wrong: Changed) -> Planned:
    """Plan again and move no ranges into weights, which gave something `wrong`; the notes say so."""
    found = replace(assign_scales(observe_model(prepared.without_effort, progress)), prepared=prepared)
    _check(found)
    return replace(found, notes=[left_out("of ranges into weights", f"with it, {wrong}"), *found.notes])


def observe_model(prepared: Prepared, progress: Progress | None = None, before: Observed | None = None) -> Observed:
    """Equalize the channels where effort allows, and run the calibration data once.

    before : what was seen of the same graph on the same data, where less was left to the host; it is taken over for the
    tensors whose factors are the same now.
    """
    target, conf = prepared.target, prepared.conf
    parts = prepared.parts.on(ir.clone(prepared.graph))
    few = piece(bytes_per_sample(parts.graph), conf.batch, conf.budget)
    even: Mapping[str, np.ndarray] = {}
    notes: list[str] = []
    channels = {} if before is None else dict(before.channels)
    if conf.effort != "fast":
        feeds = prepared.data.first(piece(prepared.input_bytes, _EQUALIZE_SAMPLES, conf.budget))
        pieces = list(prepared.data.pieces(feeds, few))
        even = equalize(parts, pieces, _choice(prepared, parts), prepared.runner, channels)
        wide = wide_states(parts, conf.state, target) if conf.bits < 16 else parts.activations
        notes += cell_notes(parts, target, feeds, wide)
    done = 0

    def count(samples: int) -> None:
        nonlocal done
        done += samples
        if progress is not None:
            progress("calibrating", done, None)

    soft = soft_rows(parts)
    names, runner, factors_left = set(parts.activations), prepared.runner, even
    if even and conf.mode == "max-value":  # there scales are read off to the last bit
        runner, factors_left = FloatRunner(parts.graph, names), {}
    known = {} if before is None or runner is not prepared.runner else _alike(before, even, soft)
    watched = Watched(() if prepared.synthetic else prepared.data.inputs.values(), conf.state.values())
    batches = watched.of(prepared.data.batches(few))
    stats = observe(runner, batches, names, factors=factors_left, known=known, soft=soft, on_batch=count)
    release()
    alike = before is not None and before.parts.floats == parts.floats
    ties = before.ties if before is not None and alike else tie_classes(parts, target)
    return Observed(prepared, parts, even, stats, [*notes, *watched.notes()], channels, soft, ties)


def _alike(before: Observed, even: Mapping[str, np.ndarray], soft: Mapping[str, int]) -> dict[str, TensorStats]:
    """Return the statistics of the tensors whose factors were those of `even`, and whose Softmaxes those of `soft`."""
    one = np.ones(1)
    return {
        name: stats
        for name, stats in before.stats.items()
        if np.array_equal(before.even.get(name, one), even.get(name, one)) and before.soft.get(name) == soft.get(name)
    }


def assign_scales(seen: Observed) -> Planned:
    """Give every tensor the scale its calibrator likes best, after moving ranges into the weights around it."""
    target, conf, parts = seen.prepared.target, seen.prepared.conf, seen.parts.on(ir.clone(seen.parts.graph))
    ties, choice = seen.ties, _choice(seen.prepared, parts)
    host, alike = free_borders(parts, ties, seen.stats, target, choice)
    stats = {**seen.stats, **{new: seen.stats[name] for new, name in alike.items()}}
    if host:
        parts = parts.with_floats(host)
        ties, choice = tie_classes(parts, target), _choice(seen.prepared, parts)
    ranged = range_factors(
        parts,
        ties,
        stats,
        target,
        choice=choice,
        search=conf.mode == "q-value" and conf.effort != "fast",
        by_channel=conf.weight_scales == "channel",
    )
    factors.apply(parts, ranged)
    settle(parts.graph, host, ranged)
    scaled = {name: s.scaled(float(ranged[name][0])) if name in ranged else s for name, s in stats.items()}
    parts, plan, notes = _assign(parts, ties, scaled, target, choice, conf.require_chip)
    if conf.effort != "fast":
        pieces = _samples(seen.prepared)
        less = costly_cuts(parts, plan, ties, scaled, choice, pieces, lambda: _given(seen.prepared, pieces))
        release()
        choice = choice.with_scales(less)
        if less:
            parts, plan, notes = _assign(parts, ties, scaled, target, choice, conf.require_chip)
            notes = [*notes, *(f"'{name}' keeps its largest values: an output is made of them" for name in less)]
    both = factors.combine(seen.even, ranged)
    changed = {name: Transform(tuple(map(float, f))) for name, f in both.items()}
    plan = replace(plan, transforms=changed, scaled=alike, synthetic=seen.prepared.synthetic)
    ranges_seen = {name: (s.low, s.high) for name, s in scaled.items()}
    if conf.bits < 16 and (wide := wide_states(parts, conf.state, target)):
        notes = [f"{len(wide)} tensors and weights that states are made of are held in 16 bits", *notes]
    return Planned(seen.prepared, parts, plan, [*seen.notes, *notes], ranges_seen, Basis(scaled, choice), seen)


def _choice(prepared: Prepared, parts: Partition) -> Choice:
    """Return how the scales of `parts` are chosen."""
    conf = prepared.conf
    wide = wide_states(parts, conf.state, prepared.target) if conf.bits < 16 else []
    return chosen(prepared.selectors(parts.graph), parts.ops, conf, wide)


def _samples(prepared: Prepared) -> list[dict[str, np.ndarray]]:
    """Return pieces of some calibration samples, few enough that their outputs can be kept."""
    shapes = [ir.shape(value) or () for value in prepared.graph.graph.outputs]
    outputs = sum(8 * math.prod(int(d or 1) for d in shape[1:]) for shape in shapes)
    budget = prepared.conf.budget
    feeds = prepared.data.first(piece(prepared.input_bytes + outputs, _OUTPUT_SAMPLES, budget))
    return list(prepared.data.pieces(feeds, prepared.few))


def _given(prepared: Prepared, pieces: Sequence[Mapping[str, np.ndarray]]) -> list[Mapping[str, np.ndarray]]:
    """Return the outputs of the user's model for the first calibration samples, in pieces."""
    return [prepared.reference.outputs("first", number, feed) for number, feed in enumerate(pieces)]


def _assign(
    parts: Partition,
    ties: Sequence[TieClass],
    stats: Mapping[str, TensorStats],
    target: Target,
    choice: Choice,
    strict: bool,
) -> tuple[Partition, Plan, list[str]]:
    """Return the plan; what needs a scale that `target` does not hold goes to float first, unless `strict`."""
    while True:
        try:
            return parts, *assign(parts, ties, stats, target, choice)
        except UnheldScale as error:
            if strict or any("scale" in choice.own.get(name, {}) for name in error.tensors):
                raise
            why = f"it needs a scale of 2^{error.exponent}, {target.name} holds 2^{error.least} at least"
            kept = parts.touching(error.tensors)
            parts = parts.without(dict.fromkeys(kept, why))
            ties = tie_classes(parts, target)


# ---- scales that came with the model -----------------------------------------------------------------------------


def take_up(prepared: Prepared, read: Read, progress: Progress | None = None) -> Planned:
    """Hold tensors as a quantized model held them, as near as the platform comes; calibrate those it has no scale for.

    Weights stay as they are: no range is moved into them but where a Clip needs it. Those of a float model with another
    tool's plan are rounded at its scales.
    """
    target, conf = prepared.target, prepared.conf
    parts = prepared.parts.on(ir.clone(prepared.graph))
    ties = tie_classes(parts, target)
    known = [any(name in read.activations for name in group.tensors) for group in ties]
    missing = [group.tensors[-1] for group, told in zip(ties, known, strict=True) if not told]
    stats: Mapping[str, TensorStats] = {}
    if missing or not prepared.synthetic:
        stats = observe_model(prepared.without_effort, progress).stats
    own = chosen(prepared.selectors(parts.graph), parts.ops, conf, ())
    ranged = range_factors(parts, ties, {}, target, choice=own, search=False)
    factors.apply(parts, ranged)
    scaled = {name: s.scaled(float(ranged[name][0])) if name in ranged else s for name, s in stats.items()}
    real = {} if prepared.synthetic else scaled
    held, taken = activation_scales(read, ties, target, conf, real, ranged)
    weights, grids = weight_scales(read, parts, target, conf)
    lent = borrowed_weights(read, parts, target, conf) if read.tool else Borrowed()
    pinned = tops(parts, target)
    free = {n for group in ties if any(t in pinned or t in own.own for t in group.tensors) for n in group.tensors}
    kept = {name: q for name, q in {**held, **weights, **lent.held}.items() if name not in free and name not in own.own}
    parts, plan, notes = _assign(parts, ties, scaled, target, replace(own, held=kept), conf.require_chip)
    plan = replace(plan, transforms={name: Transform(tuple(map(float, f))) for name, f in ranged.items()})
    if read.tool:
        taken = follow([*taken, *lent.taken], plan.tensors)
        refused = refusals(read, taken, lent)
        lines = told(read.tool, taken, refused, missing, prepared.synthetic, conf.notes == "full")
    else:
        taken, refused = [*taken, *costs(parts, plan.tensors, grids)], {}
        lines = summary(taken, missing, prepared.synthetic, conf.notes == "full")
    seen = {name: (s.low, s.high) for name, s in scaled.items()}
    plan = replace(plan, synthetic=is_synthetic(prepared.original) or (prepared.synthetic and bool(missing)))
    return Planned(prepared, parts, plan, [*lines, *notes], seen, taken=taken, refused=refused)


# ---- a plan made elsewhere ---------------------------------------------------------------------------------------


def take_over(prepared: Prepared, plan: Plan) -> Planned:
    """Apply the transforms of a plan made elsewhere and legalize it.

    Raises ConfigError for what the graph or the platform does not have.
    """
    graph, target = ir.clone(prepared.graph), prepared.target
    host = _with_products(plan, graph, target)
    _check_names(plan, graph)
    _check_values(plan, graph, target)
    _check_kinds(plan, graph, target)
    if plan.mode != prepared.conf.mode:
        raise ConfigError(f"the plan was made for mode {plan.mode}, not {prepared.conf.mode}; give --mode {plan.mode}")
    parts = Partition.of(graph, plan.floats, target)
    _check_whole(plan, parts, target)
    check_zero_points(plan, parts, target)
    given = {name: np.array(t.factor) for name, t in plan.transforms.items()}
    factors.apply(parts, given)
    settle(graph, host, given)
    plan, moves = legalize(plan, parts, tie_classes(parts, target), target)
    return Planned(prepared, parts, plan, moves)


def _with_products(plan: Plan, graph: ir.Graph, target: Target) -> dict[str, str]:
    """Put the products of the host into `graph` that the plan speaks of; return {node: why}."""
    if not plan.scaled:
        return {}
    ops = {str(node.name): op for node in graph.graph if (op := float_op(node, target)[0]) is not None}
    inside = {name: op for name, op in ops.items() if name not in plan.floats}
    host, alike = multiplied(Partition(graph, inside, plan.floats), set(plan.scaled.values()))
    if alike != plan.scaled or not host.keys() <= plan.floats.keys():
        wanted, made = (", ".join(f"'{new}' for '{name}'" for new, name in of.items()) for of in (plan.scaled, alike))
        raise ConfigError(
            f"the plan has the host scale {wanted}; this model takes {made or 'nothing'}: make the plan from this model"
        )
    return host


def _check_names(plan: Plan, graph: ir.Graph) -> None:
    known = {*(str(v.name) for v in ir.values(graph)), *graph.graph.initializers, *(str(n.name) for n in graph.graph)}
    for name in (*plan.tensors, *plan.transforms, *plan.floats):
        if name not in known:
            raise ConfigError(f"the plan speaks of '{name}', which this model has not{nearest(name, known)}")


def _check_whole(plan: Plan, parts: Partition, target: Target) -> None:
    """Raise ConfigError for a tensor or a weight without a scale; only an output that leaves the integers has none."""
    free = parts.wide_outputs(target)
    weights = [ir.read_name(node, index) for node, op in parts.nodes for index in op.parameters(node)]
    for name in (*parts.activations, *weights):
        if name not in plan.tensors and name not in free:
            raise ConfigError(
                f"the plan has no scale for '{name}', which becomes integer; add it, or name its node among the floats"
            )


def _check_kinds(plan: Plan, graph: ir.Graph, target: Target) -> None:
    """Raise ConfigError for scales per channel and zero points where `target` has none or no weight is."""
    axes = {
        ir.read_name(node, index): (op.format.channel_axis, ir.shape(node.inputs[index]))
        for node in graph.graph
        if (op := float_op(node, target)[0]) is not None
        for index in op.parameters(node)
    }
    for name, q in plan.tensors.items():
        if q.shifted and not target.zero_points:
            raise ConfigError(
                f"the plan holds '{name}' with zero point {int(q.zero_points.max())}; {target.name} takes 0 only"
            )
        if q.single:
            continue
        if "channel" not in target.weight_scales:
            raise ConfigError(
                f"the plan has {q.scales.size} scales for '{name}'; on {target.name} a weight has one scale per "
                f"{' or '.join(target.weight_scales)}"
            )
        axis, shape = axes.get(name, (None, None))
        if axis is None or shape is None or axis != q.axis or shape[axis] != q.scales.size:
            raise ConfigError(
                f"the plan has {q.scales.size} scales along axis {q.axis} for '{name}'; "
                + ("it takes one scale" if axis is None or shape is None else f"it has {shape[axis]} along axis {axis}")
            )


def _check_values(plan: Plan, graph: ir.Graph, target: Target) -> None:
    for name, q in plan.tensors.items():
        if q.bits not in {*target.bits, *target.out_bits, *target.curve_bits}:
            raise ConfigError(
                f"the plan holds '{name}' in {q.bits} bits; {target.name} computes in "
                f"{', '.join(map(str, target.bits))} bits only"
            )
    values = {str(v.name): v for v in ir.values(graph)}
    for name, transform in plan.transforms.items():
        shape = ir.shape(values[name]) if name in values else None
        channels = None if shape is None or len(shape) < 2 else shape[1]
        fits = len(transform.factor) in (1, channels) and all(0 < f < float("inf") for f in transform.factor)
        if not fits:
            raise ConfigError(
                f"the plan's transform of '{name}' does not fit: {len(transform.factor)} factors for "
                f"{channels} channels; factors are positive"
            )
