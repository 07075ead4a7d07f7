"""Source lines of instructions: an instruction's metadata, resolved by the tables of its module.

In: an instruction's metadata, and the text of FileNames, FunctionNames, FileLocations, StackFrames, as stored in a
module (in text, parents count from 1, and a frame without a parent names itself). Out: the frames, the innermost first.

    frames('op_name="jit(f)/sum" stack_frame_id=3', tables)
        -> (Frame("/a/loss.py", "norm", 3), Frame("/a/loss.py", "loss", 6))
    written_at(metadata, tables) -> "loss.py:3 (norm), called at loss.py:6 (loss)"

Metadata without a frame may hold source_file and source_line. Source: xla/service/hlo.proto (StackFrameIndexProto).
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

HEAD = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\s*$", re.MULTILINE)
ROW = re.compile(r"^(\d{1,9})\s+(.*)$", re.MULTILINE)
NUMBER = re.compile(r"(\w+)=(-?\d{1,9})\b")
METADATA = re.compile(r'(op_name|source_file|source_line|stack_frame_id)=("(?:[^"\\]|\\.)*"|\d{1,9}\b)')
PLACES = frozenset(["stack_frame_id", "source_file"])
MOST_FRAMES = 64                # of one instruction: a hostile table may have a cycle of parents
SHOWN_CALLERS = 3


class Frame(NamedTuple):
    """A place in the user's program. file: its whole name; function: "" where it is not known; line: from 1, or 0."""

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        """loss.py:7 (loss), with the last part of the file's name."""
        place = self.file.rpartition("/")[2]
        place += f":{self.line}" if self.line else ""
        return f"{place} ({self.function})" if self.function else place


def frames(metadata: str, tables: str = "") -> tuple[Frame, ...]:
    """The frames of an instruction, the innermost first; () without such metadata."""
    found = dict(METADATA.findall(metadata))
    chain = _chain(int(found.get("stack_frame_id", 0)), _frames_of(tables)) if tables else ()
    if chain:
        return chain
    file = found.get("source_file", "").strip('"')
    return (Frame(file, "", int(found.get("source_line", 0))),) if file else ()


def written_at(metadata: str, tables: str = "", callers: int = SHOWN_CALLERS) -> str:
    """The frames as text; "" if there are none. callers: how many calling frames to name."""
    found = frames(metadata, tables)
    if not found:
        return ""
    outer = [str(f) for f in found[1:1 + callers]]
    return str(found[0]) + (f", called at {', '.join(outer)}" if outer else "")


def with_place_of(metadata: str, call: str) -> str:
    """The metadata of an inlined instruction, with the place of the call if it has none of its own, as in functions
    that a frontend writes once for several calls."""
    own, outer = dict(METADATA.findall(metadata)), dict(METADATA.findall(call))
    if not PLACES.isdisjoint(own) or PLACES.isdisjoint(outer):
        return metadata
    words = [metadata.strip().removeprefix("{").removesuffix("}")]
    words += [f"{key}={outer[key]}" for key in ("source_file", "source_line", "stack_frame_id") if key in outer]
    return "{" + " ".join(filter(None, words)) + "}"


def op_name(metadata: str) -> str:
    """The frontend's name of the operation: jit(f)/dot_general; "" without such metadata."""
    return dict(METADATA.findall(metadata)).get("op_name", "").strip('"')


def _chain(first: int, found: Mapping[int, tuple[Frame | None, int]]) -> tuple[Frame, ...]:
    """The frames from one outwards. Frames without a file are skipped."""
    chain: list[Frame] = []
    number = first
    for _ in range(MOST_FRAMES):
        if number not in found:
            break
        frame, parent = found[number]
        if frame is not None:
            chain.append(frame)
        if parent == number:
            break
        number = parent
    return tuple(chain)


@lru_cache(maxsize=16)
def _frames_of(tables: str) -> Mapping[int, tuple[Frame | None, int]]:
    """Each stack frame by its number, with its parent's."""
    heads = list(HEAD.finditer(tables))
    ends = [h.start() for h in heads[1:]] + [len(tables)]
    rows = {h[1]: {int(r[1]): r[2] for r in ROW.finditer(tables, h.end(), end)} for h, end in zip(heads, ends)}
    files, functions = ({n: text.strip().strip('"') for n, text in rows.get(head, {}).items()}
                        for head in ("FileNames", "FunctionNames"))
    locations = {n: _numbers(text) for n, text in rows.get("FileLocations", {}).items()}
    found: dict[int, tuple[Frame | None, int]] = {}
    for number, text in rows.get("StackFrames", {}).items():
        row = _numbers(text)
        location = locations.get(row.get("file_location_id", 0), {})
        file, function = (names.get(location.get(key, 0), "") for names, key in (
            (files, "file_name_id"), (functions, "function_name_id")))
        frame = Frame(file, function, location.get("line", 0)) if file else None
        parent = row.get("parent_frame_id", 1) - 1                       # counted from 1 in text
        found[number] = frame, parent if parent > 0 else number
    return found


def _numbers(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in NUMBER.findall(text)}
