"""The kernels of a program -> cubins, each kernel in one of its own: compiled by all cores, and cached.

    images_of(sources, "sm_90a")        bytes of ELF images, in the order of Geometry.image

A kernel that an earlier program had is not compiled again. The number in its name, k12_fusion_add, is its place in the
program: it is compiled with zeros for the digits, k00_fusion_add, and then gets its name, which has as many bytes, in
the string tables of its ELF image.
"""
from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

from hloc import cache
from hloc.targets.cuda import compiler
from hloc.targets.cuda.sources import DEVICE, CudaSources
from hloc.targets.inlining import HEADERS

# Of ELF's 64-bit header: the place of the section headers, their size and number. Of a section header: its type, its
# place in the file, its size.
SECTION_HEADERS, SECTION_SIZES, SECTION_TYPE, SECTION_PLACE, STRINGS = 0x28, 0x3A, 4, 0x18, 3


def images_of(sources: CudaSources, arch: str, report: Callable[[str, int, int], None] = lambda *_: None
              ) -> tuple[bytes, ...]:
    """From the cache or compiled. Raises BuildError, with the compiler's words about a kernel by its name."""
    texts = {name: text.replace(name, unplaced(name)) for name, text in sources.units().items()}
    version = str(compiler.compiler_version())
    keys = {name: cache.digest("kernel", arch, version, _headers(), text) for name, text in texts.items()}
    found = {name: image for name, key in keys.items() if (image := _cached(key)) is not None}
    missing = {name: text for name, text in texts.items() if name not in found}
    if missing:
        report("compile CUDA C", 0, len(missing))
        images = compiler.compile_units(missing, arch, lambda done: report("compile CUDA C", done, len(missing)))
        found.update(zip(missing, images))
        for name in missing:
            cache.put_bytes(keys[name], ".cubin", found[name])
    return tuple(renamed(found[name], unplaced(name), name) for name in texts)


def unplaced(name: str) -> str:
    """k12_fusion_add -> k00_fusion_add."""
    number, _, rest = name.removeprefix("k").partition("_")
    return f"k{'0' * len(number)}_{rest}"


def renamed(image: bytes, old: str, new: str) -> bytes:
    """A 64-bit little-endian ELF file, with another name of as many bytes in its string tables."""
    data = bytearray(image)
    (start,) = struct.unpack_from("<Q", image, SECTION_HEADERS)
    size, count = struct.unpack_from("<HH", image, SECTION_SIZES)
    for header in range(start, start + size * count, size):
        (kind,) = struct.unpack_from("<I", image, header + SECTION_TYPE)
        place, length = struct.unpack_from("<QQ", image, header + SECTION_PLACE)
        if kind == STRINGS:
            data[place:place + length] = image[place:place + length].replace(old.encode(), new.encode())
    return bytes(data)


@lru_cache(maxsize=1)
def _headers() -> str:
    """The hash of all headers that a unit may include."""
    files = sorted([*HEADERS.glob("*.h"), *DEVICE.glob("*.cuh")])
    return cache.digest(*(part for path in files for part in (path.name, path.read_bytes())))


def _cached(key: str) -> bytes | None:
    found = cache.opened(key, ".cubin")
    if found is None:
        return None
    with found:
        return found.read()
