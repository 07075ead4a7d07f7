"""Damaged files of arrays, for fuzz.py: .npz (stored and deflated) and .npy, read as the parameters of a module.

What is damaged are bytes anywhere, numbers and words of the headers, and the fields of a zip file.
"""
from __future__ import annotations

import io
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import fuzz_proto
import numpy as np

from hloc.errors import HlocError
from hloc.inputs import entry_parameters
from hloc.inputs.files import read_arrays, read_inputs
from hloc.text import parse_module

SUFFIX = ".npz"
PARAMETERS = entry_parameters(parse_module(
    "ENTRY e { a = f32[2,3] parameter(0) b = s8[5] parameter(1) c = pred[] parameter(2) d = bf16[4] parameter(3) "
    "ROOT t = (f32[2,3]) tuple(a) }"))
WORDS = (b"'descr'", b"'fortran_order'", b"'shape'", b"True", b"False", b"<f4", b">f8", b"|O", b"<U9", b"|V2", b"(2, 3)",
         b"()", b"(,)", b"(-1,)", b"(4294967296,)", b"9" * 30, b"1e9", b"__import__('os')", b"\x93NUMPY", b"PK\x01\x02",
         b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"\xff\xff\xff\xff", b"\0\0\0\0", b"../a.npy", b"a.npy")


def originals(folders: Sequence[Path]) -> list[bytes]:
    """Files that are right, or nearly; no .hlo file is needed."""
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(5, dtype=np.int8), "c": np.array(True),
              "d": np.arange(4, dtype=np.uint16).view("V2")}
    more = {**arrays, "a": np.asfortranarray(arrays["a"]), "b": arrays["b"].astype(">i2"), "e": np.array(["x", "y"])}
    found = []
    for each in (arrays, more):
        for save in (np.savez, np.savez_compressed):
            file = io.BytesIO()
            save(file, **each)
            found.append(file.getvalue())
    for array in (*arrays.values(), np.zeros((0, 3)), np.zeros(500, np.complex128)):
        file = io.BytesIO()
        np.save(file, array)
        found.append(file.getvalue())
    return found


def put_word(data: bytearray, others: list[bytes], choose: random.Random) -> None:
    """A word of the format, over others or between them."""
    i = choose.randrange(len(data))
    word = choose.choice(WORDS)
    data[i:i + choose.choice((0, len(word)))] = word


def exchange_word(data: bytearray, others: list[bytes], choose: random.Random) -> None:
    """One word of the format for another, where it stands."""
    old = choose.choice(WORDS)
    place = data.find(old, choose.randrange(len(data)))
    if place >= 0:
        data[place:place + len(old)] = choose.choice(WORDS)


CHANGES: tuple[Callable, ...] = (*fuzz_proto.CHANGES, put_word, put_word, exchange_word, exchange_word)


def mutated(data: bytes, others: list[bytes], choose: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 1, 2, 3, 6))):
        if changed:
            choose.choice(CHANGES)(changed, others, choose)
    return bytes(changed)


def attempt(data: bytes) -> None:
    """Read as inputs, and as arrays of any kind. HlocErrors end it; anything else is a find."""
    for suffix in (".npz", ".npy"):
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(data)
            file.flush()
            for read in (lambda name: read_inputs([name], PARAMETERS), lambda name: read_arrays(Path(name))):
                try:
                    read(file.name)
                except HlocError as error:
                    assert str(error)
