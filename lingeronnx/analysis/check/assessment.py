"""First assessment of a float model without data: `assess`, the command ``lingeronnx try``.

What the model is, what each platform would compute in integers, whether a chip runs it, which
weights 8 bits hardly represent, and the commands to type next. Activations are not assessed: their
ranges need data.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword

import numpy as np

from ...common.deadline import DeadlineError, set_deadline
from ...common.errors import ConfigError, LingerOnnxError
from ...common.escaping import escape_invisible, join_shell
from ...interchange.qdq.qoperators import is_quantized
from ...ir import ir
from ...ir.plan import Affine
from ...operators.invalid_models import explain_invalid_models
from ...operators.lowerings import Op, get_weight_values
from ...quantization import normalize_model
from ...quantization.calibration import TensorStats
from ...quantization.config import QuantConfig
from ...quantization.factor_groups import partition_with_clip_fallback
from ...quantization.normalize.folding.scalar_inputs import (
    find_scalar_inputs,
    format_fix_option,
    format_fix_suggestion,
)
from ...quantization.partition import Partition
from ...quantization.prepare.recurrent_states import propose_states
from ...quantization.report import FloatNode, format_float_nodes, split_float_nodes
from ...quantization.report.mac_shares import MacShares, count_mac_shares, count_model_macs
from ...quantization.scales import ScalePolicy
from ...runtime.data import InputSpec
from ...runtime.runners import get_input_specs
from ...runtime.session import is_integer_graph
from ...targets import DEFAULT, GENERIC, PLATFORMS, Target, get_target
from ..profile.outliers import iter_constants
from .check import check_float_model
from .packer_file import is_packable
from .report import Check

__all__ = ["Assessment", "ModelSummary", "PlatformAssessment", "WeightRisk", "assess"]

#: Seconds after which no further chip is judged, and those that the first one has at least.
DEFAULT_BUDGET_S = 10.0
_MIN_WEIGHT_SQNR_DB = 20.0  # below it, half of the channels have an error of over 10 %
_MAX_ROWS = 5  # weights and operators that the text lists
_MAX_FLOAT_ROWS = 2  # groups of float nodes that the text lists for a platform
_MAX_REASON_LENGTH = 240
_MIN_IMAGE_SIDE = 16  # pixels of an input that is taken for an image


@dataclass(frozen=True)
class ModelSummary:
    """What a float model is.

    Attributes
    ----------
    inputs, outputs
        Type and shape by name, such as "float32 [?, 3, 32, 32]"; ? is any size.
    opset
        Version of the standard operators.
    operators
        Number of nodes by operator.
    parameters
        Number of values of the constants that are floats or have 8 bits.
    macs
        Known multiply-accumulates of one sample; None if they could not be counted.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    opset: int
    operators: Mapping[str, int]
    parameters: int
    macs: int | None = None

    def lines(self) -> list[str]:
        """Return the summary as lines."""
        count = sum(self.operators.values())
        ranked = sorted(self.operators.items(), key=lambda entry: -entry[1])
        operators = ", ".join(f"{count} {op_type}" for op_type, count in ranked[:_MAX_ROWS])
        others = len(ranked) - _MAX_ROWS
        more = f" and {others} other kinds" if others > 0 else ""
        macs = "unknown MACs" if self.macs is None else f"{self.macs:,} MACs per sample"
        return [
            f"model: opset {self.opset}, {count} operators: {operators}{more}",
            *(f"input: {name} {form}" for name, form in self.inputs.items()),
            *(f"output: {name} {form}" for name, form in self.outputs.items()),
            f"size: {macs}, {self.parameters:,} parameters",
        ]


