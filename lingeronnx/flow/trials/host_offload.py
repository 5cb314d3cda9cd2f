"""Where integers begin and end.

Fronts (spectra, logarithms) and tails (decoding of boxes) that the host may compute.
Eight bits are few for a power spectrum, or for positions within a picture. What a graph has of such
nodes before its first layers, or behind its last, is a candidate: the model is quantized both ways,
and the evidence decides. So are the cells of states that are fed back (`states.cells`), and their
gates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from ...errors import ConstraintError
from ...graph import ir, operators
from ...legalization.clip_bounds import LOWER_BOUND_KEY
from ...ops.macs import count_macs
from ...run.data import Progress
from ..planning.refinement import refine_weights
from ..planning.scale_sources import plan_model
from ..prepare.preparation import PreparedModel
from ..prepare.recurrent_states import find_cell_updates, find_gates, find_unrolled_steps
from ..report.candidate import Candidate, build_candidate
from ..report.report import split_float_nodes
from .evidence import clamp_sqnr_db, output_sqnr_levels
from .low_sqnr_nodes import select_low_sqnr_nodes_to_offload
from .verdict_log import log_verdict

__all__ = [
    "find_offload_candidates",
    "place_required_host_nodes",
    "select_required_host_nodes",
    "try_host_offload",
]

_FRONT_OPS = ("Div", "Log", "Pow", "Reciprocal", "Sqrt")
_TAIL_OPS = ("Exp", "NonMaxSuppression", "Pow", "Sqrt", "TopK")
_NONLINEAR_OPS = operators.ACTIVATION_OPS | {"Softmax"}
_MAX_FRONT_LAYERS = (
    1  # a front without a logarithm or a power may have: a transform written as a convolution
)
_MIN_GAIN_DB, _MAX_LOSS_DB = 3.0, 0.5  # dB that some output gains at least, and others lose at most
_MIN_CELL_GAIN_DB = 0.5  # dB: cells cost the host next to nothing
_MIN_GATE_GAIN_DB = 0.3  # dB of an output below the next
_MIN_WEAK_NODE_GAIN_DB = (
    0.5  # dB of such an output, where nodes leave of which the chip makes little by themselves
)
_MIN_SQNR_DB = (
    30.0  # dB: where an output or a part of it is below that, more is tried than the usual
)
_UNUSABLE_SQNR_DB = 10.0  # dB: an output below that has lost what it says
_MAX_PART_SQNR_DB = 60.0  # dB: what a part has beyond that is no loss

_NOT_TRIED_NOTE = "where the graph's ends are better in float was not tried, for {}: give {}"


def try_host_offload(best: Candidate, progress: Progress | None = None) -> Candidate:
    """Return `best`, or, where it is better, the same with its ends or cells in float.

    Only real data that can be read again are evidence; without them, or where no effort is to be
    spent, it is `best`, with a note where something would have been tried; so is what another tool
    has quantized.
    """
    prepared, conf = best.prepared, best.prepared.conf
    if prepared.read is not None or prepared.synthetic:
        return best
    lost = (
        min(output_sqnr_levels(best)) < _MIN_SQNR_DB,
        any(clamp_sqnr_db(part.sqnr) < _MIN_SQNR_DB for part in best.fidelity.parts),
    )
    several = _runs_in_parts(prepared)
    far, joined = (
        (False, False) if conf.state and not several else lost
    )  # of fed back states the cells are tried
    tries = [(end, _MIN_GAIN_DB) for end in find_offload_candidates(prepared.graph, far, joined)]
    if several and lost[0]:
        tries.insert(0, (_cheap_host_nodes(prepared), _MIN_CELL_GAIN_DB))
    if conf.cells == "auto":
        tries.append(
            (find_cell_updates(prepared.graph, conf.state, prepared.target), _MIN_CELL_GAIN_DB)
        )
    if conf.cells != "chip" and lost[0]:
        tries += [
            (find_gates(prepared.graph, conf.state, prepared.target, masks), _MIN_GATE_GAIN_DB)
            for masks in (False, True)
        ]
    tries = [(more, gain) for more, gain in tries if more.keys() - prepared.parts.floats.keys()]
    if conf.effort == "fast" or not prepared.data.is_rereadable:
        fast = conf.effort == "fast"
        why = (
            ("effort is fast", "--effort normal")
            if fast
            else ("the data are read once", "data that are held")
        )
        return best.with_notes([_NOT_TRIED_NOTE.format(*why)] if tries else ())
    kept = select_required_host_nodes(prepared)
    if several and lost[0]:  # before the others: what is lost there hides what they gain
        tries.insert(0, (select_low_sqnr_nodes_to_offload(best, progress), _MIN_WEAK_NODE_GAIN_DB))
    for more, gain in tries:
        if not more.keys() - kept.keys() - prepared.parts.floats.keys():
            continue
        host = {**kept, **more}
        # What is float stays so: behind what leaves it may look like work for the chip again, at
        # one end of it.
        offloaded = prepared.with_host_nodes({**prepared.parts.floats, **host})
        try:
            planned = plan_model(offloaded, None, progress, best.planned.calibration)
        except ConstraintError:  # with require_chip: a scale that the chip does not hold
            continue
        exact = refine_weights(
            planned, progress=progress, previous=(best.planned, best.float_graph)
        )
        other = build_candidate(offloaded, planned, exact, progress)
        if _is_better_placement(best, other, gain):
            best, kept = other, host
    return best


def select_required_host_nodes(prepared: PreparedModel) -> dict[str, str]:
    """Return {node: why} of what is the host's before anything is measured.

    All that is tried keeps it there.
    That is the cells that the user wants there; and of a model that runs in parts anyway, steps of
    little work.
    """
    conf, graph = prepared.conf, prepared.graph
    if conf.cells == "host":
        return {
            **(find_unrolled_steps(graph, True) if conf.state else {}),
            **find_cell_updates(graph, conf.state, prepared.target),
        }
    return find_unrolled_steps(graph) if conf.cells == "auto" and _runs_in_parts(prepared) else {}


def _runs_in_parts(prepared: PreparedModel) -> bool:
    """Whether float operators cut the chip's work, and layers may move.

    A little more on the host costs no part.
    What an end or a cell on the host would join to one part is not cut.
    """
    if not prepared.allows_layer_offload or not _has_float_between_integers(prepared):
        return False
    graph, joined = prepared.graph, dict[str, str]()
    for more in (
        *find_offload_candidates(graph, True, True),
        find_cell_updates(graph, prepared.conf.state, prepared.target),
    ):
        joined.update(more)
    return _has_float_between_integers(
        prepared.with_host_nodes({**prepared.parts.floats, **joined})
    )


def _has_float_between_integers(prepared: PreparedModel) -> bool:
    parts = prepared.parts
    return bool(split_float_nodes(parts.graph, parts.floats, parts.integer_node_ids)[0])


def _cheap_host_nodes(prepared: PreparedModel) -> dict[str, str]:
    """Return {node: why} of all behind the last layers, and of cells.

    What the host does at little cost.
    """
    conf, why = (
        prepared.conf,
        "no layer is computed from it: measured, the host's floats are better",
    )
    states = (
        find_cell_updates(prepared.graph, conf.state, prepared.target)
        if conf.cells == "auto"
        else {}
    )
    return {**dict.fromkeys(_find_tail(prepared.graph, True), why), **states}


def place_required_host_nodes(prepared: PreparedModel) -> PreparedModel:
    """Return `prepared` with what is the host's before anything is measured in float (`select_required_host_nodes`)."""
    told = select_required_host_nodes(prepared)
    return prepared.with_host_nodes(told) if told else prepared


