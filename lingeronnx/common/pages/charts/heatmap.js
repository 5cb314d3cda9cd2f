"use strict";
// The largest weight of each pair of output and input channel, on a logarithmic scale of colors; outliers are named.
//
// weights: {rows, columns, cells: two hexadecimal digits each, row by row: 0 for a zero, 255 for the largest integer,
// outputs, inputs: numbers of channels, outliers: [{channel, ratio}]}
charts.drawHeatMap = (host, weights) => {
  const {svgElement, element, sequentialColor, cssColor, showTip} = charts;
  const width = Math.max(Math.min(host.clientWidth, 460), 240), left = 46, top = 6, cell = Math.min((width - left - 8) / weights.columns, 14);
  const rowHeight = Math.min(cell, 220 / weights.rows), height = top + rowHeight * weights.rows + 34;
  const svg = svgElement("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `largest weights by output and input channel, ${weights.outputs} by ${weights.inputs}`});
  const valueAt = (row, column) => parseInt(weights.cells.substr(2 * (row * weights.columns + column), 2), 16);
  for (let row = 0; row < weights.rows; row++) for (let column = 0; column < weights.columns; column++)
    svg.append(svgElement("rect", {x: left + column * cell, y: top + row * rowHeight, width: cell + 0.4, height: rowHeight + 0.4, fill: cssColor(sequentialColor(valueAt(row, column) / 255))}));
  svg.append(svgElement("text", {x: left - 5, y: top + 10, "text-anchor": "end"}, "out 0"), svgElement("text", {x: left - 5, y: top + rowHeight * weights.rows, "text-anchor": "end"}, String(weights.outputs - 1)),
    svgElement("text", {x: left, y: height - 20}, "in 0"), svgElement("text", {x: left + cell * weights.columns, y: height - 20, "text-anchor": "end"}, String(weights.inputs - 1)),
    svgElement("text", {x: left, y: height - 5}, "dark: small against the range of the integers; yellow: at its limit"));
  svg.onmousemove = event => {
    const box = svg.getBoundingClientRect(), scale = width / box.width;
    const column = Math.floor(((event.clientX - box.left) * scale - left) / cell), row = Math.floor(((event.clientY - box.top) * scale - top) / rowHeight);
    if (row < 0 || column < 0 || row >= weights.rows || column >= weights.columns) { showTip(event, ""); return; }
    const range = (index, cells, channels) => { const first = Math.floor(index * channels / cells), last = Math.floor(((index + 1) * channels - 1) / cells); return first >= last ? String(first) : `${first} to ${last}`; };
    showTip(event, `output channel ${range(row, weights.rows, weights.outputs)}\ninput channel ${range(column, weights.columns, weights.inputs)}`);
  };
  svg.onmouseleave = event => showTip(event, "");
  const names = weights.outliers.map(({channel, ratio}) => `channel ${channel} (${ratio} times the median)`).join(", ");
  host.replaceChildren(svg, element("p", {className: "dim", textContent: names ? `outliers: ${names}` : "no output channel stands out"}));
};