@dataclass(frozen=True)
class PlatformAssessment:
    """Whether a platform runs the model, as `quantize` would rewrite it.

    Attributes
    ----------
    platform
        Name of the platform.
    ready
        For a chip, whether its packer would accept the integer graph and the chip compute it
        correctly; for `generic`, whether no operator between integer ones stays in float.
    integer_mac_share
        Fraction of the multiply-accumulates in integers, 0 to 1; None if unknown.
    reason
        The first reason why it is not ready; "" if it is.
    other_reasons
        Number of further reasons.
    cost
        Memory, MACs and DMA on the chip, or its parts and those of the host; "" if unknown.
    basis
        The evidence for a chip's correct results: "computed" by measured rules or "assumed"; "" if
        correctness is not claimed.
    float_nodes
        Nodes that stay in float, with the reason.
    """

    platform: str
    ready: bool
    integer_mac_share: float | None
    reason: str = ""
    other_reasons: int = 0
    cost: str = ""
    basis: str = ""
    float_nodes: Sequence[FloatNode] = ()

    def lines(self) -> list[str]:
        """Return the assessment as lines; the first one has the verdict."""
        is_chip = self.platform != GENERIC.name
        verdict = "no float operator is between integer ones"
        if is_chip:
            assumed = ", assumed from rules that are not measured" * (self.basis == "assumed")
            verdict = f"chip-ready{assumed}, before calibration"
        if not self.ready:
            more = f" (and {self.other_reasons} more)" if self.other_reasons else ""
            label = "not chip-ready" if is_chip else "float operators between integer ones"
            verdict = f"{label}: {_shorten(self.reason)}{more}"
        share = self.integer_mac_share
        share_text = "" if share is None else f"{100 * share:.1f} % of MACs in integers; "
        lines = [f"{self.platform}: {share_text}{verdict}"]
        if self.cost:
            lines.append(f"  {self.cost}")
        float_nodes = format_float_nodes(self.float_nodes, False)
        lines += [f"  in float: {_shorten(line)}" for line in float_nodes[:_MAX_FLOAT_ROWS]]
        others = len(float_nodes) - _MAX_FLOAT_ROWS
        if others > 0:
            lines.append(f"  in float: {others} other groups of nodes; see --json")
        return lines


@dataclass(frozen=True)
class WeightRisk:
    """A weight that one scale for 8 bits represents badly.

    Attributes
    ----------
    node, weight
        Names of the node and of its weight.
    sqnr_db
        SQNR of the rounded weight in dB: the median over output channels, or that of all values for
        an operator without channels.
    """

    node: str
    weight: str
    sqnr_db: float


