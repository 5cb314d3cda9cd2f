"use strict";
// The range of a tensor in each sample, against the limits of its integers: a sample out of line stands out.
//
// tensor: {name, by_sample: [[lowest, highest]], low, high: representable range or null}
charts.drawSampleRanges = (host, tensor) => {
  const {svgElement, formatNumber, toNumber, showTip} = charts;
  const ranges = tensor.by_sample.map(range => range.map(toNumber));
  const width = Math.max(host.clientWidth, 280), height = 120, left = 52, right = width - 8, top = 8, bottom = height - 18;
  const known = ranges.flat().filter(Number.isFinite), low = Math.min(0, ...known), high = Math.max(0, ...known), span = high - low || 1;
  const limits = [tensor.low, tensor.high].map(toNumber).filter(limit => limit > low - span / 2 && limit < high + span / 2);
  const from = Math.min(low, ...limits), to = Math.max(high, ...limits), yOf = value => bottom - (bottom - top) * (value - from) / (to - from || 1);
  const slot = (right - left) / ranges.length;
  const svg = svgElement("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `range of ${tensor.name} in each of ${ranges.length} samples`});
  ranges.forEach(([lowest, highest], sample) => {
    const bar = svgElement("rect", {x: left + sample * slot + slot * 0.15, y: yOf(highest), width: slot * 0.7, height: Math.max(yOf(lowest) - yOf(highest), 1), class: "fa"});
    if (!Number.isFinite(lowest) || !Number.isFinite(highest)) return;
    bar.onmousemove = event => showTip(event, `sample ${sample}\n${formatNumber(lowest)} to ${formatNumber(highest)}`);
    bar.onmouseleave = event => showTip(event, "");
    svg.append(bar);
  });
  for (const limit of limits) svg.append(svgElement("line", {x1: left, x2: right, y1: yOf(limit), y2: yOf(limit), class: "limit"}));
  for (const value of [from, to]) svg.append(svgElement("text", {x: left - 6, y: yOf(value) + 4, "text-anchor": "end"}, formatNumber(value, 3)));
  svg.append(svgElement("text", {x: left, y: height - 4}, "sample 0"), svgElement("text", {x: right, y: height - 4, "text-anchor": "end"}, `sample ${ranges.length - 1}`));
  host.replaceChildren(svg);
};
