"""What to try next where a model is not chip-ready, or loses much.

Options of `quantize`, made to be pasted.
A float operator between integer ones is no obstacle when all behind it, or all before it, stays in
float as well: of both cuts the one is named that leaves more multiply-accumulates to the chip.
Where a part is refused, `--max-parts`: what stands against it goes to the host, and `deploy` has a
program to write. Where an output is far from the float model's, a search for what brings it near;
and 16 bits, where the platform has them, for tensors whose range a few huge values make.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ...errors import ConfigError
from ...graph import ir
from ...ops.macs import count_macs
from ..planning.planned_model import PlannedModel
from ..prepare.preparation import PreparedModel
from ..prepare.selectors import select_nodes
from .program import ProgramReport
from .range_outliers import RangeOutlier, find_range_outliers
from .report import FloatNode, SuggestedOptions, split_float_nodes

__all__ = ["suggest_options"]

_SEARCH_OPTIONS = "--min-sqnr 15 --budget 10"
_MAX_PARTS_OPTIONS = ("--max-parts 16",)  # so many that hardly a layer moves for their number alone
_MIN_KEPT_DIVISOR = 20  # a cut leaves more than one of so many multiply-accumulates in integers
_MAX_OPTIONS = 4  # selectors of a cut: more are no line to read


def suggest_options(
    prepared: PreparedModel,
    planned: PlannedModel,
    program: ProgramReport,
    between: Sequence[FloatNode],
    lossy: bool,
) -> list[SuggestedOptions]:
    """Return what to try, the first first.

    program : the parts. between : float nodes that stand between integer ones. lossy : whether an
    output is far from the float model's.
    """
    options: list[SuggestedOptions] = []
    refused = [part.name for part in program.chip if not part.runs]
    if refused and prepared.conf.max_parts is None and prepared.read is None:
        options.append(
            SuggestedOptions(
                _MAX_PARTS_OPTIONS,
                f"{', '.join(refused)} refused: layers that stand against it go to the host",
            )
        )
    if between and prepared.target.has_packer:
        options += _suggest_host_cut(prepared, {entry.node for entry in between})
    if lossy and (groups := find_range_outliers(prepared, planned)):
        options.append(_suggest_16_bits(groups[:_MAX_OPTIONS]))
    if (
        lossy
        and planned.basis.policy is not None
        and prepared.read is None
        and not prepared.synthetic
    ):
        options.append(
            SuggestedOptions(
                (_SEARCH_OPTIONS,),
                "looks for the cheapest widths and float layers that bring every output so far",
            )
        )
    return options


def _suggest_16_bits(groups: Sequence[RangeOutlier]) -> SuggestedOptions:
    """Return how to give 16 bits to tensors whose range few values make."""
    options = tuple(f"--override {shlex.quote(f'{group.name}=bits:16')}" for group in groups)
    rest = f", and {len(groups) - 1} more likewise" if len(groups) > 1 else ""
    return SuggestedOptions(
        options, f"16 bits where a few values make the range: {groups[0]}{rest}"
    )


def _suggest_host_cut(prepared: PreparedModel, between: set[str]) -> list[SuggestedOptions]:
    """Return how to leave all behind the float nodes, or all before them, to the host.

    Nothing where no cut helps.
    """
    whole = sum(count_macs(node) for node in prepared.graph.graph)
    best: tuple[int, list[str]] = (whole // _MIN_KEPT_DIVISOR, [])
    for nodes, form in (
        (_boundary_nodes(prepared.graph, between), "{}.."),
        (_boundary_nodes(prepared.graph, between, True), "..{}"),
    ):
        selectors = [form.format(_user_selector(node, prepared.original)) for node in nodes]
        if (
            len(selectors) <= _MAX_OPTIONS
            and (kept := _macs_kept_in_integer(prepared, selectors)) > best[0]
        ):
            best = kept, selectors
    kept, selectors = best
    if not selectors:
        return []
    gives = (
        f"no float operator between integer ones; {100 * kept / whole:.1f} % of the MACs stay "
        "in integers"
    )
    return [
        SuggestedOptions(tuple(f"--skip {shlex.quote(selector)}" for selector in selectors), gives)
    ]


def _boundary_nodes(graph: ir.Model, between: set[str], last: bool = False) -> list[ir.Node]:
    """Return those of the nodes that are computed from no other of them.

    With `last`, from which no other is.
    """
    ends, reached = [], set()
    for node in reversed(list(graph.graph)) if last else graph.graph:
        near = (
            [use.node for v in node.outputs for use in v.uses()]
            if last
            else [ir.producer(v) for v in node.inputs]
        )
        if any(id(other) in reached for other in near):
            reached.add(id(node))
        elif str(node.name) in between:
            reached.add(id(node))
            ends.append(node)
    return ends


def _user_selector(node: ir.Node, original: ir.Model) -> str:
    """Return by what the user's graph knows a node of the normalised one."""
    for name in (ir.origin_name(node), str(node.name), *(str(v.name) for v in node.outputs)):
        try:
            select_nodes(original, name)
        except ConfigError:
            continue
        return name
    return str(node.name)


def _macs_kept_in_integer(prepared: PreparedModel, selectors: Sequence[str]) -> int:
    """Return the multiply-accumulates that stay in integers with these skipped.

    0 where floats would stand between.
    """
    try:
        skipped = prepared.selectors(prepared.graph).resolve_skips(selectors)
    except ConfigError:  # a node that the user's graph does not know
        return 0
    parts = prepared.with_host_nodes(skipped).parts
    if split_float_nodes(parts.graph, parts.floats, parts.integer_node_ids)[0]:
        return 0
    return sum(count_macs(node) for node, _ in parts.integer_nodes)