@dataclass(frozen=True)
class Assessment:
    """Result of `assess`.

    Attributes
    ----------
    model
        What the model is.
    platforms
        `generic` and each chip that was judged.
    not_judged
        Chips that were left out because the time was over, one whose search had begun included.
    weight_risks
        Weights whose SQNR at 8 bits is below 20 dB, the lowest first, without the equalization and
        refinement of `quantize`.
    next_steps
        Lines with commands to type next.
    problem
        Why the model cannot be judged, with the remedy; "" if it can. Then all above but the
        model's inputs, outputs and operators is missing.
    """

    model: ModelSummary
    platforms: Sequence[PlatformAssessment] = ()
    not_judged: Sequence[str] = ()
    weight_risks: Sequence[WeightRisk] = ()
    next_steps: Sequence[str] = ()
    problem: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return all fields as JSON-ready values."""
        platforms = [
            {**vars(entry), "float_nodes": [vars(node) for node in entry.float_nodes]}
            for entry in self.platforms
        ]
        return {
            "summary": vars(self.model),
            "platforms": platforms,
            "not_judged": list(self.not_judged),
            "weight_risks": [vars(risk) for risk in self.weight_risks],
            "next_steps": list(self.next_steps),
            "problem": self.problem,
        }

    def lines(self) -> list[str]:
        """Return the assessment as lines of text, without the problem."""
        lines = self.model.lines()
        if self.problem:
            return [escape_invisible(line) for line in lines]
        for entry in self.platforms:
            lines += entry.lines()
        if self.not_judged:
            lines.append(f"not judged in time: {', '.join(self.not_judged)}; raise --budget")
        lines += self._format_accuracy()
        lines += [f"next: {step}" for step in self.next_steps]
        return [escape_invisible(line) for line in lines]

    def _format_accuracy(self) -> list[str]:
        """Format the weights at risk, the lowest SQNR first, and that activations need data."""
        lines = [
            f"accuracy at risk: {risk.node}: half of the channels of {risk.weight} have an SQNR of "
            f"{risk.sqnr_db:.1f} dB or less at 8 bits, before equalization"
            for risk in self.weight_risks[:_MAX_ROWS]
        ]
        others = len(self.weight_risks) - _MAX_ROWS
        if others > 0:
            lines.append(f"accuracy at risk: {others} other weights; see --json")
        if not lines:
            lines.append(
                f"accuracy: no weight is below {_MIN_WEIGHT_SQNR_DB:.0f} dB at 8 bits; activations "
                "need data"
            )
        return lines


@explain_invalid_models
@np.errstate(all="ignore")  # as in `quantize`
def assess(
    model: ir.ModelLike,
    *,
    platform: str | Target | None = None,
    calib: object = None,
    input_shape: Mapping[str, Sequence[int]] | None = None,
    fix: Mapping[str, str | float | Sequence[float]] | None = None,
    budget_s: float = DEFAULT_BUDGET_S,
) -> Assessment:
    """Assess a float model without data: what it is, which platforms run it, and what to do next.

    The model is judged as `quantize` would rewrite it, for `generic` and each built-in chip. It is
    not modified and no file is written.

    Parameters
    ----------
    model
        A path or a model in memory.
    platform
        The only chip to judge, besides `generic`; by default each built-in one.
    calib
        Data for the shapes of inputs that the file leaves open; their values are not used.
    input_shape, fix
        Shapes of inputs that the file leaves open, and constant values of inputs, by input.
    budget_s
        Seconds after which no further chip is judged. The search for a graph that fits the memory
        of a chip, which can take minutes, ends then; that for the first chip after ten seconds at
        the earliest.

    Returns
    -------
    Assessment
        The assessment; `problem` says why the model cannot be judged, such as open dimensions.

    Raises
    ------
    ConfigError
        If the model is an integer graph, or the platform is unknown.
    ModelError
        If the model cannot be read.
    """
    deadline = time.monotonic() + budget_s
    targets = PLATFORMS if platform is None else (get_target(platform),)
    graph = _load_float_model(model)
    input_shape, fix = input_shape or {}, fix or {}
    summary = _summarize(graph)
    try:
        normalized, _ = normalize_model(graph, GENERIC, calib, input_shape, fix)
    except LingerOnnxError as error:
        return Assessment(summary, problem=str(error))
    partition = partition_with_clip_fallback(normalized, GENERIC, {}, 8)
    model_macs = count_model_macs(graph)
    macs = count_mac_shares(partition, {}, False, model_macs)
    platforms = [_assess_generic(partition, macs)]
    not_judged: list[str] = []
    for target in targets:
        if not target.has_packer:
            continue
        now, is_first = time.monotonic(), len(platforms) == 1
        chip_deadline = max(deadline, now + DEFAULT_BUDGET_S) if is_first else deadline
        if not_judged or now > chip_deadline:
            not_judged.append(target.name)
            continue
        fitted, _ = normalize_model(graph, target, calib, input_shape, fix)
        try:
            with set_deadline(chip_deadline):
                platforms.append(_assess_chip(check_float_model(fitted, target)))
        except DeadlineError:
            not_judged.append(target.name)
    data = os.fspath(calib) if isinstance(calib, str | os.PathLike) else None
    command = _CommandLine(_model_path(model), data, _format_options(input_shape, fix))
    next_steps = command.suggest_next_steps(graph, _choose_platform(platforms))
    if not_judged and len(platforms) == 1:
        next_steps.append(command.suggest_check(not_judged[0], "searches tiles without a limit"))
    return Assessment(
        replace(summary, macs=macs.total),
        platforms,
        not_judged,
        _find_weight_risks(partition),
        next_steps,
    )


def _load_float_model(model: ir.ModelLike) -> ir.Model:
    """Load `model`, and raise ConfigError if it is an integer graph."""
    proto = ir.as_model_proto(model)
    is_integer = is_packable(proto) if proto is not None else is_integer_graph(ir.as_model(model))
    if is_integer:
        path = _model_path(model)
        raise ConfigError(
            f"{path} is an integer graph: it is quantized already; judge it with "
            f"{join_shell(['lingeronnx', 'check', path])}, or pass the float model"
        )
    if proto is not None:
        return ir.convert_user_model(proto, ir.model_label(model))
    return ir.as_model(model)


def _model_path(model: ir.ModelLike) -> str:
    """Return the path of `model`, or "model.onnx" for a model in memory."""
    return os.fspath(model) if isinstance(model, str | os.PathLike) else "model.onnx"


def _summarize(graph: ir.Model) -> ModelSummary:
    """Summarize `graph` as the user wrote it, without its MACs."""
    inputs = {
        spec.name: f"{spec.dtype} {_format_shape(spec.shape)}" for spec in get_input_specs(graph)
    }
    outputs = {
        str(value.name): f"{_dtype_name(value)} {_format_shape(ir.get_shape(value))}"
        for value in graph.graph.outputs
    }
    nodes = [node for node in graph.graph.all_nodes() if node.op_type != "Constant"]
    parameters = sum(
        array.size
        for _, array in iter_constants(graph)
        if array.dtype.kind == "f" or array.dtype.itemsize == 1
    )
    operators = Counter(ir.display_op_type(node) for node in nodes)
    return ModelSummary(inputs, outputs, ir.get_opset(graph), dict(operators), parameters)


def _dtype_name(value: ir.Value) -> str:
    """Return the name of the type of `value` as numpy's, such as "float32"."""
    return "float32" if value.dtype is None else str(np.dtype(value.dtype.numpy()))


