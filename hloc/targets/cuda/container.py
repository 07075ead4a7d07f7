"""model.cubin: kernels, plan and constants in one file.

The ELF image comes first, so that cuobjdump and the driver read the file as a cubin; a zip follows it, so that zipfile
reads it too: plan.json, its hash, and one member per constant, stored, not deflated. plan.json notes the image's length
and the hash of every other part; `read` checks them all before anything is used. Nothing in it is ever unpickled.

    write(path, image, program, launches, arch); container = read(path)
"""
from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hloc.errors import RunError
from hloc.ir import numpy_dtype
from hloc.ir.shapes import array as array_shape
from hloc.kernels.plan import Branch, Copy, HostCall, Launch, Program, Ref, Step, Value, WhileLoop, all_steps
from hloc.targets.cuda.libraries.cublaslt import LtProduct
from hloc.targets.cuda.libraries.cudnn import CudnnConvolution
from hloc.targets.cuda.tiles.tensor_maps import TensorMap

VERSION = 6
DEEPEST_PLAN = 200
PLAN, SEAL = "plan.json", "plan.sha256"
ENCRYPTED = 1                       # a flag of zip's
LARGEST_GRID, LARGEST_BLOCK, MOST_THREADS = (2 ** 31 - 1, 65535, 65535), (1024, 1024, 64), 1024
MOST_SHARED = 227 << 10             # of a block, of any GPU
MOST_BYTES = 1 << 48                # more than any address reaches


class Geometry(NamedTuple):
    """How a kernel starts: its name in the image, blocks, threads per block, dynamic shared memory in bytes. about: the
    HLO that it computes, in one line, for messages. product: what cuBLASLt or cuDNN is called with in the kernel's
    place. maps: of arguments, for the bulk copy engine; the kernel's last argument points to them."""

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    about: str = ""
    product: LtProduct | CudnnConvolution | None = None
    maps: tuple[TensorMap, ...] = ()


class Container(NamedTuple):
    """What a model.cubin holds. `kernels` take the place of Program.kernels. cuda: the version of the compiler that
    made the image, as the driver counts it (13000), 0 where it is not known."""

    name: str
    arch: str
    image: bytes
    kernels: tuple[Geometry, ...]
    steps: tuple[Step, ...]
    parameters: tuple[Value, ...]
    results: tuple[Value, ...]
    constants: tuple[np.ndarray, ...]
    arena_size: int
    cuda: int = 0


def write(path: Path, image: bytes, program: Program, geometry: Sequence[Geometry], arch: str,
          cuda: int = 0) -> None:
    """Write a container. Its parts are hashed; its order of bytes is the machine's, noted by the element types."""
    members = [c.tobytes() for c in program.constants]
    plan = {
        "hloc_container": VERSION, "name": program.name, "arch": arch, "cuda": cuda,
        "image_bytes": len(image), "image_sha256": _seal(image),
        "kernels": [[*g[:5], g.product.to_json() if g.product else None, [m.to_json() for m in g.maps]]
                    for g in geometry],
        "steps": [_step_to_json(s) for s in program.steps],
        "parameters": [_value_to_json(v) for v in program.parameters],
        "results": [_value_to_json(v) for v in program.results],
        "constants": [[str(c.dtype), list(c.shape), _seal(m)]
                      for c, m in zip(program.constants, members)],
        "arena": program.arena_size,
    }
    text = json.dumps(plan).encode()
    path.write_bytes(image)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.writestr(zipfile.ZipInfo(PLAN), text)
        archive.writestr(zipfile.ZipInfo(SEAL), _seal(text))
        for i, member in enumerate(members):
            archive.writestr(zipfile.ZipInfo(f"constant_{i}"), member)


def read(path: Path) -> Container:
    """Read and check a container. Raises RunError for a file that is not one, is truncated or was changed."""
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & ENCRYPTED
                   for member in archive.infolist()):
                raise ValueError("a compressed or encrypted member")
            return _unpack(path, _plan(path, archive), archive)
    except zipfile.BadZipFile:
        raise RunError(f"{path} is not a whole container that hloc wrote: its end is missing, or it is another kind of "
                       "file") from None
    except (OSError, EOFError, KeyError, ValueError, TypeError, IndexError, OverflowError, RecursionError,
            NotImplementedError) as error:
        raise RunError(f"{path} is not a whole container that hloc wrote ({type(error).__name__}: {error})") from None


def _plan(path: Path, archive: zipfile.ZipFile) -> dict:
    text = archive.read(PLAN)
    plan = json.loads(text)
    if plan.get("hloc_container") != VERSION:
        raise RunError(f"{path} has container version {plan.get('hloc_container')}, this hloc reads {VERSION}")
    if archive.read(SEAL).decode() != _seal(text):
        raise RunError(f"{path} is damaged: its plan does not match its hash")
    return plan


def _unpack(path: Path, plan: dict, archive: zipfile.ZipFile) -> Container:
    length = int(plan["image_bytes"])
    if not 0 <= length <= path.stat().st_size:
        raise ValueError(f"an image of {length} bytes")
    with open(path, "rb") as file:
        image = file.read(length)
    if _seal(image) != plan["image_sha256"]:
        raise RunError(f"{path} is damaged: its kernels do not match their hash")
    constants = []
    for i, (dtype, dimensions, seal) in enumerate(plan["constants"]):
        data = archive.read(f"constant_{i}")
        if _seal(data) != seal:
            raise RunError(f"{path} is damaged: constant {i} does not match its hash")
        constants.append(np.frombuffer(data, np.dtype(dtype)).reshape(dimensions))
    packed = Container(
        str(plan["name"]), str(plan["arch"]), image, tuple(_geometry(row) for row in plan["kernels"]),
        tuple(_step_from_json(s, 0) for s in plan["steps"]),
        tuple(_value_from_json(v) for v in plan["parameters"]),
        tuple(_value_from_json(v) for v in plan["results"]), tuple(constants), int(plan["arena"]),
        int(plan["cuda"]))
    _check_steps(packed)
    return packed


