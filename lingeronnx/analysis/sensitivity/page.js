// The ranking as bars: each is a trial that was run, with all its values in the tooltip.
(() => {
const rows = charts.readData("sensitivity"), head = [...document.querySelectorAll("#sensitivity thead th")].map(cell => cell.textContent);
const network = charts.readData("network"), tensors = new Map((network ? network.nodes : []).map(node => [node.name, node.tensor]));
const metrics = head.slice(3), host = document.getElementById("sensitivity-bars");
const describe = row => `${row[0]} (${row[2]}), quantized: ${row[1]}\n` + row.slice(3).map((value, index) => `${metrics[index]}: ${charts.formatNumber(value)}`).join("\n");
const draw = () => charts.drawBars(host, {title: `${metrics[0]} of each trial, the most sensitive first`, unit: "", parts: [metrics[0]], ranked: true, shown: 24,
  rows: rows.map(row => ({name: `${row[0]} (${row[1]})`, values: [Math.abs(charts.toNumber(row[3])) || 0], note: charts.formatNumber(row[3], 3), tip: describe(row), tensor: tensors.get(row[0])}))});
draw();
addEventListener("resize", draw);
})();