def _format_shape(shape: Sequence[int | None] | None) -> str:
    """Format a shape such as "[?, 3, 32]", with ? for any size; "[...]" for an unknown rank."""
    if shape is None:
        return "[...]"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _assess_generic(partition: Partition, macs: MacShares) -> PlatformAssessment:
    """Assess the platform without limits: which nodes of its `partition` stay in float."""
    between, host_part = split_float_nodes(
        partition.graph, partition.floats, partition.integer_node_ids
    )
    share = macs.host_integer / macs.total if macs.total else None
    reasons = format_float_nodes(between, False)
    return PlatformAssessment(
        GENERIC.name,
        not between,
        share,
        reason=reasons[0] if reasons else "",
        other_reasons=max(len(reasons) - 1, 0),
        float_nodes=[*between, *host_part],
    )


def _assess_chip(check: Check) -> PlatformAssessment:
    """Assess a chip by the check of the float model, as --fit rewrites it."""
    verdict = None if check.choice is None else check.choice.verdict
    ready = verdict is not None and verdict.is_chip_ready and not check.remaining
    reasons = [str(violation) for violation in check.remaining]
    if verdict is not None and not verdict.is_chip_ready:
        findings = [finding for finding in verdict.findings if finding.level != "unmeasured"]
        reasons += [str(finding) for finding in findings]
    if not ready and not reasons:
        reasons = ["no operator becomes integer, or its integer graph cannot be forecast"]
    cost = "" if check.cost is None else check.cost.format_totals()
    float_nodes = check.host_part
    if check.program.parts:
        cost = f"in parts: {check.program.format_line(check.chip_mac_share)}"
        float_nodes = check.host_nodes
    is_forecast = verdict is not None or bool(check.program.parts)
    return PlatformAssessment(
        check.platform,
        ready,
        check.chip_mac_share if is_forecast else None,
        reason=reasons[0] if reasons else "",
        other_reasons=max(len(reasons) - 1, 0),
        cost=cost,
        basis=check.basis if ready else "",
        float_nodes=float_nodes,
    )


