"use strict";
// What all charts share: elements, numbers as text, the tooltip, colors, and saving a chart as a file.
const charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties || {});
    made.append(...children);
    return made;
  }

  function svgElement(tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Names of a chart's parts, drawn within the SVG so that saved files have them. A class that begins with "l" is a line, any other one a square.
  // Returns the height of the rows, and a function that draws them.
  function layoutLegend(entries, width) {
    const placed = [];
    let x = 0, row = 0;
    for (const [style, name] of entries) {
      const text = shorten(name, Math.max(Math.floor((width - 20) / 6.3), 8)), size = 32 + 6.1 * text.length;
      if (x && x + size > width) { x = 0; row += 1; }
      placed.push({style, text, x, y: 16 * row});
      x += size;
    }
    const draw = (svg, left, top) => placed.forEach(({style, text, x: dx, y: dy}) => {
      const isLine = style.startsWith("l");
      svg.append(isLine ? svgElement("line", {x1: left + dx, x2: left + dx + 16, y1: top + dy + 7, y2: top + dy + 7, class: style})
        : svgElement("rect", {x: left + dx + 3, y: top + dy + 2, width: 11, height: 11, rx: 2, class: style}), svgElement("text", {x: left + dx + 20, y: top + dy + 11}, text));
    });
    return {height: entries.length ? 16 * (row + 1) : 0, draw};
  }

  // Enter and the space bar do what a click does.
  function makeClickable(node, label, act) {
    node.setAttribute("tabindex", 0);
    node.setAttribute("role", "button");
    node.setAttribute("aria-label", label);
    node.onclick = act;
    node.onkeydown = event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(event); } };
  }

  // JSON has no infinities and NaN: the data have them as words.
  function toNumber(value) {
    if (value === null || value === undefined || value === "nan") return NaN;
    return value === "inf" ? Infinity : value === "-inf" ? -Infinity : Number(value);
  }

  function formatNumber(value, digits = 4) {
    const number = toNumber(value), size = Math.abs(number);
    if (Number.isNaN(number)) return "-";
    if (!Number.isFinite(number)) return number > 0 ? "inf" : "-inf";
    if (number !== 0 && (size >= 1e5 || size < 1e-3)) return number.toExponential(2);
    return String(Number(number.toPrecision(digits)));
  }

  function formatPercent(fraction) {
    if (fraction === null || fraction === undefined) return "-";
    const percent = 100 * fraction;
    return (percent && percent < 1 ? formatNumber(percent, 2) : percent.toFixed(1)) + " %";
  }

  const formatCount = value => Number.isFinite(toNumber(value)) ? Math.round(value).toLocaleString("en") : "-";

  // "12.3 kB", in powers of 1000 as the command line writes them.
  function formatBytes(bytes) {
    if (bytes < 1000) return `${bytes} B`;
    const unit = bytes < 1e6 ? "kB" : "MB", value = bytes / (bytes < 1e6 ? 1e3 : 1e6);
    return `${value.toFixed(value < 10 ? 2 : 1)} ${unit}`;
  }

  // The end of a name says more than its beginning.
  const shorten = (name, length) => name.length <= length ? name : "…" + name.slice(name.length - length + 1);

  function showTip(event, text) {
    const tip = document.getElementById("tip");
    tip.style.display = text ? "block" : "none";
    if (!text) return;
    tip.textContent = text;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 10) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 10) + "px";
  }

  // Sequential colors (cividis), dark to light: lightness alone carries the order, so that they survive greyscale and color blindness.
  const STOPS = [[0, 32, 77], [49, 68, 107], [102, 105, 112], [149, 143, 120], [200, 184, 102], [255, 234, 70]];

  // The color of a fraction from 0 to 1, as [r, g, b].
  function sequentialColor(fraction) {
    const position = Math.max(0, Math.min(1, fraction)) * (STOPS.length - 1);
    const index = Math.min(Math.floor(position), STOPS.length - 2), part = position - index;
    return STOPS[index].map((low, channel) => Math.round(low + (STOPS[index + 1][channel] - low) * part));
  }

  const cssColor = rgb => `rgb(${rgb.join(",")})`;
  const isDark = rgb => 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] < 140;

  // Charts refer to colors of the page: a file of its own has them as values.
  function serializeChart(svg) {
    const copy = svg.cloneNode(true), originals = [svg, ...svg.querySelectorAll("*")];
    [copy, ...copy.querySelectorAll("*")].forEach((node, index) => {
      const style = getComputedStyle(originals[index]);
      for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "font-family"]) node.style.setProperty(name, style.getPropertyValue(name));
    });
    const box = svg.viewBox.baseVal;
    copy.setAttribute("xmlns", SVG);
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    copy.style.background = getComputedStyle(document.body).getPropertyValue("background-color");
    return new XMLSerializer().serializeToString(copy);
  }

  function download(name, blob) {
    const link = element("a", {href: URL.createObjectURL(blob), download: name});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function savePng(svg, name) {
    const box = svg.viewBox.baseVal, image = new Image();
    image.onload = () => {
      const canvas = element("canvas", {width: 2 * box.width, height: 2 * box.height});
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(blob => download(name + ".png", blob));
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(serializeChart(svg));
  }

  // Two buttons that save the chart within `host`; the chart may be drawn anew in between.
  function saveButtons(host, name) {
    const button = (format, save) => {
      const made = element("button", {type: "button", className: "save", textContent: format});
      made.setAttribute("aria-label", `save ${name} as ${format}`);
      made.onclick = () => save(host.querySelector("svg"));
      return made;
    };
    return element("span", {className: "saves"},
      button("SVG", svg => download(name + ".svg", new Blob([serializeChart(svg)], {type: "image/svg+xml"}))),
      button("PNG", svg => savePng(svg, name)));
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("[data-chart]").forEach(host =>
    host.before(saveButtons(host, host.dataset.chart))));

  const readData = key => { const script = document.getElementById("data-" + key); return script && JSON.parse(script.textContent); };

  // Charts of one page show the same layer: whoever changes it tells all others.
  let last = "";
  const selectTensor = name => { last = name; document.dispatchEvent(new CustomEvent("select-tensor", {detail: name})); };
  const selected = () => last;
  const onSelect = react => document.addEventListener("select-tensor", event => react(event.detail));

  document.addEventListener("click", event => {
    const button = event.target.closest("button.select");
    if (!button) return;
    selectTensor(button.dataset.tensor);
    document.getElementById("network").scrollIntoView({block: "start"});
  });

  return {element, svgElement, layoutLegend, makeClickable, saveButtons, serializeChart, toNumber, formatNumber, formatPercent, formatCount, formatBytes, shorten, showTip, sequentialColor,
    cssColor, isDark, readData, selectTensor, selected, onSelect};
})();
