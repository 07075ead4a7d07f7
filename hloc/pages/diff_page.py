"""A Difference as a page: a summary, then each changed computation, with a few lines around a change.

    diff_page(diff(a, b), ["a.hlo", "b.hlo"])        markup of a whole page; no script is needed

`sections` are the computations alone, for pages that show several differences.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hloc.ir import Computation, Instruction
from hloc.ir.printer import print_instruction
from hloc.pages.page import asset, page, text
from hloc.tools.diff import Change, Detail, Difference
from hloc.tools.diff.changes import KINDS

AROUND = 2                      # unchanged instructions that are shown before and behind a change
MARKS = {"came": "+", "went": "\N{MINUS SIGN}", "moved": "\N{RIGHTWARDS ARROW}", "changed": "~"}
TABLE_ROWS = 200                # of one table: browsers lay out only those that are on the screen
MOST_ROWS = 60_000              # of a page; browsers take seconds for more


class Row(NamedTuple):
    """One line: an instruction of the second module, or one that went, and its change."""

    instruction: Instruction
    change: Change | None


def diff_page(found: Difference, titles: Sequence[str]) -> str:
    """The whole page. titles: what the two modules are called."""
    name = f"{titles[0]} \N{RIGHTWARDS ARROW} {titles[1]}"
    body = ["<main>", f"<h1>{text(name)}</h1>", summary(found, titles), filters(found), *sections(found), "</main>"]
    return page(f"diff {name}", "\n".join(body), styles=[asset("diff.css"), _filter_styles(found)])


def summary(found: Difference, titles: Sequence[str]) -> str:
    """The numbers of instructions, of those in both, and of changes by kind."""
    sizes = [len(list(m.instructions())) for m in (found.before, found.after)]
    told = (f"<p>{text(titles[0])}: {sizes[0]:,} instructions; {text(titles[1])}: {sizes[1]:,}; "
            f"{found.matched:,} are in both.</p>")
    if found.equal:
        return told + "<p>No difference.</p>"
    rows = [f'<tr><td>{text(kind)}</td><td class="number">{count:,}</td></tr>' for kind, count in found.counts.items()]
    header = [f"<tr><td>{text(d.what)}</td><td><code>{_sides(d)}</code></td></tr>" for d in found.header]
    parts = [told]
    if rows:
        parts.append('<table class="counts"><caption class="unseen">Changes by kind</caption>' + "".join(rows)
                     + "</table>")
    if header:
        parts.append("<h2>Header</h2><table>" + "".join(header) + "</table>")
    return "\n".join(parts)


def filters(found: Difference) -> str:
    """A box for each kind of change that hides the rows which have no other."""
    if len(found.counts) < 2:
        return ""
    boxes = [f'<label><input type="checkbox" id="show-{kind}" checked> {kind}</label>' for kind in found.counts]
    return f'<fieldset class="controls"><legend>Show</legend>{"".join(boxes)}</fieldset>'


def _filter_styles(found: Difference) -> str:
    return "\n".join(f'body:has(#show-{kind}:not(:checked)) tr[data-kinds="{kind}"] {{ display: none; }}'
                     for kind in KINDS if kind in found.counts)


def sections(found: Difference, most: int = MOST_ROWS) -> Iterator[str]:
    """A part of a page for each computation that holds a change, until there are `most` lines."""
    left = most
    for title, rows in _computations(found):
        if not any(row.change for row in rows):
            continue
        lines = list(_shown(rows))
        if left > 0:
            yield _section(title, rows if len(lines) <= left else rows[:lines[left - 1] + 1], found)
        left -= len(lines)
        if left < 0:
            yield f"<p>Here are {most:,} lines; hloc diff has all.</p>"
            return


def _computations(found: Difference) -> Iterator[tuple[str, list[Row]]]:
    """The computations of the second module with what went from their counterparts; then those that have none."""
    changed = {change.after: change for change in found.changes if change.after is not None}
    gone = {change.before: change for change in found.changes if change.after is None and change.before is not None}
    matching = found.matching
    for computation in found.after.computations:
        old = matching.computations_back.get(computation)
        behind = _gone_behind(old, gone, found) if old is not None else {}
        rows = [Row(i, gone[i]) for i in behind.get(None, ())]
        for i in computation.instructions:
            rows.append(Row(i, changed.get(i)))
            rows += [Row(j, gone[j]) for j in behind.get(i, ())]
        yield computation.name + ("" if old is not None else " (came)"), rows
    for computation in found.before.computations:
        if computation not in matching.computations:
            yield f"{computation.name} (went)", [Row(i, gone[i]) for i in computation.instructions if i in gone]


def _gone_behind(computation: Computation, gone: Mapping[Instruction, Change],
                 found: Difference) -> dict[Instruction | None, list[Instruction]]:
    """Removed instructions of a computation, by the preceding instruction in the second module."""
    behind: dict[Instruction | None, list[Instruction]] = {}
    last = None
    for i in computation.instructions:
        new = found.matching.forward.get(i)
        if i in gone:
            behind.setdefault(last, []).append(i)
        elif new is not None and found.matching.computations.get(computation) is found.home_after[new]:
            last = new
    return behind


def _section(title: str, rows: Sequence[Row], found: Difference) -> str:
    count = sum(row.change is not None for row in rows)
    shown = list(_rows(rows, found))
    tables = "".join(_table(shown[n:n + TABLE_ROWS]) for n in range(0, len(shown), TABLE_ROWS))
    changes = "1 change" if count == 1 else f"{count:,} changes"
    return (f'<details class="computation" open><summary><code>{text(title)}</code> '
            f'<span class="faint">{changes}</span></summary>{tables}</details>')


def _table(rows: Sequence[str]) -> str:
    return ('<div class="piece"><table class="rows code"><colgroup><col><col><col><col><col></colgroup>'
            '<thead class="unseen"><tr><th>change</th><th>line before</th>'
            '<th>line after</th><th>instruction</th><th>source</th></tr></thead><tbody>' + "".join(rows)
            + "</tbody></table></div>")


def _rows(rows: Sequence[Row], found: Difference) -> Iterator[str]:
    """Changed rows with those around them; a line that says how many are not shown in between."""
    for gap, row in with_gaps(rows):
        if gap:
            yield f'<tr class="gap"><td colspan="5">\N{HORIZONTAL ELLIPSIS} {gap:,} unchanged</td></tr>'
        if row is not None:
            yield _row(row, found)


def changed_parts(found: Difference) -> Iterator[tuple[str, Iterator[tuple[int, Row | None]]]]:
    """Each computation that holds a change: a title, and its rows as with_gaps has them."""
    for title, rows in _computations(found):
        if any(row.change for row in rows):
            yield title, with_gaps(rows)


def with_gaps(rows: Sequence[Row]) -> Iterator[tuple[int, Row | None]]:
    """Changed rows and those around them, each with the number of omitted rows before it; None: after the last."""
    last = -1
    for number in _shown(rows):
        yield number - last - 1, rows[number]
        last = number
    if last < len(rows) - 1:
        yield len(rows) - 1 - last, None


def _shown(rows: Sequence[Row]) -> Iterator[int]:
    last = -1
    for number, row in enumerate(rows):
        if row.change is not None:
            end = min(number + AROUND + 1, len(rows))
            yield from range(max(last + 1, number - AROUND), end)
            last = max(last, end - 1)


def _row(row: Row, found: Difference) -> str:
    instruction, change = row
    old = change.before if change is not None else found.matching.backward.get(instruction)
    new = None if change is not None and change.after is None else instruction
    kind = colour_of(change)
    said = text(print_instruction(instruction, elide_constants=True))
    details = "".join(f'<span class="detail">{text(d.what)}: {_sides(d)}</span>' for d in
                      (change.details if change is not None else ()))
    mark = f'{MARKS[kind]}<span class="unseen"> {text(" ".join(change.kinds))}</span>' if change is not None else ""
    kinds = f' class="{kind}" data-kinds="{text(" ".join(change.kinds))}"' if change is not None else ""
    return (f'<tr{kinds}><td class="mark">{mark}</td><td class="number">{_line(old)}</td>'
            f'<td class="number">{_line(new)}</td><td>{said}{details}</td>'
            f'<td class="source">{text(next(map(str, instruction.written_at()), ""))}</td></tr>')


def colour_of(change: Change | None) -> str:
    """A key of MARKS: the colour of a change; "" without one."""
    kind = change.kinds[0] if change is not None else ""
    return kind if kind in MARKS or not kind else "changed"


def _line(instruction: Instruction | None) -> str:
    line = instruction.line if instruction is not None else None
    return text(line) if line is not None else ""


def _sides(detail: Detail) -> str:
    before, after = (text(side or "none") for side in (detail.before, detail.after))
    return f"<del>{before}</del> \N{RIGHTWARDS ARROW} <ins>{after}</ins>"
