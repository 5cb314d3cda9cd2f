"use strict";
// Places of a network's nodes, computed by dagre. Its time grows faster than the number of nodes, and networks are chains of blocks:
// the graph is cut wherever all paths pass through one node, and the blocks between the cuts are placed one below the other;
// blocks of the same form, such as the layers of a transformer, are laid out once.
//
// nodes: [{inputs: [index of a node, ...], width, height}, ...], without cycles. Returns the middle of each node, the corners of each
// edge, and the size of the drawing: {places: [{x, y}], edges: [{from, to, points: [[x, y]]}], width, height}.
function layoutNetwork(nodes, engine = dagre) {
  const places = [], edges = [], layouts = new Map();
  let bottom = 0;
  for (const block of splitAtCuts(nodes)) placeBlock(block.members, block.endsAtCut);
  const left = Math.min(...places.map((place, index) => place.x - nodes[index].width / 2));
  const right = Math.max(...places.map((place, index) => place.x + nodes[index].width / 2));
  places.forEach(place => { place.x -= left; });
  edges.forEach(edge => edge.points.forEach(point => { point[0] -= left; }));
  return {places, edges, width: right - left, height: bottom};

  function placeBlock(members, endsAtCut) {
    const index = new Map(members.map((node, position) => [node, position]));
    const shape = members.map(node => ({width: nodes[node].width, height: nodes[node].height, inputs: nodes[node].inputs.filter(input => index.has(input)).map(input => index.get(input))}));
    const key = JSON.stringify([shape, endsAtCut]);
    if (!layouts.has(key)) layouts.set(key, layoutBlock(shape, endsAtCut, engine));
    const {graph, hidden} = layouts.get(key), first = members[0], last = members[members.length - 1];
    // The first node already has a place, as the last one of the block above; the last one, alone in its row, moves below it.
    const start = graph.node("0"), known = places[first] || start;
    const dx = known.x - start.x, dy = known.y - start.y;
    members.forEach((node, position) => {
      const {x, y} = graph.node(String(position));
      places[node] = {x: endsAtCut && node === last ? known.x : x + dx, y: y + dy};
      bottom = Math.max(bottom, y + dy + nodes[node].height / 2);
    });
    graph.edges().forEach(edge => {
      if (hidden.has(edge.v)) return;
      const from = members[Number(edge.v)], to = members[Number(edge.w)];
      const points = graph.edge(edge).points.map(({x, y}) => [x + dx, y + dy]);
      if (endsAtCut && to === last) points[points.length - 1] = [places[to].x, places[to].y - nodes[to].height / 2];
      edges.push({from, to, points});
    });
  }
}

// Lays out a block with dagre: {graph: nodes are called by their position in the block, hidden: nodes whose edge to the last one is no edge}.
function layoutBlock(shape, endsAtCut, engine) {
  const ROW_GAP = 26, COLUMN_GAP = 14, last = String(shape.length - 1);
  const graph = new engine.graphlib.Graph().setGraph({nodesep: COLUMN_GAP, ranksep: ROW_GAP}).setDefaultEdgeLabel(() => ({}));
  shape.forEach(({width, height}, position) => graph.setNode(String(position), {width, height}));
  shape.forEach(({inputs}, position) => inputs.forEach(input => graph.setEdge(String(input), String(position))));
  // A node that nobody reads stays above the end of its block, where the next one begins.
  const hidden = new Set(graph.nodes().filter(node => endsAtCut && node !== last && !graph.successors(node).length));
  hidden.forEach(node => graph.setEdge(node, last));
  engine.layout(graph);
  return {graph, hidden};
}

// Blocks of nodes from one cut, a node that no edge passes by, to the next; both belong to the block.
function splitAtCuts(nodes) {
  const order = orderDepthFirst(nodes), position = [], lastReader = nodes.map(() => -1), blocks = [];
  order.forEach((node, place) => { position[node] = place; });
  nodes.forEach((node, index) => node.inputs.forEach(input => { lastReader[input] = Math.max(lastReader[input], position[index]); }));
  let start = 0, reach = 0;
  order.forEach((node, place) => {
    if (reach <= place && place > start) {
      blocks.push({members: order.slice(start, place + 1), endsAtCut: true});
      start = place;
    }
    reach = Math.max(reach, lastReader[node]);
  });
  if (start < order.length - 1 || !blocks.length) blocks.push({members: order.slice(start), endsAtCut: false});
  return blocks;
}

// A topological order in which a node stands right before its first reader, so that few edges pass by others.
function orderDepthFirst(nodes) {
  const order = [], isPlaced = nodes.map(() => false);
  for (let root = 0; root < nodes.length; root++) {
    const stack = [{node: root, next: 0}];
    while (stack.length) {
      const {node, next} = stack[stack.length - 1], inputs = nodes[node].inputs;
      if (!isPlaced[node] && next < inputs.length) {
        stack[stack.length - 1].next += 1;
        if (!isPlaced[inputs[next]]) stack.push({node: inputs[next], next: 0});
        continue;
      }
      if (!isPlaced[node]) order.push(node);
      isPlaced[node] = true;
      stack.pop();
    }
  }
  return order;
}

// Nodes with the same first `depth` parts of their scope, a path such as "encoder/layer1", become one: {scope, members, inputs}.
// Only nodes that follow each other in topological order do, so that no cycle arises; a node without scope stays alone.
function collapseScopes(nodes, depth) {
  const groups = [], groupOf = [];
  for (const index of orderDepthFirst(nodes)) {
    const scope = depth && nodes[index].scope ? nodes[index].scope.split("/").slice(0, depth).join("/") : "";
    const previous = groups[groups.length - 1];
    if (scope && previous && previous.scope === scope) previous.members.push(index);
    else groups.push({scope, members: [index]});
    groupOf[index] = groups.length - 1;
  }
  return groups.map((group, own) => {
    const inputs = new Set(group.members.flatMap(index => nodes[index].inputs.map(input => groupOf[input])));
    inputs.delete(own);
    return {...group, inputs: [...inputs]};
  });
}

if (typeof module !== "undefined") module.exports = {collapseScopes, layoutNetwork, orderDepthFirst, splitAtCuts};
