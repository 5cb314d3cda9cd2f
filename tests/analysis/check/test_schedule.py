"""What runs when: the parts of a call, their work in lanes, and the memory of each part."""

import lingeronnx as lo
from lingeronnx.analysis.check.schedule import render_schedule_section
from tests.nets import Net, plain, quantized


def in_parts():
    """Return a net whose middle runs on the host."""
    net = Net(4, 8, 8, seed=3)
    positive = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    return net.graph(net.conv(net.node("Sqrt", positive), (4, 8, 3, 3), pads=[1] * 4, out="y"))


def test_slices_of_a_graph_add_up_to_its_latency():
    """Slices in the lane of the NPU, without the starts within them, fill the call."""
    checked = lo.check(quantized(plain(), platform="arcs", effort="fast").graph)
    data = render_schedule_section(checked).data
    timeline, latency = data["timeline"], checked.time.latency
    assert timeline["total"] == latency.total
    npu = [entry for entry in timeline["slices"] if entry["lane"] == 0 and entry["kind"] != "start"]
    assert abs(sum(entry["length"] for entry in npu) - latency.total) <= len(npu)
    assert len(data["cycles"]) == len(latency.layers)
    (plan,) = data["plans"]
    assert plan["layers"] == [layer.node for layer in checked.cost.layers]
    assert checked.memory.shared == checked.cost.shared


def test_a_graph_in_parts_has_a_point_of_each_host_part_and_a_plan_of_each_chip_part():
    """Parts follow each other; a host part takes no known time."""
    checked = lo.check(quantized(in_parts(), platform="arcs", effort="fast").graph)
    data = render_schedule_section(checked).data
    parts = data["timeline"]["parts"]
    assert [part["name"] for part in parts] == [part.name for part in checked.program.parts]
    assert {part["length"] for part in parts if not part["chip"]} == {0}
    ends = [part["start"] + part["length"] for part in parts]
    assert [part["start"] for part in parts] == [0, *ends[:-1]]
    assert ends[-1] == data["timeline"]["total"] == checked.time.latency.total
    assert [plan["part"] for plan in data["plans"]] == [part.name for part in checked.program.chip]
    assert checked.memory.shared == checked.program.shared


def test_without_timing_parts_stand_in_their_order():
    """One part says nothing then, and only its memory is drawn; generic has neither."""
    checked = lo.check(quantized(in_parts(), platform="venus", effort="fast").graph)
    section = render_schedule_section(checked)
    assert section.data["timeline"]["total"] is None
    assert len(section.data["timeline"]["parts"]) == len(checked.program.parts)
    assert "order only: no published timing data" in section.html
    alone = render_schedule_section(lo.check(quantized(plain(), effort="fast").graph))
    assert alone.data["timeline"] is None
    assert len(alone.data["plans"]) == 1
    generic = quantized(plain(), platform="generic", effort="fast").graph
    assert render_schedule_section(lo.check(generic)) is None
