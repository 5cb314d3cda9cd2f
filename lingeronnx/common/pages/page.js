"use strict";
// What every page does: a button copies what stands beside it, another one turns light into dark.
const say = words => { const e = document.getElementById("said"); e.textContent = words; setTimeout(() => { e.textContent = ""; }, 2500); };
document.addEventListener("click", e => {
  const button = e.target.closest("button.copy");
  if (!button) return;
  const code = button.parentElement.querySelector("code"), chosen = getSelection();
  chosen.selectAllChildren(code);
  const done = () => say("copied");
  const selected = () => say(document.execCommand("copy") ? "copied" : "selected: press Ctrl-C");
  if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, selected); else selected();
});
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
