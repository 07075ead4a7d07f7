"""hloc explain: the kernels of a module, and why two instructions were not fused."""
from __future__ import annotations

import difflib
import json
from collections import Counter

import click

from hloc.analysis.asynchronous import base_of
from hloc.analysis.cost import main_operation
from hloc.cli.loop_warnings import loop_copies_json, show_loop_copies
from hloc.cli.options import (
    devices_option,
    fusion_option,
    lenient_reading_options,
    memory_limit_option,
    mesh_option,
    module_argument,
    pass_options,
    precision_options,
)
from hloc.cli.run_devices import with_causes
from hloc.cli.saved_memory import saved_json, show_saved
from hloc.cli.terminal import Progress, counted, line_of, print_table, read_module, source_json, source_of
from hloc.errors import UsageError
from hloc.tools.formatting import size_text, time_text

MOST_CAUSES = 3                  # that are named for a collective
EPILOG = """\b
Examples:
  hloc explain model.hlo                    # the largest arrays between kernels, and why they are not fused
  hloc explain model.hlo --about dot.7      # one instruction, by its name before or after fusion
  hloc explain model.hlo --kernels          # the kernels themselves
  hloc explain model.hlo --schedule         # how loops become vectors (-t h200: blocks, warps, lanes), and other ways
  hloc explain model.hlo -t h200 --kernels  # predicted time on a GPU, and what bounds it
  hloc explain model.hlo --json | jq '.reasons'"""


@click.command("explain", epilog=EPILOG)
@module_argument
@click.option("--target", "-t", default="cpu", show_default=True, metavar="NAME", help="cpu, cuda, h100, sm_90a ...")
@click.option("--about", metavar="NAME", help="Show only the kernel and the edges of this instruction.")
@click.option("--kernels", "show_kernels", is_flag=True, help="List the kernels instead of the edges between them.")
@click.option("--schedule", is_flag=True, help="List the schedules of loops, with the cheapest that were "
              "considered, in the form that hloc run --schedule reads.")
@click.option("--top", default=25, show_default=True, type=click.IntRange(0), metavar="N",
              help="Number of rows listed.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@fusion_option
@precision_options
@memory_limit_option
@devices_option
@mesh_option
@lenient_reading_options
def explain_command(module, target, about, show_kernels, schedule, top, as_json, fusion, precision, memory_limit,
                    devices, mesh, reading) -> None:
    """List the kernels of MODULE and, for every array that one kernel stores and another loads, why these two kernels
    were not fused; then the loops that copy whole arrays in every iteration, and why. Nothing is compiled or run.

    With --kernels and a GPU as --target, each kernel has the microseconds that the cost model predicts, how often it
    runs, and what bounds it (DRAM, L2, tensor, issue, latency, launch); --json adds other GPUs. No GPU is needed.

    With --schedule, each loop that reduces or converts f16 has its schedule: the steps that make vectors, accumulators
    and the last iterations of it. On a GPU each loop kernel has one: the steps that bind its axes to blocks, warps and
    lanes. Comments above it list the cheapest --top schedules that apply, with their cycles or microseconds.

    With --memory-limit, a table lists the arrays that are computed again to keep it.

    Names are those of the optimized module (hloc opt); lines are those of the file.
    """
    def read(progress: Progress):
        return with_causes(read_module(module, reading, progress), devices, mesh, reading.strict)
    if schedule:
        if about or show_kernels or memory_limit is not None:
            raise UsageError("--schedule is without --about, --kernels and --memory-limit")
        _show_schedules(read, target, pass_options(fusion, precision=precision), top, as_json)
        return
    from hloc.ir.clone import clone_module
    from hloc.passes.precision import precision_notes, precision_of
    from hloc.targets import find
    from hloc.tools.explain import aimed, explain
    from hloc.verify.unverified import blaming_faults
    chosen = find(target)
    with Progress() as progress:
        parsed, causes = read(progress)
        progress.report("passes")
        others = show_kernels and as_json and chosen.machine.kind == "gpu"
        original = clone_module(parsed) if others else parsed
        with blaming_faults(parsed, "hloc explain"):
            passes = aimed(parsed, chosen, pass_options(fusion, memory_limit, precision))
            notes = precision_notes(parsed, passes) if chosen.machine.kind == "gpu" else []
            told = explain(parsed, chosen, passes, times=show_kernels, causes=causes)
            elsewhere = _elsewhere(original, chosen.machine, passes) if others and told.times else {}
    if about:
        told = _about(told, about.lstrip("%"))
    if as_json:
        precision = {"precision": precision_of(passes)} if notes else {}
        click.echo(json.dumps({**_as_json(told), **precision, **elsewhere}, indent=1))
        return
    if not about:
        _show_summary(told)
        for note in notes:
            click.echo(f"{note}\n")
    if show_kernels or about:
        _show_kernels(told, top)
    if not show_kernels:
        _show_edges(told, top)
    if not about:
        _show_collectives(told, top)
        if memory_limit is not None:
            show_saved(told.saved, top)
    if told.not_planned:
        click.echo(f"note: loops and times were not analyzed: {told.not_planned}", err=True)
    show_loop_copies(told.loops)


def _show_schedules(read, target: str, passes: dict, top: int, as_json: bool) -> None:
    """The output of --schedule: text that --schedule FILE reads, or JSON. read: a function that reads the module."""
    from hloc.api import Options
    from hloc.targets import find
    from hloc.tools.schedules import schedules_of
    from hloc.verify.unverified import blaming_faults
    chosen = find(target)
    if chosen.name not in ("cpu", "cuda"):
        raise UsageError("--schedule is for targets cpu and cuda")
    with Progress() as progress:
        parsed, _ = read(progress)
        progress.report("passes")
        with blaming_faults(parsed, "hloc explain"):
            found = schedules_of(parsed, chosen, Options(passes=passes))
    if as_json:
        click.echo(json.dumps({"schedules": [
            {"loop": one.name, "iterations": one.iterations, "schedule": one.ranked[0].text,
             "candidates": [{"schedule": c.text, one.unit: round(c.cycles, 3)} for c in one.ranked]}
            for one in found]}, indent=1))
        return
    click.echo("\n\n".join(one.text(top) for one in found) or "// no loop has a schedule")


def _about(told, name: str):
    found = told.about(name)
    if found.kernels or found.edges:
        return found
    if name in told.written:
        raise UsageError(f"no kernel holds {name!r}: a pass removed or replaced it",
                         hint="hloc opt --dump-after all shows which pass did")
    near = difflib.get_close_matches(name, [*told.written, *(k.instruction.name for k in told.kernels)], n=3)
    raise UsageError(f"no instruction {name!r}, neither in the file nor in the optimized module",
                     hint=f"did you mean {', '.join(near)}?" if near else "see hloc opt")


def _show_summary(told) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(k.kind for k in told.kernels).most_common(8))
    click.echo(f"{counted(told.instructions, 'instruction')} became {counted(len(told.kernels), 'kernel')}: {kinds}")
    carry, size = "carries" if len(told.edges) == 1 else "carry", size_text(sum(e.size for e in told.edges))
    click.echo(f"{counted(len(told.edges), 'edge')} between kernels {carry} {size}\n")
    if told.edges:
        print_table(["edges", "bytes", "reason"],
                    [[r.edges, size_text(r.size), r.reason] for r in told.reasons], right=(0, 1))
        click.echo()


