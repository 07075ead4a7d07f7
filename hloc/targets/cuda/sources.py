"""Program -> CUDA C and the launch geometry of each of its kernels.

In: a plan.Program. Out: CudaSources: the texts, a Geometry per launch, and the program with its launches numbered in
the order of these. Each kernel of the plan is a translation unit (kernel_images.py); single_file() is one text of all.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import HostCall, Launch, Program, Ref, Step, all_steps, with_inner
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.costs.loop_choice import chosen_form
from hloc.targets.cuda.costs.rounds import decided
from hloc.targets.cuda.early_start import chosen, fetched, may, with_fetches
from hloc.targets.cuda.execution.graphs import in_words
from hloc.targets.cuda.loops.kernels import describe, kernel_source
from hloc.targets.cuda.tiles.source import TileCode, tile_source
from hloc.targets.header_selection import with_needed_sections, words_in
from hloc.targets.inlining import HEADERS as SHARED
from hloc.targets.inlining import c_name, inline_includes
from hloc.targets.printer import escaped

DEVICE = Path(__file__).parent / "device"
# The headers and the names that they declare, in the order of inclusion; a header is included only if a kernel uses it.
TILES = ("hloc_gemm<", "hloc_ragged<", "hloc_gemm_thin<", "hloc_gemm_few<", "hloc_conv<", "hloc_conv_direct<",
         "hloc_attention_")
PACKS = ("hloc_conv_pack<", "hloc_conv_unpack<")
GROUPS = ("hloc_tile_warpgroup<", "hloc_tile_bulk<", "hloc_attention_group<", "hloc_attention_gradient_group<")
HEADERS = (("early.cuh", ("hloc_await_previous",)), ("atomics.cuh", ("hloc_atomic_",)),
           ("team.cuh", ("hloc_warp_total", "hloc_block_total", "hloc_last_", "hloc_sort_", "hloc_pick_",
                         "hloc_conv_direct<")),
           ("mma.cuh", ("hloc_numbers_", *GROUPS)), ("pack.cuh", ("hloc_pack<", *TILES, *PACKS)),
           ("words.cuh", ("hloc_numbers_", "hloc_taken_out<", "hloc_rounded_", *GROUPS)),
           ("numbers.cuh", ("hloc_numbers_", *GROUPS)), ("gemm.cuh", (*TILES, *PACKS)),
           ("few_rows.cuh", ("hloc_gemm_few<",)),
           ("async.cuh", ("hloc_tile_pipeline<", "hloc_attention_", *GROUPS)),
           ("pipeline.cuh", ("hloc_tile_pipeline<", *GROUPS)), ("wgmma.cuh", GROUPS),
           ("bulk.cuh", GROUPS), ("warpgroup.cuh", GROUPS), ("lines.cuh", ("hloc_pack_lines<",)),
           ("conv.cuh", ("hloc_conv<", "hloc_conv_direct<", *PACKS)),
           ("conv_bulk.cuh", ("hloc_patch_rest<", "hloc_positions_rest<")), ("attention.cuh", ("hloc_attention_",)),
           ("attention_few.cuh", ("hloc_attention_few<",)), ("attention_group.cuh", ("hloc_attention_group<",)),
           ("attention_gradient.cuh", ("hloc_attention_gradient_",)),
           ("attention_gradient_group.cuh", ("hloc_attention_gradient_group<",)),
           ("sort.cuh", ("hloc_sort_", "hloc_pick_")), ("fft.cuh", ("hloc_fft_",)))
ALIGNED = 256                       # bytes: the alignment that libraries want for their workspace
QUIET = "#pragma nv_diag_suppress 177      /* most scalar functions are not used */\n"


@dataclass(frozen=True)
class CudaSources:
    """program: its launches index `geometry`; kernels: CUDA C texts; host_calls: the plan's steps in Python; variants:
    of each kernel, "" if the cost model chooses; origins: for each launch, the kernel's number in the plan, and the
    launch's number in that kernel."""

    program: Program
    kernels: tuple[str, ...]
    geometry: tuple[Geometry, ...]
    host_calls: tuple[HostCall, ...]
    variants: tuple[str, ...]
    origins: tuple[tuple[int, int], ...]

    def units(self) -> dict[str, str]:
        """What is compiled: texts by the names of kernels, in the order of Geometry.image. Those that libraries compute
        have none."""
        compiled = {number for (number, _), g in zip(self.origins, self.geometry) if not g.product}
        return {c_name(number, self.program.kernels[number].name): with_headers(without_comments(self.kernels[number]))
                for number in sorted(compiled)}

    def readable(self) -> str:
        """The kernels as generated; hloc's headers are #include lines."""
        about = escaped(f"{self.program.name}: {in_words(self.program.steps)}")
        return "\n".join([f"/* {about} */", includes(used_headers(self.kernels)), *self.kernels])

    def single_file(self) -> str:
        """The same with the text of hloc's headers inserted: one file for nvcc or NVRTC."""
        return inline_includes(QUIET + self.readable(), (DEVICE, SHARED))


