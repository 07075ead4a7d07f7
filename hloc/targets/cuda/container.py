"""model.cubin: kernels, plan and constants in one file.

hloc/targets/sealed.py defines the layout of the file and its checks: it is a zip. plan.json holds the steps; the other
members are the cubins of the kernels (k0_dot.cubin, ELF images that cuobjdump reads) and the constants.

    write(file, images, program, launches, arch); container = read(path)
"""
from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from hloc.inputs import Parameter
from hloc.ir.shapes import array as array_shape
from hloc.kernels.plan import (
    Branch,
    Collective,
    Copy,
    Counter,
    DeviceNumber,
    HostCall,
    Launch,
    Program,
    Ref,
    Step,
    WhileLoop,
    all_steps,
)
from hloc.passes.precision import VALUES
from hloc.targets import sealed
from hloc.targets.cuda import collective_steps
from hloc.targets.cuda.libraries.cublaslt import LtProduct
from hloc.targets.cuda.libraries.cudnn import CudnnConvolution
from hloc.targets.cuda.tiles.tensor_maps import TensorMap
from hloc.targets.manifest import MOST_BYTES, value_from_json, value_to_json, whole

MARK, VERSION = "hloc_container", 15
DEEPEST_PLAN = 200
LARGEST_GRID, LARGEST_BLOCK, MOST_THREADS = (2 ** 31 - 1, 65535, 65535), (1024, 1024, 64), 1024
MOST_IMAGES = 1 << 20
MOST_SHARED = 227 << 10             # bytes of a block, on any GPU
SELECTORS = {"pred": 1, "s32": 4}   # types that select a branch, and their bytes


class Geometry(NamedTuple):
    """The launch of a kernel: its name in its image, blocks, threads per block, dynamic shared memory in bytes. about:
    the HLO that it computes, in one line, for messages. product: a call of cuBLASLt or cuDNN in place of the kernel.
    maps: tensor maps of arguments, for the bulk copy engine; the kernel's last argument points to them. early: numbers
    of the kernels behind which it starts, in a graph, before they have ended (early_start.py). image: the
    number of the cubin that has it."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    about: str = ""
    product: LtProduct | CudnnConvolution | None = None
    maps: tuple[TensorMap, ...] = ()
    early: tuple[int, ...] = ()
    image: int = 0


class Container(NamedTuple):
    """The contents of a model.cubin. `kernels` replace Program.kernels. cuda: the version of the compiler that made the
    images, in the driver's format (13000), 0 if it is unknown. precision: the options of numeric precision
    (hloc/passes/precision.py). devices: that the program is for, 0: it knows of no others."""

    name: str
    arch: str
    images: tuple[bytes, ...]
    kernels: tuple[Geometry, ...]
    steps: tuple[Step, ...]
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    constants: tuple[np.ndarray, ...]
    arena_size: int
    cuda: int = 0
    precision: Mapping[str, str] = MappingProxyType({})
    host_arena_size: int = 0
    devices: int = 0

    @property
    def communicating(self) -> int:
        """As a Program's: write() takes either."""
        return self.devices


def write(file: BinaryIO, images: Sequence[bytes], program: Program | Container, geometry: Sequence[Geometry],
          arch: str, cuda: int = 0, precision: Mapping[str, str] = MappingProxyType({})) -> None:
    """Writes a container in the machine's byte order, which the element types record."""
    plan = {
        MARK: VERSION, "name": program.name, "arch": arch, "cuda": cuda, "precision": dict(precision),
        "kernels": [[*g[:5], g.product.to_json() if g.product else None, [m.to_json() for m in g.maps], list(g.early),
                     g.image] for g in geometry],
        "steps": [_step_to_json(s) for s in program.steps],
        "parameters": [value_to_json(v) for v in program.parameters],
        "results": [value_to_json(v) for v in program.results],
        "constants": [[str(c.dtype), list(c.shape)] for c in program.constants],
        "arena": program.arena_size, "host_arena": program.host_arena_size, "devices": program.communicating,
        "on_host": [[n for n, v in enumerate(values) if v.shape.on_host]
                    for values in (program.parameters, program.results)],
    }
    cubins = {name: images[number] for number, name in image_members(geometry).items()}
    sealed.write(file, io.BytesIO(), plan,
                 {**cubins, **{f"constant_{i}": c.tobytes() for i, c in enumerate(program.constants)}})


def image_members(geometry: Sequence[Geometry]) -> dict[int, str]:
    """The members of the file that hold images, by the images' numbers: each has the name of its first kernel."""
    names: dict[int, str] = {}
    for g in geometry:
        if not g.product:
            names.setdefault(g.image, f"{g.function}.cubin")
    return names


