"""Options that several commands have, written once."""
from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import click

from hloc.errors import Source, UsageError

LONGEST_NUMBER = 18                   # digits: of 64 bits
module_argument = click.argument("module", metavar="MODULE", type=click.Path(allow_dash=True))


class Reading(NamedTuple):
    """How a module's file is read; as in hloc.load."""

    choice: str | None
    elided: str | None
    strict: bool
    sizes: dict[str, int]
    broken_rules: str = "refuse"


def reading_options(command):
    """--module, --elided, --size and --strict of every command that reads a module; passed as one argument,
    `reading`."""
    @functools.wraps(command)
    def with_reading(*args, choice, elided, strict, sizes, **rest):
        return command(*args, reading=Reading(choice, elided, strict, _sizes(sizes)), **rest)

    for option in reversed(READING):
        with_reading = option(with_reading)
    return with_reading


def _sizes(given: tuple[str, ...]) -> dict[str, int]:
    sizes = {}
    for text in given:
        name, equals, number = text.partition("=")
        if not (equals and name and number.isdecimal() and number.isascii() and len(number) <= LONGEST_NUMBER):
            raise UsageError(f"--size {text!r}: write NAME=NUMBER, as in b=4 or arg0.0=4")
        sizes[name] = int(number)
    return sizes


def lenient_reading_options(command):
    """The same for commands that only show or convert a module: rules that it breaks are warnings; --no-verify."""
    @reading_options
    @functools.wraps(command)
    def with_reading(*args, reading, no_verify, **rest):
        return command(*args, reading=reading._replace(broken_rules="ignore" if no_verify else "warn"), **rest)

    return click.option("--no-verify", is_flag=True,
                        help="Do not report rules of HLO that MODULE breaks. Default: warnings (--strict: "
                             "errors).")(with_reading)


READING = (
    click.option("--module", "-m", "choice", metavar="NAME|NUMBER",
                 help="Which module of a file that holds several (numbers from 1); also as MODULE#2."),
    click.option("--elided", metavar="VALUES",
                 help="Generate the constants whose values the text omits ({...}), as --inputs does: "
                      "'sensible:SEED', 'random:SEED' or 'zeros'. Default: such a module cannot run."),
    click.option("--size", "sizes", multiple=True, metavar="NAME=N",
                 help="The size of an unbounded dimension of StableHLO: b=4, by jax.export's variable, or arg0.0=4, by "
                      "argument and dimension."),
    click.option("--strict", is_flag=True, help="Unknown attributes and broken rules are errors, not warnings."))

INPUTS_HELP = ("An .npy or .npz file (several for several parameters: a.npy b.npy), 'sensible:SEED' (random numbers "
               "that suit the use of each parameter), 'random:SEED' (normally distributed) or 'zeros'. "
               "Default: the arguments in a snapshot, else sensible:0.")


def inputs_option(command):
    """--inputs FILE, any number of times, each with any number of files: `--inputs a.npy b.npy`."""
    @functools.wraps(command)
    def with_inputs(*args, inputs, more_inputs, **rest):
        return command(*args, inputs=inputs + more_inputs, **rest)

    option = click.option("--inputs", "-i", "inputs", multiple=True, metavar="FILE ...", help=INPUTS_HELP)
    return option(click.argument("more_inputs", nargs=-1, metavar="")(with_inputs))


target_option = click.option(
    "--target", "-t", default="auto", show_default=True, metavar="NAME",
    help="cpu, cuda, reference, a GPU (h100, rtx4090 ...) or an architecture (sm_90a); auto: a GPU if there is one.")

class Mesh(click.ParamType):
    """Sizes of axes: data=4,model=2."""

    name = "mesh"

    def convert(self, value, param, ctx) -> dict[str, int]:
        if isinstance(value, dict):
            return value
        sizes: dict[str, int] = {}
        for word in str(value).split(","):
            name, equals, number = (part.strip() for part in word.partition("="))
            if not (name and equals and re.fullmatch("[1-9][0-9]{0,6}", number)):
                self.fail(f"{value!r} is no mesh: write data=4,model=2", param, ctx)
            if name in sizes:
                self.fail(f"{value!r} names {name} twice", param, ctx)
            sizes[name] = int(number)
        return sizes


mesh_option = click.option(
    "--mesh", type=Mesh(), metavar="AXIS=N,...",
    help="Partition the module over a mesh of devices, by its sharding annotations: the sizes of the axes that these "
         "name (data=4,model=2). Default: the sizes that they have.")

devices_option = click.option(
    "--devices", type=click.IntRange(1), metavar="N",
    help="The module runs on N devices, which exchange arrays in collectives; one with sharding annotations is "
         "partitioned. Default: the number in the module's header; where it has none, commands that run nothing take "
         "as many as collectives name.")

fusion_option = click.option(
    "--fusion", type=click.Choice(["on", "off"]), default="on", show_default=True,
    help="off: every instruction becomes a separate kernel.")


