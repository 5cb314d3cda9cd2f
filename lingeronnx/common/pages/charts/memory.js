"use strict";
// The memory plan: which buffer occupies which bytes from which step to which. The step with most live bytes is marked.
//
// plan: {limit, layers: [name], buffers: [{name, kind: "tensor" | "area" | "buffer", offset, bytes, first, last}]}
charts.drawMemory = (host, plan) => {
  const {svgElement, formatBytes, showTip, shorten} = charts;
  const width = Math.max(host.clientWidth, 280), height = 300, left = 74, right = width - 10, top = 22, bottom = height - 32;
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
  const groups = {tensor: "fa", area: "fb", buffer: "fc"};
  plan.buffers.forEach(buffer => {
    const first = clamp(buffer.first), last = clamp(buffer.last);
    const rect = svgElement("rect", {x: xOf(first) + 0.5, y: yOf(buffer.offset + buffer.bytes), width: Math.max(xOf(last + 1) - xOf(first) - 1, 1),
      height: Math.max(yOf(buffer.offset) - yOf(buffer.offset + buffer.bytes) - 0.5, 1), class: `buffer ${groups[buffer.kind] || "fa"}`});
    rect.onmousemove = event => showTip(event, `${buffer.name}\n${buffer.bytes.toLocaleString("en")} bytes at ${buffer.offset.toLocaleString("en")}\nfrom ${plan.layers[first] || "-"} to ${plan.layers[last] || "-"}`);
    rect.onmouseleave = event => showTip(event, "");
    rect.onclick = () => charts.selectTensor(buffer.name);
    svg.append(rect);
    const boxWidth = xOf(last + 1) - xOf(first), boxHeight = yOf(buffer.offset) - yOf(buffer.offset + buffer.bytes);
    if (boxWidth > 60 && boxHeight > 14) svg.append(svgElement("text", {x: xOf(first) + 5, y: yOf(buffer.offset + buffer.bytes) + 12, class: "inside"}, shorten(buffer.name, Math.floor(boxWidth / 6.6))));
  });
  svg.append(svgElement("text", {x: Math.min(Math.max(xOf(busiest + 0.5), left + 70), right - 70), y: top - 8, "text-anchor": "middle"}, `most in use at ${shorten(plan.layers[busiest] || "", 26)}: ${formatBytes(live[busiest])}`));
  svg.append(svgElement("text", {x: left, y: height - 16}, "first step"), svgElement("text", {x: right, y: height - 16, "text-anchor": "end"}, "last step"),
    svgElement("text", {x: (left + right) / 2, y: height - 2, "text-anchor": "middle"}, "blue tensors, orange work areas, grey DMA buffers"));
  host.replaceChildren(svg);
};
