// The explorer's page: an editor on the left, panes on the right, and the lines that they mark in each other.
//
// The server answers a question with lines of JSON: {"event": "checked"} the problems of the text, "passes" those of a
// target, "pane" a pane's content, "done", or "ended" with a message. A new question ends the one before.
"use strict";
(() => {
  const read = id => JSON.parse(document.getElementById(id).textContent);
  const facts = read("facts"), place = document.querySelector("main.explore"), by = name => place.querySelector("." + name);
  const DEFAULT_PANES = [{kind: "after"}, {kind: "c"}], PAUSE = 120, MOST_SHOWN_PROBLEMS = 20;
  const kept = "hloc explore " + location.pathname;
  let state = read("state");
  if (facts.served) try { state = JSON.parse(sessionStorage.getItem(kept)) || state; } catch { /* the browser keeps nothing */ }
  const panes = [], passes = {};
  let numbers = 0, waiting = null, asking = null, asked = 0, stale = false;

  const element = hlocPane.element;
  const say = text => { by("status").textContent = text; };

  // -- lines that belong together --------------------------------------------------------------------------------------

  function hover(lines) {
    if (stale) return;
    editor.mark(lines);
    panes.forEach(pane => pane.shown && pane.shown.mark(lines));
  }
  const chosenIn = own => lines => {
    hover(lines);
    if (!lines.size || stale) return;
    if (own) editor.reveal(lines);
    panes.forEach(pane => { if (pane !== own && pane.shown) pane.shown.reveal(lines); });
  };

  // -- panes -----------------------------------------------------------------------------------------------------------

  const settingsOf = pane => ({id: pane.id, ...pane.settings});
  function choice(parent, label, values, value, changed) {
    const select = element("select", parent, undefined, {"aria-label": label});
    for (const [key, title] of values) element("option", select, title, {value: key});
    select.value = value;
    select.disabled = !facts.served;
    select.addEventListener("change", () => changed(select.value));
    return select;
  }
  const statesOf = pane => {
    const known = passes[pane.settings.target] || [], runs = known.map(([name, count], n) => [name, `${n + 1} ${name} (${count})`]);
    const values = [["input", "as written"], ...runs, ["end", "after all passes"]];
    if (!values.some(([name]) => name === pane.settings.state)) values.splice(-1, 0, [pane.settings.state, pane.settings.state]);
    return values;
  };

  function addPane(settings, before = null) {
    const pane = {id: ++numbers, settings: {}, shown: null, content: null, isStale: true};
    pane.section = element("section", null, undefined, {class: "pane"});
    pane.bar = element("header", pane.section);
    pane.note = element("p", pane.section, "", {class: "note faint"});
    pane.body = element("div", pane.section, undefined, {class: "body"});
    by("panes").insertBefore(pane.section, before);
    panes.push(pane);
    setKind(pane, settings);
    return pane;
  }
  function setKind(pane, settings) {
    const kind = facts.kinds[settings.kind] || facts.kinds.after, own = {kind: settings.kind in facts.kinds ? settings.kind : "after"};
    const pick = (name, values) => { own[name] = values.includes(settings[name]) ? settings[name] : values[0]; };
    if (kind.targets.length) pick("target", kind.targets);
    kind.choices.forEach(([name, values]) => pick(name, values));
    if (kind.states) own.state = settings.state || "end";
    pane.settings = own;
    pane.section.setAttribute("aria-label", kind.title);
    pane.bar.replaceChildren();
    const set = name => value => { pane.settings[name] = value; if (name === "target") setKind(pane, pane.settings); again([pane]); };
    choice(pane.bar, "Kind of pane", Object.entries(facts.kinds).map(([key, {title}]) => [key, title]), own.kind, value => {
      setKind(pane, {...pane.settings, kind: value});
      pane.bar.querySelector("select").focus();
      again([pane]);
    });
    if (kind.targets.length > 1) choice(pane.bar, "Target", kind.targets.map(name => [name, name]), own.target, set("target"));
    pane.states = kind.states ? choice(pane.bar, "After which pass", statesOf(pane), own.state, set("state")) : null;
    kind.choices.forEach(([name, values]) => choice(pane.bar, name, values.map(v => [v, v]), own[name], set(name)));
    if (!facts.served) return;
    element("button", pane.bar, "\u00d7", {type: "button", class: "close", "aria-label": "Close " + kind.title}).addEventListener("click", () => close(pane));
  }
  function close(pane) {
    if (pane.shown) pane.shown.end();
    const at = panes.indexOf(pane);
    panes.splice(at, 1);
    pane.section.remove();
    const near = panes[at] || panes[at - 1];
    (near ? near.bar.querySelector("select") : by("add")).focus();
    keep();
  }
  function updateStates() {
    for (const pane of panes) {
      if (!pane.states) continue;
      const values = statesOf(pane), known = JSON.stringify(values);
      if (pane.known === known) continue;
      pane.known = known;
      pane.states.replaceChildren();
      for (const [key, title] of values) element("option", pane.states, title, {value: key});
      pane.states.value = pane.settings.state;
    }
  }
  function show(pane, content, seconds) {
    pane.content = content;
    pane.isStale = false;
    pane.section.classList.remove("stale");
    pane.section.removeAttribute("aria-busy");
    pane.note.textContent = [content.note, seconds !== undefined ? `${seconds.toFixed(2)} s` : ""].filter(Boolean).join("; ");
    if (content.is === "code" && pane.shown && pane.shown.takes === "code") { pane.shown.show(content); return; }
    if (pane.shown) pane.shown.end();
    pane.body.replaceChildren();
    const label = facts.kinds[pane.settings.kind].title;
    pane.shown = hlocPane(pane.body, content, {text, label, hover, chosen: chosenIn(pane)});
  }

  // -- questions and answers -------------------------------------------------------------------------------------------

  function again(which, pause = 0) {
    for (const pane of which) {
      pane.isStale = true;
      pane.section.classList.add("stale");
      pane.section.setAttribute("aria-busy", "true");
    }
    keep();
    if (!facts.served) return;
    if (asking) asking.abort();                              // its answers are of what was there before
    asking = null;
    clearTimeout(waiting);
    waiting = setTimeout(ask, pause);
  }
  async function ask() {
    const own = asking = new AbortController();
    const question = {text: editor.text(), name: state.name, panes: panes.filter(p => p.isStale).map(settingsOf)};
    asked = performance.now();
    say("computing ...");
    try {
      const response = await fetch("panes", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(question),
        signal: own.signal});
      if (!response.ok) { fail((await response.json()).error); return; }
      await lines(response.body, answer => { if (asking === own) take(answer); });
    } catch (error) {
      if (error.name !== "AbortError") fail("hloc explore does not answer: is it still running?");
    }
  }
  async function lines(stream, call) {
    const reader = stream.getReader(), decoder = new TextDecoder();
    let pieces = [];
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const parts = decoder.decode(value, {stream: true}).split("\n");
      parts.forEach((part, n) => {
        pieces.push(part);
        if (n + 1 < parts.length) { call(JSON.parse(pieces.join(""))); pieces = []; }
      });
    }
  }
  function take(answer) {
    const seconds = (performance.now() - asked) / 1000;
    if (answer.event === "checked") {
      problems(answer.problems);
      stale = !answer.read;
      if (answer.read) say(`${answer.instructions} instructions`);
      else { say("the text cannot be read: panes show what was there before"); finished(); }
    } else if (answer.event === "passes") {
      passes[answer.target] = answer.passes;
      updateStates();
    } else if (answer.event === "pane") {
      const pane = panes.find(p => p.id === answer.pane);
      if (pane) show(pane, answer.content, answer.seconds);
    } else if (answer.event === "ended") fail(answer.message);
    else if (answer.event === "done") { say(`${by("status").textContent.split(";")[0]}; ${seconds.toFixed(2)} s`); finished(); }
  }
  // One message where there is no answer: in each pane that has none.
  function fail(message) {
    say(message);
    for (const pane of panes.filter(p => p.isStale)) show(pane, {is: "message", text: message, hint: ""});
    finished();
  }
  function finished() {
    place.dataset.answered = String(Math.round(performance.now() - asked));
    place.dataset.answers = String(1 + Number(place.dataset.answers || 0));
  }
  function problems(found) {
    editor.problems(found);
    const list = by("problems");
    list.replaceChildren();
    for (const problem of found.slice(0, MOST_SHOWN_PROBLEMS)) {
      const where = problem.line ? `${problem.line}:${problem.column}: ` : "";
      const row = element("li", list, undefined, {class: problem.severity});
      element("button", row, `${where}${problem.severity}: ${problem.message}`, {type: "button"}).addEventListener("click", () => editor.go(problem));
      if (problem.hint) element("span", row, " hint: " + problem.hint, {class: "faint"});
    }
    if (found.length > MOST_SHOWN_PROBLEMS) element("li", list, `and ${found.length - MOST_SHOWN_PROBLEMS} more`);
  }

  // -- the page --------------------------------------------------------------------------------------------------------

  function keep() {
    if (!facts.served) return;
    const now = {text: editor.text(), name: state.name, panes: panes.map(p => p.settings)};
    try { sessionStorage.setItem(kept, JSON.stringify(now)); } catch { /* too large, or not allowed */ }
  }
  async function share() {
    const body = JSON.stringify({text: editor.text(), name: state.name, panes: panes.map(p => p.settings),
      answers: panes.map(p => p.content || {is: "message", text: "nothing was computed", hint: ""})});
    try {
      const response = await fetch("share", {method: "POST", headers: {"Content-Type": "application/json"}, body});
      if (!response.ok) { say((await response.json()).error); return; }
      const link = element("a", place, "", {download: state.name.replace(/[^\w.-]+/g, "_").replace(/\.hlo$/, "") + ".html",
        href: URL.createObjectURL(await response.blob())});
      link.click();
      URL.revokeObjectURL(link.href);
      link.remove();
      say("saved as one file that opens in any browser");
    } catch { say("hloc explore does not answer: is it still running?"); }
  }

  place.querySelector("h1").textContent = state.name;
  const text = hlocText(facts.words);
  const editor = text.editor(by("editor"), state.text, !facts.served, {hover, chosen: chosenIn(null),
    changed() { stale = true; again(panes, PAUSE); }});
  const wanted = state.panes.length ? state.panes : DEFAULT_PANES;
  wanted.forEach(settings => addPane(settings));
  if (facts.served) {
    facts.examples.forEach(([name, title]) => element("option", by("examples"), title, {value: name}));
    by("examples").addEventListener("change", event => {
      const found = facts.examples.find(([name]) => name === event.target.value);
      if (found) { state.name = found[0] + ".hlo"; place.querySelector("h1").textContent = state.name; editor.replace(found[2]); }
      event.target.value = "";
    });
    by("add").addEventListener("click", () => {
      const pane = addPane({kind: Object.keys(facts.kinds).find(kind => !panes.some(p => p.settings.kind === kind)) || "after"});
      pane.section.scrollIntoView({block: "nearest"});
      pane.bar.querySelector("select").focus();
      again([pane]);
    });
    by("share").addEventListener("click", share);
    again(panes);
  } else {
    panes.forEach((pane, n) => show(pane, state.answers[n] || {is: "message", text: "nothing was computed", hint: ""}));
    finished();
  }
})();
