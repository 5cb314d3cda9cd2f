"""Suggest options of `quantize` for a model that is not chip-ready or loses accuracy.

A float operator between integer ones does no harm if all nodes after it, or all before it, stay in
float as well: of both cuts, the one that leaves more multiply-accumulates to the chip is suggested.
If a chip part is rejected, `--max-parts` moves the layers to blame to the host, so that `deploy`
can write a program. If an output is far from the float model's, the default effort is suggested to
one that measures nothing, else a search for better bit widths; and 16 bits for tensors whose range
is determined by a few outliers, if the platform has them and no trial has measured that.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...common.errors import ConfigError
from ...common.escaping import quote_shell
from ...ir import ir
from ...operators.macs import count_macs
from ..prepare.preparation import PreparedModel
from ..prepare.selectors import select_nodes
from ..settings import SETTINGS
from ..steps.planned_model import PlannedModel
from .program import ProgramReport
from .range_outliers import RangeOutlier, find_range_outliers
from .report import FloatNode, SuggestedOptions

__all__ = ["suggest_options"]

_SEARCH_OPTIONS = "--min-sqnr 15 --budget 10"
_EFFORT_OPTION = f"--effort {SETTINGS['effort'].default}"
_EFFORT_EFFECT = (
    "moves ranges between channels, rounds weights by the error of their layer, and measures "
    "finer scales"
)
_MAX_PARTS_OPTIONS = ("--max-parts 16",)  # large enough that the limit itself hardly matters
_MIN_KEPT_DIVISOR = 20  # a cut must keep more than 1 / this of the MACs in integers
_MAX_OPTIONS = 4  # maximum number of selectors of a suggested cut


def suggest_options(
    prepared: PreparedModel,
    planned: PlannedModel,
    program: ProgramReport,
    between: Sequence[FloatNode],
    lossy: bool,
) -> list[SuggestedOptions]:
    """Suggest options of `quantize`, the most important first.

    Empty if nothing applies.

    Parameters
    ----------
    prepared, planned
        The model and its plan.
    program
        The parts of the program.
    between
        Float nodes between integer nodes.
    lossy
        Whether an output's SQNR is low, so that options for accuracy are suggested too.
    """
    options: list[SuggestedOptions] = []
    is_imported = prepared.read is not None
    rejected_parts = [part.name for part in program.parts if part.chip and not part.runs]
    if rejected_parts and prepared.conf.max_parts is None and not is_imported:
        effect = f"{', '.join(rejected_parts)} rejected; move the offending layers to the host"
        options.append(SuggestedOptions(_MAX_PARTS_OPTIONS, effect))
    if between and prepared.target.has_packer:
        options += _suggest_host_cut(prepared, {entry.node for entry in between})
    if lossy:
        can_calibrate = (
            planned.basis.policy is not None and not is_imported and not prepared.synthetic
        )
        is_default_next = can_calibrate and not prepared.recipe.measures_alternatives
        if is_default_next:
            options.append(SuggestedOptions((_EFFORT_OPTION,), _EFFORT_EFFECT))
        outliers = [] if _has_tried_outliers(prepared) else find_range_outliers(prepared, planned)
        if outliers:
            options.append(_suggest_16_bits(outliers[:_MAX_OPTIONS]))
        if can_calibrate and not is_default_next:
            effect = (
                "searches for the cheapest bit widths and float layers that reach this SQNR on "
                "every output"
            )
            options.append(SuggestedOptions((_SEARCH_OPTIONS,), effect))
    return options


def _has_tried_outliers(prepared: PreparedModel) -> bool:
    """Whether a trial has measured 16 bits for outliers; those that are left did not help."""
    if not prepared.recipe.tries_outlier_bits or prepared.read is not None or prepared.synthetic:
        return False
    return not prepared.conf.overrides


def _suggest_16_bits(outliers: Sequence[RangeOutlier]) -> SuggestedOptions:
    """Suggest 16 bits for tensors whose range is determined by a few outliers, at least one."""
    options = tuple(f"--override {quote_shell(f'{outlier.name}=bits:16')}" for outlier in outliers)
    others = f", and {len(outliers) - 1} more" if len(outliers) > 1 else ""
    effect = f"16 bits for ranges determined by outliers: {outliers[0]}{others}"
    return SuggestedOptions(options, effect)


def _suggest_host_cut(prepared: PreparedModel, between: set[str]) -> list[SuggestedOptions]:
    """Suggest to keep the float nodes `between` (names) and all after or all before them in float.

    Of both, the one that leaves more MACs in integers, as a list of one. A cut with more than
    _MAX_OPTIONS selectors does not count; empty if none leaves more than 1 / _MIN_KEPT_DIVISOR of
    the MACs.
    """
    total_macs = sum(count_macs(node) for node in prepared.graph.graph)
    best_macs = total_macs // _MIN_KEPT_DIVISOR
    best_selectors: list[str] = []
    for nodes, pattern in (
        (_boundary_nodes(prepared.graph, between), "{}.."),
        (_boundary_nodes(prepared.graph, between, last=True), "..{}"),
    ):
        selectors = [pattern.format(_user_selector(node, prepared.original)) for node in nodes]
        if len(selectors) > _MAX_OPTIONS:
            continue
        integer_macs = _macs_kept_in_integer(prepared, selectors)
        if integer_macs > best_macs:
            best_macs, best_selectors = integer_macs, selectors
    if not best_selectors:
        return []
    effect = (
        f"no float operator between integer ones; {100 * best_macs / total_macs:.1f} % of the "
        "MACs stay in integers"
    )
    options = tuple(f"--skip {quote_shell(selector)}" for selector in best_selectors)
    return [SuggestedOptions(options, effect)]


def _boundary_nodes(graph: ir.Model, between: set[str], last: bool = False) -> list[ir.Node]:
    """Return the nodes of `between` (names) that do not depend on others of them, in graph order.

    With `last`, the nodes that no other of them depends on, in reverse order.
    """
    boundary, reached = [], set()
    nodes = reversed(list(graph.graph)) if last else graph.graph
    for node in nodes:
        neighbors: list[ir.Node | None]
        if last:
            neighbors = [use.node for value in node.outputs for use in value.uses()]
        else:
            neighbors = [ir.producer(value) for value in node.inputs]
        if any(id(neighbor) in reached for neighbor in neighbors):
            reached.add(id(node))
        elif str(node.name) in between:
            reached.add(id(node))
            boundary.append(node)
    return boundary


def _user_selector(node: ir.Node, original: ir.Model) -> str:
    """Return a name that selects a node of the normalized graph in the user's graph.

    The first that selects something: its origin, its own name, its outputs; else its own name.
    """
    for name in (ir.origin_name(node), str(node.name), *(str(v.name) for v in node.outputs)):
        try:
            select_nodes(original, name)
        except ConfigError:
            continue
        return name
    return str(node.name)


def _macs_kept_in_integer(prepared: PreparedModel, selectors: Sequence[str]) -> int:
    """Return the MACs that stay in integers if the nodes of `selectors` are skipped.

    Returns 0 if float nodes between integer nodes would remain.
    """
    try:
        skipped = prepared.selectors(prepared.graph).resolve_skips(selectors)
    except ConfigError:  # a node that the user's graph does not know
        return 0
    parts = prepared.with_host_nodes(skipped).parts
    if parts.has_inner_floats:
        return 0
    return sum(count_macs(node) for node, _ in parts.integer_nodes)
