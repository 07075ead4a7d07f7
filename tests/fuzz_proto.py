"""Damaged protos, for fuzz.py: modules of testdata as binary protos, some as text protos.

Bytes are flipped, cut, spliced and repeated, numbers put in their places; what can still be read is verified, written
and read again, and some of it goes on through all stages, as damaged texts do.
"""
from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import fuzz_text

from hloc.errors import HlocError
from hloc.ir import Module
from hloc.proto import read_proto, write_proto, write_text_proto
from hloc.sources import module_of
from hloc.text import parse_module
from hloc.verify import verify

SUFFIX = ".pb"
LONGEST = 20_000                        # bytes of a proto that is mutated
GOES_ON = 8                             # one in so many that can be read goes through all stages
NUMBERS = (b"\x00", b"\x01", b"\x7f", b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x10", b"\xff\xff\xff\xff\x07",
           b"\x80" * 9 + b"\x01", b"\x80" * 11, b"\xff" * 20)


def originals(folders: Sequence[Path]) -> list[bytes]:
    """Each readable module as a binary proto; one in four as a text proto, too."""
    found = []
    for number, text in enumerate(fuzz_text.originals(folders)):
        try:
            module = parse_module(text)
            verify(module)
            found.append(write_proto(module))
            if number % 4 == 0:
                found.append(write_text_proto(module).encode())
        except HlocError:                                     # an example of an error
            continue
    return [data for data in found if len(data) < LONGEST]


# -- damaging ----------------------------------------------------------------------------------------------------------

def mutated(data: bytes, others: list[bytes], choose: random.Random) -> bytes:
    """`data` with one to a few changes."""
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 1, 2, 3, 6))):
        if changed:
            choose.choice(CHANGES)(changed, others, choose)
    return bytes(changed)


def flip(data: bytearray, others: list[bytes], choose: random.Random) -> None:
    data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)


def put_byte(data: bytearray, others: list[bytes], choose: random.Random) -> None:
    data[choose.randrange(len(data))] = choose.randrange(256)


def put_number(data: bytearray, others: list[bytes], choose: random.Random) -> None:
    i = choose.randrange(len(data))
    data[i:i + choose.choice((0, 1))] = choose.choice(NUMBERS)


def delete(data: bytearray, others: list[bytes], choose: random.Random) -> None:
    i = choose.randrange(len(data))
    del data[i:i + choose.choice((1, 1, 2, 5, 40, 1000))]


def repeat(data: bytearray, others: list[bytes], choose: random.Random) -> None:
    i = choose.randrange(len(data))
    part = data[i:i + choose.choice((1, 3, 10, 100))]
    data[i:i] = part * choose.choice((1, 1, 2, 300 if len(part) < 4 else 2))


def splice(data: bytearray, others: list[bytes], choose: random.Random) -> None:
    """A stretch of another file."""
    other, j = choose.choice(others), choose.randrange(len(data))
    i = choose.randrange(len(other))
    data[j:j + choose.choice((0, 1, 30))] = other[i:i + choose.choice((2, 20, 300))]


def cut(data: bytearray, others: list[bytes], choose: random.Random) -> None:
    del data[choose.randrange(len(data)):]


CHANGES: tuple[Callable, ...] = (flip, flip, put_byte, put_byte, put_number, delete, repeat, splice, cut)


# -- trying ------------------------------------------------------------------------------------------------------------

def attempt(data: bytes) -> None:
    """Reading, and what follows. HlocErrors end it; anything else is a find."""
    try:
        module = module_of(data, "damaged.pb")
        verify(module)
        again = read_proto(write_proto(module), "again.pb")
        assert kinds(again) == kinds(module), "writing and reading give another module"
        assert str(read_proto(write_proto(again), "again.pb")) == str(again), "and once more another one"
        if zlib.crc32(data) % GOES_ON == 0:
            fuzz_text.go_on(module)
    except HlocError as error:
        assert str(error)


def kinds(module: Module) -> list[tuple[str, str]]:
    """What instructions are: writing fills in what a header has lost, and gives names of their own to all."""
    return [(i.opcode, str(i.shape)) for i in module.instructions()]