def _show_kernels(told, top: int) -> None:
    times = _times(told)
    kernels = sorted(told.kernels, key=lambda k: -_total(times.get(k.instruction)))
    print_table(["us", "runs", "bound", "bytes", "flops", "kernel", "kind", "line", "source", "holds"],
                [[*_time_cells(times.get(k.instruction)), *_kernel_row(k, main_operation(k.instruction))]
                 for k in kernels[:top]], right=(0, 1, 3, 4, 7))
    _rest(len(kernels), top)
    if told.times:
        launches = sum(k.launches * k.uses for k in told.times.kernels)
        early = sum(k.early * k.uses for k in told.times.kernels)
        click.echo(f"predicted for a run on {told.times.gpu}: {told.times.us:,.1f} us, launches: {launches:,}"
                   f"{f', of which {early:,} start early' if early else ''}; {told.times.graphs}")
        for one in told.times.rounds[:top]:
            click.echo(one.in_words)
        _rest(len(told.times.rounds), top)


def _times(told) -> dict:
    return {k.instruction: k for k in told.times.kernels} if told.times else {}


def _total(predicted) -> float:
    return predicted.us * predicted.uses if predicted else 0.0


def _time_cells(predicted) -> list[str]:
    return [f"{predicted.us:,.1f}", str(predicted.uses), predicted.bound] if predicted else ["", "", ""]


def _time_json(predicted) -> dict:
    if predicted is None:                                       # a copy or a step on the host
        return {"predicted_us": None, "uses": None, "bound": None}
    return {"predicted_us": round(predicted.us, 3), "uses": predicted.uses, "bound": predicted.bound}


def _round_json(one) -> dict:
    """Of a loop or branch that only the device decides."""
    name = one.step.instruction.name if one.step.instruction is not None else None
    return {"name": name, "host_us": round(one.host_us, 3), "device_us": round(one.device_us, 3),
            "by_device": one.by_device, "only_host": one.only_host or None}


def _elsewhere(module, gpu, passes) -> dict:
    """The predicted time of the module on other GPUs."""
    from hloc.tools.gpu_times import what_if
    return {"devices": {times.gpu: {"predicted_us": round(times.us, 3), "kernels": [
        {"name": k.name, **_time_json(k)} for k in times.kernels]} for times in what_if(module, gpu, passes)}}


