"""Checks of what is promised of the chip: two judges that share no code, and a rule for each
refusal.
"""

import shlex

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.luna.packer.memory.overruns import UNCONFIRMED_RULE
from tests.packer import judge

__all__ = [
    "check_chip_ready",
    "check_forecast",
    "check_parts",
    "check_reasons",
    "check_refusals",
]


def check_chip_ready(made):
    """What is called chip-ready packs and is right by tests/packer, which shares no code with ours.

    That a node may write past the plan, which nobody measured, is said by ours alone.
    """
    if made.part is None or not made.result.report.chip_ready:
        return
    theirs = other_judge(made)
    past = set(theirs.past)
    yield from (
        f"ours: ready; tests/packer: {text}" for text in theirs.problems if text not in past
    )
    yield from (f"ours: ready; tests/packer: means nothing: {text}" for text in theirs.warnings)
    ours = lo.check(made.result.graph, packer_args=made.result.report.packer_args)
    if not (ours.packs and ours.runs_right):
        yield f"quantize: ready; check: {ours.findings[0]}"
    told = [
        finding
        for finding in made.result.report.findings
        if finding.level == "plan" and finding.rule != UNCONFIRMED_RULE
    ]
    if theirs.packs and bool(past) != bool(told):
        said = next(iter(past), "nothing is written past the plan")
        yield f"past the plan: tests/packer: {said}; ours: {[str(f) for f in told]}"


def check_refusals(made):
    """What is refused for how it is packed is wrong by tests/packer too, and for the packer's sake
    where it says so.
    """
    if made.part is None or made.result.report.chip_ready:
        return
    theirs, findings = other_judge(made), made.result.report.findings
    if set(theirs.problems) <= set(theirs.past) and not theirs.warnings:
        yield (
            "tests/packer: right; ours: "
            f"{next((str(f) for f in findings if f.level != 'plan'), 'no finding')}"
        )
    elif theirs.packs == any(finding.level == "packs" for finding in findings):
        what = "packs" if theirs.packs else "does not pack"
        yield f"tests/packer: {what}: {theirs.problems[:1]}; ours: {[str(f) for f in findings][:1]}"


def check_parts(made):
    """Both judges agree on each of several chip parts under its arguments, and on the order of its
    outputs.
    """
    for part in made.chip_parts:
        choice = part.choice
        theirs = judge(ir.to_proto(part.graph), made.platform, list(choice.argv))
        harmful = [text for text in theirs.problems if text not in theirs.past] + theirs.warnings
        findings = [str(finding) for finding in choice.verdict.findings]
        if choice.verdict.is_chip_ready and harmful:
            yield f"{part.name}: ours: ready; tests/packer: {harmful[0]}"
        if not choice.verdict.is_chip_ready and not harmful:
            yield f"{part.name}: tests/packer: right; ours: {findings[:1]}"
        outputs = list(choice.verdict.graph.outputs) if choice.verdict.graph else None
        if theirs.packs and outputs != theirs.outputs:
            yield f"{part.name}: outputs: ours {outputs}; tests/packer: {theirs.outputs}"


def other_judge(made):
    """Return the verdict of tests/packer on the part under the printed arguments."""
    return judge(made.part, made.platform, shlex.split(made.result.report.packer_args))


def check_forecast(made):
    """`lo.check` of the float net says beforehand what `quantize` says afterwards."""
    report = made.result.report
    if made.platform == "generic":
        return
    said = lo.check(ir.from_proto(made.case.model), platform=made.platform)
    if report.float_nodes and not said.remaining:
        yield f"check: nothing remains; quantize: {report.float_nodes[0].why}"
    ready = said.choice is not None and said.choice.verdict.is_chip_ready
    if report.chip_ready and not ready:
        found = [str(item) for item in (*said.remaining, *said.findings)]
        yield f"check: not ready: {(found or ['no reason'])[0]}; quantize: ready"
    if ready and not report.chip_ready:
        yield (
            "check: ready; quantize: "
            f"{[node.why for node in report.float_nodes] + [str(f) for f in report.findings]}"
        )


def check_reasons(made):
    """A net that is not chip-ready says for which rule, of every node that stays in float and of
    the packer.
    """
    report = made.result.report
    if made.platform == "generic" or report.chip_ready:
        return
    for node in (*report.float_nodes, *report.host_part):
        if not node.why:
            yield f"{node.op_type} {node.node} stays in float without a reason"
    found = [finding for finding in report.findings if finding.level != "plan"]
    if not (found or report.float_nodes or (report.host_part and not report.layers)):
        yield "no node stays in float, and no finding says why"
