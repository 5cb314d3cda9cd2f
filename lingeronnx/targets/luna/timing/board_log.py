"""The executor's own profile lines, joined with the nodes of a graph as the chip runs them.

Built with its profiling option, the executor prints a line a node, in the graph's order: ``NAME |
CYCLES | (shape of the input) | (shape of the output)``, more behind that for some. CYCLES is the
host core's counter, after the node's own DMA has been waited for. Some names are not the graph's. A
log may hold other lines, and several runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ....errors import ConfigError
from ... import Target
from ...board_profile import BoardLayer, BoardProfile
from ..kernel_costs import ARCS
from ..packer.evaluation import DetailedVerdict
from . import sum_cycles_by_family
from .calibration_fit import MeasuredNode, fit_calibration
from .kernels import CallCost

__all__ = ["ProfileLine", "analyze_board_log", "parse_profile_lines"]

_LINE = re.compile(
    r"\b([A-Za-z]\w{0,63}) *\| *(\d{1,15}) *\| *\(([\d, ]{0,99})\) *\| *\(([\d, ]{0,99})\)"
)
#: Names of the log that are not the graph's, in small letters -> the graph's.
_LOG_NAME_ALIASES = {
    "meanpool2dint": "avgpool2dint",
    "batchnormint": "batchnorm2dint",
    "glu": "gluint",
    "gru": "gruint",
}
_MIN_LAYER_COVERAGE = 0.5  # of the layers of a graph that a log has lines of
_BASE = "arcs"


@dataclass(frozen=True)
class ProfileLine:
    """A node's line. number : in the log, from 1.

    Inputs, outputs : elements of the first of each.
    """

    line_number: int
    name: str
    cycles: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class _LoggedStep:
    """A node of a graph, as a log may name it.

    Work : its cycles by family; None where some have no price.
    """

    name: str
    operator: str
    inputs: int
    outputs: int
    work: dict[str, CallCost] | None

    def matches(self, line: ProfileLine) -> bool:
        """Whether a line may be of this node."""
        same = _normalize_operator_name(self.operator) == _normalize_operator_name(line.name)
        return same and (self.inputs, self.outputs) == (line.inputs, line.outputs)


def _normalize_operator_name(name: str) -> str:
    small = name.lower()
    return _LOG_NAME_ALIASES.get(small, small)


def parse_profile_lines(text: str) -> Iterator[ProfileLine]:
    """Yield the profile lines of a log; others are passed over."""
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.search(line[:1000])
        if found:
            name, cycles, source, target = found.groups()
            yield ProfileLine(number, name, int(cycles), _elements(source), _elements(target))


def _elements(shape: str) -> int:
    return math.prod(int(size) for size in shape.replace(",", " ").split())


def analyze_board_log(
    graphs: Sequence[DetailedVerdict], target: Target, text: str, clock: float | None
) -> BoardProfile:
    """Return the log beside the graphs, which run one after the other, and the prices it gives.

    ConfigError for a graph that does not pack, and for a log that is not of these graphs.
    """
    steps = [step for judged in graphs for step in _iterate_steps(judged)]
    taken, runs = _match_lines(steps, list(parse_profile_lines(text)))
    seen = [(step, median(cycles)) for step, cycles in zip(steps, taken, strict=True) if cycles]
    if len(seen) < _MIN_LAYER_COVERAGE * len(steps):
        raise ConfigError(
            f"the log has lines of {len(seen)} of the model's {len(steps)} layers; at least half "
            "are needed: is it the "
            "log of another model, or of other packer arguments?"
        )
    work = [
        MeasuredNode(measured, step.work)
        for step, measured in seen
        if step.work is not None and measured > 0
    ]
    if not work:
        raise ConfigError(
            "no layer that the log has a line of has a price: there is nothing to compare"
        )
    row = fit_calibration(work, target.name, _BASE, runs, clock)
    layers = []
    for step, measured in seen:
        model = None if step.work is None else sum(sum(one) for one in step.work.values())
        told = None if step.work is None else MeasuredNode(measured, step.work).predict_cycles(row)
        layers.append(BoardLayer(step.name, step.operator, measured, model, told))
    missing = [step.name for step, cycles in zip(steps, taken, strict=True) if not cycles]
    return BoardProfile(target.name, _BASE, runs, layers, missing, row)


def _iterate_steps(judged: DetailedVerdict) -> Iterator[_LoggedStep]:
    net, memory = judged.graph, judged.memory_plan
    if net is None or memory is None:
        finding = next((f for f in judged.findings if f.level == "packs"), None)
        raise ConfigError(
            "the model does not pack, so no board ran it; give the graph that was packed: "
            f"{finding}"
        )
    for step in net.steps:
        read, written = (net.tensors[names[0]].elements for names in (step.inputs, step.outputs))
        work = sum_cycles_by_family(net, step, judged.options, memory, ARCS)
        yield _LoggedStep(step.origin or step.name, step.op, read, written, work)


def _match_lines(
    steps: Sequence[_LoggedStep], lines: Sequence[ProfileLine]
) -> tuple[list[list[int]], int]:
    """Return the cycles of each step, and how many runs there are.

    A line is of the next step that it fits; where none is left, a run begins anew. ConfigError for
    one that fits none.
    """
    if not lines:
        raise ConfigError(
            "the log has no profile line, such as 'Conv2dInt | 5230 | (1,3,32,32) | (1,16,32,32)': "
            "build the executor "
            "with its profiling option"
        )
    taken: list[list[int]] = [[] for _ in steps]
    at, runs = 0, 1
    for line in lines:
        place = _find_step(steps, line, at)
        if place is None and at:
            place, runs = _find_step(steps, line, 0), runs + 1
        if place is None:
            raise ConfigError(
                f"line {line.line_number} of the log: {line.name} with {line.inputs} elements in "
                f"and {line.outputs} "
                "out is "
                "no layer of the model: is it the log of another model, or of other packer "
                "arguments?"
            )
        taken[place].append(line.cycles)
        at = place + 1
    return taken, runs


def _find_step(steps: Sequence[_LoggedStep], line: ProfileLine, start: int) -> int | None:
    return next((index for index in range(start, len(steps)) if steps[index].matches(line)), None)
