"""Further refusals of single versions of the packer, by name.

A version selects rules by their names in `PackerProfile.refusals`. Each rule returns the value of a
step that breaks it, or None; its docstring is the rule that users read, ``rule | remedy``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ...common.arithmetic import round_up
from ...operators.integer_ops import (
    AVG_POOL2D,
    BATCH_NORM2D,
    CONCAT,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    DEQUANT,
    DIV,
    GLU,
    GRU,
    LAYER_NORM,
    LINEAR,
    LSTM,
    PAD,
    REQUANT,
    SOFTMAX,
    TANH,
)
from ...targets.verdict import RuleBasis, VerdictFinding
from ..packer_profile import get_packer_profile
from .memory.findings import PlannedGraph
from .memory.work_areas import PlacedStep

__all__ = ["REFUSALS", "check_version_refusals"]

#: Returns the value of a step that breaks a rule, or None.
Refusal = Callable[[PlacedStep], object]


def _q(scale: float) -> int:
    """Return log2 of a power-of-two scale."""
    return round(math.log2(scale))


def _find_psram(node: PlacedStep) -> str | None:
    """Return "psram" if the first input or the first output of a node is there, else None."""
    return "psram" if node.is_input_in_psram() or node.is_output_in_psram else None


def _find_stride(node: PlacedStep) -> str | None:
    """Return the strides of a window unless all are 1, 2 or 4."""
    strides = node.step.get("strides") or [1, 1]
    return str(strides) if any(stride not in (1, 2, 4) for stride in strides) else None


def _get_kernel(node: PlacedStep) -> tuple[int, ...]:
    """Return the sides of a window, those of the weight if there is no attribute."""
    kernel = node.step.get("kernel_shape")
    return tuple(kernel if kernel else node.inputs[1].shape[2:])


def lstm_batch(node: PlacedStep) -> object:
    """An LSTMInt must have one sample, where batch_first says | write [1, T, I], batch_first 1."""
    axis = 0 if node.step.get("batch_first") else 1
    return list(node.x.shape) if node.x.shape[axis] != 1 else None


def lstm_psram(node: PlacedStep) -> object:
    """Input and outputs of an LSTMInt must be in shared memory | leave them there."""
    names = [name for name in node.step.outputs if node.placements.get(name) == "psram"]
    return _find_psram(node) or (names[0] if names else None)


def lstm_state_scale(node: PlacedStep) -> object:
    """scale_h of an LSTMInt must be scale_o, and scale_c 2^15 | quantize it again."""
    scale_h, scale_o = node.step.get("scale_h"), node.step.get("scale_o")
    scale_c = node.step.get("scale_c")
    if scale_h != scale_o:
        return f"scale_h {scale_h}, scale_o {scale_o}"
    return f"scale_c {scale_c}" if scale_c not in (None, 2.0**15) else None


def gru_attributes(node: PlacedStep) -> object:
    """A GRUInt must have input_size, hidden_size, go_forward and scale_h = scale_o | add them."""
    keys = ("input_size", "hidden_size", "go_forward")
    missing = [key for key in keys if node.step.get(key) is None]
    scale_h, scale_o = node.step.get("scale_h"), node.step.get("scale_o")
    if scale_h != scale_o:
        missing.append(f"scale_h {scale_h}, scale_o {scale_o}")
    return ", ".join(missing) or None


def gru_state_input(node: PlacedStep) -> object:
    """A GRUInt must have a first state as its second input | add it."""
    return f"{len(node.inputs)} inputs" if len(node.inputs[1].shape) != 3 else None


def _make_gru_size_rule(counts_sequence: bool) -> Refusal:
    """Make the rule on input and weights of a GRUInt; `counts_sequence` counts all steps."""

    def gru_size(node: PlacedStep) -> object:
        """Return the product of both sizes above 32768, or None."""
        elements = node.x.elements if counts_sequence else node.x.shape[-1]
        size = round_up(elements, 8) * round_up(3 * int(node.step.get("hidden_size")), 4)
        return size if size > 32768 else None

    subject = "all inputs" if counts_sequence else "one input"
    gru_size.__doc__ = (
        f"the elements of {subject} of a GRUInt, rounded up to 8, times 3 hidden_size, rounded up "
        "to 4, must not exceed 32768 | use a shorter sequence or fewer units"
    )
    return gru_size


def norm_rank(node: PlacedStep) -> object:
    """The input of a LayerNormInt must have at least three axes | reshape it before and after."""
    return f"{len(node.x.shape)} axes" if len(node.x.shape) < 3 else None


def norm_scales(node: PlacedStep) -> object:
    """A LayerNormInt needs 0 <= q_x <= 15 and 0 <= 15 + q_w - q_o <= 63 | choose other scales."""
    q_x, q_w, q_o = (_q(node.step.get(key)) for key in ("scale_x", "scale_w", "scale_o"))
    is_valid = 0 <= q_x <= 15 and 0 <= 15 + q_w - q_o <= 63
    return None if is_valid else f"q_x {q_x}, q_w {q_w}, q_o {q_o}"


def norm_parameter_bits(node: PlacedStep) -> object:
    """parameter_bits of a LayerNormInt must be the width of its weight | write it so."""
    bits = node.step.get("parameter_bits", 8)
    return bits if bits != 8 * node.inputs[1].width else None


def norm_psram(node: PlacedStep) -> object:
    """Input and output of a LayerNormInt must be in shared memory | leave them there."""
    return _find_psram(node)


def batch_norm_psram(node: PlacedStep) -> object:
    """Input and output of a BatchNorm2dInt must be in shared memory | leave them there."""
    return _find_psram(node)


def pad_psram(node: PlacedStep) -> object:
    """Input and output of an iqPad must be in shared memory | leave them there."""
    return _find_psram(node)


def average_psram(node: PlacedStep) -> object:
    """Input and output of an AvgPool2dInt must be in shared memory | leave them there."""
    return _find_psram(node)


def concat_psram(node: PlacedStep) -> object:
    """Tensors of an iqCat with different scales must be in shared memory | use one scale."""
    scale = node.step.get("scale_o")
    indices = range(len(node.inputs))
    is_rescaled = any(node.step.get(f"scale_x_{i}", scale) != scale for i in indices)
    uses_psram = node.is_output_in_psram or any(node.is_input_in_psram(i) for i in indices)
    return "psram" if is_rescaled and uses_psram else None


def max_pool_psram(node: PlacedStep) -> object:
    """The output of a MaxPool must be in shared memory | leave it there."""
    return "psram" if node.is_output_in_psram else None


def average_stride(node: PlacedStep) -> object:
    """Strides of an AvgPool2dInt must be 1, 2 or 4 unless its window is the map | pool in steps."""
    is_global = tuple(_get_kernel(node)) == tuple(node.x.shape[2:])
    return None if is_global else _find_stride(node)


def max_pool_stride(node: PlacedStep) -> object:
    """Strides of a MaxPool must be 1, 2 or 4 | pool in steps."""
    return _find_stride(node)


def _make_average_kernel_rule(max_side: int) -> Refusal:
    """Make the rule on the largest side of an average's window that is not the whole map."""

    def average_kernel(node: PlacedStep) -> object:
        """Return the sides of a window above the limit, or None."""
        kernel = _get_kernel(node)
        is_global = kernel == tuple(node.x.shape[2:])
        return list(kernel) if not is_global and max(kernel) > max_side else None

    average_kernel.__doc__ = (
        f"the window of an AvgPool2dInt must be the map, or at most {max_side} long | pool in steps"
    )
    return average_kernel


