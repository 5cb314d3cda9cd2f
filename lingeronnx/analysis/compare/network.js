// The network, drawn once the rest of the page is, and the weights of the selected node.
(() => {
const network = charts.readData("network"), host = document.getElementById("weights");
const nodeOfTensor = new Map(network.nodes.filter(node => node.weights).map(node => [node.tensor, node]));
charts.onSelect(name => {
  const node = nodeOfTensor.get(name);
  document.getElementById("weights-block").hidden = !node;
  if (node) charts.drawHeatMap(host, node.weights);
});
addEventListener("load", () => setTimeout(() => charts.drawNetwork(document.getElementById("network-host"), network)));
})();