def read(path: Path) -> Container:
    """Reads and checks a container. Raises RunError for a file that is not one, is truncated or was changed."""
    with sealed.reading(path, MARK, VERSION) as found:
        return _unpack(found)


def _unpack(found: sealed.Sealed) -> Container:
    plan = found.plan
    kernels = tuple(_geometry(row) for row in plan["kernels"])
    members = image_members(kernels)
    if sorted(members) != list(range(len(members))):
        raise ValueError("kernels without an image")
    constants = [np.frombuffer(found.member(f"constant_{i}"), np.dtype(dtype)).reshape(dimensions)
                 for i, (dtype, dimensions) in enumerate(plan["constants"])]
    packed = Container(
        str(plan["name"]), str(plan["arch"]), tuple(found.member(members[n]) for n in range(len(members))), kernels,
        tuple(_step_from_json(s, 0) for s in plan["steps"]),
        _values(plan["parameters"], plan["on_host"][0]), _values(plan["results"], plan["on_host"][1]),
        tuple(constants), whole(plan["arena"], MOST_BYTES),
        int(plan["cuda"]), {name: str(plan["precision"][name]) for name in VALUES if name in plan["precision"]},
        host_arena_size=whole(plan["host_arena"], MOST_BYTES),
        devices=whole(plan["devices"], collective_steps.MOST_DEVICES))
    if any(value not in VALUES[name] for name, value in packed.precision.items()):
        raise ValueError(f"bad precision {packed.precision!r}")
    _check_steps(packed)
    return packed


def _values(rows: list, on_host: list) -> tuple[Parameter, ...]:
    """Parameters or results; the numbers of those that are in the host's memory."""
    values = [value_from_json(row) for row in rows]
    for number in on_host:
        value = values[whole(number, len(values) - 1)]
        values[number] = value._replace(shape=value.shape.in_space(True))
    return tuple(values)


def table_bytes(steps: Sequence[Step]) -> int:
    """The memory in which devices are told how many rows of ragged all-to-alls come, and to where."""
    vectors = [step.blocks[2] for step in all_steps(steps)
               if isinstance(step, Collective) and step.kind == "ragged-all-to-all"]
    return max((2 * b.rows * b.run for b in vectors), default=0)


def _geometry(row: list) -> Geometry:
    function, grid, block, shared, about, product, maps, early, image = row
    x, y, z = map(int, grid)
    threads_x, threads_y, threads_z = map(int, block)
    start = Geometry(str(function), (x, y, z), (threads_x, threads_y, threads_z), int(shared), str(about),
                     _library_call(product) if product else None, tuple(TensorMap.from_json(m) for m in maps),
                     tuple(whole(n, LARGEST_GRID[0]) for n in early), whole(image, MOST_IMAGES))
    if min(start.grid + start.block) < 1 \
            or any(n > most for n, most in zip(start.grid + start.block, LARGEST_GRID + LARGEST_BLOCK)) \
            or math.prod(start.block) > MOST_THREADS or not 0 <= start.shared <= MOST_SHARED:
        raise ValueError(f"bad geometry {row!r}")
    return start


def _library_call(row: list) -> LtProduct | CudnnConvolution:
    return CudnnConvolution.from_json(row) if row[0] == "cudnn" else LtProduct.from_json(row)


def _check_steps(packed: Container) -> None:
    """Checks that every step names existing kernels and memory. Raises ValueError."""
    sizes = {"arena": [packed.arena_size], "host": [packed.host_arena_size],
             "parameter": [v.shape.num_bytes for v in packed.parameters],
             "result": [v.shape.num_bytes for v in packed.results], "constant": [c.nbytes for c in packed.constants]}
    if not all(0 <= n <= MOST_BYTES for own in sizes.values() for n in own):
        raise ValueError("an array of impossible size")
    collective_steps.check(packed.steps, packed.devices)
    for step in all_steps(packed.steps):
        if isinstance(step, Launch) and not 0 <= step.kernel < len(packed.kernels):
            raise ValueError(f"no kernel {step.kernel}")
        if isinstance(step, Launch) and (product := packed.kernels[step.kernel].product):
            product.fits([r.size for r in step.arguments])
        if isinstance(step, Launch):
            for one in packed.kernels[step.kernel].maps:
                one.fits([r.size for r in step.arguments])
        if isinstance(step, Copy) and step.destination.size < step.source.size:
            raise ValueError("a copy larger than its target")
        if isinstance(step, Branch) and (step.selector.size < (size := SELECTORS[step.selector_type])
                                         or step.selector.offset % size):
            raise ValueError("no number that selects a branch")
        if isinstance(step, DeviceNumber) and (step.result.size < 4 or 0 in (step.divisor, step.modulus)):
            raise ValueError("no number of a device")
        for ref in _refs(step):
            if ref.offset + ref.size > sizes[ref.region][ref.index]:
                raise ValueError(f"{ref} lies outside of its memory")