def find_offload_candidates(
    model: ir.Model, is_far_off: bool = False, from_joined_output: bool = False
) -> list[dict[str, str]]:
    """Return candidates of the normalised `model`: {node: why it stays in float}.

    is_far_off : whether an output, or a part of one, is so far off that more fronts than the usual
    are worth a try. joined : whether that is a part of an output that joins tensors: then any tail
    is.
    """
    candidates = []
    front = "the host computes the front, up to a spectrum: measured, that is better"
    tail = "the host decodes what the last layers give: measured, that is better"
    for names, why in (
        *((names, front) for names in _find_front_candidates(model, is_far_off)),
        (_find_tail(model, from_joined_output), tail),
    ):
        if names:
            candidates.append(dict.fromkeys(names, why))
    return candidates


def _make_op_types_lookup(model: ir.Model) -> Callable[[ir.Node], set[str]]:
    """Return what gives the operators of a node: of a composed curve those that it is made of."""
    bodies = {name[:2]: {inner.op_type for inner in body} for name, body in model.functions.items()}

    def of(node: ir.Node) -> set[str]:
        composed = ir.base_op_type(node) == "Curve" and node.domain == ir.FUNCTION_DOMAIN
        return bodies.get((node.domain, node.op_type), set()) if composed else {node.op_type}

    return of


