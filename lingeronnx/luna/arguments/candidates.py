"""Candidates for the packer's arguments: sets of PSRAM tensors that were measured to help."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...operators.integer_ops import AVG_POOL2D, CONCAT, LAYER_NORM, LINEAR, LSTM, MUL, SOFTMAX
from ...targets import Target
from ..evaluation import PreparedGraph
from ..packer.int4_checks import INT4_BITS
from ..packer.memory.findings import RESHAPE_OPERATORS
from ..packer.options import PSRAM, SHARE, PackerOptions
from ..packer.packer_graph import PackerGraph
from ..packer_profile import get_packer_profile

__all__ = [
    "ArgumentCandidate",
    "find_multirow_linear_outputs",
    "find_reshape_source",
    "find_reshape_sources",
    "include_reshape_aliases",
    "is_valid_option_name",
    "iterate_candidates",
]

#: Size thresholds: all tensors above one of them are moved to PSRAM, the largest threshold first.
_LARGE_TENSOR_BYTES = (131072, 65536, 32768, 4096)


@dataclass(frozen=True)
class ArgumentCandidate:
    """Tensors to place in PSRAM, and the other packer arguments.

    shared : place all constants in shared memory.
    all_psram : place all tensors in PSRAM that are not named otherwise.
    """

    psram_tensors: tuple[str, ...] = ()
    prefetch: bool = True
    shared: bool = False
    all_psram: bool = False

    def to_options(self, base: PackerOptions) -> PackerOptions:
        """Return the packer options of the candidate, based on `base`.

        `psram_tensors` replace all placements of `base`; `all_psram` sets --threshold4 to 1 byte,
        so that larger tensors are in PSRAM. Constants are in shared memory if `shared`, else in
        PSRAM.
        """
        thresholds = (*base.thresholds[:3], 1) if self.all_psram else base.thresholds
        return replace(
            base,
            placements=dict.fromkeys(self.psram_tensors, PSRAM),
            prefetch=self.prefetch,
            thresholds=thresholds,
            constant_memory=SHARE if self.shared else PSRAM,
        )

    def to_argv(self, base: PackerOptions) -> tuple[str, ...]:
        """Return the packer's command-line arguments of the candidate, without file names.

        Platform and sizes of symbolic dimensions come from `base`. The packer's dump is switched
        off because it needs a login terminal; the package is the same.
        """
        argv = ["-p", str(base.platform), "-d", "False"]
        if base.symbol_sizes:
            argv += ["-c", ",".join(f"{name}={size}" for name, size in base.symbol_sizes.items())]
        if not self.prefetch:
            argv += ["--dma_prefetch", "False"]
        if self.all_psram:
            argv += ["--threshold4", "1"]
        placements = [f"{name}:{PSRAM}" for name in self.psram_tensors]
        if self.shared:
            placements.append(f"params:{SHARE}")
        if placements:
            argv += ["-m", ",".join(placements)]
        return tuple(argv)


def iterate_candidates(prepared: PreparedGraph, target: Target) -> Iterator[ArgumentCandidate]:
    """Yield the candidates of arguments for `prepared`, each once, the probably fastest first.

    For each set of PSRAM tensors: constants prefetched, not prefetched, in shared memory (with
    4-bit weights the last two are exchanged); at the end three with all tensors in PSRAM. If
    preparing gave no graph, only the default candidate.
    """
    net = prepared.net
    if net is None:
        yield ArgumentCandidate()
        return
    has_int4_weights = any(step.weight_bits == INT4_BITS for step in net.steps)
    yielded = set()
    for names in _iterate_psram_sets(net, target):
        psram_tensors = tuple(
            name for name in include_reshape_aliases(net, names) if is_valid_option_name(name)
        )
        variants = [
            ArgumentCandidate(psram_tensors),
            ArgumentCandidate(psram_tensors, prefetch=False),
            ArgumentCandidate(psram_tensors, shared=True),
        ]
        if has_int4_weights:  # often not prefetched, so shared memory comes before psram
            variants = [variants[0], variants[2], variants[1]]
        for candidate in variants:
            if candidate not in yielded:
                yielded.add(candidate)
                yield candidate
    for prefetch in (True, False):
        yield ArgumentCandidate(prefetch=prefetch, all_psram=True)
    yield ArgumentCandidate(shared=True, all_psram=True)


def _iterate_psram_sets(net: PackerGraph, target: Target) -> Iterator[Sequence[str]]:
    """Yield sets of names of tensors to place in PSRAM that may help, small sets first.

    First the empty set, groups of tensors with a known fault or cost (outputs of multi-row
    LinearInt, tensors of LayerNormInt, ...), unions of such groups, then for several size
    thresholds the larger tensors, and last the LinearInt, LayerNormInt and LSTMInt tensors. Sets
    may repeat.
    """
    linear_outputs = find_multirow_linear_outputs(net, target)
    groups = [
        linear_outputs,
        _find_softmax_stacks(net),
        _find_layer_norm_tensors(net),
        _find_global_average_outputs(net),
        _find_channel_mul_outputs(net),
    ]
    groups = [group for group in groups if group]
    yield []
    yield from groups
    for count in range(2, len(groups) + 1):
        yield list(itertools.chain.from_iterable(groups[:count]))
    for base_set in [[], linear_outputs] if linear_outputs else [[]]:
        yield from _iterate_large_tensor_sets(net, base_set)
    yield [*linear_outputs, *_find_layer_norm_tensors(net), *_find_lstm_inputs(net)]


def _iterate_large_tensor_sets(net: PackerGraph, base_set: Sequence[str]) -> Iterator[list[str]]:
    """Yield `base_set` extended by large tensors, for each of four size thresholds and four kinds.

    Large are tensors with more bytes than a threshold in `_LARGE_TENSOR_BYTES`. The kinds are
    tensors that are split or joined, also the iqCat inputs, all but Slice outputs, and all.
    """
    tensors = list(net.iterate_tensors())
    all_names = {tensor.name for tensor in tensors}
    split_or_joined = _find_split_and_join_tensors(net)
    eligible_sets = (
        split_or_joined,
        split_or_joined | _find_concat_inputs(net),
        all_names - _find_slice_outputs(net),
        all_names,
    )
    for threshold in _LARGE_TENSOR_BYTES:
        large_names = [tensor.name for tensor in tensors if tensor.size_bytes > threshold]
        for eligible in eligible_sets:
            yield [*base_set, *(name for name in large_names if name in eligible)]


def is_valid_option_name(name: str) -> bool:
    """Whether the packer's option -m can contain tensor name `name`: it has no ":" and no ","."""
    return not set(":,") & set(name)