def _find_weight_risks(partition: Partition) -> list[WeightRisk]:
    """Find the weights with a low SQNR at the default scales of `quantize`, the lowest first."""
    risks = []
    for node, op in partition.integer_nodes:
        for index in op.weight_inputs(node):
            values = get_weight_values(node, index)
            if values is None or not np.any(values):
                continue
            sqnr_db = _compute_weight_sqnr(np.asarray(values), op)
            if sqnr_db < _MIN_WEIGHT_SQNR_DB:
                risks.append(WeightRisk(str(node.name), ir.input_name(node, index), sqnr_db))
    return sorted(risks, key=lambda risk: risk.sqnr_db)


def _compute_weight_sqnr(values: np.ndarray, op: Op) -> float:
    """Compute the median SQNR in dB of the channels of a weight that is rounded to 8 bits.

    Channels of zeros do not count; a weight without a channel axis is one channel. At least one
    value must not be 0.
    """
    config = QuantConfig()
    policy = ScalePolicy(
        config.mode, config.bits, config.weight_bits, config.calibrator, config.percentile, {}
    ).policy_for_tensors([], config.weight_bits)
    scale = policy.choose_scale(TensorStats.from_array(values))
    exact = values.astype(np.float64)
    errors = Affine(scale, policy.bits).on_grid(exact) - exact
    axis = op.integer_op.channel_axis
    channel_count = 1 if axis is None else values.shape[axis]
    signal, noise = (
        np.square(np.moveaxis(array, axis or 0, 0).reshape(channel_count, -1)).sum(axis=1)
        for array in (exact, errors)
    )
    is_nonzero = signal > 0
    ratios = signal[is_nonzero] / np.maximum(noise[is_nonzero], np.finfo(np.float64).tiny)
    return float(10 * np.log10(np.median(ratios)))


def _format_options(
    input_shape: Mapping[str, Sequence[int]], fix: Mapping[str, object]
) -> list[str]:
    """Return the options of the user as words of a command line."""
    words: list[str] = []
    for name, shape in input_shape.items():
        words += ["--input-shape", f"{name}={','.join(map(str, shape))}"]
    for name, value in fix.items():
        words += ["--fix", f"{name}={value}"]
    return words


