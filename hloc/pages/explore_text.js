// Texts of the explorer, in CodeMirror: the editor of HLO, and panes of text that are read only.
//
//   const text = hlocText(patterns)                    patterns of HLO's words: [[regular expression, kind], ...]
//   const view = text.editor(place, "HloModule ...", {changed, hover, chosen})
//   const pane = text.viewer(place, "C", {hover, chosen});  pane.show(content);  pane.mark(lines)
//
// hover and chosen are called with a Set of lines of the editor, from 1: of the line under the pointer, or the cursor.
"use strict";
const hlocText = patterns => {
  const {EditorState, StateEffect, StateField, EditorView, Decoration, keymap, tags} = codemirror;
  const MOST_MARKED = 3000, PRINTED_LINES = 3000;

  // -- languages -------------------------------------------------------------------------------------------------------

  const words = patterns.map(([pattern, kind]) => [new RegExp(pattern, "y"), kind]);
  function word(line, at) {                                // the word of HLO at a place of a line: [length, kind]
    for (const [pattern, kind] of words) {
      pattern.lastIndex = at;
      const found = pattern.exec(line);
      if (found && found[0]) return [found[0].length, kind];
    }
    return [1, ""];
  }
  const hlo = codemirror.StreamLanguage.define({
    name: "hlo",
    startState: () => ({comment: false}),
    token(stream, state) {
      if (!state.comment && stream.match("/*")) state.comment = true;
      if (state.comment) {
        const end = stream.string.indexOf("*/", stream.pos);
        if (end < 0) stream.skipToEnd(); else { stream.pos = end + 2; state.comment = false; }
        return "comment";
      }
      const [length, kind] = word(stream.string, stream.pos);
      stream.pos += length;
      return kind || null;
    }});
  const languages = {hlo, loops: codemirror.StreamLanguage.define(codemirror.c), c: codemirror.StreamLanguage.define(codemirror.c),
    cuda: codemirror.StreamLanguage.define(codemirror.cpp), ptx: codemirror.StreamLanguage.define(codemirror.cpp),
    assembly: codemirror.StreamLanguage.define(codemirror.gas)};
  const colours = codemirror.syntaxHighlighting(codemirror.HighlightStyle.define([
    ["comment", tags.comment], ["string", tags.string], ["keyword", [tags.keyword, tags.processingInstruction]],
    ["type", tags.typeName], ["number", [tags.number, tags.atom, tags.bool]], ["function", tags.standard(tags.name)],
    ["attribute", tags.attributeName], ["variable", tags.variableName]
  ].map(([name, tag]) => ({tag, class: "word-" + name}))));

  // -- names and their definitions -------------------------------------------------------------------------------------

  // The computations of a text: {name, at, start, end, names: Map(name -> offset)}, in order.
  function definitions(text) {
    const found = [];
    let depth = 0, head = null, last = null, inside = null, at = 0, header = false;
    const lines = text.split("\n");
    for (const line of lines) {
      if (depth === 0 && /^\s*(HloModule\b|\d|FileNames|FunctionNames|FileLocations|StackFrames)/.test(line)) header = true;
      for (let n = 0; n < line.length && !header;) {
        const [length, kind] = word(line, n), said = line.slice(n, n + length);
        if (said === "{" && ++depth === 1) { inside = {name: head ? head[0] : "", at: head ? head[1] : at + n, start: at + n, end: text.length, names: new Map()}; found.push(inside); }
        else if (said === "}" && --depth === 0 && inside) { inside.end = at + n; inside = head = null; }
        else if (kind === "variableName" || kind === "name") {
          if (depth === 0 && !head) head = [said.replace(/^%/, ""), at + n];
          last = [said.replace(/^%/, ""), at + n];
        } else if (said === "=" && depth === 1 && last && inside) { inside.names.set(last[0], last[1]); last = null; }
        else if (said.trim() && kind !== "comment") last = null;
        n += length;
      }
      at += line.length + 1;
      header = false;
    }
    return found;
  }
  const held = new WeakMap();                              // of a document
  function definition(doc, at) {
    const line = doc.lineAt(at), column = at - line.from;
    let name = "";
    for (let n = 0; n <= column && n < line.length;) {
      const [length, kind] = word(line.text, n);
      if (n + length > column || n + length === column) name = ["variableName", "name"].includes(kind) ? line.text.slice(n, n + length).replace(/^%/, "") : name;
      if (n + length > column) break;
      n += length;
    }
    if (!name) return null;
    if (!held.has(doc)) held.set(doc, definitions(doc.toString()));
    const all = held.get(doc), own = all.find(c => c.start <= at && at <= c.end), called = all.find(c => c.name === name);
    const place = own && own.names.has(name) ? own.names.get(name) : called ? called.at : null;
    return place === null ? null : {name, place};
  }
  function jump(view, at) {
    const found = definition(view.state.doc, at);
    if (!found) return false;
    view.dispatch({selection: {anchor: found.place, head: Math.min(view.state.doc.length, found.place + found.name.length)},
      effects: EditorView.scrollIntoView(found.place, {y: "center"}), userEvent: "select.jump"});
    view.focus();
    return true;
  }
  const jumps = [keymap.of([{key: "F12", run: view => jump(view, view.state.selection.main.head)}]),
    EditorView.domEventHandlers({mousedown(event, view) {
      if (!(event.ctrlKey || event.metaKey) || event.button) return false;
      const at = view.posAtCoords({x: event.clientX, y: event.clientY});
      if (at === null || !jump(view, at)) return false;
      event.preventDefault();
      return true;
    }})];

  // -- marked lines ----------------------------------------------------------------------------------------------------

  const setMarked = StateEffect.define(), setClasses = StateEffect.define();
  const lineMark = {}, decorated = (doc, numbers, name) => Decoration.set([...numbers].filter(n => n >= 1 && n <= doc.lines)
    .sort((a, b) => a - b).map(n => (lineMark[name] = lineMark[name] || Decoration.line({class: name})).range(doc.line(n).from)));
  const marked = StateField.define({
    create: () => Decoration.none,
    update(value, change) {
      for (const effect of change.effects) if (effect.is(setMarked)) return decorated(change.state.doc, effect.value, "linked");
      return value.map(change.changes);
    },
    provide: field => EditorView.decorations.from(field)});
  const classed = StateField.define({
    create: () => Decoration.none,
    update(value, change) {
      for (const effect of change.effects) if (effect.is(setClasses)) return effect.value;
      return value.map(change.changes);
    },
    provide: field => EditorView.decorations.from(field)});

  // Calls with the line under the pointer, and with that of the cursor where the user puts it there.
  const pointing = ({hover, chosen}) => {
    let last = 0;
    return [EditorView.domEventHandlers({
      mousemove(event, view) {
        const at = view.posAtCoords({x: event.clientX, y: event.clientY}, false);
        const line = view.state.doc.lineAt(at).number;
        if (line !== last) { last = line; hover(line); }
      },
      mouseleave() { last = 0; hover(0); }}),
    EditorView.updateListener.of(update => {
      if (update.selectionSet && update.transactions.some(t => t.isUserEvent("select")))
        chosen(update.state.doc.lineAt(update.state.selection.main.head).number);
    })];
  };

  const common = label => [codemirror.lineNumbers(), codemirror.highlightSpecialChars(), codemirror.bracketMatching(),
    codemirror.highlightActiveLine(), codemirror.highlightActiveLineGutter(), codemirror.search({top: true}), colours, marked,
    EditorView.contentAttributes.of({"aria-label": label})];

  // CodeMirror holds only the lines that are on the screen: all are printed from an element beside it.
  function printing(place, text) {
    const printed = document.createElement("pre");
    printed.className = "printed";
    place.append(printed);
    addEventListener("beforeprint", () => { printed.textContent = text().split("\n").slice(0, PRINTED_LINES).join("\n"); });
    addEventListener("afterprint", () => { printed.textContent = ""; });
  }

  // Where the first computation begins: the tables of files and stack frames before it are for programs.
  function toComputations(view) {
    const found = /^FileNames$/m.test(view.state.doc.sliceString(0, 4096)) ? /^.*\{$/m.exec(view.state.doc.toString()) : null;
    if (found) view.dispatch({effects: EditorView.scrollIntoView(found.index, {y: "start"})});
  }

  // -- the editor ------------------------------------------------------------------------------------------------------

  function editor(place, content, readOnly, {changed, hover, chosen}) {
    const line = call => n => call(new Set(n ? [n] : []));
    const view = new EditorView({parent: place, state: EditorState.create({doc: content, extensions: [
      common("HLO text"), hlo, codemirror.history(), codemirror.lintGutter(), jumps,
      keymap.of([...codemirror.defaultKeymap, ...codemirror.historyKeymap, ...codemirror.searchKeymap, ...codemirror.lintKeymap]),
      pointing({hover: line(hover), chosen: line(chosen)}), EditorState.readOnly.of(readOnly),
      EditorView.updateListener.of(update => { if (update.docChanged) changed(); })]})});
    printing(place, () => view.state.doc.toString());
    toComputations(view);
    // Columns and lengths count characters; CodeMirror counts units of UTF-16.
    function range({line, column, length}) {
      if (!line || line > view.state.doc.lines) return {from: 0, to: 0};
      const whole = view.state.doc.line(line), letters = Array.from(whole.text);
      const from = whole.from + letters.slice(0, column - 1).join("").length;
      return {from, to: Math.min(whole.to, from + letters.slice(column - 1, column - 1 + length).join("").length)};
    }
    return {
      view, text: () => view.state.doc.toString(), range,
      replace: content => view.dispatch({changes: {from: 0, to: view.state.doc.length, insert: content}, selection: {anchor: 0}, scrollIntoView: true}),
      mark: lines => view.dispatch({effects: setMarked.of(lines)}),
      reveal(lines) {
        const first = Math.min(...lines);
        if (first <= view.state.doc.lines) view.dispatch({effects: EditorView.scrollIntoView(view.state.doc.line(first).from, {y: "center"})});
      },
      problems: found => view.dispatch(codemirror.setDiagnostics(view.state, found.map(problem => ({...range(problem),
        severity: problem.severity, message: problem.message + (problem.hint ? "\nhint: " + problem.hint : "")})))),
      go(problem) {
        const {from, to} = range(problem);
        view.dispatch({selection: {anchor: from, head: to}, scrollIntoView: true});
        view.focus();
      }};
  }

  // -- texts that are read ---------------------------------------------------------------------------------------------

  function viewer(place, label, {hover, chosen}) {
    let content = {sets: [], lines: [], text: "", classes: {}, language: "c"}, bySet = [], setsOf = new Map();
    const linesAt = n => new Set(n && content.lines[n - 1] >= 0 ? content.sets[content.lines[n - 1]] : []);
    const extensions = [common(label), jumps, keymap.of([...codemirror.defaultKeymap, ...codemirror.searchKeymap]), classed,
      pointing({hover: n => hover(linesAt(n)), chosen: n => chosen(linesAt(n))}), EditorState.readOnly.of(true)];
    const view = new EditorView({parent: place});
    printing(place, () => content.text);
    function show(told) {
      const top = view.scrollDOM.scrollTop, first = !content.text;
      content = told;
      bySet = content.sets.map(() => []);
      content.lines.forEach((set, n) => { if (set >= 0) bySet[set].push(n + 1); });
      setsOf = new Map();
      content.sets.forEach((set, n) => set.forEach(line => setsOf.has(line) ? setsOf.get(line).push(n) : setsOf.set(line, [n])));
      view.setState(EditorState.create({doc: content.text, extensions: [extensions, languages[content.language] || []]}));
      const doc = view.state.doc, rows = Object.entries(content.classes).map(([n, name]) => [Number(n) + 1, name]);
      view.dispatch({effects: setClasses.of(Decoration.set(rows.filter(([n]) => n <= doc.lines).map(([n, name]) =>
        Decoration.line({class: "row-" + name}).range(doc.line(n).from))))});
      requestAnimationFrame(() => { if (first) toComputations(view); else view.scrollDOM.scrollTop = top; });
    }
    function linked(lines) {
      const found = new Set();
      for (const line of lines) for (const set of setsOf.get(line) || []) {
        if (found.size > MOST_MARKED) return found;
        bySet[set].forEach(n => found.add(n));
      }
      return found;
    }
    return {
      show, mark: lines => view.dispatch({effects: setMarked.of(linked(lines))}),
      reveal(lines) {
        const found = [...linked(lines)];
        if (found.length) view.dispatch({effects: EditorView.scrollIntoView(view.state.doc.line(Math.min(...found)).from, {y: "center"})});
      },
      end: () => view.destroy()};
  }

  return {editor, viewer};
};
