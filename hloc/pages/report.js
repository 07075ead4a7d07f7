/* A report: lines that speak of the same value are marked together; the memory chart tells of any instant.
 *
 * Lines carry their keys (hloc/tools/report/lines.py); those of one kernel that share a key are linked. Pointing marks,
 * a click or Enter keeps the marks until the next one; the arrow keys go to the next line with keys.
 */
"use strict";
(() => {
  const linesOf = element => [...element.closest(".kernel").querySelectorAll(".line")];
  const keysOf = line => line.dataset.keys.split(" ");
  let kept = null;

  function mark(line) {
    for (const one of document.querySelectorAll(".linked, .chosen")) one.classList.remove("linked", "chosen");
    if (!line) return;
    const keys = new Set(keysOf(line));
    for (const one of linesOf(line)) if (keysOf(one).some(key => keys.has(key))) one.classList.add("linked");
    line.classList.add("chosen");
  }

  /* The first linked line of each other text is scrolled into view, within its text alone. */
  function reveal(line) {
    for (const text of line.closest(".kernel").querySelectorAll(".lines")) {
      const first = text.querySelector(".linked");
      if (!first || text.contains(line)) continue;
      const top = first.offsetTop - text.offsetTop;
      if (top < text.scrollTop || top + first.offsetHeight > text.scrollTop + text.clientHeight)
        text.scrollTop = Math.max(0, top - text.clientHeight / 3);
    }
  }

  const lineAt = event => event.target.closest && event.target.closest(".line");
  document.addEventListener("pointerover", event => { if (lineAt(event)) mark(lineAt(event)); });
  document.addEventListener("pointerout", event => { if (lineAt(event)) mark(kept); });
  document.addEventListener("click", event => {
    if (!lineAt(event)) return;
    kept = lineAt(event);
    kept.focus();
    mark(kept);
    reveal(kept);
  });
  document.addEventListener("focusin", event => {
    if (!lineAt(event)) return;
    kept = lineAt(event);
    mark(kept);
  });
  document.addEventListener("keydown", event => {
    const line = lineAt(event);
    if (!line) return;
    const all = [...line.closest(".lines").querySelectorAll(".line")], at = all.indexOf(line);
    const next = { ArrowDown: all[at + 1], ArrowUp: all[at - 1], Home: all[0], End: all[all.length - 1] }[event.key];
    if (event.key === "Escape") { kept = null; mark(null); line.blur(); }
    if (event.key === "Enter") reveal(line);
    if (!next) return;
    event.preventDefault();
    line.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    reveal(next);
  });
  /* Lines can be reached by keys once their kernel is open: the first of each text by Tab, the others by arrows. */
  document.addEventListener("toggle", event => {
    if (!event.target.matches("details.kernel[open]") || event.target.dataset.ready) return;
    event.target.dataset.ready = "1";
    for (const text of event.target.querySelectorAll(".lines"))
      text.querySelectorAll(".line").forEach((line, n) => { line.tabIndex = n ? -1 : 0; });
  }, true);

  /* A link to a kernel opens it. */
  function openTarget() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.matches("details")) { target.open = true; target.scrollIntoView(); }
  }
  addEventListener("hashchange", openTarget);
  document.addEventListener("click", event => {
    const link = event.target.closest && event.target.closest('a[href^="#"]');
    if (link && link.getAttribute("href") === location.hash) openTarget();
  });
  openTarget();

  /* -- memory ----------------------------------------------------------------------------------------------------- */
  const data = JSON.parse(document.getElementById("memory-data").textContent);
  const chart = document.querySelector("svg.memory"), slider = document.getElementById("instant");
  if (!chart || !slider) return;
  if (!data.buffers) { slider.closest("p").remove(); return; }
  const { count, left, right } = Object.fromEntries(Object.entries(chart.dataset).map(([k, v]) => [k, Number(v)]));
  const body = document.querySelector("#buffers tbody"), said = document.getElementById("instant-said");

  function sizeText(size) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = 0;
    while (size >= 1024 && power < 4) { size /= 1024; power++; }
    return (power === 0 || size >= 100 || Number.isInteger(size) ? size.toFixed(0) : size.toFixed(1)) + " " + units[power];
  }

  function show(position) {
    const line = chart.querySelector(".instant"), x = left + (right - left) * (position + .5) / count;
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    const alive = data.buffers.filter(b => b[5] <= position && position <= b[6]).sort((a, b) => b[0] - a[0]);
    const more = alive.length > data.most ? `; ${(alive.length - data.most).toLocaleString("en")} more buffers` : "";
    said.textContent = `${position.toLocaleString("en")}: ${data.names[position]}, ${sizeText(data.live[position])} in use${more}`;
    slider.setAttribute("aria-valuetext", `${data.names[position]}, ${sizeText(data.live[position])}`);
    body.replaceChildren(...alive.slice(0, data.most).map(buffer => {
      const row = document.createElement("tr");
      [sizeText(buffer[0]), ...buffer.slice(1, 5)].forEach((cell, n) => {
        const td = document.createElement("td");
        if (!n) td.className = "number";
        td.textContent = cell;
        row.append(td);
      });
      return row;
    }));
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  const positionAt = event => {
    const box = chart.getBoundingClientRect(), x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
    return Math.min(count - 1, Math.max(0, Math.floor((x - left) / (right - left) * count)));
  };
  let waiting = false;
  chart.addEventListener("pointermove", event => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; slider.value = positionAt(event); show(Number(slider.value)); });
  });
})();
