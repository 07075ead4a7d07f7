"""hloc simulate: what a step takes on a cluster of many devices, of which one is replayed."""
from __future__ import annotations

import json
from pathlib import Path

import click

from hloc.analysis.asynchronous import base_of
from hloc.cli.options import Size, lenient_reading_options, mesh_option, module_argument
from hloc.cli.terminal import Progress, counted, print_table, read_module, source_json, source_of, warn
from hloc.errors import UsageError, printable
from hloc.files import check_target, write
from hloc.tools.formatting import size_text, time_text

EPILOG = """\b
Examples:
  hloc simulate step.hlo --cluster dgx-h100
  hloc simulate step.hlo --cluster dgx-h100 --mesh data=32,model=8
  hloc simulate step.hlo --cluster gb200-nvl72 --table --devices 64    # every mesh of 64 devices
  hloc simulate step.hlo --cluster ours.json -o step.html --trace step.json
  hloc simulate --list-clusters"""


def _list_clusters(ctx: click.Context, _param, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from hloc.tools.simulate import cluster_names, find_cluster
    rows = [[name, str(c.devices), c.about] for name, c in ((n, find_cluster(n)) for n in cluster_names())]
    print_table(["cluster", "devices", "what it is"], rows, right=(1,))
    ctx.exit()


@click.command("simulate", epilog=EPILOG)
@module_argument
@click.option("--cluster", "-c", required=True, metavar="NAME|FILE",
              help="The devices and their links: a name of --list-clusters, or a JSON file.")
@mesh_option
@click.option("--devices", type=click.IntRange(1, 1 << 20), metavar="N",
              help="With --table: how many devices. Default: as many as the module's shardings have.")
@click.option("--table", "as_table", is_flag=True, help="Compare all meshes of so many devices, the fastest first.")
@click.option("--overlap", type=click.Choice(["on", "off"]), default="on", show_default=True,
              help="off: a device waits for each collective at once.")
@click.option("--combine", type=Size(), metavar="SIZE",
              help="Collectives of a kind are combined up to so many bytes: there are fewer, but less of them can run "
                   "beside kernels. Default: 30MiB.")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE.html", help="Write a page.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE.json",
              help="Write the timeline as Chrome trace events, for Perfetto.")
@click.option("--top", default=10, show_default=True, type=click.IntRange(0), metavar="N",
              help="Number of collectives listed.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--list-clusters", is_flag=True, is_eager=True, expose_value=False, callback=_list_clusters,
              help="List the clusters that have names and stop.")
@lenient_reading_options
def simulate_command(module, cluster, mesh, devices, as_table, overlap, combine, output, trace, top, as_json,
                     reading) -> None:
    """Predict a step of MODULE on many devices: its time, how much of that is communication and how much of it is
    exposed, what a device sends along each axis of the mesh and over each kind of link, and its peak memory.

    MODULE is annotated with shardings, or partitioned already. All devices run the same program, so one is replayed:
    nothing is compiled or run, and no GPU is needed.
    """
    from hloc.api import Options
    from hloc.tools.simulate import find_cluster, mesh_shapes, simulate
    from hloc.verify.unverified import blaming_faults
    for path, suffix in ((output, ".html"), (trace, ".json")):
        if path is not None and path.suffix != suffix:
            raise UsageError(f"cannot write {path}: name a FILE that ends with {suffix}")
        if path is not None:
            check_target(path)
    if devices and not as_table:
        raise UsageError("--devices is for --table; --mesh says how many devices there are")
    if as_table and (mesh or trace):
        raise UsageError("--table is about all meshes: leave out --mesh and --trace")
    chosen = find_cluster(cluster)
    options = Options(passes={} if combine is None else {"combine_bytes": combine})
    told, shapes = None, []
    with Progress() as progress:
        parsed = read_module(module, reading, progress)
        with blaming_faults(parsed, "hloc simulate"):
            if as_table:
                shapes = mesh_shapes(parsed, devices, chosen, title=module, options=options, overlap=overlap == "on",
                                     strict=reading.strict, warn=warn,
                                     progress=lambda done, total: progress.report("meshes", done, total))
            else:
                progress.report("simulate")
                told = simulate(parsed, mesh, chosen, title=module, options=options, overlap=overlap == "on",
                                strict=reading.strict, warn=warn)
    told = told or next((s.told for s in shapes if s.told), None)
    if told is None:
        raise UsageError(f"no mesh of these devices can be simulated: {shapes[0].problem}")
    if as_json:
        click.echo(json.dumps({"shapes": [_shape_json(s) for s in shapes]} if as_table else _as_json(told), indent=1))
    elif as_table:
        _show_shapes(shapes)
    else:
        _show(told, top)
    _write(told, shapes, output, trace)


