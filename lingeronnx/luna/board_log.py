"""Match the executor's own profile lines with the nodes of a graph as the chip runs them.

Built with its profiling option, the executor prints a line per node, in the graph's order:
``NAME | CYCLES | (shape of the input) | (shape of the output)``, with more after it for some nodes.
CYCLES is the host core's counter, read after the node's own DMA has finished. Some names differ
from the graph's. A log may contain other lines, and several runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ..common.errors import ConfigError
from ..targets import Target
from ..targets.board_profile import BoardLayer, BoardProfile
from ..targets.timing_calibration import TimingCalibration
from .evaluation import DetailedVerdict
from .kernel_costs import ARCS
from .timing import sum_cycles_by_family
from .timing.calibration_fit import MeasuredNode, fit_calibration
from .timing.kernels import CallCost

__all__ = ["ProfileLine", "analyze_board_log", "parse_profile_lines"]

_LINE = re.compile(
    r"\b([A-Za-z]\w{0,63}) *\| *(\d{1,15}) *\| *\(([\d, ]{0,99})\) *\| *\(([\d, ]{0,99})\)"
)
#: Operator names of the log that differ from the graph's -> the graph's, in lower case.
_LOG_NAME_ALIASES = {
    "meanpool2dint": "avgpool2dint",
    "batchnormint": "batchnorm2dint",
    "glu": "gluint",
    "gru": "gruint",
}
_MIN_LAYER_COVERAGE = 0.5  # fraction of the layers that the log must contain
_BASE = "arcs"


@dataclass(frozen=True)
class ProfileLine:
    """Profile line of a node.

    Attributes
    ----------
    line_number
        Number of the line in the log, from 1.
    inputs, outputs
        Elements of the first input and of the first output.
    """

    line_number: int
    name: str
    cycles: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class _LoggedStep:
    """A node of a graph in the terms of a log.

    Attributes
    ----------
    inputs, outputs
        Elements of the first input and of the first output.
    work
        Cycles by kernel family, or None if some kernels have no cost model.
    """

    name: str
    operator: str
    inputs: int
    outputs: int
    work: dict[str, CallCost] | None

    def matches(self, line: ProfileLine) -> bool:
        """Whether a log line has this step's operator (or an alias of it) and element counts."""
        if _normalize_operator_name(self.operator) != _normalize_operator_name(line.name):
            return False
        return (self.inputs, self.outputs) == (line.inputs, line.outputs)


def _normalize_operator_name(name: str) -> str:
    """Return an operator name in lower case; a name that only logs use becomes the graph's name."""
    lower_name = name.lower()
    return _LOG_NAME_ALIASES.get(lower_name, lower_name)


def parse_profile_lines(text: str) -> Iterator[ProfileLine]:
    """Yield the profile lines of a log, numbered from 1; other lines are skipped.

    Only the first 1000 characters of a line are searched. A printed shape becomes its number of
    elements.
    """
    for line_number, line in enumerate(text.splitlines(), 1):
        match = _LINE.search(line[:1000])
        if match is None:
            continue
        name, cycles, input_shape, output_shape = match.groups()
        yield ProfileLine(
            line_number,
            name,
            int(cycles),
            _count_elements(input_shape),
            _count_elements(output_shape),
        )


def _count_elements(shape: str) -> int:
    """Return the number of elements of a shape as printed in a log.

    Sizes are separated by commas or spaces; 1 for an empty text.
    """
    return math.prod(int(size) for size in shape.replace(",", " ").split())


def analyze_board_log(
    graphs: Sequence[DetailedVerdict], target: Target, text: str, clock_mhz: float | None
) -> BoardProfile:
    """Match a board's log with the layers of graphs and calibrate the kernel costs.

    A layer's measured cycles are the median over the logged runs. Layers without a cost model are
    listed but not used for the fit.

    Parameters
    ----------
    graphs
        Verdicts on the graphs, in the order in which they run.
    target
        The measured chip.
    text
        The log.
    clock_mhz
        Clock of the board, recorded in the calibration.

    Raises
    ------
    ConfigError
        If a graph does not pack, the log is not of these graphs or covers less than half of their
        layers, or no logged layer has a cost model.
    """
    steps = [step for verdict in graphs for step in _iterate_steps(verdict)]
    cycles_by_step, runs = _match_lines(steps, list(parse_profile_lines(text)))
    logged = _select_logged_steps(steps, cycles_by_step)
    measured_nodes = [
        MeasuredNode(measured, step.work)
        for step, measured in logged
        if step.work is not None and measured > 0
    ]
    if not measured_nodes:
        raise ConfigError("none of the logged layers has a cost model; nothing to calibrate")
    calibration = fit_calibration(measured_nodes, target.chip, _BASE, runs, clock_mhz)
    layers = [_make_board_layer(step, measured, calibration) for step, measured in logged]
    missing = [step.name for step, cycles in zip(steps, cycles_by_step, strict=True) if not cycles]
    return BoardProfile(target.name, _BASE, runs, layers, missing, calibration)