def _kernel_row(kernel, main) -> list:
    return [size_text(kernel.size), f"{kernel.flops:,}", kernel.instruction.name, kernel.kind, line_of(main) or "",
            source_of(main) or source_of(kernel.instruction), _members(kernel.members)]


def _show_edges(told, top: int) -> None:
    if not told.edges:
        return
    from hloc.tools.explain import reason_text
    print_table(["bytes", "from", "line", "source", "to", "line", "source", "reason"],
                [[size_text(e.size), *_end(e.producer, e.producer_kernel), *_end(e.reader, e.reader_kernel),
                  reason_text(e)] for e in told.edges[:top]], right=(0, 2, 5))
    _rest(len(told.edges), top)


def _show_collectives(told, top: int) -> None:
    if not told.collectives:
        return
    whole, exposed = (sum(getattr(c, what) for c in told.collectives) for what in ("seconds", "exposed"))
    click.echo(f"\ncollectives take {time_text(whole)}, of which a device only waits for {time_text(exposed)} "
               "(roughly: hloc simulate knows clusters)")
    print_table(["collective", "what", "devices", "runs", "sent", "time", "exposed", "line", "source", "sharding",
                 "beside it"],
                [[c.instruction.name, base_of(c.instruction), str(c.devices), str(c.runs), size_text(int(c.sent)),
                  time_text(c.seconds), time_text(c.exposed), str(line_of(c.instruction) or ""),
                  source_of(c.instruction), _causes(c), ", ".join(c.beside)] for c in told.collectives[:top]],
                right=range(2, 8))
    _rest(len(told.collectives), top)


def _causes(collective) -> str:
    """Axes of the mesh, of the arrays that are annotated with them."""
    texts = [f"{', '.join(c.axes)} of {c.annotation.name}" for c in collective.causes]
    lines = [f" (line {line})" if (line := line_of(c.annotation)) else "" for c in collective.causes]
    return ", ".join(text + line for text, line in zip(texts[:MOST_CAUSES], lines)) + (
        ", ..." if len(texts) > MOST_CAUSES else "")


def _end(instruction, kernel: str) -> list[str]:
    name = instruction.name if kernel == instruction.name else f"{instruction.name} in {kernel}"
    return [name, str(line_of(instruction) or ""), source_of(instruction)]


def _members(opcodes: tuple[str, ...]) -> str:
    counted = Counter(opcodes)
    return " ".join(f"{opcode} x{n}" if n > 1 else opcode for opcode, n in counted.items())[:100]


def _rest(count: int, top: int) -> None:
    if count > top:
        click.echo(f"... and {count - top} more (--top)")


def _kernel_source(kernel) -> list[dict]:
    return source_json(main_operation(kernel.instruction)) or source_json(kernel.instruction)


def _as_json(told) -> dict:
    from hloc.tools.explain import seconds_json
    times = _times(told)
    return {
        "instructions": told.instructions,
        **({"device": told.times.gpu, "predicted_us": round(told.times.us, 3),
            "graphs": told.times.graphs,
            "undecided": [_round_json(r) for r in told.times.rounds]} if told.times else {}),
        "kernels": [{"computation": k.computation, "name": k.instruction.name, "kind": k.kind,
                     "line": line_of(main_operation(k.instruction)), "source": _kernel_source(k), "bytes": k.size,
                     "flops": k.flops, "holds": list(k.members),
                     **(_time_json(times.get(k.instruction)) if told.times else {})}
                    for k in told.kernels],
        "collectives": [{"name": c.instruction.name, "opcode": base_of(c.instruction), "devices": c.devices,
                         "runs": c.runs, "bytes": c.sent, "seconds": c.seconds, "exposed": c.exposed,
                         "line": line_of(c.instruction), "source": source_json(c.instruction),
                         "shardings": [{"axes": list(one.axes), "array": one.annotation.name,
                                        "line": line_of(one.annotation)} for one in c.causes],
                         "beside": list(c.beside)} for c in told.collectives],
        "loop_copies": loop_copies_json(told.loops),
        "saved": saved_json(told.saved),
        "reasons": [{"reason": r.reason, "edges": r.edges, "bytes": r.size} for r in told.reasons],
        "edges": [{"computation": e.computation, "bytes": e.size, "reason": e.reason, **seconds_json(e),
                   "producer": e.producer.name, "producer_kernel": e.producer_kernel,
                   "producer_line": line_of(e.producer), "producer_source": source_json(e.producer),
                   "reader": e.reader.name, "reader_kernel": e.reader_kernel, "reader_line": line_of(e.reader),
                   "reader_source": source_json(e.reader)}
                  for e in told.edges]}
