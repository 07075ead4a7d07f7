// What a pane of the explorer shows that is no text: tables, a graph, memory over time, a message.
//
//   const shown = hlocPane(body, content, {text, hover, chosen});   shown.mark(lines); shown.reveal(lines); shown.end()
"use strict";
const hlocPane = (() => {
  const SHOWN_BUFFERS = 200;
  const element = (tag, parent, content, attributes = {}) => {
    const made = document.createElement(tag);
    if (content !== undefined) made.textContent = content;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  };
  const meets = (lines, among) => among.some(line => lines.has(line));
  const nothing = () => {};

  // Rows that belong to lines of the text: they are marked, and mark.
  function linkedRows(hooks) {
    const rows = [];
    return {
      add(row, lines) {
        rows.push([row, lines]);
        if (!lines.length) return;
        row.tabIndex = 0;
        row.addEventListener("pointerenter", () => hooks.hover(new Set(lines)));
        row.addEventListener("pointerleave", () => hooks.hover(new Set()));
        row.addEventListener("focus", () => hooks.hover(new Set(lines)));
        row.addEventListener("click", () => hooks.chosen(new Set(lines)));
        row.addEventListener("keydown", event => { if (event.key === "Enter") hooks.chosen(new Set(lines)); });
      },
      mark: lines => rows.forEach(([row, own]) => row.classList.toggle("linked", meets(lines, own))),
      reveal(lines) {
        const found = rows.find(([, own]) => meets(lines, own));
        if (found) found[0].scrollIntoView({block: "nearest"});
      }};
  }

  function table(parent, {title, columns, right, rows, more}, linked) {
    const made = element("table", parent), head = element("tr", element("thead", made)), body = element("tbody", made);
    element("caption", made, title);
    const side = n => right.includes(n) ? {class: "number"} : {};
    columns.forEach((name, n) => element("th", head, name, {scope: "col", ...side(n)}));
    for (const {cells, lines} of rows) {
      const row = element("tr", body);
      cells.forEach((cell, n) => element("td", row, cell, side(n)));
      linked.add(row, lines);
    }
    if (!rows.length) element("td", element("tr", body), "none", {colspan: columns.length, class: "faint"});
    if (more) element("p", parent, `and ${more} more`);
  }

  function tables(body, content, hooks) {
    const linked = linkedRows(hooks), scroll = element("div", body, undefined, {class: "scroll", tabindex: "0", role: "group", "aria-label": "Tables"});
    content.parts.forEach(part => table(scroll, part, linked));
    return {...linked, end: nothing};
  }

  function message(body, content) {
    const told = element("div", body, undefined, {class: "message"});
    element("p", told, content.text);
    if (content.hint) element("p", told, "hint: " + content.hint, {class: "faint"});
    return {mark: nothing, reveal: nothing, end: nothing};
  }

  function graph(body, content, hooks) {
    body.append(document.querySelector(".graph-template").content.cloneNode(true));
    const drawn = hlocGraph(body.querySelector(".graph"), content.data, {hover: hooks.hover});
    return {mark: drawn.mark, reveal: nothing, end: drawn.end};
  }

  // -- memory ----------------------------------------------------------------------------------------------------------

  const bytes = size => {
    let unit = 0;
    while (size >= 1024 && unit < 4) { size /= 1024; unit++; }
    return (unit ? size.toFixed(1) : size) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit];
  };
  // The chart of hloc/pages/charts.py; a slider chooses an instruction, whose buffers are listed.
  function memory(body, content, hooks) {
    const scroll = element("div", body, undefined, {class: "scroll", tabindex: "0", role: "group", "aria-label": "Memory"});
    if (!content.chart) { element("p", scroll, "No memory is used beside parameters, results and constants."); return {mark: nothing, reveal: nothing, end: nothing}; }
    const drawing = element("div", scroll);
    drawing.innerHTML = content.chart;
    const svg = drawing.firstChild, {count, left, right} = Object.fromEntries(Object.entries(svg.dataset).map(([k, v]) => [k, Number(v)]));
    const label = element("label", scroll, "Instruction "), slider = element("input", label, undefined, {type: "range", min: 0,
      max: Math.max(0, content.live.length - 1), step: 1, class: "instant"});
    const told = element("p", scroll, "", {role: "status"}), list = element("div", scroll);
    let rows = linkedRows(hooks);
    function at(n) {
      const line = svg.querySelector(".instant"), x = left + (right - left) * (n + 0.5) / count;
      line.setAttribute("x1", x);
      line.setAttribute("x2", x);
      told.textContent = `${n}: ${content.names[n]}, ${bytes(content.live[n])} in use`;
      slider.setAttribute("aria-valuetext", told.textContent);
      list.replaceChildren();
      rows = linkedRows(hooks);
      const alive = content.buffers.filter(b => b.first <= n && n <= b.last).slice(0, SHOWN_BUFFERS);
      table(list, {title: "Buffers in use", columns: ["bytes", "buffer"], right: [0], more: 0,
        rows: alive.map(b => ({cells: [bytes(b.size), b.name], lines: b.lines}))}, rows);
    }
    function point(n) { slider.value = n; at(n); hooks.hover(new Set(content.lines[n])); }
    slider.addEventListener("input", () => point(Number(slider.value)));
    svg.addEventListener("pointermove", event => {
      const frame = svg.getBoundingClientRect(), x = (event.clientX - frame.left) / frame.width * svg.viewBox.baseVal.width;
      const n = Math.min(content.live.length - 1, Math.max(0, Math.floor((x - left) / (right - left) * count)));
      if (String(n) !== slider.value) point(n);
    });
    slider.value = Math.min(content.peak, content.live.length - 1);
    at(Number(slider.value));
    return {mark: lines => rows.mark(lines), reveal: lines => rows.reveal(lines), end: nothing};
  }

  function code(body, content, hooks) {
    const shown = hooks.text.viewer(body, hooks.label, hooks);
    shown.show(content);
    return {...shown, takes: "code"};
  }

  const kinds = {code, tables, message, graph, memory};
  return Object.assign((body, content, hooks) => (kinds[content.is] || kinds.message)(body, content, hooks), {element});
})();