def _write(told, shapes, output: Path | None, trace: Path | None) -> None:
    if output is not None:
        from hloc.pages.simulate_page import simulate_page
        write(output, simulate_page(told, shapes))
        click.echo(f"{output}: a page", err=True)
    if trace is not None:
        from hloc.tools.simulate.trace import trace_of
        events = trace_of(told)
        write(trace, json.dumps(events, separators=(",", ":")))
        click.echo(f"{trace}: {len(events['traceEvents']):,} events", err=True)


# -- as text -----------------------------------------------------------------------------------------------------------

def _show(told, top: int) -> None:
    line, cluster = told.timeline, told.cluster
    click.echo(f"{printable(told.mesh_text) or 'no mesh'}: {counted(told.devices, 'device')} of "
               f"{printable(cluster.name)}, {cluster.target.machine.name}")
    click.echo()
    share = 1 / line.total if line.total else 0.0
    memory = size_text(told.peak) + (f" of {size_text(cluster.memory)}" if cluster.memory else "")
    rows = [["kernels", time_text(line.kernels), f"{line.kernels * share:.0%}"],
            ["exposed communication", time_text(line.exposed), f"{line.exposed * share:.0%}"],
            ["communication", time_text(line.communication), ""], ["sent by a device", size_text(told.sent), ""],
            ["peak memory of a device", memory, "" if told.fits is not False else "does not fit"]]
    print_table(["step", time_text(line.total), ""], rows, right=(1, 2))
    if told.traffic:
        names = [level.name for level in cluster.levels]
        click.echo()
        print_table(["axes", "devices", "collectives", *names, "time", "exposed"],
                    [[t.axes or "-", str(t.groups), str(t.runs), *(size_text(n) if n else "-" for n in t.sent),
                      time_text(t.seconds), time_text(t.exposed)] for t in told.traffic],
                    right=range(1, 5 + len(names)))
    longest = sorted(line.transfers.values(), key=lambda t: -t.seconds)
    if longest and top:
        click.echo()
        print_table(["collective", "what", "axes", "runs", "algorithm", "time", "exposed", "source"],
                    [_collective(told, t) for t in longest[:top]], right=(3, 5, 6))
        if len(longest) > top:
            click.echo(f"... and {len(longest) - top} more (--top)")
    if told.unknown:
        click.echo(f"\ncounted as nothing, for nobody knows their time: {printable(', '.join(told.unknown))}")


def _collective(told, one) -> list[str]:
    instruction = one.instruction
    return [instruction.name, base_of(instruction), told.axes[instruction] or "-", str(one.runs),
            told.exchanges[instruction].algorithm or "-", time_text(one.seconds), time_text(one.exposed),
            source_of(instruction)]


def _show_shapes(shapes) -> None:
    names = list(shapes[0].mesh)
    rows = []
    for shape in shapes:
        sizes = [str(shape.mesh[name]) for name in names]
        if shape.told is None:
            rows.append([*sizes, "-", "-", "-", "-", "-", shape.problem])
            continue
        line = shape.told.timeline
        rows.append([*sizes, time_text(line.total), time_text(line.kernels), time_text(line.exposed),
                     size_text(shape.told.sent), size_text(shape.told.peak),
                     "does not fit" if shape.told.fits is False else ""])
    print_table([*names, "step", "kernels", "exposed", "sent", "peak", "problem"], rows, right=range(len(names) + 5))


# -- as JSON -----------------------------------------------------------------------------------------------------------

def _shape_json(shape) -> dict:
    if shape.told is None:
        return {"mesh": shape.mesh, "problem": shape.problem}
    return {"mesh": shape.mesh} | _totals(shape.told)


def _totals(told) -> dict:
    line = told.timeline
    return {"seconds": line.total, "kernels": line.kernels, "communication": line.communication,
            "exposed": line.exposed, "bytes_sent": told.sent, "peak": told.peak, "fits": told.fits}


def _as_json(told) -> dict:
    levels = [level.name for level in told.cluster.levels]
    return {
        "cluster": told.cluster.name, "target": told.cluster.target.machine.name, "mesh": dict(told.mesh),
        "devices": told.devices, **_totals(told), "unknown": list(told.unknown),
        "traffic": [{"axes": t.axes, "devices": t.groups, "collectives": t.runs, "bytes": dict(zip(levels, t.sent)),
                     "seconds": t.seconds, "exposed": t.exposed} for t in told.traffic],
        "collectives": [{"name": i.name, "opcode": base_of(i), "axes": told.axes[i],
                         "runs": t.runs, "algorithm": told.exchanges[i].algorithm,
                         "bytes": dict(zip(levels, told.exchanges[i].sent)), "seconds": t.seconds,
                         "exposed": t.exposed, "line": i.line, "source": source_json(i)}
                        for i, t in told.timeline.transfers.items()],
        "timeline": [{"kind": s.kind, "name": s.instruction.name, "begin": s.begin, "end": s.end}
                     for s in told.timeline.slices]}
