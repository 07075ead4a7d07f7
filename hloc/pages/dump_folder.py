"""A folder with a module's text after each pass that changed it, numbered, and an index page.

    folder = DumpFolder(path, module, "model.hlo")       path/000.input.hlo
    run_passes(..., dump_after=["all"], on_dump=folder)  path/001.after.call_inliner.hlo ...
    folder.finish()                                      path/index.html: the files, each with what it changed
"""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hloc.files import make_folder, write
from hloc.ir import Module
from hloc.ir.clone import clone_module
from hloc.pages.diff_page import sections
from hloc.pages.page import asset, page, text
from hloc.tools.diff import Difference, diff

INDEX = "index.html"
MOST_COMPARED = 100_000         # instructions, over all steps: 20 s; what comes behind is listed without a diff
MOST_ROWS = 2_000               # lines that the page shows of a step


class Step(NamedTuple):
    """One file. found: what differs from the file before; None where that is not known."""

    file: str
    title: str
    instructions: int
    found: Difference | None


class DumpFolder:
    """Called with a title and the module's text; writes a file where the text is not that of the file before."""

    def __init__(self, path: Path, module: Module, name: str):
        self.path, self.module, self.name = path, module, name
        self.steps: list[Step] = []
        self._compared = 0
        self._text = ""
        self._state: Module | None = None
        make_folder(path)
        self("input", str(module))

    def __call__(self, title: str, module_text: str) -> None:
        if module_text == self._text:
            return
        file = f"{len(self.steps):03d}.{title.replace(' ', '.')}.hlo"
        write(self.path / file, module_text)
        count = sum(len(c.instructions) for c in self.module.computations)
        self.steps.append(Step(file, title, count, self._compare(count)))
        self._text = module_text

    def _compare(self, count: int) -> Difference | None:
        """What differs from the state before; the module is rewritten in place, so states are copies."""
        self._compared += count
        before, self._state = self._state, None
        if self._compared > MOST_COMPARED:
            return None
        self._state = clone_module(self.module)
        return diff(before, self._state) if before is not None else None

    def finish(self) -> None:
        """Write the index page."""
        write(self.path / INDEX, self.index())

    def index(self) -> str:
        """The page: a table of the files, then what each changed."""
        rows = "".join(_row(number, step) for number, step in enumerate(self.steps))
        body = ["<main>", f"<h1>Passes over {text(self.name)}</h1>",
                f"<p>{len(self.steps) - 1:,} files: one for each pass that changed the module's text.</p>",
                '<table class="rows"><thead><tr><th>file</th><th class="number">instructions</th><th>changes</th></tr>'
                f"</thead><tbody>{rows}</tbody></table>", *self._details(), "</main>"]
        return page(f"passes over {self.name}", "\n".join(body), styles=[asset("diff.css")])

    def _details(self) -> Iterator[str]:
        for number, step in enumerate(self.steps):
            if step.found is not None:
                yield f'<h2 id="step-{number}">{text(step.title)}</h2>'
                yield from sections(step.found, MOST_ROWS)
            elif number:
                files = f"{self.steps[number - 1].file} {step.file}"
                yield f'<h2 id="step-{number}">{text(step.title)}</h2><p>Not compared: <code>hloc diff {text(files)}' \
                      "</code></p>"


def _row(number: int, step: Step) -> str:
    counts = ", ".join(f"{kind} {count:,}" for kind, count in step.found.counts.items()) if step.found else ""
    said = counts or ("names, order or header" if step.found else "not compared" if number else "")
    changes = f'<a href="#step-{number}">{text(said)}</a>' if number else ""
    return (f'<tr><td><a href="{text(step.file)}">{text(step.file)}</a></td>'
            f'<td class="number">{step.instructions:,}</td><td>{changes}</td></tr>')
