"use strict";
// The memory plan: which buffer occupies which bytes from which step to which. The step with most live bytes is marked.
//
// plan: {limit, layers: [name], buffers: [{name, kind: "tensor" | "area" | "buffer", offset, bytes, first, last}]}
charts.drawMemory = (host, plan) => {
  const {svgElement, layoutLegend, formatBytes, showTip, shorten} = charts;
  const KINDS = [["tensor", "fa", "tensors"], ["area", "fb", "work areas"], ["buffer", "fc", "DMA buffers"]];
  const width = Math.max(host.clientWidth, 280), left = 74, right = width - 10, used = KINDS.filter(([kind]) => plan.buffers.some(buffer => buffer.kind === kind));
  const legend = layoutLegend([...used.map(([, style, name]) => [style, name]), ["peak", "step with most bytes in use"]], width - left);
  const top = 22, bottom = top + 250, height = bottom + 22 + legend.height;
  const steps = Math.max(plan.layers.length, 1), peak = Math.max(...plan.buffers.map(buffer => buffer.offset + buffer.bytes), 1);
  const clamp = step => Math.max(0, Math.min(steps - 1, step));
  const xOf = step => left + (right - left) * step / steps, yOf = bytes => bottom - (bottom - top) * bytes / peak;
  const svg = svgElement("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `plan of the shared memory over ${steps} steps; ${formatBytes(peak)} at most`});
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(svgElement("line", {x1: left, x2: right, y1: yOf(part * peak), y2: yOf(part * peak), class: "grid"}),
      svgElement("text", {x: left - 6, y: yOf(part * peak) + 4, "text-anchor": "end"}, formatBytes(Math.round(part * peak))));
  }
  const live = Array.from({length: steps}, () => 0);
  plan.buffers.forEach(buffer => { for (let step = clamp(buffer.first); step <= clamp(buffer.last); step++) live[step] += buffer.bytes; });
  const busiest = live.indexOf(Math.max(...live));
  svg.append(svgElement("rect", {x: xOf(busiest), y: top, width: Math.max(xOf(1) - xOf(0), 1), height: bottom - top, class: "peak"}));
  const styles = Object.fromEntries(KINDS.map(([kind, style]) => [kind, style]));
  plan.buffers.forEach(buffer => {
    const first = clamp(buffer.first), last = clamp(buffer.last);
    const rect = svgElement("rect", {x: xOf(first) + 0.5, y: yOf(buffer.offset + buffer.bytes), width: Math.max(xOf(last + 1) - xOf(first) - 1, 1),
      height: Math.max(yOf(buffer.offset) - yOf(buffer.offset + buffer.bytes) - 0.5, 1), class: `buffer ${styles[buffer.kind]}`});
    rect.onmousemove = event => showTip(event, `${buffer.name}\n${buffer.bytes.toLocaleString("en")} bytes at ${buffer.offset.toLocaleString("en")}\nfrom ${plan.layers[first] || "-"} to ${plan.layers[last] || "-"}`);
    rect.onmouseleave = event => showTip(event, "");
    rect.onclick = () => charts.selectTensor(buffer.name);
    svg.append(rect);
    const boxWidth = xOf(last + 1) - xOf(first), boxHeight = yOf(buffer.offset) - yOf(buffer.offset + buffer.bytes);
    if (boxWidth > 60 && boxHeight > 14) svg.append(svgElement("text", {x: xOf(first) + 5, y: yOf(buffer.offset + buffer.bytes) + 12, class: `inside ${buffer.kind === "tensor" ? "" : "on-light"}`}, shorten(buffer.name, Math.floor(boxWidth / 6.6))));
  });
  const note = `most in use at ${shorten(plan.layers[busiest] || "", 26)}: ${formatBytes(live[busiest])}`, half = 3.1 * note.length;
  svg.append(svgElement("text", {x: Math.max(Math.min(xOf(busiest + 0.5), width - half), half), y: top - 8, "text-anchor": "middle"}, note));
  svg.append(svgElement("text", {x: left, y: bottom + 14}, "first step"), svgElement("text", {x: right, y: bottom + 14, "text-anchor": "end"}, "last step"));
  legend.draw(svg, left, bottom + 20);
  host.replaceChildren(svg);
};