def _refs(step: Step) -> list[Ref]:
    """The memory that a step itself names, without that of its body."""
    if isinstance(step, Launch):
        return list(step.arguments)
    if isinstance(step, Copy):
        return [step.destination, step.source]
    if isinstance(step, WhileLoop):
        last = max(step.trip_count or 0, 1) - 1
        counters = [ref for counter in step.counters for ref in (counter.place, counter.in_round(last))]
        return [*counters, *(ref for ref in (step.flag,) if ref is not None)]
    if isinstance(step, Branch):
        return [step.selector]
    if isinstance(step, Collective):
        return [*step.arguments, *step.results]
    if isinstance(step, DeviceNumber):
        return [step.result]
    return [ref for ref, _ in step.arguments + step.results]


def _step_to_json(step: Step) -> list[Any]:
    if isinstance(step, Launch):
        return ["launch", step.kernel, [list(r) for r in step.arguments]]
    if isinstance(step, Copy):
        return ["copy", list(step.destination), list(step.source)]
    if isinstance(step, WhileLoop):
        return ["while", [_step_to_json(s) for s in step.condition], step.flag and list(step.flag),
                [_step_to_json(s) for s in step.body], step.trip_count,
                [[list(ref) for ref in counter] for counter in step.counters], int(step.by_device)]
    if isinstance(step, Branch):
        return ["branch", list(step.selector), step.selector_type,
                [[_step_to_json(s) for s in b] for b in step.branches], int(step.by_device)]
    if isinstance(step, Collective):
        return collective_steps.to_json(step)
    if isinstance(step, DeviceNumber):
        return ["number", list(step.result), step.divisor, step.modulus]
    return ["host", step.target, [[list(r), *value_to_json(Parameter("", s))[1:]] for r, s in step.arguments],
            [[list(r), *value_to_json(Parameter("", s))[1:]] for r, s in step.results]]


def _step_from_json(row: list, depth: int) -> Step:
    if depth > DEEPEST_PLAN:
        raise ValueError("plan nested too deep")
    kind = row[0]
    if kind == "launch":
        return Launch(int(row[1]), tuple(_ref(r) for r in row[2]))
    if kind == "copy":
        return Copy(_ref(row[1]), _ref(row[2]))
    if kind == "while":
        return _loop(row, depth)
    if kind == "branch":
        if row[2] not in SELECTORS or not row[3]:
            raise ValueError("a branch that nothing selects")
        return Branch(_ref(row[1]), row[2], tuple(_steps(b, depth) for b in row[3]), None, bool(whole(row[4], 1)))
    if kind == "host":
        arguments, results = (tuple((_ref(r), array_shape(t, *d)) for r, t, d in part) for part in row[2:4])
        return HostCall(str(row[1]), arguments, results)
    if kind == "collective":
        return collective_steps.from_json(row, _ref)
    if kind == "number":
        return DeviceNumber(_ref(row[1]), whole(row[2], collective_steps.MOST_DEVICES),
                            whole(row[3], collective_steps.MOST_DEVICES))
    raise ValueError(f"unknown step {kind!r}")


def _loop(row: list, depth: int) -> WhileLoop:
    _, condition, flag, body, trips, counters, by_device = row
    loop = WhileLoop(_steps(condition, depth), flag and _ref(flag), _steps(body, depth),
                     None if trips is None else whole(trips, MOST_BYTES), None,
                     tuple(Counter(_ref(place), _ref(values)) for place, values in counters), bool(whole(by_device, 1)))
    if trips is None and (loop.flag is None or counters) or any(c.place.size != c.values.size for c in loop.counters):
        raise ValueError("a loop that nothing ends")
    return loop


def _steps(rows: list, depth: int) -> tuple[Step, ...]:
    return tuple(_step_from_json(r, depth + 1) for r in rows)


def _ref(row: list) -> Ref:
    region, index, offset, size = row
    if region not in ("arena", "host", "parameter", "result", "constant") or min(index, offset, size) < 0:
        raise ValueError(f"bad reference {row!r}")
    return Ref(region, int(index), int(offset), int(size))
