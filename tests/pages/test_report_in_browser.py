"""The report in a browser: planted faults are found after at most two clicks; charts work."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx_ir
import pytest

import lingeronnx as lo
from lingeronnx.analysis.compare.network import describe_weights
from tests.nets import Net, quantized, samples
from tests.ops.test_recurrent_forms import WIDTH, H, T, streaming
from tests.pages.browser import needs_browser, run_in_browser

_CHARTS = Path(lo.__file__).parent / "common" / "pages" / "charts"

#: Clicks the first problem or action that has a tensor, waits, and returns what can be seen.
_FIRST_CLICK = """
  const button = document.querySelector("#overview button.select");
  if (button) button.click();
  await wait(300);
  return {clicks: button ? 1 : 0, text: shownText(), chosen: document.getElementById("chosen").textContent};
"""


def chain(gain=1.0):
    """Return a net of three convolutions with Relus; `gain` scales the second one's weights."""
    net = Net(3, 8, 8, seed=5)
    x = net.node("Relu", net.conv("x", (6, 3, 3, 3), pads=[1] * 4, out="c1"), out="r1")
    x = net.conv(x, (6, 6, 3, 3), pads=[1] * 4, out="c2", gain=gain)
    x = net.node("Relu", x, out="r2")
    return net.graph(net.conv(x, (4, 6, 3, 3), pads=[1] * 4, out="y"))


def report_page(model, result, data, folder, **settings):
    """Return the HTML of a report without trials."""
    lo.report(model, result, data, folder, **settings)
    return (folder / "report.html").read_text("utf-8")


def bad_scale(folder):
    """A scale of one tensor is 32 times too small: its values are clipped."""
    model = chain()
    result = quantized(model, overrides={"r1": {"scale": 512.0}}, effort="fast", platform="generic")
    return report_page(model, result, samples(model, 32, seed=2), folder), ("c1", "r1"), "clip"


def coarse_scale(folder):
    """A scale of one tensor is 32 times too large: few of its integers are used."""
    model = chain()
    result = quantized(model, overrides={"c2": {"scale": 0.5}}, effort="fast", platform="generic")
    return report_page(model, result, samples(model, 32, seed=2), folder), ("c2",), "scale"


def wrong_normalization(folder):
    """The data are 0 to 255 and not 0 to 1, as the calibration data were."""
    model = chain()
    result = quantized(model, effort="fast", platform="generic")
    data = {name: 200 * np.abs(array) for name, array in samples(model, 32, seed=2).items()}
    return report_page(model, result, data, folder), ("x",), "calibration"


def dominant_channel(folder):
    """One channel has weights 500 times those of the others, which round to 0."""
    model = chain(np.where(np.arange(6) == 2, 500.0, 1.0).reshape(6, 1, 1, 1))
    result = quantized(model, effort="fast", platform="generic")
    page = report_page(model, result, samples(model, 32, seed=2), folder)
    return page, ("c2", "r2"), "channel"


def four_bits(folder):
    """The weights of one layer have 4 bits."""
    model = chain()
    result = quantized(
        model, overrides={"c2": {"weight_bits": 4}}, effort="fast", platform="generic"
    )
    return report_page(model, result, samples(model, 32, seed=2), folder), ("c2",), "4"


def wrong_state(folder):
    """The state was calibrated with zeros only, and grows when it is fed back."""
    model = streaming("GRU")
    rng = np.random.default_rng(5)
    calls = [{"x": 8 * rng.standard_normal((3, T, WIDTH)).astype(np.float32)} for _ in range(12)]
    fed = [{**call, "h": np.full((1, 3, H), 0.01, np.float32)} for call in calls]
    result = lo.quantize(model, fed, platform="generic", effort="fast")
    page = report_page(model, result, calls, folder, state={"h_out": "h"})
    return page, ("h",), "with the states fed back"


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(
    "plant",
    [bad_scale, coarse_scale, wrong_normalization, dominant_channel, four_bits, wrong_state],
)
def test_a_planted_fault_is_seen_after_one_click(plant, tmp_path):
    page, tensors, cause = plant(tmp_path)
    seen = run_in_browser(page, _FIRST_CLICK, tmp_path)
    assert seen["chosen"] in tensors
    assert cause in seen["text"]


@pytest.mark.slow
@needs_browser
def test_a_dead_channel_is_seen_without_a_click_but_not_as_a_loss(tmp_path):
    """The float model does not use it either: it is a note, and no layer is blamed for it."""
    model = chain(np.where(np.arange(6) == 2, 0.0, 1.0).reshape(6, 1, 1, 1))
    result = quantized(model, effort="fast", platform="generic")
    page = report_page(model, result, samples(model, 32, seed=2), tmp_path)
    seen = run_in_browser(page, "return shownText();", tmp_path)
    assert "dead channel" in seen
    assert "'c2'" in seen
    assert "channel 2 never changes (1 of 6)" in seen
    losses = json.loads((tmp_path / "report.json").read_text())["overview"]["losses"]
    assert "dead channel" not in {loss["cause"] for loss in losses}


