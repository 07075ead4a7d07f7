"""The kernels of a program with what each of them is: HLO, loop IR, C or CUDA C, and what it costs.

    kernel_reports(program, target, times)     the dearest first; texts of the first MOST_SHOWN
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hloc.ir import Instruction
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import Launch, Program, all_steps
from hloc.kernels.text import print_loops, statement_lines
from hloc.machine import Machine
from hloc.targets.target import Target
from hloc.tools.report.lines import Line, code_lines, hlo_lines, shortened
from hloc.tools.report.times import Predicted

MOST_SHOWN = 300                     # kernels with their texts
MOST_CHARACTERS = 3_000_000          # of all texts


class KernelReport(NamedTuple):
    """One function of the generated program, and the instructions that call it.

    number        in the program
    predicted     seconds of all its runs in a run of the program, and what bounds it
    runs          of it in a run of the program
    bytes, flops  of one run
    measured      seconds of all its runs in a run of the program; None where nothing was measured
    hlo, loops, code   its texts, with keys that link their lines; empty where there are too many kernels to show all
    """

    number: int
    name: str
    instructions: tuple[Instruction, ...]
    predicted: float
    bound: str
    runs: int
    bytes: int
    flops: int
    measured: float | None = None
    hlo: tuple[Line, ...] = ()
    loops: tuple[Line, ...] = ()
    code: tuple[Line, ...] = ()

    @property
    def intensity(self) -> float:
        """Flops a byte."""
        return self.flops / self.bytes if self.bytes else 0.0


def kernel_reports(program: Program, target: Target, times: Sequence[Predicted]) -> list[KernelReport]:
    """Of all kernels of the program, those that are predicted to take longest first."""
    callers: dict[int, dict[Instruction, None]] = {}
    for step in all_steps(program.steps):
        if isinstance(step, Launch) and step.instruction is not None:
            callers.setdefault(step.kernel, {})[step.instruction] = None
    found = [_figures(number, program.kernels[number], tuple(instructions), times)
             for number, instructions in callers.items()]
    found.sort(key=lambda k: (-k.predicted, k.number))
    return _with_texts(found, program, target)


def _figures(number: int, kernel: Kernel | Tile, callers: tuple[Instruction, ...],
             times: Sequence[Predicted]) -> KernelReport:
    own = [t for t in times if t.kernel == number]
    longest = max(own, key=lambda t: t.seconds * t.runs, default=None)
    return KernelReport(number, kernel.name, tuple(sorted(callers, key=lambda i: i.name)),
                        sum(t.seconds * t.runs for t in own), longest.bound if longest else "",
                        sum(t.runs for t in own), kernel.cost.bytes, kernel.cost.flops)


def _with_texts(kernels: list[KernelReport], program: Program, target: Target) -> list[KernelReport]:
    shown = kernels[:MOST_SHOWN]
    text_of = code_of(program, [k.number for k in shown], target)
    left, done = MOST_CHARACTERS, []
    for k in shown:
        kernel = program.kernels[k.number]
        texts = [shortened(hlo_lines(k.instructions[0], kernel)), shortened(loop_lines(kernel, target.machine)),
                 shortened(code_lines(text_of(k.number)))]
        left -= sum(len(line.text) for lines in texts for line in lines)
        if left < 0:
            break
        done.append(k._replace(hlo=tuple(texts[0]), loops=tuple(texts[1]), code=tuple(texts[2])))
    return done + kernels[len(done):]


def loop_lines(kernel: Kernel | Tile, machine: Machine) -> list[Line]:
    """The loop IR from which code is printed. Of a library kernel: its parameters, and the statements that are
    generated for it."""
    if isinstance(kernel, Tile):
        facts = [f"//   {name} = {value}" for name, value in kernel.parameters]
        head = f"// {kernel.name}: library kernel {kernel.library_kernel}({', '.join(b.name for b in kernel.buffers)})"
        given = [f"{p.operand}: {line}" for p in kernel.prologues for line in statement_lines(p.statements)]
        return code_lines("\n".join([head, *facts, *given, *statement_lines(kernel.epilogue)]))
    if machine.kind == "cpu":
        from hloc.targets.cpu.vector_loops.pipeline import run_kernel_passes
        kernel = run_kernel_passes(kernel, machine)
    return code_lines(print_loops([kernel._replace(origin=())]))


def code_of(program: Program, numbers: Iterable[int], target: Target) -> Callable[[int], str]:
    """The C or CUDA C of each of these kernels, by its number."""
    machine = target.machine
    chosen = list(numbers)
    own = program._replace(kernels=tuple(program.kernels[n] for n in chosen), steps=())
    if machine.kind == "gpu":
        from hloc.targets.cuda.sources import make_sources
        texts: Mapping[int, str] = dict(zip(chosen, make_sources(own, machine).kernels))
        return texts.__getitem__
    from hloc.targets.cpu.program.sources import print_kernels
    from hloc.targets.cpu.tiles.source import tile_functions
    names, functions = print_kernels(own.kernels, machine)
    named = dict(zip(chosen, names))

    def text(number: int) -> str:
        kernel, name = program.kernels[number], named[number]
        own = tile_functions(kernel, name, machine) if isinstance(kernel, Tile) else (functions[name],)
        return "\n".join(f.text for f in own)
    return text