# ---- fronts ------------------------------------------------------------------------------------------------------


def _find_front_candidates(model: ir.Model, lost: bool) -> list[list[str]]:
    """Return the fronts to try, as names of nodes in graph order.

    The usual one ends with the last node of `_FRONT_OPS` that has one layer before it at most. With
    several, such as the two parts of a Fourier transform and a mel filter, a power or a logarithm
    of linear layers alone has to be there; such a front goes on to the first layer of the network.
    """
    kinds, nodes = _make_op_types_lookup(model), list(model.graph)
    near = _nodes_up_to_front_ops(nodes, kinds)
    wide = near | _nodes_up_to_spectrum(nodes, kinds)
    layers = [
        sum(count_macs(node) > 0 for node in nodes if id(node) in front) for front in (near, wide)
    ]
    far = _extend_to_layers(nodes, wide, kinds) if wide else wide
    fronts = [far, near] if layers[1] > layers[0] else [near, far] if lost else [near]
    return [[str(node.name) for node in nodes if id(node) in front] for front in fronts if front]


def _producers(node: ir.Node) -> list[ir.Node]:
    return [maker for value in node.inputs if (maker := ir.producer(value)) is not None]


def _nodes_up_to_front_ops(
    nodes: Collection[ir.Node], kinds: Callable[[ir.Node], set[str]]
) -> set[int]:
    """Collect the nodes of `_FRONT_OPS` with at most one layer upstream, and all nodes upstream of them."""
    before: dict[int, frozenset[int]] = {}
    layers: dict[int, int] = {}
    wanted: set[int] = set()
    for node in nodes:
        makers = _producers(node)
        above = frozenset(id(m) for m in makers).union(
            *(before[id(m)] for m in makers if id(m) in before)
        )
        before[id(node)] = above
        layers[id(node)] = int(count_macs(node) > 0)
        if (
            not kinds(node).isdisjoint(_FRONT_OPS)
            and sum(layers.get(key, 0) for key in above) <= _MAX_FRONT_LAYERS
        ):
            wanted |= above | {id(node)}
    heavy = sum(layers.values())
    inside = sum(layers[key] for key in wanted if key in layers)
    return wanted if inside < heavy else set()


def _nodes_up_to_spectrum(
    nodes: Collection[ir.Node], kinds: Callable[[ir.Node], set[str]]
) -> set[int]:
    """Return the nodes that powers and logarithms of layers without an activation are computed from, and these.

    Only what a layer is computed from counts, and some layer has to be left behind it.
    """
    bent: set[int] = set()  # nodes behind an activation
    linear: set[int] = set()  # behind a layer, and no activation
    power: set[int] = set()  # behind the square of a layer
    peaks = []
    for node in nodes:
        makers = {id(maker) for maker in _producers(node)}
        if not makers.isdisjoint(bent) or _is_nonlinear(node, kinds):
            bent.add(id(node))
            continue
        if count_macs(node) > 0 or not makers.isdisjoint(linear):
            linear.add(id(node))
        if not makers.isdisjoint(power) or (_is_square(node) and not makers.isdisjoint(linear)):
            power.add(id(node))
        of_layers = "Log" in kinds(node) and not makers.isdisjoint(linear)
        if of_layers or (not makers.isdisjoint(power) and not kinds(node).isdisjoint(_FRONT_OPS)):
            peaks.append(node)
    leads = _nodes_feeding_layers(nodes, lambda node: count_macs(node) > 0)
    left = [node for node in peaks if id(node) in leads]
    front: set[int] = set()
    while left:
        node = left.pop()
        if id(node) not in front:
            front.add(id(node))
            left += _producers(node)
    return front if any(count_macs(node) > 0 and id(node) not in front for node in nodes) else set()


def _is_nonlinear(node: ir.Node, kinds: Callable[[ir.Node], set[str]]) -> bool:
    """Whether it is an activation function.

    A Clip without an upper bound is a floor, as logarithms need it.
    So is the ReLU that stands for such a Clip on a chip.
    """
    if LOWER_BOUND_KEY in node.metadata_props:
        return False
    if node.op_type == "Clip":
        return len(node.inputs) > 2 and node.inputs[2] is not None
    return not kinds(node).isdisjoint(_NONLINEAR_OPS)


def _is_square(node: ir.Node) -> bool:
    """Whether it is the square of a layer's output, moved at most."""
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return True
    exponent = ir.const_value(node.inputs[1]) if node.op_type == "Pow" else None
    return exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2