def _select_logged_steps(
    steps: Sequence[_LoggedStep], cycles_by_step: Sequence[list[int]]
) -> list[tuple[_LoggedStep, float]]:
    """Return (step, median of its cycles over all runs) for the steps that the log contains.

    Raises ConfigError if these are fewer than half of `steps`.
    """
    logged = [
        (step, median(cycles)) for step, cycles in zip(steps, cycles_by_step, strict=True) if cycles
    ]
    if len(logged) < _MIN_LAYER_COVERAGE * len(steps):
        raise ConfigError(
            f"the log covers {len(logged)} of the model's {len(steps)} layers, but at least half "
            "are required; check that it is the log of this model and these packer arguments"
        )
    return logged


def _make_board_layer(
    step: _LoggedStep, measured: float, calibration: TimingCalibration
) -> BoardLayer:
    """Return the measured cycles of a step with those of the formulas and of the calibration.

    Both are None if part of the step's work has no formula.
    """
    if step.work is None:
        return BoardLayer(step.name, step.operator, measured, None, None)
    modeled = sum(sum(cost) for cost in step.work.values())
    calibrated = MeasuredNode(measured, step.work).predict_cycles(calibration)
    return BoardLayer(step.name, step.operator, measured, modeled, calibrated)


def _iterate_steps(verdict: DetailedVerdict) -> Iterator[_LoggedStep]:
    """Yield the steps of a packed graph with element counts and formula cycles by kernel family.

    The counts are of the first input and output. Raises ConfigError if the model does not pack.
    """
    graph, plan = verdict.graph, verdict.memory_plan
    if graph is None or plan is None:
        finding = next((f for f in verdict.findings if f.level == "packs"), None)
        raise ConfigError(
            "the model does not pack, so the log cannot be of it; pass the graph that was packed: "
            f"{finding}"
        )
    for step in graph.steps:
        yield _LoggedStep(
            step.origin or step.name,
            step.op,
            graph.tensors[step.inputs[0]].elements,
            graph.tensors[step.outputs[0]].elements,
            sum_cycles_by_family(graph, step, verdict.options, plan, ARCS),
        )


def _match_lines(
    steps: Sequence[_LoggedStep], lines: Sequence[ProfileLine]
) -> tuple[list[list[int]], int]:
    """Return the measured cycles of each step, one value per logged run, and the number of runs.

    A line belongs to the next step that it matches; if none is left, a new run begins. Steps may
    have no values. Raises ConfigError without lines or for a line that matches no step.
    """
    if not lines:
        raise ConfigError(
            "the log has no profile lines such as 'Conv2dInt | 5230 | (1,3,32,32) | "
            "(1,16,32,32)'; build the executor with its profiling option"
        )
    cycles_by_step: list[list[int]] = [[] for _ in steps]
    next_index, runs = 0, 1
    for line in lines:
        index = _find_step(steps, line, next_index)
        if index is None and next_index:
            index, runs = _find_step(steps, line, 0), runs + 1
        if index is None:
            raise ConfigError(
                f"line {line.line_number} of the log: {line.name} with {line.inputs} input and "
                f"{line.outputs} output elements matches no layer of the model; check that it is "
                "the log of this model and these packer arguments"
            )
        cycles_by_step[index].append(line.cycles)
        next_index = index + 1
    return cycles_by_step, runs


def _find_step(steps: Sequence[_LoggedStep], line: ProfileLine, start: int) -> int | None:
    """Return the index of the first step, from index `start` on, that matches the line; or None."""
    return next((index for index in range(start, len(steps)) if steps[index].matches(line)), None)
