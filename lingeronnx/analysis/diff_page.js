// The SQNR of both models over the layers.
(() => {
const diff = charts.readData("diff"), host = document.getElementById("diff-depth"), layers = diff.layers;
if (!host) return;
// Without a baseline null is an equal tensor, as JSON has no infinity; with one it is also a tensor that the baseline lacks.
const lines = diff.has_baseline ? [{name: `A: ${diff.a.name}`, values: layers.map(layer => layer.a_db)}, {name: `B: ${diff.b.name}`, values: layers.map(layer => layer.b_db)}]
  : [{name: "B against A", values: layers.map(layer => layer.b_to_a_db ?? Infinity)}];
const draw = () => charts.drawDepth(host, {title: "SQNR over the layers", unit: "dB", lines, layers: layers.map(layer => layer.name), most: 80,
  tips: layers.map((layer, index) => `${layer.name}\n${lines.map(line => `${line.name}: ${charts.formatNumber(line.values[index], 3)} dB`).join("\n")}`)});
draw();
addEventListener("resize", draw);
})();