def average_ceil(node: PlacedStep) -> object:
    """ceil_mode of an AvgPool2dInt must be 0 | pad the map explicitly."""
    return "ceil_mode 1" if node.step.get("ceil_mode") else None


def average_scale(node: PlacedStep) -> object:
    """An average of a power of two elements must keep the scale | add a Requant after it."""
    area = math.prod(_get_kernel(node))
    scales = node.step.get("scale_x"), node.step.get("scale_o")
    return (
        f"{scales[0]}, {scales[1]}" if area & (area - 1) == 0 and scales[0] != scales[1] else None
    )


def pad_below_kernel(node: PlacedStep) -> object:
    """Each pad must be smaller than the kernel | pad the map explicitly."""
    kernel = _get_kernel(node)
    pads = node.step.get("pads") or [0] * (2 * len(kernel))
    return str(list(pads)) if any(p >= k for p, k in zip(pads, kernel * 2, strict=False)) else None


def one_sample(node: PlacedStep) -> object:
    """The batch size must be 1 | write the graph for one sample."""
    return node.x.shape[0] if node.x.shape[0] > 1 else None


def no_dilation(node: PlacedStep) -> object:
    """A Conv1dInt must not be dilated | expand the kernel with zeros."""
    dilations = node.step.get("dilations") or [1]
    return str(list(dilations)) if any(d != 1 for d in dilations) else None


