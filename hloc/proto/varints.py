"""Variable-length integers in bulk: the arrays of s32, s64, u32 and u64 literals, a million elements at a time.

In: the bytes of consecutive varints. A byte holds seven bits, least significant first; its eighth bit is set if more
bytes follow. Out: an array of uint64, and back. Example:

    decode_varints(b"\\x01\\x96\\x01")         array([1, 150], dtype=uint64)
"""
from __future__ import annotations

import numpy as np

CHUNK = 1 << 20
_SMALL = tuple(bytes([i]) for i in range(0x80))
LONGEST = 10                           # bytes of a 64-bit varint


def decode_varints(data: bytes | memoryview) -> np.ndarray | None:
    """All integers of `data`; None if one is longer than 64 bits or the last is truncated."""
    raw = np.frombuffer(data, np.uint8)
    pieces, start = [], 0
    while start < len(raw):
        ends = np.flatnonzero(raw[start:start + CHUNK] < 0x80) + 1
        if not len(ends):
            return None
        piece = _decode(raw[start:start + int(ends[-1])], ends)
        if piece is None:
            return None
        pieces.append(piece)
        start += int(ends[-1])
    return np.concatenate(pieces) if pieces else np.zeros(0, np.uint64)


def _decode(raw: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """The number of integers that end before each of `ends`."""
    starts = np.concatenate(([0], ends[:-1]))
    lengths = ends - starts
    longest = int(lengths.max())
    if longest > LONGEST:
        return None
    values = np.zeros(len(ends), np.uint64)
    for i in range(longest):
        has = lengths > i
        bits = raw[starts[has] + i].astype(np.uint64) & np.uint64(0x7F)
        if i == LONGEST - 1 and (bits > 1).any():
            return None
        values[has] |= bits << np.uint64(7 * i)
    return values


def encode_varints(values: np.ndarray) -> bytes:
    """The bytes of unsigned (or two's complement) 64-bit integers."""
    values = np.ascontiguousarray(values).view(np.uint64)
    return b"".join(_encode(values[i:i + CHUNK]) for i in range(0, len(values), CHUNK))


def _encode(values: np.ndarray) -> bytes:
    lengths = np.ones(len(values), np.int64)
    for i in range(1, LONGEST):
        lengths += values >= np.uint64(1 << 7 * i)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    out = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for i in range(int(lengths.max(initial=0))):
        has = lengths > i
        more = np.where(lengths[has] > i + 1, 0x80, 0).astype(np.uint8)
        out[starts[has] + i] = ((values[has] >> np.uint64(7 * i)) & np.uint64(0x7F)).astype(np.uint8) | more
    return out.tobytes()


def varint(value: int) -> bytes:
    """The bytes of one integer; of a negative one, those of its 64-bit two's complement."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
