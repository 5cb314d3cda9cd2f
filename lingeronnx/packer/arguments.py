"""The packer's arguments for a graph: the cheapest that the verdict calls right, over the whole graph at once.

The candidates are those that were measured to help; each is a set of tensors to be placed in PSRAM, with or without
prefetching, and what else helps single operators. None is taken on trust: the verdict decides.
"""

from __future__ import annotations

import heapq
import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx

from ..formats import AVG_POOL2D, CONCAT, LAYER_NORM, LINEAR, LSTM, SOFTMAX
from ..graph import ir
from ..platforms import Platform
from .judge import Ready, Verdict, make_ready, verdict
from .memory import Memory, places_of, plan_memory, room
from .net import Finding, Net
from .options import PSRAM, SHARE, Options
from .overruns import written_past
from .planned import RESHAPED

__all__ = ["Choice", "arguments", "choose", "chosen", "plain_options", "shell"]

#: Tensors above these sizes are moved by themselves, the largest first.
_LARGE = (131072, 65536, 32768, 4096)


@dataclass(frozen=True)
class Choice:
    """Arguments and what becomes of the graph under them.

    words : the packer's arguments, without files. verdict : that of the graph packed with them.
    """

    words: tuple[str, ...]
    verdict: Verdict

    @property
    def line(self) -> str:
        """The words, quoted for a shell."""
        return shlex.join(self.words)


@dataclass(frozen=True)
class _Candidate:
    """Tensors that go to PSRAM, and the other arguments."""

    psram: tuple[str, ...] = ()
    prefetch: bool = True
    shared: bool = False
    all_psram: bool = False

    def options(self, base: Options) -> Options:
        """Return what the packer would make of it."""
        thresholds = (*base.thresholds[:3], 1) if self.all_psram else base.thresholds
        return replace(
            base,
            places=dict.fromkeys(self.psram, PSRAM),
            prefetch=self.prefetch,
            thresholds=thresholds,
            parameters=SHARE if self.shared else PSRAM,
        )

    def words(self, base: Options) -> tuple[str, ...]:
        """Return it as arguments. A dump needs a login terminal; without one the package is the same."""
        words = ["-p", str(base.platform), "-d", "False"]
        if base.sizes:
            words += ["-c", ",".join(f"{name}={size}" for name, size in base.sizes.items())]
        if not self.prefetch:
            words += ["--dma_prefetch", "False"]
        if self.all_psram:
            words += ["--threshold4", "1"]
        places = [f"{name}:{PSRAM}" for name in self.psram] + ([f"params:{SHARE}"] if self.shared else [])
        return (*words, "-m", ",".join(places)) if places else tuple(words)


def arguments(graph: ir.Graph | onnx.ModelProto, row: Platform) -> list[str]:
    """Return the words to pack `graph` with, without files; ConfigError for a row without a packer."""
    return list(choose(graph, row).words)


def choose(graph: ir.Graph | onnx.ModelProto, row: Platform) -> Choice:
    """Return the cheapest arguments under which `graph` is right, and the verdict."""
    proto = graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph)
    base = plain_options(proto, row)
    return chosen(make_ready(proto, row, base), row, base)


def plain_options(proto: onnx.ModelProto, row: Platform) -> Options:
    """Return the arguments that a graph needs whatever is chosen: the chip, and 1 for every open size."""
    sizes = {d.dim_param: 1 for v in proto.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}
    return Options(platform=row.packing.name if row.packing is not None else None, sizes=sizes)


def chosen(ready: Ready, row: Platform, base: Options) -> Choice:
    """Return the cheapest arguments under which a graph that was read with `base` is right, and the verdict.

    A verdict without a warning goes before one with; where nothing is right, the one with the fewest findings is given.
    """
    best: tuple[tuple[int, int, int], Choice] | None = None
    start = _Candidate()  # of the best
    late: list[tuple[int, _Candidate]] = []  # what does not fit is judged where nothing else packs

    def judged(number: int, candidate: _Candidate, memory: Memory | None = None) -> tuple[tuple[int, int, int], Choice]:
        found = Choice(candidate.words(base), verdict(ready, row, candidate.options(base), memory))
        return (_rank(found.verdict), len(found.verdict.findings), number), found

    for number, candidate in enumerate(itertools.chain(_candidates(ready, row), _spilled(ready, row, base))):
        memory = None
        if ready.net is not None:
            memory = plan_memory(ready.net, row, candidate.options(base), room(row, base) + 1)
            if memory is None:
                late.append((number, candidate))
                continue
        tried = judged(number, candidate, memory)
        if best is None or tried[0] < best[0]:
            best, start = tried, candidate
        if tried[0][0] == 0:
            break
    if best is None or best[0][0] == _REFUSED:
        known = [] if best is None else [best]
        best = min([*known, *(judged(*one) for one in late)], key=lambda pair: pair[0])
    for further in (_cleared, _mended):
        if best[0][0] in (_BELIEVED, _WRONG):
            for number, one in enumerate(further(ready, row, base, start)):
                tried = judged(number, one)
                if tried[0] < best[0]:
                    best, start = tried, one
    return best[1]


