"use strict";
// Ranges over the depth of a network, a bar for each layer (or group of layers) and model, on a scale of powers of ten on both sides of zero.
//
// chart: that of makeDepthFrame, and {models: [{name, values: [[lowest, highest] per layer]}]}
charts.drawRanges = (host, chart) => {
  const {svgElement, formatNumber, toNumber} = charts;
  const STYLES = ["fa", "fb"], width = Math.max(host.clientWidth, 280), height = 180;
  const scale = value => Math.sign(value) * Math.log10(1 + Math.abs(value) * 100);
  const known = chart.models.flatMap(model => model.values.flat()).map(toNumber).filter(Number.isFinite);
  const most = Math.max(...known.map(value => Math.abs(scale(value))), 1);
  const frame = charts.makeDepthFrame(chart, width, height, chart.models.map((model, index) => [STYLES[index], model.name]));
  const yOf = value => frame.top + (frame.bottom - frame.top) * (most - scale(value)) / (2 * most);
  const power = 10 ** Math.floor(Math.log10(Math.max(...known.map(Math.abs), 0.01))), ticks = [0];
  for (const value of [power, -power, power / 10, -power / 10]) if (ticks.every(tick => Math.abs(yOf(tick) - yOf(value)) > 13)) ticks.push(value);
  frame.drawTicks(ticks.map(value => [value, formatNumber(value)]), yOf);
  const starts = charts.groupLayers(chart.layers.length, frame.width), barWidth = Math.max(0.6, Math.min(9, frame.width / starts.length * 0.38));
  chart.models.forEach((model, index) => starts.forEach((layer, group) => {
    const members = model.values.slice(layer, starts[group + 1]), low = Math.min(...members.map(range => toNumber(range[0]))), high = Math.max(...members.map(range => toNumber(range[1])));
    if (Number.isFinite(low) && Number.isFinite(high)) frame.svg.append(svgElement("rect", {x: frame.xOf(layer) + (index - 1) * barWidth, y: yOf(high), width: barWidth, height: Math.max(yOf(low) - yOf(high), 0.8), class: STYLES[index]}));
  }));
  frame.drawPin();
  host.replaceChildren(frame.svg);
};
