"""The frame of every page: styles, scripts and data in one file; sections and tables.

    page("a title", "<h1>...</h1>", scripts=[text], data={"graph": {...}})

Everything from a module is escaped: `text` makes markup of a string, data stands in the page as JSON without `<`,
`>` and `&`. A content security policy lets the browser run only the scripts that are listed here, by their hashes, and
load nothing: even unescaped markup could not run a script.
"""
from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from hloc.errors import printable

LONGEST_TEXT = 2_000            # characters of one instruction that a page shows

Cells = Sequence[object]


def text(value: object, longest: int = LONGEST_TEXT) -> str:
    """A string as the content, or the attribute in quotes, of an element."""
    shown = printable(str(value))
    if len(shown) > longest:
        shown = shown[:longest] + " \N{HORIZONTAL ELLIPSIS}"
    return html.escape(shown, quote=True)


def quoted(markup: str) -> str:
    """Whole markup as the value of an attribute, such as srcdoc."""
    return html.escape(markup, quote=True)


def asset(name: str) -> str:
    """A file of this folder: styles and scripts."""
    return resources.files("hloc.pages").joinpath(name).read_text(encoding="utf-8")


def page(title: str, body: str, *, styles: Iterable[str] = (), scripts: Iterable[str] = (),
         data: Mapping[str, Any] | None = None, also: str = "") -> str:
    """A whole page. body: markup; styles, scripts: the content of files; data: what scripts find as JSON, by the id of
    the element that holds it; also: what its policy allows beside."""
    scripts = list(scripts)
    held = [f'<script type="application/json" id="{text(name)}">{_json(value)}</script>'
            for name, value in (data or {}).items()]
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy(scripts, also)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">', '<meta name="referrer" content="no-referrer">',
        f"<title>{text(title)}</title>", *(f"<style>{style}</style>" for style in (asset("page.css"), *styles)),
        "</head>", "<body>", body, *held, *(f"<script>{script}</script>" for script in scripts), "</body>", "</html>",
        ""])


def in_sections(title: str, parts: Iterable[tuple[str, str, str]]) -> str:
    """The body of a page, with links to its sections. parts: id, title and markup of each; one of no markup is left
    out."""
    shown = [(key, head, markup) for key, head, markup in parts if markup]
    links = "".join(f'<li><a href="#{key}">{head}</a></li>' for key, head, _ in shown)
    return "\n".join([
        f'<main class="report"><h1>{text(title)}</h1>', f'<nav aria-label="Sections"><ul>{links}</ul></nav>',
        *(f'<section id="{key}" aria-labelledby="h-{key}"><h2 id="h-{key}">{head}</h2>{markup}</section>'
          for key, head, markup in shown), "</main>"])


def table(caption: str, heads: Sequence[str], rows: Iterable[Cells], numeric: str, *, raw: Sequence[int] = (),
          key: str = "") -> str:
    """A table. numeric: for each column "t" where it holds numbers; raw: columns that are markup already."""
    kinds = [' class="number"' if n < len(numeric) and numeric[n] == "t" else "" for n in range(len(heads))]
    head = "".join(f'<th scope="col"{kind}>{text(h)}</th>' for h, kind in zip(heads, kinds))
    body = "".join("<tr>" + "".join(_cells(row, kinds, raw)) + "</tr>" for row in rows)
    named = f' id="{key}"' if key else ""
    shown = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    return (f'<div class="wide"><table{named}><caption class="unseen">{text(caption)}</caption>{shown}'
            f"<tbody>{body}</tbody></table></div>")


def _cells(row: Cells, kinds: Sequence[str], raw: Sequence[int]) -> Iterator[str]:
    for n, (cell, kind) in enumerate(zip(row, kinds)):
        yield f"<td{kind}>{cell if n in raw else text(cell, 300)}</td>"


def rest_line(count: int, most: int, what: str) -> str:
    """Under a table that shows the first `most` rows of `count`."""
    return f'<p class="faint">... and {count - most:,} more {what}</p>' if count > most else ""


def policy(scripts: Iterable[str], also: str = "") -> str:
    """What a browser may do with a page of these scripts. also: more of it, as in "img-src data:"."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes) or "'none'"
    return "; ".join(filter(None, ("default-src 'none'", "style-src 'unsafe-inline'", f"script-src {allowed}", also,
                                   "base-uri 'none'", "form-action 'none'")))


def _json(value: Any) -> str:
    """JSON in which no markup can begin or end."""
    packed = json.dumps(value, separators=(",", ":"))
    return packed.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