@dataclass(frozen=True)
class _CommandLine:
    """What commands about a model have in common.

    Attributes
    ----------
    path
        Path of the model.
    data
        Calibration data of the user, or None.
    options
        Further options of the user, as words.
    """

    path: str
    data: str | None
    options: Sequence[str]

    def suggest_next_steps(self, graph: ir.Model, platform: PlatformAssessment) -> list[str]:
        """Suggest commands to quantize for `platform`, and to see all reasons if it is not ready.

        Without data of the user, also how to store calibration data.
        """
        states = propose_states(graph)
        state_words = [
            word for output, name in states.items() for word in ("--state", f"{output}={name}")
        ]
        fixed, sampled = self._split_inputs(graph, set(states.values()))
        values = {str(value.name): value for value in graph.graph.inputs}
        fix_words = [
            word for name in fixed for word in format_fix_option(values[name]).split(" ", 1)
        ]
        words = [*self.options, *fix_words, *state_words]
        command = ["lingeronnx", "quantize", self.path, "--platform", platform.platform]
        steps = []
        if is_quantized(graph):
            steps.append(f"{join_shell([*command, *words])} (the file has its scales)")
        else:
            if self.data is None:
                steps.append(f"store typical samples: {_format_savez(sampled)}")
            if fixed:
                steps.append(format_fix_suggestion(graph, fixed))
            steps.append(join_shell([*command, "--calib", self.data or "calib.npz", *words]))
            image_words = _image_folder_words(sampled)
            if self.data is None and image_words:
                line = join_shell([*command, *image_words, *words])
                steps.append(f"for a folder of images: {line}, with --mean and --std of training")
        if not platform.ready:
            steps.append(self.suggest_check(platform.platform, "all reasons"))
        return steps

    def suggest_check(self, platform: str, purpose: str) -> str:
        """Suggest to check the model for a platform; `purpose` says what that adds."""
        check = ["lingeronnx", "check", self.path, "--platform", platform]
        return f"{join_shell([*check, *self.options])} ({purpose})"

    def _split_inputs(
        self, graph: ir.Model, states: Collection[str]
    ) -> tuple[list[str], list[InputSpec]]:
        """Split the inputs that are no states: names of scalars, and inputs with samples.

        Scalars that the user fixed already are in neither.
        """
        user_fixed = {word.partition("=")[0] for word in self.options}
        scalars = set(find_scalar_inputs(graph))
        fixed, sampled = [], []
        for spec in get_input_specs(graph):
            if spec.name in states:
                continue
            if spec.name not in scalars:
                sampled.append(spec)
            elif spec.name not in user_fixed:
                fixed.append(spec.name)
        return fixed, sampled


def _format_savez(specs: Sequence[InputSpec]) -> str:
    """Format the call of np.savez that stores an array for each input, with types and shapes."""
    forms = []
    for spec in specs:
        dims = ["N" if axis == spec.axis else dim for axis, dim in enumerate(spec.shape or ())]
        shape = ", ".join("?" if dim is None else str(dim) for dim in dims)
        forms.append(f"{spec.name} {spec.dtype} [{shape}]")
    arguments = ", ".join(f"{spec.name}={spec.name}" for spec in specs)
    if not all(spec.name.isidentifier() and not iskeyword(spec.name) for spec in specs):
        entries = ", ".join(f"{spec.name!r}: array{i}" for i, spec in enumerate(specs))
        arguments = f"**{{{entries}}}"
    return f"np.savez('calib.npz', {arguments}), {'; '.join(forms)}"


def _choose_platform(platforms: Sequence[PlatformAssessment]) -> PlatformAssessment:
    """Choose the first chip that is ready, else the one with most MACs in integers.

    The default chip wins a tie; the generic platform is chosen if there is no chip.
    """
    chips = [entry for entry in platforms if entry.platform != GENERIC.name] or list(platforms)
    return max(
        chips,
        key=lambda entry: (
            entry.ready,
            0.0 if entry.ready else entry.integer_mac_share or 0.0,
            entry.platform == DEFAULT.name,
        ),
    )


def _image_folder_words(specs: Sequence[InputSpec]) -> list[str]:
    """Return the options that calibrate on a folder of images; [] if the only input is no image.

    An image has one or three channels and a known height and width.
    """
    shape = specs[0].shape if len(specs) == 1 else None
    if shape is None or len(shape) != 4:
        return []
    is_nhwc = shape[1] not in (1, 3) and shape[3] in (1, 3)
    channels, height, width = (shape[3], shape[1], shape[2]) if is_nhwc else shape[1:]
    if channels not in (1, 3) or min(height or 0, width or 0) < _MIN_IMAGE_SIDE:
        return []
    words = ["--calib", "IMAGE_FOLDER", "--image-size", f"{width},{height}"]
    if channels == 1:
        words += ["--color", "gray"]
    return [*words, "--layout", "nhwc"] if is_nhwc else words


def _shorten(text: str) -> str:
    """Return the first `_MAX_REASON_LENGTH` characters of `text`, with "..." if it is longer."""
    return text if len(text) <= _MAX_REASON_LENGTH else f"{text[:_MAX_REASON_LENGTH]}..."