def include_reshape_aliases(net: PackerGraph, names: Sequence[str]) -> list[str]:
    """Return `names`, then all tensors of `net` made from them by reshapes, in execution order.

    Reshapes of reshapes count; such tensors share the memory of their source. Each name is returned
    once.
    """
    aliases = dict.fromkeys(names)
    for step in net.steps:
        if step.op in RESHAPE_OPERATORS and step.inputs[0] in aliases:
            aliases |= dict.fromkeys(step.outputs)
    return list(aliases)


def find_multirow_linear_outputs(net: PackerGraph, target: Target) -> list[str]:
    """Return the outputs of all LinearInt with several rows, if the chip needs them in PSRAM.

    On other chips the list is empty.
    """
    if not get_packer_profile(target).multirow_linear_needs_psram:
        return []
    outputs = [net.tensors[s.outputs[0]] for s in net.steps if s.op == LINEAR.name]
    return [t.name for t in outputs if t.elements > t.shape[-1]]


def _find_layer_norm_tensors(net: PackerGraph) -> list[str]:
    """Return the names of input 0 and output 0 of all LayerNormInt, in execution order."""
    names: list[str] = []
    for step in net.steps:
        if step.op == LAYER_NORM.name:
            names += [step.inputs[0], step.outputs[0]]
    return names


def _find_softmax_stacks(net: PackerGraph) -> list[str]:
    """Return the names of iqCat outputs from which a Slice makes the input of a SoftmaxInt.

    If such an output is in PSRAM, a work area is planned for it.
    """
    softmax_inputs = {s.inputs[0] for s in net.steps if s.op == SOFTMAX.name}
    sliced = {s.inputs[0] for s in net.steps if s.op == "Slice" and s.outputs[0] in softmax_inputs}
    return [s.outputs[0] for s in net.steps if s.op == CONCAT.name and s.outputs[0] in sliced]


def _find_global_average_outputs(net: PackerGraph) -> list[str]:
    """Return the outputs of all AvgPool2dInt whose kernel is the complete map."""
    return [
        s.outputs[0]
        for s in net.steps
        if s.op == AVG_POOL2D.name
        and list(net.tensors[s.inputs[0]].shape[2:]) == list(s.get("kernel_shape"))
    ]


def _find_channel_mul_outputs(net: PackerGraph) -> list[str]:
    """Return the outputs of iqMul by one factor per channel, with more factors than positions.

    Such an iqMul writes past its work area, often into its output.
    """
    names = []
    for step in net.steps:
        shape = net.tensors[step.inputs[0]].shape
        if step.op != MUL.name or len(shape) != 4 or net.tensors[step.inputs[1]].shape == shape:
            continue
        if shape[1] > math.prod(shape[2:]):
            names.append(step.outputs[0])
    return names


def _find_lstm_inputs(net: PackerGraph) -> list[str]:
    """Return the tensor from which reshapes make the input of each LSTMInt, or that input."""
    return [find_reshape_source(net, s.inputs[0]) for s in net.steps if s.op == LSTM.name]


def find_reshape_source(net: PackerGraph, name: str) -> str:
    """Return the name of the tensor from which `name` is made by reshapes only, or `name` itself.

    Both share one memory.
    """
    while (producer := net.find_producer(name)) is not None:
        if producer.op not in RESHAPE_OPERATORS:
            break
        name = producer.inputs[0]
    return name


def find_reshape_sources(net: PackerGraph) -> dict[str, str]:
    """Return output of a reshape -> its `find_reshape_source`, for all reshapes of `net`."""
    sources: dict[str, str] = {}
    for step in net.steps:
        if step.op in RESHAPE_OPERATORS:
            source = sources.get(step.inputs[0], step.inputs[0])
            sources.update(dict.fromkeys(step.outputs, source))
    return sources


def _find_split_and_join_tensors(net: PackerGraph) -> set[str]:
    """Return graph inputs, outputs of iqCat, and tensors that a Slice reads but no Slice writes."""
    concatenated = {s.outputs[0] for s in net.steps if s.op == CONCAT.name}
    sliced = {s.inputs[0] for s in net.steps if s.op == "Slice"}
    return {*net.inputs, *concatenated, *(sliced - _find_slice_outputs(net))}


def _find_concat_inputs(net: PackerGraph) -> set[str]:
    """Return the names of all inputs of iqCat steps."""
    names: set[str] = set()
    for step in net.steps:
        if step.op == CONCAT.name:
            names.update(step.inputs)
    return names


def _find_slice_outputs(net: PackerGraph) -> set[str]:
    """Return the names of the first outputs of all Slice steps."""
    return {s.outputs[0] for s in net.steps if s.op == "Slice"}
