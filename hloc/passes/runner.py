"""Runs passes over a module: the only place that verifies, times, dumps, and names a failing pass.

In: a module and a tuple of passes, some of them in groups that repeat until nothing changes. Out: the module rewritten
in place, True if anything changed.

    run_passes(module, (call_inliner, Repeat("simplification", (algebraic_simplifier, cse, dce))), PassContext())
"""
from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from hloc.errors import HlocError, UnsupportedError, UsageError, VerifyError
from hloc.ir import Module
from hloc.passes.context import PassContext
from hloc.verify import verify
from hloc.verify.unverified import blaming_faults

Pass = Callable[[Module, PassContext], bool]


class Repeat(NamedTuple):
    """A group of passes that runs until none changes anything, at most `limit` times."""

    name: str
    passes: tuple[Pass, ...]
    limit: int = 8


class Timing(NamedTuple):
    """One run of one pass: seconds without verification, and the number of instructions after it."""

    name: str
    seconds: float
    changed: bool
    instructions: int


def no_dump(title: str, text: str) -> None:
    """The default for dumps: ignore them."""


def not_watched(when: str, name: str) -> None:
    """The default for progress: ignore it."""


@dataclass
class Runner:
    """How passes are run; see run_passes."""

    module: Module
    context: PassContext
    dump_before: Collection[str] = ()
    dump_after: Collection[str] = ()
    on_dump: Callable[[str, str], None] = no_dump
    verify: bool = True
    timings: list[Timing] | None = None
    progress: Callable[[str], None] | None = None
    watch: Callable[[str, str], None] = not_watched
    version: int = 0                                           # counts the changes made so far
    settled: dict[Pass, int] = field(default_factory=dict)     # the version at which a pass last found nothing to do

    def run(self, passes: Iterable[Pass | Repeat]) -> bool:
        start = self.version
        for item in passes:
            if isinstance(item, Repeat):
                self.run_group(item)
            else:
                self.run_one(item)
        return self.version != start

    def run_group(self, group: Repeat) -> None:
        for _ in range(group.limit):
            before = self.version
            for one in group.passes:
                if self.settled.get(one) != self.version:
                    self.run_one(one)
            if self.version == before:
                return

    def run_one(self, one: Pass) -> bool:
        name = one.__name__
        if self.progress is not None:
            self.progress(name)
        self.watch("before", name)
        self.dump("before", name, self.dump_before)
        start = time.perf_counter()
        with blaming_faults(self.module, f"pass {name}"):
            try:
                changed = one(self.module, self.context)
            except HlocError as error:
                raise named(error, name) from error
        seconds = time.perf_counter() - start
        if changed:
            self.version += 1
        else:
            self.settled[one] = self.version
        if self.timings is not None:
            count = sum(len(c.instructions) for c in self.module.computations)
            self.timings.append(Timing(name, seconds, changed, count))
        self.watch("after", name)
        self.dump("after", name, self.dump_after)
        if changed and self.verify and not self.module.faults:
            self.check(name)
        return changed

    def check(self, name: str) -> None:
        try:
            verify(self.module)
        except HlocError as error:
            raise VerifyError(f"pass {name} broke the module: {error.message}", error.span) from error

    def dump(self, when: str, name: str, wanted: Collection[str]) -> None:
        if name not in wanted and "all" not in wanted:
            return
        self.on_dump(f"{when} {name}", str(self.module))


def named(error: HlocError, name: str) -> HlocError:
    """The same error, saying which pass met it; what blames the user's text or options stays as it is."""
    if isinstance(error, (UnsupportedError, UsageError)):
        return error
    return type(error)(f"pass {name}: {error.message}", error.span, error.hint)


def run_passes(module: Module, passes: Iterable[Pass | Repeat], context: PassContext, *,
               dump_before: Collection[str] = (), dump_after: Collection[str] = (),
               on_dump: Callable[[str, str], None] = no_dump, verify: bool = True,
               timings: list[Timing] | None = None, progress: Callable[[str], None] | None = None,
               watch: Callable[[str, str], None] = not_watched) -> bool:
    """Run `passes` in order. True if anything changed.

    dump_before, dump_after  names of passes ("all": every one) around which `on_dump` is called with a title, as in
                             "after dce", and the module's text
    verify      check the module after each pass that changed it; VerifyError names the pass
    timings     receives a Timing per run of a pass
    progress    called with the name of each pass as it starts
    watch       called with "before" and with "after" and the name of each pass, when the module is in that state
    """
    return Runner(module, context, dump_before, dump_after, on_dump, verify, timings, progress, watch).run(passes)


def flatten(passes: Iterable[Pass | Repeat]) -> Iterator[Pass]:
    """Every pass of a pipeline, groups opened, in order."""
    for item in passes:
        yield from item.passes if isinstance(item, Repeat) else (item,)


def named_passes(names: Iterable[str], table: dict[str, Pass]) -> tuple[Pass, ...]:
    """The passes called `names`; UsageError for an unknown one, with the nearest known names."""
    found = []
    for name in names:
        if name not in table:
            near = difflib.get_close_matches(name, table, n=3)
            raise UsageError(f"unknown pass {name!r}",
                             hint=f"did you mean {', '.join(near)}?" if near else "hloc opt --list-passes shows all")
        found.append(table[name])
    return tuple(found)
