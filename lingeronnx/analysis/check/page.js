// Charts of a check: the memory plan over the layers, and the cycles of the most expensive ones.
(() => {
const check = charts.readData("check");
const draw = () => {
  const memory = document.getElementById("memory-plan"), cycles = document.getElementById("layer-cycles");
  if (memory) charts.drawMemory(memory, {layers: check.cost.layers.map(layer => layer.node), buffers: check.cost.buffers});
  if (cycles) {
    const layers = check.time.cycles.layers;
    charts.drawBars(cycles, {title: "cycles of the most expensive layers", unit: "cycles", parts: ["computing", "starts of calls", "waits for constants", "copies from and to psram"],
      rows: layers.map(layer => ({name: `${layer.operator} ${layer.node || layer.name}`, values: [layer.cycles - layer.overhead, layer.overhead, layer.wait, layer.moved],
        note: charts.formatCount(layer.cycles + layer.wait + layer.moved)}))});
  }
};
draw();
addEventListener("resize", draw);
})();
