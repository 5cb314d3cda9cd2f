"use strict";
// Horizontal bars, one per row, of one or several parts, longest rows first unless they are ranked already.
//
// chart: {title, unit, parts: [name], rows: [{name, values: [number per part], note, tip, tensor}], shown: number of rows, ranked}
charts.drawBars = (host, chart) => {
  const {element, svgElement, formatNumber, shorten, showTip} = charts;
  const STYLES = ["fa", "fb", "fc", "fd"], ROW = 20;
  const total = row => row.values.reduce((sum, value) => sum + Math.max(value, 0), 0);
  const rows = chart.rows.map(row => ({...row, total: total(row)})).sort((a, b) => chart.ranked ? 0 : b.total - a.total).slice(0, chart.shown || 20);
  const width = Math.max(host.clientWidth, 280), left = Math.min(240, width * 0.42), right = width - 84, height = 8 + ROW * rows.length;
  const most = Math.max(...rows.map(row => row.total), 1e-12), xOf = value => left + (right - left) * value / most;
  const svg = svgElement("svg", {viewBox: `0 0 ${width} ${Math.max(height, 24)}`, role: "img", "aria-label": chart.title});
  rows.forEach((row, index) => {
    const y = 4 + index * ROW, line = svgElement("g", {class: row.tensor ? "bar link" : "bar"});
    line.append(svgElement("text", {x: left - 8, y: y + 13, "text-anchor": "end"}, shorten(row.name, Math.floor(left / 6.8))));
    let sum = 0;
    row.values.forEach((value, part) => {
      if (value > 0) line.append(svgElement("rect", {x: xOf(sum), y: y + 2, width: Math.max(xOf(sum + value) - xOf(sum), 0.5), height: ROW - 6, class: STYLES[part % STYLES.length]}));
      sum += Math.max(value, 0);
    });
    line.append(svgElement("text", {x: xOf(row.total) + 6, y: y + 13}, row.note || formatNumber(row.total, 3)));
    line.onmousemove = event => showTip(event, row.tip || `${row.name}\n${chart.parts.map((part, at) => `${part}: ${formatNumber(row.values[at])} ${chart.unit}`).join("\n")}`);
    line.onmouseleave = event => showTip(event, "");
    if (row.tensor) line.onclick = () => charts.selectTensor(row.tensor);
    svg.append(line);
  });
  const legend = element("div", {className: "legend dim"});
  if (chart.parts.length > 1) chart.parts.forEach((part, index) => legend.append(element("span", {className: `key ${STYLES[index % STYLES.length]}`}), part));
  host.replaceChildren(legend, svg);
};