def _extend_to_layers(
    nodes: Iterable[ir.Node], front: set[int], kinds: Callable[[ir.Node], set[str]]
) -> set[int]:
    """Return `front` and what is computed from it, up to layers and activations."""
    reached = set(front)
    for node in nodes:
        makers = _producers(node)
        if (
            makers
            and all(id(maker) in reached for maker in makers)
            and not count_macs(node)
            and not _is_nonlinear(node, kinds)
        ):
            reached.add(id(node))
    return reached


# ---- tails -------------------------------------------------------------------------------------------------------


def _find_tail(model: ir.Model, joined: bool) -> list[str]:
    """Return the nodes that no layer is computed from, where some of them decode, or anything that is `joined`.

    An expectation, a layer behind a Softmax, decodes: that is how distances are told by a
    distribution over them.
    """
    kinds, nodes = _make_op_types_lookup(model), list(model.graph)
    decoding = {
        id(node) for node in nodes if count_macs(node) > 0 and _is_expectation_over_softmax(node)
    }
    leads = _nodes_feeding_layers(
        nodes, lambda node: count_macs(node) > 0 and id(node) not in decoding
    )
    tail = [node for node in nodes if id(node) not in leads]
    decode = any(not kinds(node).isdisjoint(_TAIL_OPS) or id(node) in decoding for node in tail)
    return [str(node.name) for node in tail] if (decode or joined) and leads else []


def _nodes_feeding_layers(nodes: Collection[ir.Node], layer: Callable[[ir.Node], bool]) -> set[int]:
    """Return the layers, and the nodes that a layer is computed from."""
    leads: set[int] = set()
    for node in reversed(list(nodes)):
        if layer(node) or any(
            id(use.node) in leads for value in node.outputs for use in value.uses()
        ):
            leads.add(id(node))
    return leads


def _is_expectation_over_softmax(node: ir.Node) -> bool:
    """Whether it sums what a Softmax gives under constant weights.

    Attention, which sums data, does not.
    """
    data = [value for value in node.inputs if value is not None and ir.const_value(value) is None]
    maker = ir.producer(data[0]) if len(data) == 1 else None
    while maker is not None and maker.op_type in (*operators.RESHAPING_OPS, "Transpose"):
        maker = ir.producer(maker.inputs[0])
    return maker is not None and maker.op_type == "Softmax"


# ---- evidence ----------------------------------------------------------------------------------------------------


def _is_better_placement(old: Candidate, new: Candidate, gain: float) -> bool:
    """Whether `new` is better.

    An output gained `gain` dB, none lost, and what was ready for a chip still is.
    A part of an output that joins several tensors counts as an output. Where one is of no use, less
    of another is no loss if the farthest of all comes nearer, and all do on average.
    """
    before, after = old.fidelity, new.fidelity
    gains = [
        clamp_sqnr_db(after.outputs[name]["sqnr"]) - clamp_sqnr_db(output["sqnr"])
        for name, output in before.outputs.items()
    ]
    parts = {
        (p.output, p.axis, p.first): min(clamp_sqnr_db(p.sqnr), _MAX_PART_SQNR_DB)
        for p in after.parts
    }
    gains += [
        parts[p.output, p.axis, p.first] - min(clamp_sqnr_db(p.sqnr), _MAX_PART_SQNR_DB)
        for p in before.parts
    ]
    lowest, highest = min(gains, default=0.0), max(gains, default=0.0)
    nearer = highest >= gain and (
        lowest >= -_MAX_LOSS_DB or _rescues_unusable_output(old, new, gains)
    )
    accepted = nearer and _keeps_chip(old, new)
    measured = {"highest_gain_db": highest, "lowest_gain_db": lowest}
    return log_verdict(
        "ends", accepted, criterion={"some_db": gain, "loss_db": _MAX_LOSS_DB}, measured=measured
    )


def _keeps_chip(old: Candidate, new: Candidate) -> bool:
    """Whether what was ready for a chip still is; a model that float operators cut never was."""
    return (
        _has_float_between_integers(old.prepared)
        or new.result.report.chip_ready
        or not old.result.report.chip_ready
    )


def _rescues_unusable_output(old: Candidate, new: Candidate, gains: Sequence[float]) -> bool:
    """Whether the farthest of outputs that are of no use comes as much nearer as an end has to gain, and all do."""
    before, after = min(output_sqnr_levels(old)), min(output_sqnr_levels(new))
    return (
        before < _UNUSABLE_SQNR_DB
        and after - before >= _MIN_GAIN_DB
        and sum(gains) >= _MIN_GAIN_DB * len(gains)
    )
