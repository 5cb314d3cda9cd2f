"use strict";
// The whole network as a graph: zoom, pan, search, colors by a measure, scopes collapsed; a click selects a node.
// Far away, boxes of one color are one path and texts are left out; near, only the window and its surroundings are drawn. Zooming and
// moving only transform what is drawn, until they leave it.
//
// data: {nodes: [{name, op, tensor, scope, inputs, place, detail, values: {measure: number or word}}],
//        measures: [{key, title, unit, order: "low" or "high" for the values that deserve attention, log}]}
charts.drawNetwork = (host, data, options) => {
  const {element, svgElement, formatNumber, toNumber, shorten, showTip, sequentialColor, cssColor, isDark} = charts;
  const WIDTH = 176, HEIGHT = 38, TEXT_ZOOM = 0.42, PADDING = 20;
  const nodeOfTensor = new Map(data.nodes.map((node, index) => [node.tensor, index]));
  let depth = 0, groups = [], drawing = null, groupOf = [], measure = data.measures[0], selected = -1, hits = new Set();
  let view = {x: 0, y: 0, zoom: 1}, pending = 0, drawn = null;  // drawn: {isFar, left, top, right, bottom}; null to draw anew

  const svg = svgElement("svg", {id: "network-svg", tabindex: 0, role: "application", "aria-label": "graph of the network: arrow keys move, plus and minus zoom, Enter shows the next node of the search"});
  const layer = svg.appendChild(svgElement("g", {}));
  const legend = element("div", {className: "legend dim"}), status = element("span", {className: "dim", role: "status"});
  const search = element("input", {type: "search", placeholder: "find"});
  search.setAttribute("aria-label", "find a node or tensor");
  host.replaceChildren(toolbar(), svg, legend);
  const size = () => ({width: svg.clientWidth || 600, height: svg.clientHeight || 400});

  function toolbar() {
    const colors = element("select", {onchange: () => { measure = data.measures[colors.selectedIndex]; redraw(); }});
    colors.setAttribute("aria-label", "color by");
    data.measures.forEach(({title}) => colors.append(element("option", {textContent: `color: ${title}`})));
    const levels = Math.max(0, ...data.nodes.map(node => node.scope ? node.scope.split("/").length : 0));
    const scopes = element("select", {onchange: () => { depth = Number(scopes.value); place(); fit(); }});
    scopes.setAttribute("aria-label", "collapse");
    for (let level = 0; level <= Math.min(levels, 6); level++) scopes.append(element("option", {value: level, textContent: level ? `scopes: ${level} deep` : "every node"}));
    scopes.hidden = levels === 0;
    const button = (text, label, act) => { const made = element("button", {type: "button", textContent: text, onclick: act}); made.setAttribute("aria-label", label); return made; };
    search.oninput = () => find(search.value);
    search.onkeydown = event => { if (event.key === "Enter") nextHit(); };
    return element("div", {className: "tools"}, search, status, colors, scopes, button("+", "zoom in", () => zoomAt(1.4)),
      button("−", "zoom out", () => zoomAt(1 / 1.4)), button("fit", "fit the whole network", fit), charts.saveButtons(host, "network"));
  }

  function place() {
    groups = collapseScopes(data.nodes, depth);
    groups.forEach((group, index) => group.members.forEach(member => { groupOf[member] = index; }));
    drawing = layoutNetwork(groups.map(group => ({inputs: group.inputs, width: WIDTH, height: HEIGHT})));
    find(search.value);
  }

  function fit() {
    const {width, height} = size();
    const zoom = Math.min(width / (drawing.width + 2 * PADDING), height / (drawing.height + 2 * PADDING), 1.2);
    view = {zoom, x: (width / zoom - drawing.width) / 2, y: (height / zoom - drawing.height) / 2};
    draw();
  }

  function center(index, zoom = Math.max(view.zoom, 0.9)) {
    const {width, height} = size(), {x, y} = drawing.places[index];
    view = {zoom, x: width / zoom / 2 - x, y: height / zoom / 2 - y};
    draw();
  }

  function zoomAt(factor, clientX, clientY) {
    const box = svg.getBoundingClientRect();
    const px = clientX === undefined ? box.width / 2 : clientX - box.left, py = clientY === undefined ? box.height / 2 : clientY - box.top;
    const zoom = Math.max(0.005, Math.min(3, view.zoom * factor));
    view = {zoom, x: view.x + px / zoom - px / view.zoom, y: view.y + py / zoom - py / view.zoom};
    draw();
  }

  // ---- colors
  const valueOf = group => {
    const values = group.members.map(member => data.nodes[member].values[measure.key]).filter(value => value !== null && value !== undefined);
    if (measure.categories) return values[0];
    const numbers = values.map(toNumber).filter(value => !Number.isNaN(value));
    if (!numbers.length) return NaN;
    if (measure.sum) return numbers.reduce((total, value) => total + value, 0);
    return measure.order === "low" ? Math.min(...numbers) : Math.max(...numbers);
  };

  function makeScale() {
    if (measure.categories) {
      const index = value => measure.categories.indexOf(value);
      return {colorOf: group => index(valueOf(group)) < 0 ? null : sequentialColor(0.12 + 0.8 * index(valueOf(group)) / Math.max(measure.categories.length - 1, 1)), ends: null};
    }
    const ease = value => measure.log ? Math.log10(Math.max(value, 1e-12)) : measure.unit === "dB" ? Math.max(Math.min(value, 80), -20) : value;
    const values = groups.map(valueOf).filter(value => !Number.isNaN(value) && (!measure.log || value > 0)).map(ease);
    const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
    const colorOf = group => {
      const value = valueOf(group);
      if (Number.isNaN(value)) return null;
      const fraction = (ease(value) - low) / span;
      return sequentialColor(measure.order === "low" ? 1 - fraction : fraction);
    };
    const unease = value => measure.log ? 10 ** value : value;
    return {colorOf, ends: values.length ? measure.order === "low" ? [unease(high), unease(low)] : [unease(low), unease(high)] : null};
  }

  function drawLegend(scale) {
    const swatch = color => { const made = element("span", {className: "key"}); made.style.background = color; return made; };
    if (measure.categories) {
      const used = measure.categories.filter(category => groups.some(group => valueOf(group) === category));
      legend.replaceChildren(...used.flatMap(category => [swatch(cssColor(scale.colorOf(groups.find(group => valueOf(group) === category)))), category]), ...alertKey());
      return;
    }
    if (!scale.ends) { legend.replaceChildren(`${measure.title}: not known`); return; }
    const ramp = element("span", {className: "ramp"});
    ramp.style.background = `linear-gradient(to right, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map(part => cssColor(sequentialColor(part))).join(",")})`;
    legend.replaceChildren(`${formatNumber(scale.ends[0], 3)} ${measure.unit}`, ramp, `${formatNumber(scale.ends[1], 3)} ${measure.unit}`, element("span", {textContent: ` (${measure.note})`}), ...alertKey());
  }

  function alertKey() {
    return data.nodes.some(node => node.alert) ? [element("span", {className: "key alert"}), "has a finding"] : [];
  }

  // ---- drawing
  function draw() {
    if (pending) return;
    pending = requestAnimationFrame(() => { pending = 0; render(); });
  }

  function redraw() {
    drawn = null;
    draw();
  }

  function render() {
    const {width, height} = size(), {x, y, zoom} = view, isFar = zoom < TEXT_ZOOM;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    layer.setAttribute("transform", `scale(${zoom}) translate(${x} ${y})`);
    const right = width / zoom - x, bottom = height / zoom - y;
    const isInside = drawn && drawn.isFar === isFar && drawn.left <= -x && drawn.top <= -y && drawn.right >= right && drawn.bottom >= bottom;
    if (!isInside) {
      const aside = isFar ? Infinity : width / zoom / 2, above = isFar ? Infinity : height / zoom / 2;
      drawn = {isFar, left: -x - aside, top: -y - above, right: right + aside, bottom: bottom + above};
      drawArea(drawn);
    }
    layer.firstChild.setAttribute("stroke-width", Math.max(1, 0.7 / zoom));
  }

  function drawArea(area) {
    const scale = makeScale(), fragment = document.createDocumentFragment();
    const isNear = ({x, y}) => x > area.left - WIDTH && x < area.right + WIDTH && y > area.top - HEIGHT && y < area.bottom + HEIGHT;
    const near = groups.map((_, index) => index).filter(index => isNear(drawing.places[index]));
    fragment.append(svgElement("path", {class: "wire", d: edgePath(area)}));
    if (area.isFar) drawBoxes(fragment, near, scale); else near.forEach(index => fragment.append(drawNode(index, scale)));
    [...hits, selected].forEach(index => { if (index >= 0 && isNear(drawing.places[index])) fragment.append(mark(index)); });
    layer.replaceChildren(fragment);
    drawLegend(scale);
  }

  function edgePath(area) {
    let path = "";
    for (const {points} of drawing.edges) {
      const [, top] = points[0], [, bottom] = points[points.length - 1];
      if (bottom < area.top || top > area.bottom) continue;
      path += points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    }
    return path;
  }

  const boxPath = ({x, y}) => `M${(x - WIDTH / 2).toFixed(1)} ${(y - HEIGHT / 2).toFixed(1)}h${WIDTH}v${HEIGHT}h${-WIDTH}z`;

  function drawBoxes(fragment, near, scale) {
    const byColor = new Map();
    near.forEach(index => {
      const color = scale.colorOf(groups[index]), key = color ? cssColor(color) : "var(--soft)";
      byColor.set(key, (byColor.get(key) || "") + boxPath(drawing.places[index]));
    });
    byColor.forEach((d, color) => { const path = svgElement("path", {class: "box", d}); path.style.fill = color; fragment.append(path); });
  }

  const titleOf = group => group.members.length > 1 ? group.scope : data.nodes[group.members[0]].name;

  function drawNode(index, scale) {
    const group = groups[index], node = data.nodes[group.members[0]], {x, y} = drawing.places[index], color = scale.colorOf(group);
    const many = group.members.length > 1;
    const box = svgElement("g", {class: `node${node.place === "host" && !many ? " host" : ""}${node.alert ? " alert" : ""}`, transform: `translate(${x - WIDTH / 2} ${y - HEIGHT / 2})`});
    box.dataset.index = index;
    const rect = svgElement("rect", {width: WIDTH, height: HEIGHT, rx: node.place === "input" || node.place === "output" ? 18 : 5});
    const ink = color ? isDark(color) ? "#fff" : "#111" : "var(--text)";
    rect.style.fill = color ? cssColor(color) : "var(--soft)";
    const value = valueOf(group), text = measure.categories ? value ?? "" : Number.isNaN(value) ? "" : `${formatNumber(value, 3)} ${measure.unit}`;
    const first = svgElement("text", {x: 8, y: 16, class: "op"}, shorten(many ? `${group.members.length} nodes` : node.op, 16));
    const right = svgElement("text", {x: WIDTH - 8, y: 16, "text-anchor": "end"}, shorten(String(text), 13));
    const second = svgElement("text", {x: 8, y: 31}, shorten(titleOf(group), 25));
    [first, right, second].forEach(line => { line.style.fill = ink; box.append(line); });
    box.prepend(rect);
    return box;
  }

  function mark(index) {
    const {x, y} = drawing.places[index];
    return svgElement("rect", {class: index === selected ? "mark chosen" : "mark", x: x - WIDTH / 2, y: y - HEIGHT / 2, width: WIDTH, height: HEIGHT, "stroke-width": 4, "vector-effect": "non-scaling-stroke"});
  }

  // ---- search and selection
  function find(text) {
    const part = text.trim().toLowerCase();
    hits = new Set();
    if (part) data.nodes.forEach((node, index) => {
      if (`${node.name}\n${node.tensor}\n${node.op}`.toLowerCase().includes(part)) hits.add(groupOf[index]);
    });
    status.textContent = part ? `${hits.size} found` : "";
    redraw();
  }

  function nextHit() {
    const all = [...hits].sort((a, b) => a - b), next = all.find(index => index > selected) ?? all[0];
    if (next !== undefined) selectGroup(next, true);
  }

  function selectGroup(index, move) {
    const group = groups[index];
    selected = index;
    drawn = null;
    if (move) center(index); else draw();
    charts.selectTensor(data.nodes[group.members[0]].tensor);
  }

  charts.onSelect(name => {
    const node = nodeOfTensor.get(name);
    if (node === undefined || groupOf[node] === selected) return;
    selected = groupOf[node];
    drawn = null;
    center(selected);
  });

  function indexAt(event) {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) / view.zoom - view.x, y = (event.clientY - box.top) / view.zoom - view.y;
    return drawing.places.findIndex(place => Math.abs(place.x - x) <= WIDTH / 2 && Math.abs(place.y - y) <= HEIGHT / 2);
  }

  // ---- pointer, wheel and keys
  const pointers = new Map();
  let moved = false;
  svg.addEventListener("wheel", event => { event.preventDefault(); zoomAt(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.clientX, event.clientY); }, {passive: false});
  svg.addEventListener("pointerdown", event => { pointers.set(event.pointerId, [event.clientX, event.clientY]); moved = false; });
  svg.addEventListener("pointermove", event => {
    const before = pointers.get(event.pointerId);
    if (!before) { hover(event); return; }
    const now = [event.clientX, event.clientY], other = [...pointers].find(([id]) => id !== event.pointerId);
    if (Math.hypot(now[0] - before[0], now[1] - before[1]) > 3 && !moved) { moved = true; svg.setPointerCapture(event.pointerId); }
    if (!moved) return;
    if (other) {
      const span = point => Math.hypot(point[0] - other[1][0], point[1] - other[1][1]);
      zoomAt(span(now) / Math.max(span(before), 1), (now[0] + other[1][0]) / 2, (now[1] + other[1][1]) / 2);
    } else {
      view = {...view, x: view.x + (now[0] - before[0]) / view.zoom, y: view.y + (now[1] - before[1]) / view.zoom};
      draw();
    }
    pointers.set(event.pointerId, now);
  });
  ["pointerup", "pointercancel"].forEach(kind => svg.addEventListener(kind, event => pointers.delete(event.pointerId)));
  svg.addEventListener("pointerleave", event => showTip(event, ""));
  svg.addEventListener("click", event => { const index = indexAt(event); if (index >= 0 && !moved) selectGroup(index, false); });
  function hover(event) {
    const index = indexAt(event);
    if (index < 0) { showTip(event, ""); return; }
    const group = groups[index], node = data.nodes[group.members[0]];
    showTip(event, group.members.length > 1 ? `${group.scope}\n${group.members.length} nodes` : `${node.name}\n${node.op}\n${node.detail}`);
  }
  const STEPS = {ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60]};
  svg.addEventListener("keydown", event => {
    const step = STEPS[event.key];
    if (step) { view = {...view, x: view.x + step[0] / view.zoom, y: view.y + step[1] / view.zoom}; draw(); }
    else if (event.key === "+" || event.key === "=") zoomAt(1.25);
    else if (event.key === "-") zoomAt(0.8);
    else if (event.key === "0") fit();
    else if (event.key === "Enter") nextHit();
    else if (event.key === "n" || event.key === "p") step1(event.key === "n" ? 1 : -1);
    else return;
    event.preventDefault();
  });
  function step1(by) { selectGroup(Math.max(0, Math.min(groups.length - 1, selected + by)), true); }

  const started = performance.now();
  place();
  svg.dataset.layoutMs = (performance.now() - started).toFixed(0);
  fit();
  if (nodeOfTensor.has(charts.selected())) { selected = groupOf[nodeOfTensor.get(charts.selected())]; center(selected); }
  addEventListener("resize", draw);
};
