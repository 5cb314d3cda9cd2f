"use strict";
// Histograms of a tensor with the quantization grid, the first model's filled, the second one's as an outline: integer steps, and the limits beyond which values are clipped.
//
// tensor: {name, lo, hi, hx, hy: counts of equal bins over lo to hi, scale: steps per unit or null, low, high: representable range or
// null}. `names` are those of the two models.
charts.drawHistogram = (host, tensor, names) => {
  const {svgElement, layoutLegend, formatNumber, toNumber} = charts;
  const width = Math.max(host.clientWidth, 280), height = 230, left = 8, right = width - 8, top = 18, bottom = height - 34;
  const low = toNumber(tensor.lo), high = toNumber(tensor.hi), limits = [toNumber(tensor.low), toNumber(tensor.high)];
  // The limits belong into the picture unless they are so far out that the values would not be seen.
  const span = high - low || 1, isNear = limits.map(limit => limit > low - span && limit < high + span);
  const from = Math.min(low, ...(isNear[0] ? [limits[0]] : [])) - 0.02 * span, to = Math.max(high, ...(isNear[1] ? [limits[1]] : [])) + 0.02 * span;
  const xOf = value => left + (right - left) * (value - from) / (to - from || 1);
  const most = Math.log10(1 + Math.max(1, ...tensor.hx, ...tensor.hy)), yOf = count => bottom - (bottom - top) * Math.log10(1 + count) / most;
  const svg = svgElement("svg", {viewBox: `0 0 ${width} ${height}`, id: "histsvg", role: "img", "aria-label": `histograms of ${tensor.name} in ${names[0]} and ${names[1]}, with the range of its integers`});
  const step = 1 / toNumber(tensor.scale), stepWidth = xOf(from + step) - xOf(from);
  if (stepWidth >= 3) {
    let d = "";
    const first = Math.ceil(Math.max(from, limits[0]) / step), last = Math.floor(Math.min(to, limits[1]) / step);
    for (let index = first; index <= last; index++) d += `M${xOf(index * step).toFixed(1)} ${top}V${bottom}`;
    svg.append(svgElement("path", {d, class: "grid"}));
  }
  const binWidth = (xOf(high) - xOf(low)) / tensor.hx.length;
  let filled = "", outline = `M${xOf(low).toFixed(1)} ${bottom}`;
  tensor.hx.forEach((count, index) => { if (count) filled += `M${(xOf(low) + index * binWidth).toFixed(1)} ${bottom}V${yOf(count).toFixed(1)}h${Math.max(binWidth, 0.6).toFixed(1)}V${bottom}z`; });
  tensor.hy.forEach(count => { outline += `V${yOf(count).toFixed(1)}h${binWidth.toFixed(2)}`; });
  svg.append(svgElement("path", {d: filled, class: "ha"}), svgElement("path", {d: `${outline}V${bottom}`, class: "lc"}));
  limits.forEach((limit, index) => {
    if (!isNear[index] || Number.isNaN(limit)) return;
    const x = xOf(limit), outside = index ? right - x : x - left;
    svg.append(svgElement("rect", {x: index ? x : left, y: top, width: Math.max(outside, 0), height: bottom - top, class: "clipped"}),
      svgElement("line", {x1: x, x2: x, y1: top - 4, y2: bottom, class: "limit"}),
      svgElement("text", {x: Math.min(Math.max(x, 40), width - 40), y: top - 7, "text-anchor": "middle"}, `limit ${formatNumber(limit)}`));
  });
  svg.append(svgElement("line", {x1: left, x2: right, y1: bottom, y2: bottom, class: "axis"}));
  const ticks = [[from, "start"], [(from + to) / 2, "middle"], [to, "end"]];
  ticks.forEach(([value, anchor]) => svg.append(svgElement("text", {x: xOf(value), y: bottom + 14, "text-anchor": anchor}, formatNumber(value))));
  layoutLegend([["ha", "float"], ["lc", "integer"]], width).draw(svg, left, height - 16);
  svg.append(svgElement("text", {x: right, y: height - 5, "text-anchor": "end"}, "logarithmic counts"));
  host.replaceChildren(svg);
};