def _seal(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _geometry(row: list) -> Geometry:
    function, grid, block, shared, about, product, maps = row
    start = Geometry(str(function), tuple(int(n) for n in grid), tuple(int(n) for n in block), int(shared), str(about),
                     _library_call(product) if product else None, tuple(TensorMap.from_json(m) for m in maps))
    if len(start.grid) != 3 or len(start.block) != 3 or min(start.grid + start.block) < 1 \
            or any(n > most for n, most in zip(start.grid + start.block, LARGEST_GRID + LARGEST_BLOCK)) \
            or math.prod(start.block) > MOST_THREADS or not 0 <= start.shared <= MOST_SHARED:
        raise ValueError(f"bad geometry {row!r}")
    return start


def _library_call(row: list) -> LtProduct | CudnnConvolution:
    return CudnnConvolution.from_json(row) if row[0] == "cudnn" else LtProduct.from_json(row)


def _check_steps(packed: Container) -> None:
    """Every step names kernels and memory that are there. Raises ValueError."""
    sizes = {"arena": [packed.arena_size], "parameter": [v.shape.num_bytes for v in packed.parameters],
             "result": [v.shape.num_bytes for v in packed.results], "constant": [c.nbytes for c in packed.constants]}
    if not all(0 <= n <= MOST_BYTES for own in sizes.values() for n in own):
        raise ValueError("an array of impossible size")
    for step in all_steps(packed.steps):
        if isinstance(step, Launch) and not 0 <= step.kernel < len(packed.kernels):
            raise ValueError(f"no kernel {step.kernel}")
        if isinstance(step, Launch) and (product := packed.kernels[step.kernel].product):
            product.fits([r.size for r in step.arguments])
        for map in packed.kernels[step.kernel].maps if isinstance(step, Launch) else ():
            map.fits([r.size for r in step.arguments])
        if isinstance(step, Copy) and step.destination.size < step.source.size:
            raise ValueError("a copy larger than its target")
        for ref in _refs(step):
            if ref.offset + ref.size > sizes[ref.region][ref.index]:
                raise ValueError(f"{ref} lies outside of its memory")


def _refs(step: Step) -> list[Ref]:
    """The memory that a step itself names."""
    if isinstance(step, Launch):
        return list(step.arguments)
    if isinstance(step, Copy):
        return [step.destination, step.source]
    if isinstance(step, WhileLoop):
        return [step.flag]
    if isinstance(step, Branch):
        return [step.selector]
    return [ref for ref, _ in step.arguments + step.results]


def _value_to_json(value: Value) -> list:
    return [value.name, value.shape.element_type, list(value.shape.dimensions)]


def _value_from_json(row: list) -> Value:
    name, element_type, dimensions = row
    numpy_dtype(element_type)                                    # KeyError for an unknown type
    sizes = [int(d) for d in dimensions]
    if min(sizes, default=0) < 0:
        raise ValueError(f"bad dimensions {dimensions!r}")
    return Value(str(name), array_shape(element_type, *sizes))


def _step_to_json(step: Step) -> list[Any]:
    if isinstance(step, Launch):
        return ["launch", step.kernel, [list(r) for r in step.arguments]]
    if isinstance(step, Copy):
        return ["copy", list(step.destination), list(step.source)]
    if isinstance(step, WhileLoop):
        return ["while", [_step_to_json(s) for s in step.condition], list(step.flag),
                [_step_to_json(s) for s in step.body], step.trip_count]
    if isinstance(step, Branch):
        return ["branch", list(step.selector), step.selector_type,
                [[_step_to_json(s) for s in b] for b in step.branches]]
    assert isinstance(step, HostCall)
    return ["host", step.target, [[list(r), *_value_to_json(Value("", s))[1:]] for r, s in step.arguments],
            [[list(r), *_value_to_json(Value("", s))[1:]] for r, s in step.results]]


def _step_from_json(row: list, depth: int) -> Step:
    if depth > DEEPEST_PLAN:
        raise ValueError("plan nested too deep")
    kind = row[0]
    if kind == "launch":
        return Launch(int(row[1]), tuple(_ref(r) for r in row[2]))
    if kind == "copy":
        return Copy(_ref(row[1]), _ref(row[2]))
    if kind == "while":
        return WhileLoop(_steps(row[1], depth), _ref(row[2]), _steps(row[3], depth), row[4])
    if kind == "branch":
        return Branch(_ref(row[1]), str(row[2]), tuple(_steps(b, depth) for b in row[3]))
    if kind == "host":
        return HostCall(str(row[1]), *(tuple((_ref(r), array_shape(t, *d)) for r, t, d in part) for part in row[2:4]))
    raise ValueError(f"unknown step {kind!r}")


def _steps(rows: list, depth: int) -> tuple[Step, ...]:
    return tuple(_step_from_json(r, depth + 1) for r in rows)


def _ref(row: list) -> Ref:
    region, index, offset, size = row
    if region not in ("arena", "parameter", "result", "constant") or min(index, offset, size) < 0:
        raise ValueError(f"bad reference {row!r}")
    return Ref(region, int(index), int(offset), int(size))
