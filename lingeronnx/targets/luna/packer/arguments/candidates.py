"""Candidates for the packer's arguments.

Sets of tensors to be placed in PSRAM that were measured to help.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .....formats import AVG_POOL2D, CONCAT, LAYER_NORM, LINEAR, LSTM, SOFTMAX
from .... import Target
from ...packer_profile import get_packer_profile
from ..evaluation import PreparedGraph
from ..int4_checks import INT4_BITS
from ..memory.findings import RESHAPE_OPERATORS
from ..options import PSRAM, SHARE, PackerOptions
from ..packer_graph import PackerGraph

__all__ = [
    "ArgumentCandidate",
    "find_multirow_linear_outputs",
    "find_reshape_source",
    "include_reshape_aliases",
    "is_valid_option_name",
    "iterate_candidates",
]

#: Tensors above these sizes are moved by themselves, the largest first.
_LARGE_TENSOR_BYTES = (131072, 65536, 32768, 4096)


@dataclass(frozen=True)
class ArgumentCandidate:
    """Tensors that go to PSRAM, and the other arguments."""

    psram_tensors: tuple[str, ...] = ()
    prefetch: bool = True
    shared: bool = False
    all_psram: bool = False

    def to_options(self, base: PackerOptions) -> PackerOptions:
        """Return what the packer would make of it."""
        thresholds = (*base.thresholds[:3], 1) if self.all_psram else base.thresholds
        return replace(
            base,
            placements=dict.fromkeys(self.psram_tensors, PSRAM),
            prefetch=self.prefetch,
            thresholds=thresholds,
            constant_memory=SHARE if self.shared else PSRAM,
        )

    def to_argv(self, base: PackerOptions) -> tuple[str, ...]:
        """Return it as arguments.

        A dump needs a login terminal; without one the package is the same.
        """
        words = ["-p", str(base.platform), "-d", "False"]
        if base.symbol_sizes:
            words += ["-c", ",".join(f"{name}={size}" for name, size in base.symbol_sizes.items())]
        if not self.prefetch:
            words += ["--dma_prefetch", "False"]
        if self.all_psram:
            words += ["--threshold4", "1"]
        places = [f"{name}:{PSRAM}" for name in self.psram_tensors] + (
            [f"params:{SHARE}"] if self.shared else []
        )
        return (*words, "-m", ",".join(places)) if places else tuple(words)


def iterate_candidates(ready: PreparedGraph, target: Target) -> Iterator[ArgumentCandidate]:
    """Yield the candidates, cheapest first.

    Prefetching hides the time of loading, shared memory is the faster one.
    """
    if ready.net is None:
        yield ArgumentCandidate()
        return
    yielded = set()
    for names in _iterate_psram_sets(ready.net, target):
        plain = tuple(
            n for n in include_reshape_aliases(ready.net, names) if is_valid_option_name(n)
        )
        ways = [
            ArgumentCandidate(plain),
            ArgumentCandidate(plain, prefetch=False),
            ArgumentCandidate(plain, shared=True),
        ]
        if any(
            step.weight_bits == INT4_BITS for step in ready.net.steps
        ):  # few prefetch those: they had better lie near
            ways[1:] = ways[:0:-1]
        for candidate in ways:
            if candidate not in yielded:
                yielded.add(candidate)
                yield candidate
    for prefetch in (True, False):
        yield ArgumentCandidate(prefetch=prefetch, all_psram=True)
    yield ArgumentCandidate(shared=True, all_psram=True)


def _iterate_psram_sets(net: PackerGraph, target: Target) -> Iterator[Sequence[str]]:
    """Yield sets of tensors to be placed in PSRAM, smallest first, as far as the chip has use for them."""
    outside = find_multirow_linear_outputs(net, target)
    groups = [
        g
        for g in (
            outside,
            _find_softmax_stacks(net),
            _find_layer_norm_tensors(net),
            _find_global_average_outputs(net),
            _find_lstm_outputs(net, target),
        )
        if g
    ]
    helpful = [[], outside] if outside else [[]]
    yield []
    yield from groups
    for index in range(2, len(groups) + 1):
        yield [name for group in groups[:index] for name in group]
    for first in helpful:
        for size in _LARGE_TENSOR_BYTES:
            every = {t.name for t in net.iterate_tensors()}
            for kept in (
                _find_split_and_join_tensors(net),
                _find_split_and_join_tensors(net) | _find_concat_inputs(net),
                every - _find_slice_outputs(net),
                every,
            ):
                yield [
                    *first,
                    *(
                        t.name
                        for t in net.iterate_tensors()
                        if t.size_bytes > size and t.name in kept
                    ),
                ]
    yield [*outside, *_find_layer_norm_tensors(net), *_find_lstm_inputs(net)]


def is_valid_option_name(name: str) -> bool:
    """Whether -m can say the name."""
    return not set(":,") & set(name)


def include_reshape_aliases(net: PackerGraph, names: Sequence[str]) -> list[str]:
    """Return tensors with what is reshaped from them, which lies where they do."""
    with_reshaped = dict.fromkeys(names)
    for step in net.steps:
        if step.op in RESHAPE_OPERATORS and step.inputs[0] in with_reshaped:
            with_reshaped |= dict.fromkeys(step.outputs)
    return list(with_reshaped)


def find_multirow_linear_outputs(net: PackerGraph, target: Target) -> list[str]:
    """Return the outputs of LinearInt with several rows, where the chip wants them outside."""
    if not get_packer_profile(target).multirow_linear_needs_psram:
        return []
    outputs = [net.tensors[s.outputs[0]] for s in net.steps if s.op == LINEAR.name]
    return [t.name for t in outputs if t.elements > t.shape[-1]]


def _find_layer_norm_tensors(net: PackerGraph) -> list[str]:
    """Return what LayerNormInt reads and writes."""
    return [n for s in net.steps if s.op == LAYER_NORM.name for n in (s.inputs[0], s.outputs[0])]


def _find_softmax_stacks(net: PackerGraph) -> list[str]:
    """Return what iqCat makes for SoftmaxInt to take parts of.

    Written to PSRAM, it has a work area planned.
    """
    fed = {s.inputs[0] for s in net.steps if s.op == SOFTMAX.name}
    cut = {s.inputs[0] for s in net.steps if s.op == "Slice" and s.outputs[0] in fed}
    return [s.outputs[0] for s in net.steps if s.op == CONCAT.name and s.outputs[0] in cut]


def _find_global_average_outputs(net: PackerGraph) -> list[str]:
    """Return the outputs of averages over a whole map."""
    return [
        s.outputs[0]
        for s in net.steps
        if s.op == AVG_POOL2D.name
        and list(net.tensors[s.inputs[0]].shape[2:]) == list(s.get("kernel_shape"))
    ]


def _find_lstm_inputs(net: PackerGraph) -> list[str]:
    """Return what LSTMInt reads, before it was reshaped."""
    return [find_reshape_source(net, s.inputs[0]) for s in net.steps if s.op == LSTM.name]


def find_reshape_source(net: PackerGraph, name: str) -> str:
    """Return what a tensor was reshaped from."""
    while (maker := net.find_producer(name)) is not None and maker.op in RESHAPE_OPERATORS:
        name = maker.inputs[0]
    return name


def _find_lstm_outputs(net: PackerGraph, target: Target) -> list[str]:
    """Return what LSTMInt gives for every step, where its readers want it outside."""
    outputs = (
        [s.outputs[0] for s in net.steps if s.op == LSTM.name]
        if get_packer_profile(target).lstm_batch_first
        else []
    )
    return [name for name in outputs if net.find_consumers(name)]


def _find_split_and_join_tensors(net: PackerGraph) -> set[str]:
    """Return the graph inputs, the maps that are joined from parts, and those that parts are cut from."""
    joined = {s.outputs[0] for s in net.steps if s.op == CONCAT.name}
    return {
        *net.inputs,
        *joined,
        *({s.inputs[0] for s in net.steps if s.op == "Slice"} - _find_slice_outputs(net)),
    }


def _find_concat_inputs(net: PackerGraph) -> set[str]:
    """Return the parts that maps are joined from."""
    return {n for s in net.steps if s.op == CONCAT.name for n in s.inputs}


def _find_slice_outputs(net: PackerGraph) -> set[str]:
    """Return what is cut out of tensors."""
    return {s.outputs[0] for s in net.steps if s.op == "Slice"}