def used_headers(texts: Sequence[str]) -> list[str]:
    return [name for name, words in HEADERS if any(word in text for text in texts for word in words)]


def includes(headers: Sequence[str]) -> str:
    return "".join(f'#include "{name}"\n' for name in ("scalar.h", *headers))


def with_headers(text: str) -> str:
    """The text of a kernel as a unit: with the headers that it uses, and those sections of scalar.h that it and they
    call; all sections take half of a small kernel's time."""
    headers = used_headers([text])
    words = words_in(text).union(*map(words_of_header, headers))
    return with_needed_sections(QUIET + includes(headers) + text, words)


@lru_cache(maxsize=len(HEADERS))
def words_of_header(name: str) -> frozenset[str]:
    """The words in the names of functions that a header may call."""
    return words_in((DEVICE / name).read_text(encoding="utf-8"))


def without_comments(text: str) -> str:
    """The same code for equal kernels: comments hold names of instructions."""
    first, *others = text.split("/*")
    return first + "".join(part.partition("*/")[2] for part in others)


def make_sources(program: Program, gpu: Machine, variants: Sequence[str] = ()) -> CudaSources:
    """Prints all kernels and chooses their geometry. variants: of each kernel (tuning.py), else by the cost model."""
    codes, variants = [], tuple(variants or [""] * len(program.kernels))
    fetches = fetched(program, gpu)
    for number, (kernel, variant) in enumerate(zip(program.kernels, variants)):
        name = c_name(number, kernel.name)
        code = kernel_code(kernel, name, gpu, variant)
        if fetches.get(number) and len(code.launches) == 1 and may(code.launches[0], gpu):
            code = kernel_code(with_fetches(kernel, fetches[number]), name, gpu, variant)
        about = escaped(kernel.origin[0]) if kernel.origin else kernel.name
        starts = tuple(g._replace(about=about) for g in code.launches)
        codes.append(code._replace(text=describe(code.launches, kernel) + code.text, launches=starts))
    units = [number for number, code in enumerate(codes) if not all(g.product for g in code.launches)]
    geometry = tuple(g if g.product else g._replace(image=units.index(number))
                     for number, code in enumerate(codes) for g in code.launches)
    fetched_bytes = [sum(fetches.get(number, {}).values()) if len(code.launches) == 1 else 0
                     for number, code in enumerate(codes) for _ in code.launches]
    program = decided(program, lambda launch: sum(may(g, gpu) for g in codes[launch.kernel].launches))
    origins = tuple((number, n) for number, code in enumerate(codes) for n in range(len(code.launches)))
    launched = numbered(program, codes)
    geometry = chosen(launched.steps, geometry, gpu, fetched_bytes)
    return CudaSources(launched, tuple(c.text for c in codes), geometry, host_calls(program.steps), variants, origins)


def kernel_code(kernel: Kernel | Tile, name: str, gpu: Machine, variant: str) -> TileCode:
    """The CUDA C of one kernel of a plan."""
    if isinstance(kernel, Tile):
        return tile_source(kernel, name, gpu, variant)
    text, start = kernel_source(chosen_form(kernel, gpu, variant), name, gpu)
    return TileCode(text, (start,))


def numbered(program: Program, codes: list[TileCode]) -> Program:
    """The program with a Launch per kernel of each Tile. Their scratch memory is the one that the plan reserved.
    Scratch memory of libraries, and memory that the plan did not reserve (it was made without a Workspace, or before
    the variant was chosen), follows the arena."""
    first, total = [], 0
    for code in codes:
        first.append(total)
        total += len(code.launches)
    start = -(-program.arena_size // ALIGNED) * ALIGNED
    behind = 0

    def scratch(launch: Launch, code: TileCode) -> tuple[Ref, ...]:
        nonlocal behind
        planned, library = launch.scratch, any(g.product for g in code.launches)
        if not code.scratch:
            return ()
        if planned is not None and planned.size >= code.scratch and not library:
            return (planned,)
        behind = max(behind, code.scratch)
        return (Ref("arena", 0, start, code.scratch),)

    def rewrite(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(new for step in steps for new in expand(step))

    def expand(step: Step) -> list[Step]:
        if isinstance(step, Launch):
            code = codes[step.kernel]
            more = scratch(step, code)
            return [Launch(first[step.kernel] + n, step.arguments + more, step.instruction)
                    for n in range(len(code.launches))]
        return [with_inner(step, rewrite)]

    steps = rewrite(program.steps)
    return program._replace(steps=steps, arena_size=start + behind if behind else program.arena_size)


def host_calls(steps: tuple[Step, ...]) -> tuple[HostCall, ...]:
    """The steps that Python runs, anywhere in a plan."""
    return tuple(step for step in all_steps(steps) if isinstance(step, HostCall))