def precision_options(command):
    """--exact and --f32, handed over as `precision`: options of passes that differ from their defaults."""
    @functools.wraps(command)
    def with_precision(*args, exact, f32, **rest):
        precision = {"excess_precision": "off", "f32": "exact"} if exact else {"f32": f32} if f32 else {}
        return command(*args, precision=precision, **rest)

    for option in PRECISION:
        with_precision = option(with_precision)
    return with_precision


PRECISION = (
    click.option("--f32", type=click.Choice(["tf32", "exact"]),
                 help="On a GPU: matmuls and convolutions of f32 round operands to TF32, or do not. Default: tf32, or "
                      "what the variable HLOC_F32 says."),
    click.option("--exact", is_flag=True,
                 help="On a GPU: --f32 exact, and bf16 and f16 are rounded after each operation, as on a CPU. Default: "
                      "within a kernel they stay f32."))

tuning_option = click.option(
    "--tuning", type=click.Path(path_type=Path), metavar="FILE",
    help="File with the fastest algorithm of each matmul, convolution and attention on a GPU. On a machine with that "
         "GPU, those that FILE lacks are measured and added; elsewhere FILE is only read.")


schedule_option = click.option(
    "--schedule", metavar="FILE",
    help="File with schedules of loops, instead of those that hloc chooses. hloc explain --schedule prints them in "
         "this form.")


def schedule_of(path: str | None) -> Source | None:
    """The text of --schedule. Raises UsageError where it is not UTF-8."""
    from hloc.sources import read_bytes
    if path is None:
        return None
    try:
        return Source(read_bytes(path).decode(), path)
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8") from None


time_passes_option = click.option(
    "--time-passes", is_flag=True,
    help="Show the seconds of each pass and stage, and the slowest kernels of the C compiler, on stderr.")


class Size(click.ParamType):
    """A number of bytes: 4096, 512KiB, 1.5GiB; K, M, G, T alone mean KiB and so on."""

    name = "size"
    UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

    def convert(self, value, param, ctx) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", str(value).strip(), re.IGNORECASE)
        if not found:
            self.fail(f"{value!r} is not a size: write 4096, 512MiB or 1.5GiB", param, ctx)
        return int(float(found.group(1)) * 1024 ** self.UNITS[found.group(2).upper()])


class Number(click.FloatRange):
    """A number in a range; click lets NaN, which is in none, pass."""

    def convert(self, value, param, ctx) -> float:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


memory_limit_option = click.option(
    "--memory-limit", type=Size(), metavar="SIZE",
    help="Limit the peak memory (512MiB, 2GiB): arrays are recomputed; an error if that is not enough.")

custom_call_option = click.option(
    "--custom-call", "custom_calls", multiple=True, metavar="NAME=MODULE:FUNCTION",
    help="Python function (NumPy arrays in, array or tuple of arrays out) for a custom-call target; MODULE is the name "
         "of a module (the working directory is searched, too) or a file: ./my.py.")


infeed_option = click.option(
    "--infeed", "infeeds", multiple=True, metavar="FILE", help="Arrays that infeed reads, in order (.npy or .npz).")

recv_option = click.option(
    "--recv", "received", multiple=True, metavar="CHANNEL=FILE",
    help="Arrays that recv reads on a channel, in order.")

outfeed_option = click.option(
    "--outfeed", "outfeed", metavar="FILE", help="Write the arrays of outfeed and send to an .npz file, in order.")


def pass_options(fusion: str = "on", memory_limit: int | None = None,
                 precision: Mapping[str, str] = MappingProxyType({})) -> dict:
    """The options of passes (hloc/passes/context.py) that differ from their defaults."""
    given = {"fusion": fusion, "memory_limit": memory_limit}
    return {**{name: value for name, value in given.items() if value not in ("on", None)}, **precision}


def transfers_of(infeeds: tuple[str, ...], received: tuple[str, ...]):
    """The arrays of infeed and recv, read from files."""
    from hloc.inputs.files import read_arrays
    from hloc.ops.host import Transfers
    transfers = Transfers(infeed=[array for name in infeeds for array in read_arrays(Path(name))])
    for given in received:
        channel, equals, name = given.partition("=")
        if not (equals and channel.isdecimal() and len(channel) <= LONGEST_NUMBER):
            raise UsageError(f"--recv {given!r}: write CHANNEL=FILE, as in 2=x.npy")
        transfers.received.setdefault(int(channel), []).extend(read_arrays(Path(name)))
    return transfers


def write_transfers(path: Path, transfers) -> None:
    """The arrays of outfeed and send by name: outfeed.0, outfeed.1 ..., then send.CHANNEL.0 ..."""
    from hloc.inputs.files import write_outputs
    from hloc.ops.values import flatten
    named = {f"outfeed.{n}": a for n, a in enumerate(flatten(tuple(transfers.outfeed)))}
    for number, (channel, value) in enumerate(transfers.sent):
        named.update((f"send.{channel}.{number}.{n}", a) for n, a in enumerate(flatten(value)))
    write_outputs(path, list(named.values()), list(named))
