"""The Python API, and the whole compilation on one page.

    module = load("model.hlo")              text -> Module, verified
    exe = compile(module, target="cpu")     Module -> passes -> Program -> native code
    results = exe(*arrays)                  NumPy in, NumPy out

`optimize` and `plan` are the steps in between.
"""
from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from hloc.devices import with_device_counts
from hloc.errors import RunError, Source, Span, UnsupportedError, UsageError
from hloc.executable import Executable
from hloc.inputs import entry_parameters, entry_results
from hloc.interrupts import ending_cleanly
from hloc.ir import Instruction, Module
from hloc.ir.clone import clone_module
from hloc.ops.host import Transfers
from hloc.targets.target import Target

if TYPE_CHECKING:
    from hloc.evaluate import Device
    from hloc.functions import CompiledFunction, FunctionSource, JittedFunction
    from hloc.kernels.plan import Program

MOST_ELEMENTS = 1 << 48           # of one array: more would take hours to compute
SHOWN_FAULTS = 10                 # warnings about rules that one module breaks
LIMIT_TRIES = 7                   # attempts to meet a memory limit
LIMIT_STEPS = 128                 # the aim is lowered by at least this part of the limit, then by twice as much ...


@dataclass
class Options:
    """Options of a compilation.

    progress      called with (stage, done, total); total is 0 if unknown
    timings       receives a Timing per pass (hloc/passes/runner.py)
    stages        receives the seconds of each stage: parse, passes, lowering, printing, compiler
    units         receives a UnitTime per call of the C compiler (hloc/targets/cpu/building/unit_costs.py)
    custom_calls  custom-call target -> Python function over NumPy arrays
    saved         receives a Saved per array that a memory limit has recomputed (hloc/passes/hlo_rematerialization)
    passes        options of passes by name, e.g. {"fusion": "off", "memory_limit": 1 << 30} (hloc/passes/context.py)
    transfers     the arrays of infeed, recv, outfeed and send (hloc/ops/host.py)
    profile       the program measures each of its steps, for Executable.profile; targets cpu and GPUs
    trace         the program notes when each of its steps runs, for Executable.trace, and so many iterations of each
                  loop one by one; None: no trace
    march         the CPU to compile for, as for the C compiler's -march: native, x86-64-v3 ...; target cpu
    tuning        the file of measured algorithms of kernels (hloc/targets/cuda/execution/tuning.py); GPU targets
    schedule      a file of schedules of loops (hloc/kernels/schedule/file.py)
    bound         numbers of parameters whose arrays are the same in all calls (Executable.bind); target cpu
    seconds       of one run of an instruction, where more is known than passes can tell (hloc/passes/context.py)
    device        which of several devices the program runs on (hloc/evaluate); collectives exchange data through it
    """

    progress: Callable[[str, int, int], None] | None = None
    timings: list | None = None
    stages: dict[str, float] = field(default_factory=dict)
    units: list = field(default_factory=list)
    custom_calls: dict[str, Callable] = field(default_factory=dict)
    saved: list = field(default_factory=list)
    passes: dict[str, Any] = field(default_factory=dict)
    dumps: dict[str, Any] = field(default_factory=dict)
    transfers: Transfers = field(default_factory=Transfers)
    profile: bool = False
    trace: int | None = None
    march: str = "native"
    tuning: Path | None = None
    schedule: Source | None = None
    bound: frozenset[int] = frozenset()
    seconds: Callable[[Instruction], float] | None = None
    device: Device | None = None

    @property
    def times_steps(self) -> bool:
        return self.profile or self.trace is not None

    @property
    def watches_passes(self) -> bool:
        """Whether the passes must run, to be timed or dumped, even if the program is in the cache."""
        return self.timings is not None or bool(self.dumps)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to `stages`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.perf_counter() - start

    def report(self, stage: str, done: int = 0, total: int = 0) -> None:
        if self.progress:
            self.progress(stage, done, total)


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector. Nearly all objects of a module stay in use until it is compiled: repeated scans
    take a quarter of the time of parsing and of the passes, and of importing them in a process that holds as many
    objects as one with jax."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@without_collections()
