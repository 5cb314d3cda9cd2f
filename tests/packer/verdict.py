"""One verdict from all the parts."""

import dataclasses

from tests.packer import arguments, format_checks
from tests.packer.graph import Refused, live, read, up
from tests.packer.plan import plan
from tests.packer.prepare import prepare
from tests.packer.runtime import faults, meaningless
from tests.packer.shapes import infer

PSRAM = 8388608


@dataclasses.dataclass
class Verdict:
    """Whether a file `packs` and is `right`: runs, gives the simulator's integers, writes nothing
    past its plan.

    `problems`: why not. `shared`: planned bytes of shared memory, rounded up to 64 (None if the
    planner was not reached), `offsets`: where everything starts. `past`: the sentences of
    `problems` that only say that bytes behind the planned memory are written. `warnings`: faults of
    the executor that the simulator has too, so that the integers agree and mean nothing.
    `planned`: bytes of shared memory, not rounded up. `outputs`: names in the executor's order.
    """

    packs: bool
    right: bool
    problems: list
    shared: int | None = None
    past: list = dataclasses.field(default_factory=list)
    warnings: list = dataclasses.field(default_factory=list)
    offsets: dict = dataclasses.field(default_factory=dict)
    planned: int | None = None
    outputs: list | None = None


def judge(model, platform, args):
    """Return the Verdict on an integer graph `model` (a ModelProto) for `platform` with the
    packer's arguments.
    """
    shared, outputs = None, None
    try:
        settings = arguments.parse(platform, args)
        format_checks.names(model)
        format_checks.platform(model, platform)
        graph = read(model, settings.batch)
        format_checks.inputs(model)
        format_checks.operators(graph, platform)
        format_checks.order(graph)
        live(graph)
        infer(graph)
        format_checks.scales(graph)
        prepare(graph, settings)
        outputs = graph.outputs
        memory = plan(graph, settings)
        shared = memory.shared
        fit(memory, settings)
    except Refused as error:
        return Verdict(False, False, [str(error)], shared and up(shared, 64), planned=shared)
    found = faults(model, graph, memory, settings)
    past = [text for text in found if text.endswith("past the planned memory")]
    return Verdict(
        True,
        not found,
        found,
        up(shared, 64),
        past,
        meaningless(graph, platform),
        memory.offsets,
        shared,
        outputs,
    )


def fit(memory, settings):
    """Raise Refused where the plan is above the memory of the chip."""
    in_shared = settings.params == "share-mem"
    need = memory.shared + in_shared * memory.constants
    if need > settings.shared:
        raise Refused(f"shared memory: {need} bytes needed, {settings.shared} allowed")
    if memory.psram + (not in_shared) * memory.constants > PSRAM:
        raise Refused(f"PSRAM: above {PSRAM} bytes")
    if not memory.shared and not in_shared:
        raise Refused("nothing lies in shared memory")
