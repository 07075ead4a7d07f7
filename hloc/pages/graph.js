// Draws the graph that hloc/pages/graph_page.py describes. A box is an instruction, or a part: a stretch of a
// computation. Boxes that hold others open in place. Each open box is laid out by itself, by dagre; its own size then
// counts in the layout of the box around it. Values from other parts stand at the top of a part, as ports. Elements of
// tuples and scalar constants have no box: they are edges, and text in their readers.
//
//   const drawn = hlocGraph(place, graph, {hover: lines => ..., whole: true});   drawn.mark(lines); drawn.end();
//
// place: an element that holds those of graph_page.markup; hover: called with the lines of the box under the pointer;
// whole: the graph is all that the page shows.
"use strict";
const hlocGraph = (place, graph, hooks = {}) => {
  const [NAME, OPCODE, SHAPE, BYTES, OPERANDS, COMPUTATION, LINE, SOURCE, TEXT, CLASS, CALLEES, WEIGHT, EDGES,
    CONSTANTS] = Array(14).keys();
  const nodes = graph.nodes, strings = graph.strings;
  const CHARACTER = 7.3, LONGEST_NAME = 30, ROW = 16, PAD = 8, HEAD = 24, MOST_PORTS = 10;
  const FIRST_UNFOLDED = 60, SMALLEST_READABLE = 0.6, MOST_TRIES = 8, MOST_UNFOLDED = 2500, MOST_RESULTS = 40, MOST_DEPTH = 60;
  const SVG = "http://www.w3.org/2000/svg";
  const by = name => place.querySelector("." + name);
  const ending = new AbortController(), until = {signal: ending.signal};

  // -- boxes ---------------------------------------------------------------------------------------------------------

  // parent: the box around it; node: of an instruction, else -1; items: what it holds, made when it first opens.
  const makeBox = (parent, node, title, parts) =>
    ({parent, node, title, parts, items: null, open: false, layout: null, depth: parent ? parent.depth + 1 : 0});
  const boxOf = new Array(nodes.length).fill(null);        // of each instruction, once the boxes around it are made
  const pathOf = new Array(nodes.length);                  // of each instruction: indices of parts, from its computation
  const callerOf = graph.computations.map(() => -1);       // the instruction in which a computation is shown
  const users = nodes.map(() => []);

  nodes.forEach((node, n) => {
    node[OPERANDS].forEach(operand => operand >= 0 && users[operand].push(n));
    node[CALLEES].forEach(callee => { if (callerOf[callee] < 0) callerOf[callee] = n; });
  });
  graph.computations.forEach(([, parts]) => {
    const walk = (items, path) => items.forEach((item, at) =>
      typeof item === "number" ? pathOf[item] = [...path, at] : walk(item[1], [...path, at]));
    walk(parts, []);
  });
  // Where an instruction without a box is seen: at the source of its edge, or in its first reader.
  const hasBox = node => pathOf[node] !== undefined;
  function placeOf(node) {
    if (!hasBox(node) && nodes[node][EDGES].length) return nodes[node][EDGES][0];
    while (!hasBox(node)) node = users[node][0];
    return node;
  }
  const computationBoxes = graph.computations.map(() => null);
  const root = makeBox(null, -1, "", null);
  let top = root;                                          // what is drawn: the root, or a box deep inside of it

  const shownCallees = node => nodes[node][CALLEES].filter(callee => callerOf[callee] === node);
  const holds = box => box.node < 0 || shownCallees(box.node).length > 0;

  function itemsOf(box) {
    if (box.items) return box.items;
    const fromParts = (owner, parts) => parts.map(part => {
      const made = typeof part === "number" ? makeBox(owner, part, "", null) : makeBox(owner, -1, part[0], part[1]);
      if (made.node >= 0) boxOf[made.node] = made;
      return made;
    });
    const ofComputation = (owner, number) => {
      const made = makeBox(owner, -1, graph.computations[number][0], graph.computations[number][1]);
      made.computation = number;
      computationBoxes[number] = made;
      return made;
    };
    if (box === root) box.items = [graph.entry, ...roots()].map(number => ofComputation(root, number));
    else if (box.node < 0) box.items = fromParts(box, box.parts);
    else {
      const callees = shownCallees(box.node);
      if (callees.length === 1) {
        computationBoxes[callees[0]] = box;                // a fusion's frame is its computation's
        box.items = fromParts(box, graph.computations[callees[0]][1]);
      } else box.items = callees.map(number => ofComputation(box, number));
    }
    return box.items;
  }

  // Computations that no instruction in the graph calls, beside the entry.
  function roots() {
    return graph.computations.map((_, number) => number).filter(n => n !== graph.entry && callerOf[n] < 0);
  }

  function leaves(box) {
    if (box.size === undefined) {
      const inParts = parts => parts.reduce((sum, p) => sum + (typeof p === "number" ? 1 : inParts(p[1])), 0);
      box.size = box.parts ? inParts(box.parts) : 1;
    }
    return box.size;
  }

  // The box of an instruction, with all around it made: calls are followed outwards, then boxes made inwards.
  function find(node) {
    const way = [node];
    for (;;) {
      const number = nodes[way[way.length - 1]][COMPUTATION];
      if (boxOf[way[way.length - 1]] || computationBoxes[number]) break;
      if (number === graph.entry || callerOf[number] < 0) itemsOf(root);
      else way.push(callerOf[number]);
    }
    for (const one of way.reverse()) {
      if (!boxOf[one]) {
        let box = computationBoxes[nodes[one][COMPUTATION]];
        for (const at of pathOf[one]) box = itemsOf(box)[at];
      }
      if (one !== node) itemsOf(boxOf[one]);
    }
    return boxOf[node];
  }

  function setOpen(box, open) {
    box.open = open;
    for (let b = box; b; b = b.parent) b.layout = null;
  }

  // Opens what is around an instruction; of very deep nesting only the inner frames are drawn.
  function reveal(node) {
    const box = find(node);
    top = box.parent;
    while (top.parent && box.depth - top.depth < MOST_DEPTH) top = top.parent;
    for (let b = box.parent; b; b = b === top ? null : b.parent) if (!b.open) setOpen(b, true);
    if (top !== root) say("The frames around this are not drawn: the nesting is deep");
    return box;
  }

  // -- layout --------------------------------------------------------------------------------------------------------

  const cut = text => text.length > LONGEST_NAME ? text.slice(0, LONGEST_NAME - 1) + "\u2026" : text;
  const bytesText = size => {
    let unit = 0;
    while (size >= 1024 && unit < 4) { size /= 1024; unit++; }
    return (unit ? size.toFixed(1) : size) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit];
  };
  const weightText = weight => {
    if (!weight) return "";
    if (graph.unit === "bytes") return bytesText(weight);
    if (graph.unit === "flops") return weight.toExponential(1) + " flops";
    return weight >= 1e-3 ? (weight * 1e3).toFixed(2) + " ms" : (weight * 1e6).toFixed(1) + " \u00b5s";
  };
  const largest = nodes.reduce((most, node) => Math.max(most, node[WEIGHT]), 0);

  function linesOf(box) {
    if (box.node >= 0) {
      const node = nodes[box.node], more = holds(box) ? " \u2026" : "";
      const lines = [cut(node[NAME]) + more, cut(strings[node[OPCODE]] + "  " + strings[node[SHAPE]])];
      if (strings[node[CONSTANTS]]) lines.push(cut(strings[node[CONSTANTS]]));
      if (node[WEIGHT]) lines.push(weightText(node[WEIGHT]));
      return lines;
    }
    const size = leaves(box);
    const scope = box.title.length > LONGEST_NAME ? "\u2026" + box.title.slice(1 - LONGEST_NAME) : box.title;
    return [(scope || "part") + " \u2026", size + (size === 1 ? " instruction" : " instructions")];
  }

  function sizeOf(box) {
    if (box.open && holds(box)) {
      const own = layoutOf(box);
      return [own.width, own.height];
    }
    const lines = linesOf(box), grown = largest && box.node >= 0 ? Math.sqrt(nodes[box.node][WEIGHT] / largest) : 0;
    const width = Math.max(60, ...lines.map(line => line.length * CHARACTER)) + 2 * PAD;
    return [width * (1 + grown), (lines.length * ROW + PAD) * (1 + 2 * grown)];
  }

  // For the instructions of a box that lie in parts: which of its items holds each.
  function holdersIn(box) {
    const holder = new Map();
    const walk = (parts, at) => parts.forEach((part, n) => {
      const item = at === null ? n : at;
      if (typeof part === "number") holder.set(part, item); else walk(part[1], item);
    });
    const parts = box.parts || (box.node >= 0 && shownCallees(box.node).length === 1 ?
      graph.computations[shownCallees(box.node)[0]][1] : null);
    if (parts) walk(parts, null);
    return holder;
  }

  // Edges between the items of a box, and the values that come from outside of it.
  function edgesIn(box) {
    const holder = holdersIn(box), edges = new Map(), ports = new Map();
    for (const [node, item] of holder) {
      const ends = nodes[node][EDGES];
      for (let at = 0; at < ends.length; at += 2) {
        const source = ends[at], from = holder.get(source);
        if (from === item) continue;
        const key = from === undefined ? "p" + source + ">" + item : from + ">" + item;
        const table = from === undefined ? ports : edges;
        if (!table.has(key)) table.set(key, {from: from === undefined ? source : from, to: item, values: new Set()});
        table.get(key).values.add(ends[at + 1]);
      }
    }
    return [edges, ports];
  }

  function edgeText(values) {
    const bytes = [...values].reduce((sum, value) => sum + nodes[value][BYTES], 0);
    if (values.size > 1) return values.size + " arrays, " + bytesText(bytes);
    const shape = strings[nodes[[...values][0]][SHAPE]];
    return cut(shape) + (shape.startsWith("(") || !bytes ? "" : "  " + bytesText(bytes));
  }

  function layoutOf(box) {
    if (box.layout) return box.layout;
    const items = itemsOf(box), inside = new dagre.graphlib.Graph({multigraph: false});
    inside.setGraph({ranksep: 14, nodesep: 18, edgesep: 8, marginx: PAD, marginy: PAD});
    inside.setDefaultEdgeLabel(() => ({}));
    items.forEach((item, n) => {
      const [width, height] = sizeOf(item);
      inside.setNode("i" + n, {width, height});
    });
    const [edges, ports] = edgesIn(box), outside = new Map(), label = text => ({
      text, width: text.length * CHARACTER * 0.85, height: 12, labelpos: "r", labeloffset: 4});
    for (const edge of edges.values()) inside.setEdge("i" + edge.from, "i" + edge.to, label(edgeText(edge.values)));
    for (const port of ports.values()) {
      const key = outside.size < MOST_PORTS || outside.has(port.from) ? port.from : "rest";
      if (!outside.has(key)) outside.set(key, {values: new Set(), to: new Set()});
      outside.get(key).values.add(port.from);
      outside.get(key).to.add(port.to);
    }
    for (const [key, port] of outside) {
      port.text = key === "rest" ? port.values.size + " more values" : "\u2191 " + cut(nodes[key][NAME]);
      inside.setNode("p" + key, {width: port.text.length * CHARACTER * 0.9 + PAD, height: ROW + 2});
      for (const to of port.to) inside.setEdge("p" + key, "i" + to, key === "rest" ? {} : label(edgeText(port.values)));
    }
    dagre.layout(inside);
    const whole = inside.graph(), head = box === root ? 0 : HEAD;
    const titleWidth = box === root ? 0 : headText(box).length * CHARACTER + 2 * PAD + 20;
    const finite = size => Number.isFinite(size) && size > 0 ? size : 2 * PAD;
    box.layout = {
      width: Math.max(finite(whole.width), titleWidth), height: finite(whole.height) + head, head,
      items: items.map((item, n) => ({item, ...inside.node("i" + n)})),
      ports: [...outside].map(([key, port]) => ({key, text: port.text, ...inside.node("p" + key)})),
      edges: inside.edges().map(edge => inside.edge(edge))};
    return box.layout;
  }

  function headText(box) {
    if (box.node < 0) return box.computation !== undefined ? box.title : (box.title || "part") + ", " + leaves(box);
    const node = nodes[box.node];
    return cut(node[NAME]) + "  " + strings[node[OPCODE]] + "  " + cut(strings[node[SHAPE]]);
  }

  // -- drawing -------------------------------------------------------------------------------------------------------

  const canvas = by("canvas"), svg = document.createElementNS(SVG, "svg"), drawn = new Map();
  svg.setAttribute("role", "group");
  svg.setAttribute("aria-label", "Graph of instructions");
  const tip = "tip" + document.querySelectorAll("svg marker").length + "-" + Math.round(performance.now());
  svg.innerHTML = '<defs><marker id="' + tip + '" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    + '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>';
  const scene = element("g", {}, svg);
  canvas.append(svg);
  let chosen = null, view = {x: 0, y: 0, scale: 1};

  function element(tag, attributes, parent, content) {
    const made = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (content !== undefined) made.textContent = content;
    if (parent) parent.append(made);
    return made;
  }

  function draw() {
    scene.replaceChildren();
    drawn.clear();
    drawInside(top, layoutOf(top), 0, 0, scene);
    if (chosen && !drawn.has(chosen)) {
      while (chosen && !drawn.has(chosen)) chosen = chosen.parent;
    }
    if (!chosen) chosen = top.layout.items.length ? top.layout.items[0].item : null;
    mark();
  }

  function drawInside(box, layout, left, top, parent) {
    for (const edge of layout.edges) {
      const points = edge.points.map(({x, y}) => (left + x).toFixed(1) + " " + (top + layout.head + y).toFixed(1));
      element("path", {class: "edge", d: "M" + points.join(" L"), "marker-end": `url(#${tip})`}, parent);
      if (edge.text && edge.x !== undefined)
        element("text", {class: "value", x: left + edge.x, y: top + layout.head + edge.y + 4, "aria-hidden": "true"},
          parent, edge.text);
    }
    for (const port of layout.ports) {
      const x = left + port.x - port.width / 2, y = top + layout.head + port.y - port.height / 2;
      const group = element("g", {class: "port"}, parent);
      element("rect", {x, y, width: port.width, height: port.height, rx: 8}, group);
      element("text", {x: left + port.x, y: y + 13}, group, port.text);
      if (port.key !== "rest") group.addEventListener("click", event => { event.stopPropagation(); go(port.key); });
    }
    for (const {item, x, y, width, height} of layout.items)
      drawBox(item, left + x - width / 2, top + layout.head + y - height / 2, width, height, parent);
  }

  function drawBox(box, x, y, width, height, parent) {
    const opened = box.open && holds(box), kind = box.node >= 0 ? strings[nodes[box.node][CLASS]] : "part";
    const group = element("g", {class: (opened ? "frame " : "box ") + kind, role: "button", tabindex: "-1",
      "aria-label": spoken(box)}, parent);
    if (holds(box)) group.setAttribute("aria-expanded", String(opened));
    element("rect", {x, y, width, height, rx: opened ? 6 : 4}, group);
    drawn.set(box, {group, x, y, width, height});
    group.addEventListener("click", event => { event.stopPropagation(); choose(box, event.detail === 0); });
    if (hooks.hover) {
      group.addEventListener("pointerenter", () => hooks.hover(linesIn(box)));
      group.addEventListener("focus", () => hooks.hover(linesIn(box)));
    }
    group.addEventListener("dblclick", event => { event.stopPropagation(); toggle(box); });
    if (opened) {
      const head = element("text", {class: "head", x: x + PAD, y: y + 16}, group, "\u2212 " + headText(box));
      head.addEventListener("click", event => { event.stopPropagation(); toggle(box); });
      drawInside(box, box.layout, x, y, parent);
      return;
    }
    const lines = linesOf(box), first = y + height / 2 - (lines.length * ROW) / 2 + 12;
    lines.forEach((line, n) => element("text", {x: x + width / 2, y: first + n * ROW, class: n ? "" : "name"}, group, line));
  }

  function spoken(box) {
    if (box.node < 0) return (box.title || "part") + ", " + leaves(box) + " instructions";
    const node = nodes[box.node], weight = weightText(node[WEIGHT]);
    return [node[NAME], strings[node[OPCODE]], strings[node[SHAPE]], weight].filter(Boolean).join(", ");
  }

  function mark() {
    for (const [box, {group}] of drawn) {
      group.classList.toggle("chosen", box === chosen);
      group.setAttribute("tabindex", box === chosen ? "0" : "-1");
    }
  }

  // -- moving about --------------------------------------------------------------------------------------------------

  function show() {
    scene.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
  }
  function fit() {
    const {width, height} = layoutOf(top), {clientWidth, clientHeight} = canvas;
    view.scale = Math.min(1.2, Math.max(0.02, Math.min(clientWidth / width, clientHeight / height)));
    if (view.scale < 0.35) view.scale = Math.min(0.8, Math.max(0.35, clientWidth / width));
    view.x = Math.max(0, (clientWidth - width * view.scale) / 2);
    view.y = Math.max(0, Math.min(8, clientHeight - height * view.scale));
    show();
  }
  function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const scale = Math.min(4, Math.max(0.02, view.scale * factor)), by = scale / view.scale;
    view = {x: x - (x - view.x) * by, y: y - (y - view.y) * by, scale};
    show();
  }
  function center(box) {
    const place = drawn.get(box);
    if (!place) return;
    if (view.scale < 0.5) view.scale = 0.9;
    view.x = canvas.clientWidth / 2 - (place.x + place.width / 2) * view.scale;
    view.y = canvas.clientHeight / 3 - (place.y + Math.min(place.height, 60) / 2) * view.scale;
    show();
  }

  function choose(box, focus = true) {
    chosen = box;
    mark();
    tell(box);
    if (focus) drawn.get(box).group.focus({preventScroll: true});
  }
  // Keeps the toggled box where it is on the screen.
  function toggle(box) {
    if (!holds(box)) return;
    const before = drawn.get(box);
    setOpen(box, !box.open);
    draw();
    const after = drawn.get(box);
    if (before && after) {
      view.x += (before.x - after.x) * view.scale;
      view.y += (before.y - after.y) * view.scale;
    }
    show();
    choose(box);
  }
  function go(node) {
    const box = reveal(placeOf(node));
    draw();
    choose(box);
    center(box);
    if (box.node !== node) tellOf(node);
  }

  // The scale at which all that is drawn is as wide as the screen.
  const widest = () => canvas.clientWidth / layoutOf(top).width;
  // Opens the entry, and of what it holds as much as lets no more than `most` boxes be seen, outer ones first; with
  // readable, only what leaves texts large enough to be read on this screen.
  function openUpTo(most, readable = false) {
    top = root;
    for (const box of itemsOf(root)) setOpen(box, true);
    const queue = itemsOf(root).flatMap(itemsOf);
    let left = most - queue.length, tries = readable ? MOST_TRIES : Infinity;
    while (queue.length && tries) {
      const box = queue.shift();
      if (!holds(box)) continue;
      const open = most > 0 && box.depth <= MOST_DEPTH && itemsOf(box).length <= left;
      if (box.open !== open) setOpen(box, open);
      if (open) tries--;
      if (open && readable && widest() < SMALLEST_READABLE) setOpen(box, false);
      if (box.open || box.items) queue.push(...itemsOf(box));
      if (box.open) left -= itemsOf(box).length;
    }
    draw();
    fit();
    say(most >= MOST_UNFOLDED && nodes.length > most ? `Opened up to ${most} of ${nodes.length} instructions` : "");
  }

  // -- the chosen instruction ----------------------------------------------------------------------------------------

  const html = (tag, content, parent, attributes = {}) => {
    const made = document.createElement(tag);
    if (content !== undefined) made.textContent = content;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  };
  const say = text => { by("said").textContent = text; };

  function tell(box) {
    const panel = by("details");
    panel.replaceChildren();
    if (box.node < 0) {
      html("h2", box.title || "Part of a computation", panel);
      html("p", leaves(box) + " instructions", panel);
      return;
    }
    tellOf(box.node);
  }
  function tellOf(number) {
    const panel = by("details");
    panel.replaceChildren();
    const node = nodes[number], list = html("dl", undefined, panel);
    panel.prepend(html("h2", node[NAME]));
    const row = (term, content) => { if (content) { html("dt", term, list); html("dd", content, list); } };
    row("opcode", strings[node[OPCODE]]);
    row("shape", strings[node[SHAPE]] + (node[BYTES] ? ", " + bytesText(node[BYTES]) : ""));
    row("cost", weightText(node[WEIGHT]));
    row("computation", graph.computations[node[COMPUTATION]][0]);
    row("line", node[LINE] && String(node[LINE]));
    row("written at", strings[node[SOURCE]]);
    links("Operands", node[OPERANDS].filter(operand => operand >= 0), panel);
    links("Users", [...new Set(users[number])], panel);
    html("pre", node[TEXT], panel, {tabindex: "0", "aria-label": "HLO text"});
  }
  function links(title, found, panel) {
    if (!found.length) return;
    html("h3", title, panel);
    const list = html("ul", undefined, panel);
    for (const node of found.slice(0, MOST_RESULTS))
      html("button", nodes[node][NAME], html("li", undefined, list), {type: "button"}).addEventListener("click", () => go(node));
    if (found.length > MOST_RESULTS) html("li", `and ${found.length - MOST_RESULTS} more`, list);
  }

  // -- search --------------------------------------------------------------------------------------------------------

  let texts = null;
  function search() {
    const wanted = by("search").value.trim().toLowerCase(), list = by("results");
    list.replaceChildren();
    if (!wanted) return say("");
    texts = texts || nodes.map(node => [node[NAME], strings[node[OPCODE]], strings[node[SHAPE]], "line:" + node[LINE],
      strings[node[SOURCE]]].join(" ").toLowerCase());
    const words = wanted.split(/\s+/), found = [];
    texts.forEach((text, n) => { if (words.every(word => text.includes(word))) found.push(n); });
    say(found.length + (found.length === 1 ? " instruction found" : " instructions found"));
    for (const n of found.slice(0, MOST_RESULTS)) {
      const node = nodes[n], place = strings[node[SOURCE]].split("\n")[0];
      const label = [node[NAME], strings[node[OPCODE]], strings[node[SHAPE]], node[LINE] && "line " + node[LINE], place]
        .filter(Boolean).join("  ");
      html("button", label, html("li", undefined, list), {type: "button"}).addEventListener("click", () => {
        list.replaceChildren();
        go(n);
      });
    }
  }

  // -- keys and pointer ----------------------------------------------------------------------------------------------

  function neighbour(key) {
    if (key === "ArrowUp" || key === "ArrowDown") {
      if (chosen.node >= 0) {
        const near = (key === "ArrowUp" ? nodes[chosen.node][EDGES] : readers(chosen.node))[0];
        return near === undefined ? null : visible(find(near));
      }
      if (key === "ArrowDown" && chosen.open) return itemsOf(chosen)[0];
    }
    const beside = chosen.parent ? itemsOf(chosen.parent) : [];
    const step = key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1;
    return beside[beside.indexOf(chosen) + step] || null;
  }
  // What reads a value, or an element of it, and has a box.
  const readers = node => users[node].flatMap(user => hasBox(user) ? [user] : readers(user));
  // The box itself, or the folded one around it.
  function visible(box) {
    let found = box;
    for (let b = box.parent; b && b !== top; b = b.parent) if (!b.open) found = b;
    return found;
  }

  svg.addEventListener("keydown", event => {
    if (!chosen || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") toggle(chosen);
    else if (event.key === "Escape" && chosen.parent && chosen.parent !== top) { choose(chosen.parent); center(chosen); }
    else if (event.key.startsWith("Arrow")) {
      const next = neighbour(event.key);
      if (next && drawn.has(next)) { choose(next); center(next); }
    } else return;
    event.preventDefault();
  });
  (hooks.whole ? document : place).addEventListener("keydown", event => {
    if (event.key === "/" && document.activeElement !== by("search")) { by("search").focus(); event.preventDefault(); }
  }, until);
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const frame = canvas.getBoundingClientRect();
    if (event.ctrlKey || !event.shiftKey) zoom(Math.exp(-event.deltaY / 500), event.clientX - frame.left, event.clientY - frame.top);
    else { view.x -= event.deltaY; show(); }
  }, {passive: false});
  let held = null;
  canvas.addEventListener("pointerdown", event => { held = {x: event.clientX - view.x, y: event.clientY - view.y}; });
  addEventListener("pointermove", event => {
    if (held && event.buttons) { view.x = event.clientX - held.x; view.y = event.clientY - held.y; show(); }
  }, until);
  addEventListener("pointerup", () => { held = null; }, until);
  by("fold").addEventListener("click", () => openUpTo(0));
  by("unfold").addEventListener("click", () => openUpTo(MOST_UNFOLDED));
  by("larger").addEventListener("click", () => zoom(1.25));
  by("smaller").addEventListener("click", () => zoom(0.8));
  by("fit").addEventListener("click", fit);
  by("search").addEventListener("input", search);
  by("search").addEventListener("keydown", event => {
    const first = by("results").querySelector("button");
    if (event.key === "Enter" && first) first.click();
    if (event.key === "Escape") by("results").replaceChildren();
  });
  // A page is printed whole.
  addEventListener("beforeprint", () => {
    const {width, height} = layoutOf(top);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    scene.removeAttribute("transform");
  }, until);
  addEventListener("afterprint", () => { svg.removeAttribute("viewBox"); show(); }, until);

  // -- lines of the text -----------------------------------------------------------------------------------------------

  // The lines that a box stands for: of what it holds, however deep.
  const linesHeld = new Map();
  function linesIn(box) {
    if (linesHeld.has(box)) return linesHeld.get(box);
    const lines = new Set(), seen = new Set(), waiting = box.node >= 0 ? [box.node] : [];
    const inParts = parts => parts.forEach(part => typeof part === "number" ? waiting.push(part) : inParts(part[1]));
    if (box.parts) inParts(box.parts);
    while (waiting.length) {
      const node = nodes[waiting.pop()];
      if (node[LINE]) lines.add(node[LINE]);
      for (const callee of node[CALLEES]) if (!seen.has(callee)) { seen.add(callee); inParts(graph.computations[callee][1]); }
    }
    linesHeld.set(box, lines);
    return lines;
  }
  function markLines(lines) {
    for (const [box, {group}] of drawn)
      group.classList.toggle("linked", lines.size > 0 && !(box.open && holds(box)) && [...lines].some(n => linesIn(box).has(n)));
  }

  // -- start ---------------------------------------------------------------------------------------------------------

  root.open = true;
  const handle = {mark: markLines, end: () => ending.abort()};
  if (graph.entry === null || graph.entry === undefined) { say("no instruction to show"); return handle; }
  openUpTo(FIRST_UNFOLDED, true);
  if (chosen) tell(chosen);
  return handle;
};
