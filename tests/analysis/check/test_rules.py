"""Rules of integer graphs: each can be read, each fault that scales bring about is told."""

import onnx

import lingeronnx as lo
from lingeronnx.analysis.check import rules
from lingeronnx.ir import ir
from lingeronnx.luna.backend_passes.fault_workarounds import HANDLED_FAULTS
from lingeronnx.luna.fault_triggers import _TRIGGERS
from lingeronnx.luna.faults import LunaFault
from lingeronnx.luna.packer.fault_checks import FAULT_CHECKS
from lingeronnx.luna.packer.memory.placement_checks import FAULT_RULES
from lingeronnx.operators.lowerings import format_limit_rule
from lingeronnx.targets import PLATFORMS, get_versions
from tests.each import check_each


def test_every_rule_can_be_read():
    for target in [target for target in PLATFORMS if target.has_packer]:
        for rule in rules.RULES:
            text, remedy = format_limit_rule(rule, target)
            assert text
            assert remedy
            assert not {"{", "|"} & set(text + remedy)


def one(op_type, platform, **attributes):
    """Return an integer graph of one node between a Quant and a Dequant."""
    quants = [
        onnx.helper.make_node(
            "Quant",
            [f"x{i}"],
            [f"q{i}"],
            f"quant{i}",
            domain="thinker",
            data_bits=bits,
            scale_x=scale,
            platform=platform,
        )
        for i, (scale, bits) in enumerate(attributes.pop("inputs"))
    ]
    node = onnx.helper.make_node(
        op_type,
        [f"q{i}" for i in range(len(quants))],
        ["y_q"],
        "node",
        domain="thinker",
        platform_quant="luna_quant",
        quant_mode="floor_add",
        platform=platform,
        **attributes,
    )
    last = onnx.helper.make_node(
        "Dequant",
        ["y_q"],
        ["y"],
        "dequant",
        domain="thinker",
        scale_o=attributes.get("scale_o", 128.0),
    )
    given = [onnx.helper.make_tensor_value_info(f"x{i}", 1, [1, 4]) for i in range(len(quants))]
    graph = onnx.helper.make_graph(
        [*quants, node, last], "g", given, [onnx.helper.make_tensor_value_info("y", 1, [1, 4])]
    )
    opsets = [onnx.helper.make_opsetid("", 12), onnx.helper.make_opsetid("thinker", 1)]
    return ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=6))


def test_faults_that_scales_bring_about():
    texts = [
        format_limit_rule(r, target)[0]
        for r in (rules.check_curve_scale, rules.check_division_scale)
        for target in PLATFORMS
    ]

    def check(model, platform, values):
        assert [v.value for v in lo.check(model, platform=platform) if v.rule in texts] == values

    cases = [
        (
            one("iqSigmoid", "venus", inputs=[(2048.0, 16)], scale_x=2048.0, scale_o=128.0),
            "venus",
            [],
        ),
        (
            one("iqSigmoid", "venus", inputs=[(256.0, 16)], scale_x=256.0, scale_o=128.0),
            "venus",
            ["scale_x = 256"],
        ),
        (
            one("iqSigmoid", "venusA", inputs=[(16.0, 8)], scale_x=16.0, scale_o=128.0),
            "venusA",
            [LunaFault.LUT_CONSTANT.text],
        ),
        (
            one("iqDiv", "arcs", inputs=[(16.0, 32)] * 2, scale_x=16.0, scale_y=16.0, scale_o=4.0),
            "arcs",
            [],
        ),
        (
            one(
                "iqDiv",
                "arcs",
                inputs=[(16.0, 32), (2.0, 32)],
                scale_x=16.0,
                scale_y=2.0,
                scale_o=4.0,
            ),
            "arcs",
            ["a shift of -1"],
        ),
        (
            one(
                "iqDiv", "venusA", inputs=[(16.0, 32)] * 2, scale_x=16.0, scale_y=16.0, scale_o=4.0
            ),
            "venusA",
            ["a shift of 2"],
        ),
    ]
    check_each(check, cases)


def test_each_fault_is_some_version_s_and_is_handled_or_found():
    known = {fault for target in PLATFORMS for fault in target.faults}
    later = {
        fault
        for target in PLATFORMS
        if target.has_packer
        for version in get_versions(target)
        for fault in version.faults
    } - known
    assert set(LunaFault) == known | later
    assert later <= {*FAULT_CHECKS, *FAULT_RULES, LunaFault.GRU_OTHER}  # GRU: by its arithmetic
    limits = {
        LunaFault.AVGPOOL_AREA,
        LunaFault.DEPTHWISE_MULTIPLIER,
        LunaFault.BATCH,
    }  # told by a constraint, or kept by every graph written
    assert known <= {*_TRIGGERS, *limits, *HANDLED_FAULTS}, (
        "say in luna/fault_triggers.py which nodes meet the new fault"
    )
