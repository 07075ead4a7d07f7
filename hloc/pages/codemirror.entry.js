// What the explorer takes of CodeMirror; `make pages` bundles it as codemirror.min.js, whose global is `codemirror`.
export {EditorState, StateEffect, StateField, RangeSetBuilder, Compartment} from "@codemirror/state";
export {EditorView, Decoration, keymap, lineNumbers, highlightActiveLine, highlightActiveLineGutter, drawSelection,
  highlightSpecialChars} from "@codemirror/view";
export {history, historyKeymap, defaultKeymap} from "@codemirror/commands";
export {StreamLanguage, syntaxHighlighting, HighlightStyle, bracketMatching} from "@codemirror/language";
export {search, searchKeymap, highlightSelectionMatches} from "@codemirror/search";
export {setDiagnostics, lintGutter, lintKeymap} from "@codemirror/lint";
export {tags} from "@lezer/highlight";
export {c, cpp} from "@codemirror/legacy-modes/mode/clike";
export {gas} from "@codemirror/legacy-modes/mode/gas";
