"""Program -> the C driver function that runs it: steps in order, control flow as C control flow.

In: a plan.Program and the C name of each kernel. Out: C text that defines

    int hloc_execute(void *const *bases, hloc_host_function host);

`bases` holds the arena, the parameters, the results, the constants and the arrays of setup, in this order
(runtime/driver.h); of a program of several devices then the device's communicator (runtime/communicator.h). While it
runs, subnormal numbers are taken for zero, as in XLA on CPUs: they would cost a hundred times as much. A timed driver
also counts the runs and nanoseconds of each step, for hloc_step_times; a traced one (runtime/trace.h) also records when
each ran, and the iterations of loops.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

from hloc.errors import HlocError
from hloc.ir.narrowing import known
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import (
    Branch,
    Collective,
    Copy,
    DeviceNumber,
    HostCall,
    Launch,
    Program,
    Ref,
    Step,
    WhileLoop,
    all_steps,
)
from hloc.machine import Machine
from hloc.targets.c_function import CFunction
from hloc.targets.cpu.execution.calls import OUT_OF_MEMORY, STOPPED
from hloc.targets.cpu.plans.slots import Scratch
from hloc.targets.cpu.plans.steps import scratch_of
from hloc.targets.cpu.program.collectives import FUNCTIONS, Collectives, constant_table
from hloc.targets.cpu.program.concurrent_steps import ConcurrentLaunches, grouped
from hloc.targets.cpu.program.grain import extent_of, grain_of, seconds_of
from hloc.targets.cpu.program.small_kernels import launches

WATCH_SECONDS = 1e-3              # interval at which longer runs check for signals (runtime/call.c)
FIRST_SECONDS, MOST_ITERATIONS = 1e-4, 1000      # of a loop of unknown length, before it begins to check


class DriverSource(NamedTuple):
    """text: C; host_calls, timed steps and traced loops: by their numbers in it; lapack_calls: those that C makes
    (lapack.py)."""

    text: str
    host_calls: tuple[HostCall, ...]
    timed: tuple[Step, ...]
    lapack_calls: tuple[HostCall, ...]
    traced: tuple[WhileLoop, ...] = ()


@dataclass
class Driver:
    """Collects the reference table and the lines of the function.

    in_python    targets of host calls that Python always makes: the user's own
    inlined      kernels that the driver holds (small_kernels.py), by name
    timed        the steps that are timed, by number; None: no clock at all
    iterations   of each loop that are noted one by one; None: no trace
    """

    program: Program
    names: tuple[str, ...]
    machine: Machine
    in_python: Collection[str] = ()
    inlined: Mapping[str, CFunction] = field(default_factory=dict)
    timed: list[Step] | None = None
    iterations: int | None = None
    refs: list[tuple[int, int]] = field(default_factory=list)
    most: int = 1                           # refs of one step
    host_calls: list[HostCall] = field(default_factory=list)
    lapack_calls: dict[str, HostCall] = field(default_factory=dict)       # by their C text
    lines: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    rooms: dict[Scratch, int] = field(default_factory=dict)      # scratch sizes of library kernels
    traced: list[WhileLoop] = field(default_factory=list)
    fixed: set[int] = field(default_factory=set)       # positions of bases that inlined kernels use
    loops: int = 0                          # how many loops are around the steps being written
    watches: bool = False                   # a run may be long and checks for signals
    counters: int = 0                       # of iterations of loops
    unwatched: float = 0.0                  # seconds of the steps since the last check

    @cached_property
    def collectives(self) -> Collectives:
        return Collectives(self.names)

    @cached_property
    def first(self) -> dict[str, int]:
        """The position of each region's first base in the `bases` table."""
        program, found, place = self.program, {}, 0
        for region, count in (("arena", 1), ("parameter", len(program.parameters)), ("result", len(program.results)),
                              ("constant", len(program.constants)), ("held", len(program.held)), ("communicator", 1)):
            found[region] = place
            place += count
        return found

    def base(self, ref: Ref) -> int:
        """The position of a region's base in the `bases` table."""
        return self.first[ref.region] + ref.index

    def rows(self, refs: tuple[Ref, ...]) -> str:
        """Add refs to the table, which is only there if it has some; the C expression of the first."""
        place, self.most = len(self.refs), max(self.most, len(refs))
        self.refs += [(self.base(r), r.offset) for r in refs]
        return f"refs + {place}" if refs else "0"

    def addresses(self, refs: tuple[Ref, ...]) -> str:
        """C expressions of addresses that the compiler can analyze; the bases are local variables."""
        self.fixed.update(self.base(r) for r in refs)
        return ", ".join(f"base{self.base(r)} + {r.offset}" if r.offset else f"base{self.base(r)}" for r in refs)

    def steps(self, steps: tuple[Step, ...], indent: int) -> None:
        write: dict[type, Callable[[Any, int], None]] = {
            Launch: self.launch, Copy: self.copy, WhileLoop: self.while_loop, Branch: self.branch,
            HostCall: self.host_call, ConcurrentLaunches: self.concurrent_launches, Collective: self.collective,
            DeviceNumber: self.device_number}
        for step in steps if self.timed is not None else grouped(steps, self.program, self.machine):
            write[type(step)](step, indent)
            self.watch(step, indent)

    def setup(self) -> None:
        """The steps of the first run. If a run is stopped before they are done, the next one repeats them."""
        if not self.program.setup:
            return
        flag = f"(int32_t *)bases[{self.first['held']}]"
        timed, self.timed = self.timed, None                # they are no part of what a run takes
        self.line(1, f"if (!*{flag}) {{")
        self.steps(self.program.setup, 2)
        self.line(2, f"*{flag} = 1;")
        self.line(1, "}")
        self.timed = timed

    def watch(self, step: Step | ConcurrentLaunches, indent: int) -> None:
        """Check for signals if a step may have been interrupted by one, or some time has passed."""
        launched = step.launches if isinstance(step, ConcurrentLaunches) else \
            (step,) if isinstance(step, Launch) else ()
        kernels = [self.program.kernels[launch.kernel] for launch in launched]
        self.unwatched += sum(seconds_of(kernel.cost, self.machine) for kernel in kernels)
        if any(isinstance(k, Tile) for k in kernels) or self.unwatched > WATCH_SECONDS or not kernels:
            self.stop_if_interrupted(indent)

    def stop_if_interrupted(self, indent: int) -> None:
        self.unwatched = 0.0
        if self.watches:
            self.line(indent, "if (HLOC_STOPS()) goto stop;")

    def line(self, indent: int, text: str) -> None:
        self.lines.append("  " * indent + text)

    def work(self, indent: int, step: Step, text: str) -> None:
        """A step that is timed."""
        if self.timed is not None:
            text = f"HLOC_TIMED({len(self.timed)}, {text});"
            self.timed.append(step)
        self.line(indent, text if text.endswith(";") else text + ";")

    def launch(self, step: Launch, indent: int) -> None:
        kernel, name = self.program.kernels[step.kernel], self.names[step.kernel]
        if isinstance(kernel, Tile):
            given = step.arguments + ((step.packed,) if step.packed else ())
            rows = f"bases, {self.rows(given + ((step.scratch,) if step.scratch else ()))}, {len(given)}"
            return self.work(indent, step, f"hloc_launch_tile({name}, {rows}, {self.room(step, kernel)})")
        extent, grain = extent_of(kernel), grain_of(kernel, self.machine, self.loops > 0)
        if name in self.inlined and grain >= extent:
            return self.line(indent, f"HLOC_RUN({name}, {extent}, {self.addresses(step.arguments)});")
        rows = f"bases, {self.rows(step.arguments)}, {len(step.arguments)}"
        self.work(indent, step, f"hloc_launch({name}, {extent}, {grain}, {rows})")

    def room(self, step: Launch | HostCall, what: Tile | HostCall) -> str:
        """The C expression of a library kernel's scratch sizes; the memory is the row after its arguments."""
        if step.scratch is None:
            return "0"
        sizes = scratch_of(what, self.machine)
        if sizes.bytes > step.scratch.size:
            raise HlocError(f"internal: the plan has {step.scratch.size} bytes for {sizes}")
        return f"rooms + {self.rooms.setdefault(sizes, len(self.rooms))}"

    def concurrent_launches(self, group: ConcurrentLaunches, indent: int) -> None:
        """Parallel launches; a timed driver runs them one by one."""
        first = len(self.jobs)
        for step in group.launches:
            kernel, name = self.program.kernels[step.kernel], self.names[step.kernel]
            assert isinstance(kernel, Kernel)               # `grouped` joins no others
            extent = extent_of(kernel)
            self.jobs.append(f"{{{name}, {extent}, {self.rows(step.arguments)}, {len(step.arguments)}}}")
        self.line(indent, f"hloc_launch_concurrently(jobs + {first}, {len(group.launches)}, {group.grain}, bases);")

    def copy(self, step: Copy, indent: int) -> None:
        refs = self.rows((step.destination, step.source))
        self.work(indent, step, f"hloc_copy(bases, {refs}, {step.source.size})")

    def while_loop(self, step: WhileLoop, indent: int) -> None:
        if not self.loops and any(self.is_divided(launch) for launch, _ in launches([step])):
            self.line(indent, "hloc_pool_rouse();")
        self.loops += 1
        counter = self.counter(step, indent)
        number = len(self.traced)
        self.traced.append(step)
        self.trace(indent, f"hloc_loop loop{number} = {{.begin = hloc_now()}};")
        self.line(indent, "for (;;) {")
        self.trace(indent + 1, f"hloc_trace_iteration(&loop{number}, {number});")
        self.stop_if_interrupted(indent + 1)
        if counter:
            self.line(indent + 1, counter)
        self.steps(step.condition, indent + 1)
        self.line(indent + 1, f"if (!*(const uint8_t *)hloc_at(bases, *({self.rows((known(step.flag),))}))) break;")
        self.steps(step.body, indent + 1)
        self.line(indent, "}")
        self.trace(indent, f"hloc_loop_done(&loop{number}, {number});")
        self.loops -= 1

    def trace(self, indent: int, text: str) -> None:
        """A line of a traced driver."""
        if self.iterations is not None:
            self.line(indent, text)

    def counter(self, step: WhileLoop, indent: int) -> str:
        """The code in each iteration of a loop that checks for signals after some time; "" if its time is known."""
        if step.trip_count is not None:
            return ""
        name = f"iterations{self.counters}"
        self.counters += 1
        self.line(indent, f"long {name} = 0;")
        seconds = estimated_seconds((*step.condition, *step.body), self.program, self.machine)
        return f"if (++{name} == {max(1, min(MOST_ITERATIONS, int(FIRST_SECONDS / max(seconds, 1e-9))))}) HLOC_WATCH();"

    def is_divided(self, launch: Launch) -> bool:
        """Whether it may run on several threads."""
        kernel = self.program.kernels[launch.kernel]
        return self.machine.cores > 1 and (isinstance(kernel, Tile)
                                           or grain_of(kernel, self.machine, True) < extent_of(kernel))

    def branch(self, step: Branch, indent: int) -> None:
        selector = f"hloc_at(bases, *({self.rows((step.selector,))}))"
        last = len(step.branches) - 1
        if step.selector_type == "pred":
            self.line(indent, f"switch (*(const uint8_t *){selector} ? 0 : 1) {{")
        else:
            self.line(indent, f"switch ((uint32_t)*(const int32_t *){selector}) {{")
        for number, steps in enumerate(step.branches):
            self.line(indent, f"case {number}: {{" if number < last else "default: {")
            self.steps(steps, indent + 1)
            self.line(indent, "} break;")
        self.line(indent, "}")

    def host_call(self, step: HostCall, indent: int) -> None:
        from hloc.targets.cpu.plans.lapack import lapack_call
        refs = tuple(r for r, _ in step.arguments + step.results)
        lapack = None if step.target in self.in_python else lapack_call(step)
        if lapack is not None:
            self.lapack_calls.setdefault(lapack, step)
            number = list(self.lapack_calls).index(lapack)
            rows = self.rows(refs + ((step.scratch,) if step.scratch else ()))
            what = f"lapack + {number}, bases, {rows}, {len(refs)}, {self.room(step, step)}, caller"
            self.line(indent, "HLOC_WATCH();")
            self.work(indent, step, f"hloc_call_lapack({what})")
            return
        call = f"hloc_call_host(host, {len(self.host_calls)}, bases, {self.rows(refs)}, {len(refs)}, caller)"
        self.work(indent, step, f"error = {call}")
        self.line(indent, "if (error) goto end;")
        self.host_calls.append(step)

    def collective(self, step: Collective, indent: int) -> None:
        what = self.collectives.place(step)
        if step.is_done:
            self.work(indent, step, f"error = communicator->done(communicator, {what})")
        else:
            self.line(indent, "HLOC_WATCH();")
            refs, given, made = step.arguments + step.results, len(step.arguments), len(step.results)
            start = f"communicator, communicator->{FUNCTIONS[step.kind]}, {what}"
            self.work(indent, step, f"error = hloc_meet({start}, bases, {self.rows(refs)}, {given}, {made})")
        self.line(indent, "if (error) goto end;")

    def device_number(self, step: DeviceNumber, indent: int) -> None:
        numbers = f"*({self.rows((step.result,))}), {step.divisor}, {step.modulus}"
        self.work(indent, step, f"hloc_tell_device(communicator, bases, {numbers})")

    def clocks(self) -> list[str]:
        """The declarations of a timed driver."""
        if self.timed is None:
            return []
        steps = f"enum {{ HLOC_STEPS = {max(1, len(self.timed))} }};"
        if self.iterations is None:
            return [steps, '#include "profile.h"', ""]
        return [steps, f"enum {{ HLOC_TRACED_ITERATIONS = {self.iterations} }};", '#include "trace.h"', ""]

    def body(self) -> list[str]:
        """The lines of a run, from the first step to the last."""
        for offset, size in self.program.gaps:
            self.line(1, f"HLOC_POISON((char *)bases[0] + {offset}, {size});")
        takes_long = estimated_seconds(self.program.steps, self.program, self.machine) > WATCH_SECONDS
        self.watches = takes_long or any(
            isinstance(s, (HostCall, Collective)) or (isinstance(s, WhileLoop) and s.trip_count is None)
            for s in all_steps(self.program.steps))
        if takes_long:
            self.line(1, "HLOC_WATCH();")
        self.setup()
        self.steps(self.program.steps, 1)
        return self.lines

    def source(self) -> DriverSource:
        """The whole unit: declarations, reference table, hloc_execute."""
        body, meets, traces = self.body(), self.program.meets, self.iterations is not None
        declarations = [f"void {name}(void *const *buffers);" if isinstance(kernel, Tile)
                        else f"void {name}(void *const *buffers, long begin, long end);"
                        for kernel, name in zip(self.program.kernels, self.names) if name not in self.inlined]
        refs = [f"{{{base}, {offset}}}" for base, offset in self.refs]
        collectives = self.collectives.text()
        digest = sha256("\n".join([*body, *collectives]).encode()).hexdigest()
        text = "\n".join([
            f"#define HLOC_MOST_ARGUMENTS {self.most}", '#include "driver.h"', *['#include "meeting.h"'] * meets, "",
            "extern _Thread_local int hloc_out_of_memory;",
            *dict.fromkeys(declarations), "",
            *(['#include "scalar.h"', *map(inlined_text, self.inlined.values())] if self.inlined else []),
            *self.clocks(), *['#include "lapack.h"'] * bool(self.lapack_calls),
            *constant_table("hloc_lapack_call lapack", self.lapack_calls), *collectives,
            *constant_table("hloc_ref refs", (", ".join(refs[i:i + 8]) for i in range(0, len(refs), 8))),
            *constant_table("hloc_job jobs", self.jobs),
            *constant_table("hloc_room rooms", (f"{{0, {s.first}, {s.second}, {s.third}, {s.own}, {s.threads}}}"
                                                for s in self.rooms)),
            '__attribute__((visibility("default")))',
            "int hloc_execute(void *const *bases, hloc_host_function host) {",
            "  const unsigned caller = hloc_float_state();", "  int error = 0;", "  (void)host;",
            *(f"  char *const base{n} = bases[{n}];" for n in sorted(self.fixed)),
            "  hloc_out_of_memory = 0;", "  hloc_set_float_state(hloc_flush_subnormals(caller));",
            *([f"  hloc_communicator *const communicator = bases[{self.first['communicator']}];",
               f'  if ((error = communicator->begin(communicator, "{digest}", {self.collectives.count}))) goto end;']
              if meets else []),
            *["  const int64_t begun = hloc_trace_begin();"] * traces, *body,
            *(["  goto end;", "stop:", f"  error = {STOPPED};"] if self.watches else []),
            *["end:"] * bool(self.host_calls or self.watches or meets),
            *["  if (error || hloc_out_of_memory) communicator->failed(communicator);"] * meets,
            "  hloc_set_float_state(caller);", *["  hloc_trace_end(begun);"] * traces,
            f"  return hloc_out_of_memory ? {OUT_OF_MEMORY} : error;", "}", ""])
        return DriverSource(text, tuple(self.host_calls), tuple(self.timed or ()), tuple(self.lapack_calls.values()),
                            tuple(self.traced))


def inlined_text(function: CFunction) -> str:
    """The text of an inlined kernel."""
    return function.text.replace(f"void {function.name}(", f"HLOC_ALWAYS void {function.name}(", 1)


def estimated_seconds(steps: Sequence[Step], program: Program, machine: Machine) -> float:
    """The time of steps on one core, by the cost model."""
    copied = sum(s.source.size for s in all_steps(steps) if isinstance(s, Copy)) / machine.bandwidth
    return copied + sum(times * seconds_of(program.kernels[launch.kernel].cost, machine)
                        for launch, times in launches(steps))