@pytest.mark.slow
@needs_browser
def test_the_network_can_be_searched_colored_and_entered(tmp_path):
    """Search marks the node, Enter selects it, colors change the legend, and pictures are wide."""
    model = chain()
    page = report_page(model, quantized(model, effort="fast"), samples(model, 16), tmp_path)
    script = """
      const find = document.querySelector("#network-host input"), svg = document.getElementById("network-svg");
      find.value = "c2"; find.dispatchEvent(new Event("input")); await wait(100);
      const marks = svg.querySelectorAll(".mark:not(.chosen)").length;
      find.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"})); await wait(200);
      const legends = [], colors = document.querySelector("#network-host select");
      for (const [index] of [...colors.options].entries()) { colors.selectedIndex = index; colors.onchange(); await wait(200);
        legends.push(document.querySelector("#network-host .legend").textContent); }
      return {marks, chosen: document.getElementById("chosen").textContent, legends, nodes: svg.querySelectorAll(".node").length,
        memory: document.querySelectorAll("#memory-plan-0 .buffer").length, wide: document.documentElement.scrollWidth};
    """
    for width in (400, 1280):
        seen = run_in_browser(page, script, tmp_path, width=width)
        assert seen["marks"] == 1
        assert seen["chosen"] == "c2"
        assert len(set(seen["legends"])) == len(seen["legends"]) > 4
        assert seen["nodes"] >= 5
        assert seen["memory"] >= 3
        assert seen["wide"] <= max(width, 500)  # Chromium's windows have 500 px at least


_LAYOUT = """
const nodes = [], add = (...inputs) => nodes.push({inputs, width: 100, height: 30}) - 1;
let x = add();
for (let block = 0; block < 60; block++) {
  const branch = add(add(x)), other = add(x);
  add(other);  // read by nobody
  x = add(branch, other, x);
}
const {places, edges, width} = layoutNetwork(nodes, dagre);
const overlaps = (a, b) => Math.abs(a.x - b.x) < 100 && Math.abs(a.y - b.y) < 30;
const bad = edges.filter(({from, to}) => places[from].y >= places[to].y).length;
let overlapping = 0;
places.forEach((place, index) => places.slice(index + 1).forEach(other => { if (overlaps(place, other)) overlapping += 1; }));
const scoped = nodes.map((node, index) => ({...node, scope: `net/block${Math.floor((index - 1) / 5)}`}));
const groups = collapseScopes(scoped, 2), members = groups.flatMap(group => group.members);
const acyclic = groups.every((group, index) => group.inputs.every(input => input < index));
console.log(JSON.stringify({bad, overlapping, edges: edges.length, width, blocks: splitAtCuts(nodes).length, groups: groups.length, members: new Set(members).size, acyclic}));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_nodes_are_placed_below_their_inputs_without_overlap():
    """Blocks of a net are placed one below the other; scopes collapse without cycles."""
    scripts = [(_CHARTS / name).read_text("utf-8") for name in ("dagre.min.js", "layout.js")]
    done = subprocess.run(
        ["node", "-"],
        input="\n".join([*scripts, _LAYOUT]),
        text=True,
        capture_output=True,
        check=True,
    )
    seen = json.loads(done.stdout)
    assert seen["bad"] == seen["overlapping"] == 0
    assert seen["edges"] == 60 * 7
    assert seen["blocks"] >= 60
    assert seen["width"] < 1000
    assert seen["groups"] <= 62
    assert seen["members"] == 60 * 5 + 1
    assert seen["acyclic"]


def test_the_picture_of_weights_has_the_largest_of_each_pair_of_channels():
    """A weight of 127 is the brightest cell; an output channel far above the others is named."""
    net = Net(4, 4, 4, seed=1)
    model = net.graph(net.conv("x", (40, 4, 3, 3), pads=[1] * 4, out="y"))
    graph = quantized(model, effort="fast").graph
    node = next(node for node in graph.graph if node.op_type == "Conv2dInt")
    weights = np.ones((40, 4, 3, 3), np.int8)
    weights[17, 2, 1, 1] = 127
    node.inputs[1].const_value = onnx_ir.tensor(weights)
    picture = describe_weights(node)
    cells = np.frombuffer(bytes.fromhex(picture["cells"]), np.uint8).reshape(24, 4)
    assert (picture["rows"], picture["columns"], picture["outputs"]) == (24, 4, 40)
    assert cells.max() == cells[17 * 24 // 40, 2] == 255
    assert np.count_nonzero(cells == cells.min()) == cells.size - 1
    assert picture["outliers"] == [{"channel": 17, "ratio": 127.0}]


@pytest.mark.slow
@needs_browser
def test_trials_of_sensitivity_and_ranges_of_samples_are_drawn(tmp_path):
    """A bar for each trial, which selects its layer; a bar for each sample of the layer."""
    model = chain()
    data = samples(model, 16)
    trials = tmp_path / "trials"
    lo.sensitivity(model, data, folder=trials)
    result = quantized(model, effort="fast")
    page = report_page(model, result, data, tmp_path / "page", sensitivity=trials)
    script = """
      const bars = [...document.querySelectorAll("#sensitivity-bars .bar")];
      bars.find(bar => bar.classList.contains("link")).dispatchEvent(new MouseEvent("click")); await wait(200);
      return {bars: bars.length, chosen: document.getElementById("chosen").textContent,
        samples: document.querySelectorAll("#samples rect").length, first: bars[0].textContent};
    """
    seen = run_in_browser(page, script, tmp_path)
    ranking = json.loads((trials / "sensitive_ops.json").read_text("utf-8"))
    assert seen["bars"] == len(ranking)
    assert seen["first"].startswith(ranking[0][0])
    assert seen["chosen"]
    assert seen["samples"] == 16
