"use strict";
// A call over time: a row with the parts, and one for each lane that has work. The time of host parts is not known: each is a point.
// Without any times, parts stand in their order. Plus and minus zoom, arrow keys move, 0 shows all.
//
// data: {lanes: [name], parts: [{name, chip, start, length, detail}], slices: [{lane, name, kind, start, length}], total: cycles or null,
// clock_mhz: number or null}
charts.drawTimeline = (host, data) => {
  const {svgElement, layoutLegend, formatNumber, formatCount, shorten, showTip} = charts;
  const KINDS = [["compute", "fa", "computing"], ["start", "fb", "starts of calls"], ["wait", "fc", "waits for constants"], ["copy", "fd", "copies"], ["fetch", "fd", "constants by DMA"]];
  const STYLE = Object.fromEntries(KINDS.map(([kind, style]) => [kind, style]));
  const total = data.total || data.parts.length, isKnown = data.total !== null, width = Math.max(host.clientWidth, 280), left = 46, right = width - 12, ROW = 34;
  const lanes = data.lanes.map((name, lane) => ({name, slices: data.slices.filter(slice => slice.lane === lane)})).filter(lane => lane.slices.length);
  const used = KINDS.filter(([kind]) => data.slices.some(slice => slice.kind === kind));
  const legend = layoutLegend([...used.map(([, style, name]) => [style, name]), ["part chip", "chip part"], ...(data.parts.some(part => !part.chip) ? [["part host", "host part"]] : [])], width - 60);
  const top = legend.height + 6, height = top + ROW * (1 + lanes.length) + (isKnown ? 22 : 6);
  let from = 0, to = total;
  const format = cycles => data.clock_mhz ? `${formatNumber(cycles / data.clock_mhz / 1000, 3)} ms` : formatCount(cycles);

  function draw() {
    const hadFocus = host.contains(document.activeElement);
    const svg = svgElement("svg", {viewBox: `0 0 ${width} ${height}`, role: "group", tabindex: 0, "aria-label": `timeline of a call in ${data.parts.length} parts: plus and minus zoom, arrow keys move, 0 shows all`});
    const xOf = time => left + (right - left) * (time - from) / (to - from);
    const clip = (start, length) => { const x1 = Math.max(xOf(start), left), x2 = Math.min(xOf(start + length), right); return [x1, x2 - x1]; };
    const withTip = (node, text) => { node.onmousemove = event => showTip(event, text); node.onmouseleave = event => showTip(event, ""); svg.append(node); };
    legend.draw(svg, left, 0);
    if (isKnown) [0, 0.25, 0.5, 0.75, 1].forEach((part, index) => svg.append(svgElement("line", {x1: left + (right - left) * part, x2: left + (right - left) * part, y1: top, y2: height - 16, class: "grid"}),
      svgElement("text", {x: left + (right - left) * part, y: height - 4, "text-anchor": ["start", "middle", "middle", "middle", "end"][index]}, width < 420 && index % 2 ? "" : format(from + (to - from) * part))));
    ["parts", ...lanes.map(lane => lane.name)].forEach((name, row) => svg.append(svgElement("text", {x: left - 6, y: top + ROW * row + 19, "text-anchor": "end"}, name)));
    data.parts.forEach((part, index) => {
      const [x, size] = isKnown ? clip(part.start, part.length) : clip(index, 0.96), text = `${part.name}\n${part.detail}${isKnown && part.chip ? `\n${format(part.start)} to ${format(part.start + part.length)}` : ""}`;
      if (size < 0) return;
      if (isKnown && !part.chip) {
        withTip(svgElement("circle", {cx: xOf(part.start), cy: top + 15, r: 6, class: "part host"}), text);
        return;
      }
      withTip(svgElement("rect", {x, y: top + 2, width: Math.max(size, 1), height: ROW - 8, rx: 3, class: `part ${part.chip ? "chip" : "host"}`}), text);
      if (size > 34) svg.append(svgElement("text", {x: x + size / 2, y: top + 19, "text-anchor": "middle", class: part.chip ? "inside" : ""}, shorten(part.name, Math.floor(size / 7))));
    });
    lanes.forEach((lane, row) => lane.slices.forEach(slice => {
      const [x, size] = clip(slice.start, slice.length), y = top + ROW * (row + 1), isPart = slice.kind === "start";
      if (size <= 0) return;
      withTip(svgElement("rect", {x, y: isPart ? y + 18 : y + 2, width: Math.max(size, 0.4), height: isPart ? ROW - 24 : ROW - 8, class: `slice ${STYLE[slice.kind]}`}), `${slice.name}\n${format(slice.length)} from ${format(slice.start)}`);
      if (size > 60 && slice.kind === "compute") svg.append(svgElement("text", {x: x + 4, y: y + 13, class: "inside"}, shorten(slice.name, Math.floor(size / 6.8))));
    }));
    svg.onkeydown = event => {
      const span = to - from, center = (from + to) / 2;
      const zoom = size => { const next = Math.min(size, total); from = Math.max(0, Math.min(center - next / 2, total - next)); to = from + next; };
      const move = by => { from = Math.max(0, Math.min(from + by, total - span)); to = from + span; };
      const act = {"+": () => zoom(span / 2), "=": () => zoom(span / 2), "-": () => zoom(span * 2), 0: () => zoom(total), ArrowLeft: () => move(-span / 4), ArrowRight: () => move(span / 4)}[event.key];
      if (!act || !isKnown) return;
      event.preventDefault();
      act();
      draw();
    };
    host.replaceChildren(svg);
    if (hadFocus) svg.focus();
  }
  draw();
};