_BELIEVED = 2  # the rank of what is right as far as is known
_WRONG = 3  # of what packs and gives other integers
_REFUSED = 4  # of what the packer refuses, as it does what does not fit


def _rank(found: Verdict) -> int:
    if found.chip_ready:
        return _BELIEVED if found.beliefs else int(found.warned)
    return _WRONG if found.packs else _REFUSED


def _candidates(ready: Ready, row: Platform) -> Iterator[_Candidate]:
    """Yield the candidates, cheapest first: prefetching hides the time of loading, shared memory is the faster one."""
    if ready.net is None:
        yield _Candidate()
        return
    seen = set()
    for names in _moves(ready.net, row):
        plain = tuple(n for n in _followed(ready.net, names) if _movable_by_name(n))
        for candidate in (_Candidate(plain), _Candidate(plain, prefetch=False), _Candidate(plain, shared=True)):
            if candidate not in seen:
                seen.add(candidate)
                yield candidate
    for prefetch in (True, False):
        yield _Candidate(prefetch=prefetch, all_psram=True)
    yield _Candidate(shared=True, all_psram=True)


def _moves(net: Net, row: Platform) -> Iterator[Sequence[str]]:
    """Yield sets of tensors to be placed in PSRAM, smallest first, as far as the chip has use for them."""
    groups = [g for g in (_rows(net, row), _stacks(net), _norms(net), _averages(net), _states(net, row)) if g]
    helpful = [[], rows] if (rows := _rows(net, row)) else [[]]
    yield []
    yield from groups
    for index in range(2, len(groups) + 1):
        yield [name for group in groups[:index] for name in group]
    for first in helpful:
        for size in _LARGE:
            every = {t.name for t in net.values()}
            for kept in (_ends(net), _ends(net) | _parts(net), every - _tiles(net), every):
                yield [*first, *(t.name for t in net.values() if t.bytes > size and t.name in kept)]
    yield [*_rows(net, row), *_norms(net), *_sequences(net)]


def _spilled(ready: Ready, row: Platform, base: Options) -> Iterator[_Candidate]:
    """Yield the candidate that moves one tensor after the other out of the fullest node, where that does no harm.

    None where nothing but the shared memory stands against the graph, or where no tensor may go.
    """
    tried = 0
    for prefetch in (True, False):
        names: tuple[str, ...] = ()
        said = verdict(ready, row, _Candidate(names, prefetch).options(base))
        while said.memory is not None and not said.memory.fits and tried < _SPILLS:
            for name in _movable(said):
                tried += 1
                moved = (*names, *_followed(_net(said), [name]))
                options = _Candidate(moved, prefetch).options(base)
                memory = plan_memory(_net(said), row, options, said.memory.need)
                if memory is None:  # it needs no less: known before all that a verdict asks
                    continue
                after = verdict(ready, row, options, memory)
                if _harm(after) <= _harm(said):
                    names, said = moved, after
                    break
            else:
                break
        if names:
            yield _Candidate(names, prefetch)
        if said.chip_ready:
            return


def _cleared(ready: Ready, row: Platform, base: Options, start: _Candidate) -> Iterator[_Candidate]:
    """Yield `start` with what lies behind the work area moved to PSRAM, and so on while something lies there."""
    candidate = start
    for _ in range(_CLEARINGS):
        said = verdict(ready, row, candidate.options(base))
        if said.memory is None:
            return
        behind = [name for names in _behind(said, row, candidate.options(base)).values() for name in names]
        names = dict.fromkeys((*candidate.psram, *_followed(_net(said), behind)))
        if len(names) == len(candidate.psram):
            return
        candidate = replace(candidate, psram=tuple(names))
        yield candidate


