"use strict";
// Charts over the depth of a network, with a place for each layer in execution order. A click or the arrow keys choose a layer.
//
// chart: {title, layers: [name], selected: index or null, onSelect: called with an index, or null, tips: [text per layer]}
charts.makeDepthFrame = (chart, width, height, legendEntries) => {
  const {svgElement, layoutLegend, showTip} = charts;
  const legend = layoutLegend(legendEntries, width - 60), left = 56, right = width - 20, top = legend.height + 8, bottom = height - 18;
  const last = chart.layers.length - 1, xOf = index => last > 0 ? left + 12 + (right - left - 12) * index / last : (left + right) / 2;
  const svg = svgElement("svg", {viewBox: `0 0 ${width} ${height}`, role: "group", tabindex: 0, "aria-label": `${chart.title}; the table below has the figures`});
  legend.draw(svg, left, 0);
  svg.append(svgElement("text", {x: left, y: height - 4}, "input"), svgElement("text", {x: width - 8, y: height - 4, "text-anchor": "end"}, "output"));
  const clamp = index => Math.max(0, Math.min(last, index));
  const indexAt = event => { const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * width; return clamp(Math.round((x - left - 12) / (right - left - 12) * last)); };
  svg.onmousemove = event => showTip(event, chart.tips[indexAt(event)]);
  svg.onmouseleave = event => showTip(event, "");
  if (chart.onSelect) {
    svg.onclick = event => chart.onSelect(indexAt(event));
    svg.onkeydown = event => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key], host = svg.parentElement;
      if (!step) return;
      event.preventDefault();
      chart.onSelect(clamp(chart.selected + step));
      host.querySelector("svg").focus();
    };
  }
  const drawTicks = (ticks, yOf) => ticks.forEach(([value, text]) => svg.append(svgElement("line", {x1: left, x2: width - 8, y1: yOf(value), y2: yOf(value), class: "grid"}),
    svgElement("text", {x: left - 6, y: yOf(value) + 4, "text-anchor": "end"}, text)));
  const drawPin = () => { if (chart.onSelect) svg.append(svgElement("line", {x1: xOf(chart.selected), x2: xOf(chart.selected), y1: top, y2: bottom, class: "pin"})); };
  return {svg, xOf, top, bottom, width: right - left, drawTicks, drawPin};
};

// Of networks with more layers than there is room for, every group of layers has one point. Returns the first layer of each group.
charts.groupLayers = (count, width) => { const size = Math.ceil(count / (width / 4)); return Array.from({length: Math.ceil(count / size)}, (_, group) => group * size); };

// Lines over the depth; a point of several layers is the worst of them. Further fields of chart: {unit, lines: [{name, values: [number per layer, or null]}], least, most: values beyond are
// drawn as these, log: whether large values are bad and the scale is logarithmic, marks: indices of layers with a dot}
charts.drawDepth = (host, chart) => {
  const {svgElement, formatNumber, toNumber} = charts;
  const STYLES = ["la", "lb"], width = Math.max(host.clientWidth, 280), height = 220;
  const scale = value => chart.log ? Math.log10(Math.max(value, 1e-12)) : Math.max(Math.min(value, chart.most ?? Infinity), chart.least ?? -Infinity);
  const lines = chart.lines.map(line => line.values.map(value => Number.isNaN(toNumber(value)) ? null : scale(toNumber(value))));
  const known = lines.flat().filter(Number.isFinite);
  let low = Math.min(...known, ...(chart.log ? [] : [0])), high = Math.max(low + 1, ...known);
  if (chart.unit === "dB") { low = 20 * Math.floor(low / 20); high = 20 * Math.ceil(high / 20); }
  const frame = charts.makeDepthFrame(chart, width, height, chart.lines.map((line, index) => [STYLES[index % STYLES.length], line.name]));
  const yOf = value => frame.bottom - (frame.bottom - frame.top) * (Math.max(Math.min(value, high), low) - low) / (high - low);
  const ticks = [0, 0.25, 0.5, 0.75, 1].map(part => low + (high - low) * part);
  frame.drawTicks(ticks.map(value => [value, chart.log ? formatNumber(10 ** value, 2) : formatNumber(value, 3) + (value === ticks[4] ? ` ${chart.unit}` : "")]), yOf);
  const starts = charts.groupLayers(chart.layers.length, frame.width), worst = chart.log ? Math.max : Math.min;
  lines.forEach((values, index) => {
    let d = "", pen = "M";
    starts.forEach((layer, group) => {
      const members = values.slice(layer, starts[group + 1]).filter(member => member !== null), value = members.length ? worst(...members) : null;
      if (value === null) { pen = "M"; return; }
      d += `${pen}${frame.xOf(layer).toFixed(1)} ${yOf(value).toFixed(1)}`;
      pen = "L";
    });
    frame.svg.append(svgElement("path", {d, class: STYLES[index % STYLES.length]}));
  });
  for (const layer of chart.marks || []) { const value = lines[lines.length - 1][layer]; if (value !== null) frame.svg.append(svgElement("circle", {cx: frame.xOf(layer), cy: yOf(value), r: starts.length < chart.layers.length ? 2 : 3.5, class: "dot"})); }
  frame.drawPin();
  host.replaceChildren(frame.svg);
};