def load(source: str | bytes | Path | Module, *, name: str | None = None, choice: str | None = None,
         strict: bool = False, elided: str | None = None, warn: Callable[[str, Span | None], None] | None = None,
         broken_rules: str = "refuse", sizes: Mapping[str, int] | None = None,
         options: Options | None = None) -> Module:
    """Read and verify a Module from a path, or from the content of a file (bytes, or a str that holds a newline).

    What a file may hold is in hloc/sources.py: HLO text, protos, gzip, StableHLO ... Snapshots set `default_inputs`.
    choice  the name or number of one of several modules, as in `model.hlo#2`
    strict  unknown attributes are errors instead of warnings;  warn  called with each warning and its place
    elided  the values to generate for constants that the text omits ({...}): 'sensible:SEED', 'random:SEED' or
            'zeros', with a warning. Without it such a module can be printed and optimized, but not run.
    broken_rules  "warn" or "ignore": read a module that breaks rules of HLO, to print it, not to run it
            (hloc/verify/unverified.py); `strict` refuses it
    sizes   of StableHLO's unbounded dimensions, as {"b": 4} or {"arg0.0": 4} (hloc/text/stablehlo_sizes.py)
    Raises HlocError with file:line:col, or with the byte of a binary file.
    """
    if isinstance(source, Module):
        if source.faults and broken_rules == "refuse":
            raise source.faults[0]
        return source
    from hloc.analysis.loop_annotations import contradictions
    from hloc.sources import module_of
    from hloc.verify import verify
    from hloc.verify.unverified import blaming_faults
    options = options or Options()
    content, shown, choice = content_of(source, name, choice)
    with options.stage("parse"):
        options.report("parse")
        module = module_of(content, shown, choice=choice, strict=strict, sizes=sizes, warn=warn)
        options.report("verify")
        if broken_rules == "refuse" or strict:
            verify(module)
        else:
            _keep_faults(module, warn if broken_rules == "warn" else None)
    if warn is not None and not module.faults:
        for message, span in contradictions(module):
            warn(message, span)
    if elided is not None:
        with blaming_faults(module, "--elided"):
            _fill_elided(module, elided, warn)
    return module


def _keep_faults(module: Module, warn: Callable[[str, Span | None], None] | None) -> None:
    from hloc.verify.unverified import faults_of
    module.faults = faults_of(module)
    if warn is None:
        return
    for fault in module.faults[:SHOWN_FAULTS]:
        warn(f"{fault.message} (it cannot run)", fault.span)
    if len(module.faults) > SHOWN_FAULTS:
        warn(f"{module.name} breaks rules in {len(module.faults) - SHOWN_FAULTS:,} more places", None)


def content_of(source: str | bytes | Path, name: str | None = None,
               choice: str | None = None) -> tuple[str | bytes, str, str | None]:
    """Return a file's content, its name for messages, and the selected module; from a path or from content."""
    from hloc.sources import read_bytes, split_choice
    if isinstance(source, bytes) or (isinstance(source, str) and "\n" in source):
        return source, name or "<text>", choice
    if not isinstance(source, (str, os.PathLike)):
        raise UsageError(f"a module is a path, text or bytes, not {type(source).__name__}")
    path, own_choice = split_choice(source)
    return read_bytes(path), name or path, choice or own_choice


def _fill_elided(module: Module, values: str, warn: Callable[[str, Span | None], None] | None) -> None:
    from hloc.inputs.elided import fill_elided
    count = fill_elided(module, values)
    if count and warn is not None:
        constants = "1 elided constant is" if count == 1 else f"{count:,} elided constants are"
        warn(f"{module.name}: {constants} generated ({values})", None)


def optimize(module: Module, target: Target, options: Options | None = None) -> Module:
    """Run the whole pass pipeline of a target on the module, in place."""
    from hloc.passes.context import PassContext
    from hloc.passes.pipelines import pipeline_for
    from hloc.passes.runner import run_passes
    options = options or Options()
    context = PassContext(machine=target.machine, target=target.name, options=dict(options.passes),
                          saved=options.saved, seconds=options.seconds)
    passes = pipeline_for(target.name, context.option("pipelined") == "on")
    with options.stage("passes"), without_collections():
        run_passes(module, passes, context, timings=options.timings, verify=False,
                   progress=lambda name: options.report(f"pass {name}"), **options.dumps)
    return module


