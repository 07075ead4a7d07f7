"""The explorer as a page: an editor, and panes of what becomes of its text.

    explore_page({"text": ..., "name": "m.hlo", "panes": [...]}, facts, served=True)   asks the server for the panes
    explore_page({... "answers": [...]}, facts, served=False)                          one file, for reading alone
    state_of(page)                                                                     what such a file holds

explore.js is the page, explore_text.js its texts with their links, explore_panes.js all other content.
"""
from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hloc.errors import UsageError
from hloc.pages.graph_page import markup
from hloc.pages.page import asset, page, text
from hloc.pages.page import policy as page_policy

SCRIPTS = ("codemirror.min.js", "dagre.min.js", "graph.js", "explore_text.js", "explore_panes.js", "explore.js")
STYLES = ("graph.css", "charts.css", "explore.css")
STATE = "state"
SAVED = " This file was saved: hloc explore FILE opens it for editing."
_STATE = re.compile(rf'<script type="application/json" id="{STATE}">(.*?)</script>', re.DOTALL)


def scripts() -> list[str]:
    return [asset(name) for name in SCRIPTS]


def policy(served: bool) -> str:
    """What a browser may do with the page: run its scripts; where it is served, ask the server that it came from."""
    return page_policy(scripts(), _allowed(served)) + ("; frame-ancestors 'none'" if served else "")


def _allowed(served: bool) -> str:
    """CodeMirror draws marks of problems by images that its styles hold."""
    return "img-src data:" + ("; connect-src 'self'" if served else "")


def explore_page(state: Mapping[str, Any], facts: Mapping[str, Any], *, served: bool) -> str:
    """The whole page. state: text, name, panes; answers: the content of the panes, where it is not served. facts: kinds
    of pane, patterns of HLO, examples (hloc/explore/menu.py)."""
    name = str(state["name"])
    buttons = """<label>Example <select class="examples"><option value="">choose ...</option></select></label>
<button type="button" class="add">Add pane</button>
<button type="button" class="share">Save to share</button>""" if served else ""
    body = f"""<main class="explore">
<header>
<h1>{text(name)}</h1>
<div class="controls" role="toolbar" aria-label="Explorer">{buttons}</div>
<p class="status faint" role="status" aria-live="polite"></p>
</header>
<section class="source" aria-label="HLO text">
<div class="editor"></div>
<ul class="problems" aria-label="Problems"></ul>
</section>
<div class="panes"></div>
<footer class="faint">F12 or Ctrl-click goes to a name's definition. The line under the pointer, or at the cursor, marks
what it came from and what it became.{"" if served else SAVED}</footer>
<noscript><p>This page needs its script; hloc opt, compile, explain and memory show the same on a terminal.</p>
</noscript>
<template class="graph-template"><div class="graph">{markup()}</div></template>
</main>"""
    told = {**facts, "served": served, "examples": facts["examples"] if served else []}
    return page(f"{name} - hloc explore", body, styles=[*map(asset, STYLES)], scripts=scripts(),
                data={STATE: dict(state), "facts": told}, also=_allowed(served))


def state_of(content: str) -> dict[str, Any] | None:
    """The text and the panes of a saved page; None for what is no page of the explorer. Raises UsageError for one that
    is damaged."""
    if not content.lstrip()[:15].lower().startswith("<!doctype html") or 'class="explore"' not in content:
        return None
    found = _STATE.search(content)
    try:
        state = json.loads(found.group(1) if found else "")
        panes = [{key: str(value)[:200] for key, value in pane.items()} for pane in state["panes"]][:100]
        return {"text": str(state["text"]), "name": str(state["name"])[:200], "panes": panes}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError("this page of hloc explore is damaged: it holds no text") from None
