"use strict";
// Horizontal bars, one per row, of one or several parts, longest rows first unless they are ranked already.
//
// chart: {title, unit, parts: [name], rows: [{name, values: [number per part], note, tip, tensor}], shown: number of rows, ranked}
charts.drawBars = (host, chart) => {
  const {svgElement, layoutLegend, makeClickable, formatNumber, shorten, showTip} = charts;
  const STYLES = ["fa", "fb", "fc", "fd"], ROW = 20;
  const total = row => row.values.reduce((sum, value) => sum + Math.max(value, 0), 0);
  const rows = chart.rows.map(row => ({...row, total: total(row)})).filter(row => row.total > 0 || chart.ranked).sort((a, b) => chart.ranked ? 0 : b.total - a.total).slice(0, chart.shown || 20);
  const width = Math.max(host.clientWidth, 280), left = Math.min(240, width * 0.42), right = width - 84;
  const legend = layoutLegend(chart.parts.length > 1 ? chart.parts.map((part, index) => [STYLES[index % STYLES.length], part]).filter((_, index) => rows.some(row => row.values[index] > 0)) : [], width - 8);
  const top = 4 + legend.height, height = top + 4 + ROW * rows.length;
  const most = Math.max(...rows.map(row => row.total), 1e-12), xOf = value => left + (right - left) * value / most;
  const svg = svgElement("svg", {viewBox: `0 0 ${width} ${Math.max(height, 24)}`, role: "group", "aria-label": chart.title});
  legend.draw(svg, 4, 0);
  rows.forEach((row, index) => {
    const y = top + index * ROW, line = svgElement("g", {class: row.tensor ? "bar link" : "bar"});
    const name = shorten(row.name, Math.floor(left / 6.8)), note = row.note || formatNumber(row.total, 3);
    line.append(svgElement("text", {x: left - 8, y: y + 13, "text-anchor": "end"}, `${name} `));  // the space separates what a screen reader reads
    let sum = 0;
    row.values.forEach((value, part) => {
      if (value > 0) line.append(svgElement("rect", {x: xOf(sum), y: y + 2, width: Math.max(xOf(sum + value) - xOf(sum), 0.5), height: ROW - 6, class: STYLES[part % STYLES.length]}));
      sum += Math.max(value, 0);
    });
    line.append(svgElement("text", {x: xOf(row.total) + 6, y: y + 13}, note));
    line.onmousemove = event => showTip(event, row.tip || `${row.name}\n${chart.parts.map((part, at) => `${part}: ${formatNumber(row.values[at])} ${chart.unit}`).join("\n")}`);
    line.onmouseleave = event => showTip(event, "");
    if (row.tensor) makeClickable(line, `${name} ${note}: show ${row.name}`, () => charts.selectTensor(row.tensor));
    svg.append(line);
  });
  host.replaceChildren(svg);
};