def plan(module: Module, target: Target, options: Options | None = None) -> Program:
    """Return the kernels, steps and memory of an optimized module."""
    from hloc.kernels.planner import plan_module
    options = options or Options()
    options.report("plan")
    with options.stage("lowering"), without_collections():
        return plan_module(module, target.machine, target.workspace,
                           options.bound if target.name == "cpu" else frozenset())


def optimized_plan(module: Module, target: Target, options: Options | None = None) -> tuple[Module, Program]:
    """Optimize and plan a module, which is consumed; within a "memory_limit" if the options have one.

    The limit counts parameters, results, constants and the arena, with the memory of library kernels (Program.peak).
    Raises RunError, with the least peak and where it is, if recomputing arrays is not enough.
    """
    options = options or Options()
    if options.passes.get("memory_limit") is None:
        return module, plan(optimize(module, target, options), target, options)
    return _within_limit(module, target, options)[:2]


def memory_aim(module: Module, target: Target, options: Options) -> int | None:
    """The "memory_limit" that passes must be given so that the plan keeps that of the options; None if it is kept
    anyway, or if there is none. Raises RunError as optimized_plan does."""
    return None if options.passes.get("memory_limit") is None else _within_limit(module, target, options)[2]


def _within_limit(module: Module, target: Target, options: Options) -> tuple[Module, Program, int | None]:
    """The module and plan within the limit, and the limit that passes were given. The arena may be larger than the
    arrays that are live in it, so the passes run again with a lower aim if the plan misses the limit."""
    limit, aim = options.passes["memory_limit"], None       # first without a limit: it may be met
    least: tuple[Module, Program] | None = None
    for number in range(LIMIT_TRIES):
        own = clone_module(module)
        options.saved.clear()
        optimize(own, target, replace(options, passes={**options.passes, "memory_limit": aim}))
        program = plan(own, target, options)
        if program.peak <= limit:
            return own, program, aim
        if least is None or program.peak < least[1].peak:
            least = own, program
        aim = limit if aim is None else max(0, aim - (max(program.peak - limit, limit // LIMIT_STEPS) << number - 1))
    assert least is not None
    from hloc.kernels.memory import memory_use
    busiest = memory_use(least[0], target.machine, target.workspace).at
    where = f" at {busiest.name}" if busiest is not None else ""
    raise RunError(f"running {module.name} needs {least[1].peak:,} bytes at least{where}, with arrays recomputed to "
                   f"save memory; the limit is {limit:,}", busiest.span if busiest is not None else None,
                   hint="hloc memory shows which arrays are live at the peak")


@overload
def compile(source: str | bytes | Path | Module, target: str = "auto", *, options: Options | None = None,
            consume: bool = False, run: bool = True) -> Executable: ...


@overload
def compile(source: FunctionSource, *example: Any, target: str = "auto",
            options: Options | None = None) -> CompiledFunction: ...


def compile(source: Any, *arguments: Any, target: str = "auto", options: Options | None = None,   # noqa: A001
            consume: bool = False, run: bool = True) -> Executable | CompiledFunction:
    """Compile HLO, or a function of JAX, for a target and return something to call.

    source   a path, text, bytes or a Module: compile(source, target). Or a function of JAX: as it is, jitted, traced or
             lowered; then `arguments` are examples of its arguments (arrays, numbers, jax.ShapeDtypeStructs, pytrees of
             them), used for their types and shapes: compile(f, params, x, target="cpu") (hloc/functions.py)
    target   auto (a GPU if there is one, else the CPU), cpu, cuda, a GPU architecture (sm_90a) or name (h100),
             or reference (the NumPy evaluator)
    consume  a given Module may be changed (otherwise a copy is compiled)
    run      build native code now; with False the first call does, if there is one
    Raises HlocError with a place in the text where there is one.
    """
    is_function = callable(source) or hasattr(source, "lower") and not isinstance(source, (str, bytes)) \
        or hasattr(source, "compiler_ir")
    if not is_function:
        if len(arguments) > 1 or arguments and target != "auto":
            raise UsageError("compile takes a module and a target; examples of arguments are for functions of JAX")
        return compile_module(source, *(arguments or (target,)), options=options, consume=consume, run=run)
    from hloc.functions import compile_function
    return compile_function(source, arguments, _module_compiler(target, options))


@overload
def jit(function: Callable[..., Any], *, target: str = "auto", options: Options | None = None,
        static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = (),
        donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = ()) -> JittedFunction: ...


@overload
def jit(*, target: str = "auto", options: Options | None = None,
        static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = (),
        donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = (),
        ) -> Callable[[Callable[..., Any]], JittedFunction]: ...


def jit(function: Callable[..., Any] | None = None, *, target: str = "auto", options: Options | None = None,
        static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = (),
        donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = (),
        ) -> JittedFunction | Callable[[Callable[..., Any]], JittedFunction]:
    """A function of JAX that hloc compiles when it is called, once for each pytree, types, shapes and static arguments;
    also as a decorator: @hloc.jit, @hloc.jit(target="cpu", static_argnums=1).

    Results are pytrees of NumPy arrays. static_argnums, static_argnames: as jax.jit's. donate_argnums and
    donate_argnames are accepted and have no effect: hloc never overwrites an argument.
    Raises UsageError if it is no function, and without jax.
    """
    from hloc.functions import JittedFunction

    def jitted(function: Callable[..., Any]) -> JittedFunction:
        return JittedFunction(function, static_argnums, static_argnames, _module_compiler(target, options))
    return jitted if function is None else jitted(function)


def _module_compiler(target: str, options: Options | None) -> Callable[[bytes, str], Executable]:
    return lambda content, name: recompiled(content, name, None, target, options or Options())


@without_collections()
def compile_module(source: str | bytes | Path | Module, target: str = "auto", *, options: Options | None = None,
                   consume: bool = False, run: bool = True) -> Executable:
    """compile, for a module."""
    options = options or Options()
    if isinstance(source, Module):
        load(source)                                                # it may break rules
        exe = _compiled(source, target, options, consume, run)
        if not consume:
            exe.recipe = lambda: (recompiled, (str(source), source.name, None, target, lasting(options)))
        return _that_binds(exe, options, None if consume else lambda own: recompiled(
            str(source), source.name, None, target, own, run))
    return recompiled(*content_of(source), target, options, run)


def recompiled(content: str | bytes, name: str, choice: str | None, target: str, options: Options,
               run: bool = True) -> Executable:
    """Compile the content of a module's file. Unpickling calls it, too."""
    module = load(content, name=name, choice=choice, options=options)
    exe = _compiled(module, target, options, True, run)
    exe.recipe = lambda: (recompiled, (content, name, choice, target, lasting(options)))
    return _that_binds(exe, options, lambda own: recompiled(content, name, choice, target, own, run))


def _that_binds(exe: Executable, options: Options, anew: Callable[[Options], Executable] | None) -> Executable:
    """The executable, which knows how to become one with bound parameters: `anew` compiles it with other options."""
    def specialized(bound: frozenset[int]) -> Executable | None:    # it must not hold `exe`, which holds it
        if bound == options.bound or anew is None:
            return None
        return anew(replace(options, bound=bound))
    if exe.target == "cpu":
        exe.specialized = specialized
    return exe


def lasting(options: Options) -> Options:
    """The options that a pickled executable is compiled with."""
    return Options(custom_calls=options.custom_calls, passes=options.passes, profile=options.profile,
                   trace=options.trace, march=options.march, tuning=options.tuning, schedule=options.schedule)


def _compiled(module: Module, target: str, options: Options, consume: bool, run: bool) -> Executable:
    if target == "reference" and options.times_steps:
        raise UnsupportedError("target reference does not time its steps", hint="profile with target cpu")
    if target == "reference" and options.march != "native":
        raise UsageError("--march is for the target cpu, not for reference")
    if target == "reference" and options.schedule is not None:
        raise UsageError(f"{options.schedule.name}: schedules are for the targets cpu and cuda, not for reference")
    if target == "reference":
        return reference_executable(module, options)
    from hloc.bounded import with_sizes
    from hloc.targets import find, presence
    chosen = find(target, options.march)
    if options.tuning is not None and chosen.name != "cuda":
        raise UsageError(f"a tuning file is for GPUs, not for target {chosen.name}")
    if run:
        refuse_endless(module)
    signature = entry_parameters(module), entry_results(module)
    if any(v.shape.is_dynamic for v in signature[0]):           # their sizes are parameters of the program
        options = replace(options, bound=frozenset())

    def compile_now() -> Executable:
        own, program = optimized_plan(module if consume else clone_module(module), chosen, options)
        return chosen.executable(program, own, options)

    def compile_text(text: str) -> Executable:
        return compile_module(text, target, options=options, run=False)

    with ending_cleanly():
        if run and chosen.from_cache and not options.watches_passes and not options.times_steps:
            chosen_by = {**options.passes, **({"bound": sorted(options.bound)} if options.bound else {}),
                         **({"schedule": options.schedule.text} if options.schedule else {})}
            exe = chosen.from_cache(module, chosen_by, compile_text, compile_now)
        else:
            exe = compile_now()
        exe = with_sizes(exe, *signature)
        if run and (chosen.name == "cpu" or presence.driver_present()):      # without a GPU a cubin can still be saved
            _ = exe.backend
    return exe


def refuse_endless(module: Module) -> None:
    """Raise RunError if an array has so many elements that computing it would not end."""
    for instruction in module.instructions():
        count = instruction.shape.num_elements
        if count > MOST_ELEMENTS:
            raise RunError(f"%{instruction.name} has {count:,} elements, more than a run could compute",
                           instruction.span)


def compile_for_devices(source: str | Path | Module, devices: Sequence[Device], target: str = "auto", *,
                        options: Options | None = None) -> list[Executable]:
    """Return one Executable per device of a module with collectives. They must be called at the same time, each in its
    own thread (hloc/evaluate/simulate.py) or process (hloc/evaluate/mpi.py): collectives wait for the other devices."""
    options = options or Options()
    module = load(source, options=options)
    if target == "reference" and options.times_steps:
        raise UnsupportedError("target reference does not time its steps", hint="trace with target cpu")
    if target == "reference":
        return [reference_executable(module, replace(options, device=device)) for device in devices]
    from hloc.targets import find
    chosen = find(target, options.march)
    counted = with_device_counts(module, devices[0].replica_count, devices[0].partition_count)
    optimized, program = optimized_plan(counted, chosen, options)
    first = chosen.executable(program, optimized, replace(options, device=devices[0]))
    return [first, *(first.on_device(device) if first.on_device is not None else
                     chosen.executable(program, optimized, replace(options, device=device)) for device in devices[1:])]


def load_compiled(path: Path) -> Executable:
    """Load a .so or .cubin of `hloc compile` as an Executable. Raises RunError for other files."""
    if not os.path.exists(path):
        raise UsageError(f"cannot read {path}: no such file")
    if path.suffix == ".so":
        from hloc.targets.cpu.target import load_shared_object
        return load_shared_object(path)
    from hloc.targets.cuda.target import load_cubin
    return load_cubin(path)


def reference_executable(module: Module, options: Options) -> Executable:
    """Return the evaluator as an Executable; it needs no compiler."""
    from hloc.evaluate import Options as Run
    from hloc.evaluate import evaluate
    calls = {name: _without_instruction(f) for name, f in options.custom_calls.items()}
    moved = options.transfers

    def run(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        options.report("run")
        try:
            return tuple(evaluate(module, arrays, custom_calls=calls, device=options.device, options=Run(
                infeed=moved.infeed, outfeed=moved.outfeed, received=moved.received, sent=moved.sent)))
        except MemoryError:
            raise RunError("out of memory in the reference evaluator") from None

    return Executable(module.name, "reference", tuple(entry_parameters(module)), tuple(entry_results(module)),
                      lambda: run, lambda: str(module), {".hlo": lambda _: str(module)}, optimized=lambda: module)


def _without_instruction(function: Callable) -> Callable:
    """A custom call of the evaluator, which also passes the instruction, from a user's function of arrays."""
    return lambda _instruction, *operands: function(*operands)