def _make_output_bits_rule(widths: tuple[int, ...]) -> Refusal:
    """Make the rule on the widths of a convolution's output."""

    def output_bits(node: PlacedStep) -> object:
        """Return a width that is not supported, or None."""
        bits = node.step.get("o_bits", 8)
        return bits if bits not in widths else None

    text = " or ".join(map(str, widths))
    output_bits.__doc__ = f"o_bits of a convolution must be {text} | quantize it to 8 bits"
    return output_bits


def tanh_scale(node: PlacedStep) -> object:
    """The input of an iqTanh must have the scale 2^11 | add a Requant."""
    scale = node.step.get("scale_x")
    return f"{scale:g}" if scale != 2.0**11 else None


def wide_tanh_scale(node: PlacedStep) -> object:
    """The input of an iqTanh must have the scale 2^27 | add a Requant."""
    scale = node.step.get("scale_x")
    return f"{scale:g}" if scale != 2.0**27 else None


def relu_shift(node: PlacedStep) -> object:
    """scale_o of a Relu must not be below the scale of its input | leave scale_o out."""
    scale_x, scale_o = node.step.get("scale_x") or node.x.scale, node.step.get("scale_o")
    if scale_x is None or scale_o is None or scale_o >= scale_x:
        return None
    return f"{scale_x:g} to {scale_o:g}"


def slice_step(node: PlacedStep) -> object:
    """The steps of a Slice must be 1 | use other operators."""
    steps = node.step.get("steps") or [1]
    return str(list(steps)) if any(step != 1 for step in steps) else None


def softmax_axis(node: PlacedStep) -> object:
    """The axis of a SoftmaxInt must be the last one | transpose it before and after."""
    rank = len(node.x.shape)
    axis = int(node.step.get("axis", node.step.get("dim", -1)))
    return axis if axis % rank != rank - 1 else None


def int4_linear_width(node: PlacedStep) -> object:
    """A LinearInt with 4-bit weights must have an even number of inputs | use 8 bits."""
    columns = node.x.shape[-1]
    return columns if node.step.weight_bits == 4 and columns % 2 else None


def linear_weight_bits(node: PlacedStep) -> object:
    """The weights of a LinearInt must have 8 bits | use 8 bits."""
    return node.step.weight_bits if node.step.weight_bits != 8 else None


def requant_widening(node: PlacedStep) -> object:
    """A Requant must not widen 8 bits to 16 | keep 8 bits."""
    widens = node.x.width == 1 and node.step.get("o_bits") == 16
    return "8 to 16 bits" if widens else None


def requant_psram(node: PlacedStep) -> object:
    """Tensors of a Requant that keeps the width must be in shared memory | leave them there."""
    return _find_psram(node) if node.x.width == node.y.width else None


def dequant_scale(node: PlacedStep) -> object:
    """scale_o of a Dequant must be 2^0 to 2^30 | choose a larger scale."""
    scale = float(node.step.get("scale_o"))
    return f"{scale:g}" if not 1 <= scale <= 2.0**30 else None


def div_shift(node: PlacedStep) -> object:
    """scale_o of an iqDiv must be scale_x / scale_y times 2^0 to 2^63 | raise scale_o."""
    scale_x, scale_y, scale_o = (node.step.get(key) for key in ("scale_x", "scale_y", "scale_o"))
    if None in (scale_x, scale_y, scale_o):
        return None
    shift = _q(scale_o) - (_q(scale_x) - _q(scale_y))
    return f"2^{shift}" if not 0 <= shift <= 63 else None


def div_psram(node: PlacedStep) -> object:
    """Tensors of an iqDiv must be in shared memory | leave them there."""
    uses_psram = any(node.is_input_in_psram(index) for index in range(len(node.inputs)))
    return "psram" if uses_psram or node.is_output_in_psram else None


def glu_one_row(node: PlacedStep) -> object:
    """A GluInt must have one row, along its last axis | split the rows."""
    rank = len(node.x.shape)
    is_last = int(node.step.get("dim", -1)) % rank == rank - 1
    return list(node.x.shape) if not is_last or node.x.elements != node.x.shape[-1] else None


def gelu_psram(node: PlacedStep) -> object:
    """The input of a QGelu or QSwish must be in shared memory | leave it there."""
    return "psram" if node.is_input_in_psram() else None


def gelu_scales(node: PlacedStep) -> object:
    """QGelu and QSwish need -3 <= q_x <= 90 and -36 <= q_o <= 57 | choose other scales."""
    q_x, q_o = _q(node.step.get("scale_x")), _q(node.step.get("scale_o"))
    return None if -3 <= q_x <= 90 and -36 <= q_o <= 57 else f"q_x {q_x}, q_o {q_o}"


