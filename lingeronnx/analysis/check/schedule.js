// The timeline and the cycles of a call, and the memory plan of each part.
(() => {
const {timeline, cycles, plans} = charts.readData("schedule"), network = charts.readData("network");
const tensors = new Map((network ? network.nodes : []).map(node => [node.name, node.tensor]));
const PARTS = ["computing", "starts of calls", "waits for constants", "copies from and to psram"];
const describe = layer => `${layer.operator} ${layer.node || layer.name}\n${[layer.cycles - layer.overhead, layer.overhead, layer.wait, layer.moved].map((value, part) => `${PARTS[part]}: ${charts.formatCount(value)} cycles`).join("\n")}`;
const rows = cycles.map(layer => ({name: layer.node || layer.name, tip: describe(layer), values: [layer.cycles - layer.overhead, layer.overhead, layer.wait, layer.moved],
  note: charts.formatCount(layer.cycles + layer.wait + layer.moved), tensor: tensors.get(layer.node)}));
const draw = () => {
  if (timeline) charts.drawTimeline(document.getElementById("timeline"), timeline);
  if (rows.length) charts.drawBars(document.getElementById("layer-cycles"), {title: "cycles of the most expensive layers", unit: "cycles", parts: PARTS, rows});
  plans.forEach((plan, index) => charts.drawMemory(document.getElementById(`memory-plan-${index}`), plan));
};
draw();
addEventListener("resize", draw);
})();
