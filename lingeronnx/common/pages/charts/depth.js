"use strict";
// Lines over the depth of a network, a point for each layer in execution order; higher is better.
//
// chart: {title, unit, lines: [{name, values: [number per layer, or null]}], layers: [name], most: larger values are drawn as this}
charts.drawDepth = (host, chart) => {
  const {element, svgElement, formatNumber, toNumber, showTip} = charts;
  const STYLES = ["la", "lb"], KEYS = ["fa", "fb"];
  const width = Math.max(host.clientWidth, 280), height = 220, left = 48, right = width - 12, top = 10, bottom = height - 20;
  const lines = chart.lines.map(line => line.values.map(value => Number.isNaN(toNumber(value)) ? null : Math.min(toNumber(value), chart.most)));
  const known = lines.flat().filter(value => value !== null && Number.isFinite(value));
  const low = Math.min(0, ...known), high = Math.max(low + 1, ...known), last = Math.max(chart.layers.length - 1, 1);
  const xOf = index => left + (right - left) * index / last, yOf = value => bottom - (bottom - top) * (Math.max(value, low) - low) / (high - low);
  const svg = svgElement("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${chart.title}; the table below has the figures`});
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const value = low + (high - low) * part;
    svg.append(svgElement("line", {x1: left, x2: right, y1: yOf(value), y2: yOf(value), class: "grid"}),
      svgElement("text", {x: left - 6, y: yOf(value) + 4, "text-anchor": "end"}, formatNumber(value, 3)));
  }
  lines.forEach((values, index) => {
    let d = "", pen = "M";
    values.forEach((value, layer) => {
      if (value === null) { pen = "M"; return; }
      d += `${pen}${xOf(layer).toFixed(1)} ${yOf(value).toFixed(1)}`;
      pen = "L";
    });
    svg.append(svgElement("path", {d, class: STYLES[index % STYLES.length]}));
  });
  svg.append(svgElement("text", {x: left, y: height - 5}, "input"), svgElement("text", {x: right, y: height - 5, "text-anchor": "end"}, "output"));
  svg.onmousemove = event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * width;
    const layer = Math.max(0, Math.min(chart.layers.length - 1, Math.round((at - left) / (right - left) * last)));
    showTip(event, `${chart.layers[layer]}\n${chart.lines.map(line => `${line.name}: ${formatNumber(line.values[layer], 3)} ${chart.unit}`).join("\n")}`);
  };
  svg.onmouseleave = event => showTip(event, "");
  const legend = element("div", {className: "legend dim"});
  chart.lines.forEach((line, index) => legend.append(element("span", {className: `key ${KEYS[index % KEYS.length]}`}), line.name));
  host.replaceChildren(legend, svg);
};
