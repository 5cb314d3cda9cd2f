(() => { // a scope of its own
const D = JSON.parse(document.getElementById("data-compare").textContent), R = D.rows;
const $ = id => document.getElementById(id);
const {element: el, toNumber: num, formatNumber: show, formatPercent: pct} = charts;
const layerLink = i => { const a = el("button", {type: "button", className: "layer", textContent: R[i].name}); a.onclick = () => choose(i, true); return a; };
// "float (m.onnx)"; models in memory have no name.
const nameModel = (kind, i) => D.names[i] === "model" ? kind : `${kind} (${D.names[i]})`;
const index = new Map(R.map((r, i) => [r.name, i]));
const overview = charts.readData("overview"), losses = overview ? overview.losses : [];
let chosen = (losses.length ? index.get(losses[0].tensor) : D.worst[0]) ?? 0, metric = "SQNR", order = {key: "i", down: false}, all = false;

// ---- summary, on a page without an overview
if ($("story")) {
(() => { const s = $("story");
  if (D.accuracy) { s.append(el("div", {className: "dim"}, "accuracy (top-1)"),
    el("div", {className: "big"}, D.accuracy[0].toFixed(2) + " % → " + D.accuracy[1].toFixed(2) + " %")); }
  D.warnings.forEach(w => s.append(el("div", {className: "bad"}, "WARNING: " + w)));
  Object.entries(D.outputs).slice(0, 6).forEach(([n, v]) => s.append(el("div", {className: "dim"}, "output " + n),
    el("div", {className: D.accuracy ? "" : "big"}, show(v, 3) + " dB SQNR")));
  s.append(el("div", {className: "dim", style: "margin-top:8px"}, D.findings.length + (D.findings.length === 1 ? " finding" : " findings")));
})();
D.worst.forEach(i => { const r = R[i], q = num(r.own), w = Number.isFinite(q) ? Math.max(2, Math.min(100, 100 - 2 * q)) : 2;
  const li = el("li", {}, layerLink(i), " ", el("span", {className: "dim"}, r.kinds.filter(x => x).join(" → ") + ", own " +
    show(r.own, 3) + " dB"), r.why ? el("span", {className: "bad"}, " " + r.why) : "");
  const bar = el("div", {className: "depth"}); bar.style.width = w + "%"; li.append(bar); $("worst").append(li); });
(() => { const f = $("findings"); if (!D.findings.length) { f.textContent = "No issues found."; return; }
  const list = el("ol"); D.findings.slice(0, 5).forEach(x => { const at = index.get(x.layer);
    list.append(el("li", {}, el("b", {}, x.kind), " ", at === undefined ? x.layer : layerLink(at), el("div", {className: "dim"}, x.measured))); });
  f.append(list); if (D.findings.length > 5) f.append(el("div", {className: "dim"}, "and " + (D.findings.length - 5) + " more: see the layers"));
  if (D.options) f.append(el("div", {className: "dim"}, "options to paste"), copyable(D.options)); })();
}

// ---- curves and ranges over depth
const METRICS = ["SQNR", "Cosine", "MSE", "L1", "KL", "Atol", "Rtol"];
METRICS.forEach(m => $("metric").append(el("option", {value: m, textContent: m === "SQNR" ? "SQNR, dB" : m})));
$("metric").onchange = e => { metric = e.target.value; curve(); };
const tipOf = r => `${r.name}\n${r.kinds.join(" → ")}\nSQNR ${show(r.m.SQNR, 3)} dB, own ${show(r.own, 3)} dB${r.why ? "\n" + r.why : ""}`;
const overDepth = title => ({title, layers: R.map(r => r.name), tips: R.map(tipOf), selected: chosen, onSelect: i => choose(i)});
function curve() {
  const isLevel = metric === "SQNR", log = ["MSE", "L1", "KL", "Atol", "Rtol"].includes(metric);
  charts.drawDepth($("curve"), {...overDepth(`${metric} over the layers`), unit: isLevel ? "dB" : "", log, least: isLevel ? -20 : undefined, most: isLevel ? 60 : undefined,
    lines: [{name: "as it arrives", values: R.map(r => r.m[metric])}, {name: "the layer's own error", values: R.map(r => r.o[metric])}], marks: R.filter(r => r.why).map(r => r.i)});
}
function ranges() {
  charts.drawRanges($("ranges"), {...overDepth("ranges over the layers"), models: [{name: nameModel("float", 0), values: R.map(r => r.x.slice(0, 2))}, {name: nameModel("integer", 1), values: R.map(r => r.y.slice(0, 2))}]});
}

// ---- one layer
const readers = R.map(() => []); R.forEach((r, i) => r.parents.forEach(p => readers[p].push(i)));
function detail() {
  const r = R[chosen], facts = $("facts");
  if (!r) return;
  $("chosen").textContent = r.name;
  charts.drawHistogram($("histogram"), r, D.names);
  $("histtext").textContent = r.scale === null ? "a float tensor" : `of the float values ${pct(r.clip)} are clipped and ${pct(r.below)} are nearer to 0 than half a step; of the integers ${pct(r.sat)} are the highest or lowest; ${pct(r.used)} of the range is used`;
  $("samples-block").hidden = r.by_sample.length < 2;
  if (r.by_sample.length > 1) charts.drawSampleRanges($("samples"), r);
  facts.replaceChildren();
  const fact = (name, value, style) => facts.append(el("dt", {}, name), el("dd", {className: style || ""}, value));
  D.findings.filter(f => f.layer === r.name || f.also.includes(r.name)).forEach(f => {
    fact("finding", `${f.kind}: ${f.measured}${f.limit ? ` (limit: ${f.limit})` : ""}`, "bad");
    fact("remedy", f.remedy);
    f.options.forEach(option => fact("option", copyable(option)));
  });
  fact("produced by", r.place);
  fact("SQNR", `${show(r.m.SQNR, 3)} dB` + (r.local ? `, of the layer alone ${show(r.o.SQNR, 3)} dB` : ""));
  fact("stored as", r.dtype + (r.scale === null ? "" : `, ${show(r.scale, 6)} steps per unit`));
  fact("shape", r.shape.join(" × "));
  if (r.wbits !== null) fact("bits of weights", String(r.wbits));
  if (r.cycles !== null) fact("cycles of a call", Math.round(r.cycles).toLocaleString("en"));
  for (const [name, list] of [["layers before", r.parents], ["layers after", readers[r.i]]]) {
    const links = el("dd");
    list.slice(0, 8).forEach((i, n) => links.append(n ? ", " : "", layerLink(i)));
    if (list.length) facts.append(el("dt", {}, name), links);
  }
  const further = $("further");
  further.replaceChildren();
  const measure = (name, value) => further.append(el("dt", {}, name), el("dd", {}, value));
  METRICS.filter(m => m !== "SQNR").forEach(m => measure(m, show(r.m[m]) + (r.local ? ", own " + show(r.o[m]) : "")));
  for (const [k, i] of [["range", 0], ["mean, variance", 2]]) measure(k, [r.x, r.y].map(v => show(v[i]) + (i ? ", " : " … ") + show(v[i + 1])).join("   against   "));
}
function copyable(text) {
  const button = el("button", {type: "button", className: "copy"}, "copy");
  button.setAttribute("aria-label", "copy " + text);
  return el("div", {className: "command"}, el("pre", {tabIndex: 0}, el("code", {}, text)), button);
}
function choose(i, go) { chosen = i; curve(); ranges(); detail(); charts.selectTensor(R[i].name);
  document.querySelectorAll("#body tr").forEach(tr => tr.classList.toggle("chosen", +tr.dataset.i === i));
  if (go) $("network").scrollIntoView({block: "start"}); }
charts.onSelect(name => { const i = index.get(name); if (i !== undefined && i !== chosen) choose(i); });

// ---- the table
const COLS = [["i", "#", r => r.i], ["name", "tensor", r => r.name, "t name"], ["kind", "operator", r => r.kinds[0] || r.kinds[1], "t"], ["why", "finding", r => r.why, "t bad"], ["dtype", "stored as", r => r.dtype, "t"],
  ["SQNR", "SQNR", r => num(r.m.SQNR)], ["own", "own SQNR", r => num(r.own)], ["Cosine", "Cosine", r => num(r.m.Cosine)], ["MSE", "MSE", r => num(r.m.MSE)],
  ["L1", "L1", r => num(r.m.L1)], ["KL", "KL", r => num(r.m.KL)], ["Atol", "Atol", r => num(r.m.Atol)], ["Rtol", "Rtol", r => num(r.m.Rtol)],
  ["sat", "saturated", r => r.sat, "", pct], ["clip", "clipped", r => r.clip, "", pct], ["used", "used", r => r.used, "", pct],
  ...(R.some(r => r.wbits !== null) ? [["wbits", "weight bits", r => r.wbits, "", v => v === null ? "" : String(v)]] : []),
  ...(R.some(r => r.cycles !== null) ? [["cycles", "cycles", r => r.cycles, "", v => v === null ? "" : Math.round(v).toLocaleString("en")]] : [])];
COLS.forEach(([key, title, , cls]) => { const th = el("th", {className: (cls || "").split(" ")[0]}); th.dataset.key = key; th.scope = "col"; const b = el("button", {type: "button"}, title); th.append(b);
  b.onclick = () => { order = {key, down: order.key === key ? !order.down : false}; table(); }; $("head").append(th); });
$("kind").append(el("option", {value: "", textContent: "all operators"}));
[...new Set(R.map(r => r.kinds[0] || r.kinds[1]))].sort().forEach(k => $("kind").append(el("option", {value: k, textContent: k})));
function table() { const part = $("filter").value.toLowerCase(), kind = $("kind").value, only = $("only").checked, get = COLS.find(c => c[0] === order.key)[2];
  const rows = R.filter(r => (!part || r.name.toLowerCase().includes(part)) && (!kind || (r.kinds[0] || r.kinds[1]) === kind) && (!only || r.why));
  const rank = v => v === null || v === undefined || Number.isNaN(v) || v === "" ? null : v;
  rows.sort((p, q) => { const a = rank(get(p)), b = rank(get(q)); if (a === null || b === null) return (a === null) - (b === null);
    return (a < b ? -1 : a > b ? 1 : 0) * (order.down ? -1 : 1) || p.i - q.i; });
  const most = all ? rows.length : 300, made = rows.slice(0, most).map(r => { const tr = el("tr", {className: r.i === chosen ? "chosen" : ""}); tr.dataset.i = r.i;
    COLS.forEach(([, , value, cls, form]) => { const v = value(r), td = el("td", {className: cls || ""}); td.textContent = form ? form(v) : typeof v === "number" ? show(v) : v;
      if (cls && cls.includes("name")) td.replaceChildren(layerLink(r.i)); tr.append(td); });
    tr.onclick = () => choose(r.i); return tr; });
  if (rows.length > most) { const b = el("button", {type: "button"}, "show all " + rows.length), td = el("td", {colSpan: COLS.length, className: "t"}, b); b.onclick = () => { all = true; table(); }; made.push(el("tr", {}, td)); }
  $("body").replaceChildren(...made); $("count").textContent = rows.length + " of " + R.length;
  document.querySelectorAll("#head th").forEach(th => { const c = COLS.find(c => c[0] === th.dataset.key); th.setAttribute("aria-sort", order.key !== c[0] ? "none" : order.down ? "descending" : "ascending"); th.firstChild.textContent = c[1] + (order.key === c[0] ? (order.down ? " ▾" : " ▴") : ""); }); }
$("filter").oninput = table; $("kind").onchange = table; $("only").onchange = table;

// ---- as wide as the window
addEventListener("resize", () => { curve(); ranges(); detail(); });
table(); if (R.length) document.addEventListener("DOMContentLoaded", () => choose(chosen));
})();