def prelu_shifts(node: PlacedStep) -> object:
    """post_shift of a PRelu must be 0 to 63 | choose other scales."""
    shift = int(node.step.get("post_shift", 0))
    return shift if not 0 <= shift <= 63 else None


#: Name -> operators that the rule is on, and the rule.
REFUSALS: Mapping[str, tuple[tuple[str, ...], Refusal]] = MappingProxyType(
    {
        "lstm batch": ((LSTM.name,), lstm_batch),
        "lstm psram": ((LSTM.name,), lstm_psram),
        "lstm state scale": ((LSTM.name,), lstm_state_scale),
        "gru attributes": ((GRU.name,), gru_attributes),
        "gru state input": ((GRU.name,), gru_state_input),
        "gru sequence size": ((GRU.name,), _make_gru_size_rule(counts_sequence=True)),
        "gru input size": ((GRU.name,), _make_gru_size_rule(counts_sequence=False)),
        "glu one row": ((GLU.name,), glu_one_row),
        "gelu psram": (("QGelu", "QSwish"), gelu_psram),
        "gelu scales": (("QGelu", "QSwish"), gelu_scales),
        "div shift": ((DIV.name,), div_shift),
        "div psram": ((DIV.name,), div_psram),
        "norm rank": ((LAYER_NORM.name,), norm_rank),
        "norm scales": ((LAYER_NORM.name,), norm_scales),
        "norm parameter_bits": ((LAYER_NORM.name,), norm_parameter_bits),
        "norm psram": ((LAYER_NORM.name,), norm_psram),
        "batch norm psram": ((BATCH_NORM2D.name,), batch_norm_psram),
        "pad psram": ((PAD.name,), pad_psram),
        "average psram": ((AVG_POOL2D.name,), average_psram),
        "concat psram": ((CONCAT.name,), concat_psram),
        "max pool psram": (("MaxPool",), max_pool_psram),
        "average stride": ((AVG_POOL2D.name,), average_stride),
        "max pool stride": (("MaxPool",), max_pool_stride),
        "average kernel 5": ((AVG_POOL2D.name,), _make_average_kernel_rule(5)),
        "average kernel 7": ((AVG_POOL2D.name,), _make_average_kernel_rule(7)),
        "average ceil": ((AVG_POOL2D.name,), average_ceil),
        "average scale": ((AVG_POOL2D.name,), average_scale),
        "pad below kernel": ((CONV2D.name, CONV_TRANSPOSE2D.name), pad_below_kernel),
        "one sample": (
            (CONV2D.name, CONV_TRANSPOSE2D.name, AVG_POOL2D.name, "MaxPool"),
            one_sample,
        ),
        "one sample 1d": ((CONV1D.name,), one_sample),
        "no dilation 1d": ((CONV1D.name,), no_dilation),
        "output bits 8": ((CONV2D.name, CONV_TRANSPOSE2D.name), _make_output_bits_rule((8,))),
        "output bits 8 or 32": (
            (CONV2D.name, CONV_TRANSPOSE2D.name),
            _make_output_bits_rule((8, 32)),
        ),
        "tanh scale": ((TANH.name,), tanh_scale),
        "wide tanh scale": ((TANH.name,), wide_tanh_scale),
        "relu shift": (("Relu",), relu_shift),
        "slice step": (("Slice",), slice_step),
        "softmax axis": ((SOFTMAX.name,), softmax_axis),
        "int4 linear width": ((LINEAR.name,), int4_linear_width),
        "linear weight bits": ((LINEAR.name,), linear_weight_bits),
        "requant widening": ((REQUANT.name,), requant_widening),
        "requant psram": ((REQUANT.name,), requant_psram),
        "dequant scale": ((DEQUANT.name,), dequant_scale),
        "prelu shifts": (("PRelu",), prelu_shifts),
    }
)


def check_version_refusals(plan: PlannedGraph) -> Iterator[VerdictFinding]:
    """Yield a finding of level "packs" for each rule of the version that a step breaks.

    The basis is "read" if the version was never measured.
    """
    names = get_packer_profile(plan.target).refusals
    basis: RuleBasis = "read" if "" in plan.target.unmeasured else "measured"
    for step in plan.graph.steps:
        for name in names:
            operators, rule = REFUSALS[name]
            value = rule(plan.get_placed_step(step)) if step.op in operators else None
            if value is not None:
                text, _, remedy = " ".join((rule.__doc__ or "").split()).partition(" | ")
                yield VerdictFinding(
                    "packs", step.origin, text, str(value), remedy.rstrip("."), basis
                )