def _behind(said: Verdict, row: Platform, options: Options) -> dict[str, list[str]]:
    """Return {node that writes past its work area: what lies there}, before it was reshaped."""
    assert row.packing is not None
    assert said.memory is not None
    net = _net(said)
    past = written_past(net, said.memory, row.packing.areas, places_of(net, options))
    return {f.step.origin: [n for n in (_root(net, hit) for hit in f.hit) if _movable_by_name(n)] for f in past}


def _mended(ready: Ready, row: Platform, base: Options, start: _Candidate) -> Iterator[_Candidate]:
    """Yield better and better candidates, found by moving the tensors of a node that something is said of.

    What is reshaped moves along, and what lies behind a work area may move as well. Of all that was tried the best is
    gone on from, be it worse than where it came from: one move may need another. With prefetching and without.
    """
    assert ready.net is not None
    if start.all_psram:  # named tensors are moved: begin with those that must be
        start = _Candidate(tuple(n for n in _followed(ready.net, _rows(ready.net, row)) if _movable_by_name(n)))
    open_ends: list[tuple[tuple[int, int, int], int, _Candidate, Verdict]] = []
    seen: set[tuple[bool, bool, frozenset[str]]] = set()
    least: tuple[int, int, int] | None = None

    def look(candidate: _Candidate) -> bool:
        """Judge a candidate that is new; tell whether it is the best."""
        nonlocal least
        key = (candidate.prefetch, candidate.shared, frozenset(candidate.psram))
        if key in seen:
            return False
        seen.add(key)
        found = _weighed(ready, row, base, candidate)
        if found is None:
            return False
        heapq.heappush(open_ends, (found[0], len(seen), candidate, found[1]))
        better, least = least is None or found[0] < least, min(found[0], least or found[0])
        return better

    for begin in (start, replace(start, prefetch=False)):
        look(begin)
    most = min(max(_TRIED_NODES // len(ready.net.steps), _FEWEST_TRIALS), _MOST_TRIALS)
    while open_ends and len(seen) < most:
        _, _, candidate, said = heapq.heappop(open_ends)
        doubts = _doubts(said)
        if not doubts:
            return
        behind = _behind(said, row, candidate.options(base)).get(doubts[0].node, [])
        for names in _moved(said, doubts[0].node, behind):
            other = replace(candidate, psram=tuple(_toggled(candidate.psram, names)))
            if look(other):
                yield other


def _weighed(
    ready: Ready, row: Platform, base: Options, candidate: _Candidate
) -> tuple[tuple[int, int, int], Verdict] | None:
    """Return the rank of a candidate, how much there is to be said and how many tensors that names, with the verdict.

    None for one that does not fit.
    """
    assert ready.net is not None
    options = candidate.options(base)
    memory = plan_memory(ready.net, row, options, room(row, base) + 1)
    if memory is None:
        return None
    said = verdict(ready, row, options, memory)
    doubts = _doubts(said)
    return (_rank(said), len(doubts), sum(f.value.count(",") for f in doubts)), said


def _doubts(said: Verdict) -> list[Finding]:
    """Return what speaks against a verdict, or what a right one hangs on."""
    return [f for f in said.findings if f.level != "plan"] or list(said.beliefs)


def _moved(said: Verdict, node: str, behind: Sequence[str]) -> Iterator[list[str]]:
    """Yield the tensors of a node and those `behind` in all combinations, the fewest first, with what is reshaped.

    What a node reads moves as a whole, or from the last reshape on.
    """
    net = _net(said)
    steps = [step for step in net.steps if step.origin == node]
    names = [n for step in steps for n in (*step.inputs, *step.outputs) if not net.tensors[n].constant]
    own = dict.fromkeys(n for name in names for n in (_root(net, name), name) if _movable_by_name(n))
    ends = list(dict.fromkeys((*list(own)[:_SIDES], *behind[:_SIDES])))
    for count in range(1, _SIDES + 1):
        for some in itertools.combinations(ends, count):
            yield [n for n in _followed(net, some) if _movable_by_name(n)]


def _toggled(names: Sequence[str], moved: Sequence[str]) -> list[str]:
    """Return `names` with what is in `moved` taken out where it is in, else added."""
    return [n for n in names if n not in moved] + [n for n in moved if n not in names]


#: How many nodes may be judged in all trials, the bounds of the trials, and how many tensors of a node are moved.
_TRIED_NODES, _FEWEST_TRIALS, _MOST_TRIALS, _SIDES = 30000, 40, 600, 4

#: Rounds of moving what lies behind a work area: what comes to lie there next may be in the way, too.
_CLEARINGS = 8

#: Trials of single tensors.
_SPILLS = 96


def _net(said: Verdict) -> Net:
    assert said.net is not None
    return said.net


def _harm(said: Verdict) -> int:
    """Return the number of findings, but for the size of the plan."""
    return sum(f.level != "plan" and f.node != "shared memory" for f in said.findings)


def _movable_by_name(name: str) -> bool:
    """Whether -m can say the name."""
    return not set(":,") & set(name)


def _movable(said: Verdict) -> list[str]:
    """Return the tensors in shared memory at its fullest node: first those it does not use, the largest first."""
    assert said.memory is not None
    net = _net(said)
    spots = {n: s for n, s in said.memory.spots.items() if s.place == SHARE}
    living = said.memory.living(len(net.steps))
    index = living.index(max(living))
    used = {*net.steps[index].inputs, *net.steps[index].outputs}
    alive = [n for n, s in spots.items() if s.kind == "tensor" and s.first <= index <= s.last and _movable_by_name(n)]
    return sorted(alive, key=lambda name: (name in used, -spots[name].size))


def _followed(net: Net, names: Sequence[str]) -> list[str]:
    """Return tensors with what is reshaped from them, which lies where they do."""
    found = dict.fromkeys(names)
    for step in net.steps:
        if step.op in RESHAPED and step.inputs[0] in found:
            found |= dict.fromkeys(step.outputs)
    return list(found)


def _rows(net: Net, row: Platform) -> list[str]:
    """Return the outputs of LinearInt with several rows, where the chip wants them outside."""
    if row.packing is None or not row.packing.rows_outside:
        return []
    outputs = [net.tensors[s.outputs[0]] for s in net.steps if s.op == LINEAR.name]
    return [t.name for t in outputs if t.elements > t.shape[-1]]


def _norms(net: Net) -> list[str]:
    """Return what LayerNormInt reads and writes."""
    return [n for s in net.steps if s.op == LAYER_NORM.name for n in (s.inputs[0], s.outputs[0])]


def _stacks(net: Net) -> list[str]:
    """Return what iqCat makes for SoftmaxInt to take parts of: written to PSRAM, it has a work area planned."""
    fed = {s.inputs[0] for s in net.steps if s.op == SOFTMAX.name}
    cut = {s.inputs[0] for s in net.steps if s.op == "Slice" and s.outputs[0] in fed}
    return [s.outputs[0] for s in net.steps if s.op == CONCAT.name and s.outputs[0] in cut]


def _averages(net: Net) -> list[str]:
    """Return the outputs of averages over a whole map."""
    return [
        s.outputs[0]
        for s in net.steps
        if s.op == AVG_POOL2D.name and list(net.tensors[s.inputs[0]].shape[2:]) == list(s.get("kernel_shape"))
    ]


def _sequences(net: Net) -> list[str]:
    """Return what LSTMInt reads, before it was reshaped."""
    return [_root(net, s.inputs[0]) for s in net.steps if s.op == LSTM.name]


def _root(net: Net, name: str) -> str:
    """Return what a tensor was reshaped from."""
    while (maker := net.maker(name)) is not None and maker.op in RESHAPED:
        name = maker.inputs[0]
    return name


def _states(net: Net, row: Platform) -> list[str]:
    """Return what LSTMInt gives for every step, where its readers want it outside."""
    assert row.packing is not None
    outputs = [s.outputs[0] for s in net.steps if s.op == LSTM.name] if row.packing.batch_first else []
    return [name for name in outputs if net.readers(name)]


def _ends(net: Net) -> set[str]:
    """Return the graph inputs, the maps that are joined from parts, and those that parts are cut from."""
    joined = {s.outputs[0] for s in net.steps if s.op == CONCAT.name}
    return {*net.inputs, *joined, *({s.inputs[0] for s in net.steps if s.op == "Slice"} - _tiles(net))}


def _parts(net: Net) -> set[str]:
    """Return the parts that maps are joined from."""
    return {n for s in net.steps if s.op == CONCAT.name for n in s.inputs}


def _tiles(net: Net) -> set[str]:
    """Return what is cut out of tensors."""
    return {s.outputs[0] for s in net.steps if s.op == "Slice"}


def shell(words: Iterable[str], graph: str, package: str, program: str = "tpacker") -> str:
    """Return the packer's call for the files `graph` and `package`, quoted for a shell."""
    return shlex.join([program, "-g", graph, *words, "-o", package])
