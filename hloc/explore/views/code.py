"""Panes of kernels: as loop IR, as C, as CUDA C; each line with the lines of the text that it computes."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hloc.explore.content import NO_LINES, Content, Lines, code
from hloc.explore.work import Optimized, Work
from hloc.kernels.ir import Tile
from hloc.targets.printer import comment
from hloc.tools.kernel_passes import kernel_text
from hloc.tools.report.lines import code_lines

if TYPE_CHECKING:
    from hloc.targets.cpu.program.sources import Sources
    from hloc.targets.cuda.sources import CudaSources

HELPER = "HLOC_FN "                    # begins a function that a kernel calls


def loops(work: Work, chosen: Mapping[str, str]) -> Content:
    done = work.on(chosen["target"])
    return code("loops", _loop_lines(done), note=_count(done))


def _loop_lines(done: Optimized) -> Iterator[tuple[str, Lines]]:
    for number, kernel in enumerate(done.program.kernels):
        yield from kernel_lines(done, [number], kernel_text([kernel], done.target).rstrip("\n"), "// {}")
        yield "", NO_LINES


def _count(done: Optimized) -> str:
    count = len(done.program.kernels)
    tiles = sum(isinstance(k, Tile) for k in done.program.kernels)
    library = f", {tiles} of them library kernels" if tiles else ""
    return f"{count:,} {'kernel' if count == 1 else 'kernels'}{library}"


def c_text(work: Work, chosen: Mapping[str, str]) -> Content:
    done = work.on(chosen["target"])
    return code("c", _c_lines(done, cpu_sources(done)), note=_count(done))


def cpu_sources(done: Optimized, inline: bool = True) -> Sources:
    """The C of a program. inline: its driver may hold small kernels."""
    from hloc.targets.cpu.program.sources import make_sources
    return make_sources(done.program, done.target.machine, inline=inline)


def _c_lines(done: Optimized, sources: Sources) -> Iterator[tuple[str, Lines]]:
    """The kernels' functions stand in the text as they are; kernels of one structure share a function."""
    whole = sources.readable()
    owners: dict[str, list[int]] = {}
    for number, function in enumerate(sources.functions):
        owners.setdefault(function.text, []).append(number)
    places = sorted((whole.find(text), text) for text in owners)
    end = 0
    for start, text in places:
        if start < end:                                    # not in the text
            continue
        yield from _unlinked(whole[end:start])
        yield from kernel_lines(done, owners[text], text.rstrip("\n"))
        end = start + len(text.rstrip("\n")) + 1
    yield from _unlinked(whole[end:])


def _unlinked(text: str) -> Iterator[tuple[str, Lines]]:
    for line in text.removesuffix("\n").split("\n") if text else ():
        yield line, NO_LINES


def kernel_lines(done: Optimized, numbers: Sequence[int], text: str, form: str = "") -> Iterator[tuple[str, Lines]]:
    """A function's lines: comments that name an instruction come from its line, others from the instructions whose
    values they compute or read, the first of the function from all of it. Where no line is known so, as in calls of
    library kernels, all are. form: of a comment, where it is not C's."""
    whole = NO_LINES.union(*(done.kernel_lines(n) for n in numbers))
    comments: dict[str, Lines] = {}
    keyed: dict[str, Lines] = {}
    for number in numbers:
        origin = done.program.kernels[number].origin
        for line, linked in zip([form.format(o) for o in origin] if form else comment(origin),
                                done.origin_lines(number)):
            comments[line] = comments.get(line, NO_LINES) | linked
        for key, linked in done.keyed_lines(number).items():
            keyed[key] = keyed.get(key, NO_LINES) | linked
    found = [NO_LINES.union(*(keyed.get(key, NO_LINES) for key in line.keys)) for line in code_lines(text)]
    for line, linked in zip(text.split("\n"), found):
        is_head = line[:1].isalpha() and line.rstrip().endswith(("{", ")")) and not line.startswith(HELPER)
        yield line, comments.get(line) or (whole if is_head or not any(found) else linked)


def cuda_text(work: Work, chosen: Mapping[str, str]) -> Content:
    from hloc.targets.cuda.sources import make_sources
    done = work.on(chosen["target"])
    sources = make_sources(done.program, done.target.machine)
    return code("cuda", _cuda_lines(done, sources), note=f"{_count(done)}; {done.target.machine.arch}")


def _cuda_lines(done: Optimized, sources: CudaSources) -> Iterator[tuple[str, Lines]]:
    whole = sources.readable()
    first = whole.find(sources.kernels[0]) if sources.kernels else len(whole)
    yield from _unlinked(whole[:first])
    for number, text in enumerate(sources.kernels):
        yield from kernel_lines(done, [number], text.rstrip("\n"))
        yield "", NO_LINES
